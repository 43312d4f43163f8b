"""Budgets: one for everything that is done for a call, looked at before each model call, and gone on without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from repertory import (
    Agent,
    Budget,
    ContextWindowOverflowException,
    ExtractionConfig,
    Graph,
    GraphBuilder,
    InMemoryStorage,
    InvocationTrigger,
    JournalSessionManager,
    MemoryManager,
    ModelExtractor,
    NodeFailed,
    ScriptedModel,
    Status,
    SummarizingConversationManager,
    Swarm,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.budget import Spent
from repertory.core.messages import Message, text_of, tool_results
from repertory.core.run_results import MultiAgentResult
from repertory.errors import Invalid
from tests.app.memory.toy_memories import Facts

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def agent(*replies: Any, name: str = "a", **more: Any) -> Agent:
    return Agent(
        ScriptedModel(replies or ("fine",), loop=True), name=name, agent_id=name, callback_handler=None, **more
    )


def asking(tool_name: str, **given: Any) -> Any:
    return {"toolUse": {"name": tool_name, "input": given}}


def order(result: MultiAgentResult) -> list[str]:
    return [node.node_id for node in result.execution_order]  # type: ignore[attr-defined]


async def test_a_turn_ends_when_its_budget_is_used_up_and_goes_on_under_another() -> None:
    @tool(name="look")
    async def look() -> str:
        """Look."""
        return "nothing"

    seeker = agent(asking("look"), asking("look"), "found", tools=[look])
    budget = Budget(output_tokens=1)
    result = await seeker.invoke_async("Seek", budget=budget)
    assert (result.stop_reason, result.message, budget.spent.calls) == ("limit_output_tokens", None, 1)
    spent = budget.spent
    result = await seeker.invoke_async(budget=budget)
    assert (result.stop_reason, budget.spent) == ("limit_output_tokens", spent)
    assert str(await seeker.invoke_async()) == "found"


async def test_agents_that_are_tools_and_that_tools_call_count_towards_it() -> None:
    third = agent("deep", name="third")

    @tool(name="call")
    async def call() -> str:
        """Call the third."""
        return str(await third.invoke_async("Go", budget=own))

    own = Budget(total_tokens=10_000)
    second = agent(asking("call"), "second", name="second", tools=[call])
    first = agent(asking("second", input="Go"), "first", name="first", tools=[second])
    budget = Budget(total_tokens=10_000)
    await first.invoke_async("Go", budget=budget)
    assert {who: spent.calls for who, spent in budget.by.items()} == {"first": 2, "second": 2, "third": 1}
    assert (own.by.keys(), own.spent) == ({"third"}, budget.by["third"])
    assert sum(spent.total_tokens for spent in budget.by.values()) == budget.spent.total_tokens
    before = budget.spent
    await first.invoke_async("Go")
    assert budget.spent == before


async def test_nodes_share_a_budget_and_the_run_goes_on_under_another() -> None:
    builder = GraphBuilder()
    for name in ("root", "left", "right", "join"):
        builder.add_node(agent(name, name=name), name)
    for source, target in (("root", "left"), ("root", "right"), ("left", "join"), ("right", "join")):
        builder.add_edge(source, target)
    graph = builder.build()
    budget = Budget(total_tokens=1)
    result = await graph.invoke_async("Go", budget=budget)
    assert (result.status, result.reason, order(result)) == (Status.INTERRUPTED, "limit_total_tokens", ["root"])
    result = await graph.invoke_async("Go", budget=Budget(total_tokens=10_000))
    assert (result.status, result.resumed, sorted(order(result))) == (
        Status.COMPLETED,
        True,
        ["join", "left", "right", "root"],
    )


async def test_nested_orchestrators_share_it_too() -> None:
    team = Swarm([agent(asking("handoff_to_agent", agent_name="b", message="x"), "one"), agent("two", name="b")])
    graph = Graph({"team": team, "last": agent("three", name="last")})
    result = await graph.invoke_async("Go", budget=Budget(total_tokens=1))
    assert (result.status, result.reason, order(result)) == (Status.INTERRUPTED, "limit_total_tokens", [])
    budget = Budget(total_tokens=100_000)
    result = await graph.invoke_async("Go", budget=budget)
    assert (result.status, result.execution_count) == (Status.COMPLETED, 3)
    assert budget.spent.calls == 3


class Clerk(ScriptedModel):
    """Asks the expert, once it is shown little enough; writes summaries when it is asked to."""

    def __init__(self) -> None:
        super().__init__([self._answer], loop=True)

    def _answer(self, messages: Sequence[Message], *rest: Any) -> Any:
        if text_of(messages[0]).startswith("Summarize the conversation"):
            return "They talked."
        if len(messages) > 9:
            return ContextWindowOverflowException("too long")
        return "Bees dance." if any(tool_results(messages[-1])) else asking("expert", input="How do bees talk?")


@pytest.mark.parametrize("kept", [False, True], ids=["for the call", "in a session"])
async def test_one_budget_runs_through_graph_node_tool_summary_and_memory_and_names_each(kept: bool) -> None:
    reader = ModelExtractor(ScriptedModel(['[{"content": "Bees dance."}]'], loop=True))
    store = Facts(extraction=ExtractionConfig(trigger=InvocationTrigger(), extractor=reader))
    clerk = Agent(
        Clerk(),
        tools=[agent("By dancing.", name="expert")],
        agent_id="clerk",
        callback_handler=None,
        conversation_manager=SummarizingConversationManager(preserve_recent_messages=2),
        memory_manager=MemoryManager(stores=[store], injection=False, search_tool_config=False),
        messages=[{"role": role, "content": [{"text": "So?"}]} for role in ("user", "assistant") * 5],
    )
    place = JournalSessionManager("s", storage=InMemoryStorage()) if kept else None
    graph = Graph({"first": agent("Go on", name="first"), "clerk": clerk}, id="bees", session_manager=place)
    budget = Budget(total_tokens=100_000, cost=1.0, prices={"*": (1.0, 1.0)})
    result = await graph.invoke_async("Find out", budget=budget)
    assert result.status == Status.COMPLETED
    of = "bees." if kept else ""
    assert {who: spent.calls for who, spent in budget.by.items()} == {
        f"{of}first": 1,
        f"{of}clerk": 2,
        f"{of}clerk/summary": 2,
        f"{of}clerk/memory": 1,
        "expert": 1,
    }
    assert set(store.entries) == {"Bees dance."}
    for total, part in zip(budget.spent, zip(*budget.by.values(), strict=True), strict=True):
        assert total == pytest.approx(sum(part))


async def test_what_a_smaller_budget_leaves_is_there_for_the_others_and_a_larger_one_adds_nothing() -> None:
    helper = agent("some help", name="helper")
    results: list[str] = []

    @tool(name="delegate")
    async def delegate(tokens: int) -> str:
        """Have the helper help, with a budget of its own."""
        own = Budget(output_tokens=tokens)
        while (reason := (await helper.invoke_async("Help", budget=own)).stop_reason) == "end_turn":
            pass
        results.append(reason)
        return "enough"

    uses = [asking("delegate", tokens=tokens) for tokens in (1, 10_000)]
    everything = Budget(output_tokens=200)
    result = await agent(*uses, "done", name="boss", tools=[delegate]).invoke_async("Go", budget=everything)
    assert (result.stop_reason, results) == ("limit_output_tokens", ["limit_output_tokens"] * 2)
    assert everything.by["helper"].calls > 1, "what the first did not use was there for the second"
    assert everything.spent.output_tokens < 200 + 100, "the second, which had more, ended with the whole"


async def test_a_budget_may_bound_the_cost() -> None:
    budget = Budget(cost=0.0001, prices={"*": (0.0, 100.0)})
    clerk = agent("one token or more")
    first = await clerk.invoke_async("Go", budget=budget)
    second = await clerk.invoke_async("Go", budget=budget)
    assert (first.stop_reason, second.stop_reason) == ("end_turn", "limit_cost")
    assert budget.spent.cost == pytest.approx(budget.spent.output_tokens / 10_000)


async def test_a_model_without_a_price_is_not_asked_when_the_cost_is_bounded() -> None:
    clerk = agent()
    with pytest.raises(Invalid, match="no price for this model"):
        await clerk.invoke_async("Go", budget=Budget(cost=1.0, prices={"other": (1.0, 1.0)}))
    unbounded = Budget(prices={"other": (1.0, 1.0)})
    await clerk.invoke_async("Go", budget=unbounded)
    assert (unbounded.spent.calls, unbounded.spent.cost) == (1, 0.0)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Budget(total_tokens=0), "total_tokens"),
        (lambda: Budget(output_tokens=True), "output_tokens"),
        (lambda: Budget(cost=float("inf")), "cost"),
        (lambda: Budget(cost=1.0), "needs prices"),
        (lambda: Budget(prices={"m": (1.0,)}), "two numbers"),  # type: ignore[dict-item]
        (lambda: Budget(prices={"m": (-1.0, 1.0)}), "two numbers"),
    ],
    ids=["nothing", "no number", "endless", "no prices", "one price", "negative"],
)
def test_what_is_no_budget_is_refused(make: Any, what: str) -> None:
    with pytest.raises(Invalid, match=what):
        make()


async def test_only_a_budget_is_one() -> None:
    with pytest.raises(Invalid, match="budget is a Budget"):
        await agent().invoke_async("Go", budget=100)  # type: ignore[typeddict-item]
    assert Spent().calls == 0


@pytest.mark.parametrize("kept", [False, True], ids=["nowhere", "kept"])
async def test_nodes_whose_agents_have_no_id_of_their_own_stand_there_by_their_names(kept: bool) -> None:
    def nameless() -> Agent:
        return Agent(ScriptedModel(["fine"]), callback_handler=None)

    place = JournalSessionManager("s", storage=InMemoryStorage()) if kept else None
    inner = Graph({"deep": nameless()}, id="inner")
    graph = Graph({"a": nameless(), "b": nameless(), "team": inner}, id="g", session_manager=place)
    budget = Budget(total_tokens=10_000)
    result = await graph.invoke_async("Go", budget=budget)
    assert {who: spent.calls for who, spent in budget.by.items()} == {"g.a": 1, "g.b": 1, "g.team.deep": 1}
    assert result.spent == budget.by


async def test_the_result_of_a_run_says_who_spent_what_also_when_it_failed() -> None:
    replies: list[Any] = ["done", ConnectionError("down"), "done"]
    builder = GraphBuilder()
    builder.add_node(Agent(ScriptedModel(["well"], loop=True), callback_handler=None), "talks")
    builder.add_node(Agent(ScriptedModel(replies), callback_handler=None, retry_strategy=None), "works")
    graph = builder.build()
    first = await graph.invoke_async("Go")
    assert {who: spent.calls for who, spent in first.spent.items()} == {
        "default_graph.talks": 1,
        "default_graph.works": 1,
    }
    with pytest.raises(NodeFailed) as failed:
        await graph.invoke_async("Go")
    assert isinstance(failed.value.result, MultiAgentResult)
    assert set(failed.value.result.spent) == {"default_graph.talks"}
    priced = Budget(cost=1.0, prices={"*": (1e6, 0.0)})
    last = await graph.invoke_async("Go", budget=priced)
    assert {who: (spent.calls, spent.cost > 0) for who, spent in last.spent.items()} == {
        "default_graph.works": (1, True)
    }
