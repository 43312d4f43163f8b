"""A studio whose films are rendered elsewhere, and which is killed at any moment.

Arguments: kind, folder, seed, and the turns that are left: the first, and how many there are in all.

Each turn asks for two films. The tool leaves an order in a folder, which is the service; a task beside the turns is the
webhook, which gives results as they are ready, some before the tool has returned, some twice. It acknowledges with a
line on standard output, and ends when each turn has its answer and each order its result.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio

from repertory import AgentSpec, Runtime, ScriptedModel, ToolContext, tool
from repertory.app.embedding.hosted import HostedSession
from repertory.core.messages import Message, text_of
from repertory.errors import RepertoryError, Retryable
from tests.operations.operated_places import place_of

AGENT, SESSION = "studio", "s"


def orders_in(folder: Path) -> Path:
    """Where the service keeps its orders."""
    return folder / "orders"


def reply(messages: Sequence[Message], *_: object) -> object:
    """Asks for films as a prompt says, and is done then."""
    asked = re.search(r"turn (\d+)$", text_of(messages[-1]))
    if asked is None:
        return "heard"
    return [{"toolUse": {"name": "render", "input": {"film": f"{asked[1]}-{each}"}}} for each in "ab"]


async def webhook(session: HostedSession, folder: Path, rng: random.Random, turns: int, over: anyio.Event) -> None:
    """Gives each order its result."""
    while True:
        waiting = [order for order in sorted(orders_in(folder).glob("later-*")) if not order.suffix]
        for order in waiting:
            if order.with_suffix(".done").exists():
                continue
            try:
                first = await session.complete_tool(order.name, f"film {order.read_text()} is ready")
                if rng.random() < 0.3:
                    assert not await session.complete_tool(order.name, "another film")
            except Retryable:
                continue
            except RepertoryError as error:
                print(f"refused {order.name} {type(error).__name__}", flush=True)
                order.with_suffix(".done").touch()
                continue
            print(f"{'taken' if first else 'had'} {order.name}", flush=True)
            order.with_suffix(".done").touch()
        if over.is_set() and len(waiting) >= 2 * turns:
            return
        await anyio.sleep(rng.uniform(0, 0.02))


async def main(kind: str, place: Path, seed: int, first: int, turns: int) -> None:
    rng = random.Random(seed)
    orders_in(place).mkdir(exist_ok=True)

    @tool(idempotent=True)
    async def render(film: str, tool_context: ToolContext) -> object:
        """Have a film rendered."""
        order = orders_in(place) / tool_context.deferred_id
        order.with_suffix(".new").write_text(film)
        order.with_suffix(".new").rename(order)
        await anyio.sleep(rng.choice((0, 0, 0.01, 0.03)))
        return tool_context.defer("It is being rendered.")

    spec = AgentSpec(name=AGENT, model=ScriptedModel([reply], loop=True), tools=[render])
    async with Runtime(sessions=place_of(kind, place)) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(spec).session(SESSION)
        over = anyio.Event()
        group.start_soon(partial(webhook, session, place, rng, turns, over))
        for number in range(first, turns):
            await session.invoke(f"turn {number}", idempotency_token=f"turn {number}")
            print(f"answered {number}", flush=True)
        over.set()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
