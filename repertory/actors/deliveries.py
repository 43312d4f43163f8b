"""Delivers the events of one active session: to webhooks, and to functions of the program.

Not an actor: a courier belongs to the agent actor, whose jobs make its tries. `core/deliveries.py` decides when each
delivery is tried. Where nothing is to be delivered there is no courier.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import RunVar

from repertory.actors.call import DeliveriesDue, ServeDeliveries, work_here
from repertory.actors.delivery_events import note_event
from repertory.backends.worker_threads import limiter_of_loop
from repertory.core.deliveries import (
    EventDelivery,
    Happened,
    TryFailed,
    after_failure,
    first_of_lanes,
    next_try_at,
    put_off,
)
from repertory.core.journal.records import DeliveriesChanged
from repertory.core.retry import foreign_errors
from repertory.core.turns.due_times import AGAIN_S, begins_again, may_pass
from repertory.errors import RepertoryError, Unavailable
from repertory.logs import DEBUG, WARNING, note
from repertory.runtime.faults import repr_of
from repertory.runtime.message import Next, carry_on

if TYPE_CHECKING:
    from repertory.actors.call import Invocation
    from repertory.actors.context import ActiveAgent
    from repertory.actors.delivery_events import Destinations
    from repertory.core.deliveries import DeliveryEvent
    from repertory.runtime.message import ReplySlot

AT_ONCE_MAX = 32
"""The tries that are made at the same time in an event loop."""
_limiter: RunVar[anyio.CapacityLimiter] = RunVar("repertory_deliveries")
_ALARM = "deliveries"
_LOOK_S = 600.0
"""The longest wait between two looks at the wall clock, which may be set meanwhile."""


class Courier:
    """Tries what an agent's session has to deliver, as it comes due."""

    __slots__ = (
        "_context",
        "_destinations",
        "_ids",
        "_journal",
        "_read_model",
        "_refusing",
        "_rests_until",
        "_sending",
        "_servants",
    )

    def __init__(self, agent: ActiveAgent, destinations: Destinations, refusing: Callable[[], bool]) -> None:
        """`refusing` is true when nothing more may begin."""
        self._context = agent.context
        self._journal = agent.journal
        self._read_model = agent.parts.read_model
        self._destinations = destinations
        self._ids = dict(zip(("session", "agent"), agent.journal.source, strict=True))
        self._sending: set[str] = set()
        """The destinations for which a job runs."""
        self._rests_until = -math.inf
        """The epoch seconds until which nothing is tried, since the store does not confirm what is to be delivered."""
        self._refusing = refusing
        self._servants: tuple[ReplySlot[None], ...] = ()

    def go_on(self) -> None:
        """Begin to deliver what is due, and set the alarm for what is due later."""
        now, next_at = self._journal.wall(), math.inf
        for to, first in first_of_lanes(self._journal.fold.outbox).items():
            due_at = max(self._due_at(first), self._rests_until)
            if to in self._sending or self._refusing():
                continue
            if due_at <= now:
                self._sending.add(to)
                # An orderly stop waits for it: what is cut short is sent once more.
                self._context.job(self._send_lane, to, name="delivery", finish=True)
            else:
                next_at = min(next_at, due_at)
        if not self._sending:
            servants, self._servants = self._servants, ()
            for servant in servants:
                servant.reply(None)
        if next_at < math.inf:
            self._context.after(min(next_at - now, _LOOK_S), DeliveriesDue(), key=_ALARM)
        else:
            self._context.cancel_timer(_ALARM)

    def handle(self, message: DeliveriesDue | ServeDeliveries) -> Next:
        """Begin to deliver what is due. `ServeDeliveries` is answered when nothing is due any more."""
        if isinstance(message, ServeDeliveries):
            self._servants = (*self._servants, self._context.defer())
        self.go_on()
        return carry_on()

    def note_late_result(self, seq: int, to: tuple[str, ...]) -> None:
        """Record to whom a late result is to be delivered, if to anybody, and deliver it. `seq`: its record; `to`: the
        destinations that the call of its tool had named.
        """
        note_event(self._journal, self._destinations, Happened(event="late_result", seq=seq), to=to)
        self._context.after(0.0, DeliveriesDue(), key=_ALARM)

    def note_failure(self, invocation: Invocation, error: RepertoryError) -> None:
        """Record that the turn of a call has failed for good. One that is made again is no failure yet."""
        if invocation.due is not None:
            again = begins_again(error)
        else:
            again = may_pass(error) and invocation.context.run(work_here).again
        if not again:
            facts = Happened(event="failure", facts={"error": type(error).__name__, "cause": str(error)})
            note_event(self._journal, self._destinations, facts, invocation)
            self._journal.hand_over(soon=True)

    async def _send_lane(self, to: str) -> None:
        """Make the deliveries to one destination, one after the other, until none is due."""
        wall = self._journal.wall
        try:
            while not self._refusing():
                delivery = first_of_lanes(self._journal.fold.outbox).get(to)
                if delivery is None or max(self._due_at(delivery), self._rests_until) > wall():
                    break
                try:
                    # Before it is sent: a record that is lost with this process must not be known to anybody.
                    await self._journal.commit()
                    event = await self._journal.event_of(delivery)
                except RepertoryError as error:
                    note(self._context.logger, WARNING, "deliveries wait for the store", error, **self._ids)
                    self._rests_until = wall() + AGAIN_S
                    break
                async with self._destinations.room_at(to) as placed:
                    # The session may have been opened again meanwhile, without it.
                    if self._journal.fold.outbox.get(delivery.id) != delivery or self._refusing():
                        continue
                    if placed:
                        # While it is made the session does not count as idle, whose stop waits for seconds only.
                        self._read_model.tries += 1
                        try:
                            await self._try(delivery, event)
                        finally:
                            self._read_model.tries -= 1
                    else:
                        again = put_off(delivery, wall(), self._context.rng.uniform(0.0, 1.0))
                        self._journal.add(DeliveriesChanged(at=wall(), deliveries=(again,)))
                        self._journal.hand_over(soon=True)
        finally:
            self._sending.discard(to)
        self.go_on()

    def _due_at(self, delivery: EventDelivery) -> float:
        return next_try_at(delivery, self._destinations.plan_of(delivery.to), self._journal.wall())

    async def _try(self, delivery: EventDelivery, event: DeliveryEvent) -> None:
        plan = self._destinations.plan_of(delivery.to)
        try:
            # An address that an earlier release has taken may be refused by now.
            destination = self._destinations.find(delivery.to)
            if destination is None:
                raise Unavailable("this process has no destination of this name")
            async with limiter_of_loop(_limiter, AT_ONCE_MAX):
                with foreign_errors():
                    failed = await destination.send(event)
        except RepertoryError as error:
            failed = TryFailed(error=str(error) if error.__cause__ is None else repr_of(error.__cause__))
        if self._journal.fold.outbox.get(delivery.id) != delivery:
            return
        now = self._journal.wall()
        if failed is None:
            self._destinations.note_try(delivery, None)
            note(self._context.logger, DEBUG, "an event is delivered", to=delivery.to, id=delivery.id, **self._ids)
            self._journal.add(DeliveriesChanged(at=now, ended=(delivery.id,)))
        else:
            again = after_failure(delivery, failed, plan, now, self._context.rng.uniform(0.0, 1.0))
            self._destinations.note_try(delivery, again)
            what = "an event could not be delivered, and is a dead letter" if again.dead else "a delivery has failed"
            fields = {"to": delivery.to, "id": delivery.id, "tries": again.tries, "cause": again.error}
            note(self._context.logger, WARNING if again.dead else DEBUG, what, **fields, **self._ids)
            self._journal.add(DeliveriesChanged(at=now, deliveries=(again,)))
        self._journal.hand_over(soon=True)
