"""The kinds of journal records, one frozen dataclass each.

A record refers to another only by sequence number within its own journal. Values are not copied and must not be edited
afterwards. Where a value is typed `Json`, raw `bytes` are kept exactly as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct, field

from repertory.core.deferral import DeferredTool, RunAsks
from repertory.core.deliveries import EventDelivery
from repertory.core.interrupts import Interrupt
from repertory.core.messages import Json, Message, ToolResult
from repertory.core.steps import Lane
from repertory.core.timers import Timer

WHOLE = "whole"
"""A key in the data of a `NodeChanged`. Where it is true, this record and those after it state the whole run: earlier
records no longer count.
"""
NodeStatus = Literal["started", "completed", "failed", "interrupted"]


class View(Struct, frozen=True, kw_only=True):
    """The messages that the model is shown: summary, then pinned messages, then every message from `first_shown` on.

    Pinned and replaced messages are stored here by value, so that showing them needs no old row.
    """

    first_shown: int = 0
    """Messages with a lower sequence number are not shown, unless pinned."""
    pinned: Mapping[int, Message] = {}
    """Sequence number to message, in order; each is below `first_shown`."""
    replaced: Mapping[int, Message] = {}
    """Sequence number of a shown message to the message shown in its place."""
    summary: Message | None = None
    hidden: tuple[tuple[int, int], ...] = ()
    """First and last sequence numbers of ranges after `first_shown` that a `Branched` left behind."""
    manager: str = ""
    """The class name of the conversation manager that decided this view."""
    manager_state: Mapping[str, Json] = {}


class MessageAdded(Struct, frozen=True, kw_only=True):
    """A message was added, and is shown to the model from now on."""

    at: float
    """Epoch seconds, here and in every record."""
    message: Message
    turn: int
    """The turn that it belongs to, counted from 1. Never falls."""
    index: int
    """The number of messages in the journal before it."""
    idempotency_token: str | None = None
    """The idempotency token of the turn; on its first message only."""
    repaired: str | None = None
    """The reason why this differs from the original, when a foreign history had to be repaired."""
    joined: tuple[str, ...] = ()
    """The tokens of other calls that get the turn's answer: they said a part of this message to the running turn, or go
    on with a turn of another token.
    """
    view: View | None = None
    """The view from this message on, if it changed with it: a patch as in `ViewChanged` that holds no messages. So a
    turn that hides old messages still costs one record for the prompt and one for the answer.
    """


class ToolStarted(Struct, frozen=True, kw_only=True):
    """A tool is about to run. Without a `ToolFinished` after it, its outcome is unknown."""

    at: float
    tool_use_id: str
    name: str
    idempotency_key: str
    """Empty when it came from an imported document that does not state it."""
    attempt: int = 1


class ToolFinished(Struct, frozen=True, kw_only=True):
    """A tool ended with this result, which no message holds yet."""

    at: float
    tool_use_id: str
    result: ToolResult


class StepStarted(Struct, frozen=True, kw_only=True):
    """A step of a running tool is about to run. Without a `StepFinished` after it, its outcome is unknown."""

    at: float
    tool_use_id: str
    step: str
    """The key of the step within the tool use; `core/steps.py` makes it."""
    attempt: int = 1
    idempotent: bool = False
    """True if it may run again without anybody being asked."""
    lane: Lane = ""
    failure: str = ""
    """The tool's failure, in the words of its result, if the step undoes another one."""
    tool: str = ""
    """The tool that the running tool calls in this step; empty for a step that is a function of the program."""
    input: Json = None
    """The input of that call."""


class StepFinished(Struct, frozen=True, kw_only=True):
    """A step ended, with a result or for good with an error."""

    at: float
    tool_use_id: str
    step: str
    result: Json = None
    """The returned value; may hold bytes."""
    error: str | None = None
    """The failure in words; None if the step succeeded."""


class ViewChanged(Struct, frozen=True, kw_only=True):
    """A change of the messages that the model is shown.

    A full value states everything. In a patch (`patch=True`), which is enough for most turns, `first_shown`, `manager`
    and `manager_state` are stated, `pinned` and `replaced` are additions, and `summary` and `hidden` stay unchanged.
    """

    at: float
    view: View
    patch: bool = False
    reason: str = ""


