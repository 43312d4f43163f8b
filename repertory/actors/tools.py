"""Running the tools of one step: as child tasks of the turn, at once unless told otherwise, each with its own timeout.

Every tool use gets exactly one result, whatever happens: an unknown name, an input that is not JSON, a hook that says
no, a raise, a timeout and a cancellation are results with status `error`. A tool with effects starts only when its
intent is durable.

A tool that asks a person stops, and one about which a hook asks does not start: it has no result, and the step is not
over. The others run to their end all the same, unless tools run one after the other: then those behind it wait.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import anyio.lowlevel

from repertory.actors.hooks.calls import ToolEnded, TurnHooks
from repertory.actors.ledger import Ledger
from repertory.actors.mirror import Mirror
from repertory.actors.tool_registry import ToolRegistry
from repertory.actors.turn_meter import TurnMeter
from repertory.backends.ports import OutputForm, Tool, ToolContext
from repertory.core.interrupts import Interrupt, InterruptException, Questions, question_in
from repertory.core.journal.records import ToolFinished, ToolStarted
from repertory.core.messages import ToolResult, ToolUse, copy_result, copy_use, error_result
from repertory.core.pairing import check_result
from repertory.core.standing import Start
from repertory.core.tool_results import check_result_size, exception_text, timeout_text
from repertory.core.turn import RunTools
from repertory.errors import Invalid, RepertoryError


class ContextFor(Protocol):
    """Makes the context of one tool use. `last`: its last start, if it was started before."""

    def __call__(self, use: ToolUse, last: Start | None, hearing: Hearing) -> ToolContext: ...


OnPartial = Callable[[object], Awaitable[None]]
OnException = Callable[[Exception], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """Who hears what a running tool says besides its result."""

    on_partial: OnPartial | None
    on_exception: OnException
    questions: Questions


Publish = Callable[[dict[str, Any]], Awaitable[None]]
"""Takes what happens on the way."""

CUT_TEXT = "Cancelled before it ended."
WITHHELD_TEXT = "The tool ran, but its result is withheld"
"""What the model is told of a result that a guard did not let pass."""

ToolExecution = Literal["concurrent", "sequential"]
"""Whether the tools of one answer run at the same time, or one after the other in the order asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStepSettings:
    """How tools run."""

    execution: ToolExecution = "concurrent"
    at_once_max: int = 16
    """Tools that run at the same time at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStepParts:
    """What a tool step is made of."""

    tools: ToolRegistry
    ledger: Ledger | None
    """None keeps no record of starts and ends."""
    context_for: ContextFor
    hooks: TurnHooks
    meter: TurnMeter
    questions: Questions
    form: OutputForm | None = None
    publish: Publish | None = None
    mirror: Mirror | None = None
    """Where others see what has started and what has ended; None shows nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One tool use that is going to run."""

    use: ToolUse
    tool: Tool
    context: ToolContext
    raised: list[Exception]
    """What it has raised in this attempt."""

    @property
    def start(self) -> Start:
        return Start(self.context.attempt, self.context.idempotency_key)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a step of tools led to."""

    results: dict[str, ToolResult] = field(default_factory=dict[str, ToolResult])
    """By tool use id."""
    cut: bool = False
    """Whether some were cut short."""
    failed: RepertoryError | None = None
    """The error of a guard, if one failed: what had not started did not run."""
    asked: dict[str, Interrupt] = field(default_factory=dict[str, "Interrupt"])
    """What a person is to answer before the step can end, by id."""
    parked: dict[str, Start] = field(default_factory=dict[str, Start])
    """Ids of tool uses that had started on record and stopped in order to ask, with that start."""
    recorded: set[str] = field(default_factory=set[str])
    """Ids of tool uses whose result is on record."""
    filled: tuple[object, str] | None = None
    """The form that was filled in, as the caller wants it and as JSON text."""
    misfilled: bool = False
    """Whether a form was filled in wrongly."""


