"""The messages that an agent or orchestrator accepts, and the call: its prompt, where its result goes, the caller's
context and budget.
"""

# `CallQueueActor` decides which call is served next. A call that a running turn waits for must not wait for that turn:
# it goes past the gate, and is refused where the turns in which it was made (`OPEN_TURNS`) form a circle. The steps of
# a turn run in the caller's context variables although the task is the session's (`in_context`). A call that its caller
# leaves is cut short only if nobody else waits for the same answer.

from __future__ import annotations

import contextvars
import logging
import math
import threading
import types
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    assert_never,
    cast,
)

import anyio
from anyio.lowlevel import current_token
from msgspec import Struct, field
from msgspec.structs import replace

from repertory.actors.between_turns import KeepProgress, RecordSummary, ReportPendingWork, SummarySettled
from repertory.actors.leases import Gate
from repertory.actors.stream_channel import StreamChannel
from repertory.backends.ports import OutputSchema, settings_of
from repertory.core.budget import Budget
from repertory.core.callers import CallerRules, check_named_by_callers
from repertory.core.deferral import Telling
from repertory.core.limits import NO_LIMITS, TurnLimits
from repertory.core.messages import ContentBlock, Prompt, ToolResult, ToolUse
from repertory.core.result import AgentResult, TurnEvent
from repertory.core.run_results import MultiAgentResult
from repertory.core.snapshots.fields import SnapshotFields
from repertory.core.timers import DueTimes, Timer
from repertory.core.turn import StopReason
from repertory.core.turn_log import START, Offset
from repertory.core.turns.turn_start import Busy, CallAsks, InterruptResponses, UserMessages, asks_with, read_prompt
from repertory.core.window.editing import MessagesEdit
from repertory.errors import Deadlock, LimitReached, RepertoryError
from repertory.logs import DEBUG, note
from repertory.runtime.actor import Actor, Context, SerialQueue
from repertory.runtime.message import ORIGIN, Ask, CallContext, Next, Stream, carry_on, refuse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repertory.backends.ports import Model
    from repertory.backends.telemetry_ports import CallTrace
    from repertory.core.messages import Usage
    from repertory.errors import AgentBusy, Unavailable
    from repertory.runtime.message import ReplySlot
    from repertory.runtime.ref import ActorRef


class Following(Struct, frozen=True, kw_only=True):
    """The caller reads the turn of its token from an offset on, begun now or before, here or in an earlier process."""

    after: Offset = START
    begins: bool = True
    """True to begin the turn if there is none of that token. Otherwise one that was cut short goes on."""
    detach: bool = False
    """True if a turn that this call has begun goes on when the caller leaves."""
    opened: Callable[[Callable[[Offset | None, bool], Any]], None] | None = None
    """Called with the function that gives a `TurnReader`, for a caller that reads the turn's log by itself, and is sent
    the end or error alone.
    """


DueTurn: TypeAlias = Timer | Telling
"""The cause of a turn that nobody calls for: a timer that is due, or results that have come."""


class Invocation(Struct, frozen=True, kw_only=True, eq=False):
    """A caller's request for a turn. Compared by identity, because the object also identifies the call."""

    prompt: Prompt
    busy: Busy | None = None
    """The conduct of the call while another turn runs; None: as the agent was built."""
    invocation_state: dict[str, Any] = {}
    """The caller's own dictionary, shared with tools and hooks. Its `request_state` comes back as `result.state`."""
    limits: TurnLimits = NO_LIMITS
    caller: CallerRules | None = None
    """The rules for a call from outside of the program, whose limits lift none of the agent's."""
    deadline: float = math.inf
    """The time at which the call fails, on the event loop's clock. Time spent in the queue counts."""
    idempotency_token: str | None = None
    """Identifies the turn: a call with the same token gets the same answer, and nothing runs twice."""
    output_schema: OutputSchema | None = None
    output_prompt: str | None = None
    """The message to a model that has answered without the structured output; None for the usual text."""
    stop: StopReason | None = None
    """The reason for which the call was cancelled before it began; None if it was not."""
    cancel_signal: threading.Event | None = None
    """The caller's own; when it is set, the turn ends."""
    budget: Budget | None = None
    """One budget for everything that is done for the call."""
    budget_owner: str | None = None
    """The name that budgets record spending under when the called agent has no id."""
    resume: bool | None = None
    """True continues an orchestrator's unfinished run, False does not; None continues it if the task is the same."""
    drop_interrupts: bool = False
    """Go on without the answers to open interrupts."""
    direct: ToolUse | None = None
    """A tool call made by the program itself, recorded, instead of a turn."""
    deliver_to: tuple[str, ...] = ()
    """Destinations that are told of the turn, besides those of the runtime: names and addresses."""
    due: DueTurn | None = None
    """The cause of a turn that the session begins by itself, so that nobody waits for the result; None for a call."""
    following: Following | None = None
    """The events get offsets, and are kept until the answer is; such a call has a token and is streamed."""
    in_step: bool = False
    """True if the turn waits until its caller has read what happened. It then also tells its starts."""
    while_reading: bool = False
    """True if the caller reads the events of another turn of this session, which waits for it to read on."""
    outer_ended: Callable[[], bool] = lambda: False
    """True if the tool call that has started the turn was ended for good, and not by a shutdown."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """The caller's context variables; hooks, tools and the model see them."""


