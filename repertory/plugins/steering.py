"""Steering: advice at the moment when the model needs it.

A `SteeringHandler` looks at each tool use before it runs and at each answer of the model, and lets it pass, sends the
model advice instead, or asks a person. What it has seen is its steering context, filled in by context providers.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Protocol, TypeVar, cast, get_args, get_origin
from weakref import WeakKeyDictionary

from pydantic import BaseModel, Field

from repertory.actors.hooks.events import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    BeforeInvocationEvent,
    BeforeToolCallEvent,
    HookEvent,
    HookOrder,
    ignoring_prompts,
)
from repertory.app.host.plugins import Plugin, hook
from repertory.core.interrupts import InterruptException, is_yes
from repertory.core.state import AgentState
from repertory.errors import Invalid, StructuredOutputException
from repertory.logs import ERROR, note
from repertory.runtime.faults import failure_of

if TYPE_CHECKING:
    from repertory.backends.ports import Model
    from repertory.core.messages import ContentBlock, Message, ToolUse

_log = logging.getLogger("repertory.steering")

LEDGER_CALLS_MAX = 200
"""The most tool uses in a ledger: the latest ones."""
LEDGER_TEXT_MAX = 4_000
"""The most characters of a result in a ledger; the rest is cut."""


class SteeringProceed(BaseModel):
    """Go on. `reason` is for logs."""

    type: Literal["proceed"] = "proceed"
    reason: str


class SteeringGuide(BaseModel):
    """A rejection: the tool does not run, or the answer is thrown away, and the model is told `reason`."""

    type: Literal["guide"] = "guide"
    reason: str


class SteeringInterrupt(BaseModel):
    """Ask a person, who is shown `reason`, whether the tool may run. It runs for True, `y` and `yes` alone."""

    type: Literal["interrupt"] = "interrupt"
    reason: str


for _kind in (SteeringProceed, SteeringGuide, SteeringInterrupt):
    _kind.__name__ = _kind.__name__.removeprefix("Steering")  # As programs of the SDK write it into their logs.

ToolSteeringAction = Annotated[SteeringProceed | SteeringGuide | SteeringInterrupt, Field(discriminator="type")]
"""A decision about a tool use."""
ModelSteeringAction = Annotated[SteeringProceed | SteeringGuide, Field(discriminator="type")]
"""A decision about an answer."""


# The context.


@dataclass
class SteeringContext:
    """A handler's knowledge, as JSON values by key: `data.get(key)`, `data.set(key, value)`."""

    data: AgentState = field(default_factory=AgentState)


_Seen = TypeVar("_Seen", bound=HookEvent, contravariant=True)


class SteeringContextCallback(ABC, Generic[_Seen]):
    """Notes one kind of event in the context. Subclass `SteeringContextCallback[BeforeToolCallEvent]`, for example."""

    @property
    def event_type(self) -> type[HookEvent]:
        """The kind of event, from the subclass's brackets. Errors: `Invalid` when there are none."""
        for kind in type(self).__mro__:
            for base in getattr(kind, "__orig_bases__", ()):
                if get_origin(base) is SteeringContextCallback and isinstance(get_args(base)[0], type):
                    return cast("type[HookEvent]", get_args(base)[0])
        raise Invalid("write the event type in brackets: SteeringContextCallback[BeforeToolCallEvent]", got=type(self))

    @abstractmethod
    def __call__(self, event: _Seen, steering_context: SteeringContext, **kwargs: Any) -> None:
        """Note the event."""


class SteeringContextProvider(ABC):
    """Gives callbacks that belong together."""

    @abstractmethod
    def context_providers(self, **kwargs: Any) -> Sequence[SteeringContextCallback[Any]]:
        """The callbacks.

        Args:
            kwargs: Further values of a later version; pass them on, or ignore them.
        """


class LedgerBeforeToolCall(SteeringContextCallback[BeforeToolCallEvent]):
    """Notes each tool use as `pending` in the context's `ledger`; one that is asked about again, once."""

    def __init__(self) -> None:
        self.session_start = datetime.now().isoformat()

    def __call__(self, event: BeforeToolCallEvent, steering_context: SteeringContext, **kwargs: Any) -> None:
        ledger = _ledger(steering_context) or {
            "session_start": self.session_start,
            "tool_calls": [],
            "conversation_history": [],
            "session_metadata": {},
        }
        entry = {
            "timestamp": datetime.now().isoformat(),
            "tool_use_id": event.tool_use.get("toolUseId"),
            "tool_name": event.tool_use.get("name"),
            "tool_args": event.tool_use.get("input", {}),
            "status": "pending",
        }
        same = entry["tool_use_id"]
        calls = [call for call in ledger["tool_calls"] if same is None or not _waits(call, same)]
        ledger["tool_calls"] = [*calls, entry][-LEDGER_CALLS_MAX:]
        steering_context.data.set("ledger", ledger)


