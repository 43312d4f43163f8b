"""`MCPClient`: the tools of a server that speaks the Model Context Protocol.

client = MCPClient.stdio("python", ["server.py"])
agent = Agent(tools=[client])                    # the server lives as long as the agent's session

async with client:                               # or by hand, for as long as the block
    tools = await client.list_tools()
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict, Unpack, cast
from urllib.parse import urlsplit

import anyio

from repertory.app.host.blocking import blocking_host
from repertory.app.host.host import ambient_host
from repertory.app.host.shared import ToolServers, open_by_hand
from repertory.backends.tools.mcp.choice import Introduction, ToolChoice, ToolFilters
from repertory.backends.tools.mcp.source import (
    ClientCredentials,
    HTTPServer,
    MCPSource,
    StdioServer,
    ToolsChanged,
    TransportFactory,
)
from repertory.core.messages import error_result
from repertory.core.tools import exception_text, timeout_text
from repertory.errors import ClientNotOpen, Invalid, TooLarge, Unavailable
from repertory.forking import forget_in_children, never_collect
from repertory.runtime.drain import DrainPhase
from repertory.runtime.host_task import HostTask
from repertory.runtime.system import ActorSystem, SystemSettings

if TYPE_CHECKING:
    from datetime import timedelta

    from httpx2 import Auth
    from mcp_types import (
        GetPromptResult,
        ListPromptsResult,
        ListResourcesResult,
        ListResourceTemplatesResult,
        ReadResourceResult,
    )

    from repertory.actors.tool_server import ServedTool, ServerLink
    from repertory.backends.ports import ToolConnection
    from repertory.core.messages import Json, ToolResult, ToolUse

_SETTINGS = SystemSettings(
    phases=(DrainPhase(name="close", timeout_s=20.0, reserve_s=10.0, stops_actors=True),),
    on_fatal=lambda error: None,  # The results of the tools report it.
)


ElicitationCallback: TypeAlias = Callable[[Any, Any], Awaitable[Any]]
"""Answers what a server asks a person: from the context and the parameters of the `mcp` package, its `ElicitResult`."""


class MCPClientCredentials(TypedDict):
    """What OAuth's client credentials grant exchanges for a token."""

    client_id: str
    client_secret: str
    scopes: NotRequired[list[str]]


class MCPClientSettings(TypedDict, total=False):
    """The settings of every way to make a client; see `MCPClient`."""

    name: str | None
    startup_timeout_s: float
    call_timeout_s: float | None
    tool_filters: ToolFilters | None
    prefix: str | None
    effects: bool | None
    idempotent: bool | None
    application_name: str | None
    application_version: str | None
    elicitation_callback: ElicitationCallback | None
    on_tools_changed: ToolsChanged | None


