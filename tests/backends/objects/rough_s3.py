"""Between a client and an S3 service: what networks and overloaded services do, as each test says.

Every request is asked about: `plan(request)` gives what happens to it. Requests and answers are HTTP/1.1, one per
connection on the way to the service.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream


@dataclass(frozen=True)
class Request:
    """What the client asked."""

    method: str
    path: str
    """Without the host, which aiobotocore puts into the request line, and without the query."""
    headers: dict[str, str]
    raw: bytes
    """Head and body as they came."""


@dataclass(frozen=True)
class Forward:
    """Hand on, and hand the answer back."""


@dataclass(frozen=True)
class Drop:
    """End the connection without an answer; the service never hears of the request."""


@dataclass(frozen=True)
class Lose:
    """Hand on, and end the connection without an answer."""


@dataclass(frozen=True)
class Halve:
    """Hand on, and end the connection in the middle of the answer's body."""


@dataclass(frozen=True)
class Hang:
    """Hand on when `forward`, and never answer."""

    forward: bool = False


@dataclass(frozen=True)
class Say:
    """Answer without asking the service: an error as S3 spells them."""

    status: int
    code: str
    message: str = "injected"
    extra: str = ""
    """More elements of the error."""
    headers: dict[str, str] = field(default_factory=dict[str, str])

    def answer(self) -> bytes:
        """The bytes to send."""
        error = f"<Error><Code>{self.code}</Code><Message>{self.message}</Message>{self.extra}</Error>"
        body = f'<?xml version="1.0" encoding="UTF-8"?>{error}'.encode() if self.code else b""
        headers = {"Content-Type": "application/xml", "Content-Length": str(len(body)), **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {self.status} x\r\n{lines}\r\n".encode() + body


Plan = Forward | Drop | Lose | Halve | Hang | Say


@dataclass
class RoughS3:
    """A running one."""

    url: str
    service: str
    plan: Callable[[Request], Plan] = field(default=lambda request: Forward())
    requests: list[Request] = field(default_factory=list[Request])
    hung: int = 0
    open_connections: int = 0
    changed: anyio.Event = field(default_factory=anyio.Event)
    hanging: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until this holds. It is looked at when a request comes, when one hangs and when a connection ends."""
        while not condition():
            await self.changed.wait()

    def end_hanging(self) -> None:
        """End the connection of the request that hangs."""
        self.hanging.cancel()

    def tell(self) -> None:
        """Wake whoever waits for a change."""
        self.changed.set()
        self.changed = anyio.Event()

    def next_plans(self, *plans: Plan) -> None:
        """What happens to the next requests; those after them are forwarded."""
        rest = list(plans)
        self.plan = lambda request: rest.pop(0) if rest else Forward()

    @property
    def methods(self) -> list[str]:
        """The methods of all requests so far."""
        return [request.method for request in self.requests]


@asynccontextmanager
async def rough_s3(service: str) -> AsyncIterator[RoughS3]:
    """Stand before the service at this URL until the block ends."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    rough = RoughS3(url=f"http://127.0.0.1:{port}", service=service)

    async def serve(socket: anyio.abc.SocketStream) -> None:
        rough.open_connections += 1
        try:
            async with socket:
                reader = BufferedByteReceiveStream(socket)
                while await _exchange(rough, reader, socket):
                    pass
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
        finally:
            rough.open_connections -= 1
            rough.tell()

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield rough
        tasks.cancel_scope.cancel()


async def _exchange(rough: RoughS3, reader: BufferedByteReceiveStream, socket: anyio.abc.SocketStream) -> bool:
    """Read one request and do with it what is planned. False ends the connection."""
    request = await _read_request(reader, socket)
    rough.requests.append(request)
    rough.tell()
    match rough.plan(request):
        case Forward():
            await socket.send(await _ask(rough.service, request))
        case Drop():
            return False
        case Lose():
            await _ask(rough.service, request)
            return False
        case Halve():
            head, _, body = (await _ask(rough.service, request)).partition(b"\r\n\r\n")
            await socket.send(head + b"\r\n\r\n" + body[: len(body) // 2])
            return False
        case Hang(forward=forward):
            if forward:
                await _ask(rough.service, request)
            rough.hung += 1
            rough.tell()
            with anyio.CancelScope() as rough.hanging:
                await socket.receive()
            return False
        case Say() as say:
            await socket.send(say.answer())
    return True


async def _read_request(reader: BufferedByteReceiveStream, socket: anyio.abc.SocketStream) -> Request:
    head = (await reader.receive_until(b"\r\n\r\n", 65_536)).decode()
    start, *lines = head.split("\r\n")
    method, target, _ = start.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if headers.get("expect") == "100-continue":
        await socket.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.receive_exactly(int(headers.get("content-length", "0")))
    kept = [line for line in lines if not line.lower().startswith(("connection:", "expect:"))]
    raw = "\r\n".join([start, *kept, "Connection: close"]).encode() + b"\r\n\r\n" + body
    return Request(method=method, path=urlsplit(target).path, headers=headers, raw=raw)


async def _ask(service: str, request: Request) -> bytes:
    """The whole answer of the service, as bytes that leave the connection to the client open."""
    address = urlsplit(service)
    async with await anyio.connect_tcp(str(address.hostname), int(address.port or 80)) as upstream:
        await upstream.send(request.raw)
        answer = b""
        while True:
            try:
                answer += await upstream.receive()
            except anyio.EndOfStream:
                break
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
