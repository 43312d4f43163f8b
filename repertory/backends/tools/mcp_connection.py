"""One connection to an MCP server, from the handshake to its end.

Loads the `mcp` package, so it is imported by the first connection and not before. The package's client has no word for
"the connection is over": calls fail one by one, and an idle client never hears of it. So the stream that it reads from
is watched on its way into the client.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import anyio
from mcp.client.client import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST, Tool, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from repertory.backends.tools.mcp_content import result_of
from repertory.core.limits import RESULT_BYTES
from repertory.core.messages import ToolResult, ToolUse, error_result
from repertory.core.tool_results import exception_text
from repertory.errors import Failed, Invalid, Unavailable

if TYPE_CHECKING:
    from types import TracebackType

    from mcp.client._transport import ReadStream, TransportStreams
    from mcp.client.session import IncomingMessage
    from mcp.shared.message import SessionMessage

    from repertory.backends.ports import OfferedTool
    from repertory.backends.tools.mcp_choice import ToolChoice

LEAVE_TIMEOUT_S = 3.0
"""How long saying goodbye over HTTP may take. A process that does not end by itself is given what `mcp` gives it."""
PAGES_MAX = 1000
"""Pages of a list that are read before it is taken to have no end."""
LISTEN_PAUSE_S, LISTEN_PAUSE_MAX_S = 1.0, 60.0
"""How long to wait before asking anew to be told of changes, first and at most."""

FOREIGN = (MCPError, ValueError, RuntimeError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)
"""What the package's client raises: refusals, answers that break the protocol or a schema, broken streams."""


@asynccontextmanager
async def open_connection(
    transport: AbstractAsyncContextManager[Any], choice: ToolChoice, list_timeout_s: float
) -> AsyncGenerator[MCPConnection]:
    """Shake hands over the transport. Errors: whatever the transport and the package raise, perhaps in groups."""
    signals = Signals()
    watched = _watched(transport, signals.end)
    async with (
        Client(watched, cache=None, message_handler=signals.hear) as client,
        anyio.create_task_group() as group,
    ):
        if _announces_changes(client):
            group.start_soon(_listen, client, signals)
        try:
            yield MCPConnection(client, choice, signals, list_timeout_s)
        finally:
            group.cancel_scope.cancel()


class Signals:
    """What happens to a connection while nobody calls."""

    def __init__(self) -> None:
        self.ended = False
        self._changed = False
        self._happened = anyio.Event()

    def end(self) -> None:
        """The connection is over."""
        self.ended = True
        self._happened.set()

    def change(self) -> None:
        """The tools may be others."""
        self._changed = True
        self._happened.set()

    async def hear(self, message: IncomingMessage) -> None:
        """Look at what the server says by itself."""
        if isinstance(message, ToolListChangedNotification):
            self.change()

    async def wait(self) -> None:
        """Return when there was a change, or the end."""
        while not self.ended and not self._changed:
            self._happened = anyio.Event()
            await self._happened.wait()
        self._changed = False


