"""Answers of services over HTTP, read by clients of httpx and httpx2: never packed, and no larger than a bound.

Packed data has any size once it is unpacked, and those clients unpack whatever comes. So a service is asked not to
pack, a packed answer is refused unread, and what a client or an SDK gathers in memory is counted as it arrives: a whole
body, or one event of a stream.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

import anyio

BODY_BYTES_MAX = 32 * 1024 * 1024
"""The largest answer that comes whole, and the largest event of a stream."""
REFUSAL_BYTES_MAX = 1024 * 1024
"""Bytes that are read of an answer with an error status. The rest is cut off: the status says enough."""

T = TypeVar("T")

_EVENT_ENDS = {
    "text/event-stream": (b"\n\n", b"\n\r\n", b"\r\r"),
    "application/x-ndjson": (b"\n",),
}
_FRAMES = "application/vnd.amazon.eventstream"
"""The media type of frames, which botocore bounds by the lengths in their heads."""


def bound_answers(
    client: Any,
    bytes_max: int | None = BODY_BYTES_MAX,
    refuse: Callable[[str], Exception] | None = None,
    *,
    whole: bool = False,
) -> None:
    """Bounds what this client of httpx or httpx2 reads. Reading another answer raises the library's `DecodingError`, or
    what `refuse` makes of the reason.

    `bytes_max`: None for answers of any size. `whole`: True if the bound holds for a stream of events as a whole.
    """

    async def ask(request: Any) -> None:
        request.headers["accept-encoding"] = "identity"

    async def bound(response: Any) -> None:
        library = import_module(type(response).__module__.partition(".")[0])
        response.stream = _body_class(library)(response, bytes_max, refuse or library.DecodingError, whole)

    hooks = client.event_hooks
    # `ask` runs last and `bound` first: no other hook asks for another encoding, and all see the bounded body.
    client.event_hooks = {"request": [*hooks["request"], ask], "response": [bound, *hooks["response"]]}


@cache
def _body_class(library: Any) -> Any:
    """The class of bodies for this library, which takes none but its own."""

    class BoundedBody(library.AsyncByteStream):
        def __init__(
            self, response: Any, bytes_max: int | None, refuse: Callable[[str], Exception], whole: bool
        ) -> None:
            self._stream: Any = response.stream
            self._refuse, self._bytes_max = refuse, bytes_max
            self._is_error: bool = response.status_code >= 300
            # Without this header, the library does not try to unpack what is refused here.
            self._encoding: str = response.headers.pop("content-encoding", "").strip().lower()
            kind: str = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            self._ends = () if whole else _EVENT_ENDS.get(kind, ())
            if kind == _FRAMES:
                self._bytes_max = None

        async def __aiter__(self) -> AsyncGenerator[bytes]:
            packed = self._encoding not in ("", "identity")
            if self._is_error:
                # Of a packed refusal nothing is read: what is unpacked has any size, and the status says enough.
                remaining = 0 if packed else REFUSAL_BYTES_MAX
                chunks = aiter(self._stream)
                while remaining > 0 and (chunk := await anext(chunks, b"")):
                    yield chunk[:remaining]
                    remaining -= len(chunk)
                await unwind(chunks, Exception)
                return
            if packed:
                raise self._refuse(f"the answer is packed ({self._encoding}), though the request asks for a plain one")
            held, tail = 0, b""
            chunks = aiter(self._stream)
            async for chunk in chunks:
                data = tail + chunk
                ends = [found + len(end) for end in self._ends if (found := data.rfind(end)) >= 0]
                held = len(data) - max(ends) if ends else held + len(chunk)
                if self._bytes_max is not None and held > self._bytes_max:
                    await unwind(chunks, Exception)
                    raise self._refuse(f"the answer is too large to be read: more than {self._bytes_max:,} bytes")
                # The end of an event may lie across two chunks.
                tail = data[-2:] if self._ends else b""
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    return BoundedBody


async def unwind(reader: AsyncIterator[object], *errors: type[Exception]) -> None:
    """Ends a reader half way. `errors` that the unread rest raises are ignored.

    The library, and every client above it, nests generators that do not close each other, and trio complains about
    those that are dropped. So an unfinished read is not closed where it stands: it goes on, is cancelled, and thereby
    unwinds all of them.
    """
    with anyio.CancelScope(shield=True) as scope, suppress(*errors):
        scope.cancel()
        async for _ in reader:
            pass


class Noting(Generator[Any, Any, T]):
    """Does a piece of work when it is awaited, and notes the generators that begin in it, the outer ones first.

    An error in the middle of nested generators ends those above it and drops those below. Once noted, these can be
    unwound.
    """

    def __init__(self, work: Coroutine[Any, Any, T], begun: list[AsyncGenerator[object]]) -> None:
        self._work = work
        self._begun = begun

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def send(self, value: Any, /) -> Any:
        return self._step(self._work.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._work.throw, *error)

    def _step(self, step: Callable[..., Any], *given: Any) -> Any:
        """Do a step of the work, during which Python tells of the generators that begin in this thread."""
        before = sys.get_asyncgen_hooks().firstiter

        def note(generator: Any) -> None:
            self._begun.append(generator)
            if before is not None:
                before(generator)

        sys.set_asyncgen_hooks(firstiter=note)
        try:
            return step(*given)
        finally:
            sys.set_asyncgen_hooks(firstiter=before)
