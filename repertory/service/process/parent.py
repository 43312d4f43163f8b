"""The parent of a service's workers: it holds the socket, starts workers, and carries out what `Fleet` decides.

It serves nothing itself and loads as little as it can. Workers are programs of their own (`child.py`), in process
groups of their own, so that Ctrl-C reaches them through the parent alone. Each has a pipe with orders, which closes
when the parent ends, however it does.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

import msgspec

from repertory.logs import INFO, WARNING, note
from repertory.service.decisions.fleet import (
    Fleet,
    FleetCommand,
    FleetSettings,
    KillWorker,
    Launch,
    Leave,
    Remark,
    Retire,
    Terminate,
)
from repertory.service.process import child as worker_program
from repertory.service.process.settings import ServedReport, ServeSettings

_LOG = logging.getLogger("repertory.app")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_MARGIN_S = 15.0
"""Seconds beyond its drain that a worker may take to end."""
_LINE_MAX = 64 * 1024


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    orders: int
    reports: int
    line: bytes = field(default=b"")


class Parent:
    """The parent of one service's workers."""

    def __init__(
        self,
        settings: ServeSettings,
        listening: socket.socket,
        environ: Mapping[str, str],
        say: Callable[[ServedReport], object],
    ) -> None:
        """`environ`: that of the workers. `say`: called once, when all workers answer for the first time."""
        self._settings = settings
        self._fleet = Fleet(FleetSettings(workers=settings.workers))
        self._listening = listening
        self._environ = dict(environ)
        self._say: Callable[[ServedReport], object] | None = say
        self._children: dict[int, _Child] = {}
        self._pids: dict[int, int] = {}
        self._commands: deque[FleetCommand] = deque()
        self._selector = selectors.DefaultSelector()
        self._in_a_terminal = sys.stderr.isatty()

    def run(self) -> int:
        """Run the workers until a signal ends them, in the main thread. Returns the exit code."""
        with _signal_socket() as signals_in:
            self._selector.register(signals_in, selectors.EVENT_READ, 0)
            self._commands.extend(self._fleet.begin(time.monotonic()))
            while True:
                while self._commands:
                    command = self._commands.popleft()
                    if isinstance(command, Leave):
                        return command.code
                    self._carry_out(command)
                self._wait(signals_in)

    def _wait(self, signals_in: socket.socket) -> None:
        wait_s = self._fleet.next_deadline() - time.monotonic()
        for key, _ in self._selector.select(min(max(wait_s, 0.0), 3600.0)):
            if key.data == 0:
                for number in signals_in.recv(256):
                    self._take_signal(number)
            else:
                self._take_report(key.data)
        # At every turn and for all of them: one SIGCHLD may stand for several that have ended.
        self._bury()
        self._commands.extend(self._fleet.tick(time.monotonic()))
        if self._fleet.is_stopping:
            self._listening.close()  # Who connects from now on is refused, and not left waiting.

    def _take_signal(self, number: int) -> None:
        now = time.monotonic()
        if number == signal.SIGHUP and not self._in_a_terminal:
            note(_LOG, INFO, "workers are replaced, one after the other")
            self._commands.extend(self._fleet.renew(now))
        elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # A terminal that is closed ends its programs.
            self._commands.extend(self._fleet.stop(now))

    def _take_report(self, number: int) -> None:
        child = self._children[number]
        read = os.read(child.reports, _LINE_MAX)
        child.line += read
        if read and b"\n" not in child.line and len(child.line) < _LINE_MAX:
            return
        self._selector.unregister(child.reports)
        if child.line.endswith(b"\n"):
            report = msgspec.json.decode(child.line, type=ServedReport)
            self._fleet.allow_to_end(report.drain_timeout_s + _MARGIN_S)
            self._commands.extend(self._fleet.worker_is_ready(number, time.monotonic()))
            note(_LOG, INFO, "a worker answers", worker=child.process.pid)
            if self._say is not None and len(self._fleet.ready) == self._settings.workers:
                self._say(report)
                self._say = None

    def _bury(self) -> None:
        """Take note of the workers that have ended."""
        for number, child in list(self._children.items()):
            code = child.process.poll()
            if code is None:
                continue
            del self._children[number]
            with suppress(KeyError):
                self._selector.unregister(child.reports)
            os.close(child.orders)
            os.close(child.reports)
            self._commands.extend(self._fleet.worker_is_gone(number, code, time.monotonic()))

    def _carry_out(self, command: FleetCommand) -> None:
        match command:
            case Launch(number=number):
                self._launch(number)
            case Remark(text=text, number=number, code=code, is_bad=bad):
                pid = None if number is None else self._pids.get(number)
                note(_LOG, WARNING if bad else INFO, text, worker=pid, exit_code=code)
            case Retire(number=number) | Terminate(number=number) | KillWorker(number=number):
                if (child := self._children.get(number)) is not None:
                    _order(child, command)
            case Leave():
                pass

    def _launch(self, number: int) -> None:
        settings = msgspec.json.encode(self._settings).decode()
        try:
            with ExitStack() as on_failure, ExitStack() as handed_over:
                orders_read, orders_write = _pipe(handed_over, on_failure)
                reports_read, reports_write = _pipe(on_failure, handed_over)
                handed_down = (self._listening.fileno(), orders_read, reports_write)
                command = [sys.executable, "-m", worker_program.__name__, settings, *map(str, handed_down)]
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, env=self._environ, pass_fds=handed_down, process_group=0
                )
                on_failure.pop_all()
        except OSError as error:
            note(_LOG, WARNING, "a worker cannot be started", error)
            # It counts as a failure of the worker, with the same pauses: the system may be out of processes for a
            # while.
            self._commands.extend(self._fleet.worker_is_gone(number, 1, time.monotonic()))
            return
        self._children[number] = _Child(process, orders_write, reports_read)
        # Beside the children, since a remark on one that has just ended still names its process.
        self._pids = {known: pid for known, pid in self._pids.items() if known in self._children}
        self._pids[number] = process.pid
        self._selector.register(reports_read, selectors.EVENT_READ, number)


def _pipe(closes_reader: ExitStack, closes_writer: ExitStack) -> tuple[int, int]:
    """A pipe, each of whose ends one of the stacks closes. Errors: `OSError`."""
    reader, writer = os.pipe()
    closes_reader.callback(os.close, reader)
    closes_writer.callback(os.close, writer)
    return reader, writer


def _order(child: _Child, command: Retire | Terminate | KillWorker) -> None:
    """Order a worker to end in one of three ways; one that has ended meanwhile is left alone."""
    match command:
        case Retire():
            with suppress(BrokenPipeError):
                os.write(child.orders, b"r")
        case Terminate():
            child.process.send_signal(signal.SIGTERM)
        case KillWorker():
            child.process.kill()


def _nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal by nothing, since the wakeup descriptor has its number."""
    del number, frame


@contextmanager
def _signal_socket() -> Generator[socket.socket]:
    """A socket with the number of each signal, until the block ends."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    before = {number: signal.signal(number, _nothing) for number in _SIGNALS}
    # A socket that is full wakes the loop as well, so there is nothing to warn of.
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        reader.close()
        writer.close()
