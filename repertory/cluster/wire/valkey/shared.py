"""What one store of sessions has in Valkey: its directory, its call box, and the work that keeps both true."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NoReturn

import anyio

from repertory.backends.peer_ports import SharedElsewhere
from repertory.cluster.wire.valkey.call_box import ValkeyCallBox
from repertory.cluster.wire.valkey.directory import HINT_S, ValkeyDirectory
from repertory.cluster.wire.valkey.link import Link, ValkeyAddress
from repertory.errors import Invalid, RepertoryError

_TIMEOUT_S = 2.0
"""How long a connection, or an answer, may take."""
_END_S = 0.5
_BEATS = 5
"""So many in the time that an owner counts as alive."""
_HINTS = 500
"""So many are written with one question."""


class SharedInValkey(SharedElsewhere):
    """See `SharedElsewhere`. For one event loop."""

    def __init__(
        self, address: ValkeyAddress, prefix: str, owner: str, owns: Callable[[], Collection[str]], ttl_s: float
    ) -> None:
        """`prefix`: of all keys; `ttl_s`: how long the owner counts as alive after it was last heard."""
        self._link = Link(address, _TIMEOUT_S)
        self._directory = ValkeyDirectory(self._link, prefix, owner, ttl_s, self._check_open)
        self._call_box = ValkeyCallBox(self._link, prefix, owner, ttl_s, self._check_open)
        self._owns = owns
        self._beat_s = ttl_s / _BEATS
        self._changed: set[str] = set()
        self._all = True
        """Whether the hints of all sessions are to be written."""
        self._work = anyio.Event()
        self._runs = False
        self._closed = False
        self._name = address.name

    def directory(self) -> ValkeyDirectory:
        return self._directory

    def call_box(self) -> ValkeyCallBox:
        return self._call_box

    def changed(self, session_id: str) -> None:
        if not self._all:
            self._changed.add(session_id)
            self._work.set()

    async def forget(self, session_id: str) -> bool:
        return await self._call_box.forget(session_id)

    async def maintain(self) -> None:
        """At its end the owner is not present any more."""
        self._runs = True
        async with anyio.create_task_group() as tasks:
            connected = anyio.CancelScope(shield=True)
            tasks.start_soon(self._connect, connected)
            tasks.start_soon(self._tell)
            try:
                await self._beat()
            finally:
                self._runs = False
                with anyio.CancelScope(shield=True):
                    await self._end()
                    connected.cancel()

    async def aclose(self) -> None:
        """Twice is allowed. Where nothing maintains it any more, the owner counts as dead a while later."""
        if self._closed:
            return
        self._closed = True
        if self._runs:
            await self._end()

    async def _connect(self, connected: anyio.CancelScope) -> None:
        with connected:
            await self._link.run()

    async def _end(self) -> None:
        with anyio.move_on_after(_END_S), suppress(RepertoryError):
            await self._directory.end()

    async def _beat(self) -> NoReturn:
        beats = times = 0
        while True:
            if not self._closed:
                with suppress(RepertoryError):  # The next one is soon.
                    await self._directory.beat()
            beats += 1
            # Hints end, and a server that was away may have lost what it had.
            if beats * self._beat_s >= HINT_S / 3 or times != self._link.times:
                beats, times, self._all = 0, self._link.times, True
            if self._all:
                self._work.set()
            await anyio.sleep(self._beat_s)

    async def _tell(self) -> NoReturn:
        """Write hints, as soon as there is something to be said."""
        while True:
            await self._work.wait()
            self._work = anyio.Event()
            owned = set(self._owns())
            self._all, changed = False, sorted(owned if self._all else self._changed)
            self._changed = set()
            try:
                for first in range(0, len(changed), _HINTS):
                    some = changed[first : first + _HINTS]
                    await self._directory.hint([(session_id, session_id in owned) for session_id in some])
            except RepertoryError:
                self._all = True  # With the next beat.

    def _check_open(self) -> None:
        if self._closed:
            raise Invalid("this was closed before", name=self._name)
