"""A worker that uses every feature and is killed: turns, tools, questions, state, memory, graphs, on any store.

    python -m tests.simulation.dying_features KIND FOLDER SEED FIRST LAST [URL] [--clock]

Takes the turns FIRST to LAST of one session, and a run of a graph now and then, each under a token of its own, and
prints a line when it is acknowledged. Effects are lines of FOLDER/ledger, fsynced. Asked about an unknown outcome, it
looks there. With `--clock` the wall clock jumps between turns.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_OFFSET_S = [0.0]
if "--clock" in sys.argv:  # Before anything can hold on to the function.
    time.time = lambda real=time.time: real() + _OFFSET_S[0]  # type: ignore[assignment]

import anyio  # noqa: E402

from repertory import (  # noqa: E402
    Agent,
    AgentSpec,
    ExtractionConfig,
    ExtractionResult,
    FileSessions,
    FileStorage,
    Graph,
    IntervalTrigger,
    JournalSessions,
    MemoryManager,
    Runtime,
    S3Sessions,
    S3Storage,
    ScriptedModel,
    SnapshotSessions,
    SQLiteMemoryStore,
    SQLiteSessions,
    ToolContext,
    tool,
)
from repertory.app.sessions.sessions import PlacedSession, SessionLocation  # noqa: E402
from repertory.core.messages import Message, text_of, tool_results  # noqa: E402

LOCAL = ("sqlite", "sqlite with memory", "journals", "documents", "snapshots")
BUCKETS = ("journals on s3", "documents on s3")
DOES = ("plain", "pay", "ask", "note", "graph")
SESSION, AGENT = "s", "worker"
_JUMPS_S = (-86400.0 * 400, -3600.0, -1.5, 0.7, 3600.0, 86400.0 * 400)


def place_of(kind: str, folder: Path, url: str = "") -> SessionLocation:
    """Sessions of that kind."""
    match kind:
        case "sqlite":
            return SQLiteSessions(folder / "sessions.db")
        case "sqlite with memory":
            return SQLiteSessions(folder / "sessions.db", remember=True)
        case "journals":
            return JournalSessions(FileStorage(folder / "journals"))
        case "documents":
            return FileSessions(folder / "documents")
        case "snapshots":
            return SnapshotSessions(FileStorage(folder / "snapshots"))
        case "journals on s3":
            return JournalSessions(S3Storage("bucket", f"j/{folder.name}", endpoint_url=url))
        case _:
            return S3Sessions("bucket", f"d/{folder.name}", endpoint_url=url)


def does(seed: int, number: int) -> str:
    """What a turn does, whoever asks."""
    return random.Random(f"{seed} {number}").choice(DOES)


class Echo:
    """An extractor that makes one fact of each prompt."""

    async def extract(self, messages: list[Any], context: object) -> list[ExtractionResult]:
        del context
        said = [text_of(message) for message in messages if message["role"] == "user"]
        return [ExtractionResult(f"fact {text}") for text in said if text]


def memory_in(folder: Path) -> MemoryManager:
    """A memory that takes every second turn in."""
    config = ExtractionConfig(trigger=IntervalTrigger(2), extractor=Echo())
    store = SQLiteMemoryStore(folder / "memory.db", name="facts", extraction=config)
    return MemoryManager(stores=[store], search_tool_config=False, injection=False)


class Worker:
    """One process's work."""

    def __init__(self, place: SessionLocation, folder: Path, seed: int) -> None:
        self._place = place
        self._ledger = folder / "ledger"
        self._seed = seed
        nodes = {"one": self._node("one"), "two": self._node("two")}
        self._graph = Graph(nodes, session_manager=PlacedSession("g", place))
        self._spec = AgentSpec(
            name=AGENT, model=ScriptedModel([_reply], loop=True), tools=self._tools(), memory_manager=memory_in(folder)
        )

    async def work(self, turns: range, jump: Callable[[], None]) -> None:
        """Those turns, in order."""
        async with Runtime(sessions=self._place) as runtime:
            session = runtime.agent(self._spec).session(SESSION)
            for number in turns:
                jump()
                what = does(self._seed, number)
                if what == "graph":
                    answer = await self._run_graph(number)
                else:
                    answer = str(await self._take_turn(session, number, f"turn {number} {what}")).strip()
                print(f"{number} {what} {answer}", flush=True)

    async def _take_turn(self, session: Any, number: int, prompt: str) -> object:
        result = await session.invoke(prompt, idempotency_token=f"t{number}")
        while result.stop_reason == "interrupt":
            answers = [
                {"interruptResponse": {"interruptId": one.id, "response": self._response(number, one)}}
                for one in result.interrupts
            ]
            result = await session.invoke(answers)
        return result

    def _response(self, number: int, asked: Any) -> object:
        if asked.name != "unknown_tool_outcome":
            return "yes"
        noted = self._ledger.exists() and f"effect {number} " in self._ledger.read_text()
        return {"result": "it did"} if noted else "retry"

    async def _run_graph(self, number: int) -> str:
        result = await self._graph.invoke_async(f"task {number}", idempotency_token=f"g{number}")
        return str(result.results["two"].result).strip()

    def _node(self, name: str) -> Agent:
        @tool
        async def work(number: int, tool_context: ToolContext) -> str:
            """Work."""
            self._note(f"node {number}-{name} {tool_context.idempotency_key}")
            return "worked"

        def reply(messages: Sequence[Message], *_: object) -> Any:
            number = max(int(each) for message in messages for each in re.findall(r"task (\d+)", text_of(message)))
            done = any(tool_results(messages[-1]))
            return f"{name} did {number}" if done else {"toolUse": {"name": "work", "input": {"number": number}}}

        model = ScriptedModel([reply], loop=True)
        return Agent(model, tools=[work], name=name, agent_id=name, callback_handler=None, unknown_tool_outcome="retry")

    def _tools(self) -> list[Any]:
        @tool
        async def pay(number: int, tool_context: ToolContext) -> str:
            """Pay."""
            self._note(f"effect {number} {tool_context.idempotency_key}")
            return "paid"

        @tool
        async def ask(number: int, tool_context: ToolContext) -> str:
            """Ask a person, then act."""
            said = tool_context.interrupt("sure?")
            self._note(f"effect {number} {tool_context.idempotency_key}")
            return f"done, {said}"

        @tool(effects=False)
        async def note(number: int, agent: Agent) -> str:
            """Remember in the state."""
            agent.state.set("last", number)
            return "noted"

        return [pay, ask, note]

    def _note(self, line: str) -> None:
        descriptor = os.open(self._ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{line}\n".encode())
        os.fsync(descriptor)
        os.close(descriptor)


def _reply(messages: Sequence[Message], *rest: object) -> Any:
    del rest
    position, text = next(
        (place, text_of(message))
        for place, message in reversed(list(enumerate(messages)))
        if message["role"] == "user" and "turn " in text_of(message)
    )
    _, number, what = text[text.rindex("turn ") :].split()
    answered = any(any(tool_results(message)) for message in messages[position + 1 :])
    if what == "plain" or answered:
        return f"answer {number}"
    return {"toolUse": {"toolUseId": f"use-{number}", "name": what, "input": {"number": int(number)}}}


def main() -> None:
    """Whatever the command line says."""
    kind, folder, seed, first, last, *more = [each for each in sys.argv[1:] if each != "--clock"]
    rng = random.Random(f"{seed} {first}")

    def jump() -> None:
        if "--clock" in sys.argv:
            _OFFSET_S[0] = rng.choice(_JUMPS_S)

    worker = Worker(place_of(kind, Path(folder), *more), Path(folder), int(seed))
    backend = rng.choice(["asyncio", "trio"])
    anyio.run(worker.work, range(int(first), int(last)), jump, backend=backend)


if __name__ == "__main__":
    main()