def limits_of(invocation: Invocation, own: TurnLimits) -> TurnLimits:
    """The limits of a call to an agent whose `own` are these."""
    if invocation.limits is NO_LIMITS:  # The usual case.
        return own
    return invocation.limits.over(own) if invocation.caller is None else invocation.limits.within(own)


def callers_call(invocation: Invocation, rules: CallerRules, own: TurnLimits) -> Invocation:
    """The call under a caller's rules. Errors: `Invalid` and `TooLarge` for a prompt that callers may not send, and
    destinations that they may not name.
    """
    if invocation.deliver_to:
        check_named_by_callers(invocation.deliver_to, rules)
    made = replace(invocation, caller=rules)
    read_prompt(invocation.prompt, limits_of(made, own).sizes.prompt_bytes, rules)
    return made


CallResult: TypeAlias = AgentResult | MultiAgentResult
"""The result of an agent's turn or of an orchestrator's run."""


def note_turn(
    log: logging.Logger, outcome: AgentResult | RepertoryError, steps: int, duration_s: float, ids: Mapping[str, str]
) -> None:
    """Write the line at a turn's end."""
    fields = {"steps": steps, "duration_s": round(duration_s, 6)}
    if isinstance(outcome, AgentResult):
        note(log, DEBUG, "a turn has ended", reason=outcome.stop_reason, **fields, **ids)
    else:
        note(log, DEBUG, "a turn has failed", outcome, **fields, **ids)


def request_state(invocation: Invocation) -> dict[str, Any]:
    """The part of the invocation state that the caller gets back; empty if there is none."""
    state = invocation.invocation_state.get("request_state")
    return cast("dict[str, Any]", state) if isinstance(state, dict) else {}


READS_IT = (
    "the call comes from the task that reads the running turn, which waits for it to read on: close that stream first"
    " (contextlib.aclosing), or make the call in a task of its own"
)


class ResponseChannel(Protocol):
    """The channel by which a call's events and result reach its caller."""

    @property
    def publish(self) -> Callable[[TurnEvent], Awaitable[None]] | None:
        """Sends one event of the running turn; None if no caller reads events."""
        ...

    def goes_on_alone(self) -> bool:
        """True if the call goes on although its own caller has gone: others read it, or it needs nobody."""
        ...

    def wait_no_more(self) -> None:
        """Have the turn wait for nobody who reads its events: what they have not read is kept for them."""
        ...

    async def succeed(self, result: CallResult) -> None: ...

    def fail(self, error: RepertoryError) -> None: ...


class ReplyChannel:
    """The channel of a caller that asked and waits for one reply."""

    publish = None

    def __init__(self, context: Context) -> None:
        self._slot = context.defer()

    def goes_on_alone(self) -> bool:
        return False

    def wait_no_more(self) -> None:
        """Does nothing: it tells no events."""

    async def succeed(self, result: CallResult) -> None:
        self._slot.reply(result)

    def fail(self, error: RepertoryError) -> None:
        self._slot.fail(error)


