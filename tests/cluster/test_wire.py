"""Errors and events over JSON: what another process is told is what happened here."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory import (
    AgentResult,
    GraphResult,
    Interrupt,
    InterruptException,
    MultiAgentResult,
    NodeResult,
    error_from_json,
    error_to_json,
    errors,
    event_from_json,
    event_to_json,
)
from repertory.core.error_json import CUT, ERRORS_MAX
from repertory.core.json_fields import NESTING_MAX, TEXT_MAX
from repertory.core.result import StepMetrics, TurnMetrics
from repertory.errors import (
    AggregateMemoryError,
    ClientNotOpen,
    CommandTimeout,
    EventLoopException,
    Failed,
    Invalid,
    LimitReached,
    ModelFailed,
    NodeFailed,
    Retryable,
    SessionBusy,
    Throttled,
    Unavailable,
)
from tests.core.result_strategies import AGENT_RESULTS, INTERRUPTS, JSON, NAMES, RUN_RESULTS, node_results

CLASSES = sorted(set(errors.CLASSES.values()), key=lambda kind: cast("str", kind.__name__))
ROOTS = {"RepertoryError", "SessionException", "EventLoopException"}
"""They say nothing of what a caller does next."""
PYTHONS = [ValueError, TypeError, KeyError, LookupError, RuntimeError, TimeoutError, OSError, FileNotFoundError]
PYTHONS += [ConnectionResetError, NotImplementedError, ZeroDivisionError, RecursionError, AttributeError, Exception]
FIELDS = st.dictionaries(st.sampled_from(["session", "owner", "waiting", "at"]), JSON | st.binary(), max_size=3)


def over_the_wire(data: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
    return read


def sent(error: BaseException) -> Any:
    """The error as another process gets it."""
    return error_from_json(over_the_wire(error_to_json(error)))


def told(event: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The event as another process gets it."""
    return event_from_json(over_the_wire(event_to_json(event)), **options)


def shown(error: BaseException) -> str:
    """What a traceback shows, without the lines of code."""
    for each in behind(error, set()):
        each.__traceback__ = None
    return "".join(traceback.format_exception(error))


