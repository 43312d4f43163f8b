"""Driving one run of an orchestrator: starts what the plan says may start, and writes down what ended and what follows.

A driver lives for one call, inside a job of the orchestrator's actor. Nodes are its child tasks: one that fails stops
nothing that runs, only what has not started. Nothing here waits for the store, once it has the run's beginning: a node
whose end is lost with the process is begun again under the same token, and its own journal gives the answer that it
has.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from repertory.actors.hook_calls import check_asked, fire
from repertory.actors.multi_agent_events import AfterNodeCallEvent, BeforeNodeCallEvent
from repertory.actors.nodes import NodeCall, NodeEnd, NodePolicy
from repertory.core.interrupts import Questions
from repertory.core.orchestration.calls import GoOn, waiting
from repertory.core.orchestration.questions import answers_about, asked_by_hook, questions_of, still_answered
from repertory.core.orchestration.executions import execution_token
from repertory.core.orchestration.frontier import frontier_of
from repertory.core.orchestration.results import NodeResult, Status, node_result_of
from repertory.core.orchestration.run import Ended, leading_to
from repertory.core.result import AgentResult
from repertory.errors import NodeFailed, RepertoryError

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from repertory.actors.call import Invocation
    from repertory.actors.hook_registry import HookRegistry
    from repertory.actors.ledger import Ledger
    from repertory.actors.nodes import NodeRunner
    from repertory.core.events import TurnEvent
    from repertory.core.interrupts import Interrupt
    from repertory.core.journal.records import NodeChanged
    from repertory.core.messages import Json
    from repertory.core.orchestration.plan import Plan
    from repertory.core.orchestration.run import Run

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


class RunDriver:
    """One call's work on a run."""

    def __init__(
        self,
        parts: OrchestratorParts,
        run: Run,
        ledger: Ledger,
        invocation: Invocation,
        publish: Callable[[TurnEvent], Awaitable[None]] | None,
    ) -> None:
        """`run` has begun, or is gone on with."""
        self._parts = parts
        self._run = run
        self._ledger = ledger
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
        self._halted = False
        """Nothing else starts."""
        self._ends_with: str | None = None
        """The limit that ends the run."""
        self.reason: str | None = None
        """Why the call ended before the run was over."""
        self.error: RepertoryError | None = None
        """What the call fails with."""

    async def drive(self, going_on: GoOn) -> None:
        """Work until nothing runs and nothing can start."""
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
            self._put(run.restated(at=self._ledger.wall(), elapsed_ms=elapsed_ms))

    async def _keep_answers(self) -> None:
        """Have them on record before anybody goes on with them: whoever has answered is not asked again."""
        given = {key: value for answers in self._answers.values() for key, value in answers.items()}
        if given:
            self._put(self._run.restated(at=self._ledger.wall(), responses={**self._run.responses, **given}))
            await self._ledger.commit()

    def _put(self, record: NodeChanged) -> None:
        self._run.apply(record)
        self._ledger.add(record)

    def stop(self, reason: str) -> None:
        """End the call now. Nodes that run are cut short and still owe their work."""
        self._halted = True
        self.reason = self.reason or reason
        self._scope.cancel()

    def halt(self) -> None:
        """Start nothing else; the call ends when what runs has ended."""
        self._halted = True

    def _end_run(self, reason: str) -> None:
        """A limit ends the run for good."""
        self.reason = reason
        self._put(self._run.stopped(reason, at=self._ledger.wall(), elapsed_ms=self._elapsed_ms()))

    def _elapsed_ms(self) -> int:
        return self._elapsed_before + round((anyio.current_time() - self._began) * 1000)

    def _start_ready(self) -> None:
        for node in () if self._halted else self._parts.plan.startable(self._frontier):
            if node in self._parked:
                continue
            reason = self._parts.plan.end_reason(self._run, len(self._frontier.running))
            if reason is not None:
                self._ends_with, self._halted = reason, True
                break
            self._frontier = self._frontier.started(node)
            assert self._group is not None
            self._group.start_soon(self._work, node)

    async def _work(self, node: str) -> None:
        """One node from start to end."""
        began = anyio.current_time()
        await self._tell({"type": "multiagent_node_start", "node_id": node, "node_type": self._kind(node)})
        try:
            end = await self._attempts(node)
        except RepertoryError as error:  # A condition's, or a guard's: the node has not run.
            end = NodeEnd(outcome=error)
        if end.outcome is None:
            self._frontier = self._frontier.stopped(node)
            self._halted, self.reason = True, self.reason or end.stopped
            return
        result = node_result_of(end.outcome, round((anyio.current_time() - began) * 1000))
        following = self._note_end(node, result, end)
        if result.status is Status.INTERRUPTED:
            asks = questions_of(node, result)
            event: TurnEvent = {"type": "multiagent_node_interrupt", "node_id": node, "interrupts": asks}
            await self._tell(event)
        else:
            await self._tell({"type": "multiagent_node_stop", "node_id": node, "node_result": result})
            await self._fire_after(node)
        if following:
            handed = end.handed[1] if end.handed is not None else None
            await self._tell(_handoff(node, following, handed))
        if node not in self._frontier.at_rest and self._frontier.running - set(following):
            await self._parts.runner.done(node)  # While others work; the last ones go together at the end.

    def _note_end(self, node: str, result: NodeResult, end: NodeEnd) -> tuple[str, ...]:
        """Put it on record, with what follows, and start that. Gives what follows."""
        run, before = self._run, self._run.notes.get(node)
        policy = self._parts.policies.get(node, _NO_POLICY)
        done = result.status is Status.COMPLETED or (result.status is Status.FAILED and policy.on_failure == "skip")
        record = run.ended(
            node,
            Ended(result=result, done=done, context=end.context, handed=end.handed),
            run.frontier,
            at=self._ledger.wall(),
            elapsed_ms=self._elapsed_ms(),
        )
        run.apply(record, result)
        targets: tuple[str, ...] = ()
        if done:
            try:
                targets = self._parts.plan.follow(run, node, self._invocation.invocation_state)
            except RepertoryError as error:  # Its end is not on record: its own journal gives it again.
                if before is None:
                    del run.notes[node]
                else:
                    run.notes[node] = before
                self._fail(node, error, stays=True)
                return ()
            self._frontier = self._frontier.ended(node, targets)
        else:
            self._frontier = self._frontier.stopped(node)
        at_rest = self._frontier.at_rest
        record = leading_to(record, at_rest, self._parts.plan.startable(frontier_of(at_rest)))
        run.apply(record, result)
        self._ledger.add(record)
        counting = still_answered(node, run, done=done, asks=questions_of(node, result))
        if counting != run.responses:
            self._put(run.restated(at=self._ledger.wall(), responses=counting))
        self._ledger.hand_over()
        if result.status is Status.INTERRUPTED:
            self._parked.add(node)
        elif not done:
            self._fail(node, result.result if isinstance(result.result, Exception) else None)
        self._start_ready()
        return targets

    def _fail(self, node: str, cause: Exception | None, *, stays: bool = False) -> None:
        """The run fails with this; what runs goes on to its end."""
        self._halted = True
        if stays:
            self._frontier = self._frontier.stopped(node)
        if self.error is None:
            text = "a node failed" if cause is None else f"a node failed: {cause}"
            self.error = NodeFailed(text, node=node, orchestrator=self._parts.orchestrator_id)
            self.error.__cause__ = cause

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
            if end.outcome is None or node_result_of(end.outcome, 0).status is not Status.FAILED or self._halted:
                return end
            await anyio.sleep(min(_BACKOFF_S * 2**attempt, _BACKOFF_MAX_S))
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
        questions = Questions(self._ledger.wall, self._run.responses)
        event = BeforeNodeCallEvent(source=self._parts.owner, node_id=node, invocation_state=state, questions=questions)
        asked: list[Interrupt] = []
        await fire(hooks, event, asked=asked)
        if asked:
            check_asked(event, asked, questions)
            return tuple(asked)
        cancel = event.cancel_node
        return (cancel if isinstance(cancel, str) else "node cancelled by user") if cancel else None

    async def _fire_after(self, node: str) -> None:
        hooks, state = self._parts.hooks, self._invocation.invocation_state
        if hooks.callbacks_for(AfterNodeCallEvent):
            event = AfterNodeCallEvent(source=self._parts.owner, node_id=node, invocation_state=state)
            try:
                await fire(hooks, event)
            except RepertoryError as error:
                self._fail(node, error)

    def _kind(self, node: str) -> str:
        return self._parts.runner.kind_of(node)

    async def _tell(self, event: TurnEvent) -> None:
        if self._publish is not None:
            await self._publish(event)


def _handoff(node: str, targets: tuple[str, ...], message: str | None) -> TurnEvent:
    event: TurnEvent = {"type": "multiagent_handoff", "from_node_ids": [node], "to_node_ids": list(targets)}
    return event if message is None else {**event, "message": message}