class Call(Struct, kw_only=True, eq=False):
    """A queued or running call. `shared` are calls of the same token, or steered into this one: they get its result.
    `left`: it runs and is cut short, because its caller has gone; how it ends is no answer to another call.
    """

    invocation: Invocation
    prompt: UserMessages | InterruptResponses
    channel: ResponseChannel
    at: float = -math.inf
    """The time at which the call was sent, on the event loop's clock; minus infinity if nobody waits for it."""
    token: str | None = None
    """The token of the call's turn, once it runs: a call without one may go on with a turn that has one."""
    shared: list[Call] = []
    left: bool = False

    @property
    def asks(self) -> CallAsks:
        """The content of the call; results that the session itself tells are a prompt."""
        due = self.invocation.due
        return "prompt" if due is not None and due.token is not None else asks_with(self.prompt)

    def take_prompt(self, prompt: UserMessages | InterruptResponses) -> None:
        """Begin the turn with the prompt of another call for it, if this queued one has none."""
        if asks_with(self.prompt) == "nothing":
            self.prompt = prompt

    @property
    def is_inner(self) -> bool:
        """True if a turn that runs, here or in another process, waits for it: it is part of that turn."""
        context = self.invocation.context
        return self.invocation.due is None and bool(context.get(OUTER_TURNS) or turns_around(context))

    @property
    def runs_for_another(self) -> bool:
        """True if the turn of this call was asked for by another turn, here or in another process, and may be asked for
        again: somebody who has stopped that one for good does not.
        """
        # Its own turn is one of them.
        return len(names_of_turns(self.invocation.context)) > 1 and not self.invocation.outer_ended()

    def sharing(self) -> Iterator[Call]:
        """The call itself, and every one that gets its result."""
        yield self
        for call in self.shared:
            yield from call.sharing()

    def set_back(self, undelivered: Sequence[ContentBlock]) -> list[Call]:
        """Remove and return the calls whose steering came too late for any step. They must run on their own."""
        late = [call for call in self.shared if call.owns_any_of(undelivered)]
        self.shared = [call for call in self.shared if call not in late]
        return late

    def owns_any_of(self, blocks: Sequence[ContentBlock]) -> bool:
        """True if one of these blocks, by identity, belongs to this call."""
        if isinstance(self.prompt, InterruptResponses):
            return False
        own = [block for message in self.prompt.messages for block in message["content"]]
        # By identity: two callers may say the same words.
        return any(block is mine for block in blocks for mine in own)

    def fail(self, error: RepertoryError) -> None:
        """Give the error to the caller and to every caller that shares the turn."""
        for call in self.sharing():
            call.channel.fail(error)

    async def end(self, outcome: CallResult | RepertoryError) -> None:
        """Give the result or the error to the caller and to every caller that shares the turn."""
        if isinstance(outcome, RepertoryError):
            self.fail(outcome)
            return
        for call in self.sharing():
            await call.channel.succeed(outcome)


class Invoke(Struct, Ask[AgentResult], frozen=True, kw_only=True):
    """Run a turn and answer with its result."""

    invocation: Invocation


class InvokeStreaming(Struct, Stream[TurnEvent], frozen=True, kw_only=True):
    """Run a turn and send its events. If the reader leaves the stream, the turn is cancelled."""

    invocation: Invocation


class ShowSnapshot(Struct, Ask[None], frozen=True, kw_only=True):
    """Go on from a snapshot, or from messages that a program edited; answered when that is durable. It waits for the
    running turn, not for the queued ones.
    """

    wanted: SnapshotFields | MessagesEdit


class CancelTurn(Struct, frozen=True, kw_only=True):
    """End the running turn early as the stop request says, unless the turn has taken the request already."""


class TimeUp(Struct, frozen=True, kw_only=True):
    """A call's deadline has passed."""

    invocation: Invocation


class LookAtSignal(Struct, frozen=True, kw_only=True):
    """The caller's `cancel_signal` may be set by now."""

    invocation: Invocation


class OutsideWait(Struct, eq=False, kw_only=True):
    """The wait of a call that comes here only when the running one has ended. Compared by identity."""

    scope: anyio.CancelScope
    """The scope that is cancelled to refuse the call, with `error`."""
    error: RepertoryError | None = None
    over: bool = False


class LookAtWaits(Struct, frozen=True):
    """The running turn may wait for a call that waits for it."""

    outside: OutsideWait | None = None
    """A further call's wait for the running turn, to be looked at from now on."""


