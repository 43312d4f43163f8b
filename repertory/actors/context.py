"""The parts of an agent, and the working context of one turn: how it is stopped and what it records.

Start with `TurnContext`. Each turn has one `TurnContext` and one `TurnRecord`, which every step of the turn is given.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import anyio
from msgspec import Struct, field, structs

from repertory.actors.call import limits_of, trace_here
from repertory.actors.conversation import EditWindow, LeaveOut, NameManager, ReplaceWindow, Settle
from repertory.actors.drafts import Draft
from repertory.actors.hooks.calls import ToolEnded, TurnHooks
from repertory.actors.hooks.events import MessageAddedEvent
from repertory.actors.journal import TurnProgress
from repertory.actors.leases import Gate, SessionCounts
from repertory.core.deferral import Telling
from repertory.core.deliveries import Happened
from repertory.core.interrupts import Interrupt, asked_about
from repertory.core.journal import deferrals
from repertory.core.journal.fold import is_answer
from repertory.core.journal.records import DeliveriesChanged, MessageAdded
from repertory.core.journal.redact import without_text
from repertory.core.limits import NO_LIMITS, TurnLimits
from repertory.core.messages import (
    STOPPED,
    ContentBlock,
    Message,
    copy_message,
    copy_use,
    error_result,
    is_filler,
    tool_results,
    tool_uses,
    with_traceparent,
    with_tracking_id,
)
from repertory.core.result import StepMetrics, ToolMetrics, TurnMetrics
from repertory.core.snapshots.trigger import EndedTurn
from repertory.core.timers import Timer
from repertory.core.turn import CANCELLED, STOPPED_BY_CALLER, StopReason
from repertory.core.turns.subagents import RETAINED
from repertory.core.turns.turn_start import UnknownOutcome, UserMessages
from repertory.errors import RepertoryError
from repertory.forking import forget_in_children

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from repertory.actors.call import Invocation
    from repertory.actors.conversation import ConversationMessage, ModelView
    from repertory.actors.delivery_events import Destinations
    from repertory.actors.hooks.events import HookRegistry
    from repertory.actors.hooks.middleware import MiddlewareRegistry
    from repertory.actors.journal import ActorJournal, ReadModel, Taking
    from repertory.actors.spawning import Detaches, SubagentsPort
    from repertory.actors.tool_registry import ToolRegistry
    from repertory.actors.tool_steps import ToolSteps
    from repertory.backends.ports import Model, Tool, ToolContext
    from repertory.backends.step_ports import InnerToolsPort
    from repertory.backends.telemetry_ports import CallTrace, FindTelemetry
    from repertory.core.answer import Answer
    from repertory.core.interrupts import Questions
    from repertory.core.journal.records import DeferredResult, Record, SnapshotTaken
    from repertory.core.messages import Json, SystemPrompt, ToolResult, ToolSpec, ToolUse
    from repertory.core.refusals import RefusedParts
    from repertory.core.result import AgentResult, TurnEvent
    from repertory.core.retry import RetryStrategy
    from repertory.core.state import AgentState
    from repertory.core.timers import TimerBook
    from repertory.core.turns.background_tasks import TaskRoute
    from repertory.runtime.actor import Context
    from repertory.runtime.message import Ask
    from repertory.runtime.ref import ActorRef

T = TypeVar("T")
PublishTurnEvent = Callable[["TurnEvent"], Awaitable[None]]
"""Sends one event of the running turn to its caller."""
Durability = Literal["pipelined", "strict", "relaxed"]
ToolExecution = Literal["concurrent", "sequential"]
"""Run the tools of one answer at the same time, or one after the other in the order asked."""
MarkTurn = Callable[["EndedTurn"], Awaitable["SnapshotTaken | None"]]
"""Gives the record that marks the end of a turn, so that a program can find it later; None for no mark. It does not
fail.
"""


NAMELESS = "default"
WATCHED_S = 2.0
"""The seconds that a tool may go on that has read `cancel_signal`, when a person stops its turn."""
UNWATCHED_S = 0.05
"""The seconds for other tools: one that has stopped the turn itself returns its result."""


class StopRequest:
    """A request to stop the running turn that the turn has not taken yet; at most one waits. Safe from any thread."""

    __slots__ = ("__weakref__", "_asked", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: tuple[StopReason, bool] | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Drop the request in a forked child: it was for the parent's turn."""
        # A new lock: the parent's may have been held at the fork, by a thread that the child does not have.
        self._lock, self._asked = threading.Lock(), None

    def ask(self, stop: StopReason, *, after_tools: bool) -> None:
        """Ask for the turn's end. A waiting request stays, unless the new one asks for an earlier end."""
        with self._lock:
            if self._asked is None or (self._asked[1] and not after_tools):
                self._asked = (stop, after_tools)

    @property
    def ends_now(self) -> bool:
        """True if a request waits that lets no running tool end first."""
        asked = self._asked
        return asked is not None and not asked[1]

    def take(self) -> tuple[StopReason, bool] | None:
        """Take the request: the stop reason, and True if running tools may end first. None if there is none. The caller
        must carry the request out, since it is gone from here.
        """
        # Without the lock: it is read at every place where a turn may end, and a request that comes just now is found
        # at the next one.
        if self._asked is None:
            return None
        with self._lock:
            wish, self._asked = self._asked, None
        return wish


