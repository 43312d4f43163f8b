"""Finding the entries for a query in SQLite's index. Which of them are ranked, and how, is decided in `core/recall`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from repertory.backends.memory.sqlite.entries import scope_token
from repertory.backends.memory.vectors import Likeness, Pending, VectorMatrix
from repertory.core.recall.candidates import (
    Candidates,
    Described,
    Posting,
    Postings,
    Query,
    begun,
    first_beside,
    first_read,
    read_max,
    shortlist,
)
from repertory.core.recall.entries import heading_word, terms_of
from repertory.errors import Invalid

_COLUMNS = "memory_entries.id, conversation, place, words, role, speaker, substr(content, 1, 80)"
_HOLDS = "gone_at IS NULL"
_HELD = "coalesce(said_at, recorded_at) <= :at AND (gone_at IS NULL OR gone_at > :at)"
_BY_KEY = (
    f"SELECT {_COLUMNS} FROM memory_entries WHERE id IN (SELECT value FROM json_each(:keys)) AND scope = :scope AND "
)
_BY_POSITION = (
    f"SELECT {_COLUMNS} FROM json_each(:places) AS wanted CROSS JOIN memory_entries"
    " ON conversation = json_extract(wanted.value, '$[0]') AND place = json_extract(wanted.value, '$[1]')"
    " AND place IS NOT NULL WHERE scope = :scope AND "
)


def recall(connection: sqlite3.Connection, query: Query, alike: Likeness | None = None) -> list[tuple[int, float]]:
    """The keys of the best entries and their scores, best first."""
    found = connection.execute(
        "SELECT id, entries, (SELECT count(*) FROM memory_scopes), (SELECT max(id) FROM memory_entries)"
        " FROM memory_scopes WHERE name = ?",
        (query.scope,),
    ).fetchone()
    if found is None or not found[1] or query.limit < 1:
        return []
    scope_key, entries, scopes, last = found
    terms = terms_of(query.question)
    index = Index(entries, last, None if scopes == 1 else scope_token(scope_key))
    postings = read_postings(connection, terms, index)
    candidates = Candidates(query, postings, terms)
    time = _HOLDS if query.as_of is None else _HELD
    values = {"scope": scope_key, "at": query.as_of}

    def read(statement: str, name: str, wanted: Iterable[object]) -> None:
        rows = connection.execute(statement + time, {**values, name: json.dumps(list(wanted))})
        candidates.take(map(Described._make, rows))

    listed = shortlist(postings, query)
    read(_BY_KEY, "keys", first_read(listed, alike))
    if beside := candidates.beside(first_beside(listed, alike)):
        read(_BY_POSITION, "places", beside)
    return candidates.ranked(None if alike is None else alike.of(candidates.known))


# Which entries have which words of a question: the index, asked word by word, within bounds.

_NEWEST = "SELECT rowid FROM memory_text WHERE memory_text MATCH ? ORDER BY rowid DESC LIMIT ?"
_READ = f"SELECT json_group_array(rowid) FROM ({_NEWEST})"  # one row is read far faster than thousands


class Index(NamedTuple):
    """The searched part of the index."""

    entries: int
    """The number of entries in the scope."""
    last: int
    """The key of the newest entry."""
    token: str | None
    """The scope's term; None when all entries are in scope."""

    def theirs(self, expression: str) -> str:
        """The expression, restricted to the scope."""
        return expression if self.token is None else f'({expression}) AND ({{scope}} : "{self.token}")'


def read_postings(connection: sqlite3.Connection, terms: Sequence[str], index: Index) -> Postings:
    """Look up each word, in the texts and in the headings."""
    postings = [
        _posting(connection, index, number, in_heading, _expression(term, in_heading))
        for number, term in enumerate(terms)
        for in_heading in (False, True)
    ]
    found, worth_looking = begun(postings, len(terms), index.entries, read_max(index.last))
    rest = {(posting.number, posting.in_heading) for posting in worth_looking}
    among = " OR ".join(
        _expression(terms[posting.number], posting.in_heading)
        for posting in postings
        if posting.newest and (posting.number, posting.in_heading) not in rest
    )
    for posting in worth_looking:
        expression = _expression(terms[posting.number], posting.in_heading)
        found.mark(posting, _read(connection, index, f"({among}) AND {expression}"))
    return found


