"""A clerk whose tools have steps, and which is killed at any moment.

Arguments: kind, folder, the first turn, and how many there are in all.

Each effect is a line in a ledger, with the idempotency key of its step. A person who is asked about a step looks there.
A line on standard output acknowledges an answered turn.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import anyio
import anyio.lowlevel

from repertory import AgentSpec, Runtime, ScriptedModel, StepContext, ToolContext, tool
from repertory.core.messages import Message, text_of
from repertory.core.steps import step_key
from tests.operations.operated_places import place_of

AGENT, SESSION = "clerk", "s"
FAILS_EVERY = 3
"""Every so many turns the last step fails, and the others are undone."""


def reply(messages: Sequence[Message], *_: object) -> object:
    """Has the tool do what a person says, and says what came of it."""
    last = messages[-1]["content"][0]
    if "toolResult" in last:
        return " ".join(str(each.get("text")) for each in last["toolResult"]["content"])
    return {"toolUse": {"name": "book", "input": {"turn": int(text_of(messages[-1]).split()[-1])}}}


def clerk(folder: Path) -> AgentSpec:
    """The agent with its tool."""
    ledger = folder / "ledger"

    async def act(name: str, *, step_context: StepContext) -> str:
        await anyio.lowlevel.checkpoint()
        with ledger.open("a") as lines:
            lines.write(f"{name} {step_context.idempotency_key}\n")
        await anyio.lowlevel.checkpoint()
        return name

    def fail(name: str) -> None:
        raise LookupError(name)

    @tool(durable=True)
    async def book(turn: int, tool_context: ToolContext) -> str:
        """Book a trip."""
        with ledger.open("a") as lines:
            lines.write(f"call-{turn} {tool_context.idempotency_key}\n")
        found = [await tool_context.step("charge", act, f"charge-{turn}")]
        tool_context.on_failure("refund", act, f"refund-{turn}")
        found.append(await tool_context.step("look", act, f"look-{turn}", idempotent=True))
        beside = dict[int, str]()

        async def send(number: int) -> None:
            beside[number] = await tool_context.step("send", act, f"send-{turn}-{number}")

        async with anyio.create_task_group() as group:
            group.start_soon(send, 1)
            group.start_soon(send, 2)
        found += [beside[1], beside[2]]
        tool_context.on_failure("recall", act, f"recall-{turn}")
        if turn % FAILS_EVERY == 0:
            await tool_context.step("seat", fail, "no seat")
        found.append(await tool_context.step("charge", act, f"fee-{turn}"))
        return " ".join(found)

    return AgentSpec(name=AGENT, model=ScriptedModel([reply], loop=True), tools=[book])


def looked_up(folder: Path, turn: int, key: str) -> object:
    """What a person finds who looks for a step's effect."""
    lines = [line.split() for line in (folder / "ledger").read_text().splitlines()]
    call = next(mark for name, mark in lines if name == f"call-{turn}")
    done = [name for name, mark in lines if mark == step_key(call, key)]
    return {"result": done[0]} if done else "retry"


async def main(kind: str, folder: Path, first: int, turns: int) -> None:
    async with Runtime(sessions=place_of(kind, folder), wakes_max=0) as runtime:
        session = runtime.agent(clerk(folder)).session(SESSION)
        for turn in range(first, turns):
            prompt: object = f"turn {turn}"
            while (result := await session.invoke(prompt, idempotency_token=f"t{turn}")).stop_reason == "interrupt":
                prompt = [
                    {
                        "interruptResponse": {
                            "interruptId": one.id,
                            "response": looked_up(folder, turn, str(cast("Mapping[str, object]", one.reason)["step"])),
                        }
                    }
                    for one in result.interrupts
                ]
            print(f"answered {turn} {result}", flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
