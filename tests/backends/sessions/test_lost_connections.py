"""Every session store that speaks over something keeps the contract of lost connections: object stores that lose
requests, a memory that loses them, a database behind a relay, a disk that fails, and one that is full.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory.backends.objects.in_memory import MemoryObjectStore
from repertory.backends.ports import Batch, ObjectStore, SessionStore, give_up
from repertory.backends.postgres.address import postgres_address
from repertory.backends.sessions.agentcore.ownership import AgentCoreSettings
from repertory.backends.sessions.agentcore.store import AgentCoreSessionStore
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import LockedFile, TimeToLive
from repertory.backends.sessions.log import log_file
from repertory.backends.sessions.postgres.store import PostgresSessionStore, PostgresSettings
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.errors import LeaseLost, SessionBusy, Unavailable
from repertory.testing.cuts import Cuts, LostWhen
from repertory.testing.cutting_objects import CuttingObjectStore
from repertory.testing.cutting_relay import cutting_relay
from repertory.testing.session_contract import grow
from repertory.testing.session_fault_contract import METHODS, BehindWire, LostConnectionContract, Wire
from tests.backends.sessions.agentcore_memory import DirectEvents, FakeMemory, Fault
from tests.backends.sessions.bucket_places import bucket_store
from tests.backends.sessions.log_places import folder_store, log_store
from tests.backends.sessions.object_places import on_objects, virtual_shelf
from tests.backends.sessions.postgres_places import postgres_store, schema_of
from tests.backends.sessions.snapshot_places import snapshots_on
from tests.postgres_server import PostgresServer

PAGES, PAGE_BYTES = 32, 4096 + 24
"""How many pages a full disk has at most, and what a page takes in the log of SQLite."""


@asynccontextmanager
async def both(store: SessionStore, observer: SessionStore, wire: Wire) -> AsyncGenerator[BehindWire]:
    try:
        yield BehindWire(store, observer, wire)
    finally:
        wire.mend()
        await store.aclose()
        await observer.aclose()


class TestJournalsOnObjects(LostConnectionContract):
    in_steps = frozenset({"append and owe", "set_aside"})

    def open_store(self, objects: ObjectStore, owner: str) -> SessionStore:
        return on_objects(objects, owner)

    @asynccontextmanager
    async def behind(self, place: Path) -> AsyncGenerator[BehindWire]:
        shelf, cuts = virtual_shelf(), Cuts()
        store = self.open_store(CuttingObjectStore(MemoryObjectStore(shelf), cuts), "cut")
        async with both(store, self.open_store(MemoryObjectStore(shelf), "observer"), cuts) as all_:
            yield all_


class TestSnapshotsOnObjects(TestJournalsOnObjects):
    def open_store(self, objects: ObjectStore, owner: str) -> SessionStore:
        return snapshots_on(objects, owner)


class TestDocumentsOnObjects(TestJournalsOnObjects):
    """Documents go out beside their commit, so an append may stop between the two."""

    in_steps = frozenset({"append", "append and owe", "append and erase", "delete", "set_aside"})

    def open_store(self, objects: ObjectStore, owner: str) -> SessionStore:
        life, clock = TimeToLive(anyio.current_time), anyio.current_time
        return bucket_store(objects, owner, life=life, wall=clock, entropy=lambda size: b"s" * size)


class TestAgentCore(LostConnectionContract):
    in_steps = frozenset({"append and erase", "delete", "set_aside"})

    @asynccontextmanager
    async def behind(self, place: Path) -> AsyncGenerator[BehindWire]:
        memory, cuts = FakeMemory(), Cuts()

        def fault(operation: str) -> Fault | None:
            cut = cuts.next()
            return None if cut is None else {"before": "refused", "after": "lost"}[cut]

        def opened(events: DirectEvents, owner: str) -> SessionStore:
            settings = AgentCoreSettings(prove_s=0.0)
            return AgentCoreSessionStore(events, owner=owner, wall=time.time, entropy=os.urandom, settings=settings)

        cut, observer = opened(DirectEvents(memory, plan=fault), "cut"), opened(DirectEvents(memory), "observer")
        async with both(cut, observer, cuts) as all_:
            yield all_


@pytest.mark.real_time
class TestPostgres(LostConnectionContract):
    @pytest.fixture(autouse=True)
    def server(self, postgres: PostgresServer, postgres_tables: None) -> None:
        self._server = postgres

    @asynccontextmanager
    async def behind(self, place: Path) -> AsyncGenerator[BehindWire]:
        schema = schema_of(place.parent)  # One for all calls: making one takes longer than a call.
        async with cutting_relay(self._server.port) as relay:
            address = postgres_address(f"host=127.0.0.1 port={relay.port} user=postgres dbname=postgres")
            store = PostgresSessionStore(address, owner="relayed", settings=PostgresSettings(schema=schema))
            async with both(store, postgres_store(place.parent, "observer", self._server), relay) as all_:
                yield all_


@pytest.mark.real_time
class TestJournalsInFiles(LostConnectionContract):
    """A disk that fails, before or after it has done what it was asked for. On one event loop: threads do the work."""

    in_steps = frozenset({"append and owe", "set_aside"})
    step = 5

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture(autouse=True)
    def disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cuts = cuts = Cuts()

        def failing(real: Callable[..., Any], *, undone: bool = False) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                cut = cuts.next()
                if cut == "before" or (cut is not None and undone):
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                result = real(*args, **kwargs)
                if cut == "after":
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return result

            return call

        for name in ("link", "rename", "pwrite"):
            monkeypatch.setattr(os, name, failing(getattr(os, name)))
        monkeypatch.setattr(os, "fsync", failing(lambda file: None))  # These processes outlive what they write.
        monkeypatch.setattr(log_file, "_sync_data", failing(lambda file: None))
        monkeypatch.setattr(os, "open", failing(os.open, undone=True))  # Nobody would close what it has opened.

    def open_store(self, folder: Path, owner: str) -> SessionStore:
        return log_store(folder, owner)

    @asynccontextmanager
    async def behind(self, place: Path) -> AsyncGenerator[BehindWire]:
        failing, observer = (self.open_store(place / "sessions", owner) for owner in ("failing", "observer"))
        async with both(failing, observer, self._cuts) as all_:
            yield all_


@pytest.mark.real_time
class TestDocumentsInFiles(TestJournalsInFiles):
    in_steps = frozenset({"append and erase", "delete", "set_aside"})

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"

    def open_store(self, folder: Path, owner: str) -> SessionStore:
        return folder_store(folder, owner, lambda size: b"s" * size)


class FullDisk:
    """A wire for a file that grows: it may have so many pages, and no more. Limits all files of this process."""

    def __init__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        self._made = False

    def plan(self, cut: LostWhen, number: int, *, stays: bool = False) -> None:
        self._made = number <= PAGES
        if self._made:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (number * PAGE_BYTES, self._before[1]))

    def mend(self) -> bool:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        return self._made


@pytest.mark.real_time
class TestSQLite(LostConnectionContract):
    """On one event loop: a thread does the work. A disk that is full is so before a write, and stays so: one cut."""

    step = 8

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"

    @asynccontextmanager
    async def behind(self, place: Path) -> AsyncGenerator[BehindWire]:
        path = place / "sessions.db"
        store, observer = (SQLiteSessionStore(path, owner=name) for name in ("one", "observer"))
        async with both(store, observer, FullDisk()) as all_:
            yield all_

    @pytest.mark.parametrize("method", METHODS)
    async def test_a_connection_that_is_lost_leaves_nothing_half_done(self, tmp_path: Path, method: str) -> None:
        await super().test_a_connection_that_is_lost_leaves_nothing_half_done(tmp_path, method, "before", True)


def journals_in(folder: Path, objects: ObjectStore, owner: str) -> SessionStore:
    return ObjectSessionStore(objects, owner=owner, life=LockedFile(folder / "owners", owner))


def documents_in(folder: Path, objects: ObjectStore, owner: str) -> SessionStore:
    return bucket_store(objects, owner, life=LockedFile(folder / "owners", owner))


async def asked_for(store: SessionStore) -> Sequence[str]:
    sharing = store.capabilities.sharing
    assert sharing is not None
    return await sharing.asked_for()


@pytest.mark.anyio
@pytest.mark.real_time
@pytest.mark.parametrize("opened", [journals_in, documents_in])
async def test_a_session_whose_release_has_failed_is_released_when_another_owner_asks_for_it(
    tmp_path: Path, opened: Callable[[Path, ObjectStore, str], SessionStore]
) -> None:
    """Its owner is alive as long as its process, so nothing else would free the session."""
    shelf, cuts = virtual_shelf(), Cuts()
    cut = opened(tmp_path, CuttingObjectStore(MemoryObjectStore(shelf), cuts), "cut")
    async with both(cut, opened(tmp_path, MemoryObjectStore(shelf), "other"), cuts) as (store, other, wire):
        lease, _ = await store.acquire("session")
        await store.append([Batch(lease=lease, rows=grow(2))])
        wire.plan("before", 1, stays=True)
        with pytest.raises(Unavailable):
            await give_up(store, lease)
        with pytest.raises(SessionBusy):
            await other.acquire("session")
        assert list(await asked_for(store)) == []
        wire.mend()
        with pytest.raises(SessionBusy):
            await other.acquire("session")
        assert list(await asked_for(store)) == []
        assert (await other.acquire("session")).lease.owner == "other"
        assert list(await other.load("session", "default", whole=True)) == grow(2)
        (outcome,) = await store.append([Batch(lease=lease, rows=grow(3)[2:])])
        assert isinstance(outcome, LeaseLost)