class StateChanged(Struct, frozen=True, kw_only=True):
    """Agent state changed: a patch, or the whole state when `full` is not None (then the patch is empty)."""

    at: float
    set: Mapping[str, Json] = {}
    delete: tuple[str, ...] = ()
    full: Mapping[str, Json] | None = None


class Redacted(Struct, frozen=True, kw_only=True):
    """The message at `target` is this one, and always was: the commit that stores this record erases the original.

    It repeats what the fold needs of the erased record.
    """

    at: float
    target: int
    message: Message
    turn: int
    index: int
    idempotency_token: str | None = None
    joined: tuple[str, ...] = ()
    view: View | None = None
    resumed: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """Sequence numbers of records `Resumed` that are erased with it, and their `joined`."""


class Interrupted(Struct, frozen=True, kw_only=True):
    """The turn waits for a person. Adds to waiting interrupts; a repeated id replaces one and drops its response."""

    at: float
    interrupts: tuple[Interrupt, ...]
    parked: tuple[str, ...] = ()
    """Ids of tool uses that started and stopped to ask: they run again after the answer."""


class Resumed(Struct, frozen=True, kw_only=True):
    """Responses came: interrupt id to response."""

    at: float
    responses: Mapping[str, Json]
    joined: tuple[str, ...] = ()
    """The idempotency tokens of the calls that brought them, where these are not the turn's own."""


class NodeChanged(Struct, frozen=True, kw_only=True):
    """An orchestrator's node started or ended. A higher `run` is a new run and drops the nodes of the one before."""

    at: float
    run: int
    node: str
    status: NodeStatus
    frontier: tuple[str, ...] = ()
    """The nodes to run next, as of this record."""
    result: Json = None
    data: Mapping[str, Json] = {}
    """Further data that the orchestrator needs to go on: counters, shared context, handed-over tasks."""


class SnapshotTaken(Struct, frozen=True, kw_only=True):
    """A label for a position. Costs only this record. Of several with one label, the latest counts."""

    at: float
    label: str
    metadata: Mapping[str, Json] = {}
    digest: str = ""
    """The proof of the position, in hexadecimal: the link of its row, or SHA-256 of a snapshot's content; empty when it
    was not asked for.
    """
    position: int | None = None
    """The position that is named; None: the one right before this record."""


class Branched(Struct, frozen=True, kw_only=True):
    """The conversation goes on from an earlier position. The records after that position stay in the journal, hidden.

    View and state are those of that position, in full: going on needs no row before the ones that the view shows. Open
    tools, waiting interrupts and idempotency tokens are dropped.
    """

    at: float
    position: int
    """The last sequence number that still counts."""
    last: int
    """Sequence number of the last message at that position; 0 when there was none."""
    message_count: int = 0
    """All messages in the journal, hidden ones included: numbering goes on."""
    turns: int = 0
    """All turns in the journal, hidden ones included."""
    run: int = 0
    """The orchestrator's last run, hidden ones included."""
    view: View = field(default_factory=View)
    state: Mapping[str, Json] = {}
    name: str = ""
    source: str | None = None
    """The journal that a fork was made from, as `session/agent`; in the first record of the fork only."""
    source_position: int = 0
    """The position of the source at which the fork was made."""
    source_link: str = ""
    """The link of the source's row there, in hexadecimal: it tells the source from another session of its name."""
    copied: tuple[int, ...] = ()
    """The sequence numbers, in the source, of the copied messages that follow this record, in order."""


class CursorMoved(Struct, frozen=True, kw_only=True):
    """Memory store name to the sequence number up to which it has processed this journal. A full value."""

    at: float
    positions: Mapping[str, int]
    kept: Mapping[str, Json] = {}
    """Store name to its pending and rejected work; `core/memory/progress.py` defines the format."""


class TimersChanged(Struct, frozen=True, kw_only=True):
    """The turns that the session begins by itself. A full value, which a rewind leaves as it is."""

    at: float
    timers: tuple[Timer, ...] = ()


