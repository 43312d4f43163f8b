"""Actors that fail on purpose, at messages that a seed chose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar, cast

import anyio

from repertory.runtime.actor import Actor
from repertory.runtime.lifecycle import ExitReason
from repertory.runtime.message import Next
from repertory.runtime.ref import ActorRef, Down

M = TypeVar("M")


class PlannedCrash(Exception):
    """A failure that the plan asked for."""


class InjectedFault(Enum):
    """The ways in which a message goes wrong."""

    CRASH_BEFORE = "crash before"
    """The turn fails before the handler has run."""
    CRASH_AFTER = "crash after"
    """The turn fails after the handler has run, before its answer is out."""
    DELAY = "delay"
    """The handler starts late."""
    KILL = "kill"
    """The incarnation is killed in the middle of the turn."""


class Chance(Protocol):
    """A random source, such as `random.Random`."""

    def random(self) -> float:
        """A number from 0 to below 1."""
        ...

    def uniform(self, a: float, b: float, /) -> float:
        """A number between two others.

        Args:
            a: The lowest number.
            b: The highest number.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """A choice of the messages that go wrong, by their number from 1, counted over all incarnations.

    Args:
        faults: The faults by the number of the message.
        delay_s: Seconds that a delayed turn is delayed.
    """

    faults: Mapping[int, InjectedFault]
    delay_s: float = 0.05

    @classmethod
    def from_chance(cls, rng: Chance, messages: int, rate: float) -> FaultPlan:
        """About `rate` of the first `messages` go wrong, in ways that `rng` chooses.

        Args:
            rng: The random source.
            messages: The number of planned messages.
            rate: The share of messages that go wrong, from 0 to 1.
        """
        kinds = list(InjectedFault)
        numbers = [number for number in range(1, messages + 1) if rng.random() < rate]
        return cls(faults={number: kinds[int(rng.random() * len(kinds))] for number in numbers})


class Saboteur:
    """Carries a plan out over all incarnations of one address: `ChildSpec(factory=saboteur.wrap(Counter), ...)`.

    Args:
        plan: The planned faults.
        kill: `ActorSystem.kill`.
    """

    def __init__(self, plan: FaultPlan, kill: Callable[[ActorRef[object]], None]) -> None:
        """`kill` is `ActorSystem.kill`."""
        self._plan = plan
        self._count = 0
        self.kill = kill

    @property
    def delay_s(self) -> float:
        """Seconds by which a delayed turn is delayed."""
        return self._plan.delay_s

    def wrap(self, factory: Callable[[], Actor[M]]) -> Callable[[], Actor[M]]:
        """A factory whose actors behave like those of `factory`, apart from the planned faults.

        Args:
            factory: Makes the actors.
        """
        return lambda: cast("Actor[M]", _Sabotaged(factory(), self))

    def next_fault(self) -> InjectedFault | None:
        """The fault for the next message; None for none."""
        self._count += 1
        return self._plan.faults.get(self._count)


class _Sabotaged(Actor[M]):
    def __init__(self, actor: Actor[M], saboteur: Saboteur) -> None:
        self._actor = actor
        self._saboteur = saboteur

    async def on_start(self) -> None:
        self._actor.context = self.context
        await self._actor.on_start()

    async def on_ready(self) -> None:
        await self._actor.on_ready()

    async def handle(self, message: M) -> Next:
        match self._saboteur.next_fault():
            case InjectedFault.CRASH_BEFORE:
                raise PlannedCrash("before the handler")
            case InjectedFault.CRASH_AFTER:
                await self._handled(message)
                raise PlannedCrash("after the handler")
            case InjectedFault.DELAY:
                await anyio.sleep(self._saboteur.delay_s)
            case InjectedFault.KILL:
                self._saboteur.kill(self.context.self_ref)
            case None:
                pass
        return await self._handled(message)

    async def _handled(self, message: M) -> Next:
        after = self._actor.handle_now(message)
        return await self._actor.handle(message) if after is None else after

    async def on_down(self, down: Down) -> Next:
        return await self._actor.on_down(down)

    async def on_stop(self, reason: ExitReason) -> None:
        await self._actor.on_stop(reason)

    def summary(self) -> object:
        return self._actor.summary()
