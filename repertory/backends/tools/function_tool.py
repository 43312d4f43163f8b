"""A Python function as a tool: Python calls it as before, an agent runs it with checked input.

Steps of a run: the input is checked and converted, `agent` and `tool_context` are added, the function is called (on the
event loop when it is asynchronous, in a worker thread when not), and its return value becomes a tool result.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from math import isfinite
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    get_args,
    overload,
)

import anyio
from anyio.lowlevel import RunVar
from msgspec import Struct

from repertory.backends.ports import TOOL_TASK, ToolContext
from repertory.backends.sdk_members import (
    SdkMembers,
    called_by_hand,
    result_as_text,
    stream_event,
)
from repertory.backends.worker_threads import call_in_thread, run_in_thread
from repertory.core.call_events import ToolResultEvent
from repertory.core.interrupts import question_in
from repertory.core.messages import ToolResult, ToolSpec, ToolUse, error_result
from repertory.core.state import json_copy
from repertory.core.tools import exception_text, normal_spec, tool_result
from repertory.errors import Invalid, LimitReached, TooLarge
from repertory.logs import DEBUG, WARNING, note

if TYPE_CHECKING:
    from repertory.backends.tools.input_schema import InputSchema

P = ParamSpec("P")
R = TypeVar("R")
Function_co = TypeVar("Function_co", covariant=True)
"""The type of the function: lists of tools of different functions are then lists of tools to mypy."""
OnPartial = Callable[[object], Awaitable[None]]
"""Receives each value that an asynchronous generator yields."""

_log = logging.getLogger("repertory.tools")


class ToolSettings(Struct, frozen=True, kw_only=True):
    """A tool's settings besides its signature."""

    name: str
    description: str | None = None
    """The description for the model; None: the docstring, without its `Args` section."""
    input_schema: Mapping[str, object] | None = None
    """The JSON schema for the model instead of the derived one. Input is still checked against the signature."""
    timeout_s: float | None = None
    """Seconds one attempt may take, enforced by the caller of `run`; None means no bound."""
    idempotent: bool = False
    effects: bool = True
    durable: bool = False
    deferred: bool = False
    background: bool = False
    input_examples: Sequence[Mapping[str, object]] = ()


class ToolDeclaration:
    """The parts of a tool that do not depend on the instance of a method. The schema is built once."""

    def __init__(self, function: Callable[..., Any], settings: ToolSettings, context_name: str | None = None) -> None:
        """Errors: `TypeError` for parameters that no model can fill in; `Invalid` for classes without a JSON schema."""
        self.settings = settings
        self.parameters: Parameters = read_parameters(function, context_name)
        self.given_spec: ToolSpec | None = None
        """The spec that was assigned to `tool_spec`; None while none was."""
        self._function = function
        if any(_is_foreign(each.annotation, function) for each in self.parameters.visible):
            try:
                _ = self.schema  # A type without a JSON schema is found here, where the tool is made.
            except Invalid as error:
                raise error.with_traceback(None) from None  # It names the parameter, and pydantic says no more.

    @functools.cached_property
    def schema(self) -> InputSchema:
        """The input's schema. Loads pydantic. Errors: `Invalid` for annotations without one."""
        descriptions = read_docstring(self._function.__doc__).parameters
        return schema_class()(self.settings.name, self._function, self.parameters.visible, descriptions)

    def take(self, spec: ToolSpec) -> None:
        """Show this spec from now on. Input is still checked against the signature."""
        self.given_spec = spec
        self.__dict__.pop("spec", None)

    @functools.cached_property
    def spec(self) -> ToolSpec:
        if self.given_spec is not None:
            return normal_spec(self.given_spec)
        settings = self.settings
        function_name = getattr(self._function, "__name__", settings.name)
        description = settings.description or read_docstring(self._function.__doc__).description or function_name
        schema = settings.input_schema or self.schema.json_schema
        spec: ToolSpec = {"name": settings.name, "description": description, "inputSchema": {"json": schema}}
        if settings.input_examples:
            spec["inputExamples"] = settings.input_examples
        return spec


_COPIED = (*functools.WRAPPER_ASSIGNMENTS, "__deprecated__")


