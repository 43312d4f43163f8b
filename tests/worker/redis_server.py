"""A Redis server of one test's own, the broker of arq, from the machine's program."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.postgres_server import Watched, free_port, needed

MISSING = "Redis is not installed: the test of arq needs its server (Debian: apt-get install redis-server)"
_START_S = 30.0


@contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    """The port of a server whose files are in the folder."""
    found = shutil.which("redis-server")
    needed(found, MISSING)
    assert found is not None
    port, log = free_port(), folder / "redis.log"
    running = Watched.started(
        [found, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""], log
    )
    try:
        for _ in range(int(_START_S / 0.02)):
            assert running.process.poll() is None, log.read_text()
            if b"Ready to accept connections" in log.read_bytes():
                break
            with suppress(subprocess.TimeoutExpired):
                running.process.wait(0.02)
        else:
            raise AssertionError("the server did not start")
        yield port
    finally:
        running.stop(signal.SIGKILL)
