"""The worker of the demonstration: a process that hosts sessions in one `Runtime` and answers requests over its pipes.

One JSON object per line. In: `{"id", "do": "say" | "go_on" | "answer" | "history", "session", ...}`. Out: one reply
with the same `id` each, `{"event": "ready"}` when it begins, `{"event": "tool_started"}` on the way, and
`{"event": "drained"}` at the end. SIGTERM drains it; so does the end of its input, so that it never outlives its
parent.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
from anyio.abc import TaskGroup

from examples.demo.orders import ORDER_TOOL, order_tool
from repertory.app.embedding.hosted import AgentSpec, HostedSession
from repertory.app.embedding.runtime import Runtime
from repertory.app.host.model_choice import Chosen, choice_of
from repertory.app.sessions.sessions import SQLiteSessions
from repertory.backends.models.offline import OfflineModel
from repertory.backends.ports import Model, StreamEvent
from repertory.core.answer import message_events
from repertory.core.messages import text_of
from repertory.errors import RepertoryError
from repertory.toolbox.calculator import calculator
from repertory.toolbox.clock import current_time
from repertory.toolbox.files import file_tools

if TYPE_CHECKING:
    from repertory.core.messages import Message, Prompt, ToolSpec, ToolUse
    from repertory.core.result import AgentResult

SYSTEM_PROMPT = (
    "You help somebody to get a market stall ready. Be brief. Use the tools for sums, for the time, for notes in "
    "files, and place an order when, and only when, you are asked to order something."
)

ORDER_PAUSES = 10
"""How many pauses an order takes before it is written, and again after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The command line of a worker."""

    folder: Path
    """The folder of the database, the notes and the order books."""
    model: Chosen
    pause_s: float
    """How long the offline model waits before each event."""

    @property
    def database(self) -> Path:
        """The database of the sessions."""
        return self.folder / "sessions.db"

    def book(self, session_id: str) -> Path:
        """The order book of one session."""
        return self.folder / f"{session_id}.orders"

    def arguments(self) -> list[str]:
        """The command line for these settings."""
        model = self.model.provider if self.model.model_id is None else f"{self.model.provider}:{self.model.model_id}"
        return ["--folder", str(self.folder), "--model", model, "--pause", str(self.pause_s)]


class Counter:
    """Answers requests, each in its own task."""

    def __init__(self, runtime: Runtime, settings: WorkerSettings) -> None:
        self._runtime = runtime
        self._settings = settings
        self._model: Model = (
            StallModel(pause_s=settings.pause_s) if settings.model.provider == "offline" else settings.model.build()
        )
        self._sessions: dict[str, HostedSession] = {}

    async def serve(self, tasks: TaskGroup) -> None:
        """Answer requests until the input ends."""
        emit({"event": "ready"})
        async for line in lines_from(sys.stdin.fileno()):
            tasks.start_soon(self._answer, json.loads(line))

    async def _answer(self, request: Mapping[str, Any]) -> None:
        try:
            reply = await self._done(request)
        except RepertoryError as error:
            reply = {"error": str(error), "kind": type(error).__name__}
        emit({"id": request["id"], **reply})

    async def _done(self, request: Mapping[str, Any]) -> dict[str, object]:
        session = self._session(request["session"])
        match request["do"]:
            case "say":
                return await self._turn(request, session, request["prompt"])
            case "go_on":
                return await self._turn(request, session, None)
            case "answer":
                responses = cast("Mapping[str, object]", request["responses"])
                answers = [
                    {"interruptResponse": {"interruptId": interrupt_id, "response": response}}
                    for interrupt_id, response in responses.items()
                ]
                return await self._turn(request, session, cast("Prompt", answers))
            case _:
                return {"messages": await session.history()}

    async def _turn(self, request: Mapping[str, Any], session: HostedSession, prompt: Prompt) -> dict[str, object]:
        async with aclosing(session.stream(prompt)) as events:
            async for event in events:
                if "tool_started" in event:
                    use = event["tool_started"]
                    emit({"event": "tool_started", "session": request["session"], "tool": use["name"]})
                if "result" in event:
                    return _told(event["result"])
        raise AssertionError("a turn's stream ends with its result or an error")

    def _session(self, session_id: str) -> HostedSession:
        """Each session has its own notes and its own order book, so each has its own tools."""
        known = self._sessions.get(session_id)
        if known is not None:
            return known
        notes = self._settings.folder / f"{session_id}.notes"
        notes.mkdir(exist_ok=True)
        list_files, read_file, write_file, _ = file_tools(notes)
        order = order_tool(self._settings.book(session_id), pause_s=self._settings.pause_s * ORDER_PAUSES)
        spec = AgentSpec(
            model=self._model,
            tools=(calculator, current_time, list_files, read_file, write_file, order),
            system_prompt=SYSTEM_PROMPT,
        )
        session = self._sessions[session_id] = self._runtime.agent(spec).session(session_id)
        return session


async def work(settings: WorkerSettings) -> None:
    """Serve until a signal or the end of the input, drain, and send the drain's report."""
    async with Runtime(sessions=SQLiteSessions(settings.database), drain_timeout_s=20.0) as runtime:
        async with anyio.create_task_group() as answering:
            counter = Counter(runtime, settings)
            await _first_of(runtime.serve_signals, lambda: counter.serve(answering))
            await runtime.drain()  # ends the running turns, whose replies this block waits for
        report = await runtime.drain()
        emit({"event": "drained", "report": {**asdict(report), "ok": report.ok}})