def behind(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    if error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        for other in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
            yield from behind(other, seen)


# Errors.


@given(text=st.text(), fields=FIELDS)
def test_every_error_is_of_its_class_again_with_its_text_and_fields(text: str, fields: dict[str, Any]) -> None:
    for kind in CLASSES:
        error = kind(text, **fields)
        again = sent(error)
        assert type(again) is kind
        assert (str(again), again.fields, again.type_name) == (str(error), fields, "")
        assert error_to_json(again) == error_to_json(error)


def test_the_group_is_a_class_that_says_what_the_caller_does_next() -> None:
    groups = {kind: cast("str", error_to_json(kind("x"))["group"]) for kind in CLASSES}
    outside = {kind.__name__ for kind, group in groups.items() if not issubclass(kind, getattr(errors, group))}
    assert outside == ROOTS


def test_an_error_of_two_groups_is_of_the_first_one() -> None:
    assert error_to_json(ClientNotOpen("x"))["group"] == "Invalid"
    assert error_to_json(SessionBusy("x"))["group"] == "Retryable"


def test_an_error_has_what_its_class_carries_besides() -> None:
    assert sent(Throttled("slow", retry_after_s=0.0)).retry_after_s == 0.0
    assert sent(Throttled("slow")).retry_after_s is None
    ended = sent(CommandTimeout("late", stdout="out", stderr="err"))
    assert (ended.stdout, ended.stderr) == ("out", "err")
    assert sent(EventLoopException("x", {"user": "u", "key": b"\0"})).request_state == {"user": "u", "key": b"\0"}
    assert sent(Throttled("x", retry_after_s=float("inf"))).retry_after_s is None
    assert sent(CommandTimeout("late", stdout=cast("Any", b"out"))).stdout == "b'out'"
    assert [str(one) for one in sent(AggregateMemoryError("x", errors=[cast("Any", "odd")])).errors] == ["'odd'"]
    some = sent(AggregateMemoryError("some failed", errors=[Unavailable("a", store="s"), ValueError("b")]))
    assert [(type(one), str(one)) for one in some.errors] == [(Unavailable, "a store='s'"), (ValueError, "b")]


@given(RUN_RESULTS)
def test_a_failed_node_has_the_result_so_far(result: MultiAgentResult) -> None:
    error = NodeFailed("no", node="x")
    error.result = result
    assert sent(error).result == result


def test_what_json_cannot_hold_of_a_field_is_its_text_shortened() -> None:
    within: list[Any] = []
    within.append(within)
    error = Failed("x", by={1, 2}, pair=(1, 2), nan=float("nan"), many=set(range(5000)), within=within, keys={1: 2})
    again = sent(error)
    assert str(again) == str(error)
    assert again.fields == {
        "by": "{1, 2}",
        "pair": [1, 2],
        "nan": "nan",
        "many": f"{set(range(5000))}"[:TEXT_MAX] + "...",
        "within": ["[[...]]"],
        "keys": "{1: 2}",
    }


@given(arguments=st.lists(st.text() | st.integers() | st.none(), max_size=3))
def test_an_error_of_pythons_stays_itself(arguments: list[Any]) -> None:
    for kind in PYTHONS:
        error = kind(*arguments)
        again = sent(error)
        assert (type(again), str(again)) == (type(error), str(error))


def test_an_error_of_pythons_that_holds_objects_reads_as_before() -> None:
    key, named = KeyError(object()), FileNotFoundError(2, "No such file", "/there")
    assert str(sent(key)) == str(key)
    assert (sent(named).errno, sent(named).filename, str(sent(named))) == (2, "/there", str(named))


class PaymentFailed(ValueError):
    """Somebody's own."""


class Throttling(Throttled, PaymentFailed):
    """Somebody's own, below one of ours."""


class Silent(Exception):
    """It has no text."""

    def __str__(self) -> str:
        raise PaymentFailed


def test_anybodys_own_error_is_the_nearest_public_one_or_failed_and_says_its_name() -> None:
    ours = sent(Throttling("wait", retry_after_s=2.0, who="u"))
    assert (type(ours), str(ours), ours.retry_after_s) == (Throttled, "wait who='u'", 2.0)
    others: list[BaseException] = [PaymentFailed("no money"), PaymentFailed(), asyncio.CancelledError(), Silent()]
    others.append(InterruptException(Interrupt("i", "approve")))
    texts = ["PaymentFailed: no money", "PaymentFailed", "CancelledError", "Silent: <Silent without a text>"]
    texts.append("InterruptException: a person is asked: approve")
    assert [(type(sent(other)), str(sent(other))) for other in others] == [(Failed, text) for text in texts]


def test_an_error_of_a_later_release_is_of_its_group_and_keeps_its_name() -> None:
    data = {**error_to_json(LimitReached("too much", of="tea")), "type": "TeaLimitReached", "cups": [1], "fields": {}}
    again = error_from_json(data)
    assert isinstance(again, LimitReached)
    assert (type(again), str(again), again.type_name) == (LimitReached, "too much of='tea'", "TeaLimitReached")
    assert error_to_json(again)["type"] == "TeaLimitReached"
    for name in ("SystemExit", "KeyboardInterrupt", "os.system", "StopIteration", "Struct", "Sequence", "__doc__"):
        stranger: Any = error_from_json({"group": "Nobodys", "type": name, "text": "x"})
        assert (type(stranger), stranger.type_name) == (Failed, name)


LEAVES: st.SearchStrategy[Exception] = st.one_of(
    st.builds(lambda kind, text: kind(text), st.sampled_from([*PYTHONS, *CLASSES]), st.text(max_size=9)),
    st.builds(lambda seconds: Throttled("slow", retry_after_s=seconds), st.floats(0, 9)),
)


def chained(error: Exception, cause: Exception | None, context: Exception | None, notes: list[str]) -> Exception:
    error.__context__ = context
    if cause is not None:
        error.__cause__ = cause
    for note in notes:
        error.add_note(note)
    return error


def linked(inner: st.SearchStrategy[Exception]) -> st.SearchStrategy[Exception]:
    groups = st.builds(ExceptionGroup, st.text(max_size=9), st.lists(inner, min_size=1, max_size=3))
    links = st.none() | inner
    return st.builds(chained, LEAVES | groups, links, links, st.lists(st.text(max_size=9), max_size=2))


@given(st.recursive(LEAVES, linked, max_leaves=8))
def test_causes_contexts_notes_and_groups_read_like_the_original_in_a_traceback(error: Exception) -> None:
    assert shown(sent(error)) == shown(error)


def test_a_suppressed_context_stays_hidden() -> None:
    error = Failed("x")
    error.__context__, error.__suppress_context__ = ValueError("hidden"), True
    assert shown(sent(error)) == "repertory.errors.Failed: x\n"


def test_long_chains_wide_groups_and_circles_are_cut_short() -> None:
    chain: Exception = Failed("0")
    for number in range(1, 200):
        chain, chain.__cause__ = Failed(str(number)), chain
    links = list(behind(sent(chain), set()))
    assert [str(each) for each in links] == [*(str(199 - number) for number in range(ERRORS_MAX)), CUT]
    wide = sent(ExceptionGroup("wide", [ExceptionGroup("w", [ValueError(str(n)) for n in range(50)])] * 3))
    assert len(list(behind(wide, set()))) <= 2 * ERRORS_MAX
    assert CUT in shown(wide)
    first, second = Failed("first"), Failed("second")
    first.__cause__, second.__cause__ = second, first
    assert [str(each) for each in behind(sent(first), set())] == ["first", "second"]


MADE: list[BaseException] = [
    Throttled("slow", retry_after_s=1.0, at=1),
    CommandTimeout("late", stdout="o"),
    AggregateMemoryError("some", errors=[ValueError("v")]),
    ExceptionGroup("g", [KeyError("k"), OSError(2, "no", "f")]),
    chained(NodeFailed("n"), ModelFailed("m"), None, ["note"]),
]


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from places(value, (*path, key))


def damaged(data: dict[str, Any], draw: Callable[[st.SearchStrategy[Any]], Any]) -> dict[str, Any]:
    """The data with another value somewhere in it."""
    *way, last = draw(st.sampled_from(sorted(places(data), key=repr)))
    inner: Any = data
    for key in way:
        inner = inner[key]
    inner[last] = draw(JSON)
    return data


@given(st.sampled_from(MADE), st.data())
def test_a_damaged_error_is_an_error_still_or_invalid(error: BaseException, data: st.DataObject) -> None:
    fields = damaged(over_the_wire(error_to_json(error)), data.draw)
    with suppress(Invalid):
        assert isinstance(error_from_json(fields), Exception)


@given(JSON)
def test_what_is_no_error_is_invalid(data: Any) -> None:
    with pytest.raises(Invalid, match="not the fields of an error"):
        error_from_json(data)


def test_lone_surrogates_and_deep_values_pass() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    error = Invalid("\ud800", deep="x")
    error.fields["deep"] = deep
    again = sent(error)
    assert str(again) == str(error)
    frame = len(json.dumps({"deep": "..."}))
    assert len(json.dumps(again.fields)) < NESTING_MAX * 2 + TEXT_MAX + frame


# Events.

USE: Any = {"toolUseId": "t1", "name": "look", "input": {"at": 1}}
NODES = node_results(AGENT_RESULTS | RUN_RESULTS)
EVENTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "event": st.builds(lambda raw: {"event": {"contentBlockDelta": raw}}, JSON),
    "data": st.builds(lambda text: {"data": text, "delta": {"text": text}}, st.text()),
    "reasoning": st.builds(lambda text: {"reasoning": True, "reasoningText": text, "delta": {}}, st.text()),
    "message": st.builds(lambda body: {"message": {"role": "user", "content": [{"text": body}]}}, st.text()),
    "tool_started": st.just({"tool_started": USE}),
    "tool_stream_event": st.builds(
        lambda data: {"tool_stream_event": {"tool_use": USE, "data": data}}, JSON | st.binary()
    ),
    "tool_finished": st.builds(
        lambda body: {"tool_finished": {"toolUseId": "t1", "status": "success", "content": [{"json": body}]}}, JSON
    ),
    "tool_interrupt_event": st.builds(
        lambda asked: {"tool_interrupt_event": {"tool_use": USE, "interrupts": asked}}, INTERRUPTS
    ),
    "model_retry": st.just({"model_retry": {"attempt": 1, "delay_s": 0.5, "error": None}}),
    "result": st.builds(lambda result: {"result": result}, AGENT_RESULTS),
    "multiagent_node_start": st.builds(
        lambda node: {"type": "multiagent_node_start", "node_id": node, "node_type": "agent"}, NAMES
    ),
    "multiagent_node_stop": st.builds(
        lambda node: {"type": "multiagent_node_stop", "node_id": "a", "node_result": node}, NODES
    ),
    "multiagent_node_interrupt": st.builds(
        lambda asked: {"type": "multiagent_node_interrupt", "node_id": "a", "interrupts": asked}, INTERRUPTS
    ),
    "multiagent_node_cancel": st.just({"type": "multiagent_node_cancel", "node_id": "a", "message": "no"}),
    "multiagent_handoff": st.just({"type": "multiagent_handoff", "from_node_ids": ["a"], "to_node_ids": ["b"]}),
    "multiagent_result": st.builds(lambda result: {"type": "multiagent_result", "result": result}, RUN_RESULTS),
}


