"""Rows back to a fold, as a restart needs it; and, from there, records to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256

from msgspec import Struct

from repertory.core.journal.codec import MENDED, decode, decode_all, decode_messages, encode, may_be_unsendable
from repertory.core.journal.deferrals import waiting_tools
from repertory.core.journal.fold import Fold
from repertory.core.journal.image import Image
from repertory.core.journal.records import (
    AnswersStated,
    Branched,
    CursorMoved,
    DeliveriesChanged,
    MessageAdded,
    Record,
    Redacted,
    Resumed,
    StateChanged,
    TimersChanged,
    ViewChanged,
)
from repertory.core.journal.rows import (
    LINK_BYTES,
    SALT_BYTES,
    VERSION,
    MadeRow,
    RecordKind,
    Row,
    first_link,
    header_of,
    verify,
)
from repertory.core.journal.sealing import Seal
from repertory.core.journal.view import visible_messages
from repertory.core.messages import Message
from repertory.errors import CorruptJournal, Invalid


class Restored(Struct, frozen=True, kw_only=True):
    """An agent read back. `Appender(agent_id, restored.fold, restored.link, entropy)` goes on from here."""

    fold: Fold
    link: bytes | None
    """The link of the last row; None when there are no rows."""
    repaired: Mapping[int, Message] = {}
    """Messages that providers would refuse as stored: sequence number to the repaired message, which is shown."""


def restore(rows: Sequence[Row], *, session_id: str = "") -> Restored:
    """Verify an agent's rows and fold them: all rows, or those from the last row's `low` on.

    Errors: `CorruptJournal` with session, agent and sequence number. Corrupt rows are never repaired here.
    """
    if not rows:
        return Restored(fold=Fold(), link=None)
    # First: what a changed row says must not be folded.
    verify(rows, session_id=session_id)
    # The first row of a partial journal is needed for its link only.
    folded = rows if rows[0].seq == 1 else rows[1:]
    if not folded:
        raise CorruptJournal("the journal's last row cannot stand alone", session=session_id, seq=rows[0].seq)
    first = folded[0].seq
    fold = Fold(Image(last_seq=first - 1), partial=first > 1)
    records = records_of(folded, session_id=session_id)
    replay_records(fold, folded, records, session_id=session_id)
    repaired = {
        seq: record.message for seq, record in records if type(record) is MessageAdded and record.repaired is MENDED
    }
    return Restored(fold=fold, link=rows[-1].link, repaired=repaired)


def prove(rows: Sequence[Row], *, session_id: str = "") -> None:
    """Return if these rows, a whole journal, can be opened at the end and gone on with.

    A correct chain proves only that the rows were not changed: their writer may have written nonsense. Errors:
    `CorruptJournal` with session, agent and sequence number.
    """
    fold = restore(rows, session_id=session_id).fold
    if not rows:
        return
    last, view = rows[-1], fold.shown.view
    where: dict[str, object] = {"session": session_id, "agent": last.agent_id, "seq": last.seq}
    beyond = view.first_shown > last.seq + 1 or any(end > last.seq for _, end in view.hidden)
    message_seqs = {row.seq for row in rows if row.kind == RecordKind.MESSAGE}
    if beyond or not message_seqs.issuperset((*view.pinned, *view.replaced)):
        raise CorruptJournal("the view depends on rows that are missing", **where)
    # A wrong `low` has a correct link if its writer has made both: only opening there shows it.
    opened = restore(rows[last.low - 1 :], session_id=session_id).fold.image()
    if opened.since(last.low) != fold.image().since(last.low):
        raise CorruptJournal("opening the journal gives another state than replaying all of its rows", **where)


def records_of(rows: Sequence[Row], *, session_id: str = "") -> list[tuple[int, Record | None]]:
    """Sequence number and record of each row; None for an erased content. Verify the rows first.

    A redacted message appears as its redaction says, even while the original is still there. Of responses that are
    erased with it, the tokens are left. Errors: `CorruptJournal` for a row that cannot be decoded.
    """
    decoded = _decoded_at_once(rows) or [(row.seq, None if row.erased else _decoded(row, session_id)) for row in rows]
    # Beforehand for all: a redaction stands behind what it replaces.
    instead: dict[int, Record] = {}
    for redaction in (record for _, record in decoded if type(record) is Redacted):
        instead[redaction.target] = MessageAdded(
            at=redaction.at,
            message=redaction.message,
            turn=redaction.turn,
            index=redaction.index,
            idempotency_token=redaction.idempotency_token,
            joined=redaction.joined,
            view=redaction.view,
        )
        for seq, tokens in redaction.resumed:
            instead[seq] = Resumed(at=redaction.at, responses={}, joined=tokens)
    return [(seq, instead.get(seq, record)) for seq, record in decoded] if instead else decoded


def messages_of(records: Sequence[tuple[int, Record | None]]) -> dict[int, Message]:
    """Sequence number to message, in order: every message in these records, hidden or not."""
    return {seq: record.message for seq, record in records if type(record) is MessageAdded}


def decoded_messages(rows: Sequence[Row], *, session_id: str = "") -> tuple[dict[int, Message], dict[int, Message]]:
    """The messages in rows of messages and redactions. First: sequence number to message, in order. Second: sequence
    number to the replacement, for each redaction. Errors: as `records_of`.
    """
    plain = decode_messages(rows)
    if plain is not None:
        return dict(zip([row[1] for row in rows], plain, strict=True)), {}
    records = records_of(rows, session_id=session_id)
    return messages_of(records), {record.target: record.message for _, record in records if type(record) is Redacted}


def replay_records(
    fold: Fold,
    rows: Sequence[Row],
    records: Sequence[tuple[int, Record | None]],
    *,
    session_id: str = "",
    after: int = 0,
) -> None:
    """Fold rows whose records are known, except those up to sequence number `after`, which the fold has already.
    Errors: `CorruptJournal` with the first record that may not follow.
    """
    branches = any(type(record) is Branched for _, record in records)
    history = messages_of(records) if branches else {}
    partial = bool(rows) and rows[0].seq > 1
    for (seq, record), row in zip(records, rows, strict=True):
        if seq <= after:
            continue
        try:
            if record is None:
                _skip(fold, row)
            elif type(record) is Branched:
                fold.rewind(seq, record, history, partial=partial)
            else:
                fold.apply(seq, record)
        except Invalid as error:
            raise CorruptJournal(str(error), session=session_id, agent=row.agent_id, seq=seq) from error


def _skip(fold: Fold, row: Row) -> None:
    if row.kind == RecordKind.MESSAGE:
        raise Invalid("a message was erased and nothing says what took its place")
    fold.skip(row.seq, branch=row.kind == RecordKind.BRANCH)


def _decoded_at_once(rows: Sequence[Row]) -> list[tuple[int, Record | None]] | None:
    present = rows if all(row.salt for row in rows) else [row for row in rows if row.salt]
    records = decode_all(present)
    if records is None:
        return None
    found: list[tuple[int, Record | None]] = [(row.seq, record) for row, record in zip(present, records, strict=True)]
    if len(found) < len(rows):
        found.extend((row.seq, None) for row in rows if row.erased)
        found.sort(key=lambda pair: pair[0])
    return found


def _decoded(row: Row, session_id: str) -> Record:
    try:
        return decode(row.kind, row.version, row.body)
    except CorruptJournal as error:
        raise CorruptJournal(str(error), session=session_id, agent=row.agent_id, seq=row.seq) from error


# Records to rows. Every row of a journal is made here.

Entropy = Callable[[int], bytes]
"""Returns that many random bytes. An erased content stays secret only if its salt cannot be guessed."""


class Appender:
    """Makes the rows of one agent's journal, and folds each record in as it does.

    A record that the codec or the fold refuses changes nothing. When a row was made but could not be stored, the
    appender is ahead of the store: restore a new one from the store.
    """

    __slots__ = ("_agent_id", "_entropy", "_fold", "_link", "_seal")

    def __init__(
        self, agent_id: str, fold: Fold, link: bytes | None, entropy: Entropy, seal: Seal | None = None
    ) -> None:
        """`link` is that of the last row folded in; None for an empty journal. `seal`: encrypts the bodies."""
        self._agent_id = agent_id
        self._fold = fold
        self._link = link if link is not None else first_link(agent_id)
        self._entropy = entropy
        self._seal = seal

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
            return self.rewind(record, visible_messages(self._fold.shown))
        return self.row(*self.fold_in(record))

    def fold_in(self, record: Record) -> tuple[int, int, bytes]:
        """The first half of `append`: encode and fold. Pass the result to `row` before the next record comes."""
        kind, body = encode(record)
        if may_be_unsendable(kind, body):
            # Through bytes and back: the live fold must hold what a restart will read, where half of a surrogate pair
            # is replaced.
            record = decode(kind, VERSION, body)
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

    def row(self, seq: int, kind: int, body: bytes, record: Record | None = None) -> Row:
        """The row of the record that was folded in last. `record`: what `decode` would make of the body, if known."""
        low = max(1, self._fold.needed - 1)  # The link of the row before the first that is needed proves the others.
        salt = self._entropy(SALT_BYTES)
        version = VERSION
        # Sealed before it is digested: the chain covers ciphertext, so it can be proved without the key.
        if self._seal is not None:
            sealed = self._seal(Row(self._agent_id, seq, kind, version, low, b"", salt, body))
            version, body = sealed.version, sealed.body
        digest = sha256(salt + body).digest()
        self._link = sha256(self._link + header_of(seq, kind, version, low) + digest).digest()[:LINK_BYTES]
        row = MadeRow(self._agent_id, seq, kind, version, low, self._link, salt, body)
        if self._seal is None:  # What follows the journal of a sealed one knows no more than the store.
            row.record = record
        return row


# Keeping the opening of a journal cheap. Opening reads every row from `low` on, and `low` cannot pass the last full
# value of the state, the view, the cursors, the timers, the deferrals, the deliveries or the answers. So a full value
# that is more than `RESTATE_AFTER` records old is written again, together with the next records.

RESTATE_AFTER = 64
"""The number of records that may follow a full value before it is restated."""
RESTATE_ANSWERS_AFTER = 32
"""The same number for answers, once they lie before all that is shown: nothing else needs such rows at each opening."""


def restatements(fold: Fold, at: float) -> list[Record]:
    """The restatements due now; usually none. `Appender.restate` appends them before any other record."""
    records: list[Record] = []
    anchors = fold.anchors
    # Restating costs the whole value, so it is done once in so many records; opening reads that many more at most.
    bound = fold.last_seq - RESTATE_AFTER
    if 0 < anchors.state < bound:
        records.append(StateChanged(at=at, full=dict(fold.state)))
    if 0 < anchors.view < bound:
        records.append(ViewChanged(at=at, view=fold.shown.view, reason="restated"))
    if 0 < anchors.cursors < bound:
        records.append(CursorMoved(at=at, positions=dict(fold.cursors), kept=dict(fold.kept)))
    if 0 < anchors.timers < bound:
        records.append(TimersChanged(at=at, timers=tuple(fold.timers.values())))
    if (0 < anchors.deferrals < bound or 0 < anchors.runs < bound) and _runs_are_old(fold):
        records += waiting_tools(fold, at)
    if 0 < anchors.deliveries < bound:
        waiting = tuple(fold.outbox.values())
        records.append(DeliveriesChanged(at=at, deliveries=waiting, to=fold.turn_to, turn=fold.to_turn, whole=True))
    # Not while the window shows those turns: opening reads their rows anyway.
    if 0 < anchors.answers < min(fold.shown.first_seq or fold.last_seq, fold.last_seq - RESTATE_ANSWERS_AFTER):
        records.append(AnswersStated(at=at, answers=tuple(fold.finished_turns.values())))
    return records


def _runs_are_old(fold: Fold) -> bool:
    """True if so many records follow what states the background runs that stating them again costs less than those."""
    # Inputs and results of steps may be large: each record pays for a 64th of an input and for one step at most.
    runs = sum(tool.run is not None for tool in fold.deferred.values())
    steps = sum(map(len, fold.run_steps.values()))
    first = min(each for each in (fold.anchors.deferrals, fold.anchors.runs) if each)
    return first < fold.last_seq - RESTATE_AFTER * max(1, runs) - steps
