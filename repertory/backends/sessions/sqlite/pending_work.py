"""The table of a session database that says which sessions must be woken, and when."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from typing import TypeAlias

from msgspec import Struct

from repertory.backends.ports import WorkQuery
from repertory.backends.sessions.sqlite.reading import SANE_GENERATION
from repertory.core.pending_work import (
    CLAIMS_MAX,
    DueTime,
    PendingWork,
    claims_after,
    may_claim,
    next_due,
)
from repertory.core.tenants import tenant_part

PENDING_WORK = (
    "CREATE TABLE pending_work (session TEXT NOT NULL, agent TEXT NOT NULL, at REAL NOT NULL, why TEXT NOT NULL,"
    " claims INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (session, agent)) WITHOUT ROWID",
    # Parked work is not in it, so that a heap of it slows no look down.
    f"CREATE INDEX pending_work_at ON pending_work (at) WHERE claims < {CLAIMS_MAX}",
)
_COLUMNS = (  # Also of an edited line, so that it spoils no listing of the others.
    "pending_work.session, pending_work.agent, CAST(pending_work.at AS REAL), CAST(pending_work.why AS TEXT),"
    " CAST(pending_work.claims AS INTEGER)"
)
_DUE = (
    f"SELECT {_COLUMNS}, coalesce({SANE_GENERATION}, 0), coalesce(CAST(sessions.owner AS TEXT), '')"
    " FROM pending_work LEFT JOIN sessions ON sessions.name = pending_work.session"
    f" WHERE pending_work.at <= ? AND pending_work.claims < {CLAIMS_MAX} ORDER BY pending_work.at"
)


Owned: TypeAlias = Callable[[str, int, str], bool | None]
"""Says of a session's lease, by generation and owner: True if this store holds it, False if another one does, None if
nobody does.
"""


class PendingWorkTable(Struct, eq=False):
    """Every method runs within the caller's transaction."""

    connection: sqlite3.Connection

    def note(self, session_id: str, due: DueTime) -> None:
        """An agent owes this from now on, and nothing else."""
        if due.at is None:
            values = session_id, due.agent_id
            self.connection.execute("DELETE FROM pending_work WHERE session = ? AND agent = ?", values)
            return
        # What counts of one claim counts of each.
        self.connection.execute(
            "INSERT INTO pending_work (session, agent, at, why) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (session, agent) DO UPDATE SET at = excluded.at, why = excluded.why, claims = claims * ?",
            (session_id, due.agent_id, due.at, due.why, claims_after(due.why, 1)),
        )

    def released(self, session_id: str) -> None:
        """The owner gave the session up in order, so none of its work has ended it."""
        self.connection.execute("UPDATE pending_work SET claims = 0 WHERE session = ? AND claims > 0", (session_id,))

    def forget(self, session_id: str) -> None:
        """The session is deleted."""
        self.connection.execute("DELETE FROM pending_work WHERE session = ?", (session_id,))

    def claimable(self, query: WorkQuery, owned: Owned, limit: int) -> list[PendingWork]:
        """Up to `limit` works that may be claimed, each with the number of its claims then: `Waking.claim_due`."""
        found: list[PendingWork] = []
        for session_id, agent_id, at, why, claims, *lease in self.connection.execute(_DUE, (query.now,)):
            if agent_id not in query.agents or tenant_part(session_id) in query.passing:
                continue
            # Asked here and not in SQL: whether an owner lives is a lock of the kernel.
            here = owned(session_id, *lease)
            rests = (session_id, agent_id) in query.stalled
            if here is not False and may_claim(why, owned_here=here is True and not rests):
                found.append(PendingWork(session_id=session_id, agent_id=agent_id, at=at, why=why, claims=claims + 1))
            # The query is read row by row, so what is beyond the limit is never fetched.
            if len(found) == limit:
                break
        return found

    def claim(self, now: float, works: Collection[PendingWork]) -> None:
        """Nobody else claims these until they are due again."""
        self.connection.executemany(
            "UPDATE pending_work SET at = ?, claims = ? WHERE session = ? AND agent = ?",
            [(next_due(now, each.claims), each.claims, each.session_id, each.agent_id) for each in works],
        )

    def all(self, session_id: str | None) -> list[PendingWork]:
        whose, given = ("", ()) if session_id is None else ("WHERE session = ? ", (session_id,))
        rows = self.connection.execute(f"SELECT {_COLUMNS} FROM pending_work {whose}ORDER BY pending_work.at", given)
        return [
            PendingWork(session_id=name, agent_id=agent, at=at, why=why, claims=n) for name, agent, at, why, n in rows
        ]
