"""SIGKILL at random moments of everything that goes on below a turn: steps, tools in the background, a subagent, code
that calls tools.

In the end, with nobody calling, nothing is owed; each result was told once, and each effect took place once: but for
those of tools that may run again, which may have been repeated under the same key.
"""

from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.campaigns.campaigns import Report
from tests.campaigns.dying_work import CODE_TOOLS
from tests.operations.operated_places import server_for
from tests.postgres_server import programs
from tests.source_tree import ROOT

_LOCAL = ("sqlite", "sqlite, encrypted", "journal in files", *(["postgres"] if programs() else []))
_BUCKETS = ("journal on s3",)
_END_S = 120.0


def work(rng: random.Random, folder: Path, seconds: float) -> Report:
    """One place, a few kills, then everything to its end. Half the time a second process, which is killed as well, goes
    on with what the first one leaves.
    """
    kind, loop = rng.choice((*_LOCAL, *_BUCKETS) if seconds > 10 else _LOCAL), rng.choice(("asyncio", "trio"))
    kills, beside = rng.randint(4, 10) if seconds > 10 else 2, rng.random() < 0.5
    with server_for(kind, folder) as url:
        command = [sys.executable, "-m", "tests.campaigns.dying_work", kind, loop, str(folder), url]
        return _lives(rng, folder, kills, command, kind if not beside else f"{kind}, two processes")


def _lives(rng: random.Random, folder: Path, kills: int, command: list[str], kind: str) -> Report:
    report, turns, first, found = Report(), kills, 0, dict[int, list[str]]()
    for remaining in range(kills, -1, -1):
        process = _started([*command, str(first), str(turns)])
        other = _started([*command, "beside"]) if kind.endswith("two processes") and remaining else None
        if remaining:
            _wait_for_work(folder, process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, 0.15))
            process.kill()
            report.counts["kills"] += 1
        if other is not None:
            if rng.random() < 0.5:
                _wait_for_work(folder, other, rng.uniform(0, 3.0))
            other.kill()
            report.counts["kills"] += 1
            report.check(not (errors := other.communicate()[1]), f"{kind}: beside: {errors[-4000:]}")
        output, errors = process.communicate(timeout=_END_S)
        right = process.returncode in (0, -signal.SIGKILL) if remaining else process.returncode == 0
        report.check(right, f"{kind}: a worker ended with {process.returncode}: {errors[-4000:]}")
        for line in output.splitlines():
            name, turn, *rest = line.split(" ", 2)
            if name == "answered":
                first = max(first, int(turn) + 1)
            else:
                found[int(turn)] = json.loads(rest[0])
        if not right:
            return report
    report.counts[f"{kind}, {command[4]}"] += 1
    ledger = Counter((folder / "ledger").read_text().splitlines())
    for turn in range(turns):
        report.acknowledged += 1
        told = _told(turn)
        report.found += found.get(turn) == told
        report.check(found.get(turn) == told, f"{kind}: turn {turn}: {found.get(turn)}")
    effects = {effect for turn in range(turns) for told in _told(turn) for effect in told.split()}
    effects = {name for name in effects if not name.startswith("scouted-")}
    effects |= {f"look-{number}-{turn}" for turn in range(turns) for number in range(2)}
    names = Counter(line.split()[0] for line in ledger)
    report.check(names.keys() == effects, f"{kind}: effects: {sorted(names.keys() ^ effects)}")
    twice = [line for line, count in ledger.items() if count > 1 and not line.startswith("count-")]
    report.check(not twice, f"{kind}: effects that took place twice: {twice}")
    keys = [name for name in names if len({line for line in ledger if line.split()[0] == name}) > 1]
    report.check(not keys, f"{kind}: effects under two keys: {keys}")
    return report


def _started(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _wait_for_work(folder: Path, process: subprocess.Popen[str], seconds: float = math.inf) -> None:
    """Wait until somebody adds to the ledger, the process has ended, or this time has passed."""
    ledger, until = folder / "ledger", time.monotonic() + seconds
    before = ledger.stat().st_size if ledger.exists() else 0
    while process.poll() is None and not (ledger.exists() and ledger.stat().st_size > before):
        if time.monotonic() > until:
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.002)


def _told(turn: int) -> list[str]:
    """What the model is told in a turn's session."""
    once = [f"{name}-{turn}" for name in (*CODE_TOOLS, "count", "pay", "scouted")]
    return sorted([*once, " ".join(f"five-{number}-{turn}" for number in range(5))])
