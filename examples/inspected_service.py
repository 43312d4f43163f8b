"""A small service under load, with the inspector over it: start it, and open the address that it prints.

    python examples/inspected_service.py --seconds 0    # until Ctrl-C
    python examples/inspected_service.py                # three seconds, as a test

Bakers' customers talk to an agent with tools and a memory. Their sessions wake, work, wait in queues behind each other
and come to rest. Now and then a tool fails, and a person is asked before money is paid back. Ctrl-C drains: the
overview shows the phases until the process ends.
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
from pathlib import Path

import anyio

from repertory import (
    AgentSpec,
    HumanInTheLoop,
    MemoryManager,
    Runtime,
    ScriptedModel,
    SQLiteMemoryStore,
    SQLiteSessions,
    tool,
)
from repertory.errors import RepertoryError

CUSTOMERS = 60
QUESTIONS = (
    "What does a **rye loaf** cost?",
    "Please order twelve buns for Friday.",
    "Which bread has no wheat?",
    "My stall is called *Warm Crumb*. Do you remember it?",
)


@tool(effects=False)
async def price(item: str) -> dict[str, object]:
    """Look up what an item costs."""
    await anyio.sleep(random.uniform(0.1, 1.5))
    return {"item": item, "price": 4.2, "currency": "EUR"}


@tool
async def order(item: str, count: int) -> str:
    """Order bread for Friday."""
    await anyio.sleep(random.uniform(0.2, 2.0))
    if random.random() < 0.1:
        raise ValueError("the oven is full on Friday")
    return f"{count} of {item} will be ready on Friday."


@tool
async def pay_back(amount: float, why: str) -> str:
    """Pay a customer's money back.

    Args:
        amount: In euros.
        why: What was wrong.
    """
    await anyio.sleep(0.2)
    return f"{amount} EUR are on their way."


def answer(messages: object, tool_specs: object, system_prompt: object) -> object:
    """What the model says next: half of the time it asks for a tool first."""
    last = messages[-1]["content"][0] if isinstance(messages, list) else {}
    if "toolResult" in last or random.random() < 0.4:
        return random.choice(
            (
                "A rye loaf costs **4.20 EUR**.\n\n- baked on Tuesdays\n- flour: `rye 1150`",
                "Done. I have noted it.",
                "Our pure rye loaf has no wheat in it.",
            )
        )
    if random.random() < 0.05:
        return {"toolUse": {"name": "pay_back", "input": {"amount": 8.4, "why": "the loaf was burnt"}}}
    wanted = random.choice(({"name": "price", "input": {"item": "rye loaf"}}, {"name": "order", "input": ORDER}))
    return [{"text": "Let me see."}, {"toolUse": wanted}]


ORDER = {"item": "bun", "count": 12}


async def customer(agent: object, name: str) -> None:
    """One customer, who asks again and again."""
    said: object = None
    while True:
        await anyio.sleep(random.expovariate(1 / 8))
        try:
            result = await agent.session(name).invoke(said or random.choice(QUESTIONS))  # type: ignore[attr-defined]
            said = [{"interruptResponse": {"interruptId": each.id, "response": "yes"}} for each in result.interrupts]
            if said:
                await anyio.sleep(20)  # Nobody answers at once.
        except RepertoryError:
            await anyio.sleep(5)  # it shuts down, or its mailbox is full


async def main(address: str, seconds: float, folder: Path) -> None:
    logging.getLogger("repertory").setLevel(logging.CRITICAL)  # tools fail here on purpose
    memory = MemoryManager(stores=[SQLiteMemoryStore(folder / "memory.db", extraction=True)])
    async with Runtime(sessions=SQLiteSessions(folder / "agents.db"), memory=memory, idle_timeout_s=20) as runtime:
        model = ScriptedModel([answer], loop=True, delay_s=0.2, chunk=8)
        agent = runtime.agent(
            AgentSpec(
                name="baker",
                model=model,
                system_prompt="You serve the customers of a bakery. Be **brief**, and invent no prices.",
                tools=[price, order, pay_back],
                interventions=[HumanInTheLoop(ask_for=["pay_back"])],
            )
        )
        async with anyio.create_task_group() as group:
            url = await group.start(runtime.serve_inspector, address)
            print(f"look at {url}")
            for number in range(CUSTOMERS):
                group.start_soon(customer, agent, f"customer-{number:03}")
            if seconds:
                await anyio.sleep(seconds)
                await runtime.drain()
                group.cancel_scope.cancel()
            else:
                await runtime.serve_signals(cancel=group.cancel_scope)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        anyio.run(main, options.listen, options.seconds, Path(place))