class RunChanged(Struct, frozen=True):
    """A background run has got further: everything of it that can change."""

    id: str
    attempt: int = 0
    asks: RunAsks = ""


class DeferralsChanged(Struct, frozen=True, kw_only=True):
    """The tools that wait for results which come later. It changes those that it names, as inputs of runs may be large;
    a rewind goes back to those of its position.
    """

    at: float
    deferrals: tuple[DeferredTool, ...] = ()
    """New ones, by id."""
    runs: tuple[RunChanged, ...] = ()
    """Runs that have got further."""
    ended: tuple[str, ...] = ()
    """The ids under which nothing waits any more, and no result came."""
    settled: tuple[str, ...] = ()
    """The ids that have had their results."""
    told: tuple[str, ...] = ()
    """The ids of the results that the message before shows: they wait no longer."""
    steps: tuple[StepStarted | StepFinished, ...] = ()
    """Steps of background runs so far, stated anew."""
    whole: bool = False
    """True if it, with the records behind it, states all of them: earlier records no longer count."""


class DeferredResult(Struct, frozen=True, kw_only=True):
    """The result of a tool came later; the model is told in a turn. The latest one of an id counts."""

    at: float
    id: str
    name: str
    """The tool's."""
    result: ToolResult
    starts: bool = True
    """False if no turn begins for it: it is told in the next one."""
    expired: bool = False
    """True if none came in time, and this says so."""
    ran: bool = False
    """True if the agent itself ran the tool, so hooks have seen the result."""
    deliver_to: tuple[str, ...] = ()
    """The destinations that the call of the tool had named."""


class DeliveriesChanged(Struct, frozen=True, kw_only=True):
    """Events are to be delivered, or were, or could not be. It changes those that it names; a rewind leaves them."""

    at: float
    deliveries: tuple[EventDelivery, ...] = ()
    """New ones, and those that have changed, by id."""
    ended: tuple[str, ...] = ()
    """The ids of those that were delivered, or that nobody keeps any more."""
    to: tuple[str, ...] = ()
    """The destinations, besides those of the runtime, that are told of a turn."""
    turn: int = 0
    """The number of that turn."""
    whole: bool = False
    """True if it states all of them: earlier records no longer count."""


class FinishedTurn(Struct, frozen=True):
    """An answered turn with an idempotency token: calling it again returns its answer."""

    token: str
    seq: int
    """The message that carried the token."""
    answer_seq: int


class AnswersStated(Struct, frozen=True, kw_only=True):
    """The answered turns with idempotency tokens, the latest ones, oldest first. A full value, to which later messages
    add: so the tokens are known without the rows of their turns.
    """

    at: float
    answers: tuple[FinishedTurn, ...] = ()


class SpentCall(NamedTuple):
    """The tokens of one answered model call."""

    who: str
    """The agent that made it, as budgets list it."""
    model: str
    """The id of the model."""
    input_tokens: int
    output_tokens: int
    total_tokens: int


class SubagentSpending(Struct, frozen=True, kw_only=True):
    """A subagent works here: this is the agent that has started it, and these are model calls for it whose answers are
    no messages of its own, such as summaries. Kept for budgets of later processes; the fold ignores it.
    """

    at: float
    parent: str = ""
    """The id of the agent that has started it."""
    parent_turn: str = ""
    """The name of the turn that has started it; empty where it is not known."""
    who: str = ""
    """The subagent, as budgets list it."""
    model: str = ""
    """The id of its model."""
    calls: tuple[SpentCall, ...] = ()
    """Calls that no earlier record has."""


class OwnerChanged(Struct, frozen=True, kw_only=True):
    """A new owner took the session over. Kept for readers; the fold ignores it."""

    at: float
    owner: str
    generation: int


Record: TypeAlias = (
    MessageAdded
    | ToolStarted
    | ToolFinished
    | StepStarted
    | StepFinished
    | ViewChanged
    | StateChanged
    | Redacted
    | Interrupted
    | Resumed
    | NodeChanged
    | SnapshotTaken
    | Branched
    | CursorMoved
    | OwnerChanged
    | SubagentSpending
    | TimersChanged
    | DeferralsChanged
    | DeferredResult
    | DeliveriesChanged
    | AnswersStated
)
