"""Who owns which session of a database: the lease as a line of the table `sessions`.

A lease is current as long as its line names its generation and its owner. The owner is alive as long as it holds its
lock.

Transactions that only change leases are not fsynced. A power cut can undo them, but it ends every owner on the machine
with them, and an owner that had committed rows has its lease on disk: the fsync of the rows covers everything before
them.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from repertory.backends.ports import Lease
from repertory.backends.sessions.owner_lock import OwnerLock
from repertory.errors import LeaseLost, SessionBusy

_SANE = "CASE WHEN typeof(generation) = 'integer' AND generation BETWEEN 0 AND 1 << 62 THEN generation ELSE 0 END"
"""A generation that is damaged counts as none: owners have names that nobody else has, so leases stay apart."""
_LINE = f"SELECT {_SANE}, CAST(owner AS TEXT) FROM sessions WHERE name = ?"
"""Of a session, with the types that we write."""
_FLOOR = f"SELECT coalesce(max({_SANE}), 0) FROM settled"


@dataclass(slots=True)
class Held:
    """A lease of ours and what we know while it is current."""

    lease: Lease
    journals: dict[str, int] = field(default_factory=dict[str, int])
    """Agent id to the key of its journal."""
    scope: str | None = None
    """Under which name it is kept alongside; None: it is not."""
    fresh: bool = False
    """Whether there was no such session when it was acquired."""
    epoch: int = -1
    """Of the heads when this was last compared with the database."""


class Leases:
    """The leases of one owner on one database. Every method runs within a transaction of the caller's."""

    def __init__(self, connection: sqlite3.Connection, lock: OwnerLock, owner: str) -> None:
        self._connection = connection
        self._lock = lock
        self._owner = owner
        self._held: dict[str, Held] = {}

    def acquire(self, session_id: str, *, takeover: bool) -> Held:
        """Own the session. Errors: `SessionBusy`."""
        self._lock.acquire()
        found = self.line(session_id)
        if found is None:
            generation = self._create(session_id)
        else:
            generation, owner = found
            if owner is not None and not takeover and self.in_other_hands(owner):
                self._lock.ask(owner, session_id)
                raise SessionBusy("another live owner has the session", session=session_id, owner=owner)
            generation += 1
            self._connection.execute(
                "UPDATE sessions SET generation = ?, owner = ? WHERE name = ?", (generation, self._owner, session_id)
            )
        held = Held(Lease(session_id=session_id, owner=self._owner, generation=generation), fresh=found is None)
        self._held[session_id] = held
        return held

    def release(self, lease: Lease) -> None:
        """Give the session up, if the lease is current."""
        held = self._held.get(lease.session_id)
        if held is not None and held.lease == lease:
            del self._held[lease.session_id]
        self._connection.execute(
            "UPDATE sessions SET owner = NULL WHERE name = ? AND generation = ? AND owner = ?",
            (lease.session_id, lease.generation, lease.owner),
        )

    def check(self, lease: Lease, epoch: int) -> Held | LeaseLost:
        """What we know under this lease, or what to tell its holder. Reads only when `epoch` has changed since."""
        held = self._held.get(lease.session_id)
        if held is None or held.lease != lease:
            return self._lost(lease)
        if held.epoch != epoch:
            if not self._current(lease):
                del self._held[lease.session_id]
                return self._lost(lease)
            held.epoch = epoch
            held.journals.clear()
        return held

    def asked_for(self) -> list[str]:
        """Sessions of ours that others want."""
        return [session_id for session_id in self._lock.asked_for() if session_id in self._held]

    def is_fresh(self, session_id: str) -> bool:
        """Whether a lease of ours was the first one of the session."""
        held = self._held.get(session_id)
        return held is not None and held.fresh

    def line(self, session_id: str) -> tuple[int, str | None] | None:
        """Generation and owner that the session has; None when there is no such session."""
        return self._connection.execute(_LINE, (session_id,)).fetchone()

    def forget(self, session_id: str) -> None:
        """The session is deleted."""
        self._held.pop(session_id, None)

    def in_other_hands(self, owner: str) -> bool:
        """Whether a live owner other than this one."""
        return owner != self._owner and self._lock.alive(owner)

    def alive(self, owner: str | None) -> bool:
        """Whether this owner, or another one that is alive."""
        return owner is not None and ((owner == self._owner and self._lock.held) or self.in_other_hands(owner))

    def _create(self, session_id: str) -> int:
        """The first generation of a session: higher than any that a deleted one of its name had."""
        (floor,) = self._connection.execute(
            "SELECT coalesce(max(CAST(generation AS INTEGER)), 0) FROM settled"
        ).fetchone()
        self._connection.execute(
            "INSERT INTO sessions (name, generation, owner) VALUES (?, ?, ?)", (session_id, floor + 1, self._owner)
        )
        return floor + 1

    def _current(self, lease: Lease) -> bool:
        return self.line(lease.session_id) == (lease.generation, lease.owner)

    def _lost(self, lease: Lease) -> LeaseLost:
        return LeaseLost("the session has another owner now", session=lease.session_id, generation=lease.generation)
