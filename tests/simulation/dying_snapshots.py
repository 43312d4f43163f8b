"""A process that takes turns on a session with snapshots until it is killed: one line per acknowledged turn.

python dying_snapshots.py FOLDER FIRST_TURN STRATEGY
"""

from __future__ import annotations

import sys

import anyio

from repertory import Agent, FileStorage, ScriptedModel, SnapshotSessionManager


def main() -> None:
    folder, first, strategy = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    manager = SnapshotSessionManager(
        "s",
        storage=FileStorage(folder),
        save_latest_on=strategy,  # type: ignore[arg-type]
        snapshot_trigger=lambda turn_count: turn_count % 3 == 0,
    )
    agent = Agent(ScriptedModel(["done"], loop=True), session_manager=manager, callback_handler=None)

    async def work() -> None:
        async with agent:
            for turn in range(first, first + 1000):
                await agent.invoke_async(f"turn {turn}")
                sys.stdout.write(f"{turn}\n")
                sys.stdout.flush()

    anyio.run(work)


if __name__ == "__main__":
    main()
