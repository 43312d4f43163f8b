"""A session database that is not as it was written: whatever reads it answers as before or says what is wrong, in time.

What a doctor does about it is in `tests/operations/test_session_doctor.py`; random damage in `tests/simulation`.
"""

# The tests look at files between calls; nothing else runs on their loops.
# ruff: noqa: ASYNC240

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from itertools import cycle
from pathlib import Path

import anyio
import pytest

from repertory import Agent, ScriptedModel, Sessions, SQLiteMemoryStore, SQLiteSessionManager, SQLiteSessions
from repertory.backends.ports import Batch, Position, WorkQuery, begin, give_up
from repertory.backends.sessions.liveness import OwnerLock
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import Row
from repertory.core.pending_work import DueTime
from repertory.errors import AlreadyExists, Corrupt, CorruptJournal, LeaseLost, NotFound, RepertoryError
from repertory.testing.session_contract import grow, windowed

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

WAIT_S = 20.0
ROWS = 8


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@asynccontextmanager
async def opened(path: Path, owner: str) -> AsyncGenerator[SQLiteSessionStore]:
    store = SQLiteSessionStore(path, owner=owner)
    try:
        yield store
    finally:
        await store.aclose()


async def put(path: Path, *sessions: str, count: int = ROWS) -> None:
    every = [grow(count, at=float(number)) for number, _ in enumerate(sessions, 1)]
    async with opened(path, "writer") as store:
        leases = [(await store.acquire(session)).lease for session in sessions]
        for rows in zip(*every, strict=True):  # in turns, one commit each
            for lease, row in zip(leases, rows, strict=True):
                await store.append([Batch(lease=lease, rows=[row])])


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def put_any(path: Path, table: str, name: str, value: str, where: str) -> None:
    """Put a value into a column that may refuse it, as a damaged page does."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (schema,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        statement = "UPDATE sqlite_schema SET sql = ? WHERE name = ?"
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(statement, (schema.replace(" NOT NULL", ""), table))
        connection.execute("PRAGMA writable_schema = RESET")
        connection.execute(f"UPDATE {table} SET {name} = {value} WHERE {where}")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(statement, (schema, table))


def position_of(path: Path, session: str, seq: int) -> int:
    statement = "SELECT position FROM rows JOIN journals ON journal = id WHERE session = ? AND rows.seq = ?"
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement, (session, seq)).fetchone()[0]


async def load(path: Path, session: str, *, whole: bool = False, at: int | None = None) -> list[Row]:
    async with opened(path, "reader") as store:
        with anyio.fail_after(WAIT_S):
            if at is not None:
                return list(await store.load_at(session, "default", at))
            return list(await store.load(session, "default", whole=whole))


async def is_refused(path: Path, session: str = "sick", **how: bool | int) -> CorruptJournal:
    with pytest.raises(CorruptJournal) as caught:
        await load(path, session, **how)
    return caught.value


@pytest.mark.parametrize("to", ["itself", "the row behind it", "another session's", "nothing"])
async def test_a_row_that_is_not_linked_to_an_earlier_one_ends_the_walk(path: Path, to: str) -> None:
    await put(path, "sick", "sound")
    at = position_of(path, "sick", 5)
    previous = {"itself": at, "the row behind it": position_of(path, "sick", 6), "nothing": 10**9}.get(to)
    previous = previous or position_of(path, "sound", 4)
    # Far from its neighbours, so that the whole journal is walked and not scanned.
    change(
        path, f"UPDATE rows SET previous = {previous} WHERE position = {at}", "UPDATE rows SET low = 1 WHERE low > 1"
    )
    for how in ({}, {"at": 6}):
        error = await is_refused(path, **how)
        assert error.fields["session"] == "sick"
        assert error.fields["seq"] == 4
    assert len(await load(path, "sound")) == ROWS
    sessions = Sessions(SQLiteSessions(path))
    with anyio.fail_after(WAIT_S):
        report = await sessions.doctor(repair=True)
    (found,) = [health for health in report.sessions if health.problems]
    assert found.session_id == "sick"
    assert found.repair is not None
    assert found.repair.kept == {"default": ROWS}, "every row is there, and proved by the chain"
    assert (await sessions.doctor()).ok


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("whole", [False, True])
async def test_lost_last_rows_are_missed(
    path: Path, settled: bool, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DESIGN: the end of a journal is noted on another page, by the commit that moves it."""
    if settled:
        monkeypatch.setattr("repertory.backends.sessions.sqlite.reading.SETTLE_AFTER", 2)
    await put(path, "sick", "sound")
    change(path, f"DELETE FROM rows WHERE position = {position_of(path, 'sick', ROWS)}")
    error = await is_refused(path, whole=whole)
    assert (error.fields["session"], error.fields["seq"]) == ("sick", ROWS)
    assert len(await load(path, "sound")) == ROWS
    sessions = Sessions(SQLiteSessions(path))
    assert {info.session_id: info.damaged for info in await sessions.list()} == {"sick": True, "sound": False}
    assert not (await sessions.doctor()).ok
    report = await sessions.doctor(repair=True)
    assert [health.repair.kept for health in report.sessions if health.repair] == [{"default": ROWS - 1}]
    assert (await sessions.doctor()).ok


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM recent",
        "UPDATE settled SET position = 1000",
        "UPDATE settled SET position = -5",
        f"INSERT INTO rows SELECT 1000, journal, previous, seq, kind, version, low, link, salt, body FROM rows"
        f" WHERE seq = {ROWS - 2} LIMIT 1",
    ],
    ids=["no ends are noted", "settled too far", "settled not at all", "a row is there twice"],
)
async def test_what_is_whole_opens_when_only_a_note_about_it_is_damaged(path: Path, statement: str) -> None:
    await put(path, "session", "other")
    change(path, statement)
    for session in ("session", "other"):
        assert [row.seq for row in await load(path, session, whole=True)] == list(range(1, ROWS + 1))


