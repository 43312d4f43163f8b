"""Pictures: well-formed, whole, escaped, bounded, and the same every time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repertory.core.pictures.actors import ROWS_MAX, actors_svg, actors_text
from repertory.core.pictures.branches import REWINDS_MAX, Branches, BranchPoint, branches_svg, branches_text
from repertory.core.pictures.runs import (
    EDGES_MAX,
    NODES_MAX,
    NodeProgress,
    PicturedEdge,
    PicturedNode,
    PicturedRun,
    run_svg,
    run_text,
)
from repertory.core.pictures.svg import clean, fitted, lasted, moment, width_of
from repertory.runtime.lifecycle import ActorInfo, State

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    "</text><script>alert(1)</script>\"'&<!--",
    "]]>&#0;\x00\x1b[31m\ud800\ufffe",
    "\u202eevil\u2066\u200b",
    "ܫ" * 300,
    "e" + "\u0301" * 500,
    "語" * 200,
    "x" * 2500,
    "",
    " ",
    "\0 1",
)
words = st.text(max_size=30) | st.sampled_from(HOSTILE)
STATUSES: tuple[NodeProgress | None, ...] = (
    None,
    "pending",
    "dispatched",
    "executing",
    "completed",
    "failed",
    "interrupted",
)


class Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float

    def overlaps(self, other: Box) -> bool:
        across = self.x < other.x + other.width and other.x < self.x + self.width
        return across and self.y < other.y + other.height and other.y < self.y + self.height


def parsed(svg: str) -> ElementTree.Element:
    """The document, by a parser that accepts XML only; what no picture may hold is not in it."""
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    tags = {each.tag.removeprefix(SVG) for each in root.iter()}
    assert tags <= {"svg", "title", "desc", "style", "rect", "path", "circle", "g", "text"}
    attributes = {name for each in root.iter() for name in each.attrib}
    assert not any(name.startswith("on") or "href" in name or name == "id" for name in attributes)
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert title.text
    assert description is not None
    assert description.text
    assert re.fullmatch(r"0 0 [\d.]+ [\d.]+", root.attrib["viewBox"])
    return root


def texts(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in root.iter() if each.tag in (f"{SVG}text", f"{SVG}title")]


def boxes(root: ElementTree.Element, height: float) -> list[Box]:
    found = [
        Box(*(float(each.attrib[name]) for name in ("x", "y", "width", "height")))
        for each in root.iter(f"{SVG}rect")
        if each.attrib.get("class", "").startswith("box")
    ]
    return [box for box in found if box.height == height]


def inside(root: ElementTree.Element, found: Sequence[Box]) -> bool:
    width, height = (float(each) for each in root.attrib["viewBox"].split()[2:])
    return all(
        box.x >= 0 and box.y >= 0 and box.x + box.width <= width and box.y + box.height <= height for box in found
    )


# Runs.


@st.composite
def runs(draw: st.DrawFn) -> PicturedRun:
    names = draw(st.lists(words, max_size=14, unique=True))
    nodes = [
        PicturedNode(
            node_id=name,
            kind=draw(st.sampled_from(["agent", "graph", "swarm"]) | words),
            status=draw(st.sampled_from(STATUSES)),
            time_ms=draw(st.none() | st.floats(0, 1e12)),
            tokens=draw(st.none() | st.integers(0, 10**12)),
            tries=draw(st.integers(0, 5)),
            entry=draw(st.booleans()),
            detail=draw(words),
        )
        for name in names
    ]
    ends = st.sampled_from(names) if names else words
    edges = [
        PicturedEdge(
            source=draw(ends),
            target=draw(ends | words),
            conditional=draw(st.booleans()),
            orders=tuple(draw(st.lists(st.integers(1, 99), max_size=9))),
            used=draw(st.booleans()),
        )
        for _ in range(draw(st.integers(0, 30)))
    ]
    kind = draw(st.sampled_from(["graph", "swarm"]))
    return PicturedRun(title=draw(words), kind=kind, nodes=nodes, edges=edges, note=draw(words))


@given(runs())
@settings(max_examples=30)
def test_a_run_of_any_shape_is_drawn_without_nodes_over_each_other(run: PicturedRun) -> None:
    root = parsed(run_svg(run))
    found = boxes(root, 64.0)
    assert not any(one.overlaps(other) for one, other in combinations(found, 2))
    assert inside(root, found)
    assert run_svg(run) == run_svg(run)
    assert len(found) <= len(run.nodes)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", run_text(run))


@given(st.lists(words.filter(lambda word: clean(word) != ""), max_size=6, unique_by=clean))
@settings(max_examples=40)
def test_every_name_of_a_run_is_in_its_picture_as_it_is(names: list[str]) -> None:
    nodes = [PicturedNode(node_id=name, status="completed") for name in names]
    edges = [PicturedEdge(source=one, target=other, used=True) for one, other in pairwise(names)]
    said = texts(parsed(run_svg(PicturedRun(title="run", nodes=nodes, edges=edges))))
    for name in names:
        assert any(text.startswith(clean(name)[:500]) for text in said)
        assert clean(name) in run_text(PicturedRun(title="run", nodes=nodes, edges=edges))


def test_large_runs_fold_and_show_what_failed() -> None:
    fan = [PicturedNode(node_id=f"worker {at}", status="completed") for at in range(5000)]
    fan[4321] = PicturedNode(node_id="worker 4321", status="failed")
    row = [PicturedNode(node_id=f"row {at}", status="completed") for at in range(3000)]
    edges = [PicturedEdge(source="first", target=node.node_id) for node in fan]
    edges += [PicturedEdge(source=node.node_id, target="row 0") for node in fan]
    edges += [PicturedEdge(source=one.node_id, target=other.node_id) for one, other in pairwise(row)]
    first = PicturedNode(node_id="first", status="completed", entry=True)
    svg = run_svg(PicturedRun(title="large", nodes=[first, *fan, *row], edges=edges))
    root = parsed(svg)
    assert len(svg) < 40_000
    said = texts(root)
    assert "worker 4321" in said
    assert "+ 4,994 nodes" in said
    assert "+ 2,987 nodes in a row" in said


def test_a_dense_run_is_bounded() -> None:
    nodes = [PicturedNode(node_id=f"n{at}", status="completed", entry=not at) for at in range(200)]
    edges = [
        PicturedEdge(source=one.node_id, target=other.node_id)
        for at, one in enumerate(nodes)
        for other in nodes[at % 7 :: 3]
    ]
    svg = run_svg(PicturedRun(title="dense", nodes=nodes, edges=edges))
    root = parsed(svg)
    assert len(boxes(root, 64.0)) <= NODES_MAX
    assert sum(each.attrib.get("class", "").startswith("edge") for each in root.iter(f"{SVG}path")) <= EDGES_MAX
    assert "edges not drawn" in svg
    assert len(svg) < 1_500_000


def test_a_status_is_a_word_and_a_shape() -> None:
    told: dict[str, str] = {}
    for status in STATUSES[1:]:
        svg = run_svg(PicturedRun(title="one", nodes=[PicturedNode(node_id="n", status=status)]))
        (shape,) = re.findall(r"<g class=\"\w+\" transform=[^>]*>(.*?)</g>", svg)
        told[str(status)] = shape
        words_for = {"interrupted": "waits for an answer", "executing": "working"}
        assert words_for.get(str(status), str(status)) in texts(parsed(svg))
    assert len({told[status] for status in ("pending", "executing", "completed", "failed", "interrupted")}) == 5


# Branches.


@st.composite
def journals(draw: st.DrawFn) -> Branches:
    """Points of a journal with turns, labels and rewinds to any earlier position."""
    points: list[BranchPoint] = []
    seq = 0
    for _ in range(draw(st.integers(0, 40))):
        seq += draw(st.integers(1, 3))
        kind = draw(st.sampled_from(["turn", "turn", "turn", "mark", "rewind", "redaction", "interrupt", "view"]))
        position = draw(st.integers(0, seq - 1)) if kind in ("mark", "rewind", "redaction") else None
        points.append(
            BranchPoint(
                seq=seq,
                kind=kind,
                text=draw(words),
                at=draw(st.none() | st.floats(allow_nan=True)),
                position=position,
                tokens=draw(st.none() | st.integers(0, 10**9)),
                notable=draw(st.booleans()),
            )
        )
    return Branches(name=draw(words), points=points, last=seq + draw(st.integers(0, 1)) if points else 0)


@given(journals())
@settings(max_examples=40)
def test_branches_of_any_journal_are_drawn(branches: Branches) -> None:
    svg = branches_svg(branches)
    parsed(svg)
    assert svg == branches_svg(branches)
    text = branches_text(branches)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    for shown in (svg, text):
        # Each rewind that is shown left something behind or nothing; the conversation ends once.
        assert shown.count("now at #") == (1 if branches.points else 0)


@given(journals())
@settings(max_examples=40)
def test_what_a_picture_calls_left_behind_is_what_a_path_leaves_out(branches: Branches) -> None:
    """Compared with a plain walk: from the end back to each rewind's target."""
    kept: set[int] = set()
    rewinds = {each.seq: each.position or 0 for each in branches.points if each.kind == "rewind"}
    at = branches.last
    while at > 0:
        kept.add(at)
        at = rewinds.get(at, at - 1)
    if len(rewinds) > REWINDS_MAX:
        return
    for line in branches_text(branches).split("\n"):
        if "left behind at #" in line:
            assert int(line.rpartition("left behind at #")[2].rstrip(")")) not in kept
        if "now at #" in line:
            assert int(line.rpartition("now at #")[2].rstrip(")")) in kept


