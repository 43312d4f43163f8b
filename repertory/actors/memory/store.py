"""The actor of one memory store: writes to it, one after the other, for every conversation on its system.

State: none of its own; the store's health is the desk's. Fails: by a bug alone; what a store raises is an answer to
whoever asked. Pace: the store's, so that a slow one delays nobody but itself. Supervised by the root, permanent;
started before and stopped after every session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

import anyio

from repertory.actors.memory.desk import StoreDesk
from repertory.core.memory.options import AddMessagesContext
from repertory.core.messages import Json, Message
from repertory.errors import RepertoryError, Unavailable
from repertory.runtime.actor import Actor
from repertory.runtime.message import Ask, Next, refuse, reply
from repertory.runtime.spec import ChildSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AddMemory(Ask[None]):
    """Store one memory; answered when the store has it. Errors: those of `StoreDesk`."""

    content: str
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])
    context: AddMessagesContext
    forced: bool = False
    """Also while the store is not asked after it has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddBatch(Ask[None]):
    """Hand over what was said; answered when the store has it. Errors: those of `StoreDesk`."""

    messages: tuple[Message, ...]
    context: AddMessagesContext
    forced: bool = False


MemoryStoreMessage: TypeAlias = AddMemory | AddBatch


class MemoryStoreActor(Actor[MemoryStoreMessage]):
    """One write after the other. While the store fails, only probes get through, at growing distances."""

    def __init__(self, desk: StoreDesk) -> None:
        self._desk = desk
        self._written = 0

    def summary(self) -> object:
        health = self._desk.health
        said: dict[str, object] = {"store": self._desk.name, "written": self._written}
        if health.writes.failures or health.searches.failures:
            said |= {"failures": health.writes.failures, "failed_searches": health.searches.failures}
            said |= {"error": health.error}
        return said

    async def handle(self, message: MemoryStoreMessage) -> Next:
        if not message.forced and not self._desk.health.writes.allows(anyio.current_time()):
            return refuse(Unavailable("the memory store rests, after it has failed", store=self._desk.name))
        try:
            match message:
                case AddMemory(content=content, metadata=metadata, context=context):
                    await self._desk.add(content, metadata, context)
                case AddBatch(messages=messages, context=context):
                    await self._desk.add_messages(messages, context)
                case _:
                    assert_never(message)
        except RepertoryError as error:
            return refuse(error)
        self._written += 1
        return reply(None)


def memory_store_spec(desk: StoreDesk) -> ChildSpec:
    """The child spec of a store's actor."""
    return ChildSpec(name=f"memory {desk.name}", factory=lambda: MemoryStoreActor(desk))
