"""A queue in a SQLite file, shared by the processes of one machine.

Each session has one head: the job that somebody has, or the next one. Only heads are ever given, so taking a job costs
the same however many wait. A head is visible from `due_at` on; taking it moves that by the lease, so the claim of a
dead worker runs out by itself. The time is SQLite's.
"""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import anyio

from repertory.backends.owning_thread import OwningThread
from repertory.backends.sqlite_files import UNUSABLE_VALUES, DatabaseKind, read_marks, transaction, use_wal
from repertory.errors import Failed, Invalid, RepertoryError, Unavailable
from repertory.forking import forget_in_children
from repertory.worker.decisions import (
    JOB_BYTES_MAX,
    WAIT_MAX_S,
    Again,
    Aside,
    Done,
    JobVerdict,
    TurnJob,
    job_text,
    read_job,
)
from repertory.worker.ports import Delivery, JobSetAside, QueueCounts, job_set_aside

QUEUE_ID = 0x52707471
"""The application id that marks a queue, at byte 68 of the file."""
_VERSION = 1
_PAUSES_S = 0.005, 0.1
"""The first and the longest pause between two looks at an empty queue."""
# `unixepoch` has fractions of a second from SQLite 3.42 on only.
_NOW = "((julianday('now') - 2440587.5) * 86400.0)"
_SCHEMA = (
    # `place`: where it stands among those of its session. `head`: whether it is the one that may be given.
    # AUTOINCREMENT, since the id of a job without a token becomes its token: an id that is used again would find the
    # turn of another job.
    "CREATE TABLE jobs (id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, agent TEXT NOT NULL,"
    " token TEXT NOT NULL, job BLOB NOT NULL, place REAL NOT NULL, due_at REAL NOT NULL, head INTEGER NOT NULL,"
    " claim TEXT, tries INTEGER NOT NULL DEFAULT 0, why TEXT NOT NULL DEFAULT '', aside_at REAL,"
    " UNIQUE (session, agent, token))",
    "CREATE INDEX jobs_in_order ON jobs (session, place, id) WHERE aside_at IS NULL",
    "CREATE INDEX jobs_due ON jobs (due_at) WHERE head = 1",
    "CREATE INDEX jobs_aside ON jobs (aside_at) WHERE aside_at IS NOT NULL",
    f"PRAGMA user_version = {_VERSION}",
    f"PRAGMA application_id = {QUEUE_ID}",
)
# Another program may have put a job there as text of any encoding, and of any size.
_SESSION, _IN_SESSION = "CAST(session AS BLOB)", "session = CAST(? AS TEXT)"
_JOB = f"substr(CAST(job AS BLOB), 1, {JOB_BYTES_MAX + 1})"
_KIND = DatabaseKind(name="queue database", entry="a job")

Change = Callable[["_JobTable"], bool]


