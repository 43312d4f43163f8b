"""An agent on Bedrock's wire protocol, end to end: against aimock over loopback HTTP, stored in SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import Agent, BedrockModel, SQLiteSessionManager
from repertory.core.messages import text_of
from repertory.errors import ModelFailed, ModelStreamBroken, Throttled
from repertory.toolbox.calculator import calculator
from tests.backends.models.aimock_server import aimock

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("aws_environment")]

FIXTURES: list[dict[str, Any]] = [
    {"match": {"userMessage": "hello"}, "response": {"content": "Hello from a peer."}},
    {
        "match": {"userMessage": "sum", "hasToolResult": False},
        "response": {"toolCalls": [{"name": "calculator", "arguments": '{"expression": "6*7"}', "id": "call_1"}]},
    },
    {"match": {"toolCallId": "call_1"}, "response": {"content": "It is 42."}},
    {"match": {"userMessage": "throttle"}, "response": {"error": {"message": "no"}, "status": 429}},
    {"match": {"userMessage": "refuse"}, "response": {"error": {"message": "no"}, "status": 400}},
    {
        "match": {"userMessage": "cut"},
        "response": {"content": "a long answer that is cut off somewhere in the middle"},
        "chunkSize": 5,
        "latency": 10,
        "truncateAfterChunks": 3,
    },
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with aimock(FIXTURES, tmp_path_factory.mktemp("aimock")) as url:
        yield url


def agent_on(server: str, folder: Path) -> Agent:
    return Agent(
        BedrockModel(endpoint_url=server),
        tools=[calculator],
        session_manager=SQLiteSessionManager("s1", path=folder / "a.db"),
        callback_handler=None,
        retry_strategy=None,
    )


@pytest.mark.anyio
async def test_a_turn_with_a_tool_runs_and_is_there_for_the_next_agent(server: str, tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with agent_on(server, tmp_path) as agent:
            assert str(await agent.invoke_async("what is the sum?")) == "It is 42."
        async with agent_on(server, tmp_path) as again:
            assert [text_of(message) for message in again.messages] == ["what is the sum?", "", "", "It is 42."]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("prompt", "error"), [("throttle", Throttled), ("refuse", ModelFailed), ("cut", ModelStreamBroken)]
)
async def test_a_failure_of_the_service_is_typed_and_the_next_turn_works(
    server: str, tmp_path: Path, prompt: str, error: type[Exception]
) -> None:
    with anyio.fail_after(20):
        async with agent_on(server, tmp_path) as agent:
            with pytest.raises(error):
                await agent.invoke_async(prompt)
            assert str(await agent.invoke_async("hello")) == "Hello from a peer."
            assert [message["role"] for message in agent.messages] == ["user", "assistant", "user", "assistant"]


def test_sync_calls_share_one_client_from_call_to_call(server: str, tmp_path: Path) -> None:
    agent = agent_on(server, tmp_path)
    assert str(agent("hello")) == "Hello from a peer."
    assert str(agent("what is the sum?")) == "It is 42."
