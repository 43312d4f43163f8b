"""Nodes that a program writes itself, as those of the SDK do: what they yield, and results that say little."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from repertory import (
    Agent,
    AgentResult,
    Graph,
    GraphBuilder,
    MultiAgentBase,
    MultiAgentResult,
    NodeFailed,
    NodeResult,
    ScriptedModel,
    Status,
)
from repertory.app.agent.loop_metrics import EventLoopMetrics

pytestmark = pytest.mark.anyio


class Searching(MultiAgentBase):
    """Tells how far it is, and gives a result without status and metrics."""

    def __init__(self, metrics: Any) -> None:
        self.id = "search"
        self.metrics = metrics
        self.given: list[tuple[Any, dict[str, Any] | None]] = []

    async def invoke_async(
        self, task: Any = None, invocation_state: dict[str, Any] | None = None, **options: Any
    ) -> MultiAgentResult:
        self.given.append((task, invocation_state))
        found = AgentResult(
            stop_reason="end_turn",
            message={"role": "assistant", "content": [{"text": "  two books\n"}]},
            metrics=self.metrics,
        )
        return MultiAgentResult(results={"shelf": NodeResult(found)})

    async def stream_async(
        self, task: Any = None, invocation_state: dict[str, Any] | None = None, **options: Any
    ) -> AsyncGenerator[Any]:
        yield {"looked_at": 1}
        yield "half way"
        yield {"result": await self.invoke_async(task, invocation_state)}


class Speechless:
    async def invoke_async(self, task: Any, **options: Any) -> Any:
        return "said"

    async def stream_async(self, task: Any, **options: Any) -> AsyncGenerator[Any]:
        yield {"thinking": True}


async def test_what_a_node_yields_goes_to_the_caller_who_streams() -> None:
    node = Searching({})
    events: list[Any] = [event async for event in Graph({"search": node}).stream_async("find", {"user": "u"})]
    forwarded = [each["event"] for each in events if each["type"] == "multiagent_node_stream"]
    assert forwarded == [{"looked_at": 1}, {"data": "half way"}]
    assert events[-1]["result"].status is Status.COMPLETED
    assert [state and state["user"] for _, state in node.given] == ["u"]


@pytest.mark.parametrize("metrics", [EventLoopMetrics(), {}], ids=["of another kind", "none"])
async def test_a_result_that_says_little_is_complete(metrics: Any) -> None:
    result = await Graph({"search": Searching(metrics)}).invoke_async("find")
    assert (result.status, result.accumulated_usage["totalTokens"]) == (Status.COMPLETED, 0)
    assert str(result) == "search: shelf:   two books\n"
    assert [each.stop_reason for each in result.results["search"].get_agent_results()] == ["end_turn"]


async def test_a_stream_without_a_result_fails_the_node() -> None:
    with pytest.raises(NodeFailed, match="a node gives") as raised:
        await Graph({"a": Speechless()}).invoke_async("go")
    assert isinstance(raised.value, RuntimeError)


def test_a_node_is_called_from_sync_code_and_other_keywords_are_its_state() -> None:
    node = Searching({})
    with pytest.warns(UserWarning, match="invocation_state"):
        node("find", {"user": "u"}, shelf=3)
    assert node.given == [("find", {"user": "u", "shelf": 3})]


def test_results_that_say_nothing_are_pending_and_share_nothing() -> None:
    for make in (lambda: NodeResult(ValueError("no")), MultiAgentResult):
        first, second = make(), make()
        assert (first.status, first.execution_count, first.interrupts) == (Status.PENDING, 0, [])
        first.accumulated_usage["inputTokens"] = 5
        assert second.accumulated_usage["inputTokens"] == 0


async def test_a_condition_is_given_the_invocation_state_if_it_names_it() -> None:
    def for_guests(state: Any, *, invocation_state: dict[str, Any], **more: Any) -> bool:
        return invocation_state["user"] == "guest"

    builder = GraphBuilder()
    for name in ("a", "b"):
        builder.add_node(Agent(ScriptedModel(["hello"], loop=True), callback_handler=None), name)
    builder.add_edge("a", "b", condition=for_guests)
    graph = builder.build()
    taken = [len((await graph.invoke_async("go", {"user": user})).execution_order) for user in ("guest", "owner")]
    assert taken == [2, 1]
