"""What the agent of a session is asked to do, above all a call: what was said, where the result goes, in whose context
it runs and on whose budget.
"""

from __future__ import annotations

import contextvars
import math
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from anyio.lowlevel import current_token

from repertory.backends.ports import OutputSchema, settings_of
from repertory.core.budget import Budget
from repertory.core.journal.editing import MessagesEdit
from repertory.core.limits import NO_LIMITS, TurnLimits
from repertory.core.messages import ContentBlock, Json, Prompt, ToolUse
from repertory.core.orchestration.results import MultiAgentResult
from repertory.core.result import AgentResult, TurnEvent
from repertory.core.snapshots.fields import SnapshotFields
from repertory.core.turn_start import InterruptResponses, UserMessages
from repertory.errors import LimitReached, RepertoryError, StreamClosed
from repertory.runtime.call_context import ORIGIN, CallContext
from repertory.runtime.context import Context
from repertory.runtime.message import Ask, Stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repertory.backends.ports import Model
    from repertory.core.messages import Usage
    from repertory.runtime.ref import ActorRef

Busy = Literal["queue", "reject", "interrupt", "steer"]
"""What a call does when a turn runs already: wait its turn, be refused, cancel that turn, or add to it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Invocation:
    """What a caller wants of a turn. Compared by identity: it also names the call."""

    prompt: Prompt
    busy: Busy | None = None
    """None means what the agent was built with."""
    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    """The caller's own dictionary, shared with tools and hooks. Its `request_state` comes back as `result.state`."""
    limits: TurnLimits = NO_LIMITS
    deadline: float = math.inf
    """When the call has had its time, by the event loop's clock; waiting for other turns counts."""
    idempotency_token: str | None = None
    """Names the turn: the same token again gives the same answer, and nothing runs twice."""
    output_schema: OutputSchema | None = None
    """What the model is to fill in."""
    budget: Budget | None = None
    """What everything that is done for the call may use together."""
    budget_owner: str | None = None
    """Under which name budgets have what it uses when whoever is called was given no id."""
    resume: bool | None = None
    """Of an orchestrator: whether to go on with its unfinished run; None goes on when the task is the same."""
    drop_interrupts: bool = False
    """Whether to go on without the answers that a person has not given."""
    direct: ToolUse | None = None
    """Not a turn but this tool call, made by the program itself and put on record."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """The caller's context variables, which hooks, tools and the model see."""


CallResult: TypeAlias = AgentResult | MultiAgentResult
"""What an agent's turn, or an orchestrator's run, leads to."""


def request_state(invocation: Invocation) -> dict[str, Any]:
    """The part of the invocation state that the caller gets back; an empty one when there is none."""
    state = invocation.invocation_state.get("request_state")
    return cast("dict[str, Any]", state) if isinstance(state, dict) else {}


