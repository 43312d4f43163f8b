"""Starting MCP servers for tests, each as a process of its own, and waiting for what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import anyio

HERE = Path(__file__).parent
TOYS = str(HERE / "mcp_toy_server.py")
ROUGH = str(HERE / "mcp_rough_server.py")


class HTTPProcess:
    """A server on loopback that can be killed and started again on the same port."""

    def __init__(self, *command: str, env: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[str] | None = None
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/mcp"

    def start(self) -> None:
        """Returns when it listens."""
        command = [sys.executable, *self._command, str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self._env)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def kill(self) -> None:
        """SIGKILL, and wait."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@contextmanager
def http_server(*command: str, env: Mapping[str, str] | None = None) -> Iterator[HTTPProcess]:
    process = HTTPProcess(*command, env=env)
    try:
        yield process
    finally:
        process.kill()


async def wait_for_note(notes: Path, name: str) -> str:
    """What the toy server wrote there, once it has."""
    path = notes / name
    await _until(path.exists)
    return path.read_text(encoding="utf-8")


def sigkill(pid: str) -> None:
    os.kill(int(pid), signal.SIGKILL)


async def wait_for_end(pid: str) -> None:
    """Wait until there is no such process."""
    await _until(lambda: not is_running(pid))


def is_running(pid: str) -> bool:
    """True if there is such a process."""
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - Other processes set no events of ours.
        await anyio.sleep(0.01)
