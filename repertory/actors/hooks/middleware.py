"""Middleware: what stands around calls of models and tools, and how they run through it. Loaded when an agent has some.

A stage is a place where handlers may stand, in three phases. Input handlers change the context, one after the other;
wrap handlers stand around the call, the first one outermost, and call it by `next_fn`, as often as they like or not at
all; output handlers change the result. A handler that wraps is an async generator: what it yields is shown to the
caller of the turn, except for the result, which it yields as well.

What is recorded is what comes out of it. Every attempt that a handler makes is paid for, and every start of a tool with
effects is recorded before the tool runs, however often a handler starts it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast

from repertory.backends.ports import gated_stream
from repertory.core.answer import Answer, Assembler, used_ids
from repertory.core.call_events import ModelStopReason, ToolResultEvent, TypedEvent
from repertory.core.interrupts import InterruptException, middleware_scope, question_in
from repertory.core.messages import Message, Usage, check_message, copy_message, for_model, system_blocks, system_text
from repertory.core.result import derived_event, no_usage
from repertory.core.tokens import projected_tokens
from repertory.errors import Invalid, MiddlewareFailed, ModelFailed, RepertoryError
from repertory.runtime.faults import failure_of, repr_of

if TYPE_CHECKING:
    from repertory.backends.ports import Model, OutputSchema, Tool, ToolContext
    from repertory.core.interrupts import Questions
    from repertory.core.messages import SystemPrompt, ToolResult, ToolSpec, ToolUse

TContext = TypeVar("TContext")
TResult = TypeVar("TResult")
TEvent = TypeVar("TEvent")

MiddlewareNext = Callable[[TContext], AsyncGenerator[TEvent, None]]
"""Runs what is inside: it yields events, and the result as one of them."""
MiddlewareHandler = Callable[[TContext, MiddlewareNext[TContext, TEvent]], AsyncGenerator[TEvent, None]]
MiddlewareInputHandler = Callable[[TContext], TContext | Awaitable[TContext]]
MiddlewareOutputHandler = Callable[[TResult], TResult | Awaitable[TResult]]


# Stages and their phases.


class _Phase(Generic[TContext, TResult, TEvent]):
    def __init__(self, stage: MiddlewareStage[TContext, TResult, TEvent]) -> None:
        self.stage = stage


class MiddlewareInputPhase(_Phase[TContext, TResult, TEvent]):
    """The phase before the call: handlers get the context and return it or another one."""


class MiddlewareWrapPhase(_Phase[TContext, TResult, TEvent]):
    """Around the call: handlers are async generators of events."""


class MiddlewareOutputPhase(_Phase[TContext, TResult, TEvent]):
    """The phase after the call: handlers get the result and return it or another one."""


class MiddlewareStage(Generic[TContext, TResult, TEvent]):
    """A place where handlers may stand; itself it means its `Wrap` phase. There are `InvokeModelStage` and
    `ExecuteToolStage`.
    """

    __slots__ = ("Input", "Output", "Wrap", "context_type", "name", "result_event", "result_type")

    def __init__(
        self, name: str, *, context_type: type[TContext], result_type: type[TResult], result_event: type[TypedEvent]
    ) -> None:
        self.name = name
        self.context_type = context_type
        self.result_type = result_type
        self.result_event = result_event
        self.Input = MiddlewareInputPhase(self)
        self.Wrap = MiddlewareWrapPhase(self)
        self.Output = MiddlewareOutputPhase(self)

    def __repr__(self) -> str:
        return f"MiddlewareStage(name={self.name!r})"


AnyPhase = MiddlewareStage[Any, Any, Any] | _Phase[Any, Any, Any]
"""A stage to which a handler may be added, or one phase of it."""


class _Context:
    def replace(self, **changes: Any) -> Self:
        """A copy of the context with these fields changed.

        Args:
            changes: The new values, by the names of the fields.
        """
        return dataclasses.replace(cast("Any", self), **changes)


@dataclass
class InvokeModelContext(_Context):
    """One call of the model. All values are copies, except for the agent, the model and the invocation state: edits
    concern this call alone.

    Args:
        agent: The agent.
        messages: The messages, oldest first.
        system_prompt: The system prompt; None for none.
        tool_specs: The tools that the model may use.
        tool_choice: The tool that the model has to use; None leaves it to the model.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
    """

    agent: Any
    messages: list[Message]
    system_prompt: SystemPrompt
    tool_specs: list[ToolSpec]
    tool_choice: Mapping[str, Any] | None
    invocation_state: dict[str, Any]
    model: Any
    """The model that is asked; another one may be put here for this call."""
    projected_input_tokens: int | None = None
    """The estimated tokens of the request."""
    dynamic_trailing_blocks: int = 0
    """The number of last blocks of the last message that are for this call alone, so that a cache leaves them out."""
    structured_output_model: Any = None
    """The type of the value that the caller asked for; None for none. To replace it changes nothing."""


@dataclass
class InvokeModelResult:
    """Output handlers of model calls get and return this value.

    Args:
        result: The end of the call; see `ModelStopReason`.
    """

    result: ModelStopReason


@dataclass(frozen=True)
class MiddlewareInterruptResult:
    """The answer of a person."""

    response: Any


@dataclass
class ExecuteToolContext(_Context):
    """One call of a tool. The tool use is a copy; the tool gets its input.

    Args:
        agent: The agent.
        tool_use: The tool use: its id, the name of the tool, and its input.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
        questions: The interrupts asked so far; the runtime fills it in.
    """

    agent: Any
    tool: Any
    """The tool; None for one that the agent has not. Another one may be put here for this call."""
    tool_use: ToolUse
    invocation_state: dict[str, Any]
    cancel_signal: Any = None
    """Set when the turn is to end; to replace it changes nothing."""
    questions: Questions | None = dataclasses.field(default=None, repr=False, compare=False)

    def interrupt(self, name: str, reason: object = None, response: object = None) -> MiddlewareInterruptResult:
        """Ask a person, as `ToolContext.interrupt` does. The handler then runs again from its beginning, and the tool
        with it if it ran before the question.

        Args:
            name: The question's name; the same name is the same question.
            reason: The question's content for the person, as JSON.
            response: An answer that is known already.

        Raises:
            Invalid: Where no person can be asked. Correct the argument.
        """
        if self.questions is None:
            raise Invalid("no person can be asked here: the tool was not called by an agent", name=name)
        scope = middleware_scope(self.tool_use["toolUseId"])
        return MiddlewareInterruptResult(self.questions.ask(scope, name, reason, response))


@dataclass
class ExecuteToolResult:
    """Output handlers of tool calls get and return this value.

    Args:
        result: The end of the call; see `ToolResultEvent`.
    """

    result: ToolResultEvent


InvokeModelStage: MiddlewareStage[InvokeModelContext, InvokeModelResult, TypedEvent] = MiddlewareStage(
    "InvokeModelStage",
    context_type=InvokeModelContext,
    result_type=InvokeModelResult,
    result_event=ModelStopReason,
)
"""Around each call of the model in a turn, inside of its hooks. Summaries and other side calls do not pass it."""
ExecuteToolStage: MiddlewareStage[ExecuteToolContext, ExecuteToolResult, TypedEvent] = MiddlewareStage(
    "ExecuteToolStage",
    context_type=ExecuteToolContext,
    result_type=ExecuteToolResult,
    result_event=ToolResultEvent,
)
"""Around each call of a tool, inside of its hooks."""


# Running through them.

_Next = Callable[[Any], AsyncGenerator[Any, None]]
_Publish = Callable[[Any], Awaitable[None]]


async def run_through(
    stage: MiddlewareStage[Any, Any, Any],
    handlers: Handlers,
    context: object,
    innermost: _Next,
    publish: _Publish | None,
) -> Any:
    """The result event that the handlers finally give. Other events are published as they come.

    Errors: a handler's own `RepertoryError`, and questions to a person; `MiddlewareFailed` for anything else that a
    handler raises, and if there is no result.
    """
    try:
        # A handler that returns early leaves the generators inside of it open; closed by the garbage collector, they
        # would end in another task.
        async with AsyncExitStack() as opened:
            for handler in handlers.inputs:
                context = await _returned(handler, context, stage.context_type)
            result = None
            async for event in _composed(handlers, innermost, opened)(context):
                if isinstance(event, stage.result_event):
                    result = event
                elif publish is not None:
                    await publish(event)
        # A gate that has forgotten its result must not read as a tool that gave nothing.
        if result is None:
            what = stage.result_event.__name__
            raise MiddlewareFailed(f"{stage.name} middleware chain did not yield a {what}")
        for handler in handlers.outputs:
            result = (await _returned(handler, stage.result_type(result), stage.result_type)).result
            if not isinstance(result, stage.result_event):
                raise TypeError(f"an output handler returned a result of {type(result).__name__}")
    except RepertoryError:
        raise
    except BaseException as raised:
        error = failure_of(raised)
        if question_in(error) is not None:
            raise
        raise MiddlewareFailed("middleware failed", stage=stage.name, error=repr_of(error)) from error
    return result


def _composed(handlers: Handlers, innermost: _Next, opened: AsyncExitStack) -> _Next:
    """One step from the wrap handlers. `opened` closes generators that a handler has left before their end."""

    def closed(make: _Next) -> _Next:
        def begin(context: object) -> AsyncGenerator[Any, None]:
            events = make(context)
            if not hasattr(events, "aclose"):
                raise TypeError("a handler that wraps is an async generator")
            opened.push_async_callback(events.aclose)
            return events

        return begin

    def around(wrap: Callable[[Any, Any], AsyncGenerator[Any, None]], inner: _Next) -> _Next:
        return lambda context: wrap(context, inner)

    step = closed(innermost)
    # From the inside out, so that the first one added is outermost.
    for wrap in reversed(handlers.wraps):
        step = closed(around(wrap, step))
    return step


async def _returned(handler: Callable[[Any], Any], value: object, kind: type[Any]) -> Any:
    returned = handler(value)
    if inspect.isawaitable(returned):
        returned = await returned
    if not isinstance(returned, kind):
        raise TypeError(f"a handler must return {kind.__name__}, got {type(returned).__name__}")
    return returned


# Calls of the model.


class Asked(Protocol):
    """A request to a model."""

    @property
    def messages(self) -> Sequence[Message]: ...
    @property
    def tool_specs(self) -> Sequence[ToolSpec]: ...
    @property
    def system_prompt(self) -> str | None: ...
    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def output(self) -> OutputSchema | None: ...


class WrappedModelCall:
    """One model call through middleware, which may make more than one of it, or none."""

    def __init__(self, handlers: Handlers, context: InvokeModelContext, options: Mapping[str, Any], size: int) -> None:
        """`options`: further options of the agent's model; `size`: the largest answer in bytes."""
        self._handlers = handlers
        self._context = context
        # A handler may edit the blocks in place, and whether it did decides how the prompt is sent.
        self._given = deepcopy(context.system_prompt)
        self._options = options
        self._size = size
        self._raised: Exception | None = None
        self._last: Answer | None = None
        self.spent: list[tuple[Model, Usage]] = []
        """The models that answered the request, each with the usage of its answer."""

    async def ask(self, publish: _Publish | None) -> Answer:
        """The answer. Errors: those of `run_through` and of a model call."""
        try:
            event = await run_through(InvokeModelStage, self._handlers, self._context, self._stream, publish)
        except MiddlewareFailed as error:
            if self._raised is None or error.__cause__ is not self._raised:
                raise
            model = type(self._context.model).__name__
            raised = self._raised
            raise ModelFailed("the model raised an error", model=model, error=repr_of(raised)) from raised
        return _answer_of(event, self._last)

    async def _stream(self, context: InvokeModelContext) -> AsyncGenerator[TypedEvent, None]:
        model, assembler = context.model, Assembler(self._size, used_ids(context.messages))
        prompt = system_text(context.system_prompt)
        options = self._options_for(context)
        try:
            stream = gated_stream(model)(for_model(context.messages), context.tool_specs or None, prompt, **options)
            async with _closing(stream) as events:
                async for event in events:
                    assembler.feed(event)
                    yield TypedEvent(event=event)
                    derived = derived_event(event)
                    if derived is not None:
                        yield TypedEvent(derived)
            answer = self._last = assembler.finish()
        except Exception as error:
            self._raised = error
            raise
        # Before the handler sees it: it may throw the answer away, which was paid for all the same.
        self.spent.append((model, answer.usage))
        result = ModelStopReason(
            answer.stop_reason, answer.message, answer.usage, {"latencyMs": answer.latency_ms or 0}
        )
        result.answer = answer
        yield result

    def _options_for(self, context: InvokeModelContext) -> dict[str, Any]:
        """The model's further options: names that a model may not know only if it is the agent's own."""
        prompt = context.system_prompt
        # A handler may put another model here, which need not know the options of ours.
        own = context.model is self._context.model
        options = {**self._options} if own else {}
        for name in ("tool_choice", "system_prompt_content", "dynamic_trailing_blocks"):
            options.pop(name, None)
        blocks = system_blocks(prompt)
        if blocks is not None:
            options["system_prompt_content"] = blocks
        elif isinstance(prompt, str) and prompt != self._given and _takes(context.model, "system_prompt_content"):
            options["system_prompt_content"] = [{"text": prompt}]
        if context.tool_choice is not None:
            options["tool_choice"] = context.tool_choice
        if context.dynamic_trailing_blocks:
            options["dynamic_trailing_blocks"] = context.dynamic_trailing_blocks
        return options


