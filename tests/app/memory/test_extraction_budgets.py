"""Extraction counts towards the budget of the call that triggers it. What that does not allow for comes later, once."""

from __future__ import annotations

import random
import re
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from repertory import (
    AfterInvocationEvent,
    Agent,
    AgentSpec,
    Budget,
    ExtractionConfig,
    ExtractionResult,
    ExtractionTrigger,
    ExtractionTriggerContext,
    InMemoryStorage,
    IntervalTrigger,
    InvocationTrigger,
    JournalSessionManager,
    MemoryManager,
    ModelExtractor,
    Runtime,
    ScriptedModel,
    Unavailable,
)
from repertory.core.budget import Spent
from tests.app.agent.test_summary_budgets import calls
from tests.app.memory.toy_memories import Facts, Transcripts

pytestmark = pytest.mark.anyio


class Reader(ScriptedModel):
    """Makes one fact of what it is given: the questions that stand in it."""

    def __init__(self, *first: Any) -> None:
        super().__init__([*first, *[self._read] * 50])

    def _read(self, messages: Any, *rest: Any) -> str:
        said = re.findall(r"\bq\d+", messages[0]["content"][0]["text"])
        return f'[{{"content": "{" ".join(said)}"}}]'


def remembering(extractor: Any, trigger: Any = None, **more: Any) -> tuple[Agent, Facts]:
    config = ExtractionConfig(trigger=trigger or InvocationTrigger(), extractor=extractor)
    store = Facts(extraction=config)
    manager = MemoryManager(stores=[store], injection=False, search_tool_config=False)
    return Agent(ScriptedModel(["ok"], loop=True), callback_handler=None, memory_manager=manager, **more), store


def plenty() -> Budget:
    return Budget(total_tokens=1_000_000)


async def tokens_of_an_answer() -> int:
    budget = plenty()
    await Agent(ScriptedModel(["ok"]), callback_handler=None).invoke_async("q", budget=budget)
    return budget.spent.output_tokens


async def use_up(agent: Agent, prompt: str) -> Budget:
    """A call whose answer uses its budget up."""
    budget = Budget(output_tokens=1)
    assert (await agent.invoke_async(prompt, budget=budget)).stop_reason == "end_turn"
    await anyio.sleep(10)
    assert calls(budget) == {"default": 1}
    return budget


async def test_extraction_counts_towards_the_call_that_triggers_it() -> None:
    agent, store = remembering(ModelExtractor(Reader()), IntervalTrigger(2))
    first, second = plenty(), plenty()
    await agent.invoke_async("q1", budget=first)
    await agent.invoke_async("q2", budget=second)
    assert store.entries == ["q1 q2"]
    assert (calls(first), calls(second)) == ({"default": 1}, {"default": 1, "default/memory": 1})
    assert second.spent.total_tokens == sum(spent.total_tokens for spent in second.by.values())


@pytest.mark.parametrize("block", [False, True], ids=["call by call", "in a block"])
@pytest.mark.parametrize("then", ["a call with something left", "a call without a budget", "a flush"])
async def test_what_a_budget_does_not_allow_for_is_taken_in_later_and_once(block: bool, then: str) -> None:
    agent, store = remembering(ModelExtractor(Reader()))
    async with AsyncExitStack() as stack:
        if block:
            await stack.enter_async_context(agent)
        used_up = [await use_up(agent, "q1"), await use_up(agent, "q2")]
        assert store.entries == []
        later = plenty()
        if then == "a flush":
            assert (await agent.flush_memory())["facts"].landed == 1 + 4
            assert store.entries == ["q1 q2"]
        else:
            await agent.invoke_async("q3", budget=later if "left" in then else None)
            await anyio.sleep(10)
            assert store.entries == ["q1 q2 q3"]
            assert calls(later) == ({"default": 1, "default/memory": 1} if "left" in then else {})
        assert [calls(budget) for budget in used_up] == [{"default": 1}] * 2
    await agent.invoke_async("q4")
    assert store.entries[-1] == "q4"
    assert len(store.entries) == 2
    assert (await agent.flush_memory())["facts"].parked == 0


async def test_the_end_of_a_block_takes_in_what_budgets_did_not_allow_for() -> None:
    agent, store = remembering(ModelExtractor(Reader()))
    async with agent:
        budget = await use_up(agent, "q1")
    assert store.entries == ["q1"]
    assert calls(budget) == {"default": 1}


