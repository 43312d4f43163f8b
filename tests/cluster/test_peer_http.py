"""What `HttpPeers` does on the wire: statuses, bytes, connections that break, and bounds. Real sockets, no others."""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import anyio
import h11
import pytest
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from hypothesis import given, settings
from hypothesis import strategies as st

from repertory.backends.peer_ports import JsonLine, PeerLost, PeerRefused, PeerUnreachable
from repertory.cluster.wire.http import HttpPeers, PeerLimits
from repertory.cluster.wire.proof import PeerSecret, proved_by, proved_to
from repertory.errors import Invalid, TooLarge, Unavailable
from repertory.testing.cutting_relay import cutting_relay
from tests.cluster.certificates import PeerAuthority
from tests.cluster.wire_contract import PeerHandler, answer, served

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

WAIT_S = 30.0
HOST = "127.0.0.1:0"
SECRET = "a-secret-that-nobody-sees"


def wire_at(listen: str | None, **options: object) -> HttpPeers:
    """`HttpPeers` with a secret, unless the options say otherwise."""
    return HttpPeers(listen, **{"secret": SECRET, "entropy": os.urandom, **options})  # type: ignore[arg-type]


@asynccontextmanager
async def peer(handler: PeerHandler | None = None, **options: object) -> AsyncGenerator[str]:
    """The address of `HttpPeers` with these options, which answer until the block is left."""
    with anyio.fail_after(WAIT_S):
        async with served(wire_at(HOST, **options), handler or PeerHandler()) as address:
            yield address


@asynccontextmanager
async def caller(**options: object) -> AsyncGenerator[HttpPeers]:
    wire = wire_at(None, **options)
    try:
        yield wire
    finally:
        await wire.aclose()


async def connect(address: str) -> ByteStream:
    """A connection of a caller that has proved itself, and may say anything."""
    host, _, port = address.rpartition(":")
    return await proved_to(await anyio.connect_tcp(host, int(port)), PeerSecret(SECRET, os.urandom), address)


async def until_closed(stream: ByteStream) -> bytes:
    """Everything that comes until the other side closes."""
    data = b""
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            data += await stream.receive()
    return data


async def exchange(address: str, data: bytes) -> bytes:
    """What a server answers to these bytes, until it closes."""
    async with await connect(address) as stream:
        with suppress(anyio.BrokenResourceError):
            await stream.send(data)
        return await until_closed(stream)


def raw_request(path: str = "one", body: bytes = b"{}", method: str = "POST", *headers: str) -> bytes:
    lines = [f"{method} /_repertory/v1/{path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode() + body


@asynccontextmanager
async def raw_server(talk: Callable[[ByteStream, int], Awaitable[None]]) -> AsyncGenerator[str]:
    """A server that proves itself, and says anything; `talk` is given the number of the connection, which is closed
    behind it.
    """
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    address = f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
    numbers = iter(range(10**6))

    async def handle(stream: SocketStream) -> None:
        async with stream:
            await talk(await proved_by(stream, PeerSecret(SECRET, os.urandom), address), next(numbers))

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield address
        tasks.cancel_scope.cancel()


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
WHOLE = HEAD + b'8\r\n{"n":1}\n\r\n' + b'c\r\n{"alive":1}\n\r\n' + b'8\r\n{"n":2}\n\r\n' + b"0\r\n\r\n"


async def read_request(stream: ByteStream) -> None:
    data = b""
    while b"\r\n\r\n{}" not in data:
        data += await stream.receive()


# ----------------------------------------------------------------------------------------------------------- statuses


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (raw_request(), 200),
        (raw_request(method="GET"), 405),
        (raw_request(method="HEAD"), 405),
        (raw_request().replace(b"/_repertory/v1/", b"/"), 404),
        (raw_request(body=b"{"), 400),
        (raw_request(body=b"[]"), 400),
        (raw_request(body=b"\xff"), 400),
        (raw_request(body=b"[" * 100_000), 400),
        (b"nonsense\r\n\r\n", 400),
        (b"POST /_repertory/v1/one HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 20_000, 431),
        (b"POST /_repertory/v1/one HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n", 413),
        (b"POST /_repertory/v1/one HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n", 501),
    ],
)
async def test_every_request_gets_the_status_it_deserves(request_bytes: bytes, status: int) -> None:
    async with peer(limits=PeerLimits(body_max_bytes=200_000)) as address:
        said = await exchange(address, request_bytes)
        assert said.startswith(f"HTTP/1.1 {status} ".encode())


