"""The transports of the `mcp` package, with a limit on what a server may send at once (`wire.py`).

Users may pass a function that makes one of the package's transports, as its documentation shows. Such a transport is
recognised by that function, and made again with the same arguments. Any other transport is used as it is, without our
limit.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from inspect import signature, unwrap
from typing import TYPE_CHECKING, Any, TextIO

import anyio
from anyio.abc import AsyncResource, ByteReceiveStream, Process
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from httpx2 import AsyncClient, Auth, Timeout
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage
from mcp_types import RequestId, jsonrpc_message_adapter

from repertory.backends.worker_threads import run_in_thread
from repertory.core.limits import JsonScale
from repertory.errors import TooLarge
from repertory.logs import WARNING, note
from repertory.mcp.wire import WireBound, bound_client

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

CONNECT_TIMEOUT_S = 30.0
"""Seconds that connecting, sending and waiting for a free connection may each take over HTTP."""
READ_TIMEOUT_S = 300.0
"""The package's own limit on silence in an answer over HTTP, unless the user gives it a client."""
_MAKERS = (unwrap(stdio_client), unwrap(sse_client), unwrap(streamable_http_client))
_make_sse: Callable[..., AbstractAsyncContextManager[Any]] = sse_client
_make_streamable: Callable[..., AbstractAsyncContextManager[Any]] = streamable_http_client


def stdio(parameters: StdioServerParameters, wire: WireBound, errlog: Any = None) -> AbstractAsyncContextManager[Any]:
    """A process; `errlog`: an open file for its stderr."""
    if sys.platform == "win32":
        return stdio_client(parameters)
    return stdio_transport(parameters, wire, errlog)


async def http(
    url: str, headers: Mapping[str, str], wire: WireBound, auth: Auth | None = None
) -> AbstractAsyncContextManager[Any]:
    """A service over streamable HTTP. Reading has no timeout: calls have their own."""
    return _http(await _client(headers, None, auth), wire, {"url": url})


async def bounded(transport: AbstractAsyncContextManager[Any], wire: WireBound) -> AbstractAsyncContextManager[Any]:
    """The same transport with the limit, if the package has made it."""
    maker: Callable[..., Any] | None = getattr(transport, "func", None)
    if maker is None or maker not in _MAKERS:
        return transport
    given = signature(maker).bind(*getattr(transport, "args", ()), **getattr(transport, "kwds", {})).arguments
    if maker is _MAKERS[0]:
        # In other encodings a line may end in other bytes.
        utf8 = given["server"].encoding.lower() in ("utf-8", "utf8")
        return stdio(given["server"], wire, given.get("errlog")) if utf8 else transport
    if maker is _MAKERS[1]:
        return _make_sse(**{**given, "httpx_client_factory": await _sse_clients(given, wire)})
    if given.get("http_client") is not None:
        return _streamable(bound_client(given["http_client"], wire), given)
    return _http(await _client({}, READ_TIMEOUT_S), wire, given)


async def _sse_clients(given: Mapping[str, Any], wire: WireBound) -> Callable[..., AsyncClient]:
    """Makes the client of such a transport, with the limit. The package's own is made in a thread before it is needed,
    since it reads certificates.
    """
    own: Callable[..., AsyncClient] | None = given.get("httpx_client_factory")
    made: AsyncClient | None = None
    if own is None:
        default = signature(_MAKERS[1]).parameters["httpx_client_factory"].default
        made = await run_in_thread(default)

    def make(
        headers: dict[str, str] | None = None, timeout: Timeout | None = None, auth: Auth | None = None
    ) -> AsyncClient:
        if own is not None:
            return bound_client(own(headers=headers, timeout=timeout, auth=auth), wire)
        assert made is not None
        # The same settings that the package would give to its own client.
        made.headers.update(headers or {})
        if auth is not None:
            made.auth = auth
        if timeout is not None:
            made.timeout = timeout
        return bound_client(made, wire)

    return make


@asynccontextmanager
async def _http(client: AsyncClient, wire: WireBound, given: Mapping[str, Any]) -> AsyncGenerator[Any]:
    """Uses a client that lives as long as the transport."""
    # The bounded one is a copy with the same connections: the first one is closed.
    async with client, _streamable(bound_client(client, wire), given) as streams:
        yield streams


def _streamable(client: AsyncClient, given: Mapping[str, Any]) -> AbstractAsyncContextManager[Any]:
    """Removes the package's own limit on events, if it has one: it is below that of a result."""
    unbound = {"max_sse_event_size": None} if "max_sse_event_size" in signature(_MAKERS[2]).parameters else {}
    return _make_streamable(**{**unbound, **given, "http_client": client})


