"""The connection to Valkey: one, on which the questions of all tasks are under way, made again whenever it breaks.

Whoever asks while it is broken is refused at once, and asks again. An answer that does not come in time breaks it.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, NoReturn

import anyio
from anyio.abc import ByteStream, TaskStatus
from coredis import TCPConnection
from coredis.connection import TCPLocation
from coredis.exceptions import AuthenticationError, AuthorizationError, NoScriptError, RedisError, ResponseError

from repertory.cluster.wire.valkey.scripts import Script
from repertory.errors import Failed, RepertoryError, Unavailable

_PAUSE_S, _PAUSE_MAX_S = 0.05, 1.0
_MEANS_LOST = RedisError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream
"""With every timeout and error of TLS."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValkeyAddress:
    """Where the server is, and how it lets us in."""

    host: str
    port: int = 6379
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None

    @property
    def name(self) -> str:
        """The address without a password."""
        return f"valkey{'s' if self.tls is not None else ''}://{self.host}:{self.port}/{self.database}"


class Link:
    """For one event loop. It works while `run` runs."""

    def __init__(self, address: ValkeyAddress, timeout_s: float) -> None:
        """`timeout_s`: how long a connection, or an answer, may take."""
        self._address = address
        self._timeout_s = timeout_s
        self._connection: TCPConnection | None = None
        self._tried = anyio.Event()
        """Set when it is known whether there is a connection."""
        self._why: _Reason | None = None
        self.times = 0
        """So many connections were made."""

    async def run(self) -> NoReturn:
        """Connect, again and again, until cancelled."""
        pause_s = _PAUSE_S
        while True:
            up = False
            try:
                connection = _Connection(await self._stream(), self._address, self._timeout_s)
                up = await self._use(connection)
                self._why = None
            except _MEANS_LOST as error:
                self._why = self._refused(error)
            if up:
                pause_s = _PAUSE_S
                self._tried = anyio.Event()
            else:
                self._tried.set()
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    async def _stream(self) -> ByteStream:
        address = self._address
        with anyio.fail_after(self._timeout_s):
            if address.tls is None:
                return await anyio.connect_tcp(address.host, address.port)
            return await anyio.connect_tcp(
                address.host, address.port, tls=True, ssl_context=address.tls, tls_standard_compatible=False
            )
        raise AssertionError

    async def _use(self, connection: TCPConnection) -> bool:
        """Until it breaks. True if the server had let us in."""
        told = _Told(partial(self._is_up, connection))
        try:
            await connection.run(task_status=told)
        finally:
            self._connection = None
        return told.up

    def _is_up(self, connection: TCPConnection) -> None:
        self._connection = connection
        self.times += 1
        self._tried.set()

    async def ask(self, script: Script, *arguments: str | bytes | float) -> object:
        """Have the server carry out a script. Errors: `Unavailable`, and it is then unknown whether it was carried out;
        `Failed` for what no waiting repairs, such as a wrong password at the beginning.
        """
        connection = await self._connected()
        given = [_bytes(argument) for argument in arguments]
        try:
            try:
                return await connection.create_request(b"EVALSHA", script.sha, 0, *given, decode=False)
            except NoScriptError:
                return await connection.create_request(b"EVAL", script.text, 0, *given, decode=False)
        except _MEANS_LOST as error:
            if isinstance(error, TimeoutError):
                connection.invalidate("no answer in time")
            text = "Valkey did not carry this out" if isinstance(error, ResponseError) else "Valkey was lost"
            raise Unavailable(text, address=self._address.name, cause=str(error)) from error

    async def _connected(self) -> TCPConnection:
        with anyio.move_on_after(self._timeout_s):
            await self._tried.wait()
        if self._connection is not None:
            return self._connection
        why = self._why or _Reason(cause=TimeoutError(f"there is no connection after {self._timeout_s} seconds"))
        raise why.kind(why.text, address=self._address.name, cause=str(why.cause)) from why.cause

    def _refused(self, error: Exception) -> _Reason:
        """Why there is no connection. What was let in before is let in again: its refusal may pass."""
        if not self.times:
            if isinstance(error, AuthenticationError | AuthorizationError):
                return _Reason("Valkey does not let this user in: check name and password", error, Failed)
            if isinstance(error, ResponseError):
                return _Reason("Valkey refuses this connection", error, Failed)
            if isinstance(error, ssl.SSLError):
                return _Reason("TLS with Valkey could not be agreed on: check its certificate", error, Failed)
        return _Reason(cause=error.__cause__ or error)


class _Reason(NamedTuple):
    """Why there is no connection."""

    text: str = "Valkey is not reached"
    cause: BaseException | None = None
    kind: type[RepertoryError] = Unavailable


class _Connection(TCPConnection):
    """Over a stream that is there already: one that is never there would leave its buffers open."""

    def __init__(self, stream: ByteStream, address: ValkeyAddress, timeout_s: float) -> None:
        super().__init__(
            TCPLocation(address.host, address.port),
            db=address.database,
            username=address.username,
            password=address.password,
            stream_timeout=timeout_s,
        )
        self._made = stream

    async def _connect(self) -> ByteStream:
        return self._made


class _Told(TaskStatus[None]):
    """Is told when a connection may be used."""

    def __init__(self, is_up: Callable[[], None]) -> None:
        self._is_up = is_up
        self.up = False

    def started(self, value: None = None) -> None:
        del value
        self.up = True
        self._is_up()


def _bytes(value: str | bytes | float) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
