"""`MCPClient`: the tools of a server that speaks the Model Context Protocol.

client = MCPClient.stdio("python", ["server.py"])
agent = Agent(tools=[client])                    # the server lives as long as the agent's session

async with client:                               # or by hand, for as long as the block
    tools = await client.list_tools()
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, Unpack, cast
from urllib.parse import SplitResult, urlsplit

import anyio
from msgspec.structs import replace
from typing_extensions import TypedDict  # pydantic wants this one on Python 3.11.

from repertory.actors.tool_server import ServedTool
from repertory.app.host.blocking import blocking_host, in_sync_loop
from repertory.app.host.host import ambient_host
from repertory.app.host.shared import ToolServers, start_manually
from repertory.backends.sdk_members import PaginatedList, ToolLike
from repertory.backends.tool_ports import CallDetails
from repertory.core.messages import ToolResult, error_result
from repertory.core.origins import is_loopback
from repertory.core.tools import exception_text, timeout_text
from repertory.errors import ClientNotOpen, Invalid, RepertoryError, TooLarge, Unavailable
from repertory.forking import forget_in_children, never_collect
from repertory.logs import WARNING, note
from repertory.mcp.choice import Introduction, ToolChoice, ToolFilters
from repertory.mcp.source import (
    ClientCredentials,
    HTTPServer,
    MCPSource,
    StdioServer,
    ToolsChanged,
    TransportFactory,
)
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
        Tool,
    )

    from repertory.actors.tool_server import ServerLink
    from repertory.backends.tool_ports import OfferedTool, ToolConnection
    from repertory.core.messages import Json, ToolUse

_log = logging.getLogger("repertory.tools")
_SETTINGS = SystemSettings(
    dead_letters_max=0,
    phases=(DrainPhase(name="close", timeout_s=20.0, reserve_s=10.0, stops_actors=True),),
    on_fatal=lambda error: None,  # The results of the tools report it.
)


ElicitationCallback: TypeAlias = Callable[[Any, Any], Awaitable[Any]]
"""The function for a server's questions to a person: it makes an `ElicitResult` of `mcp`'s context and parameters."""


ProgressCallback: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None]]
"""The function that gets the progress of a call: the progress, its total, and a text."""
LOOK_S = 0.05
"""Seconds between looks at a caller's `cancel_signal`, which belongs to threads that cannot wake an event loop."""
TRY_AGAIN_S = 30.0
"""Seconds until a server that was not there is tried again, while sessions go on without its tools."""


class MCPClientCredentials(TypedDict):
    """The credentials of a client, which OAuth's client credentials grant exchanges for a token.

    `issuer`: the authorization server that gave the credentials, by its issuer's URL, `https://...`. No other one gets
    them, whatever the tool server says. Without it, it is the origin of the tool server's own `https://` address.
    """

    client_id: str
    client_secret: str
    issuer: NotRequired[str]
    scopes: NotRequired[list[str]]


class MCPToolResult(ToolResult):
    """A tool's result with what MCP adds to it."""

    structuredContent: NotRequired[dict[str, Any]]
    metadata: NotRequired[dict[str, Any]]
    isError: NotRequired[bool]
    cancelled: NotRequired[bool]


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
    continue_on_error: bool
    progress_callback: ProgressCallback | None
    meta: Mapping[str, Json] | None


