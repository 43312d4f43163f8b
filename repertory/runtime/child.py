"""One child of a supervisor: its address, the incarnation that runs at it now, and what it shares with the system."""

from __future__ import annotations

from collections.abc import Callable, Container, Coroutine, Sequence
from enum import Enum
from typing import Protocol, TypeAlias

import anyio
from msgspec import Struct

from repertory.runtime.lifecycle import ActorInfo, ActorTotals, ExitReason, LifecycleEvent, Shutdown, State, advance
from repertory.runtime.mailbox import DeadLetters, Mailbox
from repertory.runtime.ref import ActorRef, Transport
from repertory.runtime.spec import ChildSpec
from repertory.runtime.timers import Clock, Rng

Spawn: TypeAlias = Callable[
    [Coroutine[object, object, None], str, Callable[[], object]],
    anyio.TaskHandle[None],
]
"""Starts a task, by its work and its name; calls the function instead if the task ends before its first step."""


class Incarnation(Protocol):
    """A running child, as its supervisor sees it."""

    def launch(self) -> None: ...

    @property
    def keeping(self) -> ParentPort | None:
        """The supervisor of its own children; None if it never had any."""
        ...

    def request_stop(self, reason: Shutdown, *, keep_queue: bool) -> None:
        """Stop in order: queued messages (unless the next incarnation gets them), jobs, children, `on_stop`."""
        ...

    def kill(self) -> None:
        """End now. `on_stop` is not run, or is cut short."""
        ...

    def summary(self) -> object: ...

    def info(self, without: Container[str] = ()) -> ActorInfo:
        """The state of the actor at this instant. `without`: names of children that are left out."""
        ...

    def add_to(self, sums: ActorTotals) -> None:
        """Add itself, without those below it."""
        ...


class AfterEnd(Enum):
    """The step that follows the end of an incarnation."""

    DECIDE = "decide"
    """The settings of its supervisor decide: the end is unexpected."""
    RESTART = "restart"
    """It starts again, in its turn: its supervisor restarts it with a sibling, or after a backoff."""
    FORGET = "forget"
    """It never runs again."""


class Child:
    """A child, across its incarnations."""

    __slots__ = (
        "after_end",
        "cell",
        "failed",
        "failures",
        "on_ended",
        "processed",
        "ref",
        "restarts",
        "settled",
        "spec",
        "started_at",
        "state",
    )

    def __init__(self, spec: ChildSpec, ref: ActorRef[object]) -> None:
        self.spec = spec
        self.ref = ref
        self.state = State.STARTING
        self.cell: Incarnation | None = None
        self.started_at: float | None = None
        """The time at which this incarnation's start was acknowledged, in seconds of the loop's clock."""
        self.settled: Callable[[Exception | None], None] | None = None
        """A function that is called once, with the outcome of this incarnation's start."""
        self.on_ended: tuple[Callable[[], object], ...] = ()
        """The functions that are called when this incarnation has ended."""
        self.after_end = AfterEnd.DECIDE
        self.failures = 0
        """Failed incarnations in a row."""
        self.restarts = 0
        self.processed = 0
        """Messages handled by earlier incarnations."""
        self.failed = 0

    def advance(self, event: LifecycleEvent) -> None:
        self.state = advance(self.state, event)

    def info(self, without: Container[str] = ()) -> ActorInfo:
        """The incarnation as it is now; between incarnations, the messages that wait for the next one."""
        if self.cell is not None:
            return self.cell.info(without)
        mailbox = self.ref.mailbox
        return ActorInfo(
            path=self.ref.path,
            kind=mailbox.kind,
            state=self.state,
            incarnation=self.restarts + 1,
            queued=len(mailbox.queue),
            bound=mailbox.capacity,
            queued_system=0,
            oldest_s=None,
            current=None,
            running_s=None,
            waiting_on=(),
            jobs=(),
            timers=0,
            processed=self.processed,
            failed=self.failed,
            summary=None,
        )

    def add_to(self, sums: ActorTotals) -> None:
        """Add what `info` says of this one."""
        sums.actors += 1
        sums.queued += len(self.ref.mailbox.queue)
        sums.processed += self.processed
        sums.failed += self.failed
        if self.cell is not None:
            self.cell.add_to(sums)

    def settle(self, error: Exception | None) -> None:
        """Report how the start ended, if a caller waits for that."""
        settled, self.settled = self.settled, None
        if settled is not None:
            settled(error)


class Exited(Struct, frozen=True):
    """System message to a supervisor: a child ended without having been told to."""

    child: Child
    reason: ExitReason
    ran_s: float


class ParentPort(Protocol):
    """The supervisor of a running actor, as that actor sees it."""

    about_to_restart: bool
    """True if a child has ended, and its siblings may have to restart with it."""

    def child_started(self, child: Child) -> None:
        """The start is acknowledged."""
        ...

    def child_ended(self, child: Child, reason: ExitReason) -> None:
        """The incarnation is over."""
        ...

    def find(self, name: str) -> ActorRef[object]:
        """The child of that name. Errors: `NotFound`."""
        ...

    def child(self, name: str) -> Child | None:
        """The entry of the child of that name; None if there is none."""
        ...

    def all(self) -> Sequence[Child]:
        """The entries of all children, in order. From any thread."""
        ...

    async def start(self, spec: ChildSpec) -> ActorRef[object]: ...

    def end(self, name: str, ended: Callable[[], object], reason: Shutdown) -> None:
        """Stop a child in order and forget it, then call `ended`. Errors: `NotFound`."""
        ...


# What all actors of one system share.


class Totals(Struct):
    """Counts that outlive the actors that they come from."""

    processed: int = 0
    failed: int = 0
    restarts: int = 0
    observe_wait: Callable[[float], None] | None = None
    """A function that is called with each wait that an actor notes, in seconds."""


class Services(Struct, frozen=True, kw_only=True):
    """Given to every actor's cell; actors see parts of it through their context."""

    transport: Transport
    dead_letters: DeadLetters
    clock: Clock
    """The actors' clock; deadlines use the loop's own."""
    rng: Rng
    spawn: Spawn
    """Starts a task of the system, in a copy of the context that the system was opened in."""
    spawn_here: Spawn
    """Starts a task of the system, in a copy of the caller's context."""
    incarnate: Callable[[Child, ParentPort], Incarnation]
    totals: Totals

    def address(self, parent: str, spec: ChildSpec) -> Child:
        """A new address below `parent`."""
        path = f"{parent}/{spec.name}"
        mailbox = Mailbox(path, spec.mailbox, self.dead_letters, self.transport.waker.waiter)
        return Child(spec, ActorRef(path, mailbox, self.transport))