class FunctionTool(SdkMembers, Generic[Function_co]):
    """A function with a `Tool` around it. Made by `@tool`; calling it from Python calls the function unchanged."""

    supports_hot_reload = True
    result_of = staticmethod(tool_result)
    """Makes the tool result of what the function returns."""
    text_of_error = staticmethod(exception_text)
    """Makes the text for the model of what the function raises."""
    __wrapped__: Callable[..., Any]

    def __class_getitem__(cls, of: object) -> type[Self]:
        return cls

    def __init__(self, function: Function_co, declaration: ToolDeclaration) -> None:
        self._function = cast("Callable[..., Any]", function)
        functools.update_wrapper(cast("Any", self), self._function, _COPIED, ())
        self._declaration = declaration
        self._kind = _kind_of(function)
        self.name: Final = declaration.settings.name
        self.effects: Final = declaration.settings.effects
        self.timeout_s: Final = declaration.settings.timeout_s
        """Seconds one attempt may take; None means no bound. The caller of `run` enforces it."""

    if TYPE_CHECKING:

        @property
        def __call__(self) -> Function_co:
            """The function itself: no conversion, no injection, exceptions unchanged."""
            ...

    else:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Call the function itself: no conversion, no injection, exceptions unchanged."""
            return self._function(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> FunctionTool[Function_co]: ...
    @overload
    def __get__(
        self: FunctionTool[Callable[Concatenate[Any, P], R]], instance: object, owner: type | None = None
    ) -> FunctionTool[Callable[P, R]]: ...
    def __get__(self, instance: object, owner: type | None = None) -> FunctionTool[Any]:
        """The tool of a method, bound to its instance as a method is."""
        if instance is None:
            return self
        bound = cast("Any", self._function).__get__(instance, owner)
        declaration = self._declaration
        if declaration.parameters.receiver is None:
            declaration = ToolDeclaration(bound, declaration.settings)
        return type(self)(bound, declaration)

    def of_kind(self, kind: type[FunctionTool[Any]]) -> FunctionTool[Any]:
        """The same tool as one of a subclass."""
        return kind(self._function, self._declaration)

    def __repr__(self) -> str:
        return f"FunctionTool(name={self.name!r})"

    @property
    def spec(self) -> ToolSpec:
        """Name, description and JSON schema, built at first use.

        Errors: `Invalid` when an annotation has no JSON schema, or for a method that was not taken from an instance.
        """
        receiver = self._declaration.parameters.receiver
        if receiver is not None and not hasattr(self._function, "__self__"):
            raise Invalid("a method is a tool of its instance: pass instance.method, not Class.method", tool=self.name)
        return self._declaration.spec

    @property
    def idempotent(self) -> bool:
        return self._declaration.settings.idempotent

    @property
    def durable(self) -> bool:
        """True if all of its effects are in steps: it goes on after a crash or a shutdown."""
        return self._declaration.settings.durable

    @property
    def background(self) -> bool:
        """True if its calls run beside the turn, and their results come later."""
        return self._declaration.settings.background

    @property
    def deferred(self) -> bool:
        """True if the model is shown it only when it has searched for it, where the agent has `ToolSearch`."""
        return self._declaration.settings.deferred

    async def run(self, tool_use: ToolUse, context: ToolContext) -> ToolResult:
        """Run once with the model's input. Each value of an asynchronous generator goes to `context.on_partial`.

        Invalid input, exceptions of the function, and results that JSON cannot express or that are too large become
        results with status `error`, and `context.on_exception` is called. All but invalid input, the model's mistake,
        are logged in one line, with their traceback at level debug. Cancellation is never swallowed: an asynchronous
        function is cancelled where it waits; a synchronous one cannot be, so its thread runs on and its result is
        dropped. `InterruptException`, by which the function asks a person, is not swallowed either.
        """
        use_id, arguments = tool_use["toolUseId"], None
        try:
            arguments = await self._arguments(tool_use["input"], context)
            result = functools.partial(self.result_of, use_id, bytes_max=context.result_bytes)
            return await self._carry_out(arguments, context.on_partial, result)
        except Exception as error:
            if question_in(error) is not None:
                raise
            return self._failed(error, use_id, context, began=arguments is not None)

    async def seen_input(self, value: object) -> object:
        """The input as JSON, as the function gets it; see `InputSchema.seen`. One that is refused stays as it is."""
        with suppress(Exception):  # Types of users convert. When the tool runs, the model is told.
            return (await self._schema()).seen(value)
        return value

    async def stream(
        self, tool_use: ToolUse, invocation_state: Mapping[str, Any], **kwargs: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Run the tool by hand, as programs of the SDK do: `invocation_state["agent"]` is its agent. Yields each value
        of an asynchronous generator, and a `ToolResultEvent` last, in which what is no finished result is text.
        """
        del kwargs
        failures: list[Exception] = []
        context = called_by_hand(self.name, tool_use, invocation_state, failures.append)
        use_id, arguments = context.tool_use["toolUseId"], None
        try:
            arguments = await self._arguments(context.tool_use["input"], context)
            if self._kind == "generator":
                last: object = None
                async with aclosing(cast("Any", self._function)(**arguments)) as values:
                    async for last in values:
                        yield stream_event(context.tool_use, last)
                result = result_as_text(use_id, last)
            else:
                result = await self._carry_out(arguments, None, functools.partial(result_as_text, use_id))
        except Exception as error:
            if question_in(error) is not None:
                raise
            result = self._failed(error, use_id, context, began=arguments is not None)
        yield ToolResultEvent(result, failures[-1] if failures else None)

    def _given_spec(self) -> ToolSpec:
        return self._declaration.given_spec or self.spec

    def _take_spec(self, spec: ToolSpec) -> None:
        self._declaration.take(spec)

    def get_display_properties(self) -> dict[str, str]:
        """The properties of the tool for display, by label."""
        return {**super().get_display_properties(), "Function": getattr(self._function, "__name__", self.name)}

    async def _arguments(self, value: object, context: ToolContext) -> dict[str, Any]:
        arguments = (await self._schema()).read(value)
        for name, what in self._declaration.parameters.injected.items():
            if what == "context":
                TOOL_TASK.set(anyio.get_current_task().id)
            arguments[name] = context if what == "context" else context.agent
        return arguments

    async def _schema(self) -> InputSchema:
        if "schema" not in vars(self._declaration):  # It loads pydantic, which takes a while.
            await load_schema_library()
        return self._declaration.schema

    def _failed(self, error: Exception, use_id: str, context: ToolContext, *, began: bool) -> ToolResult:
        """The result of a run that failed, noted and logged. `began`: whether the function was called."""
        level, what = WARNING, "tool failed"
        if isinstance(error, Invalid) and not began:
            level, what = DEBUG, "tool input refused"  # The model is told, and calls again.
        elif isinstance(error, TooLarge):
            what = "tool result refused"
        note(_log, level, what, error, tool=self.name, tool_use=use_id, agent=context.agent_id)
        if context.on_exception is not None:
            context.on_exception(error)
        return error_result(use_id, self.text_of_error(error))

    async def _carry_out(
        self, arguments: dict[str, Any], on_partial: OnPartial | None, result_of: Callable[[object], ToolResult]
    ) -> ToolResult:
        function = self._function
        if self._kind == "coroutine":
            return result_of(await function(**arguments))
        if self._kind == "generator":
            return result_of(await _last(function(**arguments), on_partial))

        def work() -> tuple[ToolResult | None, Any]:
            value = function(**arguments)
            # A plain wrapper around an asynchronous function returns its coroutine, which belongs on the event loop.
            # Any other value becomes the result here: a large one takes a while.
            return (None, value) if inspect.isawaitable(value) else (result_of(value), None)

        result, awaitable = await tool_threads().run(work)
        return result_of(await awaitable) if result is None else result


