"""Calls, steps, model calls, tools, searches and commits as spans, by OpenTelemetry's conventions for generative AI.

    invoke_agent NAME | invoke_workflow NAME        one call, from the moment that it is served
    |- execute_node NAME                            of a graph or swarm; the call of its agent is a child
    |- step                                         one model call, with its repetitions, and the tools that it asks for
    |  |- chat MODEL                                one attempt
    |  `- execute_tool NAME                         one attempt; the call of an agent that is a tool is a child
    |     `- execute_step NAME                      a durable step of it, with its repetitions
    `- retrieval STORE                              a search in a memory store
    repertory.commit                                a trace of its own, linked to the calls whose rows it stores
    repertory.memory.extract                        the same, of the call that it extracts from

What follows a name of the conventions is in `docs/reference/telemetry.md`, which a test compares with their package.
A span has the type of an error and no text of it. Messages, arguments and results pass a `CapturePolicy`.

Nothing here raises into a turn: what a sampler, a span processor or an object of the program raises is logged once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from opentelemetry import baggage, trace
from opentelemetry import context as contexts
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode

from repertory.backends.ports import settings_of
from repertory.backends.telemetry_ports import MODEL_CALL
from repertory.core.interrupts import InterruptException
from repertory.core.result import AgentResult
from repertory.core.tokens import prompt_tokens
from repertory.errors import ModelFailed, RepertoryError, StepFailed
from repertory.telemetry.content import (
    CapturePolicy,
    instructions_json,
    messages_json,
    output_json,
    prompt_json,
    result_json,
    safely,
    tools_json,
)
from repertory.telemetry.propagation import as_traceparent, carried, continue_from, from_traceparent

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer
    from opentelemetry.util.types import AttributeValue

    from repertory.backends.ports import Model
    from repertory.backends.telemetry_ports import CallTrace, TracedCall
    from repertory.core.answer import Answer
    from repertory.core.converse import StreamEvent
    from repertory.core.messages import Message, SystemPrompt, ToolResult, ToolSpec, ToolUse, Usage
    from repertory.telemetry.measures import Measures

NAME = "repertory"
"""The instrumentation scope of all spans and metrics."""
UNNAMED, NAMELESS = "Repertory Agent", "default"
"""The name and the id of an agent that was given none: the one that was given is its name on spans."""
TOOL_ERROR = "tool_error"
"""The `error.type` of a tool that returned an error and raised nothing."""
_EMPTY: Mapping[str, Any] = MappingProxyType({})
_CALL = contexts.create_key("repertory.call")


class OtelTelemetry:
    """The telemetry of a program that has set a tracer provider, a meter provider, or both."""

    def __init__(
        self, tracer: Tracer, measures: Measures | None, policy: CapturePolicy, clock: Callable[[], float]
    ) -> None:
        """`measures`: None without a meter provider. `clock` gives seconds; only differences matter."""
        self.tracer = tracer
        self.measures = measures
        self.policy = policy
        self.clock = clock

    def begin(self, call: TracedCall) -> AgentTrace:
        return AgentTrace(self, call)

    headers = staticmethod(carried)
    continue_from = staticmethod(continue_from)

    def remote(self, agent_id: str, session_id: str, peer: str) -> RemoteBlock:
        return RemoteBlock(self, agent_id, session_id, peer)


class _Block:
    """One span, current inside the block."""

    __slots__ = ("_attributes", "_context", "_failed", "_token", "began", "context", "span", "telemetry")

    def __init__(
        self,
        telemetry: OtelTelemetry,
        name: str,
        kind: SpanKind,
        attributes: dict[str, AttributeValue],
        within: Context,
        links: Sequence[Link] = (),
    ) -> None:
        """`within`: the context of the parent; `links`: spans that it belongs to otherwise."""
        self.telemetry = telemetry
        self.began = telemetry.clock()
        self._attributes: dict[str, AttributeValue] = {}
        """The attributes that the span gets at its end."""
        self._failed: str | None = None
        """The `error.type`."""
        start = partial(telemetry.tracer.start_span, name, within, kind, attributes, links)
        self.span: Span = safely(start, trace.INVALID_SPAN)
        self.context = trace.set_span_in_context(self.span, within)
        self._token: Any = None

    def __enter__(self) -> Self:
        self._token = contexts.attach(self.context)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        contexts.detach(self._token)
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        safely(partial(self._end, error), None)

    def _end(self, error: BaseException | None) -> None:
        span, added = self.span, self._attributes
        if error is not None:
            self._note(error)
        self._ending(error)
        if self._failed is not None:
            added["error.type"] = self._failed
        if span.is_recording():
            if added:
                span.set_attributes(added)
            if self._failed is not None:
                text = None if error is None else self.telemetry.policy.shown(lambda: str(error))
                span.set_status(Status(StatusCode.ERROR, text))
        span.end()

    def _note(self, error: BaseException) -> None:
        if isinstance(error, InterruptException):
            self._attributes["repertory.interrupted"] = True
        elif isinstance(error, Exception):
            self._failed = error_type(error)
        else:
            self._attributes["repertory.cancelled"] = True

    def _ending(self, error: BaseException | None) -> None:
        """Set the last attributes, and measure."""

    def _show(self, name: str, make: Callable[[], object]) -> None:
        text = self.telemetry.policy.shown(make)
        if text is not None:
            self._attributes[name] = text


class RemoteBlock(_Block):
    """A call that another process serves."""

    __slots__ = ("headers",)

    def __init__(self, telemetry: OtelTelemetry, agent_id: str, session_id: str, peer: str) -> None:
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.id": agent_id,
            "gen_ai.conversation.id": session_id,
            "repertory.peer": peer,
        }
        super().__init__(telemetry, f"invoke_agent {agent_id}", SpanKind.CLIENT, attributes, contexts.get_current())
        self.headers = carried(self.context)


class AgentTrace:
    """One call of an agent, a graph or a swarm."""

    def __init__(self, telemetry: OtelTelemetry, call: TracedCall) -> None:
        self.telemetry = telemetry
        self._call = call
        self._own: Mapping[str, Any] = getattr(call.owner, "trace_attributes", None) or _EMPTY
        self._block: _CallBlock | None = None
        self._step: _Block | None = None
        self._step_number = -1
        self._attempts = 0
        self._baggage: Any = None
        self.redacted: str | None = None
        """The text that a guardrail has put in the place of the prompt."""
        self._mark = object()
        """The mark in the contexts of this call."""
        self._within: Context = contexts.get_current()
        self.traceparent: str | None = None

    def __enter__(self) -> AgentTrace:
        given: Mapping[str, str] = getattr(self._call.owner, "baggage_attributes", None) or _EMPTY
        within = contexts.get_current()
        for name, value in given.items():
            within = baggage.set_baggage(name, value, within)
        if given:
            self._baggage = contexts.attach(within)
        within = contexts.set_value(_CALL, self._mark, within)
        if not self._call.direct:
            self._block = _CallBlock(self, self._call, self._own, within).__enter__()
            self.traceparent = as_traceparent(self._block.span.get_span_context())
            within = self._block.context
        self._within = within
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._close_step(error)
        if self._block is not None:
            self._block.__exit__(kind, error, traceback)
        if self._baggage is not None:
            contexts.detach(self._baggage)

    def ended(self, result: object) -> None:
        if self._block is not None:
            self._block.result = result

    @property
    def span_context(self) -> SpanContext:
        return trace.get_current_span(self._within).get_span_context()

    # Steps.

    def step(self, number: int | None) -> None:
        if self._step is not None and number == self._step_number:
            return
        self._close_step(None)
        if number is not None:
            self._step_number, self._attempts = number, 0
            self._step = self.block("step", SpanKind.INTERNAL, {"repertory.step": number}).__enter__()

    def _close_step(self, error: BaseException | None) -> None:
        if self._step is not None:
            self._step.__exit__(None, error, None)
            self._step = None

    def retried(self, attempt: int, delay_s: float, error: BaseException | None) -> None:
        if self._step is None:
            return
        attributes: dict[str, AttributeValue] = {"repertory.attempt": attempt, "repertory.retry.delay": delay_s}
        if error is not None:
            attributes["error.type"] = error_type(error)
        safely(partial(self._step.span.add_event, "repertory.model_retry", attributes), None)

    # What is done in it.

    def model_call(
        self,
        model: Model,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec],
        system_prompt: SystemPrompt,
    ) -> ModelCallBlock:
        self._attempts += 1
        asked = _Asked(model, messages, tool_specs, system_prompt)
        return ModelCallBlock(self, asked, self._attempts, self._parent())

    def tool_call(self, spec: ToolSpec, use: ToolUse, attempt: int) -> ToolCallBlock:
        return ToolCallBlock(self, spec, use, attempt, self._parent())

    def tool_step(self, key: str, name: str, use_id: str, attempt: int, *, undoes: bool) -> ToolStepBlock:
        ours: dict[str, Any] = {
            "gen_ai.tool.call.id": use_id,
            "repertory.tool_step": key,
            "repertory.attempt": attempt,
        }
        if undoes:
            ours["repertory.tool_step.undoes"] = True
        return ToolStepBlock(
            self.telemetry, f"execute_step {name}", SpanKind.INTERNAL, self.attributes(ours), self._parent()
        )

    def search(self, store: str, query: str) -> SearchBlock:
        return SearchBlock(self, store, query, self._parent())

    def work(self, name: str, attributes: Mapping[str, Any], *, behind: bool = False) -> AbstractContextManager[object]:
        if not behind:
            return self.block(name, SpanKind.INTERNAL, attributes)
        known = self.span_context
        if known.is_valid and not known.trace_flags.sampled:
            return nullcontext()
        within = trace.set_span_in_context(trace.INVALID_SPAN, self._within)
        links = [self.link()] if known.is_valid else []
        return _Block(self.telemetry, name, SpanKind.INTERNAL, self.attributes(attributes), within, links)

    def commit(self, others: Sequence[CallTrace], attributes: Mapping[str, Any]) -> AbstractContextManager[object]:
        calls = [each for each in (self, *others) if isinstance(each, AgentTrace)]
        links = [each.link() for each in calls if each.span_context.trace_flags.sampled]
        if not links:
            return nullcontext()
        return _Block(self.telemetry, "repertory.commit", SpanKind.INTERNAL, {**attributes}, contexts.Context(), links)

    def link(self) -> Link:
        return Link(self.span_context, {"gen_ai.conversation.id": self._call.session_id})

    # How spans are made.

    def block(self, name: str, kind: SpanKind, attributes: Mapping[str, Any]) -> _Block:
        return _Block(self.telemetry, name, kind, self.attributes(attributes), self._parent())

    def attributes(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        """Ours and those of the agent, graph or swarm; ours win."""
        return {**self._own, **ours}

    def _parent(self) -> Context:
        """The current context if it is one of this call, such as that of the running step or of a span of the program's
        own; else the call's: work beside the turn runs in tasks that know nothing of it.
        """
        here = contexts.get_current()
        return here if contexts.get_value(_CALL, here) is self._mark else self._within


class _CallBlock(_Block):
    """The span of a call."""

    __slots__ = ("_call", "_trace", "_wanted", "result")

    def __init__(self, owner: AgentTrace, call: TracedCall, own: Mapping[str, Any], within: Context) -> None:
        self._trace = owner
        self._call = call
        self.result: object = None
        name = str(getattr(call.owner, "name", None) or call.agent_id)
        if name == UNNAMED and call.agent_id != NAMELESS:
            name = call.agent_id
        attributes: dict[str, Any] = {**own, "gen_ai.conversation.id": call.session_id}
        if call.kind == "agent":
            operation = "invoke_agent"
            attributes["gen_ai.agent.name"] = name
            attributes["gen_ai.agent.id"] = call.agent_id
            described = getattr(call.owner, "description", None)
            if isinstance(described, str):
                attributes["gen_ai.agent.description"] = described
            if call.model is not None:
                attributes.update(model_attributes(call.model))
            attributes["gen_ai.output.type"] = "json" if call.wants_output else "text"
        else:
            operation, name = "invoke_workflow", call.agent_id
            attributes["gen_ai.workflow.name"] = name
            attributes["repertory.orchestrator.kind"] = call.kind
        attributes["gen_ai.operation.name"] = operation
        cut = None if call.interrupted is None else from_traceparent(call.interrupted)
        links = () if cut is None else (Link(cut, {"repertory.link": "interrupted"}),)
        self._wanted = name
        super().__init__(owner.telemetry, f"{operation} {name}", SpanKind.INTERNAL, attributes, within, links)

    def _ending(self, error: BaseException | None) -> None:
        result, added, recording = self.result, self._attributes, self.span.is_recording()
        reason = "error" if error is not None else "none"
        if isinstance(result, AgentResult):
            reason = result.stop_reason
            if recording:
                self._of_turn(cast("AgentResult", result))
        elif result is not None:
            reason = str(getattr(result, "status", "none"))
            if recording:
                added.update(_of_run(result))
        added["repertory.stop_reason"] = reason
        if reason in ("failed", "FAILED") and self._failed is None:
            self._failed = "NodeFailed"
        measures = self.telemetry.measures
        if measures is not None:
            agent = self._call.kind == "agent"
            attributes: dict[str, Any] = {
                "gen_ai.operation.name": "invoke_agent" if agent else "invoke_workflow",
                "gen_ai.agent.name" if agent else "gen_ai.workflow.name": self._wanted,
                "repertory.stop_reason": reason,
            }
            if self._failed is not None:
                attributes["error.type"] = self._failed
            measures.turn(attributes, self.telemetry.clock() - self.began)
        if recording and self.telemetry.policy.capture:
            self._show_content()

    def _of_turn(self, result: AgentResult) -> None:
        added = self._attributes
        cycles = result.metrics.cycles
        if cycles:
            added["gen_ai.usage.input_tokens"] = sum(prompt_tokens(cycle.usage) for cycle in cycles)
            added["gen_ai.usage.output_tokens"] = sum(cycle.usage["outputTokens"] for cycle in cycles)
            for given, name in _CACHED:
                if any(given in cycle.usage for cycle in cycles):
                    added[name] = sum(cycle.usage.get(given, 0) for cycle in cycles)
        added["gen_ai.response.finish_reasons"] = (result.stop_reason,)
        if result.replayed:
            added["repertory.replayed"] = True

    def _show_content(self) -> None:
        call, result, redacted = self._call, self.result, self._trace.redacted
        self._show(
            "gen_ai.input.messages",
            lambda: prompt_json(call.prompt) if redacted is None else prompt_json(redacted),
        )
        if isinstance(result, AgentResult) and result.message is not None:
            message, reason = result.message, result.stop_reason
            self._show("gen_ai.output.messages", lambda: output_json(message, reason))
        instructions = getattr(call.owner, "system_prompt", None)
        if instructions:
            self._show("gen_ai.system_instructions", lambda: instructions_json(instructions))


class _Asked:
    """A request to a model."""

    __slots__ = ("messages", "model", "system_prompt", "tool_specs")

    def __init__(
        self,
        model: Model,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec],
        system_prompt: SystemPrompt,
    ) -> None:
        self.model = model
        self.messages = messages
        self.tool_specs = tool_specs
        self.system_prompt = system_prompt


class ModelCallBlock(_Block):
    """One attempt of a model call."""

    __slots__ = ("_answer", "_asked", "_before", "_fields", "_first_s", "_trace")

    def __init__(self, owner: AgentTrace, asked: _Asked, attempt: int, within: Context) -> None:
        self._trace = owner
        self._asked = asked
        self._answer: Answer | None = None
        self._first_s: float | None = None
        settings = settings_read(asked.model)
        named = self._fields = model_attributes(asked.model, settings)
        named["gen_ai.operation.name"] = "chat"
        attributes = owner.attributes(named)
        attributes.update(request_attributes(settings))
        attributes["repertory.attempt"] = attempt
        name = f"chat {named['gen_ai.request.model']}" if "gen_ai.request.model" in named else "chat"
        super().__init__(owner.telemetry, name, SpanKind.CLIENT, attributes, within)

    def __enter__(self) -> Self:
        self._before = MODEL_CALL.set(self)
        return super().__enter__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        MODEL_CALL.reset(self._before)
        super().__exit__(kind, error, traceback)

    def fitted(self, changes: Sequence[str]) -> None:
        attributes: dict[str, AttributeValue] = {"repertory.changes": list(changes)}
        safely(partial(self.span.add_event, "repertory.conversation_fitted", attributes), None)

    def watching(
        self, publish: Callable[[StreamEvent], Awaitable[None]] | None
    ) -> Callable[[StreamEvent], Awaitable[None]]:
        clock, measures, before = self.telemetry.clock, self.telemetry.measures, 0.0

        async def watch(event: StreamEvent) -> None:
            nonlocal before
            if "contentBlockDelta" in event or "contentBlockStart" in event:
                if self._first_s is None:
                    before = clock()
                    self._first_s = before - self.began
                elif measures is not None and "contentBlockDelta" in event:
                    now = clock()
                    measures.chunk(self._fields, now - before)
                    before = now
            if publish is not None:
                await publish(event)

        return watch

    def answered(self, answer: Answer) -> None:
        self._answer = answer
        if answer.redact_user is not None:
            self._trace.redacted = answer.redact_user

    def _ending(self, error: BaseException | None) -> None:
        answer, added, measures = self._answer, self._attributes, self.telemetry.measures
        if measures is not None:
            attributes = self._fields if self._failed is None else {**self._fields, "error.type": self._failed}
            took_s = self.telemetry.clock() - self.began
            measures.model_call(attributes, took_s, self._first_s, None if answer is None else answer.usage)
        if not self.span.is_recording():
            return
        if self._first_s is not None:
            added["gen_ai.response.time_to_first_chunk"] = self._first_s
        if answer is not None:
            added["gen_ai.response.finish_reasons"] = (answer.stop_reason,)
            if answer.response_id is not None:
                added["gen_ai.response.id"] = answer.response_id
            if answer.response_model is not None:
                added["gen_ai.response.model"] = answer.response_model
            added.update(usage_attributes(answer.usage))
        if self.telemetry.policy.capture:
            self._show_content()

    def _show_content(self) -> None:
        asked, answer = self._asked, self._answer
        redacted = None if answer is None else answer.redact_user
        self._show(
            "gen_ai.input.messages",
            lambda: messages_json(asked.messages) if redacted is None else prompt_json(redacted),
        )
        if asked.system_prompt:
            self._show("gen_ai.system_instructions", lambda: instructions_json(asked.system_prompt))
        if asked.tool_specs:
            self._show("gen_ai.tool.definitions", lambda: tools_json(asked.tool_specs))
        if answer is not None:
            self._show("gen_ai.output.messages", lambda: output_json(answer.message, answer.stop_reason))


class ToolCallBlock(_Block):
    """One attempt of a tool."""

    __slots__ = ("_result", "_use")

    def __init__(self, owner: AgentTrace, spec: ToolSpec, use: ToolUse, attempt: int, within: Context) -> None:
        self._use = use
        self._result: ToolResult | None = None
        ours: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": spec["name"],
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": use["toolUseId"],
            "repertory.attempt": attempt,
        }
        if spec["description"]:
            ours["gen_ai.tool.description"] = spec["description"]
        name = f"execute_tool {spec['name']}"
        super().__init__(owner.telemetry, name, SpanKind.INTERNAL, owner.attributes(ours), within)

    def ended(self, result: ToolResult, exception: BaseException | None) -> None:
        self._result = result
        if result.get("status") == "error":
            self._failed = TOOL_ERROR if exception is None else error_type(exception)

    def _ending(self, error: BaseException | None) -> None:
        use, result, measures = self._use, self._result, self.telemetry.measures
        if measures is not None:
            attributes: dict[str, Any] = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": use["name"]}
            if self._failed is not None:
                attributes["error.type"] = self._failed
            measures.tool_call(attributes, self.telemetry.clock() - self.began)
        if self.telemetry.policy.capture and self.span.is_recording():
            self._show("gen_ai.tool.call.arguments", lambda: use["input"])
            if result is not None:
                self._show("gen_ai.tool.call.result", lambda: result_json(result))


class ToolStepBlock(_Block):
    """One step of a tool."""

    __slots__ = ("_outcome",)

    def __enter__(self) -> Self:
        self._outcome = "completed"
        return super().__enter__()

    def recorded(self) -> None:
        self._outcome = "recorded"

    def retried(self, delay_s: float, error: Exception) -> None:
        attributes: dict[str, AttributeValue] = {"repertory.retry.delay": delay_s, "error.type": error_type(error)}
        safely(partial(self.span.add_event, "repertory.step_retry", attributes), None)

    def _ending(self, error: BaseException | None) -> None:
        if isinstance(error, InterruptException):
            self._outcome = "asked"
        elif error is not None:
            self._outcome = "failed" if isinstance(error, Exception) else "unknown"
        self._attributes["repertory.tool_step.outcome"] = self._outcome


class SearchBlock(_Block):
    """One search in a memory store."""

    __slots__ = ("_query", "_texts")

    def __init__(self, owner: AgentTrace, store: str, query: str, within: Context) -> None:
        self._query = query
        self._texts: Sequence[str] | None = None
        ours = {"gen_ai.operation.name": "retrieval", "gen_ai.data_source.id": store}
        super().__init__(owner.telemetry, f"retrieval {store}", SpanKind.CLIENT, owner.attributes(ours), within)

    def found(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._attributes["repertory.memory.results"] = len(texts)

    def _ending(self, error: BaseException | None) -> None:
        if not self.telemetry.policy.capture:
            return
        query, texts = self._query, self._texts
        self._show("gen_ai.retrieval.query.text", lambda: query)
        if texts is not None:
            self._show("gen_ai.retrieval.documents", lambda: [{"content": text} for text in texts])


# What is known of a model and its answers.

_PROVIDERS = {
    "AnthropicModel": "anthropic",
    "BedrockModel": "aws.bedrock",
    "GeminiModel": "gcp.gemini",
    "LiteLLMModel": "litellm",
    "LlamaAPIModel": "meta.llama_api",
    "LlamaCppModel": "llama.cpp",
    "MistralModel": "mistral_ai",
    "OllamaModel": "ollama",
    "OpenAIModel": "openai",
    "OpenAIResponsesModel": "openai",
    "SageMakerAIModel": "aws.sagemaker",
    "WriterModel": "writer",
}
"""The provider's name by model class, also for subclasses: that of the conventions where they have one."""
_REQUESTED = (
    ("temperature", "gen_ai.request.temperature"),
    ("top_p", "gen_ai.request.top_p"),
    ("top_k", "gen_ai.request.top_k"),
    ("max_tokens", "gen_ai.request.max_tokens"),
    ("frequency_penalty", "gen_ai.request.frequency_penalty"),
    ("presence_penalty", "gen_ai.request.presence_penalty"),
    ("seed", "gen_ai.request.seed"),
    ("n", "gen_ai.request.choice.count"),
)
_CACHED: Sequence[tuple[Literal["cacheReadInputTokens", "cacheWriteInputTokens"], str]] = (
    ("cacheReadInputTokens", "gen_ai.usage.cache_read.input_tokens"),
    ("cacheWriteInputTokens", "gen_ai.usage.cache_creation.input_tokens"),
)


