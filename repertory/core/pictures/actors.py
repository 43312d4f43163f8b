"""The tree of actors as a picture: who supervises whom, what waits in the mailboxes, and what was restarted.

One row per actor, indented below its supervisor. Where one has many children of a kind, such as a runtime with a
thousand sessions, those that failed, were restarted, or have the most messages waiting are shown; the others fold into
one row with their sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, Protocol

from msgspec import Struct

from repertory.core.pictures.svg import SMALL, Canvas, Picture, Shape, clean, lasted, number, width_of
from repertory.core.plural import counted

CHILDREN_MAX: Final = 6
"""The number of children of one kind that are drawn below one actor."""
ROWS_MAX: Final = 160
"""The number of rows of a picture. When there are more actors to show, the deepest levels fold."""
DEPTH_MAX: Final = 24


class ActorLoad(Protocol):
    """The messages that an actor has waiting, in work and behind it; `oldest_s` in seconds."""

    @property
    def queued(self) -> int: ...
    @property
    def oldest_s(self) -> float | None: ...
    @property
    def current(self) -> str | None: ...
    @property
    def processed(self) -> int: ...
    @property
    def failed(self) -> int: ...


class PicturedActor(ActorLoad, Protocol):
    """An actor at one instant, as `Runtime.tree` gives it (`ActorInfo`)."""

    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def state(self) -> Enum: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def children(self) -> Sequence[PicturedActor]: ...


class _Row(Struct, frozen=True, kw_only=True):
    depth: int
    name: str
    whole: str
    kind: str = ""
    state: str = ""
    queued: int = 0
    oldest_s: float | None = None
    current: str | None = None
    processed: int = 0
    failed: int = 0
    restarts: int = 0
    folded: int = 0
    """The number of actors that the row stands for; 0 for a row of one actor."""


def _rows(root: PicturedActor) -> list[_Row]:
    depth = DEPTH_MAX
    while True:
        rows = list(_rows_below(root, 0, depth))
        if len(rows) <= ROWS_MAX or depth <= 1:
            return rows[:ROWS_MAX]
        depth = min(depth - 1, max(row.depth for row in rows) - 1)


def _rows_below(actor: PicturedActor, depth: int, depth_max: int) -> Iterator[_Row]:
    name = actor.path.rsplit("/", 1)[-1] or "/"
    yield _Row(
        depth=depth,
        name=name,
        whole=actor.path,
        kind=actor.kind,
        state=str(actor.state.value),
        queued=actor.queued,
        oldest_s=actor.oldest_s,
        current=actor.current,
        processed=actor.processed,
        failed=actor.failed,
        restarts=max(0, actor.incarnation - 1),
    )
    if depth >= depth_max:
        if actor.children:
            yield _fold(actor.children, depth + 1, "actors below")
        return
    kinds: dict[str, list[PicturedActor]] = {}
    for child in actor.children:
        kinds.setdefault(child.kind, []).append(child)
    visible = {kind: _visible(children) for kind, children in kinds.items()}
    there = {id(child) for children in visible.values() for child in children}
    last = {kind: id(children[-1]) for kind, children in visible.items()}
    for child in actor.children:
        if id(child) not in there:
            continue
        yield from _rows_below(child, depth + 1, depth_max)
        rest = [each for each in kinds[child.kind] if id(each) not in there]
        if rest and last[child.kind] == id(child):
            yield _fold(rest, depth + 1, "sessions" if child.kind == "SessionSupervisor" else f"of {child.kind}")


def _visible(children: list[PicturedActor]) -> list[PicturedActor]:
    """The children that are shown, in their order: all, or those that need attention most."""
    if len(children) <= CHILDREN_MAX:
        return children
    order = sorted(range(len(children)), key=lambda index: (*_attention(children[index]), index))
    return [children[index] for index in sorted(order[: CHILDREN_MAX - 1])]


def _attention(actor: PicturedActor) -> tuple[int, int]:
    """The rank of an actor by urgency, the lowest first: the actors below it count as well."""
    failed = waiting = 0
    for each in _walk([actor]):
        failed += each.failed + max(0, each.incarnation - 1)
        waiting += each.queued
    return -failed, -waiting


def _walk(actors: Iterable[PicturedActor]) -> Iterator[PicturedActor]:
    remaining = list(actors)
    while remaining:
        actor = remaining.pop()
        yield actor
        remaining.extend(actor.children)


def _fold(actors: Sequence[PicturedActor], depth: int, words: str) -> _Row:
    below = list(_walk(actors))
    return _Row(
        depth=depth,
        name=f"+ {len(actors):,} {words}",
        whole=f"{counted(len(actors), 'actor')} that are not shown, {counted(len(below), 'actor')} with those below",
        queued=sum(each.queued for each in below),
        oldest_s=max((each.oldest_s for each in below if each.oldest_s is not None), default=None),
        processed=sum(each.processed for each in below),
        failed=sum(each.failed for each in below),
        restarts=sum(max(0, each.incarnation - 1) for each in below),
        folded=len(below),
    )


def actors_picture(root: PicturedActor, *, title: str = "Actors") -> Picture:
    """`actors_svg` and `actors_text` of the same rows."""
    return Picture(actors_svg(root, title=title), actors_text(root, title=title))


_ROW: Final = 30.0
_STEP: Final = 26.0
_TOP: Final = 80.0
_NAME_ROOM: Final = 320.0
_SHAPES: Final[dict[str, Shape]] = {
    "starting": "works",
    "running": "done",
    "draining": "waits",
    "stopping": "waits",
    "stopped": "pending",
    "restarting": "failed",
}
_COLUMNS: Final = (
    ("state", 104.0),
    ("handles", 120.0),
    ("mailbox", 184.0),
    ("handled", 92.0),
    ("failed", 74.0),
    ("restarts", 80.0),
)
_SLOTS: Final = 8


def actors_svg(root: PicturedActor, *, title: str = "Actors") -> str:
    """The tree of actors as an SVG document, supervisors above those that they supervise."""
    rows = _rows(root)
    canvas = Canvas()
    columns_at = 20.0 + max(row.depth for row in rows) * _STEP + _NAME_ROOM + 24
    width = columns_at + sum(room for _, room in _COLUMNS) + 16
    summary = _summary(root)
    canvas.text(16, 26, title, "strong", width - 32)
    canvas.text(16, 44, summary, "small mute", width - 32)
    x = columns_at
    for name, room in _COLUMNS:
        canvas.text(x, _TOP - 10, name, "small mute")
        x += room
    _draw_elbows(canvas, rows)
    for index, row in enumerate(rows):
        _draw_row(canvas, row, _TOP + index * _ROW, columns_at)
    height = _TOP + len(rows) * _ROW + 14
    return canvas.document(width, height, title, summary)


def _summary(root: PicturedActor) -> str:
    everyone = list(_walk([root]))
    queued = sum(each.queued for each in everyone)
    restarts = sum(max(0, each.incarnation - 1) for each in everyone)
    failed = sum(each.failed for each in everyone)
    waiting = f"{counted(queued, 'message')} waiting"
    return f"{counted(len(everyone), 'actor')}, {waiting}, {counted(failed, 'failure')}, {counted(restarts, 'restart')}"


def _draw_elbows(canvas: Canvas, rows: Sequence[_Row]) -> None:
    """The lines from supervisors to those below them."""
    at: dict[int, int] = {}
    for index, row in enumerate(rows):
        at[row.depth] = index
        if row.depth:
            x = 20 + (row.depth - 1) * _STEP + 12
            top = _TOP + at[row.depth - 1] * _ROW + 25
            y = _TOP + index * _ROW + 14
            canvas.path(f"M{number(x)} {number(top)}V{number(y)}H{number(x + _STEP - 12)}", "edge")


def _draw_row(canvas: Canvas, row: _Row, y: float, columns_at: float) -> None:
    x = 20 + row.depth * _STEP
    middle, base = y + 14, y + 18.5
    canvas.box(x, y + 3, _NAME_ROOM, 22, "box later" if row.folded else "box")
    name_room = _NAME_ROOM - 16
    if row.kind:
        kind_room = max(name_room * 0.2, name_room - width_of(clean(row.name)) - 10)
        name_room -= min(kind_room, width_of(clean(row.kind), SMALL)) + 10
        canvas.text(x + _NAME_ROOM - 8, base - 0.5, row.kind, "small mute end", kind_room)
    style = "mute" if row.folded else ""
    canvas.name(x + 8, base, row.name, style, name_room, row.whole)
    at = columns_at
    if row.state:
        canvas.shape(at + 7, middle, _SHAPES.get(row.state, "plain"))
        canvas.text(at + 20, base, row.state, room=_COLUMNS[0][1] - 26)
    at += _COLUMNS[0][1]
    if row.current:
        canvas.text(at, base, row.current, room=_COLUMNS[1][1] - 10)
    at += _COLUMNS[1][1]
    _draw_mailbox(canvas, row, at, middle)
    at += _COLUMNS[2][1]
    tones = "mute", "bad strong" if row.failed else "mute", "bad strong" if row.restarts else "mute"
    counts = row.processed, row.failed, row.restarts
    for count, tone, (_, room) in zip(counts, tones, _COLUMNS[3:], strict=True):
        canvas.text(at, base, f"{count:,}", tone)
        at += room


def _draw_mailbox(canvas: Canvas, row: _Row, x: float, middle: float) -> None:
    """The mailbox as slots, full ones from the left, and as a number."""
    full = min(_SLOTS, row.queued)
    for slot in range(0 if row.folded else _SLOTS):
        sign = "solid" if slot < full else "room"
        canvas.add(
            f'<g class="{"main" if slot < full else "mute"}"><rect class="{sign}" x="{number(x + slot * 8)}" '
            f'y="{number(middle - 5)}" width="6" height="10" rx="1"/></g>'
        )
    words = f"{row.queued:,}" + (f", {lasted(row.oldest_s * 1000)}" if row.oldest_s is not None and row.queued else "")
    at = x if row.folded else x + _SLOTS * 8 + 6
    canvas.text(at, middle + 4.5, words, "" if row.queued else "mute", room=_COLUMNS[2][1] - _SLOTS * 8 - 14)


def actors_text(root: PicturedActor, *, title: str = "Actors") -> str:
    """The same rows for a terminal, indented below their supervisors."""
    lines = [clean(title), _summary(root), ""]
    for row in _rows(root):
        facts = [row.kind, row.state] if not row.folded else []
        facts += [f"handles {row.current}"] if row.current else []
        facts += [f"{row.queued:,} waiting"] if row.queued else []
        facts += [counted(row.failed, "failure")] if row.failed else []
        facts += [counted(row.restarts, "restart")] if row.restarts else []
        about = clean(", ".join(fact for fact in facts if fact))
        lines.append(f"{'  ' * row.depth}{clean(row.name)}{f'  ({about})' if about else ''}")
    return "".join(f"{line}\n" for line in lines)
