"""Values that no JSON holds, or that look like something of ours, through every door and into every kind of store.

Each is refused at the door with a typed error, or comes back equal when the session is opened again. Either way the
sessions of others that commit at the same moment are not hindered, and the session goes on.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from repertory import (
    Agent,
    AgentSpec,
    InMemoryStorage,
    Runtime,
    ScriptedModel,
    SnapshotSessions,
    ToolContext,
    tool,
)
from repertory.core.messages import text_of
from repertory.errors import RepertoryError
from tests.app.orchestration.session_shelf import Shelf
from tests.backends.sessions.snapshot_places import SyncStorage
from tests.campaigns.campaigns import Report
from tests.operations.operated_places import AgentCorePlace, place_of


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def circle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


MARK = "__bytes_encoded__"
CHARACTERS = (
    "\0",
    "\ud800",
    "\udfff",
    "\u2028",
    "\x7f",
    "\x1b[2J",
    "\u202e",
    "\ufeff",
    "'",
    '"',
    "\\",
    "\\u0000",
    "é",
    "e\u0301",
    "😀",
    "\n",
)
BOMBS: dict[str, Any] = {
    "marked, no base64": {MARK: True, "data": "not base64!"},
    "marked, base64": {MARK: True, "data": "aGk="},
    "marked, a number": {MARK: True, "data": 5},
    "marked, and more": {MARK: True, "data": "aGk=", "more": [1]},
    "marked, in itself": {MARK: True, "data": {MARK: True, "data": "x"}},
    "marked otherwise": [{MARK: 1, "data": "x"}, {MARK: 1.0, "data": "x"}, {MARK: False, "data": "x"}],
    "our marker": {"$bytes": "not base64!", "$$bytes": 1},
    "our key": {"repertory": {"format": 99, "rows": "none"}},
    "not a number": math.nan,
    "infinity": [math.inf, -math.inf],
    "64 bits and one": [2**64, -(2**63) - 1],
    "5,000 digits": 10**5000,
    "a lone surrogate": "\ud800 and \udfff",
    "a lone surrogate as a key": {"\udc80": "\ud83d"},
    "a NUL": {"a\0b": "\0"},
    "as deep as may be": nested(100),
    "too deep": nested(111),
    "far too deep": nested(5000),
    "a circle": circle(),
    "keys that are numbers": {1: "one", None: 2},
    "a set": {1, 2},
    "an object": object(),
    "bytes": [b"\x00\xff"],
    "a long key": {"k" * 70_000: 1},
    "a negative zero": [-0.0, 1e308, 5e-324],
}


def place(kind: str, folder: Path) -> Any:
    match kind:
        case "memory":
            return Shelf()
        case "snapshots":
            return SnapshotSessions(InMemoryStorage())
        case "a storage of one's own":
            return SnapshotSessions(SyncStorage())  # type: ignore[arg-type]
        case "agentcore":
            return AgentCorePlace()
        case _:
            return place_of(kind, folder)


KINDS = (
    "memory",
    "sqlite",
    "journal in memory",
    "documents in memory",
    "snapshots",
    "a storage of one's own",
    "agentcore",
)


def is_equal(found: Any, wanted: Any) -> bool:
    """Whether a value came back, as JSON can say it."""
    if isinstance(wanted, list | tuple):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(is_equal, found, wanted))
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict)
            and list(found) == list(wanted)
            and all(map(is_equal, found.values(), wanted.values()))
        )
    return type(found) is type(wanted) and found == wanted


@dataclass
class Bombed:
    """A session, and what was done to it."""

    agent: Agent
    bomb: Any
    replies: list[Any]
    kept: dict[str, tuple[Any, Callable[[Agent], Any]]] = field(default_factory=dict)
    """Door to what reads the value back, for those that took it."""
    refused: dict[str, Exception] = field(default_factory=dict)

    async def through(self, door: str, go: Callable[[], Awaitable[object]], back: Callable[[Agent], Any]) -> None:
        self.replies.clear()
        try:
            await go()
        except (RepertoryError, ValueError, TypeError) as error:
            self.refused[door] = error
        else:
            self.kept[door] = (back(self.agent), back)


def tools_of(bomb: Any) -> list[Any]:
    @tool(effects=False)
    def show() -> Any:
        """Show something."""
        return {"status": "success", "content": [{"json": bomb}]}

    @tool(effects=False)
    def take(value: Any) -> str:
        """Take anything."""
        return "taken"

    @tool(effects=False, context=True)
    def ask(tool_context: ToolContext) -> str:
        """Ask a person."""
        return str(type(tool_context.interrupt("question", reason=bomb)))

    return [show, take, ask]


def blocks(agent: Agent, kind: str) -> list[Any]:
    return [block[kind] for message in agent.messages for block in message["content"] if kind in block]


async def all_doors(bombed: Bombed) -> None:
    agent, bomb, replies = bombed.agent, bombed.bomb, bombed.replies

    async def state() -> None:
        agent.state.set("bomb", bomb)
        replies.append("state")
        await agent.invoke_async("state")

    async def answer() -> None:
        replies.extend([{"toolUse": {"name": "take", "toolUseId": "t-in", "input": {"value": bomb}}}, "taken"])
        await agent.invoke_async("take")

    async def result() -> None:
        replies.extend([{"toolUse": {"name": "show", "toolUseId": "t-out", "input": {}}}, "shown"])
        await agent.invoke_async("show")

    async def metadata() -> None:
        replies.append("noted")
        await agent.invoke_async([{"role": "user", "content": [{"text": "m"}], "metadata": {"custom": {"b": bomb}}}])

    async def history() -> None:
        use = {"toolUseId": "t-own", "name": "take", "input": {"value": bomb}}
        result = {"toolUseId": "t-own", "status": "success", "content": [{"json": {"v": bomb}}]}
        said: list[Any] = [
            {"role": "user", "content": [{"text": "own"}]},
            {"role": "assistant", "content": [{"toolUse": use}]},
            {"role": "user", "content": [{"toolResult": result}]},
        ]
        replies.append("continued")
        await agent.invoke_async(said)

    async def text() -> None:
        replies.append(bomb)
        await agent.invoke_async(bomb)

    async def token() -> None:
        replies.append("by token")
        await agent.invoke_async("by token", idempotency_token=bomb)

    async def interrupt() -> None:
        replies.extend([{"toolUse": {"name": "ask", "toolUseId": "t-ask", "input": {}}}, "asked"])
        result = await agent.invoke_async("ask")
        if result.stop_reason == "interrupt":
            asked = result.interrupts[0]
            try:
                await agent.invoke_async([{"interruptResponse": {"interruptId": asked.id, "response": bomb}}])
            except (RepertoryError, ValueError, TypeError):
                await agent.invoke_async([{"interruptResponse": {"interruptId": asked.id, "response": "plain"}}])

    async def snapshot() -> None:
        agent.load_snapshot(agent.take_snapshot(preset="session"), overrides={"state.restored": bomb})
        replies.append("went on")
        await agent.invoke_async("go on")

    def used(name: str) -> Callable[[Agent], Any]:
        return lambda agent: next(use["input"] for use in blocks(agent, "toolUse") if use["toolUseId"] == name)

    def resulted(agent: Agent) -> Any:
        found = next(each for each in blocks(agent, "toolResult") if each["toolUseId"] == "t-out")
        return found["content"]

    def noted(agent: Agent) -> Any:
        return next(
            m["metadata"]["custom"]["b"] for m in agent.messages if "metadata" in m and "custom" in m["metadata"]
        )  # type: ignore[typeddict-item]

    await bombed.through("state", state, lambda agent: agent.state.get("bomb"))
    await bombed.through("answer", answer, used("t-in"))
    await bombed.through("result", result, resulted)
    await bombed.through("metadata", metadata, noted)
    await bombed.through("history", history, used("t-own"))
    await bombed.through("interrupt", interrupt, lambda agent: "")
    await bombed.through("snapshot", snapshot, lambda agent: agent.state.get("restored"))
    if isinstance(bomb, str):
        await bombed.through("text", text, lambda agent: next(t for t in map(text_of, agent.messages) if t == bomb))
        await bombed.through("token", token, lambda agent: "")
    replies[:] = ["still here"]
    assert text_of((await agent.invoke_async("still there?")).message) == "still here"


def spec_for(bomb: Any) -> tuple[AgentSpec, list[Any]]:
    replies: list[Any] = []
    model = ScriptedModel([lambda *_: replies.pop(0)], loop=True)
    return AgentSpec(model=model, tools=tools_of(bomb)), replies


async def bombard(where: Any, bombs: dict[str, Any]) -> tuple[dict[str, Bombed], list[str]]:
    """Each bomb through every door of a session of its own, with a sound session beside each. Returns them, and what
    was wrong.
    """
    bombed: dict[str, Bombed] = {}
    faults: list[str] = []
    async with Runtime(sessions=where) as runtime:
        sound = runtime.agent(AgentSpec(model=ScriptedModel(["well"], loop=True)))
        async with anyio.create_task_group() as tasks:
            for number, (name, bomb) in enumerate(bombs.items()):
                spec, replies = spec_for(bomb)
                bombed[name] = Bombed(runtime.agent(spec).session(f"s{number}").agent, bomb, replies)
                tasks.start_soon(all_doors, bombed[name])
                tasks.start_soon(sound.session(f"sound-{number}").invoke, "how are you?")
    async with Runtime(sessions=where) as runtime:
        for number, (name, each) in enumerate(bombed.items()):
            spec, replies = spec_for(each.bomb)
            session = runtime.agent(spec).session(f"s{number}")
            await session.agent.ready()
            faults += [
                f"{name}: {door} does not come back equal"
                for door, (live, back) in each.kept.items()
                if not is_equal(back(session.agent), live)
            ]
            replies.append("yes")
            if text_of((await session.invoke("again?")).message) != "yes":
                faults.append(f"{name}: the session does not go on")
            said = await runtime.agent(AgentSpec(model=ScriptedModel(["-"]))).session(f"sound-{number}").messages()
            if [text_of(message) for message in said] != ["how are you?", "well"]:
                faults.append(f"{name}: the session beside it holds {said}")
    return bombed, faults


def bombs(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Values made of the known ones, into one kind of store after the other, until the time is over."""
    report, end = Report(), time.monotonic() + seconds
    while not report.counts or time.monotonic() < end:
        kind, backend = rng.choice(KINDS), rng.choice(["asyncio", "trio"])
        made = {f"{number}": _mixed(rng, depth=rng.randint(0, 3)) for number in range(8)}
        inside = folder / f"{report.counts.total()}"
        inside.mkdir()
        bombed, faults = anyio.run(bombard, place(kind, inside), made, backend=backend)
        report.counts[kind] += 1
        report.faults += [f"{kind} on {backend}: {fault}: {made[fault.partition(':')[0]]!r:.2000}" for fault in faults]
        doors = sum(len(each.kept) for each in bombed.values())
        report.acknowledged += doors
        report.found += doors - sum("come back" in fault for fault in faults)
    return report


def _mixed(rng: random.Random, depth: int) -> Any:
    """A value of known ones, as items and, where they are texts, as keys."""
    if depth == 0:
        return rng.choice([*BOMBS.values(), *CHARACTERS, "".join(rng.choices(CHARACTERS, k=rng.randint(0, 20)))])
    parts = [_mixed(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if rng.random() < 0.5:
        return parts
    keys = [MARK, "data", "$bytes", "repertory", "text", "toolUse", "", *CHARACTERS]
    return dict(zip(rng.sample(keys, len(parts)), parts, strict=True))
