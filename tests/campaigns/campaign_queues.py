"""Hostile jobs among good ones, put into a queue as other programs would.

The worker ends when the queue is empty, and not before. Each good job is answered, once, also one of SQS that comes
before its time. What is no job is set aside with its reason; what turns out to be one is answered, or waits for its
time. What is listed as set aside can be put back, and has its token then.
"""

from __future__ import annotations

import json
import math
import random
import sqlite3
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.error import HTTPError

import anyio
import boto3
import psycopg

from repertory import (
    AgentSpec,
    PostgresQueue,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteQueue,
    SQLiteSessions,
    SQSQueue,
    TurnJob,
    Worker,
)
from repertory.core.messages import text_of
from repertory.errors import RepertoryError
from repertory.worker.decisions import Done, Malformed
from tests.campaigns.campaigns import Report
from tests.postgres_server import postgres_server
from tests.worker.moto_sqs import asked, made_queue, moto_sqs

_Queue: TypeAlias = SQLiteQueue | PostgresQueue | SQSQueue
_GOOD = 8
_IN_SQS = 40
_END_S = 60.0
_FIELDS = ("agent", "session_id", "prompt", "token", "not_before", "attributes", "more")
_VALUES: tuple[str, ...] = (
    *("1e19", "1e308", "1e400", "-1e19", "-1", "0", "253402300800", "NaN", "Infinity", "-Infinity", "true", "null"),
    *("9" * 400, "9" * 5000, "4e9", '""', '"x"', '"../../x"', '"\\u0000"', '"\\ud800"', '"~n1~t1"', "[]", "{}"),
    *('[{"text": 1}]', '[{"role": "user"}]', '[{"text": "hi"}, {"image": {}}]', '{"request_state": 5}', '{"agent": 1}'),
    *(
        "[" * 500 + "]" * 500,
        '{"a":' * 90 + "1" + "}" * 90,
        json.dumps("long " * 300_000),
        '{"__bytes_encoded__": true}',
    ),
    *('[{"toolResult": {"toolUseId": "x"}}]', '[{"interruptResponse": {"interruptId": 1}}]'),
)


def hostile_job(number: int, rng: random.Random) -> bytes:
    """A job with a few wrong values, or wrong bytes."""
    fields = {"agent": '"clerk"', "session_id": f'"bad{number}"', "prompt": '"hi"', "token": f'"bad{number}"'}
    for _ in range(rng.randint(1, 3)):
        fields[rng.choice(_FIELDS)] = rng.choice(_VALUES)
    if rng.random() < 0.2:
        fields.pop(rng.choice(list(fields)))
    body = ("{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}").encode()
    if rng.random() < 0.3:
        place = rng.randrange(len(body))
        body = body[:place] + rng.randbytes(rng.randrange(4)) + body[place + rng.randrange(4) :]
    return body


