"""One run of a code: its calls become calls of tools, in the order in which it makes them.

The code must do the same when it runs again after a kill, so nothing that depends on time reaches it unrecorded:

- Calls begin when all of the code waits. A value that is due is given in the order of the calls, whichever tool has
  ended first. So the order in which the code goes on is the same in each run, and with it the calls that follow.
- Its clock is read in a durable step, and stands still until the next value. Random bytes are a step too, and the
  generator begins with a seed that is the same at each attempt.

When a person must be asked, the code is given nothing more. The calls beside end first: cut off, their outcome would be
unknown. Then the questions, of which there may be several, leave the tool together.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio
from msgspec import Struct, field

from repertory.code.code_process import CodeBounds, open_code_process
from repertory.code.decisions import (
    CodeFunction,
    CodeOutput,
    bound_arguments,
    notes_for,
    value_in,
    words_of_result,
)
from repertory.core.interrupts import InterruptException
from repertory.core.tools import exception_text
from repertory.errors import CommandFailed, Invalid, RepertoryError, StepFailed

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from repertory.backends.ports import ToolContext
    from repertory.backends.step_ports import InnerToolsPort
    from repertory.code.code_process import CodeProcess
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Json

AT_ONCE_MAX = 16
"""Calls of one code that run at the same time at most."""
_SLEEP_S_MAX = 86_400.0
_MESSAGES_BESIDE = 50_000
"""Messages of one code beside those with a piece of its output."""


class _Due(Struct, eq=False):
    """A value that the code waits for, or will."""

    name: str
    function: CodeFunction | None = None
    """The tool to call when the code first waits; None for what is no call of one, and once it was called."""
    asked: Any = None
    """The call, as `InnerToolsPort.ask` has given it."""
    over: anyio.Event = field(default_factory=anyio.Event)
    value: Json = None
    error: str | None = None
    questions: tuple[Interrupt, ...] = ()
    raised: Exception | None = None

    @property
    def ends_code(self) -> bool:
        return bool(self.questions) or self.raised is not None

    @property
    def waits_to_begin(self) -> bool:
        return self.function is not None

    @property
    def under_way(self) -> bool:
        return self.asked is not None and not self.waits_to_begin and not self.over.is_set()

    @property
    def succeeded(self) -> bool:
        return self.asked is not None and self.over.is_set() and self.error is None and not self.ends_code

    async def end_after(self, seconds: float) -> None:
        """Be there after this time, without a value."""
        await anyio.sleep(seconds)
        self.over.set()


async def run_code(
    code: str, functions: Mapping[str, CodeFunction], context: ToolContext, bounds: CodeBounds, timeout_s: float
) -> dict[str, Any]:
    """The tool result of this code: what it has printed, and how it failed if it did.

    Raises `InterruptException` if a person must be asked. Errors: those of calls that end the tool (see
    `InnerToolsPort.run`), `ImportError` and `Invalid` where no code can run.
    """
    run = _Run(functions, context, bounds)
    failure: str | None = None
    with anyio.move_on_after(timeout_s) as bound:
        async with open_code_process(code, [*functions], context.idempotency_key, bounds) as process:
            failure = await run.carry_out(process)
    if bound.cancelled_caught:
        under_way = [due.name for due in run.due.values() if due.under_way]
        failure = f"TimeoutError: the code did not end within {timeout_s:g} s"
        if under_way:
            failure += f"; these calls were cut off, and may or may not take effect: {', '.join(under_way)}"
        await run.inner.cut_short("Cancelled: the code that called it ran out of time.")
    notes = notes_for(
        failure or "",
        run.output.printed,
        unused=[due.name for due in run.due.values() if due.waits_to_begin],
        ended=[due.name for due in run.due.values() if due.succeeded],
        names=[*functions],
    )
    status = "success" if failure is None else "error"
    return {"status": status, "content": [{"text": run.output.text(failure or "", notes)}]}


class _Run:
    """The calls of one code."""

    def __init__(self, functions: Mapping[str, CodeFunction], context: ToolContext, bounds: CodeBounds) -> None:
        self._functions = functions
        self._context = context
        self._bounds = bounds
        self.inner: InnerToolsPort = context.inner_tools
        self.output = CodeOutput(bounds.output_bytes)
        self.due: dict[int, _Due] = {}
        """The values of all calls, by the numbers that the interpreter gives them, which rise."""
        self._calls = 0
        self._now: float | None = None
        """The clock of the code until its next value; None until it looks."""
        self._limiter = anyio.CapacityLimiter(AT_ONCE_MAX)

    async def carry_out(self, process: CodeProcess) -> str | None:
        """Serve the code until its end. Returns its failure, if it fails."""
        failure: str | None = None
        raised: Exception | None = None
        async with anyio.create_task_group() as tasks:
            try:
                failure = await self._serve(process, tasks)
            except CommandFailed as error:
                failure = str(error)
            except (RepertoryError, InterruptException) as error:
                raised = error
            # Calls that still run end here: cut off, their outcomes would be unknown.
        due = [*self.due.values()]
        raised = raised or next((each.raised for each in due if each.raised is not None), None)
        if raised is not None:
            raise raised
        asked = {one.id: one for each in due for one in each.questions}
        if asked:
            raise InterruptException(*asked.values())
        return failure

    async def _serve(self, process: CodeProcess, tasks: TaskGroup) -> str | None:
        for _ in range(self._bounds.output_bytes + _MESSAGES_BESIDE):
            message = await process.receive()
            match message:
                case {"print": str() as text}:
                    self.output.add(text)
                case {"call": int() as call, "name": str(), "args": list(), "named": dict()} if call not in self.due:
                    due = self.due[call] = _Due(message["name"])
                    self._ask(due, message["args"], message["named"])
                case {"call": int() as call, "sleep": float() | int() as seconds} if call not in self.due:
                    due = self.due[call] = _Due("asyncio.sleep")
                    tasks.start_soon(due.end_after, 0.0 if self.inner.repeats else _bounded(seconds))
                case {"wait": [int(), *_] as waited} if self.due.keys() >= set(waited):
                    self._begin(waited, tasks)
                    if not await self._give(min(waited), process):
                        return None
                case {"ask": "clock"}:
                    await process.send({"value": await self._clock()})
                case {"ask": "sleep", "n": float() | int() as seconds}:
                    self._now = None
                    await anyio.sleep(0.0 if self.inner.repeats else _bounded(seconds))
                    await process.send({"value": None})
                case {"ask": "random", "n": int() as count} if 0 <= count <= 1024:
                    made = await self._context.step("random", os.urandom, count, idempotent=True)
                    await process.send({"value": base64.b64encode(made).decode()})
                case {"end": None | str() as failure}:
                    self.output.omit(message.get("over"))
                    return failure
                case _:
                    raise CommandFailed("the code was ended: its interpreter said what is no message")
        raise CommandFailed("the code was ended: its interpreter said too much")

    async def _give(self, call: int, process: CodeProcess) -> bool:
        """Give the code the value of this call. False if it gets none, since the code ends here."""
        due = self.due[call]
        await due.over.wait()
        if due.ends_code:
            return False
        self._now = None
        outcome = {"value": due.value} if due.error is None else {"error": due.error}
        await process.send({"call": call, **outcome})
        return True

    async def _clock(self) -> float:
        if self._now is None:
            self._now = float(await self._context.step("clock", time.time, idempotent=True))
        return self._now

    # Calls.

    def _ask(self, due: _Due, args: list[Json], named: dict[str, Json]) -> None:
        """Take a call, at its place in the order. Errors: `StepsChanged`."""
        self._calls += 1
        function = self._functions.get(due.name)
        try:
            if function is None:
                raise Invalid(f"name '{due.name}' is not defined")
            if self._calls > self._bounds.calls_max:
                raise Invalid(f"a code makes {self._bounds.calls_max} calls at most; do the rest in another one")
            given = bound_arguments(function, args, named)
        except Invalid as error:
            due.error = str(error)
            due.over.set()
            return
        due.function, due.asked = function, self.inner.ask(function.tool, given)

    def _begin(self, waited: Sequence[int], tasks: TaskGroup) -> None:
        """Begin these calls. Not before the code waits: a call that nothing awaits does not run, as in Python."""
        for due in (self.due[call] for call in waited):
            if due.function is not None:
                tasks.start_soon(self._call, due, due.function, due.asked)
                due.function = None

    async def _call(self, due: _Due, function: CodeFunction, asked: Any) -> None:
        try:
            async with self._limiter:
                result = await self.inner.run(asked)
            if result["status"] == "error":
                due.error = words_of_result(result)
            else:
                due.value = value_in(result, function.returns)
        except InterruptException as question:
            due.questions = question.interrupts
        except StepFailed as error:
            due.error = exception_text(error)
        except RepertoryError as error:
            due.raised = error
        due.over.set()


def _bounded(seconds: float) -> float:
    return min(max(float(seconds), 0.0), _SLEEP_S_MAX)
