"""Agents that ask a person and are killed at every instant at which their store is told something.

    python dying_clerk.py FOLDER

For each crash point a process is forked that dies there by SIGKILL, and after it one that finishes the work. Each keeps
a ledger in FOLDER, one line per effect, question and answer, fsynced. Prints the number of crash points.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from repertory import (
    Agent,
    BeforeToolCallEvent,
    Interrupt,
    ScriptedModel,
    SQLiteSessions,
    ToolContext,
    tool,
)
from repertory.backends.ports import SessionStore
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message, tool_results
from repertory.testing.crash_points import CrashingSessionStore, CrashPoints


@dataclass(frozen=True)
class DyingPlacement:
    """A session in a database whose store kills the process at one point."""

    path: Path
    points: CrashPoints
    session_id: str = "s"
    takeover: bool = False

    @property
    def sessions(self) -> DyingPlacement:
        return self

    @property
    def key(self) -> str:
        return str(self.path)

    def open_store(self) -> SessionStore:
        return CrashingSessionStore(SQLiteSessions(self.path).open_store(), self.points)


class Clerk:
    """One process's work: a turn with three tools, of which one asks twice and one is asked about."""

    def __init__(self, folder: Path, points: CrashPoints) -> None:
        self.ledger = folder / "ledger"
        self.points = points
        model = ScriptedModel([self.answer], loop=True)
        placement = DyingPlacement(folder / "a.db", points)
        self.agent = Agent(model, tools=self.tools(), session_manager=placement, callback_handler=None)
        self.agent.add_hook(self.gate)

    def note(self, line: str) -> None:
        """Append a line, on stable storage when this returns."""
        descriptor = os.open(self.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{line}\n".encode())
        os.fsync(descriptor)
        os.close(descriptor)

    def noted(self, line: str) -> bool:
        return self.ledger.exists() and line in self.ledger.read_text().splitlines()

    def tools(self) -> list[Any]:
        @tool
        async def pay(tool_context: ToolContext) -> str:
            """Pay."""
            said = [tool_context.interrupt("first"), tool_context.interrupt("second")]
            self.points.reach("before the payment")
            self.note("effect pay")
            self.points.reach("after the payment")
            return f"paid {said}"

        @tool
        async def post() -> str:
            """Post."""
            self.note("effect post")
            return "posted"

        @tool
        async def wipe() -> str:
            """Wipe."""
            self.note("effect wipe")
            return "wiped"

        return [pay, post, wipe]

    def gate(self, event: BeforeToolCallEvent) -> None:
        if event.tool_use["name"] == "wipe" and event.interrupt("wipe?") != "yes":
            event.cancel_tool = "no"

    @staticmethod
    def answer(messages: Sequence[Message], *rest: object) -> Any:
        del rest
        if any(tool_results(messages[-1])):
            return "done"
        names = ("pay", "post", "wipe")
        return [{"toolUse": {"toolUseId": name, "name": name, "input": {}}} for name in names]

    def response(self, interrupt: Interrupt) -> object:
        """What a person says, who looks into the ledger when nobody knows what has taken effect."""
        if interrupt.name != "unknown_tool_outcome":
            return "yes"
        assert isinstance(interrupt.reason, dict)
        return {"result": "it did"} if self.noted(f"effect {interrupt.reason['tool']}") else "retry"

    async def work(self) -> None:
        """Until the turn has its answer, one question at a time."""
        async with self.agent:
            await self.turn()

    async def turn(self) -> None:
        result = await self.agent.invoke_async("go", idempotency_token="t")
        while result.stop_reason == "interrupt":
            interrupt = result.interrupts[0]
            self.note(f"asked {interrupt.id}")
            answers: Any = [{"interruptResponse": {"interruptId": interrupt.id, "response": self.response(interrupt)}}]
            result = await self.agent.invoke_async(answers)
            self.note(f"answered {interrupt.id}")
        self.note(f"end {result}")


def forked(folder: Path, crash_at: int | None) -> int:
    """The exit code of a process that works there."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            clerk = Clerk(folder, CrashPoints(crash_at))
            anyio.run(clerk.work)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    schema_class()
    root, point, code = Path(sys.argv[1]), 0, -9
    while code == -9:
        point += 1
        folder = root / f"{point:03}"
        folder.mkdir()
        code = forked(folder, point)
        with (folder / "ledger").open("a") as ledger:
            ledger.write("killed\n")
        if forked(folder, None):
            code = 1
    if code:
        sys.exit(code)
    sys.stdout.write(f"{point - 1}\n")


if __name__ == "__main__":
    main()
