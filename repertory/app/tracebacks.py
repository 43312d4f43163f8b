"""The public edge: the tracebacks that callers see, whether a thread runs an event loop, and telemetry if there is any.

An error of ours reaches the caller with the frames of the caller's code and of user code that raised. Frames of this
package, of the event loops and of client libraries are removed, and a group of one error becomes that error. Causes
keep their place in the chain. `REPERTORY_FULL_TRACEBACKS=1` leaves everything as it is.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import os
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, cast

from repertory.app import wings
from repertory.errors import NodeFailed, RepertoryError
from repertory.forking import call_in_children

if TYPE_CHECKING:
    from repertory.backends.telemetry_ports import CallTelemetry

P = ParamSpec("P")
T = TypeVar("T")

_SWITCH = "REPERTORY_FULL_TRACEBACKS"
_OURS = str(Path(__file__).parents[1])
_STANDARD = str(Path(os.__file__).parent)
_INSTALLED = ("site-packages", "dist-packages")
_SPECIAL = frozenset(("__init__", "__call__", "__enter__", "__exit__", "__aenter__", "__aexit__"))
_LOOPS = ("anyio", "outcome", "sniffio", "trio")
_CLIENTS = ("aiobotocore", "aiohttp", "anthropic", "botocore", "h11", "httpcore", "httpcore2", "httpx", "httpx2", "mcp")
_MODELS = ("google", "litellm", "ollama", "openai", "writerai")
_LIBRARIES = frozenset((*_LOOPS, *_CLIENTS, *_MODELS, "pydantic"))


def short_errors(kind: type[T]) -> type[T]:
    """A decorator of a public class: its public methods, also those inherited from our classes, raise errors with short
    tracebacks.
    """
    ours = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == __name__.partition(".")[0]]
    for name in dict.fromkeys(name for base in ours for name in vars(base)):
        function = inspect.getattr_static(kind, name)
        if inspect.isfunction(function) and (not name.startswith("_") or name in _SPECIAL):
            setattr(kind, name, _shortening(function))
    return kind


def shortened_error(error: Exception, called: object = None) -> Exception:
    """The error to raise instead: the same object, or the only one of ours in a group, with its traceback shortened; of
    a call of what `passes_model_errors`, the exception that a model has raised in its first step.
    """
    found: BaseException = error
    while isinstance(found, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", found).exceptions
        if len(inner) != 1:
            return error
        (found,) = inner
    if not isinstance(found, RepertoryError) or os.environ.get(_SWITCH, "0") not in ("", "0"):
        return error
    seen: set[int] = set()
    link: BaseException | None = found
    with suppress(Exception):  # An exception of others may refuse to show its parts: then it stays as it is.
        while link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = _shortened(link.__traceback__)
            following = link.__cause__ if link.__cause__ is not None or link.__suppress_context__ else link.__context__
            # Of an error of ours that was raised while another one was handled, drop that one.
            if isinstance(following, RepertoryError) and link.__cause__ is None:
                link.__context__ = following = None
            # Of a library's error without frames, drop the causes.
            if not isinstance(link, RepertoryError) and link.__traceback__ is None:
                link.__cause__ = link.__context__ = following = None
            link = following
    return _passed(found) if getattr(called, "passes_model_errors", False) else found


def _passed(error: RepertoryError) -> Exception:
    cause = error.__cause__ if isinstance(error, NodeFailed) else error
    return (isinstance(cause, RepertoryError) and cause.of_model) or error


def _shortening(function: Callable[P, Any]) -> Callable[P, Any]:
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def stream(*args: P.args, **options: P.kwargs) -> AsyncGenerator[Any]:
            try:
                async with aclosing(function(*args, **options)) as events:
                    async for event in events:
                        yield event
            except (RepertoryError, ExceptionGroup) as caught:
                error = shortened_error(cast("Exception", caught), next(iter(args), None))
            else:
                return
            try:
                raise error
            finally:
                del error  # Its traceback leads here, which would be a cycle.

        return stream
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args: P.args, **options: P.kwargs) -> Any:
            try:
                return await function(*args, **options)
            except (RepertoryError, ExceptionGroup) as caught:
                error = shortened_error(cast("Exception", caught), next(iter(args), None))
            try:
                raise error
            finally:
                del error  # Its traceback leads here, which would be a cycle.

        return call

    @functools.wraps(function)
    def call_now(*args: P.args, **options: P.kwargs) -> Any:
        try:
            return function(*args, **options)
        except (RepertoryError, ExceptionGroup) as caught:
            error = shortened_error(cast("Exception", caught), next(iter(args), None))
        except TypeError as caught:
            if caught.__traceback__ is None or caught.__traceback__.tb_next is not None:
                raise  # Of the function itself.
            error = TypeError(f"{caught}{_meant(function, options)}")
        try:
            raise error
        finally:
            del error  # Its traceback leads here, which would be a cycle.

    return call_now


def _meant(function: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """A hint for a misspelt keyword, with the parameter that is most like it; empty if none is."""
    from difflib import get_close_matches  # loaded when used

    known = inspect.signature(function).parameters
    for name in given.keys() - known.keys():
        if near := get_close_matches(name, known, n=1):
            return f"; did you mean {near[0]}?"
    return ""


def _shortened(trace: TracebackType | None) -> TracebackType | None:
    frames: list[TracebackType] = []
    while trace is not None:
        if not _is_internal(trace.tb_frame.f_code.co_filename):
            frames.append(trace)
        trace = trace.tb_next
    shortened: TracebackType | None = None
    for frame in reversed(frames):
        shortened = TracebackType(shortened, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shortened


def _is_internal(file: str) -> bool:
    if file.startswith((_OURS, "<frozen")):
        return True
    for folder in _INSTALLED:
        _, found, below = file.partition(f"{os.sep}{folder}{os.sep}")
        if found:
            return below.partition(os.sep)[0] in _LIBRARIES
    return file.startswith(_STANDARD)


# Whether the calling thread runs an event loop right now.

_parents_run: Any = None
"""The run of trio in which this process was forked, if any. It continues in the parent alone."""


def inside_event_loop() -> bool:
    """True if this thread is inside asyncio (or uvloop) or trio. Safe while another thread imports them.

    A loop whose library was never imported does not run, so nothing is imported here. A library that another thread is
    still importing is in `sys.modules` already, without most of its names: no loop of it runs yet either.
    """
    lowlevel: Any = sys.modules.get("trio.lowlevel")
    in_trio_run = getattr(lowlevel, "in_trio_run", None)
    if in_trio_run is not None and in_trio_run() and lowlevel.current_trio_token() is not _parents_run:
        return True
    asyncio: Any = sys.modules.get("asyncio")
    running_loop = getattr(asyncio, "_get_running_loop", None)
    return running_loop is not None and running_loop() is not None


def _forget_parent() -> None:
    """Remember the parent's trio run in a forked child. asyncio notices by itself that its loop is not here."""
    global _parents_run
    lowlevel: Any = sys.modules.get("trio.lowlevel")
    in_trio_run = getattr(lowlevel, "in_trio_run", None)
    if in_trio_run is not None and in_trio_run():
        _parents_run = lowlevel.current_trio_token()


