"""The conversation manager of one session: holds what the model is shown and decides what to hide.

State: the shown messages with their sequence numbers; a decision that is being made, or is made and not applied yet.
Pace: the turn's. A decision that takes time (a summary, a user's own code) is a job on a copy of the view; it is
applied when the agent asks next, if the view still begins the same. So no turn waits for a decision made ahead of need,
a stopped turn leaves nothing half done, and a decision that fails changes nothing. Fails: never by what a manager does.
Supervised by the session, after the persister and before the agent.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, ClassVar, TypeAlias, assert_never

import anyio
from msgspec import Struct, field

from repertory.actors.call import BUDGETS, refusals, trace_here
from repertory.backends.ports import estimates_tokens
from repertory.core.budget import Budget
from repertory.core.journal.fold import is_answer
from repertory.core.journal.image import Image
from repertory.core.journal.records import View, ViewChanged
from repertory.core.journal.view import VisibleMessages as Window
from repertory.core.messages import Json, Message, for_model
from repertory.core.tokens import estimate_tokens, known_tokens
from repertory.core.window.decision import (
    DEFAULT_MANAGER,
    CustomEdit,
    Shorten,
    SummaryRequest,
    WindowBudget,
    WindowDecision,
    WindowManager,
    WindowPlan,
    is_full,
    is_summary,
    least_reduction,
    tokens_above,
)
from repertory.core.window.editing import view_change
from repertory.core.window.edits import joined_in_front, plan_of_edit
from repertory.core.window.gauge import RequestOverhead, TokenGauge
from repertory.errors import ContextWindowOverflowException, Invalid, LimitReached, ModelFailed, UnpairedTools
from repertory.logs import DEBUG, WARNING, note
from repertory.runtime.actor import Actor
from repertory.runtime.faults import failure_of, repr_of
from repertory.runtime.message import CARRY_ON, Ask, Next, ReplySlot, refuse, reply

if TYPE_CHECKING:
    from repertory.actors.drafts import Draft
    from repertory.actors.journal import NumberedMessage
    from repertory.backends.ports import Model
    from repertory.core.messages import ToolSpec


class ModelView(Struct, frozen=True, kw_only=True):
    """The messages that the model is shown now, and the records of what changed. The list must not be edited."""

    messages: list[Message]
    views: tuple[ViewChanged, ...] = ()
    undecided: bool = False
    """A decision is being made: ask `Settle`, then ask the same again."""
    tokens: int | None = None
    """Tokens of a request with these messages, where that is measured."""
    count: bool = False
    """The request may be too large: have the model count it, and send `Counted`."""
    ahead: bool = False
    """A summary is being made ahead of need, or is made and not applied: see `Tidy`."""
    failed: Exception | None = None
    """The error of the last decision; None if it was made."""
    manager_changed: bool = False
    """The journal names another manager than the one in use: send `NameManager` with the next records."""


class LoadView(Struct, Ask[ModelView], frozen=True, kw_only=True):
    """Start from this image; answers with what the model is shown."""

    image: Image


class PrepareCall(Struct, Ask[ModelView], frozen=True, kw_only=True):
    """Take in the messages added since the last question; answers with what to send to the model."""

    added: tuple[NumberedMessage, ...]
    overhead: RequestOverhead = field(default_factory=RequestOverhead)
    budgets: tuple[Budget, ...] = ()
    """Decisions from now on count towards these."""
    begins: bool = False
    """True for the first call of a turn: if the turn before did not end with an answer, it is tidied up now."""
    again: bool = False
    """True if this repeats a question that was undecided."""


class Counted(Struct, Ask[ModelView], frozen=True, kw_only=True):
    """The model has counted the last answer's messages."""

    tokens: int | None
    """The number of tokens; None if the model could not count: the estimate stays."""
    in_part: bool = False
    """True if it has counted the messages since its last answer, and that reported the rest."""


