"""A program in a pseudo-terminal, and what a person sees on its screen."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pexpect
import pyte

WITHIN_S = 30


class SeenScreen:
    """The child's screen. Every wait ends when the screen shows what is waited for; `WITHIN_S` bounds it."""

    def __init__(self, command: Sequence[str], environ: dict[str, str], *, columns: int, lines: int) -> None:
        self._screen = pyte.HistoryScreen(columns, lines, history=1000)
        self._stream = pyte.ByteStream(self._screen)
        self.child = pexpect.spawn(
            command[0], [*command[1:]], env=environ, cwd=environ["HOME"], dimensions=(lines, columns), timeout=WITHIN_S
        )
        self._screen.write_process_input = self.child.send  # Answers where the cursor is.
        self.raw = b""
        """Everything that was written."""

    @property
    def lines(self) -> list[str]:
        """What is on the screen, and what has scrolled off it."""
        columns = range(self._screen.columns)
        above = ["".join(row[column].data for column in columns) for row in self._screen.history.top]
        return [line.rstrip() for line in (*above, *self._screen.display)]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def styles(self, word: str) -> set[tuple[str, bool, bool]]:
        """Colour, boldness and italics of the letters of a word, wherever it is on the screen."""
        found: set[tuple[str, bool, bool]] = set()
        for number, line in enumerate(self._screen.display):
            if word in line:
                at = line.index(word)
                cells = (self._screen.buffer[number][column] for column in range(at, at + len(word)))
                found |= {(cell.fg, cell.bold, cell.italics) for cell in cells}
        return found

    def type(self, text: str) -> None:
        self.child.send(text)

    def paste(self, text: str) -> None:
        """As a terminal sends what is pasted."""
        self.child.send(f"\x1b[200~{text}\x1b[201~")

    def resize(self, columns: int, lines: int) -> None:
        self._screen.resize(lines, columns)
        self.child.setwinsize(lines, columns)

    def wait(self, seen: str | Callable[[str], bool]) -> str:
        """Read until the screen shows this; returns its text."""
        shows = (lambda text: seen in text) if isinstance(seen, str) else seen
        by = time.monotonic() + WITHIN_S
        while not shows(self.text):
            assert time.monotonic() < by, f"not seen: {seen!r} in\n{self.text}"
            assert self._read(), f"ended without {seen!r}:\n{self.text}"
        return self.text

    def wait_for_prompt(self, number: int = 1) -> None:
        """Until that many prompts are there, the last one empty and with the cursor behind it."""
        self.wait(
            lambda text: (
                text.count("you>") >= number
                and self._screen.display[self._screen.cursor.y].startswith("you>")
                and self._screen.cursor.x == len("you> ")
            )
        )

    def end(self) -> int:
        """Read to the end; the exit code, or minus the signal's number."""
        while self._read():
            pass
        self.child.close()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -(self.child.signalstatus or 0))

    def _read(self) -> bool:
        with suppress(pexpect.TIMEOUT):
            try:
                read = self.child.read_nonblocking(65536, timeout=1)
            except pexpect.EOF:
                return False
            self.raw += read
            self._stream.feed(read)
        return True


@contextmanager
def on_screen(
    command: Sequence[str], environ: dict[str, str], *, columns: int = 80, lines: int = 24
) -> Iterator[SeenScreen]:
    """The program's screen; at the end of the block the program is killed if it still runs."""
    screen = SeenScreen(command, environ, columns=columns, lines=lines)
    try:
        yield screen
    finally:
        if screen.child.isalive():  # `close(force=True)` waits a tenth of a second for the kernel, and then fails.
            screen.child.kill(signal.SIGKILL)
            screen.child.wait()
        screen.child.close()
