"""The side that is called: connections of callers, one request after the other, each answered by lines of JSON."""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

import anyio
import h11
from anyio.abc import ByteStream, SocketListener, SocketStream, TaskGroup
from anyio.lowlevel import checkpoint
from anyio.streams.tls import TLSStream
from msgspec import Struct

from repertory.backends.peer_ports import Handler, JsonLine, Lines, PeerRefused
from repertory.cluster.wire.addresses import is_of_this_user, steady_stream
from repertory.cluster.wire.http_settings import ALIVE, PREFIX, PeerLimits, json_of, object_of
from repertory.cluster.wire.proof import PeerSecret, proved_by
from repertory.errors import Invalid
from repertory.logs import DEBUG, ERROR, WARNING, note

_ACCEPT_AGAIN_S: Final = 0.1
_LINGER_S: Final = 2.0
_WARN_S: Final = 10.0
"""Seconds for which one warning stands for all refused connections, so that strangers do not fill the log."""
_QUICK_S: Final = 0.25
"""Seconds after which an answer is watched: its caller may go, or miss a sign of life."""
_JSON: Final = ("content-type", "application/json")
_LINES: Final = [("content-type", "application/x-ndjson"), ("transfer-encoding", "chunked")]
_BROKEN: Final = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


class PeerServerSettings(Struct, frozen=True, kw_only=True):
    """The settings of every connection."""

    handle: Handler
    address: str
    """The address that callers were given, which the proof names."""
    secret: PeerSecret | None
    """The secret that both sides prove to know; None: nothing is to be proved."""
    tls: ssl.SSLContext | None
    alive_s: float
    limits: PeerLimits


class PeerServer:
    """Everybody who is connected, over all listeners of one address."""

    def __init__(self, settings: PeerServerSettings) -> None:
        self._settings = settings
        self._open: dict[_Connection, None] = {}
        self._unproved: dict[_Connection, anyio.CancelScope] = {}
        """The connections without a proof, the oldest first."""
        self._warned = -math.inf
        self._changed = anyio.Event()

    async def accept(self, listener: SocketListener, tasks: TaskGroup) -> None:
        """Take connections until cancelled, then close the listener at once."""
        try:
            while True:
                await self._room()
                try:
                    stream = await listener.accept()
                except (OSError, anyio.BrokenResourceError) as error:  # Out of descriptors, or it has gone already.
                    note(_logger, WARNING, "a connection could not be taken", error.__cause__ or error)
                    await anyio.sleep(_ACCEPT_AGAIN_S)
                else:
                    connection = _Connection(self._settings, self.changed)
                    self._open[connection] = None
                    tasks.start_soon(self._serve, connection, stream)
        finally:
            with anyio.CancelScope(shield=True):
                await listener.aclose()

    async def look_after(self, tasks: TaskGroup) -> None:
        """Have long answers watched, until cancelled. One task looks at all of them, so that short ones cost none."""
        while True:
            await anyio.sleep(_QUICK_S)
            now = anyio.current_time()
            for connection in self._open:
                connection.cancel_stalled(now)
                if connection.is_slow(now):
                    watch = connection.watched = _Watch(anyio.CancelScope(), anyio.Event())
                    tasks.start_soon(connection.watch, watch)

    def changed(self) -> None:
        """Note that a connection has ended, or has become idle."""
        self._changed.set()

    async def _room(self) -> None:
        while len(self._open) >= self._settings.limits.connections_max:
            for connection in self._open:
                if connection.idle is not None:
                    connection.idle.cancel()
                    break
            if self._changed.is_set():
                self._changed = anyio.Event()
            await self._changed.wait()

    async def _serve(self, connection: _Connection, stream: SocketStream) -> None:
        try:
            stream = await steady_stream(stream)
            if await self._proves(connection, stream):
                await connection.run()
        except _BROKEN as error:
            note(_logger, DEBUG, "a connection broke off", error)
        except Exception:  # Ours: the other connections go on.
            _logger.exception("a connection failed")
        finally:
            del self._open[connection]
            self.changed()
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    async def _proves(self, connection: _Connection, stream: SocketStream) -> bool:
        """True if the caller is a peer."""
        error: BaseException | None = None
        if is_of_this_user(stream):
            if len(self._unproved) >= self._settings.limits.unproved_max:
                # The oldest goes: strangers who connect and say nothing must not keep peers out.
                self._unproved.pop(next(iter(self._unproved))).cancel()
            with anyio.move_on_after(self._settings.limits.proof_s) as scope:
                self._unproved[connection] = scope
                try:
                    await connection.prove(stream)
                except _BROKEN as broken:
                    error = broken
                else:
                    return True
                finally:
                    self._unproved.pop(connection, None)
        now = anyio.current_time()
        level = WARNING if now - self._warned >= _WARN_S else DEBUG
        self._warned = now if level == WARNING else self._warned
        note(_logger, level, "a connection is refused: it does not prove in time that it is one of a peer", error)
        return False


