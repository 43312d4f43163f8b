"""Supervision: starting children in order, deciding about those that end, stopping them in reverse.

Any actor may have children; a `Supervisor` does nothing else. An unexpected end is decided in the supervisor's own turn
(`Exited` on its system lane), so decisions come one after the other. A restart (stopping siblings, the backoff, the
starts) is a job, so one bad child never keeps the supervisor from its other children, and a shutdown can always come in
between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from functools import partial
from typing import TypeAlias

import anyio
from msgspec import Struct

from repertory.errors import ActorDead, AlreadyExists, NotFound, RestartLimitReached, StartFailed
from repertory.runtime.child import AfterEnd, Child, Exited, Services
from repertory.runtime.lifecycle import (
    ActorInfo,
    ExitFailed,
    ExitLimitReached,
    ExitReason,
    Killed,
    LifecycleEvent,
    Normal,
    Shutdown,
)
from repertory.runtime.message import ORIGIN
from repertory.runtime.ref import ActorRef, announce_end, announce_restart
from repertory.runtime.spec import Backoff, ChildSpec, Restart, Strategy, SupervisorSettings
from repertory.runtime.waker import Waiter

_ASKED = Shutdown("asked to")

Settled = Callable[[Exception | None], None]
StartJob = Callable[[Callable[[], Awaitable[None]], str], object]
"""Starts work beside the supervisor's turns, under a name."""


class _Recovery(Struct, eq=False):
    """One restart under way."""

    pending: list[Child]
    """The children that it has yet to start."""


