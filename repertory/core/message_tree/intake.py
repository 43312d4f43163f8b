"""Other programs' changes to the tree of an agent, as records of its journal.

A tree is compared with what was written to it (`TreeMark`). A message that was added becomes a record behind the last
one, one that was edited or removed a redaction, and messages that were removed at the end become a branch to before
them. The tree stays as it is: nothing that somebody else wrote is overwritten.

A crash of the machine may undo what was written last, since the tree is never synced. `TreeFound.undone` says so, and
what is missing then is written again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import cast

from msgspec import Struct, field
from msgspec.structs import replace

from repertory.core.journal.fold import Fold
from repertory.core.journal.records import Branched, MessageAdded, Redacted, View
from repertory.core.journal.redact import Redaction, redact, without_text
from repertory.core.journal.restore import Appender, Entropy, messages_of, records_of, restore
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.journal.whole_journal import read_whole
from repertory.core.json_bytes import decoded, digest_of_document, epoch, parsed, to_file
from repertory.core.message_tree.agent_state import record_in
from repertory.core.message_tree.documents import AgentFile, FoundMessage, tracked, tracking_id_of
from repertory.core.message_tree.opening import adopt, adopt_agent, first_visible_seq
from repertory.core.message_tree.projection import (
    NewDocument,
    ReplacedMessage,
    TreeMark,
    changes_for,
    pairs_of,
    runs_of,
)
from repertory.core.messages import LOST_TEXT, ContentBlock, Message, check_shape, tool_uses
from repertory.core.messages import repair_message as well_formed
from repertory.core.provider_parts import as_ours, with_texts_of_parts
from repertory.errors import Invalid, UnpairedTools


class FoundDocument(FoundMessage, frozen=True, kw_only=True):
    """A message's document, as read.

    Attributes:
        digest: That of the message, without its tracking id.
        tracking_id: The message's tracking id, if it has one.
        redacted: True if the message stands for one that was taken back.
    """

    digest: str = ""
    tracking_id: str | None = None
    redacted: bool = False


def found_document(body: bytes) -> FoundDocument:
    """The document in a file."""
    try:
        raw = parsed(body)
        fields = decoded(raw)
        name = "message" if fields.get("redact_message") is None else "redact_message"
        message, at = as_ours(check_shape(fields.get(name))), epoch(fields.get("created_at"))
    # Not raised: one document that nobody can read must not keep the session from opening.
    except (ValueError, TypeError, KeyError) as error:
        return FoundDocument(fault=str(error) or "it is empty")
    raw_message = raw.get(name)
    return FoundDocument(
        message=message,
        digest=_digest_of_raw(raw_message),
        tracking_id=tracking_id_of(raw_message),
        at=at,
        redacted=name == "redact_message",
    )


class TreeFound(Struct, frozen=True, kw_only=True):
    """A tree as it stands.

    Attributes:
        present: The numbers of all documents of messages.
        read: Those that changed since the mark was made, and those that it does not know.
        agent: The agent's document, if it is not the one that was written last.
        undone: True if a crash of the machine may have undone the last writes.
        unordered: True if the documents of rows behind the mark may have been written in any order.
    """

    present: Collection[int] = ()
    read: Mapping[int, FoundDocument] = {}
    agent: AgentFile | None = None
    undone: bool = False
    unordered: bool = False


class TakenIn(Struct, kw_only=True):
    """The consequences of a changed tree.

    Attributes:
        rows: The rows to append.
        erase: The rows of the journal whose contents other programs have removed or replaced.
        compared: The documents beside the journal.
        mark: The tree, with all this done; rows behind its `seq` are still to be written.
        strays: The numbers of documents that are not taken in, and are to be removed: see `_strays`.
    """

    rows: list[Row]
    erase: list[int]
    compared: ComparedDocuments
    mark: TreeMark
    strays: list[int]

    def beside(self, rows: Sequence[Row]) -> ComparedTree:
        """The whole journal, of these rows, with all this done."""
        gone = frozenset(self.erase)
        stored = [row.without_content() if row.seq in gone else row for row in rows]
        return ComparedTree(rows=[*stored, *self.rows], made=self.rows, erase=self.erase)


class ComparedTree(Struct, frozen=True, kw_only=True):
    """A journal with what other programs did to its tree.

    Attributes:
        rows: All rows, also those to append.
        made: The rows to append.
        erase: The rows whose contents are to be erased.
    """

    rows: Sequence[Row]
    made: Sequence[Row]
    erase: Sequence[int]


class _JournalMessage(Struct, frozen=True):
    """A message of the journal, as it stands."""

    seq: int
    index: int
    message: Message | None
    link: bytes
    at: float
    redacted: bool
    is_current: bool
    """False if a branch has left it behind."""

    @property
    def document(self) -> NewDocument | None:
        if self.message is None:
            return None
        return NewDocument(self.seq, self.index, tracked(self.message, self.link), self.at, self.redacted)

    @property
    def tracking_id(self) -> str | None:
        return None if self.message is None else tracking_id_of(tracked(self.message, self.link))


class _Edit(Struct, frozen=True):
    """A message that another program has replaced, or removed from the middle."""

    standing: _JournalMessage
    number: int
    found: FoundDocument | None


def take_in(
    names: tuple[str, str], rows: Sequence[Row], mark: TreeMark, found: TreeFound, at: float, entropy: Entropy
) -> TakenIn:
    """The rows that follow a whole journal for what other programs did to its tree.

    `names`: of the session and of the agent. `at`: the time of what has none. Errors: `CorruptJournal` for the rows.
    """
    session_id, agent_id = names
    restored = restore(rows, session_id=session_id)
    appender = Appender(agent_id, restored.fold, restored.link, entropy)
    standing = {each.index: each for each in _standing(rows)}
    redactions = [record for seq, record in records_of(rows) if seq > mark.seq and isinstance(record, Redacted)]
    compared = _compare(standing, mark, found, frozenset(record.index for record in redactions))
    taken = {number: digest for number, digest in mark.taken.items() if number in found.present}
    changed = _edited(appender, rows, compared.edits, at)
    for edit, message in changed.messages:
        # Their message had to be repaired, so it never equals the journal's: without this note it would be taken in
        # again at every opening.
        if edit.found is not None and _digest(message) != edit.found.digest:
            taken[edit.number] = edit.found.digest
    made = changed.rows
    if compared.tail is not None:
        # Behind the redactions, whose rows the branch must see.
        made.append(_rewound(appender, [*rows, *made], standing, compared.tail, at))
    numbers, again = compared.index_of, compared.again
    unknown = {number: read for number, read in sorted(found.read.items()) if number not in {**numbers, **again}}
    # Only where documents go out beside their commit, in any order; elsewhere a lone answer is somebody's.
    strays = _strays(unknown, numbers, restored.fold) if found.unordered else []
    unknown = {number: read for number, read in unknown.items() if number not in strays}
    taken |= _copies(unknown, standing, numbers)
    adopted = _adopted(appender, unknown, taken, at)
    made += adopted.rows
    numbers |= adopted.index_of
    present = sorted({*found.present, *again} - {*strays})
    if found.agent is not None:
        places = {each.seq: number for number, index in numbers.items() if (each := standing.get(index)) is not None}
        first = first_visible_seq(found.agent, present, {**places, **adopted.number_of}, appender.fold.last_seq)
        made += adopt_agent(appender, found.agent, first, at, first_turn=not rows)
    after = replace(
        mark,
        next_number=max([mark.next_number, *(number + 1 for number in present)]),
        messages=len(present),
        runs=runs_of((index, number) for number, index in numbers.items()),
        taken={**taken, **adopted.taken},
        unreadable=[number for number, read in unknown.items() if read.fault is not None],
    )
    return TakenIn(rows=made, erase=changed.erase, compared=compared, mark=after, strays=strays)


class ComparedDocuments(Struct):
    """The documents of messages beside the journal.

    Attributes:
        index_of: The place of each document's message in the journal, by the document's number.
        again: Documents to write again, by number.
        edits: Messages that others have replaced, or removed from the middle.
        tail: The place of the first message that was removed from the end; None if none was.
        unreplaced: Places of erased messages that still stand in their documents.
    """

    index_of: dict[int, int]
    again: dict[int, NewDocument] = {}
    edits: list[_Edit] = []
    tail: int | None = None
    unreplaced: list[int] = []


def _compare(
    standing: Mapping[int, _JournalMessage], mark: TreeMark, found: TreeFound, redacted: Collection[int]
) -> ComparedDocuments:
    """`redacted`: the places of messages that were erased behind the mark."""
    known = {number: index for number, index in _matched(standing, mark, found).items() if index in standing}
    compared = ComparedDocuments(known)
    gone: list[tuple[int, int]] = []
    """Number and place of each message whose document was removed."""
    for number, index in sorted(known.items()):
        document, read = standing[index].document, found.read.get(number)
        missed = found.undone or (found.unordered and standing[index].seq > mark.seq)
        # Missing, but not removed: its owner, or the machine, went down before the document was there.
        lost = missed and document is not None and standing[index].is_current
        if number not in found.present and not lost:
            gone.append((number, index))
        elif document is None:
            pass  # It was erased, and nothing stands for it.
        elif number not in found.present or (read is not None and read.fault is not None):
            compared.again[number] = document
        elif read is not None and index in redacted and not read.redacted:
            compared.unreplaced.append(index)  # Its owner did not come to that.
        # By what it says and not by its time: a copied folder has new times everywhere.
        elif read is not None and read.digest not in (_digest(document.message), mark.taken.get(number)):
            compared.edits.append(_Edit(standing[index], number, read))
    tail = _tail(gone, known, found.present, standing)
    # A hole in the middle: the message cannot be taken out of the history, so a filler stands in its place.
    compared.edits += [_Edit(standing[index], number, None) for number, index in gone if index < tail]
    compared.tail = tail if any(index >= tail for _, index in gone) else None
    for number, _ in gone:
        del known[number]
    return compared


def _strays(unknown: Mapping[int, FoundDocument], index_of: Mapping[int, int], fold: Fold) -> list[int]:
    """The number of an answer whose owner died while it wrote results of tools and that answer, with their commit: it
    stands alone behind the number of the results. Another program would have written these first.
    """
    last = max((number for number, index in index_of.items() if index == fold.message_count - 1), default=None)
    if last is None or fold.last_message is None or not any(tool_uses(fold.last_message)):
        return []
    behind = [number for number in unknown if number > last]
    message = unknown[last + 2].message if behind == [last + 2] else None
    return behind if message is not None and message["role"] == "assistant" else []


def _copies(
    unknown: Mapping[int, FoundDocument], standing: Mapping[int, _JournalMessage], numbers: Mapping[int, int]
) -> dict[int, str]:
    """The digests of documents, by number, that say once more what another document of the tree says.

    An owner that was stopped behind its commit, and fenced, may still write the documents of that commit, which the
    next owner has written meanwhile.
    """
    ids = {each.tracking_id for each in unknown.values()} - {None}
    written = [standing[index] for index in numbers.values() if standing[index].tracking_id in ids] if ids else []
    there = {(each.tracking_id, _digest(each.message)) for each in written if each.message is not None}
    return {number: each.digest for number, each in unknown.items() if (each.tracking_id, each.digest) in there}


class _Adopted(Struct):
    """Messages that other programs added, and what is known of them."""

    rows: Sequence[Row]
    index_of: dict[int, int]
    number_of: Mapping[int, int]
    """The number of a message's document, by the sequence number of its row."""
    taken: dict[int, str]


