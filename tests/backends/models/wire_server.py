"""A model service that says, byte by byte, what a test wants: HTTP/1.1, with AWS event stream frames or anything else.

For what aimock cannot produce: errors as services spell them, errors inside a stream, damaged frames, silence.

Source: the event stream encoding of the AWS SDKs ("Event Stream Specification", Smithy).
"""

from __future__ import annotations

import binascii
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

AWS_FRAMES = "application/vnd.amazon.eventstream"
SERVER_SENT_EVENTS = "text/event-stream"


def frame(name: str, payload: object, *, kind: str = "event") -> bytes:
    """One frame. `kind` is `event` or `exception`; a payload of bytes is sent as it is."""
    key = ":event-type" if kind == "event" else ":exception-type"
    headers = {":message-type": kind, key: name, ":content-type": "application/json"}
    packed = b"".join(_header(name, value) for name, value in headers.items())
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    prelude = struct.pack(">II", len(packed) + len(body) + 16, len(packed))
    prelude += struct.pack(">I", binascii.crc32(prelude))
    whole = prelude + packed + body
    return whole + struct.pack(">I", binascii.crc32(whole))


def _header(name: str, value: str) -> bytes:
    return bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()


def text_frames(*pieces: str, stop_reason: str = "end_turn") -> list[bytes]:
    """The frames of a whole answer of text, as Bedrock sends them."""
    deltas = [frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": piece}}) for piece in pieces]
    usage = {"inputTokens": 3, "outputTokens": len(pieces), "totalTokens": 3 + len(pieces)}
    return [
        frame("messageStart", {"role": "assistant"}),
        *deltas,
        frame("contentBlockStop", {"contentBlockIndex": 0}),
        frame("messageStop", {"stopReason": stop_reason}),
        frame("metadata", {"usage": usage, "metrics": {"latencyMs": 7}}),
    ]


@dataclass
class Exchange:
    """One request and the means to answer it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    socket: anyio.abc.SocketStream

    async def begin(self, media: str = AWS_FRAMES) -> None:
        """Begin an event stream."""
        headers = f"Content-Type: {media}\r\nTransfer-Encoding: chunked\r\n"
        await self.socket.send(f"HTTP/1.1 200 OK\r\n{headers}\r\n".encode())

    async def send(self, *frames: bytes) -> None:
        """Send frames, each in a chunk of its own."""
        for data in frames:
            await self.socket.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end(self) -> None:
        """End the event stream properly."""
        await self.socket.send(b"0\r\n\r\n")

    async def stream(self, *frames: bytes, media: str = AWS_FRAMES) -> None:
        """A whole event stream of these frames."""
        await self.begin(media)
        await self.send(*frames)
        await self.end()

    async def answer(self, status: int, body: object, **headers: str) -> None:
        """A plain answer; underscores in header names stand for hyphens."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{lines}\r\n"
        await self.socket.send(head.encode() + data)

    async def until_closed(self) -> None:
        """Wait until the client has closed the connection."""
        try:
            while True:
                await self.socket.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return


Handler = Callable[[Exchange], Awaitable[None]]


@dataclass
class WireServer:
    """A running server."""

    url: str
    requests: list[Exchange] = field(default_factory=list[Exchange])
    open_connections: int = 0
    _idle: anyio.Event = field(default_factory=anyio.Event)

    def connected(self, change: int) -> None:
        """Count a connection that began (1) or ended (-1)."""
        self.open_connections += change
        if self.open_connections == 0:
            self._idle.set()
        elif self._idle.is_set():
            self._idle = anyio.Event()

    async def until_idle(self) -> None:
        """Wait until every connection has ended, 10 s at most."""
        with anyio.fail_after(30):
            if self.open_connections:
                await self._idle.wait()


@asynccontextmanager
async def wire_server(handler: Handler) -> AsyncIterator[WireServer]:
    """Serve until the block ends. `handler` answers each request; connections stay open between requests."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    server = WireServer(url=f"http://127.0.0.1:{port}")

    async def serve(socket: anyio.abc.SocketStream) -> None:
        server.connected(1)
        try:
            async with socket:
                reader = BufferedByteReceiveStream(socket)
                while True:
                    exchange = await _read_request(reader, socket)
                    server.requests.append(exchange)
                    await handler(exchange)
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
        finally:
            server.connected(-1)

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield server
        tasks.cancel_scope.cancel()


async def _read_request(reader: BufferedByteReceiveStream, socket: anyio.abc.SocketStream) -> Exchange:
    head = (await reader.receive_until(b"\r\n\r\n", 65_536)).decode()
    start, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.receive_exactly(int(headers.get("content-length", "0")))
    return Exchange(path=start.split(" ")[1], headers=headers, body=json.loads(body), socket=socket)
