"""What a turn or a run still depends on: as records, for who states anew where a journal stands; as a value, for who
goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from repertory.core.journal.records import WHOLE, Interrupted, NodeChanged, Record, Resumed, ToolFinished
from repertory.core.standing import Standing, Start

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.image import Image


def standing_records(fold: Fold, at: float) -> Iterator[Record]:
    """The nodes of the run, tools without a result or whose result no message holds, what was asked, and the answers.

    To follow a `Branched`, which forgets them. Idempotency tokens cannot be said again.
    """
    yield from _nodes(fold)
    yield from fold.open_tools.values()
    yield from fold.parked.values()
    for use_id, result in fold.finished_tools.items():
        yield ToolFinished(at=at, tool_use_id=use_id, result=result)
    if fold.questions or fold.parked:
        yield Interrupted(at=at, interrupts=fold.questions, parked=tuple(fold.parked))
    if fold.responses:
        yield Resumed(at=at, responses=dict(fold.responses))


def nodes_stated(fold: Fold, at: float) -> Iterator[NodeChanged]:
    """Everything that is known of the run, in the order in which it is known: nothing before counts any more."""
    for number, node in enumerate(_nodes(fold)):
        yield replace(node, at=at, data=node.data if number else {**node.data, WHOLE: True})


def nodes_again(fold: Fold, run: int, at: float) -> Iterator[Record]:
    """The nodes of the run as those of another one, which begins at that time and goes on from there: what owes work in
    it is done anew. To follow a `Branched`.
    """
    for node in _nodes(fold):
        data = {**node.data, "begun_at": at} if "begun_at" in node.data else node.data
        yield replace(node, at=at, run=run, data=data)


def _nodes(fold: Fold) -> Iterator[NodeChanged]:
    """The latest word on each node, all of it as of now: each says what owes work now, and what of that may begin."""
    ready = next((node.data.get("ready") for node in fold.nodes.values() if node.frontier == fold.frontier), None)
    for node in fold.nodes.values():
        data = {name: value for name, value in node.data.items() if name != "ready"}
        yield replace(node, frontier=fold.frontier, data=data if ready is None else {**data, "ready": ready})


def standing_of(at: Fold | Image) -> Standing:
    """Where the conversation stands among the tools of its last message."""
    starts = {**at.open_tools, **at.parked}
    return Standing(
        last=at.last_message,
        started=frozenset(at.open_tools),
        finished=dict(at.finished_tools),
        starts={use_id: Start(started.attempt, started.idempotency_key) for use_id, started in starts.items()},
        questions=at.questions,
        responses=dict(at.responses),
    )
