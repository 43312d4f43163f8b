"""A session's branches as a picture: what happened, from top to bottom, in lanes like those of a commit graph.

The lane on the left is the conversation as it is now, with what it was forked from. A lane to its right is what a
rewind left behind. A branch begins below the position that it leaves; labels stand at the positions that they name.

    lanes    A rewind goes back from the journal's end to an earlier position. So the rows that it left behind are those
             right before it, and each lane is one stretch of rows. Lanes that do not meet share a column.
    folding  Answered turns, and whatever else is not a place where something branched off, fold into one row. Behind
             `REWINDS_MAX` rewinds and `NOTABLE_MAX` labels, redactions and interrupts, everything older folds too. So a
             picture has a few hundred rows at most, however long the session is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct, field

from repertory.core.history.fork import Lineage
from repertory.core.history.timeline import TimelineEntry, timeline
from repertory.core.journal.records import Interrupted, Resumed
from repertory.core.pictures.svg import (
    SHAPES,
    SMALL,
    Canvas,
    Picture,
    clean,
    fitted,
    font_size,
    moment,
    number,
    width_of,
)
from repertory.core.plural import counted

PointKind = (
    Literal["turn", "mark", "rewind", "view", "redaction", "fork", "run", "node", "timer", "tool"]
    | Literal["interrupt", "answer", "position"]
)

REWINDS_MAX: Final = 12
"""The number of latest rewinds that are drawn; the rows before them fold into one."""
NOTABLE_MAX: Final = 40
"""The number of labels, redactions, interrupts and failures that are drawn."""
LABELS_MAX: Final = 4
"""The number of labels of one position that are drawn."""


class BranchPoint(Struct, frozen=True, kw_only=True):
    """Something that happened in a journal, at one position."""

    seq: int
    kind: PointKind
    text: str = ""
    at: float | None = None
    """The time of the event, in epoch seconds."""
    position: int | None = None
    """The position that a mark names, a rewind went back to, a fork left its source at, or a redaction replaced."""
    tokens: int | None = None
    notable: bool = False
    """True if it is drawn on a row of its own as long as there is room: an open turn, a failed node."""
    source: str | None = None
    """The journal of these numbers, as `session/agent`, if it is a source of the one that is drawn."""


class Branches(Struct, frozen=True, kw_only=True):
    """The branches of a session's journal, for `branches_svg`."""

    name: str
    """The session, and its agent."""
    points: Sequence[BranchPoint] = ()
    """The points in order: those of the sources of a fork first."""
    last: int = 0
    """The last position of the journal."""


def branches_of(lineage: Lineage) -> Branches:
    """The branches of the first journal, and of its sources up to each fork."""
    journal = lineage[0]
    points = branch_points(timeline(lineage))
    asked = [
        BranchPoint(
            seq=seq,
            kind="interrupt" if isinstance(record, Interrupted) else "answer",
            at=record.at,
            text=", ".join(each.name for each in record.interrupts) if isinstance(record, Interrupted) else "",
        )
        for seq, record in journal.records
        if isinstance(record, Interrupted | Resumed)
    ]
    before = [each for each in points if each.source is not None]
    own = sorted([*asked, *(each for each in points if each.source is None)], key=lambda each: each.seq)
    return Branches(name=f"{journal.session_id}/{journal.agent_id}", points=(*before, *own), last=journal.last_seq)


def branch_points(entries: Iterable[TimelineEntry]) -> list[BranchPoint]:
    """The points of a timeline."""
    return [
        BranchPoint(
            seq=each.seq,
            kind=each.what,
            text=_words(each),
            at=each.at,
            position=each.position,
            tokens=each.tokens,
            notable=each.answered is False or each.status in ("failed", "interrupted"),
            source=each.source,
        )
        for each in entries
    ]


def _words(each: TimelineEntry) -> str:
    match each.what:
        case "turn":
            return f"{each.turn}: {each.text}" + ("" if each.answered else " (no answer)")
        case "run":
            return f"{each.run}{'' if each.status == 'started' else ' ended early'}: {each.text}"
        case "node":
            return f"{each.node} {each.status}: {each.text}"
        case _:
            return each.text


# From points to rows.


class _Row(Struct):
    """One line of the picture."""

    seq: int
    stretch: int
    """The stretch of the journal between two rewinds, from 0; -1 for sources."""
    kind: PointKind | Literal["fold", "start"]
    text: str
    point: BranchPoint | None = None
    labels: list[str] = field(default_factory=list[str])
    """The labels of this position; one that names another position by now is in brackets."""
    rewound: bool = False
    """True if a rewind left it behind."""
    lane: int = 0
    head: bool = False


