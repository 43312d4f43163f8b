"""Whoever does not know the secret of a cluster learns nothing of it, and runs nothing. Real sockets, hostile peers."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from repertory.backends.peer_ports import JsonLine, PeerLost, PeerUnreachable
from repertory.cluster.wire.addresses import peer_address
from repertory.cluster.wire.http import HttpPeers, PeerLimits
from repertory.cluster.wire.proof import FRAME_MAX_BYTES, MAGIC, NONCE_BYTES, PeerSecret, proved_by, proved_to
from tests.cluster.test_peer_http import SECRET, caller, connect, peer, raw_request, until_closed, wire_at
from tests.cluster.wire_contract import PeerHandler, answer, served

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

WAIT_S = 30.0
PRIVATE: JsonLine = {"session": "of-a-tenant", "prompt": "nobody else reads this"}
FRAME_HEAD_BYTES = 36
LOSSES_OF_A_BUSY_MACHINE = 5

Talk = Callable[[SocketStream], Awaitable[None]]


@asynccontextmanager
async def stranger(talk: Talk) -> AsyncGenerator[str]:
    """The address of somebody who listens, and knows no secret."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

    async def serve(stream: SocketStream) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with stream:
                await talk(stream)

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        tasks.cancel_scope.cancel()


async def tcp(address: str) -> SocketStream:
    host, _, port = address.rpartition(":")
    return await anyio.connect_tcp(host, int(port))


async def heard(address: str, *said: bytes) -> bytes:
    """What a peer says to a stranger who says all this."""
    async with await tcp(address) as stream:
        with suppress(anyio.BrokenResourceError, OSError):
            for data in said:
                await stream.send(data)
            await stream.send_eof()
        return await until_closed(stream)


def piped(there: str, change: Callable[[bytes, int], bytes]) -> Talk:
    """A relay to that address. `change` is given all that comes, and 0 for what the caller says, 1 for the other."""

    async def talk(stream: SocketStream) -> None:
        async def pass_on(source: SocketStream, target: SocketStream, side: int) -> None:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while True:
                    await target.send(change(await source.receive(), side))
            tasks.cancel_scope.cancel()

        async with await tcp(there) as server, anyio.create_task_group() as tasks:
            tasks.start_soon(pass_on, server, stream, 1)
            await pass_on(stream, server, 0)

    return talk


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


async def test_a_page_in_a_browser_reads_and_runs_nothing() -> None:
    handler = PeerHandler()
    page = raw_request("call", b"{}", "POST", "origin: http://evil.example", "content-type: text/plain")
    async with peer(handler) as address, caller() as wire:
        for said in (page, page.replace(b"POST", b"GET"), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + page):
            assert await heard(address, said) == b""
        assert handler.entered == []
        assert await answer(wire, address, "one") == [{"path": "one", "body": {}}]


async def test_a_stranger_who_connects_is_told_random_bytes_and_nothing_that_the_secret_went_into() -> None:
    handler = PeerHandler()
    async with peer(handler) as address:
        ours = bytes(NONCE_BYTES)
        answers = {await heard(address, MAGIC + ours, *more) for more in ((), (bytes(FRAME_HEAD_BYTES),), (b"x" * 99,))}
        assert {len(each) for each in answers} == {NONCE_BYTES}
        assert len(answers) == 3
    assert handler.entered == []


async def test_who_listens_at_a_remembered_address_gets_nothing_that_it_could_use() -> None:
    """It records, answers as a peer would begin, and takes what it has got to the peer that lives."""
    records: list[bytes] = []
    handler = PeerHandler()

    async def talk(stream: SocketStream) -> None:
        said = await stream.receive()
        await stream.send(os.urandom(NONCE_BYTES))
        said += await stream.receive()
        await stream.send(said[-FRAME_HEAD_BYTES:])  # Its own proof, sent back.
        records.append(said + await until_closed(stream))

    async with peer(handler) as alive, stranger(talk) as taken, caller() as wire:
        for _ in range(3):
            with pytest.raises(PeerUnreachable, match="does not prove"):
                await answer(wire, taken, "call", PRIVATE)
        for record in records:
            assert len(record) == len(MAGIC) + NONCE_BYTES + FRAME_HEAD_BYTES
            assert not any(text in record for text in (SECRET.encode(), b"tenant", b"call", b"nobody"))
            assert len(await heard(alive, record)) == NONCE_BYTES
        assert len({record[len(MAGIC) :] for record in records}) == 3
    assert handler.entered == []


