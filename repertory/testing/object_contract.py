"""The requirements on every `ObjectStore`, as tests. Subclass it next to your store's own tests:

    class TestMyStore(ObjectStoreContract):
        def open_store(self, place: Path) -> ObjectStore:
            return MyStore(place / "objects")

Each test runs on the event loops that the project's `anyio_backend` fixture offers. Needs pytest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from repertory.backends.ports import Create, ObjectStore, Overwrite, Update
from repertory.errors import AlreadyExists, Invalid, NotFound, PreconditionFailed

WAIT_S = 30.0
"""The time limit of every test, in seconds."""
BAD_KEYS = [
    "",
    ".",
    "..",
    "/a",
    "a/",
    "a//b",
    "a/../b",
    "a\\b",
    "nul\0",
    "line\n",
    "x" * 256,
    "/".join(["x" * 200] * 6),
]
UNUSUAL_KEYS = [
    "Ärger/ünï",
    "a b",
    "a'b",
    "x" * 255,
    "-",
    "...",
    "%41",
    "a+b",
    "100%",
    "?q=1#f",
    "a/.hidden",
    "日本/語",
]


class ObjectStoreContract(ABC):
    """The contract. Two stores opened on the same place share their objects, as two processes would."""

    pytestmark = pytest.mark.anyio

    @abstractmethod
    def open_store(self, place: Path) -> ObjectStore:
        """A new store over the objects in `place`.

        Args:
            place: A folder of the test's own.
        """

    @asynccontextmanager
    async def stores(self, *places: Path) -> AsyncGenerator[list[ObjectStore]]:
        """Open one store per place, closed at the end, within the time limit.

        Args:
            places: Folders of the test's own.
        """
        with anyio.fail_after(WAIT_S):
            async with AsyncExitStack() as stack:
                opened = [self.open_store(place) for place in places]
                for store in opened:
                    stack.push_async_callback(store.aclose)
                yield opened

    @pytest.mark.parametrize("body", [b"", b"{}", bytes(range(256)) * 5000], ids=["empty", "small", "large"])
    async def test_what_was_put_is_read_again(self, tmp_path: Path, body: bytes) -> None:
        async with self.stores(tmp_path) as (store,):
            version = await store.put("a/b/c.json", body, Create())
            found = await store.get("a/b/c.json")
            assert (found.body, found.version) == (body, version)

    async def test_a_store_opened_later_finds_everything(self, tmp_path: Path) -> None:
        keys = [f"folder-{n % 3}/object-{n}" for n in range(9)]
        async with self.stores(tmp_path) as (store,):
            for key in keys:
                await store.put(key, key.encode(), Overwrite())
        async with self.stores(tmp_path) as (store,):
            assert [info.key for info in await store.list("")] == sorted(keys)
            assert [(await store.get(key)).body for key in keys] == [key.encode() for key in keys]

    async def test_what_is_not_there_is_not_found_by_its_name(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path) as (store,):
            assert list(await store.list("")) == []
            for key in ("missing", "a/missing", "a/b/missing"):
                with pytest.raises(NotFound, match=r"no such object.*missing"):
                    await store.get(key)
            await store.put("a/b/c", b"", Create())
            for key in ("a", "a/b", "a/b/c/d"):
                with pytest.raises(NotFound):
                    await store.get(key)
                await store.delete(key)
            assert [info.key for info in await store.list("")] == ["a/b/c"]

    async def test_create_never_replaces(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, tmp_path) as (one, two):
            version = await one.put("key", b"first", Create())
            for store in (one, two):
                with pytest.raises(AlreadyExists, match="key='key'"):
                    await store.put("key", b"second", Create())
            found = await two.get("key")
            assert (found.body, found.version) == (b"first", version)

    async def test_update_replaces_the_version_that_it_names_and_no_other(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, tmp_path) as (one, two):
            first = await one.put("key", b"first", Create())
            second = await two.put("key", b"second", Update(first))
            assert second != first
            with pytest.raises(PreconditionFailed, match="key='key'"):
                await one.put("key", b"third", Update(first))
            assert (await one.get("key")).body == b"second"
            third = await one.put("key", b"third", Update((await one.get("key")).version))
            assert (await two.get("key")).version == third

    @pytest.mark.parametrize("version", ["", "*", "0", '"0"'])
    async def test_update_with_a_version_that_never_was_is_refused(self, tmp_path: Path, version: str) -> None:
        async with self.stores(tmp_path) as (store,):
            await store.put("key", b"first", Create())
            with pytest.raises(PreconditionFailed):
                await store.put("key", b"second", Update(version))
            assert (await store.get("key")).body == b"first"

    async def test_update_of_nothing_is_refused(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path) as (store,):
            version = await store.put("key", b"first", Create())
            await store.delete("key")
            for key in ("key", "a/b/key"):
                with pytest.raises(PreconditionFailed):
                    await store.put(key, b"second", Update(version))
            assert list(await store.list("")) == []

    async def test_overwrite_asks_no_questions(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, tmp_path) as (one, two):
            first = await one.put("a/key", b"first", Overwrite())
            second = await two.put("a/key", b"second", Overwrite())
            assert first != second
            assert (await one.get("a/key")).body == b"second"

    async def test_what_was_deleted_is_gone_and_may_be_created_again(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, tmp_path) as (one, two):
            await one.put("a/b/key", b"first", Create())
            await one.put("a/other", b"", Create())
            await two.delete("a/b/key")
            await two.delete("a/b/key")
            with pytest.raises(NotFound):
                await one.get("a/b/key")
            assert [info.key for info in await one.list("")] == ["a/other"]
            await one.put("a/b/key", b"second", Create())
            assert (await two.get("a/b/key")).body == b"second"

    async def test_a_listing_says_what_is_there(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, tmp_path) as (one, two):
            versions = {f"a/{n}": await one.put(f"a/{n}", b"x" * n, Create()) for n in range(5)}
            await one.put("a/3", b"longer", Overwrite())
            versions["a/3"] = (await one.get("a/3")).version
            infos = await two.list("a/")
            assert [(info.key, info.size_bytes) for info in infos] == [
                ("a/0", 0),
                ("a/1", 1),
                ("a/2", 2),
                ("a/3", 6),
                ("a/4", 4),
            ]
            assert all(info.version in (None, versions[info.key]) for info in infos)
            assert infos[0].modified_at <= infos[4].modified_at <= infos[3].modified_at

    async def test_a_listing_is_in_the_order_of_the_keys_bytes(self, tmp_path: Path) -> None:
        keys = [
            "B",
            "a",
            "a!/x",
            "a-/x",
            "a0",
            "b/c/d",
            "b/c-d",
            "b/c.d",
            "b/d",
            "b0",
            "c/1",
            "c/10",
            "c/2",
            "é",
            "😀",
            "｡",
        ]
        async with self.stores(tmp_path) as (store,):
            for key in reversed(keys):
                await store.put(key, b"", Create())
            assert [info.key for info in await store.list("")] == sorted(keys, key=str.encode)
            for after in keys:
                wanted = [key for key in sorted(keys, key=str.encode) if key.encode() > after.encode()]
                assert [info.key for info in await store.list("", start_after=after)] == wanted

    async def test_a_listing_begins_with_its_prefix(self, tmp_path: Path) -> None:
        keys = ["session_1/a", "session_1/b/c", "session_10/a", "session_2/a", "session_1.json", "session"]
        async with self.stores(tmp_path) as (store,):
            for key in keys:
                await store.put(key, b"", Create())
            for prefix in (
                "session_1",
                "session_1/",
                "session_1/b",
                "session_1/b/",
                "session_1/b/c",
                "s",
                "session_3/",
            ):
                wanted = sorted(key for key in keys if key.startswith(prefix))
                assert [info.key for info in await store.list(prefix)] == wanted
            found = await store.list("session_1", start_after="session_1/a")
            assert [info.key for info in found] == ["session_1/b/c", "session_10/a"]

    async def test_one_of_many_creators_wins(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, tmp_path) as opened:
            won: list[bytes] = []

            async def create(number: int) -> None:
                body = b"%d" % number
                try:
                    await opened[number % 2].put("race/key", body, Create())
                except AlreadyExists:
                    return
                won.append(body)

            async with anyio.create_task_group() as tasks:
                for number in range(12):
                    tasks.start_soon(create, number)
            assert len(won) == 1
            assert (await opened[0].get("race/key")).body == won[0]

    async def test_counting_by_updates_loses_no_count(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, tmp_path) as opened:
            await opened[0].put("counter", b"0", Create())
            lost_count = 0

            async def count(store: ObjectStore) -> None:
                nonlocal lost_count
                for _ in range(5):
                    while True:
                        found = await store.get("counter")
                        try:
                            await store.put("counter", b"%d" % (int(found.body) + 1), Update(found.version))
                            break
                        except PreconditionFailed:
                            lost_count += 1

            async with anyio.create_task_group() as tasks:
                for number in range(4):
                    tasks.start_soon(count, opened[number % 2])
            assert (await opened[1].get("counter")).body == b"20"
            assert lost_count > 0, "nobody raced"

    async def test_a_reader_sees_whole_objects_while_they_are_replaced(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, tmp_path) as (one, two):
            await one.put("a/key", b"0" * 50_000, Create())
            seen: set[bytes] = set()

            async def read(stop: anyio.Event) -> None:
                while not stop.is_set():
                    body = (await two.get("a/key")).body
                    assert len(body) == 50_000
                    assert len(set(body)) == 1
                    seen.add(body[:1])
                    assert [info.key for info in await two.list("a/")] == ["a/key"]

            async with anyio.create_task_group() as tasks:
                stop = anyio.Event()
                tasks.start_soon(read, stop)
                for number in range(1, 10):
                    await one.put("a/key", b"%d" % number * 50_000, Overwrite())
                stop.set()
            assert seen

    async def test_a_cancelled_put_is_whole_or_absent(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, tmp_path) as (one, two):
            await one.put("key-0", b"", Create())
            for number in range(1, 8):
                body = b"%d" % number * 100_000

                async def write(number: int = number, body: bytes = body) -> None:
                    await one.put(f"key-{number}", body, Create())

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(write)
                    for _ in range(number):
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
                try:
                    assert (await two.get(f"key-{number}")).body == body
                except NotFound:
                    await two.put(f"key-{number}", body, Overwrite())
            assert len(await one.list("")) == 8

    async def test_many_writers_of_many_keys_hinder_nobody(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, tmp_path) as opened:
            keys = [f"folder-{n % 4}/sub-{n % 3}/key-{n}" for n in range(24)]

            async def write(number: int, key: str) -> None:
                store = opened[number % 2]
                version = await store.put(key, b"first", Create())
                await store.put(key, b"second", Update(version))
                if number % 3 == 0:
                    await store.delete(key)

            async with anyio.create_task_group() as tasks:
                for number, key in enumerate(keys):
                    tasks.start_soon(write, number, key)
            remaining = sorted(key for number, key in enumerate(keys) if number % 3)
            assert [info.key for info in await opened[0].list("")] == remaining

    @pytest.mark.parametrize("key", BAD_KEYS)
    async def test_bad_keys_are_refused(self, tmp_path: Path, key: str) -> None:
        async with self.stores(tmp_path) as (store,):
            for call in (store.get(key), store.put(key, b"", Overwrite()), store.delete(key)):
                with pytest.raises(Invalid):
                    await call
            with pytest.raises(Invalid):
                await store.list("", start_after=key)
            assert list(await store.list("")) == []

    async def test_a_bad_prefix_is_refused(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path) as (store,):
            for prefix in ("/", "//", "a//", "../a", "/a"):
                with pytest.raises(Invalid):
                    await store.list(prefix)

    async def test_unusual_but_allowed_keys_work(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path) as (store,):
            for key in UNUSUAL_KEYS:
                version = await store.put(key, key.encode(), Create())
                assert (await store.get(key)).body == key.encode()
                await store.put(key, b"again", Update(version))
                assert [info.key for info in await store.list(key)] == [key]
            assert [info.key for info in await store.list("")] == sorted(UNUSUAL_KEYS, key=str.encode)
            for key in UNUSUAL_KEYS:
                await store.delete(key)
            assert list(await store.list("")) == []

    async def test_a_key_that_would_be_a_folder_of_another_does_no_harm(self, tmp_path: Path) -> None:
        """The put may be refused or accepted; existing objects stay."""
        async with self.stores(tmp_path) as (store,):
            await store.put("a/b", b"first", Create())
            for key in ("a", "a/b/c"):
                with suppress(Invalid):
                    await store.put(key, b"second", Create())
                    assert (await store.get(key)).body == b"second"
                    await store.put(key, b"third", Overwrite())
            assert (await store.get("a/b")).body == b"first"

    async def test_a_closed_store_refuses_and_closes_twice(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path) as (store,):
            await store.put("key", b"", Create())
            await store.aclose()
            await store.aclose()
            for call in (store.get("key"), store.put("key", b"", Overwrite()), store.list(""), store.delete("key")):
                with pytest.raises(Invalid, match="closed before"):
                    await call

    async def test_names_tell_places_apart(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path / "here", tmp_path / "here", tmp_path / "there") as (one, two, other):
            assert one.name == two.name != other.name
            await one.put("key", b"", Create())
            assert list(await other.list("")) == []
