"""Agents whose model writes code, in worlds that can be left at any moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from repertory import Agent, AgentSpec, CodeMode, Runtime, ScriptedModel, tool
from repertory.core.messages import tool_results
from tests.simulation.killed_worlds import World, killed

Answer = Callable[[Any], object]
"""A person's answer to a question."""


def asks_for(code: str) -> dict[str, Any]:
    """A model's answer that runs this code."""
    return {"toolUse": {"name": "run_code", "input": {"code": code}}}


async def printed(code: str, *tools: Any, plugin: CodeMode | None = None, **options: Any) -> str:
    """What an agent's model gets for this code."""
    model = ScriptedModel([asks_for(code), "Done."])
    plugins = [*options.pop("plugins", ()), plugin or CodeMode()]
    agent = Agent(model, tools=list(tools), plugins=plugins, callback_handler=None, **options)
    await agent.invoke_async("go")
    return result_text(agent)


def result_text(agent: Any) -> str:
    """The text of the last tool result."""
    found = [result for message in agent.messages for result in tool_results(message)]
    return "".join(str(block.get("text")) for block in found[-1]["content"])


def coder(code: str, tools: Sequence[Any], **options: Any) -> AgentSpec:
    """An agent whose model runs this code, and says what it has printed."""

    def reply(messages: Any, *_: object) -> object:
        results = list(tool_results(messages[-1]))
        return str(results[0]["content"][0].get("text")) if results else asks_for(code)

    plugin, replies = options.pop("plugin", None) or CodeMode(), list[Any]([reply])
    model = ScriptedModel(replies, loop=True)
    return AgentSpec(name="coder", model=model, tools=list(tools), plugins=[plugin], **options)


async def to_the_end(world: World, spec: AgentSpec, answer: Answer) -> tuple[str, list[Any]]:
    """The answer of a turn that a kill has left so, and the questions that a person was asked."""
    asked: list[Any] = []
    prompt: Any = "go"
    for _ in range(20):
        async with Runtime(sessions=killed(world), wakes_max=0) as runtime:
            result = await runtime.agent(spec).session("s").invoke(prompt, idempotency_token="t")
        if result.stop_reason != "interrupt":
            return str(result), asked
        asked += result.interrupts
        prompt = [one.respond(answer(one)) for one in result.interrupts]
    raise AssertionError("the person is asked for ever")


def acts(world: World, name: str, **settings: Any) -> Any:
    """A tool whose effect is seen outside, as its name, its value, the key of its step, and its idempotency key."""

    @tool(name=name, **settings)
    async def act(value: int, tool_context: Any) -> int:
        """Do it.

        Args:
            value: A number.
        """
        step = tool_context.tool_use["toolUseId"].partition("/")[2]
        world.effect(f"{name} {value} {step} {tool_context.idempotency_key}")
        return value * 10

    return act
