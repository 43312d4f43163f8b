"""Sessions over every object store keep the contract."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import SessionStore
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.testing.counting_objects import CountingObjectStore
from repertory.testing.crash_points import CrashingObjectStore, CrashPoints
from repertory.testing.session_contract import SessionStoreContract
from tests.backends.sessions.object_places import on_files, on_objects, on_s3, on_shelf, virtual_shelf


class TestSessionsInMemory(SessionStoreContract):
    @pytest.fixture(autouse=True)
    def shelves(self) -> None:
        self._shelves: dict[Path, ObjectShelf] = {}

    def shelf(self, place: Path) -> ObjectShelf:
        if place not in self._shelves:
            self._shelves[place] = virtual_shelf()
        return self._shelves[place]

    def open_store(self, place: Path, owner: str) -> ObjectSessionStore:
        return on_shelf(self.shelf(place), owner)


class TestSessionsOverSlowAndWatchedObjects(TestSessionsInMemory):
    """Requests that take their time change nothing, nor do wrappers that only watch."""

    def open_store(self, place: Path, owner: str) -> ObjectSessionStore:
        watched = CrashingObjectStore(MemoryObjectStore(self.shelf(place)), CrashPoints(None))
        self._counting = CountingObjectStore(watched, latency_s=0.01)
        return on_objects(self._counting, owner)

    async def work_done(self, store: SessionStore) -> int:
        return self._counting.listed + self._counting.requests.total()


@pytest.mark.real_time
class TestSessionsInFiles(SessionStoreContract):
    def open_store(self, place: Path, owner: str) -> ObjectSessionStore:
        return on_files(place / "home" / "sessions", owner)


@pytest.mark.real_time
class TestSessionsInABucket(SessionStoreContract):
    @pytest.fixture(autouse=True)
    def service(self, s3_url: str, aws_keys: pytest.MonkeyPatch) -> None:
        self._url = s3_url

    def open_store(self, place: Path, owner: str) -> ObjectSessionStore:
        """A place is a prefix in the bucket, which every test shares."""
        return on_s3(self._url, sha256(str(place).encode()).hexdigest(), owner)


@pytest.mark.real_time
class TestSessionsInAnEncryptedBucket(TestSessionsInABucket):
    def open_store(self, place: Path, owner: str) -> ObjectSessionStore:
        return on_s3(self._url, sha256(str(place).encode()).hexdigest(), owner, kms_key_id="alias/sessions")
