"""Numbered points, in the order in which a process reaches them, where it kills itself.

A test starts a child with a number; the child runs until it reaches the point with this number and dies, as by `kill
-9`, with nothing flushed and nothing closed. The next child takes the next number, until one survives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, TypeVar

from msgspec.structs import replace

from repertory.backends.ports import (
    Batch,
    Condition,
    IdPage,
    Lease,
    ObjectInfo,
    ObjectStore,
    OwnedRows,
    Position,
    SessionInfo,
    SessionStore,
    StoreCapabilities,
    StoredObject,
)
from repertory.core.journal.rows import Row
from repertory.errors import RepertoryError

P = ParamSpec("P")
T = TypeVar("T")


class CrashPoints:
    """Counts the points that are reached, and crashes at one of them.

    Args:
        crash_at: The number of the point, from 1; None never crashes.
        crash: Must not return; None sends SIGKILL to this process.
    """

    def __init__(self, crash_at: int | None, crash: Callable[[], None] | None = None) -> None:
        self._crash_at = crash_at
        self._crash = crash or _kill_self
        self.reached_count = 0
        """Points reached so far; after a surviving run, the number of points in it."""

    def reach(self, label: str) -> None:
        """Count one point, and crash if it is the chosen one. `label` is for the reader of the test.

        Args:
            label: What the point is, for the reader of the test.
        """
        del label
        self.reached_count += 1
        if self.reached_count == self._crash_at:
            self._crash()


class CrashingSessionStore(SessionStore):
    """Wraps any store, with one crash point before and one after each call that changes something.

    Args:
        store: The store that is wrapped.
        points: Counts the points, and crashes at one of them.
    """

    def __init__(self, store: SessionStore, points: CrashPoints) -> None:
        self._store = store
        self._points = points

    @property
    def name(self) -> str:
        return self._store.name

    @property
    def capabilities(self) -> StoreCapabilities:
        """`acquires_again` of the wrapped store and its part `waking`."""
        waking = self._store.capabilities.waking
        if waking is not None:
            waking = replace(waking, claim_due=self._crashing("claim", waking.claim_due))
        return StoreCapabilities(waking=waking, acquires_again=self._store.capabilities.acquires_again)

    def _crashing(self, label: str, call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        async def crashing(*args: P.args, **options: P.kwargs) -> T:
            self._points.reach(f"before {label}")
            result = await call(*args, **options)
            self._points.reach(f"after {label}")
            return result

        return crashing

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        return await self._crashing("acquire", self._store.acquire)(
            session_id, takeover=takeover, load=load, again=again
        )

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        return await self._crashing("release", self._store.release)(leases)

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        return await self._crashing("append", self._store.append)(batches)

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        return await self._store.load(session_id, agent_id, whole=whole)

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        return await self._store.sessions(session_id, page=page)

    async def delete(self, session_id: str) -> None:
        await self._crashing("delete", self._store.delete)(session_id)

    async def aclose(self) -> None:
        await self._store.aclose()


class CrashingObjectStore:
    """Wraps any object store, with one crash point before and one after each put and each delete.

    Args:
        store: The store that is wrapped.
        points: Counts the points, and crashes at one of them.
    """

    def __init__(self, store: ObjectStore, points: CrashPoints) -> None:
        self._store = store
        self._points = points

    @property
    def name(self) -> str:
        return self._store.name

    async def get(self, key: str) -> StoredObject:
        return await self._store.get(key)

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        self._points.reach(f"before put {key}")
        version = await self._store.put(key, body, condition)
        self._points.reach(f"after put {key}")
        return version

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        return await self._store.list(prefix, start_after)

    async def delete(self, key: str) -> None:
        self._points.reach(f"before delete {key}")
        await self._store.delete(key)
        self._points.reach(f"after delete {key}")

    async def aclose(self) -> None:
        await self._store.aclose()


def _kill_self() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
