"""Reading a part of a long text: lines with their numbers, those around what was looked for, as many as there is room
for.

Lines are wrapped, so that everything can be reached by line numbers however long a line is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from repertory.errors import Invalid

LINE_CHARS_MAX = 2_000
CONTEXT_LINES_MAX = 50
_NOTES_BYTES = 300
"""What is kept free for saying what is missing."""


def lines_of(text: str) -> list[str]:
    """The lines, wrapped at `LINE_CHARS_MAX`; at least one."""
    lines: list[str] = []
    for line in text.splitlines() or [""]:
        lines += [line[at : at + LINE_CHARS_MAX] for at in range(0, len(line), LINE_CHARS_MAX)] or [""]
    return lines


def check_range(start: int, end: int, count: int) -> range:
    """The places of these lines, both counted from 1 and included. Errors: `Invalid` when there are none such."""
    if start < 1 or end < start:
        raise Invalid("line_range counts from 1, and its end is not before its start", start=start, end=end)
    if start > count:
        raise Invalid(f"there are {count:,} lines only", start=start)
    return range(start - 1, min(end, count))


def whole_or_beginning(text: str, size_bytes: int) -> str:
    """The text as it is, when there is room for it, or its first lines."""
    if len(text.encode(errors="replace")) <= size_bytes:
        return text
    lines = lines_of(text)
    return excerpt(lines, range(len(lines)), size_bytes)


def excerpt(lines: Sequence[str], places: range, size_bytes: int) -> str:
    """These lines with their numbers, the first ones when there is no room for all."""
    shown, last = _numbered(lines, places, size_bytes - _NOTES_BYTES)
    header = f"[lines {places.start + 1:,}-{last + 1:,} of {len(lines):,}]"
    if last + 1 < places.stop:
        header = f"{header[:-1]}; there is no room for more: go on with line_range from {last + 2}]"
    return "\n".join([header, *shown])


def matches_text(lines: Sequence[str], found: Sequence[int], pattern: str, context_lines: int, size_bytes: int) -> str:
    """The places that were found, each with so many lines before and behind it, as far as there is room."""
    what = f"{len(found):,} match{'' if len(found) == 1 else 'es'} for /{pattern[:100]}/ in {len(lines):,} lines"
    around = min(context_lines, CONTEXT_LINES_MAX)
    shown: list[str] = []
    left, last, told = size_bytes - _NOTES_BYTES, -1, 0
    for place in found:
        places = range(max(last + 1, place - around), min(len(lines), place + around + 1))
        numbered, end = _numbered(lines, places, left, least=not shown)
        if shown and end + 1 < places.stop:
            break
        if end < place and not shown:
            numbered, end = _numbered(lines, range(place, place + 1), left)
        if shown and places.start > last + 1 and around:
            shown.append("--")
        shown += numbered
        left -= sum(map(_size, numbered))
        last, told = max(last, end), told + 1
    if told < len(found):
        what = f"{what}; there is room for the first {told:,}: narrow the pattern, or give a line_range"
    return "\n".join([f"[{what}]", *shown])


def places_of(lines: Sequence[str], places: Iterable[int], text: str) -> list[int]:
    """Where the lines contain the text, letter by letter."""
    return [place for place in places if text in lines[place]]


def _numbered(lines: Sequence[str], places: range, size_bytes: int, *, least: bool = True) -> tuple[list[str], int]:
    """As many of the lines as there is room for, with `least` at least one; and the place of the last one."""
    shown: list[str] = []
    last = places.start - 1
    for place in places:
        line = f"{place + 1}: {lines[place]}"
        size_bytes -= _size(line)
        if size_bytes < 0 and (shown or not least):
            break
        shown.append(line)
        last = place
    return shown, last


def _size(line: str) -> int:
    return len(line.encode(errors="replace")) + 1