class _Lane(Struct, frozen=True):
    """A line that leaves a row and runs down to another one."""

    column: int
    parent: int | None
    """The row where it leaves."""
    first: int
    last: int


def _layout(branches: Branches) -> tuple[list[_Row], list[_Lane]]:
    own = [each for each in branches.points if each.source is None]
    rewinds = [each for each in own if each.kind == "rewind"]
    starts = [1, *(each.seq for each in rewinds)]
    targets = [0, *(each.position or 0 for each in rewinds)]
    lasts = _way_here(starts, targets, branches.last)
    rows = [_Row(each.seq, -1, each.kind, each.text, each) for each in branches.points if each.source is not None]
    stretch = 0
    for each in _with_positions(own, targets[1:], branches.last):
        while stretch + 1 < len(starts) and each.seq >= starts[stretch + 1]:
            stretch += 1
        rows.append(_Row(each.seq, stretch, each.kind, each.text, each, rewound=each.seq > lasts[stretch]))
    _label(rows, own)
    rows = [row for row in rows if row.kind != "mark"]
    rows = _folded(_without_old(rows, starts), {*targets[1:]})
    return rows, _lanes(rows, targets)


def _way_here(starts: Sequence[int], targets: Sequence[int], last: int) -> list[int]:
    """The last position of each stretch that today's conversation includes; -1 for none."""
    lasts = [-1] * len(starts)
    stretch, end = len(starts) - 1, last
    while True:
        lasts[stretch] = end
        end = targets[stretch]
        if not stretch or not end:
            return lasts
        while stretch and starts[stretch] > end:
            stretch -= 1


def _with_positions(own: Sequence[BranchPoint], targets: Iterable[int], last: int) -> list[BranchPoint]:
    """The points, and a bare one wherever something refers to a position at which nothing happened."""
    there = {each.seq for each in own if each.kind != "mark"}
    named = {each.position for each in own if each.kind == "mark" and each.position is not None}
    missing = ({*targets, *named} - there) | ({last} if last > max(there, default=0) else set[int]())
    bare = [BranchPoint(seq=seq, kind="position") for seq in missing if seq <= last]
    return sorted([*own, *bare], key=lambda each: (each.seq, each.kind != "mark"))


def _label(rows: Sequence[_Row], own: Sequence[BranchPoint]) -> None:
    """Put every label at the position that it names."""
    newest = {each.text: each.seq for each in own if each.kind == "mark"}
    by_seq = {row.seq: row for row in rows if row.stretch >= 0 and row.kind != "mark"}
    for each in own:
        if each.kind == "mark" and each.position is not None and each.position in by_seq:
            words = each.text if newest[each.text] == each.seq else f"({each.text})"
            by_seq[each.position].labels.append(words)


def _without_old(rows: list[_Row], starts: Sequence[int]) -> list[_Row]:
    """The rows, with one in place of all those before the last rewinds."""
    if len(starts) - 1 <= REWINDS_MAX:
        return rows
    first = len(starts) - REWINDS_MAX
    old = [row for row in rows if row.stretch < first]
    text = _summary([row for row in old if row.kind != "rewind"], more=[counted(first - 1, "rewind")])
    return [_Row(starts[first] - 1, first - 1, "fold", text), *(row for row in rows if row.stretch >= first)]


def _folded(rows: list[_Row], targets: set[int]) -> list[_Row]:
    """The rows, with one in the place of each series of rows that tell little."""
    notable = [row for row in rows if _is_notable(row)]
    retained = {id(row) for row in notable[-NOTABLE_MAX:]}
    for index, row in enumerate(rows):
        before, after = rows[index - 1] if index else None, rows[index + 1] if index + 1 < len(rows) else None
        edge = before is None or after is None or _way(before) != _way(row) or _way(after) != _way(row)
        if edge or row.kind in ("rewind", "fork", "fold") or (row.stretch >= 0 and row.seq in targets):
            retained.add(id(row))
    found: list[_Row] = []
    series: list[_Row] = []
    for row in rows:
        if id(row) not in retained:
            series.append(row)
            continue
        found += _fold(series)
        series = []
        found.append(row)
    return [*found, *_fold(series)]


