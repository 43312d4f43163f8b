"""An MCP server as a source of tools: a process with pipes, or a service over HTTP.

The first connection loads the `mcp` package in a worker thread, which takes up to a second; nothing loads it before.
The package runs on anyio, so all of this works on asyncio and on trio.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

import anyio

from repertory.backends.worker_threads import run_in_thread
from repertory.core.tools import exception_text
from repertory.errors import Invalid, RepertoryError, Unavailable
from repertory.mcp.choice import Introduction, ToolChoice

if TYPE_CHECKING:
    from repertory.backends.tool_ports import OfferedTool, ToolConnection
    from repertory.mcp.connection import MCPConnection
    from repertory.mcp.wire import WireBound

TransportFactory: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""Makes a transport of the `mcp` package, or one like it: on entry, it returns a stream to read and one to write."""


_LAUNCHERS = re.compile(r"(python[\d.]*|node|npx|uvx|tsx|bunx)(\.exe)?")
_BEFORE_A_NAME = ("-m", "-u", "-y", "--yes")


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioServer:
    """A server that runs as a process and communicates over its pipes. Its stderr is shown."""

    command: str
    args: Sequence[str] = field(default=(), repr=False)
    """The program's arguments, any of which may be a secret."""
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """Variables that override the few harmless ones that the `mcp` package lets through (`PATH`, `HOME`, ...)."""
    cwd: str | Path | None = None

    @property
    def name(self) -> str:
        """The command, or the script, module or package that a known launcher runs. No other argument is shown."""
        runs = next((argument for argument in self.args if argument not in _BEFORE_A_NAME), "-")
        named = _LAUNCHERS.fullmatch(PurePath(self.command).name) and not runs.startswith("-")
        return PurePath(runs if named else self.command).name.removesuffix(".py").removesuffix(".js") or self.command

    check = "check the command, its arguments, and what it prints to stderr"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HTTPServer:
    """A server over streamable HTTP."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    auth: object = None
    """The signer of each request: an `Auth` of httpx2, or `ClientCredentials`."""

    def __repr__(self) -> str:
        """Only the host of the address, and no headers: both may hold secrets."""
        return f"HTTPServer(name={self.name!r})"

    @property
    def name(self) -> str:
        """The host of the address."""
        return urlsplit(self.url).netloc.rpartition("@")[2] or self.url

    check = "check the address, the headers, and whether the server runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """A program's credentials for a token by OAuth's client credentials grant."""

    client_id: str
    client_secret: str = field(repr=False)
    issuer: str
    """The authorization server that gave them, the only one that gets them."""
    scopes: Sequence[str] = ()


ToolsChanged: TypeAlias = "Callable[[list[str], list[OfferedTool]], object]"
"""The function that is called when a server's tools have changed, with the names before, and the tools now."""


