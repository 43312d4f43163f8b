"""How much a tool server may send at once, over pipes and over HTTP, and what becomes of more.

The `mcp` package gathers a message in memory, however large, and parses it on the event loop. A thread would not help:
the parser holds the interpreter's lock until it is done. So what arrives is weighed (`core/limits.py`) before it is put
together, and only what is parsed in a moment is passed on. An answer that is too large is replaced by an error with the
same id: the call that waits for it gets that, and the connection goes on.

Over HTTP, hooks of the package's HTTP client do this, so it may be a client of the user's own, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial

from anyio.lowlevel import checkpoint
from httpx2 import AsyncByteStream, AsyncClient, ReadError, Request, Response, SSEError
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, RequestId

from repertory.core.limits import RESULT_BYTES, VALUE_BYTES, JsonScale

EXPANSION = 3
"""How much larger than its result an answer may be: a letter is sent as an escape (`\\u0416`), a text in an object."""
_TOO_LARGE = "repertory: too large"
"""The `data` of an error that stands in the place of an answer."""
_PIECE_BYTES = 64 * 1024
_EVENT_END = re.compile(rb"\n[\r\n]+|\r\r[\r\n]*")
"""An empty line, after the line before it."""


class WireBound:
    """How much one message of a server may weigh, and why its connection was ended, if it was for that."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.broken: str | None = None
        """What the server sent that the connection could not go on after."""
        self._asked: list[int] = []

    @property
    def bytes_max(self) -> int:
        """`EXPANSION` times what the calls in flight take as their result, and no less than for the default."""
        return EXPANSION * max([RESULT_BYTES, *self._asked])

    @contextmanager
    def call(self, result_bytes: int) -> Generator[None]:
        """A call is in flight that takes a result of this weight."""
        self._asked.append(result_bytes)
        try:
            yield
        finally:
            self._asked.remove(result_bytes)

    def too_large(self, scale: JsonScale) -> str:
        """Which bound a message passes, in words."""
        return (
            f"it takes at least {scale.weight:,} bytes as it is sent, counting {VALUE_BYTES} for each of "
            f"{scale.values:,} values; {EXPANSION} times limits['result_bytes'] is {self.bytes_max:,}"
        )

    def instead(self, identity: RequestId, scale: JsonScale) -> JSONRPCError:
        """The error in the place of an answer that is too large."""
        message = (
            "the answer of the tool server is too large to be read; ask for less of it (a part, a page, a filter): "
            f"server={self.server!r}, {self.too_large(scale)}"
        )
        return _error(identity, message, _TOO_LARGE)


def stands_for_too_much(error: ErrorData) -> bool:
    """Whether the error stands in the place of an answer that is too large."""
    return error.data == _TOO_LARGE


def _error(identity: RequestId, message: str, data: str | None = None) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=identity, error=ErrorData(code=INTERNAL_ERROR, message=message, data=data))


def bound_client(client: AsyncClient, wire: WireBound) -> AsyncClient:
    """The same client, whose answers are bounded: whole bodies, or each event of a stream. Shares its connections.

    The client that was given is left as it is. What is compressed is refused, and not asked for: there is no telling
    how much it takes before it is unpacked.
    """

    async def ask(request: Request) -> None:
        request.headers["accept-encoding"] = "identity"

    async def bound(response: Response) -> None:
        response.stream = _BoundedBody(response, wire)

    mine = copy(client)
    hooks = client.event_hooks
    # Whatever else looks at the body finds it bounded, and no other hook asks for another encoding.
    mine.event_hooks = {"request": [*hooks["request"], ask], "response": [bound, *hooks["response"]]}
    return mine


class _BoundedBody(AsyncByteStream):
    """The body of an answer, passed on when it is whole; of a stream of events, each event when it is whole."""

    def __init__(self, response: Response, wire: WireBound) -> None:
        assert isinstance(response.stream, AsyncByteStream)
        self._stream = response.stream
        self._request = response.request
        self._wire = wire
        self._events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        # Nobody may unpack what stands in the place of the answer.
        self._encoding = response.headers.pop("content-encoding", "identity").lower()

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        if self._encoding not in ("", "identity"):
            message = f"the tool server compresses its answers ({self._encoding}), though it is asked not to"
            yield self._instead(lambda identity: _error(identity, message), message)
            return
        held, scale = bytearray(), JsonScale()
        async for chunk in self._stream:
            for piece, whole in self._pieces(bytes(held[-1:]), chunk):
                held += piece
                scale.put(piece)
                if scale.weight > self._wire.bytes_max:
                    message = f"the tool server sent too much at once: {self._wire.too_large(scale)}"
                    yield self._instead(partial(self._wire.instead, scale=scale), message)
                    return
                if whole:
                    # Piece by piece: the package copies what it is given several times before it is parsed.
                    for start in range(0, len(held), _PIECE_BYTES):
                        yield bytes(held[start : start + _PIECE_BYTES])
                        await checkpoint()
                    held, scale = bytearray(), JsonScale()
        if held:
            yield bytes(held)

    async def aclose(self) -> None:
        """Close it, read or not."""
        await self._stream.aclose()

    def _pieces(self, before: bytes, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        """The parts of a chunk, and whether an event ends with each: the end of the first event, those that are whole
        in this chunk, and the rest.
        """
        ends = [found.end() - len(before) for found in _EVENT_END.finditer(before + chunk)] if self._events else []
        start = 0
        for end in dict.fromkeys([*ends[:1], *ends[-1:]]):
            yield chunk[start:end], True
            start = end
        if start < len(chunk):
            yield chunk[start:], False

    def _instead(self, error_for: Callable[[RequestId], JSONRPCError], message: str) -> bytes:
        """What the request is answered with. Errors: httpx's own, with the message, when what is answered is none."""
        try:
            identity = json.loads(self._request.content)["id"]
        except (ValueError, LookupError, TypeError) as error:
            kind = SSEError if self._events else ReadError
            raise kind(message, request=self._request) from error
        said = error_for(identity).model_dump_json(by_alias=True, exclude_unset=True).encode()
        return b"event: message\ndata: " + said + b"\n\n" if self._events else said
