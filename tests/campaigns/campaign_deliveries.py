"""SIGKILL of a process that delivers, and of the receiver, which fails half the time besides.

In the end each answer has reached the receiver at least once, and those of a session came in order.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.backends.objects.moto_s3 import moto_s3
from tests.campaigns.campaigns import Report
from tests.source_tree import ROOT

_END_S = 900.0


def deliveries(rng: random.Random, folder: Path, seconds: float) -> Report:
    """A few sessions of a database, some kills of either end, then everything to its end."""
    sizes = (100, 100) if seconds > 100 else (20, 20) if seconds > 10 else (4, 5)
    return _round(rng, folder, seconds, sizes, rng.choice(("asyncio", "trio")))


def bucket_deliveries(rng: random.Random, folder: Path, seconds: float) -> Report:
    """The same with sessions in a bucket, where half the rounds encrypt them."""
    sizes = (20, 20) if seconds > 10 else (3, 4)
    with moto_s3(folder / "moto") as url:
        sealed = ("sealed",) if rng.random() < 0.5 else ()
        return _round(rng, folder, seconds, sizes, rng.choice(("asyncio", "trio")), url, *sealed)


def _round(rng: random.Random, folder: Path, seconds: float, sizes: tuple[int, int], *where: str) -> Report:
    """`sizes`: of sessions, and of turns in each. `where`: the loop, and the URL of the bucket if there is one."""
    report, (sessions, turns) = Report(), sizes
    report.counts.update([where[0], *where[2:]])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    server = _begin("serve", folder, port, str(rng.randrange(2**32)))
    for kills in range(rng.randint(2, 4), -1, -1):
        sender = _begin("send", folder, port, str(sessions), str(turns), *where)
        if kills:
            pause_s = rng.uniform(0.1, 0.3) * max(seconds, 10.0)
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
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    if arguments[0] == "serve":
        assert process.stdout is not None
        process.stdout.readline()
    return process
