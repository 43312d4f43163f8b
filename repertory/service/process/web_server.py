"""A web server in this process, on asyncio and on trio: it is told when to begin and when to end."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
from anyio.abc import SocketListener, SocketStream, TaskGroup

from repertory.cluster.wire.addresses import steady_stream
from repertory.errors import Failed
from repertory.logs import DEBUG, ERROR, WARNING, note
from repertory.service.process.http_connection import BROKEN, WebApp, WebConnection, WebLimits, WebServer
from repertory.service.process.listening import connections_max

_LOG = logging.getLogger("repertory.app")
LIMITS = WebLimits()
_LAST_S = 1.0
"""The seconds in which a body that is under way at the end may still come whole, or else is refused with 503; and those
after the grace in which cancelled applications may still answer. Then connections are closed.
"""
_ACCEPT_AGAIN_S = 0.1
_LOG_S = 10.0
"""The seconds for which one line stands for a kind of failure, so that strangers do not fill the log."""


async def serve_web(
    app: WebApp,
    listening: socket.socket,
    *,
    until: Callable[[], Awaitable[object]],
    started: Callable[[], object] = lambda: None,
    ending: Callable[[], object] = lambda: None,
    grace_s: float,
    limits: WebLimits = LIMITS,
) -> None:
    """Serve an ASGI application on a socket until `until` returns, or until cancelled.

    `started` is called when requests are taken. At the end no more connections are taken, `ending` is called, idle
    connections are closed, requests of which a body still comes get 503, and those in flight have `grace_s` to be
    answered, also after a cancellation. Then their
    applications are cancelled, and no client holds up the end any more, whatever it reads or does not. The socket is
    closed then. The application has no lifespan: whoever serves has begun what it needs.
    """
    listener = await SocketListener.from_socket(listening)
    server = _Listening(app, limits)
    async with anyio.create_task_group() as group:
        await group.start(server.run, listener)
        try:
            started()
            await until()
        finally:
            server.end(grace_s)
            ending()


class _Listening:
    """The connections that are open."""

    def __init__(self, app: WebApp, limits: WebLimits) -> None:
        self._app = app
        self._limits = limits
        self._open: set[WebConnection] = set()
        self._room = anyio.Semaphore(limits.connections_max or connections_max(), fast_acquire=True)
        self._accepting = anyio.CancelScope()
        self._logged: dict[str, float] = {}
        self._server: WebServer
        self._connections: TaskGroup
        self._requests: TaskGroup

    async def run(self, listener: SocketListener, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.CancelScope(shield=True):
            # Two groups with an end each: a request goes on when its connection ends, and may answer before connections
            # are closed.
            async with anyio.create_task_group() as self._connections, anyio.create_task_group() as requests:
                self._requests = requests
                self._server = WebServer(self._app, self._limits, self._start)
                task_status.started()
                async with listener:
                    with self._accepting:
                        await self._accept(listener)

    def end(self, grace_s: float) -> None:
        """Take no more, and be over in time."""
        self._server.ending = True
        self._accepting.cancel()
        self._server.bodies_until = anyio.current_time() + _LAST_S
        for connection in self._open:
            if connection.idle is not None:
                connection.idle.cancel()
            if connection.body is not None:
                connection.body.deadline = self._server.bodies_until
        # Applications first, so that they can still answer; connections a second later.
        self._requests.cancel_scope.deadline = anyio.current_time() + grace_s
        self._connections.cancel_scope.deadline = anyio.current_time() + grace_s + _LAST_S

    async def _accept(self, listener: SocketListener) -> None:
        while True:
            await self._room.acquire()  # Those for whom there is none wait in the backlog.
            try:
                stream = await listener.accept()
            except (OSError, anyio.BrokenResourceError) as error:  # Out of descriptors, or it has gone already.
                self._room.release()
                self._log(WARNING, "a connection could not be taken", error.__cause__ or error)
                await anyio.sleep(_ACCEPT_AGAIN_S)
            else:
                self._connections.start_soon(self._serve, stream)

    async def _serve(self, stream: SocketStream) -> None:
        connection: WebConnection | None = None
        try:
            stream = await steady_stream(stream)
            connection = WebConnection(self._server, stream)
            self._open.add(connection)
            await self._alone("a connection failed", connection.run)
        except BROKEN as error:
            note(_LOG, DEBUG, "a connection broke off", error)
        finally:
            if connection is not None:
                self._open.discard(connection)
            try:
                with anyio.CancelScope(shield=True):
                    await (stream.aclose() if connection is None else connection.close())
            finally:
                self._room.release()

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._requests.start_soon(self._alone, "an application failed", work)

    async def _alone(self, failure: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work; whatever it raises ends nothing else."""
        try:
            await _named(work)
        except Failed as error:
            self._log(ERROR, failure, error.__cause__ or error)

    def _log(self, level: int, text: str, error: BaseException) -> None:
        now = anyio.current_time()
        recent = now - self._logged.get(text, -math.inf) < _LOG_S
        if not recent:
            self._logged[text] = now
        note(_LOG, DEBUG if recent else level, text, error)


async def _named(work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except Exception as error:
        raise Failed("an application, or what serves it, failed") from error
