"""The web server of our own services: what it speaks, and clients that do not read, send or end."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketListener, SocketStream
from anyio.streams.stapled import StapledObjectStream

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions
from repertory.asgi import ServiceLimits, asgi_app
from repertory.service.process.http_connection import WebConnection, WebLimits, WebServer
from repertory.service.process.listening import connections_max, forget_unsent
from tests.service.embedding_process import PATIENCE_S
from tests.service.serving_process import CONFIGURATION, serving
from tests.service.web_clients import GET, LARGE, LAST, PREFACE, Sized, asked, heard, said, web_served

POST = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
STALLS = f"GET /{LARGE} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def statuses(got: bytes) -> list[bytes]:
    return [piece[:3] for piece in got.split(b"HTTP/1.1 ")[1:]]


# ------------------------------------------------------------------------------------------------- what is spoken


@pytest.mark.real_time
@pytest.mark.anyio
async def test_requests_of_a_connection_are_answered_one_after_the_other() -> None:
    app = Sized()
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
    async with web_served(app) as address:
        got = await asked(address, GET + POST + b"Content-Length: 2\r\n\r\nhi" + chunked + LAST)
    assert statuses(got) == [b"200"] * 4
    assert app.bodies == [b"", b"hi", b"abcde", b""]


@pytest.mark.real_time
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET /5 HTTP/1.0\r\n\r\n", b"200", b"xxxxx"),
        (b"HEAD /5 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"200", b""),
        (POST + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", b"100", b"hi"),
        (b"GET /a%20b?c=d HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"200", b""),
    ],
    ids=["1.0", "HEAD", "100-continue", "a path"],
)
async def test_what_http_1_offers_is_spoken(request_: bytes, status: bytes, body: bytes) -> None:
    app = Sized()
    async with web_served(app) as address:
        got = await asked(address, request_)
    assert statuses(got)[0] == status
    assert got.rpartition(b"\r\n\r\n")[2] == body
    assert app.scopes[0]["path"] in ("/5", "/", "/a b")
    assert app.scopes[0]["client"][0] == "127.0.0.1"


@pytest.mark.real_time
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (PREFACE, b"505"),
        (POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: others.example\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000, b"431"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 200 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\nContent-Length: 34\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n Transfer-Encoding: chunked\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\nHost: localhost\n\n", b"400"),
        (GET[:-2] + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
    ],
    ids=[
        *("HTTP/2", "two lengths", "two numbers", "two hosts", "no host", "no ASCII", "a long head", "many lines"),
        *("LF within", "folded", "LF", "two tokens", "TLS"),
    ],
)
async def test_what_is_no_plain_request_is_refused_and_nothing_behind_it_is_read(head: bytes, status: bytes) -> None:
    app = Sized()
    async with web_served(app) as address:
        got = await asked(address, head + GET)
    assert statuses(got) == [status]
    assert app.begun == 0


class Pieces:
    """An application that counts the messages of a body, and answers what became of it."""

    def __init__(self, reads: bool = True) -> None:
        self.reads = reads
        self.messages = self.size = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        more = self.reads
        while more:
            message = await receive()
            self.messages += 1
            self.size += len(message.get("body", b""))
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@pytest.mark.real_time
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("rest", "status"),
    [
        (b"1\r\na\r\n" * 900 + b"0\r\n\r\n", b"200"),
        (b"100\r\n" + b"a" * 256 + b"\r\n" + (b"40\r\n" + b"a" * 64 + b"\r\n") * 9000 + b"0\r\n\r\n", b"200"),
        (b"1\r\na\r\n" * 20_000 + b"0\r\n\r\n", b"400"),
        (b"1\r\na\r\n0\r\nX: a\n\n", b"400"),
        (b"1\r\na\r\n0\r\n\n" + GET, b"400"),
    ],
    ids=["few", "small", "tiny", "trailers", "half an end"],
)
async def test_chunks_are_passed_on_together_and_those_that_carry_too_little_are_refused(
    rest: bytes, status: bytes
) -> None:
    app = Pieces()
    async with web_served(app) as address:
        got = await asked(address, POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + rest)
    assert statuses(got) == [status]
    assert app.messages <= 2 + len(rest) // 1024
    assert app.size in (0, 1024) if status == b"400" else app.size == rest.count(b"a")


@pytest.mark.real_time
@pytest.mark.anyio
async def test_chunks_that_no_application_wants_are_not_read_and_end_the_connection() -> None:
    async with web_served(Pieces(reads=False)) as address:
        got = await asked(address, POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n" + GET)
        assert statuses(got) == [b"200"]
        assert statuses(await asked(address, POST + b"Content-Length: 2\r\n\r\nhi" + LAST)) == [b"200"] * 2


@pytest.mark.real_time
@pytest.mark.anyio
async def test_an_offer_of_http_2_is_passed_over() -> None:
    app = Sized()
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    async with web_served(app) as address:
        got = await asked(address, GET[:-2] + offer + PREFACE)
    assert statuses(got) == [b"200", b"505"]
    assert app.begun == 1


@pytest.mark.parametrize(
    "more",
    [{"transfer-encoding": "chunked", "content-length": "4"}, {"host": "others.example"}],
    ids=["length", "host"],
)
@pytest.mark.anyio
async def test_a_service_refuses_an_ambiguous_head_whatever_server_passes_it_on(more: Mapping[str, str]) -> None:
    app, sent = asgi_app(Runtime(), limits=ServiceLimits()), list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"host", b"localhost"), *((name.encode(), value.encode()) for name, value in more.items())]
    path = "/v1/agents"
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": path, "raw_path": path.encode()}
    await app({**scope, "query_string": b"", "root_path": "", "scheme": "http", "headers": headers}, receive, send)
    assert sent[0]["status"] == 400
    assert (b"connection", b"close") in sent[0]["headers"]


@pytest.mark.real_time
@pytest.mark.anyio
async def test_the_next_request_does_not_wait_for_what_an_application_does_behind_its_answer() -> None:
    behind = anyio.Event()
    heard_: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
        heard_.append((await receive())["type"])
        await behind.wait()

    async with web_served(app) as address:
        assert statuses(await asked(address, GET + LAST)) == [b"200", b"200"]
        behind.set()
    assert heard_ == ["http.disconnect"] * 2


@pytest.mark.real_time
@pytest.mark.anyio
async def test_applications_that_fail_are_answered_for_and_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("what a caller has said")

    with caplog.at_level(logging.INFO, "repertory.app"):
        async with web_served(app) as address:
            answers = [await asked(address, GET) for _ in range(5)]
    assert [statuses(got) for got in answers] == [[b"500"]] * 5
    assert caplog.text.count("an application failed") == 1
    assert "what a caller has said" not in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.real_time
@pytest.mark.anyio
async def test_an_application_hears_that_a_client_goes_who_has_begun_another_request() -> None:
    begun, heard_ = anyio.Event(), list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        begun.set()
        heard_.append((await receive())["type"])

    async with web_served(app) as address:
        stream = await said(address, GET + b"G")
        await begun.wait()
        await stream.aclose()
    assert heard_ == ["http.disconnect"]


@pytest.mark.real_time
@pytest.mark.anyio
async def test_a_client_that_has_gone_at_once_has_no_address() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    address: tuple[str, int] = listening.getsockname()
    async with await SocketListener.from_socket(listening) as listener:
        stream = await anyio.connect_tcp(*address)
        accepted = await listener.accept()
        forget_unsent(stream.extra(SocketAttribute.raw_socket))
        await stream.aclose()
        async with accepted:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await accepted.receive()
            connection = WebConnection(WebServer(Sized(), WebLimits(), lambda _: None), accepted)
            assert connection.address(SocketAttribute.remote_address) is None


@pytest.mark.real_time
@pytest.mark.anyio
async def test_a_body_that_does_not_come_holds_up_no_end() -> None:
    app = Sized()
    async with web_served(app, grace_s=10 * PATIENCE_S) as address:
        stream = await said(address, POST + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n")
        assert statuses(await stream.receive()) == [b"100"]
        await stream.send(b"abc")
    assert statuses(await heard(stream)) == [b"503"]
    assert app.running == 0


# ------------------------------------------------------------------------------------------- clients that do not read


@pytest.mark.real_time
@pytest.mark.anyio
async def test_a_server_ends_whatever_a_client_does_not_read() -> None:
    app = Sized()
    stalled: list[SocketStream] = []
    async with web_served(app, grace_s=0.1) as address:
        stalled += [await said(address, STALLS), await said(address, STALLS * 100), await said(address, GET[:9])]
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(asked, address, LAST)
    assert app.running == 0
    assert app.begun == 5
    assert len(await heard(stalled[0])) < LARGE
    for stream in stalled:
        await stream.aclose()


@pytest.mark.real_time
@pytest.mark.anyio
async def test_an_application_that_hears_of_no_end_holds_up_none() -> None:
    begun = anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with anyio.CancelScope(shield=True):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            begun.set()
            await send({"type": "http.response.body", "body": b"x" * LARGE})

    async with AsyncExitStack() as stack, web_served(app, grace_s=0.1) as address:
        await stack.enter_async_context(await said(address, GET))
        await begun.wait()


@pytest.mark.real_time
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop", "trio"], indirect=True)
async def test_a_client_that_takes_nothing_is_let_go_and_the_place_of_its_request_is_free() -> None:
    app = Sized()
    async with web_served(app, limits=WebLimits(stalled_s=0.2)) as address:
        stalled = await said(address, STALLS)
        await app.ended.wait()
        assert app.running == 0
        assert len(await heard(stalled)) < LARGE


class _End(StapledObjectStream[bytes]):
    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await super().receive()


class Wire:
    """Two ends of a connection that holds nothing: whatever is sent waits until it is taken."""

    def __init__(self) -> None:
        to_client, self.answers = anyio.create_memory_object_stream[bytes]()
        self.requests, to_server = anyio.create_memory_object_stream[bytes](10)
        self.server: Any = _End(to_client, to_server)

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(self, *_: object) -> None:
        for stream in (self.answers, self.requests, self.server):
            await stream.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("every_s", [50.0, 70.0])
async def test_a_slow_client_has_its_answer_as_long_as_it_takes_something(every_s: float) -> None:
    size, got = 1_000_000, 0
    app = Sized()
    async with Wire() as wire, anyio.create_task_group() as group:
        server = WebServer(app, WebLimits(stalled_s=60.0), group.start_soon)
        group.start_soon(WebConnection(server, wire.server).run)
        await wire.requests.send(f"GET /{size} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await wire.answers.receive()
        try:
            while got < size:
                await anyio.sleep(every_s)
                got += len(await wire.answers.receive())
        except anyio.EndOfStream:
            pass
    assert (got == size) == (every_s < 60.0)
    assert app.running == 0


@pytest.mark.real_time
@pytest.mark.anyio
async def test_clients_for_whom_there_is_no_room_wait_until_another_one_goes() -> None:
    async with web_served(Sized(), limits=WebLimits(connections_max=2)) as (host, port):
        silent = [await anyio.connect_tcp(host, port) for _ in range(2)]
        async with AsyncExitStack() as stack:
            for each in silent:
                await stack.enter_async_context(each)
            waiting = await stack.enter_async_context(await anyio.connect_tcp(host, port))
            await waiting.send(GET + LAST)
            with anyio.move_on_after(0.2) as early:
                await waiting.receive()
            await silent[0].aclose()
            assert early.cancelled_caught
            assert statuses(await heard(waiting)) == [b"200"] * 2


@pytest.mark.parametrize("descriptors", [1, 64, 128, 1024, 65_536])
def test_clients_leave_files_to_the_process_that_serves_them(descriptors: int) -> None:
    assert 1 <= connections_max(descriptors) <= max(1, min(descriptors - 48, descriptors * 3 // 4))


@pytest.mark.real_time
@pytest.mark.anyio
async def test_a_runtime_drains_whatever_readers_of_its_pages_do_not_read(tmp_path: Path) -> None:
    runtime = Runtime(sessions=SQLiteSessions(tmp_path / "a.db"), drain_timeout_s=1)
    stalled: list[SocketStream] = []
    with anyio.fail_after(PATIENCE_S):
        async with runtime, anyio.create_task_group() as group:
            session = runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["x" * 1_000_000]))).session("a")
            await session.invoke("Say much.")
            at = await group.start(
                lambda *, task_status: runtime.serve_inspector("127.0.0.1:0", task_status=task_status)
            )
            address = ("127.0.0.1", int(at.strip("/").rpartition(":")[2]))
            page = b"GET /sessions/a?agent=helper HTTP/1.1\r\nHost: localhost\r\n\r\n"
            stalled += [await said(address, page * 1000) for _ in range(3)]
            assert statuses(await asked(address, page + LAST)) == [b"200", b"200"]
            await runtime.drain()
    for stream in stalled:
        await stream.aclose()


@pytest.mark.real_time
@pytest.mark.parametrize("options", [(), ("--trio",)], ids=["asyncio", "trio"])
def test_a_service_ends_as_it_should_whatever_strangers_do_not_read(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "repertory.toml").write_text(CONFIGURATION.replace("drain_timeout_s = 10", "drain_timeout_s = 1"))
    with serving(tmp_path, *options) as served, ExitStack() as stack:
        for said_ in (b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400, PREFACE, GET[:9]):
            stranger = stack.enter_context(socket.socket())
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stranger.connect(("127.0.0.1", served.port))
            stranger.settimeout(0.5)
            with suppress(TimeoutError):
                stranger.sendall(said_)
        assert served.say("ada", "hello").body["text"] == "done: hello"
        served.program.signal(signal.SIGTERM)
        assert served.program.exit_code() == 0
