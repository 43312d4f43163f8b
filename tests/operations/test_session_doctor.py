"""Damage is found and set aside as it is; what is sound of a session stays open, and so does every other session."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest
from msgspec.structs import replace

from repertory import FileSessions, FileStorage, JournalSessions, Sessions, SQLiteSessions
from repertory.app.sessions.sessions import SessionLocation
from repertory.backends.objects.in_memory import ObjectShelf
from repertory.backends.ports import Batch, Condition, ObjectStore, give_up
from repertory.core.journal.log_frames import FoundFrame, frames_in, pack_frame
from repertory.core.messages import text_of
from repertory.errors import Corrupt, SessionBusy, Unavailable
from repertory.testing.session_contract import grow
from tests.operations.operated_places import LOCAL, Memory, fill, place_of, random_journal, rows_in, talk

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

TEXTS = [f"text {number}" for number in range(6)]


def statement(sql: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        with sqlite3.connect(folder / "sessions.db") as connection:
            connection.execute(sql)
        connection.close()

    return damage


def on_file(pattern: str, change: Callable[[bytes], bytes | None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = sorted(folder.glob(pattern))[-1]
        body = change(path.read_bytes())
        path.unlink()
        if body is not None:
            path.write_bytes(body)

    return damage


def both(*damages: Callable[[Path], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for each in damages:
            each(folder)

    return damage


def flipped(body: bytes) -> bytes:
    return body[:-20] + bytes([body[-20] ^ 1]) + body[-19:]


def gone(_: bytes) -> None:
    return None


BUCKET = "bucket/session_s/repertory"
LOG = "journals/journals/s/journal.log"


def frames_of(body: bytes) -> list[slice]:
    """Where the frames of a log are."""
    return [slice(each.offset, each.end) for each in frames_in(memoryview(body)) if isinstance(each, FoundFrame)]


def on_frame(number: int, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def changed(body: bytes) -> bytes:
        at = frames_of(body)[number]
        return body[: at.start] + change(body[at]) + body[at.stop :]

    return on_file(LOG, changed)


def of_another_session(body: bytes) -> bytes:
    (found, _) = frames_in(memoryview(body))
    assert isinstance(found, FoundFrame)
    return pack_frame(replace(found.read(), session_id="t"), len(body))


ROW = "seq = 4 AND journal IN (SELECT id FROM journals WHERE session = 's')"
DAMAGES = {
    "sqlite: a body was edited": ("sqlite", statement(f"UPDATE rows SET body = x'00' WHERE {ROW}"), 3),
    "sqlite: a body became text": ("sqlite", statement(f"UPDATE rows SET body = 'text' WHERE {ROW}"), 3),
    "sqlite: a number was edited": ("sqlite", statement(f"UPDATE rows SET kind = -7 WHERE {ROW}"), 3),
    "sqlite: a row was removed": ("sqlite", statement(f"DELETE FROM rows WHERE {ROW}"), 3),
    "sqlite: the chain was broken": (
        "sqlite",
        statement(f"UPDATE rows SET previous = 1 WHERE {ROW.replace('4', '6', 1)}"),
        7,
    ),
    "sqlite: the end was lost": ("sqlite", statement("DELETE FROM rows WHERE seq = 7"), 6),
    "sqlite: the first row was edited": (
        "sqlite",
        statement(f"UPDATE rows SET salt = x'01' WHERE {ROW.replace('4', '1', 1)}"),
        0,
    ),
    "journal: a frame was cut": ("journal in files", on_file(LOG, lambda body: body[: frames_of(body)[2].stop - 7]), 2),
    "journal: a frame was emptied": ("journal in files", on_frame(2, lambda frame: bytes(len(frame))), 2),
    "journal: a bit was flipped in an old frame": ("journal in files", on_frame(2, flipped), 2),
    "journal: a bit was flipped in the first frame": ("journal in files", on_frame(0, flipped), 0),
    "journal: a bit was flipped in a header": ("journal in files", on_frame(2, lambda frame: b"r" + frame[1:]), 2),
    "journal: a bit was flipped in the last frame": ("journal in files", on_frame(-1, flipped), 6),
    "journal: the last frame was cut": (
        "journal in files",
        on_file(LOG, lambda body: body[: frames_of(body)[-1].stop - 20]),
        6,
    ),
    "journal: the last frame was emptied": ("journal in files", on_frame(-1, lambda frame: bytes(len(frame))), 6),
    "journal: an older copy was put back": (
        "journal in files",
        on_file(LOG, lambda body: body[: frames_of(body)[1].stop]),
        2,
    ),
    "journal: the log was emptied": ("journal in files", on_file(LOG, lambda _: b""), 0),
    "journal: the log was removed": ("journal in files", on_file(LOG, gone), 0),
    "journal: the log is foreign": ("journal in files", on_file(LOG, lambda _: b"foreign" * 10), 0),
    "journal: the log is another session's": ("journal in files", on_frame(0, of_another_session), 0),
    "bucket: a segment is foreign": (
        "bucket in files",
        on_file(f"{BUCKET}/s/0000000000000003", lambda _: b"foreign"),
        2,
    ),
    "bucket: the head is foreign": ("bucket in files", on_file(f"{BUCKET}/head", lambda _: b"foreign"), 7),
}


async def talk_in_commits(place: SessionLocation, session_id: str) -> None:
    """One commit for each message, so that each has an object of its own."""
    store = place.open_store()
    lease, _ = await store.acquire(session_id)
    driver = talk(*TEXTS)
    driver.plan_drop(4)  # so that opening needs the last ones only
    for row in driver.rows:
        await store.append([Batch(lease=lease, rows=[row])])
    await give_up(store, lease)
    await store.aclose()


@pytest.mark.parametrize(
    ("anyio_backend", "name"), [*zip(cycle(["asyncio", "trio"]), DAMAGES, strict=False)], indirect=["anyio_backend"]
)
async def test_what_is_damaged_is_set_aside_and_the_rest_opens(name: str, tmp_path: Path) -> None:
    kind, damage, kept = DAMAGES[name]
    place = place_of(kind, tmp_path)
    sessions = Sessions(place)
    await talk_in_commits(place, "s")
    if "the end was lost" in name:
        await fill(place, "other", talk("text 3").rows)
        await sessions.delete("other")
    else:
        await fill(place, "sound", talk("text 3").rows)
    damage(tmp_path)
    before = stored_bytes(tmp_path)
    await is_met_by_others(name, sessions, tmp_path)

    found = await sessions.doctor()
    health = {each.session_id: each for each in found.sessions}
    assert not found.ok
    assert health["s"].problems
    assert not health["s"].ok
    assert "sound" not in health or health["sound"].ok
    assert stored_bytes(tmp_path) == before, "looking changes nothing"

    report = await sessions.doctor(repair=True)
    (repaired,) = [each for each in report.sessions if each.session_id == "s"]
    assert repaired.repair is not None, repaired
    assert report.ok
    assert dict(repaired.repair.kept) == ({"agent": kept} if kept else {})
    assert evidence(kind, tmp_path, repaired.repair.moved_to)
    after = await sessions.doctor()
    assert after.ok, after
    assert all(not each.problems for each in after.sessions)

    rows = await rows_in(place, "s")
    if not kept:
        assert rows == []
        return
    history = (await sessions.show("s")).agents["agent"]
    said = [text_of(each.message) for each in history.messages]
    assert [taken.label for taken in history.snapshots] == ["repaired"]
    if kind == "bucket in files":  # The documents have what the journal has lost.
        assert said == TEXTS
    else:
        assert said == TEXTS[:kept]
        assert len(rows) == kept + 1
    await sessions.rewind("s", 2)


async def is_met_by_others(name: str, sessions: Sessions, folder: Path) -> None:
    """Damage is a typed error for whoever meets it, and no other session suffers from it."""
    assert "s" in {info.session_id for info in await sessions.list()}
    found = await sessions.search("text 3")
    assert "the end" in name or "sound" in {hit.session_id for hit in found.hits}
    if not any(word in name for word in ("the lease", "the chain", "the end")):
        assert "s" in found.unreadable
        with pytest.raises(Corrupt):
            await sessions.export("s", folder / "s.jsonl")
    report = await sessions.expire(0, dry_run=True)
    assert "the end" in name or "sound" in report.expired


def stored_bytes(folder: Path) -> dict[str, bytes]:
    """Every file that holds something of a session."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "owners" not in str(path) and not path.name.endswith(("-wal", "-shm"))
    }


