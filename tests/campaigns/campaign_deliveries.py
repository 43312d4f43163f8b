"""SIGKILL of a process that delivers, and of the receiver, which fails half the time besides.

In the end each answer has reached the receiver at least once, and those of a session came in order.
"""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.campaigns.campaigns import Report
from tests.source_tree import ROOT

_END_S = 900.0


def deliveries(rng: random.Random, folder: Path, seconds: float) -> Report:
    """A few sessions, two kills of either end, then everything to its end."""
    report = Report()
    sessions, turns = (100, 100) if seconds > 100 else (20, 20) if seconds > 10 else (4, 5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    server = _begin("serve", folder, port, str(rng.randrange(2**32)))
    for kills in (2, 1, 0):
        sender = _begin("send", folder, port, str(sessions), str(turns))
        if kills:
            pause_s = rng.uniform(0.05, 0.3) * max(seconds, 3.0)
            with suppress(subprocess.TimeoutExpired):
                sender.wait(pause_s)
            server.kill()
            server.communicate()
            with suppress(subprocess.TimeoutExpired):
                sender.wait(rng.uniform(0, 0.5))
            sender.kill()
            report.counts["kills"] += 2
            server = _begin("serve", folder, port, str(rng.randrange(2**32)))
        _, errors = sender.communicate(timeout=_END_S)
        right = sender.returncode in (0, -signal.SIGKILL) if kills else sender.returncode == 0
        report.check(right, f"a sender ended with {sender.returncode}: {errors[-2000:]}")
    server.kill()
    server.communicate()
    came: dict[str, dict[int, str]] = {}
    lines = (folder / "ledger").read_text().splitlines()
    for line in lines:
        session, turn, event = line.split()
        before = came.setdefault(session, {})
        first = int(turn) not in before
        report.check(not first or int(turn) == len(before) + 1, f"{session}: turn {turn} came behind {len(before)}")
        report.check(before.setdefault(int(turn), event) == event, f"{session}: turn {turn} came under two ids")
    report.acknowledged = sessions * turns
    report.found = sum(len(each) for each in came.values())
    report.counts["twice"] += len(lines) - report.found
    report.check(report.found == report.acknowledged, f"{report.acknowledged - report.found} events are lost")
    return report


def _begin(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.campaigns.dying_deliveries", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if arguments[0] == "serve":
        assert process.stdout is not None
        process.stdout.readline()
    return process
