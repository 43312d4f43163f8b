"""What memory costs a turn: with stores that are slow, and with stores that are down; and how often it extracts.

The limit is the same turn of the same agent without memory, in the same rounds. The model streams its answer for
`STREAM_S`. A turn waits for a store as long as its search takes, and no longer.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import anyio

from bench.bench_latency import streaming
from bench.harness import Figure, report
from repertory import Agent, ExtractionConfig, ExtractionResult, MemoryEntry, MemoryManager, ScriptedModel
from repertory.actors.memory.store import RESULTS

TURNS = 10
ROUNDS = 3
SEARCH_S, ADD_S = 0.3, 2.0


class Echo:
    """Makes one fact of a batch, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    async def extract(self, messages: Sequence[Any], context: object) -> list[ExtractionResult]:
        del context
        self.calls += 1
        return [ExtractionResult(f"fact {self.calls} of {len(messages)} messages")]


class Slow:
    """Takes its time for everything."""

    description, max_search_results, writable = None, RESULTS, True

    def __init__(self, name: str, *, down: bool = False) -> None:
        self.name = name
        self.extractor = Echo()
        self.extraction = ExtractionConfig(extractor=self.extractor)
        self._down = down

    async def search(self, query: str, options: object = None) -> list[MemoryEntry]:
        del query, options
        if self._down:
            raise ConnectionError("down")
        await anyio.sleep(SEARCH_S)
        return [MemoryEntry("something")]

    async def add(self, content: str, metadata: object = None) -> None:
        del content, metadata
        if self._down:
            raise ConnectionError("down")
        await anyio.sleep(ADD_S)


async def turn_ms(manager: MemoryManager | None) -> float:
    """Milliseconds of a turn behind the first."""
    async with Agent(streaming(), callback_handler=None, memory_manager=manager) as agent:
        times: list[float] = []
        for number in range(TURNS):
            began = time.perf_counter()
            await agent.invoke_async(f"a plain question, number {number}")
            times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times[1:])


def extraction_calls() -> int:
    """How often a model is asked in ten turns at every five, each a sync call."""
    store = Slow("quick")
    agent = Agent(ScriptedModel(["ok"], loop=True), callback_handler=None, memory_manager=MemoryManager(stores=[store]))
    for number in range(10):
        agent(f"question {number}")
    return store.extractor.calls


def main() -> int:
    taken: dict[str, list[float]] = {"without": [], "slow": [], "down": []}
    for _ in range(ROUNDS):
        taken["without"].append(anyio.run(turn_ms, None))
        taken["slow"].append(anyio.run(turn_ms, MemoryManager(stores=[Slow("slow")])))
        taken["down"].append(anyio.run(turn_ms, MemoryManager(stores=[Slow("down", down=True)])))
    took = {name: statistics.median(times) for name, times in taken.items()}
    waits = took["without"] + SEARCH_S * 1e3
    figures = [
        Figure("a turn with a store of 300 ms a search and 2 s a write", took["slow"], waits, 1.05, "ms"),
        Figure("a turn with a store that is down", took["down"], took["without"], 1.02, "ms"),
        Figure("extractions in ten sync turns, every five", extraction_calls(), 2.0, 1.0, ""),
    ]
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
