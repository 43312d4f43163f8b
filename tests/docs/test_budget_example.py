"""The example with allowances refuses who has used them up, and goes on with their question on the next day."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from examples.agent_with_a_budget.allowances import Accounts, Allowance, Limits, OverBudget, Usage
from examples.agent_with_a_budget.shared_agent import SharedAgent
from repertory import Runtime, ScriptedModel, SQLiteSessions

pytestmark = [pytest.mark.real_time, pytest.mark.anyio]

CALCULATE: dict[str, Any] = {"toolUse": {"name": "calculator", "input": {"expression": "12 * 12"}}}
LIMITS = Limits(everyone=Allowance(tokens=100), users={"rich": Allowance(cost=1.0)}, prices={"*": (3.0, 15.0)})


async def test_a_question_that_reached_the_limit_goes_on_on_the_next_day(tmp_path: Path) -> None:
    accounts, days = Accounts(tmp_path / "accounts.db"), ["2030-01-01"]

    def agent_in(runtime: Runtime, model: ScriptedModel) -> SharedAgent:
        return SharedAgent(runtime, model, accounts, LIMITS, day=lambda: days[-1])

    async with Runtime(sessions=SQLiteSessions(tmp_path / "sessions.db")) as runtime:
        model = ScriptedModel([CALCULATE, "It is 144.", "Hello rich."])
        agent = agent_in(runtime, model)
        with pytest.raises(OverBudget, match=r"of 100 tokens of today are used up.*Your question is kept"):
            await agent.ask("paul", "What is 12 * 12?")
        with pytest.raises(OverBudget, match="of 100 tokens"):
            await agent.ask("paul", "And 13 * 13?")
        assert len(model.calls) == 1

    model = ScriptedModel(["Hello rich.", "It is 144."])
    async with Runtime(sessions=SQLiteSessions(tmp_path / "sessions.db")) as runtime:
        agent = agent_in(runtime, model)
        with pytest.raises(OverBudget, match="of 100 tokens"):
            await agent.ask("paul", None)
        assert await agent.ask("rich", "Hello") == "Hello rich."
        days.append("2030-01-02")
        assert await agent.ask("paul", None) == "It is 144."
        assert "144" in str(model.calls[-1].messages[-1])
    assert [user for user, _ in accounts.of_day("2030-01-01")] == ["paul", "rich"]
    assert accounts.used("rich", "2030-01-01").cost > 0


async def test_an_answer_is_booked_before_the_turn_goes_on(tmp_path: Path) -> None:
    booked: list[str | Usage] = []

    class Watched(Accounts):
        def add(self, user: str, day: str, more: Usage) -> None:
            super().add(user, day, more)
            booked.append(more)

    def second(*_: object) -> str:
        booked.append("asked again")
        return "It is 144."

    accounts = Watched(tmp_path / "accounts.db")

    async with Runtime(sessions=SQLiteSessions(tmp_path / "sessions.db")) as runtime:
        agent = SharedAgent(runtime, ScriptedModel([CALCULATE, second]), accounts, LIMITS, day=lambda: "2030-01-01")
        await agent.ask("rich", "What is 12 * 12?")
    assert [type(one) for one in booked] == [Usage, str, Usage]
    spent = sum(one.tokens for one in booked if isinstance(one, Usage))
    assert accounts.used("rich", "2030-01-01").tokens == spent


async def test_questions_at_the_same_time_share_one_allowance(tmp_path: Path) -> None:
    accounts, answers = Accounts(tmp_path / "accounts.db"), []
    limits = Limits(everyone=Allowance(tokens=400), prices={"*": (3.0, 15.0)})

    async def ask(agent: SharedAgent) -> None:
        try:
            answers.append(await agent.ask("paul", "Hello"))
        except OverBudget as refusal:
            answers.append(str(refusal))

    async with Runtime(sessions=SQLiteSessions(tmp_path / "sessions.db")) as runtime:
        model = ScriptedModel(["Hello."], loop=True)
        agent = SharedAgent(runtime, model, accounts, limits, day=lambda: "2030-01-01")
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(ask, agent)
    refused = [answer for answer in answers if "of 400 tokens of today are used up" in answer]
    assert 1 <= len(refused) < 6
    assert answers.count("Hello.") == 6 - len(refused) == len(model.calls)
    assert 400 <= accounts.used("paul", "2030-01-01").tokens < 800
