"""Background work of one incarnation: tasks that are cancelled and joined before the actor stops.

They run in the system's task group, so an actor without jobs costs nothing and one with jobs costs one task each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeAlias

import anyio

from repertory.errors import StreamClosed
from repertory.runtime.call_context import ORIGIN, CallContext, Waits

JobWork: TypeAlias = Callable[[], Awaitable[object]]
Spawn: TypeAlias = Callable[[Coroutine[object, object, None], str], anyio.TaskHandle[None]]
Attempt: TypeAlias = Callable[[JobWork], Awaitable[Exception | None]]
"""Runs work to its end; the exception that it raised, or None. A cancellation is not raised: the task ends with it."""


class Job:
    """A background task of an actor."""

    __slots__ = ("_handle", "finish", "name")

    def __init__(self, name: str, *, finish: bool = False) -> None:
        self.name = name
        self.finish = finish
        self._handle: anyio.TaskHandle[None] | None = None

    def attach(self, handle: anyio.TaskHandle[None]) -> None:
        """The runtime's own: set the job's task."""
        self._handle = handle

    @property
    def done(self) -> bool:
        """True if it has ended, with or without an error."""
        status = anyio.TaskHandle.Status
        return self._handle is not None and self._handle.status not in {status.PENDING, status.CANCELLING}

    def cancel(self) -> None:
        """Cancel it; it has ended when `wait` returns. Allowed more than once."""
        if self._handle is not None:
            self._handle.cancel()

    async def wait(self) -> None:
        if self._handle is not None:
            await self._handle.wait()


class Jobs:
    """The jobs of one incarnation."""

    __slots__ = ("_attempt", "_on_failure", "_owner", "_running", "_spawn")

    def __init__(self, owner: Waits, spawn: Spawn, attempt: Attempt, on_failure: Callable[[Exception], None]) -> None:
        self._owner = owner
        self._spawn = spawn
        self._attempt = attempt
        self._on_failure = on_failure
        self._running: set[Job] = set()

    def __len__(self) -> int:
        return len(self._running)

    def names(self) -> tuple[str, ...]:
        """Names of the running jobs."""
        return tuple(job.name for job in self._running)

    def start(self, work: JobWork, name: str, *, finish: bool = False) -> Job:
        """Run `work` beside the actor's turns. An exception in it goes to `on_failure`; `StreamClosed` just ends it."""
        job = Job(name, finish=finish)
        self._running.add(job)
        job.attach(self._spawn(self._run(job, work, ORIGIN.get().trace), f"{self._owner.path}#{name}"))
        return job

    def to_finish(self) -> Job | None:
        """A job that an orderly stop must wait for; None if none is left."""
        return next((job for job in self._running if job.finish and not job.done), None)

    async def close(self) -> None:
        """Cancel all and wait until they have ended."""
        for job in tuple(self._running):
            job.cancel()
        for job in tuple(self._running):
            await job.wait()

    async def _run(self, job: Job, work: JobWork, trace: object) -> None:
        ORIGIN.set(CallContext(self._owner, None, trace))
        try:
            error = await self._attempt(work)
        finally:
            self._running.discard(job)
        if error is not None and not isinstance(error, StreamClosed):  # The reader has left: no failure.
            self._on_failure(error)