class MCPConnection:
    """A `ToolConnection` to an MCP server."""

    def __init__(self, client: Client, choice: ToolChoice, signals: Signals, list_timeout_s: float) -> None:
        self._client = client
        self._choice = choice
        self._signals = signals
        self._list_timeout_s = list_timeout_s
        self._names: dict[str, str] = {}
        """Our names of tools to the server's."""

    async def tools(self) -> Sequence[OfferedTool]:
        """What the server offers, after the filters."""
        if self._client.server_capabilities.tools is None:
            return ()
        offered: dict[str, OfferedTool] = {}
        names: dict[str, str] = {}
        for tool in await self._listed_in_time():
            if not self._choice.takes(tool):
                continue
            offer = self._choice.offer(tool)
            name = offer.spec["name"]
            if name in offered:
                both = [names[name], tool.name]
                raise Failed("two of the server's tools have the same name for a model; filter one out", tools=both)
            offered[name], names[name] = offer, tool.name
        self._names = names
        return tuple(offered.values())

    async def call(self, name: str, tool_use: ToolUse, result_bytes: int = RESULT_BYTES) -> ToolResult:
        """Run a tool. The server's refusals, and answers that cannot be read, are results with status `error`. Errors:
        `TooLarge` for what weighs more than `result_bytes`.
        """
        use_id, arguments = tool_use["toolUseId"], tool_use["input"]
        if not isinstance(arguments, dict | None):
            return error_result(use_id, "Error: the input of this tool is a JSON object")
        try:
            answer = await self._client.call_tool(self._names.get(name, name), cast("dict[str, Any]", arguments or {}))
            return result_of(use_id, answer, result_bytes)
        except (*FOREIGN, Failed) as error:
            self._look_for_the_end(error)
            return error_result(use_id, f"Error: {_words(error)}")

    async def query(self, method: str, arguments: Mapping[str, object]) -> object:
        """`prompts/list`, `prompts/get`, `resources/list` and `resources/read`, answered with the package's objects."""
        try:
            return await self._queried(method, arguments)
        except Invalid:
            raise
        except FOREIGN as error:
            self._look_for_the_end(error)
            raise Failed(f"the tool server refused: {_words(error)}", method=method) from error

    async def changed(self) -> None:
        """Wait until the tools may have changed, or the connection has ended."""
        await self._signals.wait()
        if self._signals.ended:
            raise Unavailable("the connection to the tool server ended")

    async def _listed_in_time(self) -> Sequence[Tool]:
        with anyio.move_on_after(self._list_timeout_s):
            return await self._listed()
        raise Failed("the tool server did not list its tools in time", limit_s=self._list_timeout_s)

    async def _listed(self) -> Sequence[Tool]:
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            try:
                page = await self._client.list_tools(cursor=cursor)
            except FOREIGN as error:
                self._look_for_the_end(error)
                raise Failed(f"the tool server does not list its tools: {_words(error)}") from error
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                return tools
        raise Failed("the tool server's list of tools has no end", pages=PAGES_MAX)

    async def _queried(self, method: str, arguments: Mapping[str, object]) -> object:
        values = cast("dict[str, Any]", arguments)
        match method:
            case "prompts/list":
                return await self._client.list_prompts(**values)
            case "prompts/get":
                return await self._client.get_prompt(**values)
            case "resources/list":
                return await self._client.list_resources(**values)
            case "resources/read":
                return await self._client.read_resource(**values)
            case _:
                raise Invalid("no such method", method=method)

    def _look_for_the_end(self, error: Exception) -> None:
        """Raise `Unavailable` if this error is the end of the connection.

        Over HTTP a server that was restarted does not know the session any more; each call would be refused the same.
        """
        if isinstance(error, MCPError) and (error.code, error.message) == (INVALID_REQUEST, "Session terminated"):
            self._signals.end()
        if self._signals.ended:
            raise Unavailable("the connection to the tool server ended") from error


def _words(error: Exception) -> str:
    """What is said of an error: a refusal in the server's own words."""
    return error.message if isinstance(error, MCPError) else exception_text(error).removeprefix("Error: ")


def _announces_changes(client: Client) -> bool:
    """Whether changes have to be asked for. Older servers that announce them do so unasked."""
    tools = client.server_capabilities.tools
    return tools is not None and bool(tools.list_changed) and client.protocol_version in MODERN_PROTOCOL_VERSIONS


async def _listen(client: Client, signals: Signals) -> None:
    """Be told of changes, for as long as the server does that. What was missed in between is a change, too."""
    pause_s = LISTEN_PAUSE_S
    while True:
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    signals.change()
                    pause_s = LISTEN_PAUSE_S
        except SubscriptionLost:
            pass
        except MCPError:
            return
        await anyio.sleep(pause_s)
        pause_s = min(LISTEN_PAUSE_MAX_S, 2 * pause_s)
        signals.change()


@asynccontextmanager
async def _watched(
    transport: AbstractAsyncContextManager[Any], on_end: Callable[[], None]
) -> AsyncGenerator[TransportStreams]:
    """The transport, with an eye on what it reads. It is left in good order even by a task that was cancelled.

    To that end a shield is put around it at the end. Inside a shield trio takes any cancellation for the transport's
    own, which swallows it, so whatever made the task leave is raised again here.
    """
    reason: BaseException | None = None
    with anyio.CancelScope() as scope:
        async with transport as streams:
            try:
                yield _WatchedStream(streams[0], on_end), streams[1]
            except BaseException as error:
                reason = error
                raise
            finally:
                on_end()
                scope.shield = True
                scope.deadline = anyio.current_time() + LEAVE_TIMEOUT_S
    if reason is not None:
        raise reason


class _WatchedStream:
    """A stream of messages that calls `on_end` when it has none left."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    @property
    def last_context(self) -> Any:
        """What some transports keep of the sender of the last message, as the package looks for it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message."""
        try:
            return await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._on_end()
            raise

    async def aclose(self) -> None:
        """Close it."""
        self._on_end()
        await self._stream.aclose()

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self._stream.__anext__()
        except (StopAsyncIteration, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._on_end()
            raise

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        self._on_end()
        return await self._stream.__aexit__(exc_type, exc_val, exc_tb)
