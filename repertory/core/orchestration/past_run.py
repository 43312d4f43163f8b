"""A run that is over and was followed by others, read out of the journal of its orchestrator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from repertory.core.journal.paths import paths_to, within
from repertory.core.journal.records import NodeChanged
from repertory.core.orchestration.run import Run

if TYPE_CHECKING:
    from repertory.core.journal.records import Record


def past_run(records: Sequence[tuple[int, Record | None]], number: int) -> Run | None:
    """The run of that number, without what a rewind has left behind; None when it is not there or is not over.

    `records`: all of the journal, in order, or at least those of the run and of what came after it. Errors:
    `CorruptJournal`.
    """
    path = paths_to(records, [records[-1][0]]) if records else []
    run = Run()
    for seq, record in records:
        if isinstance(record, NodeChanged) and record.run == number and within(seq, path):
            run.apply(record)
    return run if run.number == number and run.over else None
