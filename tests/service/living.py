"""What lives in this process, for tests that nothing outlives what they end."""

import asyncio
import os
import threading
from typing import NamedTuple, Self

import anyio
import trio

_WORKERS = ("Trio thread", "AnyIO worker thread")


class Living(NamedTuple):
    """How many tasks of the running loop, threads and open files there are. Workers that wait for work of any loop do
    not count: how many there are depends on how much was done at the same time.
    """

    tasks: int
    threads: int
    files: int

    @classmethod
    def now(cls) -> Self:
        """Count them (in Linux's ``/proc``)."""
        tasks = (
            trio.lowlevel.current_statistics().tasks_living if trio.lowlevel.in_trio_run() else len(asyncio.all_tasks())
        )
        threads = [each for each in threading.enumerate() if not each.name.startswith(_WORKERS)]
        return cls(tasks, len(threads), len(os.listdir("/proc/self/fd")))

    def has_not_grown_since(self, before: Self) -> bool:
        """Whether nothing was added. Less is no fault: the threads of an earlier test's loop end just after it."""
        return all(now <= then for now, then in zip(self, before, strict=True))

    async def comes_again(self) -> bool:
        """Whether there is no more than this some moment within half a minute: actors rest a moment after a turn."""
        with anyio.move_on_after(30):
            while not Living.now().has_not_grown_since(self):  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.05)
            return True
        return False
