"""A whole system of actors: opening, inspecting and draining it.

    host task                    `async with ActorSystem()`: may be cancelled at any time
    `- root task                 shielded, so that no outside cancellation reaches the actors
       |- alarms                 timers and deadlines
       |- one task per actor
       |- one task per job
       `- the drain              a task of its own for the same reason

A cancelled host, natively or by a scope, does not lose the actors' work: leaving the block then runs the part of the
drain that has a reserve, and only then lets the cancellation go on.
"""

from __future__ import annotations

import contextvars
import logging
import os
from collections import Counter
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Literal, NamedTuple, TypeAlias

import anyio
from anyio.abc import TaskStatus
from msgspec import Struct, field

from repertory.errors import ActorDead, Invalid, NotFound, NotReady, RestartLimitReached
from repertory.logs import DEBUG, note
from repertory.runtime.cell import Cell
from repertory.runtime.child import Child, ParentPort, Services, Totals
from repertory.runtime.drain import ActorsReport, Drain, DrainPhase, Hook, Hooks
from repertory.runtime.lifecycle import (
    ActorInfo,
    ActorTotals,
    ExitFailed,
    ExitLimitReached,
    ExitReason,
    Shutdown,
    SystemStats,
)
from repertory.runtime.mailbox import DeadLetters, Mailbox, MailboxSettings
from repertory.runtime.ref import ActorRef, Transport, announce_end
from repertory.runtime.signals import end_by_signal, serve_signals
from repertory.runtime.spec import ChildSpec, SupervisorSettings
from repertory.runtime.supervisor import Supervisor
from repertory.runtime.timers import Alarms, Clock, Rng, unseeded
from repertory.runtime.waker import parking_here

_LOG = logging.getLogger("repertory.runtime")

OnFatal: TypeAlias = Literal["raise", "signal"] | Callable[[Exception], object]


class SystemSettings(Struct, frozen=True, kw_only=True):
    """Settings of a whole system.

    Attributes:
        dead_letters_max: The number of the latest dead letters that are held.
        on_kill: Called when a drain's time is over, and its actors are killed.
        not_open: The text of the error of a call before the block.
    """

    phases: tuple[DrainPhase, ...] = (DrainPhase(name="stop actors", timeout_s=20.0, reserve_s=5.0, stops_actors=True),)
    """The phases of a drain, in order."""
    grace_s: float = 25.0
    """The most seconds of a whole drain. Below the usual 30 s after which a process is killed."""
    force_after_s: float = 5.0
    """Seconds after the grace until `serve_signals` ends the process by force."""
    supervision: SupervisorSettings = field(default_factory=SupervisorSettings)
    """The root's settings for supervising its children."""
    on_fatal: OnFatal = "raise"
    """The root's last act when it gives up: `raise` out of the block; `signal`: send SIGTERM to this process, for
    servers that would go on without their actors; or a function that gets the error.
    """
    dead_letters_max: int = 256
    on_kill: Callable[[], None] | None = None
    not_open: str = "the system is not open: `async with ActorSystem() as system`"

    def __post_init__(self) -> None:
        names = [phase.name for phase in self.phases]
        if len(set(names)) < len(names):
            raise Invalid("two phases have the same name", phases=names)
        if sum(phase.stops_actors for phase in self.phases) != 1:
            raise Invalid("exactly one phase stops the actors", phases=names)
        if sum(phase.reserve_s for phase in self.phases) > self.grace_s:
            raise Invalid("the phases reserve more time than the drain has", grace_s=self.grace_s)