class MCPClient(ToolLike):
    """The tools of one MCP server, for `Agent(tools=[client])` and `AgentSpec(tools=[client])`.

    Each connection calls `transport` again. `MCPClient.stdio` and `MCPClient.http` are shorter. `url` instead of it: a
    server over streamable HTTP, with `headers`, and with `auth`, credentials that OAuth exchanges for a token, or
    `auth_provider`, an `Auth` of httpx2.

    Life: in a `Runtime` the server is started by the first session that needs it, shared by all of them, and kept until
    the runtime ends. Elsewhere it lives as long as `async with agent` or `async with client`, or a single call. A
    server that dies is restarted, with growing pauses; until then its tools answer with errors. Its tools are listed
    anew after a restart and whenever the server reports a change.

    `server_instructions`: how the server wants its tools to be used, once it was connected to.

    In a subclass, `map_mcp_content_to_tool_result_content` decides what the model is shown of an answer.

    From opening: `Unavailable`, with the server's name and what to check.

    Args:
        transport: A function that returns a transport of the `mcp` package, as in `MCPClient(lambda:
            stdio_client(StdioServerParameters(command="python", args=["server.py"])))`.
        url: The address of a server that speaks streamable HTTP.
        headers: HTTP headers of every request.
        auth: Credentials by OAuth.
        auth_provider: An `Auth` of httpx2.
        name: The server's name in messages.
        startup_timeout_s: The bound for connecting and listing tools.
        call_timeout_s: The bound for one call; None means no bound.
        tool_filters: `{"allowed": [...], "rejected": [...]}` of the server's names, compiled patterns or predicates of
            the `mcp` tool.
        prefix: Put before the names, with an underscore.
        effects: What running the tools means for durability (see `Tool`); None follows the server's annotations, where
            every tool that is not marked read-only has effects.
        idempotent: What running the tools means for durability (see `Tool`); None follows the server's annotations,
            where every tool that is not marked read-only has effects.
        application_name: What the server is told of this program.
        application_version: What the server is told of this program.
        elicitation_callback: An async function of the context and the parameters that answers what the server asks a
            person, as `ElicitResult` of the `mcp` package; it runs within `call_timeout_s`, and in the event loop of
            the client.
        on_tools_changed: Called with the names of the tools before, and the tools now, after the server has announced a
            change; also a property.
        continue_on_error: A server that cannot be reached has no tools, and its agents go on without them; sessions
            that stay have them when it can be reached later. `connection_failed` says so.
        progress_callback: An async function that is told how far calls have got.
        meta: Sent with every call, as `_meta`.
        startup_timeout: Another name of `startup_timeout_s`.
        transport_callable: Another name of `transport`.

    Raises:
        ImportError: When the `mcp` package is missing. Install the extra that the message names.
        Invalid: For a value that is not allowed. Correct the argument.
        TypeError: For an unknown argument, or one of another type. Correct the call.

    Examples:
        >>> from repertory import MCPClient
        >>> client = MCPClient.stdio("uvx", ["mcp-server-git"], prefix="git")
        >>> other = MCPClient.http("https://tools.example.com/mcp", headers={"Authorization": "Bearer TOKEN"})
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
        continue_on_error: bool = False,
        progress_callback: ProgressCallback | None = None,
        meta: Mapping[str, Json] | None = None,
        startup_timeout: float | None = None,
        transport_callable: TransportFactory | None = None,
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
        if transport is not None and transport_callable is not None:
            raise Invalid("'transport_callable' is another name of 'transport': give one of them")
        self._client_name = application_name
        self._on_tools_changed = on_tools_changed
        self._continue_on_error = continue_on_error
        self._failed = False
        self._consumers: set[object] = set()
        self._choice = choice
        self._source = MCPSource(
            _server(transport or transport_callable, url, headers, auth, auth_provider),
            choice,
            name=name,
            startup_timeout_s=startup_timeout_s,
            introduction=Introduction(
                name=application_name,
                version=application_version,
                elicit=elicitation_callback,
                details=CallDetails(meta=meta, on_progress=progress_callback),
                block_of=self.map_mcp_content_to_tool_result_content,
            ),
        )
        self._call_timeout_s = call_timeout_s
        self._task: HostTask[ServerLink] | None = None
        self._link: ServerLink | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Forget the connection of the parent, in a forked child."""
        # Their finalizers would talk to the parent's event loop and processes.
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
        """A server started as a process. `env` is added to `PATH`, `HOME` and a few more, not to the environment of
        this process.

        Args:
            command: The program to start.
            args: Its arguments.
            env: Its environment variables besides a few usual ones.
            cwd: The folder where it starts.
            settings: The other settings of `MCPClient`.

        Raises:
            Invalid: For arguments that are one text. Write a list.
        """
        if isinstance(args, str):
            raise Invalid(f"args is a list: write args={args.split()}", got=args)
        return cls(StdioServer(command=command, args=tuple(args), env=env, cwd=cwd), **settings)

    @classmethod
    def http(
        cls, url: str, *, headers: Mapping[str, str] | None = None, **settings: Unpack[MCPClientSettings]
    ) -> MCPClient:
        """A server reached over streamable HTTP, such as `http://127.0.0.1:8000/mcp`.

        Args:
            url: The address.
            headers: HTTP headers of every request.
            settings: The other settings of `MCPClient`.
        """
        return cls(HTTPServer(url=url, headers=dict(headers or {})), **settings)

    @classmethod
    def load_servers(
        cls,
        config: str | Path | Mapping[str, Any],
        *,
        continue_on_error: bool = False,
        prefix_with_server_name: bool = False,
    ) -> list[MCPClient]:
        """One client for each server of a file, or of a dictionary, that is not `disabled`, for `Agent(tools=clients)`.

        Names of servers stand at the top or in `mcpServers`. A server has `command`, `args`, `env` and `cwd`, or `url`,
        `headers` and `auth`; `transport` (`stdio`, `streamable-http`, `sse`) where that says too little; and
        `tool_filters`, whose texts are regular expressions, `prefix`, `startup_timeout`, `application_name`,
        `application_version`. Texts may contain `${VAR}` and `${env:VAR}`. `continue_on_error`, unless the server has
        its own: a server whose settings are wrong is left out, and see `MCPClient`.

        Args:
            config: A file or a mapping in the form `{"mcpServers": {...}}`.
            prefix_with_server_name: True gives the tools of servers without a prefix the server's name as prefix.
            continue_on_error: For servers that do not set it themselves: True leaves out a server whose settings are
                wrong; see also `MCPClient`.

        Raises:
            FileNotFoundError: If there is no such file. Check the path.
            Invalid: For a server whose settings are wrong. Correct what the message names.
            json.JSONDecodeError: For a file that is not JSON. Correct the file.
        """
        from repertory.mcp.server_files import clients_of  # few programs have such files

        return clients_of(config, lambda settings: cls(**settings), continue_on_error, prefix_with_server_name)

    def __repr__(self) -> str:
        return f"MCPClient(name={self.name!r})"

    @property
    def name(self) -> str:
        """The server's name in messages."""
        return self._source.name

    @property
    def client_name(self) -> str | None:
        """The name of this program that the server gets; None for that of the package."""
        return self._client_name

    @property
    def server_instructions(self) -> str | None:
        """The server's instructions for the use of its tools; None before it was connected to."""
        return self._source.instructions

    @property
    def continue_on_error(self) -> bool:
        """True if agents go on without the tools of a server that cannot be reached."""
        return self._continue_on_error

    @property
    def connection_failed(self) -> bool:
        """True if the server could not be reached the last time, with `continue_on_error`. False after `stop`."""
        return self._failed

    @property
    def on_tools_changed(self) -> ToolsChanged | None:
        """The function that is called after the server has announced a change; may be assigned at any time."""
        return self._on_tools_changed

    @on_tools_changed.setter
    def on_tools_changed(self, callback: ToolsChanged | None) -> None:
        self._on_tools_changed = callback

    def connect(self) -> AbstractAsyncContextManager[ToolConnection]:
        """A separate connection that no actor supervises: see `ToolSource.connect`."""
        connection = self._source.connect(lambda: self._on_tools_changed)
        return self._or_without(connection) if self._continue_on_error else connection

    @asynccontextmanager
    async def _or_without(
        self, connection: AbstractAsyncContextManager[ToolConnection]
    ) -> AsyncGenerator[ToolConnection]:
        async with AsyncExitStack() as stack:
            try:
                there: ToolConnection = await stack.enter_async_context(connection)
            except Unavailable as error:
                note(_log, WARNING, "a tool server cannot be reached, its tools are left out", error)
                self._failed, there = True, _NotThere(error)
            else:
                self._failed = False
            yield there

    def map_mcp_content_to_tool_result_content(self, content: Any) -> Mapping[str, object] | None:
        """A content of the `mcp` package as a block of a tool result; None leaves it out. Subclasses may decide
        otherwise; a `ValueError` makes an error result.

        Args:
            content: A content block of the protocol.
        """
        from repertory.mcp.connection import block_of  # with the mcp package

        return block_of(content)

    # ------------------------------------------------------------------------------------------------------ by hand

    async def __aenter__(self) -> MCPClient:
        """Start the server and keep it until the end of the block, which may come in another task. Agents that are
        called in the block share it.
        """
        if self._task is not None and not self._task.over:
            raise Invalid("the client is open already: its session is currently running", server=self.name)
        self._task = HostTask(self._open(), name=f"repertory tools {self.name}")
        try:
            self._link = await self._task.enter()
        except BaseException:
            self._task = None
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        # Forgotten before the first await, so that a call in between is told that the client is not open.
        task, self._task, self._link = self._task, None, None
        if task is not None:
            await task.leave()

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[ServerLink]:
        host = ambient_host()
        if host is not None:
            async with start_manually(host.servers, self) as link:
                yield link
        else:
            async with ActorSystem(_SETTINGS) as system, start_manually(ToolServers(system), self) as link:
                yield link

    def __enter__(self) -> MCPClient:
        """`async with client` for sync code. Its tools run in agents that are called from sync code, and in those of
        any event loop.
        """
        blocking_host().run(self._open_for_all)
        return self

    def __exit__(self, *exc_info: object) -> None:
        blocking_host().run(self.__aexit__, *exc_info)

    async def _open_for_all(self) -> None:
        """Open the client in the loop of sync code, for callers in any loop."""
        await self.__aenter__()
        self._opened().across = in_sync_loop

    def start(self) -> MCPClient:
        """Open the client as `with client` does, without a block: it stays open until `stop`.

        Raises:
            Unavailable: If the server cannot be reached. Check what the message names, and call again later.
            Invalid: If the client is open. Use it as it is.
        """
        return self.__enter__()

    def stop(self, exc_type: object = None, exc_val: object = None, exc_tb: object = None) -> None:
        """End what `start`, `load_tools` or `with client` has begun; does nothing if the client is not open.

        Args:
            exc_type: As for `__exit__`.
            exc_val: As for `__exit__`.
            exc_tb: As for `__exit__`.
        """
        self._consumers.clear()
        if self._task is not None:
            self.__exit__(exc_type, exc_val, exc_tb)
        self._failed = False

    async def load_tools(self, **_: Any) -> Sequence[ServedTool]:
        """The server's tools, with the client opened if it was not, until `stop` or until its last consumer has gone.
        They run in every event loop. Empty for a server that cannot be reached, with `continue_on_error`.

        Raises:
            Unavailable: If the server cannot be reached. Check what the message names, and call again later.
        """
        if self._task is None:
            await in_sync_loop(self._open_for_all)
        return list(self._opened().tools)

    def add_consumer(self, consumer_id: object, **_: Any) -> None:
        """Note somebody who uses what `load_tools` gave.

        Args:
            consumer_id: Who uses the client.
        """
        self._consumers.add(consumer_id)

    def remove_consumer(self, consumer_id: object, **_: Any) -> None:
        """Forget a consumer; without any, the client is closed as by `stop`.

        Args:
            consumer_id: Who uses the client.
        """
        self._consumers.discard(consumer_id)
        if not self._consumers:
            self.stop()

    async def list_tools(self) -> list[ServedTool]:
        """The server's tools, after the filters; each may be given to any agent.

        Raises:
            NotReady: When not open. Open it first.
        """
        return list(self._opened().tools)

    def list_tools_sync(
        self,
        pagination_token: str | None = None,
        prefix: str | None = None,
        tool_filters: ToolFilters | None = None,
    ) -> PaginatedList[ServedTool]:
        """`list_tools` from sync code, inside `with client`. All tools are on one page, without a `pagination_token`.

        Errors: as `list_tools`.

        Args:
            pagination_token: Where a page of results begins, as the page before said; None for the first.
            prefix: Instead of the client's; an empty one means none.
            tool_filters: Instead of the client's; an empty one means none.

        Raises:
            Invalid: For a token. Correct the argument.
        """
        link = self._opened()
        if pagination_token is not None:
            raise Invalid(
                "all tools are on the first page: there is none for a token", pagination_token=pagination_token
            )
        if prefix is None and tool_filters is None:
            return PaginatedList(list(link.tools))
        choice = replace(
            self._choice,
            prefix=self._choice.prefix if prefix is None else prefix or None,
            filters=self._choice.filters if tool_filters is None else tool_filters,
        )
        listed = cast("list[Tool]", blocking_host().run(self._query, "tools/list", {}))
        return PaginatedList([ServedTool(choice.offer(each), link, each.name) for each in listed if choice.takes(each)])

    async def call_tool_async(
        self,
        tool_use_id: str,
        name: str,
        arguments: Mapping[str, Json] | None = None,
        read_timeout_seconds: timedelta | None = None,
        meta: Mapping[str, Json] | None = None,
        progress_callback: ProgressCallback | None = None,
        *,
        cancel_signal: threading.Event | None = None,
    ) -> MCPToolResult:
        """Run a tool, by its own name or the server's. Every failure is a result with status `error`. The result also
        has what MCP adds to one: `structuredContent`, `metadata`, `isError`.

        Args:
            tool_use_id: The id of the tool use.
            arguments: The arguments, by name.
            read_timeout_seconds: The bound for this call.
            meta: Values for the server, as JSON; None for the client's.
            progress_callback: Called with the progress of this call; None for the client's.
            cancel_signal: Ends the call when it is set, however it had ended else; the server is told to stop, and the
                result has `cancelled`.
            name: The tool's name on the server.

        Raises:
            NotReady: When not open. Open it first.
            Invalid: From another event loop than the one of `async with client`. Correct the argument.
        """
        link = self._opened()
        timeout_s = self._call_timeout_s if read_timeout_seconds is None else read_timeout_seconds.total_seconds()
        tool_use: ToolUse = {"toolUseId": tool_use_id, "name": name, "input": dict(arguments or {})}
        details = CallDetails(meta=meta, on_progress=progress_callback, as_sent=True)
        # Outside of the scopes, so that a result which came in the same moment as the signal or the time is not lost.
        results: list[ToolResult] = []

        async def call() -> None:
            with anyio.move_on_after(timeout_s):
                try:
                    results.append(await link.call(name, tool_use, details=details))
                except (Unavailable, TooLarge) as error:
                    results.append(error_result(tool_use_id, exception_text(error)))

        if await _ended_by(cancel_signal, call):
            result = error_result(tool_use_id, "Tool execution cancelled locally; remote execution may have continued")
            return cast("MCPToolResult", {**result, "cancelled": True})
        late = error_result(tool_use_id, timeout_text(name, timeout_s or 0.0, effects=True))
        return cast("MCPToolResult", results[0] if results else late)

    def call_tool_sync(
        self,
        tool_use_id: str,
        name: str,
        arguments: Mapping[str, Json] | None = None,
        read_timeout_seconds: timedelta | None = None,
        meta: Mapping[str, Json] | None = None,
        progress_callback: ProgressCallback | None = None,
        *,
        cancel_signal: threading.Event | None = None,
    ) -> MCPToolResult:
        """`call_tool_async` from sync code, inside `with client`.

        Args:
            tool_use_id: The id of the tool use.
            arguments: The arguments, by name.
            read_timeout_seconds: How long to wait for the result; None for the client's own time.
            meta: Values for the server, as JSON.
            progress_callback: Called with the progress that the server tells.
            cancel_signal: Ends the call when any thread has set it.
            name: The tool's name on the server.
        """
        self._opened()
        return blocking_host().run(
            self.call_tool_async,
            tool_use_id,
            name,
            arguments,
            read_timeout_seconds,
            meta,
            progress_callback,
            cancel_signal=cancel_signal,
        )

    def list_prompts_sync(self, pagination_token: str | None = None) -> ListPromptsResult:
        """`list_prompts` from sync code, inside `with client`.

        Args:
            pagination_token: Where a page of results begins, as the page before said; None for the first.
        """
        self._opened()
        return blocking_host().run(self.list_prompts, pagination_token)

    def get_prompt_sync(self, prompt_id: str, args: Mapping[str, str] | None = None) -> GetPromptResult:
        """`get_prompt` from sync code, inside `with client`.

        Args:
            prompt_id: The prompt's name.
            args: The prompt's arguments.
        """
        self._opened()
        return blocking_host().run(self.get_prompt, prompt_id, args)

    def list_resources_sync(self, pagination_token: str | None = None) -> ListResourcesResult:
        """`list_resources` from sync code, inside `with client`.

        Args:
            pagination_token: Where a page of results begins, as the page before said; None for the first.
        """
        self._opened()
        return blocking_host().run(self.list_resources, pagination_token)

    def list_resource_templates_sync(self, pagination_token: str | None = None) -> ListResourceTemplatesResult:
        """`list_resource_templates` from sync code, inside `with client`.

        Args:
            pagination_token: Where a page of results begins, as the page before said; None for the first.
        """
        self._opened()
        return blocking_host().run(self.list_resource_templates, pagination_token)

    def read_resource_sync(self, uri: object) -> ReadResourceResult:
        """`read_resource` from sync code, inside `with client`.

        Args:
            uri: The resource's URI.
        """
        self._opened()
        return blocking_host().run(self.read_resource, str(uri))

    async def list_prompts(self, cursor: str | None = None) -> ListPromptsResult:
        """A page of the server's prompts, as `mcp` types.

        Args:
            cursor: Where a page of results begins, as the page before said; None for the first.

        Raises:
            Failed: If the server refuses, or does not answer in time. Read its cause.
            Unavailable: If the server cannot be reached. Call again later.
            NotReady: Before the client is open. Open it first.
            TooLarge: For an answer of more than 30 MiB as it is sent. Ask for less.
        """
        return cast("ListPromptsResult", await self._query("prompts/list", {"cursor": cursor}))

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> GetPromptResult:
        """A prompt, filled in. Errors: as `list_prompts`.

        Args:
            arguments: The arguments, by name.
            name: The prompt's name.
        """
        return cast(
            "GetPromptResult", await self._query("prompts/get", {"name": name, "arguments": dict(arguments or {})})
        )

    async def list_resources(self, cursor: str | None = None) -> ListResourcesResult:
        """A page of the server's resources. Errors: as `list_prompts`.

        Args:
            cursor: Where a page of results begins, as the page before said; None for the first.
        """
        return cast("ListResourcesResult", await self._query("resources/list", {"cursor": cursor}))

    async def list_resource_templates(self, cursor: str | None = None) -> ListResourceTemplatesResult:
        """A page of the server's templates of resources. Errors: as `list_prompts`.

        Args:
            cursor: Where a page of results begins, as the page before said; None for the first.
        """
        return cast("ListResourceTemplatesResult", await self._query("resources/templates/list", {"cursor": cursor}))

    async def read_resource(self, uri: str) -> ReadResourceResult:
        """The contents of a resource. Errors: as `list_prompts`.

        Args:
            uri: The resource's URI.
        """
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