def _adopted(appender: Appender, unknown: Mapping[int, FoundDocument], taken: Mapping[int, str], at: float) -> _Adopted:
    # What was repaired once is not taken in a second time.
    fresh = {number: each for number, each in unknown.items() if each.message and taken.get(number) != each.digest}
    first = appender.fold.message_count
    made = adopt(appender, [*fresh.items()], at)
    messages = [row.seq for row in made.rows if row.kind == RecordKind.MESSAGE]
    places = {seq: index for index, seq in enumerate(messages, first)}
    index_of = {number: places[seq] for seq, number in made.numbers.items()}
    repaired = {number: each.digest for number, each in fresh.items() if number not in index_of}
    return _Adopted(made.rows, index_of, made.numbers, repaired)


def pending_changes(rows: Sequence[Row], since: int, taken: TakenIn, now: float) -> list[NewDocument | ReplacedMessage]:
    """The changes to documents of messages that an earlier owner did not come to. `rows`: a whole journal. `since`: the
    last row whose documents were written; 0 if that is not known: then each document has been compared.
    """
    records = [(row, record) for row, (_, record) in zip(rows, records_of(rows), strict=True) if row.seq > since]
    standing = _standing(rows)
    before = [each.index for each in standing if each.seq <= since]
    has_number = {each.index for each in standing if taken.mark.number_of(each.index) is not None}
    tail = math.inf if taken.compared.tail is None else taken.compared.tail
    behind = {each.index for each in standing if not each.is_current or each.index >= tail}
    edited = {edit.standing.index for edit in taken.compared.edits}
    replaced = (edited if since else has_number) - {*taken.compared.unreplaced}
    changes, _ = changes_for(records, max(before, default=-1) + 1, now)
    return [
        each
        for each in changes
        if each.index not in (replaced if isinstance(each, ReplacedMessage) else has_number | behind)
    ]


