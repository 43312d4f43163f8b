"""One connection, driven by psycopg's generators: they say what to wait for, and anyio waits.

No thread and no code of one event loop: asyncio, uvloop and trio. One statement at a time; each is a transaction of its
own. A connection that was cut, or whose caller was, is closed, since nobody knows what it would answer next.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Final, NoReturn, TypeAlias, TypeVar, cast

import anyio
import psycopg
from psycopg import generators
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, PGnotify, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from repertory.backends.postgres.address import PostgresAddress, conninfo_of
from repertory.backends.postgres.refusals import lost_connection, refused_login, refused_query
from repertory.backends.postgres.values import BINARY, Parameter, Value, as_parameter, reader_of
from repertory.errors import RepertoryError, StoreFailed, StoreUnavailable
from repertory.forking import forget_in_children, never_collect

T = TypeVar("T")

CONNECT_S: Final = 10.0
"""The longest that connecting takes; a `connect_timeout` in the connection string may be shorter."""
OLDEST_SERVER: Final = 13

ResultLine: TypeAlias = "tuple[Value | list[Value], ...]"
"""A line of a result."""


class PostgresConnection:
    """An open connection. For one task at a time."""

    def __init__(self, pgconn: PGconn, address: PostgresAddress, *, prepares: bool) -> None:
        """`prepares`: statements are prepared by name, which a pooler in transaction mode would mix up."""
        self._pgconn: PGconn | None = pgconn
        self._address = address
        self._prepares = prepares
        self._prepared: dict[str, bytes] = {}
        self._notes: list[str] = []
        self._notified: list[str] = []
        pgconn.notice_handler = self._note
        pgconn.notify_handler = self._notify
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Close a forked child's copy of the socket, and say nothing to the server."""
        pgconn, self._pgconn = self._pgconn, None
        if pgconn is not None:
            never_collect(pgconn)
            with suppress(OSError, psycopg.Error):
                os.close(pgconn.socket)

    @property
    def backend_pid(self) -> int:
        """The server's process for this connection."""
        return 0 if self._pgconn is None else self._pgconn.backend_pid

    @property
    def usable(self) -> bool:
        """False if it was closed, is in a transaction, or the server has closed it. Asks no server."""
        # A transaction that was left open would swallow the next caller's statement.
        if self._pgconn is None or self.in_transaction:
            return False
        try:
            self._pgconn.consume_input()
            self._pgconn.consume_input()  # The first may have read the server's last words, and not their end.
        except psycopg.Error:
            return False
        return self._pgconn.status == ConnStatus.OK

    @property
    def in_transaction(self) -> bool:
        """True between BEGIN and COMMIT."""
        return self._pgconn is not None and self._pgconn.transaction_status != TransactionStatus.IDLE

    @property
    def details(self) -> Sequence[str]:
        """The details of the server's notices to the last statement, as text."""
        return self._notes

    async def run(
        self, statement: str, *parameters: Parameter, within_s: float, once: bool = False
    ) -> list[ResultLine]:
        """Carry out one statement, alone in its transaction unless one was begun, and return its lines.

        `once`: the statement does not come again, so nothing is prepared for it.

        Errors: `StoreUnavailable` (it is unknown whether it was carried out, unless `code` says that the server
        refused), `StoreFailed`, `Corrupt`. Cancellation closes the connection; the statement may still be carried out.
        """
        pgconn = self._open()
        self._notes.clear()
        try:
            # One scope for each statement; a server-side timeout does not help when the network is gone.
            with anyio.move_on_after(within_s) as scope:
                result = await self._answer(pgconn, statement, parameters, prepare=self._prepares and not once)
                return _lines(result)
        except (psycopg.Error, OSError, anyio.ClosedResourceError) as error:
            self.close()
            raise lost_connection(str(error), self._address.where) from error
        except RepertoryError:
            if pgconn.status != ConnStatus.OK:
                self.close()
            raise
        except BaseException:
            # Cancelled: the answer is still on its way, and the next statement would read it as its own.
            self.close()
            raise
        assert scope.cancelled_caught
        self.close()
        raise StoreUnavailable("the database did not answer in time", **self._address.where, waited_s=within_s)

    async def notifications(self) -> list[str]:
        """Wait for notifications, and return their payloads. Errors: `StoreUnavailable`. Cancellation loses none."""
        pgconn = self._open()
        try:
            while True:
                while (notification := pgconn.notifies()) is not None:  # Some were read along with an answer.
                    self._notify(notification)
                if self._notified:
                    break
                # libpq reads; cancelled here, nothing was taken from the socket.
                await anyio.wait_readable(pgconn.socket)
                pgconn.consume_input()
                if pgconn.status != ConnStatus.OK:
                    raise psycopg.OperationalError("the server closed the connection")
            found, self._notified = self._notified, []
            return found
        except (psycopg.Error, OSError, anyio.ClosedResourceError) as error:
            self.close()
            raise lost_connection(str(error), self._address.where) from error

    def close(self) -> None:
        """Close it, at once. Calling it twice is allowed."""
        pgconn, self._pgconn = self._pgconn, None
        if pgconn is not None:
            with suppress(psycopg.Error, OSError, RuntimeError):  # Outside of a loop nobody waits.
                anyio.notify_closing(pgconn.socket)
            pgconn.finish()

    def _open(self) -> PGconn:
        if self._pgconn is None:
            raise lost_connection("it was closed", self._address.where)
        return self._pgconn

    def _note(self, notice: PGresult) -> None:
        detail = notice.error_field(DiagnosticField.MESSAGE_DETAIL)
        if detail:
            self._notes.append(detail.decode(errors="replace"))

    def _notify(self, notification: PGnotify) -> None:
        self._notified.append(notification.extra.decode(errors="replace"))

    async def _answer(
        self, pgconn: PGconn, statement: str, parameters: Sequence[Parameter], *, prepare: bool
    ) -> PGresult:
        sent = [as_parameter(parameter) for parameter in parameters]
        values, forms = [each.value for each in sent], [each.form for each in sent]
        if prepare:
            name = self._prepared.get(statement)
            if name is None:
                # The same name is the same statement for every client, should a pooler mix connections up.
                name = b"repertory_" + hashlib.sha256(statement.encode()).hexdigest()[:32].encode()
                pgconn.send_prepare(name, statement.encode())
                await self._result(pgconn)
                self._prepared[statement] = name
            pgconn.send_query_prepared(name, values, forms, BINARY)
        else:
            pgconn.send_query_params(statement.encode(), values, None, forms, BINARY)
        return await self._result(pgconn)

    async def _result(self, pgconn: PGconn) -> PGresult:
        results = await _driven(generators.execute(pgconn), lambda: pgconn.socket)
        for result in results:
            if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
                self._refuse(pgconn, result)
        return results[-1]

    def _refuse(self, pgconn: PGconn, result: PGresult) -> NoReturn:
        code = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
        text = (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message).decode(errors="replace")
        if not code or pgconn.status != ConnStatus.OK:
            raise lost_connection(text, {**self._address.where, **({"code": code} if code else {})})
        raise refused_query(code, text, self._address.where)


