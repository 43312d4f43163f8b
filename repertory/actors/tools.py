"""Runs the tools of one answer: through hooks, as child tasks of the turn, each with its own timeout, to the step's
end.

Every tool use gets exactly one result: an unknown name, an input that is not JSON, a refusal by a hook, an exception, a
timeout and a cancellation are results with status `error`. A tool with effects starts only when its intent is durable.

A tool that asks a person stops, and one about which a hook asks does not start: it has no result, and the step is not
over. The others still run to their end, unless tools run one after the other: then those behind it wait.

Start with `run_tools`. `call_unrecorded` is the same for a call that the program makes and that is not recorded.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, cast

import anyio.lowlevel
from msgspec import Struct
from msgspec.structs import replace

from repertory.actors.approvals import McpApproval
from repertory.actors.call import Invocation, request_state, trace_here
from repertory.actors.context import (
    AgentParts,
    AgentSettings,
    BackgroundPort,
    BackgroundRunsPort,
    TurnContext,
    TurnRecord,
)
from repertory.actors.hooks.calls import ToolEnded
from repertory.actors.hooks.events import AfterToolCallEvent, AfterToolsEvent, BeforeToolsEvent
from repertory.backends.ports import OutputSchema, Tool, ToolContext
from repertory.core.interrupts import Interrupt, InterruptException, Questions, ids_by_name, question_in, tool_scope
from repertory.core.journal.pending_tools import PendingTools, Start, pending_tools_of
from repertory.core.journal.records import ToolFinished, ToolStarted
from repertory.core.journal.steps import RecordedStep, questions_about
from repertory.core.messages import (
    ContentBlock,
    ToolResult,
    ToolSpec,
    ToolUse,
    check_result,
    copy_result,
    copy_use,
    error_result,
    tool_uses,
)
from repertory.core.provider_content import asks_for_approval
from repertory.core.steps import NO_INNER_TOOLS, UNDO_S, Undone, with_undone
from repertory.core.timers import ToolTimers
from repertory.core.tools import check_result_size, exception_text, timeout_text
from repertory.core.turn import CANCELLED, Park, RunTools, Stopped, StopReason, ToolsEnded, ToolsParked
from repertory.core.turns.turn_start import delegated_answer
from repertory.errors import HookFailed, Invalid, RepertoryError, StepFailed, StepsChanged
from repertory.runtime.faults import failure_of
from repertory.runtime.message import traced

if TYPE_CHECKING:
    from repertory.actors.hooks.middleware import Handlers
    from repertory.actors.spawning import Spawner
    from repertory.actors.tool_steps import ToolSteps
    from repertory.backends.step_ports import InnerToolsPort
    from repertory.core.deferral import Deferral
    from repertory.core.turns.background_tasks import TaskRoute

# A model may ask for a hundred tools at once, each of which may hold a thread or a connection.
AT_ONCE_MAX = 16
"""Tools that run at the same time at most."""
CUT_TEXT = "Cancelled before it ended."
WITHHELD_TEXT = "The tool ran, but its result is withheld"
"""The beginning of the text that the model gets in the place of a result whose hook failed."""
_NO_QUESTIONS = "cannot raise interrupt in direct tool call"


async def run_tools(turn: TurnContext, record: TurnRecord, command: RunTools) -> ToolsEnded | ToolsParked | Stopped:
    """Run the step's tools, continuing from their records: how the step ended, or what a person must answer first, or
    that the step goes on in another process.
    """
    record.begun()
    direct = turn.invocation.direct
    asking = record.journal.fold.last_message
    # A direct call is made by Python code, which may pass objects.
    if direct is not None:  # The recorded message may lack what JSON cannot hold.
        command = replace(command, uses=(direct,))
    elif asking is not None:  # With the edits of hooks: what runs is what the history says.
        command = replace(command, uses=tuple(tool_uses(asking)))
    begun = pending_tools_of(record.journal.fold)
    record.journal.forget_results()
    step = ToolStep(turn, record, command, begun)
    refusal = await step.run_unless_refused()
    if direct is not None and step.asked:
        refusal = _NO_QUESTIONS
        step.failed = step.failed or Invalid(refusal, tool=direct["name"])
    record.journal.add_changes(turn.parts.state)
    return Stopped(CANCELLED) if step.goes_on_elsewhere else await step.end(refusal)


async def call_unrecorded(settings: AgentSettings, parts: AgentParts, use: ToolUse) -> ToolResult:
    """The result of a tool call by the program itself that is not recorded. Hooks are called as for any tool call.

    Cancellation cancels the tool. Errors: those of a guard; `Invalid` if the tool, or a hook, asks a person.
    """
    result = await unrecorded_outcome(settings, parts, use)
    if isinstance(result, list):
        raise Invalid(_NO_QUESTIONS, tool=use["name"])
    return result


async def unrecorded_outcome(
    settings: AgentSettings, parts: AgentParts, use: ToolUse, invocation_state: Mapping[str, object] | None = None
) -> ToolResult | list[Interrupt]:
    """The result that `call_unrecorded` gives, or the questions if a person is asked. `invocation_state`: values of the
    caller for hooks and tools.
    """
    invocation = Invocation(prompt=None, direct=use, invocation_state={**(invocation_state or {})})
    turn = TurnContext(settings, parts, invocation, anyio.current_time, is_turn=False)
    step = ToolStep(turn, None, RunTools(uses=(use,), known={}, invalid={}), PendingTools(last=None))
    await step.run_as_call()
    if step.failed is not None:
        raise step.failed
    return list(step.asked.values()) or step.results[use["toolUseId"]]


class PreparedCall(Struct, frozen=True, kw_only=True):
    """One tool use that is going to run. For the package."""

    use: ToolUse
    tool: Tool
    context: ToolContext
    raised: list[Exception] = []
    background: bool = False
    """True if it runs beside the turn, and its result comes later."""
    deferrals: list[Deferral] = []
    """The tool's promise of a result that comes later, as long as that is what it returned; empty without one."""

    @property
    def use_id(self) -> str:
        return self.use["toolUseId"]

    @property
    def start(self) -> Start:
        return Start(self.context.attempt, self.context.idempotency_key)