def model_attributes(model: Model, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The provider and the model's id, where it has one. A class that is not known gives its own name."""
    attributes: dict[str, Any] = {"gen_ai.provider.name": _provider_of(type(model))}
    model_id = (settings_read(model) if settings is None else settings).get("model_id")
    if isinstance(model_id, str) and model_id:
        attributes["gen_ai.request.model"] = model_id
    return attributes


@lru_cache(maxsize=128)
def _provider_of(kind: type) -> str:
    names = [each.__name__ for each in kind.__mro__]
    return next((_PROVIDERS[name] for name in names if name in _PROVIDERS), names[0])


def request_attributes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The request parameters among a model's settings."""
    inner = settings.get("params")
    if isinstance(inner, Mapping):
        settings = {**settings, **cast("Mapping[str, Any]", inner)}
    attributes: dict[str, Any] = {"gen_ai.request.stream": settings.get("streaming", True) is not False}
    if not settings:
        return attributes
    for given, name in _REQUESTED:
        value = settings.get(given)
        if isinstance(value, int | float) and not isinstance(value, bool):
            attributes[name] = value
    stops = settings.get("stop_sequences") or settings.get("stop")
    if isinstance(stops, list | tuple):
        attributes["gen_ai.request.stop_sequences"] = tuple(str(each) for each in cast("Sequence[object]", stops))
    return attributes


def settings_read(model: Model) -> Mapping[str, Any]:
    """The model's settings; none if its own code fails, since the turn meets that error itself."""
    return safely(partial(settings_of, model), _EMPTY, "a model's settings cannot be read")


def usage_attributes(usage: Usage) -> dict[str, Any]:
    """Token counts; cached tokens are part of the input."""
    attributes: dict[str, Any] = {
        "gen_ai.usage.input_tokens": prompt_tokens(usage),
        "gen_ai.usage.output_tokens": usage["outputTokens"],
    }
    for given, name in _CACHED:
        count = usage.get(given)
        if count is not None:
            attributes[name] = count
    return attributes


def error_type(error: BaseException) -> str:
    """The class of an error, never its text: of a model or a step that raised something foreign, the class of that."""
    found = error
    while isinstance(found, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", found).exceptions
        if len(inner) != 1:
            return "ExceptionGroup"
        found = inner[0]
    if isinstance(found, ModelFailed | StepFailed) and found.__cause__ is not None:
        found = found.__cause__
    kind: type[BaseException] = type(found)
    own = issubclass(kind, RepertoryError) or kind.__module__ == "builtins"
    return kind.__qualname__ if own else f"{kind.__module__}.{kind.__qualname__}"


def _of_run(result: object) -> dict[str, Any]:
    usage: Usage | None = getattr(result, "accumulated_usage", None)
    attributes: dict[str, Any] = {} if usage is None else usage_attributes(usage)
    for name in ("execution_count", "run", "resumed", "replayed"):
        value = getattr(result, name, None)
        if isinstance(value, int):
            attributes[f"repertory.run.{name}"] = value
    return attributes
