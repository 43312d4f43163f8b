"""A PostgreSQL server of the tests' own, from the machine's programs: one for each process of pytest, in a folder that
goes with it, ended with it however it ends.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from repertory.testing.cutting_relay import CuttingRelay

NAME = "postgres"
"""The superuser of such a server, and the user of the system that runs it when the tests run as root."""
MISSING = "PostgreSQL is not installed: these tests need its server (Debian: apt-get install postgresql pgbouncer)"
_START_S = 60.0


def programs() -> Path | None:
    """The folder of the newest server's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else (Path(on_path).parent if on_path else None)


def needed(found: object, what: str = MISSING) -> None:
    """Skip the test, loudly, where something is missing; in CI that is an error."""
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(what)
        pytest.skip(what)


def as_server_user(command: Sequence[str]) -> list[str]:
    """The command, run as a user that PostgreSQL accepts."""
    if os.geteuid() != 0:
        return list(command)
    return ["setpriv", "--reuid", NAME, "--regid", NAME, "--init-groups", *command]


@dataclass
class Watched:
    """A program in a process group of its own, which ends when this process does, however that ends."""

    process: subprocess.Popen[bytes]
    watchdog: subprocess.Popen[bytes]

    @classmethod
    def started(cls, command: Sequence[str], log: Path, folder: Path | None = None) -> Watched:
        """`folder`: what goes with it when this process dies."""
        with open(log, "ab") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        # Nothing is ever written: the end of this process ends the pipe.
        script = 'read _; kill -s QUIT "$1"; sleep 2; [ -z "$2" ] || rm -rf "$2"'
        arguments = ["sh", "-c", script, "watchdog", str(process.pid), "" if folder is None else str(folder)]
        watchdog = subprocess.Popen(arguments, stdin=subprocess.PIPE, start_new_session=True)
        return cls(process, watchdog)

    def stop(self, how: int) -> None:
        self.watchdog.kill()
        self.watchdog.communicate()
        self.process.send_signal(how)
        self.process.wait(30)


@dataclass
class PostgresServer:
    """A server, running or not."""

    folder: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    running: Watched | None = None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def dsn(self, database: str = "postgres", user: str = NAME, **more: str) -> str:
        """By TCP, so that a test can put something in between."""
        settings = {"host": "127.0.0.1", "port": str(self.port), "dbname": database, "user": user, **more}
        return " ".join(f"{key}={value}" for key, value in settings.items())

    @property
    def url(self) -> str:
        """The same as a URL."""
        return f"postgresql://{NAME}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        folder = programs()
        assert folder is not None
        settings = {
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "listen_addresses": "127.0.0.1",
            "max_connections": "200",
            "shared_buffers": "32MB",
            "fsync": "off",
            "autovacuum": "off",  # While it reads a table, erased contents stay for a moment: tests look at once.
            **self.settings,
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        command = as_server_user([str(folder / "postgres"), "-D", str(self.data), *options])
        self.running = Watched.started(command, self.folder / "log", self.folder)
        self._wait(self.running.process)

    def stop(self, how: int = signal.SIGINT) -> None:
        """End it: SIGINT ends connections and writes everything, SIGQUIT is a crash."""
        running, self.running = self.running, None
        if running is not None:
            running.stop(how)

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Carry out a statement as the superuser."""
        import psycopg

        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        import psycopg

        for _ in range(int(_START_S / 0.05)):
            if process.poll() is not None:
                raise AssertionError((self.folder / "log").read_text()[-3000:])
            try:
                psycopg.connect(self.dsn(), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)
        raise AssertionError("the server did not start")


@contextmanager
def postgres_server(*, initdb: Sequence[str] = (), **settings: str) -> Iterator[PostgresServer]:
    """A server of one test's own, ended with the block."""
    found = programs()
    needed(found)
    assert found is not None
    folder = Path(tempfile.mkdtemp(prefix="repertory-postgres-"))
    if os.geteuid() == 0:
        shutil.chown(folder, NAME, NAME)
    server = PostgresServer(folder, free_port(), settings)
    try:
        command = [str(found / "initdb"), "-D", str(server.data), "-U", NAME, "-A", "trust", "-E", "UTF8", "-N"]
        made = subprocess.run(as_server_user([*command, "--locale=C.UTF-8", *initdb]), capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        server.start()
        yield server
    finally:
        server.stop(signal.SIGQUIT)
        subprocess.run(["rm", "-rf", str(folder)], check=False)  # Very many files.


@cache
def shared_server() -> PostgresServer:
    """The server of this process, for tests that leave it running."""
    running = postgres_server()
    server = running.__enter__()
    atexit.register(running.__exit__, None, None, None)
    return server


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def standby_of(primary: PostgresServer) -> Iterator[PostgresServer]:
    """A replica of the server that follows it, ended with the block. `promote` makes it take over."""
    found = programs()
    assert found is not None
    folder = Path(tempfile.mkdtemp(prefix="repertory-standby-"))
    if os.geteuid() == 0:
        shutil.chown(folder, NAME, NAME)
    server = PostgresServer(folder, free_port(), primary.settings)
    try:
        copy = [str(found / "pg_basebackup"), "-D", str(server.data), "-d", primary.dsn(), "-R", "-X", "stream"]
        made = subprocess.run(as_server_user([*copy, "-c", "fast", "-N"]), capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        server.start()
        yield server
    finally:
        server.stop(signal.SIGQUIT)
        subprocess.run(["rm", "-rf", str(folder)], check=False)


def promote(standby: PostgresServer) -> None:
    """Have the replica take over. Returns when it takes writes."""
    assert standby.sql("SELECT pg_promote(true, 60)") == [(True,)]


class Road(CuttingRelay):
    """The way of one process to its database, which leads to another server when `port_there` is changed."""

    port_there: int = 0


@asynccontextmanager
async def road(server: PostgresServer) -> AsyncGenerator[Road]:
    way = Road()
    way.port_there = server.port
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

    async def carry(client: SocketStream) -> None:
        await way.carry(client, way.port_there)

    async with listener, anyio.create_task_group() as tasks:
        way.port = listener.extra(SocketAttribute.local_port)
        tasks.start_soon(listener.serve, carry)
        yield way
        tasks.cancel_scope.cancel()
