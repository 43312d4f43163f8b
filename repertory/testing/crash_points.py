"""Numbered points, in the order in which a process reaches them, where it kills itself.

A test starts a child with a number; the child runs until it reaches the point with this number and dies, as by `kill
-9`, with nothing flushed and nothing closed. The next child takes the next number, until one survives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from repertory.backends.ports import ObjectStore, SessionStore
from repertory.testing.wrapped_stores import WrappedObjectStore, WrappedSessionStore

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
            label: The name of the point, for the reader of the test.
        """
        del label
        self.reached_count += 1
        if self.reached_count == self._crash_at:
            self._crash()


class CrashingSessionStore(WrappedSessionStore):
    """Wraps any store, with one crash point before and one after each call that changes something, and each step of a
    lease.

    Args:
        store: The store that is wrapped.
        points: Counts the points, and crashes at one of them.
    """

    def __init__(self, store: SessionStore, points: CrashPoints) -> None:
        super().__init__(store)
        self._points = points

    async def _call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        if name in ("load", "sessions", "pending_work"):
            return await call()
        self._points.reach(f"before {name}")
        result = await call()
        self._points.reach(f"after {name}")
        return result

    def _step(self, name: str, step: Callable[[], bool]) -> bool:
        self._points.reach(f"before {name}")
        done = step()
        self._points.reach(f"after {name}")
        return done


class CrashingObjectStore(WrappedObjectStore):
    """Wraps any object store, with one crash point before and one after each put and each delete.

    Args:
        store: The store that is wrapped.
        points: Counts the points, and crashes at one of them.
    """

    def __init__(self, store: ObjectStore, points: CrashPoints) -> None:
        super().__init__(store)
        self._points = points

    async def _call(self, name: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        if name in ("get", "list"):
            return await call()
        self._points.reach(f"before {name} {key}")
        result = await call()
        self._points.reach(f"after {name} {key}")
        return result


def _kill_self() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
