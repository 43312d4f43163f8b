"""Prune: erase old marks of a journal, and what lies beyond rewinds.

Contents are erased; rows stay, so the chain still proves everything. A message is erased with a redaction that says
what stands in its place. Kept are: the rows that lead to a mark that stays, and rows that the conversation may depend
on (redactions, cursors, owners, timers, answers, deliveries).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from repertory.core.journal.paths import paths_to, within
from repertory.core.journal.records import MessageAdded, Record, Redacted, SnapshotTaken
from repertory.core.journal.redact import without_text
from repertory.core.journal.rows import RecordKind
from repertory.core.journal.whole_journal import WholeJournal, position_named
from repertory.errors import Invalid

PRUNED = "[pruned]"
"""The text that replaces an erased message."""
_RETAINED_KINDS = {
    RecordKind.REDACTION,
    RecordKind.CURSOR,
    RecordKind.OWNER,
    RecordKind.SNAPSHOT,
    RecordKind.TIMERS,
    RecordKind.ANSWERS,
    RecordKind.DELIVERIES,
}
"""The kinds of records that no rewind lets go; marks are erased by `keep` and `before` only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePolicy:
    """The limits of what to erase. A mark is erased when every given limit says so."""

    keep: int | None = None
    """The number of newest marks that always stay; None for no such limit."""
    before: float | None = None
    """The time, in epoch seconds, before which a record was made that is erased; None for no such limit."""
    beyond: bool = False
    """True if the records beyond rewinds are erased as well."""

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 0:
            raise Invalid("keep is a number of marks, 0 or more", keep=self.keep)
        if self.keep is None and self.before is None and not self.beyond:
            raise Invalid("say what is to go: keep, older_than or beyond_rewinds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """The effect of a policy on one journal: the marks, messages and rows to erase."""

    marks: Sequence[tuple[int, SnapshotTaken]]
    """Sequence number and record of each mark to erase."""
    redactions: Sequence[Redacted]
    """Records to append: one for each message to erase."""
    erase: Sequence[int]
    """Sequence numbers of the rows to erase, in order."""
    bytes: int
    """The size of the contents to erase, in bytes."""


def prune(journal: WholeJournal, policy: PrunePolicy, at: float) -> Pruning:
    """Compute what a policy erases in a journal. Changes nothing."""
    marks = journal.snapshots()
    going = _marks_to_go(marks, policy)
    erase = {seq for seq, _ in going}
    redactions: list[Redacted] = []
    if policy.beyond:
        # Every mark that stays must still open, so what leads to it stays too.
        roots = {journal.last_seq, *(position_named(*each) for each in marks if each[0] not in erase)}
        beyond = _beyond(journal, roots, policy)
        redactions = [_redaction(seq, record, at) for seq, record in beyond if isinstance(record, MessageAdded)]
        erase |= {seq for seq, _ in beyond}
    return Pruning(
        marks=going,
        redactions=redactions,
        erase=sorted(erase),
        bytes=sum(len(journal.rows[seq - 1].body) for seq in erase),
    )


def _marks_to_go(marks: Sequence[tuple[int, SnapshotTaken]], policy: PrunePolicy) -> list[tuple[int, SnapshotTaken]]:
    if policy.keep is None and policy.before is None:
        return []
    old = marks[: max(0, len(marks) - policy.keep)] if policy.keep is not None else marks
    return [(seq, mark) for seq, mark in old if policy.before is None or mark.at < policy.before]


def _beyond(journal: WholeJournal, roots: Collection[int], policy: PrunePolicy) -> list[tuple[int, Record]]:
    """Sequence number and record of each row that leads to none of the roots."""
    needed = paths_to(journal.records, roots)
    gone = {record.target for _, record in journal.records if isinstance(record, Redacted)}
    found: list[tuple[int, Record]] = []
    for row, (seq, record) in zip(journal.rows, journal.records, strict=True):
        if record is None or row.erased or row.kind in _RETAINED_KINDS or seq in gone or within(seq, needed):
            continue
        if policy.before is None or record.at < policy.before:
            found.append((seq, record))
    return found


def _redaction(seq: int, record: MessageAdded, at: float) -> Redacted:
    return Redacted(
        at=at,
        target=seq,
        message=without_text(record.message, PRUNED),
        turn=record.turn,
        index=record.index,
        idempotency_token=record.idempotency_token,
        joined=record.joined,
        view=record.view,
    )
