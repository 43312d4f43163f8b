"""What a turn costs in the way that most programs call an agent: outside any block, asynchronously and from sync code.

Each figure is the CPU time of a turn with a model that answers at once: beside the same turn within `async with agent`,
and beside strands-agents, which stores files without fsync (ours are on stable storage). Agents with a memory manager,
graphs and swarms stand beside the same within `async with`. How many rounds of the event loop a held turn takes is
counted, on asyncio.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import anyio

from bench.harness import Figure, report
from bench.strands_turns import AROUND
from repertory import (
    Agent,
    ExtractionConfig,
    FileSessionManager,
    FileStorage,
    Graph,
    IntervalTrigger,
    JournalSessionManager,
    MemoryManager,
    ModelExtractor,
    ScriptedModel,
    SQLiteMemoryStore,
    SQLiteSessionManager,
    Swarm,
)

TURNS = (10, 200)
ROUNDS = 3
CALLS = 45
STRANDS = Path(__file__).parents[1] / "tests/peers/strands/bin/python"
HELD_BAR = 1.15
STRANDS_BARS = {("memory", 10): 0.35, ("memory", 200): 0.35, ("SQLite", 10): 1.0, ("SQLite", 200): 0.2} | {
    ("files", 10): 1.5,
    ("files", 200): 0.3,
}
Sessions: TypeAlias = Callable[[str], Any]
STORES: Mapping[str, Sessions] = {
    "memory": lambda folder: None,
    "SQLite": lambda folder: SQLiteSessionManager("s", path=f"{folder}/s.db"),
    "files": lambda folder: FileSessionManager("s", storage_dir=folder),
    "journals": lambda folder: JournalSessionManager("s", storage=FileStorage(folder)),
}


def talker(sessions: Sessions, folder: str) -> Agent:
    return Agent(ScriptedModel(["ok"], loop=True), callback_handler=None, session_manager=sessions(folder))


async def held(sessions: Sessions, folder: str) -> list[float]:
    """CPU seconds of each turn in a block."""
    spent: list[float] = []
    async with talker(sessions, folder) as agent:
        for _ in range(max(TURNS) + AROUND):
            began = time.process_time()
            await agent.invoke_async("hello")
            spent.append(time.process_time() - began)
    return spent


async def bare(sessions: Sessions, folder: str) -> list[float]:
    """The same outside any block."""
    agent, spent = talker(sessions, folder), list[float]()
    for _ in range(max(TURNS) + AROUND):
        began = time.process_time()
        await agent.invoke_async("hello")
        spent.append(time.process_time() - began)
    return spent


def called(sessions: Sessions, folder: str) -> list[float]:
    """The same from sync code."""
    agent, spent = talker(sessions, folder), list[float]()
    for _ in range(max(TURNS) + AROUND):
        began = time.process_time()
        agent("hello")
        spent.append(time.process_time() - began)
    agent.shutdown()
    return spent


WAYS: Mapping[str, Callable[[Sessions, str], list[float]]] = {
    "held": lambda sessions, folder: anyio.run(held, sessions, folder),
    "async": lambda sessions, folder: anyio.run(bare, sessions, folder),
    "sync": called,
}


def milliseconds(sessions: Sessions, way: str) -> dict[int, float]:
    """CPU milliseconds of a turn, by its number."""
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        spent = WAYS[way](sessions, folder)
    return {turn: statistics.mean(spent[turn - AROUND : turn + AROUND]) * 1000 for turn in TURNS}


Manager: TypeAlias = SQLiteSessionManager | None


def remembering(folder: Path, manager: Manager) -> Agent:
    """An agent with a memory on disk, which takes in every fifth turn."""
    extractor = ModelExtractor(model=ScriptedModel(["[]"], loop=True))
    extraction = ExtractionConfig(trigger=IntervalTrigger(5), extractor=extractor)
    memory = MemoryManager(stores=[SQLiteMemoryStore(folder / "memory.db", extraction=extraction)])
    model = ScriptedModel(["ok"], loop=True)
    return Agent(model, callback_handler=None, session_manager=manager, memory_manager=memory)


def clerk(name: str, reply: object = "ok") -> Agent:
    return Agent(ScriptedModel([reply], loop=True), callback_handler=None, name=name)


def graph(folder: Path, manager: Manager) -> Graph:
    """Three agents that work at the same time."""
    return Graph({f"n{number}": clerk(f"n{number}") for number in range(3)}, session_manager=manager)


def swarm(folder: Path, manager: Manager) -> Swarm:
    """Two agents, of whom the first hands over."""

    def reply(messages: Sequence[Any], *_: object) -> Any:
        handed = any("toolResult" in block for block in messages[-1]["content"])
        use = {"name": "handoff_to_agent", "input": {"agent_name": "b", "message": "go on"}}
        return "done" if handed else {"toolUse": use}

    return Swarm([clerk("a", reply), clerk("b")], session_manager=manager)


Made: TypeAlias = Callable[[Path, Manager], Any]
MANY: Mapping[str, Made] = {
    "agent with a memory manager": remembering,
    "graph of 3 nodes": graph,
    "swarm of 2": swarm,
}


async def many_ms(make: Made, store: str, folder: Path) -> tuple[float, float]:
    """CPU milliseconds of a bare call, and of one within a block: medians, call by call in turns."""

    def made(name: str) -> Any:
        (folder / name).mkdir()
        manager = SQLiteSessionManager("s", path=folder / name / "s.db") if store == "SQLite" else None
        return make(folder / name, manager)

    bare, held = made("bare"), made("held")
    spent: tuple[list[float], list[float]] = [], []
    gc.collect()
    async with held:
        for _ in range(CALLS):
            for each, times in zip((bare, held), spent, strict=True):
                began = time.process_time()
                await each.invoke_async("hello")
                times.append(time.process_time() - began)
    return statistics.median(spent[0][5:]) * 1000, statistics.median(spent[1][5:]) * 1000


def calls_of_many() -> list[Figure]:
    figures: list[Figure] = []
    for name, make in MANY.items():
        for store in ("memory", "SQLite"):
            with tempfile.TemporaryDirectory() as folder:
                value, least = anyio.run(many_ms, make, store, Path(folder))
            figures.append(Figure(f"{name}, {store}, async call / held", value, least, None, "ms"))
    return figures


def best(rounds: list[dict[int, float]]) -> dict[int, float]:
    """The round that was disturbed least."""
    return {turn: min(each[turn] for each in rounds) for turn in TURNS}


def strands() -> dict[str, dict[int, float]]:
    """The same of strands-agents; nothing where it is not installed, which is said."""
    if not STRANDS.exists():
        print("strands-agents is not installed (make peers): nothing is compared with it")
        return {}
    command = [str(STRANDS), "bench/strands_turns.py", *map(str, TURNS)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return {name: {int(turn): value for turn, value in values.items()} for name, values in found.items()}


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts its rounds, which asyncio has no name for."""

    rounds = 0

    def _run_once(self) -> None:
        CountingLoop.rounds += 1
        super()._run_once()  # type: ignore[misc]


