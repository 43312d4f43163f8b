"""Sessions of strands-agents, measured as JSON on the last line: run by an interpreter that has the package.

turns files|snapshots|snapshots-message N     CPU and wall microseconds of each turn of a new session
sessions COUNT TURNS                          turns per second of so many sessions at once, in files
tree FOLDER MESSAGES WINDOW                   makes a session; with a window, the model is shown the last of them
open FOLDER WINDOW                            milliseconds until that session is open

Sessions are made in new folders below TMPDIR, which the caller removes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from typing import Any

OPENINGS = 3


def main() -> None:
    from strands import Agent
    from strands.agent.conversation_manager import NullConversationManager, SlidingWindowConversationManager
    from strands.session.file_session_manager import FileSessionManager
    from strands.session.snapshot_session_manager import SnapshotSessionManager
    from strands.storage.local_file_storage import LocalFileStorage
    from strands.types.session import SessionMessage
    from strands_model import Instant

    def agent(sessions: Any, window: int = 0) -> Any:
        manager = SlidingWindowConversationManager(window_size=window) if window else NullConversationManager()
        return Agent(model=Instant(), session_manager=sessions, callback_handler=None, conversation_manager=manager)

    def manager(kind: str, folder: str) -> Any:
        if kind == "files":
            return FileSessionManager(session_id="s", storage_dir=folder)
        when = "message" if kind == "snapshots-message" else "invocation"
        return SnapshotSessionManager("s", storage=LocalFileStorage(folder), save_latest_on=when)

    async def turns(kind: str, count: int) -> list[tuple[float, float]]:
        talker, spent = agent(manager(kind, tempfile.mkdtemp())), list[tuple[float, float]]()
        for _ in range(count):
            cpu, wall = time.process_time(), time.perf_counter()
            await talker.invoke_async("hello")
            spent.append(((time.process_time() - cpu) * 1e6, (time.perf_counter() - wall) * 1e6))
        return spent

    async def sessions(count: int, each: int) -> float:
        async def talk(talker: Any) -> None:
            for _ in range(each):
                await talker.invoke_async("hello")

        folder = tempfile.mkdtemp()
        made = [FileSessionManager(session_id=f"s{number}", storage_dir=folder) for number in range(count)]
        talkers = [agent(each) for each in made]
        await asyncio.gather(*(talker.invoke_async("warm up") for talker in talkers))
        began = time.perf_counter()
        await asyncio.gather(*map(talk, talkers))
        return count * each / (time.perf_counter() - began)

    def tree(folder: str, messages: int, window: int) -> None:
        made = FileSessionManager(session_id="s", storage_dir=folder)
        talker = agent(made, window)
        for number in range(messages):
            role = "assistant" if number % 2 else "user"
            message: Any = {"role": role, "content": [{"text": f"message {number} of the usual length, or so"}]}
            made.session_repository.create_message("s", talker.agent_id, SessionMessage.from_message(message, number))
        if window:
            talker.conversation_manager.removed_message_count = messages - window
        made.sync_agent(talker)

    def opened(folder: str, window: int) -> float:
        times: list[float] = []
        for _ in range(OPENINGS):
            began = time.perf_counter()
            agent(FileSessionManager(session_id="s", storage_dir=folder), window)
            times.append((time.perf_counter() - began) * 1000)
        return sorted(times)[len(times) // 2]

    what, *given = sys.argv[1:]
    found: Any = None
    if what == "turns":
        found = asyncio.run(turns(given[0], int(given[1])))
    elif what == "sessions":
        found = asyncio.run(sessions(int(given[0]), int(given[1])))
    elif what == "tree":
        tree(given[0], int(given[1]), int(given[2]))
    else:
        found = opened(given[0], int(given[1]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
