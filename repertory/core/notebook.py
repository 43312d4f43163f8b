"""Objects as one short line for a console, and as Markdown for a notebook.

A line names what one looks for (ids, counts, states) and nothing of what was said: lines end up in logs, in tracebacks
and in bug reports. Markdown is shown to whoever asked for the object, contents included; but notebooks draw Markdown
as HTML, so what models and tools have said may neither contain HTML nor load an image.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

_TEXT_MAX = 60
_NAMES_MAX = 5


def short_repr(value: object, fields: Mapping[str, object]) -> str:
    """`Kind(name=value, ...)` on one line. What is None is left out; long texts and lists are cut."""
    parts = (f"{name}={_bounded(each)}" for name, each in fields.items() if each is not None)
    return f"{type(value).__name__}({', '.join(parts)})"


def _bounded(value: object) -> str:
    if isinstance(value, str):
        text = without_login(value)
        return repr(text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}...")
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        more = [f"{len(items) - _NAMES_MAX} more"] if len(items) > _NAMES_MAX else []
        return f"[{', '.join([*map(_bounded, items[:_NAMES_MAX]), *more])}]"
    return str(value)


def without_login(address: str) -> str:
    """An address without the user and the password that stand before its host."""
    return re.sub(r"://[^/\s]*@", "://", address)


# Markdown.


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown themselves; see `cell`."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: object) -> str:
    """A text as it is, whatever its characters would mean in Markdown, HTML or a table."""
    return "".join(each if each.isalnum() or each in " .,-" else f"&#{ord(each)};" for each in str(text))


_FENCE = re.compile(r" {0,3}(`{3,}[^`\n]*|~{3,}[^\n]*)$")
_CODE_MARK = re.compile(r"`+")
_CODE_OR_BOLD_MARK = re.compile(r"`+|\*\*")
_SCRIPT = re.compile(r"\b(javascript|vbscript|data)(\\*:)", re.IGNORECASE)
_JOINER = "\u2060"
"""Invisible, and no part of a tag, an entity or a scheme."""


def neutral_markdown(text: str) -> str:
    """The same Markdown without HTML, images, and links that run scripts: those are shown as their text.

    Fenced code stays as it is. In what looks like inline code a character that could begin a tag is followed by an
    invisible one, which is right whether or not the reader takes it for code; everywhere else it is an entity.
    """
    return "\n".join(_neutral_lines(text.replace("\t", "    ").splitlines()))


class MarkedText(NamedTuple):
    """Inline code or bold text: `mark`, `text` and the mark again."""

    start: int
    end: int
    mark: str
    text: str


def marked_texts(text: str, *, bold: bool = False) -> Iterator[MarkedText]:
    """Inline code, and bold text if asked for, from left to right.

    The time is linear: each mark learns in one pass from the end which one closes it. A regular expression would look
    through the rest of the text for each mark that nothing closes.
    """
    marks = list((_CODE_OR_BOLD_MARK if bold else _CODE_MARK).finditer(text))
    closing = [-1] * len(marks)
    following: dict[str, int] = {}
    for number in reversed(range(len(marks))):
        mark = marks[number][0]
        closing[number] = following.get(mark, -1)
        if mark != "**" or not text[max(0, marks[number].start() - 1) : marks[number].start()].isspace():
            following[mark] = number
    number = 0
    while number < len(marks):
        start, end = marks[number].span()
        closed = closing[number]
        number += 1
        if closed > 0 and marks[closed].start() > end and not (text[start] == "*" and text[end].isspace()):
            yield MarkedText(start, marks[closed].end(), text[start:end], text[end : marks[closed].start()])
            number = closed + 1


def _neutral_lines(lines: Iterable[str]) -> Iterator[str]:
    fence = ""
    for line in lines:
        if fence:
            yield line
            closing = line.strip()
            if len(line) - len(line.lstrip(" ")) < 4 and closing.startswith(fence) and not closing.strip(fence[0]):
                fence = ""
        elif _FENCE.match(line):
            mark = line.lstrip(" ")
            fence = mark[: len(mark) - len(mark.lstrip(mark[0]))]
            yield fence + re.sub(r"[^\w+#.-]", "", mark.removeprefix(fence))
        else:
            yield _neutral_line(line)


def _neutral_line(line: str) -> str:
    done: list[str] = []
    at = 0
    for code in marked_texts(line):
        done += [_escaped(line[at : code.start], _entity), _escaped(line[code.start : code.end], _joined)]
        at = code.end
    return "".join([*done, _escaped(line[at:], _entity)])


def _escaped(text: str, change: Callable[[str], str]) -> str:
    text = re.sub(r"<(?=[A-Za-z/!?])|&(?=[#A-Za-z])|!(?=\[)", lambda found: change(found[0]), text)
    return _SCRIPT.sub(lambda found: f"{found[1]}{_JOINER}{found[2]}", text)


def _entity(mark: str) -> str:
    return f"&#{ord(mark)};"


def _joined(mark: str) -> str:
    return f"{mark}{_JOINER}"