async def test_so_does_a_drain() -> None:
    store = Facts(extraction=ExtractionConfig(trigger=InvocationTrigger(), extractor=ModelExtractor(Reader())))
    async with Runtime(memory=[store]) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["ok"], loop=True))).session("s")
        budget = Budget(output_tokens=1)
        await session.invoke("q1", budget=budget)
        await anyio.sleep(10)
        assert store.entries == []
        report = await runtime.drain()
    assert report.ok
    assert store.entries == ["q1"]
    assert calls(budget) == {"default": 1}


async def test_so_does_the_next_process() -> None:
    storage = InMemoryStorage()
    first, _ = remembering(
        ModelExtractor(Reader()), session_manager=JournalSessionManager("s", storage=storage), agent_id="default"
    )
    await use_up(first, "q1")
    second, store = remembering(
        ModelExtractor(Reader()), session_manager=JournalSessionManager("s", storage=storage), agent_id="default"
    )
    await second.ready()
    assert store.entries == ["q1"]


@pytest.mark.parametrize("block", [False, True], ids=["call by call", "in a block"])
async def test_an_extraction_that_uses_the_budget_up_half_way_is_begun_anew_and_is_no_dead_letter(block: bool) -> None:
    """The first answer is nonsense, so that it has to be asked for again."""
    agent, store = remembering(ModelExtractor(Reader("Sorry?")))
    async with AsyncExitStack() as stack:
        if block:
            await stack.enter_async_context(agent)
        budget = Budget(output_tokens=await tokens_of_an_answer() + 1)
        await agent.invoke_async("q1", budget=budget)
        await anyio.sleep(100)
        assert (calls(budget), store.entries) == ({"default": 1, "default/memory": 1}, [])
        again = plenty()
        await agent.invoke_async("q2", budget=again)
        await anyio.sleep(100)
        assert store.entries == ["q1", "q2"]
        assert calls(again) == {"default": 1, "default/memory": 2}
        assert (await agent.flush_memory())["facts"].parked == 0
        assert len(set(store.keys)) == 2


async def test_what_was_put_off_half_way_is_done_by_the_next_call_that_can_even_if_it_triggers_nothing() -> None:
    agent, store = remembering(ModelExtractor(Reader("Sorry?")), IntervalTrigger(2))
    await agent.invoke_async("q1")
    tight, plain = Budget(output_tokens=await tokens_of_an_answer() + 1), plenty()
    await agent.invoke_async("q2", budget=tight)
    assert (calls(tight), store.entries) == ({"default": 1, "default/memory": 1}, [])
    await agent.invoke_async("q3", budget=plain)
    assert (calls(plain), store.entries) == ({"default": 1, "default/memory": 1}, ["q1 q2"])


async def test_what_is_tried_again_counts_towards_the_call_that_triggered_it() -> None:
    class Down(ModelExtractor):
        """Cannot be reached at first."""

        down = True

        async def extract(self, messages: Any, context: object = None) -> list[ExtractionResult]:
            if self.down:
                raise Unavailable("not yet")
            return await super().extract(messages, context)

    extractor = Down(Reader())
    agent, store = remembering(extractor, IntervalTrigger(2))
    async with agent:
        trigger, other = plenty(), plenty()
        await agent.invoke_async("q1")
        await agent.invoke_async("q2", budget=trigger)
        await anyio.sleep(0.1)
        await agent.invoke_async("q3", budget=other)
        extractor.down = False
        await anyio.sleep(100)
        assert (store.entries, calls(other)) == (["q1 q2"], {"default": 1})
        assert calls(trigger) == {"default": 1, "default/memory": 1}


async def test_an_extractor_whose_agent_is_cut_short_has_not_extracted_anything() -> None:
    notes = ScriptedModel([f"note {number}" for number in range(9)])
    writer = Agent(notes, agent_id="writer", callback_handler=None)

    class Asking:
        """Asks an agent twice, and takes whatever it says."""

        async def extract(self, messages: list[Any], context: Any) -> list[ExtractionResult]:
            said = [str(await writer.invoke_async(message["content"][0]["text"])) for message in messages]
            return [ExtractionResult(each) for each in said if each]

    agent, store = remembering(Asking())
    budget = Budget(output_tokens=await tokens_of_an_answer() + 1)
    await agent.invoke_async("q1", budget=budget)
    assert (calls(budget), store.entries) == ({"default": 1, "writer": 1}, [])
    budget = plenty()
    await agent.invoke_async("q2", budget=budget)
    assert calls(budget) == {"default": 1, "writer": 4}
    assert store.entries == [f"note {number}" for number in range(1, 5)]
    assert (await agent.flush_memory())["facts"].parked == 0