class SQLiteQueue:
    """A queue in a file, for any number of processes of one machine. The file is made when it is first used.

    The jobs of a session are given in the order in which they were sent, one at a time, also after failures; a job with
    `not_before` takes its place at that time. A job whose session, agent and token the queue has already is not kept
    twice; one that was set aside is replaced.

    Errors of every call: `Unavailable` (locked for too long, disk full), `Failed` (no right to write there), `Invalid`
    (no queue, closed), `Corrupt` (damaged).

    Args:
        path: The database file.
        lease_s: How long a worker has a job without saying that it lives.
        busy_timeout_s: How long to wait while other processes write.

    Raises:
        Invalid: For `lease_s` that is not positive. Correct the argument.
    """

    def __init__(self, path: str | os.PathLike[str], *, lease_s: float = 30.0, busy_timeout_s: float = 5.0) -> None:
        if not 0 < lease_s <= WAIT_MAX_S:
            raise Invalid("lease_s is a positive number of seconds, a day at most", got=lease_s)
        self._path = Path(path).absolute()
        self._lease_s = lease_s
        self._busy_timeout_s = busy_timeout_s
        self._thread = OwningThread(f"repertory {self._path.name}")
        self._table: _JobTable | None = None
        self._changes: deque[_Pending] = deque()
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Have a forked child open the file anew."""
        self._table = None
        self._changes.clear()

    def __repr__(self) -> str:
        return f"SQLiteQueue({str(self._path)!r})"

    @property
    def name(self) -> str:
        """The path of the queue's file, after `sqlite:`."""
        return f"sqlite:{self._path}"

    @property
    def lease_s(self) -> float:
        """Seconds that a worker has a job without a sign of life."""
        return self._lease_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def send(self, job: TurnJob) -> None:
        """Keep a job; it is on disk on return. Cancelled, it may be kept. Errors: see the class.

        Args:
            job: The job.
        """
        text = job_text(job).encode()
        await self._change(lambda table: table.put(job, text), lasting=True)

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        """Take at most `limit` jobs, after waiting for the first one for `wait_s` at most. Cancelled, nobody has them.

        Args:
            limit: The most that is returned.
            wait_s: Seconds to wait for the first job.
        """
        until = anyio.current_time() + wait_s
        pause_s, longest_s = _PAUSES_S
        while True:
            # Jobs that a cancelled call was given go back at once, and not when the claim is over.
            found = await self._thread.run(
                partial(self._take, limit), undo=lambda taken: self._opened().give_back(taken)
            )
            remaining_s = until - anyio.current_time()
            if found or remaining_s <= 0:
                return found
            await anyio.sleep(min(pause_s, remaining_s))
            pause_s = min(2 * pause_s, longest_s)

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Have these for `lease_s` from now on.

        Args:
            deliveries: The jobs that this worker still holds.
        """
        keys = [(self._lease_s, int(each.id), each.claim) for each in deliveries]
        await self._change(lambda table: table.extend(keys))

    async def settle(self, delivery: Delivery, verdict: JobVerdict) -> bool:
        """Forget the job, give it back, or set it aside. False if somebody else has it meanwhile, or it is gone.

        Args:
            delivery: The job as it was received.
            verdict: What becomes of the job.
        """
        return await self._change(lambda table: table.settle(int(delivery.id), delivery.claim, verdict))

    async def counts(self) -> QueueCounts:
        """The numbers of jobs in each state."""
        return await self._thread.run(lambda: self._opened().counts())

    async def set_aside(self, limit: int) -> Sequence[JobSetAside]:
        """The jobs that were set aside, `limit` at most, the oldest first.

        Args:
            limit: The most that is returned.
        """
        return await self._thread.run(lambda: self._opened().aside(limit))

    async def retry(self, job_id: str) -> bool:
        """Put a job that was set aside back, behind the others of its session. False if there is none of this id.

        Args:
            job_id: The id of the job.
        """
        return await self._change(lambda table: table.retry(job_id), lasting=True)

    async def aclose(self) -> None:
        """Close the file. A queue that was closed takes no more calls."""
        await self._thread.aclose(self._close)

    async def _change(self, change: Change, *, lasting: bool = False) -> bool:
        """Make a change, in one transaction with those that others wait for at this moment. `lasting`: synced before
        it returns. Others need not be: if the machine loses them, a job is given once more.
        """
        pending = _Pending(change, lasting=lasting)
        self._changes.append(pending)
        await self._thread.run(self._make_changes)
        return pending.outcome()

    # On the thread.

    def _opened(self) -> _JobTable:
        if self._table is None:
            self._table = _JobTable(self._path, busy_timeout_s=self._busy_timeout_s)
        return self._table

    def _take(self, limit: int) -> list[Delivery]:
        return self._opened().take(limit, self._lease_s)

    def _make_changes(self) -> None:
        made: list[_Pending] = []
        with suppress(IndexError):
            while True:
                made.append(self._changes.popleft())
        # The one before has made this change along with its own.
        if not made:
            return
        try:
            table = self._opened()
            with table.writing(lasting=any(pending.lasting for pending in made)):
                for pending in made:
                    pending.result = pending.change(table)
        except RepertoryError as error:
            for pending in made:
                pending.result = error

    def _close(self) -> None:
        if self._table is not None:
            self._table.close()


class _Pending:
    """A change for which somebody waits."""

    __slots__ = ("change", "lasting", "result")

    def __init__(self, change: Change, *, lasting: bool) -> None:
        self.change = change
        self.lasting = lasting
        self.result: bool | RepertoryError = False

    def outcome(self) -> bool:
        if isinstance(self.result, RepertoryError):
            raise self.result
        return self.result


class _JobTable:
    """The database, on its thread. Methods without a transaction of their own run within the caller's."""

    def __init__(self, path: Path, *, busy_timeout_s: float) -> None:
        self._path = path
        with _KIND.mapped_errors(path):
            _KIND.refuse_links(path)
            self._connection = _KIND.connect(path, busy_timeout_s=busy_timeout_s)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise
            self._inode = os.stat(path).st_ino
        self._removed = False
        """True while the log may hold jobs that are gone."""

    def _prepare(self) -> None:
        if not self._is_queue():
            # Outside of the transaction: within one, SQLite does not change the journal's mode.
            use_wal(self._connection)
            with transaction(self._connection):
                if not self._is_queue():  # Another process may have been faster.
                    for statement in _SCHEMA:
                        self._connection.execute(statement)
        # Jobs hold prompts, and are gone when they are done: their bytes are overwritten.
        self._connection.execute("PRAGMA secure_delete = ON")
        # Another program may have made the file, with triggers and views that call functions.
        self._connection.execute("PRAGMA trusted_schema = OFF")

    def _is_queue(self) -> bool:
        marks = read_marks(self._connection)
        if marks.application == 0 and marks.entries == 0:
            return False
        if marks.application != QUEUE_ID:
            raise Invalid("this database is no queue: name another file, such as jobs.db", path=str(self._path))
        if marks.version > _VERSION:
            raise Failed("a newer release has made this queue", path=str(self._path), version=marks.version)
        return True

    @contextmanager
    def writing(self, *, lasting: bool = False) -> Generator[None]:
        """One transaction; after an error nothing of it is stored."""
        try:
            self._refuse_lost_file()
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if lasting else 'NORMAL'}")
            with transaction(self._connection):
                yield
            _KIND.refuse_lost_log(self._connection, self._path)
        except UNUSABLE_VALUES as error:
            if isinstance(error, RepertoryError):
                raise
            raise _KIND.mapped_error(error, self._path) from error

    def _refuse_lost_file(self) -> None:
        """Refuse a removed file: SQLite would go on with it, and never see a job of the new one. The new one is not
        opened: whoever puts a backup there may not have removed the old log yet.
        """
        if os.stat(self._path).st_ino != self._inode:
            text = "the queue database was replaced while it was open: start this process again"
            raise Unavailable(text, path=str(self._path))
        _KIND.refuse_lost_log(self._connection, self._path)

    @contextmanager
    def _reading(self) -> Generator[None]:
        with _KIND.mapped_errors(self._path):
            self._refuse_lost_file()
            yield

    def take(self, limit: int, lease_s: float) -> list[Delivery]:
        """Claim heads that are due, the one that is due for the longest time first. A transaction of its own."""
        with self._reading():
            due = f"FROM jobs WHERE head = 1 AND due_at <= {_NOW}"
            # Looked for without the lock of writers: idle workers look ten times a second, and would hold up those that
            # send.
            if limit <= 0 or self._connection.execute(f"SELECT 1 {due} LIMIT 1").fetchone() is None:
                self._tidy()
                return []
        with self.writing():
            keys = self._execute(f"SELECT id {due} ORDER BY due_at, id LIMIT ?", (limit,)).fetchall()
            return [self._claimed(key, lease_s) for (key,) in keys]

    def _tidy(self) -> None:
        """Empty the log, which keeps what was said in jobs that are gone. Nothing is due, so there is time."""
        if self._removed:
            (busy, _, _) = self._execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._removed = bool(busy)

    def _claimed(self, key: int, lease_s: float) -> Delivery:
        changed = self._execute(
            # A new claim for each receipt: the late verdict of a worker whose lease is over finds nothing.
            f"UPDATE jobs SET claim = hex(randomblob(8)), tries = tries + 1, due_at = {_NOW} + ? WHERE id = ?"
            f" RETURNING claim, tries, {_JOB}",
            (lease_s, key),
        )
        ((claim, tries, data),) = changed.fetchall()
        return Delivery(id=str(key), claim=claim, job=read_job(data or b"", self._given_id(key)), tries=tries)

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Put these back as if they had not been taken, in a transaction of its own."""
        with self.writing():
            for each in deliveries:
                self.settle(int(each.id), each.claim, Again(0.0, counts=False))

    def put(self, job: TurnJob, text: bytes) -> bool:
        """Keep a job, unless it is there."""
        key = job.session_id, job.agent, job.token
        self._execute("DELETE FROM jobs WHERE session = ? AND agent = ? AND token = ? AND aside_at IS NOT NULL", key)
        stored = self._execute(
            "INSERT INTO jobs (session, agent, token, job, place, due_at, head)"
            f" VALUES (?, ?, ?, ?, max({_NOW}, ?), max({_NOW}, ?), 0) ON CONFLICT DO NOTHING",
            (*key, text, job.not_before or 0.0, job.not_before or 0.0),
        )
        if stored.rowcount == 1:
            self._choose_head(job.session_id.encode())
        return stored.rowcount == 1

    def extend(self, keys: Sequence[tuple[float, int, str]]) -> bool:
        """Extend these claims, after whose end others may take the jobs."""
        self._connection.executemany(f"UPDATE jobs SET due_at = {_NOW} + ? WHERE id = ? AND claim = ?", keys)
        return True

    def settle(self, key: int, claim: str, verdict: JobVerdict) -> bool:
        """Carry the verdict out, if this claim is still the last one."""
        found = self._execute(f"SELECT {_SESSION} FROM jobs WHERE id = ? AND claim = ?", (key, claim)).fetchone()
        if found is None:
            return False
        # An error may quote half of a surrogate pair, which SQLite does not take.
        why = "" if isinstance(verdict, Done) else verdict.why.encode(errors="backslashreplace").decode()
        match verdict:
            case Done():
                self._execute("DELETE FROM jobs WHERE id = ?", (key,))
                self._removed = True
            case Again():
                self._execute(
                    f"UPDATE jobs SET claim = NULL, due_at = {_NOW} + ?, tries = tries - ?, why = ? WHERE id = ?",
                    (verdict.after_s, not verdict.counts, why, key),
                )
                return True
            case Aside():
                self._execute(
                    f"UPDATE jobs SET claim = NULL, head = 0, why = ?, aside_at = {_NOW} WHERE id = ?",
                    (why, key),
                )
        self._choose_head(found[0])
        return True

    def retry(self, job_id: str) -> bool:
        """See the port."""
        back = self._execute(
            f"UPDATE jobs SET aside_at = NULL, tries = 0, why = '', place = {_NOW}, due_at = {_NOW}"
            f" WHERE id = ? AND aside_at IS NOT NULL RETURNING {_SESSION}",
            (job_id,),
        ).fetchall()
        for (session,) in back:
            self._choose_head(session)
        return bool(back)

    def counts(self) -> QueueCounts:
        """See the port."""
        with self._reading():
            waiting, taken, aside = self._execute(
                f"SELECT count(*) FILTER (WHERE aside_at IS NULL AND (claim IS NULL OR due_at <= {_NOW})),"
                f" count(*) FILTER (WHERE aside_at IS NULL AND claim IS NOT NULL AND due_at > {_NOW}),"
                " count(*) FILTER (WHERE aside_at IS NOT NULL) FROM jobs"
            ).fetchone()
            return QueueCounts(waiting=waiting, taken=taken, set_aside=aside)

    def aside(self, limit: int) -> list[JobSetAside]:
        """See the port."""
        with self._reading():
            found = self._execute(
                f"SELECT id, {_JOB}, CAST(why AS BLOB) FROM jobs WHERE aside_at IS NOT NULL"
                " ORDER BY aside_at, id LIMIT ?",
                (limit,),
            )
            return [
                job_set_aside(str(key), data or b"", bytes(why).decode(errors="replace"), given_id=self._given_id(key))
                for key, data, why in found
            ]

    def _given_id(self, key: int) -> str:
        return f"{self._path.name}-{key}"

    def close(self) -> None:
        with _KIND.mapped_errors(self._path):
            self._connection.close()

    def _choose_head(self, session: bytes) -> None:
        key = self._next(session)
        self._execute(f"UPDATE jobs SET head = 0 WHERE {_IN_SESSION} AND head = 1 AND id IS NOT ?", (session, key))
        # IS, since a session without further jobs has NULL here. `head = 0` spares the index a write.
        self._execute("UPDATE jobs SET head = 1 WHERE id IS ? AND head = 0", (key,))

    def _next(self, session: bytes) -> int | None:
        """The job of a session that somebody has, or else its first."""
        found = self._execute(
            f"SELECT id FROM jobs WHERE {_IN_SESSION} AND head = 1 AND claim IS NOT NULL AND aside_at IS NULL"
            f" UNION ALL SELECT * FROM (SELECT id FROM jobs WHERE {_IN_SESSION} AND aside_at IS NULL"
            " ORDER BY place, id LIMIT 1) LIMIT 1",
            (session, session),
        ).fetchone()
        return None if found is None else int(found[0])

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)
