"""What stands around calls of the model and of tools: it may change, repeat or replace them, and what is recorded and
paid for is what came of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from pydantic import BaseModel

from repertory import (
    Agent,
    Budget,
    ExecuteToolContext,
    ExecuteToolResult,
    ExecuteToolStage,
    InvokeModelContext,
    InvokeModelResult,
    InvokeModelStage,
    Model,
    ModelStopReason,
    ScriptedModel,
    ToolContext,
    ToolResultEvent,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import text_of, tool_results, tool_uses
from repertory.errors import MiddlewareFailed, ModelFailed
from tests.app.orchestration.recorder import use

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

Events = AsyncGenerator[Any, None]
_NONE = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}


class Charges:
    """A tool with effects."""

    def __init__(self) -> None:
        self.runs: list[int] = []

        @tool(effects=True)
        def charge(amount: int) -> str:
            """Charge a card."""
            self.runs.append(amount)
            return f"charged {amount}"

        self.tool = charge


def agent_with(*replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(list(replies)), **{"callback_handler": None, "retry_strategy": None, **options})


class Size(BaseModel):
    """A length."""

    cm: int


def result_of(agent: Agent) -> tuple[str, str]:
    """Status and text of the only tool result."""
    (result,) = [each for message in agent.messages for each in tool_results(message)]
    return result["status"], str(result["content"][0].get("text"))


async def through(context: Any, next_fn: Any) -> Events:
    async for event in next_fn(context):
        yield event


# The model.


async def test_the_phases_run_in_their_order_however_they_were_added() -> None:
    order: list[str] = []

    async def wrap(context: Any, next_fn: Any) -> Events:
        order.append("wrap")
        async for event in next_fn(context):
            yield event
        order.append("unwrap")

    async def asked(context: InvokeModelContext) -> InvokeModelContext:
        order.append("input")
        return context.replace(system_prompt="be brief")

    def answered(result: InvokeModelResult) -> InvokeModelResult:
        order.append("output")
        return result

    agent = agent_with("hello")
    agent.add_middleware(InvokeModelStage.Output, answered)
    agent.add_middleware(InvokeModelStage, wrap)
    agent.add_middleware(InvokeModelStage.Input, asked)
    pieces = [str(event["data"]) async for event in agent.stream_async("go") if "data" in event]
    assert "".join(pieces) == "hello"
    assert order == ["input", "wrap", "unwrap", "output"]
    assert isinstance(agent.model, ScriptedModel)
    assert agent.model.calls[0].system_prompt == "be brief"
    assert agent.system_prompt is None


async def test_middleware_sees_the_type_that_the_caller_asked_for() -> None:
    asked: list[object] = []

    def note(context: InvokeModelContext) -> InvokeModelContext:
        asked.append(context.structured_output_model)
        return context

    agent = agent_with("hello", {"toolUse": {"name": "Size", "input": {"cm": 3}}})
    agent.add_middleware(stage_or_phase=InvokeModelStage.Input, handler=note)
    await agent.invoke_async("go")
    result = await agent.invoke_async("how long?", structured_output_model=Size)
    assert result.structured_output == Size(cm=3)
    assert asked == [None, Size]


async def test_a_result_says_whether_its_tool_goes_on_elsewhere() -> None:
    event = ToolResultEvent({"toolUseId": "1", "status": "success", "content": []}, backgrounded=True)
    assert event.backgrounded
    assert event.exception is None


async def test_what_is_recorded_is_the_answer_that_middleware_gave() -> None:
    def softened(result: InvokeModelResult) -> InvokeModelResult:
        given = result.result
        message: Any = {"role": "assistant", "content": [{"text": text_of(given.message).lower()}]}
        return InvokeModelResult(ModelStopReason(given.stop_reason, message, given.usage, given.metrics))

    agent = agent_with("NO")
    agent.add_middleware(InvokeModelStage.Output, softened)
    result = await agent.invoke_async("go")
    assert str(result) == text_of(agent.messages[-1]) == "no"
    usage = agent.messages[-1].get("metadata", {}).get("usage")
    assert usage is not None
    assert usage["outputTokens"] > 0


async def test_an_answer_from_middleware_costs_nothing_and_asks_nobody() -> None:
    async def known(context: InvokeModelContext, next_fn: Any) -> Events:
        yield ModelStopReason("end_turn", {"role": "assistant", "content": [{"text": "known"}]}, _NONE, {})

    agent, budget = agent_with("asked"), Budget(total_tokens=1000)
    agent.add_middleware(InvokeModelStage, known)
    assert str(await agent.invoke_async("go", budget=budget)) == "known"
    assert isinstance(agent.model, ScriptedModel)
    assert not agent.model.calls
    assert budget.spent.total_tokens == 0


async def test_every_attempt_of_middleware_counts_towards_the_budget() -> None:
    async def twice(context: InvokeModelContext, next_fn: Any) -> Events:
        async for event in next_fn(context):
            if not isinstance(event, ModelStopReason):
                yield event
        async for event in next_fn(context):
            yield event

    once, both = Budget(total_tokens=1_000_000), Budget(total_tokens=1_000_000)
    await agent_with("the same").invoke_async("go", budget=once)
    agent = agent_with("the same", "the same")
    agent.add_middleware(InvokeModelStage, twice)
    await agent.invoke_async("go", budget=both)
    assert both.spent.total_tokens == 2 * once.spent.total_tokens > 0


async def test_middleware_sees_what_the_model_raised_and_may_ask_another_model() -> None:
    class Broken(Model):
        async def stream(self, *args: Any, **options: Any) -> Events:
            raise RuntimeError("no power")
            yield

    async def other(context: InvokeModelContext, next_fn: Any) -> Events:
        try:
            async for event in next_fn(context):
                yield event
        except RuntimeError:
            async for event in next_fn(context.replace(model=ScriptedModel(["from the other"]))):
                yield event

    agent = Agent(Broken(), callback_handler=None, retry_strategy=None)
    agent.add_middleware(InvokeModelStage, through)
    with pytest.raises(ModelFailed, match="no power"):
        await agent.invoke_async("go")
    agent.add_middleware(InvokeModelStage, other)
    assert str(await agent.invoke_async("go")) == "from the other"


async def test_a_changed_end_keeps_the_tools_from_running_and_the_history_paired() -> None:
    def ended(result: InvokeModelResult) -> InvokeModelResult:
        given = result.result
        return InvokeModelResult(ModelStopReason("end_turn", given.message, given.usage, given.metrics))

    charges = Charges()
    agent = agent_with(use("charge", amount=1), tools=[charges.tool])
    agent.add_middleware(InvokeModelStage.Output, ended)
    assert (await agent.invoke_async("go")).stop_reason == "end_turn"
    assert not charges.runs
    assert not any(list(tool_uses(message)) for message in agent.messages)


async def nothing(context: Any, next_fn: Any) -> Events:
    for event in ():
        yield event


async def broken(context: Any, next_fn: Any) -> Events:
    raise KeyError("lost")
    yield


def wrong(context: Any) -> Any:
    return "something else"


@pytest.mark.parametrize(
    ("phase", "handler", "what"),
    [
        (InvokeModelStage, nothing, "did not yield a ModelStopReason"),
        (InvokeModelStage, broken, "lost"),
        (InvokeModelStage.Input, wrong, "must return InvokeModelContext"),
        (InvokeModelStage.Output, wrong, "must return InvokeModelResult"),
        (ExecuteToolStage, nothing, "did not yield a ToolResultEvent"),
        (ExecuteToolStage, broken, "lost"),
        (ExecuteToolStage.Input, wrong, "must return ExecuteToolContext"),
        (ExecuteToolStage.Output, wrong, "must return ExecuteToolResult"),
    ],
)
async def test_middleware_that_fails_fails_the_step_and_leaves_a_valid_history(
    phase: Any, handler: Any, what: str
) -> None:
    charges = Charges()
    agent = agent_with(use("charge", amount=1), "done", tools=[charges.tool])
    agent.add_middleware(phase, handler)
    with pytest.raises(MiddlewareFailed, match=what) as failed:
        await agent.invoke_async("go")
    assert isinstance(failed.value, RuntimeError)
    asked = [each["toolUseId"] for message in agent.messages for each in tool_uses(message)]
    answered = [each["toolUseId"] for message in agent.messages for each in tool_results(message)]
    assert asked == answered


async def test_only_a_stage_takes_middleware() -> None:
    with pytest.raises(TypeError, match="a stage"):
        agent_with().add_middleware("model", through)  # type: ignore[call-overload]


# Tools.


async def test_a_tool_gets_the_input_and_the_model_the_result_that_middleware_gave() -> None:
    def halved(context: ExecuteToolContext) -> ExecuteToolContext:
        return context.replace(tool_use={**context.tool_use, "input": {"amount": 5}})

    def shouted(result: ExecuteToolResult) -> ExecuteToolResult:
        given = result.result.tool_result
        text = str(given["content"][0].get("text")).upper()
        return ExecuteToolResult(ToolResultEvent({**given, "content": [{"text": text}]}))

    charges = Charges()
    agent = agent_with(use("charge", amount=10), "done", tools=[charges.tool])
    agent.add_middleware(ExecuteToolStage.Input, halved)
    agent.add_middleware(ExecuteToolStage.Output, shouted)
    await agent.invoke_async("go")
    assert charges.runs == [5]
    assert result_of(agent) == ("success", "CHARGED 5")


async def test_each_start_of_a_tool_with_effects_is_recorded_before_it_runs() -> None:
    async def again(context: ExecuteToolContext, next_fn: Any) -> Events:
        result = None
        while result is None or result.tool_result["status"] != "success":
            async for event in next_fn(context):
                result = event
        yield result

    attempts: list[tuple[int, int]] = []

    @tool(effects=True)
    def charge(tool_context: ToolContext) -> str:
        """Charge a card."""
        recorded = agent._life.read_model.pending_tools.starts[tool_context.tool_use["toolUseId"]]
        attempts.append((tool_context.attempt, recorded.attempt))
        if len(attempts) < 3:
            raise RuntimeError("declined")
        return "charged"

    agent = agent_with(use("charge"), "done", tools=[charge])
    agent.add_middleware(ExecuteToolStage, again)
    await agent.invoke_async("go")
    assert attempts == [(1, 1), (2, 2), (3, 3)]
    assert result_of(agent) == ("success", "charged")


async def test_middleware_answers_for_a_tool_that_is_not_there() -> None:
    async def ghost(context: ExecuteToolContext, next_fn: Any) -> Events:
        assert context.tool is None
        boo: Any = {"status": "success", "content": [{"text": "boo"}], "toolUseId": context.tool_use["toolUseId"]}
        yield ToolResultEvent(boo)

    agent = agent_with(use("ghost"), "done")
    agent.add_middleware(ExecuteToolStage, through)
    await agent.invoke_async("go")
    assert result_of(agent)[1].startswith("Unknown tool: ghost")
    agent = agent_with(use("ghost"), "done")
    agent.add_middleware(ExecuteToolStage, ghost)
    await agent.invoke_async("go")
    assert result_of(agent) == ("success", "boo")


async def test_middleware_asks_a_person_before_a_tool_starts() -> None:
    async def allowed(context: ExecuteToolContext, next_fn: Any) -> Events:
        if context.interrupt("allow", reason="really?").response == "yes":
            async for event in next_fn(context):
                yield event
        else:
            yield ToolResultEvent(
                {"toolUseId": context.tool_use["toolUseId"], "status": "error", "content": [{"text": "denied"}]}
            )

    for said, runs, outcome in (("yes", [1], ("success", "charged 1")), ("no", [], ("error", "denied"))):
        charges = Charges()
        agent = agent_with(use("charge", amount=1), "done", tools=[charges.tool])
        agent.add_middleware(ExecuteToolStage, allowed)
        result = await agent.invoke_async("go")
        assert (result.stop_reason, charges.runs) == ("interrupt", [])
        (interrupt,) = result.interrupts
        answer: Any = [{"interruptResponse": {"interruptId": interrupt.id, "response": said}}]
        await agent.invoke_async(answer)
        assert charges.runs == runs
        assert result_of(agent) == outcome


async def test_calls_by_the_program_and_copies_of_the_agent_pass_it_too() -> None:
    names: list[str] = []

    def noted(context: ExecuteToolContext) -> ExecuteToolContext:
        names.append(context.tool_use["name"])
        return context

    charges = Charges()
    agent = agent_with(use("charge", amount=1), "done", tools=[charges.tool])
    agent.add_middleware(ExecuteToolStage.Input, noted)
    await agent.fresh_copy().invoke_async("go")
    await agent.tool.charge.invoke_async(amount=2)
    assert names == ["charge", "charge"]
