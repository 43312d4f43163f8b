"""The timeline of a journal: what happened, in order, with the positions to go back to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from repertory.core.history.compare import cost_of
from repertory.core.history.fork import Lineage, copies_end, origin_of
from repertory.core.journal.fold import is_answer
from repertory.core.journal.paths import path_to, within
from repertory.core.journal.records import (
    Branched,
    DeferralsChanged,
    DeferredResult,
    MessageAdded,
    NodeChanged,
    NodeStatus,
    Record,
    Redacted,
    SnapshotTaken,
    TimersChanged,
    ViewChanged,
)
from repertory.core.journal.redact import texts_of
from repertory.core.journal.restore import Appender
from repertory.core.journal.rows import Row
from repertory.core.journal.whole_journal import WholeJournal, position_named
from repertory.core.messages import Json, is_filler, is_stopped
from repertory.core.orchestration.run import NodeNotice, notice_of
from repertory.core.timers import Timer
from repertory.errors import Invalid

What = Literal["turn", "mark", "rewind", "view", "redaction", "fork", "run", "node", "timer", "tool"]
WORDS_MAX = 80
"""The longest text of an entry, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """Something that happened in a session, and the position right after it."""

    seq: int
    at: float
    """The time of the event, in epoch seconds."""
    what: What
    text: str = field(repr=False)
    """Turn: the first words of its prompt. Mark: its label. View: the reason. Rewind: the name it was given. Fork: its
    source. Run: the first words of its task when it begins, the reason when it ends before its work is done. Node: the
    first words of its result, or its question. Timer: the ids that were set or cancelled; a firing is its turn.
    Tool: one that waits for a result which comes later, or has it, or has waited long enough.
    """
    turn: int | None = None
    run: int | None = None
    """The run that began or ended here, or that the node belongs to."""
    node: str | None = None
    """The node that ended here."""
    status: NodeStatus | None = None
    """Node: how it ended. Run: `started`, or `failed` when it ended before its work was done."""
    position: int | None = None
    """The position that a mark names, a rewind went back to, or a fork left its source at; or the message redacted."""
    answered: bool | None = None
    """True if a turn has its answer."""
    tokens: int | None = None
    """The tokens that a turn's answers or a node used; None when unreported."""
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """The metadata of a mark."""
    on_path: bool = True
    """True if it led to the current end; False for what lies beyond a rewind."""
    source: str | None = None
    """The journal of these numbers, as `session/agent`, when it is a source of the journal asked for."""


def timeline(lineage: Lineage) -> list[TimelineEntry]:
    """The entries of the first journal, in order, after those of its sources up to each fork."""
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
    """The entries up to a position; of a source, only those on the path to it."""
    records = journal.records[:end]
    stretches = path_to(records, end)
    conversation = journal.conversation(end)
    copies = copies_end(journal)
    turns = _turns([(seq, each) for seq, each in records if isinstance(each, MessageAdded) and seq > copies])
    found: list[TimelineEntry] = [_turn(messages, name, on_path=messages[-1][0] in conversation) for messages in turns]
    for seq, record in records:
        happening = _other(seq, record, name, on_path=within(seq, stretches))
        if happening is not None:
            found.append(happening)
    found += _timers(records, name)
    found += _late_tools(records, name, stretches)
    found.sort(key=lambda each: each.seq)
    yield from (each for each in found if whole or each.on_path)


def _turns(messages: Sequence[tuple[int, MessageAdded]]) -> list[list[tuple[int, MessageAdded]]]:
    found: list[list[tuple[int, MessageAdded]]] = []
    for seq, record in messages:
        if not found or found[-1][-1][1].turn != record.turn:
            found.append([])
        found[-1].append((seq, record))
    return found


def _of_run(seq: int, record: NodeChanged, notice: NodeNotice, name: str | None, *, on_path: bool) -> TimelineEntry:
    return TimelineEntry(
        seq=seq,
        at=record.at,
        what="node" if record.node else "run",
        text=_first_words(notice.text),
        run=record.run,
        node=record.node or None,
        status=record.status,
        tokens=notice.tokens,
        on_path=on_path,
        source=name,
    )


