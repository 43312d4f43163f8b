"""Opening an orchestrator: the rows that are stored, and those that follow from what others have made of its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from repertory.core.journal.appender import Appender, Entropy
from repertory.core.journal.restore import restore
from repertory.core.message_tree.opening import Opened, needed_of
from repertory.core.orchestration.document import records_from
from repertory.core.orchestration.run import RUN, Run

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.records import NodeChanged
    from repertory.core.journal.rows import Row
    from repertory.core.message_tree.run_file import RunFile

_TAKEN_IN = "document"
"""What a run's record says of the document that it was made of, which is not to become another run once more."""


def open_run(
    names: tuple[str, str], found: Sequence[Row], document: RunFile | None, at: float, entropy: Entropy
) -> Opened:
    """The journal of an orchestrator, with records for what others have written. `names`: of session and journal.

    Errors: `CorruptJournal` for the rows; `Corrupt` for a document that is none of a run.
    """
    session_id, journal = names
    restored = restore(needed_of(found), session_id=session_id)
    fold = restored.fold
    made: list[Row] = []
    if document is not None and document.seq is None and not _is_taken_in(fold, document):
        appender = Appender(journal, fold, restored.link, entropy)
        records = records_from(document.said, run_of(fold), at=at)
        made = appender.append_all(_marked(record, document) for record in records)
    return Opened(found=found, made=made, files={}, fold=fold)


def run_of(fold: Fold) -> Run:
    """The run that an orchestrator's journal amounts to."""
    return Run.of(fold.nodes.values(), fold.frontier, fold.run)


def _is_taken_in(fold: Fold, document: RunFile) -> bool:
    begun = fold.nodes.get(RUN)
    return begun is not None and begun.data.get(_TAKEN_IN) == document.digest


def _marked(record: NodeChanged, document: RunFile) -> NodeChanged:
    if record.node != RUN:
        return record
    return replace(record, data={**record.data, _TAKEN_IN: document.digest})
