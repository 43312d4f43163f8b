"""Windows that overflow all the time, under every manager: nothing is lost, and what is restored is what was live."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    ContextWindowOverflowException,
    ConversationManager,
    InMemoryStorage,
    JournalSessionManager,
    NullConversationManager,
    ScriptedModel,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
    tool,
)
from repertory.actors.conversation import SUMMARIES_MAX
from repertory.core.messages import Message, check_next, text_of
from repertory.core.tokens import estimate_tokens
from repertory.core.window.decision import OMISSION_NOTE, REQUESTS_MAX, is_summary
from repertory.errors import ModelFailed

pytestmark = pytest.mark.anyio

REQUESTS = 20
"""How often a model that refuses for length is asked in one turn at most."""


@tool(effects=False)
def look(size: int) -> str:
    """Give a text of that size.

    Args:
        size: Characters.
    """
    return "x" * size


class StormyModel(ScriptedModel):
    """Refuses what is longer than a limit that changes all the time, asks for tools, and summarises badly at times."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__([self._answer], loop=True)
        self.rng = rng
        self.seen: list[list[Message]] = []

    @property
    def context_window_limit(self) -> int | None:
        return 2_000

    def _answer(self, messages: Sequence[Message], *rest: Any) -> Any:
        if text_of(messages[0]).startswith("Summarize the conversation"):
            return self.rng.choice(["SUMMARY", "SUMMARY", "  ", OSError("no")])
        self.seen.append(list(messages))
        if len(messages) > self.rng.randint(3, 14):
            return ContextWindowOverflowException("too long")
        if self.rng.random() < 0.3:
            return {"toolUse": {"name": "look", "input": {"size": self.rng.choice([5, 900])}}}
        return "ok"


def some_manager(rng: random.Random) -> ConversationManager:
    compression = rng.choice([None, True, {"compression_threshold": 0.4}])
    return rng.choice(
        [
            NullConversationManager(),
            SlidingWindowConversationManager(
                rng.randint(2, 12),
                rng.random() < 0.5,
                per_turn=rng.choice([False, True, 2]),
                pin_first=rng.choice([None, 1, 2]),
                proactive_compression=compression,
            ),
            SummarizingConversationManager(
                rng.choice([0.1, 0.5, 0.8]),
                rng.randint(1, 4),
                pin_first=rng.choice([None, 1]),
                proactive_compression=compression,
            ),
        ]
    )


def check_shown(shown: Sequence[Message]) -> None:
    """Never empty, tool uses with their results, none without its use."""
    assert shown
    for before, message in zip([None, *shown], shown, strict=False):
        check_next(before, message)


async def test_whatever_overflows_nothing_is_lost_and_a_restart_changes_nothing(rng: random.Random) -> None:
    summaries = refusals = 0
    while summaries < 3 or refusals < 10:
        storage, said, model = InMemoryStorage(), list[str](), StormyModel(rng)
        for _ in range(6):
            agent = Agent(
                model,
                tools=[look],
                callback_handler=None,
                conversation_manager=some_manager(rng),
                session_manager=JournalSessionManager("s", storage=storage),
                retry_strategy=None,
            )
            async with agent:
                for _ in range(rng.randint(1, 6)):
                    said.append(f"prompt {len(said)}")
                    try:
                        await agent.invoke_async(said[-1])
                    except (ContextWindowOverflowException, ModelFailed):
                        refusals += 1
                    await anyio.sleep(rng.choice([0, 1]))
                    if rng.random() < 0.3:
                        agent.conversation_manager = some_manager(rng)
                live = agent.messages
            again = Agent(
                model,
                tools=[look],
                callback_handler=None,
                conversation_manager=NullConversationManager(),
                session_manager=JournalSessionManager("s", storage=storage),
            )
            await again.ready()
            assert again.messages == live
            summaries += any(map(is_summary, live))
            history = await again.history()
            told = "\n".join(text_of(message) for message in history if message["role"] == "user")
            assert all(prompt in told for prompt in said)
            check_shown(history)
        for shown in model.seen:
            check_shown(shown)


class RoomyModel(ScriptedModel):
    """Says that each request took 900 tokens of a window of 1,000."""

    def __init__(self) -> None:
        super().__init__(["ok"], loop=True)

    @property
    def context_window_limit(self) -> int | None:
        return 1_000

    async def stream(self, *request: Any, **options: Any) -> AsyncIterator[Any]:
        async for event in super().stream(*request, **options):
            if "metadata" in event:
                usage = {"inputTokens": 900, "outputTokens": 1, "totalTokens": 901}
                yield {"metadata": {**event["metadata"], "usage": usage}}
            else:
                yield event