def test_ten_thousand_messages_are_a_small_picture() -> None:
    turns = [BranchPoint(seq=2 * at, kind="turn", text=f"{at}: again", at=1.7e9) for at in range(1, 5001)]
    svg = branches_svg(Branches(name="long/default", points=turns, last=10_000))
    assert len(svg) < 8_000
    assert "#4 to #9998: 4,998 turns" in texts(parsed(svg))


def test_a_thousand_rewinds_and_labels_are_a_small_picture() -> None:
    points: list[BranchPoint] = []
    for at in range(1000):
        points += [
            BranchPoint(seq=4 * at + 2, kind="turn", text="again"),
            BranchPoint(seq=4 * at + 3, kind="mark", text=f"label {at}", position=4 * at + 2),
            BranchPoint(seq=4 * at + 4, kind="rewind", position=4 * at + 2 if at % 3 else 2),
        ]
    svg = branches_svg(Branches(name="wild/default", points=points, last=4000))
    said = texts(parsed(svg))
    assert len(svg) < 60_000
    assert "label label 999" in said
    assert any("988 rewinds" in text for text in said)


def test_labels_stand_at_the_positions_that_they_name() -> None:
    points = [
        BranchPoint(seq=2, kind="turn", text="1: first"),
        BranchPoint(seq=4, kind="turn", text="2: second"),
        BranchPoint(seq=5, kind="mark", text="begun", position=2),
        BranchPoint(seq=6, kind="mark", text="moved", position=2),
        BranchPoint(seq=7, kind="mark", text="moved", position=4),
    ]
    lines = branches_text(Branches(name="s/a", points=points, last=7)).splitlines()
    assert "*  #2 [begun] [(moved)] turn 1: first" in lines
    assert "*  #4 [moved] turn 2: second" in lines
    assert lines[-1] == "*  #7 (now at #7)"


