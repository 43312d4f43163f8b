"""A graph or a swarm as a picture, with a run or without one.

Nodes stand in layers from top to bottom: each below the nodes that come before it (Sugiyama, Tagawa, Toda 1981).

    cycles     A depth-first walk from the entries finds the edges that lead back. They count as reversed for the
               layers, and are drawn as what they are, so loops and hand-overs in circles are allowed.
    layers     A node's layer is the longest way to it. An edge over several layers gets a place in each of them, so no
               line crosses a node.
    order      Within a layer, nodes move to the middle of their neighbours, downwards and upwards, a few times over.
    folding    Of many nodes that have the same neighbours, those that failed, wait or work are shown, and the others
               fold into one. So does the middle of a long row of nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from repertory.core.pictures.svg import (
    SMALL,
    TONES,
    Canvas,
    Picture,
    Shape,
    clean,
    escaped,
    lasted,
    number,
    title_of,
    width_of,
)
from repertory.core.plural import counted

NodeProgress = Literal["pending", "dispatched", "executing", "completed", "failed", "interrupted"]

ALIKE_MAX: Final = 7
"""The number of nodes with the same neighbours that are drawn."""
ROW_MAX: Final = 12
"""The number of nodes in a row, one after the other, that are drawn."""
NODES_MAX: Final = 80
"""The number of nodes of a picture. More of them fold into one."""
ALONE_MAX: Final = 4
"""The number of nodes without edges that stand beside each other."""
EDGES_MAX: Final = 240
"""The number of edges that are drawn: those that the run went along before the others."""
SWEEPS: Final = 6
ORDERS_MAX: Final = 6
"""The number of hand-overs whose numbers stand at one edge."""


class PicturedNode(Struct, frozen=True, kw_only=True):
    """A node of a graph or a swarm, and what it did in the run."""

    node_id: str
    kind: str = "agent"
    status: NodeProgress | None = None
    """The progress of the node; None without a run."""
    time_ms: float | None = None
    tokens: int | None = None
    tries: int = 0
    """The number of executions in this run."""
    entry: bool = False
    """True if runs begin here."""
    detail: str = ""
    """The node's result, error or question: the text that a browser shows when pointed at it."""
    href: str = ""
    """The address that it leads to, on a page."""


class PicturedEdge(Struct, frozen=True, kw_only=True):
    """An edge of a graph, or the hand-overs between two agents of a swarm."""

    source: str
    target: str
    conditional: bool = False
    orders: tuple[int, ...] = ()
    """The numbers of these hand-overs among those of a swarm's run, from 1."""
    used: bool = False
    """True if the run went along it."""


class PicturedRun(Struct, frozen=True, kw_only=True):
    """A graph or a swarm with its run, for `run_svg`."""

    title: str
    kind: Literal["graph", "swarm"] = "graph"
    nodes: Sequence[PicturedNode] = ()
    edges: Sequence[PicturedEdge] = ()
    """The edges. One with an unknown end is passed over; several between the same two nodes become one."""
    status: NodeProgress | None = None
    time_ms: float | None = None
    tokens: int | None = None
    note: str = ""
    """The reason of an early end, or a note of what cannot be drawn."""


# Folding: which nodes are drawn.


