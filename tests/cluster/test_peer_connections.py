"""Runtimes that call each other by HTTP keep their connections. Real sockets, on this machine."""

from __future__ import annotations

import socket
from pathlib import Path

import anyio
import pytest

from repertory import AgentSpec, Peers, Runtime, ScriptedModel, SQLiteSessions
from repertory.errors import Invalid, Unavailable
from repertory.testing.cutting_relay import cutting_relay

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]
CALLS = 30
SECRET = "a-secret-of-the-tests"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_calls_streams_and_questions_one_after_the_other_take_one_connection(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = SQLiteSessions(tmp_path / "sessions.db")
    spec = AgentSpec(name="support", model=ScriptedModel(["one two three"], loop=True))
    async with cutting_relay(port) as relay:
        there = Peers(listen=f"127.0.0.1:{port}", address=f"127.0.0.1:{relay.port}", secret=SECRET)
        async with (
            Runtime(sessions=place, peers=there) as host,
            Runtime(sessions=place, peers=Peers(room=0, secret=SECRET)) as gateway,
        ):
            host.agent(spec)
            session = gateway.agent(spec).session("s")
            with anyio.fail_after(30):
                for _ in range(CALLS):
                    assert str(await session.invoke("hello")) == "one two three"
                    assert [event async for event in session.stream("hello")][-1]["result"]
                    assert await session.messages()
        assert relay.connections == 1


async def test_a_runtime_whose_peers_are_anybody_does_not_start(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "sessions.db")
    for listen in ("127.0.0.1:0", "localhost:0", "[::1]:0"):
        with pytest.raises(Invalid, match="set secret, or tls"):
            async with Runtime(sessions=place, peers=Peers(listen)):
                pass


async def test_a_peer_with_another_secret_is_given_nothing_of_a_call(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "sessions.db")
    model = ScriptedModel(["hi"], loop=True)
    spec = AgentSpec(name="support", model=model)
    other = Peers(room=0, secret=f"{SECRET}, another one", patience_s=3)
    async with (
        Runtime(sessions=place, peers=Peers("127.0.0.1:0", secret=SECRET)) as host,
        Runtime(sessions=place, peers=other) as gateway,
    ):
        host.agent(spec)
        session = gateway.agent(spec).session("nobody's yet")
        with pytest.raises(Unavailable, match="does not prove"):
            await session.invoke("hello")
    assert model.calls == []


async def test_peers_make_the_folder_of_a_database_that_is_not_there_yet(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "new" / "folder" / "sessions.db")
    spec = AgentSpec(name="support", model=ScriptedModel(["hi"], loop=True))
    async with Runtime(sessions=place, peers=Peers()) as one, Runtime(sessions=place, peers=Peers()) as other:
        one.agent(spec)
        assert str(await one.agent(spec).session("s").invoke("hello")) == "hi"
        assert str(await other.agent(spec).session("s").invoke("hello")) == "hi"


async def test_peers_over_a_database_that_cannot_be_there_are_told_so_as_sessions_are(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match="name a file in a folder"):
        async with Runtime(sessions=SQLiteSessions(tmp_path / "file" / "sessions.db"), peers=Peers()):
            pass