async def test_a_body_without_a_length_is_bounded_too() -> None:
    async with peer(limits=PeerLimits(body_max_bytes=1000)) as address:
        head = b"POST /_repertory/v1/one HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        assert b" 413 " in (await exchange(address, head + b"400\r\n" + b"x" * 1024 + b"\r\n"))


async def test_a_call_that_is_too_large_is_not_sent() -> None:
    handler = PeerHandler()
    async with peer(handler) as address, caller(limits=PeerLimits(body_max_bytes=100)) as wire:
        with pytest.raises(TooLarge):
            await answer(wire, address, "one", {"text": "x" * 100})
        assert not handler.entered


async def test_a_line_that_is_too_large_is_not_taken() -> None:
    async with peer() as address, caller(limits=PeerLimits(body_max_bytes=1000)) as wire:
        with pytest.raises(PeerLost, match="too large"):
            await answer(wire, address, "one" * 1000)


async def test_a_large_body_and_a_large_line_pass() -> None:
    async with peer() as address, caller() as wire:
        body: JsonLine = {"text": "x" * 8_000_000}
        assert await answer(wire, address, "one", body) == [{"path": "one", "body": body}]


async def test_a_request_that_does_not_arrive_in_time_is_refused() -> None:
    async with peer(limits=PeerLimits(request_s=0.2)) as address:
        async with await connect(address) as stream:
            await stream.send(raw_request()[:-1])
            assert b" 408 " in await until_closed(stream)
        async with await connect(address) as stream:
            assert await until_closed(stream) == b""


async def test_a_connection_that_is_kept_idle_is_closed_in_the_end() -> None:
    async with peer(limits=PeerLimits(idle_s=0.2)) as address, await connect(address) as stream:
        await stream.send(raw_request().replace(b"connection: close\r\n", b""))
        assert (await until_closed(stream)).endswith(b"0\r\n\r\n")


# ------------------------------------------------------------------------------------------------------------- secrets


@pytest.mark.parametrize("known", ["another-secret-of-others", SECRET[:-1], SECRET + "x"])
async def test_whoever_does_not_know_the_secret_is_refused(known: str) -> None:
    handler = PeerHandler()
    async with peer(handler) as address, caller(secret=known) as wire:
        for _ in range(2):
            with pytest.raises(PeerUnreachable, match="does not prove"):
                await answer(wire, address, "one", {"text": "x" * 100_000})
        assert not handler.entered


async def test_the_secret_is_shown_by_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with peer() as address, caller() as wire:
        assert await answer(wire, address, "one") == [{"path": "one", "body": {}}]
        with pytest.raises(PeerRefused) as refused:
            await answer(wire, address, "fail")
        with pytest.raises(PeerLost) as lost:
            await answer(wire, address, "fail/later")
        shown = [repr(wire), repr(refused.value), str(refused.value.body), repr(lost.value), repr(lost.value.__cause__)]
    with pytest.raises(Invalid) as wrong:
        wire_at(None, secret=f"{SECRET}\r\nx: y")
    assert "on entering" in caplog.text
    assert SECRET not in "\n".join([*shown, str(wrong.value), caplog.text])