class _Drawing:
    def __init__(self, nodes: dict[str, PicturedNode], edges: dict[tuple[str, str], PicturedEdge]) -> None:
        self.nodes = nodes
        self.edges = edges
        self.folded: dict[str, list[PicturedNode]] = {}
        """The nodes that are not drawn, by the id of the node that stands for them."""
        self.hidden = 0
        """The number of edges that are not drawn."""

    def before(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {node: set() for node in self.nodes}
        for source, target in self.edges:
            found[target].add(source)
        return found

    def after(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {node: set() for node in self.nodes}
        for source, target in self.edges:
            found[source].add(target)
        return found

    def fold(self, members: Sequence[str], words: str) -> None:
        """Put one node in the place of several."""
        gone = [self.nodes[node] for node in members]
        inner = [each for node in gone for each in self.folded.pop(node.node_id, [node])]
        stand_in = f"+ {counted(len(inner), 'node')}{words}"
        while stand_in in self.nodes:
            stand_in += " "
        where = dict.fromkeys(members, stand_in)
        statuses = Counter(each.status for each in inner if each.status is not None)
        detail = ", ".join(f"{count:,} {status}" for status, count in sorted(statuses.items()))
        order = list(self.nodes)
        new = PicturedNode(node_id=stand_in, kind=detail or "not shown", entry=any(each.entry for each in gone))
        self.nodes = {
            (stand_in if node == members[0] else node): (new if node == members[0] else self.nodes[node])
            for node in order
            if node == members[0] or node not in where
        }
        self.folded[stand_in] = inner
        edges = [
            replace(edge, source=where.get(edge.source, edge.source), target=where.get(edge.target, edge.target))
            for edge in self.edges.values()
        ]
        self.edges = _joined(edge for edge in edges if not edge.source == edge.target == stand_in)


def _joined(edges: Iterable[PicturedEdge]) -> dict[tuple[str, str], PicturedEdge]:
    found: dict[tuple[str, str], PicturedEdge] = {}
    for edge in edges:
        key = edge.source, edge.target
        before = found.get(key)
        found[key] = (
            edge
            if before is None
            else replace(
                before,
                conditional=before.conditional and edge.conditional,
                orders=tuple(sorted({*before.orders, *edge.orders})),
                used=before.used or edge.used,
            )
        )
    return found


def _drawing(run: PicturedRun) -> _Drawing:
    nodes = {node.node_id: node for node in run.nodes}
    edges = _joined(edge for edge in run.edges if edge.source in nodes and edge.target in nodes)
    drawing = _Drawing(nodes, edges)
    _fold_alike(drawing)
    _fold_rows(drawing)
    if len(drawing.nodes) > NODES_MAX:
        order = sorted(drawing.nodes.values(), key=_urgency)
        retained = {node.node_id for node in order[: NODES_MAX - 1]}
        drawing.fold([node for node in drawing.nodes if node not in retained], " more")
    if len(drawing.edges) > EDGES_MAX:
        drawing.hidden = len(drawing.edges) - EDGES_MAX
        retained_edges = sorted(drawing.edges.items(), key=lambda item: not item[1].used)[:EDGES_MAX]
        drawing.edges = {key: edge for key, edge in drawing.edges.items() if key in dict(retained_edges)}
    return drawing


_URGENT: Final[Mapping[str | None, int]] = {"failed": 0, "interrupted": 1, "executing": 2, "dispatched": 3}


def _urgency(node: PicturedNode) -> int:
    return _URGENT.get(node.status, 4)


def _fold_alike(drawing: _Drawing) -> None:
    before, after = drawing.before(), drawing.after()
    groups: dict[tuple[frozenset[str], frozenset[str]], list[PicturedNode]] = {}
    for name, node in drawing.nodes.items():
        groups.setdefault((frozenset(before[name]), frozenset(after[name])), []).append(node)
    for (sources, targets), members in groups.items():
        most = ALIKE_MAX if sources or targets else ALIKE_MAX * ALONE_MAX
        if len(members) > most:
            retained = {node.node_id for node in sorted(members, key=_urgency)[: most - 1]}
            drawing.fold([node.node_id for node in members if node.node_id not in retained], "")


def _fold_rows(drawing: _Drawing) -> None:
    before, after = drawing.before(), drawing.after()

    def inner(name: str) -> bool:
        return len(before[name]) == len(after[name]) == 1 and name not in before[name]

    seen: set[str] = set()
    for name in list(drawing.nodes):
        if name in seen or not inner(name):
            continue
        first = name
        visited = {first}
        while inner(above := next(iter(before[first]))) and above not in visited:
            first = above
            visited.add(first)
        row = [first]
        while inner(below := next(iter(after[row[-1]]))) and below not in row[:1] and below not in seen:
            row.append(below)
        seen.update(row)
        if len(row) > ROW_MAX:
            drawing.fold(row[ROW_MAX // 2 : -(ROW_MAX // 2) + 1], " in a row")


# Layers, and the order within them.


def _reversed_edges(
    names: Sequence[str], edges: Iterable[tuple[str, str]], entries: Sequence[str]
) -> set[tuple[str, str]]:
    """The edges that lead back to a node on the way to their source."""
    after: dict[str, list[str]] = {name: [] for name in names}
    for source, target in edges:
        after[source].append(target)
    done: set[str] = set()
    back: set[tuple[str, str]] = set()
    for start in (*entries, *names):
        if start in done:
            continue
        way = {start: iter(after[start])}
        while way:
            name = next(reversed(way))
            target = next(way[name], None)
            if target is None:
                done.add(name)
                del way[name]
            elif target in way:
                back.add((name, target))
            elif target not in done:
                way[target] = iter(after[target])
    return back


def _layers_of(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The length of the longest way to each node, along edges without cycles."""
    after: dict[str, list[str]] = {name: [] for name in names}
    waiting = dict.fromkeys(names, 0)
    for source, target in edges:
        after[source].append(target)
        waiting[target] += 1
    layers = dict.fromkeys(names, 0)
    ready = [name for name in names if not waiting[name]]
    for name in ready:
        for target in after[name]:
            layers[target] = max(layers[target], layers[name] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return layers


class _Line(Struct, frozen=True):
    """An edge, as the places that it has in the layers from top to bottom."""

    edge: PicturedEdge
    stops: tuple[_Stop, ...]
    upward: bool


class _Layout(Struct, frozen=True):
    layers: list[list[_Stop]]
    lines: list[_Line]
    loops: list[PicturedEdge]
    x: dict[_Stop, float]
    """The middle of each node, and of each place of a line."""


_BOX_WIDTH: Final = 214.0
_BOX_HEIGHT: Final = 64.0
_GAP: Final = 28.0
_PASSAGE: Final = 22.0
"""The width of a line's place in a layer."""
_BETWEEN: Final = 62.0
"""The height between two layers of a graph."""
_BETWEEN_NUMBERS: Final = 92.0
"""The height between two layers of a swarm, where numbers stand at the lines."""
_Stop: TypeAlias = "str | int"
"""Something that has a place in a layer: a node by its id, or a line that passes by its number."""


def _layout(drawing: _Drawing) -> _Layout:
    names = list(drawing.nodes)
    entries = [name for name, node in drawing.nodes.items() if node.entry]
    loops = [edge for (source, target), edge in drawing.edges.items() if source == target]
    plain = [key for key in drawing.edges if key[0] != key[1]]
    back = _reversed_edges(names, plain, entries)
    down = [(key[1], key[0]) if key in back else key for key in plain]
    depth = _layers_of(names, list(dict.fromkeys(down)))
    layers: list[list[_Stop]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    joined = {name for key in plain for name in key}
    alone = [name for name in names if name not in joined]
    for name in names:
        if name in joined:
            layers[depth[name]].append(name)
    lines: list[_Line] = []
    passing = 0
    for key, (top, bottom) in zip(plain, down, strict=True):
        passed = range(depth[top] + 1, depth[bottom])
        inner = range(passing, passing + len(passed))
        passing += len(passed)
        for layer, stop in zip(passed, inner, strict=True):
            layers[layer].append(stop)
        lines.append(_Line(drawing.edges[key], (top, *inner, bottom), key in back))
    _put_in_order(layers, lines)
    layers = [layer for layer in layers if layer]
    apart = [list[_Stop](alone[start : start + ALONE_MAX]) for start in range(0, len(alone), ALONE_MAX)]
    return _Layout([*layers, *apart], lines, loops, _across(layers, apart, lines))


def _neighbours(lines: Sequence[_Line]) -> tuple[dict[_Stop, list[_Stop]], dict[_Stop, list[_Stop]]]:
    above: dict[_Stop, list[_Stop]] = {}
    below: dict[_Stop, list[_Stop]] = {}
    for line in lines:
        for one, other in zip(line.stops, line.stops[1:], strict=False):
            below.setdefault(one, []).append(other)
            above.setdefault(other, []).append(one)
    return above, below


def _put_in_order(layers: list[list[_Stop]], lines: Sequence[_Line]) -> None:
    above, below = _neighbours(lines)
    for sweep in range(SWEEPS):
        way, order = (above, layers) if sweep % 2 == 0 else (below, layers[::-1])
        index = {stop: at for layer in layers for at, stop in enumerate(layer)}
        for layer in order:
            weights = {stop: _middle([index[each] for each in way.get(stop, [])], index[stop]) for stop in layer}
            layer.sort(key=weights.__getitem__)
            index.update((stop, at) for at, stop in enumerate(layer))


def _middle(positions: Sequence[float], otherwise: float) -> float:
    return sum(positions) / len(positions) if positions else otherwise


def _room(stop: _Stop) -> float:
    return _PASSAGE if isinstance(stop, int) else _BOX_WIDTH + _GAP


def _across(
    layers: Sequence[Sequence[_Stop]], apart: Sequence[Sequence[_Stop]], lines: Sequence[_Line]
) -> dict[_Stop, float]:
    """The middle of everything in a layer: near its neighbours, and at least as far apart as the widths need. The nodes
    without edges, which stand `apart`, are below the middle of the others.
    """
    x: dict[_Stop, float] = {}
    for layer in layers:
        at = -sum(map(_room, layer)) / 2
        for stop in layer:
            x[stop] = at + _room(stop) / 2
            at += _room(stop)
    above, below = _neighbours(lines)
    for sweep in range(SWEEPS):
        way, order = (above, layers) if sweep % 2 == 0 else (below, layers[::-1])
        for layer in order:
            _settle(layer, x, lambda stop, way=way: [x[each] for each in way.get(stop, [])])
    center = (min(x.values()) + max(x.values())) / 2 if x else 0.0
    for layer in apart:
        for index, stop in enumerate(layer):
            x[stop] = center + (index - (len(layer) - 1) / 2) * _room(stop)
    least = min((x[stop] - _room(stop) / 2 for stop in x), default=0.0)
    return {stop: at - least for stop, at in x.items()}


def _settle(layer: Sequence[_Stop], x: dict[_Stop, float], near: Callable[[_Stop], Sequence[float]]) -> None:
    """Move everything in a layer towards its neighbours. Those that would overlap form a block, which moves as one to
    the mean of what its members want: the least squares solution (pool adjacent violators).
    """
    blocks: list[list[float]] = []  # sum of wishes for the block's start, members, its room
    for stop in layer:
        wish = _middle(near(stop), x[stop]) - _room(stop) / 2
        blocks.append([wish, 1, _room(stop)])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] + blocks[-2][2] > blocks[-1][0] / blocks[-1][1]:
            total, count, room = blocks.pop()
            last = blocks[-1]
            last[0] += total - count * last[2]
            last[1] += count
            last[2] += room
    members = iter(layer)
    for total, count, _ in blocks:
        at = total / count
        for _ in range(round(count)):
            stop = next(members)
            x[stop] = at + _room(stop) / 2
            at += _room(stop)


# The picture.

SHAPES: Final[Mapping[NodeProgress, Shape]] = {
    "pending": "pending",
    "dispatched": "works",
    "executing": "works",
    "completed": "done",
    "failed": "failed",
    "interrupted": "waits",
}
_WORDS: Final[Mapping[NodeProgress, str]] = {"interrupted": "waits for an answer", "executing": "working"}
_TOP: Final = 66.0
_SIDE: Final = 24.0


def run_picture(run: PicturedRun) -> Picture:
    """`run_svg` and `run_text` of the same run."""
    return Picture(run_svg(run), run_text(run))


def run_svg(run: PicturedRun) -> str:
    """A graph or a swarm as an SVG document. Bold lines are those that the run went along, dashed ones have a
    condition; numbers at a swarm's lines say which hand-over it was.
    """
    drawing = _drawing(run)
    layout = _layout(drawing)
    canvas = Canvas()
    inner = max((layout.x[stop] + _room(stop) / 2 for layer in layout.layers for stop in layer), default=0.0)
    facts = _facts(run, drawing.hidden)
    width = max(inner + 2 * _SIDE + (26 if layout.loops else 0), min(620, width_of(facts, SMALL) + 40), 320)
    shift = (width - inner) / 2
    x = {stop: at + shift for stop, at in layout.x.items()}
    between = _BETWEEN_NUMBERS if any(edge.orders for edge in drawing.edges.values()) else _BETWEEN
    y = {stop: _TOP + depth * (_BOX_HEIGHT + between) for depth, layer in enumerate(layout.layers) for stop in layer}
    canvas.name(16, 26, run.title, "strong", width - 32)
    canvas.text(16, 44, facts, "small mute", width - 32)
    _draw_lines(canvas, layout.lines, x, y)
    for edge in layout.loops:
        _draw_loop(canvas, edge, x[edge.source], y[edge.source])
    for name, node in drawing.nodes.items():
        _draw_node(canvas, node, drawing.folded.get(name), x[name], y[name])
    if not drawing.nodes:
        canvas.text(16, _TOP + 14, "No nodes.", "mute")
    height = _TOP + max(1, len(layout.layers)) * (_BOX_HEIGHT + between) - between + 22
    return canvas.document(width, height, f"{run.kind.title()} {run.title}", _description(run))


def _facts(run: PicturedRun, hidden: int = 0) -> str:
    parts = [run.kind, counted(len(run.nodes), "node")]
    parts += [_WORDS.get(run.status, run.status)] if run.status is not None else []
    parts += [lasted(run.time_ms)] if run.time_ms is not None else []
    parts += [counted(run.tokens, "token")] if run.tokens is not None else []
    parts += [run.note] if run.note else []
    parts += [f"{counted(hidden, 'edge')} not drawn"] if hidden else []
    return " · ".join(parts)


def _description(run: PicturedRun) -> str:
    """Every node with its status, and every edge, for those who do not see the picture."""
    statuses = Counter(node.status for node in run.nodes if node.status is not None)
    counts = ", ".join(f"{count:,} {status}" for status, count in sorted(statuses.items()))
    ways = [f"{edge.source} to {edge.target}" for edge in run.edges[:40]]
    listed = ", ".join(ways)
    more = f" and {len(run.edges) - 40:,} more" if len(run.edges) > 40 else ""
    return f"{_facts(run)}. {f'Nodes: {counts}. ' if counts else ''}{f'Edges: {listed}{more}.' if ways else ''}"


def _draw_node(
    canvas: Canvas, node: PicturedNode, folded: Sequence[PicturedNode] | None, middle: float, top: float
) -> None:
    start = middle - _BOX_WIDTH / 2
    shape = SHAPES[node.status] if node.status is not None else None
    tone = "" if shape is None else f" {TONES[shape]}"
    later = " later" if folded is not None or node.status == "pending" else ""
    leads = bool(node.href) and folded is None
    canvas.add(f'<a href="{escaped(node.href)}">' if leads else "<g>")
    whole = node.node_id if folded is None else ", ".join(each.node_id for each in folded)
    canvas.add(_tooltip(whole, node.detail))
    canvas.box(start, top, _BOX_WIDTH, _BOX_HEIGHT, f"box{tone}{later}", 4 if node.kind == "agent" else 14)
    if node.entry:
        canvas.path(
            f"M{number(middle - 6)} {number(top - 11)}H{number(middle + 6)}L{number(middle)} {number(top - 2)}Z",
            "tip used",
        )
    words_at, room = start + 12, _BOX_WIDTH - 24
    canvas.name(words_at, top + 20, node.node_id, "strong", room)
    if shape is not None and node.status is not None:
        canvas.shape(start + 19, top + 35, shape)
        word = _WORDS.get(node.status, node.status)
        used = canvas.text(start + 31, top + 39.5, word, room=room - 20)
        kind = "" if node.kind == "agent" else node.kind
        if kind and used < room - 60:
            canvas.text(start + _BOX_WIDTH - 12, top + 39.5, kind, "small mute end", room - 30 - used)
        canvas.text(words_at, top + 56, _figures(node), "small mute", room=room)
    else:
        canvas.text(words_at, top + 41, node.kind, "mute", room=room)
        if node.entry:
            canvas.text(words_at, top + 56, "runs begin here", "small mute", room=room)
    canvas.add("</a>" if leads else "</g>")


def _figures(node: PicturedNode) -> str:
    parts = [lasted(node.time_ms)] if node.time_ms is not None else []
    parts += [counted(node.tokens, "token")] if node.tokens is not None else []
    parts += [counted(node.tries, "run")] if node.tries > 1 else []
    return " · ".join(parts)


def _tooltip(whole: str, detail: str) -> str:
    return title_of(f"{whole}: {detail}" if detail else whole)


def _draw_lines(canvas: Canvas, lines: Sequence[_Line], x: Mapping[_Stop, float], y: Mapping[_Stop, float]) -> None:
    """The lines first, then their numbers, which no line may cross out."""
    starts = _ports(lines, x, 0)
    ends = _ports(lines, x, -1)
    labels: list[tuple[float, float, PicturedEdge]] = []
    for index, line in enumerate(lines):
        points = [(starts[index], y[line.stops[0]] + _BOX_HEIGHT)]
        for stop in line.stops[1:-1]:
            points += [(x[stop], y[stop]), (x[stop], y[stop] + _BOX_HEIGHT)]
        points.append((ends[index], y[line.stops[-1]]))
        _draw_line(canvas, line, points)
        if line.edge.orders:
            share = (0.24, 0.5, 0.76)[index % 3]
            (ax, ay), (bx, by) = points[0], points[1]
            eased = share * share * (3 - 2 * share)
            labels.append((ax + (bx - ax) * eased, ay + (by - ay) * share, line.edge))
    for at_x, at_y, edge in labels:
        _draw_orders(canvas, edge, at_x, at_y)


def _ports(lines: Sequence[_Line], x: Mapping[_Stop, float], end: Literal[0, -1]) -> list[float]:
    """The x of each line's end at its node: side by side, in the order of the nodes at the lines' other ends."""
    at: dict[_Stop, list[int]] = {}
    for index, line in enumerate(lines):
        at.setdefault(line.stops[end], []).append(index)
    found = [0.0] * len(lines)
    inward = 1 if end == 0 else -2
    for name, indices in at.items():
        ordered = sorted(indices, key=lambda index: (x[lines[index].stops[inward]], index))
        step = min(36.0, (_BOX_WIDTH - 40) / max(1, len(ordered)))
        for at_port, index in enumerate(ordered):
            found[index] = x[name] + (at_port - (len(ordered) - 1) / 2) * step
    return found


def _draw_line(canvas: Canvas, line: _Line, points: Sequence[tuple[float, float]]) -> None:
    style = f"{' used' if line.edge.used else ''}{' maybe' if line.edge.conditional else ''}"
    (start_x, start_y), parts = points[0], list[str]()
    last_x, last_y = start_x, start_y
    for index, (at_x, at_y) in enumerate(points[1:], 1):
        if index % 2:
            half = (at_y - last_y) / 2
            bend = f"C{number(last_x)} {number(last_y + half)} {number(at_x)} {number(at_y - half)}"
            parts.append(f"{bend} {number(at_x)} {number(at_y)}")
        else:
            parts.append(f"V{number(at_y)}")
        last_x, last_y = at_x, at_y
    ends = f"{line.edge.source} to {line.edge.target}"
    canvas.add(f"<g>{_tooltip(ends, _orders(line.edge, 40))}")
    canvas.path(f"M{number(start_x)} {number(start_y)}{''.join(parts)}", f"edge{style}")
    tip = f"tip{' used' if line.edge.used else ''}"
    if line.upward:
        canvas.arrow(start_x, start_y, 0, -1, tip)
    else:
        canvas.arrow(last_x, last_y, 0, 1, tip)
    canvas.add("</g>")


def _orders(edge: PicturedEdge, most: int) -> str:
    if not edge.orders:
        return "with a condition" if edge.conditional else ""
    listed = ", ".join(map(str, edge.orders[:most]))
    return f"{listed}, +{len(edge.orders) - most:,}" if len(edge.orders) > most else listed


def _draw_orders(canvas: Canvas, edge: PicturedEdge, x: float, y: float) -> None:
    words = _orders(edge, ORDERS_MAX)
    across = max(18.0, width_of(words, SMALL) + 10)
    canvas.box(x - across / 2, y - 9, across, 18, "knot", 9)
    canvas.text(x, y + 4, words, "small strong center")


def _draw_loop(canvas: Canvas, edge: PicturedEdge, middle: float, top: float) -> None:
    right = middle + _BOX_WIDTH / 2
    style = f"edge{' used' if edge.used else ''}{' maybe' if edge.conditional else ''}"
    upper, lower = top + 18, top + 46
    canvas.path(
        f"M{number(right)} {number(upper)}C{number(right + 26)} {number(upper - 8)} {number(right + 26)} "
        f"{number(lower + 8)} {number(right)} {number(lower)}",
        style,
    )
    canvas.arrow(right, lower, -0.94, -0.34, f"tip{' used' if edge.used else ''}")
    if edge.orders:
        _draw_orders(canvas, edge, right + 16, top + 32)


# The same as text.

_SIGNS: Final[Mapping[NodeProgress, str]] = {
    "pending": "[ ]",
    "dispatched": "[>]",
    "executing": "[>]",
    "completed": "[x]",
    "failed": "[!]",
    "interrupted": "[?]",
}


def run_text(run: PicturedRun) -> str:
    """The graph or swarm for a terminal: nodes from top to bottom, each with the nodes that it leads to."""
    drawing = _drawing(run)
    layout = _layout(drawing)
    after: dict[str, list[PicturedEdge]] = {}
    for edge in drawing.edges.values():
        after.setdefault(edge.source, []).append(edge)
    lines = [clean(run.title), clean(_facts(run, drawing.hidden)), ""]
    for layer in layout.layers:
        for name in layer:
            if isinstance(name, str):
                lines += _node_lines(drawing.nodes[name], after.get(name, []))
    return "".join(f"{line}\n" for line in lines)


def _node_lines(node: PicturedNode, edges: Sequence[PicturedEdge]) -> list[str]:
    sign = _SIGNS[node.status] if node.status is not None else "[>]" if node.entry else "[ ]"
    facts = [] if node.kind == "agent" else [node.kind]
    facts += [_WORDS.get(node.status, node.status)] if node.status is not None else []
    facts += [figures] if (figures := _figures(node)) else []
    about = clean(", ".join(facts))
    lines = [f"{sign} {clean(node.node_id)}{f'  ({about})' if about else ''}"]
    for edge in edges:
        orders = _orders(edge, 40)
        lines.append(f"     {'=>' if edge.used else '->'} {clean(edge.target)}{f'  ({orders})' if orders else ''}")
    return lines
