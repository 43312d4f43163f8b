"""Durable steps of a tool: what a tool asks for, and its answers to people who are asked about one.

A tool names the parts of its work, and the journal has each part's result. A tool that a kill has cut off runs again
from its beginning, and parts that had ended give their recorded results instead of running. Nothing of the program's
stack is stored, so the program must ask for its steps as it did before; `core/journal/steps.py` finds out when it does
not.

Source: the outcomes of a step whose end nobody knows are those of tools (`core/turns/turn_start.py`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable
from hashlib import blake2s
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

from msgspec import Struct

from repertory.core.interrupts import UNKNOWN_STEP
from repertory.core.messages import ToolResult
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.messages import Json

T = TypeVar("T")

Lane = Literal["", "side", "undo"]
"""The order that a step is part of: that of the tool's own task (empty), no order (`side`: a task or thread that the
tool started), or the compensations.
"""
STEPS_MAX = 1000
"""The largest number of steps in one tool call: the journal's state holds all of them until the call has its result."""
UNDO_S = 30.0
"""Seconds for the compensations of a tool whose turn was told to end. Others are bounded by their timeouts."""
NO_STEPS = "there are no steps here: the tool was not called by an agent, or has ended"
_NAME = re.compile(r"\w[\w .:/()-]{0,99}")
_RETRIES_MAX = 1000


class StepRetry(Struct, frozen=True, kw_only=True):
    """When a step that failed is tried again.

    Args:
        attempts: The attempts in one life of the process, the first one included; from 1 to 1,000.
        first_s: Seconds before the second attempt.
        factor: Each further wait is this many times as long.
        max_s: The longest wait in seconds.
        on: The exceptions that are tried again; others fail the step at once.

    Examples:
        >>> from repertory import StepRetry
        >>> StepRetry(attempts=5, first_s=0.5, on=(ConnectionError,)).attempts
        5
    """

    attempts: int = 3
    first_s: float = 1.0
    factor: float = 2.0
    max_s: float = 60.0
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        attempts = cast("object", self.attempts)
        if not isinstance(attempts, int) or isinstance(attempts, bool) or not 1 <= attempts <= _RETRIES_MAX:
            raise Invalid("the attempts of a step are a number from 1 to 1,000", got=attempts)
        waits = cast("tuple[object, ...]", (self.first_s, self.factor, self.max_s))
        if not all(isinstance(each, int | float) and 0 <= each < math.inf for each in waits):
            raise Invalid("the waits of a step are numbers of seconds from 0", got=waits)

    def wait_s(self, failures: int) -> float:
        """Seconds before the next attempt.

        Args:
            failures: The attempts that have failed, from 1.
        """
        return min(self.first_s * self.factor ** min(failures - 1, _RETRIES_MAX), self.max_s)


ONCE = StepRetry(attempts=1)


class StepContext(Struct, frozen=True, kw_only=True):
    """A function that runs as a step knows its run by this object, if it has a parameter `step_context`.

    Args:
        name: The step's name.
        idempotency_key: The same at each attempt at this step, across restarts, and no other step's. Pass it to
            services that deduplicate.
        attempt: The number of this attempt, from 1; attempts of earlier lives of the process count.
    """

    name: str
    idempotency_key: str
    attempt: int


class StepCall(Struct, frozen=True, kw_only=True):
    """One step that a tool asks for, checked."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    retry: StepRetry = ONCE
    timeout_s: float | None = None
    idempotent: bool = False


def step_call(
    name: object, function: object, arguments: tuple[Any, ...], retry: object, timeout_s: object, idempotent: bool
) -> StepCall:
    """The checked call. Errors: `Invalid`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Invalid("a step's name is a word and up to 99 more letters, digits, spaces and _.:/()-", got=name)
    if not callable(function):
        raise Invalid("a step has a function", step=name, got=type(function).__name__)
    if isinstance(retry, int) and not isinstance(retry, bool):
        retry = StepRetry(attempts=retry)
    if retry is not None and not isinstance(retry, StepRetry):
        raise Invalid("retry is a number of attempts or a StepRetry", step=name, got=retry)
    if timeout_s is not None and (
        isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < math.inf
    ):
        raise Invalid("a step's timeout_s is a positive number of seconds, or None", step=name, got=timeout_s)
    return StepCall(
        name=name,
        function=function,
        arguments=arguments,
        retry=retry or ONCE,
        timeout_s=None if timeout_s is None else float(timeout_s),
        idempotent=idempotent,
    )