async def test_a_journal_whose_line_is_lost_or_renamed_is_no_new_one(path: Path) -> None:
    statements = (
        "DELETE FROM journals WHERE session = 'sick'",
        "UPDATE journals SET agent = 'another' WHERE session = 'sick'",
        "UPDATE journals SET session = 'another' WHERE session = 'sick'",
    )
    await put(path, "sick", "sound")
    body = path.read_bytes()
    for statement in statements:
        path.write_bytes(body)
        change(path, statement)
        error = await is_refused(path)
        assert error.fields["session"] == "sick"
        sessions = Sessions(SQLiteSessions(path))
        assert {info.session_id for info in await sessions.list() if info.damaged} >= {"sick"}
        assert not (await sessions.doctor()).ok


async def test_an_index_never_leads_to_another_sessions_journal(path: Path) -> None:
    """One byte of the index: the number of the line. Both journals are proved, and have agents of the same name."""
    await put(path, "sound", "sick")
    pages = [path.read_bytes()[start : start + 4096] for start in range(0, path.stat().st_size, 4096)]
    leaf = next(number for number, page in enumerate(pages) if page[0] == 10 and b"sickdefault\2" in page)
    pages[leaf] = pages[leaf].replace(b"sickdefault\2", b"sickdefault\1")
    path.write_bytes(b"".join(pages))
    for how in ({}, {"whole": True}, {"at": 3}):
        assert (await is_refused(path, **how)).fields["session"] == "sick"
    sessions = Sessions(SQLiteSessions(path))
    assert {info.session_id: info.damaged for info in await sessions.list()} == {"sick": True, "sound": False}
    assert (await sessions.doctor(repair=True)).ok
    for number, session in enumerate(("sound", "sick"), 1):
        assert [row.link for row in await load(path, session, whole=True)][:ROWS] == [
            row.link for row in grow(ROWS, at=float(number))
        ]


def spoil_the_index(path: Path, how: str) -> None:
    """Put another page in the place of the index of journals, or damage its entries, by bytes alone."""
    with closing(sqlite3.connect(path)) as connection:
        pages = dict(connection.execute("SELECT name, rootpage FROM sqlite_schema").fetchall())
    body, index = path.read_bytes(), 4096 * (pages["sqlite_autoindex_journals_1"] - 1)
    other = 4096 * (pages["sessions" if how == "the page of leases" else "labels"] - 1)
    page = body[other : other + 4096]
    if how == "an entry":  # Its agent becomes another one; the order of the entries stays.
        page = body[index : index + 4096].replace(b"sickdefault", b"sickdefaulu")
    path.write_bytes(body[:index] + page + body[index + 4096 :])


SPOILT = ["the page of leases", "an empty page", "an entry"]


