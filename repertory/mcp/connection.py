"""One connection to an MCP server, from the handshake to its end.

Loads the `mcp` package, so the first connection imports this file and nothing does before. The package's client does
not report the end of the connection: calls fail one by one, and an idle client never notices. So this file watches the
stream that the client reads.

The package would check answers against the server's schemas on the event loop, where a check cannot be stopped. So
answers are checked here: in a worker thread when the work is known to be small, else in a separate process, which ends
with its time limit or its call.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

import anyio
from anyio.lowlevel import RunVar
from mcp.client.client import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_REQUEST,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    Implementation,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from repertory.backends.this_machine import python_command
from repertory.backends.tool_ports import CallDetails
from repertory.backends.tools.output_schema import problem_in, validator_of
from repertory.backends.worker_threads import run_in_thread
from repertory.core.json_bytes import from_base64
from repertory.core.limits import RESULT_BYTES, Scale
from repertory.core.media import DOCUMENTS, IMAGES
from repertory.core.messages import ToolResult, ToolUse, error_result
from repertory.core.tools import exception_text, result_too_large, schema_problem, tool_result, work_of
from repertory.errors import Failed, Invalid, LimitReached, TooLarge, Unavailable
from repertory.logs import WARNING, note
from repertory.mcp.wire import WireBound, stands_for_too_much

if TYPE_CHECKING:
    from types import TracebackType

    from mcp.client._transport import ReadStream, TransportStreams
    from mcp.client.session import IncomingMessage
    from mcp.shared.message import SessionMessage
    from mcp_types import ContentBlock

    from repertory.backends.tool_ports import OfferedTool
    from repertory.mcp.choice import Introduction, ToolChoice

LEAVE_TIMEOUT_S = 3.0
"""Seconds that closing an HTTP session may take. For a process, `mcp`'s own limits apply."""
PAGES_MAX = 1000
"""Pages of a list that are read before it counts as endless."""
LIST_BYTES_MAX = 64 * 1024 * 1024
"""The largest list of a server's tools (`core/limits.py`)."""
CHECK_TIMEOUT_S = 5.0
"""Seconds that the check of an answer may take in a process, its start included."""
CHECK_WORK_MAX = 50_000
"""Pairs of a schema and a value that are checked in a worker thread: less than a second."""
CHECKS_AT_ONCE_MAX = 4
"""Checks in processes at once in one event loop; more wait for one to end."""
CHECK_MEMORY_BYTES = 2 * 1024**3
"""The memory of such a process, where the system can bound it."""
LISTEN_PAUSE_S, LISTEN_PAUSE_MAX_S = 1.0, 60.0
"""Seconds to wait before subscribing to changes again: the first and the longest wait."""

FOREIGN = (MCPError, ValueError, RuntimeError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)
"""The errors of the package's client: refusals, answers that break the protocol or a schema, broken streams."""


_CHECK_SCRIPT = f"""
import json, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, ({CHECK_MEMORY_BYTES}, {CHECK_MEMORY_BYTES}))
except (ImportError, OSError, ValueError):
    pass
asked = json.load(sys.stdin.buffer)
sys.path[:] = asked["path"]
from repertory.backends.tools.output_schema import judged
print(json.dumps(judged(asked["schema"], asked["value"])))
"""

_log = logging.getLogger("repertory.tools")
_VERSION = version("repertory")
_checks: RunVar[anyio.CapacityLimiter] = RunVar("repertory_answer_checks")


@asynccontextmanager
async def open_connection(
    transport: AbstractAsyncContextManager[Any],
    wire: WireBound,
    choice: ToolChoice,
    list_timeout_s: float,
    introduction: Introduction,
) -> AsyncGenerator[MCPConnection]:
    """Shake hands over the transport, which enforces the size limit. Errors: those of the transport and the package,
    perhaps in groups.
    """
    signals = Signals()
    watched = _watched(transport, signals.end)
    async with (
        Client(
            watched,
            cache=None,
            message_handler=signals.receive,
            client_info=_named(introduction),
            elicitation_callback=introduction.elicit,
        ) as client,
        anyio.create_task_group() as group,
    ):
        if _announces_changes(client):
            group.start_soon(_listen, client, signals)
        try:
            yield MCPConnection(client, wire, choice, signals, list_timeout_s, introduction)
        finally:
            group.cancel_scope.cancel()


def _named(introduction: Introduction) -> Implementation | None:
    if not introduction.name:
        return None
    return Implementation(name=introduction.name, version=introduction.version or _VERSION)


