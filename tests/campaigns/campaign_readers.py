"""Clients of a web server that read nothing, send half, speak HTTP/2 or go, at random, beside honest ones.

Every honest request is answered by its own bytes, every other client is let go in time, and at the end no application
runs any more: the server ends whatever its clients do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import SocketStream

from repertory.service.process.http_connection import WebLimits
from tests.campaigns.campaigns import Report
from tests.service.web_clients import GET, LARGE, LAST, PREFACE, Sized, asked, heard, said, web_served

LIMITS = WebLimits(head_s=1.0, stalled_s=1.0)
RUDE = 24
HONEST = 24
_POST = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


def rude(rng: random.Random) -> bytes:
    """What a rude client says before it is silent."""
    stalls = f"GET /{LARGE} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    said_ = rng.choice(
        [
            stalls,
            stalls * rng.randrange(2, 200),
            GET + stalls,
            PREFACE,
            GET + PREFACE,
            GET[:-2] + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n" + PREFACE,
            _POST + b"Content-Length: 1000\r\n\r\n" + b"x" * rng.randrange(1000),
            _POST + b"Transfer-Encoding: chunked\r\n\r\n" + rng.choice([b"5\r\nabc", b"zz\r\n", b"ffffffffff\r\n"]),
            _POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * rng.randrange(20_000),
            GET[:-2] + b"a:\r\n" * rng.randrange(20_000) + b"\r\n",
            GET[:-2] + rng.choice([b"X: a\n", b"X: a\r\n b\r\n", b"\n", b"X: a\r"]) + b"\r\n" + GET,
            _POST + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n",
            _POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            rng.randbytes(rng.randrange(1, 3000)),
        ]
    )
    return said_[: rng.randrange(1, len(said_) + 1)] if rng.random() < 0.3 else said_


async def _be_rude(address: tuple[str, int], rng: random.Random, report: Report, held: list[SocketStream]) -> None:
    try:
        stream = await said(address, rude(rng))
    except (OSError, anyio.BrokenResourceError):
        return
    match rng.choice(["leaves", "waits", "reads"]):
        case "leaves":
            await stream.aclose()
            report.counts["left"] += 1
        case "waits":
            held.append(stream)
            report.counts["read nothing"] += 1
        case _:
            with anyio.move_on_after(rng.uniform(0.0, 0.2)):
                await heard(stream)
            await stream.aclose()
            report.counts["read a little"] += 1


async def _be_honest(address: tuple[str, int], rng: random.Random, report: Report) -> None:
    report.acknowledged += 1
    mark = rng.randbytes(rng.randrange(1, 200_000)).hex().encode()
    head = _POST + f"Connection: close\r\nContent-Length: {len(mark)}\r\n\r\n".encode()
    got = await asked(address, GET * rng.randrange(3) + head + mark)
    report.check(
        got.endswith(b"\r\n\r\n" + mark), f"an answer of {len(mark)} bytes is none of its request: {got[:200]!r}"
    )
    report.found += got.endswith(mark)


async def _round(seed: int, report: Report) -> None:
    rng, app, held = random.Random(seed), Sized(body_s=1.0), list[SocketStream]()
    work: list[Callable[[random.Random], Coroutine[Any, Any, None]]] = []
    async with web_served(app, grace_s=rng.choice([0.0, 0.3]), limits=LIMITS) as address:
        work += [lambda own: _be_rude(address, own, report, held)] * RUDE
        work += [lambda own: _be_honest(address, own, report)] * HONEST
        rng.shuffle(work)
        async with anyio.create_task_group() as group:
            for one in work:
                group.start_soon(one, random.Random(rng.randrange(2**32)))
        if rng.random() < 0.5:  # Each of them has its time, and is let go while the server goes on.
            with anyio.move_on_after(20.0) as patience:
                while app.running:
                    await app.ended.wait()
            report.check(not patience.cancelled_caught, f"{app.running} requests of silent clients hold their places")
            report.counts["rounds to the end of the silent"] += 1
        report.check((await asked(address, LAST)).startswith(b"HTTP/1.1 200"), "the server answers nobody any more")
    report.check(not app.running, f"{app.running} applications run after the end of their server")
    for stream in held:
        await stream.aclose()


def stalled_readers(rng: random.Random, folder: Path, seconds: float) -> Report:
    """A round on asyncio, and one on trio."""
    del folder, seconds  # A round is one seed, so that it can be repeated.
    report = Report()
    for backend in ("asyncio", "trio"):
        anyio.run(_round, rng.randrange(2**32), report, backend=backend)
    return report
