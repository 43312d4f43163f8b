"""SIGKILL at random moments between a tool that defers, the service that does its work, and the webhook.

In the end each order of the service has had its result, each result that was acknowledged is told once, each prompt
stands once, nothing waits and nothing is owed.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import anyio

from repertory import AgentSpec, Runtime, ScriptedModel, Sessions
from repertory.app.sessions.sessions import SessionLocation
from repertory.core.messages import text_of
from tests.campaigns.campaigns import Report
from tests.operations.operated_places import place_of
from tests.simulation.dying_studio import AGENT, SESSION, orders_in
from tests.source_tree import ROOT

_PLACES = ("sqlite", "journal in files", "documents in files")
_END_S = 60.0


def late_results(rng: random.Random, folder: Path, seconds: float) -> Report:
    """One place, a few kills, then everything to its end."""
    report, kind = Report(), rng.choice(_PLACES)
    kills = rng.randint(2, 6) if seconds > 10 else 2
    turns, lines = 3 * kills, list[str]()
    for remaining in range(kills, -1, -1):
        first = sum(line.startswith("answered ") and line.endswith("\n") for line in lines)
        numbers = map(str, (rng.randrange(1000), first, turns))
        command = [sys.executable, "-m", "tests.simulation.dying_studio", kind, str(folder), *numbers]
        process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        if remaining:
            for _ in range(rng.randint(1, 8)):
                lines.append(process.stdout.readline())
            with suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, 0.03))
            process.kill()
            report.counts["kills"] += 1
        rest, errors = process.communicate(timeout=_END_S)
        lines += rest.splitlines(keepends=True)
        right = process.returncode in (0, -signal.SIGKILL) if remaining else process.returncode == 0
        report.check(right, f"{kind}: a worker ended with {process.returncode}: {errors[-4000:]}")
        if not right:
            return report
    report.counts[kind] += 1
    whole = [line.split() for line in lines if line.endswith("\n")]
    anyio.run(_look, report, place_of(kind, folder), folder, whole, turns)
    return report


async def _look(report: Report, place: SessionLocation, folder: Path, lines: list[list[str]], turns: int) -> None:
    async with Runtime(sessions=place, wakes_max=0) as runtime:
        session = runtime.agent(AgentSpec(name=AGENT, model=ScriptedModel(["done"], loop=True))).session(SESSION)
        await session.invoke("the end")  # It tells what nobody has told yet, where nobody wakes a session.
        report.check(await session.deferred() == [], "a tool waits")
        report.check(await session.pending() is None, "something is unfinished")
    stored = await Sessions(place).show(SESSION)
    texts = [text_of(each.message) for each in stored.agents[AGENT].messages if each.message["role"] == "user"]
    told = Counter(re.findall(r"film (\d+-[ab]) is ready", "".join(texts)))
    prompts = Counter(re.findall(r"turn (\d+)", "".join(texts)))
    report.check(prompts == Counter(map(str, range(turns))), f"prompts: {prompts}")
    orders = {path.name: path.read_text() for path in orders_in(folder).iterdir() if not path.suffix}
    films = {f"{number}-{each}" for number in range(turns) for each in "ab"}
    report.check(set(orders.values()) == films, f"films that were ordered: {sorted(orders.values())}")
    report.check(len(orders) == len(films), f"{len(orders)} orders for {len(films)} films")
    refused = [line for line in lines if line[0] == "refused"]
    report.check(not refused, f"results that were refused: {refused}")
    report.check(all("another film" not in text for text in texts), "a second result was told")
    for late_id in {line[1] for line in lines if line[0] in ("taken", "had")}:
        report.acknowledged += 1
        times = told[orders[late_id]]
        report.found += times == 1
        report.check(times == 1, f"film {orders[late_id]} was told {times} times")
    report.check((await Sessions(place).doctor()).ok, "the doctor finds something")