def _takes(model: object, name: str) -> bool:
    stream = getattr(type(model), "stream", None)
    if stream is None:
        return False
    parameters = inspect.signature(stream).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _closing(stream: AsyncIterator[Any]) -> Any:
    return aclosing(cast("AsyncGenerator[Any]", stream)) if hasattr(stream, "aclose") else _Open(stream)


class _Open:
    """An iterator that has nothing to close."""

    def __init__(self, stream: AsyncIterator[Any]) -> None:
        self._stream = stream

    async def __aenter__(self) -> AsyncIterator[Any]:
        return self._stream

    async def __aexit__(self, *_: object) -> None:
        return None


def _answer_of(event: ModelStopReason, last: Answer | None) -> Answer:
    """The event as an answer. `last`: the model's last one, whose redaction holds whatever became of it.

    Tool uses of a message that a handler has given another end than `tool_use` are left out: they will not run.
    Errors: `Invalid` for a message that cannot be stored.
    """
    own = event.answer
    message = check_message(deepcopy(event.message) if own is None else event.message)
    if message["role"] != "assistant":
        raise Invalid("the result of a model call is a message of the assistant", role=message["role"])
    if own is None and event.stop_reason != "tool_use":
        remaining = [block for block in message["content"] if "toolUse" not in block]
        message = cast("Message", {**message, "content": remaining or [{"text": ""}]})
    return Answer(
        message=message,
        stop_reason=event.stop_reason,
        usage=cast("Usage", {**no_usage(), **event.usage}) if own is None else own.usage,
        latency_ms=cast("float | None", event.metrics.get("latencyMs")) if own is None else own.latency_ms,
        invalid_inputs={} if last is None else last.invalid_inputs,
        truncated=own is not None and own.truncated,
        redact_user=None if last is None else last.redact_user,
    )


