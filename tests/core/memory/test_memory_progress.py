"""What the journal keeps of a memory store: read back as it was, and never more than there is room for."""

from __future__ import annotations

import random

import pytest

from repertory.core.journal.codec import decode, encode
from repertory.core.journal.records import CursorMoved
from repertory.core.journal.rows import VERSION
from repertory.core.memory.breaker import FAILURES_MAX, LONGEST_REST_S, Breaker
from repertory.core.memory.progress import (
    DEAD_LETTERS_MAX,
    PENDING_MAX,
    MemoryWrite,
    Progress,
    StoreFlush,
    progress_json,
    read_progress,
    together,
)
from repertory.errors import CorruptJournal


def write(key: str) -> MemoryWrite:
    return MemoryWrite(
        key=key,
        content=f"fact {key}",
        metadata={"n": 1},
        sequence_numbers=(1, 2),
        message_times=(2.5, 3.5),
        said_at=3.5,
    )


def grown(rng: random.Random, steps: int) -> Progress:
    progress, last = Progress(), 0
    for number in range(steps):
        pending = [each.key for each in progress.pending]
        match rng.randrange(6):
            case 0:
                last += rng.randint(1, 9)
                progress = progress.claimed(last)
            case 1 if progress.again:
                progress = progress.extracted(rng.choice(progress.again), [write(f"{number}-{rng.randrange(3)}")])
            case 2 if progress.again:
                progress = progress.given_up(rng.choice(progress.again), "nonsense", float(number))
            case 3 if pending:
                progress = progress.landed(rng.choice(pending))
            case 4 if pending:
                progress = progress.refused(rng.choice(pending), "no", float(number))
            case 5 if rng.random() < 0.1:
                progress = progress.replayed()
            case _:
                progress = progress.accepted([write(f"a{rng.randrange(40)}")])
    return progress


def test_progress_is_the_same_after_a_stay_in_the_journal(rng: random.Random) -> None:
    for _ in range(100):
        progress = grown(rng, rng.randint(0, 60))
        kept = progress_json(progress)
        record = CursorMoved(at=1.0, positions={"s": progress.position}, kept={} if kept is None else {"s": kept})
        kind, body = encode(record)
        again = decode(kind, VERSION, body)
        assert isinstance(again, CursorMoved)
        assert read_progress(again.positions["s"], again.kept.get("s")) == progress


def test_nothing_that_was_claimed_or_accepted_gets_lost_on_the_way(rng: random.Random) -> None:
    """Every write is pending, landed or a letter; every claimed stretch is to be extracted, extracted, or a letter."""
    for _ in range(50):
        progress, landed = Progress(), set[str]()
        known: set[str] = set()
        for number in range(rng.randint(1, 80)):
            fresh = [write(f"{number}")]
            known |= {each.key for each in fresh}
            progress = progress.accepted(fresh)
            chosen = rng.choice(progress.pending).key
            if rng.random() < 0.4:
                progress = progress.landed(chosen)
                landed.add(chosen)
            elif rng.random() < 0.3:
                progress = progress.refused(chosen, "no", 1.0)
            elif rng.random() < 0.1:
                progress = progress.replayed()
        waiting = {each.key for each in progress.pending}
        given_up = {letter.write.key for letter in progress.dead_letters if letter.write is not None}
        assert waiting | given_up | landed == known
        assert not waiting & given_up
        assert not waiting & landed


def test_the_same_write_is_accepted_once_while_it_is_on_its_way() -> None:
    progress = Progress().accepted([write("a")]).accepted([write("a"), write("b")])
    assert [each.key for each in progress.pending] == ["a", "b"]


def test_letters_that_are_replayed_are_tried_again_and_are_letters_no_more() -> None:
    progress = Progress().accepted([write("a")]).refused("a", "no", 1.0).claimed(4).given_up((1, 4), "no", 2.0)
    assert [letter.seq_range for letter in progress.dead_letters] == [(0, 0), (1, 4)]
    again = progress.replayed()
    assert ([each.key for each in again.pending], again.again, again.dead_letters) == (["a"], ((1, 4),), ())
    assert again.position == 4


def test_bounds_hold() -> None:
    progress = Progress()
    for number in range(PENDING_MAX):
        progress = progress.accepted([write(f"{number}")])
    assert progress.room == 0
    for number in range(DEAD_LETTERS_MAX + 10):
        progress = progress.given_up((number, number), "no", 1.0)
    assert len(progress.dead_letters) == DEAD_LETTERS_MAX
    assert progress.dead_letters[-1].seq_range == (DEAD_LETTERS_MAX + 9, DEAD_LETTERS_MAX + 9)


@pytest.mark.parametrize(
    "kept",
    [3, [], {"pending": 3}, {"pending": [{"key": 1, "content": "x"}]}, {"again": [[1]]}, {"letters": [{"at": "x"}]}],
    ids=["number", "list", "no list", "key", "stretch", "letter"],
)
def test_what_cannot_have_been_written_is_refused(kept: object) -> None:
    with pytest.raises(CorruptJournal):
        read_progress(1, kept)  # type: ignore[arg-type]


def test_a_breaker_opens_after_failures_lets_probes_through_and_closes_with_a_success() -> None:
    breaker, now = Breaker(), 0.0
    for _ in range(FAILURES_MAX - 1):
        breaker = breaker.failed(now)
        assert breaker.allows(now)
    rests: list[float] = []
    for _ in range(12):
        breaker = breaker.failed(now)
        assert not breaker.allows(now)
        rests.append(breaker.retry_at - now)
        now = breaker.retry_at
        assert breaker.allows(now)
    assert rests[:4] == [1.0, 2.0, 4.0, 8.0]
    assert rests[-1] == LONGEST_REST_S
    assert breaker.succeeded() == Breaker()


def test_flushes_of_several_conversations_add_up() -> None:
    flushed = [{"a": StoreFlush(2, 0, None)}, {"a": StoreFlush(1, 3, "down"), "b": StoreFlush()}]
    report = together(["a", "b", "c"], flushed)
    assert report.stores == {"a": (3, 3, "down"), "b": (0, 0, None), "c": (0, 0, None)}
    assert not report.ok
    assert together(["a"], []).ok
