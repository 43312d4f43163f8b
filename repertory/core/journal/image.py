"""What a journal amounts to at one position: everything that an agent needs to go on, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from repertory.core.interrupts import Interrupt
from repertory.core.journal.records import NodeChanged, ToolStarted, View
from repertory.core.journal.view import SUMMARY_SEQ
from repertory.core.messages import Json, Message, ToolResult, ToolUse


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTurn:
    """A turn that a caller named and that has its answer: saying it again is answered with this."""

    token: str
    turn: int
    seq: int
    """Of the message that carried the token."""
    answer_seq: int
    answer: Message


class UnsettledTool(NamedTuple):
    """A tool that was started, and of which nobody knows how it ended."""

    use: ToolUse
    started: ToolStarted


@dataclass(frozen=True, slots=True, kw_only=True)
class UnansweredTurn:
    """A turn that a caller named, that has no answer, and behind which another one began: saying it again goes on with
    it, and does not say its prompt twice.
    """

    token: str
    seq: int
    """Of the message that carried the token."""
    unknown: tuple[UnsettledTool, ...] = ()
    """Its tools whose outcome nobody knew when the other turn began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchors:
    """Sequence numbers of the rows that opening the agent here depends on; 0 where there is none."""

    message: int = 0
    """The last message: it says how many there are, and what the next one must answer. A branch that went back to
    before the first message stands here itself.
    """
    turn: int = 0
    """The first message of a turn that has no answer yet."""
    view: int = 0
    """The last full view, or patch that says as much: later patches add to it."""
    state: int = 0
    """The last full state, which later patches add to."""
    cursors: int = 0
    """The last full value of the memory stores' positions."""
    tools: int = 0
    """The first start or end of a tool since the last message."""
    waiting: int = 0
    """The first interrupt or answer that the turn still depends on."""
    run: int = 0
    """The first node of the orchestrator's current run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An agent at rest. What a restart restores equals what was there before it, field by field.

    Values are shared with whoever made the image and must not be edited.
    """

    last_seq: int = 0
    """The last record folded in; 0 before the first one."""
    message_count: int = 0
    """Messages ever added, shown or not."""
    turns: int = 0
    """Turns ever begun."""
    view: View = field(default_factory=View)
    recent: tuple[tuple[int, Message], ...] = ()
    """Sequence number and message, as shown, from `view.first_shown` on."""
    last_message: Message | None = None
    last_message_seq: int = 0
    state: Mapping[str, Json] = field(default_factory=dict[str, Json])
    open_tools: Mapping[str, ToolStarted] = field(default_factory=dict[str, ToolStarted])
    """Tool use id to a start without an end, since the last message."""
    finished_tools: Mapping[str, ToolResult] = field(default_factory=dict[str, ToolResult])
    """Tool use id to a result that no message holds yet."""
    parked: Mapping[str, ToolStarted] = field(default_factory=dict[str, ToolStarted])
    """Tool use id to the last start of a tool that stopped in order to ask a person, and has not run since."""
    questions: tuple[Interrupt, ...] = ()
    """What was asked in the running turn, answered or not, in that order."""
    responses: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Answers to interrupts of the running turn, by interrupt id."""
    nodes: Mapping[str, NodeChanged] = field(default_factory=dict[str, NodeChanged])
    """The latest word on each node of the orchestrator's current run, in order of first mention."""
    frontier: tuple[str, ...] = ()
    cursors: Mapping[str, int] = field(default_factory=dict[str, int])
    kept: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Store name to what the last cursor record keeps of it."""
    finished_turns: Mapping[str, FinishedTurn] = field(default_factory=dict[str, FinishedTurn])
    """By idempotency token, for turns no older than what is shown."""
    unanswered: Mapping[str, UnansweredTurn] = field(default_factory=dict[str, UnansweredTurn])
    """By idempotency token, for turns no older than `needed`, which those within `UNANSWERED_ROWS` records bound."""
    token: tuple[str, int] | None = None
    """The idempotency token of the current turn and the sequence number of the message that carried it."""
    run: int = 0
    """The orchestrator's current run; 0 before the first one."""
    anchors: Anchors = Anchors()

    def since(self, first: int) -> Image:
        """The same without the tokens of turns that began before the record `first`. A process that has followed a
        journal, or reads all of it, knows more answered turns than one that has opened it from there.
        """
        return replace(
            self,
            finished_turns={token: turn for token, turn in self.finished_turns.items() if turn.seq >= first},
            unanswered={token: turn for token, turn in self.unanswered.items() if turn.seq >= first},
            token=self.token if self.token is not None and self.token[1] >= first else None,
        )

    @property
    def interrupts(self) -> tuple[Interrupt, ...]:
        """What the turn waits for, in the order asked."""
        return tuple(one for one in self.questions if one.id not in self.responses)

    @property
    def shown(self) -> Iterator[tuple[int, Message]]:
        """Sequence number and message, exactly as the model is shown them. A summary has `SUMMARY_SEQ`."""
        if self.view.summary is not None:
            yield SUMMARY_SEQ, self.view.summary
        yield from self.view.pinned.items()
        yield from self.recent