def _expression(term: str, in_heading: bool) -> str:
    """A term has only letters and digits, so it cannot contain query syntax."""
    return f'({{heading}} : "{heading_word(term)}")' if in_heading else f'({{content}} : "{term}")'


def _posting(connection: sqlite3.Connection, index: Index, number: int, in_heading: bool, expression: str) -> Posting:
    newest = _read(connection, index, expression)
    having: float = len(newest)
    if having == read_max(index.last):
        # As many in all as if they lay as densely before as among the newest.
        having = min(index.entries, having * index.last / max(1, index.last - newest[-1] + 1))
    return Posting(having, number, in_heading, newest)


def _read(connection: sqlite3.Connection, index: Index, expression: str) -> list[int]:
    (entries,) = connection.execute(_READ, (index.theirs(expression), read_max(index.last))).fetchone()
    return json.loads(entries)


# Vectors of entries: finding missing ones, and storing them. They lie in the database as float32 of length 1.


def claim(connection: sqlite3.Connection, name: str, dimensions: int, *, anew: bool) -> None:
    """Record whose vectors these are. Errors: `Invalid` when another embedder is recorded, unless `anew` drops its
    vectors.
    """
    found = connection.execute("SELECT name, dimensions FROM memory_embedder").fetchone()
    if found == (name, dimensions):
        return
    if found is not None and not anew:
        raise Invalid(
            "the vectors in this memory were made by another embedder: use that one, or call embed(anew=True)",
            embedder=name,
            dimensions=dimensions,
            stored=found[0],
            stored_dimensions=found[1],
        )
    connection.execute("DELETE FROM memory_vectors")
    connection.execute("DELETE FROM memory_embedder")
    connection.execute("INSERT INTO memory_embedder (name, dimensions) VALUES (?, ?)", (name, dimensions))
    # Processes that have the old vectors in memory notice by this number.
    connection.execute("UPDATE memory_format SET erasures = erasures + 1")


def pending(connection: sqlite3.Connection, scope: str, limit: int) -> list[Pending]:
    """The oldest entries of the scope that are newer than all entries with a vector: vectors are made in order."""
    rows = connection.execute(
        "SELECT entries.id, trim(heading || ' ' || content) FROM memory_entries AS entries"
        " WHERE scope = (SELECT id FROM memory_scopes WHERE name = ?) AND entries.id > coalesce((SELECT max(entry)"
        " FROM memory_vectors WHERE scope = (SELECT id FROM memory_scopes WHERE name = ?)), 0)"
        " ORDER BY entries.id LIMIT ?",
        (scope, scope, limit),
    )
    return [Pending(*row) for row in rows]


def store(connection: sqlite3.Connection, made: Iterable[tuple[int, bytes]]) -> None:
    """Store vectors of entries; vectors of entries that were forgotten meanwhile are dropped."""
    connection.executemany(
        "INSERT OR REPLACE INTO memory_vectors (entry, scope, vector)"
        " SELECT id, scope, ? FROM memory_entries WHERE id = ?",
        ((vector, entry) for entry, vector in made),
    )


class ScopeVectors:
    """All vectors of a scope, in memory. Follows what this and other processes add and erase."""

    def __init__(self, connection: sqlite3.Connection, scope: str) -> None:
        self._connection = connection
        self._scope = scope
        self._matrix = VectorMatrix()

    def likeness(self, vector: bytes) -> Likeness | None:
        """The similarity of each entry to that vector; None when no entry has a vector. Call within a transaction."""
        (erasures,) = self._connection.execute("SELECT erasures FROM memory_format").fetchone()
        self._matrix.begin(erasures)
        rows = self._connection.execute(
            "SELECT entry, vector FROM memory_vectors WHERE scope = (SELECT id FROM memory_scopes WHERE name = ?)"
            " AND entry > ? AND length(vector) = ? ORDER BY entry",
            (self._scope, self._matrix.last, len(vector)),
        ).fetchall()
        self._matrix.extend([entry for entry, _ in rows], b"".join([made for _, made in rows]))
        return self._matrix.likeness(vector)