@pytest.mark.parametrize("listen", [HOST, "localhost:0", "[::1]:0", "0.0.0.0:0", "192.0.2.1:80", "peer.example:80"])
async def test_tcp_needs_a_secret_or_tls_on_both_sides(listen: str, tmp_path: Path) -> None:
    for weak in (None, "fifteen-letters", "sixteen-letters\n"):
        with pytest.raises(Invalid, match="secret"):
            wire_at(listen, secret=weak)
    wire_at(listen)
    wire_at(listen, secret=None, tls=PeerAuthority(tmp_path).tls("peer"))
    async with caller(secret=None) as wire:
        with pytest.raises(Invalid, match="set secret, or tls"):
            await answer(wire, listen, "one")


async def test_over_tls_both_sides_need_a_certificate_of_the_authority(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("ours", "theirs")]
    for folder in folders:
        folder.mkdir()
    ours, theirs = map(PeerAuthority, folders)
    handler = PeerHandler()
    for secret in (None, SECRET):
        async with peer(handler, secret=secret, tls=ours.tls("server")) as address:
            async with caller(secret=secret, tls=ours.tls("client")) as wire:
                assert len(await answer(wire, address, "many")) > 1
            async with caller(secret=secret, tls=theirs.tls("client")) as wire:
                with pytest.raises((PeerUnreachable, PeerLost)):
                    await answer(wire, address, "one")
            async with caller() as wire:
                with pytest.raises(PeerUnreachable):
                    await answer(wire, address, "one")
    async with peer(handler) as address, caller(tls=ours.tls("client")) as wire:
        with pytest.raises(PeerUnreachable):
            await answer(wire, address, "one")
    assert handler.entered == ["many"] * 2
    with pytest.raises(Invalid, match="PEM"):
        wire_at(None, tls=type(ours.tls("x"))(certificate="none", key="none", ca="none"))


# --------------------------------------------------------------------------------------------------- broken connections


async def test_an_answer_that_is_cut_at_any_byte_is_lost() -> None:
    async def talk(stream: SocketStream, number: int) -> None:
        await read_request(stream)
        await stream.send(WHOLE[:number])

    with anyio.fail_after(WAIT_S):
        async with raw_server(talk) as address, caller() as wire:
            for length in range(len(WHOLE)):
                told: list[JsonLine] = []
                with pytest.raises(PeerLost):
                    async with wire.call(address, "one", {}) as lines:
                        async for line in lines:
                            told.append(line)
                assert told == [{"n": number} for number in (1, 2) if WHOLE.find(b'{"n":%d}\n' % number) + 7 < length]
            assert await answer(wire, address, "one") == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"n":1}\n{',
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n[]\n",
        b"HTTP/1.1 502 Bad\r\ncontent-length: 6\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 20_000,
        b"SSH-2.0-OpenSSH_9.2\r\n",
        HEAD + b"zz\r\n",
    ],
)
async def test_an_answer_that_is_none_of_a_peer_is_lost(said: bytes) -> None:
    async def talk(stream: SocketStream, _: int) -> None:
        await read_request(stream)
        await stream.send(said)
        await until_closed(stream)

    with anyio.fail_after(WAIT_S):
        async with raw_server(talk) as address, caller(alive_s=0.2) as wire:
            with pytest.raises(PeerLost):
                await answer(wire, address, "one")


@pytest.mark.parametrize("said", [b"", HEAD + b'8\r\n{"n":1}\n\r\n'])
async def test_a_peer_that_falls_silent_is_lost(said: bytes) -> None:
    async def talk(stream: SocketStream, _: int) -> None:
        await read_request(stream)
        await stream.send(said)
        await until_closed(stream)

    with anyio.fail_after(WAIT_S):
        async with raw_server(talk) as address, caller(alive_s=0.1) as wire:
            with pytest.raises(PeerLost, match="nothing was heard"):
                await answer(wire, address, "one")


