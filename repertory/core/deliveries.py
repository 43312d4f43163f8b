"""Deliveries: events of a session that are brought to somebody outside, such as a webhook.

An event is of a record: the answer of a turn, a question to a person, a late result, a failed turn, a timer that began
one. The commit that stores it also says to whom it is to be delivered, and a later one that it was. So no kill loses a
delivery, and one that nobody recorded is made again under the same id. What is sent is read from the records when it is
sent: a message that was erased meanwhile is not told.

The deliveries to one destination form a lane. Only the first one that waits is tried, so a session's events come in
order. `docs/design/pending-work.md` says why.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2s
from typing import Literal, TypeAlias, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from repertory.core.messages import Json
from repertory.errors import Invalid

DeliveryType: TypeAlias = Literal["answer", "question", "late_result", "failure", "timer"]
"""`answer`: a turn has ended with an answer. `question`: a turn waits for a person. `late_result`: the result of a tool
has come later, or none came in time. `failure`: a turn has failed for good. `timer`: a timer has begun a turn.
"""
DELIVERY_TYPES = cast("tuple[DeliveryType, ...]", get_args(DeliveryType))
OUTBOX_MAX = 1000
"""The deliveries that an agent's session may have at once, dead letters included: restating them writes all of them."""
RETRY_S = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""The seconds from one try to the next; the last one is repeated. They are those that the Standard Webhooks
specification recommends.
"""
GIVE_UP_S = 3 * 86_400.0
"""The seconds after which a try that fails is the last one."""
RETRY_AFTER_MAX_S = 86_400.0
PUT_OFF_S = 30.0
"""The least seconds until a delivery comes again that waited for a destination that is down."""
NAME_CHARS_MAX = 2048
NAMES_MAX = 8
"""The most destinations that one call may name."""
_JITTER = 0.2
_ROUNDING_S = 0.0005  # Sums of epoch seconds are rounded, so the longest pause may look a little longer.
_ERROR_CHARS_MAX = 500
_YEAR_10000 = 253_402_300_800.0


class EventDelivery(Struct, frozen=True, kw_only=True):
    """One event that is to be delivered to one destination."""

    id: str
    """The id under which the destination is told, the same at each try."""
    to: str
    """The destination: its name in the runtime, or an address."""
    event: DeliveryType
    at: float
    """The time of the event, in epoch seconds."""
    seq: int = 0
    """The record that the event is of; 0 where none tells it, as of a failure."""
    about: int = 0
    """The message whose tools wait for a question; 0: none."""
    turn: int = 0
    facts: Mapping[str, Json] = {}
    """The facts that no record has: how the turn ended, its token, the error."""
    since: float = 0.0
    """The epoch seconds from which the time is counted until it is given up."""
    tries: int = 0
    next_at: float = 0.0
    """The epoch seconds before which it is not tried."""
    error: str = ""
    """The reason why the last try failed."""
    dead: bool = False
    """True if it is tried no more, until somebody sends it again."""


class Happened(Struct, frozen=True, kw_only=True):
    """An event of a session."""

    event: DeliveryType
    at: float = 0.0
    """Epoch seconds."""
    number: int = 0
    """The number of the record that will hold its deliveries."""
    seq: int = 0
    """The record that it is of; 0: none."""
    about: int = 0
    """The message whose tools wait for a question; 0: none."""
    turn: int = 0
    facts: Mapping[str, Json] = {}
    """The facts that no record has."""


def new_delivery(source: tuple[str, str], happened: Happened, to: str) -> EventDelivery:
    """The delivery of an event to this destination. `source`: the ids of the session and of the agent."""
    # With the time: a session that was deleted and began again counts its records from 1 again.
    named = json.dumps([*source, happened.event, happened.seq or happened.number, happened.at, to], ensure_ascii=False)
    digest = blake2s(named.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return EventDelivery(
        id=f"evt_{digest}",
        to=to,
        event=happened.event,
        at=happened.at,
        seq=happened.seq,
        about=happened.about,
        turn=happened.turn,
        facts=happened.facts,
        since=happened.at,
        next_at=happened.at,
    )


def read_delivery(fields: object) -> EventDelivery:
    """The delivery of which a record has these fields. Errors: TypeError."""
    if not isinstance(fields, dict):
        raise TypeError("a delivery is a JSON object")
    made = cast("Callable[..., EventDelivery]", EventDelivery)  # It refuses unknown and missing fields.
    found = made(**cast("dict[str, object]", fields))
    counts = cast("list[object]", [found.seq, found.about, found.turn, found.tries])
    times = cast("list[object]", [found.at, found.since, found.next_at])
    texts = cast("list[object]", [found.id, found.to, found.error])
    right = (
        all(type(count) is int and 0 <= count < 2**63 for count in counts)
        and all(type(at) in (int, float) and abs(cast("float", at)) < _YEAR_10000 for at in times)
        and all(isinstance(text, str) for text in texts)
        and isinstance(cast("object", found.facts), dict)
        and type(cast("object", found.dead)) is bool
        and found.event in DELIVERY_TYPES
    )
    if not right:
        raise TypeError("a field of a delivery is of the wrong type")
    return found


def check_event_types(on: object) -> tuple[DeliveryType, ...]:
    """The types of events, each once. Errors: `Invalid`."""
    given = [on] if isinstance(on, str) else on
    if not isinstance(given, Collection) or not set(cast("Collection[object]", given)) <= set(DELIVERY_TYPES):
        raise Invalid(f"on is a list of {', '.join(DELIVERY_TYPES)}", got=on)
    return tuple(one for one in DELIVERY_TYPES if one in given)


def check_names(given: object) -> tuple[str, ...]:
    """The destinations that a caller names, each once. Errors: `Invalid`."""
    if given is None:
        return ()
    listed: object = [given] if isinstance(given, str) else given
    known = isinstance(listed, Collection) and not isinstance(listed, Mapping)
    names = tuple(cast("Collection[object]", listed)) if known else ()
    if not 0 < len(names) <= NAMES_MAX or not all(
        isinstance(one, str) and 0 < len(one) <= NAME_CHARS_MAX for one in names
    ):
        raise Invalid(f"deliver_to is a name, or a list of at most {NAMES_MAX} of them", got=given)
    return tuple(dict.fromkeys(cast("Collection[str]", names)))


# Lanes.


def first_of_lanes(outbox: Mapping[str, EventDelivery]) -> dict[str, EventDelivery]:
    """The first delivery that waits, by destination."""
    firsts: dict[str, EventDelivery] = {}
    for delivery in outbox.values():
        if not delivery.dead:
            firsts.setdefault(delivery.to, delivery)
    return firsts


def next_delivery_at(outbox: Mapping[str, EventDelivery]) -> float | None:
    """The epoch seconds at which the next delivery is due; None if none waits."""
    return min((delivery.next_at for delivery in first_of_lanes(outbox).values()), default=None)


def room_for(outbox: Mapping[str, EventDelivery], count: int) -> tuple[Sequence[str], int]:
    """The ids of dead letters that make room for so many deliveries, the oldest ones, and the number that find none."""
    lacking = max(len(outbox) + count - OUTBOX_MAX, 0)
    dead = [delivery.id for delivery in outbox.values() if delivery.dead][:lacking]
    return dead, lacking - len(dead)


# Tries.


class TryFailed(Struct, frozen=True, kw_only=True):
    """A try to deliver that has failed."""

    error: str
    final: bool = False
    """True if the destination wants no more of it."""
    retry_after_s: float | None = None
    """The seconds that the destination asks for; None if it does not say."""


class RetryPlan(Struct, frozen=True, kw_only=True):
    """The times at which a delivery is tried again, and its last one."""

    retry_s: tuple[float, ...] = RETRY_S
    give_up_s: float = GIVE_UP_S


def check_plan(retry_s: object, give_up_s: object) -> RetryPlan:
    """The plan. Errors: `Invalid`."""
    given = list(cast("Iterable[object]", retry_s)) if isinstance(retry_s, list | tuple) else []
    if not given or not all(map(_is_seconds, given)):
        raise Invalid("retry_s is a list of positive numbers of seconds", got=cast("object", retry_s))
    if not _is_seconds(give_up_s):
        raise Invalid("give_up_s is a positive number of seconds", got=give_up_s)
    times = [float(cast("float", one)) for one in given]
    return RetryPlan(retry_s=tuple(times), give_up_s=float(cast("float", give_up_s)))


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def after_failure(
    delivery: EventDelivery, failed: TryFailed, plan: RetryPlan, now: float, chance: float
) -> EventDelivery:
    """The delivery after a try that has failed. `chance`: from 0 to 1, so that many do not come back at once."""
    tries = delivery.tries + 1
    tried = replace(delivery, tries=tries, error=failed.error[:_ERROR_CHARS_MAX], next_at=now)
    # A clock that was set back must not keep it for ever, so only the time that has passed counts.
    if failed.final or now - delivery.since >= plan.give_up_s:
        return replace(tried, dead=True)
    pause_s = plan.retry_s[min(tries, len(plan.retry_s)) - 1] * (1 - _JITTER + 2 * _JITTER * chance)
    asked_s = min(failed.retry_after_s or 0.0, RETRY_AFTER_MAX_S)
    return replace(tried, next_at=now + max(pause_s, asked_s))


def next_try_at(delivery: EventDelivery, plan: RetryPlan, now: float) -> float:
    """The epoch seconds at which it is tried: its own time, unless no plan has such a pause. Then the clock was ahead
    when that was reckoned, and the delivery is due now.
    """
    longest_s = max(max(plan.retry_s) * (1 + _JITTER), RETRY_AFTER_MAX_S) if delivery.tries else 2 * PUT_OFF_S
    return delivery.next_at if delivery.next_at <= now + longest_s + _ROUNDING_S else now


def put_off(delivery: EventDelivery, now: float, chance: float) -> EventDelivery:
    """The delivery that is not tried now, since its destination is down. `chance`: from 0 to 1."""
    return replace(delivery, next_at=now + PUT_OFF_S * (1 + chance))


def sent_again(outbox: Mapping[str, EventDelivery], ids: Collection[str] | None, now: float) -> list[EventDelivery]:
    """The dead letters of these ids, all of them for None, as they are tried anew, with their ids."""
    return [
        replace(delivery, dead=False, tries=0, since=now, next_at=now, error="")
        for delivery in outbox.values()
        if delivery.dead and (ids is None or delivery.id in ids)
    ]


# What is sent.


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryEvent:
    """An event of a session, as a destination of `Runtime.deliver` gets it.

    Args:
        id: The same at each try: who has acted on it already, drops it.
        type: `answer`, `question`, `late_result`, `failure` or `timer`.
        at: The time of the event, in epoch seconds.
        session_id: The id of the session.
        agent: The agent's name.
        data: What happened, as JSON. `docs/reference/formats/deliveries.md` has the fields.
    """

    id: str
    type: DeliveryType
    at: float
    session_id: str
    agent: str
    data: Mapping[str, Json]

    def to_dict(self) -> dict[str, Json]:
        """The event as JSON, as a webhook gets it: `type`, `timestamp` and `data`."""
        return {"type": self.type, "timestamp": iso_time(self.at), "data": dict(self.data)}


def iso_time(at: float) -> str:
    """The time as the Standard Webhooks write it: ISO 8601, in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
