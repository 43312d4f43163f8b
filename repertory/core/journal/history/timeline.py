"""The positions of a journal that somebody may want to go back to, in order, with what happened there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from repertory.core.journal.appender import Appender
from repertory.core.journal.fold import is_answer
from repertory.core.journal.history.compare import cost_of
from repertory.core.journal.history.fork import Lineage, copies_end, origin_of
from repertory.core.journal.history.redact import texts_of
from repertory.core.journal.paths import path_to, within
from repertory.core.journal.records import (
    Branched,
    MessageAdded,
    NodeChanged,
    NodeStatus,
    Record,
    Redacted,
    SnapshotTaken,
    ViewChanged,
)
from repertory.core.journal.rows import Row
from repertory.core.journal.whole_journal import WholeJournal, position_named
from repertory.core.messages import Json, is_filler
from repertory.core.orchestration.run import NodeNotice, told_by
from repertory.errors import Invalid

What = Literal["turn", "mark", "rewind", "view", "redaction", "fork", "run", "node"]
WORDS_MAX = 80
"""Characters of a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """Something that happened in a session, at a position that one can go back to."""

    seq: int
    """The position: right after it happened."""
    at: float
    """Epoch seconds."""
    what: What
    text: str
    """Of a turn the first words of its prompt, of a mark its label, of a view the reason, of a rewind the name that it
    was given, of a fork its source. Of a run that begins the first words of its task, of one that ends before its work
    is done the reason; of a node the first words of what it led to, or what it asks.
    """
    turn: int | None = None
    run: int | None = None
    """The number of the run that began or ended there, or that a node belongs to."""
    node: str | None = None
    """Which node has ended there."""
    status: NodeStatus | None = None
    """Of a node how it ended; of a run `started`, or `failed` when it ended before its work was done."""
    position: int | None = None
    """What a mark names, where a rewind went back to, which message was redacted, or where the source was left."""
    answered: bool | None = None
    """Whether a turn has its answer."""
    tokens: int | None = None
    """What the answers of a turn took, or a node that time; None when they do not say so."""
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Of a mark."""
    on_path: bool = True
    """Whether it led to where the conversation stands now; what lies beyond a rewind did not."""
    source: str | None = None
    """The journal that the numbers are of, as `session/agent`, when that is one that this one was forked from."""


def timeline(lineage: Lineage) -> list[TimelineEntry]:
    """What happened in the first journal, in order, and before that in its sources, up to where it left them."""
    found: list[TimelineEntry] = []
    name: str | None = None
    end = lineage[0].last_seq
    for journal in lineage:
        found = [*_happenings(journal, end, name, whole=name is None), *found]
        origin = origin_of(journal)
        if origin is not None:
            name, end = origin.source, origin.source_position
    return found


def _happenings(journal: WholeJournal, end: int, name: str | None, *, whole: bool) -> Iterator[TimelineEntry]:
    """Everything up to a position; of a source only what led there."""
    records = journal.records[:end]
    stretches = path_to(records, end)
    said = journal.conversation(end)
    copies = copies_end(journal)
    turns = _turns([(seq, each) for seq, each in records if isinstance(each, MessageAdded) and seq > copies])
    found: list[TimelineEntry] = [_turn(messages, name, on_path=messages[-1][0] in said) for messages in turns]
    for seq, record in records:
        happening = _other(seq, record, name, on_path=within(seq, stretches))
        if happening is not None:
            found.append(happening)
    found.sort(key=lambda each: each.seq)
    yield from (each for each in found if whole or each.on_path)


def _turns(said: Sequence[tuple[int, MessageAdded]]) -> list[list[tuple[int, MessageAdded]]]:
    found: list[list[tuple[int, MessageAdded]]] = []
    for seq, record in said:
        if not found or found[-1][-1][1].turn != record.turn:
            found.append([])
        found[-1].append((seq, record))
    return found


def _of_run(seq: int, record: NodeChanged, told: NodeNotice, name: str | None, *, on_path: bool) -> TimelineEntry:
    return TimelineEntry(
        seq=seq,
        at=record.at,
        what="node" if record.node else "run",
        text=_first_words(told.text),
        run=record.run,
        node=record.node or None,
        status=record.status,
        tokens=told.tokens,
        on_path=on_path,
        source=name,
    )


def _first_words(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= WORDS_MAX else f"{words[: WORDS_MAX - 3]}..."


def _turn(said: Sequence[tuple[int, MessageAdded]], name: str | None, *, on_path: bool) -> TimelineEntry:
    cost = cost_of(record.message for _, record in said)
    return TimelineEntry(
        seq=said[-1][0],
        at=said[-1][1].at,
        what="turn",
        text=_first_words(" ".join(texts_of(said[0][1].message))),
        turn=said[0][1].turn,
        answered=is_answer(said[-1][1].message) and not is_filler(said[-1][1].message),
        tokens=cost.total_tokens if cost.answers else None,
        on_path=on_path,
        source=name,
    )


def _other(seq: int, record: Record | None, name: str | None, *, on_path: bool) -> TimelineEntry | None:
    match record:
        case NodeChanged():
            found = told_by(record)
            return None if found is None else _of_run(seq, record, found, name, on_path=on_path)
        case SnapshotTaken():
            what, text, position = "mark", record.label, position_named(seq, record)
        case Branched(source=str(source)):
            what, text, position = "fork", source, record.source_position
        case Branched() if record.position != seq - 1:
            what, text, position = "rewind", record.name, record.position
        case ViewChanged() if record.reason != "restated":
            what, text, position = "view", record.reason, None
        case Redacted():
            what, text, position = "redaction", "", record.target
        case _:
            return None
    metadata = record.metadata if isinstance(record, SnapshotTaken) else dict[str, Json]()
    return TimelineEntry(
        seq=seq, at=record.at, what=what, text=text, position=position, metadata=metadata, on_path=on_path, source=name
    )


# Names for positions of a journal, with what else is to be kept of them.

LABEL_BYTES_MAX = 255
"""The longest label, in UTF-8."""
_RESERVED = "history"
"""Where the records of numbered snapshots have their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A name that somebody wants to give."""

    label: str
    """What `rewind`, `fork` and `diff` take as a position. The latest mark of a label counts."""
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])
    position: int | None = None
    """What is named; None: the end."""


def mark_record(mark: Mark, link: bytes | None, at: float, position: int | None = None) -> SnapshotTaken:
    """The record by which a journal takes a mark in, for the position right before it unless another one is given.
    `link`: of the row that is named; None when there is none.

    Errors: `Invalid` for a label that is empty or a number (which would be read as a position), too long, or not
    printable, and for the metadata key `history`, which numbered snapshots have.
    """
    label = mark.label
    if not label or label.isdecimal() or not label.isprintable() or len(label.encode()) > LABEL_BYTES_MAX:
        msg = f"a label is printable, no number, and has 1 to {LABEL_BYTES_MAX} bytes"
        raise Invalid(msg, label=label[:LABEL_BYTES_MAX])
    if _RESERVED in mark.metadata:
        raise Invalid("this key of the metadata is kept for numbered snapshots", key=_RESERVED, label=label)
    digest = link.hex() if link is not None else ""
    return SnapshotTaken(at=at, label=label, metadata=dict(mark.metadata), digest=digest, position=position)


def mark_rows(appender: Appender, marks: Sequence[Mark], links: Mapping[int, bytes], at: float) -> list[Row]:
    """The rows that give these names, to be stored together; where a mark names nothing, that is the journal's end as
    it is now. `links` has those of the rows that are named and are not the last one.
    """
    end = appender.fold.last_seq
    known = {**links, end: appender.link} if end else links
    records: list[Record] = []
    for number, mark in enumerate(marks):
        position = end if mark.position is None else mark.position
        stated = None if position == end + number else position
        records.append(mark_record(mark, known.get(position), at, stated))
    return [*appender.append_all(records), *appender.restate(at)]
