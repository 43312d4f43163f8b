"""From the events of one agent to its rows: what is proved, what is missing, and what other programs added.

Rows are assembled from the last one downwards. A content that does not match its line was edited; a row whose document
is lost is known by its line in the next document. Both become erased rows and are reported as faults, so that the
session's owner can state what stands there now. A commit of several documents that was cut off in the middle was never
acknowledged, and is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from repertory.core.journal.rows import RecordKind, Row
from repertory.core.message_tree.documents import Read, redactions_in
from repertory.core.message_tree.kept_rows import KeptRow, Line, content
from repertory.core.messages import Message


class DocumentSource(NamedTuple):
    """The place of a document: the number of a message, or the first sequence number of rows without one."""

    number: int | None
    first: int | None = None


class DamagedContent(NamedTuple):
    """A message whose content is not what was written."""

    row: Row
    """Its row, erased."""
    message: Message | None
    """The message in its document; None when that is lost."""
    number: int | None
    """The number of the document, if known."""
    why: str
    redacted: bool = False
    """True if a redaction states another message than the document."""


class Assembled(Struct, frozen=True, kw_only=True):
    """The rows in the documents, and what is wrong with them."""

    rows: Sequence[Row] = ()
    """The last rows of the journal, without gaps."""
    begins: int = 0
    """The first sequence number among `rows`; earlier rows need documents that were not read."""
    faults: Sequence[DamagedContent] = ()
    lost: Sequence[int] = ()
    """Rows other than messages whose content is corrupt, or whose document is lost."""
    torn: Sequence[DocumentSource] = ()
    """The documents of a commit that was cut off, in the order of writing."""
    added: Sequence[tuple[int, Read]] = ()
    """Documents at the end that other programs added or that cannot be read: number and document, in order."""
    numbers: Mapping[int, int] = {}
    """Sequence number of a message's row to the number of its document."""
    tail: Sequence[Line] = ()
    """The rows of the last document."""
    erase: frozenset[int] = frozenset()
    """Rows that an earlier owner was about to erase when it was cut off."""


def assemble(agent_id: str, documents: Mapping[DocumentSource, Read], unread: Collection[int | None] = ()) -> Assembled:
    """Assemble the rows. `unread`: documents that exist and were not read yet, by their message's number; None stands
    for those without a message.
    """
    by_number: dict[int | None, Read] = {
        source.number: read for source, read in documents.items() if source.number is not None
    }
    kept = standing_rows(documents)
    torn = _torn(kept, documents, by_number)
    for seq in [seq for seq, (source, _) in kept.items() if source in torn]:
        del kept[seq]
    known = {source.number for source, _ in kept.values()} | {row.file for _, row in kept.values()}
    behind_taken = [documents[source] for source in {source for source, _ in kept.values()} if source.number is None]
    taken = [max(read.next_number, read.taken) - 1 for read in behind_taken]
    highest = max((number for number in (*known, *taken) if number is not None), default=-1)
    gone = {source.number for source in torn}
    numbers_there = sorted(number for number in by_number if number is not None)
    added = [(number, by_number[number]) for number in numbers_there if number > highest and number not in gone]
    behind = _Behind(agent_id, kept, documents, by_number)
    rows: list[Row] = []
    seq = max(kept, default=0)
    while seq > 0 and behind.knows(seq, unread):
        rows.append(behind.row(seq))
        seq -= 1
    rows.reverse()
    tail: Sequence[Line] = ()
    if rows:
        source, _ = kept[rows[-1].seq]
        tail = tuple(row.line for row in documents[source].kept)
    return Assembled(
        rows=rows,
        begins=seq + 1 if rows else 0,
        faults=_faults(rows, behind.found),
        lost=[row.seq for row in rows if row.kind != RecordKind.MESSAGE and behind.found.get(row.seq, ("",) * 3)[2]],
        torn=torn,
        added=added,
        numbers=behind.numbers,
        tail=tail,
        erase=frozenset(seq for source, read in documents.items() if source not in torn for seq in read.erase),
    )


def standing_rows(documents: Mapping[DocumentSource, Read]) -> dict[int, tuple[DocumentSource, KeptRow]]:
    """Every row that a document keeps, except those that a fenced owner wrote all the same: such a document overlaps or
    follows rows of a later owner. A message in it counts as added.
    """
    kept: dict[int, tuple[DocumentSource, KeptRow]] = {}
    latest_first = sorted(documents.items(), key=lambda item: item[1].generation, reverse=True)
    begins: int | None = None
    generation = -1
    for source, read in latest_first:
        if not read.kept or any(row.line.seq in kept for row in read.kept):
            continue
        first = read.kept[0].line.seq
        if read.generation != generation:
            begins, generation = min(kept, default=None), read.generation
        if begins is None or first < begins:
            kept |= {row.line.seq: (source, row) for row in read.kept}
    return kept


