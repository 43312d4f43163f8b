"""What is to be done before the process ends, if nothing else does it: state that was set is stored, what was said is
offered to memory.

Tools set state within a turn, which stores it. A program may set it at any time, and end without another call. What
was said waits for a trigger of memory, and the program may end before. What does these things is held here until it
was done, so that it outlives the last reference to its agent as well.

At the end of the process everything is tried once, all of it at the same time and within a bound. What is left then is
named in the log, and the process ends.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import anyio

from repertory.core.state import AgentState
from repertory.forking import call_in_children
from repertory.runtime.cell import attempt

Finish: TypeAlias = Callable[[float], Awaitable[str | None]]
"""Does it, within the time that is left until a time of the event loop's clock. Returns why some of it is not done, and
None when all of it is.
"""


class ExitHost(Protocol):
    """Where it is done at the end."""

    def run_within(self, function: Callable[[], Awaitable[None]], within_s: float) -> None:
        """Run an async function there, and return when it has ended or that time is over, whatever runs there."""
        ...

    def stop(self) -> None:
        """Nothing more is to come."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """One thing that is to be done."""

    left: str
    """What the log says when it is not done."""
    session_id: str | None
    """None when the conversation is kept nowhere."""
    agent_id: str
    finish: Finish
    host: Callable[[], ExitHost]
    """Where it is done; made when first needed."""
    of_memory: bool = False
    """Whether it may hold a conversation that is kept nowhere else."""


EXIT_S = 10.0
"""How long the end of the process may take, with everything that is to be done before it."""
UNSAVED_SHARE = 0.7
"""The part of it for what is held here. The rest is for committing journals and giving sessions up."""
HELD_MAX = 256
"""Agents that are held for their memory. With more the oldest is done now; with twice as many it is given up."""
_RETURN_S = 0.5
"""How long what was cancelled may take to return."""

_log = logging.getLogger("repertory.sessions")
_lock = threading.Lock()
_unsaved: dict[int, Unfinished] = {}
"""By the identity of what is to be stored, the oldest first."""
_under_way: dict[int, bool] = {}
"""What is being done now, and whether there is more of it since. Whatever fails is not held again."""
_making_room = _registered = _ending = False
_spent_s = 0.0
"""How much of `EXIT_S` is used up."""


def watch_state(state: AgentState, store: Finish, of: tuple[str, str], host: Callable[[], ExitHost]) -> None:
    """Store what is set in the state from now on at the end of the process, unless it is stored before. `of`: session
    and agent.
    """
    text = "state that was set was not stored, and is lost"
    unfinished = Unfinished(left=text, session_id=of[0], agent_id=of[1], finish=store, host=host)
    state.watch = partial(_note, id(state), unfinished)


def hold_memory(key: int, unfinished: Unfinished, unread: bool) -> None:
    """Offer what was said to memory at the end of the process, unless that is done before; `unread`: whether anything
    is left.
    """
    global _making_room
    _note(key, unfinished, unread)
    given_up: list[Unfinished] = []
    with _lock:
        held = _held_for_memory()
        while len(held) > 2 * HELD_MAX:
            given_up.append(_unsaved.pop(held.pop(0)))
        begins = len(held) > HELD_MAX and not _making_room
        _making_room = _making_room or begins
    for each in given_up:
        _tell(each, f"more than {2 * HELD_MAX} agents wait for their memory stores")
    if begins:
        threading.Thread(target=_make_room, name="repertory-memory", daemon=True).start()


def finish_unsaved(host: ExitHost, within_s: float) -> None:
    """Do what is left, all of it at the same time. What is not done within that time is logged, and given up."""
    with _lock:
        left = dict(_unsaved)
        _unsaved.clear()
        _under_way.update(dict.fromkeys(left, False))
    _finish(host, left, within_s)


def end_process(host: Callable[[], ExitHost]) -> None:
    """The process ends: stop the host, and take nothing on any more. To be called at exit."""
    global _ending
    _ending = True
    host().stop()


def left_s(within_s: float) -> float:
    """What is left of the time for the end of the process."""
    return within_s - _spent_s


def _note(key: int, unfinished: Unfinished, changed: bool) -> None:
    if (changed and key in _unsaved) or _ending:
        return
    with _lock:
        if key in _under_way:
            _under_way[key] = changed
            return
        if not changed:
            _unsaved.pop(key, None)
            return
        _unsaved[key] = unfinished
    _register()


def _register() -> None:
    """Have it done at the end of the process: when the main thread ends, as far as it is known then, and at exit.

    At exit is late: names are not resolved any more (asyncio does it in threads of `concurrent.futures`), and in some
    releases no thread is started. What is registered last is called first, in both places.
    """
    global _registered
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    if not _registered:
        _registered = True
        assert concurrent.futures.thread  # Its own function is registered before ours.
        early = getattr(threading, "_register_atexit", None)
        if early is not None:
            with suppress(RuntimeError):  # The main thread has ended already.
                early(_at_end_of_main_thread)


def _at_end_of_main_thread() -> None:
    global _spent_s
    began = time.monotonic()
    for one in list(_unsaved.values())[:1]:
        finish_unsaved(one.host(), EXIT_S * UNSAVED_SHARE)
    _spent_s = time.monotonic() - began


def _at_exit() -> None:
    for one in list(_unsaved.values())[:1]:
        end_process(one.host)


def _held_for_memory() -> list[int]:
    return [key for key, each in _unsaved.items() if each.of_memory]


def _make_room() -> None:
    """Do the oldest now, one after the other."""
    global _making_room
    while True:
        with _lock:
            held = _held_for_memory()
            if len(held) <= HELD_MAX or _ending:
                _making_room = False
                return
            oldest = {held[0]: _unsaved.pop(held[0])}
            _under_way[held[0]] = False
        _finish(oldest[held[0]].host(), oldest, EXIT_S)


def _finish(host: ExitHost, left: Mapping[int, Unfinished], within_s: float) -> None:
    if not left:
        return
    waiting = dict(left)

    async def finish_all() -> None:
        by = anyio.current_time() + within_s
        async with anyio.create_task_group() as group:
            for key, one in left.items():
                group.start_soon(_finish_one, waiting, key, one, by)

    host.run_within(finish_all, within_s + _RETURN_S)
    for key, one in left.items():
        if waiting.pop(key, None) is not None:
            _tell(one, "there was no time left")
            with _lock:
                _under_way.pop(key, None)


async def _finish_one(waiting: dict[int, Unfinished], key: int, one: Unfinished, by: float) -> None:
    outcome: list[str | None] = []

    async def finish() -> None:
        outcome.append(await one.finish(by))

    error: Exception | None = None
    with anyio.CancelScope(deadline=by):
        error = await attempt(finish)  # Whatever it raises, the others are done, and the process ends.
    if (error is None and not outcome) or waiting.pop(key, None) is None:
        return
    with _lock:
        more = _under_way.pop(key, False)
    why = outcome[0] if outcome else repr(error)
    if why is not None:
        _tell(one, why)
    elif more:
        _note(key, one, changed=True)


def _forget_parent() -> None:
    """In a forked child: what is left is the parent's to do."""
    global _lock, _making_room, _ending, _spent_s
    _lock = threading.Lock()
    _unsaved.clear()
    _under_way.clear()
    _making_room, _ending, _spent_s = False, False, 0.0


def _tell(one: Unfinished, why: str) -> None:
    _log.error("%s session=%r agent=%r cause=%r", one.left, one.session_id, one.agent_id, why)


call_in_children(_forget_parent)
