"""The tables of the embedded memory, and their version.

Their names begin with `memory_`, so that they can lie in a database that holds other things as well. The version stands
in a table of its own for the same reason.
"""

from __future__ import annotations

import sqlite3

from repertory.errors import Corrupt, Failed

FORMAT_VERSION = 1

TURN, FACT = 0, 1
"""Kinds of entries."""

SCHEMA = (
    # A single line. `erasures` counts what was erased, so that whoever keeps a copy in memory knows that it is old.
    "CREATE TABLE memory_format (version INTEGER NOT NULL, erasures INTEGER NOT NULL)",
    f"INSERT INTO memory_format VALUES ({FORMAT_VERSION}, 0)",
    # Who remembers. `entries` counts theirs.
    "CREATE TABLE memory_scopes (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, entries INTEGER NOT NULL)",
    # Where something was said. `places` is the last place that was given in it; '' stands for what nobody knows.
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
    # The index: it holds words, not texts, so whoever erases an entry tells it again what the entry said.
    "CREATE VIRTUAL TABLE memory_text USING fts5(content, heading, scope, content='', columnsize=0,"
    " tokenize='porter unicode61 remove_diacritics 2')",
    # Vectors of what `memory_embedder`, a single line, makes of texts: float32, in the byte order of this machine.
    "CREATE TABLE memory_embedder (name TEXT NOT NULL, dimensions INTEGER NOT NULL)",
    "CREATE TABLE memory_vectors (entry INTEGER PRIMARY KEY, scope INTEGER NOT NULL, vector BLOB NOT NULL)",
    "CREATE INDEX memory_vectors_of ON memory_vectors (scope, entry)",
)


def has_tables(connection: sqlite3.Connection, where: str) -> bool:
    """Whether the tables are there. Errors: `Failed` for those of a newer release, `Corrupt` for no version of ours."""
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
    """Make the tables, within the transaction that is open."""
    for statement in SCHEMA:
        connection.execute(statement)
