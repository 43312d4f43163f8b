"""Answers of a person: a known yes lets a tool run, and nothing else does, whoever asks and through whichever door."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory import (
    Agent,
    AgentSpec,
    Confirm,
    HumanInTheLoop,
    InterventionHandler,
    Runtime,
    ScriptedModel,
    SQLiteSessions,
    SteeringHandler,
    ToolContext,
    tool,
)
from repertory.asgi import asgi_app
from repertory.core.interrupts import is_yes
from repertory.core.provider_content import approval_of
from repertory.plugins.interventions import default_evaluate
from repertory.plugins.steering import SteeringInterrupt

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["approve", "answer"]), inner),
)
NOES = (
    None, False, 0, 1, "", "0", "no", "No.", "NO!", "no, never", "nope", "nein", "stop", "n/a", "cancel", "yes?",
    "yes no", [], ["no"], ["yes"], {}, {"approve": False}, {"approve": True}, {"cancelled": True},
    {"answer": "yes"},
)  # fmt: skip
USE: Any = [{"toolUse": {"name": "wipe", "input": {"disk": "c"}}}]


@given(VALUES)
def test_nothing_but_a_known_yes_is_a_yes(answer: object) -> None:
    known = answer is True or (isinstance(answer, str) and answer.strip().lower() in ("y", "yes"))
    assert is_yes(answer) is default_evaluate(answer) is known
    if not isinstance(answer, dict):
        assert approval_of(answer)["approve"] is known
    assert approval_of({"approve": answer})["approve"] is known


class Steers(SteeringHandler):
    async def steer_before_tool(self, *, agent: Any, tool_use: Any, **kwargs: Any) -> Any:
        return SteeringInterrupt(reason="May it?")


class Confirms(InterventionHandler):
    name = "confirms"

    def before_tool_call(self, event: Any, **kwargs: Any) -> Confirm:
        return Confirm(prompt="May it?")


async def _late_yes(answer: Any) -> bool:
    return True


class ConfirmsLate(InterventionHandler):
    name = "late"

    def before_tool_call(self, event: Any, **kwargs: Any) -> Confirm:
        return Confirm(prompt="May it?", evaluate=_late_yes)  # type: ignore[arg-type]


ASKING: dict[str, Callable[[], dict[str, Any]]] = {
    "steering": lambda: {"plugins": [Steers()]},
    "a person in the loop": lambda: {"interventions": [HumanInTheLoop(enable_trust=True)]},
    "a confirmation": lambda: {"interventions": [Confirms()]},
}


def wiping(**settings: Any) -> tuple[Agent, list[str]]:
    wiped: list[str] = []

    @tool
    def wipe(disk: str) -> str:
        """Wipe a disk."""
        wiped.append(disk)
        return "wiped"

    return Agent(ScriptedModel([USE, "well"]), tools=[wipe], callback_handler=None, **settings), wiped


async def answer_with(agent: Agent, answer: object) -> None:
    (question,) = (await agent.invoke_async("go")).interrupts
    block: Any = {"interruptResponse": {"interruptId": question.id, "response": answer}}
    assert str(await agent.invoke_async([block])) == "well"


@pytest.mark.anyio
@pytest.mark.parametrize("who", ASKING)
async def test_whatever_is_no_yes_keeps_the_tool_from_running(who: str) -> None:
    for answer in NOES:
        agent, wiped = wiping(**ASKING[who]())
        await answer_with(agent, answer)
        assert wiped == [], answer
    for answer in (True, "y", "Yes", " yes\n"):
        agent, wiped = wiping(**ASKING[who]())
        await answer_with(agent, answer)
        assert wiped == ["c"], answer


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:coroutine")
async def test_a_reader_of_answers_that_has_to_be_awaited_allows_nothing() -> None:
    agent, wiped = wiping(interventions=[ConfirmsLate()])
    await answer_with(agent, "no")
    assert wiped == []


@pytest.mark.anyio
@pytest.mark.real_time
async def test_a_question_that_is_cancelled_over_ag_ui_is_a_no_for_every_reader(tmp_path: Path) -> None:
    ran: list[object] = []

    @tool
    def wipe(disk: str) -> str:
        """Wipe a disk."""
        ran.append(disk)
        return "wiped"

    @tool
    def pay(tool_context: ToolContext) -> str:
        """Pay, if somebody says anything."""
        if tool_context.interrupt("pay?"):
            ran.append("paid")
        return "done"

    paying: Any = [{"toolUse": {"name": "pay", "input": {}}}]
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        for name, make in ASKING.items():
            agent: Any = {"name": name.replace(" ", "-"), "tools": [wipe], **make()}
            runtime.agent(AgentSpec(model=ScriptedModel([USE, "well"]), **agent))
        runtime.agent(AgentSpec(name="tool", model=ScriptedModel([paying, "well"]), tools=[pay]))
        transport = httpx.ASGITransport(asgi_app(runtime))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client:
            for name in [*(each.replace(" ", "-") for each in ASKING), "tool"]:
                asked = await _run(client, name, "r1")
                question = asked["outcome"]["interrupts"][0]["id"]
                ended = await _run(client, name, "r2", resume=[{"interruptId": question, "status": "cancelled"}])
                assert (ended["outcome"], ran) == ({"type": "success"}, []), name


async def _run(client: httpx.AsyncClient, agent: str, run: str, **more: Any) -> dict[str, Any]:
    said = [{"id": "1", "role": "user", "content": "go"}]
    body = {"threadId": "t", "runId": run, "state": {}, "messages": said, "tools": [], "context": [], **more}
    answer = await client.post(f"/ag-ui/{agent}", json={**body, "forwardedProps": {}})
    answer.raise_for_status()
    last: dict[str, Any] = json.loads(answer.text.strip().rsplit("data: ", 1)[1])
    return last