class AgentSettings(Struct, frozen=True, kw_only=True):
    """The settings of an agent: its identity and its rules, without its components."""

    session_id: str
    agent_id: str = NAMELESS
    initial: tuple[Message, ...] = ()
    initial_state: Mapping[str, Json] = {}
    durability: Durability = "pipelined"
    """`pipelined`: durable before a tool with effects starts and before the answer is returned; `strict`: before each
    next step; `relaxed`: the answer may return first.
    """
    tool_execution: ToolExecution = "concurrent"
    limits: TurnLimits = NO_LIMITS
    """Bounds of each call that does not set its own."""
    unknown_outcome: UnknownOutcome = "ask"
    """The answer to whether a tool, or a step of one, runs again whose end a kill has hidden; `ask` asks a person."""
    retain_subagents: int | None = RETAINED
    """The number of subagents that stay in the session when they have ended; None for all."""
    durable: bool = True
    others_add: bool = False
    """True if programs which know no leases may have added messages. The store is asked before a turn first asks the
    model: so the model sees them, too.
    """
    tracks_messages: bool = False
    """True if each new message gets a `tracking_id`."""
    wakes: bool = False
    """True if the store is told when the session must be woken, because a `Runtime` can do that."""
    hosted: bool = False
    """True if a `Runtime` has the session, so that turns may begin though nobody calls."""
    defers: bool = True
    """False if the results of its tools cannot come later: nothing brings its conversation to life for them."""
    marks_questions: bool = False
    """False gives questions to a person the ids of the SDK, for conversations that its programs go on with, and those
    of this program alone. Those ids may repeat.
    """
    confirm_s: float = 1.0
    """The age in seconds of the lease's last confirmation from which on the store is asked who owns the session before
    a model is called.
    """


_LOOK_S = 0.002
"""A session that was acquired so long ago is not looked at again before its turn: a call outside any block has just
done that.
"""
MEASURED_TURNS_MAX = 256
"""Turns whose metrics are held one by one before they are added up."""


class LoopMetrics(Protocol):
    """The totals of an agent's turns: tokens, seconds and calls."""

    def add(self, turn: TurnMetrics) -> None:
        """Count one more turn."""


class ToolDeferral(Protocol):
    """The choice of the tools whose definitions the model is shown, where others are shown when it has found them."""

    def visible_specs(self, parts: AgentParts) -> tuple[ToolSpec, ...]:
        """The definitions for the next request, in their order."""
        ...

    def why_hidden(self, name: str, parts: AgentParts) -> str | None:
        """The answer to a call of a tool that the model is not shown; None for one that it is."""
        ...


class BackgroundPort(Protocol):
    """The rules by which tools run in the background; `background_runs.py` has them."""

    on_over: Callable[[], None] | None
    """Called when no tool runs in the background any more."""

    def able(self, tool: Tool) -> bool:
        """True for a tool that can run beside turns."""
        ...

    def way(self, tool: Tool, given: Json, *, here: bool) -> TaskRoute:
        """The way of a use of this tool with this input. `here`: tools may run in the background where it is used."""
        ...

    def specs(self, specs: tuple[ToolSpec, ...], parts: AgentParts) -> tuple[ToolSpec, ...]:
        """The definitions for the model, with the flag where it decides."""
        ...


class BackgroundRunsPort(Protocol):
    """The runs of an active agent, as its turns know them."""

    def dispatch(self, use: ToolUse, context: ToolContext, tool: Tool) -> ToolResult:
        """Record that this use runs in the background, from the commit of its step on. Returns its result for now.
        Errors: `Invalid` while too many tools wait.
        """
        ...

    def look(self) -> None:
        """Begin what may run now."""
        ...


