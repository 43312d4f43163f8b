"""Clients that say nothing, or say it for ever: each connection ends in time, and others are answered."""

from __future__ import annotations

import resource
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue
from typing import Any

import anyio
import pytest
import uvicorn

from repertory import AgentSpec, OfflineModel, Runtime
from repertory.asgi import ServiceLimits, asgi_app
from repertory.errors import Invalid
from repertory.service.process.listening import raise_descriptors
from repertory.service.process.uvicorn_http import BoundedHttp
from tests.service.asgi_client import ADA
from tests.service.embedding_process import PATIENCE_S
from tests.source_tree import ROOT

ENDED: SimpleQueue[str] = SimpleQueue()
"""What the applications of large answers say when they return."""
LARGE = 10_000_000
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.anyio
async def test_a_body_that_drips_ends_the_request_and_its_connection() -> None:
    runtime = Runtime()
    runtime.agent(AgentSpec(name="helper", model=OfflineModel()))
    app = asgi_app(runtime, limits=ServiceLimits(body_s=10))
    sent: list[Any] = []
    pieces = 0

    async def drip() -> dict[str, Any]:
        nonlocal pieces
        await anyio.sleep(1)
        pieces += 1
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def note(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    path = f"{ADA}/turns"
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "raw_path": path.encode()}
    async with runtime:
        await app({**scope, "query_string": b"", "root_path": "", "scheme": "http", "headers": headers}, drip, note)
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]
    assert pieces in (9, 10)


@pytest.mark.parametrize("body_s", [0, -1.0])
def test_the_time_of_a_body_is_a_positive_number(body_s: float) -> None:
    with pytest.raises(Invalid, match="body_s is a positive number"):
        ServiceLimits(body_s=body_s)


@contextmanager
def bounded(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """uvicorn with our bound, in a thread."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b"ok" * (LARGE if scope["path"] == "/large" else 1)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})
        if scope["path"] == "/large":
            ENDED.put("/large")

    monkeypatch.setattr(BoundedHttp, "head_s", 0.2)
    monkeypatch.setattr(BoundedHttp, "stalled_s", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        config = uvicorn.Config(
            app, http=BoundedHttp, lifespan="off", log_level="critical", ws="none", timeout_keep_alive=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield bound.getsockname()
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.real_time
@pytest.mark.parametrize(
    "said", [b"", GET[:20], GET + GET[:1]], ids=["nothing", "half a head", "a byte after a request"]
)
def test_uvicorn_ends_a_connection_whose_head_does_not_come(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with bounded(monkeypatch) as address, socket.create_connection(address, timeout=PATIENCE_S) as slow:
        slow.sendall(said)
        with socket.create_connection(address, timeout=PATIENCE_S) as honest:
            honest.sendall(GET)
            assert honest.recv(1000).startswith(b"HTTP/1.1 200")
        got = b""
        while piece := slow.recv(1000):
            got += piece
        assert got.count(b"HTTP/1.1 200") == said.count(GET)


CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.real_time
@pytest.mark.parametrize(
    "said",
    [
        GET[:-2] + b"X: a\nContent-Length: 34\r\n\r\n",
        GET[:-2] + b"a:\r\n" * 200 + b"\r\n",
        CHUNKED + b"1\r\na\r\n" * 2000,
        CHUNKED + b"1\r\na\r\n0\r\n\n",
    ],
    ids=["LF within", "many lines", "tiny chunks", "half an end"],
)
def test_uvicorn_refuses_odd_framing(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with bounded(monkeypatch) as address, socket.create_connection(address, timeout=PATIENCE_S) as odd:
        odd.sendall(said)
        assert odd.recv(1000).startswith(b"HTTP/1.1 400")


@pytest.mark.real_time
@pytest.mark.parametrize("reads", [False, True], ids=["one that reads nothing", "one that reads"])
def test_uvicorn_lets_a_client_go_that_takes_nothing_of_its_answer(
    reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bounded(monkeypatch) as address, socket.create_connection(address, timeout=PATIENCE_S) as slow:
        slow.sendall(GET.replace(b"/", b"/large", 1))
        got = 0
        if not reads:
            gone = select.poll()
            gone.register(slow, 0)  # The system reports an end of the connection alone.
            assert gone.poll(PATIENCE_S * 1000)
        with suppress(ConnectionResetError):
            while got < 2 * LARGE and (piece := slow.recv(1_000_000)):
                got += len(piece)
        assert ENDED.get(timeout=PATIENCE_S)
    assert (got >= 2 * LARGE) == reads


SCRAPED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import anyio
from repertory import Runtime
async def main():
    async with Runtime() as runtime, anyio.create_task_group() as group:
        print(await group.start(runtime.serve_metrics, "127.0.0.1:0"), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
        group.cancel_scope.cancel()
anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.real_time
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_metrics_are_scraped_though_silent_connections_took_all_descriptors(backend: str) -> None:
    command = [sys.executable, "-c", SCRAPED, backend]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as child, ExitStack() as stack:
        assert child.stdout is not None
        assert child.stdin is not None
        host, _, port = child.stdout.readline().strip().rpartition(":")
        for number in range(80):
            silent = stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
            silent.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"[: number % 60])  # read by nobody
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as honest:
            honest.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert honest.recv(100).startswith(b"HTTP/1.1 200")
        child.stdin.close()
        assert child.wait(PATIENCE_S) == 0


def test_a_service_may_open_as_many_files_as_the_system_lets_it() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1000), hard))
        assert raise_descriptors() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(soft, 1000)
        assert raise_descriptors() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
