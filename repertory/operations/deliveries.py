"""Deliveries of stored sessions: what waits, and what was given up and is sent again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repertory.core.deliveries import sent_again
from repertory.core.journal.records import DeliveriesChanged
from repertory.core.journal.restore import Appender
from repertory.core.turns.due_times import due_at_rest
from repertory.errors import NotFound
from repertory.operations.reading import agent_there, commit_rows, info_of, opening_of, owned

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore
    from repertory.core.deliveries import DeliveryType, EventDelivery
    from repertory.operations.reading import RecordStamp


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDelivery:
    """An event that a session has to deliver, or that was given up.

    Args:
        session_id: The id of the session.
        agent_id: The agent whose event it is.
        id: The id under which the destination is told, the same at each try.
        to: The name or the address of the destination.
        event: The type of the event, such as `answer`.
        at: The time of the event, in epoch seconds.
    """

    session_id: str
    agent_id: str
    id: str
    to: str
    event: DeliveryType
    at: float
    tries: int
    """The number of tries that have failed."""
    next_at: float | None
    """The time of the next try, in epoch seconds; None for a dead letter."""
    error: str
    """The reason why the last try failed; empty before the first one."""

    @property
    def dead(self) -> bool:
        """True if it was given up: only `Sessions.resend` sends it."""
        return self.next_at is None


async def deliveries(store: SessionStore, session_id: str | None, *, dead: bool) -> Sequence[StoredDelivery]:
    """The deliveries of a session, or of all: those of the last changed session come first."""
    found: list[StoredDelivery] = []
    for info in [await info_of(store, session_id)] if session_id is not None else await store.sessions():
        for agent_id in sorted(info.agents):
            outbox = (await opening_of(store, info.session_id, agent_id)).fold.outbox
            found += [_stored(info.session_id, agent_id, one) for one in outbox.values() if one.dead or not dead]
    return found


async def resend(
    store: SessionStore,
    session_id: str,
    ids: Collection[str] | None,
    agent_id: str | None,
    made: RecordStamp,
    *,
    takeover: bool,
) -> Sequence[StoredDelivery]:
    """Record that dead letters are to be sent again; the first runtime that has the agent does so."""
    agent_id = await agent_there(store, session_id, agent_id)
    async with owned(store, session_id, takeover=takeover) as lease:
        now = await opening_of(store, session_id, agent_id)
        again = sent_again(now.fold.outbox, ids, made.at)
        if not again:
            raise NotFound("no such delivery was given up", session=session_id, ids=None if ids is None else [*ids])
        made = await made.for_session(store, session_id)
        appender = Appender(agent_id, now.fold, now.link, made.entropy, made.seal)
        # Behind those that wait: the order that it had is lost with its being given up.
        ended = DeliveriesChanged(at=made.at, ended=tuple(one.id for one in again))
        rows = [appender.append(ended), appender.append(DeliveriesChanged(at=made.at, deliveries=tuple(again)))]
        rows += appender.restate(made.at)
        await commit_rows(store, lease, rows, dues=[due_at_rest(agent_id, now.fold, made.at)])
    return [_stored(session_id, agent_id, one) for one in again]


def _stored(session_id: str, agent_id: str, delivery: EventDelivery) -> StoredDelivery:
    return StoredDelivery(
        session_id=session_id,
        agent_id=agent_id,
        id=delivery.id,
        to=delivery.to,
        event=delivery.event,
        at=delivery.at,
        tries=delivery.tries,
        next_at=None if delivery.dead else delivery.next_at,
        error=delivery.error,
    )
