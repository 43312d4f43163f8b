"""Handing a session to another process and back: how long a call takes whose session another process holds idle.

Two processes on one machine with the same sessions take turns in one session. What is measured is a whole call, from
asking the owner to give up until the answer of a model that takes no time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from bench.harness import Figure, report
from repertory import (
    AgentSpec,
    FileSessions,
    FileStorage,
    JournalSessions,
    PostgresSessions,
    Runtime,
    ScriptedModel,
    SlidingWindowConversationManager,
    SQLiteSessions,
)
from tests.postgres_server import postgres_server

BOUND_MS = 50.0
ROUNDS = 20
KINDS = ["sqlite", "files", "journals", "postgres"]
"""In one database, in the documented tree of files, as journals in a folder, and in a PostgreSQL server beside them."""


async def take_part(kind: str, folder: str) -> None:
    """A process that makes one turn for each line that it reads, and says how many seconds that took."""
    places = {
        "sqlite": lambda: SQLiteSessions(Path(folder) / "sessions.db"),
        "files": lambda: FileSessions(folder),
        "journals": lambda: JournalSessions(FileStorage(folder)),
        "postgres": lambda: PostgresSessions(folder),
    }
    spec = AgentSpec(
        model=ScriptedModel(["ok"], loop=True), conversation_manager=SlidingWindowConversationManager(window_size=20)
    )
    async with Runtime(sessions=places[kind]()) as runtime:
        session = runtime.agent(spec).session("s")
        while await anyio.to_thread.run_sync(sys.stdin.readline):
            began = time.perf_counter()
            await session.invoke("go")
            print(time.perf_counter() - began, flush=True)


class Partner:
    """Another process that takes part."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._to, self._answers = process, process.stdin, process.stdout

    def turn_s(self) -> float:
        """How long a turn takes there."""
        self._to.write("go\n")
        self._to.flush()
        return float(self._answers.readline())


@contextmanager
def partner(kind: str, folder: str) -> Iterator[Partner]:
    program = [sys.executable, "-m", "bench.bench_handover", "part", kind, folder]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Partner(process)
        process.communicate()


def hand_over(kind: str, rounds: int = ROUNDS) -> tuple[list[float], list[float]]:
    """The seconds of each call that had to take the session over, and of each call after it in the same process."""
    taken: list[float] = []
    held: list[float] = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-"))
        if kind == "postgres":
            folder = stack.enter_context(postgres_server(fsync="on", autovacuum="on")).url
        partners = [stack.enter_context(partner(kind, folder)) for _ in range(2)]
        for each in (*partners, *partners):  # Until all is loaded.
            each.turn_s()
        for _ in range(rounds):
            for each in partners:
                taken.append(each.turn_s())
                held.append(each.turn_s())
    return taken, held


def figures() -> list[Figure]:
    found: list[Figure] = []
    for kind in KINDS:
        taken, held = hand_over(kind)
        extra_ms = (middle(taken) - middle(held)) * 1000
        found.append(Figure(f"giving up and taking over, {kind}", extra_ms, 1.0, BOUND_MS, "ms"))
        found.append(Figure(f"the slowest call in {len(taken)} of those", max(taken) * 1000, 1.0, None, "ms"))
    return found


def middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def main() -> int:
    if sys.argv[1:2] == ["part"]:
        anyio.run(take_part, *sys.argv[2:])
        return 0
    return report(figures())


if __name__ == "__main__":
    sys.exit(main())