async def _client(headers: Mapping[str, str], read_timeout_s: float | None, auth: Auth | None = None) -> AsyncClient:
    """A new HTTP client, made in a thread, since reading the system's certificates takes some time."""
    timeout = Timeout(CONNECT_TIMEOUT_S, read=read_timeout_s)
    return await run_in_thread(lambda: AsyncClient(headers=dict(headers), timeout=timeout, auth=auth))


# A tool server that is started as a process and spoken to over its pipes, one line for each message.
#
# What the package's own `stdio_client` does, with a bound to what the server may print: that one gathers a line however
# long it gets. A line that is too long is skipped, and the call whose answer it is gets an error in its place. When
# such a line is no answer, or has no end, the connection ends.
#
# The process begins a group of its own. In the end its input is closed; when it does not go by itself, its group is
# sent SIGTERM and then SIGKILL. What it prints to stderr goes where ours goes, and never through this process.


FLUSH_TIMEOUT_S = 0.5
"""Seconds that writing the last messages may take before the input is closed."""
LEAVE_TIMEOUT_S = 2.0
"""Seconds that the process may take to end after its input is closed, and again after SIGTERM."""
SKIPPED_MAX = 8
"""The length of a line that counts as endless, as a multiple of the allowed length."""
JUNK_LOGGED_MAX = 10
"""The number of lines without a message that are logged, per connection."""
_LOOK_S = 0.01
_ENDS_KEPT = 512
"""Bytes kept at both ends of an oversized line, to find its id."""
_BROKEN = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)

_OBJECT = re.compile(rb"\s*\{")
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID = rb'"id"\s*:\s*(-?\d+|"[^"\\]*")'
_HEAD = re.compile(rb"\s*\{(?:\s*(?:%b|%b)\s*,){0,2}\s*\"(?:result|error)\"\s*:" % (_VERSION, _ID))
"""The start of an answer up to its result, perhaps with its id. Nothing within a result can look like that."""
_TAIL = re.compile(rb",\s*%b(?:\s*,\s*%b)?\s*\}\s*$" % (_ID, _VERSION))
"""The end of an answer whose id comes last. The brace closes the whole object, so the id before it is the answer's."""

_log = logging.getLogger("repertory.tools")


@asynccontextmanager
async def stdio_transport(
    server: StdioServerParameters, wire: WireBound, errlog: TextIO | None = None
) -> AsyncGenerator[TransportStreams]:
    """Start the process, and communicate with it until the block ends; by then it has ended. UTF-8 only, on POSIX only.

    `errlog`: an open file for its stderr. Errors: `OSError`, `ValueError` when it cannot be started.
    """
    process = await anyio.open_process(
        [server.command, *server.args],
        env=get_default_environment() | (server.env or {}),
        stderr=errlog,
        cwd=server.cwd,
        start_new_session=True,
    )
    # Nothing is awaited until the task group exists: a cancellation in between would leave the process running.
    # Without a buffer: a server that sends faster than anybody reads is held up by its pipe.
    to_us, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    written = anyio.Event()
    assert process.stdin is not None
    assert process.stdout is not None
    async with anyio.create_task_group() as group:
        group.start_soon(_read, process.stdout, LineReader(wire, server.encoding_error_handler), wire, to_us)
        group.start_soon(_write, process, server.encoding_error_handler, outgoing, to_us, written)
        try:
            yield messages, to_server
        finally:
            with anyio.CancelScope(shield=True):
                # The reader discards further output, so a server busy with printing can still see the end of its input.
                messages.close()
                to_server.close()
                with anyio.move_on_after(FLUSH_TIMEOUT_S):
                    await written.wait()
                # After a line without an end nobody reads any more: the server stands at a full pipe and does not see
                # its input end.
                await _end(process, 0.0 if wire.broken is not None else LEAVE_TIMEOUT_S)
                for stream in (to_us, outgoing):
                    await stream.aclose()
                await checkpoint()
            group.cancel_scope.cancel()


