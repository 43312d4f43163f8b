"""The table of a session database that keeps calls which nobody waits for."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from repertory.backends.peer_ports import QueuedCall
from repertory.backends.sessions.sqlite.corrupt_file import is_id
from repertory.core.peers import POISON_OWNERS
from repertory.core.queued_calls import ENDED_TEXT, UnclaimedCall, call_of, next_calls

# `ended`: so many owners have died with it. The time is SQLite's, in seconds.
CALLS = (
    "CREATE TABLE calls (id INTEGER PRIMARY KEY, session TEXT NOT NULL, agent TEXT NOT NULL,"
    " token TEXT NOT NULL, call TEXT NOT NULL, created_at REAL NOT NULL, owner TEXT, tries INTEGER NOT NULL DEFAULT 0,"
    " ended INTEGER NOT NULL DEFAULT 0, not_before REAL NOT NULL DEFAULT 0, error TEXT NOT NULL DEFAULT '',"
    " parked_at REAL, UNIQUE (session, agent, token))",
    "CREATE INDEX calls_waiting ON calls (id) WHERE owner IS NULL AND parked_at IS NULL",
    # Unique: two processes can never have a call of the same session, whatever a fault in `_next` would choose.
    "CREATE UNIQUE INDEX calls_taken ON calls (session) WHERE owner IS NOT NULL",
)
# SQLite's clock, with its fraction: `unixepoch('subsec')` came with 3.42.
_NOW = "((julianday('now') - 2440587.5) * 86400.0)"
_COLUMNS = "session, agent, token, call, created_at, tries, error, parked_at IS NOT NULL"
_ONE = "session = ? AND agent = ? AND token = ? AND owner = ?"

Alive: TypeAlias = Callable[[str], bool]
"""Says of an owner's name whether it is alive."""


class CallTable(Struct, eq=False):
    """Every method runs within the caller's transaction."""

    connection: sqlite3.Connection

    def put(self, session_id: str, agent_id: str, token: str, text: str) -> bool:
        """See the port. `text`: the call as JSON."""
        self.connection.execute(
            # Posting a parked call again is how a person says: try it once more.
            "DELETE FROM calls WHERE session = ? AND agent = ? AND token = ? AND parked_at IS NOT NULL",
            (session_id, agent_id, token),
        )
        stored = self.connection.execute(
            f"INSERT INTO calls (session, agent, token, call, created_at) VALUES (?, ?, ?, ?, {_NOW})"
            # The token names the call: posted twice, it is one call.
            " ON CONFLICT DO NOTHING",
            (session_id, agent_id, token, text),
        )
        return stored.rowcount == 1

    def anything(self, owner: str, agents: Collection[str], passing: Collection[str], alive: Alive) -> bool:
        """True if `take` would change anything."""
        return bool(self._dead(owner, alive) or self._next(1, agents, passing))

    def take(
        self, owner: str, limit: int, agents: Collection[str], passing: Collection[str], alive: Alive
    ) -> list[QueuedCall]:
        # Whoever takes calls next also gives back what dead processes had; nobody else watches for that.
        for dead in self._dead(owner, alive):
            self.connection.execute(
                "UPDATE calls SET owner = NULL, tries = tries + 1, ended = ended + 1,"
                f" parked_at = CASE WHEN ended + 1 >= {POISON_OWNERS} THEN {_NOW} END,"
                f" error = CASE WHEN ended + 1 >= {POISON_OWNERS} THEN ? ELSE error END WHERE owner = ?",
                (ENDED_TEXT, dead),
            )
        keys = [each.key for each in self._next(limit, agents, passing)]
        self.connection.executemany("UPDATE calls SET owner = ? WHERE id = ?", [(owner, key) for key in keys])
        return [call for key in keys for call in self._read("WHERE id = ?", (key,))]

    def done(self, owner: str, calls: Sequence[QueuedCall]) -> None:
        keys = [(call.session_id, call.agent_id, call.token, owner) for call in calls]
        self.connection.executemany(f"DELETE FROM calls WHERE {_ONE}", keys)

    def again(self, owner: str, call: QueuedCall, after_s: float, error: str, *, park: bool) -> None:
        self.connection.execute(
            f"UPDATE calls SET owner = NULL, tries = tries + 1, not_before = {_NOW} + ?, error = ?,"
            f" parked_at = CASE WHEN ? THEN {_NOW} END WHERE {_ONE}",
            (after_s, error, park, call.session_id, call.agent_id, call.token, owner),
        )

    def untake(self, owner: str, calls: Sequence[QueuedCall]) -> None:
        """Nobody was given these: as if they had not been taken."""
        keys = [(call.session_id, call.agent_id, call.token, owner) for call in calls]
        self.connection.executemany(f"UPDATE calls SET owner = NULL WHERE {_ONE}", keys)

    def forget(self, session_id: str) -> bool:
        """The session is deleted. True if it had calls."""
        return self.connection.execute("DELETE FROM calls WHERE session = ?", (session_id,)).rowcount > 0

    def restore(self, lines: Iterable[tuple[object, ...]]) -> None:
        """Keep these of a damaged database, which nobody has; what is no call any more is left out."""
        for session, agent, token, text, at, tries, ended, error, parked_at in lines:
            if _names(session, agent, token) and call_of(text):
                numbers = [number if isinstance(number, int) else 0 for number in (tries, ended)]
                times = [time if isinstance(time, float) else 0.0 for time in (at, parked_at)]
                self.connection.execute(
                    "INSERT INTO calls (session, agent, token, call, created_at, tries, ended, error, parked_at)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    (session, agent, token, text, times[0], *numbers, str(error), times[1] or None),
                )

    def all(self, session_id: str | None) -> list[QueuedCall]:
        if session_id is None:
            return list(self._read("ORDER BY id"))
        return list(self._read("WHERE session = ? ORDER BY id", (session_id,)))

    def _dead(self, owner: str, alive: Alive) -> list[str]:
        found = self.connection.execute("SELECT DISTINCT owner FROM calls WHERE owner IS NOT NULL").fetchall()
        return [str(name) for (name,) in found if name != owner and not alive(str(name))]

    def _next(self, limit: int, agents: Collection[str], passing: Collection[str]) -> list[UnclaimedCall]:
        taken = {session for (session,) in self._execute("SELECT session FROM calls WHERE owner IS NOT NULL")}
        waiting = self._execute(
            f"SELECT id, session, agent, not_before <= {_NOW}, token FROM calls WHERE owner IS NULL"
            " AND parked_at IS NULL ORDER BY id"
        )
        calls = (UnclaimedCall(*line) for *line, token in waiting if _names(*line[1:3], token))
        return next_calls(calls, taken, agents, limit, passing)

    def _read(self, where: str, values: tuple[object, ...] = ()) -> Iterator[QueuedCall]:
        for session, agent, token, text, at, tries, error, parked in self._execute(
            f"SELECT {_COLUMNS} FROM calls {where}", values
        ):
            if not _names(session, agent, token):
                continue
            yield QueuedCall(
                session_id=session,
                agent_id=agent,
                token=token,
                call=call_of(text),
                created_at=at if isinstance(at, float) else 0.0,
                tries=tries if isinstance(tries, int) else 0,
                error=error if isinstance(error, str) else "",
                parked=bool(parked),
            )

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> Iterable[tuple[Any, ...]]:
        return self.connection.execute(statement, values)


def _names(*ids: object) -> bool:
    """True if a line names its session, agent and token. A line that does not is no call of anybody."""
    return all(map(is_id, ids))