def _is_notable(row: _Row) -> bool:
    is_event = row.kind in ("redaction", "interrupt", "answer") or (row.point is not None and row.point.notable)
    return is_event or bool(row.labels)


def _way(row: _Row) -> tuple[int, bool]:
    return row.stretch, row.rewound


def _fold(series: list[_Row]) -> list[_Row]:
    if len(series) <= 2:
        return series
    first, last = series[0].seq, series[-1]
    return [_Row(last.seq, last.stretch, "fold", f"#{first} to #{last.seq}: {_summary(series)}", rewound=last.rewound)]


_PLURALS: Mapping[str, str] = {"view": "changes of the view", "position": "positions"}


def _summary(rows: Sequence[_Row], more: Sequence[str] = ()) -> str:
    counts = Counter(row.kind for row in rows)
    labels = sum(len(row.labels) for row in rows)
    parts = [counted(count, kind, _PLURALS.get(kind)) for kind, count in sorted(counts.items()) if kind != "position"]
    return ", ".join([*parts, *([counted(labels, "label")] if labels else []), *more]) or "nothing"


def _lanes(rows: Sequence[_Row], targets: Sequence[int]) -> list[_Lane]:
    """Give every row its column. The lines that leave the conversation of today are the lanes; that one is column 0."""
    lanes: list[_Lane] = []
    stretches: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        if row.rewound:
            stretches.setdefault(row.stretch, []).append(index)
    for stretch, indices in sorted(stretches.items()):
        parent = _parent(rows, stretch, indices, targets)
        begin = indices[0] if parent is None else parent + 1
        taken = {lane.column for lane in lanes if _begin(lane) <= indices[-1] and lane.last >= begin}
        column = next(each for each in range(1, len(lanes) + 2) if each not in taken)
        lanes.append(_Lane(column, parent, indices[0], indices[-1]))
        for index in indices:
            rows[index].lane = column
        rows[indices[-1]].head = True
    today = [row for row in rows if not row.rewound]
    if today:
        today[-1].head = True
    return lanes


def _begin(lane: _Lane) -> int:
    return lane.first if lane.parent is None else lane.parent + 1


def _parent(rows: Sequence[_Row], stretch: int, indices: Sequence[int], targets: Sequence[int]) -> int | None:
    """The row that a lane leaves: where its rewind went back to, or the last row of its stretch that is still part of
    today's conversation.
    """
    before = [index for index, row in enumerate(rows) if row.stretch == stretch and not row.rewound]
    if before:
        return before[-1]
    target = targets[stretch]
    earlier = [index for index, row in enumerate(rows[: indices[0]]) if row.stretch >= 0 and row.seq <= target]
    return earlier[-1] if earlier and target else None


# From rows to pictures.

_WORDS: Final[Mapping[str, str]] = {"view": "view changed", "fold": "", "position": "", "start": ""}


def branches_picture(branches: Branches) -> Picture:
    """`branches_svg` and `branches_text` of the same layout."""
    return Picture(branches_svg(branches), branches_text(branches))


def _row_text(row: _Row) -> str:
    """The text of the row besides its number and its labels."""
    word = _WORDS.get(row.kind, row.kind)
    point = row.point
    match row.kind:
        case "rewind":
            text = f"to #{point.position if point is not None else 0}{f': {row.text}' if row.text else ''}"
        case "fork":
            text = f"from {row.text} at #{point.position if point is not None else 0}"
        case "redaction":
            text = f"of message #{point.position if point is not None else 0}"
        case "fold":
            text = row.text
        case "position":
            text = "" if row.labels or row.head else "left here"
        case _:
            text = row.text
    return " ".join(part for part in (word, text) if part)


def _ending(row: _Row) -> str:
    if not row.head:
        return ""
    return f"left behind at #{row.seq}" if row.rewound else f"now at #{row.seq}"


def _name(row: _Row) -> str:
    source = row.point.source if row.point is not None else None
    return "" if row.kind == "fold" else f"#{row.seq}" if source is None else f"{source} #{row.seq}"


_ROW: Final = 28.0
_LANE: Final = 20.0
_MARGIN: Final = 26.0
_TOP: Final = 58.0
_WORDS_ROOM: Final = 470.0
_NUMBER_ROOM: Final = 78.0
_TIME_ROOM: Final = 250.0
_TOKENS_AT: Final = 158.0
"""The distance from the right edge to the end of the column of tokens."""