def evidence(kind: str, folder: Path, moved_to: str) -> bool:
    """Whether something lies where the report says."""
    if kind == "sqlite":
        with sqlite3.connect(folder / "sessions.db") as connection:
            (count,) = connection.execute("SELECT count(*) FROM quarantine WHERE session = 's'").fetchone()
        connection.close()
        return bool(count) and "table quarantine, number 1" in moved_to
    return any((folder / kind.split(" ", 1)[0].replace("journal", "journals") / moved_to).rglob("*"))


@pytest.mark.parametrize(
    "name",
    [
        "sqlite: a row was removed",
        "journal: a frame was emptied",
        "journal: the last frame was cut",
        "bucket: the head is foreign",
    ],
)
async def test_a_damaged_session_can_be_deleted_with_what_was_set_aside(name: str, tmp_path: Path) -> None:
    kind, damage, _ = DAMAGES[name]
    for repair in (True, False):
        folder = tmp_path / str(repair)
        place = place_of(kind, folder)
        sessions = Sessions(place)
        await talk_in_commits(place, "s")
        damage(folder)
        if repair:
            await sessions.doctor(repair=True)
            report = await sessions.redact("s", 1, "[removed]")
            assert len(report.quarantined) == 1
        await deleted(sessions, folder)


async def deleted(sessions: Sessions, tmp_path: Path) -> None:
    proof = await sessions.delete("s")
    assert proof.session_id == "s"
    assert await sessions.list() == []
    left = [key for key, body in stored_bytes(tmp_path).items() if b"text 0" in body or b"message_0" in key.encode()]
    assert left == []


