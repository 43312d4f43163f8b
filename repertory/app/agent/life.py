"""How one agent's session is open: for a call, or for a block around many calls."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from anyio.lowlevel import current_token

from repertory.actors.call import OPEN_TURNS, Busy
from repertory.app.host.active_session import ActiveSession
from repertory.app.host.blueprint import Blueprint
from repertory.app.host.host import ambient_host
from repertory.app.host.seat import hosted
from repertory.core.journal.editing import MessagesEdit
from repertory.core.snapshots.fields import SnapshotFields
from repertory.errors import Invalid
from repertory.forking import forget_in_children, never_collect
from repertory.runtime.host_task import HostTask, apart


class AgentLife:
    """Brings the session's actors to life and puts them to rest."""

    def __init__(self, agent_id: str, blueprint: Callable[[], Blueprint], joined: Callable[[ActiveSession], None]):
        """`blueprint` is asked anew each time; `joined` is told of each session that is another one than before."""
        self._agent_id = agent_id
        self._task_name = f"repertory agent {agent_id}"
        self._blueprint = blueprint
        self._joined = joined
        self._task: HostTask[ActiveSession] | None = None
        self._held: ActiveSession | None = None
        self._held_in: object = None
        self._current: ActiveSession | None = None
        self.loads: list[SnapshotFields | MessagesEdit] = []
        """Snapshots and edits that the conversation is to go on from and does not yet, the oldest first."""
        forget_in_children(self)

    def forget_parent(self) -> None:
        """In a forked child: no session is open, whatever block of the parent's this is."""
        never_collect(self._task, self._held, self._current)
        self._task, self._held, self._held_in, self._current = None, None, None, None

    @property
    def current(self) -> ActiveSession | None:
        """The last session that was open, which may be at rest."""
        return self._current

    @property
    def is_held(self) -> bool:
        """Whether a block keeps the session open."""
        return self._task is not None

    @property
    def edited(self) -> bool:
        """Whether the messages were edited, and nothing else waits for the next call."""
        return bool(self.loads) and all(isinstance(one, MessagesEdit) for one in self.loads)

    @property
    def in_a_turn(self) -> bool:
        """Whether the code that asks runs on behalf of a turn of this very agent."""
        current = self._current
        return current is not None and any(turn.agent is current.agent for turn in OPEN_TURNS.get())

    def held_here(self) -> ActiveSession | None:
        """The session that a block keeps open, when there is nothing to do before a call. Errors: `Invalid` elsewhere
        than in the block's event loop.
        """
        if self._held is None or self.loads:
            return None
        return self._here(self._held)

    def join(self, session: ActiveSession) -> None:
        """The session is alive, whoever brought it to life."""
        if self._current is not session:
            self._current = session
            self._joined(session)

    async def enter(self) -> None:
        """Keep the session open until `leave`, which any task may call: no lease changes hands between calls."""
        if self._task is not None:
            raise Invalid("the agent is open already", agent=self._agent_id)
        self._task = HostTask(self._active(stays=True), name=self._task_name)
        try:
            self._held = await self._task.enter()
        except BaseException:
            self._task = None
            raise
        self._held_in = current_token().native_token

    async def leave(self) -> None:
        """Close what `enter` opened, if anything."""
        task, held, self._task, self._held = self._task, self._held, None, None
        if task is None:
            return
        failed: BaseException | None = None
        try:
            if held is not None:
                if self.edited:
                    await self._show(held)
                await held.flush_memory()
        except BaseException as error:
            failed = error
            raise
        finally:
            await task.leave(failed)

    @asynccontextmanager
    async def session(
        self, busy: Busy = "queue", deadline: float = math.inf, *, moves: bool = False
    ) -> AsyncGenerator[ActiveSession]:
        """The session that is held open, or one brought to life for as long as the block. `moves`: another task may
        leave the block than the one that entered it.
        """
        if self._held is not None:
            held = self._here(self._held)
            await self._show(held)
            yield held
            return
        active = self._active(busy=busy, deadline=deadline)
        async with apart(active, name=self._task_name) if moves and ambient_host() is None else active as session:
            yield session

    def _here(self, session: ActiveSession) -> ActiveSession:
        if self._held_in is not current_token().native_token:
            raise Invalid("the agent is open in another event loop or thread; call it there", agent=self._agent_id)
        return session

    @asynccontextmanager
    async def _active(
        self, *, busy: Busy = "queue", stays: bool = False, deadline: float = math.inf
    ) -> AsyncGenerator[ActiveSession]:
        blueprint = self._blueprint().waiting(busy, deadline)
        async with hosted(blueprint, busy=busy, stays=stays, deadline=deadline) as session:
            self.join(session)
            await self._show(session)
            yield session

    async def _show(self, session: ActiveSession) -> None:
        """Go on from the snapshots that were loaded and the edits that were made. The next call tries
        one again that the store did not take.
        """
        loads, self.loads = self.loads, []
        while loads:
            try:
                await session.show(loads[0])
            except Invalid:
                self.loads = loads[1:]
                raise
            except BaseException:
                self.loads = [*loads, *self.loads]
                raise
            loads.pop(0)