@pytest.mark.parametrize("how", SPOILT)
async def test_a_session_without_a_lease_that_the_index_does_not_name_is_no_new_one(path: Path, how: str) -> None:
    await put(path, "before", "sick", "sound")
    change(path, "DELETE FROM sessions WHERE name = 'sick'")
    spoil_the_index(path, how)
    for reading in ({}, {"whole": True}, {"at": 3}):
        assert (await is_refused(path, **reading)).fields["session"] == "sick"
    with pytest.raises(CorruptJournal):
        await Sessions(SQLiteSessions(path)).show("sick")
    async with opened(path, "writer") as store:
        with pytest.raises(AlreadyExists):
            await begin(store, "sick", grow(1))
        lease, _ = await store.acquire("sick")
        with pytest.raises(CorruptJournal):
            await store.load("sick", "default")
        with pytest.raises(CorruptJournal):
            await store.append([Batch(lease=lease, rows=grow(1))])
        lease, _ = await store.acquire("new")
        assert await store.load("new", "default") == []
        await give_up(store, lease)
    sessions = Sessions(SQLiteSessions(path))
    assert (await sessions.doctor(repair=True)).ok
    for session in ("before", "sick", "sound"):
        assert [row.seq for row in await load(path, session, whole=True)] == list(range(1, ROWS + 1))


async def test_opening_a_session_that_lost_its_lease_does_not_hide_what_else_it_lost(path: Path) -> None:
    await put(path, "other", "sick")
    async with opened(path, "writer") as store:
        await store.append([Batch(lease=(await store.acquire("sick")).lease, rows=grow(2, "second"))])
    change(
        path,
        "UPDATE sessions SET name = 'text' WHERE name = 'sick'",
        "UPDATE journals SET session = 'text' WHERE agent = 'second'",
    )
    for _ in range(2):
        async with opened(path, "another") as store:
            lease, _ = await store.acquire("sick")
            assert len(await store.load("sick", "default", whole=True)) == ROWS
            with pytest.raises(CorruptJournal):
                await store.load("sick", "second")
            await give_up(store, lease)
    assert (await Sessions(SQLiteSessions(path)).doctor(repair=True)).ok
    assert [row.seq for row in await load(path, "sick", whole=True)][:ROWS] == list(range(1, ROWS + 1))


@pytest.mark.parametrize("how", [*SPOILT[:2], "a line"])
async def test_a_damaged_session_is_not_deleted_in_part(path: Path, how: str) -> None:
    await put(path, "before", "sick", "sound")
    if how == "a line":
        change(path, "DELETE FROM journals WHERE session = 'sick'")
    else:
        spoil_the_index(path, how)
    sessions = Sessions(SQLiteSessions(path))
    with pytest.raises(Corrupt):
        await sessions.delete("sick")
    assert "sick" in {info.session_id for info in await sessions.list() if info.damaged}
    assert (await sessions.doctor(repair=True)).ok
    with suppress(NotFound):  # Without its line, nothing says whose rows they are.
        await sessions.delete("sick")
    assert "sick" not in {info.session_id for info in await sessions.list()}


@pytest.mark.parametrize("rebuilt", [False, True])
async def test_work_that_a_session_without_a_lease_owes_is_claimed(path: Path, rebuilt: bool) -> None:
    async with opened(path, "writer") as store:
        lease, _ = await store.acquire("session")
        due = DueTime(agent_id="default", at=1.0, why="timer")
        await store.append([Batch(lease=lease, rows=grow(1), due=due)])
    change(path, "DELETE FROM sessions")
    if rebuilt:
        spoil_the_index(path, "an empty page")
        assert (await Sessions(SQLiteSessions(path)).doctor(repair=True)).rebuilt_from
    async with opened(path, "another") as store:
        (claimed,) = await store.claim_due(WorkQuery(2.0, 10, ["default"]))
        assert (claimed.session_id, claimed.agent_id) == ("session", "default")


TEXT, HIGHEST, NOTHING = "'text'", "9223372036854775807", "NULL"
COLUMNS = [
    *(f"rows.{name}" for name in ("journal", "previous", "seq", "kind", "version", "low", "link", "salt", "body")),
    *(f"journals.{name}" for name in ("session", "agent", "created_at", "head", "seq")),
    *(f"sessions.{name}" for name in ("name", "generation", "owner", "journals")),
    *(f"settled.{name}" for name in ("position", "generation")),
    *(f"recent.{name}" for name in ("position", "journal", "seq")),
]


