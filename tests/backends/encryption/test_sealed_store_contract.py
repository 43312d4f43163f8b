"""Stores of sealed sessions keep the contract of session stores: `SealedSessionStore` over every native one."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from repertory.actors.leases import SessionLeases
from repertory.backends.encryption.store import SealedSessionStore
from repertory.backends.objects.in_memory import ObjectShelf
from repertory.backends.ports import SessionStore
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.core.journal.restore import Appender
from repertory.testing import session_contract, session_handover_contract
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf
from repertory.testing.session_contract import SessionStoreContract
from tests.backends.encryption.one_ring import CIPHER, OneRing
from tests.backends.sessions.log_places import log_store
from tests.backends.sessions.object_places import on_s3, on_shelf, virtual_shelf
from tests.backends.sessions.postgres_places import postgres_store


def sealed(store: SessionStore) -> SessionStore:
    return SealedSessionStore(store, OneRing())


class _SealedRows(SessionStoreContract):
    """The rows of the contract are sealed, as those of a session in an encrypted place are."""

    @pytest.fixture(autouse=True)
    def sealing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (session_contract, session_handover_contract):
            monkeypatch.setattr(module, "Appender", partial(Appender, seal=CIPHER.seal))


class TestSealedInMemory(_SealedRows):
    @pytest.fixture(autouse=True)
    def shelves(self) -> None:
        self._shelves: dict[Path, SessionShelf] = {}

    def open_store(self, place: Path, owner: str) -> SessionStore:
        return sealed(MemorySessionStore(self._shelves.setdefault(place, SessionShelf()), owner=owner))


@pytest.mark.real_time
class TestSealedInSQLite(_SealedRows):
    def open_store(self, place: Path, owner: str) -> SessionStore:
        return sealed(SQLiteSessionStore(place / "home" / "sessions.db", owner=owner))


class TestSealedInObjects(_SealedRows):
    @pytest.fixture(autouse=True)
    def shelves(self) -> None:
        self._shelves: dict[Path, ObjectShelf] = {}

    def open_store(self, place: Path, owner: str) -> SessionStore:
        if place not in self._shelves:
            self._shelves[place] = virtual_shelf()
        return sealed(on_shelf(self._shelves[place], owner))


@pytest.mark.real_time
class TestSealedInFiles(_SealedRows):
    def open_store(self, place: Path, owner: str) -> SessionStore:
        return sealed(log_store(place / "home" / "sessions", owner))


@pytest.mark.real_time
class TestSealedInABucket(_SealedRows):
    @pytest.fixture(autouse=True)
    def service(self, s3_url: str, aws_keys: pytest.MonkeyPatch) -> None:
        self._url = s3_url

    def open_store(self, place: Path, owner: str) -> SessionStore:
        return sealed(on_s3(self._url, sha256(f"sealed {place}".encode()).hexdigest(), owner))


@pytest.mark.usefixtures("postgres_tables")
@pytest.mark.real_time
class TestSealedInPostgres(_SealedRows):
    def open_store(self, place: Path, owner: str) -> SessionStore:
        return sealed(postgres_store(place, owner))


def test_the_wrapper_hands_on_every_method_of_a_session_store() -> None:
    ports = [kind for kind in SessionStore.__mro__ if kind.__module__.startswith("repertory.")]
    asked = {name for kind in ports for name in vars(kind) if not name.startswith("_")}
    own = {name for name in vars(SealedSessionStore) if not name.startswith("_")}
    assert asked <= own, asked - own


@pytest.mark.anyio
@pytest.mark.real_time
async def test_a_sealed_session_is_given_up_by_its_store_which_forgets_the_cipher(tmp_path: Path) -> None:
    store = sealed(SQLiteSessionStore(tmp_path / "sessions.db", owner="owner"))
    leases = SessionLeases(store, busy_s=1.0)
    lease, _ = await leases.acquire_and_load("s", "agent", takeover=False, by=float("inf"))
    assert not leases.release_now(lease)
    await leases.release(lease)
    assert not leases.acquire_now(lease)
    assert await leases.acquire_again(lease)
    await store.aclose()
