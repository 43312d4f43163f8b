"""What an orchestrator costs: per node, in a fan-out, and when a run is gone on with.

Overhead is what a run takes beyond the same agents asked the same by hand, one after the other, on the same host. The
limit of a fan-out is one of its nodes by itself, and beside it stand as many agents asked at once by hand, which shows
what of it is the graph's; the limit of going on with a long run is going on with a short one.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from bench.harness import Figure, report
from repertory import Agent, Graph, GraphBuilder, NodeFailed, Runtime, ScriptedModel, SQLiteSessionManager

NODES, ROUNDS = 50, 9
FAN, NODE_S = 50, 0.2
SHORT, LONG = 10, 100
EVENTS = 4
"""Of an answer of one piece; a slow model waits before each."""


def agent(text: object = "ok", *, delay_s: float = 0.0) -> Agent:
    model = ScriptedModel([text], loop=True, delay_s=delay_s / EVENTS)
    return Agent(model, callback_handler=None, retry_strategy=None)


async def seconds(work: Callable[[], Awaitable[object]]) -> float:
    gc.collect()
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def per_node_ms() -> tuple[float, float]:
    """Milliseconds of a node in a graph, and of its agent asked by hand."""
    agents = {f"n{number}": agent() for number in range(NODES)}
    graph = Graph(agents)
    started = [agent() for _ in range(NODES)]

    async def ask_all() -> None:
        for each in started:
            await each.invoke_async("Go")

    taken: dict[str, list[float]] = {"graph": [], "hand": []}
    async with Runtime():
        for _ in range(ROUNDS):
            taken["graph"].append(await seconds(lambda: graph.invoke_async("Go")))
            taken["hand"].append(await seconds(ask_all))
    return tuple(statistics.median(times) / NODES * 1e3 for times in taken.values())  # type: ignore[return-value]


async def fan_s() -> tuple[float, float, float]:
    """Seconds of a fan-out, of one of its nodes by itself, and of as many agents that are asked at once by hand."""
    builder = GraphBuilder()
    for number in range(FAN):
        builder.add_node(agent(delay_s=NODE_S), f"n{number}")
    graph, lone = builder.build(), Graph({"one": agent(delay_s=NODE_S)})
    fans = [await seconds(lambda: graph.invoke_async("Go")) for _ in range(3)]
    ones = [await seconds(lambda: lone.invoke_async("Go")) for _ in range(3)]
    started = [agent(delay_s=NODE_S) for _ in range(FAN)]

    async def ask_all() -> None:
        async with anyio.create_task_group() as group:
            for each in started:
                group.start_soon(each.invoke_async, "Go")

    async with Runtime():
        hands = [await seconds(ask_all) for _ in range(3)]
    return statistics.median(fans), statistics.median(ones), statistics.median(hands)


async def resume_ms(folder: Path) -> dict[int, float]:
    """Milliseconds of going on with a run whose last node has failed, by the number of its nodes."""
    taken: dict[int, list[float]] = {SHORT: [], LONG: []}
    for number in range(ROUNDS):
        for nodes, times in taken.items():
            name = f"{nodes}-{number}"

            def graph(last: object, nodes: int = nodes, name: str = name) -> Graph:
                agents = {f"n{place}": agent() for place in range(nodes - 1)}
                manager = SQLiteSessionManager(name, folder / "agents.db")
                return Graph({**agents, "last": agent(last)}, session_manager=manager)

            try:
                await graph(ConnectionError("down")).invoke_async("Go")
            except NodeFailed:
                later = graph("ok")
                times.append(await seconds(later.invoke_async) * 1e3)
    return {nodes: statistics.median(times) for nodes, times in taken.items()}


async def figures(backend: str) -> list[Figure]:
    node_ms, hand_ms = await per_node_ms()
    fan, one, hand = await fan_s()
    with tempfile.TemporaryDirectory() as folder:
        resumed = await resume_ms(Path(folder))
    return [
        Figure(f"a node beyond its agent ({backend})", node_ms - hand_ms, 0.5, 1.0, "ms"),
        Figure(f"a node with its agent ({backend})", node_ms, hand_ms, None, "ms"),
        Figure(f"{FAN} nodes at once, against one of them ({backend})", fan, one, 1.15, "s"),
        Figure(f"{FAN} nodes at once, against agents by hand ({backend})", fan, hand, None, "s"),
        Figure(f"resuming {LONG} nodes, against {SHORT} ({backend})", resumed[LONG], resumed[SHORT], 1.3, "ms"),
    ]


def main() -> int:
    found = [figure for backend in ("asyncio", "trio") for figure in anyio.run(figures, backend, backend=backend)]
    return report(found)


if __name__ == "__main__":
    sys.exit(main())