@pytest.mark.parametrize("kind", LOCAL)
async def test_sound_sessions_of_every_kind_are_sound(kind: str, tmp_path: Path, rng: random.Random) -> None:
    place = place_of(kind, tmp_path)
    for number in range(4):
        await fill(place, f"s{number}", random_journal(rng).rows)
    await fill(place, "several", [*grow(3, "first"), *grow(2, "second")])
    report = await Sessions(place).doctor()
    assert report.ok, report
    assert len(report.sessions) == 5
    assert list(report.strays) == []


@pytest.mark.parametrize("kind", ["sqlite", "journal in files", "bucket in files"])
async def test_what_is_in_live_hands_is_not_repaired(kind: str, tmp_path: Path) -> None:
    place = place_of(kind, tmp_path)
    name = next(each for each, (of, _, _) in DAMAGES.items() if of == kind)
    await talk_in_commits(place, "s")
    DAMAGES[name][1](tmp_path)
    owner = place.open_store()
    await owner.acquire("s", takeover=True)
    report = await Sessions(place).doctor(repair=True)
    (health,) = report.sessions
    assert not report.ok
    assert health.not_repaired is not None
    assert "another live owner" in health.not_repaired
    with pytest.raises(SessionBusy):
        await Sessions(place).delete("s")
    await owner.aclose()
    assert (await Sessions(place).doctor(repair=True)).ok


async def test_strangers_among_the_sessions_are_named_and_left_alone(tmp_path: Path) -> None:
    journals, documents = JournalSessions(FileStorage(tmp_path / "j")), FileSessions(tmp_path / "d")
    for place in (journals, documents):
        await talk_in_commits(place, "s")
    strays = [
        tmp_path / "j/journals/notes.txt",
        tmp_path / "j/journals/s/x/y",
        tmp_path / "j/journals/s/head",
        tmp_path / "d/session_s/agents/agent_agent/messages/notes.txt",
    ]
    for path in strays:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("hello")
    (tmp_path / "d/elsewhere").write_text("hello")
    found = [*(await Sessions(journals).doctor(repair=True)).strays, *(await Sessions(documents).doctor()).strays]
    assert sorted(found) == sorted(str(path.relative_to(tmp_path / path.parts[len(tmp_path.parts)])) for path in strays)
    assert all(path.exists() for path in strays)


