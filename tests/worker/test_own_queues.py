"""Properties of one queue each: files that were replaced, transactions of other programs, forks, what is no queue."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import anyio
import anyio.lowlevel
import psycopg
import pytest

from repertory import PostgresQueue, SQLiteQueue, SQSQueue, TurnJob
from repertory.errors import Failed, Invalid, Unavailable
from repertory.worker.decisions import Again, Aside, Done
from tests.backends.sessions.postgres_places import schema_of
from tests.postgres_server import shared_server
from tests.source_tree import ROOT
from tests.worker.moto_sqs import made_queue, moto_sqs

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


def job(number: int, session: str = "s") -> TurnJob:
    return TurnJob("a", session, f"prompt {number}", token=f"t{number}")


def bodies(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def open_modes(folder: Path) -> dict[str, int]:
    """What others than the user may do with each file."""
    return {path.name: path.stat().st_mode & 0o077 for path in folder.rglob("*") if path.is_file()}


async def test_of_a_job_that_is_done_no_word_is_left_in_the_files_of_a_queue_that_stays_open(tmp_path: Path) -> None:
    async with SQLiteQueue(tmp_path / "jobs.db") as queue:
        await queue.send(job(4711))
        await queue.send(TurnJob("a", "later", "words that wait", token="w", not_before=time.time() + 1_000))
        (taken,) = await queue.receive(1, 0)
        assert await queue.settle(taken, Done())
        assert await queue.receive(1, 0) == []
        files = bodies(tmp_path)
    assert any(b"words that wait" in body for body in files.values())
    assert not [name for name, body in files.items() if b"prompt 4711" in body]


async def test_every_file_of_a_queue_is_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with SQLiteQueue(tmp_path / "jobs.db") as queue:
            await queue.send(job(1))
            (taken,) = await queue.receive(1, 0)
            assert await queue.settle(taken, Aside("secret words"))
            modes = open_modes(tmp_path)
    finally:
        os.umask(before)
    assert "jobs.db" in modes
    assert not any(modes.values()), modes


async def test_a_token_that_sqlite_has_is_kept_once_and_replaces_one_that_was_set_aside(tmp_path: Path) -> None:
    async with SQLiteQueue(tmp_path / "jobs.db") as queue:
        for _ in range(2):
            await queue.send(job(1))
        (delivery,) = await queue.receive(10, 0)
        await queue.send(job(1))
        assert await queue.settle(delivery, Aside("why"))
        assert await queue.receive(10, 0) == []
        await queue.send(job(1))
        assert list(await queue.set_aside(10)) == []
        assert len(await queue.receive(10, 0)) == 1


async def test_a_job_with_a_time_takes_its_place_at_that_time(tmp_path: Path) -> None:
    async with SQLiteQueue(tmp_path / "jobs.db") as queue:
        await queue.send(TurnJob("a", "s", "later", token="later", not_before=4e9))
        await queue.send(job(1))
        await queue.send(job(2))
        order: list[str] = []
        while found := await queue.receive(10, 0):
            assert len(found) == 1
            assert isinstance(found[0].job, TurnJob)
            order.append(found[0].job.token)
            assert await queue.settle(found[0], Done())
        assert order == ["t1", "t2"]


@pytest.mark.usefixtures("postgres")
async def test_a_job_that_a_program_inserts_is_there_when_its_own_transaction_is(tmp_path: Path) -> None:
    schema, dsn = schema_of(tmp_path), shared_server().dsn(password="hush")
    insert = (
        f"INSERT INTO {schema}.jobs (session, agent, token, job) VALUES ('ada', 'clerk', 'order-7',"
        """ '{"agent": "clerk", "session_id": "ada", "token": "order-7", "prompt": "ship it"}')"""
    )
    async with PostgresQueue(dsn, schema=schema) as queue:
        assert "hush" not in repr(queue)
        assert await queue.receive(1, 0) == []
        program = await anyio.to_thread.run_sync(psycopg.connect, dsn)
        await anyio.to_thread.run_sync(program.execute, insert.encode())
        assert await queue.receive(1, 0) == []
        await anyio.to_thread.run_sync(program.commit)
        program.close()
        (taken,) = await queue.receive(1, 0)
        assert taken.job == TurnJob("clerk", "ada", "ship it", token="order-7")
        assert await queue.settle(taken, Done())


@pytest.mark.usefixtures("postgres")
async def test_of_one_session_never_are_two_given_by_postgresql_whatever_is_sent_and_settled_meanwhile(
    tmp_path: Path, rng: random.Random
) -> None:
    queues = [PostgresQueue(shared_server().dsn(), schema=schema_of(tmp_path), lease_s=30.0) for _ in range(4)]
    in_hand: set[str] = set()
    done: list[str] = []

    async def send(queue: PostgresQueue, number: int) -> None:
        later = time.time() + rng.random() * 0.1 if rng.random() < 0.3 else None
        await queue.send(TurnJob("a", f"s{rng.randrange(4)}", "hi", token=f"t{number}", not_before=later))

    async def consume(queue: PostgresQueue) -> None:
        while len(done) < 80:
            for taken in await queue.receive(rng.randint(1, 4), 0.05):
                assert isinstance(taken.job, TurnJob)
                assert taken.job.session_id not in in_hand
                in_hand.add(taken.job.session_id)
                await anyio.lowlevel.checkpoint()
                in_hand.remove(taken.job.session_id)
                chance = rng.random()
                if chance < 0.2:
                    assert await queue.settle(taken, Again(rng.random() * 0.02))
                elif chance < 0.3:
                    assert await queue.settle(taken, Aside("why"))
                    assert await queue.retry(taken.id)
                else:
                    assert await queue.settle(taken, Done())
                    done.append(taken.job.token)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for number in range(80):
                group.start_soon(send, queues[number % 4], number)
            for queue in queues:
                group.start_soon(consume, queue)
    assert sorted(done) == sorted(f"t{number}" for number in range(80))
    for queue in queues:
        await queue.aclose()


async def test_a_file_that_was_replaced_is_noticed_by_who_only_looks(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with SQLiteQueue(path) as idle:
        assert await idle.receive(1, 0) == []
        for again in (False, True):
            for file in os.listdir(tmp_path):
                os.unlink(tmp_path / file)
            if again:
                async with SQLiteQueue(path) as new:
                    await new.send(job(1))
            for look in (lambda: idle.receive(1, 1.0), idle.counts, lambda: idle.set_aside(1), lambda: idle.retry("1")):
                with pytest.raises(Unavailable, match="replaced" if again else "cannot be used"):
                    await look()
    async with SQLiteQueue(path) as new:
        assert len(await new.receive(1, 0)) == 1


async def test_a_file_that_is_no_queue_is_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE things (x)")
        other.commit()
    before = (tmp_path / "other.db").read_bytes()
    with pytest.raises(Invalid, match="no queue"):
        await SQLiteQueue(tmp_path / "other.db").receive(1, 0)
    assert (tmp_path / "other.db").read_bytes() == before
    for lease_s in (0, -1.0, float("nan")):
        with pytest.raises(Invalid, match="lease_s"):
            SQLiteQueue(tmp_path / "x", lease_s=lease_s)


def test_a_forked_child_uses_the_queue_anew_and_has_none_of_its_parents_jobs(tmp_path: Path) -> None:
    program = """
