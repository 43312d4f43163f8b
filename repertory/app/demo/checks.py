"""What the demonstration proves, as pure functions: evidence in, findings out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from repertory.app.demo.exchange import Exchange, exchanges
from repertory.app.demo.orders import ORDER_TOOL, Order
from repertory.core.messages import Message, ToolUse, tool_results, tool_uses
from repertory.core.pairing import check_next
from repertory.errors import UnpairedTools


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that is known of one session when all is over."""

    session_id: str
    acknowledged: Sequence[Exchange]
    """What the customer was told, in order."""
    in_flight: str | None
    """What the customer said last and has no answer to."""
    messages: Sequence[Message]
    """What is stored."""
    orders: Sequence[Order]
    """What the order book says."""
    owner: str | None
    """Who still owns the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One claim: how many things it was checked on, and what was wrong."""

    claim: str
    count: int
    problems: Sequence[str]


def check(evidence: Sequence[Evidence]) -> list[Check]:
    """Every claim, checked on all sessions."""
    placed = sum(len(one.orders) for one in evidence)
    told = sum(len(one.acknowledged) for one in evidence)
    stored = sum(len(exchanges(one.messages)) for one in evidence)
    reported = sum(len(_reported_orders(one)) for one in evidence)
    claims = (
        ("acknowledged turns are stored, word for word, in order", told, _lost),
        ("stored turns are those that were said, once each", stored, _invented),
        ("messages follow each other with tools and results paired", _message_count(evidence), _unpaired),
        ("orders in the book were placed once per idempotency key", placed, _placed_twice),
        ("orders that a conversation knows stand in the book", reported, _never_placed),
        ("orders in the book are known to their conversation", placed, _forgotten_orders),
        ("sessions have no owner after the drain", len(evidence), _still_owned),
    )
    return [
        Check(
            claim=claim, count=count, problems=[f"{one.session_id}: {text}" for one in evidence for text in find(one)]
        )
        for claim, count, find in claims
    ]


def _lost(one: Evidence) -> Iterator[str]:
    stored = exchanges(one.messages)
    for number, told in enumerate(one.acknowledged):
        if number >= len(stored):
            yield f"turn {number + 1} is gone: {told.prompt!r}"
        elif stored[number] != told:
            yield f"turn {number + 1} was acknowledged as {told} and is stored as {stored[number]}"


def _invented(one: Evidence) -> Iterator[str]:
    rest = exchanges(one.messages)[len(one.acknowledged) :]
    if rest and rest[0].prompt == one.in_flight:
        rest = rest[1:]
    for extra in rest:
        yield f"nobody said {extra.prompt!r} at this place"


def _unpaired(one: Evidence) -> Iterator[str]:
    for previous, message in pairwise([None, *one.messages]):
        assert message is not None
        try:
            check_next(previous, message)
        except UnpairedTools as error:
            yield str(error)


def _placed_twice(one: Evidence) -> Iterator[str]:
    for key, times in Counter(order.key for order in one.orders).items():
        if times > 1:
            yield f"placed {times} times: {key}"


def _never_placed(one: Evidence) -> Iterator[str]:
    in_book = {order.tool_use_id for order in one.orders}
    for use_id in _reported_orders(one):
        if use_id not in in_book:
            yield f"the conversation has a receipt for an order that is not in the book: {use_id}"


def _forgotten_orders(one: Evidence) -> Iterator[str]:
    known = _reported_orders(one)
    asked = {use["toolUseId"] for use in _open_uses(one)}
    for order in one.orders:
        if order.tool_use_id not in known and order.tool_use_id not in asked:
            yield f"placed, and the conversation does not know: {order.item!r}"


def _still_owned(one: Evidence) -> Iterator[str]:
    if one.owner is not None:
        yield f"owned by {one.owner}"


def _reported_orders(one: Evidence) -> set[str]:
    """Tool use ids of the orders that succeeded as far as the conversation knows."""
    uses = {use["toolUseId"] for message in one.messages for use in tool_uses(message) if use["name"] == ORDER_TOOL}
    results = (result for message in one.messages for result in tool_results(message))
    return {result["toolUseId"] for result in results if result["status"] == "success"} & uses


def _open_uses(one: Evidence) -> Iterator[ToolUse]:
    """Tool uses of a last message that waits for their results."""
    if one.messages:
        yield from tool_uses(one.messages[-1])


def _message_count(evidence: Sequence[Evidence]) -> int:
    return sum(len(one.messages) for one in evidence)
