"""Keeping the opening of a journal cheap: values that patches add to are restated before they lie too far behind.

Opening reads every row from `low` on, and `low` cannot pass the last full value of anything. So whatever was last
stated in full more than `RESTATE_AFTER` records ago is stated again, together with the next records that are written
anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repertory.core.journal.records import CursorMoved, Record, StateChanged, ViewChanged

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold

RESTATE_AFTER = 64
"""How many records may follow a full value before it is restated."""


def restatements(fold: Fold, at: float) -> list[Record]:
    """The records that are due now; usually none. `Appender.restate` appends them before anything else comes."""
    records: list[Record] = []
    anchors = fold.anchors
    bound = fold.last_seq - RESTATE_AFTER
    if 0 < anchors.state < bound:
        records.append(StateChanged(at=at, full=dict(fold.state)))
    if 0 < anchors.view < bound:
        records.append(ViewChanged(at=at, view=fold.shown.view, reason="restated"))
    if 0 < anchors.cursors < bound:
        records.append(CursorMoved(at=at, positions=dict(fold.cursors), kept=dict(fold.kept)))
    return records
