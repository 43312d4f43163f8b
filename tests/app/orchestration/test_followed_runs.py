"""Runs of graphs and swarms that do not belong to whoever began them: read on, read by several, and left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from repertory import Agent, Graph, Model, OrchestratorSession, Runtime, ScriptedModel, Status, Swarm
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message
from repertory.core.turn_log import PIECES_MAX, TurnLog
from repertory.errors import Invalid, NotFound
from tests.simulation.killed_worlds import World, killed

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


class Slow(Model):
    """Answers after a minute."""

    async def stream(self, messages: Sequence[Message], *rest: Any, **more: Any) -> AsyncIterator[Any]:
        await anyio.sleep(60)
        async with aclosing(ScriptedModel(["done"]).stream(messages, *rest, **more)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event


def node(name: str) -> Agent:
    return Agent(Slow(), name=name, callback_handler=None)


def graph() -> Graph:
    return Graph({name: node(name) for name in ("one", "two", "three")}, id="team")


def session_of(runtime: Runtime, make: Any = graph) -> OrchestratorSession[Any]:
    return runtime.orchestrator("team", lambda _: make()).session("s")


async def read(events: Any, until: str | None = None) -> list[Any]:
    """The events, up to the end of this node's work."""
    found: list[Any] = []
    async with aclosing(events) as stream:
        async for event in stream:
            found.append(event)
            if event["type"] == "multiagent_node_stop" and event["node_id"] == until:
                break
    return found


def told(events: list[Any]) -> list[str]:
    """What is told of nodes, without the pieces that they stream."""
    kinds = ((event["type"].removeprefix("multiagent_"), event.get("node_id", "")) for event in events)
    return [f"{kind} {node_id}".strip() for kind, node_id in kinds if kind in ("node_start", "node_stop", "result")]


WHOLE = [f"node_{what} {name}" for name in ("one", "two", "three") for what in ("start", "stop")] + ["result"]


async def test_a_reader_reads_on_where_it_was_and_others_read_the_whole_run() -> None:
    async with Runtime(sessions=World()) as runtime:
        session = session_of(runtime)
        first = await read(session.stream("go", token="t", detach=True), until="one")
        others: list[list[Any]] = []

        async def follow(events: Any) -> None:
            others.append(await read(events))

        async with anyio.create_task_group() as group:
            group.start_soon(follow, session.attach("t"))
            group.start_soon(follow, session.stream("go", token="t", detach=True))
            rest = await read(session.attach("t", after=first[-1]["offset"]))
        assert told(first + rest) == told(others[0]) == told(others[1]) == WHOLE
        assert [event["offset"] for event in first + rest] == [event["offset"] for event in others[0]]
        assert rest[-1]["result"].status is Status.COMPLETED
        again = await read(session.attach("t"))
        assert told(again) == ["result"]
        assert again[-1]["result"].replayed


async def test_a_run_that_its_only_reader_has_left_goes_on_if_it_is_detached() -> None:
    async with Runtime(sessions=World()) as runtime:
        session = session_of(runtime)
        await read(session.stream("stays", token="t1", detach=True), until="one")
        assert (await session.invoke(idempotency_token="t1")).resumed is False
        await read(session.stream("ends", token="t2"), until="one")
        await anyio.sleep(1000)
        assert session.orchestrator.state.status is Status.INTERRUPTED
        assert told(await read(session.attach("t2"))) == WHOLE[2:]  # What was cut short goes on.


async def test_a_posted_run_is_waited_for_by_its_reader_and_an_unknown_one_is_not() -> None:
    async with Runtime(sessions=World()) as runtime:
        session = session_of(runtime, lambda: Swarm([node("only")], id="team"))
        await session.post("go", token="t")
        assert told(await read(session.attach("t")))[-1] == "result"
        with pytest.raises(NotFound):
            await read(session.attach("nobody's"))
        with pytest.raises(Invalid):
            await read(session.stream("go", detach=True))
        with pytest.raises(Invalid):
            await read(session.attach("t", after="what"))


async def test_a_reader_comes_back_to_another_process() -> None:
    world = World()
    async with Runtime(sessions=world) as runtime:
        await read(session_of(runtime).stream("go", token="t", detach=True))
    cut = 0
    for left in map(killed, world.left):
        async with Runtime(sessions=left) as runtime:
            session = session_of(runtime)
            try:
                events = await read(session.attach("t", after="0.abcdef.17"))
            except NotFound:
                continue
        cut += len(told(events)) > 1
        assert events[-1]["result"].status is Status.COMPLETED
        assert sorted(events[-1]["result"].results) == ["one", "three", "two"]
    assert cut


def test_what_nodes_stream_is_kept_within_bounds_and_their_ends_are_all_kept() -> None:
    log = TurnLog("a", 0)
    for number in range(100):
        for _ in range(PIECES_MAX // 8):
            log.add({"type": "multiagent_node_stream", "event": {"data": "x"}}, 0)
        log.add({"type": "multiagent_node_stop", "node_id": str(number)}, 0)
    kept = [entry.event for entry in log.after(0)]
    assert [event["node_id"] for event in kept if "node_id" in event] == [str(number) for number in range(100)]
    assert len(kept) <= PIECES_MAX + 100
