"""The program of one worker: `python -m repertory.service.process.child SETTINGS LISTENING ORDERS REPORTS`.

The numbers are of descriptors that its parent hands down: the socket, a pipe with orders, and a pipe for its report.
The pipe with orders also tells that the parent is gone, however it has ended: then the worker drains and ends, too.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable

import msgspec

from repertory.errors import Invalid, RepertoryError
from repertory.service.decisions.fleet import WRONG_USAGE
from repertory.service.process.settings import ServeSettings

RETIRE = b"r"


def run_worker(arguments: list[str]) -> int:
    """Serve as the parent says. Returns the exit code."""
    settings = msgspec.json.decode(arguments[0], type=ServeSettings)
    listening, orders, reports = (_own(int(each)) for each in arguments[1:])
    from repertory.backends.worker_threads import start_thread
    from repertory.service.process.process import prepare_service, run_process
    from repertory.service.process.targets import load_target
    from repertory.service.process.terminal_text import (  # what is wrong is told as by the command itself
        error_text,
        harmless,
    )

    try:
        prepared = prepare_service(settings, load_target, os.environ)
    except (Invalid, ImportError) as error:
        sys.stderr.write(f"{harmless(error_text(error))}\n")
        return WRONG_USAGE

    def report() -> None:
        line = msgspec.json.encode(prepared.report()) + b"\n"
        os.write(reports, line)

    def listen_to_parent(retire: Callable[[], object]) -> None:
        start_thread(_obey, orders, retire, name="repertory orders")

    try:
        return run_process(prepared, settings, socket.socket(fileno=listening), started=report, orders=listen_to_parent)
    except RepertoryError as error:
        sys.stderr.write(f"{harmless(error_text(error))}\n")
        return 1


def _own(descriptor: int) -> int:
    """The descriptor, which no program that this one starts inherits."""
    os.set_inheritable(descriptor, False)
    return descriptor


def _obey(orders: int, retire: Callable[[], object]) -> None:
    while order := os.read(orders, 1):
        if order == RETIRE:
            retire()
    # The end of the pipe: the parent is gone, even if it was killed. The signal takes the same way as that of an
    # operator.
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(run_worker(sys.argv[1:]))