def agent_with_a_summary_to_come(storage: InMemoryStorage) -> tuple[Agent, ScriptedModel]:
    """An agent that has a summary written beside its turns, which takes ten seconds; and who writes it."""
    writer = ScriptedModel(["SUMMARY"], delay_s=10.0, loop=True)
    messages: list[Message] = []
    for number in range(8):
        messages.append({"role": "assistant" if number % 2 else "user", "content": [{"text": f"m{number}"}]})
    compression: Any = {"compression_threshold": 0.99}
    agent = Agent(
        RoomyModel(),
        messages=messages,
        callback_handler=None,
        conversation_manager=SummarizingConversationManager(0.5, 2, proactive_compression=compression),
        session_manager=JournalSessionManager("s", storage=storage),
        aux_model=writer,
    )
    return agent, writer


async def test_a_summary_that_is_ready_is_shown_from_the_next_call_on() -> None:
    agent, writer = agent_with_a_summary_to_come(InMemoryStorage())
    async with agent:
        await agent.invoke_async("begin")
        await anyio.sleep(110)
        await agent.invoke_async("go on")
        assert text_of(agent.messages[0]) == "SUMMARY"
    assert writer.calls


async def test_a_summary_that_is_ready_after_the_view_changed_is_not_shown() -> None:
    agent, writer = agent_with_a_summary_to_come(InMemoryStorage())
    fresh = Agent(ScriptedModel(["ok"]), callback_handler=None)
    await fresh.invoke_async("another conversation")
    async with agent:
        await agent.invoke_async("begin")
        await anyio.sleep(1)
        await agent.load_snapshot_async(fresh.save_snapshot())
        await anyio.sleep(110)
        await agent.invoke_async("go on")
        assert [text_of(message) for message in agent.messages] == ["another conversation", "ok", "go on", "ok"]
    assert writer.calls


async def test_a_summary_that_no_record_holds_when_the_process_ends_changes_nothing() -> None:
    storage = InMemoryStorage()
    agent, writer = agent_with_a_summary_to_come(storage)
    async with agent:
        await agent.invoke_async("begin")
        live = agent.messages
        await anyio.sleep(110)
        assert agent.messages == live
    assert writer.calls
    again = Agent(
        ScriptedModel(["ok"]), callback_handler=None, session_manager=JournalSessionManager("s", storage=storage)
    )
    await again.ready()
    assert again.messages == live
    assert not any(map(is_summary, again.messages))


# ----------------------------------------------------------------------- windows that hold little, for summaries too


class SmallModel(ScriptedModel):
    """Refuses every request of more than so many tokens, those for summaries too. No history breaks its rules."""

    def __init__(self, window: int, *, known: bool = True, summary: str = "SUMMARY") -> None:
        super().__init__([self._answer], loop=True)
        self.window = window
        self.known = known
        self.summary = summary
        self.asked = self.summaries = 0

    @property
    def context_window_limit(self) -> int | None:
        return self.window if self.known else None

    def _answer(self, messages: Sequence[Message], specs: Any, system_prompt: Any) -> Any:
        summarises = text_of(messages[0]).startswith("Summarize the conversation")
        self.summaries += summarises
        self.asked += not summarises
        previous = None
        for message in messages:
            check_next(previous, message)
            previous = message
        if estimate_tokens(messages, (), system_prompt) > self.window:
            return ContextWindowOverflowException("too long")
        return self.summary if summarises else "ok"


def talk_with_tools(rng: random.Random, steps: int, longest: int) -> list[Message]:
    """Prompts, answers, and tools with results of any size, in the middle of a turn or not."""
    said: list[Message] = []

    def text() -> str:
        return "w " * rng.choice([1, rng.randint(1, 60), rng.randint(1, longest)])

    for step in range(steps):
        said.append({"role": "user", "content": [{"text": text()}]})
        for number in range(rng.choice([0, 0, 1, 3])):
            use_id = f"t{step}-{number}"
            said.append(
                {"role": "assistant", "content": [{"toolUse": {"toolUseId": use_id, "name": "f", "input": {}}}]}
            )
            result: Any = {"toolUseId": use_id, "status": "success", "content": [{"text": text() * rng.choice([1, 9])}]}
            said.append({"role": "user", "content": [{"toolResult": result}]})
        said.append({"role": "assistant", "content": [{"text": text()}]})
    return said


