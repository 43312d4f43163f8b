"""Runs one turn: carries out the commands of the turn machine, and reports back what happened.

The machine (`core/turn.py`) decides; this file only acts. A driver lives for one turn, inside a job of the agent actor.
Stopping a turn cancels the running command, never the driver, so that the outcome is always recorded.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never, cast
from weakref import ref

import anyio
from msgspec import Struct
from msgspec.structs import replace

from repertory.actors.call import BUDGET_OWNER, Spending, request_state, trace_here
from repertory.actors.context import NAMELESS, TurnContext, TurnRecord
from repertory.actors.conversation import PrepareCall, ReduceView, Tidy, counted_by, window_of_model
from repertory.actors.hooks.events import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
)
from repertory.actors.hooks.injections import InjectionContext, injected
from repertory.actors.journal import output_in
from repertory.actors.tools import run_tools
from repertory.backends.ports import AgentMetadata, estimates_tokens, gated_stream, known_names, settings_of
from repertory.core.answer import LIMITED, Answer, Assembler, used_ids
from repertory.core.journal import deferrals
from repertory.core.journal.pending_tools import pending_tools_of
from repertory.core.journal.records import Interrupted, Resumed, ToolFinished
from repertory.core.messages import (
    COMPACTION,
    PAUSED,
    ContentBlock,
    Message,
    copy_message,
    for_model,
    system_blocks,
    system_text,
    text_of,
    tool_uses,
)
from repertory.core.provider_content import is_compaction
from repertory.core.refusals import naming, raised_by_model, refusal_of
from repertory.core.result import AgentResult, derived_event
from repertory.core.tokens import INJECTED_TOKENS, estimate_tokens, projected_tokens
from repertory.core.turn import (
    CANCELLED,
    CANCELLED_TEXT,
    OUTPUT_PROMPT,
    REFUSED,
    Answered,
    AppendMessage,
    Began,
    CallModel,
    Continued,
    Erred,
    FailTurn,
    FinishTurn,
    MachineEvent,
    Overflowed,
    Park,
    Reduce,
    Reduced,
    RetryModel,
    RunTools,
    Size,
    StopAsked,
    Stopped,
    StopReason,
    Turn,
    TurnPhase,
    step,
    stopped_answer,
    with_steered,
)
from repertory.core.turns.subagents import SUBAGENT, unshown_calls_of
from repertory.core.turns.turn_start import (
    AskPerson,
    InterruptResponses,
    UserMessages,
    asked_again,
    brought_before,
    going_on_with,
    spoken_answer,
    start_turn,
    taking_over,
)
from repertory.core.window.decision import with_noted_summary
from repertory.core.window.gauge import RequestOverhead
from repertory.core.window.injection import added_blocks
from repertory.errors import ContextWindowOverflowException, Invalid, ModelFailed, RepertoryError
from repertory.logs import ERROR, WARNING, note
from repertory.runtime.faults import failure_of, repr_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from repertory.actors.call import Invocation
    from repertory.actors.context import AgentParts, PublishTurnEvent
    from repertory.actors.conversation import ModelView
    from repertory.actors.hooks.middleware import MiddlewareRegistry
    from repertory.actors.journal import ActorJournal
    from repertory.backends.ports import Model, OutputSchema
    from repertory.core.converse import StreamEvent
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import ToolSpec, ToolUse
    from repertory.core.retry import RetryStrategy
    from repertory.core.turns.turn_start import TurnStart, UnknownOutcome


class TurnDriver:
    """One turn from its start to its answer."""

    def __init__(
        self, turn: TurnContext, record: TurnRecord, chance: Callable[[], float], before: TurnDriver | None = None
    ) -> None:
        """`chance` gives random numbers from 0 up to 1; `before` is the call's previous turn, with which it shares the
        limits.
        """
        self._turn = turn
        self.hooks = turn.hooks
        self._parts = turn.parts
        self._invocation = turn.invocation
        self._journal = record.journal
        self._model = ModelCalls(turn, record, chance)
        self._machine = Turn(
            limits=turn.limits,
            wants_output=turn.invocation.output_schema is not None,
            output_prompt=turn.invocation.output_prompt or OUTPUT_PROMPT,
        )
        if before is not None:
            self._machine = before.spent_by(self._machine)
        # With this and other cycles gone (24 objects a turn before), the garbage collector takes a quarter less time.
        turn.stop.after_tools = _without_holding(self)
        self._direct = turn.invocation.direct is not None
        self._over = True
        """True unless hooks have been told that the call began, and not yet that it ended."""
        self.record = record
        self.waits = False
        """True from its end on, while its call waits for tools that run beside it."""
        self.resume: UserMessages | InterruptResponses | None = None
        """The prompt of a further turn that a hook wants, after the end of this one; None for none."""

    async def begin(self, prompt: UserMessages | InterruptResponses) -> UserMessages | InterruptResponses | AgentResult:
        """The prompt after hooks. A result if a hook answers the call itself, or the call was stopped meanwhile."""
        if self._direct:
            return prompt
        self._over = False
        # Copies that callbacks of an earlier turn have edited, and nobody took: they are no edits of this one.
        self._parts.read_model.draft = None
        hooks, stop = self._turn.hooks, self._turn.stop
        outcome: UserMessages | InterruptResponses | str | None = prompt
        if BeforeInvocationEvent in hooks.listened:
            outcome = await stop.run_unless_stopped(lambda: hooks.before_invocation(prompt))
        if isinstance(outcome, str):
            return await self.conclude("end_turn", message=spoken_answer(outcome).message)
        if outcome is None or stop.reason() is not None:
            # Nothing of the turn is recorded: the conversation stays as if the call had never been made.
            why = self._model.stopped().stop
            text = CANCELLED_TEXT if why.text is None and why.reason == CANCELLED.reason else why.text
            return await self.conclude(why.reason, message=None if text is None else spoken_answer(text).message)
        if self._turn.tell_start is not None:
            await self._turn.tell_start({"init_event_loop": True})
        return outcome

    def publish_to(self, publish: PublishTurnEvent) -> None:
        """Send the turn's events to `publish` from now on."""
        self._turn.publish = publish

    def answer_with(self, answers: list[Answer]) -> None:
        """Use these answers instead of asking the model. Hooks are not told of the call."""
        self._model.prepared = answers

    async def conclude(
        self, reason: str, *, message: Message | None = None, interrupts: tuple[Interrupt, ...] = ()
    ) -> AgentResult:
        """End a call before its turn has begun, with nothing recorded of the turn."""
        state = request_state(self._invocation)
        asked = self.record.asked(interrupts)
        return await self.end(AgentResult(cast("Any", reason), message, state=state, interrupts=asked))

    async def end(self, result: AgentResult) -> AgentResult:
        """End a call with this result and no turn."""
        await self._tell_end(result)
        self._journal.add_changes(self._parts.state)
        # Waits even though no turn began: hooks may have changed the agent's state, which the caller sees in the
        # result.
        await self._journal.commit()
        return result

    async def settle(self) -> None:
        """The call failed: keep its records so far, and store them."""
        await self._tell_end(None)
        self._journal.add_changes(self._parts.state)
        if self.record.wrote and self._parts.mark is not None:
            await self.record.mark(self._parts.mark)
        self._journal.hand_over(soon=True)

    async def run(self, opening: Began | Continued) -> AgentResult | None:
        """The turn's result, durable as the settings say. Errors: those of model, view, guards and store.

        None if another process has gone on with the conversation; nothing of the turn is recorded then.
        """
        event: MachineEvent = opening
        trace = trace_here()
        while True:
            self._machine, commands = step(self._machine, event)
            for command in commands:
                match command:
                    case AppendMessage(message=message):
                        await self.record.append(message)
                    case CallModel():
                        # In the first commit: a turn that was cut off before its window was decided left a session that
                        # named another manager, which the SDK refuses to open.
                        if self._parts.read_model.manager_changed:
                            await self.record.name_manager()
                        if not await self.record.begin():
                            return None
                        if trace is not None and not self._direct:
                            trace.step(self._machine.steps)
                        event = await self._model.call(command)
                        # The model was asked beside the commit that takes the session. If that was refused, its answer
                        # belongs to a history that is not there.
                        if self.record.taking is not None and not await self.record.owned():
                            return None
                    case Reduce():
                        event = await self._model.reduce(command)
                    case RunTools():
                        # Without waiting for the store: only a tool with effects waits (`ToolStep._record_intents`).
                        self._journal.hand_over()  # The tools may be waited for as long as a model.
                        event = await run_tools(self._turn, self.record, command)
                        if trace is not None:
                            trace.step(None)
                    case Park():
                        return await self._park(command)
                    case FinishTurn(stop_reason=reason, message=message):
                        if trace is not None:
                            trace.step(None)
                        return await self._finish(reason, message)
                    case FailTurn(error=error):
                        # Not in `AgentResult`: a cut-off answer must never be taken for a whole one by code that
                        # forgets to look.
                        raise error
                    case _:
                        assert_never(command)

    def begin_again(self) -> None:
        """Begin the next `run` at the journal's new position, since the conversation has gone on meanwhile."""
        self.record.begin_again()
        self._machine = self._machine._replace(phase=TurnPhase.READY)

    def stop(self, stop: StopReason, *, after_tools: bool = False) -> None:
        """End the turn early, with a valid history: at once, or when the running tools have ended. If no tools run,
        `after_tools` waits for those of the next answer. The first reason counts, unless a later one ends it at once.
        """
        if not after_tools or self.waits:
            self._turn.stop.ask(stop)
        # A turn that is over has no transition for it, and the machine would raise.
        elif self._machine.phase is not TurnPhase.OVER:
            self._machine, _ = step(self._machine, StopAsked(stop))

    def hears_stop(self) -> bool:
        """True if the turn is to end at once."""
        return self._turn.stop.reason() is not None

    def steer(self, content: tuple[ContentBlock, ...]) -> bool:
        """Show the model this content at its next step. False if the turn is over, or holds as much as a prompt may."""
        turn = None if self._direct else with_steered(self._machine, content, self._turn.sizes.prompt_bytes)
        self._machine = turn or self._machine
        return turn is not None

    @property
    def undelivered(self) -> tuple[ContentBlock, ...]:
        """Steering that came too late for any step of the turn."""
        return self._machine.steering

    def spent_by(self, turn: Turn) -> Turn:
        """`turn`, with what this turn has spent of their common limits."""
        spent = self._machine
        return turn._replace(steps=spent.steps, total_tokens=spent.total_tokens, output_tokens=spent.output_tokens)

    @property
    def may_resume(self) -> bool:
        """True if a hook may add another turn to the call: nothing has cut it short, and it has reached no limit."""
        return self._turn.stop.reason() is None and self._machine.stop is None and self._machine.limit_reached is None

    # Ending.

    async def _finish(self, reason: str, message: Message | None) -> AgentResult:
        """Tidy up first, so that the answer and the next turn's view are one commit and one record."""
        last = None if message is None else self._journal.fold.last_message  # With the edits of hooks.
        form = self._invocation.output_schema
        # A hook has edited the answer that is stored, and the value that the caller gets must be what a replay would
        # read from it.
        if form is not None and last is not None and message is not None and text_of(last) != text_of(message):
            self._turn.structured_output = output_in(last, form)
        if last is not None and self._machine.paused:
            # A paused answer is stored in parts, as its provider wants it back; the caller sees one.
            whole: Message = {**last, "content": [*self._machine.paused, *last["content"]]}
            last = whole
        if last is None and reason == CANCELLED.reason:
            last = spoken_answer(CANCELLED_TEXT).message
        result = AgentResult(
            stop_reason=cast("Any", reason),
            # A copy: the fold's own message must not change with what the caller does to the result.
            message=None if last is None else copy_message(last),
            metrics=self._turn.meter.metrics(),
            state=request_state(self._invocation),
            structured_output=None if message is None or reason == CANCELLED.reason else self._turn.structured_output,
        )
        # Hooks first: the state that they set belongs to the same commit as the answer.
        await self._tell_end(result)
        # Then the window: it decides about messages as hooks have left them.
        await self.record.show_edits(ending=True)
        added, budgets = self._journal.take_unshown(), self._model.budgets
        await self.record.decided(Tidy(added=added, budgets=budgets), Tidy(added=(), budgets=budgets, again=True))
        return await self._stored(result)

    async def _park(self, command: Park) -> AgentResult:
        """Record the ended tools and the interrupts in one commit. The view stays as it is: the step is not over."""
        at = self._journal.wall()
        for ended in command.results:
            self._journal.add(ToolFinished(at=at, tool_use_id=ended["toolUseId"], result=ended))
        self._journal.add(Interrupted(at=at, interrupts=command.interrupts, parked=command.parked))
        result = AgentResult(
            stop_reason="interrupt",
            message=None,
            metrics=self._turn.meter.metrics(),
            state=request_state(self._invocation),
            interrupts=self.record.asked(command.interrupts),
        )
        await self._tell_end(result)
        return await self._stored(result)

    async def _stored(self, result: AgentResult) -> AgentResult:
        """The result, once it is as durable as the settings say."""
        # Counted before the store is waited for: the model was paid whether or not the answer can be stored.
        self._parts.add_metrics(result.metrics)
        if self._parts.destinations is not None:
            self.record.note_end(result)
        self._journal.add_changes(self._parts.state)
        if self._parts.mark is not None:
            await self.record.mark(self._parts.mark)
        if self._turn.settings.durability == "relaxed":
            # Before the rows are handed over: if the store refuses them at once, they are already known as answered,
            # and the next call is told of the loss.
            self._journal.promise()
            self._journal.hand_over()
        else:
            # A commit that gives the session up (a bucket, PostgreSQL) saves a request, but nothing may be written
            # behind it.
            nothing_follows = self.resume is None and not self._parts.remembers and self._journal.pending_work is None
            await self._journal.commit(closing=True, ends=nothing_follows)
        return result

    async def _tell_end(self, result: AgentResult | None) -> None:
        if not self._over:
            self._over = True
            hooks = self._turn.hooks
            # A hook may ask for another turn with its own prompt; `AgentActor._drive` runs it as part of the same call.
            self.resume = await hooks.after_invocation(result) if AfterInvocationEvent in hooks.listened else None


