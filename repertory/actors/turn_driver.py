"""Driving one turn: carries out what the turn machine decides, and feeds back what happened.

The machine (`core/turn.py`) decides; this file only does. A driver lives for one turn, inside a job of the agent actor.
Stopping a turn cancels the command under way, never the driver, so that what happened is always written down.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, assert_never

import anyio

from repertory.actors.call import Invocation, request_state
from repertory.actors.conversation import ConversationMessage, Entry, PrepareCall, ReduceView, Tidy
from repertory.actors.hook_calls import TurnHooks
from repertory.actors.ledger import Ledger
from repertory.actors.model_call import Request, call_model
from repertory.actors.tool_step import OnException, OnPartial, Outcome, ToolStep, ToolStepParts, ToolStepSettings
from repertory.actors.turn_meter import TurnMeter
from repertory.backends.ports import Model, ToolContext
from repertory.core.answer import LIMITED, Answer
from repertory.core.direct_call import spoken_answer
from repertory.core.events import TurnEvent, derived_event
from repertory.core.journal.records import MessageAdded
from repertory.core.messages import ContentBlock, Message, ToolUse, error_result, text_of, tool_uses
from repertory.core.pairing import check_next
from repertory.core.result import AgentResult
from repertory.core.system_prompt import SystemPrompt, system_blocks, system_text
from repertory.core.tokens import projected_tokens
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
    Phase,
    Reduce,
    Reduced,
    RetryModel,
    RunTools,
    Steered,
    Stop,
    StopAsked,
    Stopped,
    ToolsEnded,
    Turn,
    step,
)
from repertory.errors import ContextWindowOverflowException, Invalid, RepertoryError
from repertory.runtime.ref import ActorRef

if TYPE_CHECKING:
    from repertory.actors.conversation import Shown
    from repertory.actors.hook_registry import HookRegistry
    from repertory.actors.mirror import Mirror
    from repertory.actors.registry import ToolRegistry
    from repertory.core.retry import RetryStrategy
    from repertory.core.state import AgentState

Durability = Literal["pipelined", "strict", "relaxed"]
Publish = Callable[[TurnEvent], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What an agent is, apart from its components."""

    session_id: str
    agent_id: str = "default"
    initial: tuple[Message, ...] = ()
    """What a new conversation starts with."""
    durability: Durability = "pipelined"
    """`pipelined`: durable before a tool with effects starts and before the answer is returned; `strict`: before each
    next step; `relaxed`: the answer may return first."""
    tools: ToolStepSettings = field(default_factory=ToolStepSettings)
    durable: bool = True
    """Whether there is a store to wait for."""
    confirm_s: float = 1.0
    """Ownership is confirmed by a commit before a model is called when the last confirmation is older than this."""


@dataclass(slots=True, kw_only=True)
class AgentParts:
    """What an agent is made of. Model, tools and system prompt may be exchanged between two steps."""

    model: Model
    tools: ToolRegistry
    system_prompt: SystemPrompt = None
    state: AgentState
    mirror: Mirror
    hooks: HookRegistry
    retry: RetryStrategy | None = None
    """What to do when a model call fails; None gives up at once."""
    owner: Any = None
    """The `Agent` that users know; tools and hooks get it as `agent`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What every turn of an agent works with."""

    ledger: Ledger
    conversation: ActorRef[ConversationMessage]
    clock: Callable[[], float]
    """Seconds, for measuring."""
    chance: Callable[[], float]
    """Random numbers from 0 up to 1."""


