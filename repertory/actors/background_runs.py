"""Runs the tools of one agent that are in the background: beside its turns, each in a job of its own.

Not an actor: it belongs to the agent actor, whose jobs the runs are. State: the runs that are under way. What is to run
stands in the journal, and `look` computes from there, after each change, what to begin and what to cut short. So a run
whose process was killed is found and begun again by the same function that begins a new one.

Pace: the tools'. At most so many run at once as the agent's policy says; the others wait in the journal. Fails: never;
a run that cannot go on here stays in the journal, for the next life of the session.
"""

from __future__ import annotations

import contextvars
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

import anyio
from msgspec import Struct
from msgspec.structs import replace

from repertory.actors.call import Invocation, in_context
from repertory.actors.context import TurnContext, TurnRecord
from repertory.actors.tools import ToolStep
from repertory.core.journal import deferrals
from repertory.core.journal.pending_tools import PendingTools
from repertory.core.messages import error_result
from repertory.core.tools import timeout_text
from repertory.core.turn import CANCELLED, STOPPED_BY_CALLER, RunTools
from repertory.core.turns.background_tasks import (
    CUT_TEXT,
    DECLARED_ALONE,
    MANAGE,
    MANAGE_SPEC,
    BackgroundPolicy,
    Fails,
    TaskRoute,
    acknowledgement,
    after_restart,
    route,
    selectable,
    task_list,
    unfit,
)
from repertory.core.turns.due_times import AGAIN_S
from repertory.errors import Invalid, RepertoryError, Retryable, StepsChanged
from repertory.logs import ERROR, WARNING, note

if TYPE_CHECKING:
    from repertory.actors.context import ActiveAgent, AgentParts
    from repertory.actors.journal import ActorJournal
    from repertory.actors.tools import PreparedCall
    from repertory.backends.ports import Tool, ToolContext
    from repertory.core.deferral import DeferredTool, RunAsks
    from repertory.core.messages import Json, ToolResult, ToolSpec, ToolUse
    from repertory.core.result import AgentResult
    from repertory.core.turn import StopReason
    from repertory.runtime.actor import SerialQueue

_log = logging.getLogger("repertory.tools")

_SPECS_MAX = 4096
OnPiece: TypeAlias = "Callable[[ToolUse, object], Awaitable[None]]"
"""Called with the tool use and each piece that the tool gives before its result."""
_RUNS = contextvars.ContextVar["tuple[BackgroundRuns, ...]"]("repertory_background_runs", default=())
"""The runs of agents inside of which the running code is, the innermost last."""


class BackgroundTools:
    """The rules by which an agent's tools run in the background, and its runs while the agent is active."""

    __slots__ = ("_named", "_selectable", "manage", "on_over", "policy", "runs")

    def __init__(self, policy: BackgroundPolicy = DECLARED_ALONE, known: Iterable[Tool] = ()) -> None:
        """`known`: the tools that the agent is made with. Errors: `Invalid` if one cannot do what the policy says."""
        reasons = [unfit(policy, each.name, each.spec, able=self.able(each)) for each in known]
        if any(reasons):
            raise Invalid("; ".join(reason for reason in reasons if reason))
        self.policy = policy
        self.runs: BackgroundRuns | None = None
        """Set by the agent actor."""
        self.on_over: Callable[[], None] | None = None
        self.manage = ManageTasks(self)
        """The tool by which the model looks after its tasks."""
        self._selectable: dict[int, tuple[ToolSpec, ToolSpec]] = {}
        self._named = False
        """True once the tools that the policy names were looked for."""

    def able(self, tool: Tool) -> bool:
        """True for a tool that can run beside turns. An agent that answers in the place of its caller cannot."""
        return not getattr(tool, "delegate", False)

    def way(self, tool: Tool, given: Json, *, here: bool) -> TaskRoute:
        """The way of a use of this tool with this input. `here`: tools may run in the background where it is used."""
        declared = getattr(tool, "background", False)
        return route(self.policy, tool.name, given, declared=declared, able=self.able(tool), here=here)

    def specs(self, specs: tuple[ToolSpec, ...], parts: AgentParts) -> tuple[ToolSpec, ...]:
        """The definitions for the model, with the flag where it decides."""
        if not self._named:
            self._named = True
            missing = sorted(self.policy.modes.keys() - {"*", *parts.tools.names})
            if missing:
                _log.warning("background_tasks names tools that the agent does not have: %s", missing)
        return tuple(self._spec(spec, parts) for spec in specs)

    def _spec(self, spec: ToolSpec, parts: AgentParts) -> ToolSpec:
        tool = parts.tools.get(spec["name"])
        declared = getattr(tool, "background", False)
        if tool is None or self.policy.mode(spec["name"], declared=declared)[0] != "agentic" or not self.able(tool):
            return spec
        known = self._selectable.get(id(spec))
        if known is None or known[0] is not spec:  # The same objects at each call, so that caches of prompts hold.
            # The original is held as well: the id of a spec that was freed could be another one's.
            if len(self._selectable) >= _SPECS_MAX:  # Servers have changed their tools again and again.
                self._selectable.clear()
            known = self._selectable[id(spec)] = (spec, selectable(spec) or spec)
        return known[1]


