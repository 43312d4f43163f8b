"""One picture, document or prompt that a service refuses does not end a conversation."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    FileSessionManager,
    FileStorage,
    JournalSessionManager,
    ScriptedModel,
    Sessions,
    SQLiteSessionManager,
    SQLiteSessions,
    tool,
)
from repertory.core.messages import Message
from repertory.errors import ModelFailed, ModelRefused

pytestmark = pytest.mark.anyio

IMAGE: dict[str, Any] = {"image": {"format": "png", "source": {"bytes": b"not a picture"}}}


def strict(messages: Sequence[Message], *_: Any) -> Any:
    """A service that cannot read the picture, wherever it stands."""
    if "not a picture" in repr(messages):
        return ModelFailed("Bedrock refused the request: Could not process image", status=400)
    return "2"


PLACES: list[Callable[[Path], Any]] = [
    lambda folder: SQLiteSessionManager("s", path=folder / "a.db"),
    lambda folder: FileSessionManager("s", storage_dir=str(folder)),
    lambda folder: JournalSessionManager("s", storage=FileStorage(str(folder))),
]


@pytest.mark.real_time
@pytest.mark.parametrize("place", PLACES, ids=["sqlite", "files", "journal"])
async def test_the_next_prompt_is_answered_also_after_a_restart(
    place: Callable[[Path], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Agent(
        ScriptedModel([strict], loop=True), session_manager=place(tmp_path), callback_handler=None
    ) as agent:
        with pytest.raises(ModelFailed, match=r"messages\[0\]\.content\[1\] \(image\)") as caught:
            await agent.invoke_async([{"text": "What is this?"}, IMAGE])
        assert caught.value.fields["status"] == 400
        assert str(await agent.invoke_async("Never mind. What is 1 + 1?")) == "2"
    model = ScriptedModel([strict], loop=True)
    async with Agent(model, session_manager=place(tmp_path), callback_handler=None) as agent:
        assert str(await agent.invoke_async("And 0 + 2?")) == "2"
    note = model.calls[0].messages[0]["content"][1]
    assert note == {"text": "(An image stood here. The model's provider refused it, so it is left out.)"}
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert any("a refused part is left out" in record.getMessage() for record in warnings)


@pytest.mark.real_time
@pytest.mark.parametrize("place", PLACES, ids=["sqlite", "files", "journal"])
async def test_a_restart_right_after_the_refusal_leaves_it_out_too(
    place: Callable[[Path], Any], tmp_path: Path
) -> None:
    async with Agent(
        ScriptedModel([strict], loop=True), session_manager=place(tmp_path), callback_handler=None
    ) as agent:
        with pytest.raises(ModelFailed):
            await agent.invoke_async([IMAGE])
    async with Agent(
        ScriptedModel([strict], loop=True), session_manager=place(tmp_path), callback_handler=None
    ) as agent:
        assert str(await agent.invoke_async("1 + 1?")) == "2"


async def test_a_call_without_a_prompt_goes_on_with_what_is_left() -> None:
    agent = Agent(ScriptedModel([strict], loop=True), callback_handler=None)
    with pytest.raises(ModelFailed):
        await agent.invoke_async([{"text": "What is 1 + 1? See the picture."}, IMAGE])
    assert str(await agent.invoke_async(None)) == "2"


async def test_a_picture_that_a_tool_returned_is_left_out_and_its_result_stays() -> None:
    @tool
    def look() -> dict[str, Any]:
        """Look."""
        return {"status": "success", "content": [{"text": "Here:"}, IMAGE]}

    model = ScriptedModel([{"toolUse": {"name": "look"}}, strict, strict])
    agent = Agent(model, tools=[look], callback_handler=None)
    with pytest.raises(ModelFailed, match=r"messages\[2\]\.content\[0\]\.toolResult\.content\[1\] \(image\)"):
        await agent.invoke_async("Look.")
    assert str(await agent.invoke_async("1 + 1?")) == "2"
    result = model.calls[-1].messages[2]["content"][0]["toolResult"]  # type: ignore[typeddict-item]
    assert result["content"][0] == {"text": "Here:"}
    assert "left out" in str(result["content"][1])


@pytest.mark.real_time
async def test_the_history_keeps_what_was_refused(tmp_path: Path) -> None:
    place = SQLiteSessionManager("s", path=tmp_path / "a.db")
    async with Agent(ScriptedModel([strict], loop=True), session_manager=place, callback_handler=None) as agent:
        with pytest.raises(ModelFailed):
            await agent.invoke_async([IMAGE])
    async with Sessions(SQLiteSessions(tmp_path / "a.db")) as sessions:
        await sessions.export("s", tmp_path / "s.jsonl")
    assert base64.b64encode(IMAGE["image"]["source"]["bytes"]).decode() in (tmp_path / "s.jsonl").read_text()


async def test_a_prompt_that_the_providers_filter_refused_is_not_sent_again() -> None:
    def filtered(messages: Sequence[Message], *_: Any) -> Any:
        if "something bad" in repr(messages):
            return ModelRefused("the provider's filter refused the prompt", status=400, refused_prompt=True)
        return "Hello."

    model = ScriptedModel([filtered], loop=True)
    agent = Agent(model, callback_handler=None)
    with pytest.raises(ModelRefused):
        await agent.invoke_async("something bad")
    assert str(await agent.invoke_async("Hi.")) == "Hello."
    assert str(await agent.invoke_async("Hi again.")) == "Hello."


async def test_a_refusal_for_another_reason_leaves_the_picture_in() -> None:
    model = ScriptedModel([ModelFailed("temperature is too high", status=400), "A cat."])
    agent = Agent(model, callback_handler=None)
    with pytest.raises(ModelFailed):
        await agent.invoke_async([IMAGE])
    assert str(await agent.invoke_async(None)) == "A cat."
    assert IMAGE in model.calls[1].messages[0]["content"]
