"""A run of an orchestrator as a snapshot that others can read, and back, whoever wrote it.

    {"scope": "multiAgent", ..., "data": {"orchestrator_id": ID, "state": DOCUMENT}, ...}

The envelope is that of every snapshot, see `document.py`; the state is that of `core/orchestration/document.py`.

Source: the documented snapshot layout, as strands-agents 1.62.0 writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from repertory.core.message_tree.run_file import RunFile
from repertory.core.message_tree.run_opening import open_run, run_of
from repertory.core.message_tree.spelling import encoded
from repertory.core.orchestration.document import document_of, records_from
from repertory.core.orchestration.run import Run
from repertory.core.snapshots.document import Standing, content_digest, enveloped, open_envelope
from repertory.core.snapshots.location import RUN_SCOPE
from repertory.errors import Corrupt, SnapshotException

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from repertory.core.journal.appender import Entropy
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.rows import Row
    from repertory.core.messages import Json
    from repertory.core.snapshots.location import SnapshotLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRun:
    """The snapshot of a run as it was found."""

    said: Mapping[str, Json]
    """What it says of the run."""
    app_data: Mapping[str, Json]
    created_at: float
    """Epoch seconds; 0.0 when nobody can tell."""
    standing: Standing | None
    """None: somebody else has written it."""

    @property
    def waits(self) -> bool:
        """Whether it says what somebody has asked in the middle of a run: a journal of ours is told only of what can be
        gone on with.
        """
        internal = self.said.get("_internal_state")
        asked = internal.get("interrupt_state") if isinstance(internal, dict) else None
        return isinstance(asked, dict) and bool(asked.get("activated"))


def run_snapshot(
    fold: Fold, orchestrator_id: str, at: float, standing: Standing, app_data: Mapping[str, Json]
) -> dict[str, object]:
    """The document of what an orchestrator's journal amounts to, in values that JSON has. `app_data`: of others."""
    data = {"orchestrator_id": orchestrator_id, "state": document_of(run_of(fold), orchestrator_id)}
    return enveloped(RUN_SCOPE, data, app_data, at, standing)


def read_run_snapshot(document: object, orchestrator_id: str) -> ReadRun:
    """What a document says. `document`: values that JSON has.

    Errors: `SnapshotException` saying what is wrong with it: that it is no run, or one of another orchestrator.
    """
    opened = open_envelope(document, RUN_SCOPE)
    found, said = opened.data.get("orchestrator_id"), opened.data.get("state")
    if found != orchestrator_id:
        raise SnapshotException("a snapshot of another orchestrator", got=found, expected=orchestrator_id)
    if not isinstance(said, dict):
        raise SnapshotException("the state of a snapshot is a JSON object", got=type(said).__name__)
    run = ReadRun(
        said=cast("dict[str, Json]", said),
        app_data=opened.app_data,
        created_at=opened.created_at,
        standing=opened.standing,
    )
    if run.standing is None:
        try:
            records_from(run.said, Run(), at=0.0)
        except Corrupt as error:
            raise SnapshotException("a snapshot of a run that cannot be read", cause=str(error)) from error
    return run


def rows_for_run(
    location: SnapshotLocation, rows: Sequence[Row], snapshot: ReadRun, at: float, entropy: Entropy
) -> list[Row]:
    """The rows that follow on `rows`, those from the last one's `low` on, so that the journal says what the snapshot
    says; none when it does, or was told once before. Errors: `CorruptJournal` for the rows.
    """
    digest = content_digest({"state": encoded(snapshot.said)})
    document = RunFile(said=snapshot.said, seq=None, digest=digest)
    names = location.session_id, location.journal
    return list(open_run(names, rows, document, snapshot.created_at or at, entropy).made)