async def test_a_peer_that_takes_no_request_is_lost() -> None:
    async def talk(stream: SocketStream, _: int) -> None:
        await anyio.sleep_forever()

    with anyio.fail_after(WAIT_S):
        async with raw_server(talk) as address, caller(alive_s=0.1) as wire:
            with pytest.raises(PeerLost, match=r"could not be sent|nothing was heard"):
                await answer(wire, address, "one", {"text": "x" * 20_000_000})


async def test_nobody_at_an_address_is_unreachable(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with caller(limits=PeerLimits(connect_s=0.2)) as wire:
        for address in (f"127.0.0.1:{port}", f"unix:{tmp_path}/none", "no-such-host.invalid:1", f"{'a' * 70}.x:1"):
            with pytest.raises(PeerUnreachable):
                await answer(wire, address, "one")


async def test_a_kept_connection_that_the_peer_has_closed_is_not_used_again() -> None:
    served_by: list[int] = []

    async def talk(stream: SocketStream, number: int) -> None:
        await read_request(stream)
        served_by.append(number)
        await stream.send(WHOLE)  # It is closed behind this.

    with anyio.fail_after(WAIT_S):
        async with raw_server(talk) as address, caller() as wire:
            for _ in range(50):
                with suppress(PeerLost):  # The end may come after the next request was sent.
                    assert len(await answer(wire, address, "one")) == 2
            served_by.clear()
            for _ in range(5):
                await anyio.sleep(0.05)
                assert len(await answer(wire, address, "one")) == 2
            assert len(set(served_by)) == 5


async def test_a_thousand_calls_of_one_caller_share_few_connections() -> None:
    handler = PeerHandler()
    wire = wire_at(HOST)
    with anyio.fail_after(WAIT_S):
        async with served(wire, handler) as address, caller() as client:
            for _ in range(500):
                assert len(await answer(client, address, "one")) == 1
            assert _connections_of(address) == 1
            async with anyio.create_task_group() as tasks:
                for _ in range(500):
                    tasks.start_soon(answer, client, address, "one")
            assert 1 <= _connections_of(address) <= PeerLimits().calls_max
            await client.aclose()
            assert len(handler.left) == 1000


async def test_a_caller_that_leaves_with_the_last_line_leaves_its_connection_for_the_next_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with anyio.fail_after(WAIT_S):
        async with cutting_relay(port) as relay, caller() as wire:
            called = wire_at(f"127.0.0.1:{port}", advertise=f"127.0.0.1:{relay.port}")
            async with served(called, PeerHandler()) as address:
                for _ in range(100):
                    async with wire.call(address, "together", {}) as lines:
                        async for line in lines:
                            if line == {"number": 3}:
                                break
                assert relay.connections == 1


def _connections_of(address: str) -> int:
    """Open sockets of this process whose other end is there."""
    port = int(address.rpartition(":")[2])
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                with socket.socket(fileno=os.dup(int(name))) as found:
                    count += found.family == socket.AF_INET and found.getpeername()[1] == port
    return count


async def test_no_more_calls_of_one_address_are_under_way_than_allowed() -> None:
    handler = PeerHandler()
    async with peer(handler) as address, caller(limits=PeerLimits(calls_max=3)) as wire:
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(answer, wire, address, "enter/late")
            await handler.until(lambda: len(handler.entered) == 3)
            await anyio.sleep(0.1)
            assert len(handler.entered) == 3
            handler.go_on.set()
        assert len(handler.left) == 10


# -------------------------------------------------------------------------------------------------------------- servers


async def test_connections_have_a_bound_and_idle_ones_make_room() -> None:
    handler = PeerHandler()
    async with peer(handler, limits=PeerLimits(connections_max=4)) as address:
        for _ in range(20):  # Each leaves a connection behind that is kept.
            async with caller() as wire:
                keeper = wire_at(None)
                assert await answer(keeper, address, "one") == await answer(wire, address, "one")
                await keeper.aclose()
        async with caller() as busy, caller() as late, anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(answer, busy, address, "late")
            await handler.until(lambda: handler.entered.count("late") == 4)
            tasks.start_soon(answer, late, address, "step")
            await anyio.sleep(0.1)
            assert "step" not in handler.entered
            handler.go_on.set()


async def test_idle_connections_are_closed_for_new_ones_at_the_bound() -> None:
    async with peer(limits=PeerLimits(connections_max=2)) as address:
        callers = [wire_at(None) for _ in range(10)]
        for _ in range(3):
            for wire in callers:
                assert len(await answer(wire, address, "one")) == 1
        for wire in callers:
            await wire.aclose()


async def test_a_slow_reader_slows_the_handler_down() -> None:
    made = 0

    @asynccontextmanager
    async def handle(path: str, body: JsonLine) -> AsyncGenerator[AsyncIterator[JsonLine]]:
        async def lines() -> AsyncGenerator[JsonLine]:
            nonlocal made
            for _ in range(500):
                made += 1
                yield {"text": "x" * 100_000}

        async with aclosing(lines()) as found:
            yield found

    with anyio.fail_after(WAIT_S):
        async with served(wire_at(HOST), handle) as address, caller() as wire:
            async with wire.call(address, "one", {}) as lines:
                await anext(lines)
                await anyio.sleep(0.3)
                assert made < 250
                rest = [line async for line in lines]
            assert len(rest) == 499


async def test_a_reader_that_takes_nothing_for_too_long_has_gone() -> None:
    handler = PeerHandler()

    @asynccontextmanager
    async def handle(path: str, body: JsonLine) -> AsyncGenerator[AsyncIterator[JsonLine]]:
        async def lines() -> AsyncGenerator[JsonLine]:
            while True:
                yield {"text": "x" * 100_000}

        async with handler("one", body), aclosing(lines()) as found:
            yield found

    with anyio.fail_after(WAIT_S):
        wire = wire_at(HOST, limits=PeerLimits(stalled_s=0.2))
        async with served(wire, handle) as address, await connect(address) as stream:
            await stream.send(raw_request())
            await handler.until(lambda: handler.left == ["one"])


async def test_a_caller_that_only_hangs_up_is_noticed_while_nothing_is_written() -> None:
    handler = PeerHandler()
    async with peer(handler, alive_s=1000.0) as address:
        for path in ("enter/late", "hang", "late"):
            async with await connect(address) as stream:
                await stream.send(raw_request(path))
                await handler.until(lambda path=path: handler.entered[-1:] == [path])  # type: ignore[misc]
            await handler.until(lambda: handler.left == handler.entered)


async def test_signs_of_life_are_lines_or_a_status_of_their_own() -> None:
    handler = PeerHandler()
    async with peer(handler, alive_s=0.05) as address:
        for path, sign in (("enter/late", b"HTTP/1.1 102 "), ("late", b'c\r\n{"alive":1}\n\r\n')):
            handler.go_on = anyio.Event()
            async with await connect(address) as stream:
                await stream.send(raw_request(path))
                said = b""
                while said.count(sign) < 3:
                    said += await stream.receive()
                handler.go_on.set()
                assert (await until_closed(stream)).endswith(b"0\r\n\r\n")


async def test_requests_that_come_all_at_once_are_answered_in_their_order() -> None:
    async with peer() as address:
        kept = [raw_request(f"r{number}").replace(b"connection: close\r\n", b"") for number in range(20)]
        said = await exchange(address, b"".join([*kept, raw_request("last")]))
        places = [said.index(f'"path":"{name}"'.encode()) for name in (*(f"r{n}" for n in range(20)), "last")]
        assert places == sorted(places)


async def test_old_http_is_answered_too() -> None:
    async with peer() as address:
        said = await exchange(address, raw_request().replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert said.startswith(b"HTTP/1.1 200")
        assert said.endswith(b'{"path":"one","body":{}}\n')


async def test_a_refusal_that_cannot_be_written_is_a_failure() -> None:
    @asynccontextmanager
    async def handle(path: str, body: JsonLine) -> AsyncGenerator[AsyncIterator[JsonLine]]:
        if path == "status":
            raise PeerRefused(204, {})
        if path == "body":
            raise PeerRefused(409, {"what": object()})  # type: ignore[dict-item]
        yield _endless({"what": object()})

    with anyio.fail_after(WAIT_S):
        async with served(wire_at(HOST), handle) as address, caller() as wire:
            for path in ("status", "body", "line"):
                with pytest.raises(PeerRefused) as refused:
                    await answer(wire, address, path)
                assert refused.value.status == 500


async def _endless(line: object) -> AsyncIterator[JsonLine]:
    yield line  # type: ignore[misc]


_PART = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            raw_request(),
            raw_request("many"),
            raw_request("fail/later"),
            raw_request(body=b"[]"),
            b"POST /_repertory/v1/one HTTP/1.1\r\n",
            b"host: x\r\n",
            b"transfer-encoding: chunked\r\n",
            b"content-length: 5\r\n",
            b"expect: 100-continue\r\n",
            b"upgrade: websocket\r\nconnection: upgrade\r\n",
            b"\r\n",
            b"2\r\n{}\r\n0\r\n\r\n",
            b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
        ]
    ),
)


