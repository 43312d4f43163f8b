"""Forgetting: entries, what was taken from them, and their words in the index.

A fact that was learned several times stays as long as one time is left. Every function works within the transaction
that is open; `erase_traces` comes after its commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from repertory.backends.memory.sqlite_entries import scope_token
from repertory.core.recall.saying import indexed


def forget_entries(connection: sqlite3.Connection, scope_key: int, entries: Sequence[int]) -> int:
    """Erase these entries of the scope, and what was taken from those among them that are turns. Returns how many."""
    found = _marked(
        connection,
        f"SELECT id, conversation, seq FROM memory_entries WHERE scope = ? AND id IN ({_marks(entries)})",
        (scope_key, *entries),
    )
    turns = [(conversation, seq) for _, conversation, seq in found if seq is not None]
    for turn in turns:
        _refuse_from_now_on(connection, *turn)
    derived = _without_sightings(connection, turns)
    return _erase(connection, scope_key, {*(entry for entry, _, _ in found), *derived})


def forget_turns(connection: sqlite3.Connection, conversations: Iterable[int], scope_key: int, seq: int | None) -> int:
    """Erase what was said in these conversations, or one turn of each, and what was taken from it; also what comes
    from it later. Returns how many entries that were.
    """
    gone: set[int] = set()
    for conversation in conversations:
        where = "conversation = ? AND kind = 0" + ("" if seq is None else " AND seq = ?")
        values = (conversation,) if seq is None else (conversation, seq)
        turns = _marked(connection, f"SELECT id, seq FROM memory_entries WHERE {where}", values)
        gone |= {entry for entry, _ in turns}
        sources = _marked(
            connection, "SELECT DISTINCT conversation, seq FROM memory_sources WHERE conversation = ?", (conversation,)
        )
        numbers: set[int] = {number for _, number in turns if number is not None} | (
            {seq} if seq is not None else set()
        )
        for number in numbers:
            _refuse_from_now_on(connection, conversation, number)
        wanted = [(conversation, seq)] if seq is not None else sources
        gone |= _without_sightings(connection, wanted)
    return _erase(connection, scope_key, gone)


def erase_traces(connection: sqlite3.Connection, *, busy_timeout_s: float) -> bool:
    """Remove erased words from the index, and erased contents from the log. False when others still read the log: then
    do it again later.
    """
    connection.execute("INSERT INTO memory_text (memory_text) VALUES ('optimize')")
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


def _refuse_from_now_on(connection: sqlite3.Connection, conversation: int, seq: int) -> None:
    connection.execute("INSERT OR IGNORE INTO memory_forgotten (conversation, seq) VALUES (?, ?)", (conversation, seq))


def _erase(connection: sqlite3.Connection, scope_key: int, entries: Iterable[int]) -> int:
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
    return count


def _marked(connection: sqlite3.Connection, statement: str, values: Sequence[object]) -> list[Any]:
    return connection.execute(statement, values).fetchall()


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
