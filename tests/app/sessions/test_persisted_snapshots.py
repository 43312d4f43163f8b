"""Snapshots that are put into a storage and got back in one call each, through serializers of a user's own."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import Agent, FileStorage, GraphBuilder, InMemoryStorage, ScriptedModel, Snapshot, SnapshotException
from repertory.backends.ports import Overwrite
from repertory.core.snapshots.location import SnapshotLocation
from repertory.errors import AlreadyExists, Invalid, NotFound

pytestmark = pytest.mark.anyio

KEY = "marta/before the trip.json"


class Zipped:
    """A serializer with a name of its own."""

    name = "zipped json"

    def dumps(self, snapshot: dict[str, Any]) -> bytes:
        return gzip.compress(json.dumps(snapshot).encode())

    def loads(self, data: bytes) -> Any:
        return json.loads(gzip.decompress(data))


class Shouting(Zipped):
    """As long as the other one, and refuses."""

    name = "shouting"

    def dumps(self, snapshot: dict[str, Any]) -> bytes:
        raise RuntimeError("no")


class Kept:
    """A storage of a user's own, in the spelling of offloaded contents."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def save(self, key: str, data: bytes) -> None:
        self.data[key] = data

    async def load(self, key: str) -> bytes | None:
        return self.data.get(key)


