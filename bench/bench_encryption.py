"""What encryption adds to a durable turn in SQLite, and to opening a long session.

Two agents on two databases in one folder take their turns one after the other, many times, and the medians of the
rounds are compared: the same conversation, one of them encrypted with keys in a folder. Opening is measured afterwards.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import anyio

from bench.harness import Figure, report
from repertory import Agent, LocalKeys, ScriptedModel, SQLiteSessions
from repertory.app.sessions.sessions import PlacedSession

ROUNDS = 60
TURNS = 25
OPENINGS = 15
TURN_BAR = 1.15
TEXT = "a question of a usual length, of the kind that people ask an agent in the middle of a day " * 4


def agent_in(place: SQLiteSessions) -> Agent:
    model = ScriptedModel([TEXT * 2], loop=True)
    return Agent(model, session_manager=PlacedSession("s", place), callback_handler=None)


async def turns_us(asked: Agent) -> float:
    began = time.perf_counter()
    for _ in range(TURNS):
        await asked.invoke_async(TEXT)
    return (time.perf_counter() - began) / TURNS * 1e6


async def opened_ms(place: SQLiteSessions) -> float:
    asked = agent_in(place)
    began = time.perf_counter()
    await asked.ready()
    taken = (time.perf_counter() - began) * 1e3
    await asked.shutdown_async()
    return taken


async def measured(folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Microseconds per turn and milliseconds per opening, by variant: medians of interleaved rounds."""
    places = {
        "plain": SQLiteSessions(folder / "plain.db"),
        "encrypted": SQLiteSessions(folder / "encrypted.db", encryption=LocalKeys(folder / "keys")),
    }
    turns: dict[str, list[float]] = {name: [] for name in places}
    openings: dict[str, list[float]] = {name: [] for name in places}
    async with agent_in(places["plain"]) as plain, agent_in(places["encrypted"]) as encrypted:
        asked = {"plain": plain, "encrypted": encrypted}
        for number in range(ROUNDS):
            for name in asked if number % 2 else reversed(asked):
                turns[name].append(await turns_us(asked[name]))
    for _ in range(OPENINGS):
        for name, place in places.items():
            openings[name].append(await opened_ms(place))
    return {name: median(taken) for name, taken in turns.items()}, {
        name: median(taken) for name, taken in openings.items()
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        turns, openings = anyio.run(measured, Path(folder))
    return report(
        [
            Figure("durable turn, encrypted | plain", turns["encrypted"], turns["plain"], TURN_BAR, "us"),
            Figure("opening, encrypted | plain", openings["encrypted"], openings["plain"], None, "ms"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
