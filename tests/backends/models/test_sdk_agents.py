"""Agents on Anthropic's and OpenAI's wire protocols, end to end: against aimock on loopback, stored in SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import Agent, SQLiteSessionManager
from repertory.core.messages import text_of
from repertory.errors import ModelFailed, Throttled
from repertory.toolbox.calculator import calculator
from tests.backends.models.aimock_server import aimock
from tests.backends.models.sdk_services import ANTHROPIC, OPENAI, SdkService, on_both

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("no_keys")]

FIXTURES: list[dict[str, Any]] = [
    {"match": {"userMessage": "hello"}, "response": {"content": "Hello from a peer."}},
    {
        "match": {"userMessage": "sum", "hasToolResult": False},
        "response": {
            "content": "Let me see.",
            "reasoning": "A sum, then.",
            "toolCalls": [{"name": "calculator", "arguments": '{"expression": "6*7"}', "id": "call_1"}],
        },
    },
    {"match": {"toolCallId": "call_1"}, "response": {"content": "It is 42."}},
    {"match": {"userMessage": "throttle"}, "response": {"error": {"message": "no"}, "status": 429}},
    {"match": {"userMessage": "refuse"}, "response": {"error": {"message": "no"}, "status": 400}},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with aimock(FIXTURES, tmp_path_factory.mktemp("aimock"), "--strict") as url:
        yield url


def agent_on(service: SdkService, server: str, folder: Path, **config: Any) -> Agent:
    return Agent(
        service.model(server, **config),
        tools=[calculator],
        system_prompt="Be brief.",
        session_manager=SQLiteSessionManager("s1", path=folder / "a.db"),
        callback_handler=None,
        retry_strategy=None,
    )


@on_both
@pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "whole"])
@pytest.mark.anyio
async def test_a_turn_with_a_tool_runs_and_is_there_for_the_next_agent(
    service: SdkService, server: str, tmp_path: Path, streaming: bool
) -> None:
    with anyio.fail_after(20):
        async with agent_on(service, server, tmp_path, streaming=streaming) as agent:
            assert str(await agent.invoke_async("what is the sum?")) == "It is 42."
        async with agent_on(service, server, tmp_path) as again:
            said = [text_of(message) for message in again.messages]
    assert said == ["what is the sum?", "Let me see.", "", "It is 42."]


@pytest.mark.anyio
async def test_a_conversation_goes_on_with_another_provider(server: str, tmp_path: Path) -> None:
    """What one of them thought, and asked of tools, is history that the other accepts."""
    with anyio.fail_after(20):
        async with agent_on(OPENAI, server, tmp_path) as agent:
            await agent.invoke_async("what is the sum?")
        async with agent_on(ANTHROPIC, server, tmp_path) as agent:
            assert str(await agent.invoke_async("hello")) == "Hello from a peer."
        async with agent_on(OPENAI, server, tmp_path) as agent:
            assert str(await agent.invoke_async("hello")) == "Hello from a peer."
            assert len(agent.messages) == 8


@pytest.mark.anyio
async def test_thinking_goes_back_with_its_signature_as_the_service_demands(server: str, tmp_path: Path) -> None:
    """In strict mode aimock refuses a tool turn whose thinking has lost it."""
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    with anyio.fail_after(20):
        async with agent_on(ANTHROPIC, server, tmp_path, params=thinking) as agent:
            assert str(await agent.invoke_async("what is the sum?")) == "It is 42."


@on_both
@pytest.mark.parametrize(("prompt", "error"), [("throttle", Throttled), ("refuse", ModelFailed)])
@pytest.mark.anyio
async def test_a_failure_of_the_service_is_typed_and_the_next_turn_works(
    service: SdkService, server: str, tmp_path: Path, prompt: str, error: type[Exception]
) -> None:
    with anyio.fail_after(20):
        async with agent_on(service, server, tmp_path) as agent:
            with pytest.raises(error):
                await agent.invoke_async(prompt)
            assert str(await agent.invoke_async("hello")) == "Hello from a peer."


@on_both
def test_sync_calls_share_one_client_from_call_to_call(service: SdkService, server: str, tmp_path: Path) -> None:
    agent = agent_on(service, server, tmp_path)
    assert str(agent("hello")) == "Hello from a peer."
    assert str(agent("what is the sum?")) == "It is 42."
