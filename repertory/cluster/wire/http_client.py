"""The side that calls: connections that are kept per address, and answers that are read line by line."""

from __future__ import annotations

import select
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from socket import socket
from typing import Final
from urllib.parse import quote

import anyio
import h11
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSStream
from msgspec import Struct

from repertory.backends.peer_ports import JsonLine, PeerLost, PeerRefused, PeerUnreachable
from repertory.cluster.wire.addresses import PeerAddress, peer_address
from repertory.cluster.wire.http_settings import ALIVE, PREFIX, UNPROVED, PeerLimits, json_of, object_of
from repertory.cluster.wire.proof import PeerSecret, proved_to
from repertory.errors import Invalid, TooLarge

_PIECE_BYTES: Final = 64 * 1024
_REFUSAL_MAX_BYTES: Final = 1024 * 1024
_PRUNE_S: Final = 1.0
_BROKEN: Final = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)


class PeerClientSettings(Struct, frozen=True, kw_only=True):
    """The settings of all calls."""

    secret: PeerSecret | None
    tls: ssl.SSLContext | None
    silence_s: float
    """Seconds of silence after which a peer is lost."""
    limits: PeerLimits


class PeerClient:
    """Calls peers. See `PeerWire.call`."""

    def __init__(self, settings: PeerClientSettings) -> None:
        self._settings = settings
        self._addresses: dict[str, _Pool] = {}
        self._pruned = 0.0
        self._closed = False

    @asynccontextmanager
    async def call(self, address: str, path: str, body: JsonLine) -> AsyncGenerator[AsyncIterator[JsonLine]]:
        parsed, payload, most = peer_address(address), json_of(body), self._settings.limits.body_max_bytes
        if len(payload) > most:
            raise TooLarge("a call of a peer is too large", size_bytes=len(payload), bytes_max=most)
        if not parsed.path and self._settings.secret is None and self._settings.tls is None:
            raise Invalid(f"anybody could listen at this address: {UNPROVED}", address=address)
        pool = self._addresses.get(address)
        if pool is None:
            pool = self._addresses[address] = _Pool(self._settings.limits.calls_max)
        # From before the wait for a place, or the pool could be dropped meanwhile, and the limit would count anew.
        pool.users += 1
        try:
            async with pool.places, self._link(parsed, pool) as link:
                await link.ask(path, payload)
                yield link
        finally:
            pool.users -= 1
            if not pool.users and not pool.links:
                self._addresses.pop(address, None)

    async def aclose(self) -> None:
        """Close what is kept, and keep nothing from now on."""
        self._closed = True
        await self._close_idle(float("inf"))

    @asynccontextmanager
    async def _link(self, address: PeerAddress, pool: _Pool) -> AsyncGenerator[_Link]:
        now = anyio.current_time()
        # Old connections are closed on the way, so that a client needs no task of its own.
        if now - self._pruned > _PRUNE_S:
            self._pruned = now
            await self._close_idle(now - self._settings.limits.reuse_s)
        link = await self._usable(pool)
        if link is None:
            link = _Link(str(address), await _connected(address, self._settings), self._settings)
        try:
            yield link
        finally:
            if link.left() and not self._closed:
                pool.links.append(link)
            else:
                await link.aclose()

    async def _usable(self, pool: _Pool) -> _Link | None:
        """The connection that was used last, if its peer has not closed it meanwhile."""
        while pool.links:
            link = pool.links.pop()
            if not link.has_ended:
                return link
            await link.aclose()
        return None

    async def _close_idle(self, until: float) -> None:
        for address, pool in list(self._addresses.items()):
            old = [link for link in pool.links if link.since <= until]
            pool.links = [link for link in pool.links if link.since > until]
            for link in old:
                await link.aclose()
            if not pool.users and not pool.links:
                self._addresses.pop(address, None)


class _Pool:
    """The idle connections to one address, and its limit of calls."""

    def __init__(self, calls_max: int) -> None:
        self.places = anyio.Semaphore(calls_max, fast_acquire=True)
        self.links: list[_Link] = []
        """The idle connections; the last was used last."""
        self.users = 0


async def _connected(address: PeerAddress, settings: PeerClientSettings) -> ByteStream:
    stream: ByteStream | None = None
    try:
        with anyio.fail_after(settings.limits.connect_s):
            stream = await address.connect()
        with anyio.fail_after(settings.silence_s):
            if settings.tls is not None and not address.path:
                # The chunks tell whether an answer is whole, so no closing handshake of TLS is waited for.
                stream = await TLSStream.wrap(
                    stream, server_side=False, ssl_context=settings.tls, standard_compatible=False
                )
            return stream if settings.secret is None else await proved_to(stream, settings.secret, str(address))
    except TimeoutError as error:
        await _close(stream)
        if stream is not None:  # A process that is frozen still takes connections.
            raise PeerLost("nothing was heard of the peer for too long", address=str(address)) from error
        raise PeerUnreachable("the peer cannot be reached", address=str(address)) from error
    except (*_BROKEN, UnicodeError, anyio.EndOfStream) as error:
        await _close(stream)
        text = "the peer cannot be reached"
        if stream is not None and settings.secret is not None:
            text = "what listens there does not prove that it is this peer, and that it knows the secret"
        raise PeerUnreachable(text, address=str(address)) from error
    except BaseException:
        # Cancelled: nobody else knows the stream.
        await _close(stream)
        raise


