"""Directories and call boxes between processes: kills, broken connections, poolers, and what is left in files."""

# The tests look at files between calls; nothing else runs on their loops.
# ruff: noqa: ASYNC240

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from test_postgres_faults import relayed
from test_postgres_logins import pgbouncer, until_listening

from repertory.backends.peer_ports import Peer
from repertory.backends.ports import SessionStore, give_up
from repertory.backends.postgres.address import postgres_address
from repertory.backends.sessions.postgres.store import PostgresSessionStore, PostgresSettings
from repertory.backends.sessions.sqlite.peers import SOCKET_BYTES_MAX, peers_folder, socket_path
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.errors import Invalid, StoreUnavailable, Unavailable
from repertory.testing.cuts import LostWhen
from repertory.testing.peer_contract import ALL, box_of, boxed, directory_of, keys, taken_soon, until
from tests.backends.sessions.boxing_child import open_store
from tests.backends.sessions.postgres_places import files_of, postgres_store, schema_of
from tests.postgres_server import NAME, PostgresServer, postgres_server, programs
from tests.source_tree import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

GOLDEN = ROOT / "tests" / "golden" / "postgres-v1.sql"
CHILD = str(Path(__file__).with_name("boxing_child.py"))
Call = Callable[[SessionStore], Awaitable[object]]
METHODS: dict[str, Call] = {
    "join": lambda store: directory_of(store).join(Peer(name="relayed", address="host:1", room=1)),
    "peers": lambda store: directory_of(store).peers(),
    "owner_of": lambda store: directory_of(store).owner_of("session"),
    "leave": lambda store: directory_of(store).leave(),
    "put": lambda store: box_of(store).put(boxed("session", "new")),
    "take": lambda store: box_of(store).take(10, ALL),
    "done": lambda store: box_of(store).done([boxed("session")]),
    "again": lambda store: box_of(store).again(boxed("session"), 0.0, "again"),
    "calls": lambda store: box_of(store).calls(),
}