class Children:
    """The children of one incarnation, in the order in which they were first started."""

    __slots__ = (
        "_by_name",
        "_closed",
        "_owner",
        "_reason",
        "_recoveries",
        "_restarts",
        "_services",
        "_start_job",
        "_undecided",
        "about_to_restart",
        "settings",
    )

    def __init__(self, owner: ActorRef[object], services: Services, start_job: StartJob) -> None:
        self._owner = owner
        self._services = services
        self._start_job = start_job
        self._by_name: dict[str, Child] = {}
        self._restarts: tuple[float, ...] = ()
        self._recoveries: list[_Recovery] = []
        self._undecided = 0
        """Children that have ended without a decision yet."""
        self.about_to_restart = False
        """True if a child has ended, and its siblings may have to restart with it."""
        self._closed = False
        self._reason = _ASKED
        self.settings = SupervisorSettings()

    def all(self) -> Sequence[Child]:
        """Each, in order. From any thread."""
        return tuple(self._by_name.values())

    def infos(self, without: Container[str] = ()) -> tuple[ActorInfo, ...]:
        """The states of the children. `without`: names of those that are left out."""
        return tuple(child.info() for name, child in self._by_name.items() if name not in without)

    def find(self, name: str) -> ActorRef[object]:
        """The child of that name. Errors: `NotFound`."""
        return self._entry(name).ref

    def child(self, name: str) -> Child | None:
        return self._by_name.get(name)

    def refs(self) -> dict[str, ActorRef[object]]:
        """The addresses of all children by name, in starting order."""
        return {name: child.ref for name, child in self._by_name.items()}

    # ------------------------------------------------------------------------------------------------ start and stop

    def begin(self, spec: ChildSpec, settled: Settled) -> ActorRef[object]:
        """Start a child after the others; `settled` is called once, after this step, with None or with the error when
        the child has ended.

        Errors: `AlreadyExists`; `ActorDead` when this supervisor is stopping.
        """
        child = self._add(spec)
        self._launch(child, settled)
        return child.ref

    async def start(self, spec: ChildSpec) -> ActorRef[object]:
        """Start a child and wait for it. Cancelled, it is killed. Errors: as `begin`; `StartFailed`."""
        child, asker = self._add(spec), ORIGIN.get().waits
        if asker is not None:
            asker.wait_for(child.ref.mailbox.waits)
        try:
            # Shown in the wait-for graph: a child whose `on_start` asks its own supervisor would wait for ever, and
            # gets `Deadlock`.
            error = await self._launch_and_wait(child)
        except BaseException:
            # Nobody would know of the child: its starter has gone without a ref.
            child.settled, child.after_end = None, AfterEnd.FORGET
            if child.cell is not None:
                child.cell.kill()
            raise
        finally:
            if asker is not None:
                asker.wait_no_more_for(child.ref.mailbox.waits)
        if error is not None:
            raise error
        return child.ref

    def end(self, name: str, ended: Callable[[], object], reason: Shutdown = _ASKED) -> None:
        """Stop a child in order and forget it, then call `ended`. Errors: `NotFound`."""
        child = self._entry(name)
        child.after_end = AfterEnd.FORGET
        if child.cell is None:
            self._forget(child, reason)
            ended()
        else:
            # A tuple: most children never have any, and share the empty one.
            child.on_ended += (ended,)
            child.cell.request_stop(reason, keep_queue=False)

    async def stop(self, name: str) -> None:
        """Stop a child in order and forget it. Errors: `NotFound`."""
        child = self._entry(name)
        child.after_end = AfterEnd.FORGET
        await self._stop(child, keep_queue=False)

    async def close(self, reason: ExitReason) -> None:
        """The supervisor ends for `reason`: stop all for good, the last first, each as long as its spec allows.

        A supervisor that is killed kills them.
        """
        self._closed = True
        self._reason = reason if isinstance(reason, Shutdown) else Shutdown("the supervisor ended")
        last_first = list(reversed(self._by_name.values()))
        for child in last_first:
            child.after_end = AfterEnd.FORGET
        if isinstance(reason, Killed):
            self.kill()
        # Told all at once, then waited for one by one; a thousand sessions would else each have their stop timeout in
        # turn.
        elif self.settings.stop_together:
            for child in last_first:
                self._request_stop(child, keep_queue=False)
        for child in last_first:
            await self._stop(child, keep_queue=False)

    def close_now(self, reason: Shutdown) -> bool:
        """`close`, as long as nothing has to be waited for. False if a child is left, which has been told to stop: the
        supervisor then goes on with `close`.
        """
        self._closed, self._reason = True, reason
        for child in reversed(tuple(self._by_name.values())):
            child.after_end = AfterEnd.FORGET
            self._request_stop(child, keep_queue=False)
            if child.cell is not None:
                return False
            self._forget(child, reason)
        return True

    def kill(self) -> None:
        """End all children now, without waiting."""
        self._closed = True
        for child in tuple(self._by_name.values()):  # Some end, and leave, at once.
            child.after_end = AfterEnd.FORGET
            if child.cell is None:  # It was to be started again.
                self._forget(child, Killed())
            else:
                child.cell.kill()

    # ---------------------------------------------------------------------------------------------- reports of children

    def child_started(self, child: Child) -> None:
        child.started_at = self._services.transport.waker.now()
        child.settle(None)

    def child_ended(self, child: Child, reason: ExitReason) -> None:
        """Note an end. If it was unexpected, the supervisor's next turn decides what follows."""
        started_at, child.started_at, child.cell = child.started_at, None, None
        if started_at is None and child.restarts == 0:
            child.after_end = AfterEnd.FORGET  # Its starter is told that it failed, and would not stop it.
        if child.after_end is AfterEnd.FORGET:
            self._forget(child, reason)
        elif child.after_end is AfterEnd.DECIDE:
            ran_s = 0.0 if started_at is None else self._services.transport.waker.now() - started_at
            self._undecided += 1
            self._note_restarts()
            # On the system lane, since deciding here would run in the middle of whatever the supervisor does now.
            self._owner.mailbox.offer_system(Exited(child, reason, ran_s))
            announce_restart(child.ref, reason)
        child.settle(_start_failed(child, reason) if started_at is None else None)
        # Taken out first: a callback may wait for the end of the next incarnation.
        callbacks, child.on_ended = child.on_ended, ()
        for ended in callbacks:
            ended()

    def _note_restarts(self) -> None:
        # Read by `Cell.handle_at_once`: a caller that tries again right after a failure must not meet a sibling that is
        # about to be replaced.
        together = self.settings.strategy is not Strategy.ONE_FOR_ONE
        self.about_to_restart = together and bool(self._undecided or self._recoveries)

    def decide(self, exited: Exited) -> None:
        """Do what the settings say about a child that ended. Errors: `RestartLimitReached` if they say to give up."""
        self._undecided -= 1
        try:
            self._decide(exited)
        finally:
            self._note_restarts()

    def _decide(self, exited: Exited) -> None:
        child = exited.child
        # The end was noted a while ago: by now a recovery of a sibling may have started the child again, or a caller
        # may have removed it.
        if child.after_end is AfterEnd.FORGET:
            self._start_stranded()
        if self._closed or child.after_end is not AfterEnd.DECIDE or child.cell is not None:
            return
        ending = Ending(restart=child.spec.restart, reason=exited.reason, failures=child.failures, ran_s=exited.ran_s)
        match decide_restart(ending, self.settings, self._restarts, self._services.transport.waker.now()):
            case Forget():
                self._forget(child, exited.reason)
                self._start_stranded()
            case FailUpward(why=why):
                raise _gave_up(child, exited.reason, why)
            case RestartWithin(ceiling_s=ceiling_s, failures=failures, restarts=restarts):
                child.failures, self._restarts = failures, restarts
                self._recover(child, self._services.rng.uniform(0.0, ceiling_s))

    # ------------------------------------------------------------------------------------------------------ recovery

    def _start_stranded(self) -> None:
        """Start the siblings that a recovery left to the decision on a child that is gone."""
        if self.settings.strategy is Strategy.ONE_FOR_ONE:
            return  # There are none, and a supervisor of many sessions must not look at all when one ends.
        pending = [child for recovery in self._recoveries for child in recovery.pending]
        stranded = [each for each in self.all() if each.after_end is AfterEnd.RESTART and each not in pending]
        if stranded:
            self._recover(stranded[0], 0.0)

    def _recover(self, failed: Child, delay_s: float) -> None:
        victims = [failed]
        if self.settings.strategy is not Strategy.ONE_FOR_ONE:
            victims = self._victims(failed)
            self._recoveries.clear()  # A recovery under way stops at its next step; this one includes its victims.
        for victim in victims:
            if victim.after_end is AfterEnd.DECIDE:
                victim.after_end = AfterEnd.RESTART
        recovery = _Recovery(victims)
        self._recoveries.append(recovery)
        self._start_job(partial(self._carry_out, recovery, delay_s), f"restart {failed.spec.name}")

    def _victims(self, failed: Child) -> list[Child]:
        """The children to restart with `failed`, in starting order, including those that an unfinished recovery has yet
        to start.
        """
        children = list(self._by_name.values())
        if self.settings.strategy is Strategy.ONE_FOR_ALL:
            return children
        pending = [child for recovery in self._recoveries for child in recovery.pending]
        return children[min(children.index(child) for child in [failed, *pending] if child in children) :]

    async def _carry_out(self, recovery: _Recovery, delay_s: float) -> None:
        # A copy, since temporary children leave the list below.
        for child in reversed(tuple(recovery.pending)):
            await self._stop(child, keep_queue=True)
            # A later failure has taken the victims over (`_recover`).
            if recovery not in self._recoveries:
                return
            if child.spec.restart is Restart.TEMPORARY or child.after_end is AfterEnd.FORGET:
                recovery.pending.remove(child)
                self._forget(child, Shutdown())
        # After the siblings have stopped and not before: what depends on the failed child must not work on without it.
        await anyio.sleep(delay_s)
        while recovery in self._recoveries and recovery.pending:
            child = recovery.pending.pop(0)
            if child.after_end is AfterEnd.RESTART and not await self._start_again(child):
                break  # The decision on its failure takes care of the children after it, also if the child is gone.
        if recovery in self._recoveries:
            self._recoveries.remove(recovery)
            self._note_restarts()

    async def _start_again(self, child: Child) -> bool:
        """Start the child again. False if that failed and has to be decided: it is on the supervisor's system lane."""
        child.after_end = AfterEnd.DECIDE
        child.restarts += 1
        self._services.totals.restarts += 1
        child.advance(LifecycleEvent.RESTART)
        child.advance(LifecycleEvent.START)
        return await self._launch_and_wait(child) is None or self._by_name.get(child.spec.name) is not child

    # ------------------------------------------------------------------------------------------------------- details

    def _entry(self, name: str) -> Child:
        child = self._by_name.get(name)
        if child is None:
            raise NotFound("no such child", supervisor=self._owner.path, name=name, children=list(self._by_name))
        return child

    def _add(self, spec: ChildSpec) -> Child:
        """A new child, which has an address and does not run yet. Errors: as `begin`."""
        if self._closed:
            raise ActorDead("the supervisor is stopping and starts nothing", supervisor=self._owner.path)
        if spec.name in self._by_name:
            raise AlreadyExists("a child of that name exists", supervisor=self._owner.path, name=spec.name)
        child = self._services.address("" if self._owner.path == "/" else self._owner.path, spec)
        # Entered before it runs, so that a stop that comes during its start finds it.
        self._by_name[spec.name] = child
        return child

    def _launch(self, child: Child, settled: Settled) -> None:
        child.settled = settled
        child.cell = self._services.incarnate(child, self)
        child.cell.launch()

    async def _launch_and_wait(self, child: Child) -> Exception | None:
        """Start the incarnation; None when it has started, or the error with which it ended before."""
        waiter = self._services.transport.waker.waiter()
        outcome: list[Exception | None] = []

        def settled(error: Exception | None) -> None:
            outcome.append(error)
            _complete(waiter)

        self._launch(child, settled)
        await waiter
        return outcome[0]

    def _request_stop(self, child: Child, *, keep_queue: bool) -> None:
        if child.cell is not None:
            child.cell.request_stop(self._reason, keep_queue=keep_queue)

    async def _stop(self, child: Child, *, keep_queue: bool) -> None:
        """Stop the incarnation and wait for its end, however long its spec allows."""
        self._request_stop(child, keep_queue=keep_queue)
        while child.cell is not None:
            # Attached anew in each round: between the end and this line a recovery may have started the next
            # incarnation.
            waiter = self._services.transport.waker.waiter()
            child.on_ended += (partial(_complete, waiter),)
            await waiter
        if child.after_end is AfterEnd.FORGET:
            self._forget(child, Shutdown())

    def _forget(self, child: Child, reason: ExitReason) -> None:
        # By identity: a child of the same name may have been started since.
        if self._by_name.get(child.spec.name) is child:
            del self._by_name[child.spec.name]
            self._services.totals.processed += child.processed
            self._services.totals.failed += child.failed
            child.ref.mailbox.close()
            announce_end(child.ref, reason)