class Signals:
    """Events of a connection outside calls."""

    def __init__(self) -> None:
        self.ended = False
        self._changed = False
        self._happened = anyio.Event()

    def end(self) -> None:
        self.ended = True
        self._happened.set()

    def change(self) -> None:
        self._changed = True
        self._happened.set()

    async def receive(self, message: IncomingMessage) -> None:
        """Handle a message that the server sends by itself."""
        if isinstance(message, ToolListChangedNotification):
            self.change()

    async def wait(self) -> None:
        """Return after a change, or the end."""
        while not self.ended and not self._changed:
            self._happened = anyio.Event()
            await self._happened.wait()
        self._changed = False


class MCPConnection:
    """A `ToolConnection` to an MCP server."""

    def __init__(
        self,
        client: Client,
        wire: WireBound,
        choice: ToolChoice,
        signals: Signals,
        list_timeout_s: float,
        introduction: Introduction,
    ) -> None:
        self._client = client
        self._wire = wire
        self._choice = choice
        self._signals = signals
        self._list_timeout_s = list_timeout_s
        self._always = introduction.details
        self._block_of = introduction.block_of or block_of
        self.instructions: str | None = client.instructions
        """The server's instructions for the use of its tools; None without any."""
        self._names: dict[str, str] = {}
        """The server's names of tools by our names."""
        self._promised: dict[str, AnswerCheck] = {}
        """The checks for structured answers, by the server's tool names."""
        self._refused: dict[str, str] = {}
        """The reason, by the server's name of a tool, why it is left out: its description or schemas."""
        # The package's own check runs on the event loop, with patterns that may take for ever; see above.
        client.session.validate_tool_result = self._check

    async def tools(self) -> Sequence[OfferedTool]:
        if self._client.server_capabilities.tools is None:
            return ()
        offered: dict[str, OfferedTool] = {}
        names: dict[str, str] = {}
        for tool in await self._listed_in_time():
            if not self._choice.takes(tool) or self._refuses(tool):
                continue
            offer = self._choice.offer(tool)
            name = offer.spec["name"]
            if name in offered:
                both = [names[name], tool.name]
                raise Failed("two of the server's tools have the same name for a model; filter one out", tools=both)
            offered[name], names[name] = offer, tool.name
        self._names = names
        return tuple(offered.values())

    async def call(
        self, name: str, tool_use: ToolUse, result_bytes: int = RESULT_BYTES, details: CallDetails | None = None
    ) -> ToolResult:
        """Run a tool. The server's refusals, and unreadable answers, are results with status `error`. Errors:
        `TooLarge` for a result of more than `result_bytes`, or one sent in too many bytes (`wire.py`).
        """
        use_id, arguments = tool_use["toolUseId"], tool_use["input"]
        if not isinstance(arguments, dict | None):
            return error_result(use_id, "Error: the input of this tool is a JSON object")
        known = self._names.get(name, name)
        if known in self._refused:
            return error_result(use_id, f"Error: this tool cannot be used: {self._refused[known]}")
        try:
            with self._wire.call(result_bytes):
                answer = await self._called(known, cast("dict[str, Any]", arguments or {}), details or CallDetails())
            result = result_of(use_id, answer, result_bytes, self._block_of)
            return _as_sent(result, answer) if details is not None and details.as_sent else result
        except TooLarge:
            raise
        except (*FOREIGN, Failed, LimitReached) as error:
            _raise_if_too_large(error)
            self._look_for_the_end(error)
            return error_result(use_id, f"Error: {_words(error)}")

    async def _called(self, name: str, arguments: dict[str, Any], details: CallDetails) -> CallToolResult:
        meta = self._always.meta if details.meta is None else details.meta
        on_progress = details.on_progress or self._always.on_progress
        return await self._client.call_tool(
            name,
            arguments,
            progress_callback=cast("Any", on_progress),
            meta=None if meta is None else cast("Any", dict(meta)),
        )

    async def query(self, method: str, arguments: Mapping[str, object]) -> object:
        """`tools/list` (all pages, without tools that cannot be used), `prompts/list`, `prompts/get`,
        `resources/list` and `resources/read`, answered with the package's objects.

        Errors: `TooLarge` for an answer above the size limit (`wire.py`).
        """
        try:
            return await self._queried(method, arguments)
        except Invalid:
            raise
        except FOREIGN as error:
            _raise_if_too_large(error)
            self._look_for_the_end(error)
            raise Failed(f"the tool server refused: {_words(error)}", method=method) from error

    async def changed(self) -> None:
        """Wait until the tools may have changed, or the connection has ended."""
        await self._signals.wait()
        if self._signals.ended:
            raise self._ended()

    def _refuses(self, tool: Tool) -> bool:
        """True if the tool's description or schemas are too large or unusable. The tool is then left out, and the log
        says why.
        """
        # A tool that was listed before may have another schema now, or none.
        self._promised.pop(tool.name, None)
        self._refused.pop(tool.name, None)
        fields = {
            "description": tool.description,
            "input schema": tool.input_schema,
            "output schema": tool.output_schema,
        }
        for what, field in fields.items():
            why = schema_problem(field)
            if why is not None:
                self._refused[tool.name] = f"its {what} {why}"
                why = self._refused[tool.name]
                note(_log, WARNING, f"a tool of a server is left out: {tool.name[:200]}: {why}")
                return True
        if tool.output_schema is not None:
            self._promised[tool.name] = AnswerCheck(tool.output_schema)
        return False

    async def _check(self, name: str, result: CallToolResult) -> None:
        """The checks that the package's session makes before it returns a successful answer. Raises as
        `AnswerCheck.check`.
        """
        promised = self._promised.get(name)
        if promised is None:
            return
        # A null that was sent may be what the schema promises.
        if result.structured_content is None and "structured_content" not in result.model_fields_set:
            raise Failed("the tool has promised a structured answer, and gave none")
        await promised.check(result.structured_content)

    async def _listed_in_time(self) -> Sequence[Tool]:
        with anyio.move_on_after(self._list_timeout_s):
            return await self._listed()
        raise Failed("the tool server did not list its tools in time", limit_s=self._list_timeout_s)

    async def _listed(self) -> Sequence[Tool]:
        tools: list[Tool] = []
        scale = Scale(LIST_BYTES_MAX)
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            try:
                page = await self._client.list_tools(cursor=cursor)
            except FOREIGN as error:
                self._look_for_the_end(error)
                raise Failed(f"the tool server does not list its tools: {_words(error)}") from error
            for tool in page.tools:
                fields = [tool.name, tool.title, tool.description, tool.input_schema, tool.output_schema]
                if not scale.put(fields):
                    raise Failed("the tool server's list of tools is too large", bytes_max=LIST_BYTES_MAX)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                return tools
        raise Failed("the tool server's list of tools has no end", pages=PAGES_MAX)

    async def _queried(self, method: str, arguments: Mapping[str, object]) -> object:
        values = cast("dict[str, Any]", arguments)
        match method:
            case "tools/list":
                offers_tools = self._client.server_capabilities.tools is not None
                return (
                    [tool for tool in await self._listed_in_time() if not self._refuses(tool)] if offers_tools else []
                )
            case "prompts/list":
                return await self._client.list_prompts(**values)
            case "prompts/get":
                return await self._client.get_prompt(**values)
            case "resources/list":
                return await self._client.list_resources(**values)
            case "resources/templates/list":
                return await self._client.list_resource_templates(**values)
            case "resources/read":
                return await self._client.read_resource(**values)
            case _:
                raise Invalid("no such method", method=method)

    def _ended(self) -> Unavailable:
        why = "" if self._wire.broken is None else f": {self._wire.broken}"
        return Unavailable(f"the connection to the tool server ended{why}")

    def _look_for_the_end(self, error: Exception) -> None:
        """Raise `Unavailable` if this error is the end of the connection.

        Over HTTP, a restarted server no longer knows the session; every further call would be refused the same way.
        """
        if isinstance(error, MCPError) and (error.code, error.message) == (INVALID_REQUEST, "Session terminated"):
            self._signals.end()
        if self._signals.ended:
            raise self._ended() from error


