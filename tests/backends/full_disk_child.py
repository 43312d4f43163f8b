"""A process whose files may not grow beyond a limit, which stands in for a full disk and needs no rights.

Arguments: what to open (`sessions`, `memory` or `queue`), a folder, and limits in bytes. For each limit it makes a new
database, writes to it when the limit is gone, and prints both outcomes on a line.
"""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from repertory import SQLiteMemoryStore, SQLiteQueue
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.errors import RepertoryError, Retryable
from repertory.worker.decisions import TurnJob


async def sessions(path: Path) -> None:
    store = SQLiteSessionStore(path, owner="owner")
    try:
        await store.acquire("s")
    finally:
        await store.aclose()


async def memory(path: Path) -> None:
    store = SQLiteMemoryStore(path)
    try:
        await store.add("A thing to remember.")
    finally:
        await store.aclose()


async def queue(path: Path) -> None:
    opened = SQLiteQueue(path)
    try:
        await opened.send(TurnJob(agent="a", session_id="s", prompt="hello", token="t"))
    finally:
        await opened.aclose()


async def outcome(write: Callable[[Path], Awaitable[None]], path: Path) -> str:
    try:
        await write(path)
    except RepertoryError as error:
        return "retryable" if isinstance(error, Retryable) else repr(error)
    return "ok"


async def main(what: str, folder: Path, limits: list[int]) -> None:
    write = {"sessions": sessions, "memory": memory, "queue": queue}[what]
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in limits:
        path = folder / f"{what} {limit}.db"
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        full = await outcome(write, path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        print(limit, full, await outcome(write, path), sep="|", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    anyio.run(main, sys.argv[1], Path(sys.argv[2]), [int(limit) for limit in sys.argv[3:]])