def _without_holding(driver: TurnDriver) -> Callable[[StopReason], None]:
    """`driver.stop(..., after_tools=True)`. Held by what the driver holds, it would make the whole turn a cycle, which
    only the garbage collector frees.
    """
    held = ref(driver)

    def stop(reason: StopReason) -> None:
        driver = held()
        if driver is not None:
            driver.stop(reason, after_tools=True)

    return stop


class TurnStarter:
    """Decides how each turn of one agent begins."""

    __slots__ = ("_initial", "_journal", "_parts", "_unknown_outcome")

    def __init__(self, journal: ActorJournal, parts: AgentParts, unknown_outcome: UnknownOutcome, initial: int) -> None:
        """`initial`: the number of messages that the agent was built with."""
        self._initial = initial
        self._journal = journal
        self._parts = parts
        self._unknown_outcome: UnknownOutcome = unknown_outcome

    async def open(
        self, prompt: UserMessages | InterruptResponses, invocation: Invocation, record: TurnRecord
    ) -> TurnStart:
        """The beginning of the turn. Errors: those of `start_turn` and of guards; nothing is recorded then."""
        fold, token, unanswered = self._journal.fold, invocation.idempotency_token, None
        if isinstance(prompt, InterruptResponses) and brought_before(
            pending_tools_of(fold), prompt.responses, record.called_by, fold.open_tokens
        ):
            prompt = UserMessages(messages=())
        if token is not None and isinstance(prompt, UserMessages):  # Another turn may have begun after it.
            unanswered = fold.turn_tokens.left_behind(token, fold.last_message)
        if unanswered is not None and isinstance(prompt, UserMessages):
            recent = tuple(fold.shown.recent)
            # A note in the place of the prompt: said twice, it would have its tools run twice.
            prompt = UserMessages(messages=(going_on_with(unanswered, recent, prompt.messages),))
        asking = None
        if (fold.came or fold.deferred) and isinstance(prompt, UserMessages) and invocation.direct is None:
            prompt = await record.with_results(prompt)
            asking = deferrals.asking_behind_answer(fold, invocation.due)
            prompt = taking_over(prompt) if asking is not None else prompt
        opening = self._decide(prompt, record, drop=invocation.drop_interrupts)
        if asking is not None and isinstance(opening, Began):
            # As a tool of this turn it has its questions asked, and goes on when they are answered.
            starts = partial(deferrals.foreground_records, fold, asking, self._journal.wall())
            await record.state_again(opening.messages, deferrals.in_foreground(asking), starts)
            return self._decide(UserMessages(messages=()), record, drop=False)
        if unanswered is None or not unanswered.unknown or not isinstance(opening, Began):
            return opening
        # Tools of unknown outcome are asked for again under new ids, as a crash would have left them; the second
        # decision then treats them like any others.
        again, starts = asked_again(unanswered, self._journal.wall())
        await record.state_again(opening.messages, again, lambda: starts)
        return self._decide(UserMessages(messages=()), record, drop=False)

    def _decide(self, prompt: UserMessages | InterruptResponses, record: TurnRecord, *, drop: bool) -> TurnStart:
        fold, now = self._journal.fold, self._journal.wall()
        pending = pending_tools_of(fold)
        first = fold.turns == 1 and fold.message_count == self._initial
        opening = start_turn(pending, prompt, self._policy, now=now, drop=drop, first=first)
        new = pending.new_answers(prompt.responses) if isinstance(prompt, InterruptResponses) else {}
        # Responses are a record of their own, before anything runs: a later one then never finds a tool half done.
        if new:
            self._journal.add(Resumed(at=now, responses=new, joined=record.joins_as))
            # As the fold will say it, without reading it again.
            pending = pending.answered(new)
        asked = pending.not_asked(opening.interrupts) if isinstance(opening, AskPerson) else ()
        if asked:
            self._journal.add(Interrupted(at=now, interrupts=asked))
        return opening

    def _policy(self, use: ToolUse) -> UnknownOutcome:
        tool = self._parts.tools.get(use["name"])
        # Without effects, or safe to repeat: running it again is what its author has declared harmless.
        return "retry" if tool is not None and self._parts.goes_on(tool) else self._unknown_outcome


