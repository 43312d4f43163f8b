"""Calls that are cut short: by their time, by somebody, or by nobody who can be waited for."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from repertory import Agent, BeforeMultiAgentInvocationEvent, Graph, NodeFailed, ScriptedModel, Status
from repertory.backends.tools.function_tool import schema_class

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def agent(*replies: Any, delay_s: float = 0.0) -> Agent:
    model = ScriptedModel(replies or ("fine",), loop=True, delay_s=delay_s)
    return Agent(model, callback_handler=None, retry_strategy=None)


@pytest.mark.parametrize("by", ["time", "somebody", "the caller"])
async def test_a_hook_that_hangs_when_a_call_begins_holds_nobody_up(by: str) -> None:
    hangs = [True]

    async def hang(_: BeforeMultiAgentInvocationEvent) -> None:
        if hangs:
            await anyio.sleep_forever()

    graph = Graph({"a": agent()})
    graph.add_hook(hang)
    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        if by == "the caller":
            with anyio.move_on_after(5) as scope:
                await graph.invoke_async("Go")
            assert scope.cancelled_caught
        else:
            if by == "somebody":
                group.start_soon(cancel_later, graph)
            result = await graph.invoke_async("Go", **({"timeout_s": 5.0} if by == "time" else {}))
            assert (result.status, dict(result.results)) == (Status.INTERRUPTED, {})
            assert result.reason == {"time": "limit_time", "somebody": "cancelled"}[by]
    assert anyio.current_time() - began == pytest.approx(5, abs=0.1)
    hangs.clear()
    assert (await graph.invoke_async("Go")).status is Status.COMPLETED


async def cancel_later(graph: Graph) -> None:
    await anyio.sleep(5)
    graph.cancel()


async def test_a_call_that_is_cut_short_is_interrupted_whatever_had_failed_before() -> None:
    graph = Graph({"a": agent(ConnectionError("down"), "worked", delay_s=1.0)})
    with pytest.raises(NodeFailed, match="down"):
        await graph.invoke_async("Go")
    cut = await graph.invoke_async(timeout_s=0.5)
    assert (cut.status, cut.reason, cut.resumed) == (Status.INTERRUPTED, "limit_time", True)
    assert str(await graph.invoke_async()) == "a: worked"
