"""The SQLite store's files, errors, threads and limits. The contract of every store is in `test_contract.py`."""

# The tests look at files between calls; nothing else runs on their loops.
# ruff: noqa: ASYNC240

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from repertory.backends.ports import Batch, Position, give_up
from repertory.backends.sessions.sqlite import journals as sqlite_journals
from repertory.backends.sessions.sqlite import reading as sqlite_reading
from repertory.backends.sessions.sqlite.file import SCHEMA_VERSION
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.core.journal.rows import Row
from repertory.errors import Corrupt, CorruptJournal, Failed, Invalid, LeaseLost, SessionBusy, Unavailable
from repertory.testing.session_contract import grow

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

WAIT_S = 20.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "sessions.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteSessionStore]:
    opened = SQLiteSessionStore(path, owner="owner", busy_timeout_s=0.1)
    with anyio.fail_after(WAIT_S):
        yield opened
        await opened.aclose()


async def put(store: SQLiteSessionStore, session_id: str, rows: list[Row]) -> None:
    lease, _ = await store.acquire(session_id)
    await store.append([Batch(lease=lease, rows=rows)])


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def _others() -> Iterator[None]:
    """Programs without an event loop keep their databases open for the next call, so earlier tests may have some."""
    _OTHERS.update(store_threads())
    yield
    _OTHERS.clear()


_OTHERS: set[threading.Thread] = set()


def store_threads() -> list[threading.Thread]:
    """The threads of stores that the running test has opened."""
    found = (thread for thread in threading.enumerate() if thread not in _OTHERS)
    return [thread for thread in found if thread.name == "repertory sessions.db"]


async def test_nothing_is_created_before_the_first_write(store: SQLiteSessionStore, path: Path) -> None:
    assert list(await store.sessions()) == []
    assert list(await store.load("session", "default")) == []
    assert not path.parent.exists()
    await store.acquire("session")
    assert path.exists()


async def test_files_are_for_their_owner_only(store: SQLiteSessionStore, path: Path) -> None:
    previous = os.umask(0)
    try:
        await put(store, "session", grow(1))
    finally:
        os.umask(previous)
    assert mode(path.parent) == 0o700
    owners = Path(f"{path}-owners")
    assert mode(owners) == 0o700
    files = [path, *(Path(f"{path}{ending}") for ending in ("-wal", "-shm", "-leases")), owners / "owner"]
    assert [mode(file) for file in files] == [0o600] * 5


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-owners", "-leases"])
async def test_symbolic_links_are_refused(store: SQLiteSessionStore, path: Path, suffix: str) -> None:
    path.parent.mkdir()
    target = path.parent / "elsewhere"
    target.write_text("untouched")
    Path(f"{path}{suffix}").symlink_to(target)
    with pytest.raises(Invalid, match="symbolic link"):
        await store.acquire("session")
    assert target.read_text() == "untouched"


async def test_nothing_outlives_aclose(path: Path) -> None:
    """DESIGN: no task, thread or file descriptor outlives the store."""
    before = set(os.listdir("/proc/self/fd"))
    store = SQLiteSessionStore(path, owner="owner")
    await put(store, "session", grow(3))
    assert len(store_threads()) == 1
    await store.aclose()
    assert store_threads() == []
    assert set(os.listdir("/proc/self/fd")) <= before
    assert sorted(each.name for each in path.parent.iterdir()) == [
        f"sessions.db{end}" for end in ("", "-leases", "-owners")
    ]
    assert list(Path(f"{path}-owners").iterdir()) == []


