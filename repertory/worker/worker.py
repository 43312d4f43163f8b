"""A worker: takes jobs from a queue, and has each turn happen once.

    async with Runtime(sessions=SQLiteSessions("agents.db")) as runtime:
        runtime.agent(AgentSpec(name="support", model=...))
        await Worker(runtime, SQLiteQueue("jobs.db")).run()

`docs/design/pending-work.md` says why it is as it is.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never, cast

import anyio
from msgspec import Struct

from repertory.actors.background import Background
from repertory.actors.call import background_work
from repertory.core.admission import free_places
from repertory.core.callers import CallerRules
from repertory.core.ids import check_id
from repertory.core.orchestration.journals import journal_name, orchestrator_in
from repertory.core.result import AgentResult
from repertory.core.retry import foreign_errors
from repertory.errors import Failed, HookFailed, Invalid, RepertoryError, Retryable
from repertory.logs import DEBUG, INFO, WARNING, note
from repertory.runtime.actor import Actor, Job
from repertory.runtime.faults import failure_of
from repertory.runtime.lifecycle import ExitFailed, ExitReason
from repertory.runtime.message import Next, carry_on
from repertory.runtime.spec import ChildSpec
from repertory.worker.decisions import (
    TRIES,
    Again,
    Aside,
    Done,
    JobVerdict,
    Malformed,
    TurnJob,
    verdict_at_receipt,
    verdict_on_error,
    verdict_on_stop,
)

if TYPE_CHECKING:
    from repertory.app.agent.session import PlainCallOptions
    from repertory.app.embedding.runtime import Runtime
    from repertory.core.run_results import MultiAgentResult
    from repertory.runtime.ref import ActorRef
    from repertory.worker.ports import Delivery, TurnQueue

_LOG = logging.getLogger("repertory.app")

WAIT_S = 5.0
"""Seconds that one request to the queue waits for a job."""
_BATCH = 64
"""The most jobs of one request, of queues that give that many."""
_HELD_MAX = 7
"""The number of jobs that may wait for the limits of their tenants besides, as a multiple of `at_once`."""
_FULL_S = 0.1
"""Seconds until the places of a full runtime are counted again."""
_PAUSE_MAX_S = 15.0
"""The longest pause after a request that the queue has refused, in seconds."""
_LOOK_S = 1.0
_SETTLE_TRIES = 4
_SETTLE_PAUSE_S = 0.2
"""The first pause between two tries to settle a job, in seconds."""
_STOP_S = 4.0
"""Seconds that an ending worker may take to give back its jobs."""

JobOutcome: TypeAlias = "AgentResult | MultiAgentResult | Exception"
OnDone: TypeAlias = Callable[[TurnJob, JobOutcome], Awaitable[object] | object]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """The numbers of a worker's jobs since it was started."""

    taken: int = 0
    """Deliveries that it was given."""
    finished: int = 0
    given_back: int = 0
    """Jobs that were tried in vain and given back, or given back at a drain."""
    set_aside: int = 0
    in_hand: int = 0
    """Jobs that it works on now."""