# Calls of tools.

StartTool = Callable[["Tool", "ToolUse", dict[str, Any]], Awaitable[tuple["ToolResult", Exception | None]]]
"""Runs a tool once: its result, and the exception behind an error."""


class Handlers:
    """The handlers of one stage, by phase."""

    def __init__(self) -> None:
        self.inputs: Sequence[Callable[[Any], Any]] = ()
        self.wraps: Sequence[Callable[[Any, Any], AsyncGenerator[Any, None]]] = ()
        self.outputs: Sequence[Callable[[Any], Any]] = ()

    async def run_tool(
        self,
        tool: Tool,
        use: ToolUse,
        context: ToolContext,
        start: StartTool,
        publish: _Publish | None,
    ) -> ToolResultEvent:
        """The result that middleware finally gives. Errors: those of `run_through`, and `MiddlewareFailed` for a
        question that nobody here asked.
        """

        async def run(given: ExecuteToolContext) -> AsyncGenerator[TypedEvent, None]:
            # The id of the record, whatever a handler has written into its copy.
            asked = cast("ToolUse", {**given.tool_use, "toolUseId": use["toolUseId"]})
            result, exception = await start(given.tool or tool, asked, given.invocation_state)
            yield ToolResultEvent(result, exception)

        state = cast("dict[str, Any]", context.invocation_state)
        signal = getattr(context, "cancel_signal", None)
        agent, known = context.agent, tool if getattr(tool, "known", True) else None
        seen = ExecuteToolContext(agent, known, {**use}, state, signal, context.questions)
        try:
            return await run_through(ExecuteToolStage, self, seen, run, publish)
        except (InterruptException, ExceptionGroup) as error:
            question = question_in(error)
            if question is None or context.questions is None or not context.questions.were_asked(question.interrupts):
                raise MiddlewareFailed(
                    "middleware failed", stage=ExecuteToolStage.name, error=repr_of(error)
                ) from error
            raise


