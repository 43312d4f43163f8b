"""Interventions: what each decision does, and what becomes of handlers that fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    AgentSpec,
    ClassifierResult,
    Confirm,
    Deny,
    Guide,
    HumanInTheLoop,
    InterventionHandler,
    InterventionRegistry,
    LLMClassifierConfig,
    Proceed,
    Runtime,
    ScriptedModel,
    SQLiteSessionManager,
    Transform,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import text_of, tool_results
from repertory.errors import HookFailed, Invalid
from tests.app.orchestration.recorder import add, use

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

Decide = Callable[[Any], Any]


def policy(name: str = "policy", on_error: str = "throw", **methods: Decide) -> InterventionHandler:
    """A handler whose methods are these functions of the event."""

    def method(decide: Decide) -> Any:
        def ask(self: object, event: object) -> object:
            return decide(event)

        return ask

    body = {key: method(decide) for key, decide in methods.items()}
    kind = type("Policy", (InterventionHandler,), {"name": name, "on_error": on_error, **body})
    made: InterventionHandler = kind()
    return made


def always(action: Any) -> Decide:
    return lambda event: action


def agent_with(*replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(list(replies)), tools=[add], callback_handler=None, **options)


def results_of(agent: Agent) -> list[tuple[str, str]]:
    found = [result for message in agent.messages for result in tool_results(message)]
    return [(result["status"], str(result["content"][0].get("text"))) for result in found]


def texts(agent: Agent) -> list[str]:
    return [text_of(message) for message in agent.messages if text_of(message)]


async def respond(agent: Agent, response: object) -> Any:
    prompt: Any = [{"interruptResponse": {"interruptId": one.id, "response": response}} for one in agent.interrupts]
    return await agent.invoke_async(prompt)


# What decisions do.


@pytest.mark.parametrize(
    ("action", "answer"), [(Deny(reason="closed"), "DENIED: closed"), (Guide(feedback="later"), "GUIDANCE: [p] later")]
)
async def test_a_call_that_is_refused_ends_with_the_reason_and_asks_no_model(action: Any, answer: str) -> None:
    agent = agent_with(interventions=[policy("p", before_invocation=always(action))])
    result = await agent.invoke_async("hi")
    assert (str(result).strip(), result.stop_reason) == (answer, "end_turn")


@pytest.mark.parametrize(
    ("action", "text"), [(Deny(reason="no"), "DENIED: no"), (Guide(feedback="smaller"), "GUIDANCE: [p] smaller")]
)
async def test_a_tool_that_is_refused_does_not_run_and_the_model_is_told_why(action: Any, text: str) -> None:
    agent = agent_with(use("add", a=1, b=2), "ok", interventions=[policy("p", before_tool_call=always(action))])
    await agent.invoke_async("?")
    assert results_of(agent) == [("error", text)]


async def test_a_refused_model_call_is_answered_with_the_reason() -> None:
    agent = agent_with("never", interventions=[policy(before_model_call=always(Deny(reason="secret")))])
    assert str(await agent.invoke_async("hi")).strip() == "DENIED: secret"


async def test_advice_of_all_handlers_is_given_together_unless_one_refuses() -> None:
    first, second = (policy(name, before_tool_call=always(Guide(feedback=f"from {name}"))) for name in "ab")
    agent = agent_with(use("add", a=1, b=2), "ok", interventions=[first, second])
    await agent.invoke_async("?")
    assert results_of(agent) == [("error", "GUIDANCE: [a] from a\n[b] from b")]
    refused = agent_with(
        use("add", a=1, b=2), "ok", interventions=[first, policy("c", before_tool_call=always(Deny(reason="no")))]
    )
    await refused.invoke_async("?")
    assert results_of(refused) == [("error", "DENIED: no")]


async def test_after_a_refusal_no_later_handler_is_asked() -> None:
    asked: list[Any] = []
    later = policy("b", before_tool_call=lambda event: asked.append(event) or Proceed())
    agent = agent_with(use("add", a=1, b=2), "ok", interventions=[policy("a", before_tool_call=always(Deny())), later])
    await agent.invoke_async("?")
    assert asked == []


async def test_advice_before_a_model_call_is_said_to_the_model_in_this_call() -> None:
    agent = agent_with("ok", interventions=[policy("p", before_model_call=always(Guide(feedback="cite")))])
    await agent.invoke_async("hi")
    assert texts(agent) == ["hi", "[p] cite", "ok"]


async def test_advice_about_an_answer_throws_it_away_and_is_said_to_the_model() -> None:
    def judge(event: Any) -> Any:
        bad = text_of(event.stop_response.message) == "bad"
        return Guide(feedback="be good") if bad else Proceed()

    agent = agent_with("bad", "good", interventions=[policy("p", after_model_call=judge)])
    assert str(await agent.invoke_async("hi")) == "good"
    assert texts(agent) == ["hi", "[p] be good", "good"]


async def test_handlers_see_what_earlier_ones_have_changed_and_the_tool_runs_with_it() -> None:
    seen: list[Any] = []

    def double(event: Any) -> None:
        event.tool_use["input"]["a"] *= 2

    agent = agent_with(
        use("add", a=1, b=2),
        "ok",
        interventions=[
            policy("a", before_tool_call=always(Transform(apply=double))),
            policy("b", before_tool_call=lambda event: seen.append(event.tool_use["input"]["a"]) or Proceed()),
        ],
    )
    await agent.invoke_async("?")
    assert seen == [2]
    assert results_of(agent) == [("success", "4")]


async def test_a_changed_result_is_what_the_model_is_shown() -> None:
    def mask(event: Any) -> None:
        event.result = {**event.result, "content": [{"text": "***"}]}

    agent = agent_with(
        use("add", a=1, b=2), "ok", interventions=[policy(after_tool_call=always(Transform(apply=mask)))]
    )
    await agent.invoke_async("?")
    assert results_of(agent) == [("success", "***")]


@pytest.mark.real_time
async def test_a_changed_answer_is_what_is_returned_and_stored(tmp_path: Path) -> None:
    def mask(event: Any) -> None:
        for block in event.stop_response.message["content"]:
            if "text" in block:
                block["text"] = block["text"].replace("4711", "****")

    handler = policy(after_model_call=always(Transform(apply=mask)))
    agent = agent_with(
        "It is 4711.",
        "Nothing.",
        interventions=[handler],
        session_manager=SQLiteSessionManager("s", path=tmp_path / "a.db"),
    )
    assert str(await agent.invoke_async("pin?")) == "It is ****."
    await agent.invoke_async("and?")
    later = agent_with(session_manager=SQLiteSessionManager("s", path=tmp_path / "a.db"))
    await later.ready()
    assert texts(later) == ["pin?", "It is ****.", "and?", "Nothing."]


@pytest.mark.parametrize(
    ("method", "action"),
    [
        ("before_invocation", Confirm(prompt="?")),
        ("before_model_call", Confirm(prompt="?")),
        ("after_tool_call", Deny()),
        ("after_tool_call", Guide()),
        ("after_model_call", Deny()),
        ("after_model_call", Confirm()),
    ],
)
async def test_a_decision_without_effect_on_its_event_is_logged(
    method: str, action: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_with(use("add", a=1, b=2), "ok", interventions=[policy(**dict[str, Any]({method: always(action)}))])
    assert str(await agent.invoke_async("?")) == "ok"
    assert "has no effect" in caplog.text


# Persons.


@pytest.mark.parametrize(
    ("answer", "result"), [("yes", ("success", "3")), (" Y ", ("success", "3")), ("no", None), (False, None)]
)
async def test_a_person_is_asked_and_only_a_yes_runs_the_tool(answer: object, result: Any) -> None:
    agent = agent_with(use("add", a=1, b=2), "ok", interventions=[policy("p", before_tool_call=always(Confirm("?")))])
    assert [one.name for one in (await agent.invoke_async("?")).interrupts or ()] == ["p"]
    await respond(agent, answer)
    assert results_of(agent) == [result or ("error", "CONFIRMATION_FAILED: ?")]


async def test_an_answer_that_is_known_already_asks_nobody() -> None:
    otp = Confirm(prompt="OTP", response="123", evaluate=lambda answer: answer == "123")
    agent = agent_with(use("add", a=1, b=2), "ok", interventions=[policy(before_tool_call=always(otp))])
    await agent.invoke_async("?")
    assert results_of(agent) == [("success", "3")]


# Handlers that fail.


def boom(event: Any) -> Any:
    raise KeyError("mine")


async def test_a_failing_handler_fails_the_turn_before_the_tool_runs() -> None:
    agent = agent_with(use("add", a=1, b=2), "ok", interventions=[policy(before_tool_call=boom)])
    with pytest.raises(HookFailed) as failed:
        await agent.invoke_async("?")
    assert isinstance(failed.value.__cause__, KeyError)
    assert ("success", "3") not in results_of(agent)


async def test_a_handler_may_excuse_its_failures_or_have_them_refuse() -> None:
    excused = agent_with(use("add", a=1, b=2), "ok", interventions=[policy("a", "proceed", before_tool_call=boom)])
    await excused.invoke_async("?")
    assert results_of(excused) == [("success", "3")]
    refused = agent_with(use("add", a=1, b=2), "ok", interventions=[policy("a", "deny", before_tool_call=boom)])
    await refused.invoke_async("?")
    assert results_of(refused) == [("error", "DENIED: Handler threw: 'mine'")]


async def test_what_can_no_longer_be_refused_fails_the_turn() -> None:
    agent = agent_with("ok", interventions=[policy("a", "deny", after_model_call=boom)])
    with pytest.raises(HookFailed):
        await agent.invoke_async("?")


async def test_a_failing_change_is_a_failure_of_its_handler() -> None:
    agent = agent_with("ok", interventions=[policy(before_model_call=always(Transform(apply=boom)))])
    with pytest.raises(HookFailed):
        await agent.invoke_async("?")


async def test_anything_but_a_decision_fails_the_turn() -> None:
    agent = agent_with("ok", interventions=[policy(before_model_call=always(None))])
    with pytest.raises(HookFailed, match="a decision is"):
        await agent.invoke_async("?")


def test_two_handlers_of_one_name_and_things_that_are_no_handlers_are_refused() -> None:
    with pytest.raises(Invalid, match="Duplicate"):
        agent_with(interventions=[policy("a"), policy("a")])
    with pytest.raises(Invalid, match="InterventionHandler"):
        agent_with(interventions=[object()])


@pytest.mark.real_time
async def test_hosted_agents_have_interventions_among_their_hooks() -> None:
    registry = InterventionRegistry([policy(before_invocation=always(Deny(reason="closed")))])
    async with Runtime() as runtime:
        hosted = runtime.agent(AgentSpec(name="a", model=ScriptedModel(["never"]), hooks=[registry]))
        assert str(await hosted.session("s").invoke("hi")).strip() == "DENIED: closed"


# HumanInTheLoop.


@pytest.mark.parametrize(
    ("allowed", "asked"),
    [([], True), (["add"], False), (["other"], True), (["*"], False), (["*", "!add"], True), (["add", "!add"], True)],
)
async def test_the_tools_that_need_nobody_are_named(allowed: list[str], asked: bool) -> None:
    agent = agent_with(use("add", a=1, b=2), "ok", interventions=[HumanInTheLoop(allowed_tools=allowed)])
    assert ((await agent.invoke_async("?")).stop_reason == "interrupt") is asked


@pytest.mark.parametrize(("named", "asked"), [(["add"], True), (["other"], False), ([], False)])
async def test_the_only_tools_that_need_a_person_are_named(named: list[str], asked: bool) -> None:
    agent = agent_with(use("add", a=1, b=2), "ok", interventions=[HumanInTheLoop(ask_for=named)])
    assert ((await agent.invoke_async("?")).stop_reason == "interrupt") is asked
    with pytest.raises(Invalid):
        HumanInTheLoop(ask_for="add")
    with pytest.raises(Invalid):
        HumanInTheLoop(ask_for=["add"], allowed_tools=["other"])


@pytest.mark.parametrize("written", ["delete-all", "delete_all"])
@pytest.mark.parametrize("rule", [{"allowed_tools": ["*", "!delete_all"]}, {"ask_for": ["delete_all"]}])
async def test_no_spelling_of_a_name_passes_by_the_rules_for_that_tool(written: str, rule: dict[str, Any]) -> None:
    ran: list[str] = []

    @tool
    def delete_all() -> str:
        """Delete."""
        ran.append("deleted")
        return "gone"

    rules = [HumanInTheLoop(**rule)]
    model = ScriptedModel([use(written), "ok"])
    await Agent(model, tools=[delete_all], interventions=rules, callback_handler=None).invoke_async("?")
    assert not ran


@pytest.mark.real_time
async def test_the_question_and_the_trust_in_a_tool_outlive_restarts(tmp_path: Path) -> None:
    def agent(*replies: Any) -> Agent:
        manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
        return agent_with(*replies, session_manager=manager, interventions=[HumanInTheLoop(enable_trust=True)])

    assert (await agent(use("add", a=1, b=2)).invoke_async("?")).stop_reason == "interrupt"
    second = agent("ok")
    await second.ready()
    assert second.interrupts[0].name == "strands:human-in-the-loop"
    assert '"a": 1' in str(second.interrupts[0].reason)
    await respond(second, "trust")
    third = agent(use("add", a=3, b=4), "ok")
    assert (await third.invoke_async("?")).stop_reason == "end_turn"
    assert results_of(third) == [("success", "3"), ("success", "7")]


@pytest.mark.parametrize(("answer", "status"), [("y", "success"), ("n", "error"), (None, "error"), ("t", "error")])
async def test_a_function_asks_the_person_at_once(answer: object, status: str) -> None:
    prompts: list[str] = []

    async def ask(prompt: str) -> object:
        prompts.append(prompt)
        return answer

    agent = agent_with(use("add", a=1, b=2), "ok", interventions=[HumanInTheLoop(ask=ask)])
    await agent.invoke_async("?")
    assert [found for found, _ in results_of(agent)] == [status]
    assert len(prompts) == 1


@pytest.mark.real_time
async def test_the_terminal_is_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda prompt: asked.append(prompt) or "y")
    agent = agent_with(use("add", a=1, b=2), "ok", interventions=[HumanInTheLoop(ask="stdio")])
    await agent.invoke_async("?")
    assert results_of(agent) == [("success", "3")]
    assert asked[0].endswith("(y/n): ")


async def test_a_classifier_is_not_asked_again_once_the_person_has_answered() -> None:
    calls: list[Any] = []

    def classifier(event: Any, **kwargs: Any) -> ClassifierResult:
        calls.append(event)
        return ClassifierResult(len(calls) == 1, "big numbers")

    agent = agent_with(use("add", a=1, b=2), "ok", interventions=[HumanInTheLoop(classifier=classifier)])
    await agent.invoke_async("?")
    assert "big numbers" in str(agent.interrupts[0].reason)
    await respond(agent, "no")
    assert [status for status, _ in results_of(agent)] == ["error"]
    assert len(calls) == 1


@pytest.mark.parametrize("wrong", [None, ClassifierResult("no"), boom])  # type: ignore[arg-type]
async def test_when_the_classifier_fails_a_person_is_asked(wrong: Any) -> None:
    classifier: Any = wrong if callable(wrong) else always(wrong)
    agent = agent_with(use("add", a=1, b=2), "ok", interventions=[HumanInTheLoop(classifier=classifier)])
    assert (await agent.invoke_async("?")).stop_reason == "interrupt"


@pytest.mark.parametrize("risky", [True, False])
async def test_a_model_may_tell_which_uses_are_risky(risky: bool) -> None:
    judge = ScriptedModel([use("_RiskDecision", requires_approval=risky, reason="sums")])
    config = LLMClassifierConfig(model=judge, system_prompt="Sums are risky.")
    agent = agent_with(use("add", a=1, b=2), "ok", interventions=[HumanInTheLoop(classifier=config)])
    assert ((await agent.invoke_async("?")).stop_reason == "interrupt") is risky
    assert judge.calls[0].system_prompt == "Sums are risky."


def test_names_that_are_no_list_are_refused() -> None:
    with pytest.raises(Invalid, match="list"):
        HumanInTheLoop(allowed_tools="add")


def test_a_handler_without_a_name_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="name"):
        InterventionHandler()
