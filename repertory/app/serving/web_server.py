"""A web server in this process, on asyncio and on trio: Hypercorn, told by us when to begin and when to end."""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import anyio
from anyio.lowlevel import current_token

try:
    from hypercorn.config import Config
except ImportError as error:
    message = f"the server needs hypercorn ({error}): pip install 'repertory[serve]', or 'repertory[inspect]'"
    raise ImportError(message, name=error.name) from error

from repertory.backends.worker_threads import run_in_thread
from repertory.errors import Invalid, Unavailable

_LOG = logging.getLogger("repertory.app")
_BACKLOG = 1024
"""Connections that wait to be taken while the process is busy, or is being replaced."""
_LAST_S = 1.0
"""How long the server may take to close what is left when its time is up."""


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
    config.backlog = _BACKLOG
    config.include_server_header = False
    backend = "trio" if current_token().backend_class.__module__.endswith("_trio") else "asyncio"
    loaded = await run_in_thread(lambda: import_module(f"hypercorn.{backend}"))
    serve = cast("Callable[..., Awaitable[None]]", loaded.serve)
    stop = anyio.Event()
    async with anyio.create_task_group() as group:

        async def run() -> None:
            with anyio.CancelScope(shield=True):
                await serve(app, config, shutdown_trigger=stop.wait)
            group.cancel_scope.cancel()

        group.start_soon(run, name="web server")
        try:
            started()
            await until()
        finally:
            ending()
            stop.set()


def split_address(address: str) -> tuple[str, int]:
    """The host and the port of `HOST:PORT`, `[HOST]:PORT` or `:PORT`. Errors: `Invalid`."""
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) < 2**16):
        raise Invalid("an address is HOST:PORT, such as 127.0.0.1:8400", got=address)
    return host.strip("[]") or "127.0.0.1", int(port)


def listen_at(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes any. Errors: `Unavailable` when the address is taken, or is not this
    machine's.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return _bound(socket.socket(family, socket.SOCK_STREAM), (host, port))
    except OSError as error:
        raise Unavailable("the server cannot listen there", address=address, cause=str(error)) from error


def listen_at_path(path: Path) -> socket.socket:
    """A Unix socket for this user alone. What a process that was killed has left there is replaced. Errors:
    `Unavailable` when somebody answers there, or the path cannot be used.
    """
    try:
        if _is_left_over(path):
            path.unlink()
        mask = os.umask(0o177)
        try:
            return _bound(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), str(path))
        finally:
            os.umask(mask)
    except OSError as error:
        raise Unavailable("the server cannot listen there", address=str(path), cause=str(error)) from error


def _is_left_over(path: Path) -> bool:
    """True for a socket that nobody listens at."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(str(path))
    except ConnectionRefusedError:
        return True
    except FileNotFoundError:
        return False
    return False


def _bound(made: socket.socket, address: Any) -> socket.socket:
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def url_of(listening: socket.socket) -> str:
    """Where the socket is reached: a URL, or `unix:` and a path."""
    name: Any = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}/"