class MakeInnerTools(Protocol):
    """Makes the calls that one attempt at a tool call makes of other tools (`inner_tools.py`)."""

    def __call__(
        self,
        turn: TurnContext,
        journal: ActorJournal | None,
        questions: Questions,
        context: ToolContext,
        steps: ToolSteps,
        fail: Callable[[RepertoryError], None],
    ) -> InnerToolsPort:
        """`journal`: None where nothing is recorded; `steps`: the steps of the call; `fail`: called with an error by
        which the step of the model's tools fails.
        """
        ...


class AgentParts(Struct, kw_only=True):
    """The components of an agent. Model, tools and system prompt may be exchanged between two steps."""

    model: Model
    aux_model: Model | None = None
    """The model for side calls, such as summaries; None for `model`."""
    tools: ToolRegistry
    system_prompt: SystemPrompt = None
    state: AgentState
    read_model: ReadModel
    hooks: HookRegistry
    middleware: MiddlewareRegistry | None = None
    """The middleware around calls of the model and of tools; None for nothing."""
    retry: RetryStrategy | None = None
    """The reaction to failed model calls; None gives up at once."""
    stop_request: StopRequest = field(default_factory=StopRequest)
    mark: MarkTurn | None = None
    """Asked at the end of each turn; None for no marks."""
    background: BackgroundPort | None = None
    """The rules by which tools run in the background, and the runs; None: none does."""
    deferral: ToolDeferral | None = None
    """Chooses the tools that the model is shown; None shows all."""
    inner_tools: MakeInnerTools | None = None
    """Makes the calls of other tools that a running tool asks for; None where no tool may."""
    subagents: SubagentsPort | None = None
    """Starts the subagents of the session; None before it is open."""
    waiting_subagents: dict[str, Any] = {}
    """The subagents without a journal that wait for a person, the oldest first."""
    remembers: bool = False
    """True if the session has a memory, which is told of each answered turn."""
    lives: int = 0
    """The number of actors that were the agent since the session was opened: one, and one more with each restart."""
    owner: Any = None
    """The `Agent` that users know; tools and hooks get it as `agent`."""
    measured: list[TurnMetrics] = field(default_factory=list[TurnMetrics])
    """The metrics of turns that are not in `metrics` yet."""
    new_metrics: Callable[[], LoopMetrics]
    """Makes `metrics`."""
    metrics: LoopMetrics | None = None
    """The totals of the turns before those; None until somebody looks, or until there are many."""
    signal: threading.Event | None = None
    """Set while a turn that is to end still runs; None until somebody looks."""
    timers: TimerBook | None = None
    """The book in which tools and programs set the session's timers; None if nothing can wake the session."""
    destinations: Destinations | None = None
    """The destinations of the session's events; None where there are none."""
    find_telemetry: FindTelemetry | None = None
    """Asked at the start of each call; None traces nothing."""
    counts: SessionCounts = field(default_factory=SessionCounts)
    """The counters of the host in which the session is active."""
    gate: Gate | None = None
    """The gate that turns pass before they begin, in a host; None: there is none."""
    last_run_session: object = None
    """The session of the orchestrator that the agent ran in last and that its state comes from; None for none."""

    def goes_on(self, tool: Tool) -> bool:
        """True if this tool may run again after a kill without anybody being asked, from where it was."""
        return tool.idempotent or not tool.effects or (self.subagents is not None and self.subagents.keeps(tool))

    def add_metrics(self, turn: TurnMetrics) -> None:
        """Note the metrics of a turn."""
        self.measured.append(turn)
        if len(self.measured) > MEASURED_TURNS_MAX:
            self.all_metrics()

    def all_metrics(self) -> LoopMetrics:
        """The totals of all turns until now."""
        metrics = self.metrics = self.metrics or self.new_metrics()
        for turn in self.measured:
            metrics.add(turn)
        self.measured.clear()
        return metrics

    def cancel_signal(self) -> threading.Event:
        """`signal`, made when it is asked for. From any thread."""
        signal = self.signal = self.signal or threading.Event()
        if self.stop_request.ends_now:
            signal.set()
        return signal


class ActiveAgent(Struct, frozen=True):
    """The agent whose tools run."""

    context: Context
    settings: AgentSettings
    parts: AgentParts
    journal: ActorJournal
    conversation: ActorRef[ConversationMessage]


