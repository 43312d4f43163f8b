"""Hooks that write down what they are told of, replies in short, and tools that tests of the control features share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

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
    HookRegistry,
    MessageAddedEvent,
    tool,
)

EVENT_TYPES: list[type[HookEvent]] = [
    AgentInitializedEvent,
    BeforeInvocationEvent,
    AfterInvocationEvent,
    MessageAddedEvent,
    BeforeModelCallEvent,
    AfterModelCallEvent,
    BeforeToolsEvent,
    AfterToolsEvent,
    BeforeToolCallEvent,
    AfterToolCallEvent,
]


def spelled(event: HookEvent) -> str:
    """The event's name without `Event`, and of an added message its role."""
    name = type(event).__name__.removesuffix("Event")
    return f"{name}({event.message['role']})" if isinstance(event, MessageAddedEvent) else name


class Recorder:
    """A hook provider that keeps every event, or those of some types."""

    def __init__(self, *kinds: type[HookEvent]) -> None:
        self.events: list[Any] = []
        self._kinds = kinds or tuple(EVENT_TYPES)

    def register_hooks(self, registry: HookRegistry) -> None:
        registry.add_callback(self._kinds, self.events.append)

    @property
    def order(self) -> list[str]:
        """The events, in short."""
        return [spelled(event) for event in self.events]

    def of(self, kind: type[HookEvent]) -> list[Any]:
        """The events of one type."""
        return [event for event in self.events if type(event) is kind]


class On:
    """A hook provider of one callback."""

    def __init__(self, kind: type[HookEvent], callback: Callable[[Any], Any], *, guard: bool | None = None) -> None:
        self._kind = kind
        self._callback = callback
        self._guard = guard

    def register_hooks(self, registry: HookRegistry) -> None:
        registry.add_callback(self._kind, self._callback, guard=self._guard)


def use(name: str, /, **arguments: object) -> dict[str, Any]:
    """A reply of a scripted model that asks for a tool."""
    return {"toolUse": {"name": name, "input": arguments}}


@tool(effects=False)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def slow(seconds: float) -> str:
    """Take a while."""
    await anyio.sleep(seconds)
    return "done"
