"""Logs in a folder: what damage and faults of the disk are told from, and who may write."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest
from msgspec.structs import replace

from repertory.backends.ports import Batch, Lease, Position, give_up
from repertory.backends.sessions.documents.folder_store import FolderSessionStore
from repertory.backends.sessions.log import log_file, owner_record
from repertory.backends.sessions.log.log_file import LogReader
from repertory.backends.sessions.log.owner_record import RECORD, OwnerRecord, read_owner, read_record
from repertory.backends.sessions.log.store import LogSessionStore
from repertory.core.journal.log_frames import DIRECTORY_MAX, HEADER_BYTES, FoundFrame, frames_in
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import RecordKind, Row
from repertory.errors import (
    CorruptJournal,
    Invalid,
    LeaseLost,
    SessionBusy,
    StoreUnavailable,
    Unavailable,
)
from repertory.testing.crash_points import CrashPoints
from repertory.testing.session_contract import grow, windowed
from tests.backends.sessions.log_places import crash_in_system_calls, folder_store, log_of, log_store
from tests.source_tree import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@asynccontextmanager
async def stores(root: Path, *owners: str) -> AsyncGenerator[list[LogSessionStore]]:
    opened = [log_store(root, owner) for owner in owners]
    try:
        yield opened
    finally:
        for store in opened:
            await store.aclose()


async def append(store: LogSessionStore, lease: Lease, rows: Sequence[Row], *erase: int) -> None:
    batch = Batch(lease=lease, rows=rows, erase=[("default", seq) for seq in erase])
    (outcome,) = await store.append([batch])
    if not isinstance(outcome, Position):
        raise outcome


async def stored(root: Path, count: int = 5) -> list[Row]:
    """The rows of a session of several commits."""
    rows = grow(count)
    async with stores(root, "writer") as (store,):
        lease, _ = await store.acquire("s")
        for row in rows:
            await append(store, lease, [row])
        await give_up(store, lease)
    return rows


async def loaded(root: Path) -> list[Row]:
    async with stores(root, "reader") as (store,):
        return list(await store.load("s", "default", whole=True))


# Finding rows by their numbers.


async def test_any_row_of_a_long_log_is_found_by_marks(tmp_path: Path, rng: random.Random) -> None:
    """Of two agents, one of them in few frames, with erased contents, by a store that has read nothing."""
    rows, others = windowed(320), grow(60, "other")
    async with stores(tmp_path, "writer", "reader") as (writer, reader):
        lease, _ = await writer.acquire("s")
        done = beside = 0
        while done < len(rows):
            count, few = rng.randint(1, 3), int(rng.random() < 0.1)
            await append(writer, lease, [*rows[done : done + count], *others[beside : beside + few]])
            done, beside = done + count, beside + few
        others = others[:beside]
        labels = [row for row in rows if row.kind == RecordKind.SNAPSHOT]
        assert list(await reader.labels("s", "default")) == labels
        await append(writer, lease, [], labels[7].seq, 300)
        rows = [row.without_content() if row.seq in (labels[7].seq, 300) else row for row in rows]
        assert list(await reader.labels("s", "default")) == [row for row in labels if row.seq != labels[7].seq]
        assert list(await reader.labels("s", "other")) == []
        for agent_id, journal in (("default", rows), ("other", others)):
            for _ in range(60):
                first = rng.randint(-2, len(journal) + 2)
                last = first + rng.choice([-1, 0, 1, 20, 400])
                wanted = [row for row in journal if first <= row.seq <= last]
                assert list(await reader.load_range("s", agent_id, first, last)) == wanted
                at = rng.randint(1, len(journal))
                assert list(await reader.load_at("s", agent_id, at)) == journal[journal[at - 1].low - 1 : at]


async def test_a_search_reads_a_small_part_of_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await stored(tmp_path, 400)
    read: list[int] = []
    bytes_of = LogReader._bytes

    def counted(log: LogReader, begin: int, size: int) -> bytes:
        data = bytes_of(log, begin, size)
        read.append(len(data.rstrip(b"\0")))
        return data

    monkeypatch.setattr(LogReader, "_bytes", counted)
    async with stores(tmp_path, "reader") as (store,):
        for seq in (1, 17, 200, 399):
            read.clear()
            assert [row.seq for row in await store.load_range("s", "default", seq, seq)] == [seq]
            assert len(read) < 40
            assert sum(read) < (tmp_path / "journals/s/journal.log").stat().st_size / 2


async def test_a_mark_that_names_no_frame_is_damage(tmp_path: Path) -> None:
    await stored(tmp_path, 100)
    log = tmp_path / "journals/s/journal.log"
    data = bytearray(log.read_bytes())
    frames = [found.offset for found in frames_in(memoryview(bytes(data))) if isinstance(found, FoundFrame)]
    data[frames[48] + HEADER_BYTES] ^= 1
    log.write_bytes(data)
    async with stores(tmp_path, "reader") as (store,):
        assert [row.seq for row in await store.load_range("s", "default", 90, 91)] == [90, 91]
        with pytest.raises(CorruptJournal):
            await store.load_range("s", "default", 40, 41)


# The record of the owner.


HUGE = OwnerRecord(generation=10**20 - 1, log="journal.log", owner="one").pack()
ELSEWHERE = OwnerRecord(generation=1, log="../other/journal.log", owner="one").pack()


@pytest.mark.parametrize(
    "body", [None, b"", b"garbage", b"owner of a log 1\n" + b"x" * 500, bytes(4096), HUGE, ELSEWHERE]
)
async def test_a_session_without_its_record_opens_with_everything(body: bytes | None, tmp_path: Path) -> None:
    rows = await stored(tmp_path)
    record = tmp_path / "journals/s" / RECORD
    before = read_owner(record.parent)
    assert before is not None
    record.unlink()
    if body is not None:
        record.write_bytes(body)
    assert await loaded(tmp_path) == rows
    async with stores(tmp_path, "next") as (store,):
        (info,) = await store.sessions()
        assert not info.damaged
        lease, _ = await store.acquire("s")
        assert lease.generation > before.generation
        assert list(await store.load("s", "default")) == rows
        more = grow(1, after=rows)
        await append(store, lease, more)
    assert await loaded(tmp_path) == [*rows, *more]


def test_a_record_with_any_flipped_bit_is_none() -> None:
    record = OwnerRecord(generation=7, edition=3, state="held", tail=4096, log="journal.log", owner="one")
    sound = record.pack()
    assert read_record(sound) == record
    for bit in range(8 * len(sound)):
        assert read_record(flipped(sound, bit)) is None, bit


def flipped(body: bytes, bit: int) -> bytes:
    changed = bytearray(body)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("line", range(8))
async def test_a_flipped_bit_in_a_record_names_no_wrong_owner_and_no_older_generation(
    line: int, tmp_path: Path, rng: random.Random
) -> None:
    """A former owner may have been fenced and not have noticed, so the log is copied as well."""
    record = tmp_path / "journals/s" / RECORD
    async with stores(tmp_path, "one", "two") as (one, two):
        rows = grow(2)
        lease, _ = await one.acquire("s")
        await append(one, lease, rows[:1])
        before, body = read_owner(record.parent), record.read_bytes()
        assert before is not None
        start = sum(map(len, body.splitlines(keepends=True)[:line]))
        length = len(body.splitlines(keepends=True)[line])
        damaged = flipped(body, 8 * start + rng.randrange(8 * length))
        record.write_bytes(damaged)
        with pytest.raises(SessionBusy) as busy:
            await two.acquire("s")
        assert busy.value.fields["owner"] is None
        await append(one, lease, rows[1:])
        repaired = read_owner(record.parent)
        assert repaired is not None
        assert repaired == replace(before, tail=repaired.tail)
        await give_up(one, lease)
        record.write_bytes(flipped(record.read_bytes(), 8 * start))
        (info,) = await two.sessions()
        assert (info.owner, info.damaged) == (None, False)
        taken, _ = await two.acquire("s")
        assert taken.generation > lease.generation
        assert list(await two.load("s", "default")) == rows
        after = read_owner(record.parent)
        assert after is not None
        assert after.log not in ("", before.log)


async def test_a_record_without_a_generation_follows_that_of_the_log(tmp_path: Path) -> None:
    rows = grow(1)
    future = log_store(tmp_path, "future")
    future._wall = lambda: 4e9
    lease, _ = await future.acquire("s")
    await append(future, lease, rows)
    await future.aclose()
    (tmp_path / "journals/s" / RECORD).unlink()
    async with stores(tmp_path, "next") as (store,):
        assert (await store.acquire("s")).lease.generation > lease.generation


@pytest.mark.parametrize("plant", [lambda path: path.symlink_to("/etc/passwd"), os.mkfifo, Path.mkdir])
async def test_what_is_no_file_in_the_place_of_the_record_is_refused(
    plant: Callable[[Path], None], tmp_path: Path
) -> None:
    await stored(tmp_path)
    (tmp_path / "journals/s" / RECORD).unlink()
    plant(tmp_path / "journals/s" / RECORD)
    with anyio.fail_after(20):
        async with stores(tmp_path, "next") as (store,):
            (info,) = await store.sessions()
            assert info.damaged
            for takeover in (False, True):
                with pytest.raises(Invalid, match="something else has the place"):
                    await store.acquire("s", takeover=takeover)


async def test_a_record_that_could_not_be_written_leaves_the_session_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with stores(tmp_path, "one", "two") as (one, two):
        await one._life.begin()
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(StoreUnavailable, match="No space"):
                await one.acquire("s")
        lease, _ = await two.acquire("s")
        await append(two, lease, grow(2))


async def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    async with stores(tmp_path, "one") as (store,):
        await store._life.begin()
        monkeypatch.setattr("fcntl.flock", unsupported)
        with pytest.raises(StoreUnavailable, match="has no locks"):
            await store.acquire("s")
        monkeypatch.undo()


# The log.


async def test_another_log_in_its_place_is_refused_by_a_live_owner(tmp_path: Path) -> None:
    rows = grow(3)
    async with stores(tmp_path, "one") as (store,):
        lease, _ = await store.acquire("s")
        for row in rows[:2]:
            await append(store, lease, [row])
        log = log_of(tmp_path, "s")
        shutil.copy(log, tmp_path / "copy")
        (tmp_path / "copy").rename(log)
        with pytest.raises(CorruptJournal, match="another file was put in its place"):
            await append(store, lease, rows[2:])


async def test_an_older_copy_over_its_bytes_is_refused_by_a_live_owner(tmp_path: Path) -> None:
    rows = grow(3)
    async with stores(tmp_path, "one") as (store,):
        lease, _ = await store.acquire("s")
        await append(store, lease, rows[:1])
        log = log_of(tmp_path, "s")
        older = log.read_bytes().rstrip(b"\0")
        await append(store, lease, rows[1:2])
        log.write_bytes(older)
        with pytest.raises(CorruptJournal):
            await append(store, lease, rows[2:])


@pytest.mark.parametrize("takeover", [False, True])
async def test_an_older_copy_is_noticed_by_the_next_owner(takeover: bool, tmp_path: Path) -> None:
    await stored(tmp_path)
    log = log_of(tmp_path, "s")
    body = log.read_bytes()
    log.write_bytes(body[: len(body.rstrip(b"\0")) // 2])
    async with stores(tmp_path, "one", "two") as (one, two):
        await one.acquire("s")
        last = two if takeover else one
        if takeover:
            await two.acquire("s", takeover=True)
        with pytest.raises(CorruptJournal, match=r"end are missing|before the frame"):
            await last.load("s", "default")


async def test_a_damaged_log_can_be_taken_over_set_aside_and_deleted(tmp_path: Path) -> None:
    await stored(tmp_path)
    log = log_of(tmp_path, "s")
    body = bytearray(log.read_bytes())
    body[100] ^= 1
    log.write_bytes(body)
    async with stores(tmp_path, "one", "two") as (one, two):
        await one.acquire("s")
        lease, _ = await two.acquire("s", takeover=True)
        copied = log_of(tmp_path, "s")
        assert copied != log
        assert copied.read_bytes() == bytes(body)
        await give_up(two, lease)
        await two.set_aside("s", [])
        assert await two.sessions() == []


@pytest.mark.parametrize("plant", [lambda path: path.symlink_to("/etc/passwd"), os.mkfifo, Path.mkdir])
async def test_what_is_no_log_can_be_taken_over_and_set_aside(plant: Callable[[Path], None], tmp_path: Path) -> None:
    await stored(tmp_path)
    log = log_of(tmp_path, "s")
    log.unlink()
    plant(log)
    with anyio.fail_after(20):
        async with stores(tmp_path, "one", "two") as (one, two):
            await one.acquire("s")
            lease, _ = await two.acquire("s", takeover=True)
            with pytest.raises(CorruptJournal, match="no file has its place"):
                await append(two, lease, grow(1))
            await give_up(two, lease)
            assert (await two.salvage("s")).damages
            await two.set_aside("s", grow(2))
            assert len(await two.load("s", "default", whole=True)) == 2


async def test_a_huge_hole_takes_no_memory(tmp_path: Path) -> None:
    rows = await stored(tmp_path)
    os.truncate(log_of(tmp_path, "s"), 1 << 40)
    with anyio.fail_after(20):
        async with stores(tmp_path, "one", "two") as (one, two):
            await one.acquire("s")
            lease, _ = await two.acquire("s", takeover=True)
            with pytest.raises(CorruptJournal, match="more bytes follow"):
                await two.load("s", "default")
            await give_up(two, lease)
            salvage = await two.salvage("s")
            assert list(salvage.rows) == rows
            await two.set_aside("s", salvage.rows)
    assert await loaded(tmp_path) == rows


async def test_every_frame_that_was_not_touched_is_salvaged(tmp_path: Path) -> None:
    rows = await stored(tmp_path, 40)
    log = log_of(tmp_path, "s")
    body = log.read_bytes()
    for places in ([100], [700, 900, 901], [400, 3000], range(500, 2500)):
        changed = bytearray(body)
        for place in places:
            changed[place] ^= 0x55
        log.write_bytes(changed)
        async with stores(tmp_path, "doctor") as (store,):
            salvage = await store.salvage("s")
        untouched = [row for row, frame in zip(rows, frames_of(body), strict=True) if changed[frame] == body[frame]]
        assert list(salvage.rows) == untouched
        assert salvage.damages


def frames_of(body: bytes) -> list[slice]:
    frames = log_file.frames_in(memoryview(body))
    return [slice(each.offset, each.end) for each in frames if isinstance(each, log_file.FoundFrame)]


async def test_commits_larger_than_what_is_read_at_once_are_read_again(tmp_path: Path) -> None:
    rows = [row._replace(body=bytes([65 + row.seq]) * size) for row, size in zip(grow(4), SIZES, strict=True)]
    async with stores(tmp_path, "one") as (store,):
        lease, _ = await store.acquire("s")
        for row in rows:
            await append(store, lease, [row])
    assert await loaded(tmp_path) == rows
    log = log_of(tmp_path, "s")
    os.truncate(log, frames_of(log.read_bytes())[-1].stop - 1)
    with pytest.raises(CorruptJournal):
        await loaded(tmp_path)


SIZES = [10, 1_500_000, 3_000_000, 1_100_000]


async def test_a_session_of_many_agents_is_known_from_its_last_frame(tmp_path: Path) -> None:
    agents = [f"agent-{number}" for number in range(3 * DIRECTORY_MAX)]
    rows = {agent: grow(3, agent) for agent in agents}
    async with stores(tmp_path, "one") as (store,):
        lease, _ = await store.acquire("s")
        for number in range(3):
            for agent in agents:
                await append(store, lease, [rows[agent][number]])
    async with stores(tmp_path, "two") as (store,):
        (info,) = await store.sessions()
        assert dict(info.agents) == dict.fromkeys(agents, 3)
        for agent in (agents[0], agents[-1]):
            assert list(await store.load("s", agent, whole=True)) == rows[agent]
            await store.acquire("s")
            assert list(await store.load("s", agent)) == rows[agent]


async def test_what_is_erased_is_in_no_file_of_the_session(tmp_path: Path) -> None:
    rows = grow(6)
    async with stores(tmp_path, "one", "two") as (one, two):
        await one.acquire("s")
        lease, _ = await two.acquire("s", takeover=True)
        for row in rows[:5]:
            await append(two, lease, [row])
        left = tmp_path / "journals/s/.journal.log"  # of an owner that was killed while it erased
        shutil.copy(log_of(tmp_path, "s"), left)
        sizes = [frame.stop - frame.start for frame in frames_of(log_of(tmp_path, "s").read_bytes())]
        await append(two, lease, [], 1, 3)
        body = log_of(tmp_path, "s").read_bytes()
        assert [frame.stop - frame.start for frame in frames_of(body)] == sizes
        await append(two, lease, rows[5:])
        assert list(await one.load("s", "default", whole=True)) == [
            row.without_content() if row.seq in (1, 3) else row for row in rows
        ]
    for path in (tmp_path / "journals").rglob("*"):
        assert path.is_dir() or not any(rows[seq - 1].body in path.read_bytes() for seq in (1, 3))


# Faults of the disk.


@pytest.mark.parametrize("call", ["fsync", "fdatasync", "pwrite"])
async def test_a_commit_that_the_disk_refuses_costs_nothing_that_was_acknowledged(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row._replace(body=b"x" * 5000) for row in grow(40)]
    if call == "fsync":  # It is called where the file grows.
        monkeypatch.setattr(log_file, "_STEP_MAX", 4096)
    async with stores(tmp_path, "one") as (store,):
        lease, _ = await store.acquire("s")
        await append(store, lease, rows[:1])
        acknowledged, refused = 1, 0
        for turn in range(30):
            with monkeypatch.context() as patch:
                if turn % 3 == 1:
                    fail(patch, call)
                try:
                    await append(store, lease, rows[acknowledged : acknowledged + 1])
                    acknowledged += 1
                except Unavailable:
                    refused += 1
        assert refused >= 9
        assert list(await store.load("s", "default")) == rows[:acknowledged]
    assert await loaded(tmp_path) == rows[:acknowledged]


def fail(patch: pytest.MonkeyPatch, call: str) -> None:
    def refuse(*arguments: Any) -> int:
        if call == "pwrite" and len(arguments[1]) < 40:  # the record of the owner, which nobody needs
            return 0
        if call == "pwrite":
            real(arguments[0], bytes(arguments[1])[:100], arguments[2])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    real = os.pwrite
    patch.setattr(*((log_file, "_sync_data") if call == "fdatasync" else (os, call)), refuse)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the open files of a process are listed on Linux")
@pytest.mark.parametrize("then", ["append", "delete", "acquire"])
async def test_owners_that_were_fenced_keep_no_file_open(then: str, tmp_path: Path) -> None:
    async with stores(tmp_path, "one", "two") as (one, two):
        before = None
        for number in range(20):
            name = f"s{number}"
            lease, _ = await one.acquire(name)
            await append(one, lease, grow(1))
            taken, _ = await two.acquire(name, takeover=True)
            if then == "append":
                assert isinstance((await one.append([Batch(lease=lease, rows=grow(2)[1:])]))[0], LeaseLost)
            await give_up(two, taken)
            if then == "delete":
                await one.delete(name)
            elif then == "acquire":
                await give_up(one, (await one.acquire(name)).lease)
            before = len(os.listdir("/proc/self/fd")) if before is None else before
        assert len(os.listdir("/proc/self/fd")) <= before + 2


async def test_a_folder_that_is_removed_under_a_live_owner_is_lost_to_it(tmp_path: Path) -> None:
    rows = grow(3)
    async with stores(tmp_path / "root", "one", "two") as (one, two):
        lease, _ = await one.acquire("s")
        await append(one, lease, rows[:1])
        shutil.rmtree(tmp_path / "root/journals/s")
        with pytest.raises(LeaseLost):
            await append(one, lease, rows[1:2])
        assert await two.sessions() == []
        await append(two, (await two.acquire("s")).lease, rows[:1])


async def test_a_volume_that_goes_away_is_waited_for(tmp_path: Path) -> None:
    rows = grow(3)
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    async with stores(root, "one") as (store,):
        lease, _ = await store.acquire("s")
        await append(store, lease, rows[:1])
        root.rename(elsewhere)
        with pytest.raises(StoreUnavailable):
            await append(store, lease, rows[1:2])
        assert not root.exists()
        elsewhere.rename(root)
        await append(store, lease, rows[1:])
    assert await loaded(root) == rows


# Who may write.


class Died(BaseException):
    """Instead of a kill, which a test would not survive."""


OPERATIONS = ["begin", "append", "erase", "takeover", "takeover of a new session", "delete", "set aside"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_an_owner_that_dies_in_any_call_leaves_all_or_nothing(operation: str, tmp_path: Path) -> None:
    rows, crash_at, survived = grow(4), 0, False
    while not survived:
        crash_at += 1
        root = tmp_path / str(crash_at)
        before: list[Row] = [] if operation in ("begin", "takeover of a new session") else rows[:3]
        living, dying = log_store(root, "living"), log_store(root, "dying")
        lease, _ = await living.acquire("s")
        if before:
            await append(living, lease, before[:2])
            await append(living, lease, before[2:])
        if not operation.startswith("takeover"):
            await give_up(living, lease)
            lease, _ = await dying.acquire("s")
        await dying._life.begin()
        survived = await dies(operation, dying, lease, rows, crash_at)
        for held in dying._table.held().values():
            held.owner.forget_parent()  # as the kernel does for a dead process
        if operation.startswith("takeover"):
            (outcome,) = await living.append([Batch(lease=lease, rows=rows[len(before) :])])
            before = rows if isinstance(outcome, Position) else before
        async with stores(root, "next") as (store,):
            assert not any(info.damaged for info in await store.sessions()), crash_at
            await store.acquire("s", takeover=True)
            found = list(await store.load("s", "default", whole=True))
            after = {"delete": [], "erase": [row.without_content() for row in before]}.get(operation, rows)
            nothing: list[list[Row]] = [[]] if operation == "set aside" else []
            allowed = [after] if survived and operation != "takeover of a new session" else [before, after, *nothing]
            if operation.startswith("takeover"):
                allowed = [before]
            assert found in allowed, crash_at
            if found:
                assert list(await store.load("s", "default")) == found
    assert crash_at > 5


async def dies(operation: str, store: LogSessionStore, lease: Lease, rows: list[Row], crash_at: int) -> bool:
    """Whether the operation was over before it came to that call."""
    dead = threading.Event()

    def die() -> None:
        dead.set()
        raise Died

    class Points(CrashPoints):
        def reach(self, label: str) -> None:
            if dead.is_set():
                raise Died
            super().reach(label)

    restore_calls = crash_in_system_calls(Points(crash_at, die))
    try:
        match operation:
            case "begin":
                await append(store, lease, rows)
            case "append":
                await append(store, lease, rows[3:])
            case "erase":
                await append(store, lease, [], 1, 2, 3)
            case "delete":
                await store.delete("s")
            case "set aside":
                await store.set_aside("s", rows)
            case _:
                await store.acquire("s", takeover=True)
    except BaseException as error:
        if not dead.is_set():
            raise
        del error
        return False
    finally:
        restore_calls()
    return True


async def test_a_fenced_owner_writes_nothing_that_anybody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped in the middle of a commit, at each of its calls."""
    rows = grow(6)
    for stop_at in ("pwrite", "sync", "is_mine"):
        root = tmp_path / stop_at
        async with stores(root, "two") as (two,):
            began, reached, go_on = threading.Event(), threading.Event(), threading.Event()

            events = began, reached, go_on

            def pause(real: Callable[..., Any], events: Any = events) -> Callable[..., Any]:
                began, reached, go_on = events

                def call(*arguments: Any) -> Any:
                    if began.is_set() and not reached.is_set():
                        reached.set()
                        go_on.wait(20)
                    return real(*arguments)

                return call

            with monkeypatch.context() as patch:
                target, name = {
                    "pwrite": (os, "pwrite"),
                    "sync": (log_file, "_sync_data"),
                    "is_mine": (owner_record.OwnerFile, "is_mine"),
                }[stop_at]
                patch.setattr(target, name, pause(getattr(target, name)))
                outcome: list[Any] = []

                async def commit(root: Path = root, began: Any = began, outcome: list[Any] = outcome) -> None:
                    async with stores(root, "one") as (one,):
                        lease, _ = await one.acquire("s")
                        await append(one, lease, rows[:2])
                        began.set()
                        outcome += await one.append([Batch(lease=lease, rows=rows[2:3])])

                theirs, run = None, cast("Callable[[], None]", partial(anyio.run, commit, backend="trio"))
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(anyio.to_thread.run_sync, run)
                    await anyio.to_thread.run_sync(reached.wait, 20)
                    theirs, _ = await two.acquire("s", takeover=True)
                    found = list(await two.load("s", "default"))
                    assert found in (rows[:2], rows[:3])
                    more = rows[len(found) : 5]
                    await append(two, theirs, more)
                    go_on.set()
                assert theirs is not None
                assert not isinstance(outcome[0], Position)
                await append(two, theirs, rows[5:])
        assert await loaded(root) == rows