class Worker:
    """Takes jobs from a queue while a runtime lives, a turn for each.

    A job is finished when its answer is durable, and its token lets the turn happen once. A job that is given twice
    gets the answer of its first turn. A job whose turn was cut off goes on where that was. A job that fails and may
    succeed later comes back after 1 s, and then after twice as long each time, up to 5 minutes. A job that cannot
    succeed or has failed `tries` times is set aside with the reason, and so is what is no job. `worker/decisions.py`
    decides.

    `on_done` may be called again for the same job, if the process ends in between. An error that it raises for a result
    counts as a failed try.

    Args:
        runtime: The runtime that runs the turns.
        queue: Where the jobs come from.
        agents: The names of agents and orchestrators whose jobs are done here; those of others are given back. None:
            all that the runtime has.
        at_once: So many jobs at the same time; with `peers` no more than the runtime has places for.
        tries: How many failures set a job aside.
        callers: The rules for prompts of jobs, and for where they have their turns delivered; a job with more is set
            aside. None for the defaults of `CallerRules`.
        on_done: A function of the job and its outcome, sync or async: the result, before the job is finished, or the
            error with which it is set aside.
    """

    def __init__(
        self,
        runtime: Runtime,
        queue: TurnQueue,
        *,
        agents: Collection[str] | None = None,
        at_once: int = 16,
        tries: int = TRIES,
        on_done: OnDone | None = None,
        callers: CallerRules | None = None,
    ) -> None:
        """
        Raises:
            Invalid: For bad arguments. Correct the argument.
        """
        if not hasattr(cast("object", runtime), "host"):
            raise Invalid("a worker works for a runtime: Worker(runtime, queue)", got=type(runtime).__name__)
        if not hasattr(queue, "receive") or not hasattr(queue, "settle"):
            raise Invalid("a worker takes jobs from a queue: SQLiteQueue('jobs.db')", got=type(queue).__name__)
        for name, value in (("at_once", at_once), ("tries", tries)):
            if type(cast("object", value)) is not int or value < 1:
                raise Invalid(f"{name} is a positive number", got=value)
        if isinstance(agents, str):
            raise Invalid("agents are a list of names", got=agents)
        self._runtime = runtime
        self._queue = queue
        self._agents = None if agents is None else frozenset(check_id(name, "agent name") for name in agents)
        self._at_once = at_once
        self._tries = tries
        self._on_done = on_done
        self._callers = CallerRules() if callers is None else callers
        self._ref: ActorRef[JobTakerMessage] | None = None
        self._taker: JobTaker | None = None
        self._counts = _JobCounts()
        self._until_empty = False

    def __repr__(self) -> str:
        return f"Worker({self._queue!r}, at_once={self._at_once})"

    async def start(self) -> None:
        """Take jobs from now on, until the runtime drains, or `stop`. The drain then stops that first, lets running
        turns finish, gives back at once what does not, and closes the queue.

        Errors: those of a runtime that has not started, or drains.

        Raises:
            Invalid: When it was started before. Correct the argument.
        """
        if self._ref is not None:
            raise Invalid("this worker was started before: make another one")
        self._runtime.on_shutdown("refuse", self._stop_taking)
        self._runtime.on_shutdown("turns", self._finish)
        self._runtime.on_shutdown("close", self._queue.aclose)
        name = f"worker of {self._queue.name.replace('/', '|')}"
        spec = ChildSpec(name=name, factory=self._make, stop_timeout_s=_STOP_S)
        self._ref = await self._runtime.host.system.start(spec)
        note(_LOG, INFO, "a worker takes jobs", queue=self._queue.name, at_once=self._at_once)

    async def run(self, *, until_empty: bool = False) -> WorkerStats:
        """Start, and return the numbers of jobs when the runtime has drained.

        Cancelled, it takes no more jobs; those in hand go on as long as the runtime lives.

        Args:
            until_empty: True returns, too, when no job was found for a second and none is in hand; jobs that wait for
                their time, or for another try, are not waited for.
        """
        self._until_empty = until_empty
        await self.start()
        try:
            async with anyio.create_task_group() as group:
                if until_empty:
                    group.start_soon(self._end_when_empty, group.cancel_scope)
                await self._runtime.drained.wait()
                group.cancel_scope.cancel()
        finally:
            await self._stop_taking()
        return self.stats()

    async def stop(self) -> None:
        """Take no more jobs, and return when those in hand are settled. The runtime goes on. Again: the same.
        Cancelled, what is in hand is settled later.
        """
        await self._stop_taking()
        await self._finish()

    def stats(self) -> WorkerStats:
        """The numbers of jobs since the start."""
        counts = self._counts
        return WorkerStats(
            taken=counts.taken,
            finished=counts.finished,
            given_back=counts.given_back,
            set_aside=counts.set_aside,
            in_hand=0 if self._taker is None else len(self._taker.in_hand),
        )

    def _make(self) -> JobTaker:
        settings = _TakerSettings(
            at_once=self._at_once,
            tries=self._tries,
            agents=self._agents,
            on_done=self._on_done,
            callers=self._callers,
            wait_s=1.0 if self._until_empty else WAIT_S,
        )
        self._taker = JobTaker(self._runtime, self._queue, settings, self._counts)
        return self._taker

    async def _stop_taking(self) -> None:
        self._counts.stopping = True
        if self._ref is not None and self._ref.ended is None:
            self._ref.tell(StopTaking())

    async def _finish(self) -> None:
        while self._taker is not None and self._ref is not None and self._ref.ended is None and self._taker.busy:
            await self._taker.until_changed()

    async def _end_when_empty(self, scope: anyio.CancelScope) -> None:
        while self._taker is None or not self._taker.emptied:
            await (anyio.sleep(_FULL_S) if self._taker is None else self._taker.until_changed())
        scope.cancel()