class ActorSystem:
    """`async with ActorSystem() as system: ref = await system.start(ChildSpec(...))`. Enter and leave it in one task.

    Leaving the block drains. `clock` is for actors; deadlines always follow the loop's own clock, which is also the
    default of `clock`.

    Args:
        settings: The settings; None for the defaults.
        clock: Seconds, for actors; None for the event loop's clock.
        rng: The random source of actors; None for one without a seed.
    """

    def __init__(
        self, settings: SystemSettings | None = None, *, clock: Clock | None = None, rng: Rng | None = None
    ) -> None:
        self._settings = settings or SystemSettings()
        self._clock = clock
        # Public for those who work beside its actors, and for tests, which set it before the system opens.
        self.rng = rng or unseeded()
        self._hooks = Hooks(self._settings.phases)
        self._drain: Drain | None = None
        self._report: ActorsReport | None = None
        self._fatal: Exception | None = None
        self._opened: Root | None = None
        self._opened_at = 0.0
        self.healthy = True
        """True while it runs and accepts work, neither lost nor draining: the value for a readiness probe. Read it."""

    async def __aenter__(self) -> ActorSystem:
        parking = parking_here()
        # Actors must not see the variables of whoever happened to start them: a trace, a budget or a deadline of one
        # call would go on in a session for ever.
        self._base = contextvars.copy_context()
        self._alarms = Alarms(parking.now)
        self._over = anyio.Event()
        self._draining = anyio.Event()
        self._drained = anyio.Event()
        self._services = Services(
            transport=Transport(waker=parking, alarms=self._alarms),
            dead_letters=DeadLetters(parking.now, self._settings.dead_letters_max),
            clock=self._clock or parking.now,
            rng=self.rng,
            spawn=self._spawn,
            spawn_here=self._spawn_here,
            incarnate=lambda child, keeper: Cell(child, keeper, self._services),
            totals=Totals(),
        )
        self._opened = Root(self._services, self._settings.supervision, self._lose, self._settings.on_kill)
        self._opened_at = parking.now()
        self._host = anyio.create_task_group()
        await self._host.__aenter__()
        self._host.start_soon(self._run, name="actor system")
        try:
            await self._root.started.wait()
        except BaseException as error:
            self._root.kill()
            self._over.set()
            # The group was entered by hand, so it has to be left by hand, or the cancel scopes of the caller stay out
            # of order.
            await self._host.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        cancelled = isinstance(error, anyio.get_cancelled_exc_class())
        # Read before the drain, which may set it.
        lost = self._fatal is not None
        interrupted = await self._drain_whatever_happens(cut_short=cancelled)
        # In the group it would come out wrapped in an `ExceptionGroup`.
        if not cancelled:  # The body's error goes on by itself, not through the group.
            kind, error, traceback = type(interrupted) if interrupted else None, interrupted, None
        try:
            suppress = await self._host.__aexit__(kind, error, traceback)
        # The root's task cancels the body when the system is lost (`_run`), so the cancellation is ours, and the reason
        # is raised in its place.
        except anyio.get_cancelled_exc_class():
            if not (lost and self._raises):
                raise
        else:
            if not self._raises:
                return suppress if kind is not None else None
            if error is not None and not lost:
                raise error from None  # The host was cancelled first, natively, and the actors after it.
        assert self._fatal is not None
        raise self._fatal from self._fatal.__cause__

    @property
    def _raises(self) -> bool:
        """True if the block must raise the error that ended the system."""
        return self._fatal is not None and self._settings.on_fatal == "raise"

    # ------------------------------------------------------------------------------------- starting and stopping actors

    async def start(self, spec: ChildSpec, *, under: ActorRef[object] | None = None) -> ActorRef[object]:
        """Start an actor under the root supervisor, or under another actor, and wait until it has started.

        Cancelled, it is killed.

        Args:
            spec: The actor to start.
            under: The actor that becomes its supervisor; None for the root.

        Raises:
            StartFailed: If the actor failed as it started. Read its `__cause__`.
            AlreadyExists: If the supervisor has a child of that name. Choose another name, or stop that child first.
            ActorDead: If the supervisor, or the system, is stopping. Start nothing more there.
            NotFound: If the supervisor has ended. Look up its new ref.
        """
        return await self._keeper_at("/" if under is None else under.path).start(spec)

    async def stop(self, ref: ActorRef[object], why: str = "") -> None:
        """Stop an actor in order, with all below it, and wait for its end. Cancelled, the stop goes on.

        Its supervisor forgets it. An ended actor is left alone. `why` reaches `on_stop` as `Shutdown(why)`.

        Args:
            ref: The actor.
            why: The reason, for `on_stop`.
        """
        if ref.ended is not None:
            return
        ended = anyio.Event()
        keeper = self._keeper_at(ref.path.rpartition("/")[0])
        keeper.end(ref.name, ended.set, Shutdown(why))
        await ended.wait()

    def begin_stop(self, ref: ActorRef[object], why: str = "") -> bool:
        """Begin to stop an actor, without waiting for the end. True if the actor has ended already, since all in it
        rested and had nothing to wait for.

        Args:
            ref: The actor.
            why: The reason, for `on_stop`.
        """
        if ref.ended is None:
            keeper = self._keeper_at(ref.path.rpartition("/")[0])
            keeper.end(ref.name, lambda: None, Shutdown(why))
        return ref.ended is not None

    def kill(self, ref: ActorRef[object]) -> None:
        """End an actor now, with all below it, without `on_stop`. Its supervisor decides what follows.

        Args:
            ref: The actor.
        """
        if ref.ended is None:
            child = self._keeper_at(ref.path.rpartition("/")[0]).child(ref.name)
            if child is not None and child.cell is not None:
                child.cell.kill()

    # ------------------------------------------------------------------------------------------------------- inspecting

    @property
    def dead_letters(self) -> DeadLetters:
        """The messages that no actor handled."""
        return self._root.services.dead_letters

    def tree(self, without: Container[str] = ()) -> ActorInfo:
        """All actors, from the root down, at this instant. Needs no answer from them, so it works on stuck actors too.

        Args:
            without: Names of the root's children that are left out, with all below them.
        """
        return self._root.info(without)

    def summary(self, path: str) -> object:
        """An actor's own `summary`; None if none runs there. From any thread from which that may be called.

        Args:
            path: The actor's path.
        """
        above, _, name = path.rpartition("/")
        with suppress(ActorDead, NotFound):  # Those above it may have ended.
            child = self._keeper_at(above).child(name)
            return None if child is None or child.cell is None else child.cell.summary()

    def stats(self) -> SystemStats:
        """The sums over all actors, and over those that are gone. Several times cheaper than `tree`."""
        services = self._root.services
        dead_letters, totals = services.dead_letters, services.totals
        sums = ActorTotals(processed=totals.processed, failed=totals.failed)
        for child in self._root.all_below():
            child.add_to(sums)
        return SystemStats(
            actors=sums.actors,
            queued=sums.queued,
            processed=sums.processed,
            failed=sums.failed,
            restarts=totals.restarts,
            jobs=sums.jobs,
            timers=sums.timers,
            dead_letters=self._dead_letters_by_reason(),
            dead_tells=dead_letters.tells,
            late_replies=dead_letters.late_replies,
        )

    def queues(self) -> Mapping[str, QueueDepth]:
        """The depths of the mailboxes, by the actors' classes. From any thread; many times cheaper than `tree`."""
        depths: dict[str, QueueDepth] = {}
        for child in self._root.all_below():
            mailbox = child.ref.mailbox
            queued, known = len(mailbox.queue), depths.get(mailbox.kind, _EMPTY)
            depths[mailbox.kind] = QueueDepth(known.actors + 1, known.queued + queued, max(known.longest, queued))
        return depths

    @property
    def report(self) -> ActorsReport | None:
        """The report of the drain that is over; None before."""
        return self._report

    @property
    def restarts(self) -> int:
        """The number of restarts of actors. From any thread."""
        return self._root.services.totals.restarts

    def observe_waits(self, observe: Callable[[float], None] | None) -> None:
        """Have `Context.note_wait` call this, or nothing.

        Args:
            observe: Gets the seconds; None for nobody.
        """
        self._root.services.totals.observe_wait = observe

    def now(self) -> float:
        """The event loop's clock. In its thread."""
        return self._root.services.transport.waker.now()

    @property
    def phase(self) -> str | None:
        """The phase of the drain that runs; None before and after a drain."""
        return None if self._drain is None else self._drain.phase

    @property
    def up_s(self) -> float:
        """Seconds since it was opened, by the event loop's clock."""
        return self.now() - self._opened_at

    # -------------------------------------------------------------------------------------------------------- the end

    def on_shutdown(self, phase: str, hook: Hook) -> None:
        """Run `hook` in that phase of the drain, beside the phase's other hooks. A phase that has begun does not see
        it.

        Args:
            phase: The name of the phase.
            hook: An async function without arguments.

        Raises:
            Invalid: For a phase that the settings do not have. Correct the argument.
        """
        self._hooks.add(phase, hook)

    async def drain(self, reason: str = "drain") -> ActorsReport:
        """Stop everything, phase by phase. The first call decides; all calls get its report. Cancelled, the drain goes
        on.

        Args:
            reason: The reason, for the report.

        Raises:
            NotReady: Before it is open. Enter its block first.
        """
        assert self._root
        self._begin_drain(reason)
        await self._drained.wait()
        if self._report is None:
            raise self._fatal or ActorDead("the system has ended without a drain")
        return self._report

    @property
    def draining(self) -> anyio.Event:
        """The event that is set when a drain has begun or the actors are lost: no more work is accepted. Errors:
        `NotReady` before it is open.
        """
        assert self._root
        return self._draining

    @property
    def drained(self) -> anyio.Event:
        """The event that is set when everything has stopped. Errors: as `draining`."""
        assert self._root
        return self._drained

    def cut_short(self) -> None:
        """Let a running drain do only the phases that have a reserve. Without a drain, nothing happens."""
        if self._drain is not None:
            self._drain.cut_short()

    async def serve_signals(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> ActorsReport:
        """Wait for SIGTERM or SIGINT and drain; a second signal cuts the drain short, a third ends the process (128 +
        n). Returns after the drain, also if other code began it.

        Only for programs that own their process: from the first signal on it has `grace_s` + `force_after_s` to end,
        and is then ended by force. `await group.start(system.serve_signals)` returns once it listens.

        Args:
            task_status: The status of the task group, which is told when listening begins.

        Raises:
            Invalid: Outside the main thread. Correct the argument.
        """
        force_after_s = self._settings.grace_s + self._settings.force_after_s
        return await serve_signals(self, force_after_s, os._exit, task_status)

    # -------------------------------------------------------------------------------------------------------- details

    @property
    def _root(self) -> Root:
        if self._opened is None:
            raise NotReady(self._settings.not_open)
        return self._opened

    async def _run(self) -> None:
        """The root task. A native cancellation of it kills every actor, and then becomes the system's fatal error."""
        try:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as self._group:
                    self._group.create_task(self._alarms.run(), name="alarms", context=self._base)
                    self._root.launch()
                    await self._over.wait()
                    self._group.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            if self._fatal is None:
                raise
        finally:
            self._over.set()
            self._draining.set()
            try:
                # Without a drain so far, hooks that close files and locks have not run.
                if self._report is None and self._root.ended.is_set():
                    await self._tidy_up()
            finally:
                self._drained.set()
        if self._raises:
            self._host.cancel_scope.cancel()

    def _spawn(
        self, work: Coroutine[object, object, None], name: str, unbegun: Callable[[], object]
    ) -> anyio.TaskHandle[None]:
        handle = self._group.create_task(work, name=name, context=self._base)
        self._services.transport.waker.look_if_begun(work, unbegun)
        return handle

    def _spawn_here(
        self, work: Coroutine[object, object, None], name: str, unbegun: Callable[[], object]
    ) -> anyio.TaskHandle[None]:
        handle = self._group.create_task(work, name=name)
        self._services.transport.waker.look_if_begun(work, unbegun)
        return handle

    def _lose(self, error: Exception) -> None:
        """The root has given up: nothing restarts any more."""
        self._fatal, self.healthy = error, False
        self._draining.set()
        match self._settings.on_fatal:
            case "raise":
                self._over.set()
            case "signal":
                end_by_signal()
            case callback:
                callback(error)

    def _dead_letters_by_reason(self) -> dict[str, int]:
        reasons = Counter[str]()
        for (_, reason), count in self._services.dead_letters.counts.items():
            reasons[reason.value] += count
        return dict(reasons)

    def _begin_drain(self, reason: str) -> None:
        # One drain: the first call's reason counts, and later ones wait for the same report.
        if self._drain is None and not self._over.is_set():
            note(_LOG, DEBUG, "a drain begins", reason=reason)
            self._drain = self._new_drain()
            self._draining.set()
            self._spawn(self._carry_out_drain(self._drain, reason), "drain", self._over.set)

    def _new_drain(self) -> Drain:
        self.healthy = False
        return Drain(self._settings.phases, self._settings.grace_s, self._hooks, self._root)

    async def _carry_out_drain(self, drain: Drain, reason: str) -> None:
        try:
            report = await drain.run(reason, self._dead_letters_by_reason)
            self._report = report if self._fatal is None else replace(report, fatal=repr(self._fatal))
        finally:
            self._over.set()

    async def _tidy_up(self) -> None:
        """Run the drain's hooks after a loss of all actors, so that files, locks and threads are still closed."""
        drain = self._drain = self._drain or self._new_drain()
        drain.cut_short()
        with anyio.CancelScope(shield=True):
            await self._carry_out_drain(drain, "the actors were lost")

    async def _drain_whatever_happens(self, *, cut_short: bool) -> BaseException | None:
        """Drain to the end. A cancellation meanwhile cuts the drain short, and is returned so that the caller raises
        it.
        """
        interrupted: BaseException | None = None
        if not self._drained.is_set():
            self._begin_drain("the system's block was left")
        # Asyncio's own cancellation passes the shield; each one cuts the drain short, and none ends it.
        while not self._drained.is_set():
            if cut_short:
                self.cut_short()
            try:
                with anyio.CancelScope(shield=True):
                    await self._drained.wait()
            except anyio.get_cancelled_exc_class() as error:
                interrupted, cut_short = error, True
        return interrupted

    def _keeper_at(self, path: str) -> ParentPort:
        keeper = self._root.keeper
        for name in path.split("/"):
            if name:
                child = keeper.child(name)
                below = None if child is None or child.cell is None else child.cell.keeping
                if below is None:
                    raise NotFound("no actor with children there", path=path)
                keeper = below
        return keeper


class QueueDepth(NamedTuple):
    """The mailboxes of the actors of one class.

    Attributes:
        actors: The number of actors.
    """

    actors: int
    queued: int
    """Messages in all of them."""
    longest: int
    """Messages in the fullest."""


_EMPTY = QueueDepth(0, 0, 0)


class Root:
    """Runs the root supervisor. If that ends unasked, the system is lost: `on_fatal` is called."""

    def __init__(
        self,
        services: Services,
        settings: SupervisorSettings,
        on_fatal: Callable[[Exception], None],
        on_kill: Callable[[], None] | None,
    ) -> None:
        spec = ChildSpec(name="root", factory=lambda: Supervisor((), settings))
        mailbox = Mailbox("/", MailboxSettings(), services.dead_letters, services.transport.waker.waiter)
        self._child = Child(spec, ActorRef("/", mailbox, services.transport))
        self.services = services
        self._on_fatal = on_fatal
        self._on_kill = on_kill
        self._stopping = False
        self.about_to_restart = False
        """False always: the root has no siblings."""
        self.started = anyio.Event()
        self.ended = anyio.Event()

    @property
    def keeper(self) -> ParentPort:
        """The supervisor of the root's children. Errors: `ActorDead` once the root has ended."""
        cell = self._child.cell
        keeper = None if cell is None else cell.keeping
        if keeper is None:
            raise ActorDead("the system has stopped")
        return keeper

    def launch(self) -> None:
        self._child.cell = self.services.incarnate(self._child, self)
        self._child.cell.launch()

    def info(self, without: Container[str] = ()) -> ActorInfo:
        """The tree at this instant."""
        return self._child.info(without)

    def all_below(self) -> list[Child]:
        """Every actor, this one included. From any thread."""
        found = [self._child]
        # No recursion, so that a deep tree cannot overflow the stack of the thread that asks for statistics.
        for child in found:  # It grows meanwhile.
            below = None if child.cell is None else child.cell.keeping
            if below is not None:
                found += below.all()
        return found

    def request_stop(self, why: str) -> None:
        self._stopping = True
        if self._child.cell is not None:
            self._child.cell.request_stop(Shutdown(why), keep_queue=False)

    def kill(self) -> tuple[str, ...]:
        """End all actors now; the paths of those that still ran, innermost only."""
        self._stopping = True
        # Taken before the kill: parents are left out, since they only wait for those below them.
        running = tuple(actor.path for actor in self.info().walk() if not actor.children and actor.path != "/")
        if self._child.cell is not None:
            self._child.cell.kill()
        if self._on_kill is not None:
            # A killed actor may wait in a store's shield, which the host cuts here; the runtime knows no stores.
            self._on_kill()
        return running

    # The root's supervisor, as its cell sees it. The root has no siblings.

    def child_started(self, child: Child) -> None:
        """The root supervisor runs."""
        self.started.set()

    def child_ended(self, child: Child, reason: ExitReason) -> None:
        """The root supervisor has ended, and with it all actors."""
        child.cell = None
        child.ref.mailbox.close()
        announce_end(child.ref, reason)
        self.ended.set()
        if not self._stopping:
            lost = reason.error if isinstance(reason, ExitFailed | ExitLimitReached) else None
            self._on_fatal(lost or RestartLimitReached("the root supervisor was killed"))

    def find(self, name: str) -> ActorRef[object]:
        raise NotFound("the root has no siblings", name=name)

    def child(self, name: str) -> Child | None:
        return None

    def all(self) -> Sequence[Child]:
        """The root alone."""
        return (self._child,)

    async def start(self, spec: ChildSpec) -> ActorRef[object]:
        return self.find(spec.name)

    def end(self, name: str, ended: Callable[[], object], reason: Shutdown) -> None:
        self.find(name)
