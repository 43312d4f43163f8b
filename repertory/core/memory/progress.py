"""The progress of a memory store in a conversation: its position, its pending writes, and its dead letters.

Each change writes the whole progress to the journal, so the next process finishes what was begun.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from repertory.core.journal.fold import is_answer
from repertory.core.journal.paths import paths_to, within
from repertory.core.journal.records import CursorMoved, MessageAdded, Redacted
from repertory.core.journal.restore import records_of
from repertory.core.journal.rows import Row
from repertory.core.messages import Json, Message
from repertory.errors import CorruptJournal

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.records import Record

PENDING_MAX = 256
"""The most pending writes of one store for one conversation. Further ones are refused."""
DEAD_LETTERS_MAX = 64
"""The most dead letters; beyond it the oldest are dropped. Each change of the progress writes all of them."""
WHY_CHARS_MAX = 500

SeqRange: TypeAlias = tuple[int, int]
"""The first and the last sequence number of a range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWrite:
    """One memory to be written to a store."""

    key: str
    """The id of the write: unique, and the same for every attempt."""
    content: str
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])
    sequence_numbers: tuple[int, ...] = ()
    """The messages that it was extracted from."""
    message_times: tuple[float, ...] = ()
    """The times of these messages, in epoch seconds and in their order."""
    said_at: float | None = None
    """The time of the latest of these messages, in epoch seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDeadLetter:
    """A write that a store refused for good, or a range that could not be extracted."""

    at: float
    """The time at which it was given up, in epoch seconds."""
    why: str
    write: MemoryWrite | None = None
    """The refused write; None when a range could not be extracted."""
    seq_range: SeqRange = (0, 0)
    """The messages concerned."""


class Progress(Struct, frozen=True, kw_only=True):
    """The progress of one store in one conversation."""

    position: int = 0
    """The last sequence number taken for extraction. What came of it is written, pending, in `again`, or a
    dead letter.
    """
    pending: tuple[MemoryWrite, ...] = ()
    """Writes to do, the oldest first."""
    again: tuple[SeqRange, ...] = ()
    """Ranges up to `position` that are still to be extracted: the current one, and those of replayed dead letters."""
    dead_letters: tuple[MemoryDeadLetter, ...] = ()
    """The dead letters, the oldest first."""

    @property
    def room(self) -> int:
        """The number of further writes that may become pending."""
        return max(PENDING_MAX - len(self.pending), 0)

    def claimed(self, last: int) -> Progress:
        """The progress with the messages after the position, up to `last`, taken for extraction as one range."""
        return replace(self, position=last, again=(*self.again, (self.position + 1, last)))

    def extracted(self, seq_range: SeqRange, writes: Sequence[MemoryWrite]) -> Progress:
        """The progress after a range was extracted into these writes."""
        return replace(
            self,
            # A replayed range lies behind the position, which never goes back.
            position=max(self.position, seq_range[1]),
            again=tuple(other for other in self.again if other != seq_range),
            pending=(*self.pending, *writes),
        )

    def accepted(self, writes: Sequence[MemoryWrite]) -> Progress:
        """The progress with these writes added, except those whose key is pending already."""
        # The same call, repeated after a crash.
        known = {write.key for write in self.pending}
        return replace(self, pending=(*self.pending, *(write for write in writes if write.key not in known)))

    def landed(self, key: str) -> Progress:
        """The progress once the store has this write."""
        return replace(self, pending=tuple(write for write in self.pending if write.key != key))

    def refused(self, key: str, why: str, at: float) -> Progress:
        """The progress once the store has refused this write for good: it is a dead letter."""
        new_letters = [
            MemoryDeadLetter(at=at, why=why[:WHY_CHARS_MAX], write=write) for write in self.pending if write.key == key
        ]
        return replace(self.landed(key), dead_letters=(*self.dead_letters, *new_letters)[-DEAD_LETTERS_MAX:])

    def given_up(self, seq_range: SeqRange, why: str, at: float) -> Progress:
        """The progress without a range that cannot be extracted: it is a dead letter."""
        letter = MemoryDeadLetter(at=at, why=why[:WHY_CHARS_MAX], seq_range=seq_range)
        return replace(self.extracted(seq_range, ()), dead_letters=(*self.dead_letters, letter)[-DEAD_LETTERS_MAX:])

    def without(self, seqs: Collection[int]) -> Progress:
        """The progress without the pending writes and dead letters that came from these messages. The rest of their
        ranges is extracted again, without them.
        """
        # Dead letters too: they hold the text, and could be replayed.
        writes = [*self.pending, *(letter.write for letter in self.dead_letters if letter.write is not None)]
        gone = [write for write in writes if not set(write.sequence_numbers).isdisjoint(seqs)]
        if not gone:
            return self
        keys = {write.key for write in gone}
        stretches = [(min(write.sequence_numbers), max(write.sequence_numbers)) for write in gone]
        return replace(
            self,
            pending=tuple(write for write in self.pending if write.key not in keys),
            again=tuple(dict.fromkeys((*self.again, *stretches))),
            dead_letters=tuple(each for each in self.dead_letters if each.write is None or each.write.key not in keys),
        )

    def replayed(self) -> Progress:
        """The progress with every dead letter to be tried again."""
        writes = [letter.write for letter in self.dead_letters if letter.write is not None]
        again = [letter.seq_range for letter in self.dead_letters if letter.write is None]
        return replace(self.accepted(writes), again=tuple(dict.fromkeys((*self.again, *again))), dead_letters=())

    def lag(self, new: int, claimed: Mapping[SeqRange, int]) -> StoreLag:
        """The messages that the store lacks. `new`: the number of messages after the position; `claimed`: of ranges in
        `again`, as far as known; an unknown one counts as if every record in it were a message.
        """
        counts = (claimed.get(each, each[1] - each[0] + 1) for each in self.again)
        behind = {seq for write in self.pending for seq in write.sequence_numbers or (write.key,)}
        return StoreLag(new + sum(counts) + len(behind), len(self.dead_letters))


class StoreLag(NamedTuple):
    """The messages of one conversation that one store lacks."""

    waiting: int
    """Messages that were said, and of which the store does not have everything."""
    dead_letters: int


def read_progress(position: int, stored: Json) -> Progress:
    """The progress from a journal's JSON. Errors: `CorruptJournal` for malformed data."""
    if stored is None:
        return Progress(position=position)
    try:
        fields = cast("Mapping[str, Json]", stored)
        return Progress(
            position=position,
            pending=tuple(map(_read_write, _list(fields.get("pending")))),
            again=tuple(map(_read_seq_range, _list(fields.get("again")))),
            dead_letters=tuple(map(_read_dead_letter, _list(fields.get("letters")))),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise CorruptJournal("what is kept of a memory store cannot be read", found=type(error).__name__) from error


def forgetting(
    journal: Sequence[tuple[int, Record | None]], fold: Fold, seqs: Collection[int], at: float
) -> tuple[CursorMoved | None, frozenset[int]]:
    """The record that drops pending memory work of these messages, and the rows to erase with it; None and none when no
    cursor record ever held such work. `journal`: sequence number and record of every row.
    """
    erase: set[int] = set()
    for seq, record in journal:
        if isinstance(record, CursorMoved) and record.kept:
            progress_of = {name: read_progress(0, stored) for name, stored in record.kept.items()}
            if any(progress.without(seqs) != progress for progress in progress_of.values()):
                erase.add(seq)
    if not erase:
        return None, frozenset()
    now = {name: read_progress(fold.cursors.get(name, 0), stored) for name, stored in fold.kept.items()}
    written = {name: progress_json(progress.without(seqs)) for name, progress in now.items()}
    stated = {name: progress_of for name, progress_of in written.items() if progress_of is not None}
    return CursorMoved(at=at, positions=dict(fold.cursors), kept=stated), frozenset(erase)


def progress_json(progress: Progress) -> Json:
    """The progress as JSON for the journal, without the position; None when there is nothing else."""
    fields: dict[str, Json] = {}
    if progress.pending:
        fields["pending"] = [_spell_write(write) for write in progress.pending]
    if progress.again:
        fields["again"] = [list(seq_range) for seq_range in progress.again]
    if progress.dead_letters:
        fields["letters"] = [_spell_dead_letter(letter) for letter in progress.dead_letters]
    return fields or None


def _spell_write(write: MemoryWrite) -> dict[str, Json]:
    fields: dict[str, Json] = {"key": write.key, "content": write.content}
    if write.metadata:
        fields["metadata"] = dict(write.metadata)
    if write.sequence_numbers:
        fields["sequence_numbers"] = list(write.sequence_numbers)
    if write.message_times:
        fields["message_times"] = list(write.message_times)
    if write.said_at is not None:
        fields["said_at"] = write.said_at
    return fields


def _spell_dead_letter(letter: MemoryDeadLetter) -> dict[str, Json]:
    what: dict[str, Json] = (
        {"stretch": list(letter.seq_range)} if letter.write is None else {"write": _spell_write(letter.write)}
    )
    return {"at": letter.at, "why": letter.why, **what}


def _list(value: Json) -> Sequence[Json]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise TypeError
    return cast("Sequence[Json]", value)


def _read_seq_range(value: Json) -> SeqRange:
    first, last = _list(value)
    if not isinstance(first, int) or not isinstance(last, int):
        raise TypeError
    return first, last


def _read_write(value: Json) -> MemoryWrite:
    fields = cast("Mapping[str, Json]", value)
    key, content, said_at = fields.get("key"), fields.get("content"), fields.get("said_at")
    metadata, numbers = fields.get("metadata", {}), _list(fields.get("sequence_numbers"))
    times = _list(fields.get("message_times"))
    if not (isinstance(key, str) and isinstance(content, str) and isinstance(metadata, dict)):
        raise TypeError
    if not (said_at is None or isinstance(said_at, float | int)):
        raise TypeError
    return MemoryWrite(
        key=key,
        content=content,
        metadata=cast("Mapping[str, Json]", metadata),
        sequence_numbers=tuple(number for number in numbers if isinstance(number, int)),
        message_times=tuple(time for time in times if isinstance(time, float | int)),
        said_at=said_at,
    )


def _read_dead_letter(value: Json) -> MemoryDeadLetter:
    fields = cast("Mapping[str, Json]", value)
    at, why, write = fields.get("at"), fields.get("why"), fields.get("write")
    if not (isinstance(at, float | int) and isinstance(why, str)):
        raise TypeError
    if write is None:
        return MemoryDeadLetter(at=at, why=why, seq_range=_read_seq_range(fields.get("stretch")))
    return MemoryDeadLetter(at=at, why=why, write=_read_write(write))


class StoreFlush(NamedTuple):
    """The result of flushing one store."""

    landed: int = 0
    """Messages extracted or handed over, and memories written, in this flush."""
    parked: int = 0
    """Messages and memories that the store lacks: they wait for the next attempt, or are dead letters."""
    error: str | None = None
    """The reason, when something is parked."""

    def and_also(self, other: StoreFlush) -> StoreFlush:
        """The sum of two conversations.

        Args:
            other: Another one of the same store.
        """
        return StoreFlush(self.landed + other.landed, self.parked + other.parked, self.error or other.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushReport:
    """The result of a flush."""

    stores: Mapping[str, StoreFlush]
    """Store name to `(landed, parked, error)`."""

    @property
    def ok(self) -> bool:
        """True if the stores have everything said before the flush began."""
        return not any(store.parked or store.error for store in self.stores.values())


def together(names: Iterable[str], flushed: Iterable[Mapping[str, StoreFlush]]) -> FlushReport:
    """The report over several conversations."""
    stores = dict.fromkeys(names, StoreFlush())
    for each in flushed:
        for name, store in each.items():
            stores[name] = stores.get(name, StoreFlush()).and_also(store)
    return FlushReport(stores=stores)


class JournaledMessage(NamedTuple):
    """One message of a conversation."""

    seq: int
    """The message's sequence number in the journal."""
    at: float
    """The time of the message, in epoch seconds."""
    message: Message
    redacted: bool = False
    """True if the message replaces an erased one."""


def messages_in_rows(
    rows: Sequence[Row], after: int, until: int | None = None, *, session_id: str
) -> list[JournaledMessage]:
    """The messages after sequence number `after`, up to `until` or all, in order, as they are now, without those that a
    rewind left behind. `rows`: at least all rows after `after`.

    Errors: `CorruptJournal` for rows that cannot be decoded.
    """
    wanted = [row for row in rows if row.seq > after]
    if not wanted:
        return []
    records = records_of(wanted, session_id=session_id)
    path = paths_to(records, [wanted[-1].seq if until is None else until])
    redacted = {record.target for _, record in records if isinstance(record, Redacted)}
    return [
        JournaledMessage(seq, record.at, record.message, seq in redacted)
        for seq, record in records
        if isinstance(record, MessageAdded) and within(seq, path)
    ]


def turns_in(messages: Iterable[JournaledMessage]) -> int:
    """The number of answers in these messages."""
    return sum(is_answer(each.message) for each in messages)


def whole_turns(messages: Sequence[JournaledMessage]) -> Sequence[JournaledMessage]:
    """The messages up to the last answer; later ones belong to an unfinished turn."""
    for end in range(len(messages), 0, -1):
        if is_answer(messages[end - 1].message):
            return messages[:end]
    return ()
