"""What lives in this process, for tests that nothing outlives what they end."""

import asyncio
import os
import threading
from typing import NamedTuple, Self

import trio


class Living(NamedTuple):
    """How many tasks of the running loop, threads and open files there are."""

    tasks: int
    threads: int
    files: int

    @classmethod
    def now(cls) -> Self:
        """Count them (in Linux's ``/proc``)."""
        tasks = (
            trio.lowlevel.current_statistics().tasks_living if trio.lowlevel.in_trio_run() else len(asyncio.all_tasks())
        )
        return cls(tasks, threading.active_count(), len(os.listdir("/proc/self/fd")))

    def has_not_grown_since(self, before: Self) -> bool:
        """Whether nothing was added. Less is no fault: the threads of an earlier test's loop end just after it."""
        return all(now <= then for now, then in zip(self, before, strict=True))