def follow_up(
    mark: TreeMark, rows: Sequence[Row], read: Mapping[int, FoundDocument], now: float
) -> list[NewDocument | ReplacedMessage] | None:
    """The changes to documents of messages that are still to be made, where a tree is as its mark says, but for
    documents that an owner wrote behind the mark. They are noted in the mark. None if that does not explain the tree.

    `rows`: those that opening the journal needs. `read`: the documents that the mark does not know.
    """
    new = [row for row in rows if row.seq > mark.seq]
    if rows and rows[0].seq > mark.seq + 1:
        return None
    records = [(row, record_in(row)) for row in new]
    # What these change cannot be told from the new rows alone: the tree is compared with the whole journal.
    if any(isinstance(record, Branched | Redacted) for _, record in records):
        return None
    planned, _ = changes_for(records, mark.count, now)
    # A mark may go out while documents are written.
    changes = [each for each in planned if mark.number_of(each.index) is None]
    for number, found in sorted(read.items()):
        change = changes.pop(0) if changes else None
        # Another program's document, or an edit: this short way explains neither.
        if not isinstance(change, NewDocument) or found.digest != _digest(change.message):
            return None
        if found.tracking_id != tracking_id_of(change.message):
            return None
        mark.add(change.index, number)
    return changes


def _standing(rows: Sequence[Row]) -> list[_JournalMessage]:
    """All messages of a whole journal, redactions applied."""
    found: list[_JournalMessage] = []
    if not rows:
        return found
    journal = read_whole(rows, session_id="", agent_id=rows[-1].agent_id)
    current = journal.conversation(journal.last_seq)
    for row, (seq, record) in zip(rows, journal.records, strict=True):
        if isinstance(record, MessageAdded):
            message, index, at = record.message, record.index, record.at
            found.append(_JournalMessage(seq, index, message, row.link, at, row.erased, seq in current))
        elif row.kind == RecordKind.MESSAGE:
            index = found[-1].index + 1 if found else 0
            found.append(_JournalMessage(seq, index, None, row.link, 0.0, redacted=True, is_current=False))
    return found