# Calls the model for one step of a turn (`ModelCalls`); `side_calls.py` does so beside turns.

# A call takes the conversation manager's view, passes hooks and budgets, adds the injections of this call, publishes
# pieces of the answer as they arrive, and repeats as the retry strategy says, until there is a whole answer.

Publish = Callable[["StreamEvent"], Awaitable[None]]

_log = logging.getLogger("repertory.retries")
_refusals_log = logging.getLogger("repertory.models")


class ModelRequest(Struct, frozen=True, kw_only=True):
    """One request to the model. The messages must not be edited."""

    messages: Sequence[Message]
    tool_specs: Sequence[ToolSpec]
    system_prompt: str | None
    options: Mapping[str, Any] = {}
    """Rare options: `tool_choice`, `system_prompt_content` if the system prompt is content blocks,
    `dynamic_trailing_blocks` if a model that caches gets blocks for this call alone, and what the model wants to be
    told of the call: `agent_metadata`, `cancel_signal`, `invocation_state`.
    """
    output: OutputSchema | None = None
    """The structured output that the caller asked for."""
    until_owned: Callable[[], Awaitable[None]] | None = None
    """Awaited before the first piece of the answer is taken."""


class ModelCalls:
    """The model calls of one turn."""

    def __init__(self, turn: TurnContext, record: TurnRecord, chance: Callable[[], float]) -> None:
        """`chance` gives random numbers from 0 up to 1."""
        self._turn = turn
        self._parts = turn.parts
        self._hooks = turn.hooks
        self._record = record
        self._chance = chance
        self._form = turn.invocation.output_schema
        agent_id = turn.settings.agent_id
        nameless = agent_id == NAMELESS or agent_id.startswith(SUBAGENT)
        self._spending = Spending((BUDGET_OWNER.get() if nameless else None) or agent_id)
        self.budgets = self._spending.budgets
        """The budgets towards which the turn's usage counts."""
        self._tokens: int | None = None
        """Tokens of the next request, where the conversation manager measures it."""
        if agent_id.startswith(SUBAGENT):
            record.journal.unshown_calls = unshown_calls_of(agent_id, self.budgets)
        self._charged = False
        """True if the budgets know already what the last answer took."""
        self._injected_tokens = 0
        """Estimated tokens of the last request's injections."""
        self._begins = True
        """True until the turn's first request."""
        self._viewed_messages: Sequence[Message] = ()
        """The messages that the last request was made of."""
        self._streaming: Assembler | None = None
        """The answer of the last request, as far as it has come; None if middleware or a hook gives it."""
        self.prepared: list[Answer] = []
        """Prepared answers: a direct tool call asks no model."""

    def stopped(self) -> Stopped:
        """The event for a turn that must end now."""
        return Stopped(self._turn.stop.reason() or CANCELLED)

    async def call(self, command: CallModel) -> MachineEvent:
        """Ask the model, or take a prepared answer."""
        stop = self._turn.stop
        if self.prepared:
            # A direct tool call takes the session as any turn does, though no model is waited for.
            return Answered(self.prepared.pop(0)) if await self._record.settled() else self.stopped()
        if self._turn.tell_start is not None and not self._turn.meter.attempts:
            await self._turn.tell_start({"start_event_loop": True})
        try:
            if command.after_s:
                await stop.run_unless_stopped(lambda: anyio.sleep(command.after_s))
            # After the pause: others may have used the budget up while this call waited.
            if self.budgets:
                self._look_at_budgets()
            request = None if stop.reason() else await self._request(output_only=command.output_only)
            if request is None or stop.reason():
                return self.stopped()
            return await self._past_hooks(request, output_only=command.output_only)
        except RepertoryError as error:
            return Erred(error)

    async def reduce(self, command: Reduce) -> MachineEvent:
        """Shorten what the model is shown."""
        try:
            first = ReduceView(error=command.error, before=command.before)
            view = await self._record.decided(first, replace(first, again=True))
        except ContextWindowOverflowException as overflow:
            # The overflow is then no failure of the turn: it ends with the budget as its reason.
            self._look_at_budgets()  # A summary may need budget that is used up.
            return Erred(overflow) if self._turn.stop.reason() is None else self.stopped()
        if view.undecided:
            return self.stopped()
        return Reduced(Size(estimate_tokens(view.messages), len(view.messages)))

    def _look_at_budgets(self) -> None:
        """End the turn if one of its budgets is used up. Errors: `Invalid` for a model without a price."""
        reason = self._spending.reached(self._parts.model)
        if reason is not None:
            self._turn.stop.ask(StopReason(reason=reason))

    # What the model is asked.

    async def _request(self, *, output_only: bool) -> ModelRequest:
        """The next request. By now all earlier messages are stored or on their way to the store."""
        # A process that was frozen for minutes loses its session here, before it pays for a model call.
        await self._record.own_or_raise()
        await self._record.show_edits()
        deferral, prompt = self._parts.deferral, self._parts.system_prompt
        specs = self._parts.tools.specs if deferral is None else deferral.visible_specs(self._parts)
        if self._parts.background is not None:
            specs = self._parts.background.specs(specs, self._parts)
        window, countable = window_of_model(self._parts.model)
        overhead = RequestOverhead(
            tool_specs=specs,
            system_prompt=system_text(prompt),
            window=window,
            countable=countable,
            estimates=estimates_tokens(type(self._parts.model)),
        )
        view = await self._view(overhead)
        # Messages that the model sees shortened, tools may read whole.
        self._record.journal.hand_over(soon=not self._turn.settings.durable and self._parts.hooks.shorten is not None)
        options: dict[str, Any] = {}
        if self._form is not None:
            specs = (*(spec for spec in specs if spec["name"] != self._form.name), self._form.spec)
            if output_only:
                # Only in the second attempt: forced from the start, the model could use no other tool at all.
                options["tool_choice"] = {"tool": {"name": self._form.name}}
        # Given only to models that name such a parameter: a `stream` of a user's own class would raise a TypeError.
        for name in known_names(self._parts.model):
            match name:
                case "cancel_signal":
                    options[name] = self._parts.cancel_signal()
                case "invocation_state":
                    options[name] = self._turn.invocation.invocation_state
                case _:
                    settings = self._turn.settings
                    # The id of a conversation that is not stored is made up, and a service should not group calls by
                    # it.
                    options[name] = AgentMetadata(session_id=settings.session_id if settings.durable else None)
        blocks, sent = system_blocks(prompt), with_noted_summary(view.messages)
        if blocks is not None:
            options["system_prompt_content"] = blocks
        prompt, form = overhead.system_prompt, self._form
        return ModelRequest(messages=sent, tool_specs=specs, system_prompt=prompt, options=options, output=form)

    async def _view(self, overhead: RequestOverhead) -> ModelView:
        """The view for a request with these tools and system prompt, its tokens counted where that matters."""
        # Taken once: asked again (`again`), the conversation actor has these messages already.
        added, budgets = self._record.journal.take_unshown(), self.budgets
        begins, self._begins = self._begins, False
        first = PrepareCall(added=added, overhead=overhead, budgets=budgets, begins=begins)
        again = PrepareCall(added=(), overhead=overhead, budgets=budgets, again=True)
        view = await self._record.decided(first, again)
        # Counting may be a request to the provider, so the manager says whether it matters for its decision.
        if view.count:
            count = await counted_by(self._parts.model, view.messages, overhead.tool_specs, overhead.system_prompt)
            view = await self._record.decided(count, again)
        self._tokens = view.tokens
        self._viewed_messages = view.messages
        return view

    # Asking, and what comes of it.

    async def _past_hooks(self, request: ModelRequest, *, output_only: bool) -> MachineEvent:
        # Nothing takes back what a hook or middleware does, so these wait for the store; only a plain call goes out
        # beside the commit.
        taking, hooked = self._record.taking, BeforeModelCallEvent in self._hooks.listened
        early = hooked or self._parts.middleware is not None or (taking is not None and taking.over)
        if taking is not None and early and not await self._record.settled():
            return self.stopped()  # Nobody is told: the turn begins again, or ends with the reason.
        instead = await self._answer_instead(request) if hooked else None
        # Hooks may have edited `agent.messages` for this very call.
        if (edited := await self._record.show_edits()) is not None:
            self._viewed_messages = edited
            request = replace(request, messages=with_noted_summary(edited))
        if instead is None and self.budgets:
            self._look_at_budgets()  # A summary or a hook may have used up the budget.
        # Behind hooks, and before the model: a failure in hooks is no attempt of the model.
        self._turn.meter.asking()
        self._turn.progress.step += 1
        stop, self._streaming = self._turn.stop, None
        answer = (
            await stop.run_unless_stopped(partial(self._ask, request)) if instead is None else spoken_answer(instead)
        )
        if taking is not None and not await self._record.settled():
            # The turn begins again with this same driver, as if the model had not been asked.
            self._begins, self._turn.progress.step = True, self._turn.progress.step - 1
            return self.stopped()
        if isinstance(answer, RepertoryError):
            return await self._failed(answer)
        if answer is None:
            return await self._cut_short()
        return await self._answered(answer, output_only=output_only)

    async def _cut_short(self) -> Stopped:
        """The turn was stopped while the model answered. What it has said stays if the stop wants that, and no hook
        rejects it: it has passed all that a whole answer passes.
        """
        stopped = self.stopped()
        partial = self._partial(stopped.stop)
        # A guardrail's verdict is about the prompt, so it counts although the answer was cut.
        if partial is not None and partial.redact_user is not None:
            await self._record.redact(partial.redact_user)
        rejected = await self._asked_again(partial, None, retry=False)
        return stopped if rejected else replace(stopped, partial=partial)

    def _partial(self, stop: StopReason) -> Answer | None:
        answer = self._streaming.partial() if self._streaming is not None and stop.keep_partial else None
        return None if answer is None else stopped_answer(answer, stop)

    async def _answer_instead(self, request: ModelRequest) -> str | None:
        """A hook's text to use as the answer instead of asking the model."""
        tokens = partial(projected_tokens, request.messages, request.tool_specs, request.system_prompt)
        if self._tokens is None and estimates_tokens(type(self._parts.model)):
            count = await counted_by(self._parts.model, request.messages, request.tool_specs, request.system_prompt)
            self._tokens = count.tokens
        if self._tokens is not None:
            tokens = partial(int, self._tokens)
        return await self._turn.stop.run_unless_stopped(lambda: self._hooks.before_model(tokens))

    async def _ask(self, request: ModelRequest) -> Answer | RepertoryError | None:
        """The answer; None if another process has the session."""
        try:
            if self._parts.hooks.injections:
                request = await self._with_injections(request)
            if self._parts.middleware is not None:
                return await self._ask_through(self._parts.middleware, request)
            publish = self._publish_raw if self._turn.publish else None
            # Some models count tool use ids from 1 in each answer; providers refuse a history in which an id repeats.
            used = used_ids(request.messages)
            answer = self._streaming = self._turn.progress.answer = Assembler(self._turn.sizes.answer_bytes, used)
            taking, model = self._record.taking, self._parts.model
            if taking is None or taking.over:
                return await call_model(model, request, publish, answer)
            # Ended by `Taking` if another process has the session: what the model says then must not be paid for to its
            # end.
            with anyio.CancelScope() as asking:
                taking.on_lost = asking.cancel
                request = replace(request, until_owned=taking.wait_for_session)
                return await call_model(model, request, publish, answer)
            return None
        except RepertoryError as error:
            return error
        finally:
            self._turn.progress.answer = None

    async def _ask_through(self, wraps: MiddlewareRegistry, request: ModelRequest) -> Answer:
        """The answer that middleware makes of the model's. What it took counts towards the budgets, whatever of it is
        kept.
        """
        turn, parts = self._turn, self._parts
        state, size_max = turn.invocation.invocation_state, turn.sizes.answer_bytes
        call = wraps.model_call(parts.owner, parts.model, request, state, self._tokens, size_max)
        try:
            return await call.ask(turn.publish)
        finally:
            for model, usage in call.spent:
                self._spending.charge(model, usage)
            # Middleware may ask several models for one answer, or none. What each took is charged here, so `_answered`
            # must not charge it again.
            self._charged = bool(call.spent)

    async def _with_injections(self, request: ModelRequest) -> ModelRequest:
        context = InjectionContext(request.messages, self._parts.state, self._parts.owner)
        messages, self._injected_tokens = await injected(self._parts.hooks.injections, context)
        self._turn.meter.left_out |= context.left_out
        added = added_blocks(request.messages, messages)
        # Injections change with each call: behind a cache point they would make the provider write the cache anew each
        # time.
        if not added or not settings_of(self._parts.model).get("cache_config"):
            return replace(request, messages=messages)
        return replace(request, messages=messages, options={**request.options, "dynamic_trailing_blocks": added})

    async def _failed(self, error: RepertoryError) -> MachineEvent:
        """Handle a failed call: the retry strategy and hooks decide if it is repeated."""
        attempt = self._turn.meter.attempts
        if self._turn.progress.step == attempt:  # No answer came before.
            error.of_model = raised_by_model(error)
        # Decided before hooks, which are told of it and may overrule it.
        delay_s = retry_delay_s(self._parts.retry, error, attempt, self._chance())
        again = await self._asked_again(None, error, retry=delay_s is not None)
        if again is None:
            return self.stopped()
        if again:
            return await self._again(RetryModel(delay_s or 0.0), attempt, error)
        # A service that refuses one picture refuses every later call that shows it, so the conversation would be stuck
        # for good.
        refusal = refusal_of(error, self._viewed_messages)
        if refusal is not None:
            await self._record.leave_out(self._viewed_messages, refusal)
            note(_refusals_log, WARNING, "a refused part is left out of later calls", parts=", ".join(refusal.parts))
            return Erred(naming(error, refusal))
        return Overflowed(error) if isinstance(error, ContextWindowOverflowException) else Erred(error)

    async def _answered(self, answer: Answer, *, output_only: bool) -> MachineEvent:
        # Before hooks see the answer: what a guardrail has blocked is gone by then, also for a hook that logs the
        # conversation.
        if answer.redact_user is not None:
            await self._record.redact(answer.redact_user)
        answer.message["metadata"] = {"usage": answer.usage}
        if answer.latency_ms is not None:
            answer.message["metadata"]["metrics"] = {"latencyMs": answer.latency_ms}
        if answer.stop_reason in LIMITED or answer.stop_reason in REFUSED or answer.stop_reason in PAUSED:
            answer.message["metadata"]["custom"] = {"stop_reason": answer.stop_reason}
        # The next request does not contain these tokens, so the window must not take the provider's count for the size
        # of the history.
        not_sent_again = self._injected_tokens + answer.other_calls_tokens
        if not_sent_again:
            answer.message["metadata"].setdefault("custom", {})[INJECTED_TOKENS] = not_sent_again
            self._injected_tokens = 0
        # From such a block on the provider forgets what came before, and so do our estimates.
        if any("providerContent" in block and is_compaction(block) for block in answer.message["content"]):
            answer.message["metadata"].setdefault("custom", {})[COMPACTION] = True
        attempt = self._turn.meter.attempts
        self._turn.meter.answered(answer)
        if self.budgets and not self._charged:
            self._spending.charge(self._parts.model, answer.usage)
        self._charged = False
        if (unshown := self._record.journal.unshown_calls) is not None:
            unshown.show(answer.usage)
        late = self._turn.stop.reason()  # What was asked to end before the answer was there, does.
        partial = None if late is None else self._partial(late)
        # Always asked, also for an answer that comes too late: hooks that count answers see each that was paid for.
        again = await self._asked_again(partial or answer, None, retry=False)
        if unshown is not None and (again or (partial is None and (again is None or late is not None))):
            unshown.throw_away(answer.usage)
        if again is None or late is not None:
            return self.stopped() if again is None or again else replace(self.stopped(), partial=partial)
        if again:
            return await self._again(RetryModel(0.0, thrown_away=answer), attempt, None)
        return Answered(answer, self._read_form(answer.message) if output_only else None)

    async def _asked_again(self, answer: Answer | None, error: RepertoryError | None, *, retry: bool) -> bool | None:
        """True to ask the model again; None if the turn was stopped while hooks decided."""
        if AfterModelCallEvent not in self._hooks.listened:
            return retry
        return await self._turn.stop.run_always(lambda: self._hooks.after_model(answer, error, retry=retry))

    async def _again(self, event: RetryModel, attempt: int, error: RepertoryError | None) -> RetryModel:
        trace = trace_here()
        if trace is not None:
            trace.retried(attempt, event.after_s, error)
        if self._turn.publish is not None:
            await self._turn.publish({"model_retry": {"attempt": attempt, "delay_s": event.after_s, "error": error}})
        return event

    def _read_form(self, message: Message) -> str | None:
        """The structured output's JSON text, if the model wrote it as its answer instead of calling the tool."""
        if self._form is None or any(tool_uses(message)):
            return None
        try:
            self._turn.structured_output, text = self._form.read(text_of(message))
        except Invalid:
            return None
        return text

    async def _publish_raw(self, event: StreamEvent) -> None:
        if self._turn.publish is not None:
            await self._turn.publish({"event": event})
            derived = derived_event(event)
            if derived is not None:
                await self._turn.publish(derived)
            if self._parts.stop_request.ends_now and self._turn.stop.reason() is not None:
                # A provider's chunk may hold many events that arrive without a wait, and so without a chance to cancel.
                await anyio.lowlevel.checkpoint()  # The reader has stopped the turn: no more pieces.


