"""The bodies of requests and answers of our own API, as classes from which the OpenAPI document is made.

A field that a request does not have is an error, never ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from repertory.core.deliveries import NAMES_MAX
from repertory.core.ids import ID_BYTES_MAX
from repertory.core.timers import Missed
from repertory.core.turns.turn_start import Busy
from repertory.core.turns.turn_status import PendingReason

Id: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=ID_BYTES_MAX, pattern=r"^[^/\\\x00-\x1f\x7f-\x9f]*$", description="An id.")
]
Token: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=ID_BYTES_MAX,
        pattern=r"^[^/\\\x00-\x1f\x7f-\x9f]*$",
        description="Names the turn: the same token again runs nothing twice. Made for you if you send none.",
    ),
]
JsonObject: TypeAlias = dict[str, Any]
PositionNumber: TypeAlias = Annotated[int, Meta(ge=0, description="A sequence number of the agent's journal.")]
Label: TypeAlias = Annotated[str, Meta(min_length=1, max_length=ID_BYTES_MAX)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=1e9)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**53)]
Epoch: TypeAlias = Annotated[float, Meta(description="Seconds since 1970.")]


class CallLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of one call."""

    turns: Count | UnsetType = UNSET
    total_tokens: Count | UnsetType = UNSET
    output_tokens: Count | UnsetType = UNSET
    result_bytes: Count | UnsetType = UNSET
    answer_bytes: Count | UnsetType = UNSET
    prompt_bytes: Count | UnsetType = UNSET


DestinationNames: TypeAlias = Annotated[
    list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=NAMES_MAX)
]


