"""Models that count tokens themselves: asked when an estimate comes close, and believed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from repertory import Agent, ScriptedModel, SlidingWindowConversationManager
from repertory.core.messages import Message

pytestmark = pytest.mark.anyio


class CountingModel(ScriptedModel):
    """Counts so many tokens per message, and says so."""

    def __init__(self, each: int, *, native: bool = True, broken: bool = False) -> None:
        super().__init__(["x " * 200], loop=True)
        self.each, self.native, self.broken, self.counted = each, native, broken, 0
        self.keys: set[str] = set()

    @property
    def context_window_limit(self) -> int | None:
        return 1_000

    @property
    def counts_tokens(self) -> bool:
        return self.native

    async def count_tokens(self, messages: Sequence[Message], *rest: Any) -> int:
        self.counted += 1
        self.keys.update(*messages)
        if self.broken:
            raise OSError("no network")
        return self.each * len(messages)


async def shown_by(model: CountingModel) -> int:
    """How many messages the model was shown in ten turns, all in all."""
    manager = SlidingWindowConversationManager(1_000, proactive_compression=True)
    agent = Agent(model, callback_handler=None, conversation_manager=manager)
    for _ in range(10):
        await agent.invoke_async("y " * 200)
    return sum(len(call.messages) for call in model.calls)


async def test_a_model_that_counts_less_than_the_estimate_is_shown_more() -> None:
    estimated = await shown_by(CountingModel(1, native=False))
    native = CountingModel(1)
    assert estimated < await shown_by(native) == sum(range(1, 20, 2))
    assert native.counted > 0
    assert native.keys == {"role", "content"}  # Services refuse others.


async def test_a_model_that_counts_more_is_shown_less() -> None:
    estimated = await shown_by(CountingModel(1, native=False))
    assert await shown_by(CountingModel(400)) < estimated


async def test_a_model_that_is_not_close_to_full_is_not_asked() -> None:
    model = CountingModel(1)
    agent = Agent(
        model,
        callback_handler=None,
        conversation_manager=SlidingWindowConversationManager(proactive_compression={"compression_threshold": 0.9}),
    )
    await agent.invoke_async("hi")
    assert model.counted == 0


async def test_a_count_that_fails_leaves_the_estimate() -> None:
    model = CountingModel(1, broken=True)
    assert await shown_by(model) == await shown_by(CountingModel(1, native=False))
    assert model.counted > 0
