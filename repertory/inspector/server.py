"""Serving the pages by a server of their own, on asyncio and on trio."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio

from repertory.backends.worker_threads import run_in_thread
from repertory.core.origins import is_loopback
from repertory.errors import Invalid
from repertory.inspector.inspector import Inspector
from repertory.service.process.listening import listen_at, split_address, url_of
from repertory.service.process.web_server import serve_web

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from repertory.app.embedding.runtime import Runtime
    from repertory.app.sessions.sessions import SessionLocation

_GRACE_S = 2.0
"""Seconds that requests in flight may take when the server stops; live updates end at once."""


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


async def serve_location(
    place: SessionLocation, address: str, options: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Serve the pages of what is stored at a place until SIGINT or SIGTERM.

    `options`: those of the `Inspector`. `say` is told the URL, and the token that was made where one is needed and none
    was given. Errors: as `Runtime.serve_inspector`.
    """
    host, _ = split_address(address)
    if options.get("token") is None and not is_loopback(host):
        options = {**options, "token": secrets.token_urlsafe(24)}
        say(f"The token: {options['token']}")
    inspector = Inspector(place, **options)
    try:
        await _serve(inspector, address, _signalled, say)
    finally:
        with anyio.CancelScope(shield=True):
            await inspector.aclose()


async def _signalled() -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return


def check_reach(address: str, token: str | None) -> None:
    """Return if only this machine reaches the address, or there is a secret. Errors: `Invalid`."""
    host, _ = split_address(address)
    if token is None and not is_loopback(host):
        raise Invalid("other machines reach this address: give the inspector a token", address=address)


async def _serve(
    inspector: Inspector, address: str, until: Callable[[], Awaitable[object]], started: Callable[[str], None]
) -> None:
    listening = await run_in_thread(lambda: listen_at(*split_address(address)))
    url = url_of(listening)
    await serve_web(
        inspector,
        listening,
        until=until,
        started=lambda: started(url),
        ending=inspector.feed.close,
        grace_s=_GRACE_S,
    )
