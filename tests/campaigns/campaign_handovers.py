"""Two processes hand one session back and forth, in turn and at the same time, and owners are killed while they are
asked, and between two calls: every acknowledged turn is there, once. Some have a runtime; the others call their agent
outside any block.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.app.embedding.test_yielding_processes import IN_FOLDERS, Sharer, history, sharer
from tests.campaigns.campaigns import Report

HANDOVERS = 1000
"""At most so many in one session, so that its history stays short enough to be read."""
KILLS = 0.01
"""Of all hand-overs, those in which the owner is killed."""


def handovers(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Sessions after each other, one of each kind of store in turn, until the time is over."""
    report, end = Report(), time.monotonic() + seconds
    kinds = rng.sample(IN_FOLDERS, len(IN_FOLDERS))
    while not report.counts["sessions"] or time.monotonic() < end:
        count = report.counts["sessions"]
        place = folder / f"{count}"
        place.mkdir()
        _one_session(rng, kinds[count % len(kinds)], str(place), end, report)
        report.counts["sessions"] += 1
    return report


def _one_session(rng: random.Random, kind: str, where: str, end: float, report: Report) -> None:
    acknowledged: list[str] = []
    names = ("one", "two")
    with ExitStack() as stack:

        def start(name: str) -> Sharer:
            bare = rng.random() < 0.5
            process = stack.enter_context(sharer(name, kind, where, rng.choice(["asyncio", "trio"]), bare=bare))
            report.counts["bare processes"] += bare
            report.check(process.hear() == "ready", f"{kind}: {name} did not start")
            return process

        processes = {name: start(name) for name in names}
        for number in range(HANDOVERS):
            if acknowledged and time.monotonic() >= end:
                break
            if rng.random() < KILLS:
                victim, asker = rng.sample(names, 2)
                if processes[victim].ask("slow s 600") == "begun":
                    processes[asker].tell(f"say s {number}-after-a-kill")
                    processes[victim].kill(after_s=rng.random() * 0.1)
                    _heard(processes[asker], asker, f"{number}-after-a-kill", acknowledged, report)
                    processes[victim] = start(victim)
                    report.counts["kills"] += 1
                continue
            if rng.random() < KILLS:
                victim = rng.choice(names)
                processes[victim].kill()
                processes[victim] = start(victim)
                report.counts["kills between calls"] += 1
            together = rng.random() < 0.5
            for name in names:
                processes[name].tell(f"say s {number}-{name}")
                if not together:
                    _heard(processes[name], name, f"{number}-{name}", acknowledged, report)
            for name in names if together else ():
                _heard(processes[name], name, f"{number}-{name}", acknowledged, report)
            report.counts["handovers"] += 2
        for name in names:
            report.check(processes[name].ask("drain") == "drained", f"{kind}: {name} did not end in order")
    said = Counter(history(kind, where, "s"))
    wrong = [text for text in acknowledged if said[text] != 1]
    doubled = [text for text, count in said.items() if count > 1 and text[:1].isdecimal() and text != "600"]
    report.check(not wrong and not doubled, f"{kind}: not there once: {wrong} {doubled}")
    report.acknowledged += len(acknowledged)
    report.found += len(acknowledged) - len(wrong)


def _heard(process: Sharer, name: str, text: str, acknowledged: list[str], report: Report) -> None:
    answer = process.hear()
    if answer == f"{name}: {text}":
        acknowledged.append(text)
    else:
        report.counts["refused"] += 1
        report.check(answer == "SessionBusy", f"{name} answered {answer!r} to {text!r}")