def _first_words(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= WORDS_MAX else f"{words[: WORDS_MAX - 3]}..."


def _turn(messages: Sequence[tuple[int, MessageAdded]], name: str | None, *, on_path: bool) -> TimelineEntry:
    cost, last = cost_of(record.message for _, record in messages), messages[-1][1].message
    return TimelineEntry(
        seq=messages[-1][0],
        at=messages[-1][1].at,
        what="turn",
        text=_first_words(" ".join(texts_of(messages[0][1].message))),
        turn=messages[0][1].turn,
        answered=is_answer(last) and not is_filler(last) and not is_stopped(last),
        tokens=cost.total_tokens if cost.answers else None,
        on_path=on_path,
        source=name,
    )


def _other(seq: int, record: Record | None, name: str | None, *, on_path: bool) -> TimelineEntry | None:
    match record:
        case NodeChanged():
            found = notice_of(record)
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


def _timers(records: Sequence[tuple[int, Record | None]], name: str | None) -> Iterator[TimelineEntry]:
    """The timers that were set or cancelled between two records. No rewind leaves these changes behind."""
    known: Mapping[str, Timer] = {}
    fired: str | None = None
    for seq, record in records:
        if isinstance(record, MessageAdded):
            fired = record.idempotency_token
        if not isinstance(record, TimersChanged):
            continue
        now = {timer.id: timer for timer in record.timers}
        changed = {timer_id for timer_id in {*known, *now} if known.get(timer_id) != now.get(timer_id)}
        changed -= {timer.id for timer in known.values() if timer.token == fired}
        known, words = now, [f"{each} {'set' if each in now else 'cancelled'}" for each in sorted(changed)]
        if words:
            text = _first_words(", ".join(words))
            yield TimelineEntry(seq=seq, at=record.at, what="timer", text=text, source=name)


def _late_tools(
    records: Sequence[tuple[int, Record | None]], name: str | None, stretches: Sequence[tuple[int, int]]
) -> Iterator[TimelineEntry]:
    """Tools whose results come later: that they wait, and how that ended."""
    known: set[str] = set()
    came: set[str] = set()
    for seq, record in records:
        match record:
            case Branched():
                known, came = set[str](), set[str]()  # What waits behind it is stated anew.
                continue
            case DeferralsChanged():
                begun = [one.tool for one in record.deferrals if one.id not in known]
                known |= {one.id for one in record.deferrals}
                words = ", ".join(f"{tool} waits for its result" for tool in begun)
            case DeferredResult() if record.id not in came:
                came.add(record.id)
                words = f"{record.name} {'has no result in time' if record.expired else 'has its result'}"
            case _:
                continue
        if words:
            on_path = within(seq, stretches)
            yield TimelineEntry(
                seq=seq, at=record.at, what="tool", text=_first_words(words), on_path=on_path, source=name
            )


# Marks: labels for positions of a journal, with metadata.

LABEL_BYTES_MAX = 255
"""The longest label, in bytes of UTF-8."""
_RESERVED = "history"
"""The metadata key under which numbered snapshots store their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A label to give to a position.

    Args:
        metadata: Values of your own, as JSON.
    """

    label: str
    """A name for the position, for `rewind`, `fork` and `diff`. Of several marks with one label, the latest counts."""
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])
    position: int | None = None
    """The position to name; None for the journal's end."""


def mark_record(mark: Mark, link: bytes | None, at: float, position: int | None = None) -> SnapshotTaken:
    """The record of a mark, for the position right before it unless `position` is given.

    `link`: that of the named row; None when there is none. Errors: `Invalid` for a label that is empty, a number (it
    would be read as a position), longer than `LABEL_BYTES_MAX` or not printable, and for the metadata key `history`,
    which is reserved.
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
    """The rows of several marks, to be stored together. A mark without a position names the journal's end before these
    rows. `links`: sequence number to link, for the named rows other than the last one.
    """
    end = appender.fold.last_seq
    known = {**links, end: appender.link} if end else links
    records: list[Record] = []
    for number, mark in enumerate(marks):
        position = end if mark.position is None else mark.position
        stated = None if position == end + number else position
        records.append(mark_record(mark, known.get(position), at, stated))
    return [*appender.append_all(records), *appender.restate(at)]
