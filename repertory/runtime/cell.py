"""One incarnation of an actor: its task, from the start to the last clean-up.

Only this file turns a failure into an exit reason. An actor's exception never enters a task group; its supervisor is
told, and decides. A cancellation of its task is a kill, unless this file itself cancelled a start, a turn or a drain
that took too long. A cancelled task ends here and does not re-raise: after a native cancellation that would take every
other actor's task down with it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Container
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from typing import TypeAlias, cast

import anyio
import anyio.lowlevel

from repertory.errors import ActorDead, ActorFailed, RestartLimitReached, StartFailed
from repertory.logs import ERROR, note
from repertory.runtime.actor import Actor, Context, Jobs, JobWork, over
from repertory.runtime.child import Child, Exited, ParentPort, Services
from repertory.runtime.faults import ForeignFailure, being_cancelled, ends_program
from repertory.runtime.lifecycle import (
    ActorInfo,
    ActorTotals,
    ExitFailed,
    ExitLimitReached,
    ExitReason,
    Killed,
    LifecycleEvent,
    Normal,
    Shutdown,
    State,
)
from repertory.runtime.message import (
    CARRY_ON,
    ORIGIN,
    CallContext,
    CarryOn,
    Envelope,
    Fail,
    Next,
    Note,
    Reason,
    Refuse,
    Reject,
    Reply,
    Stop,
    Unanswered,
)
from repertory.runtime.ref import Down
from repertory.runtime.timers import Expiring, TimerFired

_LOG = logging.getLogger("repertory.runtime")

_UNASKED = Shutdown()

MessageHandler: TypeAlias = Callable[[object], Awaitable[Next]]

BURST = 64
"""Messages handled before other tasks get a turn, and system messages handled before a waiting normal one."""


async def attempt(work: JobWork) -> ExitFailed | Killed | None:
    """Run `work` as the last thing that its task does. Returns how it failed; `Killed` if its task was cancelled
    natively; None if it has ended, or was cancelled by a scope.
    """
    try:
        await work()
    except BaseException as error:
        # Not raised again: a native cancellation that leaves this task would end the task group, and with it every
        # actor.
        if isinstance(error, anyio.get_cancelled_exc_class()) and being_cancelled():
            return None if anyio.current_effective_deadline() == -math.inf else Killed()
        failure = _failure_in(error)
        # An interrupt or exit of the program must reach the event loop.
        if failure is None:
            raise
        return ExitFailed(failure)
    return None


class Cell:
    """Runs one incarnation. `child` is its address, `keeper` its supervisor."""

    __slots__ = (
        "_actor",
        "_at_once",
        "_bucket",
        "_child",
        "_context",
        "_cut",
        "_ended_at_once",
        "_failed",
        "_handle",
        "_hook",
        "_keep_queue",
        "_keeper",
        "_origin",
        "_processed",
        "_rests",
        "_services",
        "_started",
        "_stop_reason",
        "_turn_at",
        "_variables",
    )

    def __init__(self, child: Child, keeper: ParentPort, services: Services) -> None:
        self._child = child
        self._keeper = keeper
        self._services = services
        waits = child.ref.mailbox.waits
        # One for all turns: `_serve` changes its fields, which is cheaper than a context variable set for every
        # message.
        self._origin = CallContext(waits, waits)
        self._context = Context(child.ref, keeper, services, self)
        self._actor: Actor[object] | None = None
        self._handle: anyio.TaskHandle[None] | None = None
        self._hook: anyio.CancelScope | None = None
        self._bucket: set[Expiring] | None = None
        self._cut: ExitReason | None = None
        self._at_once = 0
        """Messages handled in their senders' steps since the actor's own task ran."""
        self._ended_at_once: ExitReason | None = None
        """The reason for which a message handled in its sender's step ended this incarnation; None while none has."""
        self._keep_queue = False
        self._rests = False
        """True while it has no task (`Actor.rests`). The cell itself is then what its mailbox wakes."""
        self._variables: Variables | None = None
        """The context variables that the actor has started with, if it is ever used outside its first task."""
        self._started = False
        self._stop_reason = _UNASKED
        self._turn_at = 0.0
        self._processed = 0
        self._failed = 0

    # ----------------------------------------------------------------------------------------------- for the supervisor

    def launch(self) -> None:
        """Start the task. Its cancel scope exists before its first step, so it can be ended at any time from now on."""
        self._expire_in(self._child.spec.start_timeout_s)
        self._handle = self._services.spawn(self._run(), self._child.ref.path, self._end_unbegun)

    def request_stop(self, reason: Shutdown, *, keep_queue: bool) -> None:
        """Stop in order; a start is cut short. A second request changes nothing."""
        child = self._child
        self._stop_reason = reason
        starting = child.state is State.STARTING
        was_running = child.state is State.RUNNING
        child.advance(LifecycleEvent.STOP)
        if starting:
            self._end_with(reason)
        elif was_running:
            self._keep_queue = keep_queue
            # On the way to a restart the mailbox stays open: what is sent now is for the next incarnation.
            if not keep_queue:
                child.ref.mailbox.drain()
            if self._rests and self._ends_now(reason):
                return
            child.ref.mailbox.wake()
            self._expire_in(child.spec.stop_timeout_s)

    def kill(self) -> None:
        if not self._rests and (self._handle is None or over(self._handle)):
            self._end(Killed())  # An interrupt of the program has ended its task at any line, and left the rest to do.
            return
        self._end_with(Killed())
        # `on_stop` and the end of the children run in shields, which the cancellation of the task above does not pass.
        if self._hook is not None:
            self._hook.cancel()
        if self._context.own_children is not None and self._child.state is State.STOPPING:
            self._context.own_children.kill()

    def expire(self) -> None:
        """End a start or a drain that has taken too long."""
        match self._child.state:
            case State.STARTING:
                limit_s = self._child.spec.start_timeout_s
                self._end_with(ExitFailed(StartFailed("the start took too long", limit_s=limit_s)))
            case State.DRAINING:
                self._end_with(self._stop_reason)
            case _:
                pass

    @property
    def keeping(self) -> ParentPort | None:
        """The supervisor of its own children; None if it never had any."""
        return self._context.own_children

    # -------------------------------------------------------------------------- for its mailbox, while the actor rests

    def done(self) -> bool:
        """True if it has a task, or has ended."""
        return not self._rests

    def set_result(self, result: None, /) -> None:
        """Begin a task: there is something to do."""
        self._rests, self._at_once = False, 0
        transport = self._services.transport
        if transport.waker.in_a_task():
            self._begin_again()
        else:
            # A callback of the loop (`call_soon`, a signal) runs in no task, and anyio's task groups spawn only from
            # one.
            transport.alarms.at(transport.waker.now(), self._begin_again)

    def _begin_again(self) -> None:
        assert self._variables is not None
        # In a copy, because the caller may run among these very variables.
        variables = self._variables.copy()
        spawn, path = self._services.spawn_here, self._child.ref.path
        self._handle = variables.run(spawn, self._run(), path, self._end_unbegun)

    # --------------------------------------------------------------------------------------------------------- the task

    async def _run(self) -> None:
        """Run from the start, or from where the actor lost its task, until it ends or has no task again."""
        # None means that it rests, so it must not stand here: an interrupt of the program would then leave an actor
        # that nobody ends.
        reason: ExitReason | None = Killed()
        try:
            ORIGIN.set(self._origin)
            try:
                if self._cut is None:
                    actor = self._actor
                    reason = await self._serve(await self._start() if actor is None else actor)
                else:
                    reason = self._cut  # Ended before its first step.
            except BaseException as error:
                cancelled = isinstance(error, anyio.get_cancelled_exc_class()) and being_cancelled()
                failure = None if cancelled else _failure_in(error)
                if cancelled:
                    reason = self._cut or Killed()
                elif failure is None:
                    raise
                else:
                    limit = isinstance(failure, RestartLimitReached)
                    reason = ExitLimitReached(failure) if limit else ExitFailed(failure)
            if reason is not None:
                self._leave_turn(reason)
                reason = await self._close(reason)
        # `_close` is shielded, but asyncio's own `Task.cancel` passes shields.
        except anyio.get_cancelled_exc_class():
            reason = Killed()
        finally:
            if reason is not None:
                self._end(reason)

    async def _start(self) -> Actor[object]:
        made: object = self._child.spec.factory()
        if not isinstance(made, Actor):
            raise TypeError(f"the factory of {self._child.ref.path} made no Actor but a {type(made).__name__}")
        actor = self._actor = cast("Actor[object]", made)
        actor.context = self._context
        self._child.ref.mailbox.kind = type(actor).__name__
        await actor.on_start()
        # Before the checkpoint: from here on the actor has all that it needs, and `on_stop` gives it back.
        self._started = True
        # A stop may have come during a shielded part of the start: then end here, and `on_stop` cleans up.
        await anyio.lowlevel.checkpoint_if_cancelled()
        self._child.advance(LifecycleEvent.STARTED)
        self._clear_bucket()
        self._keeper.child_started(self._child)
        await actor.on_ready()
        return actor

    async def _serve(self, actor: Actor[object]) -> ExitReason | None:
        """Handle messages until there is a reason to end; None to rest. Taking a message and beginning its turn is a
        single step.

        This is the runtime's hot path: values needed for every message are held in local names.
        """
        child, context, origin, mailbox = self._child, self._context, self._origin, self._child.ref.mailbox
        mailbox.rest_no_more()
        queue, handle, parking = mailbox.queue, self._handler(actor), self._services.transport.waker
        now, make_waiter, draining, inf = parking.now, parking.waiter, State.DRAINING, math.inf
        burst = system_burst = 0
        while self._ended_at_once is None:
            # First, or a full mailbox would keep a supervisor from its children; in bounds, or a flood of timers would
            # starve the queue.
            if mailbox.lane and (system_burst < BURST or not queue):
                system_burst += 1
                reason = await self._handle_system(actor, handle, mailbox.lane.popleft())
                if reason is not None:
                    return reason
            # With `_keep_queue` it stops for a restart, and the next incarnation handles what is queued.
            elif queue and not self._keep_queue:
                system_burst = 0
                envelope = queue.popleft()
                if mailbox.senders:
                    mailbox.admit()
                at = self._turn_at = now()
                context.envelope = envelope
                origin.trace = envelope.trace
                try:
                    # A tell, the most frequent message, has neither a deadline nor an asker that may have gone.
                    if type(envelope) is Envelope:
                        origin.deadline = inf
                        after = await handle(envelope.message)
                    elif envelope.deadline <= at or envelope.gone is not None:
                        context.envelope = None
                        mailbox.dead_letter(envelope, envelope.gone or Reason.EXPIRED)
                        continue
                    else:
                        origin.deadline = envelope.deadline
                        if envelope.cancellable:
                            after = await self._handle_cancellable(handle, envelope)
                        else:
                            after = await handle(envelope.message)
                except Reject as rejected:
                    after = Refuse(rejected.error)
                # anyio wraps a `Reject` that crosses a task group of the handler. Any other exception leaves this
                # function with `context.envelope` still set, by which `_leave_turn` finds the asker.
                except ExceptionGroup as group:
                    after = _refusal_in(group)
                context.envelope = None
                self._processed += 1
                if type(after) is Reply:
                    envelope.reply(after.value)
                elif after is not CARRY_ON or envelope.asked:
                    reason = self._conclude(envelope, after)
                    if reason is not None:
                        return reason
            elif child.state is draining:
                job = None if context.jobs is None else context.jobs.to_finish()
                if job is not None:
                    await job.wait()
                    continue
                child.advance(LifecycleEvent.DRAINED)
                return self._stop_reason
            # A turn that kills its own actor is cancelled at its next await; a cell that rests has none, so it would
            # never end.
            elif actor.rests and self._cut is None:
                self._rest()
                return None
            else:
                burst = system_burst = 0
                # No await lies between the look at the queues and this line, so no wake-up is lost.
                waiter = mailbox.waiter = make_waiter()
                await waiter
                self._at_once = 0
                continue
            burst += 1
            if burst >= BURST:
                burst = 0
                # A handler that never waits makes `await` a plain call, so a full mailbox would hold the loop.
                await parking.pause()
        return self._ended_at_once

    def _rest(self) -> None:
        """End the task, with which everything goes that is easily made again."""
        self._child.ref.mailbox.rest(self)
        self._context.rest()
        self._handle, self._rests = None, True

    async def _handle_cancellable(self, handle: MessageHandler, envelope: Envelope) -> Next:
        """Handle a request, and cancel its turn if the asker goes."""
        # Only for messages that ask for it, since a cancel scope (as in `fail_after`) costs more than a whole ask.
        with anyio.CancelScope() as scope:
            envelope.on_gone(scope.cancel)
            return await handle(envelope.message)
        # Reached only if the scope was cancelled: the asker has gone, and nobody is owed an answer.
        return CARRY_ON

    def _handler(self, actor: Actor[object]) -> MessageHandler:
        """The handler of queued messages. For an actor with `handle_now`, some may also be handled at once from now on,
        among the context variables that the actor has started with.
        """
        # Looked up once, so that an actor without `handle_now` pays no call that always returns None.
        quick = type(actor).handle_now is not Actor[object].handle_now
        if self._variables is None and (quick or actor.rests):
            self._variables = copy_context()
        if not quick:
            return actor.handle
        self._child.ref.mailbox.at_once = self

        async def handle(message: object) -> Next:
            after = actor.handle_now(message)
            return await actor.handle(message) if after is None else after

        return handle

    @property
    def actor(self) -> object:
        return self._actor

    def handle_at_once(self, call: Envelope) -> bool:
        """Handle a message in its sender's step, as a turn of this actor; False if it has to be queued.

        While it is handled the actor is not idle, so messages that come meanwhile are queued. They, and the end of the
        incarnation, are left to the actor's own task. So is one message in 64, which lets other tasks run.
        """
        mailbox, context, origin = self._child.ref.mailbox, self._context, self._origin
        actor, variables, waiter = self._actor, self._variables, mailbox.waiter
        assert actor is not None
        assert variables is not None
        # A set `waiter` is the proof that the actor is idle. `room` is 0 for one that drains, but also for one that
        # rests, whose waiter is this cell.
        if waiter is None or self._at_once >= BURST:
            return False
        if not self._rests and (waiter.done() or mailbox.room <= 0):
            return False
        if self._keeper.about_to_restart:  # Whoever takes over handles it.
            return False
        self._at_once += 1
        # Not idle any more, so that what the handler causes in this same step is queued behind it.
        mailbox.waiter = None
        context.envelope = call
        self._turn_at, origin.trace, origin.deadline = call.at, call.trace, call.deadline
        try:
            # Among the actor's own variables: its asks must have its own deadline and place in the wait-for graph, not
            # the asker's.
            after = variables.run(actor.handle_now, call.message)
        except Reject as rejected:
            after = Refuse(rejected.error)
        except BaseException as error:
            failure = _failure_in(error)
            if failure is None:
                raise
            # The actor's failure must not pass for one of its asker, whose step this is.
            after = Fail(failure)
        finally:
            context.envelope = None
            mailbox.waiter = waiter
            if mailbox.queue or mailbox.lane or self._child.state is not State.RUNNING:
                mailbox.wake()
        if after is None:
            return False
        self._processed += 1
        if type(after) is Reply:
            call.reply(after.value)
        elif after is not CARRY_ON or call.asked:
            # An end has to await jobs and children, which only the actor's own task can do.
            self._ended_at_once = self._conclude(call, after)
            if self._ended_at_once is not None:
                mailbox.wake()
        return True

    async def _handle_system(self, actor: Actor[object], handle: MessageHandler, message: object) -> ExitReason | None:
        self._origin.deadline, self._origin.trace = math.inf, None
        match message:
            case Exited():
                self._context.supervision.decide(message)
            case Down():
                return self._conclude(Note(message, 0.0, None), await actor.on_down(message))
            # By identity: an equal key of an earlier incarnation may still be on the lane.
            case TimerFired(timers=timers) if timers is self._context.timers and timers.claim(message):
                note = Note(message.message, self._services.transport.waker.now(), None)
                self._turn_at, self._context.envelope = note.at, note
                after = await self._handle_rejecting(handle, note)
                self._context.envelope = None
                return self._conclude(note, after)
            case _:
                pass  # Of an earlier incarnation, or cancelled after it had run out.
        return None

    async def _handle_rejecting(self, handle: MessageHandler, envelope: Envelope) -> Next:
        try:
            return await handle(envelope.message)
        except Reject as rejected:
            return Refuse(rejected.error)
        except ExceptionGroup as group:
            return _refusal_in(group)

    def _conclude(self, envelope: Envelope, after: Next) -> ExitReason | None:
        """Carry out the handler's result. Returns the exit reason if it ends the incarnation."""
        match after:
            case Reply(value=value):
                envelope.reply(value)
            case CarryOn():
                if envelope.unanswered():
                    envelope.fail(ActorFailed("the handler gave no answer", actor=self._child.ref.path))
            case Refuse(error=error):
                self._refuse(envelope, error)
            case Stop(value=value):
                if value is not Unanswered.UNANSWERED:
                    envelope.reply(value)
                elif envelope.unanswered():
                    envelope.fail(ActorDead("the actor stopped before it answered", actor=self._child.ref.path))
                return Normal()
            case Fail(error=error):
                self._failed += 1
                envelope.fail(self._actor_failed(envelope, error))
                return ExitFailed(error)
        return None

    def _refuse(self, envelope: Envelope, error: Exception) -> None:
        if envelope.asked:
            envelope.fail(error)
        elif not isinstance(envelope, Note):
            # The caller has counted it, and a tell is either processed or a dead letter, never both.
            self._processed -= 1
            self._child.ref.mailbox.dead_letter(envelope, Reason.REJECTED)

    # ---------------------------------------------------------------------------------------------------------- the end

    def _leave_turn(self, reason: ExitReason) -> None:
        """If the incarnation ends in the middle of a turn, tell the asker that waits for its answer."""
        envelope, self._context.envelope = self._context.envelope, None
        if envelope is None or isinstance(envelope, Note):
            return
        if isinstance(reason, ExitFailed):
            self._processed += 1
            self._failed += 1
            envelope.fail(self._actor_failed(envelope, reason.error))
        elif envelope.unanswered() or not envelope.asked:
            self._child.ref.mailbox.dead_letter(envelope, Reason.CANCELLED)
        else:
            self._processed += 1  # It was answered, or its slot or sink is open.

    async def _close(self, reason: ExitReason) -> ExitReason:
        """End jobs, then children, then run the actor's own clean-up. Only a native cancellation, which is a kill, is
        raised.
        """
        if self._child.state is not State.STOPPING:
            self._child.advance(LifecycleEvent.END)
        if isinstance(self._cut, Killed):  # The task may not have noticed it: it was about to stop in order.
            reason = self._cut
        context = self._context
        # The task is usually here because it was cancelled, and would be again at each await.
        with anyio.CancelScope(shield=True):
            if context.jobs is not None:
                await context.jobs.close()
            if context.own_children is not None:
                await context.own_children.close(reason)
            killed = isinstance(reason, Killed) or isinstance(self._cut, Killed)  # By now, at the latest.
            # A start that failed, or that a stop has cut short, has cleaned up after itself, as in OTP: `on_stop` could
            # not know which attributes it has set by then.
            if self._started and not killed and self._actor is not None:
                reason = await self._clean_up(self._actor, reason)
        return reason

    async def _clean_up(self, actor: Actor[object], reason: ExitReason) -> ExitReason:
        """Run `on_stop`. If it raises or takes too long, that replaces the reason of an orderly end."""
        # Else asks of `on_stop` would inherit the deadline of the turn that has failed, which may be over.
        self._origin.deadline = math.inf
        failed: ExitFailed | Killed | None = None
        with anyio.move_on_after(self._child.spec.stop_timeout_s, shield=True) as self._hook:
            failed = await attempt(partial(_stop, actor, reason))
        if isinstance(failed, ExitFailed):
            note(_LOG, ERROR, "on_stop failed", failed.error, actor=self._child.ref.path)
        elif failed is not None or self._hook.cancel_called:
            note(_LOG, ERROR, "on_stop was cut short", actor=self._child.ref.path)
        else:
            return reason
        # The first failure is the cause; what goes wrong while cleaning up after it is logged only.
        if not isinstance(reason, Normal | Shutdown):
            return reason
        return failed or Killed()

    def _ends_now(self, reason: Shutdown) -> bool:
        """Stop in this step, without a task, while the actor rests. False if something of it has to be waited for."""
        actor, context, variables = self._actor, self._context, self._variables
        assert actor is not None
        assert variables is not None
        if context.envelope is not None or (context.jobs is not None and len(context.jobs)):
            return False
        if context.own_children is not None and not context.own_children.close_now(reason):
            return False
        ended: ExitReason = reason
        try:
            # A copy, since the caller may run among these very variables, and a `Context` cannot be entered twice.
            if not variables.copy().run(actor.stop_now, reason):
                return False
        except BaseException as error:
            failure = _failure_in(error)
            if failure is None:
                raise
            note(_LOG, ERROR, "stop_now failed", failure, actor=self._child.ref.path)
            ended = ExitFailed(failure)
        self._child.advance(LifecycleEvent.DRAINED)
        self._end(ended)
        return True

    def _end_unbegun(self) -> None:
        """End the incarnation, whose task was cancelled before its first step."""
        self._end(self._cut or Killed())

    def _end(self, reason: ExitReason) -> None:
        """Release everything and tell the supervisor, in one step that nothing can interrupt."""
        child, context = self._child, self._context
        self._clear_bucket()
        if self._rests:
            self._rests, child.ref.mailbox.waiter = False, None
        if context.own_children is not None:
            context.own_children.kill()
        context.close()
        child.ref.mailbox.at_once = None
        if child.ref.mailbox.lane is not None:
            # Timers, `Down`s and ends of children are addressed to this incarnation; messages on the queue are for the
            # address.
            child.ref.mailbox.lane.clear()
        child.processed += self._processed + context.taken
        child.failed += self._failed
        if child.state is not State.STOPPED:
            if child.state is not State.STOPPING:
                child.advance(LifecycleEvent.END)
            child.advance(LifecycleEvent.ENDED)
        if isinstance(reason, ExitFailed | ExitLimitReached):
            self._report(reason)
        # Last: the supervisor may start the next incarnation, or forget the address, within this call.
        self._keeper.child_ended(child, reason)

    def _report(self, reason: ExitFailed | ExitLimitReached) -> None:
        """Log a failure. A first start that failed is not logged, because its starter is told."""
        level = logging.ERROR if self._started or self._child.restarts else logging.DEBUG
        path, number, why = self._child.ref.path, self._child.restarts + 1, type(reason).__name__
        note(_LOG, level, "actor ended", reason.error, actor=path, incarnation=number, reason=why)

    # ---------------------------------------------------------------------------------------------------------- details

    def info(self, without: Container[str] = ()) -> ActorInfo:
        child, context, mailbox = self._child, self._context, self._child.ref.mailbox
        waits = mailbox.waits
        now = self._services.transport.waker.now()
        current = context.envelope
        return ActorInfo(
            path=child.ref.path,
            kind=mailbox.kind,
            state=child.state,
            incarnation=child.restarts + 1,
            queued=len(mailbox.queue),
            bound=mailbox.capacity,
            queued_system=len(mailbox.lane or ()),
            oldest_s=now - mailbox.queue[0].at if mailbox.queue else None,
            current=None if current is None else type(current.message).__name__,
            running_s=None if current is None else now - self._turn_at,
            waiting_on=tuple(other.path for other in waits.waiting_on) if waits.waiting_on else (),
            jobs=() if context.jobs is None else context.jobs.names(),
            timers=0 if context.timers is None else len(context.timers),
            processed=child.processed + self._processed + context.taken,
            failed=child.failed + self._failed,
            summary=self.summary(),
            children=() if context.own_children is None else context.own_children.infos(without),
        )

    def summary(self) -> object:
        return None if self._actor is None else self._actor.summary()

    def add_to(self, sums: ActorTotals) -> None:
        """Add the counts of this incarnation to `sums`."""
        context = self._context
        sums.processed += self._processed + context.taken
        sums.failed += self._failed
        if context.jobs is not None:
            sums.jobs += len(context.jobs)
        if context.timers is not None:
            sums.timers += len(context.timers)

    def make_jobs(self) -> Jobs:
        """Make the jobs of this incarnation."""
        return Jobs(self._child.ref.mailbox.waits, self._services.spawn_here, attempt, self)

    def jobs_ended(self) -> None:
        """Give up the task again: the last job has ended."""
        if self._rests:
            self._context.rest()

    def job_failed(self, reason: ExitFailed | Killed) -> None:
        """End the incarnation with a job's failure, or only log it while the actor stops."""
        if self._child.state is not State.STOPPING:
            self._end_with(reason)
        elif isinstance(reason, ExitFailed):
            note(_LOG, ERROR, "a job failed while the actor stopped", reason.error, actor=self._child.ref.path)

    def _end_with(self, reason: ExitReason) -> None:
        """Cancel what the task does now. `reason` counts unless there is a more specific one."""
        # A kill overrides an orderly stop, since `on_stop` must not run; nothing overrides a kill.
        if self._cut is None or isinstance(reason, Killed):
            self._cut = reason
        if self._rests:
            self.set_result(None)
        elif self._handle is not None:
            self._handle.cancel()

    def _actor_failed(self, envelope: Envelope, error: Exception) -> ActorFailed:
        message = type(envelope.message).__name__
        failed = ActorFailed("the handler raised", actor=self._child.ref.path, message=message, error=repr(error))
        failed.__cause__ = error
        return failed

    def _expire_in(self, seconds: float) -> None:
        self._clear_bucket()
        if seconds < math.inf:
            self._bucket = self._services.transport.alarms.expire_at(
                self._services.transport.waker.now() + seconds, self
            )

    def _clear_bucket(self) -> None:
        bucket, self._bucket = self._bucket, None
        if bucket is not None:
            bucket.discard(self)


async def _stop(actor: Actor[object], reason: ExitReason) -> None:
    if not actor.stop_now(reason):
        await actor.on_stop(reason)


def _failure_in(error: BaseException) -> Exception | None:
    """The exception, taken out of groups of one; None for an interrupt or an exit, which are no failures."""
    if isinstance(error, Exception) and not isinstance(error, ExceptionGroup):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None if ends_program(error) else ForeignFailure(error)
    cancelled = anyio.get_cancelled_exc_class()
    group = cast("BaseExceptionGroup[BaseException]", error)
    # When one child task fails, its siblings are cancelled, and trio puts their `Cancelled` into the same group.
    inner = [one for one in group.exceptions if not isinstance(one, cancelled)]
    if len(inner) == 1:
        return _failure_in(inner[0])
    failures = [failure for failure in map(_failure_in, inner) if failure is not None]
    return ExceptionGroup(group.message, failures) if len(failures) == len(inner) > 0 else None


def _refusal_in(group: ExceptionGroup[Exception]) -> Refuse:
    """A `Reject` that was raised inside a task group of the handler, as its error. Anything else is raised."""
    failure = _failure_in(group)
    if isinstance(failure, Reject):
        return Refuse(failure.error)
    raise group
