"""What opening a session costs against the length of its history, wherever it is kept.

The limit is the same session with 100 messages: opening reads what the model is shown, which is 40 of them.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from bench.counted import LATENCY_S, Counted, said
from bench.harness import Figure, report
from repertory import (
    AgentSpec,
    FileStorage,
    JournalSessions,
    Runtime,
    ScriptedModel,
    SlidingWindowConversationManager,
    SQLiteSessions,
)
from repertory.app.sessions.sessions import SessionPlace

SHORT, LONG, WINDOW = 100, 10_000, 40
ROUNDS = 15


def agent(answer: object) -> AgentSpec:
    manager = SlidingWindowConversationManager(window_size=WINDOW)
    return AgentSpec(model=ScriptedModel([answer], loop=True), conversation_manager=manager)


async def fill(place: SessionPlace, messages: int) -> None:
    rng = random.Random(messages)
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(agent(lambda *request: said(rng, 100))).session("s")
        await runtime.agent(agent("ok")).session("another").invoke("hi")
        for _ in range(messages // 2):
            await session.invoke(said(rng, 100))
        await anyio.sleep(1.0)  # What is tidied in the background is no part of opening.


async def opening_ms(place: SessionPlace) -> float:
    """Milliseconds from asking for the session until its model is called, in a process that has the store open."""
    called: list[float] = []

    def answer(*request: object) -> str:
        del request
        called.append(time.perf_counter())
        return "ok"

    async with Runtime(sessions=place) as runtime:
        await runtime.agent(agent("ok")).session("another").messages()
        session = runtime.agent(agent(answer)).session("s")
        began = time.perf_counter()
        await session.invoke("and?")
        return (called[-1] - began) * 1e3


def compared(make: Callable[[int], SessionPlace], prepare: Callable[[], object] = lambda: None) -> tuple[float, float]:
    """Milliseconds to open the long session and the short one, opened in turn, so that noise hits both alike."""
    places = {messages: make(messages) for messages in (LONG, SHORT)}
    for messages, place in places.items():
        anyio.run(fill, place, messages)
    prepare()
    times: dict[int, list[float]] = {messages: [] for messages in places}
    for _ in range(ROUNDS):
        for messages, place in places.items():
            times[messages].append(anyio.run(opening_ms, place))
    return statistics.median(times[LONG]), statistics.median(times[SHORT])


def main() -> int:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        for name, make in {
            "SQLite": lambda messages: SQLiteSessions(Path(folder) / f"{messages}.db"),
            "journals in a folder": lambda messages: JournalSessions(FileStorage(Path(folder) / str(messages))),
        }.items():
            long_ms, short_ms = compared(make)
            figures.append(Figure(f"{LONG:,} messages against {SHORT}, {name}", long_ms, short_ms, 1.3, "ms"))
    storages = {messages: Counted() for messages in (SHORT, LONG)}

    def slow_down() -> None:
        for storage in storages.values():
            storage.latency_s = LATENCY_S

    long_ms, short_ms = compared(lambda messages: JournalSessions(storages[messages]), slow_down)
    figures.append(Figure("the same, journals with 50 ms per request", long_ms, short_ms, 1.3, "ms"))
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
