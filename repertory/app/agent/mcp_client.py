"""`MCPClient`: the tools of a server that speaks the Model Context Protocol.

client = MCPClient.stdio("python", ["server.py"])
agent = Agent(tools=[client])                    # the server lives as long as the agent's session

async with client:                               # or by hand, for as long as the block
    tools = await client.list_tools()
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

import anyio

from repertory.app.host.blocking import blocking_host
from repertory.app.host.host import ambient_host
from repertory.app.host.shared import ToolServers, open_by_hand
from repertory.backends.tools.mcp.choice import ToolChoice, ToolFilters
from repertory.backends.tools.mcp.source import HTTPServer, MCPSource, StdioServer, TransportFactory
from repertory.core.messages import error_result
from repertory.core.tools import exception_text, timeout_text
from repertory.errors import Invalid, NotReady, TooLarge, Unavailable
from repertory.forking import forget_in_children, never_collect
from repertory.runtime.drain import DrainPhase
from repertory.runtime.host_task import HostTask
from repertory.runtime.system import ActorSystem, SystemSettings

if TYPE_CHECKING:
    from mcp_types import GetPromptResult, ListPromptsResult, ListResourcesResult, ReadResourceResult

    from repertory.actors.tool_server import ServedTool, ServerLink
    from repertory.backends.ports import ToolConnection
    from repertory.core.messages import Json, ToolResult, ToolUse

_SETTINGS = SystemSettings(
    phases=(DrainPhase(name="close", timeout_s=20.0, reserve_s=10.0, stops_actors=True),),
    on_fatal=lambda error: None,  # The results of the tools report it.
)


class MCPClientSettings(TypedDict, total=False):
    """The settings of every way to make a client; see `MCPClient`."""

    name: str | None
    startup_timeout_s: float
    call_timeout_s: float | None
    tool_filters: ToolFilters | None
    prefix: str | None
    effects: bool | None
    idempotent: bool | None


class MCPClient:
    """The tools of one MCP server, for `Agent(tools=[client])` and `AgentSpec(tools=[client])`.

    `transport`: a function that returns a transport of the `mcp` package, as in
    `MCPClient(lambda: stdio_client(StdioServerParameters(command="python", args=["server.py"])))`. It is called for
    every connection. `MCPClient.stdio` and `MCPClient.http` are shorter.

    Life: in a `Runtime` the server is started by the first session that needs it, shared by all of them, and kept until
    the runtime ends. Elsewhere it lives as long as `async with agent` or `async with client`, or a single call. A
    server that dies is restarted, with growing pauses; until then its tools answer with errors. Its tools are listed
    anew after a restart and whenever the server reports a change.

    `name`: the server's name in messages. `startup_timeout_s`: the bound for connecting and listing tools.
    `call_timeout_s`: the bound for one call; None means no bound. `tool_filters`: `{"allowed": [...], "rejected":
    [...]}` of the server's names, compiled patterns or predicates of the `mcp` tool. `prefix`: put before the names,
    with an underscore. `effects`, `idempotent`: what running the tools means for durability (see `Tool`); None follows
    the server's annotations, where every tool that is not marked read-only has effects.

    Errors: `ImportError` when the `mcp` package is missing, `Invalid` and `TypeError` for bad arguments. From opening:
    `Unavailable`, with the server's name and what to check.
    """

    def __init__(
        self,
        transport: TransportFactory | StdioServer | HTTPServer,
        *,
        name: str | None = None,
        startup_timeout_s: float = 30.0,
        call_timeout_s: float | None = 60.0,
        tool_filters: ToolFilters | None = None,
        prefix: str | None = None,
        effects: bool | None = None,
        idempotent: bool | None = None,
    ) -> None:
        if call_timeout_s is not None and not call_timeout_s > 0:
            raise Invalid("call_timeout_s is a positive number of seconds, or None", call_timeout_s=call_timeout_s)
        choice = ToolChoice(
            filters=tool_filters or {},
            prefix=prefix or None,
            effects=effects,
            idempotent=idempotent,
            call_timeout_s=call_timeout_s,
        )
        self._source = MCPSource(transport, choice, name=name, startup_timeout_s=startup_timeout_s)
        self._call_timeout_s = call_timeout_s
        self._task: HostTask[ServerLink] | None = None
        self._link: ServerLink | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """In a forked child: forget the connection of the parent."""
        never_collect(self._task, self._link)
        self._task, self._link = None, None

    @classmethod
    def stdio(
        cls,
        command: str,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        **settings: Unpack[MCPClientSettings],
    ) -> MCPClient:
        """A server started as a process. `env` is added to `PATH`, `HOME` and a few more, not to our environment."""
        return cls(StdioServer(command=command, args=tuple(args), env=env, cwd=cwd), **settings)

    @classmethod
    def http(
        cls, url: str, *, headers: Mapping[str, str] | None = None, **settings: Unpack[MCPClientSettings]
    ) -> MCPClient:
        """A server reached over streamable HTTP, such as `http://127.0.0.1:8000/mcp`."""
        return cls(HTTPServer(url=url, headers=dict(headers or {})), **settings)

    def __repr__(self) -> str:
        return f"MCPClient(name={self.name!r})"

    @property
    def name(self) -> str:
        """The server's name in messages."""
        return self._source.name

    def connect(self) -> AbstractAsyncContextManager[ToolConnection]:
        """A separate connection that no actor supervises: see `ToolSource.connect`."""
        return self._source.connect()

    # ------------------------------------------------------------------------------------------------------ by hand

    async def __aenter__(self) -> MCPClient:
        """Start the server and keep it until the end of the block, which may come in another task. Agents that are
        called in the block share it.
        """
        if self._task is not None:
            raise Invalid("the client is open already", server=self.name)
        self._task = HostTask(self._open(), name=f"repertory tools {self.name}")
        try:
            self._link = await self._task.enter()
        except BaseException:
            self._task = None
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        task, self._task, self._link = self._task, None, None
        if task is not None:
            await task.leave()

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[ServerLink]:
        host = ambient_host()
        if host is not None:
            async with open_by_hand(host.servers, self) as link:
                yield link
        else:
            async with ActorSystem(_SETTINGS) as system, open_by_hand(ToolServers(system), self) as link:
                yield link

    def __enter__(self) -> MCPClient:
        """`async with client` for sync code, for agents that are called from sync code."""
        blocking_host().run(self.__aenter__)
        return self

    def __exit__(self, *exc_info: object) -> None:
        blocking_host().run(self.__aexit__, *exc_info)

    async def list_tools(self) -> list[ServedTool]:
        """The server's tools, after the filters; each may be given to any agent. Errors: `NotReady` when not open."""
        return list(self._opened().tools)

    def list_tools_sync(self) -> list[ServedTool]:
        """`list_tools` from sync code, inside `with client`."""
        return list(self._opened().tools)

    async def call_tool_async(
        self, tool_use_id: str, name: str, arguments: Mapping[str, Json] | None = None
    ) -> ToolResult:
        """Run a tool, by its own name or the server's. Every failure is a result with status `error`.

        Errors: `NotReady` when not open; `Invalid` from another event loop than the one it was opened in.
        """
        link = self._opened()
        tool_use: ToolUse = {"toolUseId": tool_use_id, "name": name, "input": dict(arguments or {})}
        with anyio.move_on_after(self._call_timeout_s):
            try:
                return await link.call(name, tool_use)
            except (Unavailable, TooLarge) as error:
                return error_result(tool_use_id, exception_text(error))
        return error_result(tool_use_id, timeout_text(name, self._call_timeout_s or 0.0, effects=True))

    def call_tool_sync(self, tool_use_id: str, name: str, arguments: Mapping[str, Json] | None = None) -> ToolResult:
        """`call_tool_async` from sync code, inside `with client`."""
        return blocking_host().run(self.call_tool_async, tool_use_id, name, arguments)

    async def list_prompts(self, cursor: str | None = None) -> ListPromptsResult:
        """A page of the server's prompts, as `mcp` types. Errors: `Failed`, `Unavailable`, `NotReady`, and
        `TooLarge` for an answer of more than 30 MiB as it is sent.
        """
        return cast("ListPromptsResult", await self._query("prompts/list", {"cursor": cursor}))

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> GetPromptResult:
        """A prompt, filled in. Errors: as `list_prompts`."""
        return cast(
            "GetPromptResult", await self._query("prompts/get", {"name": name, "arguments": dict(arguments or {})})
        )

    async def list_resources(self, cursor: str | None = None) -> ListResourcesResult:
        """A page of the server's resources. Errors: as `list_prompts`."""
        return cast("ListResourcesResult", await self._query("resources/list", {"cursor": cursor}))

    async def read_resource(self, uri: str) -> ReadResourceResult:
        """The contents of a resource. Errors: as `list_prompts`."""
        return cast("ReadResourceResult", await self._query("resources/read", {"uri": uri}))

    async def _query(self, method: str, arguments: Mapping[str, object]) -> object:
        link = self._opened()
        with anyio.move_on_after(self._call_timeout_s):
            return await link.query(method, arguments)
        raise Unavailable("the tool server did not answer in time", server=self.name, method=method)

    def _opened(self) -> ServerLink:
        if self._link is None:
            raise NotReady(
                "the client is not open: `async with client`, or `with client` in sync code", server=self.name
            )
        return self._link