def _complete(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _start_failed(child: Child, reason: ExitReason) -> StartFailed:
    error = StartFailed("the actor did not start", actor=child.ref.path, reason=type(reason).__name__)
    error.__cause__ = reason.error if isinstance(reason, ExitFailed | ExitLimitReached) else None
    return error


def _gave_up(child: Child, reason: ExitReason, why: str) -> RestartLimitReached:
    error = RestartLimitReached("the supervisor gave up", child=child.ref.path, why=why)
    error.__cause__ = reason.error if isinstance(reason, ExitFailed | ExitLimitReached) else None
    return error


# What to do about a child that ended: a pure decision.
#
# As in OTP, the intensity counts the restarts of all children of one supervisor. In addition, failures of one child
# with no healthy run in between have their own count, because backoff can stretch them past any period.


class Ending(Struct, frozen=True, kw_only=True):
    """The end of one incarnation of a child."""

    restart: Restart
    reason: ExitReason
    failures: int
    """Failed incarnations before it, since the last healthy one."""
    ran_s: float
    """Seconds from the acknowledged start to the end; 0 if the start was never acknowledged."""


class Forget(Struct, frozen=True):
    """Do not start the child again."""


class RestartWithin(Struct, frozen=True):
    """Start the child again after a random part of `ceiling_s`. `failures` and `restarts` are for the next decision."""

    ceiling_s: float
    failures: int
    restarts: tuple[float, ...]


class FailUpward(Struct, frozen=True):
    """Stop all children and fail upward."""

    why: str


RestartVerdict: TypeAlias = Forget | RestartWithin | FailUpward


def decide_restart(
    ending: Ending, settings: SupervisorSettings, restarts: tuple[float, ...], now: float
) -> RestartVerdict:
    """The verdict on an ended child. `restarts`: the times of the supervisor's last restarts, from the last verdict."""
    if not wants_restart(ending.restart, ending.reason):
        return Forget()
    failures = failures_behind(ending.failures, ending.ran_s, settings.backoff)
    if failures >= settings.failures_max:
        return FailUpward(f"{failures} failures without a healthy run")
    # At most `intensity` + 1 times, so a tuple that is built anew is as cheap as a deque.
    recent = (*(at for at in restarts if at > now - settings.period_s), now)
    if len(recent) > settings.intensity:
        return FailUpward(f"more than {settings.intensity} restarts in {settings.period_s:g} s")
    return RestartWithin(backoff_ceiling_s(failures - 1, settings.backoff), failures, recent)


def wants_restart(restart: Restart, reason: ExitReason) -> bool:
    """True if a child of this type, ended for this reason, is to run again."""
    match restart:
        case Restart.PERMANENT:
            return True
        case Restart.TRANSIENT:
            return not isinstance(reason, Normal | Shutdown)
        case Restart.TEMPORARY:
            return False


def failures_behind(failures: int, ran_s: float, backoff: Backoff) -> int:
    """Failures in a row, including this one: 1 after a healthy run."""
    return 1 if ran_s >= backoff.healthy_s else failures + 1


def backoff_ceiling_s(failures: int, backoff: Backoff) -> float:
    """The longest wait before the restart that follows `failures` earlier ones."""
    # Bounded exponent: 2.0 ** 1024 is an OverflowError.
    return min(backoff.limit_s, backoff.base_s * 2.0 ** min(failures, 64))
