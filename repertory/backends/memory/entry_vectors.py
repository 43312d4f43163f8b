"""The vectors of a store that has an embedder: made behind the writes, and asked for a question."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from repertory.backends.memory.embedding_thread import EmbeddingThread
from repertory.errors import Failed, RepertoryError

if TYPE_CHECKING:
    from repertory.backends.memory.embedder import Embedder
    from repertory.backends.memory.opened_once import OpenedOnce
    from repertory.backends.memory.sqlite_database import MemoryDatabase

AT_ONCE = 64
"""Texts that the embedder is given together, between two commits."""

_log = logging.getLogger("repertory.memory")


class EntryVectors:
    """Vectors in one database, from its first use to its closing."""

    def __init__(self, embedder: Embedder, opened: OpenedOnce, name: str) -> None:
        """Errors: `ImportError` when numpy is missing."""
        if find_spec("numpy") is None:
            msg = "searching by vectors needs numpy: pip install 'repertory[vectors]'"
            raise ImportError(msg)
        self._embedder = embedder
        self._opened = opened
        self._claimed = False
        self._thread = EmbeddingThread(self._make_some_apart, f"repertory {name} vectors")

    def wake(self) -> None:
        """Something was written."""
        self._thread.wake()

    async def question(self, query: str) -> bytes | None:
        """The vector of a question; None when the embedder fails: then words are left. Errors: `Invalid` when the
        vectors are another embedder's.
        """
        if not query.strip():
            return None
        await self._claim(anew=False)
        try:
            (vector,) = await self._packed(await self._embed([query]), 1)
        except RepertoryError as error:
            _log.warning("a question could not be embedded; it is searched by its words alone: %s", error)
            return None
        return vector

    async def make_all(self, *, anew: bool) -> None:
        """Make what is missing, or everything. Errors: `Invalid`, `Failed`, and those of the database."""
        await self._claim(anew=anew)
        while await self._make_some():
            pass

    async def aclose(self) -> None:
        """End the thread; what it has not made is made after the next write."""
        await self._thread.aclose()

    async def _make_some(self) -> bool:
        """Make the vectors of a few entries. Whether there were any."""
        await self._claim(anew=False)
        entries = await self._opened.run_if_there(lambda database: database.pending_vectors(AT_ONCE), [])
        if not entries:
            return False
        vectors = await self._packed(await self._embed([entry.text for entry in entries]), len(entries))
        made = [(entry.entry, vector) for entry, vector in zip(entries, vectors, strict=True)]
        await self._opened.run(lambda database: database.store_vectors(made))
        return True

    async def _make_some_apart(self) -> bool:
        """The same in a loop that ends when there is no more."""
        goes_on = await self._make_some()
        aclose = getattr(self._embedder, "aclose", None)
        if not goes_on and aclose is not None:
            await aclose()
        return goes_on

    async def _embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        try:
            return await self._embedder.embed(texts)
        except RepertoryError:
            raise
        except Exception as error:
            raise Failed("the embedder failed", embedder=self._embedder.name, texts=len(texts)) from error

    async def _packed(self, vectors: Sequence[Sequence[float]], texts: int) -> list[bytes]:
        """On the thread, since numpy is loaded there."""

        def packed(database: MemoryDatabase) -> list[bytes]:
            return database.packed_vectors(vectors, texts, self._embedder.dimensions)

        return await self._opened.run_if_there(packed, [b""] * texts)

    async def _claim(self, *, anew: bool) -> None:
        """Once is enough, when there is something to claim."""
        if anew or not self._claimed:
            name, dimensions = self._embedder.name, self._embedder.dimensions

            def claim(database: MemoryDatabase) -> bool:
                database.claim_vectors(name, dimensions, anew=anew)
                return True

            self._claimed = await self._opened.run_if_there(claim, False)