async def test_a_model_without_a_price_is_asked_by_a_call_that_bounds_no_cost() -> None:
    class Named(Reader):
        """A model with an id."""

        def get_config(self) -> dict[str, Any]:
            return {"model_id": "reader"}

    agent, store = remembering(ModelExtractor(Named()))
    budget = Budget(cost=1_000.0, prices={"": (1.0, 1.0)})
    await agent.invoke_async("q1", budget=budget)
    await anyio.sleep(100)
    assert (calls(budget), store.entries) == ({"default": 1}, [])
    await agent.invoke_async("q2")
    assert store.entries == ["q1", "q2"]
    assert (await agent.flush_memory())["facts"].parked == 0


async def test_a_trigger_of_ones_own_counts_towards_the_call_from_which_it_fires() -> None:
    class WhenAsked(ExtractionTrigger):
        """When the user says so."""

        fire: Any

        def attach(self, context: ExtractionTriggerContext) -> None:
            def look(event: AfterInvocationEvent) -> None:
                if "remember" in str(event.agent.messages[0]["content"][0].get("text")):
                    context.fire()

            self.fire = context.fire
            context.agent.hooks.add_callback(AfterInvocationEvent, look)

    trigger = WhenAsked()
    agent, store = remembering(ModelExtractor(Reader()), trigger)
    async with agent:
        budget = plenty()
        await agent.invoke_async("q1 remember", budget=budget)
        await anyio.sleep(1)
        assert (calls(budget), store.entries) == ({"default": 1, "default/memory": 1}, ["q1"])
        used_up = await use_up(agent, "q2")
        assert store.entries == ["q1"]
        trigger.fire()
        await anyio.sleep(1)
        assert store.entries == ["q1", "q2"]
        assert calls(used_up) == {"default": 1}


async def test_a_store_that_is_handed_the_messages_needs_no_budget() -> None:
    store = Transcripts(extraction=ExtractionConfig(trigger=InvocationTrigger()))
    manager = MemoryManager(stores=[store], injection=False)
    agent = Agent(ScriptedModel(["ok"], loop=True), callback_handler=None, memory_manager=manager)
    await use_up(agent, "q1")
    assert store.batches == [["q1", "ok"]]


async def test_whatever_budgets_allow_for_everything_is_extracted_once_and_none_of_it_costs_more_than_it_did(
    rng: random.Random,
) -> None:
    """Calls with any budget or none, in blocks or alone, by one process after the other; some answers are nonsense."""
    storage, kept = InMemoryStorage(), Facts()
    asked, said, given = 0, 0, list[Budget]()
    for _ in range(6):
        reader = Reader(*(["Sorry?"] if rng.random() < 0.5 else []))
        trigger = IntervalTrigger(rng.randrange(1, 4))
        manager = JournalSessionManager("s", storage=storage)
        agent, store = remembering(ModelExtractor(reader), trigger, session_manager=manager)
        store.entries, store.keys = kept.entries, kept.keys
        async with AsyncExitStack() as stack:
            if rng.random() < 0.5:
                await stack.enter_async_context(agent)
            for _ in range(rng.randrange(1, 5)):
                budget = Budget(output_tokens=rng.randrange(1, 9)) if rng.random() < 0.8 else None
                await agent.invoke_async(f"q{said:02}", budget=budget)
                given += [budget] if budget is not None else []
                said += 1
                await anyio.sleep(rng.choice([0, 1, 100]))
        asked += len(reader.calls)
    assert (await agent.flush_memory())["facts"].parked == 0
    assert " ".join(kept.entries).split() == [f"q{number:02}" for number in range(said)]
    charged = sum(budget.by.get("default/memory", Spent()).calls for budget in given)
    assert charged <= asked + len(reader.calls)
    assert all(sum(spent.calls for spent in budget.by.values()) == budget.spent.calls for budget in given)
