"""Every queue is held to the contract."""

from __future__ import annotations

import itertools
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio.to_thread
import psycopg
import pytest

from repertory import PostgresQueue, SQLiteQueue, SQSQueue, TurnJob
from repertory.errors import Invalid
from repertory.testing.queue_contract import TurnQueueContract, aside, job_number, take_jobs, tokens
from repertory.worker.decisions import JOB_BYTES_MAX, Aside, job_text, verdict_at_receipt
from tests.backends.sessions.postgres_places import schema_of
from tests.postgres_server import shared_server
from tests.worker.moto_sqs import asked, made_queue, moto_sqs

_numbers = itertools.count()


class TestSQLiteQueue(TurnQueueContract):
    def open_queue(self, place: Path, lease_s: float) -> SQLiteQueue:
        return SQLiteQueue(place / "jobs.db", lease_s=lease_s)

    async def put_raw(self, place: Path, body: bytes) -> None:
        number = next(_numbers)

        def insert() -> None:
            with closing(sqlite3.connect(place / "jobs.db", timeout=20)) as connection, connection:
                connection.execute(
                    "INSERT INTO jobs (session, agent, token, job, place, due_at, head) VALUES (?, 'x', ?, ?, 0, 0, 1)",
                    (f"raw {number}", f"raw {number}", body),
                )

        await anyio.to_thread.run_sync(insert)


@pytest.mark.usefixtures("postgres")
class TestPostgresQueue(TurnQueueContract):
    def open_queue(self, place: Path, lease_s: float) -> PostgresQueue:
        return PostgresQueue(shared_server().dsn(), schema=schema_of(place), lease_s=lease_s)

    async def put_raw(self, place: Path, body: bytes) -> None:
        number = next(_numbers)

        def insert() -> None:
            with psycopg.connect(shared_server().dsn()) as connection:
                statement = f"INSERT INTO {schema_of(place)}.jobs (session, agent, token, job) VALUES (%s, 'x', %s, %s)"
                connection.execute(statement.encode(), (f"raw {number}", f"raw {number}", body.decode()))

        await anyio.to_thread.run_sync(insert)


@pytest.fixture(scope="module")
def sqs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server for the tests of this process."""
    with moto_sqs(tmp_path_factory.mktemp("sqs") / "log") as url:
        yield url


class OnSqs(TurnQueueContract):
    fifo: bool
    guards_claims = False
    delays = False

    @pytest.fixture(autouse=True)
    def _server(self, sqs: str, aws_keys: object) -> None:
        del aws_keys
        self._server_url = sqs
        self._queue_url = made_queue(sqs, f"q{next(_numbers)}", fifo=self.fifo)

    def open_queue(self, place: Path, lease_s: float) -> SQSQueue:
        del place
        return SQSQueue(self._queue_url, region_name="us-east-1", endpoint_url=self._server_url, lease_s=lease_s)

    def can_put(self, body: bytes) -> bool:
        return body != b""

    async def put_raw(self, place: Path, body: bytes) -> None:
        del place
        number = next(_numbers)
        more = {"MessageGroupId": f"raw-{number}", "MessageDeduplicationId": str(number)}
        fields = {"QueueUrl": self._queue_url, "MessageBody": body.decode(), **(more if self.fifo else {})}
        await anyio.to_thread.run_sync(lambda: asked(self._server_url, "SendMessage", **fields))

    async def test_a_job_that_comes_too_early_has_had_no_try_at_its_time_whoever_looked_at_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("repertory.worker.queues.sqs._BACK_MAX_S", 1)  # Instead of half a day.
        body = {"agent": "a", "session_id": "s", "not_before": time.time() + 2.2}
        async with self.queues(tmp_path, 3) as queues:
            await self.put_raw(tmp_path, json.dumps(body).encode())
            looks = 0
            while True:
                (delivery,) = await take_jobs(queues[looks % 3], 1)
                verdict = verdict_at_receipt(delivery.job, delivery.tries, 1, {"a"}, time.time())
                assert delivery.tries == 1
                if verdict is None:
                    break
                assert await queues[looks % 3].settle(delivery, verdict)
                looks += 1
            assert looks <= 3

    async def test_a_job_that_sqs_would_drop_before_its_time_is_refused(self, tmp_path: Path) -> None:
        async with self.queues(tmp_path) as (queue,):
            with pytest.raises(Invalid, match="before its time"):
                await queue.send(TurnJob("a", "s", "hi", token="t", not_before=time.time() + 5 * 86_400))

    async def test_the_largest_job_can_be_set_aside(self, tmp_path: Path) -> None:
        large = TurnJob("a", "s", "x" * (JOB_BYTES_MAX - len(job_text(job_number(1))) - 10), token="large")
        async with self.queues(tmp_path) as (queue,):
            await queue.send(large)
            (delivery,) = await take_jobs(queue, 1)
            assert await queue.settle(delivery, Aside("a long reason " * 20))
            (kept,) = await aside(queue, 1)
            assert kept.token == "large"

    async def test_a_job_that_is_sent_twice_is_given_twice_and_not_dropped_by_sqs(self, tmp_path: Path) -> None:
        async with self.queues(tmp_path) as (queue,):
            for _ in range(2):
                await queue.send(job_number(1))
            taken = [*tokens(await take_jobs(queue, 1))]
            counts = await queue.counts()
            assert (taken, counts.waiting + counts.taken) == (["s-1"], 2)


class TestStandardSQSQueue(OnSqs):
    fifo = False
    keeps_order = False


class TestFifoSQSQueue(OnSqs):
    fifo = True
