"""Executes one run of an orchestrator: starts the nodes that the plan allows, and records their ends and what follows.

A driver lives for one call, inside a job of the orchestrator's actor. Nodes are its child tasks: a node's failure stops
no running node, it only prevents new ones. A node's end does not wait for the store: if a crash loses it, the node is
begun again under the same token, and its own journal returns the answer. Only what could not be recovered waits for the
store: a person's answers, and a node that is about to run once more.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import anyio
from msgspec import Struct

from repertory.actors.call import BUDGET_OWNER, trace_here
from repertory.actors.hooks.calls import check_asked, fire
from repertory.actors.orchestrator.events import AfterNodeCallEvent, BeforeNodeCallEvent
from repertory.core.interrupts import Questions, ids_by_name, step_mark, unmarked
from repertory.core.orchestration.calls import GoOn, answers_about, asked_by_hook, questions_of, still_answered, waiting
from repertory.core.orchestration.plan import frontier_of
from repertory.core.orchestration.run import Ended, execution_token, leading_to
from repertory.core.result import AgentResult
from repertory.core.run_results import MultiAgentResult, Status, node_result_of
from repertory.errors import NodeFailed, RepertoryError

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from repertory.actors.call import Invocation
    from repertory.actors.hooks.events import HookRegistry
    from repertory.actors.journal import ActorJournal
    from repertory.backends.telemetry_ports import FindTelemetry
    from repertory.core.interrupts import Interrupt
    from repertory.core.journal.records import NodeChanged
    from repertory.core.messages import Json, Prompt
    from repertory.core.orchestration.plan import Plan
    from repertory.core.orchestration.run import NodeNote, Run
    from repertory.core.result import TurnEvent
    from repertory.core.run_results import NodeOutcome, NodeResult
    from repertory.core.snapshots.portable import NodeFields

# What an orchestrator asks of a node runner.

OnFailure = Literal["fail", "skip"]
"""The effect of a node's final failure on its run: `fail` ends the call with its error, and the run can be continued;
`skip` goes on with the next nodes, as if the node had no output.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePolicy:
    """The time that a node has, and the consequence of its failure.

    Args:
        on_failure: `fail` ends the run when the node fails; `skip` goes on without it.
    """

    timeout_s: float | None = None
    """Seconds for one attempt; None sets no bound."""
    retries: int = 0
    """Further attempts after a failure, in each call."""
    on_failure: OnFailure = "fail"


class NodeCall(Struct, frozen=True, kw_only=True):
    """One execution of a node."""

    node: str
    prompt: Prompt
    """The node's prompt, or the responses to its interrupts."""
    token: str
    """The idempotency token, the same for one execution of one run, also after a crash."""
    invocation_state: dict[str, Any]
    budget_owner: str
    """The name that budgets record its spending under when it has no id of its own."""
    again: bool = False
    """True if the node has ended in this run before."""
    answers: bool = False
    """True if the prompt holds responses to its interrupts."""
    publish: Callable[[TurnEvent], Awaitable[None]] | None = None
    """Sends one event; None if no caller reads events."""


class NodeEnd(Struct, frozen=True, kw_only=True):
    """The end of one execution."""

    outcome: NodeOutcome | None
    """The outcome; None: a shutdown or a budget cut the node short, and it must run again."""
    stopped: str | None = None
    """The limit of the budget that cut it short."""
    context: Mapping[str, Json] = {}
    """The values that the node leaves for other nodes, by name."""
    handed: tuple[str, str] | None = None
    """The node that gets control, and the message for it."""


NameOf: TypeAlias = "Callable[[str, int], str]"
"""Gives the token of a node's execution, counted from 0."""
VisitOf: TypeAlias = "Callable[[str, str], int | None]"
"""Gives the execution that a token belongs to; None if it belongs to none of the run."""


class Cut(Protocol):
    """The nodes at one moment."""

    async def read(self) -> Mapping[str, object]:
        """The snapshots of all nodes that have done anything. Errors: those of opening a node."""
        ...


class NodeRunner(Protocol):
    """Runs nodes."""

    def kind_of(self, node: str) -> str:
        """`agent` or `multiagent`, for events."""
        ...

    async def run(self, call: NodeCall) -> NodeEnd:
        """Execute a node. Raises nothing: errors are in the outcome. If cancelled, its turn ends with a valid history
        and can be continued.
        """
        ...

    def cut(self, visit_of: VisitOf) -> Cut:
        """The nodes as of now. A node that is about to begin another execution before it was read is read first, so no
        node is further than the run's own record says.
        """
        ...

    async def load(self, nodes: Mapping[str, NodeFields | None], name_of: NameOf) -> None:
        """Load these nodes from a snapshot, or (None) reset them as they were built. Returns when that is durable."""
        ...

    async def done(self, node: str) -> None:
        """The node has ended; it need not stay alive if it cannot run again. A cancellation waits for this."""
        ...

    async def rest(self) -> None:
        """The call is over: keep no node alive. A cancellation waits for this."""
        ...