class LedgerAfterToolCall(SteeringContextCallback[AfterToolCallEvent]):
    """Notes how a tool use in the ledger ended."""

    def __call__(self, event: AfterToolCallEvent, steering_context: SteeringContext, **kwargs: Any) -> None:
        ledger = _ledger(steering_context)
        for call in reversed(ledger.get("tool_calls", [])):
            if _waits(call, event.tool_use.get("toolUseId")):
                call["completion_timestamp"] = datetime.now().isoformat()
                call["status"] = event.result["status"]
                call["result"] = [_noted(block) for block in event.result["content"]]
                call["error"] = str(event.exception) if event.exception else None
                steering_context.data.set("ledger", ledger)
                return


class LedgerProvider(SteeringContextProvider):
    """Notes the tool uses before and after they run, with input, time, status and result."""

    def context_providers(self, **kwargs: Any) -> Sequence[SteeringContextCallback[Any]]:
        """The two callbacks that note tool uses."""
        return [LedgerBeforeToolCall(), LedgerAfterToolCall()]


def _ledger(context: SteeringContext) -> dict[str, Any]:
    return cast("dict[str, Any]", context.data.get("ledger") or {})


def _waits(call: dict[str, Any], use_id: object) -> bool:
    return call.get("tool_use_id") == use_id and call.get("status") == "pending"


def _noted(block: object) -> object:
    """A block of a result, with long texts cut and anything but text and JSON by the name of its kind."""
    if not isinstance(block, dict):
        return str(block)[:LEDGER_TEXT_MAX]
    fields = cast("dict[str, object]", block)
    if "text" in fields:
        text = str(fields["text"])
        return {"text": text if len(text) <= LEDGER_TEXT_MAX else f"{text[:LEDGER_TEXT_MAX]}..."}
    if "json" in fields and len(json.dumps(fields["json"], default=str)) <= LEDGER_TEXT_MAX:
        return {"json": fields["json"]}
    return {"kind": ", ".join(fields)}


# The handlers.


