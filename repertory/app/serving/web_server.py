"""A web server in this process, on asyncio and on trio: Hypercorn, told by us when to begin and when to end."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import cast

import anyio
from anyio.lowlevel import current_token

try:
    from hypercorn.config import Config
    from hypercorn.logging import Logger
except ImportError as error:
    message = f"the server needs hypercorn ({error}): pip install 'repertory[serve]', or 'repertory[inspect]'"
    raise ImportError(message, name=error.name) from error

from repertory.app.serving.listening import BACKLOG
from repertory.backends.worker_threads import run_in_thread

_LOG = logging.getLogger("repertory.app")
_LAST_S = 1.0
"""How long the server may take to close what is left when its time is up."""


class _Failures(Logger):
    """What the server logs, without what it tells of its own beginning: whoever serves says that."""

    async def info(self, message: str, *args: object, **fields: object) -> None:
        del message, args, fields


async def serve_web(
    app: object,
    listening: socket.socket,
    *,
    until: Callable[[], Awaitable[object]],
    started: Callable[[], object] = lambda: None,
    ending: Callable[[], object] = lambda: None,
    grace_s: float,
) -> None:
    """Serve an ASGI application on a socket until `until` returns, or until cancelled.

    `started` is called when requests are taken. At the end no more connections are taken, `ending` is called, idle
    connections are closed, and requests in flight have `grace_s` to be answered. The socket is closed then. The server
    is not cancelled, since its own end leaves no request and no socket behind: it is told to end, and is waited for.
    """
    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.accesslog, config.errorlog = None, _LOG
    config.graceful_timeout = grace_s
    config.logger_class = _Failures
    config.backlog = BACKLOG
    config.include_server_header = False
    backend = "trio" if current_token().backend_class.__module__.endswith("_trio") else "asyncio"
    loaded = await run_in_thread(lambda: import_module(f"hypercorn.{backend}"))
    serve = cast("Callable[..., Awaitable[None]]", loaded.serve)
    stop, shield = anyio.Event(), anyio.CancelScope(shield=True)
    async with anyio.create_task_group() as group:

        async def run() -> None:
            with shield:
                await serve(app, config, shutdown_trigger=stop.wait)
            group.cancel_scope.cancel()

        group.start_soon(run, name="web server")
        try:
            started()
            await until()
        finally:
            ending()
            stop.set()
            shield.deadline = anyio.current_time() + grace_s + _LAST_S