async def call_model(
    model: Model, request: ModelRequest, publish: Publish | None, assembler: Assembler | None = None
) -> Answer:
    """The whole answer, never a partial one. `assembler`: a new one that makes it, for who watches it grow.

    Errors: the model's own from `repertory.errors`; `ModelStreamBroken` if the stream ends early; `ModelFailed` for
    invalid events and for anything else that the model raises, which is its `__cause__`; `TooLarge` if the answer
    exceeds the assembler's bound. That error and cancellation close the model's stream before they go on.
    """
    trace, assembler = trace_here(), assembler or Assembler()
    if trace is None:
        return await _answered(model, request, publish, assembler)
    content, prompt = request.options.get("system_prompt_content"), request.system_prompt
    with trace.model_call(model, request.messages, request.tool_specs, content or prompt) as call:
        answer = await _answered(model, request, call.watching(publish), assembler)
        call.answered(answer)
        return answer


async def _answered(model: Model, request: ModelRequest, publish: Publish | None, assembler: Assembler) -> Answer:
    try:
        sent, specs = for_model(request.messages), request.tool_specs or None
        stream = gated_stream(model)(sent, specs, request.system_prompt, **request.options)
        await _drain(stream, assembler, publish, request.until_owned)
        return assembler.finish()
    except RepertoryError:
        raise
    except BaseException as error:
        # A model is a user's or a library's code, and may raise anything, a foreign `CancelledError` included.
        failure_of(error)  # What is none goes on.
        raise ModelFailed("the model raised an error", model=type(model).__name__, error=repr_of(error)) from error


