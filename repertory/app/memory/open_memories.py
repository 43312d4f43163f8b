"""The memory stores that sessions of one actor system use: an actor for each, for as long as somebody uses it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from repertory.actors.memory.store import memory_store_spec
from repertory.backends.memory_ports import ClosingStore
from repertory.errors import RepertoryError

if TYPE_CHECKING:
    from repertory.actors.memory.consumer import MemoryParts
    from repertory.actors.memory.desk import StoreDesk
    from repertory.runtime.ref import ActorRef
    from repertory.runtime.system import ActorSystem


_log = logging.getLogger("repertory.memory")


@dataclass(slots=True)
class _Open:
    ref: ActorRef[object]
    name: str
    users: int = 0


class OpenMemories:
    """Starts and stops the actors of memory stores on one system."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._open: dict[StoreDesk, _Open] = {}
        self._lock = anyio.Lock()
        self._closing: dict[int, ClosingStore] = {}
        """By identity, what has been used here and can be closed."""

    async def enter(self, parts: MemoryParts | None) -> Mapping[str, ActorRef[object]]:
        """The actors of the stores, by the stores' names. Each `enter` needs one `leave`."""
        if parts is None:
            return {}
        desks = [source.desk for source in parts.sources]
        async with self._lock:
            for desk in desks:
                if desk not in self._open:
                    self._open[desk] = await self._start(desk)
            for desk in desks:
                self._open[desk].users += 1
        for source in parts.sources:
            self._closing |= {id(each): each for each in source.holds if isinstance(each, ClosingStore)}
        return {desk.name: self._open[desk].ref for desk in desks}

    async def leave(self, parts: MemoryParts | None) -> None:
        """One user less. The last one stops the actors; what they were asked was answered before."""
        if parts is None:
            return
        async with self._lock:
            for source in parts.sources:
                opened = self._open[source.desk]
                opened.users -= 1
                if not opened.users:
                    del self._open[source.desk]
                    await self._system.stop(opened.ref)

    async def aclose(self) -> None:
        """Close the stores, and the extractors, that were used here. They open again when they are used again.

        Errors: none; what cannot be closed is logged.
        """
        closing, self._closing = self._closing, {}
        for each in closing.values():
            try:
                await each.aclose()
            except RepertoryError as error:
                _log.warning("a memory store could not be closed cause=%r", str(error))

    async def _start(self, desk: StoreDesk) -> _Open:
        """Stores of different managers may have the same name."""
        spec = memory_store_spec(desk)
        taken = {opened.name for opened in self._open.values()}
        name, number = spec.name, 2
        while name in taken:
            name, number = f"{spec.name} {number}", number + 1
        return _Open(await self._system.start(replace(spec, name=name)), name)