@dataclass(slots=True, kw_only=True)
class Footing:
    """Where the journal stands for the agent: what one turn leaves to the next. The driver keeps it up to date."""

    last: Message | None = None
    """The last stored message, which the next one must fit."""
    last_seq: int = 0
    """Its sequence number."""
    message_count: int = 0
    turns: int = 0
    """The number of the last turn that was begun."""
    unshown: list[Entry] = field(default_factory=list["Entry"])
    """Messages that the conversation manager has not been told of."""
    attempts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Tool use id to how often it was started, for tools whose outcome is unknown."""

    def take_unshown(self) -> tuple[Entry, ...]:
        """What the conversation manager has to be told now."""
        unshown, self.unshown = tuple(self.unshown), []
        return unshown


class TurnDriver:
    """One turn from opening to answer."""

    def __init__(
        self,
        settings: AgentSettings,
        parts: AgentParts,
        means: Means,
        footing: Footing,
        invocation: Invocation,
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._means = means
        self._ledger = means.ledger
        self._conversation = means.conversation
        self._footing = footing
        self._form = invocation.form
        self._token = invocation.idempotency_token
        self._invocation = invocation
        self.hooks = TurnHooks(parts.hooks, parts.owner, invocation.invocation_state)
        self.publish: Publish | None = None
        """Told what happens on the way, when somebody looks."""
        self.prepared: list[Answer] = []
        """Answers that are known before: a direct tool call asks no model, and is not seen by invocation hooks."""
        self.wrote = False
        """Whether anything of the turn is on record."""
        self.resume: object = None
        """The prompt that a hook wants to go on with, after the end."""
        self._direct = invocation.direct is not None
        self._machine = Turn(limits=invocation.limits, form=self._form is not None)
        self._meter = TurnMeter(means.clock)
        self._scope: anyio.CancelScope | None = None
        self._stop: Stop | None = None
        self._filled: object = None

    async def run(self, opening: Began | Continued) -> AgentResult:
        """The turn's result, durable as the settings say. Errors: those of model, view, guards and store."""
        event: Event = opening
        while True:
            self._machine, commands = step(self._machine, event)
            for command in commands:
                match command:
                    case Append(message=message):
                        await self._append(message)
                    case CallModel():
                        event = await self._call_model(command)
                    case Reduce(error=error):
                        event = await self._reduce(error)
                    case RunTools():
                        event = await self._run_tools(command)
                    case Finish(stop_reason=reason, message=message):
                        return await self._finish(reason, message)
                    case Fail(error=error):
                        await self._settle()
                        raise error
                    case _:
                        assert_never(command)

    async def after_answer(self) -> None:
        """When the answer is out: make durable what a relaxed turn left undone."""
        if self._settings.durability == "relaxed":
            await self._ledger.commit(closing=True)

    def stop(self, stop: Stop, *, after_tools: bool = False) -> None:
        """End the turn early, with a history in which everything pairs up: at once, or when the tools that run have
        ended. The first one to ask decides.
        """
        if after_tools:
            if self._machine.phase not in (Phase.READY, Phase.OVER):
                self._machine, _ = step(self._machine, StopAsked(stop))
            return
        self._stop = self._stop or stop
        if self._scope is not None:
            self._scope.cancel()

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

    async def _append(self, message: Message) -> None:
        footing = self._footing
        message = await self.hooks.message_added(message)
        check_next(footing.last, message)
        token, self._token = self._token, None
        record = MessageAdded(
            at=self._ledger.wall(),
            message=message,
            turn=footing.turns,
            index=footing.message_count,
            idempotency_token=token,
        )
        seq = self._ledger.add(record)
        self.wrote = True
        footing.message_count += 1
        footing.unshown.append(Entry(seq, message))
        footing.last, footing.last_seq = message, seq
        self._parts.mirror.add(message)
        if self._settings.durability == "strict":
            await self._ledger.commit()
        if self.publish is not None:
            await self.publish({"message": message})

    # Asking the model.

    async def _call_model(self, command: CallModel) -> Event:
        if self.prepared:
            return Answered(self.prepared.pop(0))
        if command.after_s and not await self._paused(command.after_s):
            return Stopped(self._stop or CANCELLED)
        try:
            request = await self._request(form_only=command.form_only)
            instead = await self.hooks.before_model(
                lambda: projected_tokens(request.messages, request.tool_specs, request.system_prompt)
            )
            self._meter.asking()
            answer = await self._ask(request) if instead is None else spoken_answer(instead)
            if isinstance(answer, RepertoryError):
                return await self._failed(answer)
            if answer is None:
                return Stopped(self._stop or CANCELLED)
            return await self._answered(answer, form_only=command.form_only)
        except RepertoryError as error:
            return Erred(error)

    async def _request(self, *, form_only: bool) -> Request:
        """What the model is to be asked; what was said until now is on its way to the store, or there."""
        await self._own_or_raise()
        shown = await self._conversation.ask(PrepareCall(added=self._footing.take_unshown()), timeout_s=math.inf)
        self._note_view(shown)
        self._ledger.hand_over()
        specs = self._parts.tools.specs
        prompt = self._parts.system_prompt
        options: dict[str, Any] = {}
        if self._form is not None:
            specs = (self._form.spec,) if form_only else (*specs, self._form.spec)
            if form_only:
                options["tool_choice"] = {"tool": {"name": self._form.name}}
        blocks = system_blocks(prompt)
        if blocks is not None:
            options["system_prompt_content"] = blocks
        return Request(messages=shown.messages, tool_specs=specs, system_prompt=system_text(prompt), options=options)

    async def _own_or_raise(self) -> None:
        """Start writing what was said; after a pause, wait until the store has taken it, which proves ownership."""
        if self._ledger.confirmed_within(self._settings.confirm_s):
            self._ledger.hand_over()
        else:
            await self._ledger.commit()

    async def _paused(self, seconds: float) -> bool:
        """Wait; False when the turn was stopped meanwhile."""
        if self._stop is None:
            with anyio.CancelScope() as self._scope:
                await anyio.sleep(seconds)
        return self._stop is None

    async def _ask(self, request: Request) -> Answer | RepertoryError | None:
        """The answer, or what the model failed with; None when the turn was stopped."""
        if self._stop is not None:
            return None
        with anyio.CancelScope() as self._scope:
            try:
                return await call_model(self._parts.model, request, self._publish_raw if self.publish else None)
            except RepertoryError as error:
                return error
        return None

    async def _failed(self, error: RepertoryError) -> Event:
        """Whether the call is made again is for the retry strategy to say, and for hooks."""
        retry, attempt = self._parts.retry, self._meter.attempts
        delay_s = retry.delay_s(error, attempt, self._means.chance()) if retry is not None else None
        if await self.hooks.after_model(None, error, retry=delay_s is not None):
            return await self._again(attempt, delay_s or 0.0, error)
        return Overflowed(error) if isinstance(error, ContextWindowOverflowException) else Erred(error)

    async def _answered(self, answer: Answer, *, form_only: bool) -> Event:
        answer.message["metadata"] = {"usage": answer.usage}
        if answer.stop_reason in LIMITED or answer.stop_reason in REFUSED:
            answer.message["metadata"]["custom"] = {"stop_reason": answer.stop_reason}
        if await self.hooks.after_model(answer, None, retry=False):
            return await self._again(self._meter.attempts, 0.0, None)
        self._meter.answered(answer)
        return Answered(answer, self._read_form(answer.message) if form_only else None)

    async def _again(self, attempt: int, delay_s: float, error: RepertoryError | None) -> RetryModel:
        if self.publish is not None:
            await self.publish({"model_retry": {"attempt": attempt, "delay_s": delay_s, "error": error}})
        return RetryModel(delay_s)

    def _read_form(self, message: Message) -> str | None:
        """The form's JSON text, when the model wrote it as its answer instead of calling the tool."""
        if self._form is None or any(tool_uses(message)):
            return None
        try:
            self._filled, text = self._form.read(text_of(message))
        except Invalid:
            return None
        return text

    async def _reduce(self, error: ContextWindowOverflowException) -> Event:
        try:
            shown = await self._conversation.ask(ReduceView(error=error), timeout_s=math.inf)
        except ContextWindowOverflowException as overflow:
            return Erred(overflow)
        self._note_view(shown)
        return Reduced()

    # Running tools.

    async def _run_tools(self, command: RunTools) -> ToolsEnded:
        if self._invocation.direct is not None:  # The message may only name what JSON cannot say.
            command = replace(command, uses=(self._invocation.direct,))
        outcome, refusal = Outcome(results=dict(command.known)), None
        try:
            refusal = await self._tools_refused()
            if refusal is None:
                outcome = await self._tool_step(command)
        except RepertoryError as error:
            refusal, outcome.failed = "Not run: a hook failed.", error
        for use in command.uses:
            outcome.results.setdefault(use["toolUseId"], error_result(use["toolUseId"], refusal or ""))
        self._ledger.add_changes(self._parts.state)
        results = tuple(outcome.results[use["toolUseId"]] for use in command.uses)
        closing: tuple[ContentBlock, ...] = ()
        try:
            closing = () if self._direct else await self.hooks.after_tools(results)
        except RepertoryError as error:
            outcome.failed = outcome.failed or error
        text = None
        if outcome.filled is not None:
            self._filled, text = outcome.filled
        return ToolsEnded(
            results=results,
            stopped=self._stop_after(outcome),
            closing=closing,
            filled=text,
            misfilled=outcome.misfilled,
            failed=outcome.failed,
        )

    async def _tools_refused(self) -> str | None:
        asking = self._footing.last
        return None if self._direct or asking is None else await self.hooks.before_tools(asking)

    async def _tool_step(self, command: RunTools) -> Outcome:
        parts = ToolStepParts(
            tools=self._parts.tools.whole if self._direct else self._parts.tools,
            ledger=self._ledger,
            context_for=self._tool_context,
            hooks=self.hooks,
            meter=self._meter,
            form=self._form,
            publish=self.publish,
        )
        self._scope = anyio.CancelScope()
        if self._stop is not None:
            self._scope.cancel()
        attempts, self._footing.attempts = self._footing.attempts, {}
        return await ToolStep(parts, self._settings.tools).run(command, attempts, self._scope)

    def _stop_after(self, outcome: Outcome) -> Stop | None:
        if outcome.cut or self._stop is not None:
            return self._stop or CANCELLED
        return Stop(reason="tool_use") if request_state(self._invocation).get("stop_event_loop") else None

    def _tool_context(
        self, use: ToolUse, attempt: int, on_partial: OnPartial | None, on_exception: OnException
    ) -> ToolContext:
        settings = self._settings
        return ToolContext(
            tool_use=use,
            agent_id=settings.agent_id,
            state=self._parts.state,
            idempotency_key=f"{settings.session_id}/{settings.agent_id}/{self._footing.last_seq}/{use['toolUseId']}",
            attempt=attempt,
            invocation_state=self._invocation.invocation_state,
            agent=self._parts.owner,
            on_partial=on_partial,
            on_exception=on_exception,
        )

    # Ending.

    async def _finish(self, reason: str, message: Message | None) -> AgentResult:
        """Tidy up first, so that the answer and what the next turn is shown are one commit, and one record."""
        result = AgentResult(
            stop_reason=reason,
            message=message,
            metrics=self._meter.metrics(),
            state=request_state(self._invocation),
            structured_output=self._filled,
        )
        if not self._direct:
            self.resume = await self.hooks.after_invocation(result)
        self._note_view(await self._conversation.ask(Tidy(added=self._footing.take_unshown()), timeout_s=math.inf))
        self._ledger.add_changes(self._parts.state)
        if self._settings.durability == "relaxed":
            self._ledger.hand_over()
        else:
            await self._ledger.commit(closing=True)
        return result

    async def _settle(self) -> None:
        """The turn failed: what was said until then stays, and is written down."""
        if not self._direct:
            await self.hooks.after_invocation(None)
        self._ledger.add_changes(self._parts.state)
        self._ledger.hand_over(soon=True)

    def _note_view(self, shown: Shown) -> None:
        self._parts.mirror.show(shown.messages)
        if shown.view is not None:
            self._ledger.add_view(shown.view)

    async def _publish_raw(self, event: dict[str, Any]) -> None:
        if self.publish is not None:
            await self.publish({"event": event})
            derived = derived_event(event)
            if derived is not None:
                await self.publish(derived)
