"""A service that is as strict as the real one, on the wire: refusals end no conversation, and changes are told."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from typing import Any

import pytest

from repertory import Agent, BedrockModel, SQLiteSessionManager
from repertory.errors import Invalid, ModelFailed
from tests.backends.models.sdk_services import ANTHROPIC, OPENAI
from tests.backends.models.wire_server import Exchange, text_frames, wire_server
from tests.telemetry.telemetry_recorder import recording

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("no_keys")]

BAD = b"not a picture"
IMAGE: dict[str, Any] = {"image": {"format": "png", "source": {"bytes": BAD}}}
IN_BASE64 = base64.b64encode(BAD).decode()


def agent_on(model: Any, folder: Path) -> Agent:
    place = SQLiteSessionManager("s", path=folder / "a.db")
    return Agent(model, session_manager=place, callback_handler=None, retry_strategy=None)


def bedrock(url: str) -> BedrockModel:
    import boto3

    session = boto3.Session(aws_access_key_id="k", aws_secret_access_key="s", region_name="us-east-1")
    return BedrockModel(boto_session=session, endpoint_url=url, model_id="us.amazon.nova-pro-v1:0")


async def answer_on_bedrock(exchange: Exchange) -> None:
    if IN_BASE64 in repr(exchange.body):
        text = "The model returned the following errors: Could not process image"
        await exchange.answer(400, {"message": text}, x_amzn_ErrorType="ValidationException")
    else:
        await exchange.stream(*text_frames("2"))


async def test_a_refused_picture_is_left_out_of_later_calls_to_bedrock(tmp_path: Path) -> None:
    async with wire_server(answer_on_bedrock) as server:
        async with agent_on(bedrock(server.url), tmp_path) as agent:
            with pytest.raises(ModelFailed, match=r"messages\[0\]\.content\[1\] \(image\)"):
                await agent.invoke_async([{"text": "What is this?"}, IMAGE])
            assert str(await agent.invoke_async("Never mind. What is 1 + 1?")) == "2"
        async with agent_on(bedrock(server.url), tmp_path) as agent:
            assert str(await agent.invoke_async("And 0 + 2?")) == "2"


async def test_a_path_in_a_refusal_says_which_of_two_pictures_is_meant(tmp_path: Path) -> None:
    async def handle(exchange: Exchange) -> None:
        if IN_BASE64 in repr(exchange.body):
            text = "messages.0.content.2.image.source.base64: The image cannot be decoded"
            await exchange.answer(400, ANTHROPIC.error("invalid_request_error", text))
        else:
            await exchange.stream(*ANTHROPIC.text("Red."))

    good: dict[str, Any] = {"image": {"format": "png", "source": {"bytes": b"a picture"}}}
    async with ANTHROPIC.serving(handle) as (model, server):
        agent = Agent(model, callback_handler=None)
        with pytest.raises(ModelFailed, match=r"messages\[0\]\.content\[2\] \(image\)"):
            await agent.invoke_async([{"text": "Look."}, good, IMAGE])
        assert str(await agent.invoke_async("Which color has the first?")) == "Red."
        assert base64.b64encode(b"a picture").decode() in repr(server.requests[-1].body)


async def test_a_block_that_the_model_cannot_send_ends_one_call_and_no_conversation(tmp_path: Path) -> None:
    async with OPENAI.serving(OPENAI.streaming(*OPENAI.text("Hello."))) as (model, server):
        agent = Agent(model, callback_handler=None)
        video: Any = {"video": {"format": "mp4", "source": {"bytes": b"v"}}}
        with pytest.raises(Invalid, match="OpenAI cannot take this video block"):
            await agent.invoke_async([{"text": "Look."}, video])
        assert not server.requests
        for prompt in ("Never mind.", "Are you there?"):
            assert str(await agent.invoke_async(prompt)) == "Hello."
        assert "this model cannot be shown it" in repr(server.requests[-1].body)


async def test_what_was_changed_is_in_the_log_and_the_trace_and_none_of_the_content(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "repertory.models")
    messages: Any = [
        {"role": "user", "content": [{"text": "Secret words"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "secret tool", "input": {}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "status": "error", "content": []}}]},
    ]
    with recording(monkeypatch) as recorded:
        async with ANTHROPIC.serving(ANTHROPIC.streaming(*ANTHROPIC.text("Hello."))) as (model, _):
            await Agent(model, messages=messages, callback_handler=None).invoke_async(None)
    lines = [record.getMessage() for record in caplog.records if "conversation made to fit" in record.getMessage()]
    assert len(lines) == 1
    assert "replaced a tool name that the service does not take; filled a tool result without content" in lines[0]
    assert "ecret" not in lines[0]
    (told,) = [event for span in recorded.spans for event in span.events if event.name.endswith("conversation_fitted")]
    assert len(told.attributes["repertory.changes"]) == 2  # type: ignore[index, arg-type]
