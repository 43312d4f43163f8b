"""The parts that all pictures share: escaped text that fits its room, shapes, colours, the document around them.

A picture is read in four ways, and none of them may lose anything: on a light screen, on a dark one, on paper, and by a
screen reader. So a status is always a word and a shape, never a colour alone; the document has a title and a
description; and whatever is shortened has the whole text in a `<title>`, which browsers show when pointed at.

Nothing is measured in a browser. `width_of` estimates widths from above, for the widest of the common system fonts, so
a text ends within its room everywhere. Rules of style apply only below the class `repertory-picture`, and nothing has
an id: several pictures may stand in one page of HTML.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Final, Literal

from msgspec import Struct

SIZE: Final = 13.0
"""The size of text, in pixels."""
SMALL: Final = 11.0
TOOLTIP_MAX: Final = 600
"""The longest `<title>`, in characters: longer than every id, short enough for ten thousand of them."""
_BOLD: Final = 1.1
_WIDE: Final = 1.05
_NARROW, _MIDDLE, _BROAD = 0.36, 0.64, 0.98
_THIN = frozenset("iljtfrI.,:;'|!()[]{}/\\`- ")
_THICK = frozenset("mwMWQ%@")
# What XML forbids, and what turns the direction of the text around it: neither belongs into a picture.
_UNWANTED = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufffe\uffff]"
)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture: `svg` for pages and files, `text` for terminals. `str(picture)` is the text. Notebooks show `svg`."""

    svg: str
    """A whole SVG document, for a file, an `<img>`, or in the middle of HTML."""
    text: str
    """The picture for a terminal, in ASCII signs, as lines that end with line breaks."""

    def _repr_svg_(self) -> str:
        return self.svg

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Picture of {len(self.svg)} characters of SVG: str() is its text>"


def clean(text: str) -> str:
    """The text on one line, without characters that XML forbids or that turn the direction of others."""
    return _UNWANTED.sub("\ufffd", " ".join(text.split()))


def escaped(text: str) -> str:
    """The text for XML, between tags and in attributes, after `clean`."""
    found = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return found.replace('"', "&quot;").replace("'", "&#39;")


@cache
def _share(character: str) -> float:
    """The width of a character, in parts of the font size, from above."""
    if unicodedata.east_asian_width(character) in "WF" or ord(character) > 0x1_0000:
        return _WIDE
    if unicodedata.combining(character):
        return 0.0
    if character in _THIN:
        return _NARROW
    if character in _THICK:
        return _BROAD
    return 0.76 if character.isupper() else _MIDDLE if character.isascii() else 0.8


def width_of(text: str, size: float = SIZE) -> float:
    """An upper estimate of the width of a text, in pixels."""
    return sum(map(_share, text)) * size


def font_size(style: str) -> float:
    """The size of text in a style, in pixels; that of bold text stands for its width."""
    words = style.split()
    return (SMALL if "small" in words else SIZE) * (_BOLD if "strong" in words else 1)


COMBINED_MAX = 4
"""The number of combining characters that may follow each other: more would be drawn over the neighbours."""


def fitted(text: str, room: float, size: float = SIZE, *, middle: bool = False) -> str:
    """The text, cleaned and shortened with an ellipsis to fit into `room` pixels: at its end, or in the `middle`, which
    keeps both ends of an id.
    """
    text = _few_combined(clean(text))
    if width_of(text[:2000], size) <= room and len(text) <= 2000:
        return text
    remaining = room - width_of("…", size)
    tail = _ending(text, remaining / 3, size) if middle else ""
    return f"{_beginning(text, remaining - width_of(tail, size), size).rstrip()}…{tail.lstrip()}"


def _beginning(text: str, room: float, size: float) -> str:
    used = 0.0
    for index, character in enumerate(text[:2000]):
        used += _share(character) * size
        if used > room:
            return text[:index]
    return text[:2000]


def _ending(text: str, room: float, size: float) -> str:
    return _beginning(text[::-1], room, size)[::-1]


def _few_combined(text: str) -> str:
    if text.isascii():
        return text
    retained: list[str] = []
    run = 0
    for character in text:
        run = run + 1 if unicodedata.combining(character) else 0
        if run <= COMBINED_MAX:
            retained.append(character)
    return "".join(retained)