def hostile_queues(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Rounds on both kinds of queues that other programs can write to."""
    report = Report()
    with postgres_server() as server:
        for kind in ("sqlite", "postgres"):
            (folder / kind).mkdir()
            backend = rng.choice(("asyncio", "trio"))
            dsn = server.url if kind == "postgres" else ""
            anyio.run(_round, kind, folder / kind, dsn, rng, 40 if seconds < 20 else 300, report, backend=backend)
    with moto_sqs(folder / "log") as url:
        backend = rng.choice(("asyncio", "trio"))
        anyio.run(_sqs_round, url, folder, rng, rng.random() < 0.5, report, backend=backend)
    return report


def _opened(kind: str, folder: Path, dsn: str) -> SQLiteQueue | PostgresQueue:
    return SQLiteQueue(folder / "jobs.db") if kind == "sqlite" else PostgresQueue(dsn)


async def _round(kind: str, folder: Path, dsn: str, rng: random.Random, hostile: int, report: Report) -> None:
    queue = _opened(kind, folder, dsn)
    bodies = [hostile_job(number, rng) for number in range(hostile)]
    await queue.counts()
    for number in range(_GOOD):
        await queue.send(TurnJob("clerk", f"good{number}", f"order {number}", token=f"t{number}"))
        for place, body in enumerate(bodies[number::_GOOD]):
            put = _put_row if kind == "sqlite" else partial(_put_line, dsn)
            put(folder, f"{place}-{number}", body, rng)
    async with Runtime(sessions=SQLiteSessions(folder / "agents.db")) as runtime:
        runtime.agent(AgentSpec(name="clerk", model=ScriptedModel(["done"], loop=True)))
        worker = Worker(runtime, queue, tries=1)
        with anyio.move_on_after(_END_S):
            try:
                await worker.run(until_empty=True)
            except RepertoryError as error:
                report.faults.append(f"{kind}: the worker ended: {error!r}")
        stats = worker.stats()
    sessions = Sessions(SQLiteSessions(folder / "agents.db"))
    for number in range(_GOOD):
        report.acknowledged += 1
        said = [text_of(each.message) for each in (await sessions.show(f"good{number}")).agents["clerk"].messages]
        report.found += said == [f"order {number}", "done"]
        report.check(said == [f"order {number}", "done"], f"{kind}: good{number} has {said}")
    async with _opened(kind, folder, dsn) as again:
        counts, aside = await again.counts(), await again.set_aside(10_000)
        await _put_back(kind, again, report)
    report.check(all(each.why for each in aside), f"{kind}: set aside without a reason")
    report.check(counts.taken == 0, f"{kind}: {counts.taken} are still taken")
    lost = hostile + _GOOD - stats.finished - counts.set_aside - counts.waiting
    report.check(lost == 0, f"{kind}: {lost} jobs are neither answered nor kept: {stats}, {counts}")
    report.counts[f"{kind}: set aside"] += counts.set_aside
    report.counts[f"{kind}: answered"] += stats.finished
    report.counts[f"{kind}: waiting for their time"] += counts.waiting


async def _sqs_round(url: str, folder: Path, rng: random.Random, fifo: bool, report: Report) -> None:
    """Good jobs that come before their time, and hostile ones."""
    kind, place = "fifo" if fifo else "sqs", made_queue(url, "jobs", fifo=fifo)
    keys = boto3.Session(aws_access_key_id="AKIDEXAMPLE", aws_secret_access_key="x", region_name="us-east-1")

    def put(name: str, body: str) -> None:
        more = {"MessageGroupId": name, "MessageDeduplicationId": name} if fifo else {}
        try:
            asked(url, "SendMessage", QueueUrl=place, MessageBody=body, **more)
        except HTTPError:
            report.counts[f"{kind}: refused"] += 1

    for number in range(_IN_SQS):
        put(f"bad{number}", hostile_job(number, rng).decode(errors="replace"))
    due = [time.time() + rng.uniform(0.0, 3.0) for _ in range(_GOOD)]
    for number, at in enumerate(due):
        job = {"agent": "clerk", "session_id": f"good{number}", "prompt": f"order {number}", "not_before": at}
        put(f"good{number}", json.dumps(job))
    async with Runtime(sessions=SQLiteSessions(folder / "sqs.db")) as runtime:
        clerk = runtime.agent(AgentSpec(name="clerk", model=ScriptedModel(["done"], loop=True)))
        worker = Worker(runtime, SQSQueue(place, endpoint_url=url, boto_session=keys), tries=1)
        await worker.start()
        await anyio.sleep(max(due) - time.time() + 1.0)
        for number in range(_GOOD):
            said: list[str] = []
            with anyio.move_on_after(10.0):
                while len(said) < 2:
                    await anyio.sleep(0.05)
                    said = [text_of(message) for message in await clerk.session(f"good{number}").messages()]
            report.acknowledged += 1
            report.found += said == [f"order {number}", "done"]
            report.check(said == [f"order {number}", "done"], f"{kind}: good{number} has {said}")
        await worker.stop()
    async with SQSQueue(place, endpoint_url=url, boto_session=keys) as queue:
        await _put_back(kind, queue, report)


async def _put_back(kind: str, queue: _Queue, report: Report) -> None:
    """Put back what was set aside, and take all of it."""
    aside = await queue.set_aside(10_000)
    report.check(bool(aside), f"{kind}: nothing was set aside")
    for each in aside:
        report.check(await queue.retry(each.id), f"{kind}: {each.id} is listed, and cannot be put back")
    given: set[str] = set()
    while found := await queue.receive(10, 0.0):
        given |= {each.job.token for each in found if not isinstance(each.job, Malformed)}
        for each in found:
            await queue.settle(each, Done())
    lost = {each.token for each in aside if each.token} - given
    report.check(not lost, f"{kind}: {len(lost)} jobs that were put back have lost their tokens: {sorted(lost)[:3]}")


def _put_row(folder: Path, name: str, body: bytes, rng: random.Random) -> None:
    columns: dict[str, Any] = {"session": name, "agent": "x", "token": name, "place": 0, "due_at": 0, "head": 1}
    columns["job"] = rng.choice((body, body, body.decode(errors="replace"), 7, 1e308))
    if rng.random() < 0.4:
        odd = (
            ("tries", 2**63 - 1),
            ("tries", "many"),
            ("tries", -5),
            ("place", "x"),
            ("due_at", -1e308),
            ("why", b"\xff"),
        )
        columns.update([rng.choice((*odd, ("agent", b"\xff"), ("place", 1e308)))])
    with closing(sqlite3.connect(folder / "jobs.db", timeout=20)) as connection, connection:
        marks = ", ".join("?" for _ in columns)
        connection.execute(f"INSERT INTO jobs ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values()))
        if rng.random() < 0.2:
            column = rng.choice(("job", "token", "session", "why"))
            change = f"UPDATE jobs SET {column} = CAST(? AS TEXT) WHERE token = ?"
            connection.execute(change, (b"\xff\xfe" + name.encode(), name))


def _put_line(dsn: str, folder: Path, name: str, body: bytes, rng: random.Random) -> None:
    del folder
    columns: dict[str, Any] = {"session": name, "agent": "x", "token": name, "job": body.decode(errors="replace")}
    columns["job"] = columns["job"].replace("\0", "")
    if rng.random() < 0.4:
        odd = (("tries", 2**63 - 1), ("tries", -5), ("place", math.nan), ("due_at", -math.inf), ("due_at", math.nan))
        columns.update([rng.choice((*odd, ("place", math.inf), ("why", "\x01"), ("head", True), ("head", False)))])
    with psycopg.connect(dsn) as connection:
        marks = ", ".join("%s" for _ in columns)
        connection.execute(
            f"INSERT INTO repertory.jobs ({', '.join(columns)}) VALUES ({marks})".encode(), [*columns.values()]
        )
