"""The base class of actors: state that only its own handlers touch, one message at a time, and their context."""

# The code of an actor decides what it does and what comes next; its cell (`cell.py`) decides when. An incarnation ends
# with its jobs, timers and open answers, while address and mailbox go on: nothing that must survive a failure lives in
# an actor alone. Jobs run in the system's task group but end before `on_stop`, so no job sees an actor that is cleaned
# up. An idle actor that `rests` has no task, and `handle_now` runs in the sender's step.

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeAlias, TypeVar, TypeVarTuple, overload

import anyio

from repertory.errors import ActorDead, Invalid, StreamClosed
from repertory.logs import ActorLogger
from repertory.runtime.channel import Sink, StreamCall
from repertory.runtime.child import ParentPort, Services, Spawn
from repertory.runtime.children import Children
from repertory.runtime.lifecycle import ExitFailed, ExitReason, Killed
from repertory.runtime.message import (
    ORIGIN,
    AskEnvelope,
    CallContext,
    Envelope,
    Next,
    ReplySlot,
    Request,
    Waits,
    carry_on,
    current_trace,
)
from repertory.runtime.ref import ActorRef, Down, unwatch, watch
from repertory.runtime.spec import ChildSpec, SupervisorSettings
from repertory.runtime.timers import Clock, Expiring, Rng, Timers
from repertory.runtime.waker import Waiter

M_contra = TypeVar("M_contra", contravariant=True)


class Actor(Generic[M_contra]):
    """Base class of all actors. `M` is the union of its messages.

    Handlers are serial: while one awaits, the actor takes no other message. Work that must not block the mailbox runs
    as `context.job`. A failure ends the incarnation, not the address: the supervisor makes a new actor, and the
    messages in the mailbox are kept.

    Attributes:
        context: The actor's view of the runtime, from `on_start` on.
    """

    context: Context

    rests: ClassVar[bool] = False
    """True for actors of which there are many, most of them idle. An idle one has no task: what is not handled at once
    (`handle_now`) begins one, among the context variables that the actor has started with.
    """

    async def on_start(self) -> None:
        """Prepare the actor. The start is acknowledged when this returns; an exception here makes the start fail.

        Bounded by the spec's `start_timeout_s`; a shutdown cancels it.
        """

    async def on_ready(self) -> None:
        """Runs after the acknowledgement and before the first message, so that the starter does not wait for it."""

    async def handle(self, message: M_contra) -> Next:
        """Handle one message and say what comes next. An exception ends the incarnation.

        Args:
            message: The message.
        """
        raise NotImplementedError

    def handle_now(self, message: M_contra) -> Next | None:
        """Handle one message without waiting, and say what comes next; None leaves the message to `handle`.

        For handlers that never await. An ask to an idle actor, and what it is told with `tell_now`, is then handled in
        the sender's own step, which costs no round of the event loop. Any other message is handled in its turn. The
        result, an exception and a deferred answer mean what they mean in `handle`. It may be called several times
        before other tasks run (64 times at most), so it must be short.

        Args:
            message: The message.
        """
        del message
        return None

    async def on_down(self, down: Down) -> Next:
        """An actor that this one watches has ended: for good, unless `down.comes_back`.

        Args:
            down: The actor that ended, and why.
        """
        del down
        return carry_on()

    async def on_stop(self, reason: ExitReason) -> None:
        """Clean up: jobs and children have ended. Shielded, bounded by the spec's `stop_timeout_s`; not run when
        killed.

        Args:
            reason: The reason why it ends.
        """

    def stop_now(self, reason: ExitReason) -> bool:
        """Clean up without waiting, instead of `on_stop`; False leaves it to that.

        An actor that rests then ends in the step that stops it, if its children do so as well. After False it may be
        called again.

        Args:
            reason: The reason why it ends.
        """
        del reason
        return type(self).on_stop is Actor[object].on_stop

    def summary(self) -> object:
        """A value that the tree shows of this actor's state. Must be cheap and small."""
        return None


# An actor's view of the runtime: its own address, siblings and children, timers, jobs, and later answers.

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_LOG = logging.getLogger("repertory.actor")
NOTED_WAIT_S = 0.001


class JobMaker(Protocol):
    """An actor's cell, as its context knows it."""

    def make_jobs(self) -> Jobs:
        """The jobs of this incarnation, none of which runs yet."""
        ...

    def job_failed(self, reason: ExitFailed | Killed) -> None:
        """A job has ended unasked, and by no return."""
        ...

    def jobs_ended(self) -> None:
        """The last running job has ended."""
        ...


