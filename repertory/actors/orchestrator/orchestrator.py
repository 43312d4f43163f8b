"""The orchestrator of one session: accepts calls, works on one run at a time, and queues the rest.

State: the run, the call that works on it, the queued calls. Fails: when the store refuses for good (the persister fails
too, which restarts this actor) or by a bug; it then starts again from the journal. Pace: its nodes', which are sessions
of their own; runs are worked on in a job, so a cancellation is handled at once. Supervised by its session, as its last
child.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, assert_never

import anyio
from msgspec import Struct

from repertory.actors.between_turns import KeepProgress, RecordSummary, ReportPendingWork, SummarySettled
from repertory.actors.call import (
    BUDGETS,
    AgentMessage,
    Call,
    CallMessage,
    CancelTurn,
    ChangeTimers,
    CompleteTool,
    DeliveriesDue,
    Invocation,
    LookAtSignal,
    LookAtWaits,
    ReplyChannel,
    ServeDeliveries,
    ServeTimers,
    ShowSnapshot,
    TimerMessage,
    TimersDue,
)
from repertory.actors.hooks.calls import fire
from repertory.actors.journal import ActorJournal
from repertory.actors.leases import Gate
from repertory.actors.orchestrator.events import AfterMultiAgentInvocationEvent, BeforeMultiAgentInvocationEvent
from repertory.actors.orchestrator.run_driver import Cut, OrchestratorParts, RunDriver
from repertory.actors.persister import ReadRun
from repertory.actors.stream_channel import StreamChannel
from repertory.actors.timers import NoCaller, TimerAlarm, invocation_of
from repertory.actors.waits import WatchedCallQueue
from repertory.actors.writer import CommitBuffer
from repertory.core.budget import Budget
from repertory.core.limits import NO_LIMITS
from repertory.core.orchestration.calls import BeginRun, CallDecision, GoOn, Replay, decide_call, run_questions, waiting
from repertory.core.orchestration.journals import orchestrator_in
from repertory.core.orchestration.pending_work import PendingRun
from repertory.core.orchestration.plan import frontier_of
from repertory.core.orchestration.run import Run, execution_token, leading_to, visit_of
from repertory.core.run_results import MultiAgentResult, Status
from repertory.core.snapshots.portable import RunFields, checked_agents, run_snapshot_fields
from repertory.core.timers import NOBODY_WAKES, Timer, TimerBook
from repertory.core.turns.turn_start import UserMessages, read_prompt
from repertory.errors import (
    AgentBusy,
    Invalid,
    NodeFailed,
    RepertoryError,
    RunUnfinished,
    TooLarge,
    Unavailable,
)
from repertory.logs import IDS
from repertory.runtime.lifecycle import ExitReason
from repertory.runtime.message import Ask, Next, ReplySlot, carry_on, refuse, reply, traced

if TYPE_CHECKING:
    from repertory.actors.call import DueTurn
    from repertory.actors.turn_log import TurnFollowers
    from repertory.backends.telemetry_ports import CallTelemetry
    from repertory.core.messages import Json


class SaveRun(Struct, Ask[Mapping[str, object]], frozen=True, kw_only=True):
    """Take a snapshot of the run and its nodes, all as of the moment when this is handled. Stops nothing."""


class LoadRun(Struct, Ask[None], frozen=True, kw_only=True):
    """Go on from a snapshot; answered when that is durable. It waits for the running call, not for the queued ones."""

    wanted: RunFields
    token: str | None = None
    """The run's new idempotency token; None keeps its own."""


OrchestratorMessage: TypeAlias = AgentMessage | SaveRun | LoadRun


Finished = Callable[[Run, MultiAgentResult], MultiAgentResult]
"""Turns the general result of a run into the one that callers get."""


