"""Server-sent events over httpx: the JSON of an answer, piece by piece.

The SDKs have a reader of their own, made of generators that do not close each other: trio complains of them after every
error and every answer that ends in `[DONE]`. Here one generator holds the connection, so closing it releases it.

Source: the HTML standard, server-sent events; `[DONE]` is OpenAI's.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from repertory.backends.models.release import release

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_DONE = "[DONE]"
_LAST_BYTES_S = 0.1
"""How long a server that is done may take to say so on the connection, which then can serve again."""


async def server_sent(response: Any, errors: tuple[type[Exception], ...]) -> AsyncGenerator[object, None]:
    """What the events of an httpx response hold, in order, up to `[DONE]` or to its end.

    Errors: httpx's, and `ValueError` for what is not JSON in UTF-8. `errors` are those that an unread rest may raise.
    """
    chunks: AsyncIterator[bytes] = response.aiter_bytes()
    decoder = EventDecoder()
    try:
        async for chunk in chunks:
            for data in decoder.feed(chunk):
                if data == _DONE:
                    with anyio.move_on_after(_LAST_BYTES_S), suppress(*errors):
                        async for _ in chunks:
                            pass
                    return
                yield json.loads(data)
    finally:
        await release(chunks, response.aclose, errors)


class EventDecoder:
    """Cuts bytes into the data of events. Lines end in LF or CRLF; other fields than `data` are passed over."""

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The data of the events that this chunk completes. `ValueError` when it is not UTF-8."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            text = line.removesuffix(b"\r")
            if text.startswith(b"data:"):
                self._data.append(text[5:].removeprefix(b" ").decode())
            elif not text and self._data:
                yield "\n".join(self._data)
                self._data = []
