"""Summaries count towards the budget of the call for which they are written, and are left alone when it is used up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    Budget,
    ContextWindowOverflowException,
    ConversationManager,
    ScriptedModel,
    SummarizingConversationManager,
    tool,
)
from repertory.core.messages import Message, text_of
from repertory.core.window.decision import WindowBudget, is_summary
from repertory.core.window.sliding import Summarizing
from tests.app.agent.test_conversation import NarrowModel, quiet, say

pytestmark = pytest.mark.anyio

USAGE: Any = {"inputTokens": 10, "outputTokens": 10, "totalTokens": 20}


def calls(budget: Budget) -> dict[str, int]:
    return {who: spent.calls for who, spent in budget.by.items()}


async def test_a_summary_counts_as_the_agents_own_and_with_the_price_of_the_model_that_writes_it() -> None:
    manager = SummarizingConversationManager(preserve_recent_messages=2)
    aux = ScriptedModel(["by aux"], loop=True)
    agent = quiet(NarrowModel(9), manager, aux_model=aux, agent_id="clerk")
    await say(agent, 5)
    budget = Budget(cost=1_000_000.0, prices={"*": (1.0, 1.0)})
    await agent.invoke_async("one more", budget=budget)
    assert calls(budget) == {"clerk": 1, "clerk/summary": 1}
    assert budget.spent.total_tokens == sum(spent.total_tokens for spent in budget.by.values())
    assert budget.by["clerk/summary"].cost > 0
    before = budget.spent
    await say(agent, 10)
    assert budget.spent == before


async def test_so_do_the_turns_of_an_agent_that_writes_summaries() -> None:
    writer = Agent(ScriptedModel(["by agent"], loop=True), agent_id="writer", callback_handler=None)
    manager = SummarizingConversationManager(summarization_agent=writer, preserve_recent_messages=2)
    agent = quiet(NarrowModel(9), manager)
    await say(agent, 5)
    budget = Budget(total_tokens=100_000)
    await agent.invoke_async("one more", budget=budget)
    assert calls(budget) == {"default": 1, "writer": 1}


async def test_so_does_what_a_manager_of_ones_own_has_written() -> None:
    class Own(ConversationManager):
        """Has the first half summarised when the window is full."""

        def apply_management(self, agent: Any, **kwargs: Any) -> None:
            """Nothing."""

        async def reduce_context(self, agent: Any, e: Any = None, **kwargs: Any) -> None:
            request = Summarizing(preserve_recent_messages=2).reduce(agent.messages, WindowBudget(error=e))
            agent.messages[: len(request.messages)] = [
                {"role": "user", "content": [{"text": await agent.summarize(request)}]}
            ]

    agent = quiet(NarrowModel(9), Own())
    await say(agent, 5)
    budget = Budget(total_tokens=100_000)
    await agent.invoke_async("one more", budget=budget)
    assert calls(budget) == {"default": 1, "default/summary": 1}


@pytest.mark.parametrize("by_agent", [False, True], ids=["by the model", "by an agent"])
async def test_a_turn_ends_when_a_summary_has_used_the_budget_up_and_the_summary_stays(by_agent: bool) -> None:
    writer = Agent(ScriptedModel(["SUMMARY"], loop=True), agent_id="writer", callback_handler=None)
    manager = SummarizingConversationManager(
        summarization_agent=writer if by_agent else None, preserve_recent_messages=2
    )
    agent = quiet(NarrowModel(9), manager)
    await say(agent, 5)
    budget = Budget(output_tokens=1)
    result = await agent.invoke_async("one more", budget=budget)
    assert (result.stop_reason, result.message, budget.spent.calls) == ("limit_output_tokens", None, 1)
    assert text_of(agent.messages[0]) == "SUMMARY"
    assert str(await agent.invoke_async()) == "answer to one more"
    assert len(await agent.history()) == 12


async def test_so_it_does_when_the_summary_was_written_before_the_model_was_asked() -> None:
    model = NarrowModel(1_000, window=1_000)
    agent = quiet(model, SummarizingConversationManager(proactive_compression=True, preserve_recent_messages=2))
    reason, budget = "end_turn", Budget(output_tokens=1)
    while reason == "end_turn":
        budget = Budget(output_tokens=1)
        reason = (await agent.invoke_async("q0 " + "word " * 30, budget=budget)).stop_reason
    assert (reason, calls(budget), model.summaries) == ("limit_output_tokens", {"default/summary": 1}, 1)
    assert is_summary(agent.messages[0])
    assert str(await agent.invoke_async()).startswith("answer to q0")


async def test_a_turn_ends_when_nothing_is_left_for_the_summary_that_it_needs() -> None:
    class Rivalled(NarrowModel):
        """While it looks at what is too long, somebody else uses the budget up."""

        def _answer(self, messages: Sequence[Message], *rest: Any) -> Any:
            answer = super()._answer(messages, *rest)
            if isinstance(answer, ContextWindowOverflowException):
                budget.charge("rival", "", USAGE)
            return answer

    budget = Budget(output_tokens=10)
    model = Rivalled(9)
    agent = quiet(model, SummarizingConversationManager(preserve_recent_messages=2))
    await say(agent, 5)
    result = await agent.invoke_async("one more", budget=budget)
    assert (result.stop_reason, model.summaries, calls(budget)) == ("limit_output_tokens", 0, {"rival": 1})
    assert len(agent.messages) == 11
    assert str(await agent.invoke_async()) == "answer to one more"
    assert is_summary(agent.messages[0])


async def test_what_a_manager_of_ones_own_decides_without_the_answers_that_it_wanted_is_not_done() -> None:
    class Own(ConversationManager):
        """Puts two agents' words in the place of everything, whatever they say."""

        def apply_management(self, agent: Any, **kwargs: Any) -> None:
            """Nothing."""

        async def reduce_context(self, agent: Any, e: Any = None, **kwargs: Any) -> None:
            said = [str(await helper.invoke_async("Sum it up")) for _ in range(2)]
            agent.messages[:-1] = [{"role": "user", "content": [{"text": f"{said}"}]}]

    helper = Agent(ScriptedModel(["SUMMARY"], loop=True), agent_id="helper", callback_handler=None)
    agent = quiet(NarrowModel(9), Own())
    await say(agent, 5)
    budget = Budget(output_tokens=1)
    result = await agent.invoke_async("one more", budget=budget)
    assert (result.stop_reason, calls(budget)) == ("limit_output_tokens", {"helper": 1})
    assert len(agent.messages) == 11
    assert str(await agent.invoke_async()) == "answer to one more"
    assert text_of(agent.messages[0]) == "['SUMMARY', 'SUMMARY']"