class ToolStep:
    """Runs one step's tools. Made for one step, used once."""

    def __init__(self, parts: ToolStepParts, settings: ToolStepSettings) -> None:
        self._parts = parts
        self._settings = settings
        self._outcome = Outcome()
        self._running = 0
        self._asked: dict[str, _Call] = {}
        """By tool use id, what hooks were asked about and not told the end of."""

    async def run(self, command: RunTools, starts: Mapping[str, Start], scope: anyio.CancelScope) -> Outcome:
        """One result per use, unless a person was asked: then what waits has none. Cancelling `scope` cuts what runs
        short; nothing else is lost.

        `starts`: the last start of each tool use that was started before. Errors: those of the commit of an intent.
        """
        outcome = self._outcome
        outcome.results.update(command.known)
        waiting = [use for use in command.uses if use["toolUseId"] not in outcome.results]
        groups = [[use] for use in waiting] if self._settings.execution == "sequential" else [waiting]
        with scope:
            await anyio.lowlevel.checkpoint_if_cancelled()  # A tool that never waits would run to its end.
            for group in groups:
                if not outcome.asked:
                    await self._run_group(group, command, starts)
        outcome.cut = scope.cancelled_caught
        if outcome.asked and not outcome.cut and outcome.failed is None:
            return outcome
        missing = CUT_TEXT if outcome.failed is None else "Not run: a hook failed."
        for call in self._asked.values():
            await self._cut_short(call, missing)
        for use in command.uses:
            outcome.results.setdefault(use["toolUseId"], error_result(use["toolUseId"], missing))
        return outcome

    async def _cut_short(self, call: _Call, why: str) -> None:
        """Tell hooks, who were asked about this tool, that it has come to nothing."""
        result = error_result(call.use["toolUseId"], why)
        ended = ToolEnded(tool=call.tool, use=call.use, result=result, cancel_message=why)
        try:
            result, _ = await self._parts.hooks.after_tool(ended)
        except RepertoryError as error:
            self._outcome.failed = self._outcome.failed or error
        self._outcome.results[call.use["toolUseId"]] = result

    async def _run_group(self, uses: Sequence[ToolUse], command: RunTools, starts: Mapping[str, Start]) -> None:
        if self._outcome.failed is not None:
            return
        calls: list[_Call] = []
        try:
            for use in uses:
                call = await self._prepare(use, command.invalid, starts)
                if call is not None:
                    calls.append(call)
        except RepertoryError as error:
            self._outcome.failed = error
            return
        await anyio.lowlevel.checkpoint_if_cancelled()
        await self._record_intents(calls)
        await self._run_all(calls)

    async def _prepare(self, use: ToolUse, invalid: Mapping[str, str], starts: Mapping[str, Start]) -> _Call | None:
        """The call that has to run; None when the use has its result already. Errors: those of a guard."""
        use_id = use["toolUseId"]
        if self._parts.form is not None and use["name"] == self._parts.form.name:
            self._fill_in(self._parts.form, use, invalid.get(use_id))
            return None
        found = self._parts.tools.get(use["name"])
        tool, changed, cancelled, asked = await self._parts.hooks.before_tool(found, use, self._parts.questions)
        if asked:
            await self._ask(use, asked)
            return None
        refusal = cancelled
        if refusal is None and tool is None:
            refusal = f"Unknown tool: {use['name']}. Available tools: {', '.join(self._parts.tools.names) or 'none'}."
        if refusal is None and use_id in invalid and changed == use:
            refusal = f"The input is not valid JSON: {invalid[use_id][:200]}"
        if refusal is None and tool is not None:
            raised: list[Exception] = []
            hearing = Hearing(
                on_partial=self._on_partial(changed), on_exception=raised.append, questions=self._parts.questions
            )
            context = self._parts.context_for(copy_use(changed), starts.get(use_id), hearing)
            call = _Call(use=changed, tool=tool, context=context, raised=raised)
            self._asked[use_id] = call
            return call
        result = error_result(use_id, refusal or "")
        ended = ToolEnded(tool=tool, use=changed, result=result, cancel_message=cancelled)
        self._outcome.results[use_id], _ = await self._parts.hooks.after_tool(ended)
        return None

    def _fill_in(self, form: OutputForm, use: ToolUse, invalid: str | None) -> None:
        """Read the form. A wrong one is answered with what is wrong about it."""
        use_id = use["toolUseId"]
        try:
            if invalid is not None:
                raise Invalid(f"The input is not valid JSON: {invalid[:200]}")
            self._outcome.filled = form.read(use["input"])
            text = f"Successfully validated {form.name} structured output"
            self._outcome.results[use_id] = {"toolUseId": use_id, "status": "success", "content": [{"text": text}]}
        except Invalid as error:
            self._outcome.misfilled = True
            self._outcome.results[use_id] = error_result(use_id, str(error))

    async def _record_intents(self, calls: Sequence[_Call]) -> None:
        ledger, mirror = self._parts.ledger, self._parts.mirror
        intended = [call for call in calls if call.tool.effects]
        if ledger is None or not intended:
            return
        for call in intended:
            started = ToolStarted(
                at=ledger.wall(),
                tool_use_id=call.use["toolUseId"],
                name=call.tool.name,
                idempotency_key=call.context.idempotency_key,
                attempt=call.context.attempt,
            )
            ledger.add(started)
            if mirror is not None:
                mirror.standing = mirror.standing.begun(call.use["toolUseId"], call.start)
        ledger.hand_over(soon=True)
        await ledger.commit()

    async def _run_all(self, calls: Sequence[_Call]) -> None:
        self._running = len(calls)
        if len(calls) <= 1:
            for call in calls:
                await self._run_one(call)
            return
        limiter = anyio.CapacityLimiter(self._settings.at_once_max)
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(self._run_limited, call, limiter)

    async def _run_limited(self, call: _Call, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            await self._run_one(call)

    async def _run_one(self, call: _Call) -> None:
        publish = self._parts.publish
        if publish is not None:
            await publish({"tool_started": copy_use(call.use)})
        try:
            result, again = await self._attempt(call)
            while again:
                await anyio.lowlevel.checkpoint()
                call.raised.clear()
                call = replace(call, context=replace(call.context, attempt=call.context.attempt + 1))
                await self._record_intents([call])
                result, again = await self._attempt(call)
        except (InterruptException, ExceptionGroup) as error:
            question = question_in(error)
            if question is None:
                raise
            self._running -= 1
            if self._parts.ledger is not None and call.tool.effects:
                self._outcome.parked[call.use["toolUseId"]] = call.start
            await self._ask(call.use, question.interrupts)
            return
        except RepertoryError as error:
            self._outcome.failed = self._outcome.failed or error
            result = error_result(call.use["toolUseId"], f"{WITHHELD_TEXT}: a hook failed.")
        self._outcome.results[call.use["toolUseId"]] = result
        self._running -= 1
        if self._parts.mirror is not None:
            self._parts.mirror.standing = self._parts.mirror.standing.ended(result)
        self._record_end(call, result)
        if publish is not None:
            await publish({"tool_finished": copy_result(result)})

    async def _ask(self, use: ToolUse, interrupts: Sequence[Interrupt]) -> None:
        self._outcome.asked.update((interrupt.id, interrupt) for interrupt in interrupts)
        if self._parts.publish is not None:
            asked: dict[str, object] = {"tool_use": copy_use(use), "interrupts": [*interrupts]}
            await self._parts.publish({"tool_interrupt_event": asked})

    async def _attempt(self, call: _Call) -> tuple[ToolResult, bool]:
        """The result of one attempt, and whether a hook wants another."""
        clock = self._parts.meter.clock
        began = clock()
        result = await _bounded(call)
        duration_s = clock() - began
        self._parts.meter.ran(call.tool.name, result, duration_s)
        exception = call.raised[0] if call.raised else None
        ended = ToolEnded(tool=call.tool, use=call.use, result=result, exception=exception, duration_s=duration_s)
        use_id = call.use["toolUseId"]
        self._asked.pop(use_id, None)
        if self._parts.hooks.hear_of_tools:  # They may not get to their end.
            self._outcome.results[use_id] = error_result(use_id, f"{WITHHELD_TEXT}: a hook was cut short.")
        return await self._parts.hooks.after_tool(ended)

    def _on_partial(self, use: ToolUse) -> OnPartial | None:
        publish = self._parts.publish
        if publish is None:
            return None

        async def show(data: object) -> None:
            await publish({"tool_stream_event": {"tool_use": use, "data": data}})

        return show

    def _record_end(self, call: _Call, result: ToolResult) -> None:
        """The step's message, which holds every result, comes only when the slowest tool has ended."""
        ledger = self._parts.ledger
        if ledger is not None and call.tool.effects and self._running:
            ledger.add(ToolFinished(at=ledger.wall(), tool_use_id=call.use["toolUseId"], result=result))
            ledger.hand_over(soon=True)
            self._outcome.recorded.add(call.use["toolUseId"])


async def _bounded(call: _Call) -> ToolResult:
    """The tool's result, or the error result that says that it ran out of time."""
    if call.tool.timeout_s is None:
        return await _guarded(call)
    with anyio.move_on_after(call.tool.timeout_s):
        return await _guarded(call)
    text = timeout_text(call.tool.name, call.tool.timeout_s, effects=call.tool.effects)
    return error_result(call.use["toolUseId"], text)


def _result_for(use: ToolUse, result: object, result_bytes: int) -> ToolResult:
    """What a tool gave, as the result of this use. Errors: `Invalid` when it is none, `TooLarge`."""
    checked = check_result_size(check_result(result), result_bytes)
    return checked if checked.get("toolUseId") == use["toolUseId"] else {**checked, "toolUseId": use["toolUseId"]}


async def _guarded(call: _Call) -> ToolResult:
    """The tool's result, whatever the tool raises: even `SystemExit`, or a cancellation that nobody asked for."""
    try:
        return _result_for(call.use, await call.tool.run(call.use, call.context), call.context.result_bytes)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except Exception as error:  # A tool may be anybody's code, and its failure is for the model to act on.
        questions, question = call.context.questions, question_in(error)
        if question is not None and questions is not None and questions.were_asked(question.interrupts):
            raise
        if call.context.on_exception is not None:
            call.context.on_exception(error)
        return error_result(call.use["toolUseId"], exception_text(error))
    except BaseException as error:
        if anyio.current_effective_deadline() == -math.inf:  # This task is being cancelled, which goes on.
            raise
        return error_result(call.use["toolUseId"], exception_text(error))