def branches_svg(branches: Branches) -> str:
    """The branches of a session as an SVG document, one row per event, the oldest at the top."""
    rows, lanes = _layout(branches)
    canvas = Canvas()
    columns = max((lane.column for lane in lanes), default=0)
    words_at = _MARGIN + columns * _LANE + 22
    width = words_at + _NUMBER_ROOM + _WORDS_ROOM + _TIME_ROOM
    canvas.name(16, 26, branches.name, "strong", width - 32)
    canvas.text(16, 44, _subtitle(rows, lanes, branches), "small mute", width - 32)
    today = [index for index, row in enumerate(rows) if not row.rewound]
    if today:
        canvas.path(f"M{number(_x(0))} {number(_y(today[0]))}V{number(_y(today[-1]))}", "lane main")
    for lane in lanes:
        _draw_lane(canvas, rows, lane)
    for index, row in enumerate(rows):
        _draw_row(canvas, row, _y(index), words_at, width)
    if not rows:
        canvas.text(16, _TOP + 14, "Nothing has happened yet.", "mute")
    height = _TOP + max(1, len(rows)) * _ROW + 14
    title = f"Branches of {branches.name}"
    return canvas.document(width, height, title, _subtitle(rows, lanes, branches))


def _subtitle(rows: Sequence[_Row], lanes: Sequence[_Lane], branches: Branches) -> str:
    points = branches.points
    turns = sum(each.kind == "turn" for each in points)
    parts = [counted(turns, "turn"), counted(sum(each.kind == "rewind" for each in points), "rewind")]
    parts.append(counted(sum(each.kind == "mark" for each in points), "label"))
    extra = f"; {counted(len(lanes), 'branch', 'branches')} beside today's conversation" if lanes else ""
    return f"{', '.join(parts)}, up to #{branches.last}{extra}" if rows else "an empty journal"


def _x(column: int) -> float:
    return _MARGIN + column * _LANE


def _y(index: int) -> float:
    return _TOP + index * _ROW + _ROW / 2


def _draw_lane(canvas: Canvas, rows: Sequence[_Row], lane: _Lane) -> None:
    x, end = _x(lane.column), _y(lane.last)
    if lane.parent is None:
        canvas.path(f"M{number(x)} {number(_y(lane.first))}V{number(end)}", "lane aside")
        return
    from_x, from_y = _x(rows[lane.parent].lane), _y(lane.parent)
    below = from_y + _ROW
    bend = f"C{number(from_x)} {number(from_y + _ROW * 0.6)} {number(x)} {number(from_y + _ROW * 0.4)}"
    canvas.path(
        f"M{number(from_x)} {number(from_y)}{bend} {number(x)} {number(below)}V{number(max(end, below))}", "lane aside"
    )


def _draw_row(canvas: Canvas, row: _Row, y: float, words_at: float, width: float) -> None:
    _draw_sign(canvas, row, _x(row.lane), y)
    base = y + 4.5
    tone = "mute" if row.rewound or row.kind in ("fold", "position") else ""
    x = words_at
    name = _name(row)
    source = row.point.source if row.point is not None else None
    number_text = name if source is None else f"#{row.seq}"
    canvas.text(x, base, number_text, "mute", _NUMBER_ROOM - 8, "" if source is None else name)
    x += _NUMBER_ROOM
    end = width - _TIME_ROOM
    for label in row.labels[:LABELS_MAX]:
        x += _draw_label(canvas, x, y, label, min(150, max(60, (end - x) / 2)))
    if len(row.labels) > LABELS_MAX:
        rest = row.labels[LABELS_MAX:]
        x += canvas.text(x, base, f"+{len(rest):,}", "small mute", whole=", ".join(rest)) + 10
    ending = _ending(row)
    ends = width_of(ending, SMALL) + 12 if ending else 0
    words = _row_text(row)
    if words:
        x += canvas.text(x, base, words, tone, room=max(40, end - x - ends)) + 10
    if ending:
        canvas.text(x, base, ending, f"small {'mute' if row.rewound else 'main'}")
    if row.point is not None:
        if row.point.tokens is not None:
            canvas.text(width - _TOKENS_AT, base, counted(row.point.tokens, "token"), "small mute end")
        if row.point.at is not None:
            canvas.text(width - 16, base, moment(row.point.at), "small mute end")


