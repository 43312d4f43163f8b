"""The tools, interrupts and nodes that a turn or a run still waits for: as records, to restate them behind a rewind or
in a fork; as a value (`PendingTools`), to go on from there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2s
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from repertory.core.interrupts import Interrupt, asked_about, is_outcome_id, marked, outcome_id, step_mark, unmarked
from repertory.core.journal.records import WHOLE, Interrupted, NodeChanged, Record, Resumed, ToolFinished
from repertory.core.journal.steps import RecordedStep, step_records
from repertory.core.messages import Json, Message, ToolResult, tool_uses

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.image import Image
    from repertory.core.journal.records import ToolStarted


def standing_records(fold: Fold, at: float, mark: str = "") -> Iterator[Record]:
    """The run's nodes, tools without a result, results that no message holds yet, interrupts, and their responses.

    To be appended after a `Branched`, which drops them. Idempotency tokens cannot be restated. `mark`: of a fork, whose
    questions are others than those of its source.
    """

    def own(interrupt_id: str) -> str:
        name = unmarked(interrupt_id)
        changes = mark and name != interrupt_id and not is_outcome_id(interrupt_id)
        return marked(name, mark) if changes else interrupt_id

    yield from _nodes(fold)
    yield from fold.open_tools.values()
    yield from fold.parked.values()
    for use_id, result in fold.finished_tools.items():
        yield ToolFinished(at=at, tool_use_id=use_id, result=result)
    for steps in fold.steps.values():
        yield from step_records(steps)
    if fold.questions or fold.parked:
        questions = tuple(dataclasses.replace(one, id=own(one.id)) for one in fold.questions)
        yield Interrupted(at=at, interrupts=questions, parked=tuple(fold.parked))
    if fold.responses:
        yield Resumed(at=at, responses={own(key): response for key, response in fold.responses.items()})


def nodes_stated(fold: Fold, at: float) -> Iterator[NodeChanged]:
    """Every node of the run, in order of first mention. The first is marked `WHOLE`: older records count no more."""
    for number, node in enumerate(_nodes(fold)):
        yield replace(node, at=at, data=node.data if number else {**node.data, WHOLE: True})


def nodes_again(fold: Fold, run: int, at: float) -> Iterator[Record]:
    """The nodes of the run under another run number, beginning at `at`: pending nodes run again in the new run. To be
    appended after a `Branched`.
    """
    for node in _nodes(fold):
        data = {**node.data, "begun_at": at} if "begun_at" in node.data else node.data
        yield replace(node, at=at, run=run, data=data)


def _nodes(fold: Fold) -> Iterator[NodeChanged]:
    """The latest record of each node, all with the current frontier and the nodes of it that are ready."""
    ready = next((node.data.get("ready") for node in fold.nodes.values() if node.frontier == fold.frontier), None)
    for node in fold.nodes.values():
        data = {name: value for name, value in node.data.items() if name != "ready"}
        yield replace(node, frontier=fold.frontier, data=data if ready is None else {**data, "ready": ready})


class TurnState(NamedTuple):
    """The parts of a `PendingTools` at one moment, gathered in constant time. Nothing that it refers to is edited
    afterwards, so any thread may read it.
    """

    last_message: Message | None
    open_tools: Mapping[str, ToolStarted]
    finished_tools: Mapping[str, ToolResult]
    parked: Mapping[str, ToolStarted]
    questions: tuple[Interrupt, ...]
    responses: Mapping[str, Json]
    steps: Mapping[str, Mapping[str, RecordedStep]]


def pending_tools_of(at: Fold | Image | TurnState) -> PendingTools:
    """The tools of the last message, and the interrupts about them."""
    starts = {**at.open_tools, **at.parked}
    return PendingTools(
        last=at.last_message,
        started=frozenset(at.open_tools),
        finished=at.finished_tools,
        starts={use_id: Start(started.attempt, started.idempotency_key) for use_id, started in starts.items()},
        questions=at.questions,
        responses=at.responses,
        steps=at.steps,
    )


class Start(NamedTuple):
    """One start of a tool."""

    attempt: int
    """The number of this attempt, from 1."""
    key: str = ""
    """The idempotency key of all its attempts; empty when unknown: the next attempt then makes one."""


def asked_again_id(of: str) -> str:
    """The id of the tool use that asks once more for the work of a use, or of a run in the background, of this id."""
    # A digest: providers take 64 letters, digits, `_` and `-` at most, and the original id may be as long as that.
    return f"again_{blake2s(of.encode(), digest_size=12).hexdigest()}"


class PendingTools(Struct, frozen=True, kw_only=True):
    """The tools and answers that a conversation waits for: of the tool uses in its last message, which is `last`."""

    last: Message | None
    started: frozenset[str] = frozenset()
    """Tool use ids that were started and have no recorded end: unless they run now, their outcome is unknown."""
    finished: Mapping[str, ToolResult] = {}
    """Recorded results by tool use id."""
    starts: Mapping[str, Start] = {}
    """Tool use id to its last start, for uses without a result."""
    questions: tuple[Interrupt, ...] = ()
    """Interrupts asked, answered or not, in order."""
    responses: Mapping[str, Json] = {}
    """Interrupt id to response."""
    steps: Mapping[str, Mapping[str, RecordedStep]] = {}
    """Tool use id to the steps of that use, by their keys."""

    @property
    def waiting(self) -> tuple[Interrupt, ...]:
        """The interrupts without a response."""
        return tuple(one for one in self.questions if one.id not in self.responses)

    def waiting_in(self, session_id: str | None) -> tuple[Interrupt, ...]:
        """The interrupts without a response, with the tools that they are about, and this session."""
        return asked_about(self.waiting, [] if self.last is None else [*tool_uses(self.last)], session_id)

    def not_asked(self, interrupts: Sequence[Interrupt]) -> tuple[Interrupt, ...]:
        """The given interrupts that are not waiting already."""
        return tuple(one for one in interrupts if one not in self.waiting)

    def outcome_id(self, use_id: str) -> str:
        """The id of the question about this use's unknown outcome. Each attempt at a use has another: an answer that is
        sent again must run nothing again.
        """
        start = self.starts.get(use_id)
        mark = step_mark(start.key, start.attempt) if start is not None and start.key else ""
        return marked(outcome_id(use_id), mark)

    def new_answers(self, responses: Mapping[str, Json]) -> dict[str, Json]:
        """The responses that are new or differ from the ones known."""
        known = self.responses
        return {key: value for key, value in responses.items() if key not in known or known[key] != value}

    def answered(self, responses: Mapping[str, Json]) -> PendingTools:
        """A copy in which these responses have come."""
        return replace(self, responses={**self.responses, **responses})

    def ended(self, results: Mapping[str, ToolResult]) -> PendingTools:
        """A copy in which these tools have ended. `results`: by tool use id."""
        if not results:
            return self
        settled = {outcome_id(use_id) for use_id in results}
        return replace(
            self,
            started=self.started - results.keys(),
            finished={**self.finished, **results},
            starts={use_id: start for use_id, start in self.starts.items() if use_id not in results},
            # Known by now: the question about the outcome, and a late response to it, must not run the tool again.
            questions=tuple(one for one in self.questions if unmarked(one.id) not in settled),
            responses={key: value for key, value in self.responses.items() if unmarked(key) not in settled},
        )