@settings(max_examples=25)
@given(st.lists(st.lists(_PART, max_size=6).map(b"".join), min_size=8, max_size=8))
async def test_garbage_never_ends_a_server(garbage: list[bytes]) -> None:
    async with peer() as address, caller() as wire:
        for data in garbage:
            async with await connect(address) as stream:
                with suppress(anyio.BrokenResourceError):
                    await stream.send(data)
                    await stream.send_eof()
                await until_closed(stream)
        assert await answer(wire, address, "one") == [{"path": "one", "body": {}}]


async def test_the_end_of_serving_closes_the_listener_before_slow_handlers_have_left() -> None:
    begun, entered, may_leave = anyio.Event(), anyio.Event(), anyio.Event()

    @asynccontextmanager
    async def handle(path: str, body: JsonLine) -> AsyncGenerator[AsyncIterator[JsonLine]]:
        try:
            entered.set()
            await anyio.sleep_forever()
            yield _endless({})
        finally:
            with anyio.CancelScope(shield=True):
                await may_leave.wait()

    addresses: list[str] = []

    async def listening(address: str) -> None:
        addresses.append(address)
        begun.set()

    async def call() -> None:
        with pytest.raises(PeerLost):
            await answer(wire, addresses[0], "one")

    wire = wire_at(HOST)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as calls, anyio.create_task_group() as serving:
            serving.start_soon(wire.serve, handle, listening)
            await begun.wait()
            calls.start_soon(call)
            await entered.wait()
            serving.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                async with caller() as late:
                    await _until_unreachable(late, addresses[0])
                may_leave.set()
    await wire.aclose()


