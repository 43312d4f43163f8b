"""One connection of a client of ours: HTTP/1.1 by h11, and its requests as ASGI knows them, on asyncio and on trio.

Everything that waits for the client has a time, and every wait can be cancelled: a client that sends or takes nothing
holds a connection for as long as `WebLimits` lets it, and no end of a server. HTTP/2 is not spoken: its preface gets
505, and a request that offers an upgrade is answered as if it did not.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import suppress
from email.utils import formatdate
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import anyio
import h11
from anyio.abc import SocketAttribute, SocketStream
from anyio.lowlevel import checkpoint
from msgspec import Struct

from repertory.service.decisions.heads import is_ambiguous
from repertory.service.process.listening import forget_unsent
from repertory.service.process.strict_http import StrictHttp

AsgiMessage: TypeAlias = MutableMapping[str, Any]
WebApp: TypeAlias = Callable[
    [AsgiMessage, Callable[[], Awaitable[AsgiMessage]], Callable[[AsgiMessage], Awaitable[None]]], Awaitable[None]
]
BROKEN: Final = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)
"""The errors by which a stream says that the client has gone; `TimeoutError` is an `OSError`."""
_LINGER_S: Final = 2.0
_PIECE: Final = 64 * 1024
"""Bytes that are written at once: of each piece there is progress, or there is none."""
_NO_BODY: Final = (204, 304)
_READ: Final = 16 * 1024
"""Bytes that are taken at once, and parsed in one go. So many of a next request are read ahead."""


class WebLimits(Struct, frozen=True, kw_only=True):
    """The times that a client has, and how many clients there are at once."""

    head_s: float = 5.0
    """Seconds for the head of a request to come whole, from the start of the connection or the last answer on it."""
    stalled_s: float = 60.0
    """Seconds for a client to take 64 KiB of its answer, or less where less is left."""
    connections_max: int = 0
    """Connections that are open at once; more wait to be taken. 0: three quarters of what this process may open."""


class WebServer:
    """The state that the connections of one server share."""

    def __init__(
        self, app: WebApp, limits: WebLimits, start: Callable[[Callable[[], Coroutine[Any, Any, None]]], object]
    ) -> None:
        self.app = app
        self.limits = limits
        self.start = start
        """Starts the work of a request: what an application does behind its answer outlives the connection."""
        self.ending = False
        self.bodies_until = math.inf
        """The time by which the rest of a body has to be here, once the service ends."""


class WebConnection:
    """The connection of one client, whose requests are answered one after the other."""

    def __init__(self, server: WebServer, stream: SocketStream) -> None:
        self.server = server
        self.http = StrictHttp(h11.SERVER)
        self.idle: anyio.CancelScope | None = None
        """The scope that is cancelled to close a connection on which no request is under way."""
        self.body: anyio.CancelScope | None = None
        """The scope in which the rest of a body is waited for."""
        self._stream = stream
        self._reading = anyio.Lock(fast_acquire=True)
        self._writing = anyio.Lock(fast_acquire=True)
        self._broken = False

    async def run(self) -> None:
        """Return when either side has enough; `close` is to be called then."""
        while (head := await self._head()) is not None:
            exchange = _Exchange(self, head)
            # Not in this task, which ends with the connection: an application may go on behind its answer.
            self.server.start(exchange.run)
            await exchange.over.wait()
            if (
                not self._is_read(head)
                or self._broken
                or self.server.ending
                or {self.http.our_state, self.http.their_state} != {h11.DONE}
            ):
                break
            self.http.start_next_cycle()
        if not self._broken and (self.http.their_state in {h11.SEND_BODY, h11.ERROR} or self.http.trailing_data[0]):
            await self._linger()

    def _is_read(self, head: h11.Request) -> bool:
        """True if the whole request has come. What an application has not asked for is dropped; chunks are not even
        parsed for that.
        """
        try:
            while self.http.their_state is h11.SEND_BODY:
                if any(name == b"transfer-encoding" for name, _ in head.headers):
                    return False
                if self.http.next_event() is h11.NEED_DATA:
                    return False
        except h11.RemoteProtocolError:
            return False
        return self.http.their_state is not h11.ERROR

    async def _head(self) -> h11.Request | None:
        """The head of the next request; None if there is none to answer."""
        # One deadline for the whole head: a byte now and then does not prolong it.
        with anyio.move_on_after(self.server.limits.head_s) as self.idle:
            try:
                while not self.server.ending:
                    event = self.http.next_event()
                    if isinstance(event, h11.Request):
                        self.idle = None
                        return await self._checked(event)
                    if event is not h11.NEED_DATA or not await self.read():
                        break
            except h11.RemoteProtocolError as error:
                self.idle = None
                await self.refuse(error.error_status_hint)
        return None

    async def _checked(self, head: h11.Request) -> h11.Request | None:
        if head.http_version not in (b"1.0", b"1.1"):
            await self.refuse(505)
        elif is_ambiguous(head.headers):
            await self.refuse(400)
        else:
            return head
        return None

    async def read(self) -> bool:
        """Take more of what the client sends, for `http`. False: it has gone."""
        if self._reading.locked():  # Whoever ends there may have taken what is waited for here.
            async with self._reading:
                return True
        async with self._reading:
            try:
                self.http.receive_data(await self._stream.receive(_READ))
            except BROKEN:
                return False
            return True

    async def write(self, data: bytes) -> bool:
        """Send, piece by piece. False: the client has gone, or takes nothing any more, and its connection is closed."""
        async with self._writing:
            if self._broken:
                await checkpoint()
                return False
            self._broken = True  # Unless all of it is sent: half an answer can be followed by nothing.
            try:
                for at in range(0, len(data), _PIECE):
                    with anyio.fail_after(self.server.limits.stalled_s):
                        await self._stream.send(data[at : at + _PIECE])
            except BROKEN:
                await self.close()
                return False
            self._broken = False
            return True

    async def close(self) -> None:
        """Close the connection of the client."""
        if self._broken and (raw := self._stream.extra(SocketAttribute.raw_socket, None)) is not None:
            forget_unsent(raw)
        await self._stream.aclose()

    async def refuse(self, status: int) -> None:
        """Answer a request that no application has answered, and the last one of this connection."""
        if self.http.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return
        headers = [("date", formatdate(usegmt=True)), ("content-length", "0"), ("connection", "close")]
        head = self.http.send(h11.Response(status_code=status, headers=headers)) or b""
        await self.write(head + (self.http.send(h11.EndOfMessage()) or b""))

    async def _linger(self) -> None:
        """Read what still comes, for a while: closing with unread bytes destroys an answer on its way."""
        with suppress(*BROKEN), anyio.move_on_after(_LINGER_S):
            async with self._reading:
                # The client sees the end of its answer, and what it still sends meets an open socket.
                await self._stream.send_eof()
                while True:
                    await self._stream.receive()

    def address(self, attribute: Any) -> tuple[str, int | None] | None:
        """One of its two addresses, as ASGI has them; None, too, once the client has gone."""
        found: Any = None
        with suppress(*BROKEN):
            found = self._stream.extra(attribute, None)
        return (found, None) if isinstance(found, str) else None if found is None else tuple(found[:2])


class _Exchange:
    """A request and its answer. The application may go on after `over`: then it hears that the client has gone."""

    def __init__(self, connection: WebConnection, request: h11.Request) -> None:
        self.over = anyio.Event()
        """The event that is set when the answer is sent, or there will be none."""
        self._connection = connection
        self._http = connection.http
        self._request = request
        self._receiving = anyio.Lock(fast_acquire=True)
        self._waiting: anyio.CancelScope | None = None
        self._has_body = request.method != b"HEAD"

    async def run(self) -> None:
        """Run the application. Errors: those of the application; the client has been answered for it then."""
        try:
            try:
                await self._connection.server.app(self._scope(), self._receive, self._send)
            finally:
                if not self.over.is_set():
                    await self._connection.refuse(500)
        finally:
            self._end()

    def _scope(self) -> AsgiMessage:
        path, _, query = self._request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self._request.http_version.decode(),
            "method": self._request.method.decode(),
            "scheme": "http",
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(self._request.headers),
            "client": self._connection.address(SocketAttribute.remote_address),
            "server": self._connection.address(SocketAttribute.local_address),
            "state": {},
            "extensions": {},
        }

    def _end(self) -> None:
        self.over.set()
        if self._waiting is not None:
            self._waiting.cancel()

    async def _receive(self) -> AsgiMessage:
        async with self._receiving:
            try:
                while not self.over.is_set():
                    # Only when the application asks for the body: one that refuses by the head spares the client the
                    # sending.
                    if self._http.they_are_waiting_for_100_continue:
                        goes_on = h11.InformationalResponse(status_code=100, headers=[])
                        await self._connection.write(self._http.send(goes_on) or b"")
                    if (message := self._come()) is not None:
                        return message
                    if not await self._more():
                        break
            except h11.RemoteProtocolError as error:
                await self._connection.refuse(error.error_status_hint)
                self._end()
        return {"type": "http.disconnect"}

    def _come(self) -> AsgiMessage | None:
        """The part of the body that is here, as one message."""
        body, more = bytearray(), True
        while more and self._http.their_state is h11.SEND_BODY:
            event = self._http.next_event()
            if isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                more = False
            else:
                break
        return {"type": "http.request", "body": bytes(body), "more_body": more} if body or not more else None

    async def _more(self) -> bool:
        """Wait for more from the client, of this request or by going. False: it has gone, or is late."""
        connection, body = self._connection, self._http.their_state is h11.SEND_BODY
        if not body and len(self._http.trailing_data[0]) >= _READ:
            await self.over.wait()  # Much of a next request is here, and no more is read until its turn has come.
            return False
        until = connection.server.bodies_until if body else math.inf
        with anyio.CancelScope(deadline=until) as self._waiting:
            connection.body = self._waiting if body else None
            try:
                return await connection.read()
            finally:
                connection.body = None
        if not self.over.is_set():
            await connection.refuse(503)
            self._end()
        return False

    async def _send(self, message: AsgiMessage) -> None:
        if self.over.is_set():
            await checkpoint()
            return
        data, more = b"", True
        if message["type"] == "http.response.start":
            status = int(message["status"])
            self._has_body = self._has_body and status not in _NO_BODY
            headers = [("date", formatdate(usegmt=True)), *message.get("headers", ())]
            if self._connection.server.ending:
                # So that the next request goes to another process at once.
                headers.append(("connection", "close"))
            data = self._http.send(h11.Response(status_code=status, headers=headers)) or b""
        else:
            more = message.get("more_body", False)
            if self._has_body and (body := message.get("body", b"")):
                data = self._http.send(h11.Data(data=body)) or b""
            if not more:
                data += self._http.send(h11.EndOfMessage()) or b""
        if not await self._connection.write(data) or not more:
            self._end()
