"""A process in which no thread can be started for a while.

python -m tests.backends.starving_process WHAT LOOP FOLDER
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from repertory import Agent, FileSessionManager, ScriptedModel, SQLiteSessionManager
from repertory.backends.worker_threads import run_foreign, run_in_thread
from repertory.errors import StoreUnavailable


@contextmanager
def no_threads() -> Generator[None]:
    """Threads that cannot be started: the address space has no room for their stacks."""
    before = threading.stack_size(1 << 46)
    try:
        yield
    finally:
        threading.stack_size(before)


async def work(folder: Path) -> None:
    """The work is not begun, and its own errors pass."""
    del folder
    begun: list[int] = []
    for run in (run_in_thread, run_foreign):
        with no_threads():
            await refused(lambda run=run: run(lambda: begun.append(1)))
    assert not begun
    for run in (run_in_thread, run_foreign):
        with pytest.raises(RuntimeError, match="can't start"):
            await run(_fail_like_a_thread)


async def sqlite(folder: Path) -> None:
    """Sessions in a database."""
    await _call(SQLiteSessionManager("s", path=folder / "s.db"))


async def files(folder: Path) -> None:
    """Sessions in files."""
    await _call(FileSessionManager("s", storage_dir=str(folder)))


async def _call(manager: SQLiteSessionManager | FileSessionManager) -> None:
    agent = Agent(ScriptedModel(["hi"], loop=True), session_manager=manager, callback_handler=None)
    with no_threads():
        for _ in range(2):
            await refused(lambda: agent.invoke_async("one"))
    assert str(await agent.invoke_async("two")) == "hi"
    await agent.shutdown_async()


async def refused(call: Callable[[], Awaitable[object]]) -> None:
    """Raise unless the call raises that there is no thread."""
    with pytest.raises(StoreUnavailable, match="no thread could be started"):
        await call()


def _fail_like_a_thread() -> None:
    raise RuntimeError("can't start new thread")


async def _main(what: str, folder: Path) -> None:
    with anyio.fail_after(60):
        await {"work": work, "sqlite": sqlite, "files": files}[what](folder)


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1], Path(sys.argv[3]), backend=sys.argv[2])
