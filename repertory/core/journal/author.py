"""The author of a live session's journal: it checks, numbers and folds each record at once."""

# It decides what becomes a row, and in which commit. The last message stays open until the next record, so that the
# view change behind it needs no row of its own: its number is given, its link is not. Rows are released by `hand_over`
# alone, in whole steps. Those of the running turn are kept besides: they can be redacted without reading the store.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from repertory.core.journal.codec import may_be_unsendable, with_view
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.redact import Redaction, redact, repairs
from repertory.core.journal.restore import records_of
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.journal.view import message_with_view

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.records import Record, ViewChanged
    from repertory.core.journal.redact import Copy
    from repertory.core.journal.restore import Appender
    from repertory.core.messages import Message
    from repertory.core.pending_work import DueTime

GatheredWrite: TypeAlias = "Row | Redaction"
"""One write, in order: a row, or a redaction, which appends rows and erases others."""


class _Open(NamedTuple):
    """The last message while its row is not made yet: a view change may still become part of it."""

    seq: int
    record: MessageAdded
    kind: int
    body: bytes


class JournalAuthor:
    """The one author of a stored journal. It folds each record at once, and gathers the rows until they are handed
    over.

    A record that the codec or the fold refuses changes nothing.
    """

    __slots__ = ("_appender", "_due", "_gathered", "_handed", "_last_at", "_open", "_turn_rows", "fold", "handed_seq")

    def __init__(self, appender: Appender, rows: Sequence[Row]) -> None:
        """`rows`: the rows from which `appender` was restored."""
        self._appender = appender
        self.fold: Fold = appender.fold
        """The state of the journal, with every record so far."""
        self._turn_rows = list(rows)
        """The rows of the running turn, or of the last one."""
        self._gathered: list[GatheredWrite] = []
        self._handed: list[GatheredWrite] = []
        self.handed_seq = appender.fold.last_seq
        """The last sequence number that was handed over, or restored."""
        self._due: DueTime | None = None
        self._open: _Open | None = None
        self._last_at = 0.0

    @property
    def gathered(self) -> int:
        """The number of rows and redactions not handed over yet."""
        return len(self._gathered) + (self._open is not None)

    def add(self, record: Record) -> int:
        """Append a record; returns its sequence number. Errors: `Invalid` (`UnpairedTools`) when it may not follow."""
        self._make_row()
        if type(record) is MessageAdded:
            turns = self.fold.turns
            # Folded and encoded now, so that the speaker gets the error; the row, with its link, is made at the next
            # record: until then a change of the view may still go into it.
            self._open = _Open(self.fold.last_seq + 1, record, *self._appender.fold_in(record)[1:])
            # The rows of one turn are kept: only these can be redacted without reading the store.
            if record.turn != turns:
                self._turn_rows = self._late_results() if self.fold.came else []
        else:
            self._keep(self._appender.append(record))
        self._last_at = record.at
        return self.fold.last_seq

    def _late_results(self) -> list[Row]:
        """The rows of results that came before the turn which tells them: a redaction of its message erases them."""
        return [row for row in self._turn_rows if row.kind == RecordKind.DEFERRED_RESULT]

    def secret(self) -> bytes:
        """The link of the last message's row: a secret to whoever has read the conversation only, which no restart
        changes while that message is the last one. Safe from any thread, once that row is made.
        """
        seq = self.fold.last_message_seq
        return next(row.link for row in reversed(self._turn_rows) if row.seq == seq)

    def records_at(self, *seqs: int) -> Mapping[int, Record | None] | None:
        """The records with these numbers, as redactions have left them; None for an erased one. None if any is not at
        hand.
        """
        self._make_row()
        rows = [row for row in self._turn_rows if row.seq in seqs or row.kind == RecordKind.REDACTION]
        found = dict(records_of(rows)) if {row.seq for row in rows} >= {*seqs} else None
        return None if found is None else {seq: found[seq] for seq in seqs}

    def before_last_message(self) -> bytes:
        """Bytes that no other journal has, and no restart changes while its last message is the last one: the link of
        the row before it, or nothing where that is not at hand. Safe from any thread.
        """
        seq = self.fold.last_message_seq
        return next((row.link for row in reversed(self._turn_rows) if row.seq < seq), b"")

    def add_view(self, change: ViewChanged) -> None:
        """Append a view change: as part of the message right before it when that was not handed over and can hold it,
        else as a record of its own. Errors: `Invalid` when it may not follow.
        """
        whole = None if self._open is None else message_with_view(self._open.record, change)
        if self._open is None or whole is None:
            self.add(change)
            return
        # Spliced into the bytes that are there: to encode a long message again for a view of a hundred bytes would
        # double its cost.
        body = with_view(self._open.body, change.view)
        self.fold.show_with_last(change.view)
        self._open = self._open._replace(record=whole, body=body)

    def redact(self, instead: Mapping[int, Message], at: float) -> tuple[Copy, ...]:
        """Replace messages of the running turn for good; `instead`: sequence number to replacement. Returns the places
        that still hold the same text. Errors: as `redact`.
        """
        self._make_row()
        copies: list[Copy] = []
        for target, message in instead.items():
            copies += self._take_in(redact(self._appender, self._turn_rows, target, message, at))
        return tuple(copies)

    def repair(self, repaired: Mapping[int, Message]) -> None:
        """Replace messages that providers would refuse by their repaired versions; see `repairs`."""
        for redaction in repairs(self._appender, self._turn_rows, repaired):
            self._take_in(redaction)

    def restate(self) -> None:
        """Append the restatements that are due, if any. Call it when other rows are written anyway."""
        self._make_row()
        # Nothing was said since the journal was opened, so nothing is due, and there is no time to state.
        if self._last_at:
            for row in self._appender.restate(self._last_at):
                self._keep(row)

    def hand_over(self, due: DueTime | None = None) -> None:
        """Release the gathered writes to `take`. `due`: what the agent owes once they are stored; None: as before."""
        self._make_row()
        self._due = due or self._due
        if self._gathered:
            self._handed += self._gathered
            self._gathered = []
        # The fold's number: restatements and redactions have numbers too.
        self.handed_seq = self.fold.last_seq

    def take(self) -> tuple[Sequence[GatheredWrite], DueTime | None]:
        """The writes handed over since the last call, for the store, and the agent's due time to be stored with them;
        None: as before.
        """
        handed, due = self._handed, self._due
        if handed:
            self._handed = []
        self._due = None
        return handed, due

    def _make_row(self) -> None:
        if self._open is not None:
            seq, record, kind, body = self._open
            self._open = None
            # With the record, for documents that are written from rows. Not for a body that reading would repair:
            # document and journal would differ after a restart.
            self._keep(self._appender.row(seq, kind, body, None if may_be_unsendable(kind, body) else record))

    def _keep(self, row: Row) -> None:
        self._gathered.append(row)
        self._turn_rows.append(row)

    def _take_in(self, redaction: Redaction) -> tuple[Copy, ...]:
        self._gathered.append(redaction)
        self._turn_rows += redaction.rows
        return redaction.left
