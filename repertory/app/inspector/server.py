"""Serving the pages by a server of their own, on asyncio and on trio."""

from __future__ import annotations

import logging
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import anyio
from anyio.lowlevel import current_token

try:
    from hypercorn.config import Config
except ImportError as error:
    message = f"the inspector's own server needs hypercorn ({error}): pip install 'repertory[inspect]'"
    raise ImportError(message, name=error.name) from error

from repertory.app.inspector.guard import is_loopback
from repertory.app.inspector.inspector import Inspector
from repertory.backends.worker_threads import run_in_thread
from repertory.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from repertory.app.host.runtime import Runtime
    from repertory.app.sessions.sessions import SessionPlace

_LOG = logging.getLogger("repertory.app")
_GRACE_S = 2.0
"""How long requests in flight may take when the server stops; live updates end at once."""


async def serve_runtime(
    runtime: Runtime, address: str, options: Mapping[str, Any], task_status: TaskStatus[str]
) -> None:
    """See `Runtime.serve_inspector`."""
    check_reach(address, options.get("token"))
    inspector = Inspector(runtime, **options)
    try:
        await _serve(inspector, address, runtime.drained.wait, task_status.started)
    finally:
        with anyio.CancelScope(shield=True):
            await inspector.aclose()


async def serve_place(
    place: SessionPlace,
    address: str,
    say: Callable[[str], None],
    *,
    allow_changes: bool = False,
    content: bool = True,
    token: str | None = None,
    hosts: Collection[str] = (),
    until: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """Serve the pages of what is stored at a place until SIGINT or SIGTERM, or until `until` returns.

    `say` is told the URL, and the token that was made where one is needed and none was given. Errors: as
    `Runtime.serve_inspector`.
    """
    host, _ = split_address(address)
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
        say(f"The token: {token}")
    inspector = Inspector(place, allow_changes=allow_changes, content=content, token=token, hosts=hosts)
    try:
        await _serve(inspector, address, until or _signalled, say)
    finally:
        with anyio.CancelScope(shield=True):
            await inspector.aclose()


async def _signalled() -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return


def split_address(address: str) -> tuple[str, int]:
    """The host and the port of `HOST:PORT`, `[HOST]:PORT` or `:PORT`. Errors: `Invalid`."""
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) < 2**16):
        raise Invalid("an address is HOST:PORT, such as 127.0.0.1:8400", got=address)
    return host.strip("[]") or "127.0.0.1", int(port)


def check_reach(address: str, token: str | None) -> None:
    """Return if only this machine reaches the address, or there is a secret. Errors: `Invalid`."""
    host, _ = split_address(address)
    if token is None and not is_loopback(host):
        raise Invalid("other machines reach this address: give the inspector a token", address=address)


async def _serve(
    inspector: Inspector, address: str, until: Callable[[], Awaitable[object]], started: Callable[[str], None]
) -> None:
    """Serve until `until` returns, or until cancelled. The server itself is not cancelled, since its own end leaves no
    request and no socket behind: it is told to end, and is waited for.
    """
    listening = await run_in_thread(lambda: _listening(address))
    name = listening.getsockname()
    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.accesslog, config.errorlog = None, _LOG
    config.graceful_timeout = _GRACE_S
    config.include_server_header = False
    backend = "trio" if current_token().backend_class.__module__.endswith("_trio") else "asyncio"
    loaded = await run_in_thread(lambda: import_module(f"hypercorn.{backend}"))
    serve = cast("Callable[..., Awaitable[None]]", loaded.serve)
    stop = anyio.Event()
    async with anyio.create_task_group() as group:

        async def run() -> None:
            with anyio.CancelScope(shield=True):
                await serve(inspector, config, shutdown_trigger=stop.wait)
            group.cancel_scope.cancel()

        group.start_soon(run, name="inspector server")
        try:
            host = f"[{name[0]}]" if ":" in name[0] else name[0]
            started(f"http://{host}:{name[1]}/")
            await until()
        finally:
            inspector.feed.close()
            stop.set()


def _listening(address: str) -> socket.socket:
    """A socket that listens there. Errors: `Unavailable` when the address is taken, or is not this machine's."""
    host, port = split_address(address)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((host, port))
            found.listen(64)
        except BaseException:
            found.close()
            raise
    except OSError as error:
        raise Unavailable("the inspector cannot listen there", address=address, cause=str(error)) from error
    return found