async def rounds_per_turn(sessions: Sessions, folder: str) -> float:
    """Rounds of the event loop in a held turn: the median, since timers of others take some now and then."""
    counts: list[int] = []
    async with talker(sessions, folder) as agent:
        for _ in range(60):
            before = CountingLoop.rounds
            await agent.invoke_async("hello")
            counts.append(CountingLoop.rounds - before)
    return statistics.median(counts)


def rounds(store: str, bar: float) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        options = {"loop_factory": CountingLoop}
        found = anyio.run(rounds_per_turn, STORES[store], folder, backend_options=options)
    return Figure(f"rounds of the event loop in a held turn, {store}", found, 1.0, bar, "rounds")


def main() -> int:
    ours = {store: {way: list[dict[int, float]]() for way in WAYS} for store in STORES}
    theirs: dict[str, list[dict[int, float]]] = {}
    for _ in range(ROUNDS):
        for store, sessions in STORES.items():
            for way in WAYS:
                ours[store][way].append(milliseconds(sessions, way))
        for name, values in strands().items():
            theirs.setdefault(name, []).append(values)
    figures: list[Figure] = []
    for store, by_way in ours.items():
        least = best(by_way["held"])
        for way in ("async", "sync"):
            values = best(by_way[way])
            for turn in TURNS:
                bar = HELD_BAR if way == "async" else None  # A sync call hands over to another thread and back.
                name = f"{store}, {way} call at turn {turn}"
                figures.append(Figure(f"{name} / held", values[turn], least[turn], bar, "ms"))
                other = theirs.get(f"{'memory' if store == 'memory' else 'files'}, {way}")
                bar = STRANDS_BARS.get((store, turn))
                if other is not None and bar is not None:
                    figures.append(Figure(f"{name} / strands", values[turn], best(other)[turn], bar, "ms"))
    return report([*figures, *calls_of_many(), rounds("memory", 3), rounds("SQLite", 5)])


if __name__ == "__main__":
    sys.exit(main())
