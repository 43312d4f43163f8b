"""Programs that tests start, listen to, signal and outlive: servers that embed a runtime, and the examples."""

from __future__ import annotations

import http.client
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.source_tree import ROOT

PATIENCE_S = 30.0
"""How long anything that a test waits for may take; reached only by a test that fails."""


@dataclass(frozen=True)
class Answer:
    """What a server answered. `status` is 0 when it broke off."""

    status: int
    body: Any = None
    retry_after: str | None = None


class Program:
    """A program in a process group of its own. Its output, errors included, is read as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.output: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line from here on that holds `pattern`."""
        while (line := self._next_line()) is not None:
            self.output.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"the program did not say {pattern!r}:\n" + "\n".join(self.output))

    def _next_line(self) -> str | None:
        """None when there are no more, or none for too long."""
        try:
            return self._lines.get(timeout=PATIENCE_S)
        except queue.Empty:
            return None

    def signal(self, number: signal.Signals) -> None:
        """To the program itself, as its operator would."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """To everything that it has started, as the kernel would."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def exit_code(self) -> int:
        """How it ended, with all its output read. Negative for a signal."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        while not self._lines.empty():
            if (line := self._lines.get()) is not None:
                self.output.append(line)
        return code


@contextmanager
def started(*command: str, folder: Path, **environment: str) -> Iterator[Program]:
    """`python COMMAND` in `folder`, which is its home. Nothing of it is left behind."""
    inherited = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    home = {"HOME": str(folder), "REPERTORY_HOME": str(folder), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**inherited, **home, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    program = Program(process)
    try:
        yield program
    finally:
        with suppress(ProcessLookupError):  # it has ended, and everything that it had started
            program.kill()
        program.exit_code()
        assert process.stdout is not None
        process.stdout.close()


class Server:
    """A program that serves HTTP on a port of its own choice."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._port = int(program.wait_for(r"(?i)running on http://127\.0\.0\.1:(\d+)")[1])

    def connect(self) -> http.client.HTTPConnection:
        """A connection of one's own."""
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)

    def get(self, path: str) -> Answer:
        return self._ask("GET", path, None)

    def say(self, session: str, text: str | None) -> Answer:
        """One turn."""
        return self._ask("POST", f"/sessions/{session}/messages", {"text": text})

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, bearer: str | None = None) -> Answer:
        return self._ask("POST", path, body or {}, bearer)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, bearer: str | None = None) -> Answer:
        connection = self.connect()
        try:
            headers = {"Content-Type": "application/json", "Connection": "close"}
            headers |= {"Authorization": f"Bearer {bearer}"} if bearer else {}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
            kind = response.getheader("Content-Type", "")
            parsed = json.loads(text) if "json" in kind else text.decode()
            return Answer(response.status, parsed, response.getheader("Retry-After"))
        except (http.client.HTTPException, OSError):
            return Answer(0)
        finally:
            connection.close()


UVICORN = ("uvicorn", "--port", "0", "--no-access-log")
SERVERS: Mapping[str, tuple[str, ...]] = {
    "uvicorn-asyncio": (*UVICORN, "--loop", "asyncio", "--timeout-graceful-shutdown", "2"),
    "uvicorn-uvloop": (*UVICORN, "--loop", "uvloop", "--timeout-graceful-shutdown", "2"),
    "hypercorn-trio": ("hypercorn", "--bind", "127.0.0.1:0", "--worker-class", "trio", "--graceful-timeout", "2"),
}
"""By name, the module and the options. Requests in flight have two seconds, and are then cancelled."""


@contextmanager
def serving(
    name: str, database: Path, app: str = "tests.service.embedding_service:app", *more: str, **environment: str
) -> Iterator[Server]:
    """The application under one of the servers, ready. `more`: further options of the server."""
    module, *options = SERVERS[name]
    command = "-m", module, app, *options, *more
    with started(*command, folder=database.parent, DATABASE=str(database), **environment) as program:
        yield Server(program)
