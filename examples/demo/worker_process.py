"""The parent's end of a worker: starts it, asks it, kills it, and notices its end."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
from anyio.abc import Process

from examples.demo.worker import WorkerSettings
from repertory.errors import Failed, Unavailable

START_TIMEOUT_S = 30.0
ROOT = Path(__file__).parents[2]
"""The root of the repository, where the worker is started."""

Heard = Callable[[Mapping[str, Any]], None]
"""Called with each event that is not a reply."""


class WorkerLost(Unavailable):
    """The worker ended before it answered. Only the journal shows how far it got."""


class Refused(Failed):
    """The worker answered with an error; `kind` is the name of its class."""


class WorkerProcess:
    """One worker, from its start to its end. Made by `started`."""

    def __init__(self, process: Process, heard: Heard) -> None:
        self._process = process
        self._heard = heard
        self._ids = itertools.count(1)
        self._replies: dict[int, Mapping[str, Any] | None] = {}
        self._arrived: dict[int, anyio.Event] = {}
        self.ready = anyio.Event()
        self.gone = anyio.Event()
        self.drained: Mapping[str, Any] | None = None
        """The drain's report, once it was sent."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code: negative for a signal; None while it runs."""
        return self._process.returncode

    async def ask(self, do: str, session: str, fields: Mapping[str, object] | None = None) -> Mapping[str, Any]:
        """The worker's reply; `fields` are more fields of the request.

        Errors: `WorkerLost`; `Refused` when the worker answers with an error.
        """
        number = next(self._ids)
        arrived = self._arrived[number] = anyio.Event()
        if self.gone.is_set():
            raise WorkerLost("the worker has ended", pid=self.pid)
        request = {"id": number, "do": do, "session": session, **(fields or {})}
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send(f"{json.dumps(request)}\n".encode())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            await self.gone.wait()  # Its last replies are still to be read; no new worker starts before that.
            raise WorkerLost("the worker has ended", pid=self.pid) from error
        await arrived.wait()
        reply = self._replies.pop(number, None)
        if reply is None:
            raise WorkerLost("the worker ended before it answered", pid=self.pid, do=do)
        if "error" in reply:
            raise Refused(reply["error"], kind=reply["kind"])
        return reply

    def kill(self) -> None:
        """SIGKILL: the worker ends at once."""
        self._process.kill()

    def terminate(self) -> None:
        """SIGTERM: the worker drains and ends."""
        self._process.terminate()

    async def listen(self) -> None:
        """Read the worker's lines until it is gone, then wake all callers that still wait for a reply."""
        assert self._process.stdout is not None
        pending = b""
        async for read in self._process.stdout:
            *lines, pending = (pending + read).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))
        await self._process.wait()
        self.gone.set()
        self.ready.set()
        for arrived in self._arrived.values():
            arrived.set()

    def _hear(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"id": int(number)}:
                self._replies[number] = message
                self._arrived.pop(number).set()
            case {"event": "ready"}:
                self.ready.set()
            case {"event": "drained", "report": report}:
                self.drained = report
            case _:
                self._heard(message)


@asynccontextmanager
async def started(settings: WorkerSettings, heard: Heard, log: Path) -> AsyncGenerator[WorkerProcess]:
    """A worker that is ready, for as long as the block; at its end the process is gone in any case.

    Its error stream is appended to `log`. Errors: `Failed` when it does not start.
    """
    command = [sys.executable, "-m", "examples.demo.worker", *settings.arguments()]
    with log.open("ab") as errors:
        # A session of its own: Ctrl-C goes to the parent only, which then ends the worker.
        process = await anyio.open_process(
            command, stdin=PIPE, stdout=PIPE, stderr=errors, cwd=ROOT, start_new_session=True
        )
    worker = WorkerProcess(process, heard)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.listen)
        try:
            with anyio.move_on_after(START_TIMEOUT_S):
                await worker.ready.wait()
            if worker.gone.is_set() or not worker.ready.is_set():
                raise Failed("the worker did not start", pid=worker.pid, log=str(log))
            yield worker
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    process.kill()
                await worker.gone.wait()
                await process.aclose()
