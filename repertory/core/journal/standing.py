"""What a turn or a run still depends on, as records: for who states anew where a journal stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from repertory.core.journal.records import Interrupted, Record, Resumed, ToolFinished

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold


def standing_records(fold: Fold, at: float) -> Iterator[Record]:
    """The nodes of the run, tools without a result or whose result no message holds, answers, and what is waited for.

    To follow a `Branched`, which forgets them. Idempotency tokens cannot be said again.
    """
    yield from (replace(node, frontier=fold.frontier) for node in fold.nodes.values())
    yield from fold.open_tools.values()
    for use_id, result in fold.finished_tools.items():
        yield ToolFinished(at=at, tool_use_id=use_id, result=result)
    if fold.responses:
        yield Resumed(at=at, responses=dict(fold.responses))
    if fold.interrupts:
        yield Interrupted(at=at, interrupts=fold.interrupts)