def number(value: float) -> str:
    """A coordinate: at most one digit behind the point."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")


def lasted(milliseconds: float) -> str:
    """The duration as text: `850 ms`, `1.2 s`, `3 min 20 s`, `2 h 5 min`."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def moment(at: float) -> str:
    """Epoch seconds as `2026-01-31 09:30 UTC`; a number that is no time of the calendar as it is."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return f"{at:g}"


# The shapes of a status. Each is drawn around (0, 0) in a square of 14 pixels, in the colour of its class.

Shape = Literal["done", "failed", "waits", "works", "pending", "plain"]
SHAPES: Final[dict[Shape, str]] = {
    "done": '<circle class="solid" r="7"/><path class="cut" d="M-3.5 .3 L-1 2.8 L3.6 -2.6"/>',
    "failed": (
        '<path class="solid" d="M-3 -7H3L7 -3V3L3 7H-3L-7 3V-3Z"/>'
        '<path class="cut" d="M-2.8 -2.8L2.8 2.8M2.8 -2.8L-2.8 2.8"/>'
    ),
    "waits": (
        '<rect class="solid" x="-7" y="-7" width="14" height="14" rx="2"/>'
        '<path class="cut" d="M-2.4 -3.5V3.5M2.4 -3.5V3.5"/>'
    ),
    "works": '<path class="solid" d="M-5 -7L7 0L-5 7Z"/>',
    "pending": '<circle class="hollow" r="6"/>',
    "plain": '<circle class="solid" r="4"/>',
}
TONES: Final[dict[Shape, str]] = {
    "done": "good",
    "failed": "bad",
    "waits": "wait",
    "works": "main",
    "pending": "mute",
    "plain": "mute",
}


class Canvas:
    """Collects the elements of a picture, in the order in which they are drawn."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, element: str) -> None:
        """An element whose texts are escaped already."""
        self._parts.append(element)

    def text(self, x: float, y: float, words: str, style: str = "", room: float = 4000, whole: str = "") -> float:
        """A line of text on the base line `y`; the width that it was given. What does not fit into `room` is shortened,
        and stands in a `<title>`, like `whole` when that is given.

        `style`: any of `small`, `strong`, a tone, and `end` or `center` for a text that ends at `x`, or has its middle
        there.
        """
        fitting = fitted(words, room, font_size(style))
        return self._line(x, y, fitting, style, whole or (words if fitting != clean(words) else ""))

    def name(self, x: float, y: float, words: str, style: str = "", room: float = 4000, whole: str = "") -> float:
        """`text` for an id or a label: when it is shortened, both of its ends stay."""
        fitting = fitted(words, room, font_size(style), middle=True)
        return self._line(x, y, fitting, style, whole or (words if fitting != clean(words) else ""))

    def _line(self, x: float, y: float, text: str, style: str, whole: str) -> float:
        title = title_of(whole) if whole else ""
        named = f' class="{style}"' if style else ""
        self.add(f'<text x="{number(x)}" y="{number(y)}"{named}>{escaped(text)}{title}</text>')
        return width_of(text, font_size(style))

    def box(self, x: float, y: float, width: float, height: float, style: str, radius: float = 6) -> None:
        """A rectangle."""
        self.add(
            f'<rect class="{style}" x="{number(x)}" y="{number(y)}" width="{number(width)}" '
            f'height="{number(height)}" rx="{number(radius)}"/>'
        )

    def path(self, data: str, style: str) -> None:
        """A path; `data` consists of letters and numbers only."""
        self.add(f'<path class="{style}" d="{data}"/>')

    def shape(self, x: float, y: float, shape: Shape, scale: float = 1.0) -> None:
        """The sign of a status, around a point."""
        sized = f" scale({number(scale)})" if scale != 1 else ""
        self.add(f'<g class="{TONES[shape]}" transform="translate({number(x)} {number(y)}){sized}">{SHAPES[shape]}</g>')

    def arrow(self, x: float, y: float, dx: float, dy: float, style: str) -> None:
        """The head of an arrow that ends at a point, in a direction of length 1."""
        back, side = 8.0, 3.6
        ax, ay = x - dx * back, y - dy * back
        corners = ((x, y), (ax - dy * side, ay + dx * side), (ax + dy * side, ay - dx * side))
        data = "L".join(f"{number(one)} {number(other)}" for one, other in corners)
        self.path(f"M{data}Z", style)

    def document(self, width: float, height: float, title: str, description: str) -> str:
        """The whole document."""
        across, down = number(width), number(height)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="repertory-picture" role="img" viewBox="0 0 {across} '
            f'{down}" width="{across}" height="{down}" font-size="{number(SIZE)}">\n'
            f"<title>{escaped(title)}</title>\n<desc>{escaped(description)}</desc>\n<style>{STYLE}</style>\n"
            f'<rect class="paper" width="{across}" height="{down}"/>\n' + "\n".join(self._parts) + "\n</svg>\n"
        )


