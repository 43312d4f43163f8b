"""The state of a journal at one position: everything that an agent needs to go on, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from repertory.core.deferral import DeferredTool
from repertory.core.deliveries import EventDelivery
from repertory.core.interrupts import Interrupt
from repertory.core.journal.records import DeferredResult, FinishedTurn, NodeChanged, ToolStarted, View
from repertory.core.journal.steps import RecordedStep
from repertory.core.journal.view import SUMMARY_SEQ
from repertory.core.messages import Json, Message, ToolResult, ToolUse
from repertory.core.timers import Timer


class UnsettledTool(NamedTuple):
    """A tool that was started and whose outcome is unknown."""

    use: ToolUse
    started: ToolStarted
    steps: Mapping[str, RecordedStep] = {}
    """The steps of the use, by their keys."""


class UnansweredTurn(Struct, frozen=True, kw_only=True):
    """A turn with an idempotency token that has no answer, and after which another turn began. Calling it again goes on
    with it, and does not repeat its prompt.
    """

    token: str
    seq: int
    """The message that carried the token."""
    left: int = 0
    """The record with which it was left, which is the same for all tokens of one turn."""
    unknown: tuple[UnsettledTool, ...] = ()
    """The turn's tools whose outcome was unknown when the next turn began."""


class Anchors(Struct, kw_only=True):
    """Sequence numbers of the rows that opening the agent here depends on; 0 where there is none."""

    message: int = 0
    """The last message: it gives the message count, and what the next message must answer. After a rewind to before the
    first message: the `Branched` row.
    """
    turn: int = 0
    """The first message of a turn that has no answer yet."""
    view: int = 0
    """The last full view, or a patch that says as much; later patches add to it."""
    state: int = 0
    """The last full state, which later patches add to."""
    cursors: int = 0
    """The last cursor record."""
    tools: int = 0
    """The first start or end of a tool, or of a tool's step, since the last message."""
    waiting: int = 0
    """The first interrupt or response that the turn still depends on."""
    run: int = 0
    """The first record of the orchestrator's current run."""
    timers: int = 0
    """The last record of timers, if any are set."""
    deferrals: int = 0
    """The last full record of deferrals, or the first one, if any tool waits or has had its result."""
    runs: int = 0
    """The first step of a background run that is not over, or the record that states all such steps."""
    came: int = 0
    """The first result of a tool that waited which is not told, or came before such a one."""
    deliveries: int = 0
    """The last full record of deliveries, or the first one, if any wait or are dead, or a turn names destinations."""
    answers: int = 0
    """The last record of answered turns with tokens; or the first message of one that this record does not state."""


class Image(Struct, frozen=True, kw_only=True):
    """An agent at rest. A restart restores an image that equals the one before it, field by field.

    Its values are shared with the fold that made it and must not be edited. A fold has the fields up to `anchors` too.
    """

    last_seq: int = 0
    """The last record folded in; 0 before the first one."""
    message_count: int = 0
    """Messages ever added, shown or not: the `index` of the next one."""
    turns: int = 0
    """Turns ever begun: the `turn` of the last message."""
    last_message: Message | None = None
    """The last message of the conversation, shown or not."""
    last_message_seq: int = 0
    """The sequence number of the last message; 0 when there is none."""
    state: Mapping[str, Json] = {}
    open_tools: Mapping[str, ToolStarted] = {}
    """Tool use id to its start, for tools started since the last message that have not ended."""
    finished_tools: Mapping[str, ToolResult] = {}
    """Tool use id to a result that no message holds yet."""
    steps: Mapping[str, Mapping[str, RecordedStep]] = {}
    """Tool use id to the steps of that use by their keys, in the order in which they began, since the last message."""
    parked: Mapping[str, ToolStarted] = {}
    """Tool use id to its last start, for tools that stopped to ask a person and have not run since."""
    questions: tuple[Interrupt, ...] = ()
    """The interrupts of the running turn, answered or not, in order."""
    responses: Mapping[str, Json] = {}
    """Interrupt id to response, for the running turn."""
    run: int = 0
    """The orchestrator's current run; 0 before the first one."""
    nodes: Mapping[str, NodeChanged] = {}
    """The latest record of each node of the orchestrator's current run, in order of first mention."""
    frontier: tuple[str, ...] = ()
    """The orchestrator's nodes that are to run next."""
    cursors: Mapping[str, int] = {}
    """Memory store name to the sequence number up to which it has processed this journal."""
    kept: Mapping[str, Json] = {}
    """Memory store name to its state in the last cursor record (`core/memory/progress.py`)."""
    timers: Mapping[str, Timer] = {}
    """The turns that the session begins by itself, by timer id."""
    deferred: Mapping[str, DeferredTool] = {}
    """The tools that wait for results which come later, by id."""
    run_steps: Mapping[str, Mapping[str, RecordedStep]] = {}
    """The id of a background run to the run's steps by their keys, in the order in which they began."""
    came: Mapping[str, DeferredResult] = {}
    """The results that came later and are not told yet, by id, in the order in which they came."""
    settled: tuple[str, ...] = ()
    """The ids that have had their results told, at most `SETTLED_MAX`, the latest ones."""
    outbox: Mapping[str, EventDelivery] = {}
    """The deliveries that wait and the dead letters, by id, in the order in which they came."""
    turn_to: tuple[str, ...] = ()
    """The destinations that the last turn's caller named."""
    to_turn: int = 0
    """The number of that turn."""
    anchors: Anchors = field(default_factory=Anchors)
    view: View = field(default_factory=View)
    recent: tuple[tuple[int, Message], ...] = ()
    """Sequence number and message, as shown, from `view.first_shown` on."""
    finished_turns: Mapping[str, FinishedTurn] = {}
    """The turns by idempotency token, the oldest first."""
    unanswered: Mapping[str, UnansweredTurn] = {}
    """Idempotency token to turn: none before `Fold.needed`, which those of the last `UNANSWERED_ROWS` rows bound."""
    tokens: Mapping[str, int] = {}
    """The idempotency tokens of the current turn, its own one first, and the sequence numbers of the messages that
    carried them.
    """

    @property
    def token(self) -> tuple[str, int] | None:
        """The first of the current turn's tokens, and the sequence number of its message."""
        return next(iter(self.tokens.items()), None)

    @property
    def interrupts(self) -> tuple[Interrupt, ...]:
        """The interrupts without a response, in the order asked."""
        return tuple(one for one in self.questions if one.id not in self.responses)

    def since(self, first: int) -> Image:
        """The same image without the tokens of turns that began before record `first`, for comparing images. A process
        that has read the whole journal knows more unanswered ones than one that opened it at `first`; and more answered
        ones, if the journal is from before these were stated (`AnswersStated`).
        """
        return replace(
            self,
            finished_turns={token: turn for token, turn in self.finished_turns.items() if turn.seq >= first},
            unanswered={token: turn for token, turn in self.unanswered.items() if turn.seq >= first},
            tokens={token: seq for token, seq in self.tokens.items() if seq >= first},
        )

    @property
    def shown(self) -> Iterator[tuple[int, Message]]:
        """Sequence number and message, as the model is shown them. A summary has `SUMMARY_SEQ`."""
        if self.view.summary is not None:
            yield SUMMARY_SEQ, self.view.summary
        yield from self.view.pinned.items()
        yield from self.recent
