"""Clients that belong to an event loop: one per loop, made when first needed.

A client holds connections, and connections belong to the loop that opened them. So each loop has its own client, and
`aclose` closes the client of the loop that calls it.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel
from msgspec import Struct, field

from repertory.backends.shields import Uncut
from repertory.errors import StoreUnavailable
from repertory.forking import forget_in_children, never_collect

Connect = Callable[[AsyncExitStack], Awaitable[Any]]
"""Makes a client and pushes onto the stack what closes it."""
_CLOSE_TIMEOUT_S = 5.0


class _LoopClient(Struct):
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    client: Any = None


class LoopClients:
    """The clients of one model or store. May be used from several loops in several threads."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._clients: WeakKeyDictionary[Any, _LoopClient] = WeakKeyDictionary()
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Drop all clients, in a forked child. The parent's connections stay open for the parent."""
        never_collect(*self._clients.items())
        self._lock, self._clients = threading.Lock(), WeakKeyDictionary()

    async def get(self) -> Any:
        """The client of the running loop. Errors are those of making one; the next call tries again."""
        entry = self._entry()
        if entry.client is None:
            async with entry.lock:
                if entry.client is None:
                    entry.client = await self._connect(entry.stack)
        return entry.client

    async def aclose(self) -> None:
        """Close the client of the running loop, within 5 s. The next `get` makes a new one."""
        with self._lock:
            entry = self._clients.pop(_running_loop(), None)
        if entry is not None:
            with suppress(StoreUnavailable), Uncut(_CLOSE_TIMEOUT_S):
                await entry.stack.aclose()

    def _entry(self) -> _LoopClient:
        loop = _running_loop()
        entry = self._clients.get(loop)
        if entry is None:
            with self._lock:
                # A closed loop that somebody still refers to stays in a weak dictionary. Its connections cannot be
                # closed any more.
                for ended in [known for known in self._clients if _has_ended(known)]:
                    del self._clients[ended]
                entry = self._clients.setdefault(loop, _LoopClient())
        return entry


def _running_loop() -> Any:
    return anyio.lowlevel.current_token().native_token


def _has_ended(loop: Any) -> bool:
    is_closed = getattr(loop, "is_closed", None)  # asyncio's loops; trio's tokens go away with their run
    return is_closed is not None and bool(is_closed())