class Context:
    """One incarnation's view of the runtime; `self.context` from `on_start` on. For the actor and its jobs alone.

    Args:
        keeper: The runtime's own: keeps the actor's children.
        services: The runtime's own: clock, random source and dead letters.
        job_maker: The runtime's own: starts jobs.

    Attributes:
        envelope: The runtime's own: the message that is being handled.
        deferred: The runtime's own: asks that were deferred.
        taken: The runtime's own: tells that the turn took from the queue.
        jobs: The runtime's own: the jobs that run.
        timers: The runtime's own: the timers that are set.
        new_waiter: The runtime's own: makes what a task awaits until it is woken.
    """

    __slots__ = (
        "_children",
        "_job_maker",
        "_keeper",
        "_services",
        "_watched",
        "clock",
        "deferred",
        "envelope",
        "jobs",
        "new_waiter",
        "rng",
        "self_ref",
        "taken",
        "timers",
    )

    def __init__(self, self_ref: ActorRef[object], keeper: ParentPort, services: Services, job_maker: JobMaker) -> None:
        self.self_ref = self_ref
        """The actor's own address."""
        self.clock: Clock = services.clock
        """Seconds, for measuring and scheduling; virtual in tests."""
        self.rng: Rng = services.rng
        """The system's random source."""
        self._keeper = keeper
        self._services = services
        self._job_maker = job_maker
        self._children: Children | None = None
        self._watched: list[ActorRef[object]] | None = None
        # Read by the actor's cell.
        self.envelope: Envelope | None = None
        self.deferred: list[Request] | None = None
        self.taken = 0
        self.jobs: Jobs | None = None
        self.timers: Timers | None = None
        self.new_waiter: Callable[[], Waiter] = services.transport.waker.waiter

    # -------------------------------------------------------------------------------------------------- surroundings

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry the actor's path as `actor`."""
        return ActorLogger(_LOG, {"actor": self.self_ref.path})

    @property
    def trace(self) -> object:
        """The trace token of the message that is being handled; messages sent in this turn carry it on."""
        return current_trace()

    def sibling(self, name: str) -> ActorRef[object]:
        """The child of the same supervisor with that name.

        Args:
            name: The name in its spec.

        Raises:
            NotFound: If there is none by that name. Check the name.
        """
        return self._keeper.find(name)

    @property
    def sent_at(self) -> float:
        """The time at which the handled message was sent, in seconds of the loop's clock; now, outside of a turn."""
        return self._services.transport.waker.now() if self.envelope is None else self.envelope.at

    def note_wait(self, seconds: float) -> None:
        """A request has waited for so long; less than a millisecond is not told. For programs that measure the system.

        Args:
            seconds: The length of the wait.
        """
        observe = self._services.totals.observe_wait
        if observe is not None and seconds >= NOTED_WAIT_S:
            observe(seconds)

    # ------------------------------------------------------------------------------------------------ answering later

    @property
    def asked(self) -> bool:
        """True if a sender waits for an answer to the message that is being handled."""
        return self.envelope is not None and self.envelope.asked

    def defer(self) -> ReplySlot[object]:
        """Answer the ask that is being handled after this turn; the handler then returns `carry_on()`.

        A slot that is still open at the end of the incarnation fails with `ActorDead`.

        Raises:
            Invalid: Outside an ask's turn. Correct the argument.
        """
        if not isinstance(self.envelope, AskEnvelope) or not self._in_turn():
            raise Invalid("only the turn of an ask can be answered later", actor=self.self_ref.path)
        self._keep(self.envelope)
        return self.envelope

    def sink(self) -> Sink[object]:
        """The receiver of the answers to the stream request being handled, in this turn or, usually, in a job.

        A sink that is not ended at the end of the incarnation fails with `ActorDead`.

        Raises:
            Invalid: Outside a stream's turn. Correct the argument.
        """
        if not isinstance(self.envelope, StreamCall) or not self._in_turn():
            raise Invalid("only the turn of a stream request has a sink", actor=self.self_ref.path)
        self._keep(self.envelope)
        return Sink(self.envelope)

    # ----------------------------------------------------------------------------------------------------- background

    def job(self, fn: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: str = "job", finish: bool = False) -> Job:
        """Run `fn(*args)` beside the actor's turns, as a task of this incarnation: cancelled and joined before
        `on_stop`.

        An exception in it ends the incarnation at once, like one in a handler, and so does a cancellation that nobody
        asked for; `StreamClosed`, from a sink whose reader has left, ends the job alone. It inherits the trace, not the
        deadline.

        Args:
            fn: An async function.
            args: The function's arguments.
            name: The job's name, for the tree.
            finish: An orderly stop waits for it first, within the spec's `stop_timeout_s`, as for a turn.
        """
        return self._own_jobs().start(partial(fn, *args), name, finish=finish)

    def after(self, delay_s: float, message: object, *, key: Hashable = None) -> None:
        """Handle `message` in `delay_s`, before queued messages. Replaces a timer of the same key; a restart voids it.

        Args:
            delay_s: Seconds from now.
            message: The message that the actor gets.
            key: The timer's name; None for a timer that is not replaced or cancelled.
        """
        self._own_timers().after(delay_s, message, object() if key is None else key)

    def every(self, period_s: float, message: object, *, key: Hashable = None) -> None:
        """Handle `message` every `period_s`, without drift; a period that ends before its turn came is skipped.

        Args:
            period_s: Seconds from one message to the next, above 0.
            message: The message that the actor gets.
            key: The timer's name; None for a timer that is not replaced or cancelled.

        Raises:
            Invalid: For a period that is not longer than zero. Correct the argument.
        """
        if period_s <= 0:
            raise Invalid("a period must be longer than zero", period_s=period_s)
        self._own_timers().every(period_s, message, object() if key is None else key)

    def expire_in(self, seconds: float, entry: Expiring) -> set[Expiring]:
        """Call `entry.expire()` in so many seconds or up to 50 ms later, unless it is taken out of the returned set.
        Cheaper than a timer; a restart does not void it.

        Args:
            seconds: Seconds from now.
            entry: An object with a method `expire`.
        """
        alarms = self._services.transport.alarms
        return alarms.expire_at(self._services.transport.waker.now() + seconds, entry)

    def cancel_timer(self, key: Hashable) -> None:
        """Void the timer of that key, even if it has run out and waits. Unknown keys are fine.

        Args:
            key: The timer's name; None for a timer that is not replaced or cancelled.
        """
        if self.timers is not None:
            self.timers.cancel(key)

    # -------------------------------------------------------------------------------------------------------- mailbox

    @overload
    def take_queued(self, limit: int) -> list[object]: ...

    @overload
    def take_queued(self, limit: int, kind: type[T]) -> list[T]: ...

    def take_queued(self, limit: int, kind: type[T] | type[object] = object) -> list[T] | list[object]:
        """Take queued tells now: at most `limit`, up to the first message that is an ask or not a `kind`.

        They count as handled. If the turn fails they are lost with it, like the message being handled.

        Args:
            limit: The most messages.
            kind: The class of the messages.
        """
        mailbox = self.self_ref.mailbox
        queue = mailbox.queue
        taken: list[object] = []
        # An ask is left in the queue: a handler that takes it this way would have no way to answer it.
        while queue and len(taken) < limit and not queue[0].asked and isinstance(queue[0].message, kind):
            taken.append(queue.popleft().message)
            mailbox.admit()
        self.taken += len(taken)
        return taken

    # ----------------------------------------------------------------------------------------------------- other actors

    def watch(self, ref: ActorRef[object], *, restarts: bool = False) -> None:
        """Have `on_down` called when that actor has ended for good, at once if it has. A restart of this actor ends it.

        Args:
            ref: The other actor.
            restarts: True to be called as well when it fails and may be restarted: then it answers no message that it
                had in hand.
        """
        watch(self.self_ref, ref, restarts=restarts)
        if self._watched is None:
            self._watched = []
        # Kept so that the next incarnation does not get the `Down`s of what this one watched.
        self._watched.append(ref)

    def unwatch(self, ref: ActorRef[object]) -> None:
        """Undo `watch`.

        Args:
            ref: The other actor.
        """
        unwatch(self.self_ref, ref)

    async def start_child(self, spec: ChildSpec) -> ActorRef[object]:
        """Start a child after the others and wait until it has started. Cancelled, it is killed.

        Children stop before `on_stop`, the last one first.

        Args:
            spec: The child to start.

        Raises:
            StartFailed: If the child failed as it started. Read its `__cause__`.
            AlreadyExists: If there is a child of that name. Choose another name, or stop that child first.
            ActorDead: If this actor is stopping. Start nothing more.
        """
        return await self.supervision.start(spec)

    async def stop_child(self, name: str) -> None:
        """Stop a child in order and wait for its end.

        Args:
            name: The name in its spec.

        Raises:
            NotFound: If there is none by that name. Check the name.
        """
        await self.supervision.stop(name)

    def children(self) -> Mapping[str, ActorRef[object]]:
        """The addresses of this actor's children by name, in starting order."""
        return {} if self._children is None else self._children.refs()

    def supervise(self, settings: SupervisorSettings) -> None:
        """Set how children are treated, before the first one is started. Default: one for one.

        Args:
            settings: The settings.
        """
        self.supervision.settings = settings

    @property
    def supervision(self) -> Children:
        """The supervisor of this actor's children, made at first use."""
        if self._children is None:
            self._children = Children(self.self_ref, self._services, lambda fn, name: self._own_jobs().start(fn, name))
        return self._children

    @property
    def own_children(self) -> Children | None:
        """The same as `supervision`, but None if it was never used."""
        return self._children

    def rest(self) -> None:
        """The runtime's own: drop what is empty."""
        self.deferred = self.deferred or None
        if self.jobs is not None and not len(self.jobs):
            self.jobs = None

    def close(self) -> None:
        """The runtime's own: end the incarnation. Asks and streams that are still open fail with `ActorDead`."""
        for request in tuple(self.deferred or ()):
            request.fail(ActorDead("the actor stopped before it answered", actor=self.self_ref.path))
        if self.timers is not None:
            self.timers.close()
        for ref in self._watched or ():
            unwatch(self.self_ref, ref)

    # -------------------------------------------------------------------------------------------------------- details

    def _in_turn(self) -> bool:
        """True in the turn itself; a job runs beside turns and must not answer for them."""
        # By `waits`, since `owner` is the same in the actor's jobs.
        return ORIGIN.get().waits is self.self_ref.mailbox.waits

    def _keep(self, request: Request) -> None:
        """Let the request be answered after the turn's end, for which its sender waits no longer."""
        request.lift_edge()
        if self.deferred is None:
            self.deferred = []
        self.deferred.append(request)
        request.deferred = self.deferred

    def _own_jobs(self) -> Jobs:
        if self.jobs is None:
            self.jobs = self._job_maker.make_jobs()
        return self.jobs

    def _own_timers(self) -> Timers:
        if self.timers is None:
            post = self._services.transport
            self.timers = Timers(self.self_ref.mailbox, post.alarms, post.waker.now)
        return self.timers


