"""SIGKILL at random moments of code that calls four tools: without effects, with one, idempotent, in steps. On asyncio
and trio; on databases, files, and, where there is time to start a server, in a bucket.

In the end each turn has the answer that it would have without kills, and each effect took place once: but for those of
tools that may be repeated, under the same key.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.campaigns.campaigns import Report
from tests.operations.operated_places import server_for
from tests.postgres_server import programs
from tests.source_tree import ROOT

_LOCAL = ("sqlite", "journal in files", "documents in files", *(["postgres"] if programs() else []))
_BUCKETS = ("journal on s3",)
_END_S = 60.0


def code(rng: random.Random, folder: Path, seconds: float) -> Report:
    """One place, a few kills, then everything to its end."""
    kind, loop = rng.choice((*_LOCAL, *_BUCKETS) if seconds > 30 else _LOCAL), rng.choice(("asyncio", "trio"))
    with server_for(kind, folder) as url:
        return _lives(rng, folder, rng.randint(3, 8) if seconds > 10 else 3, kind, loop, url)


def _lives(rng: random.Random, folder: Path, kills: int, kind: str, loop: str, url: str) -> Report:
    report = Report()
    turns, answers = 2 * kills, dict[int, str]()
    for remaining in range(kills, -1, -1):
        first = max(answers, default=-1) + 1
        command = [sys.executable, "-m", "tests.campaigns.dying_code", kind, loop, str(folder)]
        command += [str(first), str(turns), url]
        process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        lines = list[str]()
        if remaining:
            # A turn begins and ends with a line.
            for _ in range(rng.choice((1, 1, 3))):
                lines.append(process.stdout.readline())
            _wait_for_effects(folder, rng.randint(0, 6), process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, 0.02))
            process.kill()
            report.counts["kills"] += 1
        rest, errors = process.communicate(timeout=_END_S)
        lines += rest.splitlines(keepends=True)
        right = process.returncode in (0, -signal.SIGKILL) if remaining else process.returncode == 0
        report.check(right, f"{kind}: a worker ended with {process.returncode}: {errors[-4000:]}")
        for line in lines:
            if line.endswith("\n") and line.startswith("answered"):
                _, turn, answer = line.rstrip("\n").split(" ", 2)
                answers[int(turn)] = answer
        if not right:
            return report
    report.counts[f"{kind}, {loop}"] += 1
    ledger = Counter(line for line in (folder / "ledger").read_text().splitlines())
    wanted = Counter[str]()
    for turn in range(turns):
        report.acknowledged += 1
        done, answer = _expected(turn)
        wanted.update(done)
        right = answers.get(turn) == answer
        report.found += right
        report.check(right, f"{kind}: turn {turn}: {answers.get(turn)}, and not {answer}")
    names = Counter(line.split()[0] for line in ledger)
    report.check(names == wanted, f"{kind}: effects {(names - wanted) + (wanted - names)} too many or missing")
    twice = [line for line, count in ledger.items() if count > 1 and not line.startswith(("look-", "send-"))]
    report.check(not twice, f"{kind}: effects that took place twice: {twice}")
    return report


def _wait_for_effects(folder: Path, more: int, process: subprocess.Popen[str]) -> None:
    """Wait until so many more effects took place, or the process has ended."""
    ledger = folder / "ledger"

    def count() -> int:
        return ledger.read_text().count("\n") if ledger.exists() else 0

    until = count() + more
    while process.poll() is None and count() < until:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.001)


def _expected(turn: int) -> tuple[list[str], str]:
    """The effects of a turn, each once, and its answer."""

    def value(name: str, given: int) -> int:
        done.append(f"{name}-{given}")
        return given * 3 + len(name)

    done = list[str]()
    order = value("look", turn)
    paid = value("charge", order)
    sent = [value("send", paid), value("send", paid + 1), value("look", paid)]
    at = sum(sent) % 97
    value("seat", at)
    return done, f"{order} {paid} {sent} {value('ticket', at)}"
