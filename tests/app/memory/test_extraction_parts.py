"""Extraction in its parts: settings, triggers, and extractors of any kind. Names and defaults are those of the SDK
whose users we serve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    ExtractionConfig,
    ExtractionContext,
    ExtractionFailed,
    ExtractionResult,
    ExtractionTrigger,
    ExtractionTriggerContext,
    IntervalTrigger,
    InvocationTrigger,
    MemoryMessageFilter,
    ModelExtractor,
    ScriptedModel,
    Throttled,
)
from repertory.app.memory.extraction import ask_extractor, read_extraction
from repertory.core.messages import Message
from repertory.errors import ContextWindowOverflowException, Invalid, LimitReached, MaxTokensReachedException

pytestmark = pytest.mark.anyio

TALK: list[Message] = [
    {"role": "user", "content": [{"text": "I like tea."}]},
    {"role": "assistant", "content": [{"text": "Noted."}]},
]
TEA = '[{"content": "likes tea"}]'

# ------------------------------------------------------------------------------------------------- settings, triggers


def test_a_setting_works_as_attributes_and_as_a_mapping() -> None:
    trigger, extractor = InvocationTrigger(), ModelExtractor()
    config = ExtractionConfig(trigger=trigger, extractor=extractor)
    assert config.trigger is config["trigger"] is trigger
    assert config.get("extractor") is extractor
    assert config.filter is None
    assert "filter" not in config
    with pytest.raises(FrozenInstanceError):
        config.trigger = None  # type: ignore[misc]


@pytest.mark.parametrize("given", [True, ExtractionConfig(), {}])
def test_what_is_left_out_is_what_is_usual(given: object) -> None:
    adds = read_extraction(given, has_add=True, has_add_messages=False)
    assert adds is not None
    assert [trigger.every for trigger in adds.triggers] == [5]
    assert isinstance(adds.extractor, ModelExtractor)
    assert adds.filter.exclude == ("toolUse", "toolResult")
    for has_add in (True, False):
        takes_messages = read_extraction(given, has_add=has_add, has_add_messages=True)
        assert takes_messages is not None
        assert takes_messages.extractor is None


def test_what_is_given_stands_whether_as_one_trigger_or_as_many() -> None:
    extractor, chosen = ModelExtractor(), MemoryMessageFilter(exclude=["image"])
    for trigger in (InvocationTrigger(), [InvocationTrigger(), IntervalTrigger(3)], []):
        config = {"trigger": trigger, "extractor": extractor, "filter": {"exclude": ["image"]}}
        read = read_extraction(config, has_add=True, has_add_messages=True)
        assert read is not None
        assert list(read.triggers) == (trigger if isinstance(trigger, list) else [trigger])
        assert read.extractor is extractor
        assert read.filter == chosen


def test_no_extraction_is_none() -> None:
    assert read_extraction(None, has_add=True, has_add_messages=False) is None
    assert read_extraction(False, has_add=True, has_add_messages=False) is None


@pytest.mark.parametrize(
    "wrong",
    ["yes", 5, {"triggers": []}, {"trigger": "every turn"}, {"trigger": [InvocationTrigger]}, {"extractor": object()}],
)
def test_a_setting_that_is_none_is_refused(wrong: object) -> None:
    with pytest.raises(Invalid):
        read_extraction(wrong, has_add=True, has_add_messages=False)


def test_the_triggers_that_ship_say_how_many_turns_they_wait() -> None:
    assert (InvocationTrigger().name, InvocationTrigger().every) == ("invocation", 1)
    assert (IntervalTrigger(turns=3).name, IntervalTrigger(3).every) == ("interval", 3)


@pytest.mark.parametrize("turns", [0, -1, True, 2.5, "5", None])
def test_an_interval_is_a_positive_number_of_turns(turns: Any) -> None:
    with pytest.raises(ValueError, match=rf"^IntervalTrigger: turns must be a positive integer, got {turns}$"):
        IntervalTrigger(turns)


async def test_a_trigger_of_ones_own_fires_from_a_hook() -> None:
    from repertory import AfterInvocationEvent

    class WhenAsked(ExtractionTrigger):
        name = "when-asked"

        def attach(self, context: ExtractionTriggerContext) -> None:
            def look(event: AfterInvocationEvent) -> None:
                if context.agent.state.get("extract"):
                    context.fire()

            context.agent.add_hook(look, AfterInvocationEvent)

    fired: list[str] = []
    agent = Agent(ScriptedModel(["one", "two"]), callback_handler=None)
    trigger = WhenAsked()
    assert trigger.every is None
    trigger.attach(ExtractionTriggerContext(agent=agent, fire=lambda: fired.append("now")))
    await agent.invoke_async("first")
    assert fired == []
    agent.state.set("extract", True)
    await agent.invoke_async("second")
    assert fired == ["now"]


# ---------------------------------------------------------------------------------------------- extractors of any kind


def _sync(messages: list[Message], context: ExtractionContext) -> list[ExtractionResult]:
    return [ExtractionResult(f"{len(messages)} for {context.store_name}")]


async def _async(messages: list[Message], context: ExtractionContext) -> list[ExtractionResult]:
    return _sync(messages, context)


class Extracts:
    """An extractor made of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.extract = function