class SteeringHandler(Plugin):
    """Steers agents: `Agent(plugins=[handler])`. Subclass it and override `steer_before_tool`, `steer_after_model` or
    both.

    Both methods run on the event loop. One that raises is logged, and what it looked at passes. `steering_context` is
    what the context providers have noted about the agent; it is stored in the agent's state under `steering:<name>`,
    so it outlives restarts. A rejected answer counts towards the limits of the call.

    Args:
        context_providers: The collectors of the context, such as `LedgerProvider()`; None for nothing.

    Attributes:
        name: The handler's name, of which the key in the agent's state is made.
    """

    name = "steering"

    def __init__(self, context_providers: Sequence[SteeringContextProvider] | None = None) -> None:
        self._begins = SteeringContext()
        self._contexts: WeakKeyDictionary[Any, SteeringContext] = WeakKeyDictionary()
        self._context_callbacks = [
            callback for provider in context_providers or () for callback in provider.context_providers()
        ]

    @property
    def steering_context(self) -> SteeringContext:
        """The values that the providers have collected about the agent that is being steered, or else about the only
        one. Those that a program sets before there is an agent are each agent's first.

        Errors: `Invalid` with several agents, and none of them being steered: use `context_of`.
        """
        handler, context = _STEERS.get()
        if handler is self:
            return context
        several = list(self._contexts.values())
        if len(several) > 1:
            raise Invalid("the handler steers several agents: context_of(agent) is that of one", name=self.name)
        return several[0] if several else self._begins

    def context_of(self, agent: Any) -> SteeringContext:
        """The values that the providers have collected about one agent.

        Args:
            agent: The agent.
        """
        if agent not in self._contexts:
            self._contexts[agent] = SteeringContext(AgentState(cast("Mapping[str, object]", self._begins.data.get())))
        return self._contexts[agent]

    @contextmanager
    def _steers(self, agent: Any) -> Generator[None]:
        before = _STEERS.set((self, self.context_of(agent)))
        try:
            yield
        finally:
            _STEERS.reset(before)

    def init_agent(self, agent: Any) -> None:
        """Register the context providers' callbacks: what they note is there when a tool use is looked at."""
        self.context_of(agent)
        for callback in self._context_callbacks:
            agent.add_hook(partial(self._note, callback), callback.event_type, HookOrder.DEFAULT - 1)
        if self._context_callbacks:
            agent.add_hook(self._restore, BeforeInvocationEvent, HookOrder.SDK_FIRST)
            agent.add_hook(self._keep, AfterToolCallEvent, HookOrder.SDK_FIRST)
            agent.add_hook(self._keep, AfterInvocationEvent, HookOrder.SDK_FIRST)

    async def steer_before_tool(self, *, agent: Any, tool_use: ToolUse, **kwargs: Any) -> Any:
        """Decide about a tool use: return a `ToolSteeringAction`.

        Args:
            agent: The agent.
            tool_use: The tool use: its id, the name of the tool, and its input.
            kwargs: Further values of a later version; pass them on, or ignore them.
        """
        return SteeringProceed(reason="Default implementation: every tool use passes")

    async def steer_after_model(self, *, agent: Any, message: Message, stop_reason: str, **kwargs: Any) -> Any:
        """Decide about an answer: return a `ModelSteeringAction`.

        Args:
            agent: The agent.
            message: The message.
            stop_reason: The reason why the model stopped.
            kwargs: Further values of a later version; pass them on, or ignore them.
        """
        return SteeringProceed(reason="Default implementation: every answer passes")

    @hook
    async def provide_tool_steering_guidance(self, event: BeforeToolCallEvent) -> None:
        """Decide about a tool use.

        Args:
            event: The event.

        Raises:
            Invalid: For a decision of another kind. Correct the argument.
        """
        name = event.tool_use["name"]
        with self._steers(event.agent):
            action = await _decided(self.steer_before_tool(agent=event.agent, tool_use=event.tool_use))
        match action:
            case SteeringProceed():
                pass
            case SteeringGuide(reason=reason):
                event.cancel_tool = f"Tool call cancelled. {reason} You MUST follow this guidance immediately."
            case SteeringInterrupt(reason=reason):
                answer = event.interrupt(name=f"steering_input_{name}", reason={"message": reason})
                if not is_yes(answer):
                    event.cancel_tool = f"Manual approval denied: {reason}"
            case _:
                raise Invalid("Unknown steering action type for tool call", got=repr(action))

    @hook
    async def provide_model_steering_guidance(self, event: AfterModelCallEvent) -> None:
        """Decide about an answer.

        Args:
            event: The event.

        Raises:
            Invalid: For a decision of another kind. Correct the argument.
        """
        response = event.stop_response
        if response is None:
            return
        about: dict[str, Any] = {"message": response.message, "stop_reason": response.stop_reason}
        with self._steers(event.agent):
            action = await _decided(self.steer_after_model(agent=event.agent, **about))
        match action:
            case SteeringProceed():
                pass
            case SteeringGuide(reason=reason):
                event.retry = True
                advice: list[ContentBlock] = [{"text": reason}]
                event.agent.messages.append({"role": "user", "content": advice})
            case _:
                raise Invalid("Unknown steering action type for model response", got=repr(action))

    # The context in the agent's state.

    @property
    def _state_key(self) -> str:
        return f"steering:{self.name}"

    @ignoring_prompts
    def _restore(self, event: BeforeInvocationEvent) -> None:
        data = self.context_of(event.agent).data
        if not data.get():
            stored = cast("Mapping[str, object]", event.agent.state.get(self._state_key) or {})
            for key, value in stored.items():
                data.set(key, value)

    def _keep(self, event: AfterToolCallEvent | AfterInvocationEvent) -> None:
        known = self.context_of(event.agent).data.get()
        if known and known != event.agent.state.get(self._state_key):
            event.agent.state.set(self._state_key, known)

    def _note(self, callback: SteeringContextCallback[Any], event: HookEvent) -> None:
        callback(event, self.context_of(event.agent))


_STEERS: ContextVar[tuple[SteeringHandler | None, SteeringContext]] = ContextVar(
    "repertory_steers", default=(None, SteeringContext())
)
"""The handler that decides in this task, and the context of the agent that it steers."""