async def test_a_store_that_was_never_used_has_no_thread(path: Path) -> None:
    store = SQLiteSessionStore(path, owner="owner")
    await store.aclose()
    assert store_threads() == []
    with pytest.raises(Invalid, match="closed before"):
        await store.load("session", "default")


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
async def test_a_file_that_is_no_database_is_corrupt_and_untouched(
    store: SQLiteSessionStore, path: Path, content: bytes
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(Corrupt) as caught:
            await store.acquire("session")
        assert caught.value.fields["path"] == str(path)
    assert path.read_bytes() == content


async def test_somebody_elses_database_is_refused(store: SQLiteSessionStore, path: Path) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (id)")
    other.commit()
    other.close()
    content = path.read_bytes()
    with pytest.raises(Corrupt, match="not a session database"):
        await store.sessions()
    assert path.read_bytes() == content


async def test_an_unknown_version_is_refused_by_name(store: SQLiteSessionStore, path: Path) -> None:
    first = SQLiteSessionStore(path, owner="first")
    await put(first, "session", grow(1))
    await first.aclose()
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    newer.close()
    with pytest.raises(Failed, match=f"a newer release .*version={SCHEMA_VERSION + 1}"):
        await store.load("session", "default")


async def test_a_damaged_schema_is_corrupt(store: SQLiteSessionStore, path: Path) -> None:
    await put(store, "session", grow(1))
    other = sqlite3.connect(path)
    other.execute("DROP TABLE journals")
    other.commit()
    other.close()
    with pytest.raises(Corrupt, match="not a usable session database"):
        await store.sessions()


async def test_a_damaged_page_is_corrupt(store: SQLiteSessionStore, path: Path) -> None:
    first = SQLiteSessionStore(path, owner="first")
    await put(first, "session", grow(200))
    await first.aclose()
    content = bytearray(path.read_bytes())
    for page in range(4096 * 4, len(content), 4096):
        content[page : page + 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    with pytest.raises(Corrupt):
        await store.load("session", "default", whole=True)


async def test_a_session_whose_rows_cannot_be_loaded_is_owned_all_the_same_and_can_be_given_up(
    store: SQLiteSessionStore, path: Path
) -> None:
    await put(store, "session", grow(20))
    await store.aclose()
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM rows WHERE seq = 19")
    connection.commit()
    connection.close()
    one, two = (SQLiteSessionStore(path, owner=owner, busy_timeout_s=0.1) for owner in ("one", "two"))
    owned = await one.acquire("session", load="default")
    assert isinstance(owned.rows, CorruptJournal)
    with pytest.raises(SessionBusy):
        await two.acquire("session", load="default")
    await give_up(one, owned.lease)
    assert (await two.acquire("session", load="default")).lease.owner == "two"
    await one.aclose()
    await two.aclose()


async def test_a_caller_whose_time_is_over_waits_for_no_lock_of_others(path: Path) -> None:
    patient = SQLiteSessionStore(path, owner="owner", busy_timeout_s=60.0)
    lease, _ = await patient.acquire("session")
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    late = threading.Timer(10.0, other.execute, ["ROLLBACK"])  # So that a call that goes on waiting ends, too.
    late.start()
    for call in (patient.acquire("other"), patient.append([Batch(lease=lease, rows=grow(2))])):
        with anyio.move_on_after(0.05) as scope:
            await call
        assert (scope.cancelled_caught, other.in_transaction) == (True, True)
    late.cancel()
    other.execute("ROLLBACK")
    other.close()
    assert await patient.append([Batch(lease=lease, rows=grow(2))]) == [Position(agent_id="default", seq=2)]
    await patient.aclose()


async def test_a_locked_database_is_unavailable_and_usable_afterwards(store: SQLiteSessionStore, path: Path) -> None:
    rows = grow(2)
    lease, _ = await store.acquire("session")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for call in (store.append([Batch(lease=lease, rows=rows)]), store.acquire("other"), store.delete("session")):
        with pytest.raises(Unavailable) as caught:
            await call
        assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    other.execute("ROLLBACK")
    other.close()
    assert await store.append([Batch(lease=lease, rows=rows)]) == [Position(agent_id="default", seq=2)]


async def test_a_full_disk_is_unavailable_and_nothing_is_half_written(store: SQLiteSessionStore, path: Path) -> None:
    """A limit on the size of files stands in for the disk."""
    rows = grow(200)
    lease, _ = await store.acquire("session")
    await store.append([Batch(lease=lease, rows=rows[:1])])
    size = Path(f"{path}-wal").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, before[1]))
    try:
        with pytest.raises(Unavailable) as caught:
            await store.append([Batch(lease=lease, rows=rows[1:])])
        assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    assert list(await store.load("session", "default", whole=True)) == rows[:1]
    assert await store.append([Batch(lease=lease, rows=rows[1:])]) == [Position(agent_id="default", seq=200)]
    assert list(await store.load("session", "default", whole=True)) == rows


