"""SIGKILL at random moments of everything that goes on below a turn: steps, tools in the background, a subagent, code
that calls tools.

In the end, with nobody calling, nothing is owed; each result was told once, and each effect took place once: but for
those of tools that may run again, which may have been repeated under the same key.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.campaigns.campaigns import Report
from tests.campaigns.dying_work import CODE_TOOLS
from tests.postgres_server import postgres_server, programs
from tests.source_tree import ROOT

_PLACES = ("sqlite", "sqlite", "journal in files", "postgres")
_END_S = 120.0


def work(rng: random.Random, folder: Path, seconds: float) -> Report:
    """One place, a few kills, then everything to its end."""
    kind = rng.choice(_PLACES)
    if kind != "postgres" or programs() is None:
        return _lives(rng, folder, seconds, kind.replace("postgres", "sqlite"))
    with postgres_server() as server:
        return _lives(rng, folder, seconds, server.url)


def _lives(rng: random.Random, folder: Path, seconds: float, kind: str) -> Report:
    report, loop = Report(), rng.choice(("asyncio", "trio"))
    kills = rng.randint(4, 10) if seconds > 10 else 2
    turns, first, found = kills, 0, dict[int, list[str]]()
    for remaining in range(kills, -1, -1):
        command = [sys.executable, "-m", "tests.campaigns.dying_work", kind, loop, str(folder)]
        command += [str(first), str(turns)]
        process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if remaining:
            _wait_for_work(folder, process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, 0.15))
            process.kill()
            report.counts["kills"] += 1
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
    report.counts[f"{'postgres' if '://' in kind else kind}, {loop}"] += 1
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


def _wait_for_work(folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the process adds to the ledger, or has ended."""
    ledger = folder / "ledger"
    before = ledger.stat().st_size if ledger.exists() else 0
    while process.poll() is None and not (ledger.exists() and ledger.stat().st_size > before):
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.002)


def _told(turn: int) -> list[str]:
    """What the model is told in a turn's session."""
    once = [f"{name}-{turn}" for name in (*CODE_TOOLS, "count", "pay", "scouted")]
    return sorted([*once, " ".join(f"five-{number}-{turn}" for number in range(5))])
