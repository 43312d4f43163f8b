"""The keeper of one session store that has to be tended: renews leases and tidies up, for as long as the store is open.

State: none. Fails: by a bug of the store alone, and is started again. Pace: the store's own. Supervised by the root.
"""

from __future__ import annotations

from typing import NoReturn

from repertory.backends.ports import SessionStore, TendedStore
from repertory.runtime.actor import Actor
from repertory.runtime.spec import ChildSpec


class StoreKeeper(Actor[NoReturn]):
    """Runs what the store does in the background."""

    def __init__(self, store: TendedStore) -> None:
        self._store = store

    async def on_start(self) -> None:
        self.context.job(self._store.tend, name="tend")


def keeper_spec(store: SessionStore, name: str) -> ChildSpec | None:
    """The child spec of a store's keeper; None for a store that needs none."""
    if not isinstance(store, TendedStore):
        return None
    return ChildSpec(name=name, factory=lambda: StoreKeeper(store))
