"""Nodes that fail: what of them is tried again, in this call or the next, and what rubbish they may give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    AgentResult,
    Graph,
    GraphBuilder,
    MultiAgentResult,
    NodeFailed,
    Runtime,
    ScriptedModel,
    Status,
)
from repertory.app.sessions.sessions import PlacedSession
from repertory.errors import Invalid
from tests.app.orchestration.session_shelf import Shelf

pytestmark = pytest.mark.anyio


class Doing:
    """A node that does this, and counts how often."""

    def __init__(self, work: Callable[[int], Awaitable[object]]) -> None:
        self.work = work
        self.times = 0

    async def invoke_async(self, prompt: Any, /, *, invocation_state: dict[str, Any]) -> Any:
        del prompt, invocation_state
        self.times += 1
        return await self.work(self.times)


async def flaky(time: int) -> object:
    await anyio.sleep(1)
    if time == 1:
        raise ConnectionError("transient")
    return "fine"


async def broken_once(time: int) -> object:
    if time == 1:
        raise ValueError("broken")
    return "mended"


async def quick(time: int) -> object:
    return f"time {time}"


async def slow(time: int) -> object:
    await anyio.sleep(5)
    return f"slow {time}"


def on(shelf: Shelf, builder: GraphBuilder) -> Graph:
    return builder.set_session_manager(PlacedSession("s", shelf)).build()


@pytest.mark.parametrize("policy", ["fail", "skip"])
async def test_a_node_that_may_be_tried_again_owes_its_work_when_another_one_has_failed_the_call(policy: Any) -> None:
    builder, first = GraphBuilder(), Doing(flaky)
    builder.add_node(first, "flaky", retries=3, on_failure=policy)
    builder.add_node(Doing(broken_once), "broken")
    graph = on(Shelf(), builder)
    with pytest.raises(NodeFailed, match="broken") as caught:
        await graph.invoke_async("Go")
    assert isinstance(caught.value.result, MultiAgentResult)
    assert list(caught.value.result.results) == ["broken"], "nothing is said yet of what is to be tried again"
    result = await graph.invoke_async()
    assert (result.status, first.times) == (Status.COMPLETED, 2)
    assert {node: str(each) for node, each in result.results.items()} == {"broken": "mended", "flaky": "fine"}


@pytest.mark.parametrize("drained_after_s", [0.5, 1.2], ids=["in an attempt", "between two"])
async def test_a_node_that_may_be_tried_again_owes_its_work_after_a_drain(drained_after_s: float) -> None:
    shelf, first = Shelf(), Doing(flaky)

    def graph() -> Graph:
        builder = GraphBuilder()
        builder.add_node(first, "flaky", retries=3, on_failure="skip")
        builder.add_node(Doing(quick), "next")
        builder.add_edge("flaky", "next")
        return on(shelf, builder)

    caught: list[Exception] = []

    async def call() -> None:
        try:
            await graph().invoke_async("Go")
        except Exception as error:  # noqa: BLE001 - looked at below
            caught.append(error)

    async with anyio.create_task_group() as group, Runtime() as runtime:
        group.start_soon(call)
        await anyio.sleep(drained_after_s)
        began = anyio.current_time()
        assert (await runtime.drain()).ok
        assert anyio.current_time() - began < 0.6, "it does not wait for an attempt that will not come"
    assert (first.times, "shutting down" in str(caught[0])) == (1, True)
    result = await graph().invoke_async("Go")
    assert (result.status, result.resumed, str(result.results["flaky"])) == (Status.COMPLETED, True, "fine")


async def test_a_node_whose_last_attempt_fails_has_failed_also_when_nothing_else_may_begin() -> None:
    builder, always = GraphBuilder(), Doing(flaky)
    builder.add_node(always, "flaky", on_failure="skip")
    builder.add_node(Doing(broken_once), "broken")
    graph = on(Shelf(), builder)
    with pytest.raises(NodeFailed, match="broken"):
        await graph.invoke_async("Go")
    result = await graph.invoke_async()
    assert (result.status, result.results["flaky"].status, always.times) == (Status.COMPLETED, Status.FAILED, 1)


def message(content: object) -> Any:
    return {"role": "assistant", "content": content}


RUBBISH: dict[str, object] = {
    "no JSON": AgentResult(stop_reason="end_turn", message=message([{"text": object()}])),
    "not a number": AgentResult(stop_reason="end_turn", message=message([{"text": "x", "score": float("nan")}])),
    "no blocks": AgentResult(stop_reason="end_turn", message=message("text")),
    "no message": AgentResult(stop_reason="end_turn", message=["text"]),  # type: ignore[arg-type] - as others may do
    "no result": 17,
    "no end": MultiAgentResult(status=Status.EXECUTING),
}


@pytest.mark.parametrize("what", RUBBISH)
async def test_what_a_node_gives_that_cannot_be_kept_fails_that_node_alone(what: str) -> None:
    async def give(time: int) -> object:
        return RUBBISH[what] if time == 1 else AgentResult(stop_reason="end_turn", message=message([]))

    builder, sibling = GraphBuilder(), Doing(slow)
    builder.add_node(Doing(give), "bad")
    builder.add_node(sibling, "sibling")
    graph = on(Shelf(), builder)
    with pytest.raises(NodeFailed) as caught:
        await graph.invoke_async("Go")
    assert (caught.value.fields["node"], type(caught.value.__cause__)) == ("bad", Invalid)
    result = await graph.invoke_async()
    assert (result.status, sibling.times, str(result.results["sibling"])) == (Status.COMPLETED, 1, "slow 1")


@pytest.mark.parametrize("policy", ["fail", "skip"])
async def test_a_cancellation_that_nobody_asked_for_is_the_failure_of_its_node(policy: Any) -> None:
    async def cancelled(time: int) -> object:
        if time > 1:
            return "now"
        kept: BaseException | None = None
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await anyio.lowlevel.checkpoint()
            except anyio.get_cancelled_exc_class() as error:
                kept = error
                raise
        assert kept is not None
        raise kept

    builder, sibling = GraphBuilder(), Doing(slow)
    builder.add_node(Doing(cancelled), "stray", on_failure=policy)
    builder.add_node(sibling, "sibling")
    builder.add_node(Doing(quick), "after")
    builder.add_edge("sibling", "after")
    graph = on(Shelf(), builder)
    if policy == "fail":
        with pytest.raises(NodeFailed, match="which nobody asked for"):
            await graph.invoke_async("Go")
        result = await graph.invoke_async()
    else:
        result = await graph.invoke_async("Go")
        assert result.results["stray"].status is Status.FAILED
    assert (result.status, sibling.times, str(result.results["after"])) == (Status.COMPLETED, 1, "time 1")


async def test_a_node_that_is_cancelled_with_its_call_has_not_failed() -> None:
    builder, node = GraphBuilder(), Doing(slow)
    builder.add_node(node, "slow", on_failure="skip", retries=2)
    graph = on(Shelf(), builder)
    with anyio.move_on_after(1):
        await graph.invoke_async("Go")
    result = await graph.invoke_async()
    assert (result.status, str(result), node.times) == (Status.COMPLETED, "slow: slow 2", 2)


def looping(asked: list[int], good_from: int, delay_s: float = 0.0) -> Graph:
    """Ends by its limit, until it was asked that often."""

    def answer(*rest: object) -> str:
        del rest
        asked.append(1)
        return "more" if len(asked) < good_from else "enough"

    builder = GraphBuilder()
    model = ScriptedModel([answer], loop=True, delay_s=delay_s)
    builder.add_node(Agent(model, callback_handler=None), "worker")
    builder.add_edge("worker", "worker", condition=lambda state: "more" in str(state.results["worker"]))
    return builder.set_entry_point("worker").set_max_node_executions(3).set_graph_id("inner").build()


async def test_an_attempt_of_a_nested_run_that_its_limit_has_ended_is_another_run() -> None:
    asked: list[int] = []
    builder = GraphBuilder()
    builder.add_node(looping(asked, 8), "inner", retries=2)
    result = await on(Shelf(), builder).invoke_async("Go")
    inner = result.results["inner"].result
    assert isinstance(inner, MultiAgentResult)
    assert (result.status, inner.run, len(asked)) == (Status.COMPLETED, 3, 8)


async def test_a_call_goes_on_after_a_nested_run_that_its_limit_has_ended() -> None:
    shelf, asked = Shelf(), list[int]()

    def graph() -> Graph:
        builder = GraphBuilder()
        builder.add_node(looping(asked, 5), "inner")
        return on(shelf, builder)

    limited = await graph().invoke_async("Go")
    assert (limited.status, limited.reason) == (Status.FAILED, "inner: Max node executions reached: 3")
    assert len(asked) == 3
    result = await graph().invoke_async()
    assert (result.status, result.resumed, len(asked)) == (Status.COMPLETED, True, 5)


async def test_another_attempt_that_is_cut_short_is_gone_on_with() -> None:
    shelf, asked = Shelf(), list[int]()

    def graph() -> Graph:
        builder = GraphBuilder()
        builder.add_node(looping(asked, 5, delay_s=1), "inner", retries=1)
        return on(shelf, builder)

    with anyio.move_on_after(14):  # Each answer takes four.
        await graph().invoke_async("Go")
    assert len(asked) == 4, "the second attempt has begun"
    result = await graph().invoke_async()
    inner = result.results["inner"].result
    assert isinstance(inner, MultiAgentResult)
    assert (result.status, inner.run, inner.resumed) == (Status.COMPLETED, 2, True)
    assert len(asked) == 5, "what was cut short is asked again, and nothing else"
