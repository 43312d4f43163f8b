"""Events for deliveries, made of the records that they are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from repertory.core.deliveries import DeliveryEvent, EventDelivery
from repertory.core.interrupts import Interrupt, asked_about
from repertory.core.journal.records import DeferredResult, Interrupted, MessageAdded, Record
from repertory.core.messages import Json, copy_message, text_of, tool_uses
from repertory.core.tenants import tenant_part

if TYPE_CHECKING:
    from repertory.core.messages import Message


def event_of(delivery: EventDelivery, source: tuple[str, str], records: Mapping[int, Record | None]) -> DeliveryEvent:
    """The event that is told. `source`: the ids of the session and of the agent. `records`: by number, those that the
    delivery names, as far as they are there; None for what was erased.
    """
    session_id, agent_id = source
    data: dict[str, Json] = {"session_id": session_id, "agent": agent_id, "turn": delivery.turn}
    if tenant := tenant_part(session_id):
        data["tenant"] = tenant
    data |= delivery.facts
    match records.get(delivery.seq):
        case MessageAdded(message=message) if delivery.event == "timer":
            data["prompt"] = text_of(message)
        case MessageAdded(message=message):
            data |= _answer(message)
        case Interrupted(interrupts=interrupts):
            about = records.get(delivery.about)
            uses = [*tool_uses(about.message)] if isinstance(about, MessageAdded) else []
            data["interrupts"] = [_question(one) for one in asked_about(interrupts, uses, session_id)]
        case DeferredResult() as came:
            result = {"status": came.result.get("status", "success"), "content": came.result["content"]}
            data |= {"id": came.id, "tool": came.name, "expired": came.expired, "result": cast("Json", result)}
        case _ if delivery.seq:
            data["erased"] = True
        case _:
            pass
    return DeliveryEvent(
        id=delivery.id, type=delivery.event, at=delivery.at, session_id=session_id, agent=agent_id, data=data
    )


def _answer(message: Message) -> dict[str, Json]:
    copied = copy_message(message)
    # Without its metadata, which is ours.
    plain = {"role": copied["role"], "content": copied["content"]}
    return {"text": text_of(message), "message": cast("Json", plain)}


def _question(asked: Interrupt) -> dict[str, Json]:
    fields = {"tool": asked.tool, "input": asked.input, "expires_at": asked.expires_at}
    known = {name: value for name, value in fields.items() if value is not None}
    return {"id": asked.id, "name": asked.name, "reason": asked.reason, **known, "may_answer": [*asked.may_answer]}
