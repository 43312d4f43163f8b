"""Turns that run for another process: readers come, go, and come back, and miss nothing."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from repertory import ScriptedModel, tool
from repertory.backends.peer_ports import JsonLine
from repertory.cluster.running_calls import RunningCall
from repertory.core.messages import text_of
from repertory.core.turn_log import PIECES_MAX
from repertory.errors import ModelRefused
from tests.app.orchestration.recorder import use
from tests.cluster.test_peers import Site

pytestmark = pytest.mark.anyio
KEY = ("agent", "session", "token")
WORDS = "".join(f"word{number} " for number in range(30))


class Counting(ScriptedModel):
    """Counts the events that it has streamed."""

    def __init__(self, *replies: Any) -> None:
        super().__init__([*replies], chunk=4)
        self.streamed = 0

    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async for event in super().stream(*args, **options):
            self.streamed += 1
            yield event


async def lines_of(call: RunningCall, most: int = 10**6) -> list[JsonLine]:
    found: list[JsonLine] = []
    async with aclosing(call.lines(None, holds=True)) as lines:
        async for together in lines:
            found.extend(together.lines)
            if together.end or len(found) >= most:
                break
    return found


def pieces(events: list[Any]) -> str:
    return "".join(str(event["data"]) for event in events if "data" in event)


def messages(events: list[Any]) -> list[str]:
    """The messages, without the ids of tool uses."""
    found = [event["message"] for event in events if "message" in event]
    return [f"{each['role']} {text_of(each)} {[*each['content'][0]]}" for each in found]


async def test_a_caller_is_told_soon_that_its_call_was_taken_and_then_of_its_end() -> None:
    call, found = RunningCall(KEY), list[JsonLine]()

    async def read() -> None:
        found.extend(await lines_of(call))

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.sleep(1)
        call.end({"result": 1})
        call.end({"draining": True})
    assert found == [{"taken": None}, {"result": 1}]
    assert await lines_of(call) == [{"result": 1}]


async def test_readers_that_are_sent_away_come_back_to_the_same_turn() -> None:
    call, found = RunningCall(KEY), list[JsonLine]()

    async def read() -> None:
        found.extend(await lines_of(call))

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.sleep(1)
        call.send_away()
    assert found == [{"taken": None}, {"moved": None}]
    call.end({"result": 1})
    assert await lines_of(call) == [{"result": 1}]


async def test_a_call_is_delivered_when_it_is_over_and_nobody_reads_its_end_any_more() -> None:
    call, seen = RunningCall(KEY), list[str]()
    lines = call.lines(None, holds=True)
    await anext(lines)

    async def wait() -> None:
        await call.delivered()
        seen.append("delivered")

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.sleep(1)
        call.end({"result": 1})
        await anext(lines)
        assert seen == []
        await lines.aclose()


@pytest.mark.parametrize("followed", [False, True])
async def test_a_stream_over_connections_that_break_at_random_is_the_stream_of_one_that_does_not(
    followed: bool, rng: random.Random
) -> None:
    @tool
    async def look(n: int) -> AsyncIterator[str]:
        """Look, and tell of it."""
        for number in range(n):
            await anyio.sleep(rng.uniform(0, 0.5))
            yield f"seen {number}"

    site = Site()
    replies = ["Hello there, everybody.", use("look", n=5), WORDS]
    model = ScriptedModel(["opened", *replies * 40], chunk=4)
    async with (
        site.process("a", model=model, tools=[look]),
        site.process("gate", room=0) as gate,
    ):
        await anyio.sleep(3)
        session = gate.agent.session("s")
        await session.invoke("open it")

        async def stream(name: str, told: list[Any]) -> list[Any]:
            for part in ("one", "two"):
                options: Any = {"token": f"{name}.{part}"} if followed else {}
                async with aclosing(session.stream("go", **options)) as events:
                    async for event in events:
                        if rng.random() < 0.05:
                            await anyio.sleep(rng.choice([0.1, 0.3]))
                        told.append(event)
            return told

        whole = await stream("whole", [])
        for number in range(20):
            told: list[Any] = []
            async with anyio.create_task_group() as group:

                async def weather() -> None:
                    while True:
                        if rng.random() < 0.3:
                            site.network.cut_after("a", rng.randint(3, 30))
                        await anyio.sleep(rng.uniform(0.2, 0.8))
                        site.network.cut("a")

                group.start_soon(weather)
                await stream(f"broken{number}", told)
                group.cancel_scope.cancel()
            assert [sorted(event) for event in told] == [sorted(event) for event in whole]
            assert (pieces(told), messages(told)) == (pieces(whole), messages(whole))
            assert [str(event["result"]) for event in told if "result" in event][-1] == WORDS
            if followed:
                assert len({event["offset"] for event in told}) == len(told)
        assert len(model.calls) == 1 + 21 * 3


async def test_a_turn_waits_for_the_slow_reader_of_a_plain_stream_and_not_for_one_that_has_gone() -> None:
    site, long = Site(), "".join(f"w{number} " for number in range(2000))
    model = Counting(long)
    async with site.process("a", model=model), site.process("gate", room=0) as gate:
        await anyio.sleep(3)
        session = gate.agent.session("s")
        async with aclosing(session.stream("go")) as events:
            async for event in events:
                if "data" in event:
                    break
            await anyio.sleep(5)
            assert model.streamed < 1000
            site.network.silence("a", takes=True)  # The caller's connection is gone, and nobody reads.
            await anyio.sleep(20)
            site.network.hear("a")
            rest: list[Any] = [event async for event in events]
        assert str(rest[-1]["result"]) == long
        assert len(model.calls) == 1


async def test_a_reader_of_a_followed_turn_holds_nothing_up_and_gets_the_message_for_pieces_that_it_has_missed() -> (
    None
):
    site, long = Site(), "word " * PIECES_MAX
    model = Counting(use("rest"), long)

    @tool
    async def rest() -> str:
        """Rest."""
        await anyio.sleep(1)
        return "rested"

    async with site.process("a", model=model, tools=[rest]), site.process("gate", room=0) as gate:
        await anyio.sleep(3)
        async with aclosing(gate.agent.session("s").stream("go", token="t", detach=True)) as events:
            async for event in events:
                if "data" in event or "message" in event:
                    break
            await anyio.sleep(20)
            assert model.streamed > PIECES_MAX
            told: list[Any] = [event async for event in events]
    assert str(told[-1]["result"]) == long


async def test_the_error_of_a_turn_reaches_a_caller_whose_connection_broke_though_it_ended_meanwhile() -> None:
    site = Site()
    for cut in range(1, 12):
        model = ScriptedModel(["here", use("rest"), ModelRefused("no")])

        @tool
        async def rest() -> str:
            """Rest."""
            await anyio.sleep(1)
            return "rested"

        async with site.process(f"a{cut}", model=model, tools=[rest]), site.process(f"gate{cut}", room=0) as gate:
            await anyio.sleep(3)
            session = gate.agent.session(f"s{cut}")
            await session.invoke("open it")
            site.network.cut_after(f"a{cut}", cut)
            told: list[Any] = []
            with pytest.raises(ModelRefused):
                async with aclosing(session.stream("go")) as events:
                    async for event in events:
                        told.append(event)
            assert len(messages(told)) == 3
            assert len(model.calls) == 3
