"""A conversation manager's plan as the record that says what it did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from repertory.core.journal.records import View, ViewChanged
from repertory.core.journal.shown import SUMMARY_SEQ

if TYPE_CHECKING:
    from repertory.core.journal.shown import Shown
    from repertory.core.messages import Json
    from repertory.core.window.plan import WindowPlan


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
    after = _view_after(shown, last_seq, plan)
    after = View(
        first_shown=after.first_shown,
        pinned=after.pinned,
        replaced=after.replaced,
        summary=after.summary,
        hidden=tuple(stretch for stretch in was.hidden if stretch[1] >= after.first_shown),
        manager=manager,
        manager_state=manager_state,
    )
    patch = _patch(was, after)
    return ViewChanged(at=at, view=patch or after, patch=patch is not None, reason=plan.reason)


def _view_after(now: Shown, last_seq: int, plan: WindowPlan) -> View:
    """What is shown after the plan; who planned it is left out."""
    was = now.view
    shown = list(now)
    in_front = (was.summary is not None) + len(was.pinned)
    stays = [*plan.pinned, *range(plan.drop, in_front)]
    front = {shown[position][0]: plan.replaced.get(position, shown[position][1]) for position in stays}
    old_summary = front.pop(SUMMARY_SEQ, None)
    first_shown = was.first_shown
    if plan.drop > in_front:
        first_shown = shown[plan.drop][0] if plan.drop < len(shown) else last_seq + 1
    replaced = {seq: message for seq, message in was.replaced.items() if seq >= first_shown}
    replaced |= {
        shown[position][0]: message
        for position, message in plan.replaced.items()
        if position >= max(in_front, plan.drop)
    }
    return View(
        first_shown=first_shown,
        pinned=front,
        replaced=replaced,
        summary=plan.summary if plan.summary is not None else old_summary,
    )


def _patch(was: View, after: View) -> View | None:
    """The same change as additions to the view before, or None when that cannot say it."""
    unchanged = list(after.pinned.items())[: len(was.pinned)] == list(was.pinned.items())
    if after.summary != was.summary or not unchanged:
        return None
    return View(
        first_shown=after.first_shown,
        pinned={seq: message for seq, message in after.pinned.items() if seq not in was.pinned},
        replaced={seq: new for seq, new in after.replaced.items() if was.replaced.get(seq) != new},
        manager=after.manager,
        manager_state=after.manager_state,
    )