def _torn(
    kept: Mapping[int, tuple[DocumentSource, KeptRow]],
    documents: Mapping[DocumentSource, Read],
    by_number: Mapping[int | None, Read],
) -> list[DocumentSource]:
    """The documents of the last commit, when it was cut off and no later document follows it."""
    if not kept:
        return []
    last = max(kept)
    batch = documents[kept[last][0]].batch
    if batch is None or batch[1] <= last:
        return []
    sources: list[DocumentSource] = []
    for seq in sorted(seq for seq in kept if seq >= batch[0]):
        if kept[seq][0] not in sources:
            sources.append(kept[seq][0])
    end = max((source.number for source in sources if source.number is not None), default=-1)
    built_on = any(number is not None and number > end for number in by_number) and end >= 0
    return [] if built_on else sources


class _Behind:
    """The documents, as the source of rows."""

    def __init__(
        self,
        agent_id: str,
        kept: Mapping[int, tuple[DocumentSource, KeptRow]],
        documents: Mapping[DocumentSource, Read],
        by_number: Mapping[int | None, Read],
    ) -> None:
        self._agent_id = agent_id
        self._kept = kept
        self._headers = {line.seq: line for read in documents.values() for line in read.before}
        """Lines of rows, from the document after theirs."""
        self._told = _told(documents)
        """Sequence number of a message's row to the number that its document must have had."""
        self._by_number = by_number
        self.found: dict[int, tuple[Message | None, int | None, str]] = {}
        """Of corrupt rows: the message in their document, the document's number, and the fault."""
        self.numbers: dict[int, int] = {}

    def knows(self, seq: int, unread: Collection[int | None]) -> bool:
        """True if the row is known without reading more: a row that no document keeps is lost once none is unread."""
        if seq not in self._kept:
            return seq in self._headers and not unread
        file = self._kept[seq][1].file
        return file is None or file not in unread

    def row(self, seq: int) -> Row:
        """One row, erased when its content is not what was written."""
        if seq not in self._kept:
            return self._lost(seq)
        source, row = self._kept[seq]
        number = row.file if row.file is not None else source.number
        if row.line.kind == RecordKind.MESSAGE and number is not None:
            self.numbers[seq] = number
        message = self._message(number)
        body = content(row, message)
        proved = row.line.row(self._agent_id, body)
        if proved is not None and (body is not None or not row.line.salt):
            if not row.line.salt:
                self.found[seq] = (message, number, "")
            return proved
        self.found[seq] = (message, number, "it was edited" if message is not None else "it cannot be read")
        return _sure(row.line.erased().row(self._agent_id, None))

    def _lost(self, seq: int) -> Row:
        line, number = self._headers[seq].erased(), self._told.get(seq)
        message = self._message(number)
        self.found[seq] = (message, number, "it is lost" if message is None else "somebody else has written it anew")
        if message is not None and number is not None:
            self.numbers[seq] = number
        return _sure(line.row(self._agent_id, None))

    def _message(self, number: int | None) -> Message | None:
        read = self._by_number.get(number) if number is not None else None
        return read.message if read is not None else None


def _told(documents: Mapping[DocumentSource, Read]) -> dict[int, int]:
    """The numbers of documents as implied by the next document: one before its own."""
    numbers: dict[int, int] = {}
    for source, read in documents.items():
        messages = [line.seq for line in read.before if line.kind == RecordKind.MESSAGE]
        if len(messages) == 1:
            numbers[messages[0]] = (read.next_number if source.number is None else source.number) - 1
    return numbers


def _sure(row: Row | None) -> Row:
    assert row is not None
    return row


def _faults(rows: Iterable[Row], found: Mapping[int, tuple[Message | None, int | None, str]]) -> list[DamagedContent]:
    """The corrupt messages without a redaction, or whose document differs from the last redaction."""
    redactions = redactions_in(rows)
    faults: list[DamagedContent] = []
    for row in rows:
        if row.seq not in found or row.kind != RecordKind.MESSAGE:
            continue
        message, number, why = found[row.seq]
        explained = redactions.get(row.seq)
        if explained is None and why:
            faults.append(DamagedContent(row, message, number, why))
        elif explained is not None and message is not None and _untracked(explained) != _untracked(message):
            faults.append(DamagedContent(row, message, number, "it was edited", redacted=True))
    return faults


def _untracked(message: Message) -> dict[str, object]:
    return {name: value for name, value in message.items() if name != "tracking_id"}