class ReduceView(Struct, Ask[ModelView], frozen=True, kw_only=True):
    """The model refused the request for its length: shorten by at least half of the estimated excess, if possible.
    Errors: `ContextWindowOverflowException` when nothing more can be hidden.
    """

    error: ContextWindowOverflowException
    before: int = 0
    """The number of times that this model call was shortened before."""
    again: bool = False


class Tidy(Struct, Ask[ModelView], frozen=True, kw_only=True):
    """The turn is ending: take in the added messages and tidy up. A summary begun ahead of need goes on after the
    answer; whoever wants it recorded before the next turn asks `Settle`, then this again with nothing added.
    """

    added: tuple[NumberedMessage, ...]
    budgets: tuple[Budget, ...] = ()
    again: bool = False
    recovering: bool = False
    """Begin the summary that an earlier process had begun, if there is still something to summarise."""
    between: bool = False
    """No turn is ending: no other summary is begun, so that those that shorten little do not follow each other."""


class NameManager(Struct, Ask[ModelView], frozen=True, kw_only=True):
    """Records are about to be stored: have the journal name the manager in use from this commit on."""

    added: tuple[NumberedMessage, ...]


class EditWindow(Struct, Ask[ModelView], frozen=True, kw_only=True, eq=False):
    """Show the edits that hooks' callbacks made. An edit that leaves no valid conversation is logged and dropped."""

    added: tuple[NumberedMessage, ...]
    draft: Draft
    """Messages added after the draft was made stay behind it."""


class LeaveOut(Struct, Ask[ModelView], frozen=True, kw_only=True):
    """The model's provider has refused parts of what it was shown: show notes in their place from now on."""

    added: tuple[NumberedMessage, ...]
    visible: Sequence[Message]
    """The messages that were refused."""
    instead: Mapping[int, Message]
    """Messages with notes in them, by position in `visible`."""


class Settle(Struct, Ask[None], frozen=True, kw_only=True):
    """Answered when no decision is open. The decision goes on even if the asker stops waiting."""


class ReplaceWindow(Struct, Ask[ModelView], frozen=True, kw_only=True):
    """Replace messages for good (redaction)."""

    instead: Mapping[int, Message]
    """Replacements by sequence number. They keep the tool uses and tool results of the originals."""


class Decided(Struct, frozen=True, kw_only=True, eq=False):
    """The actor's message to itself: a decision was made, or failed."""

    visible: Sequence[Message]
    """The view that the decision was made on."""
    plan: WindowPlan | None = None
    error: Exception | None = None

    def stands(self, messages: Sequence[Message]) -> bool:
        """True if the view still begins with the messages that the decision was made on."""
        return len(messages) >= len(self.visible) and all(
            now is then or now == then for now, then in zip(messages, self.visible, strict=False)
        )


ConversationMessage: TypeAlias = (
    LoadView
    | PrepareCall
    | Counted
    | ReduceView
    | Tidy
    | NameManager
    | EditWindow
    | LeaveOut
    | Settle
    | ReplaceWindow
    | Decided
)


Summarize = Callable[[SummaryRequest], Awaitable[str]]
"""Writes a summary. Errors: whatever the model or agent that writes it raises."""

AHEAD = 0.8
"""The share of the threshold of proactive compression at which a summary is begun ahead of need."""
COMPRESSIONS_MAX = 16
"""Requests to a manager to shorten in one go; each may take off only a little."""
SUMMARIES_MAX = 8
"""Summaries by which one refused request is shortened; after that it is shortened without one."""
DECISION_TIMEOUT_S = 120.0
"""Seconds that a summary, or a user's own code, may take."""