async def test_a_folder_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    store = SQLiteSessionStore(Path("/proc/nowhere/sessions.db"), owner="owner")
    with pytest.raises(Unavailable, match="/proc/nowhere"):
        await store.acquire("session")
    await store.aclose()
    (tmp_path / "file").write_text("")
    store = SQLiteSessionStore(tmp_path / "file" / "sessions.db", owner="owner")
    with pytest.raises((Invalid, Unavailable)):
        await store.acquire("session")
    await store.aclose()


async def test_a_folder_in_the_databases_place_is_invalid(store: SQLiteSessionStore, path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(Invalid, match="is a file"):
        await store.acquire("session")


async def test_a_database_that_was_removed_is_not_written_to_in_secret(store: SQLiteSessionStore, path: Path) -> None:
    lease, _ = await store.acquire("session")
    path.unlink()
    with pytest.raises(Unavailable):
        await store.append([Batch(lease=lease, rows=grow(1))])


async def test_two_stores_of_one_name_cannot_both_own(store: SQLiteSessionStore, path: Path) -> None:
    await store.acquire("session")
    twin = SQLiteSessionStore(path, owner="owner")
    with pytest.raises(Invalid, match="another store is using this owner's name"):
        await twin.acquire("other")
    await twin.aclose()


async def test_what_dead_owners_left_is_cleared_away(store: SQLiteSessionStore, path: Path) -> None:
    before = SQLiteSessionStore(path, owner="before")
    await put(before, "session", grow(1))
    await before.aclose()
    owners = Path(f"{path}-owners")
    for name in ("dead", ".half-made"):
        (owners / name).write_text("1")
    await store.acquire("session")
    assert [item.name for item in owners.iterdir()] == ["owner"]


async def test_a_cancelled_acquire_gives_the_session_back(store: SQLiteSessionStore, path: Path) -> None:
    other = SQLiteSessionStore(path, owner="other")
    await store.acquire("first")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.acquire("session")
    await other.acquire("session")
    await other.aclose()


async def test_a_task_cancelled_natively_waits_for_its_commit(path: Path, anyio_backend_name: str) -> None:
    """A cancellation by asyncio itself goes through an anyio shield, the second one included."""
    if anyio_backend_name != "asyncio":
        pytest.skip("trio knows one kind of cancellation")
    store = SQLiteSessionStore(path, owner="owner")
    rows = grow(1)
    lease, _ = await store.acquire("session")
    task = asyncio.ensure_future(store.append([Batch(lease=lease, rows=rows)]))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(await store.load("session", "default", whole=True)) == rows
    await store.aclose()


async def test_one_store_serves_several_loops(store: SQLiteSessionStore) -> None:
    """The sync facade runs a loop of its own beside the caller's."""
    journals = {f"session-{n}": grow(20) for n in range(4)}

    async def write(session_id: str) -> None:
        lease, _ = await store.acquire(session_id)
        for row in journals[session_id]:
            await store.append([Batch(lease=lease, rows=[row])])

    async with anyio.create_task_group() as tasks:
        for number, session_id in enumerate(journals):
            backend = ("asyncio", "trio")[number % 2]
            tasks.start_soon(anyio.to_thread.run_sync, lambda s=session_id, b=backend: anyio.run(write, s, backend=b))
    for session_id, rows in journals.items():
        assert list(await store.load(session_id, "default", whole=True)) == rows


async def test_heads_are_found_whether_settled_or_not(
    store: SQLiteSessionStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows lie in the order of arrival; where a journal ends must be right before, at and after each settling."""
    monkeypatch.setattr(sqlite_reading, "SETTLE_AFTER", 7)
    journals = {f"session-{n}": grow(15) for n in range(5)}
    leases = {name: (await store.acquire(name)).lease for name in journals}
    for step in range(15):
        for name, rows in journals.items():
            await store.append([Batch(lease=leases[name], rows=rows[step : step + 1])])
            reader = SQLiteSessionStore(path, owner="reader")
            assert list(await reader.load(name, "default", whole=True)) == rows[: step + 1]
            await reader.aclose()
    assert {info.session_id: info.agents["default"] for info in await store.sessions()} == dict.fromkeys(journals, 15)


async def test_agents_that_come_to_a_session_in_one_group_are_all_stored(store: SQLiteSessionStore, path: Path) -> None:
    lease, _ = await store.acquire("session")
    for agents in (["one", "two"], ["three", "four"]):
        outcomes = await store.append([Batch(lease=lease, rows=grow(2, agent)) for agent in agents])
        assert outcomes == [Position(agent_id=agent, seq=2) for agent in agents]
    (info,) = await store.sessions()
    assert info.agents == dict.fromkeys(["one", "two", "three", "four"], 2)


async def test_positions_are_never_used_twice(
    store: SQLiteSessionStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that remembers where it has read to must not miss rows that took the place of deleted ones."""
    monkeypatch.setattr(sqlite_reading, "SETTLE_AFTER", 1_000)
    rows = grow(5)
    other = SQLiteSessionStore(path, owner="other")
    await put(store, "first", rows)
    await put(store, "second", rows)
    assert len(await other.load("second", "default")) == 5
    await store.delete("second")
    third = SQLiteSessionStore(path, owner="third")
    await put(third, "third", rows)
    await put(other, "fourth", rows)
    for name in ("first", "third", "fourth"):
        for each in (store, other, third):
            assert list(await each.load(name, "default", whole=True)) == rows
    await other.aclose()
    await third.aclose()


async def test_a_fenced_owner_cannot_append_however_its_store_remembers_it(
    store: SQLiteSessionStore, path: Path
) -> None:
    rows = grow(6)
    lease, _ = await store.acquire("session")
    await store.append([Batch(lease=lease, rows=rows[:2])])
    other = SQLiteSessionStore(path, owner="other")
    taken, _ = await other.acquire("session", takeover=True)
    await other.append([Batch(lease=taken, rows=rows[2:4])])
    await give_up(other, taken)
    await other.aclose()
    for part in (rows[2:4], rows[4:]):
        assert isinstance((await store.append([Batch(lease=lease, rows=part)]))[0], LeaseLost)
    again, _ = await store.acquire("session")
    assert await store.append([Batch(lease=again, rows=rows[4:])]) == [Position(agent_id="default", seq=6)]


async def test_an_erased_content_is_in_no_file(store: SQLiteSessionStore, path: Path) -> None:
    """DESIGN: erased everywhere, not hidden."""
    rows = grow(400)
    secret = rows[9].body
    lease, _ = await store.acquire("session")
    await store.append([Batch(lease=lease, rows=rows)])
    files = [path, Path(f"{path}-wal")]
    assert any(secret in file.read_bytes() for file in files)
    await store.append([Batch(lease=lease, rows=[], erase=[("default", 10)])])
    assert not any(secret in file.read_bytes() for file in files)


async def test_what_was_erased_while_somebody_read_is_gone_when_they_have_read(
    store: SQLiteSessionStore, path: Path
) -> None:
    await put(store, "session", grow(3))
    lease, _ = await store.acquire("session")
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM rows").fetchone()
    await store.append([Batch(lease=lease, rows=[], erase=[("default", 2)])])
    reader.execute("COMMIT")
    await store.append([Batch(lease=lease, rows=[])])
    await store.load("session", "default")  # waits for what tidies up after the one before
    files = [file for file in path.parent.iterdir() if file.is_file()]
    assert [file.name for file in files if b"default says 1" in file.read_bytes()] == []
    reader.close()


async def test_a_deleted_session_is_in_no_file(store: SQLiteSessionStore, path: Path) -> None:
    rows = grow(100)
    await put(store, "kept", grow(10, "kept"))
    await put(store, "a-telling-name", rows)
    await store.delete("a-telling-name")
    content = b"".join(file.read_bytes() for file in (path, Path(f"{path}-wal")))
    assert b"a-telling-name" not in content
    assert rows[50].body not in content
    assert b"kept says 3" in content


async def test_the_log_does_not_grow_without_bound(
    store: SQLiteSessionStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_journals, "CHECKPOINT_BYTES", 64 * 1024)
    lease, _ = await store.acquire("session")
    for row in grow(300):
        await store.append([Batch(lease=lease, rows=[row])])
    assert Path(f"{path}-wal").stat().st_size < 64 * 1024 * 4


async def test_a_large_record_is_kept(store: SQLiteSessionStore) -> None:
    row = grow(1)[0]._replace(body=os.urandom(5_000_000))
    await put(store, "session", [row])
    assert list(await store.load("session", "default")) == [row]


async def test_a_relative_path_is_taken_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SQLiteSessionStore("some name?#.db", owner="owner")
    await put(store, "session", grow(1))
    await store.aclose()
    assert (tmp_path / "some name?#.db").exists()