class _Dispatched(Struct, frozen=True):
    """A use that this life has put in the background."""

    tool: Tool
    invocation_state: Mapping[str, object]
    variables: contextvars.Context


class _Run(Struct, eq=False):
    """A run that is under way."""

    step: BackgroundStep | None = None
    """The step of its tool, once that runs."""
    gone: bool = False
    """True if the journal has it no more: its result came from outside, or it was taken back."""
    stop: StopReason | None = None

    def cut(self, why: StopReason) -> None:
        self.stop = self.stop or why
        if self.step is not None:
            self.step.cut(why)


class BackgroundRuns:
    """The background runs of one active agent."""

    def __init__(
        self,
        agent: ActiveAgent,
        tools: BackgroundTools,
        queue: SerialQueue,
        on_settled: Callable[[str], None],
        on_piece: OnPiece,
    ) -> None:
        """`queue`: of the agent's turns; it is not idle while a run is under way. `on_settled` is called when a run has
        its result, or waits for a person, `on_piece` when a tool gives a piece before its result.
        """
        self._agent = agent
        self._journal = agent.journal
        self.policy = tools.policy
        self._queue = queue
        self._on_settled = on_settled
        self._show = on_piece
        self._running: dict[str, _Run] = {}
        self._fresh: dict[str, _Dispatched] = {}
        """The runs of which this life knows that no attempt has reached its tool."""
        self._stalled: set[str] = set()
        """The runs that cannot go on in this life."""
        self._resting: set[str] = set()
        """The runs that go on when the store may be there again."""
        self._closed = False
        self._changed = anyio.Event()

    # What is to run.

    def dispatch(self, use: ToolUse, context: ToolContext, tool: Tool) -> ToolResult:
        """See `BackgroundRunsPort`."""
        journal, key = self._journal, context.idempotency_key
        task_id = journal.new_deferred_id(key)
        ahead = {each for each, waits in journal.fold.deferred.items() if self._is_due(each, waits)}
        begins = not self._closed and len(ahead | self._running.keys()) < self.policy.concurrency
        record = deferrals.run(journal.fold, task_id, use, key, journal.wall(), begins=begins)
        if record is not None:  # Else the step goes on after a crash, and the run is known.
            journal.add(record)
            # A copy, for this run alone: budgets and the program's own variables hold in the background as well, and a
            # call to the same agent does not wait for the turn that waits for the tool.
            self._fresh[task_id] = _Dispatched(tool, context.invocation_state, contextvars.copy_context())
        text = acknowledgement(task_id, use["name"], waits=record is not None and not begins)
        return {"toolUseId": use["toolUseId"], "status": "success", "content": [{"text": text}]}

    def detach(self, tool: Tool, given: dict[str, Json], key: str, context: ToolContext) -> str:
        """See `BackgroundRunsPort`."""
        use: ToolUse = {"toolUseId": context.tool_use["toolUseId"], "name": tool.name, "input": given}
        self.dispatch(use, dataclasses.replace(context, tool_use=use, idempotency_key=key), tool)
        self.look()
        return self._journal.new_deferred_id(key)

    def look(self) -> None:
        """Begin what may run now, and cut short what the journal has no more. Call it after each change."""
        deferred = self._journal.fold.deferred
        for task_id, run in self._running.items():
            if task_id not in deferred and not run.gone:
                run.gone = True
                run.cut(STOPPED_BY_CALLER)
        for task_id in self._fresh.keys() - deferred.keys() - self._running.keys():
            del self._fresh[task_id]
        if self._closed:
            return
        for task_id, tool in deferred.items():
            if len(self._running) >= self.policy.concurrency:
                break
            if not self._is_due(task_id, tool) or task_id in self._running or task_id in self._resting:
                continue
            self._running[task_id] = _Run()
            self._agent.parts.read_model.tasks = len(self._running)
            self._queue.begin_beside()
            self._agent.context.job(self._carry_out, tool, name=f"background {tool.tool}")

    @property
    def under_way(self) -> bool:
        """True while a run is under way or is to begin in this life."""
        deferred = self._journal.fold.deferred.items()
        return bool(self._running) or (not self._closed and any(self._is_due(*each) for each in deferred))

    def _is_due(self, task_id: str, tool: DeferredTool) -> bool:
        """True for a run that is under way, or waits for room or for the store."""
        return tool.run is not None and not tool.run.asks and task_id not in self._stalled

    async def gave_more(self, turn: TurnContext, result: AgentResult) -> bool:
        """True if the call of this answered turn goes on, since a run has its result or waits for a person. Waits while
        runs are under way, as far as the policy says so and nobody stops the turn.
        """
        # A tool that the program itself calls would be called once more.
        waits = self.policy.waits and turn.invocation.direct is None
        if not waits or result.stop_reason not in ("end_turn", "stop_sequence"):
            return False
        while not self._has_more and self.under_way and turn.stop.reason() is None:
            await turn.stop.run_unless_stopped(self.next_end)
        return self._has_more and turn.stop.reason() is None

    @property
    def _has_more(self) -> bool:
        fold = self._journal.fold
        return any(came.ran and came.starts for came in fold.came.values()) or deferrals.asking_run(fold) is not None

    async def next_end(self) -> None:
        """Wait until a run has ended, or waits for a person."""
        await self._changed.wait()

    def wait_for(self, context: contextvars.Context) -> bool:
        """True if calls wait for the run in which the code of this context runs."""
        return self.policy.waits and self in context.get(_RUNS, ())

    def close(self, *, at_once: bool) -> None:
        """Begin no more runs. `at_once`: those under way are cut short; durable tools go on in another life."""
        self._closed = True
        for run in self._running.values() if at_once else ():
            run.cut(CANCELLED)
        self._note_change()

    def cancel(self, task_id: str) -> bool:
        """Cut a run short, or take back one that has not begun. False if there is none of this id."""
        tool = self._journal.fold.deferred.get(task_id)
        if tool is None or tool.run is None:
            return False
        run = self._running.get(task_id)
        if run is not None:
            run.cut(STOPPED_BY_CALLER)
        else:
            self._end(tool, error_result(tool.tool_use_id, CUT_TEXT), starts=False)
        return True

    # One run.

    async def _carry_out(self, tool: DeferredTool) -> None:
        run, task_id = self._running[tool.id], tool.id
        try:
            await self._outcome(tool, run)
        except StepsChanged as error:
            self._stall(
                tool,
                error,
                "a tool in the background asks for other steps than before; with its old program it can go on",
            )
        except RepertoryError as error:
            self._stall(tool, error, "a tool in the background cannot go on here")
        finally:
            self._running.pop(task_id, None)
            self._agent.parts.read_model.tasks = len(self._running)
            if task_id not in self._resting:
                self._fresh.pop(task_id, None)
            self._note_change()
            self._queue.end_beside()
        self.look()
        background = self._agent.parts.background
        if not self._running and background is not None and background.on_over is not None:
            background.on_over()

    async def _rest(self, task_id: str) -> None:
        """The store was down before the tool began: try again later."""
        await anyio.sleep(AGAIN_S)
        self._resting.discard(task_id)
        self._note_change()
        self.look()

    def _stall(self, tool: DeferredTool, error: RepertoryError, what: str) -> None:
        self._stalled.add(tool.id)
        self._note(tool, error, ERROR if isinstance(error, StepsChanged) else WARNING, what)

    def _note(self, tool: DeferredTool, error: RepertoryError, severity: int, what: str) -> None:
        note(
            self._agent.context.logger,
            severity,
            what,
            error,
            session=self._agent.settings.session_id,
            tool=tool.tool,
            task=tool.id,
        )

    async def _outcome(self, known: DeferredTool, run: _Run) -> None:
        """Run the tool and record how it has ended. Errors: `StepsChanged`, and those of the store."""
        own, parts, journal = known.run, self._agent.parts, self._journal
        assert own is not None
        if known.id not in journal.fold.deferred:  # Taken back before its job began.
            return
        tool, fresh = parts.tools.whole.get(known.tool), self._fresh.get(known.id)
        if fresh is not None:
            tool = fresh.tool
        else:
            decided = after_restart(
                own,
                exists=tool is not None,
                repeatable=tool is not None and parts.goes_on(tool),
                steps=journal.fold.steps_of(known.id),
                unknown_outcome=self._agent.settings.unknown_outcome,
            )
            if isinstance(decided, Fails):
                self._end(known, error_result(known.tool_use_id, decided.text))
                return
            if decided == "ask":
                self._ask(known, "outcome")
                return
        if tool is None:
            self._end(known, error_result(known.tool_use_id, f"Unknown tool: {known.tool}."))
            return
        attempt = max(1, own.attempt) if fresh is not None else own.attempt + 1
        if attempt > own.attempt:
            journal.add(deferrals.change_run(journal.fold, known.id, journal.wall(), attempt=attempt))
        # Its start is stored before it runs, as that of any tool.
        journal.hand_over(soon=True)
        state: dict[str, object] = {} if fresh is None else {**fresh.invocation_state}
        try:
            await journal.commit()
        except Retryable as error:
            self._fresh[known.id] = fresh or _Dispatched(tool, state, contextvars.copy_context())
            self._resting.add(known.id)
            self._note(known, error, WARNING, "a tool in the background waits for the store")
            self._agent.context.job(self._rest, known.id, name=f"later {known.tool}")
            return
        if run.gone:
            return
        step = run.step = self._step(known, tool, attempt, state)
        if run.stop is not None:
            step.cut(run.stop)
        with anyio.move_on_after(self.policy.timeout_s) as bound:
            variables = contextvars.copy_context() if fresh is None else fresh.variables
            await in_context(variables, None, self._inside(step))
        if run.gone:
            return
        if bound.cancelled_caught:
            text = timeout_text(known.tool, self.policy.timeout_s, effects=tool.effects)
            self._end(known, error_result(known.tool_use_id, text))
        elif step.asked:
            self._ask(known, "question")
        elif not step.goes_on_elsewhere:
            # A person who has stopped it need not be told; of one that a shutdown has cut, nobody would hear.
            starts = run.stop is not STOPPED_BY_CALLER
            self._end(known, step.results[step.use["toolUseId"]], starts=starts)

    def _step(self, known: DeferredTool, tool: Tool, attempt: int, state: dict[str, object]) -> BackgroundStep:
        invocation = Invocation(prompt=None, invocation_state=state)
        turn = TurnContext(
            self._agent.settings, self._agent.parts, invocation, self._agent.context.clock, is_turn=False
        )
        record = TurnRecord(turn, self._journal, self._agent.conversation)
        return BackgroundStep(turn, record, known, tool, attempt, self._show)

    async def _inside(self, step: BackgroundStep) -> None:
        """Run the tool, and have what runs in it know that it is inside of this agent's runs."""
        _RUNS.set((*_RUNS.get(), self))
        await step.run_as_call()

    def _end(self, known: DeferredTool, result: ToolResult, *, starts: bool = True) -> None:
        """Record the result. `starts`: a turn begins to tell it, unless one runs."""
        journal = self._journal
        record = deferrals.run_ended(journal.fold, known.id, result, journal.wall(), starts=starts)
        if record is not None:
            journal.add(record)
            journal.hand_over(soon=True)
            self._note_change()
            self._on_settled(known.id)

    def _ask(self, known: DeferredTool, why: RunAsks) -> None:
        """A person must answer: a turn takes the run over, and asks."""
        journal = self._journal
        if known.id in journal.fold.deferred:
            journal.add(deferrals.change_run(journal.fold, known.id, journal.wall(), asks=why))
            journal.hand_over(soon=True)
            self._note_change()
            self._on_settled(known.id)

    def _note_change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    # The model looks after its tasks.

    def tasks(self) -> list[dict[str, Json]]:
        """The tasks that run, and those that have ended and are not told yet."""
        fold = self._journal.fold
        return [
            {"task_id": task_id, "tool_name": tool, "status": status}
            for task_id, tool, status in task_list(fold.deferred, fold.came)
        ]

    async def wait(self, task_id: str | None) -> None:
        """Wait until this run has ended or waits for a person; without an id, until any one has, if one runs."""
        if task_id is None:
            if self._running:
                await self.next_end()
            return
        while True:
            tool = self._journal.fold.deferred.get(task_id)
            if tool is None or not self._is_due(task_id, tool) or self._closed:
                return
            await self.next_end()