def _matched(standing: Mapping[int, _JournalMessage], mark: TreeMark, found: TreeFound) -> dict[int, int]:
    """The place of each document's message in the journal, by the document's number.

    Documents that a killed owner wrote after its last mark are known by their tracking ids. Without a mark, so are all
    of them, and those without an id by what they say.
    """
    index_of = {number: index for index, number in pairs_of(mark.runs)}
    free = {index: each for index, each in standing.items() if index not in index_of.values()} if standing else {}
    if not free:
        return index_of
    by_id = {each.tracking_id: index for index, each in free.items() if each.tracking_id is not None}
    unknown = {number: read for number, read in sorted(found.read.items()) if number not in index_of}
    for number, read in unknown.items():
        if read.tracking_id is not None and read.tracking_id in by_id:
            index_of[number] = by_id.pop(read.tracking_id)
    if mark.seq:
        return _between(index_of, standing, found, mark.seq) if found.unordered else index_of
    matched = set(index_of.values())
    unmatched = [each for index, each in sorted(free.items()) if index not in matched]
    for number, read in unknown.items():
        same = next(
            (each for each in unmatched if each.message is not None and _digest(each.message) == read.digest), None
        )
        if number not in index_of and same is not None:
            index_of[number] = same.index
            unmatched.remove(same)
    return _between(index_of, standing, found, 0)


def _between(
    index_of: dict[int, int], standing: Mapping[int, _JournalMessage], found: TreeFound, since: int
) -> dict[int, int]:
    """The same with numbers for messages of rows behind `since`, before others that have documents, where these leave
    room.
    """
    number_of = {index: number for number, index in index_of.items()}
    last, end = max(number_of, default=-1), max(found.present, default=-1)
    for index in sorted(standing):
        number = number_of.get(index - 1, -1) + 1 if index else 0
        free = number not in index_of and number not in found.present
        before = number < end if found.unordered else index < last
        if not (standing[index].is_current and before) or index in number_of or standing[index].seq <= since:
            continue
        if free and (index == 0 or index - 1 in number_of):
            number_of[index] = number
            index_of[number] = index
    return index_of


