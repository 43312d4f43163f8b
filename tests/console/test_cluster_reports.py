"""Who shares the sessions of a place, and what nobody waits for there: as a report, and as lines of text."""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from repertory import AgentSpec, Peers, Runtime, ScriptedModel, Sessions
from repertory.backends.peer_ports import QueuedCall
from repertory.backends.ports import StoreCapabilities, call_queue_of
from repertory.console.cluster_commands import add_cluster_commands
from repertory.console.listing import report_json
from repertory.errors import Invalid, NotFound
from repertory.testing.in_memory_sessions import MemorySessionStore
from tests.app.orchestration.session_shelf import Shelf
from tests.cluster.loopback_wire import LoopbackNetwork

pytestmark = pytest.mark.anyio


class LookedAt(Shelf):
    """A place whose posted calls runtimes make."""

    wakes = True


@asynccontextmanager
async def process(
    shelf: Shelf, network: LoopbackNetwork, address: str, *agents: str, room: int = 3
) -> AsyncGenerator[Runtime]:
    """A runtime that others may call, as another process would have it."""
    peers = Peers(wire=network.wire(address), room=room, version="7", zone="north")
    runtime = Runtime(sessions=shelf, peers=peers)
    for name in agents:
        runtime.agent(AgentSpec(name=name, model=ScriptedModel(["Hi!"], loop=True)))
    async with runtime:
        yield runtime


@asynccontextmanager
async def parked(shelf: Shelf, *tokens: str) -> AsyncGenerator[MemorySessionStore]:
    """A store whose box has these calls of the session `s`, which failed for good."""
    store = shelf.open_store()
    for token in tokens:
        await call_queue_of(store).put(
            QueuedCall(session_id="s", agent_id="support", token=token, call={"prompt": token})
        )
        for call in await call_queue_of(store).take(1, ["support"]):
            await call_queue_of(store).again(call, 1.0, "the model refused:\n\x1b[2J no", park=True)
    try:
        yield store
    finally:
        await store.aclose()


def parse(*arguments: str) -> argparse.Namespace:
    """The options that the command line reads."""
    parser = argparse.ArgumentParser()
    add_cluster_commands(parser)
    return parser.parse_args(arguments)


SHOW, RETRY, RETRY_ONE = parse(), parse("retry", "s"), parse("retry", "s", "--token", "mail-2")
"""Read here, since argparse looks for translations in files."""


async def told(shelf: Shelf, options: argparse.Namespace = SHOW) -> Sequence[str]:
    """What the command prints."""
    output = await options.run(options, Sessions(shelf))
    return list(output.lines)


async def test_every_process_that_takes_calls_is_listed_with_what_it_has() -> None:
    shelf, network = Shelf(), LoopbackNetwork()
    async with (
        process(shelf, network, "10.0.0.5:7000", "support", "sales"),
        process(shelf, network, "10.0.0.6:7000", "support", room=9),
        process(shelf, network, "gate", room=0),
    ):
        await anyio.sleep(3)
        found = (await Sessions(shelf).cluster()).peers
        assert sorted((peer.address, peer.room, peer.busy, peer.agents) for peer in found) == [
            ("10.0.0.5:7000", 3, 0, ["sales", "support"]),
            ("10.0.0.6:7000", 9, 0, ["support"]),
        ]
        assert {(peer.version, peer.zone) for peer in found} == {("7", "north")}
        lines = await told(shelf)
        assert lines[0].split() == ["NAME", "ADDRESS", "BUSY", "ROOM", "AGENTS", "VERSION", "ZONE"]
        assert len([line for line in lines if "10.0.0." in line]) == 2
        assert lines[-3:] == ["No work is pending.", "", "No posted calls."]


async def test_a_place_where_nobody_is_says_so() -> None:
    assert await told(Shelf()) == [
        "No process shares these sessions.",
        "",
        "No work is pending.",
        "",
        "No posted calls.",
    ]


async def test_posted_calls_are_listed_without_their_prompts_and_with_why_they_failed() -> None:
    shelf = Shelf()
    async with parked(shelf, "mail-1") as store:
        await call_queue_of(store).put(
            QueuedCall(session_id="s", agent_id="support", token="mail-2", call={"prompt": "x"})
        )
        report = await Sessions(shelf).cluster()
        assert [(call.token, call.tries, call.parked) for call in report.calls] == [
            ("mail-1", 1, True),
            ("mail-2", 0, False),
        ]
        lines = await told(shelf)
        assert lines[-2].split()[:3] == ["s", "support", "mail-1"]
        assert lines[-2].endswith("parked: the model refused: \\x1b[2J no")
        assert "prompt" not in report_json(report)
        assert json.loads(report_json(report))["calls"][0]["session_id"] == "s"


async def test_a_parked_call_is_made_once_more_when_somebody_says_so() -> None:
    shelf, network = LookedAt(), LoopbackNetwork()
    async with parked(shelf, "mail-1", "mail-2", "mail-3"):
        assert await told(shelf, RETRY_ONE) == ["s: mail-2 is tried again."]
        assert [call.parked for call in (await Sessions(shelf).cluster()).calls] == [True, True, False]
        assert await told(shelf, RETRY) == ["s: mail-1 is tried again.", "s: mail-3 is tried again."]
        with pytest.raises(NotFound):
            await Sessions(shelf).retry("s")
        with pytest.raises(NotFound):
            await Sessions(shelf).retry("another")
        async with process(shelf, network, "a", "support"):
            await anyio.sleep(20)
            assert not (await Sessions(shelf).cluster()).calls


def test_the_place_may_be_named_before_the_action_or_after_it() -> None:
    before, after = parse("--at", "a.db", "retry", "s"), parse("retry", "--at", "a.db", "--json", "s")
    assert before.at.key == after.at.key
    assert (before.json, after.json, before.token) == (False, True, None)
    assert parse("--json").json


async def test_a_place_that_cannot_be_shared_is_refused() -> None:
    class Alone(Shelf):
        def open_store(self) -> MemorySessionStore:
            return LoneStore(self.shelf, owner="alone")

    class LoneStore(MemorySessionStore):
        @property
        def capabilities(self) -> StoreCapabilities:
            return StoreCapabilities()

    with pytest.raises(Invalid, match="cannot be shared"):
        await Sessions(Alone()).cluster()
    with pytest.raises(Invalid, match="cannot be shared"):
        await Sessions(Alone()).retry("s")