# Background work of one incarnation: tasks that are cancelled and joined before the actor stops.

# They run in the system's task group, so an actor without jobs costs nothing and one with jobs costs one task each.

JobWork: TypeAlias = Callable[[], Awaitable[object]]
Attempt: TypeAlias = Callable[[JobWork], Awaitable[ExitFailed | Killed | None]]
"""Runs work to its end; how it failed, or None. A cancellation is not raised: the task ends with it."""


def over(handle: anyio.TaskHandle[None]) -> bool:
    """True if the task has ended. Never for one that has ended before its first step."""
    return handle.status not in {anyio.TaskHandle.Status.PENDING, anyio.TaskHandle.Status.CANCELLING}


class Job:
    """A background task of an actor.

    Args:
        name: The job's name.
        finish: True if an orderly stop waits for it.
    """

    __slots__ = ("_ended", "_handle", "_over", "finish", "name")

    def __init__(self, name: str, *, finish: bool = False) -> None:
        self.name = name
        self.finish = finish
        self._over = False
        self._handle: anyio.TaskHandle[None] | None = None
        self._ended: anyio.Event | None = None

    def attach(self, handle: anyio.TaskHandle[None]) -> None:
        """The runtime's own: set the job's task.

        Args:
            handle: The task.
        """
        self._handle = handle

    @property
    def done(self) -> bool:
        """True if it has ended, with or without an error."""
        # A task that was cancelled before its first step never counts as over for anyio, hence the flag.
        return self._over or (self._handle is not None and over(self._handle))

    def end(self) -> None:
        """The runtime's own: it has ended."""
        self._over = True
        if self._ended is not None:
            self._ended.set()

    def cancel(self) -> None:
        """Cancel it; it has ended when `wait` returns. Allowed more than once."""
        if self._handle is not None:
            self._handle.cancel()

    async def wait(self) -> None:
        """Wait until it has ended. Its error is not raised here."""
        if not self.done:
            self._ended = self._ended or anyio.Event()
            await self._ended.wait()


