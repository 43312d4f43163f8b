"""Durable steps of tools: what one costs beyond its function, and how many many tools take at once.

The limit is a bare program on the same disk: one row of the same size and one synced commit for each step; for many
tools at once, one commit for a row of each. Both run in the same round, and the round with the median ratio counts.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from pathlib import Path
from statistics import median

import anyio

from bench.bench_session import folder
from bench.harness import Figure, report
from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions, ToolContext, tool

ROUNDS = 7
STEPS = 200
TOOLS = 50
_BODY = b'{"at":1764000006.5,"tool_use_id":"tooluse_1","step":"one#200","result":"a result"}' * 2


async def steps_take(database: Path, tools: int, steps: int) -> float:
    """Seconds that so many tools take at once, each in a session of its own, from the first step to the last."""
    began = dict[int, float]()

    @tool(durable=True)
    async def work(number: int, tool_context: ToolContext) -> str:
        """Work."""
        await tool_context.step("first", int)  # It waits for the tool's own start as well.
        began[number] = time.perf_counter()
        for _ in range(steps):
            await tool_context.step("one", _result)
        began[number] = time.perf_counter() - began[number]
        return "done"

    async with Runtime(sessions=SQLiteSessions(database)) as runtime:

        async def call(number: int) -> None:
            model = ScriptedModel([{"toolUse": {"name": "work", "input": {"number": number}}}, "Done."])
            spec = AgentSpec(name=f"worker-{number}", model=model, tools=[work])
            await runtime.agent(spec).session(f"s{number}").invoke("go")

        async with anyio.create_task_group() as group:
            for number in range(tools):
                group.start_soon(call, number)
    return max(began.values())


async def _result() -> str:
    return "a result"


def bare_takes(database: Path, rows: int, commits: int) -> float:
    """Seconds for so many commits of so many rows."""
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute("create table steps (id integer primary key, body blob)")
    began = time.perf_counter()
    for _ in range(commits):
        connection.execute("begin immediate")
        connection.executemany("insert into steps (body) values (?)", [(_BODY,)] * rows)
        connection.execute("commit")
    taken_s = time.perf_counter() - began
    connection.close()
    return taken_s


def measured(tools: int, steps: int) -> tuple[float, float]:
    """Seconds a step of ours and of the bare program, of the round with the median ratio."""
    rounds: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        with folder() as place:
            ours = anyio.run(steps_take, place / "ours.db", tools, steps) / (tools * steps)
            bare = bare_takes(place / "bare.db", tools, steps) / (tools * steps)
        rounds.append((ours, bare))
    middle = median(ours / bare for ours, bare in rounds)
    return min(rounds, key=lambda each: abs(each[0] / each[1] - middle))


def figures() -> list[Figure]:
    """The two figures."""
    ours, bare = measured(1, STEPS)
    many, group = measured(TOOLS, STEPS // 10)
    return [
        Figure("a step beyond its function, one tool", ours * 1e6, bare * 1e6, 1.3, "us"),
        Figure(f"steps of {TOOLS} tools at once / bare inserts", 1 / many, 1 / group, 0.25, "/s", "higher"),
    ]


def main() -> int:
    """Print every figure; 1 when a bar was missed."""
    return report(figures())


if __name__ == "__main__":
    sys.exit(main())