async def test_frames_are_written_at_once_and_a_slow_disk_holds_the_event_loop_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, calls, slow = grow(4), list[tuple[str, bool]](), list[str]()

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: int, *arguments: Any) -> Any:
            calls.append((name, threading.current_thread() is threading.main_thread()))
            done_at = anyio.current_time() + 0.6 if slow and calls[-1] == ("write", True) else 0.0
            while done_at and anyio.current_time() < done_at:
                pass
            return real(file, *arguments)

        return call

    async with stores(tmp_path, "one") as (store,):
        lease, _ = await store.acquire("s")
        monkeypatch.setattr(log_file, "_write_all", noted("write", log_file._write_all))  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(log_file, "_sync_data", noted("sync", log_file._sync_data))  # pyright: ignore[reportPrivateUsage]
        await append(store, lease, rows[:1])
        await append(store, lease, rows[1:2])
        slow.append("from now on")
        await append(store, lease, rows[2:3])
        await append(store, lease, rows[3:])
    assert [on_loop for name, on_loop in calls if name == "write"] == [True, True, True, False]
    assert not any(on_loop for name, on_loop in calls if name == "sync")
    assert await loaded(tmp_path) == rows


async def test_the_last_frame_of_a_killed_owner_is_synced_before_the_next_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a crash of the machine leaves of two frames would be damage."""
    rows, calls = grow(4), list[str]()
    await append_without_sync(tmp_path, rows[:2])
    real = os.fsync, log_file._write_all  # pyright: ignore[reportPrivateUsage]
    async with stores(tmp_path, "next") as (store,):
        lease, _ = await store.acquire("s")
        monkeypatch.setattr(os, "fsync", lambda file: (calls.append("sync"), real[0](file)))
        monkeypatch.setattr(log_file, "_write_all", lambda *of: (calls.append("write"), real[1](*of)))
        assert list(await store.load("s", "default")) == rows[:2]
        await append(store, lease, rows[2:])
    assert calls[:2] == ["sync", "write"]


async def append_without_sync(root: Path, rows: Sequence[Row]) -> None:
    """Store rows, of which a killed owner has not acknowledged the last one."""
    async with stores(root, "killed") as (store,):
        lease, _ = await store.acquire("s")
        await append(store, lease, rows[:1])
        found = read_owner(root / "journals/s")
        await append(store, lease, rows[1:])
        await give_up(store, lease)
    assert found is not None
    (root / "journals/s" / RECORD).write_bytes(found.pack())


async def test_threads_with_loops_of_their_own_share_a_session(tmp_path: Path) -> None:
    turns = 20

    def work(number: int) -> None:
        async def main() -> None:
            async with stores(tmp_path, f"thread-{number}") as (store,):
                for _ in range(turns):
                    while True:
                        try:
                            lease, _ = await store.acquire("s")
                            break
                        except SessionBusy:
                            await anyio.sleep(0.001)
                    rows = await store.load("s", "default", whole=True)
                    await append(store, lease, grow(1, after=rows))
                    await give_up(store, lease)

        anyio.run(main)

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(anyio.to_thread.run_sync, work, number)
    rows = await loaded(tmp_path)
    assert len(rows) == 4 * turns
    restore(rows)


async def test_readers_never_see_half_a_commit(tmp_path: Path) -> None:
    rows = grow(300)
    async with stores(tmp_path, "one", "two") as (one, two):
        lease, _ = await one.acquire("s")
        await append(one, lease, rows[:1])

        async def write() -> None:
            for row in rows[1:]:
                await append(one, lease, [row])
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            while True:
                found = list(await two.load("s", "default", whole=True))
                assert found == rows[: len(found)]
                (info,) = await two.sessions()
                assert not info.damaged


def program(text: str, *arguments: object) -> None:
    command = [sys.executable, "-c", text, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


FORKS = """
import gc, os, signal, sys

