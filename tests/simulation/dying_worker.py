"""A worker that is killed: takes turns on one session, and says what was acknowledged.

    python dying_worker.py DATABASE LEDGER FIRST_TURN [where]

Prints one line per acknowledged turn. Its model asks for one tool with effects per turn, which appends its idempotency
key to LEDGER, fsynced. With `where`, the process kills itself at that place of its first turn: `before` the tool has
taken effect, or `after`; without, it waits to be killed. DATABASE is a SQLite file, or, without a suffix, a folder. If
there is a folder `keys` beside it, the session is encrypted.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

from repertory import (
    Agent,
    FileStorage,
    JournalSessionManager,
    LocalKeys,
    ScriptedModel,
    SQLiteSessionManager,
    ToolContext,
    tool,
)
from repertory.core.messages import Message, text_of


def note(path: str, line: str) -> None:
    """Append a line, on stable storage when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.fsync(descriptor)
    os.close(descriptor)


def session_in(database: str) -> SQLiteSessionManager | JournalSessionManager:
    """The session that is worked on."""
    keys = Path(database).with_name("keys")
    encryption = LocalKeys(keys) if keys.is_dir() else None
    if Path(database).suffix:
        return SQLiteSessionManager("s1", path=database, encryption=encryption)
    return JournalSessionManager("s1", storage=FileStorage(database), encryption=encryption)


def main() -> None:
    database, ledger, first, where = sys.argv[1], sys.argv[2], int(sys.argv[3]), (sys.argv[4:] or [""])[0]

    @tool
    def pay(amount: int, tool_context: ToolContext) -> str:
        """Pay an amount."""
        if where == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        note(ledger, tool_context.idempotency_key)
        if where == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return f"paid {amount}"

    def answer(messages: Sequence[Message], *rest: object) -> object:
        del rest
        last = messages[-1]
        said = text_of(last)
        if not said:
            return "done"
        return {"toolUse": {"toolUseId": f"use of {said}", "name": "pay", "input": {"amount": len(said)}}}

    agent = Agent(
        ScriptedModel([answer], loop=True),
        tools=[pay],
        session_manager=session_in(database),
        callback_handler=None,
    )

    async def work() -> None:
        async with agent:
            for turn in range(first, first + 1000):
                result = await agent.invoke_async(f"turn {turn}")
                sys.stdout.write(f"{turn} {result}\n")
                sys.stdout.flush()

    anyio.run(work)


if __name__ == "__main__":
    main()