class Jobs:
    """The jobs of one incarnation."""

    __slots__ = ("_attempt", "_maker", "_owner", "_running", "_spawn")

    def __init__(self, owner: Waits, spawn: Spawn, attempt: Attempt, maker: JobMaker) -> None:
        self._owner = owner
        self._spawn = spawn
        self._attempt = attempt
        self._maker = maker
        self._running: set[Job] = set()

    def __len__(self) -> int:
        return len(self._running)

    def names(self) -> tuple[str, ...]:
        """Names of the running jobs."""
        return tuple(job.name for job in self._running)

    def start(self, work: JobWork, name: str, *, finish: bool = False) -> Job:
        """Run `work` beside the actor's turns. The cell gets an exception in it; `StreamClosed` just ends it."""
        job = Job(name, finish=finish)
        name, ended = f"{self._owner.path}#{name}", partial(self._ended, job, Killed())
        job.attach(self._spawn(self._run(job, work, ORIGIN.get().trace), name, ended))
        self._running.add(job)  # Once it has a task, so that an interrupt of the program leaves none that never ends.
        return job

    def to_finish(self) -> Job | None:
        """A job that an orderly stop must wait for; None if none is left."""
        return next((job for job in self._running if job.finish and not job.done), None)

    async def close(self) -> None:
        """Cancel all and wait until they have ended."""
        # A copy: jobs take themselves out as they end. All are cancelled before any is waited for, so they end at the
        # same time.
        for job in tuple(self._running):
            job.cancel()
        for job in tuple(self._running):
            await job.wait()

    async def _run(self, job: Job, work: JobWork, trace: object) -> None:
        ORIGIN.set(CallContext(self._owner, None, trace))
        failed: ExitFailed | Killed | None = None
        try:
            failed = await self._attempt(work)
        finally:
            self._ended(job, failed)

    def _ended(self, job: Job, failed: ExitFailed | Killed | None) -> None:
        self._running.discard(job)
        if not self._running:
            self._maker.jobs_ended()
        job.end()
        # Every producer ends like this when its reader leaves; a restart of the actor for that would hurt all its other
        # readers.
        if isinstance(failed, ExitFailed) and isinstance(failed.error, StreamClosed):
            return  # The reader has left: no failure.
        if failed is not None:
            self._maker.job_failed(failed)