def retry_delay_s(strategy: RetryStrategy | None, error: Exception, attempt: int, jitter: float) -> float | None:
    """Seconds to wait before the call is repeated; None gives up. A strategy that fails is logged and gives up, too."""
    try:
        delay_s = None if strategy is None else strategy.delay_s(error, attempt, jitter)
        if delay_s is None or 0 <= delay_s < math.inf:
            return delay_s
        note(_log, ERROR, "retry strategy gave no time to wait", delay_s=delay_s)
    except BaseException as failure:  # noqa: BLE001 - It may be a user's code, and the model's failure matters more.
        note(_log, ERROR, "retry strategy failed", failure_of(failure))
    return None


async def _drain(
    stream: AsyncIterator[StreamEvent],
    assembler: Assembler,
    publish: Publish | None,
    until_owned: Callable[[], Awaitable[None]] | None,
) -> None:
    """Feed every event to the assembler. Generators are closed here; other iterators have nothing to close."""
    closes = hasattr(stream, "aclose")
    async with aclosing(cast("AsyncGenerator[StreamEvent]", stream)) if closes else nullcontext(stream) as events:
        async for event in events:
            # With the first event in hand and not before the request: the store answers while the model thinks.
            if until_owned is not None:
                await until_owned()
                until_owned = None
            assembler.feed(event)
            if publish is not None:
                await publish(event)