async def _ended_by(signal: threading.Event | None, work: Callable[[], Awaitable[None]]) -> bool:
    """Do the work until the signal is set, if there is one; returns whether it was set."""
    if signal is None:
        await work()
        return False
    if signal.is_set():
        return True
    failures: list[RepertoryError] = []
    async with anyio.create_task_group() as group:

        async def do() -> None:
            try:
                await work()
            except RepertoryError as error:
                # Raised outside of the group, or callers would get an `ExceptionGroup`.
                failures.append(error)
            group.cancel_scope.cancel()

        group.start_soon(do)
        # Looked at again and again: the signal is of threads, which cannot wake an event loop.
        for _ in iter(signal.is_set, True):
            await anyio.sleep(LOOK_S)
        group.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return signal.is_set()


class _NotThere:
    """The connection to a server that could not be reached: it has no tools, and ends when it is time to try again."""

    def __init__(self, error: Unavailable) -> None:
        self._error = error

    async def tools(self) -> Sequence[OfferedTool]:
        return ()

    async def call(
        self, name: str, tool_use: ToolUse, result_bytes: int = 0, details: CallDetails | None = None
    ) -> ToolResult:
        raise self._error

    async def query(self, method: str, arguments: Mapping[str, object]) -> object:
        raise self._error

    async def changed(self) -> None:
        # Its end makes the supervisor connect again, which is the new try.
        await anyio.sleep(TRY_AGAIN_S)
        raise self._error