class Abandon(Struct, frozen=True, kw_only=True):
    """The caller of this invocation has gone: stop its turn, or do not begin it."""

    invocation: Invocation


class FinishTurns(Struct, Ask[None], frozen=True, kw_only=True):
    """Accept no more turns; answer when the running and the queued ones are over, and the state that was set is handed
    over.
    """

    at_once: bool = False
    """True to stop the running turn, and refuse the queued calls."""
    more_may_come: bool = False
    """True to go on accepting turns."""


class TimersDue(Struct, frozen=True, kw_only=True):
    """A timer may be due by now, or a tool has waited long enough for its result."""


class ServeTimers(Struct, Ask[None], frozen=True, kw_only=True):
    """Run the turns that are due: of timers, and of results that have come later; answered when they are over, or must
    wait.
    """


class DeliveriesDue(Struct, frozen=True, kw_only=True):
    """A delivery may be due by now."""


class ServeDeliveries(Struct, Ask[None], frozen=True, kw_only=True):
    """Make the deliveries that are due; answered when none is."""


class CompleteTool(Struct, Ask[bool], frozen=True, kw_only=True):
    """The result of a tool that waits for it; answered when it is durable. False if it has one already. Errors: `Gone`
    when nothing waits under this id; those of the store.
    """

    id: str
    result: ToolResult
    """The result; its tool use id does not count."""
    starts: bool = True
    """True if a turn begins to tell the model the result."""
    cancels: bool = False
    """True to cut a tool short that runs in the background: its end is its result, and `result` of other tools."""


class ChangeTimers(Struct, Ask[bool], frozen=True, kw_only=True, tag_field="what", tag="change timers"):
    """Set a timer, of whose turns `deliver_to` is told, or cancel it if it has no due times; answered when that is
    durable. False if there was none to cancel.
    """

    timer_id: str
    prompt: str = ""
    due: DueTimes | None = None
    deliver_to: tuple[str, ...] = ()


CallMessage: TypeAlias = Invoke | InvokeStreaming | TimeUp | Abandon | FinishTurns
TimerMessage: TypeAlias = TimersDue | ServeTimers | ChangeTimers
AgentMessage: TypeAlias = (
    CallMessage
    | CancelTurn
    | LookAtSignal
    | LookAtWaits
    | ShowSnapshot
    | KeepProgress
    | ReportPendingWork
    | RecordSummary
    | SummarySettled
    | TimerMessage
    | CompleteTool
    | DeliveriesDue
    | ServeDeliveries
)


BUDGETS: ContextVar[tuple[Budget, ...]] = ContextVar("repertory_budgets", default=())
"""The budgets that work here counts towards, each once, the outermost call's first. Work after an answer counts towards
the budgets of the call that it is done for.
"""


def trace_here() -> CallTrace | None:
    """The trace of the call that the running code works for; None where nobody traces.

    It travels as the trace of the runtime's messages: what a call causes in other actors finds it too.
    """
    return cast("CallTrace | None", ORIGIN.get().trace)


BUDGET_OWNER: ContextVar[str | None] = ContextVar("repertory_payer", default=None)
"""The budget owner of the running turn or run when it has no id of its own; None if there is none."""


class Spending:
    """One spender (agent, summary, extraction) that asks models on the current budgets."""

    __slots__ = ("_who", "budgets")

    def __init__(self, who: str) -> None:
        """`who`: the name in `Budget.by`."""
        self._who = who
        # Read once: the budgets of a turn are those of its call, also for work that goes on behind the answer.
        self.budgets = BUDGETS.get()

    def reached(self, model: Model) -> str | None:
        """The stop reason of the first budget that is used up; None if the model may be asked.

        Errors: `Invalid` for a model without a price, when a budget limits the cost.
        """
        for budget in self.budgets:
            reason = budget.reached(_id_of(model))
            if reason is not None:
                return reason
        return None

    def check(self, model: Model) -> None:
        """Errors: `LimitReached` when a budget is used up; those of `reached`."""
        reason = self.reached(model)
        if reason is not None:
            raise LimitReached("the budget of the call is used up", who=self._who, reason=reason)

    def charge(self, model: Model, usage: Usage) -> None:
        for budget in self.budgets:
            budget.charge(self._who, _id_of(model), usage)


def _id_of(model: Model) -> str:
    return str(settings_of(model).get("model_id", ""))


