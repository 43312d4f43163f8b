"""Writing entries: turns, facts, and entries that replace others.

Every function works within the open transaction, on a database that has the tables, and commits nothing: so memories
can be stored in the same commit as their sources. The index is changed with the entries.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from repertory.core.journal.rows import Row
from repertory.core.recall.entries import Saying, indexed, not_taken
from repertory.core.recall.journaled import sayings_in
from repertory.errors import Corrupt, Failed

_ENTRY = (
    "INSERT INTO memory_entries (id, scope, kind, conversation, place, seq, role, speaker, said_at, recorded_at, seen,"
    " seen_at, digest, given_id, words, heading, content, metadata)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?)"
)
_TEXT = "INSERT INTO memory_text (rowid, content, heading, scope) VALUES (?, ?, ?, ?)"
_NO_TURN = -1
"""Replaces a sequence number: from that conversation, but the turn is unknown."""


def scope_token(scope: int) -> str:
    """The index's term for a scope."""
    return f"s{scope}"


def take_key(connection: sqlite3.Connection, scope: str, key: str | None) -> bool:
    """False when that key was taken before; the caller then stops."""
    if key is None:
        return True
    taken = connection.execute(
        "INSERT OR IGNORE INTO memory_keys (scope, key) VALUES (?, ?)", (_scope(connection, scope), key)
    )
    return taken.rowcount == 1


def insert_turns(connection: sqlite3.Connection, scope: str, sayings: Iterable[Saying], *, now: float) -> list[int]:
    """Store turns in their order, at the end of their conversations. Returns the keys of those that were stored.

    A turn with a sequence number is stored once in its conversation, and not again after it was forgotten. If two turns
    have the same number and known times that differ, they are different: the session was deleted and started again.
    """
    scope_key = _scope(connection, scope)
    stored: list[int] = []
    for (session_id, agent_id), group in groupby(sayings, key=lambda saying: (saying.session_id, saying.agent_id)):
        conversation = conversation_key(connection, scope_key, session_id, agent_id)
        fresh = _not_taken(connection, conversation, list(group))
        if not fresh:
            continue
        (last,) = connection.execute(
            "UPDATE memory_conversations SET places = places + ? WHERE id = ? RETURNING places - ?",
            (len(fresh), conversation, len(fresh)),
        ).fetchone()
        places = range(last + 1, last + 1 + len(fresh))
        stored += _insert(connection, scope_key, fresh, [(TURN, conversation, at, None) for at in places], now)
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

    `sources`: the turns of its conversation that it was extracted from, by number and time. If one of them was
    forgotten, nothing is stored and the result is None.
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
    """Replace the old entry with the new one from then on. An entry that was replaced before, or by itself, is left
    unchanged.
    """
    if old != new:
        connection.execute(
            "UPDATE memory_entries SET gone_at = ?, successor = ? WHERE id = ? AND gone_at IS NULL", (at, new, old)
        )


def conversation_key(
    connection: sqlite3.Connection, scope_key: int, session_id: str | None, agent_id: str | None
) -> int:
    """The key of a conversation; creates it if needed."""
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
    places: Sequence[tuple[int, int | None, int | None, bytes | None]],
    now: float,
) -> list[int]:
    """Keys are never reused, even when their entries are gone."""
    # From AUTOINCREMENT's own table: keys are given out here, and a key must never be used again after its entry is
    # gone, since vectors and copies in memory are found by "newer than".
    last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'memory_entries'").fetchone()
    first = 1 if last is None else last[0] + 1
    keys = list(range(first, first + len(sayings)))
    rows: list[tuple[object, ...]] = []
    for key, saying, (kind, conversation, position, digest) in zip(keys, sayings, places, strict=True):
        where = (key, scope_key, kind, conversation, position, saying.seq)
        columns = (saying.role, saying.speaker, saying.said_at, now, now, digest, saying.given_id)
        rows.append((*where, *columns, saying.words, saying.heading, saying.content, saying.metadata))
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
        for seq, at in connection.execute(
            f"SELECT seq, said_at FROM {table} WHERE conversation = ? AND seq BETWEEN ? AND ?",
            (conversation, min(numbers), max(numbers)),
        ):
            taken.setdefault(seq, set()).add(at)
    return not_taken(turns, taken)


