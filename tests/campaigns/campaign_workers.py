"""Workers on one queue that are killed at random moments.

Each job ships an order under its idempotency key. In the end every job is answered, once: each prompt stands once in
its session with its answer, each order was shipped once, nothing was set aside, and each session has its jobs in the
order in which they were sent.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio

from repertory import Sessions, SQLiteSessions, TurnJob
from repertory.core.messages import text_of
from tests.campaigns.campaigns import Report
from tests.postgres_server import postgres_server
from tests.simulation.queue_worker import opened_queue
from tests.source_tree import ROOT
from tests.worker.moto_sqs import made_queue, moto_sqs

QUEUES = ("sqlite", "sqs", "postgres")
_SILENCE_S = 50.0


def workers(rng: random.Random, folder: Path, seconds: float) -> Report:
    """A round on a queue that chance chooses."""
    return killed(rng, folder, rng.choice(QUEUES), jobs=40 if seconds > 20 else 16, kills=8 if seconds > 20 else 4)


def killed(rng: random.Random, folder: Path, kind: str, *, jobs: int, kills: int) -> Report:
    """So many jobs, and so many kills of three workers."""
    for part in ("packed", "shipped"):
        (folder / part).mkdir()
    with ExitStack() as stack:
        environment = {**os.environ, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI"}
        name = f"sqlite:{folder / 'jobs.db'}"
        if kind == "sqs":
            environment["SQS_URL"] = stack.enter_context(moto_sqs(folder / "moto.log"))
            os.environ.update({name: environment[name] for name in environment if name[:3] in ("SQS", "AWS")})
            name = f"sqs:{made_queue(environment['SQS_URL'], 'jobs', fifo=True)}"
        if kind == "postgres":
            name = stack.enter_context(postgres_server()).url
        sent = [
            TurnJob("clerk", f"s{rng.randrange(5)}", f"order {number}", token=f"t{number}") for number in range(jobs)
        ]
        anyio.run(_send, name, sent[: jobs // 2])

        def started() -> subprocess.Popen[str]:
            backend = rng.choice(["asyncio", "trio"])
            command = [sys.executable, "-m", "tests.simulation.queue_worker", str(folder), name, backend]
            log = stack.enter_context((folder / "log").open("a"))
            return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=log, stderr=log)

        running = [started() for _ in range(2)]
        try:
            anyio.run(_send, name, sent[jobs // 2 :])
            for _ in range(kills):
                _pause(rng.uniform(0.2, 1.5))
                victim = rng.randrange(len(running))
                running[victim].send_signal(rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
                running[victim].wait()
                running[victim] = started()
            report = anyio.run(_ended, name, folder, sent)
        finally:
            for process in running:
                process.send_signal(signal.SIGTERM)
            for process in running:
                process.wait()
    report.counts[f"kills on {kind}"] = kills
    return report


def _pause(seconds: float) -> None:
    """Let the workers work."""
    anyio.run(anyio.sleep, seconds)


async def _send(name: str, jobs: list[TurnJob]) -> None:
    async with opened_queue(name) as queue:
        for job in jobs:
            await queue.send(job)


async def _ended(name: str, folder: Path, sent: list[TurnJob]) -> Report:
    """What there is when no job is left."""
    report, end = Report(acknowledged=len(sent)), time.monotonic() + _SILENCE_S
    async with opened_queue(name) as queue:
        while True:
            counts = await queue.counts()
            if not counts.waiting and not counts.taken:
                break
            if time.monotonic() > end:
                report.check(False, f"jobs are left: {counts}")
                break
            await anyio.sleep(0.2)
        report.check(counts.set_aside == 0, f"set aside: {await queue.set_aside(10)}")
    orders = sorted(path.read_text() for path in (folder / "shipped").iterdir())
    report.check(orders == sorted(str(job.prompt) for job in sent), f"shipped {orders}")
    sessions = Sessions(SQLiteSessions(folder / "agents.db"))
    for session_id in {job.session_id for job in sent}:
        said = await _said(sessions, session_id)
        wanted = [str(job.prompt) for job in sent if job.session_id == session_id]
        report.check(said == wanted, f"{session_id}: said {said}, sent {wanted}")
        report.found += len(set(said))
    return report


async def _said(sessions: Sessions, session_id: str) -> list[str]:
    """The prompts of a session, each of which must have its answer."""
    stored: Any = await sessions.show(session_id)
    messages = [each.message for agent in stored.agents.values() for each in agent.messages]
    texts = [(message["role"], text_of(message)) for message in messages]
    prompts = [text for role, text in texts if role == "user" and text]
    assert texts[-1] == ("assistant", "done"), texts[-3:]
    return prompts
