"""A journal that grows while its session is alive: its one author, who folds each record at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from repertory.core.journal.codec import encode
from repertory.core.journal.history.redact import Redaction, redact, repairs
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.rows import Row
from repertory.core.journal.view import message_with_view

if TYPE_CHECKING:
    from repertory.core.journal.appender import Appender
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.history.redact import Copy
    from repertory.core.journal.records import Record, ViewChanged
    from repertory.core.messages import Message

GatheredWrite: TypeAlias = "Row | Redaction"
"""What an author has made: rows, and what is to be destroyed with the rows behind it, in order."""


class _Open(NamedTuple):
    """The last message, whose row is not made yet: what is shown may change with it."""

    seq: int
    record: MessageAdded
    kind: int
    body: bytes


class JournalAuthor:
    """The one author of a journal that is kept: folds each record at once, and gathers the rows until they are handed
    over to be stored.

    A record that the codec or the fold refuses changes nothing.
    """

    __slots__ = ("_appender", "_gathered", "_handed", "_last_at", "_open", "_turn_rows", "handed_seq")

    def __init__(self, appender: Appender, rows: Sequence[Row]) -> None:
        """`rows`: those that the appender was restored from."""
        self._appender = appender
        self._turn_rows = list(rows)
        """Those of the running turn, or of the last one."""
        self._gathered: list[GatheredWrite] = []
        self._handed: list[GatheredWrite] = []
        self.handed_seq = appender.fold.last_seq
        """Everything up to here was handed over, or was there before."""
        self._open: _Open | None = None
        self._last_at = 0.0

    @property
    def fold(self) -> Fold:
        """What the journal amounts to, every record so far included."""
        return self._appender.fold

    @property
    def gathered(self) -> int:
        """How many rows and redactions were not handed over yet."""
        return len(self._gathered) + (self._open is not None)

    def add(self, record: Record) -> int:
        """Take the next record in; gives its number. Errors: `Invalid` (`UnpairedTools`) when it may not stand here."""
        self._make_row()
        if type(record) is MessageAdded:
            turns = self.fold.turns
            self._open = _Open(self.fold.last_seq + 1, record, *self._appender.fold_in(record)[1:])
            if record.turn != turns:
                self._turn_rows = []
        else:
            self._keep(self._appender.append(record))
        self._last_at = record.at
        return self.fold.last_seq

    def add_view(self, change: ViewChanged) -> None:
        """A change of what is shown: part of the message that it follows directly, when that was not handed over yet
        and can hold it; else a record of its own. Errors: `Invalid` when it may not stand here.
        """
        whole = None if self._open is None else message_with_view(self._open.record, change)
        if self._open is None or whole is None:
            self.add(change)
            return
        kind, body = encode(whole)
        self.fold.show_with_last(change.view)
        self._open = _Open(self._open.seq, whole, kind, body)

    def redact(self, instead: Mapping[int, Message], at: float) -> tuple[Copy, ...]:
        """Put other messages in the place of these of the running turn, by sequence number, for good. Gives what says
        the same and stays. Errors: as `redaction.redact`.
        """
        self._make_row()
        left: list[Copy] = []
        for target, message in instead.items():
            left += self._take_in(redact(self._appender, self._turn_rows, target, message, at))
        return tuple(left)

    def repair(self, mended: Mapping[int, Message]) -> None:
        """Put what is shown in the place of messages that may not be said; see `redaction.repairs`."""
        for redaction in repairs(self._appender, self._turn_rows, mended):
            self._take_in(redaction)

    def restate(self) -> None:
        """Add the records that keep opening cheap, if some are due; ask when something is written anyway."""
        self._make_row()
        if self._last_at:
            for row in self._appender.restate(self._last_at):
                self._keep(row)

    def hand_over(self) -> None:
        """Let what was gathered be taken."""
        self._make_row()
        self._handed += self._gathered
        self._gathered = []
        self.handed_seq = self.fold.last_seq

    def take(self) -> list[GatheredWrite]:
        """What was handed over since this was last asked, for whoever stores it."""
        handed, self._handed = self._handed, []
        return handed

    def _make_row(self) -> None:
        if self._open is not None:
            seq, _, kind, body = self._open
            self._open = None
            self._keep(self._appender.row(seq, kind, body))

    def _keep(self, row: Row) -> None:
        self._gathered.append(row)
        self._turn_rows.append(row)

    def _take_in(self, redaction: Redaction) -> tuple[Copy, ...]:
        self._gathered.append(redaction)
        self._turn_rows += redaction.rows
        return redaction.left
