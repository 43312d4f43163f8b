"""Keys of sessions: one each, however many processes make the first; gone when they are erased; wrapped."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import anyio
import pytest

from repertory import InMemoryStorage, KmsKeys, LocalKeys, S3Storage
from repertory.app.sessions.storages import Storage
from repertory.backends.aws_clients import AwsService, AwsSettings, aws_clients
from repertory.backends.encryption.keys import StoredKeys
from repertory.backends.encryption.wrapping import MasterKeys, NoWrap
from repertory.backends.encryption_ports import KeyProvider
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import Overwrite
from repertory.errors import Corrupt, Invalid, KeyErased, KeyMissing, StoreFailed
from tests.backends.objects.moto_s3 import BUCKET

_OLD, _NEW = b"o" * 32, b"n" * 32


def keys_in(shelf: ObjectShelf, master: bytes | None = None, *former: bytes) -> StoredKeys:
    wrap = NoWrap() if master is None else MasterKeys(master, former, os.urandom)
    return StoredKeys(MemoryObjectStore(shelf), wrap, wall=count(1.0).__next__, entropy=os.urandom)


@pytest.mark.anyio
async def test_a_session_has_no_key_until_one_is_made_and_then_the_same_one_for_everybody() -> None:
    shelf = ObjectShelf()
    one, two = keys_in(shelf), keys_in(shelf)
    assert await one.keys_of("s") is None
    made = await one.create("s", {"a": 3})
    assert await two.create("s", {}) == made == await two.keys_of("s")
    assert made.plain_until == {"a": 3}
    assert (await one.create("t", {})).keys != made.keys


@pytest.mark.anyio
async def test_of_many_that_make_the_first_key_at_once_one_wins_and_all_use_it() -> None:
    shelf, made = ObjectShelf(), []

    async def make() -> None:
        made.append(await keys_in(shelf).create("s", {}))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(make)
    assert len(made) == 20
    assert all(each == made[0] for each in made)


@pytest.mark.anyio
async def test_many_rotations_at_once_lose_no_key() -> None:
    shelf = ObjectShelf()
    first = await keys_in(shelf).create("s", {})
    made = []

    async def rotate() -> None:
        made.append((await keys_in(shelf).rotate("s")).current)

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(rotate)
    ring = await keys_in(shelf).keys_of("s")
    assert ring is not None
    assert set(ring.keys) == {first.current, *made}
    assert len(ring.keys) == 11
    assert ring.current in made


@pytest.mark.anyio
async def test_an_erased_key_is_gone_and_nothing_is_begun_in_its_place() -> None:
    shelf = ObjectShelf()
    keys = keys_in(shelf)
    ring = await keys.create("s", {})
    await keys.create("t", {})
    material = ring.keys[ring.current]
    await keys.erase("s")
    await keys.erase("s")
    for call in (keys.keys_of("s"), keys.create("s", {}), keys.rotate("s"), keys_in(shelf).keys_of("s")):
        with pytest.raises(KeyErased):
            await call
    assert set(await keys.erased(["s", "t", "u"])) == {"s"}
    assert set(await keys.erased(["s"])) == {"s"}
    assert set(await keys.erased(["t"])) == set()
    assert not any(base64.b64encode(material) in kept.body for kept in shelf.objects.values())
    await keys.forget("s")
    assert await keys.keys_of("s") is None
    assert (await keys.create("s", {})).keys != ring.keys
    with pytest.raises(KeyMissing):
        await keys.rotate("never")


@pytest.mark.anyio
async def test_a_session_without_a_key_can_be_erased_as_well() -> None:
    keys = keys_in(ObjectShelf())
    await keys.erase("s")
    with pytest.raises(KeyErased):
        await keys.create("s", {})


@pytest.mark.anyio
async def test_a_master_key_wraps_and_another_one_says_which_is_missing() -> None:
    shelf = ObjectShelf()
    ring = await keys_in(shelf, _OLD).create("s", {})
    material = ring.keys[ring.current]
    assert not any(material in kept.body for kept in shelf.objects.values())
    assert (await keys_in(shelf, _OLD).keys_of("s")) == ring
    for other in (keys_in(shelf, _NEW), keys_in(shelf)):
        with pytest.raises(KeyMissing, match="wrapped_by='master "):
            await other.keys_of("s")
    assert await keys_in(shelf, _NEW, _OLD).keys_of("s") == ring


@pytest.mark.anyio
async def test_wrapping_anew_changes_no_key_and_needs_the_old_master_key_no_longer() -> None:
    shelf = ObjectShelf()
    rings = {name: await keys_in(shelf, _OLD).create(name, {}) for name in ("s", "t")}
    rings["plain"] = await keys_in(shelf).create("plain", {})
    await keys_in(shelf).erase("gone")
    assert await keys_in(shelf, _NEW, _OLD).rewrap(unwrapped=True) == 3
    assert await keys_in(shelf, _NEW, _OLD).rewrap() == 0
    for name, ring in rings.items():
        assert await keys_in(shelf, _NEW).keys_of(name) == ring
        with pytest.raises(KeyMissing):
            await keys_in(shelf, _OLD).keys_of(name)


@pytest.mark.anyio
async def test_a_wrapped_key_that_was_moved_to_another_session_is_refused() -> None:
    shelf = ObjectShelf()
    keys = keys_in(shelf, _OLD)
    await keys.create("s", {})
    await keys.create("t", {})
    (_, one), (second, _) = [(key, kept) for key, kept in shelf.objects.items() if key.startswith("keys/")]
    objects = MemoryObjectStore(shelf)
    await objects.put(second, one.body, Overwrite())
    with pytest.raises(Corrupt, match="malformed"):
        await keys_in(shelf, _OLD).keys_of("t")
    s, t = b'"session":"s"', b'"session":"t"'
    swapped = one.body.replace(s, t) if s in one.body else one.body.replace(t, s)
    await objects.put(second, swapped, Overwrite())
    other = "t" if b'"session":"t"' in swapped else "s"
    with pytest.raises(KeyMissing, match="not wrapped by this master key"):
        await keys_in(shelf, _OLD).keys_of(other)


def documents_of(shelf: ObjectShelf) -> dict[str, str]:
    """Where the document of each session is."""
    return {json.loads(kept.body)["session"]: key for key, kept in shelf.objects.items() if key.startswith("keys/")}


@pytest.mark.anyio
async def test_a_key_that_nothing_has_wrapped_is_refused_beside_a_master_key_and_never_wrapped_unasked() -> None:
    shelf = ObjectShelf()
    ring = await keys_in(shelf, _OLD).create("s", {})
    await keys_in(shelf, _OLD).create("sound", {})
    chosen, place = ObjectShelf(), documents_of(shelf)["s"]
    await keys_in(chosen).create("s", {"a": 1_000_000})  # What a writer to the place makes, who knows the key.
    stored = shelf.objects[place].body
    await MemoryObjectStore(shelf).put(place, chosen.objects[place].body, Overwrite())
    keys = keys_in(shelf, _NEW, _OLD)
    for call in (keys.keys_of, keys.rotate, lambda name: keys.create(name, {})):
        with pytest.raises(KeyMissing, match=r"nothing has wrapped .* wrapped_by='none'"):
            await call("s")
    with pytest.raises(KeyMissing, match="nothing has wrapped"):
        await keys.rewrap()
    assert shelf.objects[place].body == chosen.objects[place].body
    assert await keys_in(shelf, _NEW).keys_of("sound") is not None  # One bad document keeps no other from its key.
    await MemoryObjectStore(shelf).put(place, stored, Overwrite())
    assert await keys.keys_of("s") == ring


@pytest.mark.anyio
async def test_nothing_in_a_document_can_be_changed_without_the_master_key() -> None:
    shelf = ObjectShelf()
    keys = keys_in(shelf, _OLD)
    await keys.create("s", {"a": 3})
    place = documents_of(shelf)["s"]
    older = json.loads(shelf.objects[place].body)
    ring = await keys.rotate("s")
    await keys.create("t", {"a": 9})
    sound = json.loads(shelf.objects[place].body)
    other = json.loads(shelf.objects[documents_of(shelf)["t"]].body)
    edits = [
        {**sound, name: changed}
        for name in ("session", "wrap", "key", "sealed", "repertory_keys")
        for changed in ("", "none", 1, None, [], older.get(name), other.get(name))
        if changed != sound[name]
    ]
    edits += [{**sound, "plain_until": {"a": 9}, "keys": [{"id": "00" * 8, "at": 1, "wrap": "none", "key": "AA=="}]}]
    assert len(edits) > 25
    for edit in edits:
        await MemoryObjectStore(shelf).put(place, json.dumps(edit).encode(), Overwrite())
        try:
            found = await keys_in(shelf, _OLD).keys_of("s")
        except (Corrupt, KeyMissing, Invalid):
            with pytest.raises((Corrupt, KeyMissing, Invalid)):
                await keys_in(shelf, _NEW, _OLD).rewrap()
        else:
            assert found == ring  # What no reader looks at.
    await MemoryObjectStore(shelf).put(place, json.dumps(older).encode(), Overwrite())
    assert await keys_in(shelf, _OLD).keys_of("s") != ring  # An older document as a whole: this is as far as it goes.


@pytest.mark.anyio
async def test_a_document_of_a_later_release_keeps_no_other_from_being_wrapped_anew() -> None:
    shelf = ObjectShelf()
    keys = keys_in(shelf, _OLD)
    for session_id in "stu":
        await keys.create(session_id, {})
    place = min(documents_of(shelf).values())
    later = {**json.loads(shelf.objects[place].body), "repertory_keys": 2}
    await MemoryObjectStore(shelf).put(place, json.dumps(later).encode(), Overwrite())
    with pytest.raises(Invalid, match="later release"):
        await keys_in(shelf, _NEW, _OLD).rewrap()
    wraps = [json.loads(shelf.objects[each].body)["wrap"] for each in documents_of(shelf).values() if each != place]
    assert len(wraps) == 2
    assert later["wrap"] not in wraps


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"\xff",
        b'{"repertory_keys":1}',
        b'{"repertory_keys":1,"session":"s"}',
        b'{"repertory_keys":1,"session":"t"}',
    ],
)
@pytest.mark.anyio
async def test_a_damaged_document_is_corrupt_and_no_new_key_is_made(body: bytes) -> None:
    shelf = ObjectShelf()
    keys = keys_in(shelf)
    await keys.create("s", {})
    (name,) = shelf.objects
    await MemoryObjectStore(shelf).put(name, body, Overwrite())
    for call in (keys.keys_of("s"), keys.create("s", {})):
        with pytest.raises(Corrupt):
            await call


@pytest.mark.anyio
async def test_keys_of_a_later_release_are_refused() -> None:
    shelf = ObjectShelf()
    keys = keys_in(shelf)
    await keys.create("s", {})
    (name,) = shelf.objects
    await MemoryObjectStore(shelf).put(name, b'{"repertory_keys":2,"session":"s"}', Overwrite())
    with pytest.raises(Invalid, match="later release"):
        await keys.keys_of("s")


def test_processes_that_make_the_first_key_at_once_end_with_one(tmp_path: Path) -> None:
    program = (
        "import anyio, sys\n"
        "from repertory import LocalKeys\n"
        "async def main():\n"
        "    keys = LocalKeys(sys.argv[1]).open_keys()\n"
        "    for n in range(20):\n"
        "        ring = await keys.create(f's{n}', {})\n"
        "        print(ring.current.hex(), ring.keys[ring.current].hex())\n"
        "sys.stdin.readline()\n"
        "anyio.run(main)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "keys")]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate()[0] for process in processes]
    assert len(set(said)) == 1
    assert len(said[0].splitlines()) == 20


# What users name.


@pytest.mark.real_time
@pytest.mark.anyio
async def test_local_keys_are_files_of_their_user_alone(tmp_path: Path) -> None:
    keys = LocalKeys(tmp_path / "keys").open_keys()
    ring = await keys.create("s", {})
    await keys.aclose()
    files = [path for path in (tmp_path / "keys").rglob("*") if path.is_file()]
    assert [path.stat().st_mode & 0o777 for path in files] == [0o600]
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in (tmp_path / "keys").rglob("*") if path.is_dir())
    again = LocalKeys(str(tmp_path / "keys")).open_keys()
    assert await again.keys_of("s") == ring
    await again.erase("s")
    left = b"".join(path.read_bytes() for path in (tmp_path / "keys").rglob("*") if path.is_file())
    assert base64.b64encode(ring.keys[ring.current]) not in left


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: LocalKeys("k", master_key=b"short"), "32 random bytes"),
        (lambda: LocalKeys("k", master_key="x" * 32), "32 random bytes.* got='str'"),  # type: ignore[arg-type]
        (lambda: LocalKeys("k", former_master_keys=[_OLD]), "come with the master_key"),
        (lambda: LocalKeys(7), "in a folder, or in a storage"),  # type: ignore[arg-type]
        (lambda: KmsKeys("", "k"), "kms_key_id"),
    ],
)
def test_wrong_keys_are_refused_with_what_to_write(make: Callable[[], object], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        make()


@pytest.mark.anyio
async def test_keys_are_named_by_their_place_and_show_nothing() -> None:
    storage = InMemoryStorage()
    assert LocalKeys(storage).key == LocalKeys(storage, master_key=_OLD).key != LocalKeys(InMemoryStorage()).key
    assert "n" * 32 not in repr(LocalKeys(storage, master_key=_NEW))
    with pytest.raises(Invalid, match="master_key"):
        await LocalKeys(storage).rewrap()
    assert await LocalKeys(storage, master_key=_OLD).rewrap() == 0


@pytest.mark.anyio
@pytest.mark.real_time
class TestWithAWS:
    @pytest.fixture(autouse=True)
    def service(self, s3_url: str, aws_keys: pytest.MonkeyPatch) -> None:
        self.url = s3_url

    async def new_key(self) -> str:
        settings = AwsSettings(endpoint_url=self.url, region_name="us-east-1")
        clients = aws_clients(AwsService(name="kms", wanted_by="a test", extra="kms"), settings)
        client = await clients.get()
        key_id = (await client.create_key())["KeyMetadata"]["KeyId"]
        await clients.aclose()
        return str(key_id)

    def kms(self, key_id: str, place: Path | Storage, *former: str) -> KmsKeys:
        return KmsKeys(key_id, place, former_key_ids=former, region_name="us-east-1", endpoint_url=self.url)

    async def test_kms_wraps_every_key_for_its_session(self, tmp_path: Path) -> None:
        key_id = await self.new_key()
        keys = self.kms(key_id, tmp_path / "keys").open_keys()
        ring = await keys.create("s", {})
        assert await keys.rotate("s") == await keys.keys_of("s")
        await keys.aclose()
        stored = b"".join(path.read_bytes() for path in (tmp_path / "keys").rglob("*") if path.is_file())
        assert ring.keys[ring.current] not in stored
        again = self.kms(key_id, tmp_path / "keys").open_keys()
        found = await again.keys_of("s")
        await again.aclose()
        assert found is not None
        assert found.keys[ring.current] == ring.keys[ring.current]

    async def test_another_kms_key_takes_over_by_wrapping_anew(self) -> None:
        old, new, storage = await self.new_key(), await self.new_key(), InMemoryStorage()
        keys = self.kms(old, storage).open_keys()
        ring = await keys.create("s", {})
        await keys.aclose()
        assert await self.kms(new, storage, old).rewrap() == 1
        assert await self.kms(new, storage).rewrap() == 0
        again = self.kms(new, storage).open_keys()
        assert await again.keys_of("s") == ring
        await again.aclose()

    async def test_a_key_that_another_kms_key_has_wrapped_or_none_is_refused_unless_it_is_named(self) -> None:
        ours, storage = await self.new_key(), InMemoryStorage()
        for other in (LocalKeys(storage), self.kms(await self.new_key(), storage)):
            opened = other.open_keys()
            await opened.create(type(other).__name__, {})
            await opened.aclose()
        keys = self.kms(ours, storage).open_keys()
        with pytest.raises(KeyMissing, match="nothing has wrapped"):
            await keys.keys_of("LocalKeys")
        with pytest.raises(
            (KeyMissing, StoreFailed)
        ):  # The service on loopback says AccessDenied, and AWS IncorrectKey.
            await keys.keys_of("KmsKeys")
        await keys.aclose()
        with pytest.raises((KeyMissing, StoreFailed)):
            await self.kms(ours, storage).rewrap()

    async def test_a_key_that_kms_does_not_have_is_missing_and_nothing_is_stored(self) -> None:
        storage = InMemoryStorage()
        keys = self.kms("00000000-0000-0000-0000-000000000000", storage).open_keys()
        with pytest.raises(KeyMissing, match="no such key"):
            await keys.create("s", {})
        assert await keys.keys_of("s") is None
        await keys.aclose()

    async def test_keys_that_kms_has_not_wrapped_are_missing_keys(self) -> None:
        storage = InMemoryStorage()
        local = LocalKeys(storage, master_key=_OLD).open_keys()
        await local.create("s", {})
        keys = self.kms(await self.new_key(), storage).open_keys()
        with pytest.raises(KeyMissing, match="was not given"):
            await keys.keys_of("s")
        await keys.aclose()

    async def test_keys_in_a_bucket_are_made_once(self) -> None:
        storage = S3Storage(BUCKET, f"keys-{os.urandom(8).hex()}", region_name="us-east-1", endpoint_url=self.url)
        opened: list[KeyProvider] = [LocalKeys(storage).open_keys() for _ in range(3)]
        made = []

        async def make(keys: KeyProvider) -> None:
            made.append(await keys.create("s", {}))

        async with anyio.create_task_group() as group:
            for keys in opened:
                group.start_soon(make, keys)
        assert made[0] == made[1] == made[2]
        await opened[0].erase("s")
        with pytest.raises(KeyErased):
            await opened[1].keys_of("s")
        for keys in opened:
            await keys.aclose()
