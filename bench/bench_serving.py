"""What a client who reads the events of a turn over HTTP waits for.

Five hundred clients come one after the other within five seconds, and each reads an answer that takes as long, so that
all of them read at the same time: how long the slowest of a hundred waits for its first event, beside the same of a
bare Starlette stream that says the same at the same pace. Both are served by uvicorn with one core of its own. And a
client that comes back after its connection was lost: how long it waits for the first event that it has missed, beside a
bare answer of the same server.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
from anyio.abc import SocketStream

from bench.harness import Figure, report

CLIENTS, WITHIN_S, ROUNDS = 500, 5.0, 3
PIECES, PACE_S = 20, 0.25
TIMES_BARE, MISSED_MS = 2.0, 5.0
LOST = 100
KINDS = ("bare", "turns")
_WORD = "word "


def serve(kind: str, folder: str) -> None:
    """Serve one of the two on a free port until the process is killed. The first line printed is the port."""
    import uvicorn

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    app = bare() if kind == "bare" else turns(Path(folder))

    class Telling(uvicorn.Server):
        async def startup(self, sockets: object = None) -> None:
            await super().startup()
            print(self.servers[0].sockets[0].getsockname()[1], flush=True)

    Telling(uvicorn.Config(app, port=0, log_level="warning", access_log=False, backlog=4096, loop="asyncio")).run()


def bare() -> object:
    """A Starlette application that says as much, at the same pace, of nobody."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    async def begin(request: Request) -> StreamingResponse:
        said = json.loads(await request.body())

        async def events() -> AsyncGenerator[str]:
            yield f"id: 0\nevent: message\ndata: {json.dumps(said)}\n\n"
            for number in range(PIECES):
                await anyio.sleep(PACE_S)
                yield f"id: {number}\nevent: data\ndata: {json.dumps({'data': _WORD})}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    return Starlette(routes=[Route("/{path:path}", begin, methods=["GET", "POST"])])


def turns(folder: Path) -> object:
    """A service, with a model that takes its time."""
    from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions
    from repertory.asgi import ServiceLimits, asgi_app

    runtime = Runtime(sessions=SQLiteSessions(folder / "a.db"))
    model = ScriptedModel([_WORD * PIECES], delay_s=PACE_S, chunk=len(_WORD), loop=True)
    runtime.agent(AgentSpec(name="helper", model=model))
    return asgi_app(runtime, limits=ServiceLimits(concurrent=10_000, concurrent_in_all=10_000, rate_per_s=1e9))


@contextmanager
def served(kind: str) -> Iterator[int]:
    """The port of a server in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        program = f"from bench.bench_serving import serve; serve({kind!r}, {folder!r})"
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def request(method: str, path: str, body: object = None, **headers: str) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    given = {"host": "localhost", "accept": "text/event-stream", "content-type": "application/json", **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join([*lines, f"content-length: {len(content)}", "", ""]).encode() + content


async def until(stream: SocketStream, sign: bytes) -> bytes:
    """What comes, until the sign was in it."""
    got = b""
    while sign not in got:
        got += await stream.receive()
    return got


def path_of(number: int) -> str:
    return f"/v1/agents/helper/sessions/s{number}/turns"


async def first_events(port: int, base: int) -> list[float]:
    """How long each client waited for its first event, in milliseconds."""
    waited: list[float] = []

    async def client(number: int) -> None:
        await anyio.sleep(number * WITHIN_S / CLIENTS)
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            began = time.perf_counter()
            await stream.send(request("POST", path_of(base + number), {"prompt": "Go.", "token": "t", "stream": True}))
            await until(stream, b"event: message")
            waited.append((time.perf_counter() - began) * 1e3)
            await until(stream, b"\r\n0\r\n\r\n")

    async with anyio.create_task_group() as group:
        for number in range(CLIENTS):
            group.start_soon(client, number)
    return waited


async def missed_events(port: int) -> list[float]:
    """How long a client that comes back waits for the first event that it has missed, in milliseconds."""
    waited: list[float] = []
    for number in range(LOST):
        path = path_of(1_000_000 + number)
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(request("POST", path, {"prompt": "Go.", "token": "t", "stream": True}))
            got = await until(stream, b"event: data")
        offset = got.rpartition(b"id: ")[2].partition(b"\n")[0].decode()
        await anyio.sleep(PACE_S * 1.5)  # One piece is told meanwhile.
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            began = time.perf_counter()
            headers = {"last-event-id": offset}
            await stream.send(request("GET", f"{path}/t/events", None, **headers))
            await until(stream, b"event: data")
            waited.append((time.perf_counter() - began) * 1e3)
    return waited


async def bare_answers(port: int) -> list[float]:
    """How long a bare stream takes to its first event, with a connection as here, in milliseconds."""
    waited: list[float] = []
    for number in range(LOST):
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            began = time.perf_counter()
            await stream.send(request("POST", path_of(number), {"prompt": "Go."}))
            await until(stream, b"event: message")
            waited.append((time.perf_counter() - began) * 1e3)
    return waited


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def main() -> int:
    argparse.ArgumentParser().parse_known_args()
    cores = sorted(os.sched_getaffinity(0))
    slowest: dict[str, list[float]] = {kind: [] for kind in KINDS}
    middle: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with served("bare") as bare_port, served("turns") as turns_port:
        os.sched_setaffinity(0, {cores[-1]})
        ports = {"bare": bare_port, "turns": turns_port}
        for number in range(ROUNDS):
            for kind in KINDS:
                waited = anyio.run(first_events, ports[kind], number * CLIENTS)
                slowest[kind].append(p99(waited))
                middle[kind].append(statistics.median(waited))
        missed, answers = anyio.run(missed_events, turns_port), anyio.run(bare_answers, bare_port)
    mine, limit = min(slowest["turns"]), min(slowest["bare"])
    network_ms = statistics.median(answers)
    over_ms = max(statistics.median(missed) - network_ms, 0.0)
    return report(
        [
            Figure(f"first event, p99 of {CLIENTS} streams at once", mine, limit, TIMES_BARE, "ms"),
            Figure("first event, median", min(middle["turns"]), min(middle["bare"]), None, "ms"),
            Figure("first missed event, beside a bare answer", over_ms, 1.0, MISSED_MS, "ms"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