import os, sys, anyio
from repertory import SQLiteQueue, TurnJob
from repertory.worker.decisions import Done

queue = SQLiteQueue(sys.argv[1])

async def before():
    for number in range(2):
        await queue.send(TurnJob("a", f"s{number}", "hi", token=f"t{number}"))
    return (await queue.receive(1, 0))[0]

async def child():
    found = await queue.receive(10, 0)
    assert len(found) == 1, found
    assert await queue.settle(found[0], Done())

mine = anyio.run(before)
pid = os.fork()
if not pid:
    try:
        anyio.run(child)
    except BaseException:
        import traceback; traceback.print_exc()
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert anyio.run(queue.settle, mine, Done())
assert anyio.run(queue.counts).waiting == 0
print("ok")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "q")], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert done.stdout == "ok\n", done.stderr


async def test_sqs_without_a_place_for_what_is_set_aside_is_refused_before_a_job_is_taken(
    tmp_path: Path, aws_keys: pytest.MonkeyPatch
) -> None:
    del aws_keys
    with moto_sqs(tmp_path / "log") as url:
        made = await anyio.to_thread.run_sync(lambda: made_queue(url, "bare", fifo=False, aside=False))
        async with SQSQueue(made, endpoint_url=url) as queue:
            await queue.send(job(1))
            with pytest.raises(Invalid, match="redrive policy, or aside_queue_url"):
                await queue.receive(1, 0)
        async with SQSQueue(f"{made}-none", endpoint_url=url, aside_queue_url=made) as queue:
            with pytest.raises(Failed, match="there is no such queue"):
                await queue.receive(1, 0)
