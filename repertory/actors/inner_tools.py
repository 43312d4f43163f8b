"""Calls of other tools by a tool that runs: each takes the way of a tool that the model asks for, and is a durable step
of the tool that makes it.

Hooks, approvals, checks of the input, middleware, attempts and spans are those of `ToolStep`. What differs is the
record: the call is no tool use of the message, so its start and its end are a step's, under the key that `StepBook`
gives. The key is made when the call is asked for, so the caller decides the order; after a kill the same call finds its
result, or its question.

A call that a person must be asked about does not begin. One that asks in its middle has stopped, so its start is
stated again as one that may be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from repertory.actors.tool_steps import AskedCall, ToolSteps
from repertory.actors.tools import CUT_TEXT, PreparedCall, ToolStep
from repertory.core.interrupts import INNER_USE, InterruptException
from repertory.core.journal.pending_tools import PendingTools, Start
from repertory.core.journal.steps import WITHIN, steps_within
from repertory.core.messages import check_result, error_result
from repertory.core.steps import StepCall
from repertory.core.tools import exception_text, tool_result
from repertory.core.turn import RunTools
from repertory.errors import RepertoryError, StepFailed, StepsChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from repertory.actors.context import TurnContext
    from repertory.actors.journal import ActorJournal
    from repertory.backends.ports import ToolContext
    from repertory.core.interrupts import Questions
    from repertory.core.messages import Json, ToolResult


class InnerTools:
    """The calls that one attempt at a tool call makes of other tools."""

    def __init__(
        self,
        turn: TurnContext,
        journal: ActorJournal | None,
        questions: Questions,
        context: ToolContext,
        steps: ToolSteps,
        fail: Callable[[RepertoryError], None],
    ) -> None:
        """`context` and `steps`: of the tool that makes the calls. `journal`: None where it is not recorded. `fail`:
        called with the error of a guard or of the store, by which the step of the model's tools fails.
        """
        self._turn = turn
        self._journal = journal
        self._questions = questions
        self._context = context
        self._steps = steps
        self._fail = fail
        self._running: dict[str, _InnerCall] = {}
        """Calls whose hooks before them may have been called, and those behind them not, by key."""

    @property
    def repeats(self) -> bool:
        """See `InnerToolsPort`."""
        return self._steps.repeats

    def ask(self, name: str, value: Mapping[str, Json]) -> AskedCall:
        """See `InnerToolsPort`."""
        # No name of a step has the character that stands between keys.
        key = self._steps.ask(_step(name.replace(WITHIN, "_"), value), "side")
        use_id = f"{self._context.tool_use['toolUseId']}{INNER_USE}{key}"
        return AskedCall(key, {"toolUseId": use_id, "name": name, "input": dict(value)}, value)

    async def run(self, asked: AskedCall) -> ToolResult:
        """See `InnerToolsPort`."""
        use_id = asked.use["toolUseId"]
        try:
            known = self._steps.known(asked.key, "side")
            return await self._run(asked) if known is None else _as_result(use_id, known.value)
        except StepFailed as error:
            return error_result(use_id, exception_text(error).removeprefix("Error: StepFailed - "))
        except StepsChanged as error:
            self._steps.note_change(error)
            raise
        except RepertoryError as error:
            self._fail(error)
            raise

    async def _run(self, asked: AskedCall) -> ToolResult:
        use_id = asked.use["toolUseId"]
        call = self._running[use_id] = _InnerCall(
            self._turn, self._journal, self._questions, self._context, self._steps, asked
        )
        ready = await call.prepare()
        self._raise_questions(call)
        await call.begin(ready)
        if ready is not None:
            await call.carry_out(ready)
        if call.asked:  # It has stopped, so it may run again.
            await call.begin(None)
            self._raise_questions(call)
        del self._running[use_id]
        if call.failed is not None:
            raise call.failed
        if use_id not in call.results:  # The turn was told to end before it began.
            return error_result(use_id, CUT_TEXT)
        if self._journal is not None:  # Whoever finds the result finds what the tool has noted, too.
            self._journal.add_changes(self._turn.parts.state)
        return _as_result(use_id, self._steps.ended(asked.key, call.results[use_id]))

    def _raise_questions(self, call: _InnerCall) -> None:
        if call.asked:
            use = call.use
            del self._running[use["toolUseId"]]
            raise InterruptException(*self._questions.name_tool(call.asked.values(), use["name"], use["input"]))

    async def cut_short(self, why: str) -> None:
        """See `InnerToolsPort`."""
        while self._running:
            _, call = self._running.popitem()
            await call.cut(why)
            if call.failed is not None:
                self._fail(call.failed)


class _InnerCall(ToolStep):
    """One call, on the way of a tool use. Its own records are the caller's steps."""

    def __init__(
        self,
        turn: TurnContext,
        journal: ActorJournal | None,
        questions: Questions,
        outer: ToolContext,
        steps: ToolSteps,
        asked: AskedCall,
    ) -> None:
        start = Start(steps.attempt_at(asked.key) - 1, steps.idempotency_key(asked.key))
        begun = PendingTools(last=None, starts={asked.use["toolUseId"]: start})
        super().__init__(turn, None, RunTools(uses=(asked.use,), known={}, invalid={}), begun)
        self._questions = questions
        # The caller has chosen among the tools, and the structured output is the model's to give.
        self._deferral, self._form = None, None
        self._journal = journal
        self._outer = outer
        self._caller_steps = steps
        self._asked_call = asked
        self.use = asked.use

    async def prepare(self) -> PreparedCall | None:
        """Call the hooks before it: the call to carry out; None if it has a result, or a person is asked."""
        return await self._prepare(self.use)

    async def begin(self, call: PreparedCall | None) -> None:
        """Record the start. `call`: None if running it again, or for the first time, does no harm."""
        attempt, may_repeat = None, True
        if call is not None:
            attempt, tool = call.context.attempt, call.tool
            # A durable tool goes on over its own steps, each of which has its outcome.
            may_repeat = not tool.effects or tool.idempotent or bool(getattr(tool, "durable", False))
        step = _step(self.use["name"], self._asked_call.input, idempotent=may_repeat)
        await self._caller_steps.begin(step, self._asked_call.key, "side", use=self.use, attempt=attempt)

    async def carry_out(self, call: PreparedCall) -> None:
        """Run it. Its result, its questions or its error stand in this object then. Errors: `StepsChanged`."""
        if self._journal is not None:
            recorded = self._journal.fold.steps_of(self._caller_steps.use_id)
            if steps_within(recorded, self._asked_call.key):
                self._steps_of(call.context)
        await self._run_one(call)
        if self._changed is not None:
            raise self._changed

    async def cut(self, why: str) -> None:
        """Tell the hooks that were called before it that it was cut short."""
        for call in self._ready.values():
            await self._cut_short(call, why)

    async def _record_intents(self, calls: Sequence[PreparedCall]) -> None:
        for call in calls:
            await self.begin(call)

    def _steps_of(self, context: ToolContext) -> ToolSteps:
        known = self._steps.get(self.use["toolUseId"])
        if known is None or known.attempt != context.attempt:
            within = self._asked_call
            unknown_outcome, use_id = self._turn.settings.unknown_outcome, self._caller_steps.use_id
            again = known is None
            known = ToolSteps(context, self._journal, unknown_outcome, use_id=use_id, fails_again=again, within=within)
            self._steps[self.use["toolUseId"]] = known
        return known


def _step(name: str, value: Mapping[str, Json], *, idempotent: bool = False) -> StepCall:
    return StepCall(name=name, function=_step, arguments=(value,), idempotent=idempotent)


def _as_result(use_id: str, value: Json) -> ToolResult:
    """A recorded result; a person's word about one becomes what a tool would return."""
    if isinstance(value, dict) and value.get("toolUseId") == use_id:
        return check_result(value)
    return {**tool_result(use_id, value), "toolUseId": use_id}
