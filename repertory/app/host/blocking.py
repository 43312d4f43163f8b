"""The private event loop of sync code: one thread for the process, started by the first sync call.

Sync calls of every agent run there, on one host, so two agents on one session share its actors. At interpreter exit
the host is drained, which ends the calls of threads that still wait for one, and the thread ends. The drain is bounded:
the thread is a daemon, so a process ends even while its loop, its tools or its stores are stuck.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

import anyio
from msgspec import Struct

from repertory.actors.call import OPEN_TURNS, OUTER_TURNS
from repertory.app.host.host import PAUSED_S, Host, HostSettings
from repertory.backends.wait_graph import know_wait
from repertory.backends.worker_threads import context_of_work, run_in_thread, start_thread
from repertory.errors import Invalid, RepertoryError, StoreUnavailable, Unavailable
from repertory.forking import call_in_children, never_collect
from repertory.logs import ERROR, WARNING, note
from repertory.runtime.cell import attempt
from repertory.runtime.lifecycle import ExitFailed, Killed
from repertory.runtime.waker import parking_here

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from repertory.core.state import AgentState

P = ParamSpec("P")
T = TypeVar("T")

_RESERVE_SHARE = 0.25
"""The share of the exit time that is reserved for committing journals and releasing sessions."""
_EXITING = "the process is exiting; it takes no more sync calls"
_log = logging.getLogger("repertory.app")


class BlockingHost:
    """A host in a thread of its own."""

    def __init__(self, settings: HostSettings | None = None) -> None:
        """`settings.drain_timeout_s` is how long `stop` may take.

        Errors: `StoreUnavailable` when the system starts no more threads; what kept the loop from starting, such as
        `Unavailable` without a free descriptor. The next try may work.
        """
        self._settings = settings or HostSettings(drain_timeout_s=EXIT_S, idle_timeout_s=PAUSED_S, pauses=True)
        self._ready = threading.Event()
        self._portal: BlockingPortal | None = None
        self._wake: Callable[[], None] | None = None
        """Wakes the loop's own task without waiting, since the loop may be blocked."""
        self._soon: Callable[[Callable[[], object]], None]
        """Calls a function in the loop; there when the loop is."""
        self._late: deque[Callable[[], Coroutine[object, object, None]]] = deque()
        """The functions for the loop's own task to start."""
        self._stopping = False
        self._end_by = 0.0
        """The time at which `stop` has to return, by the monotonic clock."""
        self._failed: Exception | None = None
        """The error that kept the loop from starting."""
        self._thread = start_thread(self._run_loop, name="repertory-sync")
        # The constructor raises what kept the loop from starting, so no later call finds a half-made one.
        self._ready.wait()
        if self._failed is not None:
            raise self._failed

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """Run an async function in this loop and wait for it. An exception while waiting, such as Ctrl-C, cancels it.
        Errors: what it raises; `Invalid` when called from this loop itself.
        """
        scopes: list[anyio.CancelScope] = []
        given_up: list[bool] = []
        begun: list[Awaitable[T]] = []  # Known to looks at waits, see below.

        async def call() -> T:
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                if given_up:
                    scope.cancel()
                begun.append(function(*args, **options))
                return await begun[0]
            raise Invalid(_EXITING)  # Nobody hears it: the call was given up.

        def give_up() -> None:
            given_up.append(True)
            for scope in scopes:
                scope.cancel()

        future: Future[T] | None = None
        try:
            future = self.start(call)
            return future.result()
        except BaseException as error:
            if future is not None:
                future.cancel()  # Without effect on a future that has ended, whose own error this is.
            else:  # Ctrl-C came while the call was on its way: it may have begun.
                with suppress(RuntimeError):  # This loop has ended.
                    self._soon(give_up)
            # Ctrl-C within a condition of the standard library leaves its lock free, which fails on the way out.
            if isinstance(error, RuntimeError) and isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None
            raise

    @property
    def is_here(self) -> bool:
        """True if the caller runs in this loop."""
        return threading.current_thread() is self._thread

    def start(self, function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> Future[T]:
        """Start an async function in this loop; the future has its result or error. Cancelling it cancels the function.

        Errors: `Invalid` when called from this loop itself, where waiting for the future would never end.
        """
        if self.is_here:
            raise Invalid("a sync call from inside the sync loop would wait for itself; use invoke_async")
        if self._portal is None:
            raise Invalid(_EXITING)

        async def call() -> T:
            return await function(*args, **options)

        return _calling_context().run(self._portal.start_task_soon, call)

    async def run_across(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run an async function in this loop, for a caller in another one, whose loop goes on meanwhile. Cancelling the
        caller cancels the function. Errors: what it raises; `Invalid` when the process is exiting.
        """
        ended, waker = anyio.Event(), parking_here()
        values: list[T] = []
        failures: list[Exception] = []
        scopes: list[anyio.CancelScope] = []
        given_up: list[bool] = []

        async def keep() -> None:
            values.append(await function())

        async def call() -> None:
            try:
                with anyio.CancelScope() as scope:
                    scopes.append(scope)
                    if not given_up and isinstance(failure := await attempt(keep), ExitFailed):
                        failures.append(failure.error)
            finally:
                with suppress(RuntimeError):  # The caller's loop has ended.
                    waker.call_threadsafe(ended.set)

        def cancel() -> None:
            given_up.append(True)
            for scope in scopes:
                scope.cancel()

        self._late.append(call)
        if self._portal is None or not self._woken():
            raise Invalid(_EXITING)
        try:
            await ended.wait()
        except BaseException:
            with suppress(RuntimeError):  # This loop has ended, and the function with it.
                self._soon(cancel)
            raise
        if failures:
            raise failures[0]
        if not values:
            raise Invalid(_EXITING)
        return values[0]

    def run_within(self, function: Callable[[], Awaitable[None]], within_s: float) -> None:
        """Run an async function in this loop, and return when it has ended or after `within_s`, even if the loop is
        blocked. The function must not raise.
        """
        ended = threading.Event()

        async def call() -> None:
            await function()
            ended.set()

        self._late.append(call)
        if self._woken():
            ended.wait(within_s)

    def stop(self) -> None:
        """Finish pending state and memory, drain the host, and end the thread. A second call does nothing.

        It returns in time even if the loop is blocked. What has not ended by then is abandoned, and logged.
        """
        if self._portal is None:
            return
        within_s = self._settings.drain_timeout_s - _spent_s
        self._end_by = time.monotonic() + within_s
        finish_unsaved(self, within_s - self._settings.drain_timeout_s * (1 - UNSAVED_SHARE))
        self._portal, self._stopping = None, True
        self._woken()
        # Bounded: a tool that hangs in this loop must not keep the process alive. The thread is a daemon.
        self._thread.join(max(0.0, self._end_by - time.monotonic()))
        if self._thread.is_alive():
            note(_log, ERROR, "sync calls did not end in time; the process does not wait for them", within_s=within_s)

    def _woken(self) -> bool:
        """Wake the loop's own task. False when the loop has ended."""
        try:
            if self._wake is not None:
                self._wake()
        except RuntimeError:
            return False
        return self._wake is not None

    def _run_loop(self) -> None:
        try:
            anyio.run(self._serve)
        except (OSError, RuntimeError, RepertoryError) as error:
            if self._ready.is_set():
                raise
            self._failed = error
            if isinstance(error, OSError):  # no free descriptor, for one
                self._failed = Unavailable("the event loop for sync calls could not start", cause=str(error))
                self._failed.__cause__ = error
            self._ready.set()

    async def _serve(self) -> None:
        from anyio.from_thread import BlockingPortal  # loaded by the first sync call

        # The portal waits for every call without a bound, so the drain, which has a deadline, comes first.
        async with BlockingPortal() as portal, Host(self._settings) as host, anyio.create_task_group() as group:
            events, self._soon = [anyio.Event()], parking_here().call_threadsafe
            self._wake = lambda: self._soon(lambda: events[0].set())
            self._portal = portal
            self._ready.set()
            while not self._stopping:
                await events[0].wait()
                events[0] = anyio.Event()
                while self._late:
                    group.start_soon(self._late.popleft())
            group.start_soon(self._cut_short, host)
            await host.system.drain("the process ends")
            group.cancel_scope.cancel()

    async def _cut_short(self, host: Host) -> None:
        """Cut the drain short when only its reserve of time is left."""
        reserve_s = self._settings.drain_timeout_s * _RESERVE_SHARE
        await anyio.sleep(max(0.0, self._end_by - reserve_s - time.monotonic()))
        host.system.cut_short()


# More than the future that it waits in.
know_wait(BlockingHost.run, lambda variables: variables["begun"], outermost=True)


def _calling_context() -> Context:
    """A copy of the running context variables, with the turns of the tool whose thread this is: a tool that calls from
    a context of its own waits for that call all the same.
    """
    context, work = copy_context(), context_of_work()
    if work is not None and not context.get(OPEN_TURNS, ()):
        context.run(OPEN_TURNS.set, work.get(OPEN_TURNS, ()))
        context.run(OUTER_TURNS.set, work.get(OUTER_TURNS, ()))
    return context


async def in_sync_loop(function: Callable[[], Awaitable[T]]) -> T:
    """Run an async function in the loop of sync code, for a caller in any loop. Cancelling the caller cancels it.

    Errors: what it raises; `Invalid` when the process is exiting.
    """
    host = _host or await run_in_thread(blocking_host)
    return await (function() if host.is_here else host.run_across(function))


_host_lock = threading.Lock()
_host: BlockingHost | None = None


def blocking_host() -> BlockingHost:
    """The process's host for sync calls, started on first use. A forked child starts its own."""
    global _host
    with _host_lock:
        if _host is None:
            _host = BlockingHost()
            atexit.register(_at_exit)
        return _host


# Work to do before the process ends, if it was not done before: changed state is stored, and memories are extracted
# from new messages.
#
# A turn stores the state that its tools set. A program may set state at any time, and end without another call.
# Messages wait for a memory trigger, and the program may end before. The functions for this work are held here until
# they ran, so they also outlive the last reference to their agent.
#
# At the end of the process every function is called once, all at the same time and within a bound. Work that is left
# then is named in the log, and the process ends.

FinishAtExit: TypeAlias = Callable[[float], Awaitable[str | None]]
"""Does the work before a time of the event loop's clock. Returns why some of it is not done, and None when all of it
is.
"""


class Unfinished(Struct, frozen=True, kw_only=True):
    """One piece of work to do before the process ends."""

    left: str
    """The log's text when the work is not done."""
    session_id: str | None
    """The session's id; None if the conversation is not stored."""
    agent_id: str
    finish: FinishAtExit
    of_memory: bool = False
    """True if it may hold a conversation that is stored nowhere else."""


EXIT_S = 10.0
"""Seconds that the end of the process may take, with all this work."""
UNSAVED_SHARE = 0.7
"""The share of it for this work. The rest is for committing journals and releasing sessions."""
HELD_MAX = 256
"""Agents that are held for their memory. Beyond it the oldest is finished now; beyond twice as many it is dropped."""
_RETURN_S = 0.5
"""Seconds that cancelled work may take to return."""

_unsaved_log = logging.getLogger("repertory.sessions")
_lock = threading.Lock()
_unsaved: dict[int, Unfinished] = {}
"""Work for the end of the process by the `id()` of the state or memory, the oldest first."""
_under_way: dict[int, bool] = {}
"""Work that runs now, and whether there was new work since. Failed work is not held again."""
_making_room = _registered = _ending = False
_spent_s = 0.0
"""Seconds of `EXIT_S` that are used up."""


def watch_state(state: AgentState, store: FinishAtExit, of: tuple[str, str]) -> None:
    """Store changes of the state at the end of the process, unless they are stored before. `of`: session
    and agent.
    """
    text = "state that was set was not stored, and is lost"
    unfinished = Unfinished(left=text, session_id=of[0], agent_id=of[1], finish=store)
    state.watch = partial(_note, id(state), unfinished)


def hold_memory(key: int, unfinished: Unfinished, unread: bool) -> None:
    """Extract memories at the end of the process, unless that is done before. `unread`: True if messages are left."""
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
        try:
            start_thread(_make_room, name="repertory-memory")
        except StoreUnavailable as error:  # The next agent that is held tries again.
            _making_room = False
            note(_log, WARNING, "memories could not be extracted yet", error)


def finish_unsaved(host: BlockingHost, within_s: float) -> None:
    """Do all pending work at the same time. Work not done within that time is logged, and dropped."""
    with _lock:
        unfinished = dict(_unsaved)
        _unsaved.clear()
        _under_way.update(dict.fromkeys(unfinished, False))
    _finish(host, unfinished, within_s)


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
    """Register the exit functions: for the end of the main thread, where Python supports that, and for atexit.

    At atexit some things fail: names are not resolved any more (asyncio does it in threads of `concurrent.futures`),
    and in some releases no thread is started. In both places the function registered last is called first.
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
    if _unsaved:
        finish_unsaved(blocking_host(), EXIT_S * UNSAVED_SHARE)
    _spent_s = time.monotonic() - began


def _at_exit() -> None:
    """The process ends: stop the host, and accept no more work."""
    global _ending
    if _host is not None or _unsaved:
        _ending = True
        blocking_host().stop()


def _held_for_memory() -> list[int]:
    return [key for key, each in _unsaved.items() if each.of_memory]


def _make_room() -> None:
    """Finish the oldest work now, one piece after the other."""
    global _making_room
    while True:
        with _lock:
            held = _held_for_memory()
            if len(held) <= HELD_MAX or _ending:
                _making_room = False
                return
            oldest = {held[0]: _unsaved.pop(held[0])}
            _under_way[held[0]] = False
        _finish(blocking_host(), oldest, EXIT_S)


def _finish(host: BlockingHost, unfinished: Mapping[int, Unfinished], within_s: float) -> None:
    if not unfinished:
        return
    waiting = dict(unfinished)

    async def finish_all() -> None:
        by = anyio.current_time() + within_s
        async with anyio.create_task_group() as group:
            for key, one in unfinished.items():
                group.start_soon(_finish_one, waiting, key, one, by)

    host.run_within(finish_all, within_s + _RETURN_S)
    for key, one in unfinished.items():
        if waiting.pop(key, None) is not None:
            _tell(one, "there was no time left")
            with _lock:
                _under_way.pop(key, None)


async def _finish_one(waiting: dict[int, Unfinished], key: int, one: Unfinished, by: float) -> None:
    outcome: list[str | None] = []

    async def finish() -> None:
        outcome.append(await one.finish(by))

    failure: ExitFailed | Killed | None = None
    with anyio.CancelScope(deadline=by):
        failure = await attempt(finish)  # If it raises, the other work still runs, and the process ends.
    if (failure is None and not outcome) or waiting.pop(key, None) is None:
        return
    with _lock:
        more = _under_way.pop(key, False)
    failed = failure.error if isinstance(failure, ExitFailed) else failure
    why = outcome[0] if outcome else type(failed).__name__
    if why is not None:
        _tell(one, why)
    elif more:
        _note(key, one, changed=True)


def _tell(one: Unfinished, why: str) -> None:
    note(_unsaved_log, ERROR, one.left, session=one.session_id, agent=one.agent_id, cause=why)


def _forget_parent() -> None:
    """Forget the host in a forked child: none runs there, and pending work is the parent's."""
    global _host_lock, _host, _lock, _making_room, _ending, _spent_s
    never_collect(_host)
    _host_lock, _host, _lock = threading.Lock(), None, threading.Lock()
    _unsaved.clear()
    _under_way.clear()
    _making_room, _ending, _spent_s = False, False, 0.0


call_in_children(_forget_parent)
