"""Object stores in memory that count what is asked of them, and may take as long as a bucket does."""

from __future__ import annotations

import os
import random
import time

from repertory import InMemoryStorage
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import ObjectStore, SessionStore
from repertory.backends.sessions.documents.bucket_store import BucketSessionStore
from repertory.backends.sessions.documents.reading import BESIDE_TREE
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.testing.counting_objects import CountingObjectStore

LATENCY_S = 0.05
"""About what a request to a bucket takes."""
_WORDS = ["".join(random.Random(seed).choices("etaoinshrdlucmfwypvbgkjqxz", k=2 + seed % 8)) for seed in range(2000)]


class Counted(InMemoryStorage):
    """A storage for journals: memory, with everything counted that is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.latency_s = 0.0
        self.last: CountingObjectStore | None = None

    def open_objects(self, writer: str) -> ObjectStore:
        self.last = CountingObjectStore(super().open_objects(writer), latency_s=self.latency_s)
        return self.last

    @property
    def count(self) -> CountingObjectStore:
        """What was opened last."""
        assert self.last is not None
        return self.last


class CountedDocuments:
    """Sessions in the documented layout, as `S3SessionManager` keeps them, in memory and counted."""

    key = "counted documents"

    def __init__(self) -> None:
        self._shelf = ObjectShelf(time.time)
        self.latency_s = 0.0
        self.last: CountingObjectStore | None = None

    def open_store(self) -> SessionStore:
        self.last = CountingObjectStore(MemoryObjectStore(self._shelf), latency_s=self.latency_s)
        life = TimeToLive(time.time, 10.0)
        journals = ObjectSessionStore(self.last, owner=os.urandom(8).hex(), life=life, layout=BESIDE_TREE)
        return BucketSessionStore(journals, self.last, wall=time.time, entropy=os.urandom)

    @property
    def count(self) -> CountingObjectStore:
        """What was opened last."""
        assert self.last is not None
        return self.last


def said(rng: random.Random, size_bytes: int) -> str:
    """So many bytes of words."""
    words = ""
    while len(words) < size_bytes:
        words += f"{rng.choice(_WORDS)} "
    return words[:size_bytes]
