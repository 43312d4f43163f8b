"""Forks of this process: what a child must drop of its parent, and what a fork must not interrupt.

A child begins with a copy of its parent's memory and one of its threads. Its event loops and other threads are gone,
locks that other threads held stay locked, and connections and files belong to the parent too. So an object that has
such things registers how it begins anew in a child (`forget_in_children`); that runs in the child before anything else.

Work that a fork must not copy half done runs in a block of `unforked`: SQLite calls, or locking a file, from opening it
to remembering it. A fork waits until every thread has left such a block.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol
from weakref import WeakSet


class Inheritable(Protocol):
    """An object with something that belongs to the process that made it."""

    def forget_parent(self) -> None:
        """Begin anew in a child, with fresh locks, and leave alone what is the parent's. Must not raise."""
        ...


class Unforked:
    """`with unforked:` no fork happens in the block. It may be nested. Never wait in it for another thread, since that
    thread may be the one that forks.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        """Threads in a block."""
        self._forks = 0
        """Threads that want to fork: no thread enters a block before they have."""
        self._own = _Depth()

    def __enter__(self) -> None:
        if not self._own.depth:
            with self._changed:
                while self._forks:
                    self._changed.wait()
                self._inside += 1
        self._own.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._own.depth -= 1
        if not self._own.depth:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Wait until no other thread is in a block, and keep all threads out until `after_fork`."""
        self._changed.acquire()
        self._forks += 1
        while self._inside > bool(self._own.depth):
            self._changed.wait()

    def after_fork(self) -> None:
        """Let the parent's threads into blocks again."""
        self._forks -= 1
        self._changed.notify_all()
        self._changed.release()

    def forget_parent(self) -> None:
        """Begin anew in the child, where no other thread is in a block."""
        self._changed = threading.Condition(threading.Lock())
        self._inside, self._forks = int(bool(self._own.depth)), 0


class _Depth(threading.local):
    depth = 0


unforked = Unforked()
_things: WeakSet[Inheritable] = WeakSet()
_functions: list[Callable[[], None]] = []
_kept: list[object] = []


def forget_in_children(thing: Inheritable) -> None:
    """Call its `forget_parent` in every child that is forked while the object exists."""
    _things.add(thing)


def call_in_children(function: Callable[[], None]) -> None:
    """Call it in every child. For modules."""
    _functions.append(function)


def never_collect(*parents: object) -> None:
    """Keep these objects alive: collecting an event loop, a task or a socket in a child affects the parent's."""
    _kept.extend(parents)


def _begin_anew() -> None:
    unforked.forget_parent()
    for function in _functions:
        function()
    for thing in list(_things):
        thing.forget_parent()


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(before=unforked.before_fork, after_in_parent=unforked.after_fork, after_in_child=_begin_anew)