async def _last(values: AsyncIterator[object], on_partial: OnPartial | None) -> object:
    last: object = None
    async with aclosing(cast("Any", values)) as stream:
        async for last in stream:
            if on_partial is not None:
                await on_partial(last)
    return last


def _kind_of(function: object) -> Literal["coroutine", "generator", "thread"]:
    """The way in which the function runs. For a callable object, its `__call__` decides."""
    called: object = function
    if not inspect.isroutine(function) and not isinstance(function, functools.partial):
        called = inspect.getattr_static(type(function), "__call__")
    if inspect.iscoroutinefunction(called):
        return "coroutine"
    return "generator" if inspect.isasyncgenfunction(called) else "thread"


_ARGS_HEADER = re.compile(r"(?i)(args|arguments|params|parameters):\s*")
_ENTRY = re.compile(r"\*{0,2}(?P<name>\w+(?: ?/ ?\w+)*)\s*(?:\(.*?\))?\s*:(?:\s+|$)(?P<text>.*)")


class Docstring(Struct, frozen=True, kw_only=True):
    """A parsed docstring. `description` is everything but the `Args` section; either may be empty."""

    description: str
    parameters: Mapping[str, str]
    """The text of each parameter, by name; its lines stay, since they may be a list."""


def read_docstring(text: str | None) -> Docstring:
    """Parse a docstring. Everything but the `Args` section stays in the description, in its order."""
    lines = inspect.cleandoc(text or "").splitlines()
    start = next((index for index, line in enumerate(lines) if _ARGS_HEADER.fullmatch(line)), None)
    if start is None:
        return Docstring(description="\n".join(lines).strip(), parameters={})
    length = next((count for count, line in enumerate(lines[start + 1 :]) if _indent(line) == 0), len(lines))
    end = start + 1 + length
    rest = [*lines[:start], *lines[end:]]
    return Docstring(description="\n".join(rest).strip(), parameters=_entries(lines[start + 1 : end]))


