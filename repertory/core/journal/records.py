"""Everything that a journal can say, one frozen dataclass per kind of record.

A record never points to another by place in a file, only by sequence number within its own journal. Values are taken as
they are and must not be edited afterwards. Wherever a value is typed `Json`, raw `bytes` are kept exactly as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from repertory.core.interrupts import Interrupt
from repertory.core.messages import Json, Message, ToolResult

WHOLE = "whole"
"""Where the data of a `NodeChanged` says so, it and those that follow state all that is known of the run: what came
before them does not count any more.
"""
NodeStatus = Literal["started", "completed", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the model is shown: the summary, then the pinned messages, then every message from `first_shown` on.

    Pinned and replaced messages stand here by value, so that showing them never means reading an old row.
    """

    first_shown: int = 0
    """Messages with a lower sequence number are not shown, unless pinned."""
    pinned: Mapping[int, Message] = field(default_factory=dict[int, Message])
    """Sequence number to message, in order; each lies before `first_shown`."""
    replaced: Mapping[int, Message] = field(default_factory=dict[int, Message])
    """Sequence number of a shown message to what is shown instead."""
    summary: Message | None = None
    hidden: tuple[tuple[int, int], ...] = ()
    """First and last sequence numbers of stretches after `first_shown` that a `Branched` left behind."""
    manager: str = ""
    """The class name of the conversation manager that decided this."""
    manager_state: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAdded:
    """A message was added. It is shown to the model from now on."""

    at: float
    """Epoch seconds, here and in every record."""
    message: Message
    turn: int
    """Which turn of the journal it belongs to, counted from 1. Never falls."""
    index: int
    """How many messages the journal held before it."""
    idempotency_token: str | None = None
    """What the caller named the turn; on the first message of a turn only."""
    repaired: str | None = None
    """Why this is not quite what was said, when a foreign history had to be mended."""
    view: View | None = None
    """What is shown from this message on, when that changed with it: a patch as in `ViewChanged`, which holds no
    message. So a turn that hides what has grown old is still one record for the prompt and one for the answer.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    """A tool is about to run. Without a `ToolFinished` after it, nobody knows whether it took effect."""

    at: float
    tool_use_id: str
    name: str
    idempotency_key: str
    """Empty in what came with a document that does not say it."""
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished:
    """A tool ended with this result, whose message is not stored yet."""

    at: float
    tool_use_id: str
    result: ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewChanged:
    """What the model is shown changed.

    A full value says everything. A patch (`patch=True`) is what most turns need: `first_shown`, `manager` and
    `manager_state` are as stated, `pinned` and `replaced` are additions, `summary` and `hidden` stay what they were.
    """

    at: float
    view: View
    patch: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanged:
    """Agent state after a change: a patch, or everything when `full` is not None (then the patch is empty)."""

    at: float
    set: Mapping[str, Json] = field(default_factory=dict[str, Json])
    delete: tuple[str, ...] = ()
    full: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Redacted:
    """The message at `target` is this one, and has always been: the commit that stores this erases the original.

    It repeats what the fold needs of the original record, which is gone.
    """

    at: float
    target: int
    message: Message
    turn: int
    index: int
    idempotency_token: str | None = None
    view: View | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The turn waits for a person. Adds to interrupts that wait already; the same id replaces, and drops its answer."""

    at: float
    interrupts: tuple[Interrupt, ...]
    parked: tuple[str, ...] = ()
    """Ids of tool uses that were started and stopped in order to ask: they run again when they have their answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Answers came: interrupt id to response."""

    at: float
    responses: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanged:
    """An orchestrator's node started or ended. A higher `run` begins anew and forgets the nodes of the one before."""

    at: float
    run: int
    node: str
    status: NodeStatus
    frontier: tuple[str, ...] = ()
    """Nodes that are to run next, as of this record."""
    result: Json = None
    data: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Whatever else the orchestrator needs to go on: counters, shared context, tasks handed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken:
    """A name for a position. Costs nothing more than this record. Of several of one label, the latest counts."""

    at: float
    label: str
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])
    digest: str = ""
    """What proves the position, in hexadecimal: the link of its row, or SHA-256 of a snapshot's content; empty when
    nobody asked for it.
    """
    position: int | None = None
    """What is named; None: the position right before this record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branched:
    """The conversation goes on from an earlier position. What lay beyond stays in the journal, hidden.

    View and state are those of that position, in full: going on needs no row before the ones that the view shows.
    Open tools, waiting interrupts and finished idempotency tokens are not carried over.
    """

    at: float
    position: int
    """The last sequence number that still counts."""
    last: int
    """Sequence number of the last message at that position; 0 when there was none."""
    message_count: int = 0
    """Messages that the journal holds, the hidden ones included: numbering goes on."""
    turns: int = 0
    """Turns that the journal holds, the hidden ones included."""
    run: int = 0
    """The orchestrator's last run, the hidden ones included."""
    view: View = field(default_factory=View)
    state: Mapping[str, Json] = field(default_factory=dict[str, Json])
    name: str = ""
    source: str | None = None
    """Where a copy came from, as `session/agent`, when this is the first record of a journal forked from another."""
    source_position: int = 0
    """The position of the source that it goes on from; 0 in forks of earlier releases, which did not say."""
    source_link: str = ""
    """The link of the source's row there, in hexadecimal: it tells the source from another session of its name."""
    copied: tuple[int, ...] = ()
    """The numbers in the source of the messages that follow this record, one for each: they are copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorMoved:
    """How far each memory store has taken this journal in: store name to sequence number. A full value."""

    at: float
    positions: Mapping[str, int]
    kept: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Store name to what is on its way there, or was given up; `core/memory/progress.py` says how it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerChanged:
    """A new owner took the session over. For the reader of a journal; going on does not depend on it."""

    at: float
    owner: str
    generation: int


Record: TypeAlias = (
    MessageAdded
    | ToolStarted
    | ToolFinished
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
)
