"""The idempotency key of a tool use belongs to one conversation, whatever its session and the tool use are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    AgentSpec,
    HumanInTheLoop,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessionManager,
    SQLiteSessions,
    ToolContext,
    tool,
)
from repertory.toolbox.delegation import make_subagent

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


def use(name: str, **given: Any) -> Any:
    """A tool use under an id that some models give again in every conversation."""
    return {"toolUse": {"name": name, "input": given, "toolUseId": "call_0"}}


@pytest.mark.parametrize("place", ["deleted", "another database", "in memory"])
async def test_two_conversations_of_one_name_give_their_tools_different_keys(place: str, tmp_path: Path) -> None:
    keys = list[str]()

    @tool
    def pay(tool_context: ToolContext) -> str:
        """Pay."""
        keys.append(tool_context.idempotency_key)
        return "paid"

    for number in range(2):
        name = "b.db" if number and place == "another database" else "a.db"
        stored = None if place == "in memory" else SQLiteSessions(tmp_path / name)
        async with Runtime(sessions=stored) as runtime:
            spec = AgentSpec(name="a", model=ScriptedModel([use("pay"), "ok"]), tools=[pay])
            await runtime.agent(spec).session("ann").invoke("pay")
        if stored is not None and place == "deleted":
            async with Sessions(stored) as sessions:
                await sessions.delete("ann")
    assert len(set(keys)) == 2


def expert() -> Any:
    def wipes(messages: Any, *_: Any) -> Any:
        last = messages[-1]["content"][0]
        return last["toolResult"]["content"][0]["text"] if "toolResult" in last else use("wipe", disk=last["text"])

    model = ScriptedModel([wipes], loop=True)
    return Agent(model, tools=[wipe], name="expert", interventions=[HumanInTheLoop()], callback_handler=None).as_tool()


@tool
def wipe(disk: str) -> str:
    """Wipe a disk."""
    return f"wiped {disk}"


@pytest.mark.parametrize(("name", "made", "given"), [("expert", expert, "input"), ("subagent", make_subagent, "task")])
async def test_a_yes_reaches_the_agent_that_waits_for_it_and_no_other_users(
    name: str, made: Callable[[], Any], given: str, tmp_path: Path
) -> None:
    shared = made()

    def agent_of(user: str) -> Agent:
        def reply(messages: Any, *_: Any) -> Any:
            last = messages[-1]["content"][0]
            if "toolResult" in last:
                return last["toolResult"]["content"][0]["text"]
            return use(name, **{given: user}) if last["text"] == "go" else use("wipe", disk=user)

        return Agent(
            ScriptedModel([reply], loop=True),
            tools=[wipe, shared],
            interventions=[HumanInTheLoop(allowed_tools=[name])],
            callback_handler=None,
            session_manager=SQLiteSessionManager("main", path=tmp_path / f"{user}.db"),
        )

    agents = {user: agent_of(user) for user in ("ann", "bob")}
    asked = {user: await agent.invoke_async("go") for user, agent in agents.items()}
    for user, agent in agents.items():
        answers: Any = [
            {"interruptResponse": {"interruptId": one.id, "response": "y"}} for one in asked[user].interrupts
        ]
        assert str(await agent.invoke_async(answers)) == f"wiped {user}"
