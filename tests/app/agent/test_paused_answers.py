"""A provider pauses in the middle of an answer, and goes on when it gets the first part back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    FileSessionManager,
    ScriptedModel,
    SlidingWindowConversationManager,
    SQLiteSessionManager,
    tool,
)
from repertory.core.messages import Message
from repertory.errors import ModelFailed

pytestmark = pytest.mark.anyio

SEARCH: dict[str, Any] = {
    "providerContent": {
        "provider": "anthropic",
        "content": {"type": "server_tool_use", "id": "srv1", "name": "web_search", "input": {"query": "rain"}},
    }
}
FOUND: dict[str, Any] = {
    "providerContent": {
        "provider": "anthropic",
        "content": {"type": "web_search_tool_result", "tool_use_id": "srv1", "content": []},
    }
}


def paused(*blocks: Any, reason: str = "pause_turn") -> dict[str, Any]:
    return {"content": list(blocks), "stopReason": reason}


def kinds(messages: list[Message]) -> list[tuple[str, list[str]]]:
    return [(message["role"], [next(iter(block)) for block in message["content"]]) for message in messages]


@pytest.mark.parametrize("reason", ["pause_turn", "compaction"])
async def test_the_model_is_asked_again_with_its_own_answer_as_the_last_message(reason: str) -> None:
    model = ScriptedModel([paused({"text": "I look. "}, SEARCH, reason=reason), [FOUND, {"text": "It rains."}]])
    agent = Agent(model, callback_handler=None)
    result = await agent.invoke_async("Does it rain?")
    assert model.calls[1].messages[-1]["content"] == [{"text": "I look. "}, SEARCH]
    assert kinds(agent.messages) == [
        ("user", ["text"]),
        ("assistant", ["text", "providerContent"]),
        ("assistant", ["providerContent", "text"]),
    ]
    assert (result.stop_reason, result.message["content"] if result.message else None) == (
        "end_turn",
        [{"text": "I look. "}, SEARCH, FOUND, {"text": "It rains."}],
    )
    assert str(result).split() == ["I", "look.", "It", "rains."]


async def test_it_goes_on_pause_after_pause_until_a_limit_of_the_call() -> None:
    model = ScriptedModel([paused(SEARCH)], loop=True)
    result = await Agent(model, callback_handler=None).invoke_async("Go.", limits={"turns": 4})
    assert result.stop_reason == "limit_turns"
    assert result.message is not None
    assert result.message["content"] == [SEARCH] * 4
    assert len(model.calls) == 4


async def test_a_pause_with_nothing_in_it_is_the_end() -> None:
    model = ScriptedModel([paused({"text": ""}), "never asked for"])
    assert (await Agent(model, callback_handler=None).invoke_async("Go.")).stop_reason == "pause_turn"


async def test_tools_of_a_paused_answer_run_first() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "rain"

    use = {"toolUse": {"toolUseId": "t1", "name": "look", "input": {}}}
    model = ScriptedModel([paused(SEARCH, use), [FOUND, {"text": "It rains."}]])
    agent = Agent(model, tools=[look], callback_handler=None)
    assert str(await agent.invoke_async("Does it rain?")) == "It rains."
    assert [role for role, _ in kinds(agent.messages)] == ["user", "assistant", "user", "assistant"]


PLACES: list[Callable[[Path], Any]] = [
    lambda folder: SQLiteSessionManager("s", path=folder / "a.db"),
    lambda folder: FileSessionManager("s", storage_dir=str(folder)),
]


@pytest.mark.real_time
@pytest.mark.parametrize("place", PLACES, ids=["sqlite", "files"])
async def test_a_turn_that_failed_after_a_pause_goes_on_without_a_prompt_in_the_next_process(
    place: Callable[[Path], Any], tmp_path: Path
) -> None:
    first = ScriptedModel([paused(SEARCH), ModelFailed("no more")])
    async with Agent(first, session_manager=place(tmp_path), callback_handler=None) as agent:
        with pytest.raises(ModelFailed):
            await agent.invoke_async("Does it rain?")
    second = ScriptedModel([[FOUND, {"text": "It rains."}]])
    async with Agent(second, session_manager=place(tmp_path), callback_handler=None) as agent:
        assert str(await agent.invoke_async(None)) == "It rains."
    assert second.calls[0].messages[-1]["content"] == [SEARCH]


@pytest.mark.real_time
@pytest.mark.parametrize("place", PLACES, ids=["sqlite", "files"])
async def test_a_new_prompt_may_follow_a_pause_that_nobody_went_on_with(
    place: Callable[[Path], Any], tmp_path: Path
) -> None:
    first = ScriptedModel([paused(SEARCH), ModelFailed("no more")])
    async with Agent(first, session_manager=place(tmp_path), callback_handler=None) as agent:
        with pytest.raises(ModelFailed):
            await agent.invoke_async("Does it rain?")
    second = ScriptedModel(["Never mind, then.", "Hello again."])
    async with Agent(second, session_manager=place(tmp_path), callback_handler=None) as agent:
        assert str(await agent.invoke_async("Never mind.")) == "Never mind, then."
        assert str(await agent.invoke_async("Hello?")) == "Hello again."
    roles = [message["role"] for message in second.calls[0].messages]
    assert roles == ["user", "assistant", "user"]


async def test_a_compaction_goes_back_when_the_window_has_left_its_time() -> None:
    compaction = {"providerContent": {"provider": "anthropic", "content": {"type": "compaction", "content": "Early."}}}
    model = ScriptedModel([[compaction, {"text": "ok"}], *["yes"] * 6])
    manager = SlidingWindowConversationManager(window_size=4)
    agent = Agent(model, conversation_manager=manager, callback_handler=None)
    for number in range(7):
        await agent.invoke_async(f"Question {number}")
    assert any(compaction in message["content"] for message in model.calls[-1].messages)
    assert len(model.calls[-1].messages) <= 6