async def test_so_it_does_when_the_budget_is_used_up_while_the_summary_is_begun() -> None:
    class Late(NarrowModel):
        """Its summary comes in two attempts, between which somebody else uses the budget up."""

        def _answer(self, messages: Sequence[Message], *rest: Any) -> Any:
            answer = super()._answer(messages, *rest)
            if answer == "SUMMARY" and self.summaries == 1:
                budget.charge("rival", "", USAGE)
                return ContextWindowOverflowException("the conversation is too long to be summarized")
            return answer

    budget = Budget(output_tokens=10)
    agent = quiet(Late(9), SummarizingConversationManager(preserve_recent_messages=2))
    await say(agent, 5)
    result = await agent.invoke_async("one more", budget=budget)
    assert (result.stop_reason, calls(budget)) == ("limit_output_tokens", {"rival": 1})
    assert str(await agent.invoke_async()) == "answer to one more"


class Slow(ScriptedModel):
    """Takes its time."""

    async def stream(self, *asked: Any, **options: Any) -> Any:
        await anyio.sleep(100)
        async for event in super().stream(*asked, **options):
            yield event


def far_sighted(aux: ScriptedModel, **options: Any) -> Agent:
    manager = SummarizingConversationManager(proactive_compression=True, preserve_recent_messages=2)
    return quiet(NarrowModel(1_000, window=1_000), manager, aux_model=aux, **options)


async def turns_until_summary() -> int:
    """How many turns there are before a summary is begun ahead of need."""
    aux = ScriptedModel(["AHEAD"], loop=True)
    async with far_sighted(aux) as agent:
        count = 0
        while not aux.calls:
            await say(agent, 1, 30)
            await anyio.sleep(1)
            count += 1
    return count


async def test_a_summary_behind_the_answer_counts_towards_the_call_that_caused_it() -> None:
    count = await turns_until_summary()
    async with far_sighted(Slow(["AHEAD"], loop=True)) as agent:
        await say(agent, count - 1, 30)
        cause, next_one = Budget(total_tokens=100_000), Budget(total_tokens=100_000)
        await agent.invoke_async("q0 " + "word " * 30, budget=cause)
        await agent.invoke_async("short", budget=next_one)
        assert calls(cause) == {"default": 1}
        await anyio.sleep(200)
        assert calls(cause) == {"default": 1, "default/summary": 1}
        assert calls(next_one) == {"default": 1}


async def test_a_summary_that_can_wait_is_left_for_a_call_with_something_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    count = await turns_until_summary()
    aux = ScriptedModel(["AHEAD"], loop=True)
    async with far_sighted(aux) as agent:
        await say(agent, count - 1, 30)
        budget = Budget(output_tokens=1)
        result = await agent.invoke_async("q0 " + "word " * 30, budget=budget)
        await anyio.sleep(1)
        assert (result.stop_reason, aux.calls, calls(budget)) == ("end_turn", [], {"default": 1})
        await agent.invoke_async("short")
        await anyio.sleep(1)
        assert len(aux.calls) == 1
        assert calls(budget) == {"default": 1}
        assert caplog.text == ""


async def test_a_summary_for_the_sake_of_what_the_program_does_counts_towards_no_earlier_call() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "word " * 50

    aux = ScriptedModel(["AHEAD"], loop=True)
    async with far_sighted(aux, tools=[look]) as agent:
        budget = Budget(total_tokens=100_000)
        await agent.invoke_async("q0", budget=budget)
        while not aux.calls:
            await agent.tool.look.invoke_async()
            await anyio.sleep(1)
    assert calls(budget) == {"default": 1}
