"""Records a terminal session, and draws it as an SVG that plays by itself: what is typed, what is printed, in colors.

The picture needs no script. Who prefers reduced motion is shown the last screen.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import groupby

import pexpect
import pyte
from pyte.screens import Char

COLUMNS, ROWS = 84, 17
CELL_W, CELL_H, MARGIN = 8.4, 19.0, 16.0
BACKGROUND, FOREGROUND = "#16211f", "#e6e4dc"
COLORS = {
    "red": "#e88b7d",
    "green": "#7fc8a9",
    "brown": "#e3c17a",
    "blue": "#7fb3d8",
    "magenta": "#c9a0d8",
    "cyan": "#79c7c5",
    "black": "#6b7a76",
    "brightblack": "#8a9894",
}
LAST_S = 6.0
"""How long the last screen stays before the picture begins again."""

Line = tuple[tuple[str, str, bool], ...]
"""A row of the screen as runs of text with one color and weight."""


@dataclass(frozen=True)
class Frame:
    """A screen, and how long it is shown."""

    lines: tuple[Line, ...]
    seconds: float

    @property
    def text(self) -> str:
        return "\n".join("".join(run[0] for run in line).rstrip() for line in self.lines).strip()


@dataclass
class Recording:
    """A shell in a pseudo-terminal. Its frames have the durations that a viewer needs, not those of the machine."""

    environment: dict[str, str]
    frames: list[Frame] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.Stream(self._screen)
        settings = {**self.environment, "PS1": "$ ", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        settings["PROMPT_TOOLKIT_NO_CPR"] = (
            "1"  # a terminal's answer that comes after the kill would be typed into the shell
        )
        settings.pop("NO_COLOR", None)
        self.shell = pexpect.spawn(
            "bash",
            ["--norc", "--noprofile"],
            env=settings,  # type: ignore[arg-type]
            dimensions=(ROWS, COLUMNS),
            encoding="utf-8",
            timeout=20,
        )
        self._screen.write_process_input = self.shell.send  # type: ignore[method-assign]

    def until(self, text: str, *, shown_s: float = 1.2, within_s: float = 20.0) -> None:
        """Wait until the screen's last lines have a text, then show that screen for a while."""
        ends = time.monotonic() + within_s
        while not any(line.rstrip().endswith(text.rstrip()) for line in self._last_lines()):
            assert time.monotonic() < ends, f"never printed {text!r}:\n" + "\n".join(self._screen.display)
            self._read()
        self._keep(shown_s)

    def type(self, text: str) -> None:
        """Type a line, as somebody does who thinks for a moment before the return key."""
        for begin in range(0, len(text), 2):
            part = text[begin : begin + 2]
            self.shell.send(part)
            ends = time.monotonic() + 5.0
            while part.strip() and not any(text[: begin + 2].rstrip() in line for line in self._screen.display):
                assert time.monotonic() < ends, "\n".join(self._screen.display)
                self._read()
            self._keep(0.09)
        self._keep(0.4)
        self.shell.send("\r")

    def close(self) -> None:
        self.shell.close(force=True)

    def _last_lines(self) -> list[str]:
        row = self._screen.cursor.y
        return self._screen.display[max(0, row - 1) : row + 1]

    def _read(self) -> None:
        try:
            self._stream.feed(self.shell.read_nonblocking(4096, 0.05))
        except pexpect.TIMEOUT:
            return

    def _keep(self, seconds: float) -> None:
        lines = tuple(self._line(row) for row in range(ROWS))
        if self.frames and self.frames[-1].lines == lines:
            self.frames[-1] = Frame(lines, self.frames[-1].seconds + seconds)
        else:
            self.frames.append(Frame(lines, seconds))

    def _line(self, row: int) -> Line:
        cells = self._screen.buffer[row]
        chars = [cells[column] for column in range(COLUMNS)]
        runs = [
            ("".join(char.data for char in group), color, bold)
            for (color, bold), group in groupby(chars, key=lambda char: (_color(char), char.bold))
        ]
        while runs and not runs[-1][0].strip():
            runs.pop()
        return tuple(runs)


def _color(char: Char) -> str:
    return COLORS.get(char.fg, f"#{char.fg}" if len(char.fg) == 6 and char.fg.isalnum() else FOREGROUND)


def svg(frames: list[Frame], title: str) -> str:
    """The frames as one picture: each distinct row once, each frame as uses of rows, shown in turn from the last one.

    So the picture is full wherever it does not move, and when a page with it is opened.
    """
    frames = [*frames[:-1], Frame(frames[-1].lines, LAST_S)]
    rows = {line: number for number, line in enumerate(dict.fromkeys(line for frame in frames for line in frame.lines))}
    width, height = round(COLUMNS * CELL_W + 2 * MARGIN), round(ROWS * CELL_H + 2 * MARGIN)
    total = sum(frame.seconds for frame in frames)
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
            f"<title>{escape(title)}</title>",
            "<style>text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}",
            f"#film{{animation:film {total:.1f}s -{total - LAST_S:.1f}s steps(1) infinite}}",
            f"@keyframes film{{{''.join(_keys(frames, height))}}}",
            "@media (prefers-reduced-motion:reduce){#film{animation:none}}</style><defs>",
            *(_row(line, number) for line, number in rows.items() if line),
            f'</defs><rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
            f'<svg y="0" width="{width}" height="{height}" overflow="hidden">',
            f'<g id="film" transform="translate(0 -{(len(frames) - 1) * height})">',  # where nothing moves it
            *(_frame(frame, rows, number * height) for number, frame in enumerate(frames)),
            "</g></svg></svg>\n",
        ]
    )


def _keys(frames: list[Frame], height: int) -> Iterator[str]:
    """When each frame is moved to the window."""
    total, passed = sum(frame.seconds for frame in frames), 0.0
    for number, frame in enumerate(frames):
        yield f"{passed / total * 100:.2f}%{{transform:translateY(-{number * height}px)}}"
        passed += frame.seconds
    yield f"100%{{transform:translateY(-{(len(frames) - 1) * height}px)}}"


def _row(line: Line, number: int) -> str:
    weight = {True: ' font-weight="bold"', False: ""}
    spans = "".join(f'<tspan fill="{color}"{weight[bold]}>{escape(text)}</tspan>' for text, color, bold in line)
    return f'<text id="r{number}">{spans}</text>'


def _frame(frame: Frame, rows: dict[Line, int], top: int) -> str:
    uses = "".join(
        f'<use href="#r{rows[line]}" y="{round(MARGIN + (row + 0.75) * CELL_H)}"/>'
        for row, line in enumerate(frame.lines)
        if line
    )
    return f'<g transform="translate({MARGIN:g} {top})">{uses}</g>'