class ConversationActor(Actor[ConversationMessage]):
    """Carries out its manager's decisions on what the model is shown."""

    rests: ClassVar[bool] = True

    def __init__(
        self,
        manager: WindowManager,
        wall: Callable[[], float],
        summarize: Summarize,
        shorten: Shorten | None = None,
    ) -> None:
        self._manager = manager
        self._wall = wall
        self._summarize = summarize
        self._shorten = shorten
        self._new = 0
        """The number of last messages that `shorten` has not looked at."""
        self._visible = Window(View(), iter(()))
        self._messages: list[Message] = []
        """The shown messages as a list, copied for every model call."""
        self._last_seq = 0
        self._removed = 0
        self._model_calls = 0
        self._state: Mapping[str, Json] = {}
        self._threshold = manager.compression_threshold
        self._gauge: TokenGauge | None = None
        self._overhead = RequestOverhead()
        self._budgets: tuple[Budget, ...] = ()
        """The budgets towards which decisions count."""
        self._window: int | None = None
        """The model's window in tokens, learned from a refusal, if the model does not tell it."""
        self._deciding = False
        self._refused = False
        """True if the open decision answers the model's refusal."""
        self._untidied = False
        """True from a turn's first model call until it is tidied up."""
        self._named = False
        """True if this turn has recorded the manager's name and counts."""
        self._target = 0
        """The number of tokens that the shown messages may have after a refusal."""
        self._unsummarised = False
        """True if summaries no longer help with this model call: there were `SUMMARIES_MAX`, or even the smallest piece
        was too long for the model that writes them.
        """
        self._eased = False
        """True if anything was shortened since the refusal."""
        self._last_estimate = 0
        """Tokens before the last attempt to shorten. An attempt that does not lower this ends the loop."""
        self._decided: Decided | None = None
        self._settling: list[ReplySlot[object]] = []

    def summary(self) -> object:
        return {"manager": self._manager.name, "shown": len(self._messages), "removed": self._removed}

    def handle_now(self, message: ConversationMessage) -> Next:
        match message:
            case LoadView(image=image):
                return reply(ModelView(messages=self._load(image), manager_changed=self._manager_changed))
            case PrepareCall():
                return self._prepare(message)
            case Counted():
                return self._note_count(message)
            case Tidy():
                return self._tidy(message)
            case ReduceView():
                return self._reduce(message)
            case NameManager(added=added):
                return self._name_manager(added)
            case EditWindow():
                return self._edit(message)
            case LeaveOut():
                return self._leave_out(message)
            case Settle():
                return self._settle()
            case ReplaceWindow(instead=instead):
                for seq, replacement in instead.items():
                    self._visible.redact(seq, replacement)
                self._messages = self._visible.messages()
                return self._answer([])
            case Decided():
                return self._note(message)
            case _:
                assert_never(message)

    def _load(self, image: Image) -> list[Message]:
        state = image.view.manager_state
        self._visible = Window(image.view, iter(image.recent))
        self._messages = self._visible.messages()
        self._last_seq = image.last_seq
        self._removed = _count(state, "removed_message_count")
        self._model_calls = _count(state, "model_call_count")
        self._restore(state)
        self._state = self._state_now()
        if self._threshold is not None:
            self._gauge = TokenGauge(self._messages, hidden=_count(state, "hidden_tokens"))
        self._decided, self._refused = None, False
        # A turn that was cut off has not been tidied up: the next one does it first.
        self._untidied = bool(self._messages) and not is_answer(self._messages[-1])
        # A killed process may have stored the last message, but not its shortening.
        self._new = int(image.last_message_seq not in image.view.replaced)
        return self._messages.copy()

    def _take_in(self, added: tuple[NumberedMessage, ...]) -> None:
        self._new += len(added)
        for entry in added:
            self._visible.add(entry.seq, entry.message)
            self._messages.append(entry.message)
            self._last_seq = entry.seq
            if self._gauge is not None:
                self._gauge.take_in(entry.message)

    # What the agent asks.

    def _prepare(self, message: PrepareCall) -> Next:
        before = len(self._messages)
        self._take_in(message.added)
        self._overhead, self._budgets = message.overhead, message.budgets
        # The same call asked again counts once (`per_turn=n`).
        self._model_calls += not message.again
        changes: list[ViewChanged] = []
        failed = self._apply_decided(changes)
        if self._shorten is not None:
            self._shorten_new(self._shorten, changes)
        undecided = False
        if not message.again and self._manager.manages_before_call(self._model_calls):
            undecided = self._manage(changes)
        elif message.begins and not message.again and self._untidied and not failed:
            undecided = self._manage(changes, before)
        self._untidied = True
        # Once asked again, nothing new is begun: a manager that always wants more would keep the turn from its model.
        if undecided or failed or message.again:
            return self._answer(changes, undecided=undecided)
        if message.overhead.estimates and self._gauge is not None:
            return self._answer(changes, count=True)
        # Only near the limit: counting is a request.
        if message.overhead.countable and self._is_full(AHEAD):
            return self._answer(changes, count=True)
        if self._is_full(1.0):
            undecided = self._deciding or self._compress(changes)
        return self._answer(changes, undecided=undecided)

    def _note_count(self, message: Counted) -> Next:
        changes: list[ViewChanged] = []
        if self._gauge is not None and message.tokens is not None:
            self._gauge.know(message.tokens, in_part=message.in_part)
        undecided = self._is_full(1.0) and (self._deciding or self._compress(changes))
        return self._answer(changes, undecided=undecided)

    def _tidy(self, message: Tidy) -> Next:
        self._take_in(message.added)
        self._budgets = message.budgets
        changes: list[ViewChanged] = []
        failed = self._apply_decided(changes)
        if self._shorten is not None:
            self._shorten_new(self._shorten, changes)
        undecided = not message.again and self._manage(changes)
        if not undecided:
            self._untidied = False
            # Another manager, or another state of it, is news to the journal; recorded when that needs no extra record.
            if not changes and (self._named or self._manager_changed or self._state_now() != self._state):
                self._change(WindowPlan(), changes)
            self._named = False
            if (
                not self._deciding
                and not failed
                and (message.recovering or (not message.between and self._is_full(AHEAD)))
            ):
                self._look_ahead()
        return self._answer(changes, undecided=undecided, failed=failed)

    def _reduce(self, message: ReduceView) -> Next:
        """Shorten until the target is met or nothing more helps. If nothing was shortened, the asker gets the error;
        otherwise the model is asked again.
        """
        if not message.again:
            if self._gauge is not None and self._overhead.window is None:  # The unknown window holds less than this.
                tokens = self._gauge.tokens(self._messages, self._overhead)
                self._window = min(tokens, self._window or tokens)
            # Reset with each model call: a model that could not summarise an hour ago may do so now.
            self._unsummarised = message.before >= SUMMARIES_MAX or (self._unsummarised and message.before > 0)
            self._last_estimate = estimate_tokens(self._messages) + 1
            # Computed at the first attempt and kept: each one that follows would otherwise want less than was missing.
            self._target = self._last_estimate - 1 - self._least(message.before)
            self._eased = False
        changes: list[ViewChanged] = []
        failed = self._apply_decided(changes)
        if self._deciding:
            return self._answer(changes, undecided=True)
        self._eased = self._eased or bool(changes)
        refused, self._refused = self._refused, False
        if failed is not None and refused:
            too_long = isinstance(failed, ContextWindowOverflowException) and self._manager.summarizes
            if self._unsummarised or not too_long:
                return self._eased_or(_could_not_shorten(failed), changes)
            self._unsummarised = True
            self._last_estimate = estimate_tokens(self._messages) + 1
        for _ in range(COMPRESSIONS_MAX):
            estimate = estimate_tokens(self._messages)
            # Enough, or no progress: then the model decides whether it fits.
            if self._eased and (estimate <= self._target or estimate >= self._last_estimate):
                return self._answer(changes)
            self._last_estimate, done = estimate, len(changes)
            try:
                decision = self._manager.reduce(self._messages, self._budget(message.error, estimate - self._target))
                self._refused = self._carry_out(decision, changes)
            except BaseException as raised:  # noqa: BLE001 - A manager may be a user's code.
                failure = failure_of(raised)
                return self._eased_or(_could_not_shorten(failure), changes)
            if self._refused:
                return self._answer(changes, undecided=True)
            if len(changes) == done:
                return self._eased_or(message.error, changes)
            self._eased = True
        return self._answer(changes, undecided=True)

    def _eased_or(self, error: ContextWindowOverflowException, changes: Sequence[ViewChanged]) -> Next:
        return self._answer(changes) if self._eased else refuse(error)

    def _least(self, before: int) -> int:
        """The number of tokens to take off at least, after `before` earlier refusals."""
        if self._gauge is None:
            tokens = estimate_tokens(self._messages, self._overhead.tool_specs, self._overhead.system_prompt)
        else:
            tokens = self._gauge.tokens(self._messages, self._overhead)
        return least_reduction(tokens, self._overhead.window or self._window, before)

    def _name_manager(self, added: tuple[NumberedMessage, ...]) -> Next:
        self._take_in(added)
        changes: list[ViewChanged] = []
        if self._manager_changed:
            self._change(WindowPlan(), changes)
            self._named = True
        return self._answer(changes)

    def _edit(self, message: EditWindow) -> Next:
        self._take_in(message.added)
        changes: list[ViewChanged] = []
        draft = message.draft
        try:
            # Hooks edited a copy; what was said meanwhile stays behind it.
            behind = self._messages[len(draft.visible) :]
            if self._messages[: len(draft.visible)] != list(draft.visible):
                raise Invalid("the shown messages have changed since hooks edited them", shown=len(self._messages))
            plan = plan_of_edit(self._messages, [*draft.given, *behind], [*draft.messages, *behind])
            if plan.changes:
                self._change(plan, changes)
        except (Invalid, UnpairedTools) as error:
            self._log(error)
        return self._answer(changes)

    def _leave_out(self, message: LeaveOut) -> Next:
        self._take_in(message.added)
        changes: list[ViewChanged] = []
        # Something was shortened meanwhile: the positions name other messages, and the next refusal says so again.
        if self._messages[: len(message.visible)] == list(message.visible):
            self._change(WindowPlan(replaced=message.instead, reason="refused by the provider"), changes)
        return self._answer(changes)

    def _settle(self) -> Next:
        if not self._deciding:
            return reply(None)
        self._settling.append(self.context.defer())
        return CARRY_ON

    def _answer(
        self,
        changes: Sequence[ViewChanged],
        *,
        undecided: bool = False,
        count: bool = False,
        failed: Exception | None = None,
    ) -> Next:
        view = ModelView(
            # A copy of the list: the next step appends to ours.
            messages=self._messages.copy(),
            views=tuple(changes),
            undecided=undecided,
            tokens=None if self._gauge is None else self._gauge.tokens(self._messages, self._overhead),
            count=count,
            ahead=not undecided and (self._deciding or self._decided is not None),
            failed=failed,
        )
        return reply(view)

    # Deciding.

    def _budget(self, error: ContextWindowOverflowException | None = None, least: int = 0) -> WindowBudget:
        tokens = None if self._gauge is None else self._gauge.tokens(self._messages, self._overhead)
        window = self._overhead.window or self._window
        if error is None and tokens is not None and self._threshold is not None:
            least = tokens_above(tokens, window, self._threshold)
        return WindowBudget(
            tokens=tokens,
            window=window,
            error=error,
            full=error is None,
            least=max(0, least),
            beside=estimate_tokens((), self._overhead.tool_specs, self._overhead.system_prompt),
            unsummarised=self._unsummarised and error is not None,
        )

    def _is_full(self, share: float) -> bool:
        """True if the next request reaches this share of the threshold of proactive compression."""
        if self._gauge is None or self._threshold is None:
            return False
        tokens = self._gauge.tokens(self._messages, self._overhead)
        return is_full(tokens, self._overhead.window or self._window, self._threshold * share)

    def _manage(self, changes: list[ViewChanged], end: int | None = None) -> bool:
        """Tidy up, as if the messages before `end` were all. True if a decision is still open."""
        try:
            decision = self._manager.manage(self._messages if end is None else self._messages[:end])
        except BaseException as raised:  # noqa: BLE001 - A manager may be a user's code, and what is shown is valid as it is.
            error = failure_of(raised)
            self._log(error)
            return False
        return self._carry_out(decision, changes)

    def _compress(self, changes: list[ViewChanged]) -> bool:
        """Shorten ahead of a call as far as possible. True if a decision is still open."""
        try:
            for _ in range(COMPRESSIONS_MAX):
                undecided = self._carry_out(self._manager.reduce(self._messages, self._budget()), changes)
                if undecided or not self._is_full(1.0):
                    return undecided
        except ContextWindowOverflowException as error:
            note(self.context.logger, DEBUG, "there is nothing left to shorten", error)
        except BaseException as raised:  # noqa: BLE001 - Best effort: a manager may be a user's code, and the call may fit.
            error = failure_of(raised)
            self._log(error)
        return False

    def _shorten_new(self, shorten: Shorten, changes: list[ViewChanged]) -> None:
        new, self._new = self._new, 0
        if new:
            plan = shorten(self._messages, new)
            if plan.changes:
                self._change(plan, changes)

    def _look_ahead(self) -> None:
        """Begin a summary that will be needed soon. Decisions that take no time wait until they are needed.

        If a budget is used up, a later call with budget left begins it.
        """
        # Cutting costs nothing and can wait until it is needed; a summary is a request of some seconds.
        if not self._manager.summarizes or any(budget.used_up for budget in self._budgets):
            return
        try:
            decision = self._manager.reduce(self._messages, self._budget())
        except ContextWindowOverflowException:
            return  # Nothing to summarise yet.
        if isinstance(decision, SummaryRequest):
            self._begin(decision)

    def _carry_out(self, decision: WindowDecision, changes: list[ViewChanged]) -> bool:
        """Apply a plan at once; begin a summary or a custom edit as a job. True for a job."""
        if isinstance(decision, WindowPlan):
            if decision.changes:
                self._change(decision, changes)
            return False
        self._begin(decision)
        return True

    def _begin(self, decision: SummaryRequest | CustomEdit) -> None:
        self._deciding = True
        self._decided = None
        messages = decision.messages if isinstance(decision, SummaryRequest) else tuple(self._messages)
        # A job and not the handler: a turn that is stopped would wait for the summary.
        self.context.job(self._decide, decision, messages, self._budgets, name="decision")

    async def _decide(
        self, decision: SummaryRequest | CustomEdit, messages: Sequence[Message], budgets: tuple[Budget, ...]
    ) -> None:
        BUDGETS.set(budgets)  # In this job's context.
        decided: Decided
        try:
            with anyio.fail_after(DECISION_TIMEOUT_S):
                if isinstance(decision, CustomEdit):
                    # A user's code may have swallowed the refusal and decided with half of what it asked for.
                    refused = refusals(budgets)
                    decided = Decided(visible=messages, plan=await decision.decide())
                    if refusals(budgets) > refused:
                        raise LimitReached("the budget of the call is used up: the decision may be incomplete")
                else:
                    trace = trace_here()
                    with nullcontext() if trace is None else trace.work("repertory.summarize", {}):
                        decided = Decided(visible=messages, plan=decision.plan(await self._summarize(decision)))
        except BaseException as raised:  # noqa: BLE001 - No failure may end the conversation actor.
            error = failure_of(raised)
            decided = Decided(visible=messages, error=error)
        self.context.self_ref.tell(decided)

    def _note(self, decided: Decided) -> Next:
        """Keep a decision until the agent asks, because only then can it be recorded."""
        self._deciding = False
        self._decided = decided
        for slot in self._settling:
            slot.reply(None)
        self._settling.clear()
        return CARRY_ON

    def _apply_decided(self, changes: list[ViewChanged]) -> Exception | None:
        """Apply the decision if the view still begins the same. The error, if deciding failed."""
        decided, self._decided = self._decided, None
        if decided is None:
            return None
        if decided.error is not None:
            self._log(decided.error)
            return decided.error
        # The turn has gone on: a plan for messages that have changed since would hide others.
        if decided.plan is not None and decided.plan.changes and decided.stands(self._messages):
            self._change(decided.plan, changes)
        return None

    def _restore(self, state: Mapping[str, Json]) -> None:
        try:
            self._manager.restore(self._removed, state)
        except BaseException as raised:  # noqa: BLE001 - A manager may be a user's code, and may begin anew.
            error = failure_of(raised)
            self._log(error)

    def _state_now(self) -> Mapping[str, Json]:
        try:
            return self._manager.keep(self._removed)
        except BaseException as raised:  # noqa: BLE001 - A manager may be a user's code; the last state stays.
            error = failure_of(raised)
            self._log(error)
            return self._state

    def _log(self, error: Exception) -> None:
        note(self.context.logger, WARNING, "what the model is shown was not shortened", error)

    # Applying.

    @property
    def _manager_changed(self) -> bool:
        return self._manager.name != (self._visible.view.manager or DEFAULT_MANAGER)

    def _change(self, plan: WindowPlan, changes: list[ViewChanged]) -> None:
        plan = joined_in_front(plan, self._visible.view.summary)
        pinned = frozenset(plan.pinned)
        gone = [message for at, message in enumerate(self._messages[: plan.drop]) if at not in pinned]
        if self._gauge is not None:
            was = [self._messages[at] for at in plan.replaced]
            new = list(plan.replaced.values()) if plan.summary is None else [*plan.replaced.values(), plan.summary]
            self._gauge.hide([*gone, *was], new)
        self._removed += len(gone) - sum(map(is_summary, gone))
        self._state = self._state_now()
        state: dict[str, Json] = {
            **self._state,
            "removed_message_count": self._removed,
            "model_call_count": self._model_calls,
        }
        if self._gauge is not None and self._gauge.hidden:
            state["hidden_tokens"] = self._gauge.hidden
        change = view_change(
            self._visible, self._last_seq, plan, manager=self._manager.name, manager_state=state, at=self._wall()
        )
        self._visible.change(change.view, patch=change.patch)
        self._messages = self._visible.messages()
        changes.append(change)


