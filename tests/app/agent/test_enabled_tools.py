"""Which tools the model is told of, and may run: chosen at the start, and again between any two steps."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from repertory import (
    AfterToolsEvent,
    Agent,
    AgentSpec,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    Runtime,
    ScriptedModel,
    ToolContext,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import tool_results
from repertory.errors import Invalid

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


@tool
async def alpha() -> str:
    """First."""
    await anyio.lowlevel.checkpoint()
    return "a"


@tool
async def beta() -> str:
    """Second."""
    await anyio.lowlevel.checkpoint()
    return "b"


@tool(name="gamma-ray")
async def gamma() -> str:
    """Third."""
    await anyio.lowlevel.checkpoint()
    return "c"


@tool
async def choose(names: list[str] | None, agent: Agent) -> str:
    """Choose the tools of the next step."""
    await anyio.lowlevel.checkpoint()
    agent.enabled_tools = names
    return "chosen"


TOOLS = [alpha, beta, gamma, choose]
NAMES = ["alpha", "beta", "gamma-ray", "choose"]


def use(name: str, **arguments: object) -> dict[str, object]:
    return {"toolUse": {"name": name, "input": arguments}}


def told(model: ScriptedModel) -> list[list[str]]:
    """The names that the model was told of, per call."""
    return [[spec["name"] for spec in call.tool_specs or ()] for call in model.calls]


def texts(agent: Agent) -> list[str]:
    found = [result for message in agent.messages for result in tool_results(message)]
    return [str(result["content"][0]["text"]) for result in found]


@pytest.mark.anyio
async def test_without_a_choice_the_model_is_told_of_all_and_with_one_of_those_in_the_order_given() -> None:
    model = ScriptedModel("ok", loop=True)
    agent = Agent(model, tools=TOOLS, callback_handler=None)
    assert agent.enabled_tools is None
    await agent.invoke_async("one")
    agent.enabled_tools = ["gamma_ray", "alpha"]
    assert agent.enabled_tools == ["alpha", "gamma-ray"]
    await agent.invoke_async("two")
    agent.enabled_tools = []
    await agent.invoke_async("three")
    agent.enabled_tools = None
    await agent.invoke_async("four")
    assert told(model) == [NAMES, ["alpha", "gamma-ray"], [], NAMES]
    assert agent.tool_names == NAMES


@pytest.mark.anyio
async def test_a_tool_that_is_not_enabled_does_not_run_and_the_model_is_told_those_that_are() -> None:
    agent = Agent(ScriptedModel([use("beta"), "ok"]), tools=TOOLS, enabled_tools=["alpha"], callback_handler=None)
    await agent.invoke_async("go")
    assert texts(agent) == ["Unknown tool: beta. Available tools: alpha."]


def test_unknown_names_are_refused_and_change_nothing() -> None:
    with pytest.raises(Invalid, match="no such tools") as refused:
        Agent(ScriptedModel([]), tools=TOOLS, enabled_tools=["alpha", "delta"])
    assert refused.value.fields == {"unknown": ["delta"], "known": NAMES}
    agent = Agent(ScriptedModel([]), tools=TOOLS, enabled_tools=["alpha"])
    with pytest.raises(ValueError, match="no such tools"):
        agent.enabled_tools = ["delta"]
    assert agent.enabled_tools == ["alpha"]


@pytest.mark.anyio
@pytest.mark.parametrize("held", [True, False])
async def test_a_tool_may_choose_the_tools_of_the_next_step(held: bool) -> None:
    model = ScriptedModel([use("choose", names=["beta"]), [use("beta"), use("alpha")], "done"])
    agent = Agent(model, tools=TOOLS, callback_handler=None)
    if held:
        async with agent:
            await agent.invoke_async("go")
    else:
        await agent.invoke_async("go")
    assert told(model) == [NAMES, ["beta"], ["beta"]]
    assert texts(agent) == ["chosen", "b", "Unknown tool: alpha. Available tools: beta."]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [BeforeInvocationEvent, BeforeModelCallEvent, AfterToolsEvent])
async def test_a_hook_may_choose_them_too(kind: Any) -> None:
    """What is assigned before the model is asked counts for that very call, but for the hook that sees the request."""
    model = ScriptedModel([use("alpha"), use("beta"), "done"])
    agent = Agent(model, tools=TOOLS, callback_handler=None)

    def narrow(event: Any) -> None:
        event.agent.enabled_tools = ["alpha"] if kind is not AfterToolsEvent else ["beta"]

    agent.add_hook(narrow, kind)
    await agent.invoke_async("go")
    if kind is AfterToolsEvent:
        assert told(model) == [NAMES, ["beta"], ["beta"]]
        assert texts(agent) == ["a", "b"]
    else:
        assert told(model)[1:] == [["alpha"], ["alpha"]]
        assert texts(agent) == ["a", "Unknown tool: beta. Available tools: alpha."]


@pytest.mark.anyio
async def test_a_model_that_answers_may_be_exchanged_and_told_otherwise_between_two_steps() -> None:
    first, second = ScriptedModel([use("change")]), ScriptedModel(["done"])

    @tool
    async def change(tool_context: ToolContext) -> str:
        """Exchange the model."""
        await anyio.lowlevel.checkpoint()
        tool_context.agent.model = second
        tool_context.agent.system_prompt = "Be brief."
        return "changed"

    agent = Agent(first, tools=[change], system_prompt="Be kind.", callback_handler=None)
    async with agent:
        assert str(await agent.invoke_async("go")) == "done"
    assert [call.system_prompt for call in (*first.calls, *second.calls)] == ["Be kind.", "Be brief."]


@pytest.mark.anyio
async def test_sessions_of_a_runtime_choose_each_for_itself() -> None:
    model = ScriptedModel([use("choose", names=["beta"]), "done", "fine", "and"])
    async with Runtime() as runtime:
        hosted = runtime.agent(AgentSpec(name="a", model=model, tools=TOOLS, enabled_tools=["choose", "beta"]))
        one, other = hosted.session("one"), hosted.session("other")
        await one.invoke("go")
        await other.invoke("go")
        await one.invoke("go")
    assert told(model) == [["beta", "choose"], ["beta"], ["beta", "choose"], ["beta"]]
