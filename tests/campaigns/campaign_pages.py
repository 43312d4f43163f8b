"""Pages and servers that want a reader stuck, slow or large, against the tools that ask the web.

A server on loopback sends pages of nested, unclosed and endless markup, packed bombs, drops of bytes, and redirects
that lead around. Each request ends within its time, with a text or a typed error; the thread of the event loop works
little for it, and little is held at once.
"""

from __future__ import annotations

import random
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

import anyio
import httpx

from repertory.errors import HttpRequestError
from repertory.toolbox.web import make_http_request, make_web_fetch
from tests.campaigns.campaigns import Report

PIECES = (
    "<ul><li>x",
    "<table><tr><td>",
    "<a ",
    '<a x="',
    "<!-",
    "<!--",
    "<![CDATA[",
    "<![",
    "<?",
    "</",
    "</b>",
    "<b>",
    "<font a><p>x",
    "&#",
    "&#x",
    "&amp;",
    "&a",
    "<svg>",
    "</svg>",
    "<script>",
    "<textarea>",
    "<title>",
    "<pre>\n",
    "<select><option>",
    " x='",
    "\0",
    "**",
    "<p>",
    "<",
    "plain text ",
    "<a href='data:",
    "<li>",
)
WORK_S = 1.0
"""The most that the loop's thread may work between two turns of another task: its own time, whatever else runs."""
HELD_BYTES = 64 * 1024 * 1024


def page(rng: random.Random, size: int) -> bytes:
    """Pieces, each many times, nested and one after the other."""
    made = "".join(rng.choice(PIECES) * rng.choice((1, 10, size // 8)) for _ in range(rng.randint(1, 6)))
    return (made * (1 + size // max(len(made), 1)))[:size].encode()


@cache
def bomb() -> bytes:
    """100 MB of zeros, packed by gzip piece by piece: making it holds little."""
    packing = zlib.compressobj(1, wbits=16 + zlib.MAX_WBITS)
    return b"".join([*(packing.compress(bytes(1_000_000)) for _ in range(100)), packing.flush()])


class HostileServer:
    """Answers `/KIND` in the way of that kind, until its client is gone."""

    def __init__(self, rng: random.Random, size: int) -> None:
        self._rng, self._size = rng, size
        self._over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.pages: dict[str, bytes] = {}

    @contextmanager
    def running(self) -> Generator[str]:
        self._threads[0].start()
        try:
            yield self.url
        finally:
            self._over.set()
            self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            for thread in self._threads:
                thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            client.settimeout(5)
            if asked := client.recv(65536):
                kind = asked.split(b" ")[1].decode().strip("/").partition("?")[0].partition("/")[0]
                getattr(self, kind)(client.sendall)

    def page(self, send: Callable[[bytes], None]) -> None:
        body = page(self._rng, self._size)
        send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def charset(self, send: Callable[[bytes], None]) -> None:
        name = self._rng.choice(
            (b"punycode", b"idna", b"unicode_escape", b"undefined", b"utf-7", b"tis-620", b"\xff\0")
        )
        send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=" + name + b"\r\n\r\n" + b"a\\ud800-" * 20_000)

    def packed(self, send: Callable[[bytes], None]) -> None:
        how = self._rng.choice((b"gzip", b"deflate", b"gzip, gzip", b"br", b"zstd"))
        body = bomb() if how == b"gzip" else b"\x28\xb5\x2f\xfd" * 10
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: " + how
        send(head + b"\r\nContent-Type: text/html\r\n\r\n" + body)

    def drips(self, send: Callable[[bytes], None]) -> None:
        send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
        self._drip(send, b"<p>")

    def drips_its_head(self, send: Callable[[bytes], None]) -> None:
        self._drip(send, b"HTTP/1.1 200 OK\r\n" + b"x" * 10_000)

    def continues(self, send: Callable[[bytes], None]) -> None:
        while not self._over.wait(0.001):
            send(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)

    def endless(self, send: Callable[[bytes], None]) -> None:
        send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
        while not self._over.is_set():
            send(b"<p>" * 10_000)

    def around(self, send: Callable[[bytes], None]) -> None:
        send(b"HTTP/1.1 302 Found\r\nLocation: /around?%d\r\n" % self._rng.randrange(10**9))
        send(b"Content-Length: 10000000000\r\n\r\n")
        while not self._over.is_set():
            send(b"x" * 100_000)

    def _drip(self, send: Callable[[bytes], None], what: bytes) -> None:
        at = 0
        while not self._over.wait(0.02):
            send(what[at % len(what) : at % len(what) + 1])
            at += 1


KINDS = ("page", "charset", "packed", "drips", "drips_its_head", "continues", "endless", "around")


async def ask(url: str, kind: str, report: Report, *, within_s: float, own: bool) -> None:
    """Ask by both tools, beside a task that watches the loop's thread."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = time.thread_time()
            await anyio.sleep(0.005)
            longest = max(longest, time.thread_time() - before)

    async with httpx.AsyncClient(follow_redirects=True) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        request = make_http_request(client=client if own else None)
        fetch = make_web_fetch(mode="markdown", client=client if own else None)
        for name, asked in (
            ("http_request", lambda: request(method="GET", url=f"{url}/{kind}", timeout=within_s)),
            ("web_fetch", lambda: fetch(url=f"{url}/{kind}")),
        ):
            report.acknowledged += 1
            outcome: object = None
            with anyio.move_on_after(4 * within_s) as bound:
                try:
                    outcome = await asked()
                except HttpRequestError as error:
                    outcome = error
            report.found += 1
            late = name == "http_request" and bound.cancelled_caught and kind != "page"
            report.check(not late, f"{name} of {kind} outlasts the time that it was given")
            report.check(outcome is not None or bound.cancelled_caught, f"{name} of {kind} gives nothing")
        tasks.cancel_scope.cancel()
    report.check(longest < WORK_S, f"the loop's thread works {longest:.1f} s at a stretch for {kind}")


def pages(rng: random.Random, folder: Path, seconds: float) -> Report:
    """One kind after the other, by clients of both kinds, on both loops, until the time is over."""
    del folder
    report, end = Report(), time.monotonic() + seconds
    ways = [(kind, own) for kind in (*KINDS, *["page"] * 8) for own in (False, True)]
    rng.shuffle(ways)
    tracemalloc.start()
    try:
        for kind, own in ways:
            if report.counts and time.monotonic() > end:
                break
            tracemalloc.reset_peak()
            server = HostileServer(random.Random(rng.random()), rng.choice((20_000, 300_000, 2_000_000)))
            with server.running() as url:
                backend = rng.choice(("asyncio", "trio"))
                anyio.run(partial(ask, url, kind, report, within_s=0.3, own=own), backend=backend)
            held = tracemalloc.get_traced_memory()[1]
            report.check(held < HELD_BYTES, f"{kind} has {held:,} bytes held at once")
            report.counts[kind] += 1
    finally:
        tracemalloc.stop()
    return report