def _draw_label(canvas: Canvas, x: float, y: float, label: str, room: float) -> float:
    """A label as a tag with a point; the width that it took."""
    size = font_size("small strong")
    across = width_of(fitted(label, room, size, middle=True), size)
    right, top, bottom = x + across + 20, y - 9, y + 9
    data = f"M{number(x)} {number(y)}L{number(x + 7)} {number(top)}H{number(right)}V{number(bottom)}"
    canvas.path(f"{data}H{number(x + 7)}Z", "box")
    canvas.name(x + 12, y + 4, label, "small strong", room, f"label {label}")
    return across + 28


def _draw_sign(canvas: Canvas, row: _Row, x: float, y: float) -> None:
    tone = "mute" if row.rewound else "main"
    at = f'transform="translate({number(x)} {number(y)})"'
    match row.kind:
        case "fold":
            dots = "".join(f'<circle class="solid" cy="{dy}" r="1.9"/>' for dy in (-5, 0, 5))
            sign = f'<rect class="paper" x="-5" y="-9" width="10" height="18"/>{dots}'
        case "rewind":
            sign = '<circle class="solid" r="7"/><path class="cut" d="M3.6 0H-3.2M-.4 -2.9L-3.3 0L-.4 2.9"/>'
        case "fork":
            sign = '<path class="solid" d="M0 -8L8 0L0 8L-8 0Z"/>'
        case "redaction":
            sign = '<rect class="solid" x="-7.5" y="-4" width="15" height="8"/>'
        case "interrupt":
            tone = tone if row.rewound else "wait"
            sign = SHAPES["waits"]
        case "turn" if row.point is not None and not row.point.notable:
            sign = '<circle class="solid" r="5.5"/>'
        case "turn":
            sign = '<circle class="paper" r="5.5"/><circle class="hollow" r="5.5"/>'
        case "node" | "run":
            sign = '<rect class="solid" x="-5" y="-5" width="10" height="10"/>'
        case _:
            sign = '<circle class="solid" r="3.6"/>'
    ring = '<circle class="hollow" r="10"/>' if row.head and not row.rewound else ""
    canvas.add(f'<g class="{tone}" {at}>{sign}{ring}</g>')


_ASCII: Final[Mapping[str, str]] = {"fold": ":", "rewind": "<", "fork": "@", "redaction": "x", "interrupt": "?"}


def branches_text(branches: Branches) -> str:
    """The same rows for a terminal: `*` an event, `:` what is folded, `<` a rewind, `@` a fork, `x` a redaction, `?` an
    interrupt; labels in square brackets.
    """
    rows, lanes = _layout(branches)
    lines = [clean(branches.name), _subtitle(rows, lanes, branches), ""]
    today = [index for index, row in enumerate(rows) if not row.rewound]
    width = 2 * max((lane.column for lane in lanes), default=0) + 1
    for index, row in enumerate(rows):
        signs = [" "] * width
        if today and today[0] <= index <= today[-1]:
            signs[0] = "|"
        for lane in lanes:
            if _begin(lane) <= index <= lane.last:
                signs[2 * lane.column] = "|"
        signs[2 * row.lane] = _ASCII.get(row.kind, "*")
        lines.append(f"{''.join(signs)}  {_line(row)}".rstrip())
        lines += [_bend(lane, index, rows, lanes, today, width) for lane in lanes if lane.parent == index]
    return "".join(f"{line}\n" for line in lines)


def _bend(
    lane: _Lane, index: int, rows: Sequence[_Row], lanes: Sequence[_Lane], today: Sequence[int], width: int
) -> str:
    signs = [" "] * width
    if today and today[0] <= index < today[-1]:
        signs[0] = "|"
    for each in lanes:
        if _begin(each) <= index < each.last:
            signs[2 * each.column] = "|"
    start, end = 2 * rows[index].lane, 2 * lane.column
    signs[start] = "|"
    low, high = sorted((start, end))
    for at in range(low + 1, high):
        signs[at] = "-" if signs[at] == " " else "+"
    signs[end] = "." if end > start else ","
    if high - low == 2 and end > start:
        signs[low + 1], signs[end] = "\\", " "
    return "".join(signs).rstrip()


def _line(row: _Row) -> str:
    labels = [f"[{clean(label)}]" for label in row.labels[:LABELS_MAX]]
    more = [f"[+{len(row.labels) - LABELS_MAX}]"] if len(row.labels) > LABELS_MAX else []
    ending = _ending(row)
    parts = [clean(_name(row)), *labels, *more, clean(_row_text(row)), f"({ending})" if ending else ""]
    return " ".join(part for part in parts if part)