_BACKOFF_S, _BACKOFF_MAX_S = 0.5, 30.0
_NO_POLICY = NodePolicy()


StatusOf: TypeAlias = "Callable[[str], Status | None]"
"""Gives the status of a node that runs; None for one that does not."""


class OrchestratorParts(Struct, frozen=True, kw_only=True):
    """The components of an orchestrator."""

    orchestrator_id: str
    plan: Plan
    runner: NodeRunner
    hooks: HookRegistry
    policies: Mapping[str, NodePolicy] = {}
    """Policies by node; a node without one fails the run when it fails."""
    edges: Mapping[str, Sequence[str]] = {}
    """The targets of each node's edges, of a graph that is drawn."""
    owner: Any = None
    """The orchestrator that users know; hooks get it as `source`."""
    find_telemetry: FindTelemetry | None = None
    """Asked at the start of each call; None traces nothing."""
    watch: Callable[[Run, StatusOf | None], None] | None = None
    """Called with the run and `RunDriver.status_of` when a call begins to work on it, and with None when it stops."""


class RunDriver:
    """One call's work on a run."""

    def __init__(
        self,
        parts: OrchestratorParts,
        run: Run,
        journal: ActorJournal,
        invocation: Invocation,
        publish: Callable[[TurnEvent], Awaitable[None]] | None,
        marks_as: str | None,
    ) -> None:
        """`run` has begun already, maybe in an earlier call. `marks_as`: the session, for ids of questions that never
        repeat; None for ids of the SDK.
        """
        self._parts = parts
        self._run = run
        self._journal = journal
        self._invocation = invocation
        self._publish = publish
        self._marks_as = marks_as
        self._frontier = frontier_of(run.frontier)
        self._answers: Mapping[str, Mapping[str, Json]] = {}
        self._expired: frozenset[str] = frozenset()
        self._parked: set[str] = set()
        """Nodes that wait for a person's answers."""
        self._scope = anyio.CancelScope()
        self._group: TaskGroup | None = None
        self._began = 0.0
        self._elapsed_before = run.elapsed_ms
        self._begun: set[str] = set()
        """The nodes that have begun, of those that run."""
        self._following: dict[str, tuple[str, ...]] = {}
        """The nodes that follow, by the node whose end is recorded while its hooks still run."""
        self._handing_over = False
        """True if a `hand_over` of new records is due."""
        self._door = anyio.Lock()
        """Nodes wait for the store one after the other."""
        self._refused: RepertoryError | None = None
        """The store's error, for all nodes that wait for it."""
        self._halted = anyio.Event()
        """The event that is set when no further node may start."""
        self._ends_with: str | None = None
        """The limit that ends the run."""
        self.reason: str | None = None
        """The reason why the call ended before the run was over; None if it did not."""
        self.limit: str | None = None
        """The limit that ended the run of a node, which must run again."""
        self.error: RepertoryError | None = None

    async def drive(self, going_on: GoOn) -> None:
        """Work until no node runs and none can start.

        Errors: the store's, if a node has to wait for it; that node must run again.
        """
        watch = self._parts.watch
        if watch is None:
            return await self._drive(going_on)
        watch(self._run, self.status_of)
        try:
            await self._drive(going_on)
        finally:
            watch(self._run, None)

    def status_of(self, node: str) -> Status | None:
        """`executing`, or `dispatched` while it waits for the store; None for a node that has ended, or has not been
        started.
        """
        if node not in self._frontier.running or node in self._following:
            return None
        return Status.EXECUTING if node in self._begun else Status.DISPATCHED

    async def _drive(self, going_on: GoOn) -> None:
        run, plan = self._run, self._parts.plan
        self._answers, self._expired = going_on.answers, going_on.expired
        # They stay in the frontier, but asking them again would only bring the same question.
        self._parked = waiting(run).keys() - self._answers.keys() - self._expired
        if self._answers:
            await self._keep_answers()
        self._began = anyio.current_time()
        # What earlier calls have used of the run's time counts; the pauses between them do not.
        deadline = self._began + plan.time_max_s - run.elapsed_ms / 1000
        self._scope.deadline = min(deadline, self._invocation.deadline)
        with self._scope:
            async with anyio.create_task_group() as self._group:
                self._start_ready()
        # Whose deadline it was decides: the run's own ends it for good, the caller's only this call.
        if self._scope.cancelled_caught and self.reason is None:
            if deadline <= self._invocation.deadline:
                self._end_run(f"Execution timed out: {plan.time_max_s:g}s")
            else:
                self.reason = "limit_time"
        elif self._ends_with is not None and not self._scope.cancel_called:
            self._end_run(self._ends_with)
        elapsed_ms = self._elapsed_ms()
        if not run.over and elapsed_ms > run.elapsed_ms:
            self._put(run.restated(at=self._journal.wall(), elapsed_ms=elapsed_ms))
        # After the nodes have ended: what they did until then is recorded all the same.
        if self._refused is not None:
            self._journal.hand_over(soon=True)
            raise self._refused

    async def _keep_answers(self) -> None:
        """Wait until a person's answers are stored, before a node uses them, so that the person is not asked again."""
        given = {key: value for answers in self._answers.values() for key, value in answers.items()}
        self._put(self._run.restated(at=self._journal.wall(), responses={**self._run.responses, **given}))
        await self._journal.commit()

    def _put(self, record: NodeChanged) -> None:
        self._run.apply(record)
        self._journal.add(record)

    def stop(self, reason: str) -> None:
        """End the call now. Running nodes are cut short and must run again."""
        self._halted.set()
        self.reason = self.reason or reason
        self._scope.cancel()

    def publish_to(self, publish: Callable[[TurnEvent], Awaitable[None]]) -> None:
        """Send the run's events there from now on."""
        self._publish = publish

    def halt(self) -> None:
        """Start no further node; the call ends when the running ones have ended."""
        self._halted.set()

    def _end_run(self, reason: str) -> None:
        self.reason = reason
        self._put(self._run.stopped(reason, at=self._journal.wall(), elapsed_ms=self._elapsed_ms()))

    def _elapsed_ms(self) -> int:
        return self._elapsed_before + round((anyio.current_time() - self._began) * 1000)

    def _start_ready(self) -> None:
        for node in () if self._halted.is_set() else self._parts.plan.startable(self._frontier):
            if node in self._parked:
                continue
            # Nodes whose hooks still run after their end have counted as ends already.
            running = len(self._frontier.running) - len(self._following)
            reason = self._parts.plan.end_reason(self._run, running)
            if reason is not None:
                self._ends_with = reason
                self._halted.set()
                break
            self._frontier = self._frontier.started(node)
            self._begun.discard(node)
            assert self._group is not None
            self._group.start_soon(self._work, node)

    async def _work(self, node: str) -> None:
        # Nearly never waits: only a second execution needs the first one's end on stable storage.
        if not await self._may_begin(node):
            self._frontier = self._frontier.stopped(node)
            return
        self._begun.add(node)
        began = anyio.current_time()
        kind = self._parts.runner.kind_of(node)
        await self._tell({"type": "multiagent_node_start", "node_id": node, "node_type": kind})
        try:
            trace = trace_here()
            attributes = {"repertory.node.id": node, "repertory.node.kind": kind}
            with nullcontext() if trace is None else trace.work(f"execute_node {node}", attributes):
                end = await self._attempts(node)
        except RepertoryError as error:  # From a condition or a guard: the node has not run.
            end = NodeEnd(outcome=error)
        # Cut short and not ended: it stays in the frontier, and runs again under the same token.
        if end.outcome is None:
            self._frontier = self._frontier.stopped(node)
            self._halted.set()
            self.reason = self.reason or end.stopped
            return
        result = await self._end(node, end, node_result_of(end.outcome, round((anyio.current_time() - began) * 1000)))
        # Only now, when guards have let the end pass: what a guard withholds starts no other node.
        following = self._go_on_from(node)
        if result.status is Status.INTERRUPTED:
            asks = questions_of(node, result)
            await self._tell({"type": "multiagent_node_interrupt", "node_id": node, "interrupts": asks})
        else:
            await self._tell({"type": "multiagent_node_stop", "node_id": node, "node_result": result})
        if following:
            event: TurnEvent = {"type": "multiagent_handoff", "from_node_ids": [node], "to_node_ids": list(following)}
            if end.handed is not None:
                event["message"] = end.handed[1]
            await self._tell(event)
        if node not in self._frontier.at_rest and self._frontier.running - set(following):
            await self._parts.runner.done(node)  # While others run; the last ones are done together at the end.

    async def _may_begin(self, node: str) -> bool:
        """True if the node may begin, after waiting for the store where needed. Nodes do this one after the other, so a
        later one finds the store's work done.
        """
        note = self._run.notes.get(node)
        again = note is not None and note.visits > 0
        # A first execution that a crash loses begins again under its token, and its own journal has the answer.
        if not again and not self._journal.full:
            return True
        async with self._door:
            try:
                if self._halted.is_set():
                    return False
                if again:  # Its journal may drop the previous execution's answer when it begins anew.
                    await self._journal.commit()
                elif self._journal.full:
                    self._journal.hand_over(soon=True)
                    await self._journal.prove()
            except RepertoryError as error:
                self._refused = error
                self._halted.set()
        return not self._halted.is_set()

    async def _end(self, node: str, end: NodeEnd, result: NodeResult) -> NodeResult:
        """Record the end and call the hooks. If a guard raises, the result is withheld: the node has failed with that
        error, and its policy applies.
        """
        run, hooks = self._run, self._parts.hooks
        before, answers = run.notes.get(node), run.responses
        self._note(node, result, end, before)
        if result.status is Status.INTERRUPTED or not hooks.in_order.get(AfterNodeCallEvent):
            return result
        state = self._invocation.invocation_state
        try:
            await fire(hooks, AfterNodeCallEvent(source=self._parts.owner, node_id=node, invocation_state=state))
        except RepertoryError as error:
            if self._following.pop(node, None) is not None:
                run.forget_end(node, before)
                # Recorded already as ended; the record that follows replaces it, and the sums go back with the note.
                if run.responses != answers:
                    self._put(run.restated(at=self._journal.wall(), responses=answers))
                result = replace(result, result=error, status=Status.FAILED)  # What it has cost still counts.
                self._note(node, result, NodeEnd(outcome=error), before)
        return result

    def _note(self, node: str, result: NodeResult, end: NodeEnd, before: NodeNote | None) -> None:
        """Record the node's end and what follows. `before`: the node's state until then."""
        run = self._run
        policy = self._parts.policies.get(node, _NO_POLICY)
        done = result.status is Status.COMPLETED or (result.status is Status.FAILED and policy.on_failure == "skip")
        record = run.ended(
            node,
            Ended(result=result, done=done, context=end.context, handed=end.handed),
            run.frontier,
            at=self._journal.wall(),
            elapsed_ms=self._elapsed_ms(),
        )
        run.apply(record, result)
        # Applied before conditions are asked, which look at the run with this result in it.
        if done:
            try:
                self._following[node] = self._parts.plan.follow(run, node, self._invocation.invocation_state)
            except RepertoryError as error:  # Its end is not recorded: its own journal returns it again.
                run.forget_end(node, before)
                self._frontier = self._frontier.stopped(node)
                self._fail(node, error)
                return
        else:
            self._frontier = self._frontier.stopped(node)
        frontier = self._frontier
        # A record states the frontier of the whole run: what another node's end leads to must be in it.
        for ended, targets in self._following.items():  # Also those whose hooks still run.
            frontier = frontier.ended(ended, targets)
        at_rest = frontier.at_rest
        record = leading_to(record, at_rest, self._parts.plan.startable(frontier_of(at_rest)))
        run.apply(record, result)
        self._journal.add(record)
        if run.responses:
            counting = still_answered(node, run, done=done, asks=questions_of(node, result))
            if counting != run.responses:
                self._put(run.restated(at=self._journal.wall(), responses=counting))
        self._hand_over()
        if result.status is Status.INTERRUPTED:
            self._parked.add(node)
        # The run of a nested orchestrator reached a limit of its own: its next call goes on with another one, so this
        # run is not failed.
        elif not done and self.error is None and (limit := _limit_in(result)) is not None:
            self.limit = self.limit or f"{node}: {limit}"
            self._halted.set()
        elif not done:
            self._fail(node, _why(result))

    def _go_on_from(self, node: str) -> tuple[str, ...]:
        """Start the nodes that follow, and return them."""
        targets = self._following.pop(node, None)
        if targets is not None:
            self._frontier = self._frontier.ended(node, targets)
        self._start_ready()
        return targets or ()

    def _hand_over(self) -> None:
        """Hand over once for all nodes that end now: the persister's mailbox may lack room for one message each."""
        if len(self._frontier.running) <= 1:
            self._journal.hand_over()
        elif not self._handing_over:
            self._handing_over = True
            assert self._group is not None
            self._group.start_soon(self._hand_over_now)

    async def _hand_over_now(self) -> None:
        self._handing_over = False
        self._journal.hand_over()

    def _fail(self, node: str, why: Exception | str) -> None:
        """Fail the run with this error; running nodes go on to their end."""
        self._halted.set()
        if self.error is None:
            self.error = NodeFailed(f"a node failed: {why}", node=node, orchestrator=self._parts.orchestrator_id)
            self.error.__cause__ = why if isinstance(why, Exception) else None

    async def _attempts(self, node: str) -> NodeEnd:
        policy = self._parts.policies.get(node, _NO_POLICY)
        refusal = await self._refusal(node)
        if isinstance(refusal, str):
            await self._tell({"type": "multiagent_node_cancel", "node_id": node, "message": refusal})
            return NodeEnd(outcome=NodeFailed(refusal, node=node))
        if refusal:
            return NodeEnd(outcome=AgentResult(stop_reason="interrupt", message=None, interrupts=[*refusal]))
        call = self._call(node)
        for attempt in range(policy.retries + 1):
            end: NodeEnd | None = None
            # A new bound for each attempt, around the wait and not within the node, which may hang.
            with anyio.CancelScope(deadline=anyio.current_time() + (policy.timeout_s or math.inf)):
                end = await self._parts.runner.run(call)
            if end is None:
                text = f"Node '{node}' execution timed out after {policy.timeout_s:g}s"
                end = NodeEnd(outcome=NodeFailed(text, node=node))
            if attempt == policy.retries or end.outcome is None:
                return end
            if node_result_of(end.outcome, 0).status is not Status.FAILED:
                return end
            with anyio.move_on_after(min(_BACKOFF_S * 2 ** min(attempt, 10), _BACKOFF_MAX_S)):
                # A pause that ends early when the call is to end.
                await self._halted.wait()
                return NodeEnd(outcome=None)  # It is to be tried again, and no other node begins in this call.
        raise AssertionError("the last attempt returns")

    def _call(self, node: str) -> NodeCall:
        run, state = self._run, self._invocation.invocation_state
        note = run.notes.get(node)
        prompt = self._parts.plan.input_for(run, node, state)
        visits = 0 if note is None else note.visits
        # Responses instead of the input: the node goes on among its tools.
        responses: list[Any] = [
            {"interruptResponse": {"interruptId": interrupt, "response": response}}
            for interrupt, response in (answers_about(node, run) if run.responses else {}).items()
        ]

        async def forward(event: TurnEvent) -> None:
            await self._tell({"type": "multiagent_node_stream", "node_id": node, "event": event})

        return NodeCall(
            node=node,
            prompt=responses or (None if node in self._expired else prompt),
            token=execution_token(self._parts.orchestrator_id, run, node, visits),
            invocation_state=state,
            budget_owner=f"{BUDGET_OWNER.get() or self._parts.orchestrator_id}.{node}",
            again=visits > 0,
            answers=bool(responses),
            publish=None if self._publish is None else forward,
        )

    async def _refusal(self, node: str) -> str | tuple[Interrupt, ...] | None:
        """The reason why a hook refuses the node, or the questions for a person to answer first; None runs it."""
        hooks, state = self._parts.hooks, self._invocation.invocation_state
        note = self._run.notes.get(node)
        if node in self._expired and note is not None and asked_by_hook(note.result):
            return "nobody answered in time"
        if not hooks.in_order.get(BeforeNodeCallEvent):
            return None
        # A question that was answered before a crash keeps its id, and so its answer.
        known = {unmarked(each): each for each in self._run.responses}
        if note is not None:
            known |= ids_by_name(questions_of(node, note.result))
        token = execution_token(self._parts.orchestrator_id, self._run, node, 0 if note is None else note.visits)

        def mark() -> str:
            return "" if self._marks_as is None else step_mark(self._marks_as, token)

        questions = Questions(self._journal.wall, self._run.responses, known=known, mark=mark)
        event = BeforeNodeCallEvent(source=self._parts.owner, node_id=node, invocation_state=state, questions=questions)
        asked: list[Interrupt] = []
        await fire(hooks, event, asked=asked)
        if asked:
            check_asked(event, asked, questions)
            return tuple(asked)
        cancel = event.cancel_node
        return (cancel if isinstance(cancel, str) else "node cancelled by user") if cancel else None

    async def _tell(self, event: TurnEvent) -> None:
        if self._publish is not None:
            await self._publish(event)


def _limit_in(result: NodeResult) -> str | None:
    """The limit that ended the node's own run; None if the node failed for another reason."""
    outcome = result.result
    return outcome.reason if isinstance(outcome, MultiAgentResult) else None


def _why(result: NodeResult) -> Exception | str:
    """The node's error, or the limit that ended it."""
    outcome = result.result
    if isinstance(outcome, AgentResult):
        return outcome.stop_reason
    return outcome if isinstance(outcome, Exception) else outcome.reason or outcome.status.value