class _Call(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    token: Token | None = None
    stream: Annotated[
        bool, Meta(description="Server-sent events instead of the result; the same as Accept: text/event-stream.")
    ] = False
    timeout_s: Annotated[Seconds | None, Meta(description="Seconds for the whole call.")] = None
    limits: CallLimits | None = None
    busy: Annotated[Busy | None, Meta(description="What to do while a turn runs.")] = None
    drop_interrupts: Annotated[
        bool, Meta(description="Go on without answers of a person: tools that wait for them get an error result.")
    ] = False
    deliver_to: Annotated[
        DestinationNames | None,
        Meta(description="The names of destinations that are told of the turn, of those that the service allows."),
    ] = None


class BeginTurn(_Call, frozen=True, kw_only=True):
    """A prompt."""

    prompt: Annotated[
        str | list[JsonObject] | None,
        Meta(description="A text, content blocks, or messages. Without one, an unfinished turn goes on."),
    ] = None


class InterruptAnswer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer of a person."""

    id: Annotated[str, Meta(min_length=1, description="The id of the interrupt.")]
    response: Annotated[Any, Meta(description="Any JSON but null.")]


class AnswerInterrupts(_Call, frozen=True, kw_only=True):
    """Answers of a person, which begin a turn."""

    answers: Annotated[list[InterruptAnswer], Meta(min_length=1, max_length=1000)]


class _RunCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    token: Token | None = None
    stream: Annotated[
        bool, Meta(description="Server-sent events instead of the result; the same as Accept: text/event-stream.")
    ] = False
    timeout_s: Annotated[Seconds | None, Meta(description="Seconds for the whole call.")] = None
    busy: Annotated[Literal["queue", "reject"] | None, Meta(description="What to do while another call works.")] = None


class StartRun(_RunCall, frozen=True, kw_only=True):
    """A task of a graph or swarm."""

    task: Annotated[
        str | list[JsonObject] | None,
        Meta(description="A text, or content blocks. Without one, an unfinished run goes on."),
    ] = None
    resume: Annotated[
        bool | None, Meta(description="True goes on with an unfinished run, whatever the task; false gives it up.")
    ] = None


class AnswerRun(_RunCall, frozen=True, kw_only=True):
    """Answers of a person, with which a run goes on."""

    answers: Annotated[list[InterruptAnswer], Meta(min_length=1, max_length=1000)]


class OrchestratorsShown(Struct, frozen=True, kw_only=True):
    """The graphs and swarms that are served."""

    orchestrators: Annotated[list[str], Meta(description="Their ids.")]


class TurnAnswer(Struct, frozen=True, kw_only=True):
    """A turn that is over."""

    token: str
    status: Literal["over"]
    text: Annotated[str, Meta(description="The text of the answer.")]
    result: Annotated[JsonObject, Meta(description="Its stop_reason, message, interrupts, metrics and more.")]


class TurnBegun(Struct, frozen=True, kw_only=True):
    """A turn that is accepted, and not over."""

    token: str
    status: Literal["accepted", "running"]


class MessageLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message."""

    message: JsonObject
    seq: int | None = None
    at: Epoch | None = None
    turn: int | None = None
    shown: Annotated[bool | None, Meta(description="Whether the model sees it.")] = None
    left_behind: Annotated[bool | None, Meta(description="Whether a rewind left it behind.")] = None


class MessagePage(Struct, frozen=True, kw_only=True):
    """Messages, oldest first."""

    messages: list[MessageLine]
    next: Annotated[str | None, Meta(description="The cursor of the next page; null for the last one.")]


class StateShown(Struct, frozen=True, kw_only=True):
    """The agent's state."""

    state: JsonObject
    position: int


class ToolAwaited(Struct, frozen=True, kw_only=True):
    """A tool whose result comes later. The id under which it comes is not told: whoever has that may give it."""

    tool: str
    tool_use_id: str
    since: Epoch
    expires_at: Epoch | None = None


class PendingShown(Struct, frozen=True, kw_only=True):
    """The unfinished work of the conversation."""

    why: Annotated[PendingReason | None, Meta(description="Null: nothing is unfinished.")]
    interrupts: list[JsonObject]
    tools: list[ToolAwaited] = []


class InterruptsShown(Struct, frozen=True, kw_only=True):
    """The questions to a person that have no answer."""

    interrupts: list[JsonObject]


class GiveResult(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of a tool that has deferred."""

    result: Annotated[Any, Meta(description="As a tool returns it: a text, JSON, or content blocks.")]
    status: Literal["success", "error"] = "success"
    start_turn: Annotated[bool, Meta(description="Whether a turn tells it to the model now.")] = True


class ToolCompleted(Struct, frozen=True, kw_only=True):
    """The acceptance of a tool's result, which does not count if the tool has one already."""

    accepted: bool


class SnapshotLine(Struct, frozen=True, kw_only=True):
    """A position with a label."""

    label: str
    position: int
    at: Epoch
    metadata: JsonObject


class SnapshotsShown(Struct, frozen=True, kw_only=True):
    """Positions with labels, in the order in which they got them."""

    snapshots: list[SnapshotLine]
    next: Annotated[str | None, Meta(description="The cursor of the next page; null for the last one.")]


class TakeSnapshot(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A label for a position."""

    label: Label
    at: Annotated[PositionNumber | None, Meta(description="Null: the end.")] = None
    metadata: JsonObject | None = None


class SnapshotShown(Struct, frozen=True, kw_only=True):
    """The messages that the model received at a position, and the agent's state there."""

    position: int
    messages: list[JsonObject]
    state: JsonObject


class ForkSession(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new session that goes on from a position of this one."""

    session: Id
    at: Annotated[PositionNumber | Label | None, Meta(description="A position, or a label. Null: the end.")] = None


class ForkMade(Struct, frozen=True, kw_only=True):
    """The new session."""

    session: str
    position: int
    messages: int


class RewindSession(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The position from which the conversation goes on."""

    to: PositionNumber | Label


class Rewound(Struct, frozen=True, kw_only=True):
    """The position from which the conversation goes on; rewinding to `was` undoes it."""

    position: int
    was: int


class TimerShown(Struct, frozen=True, kw_only=True):
    """A turn that begins by itself."""

    id: str
    at: Epoch
    prompt: str
    every_s: float | None
    cron: str | None
    tz: str | None
    missed: Missed


class TimersShown(Struct, frozen=True, kw_only=True):
    """The timers, the next one first."""

    timers: list[TimerShown]


class SetTimer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A turn that is to begin by itself: at a time, in some seconds, or again and again."""

    prompt: Annotated[str, Meta(min_length=1)]
    id: Annotated[Id | None, Meta(description="Replaces the timer of that id.")] = None
    at: Epoch | None = None
    in_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    every_s: Annotated[float, Meta(ge=1, le=1e9)] | None = None
    cron: Annotated[str | None, Meta(description="The times of a calendar, such as `0 8 * * 1-5`.")] = None
    tz: Annotated[str | None, Meta(description="The time zone of `cron`, such as `Europe/Berlin`; null: UTC.")] = None
    missed: Missed = "one"
    deliver_to: Annotated[
        DestinationNames | None,
        Meta(description="The names of destinations that are told of its turns, of those that the service allows."),
    ] = None


class TimerSet(Struct, frozen=True, kw_only=True):
    """The timer's id."""

    id: str


class SessionLine(Struct, frozen=True, kw_only=True):
    """A session."""

    session: str
    position: int
    created_at: Epoch
    updated_at: Epoch
    owned: Annotated[bool, Meta(description="Whether a process has it open.")]


class SessionPage(Struct, frozen=True, kw_only=True):
    """Sessions, by their ids."""

    sessions: list[SessionLine]
    next: Annotated[str | None, Meta(description="The cursor of the next page; null for the last one.")]


class QuestionLine(Struct, frozen=True, kw_only=True):
    """A question to a person that has no answer."""

    session: str
    agent: Annotated[str | None, Meta(description="The agent that takes the answer; null where a graph or swarm does.")]
    orchestrator: Annotated[str | None, Meta(description="The graph or swarm that takes the answer.")]
    asked_at: Epoch
    answer_posted: Annotated[bool, Meta(description="Whether an answer is stored that waits for its agent.")]
    interrupt: Annotated[JsonObject, Meta(description="Its id, name, reason, tool, input, expires_at, may_answer.")]


class QuestionsListed(Struct, frozen=True, kw_only=True):
    """Questions to people, those of one session together."""

    questions: list[QuestionLine]
    next: Annotated[
        str | None, Meta(description="The cursor of the next page, also of one without a question; null for the last.")
    ]


class AgentLine(Struct, frozen=True, kw_only=True):
    """An agent."""

    name: str
    description: str | None


class AgentsShown(Struct, frozen=True, kw_only=True):
    """The agents that are served."""

    agents: list[AgentLine]


class Erased(Struct, frozen=True, kw_only=True):
    """A session that is gone."""

    session: str
    deleted_at: Epoch
    agents: dict[str, int]


class MemoryQuestion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search of the memory."""

    query: Annotated[str, Meta(min_length=1, max_length=10_000)]
    max_results: Annotated[int, Meta(ge=1, le=1000)] | None = None
    stores: Annotated[list[str], Meta(max_length=100)] | None = None


class MemoryFound(Struct, frozen=True, kw_only=True):
    """Something that is remembered."""

    content: str
    store: str
    metadata: JsonObject


class MemoriesFound(Struct, frozen=True, kw_only=True):
    """The entries that a search found, the best first."""

    entries: list[MemoryFound]


class HealthShown(Struct, frozen=True, kw_only=True):
    """The health of the process: `ok` if requests may be sent to it."""

    status: Literal["ok", "ending", "starting"]
