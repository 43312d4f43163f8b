"""What an agent has to do with its memory manager."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from repertory.app.agent.plugins import check_plugins
from repertory.app.host.event_loop import inside_event_loop
from repertory.app.host.unsaved import Unfinished, hold_memory
from repertory.core.memory.flushed import StoreFlush

if TYPE_CHECKING:
    from repertory.actors.call import Busy
    from repertory.actors.memory.consumer import MemoryParts
    from repertory.app.agent.plugins import Plugin
    from repertory.app.host.active_session import ActiveSession
    from repertory.app.host.unsaved import ExitHost
    from repertory.app.memory.memory_manager import MemoryManager


class MemoryMethods:
    """An agent's methods around its memory."""

    _memory_manager: MemoryManager | None

    agent_id: str

    @property
    def session_id(self) -> str | None:
        raise NotImplementedError

    def _session(
        self, busy: Busy | None = None, deadline: float = math.inf
    ) -> AbstractAsyncContextManager[ActiveSession]:
        raise NotImplementedError

    @property
    def memory_manager(self) -> MemoryManager | None:
        """What the agent remembers with across conversations; None when it does not."""
        return self._memory_manager

    async def flush_memory(self) -> Mapping[str, StoreFlush]:
        """Have every memory store take in what this agent's conversation has for it, now; see `MemoryManager.flush`.

        By the name of the store, what landed, what did not, and why. Errors: those of opening the session.
        """
        return await self._flush_by(math.inf)

    async def _flush_by(self, deadline: float) -> Mapping[str, StoreFlush]:
        if self._memory_manager is None:
            return {}
        async with self._session(deadline=deadline) as session:
            return await session.flush_memory()

    def _flush_at_exit(self, host: Callable[[], ExitHost]) -> None:
        """Offer what sync calls have said to memory when the process ends, if nothing else does it before."""
        parts = self._memory_parts
        if parts is None or inside_event_loop() or not any(source.extracts for source in parts.sources):
            return
        here, kept = ref(self), self.session_id is not None

        async def flush_if_there(by: float) -> str | None:
            agent = here()
            return None if agent is None else await agent._flush_before_exit(by)

        stores = [source.desk.name for source in parts.sources if source.extracts]
        then = "it stands in the journal" if kept else "it is kept nowhere else, and lost"
        unfinished = Unfinished(
            left=f"memory stores have not taken in what was said; {then} stores={stores!r}",
            session_id=self.session_id,
            agent_id=self.agent_id,
            # What is kept in a session is there for the next process as well.
            finish=flush_if_there if kept else self._flush_before_exit,
            host=host,
            of_memory=True,
        )
        parts.link.watch = partial(hold_memory, id(parts.link), unfinished)

    async def _flush_before_exit(self, by: float) -> str | None:
        flushed = await self._flush_by(by)
        return "; ".join(str(each.error) for each in flushed.values() if each.parked) or None

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
    from repertory.app.memory.memory_manager import read_manager

    return read_manager(given)
