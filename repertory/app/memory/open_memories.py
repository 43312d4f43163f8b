"""The memory store actors of one actor system: one for each store, for as long as a session or program uses it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from repertory.actors.memory.store import memory_store_spec
from repertory.backends.memory_ports import ClosingStore
from repertory.errors import RepertoryError

if TYPE_CHECKING:
    from repertory.actors.memory.consumer import MemoryParts
    from repertory.actors.memory.store import MemoryStoreClient, MemoryStoreMessage
    from repertory.runtime.ref import ActorRef
    from repertory.runtime.system import ActorSystem


_log = logging.getLogger("repertory.memory")


@dataclass(slots=True)
class _Open:
    ref: ActorRef[object]
    users: int = 0


class OpenMemories:
    """Starts and stops the actors of memory stores on one system."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._open: dict[MemoryStoreClient, _Open] = {}
        self._names: set[str] = set()
        self._lock = anyio.Lock()
        self._closing: dict[int, ClosingStore] = {}
        """By identity, the used stores and extractors that can be closed."""

    async def enter(self, parts: MemoryParts | None) -> Mapping[str, ActorRef[MemoryStoreMessage]]:
        """The actors of a session's stores, by the stores' names. Each `enter` needs one `leave`."""
        if parts is None:
            return {}
        for source in parts.sources:
            self._closing |= {id(each): each for each in source.holds if isinstance(each, ClosingStore)}
        return await self.open([source.client for source in parts.sources])

    async def leave(self, parts: MemoryParts | None) -> None:
        """Ends the use that `enter` began."""
        if parts is not None:
            await self.let_go([source.client for source in parts.sources])

    async def open(self, clients: Sequence[MemoryStoreClient]) -> dict[str, ActorRef[MemoryStoreMessage]]:
        """The actors of these stores, by name. Each `open` needs one `let_go`."""
        async with self._lock:
            for client in clients:
                if client not in self._open:
                    self._open[client] = await self._start(client)
            for client in clients:
                self._open[client].users += 1
        return {client.name: self._open[client].ref for client in clients}

    async def let_go(self, clients: Sequence[MemoryStoreClient]) -> None:
        """Ends one use. The last one stops the actors, which answer all earlier requests before."""
        for client in clients:
            opened = self._open[client]
            opened.users -= 1
            if not opened.users:
                del self._open[client]
                await self._system.stop(opened.ref)
                self._names.discard(opened.ref.name)

    async def aclose(self) -> None:
        """Close the stores, and the extractors, that were used here. They open again on their next use.

        Errors: none; a failure to close is logged.
        """
        closing, self._closing = self._closing, {}
        for each in closing.values():
            try:
                await each.aclose()
            except RepertoryError as error:
                _log.warning("a memory store could not be closed cause=%r", str(error))

    async def _start(self, client: MemoryStoreClient) -> _Open:
        """Numbers the names, since stores of different managers may have the same name."""
        spec = memory_store_spec(client)
        name, number = spec.name, 2
        while name in self._names:
            name, number = f"{spec.name} {number}", number + 1
        self._names.add(name)
        return _Open(await self._system.start(replace(spec, name=name)))
