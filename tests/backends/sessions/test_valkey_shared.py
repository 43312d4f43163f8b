"""Journals whose runtimes find each other in Valkey keep the contract of directories and call boxes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from repertory.backends.ports import SessionStore
from repertory.cluster.valkey import Valkey
from repertory.errors import Invalid
from repertory.testing.peer_contract import SharedStoreContract, directory_of, until
from tests.backends.sessions.object_places import on_files
from tests.backends.sessions.test_call_box_model import BoxMachine
from tests.valkey_server import shared_valkey


@pytest.mark.real_time
class TestValkeyShared(SharedStoreContract):
    @pytest.fixture(autouse=True)
    def server(self) -> None:
        self._server = shared_valkey()

    def open_store(self, place: Path, owner: str) -> SessionStore:
        store = on_files(place, owner)
        store.share_in(Valkey(self._server.url, alive_s=1.0))
        return store

    async def test_the_owner_of_a_session_is_named_while_it_lives(self, tmp_path: Path) -> None:
        """As hints, which are there soon."""
        async with self.stores(tmp_path, "one", "two", "three") as (one, two, three):
            lease = await one.acquire("session")
            await two.acquire("other")
            await three.acquire("third")
            names = ("session", "other", "third", "nothing")

            async def found(store: SessionStore) -> list[str | None]:
                return [await directory_of(store).owner_of(name) for name in names]

            for store in (one, two, three):

                async def named(store: SessionStore = store) -> bool:
                    return await found(store) == ["one", "two", "three", None]

                await until(named)
            await one.release(lease)
            await two.aclose()
            self.die(three)

            async def free() -> bool:
                return await found(one) == [None, None, None, None]

            await until(free)
            with pytest.raises(Invalid):
                await directory_of(one).owner_of("a/b")


class ValkeyMachine(BoxMachine):
    """Owners that end do so in order, as in the model: a killed one counts as alive for a while."""

    def _open(self) -> None:
        super()._open()
        _, store = self.stores[-1]
        self.lives = [*getattr(self, "lives", []), self.portal.start_task_soon(store.maintain)]

    def teardown(self) -> None:
        for life in getattr(self, "lives", []):
            life.cancel()
        super().teardown()

    def open_store(self, place: Path, owner: str) -> SessionStore:
        store = on_files(place, owner)
        store.share_in(Valkey(shared_valkey().url))
        return store


@pytest.mark.real_time
@pytest.mark.timeout(180)
def test_a_call_box_in_valkey_does_what_the_model_does() -> None:
    shared_valkey()
    run_state_machine_as_test(ValkeyMachine, settings=settings(max_examples=10, stateful_step_count=60, deadline=None))
