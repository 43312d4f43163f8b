"""CPU milliseconds per turn of strands-agents, as JSON: run by an interpreter that has it, with the numbers of turns.

tests/peers/strands/bin/python bench/strands_turns.py 10 200
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from typing import Any

AROUND = 5
"""A figure is the mean of the turns from so many before the named one to so many after it."""


def main() -> None:
    from strands import Agent
    from strands.session.file_session_manager import FileSessionManager
    from strands_model import Instant

    turns = [int(each) for each in sys.argv[1:]]

    def agent(folder: str | None) -> Any:
        sessions = None if folder is None else FileSessionManager(session_id="s", storage_dir=folder)
        return Agent(model=Instant(), session_manager=sessions, callback_handler=None)

    async def asynchronous(folder: str | None) -> list[float]:
        talker, spent = agent(folder), []
        for _ in range(max(turns) + AROUND):
            began = time.process_time()
            await talker.invoke_async("hello")
            spent.append(time.process_time() - began)
        return spent

    def synchronous(folder: str | None) -> list[float]:
        talker, spent = agent(folder), []
        for _ in range(max(turns) + AROUND):
            began = time.process_time()
            talker("hello")
            spent.append(time.process_time() - began)
        return spent

    def figures(spent: list[float]) -> dict[int, float]:
        return {turn: sum(part := spent[turn - AROUND : turn + AROUND]) / len(part) * 1000 for turn in turns}

    found: dict[str, dict[int, float]] = {}
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        found["memory, async"] = figures(asyncio.run(asynchronous(None)))
        found["memory, sync"] = figures(synchronous(None))
        found["files, async"] = figures(asyncio.run(asynchronous(one)))
        found["files, sync"] = figures(synchronous(two))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
