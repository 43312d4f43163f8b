"""Snapshots in a folder: written by the thread that has committed, and taken back without reading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import AgentSpec, FileStorage, Runtime, ScriptedModel, Sessions, SnapshotSessions
from repertory.backends.objects.files import FileObjectStore
from repertory.backends.ports import Batch, Lease, Position, give_up
from repertory.backends.sessions.snapshots.store import SnapshotSessionStore
from repertory.core.journal.rows import Row
from repertory.errors import LeaseLost
from repertory.testing.session_contract import grow
from tests.backends.sessions.snapshot_places import TREE, snapshots_on_files
from tests.source_tree import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@asynccontextmanager
async def opened(folder: Path, owner: str = "one") -> AsyncGenerator[SnapshotSessionStore]:
    store = snapshots_on_files(folder, owner)
    try:
        yield store
    finally:
        await store.aclose()


async def commit(store: SnapshotSessionStore, lease: Lease, rows: list[Row]) -> None:
    (outcome,) = await store.append([Batch(lease=lease, rows=rows)])
    assert isinstance(outcome, Position)


def latest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / TREE / "snapshot_latest.json").read_bytes())


def shown(folder: Path) -> int:
    """The last record that the latest snapshot shows; 0 without one."""
    path = folder / TREE / "snapshot_latest.json"
    return latest(folder)["repertory"]["seq"] if path.exists() else 0


def write_elsewhere(folder: Path, name: str = "snapshot_latest.json", **data: Any) -> None:
    """Replace a file as the SDK does."""
    path = folder / TREE / name
    document = json.loads(path.read_bytes()) if path.exists() else {}
    document = {key: value for key, value in document.items() if key not in ("repertory", "sha256")}
    document["data"] = {**document.get("data", {}), **data}
    new = path.with_name(".__strands_tmp")
    new.write_text(json.dumps(document))
    new.replace(path)


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not holds():  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def test_each_commit_is_shown_when_it_returns_and_nothing_of_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        real(file)

    async with opened(tmp_path) as store:
        lease, _ = await store.acquire("s")
        rows = grow(10)
        await commit(store, lease, rows[:2])
        await give_up(store, lease)
        lease, _ = await store.acquire("s", again=lease)
        monkeypatch.setattr(os, "fsync", fsync)
        for last in range(4, 11, 2):
            await commit(store, lease, rows[last - 2 : last])
            assert shown(tmp_path) == last
        assert not [path for path in synced if "snapshots" in path]
        assert [path.name for path in (tmp_path / TREE).iterdir()] == ["snapshot_latest.json"]


async def test_a_snapshot_that_replaces_erased_contents_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the machine brings back no earlier one."""
    place = SnapshotSessions(FileStorage(tmp_path))
    async with Runtime(sessions=place) as runtime:
        await runtime.agent(AgentSpec(name="a", model=ScriptedModel(["noted"]))).session("s").invoke("hunter2")
    snapshot = tmp_path / "s/scopes/agent/a/snapshots/snapshot_latest.json"
    synced: list[int] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        synced.append(os.fstat(file).st_ino)
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    await Sessions(place).redact_text("s", "hunter2", "[gone]")
    assert b"hunter2" not in snapshot.read_bytes()
    assert snapshot.parent.stat().st_ino in synced


