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
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.backends.objects.moto_s3 import moto_s3
from tests.campaigns.campaigns import Report
from tests.postgres_server import postgres_server, programs
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


def shared_deliveries(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Two processes answer in the same sessions, which go from one to the other while tries are made: one is killed,
    or sleeps until its lease is over, and the receiver keeps some tries waiting.
    """
    kind = rng.choice(("sqlite", "bucket", *(["postgres"] if programs() else [])))
    sizes = (8, 30) if seconds > 10 else (3, 4)
    with ExitStack() as stack:
        where: tuple[str, ...] = ()
        if kind == "bucket":
            where = (stack.enter_context(moto_s3(folder / "moto")),)
        elif kind == "postgres":
            where = (stack.enter_context(postgres_server()).url,)
        return _shared_round(rng, folder, seconds, sizes, kind, *where)


def _shared_round(
    rng: random.Random, folder: Path, seconds: float, sizes: tuple[int, int], kind: str, *where: str
) -> Report:
    report, port = Report(), _free_port()
    report.counts[kind] += 1
    server = _begin("serve", folder, port, str(rng.randrange(2**32)), "hangs")

    def sender() -> subprocess.Popen[str]:
        return _begin("send", folder, port, *map(str, sizes), rng.choice(("asyncio", "trio")), *where)

    senders = [sender(), sender()]
    for _ in range(rng.randint(2, 4)):
        with suppress(subprocess.TimeoutExpired):
            senders[0].wait(rng.uniform(0.1, 0.3) * max(seconds, 8.0))
        one = rng.randrange(2)
        if rng.random() < 0.5:
            senders[one].kill()
            _, errors = senders[one].communicate()
            right = senders[one].returncode in (0, -signal.SIGKILL)
            report.check(right, f"{kind}: a sender ended with {senders[one].returncode}: {errors[-2000:]}")
            senders[one] = sender()
            report.counts["kills"] += 1
        else:
            senders[one].send_signal(signal.SIGSTOP)
            with suppress(subprocess.TimeoutExpired):
                senders[1 - one].wait(rng.choice((1.0, 6.0)))  # The lease in a bucket is over in between.
            senders[one].send_signal(signal.SIGCONT)
            report.counts["freezes"] += 1
    for process in senders:
        _, errors = process.communicate(timeout=_END_S)
        report.check(process.returncode == 0, f"{kind}: a sender ended with {process.returncode}: {errors[-2000:]}")
    server.kill()
    server.communicate()
    return _judged(report, folder, sizes)


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _round(rng: random.Random, folder: Path, seconds: float, sizes: tuple[int, int], *where: str) -> Report:
    """`sizes`: of sessions, and of turns in each. `where`: the loop, and the URL of the bucket if there is one."""
    report, (sessions, turns) = Report(), sizes
    report.counts.update([where[0], *where[2:]])
    port = _free_port()
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
    return _judged(report, folder, sizes)


def _judged(report: Report, folder: Path, sizes: tuple[int, int]) -> Report:
    """Everything has come, and in order; again only under its id."""
    sessions, turns = sizes
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
        assert process.stdout.readline(), "the receiver has not begun"
    return process
