"""The members by which programs of the SDK know a tool, on both event loops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import Field
from repertory.strands.tools import normalize_tool_spec  # type: ignore[import-not-found]

from repertory import Agent, ScriptedModel, ToolContext, tool
from repertory.errors import Invalid


@tool
async def count(upto: int, step: int = Field(default=1, ge=1)) -> AsyncIterator[object]:
    """Count."""
    for each in range(0, upto, step):
        yield each
    yield {"last": upto}


async def events_of(asked: Any, given: object, **state: Any) -> list[Any]:
    return [event async for event in asked.stream({"toolUseId": "t1", "input": given}, state)]


@pytest.mark.anyio
async def test_a_tool_run_by_hand_yields_its_pieces_and_then_its_result_as_text() -> None:
    *pieces, end = await events_of(count, {"upto": 2})
    assert [each["tool_stream_event"]["data"] for each in pieces] == [0, 1, {"last": 2}]
    assert end["tool_result"] == {"toolUseId": "t1", "status": "success", "content": [{"text": '{"last": 2}'}]}
    (failed,) = await events_of(count, {"upto": 2, "step": 0})
    assert failed["tool_result"]["status"] == "error"
    assert isinstance(failed.exception, Invalid)


@pytest.mark.anyio
async def test_a_tool_run_by_hand_for_an_agent_has_the_agents_signal() -> None:
    seen: list[object] = []

    @tool(context=True)
    def look(tool_context: ToolContext) -> None:
        """Look."""
        seen.append(tool_context.cancel_signal)

    agent = Agent(ScriptedModel([]))
    await events_of(look, {}, agent=agent)
    await events_of(look, {})
    assert seen[0] is agent.cancel_signal is not seen[1]


@pytest.mark.anyio
async def test_a_spec_that_is_assigned_counts_from_the_next_step_on() -> None:
    @tool(context=True)
    def look(place: str, tool_context: ToolContext) -> str:
        """Look."""
        look.tool_spec = {"name": "look", "description": "Look again.", "inputSchema": {"type": "object"}}  # type: ignore[typeddict-item]
        return place

    model = ScriptedModel([{"toolUse": {"name": "look", "input": {"place": "here"}}}, "done"])
    agent = Agent(model, tools=[look], callback_handler=None)
    await agent.invoke_async("go")
    assert [(call.tool_specs or [])[0]["description"] for call in model.calls] == ["Look.", "Look again."]
    assert (model.calls[1].tool_specs or [])[0]["inputSchema"]["json"] == {"type": "object", "properties": {}}
    with pytest.raises(Invalid, match="cannot change tool name"):
        look.tool_spec = {**look.tool_spec, "name": "other"}


def test_completing_a_spec_changes_a_copy() -> None:
    spec = {"name": "a", "description": "A.", "inputSchema": {"properties": {"x": {}}}}
    whole = normalize_tool_spec(spec)["inputSchema"]["json"]
    assert whole["properties"] == {"x": {"type": "string", "description": "Property x"}}
    assert spec["inputSchema"] == {"properties": {"x": {}}}
