"""Numbered points, in the order in which a process reaches them, where it kills itself.

A test starts a child with a number; the child runs until it reaches the point with this number and dies, as by `kill
-9`, with nothing flushed and nothing closed. The next child takes the next number, until one survives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from repertory.backends.ports import (
    Batch,
    Condition,
    Lease,
    ObjectInfo,
    ObjectStore,
    Position,
    SessionInfo,
    SessionStore,
    StoredObject,
)
from repertory.core.journal.rows import Row
from repertory.core.owed import OwedWork, Resting
from repertory.errors import RepertoryError


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

    async def acquire(self, session_id: str, *, takeover: bool = False) -> Lease:
        self._points.reach("before acquire")
        lease = await self._store.acquire(session_id, takeover=takeover)
        self._points.reach("after acquire")
        return lease

    async def release(self, lease: Lease) -> None:
        self._points.reach("before release")
        await self._store.release(lease)
        self._points.reach("after release")

    async def release_all(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        self._points.reach("before release_all")
        outcomes = await self._store.release_all(leases)
        self._points.reach("after release_all")
        return outcomes

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        self._points.reach("before append")
        outcomes = await self._store.append(batches)
        self._points.reach("after append")
        return outcomes

    async def claim_due(
        self,
        now: float,
        limit: int,
        agents: Collection[str],
        resting: Collection[Resting] = (),
        passing: Collection[str] = (),
    ) -> Sequence[OwedWork]:
        self._points.reach("before claim")
        claimed = await self._store.claim_due(now, limit, agents, resting, passing)
        self._points.reach("after claim")
        return claimed

    async def owed(self, session_id: str | None = None) -> Sequence[OwedWork]:
        return await self._store.owed(session_id)

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        return await self._store.load(session_id, agent_id, whole=whole)

    async def sessions(self, session_id: str | None = None) -> Sequence[SessionInfo]:
        return await self._store.sessions(session_id)

    async def session_page(self, prefix: str, *, after: str = "", limit: int = 1000) -> Sequence[SessionInfo]:
        return await self._store.session_page(prefix, after=after, limit=limit)

    async def delete(self, session_id: str) -> None:
        self._points.reach("before delete")
        await self._store.delete(session_id)
        self._points.reach("after delete")

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