def step_key(idempotency_key: str, key: str) -> str:
    """The idempotency key of a step. `idempotency_key`: the tool call's."""
    return blake2s(f"{idempotency_key}/{key}".encode(errors="surrogatepass"), digest_size=16).hexdigest()


def digest_of(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """A digest of a step's function and arguments. An argument that is not JSON counts by its type alone."""

    def kind(value: object) -> str:
        return f"<{type(value).__module__}.{type(value).__qualname__}>"

    what = [getattr(function, "__qualname__", kind(function)), arguments]
    try:
        text = json.dumps(what, sort_keys=True, default=kind)
    except (TypeError, ValueError, RecursionError):  # keys that do not compare, or a value that holds itself
        text = json.dumps([what[0], *map(kind, arguments)])
    return blake2s(text.encode(), digest_size=6).hexdigest()


# A step of unknown outcome, and the answer of the person who is asked about it.


class KnownResult(Struct, frozen=True):
    """The result of a step of unknown outcome, as a person knows it."""

    value: Json


def question_name(key: str, attempt: int) -> str:
    """The name of the question about the outcome of this attempt: the answer to an earlier one answers no later one."""
    return f"{UNKNOWN_STEP}:{attempt}:{key}"


def step_answer(response: Json) -> Literal["retry", "fail"] | KnownResult:
    """A person's answer. False, a question that was cancelled, is "fail". Errors: `Invalid`."""
    match response:
        case "retry" | "fail":
            return response
        case False:
            return "fail"
        case {"result": result}:
            return KnownResult(result)
        case _:
            raise Invalid('an unknown step outcome is answered with "retry", "fail" or {"result": ...}', got=response)


# Compensation.


class Undone(Struct, frozen=True, kw_only=True):
    """How the compensations of a failed tool ended, in the order in which they ran."""

    done: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    """The names of those that failed or did not run, with the reason."""

    @property
    def text(self) -> str:
        """The outcome in words, for the model; empty if there was nothing to undo."""
        parts = [f"Undone: {', '.join(self.done)}."] if self.done else []
        if self.failed:
            parts.append(f"NOT undone: {'; '.join(f'{name} ({why})' for name, why in self.failed)}.")
        return " ".join(parts)


def with_undone(result: ToolResult, undone: Undone) -> ToolResult:
    """The failed tool's result, with what became of its compensations."""
    return {**result, "content": [*result["content"], {"text": undone.text}]} if undone.text else result


# What a running tool calls.


class HasSteps:
    """The part of a running tool's context by which its work has durable steps."""

    __slots__ = ()
    find_steps: Callable[[Any], ToolStepsPort] | None
    """Gives the steps of this call; None where no agent has called the tool."""

    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        retry: int | StepRetry | None = None,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., T],
        *args: Any,
        retry: int | StepRetry | None = None,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> T: ...
    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        retry: int | StepRetry | None = None,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> Any:
        """Run a part of the tool's work once, its result on record: `await tool_context.step("charge", charge, 5)`.

        If the process is killed and the tool runs again, a step that had ended gives its recorded result, or raises its
        recorded failure, without running. A step that had begun and whose end nobody knows is asked about, as a tool
        is: a person answers `"retry"`, `"fail"` or `{"result": ...}`. With `idempotent` it runs again unasked. A step's
        start is stored before its function is called (except for idempotent ones), its end right after, in the
        background: the start of the next step waits for both.

        Asynchronous functions run in the caller's task, others in a worker thread. A function with a parameter
        `step_context` gets a `StepContext` there. Cancellation cancels an asynchronous function, leaves a thread to
        itself, and makes the outcome unknown.

        Args:
            name: The step's name, for records and for people. Names may repeat; they are numbered in the order of the
                calls. Steps that run beside each other under one name are told apart by their arguments.
            function: The function, synchronous or not.
            *args: Its arguments. Bind named ones with `functools.partial`.
            retry: The number of attempts, or a `StepRetry`; None for one.
            timeout_s: Seconds one attempt may take.
            idempotent: True if running the function again with the same key has the effect of one run.

        Returns:
            What the function returned, as JSON keeps it (a tuple becomes a list); bytes stay bytes.

        Raises:
            StepFailed: If the function failed for good, now or before a kill, or a person says so. Its cause is the
                function's exception if it was raised in this life. Handle it, or let it pass: the tool then fails.
            StepsChanged: If the tool asks for other steps than before it was cut off. Let it pass.
            Invalid: For bad arguments, a step within a step, more than 1,000 steps, and outside a running tool.
            Unavailable: If the store does not take the step's start; the function was not called then.
        """
        return await self._steps().run(step_call(name, function, args, retry, timeout_s, idempotent))

    @overload
    def run_step(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        retry: int | StepRetry | None = None,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> T: ...
    @overload
    def run_step(
        self,
        name: str,
        function: Callable[..., T],
        *args: Any,
        retry: int | StepRetry | None = None,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> T: ...
    def run_step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        retry: int | StepRetry | None = None,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> Any:
        """`step` for synchronous tools: blocks the tool's thread until the step has ended.

        Args:
            name: The step's name.
            function: The function, synchronous or not; not called in the tool's thread.
            *args: Its arguments.
            retry: The number of attempts, or a `StepRetry`; None for one.
            timeout_s: Seconds one attempt may take.
            idempotent: True if running the function again with the same key has the effect of one run.

        Raises:
            StepFailed: As `step`.
            StepsChanged: As `step`.
            Invalid: As `step`; also on the event loop, where `await tool_context.step(...)` is meant.
            Unavailable: As `step`.
        """
        return self._steps().run_from_thread(step_call(name, function, args, retry, timeout_s, idempotent))

    def on_failure(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        retry: int | StepRetry | None = None,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> None:
        """Undo a step if the tool does not succeed: `tool_context.on_failure("refund", refund, charge_id)`.

        If the tool raises or returns an error for good, times out, or its turn is cancelled, its compensations run as
        steps, the last one first. One that fails does not keep the others from running. What was undone, and what could
        not be, stands in the tool's result, in the log and on the inspector's page. A turn that is cut off by a kill or
        a shutdown undoes nothing: it goes on. If a compensation's end is unknown after a kill, a person is asked.

        Register it after the step that it undoes, or before it where a step of unknown outcome must be undone too. A
        tool without `durable=True` that is cut off by a kill undoes nothing unless it is run again.

        Args:
            name: The compensation's name.
            function: The function, synchronous or not.
            *args: Its arguments.
            retry: The number of attempts, or a `StepRetry`; None for one.
            timeout_s: Seconds one attempt may take.
            idempotent: True if it may run again after a kill unasked.

        Raises:
            Invalid: For bad arguments, and outside a running tool.
        """
        self._steps().compensations.append(step_call(name, function, args, retry, timeout_s, idempotent))

    def _steps(self) -> ToolStepsPort:
        if self.find_steps is None:
            raise Invalid(NO_STEPS)
        return self.find_steps(self)


class ToolStepsPort:
    """What carries out the steps of one call."""

    compensations: list[StepCall]

    async def run(self, call: StepCall) -> Json:
        raise NotImplementedError

    def run_from_thread(self, call: StepCall) -> Json:
        raise NotImplementedError