@pytest.mark.parametrize("seed", range(40))
async def test_any_conversation_fits_any_window_that_holds_the_prompt_in_a_bounded_number_of_requests(
    seed: int,
) -> None:
    rng = random.Random(seed)
    prompt = "go on " * rng.randint(1, 50)
    system = "Be brief. " * rng.randint(0, 30)
    least = estimate_tokens([{"role": "user", "content": [{"text": prompt}]}], (), system)
    window = least + 1 + rng.choice([0, rng.randint(0, 100), rng.randint(0, 3_000)])
    manager = SummarizingConversationManager(
        rng.choice([0.1, 0.3, 0.8]),
        rng.choice([0, 1, 4, 10, 30]),
        pin_first=None,
        proactive_compression=rng.random() < 0.3,
    )
    model = SmallModel(window, known=rng.random() < 0.7, summary="S" * rng.choice([5, 400, 4_000]))
    messages = talk_with_tools(rng, rng.randint(0, 25), rng.choice([50, 500, 5_000]))
    agent = Agent(model, messages=messages, callback_handler=None, conversation_manager=manager, system_prompt=system)
    assert str(await agent.invoke_async(prompt)) == "ok"
    assert text_of(agent.messages[-2]) == prompt
    assert model.asked <= REQUESTS
    assert model.summaries <= (SUMMARIES_MAX + 1) * REQUESTS_MAX
    assert len(await agent.history()) == len(messages) + 2


async def test_what_is_too_long_for_the_summarising_model_is_summarised_in_halves() -> None:
    messages = talk_with_tools(random.Random(1), 60, 100)
    model = SmallModel(2_500)
    agent = Agent(
        model,
        messages=messages,
        callback_handler=None,
        conversation_manager=SummarizingConversationManager(0.8, 2),
    )
    assert str(await agent.invoke_async("go on")) == "ok"
    assert text_of(agent.messages[0]) == "SUMMARY"
    assert model.summaries > 3


async def test_what_nobody_can_summarise_is_left_out_with_a_note() -> None:
    class Fails(SmallModel):
        def _answer(self, messages: Sequence[Message], specs: Any, system_prompt: Any) -> Any:
            if text_of(messages[0]).startswith("Summarize the conversation"):
                return ContextWindowOverflowException("too long")
            return super()._answer(messages, specs, system_prompt)

    messages = talk_with_tools(random.Random(2), 30, 200)
    model = Fails(1_500)
    agent = Agent(
        model, messages=messages, callback_handler=None, conversation_manager=SummarizingConversationManager()
    )
    assert str(await agent.invoke_async("go on")) == "ok"
    shown = agent.messages
    assert is_summary(shown[0])
    assert text_of(shown[0]).endswith(OMISSION_NOTE.split("{}")[1])
    assert len(await agent.history()) == len(messages) + 2


async def test_huge_results_among_the_preserved_messages_are_shortened_and_nothing_else() -> None:
    use: Message = {"role": "assistant", "content": [{"toolUse": {"toolUseId": "u", "name": "f", "input": {}}}]}
    result: Any = {"toolUseId": "u", "status": "success", "content": [{"text": "x" * 100_000}]}
    messages: list[Message] = [
        {"role": "user", "content": [{"text": "look"}]},
        use,
        {"role": "user", "content": [{"toolResult": result}]},
        {"role": "assistant", "content": [{"text": "seen"}]},
    ]
    model = SmallModel(1_000)
    agent = Agent(
        model, messages=messages, callback_handler=None, conversation_manager=SummarizingConversationManager()
    )
    assert str(await agent.invoke_async("go on")) == "ok"
    assert (model.summaries, len(agent.messages)) == (0, 6)
    assert "[truncated: " in str(agent.messages[2])


@pytest.mark.parametrize("manager", [SummarizingConversationManager, SlidingWindowConversationManager])
async def test_the_error_says_what_is_too_long(manager: Any) -> None:
    agent = Agent(SmallModel(500), callback_handler=None, conversation_manager=manager(), system_prompt="be brief")
    await agent.invoke_async("hello")
    with pytest.raises(ContextWindowOverflowException, match=r"largest='messages\[0\] \(user\)'") as caught:
        await agent.invoke_async("word " * 10_000)
    assert caught.value.fields["largest_tokens"] > 10_000
