"""What programs do with a registry of hooks: functions as hooks, and callbacks of their own events that they call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest

from repertory import (
    AfterModelCallEvent,
    Agent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    Graph,
    HookEvent,
    HookRegistry,
    MultiAgentInitializedEvent,
    ScriptedModel,
)
from repertory.actors.hooks.events import BaseHookEvent
from repertory.core.interrupts import Interrupt, InterruptException
from repertory.errors import Invalid

pytestmark = pytest.mark.anyio


@dataclass(kw_only=True)
class Deployed(BaseHookEvent):
    """An event that a program defines, without an agent."""

    version: str


@dataclass(kw_only=True)
class TakenDown(HookEvent):
    @property
    def should_reverse_callbacks(self) -> bool:
        return True


async def test_a_function_is_a_hook_and_its_annotation_says_of_what() -> None:
    heard: list[str] = []

    def before(event: BeforeModelCallEvent[Agent] | AfterModelCallEvent) -> None:
        heard.append(type(event).__name__)

    async def built(event: MultiAgentInitializedEvent) -> None:
        heard.append(f"built {event.source.id}")

    agent = Agent(ScriptedModel(["hello"]), hooks=[before], callback_handler=None)
    await Graph({"a": agent}, hooks=[built]).invoke_async("hi")
    assert heard == ["built default_graph", "BeforeModelCallEvent", "AfterModelCallEvent"]
    wrong: Any = "a text"
    with pytest.raises(ValueError, match="Invalid hook"):
        Agent(ScriptedModel(["hello"]), hooks=[wrong])


def no_event() -> None: ...


def unsaid(event) -> None: ...


def or_nothing(event: BeforeModelCallEvent | None) -> None: ...


def or_text(event: BeforeModelCallEvent | str) -> None: ...


def text(event: str) -> None: ...


@pytest.mark.parametrize(
    ("callback", "why"),
    [
        (no_event, "callback has no parameters"),
        (unsaid, "cannot infer event type"),
        (or_nothing, "None is not a valid event type"),
        (or_text, "Invalid type in union"),
        (text, "must be a subclass of BaseHookEvent"),
    ],
)
def test_an_annotation_that_is_no_event_is_refused(callback: Callable[..., Any], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        HookRegistry().add_callback(None, callback)


async def test_a_program_calls_those_who_listen_to_its_own_events() -> None:
    registry, heard = HookRegistry(), list[str]()

    async def late(event: Deployed) -> None:
        heard.append(f"late {event.version}")

    registry.add_callback([Deployed, TakenDown], lambda event: heard.append("first"))
    registry.add_callback(Deployed, lambda event: heard.append("early"), order=-1)
    registry.add_callback(TakenDown, lambda event: heard.append("second"))
    event = Deployed(version="2")
    assert registry.invoke_callbacks(event) == (event, [])
    registry.add_callback(None, late)
    with pytest.raises(Invalid, match="use invoke_callbacks_async"):
        registry.invoke_callbacks(event)
    await registry.invoke_callbacks_async(event)
    await registry.invoke_callbacks_async(TakenDown(agent=None))
    assert heard == ["early", "first", "early", "first", "late 2", "second", "first"]
    assert next(registry.get_callbacks_for(event)) is not late


async def test_questions_of_callbacks_are_given_back_and_errors_are_raised() -> None:
    registry, heard = HookRegistry(), list[str]()
    question = Interrupt(id="q1", name="really")

    def ask(event: TakenDown) -> None:
        raise InterruptException(question)

    def fail(event: TakenDown) -> None:
        raise KeyError("broken")

    registry.add_hook(fail)
    with pytest.raises(KeyError):
        await registry.invoke_callbacks_async(TakenDown(agent=None))
    registry = HookRegistry()
    registry.add_hook(ask)
    registry.add_callback(TakenDown, lambda event: heard.append("asked as well"))
    assert (await registry.invoke_callbacks_async(TakenDown(agent=None)))[1] == [question]
    assert heard == ["asked as well"]


def test_the_events_former_names_warn_and_are_the_same() -> None:
    events = import_module("repertory.strands.experimental.hooks.events")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert events.BeforeToolInvocationEvent is BeforeToolCallEvent
    assert ["BeforeToolCallEvent of strands.hooks" in str(each.message) for each in warned] == [True]
