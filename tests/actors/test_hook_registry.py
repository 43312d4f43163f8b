"""Who is told of which event, in which order, and what happens when a callback fails."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Optional, Union

import anyio
import pytest

from repertory import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    AfterToolsEvent,
    AgentInitializedEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    HookEvent,
    HookOrder,
    HookRegistry,
    MessageAddedEvent,
)
from repertory.actors.hooks.calls import fire, fire_sync
from repertory.errors import HookFailed, Invalid, RepertoryError, Throttled

if TYPE_CHECKING:
    from repertory import AgentResult as OnlyForTypes

pytestmark = pytest.mark.anyio

USE: Any = {"toolUseId": "t1", "name": "add", "input": {}}
EVENTS: list[HookEvent] = [
    AgentInitializedEvent(agent=None),
    BeforeInvocationEvent(agent=None),
    AfterInvocationEvent(agent=None),
    MessageAddedEvent(agent=None, message={"role": "user", "content": [{"text": "hi"}]}),
    BeforeModelCallEvent(agent=None),
    AfterModelCallEvent(agent=None),
    BeforeToolsEvent(agent=None, message={"role": "assistant", "content": [{"text": "hi"}]}),
    AfterToolsEvent(agent=None, message={"role": "user", "content": [{"text": "hi"}]}),
    BeforeToolCallEvent(agent=None, selected_tool=None, tool_use=USE),
    AfterToolCallEvent(
        agent=None,
        selected_tool=None,
        tool_use=USE,
        invocation_state={},
        result={"toolUseId": "t1", "status": "success", "content": []},
    ),
]
CLEANUP = {AfterInvocationEvent, AfterModelCallEvent, AfterToolsEvent, AfterToolCallEvent}
GUARDS = {BeforeInvocationEvent, BeforeModelCallEvent, BeforeToolsEvent, BeforeToolCallEvent}


def named(event: HookEvent) -> str:
    return type(event).__name__


def noted(notes: list[str], name: str) -> Callable[[HookEvent], None]:
    return lambda event: notes.append(name)


@pytest.mark.parametrize("event", EVENTS, ids=named)
async def test_callbacks_run_in_the_order_of_registration_and_after_events_in_reverse(event: HookEvent) -> None:
    registry, notes = HookRegistry(), list[str]()
    for name in ("first", "second", "third"):
        registry.add_callback(type(event), noted(notes, name))
    await fire(registry, event)
    expected = ["first", "second", "third"]
    assert notes == (expected[::-1] if type(event) in CLEANUP else expected)


@pytest.mark.parametrize("event", EVENTS, ids=named)
async def test_order_numbers_go_first_and_keep_their_direction(event: HookEvent) -> None:
    registry, notes = HookRegistry(), list[str]()
    registry.add_callback(type(event), noted(notes, "last"), order=HookOrder.SDK_LAST)
    registry.add_callback(type(event), noted(notes, "a"))
    registry.add_callback(type(event), noted(notes, "b"))
    registry.add_callback(type(event), noted(notes, "first"), order=HookOrder.SDK_FIRST)
    registry.add_callback(type(event), noted(notes, "between"), order=-0.5)
    await fire(registry, event)
    middle = ["b", "a"] if type(event) in CLEANUP else ["a", "b"]
    assert notes == ["first", "between", *middle, "last"]


def test_the_orders_with_names_are_in_order() -> None:
    named_orders = [
        HookOrder.SDK_FIRST,
        HookOrder.INTERVENTION_OUTPUT,
        HookOrder.DEFAULT,
        HookOrder.MODEL_ROUTING,
        HookOrder.INTERVENTION_INPUT,
        HookOrder.SDK_LAST,
    ]
    assert named_orders == [-100, -90, 0, 50, 90, 100]


async def test_synchronous_and_asynchronous_callbacks_are_called_and_waited_for_in_one_order() -> None:
    registry, notes = HookRegistry(), list[str]()

    async def later(event: MessageAddedEvent) -> None:
        await anyio.sleep(10)
        notes.append("asynchronous")

    class WithCall:
        async def __call__(self, event: MessageAddedEvent) -> None:
            await later(event)

    def awaitable(event: MessageAddedEvent) -> Awaitable[None]:
        return later(event)

    for callback in (later, noted(notes, "synchronous"), WithCall(), awaitable):
        registry.add_callback(MessageAddedEvent, callback)
    await fire(registry, EVENTS[3])
    assert notes == ["asynchronous", "synchronous", "asynchronous", "asynchronous"]


@pytest.mark.parametrize("event", EVENTS, ids=named)
def test_every_field_is_read_only_but_those_that_are_writable(event: HookEvent) -> None:
    fields = set(vars(event))
    assert event.writable <= fields
    for name in fields - event.writable:
        before = getattr(event, name)
        with pytest.raises(AttributeError, match=name):
            setattr(event, name, "other")
        assert getattr(event, name) == before
    for name in event.writable:
        setattr(event, name, "other")
        assert getattr(event, name) == "other"


@pytest.mark.parametrize("event", EVENTS, ids=named)
def test_a_field_that_an_event_does_not_have_cannot_be_written(event: HookEvent) -> None:
    """A slip of the pen such as `event.cancelled = True` must not look as if it did something."""
    with pytest.raises(AttributeError, match="cancelled"):
        event.cancelled = True  # type: ignore[attr-defined]


@pytest.mark.parametrize("event", EVENTS, ids=named)
def test_what_is_writable_runs_in_reverse_and_guards_is_what_the_documents_say(event: HookEvent) -> None:
    assert type(event).cleanup == (type(event) in CLEANUP)
    assert type(event).guards == (type(event) in GUARDS)


# Which events a callback is for.


def annotated(event: MessageAddedEvent) -> None: ...


def union(event: BeforeModelCallEvent | AfterModelCallEvent) -> None: ...


def typing_union(event: Union[BeforeModelCallEvent, AfterModelCallEvent]) -> None: ...  # noqa: UP007


def optional(event: Optional[MessageAddedEvent] = None) -> None: ...  # noqa: UP045


def with_more(event: MessageAddedEvent, times: int = 1) -> None: ...


def in_quotes(event: "BeforeModelCallEvent | MessageAddedEvent") -> None: ...  # noqa: UP037


async def asynchronous(event: MessageAddedEvent) -> None: ...


class Methods:
    def method(self, event: MessageAddedEvent) -> None: ...

    @staticmethod
    def static(event: MessageAddedEvent) -> None: ...

    @classmethod
    def of_class(cls, event: MessageAddedEvent) -> None: ...

    def __call__(self, event: MessageAddedEvent) -> None: ...


@pytest.mark.parametrize(
    ("callback", "kinds"),
    [
        (annotated, [MessageAddedEvent]),
        (union, [BeforeModelCallEvent, AfterModelCallEvent]),
        (typing_union, [BeforeModelCallEvent, AfterModelCallEvent]),
        (with_more, [MessageAddedEvent]),
        (in_quotes, [BeforeModelCallEvent, MessageAddedEvent]),
        (asynchronous, [MessageAddedEvent]),
        (Methods().method, [MessageAddedEvent]),
        (Methods.static, [MessageAddedEvent]),
        (Methods.of_class, [MessageAddedEvent]),
        (Methods(), [MessageAddedEvent]),
        (functools.partial(with_more, times=2), [MessageAddedEvent]),
    ],
)
def test_an_annotation_says_which_events_a_callback_is_for(callback: Any, kinds: list[type[HookEvent]]) -> None:
    registry = HookRegistry()
    registry.add_callback(None, callback)
    assert list(registry.registered) == kinds


def bare(event) -> None: ...  # type: ignore[no-untyped-def]


def of_no_event(event: int) -> None: ...


def half(event: MessageAddedEvent | int) -> None: ...


def only_for_types(event: OnlyForTypes) -> None: ...


def of_nothing() -> None: ...


def of_any(event: HookEvent) -> None: ...


@pytest.mark.parametrize(
    "callback", [bare, of_no_event, half, optional, only_for_types, of_nothing, of_any, len, print]
)
def test_an_annotation_that_names_no_event_is_refused_with_what_to_do(callback: Any) -> None:
    registry = HookRegistry()
    with pytest.raises(Invalid, match="event type"):
        registry.add_callback(None, callback)
    assert not registry.has_callbacks()


@pytest.mark.parametrize(
    "kinds",
    [
        int,
        [],
        [MessageAddedEvent, int],
        "MessageAddedEvent",
        5,
        HookEvent,
        annotated,
        MessageAddedEvent(agent=None, message={"role": "user", "content": [{"text": "hi"}]}),
    ],
)
def test_what_is_no_event_type_is_refused_and_nothing_is_registered(kinds: Any) -> None:
    registry = HookRegistry()
    with pytest.raises(Invalid):
        registry.add_callback(kinds, annotated)
    assert not registry.has_callbacks()


def test_a_callback_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(Invalid, match="callback"):
        HookRegistry().add_callback(MessageAddedEvent, "call me")  # type: ignore[arg-type]


def test_arguments_in_the_wrong_order_are_refused() -> None:
    """`add_hook` takes the callback first and `add_callback` the event type: each says so when they are exchanged."""
    with pytest.raises(Invalid):
        HookRegistry().add_callback(annotated, MessageAddedEvent)  # type: ignore[arg-type]


def test_a_list_of_types_registers_for_each_of_them_once() -> None:
    registry = HookRegistry()
    registry.add_callback([MessageAddedEvent, AfterToolsEvent, MessageAddedEvent], annotated)
    assert {kind: len(found) for kind, found in registry.registered.items()} == {
        MessageAddedEvent: 1,
        AfterToolsEvent: 1,
    }


def test_a_provider_is_anything_with_register_hooks() -> None:
    class Provider:
        def register_hooks(self, registry: HookRegistry) -> None:
            registry.add_callback(MessageAddedEvent, annotated)

    registry = HookRegistry()
    registry.add_hook(Provider())
    assert registry.has_callbacks()
    with pytest.raises(Invalid, match="register_hooks"):
        registry.add_hook(object())  # type: ignore[arg-type]


async def asynchronous_start(event: AgentInitializedEvent) -> None: ...


class AsynchronousStart:
    async def __call__(self, event: AgentInitializedEvent) -> None: ...


@pytest.mark.parametrize(
    "callback",
    [asynchronous_start, AsynchronousStart(), functools.partial(asynchronous_start)],
    ids=["function", "object", "partial"],
)
def test_an_asynchronous_callback_of_the_initialized_event_is_refused(callback: Any) -> None:
    with pytest.raises(Invalid, match="synchronous"):
        HookRegistry().add_callback(AgentInitializedEvent, callback)


def test_an_awaitable_where_nothing_can_be_awaited_is_a_failure_of_the_callback(
    caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    registry = HookRegistry()
    registry.add_callback(AgentInitializedEvent, lambda event: asynchronous_start(event))
    fire_sync(registry, EVENTS[0])
    assert "hook failed" in caplog.text
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]


# Failures.


def raising(event: HookEvent) -> None:
    raise RuntimeError("a bug in the hook")


async def raising_later(event: HookEvent) -> None:
    await anyio.sleep(1)
    raise RuntimeError("a bug in the hook")


@pytest.mark.parametrize("callback", [raising, raising_later])
@pytest.mark.parametrize("event", EVENTS[1:], ids=named)
async def test_guards_fail_and_observers_are_logged(
    event: HookEvent, callback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    registry, notes = HookRegistry(), list[str]()
    registry.add_callback(type(event), callback, order=-1)
    registry.add_callback(type(event), noted(notes, "after it"))
    if type(event) in GUARDS:
        with pytest.raises(HookFailed, match="a bug in the hook") as caught:
            await fire(registry, event)
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert notes == []
    else:
        with caplog.at_level(logging.DEBUG, logger="repertory.hooks"):
            await fire(registry, event)
        line, trace = caplog.records
        assert line.levelno == logging.ERROR
        assert line.message.startswith(f"hook failed event={type(event).__name__!r} callback={callback.__name__!r}")
        assert "a bug in the hook" not in line.message
        assert (trace.levelno, trace.exc_info is not None) == (logging.DEBUG, True)
        assert notes == ["after it"]


@pytest.mark.parametrize("event", EVENTS[1:], ids=named)
async def test_guard_says_otherwise_for_any_event(event: HookEvent) -> None:
    registry = HookRegistry()
    registry.add_callback(type(event), raising, guard=type(event) not in GUARDS)
    if type(event) in GUARDS:
        await fire(registry, event)
    else:
        with pytest.raises(HookFailed):
            await fire(registry, event)


async def test_a_guard_may_raise_an_error_of_ours_which_is_what_the_caller_gets() -> None:
    def slow_down(event: BeforeInvocationEvent) -> None:
        raise Throttled("one call a minute", retry_after_s=60)

    registry = HookRegistry()
    registry.add_callback(None, slow_down)
    with pytest.raises(RepertoryError) as caught:
        await fire(registry, EVENTS[1])
    assert isinstance(caught.value, Throttled)
    assert caught.value.retry_after_s == 60


async def test_cancellation_is_no_failure_of_a_hook(caplog: pytest.LogCaptureFixture) -> None:
    async def stuck(event: MessageAddedEvent) -> None:
        await anyio.sleep_forever()

    registry = HookRegistry()
    registry.add_callback(None, stuck)
    with anyio.move_on_after(5) as scope:
        await fire(registry, EVENTS[3])
    assert scope.cancelled_caught
    assert caplog.text == ""


async def test_callbacks_added_by_a_callback_are_called_from_the_next_event_on() -> None:
    registry, notes = HookRegistry(), list[str]()

    def grow(event: MessageAddedEvent) -> None:
        registry.add_callback(MessageAddedEvent, noted(notes, f"added {len(notes)}"), order=-1)

    registry.add_callback(None, grow)
    await fire(registry, EVENTS[3])
    assert notes == []
    await fire(registry, EVENTS[3])
    assert notes == ["added 0"]
