"""Runtimes that call each other by HTTP keep their connections. Real sockets, on this machine."""

from __future__ import annotations

import socket
from pathlib import Path

import anyio
import pytest

from repertory import AgentSpec, Peers, Runtime, ScriptedModel, SQLiteSessions
from repertory.testing.cutting_relay import cutting_relay

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]
CALLS = 30


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
        there = Peers(listen=f"127.0.0.1:{port}", address=f"127.0.0.1:{relay.port}")
        async with (
            Runtime(sessions=place, peers=there) as host,
            Runtime(sessions=place, peers=Peers(room=0)) as gateway,
        ):
            host.agent(spec)
            session = gateway.agent(spec).session("s")
            with anyio.fail_after(30):
                for _ in range(CALLS):
                    assert str(await session.invoke("hello")) == "one two three"
                    assert [event async for event in session.stream("hello")][-1]["result"]
                    assert await session.messages()
        assert relay.connections == 1
