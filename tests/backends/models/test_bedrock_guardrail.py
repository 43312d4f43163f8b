"""A guardrail on Bedrock's wire protocol, end to end: what it blocked is neither in the session nor shown again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import Agent, BedrockModel, SQLiteSessionManager
from repertory.core.messages import text_of
from tests.backends.models.wire_server import Exchange, frame, text_frames, wire_server

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("aws_environment")]

SECRET = "4711-0815-secret"
BLOCKED = {"g": {"topicPolicy": {"topics": [{"name": "x", "type": "DENY", "action": "BLOCKED"}]}}}
USAGE = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}


def answer(text: str, trace: dict[str, Any] | None, *, metadata: bool = True) -> list[bytes]:
    """An answer that the guardrail put in the place of the model's, or let pass."""
    reason = "end_turn" if trace is None else "guardrail_intervened"
    said = {"usage": USAGE, "metrics": {"latencyMs": 1}, **({"trace": {"guardrail": trace}} if trace else {})}
    frames = [*text_frames(text)[:-2], frame("messageStop", {"stopReason": reason})]
    return [*frames, frame("metadata", said)] if metadata else frames


@pytest.mark.parametrize(
    ("config", "blocked", "shown"),
    [
        ({}, answer("I cannot.", {"inputAssessment": BLOCKED}), ["[User input redacted.]", "I cannot."]),
        ({}, answer("I cannot.", {}), ["[User input redacted.]", "I cannot."]),
        ({}, answer("I cannot.", {}, metadata=False), ["[User input redacted.]", "I cannot."]),
        (
            {"guardrail_redact_output": True},
            answer(SECRET, {"outputAssessments": {"g": [BLOCKED["g"]]}}),
            ["and what is mine?", "[Assistant output redacted.]"],
        ),
    ],
    ids=["the input", "no trace", "no metadata", "the answer alone"],
)
async def test_what_was_blocked_is_gone(
    config: dict[str, Any], blocked: list[bytes], shown: list[str], tmp_path: Path
) -> None:
    answers = [blocked, answer("Hello.", None)]

    async def handle(exchange: Exchange) -> None:
        await exchange.stream(*answers.pop(0))

    prompt = f"my number is {SECRET}" if shown[0].startswith("[") else shown[0]
    async with wire_server(handle) as server:
        model = BedrockModel(endpoint_url=server.url, guardrail_id="g", guardrail_version="1", **config)
        manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
        with anyio.fail_after(20):
            async with Agent(model, session_manager=manager, callback_handler=None) as agent:
                result = await agent.invoke_async(prompt)
                assert (result.stop_reason, str(result)) == ("guardrail_intervened", shown[1])
                await agent.invoke_async("hello")
                assert [text_of(message) for message in agent.messages] == [*shown, "hello", "Hello."]
        asked = server.requests[-1].body["messages"]
    assert [block["text"] for message in asked for block in message["content"]] == [*shown, "hello"]
    bodies = contents(tmp_path)
    assert bodies
    assert not [body for body in bodies if SECRET.encode() in body]


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