class LineReader:
    """Parses a server's output: one message per line."""

    def __init__(self, wire: WireBound, errors: str = "strict") -> None:
        self._wire = wire
        self._errors = errors
        self._line = bytearray()
        """The part of a line that has arrived; of a skipped line, its last bytes."""
        self._scale = JsonScale()
        self._skips = False
        self._reply_due = False
        """True if the skipped line is an answer that no error has replaced yet."""
        self._junk = 0

    def read(self, chunk: bytes) -> Iterator[SessionMessage | None]:
        """The messages that end with this chunk; None for each line without a message.

        Errors: `TooLarge` for an oversized line that is no answer, or that does not end. Nothing can be read after it.
        """
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if end or self._line or self._skips:
                yield from self._put(end)
                yield self._ended()
        if rest:
            yield from self._put(rest)

    def _put(self, piece: bytes) -> Iterator[SessionMessage]:
        self._scale.put(piece)
        self._line += piece
        bytes_max = self._wire.bytes_max
        if self._scale.weight <= bytes_max:
            return
        if not self._skips:
            begins = _HEAD.match(self._line[:_ENDS_KEPT])
            if begins is None:
                raise TooLarge(f"the tool server sent a line that is no answer: {self._wire.too_large(self._scale)}")
            self._skips, self._reply_due = True, begins[1] is None
            if not self._reply_due:
                yield self._instead(begins[1])
        if self._scale.bytes > SKIPPED_MAX * bytes_max:
            raise TooLarge(f"the tool server sent a line without an end: {self._wire.too_large(self._scale)}")
        del self._line[:-_ENDS_KEPT]

    def _ended(self) -> SessionMessage | None:
        line, skips, reply_due = self._line, self._skips, self._reply_due
        scale, self._line, self._scale, self._skips, self._reply_due = (
            self._scale,
            bytearray(),
            JsonScale(),
            False,
            False,
        )
        if not skips:
            return self._parsed(line)
        if not reply_due:
            return None
        ends = _TAIL.search(line)
        if ends is None:
            raise TooLarge(f"the tool server sent an answer without an id: {self._wire.too_large(scale)}")
        return SessionMessage(self._wire.instead(_id_of(ends[1]), scale))

    def _instead(self, identity: bytes) -> SessionMessage:
        return SessionMessage(self._wire.instead(_id_of(identity), self._scale))

    def _parsed(self, line: bytearray) -> SessionMessage | None:
        # Most lines without a message are recognised without the parser, whose errors are slow.
        if _OBJECT.match(line):
            try:
                text = line if self._errors == "strict" else line.decode(errors=self._errors)
                return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
            except ValueError:
                pass
        self._junk += 1
        if self._junk <= JUNK_LOGGED_MAX:
            text = "a tool server printed a line that is no message"
            more = "; more of them are not logged" if self._junk == JUNK_LOGGED_MAX else ""
            note(_log, WARNING, text + more, server=self._wire.server, size_bytes=len(line))
        return None


def _id_of(raw: bytes) -> RequestId:
    return json.loads(raw)


async def _read(
    output: ByteReceiveStream,
    lines: LineReader,
    wire: WireBound,
    to_us: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    """Pass the server's messages on until it or the session ends; after that, discard its output."""
    try:
        with suppress(*_BROKEN):
            async with to_us:
                while True:
                    for message in lines.read(await output.receive()):
                        if message is None:
                            # A server that prints nothing but lines without messages must not hold the event loop.
                            await checkpoint()
                        else:
                            await to_us.send(message)
    except TooLarge as error:
        wire.broken = str(error)
    finally:
        if wire.broken is None:
            with anyio.CancelScope(shield=True), suppress(*_BROKEN):
                while True:
                    await output.receive()


async def _write(
    process: Process,
    errors: str,
    outgoing: MemoryObjectReceiveStream[SessionMessage],
    to_us: MemoryObjectSendStream[SessionMessage | Exception],
    written: anyio.Event,
) -> None:
    assert process.stdin is not None
    try:
        async with outgoing:
            async for each in outgoing:
                line = each.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
                await process.stdin.send(line.encode(errors=errors))
    except _BROKEN:
        # The server may live on without ever answering: tell the session that the connection has ended.
        await to_us.aclose()
    finally:
        written.set()


async def _end(process: Process, patience_s: float) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    await _close(process.stdin)
    if not await _ended_within(process, patience_s):
        await terminate_posix_process_tree(process, LEAVE_TIMEOUT_S)
        if not await _ended_within(process, LEAVE_TIMEOUT_S):
            note(_log, WARNING, "the process of a tool server does not end", pid=process.pid)
    await _close(process.stdout)
    # On asyncio, closing the stream leaves the pipe open while a process outside the group still holds its other end.
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    close = getattr(transport, "close", None)
    if callable(close):
        with suppress(PermissionError):
            close()


async def _close(stream: AsyncResource) -> None:
    with suppress(*_BROKEN):
        await stream.aclose()


async def _ended_within(process: Process, seconds: float) -> bool:
    """True if it ends in time. Polls, since asyncio would also wait for the ends of its pipes."""
    deadline = anyio.current_time() + seconds
    while process.returncode is None:
        if anyio.current_time() >= deadline:
            return False
        await anyio.sleep(_LOOK_S)
    return True
