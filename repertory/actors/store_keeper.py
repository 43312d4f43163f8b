"""The keeper of one session store: renews leases and tidies up, where the store has to be tended, and looks whether
other processes ask for sessions.

State: none. Fails: by a bug of the store alone, and is started again. Pace: the store's own. Supervised by the root.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from repertory.backends.ports import SessionStore, TendedStore, YieldingStore
from repertory.errors import Retryable
from repertory.runtime.actor import Actor
from repertory.runtime.next import Next, carry_on
from repertory.runtime.spec import ChildSpec

GiveUp: TypeAlias = Callable[[str], Awaitable[None]]
"""Gives a session up unless it is in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookForAskers:
    """Time to see whether anybody asks for a session."""


class StoreKeeper(Actor[LookForAskers]):
    """Runs what the store does in the background. `give_up` is called with each session that somebody asks for."""

    def __init__(self, store: SessionStore, give_up: GiveUp | None) -> None:
        self._store = store
        self._give_up = give_up

    async def on_start(self) -> None:
        if isinstance(self._store, TendedStore):
            self.context.job(self._store.tend, name="tend")
        if isinstance(self._store, YieldingStore) and self._give_up is not None:
            self.context.every(self._store.look_every_s, LookForAskers())

    async def handle(self, message: LookForAskers) -> Next:
        if isinstance(self._store, YieldingStore) and self._give_up is not None:
            for session_id in await self._asked_for(self._store):
                self.context.job(self._give_up, session_id, name="give up")
        return carry_on()

    async def _asked_for(self, store: YieldingStore) -> tuple[str, ...]:
        """Who cannot be heard now is heard the next time."""
        try:
            return tuple(await store.asked_for())
        except Retryable:
            return ()


def keeper_spec(store: SessionStore, name: str, give_up: GiveUp | None = None) -> ChildSpec | None:
    """The child spec of a store's keeper; None for a store that needs none. Without `give_up` nobody is heard."""
    hears = give_up is not None and isinstance(store, YieldingStore)
    if not hears and not isinstance(store, TendedStore):
        return None
    return ChildSpec(name=name, factory=lambda: StoreKeeper(store, give_up))
