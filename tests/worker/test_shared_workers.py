"""`uvicorn app:app --workers 4` over one database: the workers share its sessions."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest

from tests.service.embedding_process import Answer, Server, serving
from tests.service.histories import read_histories

pytestmark = pytest.mark.real_time

WORKERS, SESSIONS, TURNS = 4, 20, 10
BROKEN_OFF = 0


class Client:
    """Whoever talks in one session: says a thing again, under the same token, when the answer does not come."""

    def __init__(self, server: Server, session: str, killer: Killer) -> None:
        self._server = server
        self._session = session
        self._killer = killer
        self.pids: set[int] = set()
        self.refused: list[Answer] = []

    def talk(self) -> None:
        """All turns, in order."""
        for number in range(TURNS):
            text = f"{self._session} says {number}"
            while (answer := self._say(text, f"{self._session}-{number}")).status != 200:
                if answer.status != BROKEN_OFF:
                    self.refused.append(answer)
                    return
            assert answer.body["text"] == f"done: {text}"
            self.pids.add(answer.body["pid"])
            self._killer.note(answer.body["pid"])

    def _say(self, text: str, token: str) -> Answer:
        return self._server.post(f"/sessions/{self._session}/messages", {"text": text, "token": token})


class Killer:
    """Kills one worker when so many turns have been answered."""

    def __init__(self, after: int) -> None:
        self._left = after
        self._lock = threading.Lock()
        self.killed = 0

    def note(self, pid: int) -> None:
        """A turn was answered by this process."""
        with self._lock:
            self._left -= 1
            if not self._left:
                os.kill(pid, signal.SIGKILL)
                self.killed = pid


def test_every_worker_answers_for_every_session_and_a_killed_one_loses_no_turn(tmp_path: Path) -> None:
    database = tmp_path / "a.db"
    workers = "--workers", str(WORKERS)
    killer = Killer(SESSIONS * TURNS // 3)
    with serving("uvicorn-asyncio", database, "tests.console.lifespan_service:app", *workers, SHARED="1") as server:
        for _ in range(WORKERS):
            server.program.wait_for("Application startup complete")
        names = [f"s{number}" for number in range(SESSIONS)]
        clients = [Client(server, name, killer) for name in names]
        with ThreadPoolExecutor(SESSIONS) as pool:
            list(pool.map(Client.talk, clients))
        assert [answer for client in clients for answer in client.refused] == []
        assert killer.killed
        assert len({pid for client in clients for pid in client.pids}) > 1
        server.program.signal(signal.SIGTERM)
        assert server.program.exit_code() in {0, -signal.SIGTERM}
    histories = anyio.run(read_histories, database, "helper", names)
    for name, history in zip(names, histories, strict=True):
        turns = [(f"{name} says {number}", f"done: {name} says {number}") for number in range(TURNS)]
        assert history == [text for turn in turns for text in turn]
