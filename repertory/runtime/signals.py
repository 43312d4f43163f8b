"""Signals, for programs that own their process: the first drains, the second cuts the drain short, the third ends the
process. Embedded in a user's server the runtime never touches signals.

    signal -> C handler of Python -> wakeup fd ---> watchdog, a thread -> event loop: drain, cut short
           -> handler in the main thread --------->        |
                                                           `-> ends the process: third signal, or time is up

The event loop may miss a signal: a blocking call can hold it up, before the signal or after. So a thread listens.
Python writes each signal to the wakeup fd at once, whatever the main thread does; the handler in the main thread
reports it too, in case other code has taken the wakeup fd. Each signal is counted once.

From the first signal on the thread ends the process when its time is up, also after the drain: while the loop runs on,
and while the interpreter waits for threads at its exit. A program that goes on without that loop is left alone until it
exits.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Protocol, TypeAlias

import anyio
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from repertory.errors import Invalid, Unavailable
from repertory.runtime.drain import ActorsReport
from repertory.runtime.waker import Waker, parking_here

EndProcess: TypeAlias = Callable[[int], object]
SignalHandler: TypeAlias = Callable[[int, FrameType | None], object]

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BY_HANDLER = 0x80
"""Added to a signal's number if it comes from the handler, not from the wakeup fd."""
_LAST_WORDS_S = 0.5
"""Seconds for writing buffered output before the process is ended: its reader may have stopped."""
_LOOK_S = 1.0


class Drainable(Protocol):
    """A system of actors that can be drained."""

    @property
    def drained(self) -> anyio.Event:
        """The event that is set when a drain is over, whoever began it."""
        ...

    def drain(self, reason: str) -> Awaitable[ActorsReport]: ...

    def cut_short(self) -> None: ...


async def serve_signals(
    system: Drainable, force_after_s: float, end_process: EndProcess, task_status: TaskStatus[None]
) -> ActorsReport:
    """Wait for a signal and drain, or for a drain that other code begins, and return its report. Cancelled, it stops
    listening; a drain that has begun goes on.

    `force_after_s` after the first signal a thread ends the process with 128 + n, unless it has ended by itself.
    `task_status` is told when listening begins. When this returns, the handlers and the wakeup fd are restored.

    Args:
        system: The system to drain.
        force_after_s: Seconds after the first signal until the process is ended by force.
        end_process: Ends the process; tests replace it.
        task_status: The status of the task group, which is told when listening begins.

    Raises:
        Invalid: Outside the main thread. Correct the argument.
    """
    first, second = anyio.Event(), anyio.Event()
    watchdog = _Watchdog(force_after_s, end_process, parking_here(), (first.set, second.set))
    watchdog.listen()
    try:
        task_status.started()
        async with anyio.create_task_group() as group:
            group.start_soon(_obey, system, watchdog, first, second)
            await system.drained.wait()
            group.cancel_scope.cancel()
        return await system.drain("drain")
    finally:
        watchdog.stop_listening()
        with anyio.CancelScope(shield=True):
            # A few rounds, until the thread reads the end of the closed socket. `lift` does nothing before that, so a
            # program that serves signals again at once would keep the old time limit.
            while watchdog.has_ears:
                await checkpoint()


async def _obey(system: Drainable, watchdog: _Watchdog, first: anyio.Event, second: anyio.Event) -> None:
    await first.wait()
    async with anyio.create_task_group() as group:
        group.start_soon(_cut_short, system, second)  # Runs once the drain has begun.
        await system.drain(signal.Signals(watchdog.first).name)


async def _cut_short(system: Drainable, second: anyio.Event) -> None:
    await second.wait()
    system.cut_short()