async def _decided(deciding: Awaitable[object]) -> object:
    try:
        return await deciding
    except BaseException as raised:
        error = failure_of(raised)
        if isinstance(error, InterruptException):
            raise
        note(_log, ERROR, "steering failed, and what it looked at passes", error)
        return SteeringProceed(reason="no decision")


# A handler that asks a model.


class LLMPromptMapper(Protocol):
    """Writes the question to the model that steers."""

    def create_steering_prompt(
        self, steering_context: SteeringContext, tool_use: ToolUse | None = None, **kwargs: Any
    ) -> str:
        """The question about a tool use, or about the context alone."""
        ...


class DefaultPromptMapper:
    """Asks with the whole context as JSON."""

    def create_steering_prompt(
        self, steering_context: SteeringContext, tool_use: ToolUse | None = None, **kwargs: Any
    ) -> str:
        """The question about a tool use, or about the context alone."""
        known = steering_context.data.get()
        kind, looked_at = "action", "General evaluation"
        if tool_use:
            kind = "tool call"
            arguments = json.dumps(tool_use.get("input", {}), default=str)
            looked_at = f"Tool: {tool_use['name']}\nArguments: {arguments}"
        return _QUESTION.format(
            kind=kind,
            title=kind.title(),
            context=json.dumps(known, indent=2) if known else "No context available",
            looked_at=looked_at,
        )


_QUESTION = """# Steering Evaluation

## Overview

Another agent is about to carry out the {kind} below. You see what it has done so far, and decide whether this {kind}
passes, whether the agent gets advice instead, or whether a person is asked.

## Context

{context}

In a ledger, a tool call with the status "pending" has not run: it is the one that you decide about, and no repetition.
"success" and "error" are calls that have ended.

## Event to Evaluate

{looked_at}

## Steps

### 1. Analyze the {title}

Look for what speaks against it: earlier failures of the same kind, repetition that leads nowhere, a wrong moment.

**Constraints:**
- You MUST judge by the context and by your instructions alone, and not guess what a tool does
- You SHOULD name what in the context your decision rests on
- You MAY quote from the context

### 2. Make Steering Decision

**Constraints:**
- You MUST choose one of "proceed", "guide" and "interrupt", and give the reason, which the agent is shown
- "proceed" when nothing speaks against it
- "guide" when the agent should do something else, with what that is
- "interrupt" when a person has to decide
"""


class _Decision(BaseModel):
    decision: Literal["proceed", "guide", "interrupt"] = Field(description="Whether the event passes")
    reason: str = Field(description="Why, and for 'guide' what to do instead")


class LLMSteeringHandler(SteeringHandler):
    """Asks a model about each tool use, with `system_prompt` as its instructions.

    Each question is a conversation of its own, stored nowhere. If it fails, the tool runs.

    Args:
        system_prompt: The rules that the model applies.
        prompt_mapper: Writes the question.
        model: None for the agent's `aux_model`, which is its `model` unless it has one.
        context_providers: None for a `LedgerProvider`.
    """

    def __init__(
        self,
        system_prompt: str,
        prompt_mapper: LLMPromptMapper | None = None,
        model: Model | None = None,
        context_providers: Sequence[SteeringContextProvider] | None = None,
    ) -> None:
        super().__init__([LedgerProvider()] if context_providers is None else context_providers)
        self.system_prompt = system_prompt
        self.prompt_mapper = prompt_mapper or DefaultPromptMapper()
        self.model = model

    async def steer_before_tool(self, *, agent: Any, tool_use: ToolUse, **kwargs: Any) -> Any:
        """Ask the model, and return its decision. Errors: those of the model.

        Raises:
            StructuredOutputException: When it decides nothing. Ask again, or loosen the type.
        """
        from repertory.app.agent.agent import Agent  # which need not be loaded before

        question = self.prompt_mapper.create_steering_prompt(self.steering_context, tool_use=tool_use)
        judge = Agent(self.model or agent.aux_model, system_prompt=self.system_prompt, callback_handler=None)
        decided = (await judge.invoke_async(question, structured_output_model=_Decision)).structured_output
        if decided is None:
            raise StructuredOutputException("the model that steers gave no decision")
        kind = {"proceed": SteeringProceed, "guide": SteeringGuide, "interrupt": SteeringInterrupt}[decided.decision]
        return kind(reason=decided.reason)
