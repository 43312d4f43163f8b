"""A bounded pool of connections to one database."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Protocol

import anyio

from repertory.backends.postgres.address import PostgresAddress
from repertory.backends.postgres.connection import CONNECT_S, PostgresConnection, ResultLine, connect
from repertory.backends.postgres.values import Parameter
from repertory.backends.shields import Uncut
from repertory.errors import Invalid, StoreUnavailable


class RunStatement(Protocol):
    """Carries out a statement within a transaction, and returns its lines."""

    def __call__(self, statement: str, *parameters: Parameter) -> Awaitable[list[ResultLine]]: ...


class Pool:
    """Connections to one database, made when needed and kept. For one event loop."""

    def __init__(self, address: PostgresAddress, *, size: int, prepares: bool, within_s: float) -> None:
        """`within_s`: the most seconds for a statement, including the wait for a connection."""
        self._address = address
        self._prepares = prepares
        self._within_s = within_s
        self._slots = anyio.Semaphore(size)
        self._idle: list[PostgresConnection] = []
        self._used: set[PostgresConnection] = set()
        self._closed = False
        self._pid = os.getpid()

    async def run(
        self, statement: str, *parameters: Parameter, within_s: float | None = None, once: bool = False
    ) -> list[ResultLine]:
        """Carry out one statement in a transaction of its own. Arguments, errors and cancellation: as
        `PostgresConnection.run`.
        """
        limit_s = self._within_s if within_s is None else within_s
        began = anyio.current_time()
        async with self.connection(limit_s) as connection:
            remaining_s = max(0.0, began + limit_s - anyio.current_time())
            return await connection.run(statement, *parameters, within_s=remaining_s, once=once)

    @asynccontextmanager
    async def connection(self, within_s: float | None = None) -> AsyncGenerator[PostgresConnection]:
        """A connection for the length of the block. Errors: as `connect`; `Invalid` once closed."""
        limit_s = self._within_s if within_s is None else within_s
        with anyio.move_on_after(limit_s) as scope:
            await self._slots.acquire()
        if scope.cancelled_caught:
            raise StoreUnavailable("no connection became free in time", **self._address.where, waited_s=limit_s)
        try:
            connection = await self._taken(limit_s)
            self._used.add(connection)
            try:
                yield connection
            finally:
                self._used.discard(connection)
                if self._closed or not connection.usable:
                    connection.close()
                else:
                    # Taken again from the end: the last one used is the one that is least likely to have been closed by
                    # a firewall.
                    self._idle.append(connection)
        finally:
            self._slots.release()

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[RunStatement]:
        """A transaction for the length of the block, which carries out statements in it. An error undoes all of it.
        Cancellation is held off until the block is left: none of it is stored, or all.
        """
        with Uncut():
            async with self.connection() as connection:

                async def run(statement: str, *parameters: Parameter) -> list[ResultLine]:
                    return await connection.run(statement, *parameters, within_s=self._within_s)

                try:
                    await connection.run("BEGIN", within_s=self._within_s, once=True)
                    yield run
                    await connection.run("COMMIT", within_s=self._within_s, once=True)
                except BaseException:
                    # Closing undoes the transaction on the server, whatever state it is in. A ROLLBACK would need an
                    # answer.
                    connection.close()
                    raise

    def close(self) -> None:
        """Close every connection, those in use as well. Calling it twice is allowed."""
        self._closed = True
        for connection in (*self._idle, *self._used):
            connection.close()
        self._idle.clear()

    async def _taken(self, within_s: float) -> PostgresConnection:
        if self._closed:
            raise Invalid("this was closed before", name=self._address.name)
        if self._pid != os.getpid():  # The sockets were closed in this child.
            self._idle.clear()
            self._pid = os.getpid()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return await connect(self._address, prepares=self._prepares, within_s=min(within_s, CONNECT_S))
