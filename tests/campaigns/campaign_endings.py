"""Programs that end by an exception out of their event loop, at any tick: they end, and lose nothing that was said.

As `asyncio.run` does then, whatever still runs is cancelled, each task once, and waited for.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import uvloop

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions, tool
from tests.campaigns.campaigns import Report

TICKS = 120
HANGS_S = 30.0
"""A program that still runs so long after its end hangs: its drain has 3 s."""


@tool(idempotent=True)
async def look() -> str:
    """Look."""
    await anyio.lowlevel.checkpoint()
    return "seen"


def _decide(messages: Any, *rest: Any) -> Any:
    last = messages[-1]["content"][0]
    return "done" if "toolResult" in last else {"toolUse": {"name": "look", "input": {}}}


def _spec() -> AgentSpec:
    return AgentSpec(name="a", model=ScriptedModel([_decide], loop=True), tools=[look])


def endings(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Programs that end while sessions start, work and rest, on both of asyncio's loops."""
    report, end, number = Report(), time.monotonic() + seconds, 0
    logging.disable(logging.CRITICAL)  # Of tasks that were cut short.
    try:
        while not number or time.monotonic() < end:
            _program(rng, folder / f"{number}.db", report)
            number += 1
    finally:
        logging.disable(logging.NOTSET)
    return report


def _program(rng: random.Random, database: Path, report: Report) -> None:
    said: list[tuple[str, str]] = []
    tick, fast = rng.randrange(TICKS), rng.random() < 0.3

    async def calls(runtime: Runtime, name: str) -> None:
        for number in range(3):
            session = runtime.agent(_spec()).session(name)
            result = await session.invoke(f"{name}-{number}", idempotency_token=f"{name}-{number}")
            if result.stop_reason == "end_turn":
                said.append((name, f"{name}-{number}"))

    async def main() -> None:
        async with Runtime(sessions=SQLiteSessions(database), drain_timeout_s=3) as runtime:
            await calls(runtime, "first")
            _at_tick(tick)
            async with anyio.create_task_group() as group:
                for name in ("first", "second", "third"):
                    group.start_soon(calls, runtime, name)
            await anyio.sleep(1)

    left = _run(main, uvloop.new_event_loop() if fast else asyncio.new_event_loop())
    report.check(not left, f"hangs at tick {tick}, uvloop {fast}: {left}")
    report.counts["programs"] += 1
    if not left:
        report.acknowledged += len(said)
        report.found += asyncio.run(_found(database, said))


def _at_tick(tick: int) -> None:
    """Leave the loop, at that tick, by what a second Ctrl-C raises."""
    loop = asyncio.get_running_loop()

    def count(left: int) -> None:
        if not left:
            raise KeyboardInterrupt
        loop.call_soon(count, left - 1)

    loop.call_soon(count, tick)


def _run(main: Callable[[], Awaitable[None]], loop: asyncio.AbstractEventLoop) -> list[str]:
    """The tasks that are left when all have been cancelled."""

    async def program() -> None:
        await main()

    async def rest() -> list[str]:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        return [] if not tasks else [task.get_name() for task in (await asyncio.wait(tasks, timeout=HANGS_S))[1]]

    task = loop.create_task(program())
    try:
        with suppress(KeyboardInterrupt):
            loop.run_until_complete(task)
        left = loop.run_until_complete(rest())
        loop.run_until_complete(loop.shutdown_asyncgens())
        return left
    finally:
        loop.close()


async def _found(database: Path, said: list[tuple[str, str]]) -> int:
    async with Runtime(sessions=SQLiteSessions(database)) as runtime:
        agent = runtime.agent(_spec())
        found = 0
        for name, text in said:
            history = await agent.session(name).history()
            found += sum(block.get("text") == text for message in history for block in message["content"]) == 1
        return found