def refusals(budgets: Iterable[Budget]) -> int:
    """The number of model calls that these budgets have refused. If it grows during some work, the work may be
    incomplete.
    """
    return sum(budget.refused for budget in budgets)


T = TypeVar("T")


class OpenTurn(Struct, kw_only=True, eq=False):
    """A turn that the running code works for."""

    agent: ActorRef[object]
    call: Invocation
    """The call, compared by identity."""
    session_id: str = ""
    """The stored id of the session."""
    budget: Budget | None = None
    inside: list[tuple[CallQueueActor[Any, Any], Invocation]] = []
    """The calls that were made in it, with those that serve them."""
    inside_max: int = 64
    """The number of calls that are noted before those that are over are forgotten."""
    over: bool = False
    work: object = None
    """The coroutine that runs the turn, until the turn is over."""

    @property
    def name(self) -> str:
        """The name of the turn, the same in every process."""
        return f"{self.agent.path} {self.call.idempotency_token}"

    def note_call(self, actor: CallQueueActor[Any, Any], call: Invocation) -> None:
        """Note a call that was made in the turn."""
        # Forgotten now and then and not at each end: looking for one costs as much as there are.
        if len(self.inside) >= self.inside_max:
            self.inside = [(other, made) for other, made in self.inside if other.serves(made)]
            self.inside_max = max(2 * len(self.inside), self.inside_max)
        self.inside.append((actor, call))


OPEN_TURNS: ContextVar[tuple[OpenTurn, ...]] = ContextVar("repertory_open_turns", default=())
"""The turns that the running code was called in, the innermost last; those that are over count no more."""
OUTER_TURNS: ContextVar[tuple[str, ...]] = ContextVar("repertory_outer_turns", default=())
"""The names of such turns in other processes, the innermost last."""

TURN_DEPTH_MAX = 32
"""The number of turns that may stand one in another: agents as tools of agents, and calls that tools make. Every event
of the innermost one passes through all of them, so the work grows with the square of the depth.
"""


def turns_around(context: contextvars.Context) -> list[OpenTurn]:
    """The turns of this process in which a call was made, the innermost last."""
    return [turn for turn in context.get(OPEN_TURNS, ()) if not turn.over]


def names_of_turns(context: contextvars.Context) -> list[str]:
    """The names of all turns in which a call was made, for another process."""
    return [*context.get(OUTER_TURNS, ()), *(turn.name for turn in turns_around(context))]


class Work(NamedTuple):
    """The purpose of the running code."""

    session_id: str = ""
    """The stored id of the session; empty if there is none."""
    background: bool = False
    """True if nobody waits for it."""
    again: bool = False
    """True if its caller makes a call again that has failed and may succeed later."""


_NO_WORK = Work()
WORK: ContextVar[Work] = ContextVar("repertory_work", default=_NO_WORK)
"""Work behind turns, and the manner of the calls that are made here."""


@contextmanager
def background_work(session_id: str | None = None, *, again: bool = False) -> Generator[None]:
    """Calls that are made in the block are work in the background: where models have quotas, interactive turns go
    first.

    Args:
        session_id: The stored id of the session that is worked for. None leaves it as it is.
        again: True if you make a call again that fails with a `Retryable` error: it delivers no `failure` then.

    Examples:
        >>> from repertory import Agent, OfflineModel, background_work
        >>> agent = Agent(OfflineModel())
        >>> with background_work():
        ...     reply = agent("Sort the mail.")
    """
    before = WORK.get()
    WORK.set(Work(before.session_id if session_id is None else session_id, background=True, again=again))
    try:
        yield
    finally:
        WORK.set(before)


def work_here() -> Work:
    """The work of the running code: of the innermost turn, and in the background if any turn around it is."""
    here, turns = WORK.get(), [turn for turn in OPEN_TURNS.get() if not turn.over]
    session_id = turns[-1].session_id if turns else here.session_id
    # Calls that a turn makes are its own: what becomes of an error of theirs is for its tools.
    again = here.again and not turns
    return Work(session_id, here.background or any(turn.call.due is not None for turn in turns), again)


_DEADLINE: ContextVar[tuple[object, float]] = ContextVar("repertory_deadline", default=(None, math.inf))
"""An event loop, and the earliest deadline, on its clock, of the calls above that were made in it."""