def title_of(text: str) -> str:
    """The `<title>` that a browser shows for an element."""
    whole = text if len(text) <= TOOLTIP_MAX else f"{text[:TOOLTIP_MAX]}…"
    return f"<title>{escaped(whole)}</title>"


class _Colours(Struct, frozen=True):
    paper: str
    ink: str
    mute: str
    line: str
    box: str
    edge: str
    main: str
    good: str
    bad: str
    wait: str


_LIGHT = _Colours(
    "#ffffff", "#1c2024", "#5c616b", "#b4b8c0", "#f6f7f9", "#8a909a", "#0b60bd", "#166c43", "#ad1f14", "#825200"
)
_DARK = _Colours(
    "#15171b", "#eceef1", "#a7acb6", "#525863", "#1f2329", "#707783", "#76bbff", "#52c78f", "#ff9086", "#f0b74f"
)


def _rules(colours: _Colours) -> Sequence[str]:
    tones = {"main": colours.main, "good": colours.good, "bad": colours.bad, "wait": colours.wait, "mute": colours.mute}
    rules = [
        f".paper{{fill:{colours.paper}}}",
        f"text{{fill:{colours.ink}}}",
        f"text.mute{{fill:{colours.mute}}}",
        f".box{{fill:{colours.box};stroke:{colours.edge}}}",
        f".lane,.edge{{stroke:{colours.line}}}",
        f".edge.used{{stroke:{colours.edge}}}",
        f".tip{{fill:{colours.line}}}",
        f".tip.used{{fill:{colours.edge}}}",
        f".cut{{stroke:{colours.paper}}}",
        f".knot{{fill:{colours.paper};stroke:{colours.edge}}}",
        f".room{{fill:{colours.paper};stroke:{colours.line}}}",
    ]
    for name, colour in tones.items():
        rules.append(f".{name} .solid,text.{name}{{fill:{colour}}}")
        rules.append(f".{name} .hollow,.box.{name},.lane.{name}{{stroke:{colour}}}")
    return [f".repertory-picture {rule}".replace(",", ",.repertory-picture ") for rule in rules]


_SHAPE_RULES = [
    "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif;white-space:pre}",
    ".small{font-size:11px}",
    ".strong{font-weight:600}",
    ".end{text-anchor:end}",
    ".center{text-anchor:middle}",
    ".lane{fill:none;stroke-width:2.5}",
    ".lane.aside{stroke-dasharray:5 3}",
    ".edge{fill:none;stroke-width:1.5}",
    ".edge.used{stroke-width:2}",
    ".edge.maybe{stroke-dasharray:6 4}",
    ".box{stroke-width:1.2}",
    ".box.bad{stroke-width:2.4}",
    ".box.wait{stroke-width:2.4}",
    ".box.later{stroke-dasharray:3 3}",
    ".cut{fill:none;stroke-width:1.8;stroke-linecap:round;stroke-linejoin:round}",
    ".hollow{fill:none;stroke-width:2}",
]
STYLE: Final = "".join(
    [
        *(f".repertory-picture {rule}" for rule in _SHAPE_RULES),
        *_rules(_LIGHT),
        "@media screen and (prefers-color-scheme:dark){",
        *_rules(_DARK),
        "}",
    ]
)
"""Colours by the reader's scheme; on paper the light ones."""
