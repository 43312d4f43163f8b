"""A system that lacks something now and then: room on the disk, threads, descriptors, or the volume of the sessions.
What was acknowledged is there, a refusal is one of our errors, nothing is half-written, and afterwards all goes on.

    python -m tests.campaigns.campaign_disks KIND FOLDER SEED SECONDS LACK

That is the process that lacks it for a while, again and again. Nothing needs rights: a limit on the size of files
stands in for the disk, a stack that is too large for the threads, and a folder that is moved away for the volume. It
says which turns were acknowledged, and which were refused and why. In some rounds it is killed meanwhile.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import anyio

from repertory import AgentSpec, Runtime, ScriptedModel, Sessions, StorePatience
from repertory.core.messages import text_of
from repertory.errors import RepertoryError, StoreNotFound
from tests.campaigns.campaigns import Report
from tests.simulation.dying_features import LOCAL, place_of
from tests.source_tree import ROOT

_TOLD = ("Unavailable", "StoreUnavailable", "LeaseLost", "SessionException", "ActorDead")
"""What a caller may be told: the store is full, or the session was given up because of it."""


def disks(rng: random.Random, folder: Path, seconds: float) -> Report:
    """One store whose disk fills up and empties, and what is there afterwards."""
    return _lacking("disk", rng, folder, seconds)


def lacks(rng: random.Random, folder: Path, seconds: float) -> Report:
    """A process without threads or descriptors for a while."""
    return _lacking(rng.choice(["threads", "descriptors"]), rng, folder, seconds)


def volumes(rng: random.Random, folder: Path, seconds: float) -> Report:
    """A store whose folder goes away and comes back."""
    return _lacking("volume", rng, folder, seconds)


def _lacking(lack: str, rng: random.Random, folder: Path, seconds: float) -> Report:
    kind, report = rng.choice(LOCAL), Report()
    report.counts[kind] += 1
    folder = folder / "volume"
    folder.mkdir()
    command = [sys.executable, "-m", "tests.campaigns.campaign_disks", kind, str(folder), str(rng.randrange(10**6))]
    spent_s = min(max(seconds, 3.0), rng.uniform(1.5, 5.0))  # In less, nothing would be lacking twice.
    done = subprocess.run(
        [*command, str(spent_s), lack], cwd=ROOT, capture_output=True, text=True, timeout=spent_s + 120, check=False
    )
    if (away := _away(folder)).exists():  # It was killed meanwhile.
        report.check(not folder.exists(), f"{kind}: the folder was made anew while it was away")
        away.rename(folder)
    report.check(
        done.returncode in (0, -signal.SIGKILL), f"{kind}: it ended with {done.returncode}: {done.stderr[-3000:]}"
    )
    report.counts["kills"] += done.returncode == -signal.SIGKILL
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines() if line.endswith(".")]
    report.counts["refusals"] += sum(outcome != "ok" for _, outcome, _ in lines)
    for outcome in {outcome for _, outcome, _ in lines} - {"ok"}:
        report.check(outcome in _TOLD, f"{kind}: a caller was told {outcome}: {done.stderr[-3000:]}")
    anyio.run(_look, report, kind, folder, lines)
    return report


async def _look(report: Report, kind: str, folder: Path, lines: list[list[str]]) -> None:
    sessions = Sessions(place_of(kind, folder))
    for name in sorted({name for name, _, _ in lines}):
        try:
            stored = (await sessions.show(name)).agents.get("a")
        except StoreNotFound:  # The disk was full before its first record; then nothing was acknowledged.
            stored = None
        said = [text_of(each.message) for each in stored.messages] if stored is not None else []
        for _, _, text in (line for line in lines if line[0] == name and line[1] == "ok"):
            report.acknowledged += 1
            there = (said.count(text), said.count(f"answer to {text}")) == (1, 1)
            report.found += there
            report.check(there, f"{kind}: {name}: {text!r} stands {said.count(text)} times")
        report.check(len(said) == len(set(said)) or kind == "documents", f"{kind}: {name}: something stands twice")
    examined = await sessions.doctor()
    report.check(examined.ok, f"{kind}: the doctor says {examined}")


def _away(folder: Path) -> Path:
    return folder.with_name(f"{folder.name} is away")


def _take(lack: str, folder: Path, rng: random.Random) -> None:
    match lack:
        case "disk":
            _limit(resource.RLIMIT_FSIZE, rng.choice([0, rng.randrange(0, 90_000, 1000)]))  # or it stops half-way
        case "threads":
            threading.stack_size(1 << 46)  # The address space has no room for it.
        case "descriptors":
            _limit(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")) - 1 + rng.randrange(6))
        case _:
            folder.rename(_away(folder))


def _give_back(lack: str, folder: Path) -> None:
    match lack:
        case "disk":
            _limit(resource.RLIMIT_FSIZE, None)
        case "threads":
            threading.stack_size(0)
        case "descriptors":
            _limit(resource.RLIMIT_NOFILE, None)
        case _:
            _away(folder).rename(folder)


def _limit(what: int, most: int | None) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (hard if most is None else most, hard))


async def _work(kind: str, folder: Path, rng: random.Random, seconds: float, lack: str) -> None:
    end = time.monotonic() + seconds
    model = ScriptedModel([lambda messages, *_: f"answer to {text_of(messages[-1])}"], loop=True)
    patience = StorePatience(wait_s=0.2)
    killed = rng.random() < 0.4
    async with Runtime(sessions=place_of(kind, folder), patience=patience, drain_timeout_s=10) as runtime:
        agent = runtime.agent(AgentSpec(name="a", model=model))

        async def client(name: str) -> None:
            number = 0
            while time.monotonic() < end:
                number += 1
                text = f"{name} says {number}."
                try:
                    await agent.session(name).invoke(text)
                except RepertoryError as error:
                    _say(f"{name} {type(error).__name__} {text}")
                    if type(error).__name__ not in _TOLD:
                        traceback.print_exc()
                else:
                    _say(f"{name} ok {text}")
                await anyio.sleep(0.01)

        if lack == "volume":  # A process that starts without it cannot know that it is missing.
            await agent.session("s0").invoke("s0 says first.")
            _say("s0 ok s0 says first.")
        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(client, f"s{number}")
            lacking = False
            await anyio.sleep(rng.choice([0, rng.uniform(0.05, 0.6)]))
            while time.monotonic() < end:
                lacking = not lacking
                if lacking:
                    _take(lack, folder, rng)
                else:
                    _give_back(lack, folder)
                if lacking and killed and time.monotonic() > end - 1:
                    await anyio.sleep(rng.uniform(0, 0.3))
                    os.kill(os.getpid(), signal.SIGKILL)
                await anyio.sleep(rng.uniform(0.05, 0.6))
            if lacking:
                _give_back(lack, folder)
        for number in range(4):
            name = f"s{number}"
            await agent.session(name).invoke(text := f"{name} says at last.")
            _say(f"{name} ok {text}")


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # To a pipe, which no limit concerns.


if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _rng = random.Random(int(sys.argv[3]))
    _backend = _rng.choice(["asyncio", "trio"])
    anyio.run(_work, sys.argv[1], Path(sys.argv[2]), _rng, float(sys.argv[4]), sys.argv[5], backend=_backend)