# Actors.


def actor(path: str, kind: str, *children: ActorInfo, **more: object) -> ActorInfo:
    fields: dict[str, object] = {
        "state": State.RUNNING,
        "incarnation": 1,
        "queued": 0,
        "bound": 1000,
        "queued_system": 0,
        "oldest_s": None,
        "current": None,
        "running_s": None,
        "waiting_on": (),
        "jobs": (),
        "timers": 0,
        "processed": 0,
        "failed": 0,
        "summary": None,
    }
    return ActorInfo(path=path, kind=kind, children=children, **{**fields, **more})  # type: ignore[arg-type]


def trees(depth: int = 3) -> st.SearchStrategy[ActorInfo]:
    below = st.lists(trees(depth - 1), max_size=4) if depth else st.just([])
    return st.builds(
        lambda path, kind, children, state, incarnation, queued, oldest: actor(
            path, kind, *children, state=state, incarnation=incarnation, queued=queued, oldest_s=oldest
        ),
        words,
        words,
        below,
        st.sampled_from(State),
        st.integers(1, 5),
        st.integers(0, 10**6),
        st.none() | st.floats(0, 1e9),
    )


@given(trees())
@settings(max_examples=40)
def test_any_tree_of_actors_is_drawn(root: ActorInfo) -> None:
    svg = actors_svg(root)
    tree = parsed(svg)
    found = boxes(tree, 22.0)
    assert not any(one.overlaps(other) for one, other in pairwise(found))
    assert inside(tree, found)
    assert len(found) == min(ROWS_MAX, len(list(root.walk())))
    assert svg == actors_svg(root)
    assert len(actors_text(root).splitlines()) == 3 + len(found)