class TurnContext:
    """The context of one call, from turn start to answer: settings, components, limits and the means to stop it."""

    def __init__(
        self,
        settings: AgentSettings,
        parts: AgentParts,
        invocation: Invocation,
        clock: Callable[[], float],
        *,
        publish: PublishTurnEvent | None = None,
        is_turn: bool = True,
    ) -> None:
        """`clock` gives seconds, for measuring; `publish` takes the turn's events.

        With `is_turn=False` (an unrecorded tool call) hooks cannot edit the conversation, and stop requests do not
        apply.
        """
        self.settings = settings
        self.parts = parts
        self.invocation = invocation
        self.publish = publish
        self.tell_start = publish if invocation.in_step else None
        """Sends the event of a start to a caller that reads in step; None if nobody does."""
        read_model = parts.read_model if is_turn else None
        self.progress = (None if read_model is None else read_model.turn) or TurnProgress(0.0)
        self.hooks = TurnHooks(parts.hooks, parts.owner, invocation.invocation_state, read_model)
        self.stop = TurnStop(parts, invocation) if is_turn else TurnStop()
        self.meter = TurnMeter(clock)
        self.limits = limits_of(invocation, settings.limits)
        self.sizes = self.limits.sizes
        self.structured_output: object = None
        """The structured output that the caller asked for, once it is valid."""

    def check_destinations(self, names: Sequence[str]) -> None:
        """Check the destinations that a tool names for a timer. Errors: `Invalid`."""
        from repertory.actors.delivery_events import check_known  # loaded when used

        check_known(self.parts.destinations, names)

    def about_tools(self, interrupts: Sequence[Interrupt], uses: Sequence[ToolUse]) -> list[Interrupt]:
        """The questions of a step with these tool uses, as callers are given them."""
        own = self.settings
        return [*asked_about(interrupts, uses, own.session_id if own.durable or own.marks_questions else None)]


