"""What an agent has to do with its memory manager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakMethod

from repertory.app.event_loop import inside_event_loop
from repertory.app.plugins import check_plugins
from repertory.app.unsaved import hold_memory
from repertory.core.memory.flushed import StoreFlush

if TYPE_CHECKING:
    from repertory.actors.memory_consumer import MemoryParts
    from repertory.app.active_session import ActiveSession
    from repertory.app.memory_manager import MemoryManager
    from repertory.app.plugins import Plugin
    from repertory.app.unsaved import ExitHost


class MemoryMethods:
    """An agent's methods around its memory."""

    _memory_manager: MemoryManager | None

    @property
    def session_id(self) -> str | None:
        raise NotImplementedError

    def _session(self) -> AbstractAsyncContextManager[ActiveSession]:
        raise NotImplementedError

    @property
    def memory_manager(self) -> MemoryManager | None:
        """What the agent remembers with across conversations; None when it does not."""
        return self._memory_manager

    async def flush_memory(self) -> Mapping[str, StoreFlush]:
        """Have every memory store take in what this agent's conversation has for it, now; see `MemoryManager.flush`.

        By the name of the store, what landed, what did not, and why. Errors: those of opening the session.
        """
        if self._memory_manager is None:
            return {}
        async with self._session() as session:
            return await session.flush_memory()

    def _flush_at_exit(self, host: Callable[[], ExitHost]) -> None:
        """Offer what sync calls have said to memory when the process ends, if nothing else does it before."""
        parts = self._memory_parts
        if parts is None or inside_event_loop() or not any(source.extracts for source in parts.sources):
            return
        key = id(parts.link)
        flush = WeakMethod(self.flush_memory)

        async def flush_if_there() -> None:
            method = flush()
            if method is not None:
                await method()

        async def flush_surely() -> None:
            await self.flush_memory()

        # What is kept in a session is there for the next process as well.
        store = flush_surely if self.session_id is None else flush_if_there
        parts.link.watch = partial(hold_memory, key, store, host)

    @property
    def _memory_parts(self) -> MemoryParts | None:
        return None if self._memory_manager is None else self._memory_manager.parts_for(self)


def with_memory(plugins: Sequence[Plugin] | None, manager: MemoryManager | None) -> Sequence[Plugin]:
    """The plugins of an agent, its memory manager among them. Errors: as `check_plugins`."""
    return check_plugins([*check_plugins(plugins or ()), *([manager] if manager is not None else ())])


def given_manager(given: object) -> MemoryManager | None:
    """The memory manager that an agent was given. Loads what that takes only when there is one. Errors: `Invalid`."""
    if given is None:
        return None
    from repertory.app.memory_manager import read_manager

    return read_manager(given)
