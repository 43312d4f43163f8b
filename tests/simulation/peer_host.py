"""One process of a cluster: it hosts sessions of an agent until SIGTERM, and says when it listens and when it is over.

`LISTEN` is where it answers its peers. Arguments: the place (a path, or a DSN), the folder of the ledgers, its
own name, the event loop's backend, the version.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio

from repertory import AgentSpec, Model, Peers, PostgresSessions, Runtime, SQLiteSessions, tool
from repertory.app.sessions.sessions import SessionLocation

AGENT = "clerk"
SECRET = "a-secret-of-the-peers"
STEP_S = 0.02


def place_of(where: str) -> SessionLocation:
    return PostgresSessions(where) if "=" in where or where.startswith("postgresql:") else SQLiteSessions(where)


def write_line(path: Path, line: str) -> None:
    """In one write, so that lines of several processes do not mix."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


class Clerk(Model):
    """Notes each prompt by a tool, then answers; says in a ledger, if it has one, whenever it is asked."""

    def __init__(self, ledger: Path | None, name: str) -> None:
        self._ledger = ledger
        self._name = name

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        prompt = [block["text"] for message in messages for block in message["content"] if "text" in block][-1]
        done = any("toolResult" in block for block in messages[-1]["content"])
        if self._ledger is not None:
            write_line(self._ledger / "asked", f"{self._name} {'answer' if done else 'tool'} {prompt}")
        yield {"messageStart": {"role": "assistant"}}
        await anyio.sleep(STEP_S)
        if done:
            for piece in ("noted ", prompt):
                yield {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": piece}}}
                await anyio.sleep(STEP_S)
        else:
            start = {"toolUse": {"toolUseId": f"note {prompt}", "name": "note"}}
            yield {"contentBlockStart": {"contentBlockIndex": 0, "start": start}}
            delta = {"toolUse": {"input": f'{{"what": "{prompt}"}}'}}
            yield {"contentBlockDelta": {"contentBlockIndex": 0, "delta": delta}}
        yield {"contentBlockStop": {"contentBlockIndex": 0}}
        yield {"messageStop": {"stopReason": "end_turn" if done else "tool_use"}}


def clerk(folder: Path, name: str) -> AgentSpec:
    @tool
    async def note(what: str) -> str:
        """Write it down."""
        await anyio.sleep(STEP_S / 2)
        write_line(folder / "noted", what)
        await anyio.sleep(STEP_S / 2)
        return f"noted {what}"

    return AgentSpec(name=AGENT, model=Clerk(folder, name), tools=[note], unknown_tool_outcome="fail")


async def main() -> None:
    where, folder, name, _, version = sys.argv[1:]
    default = None if isinstance(place_of(where), SQLiteSessions) else "127.0.0.1:0"
    peers = Peers(os.environ.get("LISTEN", default), secret=SECRET, room=200, version=version)
    async with Runtime(sessions=place_of(where), peers=peers) as runtime:
        runtime.agent(clerk(Path(folder), name))
        print("there", flush=True)
        report = await runtime.serve_signals()
        print("over" if report.ok else f"lost {report}", flush=True)


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[4])