# One job serves what comes soon after each other: to start a job for each plain turn adds a tenth to its cost. It ends
# when nothing has come for a while, since a job that waits weighs more than the rest of an idle agent.

LINGER_S = 1.0
"""Seconds that the job waits for the next work item."""


class SerialQueue:
    """An actor's work items, run one after the other in one job, which ends when there have been none for a while."""

    __slots__ = ("_beside", "_called", "_name", "_take", "_waiting", "busy")

    def __init__(self, name: str, take: Callable[[], Awaitable[None] | None]) -> None:
        """`name`: the job's. `take` gives the next work item, or None if there is none."""
        self._name = name
        self._take = take
        self.busy = False
        """True while an item runs or after `wake`, until `take` gives None."""
        self._beside = 0
        self._called: Waiter | None = None
        """Wakes the job; None without one."""
        self._waiting: list[Callable[[], None]] = []

    def wake(self, context: Context) -> None:
        """Run the job: there is a work item."""
        self.busy = True
        if self._called is None:
            self._called = context.new_waiter()
            context.job(self._work, context, name=self._name)
        if not self._called.done():
            self._called.set_result(None)

    def expire(self) -> None:
        """End the wait for work items: none has come for `LINGER_S`."""
        if self._called is not None and not self._called.done():
            self._called.set_result(None)

    def begin_beside(self) -> None:
        """Work has begun elsewhere; the queue is not idle before it ends. Needs one `end_beside`."""
        self._beside += 1

    def end_beside(self) -> None:
        self._beside -= 1
        self._tell()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the queue is idle, at once if it is idle now."""
        self._waiting.append(callback)
        self._tell()

    def _tell(self) -> None:
        while self._waiting and not (self.busy or self._beside):
            self._waiting.pop()()

    async def _work(self, context: Context) -> None:
        while self.busy:
            while (one := self._take()) is not None:
                await one
            # Before `_tell`, whose callbacks may bring the next item and set it again.
            self.busy = False
            if self._waiting:
                self._tell()
            if not self.busy:
                await self._linger(context)
        self._called = None

    async def _linger(self, context: Context) -> None:
        called = self._called = context.new_waiter()
        # The wheel, since the precise end does not matter, and an exact timer for each turn costs more.
        expiring = context.expire_in(LINGER_S, self)
        try:
            await called
        finally:
            expiring.discard(self)
