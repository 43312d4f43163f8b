"""A server of Valkey or Redis of the tests' own, from the machine's programs, in a folder that goes with it, ended with
the process of pytest however that ends.
"""

from __future__ import annotations

import atexit
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.postgres_server import Watched, free_port, needed

MISSING = (
    "Valkey is not installed: these tests need its server, or that of Redis (Debian: apt-get install redis-server)"
)
_START_S = 30.0


def program() -> str | None:
    """The server's program."""
    return shutil.which("valkey-server") or shutil.which("redis-server")


@dataclass
class ValkeyServer:
    """A server, running or not."""

    folder: Path
    port: int
    settings: tuple[str, ...] = ()
    running: Watched | None = None
    plain: bool = True
    """False: it answers TLS alone."""

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        found = program()
        assert found is not None
        port = ["--port", str(self.port)] if self.plain else ["--port", "0", "--tls-port", str(self.port)]
        command = [found, *port, "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", "", *self.settings]
        self.running = Watched.started(command, self.folder / "log", self.folder)
        for _ in range(int(_START_S / 0.02)):
            if self.running.process.poll() is not None:
                raise AssertionError((self.folder / "log").read_text()[-3000:])
            if b"Ready to accept connections" in (self.folder / "log").read_bytes()[self._read :]:
                self._read = (self.folder / "log").stat().st_size
                return
            with suppress(subprocess.TimeoutExpired):
                self.running.process.wait(0.02)
        raise AssertionError("the server did not start")

    _read = 0

    def stop(self, how: int = signal.SIGTERM) -> None:
        """End it; SIGKILL is a crash."""
        running, self.running = self.running, None
        if running is not None:
            running.process.send_signal(signal.SIGCONT)
            running.stop(how)

    def freeze(self) -> None:
        """Let it do nothing, with its connections open."""
        assert self.running is not None
        self.running.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.running is not None
        self.running.process.send_signal(signal.SIGCONT)

    def do(self, *command: str) -> bytes:
        """Carry out a command, and give the server's answer as it is."""
        words = b"".join(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in command)
        with socket.create_connection(("127.0.0.1", self.port), 10) as connection:
            connection.sendall(b"*%d\r\n%s" % (len(command), words))
            return connection.recv(1 << 20)


@contextmanager
def valkey_server(*settings: str, plain: bool = True) -> Iterator[ValkeyServer]:
    """A server of one test's own, ended with the block. `settings`: as on its command line."""
    needed(program(), MISSING)
    folder = Path(tempfile.mkdtemp(prefix="repertory-valkey-"))
    server = ValkeyServer(folder, free_port(), settings, plain=plain)
    try:
        server.start()
        yield server
    finally:
        server.stop(signal.SIGKILL)
        subprocess.run(["rm", "-rf", str(folder)], check=False)


@cache
def shared_valkey() -> ValkeyServer:
    """The server of this process, for tests that leave it running and look at their own keys alone."""
    running = valkey_server()
    server = running.__enter__()
    atexit.register(running.__exit__, None, None, None)
    return server
