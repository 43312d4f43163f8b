"""An actor's view of the runtime: its own address, siblings and children, timers, jobs, and later answers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import TypeVar, TypeVarTuple, overload

from repertory.errors import Invalid
from repertory.runtime.call_context import ORIGIN, current_trace
from repertory.runtime.channel import Sink, StreamCall
from repertory.runtime.child import Keeper
from repertory.runtime.children import Children
from repertory.runtime.clock import Clock, Rng
from repertory.runtime.envelope import AskEnvelope, Envelope, ReplySlot, Request
from repertory.runtime.jobs import Job, Jobs
from repertory.runtime.ref import ActorRef, unwatch, watch
from repertory.runtime.services import Services
from repertory.runtime.spec import ChildSpec, SupervisorSettings
from repertory.runtime.timers import Timers

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_LOG = logging.getLogger("repertory.actor")


class Context:
    """One incarnation's view of the runtime; `self.context` from `on_start` on. For the actor and its jobs alone."""

    __slots__ = (
        "_children",
        "_keeper",
        "_make_jobs",
        "_services",
        "_watched",
        "envelope",
        "jobs",
        "kept",
        "self_ref",
        "taken",
        "timers",
    )

    def __init__(
        self, self_ref: ActorRef[object], keeper: Keeper, services: Services, make_jobs: Callable[[], Jobs]
    ) -> None:
        self.self_ref = self_ref
        """The actor's own address."""
        self._keeper = keeper
        self._services = services
        self._make_jobs = make_jobs
        self._children: Children | None = None
        self._watched: list[ActorRef[object]] | None = None
        # Read by the actor's cell.
        self.envelope: Envelope | None = None
        self.kept: set[Request] | None = None
        self.taken = 0
        self.jobs: Jobs | None = None
        self.timers: Timers | None = None

    # -------------------------------------------------------------------------------------------------- surroundings

    @property
    def clock(self) -> Clock:
        """Seconds, for measuring and scheduling; virtual in tests."""
        return self._services.clock

    @property
    def rng(self) -> Rng:
        """The system's random source."""
        return self._services.rng

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry the actor's path as `actor`."""
        return logging.LoggerAdapter(_LOG, {"actor": self.self_ref.path})

    @property
    def trace(self) -> object:
        """The trace token of the message that is being handled; messages sent in this turn carry it on."""
        return current_trace()

    def sibling(self, name: str) -> ActorRef[object]:
        """The child of the same supervisor with that name. Errors: `NotFound`."""
        return self._keeper.find(name)

    # ------------------------------------------------------------------------------------------------ answering later

    @property
    def asked(self) -> bool:
        """True if a sender waits for an answer to the message that is being handled."""
        return self.envelope is not None and self.envelope.asked

    def defer(self) -> ReplySlot[object]:
        """Answer the ask that is being handled after this turn; the handler then returns `carry_on()`.

        A slot that is still open at the end of the incarnation fails with `ActorDead`. Errors: `Invalid` outside an
        ask's turn.
        """
        if not isinstance(self.envelope, AskEnvelope) or not self._in_turn():
            raise Invalid("only the turn of an ask can be answered later", actor=self.self_ref.path)
        self._keep(self.envelope)
        return ReplySlot(self.envelope)

    def sink(self) -> Sink[object]:
        """Where the answers to the stream request that is being handled go, in this turn or, usually, in a job.

        A sink that is not ended at the end of the incarnation fails with `ActorDead`. Errors: `Invalid` outside a
        stream's turn.
        """
        if not isinstance(self.envelope, StreamCall) or not self._in_turn():
            raise Invalid("only the turn of a stream request has a sink", actor=self.self_ref.path)
        self._keep(self.envelope)
        return Sink(self.envelope)

    # ----------------------------------------------------------------------------------------------------- background

    def job(self, fn: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: str = "job", finish: bool = False) -> Job:
        """Run `fn(*args)` beside the actor's turns, as a task of this incarnation: cancelled and joined before
        `on_stop`.

        `finish`: an orderly stop waits for it first, within the spec's `stop_timeout_s`, as for a turn. An exception in
        it ends the incarnation at once, like one in a handler; `StreamClosed`, from a sink whose reader has left, ends
        the job alone. It inherits the trace, not the deadline.
        """
        return self._own_jobs().start(partial(fn, *args), name, finish=finish)

    def after(self, delay_s: float, message: object, *, key: Hashable = None) -> None:
        """Handle `message` in `delay_s`, before queued messages. Replaces a timer of the same key; a restart voids
        it.
        """
        self._own_timers().after(delay_s, message, object() if key is None else key)

    def every(self, period_s: float, message: object, *, key: Hashable = None) -> None:
        """Handle `message` every `period_s`, without drift; a period that ends before its turn came is skipped."""
        if period_s <= 0:
            raise Invalid("a period must be longer than zero", period_s=period_s)
        self._own_timers().every(period_s, message, object() if key is None else key)

    def cancel_timer(self, key: Hashable) -> None:
        """Void the timer of that key, even if it has run out and waits. Unknown keys are fine."""
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
        """
        mailbox = self.self_ref.mailbox
        queue = mailbox.queue
        taken: list[object] = []
        while queue and len(taken) < limit and not queue[0].asked and isinstance(queue[0].message, kind):
            taken.append(queue.popleft().message)
            mailbox.admit()
        self.taken += len(taken)
        return taken

    # ----------------------------------------------------------------------------------------------------- other actors

    def watch(self, ref: ActorRef[object]) -> None:
        """Have `on_down` called when that actor has ended for good, at once if it has. A restart of this actor ends
        it.
        """
        watch(self.self_ref, ref)
        if self._watched is None:
            self._watched = []
        self._watched.append(ref)

    def unwatch(self, ref: ActorRef[object]) -> None:
        """Undo `watch`."""
        unwatch(self.self_ref, ref)

    async def start_child(self, spec: ChildSpec) -> ActorRef[object]:
        """Start a child after the others and wait until it has started. Cancelled, it is killed.

        Children stop before `on_stop`, the last one first. Errors: `StartFailed` (its `__cause__`); `AlreadyExists`;
        `ActorDead`.
        """
        return await self.supervision.start(spec)

    async def stop_child(self, name: str) -> None:
        """Stop a child in order and wait for its end. Errors: `NotFound`."""
        await self.supervision.stop(name)

    def children(self) -> Mapping[str, ActorRef[object]]:
        """This actor's children by name, in starting order."""
        return {} if self._children is None else self._children.refs()

    def supervise(self, settings: SupervisorSettings) -> None:
        """Set how children are treated, before the first one is started. Default: one for one."""
        self.supervision.settings = settings

    @property
    def supervision(self) -> Children:
        """The supervisor of this actor's children, made at first use."""
        if self._children is None:
            self._children = Children(self.self_ref, self._services, self._own_jobs())
        return self._children

    @property
    def own_children(self) -> Children | None:
        """As `supervision`, but None if it was never used."""
        return self._children

    def close(self, error: Exception) -> None:
        """The runtime's own: end the incarnation. Asks and streams that are still open fail with `error`."""
        for request in tuple(self.kept or ()):
            request.fail(error)
        if self.timers is not None:
            self.timers.close()
        for ref in self._watched or ():
            unwatch(self.self_ref, ref)

    # -------------------------------------------------------------------------------------------------------- details

    def _in_turn(self) -> bool:
        """True in the turn itself; a job runs beside turns and must not answer for them."""
        return ORIGIN.get().waits is self.self_ref.mailbox.waits

    def _keep(self, request: Request) -> None:
        if self.kept is None:
            self.kept = set()
        request.keep_in(self.kept)

    def _own_jobs(self) -> Jobs:
        if self.jobs is None:
            self.jobs = self._make_jobs()
        return self.jobs

    def _own_timers(self) -> Timers:
        if self.timers is None:
            post = self._services.transport
            self.timers = Timers(self.self_ref.mailbox, post.alarms, post.waker.now)
        return self.timers
