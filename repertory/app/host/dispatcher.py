"""The dispatcher of a runtime: wakes sessions that owe work which nobody waits for.

State: how many sessions it wakes now. Fails: by a bug alone, and is started again; what it had claimed is due again
later. Pace: one look a second, and one as soon as there is room again while more is due. Supervised by the root.
`docs/design/0047` says why.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from msgspec import Struct

from repertory.errors import RepertoryError, Retryable
from repertory.runtime.actor import Actor
from repertory.runtime.message import Next, carry_on
from repertory.runtime.spec import ChildSpec

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore
    from repertory.core.owed import OwedWork

LOOK_S = 1.0
"""The mean time between two looks, in seconds. Each is a little earlier or later, so that processes do not look at the
same moment.
"""


class LookForDue(Struct, frozen=True, kw_only=True):
    """Look for work that is due."""


class Awakening(Struct, frozen=True, kw_only=True):
    """What a runtime wakes, and how."""

    wake: Callable[[OwedWork], Awaitable[None]]
    """Does the work. Errors that it raises are logged; what is still owed then is due again later."""
    agents: Callable[[], Collection[str]]
    """The agents that the runtime has."""
    room: int
    """So many sessions are woken at the same time."""


class Dispatcher(Actor[LookForDue]):
    """Claims what is due in one store."""

    def __init__(self, store: SessionStore, awakening: Awakening, refusing: Callable[[], bool]) -> None:
        """`refusing`: whether the runtime shuts down."""
        self._store = store
        self._awakening = awakening
        self._refusing = refusing
        self._awake = 0
        self._more = False
        """Whether the last look found as much as there was room for."""

    def summary(self) -> object:
        return {"store": self._store.name, "awake": self._awake, "room": self._awakening.room}

    async def on_ready(self) -> None:
        self.context.self_ref.tell(LookForDue())

    async def handle(self, message: LookForDue) -> Next:
        del message
        room, agents = self._awakening.room - self._awake, self._awakening.agents()
        if room > 0 and agents and not self._refusing():
            due = await self._due(room, agents)
            self._more = len(due) == room
            for work in due:
                self._awake += 1
                self.context.job(self._wake, work, name=f"wake {work.session_id}")
        self.context.after(LOOK_S * self.context.rng.uniform(0.8, 1.2), LookForDue(), key="look")
        return carry_on()

    async def _due(self, room: int, agents: Collection[str]) -> Collection[OwedWork]:
        """Empty if the store cannot be read now: the next look finds what is due."""
        try:
            return await self._store.claim_due(time.time(), room, agents)
        except Retryable:
            return ()

    async def _wake(self, work: OwedWork) -> None:
        try:
            await self._awakening.wake(work)
        except RepertoryError as error:
            fields = work.session_id, work.agent_id, work.why, str(error)
            self.context.logger.warning("owed work could not be done session=%r agent=%r why=%r cause=%r", *fields)
        finally:
            self._awake -= 1
            if self._more:
                self._more = False
                self.context.self_ref.tell(LookForDue())


def dispatcher_spec(store: SessionStore, awakening: Awakening, refusing: Callable[[], bool]) -> ChildSpec:
    return ChildSpec(name="dispatcher", factory=lambda: Dispatcher(store, awakening, refusing))