@pytest.mark.real_time
@pytest.mark.parametrize("function", [_sync, _async, lambda *given: _async(*given)], ids=["sync", "async", "hidden"])
async def test_an_extractor_may_be_synchronous_or_not(function: Callable[..., Any]) -> None:
    context = ExtractionContext(store_name="facts")
    assert await ask_extractor(Extracts(function), TALK, context) == [ExtractionResult("2 for facts")]
    assert await ask_extractor(Extracts(function), [], context) == []


@pytest.mark.parametrize(
    ("raised", "error"),
    [(KeyError("k"), ExtractionFailed), (Throttled("later"), Throttled), (LimitReached("over"), LimitReached)],
)
async def test_what_an_extractor_raises_is_ours_or_the_cause_of_ours(raised: Exception, error: type[Exception]) -> None:
    async def fail(*given: object) -> None:
        raise raised

    with pytest.raises(error) as caught:
        await ask_extractor(Extracts(fail), TALK, ExtractionContext())
    assert raised in (caught.value, caught.value.__cause__)


async def test_results_that_are_none_are_an_error() -> None:
    async def nothing(*given: object) -> None:
        return None

    with pytest.raises(ExtractionFailed, match="got='NoneType'"):
        await ask_extractor(Extracts(nothing), TALK, ExtractionContext())


# ------------------------------------------------------------------------------------------------- having a model do it


async def test_a_model_is_asked_without_tools_and_shown_what_was_said() -> None:
    model = ScriptedModel([TEA])
    context = ExtractionContext(model=model, said_at=[1_700_000_000.0, None])
    assert await ModelExtractor().extract(TALK, context) == [ExtractionResult("likes tea")]
    (call,) = model.calls
    assert not call.tool_specs
    assert len(call.messages) == 1
    shown = call.messages[0]["content"][0]["text"]
    assert '"time": "2023-11-14 22:13 UTC", "content": [{"text": "I like tea."}]}' in shown
    assert "[]" in str(call.system_prompt)


async def test_its_own_model_and_words_come_before_the_agents() -> None:
    own, aux, main = ScriptedModel([TEA]), ScriptedModel([TEA]), ScriptedModel([TEA])
    agent = Agent(main, aux_model=aux, callback_handler=None)
    await ModelExtractor(own, "Only preferences.").extract(TALK, ExtractionContext(agent=agent, model=aux))
    assert str(own.calls[0].system_prompt).startswith("Only preferences.\n\n")
    assert "JSON array" in str(own.calls[0].system_prompt)
    await ModelExtractor().extract(TALK, ExtractionContext(agent=agent))
    assert (len(own.calls), len(aux.calls), len(main.calls)) == (1, 1, 0)
    await ModelExtractor().extract(TALK, ExtractionContext(agent=Agent(main, callback_handler=None)))
    assert len(main.calls) == 1