async def lines_from(file: int) -> AsyncIterator[bytes]:
    """The lines of a pipe, read without a thread that would have to end first."""
    pending = b""
    while True:
        await anyio.wait_readable(file)
        read = os.read(file, 65536)
        if not read:
            return
        *lines, pending = (pending + read).split(b"\n")
        for line in lines:
            yield line


def emit(message: Mapping[str, object]) -> None:
    """Write one line for the parent, which reads all the time."""
    sys.stdout.write(f"{json.dumps(message)}\n")
    sys.stdout.flush()


def _told(result: AgentResult) -> dict[str, object]:
    """A result as a reply."""
    interrupts = [{"id": interrupt.id, "reason": interrupt.reason} for interrupt in result.interrupts]
    return {"stop_reason": result.stop_reason, "text": str(result), "interrupts": interrupts}


async def _first_of(*functions: Callable[[], Awaitable[object]]) -> None:
    """Run all of them until one returns; the others are cancelled."""
    async with anyio.create_task_group() as group:

        async def run(function: Callable[[], Awaitable[object]]) -> None:
            await function()
            group.cancel_scope.cancel()

        for function in functions:
            group.start_soon(run, function)


def main(arguments: Sequence[str] | None = None) -> None:
    """Work with the settings of the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo.worker")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--pause", type=float, required=True)
    options = parser.parse_args(arguments)
    model = choice_of(options.model)
    anyio.run(work, WorkerSettings(folder=options.folder, model=model, pause_s=options.pause))


# The offline model for the demonstration: it can place orders, and it pauses.
#
# Without the pauses a turn would be over before the parent could kill the worker in the middle of it.

_ORDER = re.compile(r"(?:please )?order (?P<item>.+?)[.!]?$", re.IGNORECASE)


class StallModel(Model):
    """Answers like `OfflineModel`, with a pause before each event, and places the orders that the prompt asks for."""

    def __init__(self, *, pause_s: float) -> None:
        self._pause_s = pause_s
        self._rules = OfflineModel()

    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        """The answer to the last message."""
        order = _ORDER.match(text_of(messages[-1])) if messages else None
        if order is not None:
            use_id = f"order_{uuid.uuid4().hex}"
            use: ToolUse = {"toolUseId": use_id, "name": ORDER_TOOL, "input": {"item": order["item"]}}
            for event in message_events([{"toolUse": use}]):
                await anyio.sleep(self._pause_s)
                yield event
            return
        async for event in self._rules.stream(messages, tool_specs, system_prompt, **options):
            await anyio.sleep(self._pause_s)
            yield event


if __name__ == "__main__":
    main()
