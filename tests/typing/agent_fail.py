"""What mypy must refuse around an agent. An ignore that is not needed is an error."""

from __future__ import annotations

from repertory import Agent, AgentSpec, BeforeToolCallEvent, ScriptedModel

agent = Agent(ScriptedModel(["hello"]))
Agent(sistem_prompt="x")  # type: ignore[call-arg]
Agent(busy="sometimes")  # type: ignore[arg-type]
agent("hi", limit=3)  # type: ignore[call-arg]
agent("hi", limits={"rounds": 3})  # type: ignore[arg-type]
agent("hi", busy="later")  # type: ignore[arg-type]
AgentSpec(durability="best")  # type: ignore[arg-type]
text: int = str(agent("hi"))  # type: ignore[assignment]


def refuse(event: BeforeToolCallEvent) -> None:
    event.cancel_tool = 3  # type: ignore[assignment]