def test_a_thousand_sessions_fold_and_the_one_that_failed_is_shown() -> None:
    def session(at: int) -> ActorInfo:
        path = f"/session customer-{at} helper"
        failed = {"failed": 1, "incarnation": 2} if at == 517 else {}
        return actor(path, "SessionSupervisor", actor(f"{path}/agent", "AgentActor", **failed))

    root = actor("/", "Supervisor", *map(session, range(1003)))
    svg = actors_svg(root)
    said = texts(parsed(svg))
    assert "+ 998 sessions" in said
    assert "/session customer-517 helper" in said
    assert len(svg) < 20_000


def test_a_deep_tree_is_bounded() -> None:
    root = actor("/leaf", "Deep")
    for _ in range(400):
        root = actor("/more", "Deep", root, actor("/beside", "Other"))
    assert len(boxes(parsed(actors_svg(root)), 22.0)) <= ROWS_MAX


# Text.


@given(words, st.floats(30, 300), st.booleans())
def test_a_text_fits_its_room(text: str, room: float, middle: bool) -> None:
    assert width_of(fitted(text, room, middle=middle)) <= room


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0 ms"), (850, "850 ms"), (1234, "1.2 s"), (59_990, "60.0 s"), (200_000, "3 min 20 s"), (7.5e6, "2 h 5 min")],
)
def test_times_are_readable(milliseconds: float, text: str) -> None:
    assert lasted(milliseconds) == text


def test_a_time_that_no_calendar_has_is_a_number() -> None:
    assert moment(1e30) == "1e+30"
    assert moment(0) == "1970-01-01 00:00 UTC"


def test_colours_have_contrast_on_both_grounds() -> None:
    """Text by the rule of WCAG 2.2 (AA, 4.5), in light and dark."""
    from repertory.core.pictures.svg import _DARK, _LIGHT

    for colours in (_LIGHT, _DARK):
        for tone in (colours.ink, colours.mute, colours.main, colours.good, colours.bad, colours.wait):
            assert _contrast(tone, colours.paper) >= 4.5
            assert _contrast(tone, colours.box) >= 4.5


def _contrast(one: str, other: str) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    return sum(share * _linear(part) for share, part in zip((0.2126, 0.7152, 0.0722), _parts(colour), strict=True))


def _parts(colour: str) -> Iterator[float]:
    return (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