@pytest.mark.parametrize("kind", EVENTS)
@given(data=st.data())
def test_every_event_is_read_as_it_was_written(kind: str, data: st.DataObject) -> None:
    event = data.draw(EVENTS[kind])
    assert told(event) == event
    node = {"type": "multiagent_node_stream", "node_id": "a", "event": event}
    assert told({**node, "event": node}) == {**node, "event": node}
    of_a_tool = {"tool_stream_event": {"tool_use": USE, "data": event}}
    assert told(of_a_tool) == of_a_tool


def test_the_error_of_a_retry_is_an_error_again() -> None:
    retry = told({"model_retry": {"attempt": 2, "delay_s": 1.0, "error": Throttled("slow", retry_after_s=3.0)}})
    error = retry["model_retry"]["error"]
    assert (type(error), error.retry_after_s, retry["model_retry"]["attempt"]) == (Throttled, 3.0, 2)


def test_the_result_of_a_run_is_read_as_the_class_that_the_caller_names() -> None:
    event = {"type": "multiagent_result", "result": GraphResult(total_nodes=2, completed_nodes=1)}
    assert told(event, run_result=GraphResult) == event
    assert type(told(event)["result"]) is MultiAgentResult


@dataclass
class Progress:
    done: int
    by: date
    whose: Any = None


