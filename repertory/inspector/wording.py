"""Text for pages: numbers, times, and conversations as HTML that can do no harm.

Everything that comes from a conversation is hostile. It becomes HTML in this file and in the templates only, and both
escape it; nothing here makes a link of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape

from markupsafe import Markup

from repertory.core.notebook import marked_texts

TEXT_CHARS_MAX = 20_000
"""The longest text that a page shows at once."""
HIDDEN = Markup('<p class="faint">Contents are not shown here.</p>')
"""The stand-in for the contents of people and models, where they are not shown."""
_FENCE = re.compile(r"^ {0,3}(```++|~~~++)[^\n`]*$")
_HEADING = re.compile(r"^ {0,3}#{1,6} +(.+)$")
_ITEM = re.compile(r"^ *(?:[-*+]|\d{1,9}[.)]) +(.+)$")
_CONTROL = {
    number: "\N{REPLACEMENT CHARACTER}" for number in (*range(32), *range(127, 160)) if chr(number) not in "\n\t"
}
_MARKS = {number: f"[U+{number:04X}]" for number in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F)}


def visible(text: str) -> str:
    """The text without terminal sequences and other control characters, and with marks that would reorder it spelled
    out.
    """
    return text.translate(_CONTROL | _MARKS)


def rich_text(text: str) -> Markup:
    """A text of a message as HTML: paragraphs, code, headings, lists and bold text of Markdown; everything else is
    shown as it is written. There are no links, images or raw HTML.
    """
    html = "".join(_blocks(visible(text[:TEXT_CHARS_MAX]).split("\n")))
    if len(text) > TEXT_CHARS_MAX:
        html += f'<p class="faint">{grouped(len(text) - TEXT_CHARS_MAX)} more characters</p>'
    return Markup(html)  # nosec B704


# Below, every piece of the text passes `escape` once, where it is put between tags.


def _blocks(lines: list[str]) -> Iterator[str]:
    index = 0
    paragraph: list[str] = []
    while index < len(lines):
        line = lines[index]
        fence, heading, item = _FENCE.match(line), _HEADING.match(line), _ITEM.match(line)
        if fence or heading or item or not line.strip():
            yield from _paragraph(paragraph)
            paragraph = []
        if fence:
            end = next((n for n in range(index + 1, len(lines)) if lines[n].strip().startswith(fence[1])), len(lines))
            code = escape("\n".join(lines[index + 1 : end]))
            yield f"<pre><code>{code}</code></pre>"
            index = end
        elif heading:
            yield f'<p class="heading">{_inline(heading[1].rstrip(" #"))}</p>'
        elif item:
            end = index
            while end < len(lines) and _ITEM.match(lines[end]):
                end += 1
            yield f"<ul>{''.join(map(_item, lines[index:end]))}</ul>"
            index = end - 1
        elif line.strip():
            paragraph.append(line)
        index += 1
    yield from _paragraph(paragraph)


def _item(line: str) -> str:
    marker, *text = line.split(maxsplit=1)
    return f"<li>{'' if marker in '-*+' else f'{escape(marker)} '}{_inline(''.join(text))}</li>"


def _paragraph(lines: list[str]) -> Iterator[str]:
    if lines:
        text = _inline("\n".join(lines))
        yield f"<p>{text}</p>"


def _inline(text: str) -> str:
    if "`" not in text and "*" not in text:
        return escape(text)
    made: list[str] = []
    end = 0
    for found in marked_texts(text, bold=True):
        tag = "strong" if found.mark == "**" else "code"
        made += escape(text[end : found.start]), f"<{tag}>{escape(found.text)}</{tag}>"
        end = found.end
    made.append(escape(text[end:]))
    return "".join(made)


def json_text(value: object) -> str:
    """A JSON value, laid out for reading, as far as a page shows it."""
    made, size = list[str](), 0
    for piece in json.JSONEncoder(ensure_ascii=False, indent=2, default=repr).iterencode(value):
        made.append(piece)
        size += len(piece)
        if size > TEXT_CHARS_MAX:
            break
    return cut_text("".join(made))


def cut_text(text: str) -> str:
    """The text as far as a page shows it."""
    return visible(text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}...")


def first_words(text: str, characters: int = 120) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(visible(text[: characters * 4]).split())
    return line if len(line) <= characters else f"{line[: characters - 1].rstrip()}\N{HORIZONTAL ELLIPSIS}"


def grouped(value: float) -> str:
    """A count, with separators."""
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def duration(seconds: float | None) -> str:
    """A time span in the unit that suits it."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{max(seconds, 0.0) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h"


def ago(then: float, now: float) -> str:
    """The age of a moment in one unit, as `5 min ago`."""
    gone = now - then
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if gone >= (2 * seconds if unit == "d" else seconds):
            return f"{int(gone // seconds)} {unit} ago"
    return "now"


def utc_text(at: float) -> str:
    """A point in time, in UTC."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return "unknown"


def machine_time(at: float) -> str:
    """A point in time for machines: the `datetime` of a `<time>`."""
    return f"{utc_text(at).replace(' ', 'T')}Z" if utc_text(at) != "unknown" else ""
