"""Records to rows. Every row of a journal is made here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

from repertory.core.journal.codec import encode
from repertory.core.journal.records import Branched, CursorMoved, Record, StateChanged, ViewChanged
from repertory.core.journal.rows import LINK_BYTES, SALT_BYTES, VERSION, Row, first_link, header_of
from repertory.core.journal.view import shown_messages

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.messages import Message

Entropy = Callable[[int], bytes]
"""Returns that many random bytes. An erased content stays secret only if its salt cannot be guessed."""


class Appender:
    """Makes the rows of one agent's journal, and folds each record in as it does.

    A record that the codec or the fold refuses changes nothing. When a row was made but could not be stored, the
    appender is ahead of the store: restore a new one from the store.
    """

    __slots__ = ("_agent_id", "_entropy", "_fold", "_link")

    def __init__(self, agent_id: str, fold: Fold, link: bytes | None, entropy: Entropy) -> None:
        """`link` is that of the last row folded in; None for an empty journal."""
        self._agent_id = agent_id
        self._fold = fold
        self._link = link if link is not None else first_link(agent_id)
        self._entropy = entropy

    @property
    def agent_id(self) -> str:
        return self._agent_id

    @property
    def fold(self) -> Fold:
        """The state of the journal, with every row made so far."""
        return self._fold

    @property
    def link(self) -> bytes:
        """The link of the last row made."""
        return self._link

    def append(self, record: Record) -> Row:
        """The row for the next record. A `Branched` must go back to a message that is shown, or to the beginning.

        Errors: `Invalid` (`UnpairedTools`) when the record may not follow; nothing has changed then.
        """
        if type(record) is Branched:
            return self.rewind(record, shown_messages(self._fold.shown))
        return self.row(*self.fold_in(record))

    def fold_in(self, record: Record) -> tuple[int, int, bytes]:
        """The first half of `append`: encode and fold. Pass the result to `row` before the next record comes."""
        kind, body = encode(record)
        seq = self._fold.last_seq + 1
        self._fold.apply(seq, record)
        return seq, kind, body

    def append_all(self, records: Iterable[Record]) -> list[Row]:
        """The rows for several records, in order. After an error the rows of the records before it are lost: restore
        from the store.
        """
        return [self.append(record) for record in records]

    def restate(self, at: float) -> list[Row]:
        """The rows that restate old values (`RESTATE_AFTER`); usually none. Call it after each group of records."""
        return [self.append(record) for record in restatements(self._fold, at)]

    def rewind(self, record: Branched, history: Mapping[int, Message]) -> Row:
        """The row that goes back to an earlier position; see `Fold.rewind`."""
        kind, body = encode(record)
        seq = self._fold.last_seq + 1
        self._fold.rewind(seq, record, history)
        return self.row(seq, kind, body)

    def row(self, seq: int, kind: int, body: bytes) -> Row:
        """The row of the record that was folded in last."""
        low = self._fold.low
        salt = self._entropy(SALT_BYTES)
        digest = sha256(salt + body).digest()
        self._link = sha256(self._link + header_of(seq, kind, VERSION, low) + digest).digest()[:LINK_BYTES]
        return Row(self._agent_id, seq, kind, VERSION, low, self._link, salt, body)


# Keeping the opening of a journal cheap. Opening reads every row from `low` on, and `low` cannot pass the last full
# value of the state, the view or the cursors. So a full value that is more than `RESTATE_AFTER` records old is written
# again, together with the next records.

RESTATE_AFTER = 64
"""How many records may follow a full value before it is restated."""


def restatements(fold: Fold, at: float) -> list[Record]:
    """The restatements due now; usually none. `Appender.restate` appends them before any other record."""
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
