"""Every queue is held to the contract."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio.to_thread
import pytest
from moto_sqs import asked, made_queue, moto_sqs

from repertory import FolderQueue, SQLiteQueue, SQSQueue
from repertory.testing.queue_contract import TurnQueueContract

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


class TestFolderQueue(TurnQueueContract):
    def open_queue(self, place: Path, lease_s: float) -> FolderQueue:
        return FolderQueue(place / "spool", lease_s=lease_s)

    async def put_raw(self, place: Path, body: bytes) -> None:
        folder = anyio.Path(place / "spool/new")
        await (folder / ".half").write_bytes(body)
        name = "same.json" if b"later release" in body else f"raw~t{next(_numbers)}.json"
        await (folder / ".half").rename(folder / name)


@pytest.fixture(scope="module")
def sqs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server for the tests of this process."""
    with moto_sqs(tmp_path_factory.mktemp("sqs") / "log") as url:
        yield url


class OnSqs(TurnQueueContract):
    fifo: bool
    guards_claims = False
    counts_tries = False
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


class TestStandardSQSQueue(OnSqs):
    fifo = False
    keeps_order = False


class TestFifoSQSQueue(OnSqs):
    fifo = True
