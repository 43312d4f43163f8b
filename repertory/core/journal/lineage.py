"""The conversation of a fork, whole: its source's up to where they parted, then its own.

Nothing of the source is copied for this: it is read where it is. The fork's first record proves by a link which journal
is meant. Where that is gone, the conversation begins with the messages that the fork took with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from repertory.core.journal.records import Branched, MessageAdded, Redacted
from repertory.core.journal.whole_journal import WholeJournal

Lineage = Sequence[WholeJournal]
"""A journal, and behind it its source, the source of that, and so on, as far as they are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A message of a conversation."""

    seq: int
    """Its number in the journal that it stands in."""
    source: str | None
    """That journal, as `session/agent`; None: the one that was asked for."""
    record: MessageAdded
    redacted: bool


def origin_of(journal: WholeJournal) -> Branched | None:
    """The record by which the journal names its source; None when it is no fork."""
    first = journal.records[0][1] if journal.records else None
    return first if isinstance(first, Branched) and first.source is not None else None


def is_source(origin: Branched, journal: WholeJournal) -> bool:
    """Whether this is the journal that a fork was made of, and not another one of its name."""
    position = origin.source_position
    if not 0 < position <= journal.last_seq:
        return False
    return journal.rows[position - 1].link.hex() == origin.source_link


def copies_end(journal: WholeJournal) -> int:
    """The position behind the messages that a fork took with it; 0 when the journal is no fork."""
    origin = origin_of(journal)
    return 0 if origin is None else 1 + len(origin.copied)


def before_fork(lineage: Lineage) -> list[Told]:
    """What had been said when the first journal was made, if it is a fork."""
    return told(lineage, copies_end(lineage[0]))


def told(lineage: Lineage, position: int) -> list[Told]:
    """The conversation as it stood at a position of the first journal, what was said before the fork included.

    What was redacted in the source is redacted here as well. A message that the fork took with it has its number in the
    fork.
    """
    own = lineage[0]
    redacted = {record.target for _, record in own.records if isinstance(record, Redacted)}
    said = {
        seq: Told(seq=seq, source=None, record=record, redacted=seq in redacted)
        for seq, record in own.conversation(position).items()
    }
    origin = origin_of(own)
    if origin is None or len(lineage) == 1 or not position:
        return list(said.values())
    copies = {seq: number for number, seq in enumerate(origin.copied, 2)}
    found: list[Told] = []
    for each in _still_there(told(lineage[1:], origin.source_position), copies, said):
        copy = said.pop(copies[each.seq], None) if each.source is None and each.seq in copies else None
        if copy is None:
            found.append(replace(each, source=each.source or origin.source))
        elif each.redacted and not copy.redacted:
            found.append(replace(copy, record=each.record, redacted=True))
        else:
            found.append(copy)
    return [*found, *said.values()]


def _still_there(before: Sequence[Told], copies: dict[int, int], said: dict[int, Told]) -> Sequence[Told]:
    """What was said in the source, up to the last message that is still there when the fork went back among those that
    it took with it.
    """
    if all(number in said for number in copies.values()):
        return before
    kept = [place for place, each in enumerate(before) if each.source is None and copies.get(each.seq) in said]
    return before[: kept[-1] + 1] if kept else ()