def _entries(lines: Sequence[str]) -> dict[str, str]:
    """Entries have the section's smallest indentation; deeper lines continue the entry above them."""
    margin = min((indent for line in lines if (indent := _indent(line)) is not None), default=0)
    parts: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        entry = _ENTRY.fullmatch(line.strip()) if _indent(line) == margin else None
        if entry is not None:
            current = parts.setdefault(entry["name"], [])
            current.append(entry["text"])
        else:
            current.append(line)
    return {name: "\n".join((text, inspect.cleandoc("\n".join(more)))).strip() for name, (text, *more) in parts.items()}


def _indent(line: str) -> int | None:
    """The indentation of a line; None for a blank line, which belongs to the lines around it."""
    return len(line) - len(line.lstrip()) if line.strip() else None


InjectedParameter = Literal["agent", "context"]

_CONTEXT_ANNOTATION = re.compile(r"(?:Optional\[)?(?:\w+\.)*ToolContext(?:\[[\w.]+\])?\]?(?:\s*\|\s*None)?")
_PLAIN = ("str", "int", "float", "bool", "list", "dict")
"""Annotations that say that the model fills in a parameter, whatever its name."""
_UNSUPPORTED = {
    inspect.Parameter.VAR_POSITIONAL: "*{}",
    inspect.Parameter.VAR_KEYWORD: "**{}",
    inspect.Parameter.POSITIONAL_ONLY: "the positional-only {}",
}


class Parameters(Struct, frozen=True, kw_only=True):
    visible: tuple[inspect.Parameter, ...]
    """The parameters in signature order; annotations as written, perhaps strings."""
    injected: Mapping[str, InjectedParameter]
    """The value that the runtime passes to each parameter, by name."""
    receiver: str | None
    """`self` or `cls` of an unbound method: it runs only when taken from an instance."""


_WITH_SCHEMA = ("__get_pydantic_core_schema__", "__dataclass_fields__", "__members__", "__total__", "_fields")
"""The attributes of classes that have a JSON schema: pydantic's, dataclasses, enums, and dictionaries and tuples with
types.
"""
_PLAIN_MODULES = frozenset(
    ("builtins", "collections", "datetime", "decimal", "inspect", "ipaddress", "pathlib", "types", "typing", "uuid")
)


def _is_foreign(annotation: object, function: Callable[..., Any]) -> bool:
    """True if only pydantic, which is loaded for it, knows whether there is a JSON schema. A name that is not defined
    yet is looked up when the schema is needed.
    """
    if isinstance(annotation, str):
        annotation = getattr(function, "__globals__", {}).get(annotation)
    if found := get_args(annotation):
        return any(_is_foreign(each, function) for each in found)
    if not isinstance(annotation, type) or annotation.__module__.partition(".")[0] in _PLAIN_MODULES:
        return False
    return not any(hasattr(annotation, name) for name in _WITH_SCHEMA)


