"""What users write around an agent, as type checkers see it: `mypy --strict` accepts this file."""

from __future__ import annotations

from typing import assert_type

from pydantic import BaseModel

from repertory import (
    Agent,
    AgentResult,
    AgentSpec,
    AgentStreamEvent,
    BeforeToolCallEvent,
    HookRegistry,
    MessageAddedEvent,
    ModelRetryStrategy,
    Plugin,
    Runtime,
    ScriptedModel,
    hook,
    tool,
)


class Person(BaseModel):
    name: str


class Audit:
    def register_hooks(self, registry: HookRegistry) -> None:
        registry.add_callback(MessageAddedEvent, self.on_message)

    def on_message(self, event: MessageAddedEvent) -> None:
        print(event.message["role"])


class Guard(Plugin):
    name = "guard"

    @hook
    async def on_tool(self, event: BeforeToolCallEvent) -> None:
        event.cancel_tool = "not today"

    @tool
    def rules(self) -> str:
        return "none"


def build() -> Agent:
    return Agent(
        ScriptedModel(["hello"]),
        system_prompt=[{"text": "Be brief."}, {"cachePoint": {"type": "default"}}],
        hooks=[Audit()],
        plugins=[Guard()],
        retry_strategy=ModelRetryStrategy(max_attempts=3),
        enabled_tools=["rules"],
    )


async def calls(agent: Agent) -> None:
    result = await agent.invoke_async("hi", limits={"turns": 3}, timeout_s=5.0, idempotency_token="t")
    assert_type(result, AgentResult)
    assert_type(await agent.structured_output_async(Person, "who"), Person)
    async for event in agent.stream_async("hi", invocation_state={"user": "ann"}):
        assert_type(event, AgentStreamEvent)
    agent.add_hook(lambda event: print(event), MessageAddedEvent)
    agent.cancel(message="enough", after_current_tools=True)
    async with Runtime() as runtime:
        session = runtime.agent(AgentSpec(plugins=[Guard()])).session("s")
        assert_type(await session.invoke("hi", busy="steer"), AgentResult)