def child(place: str) -> subprocess.Popen[str]:
    command, env = [sys.executable, CHILD, place, "child"], {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_what_a_killed_process_was_told_is_kept_is_there_and_the_process_is_not(
    postgres: PostgresServer, tmp_path: Path, kind: str
) -> None:
    path = str(tmp_path / "sessions.db")
    place = path if kind == "sqlite" else f"{postgres.url}#{schema_of(tmp_path)}"
    store = open_store(place, "parent")
    with child(place) as process:
        try:
            assert process.stdout is not None
            with anyio.fail_after(40):
                assert await anyio.to_thread.run_sync(process.stdout.readline) == "ready\n"
                tokens = [await anyio.to_thread.run_sync(process.stdout.readline) for _ in range(20)]
                assert [peer.name for peer in await directory_of(store).peers()] == ["child"]
                assert await directory_of(store).owner_of("held") == "child"
                assert await box_of(store).take(1, {"nobody"}) == []
                process.kill()
                tokens += await anyio.to_thread.run_sync(process.stdout.readlines)

                async def gone() -> bool:
                    return not await directory_of(store).peers()

                await until(gone)
                assert await directory_of(store).owner_of("held") is None
                (call,) = [call for call in await taken_soon(box_of(store)) if call.session_id == "taken"]
                assert call.tries == 1
                kept = {call.token for call in await box_of(store).calls("session")}
                assert {token.strip() for token in tokens if token.endswith("\n")} <= kept
        finally:
            process.kill()
            await store.aclose()
    if kind == "sqlite":
        assert list(peers_folder(Path(path)).iterdir()) == []


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_connection_that_breaks_is_unavailable_and_the_next_call_works(
    postgres: PostgresServer, tmp_path: Path, method: str, cut: LostWhen
) -> None:
    async with relayed(postgres, tmp_path) as (store, observer, relay):
        await store.acquire("session")
        await box_of(store).put(boxed("session"))
        await box_of(store).take(1, ALL)
        await METHODS[method](store)
        relay.plan(cut, 1)
        with pytest.raises(StoreUnavailable):
            await METHODS[method](store)
        await METHODS[method](store)
        await box_of(observer).put(boxed("another"))
        assert ("another", "token") in keys(await box_of(store).take(10, ALL))


async def test_a_call_whose_taking_was_not_answered_is_taken_again(postgres: PostgresServer, tmp_path: Path) -> None:
    async with relayed(postgres, tmp_path) as (store, observer, relay):
        for name in ("mine", "lost"):
            await box_of(observer).put(boxed(name))
        assert keys(await box_of(store).take(1, ALL)) == [("mine", "token")]
        relay.plan("after", 1)
        with pytest.raises(StoreUnavailable):
            await box_of(store).take(10, ALL)
        assert list(await box_of(observer).take(10, ALL)) == []
        (call,) = await taken_soon(box_of(store))
        assert (call.session_id, call.tries) == ("lost", 0)


@pytest.mark.parametrize("direct", [True, False])
async def test_runtimes_share_behind_a_pooler(postgres: PostgresServer, tmp_path: Path, direct: bool) -> None:
    with pgbouncer(postgres, tmp_path) as port, anyio.fail_after(50):
        await until_listening(port)
        pooled = postgres_address(f"host=127.0.0.1 port={port} user={NAME} dbname=postgres")
        straight = postgres_address(postgres.dsn()) if direct else None
        settings = PostgresSettings(schema=schema_of(tmp_path), pooled=True, direct=straight, ttl_s=2.0)
        one, two = (PostgresSessionStore(pooled, owner=name, settings=settings) for name in ("one", "two"))
        async with anyio.create_task_group() as tasks:
            for store, name in ((one, "one"), (two, "two")):
                tasks.start_soon(store.maintain)
                await directory_of(store).join(Peer(name=name, address="host:1", room=1))
            assert len(await directory_of(one).peers()) == 2
            for number in range(20):
                await box_of(one).put(boxed(f"session-{number}"))
            taken = [call for store in (one, two) for call in await box_of(store).take(10, ALL)]
            assert len(set(keys(taken))) == 20
            await box_of(one).done(taken)
            await box_of(two).done(taken)
            assert list(await box_of(one).calls()) == []
            tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await one.aclose()
            await two.aclose()


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server whose files are read."""
    with postgres_server(wal_level="minimal", max_wal_senders="0") as server:
        yield server


async def test_the_prompts_of_a_deleted_session_leave_the_files_of_postgres(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    secret = f"SECRET-{tmp_path.name}"
    store = postgres_store(tmp_path, "owner", own_server)

    def held() -> bool:
        return any(secret.encode() in content for _, content in files_of(schema_of(tmp_path), own_server))

    try:
        with anyio.fail_after(50):
            for token in ("done", "waits"):
                await box_of(store).put(boxed("session", token, call={"prompt": secret}))
            await box_of(store).put(boxed("kept"))
            await box_of(store).done(await box_of(store).take(1, ALL))
            assert held()
            await store.delete("session")

            async def written() -> bool:
                return await store._erasures.write_anew() is False

            await until(written)
            assert not held()
            assert keys(await box_of(store).calls()) == [("kept", "token")]
    finally:
        await store.aclose()


async def test_a_store_goes_on_with_the_peers_and_calls_of_the_first_version_that_had_them(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    schema, found = schema_of(tmp_path), programs()
    assert found is not None
    dump = GOLDEN.read_text().replace("repertory.", f"{schema}.").replace("SCHEMA repertory;", f"SCHEMA {schema};")
    command = [str(found / "psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", postgres.url]
    loaded = await anyio.to_thread.run_sync(lambda: subprocess.run(command, input=dump, text=True, capture_output=True))
    assert loaded.returncode == 0, loaded.stderr
    # After a start of the server, nobody counts as dead for a while.
    postgres.sql(f"UPDATE {schema}.owners SET ttl_s = 0 WHERE owner = 'dead'")
    store = postgres_store(tmp_path, "owner")
    try:
        kept = {call.session_id: (call.call, call.tries, call.parked) for call in await box_of(store).calls()}
        assert kept == {
            "parked": ({"prompt": "parked"}, 1, True),
            "taken": ({"prompt": "taken"}, 0, False),
            "waits": ({"prompt": "waits"}, 0, False),
        }
        assert list(await directory_of(store).peers()) == []
        taken = await box_of(store).take(10, ALL)
        assert {(call.session_id, call.tries) for call in taken} == {("taken", 1), ("waits", 0)}
        await directory_of(store).join(Peer(name="owner", address="host:1", room=1))
        assert postgres.sql(f"SELECT owner FROM {schema}.peers") == [("owner",)]
        assert len(await store.sessions()) == 3
    finally:
        await store.aclose()


# SQLite.


async def test_the_prompts_of_a_deleted_session_leave_the_files_of_sqlite(tmp_path: Path) -> None:
    path, secret = tmp_path / "sessions.db", b"SECRET"
    store = SQLiteSessionStore(path, owner="owner")
    try:
        for token in ("done", "waits"):
            await box_of(store).put(boxed("session", token, call={"prompt": secret.decode()}))
        await box_of(store).done(await box_of(store).take(1, ALL))
        assert any(secret in file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
        await store.delete("session")
        assert not any(secret in file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    finally:
        await store.aclose()


@pytest.mark.parametrize("method", METHODS)
async def test_a_database_that_was_replaced_is_unavailable(tmp_path: Path, method: str) -> None:
    path = tmp_path / "sessions.db"
    store = SQLiteSessionStore(path, owner="relayed")
    try:
        await box_of(store).put(boxed("session"))
        await METHODS[method](store)
        path.rename(tmp_path / "elsewhere.db")
        with pytest.raises(Unavailable):
            await METHODS[method](store)
        path.write_bytes(b"")
        with pytest.raises(Unavailable):
            await METHODS[method](store)
    finally:
        await store.aclose()


async def test_a_database_that_is_made_anew_keeps_the_calls(tmp_path: Path) -> None:
    store = SQLiteSessionStore(tmp_path / "sessions.db", owner="owner")
    try:
        await give_up(store, (await store.acquire("other")).lease)
        for name in ("taken", "parked", "waits"):
            await box_of(store).put(boxed(name, call={"prompt": name}))
        taken, parked, _ = await box_of(store).take(10, ALL)
        await box_of(store).again(parked, 0.0, "hopeless", park=True)
        await store.rebuild(lambda salvaged: salvaged.rows)
        found = await box_of(store).calls()
        assert [(call.session_id, call.call, call.error, call.parked) for call in found] == [
            ("taken", taken.call, "", False),
            ("parked", {"prompt": "parked"}, "hopeless", True),
            ("waits", {"prompt": "waits"}, "", False),
        ]
        assert [call.created_at for call in found] == sorted(call.created_at for call in found) != [0.0] * 3
        assert keys(await box_of(store).take(10, ALL)) == [("taken", "token"), ("waits", "token")]
    finally:
        await store.aclose()


async def test_the_files_of_peers_are_their_users_alone_and_one_that_cannot_be_read_is_passed_over(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sessions.db"
    one, two = (SQLiteSessionStore(path, owner=name) for name in ("one", "two"))
    try:
        for store, name in ((one, "one"), (two, "two")):
            await directory_of(store).join(Peer(name=name, address="host:1", room=1))
        folder = peers_folder(path)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
        (folder / "two.json").write_text('{"name": "two", "room": "of a later release"}')
        assert [peer.name for peer in await directory_of(one).peers()] == ["one"]
    finally:
        await one.aclose()
        await two.aclose()


async def test_a_folder_of_peers_that_is_a_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    (tmp_path / "elsewhere").mkdir()
    peers_folder(path).symlink_to(tmp_path / "elsewhere")
    store = SQLiteSessionStore(path, owner="one")
    try:
        with pytest.raises(Invalid, match="link"):
            await directory_of(store).join(Peer(name="one", address="host:1", room=1))
        assert list((tmp_path / "elsewhere").iterdir()) == []
    finally:
        await store.aclose()


@pytest.mark.parametrize("deep", [False, True])
def test_a_socket_has_a_short_path_of_its_own_in_a_folder_for_its_user(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, deep: bool
) -> None:
    home = tmp_path_factory.mktemp("h")
    place = home / ("x" * 90) if deep else home
    place.mkdir(exist_ok=True)
    database = place / "s.db"
    for root in ("/nowhere", str(home), "x" * 200):
        monkeypatch.setenv("XDG_RUNTIME_DIR", root)
        paths = {socket_path(database, owner) for owner in ("one", "two", "x" * 200)}
        paths |= {socket_path(place / "other.db", "one")}
        assert len(paths) == 4
        for path in paths:
            assert len(os.fsencode(path)) < SOCKET_BYTES_MAX
            assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
            assert (str(home) in path) == (not deep or root == str(home))
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(path)
            os.unlink(path)
        folders = {os.path.dirname(path) for path in paths}
        os.chmod(min(folders), 0o755)
        with pytest.raises(Invalid, match="user alone"):
            for name in ("s.db", "other.db"):
                socket_path(place / name, "one")
        for folder in folders:
            with suppress(OSError):
                os.rmdir(folder)