class _Connection:
    def __init__(self, settings: PeerServerSettings, became_idle: Callable[[], None]) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._became_idle = became_idle
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_max_bytes)
        self._stream: ByteStream
        self._scope = anyio.CancelScope()
        self._lock = anyio.Lock(fast_acquire=True)
        self._answering = False
        self._written = 0.0
        self._sending = math.inf
        """The event loop's time in seconds since when bytes are being sent; infinite while none are."""
        self.watched: _Watch | None = None
        self._entered = False
        self._served = False
        self._is_head = False
        self.idle: anyio.CancelScope | None = None
        """The scope that is cancelled to close a connection on which nothing is under way."""

    async def prove(self, stream: ByteStream) -> None:
        """Have the caller prove that it is a peer, before anything is read or answered. Errors: those of streams."""
        if (context := self._settings.tls) is not None:
            stream = await TLSStream.wrap(stream, server_side=True, ssl_context=context, standard_compatible=False)
        if (secret := self._settings.secret) is not None:
            stream = await proved_by(stream, secret, self._settings.address)
        self._stream = stream

    async def run(self) -> None:
        """Answer requests until either side has enough. Errors: those of streams."""
        with self._scope:
            while await self._begins():
                await self._one()
                if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                    return
                self._http.start_next_cycle()
                self._served = True

    async def _begins(self) -> bool:
        # The next request has come with the last one.
        if self._http.trailing_data[0]:
            return True
        wait_s = self._limits.idle_s if self._served else self._limits.request_s
        with anyio.move_on_after(wait_s) as scope:
            if self._served:
                self.idle = scope
                self._became_idle()
            try:
                data = await self._stream.receive()
            finally:
                self.idle = None
            self._http.receive_data(data)
            return True
        return False

    async def _one(self) -> None:
        request = await self._request()
        if not request.status:
            await self._answer(request)
            return
        await self._refuse(request.status, json_of(request.refusal))
        if not self._is_read:
            await self._linger()

    # ------------------------------------------------------------------------------------------------------ requests

    async def _request(self) -> _Request:
        """The whole request. One that is refused is read too, and forgotten, so that its caller sees why."""
        found = _Request()
        body = bytearray()
        size = 0
        until = anyio.current_time() + self._limits.request_s
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                return _Request(status=error.error_status_hint, refusal={"error": str(error)})
            if event is h11.NEED_DATA:
                if not await self._feed(until):
                    return _Request(status=408, refusal={"error": "the request did not arrive in time"})
            elif isinstance(event, h11.Request):
                found = self._looked_at(event)
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if not found.status:
                    body += event.data
            else:
                break
            if found.status == 413 or size > self._limits.body_max_bytes:
                error = {"error": "the request is too large", "bytes_max": self._limits.body_max_bytes}
                return _Request(status=413, refusal=error)
        if found.status:
            return found
        try:
            return _Request(path=found.path, body=object_of(body))
        except ValueError as error:
            return _Request(status=400, refusal={"error": str(error)})

    async def _feed(self, until: float) -> bool:
        """Wait for more of the request. False: nothing has come until then."""
        with anyio.move_on_after(until - anyio.current_time()):
            try:
                data = await self._stream.receive()
            except anyio.EndOfStream:
                data = b""
            self._http.receive_data(data)
            return True
        return False

    def _looked_at(self, head: h11.Request) -> _Request:
        self._is_head = head.method == b"HEAD"
        target = head.target.decode("ascii", "replace")
        headers = dict(head.headers)
        if not target.startswith(PREFIX):
            return _Request(status=404, refusal={"error": "there is nothing at this path"})
        if head.method != b"POST":
            return _Request(status=405, refusal={"error": "only POST is answered"})
        if int(headers.get(b"content-length", b"0")) > self._limits.body_max_bytes:
            return _Request(status=413)
        return _Request(path=unquote(target.removeprefix(PREFIX)))

    # ------------------------------------------------------------------------------------------------------- answers

    def is_slow(self, now: float) -> bool:
        """True if an answer takes so long that it should be watched, and is not."""
        return self._answering and self.watched is None and now - self._written >= _QUICK_S

    def cancel_stalled(self, now: float) -> None:
        """Drop the connection if its caller takes nothing of an answer any more."""
        if now - self._sending > self._limits.stalled_s:
            self._scope.cancel()

    async def _answer(self, request: _Request) -> None:
        self._entered = False
        self._written = anyio.current_time()
        self._answering = True
        try:
            await self._carry_out(request)
        finally:
            self._answering = False
            if (watch := self.watched) is not None:
                self.watched = None
                watch.scope.cancel()
                with anyio.CancelScope(shield=True):
                    # Two tasks must not read one stream, and the next request is read after this.
                    await watch.over.wait()

    async def _carry_out(self, request: _Request) -> None:
        last = b""
        try:
            async with self._settings.handle(request.path, request.body) as answer:
                self._entered = True
                async for each in answer:
                    found = Lines.of(each)
                    text = b"".join(json_of(line) + b"\n" for line in found.lines)
                    if found.end:
                        # It goes with the end of the answer, so that a quick answer is one write.
                        last = text
                        break
                    await self._write(text)
        except PeerRefused as refusal:
            status, body = _written(refusal)
            if self._http.our_state is not h11.SEND_RESPONSE:
                note(_logger, ERROR, "the handler of peers refused too late", path=request.path)
        except Exception as error:
            _logger.exception("the handler of peers raised path=%r", request.path)
            status, body = 500, json_of({"error": "the peer failed", "type": type(error).__name__})
        else:
            async with self._lock:
                data = self._head()
                if last:
                    data += self._bytes(h11.Data(data=last))
                await self._send(data + self._bytes(h11.EndOfMessage()))
            return
        if self._http.our_state is h11.SEND_RESPONSE:
            await self._refuse(status, body)

    async def watch(self, watch: _Watch) -> None:
        """Notice that the caller goes, and say that this side is alive whenever it has been silent."""
        try:
            with watch.scope:
                await self._watch()
        except _BROKEN:
            self._scope.cancel()
        except Exception:
            _logger.exception("a connection could not be watched")
            self._scope.cancel()
        finally:
            watch.over.set()

    async def _watch(self) -> None:
        hears = True
        while True:
            with anyio.move_on_after(self._written + self._settings.alive_s - anyio.current_time()):
                if not hears:
                    await anyio.sleep_forever()
                try:
                    self._http.receive_data(await self._stream.receive())
                except _BROKEN:
                    self._scope.cancel()
                    return
                hears = False  # The next request is here already: more is read when its turn has come.
            if self._written + self._settings.alive_s <= anyio.current_time():
                await self._sign()

    async def _sign(self) -> None:
        """Send a sign of life: a status of its own before the answer, then a line. Any writing meanwhile is one too."""
        if self._lock.locked():
            self._written = anyio.current_time()
            return
        if self._entered:
            await self._write(ALIVE + b"\n")
            return
        async with self._lock:
            self._written = anyio.current_time()
            if self._http.our_state is h11.SEND_RESPONSE:
                await self._send(self._bytes(h11.InformationalResponse(status_code=102, headers=[])))

    async def _write(self, lines: bytes) -> None:
        async with self._lock:
            # Asked under the lock: the answer may have ended while this waited.
            if self._http.our_state in {h11.SEND_RESPONSE, h11.SEND_BODY}:
                await self._send(self._head() + self._bytes(h11.Data(data=lines)))
            self._written = anyio.current_time()

    async def _refuse(self, status: int, body: bytes) -> None:
        headers = [_JSON, ("content-length", str(len(body)))]
        if status == 405:
            headers.append(("allow", "POST"))
        if not self._is_read:
            headers.append(("connection", "close"))
        async with self._lock:
            head = self._bytes(h11.Response(status_code=status, headers=headers))
            text = b"" if self._is_head else self._bytes(h11.Data(data=body))
            await self._send(head + text + self._bytes(h11.EndOfMessage()))

    @property
    def _is_read(self) -> bool:
        """True if the whole request was taken."""
        return self._http.their_state in {h11.DONE, h11.MUST_CLOSE}

    async def _linger(self) -> None:
        """Read what still comes: closing with unread bytes would destroy the refusal before the caller reads it."""
        with anyio.move_on_after(_LINGER_S):
            while True:
                await self._stream.receive()

    def _head(self) -> bytes:
        if self._http.our_state is not h11.SEND_RESPONSE:
            return b""
        return self._bytes(h11.Response(status_code=200, headers=_LINES))

    def _bytes(self, event: h11.Event) -> bytes:
        return self._http.send(event) or b""

    async def _send(self, data: bytes) -> None:
        """Send bytes to the caller. If it has gone, cancel whatever is under way for it."""
        self._sending = anyio.current_time()
        try:
            await self._stream.send(data)
        except _BROKEN:
            self._scope.cancel()
            # Where the cancellation arrives.
            await checkpoint()
        finally:
            self._sending = math.inf


class _Watch(Struct, eq=False):
    """A task that watches an answer: cancelled by its scope, and over then."""

    scope: anyio.CancelScope
    over: anyio.Event


class _Request(Struct, frozen=True, kw_only=True):
    path: str = ""
    body: JsonLine = {}
    status: int = 0
    """The HTTP status of its refusal; 0: it is carried out."""
    refusal: JsonLine = {}


def _written(refusal: PeerRefused) -> tuple[int, bytes]:
    """Status and body as they are sent."""
    try:
        if 400 <= refusal.status <= 599:
            return refusal.status, json_of(refusal.body)
        reason = "a refusal has a status of 400 to 599"
    except Invalid as error:
        reason = str(error)
    note(_logger, ERROR, f"the handler of peers refused by what cannot be sent: {reason}", status=refusal.status)
    return 500, json_of({"error": "the peer failed", "type": "PeerRefused"})


_logger = logging.getLogger("repertory.peers")