class OrchestratorSettings(Struct, frozen=True, kw_only=True):
    """The settings of an orchestrator: its identity and its rules, without its components."""

    orchestrator_id: str
    session_id: str = ""
    reject: bool = False
    """True to refuse a call while another one works."""
    waiting_max: int = 1000
    wakes: bool = False
    """True if the store is told when the session must be woken, because a `Runtime` can do that."""
    marks_questions: bool = True
    """True if questions have ids that never repeat; see `AgentSettings.marks_questions`."""
    gate: Gate | None = None
    """The gate that runs pass before they begin, in a host; their nodes begin within them."""


class RunSummary(Struct, frozen=True, kw_only=True):
    """An orchestrator at one moment."""

    run: int
    """The number of the run."""
    owing: int
    """Executions of nodes that are to come."""
    waiting: int
    """Calls behind the one that works on it."""
    since: float | None
    """The start of that call, on the event loop's clock; None if there is none."""
    asks: bool
    """True if the run waits for a person's answer."""


class OrchestratorActor(WatchedCallQueue[OrchestratorMessage, LoadRun]):
    """Works on one run at a time; `_run` is its state."""

    def __init__(
        self,
        settings: OrchestratorSettings,
        parts: OrchestratorParts,
        finished: Finished,
        buffer: CommitBuffer,
        wall: Callable[[], float],
    ) -> None:
        """`buffer` holds the rows that this orchestrator's persister could not store."""
        super().__init__("runs")
        self._settings = settings
        self._gate, self._gated_session = settings.gate, settings.session_id
        self._parts = parts
        self._finished = finished
        self._buffer = buffer
        self._wall = wall
        self._driver: RunDriver | None = None
        self._beginning: anyio.CancelScope | None = None
        """The scope of the hooks that are told of a new call."""
        self._stop_asked: str | None = None
        """The reason given by a request to end the running call."""
        self._run = Run()
        self._since = 0.0
        self._pending_work = PendingRun(lambda: self._run) if settings.wakes else None
        self._book = TimerBook(wall, NO_LIMITS.sizes.prompt_bytes) if settings.wakes else None
        self._timers: TimerAlarm | None = None
        self._followed: TurnFollowers | None = None
        self._leaves_pending = False
        """True if the running call is cut short by a shutdown, so that its run is to be finished elsewhere."""

    def summary(self) -> object:
        run = self._run
        return RunSummary(
            run=run.number,
            owing=len(run.frontier),
            waiting=len(self._waiting),
            since=None if self._running is None else self._since,
            asks=self._running is None and run.status is Status.INTERRUPTED,
        )

    async def on_start(self) -> None:
        persister = self.context.sibling("persister")
        self._journal = await ActorJournal.open(
            persister, self._wall, buffer=self._buffer, pending_work=self._pending_work, timers=self._book
        )
        fold = self._journal.fold
        self._run = Run.of(fold.nodes.values(), fold.frontier, fold.run)
        if self._run.notes and self._parts.watch is not None:
            self._parts.watch(self._run, None)
        if self._pending_work is not None:
            ready = self._run.over
            self._timers = TimerAlarm(
                self.context, self._journal, self._pending_work, self._begin_due, holds=self._asks, ready=ready
            )
            self._timers.begin()

    def stop_now(self, reason: ExitReason) -> bool:
        """Hand the last records to the persister, which stops after this actor."""
        del reason
        self._journal.hand_over(soon=True)
        return True

    def handle_now(self, message: OrchestratorMessage) -> Next:
        if isinstance(message, CallMessage):
            return self._handle_call(message)
        match message:
            case CancelTurn():
                self._cancel()
                return carry_on()
            case LookAtWaits(outside=outside):
                return self._look_at_waits(outside)
            case SaveRun():
                return self._save()
            case LoadRun():
                return self._take_load(message)
            case ReportPendingWork(again_at=again_at):
                if self._running is None:
                    self._journal.report_pending_work(again_at, rests=self._timers is not None and self._timers.rests)
                return reply(None)
            case TimersDue() | ServeTimers() | ChangeTimers():
                return self._handle_timers(message)
            case (
                ShowSnapshot() | KeepProgress() | LookAtSignal() | CompleteTool() | RecordSummary() | SummarySettled()
            ) | (DeliveriesDue() | ServeDeliveries()):
                return refuse(Invalid("an orchestrator does not handle this message", message=type(message).__name__))
            case _:
                assert_never(message)

    def _take(self, invocation: Invocation, channel: type[ReplyChannel] | type[StreamChannel]) -> Next:
        try:
            prompt = read_prompt(invocation.prompt, invocation.limits.sizes.prompt_bytes, invocation.caller)
        except (Invalid, TooLarge) as error:
            return refuse(error)
        if self._comes_from_running(invocation):
            return refuse(self._waits_for_itself())
        if (circle := self._circle(invocation)) is not None:
            return refuse(circle)
        full = len(self._waiting) >= self._settings.waiting_max
        if self._queue.busy and (full or (invocation.busy == "reject" if invocation.busy else self._settings.reject)):
            return refuse(AgentBusy("a run is worked on", orchestrator=self._settings.orchestrator_id))
        if invocation.following is not None and self._follow_same(invocation):
            return carry_on()
        if invocation.following is not None:
            call = self._followers.new_call(invocation, prompt, self._no_time())
        else:
            call = self._new_call(invocation, prompt, channel)
        if self._queue.busy or (self._gate is not None and self._gate.limited):
            self._watch_time(invocation)
            self._watch_waits()
        self._waiting.append(call)
        self._queue.wake(self.context)
        if call.is_inner:
            self._look_again()
        return carry_on()

    @property
    def _followers(self) -> TurnFollowers:
        if self._followed is None:
            from repertory.actors.turn_log import TurnFollowers  # loaded when used

            self._followed = TurnFollowers(self.context, self._journal, self._abandon, waits=False)
        return self._followed

    def _follow_same(self, invocation: Invocation) -> bool:
        """Have the call read the run of its token, which is worked on or queued. False if none is."""
        token, running = invocation.idempotency_token, self._running
        same = next((call for call in self._waiting if call.invocation.idempotency_token == token), None)
        if running is not None and not running.left:
            own = running.invocation.idempotency_token == token
            same = running if own or (self._driver is not None and token in self._run.tokens) else same
        if same is None:
            return False
        channel = self._followers.follow(same, invocation, self._no_time())
        if same is running and self._driver is not None:
            self._driver.publish_to(channel.publish)
        return True

    def _handle_timers(self, message: TimerMessage) -> Next:
        match message:
            case _ if self._timers is None:
                return refuse(Invalid(NOBODY_WAKES))
            case ChangeTimers():
                return self._timers.change(message)
            case ServeTimers():
                return self._timers.serve()
            case TimersDue():
                self._timers.go_on()
                return carry_on()

    def _asks(self) -> bool:
        """True if the run waits for a person."""
        return bool(waiting(self._run))

    def _begin_due(self, due: DueTurn) -> None:
        assert isinstance(due, Timer)
        prompt = UserMessages(messages=({"role": "user", "content": [{"text": due.prompt}]},))
        self._waiting.append(Call(invocation=invocation_of(due), prompt=prompt, channel=NoCaller()))
        self._queue.wake(self.context)

    def _refuse(self, call: Call, error: RepertoryError) -> None:
        if call.invocation.due is not None and self._timers is not None:
            self._timers.note_outcome(call.invocation.due, error)
        super()._refuse(call, error)

    def _save(self) -> Next:
        """Take the snapshot of the run and of its nodes in one step, so that they agree."""
        if self._refusing:
            return refuse(self._closed())
        run, own = self._run, self._parts.orchestrator_id
        if run.loading:
            return refuse(RunUnfinished("a snapshot is not loaded to its end", run=run.number))
        # Opened in the same step in which the run is copied: no node can begin anything in between.
        cut = self._parts.runner.cut(lambda node, token: visit_of(token, own, run, node))
        run_fields = run_snapshot_fields(own, self._parts.plan.kind, run, {})
        # A drain waits for the reading, which opens nodes of this host.
        self._queue.begin_beside()
        self.context.job(self._read, run_fields, cut, self.context.defer(), name="snapshot")
        return carry_on()

    async def _read(self, run_fields: Mapping[str, object], cut: Cut, slot: ReplySlot[Mapping[str, object]]) -> None:
        try:
            nodes = await cut.read()
        except RepertoryError as error:
            slot.fail(error)
        else:
            slot.reply({**run_fields, "nodes": nodes})
        finally:
            self._queue.end_beside()

    def _waits_for_itself(self) -> AgentBusy:
        text = "the call comes from a node of the running run, so it would wait for itself"
        return AgentBusy(text, orchestrator=self._settings.orchestrator_id)

    def _no_time(self) -> AgentBusy:
        return AgentBusy("other calls took all the time of this one", orchestrator=self._settings.orchestrator_id)

    def _finish(self, at_once: bool) -> Next:
        """Running nodes end normally, or are stopped if `at_once`."""
        self._leaves_pending = self._refusing and self._running is not None
        if self._timers is not None and any(call.invocation.due is not None for call in self._waiting):
            self._timers.give_back()
        self._refuse_waiting()
        if self._timers is not None and self._refusing:
            self._timers.close(at_once=at_once)
        while self._loads:
            self._loads.pop(0)[1].fail(self._closed())
        if at_once:
            self._cancel("shutdown")
        elif self._driver is not None:
            self._driver.halt()
        slot = self.context.defer()

        def end() -> None:
            self._journal.hand_over(soon=True)
            slot.reply(None)

        self._queue.when_idle(end)
        return carry_on()

    def _cancel(self, reason: str = "cancelled") -> None:
        """End the running call, even if none of its nodes has started yet."""
        self._stop_asked = reason
        if self._running is not None:  # It is to end, whether somebody reads its events or not.
            self._running.channel.wait_no_more()
        if self._driver is not None:
            self._driver.stop(reason)
        elif self._beginning is not None:
            self._beginning.cancel()

    def _closed(self) -> Unavailable:
        return Unavailable(
            "the orchestrator is shutting down; its run goes on with the next call",
            orchestrator=self._settings.orchestrator_id,
        )

    async def _load(self, wanted: LoadRun, slot: ReplySlot[None]) -> None:
        """Load a snapshot: the run, as a new one, and then every node. Until all nodes are loaded the run's record says
        so, in case of a crash.
        """
        try:
            await self._journal.catch_up()
            run, own = wanted.wanted.run(), self._parts.orchestrator_id
            run.number, run.begun_at, run.loading = self._run.number + 1, self._wall(), True
            # Tokens of callers outlive their runs: a call that is made again after this load gets its old answer.
            run.earlier = self._run.named_so_far
            if wanted.token is not None:
                run.tokens = (wanted.token,)
            for record in run.records(at=run.begun_at):
                self._journal.add(record)
            self._run = run
            # The run first, marked as half loaded: a process that dies between here and the end leaves a run that calls
            # refuse.
            await self._journal.commit()
            runner, known = self._parts.runner, wanted.wanted.nodes
            try:
                nodes = {node: known.get(node) for node in self._parts.plan.nodes}
                await runner.load(nodes, lambda node, visit: execution_token(own, run, node, visit))
            finally:
                # Nodes are sessions of the host: left alive by a cancelled load, they would be in use for good.
                with anyio.CancelScope(shield=True):
                    await runner.rest()
            run.loading = False
            self._journal.add(run.records(at=self._wall())[0])
            await self._journal.commit(closing=True)
        except RepertoryError as error:
            slot.fail(error)
        else:
            slot.reply(None)

    async def _serve(self, call: Call) -> None:
        due, timers = call.invocation.due, self._timers
        if due is not None and timers is not None and timers.skips(due):
            return
        self._running, self._since = call, self.context.clock()
        self._stop_asked = None if call.invocation.stop is None else "cancelled"
        try:
            find = self._parts.find_telemetry
            telemetry = None if find is None else find()
            work = self._call(call) if telemetry is None else self._call_traced(call, telemetry)
            outcome = await self._outcome(call, work)
            # A run that a shutdown cuts short stays pending, for another process. One that has failed by itself was
            # told to its caller.
            if not self._leaves_pending or isinstance(outcome, NodeFailed):
                if due is None or timers is None:
                    self._journal.call_ended()
                else:
                    timers.note_outcome(due, outcome)
                    self._journal.state_due()
            await call.end(outcome)
        finally:
            self._running = self._driver = self._beginning = None
            with anyio.CancelScope(shield=True):
                await self._parts.runner.rest()
        if timers is not None:
            timers.note_call_ended()

    async def _call_traced(self, call: Call, telemetry: CallTelemetry) -> MultiAgentResult:
        from repertory.backends.telemetry_ports import TracedCall  # loaded when used

        begun = TracedCall(
            owner=self._parts.owner,
            session_id=self._settings.session_id,
            agent_id=orchestrator_in(self._settings.orchestrator_id) or self._settings.orchestrator_id,
            prompt=call.invocation.prompt,
            kind=self._parts.plan.kind,
        )
        with telemetry.begin(begun) as trace, traced(trace):
            result = await self._call(call)
            trace.ended(result)
            return result

    async def _call(self, call: Call) -> MultiAgentResult:
        budget = call.invocation.budget
        counted = Budget() if budget is None else budget.without_bounds()
        # A budget of the run's own, without bounds, which counts what `result.spent` says.
        BUDGETS.set((*BUDGETS.get(), counted))  # In this call's context.
        try:
            result = await self._carried_out(call)
        except NodeFailed as error:
            if isinstance(error.result, MultiAgentResult):
                error.result = replace(error.result, spent=counted.by)
            raise
        return replace(result, spent=counted.by)

    async def _carried_out(self, call: Call) -> MultiAgentResult:
        IDS.set({"session": self._buffer.session_id, "agent": self._buffer.agent_id})
        await self._journal.catch_up()
        invocation, hooks = call.invocation, self._parts.hooks
        owner, state = self._parts.owner, invocation.invocation_state
        decision = self._decide(call, invocation.idempotency_token)
        if isinstance(decision, Replay):
            run = self._run
            # The answer of an earlier run needs the whole journal, which is rare: callers ask for the last one.
            if decision.run != run.number:
                run = await self.context.sibling("persister").ask(ReadRun(number=decision.run), timeout_s=math.inf)
            if run is not None:
                return self._result(run, resumed=False, replayed=True)
            decision = self._decide(call, None)  # A fork does not have the runs of its source.
        assert not isinstance(decision, Replay)
        if hooks.in_order.get(BeforeMultiAgentInvocationEvent):
            with anyio.CancelScope(deadline=invocation.deadline) as self._beginning:
                await fire(hooks, BeforeMultiAgentInvocationEvent(source=owner, invocation_state=state))
            if self._beginning.cancelled_caught:
                self._stop_asked = self._stop_asked or "limit_time"
        try:
            return await self._go(call, decision)
        finally:
            if hooks.in_order.get(AfterMultiAgentInvocationEvent):
                event = AfterMultiAgentInvocationEvent(source=owner, invocation_state=state)
                await fire(hooks, event, observed=True)

    def _decide(self, call: Call, token: str | None) -> CallDecision:
        resume = call.invocation.resume
        if call.invocation.due is not None and token not in self._run.tokens:
            resume = False  # Nobody comes back to a run that was left unfinished, and the timer is to go on.
        begins = call.invocation.following is None or call.invocation.following.begins
        return decide_call(self._run, call.prompt, now=self._wall(), token=token, resume=resume, begins=begins)

    async def _go(self, call: Call, decision: BeginRun | GoOn) -> MultiAgentResult:
        invocation = call.invocation
        if self._pending_work is not None:
            self._pending_work.call_began(self._wall())
        if isinstance(decision, BeginRun):
            plan, token = self._parts.plan, invocation.idempotency_token
            tokens = () if token is None else (token,)
            record = self._run.begun(
                decision.task,
                plan.entries,
                at=self._wall(),
                kind=plan.kind,
                tokens=tokens,
                edges=self._parts.edges,
            )
            record = leading_to(record, record.frontier, plan.startable(frontier_of(record.frontier)))
            self._run = Run.of([record], record.frontier)
            self._journal.add(record)
            if isinstance(invocation.due, Timer):
                self._journal.fire(invocation.due)
            await self._journal.commit()  # Nodes name their work by the run, so the run must be durable before it.
        else:
            self._check_nodes()
            if decision.token is not None:
                self._run.called(decision.token)
                self._journal.add(self._run.restated(at=self._wall()))
        self._journal.state_due()
        if isinstance(decision, GoOn) and (states := self._run.left):
            await self._take_over(states)
        own = self._settings
        marks_as = own.session_id if own.marks_questions else None
        driver = RunDriver(self._parts, self._run, self._journal, invocation, call.channel.publish, marks_as)
        self._driver = driver
        # Asked for while hooks ran, before there was a driver.
        if self._stop_asked is not None:
            driver.stop(self._stop_asked)
        await driver.drive(decision if isinstance(decision, GoOn) else GoOn())
        await self._journal.commit(closing=True)
        if driver.error is not None:
            if isinstance(driver.error, NodeFailed):
                driver.error.result = self._result(self._run, resumed=isinstance(decision, GoOn))
            raise driver.error
        if self._refusing and not self._run.over and self._run.status is not Status.INTERRUPTED:
            raise self._closed()
        resumed = isinstance(decision, GoOn)
        return self._result(self._run, resumed=resumed, reason=driver.reason, limit=driver.limit)

    async def _take_over(self, states: Mapping[str, Mapping[str, Json]]) -> None:
        """Load the state in which another program left agents that wait."""
        run, own, runner, nodes = self._run, self._parts.orchestrator_id, self._parts.runner, self._parts.plan.nodes
        here = {node: fields for node, fields in states.items() if node in nodes and runner.kind_of(node) == "agent"}
        await runner.load(checked_agents(here), lambda node, visit: execution_token(own, run, node, visit))
        run.taken_over()
        for record in run.records(at=self._journal.wall()):
            if record.node in states:
                self._journal.add(record)
        await self._journal.commit()

    def _check_nodes(self) -> None:
        """Raise if the run is of another kind, or has unfinished work for a node that no longer exists."""
        kind = self._run.kind
        if kind != self._parts.plan.kind:
            raise Invalid(f"the unfinished run is that of a {kind}; use another id, or pass resume=False")
        missing = sorted(set(self._run.frontier) - set(self._parts.plan.nodes))
        if missing:
            raise Invalid(
                "the run goes on with nodes that this orchestrator does not have; add them, or pass resume=False",
                missing=missing,
                run=self._run.number,
            )

    def _result(
        self,
        run: Run,
        *,
        resumed: bool,
        replayed: bool = False,
        reason: str | None = None,
        limit: str | None = None,
    ) -> MultiAgentResult:
        own = self._settings
        interrupts = tuple(run_questions(run, own.session_id if own.marks_questions or own.wakes else None))
        status = run.status
        if status is Status.EXECUTING or (reason is not None and not run.over):  # The call was stopped.
            status = Status.INTERRUPTED
        elif limit is not None:
            status = Status.FAILED
        result = MultiAgentResult(
            status=status,
            results=run.results,
            accumulated_usage=run.usage,
            accumulated_metrics={"latencyMs": run.latency_ms},
            execution_count=run.executions,
            execution_time=run.elapsed_ms,
            interrupts=interrupts,
            run=run.number,
            resumed=resumed,
            replayed=replayed,
            reason=run.reason or reason or limit,
        )
        return self._finished(run, result)
