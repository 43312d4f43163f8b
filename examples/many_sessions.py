"""Three conversations at once in one `Runtime`, with a drain at the end. Needs no network and no account."""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio

from repertory import AgentSpec, OfflineModel, Runtime, SQLiteSessions

FACTS = {"ada": "My cat is called Byron.", "ben": "My cat is called Kelvin.", "cleo": "My cat is called Marc."}


async def main() -> None:
    """Tell three sessions one fact each, all at once, and ask for the facts after a restart of the runtime."""
    with tempfile.TemporaryDirectory() as folder:
        sessions = SQLiteSessions(Path(folder) / "agents.db")
        spec = AgentSpec(name="friend", model=OfflineModel())

        async with Runtime(sessions=sessions) as runtime, anyio.create_task_group() as group:
            for name, fact in FACTS.items():
                group.start_soon(runtime.agent(spec).session(name).invoke, fact)

        async with Runtime(sessions=sessions) as runtime:
            for name in FACTS:
                print(f"{name}: {await runtime.agent(spec).session(name).invoke('Do you remember my cat?')}")
            report = await runtime.drain()
        print(f"drained in {report.duration_s:.2f} s, nothing left: {report.ok}")


if __name__ == "__main__":
    anyio.run(main)