class MiddlewareRegistry:
    """All handlers of an agent. What is added counts from the next call of a model or tool on."""

    def __init__(self) -> None:
        self._stages: dict[MiddlewareStage[Any, Any, Any], Handlers] = {}

    def add(self, where: object, handler: object) -> None:
        """Errors: `TypeError` for anything but a stage or a phase of one."""
        stage = cast("MiddlewareStage[Any, Any, Any]", where)
        phase: object = stage.Wrap if isinstance(where, MiddlewareStage) else where
        if not isinstance(phase, _Phase) or not callable(handler):
            raise TypeError(f"middleware is added to a stage, or a phase of one, as a function; got {where!r}")
        handlers = self._stages.setdefault(cast("_Phase[Any, Any, Any]", phase).stage, Handlers())
        if isinstance(phase, MiddlewareInputPhase):
            handlers.inputs = (*handlers.inputs, handler)
        elif isinstance(phase, MiddlewareWrapPhase):
            handlers.wraps = (*handlers.wraps, cast("Callable[[Any, Any], AsyncGenerator[Any, None]]", handler))
        else:
            handlers.outputs = (*handlers.outputs, handler)

    @property
    def around_tools(self) -> Handlers | None:
        """The middleware around tools; None for nothing."""
        return self._stages.get(ExecuteToolStage)

    def model_call(
        self,
        agent: object,
        model: Model,
        request: Asked,
        invocation_state: dict[str, Any],
        tokens: int | None,
        size_max: int,
    ) -> WrappedModelCall:
        """The model call that takes this request through the middleware. `tokens`: of the request, if they were
        measured; `size_max`: of the answer, in bytes.
        """
        if tokens is None:
            tokens = projected_tokens(request.messages, request.tool_specs, request.system_prompt)
        context = InvokeModelContext(
            agent=agent,
            messages=[copy_message(message) for message in request.messages],
            system_prompt=deepcopy(request.options.get("system_prompt_content", request.system_prompt)),
            tool_specs=deepcopy(list(request.tool_specs)),
            tool_choice=deepcopy(request.options.get("tool_choice")),
            invocation_state=invocation_state,
            model=model,
            projected_input_tokens=tokens,
            dynamic_trailing_blocks=request.options.get("dynamic_trailing_blocks", 0),
            structured_output_model=None if request.output is None else request.output.kind,
        )
        handlers = self._stages.get(InvokeModelStage) or Handlers()
        return WrappedModelCall(handlers, context, request.options, size_max)