class AnswerCheck:
    """Checks the structured answers of one tool against the schema that its server declared."""

    def __init__(self, schema: Mapping[str, object]) -> None:
        """`schema`: one that is not refused (`core/tools.py`)."""
        self._schema = schema

    async def check(self, value: object) -> None:
        """Return if the value fits. Cancellation ends the check.

        Errors: `Failed` with what does not fit, or what is wrong with the schema; `LimitReached` when checking takes
        longer than `CHECK_TIMEOUT_S`, or too much memory.
        """
        scale = Scale(sys.maxsize)
        scale.put(value)
        if self._work is not None and self._work * (scale.values + scale.bytes // 1024) <= CHECK_WORK_MAX:
            problem = await run_in_thread(partial(self._judged, value))
        else:
            problem = await self._judged_elsewhere(value)
        if problem is not None:
            raise Failed(problem)

    @cached_property
    def _work(self) -> int | None:
        return work_of(self._schema)

    @cached_property
    def _validator(self) -> Any:
        return validator_of(self._schema)

    def _judged(self, value: object) -> str | None:
        return problem_in(self._validator, value)

    async def _judged_elsewhere(self, value: object) -> str | None:
        python = python_command()
        if python is None:
            _log.warning("the answer of a tool is not checked: this program can start no Python")
            return None
        asked = {"path": sys.path, "schema": self._schema, "value": value}
        # In a thread: an answer may have megabytes.
        request = await run_in_thread(lambda: json.dumps(asked).encode())
        command = [python, "-I", "-S", "-c", _CHECK_SCRIPT]
        async with _checks_at_once():
            with anyio.move_on_after(CHECK_TIMEOUT_S):
                try:
                    ended = await anyio.run_process(command, input=request, stderr=subprocess.DEVNULL)
                    return cast("str | None", json.loads(ended.stdout))
                except (OSError, subprocess.CalledProcessError, ExceptionGroup) as error:
                    # anyio tells of a process that ends before it has read its input by a group.
                    raise LimitReached(_TOO_MUCH, seconds=CHECK_TIMEOUT_S) from error
        raise LimitReached(_TOO_MUCH, seconds=CHECK_TIMEOUT_S)


_TOO_MUCH = "the tool ran, but checking its answer against its output schema takes too much time or memory"


def _checks_at_once() -> anyio.CapacityLimiter:
    limiter = _checks.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(CHECKS_AT_ONCE_MAX)
        _checks.set(limiter)
    return limiter


def _words(error: Exception) -> str:
    """The text of an error: for a refusal, the server's own words."""
    return error.message if isinstance(error, MCPError) else exception_text(error).removeprefix("Error: ")


def _raise_if_too_large(error: Exception) -> None:
    if isinstance(error, MCPError) and stands_for_too_much(error.error):
        raise TooLarge(error.message) from error


def _announces_changes(client: Client) -> bool:
    """True if changes must be subscribed to. Older servers announce them without that."""
    tools = client.server_capabilities.tools
    return tools is not None and bool(tools.list_changed) and client.protocol_version in MODERN_PROTOCOL_VERSIONS


async def _listen(client: Client, signals: Signals) -> None:
    """Receive change messages while the server sends them. Changes may be missed in between, so a gap counts as a
    change.
    """
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
            # The server refuses, which it would do again.
            return
        await anyio.sleep(pause_s)
        pause_s = min(LISTEN_PAUSE_MAX_S, 2 * pause_s)
        signals.change()


@asynccontextmanager
async def _watched(
    transport: AbstractAsyncContextManager[Any], on_end: Callable[[], None]
) -> AsyncGenerator[TransportStreams]:
    """The transport, with its reading side watched. It is closed properly even by a cancelled task.

    For that, a shield surrounds its exit. Inside a shield, trio attributes any cancellation to the transport, which
    swallows it, so the exception that made the task leave is raised again here.
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
    """A stream of messages that calls `on_end` at its end."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    @property
    def last_context(self) -> Any:
        """Some transports keep data about the last message's sender here, where the package looks for it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._on_end()
            raise

    async def aclose(self) -> None:
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


# Converts an MCP server's answer into a tool result.
#
# Text stays text. Images and documents that the Converse API knows become blocks with bytes; what it has no block for
# (sound, other types of file) becomes a line of text that says what it was. A structured value becomes a `json` block,
# in place of the text that repeats it for clients that know no structured values; unless it only wraps that text.
#
# Source: Model Context Protocol, revision 2026-07-28, "Tool Result"; Amazon Bedrock API reference, `ImageBlock` and
# `DocumentBlock`.

_NOT_IN_A_DOCUMENT_NAME = re.compile(r"[^a-zA-Z0-9()\[\]-]+")
_DOCUMENT_NAME_MAX = 200
_URI_CHARS_MAX = 2048
"""The end of a URI that is looked at for a name: Python takes the square of some characters in its host."""


def _as_sent(result: ToolResult, answer: CallToolResult) -> ToolResult:
    """The result with what MCP adds to one."""
    added: dict[str, object] = {"isError": bool(answer.is_error)}
    if answer.structured_content is not None:
        added["structuredContent"] = answer.structured_content
    if answer.meta:
        added["metadata"] = answer.meta
    return cast("ToolResult", {**result, **added})


def result_of(
    use_id: str,
    answer: CallToolResult,
    bytes_max: int = RESULT_BYTES,
    convert: Callable[[ContentBlock], Mapping[str, object] | None] | None = None,
) -> ToolResult:
    """The answer as a tool result, in the server's order. `convert`: instead of `block_of`.

    Errors: `ValueError` when bytes are not base64; `Failed` for values that JSON cannot express; `TooLarge` for more
    than `bytes_max` (`core/limits.py`), before any other work on it.
    """
    structured: object = answer.structured_content
    scale = Scale(bytes_max)
    if not scale.put(structured) or not all(scale.put(_main_content(part)) for part in answer.content):
        raise result_too_large(scale)
    texts = [part.text for part in answer.content if isinstance(part, TextContent)]
    parts = list(answer.content)
    blocks: list[Mapping[str, object]] = []
    if structured is not None and not _wraps(structured, texts):
        parts = [part for part in parts if not (isinstance(part, TextContent) and _is_json(part.text, structured))]
        is_object = isinstance(structured, dict)
        blocks.append({"json": cast("object", structured)} if is_object else {"text": json.dumps(structured)})
    ours: list[Mapping[str, object]] = [block for part in parts if (block := (convert or block_of)(part)) is not None]
    blocks = [*ours, *blocks] or [{"text": ""}]
    return tool_result(use_id, {"status": "error" if answer.is_error else "success", "content": blocks}, sys.maxsize)


def _wraps(structured: object, texts: Sequence[str]) -> bool:
    """True if it is `{"result": ...}` around what the texts say: servers wrap values that are no objects this way."""
    fields = cast("dict[str, object]", structured) if isinstance(structured, dict) else {}
    if fields.keys() != {"result"}:
        return False
    inner = fields["result"]
    if len(texts) == 1 and _says(texts[0], inner):
        return True
    items = cast("list[object]", inner) if isinstance(inner, list) else []
    return 0 < len(items) == len(texts) and all(map(_says, texts, items))


def _says(text: str, value: object) -> bool:
    return text == value or _is_json(text, value)


def _is_json(text: str, value: object) -> bool:
    try:
        return json.loads(text) == value
    except (ValueError, RecursionError):
        return False


def _main_content(part: ContentBlock) -> str:
    match part:
        case TextContent(text=text) | EmbeddedResource(resource=TextResourceContents(text=text)):
            return text
        case ImageContent(data=data) | AudioContent(data=data):
            return data
        case EmbeddedResource(resource=BlobResourceContents(blob=data)):
            return data
        case _:
            return ""


def block_of(part: ContentBlock) -> dict[str, object]:
    """A content of the `mcp` package as a block of a tool result. Errors: `ValueError` when bytes are not base64."""
    match part:
        case TextContent(text=text):
            return {"text": text}
        case ImageContent(data=data, mime_type=mime_type):
            return _media(from_base64(data), mime_type, "image")
        case AudioContent(data=data, mime_type=mime_type):
            return _omitted(from_base64(data), mime_type, "sound")
        case ResourceLink(uri=uri, name=name, description=description):
            return {"text": f"{name}: {uri}" if description is None else f"{name}: {uri} ({description})"}
        case EmbeddedResource(resource=TextResourceContents(text=text)):
            return {"text": text}
        case EmbeddedResource(resource=resource):
            return _blob(resource)


def _blob(resource: BlobResourceContents | TextResourceContents) -> dict[str, object]:
    assert not isinstance(resource, TextResourceContents)
    mime_type = resource.mime_type or "application/octet-stream"
    return _media(from_base64(resource.blob), mime_type, resource.uri)


def _media(data: bytes, mime_type: str, source: str) -> dict[str, object]:
    kind = mime_type.partition(";")[0].strip().lower()
    if kind in IMAGES:
        return {"image": {"format": IMAGES[kind], "source": {"bytes": data}}}
    if kind in DOCUMENTS:
        return {"document": {"format": DOCUMENTS[kind], "name": _document_name(source), "source": {"bytes": data}}}
    return _omitted(data, mime_type, source)


def _omitted(data: bytes, mime_type: str, source: str) -> dict[str, object]:
    return {"text": f"[{source}: {len(data)} bytes of {mime_type}, which cannot be shown here]"}


def _document_name(uri: str) -> str:
    """A name that Converse accepts, from the last part of a URI."""
    try:
        path = urlsplit(uri[-_URI_CHARS_MAX:]).path
    except ValueError:  # The end of an address need not be one: `//[`.
        path = ""
    last = unquote(path).rstrip("/").rpartition("/")[2]
    stem = last.rpartition(".")[0] or last
    return _NOT_IN_A_DOCUMENT_NAME.sub("-", stem).strip("-")[:_DOCUMENT_NAME_MAX] or "document"
