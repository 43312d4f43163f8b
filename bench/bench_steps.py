"""Durable steps of tools: what one costs beyond its function, and how many many tools take at once.

The limit is a bare program on the same disk: one row of the same size and one synced commit for each step; for many
tools at once, one commit for a row of each. It holds its thread while the disk works, as no event loop may. So there is
a second limit: bare tasks on an event loop, of which each waits for its row, and one thread that commits all that wait.
All run in the same round, and the round with the median ratio counts.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from pathlib import Path
from statistics import median

import anyio
import anyio.to_thread

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


def bare_rows(database: Path) -> sqlite3.Connection:
    """A table of rows and nothing else."""
    connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute("create table steps (id integer primary key, body blob)")
    return connection


def commit_rows(connection: sqlite3.Connection, rows: int) -> None:
    """One commit of so many rows."""
    connection.execute("begin immediate")
    connection.executemany("insert into steps (body) values (?)", [(_BODY,)] * rows)
    connection.execute("commit")


def bare_takes(database: Path, rows: int, commits: int) -> float:
    """Seconds for so many commits of so many rows."""
    connection = bare_rows(database)
    began = time.perf_counter()
    for _ in range(commits):
        commit_rows(connection, rows)
    taken_s = time.perf_counter() - began
    connection.close()
    return taken_s


async def bare_tasks_take(database: Path, tasks: int, rows: int) -> float:
    """Seconds for so many rows of so many tasks, of which each waits for the commit of its row."""
    connection = bare_rows(database)
    waiting = list[anyio.Event]()
    came = anyio.Event()

    async def insert() -> None:
        for _ in range(rows):
            stored = anyio.Event()
            waiting.append(stored)
            came.set()
            await stored.wait()

    async def commit() -> None:
        nonlocal came
        while True:
            await came.wait()
            came, taken = anyio.Event(), waiting[:]
            waiting.clear()
            await anyio.to_thread.run_sync(commit_rows, connection, len(taken))
            for stored in taken:
                stored.set()

    began = time.perf_counter()
    async with anyio.create_task_group() as all_tasks:
        all_tasks.start_soon(commit)
        async with anyio.create_task_group() as inserting:
            for _ in range(tasks):
                inserting.start_soon(insert)
        taken_s = time.perf_counter() - began
        all_tasks.cancel_scope.cancel()
    connection.close()
    return taken_s


def measured(tools: int, steps: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Seconds a step of ours and of the bare program, of the round with the median ratio; and the same beside the bare
    tasks.
    """
    rounds: list[tuple[float, float, float]] = []
    for _ in range(ROUNDS):
        with folder() as place:
            taken = (
                anyio.run(steps_take, place / "ours.db", tools, steps),
                bare_takes(place / "bare.db", tools, steps),
                anyio.run(bare_tasks_take, place / "tasks.db", tools, steps),
            )
        ours, bare, tasks = (seconds / (tools * steps) for seconds in taken)
        rounds.append((ours, bare, tasks))
    return middle([(ours, bare) for ours, bare, _ in rounds]), middle([(ours, tasks) for ours, _, tasks in rounds])


def middle(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """The pair with the median ratio."""
    ratio = median(ours / limit for ours, limit in pairs)
    return min(pairs, key=lambda pair: abs(pair[0] / pair[1] - ratio))


def figures() -> list[Figure]:
    """One tool and many, beside both limits."""
    (one, bare), (one_too, task) = measured(1, STEPS)
    (many, group), (many_too, tasks) = measured(TOOLS, STEPS // 10)
    at_once = f"steps of {TOOLS} tools at once"
    return [
        Figure("a step beyond its function, one tool", one * 1e6, bare * 1e6, 1.3, "us"),
        Figure("a step, beside a task that waits for its row", one_too * 1e6, task * 1e6, 1.3, "us"),
        Figure(f"{at_once} / bare inserts", 1 / many, 1 / group, 0.25, "/s", "higher"),
        Figure(f"{at_once} / rows of {TOOLS} tasks", 1 / many_too, 1 / tasks, 0.25, "/s", "higher"),
    ]


def main() -> int:
    """Print every figure; 1 when a bar was missed."""
    return report(figures())


if __name__ == "__main__":
    sys.exit(main())
