"""The person at the other end of `repertory chat`: a terminal, or a pipe that feeds lines in."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import TextIO

from repertory.app.transcript import harmless


class Terminal:
    """Reads lines and writes text. With a pipe there is no prompt, and remarks go to the error stream."""

    def __init__(self, source: TextIO | None = None, out: TextIO | None = None, err: TextIO | None = None) -> None:
        """The process's own streams, unless others are given. Line editing comes with a terminal."""
        self._source, self._out, self._err = source or sys.stdin, out or sys.stdout, err or sys.stderr
        self.interactive = self._source is sys.stdin and self._source.isatty() and self._out.isatty()
        if self.interactive:
            _edit_lines()

    def ask(self, prompt: str) -> str | None:
        """The next line without its line break; None when there are no more."""
        if self.interactive:
            try:
                return input(prompt)
            except EOFError:
                return None
        line = self._source.readline()
        return line.removesuffix("\n") if line else None

    def write(self, text: str) -> None:
        """Write part of an answer, visible at once and harmless."""
        self._out.write(harmless(text))
        self._out.flush()

    def remark(self, text: str) -> None:
        """Say something about the conversation that is not part of it."""
        stream = self._out if self.interactive else self._err
        stream.write(f"{harmless(text)}\n")
        stream.flush()


def _edit_lines() -> None:
    """Give `input` line editing and a history where Python has them."""
    with suppress(ImportError):
        import_module("readline")