def wait():
    if held:
        os.read(held[0], 1)

held = []
os.register_at_fork(after_in_child=wait)  # The first of a child's calls: before it closes what is its parent's.

import anyio
from pathlib import Path
from repertory.backends.ports import Batch, Position
from repertory.errors import SessionBusy
from repertory.testing.session_contract import grow, windowed
from tests.backends.sessions.log_places import log_store

async def main():
    root = Path(sys.argv[1])
    store, rows = log_store(root, "parent"), grow(20)
    lease, _ = await store.acquire("s")
    for number in range(12):
        (outcome,) = await store.append([Batch(lease=lease, rows=rows[number : number + 1])])
        assert isinstance(outcome, Position), outcome
        child = os.fork()
        if not child:
            if number % 3 == 0:
                store.abandon()
            if number % 3 == 1:
                del store
                gc.collect()
            if number % 4:
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        other = log_store(root, f"other-{number}")
        try:
            await other.acquire("s")
            raise AssertionError("a child has freed its parent's session")
        except SessionBusy:
            pass
        await other.aclose()
    for number, begins in enumerate([False, True]):
        held[:] = [] if begins else os.pipe()
        child = os.fork()
        if not child:
            os.execvp("sleep", ["sleep", "30"])
        try:
            await store.release([lease])
            other = log_store(root, f"other-{number}")
            await other.acquire("s")
            await other.aclose()
            lease, _ = await store.acquire("s")
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)