# The actor.


class StopTaking(Struct, frozen=True):
    """Take no more jobs."""


class ExtendClaims(Struct, frozen=True):
    """Tell the queue that the worker lives."""


JobTakerMessage: TypeAlias = StopTaking | ExtendClaims


class _TakerSettings(Struct, frozen=True, kw_only=True):
    at_once: int
    tries: int
    agents: frozenset[str] | None
    on_done: OnDone | None
    callers: CallerRules
    wait_s: float


class _JobCounts(Struct):
    """The numbers of jobs of all incarnations."""

    taken: int = 0
    finished: int = 0
    given_back: int = 0
    set_aside: int = 0
    stopping: bool = False


class JobTaker(Actor[JobTakerMessage]):
    """Takes jobs and settles them.

    State: the jobs in hand. Fails: by a bug of its own alone; what it has then goes back, with a try counted, and it is
    started again. Pace: that of the turns. Supervised by the root.
    """

    def __init__(self, runtime: Runtime, queue: TurnQueue, settings: _TakerSettings, counts: _JobCounts) -> None:
        self._runtime = runtime
        self._queue = queue
        self._settings = settings
        self._counts = counts
        self.in_hand: dict[str, Delivery] = {}
        """The deliveries that are not settled yet, by claim."""
        self.changed = anyio.Event()
        """The event that is set, and replaced, whenever one of these is settled or taking has ended."""
        self.emptied = False
        """True if the last look at the queue has found nothing, with nothing in hand."""
        self._takes = False
        self._taking: Job | None = None
        self._extending: Job | None = None
        self._receiving: Background
        self._claiming: Background

    def summary(self) -> object:
        return {"queue": self._queue.name, "in_hand": len(self.in_hand), "at_once": self._settings.at_once}

    @property
    def busy(self) -> bool:
        """True if it has jobs, or may still be given some."""
        return bool(self.in_hand) or self._takes

    async def on_start(self) -> None:
        where = {"queue": self._queue.name}
        self._receiving = Background(self.context, "no jobs can be taken", where, limit_s=_PAUSE_MAX_S)
        self._claiming = Background(self.context, "claims of jobs cannot be extended", where)

    async def until_changed(self) -> None:
        """Return when `changed` is set, and now and then: an incarnation that was killed changes no more."""
        with anyio.move_on_after(_LOOK_S):
            await self.changed.wait()

    async def on_ready(self) -> None:
        # A third of the lease: one request may fail or be late.
        self.context.every(self._queue.lease_s / 3, ExtendClaims(), key="extend")
        if not self._counts.stopping:
            self._takes = True
            self._taking = self.context.job(self._take, name="take jobs")

    async def handle(self, message: JobTakerMessage) -> Next:
        match message:
            case StopTaking():
                if self._taking is not None:
                    self._taking.cancel()
            case ExtendClaims():
                # One at a time: a queue that does not answer would get more and more of them.
                if self.in_hand and (self._extending is None or self._extending.done):
                    self._extending = self.context.job(self._extend, name="extend claims")
            case _:
                assert_never(message)
        return carry_on()

    async def on_stop(self, reason: ExitReason) -> None:
        """Give back at once what is in hand."""
        failed = isinstance(reason, ExitFailed)
        verdict = Again(1.0, "the worker failed") if failed else Again(0.0, counts=False)
        # Half of the time after which it is killed. What is not told by then comes back when its claim is over.
        with anyio.move_on_after(_STOP_S / 2):
            async with anyio.create_task_group() as group:
                for delivery in list(self.in_hand.values()):
                    group.start_soon(self._settle, delivery, verdict)
        counts = self._counts
        counted = {"finished": counts.finished, "given_back": counts.given_back, "set_aside": counts.set_aside}
        note(_LOG, INFO, "a worker has ended", queue=self._queue.name, in_hand=len(self.in_hand), **counted)

    # Taking.

    async def _take(self) -> None:
        try:
            while not self._counts.stopping:
                at_once, held = self._settings.at_once, self._runtime.host.gate.waiting
                # Jobs that wait for the limits of their tenants take no place, or those of one tenant would keep all
                # others in the queue.
                room = free_places(at_once, len(self.in_hand), min(held, len(self.in_hand)), _HELD_MAX * at_once)
                if (admission := self._runtime.admission) is not None:
                    room = min(room, admission.room - admission.busy)
                if room <= 0:
                    with anyio.move_on_after(_FULL_S):
                        await self.changed.wait()
                    continue
                receive = partial(self._queue.receive, min(room, _BATCH), self._settings.wait_s)
                taken = await self._receiving.attempt(receive, None)
                if taken is None:
                    await anyio.sleep(self._receiving.pause_s)
                else:
                    self._begin(taken)
        finally:
            self._takes = False
            self._has_changed()

    def _begin(self, taken: Sequence[Delivery]) -> None:
        self.emptied = not taken and not self.in_hand
        for delivery in taken:
            self._counts.taken += 1
            self.in_hand[delivery.claim] = delivery
        for delivery in taken:
            self.context.job(self._do, delivery, name=f"job {delivery.id}", finish=True)
        if self.emptied:
            self._has_changed()

    async def _extend(self) -> None:
        await self._claiming.attempt(partial(self._queue.extend, list(self.in_hand.values())), None)

    # One job.

    async def _do(self, delivery: Delivery) -> None:
        job, settings = delivery.job, self._settings
        names = {orchestrator_in(name) or name for name in self._runtime.served}
        wanted = names if settings.agents is None else names & settings.agents
        verdict = verdict_at_receipt(job, delivery.tries, settings.tries, wanted, self._runtime.host.wall())
        # It came with the last request: a turn would be cut short at once.
        if self._runtime.draining.is_set():
            verdict = Again(0.0, counts=False)
        if verdict is None and not isinstance(job, Malformed):
            verdict = await self._turn(job, delivery)
        elif isinstance(verdict, Aside):
            await self._tell_aside(delivery, Failed(verdict.why))
        if verdict is not None and await self._settle(delivery, verdict):
            # Only where the queue has taken it: somebody else may have the job by now, and counts it.
            self._count(verdict)

    async def _turn(self, job: TurnJob, delivery: Delivery) -> JobVerdict:
        """Run the turn, tell of its result, and say what becomes of the job."""
        try:
            result = await self._invoked(job, again=delivery.tries < self._settings.tries)
            verdict = verdict_on_stop(_stop_reason(result), draining=self._runtime.draining.is_set())
            if isinstance(verdict, Done):
                await self._tell(job, result)
            return verdict
        except RepertoryError as error:
            verdict = verdict_on_error(
                error,
                delivery.tries,
                self._settings.tries,
                draining=self._runtime.draining.is_set(),
                jitter=self.context.rng.uniform(0.0, 1.0),
            )
            if isinstance(verdict, Aside):
                await self._tell_aside(delivery, error)
            else:
                level = WARNING if verdict.counts else DEBUG
                note(self.context.logger, level, "a job comes back", error, tries=delivery.tries, **_ids(delivery))
            return verdict

    async def _invoked(self, job: TurnJob, *, again: bool) -> AgentResult | MultiAgentResult:
        """Make the call of the job. `again`: a failure that may pass is not the last one."""
        known = self._runtime.served
        served = known[job.agent] if job.agent in known else known[journal_name(job.agent)]
        session = served.session(job.session_id).for_caller(self._settings.callers)
        # A copy, since hooks and tools may write into it, and a try again gets the same job.
        state: dict[str, Any] = dict(job.attributes)
        # Queued: SQS may give two jobs of one session at once, and a caller of another kind may be in the session.
        options: PlainCallOptions = {"invocation_state": state, "idempotency_token": job.token, "busy": "queue"}
        if job.deliver_to:
            options["deliver_to"] = job.deliver_to
        try:
            with background_work(again=again):
                return await session.invoke(job.prompt, **options)
        except RepertoryError:
            raise
        except BaseException as error:
            failure_of(error)  # What is none goes on.
            text = "a part of the program has raised an error of its own"
            raise _ProgramFailed(text, session=job.session_id, agent=job.agent) from error

    async def _tell(self, job: TurnJob, outcome: JobOutcome) -> None:
        """Errors: `_ProgramFailed`."""
        if self._settings.on_done is None:
            return
        try:
            returned = self._settings.on_done(job, outcome)
            if inspect.isawaitable(returned):
                await returned
        except BaseException as error:
            failure_of(error)  # What is none goes on.
            raise _ProgramFailed("on_done failed", session=job.session_id, agent=job.agent) from error

    async def _tell_aside(self, delivery: Delivery, error: Exception) -> None:
        note(self.context.logger, WARNING, "a job is set aside", error, tries=delivery.tries, **_ids(delivery))
        if not isinstance(delivery.job, Malformed):
            try:
                await self._tell(delivery.job, error)
            except _ProgramFailed as failed:
                note(self.context.logger, WARNING, "a function for finished jobs failed", failed, **_ids(delivery))

    async def _settle(self, delivery: Delivery, verdict: JobVerdict) -> bool:
        """Tell the queue, a few times. If it does not listen the job is given to somebody else in time, and its token
        is known.
        """
        pause_s, settled = _SETTLE_PAUSE_S, False
        for number in range(_SETTLE_TRIES):
            try:
                with foreign_errors():
                    settled = await self._queue.settle(delivery, verdict)
                break
            except RepertoryError as error:
                if number == _SETTLE_TRIES - 1:
                    note(_LOG, WARNING, "the queue was not told what became of a job", error, **_ids(delivery))
                else:
                    await anyio.sleep(pause_s)
                    pause_s *= 2
        # Also if the queue was not told: a claim that is extended no more runs out.
        if self.in_hand.pop(delivery.claim, None) is not None:
            self._has_changed()
        return settled

    def _count(self, verdict: JobVerdict) -> None:
        match verdict:
            case Done():
                self._counts.finished += 1
            case Again():
                self._counts.given_back += 1
            case Aside():
                self._counts.set_aside += 1

    def _has_changed(self) -> None:
        changed, self.changed = self.changed, anyio.Event()
        changed.set()


class _ProgramFailed(HookFailed, Retryable):
    """Code of the program has raised what is no error of ours, such as `on_done`, which is called again at the next
    try, with the same result.
    """


def _ids(delivery: Delivery) -> dict[str, str]:
    job = delivery.job
    if isinstance(job, Malformed):
        return {"job": delivery.id}
    return {"job": delivery.id, "session": job.session_id, "agent": job.agent, "token": job.token}


def _stop_reason(result: AgentResult | MultiAgentResult) -> str:
    """The reason why a turn has ended, or why a run came back unfinished."""
    return result.stop_reason if isinstance(result, AgentResult) else result.reason or ""
