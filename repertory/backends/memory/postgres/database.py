"""Every operation on the memories of a scope, as transactions of PostgreSQL.

A write is one transaction, which holds the line of its scope: those that write in one scope do so one after the other.
Searches wait for nobody. Connections belong to an event loop; a thread exists while there are vectors to make, or parts
to write anew in which contents were destroyed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final, cast

from anyio.lowlevel import checkpoint

from repertory.backends.loop_clients import LoopClients
from repertory.backends.memory.postgres import recall, vectors
from repertory.backends.memory.postgres.entries import ScopeEntries, lock_scope
from repertory.backends.memory.postgres.location import PostgresLocation
from repertory.backends.memory.postgres.schema import MARKS, prepare_memory
from repertory.backends.memory.ranked import EntrySource, MemoryTables
from repertory.backends.memory.vectors import BackgroundThread, Pending, pack_vectors
from repertory.backends.postgres.connection import ResultLine
from repertory.backends.postgres.erasing import LATER_S, SOON_S, Erasures
from repertory.backends.postgres.pool import Pool, RunStatement
from repertory.backends.postgres.tables import check_schema
from repertory.backends.postgres.values import Parameter
from repertory.backends.shields import Uncut
from repertory.backends.worker_threads import run_in_thread
from repertory.core.memory.options import MemoryEntry
from repertory.core.recall.candidates import Query
from repertory.core.recall.entries import Saying
from repertory.errors import NotFound, RepertoryError

CLOSE_S: Final = 10.0


class PostgresTables(MemoryTables):
    """The tables of one scope. May be used from several event loops."""

    def __init__(self, location: PostgresLocation, scope: str) -> None:
        self._location = location
        self._schema = check_schema(location.schema)
        self._scope = scope
        self._pools = LoopClients(self._pool)
        self._similarity = vectors.ScopeSimilarity(self._schema, scope)
        self._dimensions = 0
        self._ready = False
        self._pending_work = False
        """True if contents were destroyed here that may still be in the files."""
        self._thread = self._eraser()

    async def add_turns(self, turns: Sequence[Saying], key: str | None, *, now: float) -> int:
        async with self._writing() as entries:
            if not await entries.take_key(key):
                return 0
            stored = await entries.insert_turns(turns, now=now)
        return len(stored)

    async def add(self, saying: Saying, sources: Sequence[EntrySource], key: str | None, *, now: float) -> str | None:
        async with self._writing() as entries:
            if not await entries.take_key(key):
                return None
            stored = await _inserted(entries, saying, sources, now)
            return None if stored is None else await entries.id_of(stored)

    async def supersede(
        self, old: str, saying: Saying, sources: Sequence[EntrySource], key: str | None, *, now: float
    ) -> str | None:
        async with self._writing() as entries:
            if not await entries.take_key(key):
                return None
            before = await entries.keys_of(old)
            if not before:
                raise NotFound("no such memory", id=old)
            new = await _inserted(entries, saying, sources, now)
            if new is None:
                return None
            await entries.supersede(before, new, at=saying.said_at or now)
            return await entries.id_of(new)

    async def forget(self, memory_id: str) -> int:
        async def forgotten(entries: ScopeEntries, _: RunStatement) -> int:
            found = await entries.keys_of(memory_id)
            return await entries.forget_entries(found) if found else 0

        return await self._forgotten(forgotten)

    async def forget_messages(self, session_id: str, agent_id: str | None, seq: int | None) -> int:
        async def forgotten(entries: ScopeEntries, run: RunStatement) -> int:
            lines = await run(
                f"SELECT id FROM {self._schema}.memory_conversations WHERE scope = $1::bigint AND session = $2::text"
                " AND ($3::text IS NULL OR agent = $3::text)",
                entries.id,
                session_id,
                agent_id,
            )
            found = [cast("int", key) for (key,) in lines]
            return await entries.forget_turns(found, None if seq is None else [seq]) if found else 0

        return await self._forgotten(forgotten)

    async def search(self, query: Query, vector: bytes | None) -> list[MemoryEntry]:
        if not await self._begin(create=False):
            return []
        alike = None if vector is None else await self._similarity.to(self._read, vector)
        return await recall.recalled(self._read, self._schema, query, alike)

    async def page(self, after: int, limit: int) -> list[tuple[int, MemoryEntry]]:
        if not await self._begin(create=False):
            return []
        return await recall.page(self._read, self._schema, self._scope, after, limit)

    async def claim(self, name: str, dimensions: int, *, anew: bool) -> bool:
        self._dimensions = dimensions
        if not await self._begin(create=False):
            return False
        pool: Pool = await self._pools.get()
        async with pool.transaction() as run:
            await vectors.claim_vectors(run, self._schema, name, dimensions, anew=anew)
        return True

    async def pending(self, limit: int) -> list[Pending]:
        if not await self._begin(create=False):
            return []
        return await vectors.pending_vectors(self._read, self._schema, self._scope, limit)

    async def packed(self, vectors: Sequence[Sequence[float]], texts: int, dimensions: int) -> list[bytes]:
        return await run_in_thread(lambda: pack_vectors(vectors, texts, dimensions))

    async def store(self, made: Sequence[tuple[int, bytes]]) -> None:
        pool: Pool = await self._pools.get()
        async with pool.transaction() as run:
            await vectors.store_vectors(run, self._schema, self._scope, made, self._dimensions)

    async def rest(self) -> None:
        await self._pools.aclose()

    async def aclose(self) -> None:
        thread, self._thread = self._thread, self._eraser()
        await thread.aclose()
        if self._pending_work:
            with suppress(RepertoryError), Uncut(CLOSE_S):  # Whoever comes next goes on.
                await self._write_anew()
        self._ready = False  # Whoever opens it looks again, at the tables and at what is marked.
        await self._pools.aclose()
        await checkpoint()

    # Within.

    def _eraser(self) -> BackgroundThread:
        thread = BackgroundThread(
            lambda: self._write_anew_apart(thread),
            "repertory erased memories",
            failed="what was forgotten could not be written over yet; it is tried again",
        )
        return thread

    async def _pool(self, stack: AsyncExitStack) -> Pool:
        location = self._location
        pooled = location.pooled or location.direct is not None
        pool = Pool(location.address, size=location.connections, prepares=not pooled, within_s=location.timeout_s)
        stack.callback(pool.close)
        return pool

    async def _begin(self, *, create: bool) -> bool:
        """False if there are no tables, and none were to be made."""
        if not self._ready:
            self._ready = await prepare_memory(await self._pools.get(), self._schema, create=create)
            if self._ready and await self._read(f"SELECT 1 FROM {self._schema}.{MARKS.table} LIMIT 1"):
                self._thread.wake()  # What another process has left.
        return self._ready

    async def _read(self, statement: str, *parameters: Parameter) -> list[ResultLine]:
        pool: Pool = await self._pools.get()
        return await pool.run(statement, *parameters)

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[ScopeEntries]:
        """The entries of the scope, in a transaction for the length of the block."""
        await self._begin(create=True)
        pool: Pool = await self._pools.get()
        async with pool.transaction() as run:
            entries = await lock_scope(run, self._schema, self._scope, create=True)
            assert entries is not None
            yield entries

    async def _forgotten(self, work: Callable[[ScopeEntries, RunStatement], Awaitable[int]]) -> int:
        """Erase entries by `work`, and return their number; they leave the files soon after."""
        if not await self._begin(create=False):
            return 0
        pool: Pool = await self._pools.get()
        async with pool.transaction() as run:
            entries = await lock_scope(run, self._schema, self._scope, create=False)
            count = 0 if entries is None else await work(entries, run)
        if count:
            self._pending_work = True
            self._thread.wake()
        return count

    async def _write_anew(self) -> bool:
        """Write anew what is marked. True if something is left."""
        pool: Pool = await self._pools.get()
        pending = await Erasures(
            pool, self._location.direct or self._location.address, self._schema, [MARKS]
        ).write_anew()
        self._pending_work = pending
        return pending

    async def _write_anew_apart(self, thread: BackgroundThread) -> bool:
        """The same in the thread, soon after the erasure, and again while something is left."""
        try:
            # A second later, so that several erasures in a row are one rewriting.
            if await thread.pause(SOON_S) and await self._write_anew():
                return await thread.pause(LATER_S)
            return False
        finally:
            await self._pools.aclose()


async def _inserted(entries: ScopeEntries, saying: Saying, sources: Sequence[EntrySource], now: float) -> int | None:
    if saying.kind == "fact":
        return await entries.insert_fact(saying, sources, now=now)
    (key,) = await entries.insert_turns([saying], now=now)
    return key
