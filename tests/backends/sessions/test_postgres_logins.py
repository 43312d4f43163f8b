"""Logging in to PostgreSQL: TLS, passwords, rights, replicas, poolers, and what is no PostgreSQL at all."""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from repertory.backends.ports import Batch, Position, give_up
from repertory.backends.postgres import connection
from repertory.backends.postgres.address import PostgresAddress, postgres_address
from repertory.backends.postgres.tables import check_schema
from repertory.backends.sessions.postgres.store import PostgresSessionStore, PostgresSettings
from repertory.errors import Invalid, RepertoryError, SessionBusy, StoreFailed, StoreUnavailable
from repertory.testing.session_contract import grow
from tests.backends.sessions.postgres_places import postgres_store, schema_of
from tests.docs.markdown import blocks
from tests.postgres_server import (
    NAME,
    PostgresServer,
    Watched,
    as_server_user,
    free_port,
    needed,
    postgres_server,
    programs,
)
from tests.source_tree import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

SECRET = "an-unusual-passphrase"
ROWS = grow(4)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server that asks for passwords over TCP, and speaks TLS with a certificate that it has signed itself."""
    needed(shutil.which("openssl"), "openssl is not installed: these tests make a certificate with it")
    with postgres_server() as server:
        certificate, key = server.folder / "server.crt", server.folder / "server.key"
        command = ["openssl", "req", "-new", "-x509", "-days", "2", "-nodes", "-out", str(certificate)]
        command += ["-keyout", str(key), "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        subprocess.run(command, check=True, capture_output=True)
        for path in (certificate, key):
            path.chmod(0o600)
            if server.data.stat().st_uid == 0 or path.stat().st_uid != server.data.stat().st_uid:
                shutil.chown(path, server.data.owner(), server.data.group())
        server.sql(f"CREATE ROLE guest LOGIN PASSWORD '{SECRET}'")
        server.sql("CREATE DATABASE sessions OWNER guest")
        server.stop()
        server.settings = {"ssl": "on", "ssl_cert_file": str(certificate), "ssl_key_file": str(key)}
        lines = f"local all all trust\nhost all {NAME} all trust\nhostssl all all all scram-sha-256\n"
        (server.data / "pg_hba.conf").write_text(lines)
        server.start()
        yield server


async def opened(address: PostgresAddress, **settings: object) -> RepertoryError | None:
    """The error that a first use gives; None when there is none."""
    store = PostgresSessionStore(address, owner="owner", settings=PostgresSettings(**settings))  # type: ignore[arg-type]
    try:
        with anyio.fail_after(30):
            lease, _ = await store.acquire("session")
            await store.append([Batch(lease=lease, rows=[])])
            await give_up(store, lease)
            return None
    except RepertoryError as error:
        return error
    finally:
        await store.aclose()


def dsn(server: PostgresServer, **more: str) -> str:
    settings = {"host": "localhost", "port": str(server.port), "dbname": "sessions", "user": "guest", **more}
    return " ".join(f"{key}={value}" for key, value in settings.items())


async def test_tls_proves_the_server_and_a_password_the_user(guarded: PostgresServer) -> None:
    root = str(guarded.folder / "server.crt")
    proved = dsn(guarded, password=SECRET, sslmode="verify-full", sslrootcert=root)
    assert await opened(postgres_address(proved)) is None
    url = f"postgresql://guest:{SECRET}@localhost:{guarded.port}/sessions?sslmode=verify-full&sslrootcert={root}"
    assert await opened(postgres_address(url)) is None


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"password": "wrong"}, "password"),
        ({}, "password"),
        ({"password": SECRET, "sslmode": "disable"}, "does not let this user in"),
        ({"password": SECRET, "sslmode": "verify-full", "sslrootcert": "/dev/null"}, "TLS"),
        ({"password": SECRET, "dbname": "nothing"}, "no such database"),
        ({"password": SECRET, "user": "nobody"}, "password"),
    ],
)
async def test_what_the_caller_must_change_is_said_without_the_password(
    guarded: PostgresServer, more: dict[str, str], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    address = postgres_address(dsn(guarded, **more))
    error = await opened(address)
    assert isinstance(error, StoreFailed)
    assert says in str(error)
    assert {"host", "port", "database", "user"} <= error.fields.keys()
    told = "\n".join([str(error), repr(error), repr(address), address.name, caplog.text, repr(error.__cause__)])
    assert SECRET not in told
    assert "wrong" not in told.replace("the password is wrong", "")


async def test_the_name_of_a_store_has_no_password(postgres: PostgresServer) -> None:
    address = postgres_address(f"postgresql://me:{SECRET}@db.example:6000/sessions?sslmode=require")
    store = PostgresSessionStore(address, owner="owner")
    assert store.name == "postgresql://me@db.example:6000/sessions#repertory"
    assert SECRET not in repr(address) + store.name
    await store.aclose()


@pytest.mark.parametrize("text", ["postgresql://u:{}@[h/d", "pasword={}", "host=h password='{}", "mysql://u:{}@h/d"])
def test_a_string_that_names_no_database_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        postgres_address(text.format(SECRET))
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("name", ["", "Upper", "a b", 'a"b', "pg_mine", "x" * 49, None])
def test_a_schema_that_would_need_quotes_is_refused(name: object) -> None:
    with pytest.raises(Invalid):
        check_schema(name)


async def test_what_does_not_listen_and_who_has_no_address_is_unavailable(postgres: PostgresServer) -> None:
    for text in (f"host=127.0.0.1 port={free_port()}", "host=no.such.host.invalid"):
        error = await opened(postgres_address(text))
        assert isinstance(error, StoreUnavailable)


async def test_what_is_no_postgresql_is_said_to_be_none() -> None:
    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        for mode in ("prefer", "disable"):
            error = await opened(postgres_address(f"host=127.0.0.1 port={port} user=me dbname=d sslmode={mode}"))
            assert isinstance(error, StoreFailed)
            assert "no PostgreSQL" in str(error)
        tasks.cancel_scope.cancel()


async def test_what_never_answers_is_given_up_after_the_time_to_connect() -> None:
    async def say_nothing(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await anyio.sleep_forever()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, say_nothing)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        address = postgres_address(f"host=127.0.0.1 port={port} user=me dbname=d connect_timeout=1")
        error = await opened(address)
        assert isinstance(error, StoreUnavailable)
        assert "in time" in str(error)
        tasks.cancel_scope.cancel()


async def test_a_server_that_takes_no_writes_is_called_a_replica(guarded: PostgresServer) -> None:
    guarded.sql("ALTER ROLE guest SET default_transaction_read_only = on")
    try:
        error = await opened(postgres_address(dsn(guarded, password=SECRET)))
        assert isinstance(error, StoreFailed)
        assert "read-only replica" in str(error)
    finally:
        guarded.sql("ALTER ROLE guest RESET default_transaction_read_only")


async def test_a_server_that_is_too_old_is_refused(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this release needed a later one."""
    monkeypatch.setattr(connection, "OLDEST_SERVER", 99)
    error = await opened(postgres_address(postgres.dsn()))
    assert isinstance(error, StoreFailed)
    assert "too old" in str(error)
    assert error.fields["version"] != 99