class BackgroundStep(ToolStep):
    """A step of one tool beside turns. Its start and its end stand in the journal as those of a run."""

    def __init__(
        self,
        turn: TurnContext,
        record: TurnRecord,
        known: DeferredTool,
        tool: Tool,
        attempt: int,
        show: OnPiece,
    ) -> None:
        assert known.run is not None
        self.use: ToolUse = {"toolUseId": known.tool_use_id, "name": known.tool, "input": cast("Json", known.run.input)}
        super().__init__(turn, record, RunTools(uses=(self.use,), known={}, invalid={}), PendingTools(last=None))
        self._tool, self._attempt_number, self._known = tool, attempt, known
        self._steps_id = known.id
        self._show = show

    def cut(self, why: StopReason) -> None:
        """End the tool soon."""
        self._turn.stop.ask(why)

    async def _prepare(self, use: ToolUse) -> PreparedCall | None:
        assert self._known.run is not None
        call = self._call(self._tool, use)
        context = dataclasses.replace(
            call.context,
            idempotency_key=self._known.run.idempotency_key,
            attempt=self._attempt_number,
            on_partial=partial(self._show, use),  # The turn that runs is another one.
            new_deferred_id=None,  # What runs in the background is late already.
        )
        self._ready[call.use_id] = call = replace(call, context=context)
        if self._journal.fold.run_steps.get(self._known.id):  # It is to ask for them again.
            self._steps_of(context)
        return call

    async def _record_intents(self, calls: Sequence[PreparedCall]) -> None:
        """Record a further attempt, which a hook has asked for; the first one is on record."""
        (call,), journal = calls, self._journal
        if call.context.attempt > self._attempt_number and self._known.id in journal.fold.deferred:
            self._attempt_number = call.context.attempt
            change = deferrals.change_run(journal.fold, self._known.id, journal.wall(), attempt=self._attempt_number)
            journal.add(change)
            journal.hand_over(soon=True)
            await journal.commit()

    @property
    def _journal(self) -> ActorJournal:
        assert self._record is not None
        return self._record.journal

    def _note_deferral(self, call: PreparedCall, result: ToolResult) -> None:
        """Do nothing: the value that the tool returns is the result."""

    def _keep_results(self) -> None:
        """The run has its result on record with its end."""

    def _record_end(self, call: PreparedCall, result: ToolResult) -> None:
        self._journal.add_timers()
        self._journal.add_changes(self._turn.parts.state)