async def _close(stream: ByteStream | None) -> None:
    if stream is not None:
        with anyio.CancelScope(shield=True):
            await stream.aclose()


class _Link(AsyncIterator[JsonLine]):
    """One connection, and the lines of the answer that it brings."""

    def __init__(self, address: str, stream: ByteStream, settings: PeerClientSettings) -> None:
        self._address = address
        self._stream = stream
        self._settings = settings
        self._socket: socket = stream.extra(SocketAttribute.raw_socket)
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=settings.limits.head_max_bytes)
        self._buffer = bytearray()
        self._searched = 0
        self._over = False
        self.since = 0.0
        """The event loop's time in seconds when it was used last."""

    @property
    def has_ended(self) -> bool:
        """True if the peer has closed it while it was idle, or has sent what nobody asked for."""
        descriptor = self._socket.fileno()
        if descriptor < 0:
            return True
        # Before `select`, which takes no descriptors from 1,024 on.
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(0))
        return bool(select.select([descriptor], [], [], 0)[0])

    def left(self) -> bool:
        """Note that the caller has read enough. True if the answer has come whole: the connection can be used again."""
        # What has come meanwhile is taken in: a caller that stops at the result has not read the end of the answer.
        with suppress(h11.RemoteProtocolError):
            while isinstance(self._http.next_event(), h11.Data):
                pass
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self._buffer.clear()
        self._searched = 0
        self.since = anyio.current_time()
        return True

    async def aclose(self) -> None:
        self._over = True
        await _close(self._stream)

    async def ask(self, path: str, payload: bytes) -> None:
        """Send a request, and wait for the head of its answer. Errors: `PeerRefused`, `PeerLost`."""
        self._over = False
        headers = [
            # HTTP/1.1 demands one, and nobody looks at it.
            ("host", "peer"),
            ("content-type", "application/json"),
            ("content-length", str(len(payload))),
        ]
        request = h11.Request(method="POST", target=PREFIX + quote(path, safe="/"), headers=headers)
        parts = (request, h11.Data(data=payload), h11.EndOfMessage())
        data = b"".join(self._http.send(part) or b"" for part in parts)
        try:
            # In pieces with a time each: a peer that takes a large request slowly is not lost.
            for start in range(0, len(data), _PIECE_BYTES):
                with anyio.fail_after(self._settings.silence_s):
                    await self._stream.send(data[start : start + _PIECE_BYTES])
        except _BROKEN as error:
            raise self._lost("the request could not be sent") from error
        while not isinstance(head := await self._event(), h11.Response):
            if not isinstance(head, h11.InformationalResponse):
                raise self._lost("the peer gave no answer")
        if head.status_code != 200:
            raise await self._refusal(head.status_code)

    async def __anext__(self) -> JsonLine:
        while not self._over:
            end = self._buffer.find(b"\n", self._searched)
            # The search goes on there: a line of 64 MiB comes in a thousand pieces, and would be searched anew with
            # each.
            self._searched = len(self._buffer) if end < 0 else end
            if self._searched > self._settings.limits.body_max_bytes:
                raise self._lost("a line of the answer is too large")
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._searched = 0
                if line == ALIVE:
                    continue
                try:
                    return object_of(line)
                except ValueError as error:
                    raise self._lost("a line of the answer is no JSON object") from error
            event = await self._event()
            if isinstance(event, h11.Data):
                self._buffer += event.data
            elif isinstance(event, h11.EndOfMessage):
                if self._buffer:
                    raise self._lost("the last line of the answer has no end")
                self._over = True
        raise StopAsyncIteration

    async def _refusal(self, status: int) -> PeerRefused | PeerLost:
        body = bytearray()
        while isinstance(event := await self._event(), h11.Data):
            body += event.data
            if len(body) > _REFUSAL_MAX_BYTES:
                return self._lost(f"its refusal with status {status} is too large")
        try:
            return PeerRefused(status, object_of(body))
        except ValueError:
            return self._lost(f"an answer with status {status} is not one of a peer")

    async def _event(self) -> h11.Event:
        """Errors: `PeerLost`."""
        while True:
            try:
                event = self._http.next_event()
                if isinstance(event, h11.Event):
                    return event
                with anyio.fail_after(self._settings.silence_s):
                    data = await self._stream.receive()
            except anyio.EndOfStream:
                data = b""
            except TimeoutError as error:
                raise self._lost("nothing was heard of the peer for too long") from error
            except (*_BROKEN, h11.RemoteProtocolError) as error:
                raise self._lost("the connection broke off") from error
            self._http.receive_data(data)

    def _lost(self, message: str) -> PeerLost:
        """The connection is of no use any more."""
        # After this `left` does not keep the connection.
        self._http.send_failed()
        return PeerLost(message, address=self._address)