def read_parameters(function: Callable[..., Any], context_name: str | None = None) -> Parameters:
    """Sort the parameters by kind. `agent`, `tool_context`, `context_name` and parameters annotated `ToolContext` are
    injected.

    Errors: `TypeError` for `*args`, `**kwargs` and positional-only parameters, which a model cannot name, and when
    `context_name` names no parameter.
    """
    parameters = list(inspect.signature(function).parameters.values())
    receiver = parameters.pop(0).name if parameters and parameters[0].name in ("self", "cls") else None
    injected: dict[str, InjectedParameter] = {
        each.name: what for each in parameters if (what := _injected(each, context_name))
    }
    if context_name is not None and context_name not in injected:
        raise TypeError(f"context={context_name!r} names no parameter of {_name_of(function)}")
    for each in parameters:
        if each.kind in _UNSUPPORTED:
            refused = _UNSUPPORTED[each.kind].format(each.name)
            raise TypeError(f"a tool's parameters are named one by one; {_name_of(function)} has {refused}")
    visible = tuple(each for each in parameters if each.name not in injected)
    return Parameters(visible=visible, injected=injected, receiver=receiver)


def _injected(parameter: inspect.Parameter, context_name: str | None) -> InjectedParameter | None:
    if parameter.name == context_name or _says_context(parameter.annotation):
        return "context"
    if parameter.name == "tool_context":
        return None if getattr(parameter.annotation, "__name__", parameter.annotation) in _PLAIN else "context"
    return "agent" if parameter.name == "agent" else None


def _says_context(annotation: object) -> bool:
    """True if an annotation is `ToolContext`. A string is compared as text: it need not resolve at run time."""
    if isinstance(annotation, str):
        return _CONTEXT_ANNOTATION.fullmatch(annotation.strip("'\" ")) is not None
    return annotation in (ToolContext, ToolContext | None)