class ResponseChannel(Protocol):
    """Where a call's result goes."""

    @property
    def publish(self) -> Callable[[TurnEvent], Awaitable[None]] | None:
        """Takes what happens on the way; None when nobody looks."""
        ...

    def on_left(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when the caller has gone."""
        ...

    async def succeed(self, result: CallResult) -> None: ...

    def fail(self, error: RepertoryError) -> None: ...


class ReplyChannel:
    """The caller asked and waits for one reply."""

    publish = None

    def __init__(self, context: Context) -> None:
        self._slot = context.defer()

    def on_left(self, callback: Callable[[], None]) -> None:
        """An asker that went away changes nothing: what it said is said, and the turn runs on."""
        del callback

    async def succeed(self, result: CallResult) -> None:
        self._slot.reply(result)

    def fail(self, error: RepertoryError) -> None:
        self._slot.fail(error)


class StreamChannel:
    """The caller reads a stream."""

    def __init__(self, context: Context) -> None:
        self._sink = context.sink()

    async def publish(self, event: TurnEvent) -> None:
        """Send an event; waits while the reader is behind. A reader that has left hears nothing more."""
        try:
            if not self._sink.send_nowait(event):
                await self._sink.send(event)
        except StreamClosed:
            pass

    def on_left(self, callback: Callable[[], None]) -> None:
        self._sink.on_closed = callback

    async def succeed(self, result: CallResult) -> None:
        await self.publish({"result": result})
        self._sink.end()

    def fail(self, error: RepertoryError) -> None:
        self._sink.fail(error)


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A call that waits or runs. `shared` are calls that were steered into this one and get the same result."""

    invocation: Invocation
    prompt: UserMessages | InterruptResponses
    channel: ResponseChannel
    shared: list[Call] = field(default_factory=list["Call"])

    def set_back(self, undelivered: Sequence[ContentBlock]) -> list[Call]:
        """The calls that were steered in too late for any step: they must run on their own, so that nothing is
        dropped.
        """
        late = [call for call in self.shared if call.said_any_of(undelivered)]
        self.shared = [call for call in self.shared if call not in late]
        return late

    def said_any_of(self, blocks: Sequence[ContentBlock]) -> bool:
        """Whether one of these very blocks is this call's."""
        if isinstance(self.prompt, InterruptResponses):
            return False
        own = [block for message in self.prompt.messages for block in message["content"]]
        return any(block is mine for block in blocks for mine in own)

    def fail(self, error: RepertoryError) -> None:
        """Give the error to the caller and to everybody who shares the turn."""
        for call in (self, *self.shared):
            call.channel.fail(error)

    async def end(self, outcome: CallResult | RepertoryError) -> None:
        """Give the result or the error to the caller and to everybody who shares the turn."""
        if isinstance(outcome, RepertoryError):
            self.fail(outcome)
            return
        for call in (self, *self.shared):
            await call.channel.succeed(outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoke(Ask[AgentResult]):
    """Run a turn and answer with its result."""

    invocation: Invocation


@dataclass(frozen=True, slots=True, kw_only=True)
class InvokeStreaming(Stream[TurnEvent]):
    """Run a turn and send what happens on the way; leaving the stream cancels the turn."""

    invocation: Invocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowSnapshot(Ask[None]):
    """Go on from a snapshot, or from what a program made of the messages; answered when that is durable. Waits for the
    turn that runs, not for those that wait.
    """

    wanted: SnapshotFields | MessagesEdit


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTurn:
    """End the running turn early, if one runs: as the stop wish says, unless the turn has heard that already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeUp:
    """A call has had its time."""

    invocation: Invocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """The caller of this very invocation has gone: cut its turn short, or do not begin it."""

    invocation: Invocation


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishTurns(Ask[None]):
    """Take no more turns, and answer when the running one and those that wait are over."""

    at_once: bool = False
    """Cut the running turn short, and refuse the calls that wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepProgress(Ask[None]):
    """Put on record how far a memory store has got; answered when that is on its way to the store."""

    store: str
    position: int
    kept: Json = None
    """What the journal is to keep of the store besides; None for nothing."""


AgentMessage: TypeAlias = (
    Invoke | InvokeStreaming | ShowSnapshot | KeepProgress | CancelTurn | TimeUp | Abandon | FinishTurns
)


BUDGETS: ContextVar[tuple[Budget, ...]] = ContextVar("repertory_budgets", default=())
"""The budgets that what is used here counts towards, each once, the outermost call's first. What is done behind an
answer has those of the call that it is done for."""


PAYER: ContextVar[str | None] = ContextVar("repertory_payer", default=None)
"""Under which name the turn or run that is worked on spends when it has no id of its own; None: there is no other."""


def refusals(budgets: Iterable[Budget]) -> int:
    """How often models were not asked because of them. When it grows, whatever was done on them may not be whole."""
    return sum(budget.refused for budget in budgets)


class Spending:
    """Somebody who asks models, on the budgets that count here."""

    __slots__ = ("_who", "budgets")

    def __init__(self, who: str) -> None:
        """`who`: as `Budget.by` names it."""
        self._who = who
        self.budgets = BUDGETS.get()

    def reached(self, model: Model) -> str | None:
        """The stop reason of the first budget that is used up; None when the model may be asked.

        Errors: `Invalid` for a model without a price, when there is a bound on the cost.
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
        """The model has answered."""
        for budget in self.budgets:
            budget.charge(self._who, _id_of(model), usage)


def _id_of(model: Model) -> str:
    return str(settings_of(model).get("model_id", ""))


T = TypeVar("T")


class OpenTurn(NamedTuple):
    """A turn on whose behalf code runs."""

    agent: ActorRef[object]
    call: Invocation
    """The call; compared by identity."""
    budget: Budget | None = None
    """What its caller has given it."""


OPEN_TURNS: ContextVar[tuple[OpenTurn, ...]] = ContextVar("repertory_open_turns", default=())
"""The turns in which the code that runs here was called, the innermost last. None of them ends before it does."""


_DEADLINE: ContextVar[tuple[object, float]] = ContextVar("repertory_deadline", default=(None, math.inf))
"""An event loop, and when by its clock the first of those turns' calls that were made there has had its time."""


def deadline() -> float:
    """When the first of the calls for which code runs here has had its time, by the event loop's clock."""
    loop, at = _DEADLINE.get()
    return at if at < math.inf and loop is current_token().native_token else math.inf


# A session's turns run in one long-lived task, so without this, tools, hooks and models would see the context variables
# of whoever opened the session, not those of the call: a request id, a tenant, a span.
@types.coroutine
def in_context(
    context: contextvars.Context, turn: OpenTurn, work: Coroutine[object, object, T]
) -> Generator[object, object, T]:
    """Do the `work` of a turn so that each step of it, and every task that it starts, runs in `context`, which nobody
    else may use meanwhile.

    What the runtime must know of the running task stays what it is; only the trace is the caller's, if it has one.
    """
    context.run(_speak_for, ORIGIN.get(), turn)
    step: Callable[[], object] = partial(work.send, None)
    while True:
        try:
            waits_for = context.run(step)
        except StopIteration as done:
            return done.value
        try:
            step = partial(work.send, (yield waits_for))
        except BaseException as error:  # noqa: BLE001 - Whatever is thrown in here is for the work.
            step = partial(work.throw, error)


def _speak_for(here: CallContext, turn: OpenTurn) -> None:
    """In the context of a caller: speak on behalf of the job that runs here."""
    ORIGIN.set(CallContext(here.owner, here.waits, ORIGIN.get().trace or here.trace))
    OPEN_TURNS.set((*OPEN_TURNS.get(), turn))
    PAYER.set(turn.call.budget_owner)
    if turn.call.deadline < deadline():
        _DEADLINE.set((current_token().native_token, turn.call.deadline))
    if turn.budget is not None and turn.budget not in BUDGETS.get():
        BUDGETS.set((*BUDGETS.get(), turn.budget))
