"""Vectors of entries: making them behind the writes, and comparing them in memory.

All vectors of a scope lie in memory as one matrix of float32 while they are searched: 384 numbers of 100,000 entries
take 150 MB. numpy is loaded with the first of them. Products are `einsum` and not `@`, whose threads go on spinning
beside an event loop and cost more than they save for a single question.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from repertory.backends.worker_threads import start_thread
from repertory.core.retry import foreign_errors
from repertory.errors import Failed, RepertoryError, StoreUnavailable
from repertory.forking import forget_in_children
from repertory.logs import WARNING, note

if TYPE_CHECKING:
    from repertory.backends.memory_ports import Embedder

ALIKE_MAX = 50
"""The most candidates by similarity."""
EXACT_MAX = 1000
"""Entries that are compared exactly. If there are more, a sketch selects them: the vectors projected on fewer random
directions, which is several times as fast and rarely misses very similar ones.
"""
SKETCH_DIMENSIONS = 96
_LOOK_S = 0.05
AT_ONCE = 64
"""The number of texts that the embedder receives together, between two commits."""

_log = logging.getLogger("repertory.memory")


class Pending(NamedTuple):
    """An entry without a vector."""

    entry: int
    text: str


def pack_vectors(vectors: Sequence[Sequence[float]], texts: int, dimensions: int) -> list[bytes]:
    """Vectors in stored form. Errors: `Failed` when the embedder returned a wrong number or shape."""
    np: Any = import_module("numpy")

    try:
        matrix: Any = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise Failed("the embedder gave no vectors", cause=str(error)) from error
    if matrix.shape != (texts, dimensions) or not np.isfinite(matrix).all():
        raise Failed("the embedder gave no vectors of its dimensions", shape=matrix.shape, wanted=(texts, dimensions))
    # Of length 1, so that a product of two is their cosine.
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    return [row.tobytes() for row in matrix / np.maximum(lengths, 1e-12)]


class VectorMatrix:
    """The vectors of one scope. Its owner reads them from the database."""

    def __init__(self) -> None:
        self.erasures = -1
        self._entries: list[int] = []
        self._places: dict[int, int] = {}
        self._matrix: Any = None
        self._sketch: Any = None
        self._projection: Any = None

    @property
    def last(self) -> int:
        """The newest entry whose vector is known."""
        return self._entries[-1] if self._entries else 0

    def begin(self, erasures: int) -> None:
        """Forget all vectors if some were erased since: `erasures` counts that."""
        if erasures != self.erasures:
            self._matrix = self._sketch = None
            self.erasures, self._entries, self._places = erasures, [], {}

    def extend(self, entries: Sequence[int], vectors: bytes) -> None:
        """Take in the vectors of these entries, which are newer than the last."""
        if not entries:
            return
        np: Any = import_module("numpy")
        start = len(self._entries)
        fresh: Any = np.frombuffer(vectors, dtype=np.float32).reshape(len(entries), -1)
        if self._projection is None or len(self._projection) != fresh.shape[1]:
            # The same directions in every process, so that a search finds the same everywhere.
            chosen: Any = np.random.default_rng(0).normal(size=(fresh.shape[1], SKETCH_DIMENSIONS))
            self._projection = (chosen / SKETCH_DIMENSIONS**0.5).astype(np.float32)
        self._matrix = _extended(self._matrix, start, fresh)
        self._sketch = _extended(self._sketch, start, fresh @ self._projection)
        self._entries += entries
        self._places.update(zip(self._entries[start:], range(start, len(self._entries)), strict=True))

    def likeness(self, vector: bytes) -> Likeness | None:
        """The similarity of each entry to that vector; None when no entry has a vector."""
        np: Any = import_module("numpy")

        if self._matrix is None or not self._entries:
            return None
        wanted: Any = np.frombuffer(vector, dtype=np.float32)
        count = len(self._entries)
        exact: Sequence[int] = range(count)
        if count > EXACT_MAX:
            rough: Any = np.einsum("ij,j->i", self._sketch[:count], wanted @ self._projection)
            # A partition and not a sort: the order of the thousand is found out exactly afterwards.
            exact = np.argpartition(-rough, EXACT_MAX)[:EXACT_MAX]
            values: Any = np.einsum("ij,j->i", self._matrix[exact], wanted)
        else:
            values = np.einsum("ij,j->i", self._matrix[:count], wanted)
        places: list[int] = np.argsort(-values)[:ALIKE_MAX].tolist()
        best = [self._entries[int(exact[index])] for index in places]
        return Likeness(self._matrix, wanted, self._places, best)


class Likeness:
    """The similarity of entries to a query, from -1 to 1."""

    def __init__(self, matrix: Any, wanted: Any, places: dict[int, int], best: list[int]) -> None:
        self._matrix = matrix
        self._wanted = wanted
        self._places = places
        self.best = best
        """The most similar entries, best first."""

    def of(self, entries: Iterable[int]) -> dict[int, float]:
        """The similarities of these entries, without those that have no vector."""
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
        # Doubled, so that adding one entry at a time copies each row once on the average.
        grown: Any = np.empty((max(1024, 2 * start, end), fresh.shape[1]), dtype=np.float32)
        if matrix is not None:
            grown[:start] = matrix[:start]
        matrix = grown
    matrix[start:end] = fresh
    return matrix


# Making vectors in the background: a thread with an event loop that runs while there is work.
#
# A write wakes it and does not wait for it. Work left when the process ends is done after the next write.


class BackgroundThread:
    """Calls `work` until nothing is left, in a thread that exists only meanwhile."""

    def __init__(self, work: Callable[[], Awaitable[bool]], name: str, *, failed: str) -> None:
        """`work` does one piece and returns True if there was one. `failed`: what is logged when it raises an error of
        ours, which ends the thread.
        """
        self._work = work
        self._name = name
        self._failed = failed
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._woken = False
        self._closing = False
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Forget the thread, in a forked child. The parent's thread does the pending work."""
        self._guard, self._thread, self._woken = threading.Lock(), None, False

    async def pause(self, for_s: float) -> bool:
        """Within the work: wait so long, or until the thread is to end. Returns whether it goes on."""
        # In small steps, so that closing the store waits for one of them at most.
        for _ in range(round(for_s / _LOOK_S)):
            if self._closing:
                break
            await anyio.sleep(_LOOK_S)
        return not self._closing

    def wake(self) -> None:
        """Start the thread if needed: there may be work. If it cannot start, the next call tries again."""
        with self._guard:
            self._woken = True
            # Under the guard, and asked by the thread under the same: work that comes as it ends is not left lying.
            if (self._thread is None or not self._thread.is_alive()) and not self._closing:
                try:
                    self._thread = start_thread(self._main, name=self._name)
                except StoreUnavailable as error:  # What was written is stored all the same.
                    note(_log, WARNING, self._failed, error)

    async def aclose(self) -> None:
        """Finish the running piece and no more. Returns when the thread is gone."""
        with self._guard:
            self._closing = True
            thread = self._thread
        with anyio.CancelScope(shield=True):
            while thread is not None and thread.is_alive():
                await checkpoint()

    def _main(self) -> None:
        try:
            with foreign_errors():
                anyio.run(self._run)
        except RepertoryError as error:
            note(_log, WARNING, self._failed, error)
            with self._guard:
                self._thread = None

    async def _run(self) -> None:
        while self._goes_on():
            while not self._closing and await self._work():
                pass

    def _goes_on(self) -> bool:
        """True if `wake` was called meanwhile. Otherwise the thread counts as gone."""
        with self._guard:
            if not self._woken or self._closing:
                self._thread = None
                return False
            self._woken = False
            return True