class TurnStop:
    """Tells one turn to end, and cancels what it is doing now.

    A message tells the agent of a stop request. The turn also looks for one itself at each place where it may end, so a
    request by a tool or hook takes effect before anything else happens, even if the message is still on its way.
    """

    def __init__(self, parts: AgentParts | None = None, invocation: Invocation | None = None) -> None:
        """The work can be stopped only by cancelling its task if both arguments are missing."""
        self._parts = parts
        self._theirs = None if invocation is None else invocation.cancel_signal
        self._signal: threading.Event | None = None
        self._stop: StopReason | None = None if invocation is None else invocation.stop
        self._scope: anyio.CancelScope | None = None
        self._grace_s = 0.0
        """The seconds in which what runs in the scope may end by itself."""
        self.after_tools: Callable[[StopReason], None] = self.ask
        """Called for requests that let running tools end first."""

    def ask(self, stop: StopReason) -> None:
        """End the turn now. The first reason counts."""
        self._stop = self._stop or stop
        self._set_signals()
        if self._scope is None:
            return
        # Only a person's stop gives tools a moment: a deadline is over, and nobody reads the results of an abandoned
        # turn.
        if self._grace_s and stop.reason == STOPPED and stop is not CANCELLED:
            # A tool that stops its own turn is in the middle of its code here, and returns its result within these
            # seconds.
            self._scope.deadline = min(self._scope.deadline, anyio.current_time() + self._grace_s)
        else:
            self._scope.cancel()

    def reason(self) -> StopReason | None:
        """The reason to end the turn; None to go on. Takes a waiting stop request first."""
        parts = self._parts
        if parts is None:
            return self._stop
        wish = parts.stop_request.take()
        if wish is not None:
            stop, after_tools = wish
            (self.after_tools if after_tools else self.ask)(stop)
        ours, theirs = parts.signal, self._theirs
        if (ours is not None and ours.is_set()) or (theirs is not None and theirs.is_set()):
            self.ask(STOPPED_BY_CALLER)
        # Again at each look: a tool may have asked for the signal since.
        if self._stop is not None:
            self._set_signals()
        return self._stop

    def _set_signals(self) -> None:
        if self._parts is not None:
            self._parts.cancel_signal().set()
        if self._signal is not None:
            self._signal.set()

    def signal(self) -> threading.Event:
        """Set when the turn is to end, and then for ever: a tool that was left behind in a thread still sees it. From
        any thread. A tool that reads it gets `WATCHED_S` to end by itself.
        """
        signal = self._signal = self._signal or threading.Event()
        self._grace_s = WATCHED_S
        if self._stop is not None or (self._parts is not None and self._parts.stop_request.ends_now):
            signal.set()
        return signal

    def tools_scope(self) -> anyio.CancelScope:
        """A scope that is cancelled soon after the turn is told to end; cancelled already if it has been."""
        # Not `_cut_short`: within this scope tools have a grace period.
        self._scope, self._grace_s = anyio.CancelScope(), UNWATCHED_S
        if self.reason() is not None:
            self._scope.cancel()
        return self._scope

    async def run_unless_stopped(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """The result of `work`; None if the turn was told to end before or during it, which cancels it."""
        return None if self.reason() is not None else await self._cut_short(work)

    async def run_always(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Run clean-up work as `run_unless_stopped` runs others, but also if the turn was told to end before."""
        return await (work() if self.reason() is not None else self._cut_short(work))

    async def _cut_short(self, work: Callable[[], Awaitable[T]]) -> T | None:
        # A model's call or a hook has nothing to bring to an end: it is cut at once.
        self._grace_s = 0.0
        with anyio.CancelScope() as self._scope:
            return await work()
        return None


class TurnMeter:
    """Counts the steps and tools of one turn, and its time since it was made."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds; only differences matter."""
        self.clock = clock
        self._began = self._asked = clock()
        self.attempts = 0
        """Model calls since the last answer that counted."""
        self._cycles: list[StepMetrics] = []
        self._tools: dict[str, list[float]] = {}
        self.left_out: dict[str, str] = {}
        """Injections that were left out of model calls, by name, with the reason."""

    def asking(self) -> None:
        if not self.attempts:
            self._asked = self.clock()
        self.attempts += 1

    def answered(self, answer: Answer) -> None:
        """Count an answer that was not thrown away."""
        duration_s = self.clock() - self._asked
        self._cycles.append(StepMetrics(answer.usage, answer.latency_ms or 0.0, duration_s, self.attempts))
        self.attempts = 0

    def ran(self, name: str, result: ToolResult, duration_s: float) -> None:
        counts = self._tools.setdefault(name, [0, 0, 0.0])
        counts[0] += 1
        counts[1] += result.get("status") == "error"
        counts[2] += duration_s

    def metrics(self) -> TurnMetrics:
        tools = {
            name: ToolMetrics(call_count=int(calls), error_count=int(errors), total_time=total)
            for name, (calls, errors, total) in self._tools.items()
        }
        duration_s = self.clock() - self._began
        left_out = self.left_out.copy()
        return TurnMetrics(cycles=tuple(self._cycles), tool_metrics=tools, duration_s=duration_s, left_out=left_out)


class TurnRecord:
    """Writes one turn's messages and redactions: through the hooks, to the journal and to the conversation manager.

    Not an actor: it belongs to the turn's driver.
    """

    def __init__(self, turn: TurnContext, journal: ActorJournal, conversation: ActorRef[ConversationMessage]) -> None:
        self._turn = turn
        self._settings = turn.settings
        self._read_model = turn.parts.read_model
        self._conversation = conversation
        self._token = turn.invocation.idempotency_token
        """The idempotency token, stored with the turn's first message."""
        self.journal = journal
        self.wrote = False
        """True once the journal has something of the turn."""
        self._number: int | None = None
        """The turn's number, from its first message on."""
        self._beginning = True
        """True until the model is asked or a tool runs."""
        self._opened_again = False
        # The header lets the span of a call after a crash link to this one; a conversation in memory outlives no
        # process.
        self._trace: CallTrace | None = trace_here() if turn.settings.durable else None
        self._tells: Sequence[str] = ()
        """The ids of the late results that the turn's first message of the user tells."""
        self.called_by: str | None = None
        """The token of the call, which may go on with a turn of another token."""
        self._steered: list[tuple[str, ContentBlock]] = []
        """The ids of late results that were added to the turn, each with a block of it."""
        self._joining: list[tuple[str, ContentBlock]] = []
        """The tokens of calls that were added to the turn, each with a block of its prompt."""
        self._announced: dict[int, tuple[Message, Message]] = {}
        """The turn's first messages, by identity, with the hooks' edits, so that hooks are told once even if the turn
        begins again.
        """
        self.runs: BackgroundRunsPort | None = None
        """The agent's runs in the background; None where there are none."""
        self.open_runs: Callable[[], Detaches | None] | None = None
        """Gives the agent's runs in the background, which begin with the first one; None where there can be none."""
        self.taking: Taking | None = None
        """The commit that takes the session, until it is known to be owned."""

    @property
    def publish(self) -> PublishTurnEvent | None:
        """Sends one event of the turn to its caller; None if nobody reads events."""
        return self._turn.publish

    def asked(self, interrupts: Sequence[Interrupt]) -> list[Interrupt]:
        """The questions about the tools of the last message, as callers are given them."""
        last = self.journal.fold.last_message
        return self._turn.about_tools(interrupts, [] if last is None else [*tool_uses(last)])

    async def append(self, message: Message) -> None:
        """Record a message, with the edits of hooks. Errors: those of guards and of the store."""
        _, edited = self._announced.get(id(message), (message, None))
        is_announced = edited is not None
        if edited is None:
            edited = self._with_tracking_id(message) if self._settings.tracks_messages else message
            try:
                if MessageAddedEvent in self._turn.hooks.listened:
                    edited = await self._turn.hooks.message_added(edited)
            except RepertoryError:
                if any(tool_results(message)):  # Tool uses must be answered, even if a guard refuses the results.
                    self._record(_withheld(message))
                raise
        content = message["content"]
        # By the original's blocks: hooks may have replaced the message, and the blocks by which calls are known are in
        # the original.
        reported = _in(content, self._steered) if self._steered else ()
        self._record(
            deferrals.naming_results(edited, reported) if reported else edited,
            _in(content, self._joining) if self._joining else (),
        )
        if reported:
            self.journal.tell_results(reported)
        if self._beginning:
            # The message is held with it: an `id` of a message that was freed could be another one's.
            self._announced[id(message)] = message, edited
        # The beginning of a turn is committed once, by `begin`.
        elif self._settings.durability == "strict":
            await self.journal.commit()
        if self._turn.publish is not None and not is_announced:
            await self._turn.publish({"message": copy_message(edited)})

    def _with_tracking_id(self, message: Message) -> Message:
        settings = self._settings
        origin = (settings.session_id, settings.agent_id, self.journal.fold.last_message_seq, self.journal.wall())
        return with_tracking_id(message, repr(origin))

    async def state_again(
        self, messages: Sequence[Message], asking: Message, starts: Callable[[], Iterable[Record]]
    ) -> None:
        """Record how a turn continues whose tools have an unknown outcome, as a crash would have left it: all or
        nothing. `asking` asks for these tools, and `starts` gives the records behind it. Errors: those of guards, with
        nothing recorded.
        """
        announced = [await self._turn.hooks.message_added(message) for message in (*messages, asking)]
        for message in announced:
            self._record(message)
        for started in starts():
            self.journal.add(started)
        if self._turn.publish is not None:
            for message in announced:
                await self._turn.publish({"message": copy_message(message)})

    async def with_results(self, prompt: UserMessages) -> UserMessages:
        """The prompt with the late results that have come, if the turn can begin with them."""
        self.journal.expire_deferred()
        fold, due = self.journal.fold, self._turn.invocation.due
        # A message of its own only behind an answer: behind an open tool use it would leave that use without a result.
        alone = fold.last_message is None or is_answer(fold.last_message)
        alone = alone or (isinstance(due, Telling) and due.id in fold.came)
        ids = deferrals.next_reported(fold)
        came = [fold.came[each] for each in ids]
        if not came or deferrals.with_results(prompt.messages, came, alone=alone) is None:
            return prompt
        # Asked first without hooks whether the message can be made at all: hooks may have effects, and a result is to
        # pass them once.
        looked_at = [await self._past_hooks(each) for each in came]
        self._tells = ids
        return UserMessages(messages=deferrals.with_results(prompt.messages, looked_at, alone=alone) or ())

    async def _past_hooks(self, came: DeferredResult) -> DeferredResult:
        """A late result as hooks about tool results leave it."""
        if came.ran:  # They have seen it where the tool ran.
            return came
        use_id, recent = came.result["toolUseId"], self.journal.fold.shown.recent
        use: ToolUse = {"toolUseId": use_id, "name": came.name, "input": {}}
        use = next((one for _, asked in recent for one in tool_uses(asked) if one["toolUseId"] == use_id), use)
        ended = ToolEnded(tool=self._turn.parts.tools.get(came.name), use=copy_use(use), result=came.result)
        return structs.replace(came, result=await self._turn.hooks.late_result(ended))

    def steered(self, deferred: str, content: Sequence[ContentBlock]) -> None:
        """Note a late result that was added to the turn: the message that holds its first block tells it."""
        self._steered.append((deferred, content[0]))

    def joins(self, token: str, content: Sequence[ContentBlock]) -> None:
        """The call of this token was added to the turn: the message that holds its first block carries the token."""
        self._joining.append((token, content[0]))

    @property
    def joins_as(self) -> tuple[str, ...]:
        """The token of the call, where it goes on with a turn of another one."""
        return () if self.called_by in (None, self._token) else (self.called_by,)

    def _record(self, message: Message, joined: Sequence[str] = ()) -> None:
        """`joined`: the tokens of the calls of which it says something."""
        fold = self.journal.fold
        # A filler answers the turn before, which was cut off, since providers refuse two messages of the user in a row;
        # so it has that turn's number.
        closes = not self.wrote and fold.turns > 0 and is_filler(message)  # It ends the turn before.
        if self._trace is not None and not closes:
            message = with_traceparent(message, self._trace.traceparent)
        token = None if closes else self._token
        if token is not None:  # It begins, or goes on: then all its tokens stand here, where the next opening reads.
            callers = () if self.called_by is None else (self.called_by,)
            # A dict keeps order, and each token once.
            tokens = dict.fromkeys((*fold.turn_tokens.named_with(token), *callers, *joined))
            joined = [other for other in tokens if other != token]
        record = MessageAdded(
            at=self.journal.wall(),
            message=message,
            turn=(fold.turns + 1 if self._number is None else self._number) - closes,
            index=fold.message_count,
            idempotency_token=token,
            joined=tuple(joined),
        )
        self.journal.add(record)
        if joined and self._turn.progress.token is None:
            self._turn.progress.token = joined[0]
        due = self._turn.invocation.due
        if record.idempotency_token is not None and isinstance(due, Timer):
            self.journal.fire(due)  # In the commit that has its prompt.
            if self._turn.parts.destinations is not None:
                self.happened(Happened(event="timer", seq=self.journal.fold.last_message_seq, facts={"due_at": due.at}))
        if self._tells and not closes and message["role"] == "user":
            self.journal.tell_results(self._tells)  # In the commit of the message that tells them.
            # Once: the second message of the user in this turn tells something else.
            self._tells = ()
        if self._turn.invocation.deliver_to and not closes and self._number is None:
            # A restarted process knows the caller's wish from here alone.
            to = self._turn.invocation.deliver_to
            self.journal.add(DeliveriesChanged(at=record.at, to=to, turn=record.turn))
        self.wrote = True
        if not closes:
            # The token stands with the first message alone; the fold knows the turn's later ones by its number.
            self._number, self._token = record.turn, None

    # Before the model is asked.

    def begun(self) -> None:
        """Note that the turn has done something that cannot be taken back."""
        self._beginning = False
        self._announced.clear()

    async def begin(self) -> bool:
        """Check that this process still owns the session, before the turn first asks the model. True if so.

        If the last confirmation is older than `confirm_s`, the store is asked. In `strict`, the turn's first messages
        are stored first. False if another process has written meanwhile: the conversation has gone on, and nothing of
        the turn is recorded. Errors: `LeaseLost`, `SessionBusy`, `Unavailable`.
        """
        settings, journal = self._settings, self.journal
        stored = self.wrote and settings.durability == "strict"
        # Programs that know no leases may have added a message at any time, so the store is asked before nearly every
        # turn.
        confirm_s = _LOOK_S if settings.others_add else settings.confirm_s
        # The commit that takes the session also finds out what others have written.
        if self._beginning and self.wrote and not stored and journal.buffer.takes:
            self.taking = journal.take()
            return True
        moved = False
        if not self._beginning:
            pass
        # The session was opened in this very turn; asking for it once more could go on for ever in a busy one.
        elif self._opened_again and stored:
            await journal.commit()
        elif stored or journal.buffer.takes or (not self._opened_again and not journal.confirmed_within(confirm_s)):
            looks = stored and settings.others_add
            # Looked at before the prompt is stored: a stored prompt cannot be moved behind what others have added.
            moved = (looks and await journal.begin(stored=False)) or await journal.begin(stored=stored)
        if not moved:
            self.begun()
        return not moved

    async def settled(self) -> bool:
        """True if the session is owned, for which the turn waits. False: it begins again, or ends with an error; see
        `owned`.
        """
        taking, stop = self.taking, self._turn.stop
        if taking is not None and not taking.over:
            # A stop ends the wait for another owner, but not the commit: whether the prompt is stored has to be known.
            await stop.run_unless_stopped(taking.wait)
            if not taking.over:
                taking.give_up()
                await taking.wait()
        return taking is None or taking.owned

    async def owned(self) -> bool:
        """Do the same as `begin` after a step, once the session is owned, or is not. Errors: as `begin`."""
        if not await self.settled():
            taking, self.taking = self.taking, None
            if taking is not None and taking.error is not None:
                raise taking.error
            return False
        if self.taking is not None:
            self.taking = None
            self.begun()
        return True

    async def own_or_raise(self) -> None:
        """Start storing the turn's messages. After a pause, or with a full commit buffer, wait for the store first."""
        if self.taking is not None:
            return
        # Waits for the store when the buffer is full: otherwise a turn of many steps would gather rows without a bound
        # while it is down.
        if self.journal.full or not self.journal.confirmed_within(self._settings.confirm_s):
            await self.journal.prove()
        self.journal.hand_over()

    def begin_again(self) -> None:
        """Start over: the session was opened again, and its conversation has gone on meanwhile."""
        self._token, self._number = self._turn.invocation.idempotency_token, None
        self.wrote = False
        self._tells = ()
        self._opened_again = True

    # What the model is shown.

    async def decided(self, question: Ask[ModelView], again: Ask[ModelView]) -> ModelView:
        """The view to show the model. The turn waits for the decision on it, unless it is stopped."""
        stop, view = self._turn.stop, await self._ask_view(question)
        while view.undecided:
            await stop.run_unless_stopped(lambda: self._conversation.ask(Settle(), timeout_s=math.inf))
            if stop.reason():
                break
            # Not the first question again: that brings messages, which the conversation has by now.
            view = await self._ask_view(again)
        return view

    async def show_edits(self, *, ending: bool = False) -> Sequence[Message] | None:
        """Make the edits that callbacks did to `agent.messages` part of the turn. The new view; None without edits.

        What they appended becomes the last messages before the next model call; an `ending` turn has none.
        """
        # None in nearly every turn: no callback has read `agent.messages`.
        draft = self._read_model.draft
        if draft is None or not draft.edited:
            return None
        self._read_model.draft = None
        for message in () if ending else draft.take_appended():
            await self.append(message)
        view = await self._ask_view(EditWindow(added=self.journal.take_unshown(), draft=draft))
        # The same list again: a callback that edits for one call undoes its edit on the list that it holds.
        self._read_model.draft = Draft(self._read_model.messages(), before=draft.messages)
        return view.messages

    async def leave_out(self, messages: Sequence[Message], refusal: RefusedParts) -> None:
        """Show the model notes, from now on, in the place of what its service has refused."""
        added = self.journal.take_unshown()
        await self._ask_view(LeaveOut(added=added, visible=messages, instead=refusal.instead))

    async def name_manager(self) -> None:
        """Record the conversation manager in use with the first commit: the journal names another one."""
        await self._ask_view(NameManager(added=self.journal.take_unshown()))
        self._read_model.manager_changed = False

    async def _ask_view(self, question: Ask[ModelView]) -> ModelView:
        view = await self._conversation.ask(question, timeout_s=math.inf)
        for change in view.views:
            self.journal.add_view(change)
        if self.journal.pending_work is not None:
            self.journal.pending_work.note_summary(self.journal.wall() if view.ahead else None)
        return view

    async def redact(self, text: str) -> None:
        """Replace the user's last messages by `text` for good: at once for readers, and in the store with the next
        commit.
        """
        instead = {entry.seq: without_text(entry.message, text) for entry in self.journal.asked}
        if instead:
            self.journal.redact(instead)
            await self._conversation.ask(ReplaceWindow(instead=instead), timeout_s=math.inf)

    # At the end.

    def note_end(self, result: AgentResult) -> None:
        """Record to whom the answer or the questions of the turn are to be delivered. Called where events are."""
        fold, reason = self.journal.fold, str(result.stop_reason)
        if reason == "interrupt":
            self.happened(Happened(event="question", seq=fold.last_seq, about=fold.last_message_seq))
        elif reason != CANCELLED.reason:  # It was stopped by its caller, or is finished elsewhere.
            seq = 0 if result.message is None else fold.last_message_seq
            self.happened(Happened(event="answer", seq=seq, facts={"stop_reason": reason}))

    def happened(self, happened: Happened) -> None:
        """Record to whom an event of the turn is to be delivered. Called where events are delivered."""
        from repertory.actors.delivery_events import note_event  # loaded when used

        assert self._turn.parts.destinations is not None
        note_event(self.journal, self._turn.parts.destinations, happened, self._turn.invocation)

    async def mark(self, mark: MarkTurn) -> None:
        """Ask if the turn that has just ended is to be marked, and add the record if so. Does not fail."""
        number = self.journal.fold.turns + 1 if self._number is None else self._number
        turn = EndedTurn(turns=number, messages=self._read_model.messages(), state=self._turn.parts.state)
        record = await mark(turn)
        if record is not None:
            self.journal.add(record)


def _in(content: Sequence[ContentBlock], named: Sequence[tuple[str, ContentBlock]]) -> list[str]:
    return [name for name, block in named if any(one is block for one in content)]


def _withheld(message: Message) -> Message:
    """An error result for each tool result of a message that a guard refused."""
    results = [
        error_result(result["toolUseId"], "The result is withheld: a hook failed.") for result in tool_results(message)
    ]
    blocks: list[ContentBlock] = [{"toolResult": result} for result in results]
    return {"role": "user", "content": blocks}