class Unreadable:
    def model_dump(self, **options: Any) -> Any:
        raise PaymentFailed(options)

    def __repr__(self) -> str:
        raise PaymentFailed


def test_data_of_a_tool_is_json_if_it_can_be_else_its_text() -> None:
    def seen(data: Any) -> Any:
        return told({"tool_stream_event": {"tool_use": USE, "data": data}})["tool_stream_event"]["data"]

    loop = Progress(1, date(2024, 2, 29))
    loop.whose = loop
    assert seen(Progress(1, date(2024, 2, 29), {2})) == {"done": 1, "by": "2024-02-29", "whose": [2]}
    assert seen(loop)["whose"].startswith("Progress(done=1")
    assert seen([float("inf"), float("nan"), b"\0", (1,)]) == ["inf", "nan", b"\0", [1]]
    assert seen({1: "one", None: 2}) == {"1": "one", "None": 2}
    assert seen({1: "one", "1": 2}) == "{1: 'one', '1': 2}"
    assert seen(Interrupt("i", "approve")) == Interrupt("i", "approve").to_dict()
    assert seen(ValueError("v")) == error_to_json(ValueError("v"))
    assert seen(len) == "<built-in function len>"
    assert seen(Unreadable()) == "<Unreadable without a text>"
    assert seen(10**5000) == "<int without a text>"