def deadline() -> float:
    """The earliest deadline of the calls that the running code works for, on the event loop's clock."""
    loop, at = _DEADLINE.get()
    # Clocks of two event loops have nothing in common, and sync code runs a loop of its own.
    return at if at < math.inf and loop is current_token().native_token else math.inf


# A session's turns run in one long-lived task. Without this, tools, hooks and models would see the context variables of
# the task that opened the session, not those of the call, such as a request id, a tenant or a span.
@types.coroutine
def in_context(
    context: contextvars.Context, turn: OpenTurn | None, work: Coroutine[object, object, T]
) -> Generator[object, object, T]:
    """Do the `work` of a turn so that each of its steps, and every task that it starts, runs in `context`. `turn`: None
    for the work of a tool that a turn of this context has put in the background.

    No other task may use `context` meanwhile. The runtime's own variables of the running task stay as they are; only
    the trace is the caller's, if it has one.
    """
    before = context.get(OPEN_TURNS, ())
    # Within the caller's context and not around it: tasks that the turn starts copy it.
    context.run(_speak_for, ORIGIN.get(), turn)
    step: Callable[[], object] = partial(work.send, None)
    while True:
        try:
            # Each step by itself: a coroutine runs in the context of whoever resumes it, and the task that does so is
            # the session's.
            waits_for = context.run(step)
        except StopIteration as done:
            context.run(OPEN_TURNS.set, before)  # The turn holds the context: otherwise they would be a cycle.
            return done.value
        try:
            step = partial(work.send, (yield waits_for))
        except BaseException as error:  # noqa: BLE001 - An exception thrown in here is for the work.
            # Cancellation too: the work must see it where it waits.
            step = partial(work.throw, error)


def _speak_for(here: CallContext, turn: OpenTurn | None) -> None:
    """Set, in the caller's context, the context variables of the turn and of the job that runs here."""
    if turn is None:  # It may outlive the call and its deadline, and its asks are those of its own job.
        ORIGIN.set(here)
        _DEADLINE.set((None, math.inf))
        return
    # The job's place in the wait-for graph with the caller's trace: asks of the turn are the agent's own.
    ORIGIN.set(CallContext(here.owner, here.waits, ORIGIN.get().trace or here.trace))
    OPEN_TURNS.set((*(outer for outer in OPEN_TURNS.get() if not outer.over), turn))
    BUDGET_OWNER.set(turn.call.budget_owner)
    if turn.call.deadline < deadline():
        _DEADLINE.set((current_token().native_token, turn.call.deadline))
    # Each once, or a call within a call would be charged twice.
    if turn.budget is not None and turn.budget not in BUDGETS.get():
        BUDGETS.set((*BUDGETS.get(), turn.budget))


# The call queue of agents and orchestrators: one job serves one call at a time, and the rest wait.

M = TypeVar("M")
"""The messages of the actor."""
L = TypeVar("L")
"""The actor's loadable state, such as a snapshot."""
R = TypeVar("R", AgentResult, MultiAgentResult)
"""The result of a call."""


