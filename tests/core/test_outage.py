"""What follows from an error of a store, and what of a commit is stored all the same: `docs/design/ownership.md`."""

from __future__ import annotations

import random

import pytest

from repertory.core.journal.fold import Fold
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.restore import Appender
from repertory.core.journal.rows import Row, first_link, following, stored_of
from repertory.core.retry import OutageVerdict, StorePatience, backoff_s, verdict_on
from repertory.errors import (
    Corrupt,
    Failed,
    Invalid,
    LeaseLost,
    LimitReached,
    RepertoryError,
    SessionException,
    Throttled,
    Unavailable,
)


def journal(count: int, seed: int = 1, agent_id: str = "a") -> list[Row]:
    appender = Appender(agent_id, Fold(), None, random.Random(seed).randbytes)
    rows: list[Row] = []
    for index in range(count):
        role = "user" if index % 2 == 0 else "assistant"
        said = MessageAdded(
            at=float(index),
            message={"role": role, "content": [{"text": "x"}]},  # type: ignore[typeddict-item] - one of two
            turn=index // 2 + 1,
            index=index,
        )
        rows.append(appender.append(said))
    return rows


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (Unavailable("down"), OutageVerdict.WAIT),
        (Throttled("slow down"), OutageVerdict.WAIT),
        (Failed("no rights"), OutageVerdict.TELL),
        (SessionException("the repository raised"), OutageVerdict.TELL),
        (LeaseLost("taken over"), OutageVerdict.GIVE_UP),
        (Corrupt("damaged"), OutageVerdict.GIVE_UP),
        (Invalid("closed"), OutageVerdict.GIVE_UP),
        (LimitReached("too large"), OutageVerdict.GIVE_UP),
    ],
)
def test_what_passes_is_waited_for_and_what_somebody_must_change_is_told(
    error: RepertoryError, verdict: OutageVerdict
) -> None:
    assert verdict_on(error) is verdict


def test_attempts_become_rarer_up_to_a_bound_and_are_spread(rng: random.Random) -> None:
    waits = [backoff_s(Unavailable("x"), failures, 0.0) for failures in range(1, 12)]
    assert waits[0] == 0.1
    assert waits == sorted(waits)
    assert waits[-1] == 2.0
    for failures in (1, 5, 10_000):
        assert 0.05 <= backoff_s(Unavailable("x"), failures, rng.random()) <= 2.0


def test_a_store_that_says_how_long_to_wait_is_heard() -> None:
    assert backoff_s(Throttled("x", retry_after_s=7.0), 1, 0.5) == 7.0
    assert backoff_s(Throttled("x"), 1, 0.0) == 0.1


def test_rows_that_are_stored_are_known_by_their_links() -> None:
    rows = journal(6)
    sent = rows[2:5]
    assert stored_of(sent, None) == 0
    assert stored_of(sent, rows[1]) == 0
    assert stored_of(sent, rows[2]) == 1
    assert stored_of(sent, rows[4]) == 3
    assert stored_of(sent, rows[5]) is None, "somebody has gone on"
    assert stored_of(sent, journal(6, seed=2)[3]) is None, "somebody else's row has the number"


def test_what_was_kept_goes_on_from_what_is_stored_unless_somebody_else_did() -> None:
    rows, others, first = journal(6), journal(6, seed=2), first_link("a")
    assert following([], rows, first) == rows
    assert following(rows[:3], rows[2:], first) == rows[3:]
    assert following(rows[:3], rows[3:], first) == rows[3:]
    assert following(rows, rows[2:], first) == []
    assert following(rows, [], first) == []
    assert following(rows[:2], rows[3:], first) is None, "one is missing"
    assert following(others[:3], rows[3:], first) is None
    assert following(others[:4], rows[3:], first) is None
    assert following(others, rows[3:], first) is None


@pytest.mark.parametrize("field", ["wait_s", "records_max", "bytes_max"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "5", True])
def test_patience_that_makes_no_sense_is_refused(field: str, value: object) -> None:
    with pytest.raises(Invalid, match=field):
        StorePatience(**{field: value})  # type: ignore[arg-type] - that is the point


def test_nobody_need_wait_for_a_busy_owner() -> None:
    assert StorePatience(busy_s=0).busy_s == 0
    with pytest.raises(Invalid, match="busy_s"):
        StorePatience(busy_s=-1)