async def test_a_proof_that_somebody_passes_on_from_another_address_is_none() -> None:
    handler = PeerHandler()
    async with peer(handler) as alive, stranger(piped(alive, lambda data, _: data)) as taken, caller() as wire:
        with pytest.raises(PeerUnreachable, match="does not prove"):
            await answer(wire, taken, "call", PRIVATE)
        assert handler.entered == []
        assert await answer(wire, alive, "one") == [{"path": "one", "body": {}}]


async def test_a_stranger_on_the_way_changes_nothing() -> None:
    """One bit at a time of all that both sides say: the call comes through whole, or is lost."""
    handler, port = PeerHandler(), free_port()
    at, passed, flips = [0, 0], [0, 0], 0

    def flipped(data: bytes, side: int) -> bytes:
        nonlocal flips
        begin, passed[side] = passed[side], passed[side] + len(data)
        if side != at[0] or not begin <= at[1] < passed[side]:
            return data
        changed = bytearray(data)
        changed[at[1] - begin] ^= 1
        flips += 1
        return bytes(changed)

    with anyio.fail_after(WAIT_S):
        async with stranger(piped(f"127.0.0.1:{port}", flipped)) as way:
            there = wire_at(f"127.0.0.1:{port}", advertise=way, alive_s=0.05, limits=PeerLimits(proof_s=0.1))
            async with served(there, handler):
                at[1] = 1 << 30
                async with caller() as wire:
                    whole = await answer(wire, way, "one", PRIVATE)
                for at[0], at[1] in [(side, place) for side in (0, 1) for place in range(0, passed[side], 23)]:
                    found: object = None
                    for _ in range(LOSSES_OF_A_BUSY_MACHINE):  # Nobody waits for long here, also for an honest peer.
                        passed[:], flips, before = [0, 0], 0, len(handler.entered)
                        async with caller(alive_s=0.05) as wire:
                            with suppress(PeerLost, PeerUnreachable):
                                found = await answer(wire, way, "one", PRIVATE)
                        if flips or found is not None:
                            break
                    assert found == (None if flips else whole)
                    may_run = not flips or (at[0] == 1 and at[1] >= NONCE_BYTES + FRAME_HEAD_BYTES)
                    assert before + (not flips) <= len(handler.entered) <= before + may_run


async def test_frames_are_taken_once_and_in_their_order() -> None:
    """Also by somebody who has recorded both sides: the whole of a conversation, said again, is a stranger's."""
    said: list[list[bytes]] = [[], []]

    def noted(data: bytes, side: int) -> bytes:
        said[side].append(data)
        return data

    handler, port = PeerHandler(), free_port()
    async with stranger(piped(f"127.0.0.1:{port}", noted)) as way:
        there = wire_at(f"127.0.0.1:{port}", advertise=way)
        async with served(there, handler), caller() as wire:
            for _ in range(2):
                await answer(wire, way, "one")
            assert len(await heard(f"127.0.0.1:{port}", *said[0])) == NONCE_BYTES
            assert len(handler.entered) == 2
            async with await connect(way) as stream:
                said[0].clear()
                await stream.send(raw_request().replace(b"connection: close\r\n", b""))
                answered = b""
                while not answered.endswith(b"0\r\n\r\n"):
                    answered += await stream.receive()
                os.write(stream.extra(SocketAttribute.raw_socket).fileno(), said[0][-1])  # The same, as it has crossed.
                assert await until_closed(stream) == b""
            assert len(handler.entered) == 3


