"""Prompts that no model can be shown are refused before anything is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repertory import Agent, ScriptedModel, SQLiteSessionManager
from repertory.core.turns.turn_start import read_prompt
from repertory.errors import Invalid, UnpairedTools

USE: dict[str, Any] = {"toolUse": {"toolUseId": "t", "name": "look", "input": {}}}
RESULT: dict[str, Any] = {"toolResult": {"toolUseId": "t", "status": "success", "content": [{"text": "seen"}]}}


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([{"nonsense": 1}], r"prompt\.content\[0\]: no content block has the key 'nonsense'"),
        ([{"text": "Hi"}, {"Text": "there"}], r"prompt\.content\[1\]: no content block has the key 'Text'"),
        ([USE], "stands in messages of the assistant only"),
        ([{"role": "user", "content": [USE]}], r"messages\[0\]\.content\[0\]: a tool use stands in messages of the as"),
        ([{"role": "assistant", "content": [{"nonsense": 1}]}], "nonsense"),
        ([{"role": "user", "content": []}], "at least one content block"),
        ([{"providerContent": {"provider": "anthropic", "content": {}}}], "stands in answers only"),
        ([{"guardContent": {}}], "has no 'text' or 'image'"),
    ],
)
def test_a_block_that_no_model_knows_is_named(prompt: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        read_prompt(prompt)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": [USE]}, {"role": "user", "content": [{"text": "no result"}]}],
        [{"role": "user", "content": [{"text": "Hi"}]}, {"role": "user", "content": [RESULT]}],
        [{"role": "assistant", "content": [USE]}, {"role": "assistant", "content": [RESULT]}],
    ],
)
def test_tools_within_a_prompt_of_messages_have_to_pair_up(messages: Any) -> None:
    with pytest.raises(UnpairedTools):
        read_prompt(messages)


def test_a_prompt_of_messages_with_a_whole_tool_use_is_taken() -> None:
    messages = [{"role": "user", "content": [{"text": "Hi"}]}, {"role": "assistant", "content": [USE]}]
    assert read_prompt([*messages, {"role": "user", "content": [RESULT, {"text": "go on"}]}])


@pytest.mark.anyio
@pytest.mark.real_time
async def test_nothing_is_stored_of_a_refused_prompt(tmp_path: Path) -> None:
    place = SQLiteSessionManager("s", path=tmp_path / "a.db")
    async with Agent(ScriptedModel(["Hello."]), session_manager=place, callback_handler=None) as agent:
        for prompt in ([{"nonsense": 1}], [USE]):
            with pytest.raises(Invalid):
                await agent.invoke_async(prompt)
        assert agent.messages == []
        assert str(await agent.invoke_async("Hi")) == "Hello."
        assert len(agent.messages) == 2


@pytest.mark.parametrize(
    "prompt",
    [
        "a\ud800",
        [{"text": "\ud800"}],
        [{"document": {"name": "\ud800", "format": "txt", "source": {"bytes": b"a"}}}],
        [{"role": "user", "content": [{"text": "a"}], "metadata": {"custom": {"\ud800": 1}}}],
        [{"interruptResponse": {"interruptId": "a", "response": ["\ud800"]}}],
    ],
)
def test_a_prompt_that_no_service_can_be_sent_is_refused(prompt: object) -> None:
    with pytest.raises(Invalid, match="without lone surrogates"):
        read_prompt(prompt)