class CallQueueActor(Actor[M], ABC, Generic[M, L]):
    """Serves one call at a time. Something to load is loaded before the next call."""

    rests: ClassVar[bool] = True
    _gate: Gate | None = None
    """The gate that each call passes before it is served."""
    _gated_session = ""
    """The session whose turns pass there."""
    _at_gate: anyio.CancelScope | None = None
    """The wait there, for the first of the calls that wait, whichever that is in the end."""

    def __init__(self, jobs: str) -> None:
        """`jobs`: the name of the job that serves calls."""
        self._waiting: list[Call] = []
        self._loads: list[tuple[L, ReplySlot[None]]] = []
        self._running: Call | None = None
        self._turn: OpenTurn | None = None
        """The turn of the running call."""
        self._queue = SerialQueue(jobs, self._next)
        self._refusing = False

    @abstractmethod
    async def _serve(self, call: Call) -> None:
        """Serve a call and give its result or error to the caller. Errors meant for the caller are not raised."""

    @abstractmethod
    async def _load(self, wanted: L, slot: ReplySlot[None]) -> None:
        """Load this, and answer when it is durable."""

    @abstractmethod
    def _take(self, invocation: Invocation, channel: type[ReplyChannel] | type[StreamChannel]) -> Next:
        """Queue the call, or answer or refuse it now."""

    @abstractmethod
    def _cancel(self) -> None:
        """End the running call early, if one runs."""

    @abstractmethod
    def _finish(self, at_once: bool) -> Next:
        """Handle `FinishTurns`."""

    @abstractmethod
    def _closed(self) -> Unavailable:
        """The error for callers when no more calls are accepted."""

    @abstractmethod
    def _no_time(self) -> AgentBusy:
        """The error for a caller whose deadline passes before its call is served."""

    def _handle_call(self, message: CallMessage) -> Next:
        match message:
            case Invoke() | InvokeStreaming() if self._refusing:
                return refuse(self._closed())
            case Invoke(invocation=invocation) | InvokeStreaming(invocation=invocation):
                turns = turns_around(invocation.context)
                depth = len(turns) + len(invocation.context.get(OUTER_TURNS, ()))
                if depth >= TURN_DEPTH_MAX:
                    text = "too many turns stand one in another: agents that ask each other in a circle never end"
                    return refuse(LimitReached(text, turns_max=TURN_DEPTH_MAX))
                # Noted at the outer turn, which is asked for whom it waits when somebody else waits behind it
                # (`_circle`).
                if turns:
                    turns[-1].note_call(self, invocation)
                return self._take(invocation, ReplyChannel if isinstance(message, Invoke) else StreamChannel)
            case TimeUp(invocation=invocation):
                self._time_up(invocation)
            case Abandon(invocation=invocation):
                self._abandon(invocation)
            case FinishTurns(at_once=at_once, more_may_come=more_may_come):
                if self._running is not None:  # It is to end, whether somebody reads its events or not.
                    self._running.channel.wait_no_more()
                self._refusing = self._refusing or not more_may_come
                return self._finish(at_once)
            case _:
                assert_never(message)
        return carry_on()

    async def _outcome(self, call: Call, work: Coroutine[object, object, R]) -> R | RepertoryError:
        """The result of the call's work, which is done in the caller's context, or its error."""
        invocation = call.invocation
        if self._refusing:
            call.channel.wait_no_more()
        ref, session_id, budget = self.context.self_ref, self._gated_session, invocation.budget
        turn = self._turn = OpenTurn(agent=ref, call=invocation, session_id=session_id, budget=budget, work=work)
        try:
            return await in_context(invocation.context, turn, work)
        except RepertoryError as error:
            return error
        finally:
            # All of it: the turn lives on in the context variables of tasks that it has started, and would hold the
            # calls and their results.
            turn.over, turn.inside, turn.work, self._turn = True, [], None, None

    def _time_up(self, invocation: Invocation) -> None:
        """Refuse a call that is still queued, or that shares another call's turn."""
        if (call := self._withdraw(invocation)) is not None:
            call.channel.fail(self._no_time())

    def _abandon(self, invocation: Invocation) -> None:
        """The caller has gone: end its running call, unless other calls share it, or remove it from the queue."""
        running = self._running
        calls = [call for call in (running, *self._waiting) if call is not None and call.invocation is invocation]
        # Other readers follow the turn, or it was begun to go on without any.
        if any(call.channel.goes_on_alone() for call in calls):
            return
        if running is None or running.invocation is not invocation:
            self._withdraw(invocation)
        # Others wait for the same answer.
        elif not running.shared:
            running.left = True
            self._cancel()

    def _next(self) -> Awaitable[None] | None:
        # Before calls that wait: the program that has loaded a snapshot expects the next call to see it.
        if self._loads:
            return self._load(*self._loads.pop(0))
        if self._gate is not None and self._gate.limited and self._waiting:
            return self._serve_behind(self._gate)
        return self._serve(self._waiting.pop(0)) if self._waiting else None

    async def _serve_behind(self, gate: Gate) -> None:
        """Serve the next call, when the gate lets it begin. A call of which a turn is waiting does not stand there: the
        turn has passed the gate, and would wait for itself.
        """
        # First, and past the gate: the turn that waits for it holds a place there, so with few places nobody would go
        # on.
        inner = next((call for call in self._waiting if call.is_inner), None)
        if inner is not None:
            leave = await gate.enter(self._gated_session, inner=True)
            try:
                self._waiting.remove(inner)
                return await self._serve(inner)
            finally:
                leave(False)
        entered: Callable[[bool], None] | None = None
        # Cancelled when another call is to go first (`_look_again`); the waiting calls stay in their list.
        with anyio.CancelScope() as self._at_gate:
            try:
                entered = await gate.enter(self._gated_session)
            except RepertoryError as error:
                if self._waiting:
                    self._refuse(self._waiting.pop(0), error)
        self._at_gate = None
        # Cancelled, or refused: `SerialQueue` asks for the next item again.
        if entered is None:
            return None
        # Its call may have left while it stood at the gate.
        unused = not self._waiting
        try:
            if not unused:
                await self._serve(self._waiting.pop(0))
        finally:
            entered(unused)

    def _look_again(self) -> None:
        """Look again at which call is next: one goes before the call that waits at the gate, or none does."""
        if self._at_gate is not None:
            self._at_gate.cancel()

    def _refuse(self, call: Call, error: RepertoryError) -> None:
        """Refuse a call that the gate does not let begin."""
        call.fail(error)

    def _take_load(self, wanted: L) -> Next:
        if self._refusing:
            return refuse(self._closed())
        self._loads.append((wanted, self.context.defer()))
        self._queue.wake(self.context)
        self._look_again()
        return carry_on()

    def _new_call(
        self,
        invocation: Invocation,
        prompt: UserMessages | InterruptResponses,
        channel: type[ReplyChannel] | type[StreamChannel],
    ) -> Call:
        call = Call(invocation=invocation, prompt=prompt, channel=channel(self.context), at=self.context.sent_at)
        if isinstance(call.channel, StreamChannel):
            if invocation.in_step:
                call.channel.go_in_step()
            call.channel.on_caller_gone(lambda: self._abandon(invocation))
        return call

    def _comes_from_running(self, invocation: Invocation) -> bool:
        """True if the call was made inside the running call, here or by way of other processes."""
        turn, context = self._turn, invocation.context
        return turn is not None and (turn in turns_around(context) or turn.name in context.get(OUTER_TURNS, ()))

    def serves(self, invocation: Invocation) -> bool:
        """True if this call runs, is queued, or shares such a one."""
        calls = [*self._waiting] if self._running is None else [self._running, *self._waiting]
        return any(one.invocation is invocation for call in calls for one in call.sharing())

    def _circle(self, invocation: Invocation) -> Deadlock | None:
        """The error for a call that would wait behind a turn which waits for one that the call was made in: tools of
        two sessions that ask each other. Whoever called them, the turns that run say for whom they wait. Also for a
        call from the task that reads the running turn.
        """
        if invocation.while_reading and self._running is not None:
            return Deadlock(READS_IT, actor=self.context.self_ref.path)
        turns, seen = turns_around(invocation.context), set[object]()
        ahead: list[CallQueueActor[Any, Any]] = [self] if turns else []
        while ahead:
            actor = ahead.pop()
            turn = actor._turn
            if turn is None or actor in seen:
                continue
            seen.add(actor)
            if turn in turns:
                path = [each.agent.path for each in turns]
                return Deadlock("the call would wait for a turn that waits for it", path=" -> ".join(path))
            ahead += [other for other, call in turn.inside if other.serves(call)]
        return None

    def _watch_time(self, invocation: Invocation) -> None:
        if invocation.deadline < math.inf:
            remaining_s = max(invocation.deadline - anyio.current_time(), 0.0)
            self.context.after(remaining_s, TimeUp(invocation=invocation), key=invocation)

    def _withdraw(self, invocation: Invocation) -> Call | None:
        """Remove a call that is queued or shares another call's turn. If other calls share it, the first of them takes
        its place, and says what it said.
        """
        tops = (*([] if self._running is None else [self._running]), *self._waiting)
        for calls in (self._waiting, *(one.shared for call in tops for one in call.sharing())):
            for index, call in enumerate(calls):
                if call.invocation is invocation:
                    heirs = call.shared
                    if heirs:
                        heirs[0].prompt = call.prompt
                        heirs[0].shared.extend(heirs[1:])
                    calls[index : index + 1] = heirs[:1]
                    if calls is self._waiting and not calls:
                        self._look_again()
                    return call
        return None

    def _refuse_waiting(self) -> None:
        while self._waiting:
            self._waiting.pop(0).fail(self._closed())
        self._look_again()
