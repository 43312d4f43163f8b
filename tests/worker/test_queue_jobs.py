"""What becomes of a job, and its form on the wire."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.admission import TENANT_TURNS
from repertory.errors import (
    ActorDead,
    ActorFailed,
    InterruptsWaiting,
    Invalid,
    LeaseLost,
    LimitReached,
    ModelFailed,
    NodeFailed,
    RepertoryError,
    RunUnfinished,
    SessionBusy,
    StoreFailed,
    Throttled,
    TooLarge,
    Unavailable,
    Unwritable,
)
from repertory.worker.decisions import (
    JOB_BYTES_MAX,
    WAIT_MAX_S,
    Again,
    Aside,
    Done,
    Malformed,
    TurnJob,
    job_text,
    may_succeed,
    read_job,
    verdict_at_receipt,
    verdict_on_error,
    verdict_on_stop,
    wait_after_s,
    with_token,
)

IDS = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"), min_size=1, max_size=40).filter(
    lambda text: text not in (".", "..")
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | IDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(IDS, inner, max_size=3),
    max_leaves=8,
)
PASSING = (
    Unavailable("x"),
    Throttled("x", retry_after_s=500.0),
    SessionBusy("x"),
    LeaseLost("x"),
    ActorDead("x"),
    ActorFailed("x"),
    StoreFailed("x"),
)
LASTING = (
    Invalid("x"),
    InterruptsWaiting("x"),
    TooLarge("x"),
    ModelFailed("x"),
    LimitReached("x"),
    RunUnfinished("x"),
    Unwritable("x"),
)
JOB = TurnJob("a", "s", "hi", token="t")


@given(IDS, IDS, IDS, st.text() | st.lists(st.fixed_dictionaries({"text": st.text()})), st.dictionaries(IDS, JSON))
def test_a_job_reads_as_it_was_written(agent: str, session_id: str, token: str, prompt: object, more: object) -> None:
    try:
        job = TurnJob(agent, session_id, prompt, token=token, attributes=more)  # type: ignore[arg-type]
    except Invalid:
        return  # An id of more than 255 bytes, or a text with half a surrogate.
    assert read_job(job_text(job).encode(), "given") == job


@given(st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()))
def test_nothing_that_is_read_raises_or_is_taken_for_another_job(data: bytes) -> None:
    found = read_job(data, "given")
    assert isinstance(found, Malformed | TurnJob)
    if isinstance(found, TurnJob):
        fields = json.loads(data)
        assert (found.agent, found.session_id) == (fields["agent"], fields["session_id"])


def test_a_job_without_a_token_has_one_of_its_messages_name() -> None:
    body = b'{"agent": "a", "session_id": "s", "prompt": "hi", "later": true}'
    first, again, other = (read_job(body, name) for name in ("one", "one", "two"))
    assert isinstance(first, TurnJob)
    assert first == again != other


@pytest.mark.parametrize(
    "body", ['{"agent": "a", "session_id": "s", "n": 1e400}', '{"token": null, "agent": "a", "session_id": "s"}\n']
)
def test_a_message_keeps_its_token_under_another_name_and_all_else_that_it_says(body: str) -> None:
    first = read_job(body.encode(), "one")
    written = with_token(body, first)
    assert read_job(written.encode(), "two") == first
    assert written.startswith(body.rstrip()[:-1])
    assert with_token(written, first) == written
    assert with_token("[", Malformed("no")) == "["


def test_a_message_that_is_too_large_is_not_even_parsed() -> None:
    assert isinstance(read_job(b" " * (JOB_BYTES_MAX + 1), "x"), Malformed)


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_waiting_grows_to_five_minutes_and_is_never_nothing(tries: int, jitter: float) -> None:
    assert 0.5 <= wait_after_s(tries, jitter) <= 300.0
    assert wait_after_s(tries, 0.0) <= wait_after_s(tries + 1, 0.0)


@given(st.sampled_from([*PASSING, *LASTING]), st.integers(1, 12), st.integers(1, 8), st.booleans(), st.floats(0, 0.99))
def test_what_has_failed_comes_back_a_bounded_number_of_times(
    error: RepertoryError, tries: int, tries_max: int, draining: bool, jitter: float
) -> None:
    verdict = verdict_on_error(error, tries, tries_max, draining=draining, jitter=jitter)
    passes = error in PASSING
    match verdict:
        case Again(counts=False):
            assert draining
            assert passes
        case Again():
            assert passes
            assert tries < tries_max
            assert type(error).__name__ in verdict.why
            if isinstance(error, Throttled):
                assert verdict.after_s >= 500.0
        case Aside():
            assert not passes or (tries >= tries_max and not draining)
            assert type(error).__name__ in verdict.why


@given(st.integers(1, 12), st.integers(1, 8), st.floats(0, 2e9), st.sets(st.sampled_from(["a", "b"])))
def test_a_job_is_tried_at_its_time_by_who_has_its_agent_and_not_for_ever(
    tries: int, tries_max: int, not_before: float, agents: set[str]
) -> None:
    now = 1e9
    job = TurnJob("a", "s", "hi", token="t", not_before=not_before)
    verdict = verdict_at_receipt(job, tries, tries_max, agents, now)
    if not_before > now:
        assert verdict == Again(min(not_before - now, WAIT_MAX_S), counts=False)
    elif verdict is None:
        assert "a" in agents
        assert tries <= tries_max
    elif isinstance(verdict, Again):
        assert "a" not in agents
        assert tries < tries_max
    else:
        assert tries > tries_max or ("a" not in agents and tries == tries_max)


@pytest.mark.parametrize("asked_s", [float("nan"), float("inf"), 1e308, -1.0, 0.0, None])
def test_no_wait_is_longer_than_any_queue_can_keep(asked_s: float | None) -> None:
    verdict = verdict_on_error(Throttled("slow", retry_after_s=asked_s), 1, 5, draining=False, jitter=0.5)
    assert isinstance(verdict, Again)
    assert 0.5 <= verdict.after_s <= WAIT_MAX_S


@pytest.mark.parametrize("at", [1e19, 10**400, float("inf"), float("nan"), -1, True, "soon", 253_402_300_800])
def test_a_job_is_not_due_outside_of_the_calendar(at: object) -> None:
    with pytest.raises(Invalid, match="epoch seconds"):
        TurnJob("a", "s", "hi", token="t", not_before=at)  # type: ignore[arg-type]


def test_what_is_no_job_is_set_aside_at_once() -> None:
    assert verdict_at_receipt(Malformed("because"), 1, 5, {"a"}, 0.0) == Aside("malformed: because")


@pytest.mark.parametrize("cause", [*PASSING, *LASTING], ids=lambda error: type(error).__name__)
def test_a_run_fails_as_its_node_has_failed(cause: RepertoryError) -> None:
    inner, outer = NodeFailed("inner"), NodeFailed("outer")
    inner.__cause__, outer.__cause__ = cause, inner
    assert may_succeed(outer) is may_succeed(cause) is (cause in PASSING)


def test_a_turn_that_a_drain_has_cut_short_goes_on_elsewhere_and_one_that_a_person_has_cancelled_does_not() -> None:
    assert verdict_on_stop("cancelled", draining=True) == Again(0.0, counts=False)
    assert verdict_on_stop("cancelled", draining=False) == verdict_on_stop("end_turn", draining=True) == Done()


@pytest.mark.parametrize("tries", [1, 5, 50])
def test_a_job_that_other_turns_of_its_tenant_keep_out_comes_back_however_often(tries: int) -> None:
    error = Throttled("too many turns of this tenant wait", retry_after_s=3.0, limit=TENANT_TURNS)
    verdict = verdict_on_error(error, tries, 5, draining=False, jitter=0.5)
    assert isinstance(verdict, Again)
    assert (verdict.after_s, verdict.counts) == (3.0, False)
