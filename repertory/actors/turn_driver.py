"""Driving one turn: carries out what the turn machine decides, and feeds back what happened.

The machine (`core/turn.py`) decides; this file only does. A driver lives for one turn, inside a job of the agent actor.
Cancelling a turn cancels the command under way, never the driver, so that what happened is always written down.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, assert_never

import anyio

from repertory.actors.conversation import ConversationMessage, Entry, PrepareCall, ReduceView, Tidy
from repertory.actors.ledger import Ledger
from repertory.actors.model_call import Request, call_model
from repertory.actors.tool_step import ToolStep, ToolStepSettings
from repertory.backends.ports import Model, ToolContext
from repertory.core.events import TurnEvent, derived_event
from repertory.core.journal.records import MessageAdded, StateChanged
from repertory.core.messages import ContentBlock, Message, ToolResult, ToolUse
from repertory.core.pairing import check_next
from repertory.core.result import AgentResult, TurnMetrics
from repertory.core.turn import (
    Answered,
    Append,
    Began,
    CallModel,
    Cancelled,
    Continued,
    Erred,
    Event,
    Fail,
    Finish,
    Overflowed,
    Phase,
    Reduce,
    Reduced,
    RunTools,
    Steered,
    ToolsEnded,
    Turn,
    step,
)
from repertory.errors import ContextWindowOverflowException, RepertoryError
from repertory.runtime.ref import ActorRef

if TYPE_CHECKING:
    from repertory.actors.conversation import Shown
    from repertory.actors.mirror import Mirror
    from repertory.actors.registry import ToolRegistry
    from repertory.core.answer import Answer
    from repertory.core.state import AgentState

Durability = Literal["pipelined", "strict", "relaxed"]
Publish = Callable[[TurnEvent], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What an agent is, apart from its components."""

    session_id: str
    agent_id: str = "default"
    system_prompt: str | None = None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentParts:
    """What an agent is made of."""

    model: Model
    tools: ToolRegistry
    state: AgentState
    mirror: Mirror
    owner: Any = None
    """The `Agent` that users know; tools get it as `agent`."""


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
        ledger: Ledger,
        conversation: ActorRef[ConversationMessage],
        footing: Footing,
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._ledger = ledger
        self._conversation = conversation
        self._footing = footing
        self.invocation_state: Mapping[str, Any] = {}
        """What the caller gives to the tools of this turn."""
        self.publish: Publish | None = None
        """Told what happens on the way, when somebody looks."""
        self._machine = Turn()
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False
        self._input_tokens = 0
        self._output_tokens = 0
        self._latency_ms = 0.0
        self._tool_calls: dict[str, int] = {}

    async def run(self, opening: Began | Continued) -> AgentResult:
        """The turn's result, durable as the settings say. Errors: those of the model, the view and the store."""
        event: Event = opening
        while True:
            self._machine, commands = step(self._machine, event)
            for command in commands:
                match command:
                    case Append(message=message):
                        await self._append(message)
                    case CallModel():
                        event = await self._call_model()
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

    def cancel(self) -> None:
        """Cut the turn short. It ends with stop reason `cancelled` and a history in which everything pairs up."""
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    def steer(self, content: tuple[ContentBlock, ...]) -> bool:
        """Add to the turn what the model is shown at its next step; False when the turn is over already."""
        if self._machine.phase in (Phase.READY, Phase.OVER):
            return False
        self._machine, _ = step(self._machine, Steered(content))
        return True

    @property
    def undelivered(self) -> tuple[ContentBlock, ...]:
        """Steering that came too late for any step of the turn."""
        return self._machine.steering

    async def _append(self, message: Message) -> None:
        footing = self._footing
        check_next(footing.last, message)
        record = MessageAdded(at=self._ledger.wall(), message=message, turn=footing.turns, index=footing.message_count)
        seq = self._ledger.add(record)
        footing.message_count += 1
        footing.unshown.append(Entry(seq, message))
        footing.last, footing.last_seq = message, seq
        self._parts.mirror.add(message)
        if self._settings.durability == "strict":
            await self._ledger.commit()
        if self.publish is not None:
            await self.publish({"message": message})

    async def _call_model(self) -> Event:
        await self._own_or_raise()
        shown = await self._conversation.ask(PrepareCall(added=self._footing.take_unshown()), timeout_s=math.inf)
        self._note_view(shown)
        self._ledger.hand_over()
        request = Request(
            messages=shown.messages,
            tool_specs=self._parts.tools.specs,
            system_prompt=self._settings.system_prompt,
        )
        try:
            answer = await self._unless_cancelled(request)
        except ContextWindowOverflowException as error:
            return Overflowed(error)
        except RepertoryError as error:
            return Erred(error)
        return Cancelled() if answer is None else self._answered(answer)

    async def _own_or_raise(self) -> None:
        """Start writing what was said; after a pause, wait until the store has taken it, which proves ownership."""
        if self._ledger.confirmed_within(self._settings.confirm_s):
            self._ledger.hand_over()
        else:
            await self._ledger.commit()

    async def _unless_cancelled(self, request: Request) -> Answer | None:
        if self._cancelled:
            return None
        with anyio.CancelScope() as self._scope:
            return await call_model(self._parts.model, request, self._publish_raw if self.publish else None)
        return None

    def _answered(self, answer: Answer) -> Answered:
        usage = answer.usage
        self._input_tokens += usage["inputTokens"]
        self._output_tokens += usage["outputTokens"]
        self._latency_ms += answer.latency_ms or 0.0
        answer.message["metadata"] = {"usage": usage}
        return Answered(answer)

    async def _reduce(self, error: ContextWindowOverflowException) -> Event:
        try:
            shown = await self._conversation.ask(ReduceView(error=error), timeout_s=math.inf)
        except ContextWindowOverflowException as overflow:
            return Erred(overflow)
        self._note_view(shown)
        return Reduced()

    async def _run_tools(self, command: RunTools) -> ToolsEnded:
        publish = self._publish_tool if self.publish else None
        tool_step = ToolStep(self._parts.tools, self._ledger, self._settings.tools, self._tool_context, publish)
        self._scope = anyio.CancelScope()
        if self._cancelled:
            self._scope.cancel()
        ended = await tool_step.run(command, self._footing.attempts, self._scope)
        self._footing.attempts = {}
        for name, times in tool_step.ran.items():
            self._tool_calls[name] = self._tool_calls.get(name, 0) + times
        self._note_state()
        return ended

    def _tool_context(self, use: ToolUse, attempt: int) -> ToolContext:
        settings = self._settings
        return ToolContext(
            tool_use=use,
            agent_id=settings.agent_id,
            state=self._parts.state,
            idempotency_key=f"{settings.session_id}/{settings.agent_id}/{self._footing.last_seq}/{use['toolUseId']}",
            attempt=attempt,
            invocation_state=self.invocation_state,
            agent=self._parts.owner,
        )

    async def _finish(self, reason: str, message: Message | None) -> AgentResult:
        """Tidy up first, so that the answer and what the next turn is shown are one commit."""
        self._note_state()
        self._note_view(await self._conversation.ask(Tidy(added=self._footing.take_unshown()), timeout_s=math.inf))
        if self._settings.durability == "relaxed":
            self._ledger.hand_over()
        else:
            await self._ledger.commit(closing=True)
        metrics = TurnMetrics(
            steps=self._machine.steps,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            model_latency_ms=self._latency_ms,
            tool_calls=self._tool_calls,
        )
        return AgentResult(stop_reason=reason, message=message, metrics=metrics)

    async def _settle(self) -> None:
        """The turn failed: what was said until then stays, and is written down."""
        self._note_state()
        self._ledger.hand_over(soon=True)

    def _note_view(self, shown: Shown) -> None:
        self._parts.mirror.show(shown.messages)
        if shown.view is not None:
            self._ledger.add(shown.view)

    def _note_state(self) -> None:
        patch = self._parts.state.take_patch()
        if patch is not None:
            self._ledger.add(StateChanged(at=self._ledger.wall(), set=dict(patch.set), delete=patch.delete))

    async def _publish_raw(self, event: dict[str, Any]) -> None:
        if self.publish is not None:
            await self.publish({"event": event})
            derived = derived_event(event)
            if derived is not None:
                await self.publish(derived)

    async def _publish_tool(self, use: ToolUse, result: ToolResult | None) -> None:
        if self.publish is not None:
            await self.publish({"tool_started": use} if result is None else {"tool_finished": result})
