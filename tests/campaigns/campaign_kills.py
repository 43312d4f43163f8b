"""SIGKILL at random moments while every feature is in use, and wall clocks that jump, on every store.

Each turn is asked for under its token until it is acknowledged, by as many processes as that takes. In the end each
prompt stands once with its answer, each effect was had once, each fact is remembered once, and a doctor finds nothing.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio

from repertory import Agent, ScriptedModel, Sessions
from repertory.app.sessions.sessions import PlacedSession, SessionLocation
from repertory.core.messages import text_of
from tests.backends.objects.moto_s3 import moto_s3
from tests.campaigns.campaigns import Report
from tests.simulation.dying_features import AGENT, BUCKETS, LOCAL, SESSION, does, memory_in, place_of
from tests.source_tree import ROOT

_SILENCE_S = 60.0


class Process:
    """One worker, and what it has acknowledged."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.simulation.dying_features", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)  # type: ignore[call-overload]
        self.acknowledged: list[str] = []
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            with self._more:
                if line.endswith("\n"):
                    self.acknowledged.append(line.strip())
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def kill_after(self, answers: int, seconds: float) -> None:
        """Kill it so long after it has acknowledged so much, unless it ends before."""

        def enough() -> bool:
            return len(self.acknowledged) >= answers or self._process.poll() is not None

        with self._more:
            self._more.wait_for(enough, _SILENCE_S)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it complained of. One that does not end is killed."""
        try:
            code = self._process.wait(_SILENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reader.join()
        errors = self._process.stderr.read()
        self._process.stdout.close()
        self._process.stderr.close()
        return code, errors


def kills(rng: random.Random, folder: Path, seconds: float) -> Report:
    """One store, a few kills, then everything to its end."""
    return _campaign(rng, folder, kills=rng.randint(2, 6) if seconds > 10 else 2, seconds=seconds)


def clocks(rng: random.Random, folder: Path, seconds: float) -> Report:
    """The same with a clock that jumps, and a kill at most."""
    return _campaign(rng, folder, "--clock", kills=rng.randint(0, 1), seconds=seconds)


def _campaign(rng: random.Random, folder: Path, *options: str, kills: int, seconds: float) -> Report:
    """Buckets only where there is time to start a server."""
    kind = rng.choice((*LOCAL, *BUCKETS) if seconds > 30 else LOCAL)
    seed, report = rng.randrange(1000), Report()
    with ExitStack() as stack:
        url = stack.enter_context(moto_s3(folder / "moto.log")) if kind in BUCKETS else ""
        place = place_of(kind, folder, url)
        where = [url] if url else []
        acknowledged: list[str] = []
        for remaining in range(kills, -1, -1):
            first = len(acknowledged)
            last = first + (100 if remaining else 4)
            process = Process(kind, str(folder), str(seed), str(first), str(last), *where, *options)
            if remaining:
                process.kill_after(rng.randint(0, 4), rng.uniform(0, 0.03))
                report.counts["kills"] += 1
            code, errors = process.end()
            acknowledged += process.acknowledged
            right = code == 0 if not remaining else code in (0, -signal.SIGKILL)
            report.check(right, f"{kind}: a worker ended with {code}: {errors.strip()[-6000:]}")
            if not right:
                return report
        report.counts[kind] += 1
        anyio.run(_look, report, place, folder, seed, acknowledged)
    return report


async def _look(report: Report, place: SessionLocation, folder: Path, seed: int, acknowledged: list[str]) -> None:
    sessions = Sessions(place)
    stored = await sessions.show(SESSION)
    said = [text_of(each.message) for each in stored.agents[AGENT].messages]
    runs = (await sessions.show("g")).agents if any(" graph " in line for line in acknowledged) else {}
    told = "\n".join(text_of(each.message) for agent in runs.values() for each in agent.messages)
    for number, line in enumerate(acknowledged):
        _, what, answer = line.split(maxsplit=2)
        prompts = [position for position, text in enumerate(said) if text.endswith(f"turn {number} {what}")]
        answers = said.count(f"answer {number}")
        there = f"two did {number}" in told if what == "graph" else (len(prompts), answers) == (1, 1)
        expected = f"two did {number}" if what == "graph" else f"answer {number}"
        report.acknowledged += 1
        report.found += there and answer == expected
        report.check(there and answer == expected, f"{line!r} stands {len(prompts)} times, answered {answers} times")
    _check_effects(report, folder, seed, len(acknowledged))
    examined = await sessions.doctor()
    report.check(examined.ok, f"the doctor says {examined}")
    await _check_memory(report, place, folder, seed, len(acknowledged))


def _check_effects(report: Report, folder: Path, seed: int, turns: int) -> None:
    ledger = folder / "ledger"
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    effects = Counter(line.split()[1] for line in lines if line.startswith("effect "))
    wanted = {str(number): 1 for number in range(turns) if does(seed, number) in ("pay", "ask")}
    report.check(effects == wanted, f"effects by turn: {dict(effects - Counter(wanted))} too many")
    keys: dict[str, set[str]] = {}
    for line in lines:
        if line.startswith("node "):
            _, node, key = line.split()
            keys.setdefault(node, set()).add(key)
    report.check(all(len(each) == 1 for each in keys.values()), f"a node's effect has several keys: {keys}")


async def _check_memory(report: Report, place: SessionLocation, folder: Path, seed: int, turns: int) -> None:
    memory = memory_in(folder)
    agent: Any = Agent(
        ScriptedModel(["no"], loop=True),
        agent_id=AGENT,
        session_manager=PlacedSession(SESSION, place),
        memory_manager=memory,
        callback_handler=None,
    )
    async with agent:
        await memory.flush()
    store: Any = memory.stores[0]
    facts = Counter(entry.content for entry in (await store.entries(limit=1000)).entries)
    await store.aclose()
    numbers = [number for number in range(turns) if does(seed, number) != "graph"]
    wanted = Counter(f"fact turn {number} {does(seed, number)}" for number in numbers)
    report.check(facts == wanted, f"remembered too often: {facts - wanted}, not at all: {wanted - facts}")
