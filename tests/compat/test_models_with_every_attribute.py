"""Models that have every attribute that is asked for, as the mocks of users' own tests and proxies of other models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from repertory import (
    Agent,
    InvokeModelStage,
    ModelQuota,
    ModelQuotas,
    ScriptedModel,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
    tool,
)
from repertory.backends.ports import Model, StreamEvent
from repertory.compat.compression import generate_summary

pytestmark = pytest.mark.anyio


class Anything:
    """Has every attribute, each of which may be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *_: object, **__: object) -> Any:
        return Anything()


class Mocked(Anything):
    """Streams what it was given, and has every other attribute."""

    def __init__(self, *replies: Any) -> None:
        self._inner = ScriptedModel(list(replies), loop=True)
        self.stateful = False

    def stream(self, *arguments: Any, **_: Any) -> AsyncIterator[StreamEvent]:
        return self._inner.stream(*arguments[:1])


class Proxy:
    """Hands everything to another model."""

    def __init__(self, inner: Model) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ASKS = {"toolUse": {"name": "add", "input": {"a": 1, "b": 2}}}


def mocked(*replies: Any) -> Any:
    return Mocked(*replies)


@pytest.mark.parametrize(
    "manager",
    [SlidingWindowConversationManager(window_size=3), SummarizingConversationManager(preserve_recent_messages=2)],
    ids=lambda manager: type(manager).__name__,
)
async def test_an_agent_asks_such_a_model(manager: Any) -> None:
    async with Agent(mocked(ASKS, "Three."), tools=[add], conversation_manager=manager, callback_handler=None) as agent:
        for _ in range(3):
            assert str(await agent.invoke_async("1 + 2?")) == "Three."
        streamed = [event async for event in agent.stream_async("1 + 2?")]
    assert str(cast("Any", streamed[-1])["result"]) == "Three."


async def test_an_agent_with_steps_around_its_model_asks_such_a_model() -> None:
    seen: list[object] = []
    agent = Agent(mocked("Yes."), callback_handler=None)

    async def around(context: Any, following: Callable[[Any], AsyncIterator[Any]]) -> AsyncIterator[Any]:
        seen.append(context.model)
        async for event in following(context):
            yield event

    agent.add_middleware(InvokeModelStage, around)
    async with agent:
        assert str(await agent.invoke_async("Is it?")) == "Yes."
    assert len(seen) == 1


async def test_such_a_model_writes_a_summary() -> None:
    summary = await generate_summary([{"role": "user", "content": [{"text": "Hello."}]}], mocked("Hello was said."))
    assert summary == {"role": "user", "content": [{"text": "Hello was said."}]}


async def test_a_model_that_writes_a_summary_gets_roles_and_contents_alone() -> None:
    model: Any = ScriptedModel(["Hello was said."])
    used: Any = {"role": "user", "content": [{"text": "Hello."}], "metadata": {"usage": {"inputTokens": 1}}}
    await generate_summary([used], model)
    assert "Hello." in str(model.calls[-1])
    assert "metadata" not in str(model.calls[-1])


async def test_such_a_model_has_a_quota() -> None:
    async with ModelQuotas({"*": ModelQuota(requests_per_minute=10)}) as quotas:
        model = quotas.limit(mocked("Yes."), name="*")
        async with Agent(model, callback_handler=None) as agent:
            assert str(await agent.invoke_async("Is it?")) == "Yes."


async def test_the_gate_of_a_model_holds_behind_a_proxy() -> None:
    class Counting:
        calls = 0

        def stream_of(self, model: Model) -> Callable[..., AsyncIterator[StreamEvent]]:
            self.calls += 1
            return model.stream

    inner: Any = ScriptedModel(["Yes."], loop=True)
    inner.gate = gate = Counting()
    proxy: Any = Proxy(inner)
    async with Agent(proxy, callback_handler=None) as agent:
        assert str(await agent.invoke_async("Is it?")) == "Yes."
    assert gate.calls == 1
