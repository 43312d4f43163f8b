"""Driving one turn: carries out what the turn machine decides, and feeds back what happened.

The machine (`core/turn.py`) decides; this file only does. A driver lives for one turn, inside a job of the agent actor.
Stopping a turn cancels the command under way, never the driver, so that what happened is always written down.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

import anyio

from repertory.actors.agent_parts import NAMELESS, AgentParts, AgentSettings, Footing, Means
from repertory.actors.call import Invocation, request_state
from repertory.actors.conversation import Counted, EditShown, NameManager, PrepareCall, ReduceView, Settle, Tidy
from repertory.actors.hooks.calls import TurnHooks
from repertory.actors.hooks.events import AfterModelCallEvent, BeforeInvocationEvent, BeforeModelCallEvent
from repertory.actors.hooks.injections import InjectionContext, injected
from repertory.actors.model_call import Request, call_model, retry_delay_s
from repertory.actors.spending import PAYER, Spending
from repertory.actors.turn_meter import TurnMeter
from repertory.actors.turn_record import TurnRecord
from repertory.actors.turn_stop import TurnStop
from repertory.actors.turn_tools import TurnTools, TurnWork
from repertory.core.answer import LIMITED, Answer
from repertory.core.direct_call import spoken_answer
from repertory.core.events import derived_event
from repertory.core.journal.records import Interrupted, ToolFinished
from repertory.core.messages import ContentBlock, Message, copy_message, text_of, tool_uses
from repertory.core.result import AgentResult
from repertory.core.snapshots.trigger import EndedTurn
from repertory.core.system_prompt import system_blocks, system_text
from repertory.core.tokens import INJECTED_TOKENS, estimate_tokens, projected_tokens
from repertory.core.turn import (
    CANCELLED,
    REFUSED,
    Answered,
    Append,
    Began,
    CallModel,
    Continued,
    Erred,
    Event,
    Fail,
    Finish,
    Overflowed,
    Park,
    Phase,
    Reduce,
    Reduced,
    RetryModel,
    RunTools,
    Size,
    Steered,
    Stop,
    StopAsked,
    Stopped,
    Turn,
    step,
)
from repertory.core.window.gauge import Beside
from repertory.core.window.summary import with_noted_summary
from repertory.errors import ContextWindowOverflowException, Invalid, ModelFailed, RepertoryError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repertory.actors.conversation import Shown
    from repertory.actors.ledger import Ledger
    from repertory.backends.ports import Model
    from repertory.core.interrupts import Interrupt
    from repertory.core.journal.image import Image
    from repertory.core.prompt import Answers, Said
    from repertory.core.standing import Standing
    from repertory.runtime.message import Ask


class TurnDriver:
    """One turn from opening to answer."""

    def __init__(
        self,
        settings: AgentSettings,
        parts: AgentParts,
        means: Means,
        footing: Footing,
        invocation: Invocation,
        before: TurnDriver | None = None,
    ) -> None:
        """`before`: the call's turn before this one, with which it shares the limits."""
        self._settings = settings
        self._parts = parts
        self._means = means
        self._ledger = means.ledger
        self._conversation = means.conversation
        self._form = invocation.form
        self._invocation = invocation
        self.hooks = TurnHooks(parts.hooks, parts.owner, invocation.invocation_state, parts.mirror)
        self.record = TurnRecord(settings, parts, means, footing, self.hooks, invocation.idempotency_token)
        self.prepared: list[Answer] = []
        """Answers that are known before: a direct tool call asks no model, and is not seen by invocation hooks."""
        self.parked: Standing | None = None
        """Where the conversation stands among the tools of its last message, when these wait for a person."""
        self.resume: Said | Answers | None = None
        """The prompt that a hook wants to go on with, after the end."""
        self._direct = invocation.direct is not None
        self._over = True
        """Whether hooks have been told that the call is over, or not yet that it began."""
        limits = invocation.limits.over(settings.limits)
        self._sizes = limits.sizes
        self._machine = Turn(limits=limits, form=self._form is not None)
        if before is not None:
            self._machine = before.spent_by(self._machine)
        self._meter = TurnMeter(means.clock)
        self._stop = TurnStop(parts.wish, self._stop_after_tools)
        self._tools = TurnTools(
            TurnWork(
                settings=settings,
                parts=parts,
                ledger=means.ledger,
                invocation=invocation,
                hooks=self.hooks,
                record=self.record,
                meter=self._meter,
                stop=self._stop,
                sizes=self._sizes,
            )
        )
        self._spending = Spending((PAYER.get() if settings.agent_id == NAMELESS else None) or settings.agent_id)
        self._injected_tokens = 0
        """What was added to the last request takes about so many."""

    async def begin(self, prompt: Said | Answers) -> Said | Answers | AgentResult:
        """What the caller said, as hooks want it; a result when they want no turn, or the call was stopped by then."""
        if self._direct:
            return prompt
        self._over = False
        self._parts.mirror.take_draft()
        self._tokens: int | None = None
        """What the next request takes, where the conversation manager measures it."""
        said: Said | Answers | str | None = prompt
        if self.hooks.hear(BeforeInvocationEvent):
            said = await self._stop.unless(lambda: self.hooks.before_invocation(prompt))
        if isinstance(said, str):
            return await self.conclude("end_turn", message=spoken_answer(said).message)
        if said is None or self._stop.heard() is not None:
            return await self.conclude(self._stopped().stop.reason)
        return said

    async def conclude(
        self, reason: str, *, message: Message | None = None, interrupts: tuple[Interrupt, ...] = ()
    ) -> AgentResult:
        """The result of a call that ends before its turn began; nothing was said."""
        state = request_state(self._invocation)
        return await self.end(AgentResult(stop_reason=reason, message=message, state=state, interrupts=interrupts))

    async def end(self, result: AgentResult) -> AgentResult:
        """The call has this result, and no turn."""
        await self._tell_end(result)
        self._ledger.add_changes(self._parts.state)
        await self._ledger.commit()
        return result

    async def settle(self) -> None:
        """The call failed: what was said until then stays, and is written down."""
        await self._tell_end(None)
        self._ledger.add_changes(self._parts.state)
        if self.record.wrote:
            await mark_turn(self._parts, self.record.footing, self._ledger)
        self._ledger.hand_over(soon=True)

    async def run(self, opening: Began | Continued) -> AgentResult | Image:
        """The turn's result, durable as the settings say. Errors: those of model, view, guards and store.

        Where the conversation stands now, when others have gone on with it and nothing of the turn is on record.
        """
        event: Event = opening
        while True:
            self._machine, commands = step(self._machine, event)
            for command in commands:
                match command:
                    case Append(message=message):
                        await self.record.append(message)
                    case CallModel():
                        if self._parts.mirror.misnamed:
                            await self._name_manager()
                        moved = await self.record.begin()
                        if moved is not None:
                            return moved
                        event = await self._call_model(command)
                    case Reduce():
                        event = await self._reduce(command)
                    case RunTools():
                        event = await self._tools.run(command)
                    case Park():
                        return await self._park(command)
                    case Finish(stop_reason=reason, message=message):
                        return await self._finish(reason, message)
                    case Fail(error=error):
                        raise error
                    case _:
                        assert_never(command)

    async def _name_manager(self) -> None:
        """Have the first commit say which conversation manager is in use."""
        named = NameManager(added=self.record.footing.take_unshown())
        self._note_view(await self._conversation.ask(named, timeout_s=math.inf))
        self._parts.mirror.misnamed = False

    def begin_again(self, footing: Footing) -> None:
        """The next run begins from here: the conversation has gone on meanwhile."""
        self.record.begin_again(footing)
        self._machine = self._machine._replace(phase=Phase.READY)

    async def after_answer(self) -> None:
        """When the answer is out: make durable what a relaxed turn left undone."""
        if self._settings.durability == "relaxed":
            await self._ledger.commit(closing=True, patient=False)

    def stop(self, stop: Stop, *, after_tools: bool = False) -> None:
        """End the turn early, with a history in which everything pairs up: at once, or when the tools that run have
        ended (those of the answer that comes, when none run). The first one to ask decides; an end at once is earlier.
        """
        if after_tools:
            self._stop_after_tools(stop)
        else:
            self._stop.ask(stop)

    def _stop_after_tools(self, stop: Stop) -> None:
        if self._machine.phase is not Phase.OVER:
            self._machine, _ = step(self._machine, StopAsked(stop))

    def steer(self, content: tuple[ContentBlock, ...]) -> bool:
        """Add to the turn what the model is shown at its next step; False when the turn is over already."""
        if self._machine.phase in (Phase.READY, Phase.OVER) or self._direct:
            return False
        self._machine, _ = step(self._machine, Steered(content))
        return True

    @property
    def undelivered(self) -> tuple[ContentBlock, ...]:
        """Steering that came too late for any step of the turn."""
        return self._machine.steering

    def spent_by(self, turn: Turn) -> Turn:
        """The turn, with what this one has spent of its limits."""
        spent = self._machine
        return turn._replace(steps=spent.steps, total_tokens=spent.total_tokens, output_tokens=spent.output_tokens)

    @property
    def may_resume(self) -> bool:
        """Whether a hook may add another turn to the call: nothing has cut it short, and no limit of it is reached."""
        return self._stop.heard() is None and self._machine.stop is None and self._machine.limit_reached is None

    # Asking the model.

    async def _call_model(self, command: CallModel) -> Event:
        if self.prepared:
            return Answered(self.prepared.pop(0))
        try:
            if command.after_s:
                await self._stop.unless(lambda: anyio.sleep(command.after_s))
            self._look_at_budgets()
            request = None if self._stop.heard() else await self._request(form_only=command.form_only)
            if request is None or self._stop.heard():
                return self._stopped()
            instead = await self._answer_instead(request) if self.hooks.hear(BeforeModelCallEvent) else None
            if (shown := await self._show_edits()) is not None:
                request = replace(request, messages=with_noted_summary(shown))
            if instead is None:
                self._look_at_budgets()  # A summary, or a hook, may have used what was left.
            self._meter.asking()
            answer = await self._stop.unless(lambda: self._ask(request)) if instead is None else spoken_answer(instead)
            if isinstance(answer, RepertoryError):
                return await self._failed(answer)
            if answer is None:
                await self._asked_again(None, None, retry=False)
                return self._stopped()
            return await self._answered(answer, form_only=command.form_only)
        except RepertoryError as error:
            return Erred(error)

    def _look_at_budgets(self) -> None:
        """End the turn when what it may use with others is used up. Errors: `Invalid` for a model without a price."""
        reason = self._spending.reached(self._parts.model)
        if reason is not None:
            self.stop(Stop(reason=reason))

    async def _answer_instead(self, request: Request) -> str | None:
        """What a hook wants the answer to be, without asking the model."""
        tokens = partial(projected_tokens, request.messages, request.tool_specs, request.system_prompt)
        if self._tokens is not None:
            tokens = partial(int, self._tokens)
        return await self._stop.unless(lambda: self.hooks.before_model(tokens))

    async def _asked_again(self, answer: Answer | None, error: RepertoryError | None, *, retry: bool) -> bool | None:
        """Whether the model is to be asked once more; None when the turn was stopped while hooks thought about it."""
        if not self.hooks.hear(AfterModelCallEvent):
            return retry
        return await self._stop.even_so(lambda: self.hooks.after_model(answer, error, retry=retry))

    async def _request(self, *, form_only: bool) -> Request:
        """What the model is to be asked; what was said until now is on its way to the store, or there."""
        await self._own_or_raise()
        await self._show_edits()
        specs = self._parts.tools.specs
        prompt, model = self._parts.system_prompt, self._parts.model
        window, countable = told_by(model)
        beside = Beside(tool_specs=specs, system_prompt=system_text(prompt), window=window, countable=countable)
        budgets = self._spending.budgets
        first = PrepareCall(added=self.record.footing.take_unshown(), beside=beside, budgets=budgets)
        again = PrepareCall(added=(), beside=beside, budgets=budgets, again=True)
        shown = await self._decided(first, again)
        if shown.count:
            shown = await self._decided(await counted(model, shown.messages, beside), again)
        self._tokens = shown.tokens
        # What is shown shortened, tools may read whole.
        self._ledger.hand_over(soon=not self._settings.durable and self._parts.hooks.shorten is not None)
        options: dict[str, Any] = {}
        if self._form is not None:
            specs = (self._form.spec,) if form_only else (*specs, self._form.spec)
            if form_only:
                options["tool_choice"] = {"tool": {"name": self._form.name}}
        blocks, sent = system_blocks(prompt), with_noted_summary(shown.messages)
        if blocks is not None:
            options["system_prompt_content"] = blocks
        return Request(messages=sent, tool_specs=specs, system_prompt=beside.system_prompt, options=options)

    async def _decided(self, question: Ask[Shown], again: Ask[Shown]) -> Shown:
        """What the model is shown. While that is being decided the turn waits, unless it is stopped meanwhile."""
        shown = await self._conversation.ask(question, timeout_s=math.inf)
        self._note_view(shown)
        while shown.undecided:
            await self._stop.unless(lambda: self._conversation.ask(Settle(), timeout_s=math.inf))
            if self._stop.heard():
                break
            shown = await self._conversation.ask(again, timeout_s=math.inf)
            self._note_view(shown)
        return shown

    async def _own_or_raise(self) -> None:
        """Start writing what was said; after a pause, or with too much that waits, wait for the store first."""
        if self._ledger.full or not self._ledger.confirmed_within(self._settings.confirm_s):
            await self._ledger.prove()
        self._ledger.hand_over()

    def _stopped(self) -> Stopped:
        return Stopped(self._stop.heard() or CANCELLED)

    async def _ask(self, request: Request) -> Answer | RepertoryError:
        """The answer, or what the model failed with."""
        try:
            if self._parts.hooks.injections:
                context = InjectionContext(request.messages, self._parts.state, self._parts.owner)
                messages, self._injected_tokens = await injected(self._parts.hooks.injections, context)
                self._meter.left_out |= context.left_out
                request = replace(request, messages=messages)
            publish = self._publish_raw if self.record.publish else None
            return await call_model(self._parts.model, request, publish, self._sizes.answer_bytes)
        except RepertoryError as error:
            return error

    async def _failed(self, error: RepertoryError) -> Event:
        """Whether the call is made again is for the retry strategy to say, and for hooks."""
        retry, attempt = self._parts.retry, self._meter.attempts
        delay_s = retry_delay_s(retry, error, attempt, self._means.chance())
        again = await self._asked_again(None, error, retry=delay_s is not None)
        if again is None:
            return self._stopped()
        if again:
            return await self._again(RetryModel(delay_s or 0.0), attempt, error)
        return Overflowed(error) if isinstance(error, ContextWindowOverflowException) else Erred(error)

    async def _answered(self, answer: Answer, *, form_only: bool) -> Event:
        if answer.redact_user is not None:
            await self.record.redact(answer.redact_user)
        answer.message["metadata"] = {"usage": answer.usage}
        if answer.stop_reason in LIMITED or answer.stop_reason in REFUSED:
            answer.message["metadata"]["custom"] = {"stop_reason": answer.stop_reason}
        if self._injected_tokens:
            answer.message["metadata"].setdefault("custom", {})[INJECTED_TOKENS] = self._injected_tokens
            self._injected_tokens = 0
        attempt = self._meter.attempts
        self._meter.answered(answer)
        self._spending.charge(self._parts.model, answer.usage)
        again = await self._asked_again(answer, None, retry=False)
        if again is None:
            return self._stopped()
        if again:
            return await self._again(RetryModel(0.0, thrown_away=answer), attempt, None)
        return Answered(answer, self._read_form(answer.message) if form_only else None)

    async def _again(self, event: RetryModel, attempt: int, error: RepertoryError | None) -> RetryModel:
        if self.record.publish is not None:
            await self.record.publish({"model_retry": {"attempt": attempt, "delay_s": event.after_s, "error": error}})
        return event

    def _read_form(self, message: Message) -> str | None:
        """The form's JSON text, when the model wrote it as its answer instead of calling the tool."""
        if self._form is None or any(tool_uses(message)):
            return None
        try:
            self._tools.filled, text = self._form.read(text_of(message))
        except Invalid:
            return None
        return text

    async def _reduce(self, command: Reduce) -> Event:
        try:
            first = ReduceView(error=command.error, before=command.before)
            shown = await self._decided(first, replace(first, again=True))
        except ContextWindowOverflowException as overflow:
            self._look_at_budgets()  # Nothing may have been left for a summary.
            return Erred(overflow) if self._stop.heard() is None else self._stopped()
        if shown.undecided:
            return self._stopped()
        return Reduced(Size(estimate_tokens(shown.messages), len(shown.messages)))

    # Ending.

    async def _finish(self, reason: str, message: Message | None) -> AgentResult:
        """Tidy up first, so that the answer and what the next turn is shown are one commit, and one record."""
        last = None if message is None else self.record.footing.last  # As hooks have left it.
        result = AgentResult(
            stop_reason=reason,
            message=None if last is None else copy_message(last),
            metrics=self._meter.metrics(),
            state=request_state(self._invocation),
            structured_output=None if message is None or reason == CANCELLED.reason else self._tools.filled,
        )
        await self._tell_end(result)
        await self._show_edits()
        added, budgets = self.record.footing.take_unshown(), self._spending.budgets
        await self._decided(Tidy(added=added, budgets=budgets), Tidy(added=(), budgets=budgets, again=True))
        return await self._stored(result)

    async def _park(self, command: Park) -> AgentResult:
        """What ended and what is asked are one commit. What the model is shown is left alone: the step is not over."""
        at = self._ledger.wall()
        for ended in command.results:
            self._ledger.add(ToolFinished(at=at, tool_use_id=ended["toolUseId"], result=ended))
        self._ledger.add(Interrupted(at=at, interrupts=command.interrupts, parked=command.parked))
        self.parked = self._tools.standing
        result = AgentResult(
            stop_reason="interrupt",
            message=None,
            metrics=self._meter.metrics(),
            state=request_state(self._invocation),
            interrupts=command.interrupts,
        )
        await self._tell_end(result)
        return await self._stored(result)

    async def _stored(self, result: AgentResult) -> AgentResult:
        """The result, when it is as durable as the settings say."""
        self._ledger.add_changes(self._parts.state)
        await mark_turn(self._parts, self.record.footing, self._ledger)
        if self._settings.durability == "relaxed":
            self._ledger.promise()
            self._ledger.hand_over()
        else:
            await self._ledger.commit(closing=True)
        return result

    async def _tell_end(self, result: AgentResult | None) -> None:
        """Tell hooks that the call is over, once."""
        if not self._over:
            self._over = True
            self.resume = await self.hooks.after_invocation(result)

    async def _show_edits(self) -> Sequence[Message] | None:
        """Make what callbacks did to `agent.messages` part of the turn. What is shown then; None without edits."""
        draft = self._parts.mirror.take_draft()
        if draft is None:
            return None
        added = self.record.footing.take_unshown()
        shown = await self._conversation.ask(EditShown(added=added, draft=draft), timeout_s=math.inf)
        self._note_view(shown)
        return shown.messages

    def _note_view(self, shown: Shown) -> None:
        self._parts.mirror.show(shown.messages)
        for change in shown.views:
            self._ledger.add_view(change)
            self._parts.mirror.note_view(change.view)

    async def _publish_raw(self, event: dict[str, Any]) -> None:
        if self.record.publish is not None:
            await self.record.publish({"event": event})
            derived = derived_event(event)
            if derived is not None:
                await self.record.publish(derived)


async def mark_turn(parts: AgentParts, footing: Footing, ledger: Ledger) -> None:
    """Ask whether the turn that has just ended is to be marked, and add the record when it is. Does not fail."""
    if parts.mark is None:
        return
    turn = EndedTurn(turns=footing.turns, messages=parts.mirror.messages(), state=parts.state)
    record = await parts.mark(turn)
    if record is not None:
        ledger.add(record)


_log = logging.getLogger("repertory.conversation")


def told_by(model: Model) -> tuple[int | None, bool]:
    """Its window in tokens, and whether it counts. Errors: `ModelFailed` when its own code fails."""
    try:
        return model.context_window_limit, model.counts_tokens
    except Exception as error:
        raise ModelFailed("the model cannot say how it is set", model=type(model).__name__) from error


async def counted(model: Model, messages: Sequence[Message], beside: Beside) -> Counted:
    """What the model counts, if it can."""
    try:
        return Counted(tokens=await model.count_tokens(messages, beside.tool_specs, beside.system_prompt))
    except Exception as error:  # noqa: BLE001 - A model may be anybody's code; the estimate stays.
        _log.warning("the model did not count", exc_info=error)
        return Counted(tokens=None)
