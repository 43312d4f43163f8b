"""Steering: tool uses and answers that pass, are advised against, or are put to a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from repertory import (
    Agent,
    AgentSpec,
    BeforeToolCallEvent,
    LedgerProvider,
    LLMSteeringHandler,
    Runtime,
    ScriptedModel,
    SQLiteSessionManager,
    SteeringContextProvider,
    SteeringHandler,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import text_of, tool_results
from repertory.errors import HookFailed, Invalid
from repertory.plugins.steering import (
    LEDGER_CALLS_MAX,
    LedgerAfterToolCall,
    LedgerBeforeToolCall,
    SteeringContext,
    SteeringContextCallback,
    SteeringGuide,
    SteeringInterrupt,
    SteeringProceed,
)
from tests.app.orchestration.recorder import add, use

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


class Steers(SteeringHandler):
    """Decides what it was given to decide, in order; then lets everything pass."""

    def __init__(self, *decisions: Any, providers: list[SteeringContextProvider] | None = None) -> None:
        super().__init__(providers)
        self.decisions = list(decisions)
        self.seen: list[object] = []

    async def steer_before_tool(self, *, agent: Any, tool_use: Any, **kwargs: Any) -> Any:
        self.seen.append(self.steering_context.data.get("ledger"))
        return self._next()

    def _next(self) -> Any:
        decision = self.decisions.pop(0) if self.decisions else SteeringProceed(reason="fine")
        if isinstance(decision, Exception):
            raise decision
        return decision


class SteersAnswers(Steers):
    async def steer_before_tool(self, *, agent: Any, tool_use: Any, **kwargs: Any) -> Any:
        return SteeringProceed(reason="tools are free")

    async def steer_after_model(self, *, agent: Any, message: Any, stop_reason: str, **kwargs: Any) -> Any:
        self.seen.append((text_of(message), stop_reason))
        return self._next()


def agent_with(plugin: SteeringHandler, *replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(list(replies)), tools=[add], plugins=[plugin], callback_handler=None, **options)


async def respond(agent: Agent, interrupt_id: str, response: object) -> None:
    prompt: Any = [{"interruptResponse": {"interruptId": interrupt_id, "response": response}}]
    await agent.invoke_async(prompt)


def results_of(agent: Agent) -> list[tuple[str, str]]:
    found = [result for message in agent.messages for result in tool_results(message)]
    return [(result["status"], str(result["content"][0].get("text"))) for result in found]


def texts(agent: Agent) -> list[str]:
    return [text_of(message) for message in agent.messages if text_of(message)]


async def test_advice_takes_the_place_of_the_tools_result_and_the_next_try_may_pass() -> None:
    agent = agent_with(
        Steers(SteeringGuide(reason="Take smaller numbers.")), use("add", a=9, b=9), use("add", a=1, b=2), "3"
    )
    assert str(await agent.invoke_async("?")) == "3"
    (refused, passed) = results_of(agent)
    assert refused[0] == "error"
    assert "Take smaller numbers." in refused[1]
    assert passed == ("success", "3")


@pytest.mark.parametrize(
    ("answer", "ran"), [(True, True), ("yes", True), (False, False), ("no", False), (" No ", False), ("", False)]
)
async def test_a_person_decides_when_the_handler_asks(answer: Any, ran: bool) -> None:
    question = SteeringInterrupt(reason="Is that so?")
    agent = agent_with(Steers(question, question), use("add", a=1, b=2), "done")
    asked = (await agent.invoke_async("?")).interrupts
    assert asked is not None
    assert [(one.name, one.reason) for one in asked] == [("steering_input_add", {"message": "Is that so?"})]
    await respond(agent, asked[0].id, answer)
    assert results_of(agent) == [("success", "3") if ran else ("error", "Manual approval denied: Is that so?")]


async def test_a_rejected_answer_is_thrown_away_and_the_model_told_why() -> None:
    handler = SteersAnswers(SteeringGuide(reason="Be polite."))
    agent = agent_with(handler, "What?", "Pardon?")
    assert str(await agent.invoke_async("hm")) == "Pardon?"
    assert texts(agent) == ["hm", "Be polite.", "Pardon?"]
    assert handler.seen == [("What?", "end_turn"), ("Pardon?", "end_turn")]


async def test_a_handler_that_never_is_content_ends_at_the_limit_of_the_call() -> None:
    class Never(SteersAnswers):
        def _next(self) -> Any:
            return SteeringGuide(reason="Again.")

    agent = agent_with(Never(), *["no"] * 9, limits={"turns": 3})
    assert (await agent.invoke_async("hm")).stop_reason == "limit_turns"


async def test_what_a_failing_handler_looked_at_passes_and_the_failure_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = agent_with(Steers(KeyError("mine")), use("add", a=1, b=2), "3")
    await agent.invoke_async("?")
    assert results_of(agent) == [("success", "3")]
    assert "steering failed" in caplog.text


async def test_a_decision_that_is_none_fails_the_turn_before_the_tool_runs() -> None:
    agent = agent_with(Steers("maybe"), use("add", a=1, b=2), "3")
    with pytest.raises((HookFailed, ValueError), match="Unknown steering action"):
        await agent.invoke_async("?")
    assert [status for status, _ in results_of(agent)] != ["success"]


# What a handler knows.


async def test_the_ledger_has_each_tool_use_with_how_it_ended() -> None:
    handler = Steers(providers=[LedgerProvider()])
    agent = agent_with(handler, use("add", a=1, b=2), use("add", a="x", b=2), "done")
    await agent.invoke_async("?")
    first: Any = handler.seen[0]
    assert [call["status"] for call in first["tool_calls"]] == ["pending"]
    ledger: Any = handler.steering_context.data.get("ledger")
    assert [(call["tool_name"], call["status"]) for call in ledger["tool_calls"]] == [
        ("add", "success"),
        ("add", "error"),
    ]
    assert ledger["tool_calls"][0]["result"] == [{"text": "3"}]


async def test_a_use_that_a_person_is_asked_about_stands_in_the_ledger_once() -> None:
    question = SteeringInterrupt(reason="?")
    handler = Steers(question, question, providers=[LedgerProvider()])
    agent = agent_with(handler, use("add", a=1, b=2), "done")
    asked = (await agent.invoke_async("?")).interrupts
    assert asked
    await respond(agent, asked[0].id, True)
    ledger: Any = handler.steering_context.data.get("ledger")
    assert [call["status"] for call in ledger["tool_calls"]] == ["success"]


async def test_a_handler_of_a_spec_knows_of_each_session_what_that_one_has_done() -> None:
    handler = Steers(providers=[LedgerProvider()])
    handler.steering_context.data.set("rules", "be quick")
    model = ScriptedModel([use("add", a=1, b=2), "3", use("add", a=3, b=4), "7"])
    async with Runtime() as runtime:
        clerk = runtime.agent(AgentSpec(name="clerk", model=model, tools=[add], plugins=[handler]))
        ada, bob = clerk.session("ada"), clerk.session("bob")
        await ada.invoke("?")
        await bob.invoke("?")
        with pytest.raises(Invalid, match="context_of"):
            _ = handler.steering_context
    inputs = [[call["tool_args"] for call in seen["tool_calls"]] for seen in cast("list[Any]", handler.seen)]
    assert inputs == [[{"a": 1, "b": 2}], [{"a": 3, "b": 4}]]
    assert [context.data.get("rules") for context in handler._contexts.values()] == ["be quick"] * 2


@pytest.mark.real_time
async def test_the_context_outlives_a_restart(tmp_path: Path) -> None:
    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    agent = agent_with(Steers(providers=[LedgerProvider()]), use("add", a=1, b=2), "3", session_manager=manager)
    await agent.invoke_async("?")
    handler = Steers(providers=[LedgerProvider()])
    later = agent_with(
        handler, use("add", a=3, b=4), "7", session_manager=SQLiteSessionManager("s", path=tmp_path / "a.db")
    )
    await later.invoke_async("?")
    known: Any = handler.seen[0]
    assert [(call["tool_args"], call["status"]) for call in known["tool_calls"]] == [
        ({"a": 1, "b": 2}, "success"),
        ({"a": 3, "b": 4}, "pending"),
    ]


def test_a_ledger_keeps_the_latest_uses_and_the_beginning_of_long_results() -> None:
    context = SteeringContext()
    before, after = LedgerBeforeToolCall(), LedgerAfterToolCall()
    for number in range(LEDGER_CALLS_MAX + 5):
        tool_use: Any = {"toolUseId": str(number), "name": "t", "input": {}}
        event: Any = BeforeToolCallEvent(agent=None, selected_tool=None, tool_use=tool_use)
        before(event, context)
        event.__dict__.update(
            result={"status": "success", "content": [{"text": "x" * 9_000}, {"image": {"source": {"bytes": b"1"}}}]},
            exception=None,
        )
        after(event, context)
    calls: Any = context.data.get("ledger")
    assert len(calls["tool_calls"]) == LEDGER_CALLS_MAX
    assert calls["tool_calls"][0]["tool_use_id"] == "5"
    assert len(calls["tool_calls"][-1]["result"][0]["text"]) < 5_000
    assert calls["tool_calls"][-1]["result"][1] == {"kind": "image"}


async def test_callbacks_of_a_program_note_the_events_that_their_brackets_name() -> None:
    class Counts(SteeringContextCallback[BeforeToolCallEvent]):
        def __call__(self, event: BeforeToolCallEvent, steering_context: SteeringContext, **kwargs: Any) -> None:
            steering_context.data.set("uses", (steering_context.data.get("uses") or 0) + 1)  # type: ignore[operator]

    class Provider(SteeringContextProvider):
        def context_providers(self, **kwargs: Any) -> list[Any]:
            return [Counts()]

    handler = Steers(providers=[Provider()])
    agent = agent_with(handler, use("add", a=1, b=2), use("add", a=1, b=2), "3")
    await agent.invoke_async("?")
    assert handler.steering_context.data.get("uses") == 2


# A model that steers.


@pytest.mark.parametrize(
    ("decision", "expected"),
    [("proceed", ("success", "3")), ("guide", "Use the abacus."), ("interrupt", None)],
)
async def test_a_model_decides_with_the_programs_instructions_and_the_ledger(decision: str, expected: Any) -> None:
    judge = ScriptedModel([use("_Decision", decision=decision, reason="Use the abacus.")])
    agent = agent_with(LLMSteeringHandler("Protect the user.", model=judge), use("add", a=1, b=2), "done")
    result = await agent.invoke_async("?")
    assert judge.calls[0].system_prompt == "Protect the user."
    question = text_of(judge.calls[0].messages[0])
    assert '"status": "pending"' in question
    assert "Tool: add" in question
    if expected is None:
        assert result.stop_reason == "interrupt"
    elif decision == "proceed":
        assert results_of(agent) == [expected]
    else:
        assert expected in results_of(agent)[0][1]


async def test_without_a_model_of_its_own_the_handler_asks_the_agents_cheaper_one() -> None:
    cheap = ScriptedModel([use("_Decision", decision="guide", reason="No.")])
    agent = agent_with(LLMSteeringHandler("Protect."), use("add", a=1, b=2), "done", aux_model=cheap)
    await agent.invoke_async("?")
    assert len(cheap.calls) == 1
    assert results_of(agent)[0][0] == "error"