def on_one_loop(names: list[str]) -> pytest.MarkDecorator:
    """Each of the names on one of the loops, in turns: threads do the work on both."""
    return pytest.mark.parametrize(
        ("anyio_backend", "column"), [*zip(cycle(["asyncio", "trio"]), names, strict=False)], indirect=["anyio_backend"]
    )


@on_one_loop(COLUMNS)
async def test_a_value_of_any_type_is_a_typed_error_or_harmless(path: Path, column: str) -> None:
    await put(path, "sick", "sound", count=3)
    body = path.read_bytes()
    table, _, name = column.partition(".")
    where = "name = 'sick'" if table == "sessions" else f"rowid = (SELECT max(rowid) FROM {table})"
    sessions = Sessions(SQLiteSessions(path))
    calls: list[Callable[[], Awaitable[object]]] = [
        sessions.list,
        lambda: sessions.show("sick"),
        lambda: load(path, "sick", at=2),
        lambda: sessions.mark("sick", "here"),
        lambda: sessions.doctor(repair=True),
        lambda: sessions.mark("sick", "there"),
    ]
    for value in (TEXT, HIGHEST, NOTHING):
        path.write_bytes(body)
        with suppress(sqlite3.IntegrityError):
            put_any(path, table, name, value, where)
        with anyio.fail_after(WAIT_S):
            for call in calls:
                with suppress(RepertoryError):
                    await call()


