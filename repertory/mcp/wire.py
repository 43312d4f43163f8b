"""Limits how much a tool server may send at once, over pipes and over HTTP, and replaces larger answers.

The `mcp` package gathers a message in memory, however large, and parses it on the event loop. A thread would not help:
the parser holds the interpreter's lock until it is done. So arriving data is measured (`core/limits.py`) before it is
put together, and only quickly parsed messages are passed on. An answer that is too large is replaced by an error with
the same id: the waiting call gets that, and the connection goes on.

Over HTTP, hooks of the package's HTTP client do this, so the client may be the user's own, too.
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
"""The size of an answer as a multiple of its result, at most: escapes (`\\u0416`) and objects around texts count."""
_TOO_LARGE = "repertory: too large"
"""The `data` of an error that replaces an answer."""
_PIECE_BYTES = 64 * 1024
_EVENT_END = re.compile(rb"\n[\r\n]+|\r\r[\r\n]*")
"""An empty line, after the line before it."""


class WireBound:
    """The size limit of a server's messages, and why the connection was ended, if the limit was the reason."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.broken: str | None = None
        """The message after which the connection could not go on."""
        self._asked: list[int] = []

    @property
    def bytes_max(self) -> int:
        """`EXPANSION` times the largest result limit of the calls in flight, and at least that of the default."""
        return EXPANSION * max([RESULT_BYTES, *self._asked])

    @contextmanager
    def call(self, result_bytes: int) -> Generator[None]:
        """Count a call with this result limit as in flight for the length of the block."""
        self._asked.append(result_bytes)
        try:
            yield
        finally:
            self._asked.remove(result_bytes)

    def too_large(self, scale: JsonScale) -> str:
        """Describes which limit a message exceeds."""
        return (
            f"it takes at least {scale.weight:,} bytes as it is sent, counting {VALUE_BYTES} for each of "
            f"{scale.values:,} values; {EXPANSION} times limits['result_bytes'] is {self.bytes_max:,}"
        )

    def instead(self, identity: RequestId, scale: JsonScale) -> JSONRPCError:
        """The error that replaces an answer that is too large."""
        message = (
            "the answer of the tool server is too large to be read; ask for less of it (a part, a page, a filter): "
            f"server={self.server!r}, {self.too_large(scale)}"
        )
        return _error(identity, message, _TOO_LARGE)


def stands_for_too_much(error: ErrorData) -> bool:
    """True if the error replaces an answer that is too large."""
    return error.data == _TOO_LARGE


def _error(identity: RequestId, message: str, data: str | None = None) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=identity, error=ErrorData(code=INTERNAL_ERROR, message=message, data=data))


def bound_client(client: AsyncClient, wire: WireBound) -> AsyncClient:
    """A copy of the client with limited answers: whole bodies, or each event of a stream. Shares its connections.

    The given client is unchanged. Compression is not requested, and compressed answers are refused: their size is
    unknown until they are unpacked.
    """

    async def ask(request: Request) -> None:
        request.headers["accept-encoding"] = "identity"

    async def bound(response: Response) -> None:
        response.stream = _BoundedBody(response, wire)

    mine = copy(client)
    hooks = client.event_hooks
    # `ask` runs last and `bound` first: no other hook asks for another encoding, and all see the limited body.
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
        # Without this header, httpx does not try to unpack a body that replaces the answer.
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
                    # In pieces: the package copies its input several times before parsing.
                    for start in range(0, len(held), _PIECE_BYTES):
                        yield bytes(held[start : start + _PIECE_BYTES])
                        await checkpoint()
                    held, scale = bytearray(), JsonScale()
        if held:
            yield bytes(held)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _pieces(self, before: bytes, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        """The parts of a chunk, and whether an event ends with each: the end of the first event, the events that are
        whole in this chunk, and the rest.
        """
        ends = [found.end() - len(before) for found in _EVENT_END.finditer(before + chunk)] if self._events else []
        start = 0
        for end in dict.fromkeys([*ends[:1], *ends[-1:]]):
            yield chunk[start:end], True
            start = end
        if start < len(chunk):
            yield chunk[start:], False

    def _instead(self, error_for: Callable[[RequestId], JSONRPCError], message: str) -> bytes:
        """The response that replaces an answer. Errors: httpx's own, with the message, when the request has no id."""
        try:
            identity = json.loads(self._request.content)["id"]
        except (ValueError, LookupError, TypeError) as error:
            kind = SSEError if self._events else ReadError
            raise kind(message, request=self._request) from error
        response = error_for(identity).model_dump_json(by_alias=True, exclude_unset=True).encode()
        return b"event: message\ndata: " + response + b"\n\n" if self._events else response
