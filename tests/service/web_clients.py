"""`serve_web` on loopback, and a client that says bytes, and takes what it wants of the answer."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import SocketAttribute, SocketStream

from repertory.service.process.http_connection import AsgiMessage, WebLimits
from repertory.service.process.web_server import LIMITS, serve_web
from tests.service.embedding_process import PATIENCE_S

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
LARGE = 20_000_000
"""More than the buffers of two sockets take."""
Send = Callable[[AsgiMessage], Awaitable[None]]
Receive = Callable[[], Awaitable[AsgiMessage]]


class Sized:
    """An application that answers a path `/N` with N bytes, others with what was sent, and counts."""

    def __init__(self, body_s: float = PATIENCE_S) -> None:
        self._body_s = body_s
        self.begun = 0
        self.running = 0
        self.scopes: list[AsgiMessage] = []
        self.bodies: list[bytes] = []
        self.ended = anyio.Event()

    async def __call__(self, scope: AsgiMessage, receive: Receive, send: Send) -> None:
        self.begun += 1
        self.running += 1
        self.scopes.append(scope)
        try:
            body, more = b"", True
            with anyio.move_on_after(self._body_s):
                while more and (message := await receive())["type"] == "http.request":
                    body += message["body"]
                    more = message["more_body"]
            if more:
                return
            self.bodies.append(body)
            number = scope["path"].strip("/")
            answer = b"x" * int(number) if number.isdecimal() else body
            headers = [(b"content-length", str(len(answer)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": answer})
        finally:
            self.running -= 1
            self.ended.set()
            self.ended = anyio.Event()


@asynccontextmanager
async def web_served(app: Any, *, grace_s: float = 5.0, limits: WebLimits = LIMITS) -> AsyncGenerator[tuple[str, int]]:
    """Its address. The server has ended after the block, whatever its clients do."""
    listening = socket.create_server(("127.0.0.1", 0))
    address: tuple[str, int] = listening.getsockname()
    stop = anyio.Event()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:

            async def serve() -> None:
                await serve_web(app, listening, until=stop.wait, grace_s=grace_s, limits=limits)

            group.start_soon(serve)
            yield address
            stop.set()


async def said(address: tuple[str, int], data: bytes, room: int = 4096) -> SocketStream:
    """A connection on which this was said, with so much room for an answer."""
    stream = await anyio.connect_tcp(*address)
    stream.extra(SocketAttribute.raw_socket).setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    await stream.send(data)
    return stream


async def heard(stream: SocketStream) -> bytes:
    """Everything until the connection ends."""
    got = bytearray()
    try:
        while True:
            got += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return bytes(got)
    finally:
        await stream.aclose()


async def asked(address: tuple[str, int], data: bytes) -> bytes:
    """What is answered to these bytes until the connection ends."""
    return await heard(await said(address, data, room=1_000_000))