class MCPSource:
    """A `ToolSource` that connects to an MCP server."""

    def __init__(
        self,
        server: StdioServer | HTTPServer | TransportFactory,
        choice: ToolChoice | None = None,
        *,
        name: str | None = None,
        startup_timeout_s: float = 30.0,
        introduction: Introduction | None = None,
    ) -> None:
        """`ImportError` names the extra to install when `mcp` is missing. Errors: `Invalid`, `TypeError`."""
        if find_spec("mcp") is None:
            msg = "MCPClient needs mcp: pip install repertory[mcp]"
            raise ImportError(msg)
        if not isinstance(server, StdioServer | HTTPServer) and not callable(server):
            msg = f"MCPClient takes a function that returns a transport (lambda: stdio_client(...)), not {server!r}"
            raise TypeError(msg)
        if not startup_timeout_s > 0:
            raise Invalid("startup_timeout_s is a positive number of seconds", startup_timeout_s=startup_timeout_s)
        self._server = server
        self._choice = choice or ToolChoice()
        self._name = name or getattr(server, "name", None) or "mcp"
        self._startup_timeout_s = startup_timeout_s
        self._introduction = introduction or Introduction()
        self.instructions: str | None = None
        """The server's latest instructions for the use of its tools; None without any."""

    @property
    def name(self) -> str:
        """The server's name in messages."""
        return self._name

    @asynccontextmanager
    async def connect(
        self, listener: Callable[[], ToolsChanged | None] = lambda: None
    ) -> AsyncGenerator[ToolConnection]:
        """Connect, shake hands and stay connected for the length of the block. `listener` gives what is told of changed
        tools, when they have changed.

        Errors, on entering: `Unavailable` with what to check, after `startup_timeout_s` at most; a process that then
        does not end by itself takes some seconds more. While the block runs, the connection's own methods raise its
        end; a transport that fails cancels the block and raises `Unavailable` instead. The block's own exceptions pass
        through.
        """
        scope = anyio.CancelScope(deadline=anyio.current_time() + self._startup_timeout_s)
        raised: list[Exception] = []
        wire: WireBound | None = None
        try:
            with scope:
                await run_in_thread(_load)
                from repertory.mcp.wire import WireBound  # with the mcp package, which has been loaded now

                wire = WireBound(self._name)
                async with await self._open(wire) as connection:
                    self.instructions = connection.instructions
                    # The bound was for the handshake: the connection may stay for days.
                    scope.deadline = math.inf
                    try:
                        yield _ChangeReporter(connection, listener)
                    except Exception as error:
                        raised.append(error)
                        raise
        except Exception as error:
            if raised:
                raise raised[0]  # noqa: B904 - The block's own error goes on as it was, out of the groups around it.
            raise self._outcome(error, scope, wire and wire.broken) from error
        if scope.cancelled_caught:
            raise self._late()

    async def _open(self, wire: WireBound) -> AbstractAsyncContextManager[MCPConnection]:
        from repertory.mcp.connection import open_connection

        transport = await _transport(self._server, wire)
        return open_connection(transport, wire, self._choice, self._startup_timeout_s, self._introduction)

    def _outcome(self, error: Exception, scope: anyio.CancelScope, broken: str | None) -> RepertoryError:
        """Our error for an error of the transport or the package; `broken`: what the server sent before it."""
        if scope.cancel_called:
            return self._late()
        if isinstance(error, RepertoryError):
            return error
        why = broken or exception_text(error).removeprefix("Error: ")
        if scope.deadline == math.inf:
            return Unavailable(f"the connection to the tool server broke: {why}", server=self._name)
        return self._unavailable(why)

    def _late(self) -> Unavailable:
        return self._unavailable(f"it did not answer within {self._startup_timeout_s:g} s")

    def _unavailable(self, why: str) -> Unavailable:
        check = getattr(self._server, "check", "check its transport")
        return Unavailable(f"the tool server cannot be reached: {why}; {check}", server=self._name)


class _ChangeReporter:
    """A connection that tells of changed tools."""

    def __init__(self, connection: ToolConnection, listener: Callable[[], ToolsChanged | None]) -> None:
        self.call = connection.call
        self.query = connection.query
        self.changed = connection.changed
        self._connection = connection
        self._listener = listener
        self._before: Sequence[OfferedTool] | None = None

    async def tools(self) -> Sequence[OfferedTool]:
        before, now = self._before, await self._connection.tools()
        self._before = now
        listener = self._listener()
        if listener is not None and before is not None and before != now:
            listener([tool.spec["name"] for tool in before], list(now))
        return now


def _load() -> None:
    """Load the package, and what the first check of an answer needs. Blocks."""
    from repertory.mcp import connection, transports

    assert connection
    assert transports
    import_module("mcp.client.sse")  # what such transports are made by
    import_module("jsonschema.validators")


def _auth(server: HTTPServer) -> Any:
    if not isinstance(server.auth, ClientCredentials):
        return server.auth
    from repertory.mcp.oauth import IssuedToken

    given = server.auth
    return IssuedToken(server.url, given.client_id, given.client_secret, given.scopes, given.issuer)


async def _transport(
    server: StdioServer | HTTPServer | TransportFactory, wire: WireBound
) -> AbstractAsyncContextManager[Any]:
    """A transport, not entered yet, with the size limit unless it is the user's own."""
    from mcp.client.stdio import StdioServerParameters

    from repertory.mcp.transports import bounded, http, stdio

    if isinstance(server, StdioServer):
        env = None if server.env is None else dict(server.env)
        parameters = StdioServerParameters(command=server.command, args=[*server.args], env=env, cwd=server.cwd)
        return stdio(parameters, wire)
    if isinstance(server, HTTPServer):
        return await http(server.url, server.headers, wire, _auth(server))
    return await bounded(server(), wire)
