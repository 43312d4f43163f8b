"""Records to whom an event of a session is to be delivered, and knows who that may be.

Not an actor: a turn and the agent actor call it where an event happens. Where a runtime has no destination, no turn
loads it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import anyio
from msgspec import Struct
from msgspec.structs import replace

from repertory.core.deferral import Telling
from repertory.core.deliveries import (
    DeliveryEvent,
    DeliveryType,
    EventDelivery,
    Happened,
    RetryPlan,
    TryFailed,
    new_delivery,
    room_for,
)
from repertory.core.journal.records import DeliveriesChanged
from repertory.core.timers import Timer
from repertory.errors import Invalid
from repertory.logs import ERROR, WARNING, note

if TYPE_CHECKING:
    from repertory.actors.call import Invocation
    from repertory.actors.journal import ActorJournal
    from repertory.core.messages import Json

_log = logging.getLogger("repertory.deliveries")
AT_ONCE_EACH = 8
"""The tries that are made at one destination at the same time: a quarter of all."""
AT_ONCE_DOWN = 2
"""The same, of one that is down: so many tries as are made at once have failed one after the other."""
_FAILED_MAX = 10_000
"""The most failed deliveries of which a process knows the age; the first ones stay."""
_FORGET_S = 120.0
"""Seconds after the time of a try until it is one that somebody else has to make."""
_USUAL = RetryPlan()

SendEvent: TypeAlias = Callable[[DeliveryEvent], Awaitable[TryFailed | None]]
"""Brings an event to its destination; None when that has it. An error that it raises counts as a try that failed."""


class Destination(Struct, frozen=True, kw_only=True):
    """A receiver of events, such as a webhook."""

    name: str
    """The name in the journals; a restarted process has to give it again."""
    events: frozenset[DeliveryType]
    """The events that are delivered without being asked for by a call."""
    agents: frozenset[str] | None
    """The agents whose events those are; None for all."""
    send: SendEvent
    plan: RetryPlan = _USUAL


class TryCounts(Struct):
    """The tries to deliver to one destination, or to several that are counted together."""

    delivered: int = 0
    failed: int = 0
    given_up: int = 0
    """Events that have become dead letters."""


class _Room:
    """The tries that are made at one destination at the same time."""

    __slots__ = ("failed", "limiter")

    def __init__(self) -> None:
        self.limiter = anyio.CapacityLimiter(AT_ONCE_EACH)
        self.failed = 0
        """The tries that have failed since the last one that did not."""

    @property
    def is_down(self) -> bool:
        """True if too many tries failed one after the other, and enough others find out when that ends."""
        return self.failed >= AT_ONCE_EACH and self.limiter.borrowed_tokens >= AT_ONCE_DOWN


class Destinations:
    """The destinations of one runtime. Sessions of all its agents share them."""

    __slots__ = ("_failed", "_rooms", "address_of", "by_name", "counts")

    def __init__(self) -> None:
        self.by_name: dict[str, Destination] = {}
        self.address_of: Callable[[str], Destination | None] = lambda name: None
        """Makes the destination of an address that no destination has as its name; None where there is none."""
        self.counts: dict[str, TryCounts] = {}
        """The tries since the start, by the label of their destination."""
        self._failed: dict[str, EventDelivery] = {}
        """The deliveries that this process has tried in vain last, by id."""
        self._rooms: dict[str, _Room] = {}
        """The rooms of the destinations at which tries are made or wait now, by name."""

    def find(self, name: str) -> Destination | None:
        """The destination of this name or address."""
        return self.by_name.get(name) or self.address_of(name)

    def check(self, names: Sequence[str]) -> None:
        """Check the destinations that a call or a timer names. Errors: `Invalid`."""
        for name in names:
            if self.find(name) is None:
                text = "deliver_to names a destination of runtime.deliver; others need Runtime(webhook_secret=...)"
                raise Invalid(text, got=name, known=sorted(self.by_name))

    def plan_of(self, name: str) -> RetryPlan:
        """The times at which deliveries to it are tried; the usual ones of a destination that this process has not."""
        destination = self.by_name.get(name)
        return _USUAL if destination is None else destination.plan

    def names_for(self, event: DeliveryType, agent_id: str, named: Sequence[str]) -> Sequence[str]:
        """The names of the destinations that get such an event. `named`: those that the turn's caller has named."""
        asked = (
            one.name
            for one in self.by_name.values()
            if event in one.events and (one.agents is None or agent_id in one.agents)
        )
        return tuple(dict.fromkeys((*asked, *named)))

    @asynccontextmanager
    async def room_at(self, name: str) -> AsyncGenerator[bool]:
        """Wait for a place for a try at this destination; False if it is down, so that the try is put off.

        So a receiver that never answers holds up neither other destinations nor the waking of other sessions.
        """
        room = self._rooms.setdefault(name, _Room())
        try:
            if room.is_down:
                yield False
                return
            waits = room.limiter.available_tokens < 1
            async with room.limiter:
                yield not waits or room.failed < AT_ONCE_EACH
        finally:
            idle = not (room.limiter.borrowed_tokens or room.limiter.statistics().tasks_waiting)
            if idle and name not in self.by_name:
                self._rooms.pop(name, None)

    def note_try(self, before: EventDelivery, after: EventDelivery | None) -> None:
        """Count a try. `after`: the delivery after a try that has failed; None if the destination has the event."""
        counts = self.counts.setdefault(self._label(before.to), TryCounts())
        if (room := self._rooms.get(before.to)) is not None:
            room.failed = 0 if after is None else room.failed + 1
        self._failed.pop(before.id, None)
        if after is None:
            counts.delivered += 1
            return
        counts.failed += 1
        counts.given_up += after.dead
        if not after.dead and len(self._failed) < _FAILED_MAX:
            self._failed[after.id] = after

    def waiting(self, now: float) -> dict[str, tuple[int, float]]:
        """The deliveries that this process has tried in vain and will try again, by the label of their destination:
        their number, and the seconds since the oldest of these events. Any thread may ask. `now`: epoch seconds.
        """
        found: dict[str, tuple[int, float]] = dict.fromkeys([*self.counts], (0, 0.0))
        for one in [*self._failed.values()]:
            # Tried long ago: another process has the session since, or it was erased.
            if now > one.next_at + _FORGET_S:
                self._failed.pop(one.id, None)
                continue
            count, age_s = found.get(self._label(one.to), (0, 0.0))
            found[self._label(one.to)] = (count + 1, max(age_s, now - one.at))
        return found

    def _label(self, name: str) -> str:
        """The name under which a destination is counted. An address is none: it may have a secret, and customers name
        any number of them.
        """
        if "://" in name:
            return "address"
        return name if name in self.by_name else "unknown"


