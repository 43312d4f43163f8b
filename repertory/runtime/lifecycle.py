"""The life cycle of an actor's address, as a table; exit reasons; and snapshots of actors while a system runs.

    starting --started--> running --stop--> draining --drained--> stopping --ended--> stopped
        |                    |                 |                      ^                  |
        `------ stop, end ---+------ end ------+-------- end ---------'               restart
                                                                                         |
    starting <--start-- restarting <-----------------------------------------------------'
                            |
                            `--stop--> stopped

`end` is a failure, a kill or the actor's own decision. A `stop` may arrive in every state; `started` after it may not,
so a shutdown during a start cannot be undone by the end of that start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from msgspec import Struct

from repertory.errors import Invalid


class State(Enum):
    """The states of an actor's address.

    Attributes:
        STARTING: `on_start` runs.
        RUNNING: It takes messages.
        STOPPED: It has ended for good.
    """

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    """The actor takes no new messages; queued ones are still handled."""
    STOPPING = "stopping"
    """The actor handles no more messages: jobs and children end, and `on_stop` runs."""
    STOPPED = "stopped"
    RESTARTING = "restarting"
    """The actor is between two incarnations; messages are queued."""


class LifecycleEvent(Enum):
    """The events that move an actor's address from one state to the next."""

    STARTED = "started"
    STOP = "stop"
    DRAINED = "drained"
    END = "end"
    ENDED = "ended"
    RESTART = "restart"
    START = "start"


TRANSITIONS: Final[dict[tuple[State, LifecycleEvent], State]] = {
    (State.STARTING, LifecycleEvent.STARTED): State.RUNNING,
    (State.STARTING, LifecycleEvent.STOP): State.STOPPING,
    (State.STARTING, LifecycleEvent.END): State.STOPPING,
    (State.RUNNING, LifecycleEvent.STOP): State.DRAINING,
    (State.RUNNING, LifecycleEvent.END): State.STOPPING,
    (State.DRAINING, LifecycleEvent.STOP): State.DRAINING,
    (State.DRAINING, LifecycleEvent.DRAINED): State.STOPPING,
    (State.DRAINING, LifecycleEvent.END): State.STOPPING,
    (State.STOPPING, LifecycleEvent.STOP): State.STOPPING,
    (State.STOPPING, LifecycleEvent.END): State.STOPPING,
    (State.STOPPING, LifecycleEvent.ENDED): State.STOPPED,
    (State.STOPPED, LifecycleEvent.STOP): State.STOPPED,
    (State.STOPPED, LifecycleEvent.RESTART): State.RESTARTING,
    (State.RESTARTING, LifecycleEvent.START): State.STARTING,
    (State.RESTARTING, LifecycleEvent.STOP): State.STOPPED,
}


def advance(state: State, event: LifecycleEvent) -> State:
    """The next state.

    Raises:
        Invalid: When the table has no such step. Correct the argument.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise Invalid("no such step in an actor's life", state=state.value, happening=event.value) from None


class ActorInfo(Struct, frozen=True, kw_only=True, gc=False):
    """One actor at this instant, with all actors below it.

    Attributes:
        path: The names from the root down, with `/` between them.
        state: The state of its address.
        queued_system: System messages in its mailbox, such as timers.
        jobs: The names of its jobs.
        timers: The number of timers that are set.
        children: The actors below it, in starting order.
    """

    path: str
    kind: str
    """The name of the actor's class."""
    state: State
    incarnation: int
    """The number of the incarnation: 1 for the first, one more with every restart."""
    queued: int
    """Messages in its mailbox."""
    bound: int
    """The most messages that the mailbox takes; more wait outside, or are refused."""
    queued_system: int
    oldest_s: float | None
    """Seconds that the oldest message has waited; None if none waits."""
    current: str | None
    """The class of the message that it handles; None between turns."""
    running_s: float | None
    """Seconds that it has been handling `current`; None between turns."""
    waiting_on: tuple[str, ...]
    """Paths of the actors whose answers its turn waits for."""
    jobs: tuple[str, ...]
    timers: int
    processed: int
    """Messages handled to the end since the address exists, refused tells not counted; failed ones included."""
    failed: int
    """The number of these messages that ended an incarnation."""
    summary: object
    """The result of `Actor.summary`."""
    children: tuple[ActorInfo, ...] = ()

    def walk(self) -> Iterator[ActorInfo]:
        """This actor and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


class ActorTotals(Struct):
    """Sums over actors, as far as they have been added."""

    actors: int = 0
    queued: int = 0
    processed: int = 0
    failed: int = 0
    jobs: int = 0
    timers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemStats:
    """The sums over all actors of a system.

    Args:
        actors: The number of actors.
        queued: Messages in all mailboxes.
        failed: Messages that ended an incarnation.
        restarts: The number of times that actors were started again.
        jobs: Jobs that run.
        timers: Timers that are set.
        late_replies: Answers that came after the asker had given up.
    """

    actors: int
    queued: int
    processed: int
    """Messages that present and former actors have handled to the end."""
    failed: int
    restarts: int
    jobs: int
    timers: int
    dead_letters: Mapping[str, int]
    """The number of dead letters, by reason."""
    dead_tells: int
    """The number of tells among the dead letters."""
    late_replies: int


# The exit reasons of an actor: a closed set, the only input of supervision.


class Normal(Struct, frozen=True):
    """The handler returned `stop()`: the work was done."""


class Shutdown(Struct, frozen=True):
    """The actor was asked to stop, and did so in order."""

    why: str = ""
    """The reason given with the request; the actor's children are stopped with the same."""


class Killed(Struct, frozen=True):
    """The actor was cut short: `on_stop` did not run, or did not end in time."""


class ExitFailed(Struct, frozen=True):
    """A handler, a job or a start raised, or the handler returned `fail(error)`.

    Attributes:
        error: The error.
    """

    error: Exception


class ExitLimitReached(Struct, frozen=True):
    """A supervisor gave up on a child that failed more often than its settings allow.

    Attributes:
        error: The last error of the child.
    """

    error: Exception


ExitReason: TypeAlias = Normal | Shutdown | Killed | ExitFailed | ExitLimitReached