async def _until_unreachable(wire: HttpPeers, address: str) -> None:
    while True:
        try:
            with anyio.fail_after(0.2):
                await answer(wire, address, "one")
        except PeerUnreachable:
            return
        except (TimeoutError, PeerLost):
            pass


# ------------------------------------------------------------------------------------------------------------ addresses


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        ":1",
        "host:x",
        "host:70000",
        "::1:80",
        "[::1]",
        "[::1",
        "[host]:1",
        "unix:",
        "unix:a",
        "a/b:1",
    ],
)
async def test_what_is_no_address_is_invalid(address: str) -> None:
    with pytest.raises(Invalid):
        wire_at(address)
    async with caller() as wire:
        with pytest.raises(Invalid):
            await answer(wire, address, "one")


async def test_any_free_port_is_told_and_a_taken_one_is_unavailable() -> None:
    async with peer() as address:
        assert address.startswith("127.0.0.1:")
        assert not address.endswith(":0")
        with pytest.raises(Unavailable):
            await wire_at(address).serve(PeerHandler(), _not_reached)


async def _not_reached(address: str) -> None:
    raise AssertionError(address)


async def test_an_address_of_another_machine_is_invalid() -> None:
    with anyio.fail_after(WAIT_S):
        for listen in ("192.0.2.1:0", "no-such-host.invalid:0"):
            with pytest.raises(Invalid, match="cannot listen"):
                await wire_at(listen).serve(PeerHandler(), _not_reached)


