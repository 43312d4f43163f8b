"""What became of a turn, told without going on with it: `session.told`."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from repertory import AgentSpec, Runtime, ScriptedModel
from repertory.core.turns.turn_status import read_turn_status, turn_status_json
from repertory.errors import ModelFailed
from tests.app.embedding.test_followed_turns import Typing, hosted, read
from tests.app.embedding.test_store_outages import Weather
from tests.cluster.test_peers import Site
from tests.service.protocol_servers import ASKS, TEXT, order

pytestmark = pytest.mark.anyio


def texts(messages: Any) -> list[str]:
    return [block["text"] for message in messages for block in message["content"] if "text" in block]


async def test_a_session_of_which_nothing_is_known_is_not_begun() -> None:
    weather = Weather()
    async with Runtime(sessions=weather) as runtime:
        session = hosted(runtime, ScriptedModel(["one"]))
        assert await session.told() is None
        assert await session.told("t") is None
        assert runtime.look().sessions == []


async def test_a_turn_is_told_while_it_runs_and_when_it_is_answered() -> None:
    weather = Weather()
    async with Runtime(sessions=weather) as runtime:
        session = hosted(runtime, Typing(), state={"seen": 1})
        await read(session.stream("Count.", token="t", detach=True), most=4)
        running = await session.told("t", stored=True)
        assert running is not None
        assert (running.state, texts(running.messages), running.result) == ("runs", ["Count."], None)
        await read(session.attach("t"))
        await session.invoke("More.", idempotency_token="u")
        done = await session.told("t")
        assert done is not None
        assert (done.state, texts(done.messages), done.newest) == ("answered", ["Count.", TEXT], False)
        assert str(done.result) == TEXT
        newest = await session.told()
        assert newest is not None
        assert (newest.token, newest.newest, newest.agent_state) == ("u", True, {"seen": 1})
    async with Runtime(sessions=weather) as runtime:
        again = await hosted(runtime, ScriptedModel([])).told("t")
        assert again is not None
        assert (again.state, texts(again.messages)) == ("answered", ["Count.", TEXT])


async def test_a_turn_that_waits_for_a_person_tells_what_is_asked() -> None:
    async with Runtime(sessions=Weather()) as runtime:
        model = ScriptedModel([ASKS, "ordered"])
        session = runtime.agent(AgentSpec(model=model, tools=[order])).session("s")
        asked = await session.invoke("tea", idempotency_token="t")
        told = await session.told("t")
        assert told is not None
        assert (told.state, [each.id for each in told.interrupts]) == ("asks", [each.id for each in asked.interrupts])
        assert told.result is not None
        assert told.result.stop_reason == "interrupt"
        assert len(model.calls) == 1


async def test_a_turn_that_failed_or_was_cancelled_has_stopped_and_is_not_run_again() -> None:
    async with Runtime(sessions=Weather()) as runtime:
        model = ScriptedModel([ModelFailed("no"), "late"])
        session = runtime.agent(AgentSpec(model=model, retry_strategy=None)).session("s")
        with pytest.raises(ModelFailed):
            await session.invoke("one", idempotency_token="t")
        for _ in range(2):
            told = await session.told("t")
            assert told is not None
            assert told.state == "stopped"
        assert len(model.calls) == 1
        assert str(await session.invoke("one", idempotency_token="t")) == "late"
        told = await session.told("t")
        assert told is not None
        assert told.state == "answered"


async def test_only_the_turn_that_runs_is_cancelled_by_its_token() -> None:
    async with Runtime(sessions=Weather()) as runtime:
        session = hosted(runtime, Typing())
        await session.invoke("one", idempotency_token="t")
        await read(session.stream("two", token="u", detach=True), most=4)
        first = await session.told("t", cancel=True)
        assert first is not None
        assert first.state == "answered"
        running = await session.told("u", cancel=True)
        assert running is not None
        assert running.state == "runs"
        await anyio.sleep(1)
        told = await session.told("u")
        assert told is not None
        assert told.state == "stopped"


async def test_a_turn_in_another_process_is_told_there() -> None:
    site = Site()
    async with site.process("a", [ASKS, "ordered"], tools=[order]) as a, site.process("gate", room=0) as gate:
        await anyio.sleep(3)
        await a.agent.session("s").invoke("tea", idempotency_token="t")
        here, there = await a.agent.session("s").told("t"), await gate.agent.session("s").told("t")
        assert here == there
        assert here is not None
        assert here.state == "asks"
        assert read_turn_status(turn_status_json(here)) == here
        assert await gate.agent.session("s").told("nobody") is None


async def test_an_unsaved_conversation_is_its_own_and_leaves_nothing() -> None:
    weather = Weather()
    async with Runtime(sessions=weather) as runtime:
        model = ScriptedModel(["one", "two", "three"])
        agent = runtime.agent(AgentSpec(model=model))
        first, second = agent.unsaved(), agent.unsaved()
        said: Any = [{"role": "assistant", "content": [{"text": "Hi."}]}, {"role": "user", "content": [{"text": "A"}]}]
        assert str(await first.invoke(said, idempotency_token="t")) == "one"
        assert str(await second.invoke("B")) == "two"
        assert str(await first.invoke(said, idempotency_token="t")) == "one"
        assert str(await first.invoke("C")) == "three"
        assert runtime.look().sessions == []
    assert [texts(call.messages) for call in model.calls] == [["Hi.", "A"], ["B"], ["Hi.", "A", "one", "C"]]
