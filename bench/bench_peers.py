"""A call of a runtime by another one over loopback, beside an echo of the same bytes over bare streams of the loop.

Both sides run in one process and on one loop, so each figure is the work of both. The bar is about what HTTP, JSON and
a handler add to the bytes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketAttribute, SocketStream

from bench.harness import Figure, report
from repertory.backends.peer_ports import JsonLine
from repertory.cluster.wire.http import HttpPeers
from tests.cluster.wire_contract import served

ROUNDS = 7
CALLS = 1000
BODY: JsonLine = {"session": "0123456789", "agent": "default", "prompt": "x" * 200}
REQUEST_BYTES, ANSWER_BYTES = 392, 383
"""What a call with this body sends and is sent, heads and frames included."""
BAR = 25.0


@asynccontextmanager
async def one_line(path: str, body: JsonLine) -> AsyncGenerator[AsyncIterator[JsonLine]]:
    async def lines() -> AsyncGenerator[JsonLine]:
        yield body

    yield lines()


async def calls() -> float:
    """Seconds of one call."""
    wire = HttpPeers("127.0.0.1:0", secret="of-a-benchmark-alone", entropy=os.urandom)
    async with served(wire, one_line) as address:
        began = time.perf_counter()
        for _ in range(CALLS):
            async with wire.call(address, "turn", BODY) as lines:
                async for _ in lines:
                    pass
        taken = time.perf_counter() - began
        await wire.aclose()
    return taken / CALLS


async def echoes() -> float:
    """Seconds of one echo: as many bytes there and back as a call has."""

    async def echo(stream: SocketStream) -> None:
        try:
            while True:
                await stream.receive()
                await stream.send(b"x" * ANSWER_BYTES)
        except anyio.EndOfStream:
            await stream.aclose()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        async with await anyio.connect_tcp("127.0.0.1", listener.extra(SocketAttribute.local_port)) as stream:
            began = time.perf_counter()
            for _ in range(CALLS):
                await stream.send(b"x" * REQUEST_BYTES)
                await stream.receive()
            taken = time.perf_counter() - began
        tasks.cancel_scope.cancel()
    return taken / CALLS


def main() -> int:
    """Print the figures; 1 when a bar was missed."""
    figures: list[Figure] = []
    for backend in ("asyncio", "trio"):
        rounds = sorted(
            (called / echoed, called, echoed)
            for called, echoed in (
                (anyio.run(calls, backend=backend), anyio.run(echoes, backend=backend)) for _ in range(ROUNDS)
            )
        )
        _, called, echoed = rounds[ROUNDS // 2]
        name = f"a call of a peer with one line beside an echo, {backend}"
        figures.append(Figure(name, called * 1e6, echoed * 1e6, BAR, "us"))
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
