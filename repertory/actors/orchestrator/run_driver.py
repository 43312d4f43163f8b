"""Driving one run of an orchestrator: starts what the plan says may start, and writes down what ended and what follows.

A driver lives for one call, inside a job of the orchestrator's actor. Nodes are its child tasks: one that fails stops
nothing that runs, only what has not started. The end of a node does not wait for the store: one that is lost with the
process is begun again under the same token, and its own journal gives the answer that it has. What waits is what
nobody could find out again: answers of people, and a node that is about to work once more.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import anyio

from repertory.actors.call import PAYER
from repertory.actors.hooks.calls import check_asked, fire
from repertory.actors.orchestrator.events import AfterNodeCallEvent, BeforeNodeCallEvent
from repertory.core.interrupts import Questions
from repertory.core.orchestration.calls import GoOn, answers_about, asked_by_hook, questions_of, still_answered, waiting
from repertory.core.orchestration.plan import frontier_of
from repertory.core.orchestration.results import MultiAgentResult, Status, node_result_of
from repertory.core.orchestration.run import Ended, execution_token, leading_to
from repertory.core.result import AgentResult
from repertory.errors import NodeFailed, RepertoryError

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from repertory.actors.call import Invocation
    from repertory.actors.hooks.registry import HookRegistry
    from repertory.actors.journal import ActorJournal
    from repertory.core.interrupts import Interrupt
    from repertory.core.journal.records import NodeChanged
    from repertory.core.messages import Json, Prompt
    from repertory.core.orchestration.plan import Plan
    from repertory.core.orchestration.results import NodeOutcome, NodeResult
    from repertory.core.orchestration.run import NodeNote, Run
    from repertory.core.result import TurnEvent
    from repertory.core.snapshots.portable import NodeFields

# What an orchestrator asks of whoever runs its nodes.

OnFailure = Literal["fail", "skip"]
"""What a node that failed for good does to its run: `fail` ends the call with its error, and the run can be gone on
with; `skip` goes on with what comes after it, as if it had nothing to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePolicy:
    """What to do about a node that takes too long, or fails."""

    timeout_s: float | None = None
    """Of one attempt."""
    retries: int = 0
    """How often it is tried again, in each call."""
    on_failure: OnFailure = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCall:
    """One execution of a node."""

    node: str
    prompt: Prompt
    """What it is told, or answers to what it asked."""
    token: str
    """The same for the same execution of the same run, whatever happens in between."""
    invocation_state: dict[str, Any]
    budget_owner: str
    """Under which name budgets have what it uses when it was given no id."""
    again: bool = False
    """Whether it has done its work in this run before."""
    answers: bool = False
    """Whether the prompt answers what it asked."""
    publish: Callable[[TurnEvent], Awaitable[None]] | None = None
    """Takes what happens on the way; None when nobody looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnd:
    """What an execution led to."""

    outcome: NodeOutcome | None
    """None: it was cut short, by a shutdown or a budget, and still owes its work."""
    stopped: str | None = None
    """Which bound of a budget has cut it short."""
    context: Mapping[str, Json] = field(default_factory=dict[str, "Json"])
    """What it leaves for other nodes."""
    handed: tuple[str, str] | None = None
    """Whom it gives control to, and with which words."""


NameOf: TypeAlias = "Callable[[str, int], str]"
"""The token of a node's execution, counted from 0."""
VisitOf: TypeAlias = "Callable[[str, str], int | None]"
"""Which execution of the node a token is; None when it is none of the run."""


class Cut(Protocol):
    """What nodes are at one moment."""

    async def read(self) -> Mapping[str, object]:
        """What a snapshot says of each node that has done anything. Errors: what opening a node meets."""
        ...


class NodeRunner(Protocol):
    """Runs nodes."""

    def kind_of(self, node: str) -> str:
        """`agent` or `multiagent`, for events."""
        ...

    async def run(self, call: NodeCall) -> NodeEnd:
        """Execute a node. Cancelled, its turn ends with a valid history and can be gone on with. Raises nothing: what
        went wrong is the outcome.
        """
        ...

    def cut(self, visit_of: VisitOf) -> Cut:
        """What nodes are as of now. One that begins another execution before it was read is read first, so none is
        further on than its end or its beginning in what the orchestrator knows now.
        """
        ...

    async def load(self, nodes: Mapping[str, NodeFields | None], name_of: NameOf) -> None:
        """Have these nodes be what a snapshot says of them, or (None) what they were built with. Returns when that is
        durable.
        """
        ...

    async def done(self, node: str) -> None:
        """The node owes no work now: one that cannot come to any again need not stay alive. Cancellation waits for
        it.
        """
        ...

    async def rest(self) -> None:
        """The call is over: keep no node alive. Cancellation waits for it."""
        ...


