"""What a turn or a run still depends on: as records, for who states anew where a journal stands; as a value, for who
goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from repertory.core.interrupts import Interrupt, is_about_outcome, outcome_id
from repertory.core.journal.records import WHOLE, Interrupted, NodeChanged, Record, Resumed, ToolFinished
from repertory.core.messages import Json, Message, ToolResult

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


def pending_tools_of(at: Fold | Image) -> PendingTools:
    """Where the conversation stands among the tools of its last message."""
    starts = {**at.open_tools, **at.parked}
    return PendingTools(
        last=at.last_message,
        started=frozenset(at.open_tools),
        finished=dict(at.finished_tools),
        starts={use_id: Start(started.attempt, started.idempotency_key) for use_id, started in starts.items()},
        questions=at.questions,
        responses=dict(at.responses),
    )


class Start(NamedTuple):
    """That a tool was started."""

    attempt: int
    """How often, this time included."""
    key: str = ""
    """The idempotency key of all its attempts; empty when nobody has said it, and whoever goes on makes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTools:
    """Where a conversation stands. Everything but `last` is about the tool uses of the last message."""

    last: Message | None
    started: frozenset[str] = frozenset()
    """Tool use ids that were started and have no recorded end: unless they run now, their outcome is unknown."""
    finished: Mapping[str, ToolResult] = field(default_factory=dict["str", "ToolResult"])
    """Recorded results by tool use id."""
    starts: Mapping[str, Start] = field(default_factory=dict["str", "Start"])
    """Tool use id to its last start, for those that have no result."""
    questions: tuple[Interrupt, ...] = ()
    """What was asked, answered or not, in that order."""
    responses: Mapping[str, Json] = field(default_factory=dict[str, "Json"])
    """The answers, by interrupt id."""

    @property
    def waiting(self) -> tuple[Interrupt, ...]:
        """What was asked and has no answer."""
        return tuple(one for one in self.questions if one.id not in self.responses)

    def not_asked(self, interrupts: Sequence[Interrupt]) -> tuple[Interrupt, ...]:
        """Those of these that do not wait already."""
        return tuple(one for one in interrupts if one not in self.waiting)

    def new_answers(self, responses: Mapping[str, Json]) -> dict[str, Json]:
        """Those of these that are not known already."""
        known = self.responses
        return {key: value for key, value in responses.items() if key not in known or known[key] != value}

    def answered(self, responses: Mapping[str, Json]) -> PendingTools:
        """The standing when these answers have come as well."""
        return replace(self, responses={**self.responses, **responses})

    def ended(self, results: Mapping[str, ToolResult]) -> PendingTools:
        """The standing when these tools have ended as well, by tool use id."""
        if not results:
            return self
        settled = {outcome_id(use_id) for use_id in results}
        return replace(
            self,
            started=self.started - results.keys(),
            finished={**self.finished, **results},
            starts={use_id: start for use_id, start in self.starts.items() if use_id not in results},
            questions=tuple(one for one in self.questions if not (is_about_outcome(one) and one.id in settled)),
            responses={key: value for key, value in self.responses.items() if key not in settled},
        )