class ManageTasks:
    """The tool by which a model lists, waits for and cancels its background tasks."""

    effects, idempotent, timeout_s = False, True, None
    name = MANAGE

    def __init__(self, tools: BackgroundTools) -> None:
        self._tools = tools

    @property
    def spec(self) -> ToolSpec:
        """The definition for the model."""
        return MANAGE_SPEC

    async def run(self, tool_use: ToolUse, context: ToolContext) -> ToolResult:
        """See `Tool.run`."""
        given = cast("dict[str, Json]", tool_use["input"]) if isinstance(tool_use["input"], dict) else {}
        mode, task_id, runs = given.get("mode"), given.get("task_id"), self._tools.runs
        use_id = tool_use["toolUseId"]
        if mode not in ("list", "get", "wait", "cancel"):
            return error_result(use_id, "mode is list, get, wait or cancel")
        if not isinstance(task_id, str | None) or (mode in ("get", "cancel") and not task_id):
            return error_result(use_id, f"Task ID is required for mode '{mode}'")
        tasks = {} if runs is None else {cast("str", each["task_id"]): each for each in runs.tasks()}
        if task_id and task_id not in tasks:
            return error_result(use_id, f"Background task '{task_id}' was not found")
        if runs is not None and mode == "wait":
            await runs.wait(task_id or None)
        if runs is not None and task_id and mode == "cancel":
            runs.cancel(task_id)
            await runs.wait(task_id)
        now = [] if runs is None else runs.tasks()
        found: Json = next((dict(each) for each in now if each["task_id"] == task_id), None) if task_id else None
        if mode == "cancel" and task_id:
            found = {"task_id": task_id, "status": "cancelled"}
        return {"toolUseId": use_id, "status": "success", "content": [{"json": found or {"tasks": cast("Json", now)}}]}