class _Watchdog:
    """Listens for signals on a thread of its own, tells the event loop, and ends the process if that does not help."""

    def __init__(
        self, bound_s: float, end_process: EndProcess, parking: Waker, tells: Sequence[Callable[[], object]]
    ) -> None:
        """`tells`: what the event loop is to do at the first signal, and at the second."""
        self._bound_s = bound_s
        self._end_process = end_process
        self._parking = parking
        self._tells = tells
        self._written = self._handled = self._heard = self._handled_here = 0
        self._deadline: float | None = None
        self._due = math.inf
        self._handlers: dict[int, tuple[SignalHandler, SignalHandler | int | None]] = {}
        """Our handler and the one before it, by signal number."""
        self._wakeup_fd = -1
        self._lifted = threading.Event()
        self._ending = threading.Event()
        self._too_late = f"it has not ended within {bound_s:g} s"
        self._why = ""
        self._speaker = threading.Thread(target=self._speak, name="repertory last words", daemon=True)
        self.first = 0
        """The first signal's number; 0 before."""
        self.has_ears = False
        """True if its thread still reads from the wakeup fd."""

    def listen(self) -> None:
        """Install the handlers. Errors: `Invalid` outside of the main thread; `Unavailable` when the system has no
        descriptor or thread left, and the handlers stay as they were.
        """
        global _current
        if threading.current_thread() is not threading.main_thread():
            text = "signals can be served in the main thread only; elsewhere have a handler of yours call `drain()`"
            raise Invalid(text, thread=threading.current_thread().name)
        try:
            self._reader, self._writer = socket.socketpair()
        except OSError as error:
            raise Unavailable("signals cannot be served: no sockets could be made", cause=str(error)) from error
        # `signal.set_wakeup_fd` demands it: a write from the C handler must never block.
        self._writer.setblocking(False)
        self.has_ears = True
        try:
            # Before the handlers are installed: without a thread the program keeps the handlers that it had.
            threading.Thread(target=self._watch, name="repertory watchdog", daemon=True).start()
        except RuntimeError as error:
            self._reader.close()
            self._writer.close()
            raise Unavailable("signals cannot be served: no thread could be started", cause=str(error)) from error
        if _current is not None:
            # A program that drains, opens a new runtime and serves signals again is alive, so the old time limit is
            # dropped.
            _current.lift()
        _current = self
        handlers: dict[int, SignalHandler] = {**dict.fromkeys(SIGNALS, self._handle), signal.SIGVTALRM: self._look}
        self._handlers = {number: (ours, signal.signal(number, ours)) for number, ours in handlers.items()}
        self._wakeup_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def stop_listening(self) -> None:
        """Restore the handlers. A time limit that has begun stays."""
        self._give_back(self._wakeup_fd)
        self._writer.close()

    def lift(self) -> None:
        """The program has gone on and serves signals again: drop the time limit, unless this watchdog still listens."""
        if not self.has_ears:
            self._lifted.set()

    def forget(self) -> None:
        """Let go of the wakeup fd in a forked child: its parent shares it, and would get the child's signals."""
        if self._handlers:
            self._give_back(-1)

    def _give_back(self, wakeup_fd: int) -> None:
        # There is no getter. If it is not ours any more, another library has taken it, and gets it back below.
        now = signal.set_wakeup_fd(-1)
        with suppress(ValueError, OSError):  # The fd before ours may be closed.
            signal.set_wakeup_fd(wakeup_fd if now == self._writer.fileno() else now, warn_on_full_buffer=False)
        if self._due < math.inf:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        for number, (ours, before) in self._handlers.items():
            # A handler that the program has installed since then stays.
            if signal.getsignal(number) == ours:
                signal.signal(number, signal.SIG_DFL if before is None else before)
        self._handlers = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal in the main thread, between two steps of its code."""
        del frame
        with suppress(OSError):
            self._writer.send(bytes([number | _BY_HANDLER]))
        self._handled_here += 1
        if self._handled_here == 1:
            self.first = self.first or number
            self._due = time.monotonic() + self._bound_s
            # CPU seconds: only code that computes needs this look, and a process that waits is not woken by it.
            signal.setitimer(signal.ITIMER_VIRTUAL, _LOOK_S, _LOOK_S)
        # Here too, not only on the thread: code that holds the interpreter's lock lets handlers run, but no other
        # thread.
        if self._handled_here > len(self._tells):
            self._end("a third signal came")

    def _look(self, number: int, frame: FrameType | None) -> None:
        """End the process if the drain is overdue. Called in the main thread after each second of its work: C code that
        lets no other Python thread run, such as a regular expression, still handles signals.
        """
        del number, frame
        if time.monotonic() >= self._due:
            self._end(self._too_late)

    # ---------------------------------------------------------------------------------------------------- on the thread

    def _watch(self) -> None:
        while True:
            self._reader.settimeout(self._remaining_s())
            try:
                received = self._reader.recv(256)
            except TimeoutError:
                self._end(self._too_late)
                return
            if not received:
                break
            for byte in received:
                self._take(byte)
        self._reader.close()
        self.has_ears = False
        if self.first:
            self._outlast()

    def _take(self, byte: int) -> None:
        number = byte & ~_BY_HANDLER
        # Python has one wakeup fd for all signals, so what it had before us (asyncio's, trio's) gets the others.
        if number not in SIGNALS:
            if self._wakeup_fd != -1:
                with suppress(OSError):
                    os.write(self._wakeup_fd, bytes([byte]))
            return
        if byte & _BY_HANDLER:
            self._handled += 1
        else:
            self._written += 1
        # Each signal comes in two ways, and one of them may be missing: the larger count is the number of signals.
        while self._heard < max(self._handled, self._written):
            self._heard += 1
            self._act(number)

    def _act(self, number: int) -> None:
        if self._deadline is None:
            self.first = self.first or number
            self._deadline = time.monotonic() + self._bound_s
            with suppress(RuntimeError):  # Without a thread left, the process ends in time and says nothing.
                # Started while there is time: when the process has to end, the system may have no thread left.
                self._speaker.start()
        if self._heard > len(self._tells):
            self._end("a third signal came")
            return
        with suppress(RuntimeError):  # The loop has ended.
            self._parking.call_threadsafe(self._tells[self._heard - 1])

    def _remaining_s(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0.001)

    def _outlast(self) -> None:
        """The drain is over: make sure that the process ends as well."""
        # The interpreter waits for threads at its exit (`threading._shutdown`), so a tool that hangs could hold the
        # process after a good drain.
        if self._lifted.wait(self._remaining_s()):
            return
        # The loop is over and the program goes on: that is its right, and the time limit begins again when it exits.
        if not self._loop_lives() and not _exiting():
            while not _exiting():
                if self._lifted.wait(_LOOK_S):
                    return
            if self._lifted.wait(self._bound_s):
                return
        self._end(self._too_late)

    def _loop_lives(self) -> bool:
        try:
            self._parking.call_threadsafe(lambda: None)
        except RuntimeError:
            return False
        return True

    def _end(self, why: str) -> None:
        self._why = why
        self._ending.set()
        if self._speaker.is_alive():
            self._speaker.join(_LAST_WORDS_S)
        self._end_process(128 + self.first)

    def _speak(self) -> None:
        """Write why the process is ended, the running threads, and the buffered output. On a thread of its own, since
        writing may block.
        """
        self._ending.wait()
        text = f"repertory: the process is ended after {signal.Signals(self.first).name}: {self._why}\n"
        # Not `sys.stderr`, whose lock a blocked thread may hold.
        os.write(2, (text + "".join(_what_runs())).encode(errors="replace"))
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # The stream is missing or closed.
                stream.flush()


_current: _Watchdog | None = None
"""The last one that listened."""


def _in_child() -> None:
    if _current is not None:
        _current.forget()


os.register_at_fork(after_in_child=_in_child)


def _exiting() -> bool:
    """True if the interpreter is exiting: the main thread has ended, or waits for the others to end."""
    main = threading.main_thread()
    frame = _frames().get(main.ident or 0)
    if frame is None or not main.is_alive():
        return True
    # CPython has no public way to ask this: `sys.is_finalizing` becomes true only after the threads were joined.
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name == "_shutdown" and frame.f_globals["__name__"] == "threading"


def _what_runs() -> list[str]:
    """A line for each thread that the process would wait for."""
    frames = _frames()
    waited_for = [thread for thread in threading.enumerate() if not thread.daemon and thread.ident in frames]
    return [f"  {thread.name!r} is in {_location(frames[thread.ident or 0])}\n" for thread in waited_for]


def _frames() -> dict[int, FrameType]:
    return sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented, in spite of its name


def _location(frame: FrameType) -> str:
    return f"{frame.f_code.co_qualname}, {frame.f_code.co_filename}:{frame.f_lineno}"


def end_by_signal() -> None:
    """Send SIGTERM to this process, as its operator would."""
    os.kill(os.getpid(), signal.SIGTERM)