class MCPClient:
    """The tools of one MCP server, for `Agent(tools=[client])` and `AgentSpec(tools=[client])`.

    `transport`: a function that returns a transport of the `mcp` package, as in
    `MCPClient(lambda: stdio_client(StdioServerParameters(command="python", args=["server.py"])))`. It is called for
    every connection. `MCPClient.stdio` and `MCPClient.http` are shorter. `url` instead of it: a server over streamable
    HTTP, with `headers`, and with `auth`, credentials that OAuth exchanges for a token, or `auth_provider`, an `Auth`
    of httpx2.

    Life: in a `Runtime` the server is started by the first session that needs it, shared by all of them, and kept until
    the runtime ends. Elsewhere it lives as long as `async with agent` or `async with client`, or a single call. A
    server that dies is restarted, with growing pauses; until then its tools answer with errors. Its tools are listed
    anew after a restart and whenever the server reports a change.

    `name`: the server's name in messages. `startup_timeout_s`: the bound for connecting and listing tools.
    `call_timeout_s`: the bound for one call; None means no bound. `tool_filters`: `{"allowed": [...], "rejected":
    [...]}` of the server's names, compiled patterns or predicates of the `mcp` tool. `prefix`: put before the names,
    with an underscore. `effects`, `idempotent`: what running the tools means for durability (see `Tool`); None follows
    the server's annotations, where every tool that is not marked read-only has effects.

    `application_name`, `application_version`: what the server is told of this program. `elicitation_callback`: an async
    function of the context and the parameters that answers what the server asks a person, as `ElicitResult` of the
    `mcp` package; it runs within `call_timeout_s`, and in the event loop of the client. `on_tools_changed`: called with
    the names of the tools before, and the tools now, after the server has announced a change; also a property.
    `startup_timeout`: another name of `startup_timeout_s`.

    Errors: `ImportError` when the `mcp` package is missing, `Invalid` and `TypeError` for bad arguments. From opening:
    `Unavailable`, with the server's name and what to check.
    """

    def __init__(
        self,
        transport: TransportFactory | StdioServer | HTTPServer | None = None,
        *,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        auth: MCPClientCredentials | None = None,
        auth_provider: Auth | None = None,
        name: str | None = None,
        startup_timeout_s: float = 30.0,
        call_timeout_s: float | None = 60.0,
        tool_filters: ToolFilters | None = None,
        prefix: str | None = None,
        effects: bool | None = None,
        idempotent: bool | None = None,
        application_name: str | None = None,
        application_version: str | None = None,
        elicitation_callback: ElicitationCallback | None = None,
        on_tools_changed: ToolsChanged | None = None,
        startup_timeout: float | None = None,
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
        if startup_timeout is not None:
            startup_timeout_s = startup_timeout
        self.client_name = application_name
        self.on_tools_changed = on_tools_changed
        self._source = MCPSource(
            _server(transport, url, headers, auth, auth_provider),
            choice,
            name=name,
            startup_timeout_s=startup_timeout_s,
            introduction=Introduction(name=application_name, version=application_version, elicit=elicitation_callback),
        )
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
        return self._source.connect(lambda: self.on_tools_changed)

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
        self,
        tool_use_id: str,
        name: str,
        arguments: Mapping[str, Json] | None = None,
        read_timeout_seconds: timedelta | None = None,
    ) -> ToolResult:
        """Run a tool, by its own name or the server's. Every failure is a result with status `error`.

        `read_timeout_seconds`: the bound for this call; None for the client's. Errors: `NotReady` when not open;
        `Invalid` from another event loop than the one it was opened in.
        """
        link = self._opened()
        timeout_s = self._call_timeout_s if read_timeout_seconds is None else read_timeout_seconds.total_seconds()
        tool_use: ToolUse = {"toolUseId": tool_use_id, "name": name, "input": dict(arguments or {})}
        with anyio.move_on_after(timeout_s):
            try:
                return await link.call(name, tool_use)
            except (Unavailable, TooLarge) as error:
                return error_result(tool_use_id, exception_text(error))
        return error_result(tool_use_id, timeout_text(name, timeout_s or 0.0, effects=True))

    def call_tool_sync(
        self,
        tool_use_id: str,
        name: str,
        arguments: Mapping[str, Json] | None = None,
        read_timeout_seconds: timedelta | None = None,
    ) -> ToolResult:
        """`call_tool_async` from sync code, inside `with client`."""
        self._opened()
        return blocking_host().run(self.call_tool_async, tool_use_id, name, arguments, read_timeout_seconds)

    def list_prompts_sync(self, pagination_token: str | None = None) -> ListPromptsResult:
        """`list_prompts` from sync code, inside `with client`."""
        self._opened()
        return blocking_host().run(self.list_prompts, pagination_token)

    def get_prompt_sync(self, prompt_id: str, args: Mapping[str, str] | None = None) -> GetPromptResult:
        """`get_prompt` from sync code, inside `with client`."""
        self._opened()
        return blocking_host().run(self.get_prompt, prompt_id, args)

    def list_resources_sync(self, pagination_token: str | None = None) -> ListResourcesResult:
        """`list_resources` from sync code, inside `with client`."""
        self._opened()
        return blocking_host().run(self.list_resources, pagination_token)

    def list_resource_templates_sync(self, pagination_token: str | None = None) -> ListResourceTemplatesResult:
        """`list_resource_templates` from sync code, inside `with client`."""
        self._opened()
        return blocking_host().run(self.list_resource_templates, pagination_token)

    def read_resource_sync(self, uri: object) -> ReadResourceResult:
        """`read_resource` from sync code, inside `with client`."""
        self._opened()
        return blocking_host().run(self.read_resource, str(uri))

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

    async def list_resource_templates(self, cursor: str | None = None) -> ListResourceTemplatesResult:
        """A page of the server's templates of resources. Errors: as `list_prompts`."""
        return cast("ListResourceTemplatesResult", await self._query("resources/templates/list", {"cursor": cursor}))

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
            raise ClientNotOpen(
                "the client session is not running: `async with client`, or `with client` in sync code",
                server=self.name,
            )
        return self._link


def _server(
    transport: TransportFactory | StdioServer | HTTPServer | None,
    url: str | None,
    headers: Mapping[str, str] | None,
    auth: MCPClientCredentials | None,
    auth_provider: Auth | None,
) -> TransportFactory | StdioServer | HTTPServer:
    """What is connected to. Errors: `Invalid` for no server or two, and for anything that is only for one by `url`."""
    if transport is not None and url is not None:
        raise Invalid("give either 'transport_callable' or 'url', not both")
    if transport is None and not url:
        raise Invalid("a transport or a url must be provided")
    if transport is not None:
        if headers is not None or auth is not None or auth_provider is not None:
            raise Invalid("headers, auth and auth_provider require 'url'")
        return transport
    if auth is not None and auth_provider is not None:
        raise Invalid("give either 'auth' or 'auth_provider', not both")
    address = urlsplit(cast("str", url))
    if address.scheme not in ("http", "https") or not address.netloc:
        raise Invalid("the url must be an http:// or https:// URL", scheme=address.scheme)
    signer = auth_provider if auth is None else _credentials(auth)
    return HTTPServer(url=cast("str", url), headers=dict(headers or {}), auth=signer)


def _credentials(auth: MCPClientCredentials) -> ClientCredentials:
    """Errors: `Invalid`, which names keys and no values: those are secrets."""
    missing = [key for key in ("client_id", "client_secret") if key not in auth]
    if missing:
        raise Invalid("auth is missing required keys", missing=missing)
    given = cast("Mapping[str, object]", auth)
    if not (isinstance(given["client_id"], str) and isinstance(given["client_secret"], str)):
        raise Invalid("auth needs 'client_id' and 'client_secret' to be strings")
    scopes = given.get("scopes", [])
    if not isinstance(scopes, list) or not all(isinstance(each, str) for each in cast("list[object]", scopes)):
        raise Invalid("auth needs 'scopes' to be a list of strings")
    return ClientCredentials(
        client_id=given["client_id"], client_secret=given["client_secret"], scopes=cast("list[str]", scopes)
    )
