"""A tool by which the model connects to MCP servers when it needs them, out of those that the program allows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

import anyio

from repertory.backends.ports import ToolContext
from repertory.backends.tools.decorator import tool
from repertory.backends.tools.function_tool import FunctionTool
from repertory.errors import Invalid, RepertoryError
from repertory.mcp.client import MCPClient

CONNECTIONS_MAX = 10
"""The most connections of one agent at the same time, unless a program sets another number."""
MCP_ROUTER_DESCRIPTION = (
    "Use the tools of MCP servers, which are connected when you need them. connect opens a connection, under a "
    "connection_id of your choice, to the server server_name; list_tools says what it can do, with the input of each "
    "tool; call_tool runs tool_name with arguments; disconnect ends it; list_connections names those that are open."
)


def make_mcp_router(
    *,
    servers: Mapping[str, Mapping[str, Any]],
    name: str = "mcp_router",
    description: str | None = None,
    max_connections: int = CONNECTIONS_MAX,
) -> FunctionTool[Any]:
    """The tool `mcp_router(command, ...)`. `servers`: by name, `{"url": ..., "headers": ...}` or `{"command": ...,
    "args": ..., "env": ..., "cwd": ...}`; the model may connect to these alone. `max_connections`: of one agent.

    A server is started by the first connection to it, shared by all agents with this tool, supervised as that of an
    `MCPClient`, and stopped with the last connection, with its `Runtime` or with the event loop. Connections are in
    memory: after a restart, or when its session was released meanwhile, the model connects again.

    Errors: `Invalid` for no servers, for a server without `url` and `command`, and for a limit below one.
    """
    if not servers:
        raise Invalid("servers must not be empty")
    if type(max_connections) is not int or max_connections < 1:
        raise Invalid("max_connections must be a positive integer", got=max_connections)
    router = _Router({key: _client(key, settings) for key, settings in servers.items()}, max_connections)

    @tool(name=name, description=description or f"{MCP_ROUTER_DESCRIPTION} The servers are: {', '.join(servers)}.")
    async def routing(
        command: Literal["connect", "list_connections", "list_tools", "call_tool", "disconnect"],
        tool_context: ToolContext,
        connection_id: str | None = None,
        server_name: str | None = None,
        tool_name: str | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> Any:
        """Use MCP servers.

        Args:
            command: What to do.
            connection_id: Your name for the connection; for all but list_connections.
            server_name: The server, for connect.
            tool_name: The tool of the server, for call_tool.
            arguments: The input of that tool.
        """
        open_now = router.connections(tool_context.agent)
        if command == "list_connections":
            return ", ".join(sorted(open_now))
        if not connection_id:
            raise Invalid(f"connection_id is required for {command}")
        if command == "connect":
            return await router.connect(open_now, connection_id, server_name)
        if connection_id not in open_now:
            raise Invalid(f"No active connection {connection_id!r}: connect first", there_are=sorted(open_now))
        if command == "disconnect":
            await router.disconnect(open_now, connection_id)
            return "Successfully disconnected"
        client = router.clients[open_now[connection_id]]
        if command == "list_tools":
            return [served.spec for served in await client.list_tools()]
        if not tool_name:
            raise Invalid("tool_name is required for call_tool")
        return await client.call_tool_async(
            tool_context.tool_use["toolUseId"], tool_name, cast("dict[str, Any]", arguments)
        )

    return routing


class _Router:
    """The connections of all agents, each the name of its server by the model's name for it."""

    def __init__(self, clients: Mapping[str, MCPClient], connections_max: int) -> None:
        self.clients = clients
        self._connections_max = connections_max
        # Weak: an agent that is gone has no connections, and nobody tells of its going.
        self._open: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()
        self._locks = {server: anyio.Lock() for server in clients}
        """The lock of each server: an agent that waits for one that does not answer holds up nobody at the others."""

    def connections(self, agent: Any) -> dict[str, str]:
        return self._open.setdefault(agent, {})

    async def connect(self, open_now: dict[str, str], key: str, server: str | None) -> str:
        if not server:
            raise Invalid("server_name is required for connect")
        if server not in self.clients:
            raise Invalid(f"{server!r} is not on the MCP server allowlist", there_are=sorted(self.clients))
        async with self._locks[server]:
            if key in open_now:
                raise Invalid(f"A connection {key!r} already exists: disconnect it, or choose another name")
            if len(open_now) >= self._connections_max:
                raise Invalid(
                    f"Connection limit of {self._connections_max} reached: disconnect one", there_are=sorted(open_now)
                )
            begins = not self._is_used(server)
            # Before the first await, so that another call of this agent sees the name as taken, and the limit holds.
            open_now[key] = server
            try:
                if begins:
                    # Agents that are gone have disconnected from nothing.
                    with suppress(RepertoryError):
                        await self.clients[server].__aexit__()
                    await self.clients[server].__aenter__()
            except BaseException:
                open_now.pop(key, None)
                raise
        return f"Connected to {server!r} as {key!r}"

    async def disconnect(self, open_now: dict[str, str], key: str) -> None:
        server = open_now.pop(key)
        async with self._locks[server]:
            if not self._is_used(server):
                await self.clients[server].__aexit__()

    def _is_used(self, server: str) -> bool:
        return server in chain.from_iterable(each.values() for each in self._open.values())


def _client(name: str, settings: Mapping[str, Any]) -> MCPClient:
    given = dict(settings)
    given.pop("transport", None)
    if "command" in given:
        return MCPClient.stdio(given["command"], given.get("args", ()), env=given.get("env"), cwd=given.get("cwd"))
    if "url" in given:
        return MCPClient.http(given["url"], headers=given.get("headers"))
    raise Invalid("an MCP server has a url or a command", server=name)
