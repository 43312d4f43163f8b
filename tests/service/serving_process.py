"""`repertory serve` as tests start it, and clients that ask again with the same token until they have an answer."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.service.embedding_process import PATIENCE_S, Answer, Program, started

CONFIGURATION = """
[agents.clerk]
model = { python = "tests.service.served_shop:Echo" }
[sessions]
kind = "sqlite"
path = "agents.db"
[runtime]
drain_timeout_s = 10
[service]
port = 0
limits = { concurrent = 1000, rate_per_s = 100000, burst = 100000 }
"""
COMMAND = ("-m", "repertory.console.main", "serve")
TURNS = "/v1/agents/clerk/sessions/{}/turns"


class Served:
    """A service that answers."""

    def __init__(self, program: Program, workers: int = 1) -> None:
        self.program = program
        self.pids: list[int] = []
        for _ in range(workers if workers > 1 else 0):
            self.new_worker()
        self.line = program.wait_for(r"repertory serves .* at http://[\w.]+:(\d+)/")
        self.port = int(self.line[1])

    def new_worker(self) -> int:
        """The process of the next worker that says that it answers."""
        pid = int(self.program.wait_for(r"a worker answers worker=(\d+)")[1])
        self.pids.append(pid)
        return pid

    @staticmethod
    def kill_worker(pid: int) -> None:
        """As the kernel would."""
        os.kill(pid, signal.SIGKILL)

    def ask(
        self, method: str, path: str, body: object = None, *, bearer: str | None = None, host: str = "127.0.0.1"
    ) -> Answer:
        """One request by a connection of its own. Status 0: it broke off; -1: it was refused."""
        connection = http.client.HTTPConnection(host, self.port, timeout=PATIENCE_S)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {bearer}"} if bearer else {})
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
            kind = response.getheader("Content-Type", "")
            return Answer(response.status, json.loads(text) if "json" in kind else text.decode())
        except ConnectionRefusedError:
            return Answer(-1)
        except (http.client.HTTPException, OSError):
            return Answer(0)
        finally:
            connection.close()

    def say(self, session: str, text: str, token: str | None = None, bearer: str | None = None) -> Answer:
        """One turn."""
        body: dict[str, Any] = {"prompt": text} | ({"token": token} if token else {})
        return self.ask("POST", TURNS.format(session), body, bearer=bearer)


@contextmanager
def serving(folder: Path, *options: str, workers: int = 1, **environment: str) -> Iterator[Served]:
    """`repertory serve OPTIONS` in a folder with its configuration; ready."""
    more = ("--workers", str(workers)) if workers > 1 else ()
    with started(*COMMAND, *options, *more, folder=folder, **environment) as program:
        yield Served(program, workers)


@dataclass
class Load:
    """Clients that talk without pause, one session each, until they are told to stop."""

    served: Served
    clients: int
    statuses: list[int] = field(default_factory=list)
    answered: dict[str, list[str]] = field(default_factory=dict)
    """By session: the prompts that were answered."""

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._enough = threading.Condition()
        self._threads = [threading.Thread(target=self._talk, args=(f"s{n}",)) for n in range(self.clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def until(self, turns: int) -> None:
        """So many turns more are answered."""
        with self._enough:
            wanted = self._count() + turns
            assert self._enough.wait_for(lambda: self._count() >= wanted, PATIENCE_S), self.statuses[-20:]

    def _count(self) -> int:
        return sum(map(len, self.answered.values()))

    def _talk(self, session: str) -> None:
        said = self.answered.setdefault(session, [])
        number = 0
        while not self._stop.is_set():
            prompt = f"{session} says {number}"
            if not self._say_until_answered(session, prompt):
                return
            with self._enough:
                said.append(prompt)
                self._enough.notify_all()
            number += 1

    def _say_until_answered(self, session: str, prompt: str) -> bool:
        """With the same token; False when it is not answered in any number of tries."""
        token = prompt.replace(" ", "-")
        for _ in range(2000):
            answer = self.served.say(session, prompt, token)
            self.statuses.append(answer.status)
            if answer.status == 200:
                assert answer.body["text"] == f"done: {prompt}", answer
                return True
            self._stop.wait(0.01)
        return False


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until_gone(pid: int) -> None:
    """Return when the process has ended, whoever its parent is."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ready, _, _ = select.select([watched], [], [], PATIENCE_S)
    os.close(watched)
    assert ready, f"process {pid} does not end"