def test_a_result_that_cannot_be_written_is_its_text() -> None:
    odd = MultiAgentResult(results={"a": cast("Any", 3)}, reason="odd")
    assert told({"result": odd}) == {"result": str(odd)}
    failed = NodeFailed("x")
    failed.result = odd
    assert sent(failed).result is None
    assert told({"result": AgentResult("end_turn", None, state=cast("Any", 5))})["result"].state == {}


def test_figures_that_are_no_numbers_do_not_keep_an_error_from_being_read() -> None:
    nan = float("nan")
    metrics = TurnMetrics(cycles=(StepMetrics({"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}, nan, nan, 1),))
    failed = NodeFailed("x")
    failed.result = MultiAgentResult(
        results={"a": NodeResult(AgentResult("end_turn", None, metrics=metrics))},
        accumulated_metrics={"latencyMs": nan},
    )
    again = sent(failed).result
    assert again.results["a"].result.metrics.cycles[0].latency_ms == 0.0
    outer = NodeResult(failed)
    assert told({"type": "multiagent_node_stop", "node_result": outer})["node_result"].result.result == again
    for kind in (AgentResult("end_turn", None, metrics=metrics), failed.result):
        assert type(told({"result": kind})["result"]) is type(kind)


def test_what_is_private_to_a_process_is_left_out() -> None:
    assert told({"init": True, "agent": seen_by_nobody, "tools": [1, seen_by_nobody], "of": {"f": len}}) == {
        "init": True,
        "tools": [1],
        "of": {},
    }


def seen_by_nobody() -> None:
    """A function."""


def test_a_reader_passes_over_what_it_does_not_know() -> None:
    bare = AgentResult("end_turn", None)
    event = {"result": {**bare.to_dict(), "later": [1]}, "more": 2}
    assert event_from_json(event) == {"result": bare, "more": 2}
    for own in ({"news": {"of": [1]}}, {"type": "later", "x": 1}, {"result": 5}, {"model_retry": "soon"}, {}):
        assert told(dict(own)) == own
    inner = {"type": "multiagent_node_stream", "node_id": "a", "event": {"result": {"type": "agent_result"}}}
    assert told(inner) == inner


@given(st.sampled_from(sorted(EVENTS)), st.data())
def test_a_damaged_event_is_an_event_still_or_invalid(kind: str, data: st.DataObject) -> None:
    fields = damaged(over_the_wire(event_to_json(data.draw(EVENTS[kind]))), data.draw)
    with suppress(Invalid):
        assert isinstance(event_from_json(fields), dict)


def test_what_is_no_event_is_invalid() -> None:
    wrong: list[Any] = [None, 5, "data", [1], {"model_retry": {"error": {"text": 1}}}]
    wrong += [{"result": {"type": kind}} for kind in ("agent_result", "multiagent_result")]
    for event in wrong:
        with pytest.raises(Invalid, match="not the fields of an event"):
            event_from_json(event)
    with pytest.raises(Invalid, match="dictionary"):
        event_to_json(cast("Any", [1]))
    with pytest.raises(Invalid):
        event_from_json({"type": "multiagent_node_stop", "node_result": {"result": {}}})


def test_a_retryable_error_can_be_raised_and_caught_by_its_group() -> None:
    with pytest.raises(Retryable, match="gone") as raised:
        raise sent(Unavailable("gone"))
    assert type(raised.value) is Unavailable
    assert isinstance(NodeResult(raised.value).result, Unavailable)
