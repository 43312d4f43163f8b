"""Many callers at once, and many turns: nothing is lost, and nothing grows.

`crowd`: two thousand callers on as many sessions and on few, some of whom give up. `soak`: sessions that come and go
for as long as there is time, while resident memory, descriptors, threads and tasks are watched.
"""

from __future__ import annotations

import gc
import math
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import anyio

from repertory import AgentSpec, Runtime, ScriptedModel, Sessions, tool
from repertory.app.sessions.sessions import SessionLocation
from repertory.core.messages import Message, text_of, tool_results
from repertory.errors import RepertoryError
from tests.campaigns.campaigns import Report
from tests.simulation.dying_features import LOCAL, memory_in, place_of

CALLERS = 2000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_REST_S = 1.5
"""Longer than sessions idle."""
_WARM_UP = 0.34
"""The share of a soak after which nothing grows any more."""
_GROWTH_BYTES = 24 * 2**20


def crowd(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Two thousand callers, or a tenth of them where there is no time."""
    kind, report = rng.choice(LOCAL), Report()
    callers = CALLERS if seconds > 30 else CALLERS // 10
    report.counts[kind] += 1
    anyio.run(_crowd, rng, report, place_of(kind, folder), callers, backend=rng.choice(["asyncio", "trio"]))
    return report


async def _crowd(rng: random.Random, report: Report, place: SessionLocation, callers: int) -> None:
    model = ScriptedModel([lambda messages, *_: f"answer to {text_of(messages[-1])}"], loop=True)
    sessions = rng.choice([callers, callers // 10, 7])
    answered: dict[str, str] = {}

    async def call(number: int, name: str, gives_up_s: float) -> None:
        text = f"call {number}."
        try:
            with anyio.move_on_after(gives_up_s):
                result = await agent.session(name).invoke(text, timeout_s=300)
                answered[text] = name
                report.check(str(result).strip() == f"answer to {text}", f"{text} was answered {result}")
        except RepertoryError as error:
            report.counts[type(error).__name__] += 1

    async with Runtime(sessions=place) as runtime:
        agent = runtime.agent(AgentSpec(name="a", model=model))
        async with anyio.create_task_group() as group:
            for number in range(callers):
                gives_up_s = rng.uniform(0, 2) if rng.random() < 0.1 else math.inf
                group.start_soon(call, number, f"s{number % sessions}", gives_up_s)
    report.counts["callers"] += callers
    report.counts["errors"] += sum(report.counts[name] for name in ("SessionBusy", "LeaseLost", "Unavailable"))
    for name in sorted(set(answered.values())):
        stored = (await Sessions(place).show(name)).agents["a"]
        said = [text_of(each.message) for each in stored.messages]
        for text in (text for text, where in answered.items() if where == name):
            report.acknowledged += 1
            there = (said.count(text), said.count(f"answer to {text}")) == (1, 1)
            report.found += there
            report.check(there, f"{text!r} stands {said.count(text)} times")


def soak(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Turns of sessions that wake, work and rest, for that long."""
    report = Report()
    backend = rng.choice(["asyncio", "trio"])
    anyio.run(_soak, rng, report, folder, seconds, backend=backend)
    report.counts[backend] += 1
    return report


async def _soak(rng: random.Random, report: Report, folder: Path, seconds: float) -> None:
    def reply(messages: list[Message], *_: object) -> Any:
        if any(tool_results(messages[-1])) or "plain" in text_of(messages[-1]):
            return f"answer to {len(messages)} messages"
        return {"toolUse": {"name": "look", "input": {"what": "that"}}}

    @tool(effects=False)
    async def look(what: str) -> dict[str, Any]:
        """Look."""
        return {"seen": what * 20, "numbers": list(range(20))}

    @tool
    def fail() -> str:
        """Fail."""
        raise ValueError("no")

    kind = rng.choice(LOCAL)
    report.counts[kind] += 1
    end = time.monotonic() + seconds
    working = anyio.Event()
    working.set()
    acknowledged: dict[str, int] = {}
    model = ScriptedModel([reply], loop=True)
    async with Runtime(sessions=place_of(kind, folder), idle_timeout_s=0.3) as runtime:
        spec = AgentSpec(name="a", model=model, tools=[look, fail], memory_manager=memory_in(folder))
        agent = runtime.agent(spec)

        async def client(number: int) -> None:
            mine = random.Random(number)
            while time.monotonic() < end:
                await working.wait()
                name = f"s{mine.randrange(60)}"
                try:
                    with anyio.move_on_after(0.05 if mine.random() < 0.05 else 120):
                        await agent.session(name).invoke(f"{mine.choice(['plain', 'look'])} {number}")
                        acknowledged[name] = acknowledged.get(name, 0) + 1
                except RepertoryError as error:
                    report.counts[type(error).__name__] += 1
                await anyio.sleep(mine.uniform(0, 0.02))

        async def held() -> dict[str, int]:
            """What is held while everybody rests."""
            nonlocal working
            working = anyio.Event()
            await anyio.sleep(_REST_S)
            model.calls.clear()
            now = _held()
            working.set()
            return now

        async def watch() -> None:
            await anyio.sleep(seconds * _WARM_UP)
            warm = await held()
            while time.monotonic() < end:
                await anyio.sleep(min(30.0, seconds / 4))
                for what, now in (await held()).items():
                    most = warm[what] + (_GROWTH_BYTES if what == "resident bytes" else 8)
                    report.check(now <= most, f"{what} grew from {warm[what]} to {now}")
                    report.counts[f"{what} at most"] = max(report.counts[f"{what} at most"], now)

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            for number in range(8):
                group.start_soon(client, number)
    for name, count in sorted(acknowledged.items()):
        messages = (await Sessions(place_of(kind, folder)).show(name)).agents["a"].messages
        turns = sum(each.message["role"] == "assistant" and "answer" in text_of(each.message) for each in messages)
        report.acknowledged += count
        report.found += min(count, turns)
        report.check(turns >= count, f"{name}: {count} turns acknowledged, {turns} found")


def _held() -> dict[str, int]:
    """What the process holds now."""
    gc.collect()
    return {
        "resident bytes": int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "tasks": len(anyio.get_running_tasks()),
    }
