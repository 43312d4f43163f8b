"""Writing entries: what was said, what was learned, and what holds instead of something else.

Every function works within the transaction that is open, on a connection whose database has the tables, and commits
nothing: so memories can be stored in the same commit as what they are made of. The index is changed with the entries.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import groupby

from repertory.backends.memory.sqlite.schema import FACT, TURN
from repertory.core.recall.saying import Saying, indexed

_ENTRY = (
    "INSERT INTO memory_entries (id, scope, kind, conversation, place, seq, role, speaker, said_at, recorded_at, seen,"
    " seen_at, digest, given_id, words, heading, content, metadata)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?)"
)
_TEXT = "INSERT INTO memory_text (rowid, content, heading, scope) VALUES (?, ?, ?, ?)"
_NO_TURN = -1
"""In place of a sequence number: from that conversation, nobody knows which turn."""


def scope_token(scope: int) -> str:
    """How the index knows whose an entry is."""
    return f"s{scope}"


def take_key(connection: sqlite3.Connection, scope: str, key: str | None) -> bool:
    """Whether to go on: False when that key was taken before."""
    if key is None:
        return True
    taken = connection.execute(
        "INSERT OR IGNORE INTO memory_keys (scope, key) VALUES (?, ?)", (_scope(connection, scope), key)
    )
    return taken.rowcount == 1


def insert_turns(connection: sqlite3.Connection, scope: str, sayings: Iterable[Saying], *, now: float) -> list[int]:
    """Store turns in their order, at the end of their conversations. Returns the keys of those that were stored.

    A turn with a sequence number is stored once in its conversation, and not again after it was forgotten. It is
    another one when both were said at known times that differ: the session was deleted, and begun again.
    """
    scope_key = _scope(connection, scope)
    stored: list[int] = []
    for (session_id, agent_id), group in groupby(sayings, key=lambda saying: (saying.session_id, saying.agent_id)):
        conversation = conversation_key(connection, scope_key, session_id, agent_id)
        fresh = _not_taken(connection, conversation, list(group))
        if not fresh:
            continue
        (place,) = connection.execute(
            "UPDATE memory_conversations SET places = places + ? WHERE id = ? RETURNING places - ?",
            (len(fresh), conversation, len(fresh)),
        ).fetchone()
        places = range(place + 1, place + 1 + len(fresh))
        stored += _insert(connection, scope_key, fresh, [(TURN, conversation, place, None) for place in places], now)
    return stored


def insert_fact(
    connection: sqlite3.Connection,
    scope: str,
    fact: Saying,
    sources: Sequence[tuple[int, float | None]] = (),
    *,
    now: float,
) -> int | None:
    """Store a fact, or count it when it is known. Returns its key.

    `sources`: the turns of its conversation that it was taken from, by number and time. None when one of them was
    forgotten: nothing is stored then.
    """
    scope_key = _scope(connection, scope)
    conversation = None
    if fact.session_id is not None:
        conversation = conversation_key(connection, scope_key, fact.session_id, fact.agent_id)
        if _forgotten(connection, conversation, sources):
            return None
    known = connection.execute(
        "UPDATE memory_entries SET seen = seen + 1, seen_at = ? WHERE scope = ? AND digest = ? AND gone_at IS NULL"
        " RETURNING id",
        (now, scope_key, fact.digest),
    ).fetchall()
    entry = known[0][0] if known else None
    if entry is None:
        (entry,) = _insert(connection, scope_key, [fact], [(FACT, conversation, None, fact.digest)], now)
    if conversation is not None:
        _note_sources(connection, entry, conversation, [number for number, _ in sources] or [_NO_TURN])
    return entry


def supersede(connection: sqlite3.Connection, old: int, new: int, *, at: float) -> None:
    """From then on the new entry holds instead of the old one. What holds already is left alone."""
    if old != new:
        connection.execute(
            "UPDATE memory_entries SET gone_at = ?, successor = ? WHERE id = ? AND gone_at IS NULL", (at, new, old)
        )


def conversation_key(
    connection: sqlite3.Connection, scope_key: int, session_id: str | None, agent_id: str | None
) -> int:
    """The key of a conversation, which is made when it is not there."""
    where = (scope_key, session_id or "", agent_id or "")
    connection.execute(
        "INSERT OR IGNORE INTO memory_conversations (scope, session, agent, places) VALUES (?, ?, ?, 0)", where
    )
    (key,) = connection.execute(
        "SELECT id FROM memory_conversations WHERE scope = ? AND session = ? AND agent = ?", where
    ).fetchone()
    return key


def _scope(connection: sqlite3.Connection, name: str) -> int:
    connection.execute("INSERT OR IGNORE INTO memory_scopes (name, entries) VALUES (?, 0)", (name,))
    (key,) = connection.execute("SELECT id FROM memory_scopes WHERE name = ?", (name,)).fetchone()
    return key


def _insert(
    connection: sqlite3.Connection,
    scope_key: int,
    sayings: Sequence[Saying],
    wheres: Sequence[tuple[int, int | None, int | None, bytes | None]],
    now: float,
) -> list[int]:
    """Keys are never used again, also when their entries are gone."""
    last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'memory_entries'").fetchone()
    first = 1 if last is None else last[0] + 1
    keys = list(range(first, first + len(sayings)))
    rows: list[tuple[object, ...]] = []
    for key, saying, (kind, conversation, place, digest) in zip(keys, sayings, wheres, strict=True):
        where = (key, scope_key, kind, conversation, place, saying.seq)
        said = (saying.role, saying.speaker, saying.said_at, now, now, digest, saying.given_id)
        rows.append((*where, *said, saying.words, saying.heading, saying.content, saying.metadata))
    connection.executemany(_ENTRY, rows)
    token = scope_token(scope_key)
    connection.executemany(
        _TEXT,
        [(key, *indexed(saying.content, saying.heading), token) for key, saying in zip(keys, sayings, strict=True)],
    )
    connection.execute("UPDATE memory_scopes SET entries = entries + ? WHERE id = ?", (len(sayings), scope_key))
    return keys


def _not_taken(connection: sqlite3.Connection, conversation: int, turns: Sequence[Saying]) -> list[Saying]:
    numbers = [turn.seq for turn in turns if turn.seq is not None]
    if not numbers:
        return list(turns)
    taken: dict[int, set[float | None]] = {}
    for table in ("memory_entries", "memory_forgotten"):
        for seq, said_at in connection.execute(
            f"SELECT seq, said_at FROM {table} WHERE conversation = ? AND seq BETWEEN ? AND ?",
            (conversation, min(numbers), max(numbers)),
        ):
            taken.setdefault(seq, set()).add(said_at)
    fresh: list[Saying] = []
    for turn in turns:
        if turn.seq is None:
            fresh.append(turn)
            continue
        times = taken.setdefault(turn.seq, set())
        if not times or not (turn.said_at is None or None in times or turn.said_at in times):
            fresh.append(turn)
            times.add(turn.said_at)
    return fresh


def _forgotten(connection: sqlite3.Connection, conversation: int, sources: Sequence[tuple[int, float | None]]) -> bool:
    statement = (
        "SELECT 1 FROM memory_forgotten WHERE conversation = ?1 AND seq = ?2"
        " AND (?3 IS NULL OR said_at IS NULL OR said_at = ?3)"
    )
    return any(connection.execute(statement, (conversation, *source)).fetchone() for source in sources)


def _note_sources(connection: sqlite3.Connection, entry: int, conversation: int, numbers: Iterable[int]) -> None:
    (sighting,) = connection.execute(
        "SELECT coalesce(max(sighting), 0) + 1 FROM memory_sources WHERE entry = ?", (entry,)
    ).fetchone()
    connection.executemany(
        "INSERT OR IGNORE INTO memory_sources (conversation, seq, entry, sighting) VALUES (?, ?, ?, ?)",
        [(conversation, seq, entry, sighting) for seq in numbers],
    )