def _tail(
    gone: Sequence[tuple[int, int]],
    known: Mapping[int, int],
    present: Collection[int],
    standing: Mapping[int, _JournalMessage],
) -> int:
    """The place of the first message that was removed from the end; one more than the last message if none was."""
    end = max(standing, default=-1) + 1
    first = max((index for number, index in known.items() if number in present), default=-1) + 1
    removed = sorted(index for _, index in gone if index >= first)
    if not removed:
        return end
    before = max((index for index in standing if index < removed[0]), default=None)
    message = standing[before].message if before is not None else None
    if message is not None and any(tool_uses(message)):  # Its results are one message with it.
        return removed[1] if len(removed) > 1 else end
    return removed[0]


class _Edited(Struct):
    rows: list[Row] = field(default_factory=list[Row])
    erase: list[int] = field(default_factory=list[int])
    messages: list[tuple[_Edit, Message]] = field(default_factory=list[tuple[_Edit, Message]])


def _edited(appender: Appender, rows: Sequence[Row], edits: Sequence[_Edit], at: float) -> _Edited:
    """The redactions for edited messages, and what each says from now on. A message whose tools are still to run is
    left for later.
    """
    changed = _Edited()
    for edit in edits:
        if edit.standing.message is None:
            continue
        message = _instead(edit.standing.message, edit.found)
        try:
            redaction = _redaction(appender, [*rows, *changed.rows], edit.standing, message, at)
        except Invalid:
            continue
        changed.rows += redaction.rows
        changed.erase = sorted({*changed.erase, *redaction.erase})
        changed.messages.append((edit, message))
    return changed


def _redaction(
    appender: Appender, rows: Sequence[Row], standing: _JournalMessage, message: Message, at: float
) -> Redaction:
    assert standing.message is not None
    try:
        return redact(appender, rows, standing.seq, message, at)
    except UnpairedTools:
        # Their edit has broken the pairing, without which no provider takes the history: our tool blocks stay, their
        # words count.
        own = [block for block in standing.message["content"] if "toolUse" in block or "toolResult" in block]
        others = [block for block in message["content"] if "toolUse" not in block and "toolResult" not in block]
        return redact(appender, rows, standing.seq, cast("Message", {**message, "content": [*others, *own]}), at)


def _instead(message: Message, found: FoundDocument | None) -> Message:
    if found is None or found.message is None:
        bare = {name: value for name, value in message.items() if name != "metadata"}  # A filler has no usage.
        return without_text(cast("Message", bare), LOST_TEXT)
    edited = well_formed(found.message)
    blocks = _with_parts(message, edited["content"])
    return cast("Message", {**edited, "role": message["role"], "content": blocks})


def _with_parts(message: Message, edited: Sequence[ContentBlock]) -> list[ContentBlock]:
    """The blocks of an edited document, with the parts of the message that only their provider can read where their
    texts were left as they are.
    """
    texts = zip(with_texts_of_parts(message)["content"], message["content"], strict=True)
    parts = [(text, part) for text, part in texts if text is not part]
    blocks: list[ContentBlock] = []
    for block in edited:
        found = next((pair for pair in parts if pair[0] == block), None)
        blocks.append(block if found is None else found[1])
        if found is not None:
            parts.remove(found)
    return blocks


def _rewound(
    appender: Appender, rows: Sequence[Row], standing: Mapping[int, _JournalMessage], tail: int, at: float
) -> Row:
    """The branch to before the messages that were removed at the end. The state stays: its document has it."""
    last = max((each.seq for index, each in standing.items() if index < tail and each.is_current), default=0)
    fold, journal = appender.fold, read_whole(rows, session_id="", agent_id=appender.agent_id)
    try:
        view = journal.fold_at(last).shown.view
    except Invalid:  # What was shown then was erased since.
        view = View(manager=fold.shown.view.manager)
    branch = Branched(
        at=at,
        position=last,
        last=last,
        message_count=fold.message_count,
        turns=fold.turns,
        run=fold.run,
        view=view,
        state=dict(fold.state),
    )
    return appender.rewind(branch, messages_of(journal.records))


def _digest(message: Message) -> str:
    return _digest_of_raw(parsed(to_file({"message": with_texts_of_parts(message)}, indent=None))["message"])


def _digest_of_raw(message: object) -> str:
    fields = cast("dict[str, object]", message) if isinstance(message, dict) else {}
    return digest_of_document({name: value for name, value in fields.items() if name != "tracking_id"})
