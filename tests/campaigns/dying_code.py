"""A clerk whose model writes code that calls four tools, and which is killed at any moment.

Arguments: kind, loop, folder, the first turn, how many there are in all, and the address of the server
of buckets or of PostgreSQL.

Each effect is a line in a ledger: its name, the key of its step, its idempotency key. A person who is asked about a
call looks there. A line on standard output acknowledges an answered turn.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel

from repertory import AgentSpec, CodeMode, PostgresSessions, Runtime, ScriptedModel, ToolContext, tool
from repertory.core.messages import Message, text_of
from tests.operations.operated_places import place_of

AGENT, SESSION = "clerk", "s"
CODE = """
import asyncio, random

order = await look(TURN)
paid = await charge(order)
try:
    sent = await asyncio.gather(send(paid), send(paid + 1), look(paid))
except RuntimeError as error:
    sent = [str(error)]
print(order, paid, sent, await book(sum(each for each in sent if isinstance(each, int)) % 97))
"""


def reply(messages: Sequence[Message], *_: object) -> Any:
    """Writes the code for what a person says, and says what it has printed."""
    last = messages[-1]["content"][0]
    if "toolResult" in last:
        return " ".join(str(each.get("text")) for each in last["toolResult"]["content"])
    code = CODE.replace("TURN", text_of(messages[-1]).split()[-1])
    return {"toolUse": {"name": "run_code", "input": {"code": code}}}


def clerk(folder: Path) -> AgentSpec:
    """The agent with its tools."""
    ledger = folder / "ledger"

    async def act(name: str, value: int, context: ToolContext) -> int:
        await anyio.lowlevel.checkpoint()
        step = context.tool_use["toolUseId"].partition("/")[2]
        with ledger.open("a") as lines:
            lines.write(f"{name}-{value} {step} {context.idempotency_key}\n")
        await anyio.lowlevel.checkpoint()
        return value * 3 + len(name)

    @tool(effects=False)
    async def look(value: int, tool_context: ToolContext) -> int:
        """Look."""
        return await act("look", value, tool_context)

    @tool
    async def charge(value: int, tool_context: ToolContext) -> int:
        """Charge."""
        return await act("charge", value, tool_context)

    @tool(idempotent=True)
    async def send(value: int, tool_context: ToolContext) -> int:
        """Send."""
        return await act("send", value, tool_context)

    @tool(durable=True)
    async def book(value: int, tool_context: ToolContext) -> int:
        """Book, in two steps."""
        await tool_context.step("seat", act, "seat", value, tool_context)
        return await tool_context.step("ticket", act, "ticket", value, tool_context)

    model = ScriptedModel([reply], loop=True)
    return AgentSpec(name=AGENT, model=model, tools=[look, charge, send, book], plugins=[CodeMode()])


def looked_up(folder: Path, key: str, name: str) -> object:
    """What a person finds who looks for an effect: of a call by its step, of a step of a call by its name."""
    lines = [line.split() for line in (folder / "ledger").read_text().splitlines()]
    step, _, within = key.partition(">")
    done = [mark for mark, own, _ in lines if own == step and mark.startswith(f"{within or name}-")]
    if not done:
        return "retry"
    kind, value = done[-1].rsplit("-", 1)
    return {"result": int(value) * 3 + len(kind)}


async def main(kind: str, folder: Path, first: int, turns: int, url: str) -> None:
    place = PostgresSessions(url) if kind == "postgres" else place_of(kind, folder, url)
    async with Runtime(sessions=place, wakes_max=0) as runtime:
        session = runtime.agent(clerk(folder)).session(SESSION)
        for turn in range(first, turns):
            prompt: object = f"turn {turn}"
            print(f"begins {turn}", flush=True)
            while (result := await session.invoke(prompt, idempotency_token=f"t{turn}")).stop_reason == "interrupt":
                prompt = [
                    one.respond(looked_up(folder, str(cast("Mapping[str, object]", one.reason)["step"]), str(one.tool)))
                    for one in result.interrupts
                ]
            print(f"answered {turn} {result}", flush=True)


if __name__ == "__main__":
    kind, loop, folder, first, turns, url = sys.argv[1:]
    anyio.run(main, kind, Path(folder), int(first), int(turns), url, backend=loop)
