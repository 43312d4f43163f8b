"""A provider wants its own call of a remote MCP server approved: a person is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repertory import Agent, HumanInTheLoop, ScriptedModel, SQLiteSessionManager, tool
from repertory.errors import Invalid
from tests.actors.toy_tool_source import ToySource

pytestmark = pytest.mark.anyio

ITEM = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "shop",
    "name": "order",
    "arguments": '{"item": "tea"}',
}
ASKS: dict[str, Any] = {"toolUse": {"toolUseId": "mcpr_1", "name": "mcp_approval_request", "input": ITEM}}


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        (True, {"approve": True}),
        ("yes", {"approve": True}),
        ({"approve": True}, {"approve": True}),
        ({"approve": "yes"}, {"approve": True}),
        (False, {"approve": False}),
        ("no", {"approve": False}),
        ("Too expensive.", {"approve": False, "reason": "Too expensive."}),
        ({"approve": False, "reason": "Too expensive."}, {"approve": False, "reason": "Too expensive."}),
        (None, {"approve": False}),
    ],
)
async def test_a_person_decides_also_in_another_process(answer: Any, decision: dict[str, Any], tmp_path: Path) -> None:
    async def place(model: ScriptedModel) -> Agent:
        return Agent(model, session_manager=SQLiteSessionManager("s", path=tmp_path / "a.db"), callback_handler=None)

    async with await place(ScriptedModel([ASKS])) as agent:
        result = await agent.invoke_async("Order tea.")
        assert result.stop_reason == "interrupt"
        (asked,) = result.interrupts
        assert asked.reason == {"server": "shop", "tool": "order", "arguments": '{"item": "tea"}'}
    model = ScriptedModel(["Done."])
    async with await place(model) as agent:
        response = {"interruptResponse": {"interruptId": asked.id, "response": answer}}
        assert str(await agent.invoke_async([response])) == "Done."
    result_block = model.calls[0].messages[-1]["content"][0]["toolResult"]  # type: ignore[typeddict-item]
    assert result_block["content"] == [{"json": decision}]


async def test_somebody_who_approves_each_tool_is_asked_once() -> None:
    agent = Agent(ScriptedModel([ASKS, "Done."]), interventions=[HumanInTheLoop()], callback_handler=None)
    (asked,) = (await agent.invoke_async("Order tea.")).interrupts
    assert asked.reason == {"server": "shop", "tool": "order", "arguments": '{"item": "tea"}'}
    response = {"interruptResponse": {"interruptId": asked.id, "response": "yes"}}
    assert str(await agent.invoke_async([response])) == "Done."


@pytest.mark.parametrize("name", ["mcp_approval_request", "mcp-approval-request"])
async def test_no_tool_has_the_name_of_such_a_request(name: str) -> None:
    """It would be approved by nobody: a person approves the request itself, and not its use."""

    @tool(name=name)
    def send(type: str, id: str) -> str:
        return id

    with pytest.raises(Invalid, match="rename"):
        Agent(ScriptedModel(["x"]), tools=[send])
    source = ToySource()
    source.names = [name, "echo"]
    async with Agent(ScriptedModel([ASKS]), tools=[source], interventions=[HumanInTheLoop()]) as agent:
        assert agent.tool_names == ["echo"]
        (asked,) = (await agent.invoke_async("Order tea.")).interrupts
    assert asked.reason == {"server": "shop", "tool": "order", "arguments": '{"item": "tea"}'}
    assert source.calls == []


async def test_a_tool_of_that_name_that_a_model_makes_up_asks_nobody() -> None:
    made_up: dict[str, Any] = {"toolUse": {"name": "mcp_approval_request", "input": {"name": "order"}}}
    assert str(await Agent(ScriptedModel([made_up, "Done."]), callback_handler=None).invoke_async("Order.")) == "Done."


async def test_a_new_prompt_with_dropped_questions_goes_on_without_an_approval() -> None:
    model = ScriptedModel([ASKS, "As you like."])
    agent = Agent(model, callback_handler=None)
    await agent.invoke_async("Order tea.")
    assert str(await agent.invoke_async("No tea.", drop_interrupts=True)) == "As you like."
    result = model.calls[1].messages[-1]["content"][0]["toolResult"]  # type: ignore[typeddict-item]
    assert result["status"] == "error"