call_in_children(_forget_parent)


# Telemetry, if the program uses OpenTelemetry; nothing without it. Nothing is imported here before a provider is set.

AttributeValue: TypeAlias = (
    "str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]"
)
"""The values that a span's attribute may have."""
_IDLE = frozenset(("ProxyTracerProvider", "NoOpTracerProvider", "_ProxyMeterProvider", "NoOpMeterProvider"))
"""The stand-ins for a provider until the program sets one, by class name."""


def telemetry() -> CallTelemetry | None:
    """The telemetry for the spans and measurements of calls; None if the program has set no provider for either."""
    tracers = _provider("opentelemetry.trace", "get_tracer_provider")
    meters = _provider("opentelemetry.metrics", "get_meter_provider")
    if tracers is None and meters is None:
        return None
    return wings.telemetry().telemetry_of(tracers, meters)


def _provider(module: str, getter: str) -> Any:
    """The provider that the program has set; None if there is none. A module that another thread is still importing has
    none yet.
    """
    get = getattr(sys.modules.get(module), getter, None)
    if get is None:
        return None
    try:
        provider = get()
    except NameError:  # The module is there in part.
        return None
    return None if type(provider).__name__ in _IDLE else provider


@contextmanager
def span(name: str, attributes: Mapping[str, AttributeValue]) -> Generator[None]:
    """A span of that name as the current one, until the end of the block. It has the type of an error of the block, not
    its text, which may say what nobody else may read.
    """
    get_tracer = _imported("get_tracer")
    if get_tracer is None:
        yield
        return
    options = {"attributes": dict(attributes), "record_exception": False, "set_status_on_exception": False}
    with get_tracer("repertory").start_as_current_span(name, **options) as current:
        try:
            yield
        except Exception as error:
            current.set_attribute("error.type", type(error).__qualname__)
            current.set_status(_imported("StatusCode").ERROR)
            raise


def log_omission(name: str, why: str) -> None:
    """Record an event on the caller's span: the injection with this name was left out of the model call, and why."""
    get_current_span = _imported("get_current_span")
    if get_current_span is not None:
        get_current_span().add_event("repertory.injection.left_out", {"injection": name, "why": why})


def trace_ids() -> dict[str, str]:
    """The ids of the current trace and span, in hexadecimal; empty if nobody traces here."""
    get_current_span = _imported("get_current_span")
    context = None if get_current_span is None else get_current_span().get_span_context()
    if context is None or not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def trace_headers() -> dict[str, str]:
    """The current trace for another process, as W3C headers; empty if nobody traces here."""
    found = telemetry()
    return {} if found is None else found.headers()


def context_of(headers: Mapping[str, str]) -> contextvars.Context:
    """The running context variables, with the trace of a caller in another process, if anybody traces here."""
    context = contextvars.copy_context()
    if headers and (found := telemetry()) is not None:
        context.run(found.continue_from, headers)
    return context


async def flush_exporters() -> None:
    """Have the exporters that a `Telemetry` set up send what they hold, for five seconds at most. Nothing without."""
    if wings.flush_exporters is not None:
        from repertory.backends.worker_threads import run_in_thread  # loaded with the first session

        await run_in_thread(functools.partial(wings.flush_exporters, 5.0))


def _imported(name: str) -> Any:
    """The function of OpenTelemetry with that name; None if the program has not imported it, or another thread is still
    importing it.
    """
    return getattr(sys.modules.get("opentelemetry.trace"), name, None)