def _forgotten(connection: sqlite3.Connection, conversation: int, sources: Sequence[tuple[int, float | None]]) -> bool:
    statement = (
        "SELECT 1 FROM memory_forgotten WHERE conversation = ? AND seq = ?"
        " AND (? IS NULL OR said_at IS NULL OR said_at = ?)"
    )
    return any(connection.execute(statement, (conversation, seq, at, at)).fetchone() for seq, at in sources)


def _note_sources(connection: sqlite3.Connection, entry: int, conversation: int, numbers: Iterable[int]) -> None:
    (sighting,) = connection.execute(
        "SELECT coalesce(max(sighting), 0) + 1 FROM memory_sources WHERE entry = ?", (entry,)
    ).fetchone()
    connection.executemany(
        "INSERT OR IGNORE INTO memory_sources (conversation, seq, entry, sighting) VALUES (?, ?, ?, ?)",
        [(conversation, seq, entry, sighting) for seq in numbers],
    )


# The tables of the embedded memory, and their version.
#
# Their names begin with `memory_`, so that they can lie in a database that holds other things as well. The version
# stands in a table of its own for the same reason.


FORMAT_VERSION = 1

TURN, FACT = 0, 1
"""Kinds of entries."""

SCHEMA = (
    # A single line. `erasures` counts what was erased, so that a process with a copy in memory knows that it is old.
    "CREATE TABLE memory_format (version INTEGER NOT NULL, erasures INTEGER NOT NULL)",
    f"INSERT INTO memory_format VALUES ({FORMAT_VERSION}, 0)",
    # The scopes. `entries` counts the entries of each.
    "CREATE TABLE memory_scopes (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, entries INTEGER NOT NULL)",
    # Where something was said. `places` is the last place that was given in it; '' stands for unknown.
    "CREATE TABLE memory_conversations (id INTEGER PRIMARY KEY, scope INTEGER NOT NULL, session TEXT NOT NULL,"
    " agent TEXT NOT NULL, places INTEGER NOT NULL, UNIQUE (scope, session, agent))",
    # What is remembered. `place` orders the turns of a conversation without gaps, `seq` is where the journal has them.
    # `gone_at` is when it stopped to hold, `successor` what holds instead. `seen` counts how often a fact was learned.
    "CREATE TABLE memory_entries (id INTEGER PRIMARY KEY AUTOINCREMENT, scope INTEGER NOT NULL, kind INTEGER NOT NULL,"
    " conversation INTEGER, place INTEGER, seq INTEGER, role TEXT, speaker TEXT, said_at REAL,"
    " recorded_at REAL NOT NULL, gone_at REAL, successor INTEGER, seen INTEGER NOT NULL, seen_at REAL NOT NULL,"
    " digest BLOB, given_id TEXT,"
    " words INTEGER NOT NULL, heading TEXT NOT NULL, content TEXT NOT NULL, metadata TEXT)",
    "CREATE UNIQUE INDEX memory_places ON memory_entries (conversation, place) WHERE place IS NOT NULL",
    # A session that was deleted and begun again has the same numbers, at other times.
    "CREATE UNIQUE INDEX memory_turns ON memory_entries (conversation, seq, said_at) WHERE seq IS NOT NULL",
    "CREATE UNIQUE INDEX memory_facts ON memory_entries (scope, digest) WHERE digest IS NOT NULL AND gone_at IS NULL",
    "CREATE INDEX memory_given_ids ON memory_entries (scope, given_id) WHERE given_id IS NOT NULL",
    "CREATE INDEX memory_successors ON memory_entries (successor) WHERE successor IS NOT NULL",
    # From which turns a fact was taken, each time that it was learned.
    "CREATE TABLE memory_sources (conversation INTEGER NOT NULL, seq INTEGER NOT NULL, entry INTEGER NOT NULL,"
    " sighting INTEGER NOT NULL, PRIMARY KEY (conversation, seq, entry, sighting)) WITHOUT ROWID",
    "CREATE INDEX memory_sightings ON memory_sources (entry, sighting)",
    # What was taken and need not be taken again, and turns that must not come back; without a time, whenever said.
    "CREATE TABLE memory_keys (scope INTEGER NOT NULL, key TEXT NOT NULL, PRIMARY KEY (scope, key)) WITHOUT ROWID",
    "CREATE TABLE memory_forgotten (conversation INTEGER NOT NULL, seq INTEGER NOT NULL, said_at REAL)",
    "CREATE INDEX memory_forgotten_turns ON memory_forgotten (conversation, seq, said_at)",
    # The index: it holds words, not texts, so erasing an entry takes the text of the entry once more.
    "CREATE VIRTUAL TABLE memory_text USING fts5(content, heading, scope, content='', columnsize=0,"
    " tokenize='porter unicode61 remove_diacritics 2')",
    # Vectors of what `memory_embedder`, a single line, makes of texts: float32, in the byte order of this machine.
    "CREATE TABLE memory_embedder (name TEXT NOT NULL, dimensions INTEGER NOT NULL)",
    "CREATE TABLE memory_vectors (entry INTEGER PRIMARY KEY, scope INTEGER NOT NULL, vector BLOB NOT NULL)",
    "CREATE INDEX memory_vectors_of ON memory_vectors (scope, entry)",
)


