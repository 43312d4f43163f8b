"""SIGKILL at random moments of tools with steps, in order and beside each other, some of which fail and are undone.

In the end each turn has the answer that it would have without kills, and each effect took place once: but for those of
idempotent steps, which may have been repeated under the same key.
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
from tests.campaigns.dying_steps import FAILS_EVERY
from tests.source_tree import ROOT

_PLACES = ("sqlite", "journal in files", "documents in files")
_END_S = 60.0


def steps(rng: random.Random, folder: Path, seconds: float) -> Report:
    """One place, a few kills, then everything to its end."""
    report, kind = Report(), rng.choice(_PLACES)
    kills = rng.randint(3, 8) if seconds > 10 else 3
    turns, answers = 2 * kills, dict[int, str]()
    for remaining in range(kills, -1, -1):
        first = max(answers, default=-1) + 1
        command = [sys.executable, "-m", "tests.campaigns.dying_steps", kind, str(folder), str(first), str(turns)]
        process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        lines = list[str]()
        if remaining:
            for _ in range(rng.randint(0, 2)):
                lines.append(process.stdout.readline())
            _wait_for_call(folder, first + len(lines), process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, 0.03))
            process.kill()
            report.counts["kills"] += 1
        rest, errors = process.communicate(timeout=_END_S)
        lines += rest.splitlines(keepends=True)
        right = process.returncode in (0, -signal.SIGKILL) if remaining else process.returncode == 0
        report.check(right, f"{kind}: a worker ended with {process.returncode}: {errors[-4000:]}")
        for line in lines:
            if line.endswith("\n"):
                _, turn, answer = line.rstrip("\n").split(" ", 2)
                answers[int(turn)] = answer
        if not right:
            return report
    report.counts[kind] += 1
    ledger = Counter(line for line in (folder / "ledger").read_text().splitlines() if not line.startswith("call-"))
    names = Counter(line.split()[0] for line in ledger)
    for turn in range(turns):
        report.acknowledged += 1
        done, answer = _expected(turn)
        right = answers.get(turn) == answer and all(names[name] == 1 for name in done)
        report.found += right
        report.check(right, f"{kind}: turn {turn}: {answers.get(turn)}; {[(name, names[name]) for name in done]}")
    wanted = {name for turn in range(turns) for name in _expected(turn)[0]}
    report.check(names.keys() == wanted, f"{kind}: effects that nobody wants: {sorted(names.keys() - wanted)}")
    twice = [line for line, count in ledger.items() if count > 1 and not line.startswith("look-")]
    report.check(not twice, f"{kind}: effects that took place twice: {twice}")
    return report


def _wait_for_call(folder: Path, turn: int, process: subprocess.Popen[str]) -> None:
    """Wait until the tool of this turn runs, or the process has ended."""
    ledger = folder / "ledger"
    while process.poll() is None and not (ledger.exists() and f"call-{turn} " in ledger.read_text()):
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.002)


def _expected(turn: int) -> tuple[list[str], str]:
    """The effects of a turn, and its answer."""
    done = [f"charge-{turn}", f"look-{turn}", f"send-{turn}-1", f"send-{turn}-2"]
    if turn % FAILS_EVERY == 0:
        text = "Error: StepFailed - step seat failed: LookupError - no seat Undone: recall, refund."
        return [*done, f"recall-{turn}", f"refund-{turn}"], text
    return [*done, f"fee-{turn}"], " ".join([*done, f"fee-{turn}"])