class _Unknown(Struct, frozen=True):
    """A tool that the agent has not. Middleware may answer for it."""

    name: str
    why: str
    effects: bool = False
    idempotent: bool = True
    timeout_s: float | None = None
    known: bool = False

    @property
    def spec(self) -> ToolSpec:
        return {"name": self.name, "description": "", "inputSchema": {"json": {}}}

    async def run(self, tool_use: ToolUse, context: ToolContext) -> ToolResult:
        return error_result(tool_use["toolUseId"], self.why)


class ToolStep:
    """The tools of one answer and their results. Made for one step, used once."""

    def __init__(self, turn: TurnContext, record: TurnRecord | None, command: RunTools, begun: PendingTools) -> None:
        """`record` notes starts and ends; None records nothing. `begun`: the starts and ends already recorded."""
        self._turn = turn
        self._hooks = turn.hooks
        self._record = record
        self._command = command
        self._begun = begun
        self._form = turn.invocation.output_schema
        self._tools = turn.parts.tools if turn.invocation.direct is None else turn.parts.tools.whole
        self._deferral = turn.parts.deferral if turn.invocation.direct is None else None
        wall = (lambda: 0.0) if record is None else record.journal.wall
        # A step that goes on after a crash asks under the ids that its caller has already seen.
        known = ids_by_name(begun.questions) if begun.questions else {}
        # A function, not the value: it is read by few tools, and costs a walk over rows.
        step = str if record is None else lambda: record.journal.step
        self._questions = Questions(wall, begun.responses, known=known, mark=self._mark, step=step)
        middleware = turn.parts.middleware
        self._wraps = None if middleware is None else middleware.around_tools
        self._running = 0
        self._ready: dict[str, PreparedCall] = {}
        """Calls for which `before_tool` hooks were called and `after_tool` hooks were not, by tool use id."""
        self._parked: dict[str, Start] = {}
        """Recorded starts, by id, of tool uses that then stopped to ask a person."""
        self._recorded: set[str] = set()
        """Ids of tool uses whose result is recorded."""
        self._steps: dict[str, ToolSteps] = {}
        """The durable steps of each use that has asked for some, also of those that have ended."""
        self._spawners: dict[str, Spawner] = {}
        """The subagents of each use that has started some."""
        self._steps_id: str | None = None
        """The id of the steps in the journal; None for that of the tool use."""
        self._inner: dict[str, tuple[int, InnerToolsPort]] = {}
        """The calls that a running tool makes of other tools, with its attempt, by its tool use id."""
        self._undone: dict[str, Undone] = {}
        """The compensations of uses that were cut short, by tool use id."""
        self._changed: StepsChanged | None = None
        """The error of a tool that asks for other steps than those on record."""
        self.goes_on_elsewhere = False
        """True if the process ends and a durable tool of the step has no result yet."""
        self._ran = False
        self._cut = False
        self._structured_output: str | None = None
        self._invalid_output = False
        self.results: dict[str, ToolResult] = dict(command.known)
        """The results of the step, by tool use id."""
        self.failed: RepertoryError | None = None
        """The first error of a guard or of the store; tools that had not started did not run then."""
        self.asked: dict[str, Interrupt] = {}
        """The questions that a person must answer before the step can end, by id."""

    def _mark(self) -> str:
        settings, record = self._turn.settings, self._record
        if record is None or not settings.marks_questions:
            return ""
        return record.journal.step_mark(settings.session_id, settings.agent_id)

    # The step: hooks before it, and its end.

    async def run_unless_refused(self) -> str | None:
        """Run the tools, unless a hook refuses or asks a person first. Returns the refusal, if there is one."""
        try:
            refused = await self._refused() if BeforeToolsEvent in self._hooks.listened else None
            if isinstance(refused, str):
                return refused
            if refused is None:
                await self.run()
                self._ran = True
            else:
                self.asked = {interrupt.id: interrupt for interrupt in refused}
        except StepsChanged:  # The turn fails with nothing recorded of its end, so it can go on.
            raise
        except RepertoryError as error:
            self.failed = error
            # Every use needs a result, also where the store has refused its intent.
            return f"Not run: {'a hook failed' if isinstance(error, HookFailed) else 'the turn could not be stored'}."
        return None

    async def _refused(self) -> str | tuple[Interrupt, ...] | None:
        """The reason or the questions for which none of the tools may run now; None runs them."""
        turn, asking = self._turn, None if self._record is None else self._record.journal.fold.last_message
        if turn.invocation.direct is not None or asking is None:
            return None
        return await turn.stop.run_unless_stopped(lambda: self._hooks.before_tools(asking, self._questions))

    async def end(self, refusal: str | None) -> ToolsEnded | ToolsParked:
        """The end of the step, or its open part if a person is asked. `refusal`: the result of tools that have none."""
        parks = bool(self.asked) and self.failed is None and not self._cut
        # Copied before the missing ones are filled in: parked, those must stay open.
        known = dict(self.results)
        for use in self._command.uses:
            self.results.setdefault(use["toolUseId"], error_result(use["toolUseId"], refusal or CUT_TEXT))
        closing: tuple[ContentBlock, ...] = ()
        if self._ran or not parks:
            if AfterToolsEvent in self._hooks.listened:
                closing = await self._tell_end(known if parks else self.results)
            closing = closing or self._delegated()  # A hook's answer goes before a delegate's.
        ended = ToolsEnded(
            results=tuple(self.results[use["toolUseId"]] for use in self._command.uses),
            stopped=self._stop_after(),
            closing=closing,
            filled_output=self._structured_output,
            invalid_output=self._invalid_output,
            failed=self.failed,
        )
        if not parks or ended.failed is not None:
            return ended
        return ToolsParked(park=self._park(known), instead=ended)

    async def _tell_end(self, known: Mapping[str, ToolResult]) -> tuple[ContentBlock, ...]:
        """Call hooks with the results. Returns the turn's answer, if a hook ends it here."""
        if self._turn.invocation.direct is not None:
            return ()
        results = tuple(known[use["toolUseId"]] for use in self._command.uses if use["toolUseId"] in known)
        try:
            return await self._turn.stop.run_always(lambda: self._hooks.after_tools(results)) or ()
        except RepertoryError as error:
            self.failed = self.failed or error
            return ()

    def _delegated(self) -> tuple[ContentBlock, ...]:
        """The turn's answer, if its only tool is an agent that answers in its place."""
        uses = self._command.uses
        # With other tools beside it their results would be lost; with an output schema the model has to fill it in.
        tool = self._tools.get(uses[0]["name"]) if len(uses) == 1 and self._form is None else None
        if not getattr(tool, "delegate", False):
            return ()
        result = self.results.get(uses[0]["toolUseId"])
        return delegated_answer(result) if result is not None else ()

    def _stop_after(self) -> StopReason | None:
        stop = self._turn.stop.reason()
        if stop is not None or self._cut:
            return stop or CANCELLED
        # As in the SDK: a tool ends the loop by this key of `request_state`.
        ends = not self.asked and request_state(self._turn.invocation).get("stop_event_loop")
        return StopReason(reason="tool_use") if ends else None

    def _park(self, known: Mapping[str, ToolResult]) -> Park:
        """The record from which the step can go on. Structured output is left out: it is read again then."""
        form = None if self._form is None else self._form.name
        uses = self._command.uses
        use_ids = [use["toolUseId"] for use in uses if use["toolUseId"] in known and use["name"] != form]
        interrupts = tuple(self.asked.values())
        # Each result once: those of slow neighbors stand in the journal already.
        new = tuple(known[use_id] for use_id in use_ids if use_id not in {*self._begun.finished, *self._recorded})
        return Park(interrupts=interrupts, results=new, parked=tuple(self._parked))

    # All tools of the step.

    async def run(self) -> None:
        """Give each use one result, unless a person is asked: then the uses that wait have none. If the turn is told to
        end, running tools are cut short; every result so far is kept. Errors: those of the commit of an intent.
        """
        waiting = [use for use in self._command.uses if use["toolUseId"] not in self.results]
        sequential = self._turn.settings.tool_execution == "sequential"
        # One scope for all of them, and not the turn's own: cut tools leave results, and the turn goes on to store
        # them.
        with self._turn.stop.tools_scope() as scope:
            await anyio.lowlevel.checkpoint_if_cancelled()  # A tool that never awaits would otherwise run to its end.
            for group in [[use] for use in waiting] if sequential else [waiting]:
                if not self.asked and self._turn.stop.reason() is None:
                    await self._run_group(group)
        # A deadline means that a person has stopped the turn; tools that ended within the grace period do not make it
        # go on.
        self._cut = scope.cancelled_caught or scope.deadline < math.inf
        if self._changed is not None and not self._cut:
            self._keep_results()
            raise self._changed
        if self.asked and not self._cut and self.failed is None:
            return
        missing = CUT_TEXT if self.failed is None else "Not run: a hook failed."
        leaving = self._cut and self._turn.stop.reason() is CANCELLED and self._record is not None
        for call in self._ready.values():
            if leaving and self._goes_on(call.tool):
                self.goes_on_elsewhere = True
            else:
                await self._cut_short(call, missing)
        if self.goes_on_elsewhere:
            self._keep_results()
            return
        for use in self._command.uses:
            self.results.setdefault(use["toolUseId"], error_result(use["toolUseId"], missing))

    def _goes_on(self, tool: Tool) -> bool:
        """True if another process may go on with the tool where this one has been."""
        subagents = self._turn.parts.subagents
        return getattr(tool, "durable", False) or (subagents is not None and subagents.keeps(tool))

    async def run_as_call(self) -> None:
        """`run`, as one traced call: there is no turn around it."""
        settings, parts = self._turn.settings, self._turn.parts
        telemetry = None if parts.find_telemetry is None else parts.find_telemetry()
        if telemetry is None:
            await self.run()
            return
        from repertory.backends.telemetry_ports import TracedCall  # loaded when used

        session_id, agent_id = settings.session_id, settings.agent_id
        call = TracedCall(owner=parts.owner, session_id=session_id, agent_id=agent_id, prompt=None, direct=True)
        with telemetry.begin(call) as trace, traced(trace):
            await self.run()

    def _keep_results(self) -> None:
        """Record the results so far: the turn fails, and its next call goes on among the tools."""
        if self._record is None:
            return
        journal, at = self._record.journal, self._record.journal.wall()
        for use_id in self.results.keys() - self._recorded - self._begun.finished.keys():
            journal.add(ToolFinished(at=at, tool_use_id=use_id, result=self.results[use_id]))

    async def _cut_short(self, call: PreparedCall, why: str) -> None:
        """Tell the hooks that were called before this tool, and before those that it has called, that they were cut
        short.
        """
        if call.use_id in self._inner:
            await self._inner[call.use_id][1].cut_short(why)
        result = with_undone(error_result(call.use_id, why), self._undone.get(call.use_id, Undone()))
        ended = ToolEnded(tool=call.tool, use=call.use, result=result, cancel_message=why)
        try:
            result, _ = await self._hooks.after_tool(ended)
        except RepertoryError as error:
            self.failed = self.failed or error
        self.results[call.use_id] = result

    async def _run_group(self, uses: Sequence[ToolUse]) -> None:
        if self.failed is not None:
            return
        try:
            # One after the other, before any tool starts: a hook that refuses the last use can still stop all of them.
            prepared = [await self._prepare(use) for use in uses]
        except RepertoryError as error:
            self.failed = error
            return
        calls = [call for call in prepared if call is not None]
        await anyio.lowlevel.checkpoint_if_cancelled()
        runs = None if self._record is None else self._record.runs
        if runs is not None and any(call.background for call in calls):
            calls = self._dispatched(runs, calls)
        # All starts of the step are one commit, for which the tools wait together.
        await self._record_intents(calls)
        await self._run_all(calls)

    def _dispatched(self, runs: BackgroundRunsPort, calls: Sequence[PreparedCall]) -> list[PreparedCall]:
        """Begin the calls in the background. Returns the others."""
        for call in calls:
            if call.background:
                try:
                    result = runs.dispatch(call.use, call.context, call.tool)
                except Invalid as error:
                    result = error_result(call.use_id, exception_text(error))
                self.results[call.use_id] = result
                # With the run, so that a turn which a kill cuts short never says that the tool did not run.
                self._note_end(call.use_id, result)
        runs.look()
        return [call for call in calls if not call.background]

    async def _run_all(self, calls: Sequence[PreparedCall]) -> None:
        self._running = len(calls)
        if len(calls) <= 1:
            for call in calls:
                await self._run_one(call)
            return
        # For each step and not for the process: a step that waits for agents as tools must not hold up those agents'
        # own tools.
        limiter = anyio.CapacityLimiter(AT_ONCE_MAX)
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(self._run_limited, call, limiter)

    async def _run_limited(self, call: PreparedCall, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            await self._run_one(call)

    # Before one tool runs.

    async def _prepare(self, use: ToolUse) -> PreparedCall | None:
        """The call that has to run; None if the use has its result already. Errors: those of a guard."""
        use_id = use["toolUseId"]
        if self._form is not None and use["name"] == self._form.name:
            self._fill_in(self._form, use)
            return None
        found, hidden = self._tools.get(use["name"]), None
        if self._deferral is not None:
            hidden = self._deferral.why_hidden(use["name"], self._turn.parts)
            found = found if hidden is None else None
        # A request for approval that a provider's own MCP connector puts into the answer: there is no tool of ours
        # behind it.
        if found is None and asks_for_approval(use):
            found = McpApproval()
        asks = self._turn.settings.unknown_outcome == "ask"
        if asks and self._record is not None and self._record.journal.fold.steps:
            in_doubt = self._questions_about_steps(use, self._record.journal.fold.steps.get(use_id, {}))
            if in_doubt:
                if use_id in self._begun.starts:
                    self._parked[use_id] = self._begun.starts[use_id]
                await self._ask(use, in_doubt)
                return None
        tool, changed, cancelled, asked = await self._hooks.before_tool(found, use, self._questions)
        if asked:
            await self._ask(use, asked)
            return None
        if tool is found and changed["name"] != use["name"]:
            hidden = None if self._deferral is None else self._deferral.why_hidden(changed["name"], self._turn.parts)
            tool = self._tools.get(changed["name"]) if hidden is None else None
        # Behind the hooks, which may replace an unknown tool or mend an input that is not JSON.
        refusal = cancelled or self._why_not(tool, use, changed, hidden)
        background, in_background = self._turn.parts.background, False
        if tool is not None and background is not None and refusal is None:
            way = self._way(background, tool, changed)
            refusal, in_background = way.refusal, way.background
            if way.input is not changed["input"]:
                changed = cast("ToolUse", {**changed, "input": way.input})
        # Middleware may answer for a tool that the agent has not, as a mock or a cache does.
        if tool is None and self._wraps is not None and refusal is not None and cancelled is None:
            tool, refusal = _Unknown(use["name"], refusal), None
        if refusal is None and tool is not None:
            call = self._call(tool, changed)
            if in_background:
                return replace(call, background=True)
            self._ready[use_id] = call
            return call
        result = error_result(use_id, refusal or "")
        if cancelled is not None and self._turn.publish is not None:
            await self._turn.publish({"tool_cancel_event": {"tool_use": copy_use(changed), "message": cancelled}})
        ended = ToolEnded(tool=tool, use=changed, result=result, cancel_message=cancelled)
        self.results[use_id], _ = await self._hooks.after_tool(ended)
        return None

    def _way(self, background: BackgroundPort, tool: Tool, use: ToolUse) -> TaskRoute:
        """The way of a use of this tool: now, or in the background."""
        # Only an agent's own conversation has a background: not a direct call, and not the node of a graph.
        here = self._record is not None and self._record.runs is not None and self._turn.invocation.direct is None
        # One that was stated again to ask a person has begun: put in the background again, it would ask for ever.
        here = here and use["toolUseId"] not in self._begun.starts
        return background.way(tool, use["input"], here=here)

    def _questions_about_steps(self, use: ToolUse, steps: Mapping[str, RecordedStep]) -> list[Interrupt]:
        """The questions that a person has not answered about steps of unknown outcome."""
        asked: list[Interrupt] = []
        for name, reason in questions_about(steps, use):
            try:
                self._questions.ask(tool_scope(use["toolUseId"]), name, reason, None)
            except InterruptException as question:
                asked += question.interrupts
        return asked

    def _why_not(self, tool: Tool | None, use: ToolUse, changed: ToolUse, hidden: str | None) -> str | None:
        """The reason why this use cannot run; None if it can. `changed`: the use after hooks; `hidden`: the reason if
        the model is not shown the tool.
        """
        invalid = self._command.invalid.get(use["toolUseId"])
        if tool is None:
            return (
                hidden or f"Unknown tool: {changed['name']}. Available tools: {', '.join(self._tools.names) or 'none'}."
            )
        return None if invalid is None or changed != use else f"The input is not valid JSON: {invalid[:200]}"

    def _fill_in(self, form: OutputSchema, use: ToolUse) -> None:
        """Read the structured output. If it is invalid, the result says why."""
        use_id = use["toolUseId"]
        invalid = self._command.invalid.get(use_id)
        try:
            if invalid is not None:
                raise Invalid(f"The input is not valid JSON: {invalid[:200]}")
            self._turn.structured_output, self._structured_output = form.read(use["input"])
            text = f"Successfully validated {form.name} structured output"
            self.results[use_id] = {"toolUseId": use_id, "status": "success", "content": [{"text": text}]}
        except Invalid as error:
            self._invalid_output = True
            self.results[use_id] = error_result(use_id, str(error))

    def _call(self, tool: Tool, use: ToolUse) -> PreparedCall:
        turn, record = self._turn, self._record
        turn.stop.reason()
        settings, use_id, raised, deferrals = turn.settings, use["toolUseId"], list[Exception](), list["Deferral"]()
        attempt, key = self._begun.starts.get(use_id) or (0, "")
        # With a key on record the tool was started before: the same key, or a service could not tell that it is the
        # same call.
        if not key:  # A conversation of the same id elsewhere, or after a deletion, has other steps.
            step = () if record is None else record.journal.step
            path = "/".join(map(str, (settings.session_id, settings.agent_id, *step, use_id)))
            key = sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:32]  # A valid id for every service.
        timers = None
        if record is not None and (book := record.journal.timers) is not None:
            named = dict.fromkeys((*record.journal.fold.turn_to, *turn.invocation.deliver_to))
            timers = ToolTimers(book, key, tuple(named), turn.check_destinations)
        # Only with a start on record: an early result can then be told from a made-up one.
        defers = tool.effects and settings.defers
        context = ToolContext(
            tool_use=copy_use(use),
            agent_id=settings.agent_id,
            state=turn.parts.state,
            idempotency_key=key,
            attempt=attempt + 1,
            invocation_state=turn.invocation.invocation_state,
            agent=turn.parts.owner,
            on_partial=self._on_partial(use),
            on_exception=raised.append,
            questions=self._questions,
            signal=turn.stop.signal,
            timers=timers,
            new_deferred_id=record.journal.new_deferred_id if defers and record is not None else None,
            on_deferred=deferrals.append,
            find_steps=self._steps_of,
            find_inner=self._inner_of,
            find_spawner=self._spawner_of,
            result_bytes=turn.sizes.result_bytes,
        )
        return PreparedCall(use=use, tool=tool, context=context, raised=raised, deferrals=deferrals)

    async def _record_intents(self, calls: Sequence[PreparedCall]) -> None:
        # A tool without effects may simply run again after a crash, so it waits for no store.
        intended = [call for call in calls if call.tool.effects]
        if self._record is None or not intended:
            return
        journal = self._record.journal
        for call in intended:
            started = ToolStarted(
                at=journal.wall(),
                tool_use_id=call.use_id,
                name=call.tool.name,
                idempotency_key=call.context.idempotency_key,
                attempt=call.context.attempt,
            )
            journal.add(started)
        journal.hand_over(soon=True)
        await journal.commit()

    # One tool.

    async def _run_one(self, call: PreparedCall) -> None:
        publish, stop = self._turn.publish, self._turn.stop
        if stop.reason() is not None:  # Others have a moment to end; this one does not begin.
            return
        if publish is not None:
            await publish({"tool_started": copy_use(call.use)})
        try:
            result, again = await self._attempt(call)
            # A hook wants another attempt. It has a start of its own on record, since a crash may come in any of them.
            while again and stop.reason() is None:
                # Between two attempts, so that a hook that always asks for one more can be stopped.
                await anyio.lowlevel.checkpoint()
                call.raised.clear()
                call = replace(call, context=dataclasses.replace(call.context, attempt=call.context.attempt + 1))
                await self._record_intents([call])
                result, again = await self._attempt(call)
            recorded = self._record is not None and call.use_id in self._record.journal.fold.steps
            if recorded or call.use_id in self._steps:
                result = await self._steps_of(call.context).end(result)
        except anyio.get_cancelled_exc_class():
            ends = stop.reason()
            # Without a reason the process dies, and with CANCELLED it shuts down: the tool goes on in another one.
            if call.use_id in self._steps and ends is not None and ends is not CANCELLED:
                self._undone[call.use_id] = await self._steps[call.use_id].undo_cut(CUT_TEXT, UNDO_S)
            raise
        except (InterruptException, ExceptionGroup) as error:
            question = question_in(error)
            if question is None:
                raise
            self._running -= 1
            # Its outcome is known: it stopped to ask. Without this note, the start on record would count as one of
            # unknown outcome after a crash.
            if self._record is not None and call.tool.effects:
                self._parked[call.use_id] = call.start
            await self._ask(call.use, question.interrupts)
            return
        except StepsChanged as error:  # It has no result: with its old program it can go on.
            self._running -= 1
            self._changed = self._changed or error
            return
        except RepertoryError as error:
            self.failed = self.failed or error
            result = error_result(call.use_id, f"{WITHHELD_TEXT}: a hook failed.")
        self.results[call.use_id] = result
        self._running -= 1
        self._record_end(call, result)
        if publish is not None:
            await publish({"tool_finished": copy_result(result)})

    def _steps_of(self, context: ToolContext) -> ToolSteps:
        """The steps of this attempt at a tool use. From any thread."""
        from repertory.actors.tool_steps import ToolSteps  # loaded when used

        use_id, journal = context.tool_use["toolUseId"], None if self._record is None else self._record.journal
        known = self._steps.get(use_id)
        if known is None or known.attempt != context.attempt:
            unknown_outcome, again = self._turn.settings.unknown_outcome, known is None
            known = ToolSteps(context, journal, unknown_outcome, use_id=self._steps_id or use_id, fails_again=again)
            self._steps[use_id] = known
        return known

    def _inner_of(self, context: ToolContext) -> InnerToolsPort:
        """The calls of other tools by this attempt at a tool use. On the event loop."""
        make, use_id = self._turn.parts.inner_tools, context.tool_use["toolUseId"]
        if make is None:
            raise Invalid(NO_INNER_TOOLS)
        attempt, known = self._inner.get(use_id, (0, None))
        if known is None or attempt != context.attempt:
            journal = None if self._record is None else self._record.journal
            known = make(self._turn, journal, self._questions, context, self._steps_of(context), self._fail)
            self._inner[use_id] = context.attempt, known
        return known

    def _fail(self, error: RepertoryError) -> None:
        self.failed = self.failed or error

    def _spawner_of(self, context: ToolContext) -> Spawner:
        """The subagents of this attempt at a tool use."""
        from repertory.actors.spawning import Spawner  # loaded when used

        use_id, record = context.tool_use["toolUseId"], self._record
        known = self._spawners.get(use_id)
        if known is None or known.attempt != context.attempt:
            runs = None if record is None or not self._turn.settings.defers else record.open_runs
            parts = self._turn.parts
            known = self._spawners[use_id] = Spawner(
                context, parts.subagents, parts.tools.whole, runs, self._turn.stop.reason
            )
        return known

    async def _ask(self, use: ToolUse, interrupts: Sequence[Interrupt]) -> None:
        self.asked.update((interrupt.id, interrupt) for interrupt in interrupts)
        if self._turn.publish is not None:
            asked: dict[str, object] = {
                "tool_use": copy_use(use),
                "interrupts": self._turn.about_tools(interrupts, [use]),
            }
            await self._turn.publish({"tool_interrupt_event": asked})

    async def _attempt(self, call: PreparedCall) -> tuple[ToolResult, bool]:
        """The result of one attempt, and True if a hook wants another."""
        clock, running = self._turn.meter.clock, self._turn.progress.tools
        began, trace = clock(), trace_here()
        running.append(call.tool.name)
        try:
            if trace is None:
                result, exception = await self._run_once(call)
            else:
                with trace.tool_call(call.tool.spec, call.use, call.context.attempt) as span:
                    result, exception = await self._run_once(call)
                    span.ended(result, exception)
        finally:
            # Removes one entry of the name, whichever: two of the same name look the same to whoever watches.
            running.remove(call.tool.name)
        duration_s = clock() - began
        self._turn.meter.ran(call.tool.name, result, duration_s)
        ended = ToolEnded(tool=call.tool, use=call.use, result=result, exception=exception, duration_s=duration_s)
        self._ready.pop(call.use_id, None)
        if AfterToolCallEvent in self._hooks.listened:  # If the hooks are cut short, this result stays.
            self.results[call.use_id] = error_result(call.use_id, f"{WITHHELD_TEXT}: a hook was cut short.")
        result, again = await self._hooks.after_tool(ended)
        # After a failure of middleware or of the store the step has failed, and another attempt would run on in vain.
        # A failed step is the tool's own failure.
        return result, again and (not isinstance(exception, RepertoryError) or isinstance(exception, StepFailed))

    async def _run_once(self, call: PreparedCall) -> tuple[ToolResult, Exception | None]:
        """The result, and the exception behind an error."""
        if self._wraps is not None:
            return await self._run_through(self._wraps, call)
        result = await _bounded(call)
        self._note_deferral(call, result)
        return result, call.raised[0] if call.raised else None

    async def _run_through(self, handlers: Handlers, call: PreparedCall) -> tuple[ToolResult, Exception | None]:
        """The result from middleware, and the exception behind an error. If middleware fails, so does the step."""
        starts = 0

        async def start(tool: Tool, use: ToolUse, state: dict[str, object]) -> tuple[ToolResult, Exception | None]:
            """Run the tool once. Each start with effects is on record before."""
            nonlocal starts
            context = dataclasses.replace(
                call.context, tool_use=copy_use(use), invocation_state=state, attempt=call.context.attempt + starts
            )
            started = replace(call, use=use, tool=tool, context=context, raised=[])
            started = replace(started, context=dataclasses.replace(context, on_exception=started.raised.append))
            # The first start of a tool with effects was recorded with those of the whole step.
            if starts or not call.tool.effects:
                await self._record_intents([started])
            starts += 1
            result = await _bounded(started)
            self._note_deferral(started, result)
            return result, started.raised[0] if started.raised else None

        try:
            event = await handlers.run_tool(call.tool, call.use, call.context, start, self._turn.publish)
            return _result_for(call.use, event.tool_result, call.context.result_bytes), event.exception
        except RepertoryError as error:
            self.failed = self.failed or error
            return error_result(call.use_id, "No result: middleware failed."), error

    def _note_deferral(self, call: PreparedCall, result: ToolResult) -> None:
        """Record at once that the result comes later, before hooks that may be cut short, and with it how the tool has
        ended, so that no crash takes one for the other. A tool that was tried again may have its result after all.
        """
        journal = None if self._record is None else self._record.journal
        if journal is None or not (call.deferrals or journal.fold.deferred):
            return
        later, deferrals = (call.deferrals[-1] if call.deferrals else None), call.deferrals
        deferrals.clear()
        # The tool may have caught the deferral and returned something else, or middleware replaced it: then this is its
        # result.
        if later is None or result["content"] != [{"text": later.text}]:
            if call.tool.effects:
                journal.withdraw(call.context.idempotency_key)
            return
        journal.defer(later, call.use)
        journal.add(ToolFinished(at=journal.wall(), tool_use_id=call.use_id, result=result))
        journal.hand_over(soon=True)

    def _on_partial(self, use: ToolUse) -> Callable[[object], Awaitable[None]] | None:
        publish = self._turn.publish
        if publish is None:
            return None

        async def show(data: object) -> None:
            await publish({"tool_stream_event": {"tool_use": use, "data": data}})

        return show

    def _record_end(self, call: PreparedCall, result: ToolResult) -> None:
        """Record the result now: the step's message with all results comes only when the slowest tool has ended."""
        if self._record is None:
            return
        journal = self._record.journal
        journal.add_timers()  # Before the result, so that no tool is over whose timers are not on record.
        journal.show_result(result)
        # Not the last one: its result is in the step's message, which follows in the same commit.
        if call.tool.effects and self._running:
            self._note_end(call.use_id, result)
            journal.hand_over(soon=True)

    def _note_end(self, use_id: str, result: ToolResult) -> None:
        assert self._record is not None
        journal = self._record.journal
        journal.add(ToolFinished(at=journal.wall(), tool_use_id=use_id, result=result))
        self._recorded.add(use_id)