async def connect(
    address: PostgresAddress, *, prepares: bool = True, within_s: float = CONNECT_S
) -> PostgresConnection:
    """A new connection. Errors: `StoreUnavailable`, `StoreFailed`; they name host, port, database and user."""
    where = address.where
    asked_s = address.settings.get("connect_timeout", "0")
    within_s = min(within_s, float(asked_s)) if asked_s.isdigit() and int(asked_s) > 0 else within_s
    pgconn: PGconn | None = None
    try:
        with anyio.move_on_after(within_s):
            starting = generators.connect(await conninfo_of(address))
            pgconn = await _connected(starting)
            if pgconn.server_version < OLDEST_SERVER * 10_000:
                version = pgconn.server_version // 10_000
                pgconn.finish()
                text = f"the server is too old: PostgreSQL {OLDEST_SERVER} or newer is needed"
                raise StoreFailed(text, **where, version=version)
    except psycopg.Error as error:
        raise refused_login(str(error), where) from error
    except OSError as error:
        raise StoreUnavailable("the host is not known", **where, cause=error.strerror or str(error)) from error
    except BaseException:
        if pgconn is not None:
            pgconn.finish()
        raise
    if pgconn is None:
        raise StoreUnavailable("the database could not be reached in time", **where, waited_s=within_s)
    return PostgresConnection(pgconn, address, prepares=prepares)


async def _connected(steps: Generator[tuple[int, Wait], Ready | int, PGconn]) -> PGconn:
    """The connection to which these steps lead. The socket may change on the way."""
    try:
        file, wait = next(steps)
        while True:
            # libpq tries several addresses one after the other, each with a socket of its own.
            file, wait = steps.send(await _ready(file, wait))
    except StopIteration as end:
        return cast("PGconn", end.value)
    finally:
        steps.close()


async def _driven(steps: Generator[Wait, Ready | int, T], file: Callable[[], int]) -> T:
    try:
        wait = next(steps)
        while True:
            wait = steps.send(await _ready(file(), wait))
    except StopIteration as end:
        return cast("T", end.value)


async def _ready(file: int, wait: Wait) -> Ready:
    if wait == Wait.R:
        await anyio.wait_readable(file)
        return Ready.R
    if wait == Wait.W:
        await anyio.wait_writable(file)
        return Ready.W
    ready = Ready.W

    async def readable() -> None:
        nonlocal ready
        await anyio.wait_readable(file)
        ready = Ready.R
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(readable)
        await anyio.wait_writable(file)
        # A full socket and an answer that waits: whoever only writes would wait for a server that only writes, for
        # ever.
        tasks.cancel_scope.cancel()
    return ready


def _lines(result: PGresult) -> list[ResultLine]:
    columns = range(result.nfields)
    readers = [reader_of(result.ftype(column)) for column in columns]
    lines: list[ResultLine] = []
    for line in range(result.ntuples):
        values = (result.get_value(line, column) for column in columns)
        lines.append(tuple(None if value is None else read(value) for read, value in zip(readers, values, strict=True)))
    return lines