def has_tables(connection: sqlite3.Connection, where: str) -> bool:
    """True if the tables exist. Errors: `Failed` for those of a newer release, `Corrupt` for an unknown version."""
    statement = "SELECT count(*) FROM sqlite_schema WHERE name = 'memory_format'"
    if not connection.execute(statement).fetchone()[0]:
        return False
    found = connection.execute("SELECT version FROM memory_format").fetchone()
    version = None if found is None else found[0]
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise Failed(
            "a newer release of Repertory has written this memory: upgrade this one, or name another file",
            path=where,
            version=version,
            known=FORMAT_VERSION,
        )
    if version != FORMAT_VERSION:
        raise Corrupt("unknown version of the memory", path=where, version=version, known=FORMAT_VERSION)
    return True


def create_tables(connection: sqlite3.Connection) -> None:
    for statement in SCHEMA:
        connection.execute(statement)


# Forgetting: entries, what was taken from them, and their words in the index.
#
# A fact that was learned several times stays as long as one time is left. Every function works within the transaction
# that is open; `empty_log` comes after its commit.


def forget_entries(connection: sqlite3.Connection, scope_key: int, entries: Sequence[int]) -> int:
    """Erase these entries of the scope, and what was extracted from the turns among them. Returns how many."""
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
    """Erase the turns of these conversations, or some of each, and what was extracted from them, now or later. Returns
    the number of erased entries.
    """
    gone: set[int] = set()
    among = "" if numbers is None else f" AND seq IN ({_marks(numbers)})"
    for conversation in conversations:
        values = (conversation, *(numbers or ()))
        where = f"conversation = ?{among}"
        turns = _marked(connection, f"SELECT id, seq, said_at FROM memory_entries WHERE kind = 0 AND {where}", values)
        sources = _marked(connection, f"SELECT DISTINCT conversation, seq FROM memory_sources WHERE {where}", values)
        gone |= {entry for entry, _, _ in turns}
        times = [(seq, at) for _, seq, at in turns if seq is not None]
        unknown = set(numbers or ()) - {seq for seq, _ in times}
        for seq, at in (*times, *((seq, None) for seq in unknown)):
            refuse_from_now_on(connection, conversation, seq, at)
        gone |= _without_sightings(connection, sources)
    return _erase(connection, scope_key, gone)


def refuse_from_now_on(connection: sqlite3.Connection, conversation: int, seq: int, at: float | None) -> None:
    """Never store that turn, or anything extracted from it, again. Without a time: any turn with its number."""
    connection.execute(
        "INSERT INTO memory_forgotten (conversation, seq, said_at) SELECT ?, ?, ? WHERE NOT EXISTS"
        " (SELECT 1 FROM memory_forgotten WHERE conversation = ? AND seq = ? AND said_at IS ?)",
        (conversation, seq, at, conversation, seq, at),
    )


