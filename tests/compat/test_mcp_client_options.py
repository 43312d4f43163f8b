"""What a client says to a server, how it is reached, and what it is asked: real MCP servers, on both event loops."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp_types import ElicitResult, Tool

from repertory import Agent, MCPClient, ScriptedModel
from repertory.compat.mcp import MCPAgentTool
from repertory.compat.programs import SdkAgent
from repertory.errors import ClientNotOpen, Invalid, NotReady, Unavailable
from tests.mcp.mcp_servers import TOYS

pytestmark = pytest.mark.real_time

ASKING = """
from typing import Annotated
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, MCPServer, Resolve
from pydantic import BaseModel

class Answer(BaseModel):
    size: str

server = MCPServer("asking")

async def size(item: str) -> Elicit[Answer]:
    return Elicit(f"which size of {item}?", Answer)

@server.tool()
async def order(item: str, found: Annotated[ElicitationResult[Answer], Resolve(size)]) -> str:
    return f"{found.action} {found.data.size}" if found.action == "accept" else found.action

@server.tool()
async def caller(context: Context) -> str:
    known = context.session.client_params.client_info
    return f"{known.name} {known.version}"

server.run("stdio")
"""


def asking(tmp_path: Path, **settings: Any) -> MCPClient:
    (tmp_path / "asking.py").write_text(ASKING)
    return MCPClient.stdio(sys.executable, [str(tmp_path / "asking.py")], **settings)


@pytest.mark.anyio
async def test_a_servers_question_is_answered_by_the_callback(tmp_path: Path) -> None:
    asked: list[str] = []

    async def answer(context: object, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"size": "large"})

    async with asking(tmp_path, elicitation_callback=answer) as client:
        result = await client.call_tool_async("1", "order", {"item": "tea"})
    assert result["content"] == [{"text": "accept large"}]
    assert asked == ["which size of tea?"]


@pytest.mark.anyio
async def test_a_server_is_told_which_program_calls(tmp_path: Path) -> None:
    async with asking(tmp_path, application_name="shop", application_version="7") as client:
        result = await client.call_tool_async("1", "caller", read_timeout_seconds=timedelta(seconds=20))
    assert result["content"] == [{"text": "shop 7"}]


def test_one_tool_of_a_server_is_given_to_an_agent_under_another_name(tmp_path: Path) -> None:
    with asking(tmp_path, application_name="shop", application_version="7") as client:
        caller = MCPAgentTool(Tool(name="caller", input_schema={"type": "object"}), client, name_override="who")
        agent = Agent(ScriptedModel([{"toolUse": {"name": "who", "input": {}}}, "ok"]), tools=[caller])
        agent("go")
        assert agent.messages[2]["content"][0]["toolResult"]["content"] == [{"text": "shop 7"}]


def test_a_client_that_is_not_open_is_not_ready_and_not_connected(tmp_path: Path) -> None:
    client = MCPClient.stdio(sys.executable, [TOYS, str(tmp_path)])
    for ask in (client.list_tools_sync, client.list_prompts_sync, client.list_resource_templates_sync):
        with pytest.raises(ClientNotOpen, match="client session is not running") as met:
            ask()
        assert isinstance(met.value, NotReady)
        assert isinstance(met.value, Unavailable)


def test_an_agent_of_the_sdk_knows_the_tools_of_its_servers_before_its_first_call(tmp_path: Path) -> None:
    agent = SdkAgent(ScriptedModel("ok"), tools=[MCPClient.stdio(sys.executable, [TOYS, str(tmp_path)], prefix="toy")])
    assert "tools=0" in repr(agent)  # To look at an agent starts no program.
    assert agent.tool.toy_add(a=1, b=2)["content"] == [{"text": "3"}]
    assert "toy_add" in agent.tool_names
    assert str(agent("go")).strip() == "ok"


@pytest.mark.anyio
async def test_inside_an_event_loop_its_first_call_opens_them(tmp_path: Path) -> None:
    agent = SdkAgent(ScriptedModel("ok"), tools=[MCPClient.stdio(sys.executable, [TOYS, str(tmp_path)])])
    assert agent.tool_names == []
    await agent.invoke_async("go")
    assert "add" in agent.tool_names


def test_a_server_that_cannot_be_reached_is_told_to_who_asks_for_its_tools() -> None:
    agent = SdkAgent(ScriptedModel("ok"), tools=[MCPClient.stdio("/no/such/program")])
    for ask in (lambda: agent.tool_names, lambda: agent.tool.add):
        with pytest.raises(Unavailable):
            ask()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "must be provided"),
        ({"url": "ftp://x"}, "http:// or https:// URL"),
        ({"transport": lambda: None, "url": "http://x"}, "not both"),
        ({"transport": lambda: None, "headers": {}}, "require 'url'"),
        ({"url": "http://x", "auth": {"client_id": "a"}}, "missing required keys"),
        ({"url": "http://x", "auth": {"client_id": "a", "client_secret": 1}}, "to be strings"),
        ({"url": "http://x", "auth": {"client_id": "a", "client_secret": "b", "scopes": "c"}}, "list of strings"),
    ],
)
def test_a_server_is_named_once_and_well(given: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said) as met:
        MCPClient(**given)
    assert "client_secret=" not in str(met.value)