def check_known(destinations: Destinations | None, names: Sequence[str]) -> None:
    """Check the destinations that a call or a timer names. `destinations`: None where there are none. Errors:
    `Invalid`.
    """
    (Destinations() if destinations is None else destinations).check(names)


def note_event(
    journal: ActorJournal,
    destinations: Destinations,
    happened: Happened,
    invocation: Invocation | None = None,
    *,
    to: tuple[str, ...] = (),
) -> None:
    """Record to whom the event is to be delivered, in the commit that has it. Nothing if nobody is told of it.
    `invocation`: that of the turn; None for a late result. `to`: the destinations that the call of its tool named.
    """
    fold, source, now = journal.fold, journal.source, journal.wall()
    named = to if invocation is None else (*fold.turn_to, *invocation.deliver_to)
    names = destinations.names_for(happened.event, source[1], named)
    if not names:
        return
    ended, lacking = room_for(fold.outbox, len(names))
    facts = happened.facts if invocation is None else _facts_of(invocation, [*fold.turn_tokens.current], happened.facts)
    happened = replace(happened, facts=facts, at=now, turn=fold.turns, number=fold.last_seq + 1)
    deliveries = tuple(new_delivery(source, happened, name) for name in names[: len(names) - lacking])
    ids = {"session": source[0], "agent": source[1]}
    if ended:
        note(_log, WARNING, "dead letters make room for new deliveries", dropped=len(ended), **ids)
    if lacking:
        note(_log, ERROR, "too many deliveries wait, so an event is not delivered", to=names[-lacking:], **ids)
    if deliveries or ended:
        journal.add(DeliveriesChanged(at=now, deliveries=deliveries, ended=tuple(ended)))


def _facts_of(invocation: Invocation, tokens: Sequence[str], more: Mapping[str, Json]) -> dict[str, Json]:
    """The facts of the turn of this call that no record has. `tokens`: those of the turn."""
    facts: dict[str, Json] = {}
    token = invocation.idempotency_token or next(iter(tokens), None)
    if token is not None:
        facts["token"] = token
    match invocation.due:
        case Timer(id=timer):
            facts["timer"] = timer
        case Telling(ids=ids) if ids:
            facts["late_results"] = [*ids]
        case _:
            pass
    return {**facts, **more}
