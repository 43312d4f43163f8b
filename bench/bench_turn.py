"""What a turn costs beside its model: zero-latency model, no session, on asyncio and trio.

The bar is about microseconds on this machine, so the limit column is 1: the bare work of a turn (four dictionaries
and two list appends) takes some six microseconds and says little.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Awaitable, Callable

import anyio

from bench.harness import Figure, report
from repertory import Agent, NullConversationManager, ScriptedModel, tool
from repertory.core.messages import Message

TURNS = 300
ROUNDS = 7


@tool(effects=False)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def history(count: int) -> list[Message]:
    """So many messages, alternating."""
    return [
        {"role": "user" if n % 2 == 0 else "assistant", "content": [{"text": f"message {n}"}]} for n in range(count)
    ]


def plain(messages: int) -> Agent:
    return Agent(
        ScriptedModel(["ok"], loop=True),
        messages=history(messages),
        callback_handler=None,
        conversation_manager=NullConversationManager(),
    )


def with_tool() -> Agent:
    replies = [{"toolUse": {"name": "add", "input": {"a": 1, "b": 2}}}, "3"] * (TURNS * ROUNDS * 2 + 10)
    return Agent(
        ScriptedModel(replies), tools=[add], callback_handler=None, conversation_manager=NullConversationManager()
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


async def held(agent: Agent, turns: int = TURNS) -> float:
    """A turn of an agent that is kept open."""
    async with agent:
        await agent.invoke_async("warm up")
        return await fastest_us(lambda: agent.invoke_async("hello"), turns)


async def bare(agent: Agent, turns: int = 50) -> float:
    """A call outside any block, after the first one: its actors stay alive in between."""
    await agent.invoke_async("warm up")
    return await fastest_us(lambda: agent.invoke_async("hello"), turns)


def figures(backend: str) -> list[Figure]:
    """The figures on one kind of event loop."""
    # Few turns, so that the history stays near the length that the name says.
    ten = anyio.run(held, plain(10), 20, backend=backend)
    thousand = anyio.run(held, plain(1000), 20, backend=backend)
    cycle = anyio.run(held, with_tool(), 20, backend=backend)
    alone = anyio.run(bare, plain(10), backend=backend)
    return [
        Figure(f"plain turn, 10 messages, {backend}", ten, 1.0, 150.0, "us"),
        Figure(f"plain turn, 1000 messages, {backend}", thousand, 1.0, 180.0, "us"),
        Figure(f"turn with one tool cycle, {backend}", cycle, 1.0, 400.0, "us"),
        Figure(f"plain turn outside any block, {backend}", alone, 1.0, None, "us"),
    ]


def main() -> int:
    return report([*figures("asyncio"), *figures("trio")])


if __name__ == "__main__":
    sys.exit(main())
