"""Giving up an answer that has not been read to its end.

httpx, and every client above it, nests generators that do not close each other, and trio complains about those that are
dropped half way. So an unfinished read is not closed where it stands: it goes on, is cancelled, and thereby unwinds all
of them. Then the connection is closed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import anyio

_CLOSE_TIMEOUT_S = 2.0


async def release(
    reader: AsyncIterator[object], close: Callable[[], Awaitable[object]], errors: tuple[type[Exception], ...]
) -> None:
    """Unwind what reads, then close, within 2 s and shielded. `errors` are what the unread rest may raise: ignored."""
    with anyio.CancelScope(shield=True) as scope, suppress(*errors):
        scope.cancel()
        async for _ in reader:
            pass
    with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
        await close()
