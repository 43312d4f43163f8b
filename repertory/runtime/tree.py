"""What can be looked at while a system runs: frozen records, read without asking any actor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from repertory.runtime.lifecycle import State


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorInfo:
    """One actor at this instant, with everything below it."""

    path: str
    kind: str
    """Its class."""
    state: State
    incarnation: int
    """1 for the first; one more with every restart."""
    queued: int
    """Messages that wait."""
    queued_system: int
    oldest_s: float | None
    """How long the oldest message has waited; None when none does."""
    current: str | None
    """The class of the message that it handles; None between turns."""
    running_s: float | None
    """How long it has been handling it."""
    waiting_on: tuple[str, ...]
    """Paths of the actors whose answers its turn waits for."""
    jobs: tuple[str, ...]
    timers: int
    processed: int
    """Messages handled to the end since the address exists, refused tells not counted; failed ones included."""
    failed: int
    """Of these, how many ended an incarnation."""
    summary: object
    """What the actor says of itself."""
    children: tuple[ActorInfo, ...] = ()

    def walk(self) -> Iterator[ActorInfo]:
        """This one and everything below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemStats:
    """The sums over all actors of a system."""

    actors: int
    queued: int
    processed: int
    """By the actors that exist now and by those that are gone."""
    failed: int
    restarts: int
    jobs: int
    timers: int
    dead_letters: Mapping[str, int]
    """Reason to count."""
    dead_tells: int
    """Of all dead letters, how many were tells."""
    late_replies: int