def _server(
    transport: TransportFactory | StdioServer | HTTPServer | None,
    url: str | None,
    headers: Mapping[str, str] | None,
    auth: MCPClientCredentials | None,
    auth_provider: Auth | None,
) -> TransportFactory | StdioServer | HTTPServer:
    """The server to connect to. Errors: `Invalid` for no server or two, and for anything that is only for a `url`."""
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
    signer = auth_provider if auth is None else _credentials(auth, address)
    return HTTPServer(url=cast("str", url), headers=dict(headers or {}), auth=signer)


def _credentials(auth: MCPClientCredentials, server: SplitResult) -> ClientCredentials:
    """The credentials. Errors: `Invalid`, which names keys and no values: those are secrets."""
    missing = [key for key in ("client_id", "client_secret") if key not in auth]
    if missing:
        raise Invalid("auth is missing required keys", missing=missing)
    given = cast("Mapping[str, object]", auth)
    if not (isinstance(given["client_id"], str) and isinstance(given["client_secret"], str)):
        raise Invalid("auth needs 'client_id' and 'client_secret' to be strings")
    scopes = given.get("scopes", [])
    if not isinstance(scopes, list) or not all(isinstance(each, str) for each in cast("list[object]", scopes)):
        raise Invalid("auth needs 'scopes' to be a list of strings")
    issuer = given.get("issuer", f"https://{server.netloc.rpartition('@')[2]}" if server.scheme == "https" else None)
    if not isinstance(issuer, str) or not _is_secret_to(urlsplit(issuer)):
        raise Invalid("auth needs 'issuer': the https:// URL of the authorization server that gave the credentials")
    return ClientCredentials(
        client_id=given["client_id"],
        client_secret=given["client_secret"],
        issuer=issuer,
        scopes=cast("list[str]", scopes),
    )


def _is_secret_to(address: SplitResult) -> bool:
    """True for an address that nobody on the way reads along with."""
    local = address.scheme == "http" and is_loopback(address.hostname or "")
    return bool(address.hostname) and (address.scheme == "https" or local)