async def test_contexts_of_other_shapes_work_and_without_a_model_it_says_so() -> None:
    model = ScriptedModel([TEA], loop=True)

    class Context:
        default_model = model

    for context in (Context(), {"default_model": model}, {"model": model}):
        assert await ModelExtractor().extract(TALK, context) == [ExtractionResult("likes tea")]
    assert ExtractionContext(model=model).default_model is model
    assert await ModelExtractor().extract([], None) == []
    with pytest.raises(Invalid, match="no model configured"):
        await ModelExtractor().extract(TALK)


async def test_a_model_that_is_throttled_is_asked_again() -> None:
    model = ScriptedModel([Throttled("slow down"), TEA])
    assert await ModelExtractor(model).extract(TALK) == [ExtractionResult("likes tea")]
    assert len(model.calls) == 2


async def test_an_answer_that_is_none_is_an_error_and_is_not_asked_for_again() -> None:
    model = ScriptedModel(["I have nothing to say.", TEA])
    with pytest.raises(ExtractionFailed, match="no array of facts"):
        await ModelExtractor(model).extract(TALK)
    assert len(model.calls) == 1


class CutOff(ScriptedModel):
    """Whose answers end at a token limit when they are asked about much."""

    async def stream(self, *given: Any, **options: Any) -> Any:
        async for event in super().stream(*given, **options):
            cut = "messageStop" in event and len(given[0][0]["content"][0]["text"]) > 8_000
            yield {"messageStop": {"stopReason": "max_tokens"}} if cut else event


async def test_an_answer_cut_off_by_a_token_limit_does_not_count_even_when_it_can_be_read() -> None:
    model = CutOff(['[{"content": "half"}]', *['[{"content": "whole"}]'] * 20])
    talk: list[Message] = [{"role": "user", "content": [{"text": "x" * 2_000}]} for _ in range(10)]
    assert await ModelExtractor(model).extract(talk) == [ExtractionResult("whole")]
    with pytest.raises(ExtractionFailed, match="too long for the model") as caught:
        await ModelExtractor(CutOff([TEA], loop=True)).extract(
            [{"role": "user", "content": [{"text": "x " * 5_000}] * 99}]
        )
    assert isinstance(caught.value.__cause__, MaxTokensReachedException)


async def test_what_is_too_long_is_asked_about_in_smaller_parts_and_nothing_is_left_out() -> None:
    def answer(messages: list[Message], *given: object) -> object:
        shown = messages[0]["content"][0]["text"]
        if len(shown) > 8_000:
            return ContextWindowOverflowException("too long")
        return f'[{{"content": "seen {len(shown)}"}}, {{"content": "always"}}]'

    talk: list[Message] = [{"role": "user", "content": [{"text": f"{number} " + "x" * 1_000}]} for number in range(40)]
    model = ScriptedModel([answer], loop=True)
    facts = await ModelExtractor(model).extract(talk)
    assert [fact.content for fact in facts if fact.content == "always"] == ["always"]
    shown = "".join(call.messages[0]["content"][0]["text"] for call in model.calls[2:])
    assert all(f'"{number} x' in shown for number in range(40))


async def test_what_is_too_long_even_then_is_an_error() -> None:
    model = ScriptedModel([ContextWindowOverflowException("too long")], loop=True)
    with pytest.raises(ExtractionFailed, match="too long for the model") as caught:
        await ModelExtractor(model).extract(TALK)
    assert isinstance(caught.value.__cause__, ContextWindowOverflowException)
    assert len(model.calls) == 1, "the same was asked again"


async def test_cancellation_ends_the_call() -> None:
    model = ScriptedModel([TEA], delay_s=100.0)
    with anyio.move_on_after(1) as scope:
        await ModelExtractor(model).extract(TALK)
    assert scope.cancelled_caught