async def _bounded(call: PreparedCall) -> ToolResult:
    """The tool's result, or an error result after its timeout."""
    if call.tool.timeout_s is None:
        return await _guarded(call)
    # A tool in a thread goes on behind its timeout: threads cannot be ended, and the text of the result says so.
    with anyio.move_on_after(call.tool.timeout_s):
        return await _guarded(call)
    text = timeout_text(call.tool.name, call.tool.timeout_s, effects=call.tool.effects)
    return error_result(call.use["toolUseId"], text)


def _result_for(use: ToolUse, result: object, result_bytes: int) -> ToolResult:
    """The tool's return value as the result of this use. Errors: `Invalid` if it is not one, `TooLarge`."""
    checked = check_result_size(check_result(result), result_bytes)
    return checked if checked.get("toolUseId") == use["toolUseId"] else {**checked, "toolUseId": use["toolUseId"]}


async def _guarded(call: PreparedCall) -> ToolResult:
    """The tool's result, or an error result for anything it raises: even `SystemExit`, or a cancellation not requested
    here.
    """
    try:
        return _result_for(call.use, await call.tool.run(call.use, call.context), call.context.result_bytes)
    # A tool must not end the program; `KeyboardInterrupt`, which a person has typed, goes on.
    except SystemExit as error:
        return error_result(call.use["toolUseId"], exception_text(error))
    except BaseException as raised:  # A tool is a user's code; the model must handle its failure.
        error = failure_of(raised)
        questions, question = call.context.questions, question_in(error)
        # Only its own: an agent as a tool may raise the questions of another agent, which nobody here could answer.
        if question is not None and questions is not None and questions.were_asked(question.interrupts):
            raise
        if call.context.on_exception is not None:
            call.context.on_exception(error)
        return error_result(call.use["toolUseId"], exception_text(raised))
