"""A conversation manager's plan as the record that says what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from repertory.core.journal.records import MessageAdded, View, ViewChanged
from repertory.core.journal.shown import SUMMARY_SEQ

if TYPE_CHECKING:
    from repertory.core.journal.shown import Shown
    from repertory.core.messages import Json, Message
    from repertory.core.window.decision import WindowPlan


def view_change(
    shown: Shown,
    last_seq: int,
    plan: WindowPlan,
    *,
    manager: str,
    manager_state: Mapping[str, Json],
    at: float,
) -> ViewChanged:
    """The record to append so that the model is shown what `plan` makes of what it is shown now, `summary` in front.

    The plan's positions count over everything shown, an earlier summary and pinned messages included: when they lie
    before `plan.drop` they go, unless the plan pins them. The record is a patch whenever a patch can say it.
    `last_seq` is the sequence number of the journal's last record.
    """
    was = shown.view
    in_front = shown.in_front
    first_shown = was.first_shown
    if plan.drop > len(in_front):
        first_shown = shown.recent_at(plan.drop - len(in_front))[0] if plan.drop < len(shown) else last_seq + 1
    stays = [*plan.pinned, *range(plan.drop, len(in_front))]
    pinned = dict(_at(shown, in_front, position, plan) for position in stays)
    beyond = [position for position in plan.replaced if position >= max(len(in_front), plan.drop)]
    replaced = {seq: message for seq, message in was.replaced.items() if seq >= first_shown}
    replaced |= dict(_at(shown, in_front, position, plan) for position in beyond)
    summary = pinned.pop(SUMMARY_SEQ, None)
    if plan.summary is not None:
        summary = plan.summary
    patch = summary == was.summary and list(pinned.items())[: len(was.pinned)] == list(was.pinned.items())
    if patch:
        pinned = {seq: message for seq, message in pinned.items() if seq not in was.pinned}
        replaced = {seq: message for seq, message in replaced.items() if was.replaced.get(seq) != message}
    view = View(
        first_shown=first_shown,
        pinned=pinned,
        replaced=replaced,
        summary=None if patch else summary,
        hidden=() if patch else tuple(stretch for stretch in was.hidden if stretch[1] >= first_shown),
        manager=manager,
        manager_state=manager_state,
    )
    return ViewChanged(at=at, view=view, patch=patch, reason=plan.reason)


def message_with_view(added: MessageAdded, change: ViewChanged) -> MessageAdded | None:
    """The message and the change of what is shown that came right after it, as one record.

    None when that cannot be: the change is not a patch, or holds messages.
    """
    view = change.view
    if not change.patch or view.pinned or view.replaced or added.view is not None:
        return None
    return replace(added, view=view)


def _at(shown: Shown, in_front: Sequence[tuple[int, Message]], position: int, plan: WindowPlan) -> tuple[int, Message]:
    """What stands at a position of everything shown, as the plan leaves it."""
    if position < len(in_front):
        seq, message = in_front[position]
    else:
        seq, message = shown.recent_at(position - len(in_front))
    return seq, plan.replaced.get(position, message)
