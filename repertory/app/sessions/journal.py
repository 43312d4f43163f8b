"""Sessions as journals in a folder, in a bucket or in memory, as users name them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repertory.app.sessions.places import new_owner
from repertory.app.sessions.storages import FileStorage, Storage
from repertory.core.ids import check_id
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.ports import SessionInfo, SessionStore

LEASE_S = 10.0
"""How long a session stays in the hands of an owner that is not heard of any more, where only time can tell."""


class JournalSessions:
    """All sessions in one storage: pass it to `Runtime(sessions=...)`. Nothing is created before it is needed.

    A plain turn is one put; one with tools that have effects is another one for each step in which such tools start.
    `lease_s`: how long the sessions of a process that died on another machine stay in its hands. It gives a sign of
    life every quarter of that time, for each session that is active and idle. In a folder neither is needed.
    """

    def __init__(self, storage: Storage | None = None, *, lease_s: float = LEASE_S) -> None:
        if not lease_s >= 1.0:
            raise Invalid("a lease lasts for a second at least", lease_s=lease_s)
        self.storage = storage if storage is not None else FileStorage()
        self._lease_s = lease_s

    @property
    def key(self) -> str:
        """The same for every object that names the same sessions."""
        return f"journals:{self.storage.key}"

    def open_store(self) -> SessionStore:
        """A store on this storage. The caller closes it. Errors: `ImportError` naming what to install."""
        from repertory.backends.sessions.journal.store import ObjectSessionStore  # loaded when used

        owner = new_owner()
        objects = self.storage.open_objects(owner)
        return ObjectSessionStore(objects, owner=owner, owners=self.storage.owners(owner, self._lease_s))

    async def list(self) -> Sequence[SessionInfo]:
        """Every session, the most recently changed first; empty when there is nothing yet."""
        store = self.open_store()
        try:
            return await store.sessions()
        finally:
            await store.aclose()


@dataclass(frozen=True, slots=True)
class JournalSessionManager:
    """One session in a storage: pass it to `Agent(session_manager=...)`.

    The same id opens the same conversation again, in this process or the next, on this machine or another. Errors:
    `Invalid` (a ValueError) for an id that cannot be a name; `SessionBusy` from a call when another live process owns
    the session.
    """

    session_id: str
    storage: Storage | None = None
    """`FileStorage()` when None."""
    takeover: bool = False
    """Fence a live owner in another process instead of being refused."""

    def __post_init__(self) -> None:
        check_id(self.session_id, "session_id")

    @property
    def sessions(self) -> JournalSessions:
        """All sessions of the storage."""
        return JournalSessions(self.storage)
