"""What an agent is made of, and what one turn works with: its context, how it is stopped, what it puts on record.

Start with `TurnContext`. Of a turn there is one, and one `TurnRecord`; whatever a turn does next is given these two.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio

from repertory.actors.conversation import EditShown, NameManager, ReplaceShown, Settle
from repertory.actors.hooks.calls import TurnHooks
from repertory.core.journal.history.redact import without_text
from repertory.core.journal.records import MessageAdded
from repertory.core.limits import NO_LIMITS, TurnLimits
from repertory.core.messages import (
    ContentBlock,
    Message,
    copy_message,
    error_result,
    is_filler,
    tool_results,
)
from repertory.core.result import StepMetrics, ToolMetrics, TurnMetrics
from repertory.core.snapshots.trigger import EndedTurn
from repertory.core.turn import StopReason
from repertory.core.turn_start import asked_again
from repertory.errors import RepertoryError
from repertory.forking import forget_in_children

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repertory.actors.call import Invocation
    from repertory.actors.conversation import ConversationMessage, ModelView
    from repertory.actors.hooks.registry import HookRegistry
    from repertory.actors.journal import ActorJournal
    from repertory.actors.read_model import ReadModel
    from repertory.actors.tool_registry import ToolRegistry
    from repertory.backends.ports import Model
    from repertory.core.answer import Answer
    from repertory.core.journal.image import UnansweredTurn
    from repertory.core.journal.records import SnapshotTaken
    from repertory.core.messages import SystemPrompt, ToolResult
    from repertory.core.result import TurnEvent
    from repertory.core.retry import RetryStrategy
    from repertory.core.state import AgentState
    from repertory.runtime.message import Ask
    from repertory.runtime.ref import ActorRef

T = TypeVar("T")
PublishTurnEvent = Callable[["TurnEvent"], Awaitable[None]]
"""Takes what happens on the way."""
Durability = Literal["pipelined", "strict", "relaxed"]
ToolExecution = Literal["concurrent", "sequential"]
"""Whether the tools of one answer run at the same time, or one after the other in the order asked."""
MarkTurn = Callable[["EndedTurn"], Awaitable["SnapshotTaken | None"]]
"""Gives the record that marks a turn, when somebody wants to find its end later. It does not fail."""


NAMELESS = "default"
"""The id of an agent that was given none."""


class StopRequest:
    """What somebody wants of a running turn that it has not heard yet: at most one wish. Safe from any thread."""

    __slots__ = ("__weakref__", "_lock", "_wish")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wish: tuple[StopReason, bool] | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """In a forked child: the wish was for the parent's turn."""
        self._lock, self._wish = threading.Lock(), None

    def ask(self, stop: StopReason, *, after_tools: bool) -> None:
        """Wish for the end. A wish that waits already stays, unless this one is for an earlier end."""
        with self._lock:
            if self._wish is None or (self._wish[1] and not after_tools):
                self._wish = (stop, after_tools)

    def take(self) -> tuple[StopReason, bool] | None:
        """The wish, and whether tools that run may end first; None when there is none. It is fulfilled by whoever
        takes it.
        """
        if self._wish is None:
            return None
        with self._lock:
            wish, self._wish = self._wish, None
        return wish


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What an agent is, apart from its components."""

    session_id: str
    agent_id: str = NAMELESS
    initial: tuple[Message, ...] = ()
    """What a new conversation starts with."""
    durability: Durability = "pipelined"
    """`pipelined`: durable before a tool with effects starts and before the answer is returned; `strict`: before each
    next step; `relaxed`: the answer may return first."""
    tool_execution: ToolExecution = "concurrent"
    limits: TurnLimits = NO_LIMITS
    """Bounds of each call that does not set them itself."""
    durable: bool = True
    """Whether there is a store to wait for."""
    others_add: bool = False
    """Whether programs that know no leases may add messages at any time. What begins a turn is then stored before the
    model is asked, so that the model is not asked without what they have added."""
    confirm_s: float = 1.0
    """The store is asked who owns the session before a model is called when the last confirmation is older than
    this."""


@dataclass(slots=True, kw_only=True)
class AgentParts:
    """What an agent is made of. Model, tools and system prompt may be exchanged between two steps."""

    model: Model
    aux_model: Model | None = None
    """For side calls, such as summaries; None for `model`."""
    tools: ToolRegistry
    system_prompt: SystemPrompt = None
    state: AgentState
    read_model: ReadModel
    hooks: HookRegistry
    retry: RetryStrategy | None = None
    """What to do when a model call fails; None gives up at once."""
    stop_request: StopRequest = field(default_factory=StopRequest)
    mark: MarkTurn | None = None
    """Asked at the end of each turn; None when nobody wants marks."""
    remembers: bool = False
    """Whether the session has a memory, which is told of each turn."""
    owner: Any = None
    """The `Agent` that users know; tools and hooks get it as `agent`."""
    lived_in: object = None
    """The session of an orchestrator in which it lived last, whose values its state has; None for none."""


class TurnContext:
    """What a call works with, from its opening to its answer."""

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
        """`clock` gives seconds, for measuring; `publish` takes what happens on the way.

        What is no turn leaves no trace: its hooks cannot edit the conversation, and no wish to stop a turn is for it.
        """
        self.settings = settings
        self.parts = parts
        self.invocation = invocation
        self.publish = publish
        read_model, wish = (parts.read_model, parts.stop_request) if is_turn else (None, None)
        self.hooks = TurnHooks(parts.hooks, parts.owner, invocation.invocation_state, read_model)
        self.stop = TurnStop(wish)
        self.meter = TurnMeter(clock)
        self.limits = invocation.limits.over(settings.limits)
        self.sizes = self.limits.sizes
        self.filled: object = None
        """The form that the caller wants, filled in."""


class TurnStop:
    """Whether one turn is to end at once, and the scope of what it is doing now.

    A message tells the agent that there is a wish. The turn itself looks too, at each place where it may end, so that a
    tool or a hook that asks for the end is heard before anything else happens, whoever is quicker.
    """

    def __init__(self, request: StopRequest | None) -> None:
        """Without a `wish` nobody can stop what runs, except by cancelling it."""
        self._wish = request
        self._stop: StopReason | None = None
        self._scope: anyio.CancelScope | None = None
        self.after_tools: Callable[[StopReason], None] = self.ask
        """Told of wishes that may wait for tools."""

    def ask(self, stop: StopReason) -> None:
        """End it. The first one to ask decides how."""
        self._stop = self._stop or stop
        if self._scope is not None:
            self._scope.cancel()

    def heard(self) -> StopReason | None:
        """How it is to end; None when it is to go on. Takes in now what was wished for just before."""
        wish = None if self._wish is None else self._wish.take()
        if wish is not None:
            stop, after_tools = wish
            (self.after_tools if after_tools else self.ask)(stop)
        return self._stop

    def scope(self) -> anyio.CancelScope:
        """A scope that is cancelled when the turn is to end, and now if it is already."""
        self._scope = anyio.CancelScope()
        if self.heard() is not None:
            self._scope.cancel()
        return self._scope

    async def run_unless_stopped(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """What the work gives; None when the turn is to end before it or meanwhile, which cuts it short."""
        return None if self.heard() is not None else await self._cut_short(work)

    async def run_always(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """The same for what tidies up: it is done when the turn was to end before it, too."""
        return await (work() if self.heard() is not None else self._cut_short(work))

    async def _cut_short(self, work: Callable[[], Awaitable[T]]) -> T | None:
        with anyio.CancelScope() as self._scope:
            return await work()
        return None


class TurnMeter:
    """Counts the steps and tools of one turn, from its making on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds, from wherever it likes."""
        self.clock = clock
        self._began = self._asked = clock()
        self._attempts = 0
        self._cycles: list[StepMetrics] = []
        self._tools: dict[str, list[float]] = {}
        self.left_out: dict[str, str] = {}
        """What model calls were not told, by name, and why."""

    @property
    def attempts(self) -> int:
        """How often the model was asked since its last answer that counted."""
        return self._attempts

    def asking(self) -> None:
        """The model is asked now."""
        if not self._attempts:
            self._asked = self.clock()
        self._attempts += 1

    def answered(self, answer: Answer) -> None:
        """The model has answered, and the answer counts."""
        duration_s = self.clock() - self._asked
        self._cycles.append(StepMetrics(answer.usage, answer.latency_ms or 0.0, duration_s, self._attempts))
        self._attempts = 0

    def ran(self, name: str, result: ToolResult, duration_s: float) -> None:
        """A tool ran."""
        counts = self._tools.setdefault(name, [0, 0, 0.0])
        counts[0] += 1
        counts[1] += result.get("status") == "error"
        counts[2] += duration_s

    def metrics(self) -> TurnMetrics:
        """Everything until now."""
        tools = {
            name: ToolMetrics(call_count=int(calls), error_count=int(errors), total_time=total)
            for name, (calls, errors, total) in self._tools.items()
        }
        duration_s = self.clock() - self._began
        left_out = self.left_out.copy()
        return TurnMetrics(cycles=tuple(self._cycles), tool_metrics=tools, duration_s=duration_s, left_out=left_out)


class TurnRecord:
    """What one turn says, on its way past hooks to the journal and to what the model is shown; and what it takes back.

    Not an actor: it belongs to the turn's driver.
    """

    def __init__(self, turn: TurnContext, journal: ActorJournal, conversation: ActorRef[ConversationMessage]) -> None:
        self._turn = turn
        self._settings = turn.settings
        self._read_model = turn.parts.read_model
        self._conversation = conversation
        self._token = turn.invocation.idempotency_token
        """The caller's name for the turn, which its first message carries."""
        self.journal = journal
        self.wrote = False
        """Whether anything of the turn is on record."""
        self._number: int | None = None
        """The turn's number, from its first message on."""
        self._beginning = True
        """Whether the model has not been asked and no tool has run."""
        self._opened_again = False
        self._told: dict[int, tuple[Message, Message]] = {}
        """What was said at the beginning, by identity, and what hooks made of it: they are told once."""

    async def append(self, message: Message) -> None:
        """Store a message, as hooks want it. Errors: those of guards and of the store."""
        _, edited = self._told.get(id(message), (message, None))
        told = edited is not None
        if edited is None:
            try:
                edited = await self._turn.hooks.message_added(message)
            except RepertoryError:
                if any(tool_results(message)):  # Tool uses are answered, whatever a guard says of the answers.
                    self._record(_withheld(message))
                raise
        self._record(edited)
        if self._beginning:
            self._told[id(message)] = message, edited
        elif self._settings.durability == "strict":
            await self.journal.commit()
        if self._turn.publish is not None and not told:
            await self._turn.publish({"message": copy_message(edited)})

    async def state_again(self, messages: Sequence[Message], left: UnansweredTurn) -> None:
        """Store how a turn goes on whose tools are of unknown outcome, as a crash would have left it: in one piece.
        Errors: those of guards, with nothing on record.
        """
        asking, starts = asked_again(left, self.journal.wall())
        told = [await self._turn.hooks.message_added(message) for message in (*messages, asking)]
        for message in told:
            self._record(message)
        for started in starts:
            self.journal.add(started)
        if self._turn.publish is not None:
            for message in told:
                await self._turn.publish({"message": copy_message(message)})

    @property
    def number(self) -> int:
        """The turn's number."""
        return self.journal.fold.turns + 1 if self._number is None else self._number

    def _record(self, message: Message) -> None:
        fold = self.journal.fold
        closes = not self.wrote and fold.turns > 0 and is_filler(message)  # It is the end of the turn before.
        record = MessageAdded(
            at=self.journal.wall(),
            message=message,
            turn=self.number - closes,
            index=fold.message_count,
            idempotency_token=None if closes else self._token,
        )
        self.journal.add(record)
        self.wrote = True
        if not closes:
            self._number, self._token = record.turn, None

    # Before the model is asked.

    def begun(self) -> None:
        """From now on the turn has done something that cannot be taken back."""
        self._beginning = False
        self._told.clear()

    async def begin(self) -> bool:
        """See that the session is still ours, before the model is asked for the first time.

        After a pause the store is asked. Where others may add to the session at any time, and in `strict`, what was
        said is stored first. False when others have written meanwhile, so that the conversation has gone on and nothing
        of the turn is on record. Errors: `LeaseLost`, `SessionBusy`, `Unavailable`.
        """
        settings, journal = self._settings, self.journal
        stored = self.wrote and (settings.others_add or settings.durability == "strict")
        moved = False
        if not self._beginning:
            pass
        elif self._opened_again and stored:
            await journal.commit()
        elif stored or (not self._opened_again and not journal.confirmed_within(settings.confirm_s)):
            moved = await journal.begin(stored=stored)
        if not moved:
            self.begun()
        return not moved

    async def own_or_raise(self) -> None:
        """Start writing what was said; after a pause, or with too much that waits, wait for the store first."""
        if self.journal.full or not self.journal.confirmed_within(self._settings.confirm_s):
            await self.journal.prove()
        self.journal.hand_over()

    def begin_again(self) -> None:
        """The session was opened anew, and the conversation has gone on meanwhile."""
        self._token, self._number = self._turn.invocation.idempotency_token, None
        self.wrote = False
        self._opened_again = True

    # What the model is shown.

    async def decided(self, question: Ask[ModelView], again: Ask[ModelView]) -> ModelView:
        """What the model is shown. While that is being decided the turn waits, unless it is stopped meanwhile."""
        stop, shown = self._turn.stop, await self._ask_view(question)
        while shown.undecided:
            await stop.run_unless_stopped(lambda: self._conversation.ask(Settle(), timeout_s=math.inf))
            if stop.heard():
                break
            shown = await self._ask_view(again)
        return shown

    async def show_edits(self) -> Sequence[Message] | None:
        """Make what callbacks did to `agent.messages` part of the turn. What is shown then; None without edits."""
        draft = self._read_model.take_draft()
        if draft is None:
            return None
        shown = await self._ask_view(EditShown(added=self.journal.take_unshown(), draft=draft))
        return shown.messages

    async def name_manager(self) -> None:
        """Have the first commit say which conversation manager is in use, when the journal names another one."""
        if self._read_model.misnamed:
            await self._ask_view(NameManager(added=self.journal.take_unshown()))
            self._read_model.misnamed = False

    async def _ask_view(self, question: Ask[ModelView]) -> ModelView:
        shown = await self._conversation.ask(question, timeout_s=math.inf)
        for change in shown.views:
            self.journal.add_view(change)
        return shown

    async def redact(self, text: str) -> None:
        """Put `text` in the place of what the user said last, for good: in every later look, and in the next commit."""
        instead = {entry.seq: without_text(entry.message, text) for entry in self.journal.asked}
        if instead:
            self.journal.redact(instead)
            await self._conversation.ask(ReplaceShown(instead=instead), timeout_s=math.inf)

    # At the end.

    async def mark(self) -> None:
        """Ask whether the turn that has just ended is to be marked, and add the record when it is. Does not fail."""
        parts = self._turn.parts
        if parts.mark is None:
            return
        turn = EndedTurn(turns=self.number, messages=self._read_model.messages(), state=parts.state)
        record = await parts.mark(turn)
        if record is not None:
            self.journal.add(record)


def _withheld(message: Message) -> Message:
    """The message of results that a guard did not let pass: each tool use is answered, and nothing else is said."""
    results = [
        error_result(result["toolUseId"], "The result is withheld: a hook failed.") for result in tool_results(message)
    ]
    blocks: list[ContentBlock] = [{"toolResult": result} for result in results]
    return {"role": "user", "content": blocks}
