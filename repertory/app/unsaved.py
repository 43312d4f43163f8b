"""State that was set and is not on its way to its session yet: stored when the process ends, if nothing else does it.

Tools set state within a turn, which stores it. A program may set it at any time, and end without another call: what
stores it is held here until it was taken, so that it outlives the last reference to its agent as well.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeAlias

from repertory.core.state import AgentState
from repertory.errors import RepertoryError

Store: TypeAlias = Callable[[], Awaitable[None]]
"""Stores the state of one agent."""


class ExitHost(Protocol):
    """Where it is stored at the end."""

    def run(self, function: Store, /) -> None:
        """Run an async function and wait for it."""
        ...

    def stop(self) -> None:
        """Nothing more is to come."""
        ...


_log = logging.getLogger("repertory.sessions")
_lock = threading.Lock()
_unsaved: dict[int, tuple[Store, Callable[[], ExitHost]]] = {}
"""By the identity of the state."""


def watch_state(state: AgentState, store: Store, host: Callable[[], ExitHost]) -> None:
    """Store what is set in the state from now on at the end of the process, unless it is stored before."""
    state.watch = partial(_note, id(state), store, host)


def flush_unsaved(host: ExitHost) -> None:
    """Store what is left, there. What cannot be stored is logged."""
    while True:
        with _lock:
            if not _unsaved:
                return
            _, (store, _) = _unsaved.popitem()
        try:
            host.run(store)
        except RepertoryError as error:
            _log.error("state could not be stored cause=%r", str(error))


def _note(key: int, store: Store, host: Callable[[], ExitHost], changed: bool) -> None:
    if changed and key in _unsaved:
        return
    with _lock:
        if not changed:
            _unsaved.pop(key, None)
            return
        _unsaved[key] = store, host
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def _at_exit() -> None:
    for _, host in list(_unsaved.values())[:1]:
        flush_unsaved(host())
        host().stop()