async def test_a_handshake_that_is_cut_anywhere_leads_to_nothing() -> None:
    handler = PeerHandler()
    async with peer(handler) as address, caller() as wire:
        for length in range(len(MAGIC) + NONCE_BYTES + FRAME_HEAD_BYTES):
            cut = (MAGIC + os.urandom(99))[:length]
            assert len(await heard(address, cut)) in (0, NONCE_BYTES)
        assert handler.entered == []
        assert await answer(wire, address, "one") == [{"path": "one", "body": {}}]


async def test_a_slow_stranger_is_left_and_a_silent_listener_is_lost() -> None:
    async def talk(stream: SocketStream) -> None:
        await anyio.sleep_forever()

    async with peer(limits=PeerLimits(proof_s=0.2)) as address, caller(alive_s=0.1) as wire:
        async with await tcp(address) as silent, await tcp(address) as slow:
            await slow.send(MAGIC)
            assert await until_closed(silent) == b""
            assert await until_closed(slow) == b""
        async with stranger(talk) as taken:
            with pytest.raises(PeerLost, match="nothing was heard"):
                await answer(wire, taken, "one")
        assert len(await answer(wire, address, "one")) == 1


async def test_strangers_who_are_many_take_no_place_from_peers() -> None:
    limits = PeerLimits(unproved_max=4, connections_max=8)
    async with peer(limits=limits) as address, caller() as wire:
        silent = [await tcp(address) for _ in range(60)]
        for _ in range(5):
            assert len(await answer(wire, address, "one")) == 1
            await wire.aclose()
        for stream in silent[: -limits.unproved_max]:
            assert await until_closed(stream) == b""
        for stream in silent:
            await stream.aclose()


@pytest.mark.parametrize("head", [b"\xff" * 4, (FRAME_MAX_BYTES + 1).to_bytes(4, "big")])
async def test_a_frame_has_a_bound_before_any_of_it_is_kept(head: bytes) -> None:
    handler = PeerHandler()
    async with peer(handler) as address, await tcp(address) as stream:
        await stream.send(MAGIC + bytes(NONCE_BYTES))
        await stream.receive()
        with suppress(anyio.BrokenResourceError):
            await stream.send(head + bytes(FRAME_HEAD_BYTES))
        assert await until_closed(stream) == b""


async def test_what_is_large_crosses_in_frames() -> None:
    async def serve(stream: SocketStream) -> None:
        proved = await proved_by(stream, PeerSecret(SECRET, os.urandom), "here")
        while data := await proved.receive():
            await proved.send(data)

    sent = os.urandom(3 * FRAME_MAX_BYTES + 7)
    async with stranger(serve) as address:
        proved = await proved_to(await tcp(address), PeerSecret(SECRET, os.urandom), "here")
        async with proved, anyio.create_task_group() as tasks:
            tasks.start_soon(proved.send, sent)
            found = b""
            while len(found) < len(sent):
                found += await proved.receive()
        assert found == sent


async def test_a_unix_socket_of_another_user_is_not_called(tmp_path: Path) -> None:
    """Such as one that somebody has put where a peer of a program that has ended was."""
    if os.geteuid() != 0:
        pytest.skip("another user's socket is made by root alone")
    path = tmp_path / "peer"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        os.seteuid(65534)
        try:
            listener.listen()  # The system remembers who has called this.
        finally:
            os.seteuid(0)
        wire = HttpPeers(None, entropy=os.urandom)
        with anyio.fail_after(WAIT_S), pytest.raises(PeerUnreachable) as refused:
            await answer(wire, f"unix:{path}", "call", PRIVATE)
        assert isinstance(refused.value.__cause__, PermissionError)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1000) == b""
        with pytest.raises(PermissionError):
            await peer_address(f"unix:{path}").connect()