async def test_a_database_of_another_encoding_is_refused(guarded: PostgresServer) -> None:
    if not guarded.sql("SELECT 1 FROM pg_database WHERE datname = 'latin'"):
        guarded.sql("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    error = await opened(postgres_address(guarded.dsn("latin")))
    assert isinstance(error, StoreFailed)
    assert "UTF8" in str(error)


async def test_a_user_with_grants_alone_works_and_one_without_is_told_what_is_missing(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    schema = schema_of(tmp_path)
    owner = postgres_store(tmp_path, "owner")
    await give_up(owner, (await owner.acquire("session")).lease)
    role = f"role_{schema}"
    postgres.sql(f"CREATE ROLE {role} LOGIN")
    address = postgres_address(postgres.dsn(user=role))
    error = await opened(address, schema=schema)
    assert isinstance(error, StoreFailed)
    assert "right" in str(error)
    (grants,) = [block for block in blocks(ROOT / "docs/guides/sessions/postgres.md") if block.language == "sql"]
    for grant in grants.text.strip().splitlines():
        postgres.sql(grant.replace("repertory", schema).replace("app;", f"{role};"))
    assert await opened(address, schema=schema) is None
    store = PostgresSessionStore(address, owner="guest", settings=PostgresSettings(schema=schema))
    lease, _ = await store.acquire("session")
    assert await store.append([Batch(lease=lease, rows=ROWS)]) == [Position(agent_id="default", seq=4)]
    await store.append([Batch(lease=lease, rows=(), erase=[("default", 1)])])
    await store.aclose()
    assert postgres.sql(f"SELECT count(*) FROM {schema}.erasures") == [(1,)]  # It may not write tables anew.
    for _ in range(400):  # A connection of another test may keep the old lines for a moment.
        left = await owner._erasures.write_anew()
        if not left:
            break
        await anyio.sleep(0.05)
    assert left is False
    assert postgres.sql(f"SELECT count(*) FROM {schema}.erasures") == [(0,)]
    await owner.aclose()


# A pooler that gives each transaction another connection.


@contextmanager
def pgbouncer(server: PostgresServer, folder: Path) -> Iterator[int]:
    """The port of a running one."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    needed(program, "pgbouncer is not installed: these tests need it (Debian: apt-get install pgbouncer)")
    assert program is not None
    port = free_port()
    users = server.folder / f"users-{port}"
    users.write_text(f'"{NAME}" ""\n')
    users.chmod(0o644)
    settings = server.folder / f"pgbouncer-{port}.ini"
    settings.write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={server.port} dbname=postgres user={NAME}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = trust\nauth_file = {users}\n"
        "pool_mode = transaction\ndefault_pool_size = 2\nunix_socket_dir =\n"
    )
    settings.chmod(0o644)
    running = Watched.started(as_server_user([program, str(settings)]), folder / "pgbouncer.log")
    try:
        yield port
    finally:
        running.stop(signal.SIGINT)


async def until_listening(port: int) -> None:
    with anyio.fail_after(20):
        while True:
            try:
                async with await anyio.connect_tcp("127.0.0.1", port):
                    return
            except OSError:
                await anyio.sleep(0.02)


@pytest.mark.parametrize("direct", [True, False])
async def test_sessions_live_behind_a_pooler(postgres: PostgresServer, tmp_path: Path, direct: bool) -> None:
    assert programs() is not None
    with pgbouncer(postgres, tmp_path) as port, anyio.fail_after(50):
        await until_listening(port)
        pooled = postgres_address(f"host=127.0.0.1 port={port} user={NAME} dbname=postgres")
        straight = postgres_address(postgres.dsn()) if direct else None
        settings = PostgresSettings(schema=schema_of(tmp_path), pooled=True, direct=straight, ttl_s=2.0)
        one, two = (PostgresSessionStore(pooled, owner=name, settings=settings) for name in ("one", "two"))
        async with anyio.create_task_group() as tasks:
            for store in (one, two):
                tasks.start_soon(store.maintain)
            leases = [(await one.acquire(f"session-{n}")).lease for n in range(8)]
            for row in ROWS:
                outcomes = await one.append([Batch(lease=lease, rows=[row]) for lease in leases])
                assert outcomes == [Position(agent_id="default", seq=row.seq)] * 8
            with pytest.raises(SessionBusy):
                await two.acquire("session-0")
            while await one.asked_for() != ["session-0"]:  # noqa: ASYNC110 - another process asks
                await anyio.sleep(0.02)
            await give_up(one, leases[0])
            assert (await two.acquire("session-0")).lease.owner == "two"
            assert list(await two.load("session-0", "default", whole=True)) == ROWS
            tasks.cancel_scope.cancel()
        # One that ends without a word: at once with a connection of its own, after its time without.
        one.abandon()
        while True:
            try:
                await two.acquire("session-1")
                break
            except SessionBusy:
                await anyio.sleep(0.05)
        await two.aclose()


async def test_a_pooler_that_was_not_named_as_one_is_recognised(postgres: PostgresServer, tmp_path: Path) -> None:
    with pgbouncer(postgres, tmp_path) as port:
        await until_listening(port)
        address = postgres_address(f"host=127.0.0.1 port={port} user={NAME} dbname=postgres")
        store = PostgresSessionStore(address, owner="owner", settings=PostgresSettings(schema=schema_of(tmp_path)))
        errors: list[RepertoryError] = []

        async def acquire(session_id: str) -> None:
            try:
                await store.acquire(session_id)
            except RepertoryError as error:
                errors.append(error)

        try:
            with anyio.fail_after(30):
                for number in range(100):
                    async with anyio.create_task_group() as tasks:
                        for part in range(4):
                            tasks.start_soon(acquire, f"session-{number}-{part}")
                    if errors:
                        break
            assert all(isinstance(error, StoreFailed) for error in errors)
            assert "pooled=True" in str(errors[0])
        finally:
            await store.aclose()