async def test_batches_of_one_agent_in_one_group_are_all_shown(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        lease, _ = await store.acquire("s")
        rows = grow(8)
        await commit(store, lease, rows[:2])
        await give_up(store, lease)
        lease, _ = await store.acquire("s", again=lease)
        group = [Batch(lease=lease, rows=rows[2:4]), Batch(lease=lease, rows=rows[4:6])]
        refused = Batch(lease=lease, rows=rows[7:])
        outcomes = await store.append([*group, refused])
        assert [isinstance(outcome, Position) for outcome in outcomes] == [True, True, False]
        await give_up(store, lease)
        assert shown(tmp_path) == 6


async def test_rows_that_were_refused_are_shown_to_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, opened(tmp_path, "two") as other:
        lease, _ = await store.acquire("s")
        rows = grow(6)
        await commit(store, lease, rows[:2])
        await give_up(store, lease)
        lease, _ = await store.acquire("s", again=lease)
        await other.acquire("s", takeover=True)
        (outcome,) = await store.append([Batch(lease=lease, rows=rows[2:4])])
        assert isinstance(outcome, LeaseLost)
        assert shown(tmp_path) == 2


async def test_a_session_is_taken_back_without_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as store:
        lease, _ = await store.acquire("s")
        rows = grow(4)
        await commit(store, lease, rows[:2])
        await give_up(store, lease)

        async def read(*arguments: object, **options: object) -> Any:
            raise AssertionError(arguments)

        monkeypatch.setattr(FileObjectStore, "get", read)
        monkeypatch.setattr(type(store._journal), "load", read)
        owned = await store.acquire("s", again=lease)
        assert owned.lease == lease
        await commit(store, lease, rows[2:])
        assert shown(tmp_path) == 4
        await give_up(store, lease)


@pytest.mark.parametrize("name", ["snapshot_latest.json", "manifest.json"])
async def test_what_others_write_between_is_noticed_when_a_session_is_taken_back(tmp_path: Path, name: str) -> None:
    async with opened(tmp_path) as store:
        lease, _ = await store.acquire("s")
        rows = grow(2)
        await commit(store, lease, rows)
        await give_up(store, lease)
        messages = [*latest(tmp_path)["data"]["messages"], {"role": "user", "content": [{"text": "from elsewhere"}]}]
        write_elsewhere(tmp_path, name, messages=messages)
        with pytest.raises(LeaseLost):
            await store.acquire("s", again=lease)
        async with opened(tmp_path, "two") as other:  # Nobody has it, and the next owner knows what they have said.
            lease, found = await other.acquire("s", load="default")
            assert not isinstance(found, Exception)
            added = b"from elsewhere" in found[-1].body
            assert added == (name == "snapshot_latest.json")
            await give_up(other, lease)


async def test_what_others_write_during_a_turn_is_not_overwritten(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        lease, _ = await store.acquire("s")
        rows = grow(6)
        await commit(store, lease, rows[:2])
        await give_up(store, lease)
        lease, _ = await store.acquire("s", again=lease)
        await commit(store, lease, rows[2:4])
        messages = [*latest(tmp_path)["data"]["messages"], {"role": "user", "content": [{"text": "from elsewhere"}]}]
        write_elsewhere(tmp_path, messages=messages)
        await commit(store, lease, rows[4:])
        assert latest(tmp_path)["data"]["messages"] == messages
        await give_up(store, lease)
        said = json.dumps(latest(tmp_path)["data"]["messages"])
        assert "from elsewhere" in said
        assert shown(tmp_path) >= 7


async def test_what_cannot_be_written_fails_no_call_and_the_next_opening_makes_up_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = tmp_path / TREE
    rows = grow(6)
    async with opened(tmp_path) as store:
        lease, _ = await store.acquire("s")
        await commit(store, lease, rows[:2])
        await give_up(store, lease)
        lease, _ = await store.acquire("s", again=lease)
        assert store.not_published() == []
        tree.rename(tree.with_name("elsewhere"))
        tree.write_text("something else has the place")
        await commit(store, lease, rows[2:4])
        await give_up(store, lease)
        (left,) = store.not_published()
        assert (left.session_id, left.agent_id) == ("s", "default")
        assert "snapshots are not up to date" in caplog.text
    assert store.not_published() == [left]
    tree.unlink()
    tree.with_name("elsewhere").rename(tree)
    assert shown(tmp_path) == 2
    async with opened(tmp_path, "two") as store:
        lease, _ = await store.acquire("s", load="default")
        await give_up(store, lease)
        assert store.not_published() == []
    assert shown(tmp_path) == 4


async def test_a_runtime_tells_of_snapshots_that_cannot_be_written(tmp_path: Path) -> None:
    tree = tmp_path / TREE
    async with Runtime(sessions=SnapshotSessions(FileStorage(tmp_path))) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["ok"], loop=True))).session("s")
        await session.invoke("one")
        await until((tree / "snapshot_latest.json").exists)
        assert runtime.stats().not_published == 0
        tree.rename(tree.with_name("elsewhere"))
        tree.write_text("something else has the place")
        assert str(await session.invoke("two")) == "ok"
        await until(lambda: runtime.stats().not_published == 1)
        report = await runtime.drain()
    assert [(each.session_id, each.agent_id) for each in report.not_published] == [("s", "default")]
    assert report.ok, "nothing is lost"


async def test_whoever_opens_a_session_next_brings_its_snapshots_up_to_date_after_a_kill(tmp_path: Path) -> None:
    """The process is killed in each of its system calls in turn, from a commit to the end of the release."""
    ended, crash_at = "", 0
    while ended != "released":
        crash_at += 1
        folder = tmp_path / str(crash_at)
        child = [sys.executable, "-m", "tests.backends.sessions.snapshot_child", str(folder), str(crash_at)]
        told = await anyio.run_process(child, check=False, cwd=ROOT, stderr=subprocess.DEVNULL)
        lines = told.stdout.decode().split()
        ended = lines[-1] if lines else ""
        acknowledged = max([4, *(int(line) for line in lines if line != "released")])
        whole = latest(folder)
        async with opened(folder) as store:
            lease, rows = await store.acquire("s", load="default")
            assert not isinstance(rows, Exception)
            assert rows[-1].seq >= max(acknowledged, whole["repertory"]["seq"])
            await give_up(store, lease)
        assert shown(folder) == rows[-1].seq
        assert (await FileObjectStore(folder).list(TREE))[-1].key == f"{TREE}snapshot_latest.json"
        assert len(list((folder / TREE).iterdir())) == 1, "what the kill has left is removed"
    assert crash_at > 10
