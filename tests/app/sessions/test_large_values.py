"""Results, answers, prompts and state that are too large: who is told, and what is kept. The bounds are ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from repertory import AfterToolCallEvent, Agent, AgentSpec, Model, Runtime, ScriptedModel, SQLiteSessionManager, tool
from repertory.backends.tools.function_tool import schema_class
from repertory.core.limits import ANSWER_BYTES
from repertory.core.messages import tool_results
from repertory.errors import Invalid, LimitReached, TooLarge
from tests.app.orchestration.recorder import Recorder, use
from tests.service.histories import check_history

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


@tool
async def export(size: int) -> str:
    """Export everything.

    Args:
        size: How much there is.
    """
    return "x" * size


@tool
async def keys(count: int) -> dict[str, int]:
    """List keys.

    Args:
        count: How many.
    """
    return {str(number): number for number in range(count)}


@tool
async def remember(size: int, agent: Agent) -> str:
    """Remember something.

    Args:
        size: How much.
    """
    agent.state.set("kept", "x" * size)
    return "remembered"


class Raw:
    """A tool that makes its result by itself, and does not look how large it is."""

    name, effects, idempotent, timeout_s = "raw", True, False, None

    @property
    def spec(self) -> Any:
        return {"name": "raw", "description": "raw", "inputSchema": {"json": {"type": "object"}}}

    async def run(self, tool_use: Any, context: Any) -> Any:
        return {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"text": "x" * 20_000_000}]}


class Flood(Model):
    """Streams without end, and counts what it was asked for."""

    def __init__(self, event: dict[str, Any]) -> None:
        self.event = event
        self.streamed = 0
        self.closed = 0

    async def stream(
        self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **options: Any
    ) -> AsyncIterator[dict[str, Any]]:
        try:
            while True:
                self.streamed += 1
                yield self.event
        finally:
            self.closed += 1


def agent_with(*replies: Any, **options: Any) -> Agent:
    tools = [export, keys, remember, Raw()]
    return Agent(ScriptedModel(list(replies)), **{"tools": tools, "callback_handler": None, **options})


def last_result(agent: Agent) -> tuple[str, str]:
    *_, result = (result for message in agent.messages for result in tool_results(message))
    return result["status"], str(result["content"][0].get("text"))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (use("keys", count=1_000_000), "1,000,001 values"),
        (use("export", size=200_000_000), "200,000,256 bytes"),
        (use("raw"), "20,000,772 bytes"),
    ],
    ids=["keys", "text", "raw"],
)
async def test_the_model_is_told_how_large_a_result_was_and_goes_on(asked: Any, told: str) -> None:
    ends = Recorder(AfterToolCallEvent)
    agent = agent_with(asked, use("export", size=5), "done", hooks=[ends])
    assert str(await agent.invoke_async("go")) == "done"
    refused, taken = (result for message in agent.messages for result in tool_results(message))
    text = str(refused["content"][0]["text"])
    assert refused["status"] == "error"
    assert text.startswith("Error: TooLarge - the tool ran, but its result is too large")
    assert "limits['result_bytes'] is 10,485,760" in text
    assert told in text
    assert taken["content"] == [{"text": "xxxxx"}]
    assert isinstance(ends.events[0].exception, TooLarge)
    check_history(agent.messages)


async def test_a_call_goes_before_its_agent_and_that_before_the_default() -> None:
    agent = agent_with(*[use("export", size=2_000), "done"] * 3, limits={"result_bytes": 1_000})
    await agent.invoke_async("go")
    assert last_result(agent)[0] == "error"
    await agent.invoke_async("go", limits={"result_bytes": 3_000})
    assert last_result(agent)[0] == "success"
    await agent.invoke_async("go", limits={"turns": 5})
    assert last_result(agent)[0] == "error"
    with pytest.raises(Invalid):
        agent_with(limits={"result_bytes": 0})


async def test_direct_calls_are_bounded_too() -> None:
    agent = agent_with(limits={"result_bytes": 1_000})
    for record in (True, False):
        result = await agent.tool.export.invoke_async(size=2_000, record_direct_tool_call=record)
        assert result["status"] == "error"


async def test_agents_of_a_runtime_have_their_limits() -> None:
    replies = [use("export", size=2_000), "done"]
    spec = AgentSpec(model=ScriptedModel(replies), tools=[export], limits={"result_bytes": 1_000})
    async with Runtime() as runtime:
        session = runtime.agent(spec).session("s1")
        await session.invoke("go")
        (result,) = (result for message in await session.messages() for result in tool_results(message))
        assert result["status"] == "error"


@pytest.mark.parametrize(
    "event",
    [
        {"contentBlockDelta": {"delta": {"text": "x" * 65_536}}},
        {"contentBlockDelta": {"delta": {"text": ""}}},
        {"ping": {}},
    ],
    ids=["text", "nothing", "pings"],
)
async def test_a_model_that_never_ends_is_broken_off(event: dict[str, Any]) -> None:
    """And nothing of its answer is kept: the prompt stands unanswered, and the next call goes on with it."""
    model = Flood(event)
    agent = Agent(model, callback_handler=None)
    limits: Any = {"answer_bytes": 1_000_000}
    with pytest.raises(TooLarge, match=r"the model's answer is too large: .* limits\['answer_bytes'\] is 1,000,000"):
        await agent.invoke_async("go", limits=limits)
    assert model.closed == 1
    assert model.streamed <= 1_000_000 // 32 + 1
    assert [message["role"] for message in agent.messages] == ["user"]
    agent.model = ScriptedModel(["short"])
    assert str(await agent.invoke_async()) == "short"


async def test_answers_are_bounded_by_default() -> None:
    model = Flood({"contentBlockDelta": {"delta": {"text": "x" * 65_536}}})
    with pytest.raises(LimitReached):
        await Agent(model, callback_handler=None).invoke_async("go")
    assert model.streamed * 65_536 <= ANSWER_BYTES + 65_536


async def test_a_prompt_that_is_too_large_is_refused_before_anything_is_stored() -> None:
    agent = agent_with("short")
    with pytest.raises(TooLarge, match="the prompt is too large"):
        await agent.invoke_async("x" * 40_000_000)
    assert agent.messages == []
    assert str(await agent.invoke_async("x" * 2_000_000)) == "short"


async def test_a_tool_that_keeps_too_much_in_the_state_is_told_so() -> None:
    agent = agent_with(use("remember", size=20_000_000), "done")
    await agent.invoke_async("go")
    status, text = last_result(agent)
    assert (status, "TooLarge" in text) == ("error", True)
    assert agent.state.get("kept") is None


@pytest.mark.real_time
async def test_what_is_stored_opens_however_large_it_is(tmp_path: Path) -> None:
    def place() -> SQLiteSessionManager:
        return SQLiteSessionManager("s1", path=tmp_path / "sessions.db")

    first = agent_with(use("export", size=5_000), "x" * 5_000, session_manager=place(), limits={"result_bytes": 10_000})
    async with first:
        await first.invoke_async("x" * 5_000)
        said = list(first.messages)
    small: Any = {"result_bytes": 100, "answer_bytes": 10_000, "prompt_bytes": 1_000}
    again = agent_with("short", session_manager=place(), limits=small)
    async with again:
        assert list(again.messages) == said
        assert str(await again.invoke_async("hi")) == "short"


@pytest.mark.real_time
async def test_a_session_of_many_large_messages_opens_as_it_was_said(tmp_path: Path) -> None:
    """It is read in a thread, and in parts."""

    def agent(*replies: str) -> Agent:
        place = SQLiteSessionManager("s1", path=tmp_path / "sessions.db")
        return agent_with(*replies, session_manager=place)

    async with agent(*(str(number) * 400_000 for number in range(4))) as first:
        for number in range(4):
            await first.invoke_async(f"{number}" * 300_000)
        said, history = list(first.messages), await first.history()
    async with agent("short") as again:
        assert list(again.messages) == said
        assert await again.history() == history
