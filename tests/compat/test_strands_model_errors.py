"""What a model has raised, as programs of the SDK catch it: as it is in the first step of a turn, wrapped later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

import pytest

import repertory
from repertory import AfterModelCallEvent, Graph, ScriptedModel, tool
from repertory.errors import EventLoopException, ModelFailed, NodeFailed, Throttled

pytestmark = pytest.mark.anyio

SdkAgent: Any = import_module("repertory.strands").Agent


class ClientError(Exception):
    """What a client library raises."""


@tool
def look() -> str:
    """Look."""
    return "seen"


def agent_with(*replies: Any, kind: Any = SdkAgent, **given: Any) -> Any:
    return kind(ScriptedModel(list(replies)), tools=[look], callback_handler=None, **given)


async def streamed(agent: Any) -> None:
    async for _ in agent.stream_async("Hello!"):
        pass


def test_the_model_s_own_error_comes_out_of_a_call() -> None:
    error = ClientError("no access")
    with pytest.raises(ClientError) as raised:
        agent_with(error)("Hello!")
    assert raised.value is error
    with pytest.raises(ModelFailed) as wrapped:
        agent_with(error, kind=repertory.Agent)("Hello!")
    assert wrapped.value.__cause__ is error


@pytest.mark.parametrize("call", [lambda agent: agent.invoke_async("Hello!"), streamed])
async def test_so_it_does_of_async_calls(call: Callable[[Any], Awaitable[object]]) -> None:
    with pytest.raises(ClientError):
        await call(agent_with(ClientError("no access")))


async def test_after_a_step_it_is_the_cause_of_an_error_of_the_event_loop() -> None:
    with pytest.raises(EventLoopException) as raised:
        await agent_with({"toolUse": {"name": "look"}}, ClientError("no access")).invoke_async("Hello!")
    assert isinstance(raised.value.original_exception, ClientError)


async def test_errors_that_the_sdk_has_a_name_for_stay_what_they_are() -> None:
    throttled = Throttled("slow down")
    throttled.__cause__ = ClientError("429")
    with pytest.raises(Throttled):
        await agent_with(throttled, retry_strategy=None).invoke_async("Hello!")


async def test_hooks_see_it_as_well() -> None:
    def again(event: AfterModelCallEvent) -> None:
        event.retry = isinstance(event.exception, ClientError)

    agent = agent_with(ClientError("once"), "Fine.")
    agent.add_hook(again)
    assert str(await agent.invoke_async("Hello!")) == "Fine."


async def test_a_graph_of_such_agents_raises_it_too() -> None:
    with pytest.raises(ClientError):
        await Graph({"a": agent_with(ClientError("no access"))}).invoke_async("Hello!")
    with pytest.raises(NodeFailed):
        await Graph({"a": agent_with(ClientError("no access"), kind=repertory.Agent)}).invoke_async("Hello!")


def test_agents_of_either_name_are_agents() -> None:
    class Mine(SdkAgent):
        pass

    ours, theirs = agent_with("x", kind=repertory.Agent), agent_with("x")
    assert isinstance(ours, SdkAgent)
    assert isinstance(theirs, repertory.Agent)
    assert isinstance(agent_with("x", kind=Mine), Mine)
    assert not isinstance(theirs, Mine)
    assert (SdkAgent.__name__, repr(theirs)[:6]) == ("Agent", "Agent(")
