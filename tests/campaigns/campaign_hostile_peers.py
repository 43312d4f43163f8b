"""Strangers around two peers: they connect, listen, and sit on the way between them, with changed pieces of real talk.

Oracle: the handler runs exactly what honest callers have asked, whole and once; a call through a stranger comes back
whole or is lost; honest calls go through meanwhile; nobody hears the secret, and only who sits on the way hears a call;
what strangers have opened is closed again.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio.abc import SocketAttribute, SocketStream

from repertory.backends.peer_ports import JsonLine, PeerLost, PeerUnreachable
from repertory.cluster.wire.http import HttpPeers, PeerLimits
from repertory.cluster.wire.proof import MAGIC, NONCE_BYTES
from tests.campaigns.campaigns import Report
from tests.cluster.wire_contract import answer, served

SECRET, TEXT = "the-secret-of-the-honest", "private-text"
LIMITS = PeerLimits(proof_s=0.3, request_s=0.3, idle_s=0.5, unproved_max=8)
BROKEN = (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
BROWSER = b"POST /_repertory/v1/call HTTP/1.1\r\nhost: x\r\norigin: http://evil.example\r\ncontent-length: 2\r\n\r\n{}"
HEARD_MAX, HEARD_BYTES_MAX, DESCRIPTORS_MAX = 500, 200_000, 100


class Strangers:
    """They remember what they hear, and say it again."""

    def __init__(self, rng: random.Random, report: Report) -> None:
        self.rng, self.report = rng, report
        self.heard = [MAGIC + bytes(NONCE_BYTES), bytes(36), BROWSER]

    def hear(self, data: bytes, *, on_the_way: bool = False) -> bytes:
        self.report.check(SECRET.encode() not in data, "the secret was heard")
        self.report.check(on_the_way or TEXT.encode() not in data, "a stranger heard a call")
        if len(self.heard) >= HEARD_MAX:
            self.heard.pop(self.rng.randrange(HEARD_MAX))
        self.heard.append(data[:HEARD_BYTES_MAX])
        return data

    def changed(self, data: bytes) -> bytes:
        """The bytes with one change."""
        found, at = bytearray(data), self.rng.randrange(len(data))
        match self.rng.randrange(5):
            case 0:
                found[at] ^= self.rng.randrange(1, 256)
            case 1:
                del found[at : at + self.rng.randrange(1, 99)]
            case 2:
                found[at:at] = self.rng.randbytes(self.rng.randrange(1, 99))
            case 3:
                found *= 2
            case _:
                found = bytearray(self.rng.choice(self.heard))
        return bytes(found) or b"\0"

    def words(self) -> bytes:
        said = self.rng.choice(self.heard)
        return self.rng.choice((said, self.changed(said), MAGIC + self.rng.randbytes(NONCE_BYTES)))

    async def connects(self, address: str) -> None:
        with suppress(*BROKEN), anyio.move_on_after(0.5):
            async with await _tcp(address) as stream:
                for _ in range(self.rng.randrange(1, 5)):
                    await stream.send(self.words())
                    with anyio.move_on_after(0.02):
                        self.hear(await stream.receive())
                await anyio.sleep(self.rng.choice((0.0, 0.4)))

    async def listens(self, stream: SocketStream) -> None:
        async with stream:
            while True:
                said = self.hear(await stream.receive())
                await stream.send(self.rng.choice((said, said[-36:], self.rng.randbytes(NONCE_BYTES), self.words())))

    def passes_on(self, to: Callable[[], str], share: float) -> Callable[[SocketStream], Awaitable[None]]:
        """Somebody who passes on what comes, and changes that share of it."""

        async def talk(stream: SocketStream) -> None:
            async def passes(source: SocketStream, target: SocketStream) -> None:
                with suppress(*BROKEN):
                    while True:
                        data = self.hear(await source.receive(), on_the_way=share > 0)
                        await target.send(self.changed(data) if self.rng.random() < share else data)
                tasks.cancel_scope.cancel()

            async with stream, await _tcp(to()) as server, anyio.create_task_group() as tasks:
                tasks.start_soon(passes, server, stream)
                await passes(stream, server)

        return talk


class Honest:
    """Callers, and the handler that they ask."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.asked = 0
        self.ran: set[int] = set()

    @asynccontextmanager
    async def handle(self, path: str, body: JsonLine) -> AsyncGenerator[AsyncIterator[JsonLine]]:
        number = body.get("number")
        asked = isinstance(number, int) and number < self.asked and number not in self.ran
        self.report.check(asked and (path, body.get("text")) == ("call", TEXT), f"nobody asked this: {path} {body}")
        self.ran |= {number} if isinstance(number, int) else set()

        async def lines() -> AsyncGenerator[JsonLine]:
            yield {"number": number}
            yield {"text": TEXT}

        async with aclosing(lines()) as found:
            yield found

    async def call(self, wire: HttpPeers, address: str) -> bool:
        """Whether it came back."""
        number, self.asked = self.asked, self.asked + 1
        try:
            found = await answer(wire, address, "call", {"number": number, "text": TEXT})
        except (PeerLost, PeerUnreachable):
            return False
        self.report.check(found == [{"number": number}, {"text": TEXT}], f"a false answer: {found}")
        return True


def hostile_peers(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Let strangers try, for so long."""
    report = Report()
    anyio.run(_run, rng, report, seconds, backend=rng.choice(("asyncio", "trio")))
    return report


async def _run(rng: random.Random, report: Report, seconds: float) -> None:
    strangers, honest = Strangers(rng, report), Honest(report)
    with socket.create_server(("127.0.0.1", 0)) as free:
        far = f"127.0.0.1:{free.getsockname()[1]}"
    before = len(os.listdir("/proc/self/fd"))
    async with (
        _listening(strangers.listens) as taken,
        _listening(strangers.passes_on(lambda: near, 0.0)) as elsewhere,
        _listening(strangers.passes_on(lambda: far, 0.2)) as way,
        served(_wire("127.0.0.1:0"), honest.handle) as near,
        served(_wire(far, way), honest.handle),
    ):
        until = anyio.current_time() + seconds
        while anyio.current_time() < until:
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(strangers.connects, rng.choice((near, far)))
                for address in (near, way, rng.choice((taken, elsewhere))):
                    wire = _wire(None)
                    came = await honest.call(wire, address) and await honest.call(wire, address)
                    await wire.aclose()
                    report.acknowledged += address == near
                    report.found += address == near and came
                    report.check(address in (near, way) or not came, "a stranger answered")
                    report.counts[f"calls {'answered' if came else 'lost'}"] += 1
            report.check(len(os.listdir("/proc/self/fd")) < before + DESCRIPTORS_MAX, "descriptors are not closed")


def _wire(listen: str | None, advertise: str | None = None) -> HttpPeers:
    return HttpPeers(listen, advertise=advertise, secret=SECRET, entropy=os.urandom, alive_s=0.1, limits=LIMITS)


async def _tcp(address: str) -> SocketStream:
    host, _, port = address.rpartition(":")
    return await anyio.connect_tcp(host, int(port))


@asynccontextmanager
async def _listening(talk: Callable[[SocketStream], Awaitable[None]]) -> AsyncGenerator[str]:
    """The address of a stranger."""

    async def serve(stream: SocketStream) -> None:
        with anyio.move_on_after(1.0):
            try:
                await talk(stream)
            except* BROKEN:
                pass

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        tasks.cancel_scope.cancel()
