"""The progress of a long command: a bar on the error stream, where that is a terminal."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from repertory.operations.progress import OnProgress, OperationProgress

VISIBLE_AFTER_S = 0.5
"""Seconds until a command shows its progress; quicker ones show nothing."""


@contextmanager
def progress_on_terminal(options: argparse.Namespace) -> Generator[OnProgress]:
    """The `progress` of an operation: None with `--quiet`, without rich, and when nobody looks."""
    if options.quiet or not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in ("", "dumb"):
        yield None
        return
    bar = ProgressBar()
    try:
        yield bar
    finally:
        bar.close()


class ProgressBar:
    """A bar that appears when an operation has taken a while, and goes when it ends."""

    def __init__(self, after_s: float = VISIBLE_AFTER_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._from = clock, clock() + after_s
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __call__(self, at: OperationProgress) -> None:
        if self._bar is None and self._clock() < self._from:
            return
        if self._bar is None and not self._opened():
            return
        assert self._bar is not None
        if self._task is None:
            self._task = self._bar.add_task(at.unit, total=at.total)
        self._bar.update(self._task, completed=at.done, total=at.total, description=at.unit)

    def _opened(self) -> bool:
        try:
            from rich.console import Console  # loaded when used
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                SpinnerColumn,
                TextColumn,
                TimeRemainingColumn,
            )
        except ImportError:
            self._from = float("inf")
            return False
        columns = SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
        self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        self._bar.start()
        return True

    def close(self) -> None:
        """Take the bar off the screen."""
        bar, self._bar, self._from = self._bar, None, float("inf")
        if bar is not None:
            bar.stop()
