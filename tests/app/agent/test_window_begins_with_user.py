"""After a turn with more tool calls than the window holds, every later prompt is answered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from repertory import Agent, ScriptedModel, SQLiteSessionManager, SummarizingConversationManager, Unavailable, tool
from repertory.backends.models.bedrock import converse_request
from repertory.backends.models.fitting import EARLIER_OMITTED
from repertory.backends.models.gemini import content_request
from repertory.backends.models.provider import ModelCall
from repertory.core.messages import Message

pytestmark = pytest.mark.anyio


@tool
def fetch() -> str:
    """Fetch."""
    return "fetched"


USES: list[Any] = [{"toolUse": {"name": "fetch"}}] * 20


def call(messages: Sequence[Message], model_id: str) -> ModelCall:
    return ModelCall(
        config={"model_id": model_id},
        messages=messages,
        tool_specs=(),
        system_prompt=None,
        system_prompt_content=None,
        tool_choice=None,
    )


def begins_with_user(messages: Sequence[Message]) -> bool:
    nova = converse_request(call(messages, "amazon.nova-pro-v1:0"))["messages"]
    gemini = content_request(call(messages, "gemini-2.5-flash"))["contents"]
    return nova[0]["role"] == "user" and gemini[0]["role"] == "user" and "tool_result" not in repr(nova[0])


async def test_what_is_sent_begins_with_the_user_after_twenty_tool_calls() -> None:
    model = ScriptedModel([*USES, "finished", "welcome", "hello", "yes"])
    agent = Agent(model, tools=[fetch], callback_handler=None)
    await agent.invoke_async("Review this pull request.")
    for prompt, reply in (("Thank you.", "welcome"), ("Hello?", "hello"), ("Are you there?", "yes")):
        assert str(await agent.invoke_async(prompt)) == reply
        assert begins_with_user(model.calls[-1].messages)


async def test_a_turn_in_the_middle_of_its_tools_is_sent_with_a_note_in_front() -> None:
    model = ScriptedModel([*USES, "finished", "welcome"])
    agent = Agent(model, tools=[fetch], callback_handler=None)
    await agent.invoke_async("Review this pull request.")
    await agent.invoke_async("Thank you.")
    assert model.calls[-1].messages[0]["role"] == "assistant"  # What is shown begins with a tool use.
    first = converse_request(call(model.calls[-1].messages, "amazon.nova-pro-v1:0"))["messages"][0]
    assert first == {"role": "user", "content": [{"text": EARLIER_OMITTED}]}


async def test_a_turn_that_failed_is_tidied_up_at_the_next_call() -> None:
    """So a conversation whose turns fail does not grow beyond what its model can take."""
    failing: list[Any] = [*USES, *USES, Unavailable("away")]
    model = ScriptedModel([*failing, "welcome"])
    agent = Agent(model, tools=[fetch], callback_handler=None, retry_strategy=None)
    with pytest.raises(Unavailable):
        await agent.invoke_async("Review this pull request.")
    await agent.invoke_async("Thank you.")
    assert len(model.calls[-1].messages) <= 42
    assert begins_with_user(model.calls[-1].messages)
    assert any("toolResult" in block for message in model.calls[-1].messages for block in message["content"])


@pytest.mark.real_time
async def test_it_is_tidied_up_at_the_first_call_of_the_next_process(tmp_path: Path) -> None:
    failing: list[Any] = [*USES, *USES, Unavailable("away")]
    place = SQLiteSessionManager("s", path=tmp_path / "a.db")
    first = ScriptedModel(failing)
    async with Agent(first, tools=[fetch], session_manager=place, callback_handler=None, retry_strategy=None) as agent:
        with pytest.raises(Unavailable):
            await agent.invoke_async("Review this pull request.")
    second = ScriptedModel(["welcome"])
    place = SQLiteSessionManager("s", path=tmp_path / "a.db")
    async with Agent(second, tools=[fetch], session_manager=place, callback_handler=None) as agent:
        await agent.invoke_async("Thank you.")
    assert len(second.calls[0].messages) <= 42


async def test_a_summary_that_is_due_after_a_failed_turn_is_made_at_most_once() -> None:
    manager = SummarizingConversationManager()
    model = ScriptedModel([*USES, Unavailable("away"), "welcome", "hello"])
    agent = Agent(model, tools=[fetch], conversation_manager=manager, callback_handler=None, retry_strategy=None)
    with pytest.raises(Unavailable):
        await agent.invoke_async("Review this pull request.")
    assert str(await agent.invoke_async("Thank you.")) == "welcome"