def _name_of(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__qualname__', repr(function))}()"


# The worker threads that synchronous tools run in: bounded, with contextvars, never waited for after cancellation.
#
# A thread cannot be stopped. When the call is cancelled (a timeout, the end of the turn) the tool's thread runs on by
# itself and its answer is thrown away. So that abandoned threads do not pile up without a bound, they are counted, and
# with `ABANDONED_MAX` of them still running further synchronous tools are refused.

THREADS_MAX = 32
"""Synchronous tools that run at once in one event loop; more wait for a thread."""
ABANDONED_MAX = 16
"""Abandoned calls that may still run before further synchronous tools are refused."""

T = TypeVar("T")


class ThreadStatistics(Struct, frozen=True, kw_only=True):
    """Counts of one event loop's tool threads."""

    running_count: int
    abandoned_count: int
    """The number of running threads that nobody waits for any more."""


class ToolThreads:
    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(THREADS_MAX)
        self._running: set[object] = set()
        self._abandoned: set[object] = set()

    def statistics(self) -> ThreadStatistics:
        """The current counts. Safe from any thread."""
        return ThreadStatistics(running_count=len(self._running), abandoned_count=len(self._abandoned))

    async def run(self, function: Callable[[], T]) -> T:
        """Call `function` in a thread; its result or its exception.

        Cancellation returns at once and abandons the thread. Errors: `LimitReached` when too many abandoned calls still
        run: wait for them, or give those tools a timeout for what they wait for.
        """
        abandoned_count = len(self._abandoned)
        if abandoned_count >= ABANDONED_MAX:
            raise LimitReached("synchronous tools that were given up on still run", abandoned_count=abandoned_count)
        call = object()

        def work() -> T:
            self._running.add(call)
            try:
                return function()
            finally:
                self._running.discard(call)
                self._abandoned.discard(call)

        try:
            return await call_in_thread(work, self._limiter, abandon=True)
        except anyio.get_cancelled_exc_class():
            self._abandon(call)
            raise

    def _abandon(self, call: object) -> None:
        """Count the call as abandoned while it runs.

        Adds the call, then checks if it still runs; the thread does the opposite. So the later of the two removes it.
        """
        self._abandoned.add(call)
        if call not in self._running:
            self._abandoned.discard(call)


_threads: RunVar[ToolThreads] = RunVar("repertory_tool_threads")


def tool_threads() -> ToolThreads:
    """The tool threads of the running event loop, made when first asked for."""
    try:
        return _threads.get()
    except LookupError:
        threads = ToolThreads()
        _threads.set(threads)
        return threads


# What `@tool` (`decorator.py`) checks, when it makes a tool of a function.


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""The pattern of tool names that every provider accepts."""


def check_function(target: object) -> None:
    """Check a tool's function. Errors: `TypeError` for other objects, and for a tool."""
    if isinstance(target, staticmethod | classmethod):
        raise TypeError("put @tool under @staticmethod or @classmethod, next to the function")
    if isinstance(target, FunctionTool):
        raise TypeError(f"{target.name!r} is a tool already")
    if isinstance(target, type) or not callable(target):
        raise TypeError(f"@tool takes a function or method, not {target!r}; settings are named: @tool(name=...)")
    if inspect.isgeneratorfunction(target):
        raise TypeError(f"{target!r} is a generator: make it asynchronous to yield partial results")


def warn_of_silence(target: Callable[..., Any], settings: ToolSettings) -> None:
    """Log once if a tool lacks a description of itself or of its parameters for the model; it works all the same."""
    missing: list[str] = []
    if not settings.description and not inspect.getdoc(target):
        missing.append("no docstring, so the model is told nothing of what it does: write one")
    if settings.input_schema is None:
        hidden = ("self", "cls", "agent", "tool_context")
        known = [each for each in inspect.signature(target).parameters.values() if each.name not in hidden]
        bare = [each.name for each in known if each.annotation is inspect.Parameter.empty]
        if bare:
            write = f"write def {target.__name__}({bare[0]}: str)"
            missing.append(f"parameters without types, so the model may pass anything: {write}")
    if missing:
        _log.warning("tool %r has %s", settings.name, ", and ".join(missing))


def checked_name(name: str) -> str:
    """The name. Errors: `Invalid` for one that a provider refuses."""
    if not isinstance(cast("object", name), str):
        raise Invalid("Tool name must be a string", got=name)
    if not _NAME.fullmatch(name):
        raise Invalid("a tool's name is 1 to 64 of a-z, A-Z, 0-9, _ and -; give one with @tool(name=...)", name=name)
    return name


def checked_timeout(timeout_s: float | None) -> float | None:
    """The seconds. Errors: `Invalid` for what is no positive number."""
    if timeout_s is not None and (isinstance(timeout_s, bool) or not isfinite(timeout_s) or timeout_s <= 0):
        raise Invalid("a tool's timeout_s is a positive number of seconds, or None", timeout_s=timeout_s)
    return timeout_s


def checked_examples(given: object) -> tuple[Mapping[str, object], ...]:
    """Copies of the examples. Errors: `Invalid` for what is no list of objects, and for values that are not JSON."""
    examples = () if given is None else given
    if not isinstance(examples, list | tuple):
        raise Invalid("input_examples is a list of inputs", got=type(given).__name__)
    copies: list[Mapping[str, object]] = []
    for example in cast("Sequence[object]", examples):
        copied = json_copy(example)
        if not isinstance(copied, dict):
            raise Invalid("an example of an input is an object", got=repr(example)[:200])
        copies.append(copied)
    return tuple(copies)


def checked_durable(durable: bool, *, effects: bool) -> bool:
    """`durable` itself. Errors: `Invalid` for a tool that says that it has no effects."""
    if durable and not effects:
        raise Invalid("a durable tool has effects, in its steps; leave durable=True or effects=False out")
    return durable


def bare_schema(schema: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """The schema without its outer `{"json": ...}`."""
    inner = schema.get("json") if schema is not None and len(schema) == 1 else None
    return cast("Mapping[str, object]", inner) if isinstance(inner, Mapping) else schema


# The schema library takes some 70 ms to load and reads files, so code on an event loop awaits `load_schema_library`
# first; the import then runs in a worker thread.


@functools.cache
def schema_class() -> type[InputSchema]:
    """`InputSchema`, imported at the first call. Blocks while it loads."""
    from repertory.backends.tools.input_schema import InputSchema

    InputSchema("warm_up", schema_class, (), {})  # the library looks for its plugins on disk at the first schema
    return InputSchema


async def load_schema_library() -> None:
    """Load the library without blocking the event loop. Costs nothing when it is loaded."""
    if not schema_class.cache_info().currsize:
        await run_in_thread(schema_class)
