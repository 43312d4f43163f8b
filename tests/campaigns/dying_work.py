"""A clerk with everything that may go on below a turn, killed at any moment: a tool with five steps, two tools in the
background, a subagent that takes three steps, and code that calls four tools.

Arguments: kind of place, event loop, folder, a server's address or nothing, the first turn, and the number of turns;
`beside` in the place of the turns makes none, and goes on with what other processes have left. Each turn has a session
of its own, so that those of earlier lives go on beside it, though nobody calls them.

Each effect is a line in a ledger. A person who is asked about one looks there. Lines on standard output: `answered`
with a turn's number, and in the end `told` with what the model was told in each session.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from repertory import (
    Agent,
    AgentSpec,
    CodeMode,
    LocalKeys,
    PostgresSessions,
    Runtime,
    ScriptedModel,
    SQLiteSessions,
    StepContext,
    ToolContext,
    tool,
)
from repertory.app.sessions.sessions import SessionLocation
from repertory.core.messages import Message, text_of, tool_results
from repertory.core.turns.background_tasks import FLAG
from tests.operations.operated_places import place_of

AGENT = "clerk"
CODE_TOOLS = ("alpha", "beta", "gamma", "delta")
_END_S = 30.0
"""Seconds in which nothing may be owed any more, with nobody calling."""


def reply(messages: Sequence[Message], *_: object) -> object:
    """Asks for everything at once, then says how much came of it."""
    said = text_of(messages[-1])
    if not said.startswith("turn "):
        return "I see."
    turn = int(said.split()[1])
    code = "\n".join(f"print(await {name}({turn}))" for name in CODE_TOOLS)
    return [
        {"toolUse": {"name": "five", "input": {"turn": turn}}},
        {"toolUse": {"name": "count", "input": {"turn": turn, FLAG: True}}},
        {"toolUse": {"name": "pay", "input": {"turn": turn, FLAG: True}}},
        {"toolUse": {"name": "run_code", "input": {"code": code}}},
        {"toolUse": {"name": "scout", "input": {"input": f"scout {turn}"}}},
    ]


def scouting(messages: Sequence[Message], *_: object) -> object:
    """Looks twice, then says what came of it."""
    turn = next(int(text_of(each).split()[1]) for each in messages if text_of(each).startswith("scout "))
    looks = sum(1 for message in messages for _ in tool_results(message))
    return f"scouted-{turn}" if looks == 2 else {"toolUse": {"name": "look", "input": {"n": looks, "turn": turn}}}


def clerk(folder: Path) -> AgentSpec:
    """The agent with its tools."""
    ledger = folder / "ledger"

    async def act(name: str, key: str = "") -> str:
        await anyio.lowlevel.checkpoint()
        with ledger.open("a") as lines:
            lines.write(f"{name} {key}\n")
        await anyio.sleep(0.002)
        return name

    async def step(name: str, *, step_context: StepContext) -> str:
        return await act(name, step_context.idempotency_key)

    @tool(durable=True)
    async def five(turn: int, tool_context: ToolContext) -> str:
        """Take five steps."""
        found = [await tool_context.step(f"step {n}", step, f"five-{n}-{turn}") for n in range(5)]
        return " ".join(found)

    @tool(idempotent=True)
    async def count(turn: int, tool_context: ToolContext) -> str:
        """Count."""
        await anyio.sleep(0.02)
        return await act(f"count-{turn}", tool_context.idempotency_key)

    @tool
    async def pay(turn: int) -> str:
        """Pay."""
        await anyio.sleep(0.01)
        return await act(f"pay-{turn}")

    @tool
    async def look(n: int, turn: int) -> str:
        """Look."""
        return await act(f"look-{n}-{turn}")

    scout = Agent(ScriptedModel([scouting], loop=True), name="scout", tools=[look], callback_handler=None)

    def called_by_code(name: str) -> Any:
        @tool(name=name, description="Act.")
        async def call(turn: int) -> str:
            return await act(f"{name}-{turn}")

        return call

    return AgentSpec(
        name=AGENT,
        model=ScriptedModel([reply], loop=True),
        tools=[five, count, pay, scout.as_tool(), *map(called_by_code, CODE_TOOLS)],
        plugins=[CodeMode([*CODE_TOOLS])],
        background_tasks={"wait_for_completion": False},
    )


def looked_up(folder: Path, turn: int, reason: dict[str, Any]) -> object:
    """What a person finds who looks for an effect."""
    step = str(reason.get("step", ""))
    if reason["tool"] == "look":
        name = f"look-{reason['input']['n']}-{turn}"
    elif reason["tool"] == "five":
        name = f"five-{step.split()[1]}-{turn}"
    elif step:
        name = f"{re.split('[~#]', step)[0]}-{turn}"
    else:
        name = f"{reason['tool']}-{turn}"
    done = [line.split()[0] for line in (folder / "ledger").read_text().splitlines()]
    return {"result": name} if name in done else "retry"


def told(messages: Sequence[Message]) -> list[str]:
    """The results of tools in a conversation, at once or late, without acknowledgements, code line by line."""
    block = r"<background_tool_result [^>]*>\n(.*?)\n</background_tool_result>"
    found = [text for message in messages for text in re.findall(block, text_of(message), re.DOTALL)]
    texts = [
        str(part.get("text")) for message in messages for result in tool_results(message) for part in result["content"]
    ]
    return sorted(found + [line for text in texts if "dispatched" not in text for line in text.splitlines() if line])


async def to_the_end(session: Any, answer: Callable[[dict[str, Any]], object]) -> list[Message]:
    """Wait until the session owes nothing. Nobody calls, but to answer its questions."""
    with anyio.fail_after(_END_S):
        while (pending := await session.pending()) is not None:
            if pending.interrupts:
                await session.invoke(
                    [
                        {"interruptResponse": {"interruptId": one.id, "response": answer(one.reason)}}
                        for one in pending.interrupts
                    ]
                )
            else:
                await anyio.sleep(0.02)
    return await session.messages()


def place_in(kind: str, folder: Path, url: str) -> SessionLocation:
    """The place of the sessions."""
    match kind:
        case "postgres":
            return PostgresSessions(url)
        case "sqlite, encrypted":
            return SQLiteSessions(folder / "sessions.db", encryption=LocalKeys(folder / "keys"))
        case _:
            return place_of(kind, folder, url)


async def main(place: SessionLocation, folder: Path, first: int, turns: int) -> None:
    async with Runtime(sessions=place) as runtime:
        agent = runtime.agent(clerk(folder))
        if not turns:
            await anyio.sleep_forever()
        for turn in range(first, turns):
            await agent.session(f"s{turn}").invoke(f"turn {turn}", idempotency_token=f"t{turn}")
            print(f"answered {turn}", flush=True)
        for turn in range(turns):
            session = agent.session(f"s{turn}")
            messages = await to_the_end(session, lambda reason, turn=turn: looked_up(folder, turn, reason))  # type: ignore[misc]
            print(f"told {turn} {json.dumps(told(messages))}", flush=True)


if __name__ == "__main__":
    _, kind, loop, root, url, *more = sys.argv
    begins, ends = (0, 0) if more == ["beside"] else map(int, more)
    folder = Path(root)
    anyio.run(main, place_in(kind, folder, url), folder, begins, ends, backend=loop)
