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
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2s
from typing import TYPE_CHECKING, Literal, cast

from msgspec import Struct

from repertory.core.interrupts import UNKNOWN_STEP
from repertory.core.messages import ToolResult
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.messages import Json

Lane = Literal["", "side", "undo", "report"]
"""The order that a step is part of: that of the tool's own task (empty), no order (`side`: a task or thread that the
tool started), the compensations, or none at all, for a `report` of how far the tool has got.
"""
STEPS_MAX = 1000
"""The largest number of steps in one tool call: the journal's state holds all of them until the call has its result."""
REPORTS_MAX = 256
"""Reports of one tool call that are recorded; later ones are only shown."""
REPORT_CHARACTERS_MAX = 1000
REPORT_DEPTH_MAX = 32
"""Agents above a tool, one the tool of the other, whose streams show its reports."""
UNDO_S = 30.0
"""Seconds for the compensations of a tool whose turn was told to end. Others are bounded by their timeouts."""
NO_STEPS = "there are no steps here: the tool was not called by an agent, or has ended"
NO_INNER_TOOLS = "no tools can be called here: the tool was not called by an agent whose tools may call others"
_NAME = re.compile(r"\w[\w .:/()-]{0,99}")
_RETRIES_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRetry:
    """A rule for trying a step again that failed.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """A function that runs as a step knows its run by this object, if it has a parameter `step_context`.

    Args:
        name: The step's name.
        idempotency_key: The same at each attempt at this step, across restarts, and no other step's. Pass it to
            services that deduplicate.
        attempt: The number of this attempt, from 1; attempts of earlier lives of the process count.

    Examples:
        >>> from repertory import Agent, ScriptedModel, StepContext, ToolContext, tool
        >>> def charge(amount: int, *, step_context: StepContext) -> str:
        ...     return f"{amount} charged, key of {len(step_context.idempotency_key)} letters"
        >>> @tool(durable=True)
        ... async def buy(tool_context: ToolContext) -> str:
        ...     '''Buy it.'''
        ...     return await tool_context.step("charge", charge, 90)
        >>> agent = Agent(ScriptedModel([{"toolUse": {"name": "buy", "input": {}}}, "Bought."]), tools=[buy])
        >>> print(agent("Buy it."))
        Bought.
        >>> agent.messages[2]["content"][0]["toolResult"]["content"]
        [{'text': '90 charged, key of 32 letters'}]
    """

    name: str
    idempotency_key: str
    attempt: int


class StepCall(Struct, frozen=True, kw_only=True):
    """One step that a tool asks for, checked."""

    name: str
    function: Callable[..., object]
    arguments: tuple[object, ...] = ()
    retry: StepRetry = ONCE
    timeout_s: float | None = None
    idempotent: bool = False


def step_call(
    name: object, function: object, arguments: tuple[object, ...], retry: object, timeout_s: object, idempotent: bool
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


def arguments_digest(function: Callable[..., object], arguments: tuple[object, ...]) -> str:
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


def step_question_name(key: str, attempt: int) -> str:
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
    """The outcomes of a failed tool's compensations, in the order in which they ran."""

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


def report_in(event: object) -> str | None:
    """The report in a piece of a tool's result, also if the tool has an agent work whose tool has reported it."""
    for _ in range(REPORT_DEPTH_MAX):
        if not isinstance(event, dict):
            return None
        piece = cast("dict[str, object]", event)
        if isinstance(text := piece.get("report"), str):
            return text
        inner = piece.get("tool_stream_event")
        event = cast("dict[str, object]", inner).get("data") if isinstance(inner, dict) else None
    return None
