"""Runs a command, and ends all that it has started before it ends itself: a program of its own, for Linux.

    python -I -S command_keeper.py COMMAND ARGUMENT...

A process in a session of its own (`setsid`) gets no signal that is sent to the command's group, and the kernel gives it
to process 1 when its parent ends. This program is the nearest subreaper instead: orphans become its children, so that
it finds them until there are none. SIGTERM ends everything at once. It exits with the command's code; 128 and the
signal's number for one that a signal ended.

Source: prctl(2), PR_SET_CHILD_SUBREAPER; proc_pid_task(5), `children`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

_SET_CHILD_SUBREAPER = 36
_NOT_FOUND = 127
_WAKING = {signal.SIGTERM, signal.SIGCHLD}


def run_and_outlive(command: list[str]) -> int:
    """Run the command; gives its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAKING)
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = os.fork()
    if child == 0:
        _become(command)
    code: int | None = None
    while code is None and signal.sigwait(_WAKING) != signal.SIGTERM:
        code = _reaped(child)
    _end_all()
    return 128 + signal.SIGTERM if code is None else code


def _become(command: list[str]) -> None:
    os.setsid()  # So that its signals to its own group do not end this program.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # By Python, and a program would inherit that.
        signal.signal(ignored, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAKING)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        why = "not found" if isinstance(error, FileNotFoundError) else error.strerror
        os.write(2, f"{command[0]}: {why}\n".encode())
    os._exit(_NOT_FOUND)


def _reaped(child: int) -> int | None:
    """The command's code if it is among those that have ended."""
    code: int | None = None
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
            if found[0] == child:
                code = os.waitstatus_to_exitcode(found[1])
    return code if code is None or code >= 0 else 128 - code


def _end_all() -> None:
    """Kill the children, and what becomes a child by that, until there is none."""
    own = os.getpid()
    while True:
        with open(f"/proc/{own}/task/{own}/children", encoding="ascii") as file:
            children = file.read().split()
        if not children:
            return
        for each in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(each), signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


if __name__ == "__main__":
    sys.exit(run_and_outlive(sys.argv[1:]))