class VectorTables(ABC):
    """The tables with the vectors of a store's entries."""

    @abstractmethod
    async def claim(self, name: str, dimensions: int, *, anew: bool) -> bool:
        """Record the embedder of the vectors; False if there are no tables yet. Errors: `Invalid` when another one is
        recorded, unless `anew` drops its vectors.
        """

    @abstractmethod
    async def pending(self, limit: int) -> list[Pending]:
        """The oldest entries that are newer than all entries with a vector: vectors are made in order."""

    @abstractmethod
    async def packed(self, vectors: Sequence[Sequence[float]], texts: int, dimensions: int) -> list[bytes]:
        """Vectors in stored form, off the event loop. Errors: `Failed` for a wrong number or shape."""

    @abstractmethod
    async def store(self, made: Sequence[tuple[int, bytes]]) -> None:
        """Store vectors of entries. Those of entries that were forgotten meanwhile are dropped."""

    @abstractmethod
    async def rest(self) -> None:
        """Called in the background thread's loop before it ends: close what belongs to that loop."""


class EntryVectors:
    def __init__(self, embedder: Embedder, tables: VectorTables, name: str) -> None:
        """Errors: `ImportError` when numpy is missing."""
        if find_spec("numpy") is None:
            msg = "searching by vectors needs numpy: pip install 'repertory[vectors]'"
            raise ImportError(msg)
        self._embedder = embedder
        self._tables = tables
        self._claimed = False
        self._thread = BackgroundThread(
            self._make_some_apart,
            f"repertory {name} vectors",
            failed="vectors could not be made; texts are found by their words alone",
        )

    def wake(self) -> None:
        self._thread.wake()

    async def question(self, query: str) -> bytes | None:
        """The vector of a query; None when the embedder fails: then only words are searched. Errors: `Invalid` when the
        vectors are another embedder's.
        """
        if not query.strip():
            return None
        await self._claim(anew=False)
        try:
            (vector,) = await self._packed(await self._embed([query]), 1)
        except RepertoryError as error:
            note(_log, WARNING, "a question could not be embedded; it is searched by its words alone", error)
            return None
        return vector

    async def make_all(self, *, anew: bool) -> None:
        """Make the missing vectors, or all. Errors: `Invalid`, `Failed`, and those of the database."""
        await self._claim(anew=anew)
        while await self._make_some():
            pass

    async def aclose(self) -> None:
        """End the thread; vectors that are still missing are made after the next write."""
        await self._thread.aclose()

    async def _make_some(self) -> bool:
        """Make the vectors of a few entries. False if there were none."""
        await self._claim(anew=False)
        entries = await self._tables.pending(AT_ONCE)
        if not entries:
            return False
        vectors = await self._packed(await self._embed([entry.text for entry in entries]), len(entries))
        made = [(entry.entry, vector) for entry, vector in zip(entries, vectors, strict=True)]
        await self._tables.store(made)
        return True

    async def _make_some_apart(self) -> bool:
        """The same in the thread's event loop, which ends when nothing is left."""
        goes_on = False
        try:
            goes_on = await self._make_some()
        finally:
            if not goes_on:
                await self._rest()
        return goes_on

    async def _rest(self) -> None:
        await self._tables.rest()
        aclose = getattr(self._embedder, "aclose", None)
        if aclose is not None:
            await aclose()

    async def _embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        try:
            return await self._embedder.embed(texts)
        except RepertoryError:
            raise
        except Exception as error:
            raise Failed("the embedder failed", embedder=self._embedder.name, texts=len(texts)) from error

    async def _packed(self, vectors: Sequence[Sequence[float]], texts: int) -> list[bytes]:
        return await self._tables.packed(vectors, texts, self._embedder.dimensions)

    async def _claim(self, *, anew: bool) -> None:
        """Claims once, when the database exists."""
        if anew or not self._claimed:
            self._claimed = await self._tables.claim(self._embedder.name, self._embedder.dimensions, anew=anew)