@pytest.mark.parametrize(
    ("advertise", "told"),
    [("peer.example", "peer.example:PORT"), ("10.0.0.7:80", "10.0.0.7:80"), ("[2001:db8::1]", "[2001:db8::1]:PORT")],
)
async def test_what_is_advertised_is_told(advertise: str, told: str) -> None:
    async with peer(advertise=advertise) as address:
        assert address == told.replace("PORT", address.rpartition(":")[2])
        assert not address.endswith(":0")


async def test_on_all_interfaces_the_address_of_the_machine_is_told() -> None:
    """Or it is said what to set, where the name of the machine leads nowhere."""
    told: list[str] = []

    async def listening(address: str) -> None:
        told.append(address)
        raise Unavailable("that is enough")

    with anyio.fail_after(WAIT_S), pytest.raises((Unavailable, Invalid)) as ended:
        await wire_at("0.0.0.0:0").serve(PeerHandler(), listening)
    if told:
        assert not told[0].startswith(("0.", "127."))
        assert not told[0].endswith(":0")
    else:
        assert "advertise" in str(ended.value)


@pytest.mark.parametrize("advertise", ["unix:/x", "0.0.0.0", "[::]:1", ""])
async def test_nonsense_is_not_advertised(advertise: str) -> None:
    with pytest.raises(Invalid):
        wire_at(HOST, advertise=advertise)
    with pytest.raises(Invalid):
        wire_at(None, advertise="peer.example")


async def test_a_unix_socket_is_for_its_user_alone_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "made" / "peer"
    with anyio.fail_after(WAIT_S):
        async with served(wire_at(f"unix:{path}"), PeerHandler()) as address, caller() as wire:
            assert address == f"unix:{path}"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert await answer(wire, address, "one") == [{"path": "one", "body": {}}]
            with pytest.raises(Unavailable):
                await wire_at(address).serve(PeerHandler(), _not_reached)
            assert await answer(wire, address, "one") == [{"path": "one", "body": {}}]
    assert not list(path.parent.iterdir())


async def test_the_unix_socket_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "peer"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    with anyio.fail_after(WAIT_S):
        async with served(wire_at(f"unix:{path}"), PeerHandler()) as address, caller() as wire:
            assert await answer(wire, address, "one") == [{"path": "one", "body": {}}]
            path.unlink()
            path.write_text("another program's")
    assert path.read_text() == "another program's"


async def test_a_unix_socket_that_cannot_be_made_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    shared.chmod(0o755)
    for path in (tmp_path / "file", shared / "peer", tmp_path / "file" / "peer"):
        with pytest.raises(Invalid):
            await wire_at(f"unix:{path}").serve(PeerHandler(), _not_reached)
    with pytest.raises(Invalid, match="too long"):
        wire_at(f"unix:/{'x' * 107}")
    assert (tmp_path / "file").read_text() == "kept"


async def test_the_bytes_of_a_call_are_those_of_a_plain_http_client() -> None:
    """Whoever speaks HTTP can call: what the server says, h11 takes as one answer."""
    async with peer() as address:
        said = await exchange(address, raw_request())
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("connection", "close")]))
        client.send(h11.EndOfMessage())
        client.receive_data(said)
        head = client.next_event()
        assert isinstance(head, h11.Response)
        assert dict(head.headers)[b"content-type"] == b"application/x-ndjson"