anyio.run(main)
"""


async def test_a_child_neither_frees_nor_keeps_its_parents_session(tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(program, FORKS, tmp_path)


TURNS = """
import sys, anyio
from pathlib import Path
from repertory.backends.ports import Batch, Position
from repertory.errors import SessionBusy
from repertory.testing.session_contract import grow, windowed
from tests.backends.sessions.log_places import log_store

async def main():
    root, parity, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = log_store(root, f"process-{parity}")
    seq = 0
    async with store.capabilities.sharing.waiting("s") as until_free:
        while seq < last:
            try:
                lease, _ = await store.acquire("s")
            except SessionBusy as busy:
                await until_free(str(busy.fields.get("owner")), 0.01)
                continue
            rows = await store.load("s", "default")
            seq = rows[-1].seq if rows else 0
            ours = seq < last and seq % 2 == parity
            if ours:
                (outcome,) = await store.append([Batch(lease=lease, rows=grow(1, after=rows))])
                assert isinstance(outcome, Position), outcome
            await store.release([lease])
            if not ours:  # Time for the other one, instead of taking the session from it again.
                await anyio.sleep(0.0005)
    await store.aclose()

anyio.run(main)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_two_processes_alternate_a_thousand_times(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        for parity in (0, 1):
            tasks.start_soon(anyio.to_thread.run_sync, program, TURNS, tmp_path, parity, 1000)
    rows = await loaded(tmp_path)
    assert len(rows) == 1000
    restore(rows)


@pytest.mark.parametrize("make", [log_store, folder_store])
async def test_a_session_is_given_up_and_taken_back_within_a_step(
    tmp_path: Path, make: Callable[[Path, str], LogSessionStore | FolderSessionStore]
) -> None:
    rows = grow(4)
    one, two = make(tmp_path, "one"), make(tmp_path, "two")
    try:
        lease, _ = await one.acquire("s", load="default")
        assert not lease.release_now(), "without a log, its folder has to be removed"
        await one.append([Batch(lease=lease, rows=rows[:2])])
        assert lease.release_now()
        assert not lease.release_now()
        assert lease.acquire_now()
        assert not lease.acquire_now()
        (outcome,) = await one.append([Batch(lease=lease, rows=rows[2:])])
        assert isinstance(outcome, Position)
        assert lease.release_now()
        other, _ = await two.acquire("s", load="default")
        assert not lease.acquire_now(), "another one has it"
        assert other.release_now()
        assert not lease.acquire_now(), "another one has had it"
        assert await one.load("s", "default", whole=True) == rows
    finally:
        await one.aclose()
        await two.aclose()


def add_document(root: Path, number: int) -> None:
    """Add a message as a program of the SDK does."""
    messages = root / "session_s/agents/agent_default/messages"
    document = json.loads((messages / f"message_{number % 2}.json").read_bytes())
    del document["message"]["tracking_id"]
    (messages / f"message_{number}.json").write_text(json.dumps({**document, "message_id": number}))


async def test_a_document_of_others_keeps_a_session_from_being_taken_back(tmp_path: Path) -> None:
    store = folder_store(tmp_path, "one")
    try:
        lease, _ = await store.acquire("s", load="default")
        await store.append([Batch(lease=lease, rows=grow(2))])
        assert lease.release_now()
        add_document(tmp_path, 2)
        assert not lease.acquire_now()
        again, _ = await store.acquire("s", load="default")
        assert len(await store.load("s", "default", whole=True)) == 3
        assert again.release_now()
        assert again.acquire_now()
    finally:
        await store.aclose()


async def test_a_long_conversation_of_others_is_read_frame_by_frame(tmp_path: Path) -> None:
    """The window of a tree is read in the same time, however long the tree is."""
    first = folder_store(tmp_path, "one")
    lease, _ = await first.acquire("s", load="default")
    await first.append([Batch(lease=lease, rows=grow(2))])
    await first.aclose()
    for number in range(2, 1000):
        add_document(tmp_path, number)
    second = folder_store(tmp_path, "two")
    await second.acquire("s", load="default")
    await second.aclose()
    with LogReader(tmp_path / "session_s/repertory/journal.log", "s") as log:
        frames = [len(frame.rows) for frame in log.frames()]
    assert sum(frames) >= 1000
    assert max(frames) <= 200
