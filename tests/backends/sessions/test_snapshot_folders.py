"""The place of a session with snapshots: all of it is below its own folder, whatever its name is."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from repertory.backends.objects.in_memory import MemoryObjectStore
from repertory.backends.ports import Batch, Condition, IdPage, ObjectInfo, ObjectStore, StoredObject, give_up
from repertory.errors import SessionBusy, StoreFailed
from repertory.testing.session_contract import grow
from tests.backends.sessions.object_places import virtual_shelf
from tests.backends.sessions.snapshot_places import snapshots_on, snapshots_on_shelf

pytestmark = pytest.mark.anyio


async def test_sessions_of_unusual_names_are_kept_and_none_is_taken_for_another() -> None:
    shelf = virtual_shelf()
    names = ["journal", "journals", "quarantine", "%", "x" * 255, ".repertory-x", "Ärger"]
    said = {name: grow(number) for number, name in enumerate(names, 1)}
    store = snapshots_on_shelf(shelf, "one")
    for name, rows in said.items():
        lease, _ = await store.acquire(name)
        await store.append([Batch(lease=lease, rows=rows)])
        await give_up(store, lease)
    counts = {name: {"default": len(rows)} for name, rows in said.items()}
    assert {info.session_id: dict(info.agents) for info in await store.sessions()} == counts
    assert {name: list(await store.load(name, "default", whole=True)) for name in names} == said
    assert [info.session_id for info in await store.sessions(page=IdPage("jour"))] == ["journal", "journals"]
    assert (await store.capabilities.repair.inspect()).strays == []
    for name in names:
        await store.delete(name)
    assert await store.sessions() == []
    await store.aclose()


async def test_an_operator_who_removes_the_folder_of_a_session_has_removed_the_session() -> None:
    shelf = virtual_shelf()
    store = snapshots_on_shelf(shelf, "one")
    lease, _ = await store.acquire("s")
    await store.append([Batch(lease=lease, rows=grow(6))])
    await give_up(store, lease)
    objects = MemoryObjectStore(shelf)
    for info in await objects.list("s/"):
        await objects.delete(info.key)
    assert await store.sessions() == []
    await store.acquire("s")
    assert await store.load("s", "default", whole=True) == []
    await store.aclose()


class Policy:
    """Objects of which only some may be touched, as a policy for `<prefix>/<session>/*` says."""

    def __init__(self, objects: ObjectStore, allowed: str, *, lists: bool = False) -> None:
        self._objects = objects
        self._allowed = allowed
        self._lists = lists
        self.touched: list[str] = []

    @property
    def name(self) -> str:
        return self._objects.name

    def _check(self, key: str) -> None:
        if not key.startswith(self._allowed):
            raise StoreFailed("access denied", key=key)
        self.touched.append(key)

    async def get(self, key: str) -> StoredObject:
        self._check(key)
        return await self._objects.get(key)

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        self._check(key)
        return await self._objects.put(key, body, condition)

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        if not self._lists:
            self._check(prefix)
        return await self._objects.list(prefix, start_after)

    async def delete(self, key: str) -> None:
        self._check(key)
        await self._objects.delete(key)

    async def aclose(self) -> None:
        await self._objects.aclose()


@pytest.mark.parametrize("lists", [False, True], ids=["may list its own", "may list all"])
async def test_a_policy_for_the_folder_of_a_session_is_enough_for_all_that_is_done_with_it(lists: bool) -> None:
    """Whatever is done, no key beyond that folder is read, written or removed."""
    shelf = virtual_shelf()
    policy = Policy(MemoryObjectStore(shelf), "s/", lists=lists)
    store = snapshots_on(policy, "one")
    rows, run = grow(400), grow(2, "default_graph.writer")
    assert await store.load("s", "default") == []
    lease, _ = await store.acquire("s")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.maintain)
        for first in range(0, len(rows), 3):
            await store.append([Batch(lease=lease, rows=rows[first : first + 3])])
        await store.append([Batch(lease=lease, rows=run, erase=[("default", 1)])])
        await anyio.sleep(30)
        tasks.cancel_scope.cancel()
    other = snapshots_on(Policy(MemoryObjectStore(shelf), "s/", lists=lists), "two")
    with pytest.raises(SessionBusy):
        await other.acquire("s")
    await other.aclose()
    await give_up(store, lease)
    assert dict((await store.sessions("s"))[0].agents) == {"default": 400, "default_graph.writer": 2}
    await store.capabilities.repair.set_aside("s", list(await store.load("s", "default", whole=True)))
    assert await store.capabilities.repair.quarantined("s") == ["s/quarantine/0001"]
    assert await store.capabilities.repair.examine("s") == []
    kinds = {key.split("/")[1] for key in shelf.objects}
    assert kinds == {"journal", "scopes", "quarantine"}
    await store.delete("s")
    await store.aclose()
    assert {key.split("/")[0] for key in policy.touched} == {"s"}
    assert {key.split("/")[0] for key in shelf.objects} == {"s"}
