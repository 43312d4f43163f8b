"""What a store that takes 50 ms per request does to turns: their length, what a streaming model hides of it, how long
the event loop is held up, and how many agents get in each other's way.

The limit is one bare request. A stall is a gap between two looks at the event loop; it is measured with the machine's
own, on a loop where nothing runs but the look, since a machine that has other things to do holds up both.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel

from bench.counted import LATENCY_S, Counted
from bench.harness import Figure, report
from repertory import AgentSpec, JournalSessions, Runtime, ScriptedModel, SlidingWindowConversationManager

TURNS = 30
AGENTS = 10
ROUNDS = 5
STREAM_S = 0.4
"""How long the slow model takes for its answer, from the first word to the last."""
CHUNKS = 40


class StreamingModel(ScriptedModel):
    """Says its answer in pieces, for `STREAM_S` in all."""

    async def stream(
        self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **options: Any
    ) -> AsyncIterator[dict[str, Any]]:
        async for event in super().stream(messages, tool_specs, system_prompt, **options):
            yield event
            if "contentBlockDelta" in event:
                await anyio.sleep(STREAM_S / CHUNKS)


def agent(model: ScriptedModel) -> AgentSpec:
    return AgentSpec(model=model, conversation_manager=SlidingWindowConversationManager(window_size=40))


def plain() -> ScriptedModel:
    return ScriptedModel(["a plain answer"], loop=True)


def streaming() -> ScriptedModel:
    return StreamingModel(["word " * CHUNKS], chunk=5, loop=True)


async def turn_ms(model: Callable[[], ScriptedModel], agents: int, turns: int) -> tuple[float, float]:
    """Milliseconds of a turn when so many agents talk at once, and of a bare request."""
    storage = Counted()
    storage.latency_s = LATENCY_S
    async with Runtime(sessions=JournalSessions(storage)) as runtime:
        hosted = runtime.agent(agent(model()))
        times: list[float] = []

        async def talk(number: int) -> None:
            session = hosted.session(f"s{number}")
            for _ in range(turns):
                began = time.perf_counter()
                await session.invoke("a plain question")
                times.append(time.perf_counter() - began)

        for number in range(agents):
            await hosted.session(f"s{number}").messages()
        async with anyio.create_task_group() as tasks:
            for number in range(agents):
                tasks.start_soon(talk, number)
        bare: list[float] = []
        for _ in range(turns):
            began = time.perf_counter()
            await storage.count.list("none/")
            bare.append(time.perf_counter() - began)
        return statistics.median(times) * 1e3, statistics.median(bare) * 1e3


async def bare_stream_ms() -> float:
    """Milliseconds that the streaming model takes by itself."""
    model, times = streaming(), []
    for _ in range(3):
        began = time.perf_counter()
        async for _ in model.stream([{"role": "user", "content": [{"text": "x"}]}]):
            pass
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


async def worst_stall_ms(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds of the longest gap between two looks at the loop while `work` runs."""
    worst = 0.0

    async def look() -> None:
        nonlocal worst
        last = time.perf_counter()
        while True:
            await anyio.lowlevel.checkpoint()
            now = time.perf_counter()
            worst, last = max(worst, now - last), now

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        await work()
        tasks.cancel_scope.cancel()
    return worst * 1e3


async def stalls() -> tuple[float, float]:
    """The worst stall of ten agents that talk at once, and of a loop on which nothing runs: the best of some rounds,
    since what a busy machine adds is none of ours.
    """
    storage = Counted()
    storage.latency_s = LATENCY_S
    ours: list[float] = []
    idle: list[float] = []
    async with Runtime(sessions=JournalSessions(storage)) as runtime:
        hosted = runtime.agent(agent(streaming()))

        async def talk(number: int) -> None:
            await hosted.session(f"s{number}").invoke("a plain question")

        async def all_talk() -> None:
            async with anyio.create_task_group() as tasks:
                for number in range(AGENTS):
                    tasks.start_soon(talk, number)

        await all_talk()
        for _ in range(ROUNDS):
            ours.append(await worst_stall_ms(all_talk))
            idle.append(await worst_stall_ms(lambda: anyio.sleep(STREAM_S + LATENCY_S)))
    return min(ours), min(idle)


def main() -> int:
    one_ms, bare_ms = anyio.run(turn_ms, plain, 1, TURNS)
    many_ms, _ = anyio.run(turn_ms, plain, AGENTS, TURNS)
    streamed_ms, _ = anyio.run(turn_ms, streaming, 1, 8)
    many_streamed_ms, _ = anyio.run(turn_ms, streaming, AGENTS, 4)
    model_ms = anyio.run(bare_stream_ms)
    stall_ms, idle_ms = anyio.run(stalls)
    return report(
        [
            Figure("a plain turn against one request", one_ms, bare_ms, 1.1, "ms"),
            Figure("beside a streaming model: what it does not hide", streamed_ms - model_ms, bare_ms, 1.1, "ms"),
            Figure(f"{AGENTS} agents at once against one", many_ms, one_ms, 1.3, "ms"),
            Figure(f"{AGENTS} agents with streaming models against one", many_streamed_ms, streamed_ms, 1.3, "ms"),
            Figure(f"worst stall of the event loop, {AGENTS} agents", stall_ms, 1.0, 4.0, "ms"),
            Figure("the same against a loop without agents", stall_ms, idle_ms, None, "ms"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