async def test_a_database_with_a_damaged_page_is_made_anew(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "sessions.db")
    store = place.open_store()
    for number in range(30):
        lease, _ = await store.acquire(f"s{number}")
        await store.append([Batch(lease=lease, rows=talk(*(f"{text} {'x' * 400}" for text in TEXTS)).rows)])
    await store.aclose()
    body = bytearray((tmp_path / "sessions.db").read_bytes())
    page = len(body) // 4096 // 2 * 4096
    body[page : page + 4096] = b"\xff" * 4096
    (tmp_path / "sessions.db").write_bytes(body)
    sessions = Sessions(place)
    report = await sessions.doctor()
    assert not report.ok
    assert report.damages

    report = await sessions.doctor(repair=True)
    assert report.ok, report
    assert report.rebuilt_from == f"{tmp_path / 'sessions.db'}.damaged-1"
    assert (tmp_path / "sessions.db.damaged-1").read_bytes() == bytes(body)
    after = await sessions.doctor()
    assert after.ok, after
    assert not after.damages
    sick = []
    for info in await sessions.list():
        agent = (await sessions.show(info.session_id)).agents["agent"]
        said = [text_of(each.message).split(" x")[0] for each in agent.messages]
        assert said == TEXTS[: len(said)]
        sick += [info.session_id] if len(said) < 6 else []
    assert 0 < len(sick) < 10
    assert len(await sessions.list()) > 25
    proof = await sessions.delete("s0")
    assert list(proof.corrupt_files) == [report.rebuilt_from]


class DyingStorage(Memory):
    """Memory whose user dies with its n-th write: nothing is written from there on."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_left: float = float("inf")
        self.later_s = 0.0
        """How much time has passed that nobody has waited."""
        self._shelf = ObjectShelf(lambda: time.time() + self.later_s)

    def open_objects(self, writer: str) -> ObjectStore:
        return DyingObjects(super().open_objects(writer), self)


class DyingObjects:
    def __init__(self, objects: ObjectStore, storage: DyingStorage) -> None:
        self._objects = objects
        self._storage = storage
        self.name = objects.name
        self.get, self.list, self.aclose = objects.get, objects.list, objects.aclose

    def _count(self) -> None:
        if self._storage.writes_left <= 0:
            raise Unavailable("the process has died")
        self._storage.writes_left -= 1

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        self._count()
        return await self._objects.put(key, body, condition)

    async def delete(self, key: str) -> None:
        self._count()
        await self._objects.delete(key)


async def test_a_doctor_that_dies_on_the_way_can_be_called_again() -> None:
    """Killed after any write, a session is as damaged as before or sound, and its objects are kept."""
    writes = 0
    while True:
        storage = DyingStorage()
        place = JournalSessions(storage)
        await talk_in_commits(place, "s")
        key = "journals/s/s/0000000000000003"
        damaged = storage.shelf.objects[key]._replace(body=b"damaged")
        storage.shelf.objects[key] = damaged
        storage.writes_left = writes
        first = await doctored(place)
        storage.writes_left, storage.later_s = float("inf"), 60.0  # its lease is over
        later = Sessions(place)
        assert (await later.doctor(repair=True)).ok, writes
        said = [text_of(each.message) for each in (await later.show("s")).agents["agent"].messages]
        assert said == TEXTS[:2], writes
        kept = [kept.body for name, kept in storage.shelf.objects.items() if name.endswith("s/0000000000000003")]
        assert b"damaged" in kept, writes
        if first:
            break
        writes += 1
    assert writes > 10


async def doctored(place: SessionLocation) -> bool:
    """Whether a doctor has survived."""
    try:
        return (await Sessions(place).doctor(repair=True)).ok
    except Unavailable:
        return False