class Written:
    """A storage in the spelling of the SDK's newest release."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    async def write(self, key: str, data: bytes) -> None:
        self.data[key] = data

    async def read(self, key: str) -> bytes | None:
        return self.data.get(key)


class Whole:
    """A storage of whole snapshots."""

    def __init__(self) -> None:
        self.data: dict[tuple[SnapshotLocation, str | None], dict[str, Any]] = {}

    def save_snapshot(
        self, *, location: SnapshotLocation, snapshot_id: str, is_latest: bool, snapshot: dict[str, Any]
    ) -> None:
        self.data[location, snapshot_id] = json.loads(json.dumps(snapshot))

    def load_snapshot(self, *, location: SnapshotLocation, snapshot_id: str | None = None) -> dict[str, Any] | None:
        return self.data.get((location, snapshot_id))

    def list_snapshot_ids(self, *, location: SnapshotLocation) -> list[str]:
        return []

    def load_manifest(self, *, location: SnapshotLocation) -> None:
        return None

    def save_manifest(self, *, location: SnapshotLocation, manifest: Any) -> None:
        return None


def storage_of(kind: str, folder: Path) -> Any:
    made: Mapping[str, Any] = {
        "files": FileStorage(folder),
        "memory": InMemoryStorage(),
        "save and load": Kept(),
        "write and read": Written(),
        "whole": Whole(),
    }
    return made[kind]


KINDS = ["files", "memory", "save and load", "write and read", "whole"]


async def talked() -> Agent:
    agent = Agent(ScriptedModel(["naïve 🐙"]), state={"tone": "dry"}, callback_handler=None)
    await agent.invoke_async([{"text": "see"}, {"image": {"format": "png", "source": {"bytes": b"\x89PNG\x00"}}}])
    return agent


@pytest.mark.real_time
@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_persisted_is_fetched_from_every_kind_of_storage(kind: str, tmp_path: Path) -> None:
    storage, agent = storage_of(kind, tmp_path), await talked()
    snapshot = agent.save_snapshot({"label": "mine"})
    with pytest.raises(NotFound):
        await Snapshot.fetch_async(storage, KEY)
    await snapshot.persist_async(storage, KEY)
    fetched = await Snapshot.fetch_async(storage, KEY)
    assert fetched == snapshot
    assert type(fetched) is Snapshot
    other = Agent(ScriptedModel(["yes"]), callback_handler=None, snapshot=fetched)
    assert (other.messages, other.state.get()) == (agent.messages, {"tone": "dry"})
    with pytest.raises(AlreadyExists, match="overwrite"):
        await agent.save_snapshot().persist_async(storage, KEY)
    await agent.save_snapshot({"label": "newer"}).persist_async(storage, KEY, overwrite=True)
    assert (await Snapshot.fetch_async(storage, KEY)).app_data == {"label": "newer"}


@pytest.mark.parametrize("kind", KINDS)
def test_plain_code_does_it_in_one_call_each(kind: str, tmp_path: Path) -> None:
    storage, agent = storage_of(kind, tmp_path), Agent(ScriptedModel(["hello"]), callback_handler=None)
    agent("hello")
    agent.save_snapshot().persist(storage, "one")
    assert Agent(ScriptedModel(["x"]), snapshot=Snapshot.fetch(storage, "one")).messages == agent.messages


async def test_the_sync_calls_name_the_async_ones_inside_an_event_loop() -> None:
    snapshot = (await talked()).save_snapshot()
    with pytest.raises(Invalid, match="persist_async"):
        snapshot.persist(InMemoryStorage(), "one")
    with pytest.raises(Invalid, match="fetch_async"):
        Snapshot.fetch(InMemoryStorage(), "one")


async def test_a_graph_is_kept_like_an_agent() -> None:
    builder, storage = GraphBuilder(), InMemoryStorage()
    builder.add_node(Agent(ScriptedModel(["hello"]), agent_id="a", callback_handler=None), "a")
    graph = builder.build()
    await graph.invoke_async("hello")
    snapshot = await graph.save_snapshot_async()
    for place in (storage, Whole()):
        await snapshot.persist_async(place, "graph")
        fetched = await Snapshot.fetch_async(place, "graph")
        assert fetched == snapshot
        assert (await graph.load_snapshot_async(fetched)).fields == ("a",)


# ------------------------------------------------------------------------------------------------------- serializers


async def test_a_serializer_makes_the_bytes_and_only_it_reads_them() -> None:
    storage, snapshot = Kept(), (await talked()).save_snapshot()
    await snapshot.persist_async(storage, "one", serializer=Zipped())
    assert b"tone" not in storage.data["one"]
    assert await Snapshot.fetch_async(storage, "one", serializer=Zipped()) == snapshot
    wrong: Any
    for wrong in (None, json):
        with pytest.raises(SnapshotException, match="another serializer"):
            await Snapshot.fetch_async(storage, "one", serializer=wrong)


async def test_a_module_with_dumps_and_loads_is_a_serializer() -> None:
    snapshot = (await talked()).save_snapshot()
    assert Snapshot.from_bytes(snapshot.to_bytes(json), json) == snapshot


async def test_a_serializer_that_raises_or_gives_nonsense_is_named() -> None:
    snapshot, storage = (await talked()).save_snapshot(), Kept()
    with pytest.raises(SnapshotException, match=r"dumps failed.*shouting"):
        await snapshot.persist_async(storage, "one", serializer=Shouting())
    assert storage.data == {}

    class Lying(Zipped):
        def loads(self, data: bytes) -> Any:
            return {**super().loads(data), "state": {}} if self.lies else 7

        lies = True

    for match in ("digest does not fit", "a dictionary"):
        with pytest.raises(SnapshotException, match=match):
            Snapshot.from_bytes(snapshot.to_bytes(Zipped()), Lying())
        Lying.lies = False
    with pytest.raises(Invalid, match="dumps and loads"):
        snapshot.to_bytes(object())  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="takes no serializer"):
        await snapshot.persist_async(Whole(), "one", serializer=Zipped())


# ------------------------------------------------------------------------------------------------------------ damage


@pytest.mark.parametrize("serializer", [None, Zipped()], ids=["json", "zipped"])
async def test_any_changed_byte_and_every_truncation_is_found(serializer: Any, rng: random.Random) -> None:
    snapshot = (await talked()).save_snapshot({"label": "also the metadata"})
    sound = snapshot.to_bytes(serializer)
    for place in [*range(20), *(rng.randrange(len(sound)) for _ in range(200))]:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << rng.randrange(8)
        try:
            read = Snapshot.from_bytes(bytes(damaged), serializer)
        except SnapshotException:
            continue
        assert read == snapshot, place  # White space of the first line is all that may change.
    for length in (0, 1, sound.index(b"\n"), sound.index(b"\n") + 1, len(sound) - 1, rng.randrange(len(sound))):
        with pytest.raises(SnapshotException):
            Snapshot.from_bytes(sound[:length], serializer)


async def test_a_damaged_object_is_refused_where_it_is_fetched() -> None:
    storage, snapshot = InMemoryStorage(), (await talked()).save_snapshot()
    await snapshot.persist_async(storage, "one")
    objects = storage.open_objects("test")
    body = (await objects.get("one")).body
    await objects.put("one", body.replace(b"dry", b"wet"), Overwrite())
    with pytest.raises(SnapshotException, match="was changed"):
        await Snapshot.fetch_async(storage, "one")


async def test_json_that_a_program_wrote_itself_is_fetched_and_verified() -> None:
    storage, snapshot = Kept(), (await talked()).save_snapshot({"n": 1})
    for document in (snapshot, snapshot.to_dict()):
        storage.data["own"] = json.dumps(document, indent=2).encode()
        assert await Snapshot.fetch_async(storage, "own") == snapshot
        storage.data["own"] = storage.data["own"].replace(b"dry", b"wet")
        with pytest.raises(SnapshotException, match="digest"):
            await Snapshot.fetch_async(storage, "own")
    for nonsense in (b"", b"[]", b"7", b"\xff\x00", b'{"format": "repertory-snapshot"}', b"[" * 100_000):
        storage.data["own"] = nonsense
        with pytest.raises(SnapshotException):
            await Snapshot.fetch_async(storage, "own")


async def test_bad_keys_and_things_that_are_no_storages_are_refused() -> None:
    snapshot = (await talked()).save_snapshot()
    for key in ("", "../a", "a//b"):
        with pytest.raises(Invalid, match="key"):
            await snapshot.persist_async(InMemoryStorage(), key)
        with pytest.raises(Invalid, match="key"):
            await Snapshot.fetch_async(InMemoryStorage(), key)
    for wrong in (None, "folder", object()):
        with pytest.raises(Invalid, match="a storage is"):
            await snapshot.persist_async(wrong, "one")  # type: ignore[arg-type]


async def test_of_two_writers_of_one_key_one_is_told() -> None:
    storage, snapshot = InMemoryStorage(), (await talked()).save_snapshot()
    outcomes: list[str] = []

    async def persist() -> None:
        try:
            await snapshot.persist_async(storage, "one")
            outcomes.append("stored")
        except AlreadyExists:
            outcomes.append("refused")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(persist)
        tasks.start_soon(persist)
    assert sorted(outcomes) == ["refused", "stored"]
