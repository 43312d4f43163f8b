"""A user's edit of a list of messages, as the plan with the same effect.

Users' conversation managers shorten a list in place, as documented. Comparing tells what they did: which messages are
left, which changed, and what was put in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeGuard

from repertory.core.messages import Message, check_messages, check_next, copy_message, tool_results, tool_uses
from repertory.core.window.decision import WindowPlan
from repertory.errors import Invalid, UnpairedTools


def plan_of_edit(visible: Sequence[Message], given: Sequence[Message], edited: Sequence[object]) -> WindowPlan:
    """The plan that turns `visible` into `edited`. `given`: the copies that the editor got, in the same order.

    The remaining messages keep their order. One new message may stand before all others. Errors: `Invalid` for another
    order, new messages elsewhere, malformed messages, an empty list, and tool results without their uses;
    `UnpairedTools` when uses and results do not match.
    """
    result = check_messages(edited)
    if not result:
        raise Invalid("an edit leaves at least one message", shown=len(visible))
    return _plan(visible, _origins(given, visible, result), result)


def edit_of(
    visible: Sequence[Message], given: Sequence[Message], edited: Sequence[object]
) -> tuple[WindowPlan, tuple[Message, ...]]:
    """The plan of an edit between two turns, where a program may also remove all messages and append new ones, and the
    appended messages. Errors: as `plan_of_edit`.
    """
    result = check_messages(edited)
    origins = _origins(given, visible, result)
    end = len(result)
    while end and origins[end - 1] is None:
        end -= 1
    if end == 0 and result == list(visible):
        return WindowPlan(), ()
    plan = _plan(visible, origins[:end], result[:end])
    previous = result[end - 1] if end else None
    for message in result[end:]:
        check_next(previous, message)
        previous = message
    return plan, tuple(copy_message(message) for message in result[end:])


def joined_in_front(plan: WindowPlan, front: Message | None) -> WindowPlan:
    """The plan, in which a new message in front of an earlier one takes in its content: during a turn a view has
    room for one. `front`: the earlier one, at position 0; None without any.
    """
    if plan.summary is None or front is None or (plan.drop > 0 and 0 not in plan.pinned):
        return plan
    front = plan.replaced.get(0, front)
    joined: Message = {**front, **plan.summary, "content": [*plan.summary["content"], *front["content"]]}
    return replace(
        plan,
        drop=max(plan.drop, 1),
        pinned=tuple(at for at in plan.pinned if at),
        replaced={at: message for at, message in plan.replaced.items() if at},
        summary=joined,
    )


def _plan(visible: Sequence[Message], origins: Sequence[int | None], result: Sequence[Message]) -> WindowPlan:
    summary = result[0] if result and origins[0] is None else None
    sources = origins[1:] if summary is not None else origins
    if not _rises(sources):
        raise Invalid("an edit drops and changes messages, and may put one in front of all others", shown=len(visible))
    now = result[1:] if summary is not None else result
    _check_pairs(now)
    _check_end(visible, sources, now)
    drop, pinned = _cut(sources, len(visible))
    replaced = {at: copy_message(one) for at, one in zip(sources, now, strict=True) if one != visible[at]}
    summary = None if summary is None else copy_message(summary)  # Copied, since the editor still holds the originals.
    return WindowPlan(drop=drop, pinned=pinned, replaced=replaced, summary=summary, reason="edited")


def _origins(given: Sequence[Message], visible: Sequence[Message], result: Sequence[Message]) -> list[int | None]:
    """The index of each remaining message: by identity, else the next equal one that is not taken; else that of the one
    in whose place it stands, behind and before messages that were given.
    """
    places = {id(message): at for at, message in enumerate(given)}
    # By identity: two messages may be equal ("yes"), and only this tells which of them is left. The copies are held by
    # `given`, so no id is used again.
    origins = [places.get(id(message)) for message in result]
    taken = {at for at in origins if at is not None}
    after = 0
    for number, message in enumerate(result):
        at = origins[number]
        if at is None:
            # A manager may have rebuilt its list from copies of its own.
            at = next((at for at in range(after, len(visible)) if at not in taken and visible[at] == message), None)
            origins[number] = at
        after = after if at is None else at + 1
    known = [number for number, at in enumerate(origins) if at is not None]
    for number, following in pairwise(known):
        first, end = origins[number], origins[following]
        # Only as many as have gone: then each has taken the place of one.
        if first is not None and end is not None and following - number <= end - first:
            origins[number + 1 : following] = range(first + 1, first + following - number)
    return origins


def _rises(origins: Sequence[int | None]) -> TypeGuard[Sequence[int]]:
    found = [at for at in origins if at is not None]
    return len(found) == len(origins) and all(one < following for one, following in pairwise(found))


def _cut(sources: Sequence[int], visible: int) -> tuple[int, tuple[int, ...]]:
    """The start of the unbroken end, and the indices kept before it."""
    drop = visible
    for at in reversed(sources):
        if at != drop - 1:
            break
        drop = at
    return drop, tuple(at for at in sources if at < drop)


def _check_end(visible: Sequence[Message], sources: Sequence[int], result: Sequence[Message]) -> None:
    """Errors: `UnpairedTools` unless tool uses that wait for results stay last, and no others become last."""
    waiting = [use["toolUseId"] for use in tool_uses(visible[-1])] if visible else []
    stays = bool(sources) and sources[-1] == len(visible) - 1
    if waiting != ([use["toolUseId"] for use in tool_uses(result[-1])] if result else []) or (waiting and not stays):
        raise UnpairedTools("tool uses and their results are dropped together", waiting=waiting)


def _check_pairs(messages: Sequence[Message]) -> None:
    previous: Message | None = None
    for message in messages:
        if previous is None and any(tool_results(message)):
            raise Invalid("what is shown cannot begin with tool results whose tool uses are gone")
        check_next(previous, message)
        previous = message