def _could_not_shorten(error: Exception) -> ContextWindowOverflowException:
    if isinstance(error, ContextWindowOverflowException):
        return error
    overflow = ContextWindowOverflowException(
        "the model's window is full, and what it is shown could not be shortened", why=repr_of(error)
    )
    overflow.__cause__ = error
    return overflow


def _count(state: Mapping[str, Json], key: str) -> int:
    value = state.get(key)
    return value if isinstance(value, int) else 0


# What the model says of its window and of tokens.

_log = logging.getLogger("repertory.conversation")


def window_of_model(model: Model) -> tuple[int | None, bool]:
    """The model's window in tokens, and True if it can count. Errors: `ModelFailed` if its own code fails."""
    if not hasattr(type(model), "counts_tokens"):  # Something that only streams.
        return None, False
    try:
        return model.context_window_limit, model.counts_tokens
    except BaseException as error:
        failure_of(error)  # What is none goes on.
        raise ModelFailed("the model's settings cannot be read", model=type(model).__name__) from error


async def counted_by(
    model: Model, messages: Sequence[Message], tool_specs: Sequence[ToolSpec], system_prompt: str | None
) -> Counted:
    """The model's token count; its `tokens` is None if the model cannot count. An estimate of its own is for the
    messages since the last answer, if that reported its usage.
    """
    try:
        known, since = known_tokens(messages) if estimates_tokens(type(model)) else (0, messages)
        if known:
            return Counted(tokens=known + (await model.count_tokens(for_model(since)) if since else 0), in_part=True)
        return Counted(tokens=await model.count_tokens(for_model(messages), tool_specs, system_prompt))
    except BaseException as error:  # noqa: BLE001 - A model may be a user's code; the estimate stays.
        note(_log, WARNING, "the model did not count", failure_of(error), model=type(model).__name__)
        return Counted(tokens=None)
