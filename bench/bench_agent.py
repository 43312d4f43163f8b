"""What an agent costs with everything on: hooks, tools, streams, and calls from sync code.

Streams are compared with a bare channel (anyio's memory object stream) that carries one item per piece from one task to
another, which is the least that a stream between two tasks can cost.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Awaitable, Callable

import anyio

from bench.harness import Figure, report
from repertory import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    AfterToolsEvent,
    Agent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    HookEvent,
    HookRegistry,
    MessageAddedEvent,
    NullConversationManager,
    ScriptedModel,
    tool,
)
from repertory.backends.tools.function_tool import FunctionTool

ROUNDS = 9
TURNS = 20
PIECES = 2000
AGENTS = 100
EVENTS_PER_S = 100
PACED_S = 2
EVENTS = (
    BeforeInvocationEvent,
    AfterInvocationEvent,
    MessageAddedEvent,
    BeforeModelCallEvent,
    AfterModelCallEvent,
    BeforeToolsEvent,
    AfterToolsEvent,
    BeforeToolCallEvent,
    AfterToolCallEvent,
)


class TenHooks:
    """One callback for every event, and a second one for messages."""

    def __init__(self) -> None:
        self.seen = 0

    def register_hooks(self, registry: HookRegistry) -> None:
        """Ten callbacks that only look."""
        for event in (*EVENTS, MessageAddedEvent):
            registry.add_callback(event, self.look)

    def look(self, event: HookEvent) -> None:
        """Count."""
        del event
        self.seen += 1


def fifty_tools() -> list[FunctionTool[..., int]]:
    """Tools that add, by fifty names."""

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async def add_here(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    others = [tool(name=f"add_{number}", effects=False)(add) for number in range(49)]
    return [tool(name="add", effects=False)(add_here), *others]


def loaded() -> Agent:
    """Ten hooks, fifty tools, and a model that asks for one of them in every turn."""
    replies = [{"toolUse": {"name": "add", "input": {"a": 1, "b": 2}}}, "3"] * (TURNS * ROUNDS * 2 + 10)
    return Agent(
        ScriptedModel(replies),
        tools=fifty_tools(),
        hooks=[TenHooks()],
        callback_handler=None,
        conversation_manager=NullConversationManager(),
    )


def talker(pieces: int, *, delay_s: float = 0.0) -> Agent:
    """An agent whose answers come in so many pieces."""
    return Agent(
        ScriptedModel(["x" * pieces], chunk=1, loop=True, delay_s=delay_s),
        callback_handler=None,
        conversation_manager=NullConversationManager(),
    )


async def fastest_us(turn: Callable[[], Awaitable[object]], turns: int) -> float:
    """Microseconds per turn in the best of several rounds: the one that was disturbed least."""
    best = math.inf
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(turns):
            await turn()
        best = min(best, (time.perf_counter() - began) / turns * 1e6)
    return best


async def loaded_turn() -> float:
    """Microseconds of a turn with one tool cycle, ten hooks and fifty tools."""
    agent = loaded()
    async with agent:
        await agent.invoke_async("warm up")
        return await fastest_us(lambda: agent.invoke_async("hello"), TURNS)


async def pieces_us() -> tuple[float, float]:
    """Microseconds per piece: from a model to whoever streams the turn, and through a bare channel."""
    ours = bare = math.inf
    agent = talker(PIECES)
    async with agent:
        for _ in range(ROUNDS):
            ours = min(ours, await streamed_us(agent))
            bare = min(bare, await bare_us(PIECES))
    return ours, bare


async def streamed_us(agent: Agent) -> float:
    """Microseconds per piece of one streamed turn, the turn itself left out by an answer of one piece."""
    began, pieces = time.perf_counter(), 0
    async for event in agent.stream_async("go"):
        pieces += "data" in event
    assert pieces == PIECES
    return (time.perf_counter() - began) / PIECES * 1e6


async def bare_us(pieces: int) -> float:
    """Microseconds per item from one task to another."""
    send, receive = anyio.create_memory_object_stream[dict[str, str]](64)

    async def produce() -> None:
        async with send:
            for _ in range(pieces):
                await send.send({"data": "x"})

    began, got = time.perf_counter(), 0
    async with anyio.create_task_group() as group:
        group.start_soon(produce)
        async with receive:
            async for _ in receive:
                got += 1
    assert got == pieces
    return (time.perf_counter() - began) / pieces * 1e6


async def paced_rate() -> float:
    """Pieces per second and agent, when many agents stream at a fixed pace in one process."""
    pieces = EVENTS_PER_S * PACED_S
    agents = [talker(pieces, delay_s=1 / EVENTS_PER_S) for _ in range(AGENTS)]
    got = 0

    async def listen(agent: Agent) -> None:
        nonlocal got
        async with agent:
            async for event in agent.stream_async("go"):
                got += "data" in event

    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        for agent in agents:
            group.start_soon(listen, agent)
    return got / AGENTS / (time.perf_counter() - began)


async def bare_paced_rate() -> float:
    """The same through bare channels."""
    got = 0

    async def converse() -> None:
        nonlocal got
        send, receive = anyio.create_memory_object_stream[dict[str, str]](64)

        async def produce() -> None:
            async with send:
                for _ in range(EVENTS_PER_S * PACED_S):
                    await anyio.sleep(1 / EVENTS_PER_S)
                    await send.send({"data": "x"})

        async with anyio.create_task_group() as group, receive:
            group.start_soon(produce)
            async for _ in receive:
                got += 1

    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(AGENTS):
            group.start_soon(converse)
    return got / AGENTS / (time.perf_counter() - began)


async def async_calls_us() -> float:
    """Microseconds of a call outside any block."""
    agent = talker(1)
    await agent.invoke_async("warm up")
    return await fastest_us(lambda: agent.invoke_async("hello"), TURNS)


def sync_calls_us() -> float:
    """The same from sync code."""
    agent = talker(1)
    agent("warm up")
    best = math.inf
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(TURNS):
            agent("hello")
        best = min(best, (time.perf_counter() - began) / TURNS * 1e6)
    return best


def figures(backend: str) -> list[Figure]:
    """What runs on either kind of event loop."""
    turn = anyio.run(loaded_turn, backend=backend)
    ours, bare = anyio.run(pieces_us, backend=backend)
    paced, bare_paced = anyio.run(paced_rate, backend=backend), anyio.run(bare_paced_rate, backend=backend)
    return [
        Figure(f"tool cycle, 10 hooks, 50 tools, {backend}", turn, 1.0, 500.0, "us"),
        Figure(f"a streamed piece, {backend}", ours, 1.0, None, "us"),
        Figure(f"a bare item, {backend}", bare, 1.0, None, "us"),
        Figure(f"a piece beyond the bare channel, {backend}", ours - bare, 1.0, 2.0, "us"),
        Figure(f"{AGENTS} agents at {EVENTS_PER_S} events/s, {backend}", paced, bare_paced, 0.6, "/s", "higher"),
    ]


def main() -> int:
    called, awaited = sync_calls_us(), anyio.run(async_calls_us)
    over = Figure("a sync call over an async one", (called - awaited) / 1e3, 1.0, 0.3, "ms")
    return report([*figures("asyncio"), *figures("trio"), over])


if __name__ == "__main__":
    sys.exit(main())
