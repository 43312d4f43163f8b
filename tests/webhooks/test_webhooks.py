"""Webhooks, checked by the library that the Standard Webhooks project publishes, which knows nothing of us."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import anyio.abc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from repertory import AgentSpec, DeliveryEvent, Runtime, ScriptedModel, Sessions, SQLiteSessions, webhook_secret
from repertory.core.deliveries import TryFailed
from repertory.errors import Invalid
from repertory.toolbox.web_requests import is_public
from repertory.webhooks.decisions import read_secrets, signed_headers, verdict
from repertory.webhooks.sending import sender

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""The example of the specification's own tests."""


class Received:
    """A server on loopback that takes requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.answer: Callable[[int], bytes] = lambda number: b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"
        self.url = ""
        self.wanted, self.enough = 6, anyio.Event()
        self.holds = False
        """True to leave the connection open behind the answer."""

    async def handle(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            data = b""
            while b"\r\n\r\n" not in data:
                data += await stream.receive()
            head, _, body = data.partition(b"\r\n\r\n")
            headers = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(":") for line in head.decode().split("\r\n")[1:])
            }
            while len(body) < int(headers["content-length"]):
                body += await stream.receive()
            self.requests.append((headers, body))
            if len(self.requests) == self.wanted:
                self.enough.set()
            await stream.send(self.answer(len(self.requests)))
            if self.holds:
                await anyio.sleep_forever()


@asynccontextmanager
async def server() -> AsyncGenerator[Received]:
    received = Received()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    received.url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/hook"
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, received.handle)
        yield received
        group.cancel_scope.cancel()


def event(**data: Any) -> DeliveryEvent:
    return DeliveryEvent(id="evt_1", type="answer", at=1e9, session_id="s", agent="clerk", data=data)


def status(line: str, *headers: str) -> Callable[[int], bytes]:
    text = "\r\n".join([f"HTTP/1.1 {line}", "Content-Length: 0", *headers, "", ""])
    return lambda number: text.encode()


Sent = Callable[[DeliveryEvent], Awaitable[TryFailed | None]]


@given(st.text(min_size=1, max_size=40, alphabet="abcdef_0123"), st.binary(min_size=24, max_size=64), st.text())
def test_the_published_library_accepts_our_signature_and_no_changed_body(name: str, key: bytes, text: str) -> None:
    import time

    body = json.dumps({"text": text}).encode()
    headers = signed_headers(name, time.time(), body, [b"x" * 24, key])
    known = Webhook(key)
    assert known.verify(body, headers) == {"text": text}
    with pytest.raises(WebhookVerificationError):
        known.verify(body + b" ", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(b"y" * 24).verify(body, headers)


async def test_a_receiver_verifies_what_it_is_sent() -> None:
    async with server() as received:
        send: Sent = sender(received.url, [webhook_secret(), SECRET], 10, public=False)
        assert await send(event(text="h\u00e9llo \ud800", picture=b"\x00\xff")) is None
    ((headers, body),) = received.requests
    found = Webhook(SECRET).verify(body, headers)
    assert found["type"] == "answer"
    assert found["timestamp"] == "2001-09-09T01:46:40Z"
    assert found["data"] == {"text": "h\u00e9llo ?", "picture": {"__bytes_encoded__": True, "data": "AP8="}}
    assert (headers["webhook-id"], headers["content-type"]) == ("evt_1", "application/json")


@pytest.mark.parametrize(
    ("line", "more", "failed"),
    [
        ("200 OK", (), None),
        ("302 Found", ("Location: http://127.0.0.1:1/",), TryFailed(error="HTTP 302")),
        ("308 Permanent Redirect", ("Location: http://127.0.0.1:1/",), TryFailed(error="HTTP 308")),
        (
            "429 Far Too Many",
            ("Retry-After: 99999999999999",),
            TryFailed(error="HTTP 429", retry_after_s=9_999_999_999.0),
        ),
        ("503 Minus", ("Retry-After: -5",), TryFailed(error="HTTP 503")),
        ("503 Endless", ("Retry-After: 1e999",), TryFailed(error="HTTP 503")),
        ("400 Bad Request", (), TryFailed(error="HTTP 400")),
        ("101 Switching Protocols", (), TryFailed(error="HTTP 101")),
        ("304 Not Modified", (), TryFailed(error="HTTP 304")),
        ("307 Temporary Redirect", ("Location: /hook",), TryFailed(error="HTTP 307")),
        ("429 Space Around", ("Retry-After:  120 ",), TryFailed(error="HTTP 429", retry_after_s=120.0)),
        ("410 Gone", (), TryFailed(error="HTTP 410", final=True)),
        ("429 Too Many Requests", ("Retry-After: 120",), TryFailed(error="HTTP 429", retry_after_s=120.0)),
        ("503 Service Unavailable", ("Retry-After: soon",), TryFailed(error="HTTP 503")),
    ],
    ids=lambda value: str(value)[:12],
)
async def test_an_answer_says_whether_the_event_has_come(line: str, more: tuple[str, ...], failed: object) -> None:
    async with server() as received:
        received.answer = status(line, *more)
        assert await cast("Sent", sender(received.url, SECRET, 10, public=False))(event()) == failed
    assert len(received.requests) == 1


def test_a_receiver_may_say_until_when_it_wants_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    # The last form has no zone, and means GMT as the others do (RFC 9110, 5.6.7).
    for value in ("Sun, 09 Sep 2001 01:47:40 GMT", "Sunday, 09-Sep-01 01:47:40 GMT", "Sun Sep  9 01:47:40 2001"):
        after = verdict(503, {"retry-after": value}, 1e9)
        assert after == TryFailed(error="HTTP 503", retry_after_s=60.0)
    monkeypatch.undo()
    time.tzset()


async def test_a_receiver_that_never_ends_its_answer_holds_nothing_up() -> None:
    async with server() as received:
        received.answer = lambda number: b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 100
        received.holds = True
        assert await cast("Sent", sender(received.url, SECRET, 5, public=False))(event()) is None


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 300000\r\n\r\n" + b"x" * 300_000,
        b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nxxxxx",
        b"Transfer-Encoding: chunked\r\n\r\nnonsense",
    ],
    ids=["large", "no gzip", "no chunks"],
)
async def test_an_event_that_was_taken_has_come_whatever_stands_in_the_answer(body: bytes) -> None:
    async with server() as received:
        received.answer = lambda number: b"HTTP/1.1 200 OK\r\n" + body
        assert await cast("Sent", sender(received.url, SECRET, 5, public=False))(event()) is None


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\n\r\nok",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 3 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 201 Created\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"5\r\nhello\r\n" * 10,
    ],
    ids=["HTTP 1.0", "continue", "hints", "processing", "chunks without an end"],
)
async def test_the_last_status_of_an_answer_counts(answer: bytes) -> None:
    async with server() as received:
        received.answer, received.holds = (lambda number: answer), True
        assert await cast("Sent", sender(received.url, SECRET, 5, public=False))(event()) is None
    assert len(received.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"hello",
        b"HTTP/1.1 099 X\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
    ],
    ids=["nothing", "no head", "no status", "many fields", "a long field", "only hints"],
)
async def test_what_is_no_answer_is_a_failed_try(answer: bytes) -> None:
    async with server() as received:
        received.answer = lambda number: answer
        failed = await cast("Sent", sender(received.url, SECRET, 5, public=False))(event())
    assert failed is not None
    assert (failed.final, failed.retry_after_s) == (False, None)


@pytest.mark.parametrize(
    "address",
    ["/a b", "/b\u00fccher", "/\r\nX: y", "user:pass@", ":99999/", ":x/"],
    ids=["space", "umlaut", "lines", "password", "port", "no port"],
)
def test_an_address_that_no_request_could_be_made_to_is_refused_at_once(address: str) -> None:
    url = f"https://{address}example.org/hook" if "@" in address else f"https://example.org{address}"
    with pytest.raises(Invalid) as refused:
        sender(url, SECRET, 5, public=False)
    assert "pass@" not in str(refused.value)


async def test_a_try_that_failed_does_not_tell_the_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/hook/swordfish?key=swordfish"
        failed = await cast("Sent", sender(url, SECRET, 5, public=False))(event())
    assert failed is not None
    assert "refused" in failed.error
    assert "swordfish" not in failed.error


async def test_a_receiver_that_speaks_no_tls_is_a_failed_try() -> None:
    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, handle)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        failed = await cast("Sent", sender(f"https://127.0.0.1:{port}/", SECRET, 5, public=False))(event())
        group.cancel_scope.cancel()
    assert failed is not None
    assert not failed.final


async def test_a_receiver_whose_head_never_ends_is_a_failed_try() -> None:
    async with server() as received:
        received.answer = lambda number: b"HTTP/1.1 200 OK\r\nX-Slow: "
        received.holds = True
        failed = await cast("Sent", sender(received.url, SECRET, 0.5, public=False))(event())
    assert failed is not None


async def test_a_receiver_that_is_not_there_is_a_failed_try() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        failed = await cast("Sent", sender(url, SECRET, 5, public=False))(event())
    assert failed is not None
    assert not failed.final


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]", "2130706433"])
async def test_an_address_that_a_caller_names_leads_to_no_inner_network(host: str) -> None:
    async with server() as received:
        port = received.url.rpartition(":")[2].partition("/")[0]
        failed = await cast("Sent", sender(f"https://{host}:{port}/hook", SECRET, 5, public=True))(event())
        assert failed is not None
    assert received.requests == []


@pytest.mark.parametrize(
    "host",
    [
        *(
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *("::", "::1", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:10.0.0.1", "2002:a00:1::", "64:ff9b::a00:1"),
    ],
)
def test_addresses_of_inner_networks_are_told_from_others(host: str) -> None:
    assert not is_public(host)


@pytest.mark.parametrize("host", ["1.1.1.1", "2606:4700:4700::1111", "64:ff9b::101:101"])
def test_addresses_that_the_whole_internet_reaches_are_public(host: str) -> None:
    assert is_public(host)


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_!!!!", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAA", [], [SECRET] * 5, 5, None]
)
def test_what_is_no_secret_is_refused_without_being_told(secret: object) -> None:
    with pytest.raises(Invalid) as refused:
        read_secrets(secret)
    assert "AAAA" not in str(refused.value)


async def test_answers_of_a_runtime_reach_a_server_that_fails_half_the_time(tmp_path: Any) -> None:
    secret = webhook_secret()
    place = SQLiteSessions(tmp_path / "a.db")
    async with server() as received:
        received.answer = lambda number: status("500 Oh" if number % 2 else "204 No Content")(number)
        async with Runtime(sessions=place) as runtime:
            runtime.deliver(received.url, on=["answer"], secret=secret, retry_s=[0.05])
            session = runtime.agent(AgentSpec(name="clerk", model=ScriptedModel(["a", "b", "c"]))).session("s")
            for _ in range(3):
                await session.invoke("hi")
            with anyio.fail_after(30):
                await received.enough.wait()
        async with Sessions(place) as sessions:
            assert await sessions.deliveries("s") == []
    told = [Webhook(secret).verify(body, headers)["data"]["text"] for headers, body in received.requests]
    assert told == ["a", "a", "b", "b", "c", "c"]
    ids = [headers["webhook-id"] for headers, _ in received.requests]
    assert len({*ids}) == 3
    assert ids[::2] == ids[1::2]
