"""Vectors of entries: which are missing, storing them, and finding those that point the same way.

They lie in the database as float32 of length 1, and all of a scope in memory as one matrix while they are searched:
384 numbers of 100,000 entries take 150 MB. numpy is loaded with the first of them. Products are `einsum` and not `@`,
whose threads go on spinning beside an event loop and cost more than they save for a single question.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from repertory.errors import Failed, Invalid

ALIKE_MAX = 50
"""Entries that come into question for being alike."""
EXACT_MAX = 1000
"""Entries that are compared exactly. Of more, those are that are alike in a sketch: their vectors seen from fewer
directions, chosen at random, which is several times as quick and seldom misses what is much alike."""
SKETCH_DIMENSIONS = 96


class Pending(NamedTuple):
    """An entry without a vector."""

    entry: int
    text: str


def claim(connection: sqlite3.Connection, name: str, dimensions: int, *, anew: bool) -> None:
    """Note whose vectors these are. Errors: `Invalid` when they are another's, unless `anew` drops those."""
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
    connection.execute("UPDATE memory_format SET erasures = erasures + 1")


def pending(connection: sqlite3.Connection, scope: str, limit: int) -> list[Pending]:
    """The oldest entries of the scope that are newer than all that have a vector: vectors are made in order."""
    rows = connection.execute(
        "SELECT entries.id, trim(heading || ' ' || content) FROM memory_entries AS entries"
        " WHERE scope = (SELECT id FROM memory_scopes WHERE name = ?1) AND entries.id > coalesce((SELECT max(entry)"
        " FROM memory_vectors WHERE scope = (SELECT id FROM memory_scopes WHERE name = ?1)), 0)"
        " ORDER BY entries.id LIMIT ?2",
        (scope, limit),
    )
    return [Pending(*row) for row in rows]


def store(connection: sqlite3.Connection, made: Iterable[tuple[int, bytes]]) -> None:
    """Store vectors of entries; those of which the entry was forgotten meanwhile are dropped."""
    connection.executemany(
        "INSERT OR REPLACE INTO memory_vectors (entry, scope, vector)"
        " SELECT id, scope, ?2 FROM memory_entries WHERE id = ?1",
        made,
    )


def packed(vectors: Sequence[Sequence[float]], texts: int, dimensions: int) -> list[bytes]:
    """Vectors as they are stored. Errors: `Failed` when the embedder gave others than were asked for."""
    np: Any = import_module("numpy")

    try:
        matrix: Any = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise Failed("the embedder gave no vectors", cause=str(error)) from error
    if matrix.shape != (texts, dimensions) or not np.isfinite(matrix).all():
        raise Failed("the embedder gave no vectors of its dimensions", shape=matrix.shape, wanted=(texts, dimensions))
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    return [row.tobytes() for row in matrix / np.maximum(lengths, 1e-12)]


class VectorMatrix:
    """All vectors of a scope, in memory. Follows what this and other processes add and erase."""

    def __init__(self, connection: sqlite3.Connection, scope: str) -> None:
        self._connection = connection
        self._scope = scope
        self._erasures = -1
        self._entries: list[int] = []
        self._places: dict[int, int] = {}
        self._matrix: Any = None
        self._sketch: Any = None
        self._projection: Any = None

    def likeness(self, vector: bytes) -> Likeness | None:
        """How alike each entry is to that vector; None when none has a vector. Within a transaction."""
        np: Any = import_module("numpy")

        self._catch_up(len(vector))
        if self._matrix is None or not self._entries:
            return None
        wanted: Any = np.frombuffer(vector, dtype=np.float32)
        count = len(self._entries)
        exact: Sequence[int] = range(count)
        if count > EXACT_MAX:
            rough: Any = np.einsum("ij,j->i", self._sketch[:count], wanted @ self._projection)
            exact = np.argpartition(-rough, EXACT_MAX)[:EXACT_MAX]
            values: Any = np.einsum("ij,j->i", self._matrix[exact], wanted)
        else:
            values = np.einsum("ij,j->i", self._matrix[:count], wanted)
        places: list[int] = np.argsort(-values)[:ALIKE_MAX].tolist()
        best = [self._entries[int(exact[place])] for place in places]
        return Likeness(self._matrix, wanted, self._places, best)

    def _catch_up(self, row_bytes: int) -> None:
        np: Any = import_module("numpy")

        (erasures,) = self._connection.execute("SELECT erasures FROM memory_format").fetchone()
        if erasures != self._erasures:
            self._matrix = self._sketch = None
            self._erasures, self._entries, self._places = erasures, [], {}
        rows = self._connection.execute(
            "SELECT entry, vector FROM memory_vectors WHERE scope = (SELECT id FROM memory_scopes WHERE name = ?)"
            " AND entry > ? AND length(vector) = ? ORDER BY entry",
            (self._scope, self._entries[-1] if self._entries else 0, row_bytes),
        ).fetchall()
        if not rows:
            return
        start = len(self._entries)
        fresh: Any = np.frombuffer(b"".join([vector for _, vector in rows]), dtype=np.float32)
        fresh = fresh.reshape(len(rows), -1)
        if self._projection is None or len(self._projection) != fresh.shape[1]:
            chosen: Any = np.random.default_rng(0).normal(size=(fresh.shape[1], SKETCH_DIMENSIONS))
            self._projection = (chosen / SKETCH_DIMENSIONS**0.5).astype(np.float32)
        self._matrix = _extended(self._matrix, start, fresh)
        self._sketch = _extended(self._sketch, start, fresh @ self._projection)
        self._entries += [entry for entry, _ in rows]
        self._places.update(zip(self._entries[start:], range(start, len(self._entries)), strict=True))


class Likeness:
    """How alike entries are to a question, from -1 to 1."""

    def __init__(self, matrix: Any, wanted: Any, places: dict[int, int], best: list[int]) -> None:
        self._matrix = matrix
        self._wanted = wanted
        self._places = places
        self.best = best
        """The entries that are most alike, the most first."""

    def of(self, entries: Iterable[int]) -> dict[int, float]:
        """Of these, as far as they have vectors."""
        known = [entry for entry in entries if entry in self._places]
        if not known:
            return {}
        np: Any = import_module("numpy")
        values: Any = np.einsum("ij,j->i", self._matrix[[self._places[entry] for entry in known]], self._wanted)
        return dict(zip(known, map(float, values), strict=True))


def _extended(matrix: Any, start: int, fresh: Any) -> Any:
    """The matrix with more rows from `start` on, in place while there is room."""
    np: Any = import_module("numpy")
    end = start + len(fresh)
    if matrix is None or end > len(matrix):
        grown: Any = np.empty((max(1024, 2 * start, end), fresh.shape[1]), dtype=np.float32)
        if matrix is not None:
            grown[:start] = matrix[:start]
        matrix = grown
    matrix[start:end] = fresh
    return matrix
