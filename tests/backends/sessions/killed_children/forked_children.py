"""Forked children of a program, each of which dies at the next crash point, until one survives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple


class DeadChild(NamedTuple):
    """A child that has ended: the crash point at which it died, its reports, and whether it survived."""

    number: int
    reports: list[str]
    survived: bool


def children(run: Callable[[int, Callable[[str], None]], None]) -> Iterator[DeadChild]:
    """Each child calls `run` with the number of its crash point, and with a function that reports a line."""
    for number in range(1, 1000):
        dead = forked(number, partial(run, number))
        yield dead
        if dead.survived:
            return


def forked(number: int, run: Callable[[Callable[[str], None]], None]) -> DeadChild:
    """A child that has called `run` with a function that reports a line, and has died of SIGKILL meanwhile or has
    survived. `number` is how it is known.
    """
    read, write = os.pipe()
    process = os.fork()
    if not process:
        code = 1
        try:
            run(partial(_report, os.write, write))
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with open(read, encoding="utf-8") as lines:
        reports = lines.read().splitlines()
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) or not status, (number, status)
    return DeadChild(number, reports, not status)


def _report(write: Callable[[int, bytes], object], file: int, line: str) -> None:
    """`write` as it is now: a child may make that of `os` a crash point."""
    write(file, f"{line}\n".encode())