@pytest.mark.parametrize("lost", ["the log", "the end of the log", "a byte of the log"])
async def test_commits_that_are_missing_after_a_kill_are_missed(tmp_path: Path, lost: str) -> None:
    living, path = tmp_path / "living", tmp_path / "killed" / "sessions.db"
    living.mkdir()
    await put(living / "sessions.db", "session")
    store = SQLiteSessionStore(living / "sessions.db", owner="killed")
    lease, _ = await store.acquire("session")
    rows = await store.load("session", "default", whole=True)
    for row in grow(ROWS, after=rows):
        await store.append([Batch(lease=lease, rows=[row])])
    shutil.copytree(living, path.parent, ignore=shutil.ignore_patterns("*-shm"))  # as a kill leaves it
    await store.aclose()
    assert len(await copied(path, tmp_path / "whole")) == 2 * ROWS
    log = Path(f"{path}-wal")
    body = log.read_bytes()
    match lost:
        case "the log":
            log.unlink()
        case "the end of the log":
            log.write_bytes(body[: len(body) // 2])
        case _:
            log.write_bytes(body[: len(body) // 2] + b"\xff\xfe" + body[len(body) // 2 + 2 :])
    sessions = Sessions(SQLiteSessions(path))
    for call in (sessions.list, lambda: sessions.show("session"), lambda: load(path, "session")):
        with pytest.raises(CorruptJournal, match="acknowledged") as caught:
            await call()
        assert caught.value.fields["path"] == str(path)
    report = await sessions.doctor()
    assert [damage.where for damage in report.damages] == [str(path)]
    assert (await sessions.doctor(repair=True)).rebuilt_from is not None
    assert (await sessions.doctor()).ok
    assert ROWS <= len(await load(path, "session", whole=True)) < 2 * ROWS


async def copied(path: Path, folder: Path) -> list[Row]:
    shutil.copytree(path.parent, folder)
    return await load(folder / path.name, "session", whole=True)


@pytest.mark.parametrize("left", [None, b""], ids=["removed", "emptied"])
async def test_a_database_that_is_gone_does_not_begin_anew(path: Path, left: bytes | None) -> None:
    await put(path, "session")
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    for call in (lambda: load(path, "session"), lambda: put(path, "session"), Sessions(SQLiteSessions(path)).list):
        with pytest.raises(Corrupt, match="gone") as caught:
            await call()
        assert caught.value.fields["path"] == str(path)
    shutil.rmtree(f"{path}-owners")
    await put(path, "session")


async def test_a_rebuilding_that_was_killed_on_its_last_steps_is_finished(path: Path) -> None:
    await put(path, "session")
    whole = path.read_bytes()
    path.rename(f"{path}.damaged-1")
    Path(f"{path}.rebuilt").write_bytes(whole)
    with pytest.raises(Corrupt, match="gone"):
        await load(path, "session")
    store = SQLiteSessionStore(path, owner="doctor")
    assert await store.rebuild(lambda salvage: list(salvage.rows)) == f"{path}.damaged-1"
    await store.aclose()
    assert len(await load(path, "session")) == ROWS


async def test_a_file_of_which_nothing_can_be_read_is_left_as_it_is(path: Path) -> None:
    await put(path, "session")
    body = bytes(4096) + path.read_bytes()[4096:]
    path.write_bytes(body)
    report = await Sessions(SQLiteSessions(path)).doctor(repair=True)
    assert not report.ok
    assert "it was left as it is" in report.damages[-1].what
    assert path.read_bytes() == body


async def test_a_batch_that_is_refused_leaves_nothing_that_hinders_another(path: Path) -> None:
    store = SQLiteSessionStore(path, owner="owner")
    first, second = (await store.acquire("first")).lease, (await store.acquire("second")).lease
    wrong = Batch(lease=first, rows=[*grow(2, "one"), *grow(4, "two")[2:]])
    outcomes = await store.append([wrong, Batch(lease=second, rows=grow(2))])
    assert isinstance(outcomes[0], LeaseLost)
    assert isinstance(outcomes[1], Position)
    assert [info.session_id for info in await store.sessions()] == ["second"]
    (outcome,) = await store.append([Batch(lease=first, rows=[*grow(2, "one"), *grow(2, "two")])])
    assert isinstance(outcome, Position)
    await store.aclose()


async def test_a_name_in_the_database_is_never_a_path(tmp_path: Path) -> None:
    (tmp_path / "owners").mkdir()
    (tmp_path / "precious").write_text("kept")
    assert not OwnerLock(tmp_path / "owners", "me").alive("../precious")
    assert not OwnerLock(tmp_path / "owners", "me").alive("nul\0character")
    assert (tmp_path / "precious").read_text() == "kept"


async def test_redacted_rows_stay_provable(path: Path) -> None:
    await put(path, "session")
    sessions = Sessions(SQLiteSessions(path))
    await sessions.redact("session", 1, "[gone]")
    assert (await sessions.doctor()).ok
    rows = await load(path, "session", whole=True)
    assert rows[0].erased
    restore(rows)
    change(path, "UPDATE rows SET body = zeroblob(32) WHERE seq = 1")
    assert not (await sessions.doctor()).ok
    with pytest.raises(CorruptJournal):
        await sessions.history("session")


async def test_a_row_that_only_the_history_reads_is_proved(path: Path) -> None:
    store = SQLiteSessionStore(path, owner="writer")
    lease, _ = await store.acquire("session")
    await store.append([Batch(lease=lease, rows=windowed(30))])
    await store.aclose()
    change(path, "UPDATE rows SET body = (SELECT body FROM rows WHERE seq = 6) WHERE seq = 4")
    model = ScriptedModel(["Noted."])
    manager = SQLiteSessionManager("session", path=path)
    async with Agent(model, session_manager=manager, callback_handler=None) as agent:
        await agent.invoke_async("It opens: what it is shown is whole.")
        with pytest.raises(CorruptJournal) as caught:
            await agent.history()
        assert caught.value.fields["seq"] == 4


MEMORY = ["entries.words", "entries.place", "entries.kind", "entries.content", "entries.metadata", "entries.said_at"]
MEMORY += ["entries.conversation", "scopes.entries", "conversations.places", "conversations.session", "format.erasures"]


@on_one_loop(MEMORY)
async def test_a_value_of_any_type_in_a_memory_is_a_typed_error_or_harmless(path: Path, column: str) -> None:
    table, _, name = column.partition(".")
    for value in (TEXT, HIGHEST, NOTHING, "'{'"):
        path.unlink(missing_ok=True)
        store = SQLiteMemoryStore(path)
        for number in range(4):
            await store.add(f"tea number {number}", {"session_id": "s", "speaker": "Ann", "topic": "tea"})
        await store.aclose()
        with suppress(sqlite3.IntegrityError):
            put_any(path, f"memory_{table}", name, value, "TRUE")
        for call in (
            lambda: store.search("which tea was it, Ann?"),  # noqa: B023 - called at once
            store.entries,
            lambda: store.add("more tea", {"session_id": "s"}),  # noqa: B023
            lambda: store.forget(session_id="s"),  # noqa: B023
        ):
            with suppress(RepertoryError):
                await call()
        await store.aclose()
