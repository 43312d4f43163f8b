"""What is to be done before the process ends, if nothing else does it: state that was set is stored, what was said is
offered to memory.

Tools set state within a turn, which stores it. A program may set it at any time, and end without another call. What
was said waits for a trigger of memory, and the program may end before. What does these things is held here until it
was done, so that it outlives the last reference to its agent as well.
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


_memories: set[int] = set()
"""The keys of what is held for memory."""


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
"""By the identity of what is to be stored, the oldest first."""
HELD_MAX = 256
"""Agents whose conversation is kept nowhere else that are held for their memory; beyond it the oldest is done now."""


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
            _log.error("what was left could not be stored cause=%r", str(error))


def hold_memory(key: int, flush: Store, host: Callable[[], ExitHost], unread: bool) -> None:
    """Offer what was said to memory at the end of the process, unless that is done before; `unread`: whether anything
    is left.
    """
    _note(key, flush, host, unread)
    with _lock:
        _memories.add(key)
        _memories.intersection_update(_unsaved)
        held = [each for each in _unsaved if each in _memories]
        oldest = _unsaved.pop(held[0]) if len(held) > HELD_MAX else None
    if oldest is not None:
        threading.Thread(target=_flush_one, args=oldest, name="repertory-memory", daemon=True).start()


def _flush_one(flush: Store, host: Callable[[], ExitHost]) -> None:
    try:
        host().run(flush)
    except RepertoryError as error:
        _log.error("memory could not be flushed cause=%r", str(error))


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
