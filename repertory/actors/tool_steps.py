"""Carries out the durable steps of one tool call: records around them, attempts, questions, and compensations.

`core/steps.py` decides. Not an actor: the steps run in the tool's task, or in tasks and threads that it has started.

A step costs one commit that its tool waits for: the record of its start, with the end of the step before. The end of a
step is handed over and not awaited. So a kill between two steps can make the outcome of the first one unknown, as one a
moment earlier would; and no step runs before the ends of those before it are stored.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, cast

import anyio
import anyio.from_thread
from anyio.lowlevel import RunVar
from msgspec import Struct

from repertory.actors.call import trace_here
from repertory.backends.ports import TOOL_TASK
from repertory.backends.worker_threads import call_in_thread, context_of_work, limiter_of_loop
from repertory.core.interrupts import InterruptException, question_in, tool_scope
from repertory.core.journal.codec import dump, load
from repertory.core.journal.records import StepFinished, StepStarted
from repertory.core.journal.steps import WITHIN, RecordedStep, StepBook, questions_about, steps_left, steps_within
from repertory.core.limits import DEPTH_MAX, Scale, is_too_deep, well_formed
from repertory.core.messages import error_result
from repertory.core.steps import (
    NO_STEPS,
    REPORT_CHARACTERS_MAX,
    KnownResult,
    Lane,
    StepCall,
    StepContext,
    Undone,
    step_answer,
    step_key,
    with_undone,
)
from repertory.core.tools import exception_text, result_too_large
from repertory.errors import Invalid, RepertoryError, StepFailed, StepsChanged, TooLarge
from repertory.logs import WARNING, note
from repertory.runtime.faults import failure_of

if TYPE_CHECKING:
    from repertory.actors.journal import ActorJournal
    from repertory.backends.ports import ToolContext
    from repertory.backends.telemetry_ports import ToolStepTrace
    from repertory.core.messages import Json, ToolResult, ToolUse
    from repertory.core.turns.turn_start import UnknownOutcome

THREADS_MAX = 32
"""Synchronous steps of one event loop that run at once. They have threads of their own: a synchronous tool waits in a
tool's thread for its step, and 32 such tools would leave none for their steps.
"""
UNKNOWN = "nobody saw its end, and it counts as failed"
NO_TIME = "there was no time left"

_log = logging.getLogger("repertory.tools")
_threads: RunVar[anyio.CapacityLimiter] = RunVar("repertory_step_threads")
_in_step: ContextVar[bool] = ContextVar("repertory_in_step", default=False)


class AskedCall(Struct, frozen=True):
    """A call of another tool that a running tool has asked for, at its place among its steps."""

    key: str
    """The key of its step."""
    use: ToolUse
    input: Mapping[str, Json]


class ToolSteps:
    """The steps of one attempt at a tool call."""

    def __init__(
        self,
        context: ToolContext,
        journal: ActorJournal | None,
        unknown_outcome: UnknownOutcome,
        *,
        use_id: str,
        fails_again: bool,
        within: AskedCall | None = None,
    ) -> None:
        """`journal`: None where the call is not recorded; its steps run and leave nothing behind. `use_id`: the id of
        the steps there. `fails_again`: see `StepBook`. `within`: the call of another tool that the steps are part of;
        None for those of a tool that no tool has called.
        """
        self._unknown_outcome: UnknownOutcome = unknown_outcome
        self.attempt = context.attempt
        self._context = context
        self._use: ToolUse = context.tool_use if within is None else within.use
        self.use_id = use_id
        self._within = "" if within is None else within.key
        self._journal = journal
        recorded: Mapping[str, RecordedStep] = {} if journal is None else journal.fold.steps_of(use_id)
        self._book = StepBook(steps_within(recorded, self._within), fails_again=fails_again)
        self.compensations: list[StepCall] = []
        """The compensations that `on_failure` has registered, in that order."""
        self._owes_ends = False
        """True from the end of a step until the next one has waited for its record."""
        self._is_over = False
        self._changed: StepsChanged | None = None
        self._failure = self._book.failure

    # Steps.

    async def run(self, call: StepCall) -> Json:
        """See `HasSteps.step`."""
        own = TOOL_TASK.get(None) == anyio.get_current_task().id
        return await self._run_in_lane(call, "" if own else "side")

    def run_from_thread(self, call: StepCall) -> Json:
        """See `HasSteps.run_step`."""
        # A thread that the tool has started itself has no context of work.
        work = context_of_work()
        own = work is not None and TOOL_TASK in work
        try:
            return anyio.from_thread.run(self._run_in_lane, call, "" if own else "side")
        except RuntimeError as error:
            if isinstance(error, StepFailed | StepsChanged):
                raise
            text = "run_step is for the thread of a synchronous tool; on the event loop, await tool_context.step(...)"
            raise Invalid(text, step=call.name) from error

    async def _run_in_lane(self, call: StepCall, lane: Lane) -> Json:
        if _in_step.get():
            raise Invalid("a step has no steps of its own: a repetition would run them all again", step=call.name)
        key, trace = self.ask(call, lane), trace_here()
        if trace is None:
            return await self._result(call, key, lane, None)
        attempt, use_id, undoes = self.attempt_at(key), self._use["toolUseId"], lane == "undo"
        with trace.tool_step(key, call.name, use_id, attempt, undoes=undoes) as span:
            return await self._result(call, key, lane, span)

    async def _result(self, call: StepCall, key: str, lane: Lane, span: ToolStepTrace | None) -> Json:
        known = self.known(key, lane)
        if known is not None:
            if span is not None:
                span.recorded()
            return known.value
        await self.begin(call, key, lane)
        return await self._carry_out(call, key, span)

    @property
    def repeats(self) -> bool:
        """True while there are steps of earlier runs that the tool has not asked for yet."""
        return bool(self._book.not_asked)

    def ask(self, call: StepCall, lane: Lane = "") -> str:
        """The key of the step that the tool asks for now. Errors: `StepsChanged`, `Invalid`."""
        if self._is_over:
            raise Invalid(NO_STEPS, step=call.name)
        try:
            return self._book.ask(call, lane)
        except StepsChanged as error:
            self._changed = error  # The tool may catch it, and goes no further all the same.
            raise

    def note_change(self, error: StepsChanged) -> None:
        """A tool that this one has called asks for other steps than before."""
        self._changed = self._changed or error

    def known(self, key: str, lane: Lane = "") -> KnownResult | None:
        """The result that is known of the step; None if it has to run. Errors: `StepFailed`, if that is known of it."""
        found = self._book.recorded(key)
        if found is not None and found.finished is not None:
            return KnownResult(_recorded(found.finished))
        if self._failure is not None and lane != "undo":
            raise StepFailed("the tool had failed before it was cut off, and is being undone", step=key)
        if found is not None and found.is_in_doubt:
            answer = self._answer(found, key)
            if answer == "fail":
                raise self._failed(key, UNKNOWN)
            if isinstance(answer, KnownResult):
                return KnownResult(self.ended(key, answer.value))
        return None

    def attempt_at(self, key: str) -> int:
        """The number of the next attempt at this step, from 1."""
        return self._book.attempt(key)

    def _answer(self, found: RecordedStep, key: str) -> object:
        """A person's answer about a step of unknown outcome, or the agent's. Raises `InterruptException` without one,
        as for a step that its tool's timeout has cut off in this life, before a hook had the tool run again.
        """
        context = self._context
        if self._unknown_outcome != "ask":
            return self._unknown_outcome
        if context.questions is None:
            raise StepFailed("nobody knows whether this step took effect, and no person can be asked here", step=key)
        ((name, reason),) = questions_about({self._whole(key): found}, self._use)
        return step_answer(context.questions.ask(tool_scope(self.use_id), name, reason, None))

    def _whole(self, key: str) -> str:
        """The key among all steps of the tool use."""
        return f"{self._within}{WITHIN}{key}" if self._within else key

    async def begin(
        self, call: StepCall, key: str, lane: Lane = "", *, use: ToolUse | None = None, attempt: int | None = None
    ) -> None:
        """Record the step's start. Wait until it is stored, unless the step may be repeated and is the first one.
        `use`: the call of another tool that the step is; `attempt`: its number, None for the first of this life.
        """
        journal = self._journal
        if journal is None:
            return
        failure = (self._failure or "") if lane == "undo" else ""
        journal.add(
            StepStarted(
                at=journal.wall(),
                tool_use_id=self.use_id,
                step=self._whole(key),
                attempt=attempt or self._book.attempt(key),
                idempotent=call.idempotent,
                lane=lane,
                failure=failure,
                tool="" if use is None else use["name"],
                input=None if use is None else use["input"],
            )
        )
        # Whatever runs now, a kill in it must not put an earlier step in doubt.
        if self._owes_ends or not call.idempotent:
            self._owes_ends = False
            await journal.commit()
        else:
            journal.hand_over()

    async def _carry_out(self, call: StepCall, key: str, span: ToolStepTrace | None) -> Json:
        """The result of the step, once it has ended for good. Cancellation leaves its outcome unknown."""
        context = StepContext(
            name=call.name,
            idempotency_key=self.idempotency_key(key),
            attempt=self._book.attempt(key),
        )
        failures = 0
        while True:
            try:
                value = await _once(call, context)
            except BaseException as raised:  # A step is a user's code.
                error = failure_of(raised)
                failures += 1
                if not (isinstance(error, call.retry.on) and failures < call.retry.attempts):
                    raise self._failed(key, _words(error)) from raised
                if span is not None:
                    span.retried(call.retry.wait_s(failures), error)
            else:
                return self.ended(key, value)
            await anyio.sleep(call.retry.wait_s(failures))

    def idempotency_key(self, key: str) -> str:
        """The idempotency key of the step."""
        return step_key(self._context.idempotency_key, key)

    def ended(self, key: str, value: object) -> Json:
        """Record the result; returns it as the journal keeps it, so that it is the same in each life."""
        try:
            body = dump(value)
            result = well_formed(load(body))
            if is_too_deep(result):
                raise Invalid("it is nested too deeply", depth_max=DEPTH_MAX)
            scale = Scale(self._context.result_bytes)
            if len(body) > self._context.result_bytes or not scale.put(result):
                raise result_too_large(scale)
        except (Invalid, TooLarge, ValueError) as error:
            text = f"the step ran, and its result cannot be recorded: {exception_text(error).removeprefix('Error: ')}"
            raise self._failed(key, text) from error
        if self._journal is not None:
            self._add_end(
                StepFinished(at=self._journal.wall(), tool_use_id=self.use_id, step=self._whole(key), result=result)
            )
        return result

    def _failed(self, key: str, why: str) -> StepFailed:
        if self._journal is not None:
            self._add_end(
                StepFinished(at=self._journal.wall(), tool_use_id=self.use_id, step=self._whole(key), error=why)
            )
        return StepFailed(f"step {key} failed: {why}")

    def _add_end(self, record: StepFinished) -> None:
        # A function that outlives its tool, in a task of its own, has no place in the journal any more.
        if self._journal is not None and not self._is_over:
            self._owes_ends = True
            self._journal.add(record)
            self._journal.hand_over()

    def report(self, text: str) -> None:
        """Record how far the tool has got. On the event loop. Errors: `Invalid`."""
        if not isinstance(cast("object", text), str) or not 0 < len(text) <= REPORT_CHARACTERS_MAX:
            raise Invalid("a report is a text of at most 1,000 characters", got=str(text)[:200])
        journal = self._journal
        if self._is_over or journal is None:
            return
        text = well_formed(text)
        key = self._book.report(text)
        if key is not None:
            at, use_id, key = journal.wall(), self.use_id, self._whole(key)
            journal.add(StepStarted(at=at, tool_use_id=use_id, step=key, idempotent=True, lane="report", input=text))
            journal.hand_over(soon=True)

    # The end of the tool.

    async def end(self, result: ToolResult) -> ToolResult:
        """The tool's result, with what became of its compensations if it has failed for good. Raises what `run` raises
        for a compensation of unknown outcome. Errors: `StepsChanged`.
        """
        if self._changed is not None:
            raise self._changed
        if self._failure is not None:
            result = error_result(self.use_id, self._failure)
        elif self._book.not_asked:
            raise steps_left(self._book.not_asked)
        if result["status"] == "error":
            result = with_undone(result, await self.undo(exception_words(result)))
        self._is_over = True
        return result

    async def undo(self, failure: str) -> Undone:
        """Run the compensations, the last one first. Raises `InterruptException` for one of unknown outcome. A
        cancellation leaves those that are left: call again to learn which.
        """
        self._failure = self._failure or failure
        done, failed = list[str](), list[tuple[str, str]]()
        while self.compensations:
            call = self.compensations.pop()
            try:
                await self._run_in_lane(call, "undo")
            except RepertoryError as error:  # The others run all the same.
                failed.append((call.name, exception_text(error).removeprefix("Error: ")[:200]))
                what = "a failed tool could not be undone"
                note(_log, WARNING, what, error, tool=self._context.tool_use["name"], step=call.name)
            else:
                done.append(call.name)
        return Undone(done=tuple(done), failed=tuple(failed))

    async def undo_cut(self, failure: str, within_s: float) -> Undone:
        """`undo` for a turn that was told to end: bounded, and no person is asked."""
        waiting = [call.name for call in reversed(self.compensations)]
        undone = Undone()
        with anyio.move_on_after(within_s, shield=True):
            try:
                undone = await self.undo(failure)
                waiting = []
            except InterruptException:
                pass
        self._is_over = True
        return Undone(done=undone.done, failed=(*undone.failed, *((name, NO_TIME) for name in waiting)))


def exception_words(result: ToolResult) -> str:
    """The words of a failed result."""
    return " ".join(str(block["text"]) for block in result["content"] if "text" in block) or "The tool failed."


def _words(error: Exception) -> str:
    """The failure of a step in words."""
    if question_in(error) is not None:
        return "a step cannot ask a person: ask before it, or behind it"
    return exception_text(error).removeprefix("Error: ")


def _recorded(finished: StepFinished) -> Json:
    """The recorded result, as a copy: a program may edit it. Errors: `StepFailed`."""
    if finished.error is not None:
        raise StepFailed(f"step {finished.step} failed: {finished.error}")
    return load(dump(finished.result))


async def _once(call: StepCall, context: StepContext) -> object:
    """The value of one attempt. Errors: those of the function; `TimeoutError`."""
    token = _in_step.set(True)
    try:
        if call.timeout_s is None:  # As nearly always; a scope without an end costs a tenth of a step.
            return await _called(call, context)
        with anyio.fail_after(call.timeout_s):
            return await _called(call, context)
    finally:
        _in_step.reset(token)


async def _called(call: StepCall, context: StepContext) -> object:
    function = partial(call.function, *call.arguments)
    if _takes_context(call.function):
        function = partial(function, step_context=context)
    if iscoroutinefunction(call.function):
        return await cast("Callable[[], Awaitable[object]]", function)()
    value: object = await call_in_thread(function, limiter_of_loop(_threads, THREADS_MAX), abandon=True)
    return await cast("Awaitable[object]", value) if isawaitable(value) else value


def _takes_context(function: Callable[..., object]) -> bool:
    code = getattr(getattr(function, "func", function), "__code__", None)
    return code is not None and "step_context" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
