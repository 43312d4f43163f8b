"""What all actors of one system share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from repertory.runtime.child import Child, Incarnation, Keeper
from repertory.runtime.clock import Clock, Rng
from repertory.runtime.dead_letters import DeadLetters
from repertory.runtime.jobs import Spawn
from repertory.runtime.mailbox import Mailbox
from repertory.runtime.ref import ActorRef, Transport
from repertory.runtime.spec import ChildSpec


@dataclass(slots=True)
class Totals:
    """Counts that outlive the actors that they come from."""

    processed: int = 0
    failed: int = 0
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Given to every actor's cell; actors see parts of it through their context."""

    transport: Transport
    dead_letters: DeadLetters
    clock: Clock
    """For actors; deadlines use the loop's own clock."""
    rng: Rng
    spawn: Spawn
    """Starts a task of the system, in a copy of the context that the system was opened in."""
    spawn_here: Spawn
    """Starts a task of the system, in a copy of the caller's context."""
    incarnate: Callable[[Child, Keeper], Incarnation]
    totals: Totals

    def now(self) -> float:
        """The loop's clock."""
        return self.transport.waker.now()

    def address(self, parent: str, spec: ChildSpec) -> Child:
        """A new address below `parent`."""
        path = f"{parent}/{spec.name}"
        mailbox = Mailbox(path, spec.mailbox, self.dead_letters, self.transport.waker.waiter)
        return Child(spec, ActorRef(path, mailbox, self.transport))
