"""SIGKILL at any instant: every acknowledged turn is there, no tool with effects runs twice, and the agent goes on."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from repertory import Agent, AgentResult, ScriptedModel, SQLiteSessionManager, ToolContext, tool
from repertory.core.messages import Message, check_next, text_of, tool_results
from tests.simulation.dying_process import DyingProcess

WORKER = Path(__file__).with_name("dying_worker.py")
KILLS = 50


def worker(folder: Path, first: int, *where: str) -> DyingProcess:
    return DyingProcess(sys.executable, str(WORKER), str(folder / "a.db"), str(folder / "ledger"), str(first), *where)


def agent_on(folder: Path, *replies: object, outcome: str = "ask") -> Agent:
    @tool
    def pay(amount: int, tool_context: ToolContext) -> str:
        """Pay an amount."""
        with (folder / "ledger").open("a") as ledger:
            ledger.write(f"{tool_context.idempotency_key}\n")
        return f"paid {amount} on attempt {tool_context.attempt}"

    return Agent(
        ScriptedModel(list(replies)),
        tools=[pay],
        session_manager=SQLiteSessionManager("s1", path=folder / "a.db"),
        callback_handler=None,
        unknown_tool_outcome=outcome,  # type: ignore[arg-type] - one of three words
    )


def ledger_of(folder: Path) -> list[str]:
    ledger = folder / "ledger"
    return ledger.read_text().splitlines() if ledger.exists() else []


def assert_valid(messages: list[Message]) -> None:
    previous = None
    for message in messages:
        check_next(previous, message)
        previous = message


def crash(folder: Path, where: str) -> None:
    """One turn that dies `before` or `after` its tool took effect."""
    assert worker(folder, 0, where).ended() == []


@pytest.mark.timeout(300)
def test_every_acknowledged_turn_survives_fifty_kills_at_random_instants(tmp_path: Path, rng: random.Random) -> None:
    acknowledged: list[str] = []
    next_turn = 0
    for _ in range(KILLS):
        said = worker(tmp_path, next_turn).kill_after(rng.uniform(0, 0.02))
        acknowledged += said
        next_turn += len(said) + 1
    assert len(acknowledged) >= KILLS
    messages = _history(tmp_path)
    assert_valid(messages)
    asked = [text_of(message) for message in messages]
    for line in acknowledged:
        turn, _, answer = line.partition(" ")
        position = next(n for n, text in enumerate(asked) if text.endswith(f"turn {turn}"))
        assert asked[position + 3] == answer, asked[max(0, position - 5) : position + 6]
    keys = ledger_of(tmp_path)
    assert len(keys) == len(set(keys))
    assert len(keys) >= len(acknowledged)


def _history(folder: Path) -> list[Message]:
    """Everything ever said, read by an agent from sync code."""
    from repertory.app.host.blocking import blocking_host

    return blocking_host().run(agent_on(folder).history)


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_unknown_outcome_asks_a_person_by_default(tmp_path: Path, where: str) -> None:
    crash(tmp_path, where)
    effects = len(ledger_of(tmp_path))
    agent = agent_on(tmp_path, "all good")
    result = agent()
    assert result.stop_reason == "interrupt"
    (interrupt,) = result.interrupts
    assert interrupt.name == "unknown_tool_outcome"
    assert len(ledger_of(tmp_path)) == effects
    assert str(_answer(agent, {"result": "it went through"})) == "all good"
    assert len(ledger_of(tmp_path)) == effects
    assert_valid(agent.messages)


def _answer(agent: Agent, response: object) -> AgentResult:
    (interrupt,) = agent().interrupts
    return agent([{"interruptResponse": {"interruptId": interrupt.id, "response": response}}])  # type: ignore[list-item]


def test_a_person_may_have_it_run_again_under_the_same_key(tmp_path: Path) -> None:
    crash(tmp_path, "after")
    agent = agent_on(tmp_path, "all good")
    _answer(agent, "retry")
    keys = ledger_of(tmp_path)
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert "attempt 2" in str(next(tool_results(agent.messages[-2]))["content"])


def test_an_idempotent_policy_runs_it_again_without_asking(tmp_path: Path) -> None:
    crash(tmp_path, "before")
    agent = agent_on(tmp_path, "all good", outcome="retry")
    assert str(agent()) == "all good"
    assert len(ledger_of(tmp_path)) == 1


def test_a_failing_policy_tells_the_model_that_the_outcome_is_unknown(tmp_path: Path) -> None:
    crash(tmp_path, "after")
    agent = agent_on(tmp_path, "I will check", outcome="fail")
    assert str(agent()) == "I will check"
    assert len(ledger_of(tmp_path)) == 1
    assert "unknown" in str(next(tool_results(agent.messages[-2]))["content"])


def test_a_new_prompt_after_a_crash_moves_on_without_running_anything(tmp_path: Path) -> None:
    crash(tmp_path, "after")
    agent = agent_on(tmp_path, "never mind")
    assert str(agent("leave it")) == "never mind"
    assert len(ledger_of(tmp_path)) == 1
    assert_valid(agent.messages)
