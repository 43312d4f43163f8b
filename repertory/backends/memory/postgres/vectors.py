"""Vectors in PostgreSQL: stored as arrays of numbers, which the server has, and compared by what there is.

Where the extension pgvector is in the database, the server compares them, all of the scope, exactly. Where it is not,
they are compared here, as in the embedded memory: all vectors of the scope lie in the memory of the process. Whoever
opens the store finds out; what is stored is the same, so an extension that comes later is used from then on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Final, cast

from repertory.backends.memory.postgres.entries import lock_scope
from repertory.backends.memory.postgres.recall import Similar
from repertory.backends.memory.postgres.schema import PARTS, part_names, part_of
from repertory.backends.memory.vectors import ALIKE_MAX, Likeness, Pending, VectorMatrix
from repertory.backends.postgres.pool import RunStatement
from repertory.backends.postgres.values import float4_bytes, float4s, int8s
from repertory.backends.worker_threads import run_in_thread
from repertory.errors import Invalid
from repertory.forking import forget_in_children

_COMPARED_DIMENSIONS_MOST: Final = 16_000
"""The most dimensions of a vector that the extension takes."""
_READ_AT_ONCE: Final = 1000
"""The number of vectors that a statement reads."""


async def claim_vectors(run: RunStatement, schema: str, name: str, dimensions: int, *, anew: bool) -> None:
    """Record whose vectors these are, within a transaction. Errors: `Invalid` when another embedder is recorded, unless
    `anew` drops its vectors, those of every scope.
    """
    embedder = f"{schema}.memory_embedder"
    found = await run(f"SELECT name, dimensions FROM {embedder}")
    if found == [(name, dimensions)]:
        return
    # Two processes that start with different embedders at the same moment must not both be recorded.
    await run(f"LOCK TABLE {embedder} IN SHARE ROW EXCLUSIVE MODE")
    found = await run(f"SELECT name, dimensions FROM {embedder}")  # Another process may have been faster.
    if found == [(name, dimensions)]:
        return
    if found and not anew:
        raise Invalid(
            "the vectors in this memory were made by another embedder: use that one, or call embed(anew=True)",
            embedder=name,
            dimensions=dimensions,
            stored=found[0][0],
            stored_dimensions=found[0][1],
        )
    # In the order in which others lock them.
    await run(f"SELECT id FROM {schema}.memory_scopes ORDER BY name FOR NO KEY UPDATE")
    for number in range(PARTS):
        await run(f"DELETE FROM {part_names(schema, number).vectors}")
    await run(f"DELETE FROM {embedder}")
    await run(f"INSERT INTO {embedder} (name, dimensions) VALUES ($1::text, $2::integer)", name, dimensions)
    await run(f"UPDATE {schema}.memory_scopes SET erasures = erasures + 1")


async def pending_vectors(run: RunStatement, schema: str, scope: str, limit: int) -> list[Pending]:
    """The oldest entries of the scope that are newer than all entries with a vector: vectors are made in order."""
    names = part_names(schema, part_of(scope))
    lines = await run(
        f"SELECT e.id, e.heading, e.content FROM {schema}.memory_scopes AS s JOIN {names.entries} AS e"
        f" ON e.scope = s.id AND e.id > coalesce((SELECT max(v.entry) FROM {names.vectors} AS v WHERE v.scope = s.id),"
        " 0) WHERE s.name = $1::text ORDER BY e.id LIMIT $2::bigint",
        scope,
        limit,
    )
    return [
        Pending(key, f"{heading} {content.decode()}".strip())
        for key, heading, content in cast("list[tuple[int, str, bytes]]", lines)
    ]


async def store_vectors(
    run: RunStatement, schema: str, scope: str, made: Sequence[tuple[int, bytes]], dimensions: int
) -> None:
    """Store vectors of entries, within a transaction. Those of entries that were forgotten meanwhile are dropped, and
    all of them if the vectors are another embedder's by now.
    """
    held = await lock_scope(run, schema, scope, create=False)
    if held is None:
        return
    names = part_names(schema, part_of(scope))
    await run(
        f"INSERT INTO {names.vectors} (scope, entry, vector) SELECT e.scope, e.id,"
        " ($3::real[])[(g.n - 1) * $4::bigint + 1 : g.n * $4::bigint] FROM unnest($2::bigint[]) WITH ORDINALITY"
        f" AS g (entry, n) JOIN {names.entries} AS e ON e.scope = $1::bigint AND e.id = g.entry"
        f" WHERE EXISTS (SELECT 1 FROM {schema}.memory_embedder WHERE dimensions = $4::bigint)"
        " ON CONFLICT (scope, entry) DO UPDATE SET vector = excluded.vector",
        held.id,
        int8s([entry for entry, _ in made]),
        float4s(b"".join(vector for _, vector in made)),
        dimensions,
    )


async def extension(run: RunStatement) -> str | None:
    """The schema of pgvector in this database, as SQL names it; None where it is not."""
    found = await run(
        "SELECT quote_ident(n.nspname) FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace"
        " WHERE e.extname = 'vector'"
    )
    return str(found[0][0]) if found else None


class ScopeSimilarity:
    """The similarity of a scope's entries to questions."""

    def __init__(self, schema: str, scope: str) -> None:
        self._schema = schema
        self._scope = scope
        self._vectors = part_names(schema, part_of(scope)).vectors
        self._looked = False
        self._extension: str | None = None
        self._matrix = VectorMatrix()
        self._guard = threading.Lock()
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Release the matrix, in a forked child: the thread of the parent that may have held it is not here."""
        self._guard, self._matrix = threading.Lock(), VectorMatrix()

    async def to(self, run: RunStatement, vector: bytes) -> Similar | None:
        """The similarity of entries to a vector; None when no entry has a vector."""
        if not self._looked:
            self._extension = await extension(run)
            self._looked = True
        if self._extension is not None and len(vector) // 4 <= _COMPARED_DIMENSIONS_MOST:
            return await self._on_the_server(run, self._extension, vector)
        return await self._here(run, vector)

    async def _on_the_server(self, run: RunStatement, schema: str, vector: bytes) -> Similar | None:
        wanted = f"$2::real[]::{schema}.vector"
        distance = f"v.vector::{schema}.vector OPERATOR({schema}.<#>) {wanted}"
        lines = await run(
            f"SELECT v.entry FROM {self._vectors} AS v WHERE v.scope ="
            f" (SELECT id FROM {self._schema}.memory_scopes WHERE name = $1::text) ORDER BY {distance}, v.entry"
            f" LIMIT {ALIKE_MAX}",
            self._scope,
            float4s(vector),
        )
        best = [cast("int", entry) for (entry,) in lines]
        statement = (
            f"SELECT f.* FROM unnest($3::bigint[]) AS w (entry) CROSS JOIN LATERAL (SELECT v.entry, -({distance})"
            f" FROM {self._vectors} AS v WHERE v.scope = (SELECT id FROM {self._schema}.memory_scopes"
            " WHERE name = $1::text) AND v.entry = w.entry OFFSET 0) AS f"
        )
        return _OnTheServer(run, statement, self._scope, vector, best) if best else None

    async def _here(self, run: RunStatement, vector: bytes) -> Similar | None:
        lines = await run(f"SELECT erasures FROM {self._schema}.memory_scopes WHERE name = $1::text", self._scope)
        if not lines:
            return None
        erasures, more = cast("int", lines[0][0]), True
        while more:
            with self._guard:
                if erasures > self._matrix.erasures:
                    self._matrix.begin(erasures)
                last = self._matrix.last
            lines = await run(
                f"SELECT v.entry, v.vector FROM {self._vectors} AS v WHERE v.scope = (SELECT id FROM"
                f" {self._schema}.memory_scopes WHERE name = $1::text) AND v.entry > $2::bigint"
                f" AND array_length(v.vector, 1) = $3::bigint ORDER BY v.entry LIMIT {_READ_AT_ONCE}",
                self._scope,
                last,
                len(vector) // 4,
            )
            read = cast("list[tuple[int, bytes]]", lines)
            taken = not read or await run_in_thread(lambda read=read: self._take(erasures, read))
            more = taken and len(lines) == _READ_AT_ONCE
        likeness = await run_in_thread(lambda: self._likeness(vector))
        return None if likeness is None else _Here(likeness)

    # In a thread, since numpy may be loaded, and has much to do. Several event loops may use one store.

    def _take(self, erasures: int, lines: Sequence[tuple[int, bytes]]) -> bool:
        """False if vectors were erased since these were read."""
        made = [(entry, float4_bytes(vector)) for entry, vector in lines]
        with self._guard:
            if self._matrix.erasures != erasures:
                return False
            # Another event loop of this process may have taken the same vectors in meanwhile.
            fresh = [(entry, vector) for entry, vector in made if entry > self._matrix.last]
            self._matrix.extend([entry for entry, _ in fresh], b"".join(vector for _, vector in fresh))
            return True

    def _likeness(self, vector: bytes) -> Likeness | None:
        with self._guard:
            return self._matrix.likeness(vector)


class _Here:
    def __init__(self, likeness: Likeness) -> None:
        self._likeness = likeness
        self.best: Sequence[int] = likeness.best

    async def of(self, entries: Iterable[int]) -> dict[int, float]:
        return self._likeness.of(entries)


class _OnTheServer:
    def __init__(self, run: RunStatement, statement: str, scope: str, vector: bytes, best: Sequence[int]) -> None:
        self._run = run
        self._statement = statement
        self._scope = scope
        self._vector = vector
        self.best = best

    async def of(self, entries: Iterable[int]) -> dict[int, float]:
        lines = await self._run(self._statement, self._scope, float4s(self._vector), int8s(list(entries)))
        return dict(cast("list[tuple[int, float]]", lines))