_BACKOFF_S, _BACKOFF_MAX_S = 0.5, 30.0
_NO_POLICY = NodePolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorParts:
    """What an orchestrator is made of."""

    orchestrator_id: str
    plan: Plan
    runner: NodeRunner
    hooks: HookRegistry
    policies: Mapping[str, NodePolicy] = field(default_factory=dict[str, NodePolicy])
    """By node; the others fail their run when they fail."""
    owner: Any = None
    """The orchestrator that users know; hooks get it as `source`."""
    watch: Callable[[Run, bool], None] | None = None
    """Is told of the run that a call begins to work on, and (False) when it works on it no more."""


class RunDriver:
    """One call's work on a run."""

    def __init__(
        self,
        parts: OrchestratorParts,
        run: Run,
        journal: ActorJournal,
        invocation: Invocation,
        publish: Callable[[TurnEvent], Awaitable[None]] | None,
    ) -> None:
        """`run` has begun, or is gone on with."""
        self._parts = parts
        self._run = run
        self._journal = journal
        self._invocation = invocation
        self._publish = publish
        self._frontier = frontier_of(run.frontier)
        self._answers: Mapping[str, Mapping[str, Json]] = {}
        self._expired: frozenset[str] = frozenset()
        self._parked: set[str] = set()
        """Nodes that wait for answers."""
        self._scope = anyio.CancelScope()
        self._group: TaskGroup | None = None
        self._began = 0.0
        self._elapsed_before = run.elapsed_ms
        self._following: dict[str, tuple[str, ...]] = {}
        """What follows nodes whose end is on record, while hooks still look at it."""
        self._handing_over = False
        """Whether what was put on record is about to go to the persister."""
        self._door = anyio.Lock()
        """Nodes wait here for the store."""
        self._refused: RepertoryError | None = None
        """What the store has answered them."""
        self._halted = anyio.Event()
        """Set when nothing else is to start."""
        self._ends_with: str | None = None
        """The limit that ends the run."""
        self.reason: str | None = None
        """Why the call ended before the run was over."""
        self.limit: str | None = None
        """The limit that has ended the run of a node, which owes its work."""
        self.error: RepertoryError | None = None
        """What the call fails with."""

    async def drive(self, going_on: GoOn) -> None:
        """Work until nothing runs and nothing can start.

        Errors: what the store refuses with, when a node has to wait for it; that node owes its work still.
        """
        watch = self._parts.watch
        if watch is None:
            return await self._drive(going_on)
        watch(self._run, True)
        try:
            await self._drive(going_on)
        finally:
            watch(self._run, False)

    async def _drive(self, going_on: GoOn) -> None:
        run, plan = self._run, self._parts.plan
        self._answers, self._expired = going_on.answers, going_on.expired
        self._parked = waiting(run).keys() - self._answers.keys() - self._expired
        await self._keep_answers()
        self._began = anyio.current_time()
        deadline = self._began + plan.time_max_s - run.elapsed_ms / 1000
        self._scope.deadline = min(deadline, self._invocation.deadline)
        with self._scope:
            async with anyio.create_task_group() as self._group:
                self._start_ready()
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
        if self._refused is not None:
            self._journal.hand_over(soon=True)
            raise self._refused

    async def _keep_answers(self) -> None:
        """Have them on record before anybody goes on with them: whoever has answered is not asked again."""
        given = {key: value for answers in self._answers.values() for key, value in answers.items()}
        if given:
            self._put(self._run.restated(at=self._journal.wall(), responses={**self._run.responses, **given}))
            await self._journal.commit()

    def _put(self, record: NodeChanged) -> None:
        self._run.apply(record)
        self._journal.add(record)

    def stop(self, reason: str) -> None:
        """End the call now. Nodes that run are cut short and still owe their work."""
        self._halted.set()
        self.reason = self.reason or reason
        self._scope.cancel()

    def halt(self) -> None:
        """Start nothing else; the call ends when what runs has ended."""
        self._halted.set()

    def _end_run(self, reason: str) -> None:
        """A limit ends the run for good."""
        self.reason = reason
        self._put(self._run.stopped(reason, at=self._journal.wall(), elapsed_ms=self._elapsed_ms()))

    def _elapsed_ms(self) -> int:
        return self._elapsed_before + round((anyio.current_time() - self._began) * 1000)

    def _start_ready(self) -> None:
        for node in () if self._halted.is_set() else self._parts.plan.startable(self._frontier):
            if node in self._parked:
                continue
            running = len(self._frontier.running) - len(self._following)
            reason = self._parts.plan.end_reason(self._run, running)
            if reason is not None:
                self._ends_with = reason
                self._halted.set()
                break
            self._frontier = self._frontier.started(node)
            assert self._group is not None
            self._group.start_soon(self._work, node)

    async def _work(self, node: str) -> None:
        """One node from start to end."""
        if not await self._may_begin(node):
            self._frontier = self._frontier.stopped(node)
            return
        began = anyio.current_time()
        await self._tell({"type": "multiagent_node_start", "node_id": node, "node_type": self._kind(node)})
        try:
            end = await self._attempts(node)
        except RepertoryError as error:  # A condition's, or a guard's: the node has not run.
            end = NodeEnd(outcome=error)
        if end.outcome is None:
            self._frontier = self._frontier.stopped(node)
            self._halted.set()
            self.reason = self.reason or end.stopped
            return
        result = await self._end(node, end, node_result_of(end.outcome, round((anyio.current_time() - began) * 1000)))
        following = self._go_on_from(node)
        if result.status is Status.INTERRUPTED:
            asks = questions_of(node, result)
            event: TurnEvent = {"type": "multiagent_node_interrupt", "node_id": node, "interrupts": asks}
            await self._tell(event)
        else:
            await self._tell({"type": "multiagent_node_stop", "node_id": node, "node_result": result})
        if following:
            handed = end.handed[1] if end.handed is not None else None
            await self._tell(_handoff(node, following, handed))
        if node not in self._frontier.at_rest and self._frontier.running - set(following):
            await self._parts.runner.done(node)  # While others work; the last ones go together at the end.

    async def _may_begin(self, node: str) -> bool:
        """Wait for the store where the node has to; whether it may begin then. One after the other, so that those who
        come later find that the first one has waited for them.
        """
        note = self._run.notes.get(node)
        again = note is not None and note.visits > 0
        if not again and not self._journal.full:
            return True
        async with self._door:
            try:
                if self._halted.is_set():
                    return False
                if again:  # Once it has begun anew, its journal may not know what the execution before has led to.
                    await self._journal.commit()
                elif self._journal.full:
                    self._journal.hand_over(soon=True)
                    await self._journal.prove()
            except RepertoryError as error:
                self._refused = error
                self._halted.set()
        return not self._halted.is_set()

    async def _end(self, node: str, end: NodeEnd, result: NodeResult) -> NodeResult:
        """Put the end on record and have hooks look at it. What a guard does not let pass is withheld: the node has
        failed with that, and its policy says what comes of it.
        """
        run, hooks = self._run, self._parts.hooks
        before, answers = run.notes.get(node), run.responses
        self._note(node, result, end, before)
        if result.status is Status.INTERRUPTED or not hooks.callbacks_for(AfterNodeCallEvent):
            return result
        state = self._invocation.invocation_state
        try:
            await fire(hooks, AfterNodeCallEvent(source=self._parts.owner, node_id=node, invocation_state=state))
        except RepertoryError as error:
            if self._following.pop(node, None) is not None:
                run.forget_end(node, before)
                if run.responses != answers:
                    self._put(run.restated(at=self._journal.wall(), responses=answers))
                result = replace(result, result=error, status=Status.FAILED)  # It has cost what it has cost.
                self._note(node, result, NodeEnd(outcome=error), before)
        return result

    def _note(self, node: str, result: NodeResult, end: NodeEnd, before: NodeNote | None) -> None:
        """Put it on record, with what follows. `before`: what was known of the node until then."""
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
        if done:
            try:
                self._following[node] = self._parts.plan.follow(run, node, self._invocation.invocation_state)
            except RepertoryError as error:  # Its end is not on record: its own journal gives it again.
                run.forget_end(node, before)
                self._frontier = self._frontier.stopped(node)
                self._fail(node, error)
                return
        else:
            self._frontier = self._frontier.stopped(node)
        at_rest = self._at_rest()
        record = leading_to(record, at_rest, self._parts.plan.startable(frontier_of(at_rest)))
        run.apply(record, result)
        self._journal.add(record)
        counting = still_answered(node, run, done=done, asks=questions_of(node, result))
        if counting != run.responses:
            self._put(run.restated(at=self._journal.wall(), responses=counting))
        self._hand_over()
        if result.status is Status.INTERRUPTED:
            self._parked.add(node)
        elif not done and self.error is None and (limit := _limit_in(result)) is not None:
            self.limit = self.limit or f"{node}: {limit}"
            self._halted.set()
        elif not done:
            self._fail(node, _why(result))

    def _at_rest(self) -> tuple[str, ...]:
        """What owes work by the record, where ends that hooks still look at stand as well."""
        frontier = self._frontier
        for node, targets in self._following.items():
            frontier = frontier.ended(node, targets)
        return frontier.at_rest

    def _go_on_from(self, node: str) -> tuple[str, ...]:
        """Start what follows the node, and give it."""
        targets = self._following.pop(node, None)
        if targets is not None:
            self._frontier = self._frontier.ended(node, targets)
        self._start_ready()
        return targets or ()

    def _hand_over(self) -> None:
        """Once for all nodes that end at this moment: the persister's mailbox may have no room for each of them."""
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
        """The run fails with this; what runs goes on to its end."""
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
            return NodeEnd(outcome=AgentResult(stop_reason="interrupt", message=None, interrupts=refusal))
        call = self._call(node)
        for attempt in range(policy.retries):
            end = await self._attempt(call, policy)
            if end.outcome is None or node_result_of(end.outcome, 0).status is not Status.FAILED:
                return end
            with anyio.move_on_after(min(_BACKOFF_S * 2**attempt, _BACKOFF_MAX_S)):
                await self._halted.wait()
                return NodeEnd(outcome=None)  # It is to be tried again, and nothing else begins in this call.
        return await self._attempt(call, policy)

    async def _attempt(self, call: NodeCall, policy: NodePolicy) -> NodeEnd:
        with anyio.CancelScope(deadline=anyio.current_time() + (policy.timeout_s or math.inf)) as scope:
            return await self._parts.runner.run(call)
        assert scope.cancelled_caught
        text = f"Node '{call.node}' execution timed out after {policy.timeout_s:g}s"
        return NodeEnd(outcome=NodeFailed(text, node=call.node))

    def _call(self, node: str) -> NodeCall:
        run, state = self._run, self._invocation.invocation_state
        note = run.notes.get(node)
        told = self._parts.plan.input_for(run, node, state)
        visits = 0 if note is None else note.visits
        responses: list[Any] = [
            {"interruptResponse": {"interruptId": interrupt, "response": response}}
            for interrupt, response in answers_about(node, run).items()
        ]
        return NodeCall(
            node=node,
            prompt=responses or (None if node in self._expired else told),
            token=execution_token(self._parts.orchestrator_id, run, node, visits),
            invocation_state=state,
            budget_owner=f"{PAYER.get() or self._parts.orchestrator_id}.{node}",
            again=visits > 0,
            answers=bool(responses),
            publish=None if self._publish is None else self._forward(node),
        )

    def _forward(self, node: str) -> Callable[[TurnEvent], Awaitable[None]]:
        async def forward(event: TurnEvent) -> None:
            await self._tell({"type": "multiagent_node_stream", "node_id": node, "event": event})

        return forward

    async def _refusal(self, node: str) -> str | tuple[Interrupt, ...] | None:
        """Why a hook does not want the node to run, or what a person is to answer first."""
        hooks, state = self._parts.hooks, self._invocation.invocation_state
        note = self._run.notes.get(node)
        if node in self._expired and note is not None and asked_by_hook(note.result):
            return "nobody answered in time"
        if not hooks.callbacks_for(BeforeNodeCallEvent):
            return None
        questions = Questions(self._journal.wall, self._run.responses)
        event = BeforeNodeCallEvent(source=self._parts.owner, node_id=node, invocation_state=state, questions=questions)
        asked: list[Interrupt] = []
        await fire(hooks, event, asked=asked)
        if asked:
            check_asked(event, asked, questions)
            return tuple(asked)
        cancel = event.cancel_node
        return (cancel if isinstance(cancel, str) else "node cancelled by user") if cancel else None

    def _kind(self, node: str) -> str:
        return self._parts.runner.kind_of(node)

    async def _tell(self, event: TurnEvent) -> None:
        if self._publish is not None:
            await self._publish(event)


def _limit_in(result: NodeResult) -> str | None:
    """The limit that has ended the node's own run; None for a node that has failed otherwise."""
    outcome = result.result
    return outcome.reason if isinstance(outcome, MultiAgentResult) else None


def _why(result: NodeResult) -> Exception | str:
    """Why a node has failed: its error, or the limit that has ended it."""
    outcome = result.result
    if isinstance(outcome, AgentResult):
        return outcome.stop_reason
    return outcome if isinstance(outcome, Exception) else outcome.reason or outcome.status.value


def _handoff(node: str, targets: tuple[str, ...], message: str | None) -> TurnEvent:
    event: TurnEvent = {"type": "multiagent_handoff", "from_node_ids": [node], "to_node_ids": list(targets)}
    return event if message is None else {**event, "message": message}