def empty_log(connection: sqlite3.Connection, *, busy_timeout_s: float) -> bool:
    """Remove erased contents from the log. False when other processes still read it: try again later."""
    connection.execute(f"PRAGMA busy_timeout = {round(busy_timeout_s * 1000)}")
    (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def _without_sightings(connection: sqlite3.Connection, turns: Iterable[tuple[int, int]]) -> set[int]:
    """Remove these turns as sources of facts. Returns the facts that have no source left."""
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
    remaining = {fact for fact in facts if connection.execute(_SEEN, (fact,)).fetchone() is not None}
    for fact in remaining:
        connection.execute(_MOVE, (fact, fact))
    return facts - remaining


_SEEN = "SELECT 1 FROM memory_entries WHERE id = ? AND seen > 0"
_MOVE = (
    "UPDATE memory_entries SET conversation ="
    " (SELECT conversation FROM memory_sources WHERE entry = ? ORDER BY sighting LIMIT 1) WHERE id = ?"
)
"""A remaining fact belongs to the conversation of its earliest remaining source."""


def _erase(connection: sqlite3.Connection, scope_key: int, entries: Iterable[int]) -> int:
    """Contents are overwritten (`secure_delete`). Merging the index removes the words from it."""
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


# The messages of sessions as memories in the same database, by the same commits.

# The session store calls this within its transactions: so a stored message is found, and an erased one is forgotten, at
# the same moment.


class _Conversation(NamedTuple):
    scope: int
    id: int
    agent: str


class SessionMemory:
    """The memory tables in a session database, for its store. It belongs to the store's thread.

    Nothing is stored without a rule. Erased or deleted messages are still forgotten, in every scope, if the file has
    memory tables.
    """

    def __init__(self, path: Path, rule: Callable[[str], str | None] | None) -> None:
        """`rule` returns the scope in which a session is remembered, or None."""
        self._name = str(path)
        self.scope_of = rule

    def is_ready(self, connection: sqlite3.Connection) -> bool:
        """True if no tables must be made. Errors: `Corrupt` for tables of another version."""
        return has_tables(connection, self._name) or self.scope_of is None

    def prepare(self, connection: sqlite3.Connection) -> None:
        create_tables(connection)

    def stored(self, connection: sqlite3.Connection, scope: str, session_id: str, rows: Sequence[Row]) -> None:
        """Remember the messages among these rows. Rows that this release cannot read are left out."""
        turns = sayings_in(session_id, rows)
        if turns:
            insert_turns(connection, scope, turns, now=turns[-1].said_at or 0.0)

    def erased(self, connection: sqlite3.Connection, session_id: str, rows: Sequence[tuple[str, int]]) -> None:
        """Forget these turns and what was extracted from them. Their replacements are not remembered either."""
        if not has_tables(connection, self._name):
            return
        for conversation in _conversations(connection, session_id):
            numbers = [seq for agent_id, seq in rows if agent_id == conversation.agent]
            if numbers:
                forget_turns(connection, [conversation.id], conversation.scope, numbers)
                for seq in numbers:
                    refuse_from_now_on(connection, conversation.id, seq, None)

    def deleted(self, connection: sqlite3.Connection, session_id: str) -> None:
        """Forget the session's turns, what was extracted only from them, and the session itself."""
        if not has_tables(connection, self._name):
            return
        for scope, of_scope in groupby(_conversations(connection, session_id), key=lambda each: each.scope):
            keys = [conversation.id for conversation in of_scope]
            forget_turns(connection, keys, scope)
            for key in keys:
                connection.execute("DELETE FROM memory_forgotten WHERE conversation = ?", (key,))
                connection.execute("DELETE FROM memory_conversations WHERE id = ?", (key,))


def _conversations(connection: sqlite3.Connection, session_id: str) -> list[_Conversation]:
    found = connection.execute(
        "SELECT scope, memory_conversations.id, agent FROM memory_scopes CROSS JOIN memory_conversations"
        " ON scope = memory_scopes.id AND session = ? ORDER BY scope",
        (session_id,),
    )
    return [_Conversation(*row) for row in found.fetchall()]
