"""Cedar policies: what they permit runs, everything else is refused with a reason that the model is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import Agent, CedarAuthorization, HumanInTheLoop, ScriptedModel, SQLiteSessionManager, tool
from repertory.core.messages import tool_results
from repertory.errors import Invalid
from tests.app.orchestration.recorder import add, use

pytestmark = pytest.mark.anyio

ADD = 'permit(principal, action == Action::"add", resource)'


async def statuses(policy: CedarAuthorization, uses: int = 1, **options: Any) -> list[str]:
    """How that many uses of the tool `add` end."""
    model = ScriptedModel([*[use("add", a=1, b=2)] * uses, "ok"])
    agent = Agent(model, tools=[add], interventions=[policy], callback_handler=None, **options)
    await agent.invoke_async("?", invocation_state={"user": "alice"})
    return [
        str(result["content"][0].get("text")).partition(":")[0]
        for message in agent.messages
        for result in tool_results(message)
    ][-uses:]


@pytest.mark.parametrize(
    ("policies", "status"),
    [
        (f"{ADD};", "3"),
        ('permit(principal, action == Action::"other", resource);', "DENIED"),
        ("permit(principal, action, resource); forbid(principal, action, resource);", "DENIED"),
        (f"{ADD} when {{ context.input.a < 2 }};", "3"),
        (f"{ADD} when {{ context.input.a > 2 }};", "DENIED"),
        (f"{ADD} when {{ context.session.hour_utc == 1 }};", "3"),
        ('permit(principal == User::"anonymous", action, resource);', "3"),
    ],
)
async def test_a_tool_runs_only_if_the_policies_permit_it(policies: str, status: str) -> None:
    assert await statuses(CedarAuthorization(policies=policies, now=lambda: 3600.0)) == [status]


@pytest.mark.parametrize(
    ("resolve", "status"),
    [
        (lambda state: {"type": "User", "id": state["user"]}, "3"),
        (lambda state: {"type": "User", "id": "bob"}, "DENIED"),
        (lambda state: {"type": "User", "id": 'alice" or "'}, "DENIED"),
        (lambda state: {"type": "User", "id": "al\\u{69}ce"}, "DENIED"),
        (lambda state: None, "DENIED"),
    ],
    ids=["the one", "another", "quotes", "escape", "nobody"],
)
async def test_the_principal_is_whom_the_call_names(resolve: Any, status: str) -> None:
    policies = 'permit(principal == User::"alice", action, resource);'
    assert await statuses(CedarAuthorization(policies=policies, principal_resolver=resolve)) == [status]


@pytest.mark.real_time
async def test_the_count_of_allowed_uses_outlives_restarts(tmp_path: Path) -> None:
    def policy() -> CedarAuthorization:
        return CedarAuthorization(policies=f"{ADD} when {{ context.session.call_count <= 3 }};")

    def place() -> SQLiteSessionManager:
        return SQLiteSessionManager("s", path=tmp_path / "a.db")

    assert await statuses(policy(), 2, session_manager=place()) == ["3", "3"]
    assert await statuses(policy(), 2, session_manager=place()) == ["3", "DENIED"]


@pytest.mark.real_time
@pytest.mark.parametrize("cedar_first", [True, False])
@pytest.mark.parametrize("restarts", [True, False])
async def test_a_use_that_a_person_is_asked_about_counts_once_whatever_its_id(
    cedar_first: bool, restarts: bool, tmp_path: Path
) -> None:
    ran = list[int]()

    @tool
    def pay(number: int) -> str:
        """Pay."""
        ran.append(number)
        return "paid"

    def reply(messages: Any, *_: Any) -> Any:
        given = messages[-1]["content"][0]
        paying: Any = {"name": "pay", "input": {"number": int(given.get("text", 0))}, "toolUseId": "call_0"}
        return "ok" if "toolResult" in given else {"toolUse": paying}

    def agent_now() -> Agent:
        policies = 'permit(principal, action == Action::"pay", resource) when { context.session.call_count <= 2 };'
        handlers: list[Any] = [CedarAuthorization(policies=policies), HumanInTheLoop()]
        return Agent(
            ScriptedModel([reply], loop=True),
            tools=[pay],
            interventions=handlers if cedar_first else handlers[::-1],
            callback_handler=None,
            session_manager=SQLiteSessionManager("s", path=tmp_path / "a.db"),
        )

    agent = agent_now()
    for number in range(4):
        result = await agent.invoke_async(str(number))
        agent = agent_now() if restarts else agent
        while result.interrupts:
            answers: Any = [{"interruptResponse": {"interruptId": result.interrupts[0].id, "response": "y"}}]
            result = await agent.invoke_async(answers)
    assert ran == [0, 1]


async def test_what_the_engine_cannot_decide_is_refused() -> None:
    policy = CedarAuthorization(policies=f"{ADD};", context_enricher=lambda given: {"price": 0.5})
    assert await statuses(policy) == ["DENIED"]


@pytest.mark.real_time
def test_files_are_read_again_and_wrong_ones_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "rules.cedar"
    file.write_text(f"{ADD};")
    policy = CedarAuthorization(policies=str(file))
    file.write_text("permit(")
    with pytest.raises(Invalid, match="Invalid Cedar policy"):
        policy.reload()
    assert anyio.run(statuses, policy) == ["3"]
    file.write_text("forbid(principal, action, resource);")
    policy.reload()
    assert anyio.run(statuses, policy) == ["DENIED"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"policies": "nonsense"}, "Invalid Cedar policy"),
        ({"policies": f"{ADD};", "tools": [{"name": "sum"}]}, "add"),
        ({"policies": f"{ADD};", "schema": "entity User;"}, "validation failed"),
        ({"policies": f"{ADD};", "entities": [{"uid": {"type": "User"}}]}, "uid"),
        ({"policies": f"{ADD};", "principal": {"type": "U", "id": "a"}, "principal_resolver": dict}, "either"),
    ],
    ids=["syntax", "tools", "schema", "entities", "principals"],
)
def test_what_is_wrong_is_refused_when_it_is_made(wrong: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        CedarAuthorization(**wrong)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.cedar"):
        CedarAuthorization(policies="none.cedar")
