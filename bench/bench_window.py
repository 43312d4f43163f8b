"""What deciding on what the model is shown costs: plans, turns on long windows, and summaries beside the turns.

Limits, measured in the same run: the same turn with 100 messages shown, and the same turn without a summary under way.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio

from bench.bench_latency import worst_stall_ms
from bench.harness import Figure, report
from repertory import (
    Agent,
    Model,
    ScriptedModel,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from repertory.core.messages import Message
from repertory.core.window.decision import WindowBudget

SHORT, LONG, WINDOW = 100, 10_000, 40
ROUNDS, TURNS = 7, 60
SUMMARY_S = 1.0


class PlainModel(Model):
    """Answers at once and keeps nothing."""

    @property
    def context_window_limit(self) -> int:
        return 10_000_000

    async def stream(self, messages: Any, *rest: Any, **options: Any) -> AsyncIterator[dict[str, Any]]:
        del messages, rest, options
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "ok"}}}
        yield {"contentBlockStop": {"contentBlockIndex": 0}}
        yield {"messageStop": {"stopReason": "end_turn"}}
        yield {"metadata": {"usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}}}

    def get_config(self) -> dict[str, Any]:
        return {}


def talk(count: int) -> list[Message]:
    said: list[Message] = []
    for number in range(count):
        said.append({"role": "assistant" if number % 2 else "user", "content": [{"text": f"what was said {number}"}]})
    return said


def plan_ms(plan: Callable[[Sequence[Message]], object]) -> float:
    """Milliseconds of one plan over the long history, the best of some."""
    shown, times = talk(LONG), list[float]()
    for _ in range(20):
        began = time.perf_counter()
        plan(shown)
        times.append((time.perf_counter() - began) * 1e3)
    return min(times)


async def turn_us(said: int, window: int) -> float:
    """Microseconds of a plain turn of an agent whose window is planned and measured, after so much was said."""
    manager = SlidingWindowConversationManager(window, per_turn=True, proactive_compression=True)
    agent = Agent(PlainModel(), messages=talk(said), conversation_manager=manager, callback_handler=None)
    async with agent:
        await agent.invoke_async("warm")
        began = time.perf_counter()
        for _ in range(TURNS):
            await agent.invoke_async("and?")
        return (time.perf_counter() - began) / TURNS * 1e6


class Writer(ScriptedModel):
    """Takes its time over a summary."""

    def __init__(self) -> None:
        super().__init__(["a summary"], delay_s=SUMMARY_S, loop=True)


class RoomyModel(PlainModel):
    """Says that a request took so much of its window that a summary is begun, and none is needed yet."""

    def __init__(self, share: float) -> None:
        self._share = share

    @property
    def context_window_limit(self) -> int:
        return 100_000

    async def stream(self, messages: Any, *rest: Any, **options: Any) -> AsyncIterator[dict[str, Any]]:
        async for event in super().stream(messages, *rest, **options):
            if "metadata" in event:
                tokens = int(self._share * 100_000)
                yield {"metadata": {"usage": {"inputTokens": tokens, "outputTokens": 1, "totalTokens": tokens + 1}}}
            else:
                yield event


async def beside_summary(share: float) -> tuple[float, float]:
    """Microseconds of a turn, and the worst stall, while a summary is being written, or would be at that share."""
    manager = SummarizingConversationManager(proactive_compression={"compression_threshold": 0.8})
    agent = Agent(
        RoomyModel(share), messages=talk(40), conversation_manager=manager, callback_handler=None, aux_model=Writer()
    )
    taken: list[float] = []

    async def talk_on() -> None:
        for _ in range(TURNS):
            began = time.perf_counter()
            await agent.invoke_async("and?")
            taken.append((time.perf_counter() - began) * 1e6)
            await anyio.sleep(SUMMARY_S / TURNS / 2)

    async with agent:
        await agent.invoke_async("warm")
        stall = await worst_stall_ms(talk_on)
    return statistics.median(taken), stall


def main() -> int:
    sliding, summarizing = SlidingWindowConversationManager(WINDOW), SummarizingConversationManager()
    figures = [
        Figure("sliding window after a turn, 10,000 shown", plan_ms(sliding.manage), 1.0, 2.0, "ms"),
        Figure(
            "the same on overflow",
            plan_ms(lambda shown: sliding.reduce(shown, WindowBudget(full=True))),
            1.0,
            2.0,
            "ms",
        ),
        Figure(
            "what to summarise of 10,000",
            plan_ms(lambda shown: summarizing.reduce(shown, WindowBudget(full=True))),
            1.0,
            2.0,
            "ms",
        ),
    ]
    for name, window, bar in (("a window of 40", WINDOW, 1.2), ("all of them shown", 10 * LONG, None)):
        turns: dict[int, list[float]] = {SHORT: [], LONG: []}
        for _ in range(ROUNDS):
            for said, taken in turns.items():
                taken.append(anyio.run(turn_us, said, window))
        long_us, short_us = (statistics.median(turns[said]) for said in (LONG, SHORT))
        figures.append(Figure(f"turn after 10,000 messages against 100, {name}", long_us, short_us, bar, "us"))
    rounds = [(anyio.run(beside_summary, 0.7), anyio.run(beside_summary, 0.1)) for _ in range(3)]
    with_us, without_us = (statistics.median(side[0] for side in sides) for sides in zip(*rounds, strict=True))
    figures.append(Figure("turn beside a summary against one without", with_us, without_us, 1.05, "us"))
    stall = min(side[1] for side, _ in rounds)
    figures.append(Figure("worst stall beside a summary of 1 s", stall, 1.0, 5.0, "ms"))
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
