"""The log of a turn: whoever comes back with an offset reads on there, with nothing twice and nothing missing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.turn_log import PIECE_BYTES, PIECES_MAX, START, Offset, TurnLog, begun_at, is_piece, read_offset
from repertory.errors import Invalid

KINDS = st.lists(st.sampled_from(["piece", "message", "tool"]), max_size=30)


def told(kinds: list[str], base: int = 7, *, over: bool = True) -> TurnLog:
    """A log in which each message is the next record but one."""
    log, seq = TurnLog("a1", base), base
    for number, kind in enumerate(kinds):
        if kind == "message":
            seq += 2
            log.add({"message": {"role": "user", "content": [{"text": str(number)}]}}, seq)
        elif kind == "tool":
            log.add({"tool_stream_event": {"data": number}}, seq)
        else:
            log.add({"data": str(number)}, seq)
    if over:
        log.add({"result": None}, seq)
        log.end()
    return log


@given(KINDS, st.integers(0, 40))
def test_reading_on_from_the_offset_of_any_event_gives_what_follows_it(kinds: list[str], at: int) -> None:
    log = told(kinds)
    entries = log.after(0)
    entry = entries[min(at, len(entries) - 1)]
    back = read_offset(entry.event["offset"])
    assert back == entry.offset
    assert log.has(back)
    assert log.after(log.number_after(back)) == entries[entry.number :]


@given(st.builds(Offset, st.integers(0, 10**18 - 1), st.just(""), st.just(0), st.booleans()))
def test_an_offset_is_read_as_it_was_written(offset: Offset) -> None:
    assert read_offset(str(offset)) == offset


@given(st.integers(0, 10**9), st.text("0123456789abcdef", min_size=1, max_size=12), st.integers(1, 10**9))
def test_the_offset_of_a_piece_is_read_as_it_was_written(seq: int, run: str, piece: int) -> None:
    assert read_offset(str(Offset(seq, run, piece))) == Offset(seq, run, piece)


@given(st.text(max_size=12))
def test_any_other_text_is_refused(text: str) -> None:
    try:
        offset = read_offset(text)
    except Invalid:
        return
    assert str(offset) == text


@given(KINDS, st.integers(0, 60))
def test_a_reader_who_has_messages_alone_reads_what_follows_the_last_of_them(kinds: list[str], seq: int) -> None:
    log = told(kinds)
    rest = log.after(log.number_after(Offset(seq)))
    messages = [entry.offset.seq for entry in log.after(0) if "message" in entry.event]
    assert [entry.offset.seq for entry in rest if "message" in entry.event] == [one for one in messages if one > seq]
    assert log.has(Offset(seq)) == (seq >= 7)


def test_a_piece_of_another_log_is_not_known_and_everything_is_told() -> None:
    log = told(["piece", "message"])
    assert not log.has(Offset(7, "b2", 1))
    assert len(log.after(log.number_after(Offset(7, "b2", 1)))) == 3


def test_who_has_the_end_is_told_nothing() -> None:
    log = told(["message"])
    assert log.after(log.number_after(Offset(9, over=True))) == []


def test_old_pieces_are_dropped_and_their_messages_stay() -> None:
    log = told(["piece"] * (PIECES_MAX + 10) + ["message", "piece", "piece"])
    kept = log.after(0)
    assert [entry.offset.seq for entry in kept if not is_piece(entry)] == [9, 9]
    assert PIECES_MAX // 2 <= sum(map(is_piece, kept)) <= PIECES_MAX
    assert [entry.event.get("data") for entry in kept[-3:-1]] == [str(PIECES_MAX + 11), str(PIECES_MAX + 12)]
    assert log.after(log.number_after(Offset(7, "a1", 1))) == kept


@given(st.lists(st.sampled_from(["data", "event", "tool_started", "message", "model_retry"]), max_size=20))
def test_pieces_that_a_retry_makes_void_are_given_to_no_other_reader(kinds: list[str]) -> None:
    log, live = TurnLog("a1", 7), list[tuple[int, str]]()
    for number, kind in enumerate(kinds, 1):
        log.add({kind: number}, 7 + sum(one == "message" for one in kinds[:number]))
        live += [(entry.number, next(iter(entry.event))) for entry in log.after(number - 1)]
    assert live == [*enumerate(kinds, 1)]  # Who reads along has them, and is told that they are void.
    found = [(entry.number, next(iter(entry.event))) for entry in log.after(0)]
    expected: list[tuple[int, str]] = []
    for number, kind in live:
        if kind == "model_retry":
            since = max((at for at, (_, one) in enumerate(expected, 1) if one == "message"), default=0)
            expected[since:] = [each for each in expected[since:] if each[1] not in ("data", "event")]
        expected.append((number, kind))
    assert found == expected


def test_what_a_tool_streams_without_end_is_bounded() -> None:
    log = told(["piece", *["tool"] * (3 * PIECES_MAX)], over=False)
    kept = log.after(0)
    assert len(kept) <= PIECES_MAX + 1
    assert kept[0].event["data"] == "0"
    assert kept[-1].number == 3 * PIECES_MAX + 1


def test_large_values_that_a_tool_streams_count_by_their_weight() -> None:
    log = TurnLog("a1", 7)
    for number in range(100):
        log.add({"tool_stream_event": {"data": f"{number}" * 1_000_000}}, 7)
    held = [entry for entry in log.after(0) if "tool_stream_event" in entry.event]
    assert sum(len(str(entry.event)) for entry in held) <= PIECES_MAX * PIECE_BYTES
    assert held[-1].number == 100


@pytest.mark.parametrize(
    ("roles", "first", "begun"),
    [
        ("u", 0, 0),
        ("ua", 1, 0),
        ("uaura", 3, 2),
        ("uatr", 2, 0),
        ("uaua", 2, 2),
    ],
)
def test_a_turn_that_went_on_begins_at_its_prompt(roles: str, first: int, begun: int) -> None:
    said = [(seq, message_of(role)) for seq, role in enumerate(roles)]
    assert begun_at(said, first) == begun


def message_of(role: str) -> Any:
    if role == "t":
        return {"role": "user", "content": [{"toolResult": {"toolUseId": "1", "content": [], "status": "success"}}]}
    return {"role": "user" if role == "u" else "assistant", "content": [{"text": "x"}]}


def test_a_log_that_was_told_nothing_has_nothing_and_goes_on() -> None:
    log = TurnLog("a1", 0)
    assert log.after(log.number_after(START)) == []
    assert log.has(START)
