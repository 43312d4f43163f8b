"""Forgetting: entries, what was taken from them, and their words in the index.

A fact that was learned several times stays as long as one time is left. Every function works within the transaction
that is open; `empty_log` comes after its commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from repertory.backends.memory.sqlite.entries import scope_token
from repertory.core.recall.saying import indexed


def forget_entries(connection: sqlite3.Connection, scope_key: int, entries: Sequence[int]) -> int:
    """Erase these entries of the scope, and what was taken from those among them that are turns. Returns how many."""
    found = _marked(
        connection,
        f"SELECT id, conversation, seq, said_at FROM memory_entries WHERE scope = ? AND id IN ({_marks(entries)})",
        (scope_key, *entries),
    )
    turns = [turn for _, *turn in found if turn[1] is not None]
    for turn in turns:
        refuse_from_now_on(connection, *turn)
    derived = _without_sightings(connection, [(conversation, seq) for conversation, seq, _ in turns])
    return _erase(connection, scope_key, {*(entry for entry, *_ in found), *derived})


def forget_turns(
    connection: sqlite3.Connection,
    conversations: Iterable[int],
    scope_key: int,
    numbers: Collection[int] | None = None,
) -> int:
    """Erase what was said in these conversations, or some turns of each, and what was taken from it; also what comes
    from it later. Returns how many entries that were.
    """
    gone: set[int] = set()
    among = "" if numbers is None else f" AND seq IN ({_marks(numbers)})"
    for conversation in conversations:
        values = (conversation, *(numbers or ()))
        where = f"conversation = ?{among}"
        turns = _marked(connection, f"SELECT id, seq, said_at FROM memory_entries WHERE kind = 0 AND {where}", values)
        sources = _marked(connection, f"SELECT DISTINCT conversation, seq FROM memory_sources WHERE {where}", values)
        gone |= {entry for entry, _, _ in turns}
        times = [(seq, said_at) for _, seq, said_at in turns if seq is not None]
        unknown = set(numbers or ()) - {seq for seq, _ in times}
        for seq, said_at in (*times, *((seq, None) for seq in unknown)):
            refuse_from_now_on(connection, conversation, seq, said_at)
        gone |= _without_sightings(connection, sources)
    return _erase(connection, scope_key, gone)


def refuse_from_now_on(connection: sqlite3.Connection, conversation: int, seq: int, said_at: float | None) -> None:
    """That turn, and what comes from it, is not stored any more. Without a time: nothing with its number is."""
    connection.execute(
        "INSERT INTO memory_forgotten (conversation, seq, said_at) SELECT ?1, ?2, ?3 WHERE NOT EXISTS"
        " (SELECT 1 FROM memory_forgotten WHERE conversation = ?1 AND seq = ?2 AND said_at IS ?3)",
        (conversation, seq, said_at),
    )


def empty_log(connection: sqlite3.Connection, *, busy_timeout_s: float) -> bool:
    """Remove erased contents from the log. False when others still read it: then do it again later."""
    connection.execute(f"PRAGMA busy_timeout = {round(busy_timeout_s * 1000)}")
    (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def _without_sightings(connection: sqlite3.Connection, turns: Iterable[tuple[int, int]]) -> set[int]:
    """Take back every time that a fact was learned from one of these turns. Returns the facts of which none is left."""
    touched: set[tuple[int, int]] = set()
    for conversation, seq in turns:
        touched |= set(
            _marked(
                connection,
                "SELECT entry, sighting FROM memory_sources WHERE conversation = ? AND seq = ?",
                (conversation, seq),
            )
        )
    for sighting in touched:
        connection.execute("DELETE FROM memory_sources WHERE entry = ? AND sighting = ?", sighting)
        connection.execute("UPDATE memory_entries SET seen = seen - 1 WHERE id = ?", (sighting[0],))
    facts = {entry for entry, _ in touched}
    left = {fact for fact in facts if connection.execute(_SEEN, (fact,)).fetchone() is not None}
    for fact in left:
        connection.execute(_MOVE, (fact,))
    return facts - left


_SEEN = "SELECT 1 FROM memory_entries WHERE id = ? AND seen > 0"
_MOVE = (
    "UPDATE memory_entries SET conversation ="
    " (SELECT conversation FROM memory_sources WHERE entry = ?1 ORDER BY sighting LIMIT 1) WHERE id = ?1"
)
"""A fact that is left belongs to the conversation where it was learned first, of those that are left."""


def _erase(connection: sqlite3.Connection, scope_key: int, entries: Iterable[int]) -> int:
    """Contents are overwritten (`secure_delete`). Merging the index is what removes words from it."""
    count = 0
    for entry in entries:
        found = connection.execute(
            "SELECT content, heading FROM memory_entries WHERE id = ? AND scope = ?", (entry, scope_key)
        ).fetchone()
        if found is None:
            continue
        count += 1
        content, heading = found
        connection.execute(
            "INSERT INTO memory_text (memory_text, rowid, content, heading, scope) VALUES ('delete', ?, ?, ?, ?)",
            (entry, *indexed(content, heading), scope_token(scope_key)),
        )
        connection.execute("DELETE FROM memory_sources WHERE entry = ?", (entry,))
        connection.execute("DELETE FROM memory_vectors WHERE entry = ?", (entry,))
        connection.execute("UPDATE memory_entries SET successor = NULL WHERE successor = ?", (entry,))
        connection.execute("DELETE FROM memory_entries WHERE id = ?", (entry,))
    if count:
        connection.execute("UPDATE memory_scopes SET entries = entries - ? WHERE id = ?", (count, scope_key))
        connection.execute("UPDATE memory_format SET erasures = erasures + 1")
        connection.execute("INSERT INTO memory_text (memory_text) VALUES ('optimize')")
    return count


def _marked(connection: sqlite3.Connection, statement: str, values: Sequence[object]) -> list[Any]:
    return connection.execute(statement, values).fetchall()


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))
