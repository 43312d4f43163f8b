"""The transports of the `mcp` package, with a bound to what a server may send at once (`wire.py`).

Users may hand in a function that makes one of the package's transports, as its own documentation spells it. Such a
transport is recognised by the function that made it, and made anew with the same arguments. One that is of no known
make stays as it is, and is bounded by its maker only.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from inspect import signature, unwrap
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from httpx2 import AsyncClient, Auth, Timeout
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from repertory.backends.tools.mcp.stdio import stdio_transport
from repertory.backends.tools.mcp.wire import bound_client

if TYPE_CHECKING:
    from repertory.backends.tools.mcp.wire import WireBound

CONNECT_TIMEOUT_S = 30.0
"""How long connecting, sending and waiting for a free connection may each take over HTTP."""
READ_TIMEOUT_S = 300.0
"""How long the package lets an answer over HTTP be silent, unless it is given a client."""
_MAKERS = (unwrap(stdio_client), unwrap(sse_client), unwrap(streamable_http_client))
_make_sse: Callable[..., AbstractAsyncContextManager[Any]] = sse_client
_make_streamable: Callable[..., AbstractAsyncContextManager[Any]] = streamable_http_client


def stdio(parameters: StdioServerParameters, wire: WireBound, errlog: Any = None) -> AbstractAsyncContextManager[Any]:
    """A process; `errlog`: an open file for what it prints to stderr."""
    if sys.platform == "win32":
        return stdio_client(parameters)
    return stdio_transport(parameters, wire, errlog)


async def http(url: str, headers: Mapping[str, str], wire: WireBound) -> AbstractAsyncContextManager[Any]:
    """A service over streamable HTTP, whose answers may take any time: calls have limits of their own."""
    return _http(await _client(headers, read_timeout_s=None), wire, {"url": url})


async def bounded(transport: AbstractAsyncContextManager[Any], wire: WireBound) -> AbstractAsyncContextManager[Any]:
    """The same transport with the bound, if the package has made it."""
    maker: Callable[..., Any] | None = getattr(transport, "func", None)
    if maker is None or maker not in _MAKERS:
        return transport
    given = signature(maker).bind(*getattr(transport, "args", ()), **getattr(transport, "kwds", {})).arguments
    if maker is _MAKERS[0]:
        # In other encodings a line may end in other bytes.
        utf8 = given["server"].encoding.lower() in ("utf-8", "utf8")
        return stdio(given["server"], wire, given.get("errlog")) if utf8 else transport
    if maker is _MAKERS[1]:
        make = given.get("httpx_client_factory") or signature(maker).parameters["httpx_client_factory"].default

        def bound_make(
            headers: dict[str, str] | None = None, timeout: Timeout | None = None, auth: Auth | None = None
        ) -> AsyncClient:
            return bound_client(make(headers=headers, timeout=timeout, auth=auth), wire)

        return _make_sse(**{**given, "httpx_client_factory": bound_make})
    if given.get("http_client") is not None:
        return _streamable(bound_client(given["http_client"], wire), given)
    return _http(await _client({}, READ_TIMEOUT_S), wire, given)


@asynccontextmanager
async def _http(client: AsyncClient, wire: WireBound, given: Mapping[str, Any]) -> AsyncGenerator[Any]:
    """With a client that lives as long as the transport."""
    async with client, _streamable(bound_client(client, wire), given) as streams:
        yield streams


def _streamable(client: AsyncClient, given: Mapping[str, Any]) -> AbstractAsyncContextManager[Any]:
    """The package's own bound to events is taken away, where it has one: it is below that of a result."""
    unbound = {"max_sse_event_size": None} if "max_sse_event_size" in signature(_MAKERS[2]).parameters else {}
    return _make_streamable(**{**unbound, **given, "http_client": client})


async def _client(headers: Mapping[str, str], read_timeout_s: float | None) -> AsyncClient:
    """In a thread, since reading the certificates of the system takes some time."""
    timeout = Timeout(CONNECT_TIMEOUT_S, read=read_timeout_s)
    return await anyio.to_thread.run_sync(lambda: AsyncClient(headers=dict(headers), timeout=timeout))
