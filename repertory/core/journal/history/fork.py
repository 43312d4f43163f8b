"""A journal of its own that goes on from a position of another one.

It holds what going on needs and nothing else: the state, the messages that are shown, those that tools pair them with,
and what the turn still waits for. Its first record names its source and the position there: whoever wants to see what
was said before reads on in the source (`told`). Going on does not, so the source may be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from repertory.core.journal.appender import Appender, Entropy
from repertory.core.journal.fold import Fold
from repertory.core.journal.pending_tools import standing_records
from repertory.core.journal.records import Branched, CursorMoved, MessageAdded, Record, Redacted, View, ViewChanged
from repertory.core.journal.view import SUMMARY_SEQ
from repertory.core.journal.whole_journal import WholeJournal
from repertory.core.messages import tool_results, tool_uses
from repertory.errors import CorruptJournal

if TYPE_CHECKING:
    from repertory.core.journal.rows import Row
    from repertory.core.journal.whole_journal import PointInTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """The rows of the new journal, from the first one."""

    rows: Sequence[Row]
    messages: int
    """How many messages it takes with it."""


def fork(then: PointInTime, *, at: float, entropy: Entropy) -> Fork:
    """Go on elsewhere from a moment of the source, with the same agent id.

    The model is shown the same. Messages have numbers of their own; idempotency tokens stay behind. `tells_enough` says
    whether the moment has all messages that it takes. Errors: `CorruptJournal` when the conversation lacks one of them.
    """
    fold, said = then.fold, then.said
    if then.missing:
        raise CorruptJournal("what is shown is no message of the conversation", agent=then.agent_id, seqs=then.missing)
    copied = _paired(said, _wanted(fold))
    appender = Appender(then.agent_id, Fold(), None, entropy)
    rows = [appender.rewind(_first_record(then, copied, at), {})]
    placed: dict[int, int] = {}
    for seq in copied:
        placed[seq] = appender.fold.last_seq + 1
        rows.append(appender.append(_copied(said[seq], len(placed) - 1)))
    rows += appender.append_all(_view(fold, placed, appender.fold, at))
    # A tool that was started has an unknown outcome here as well: it is never run again in silence.
    rows += appender.append_all([*standing_records(fold, at), *_cursors(fold, placed, at)])
    return Fork(rows=rows, messages=len(copied))


def tells_enough(then: PointInTime) -> bool:
    """Whether a fork can be made of the moment: not while a message that is shown asks or answers one that it has not,
    as only the whole journal then says which that is.
    """
    if then.missing:
        return False
    wanted = sorted(_wanted(then.fold))
    asked: set[str] = set()
    for seq in wanted:
        message = then.said[seq].message
        if asked != {result["toolUseId"] for result in tool_results(message)}:
            return False
        asked = {use["toolUseId"] for use in tool_uses(message)}
    return not asked or wanted[-1] == then.fold.last_message_seq


def _wanted(fold: Fold) -> set[int]:
    return {seq for seq, _ in fold.shown if seq != SUMMARY_SEQ} | ({fold.last_message_seq} - {0})


def _paired(said: Mapping[int, MessageAdded], wanted: set[int]) -> list[int]:
    """The messages that are wanted, and those beside them that they ask or answer, in order."""
    order = list(said)
    place = {seq: number for number, seq in enumerate(order)}
    found: set[int] = set()
    waiting = list(wanted)
    while waiting:
        seq = waiting.pop()
        if seq in found:
            continue
        found.add(seq)
        number = place[seq]
        if any(tool_results(said[seq].message)) and number:
            waiting.append(order[number - 1])
        if any(tool_uses(said[seq].message)) and number + 1 < len(order):
            waiting.append(order[number + 1])
    return sorted(found, key=place.__getitem__)


def _first_record(then: PointInTime, copied: Sequence[int], at: float) -> Branched:
    fold = then.fold
    turns = then.said[copied[0]].turn - 1 if copied else fold.turns
    return Branched(
        at=at,
        position=0,
        last=0,
        turns=max(0, turns),
        run=fold.run - 1 if fold.nodes else fold.run,
        state=dict(fold.state),
        source=f"{then.session_id}/{then.agent_id}",
        source_position=then.position,
        source_link=then.link.hex() if then.link is not None else "",
        copied=tuple(copied),
    )


def _copied(record: MessageAdded, index: int) -> MessageAdded:
    return replace(record, index=index, idempotency_token=None, view=None)


def _view(fold: Fold, placed: Mapping[int, int], copy: Fold, at: float) -> Iterable[Record]:
    """What is shown, in the new numbers; nothing when every message that was copied is shown as it was said."""
    was = fold.shown.view
    recent = next((placed[seq] for seq, _ in fold.shown.recent), copy.last_seq + 1)
    view = View(
        first_shown=recent,
        pinned={placed[seq]: message for seq, message in was.pinned.items()},
        replaced={placed[seq]: message for seq, message in was.replaced.items()},
        summary=was.summary,
        manager=was.manager,
        manager_state=was.manager_state,
    )
    plain = replace(view, first_shown=0) == View() and recent <= min(placed.values(), default=recent)
    return () if plain else (ViewChanged(at=at, view=view, reason="forked"),)


def _cursors(fold: Fold, placed: Mapping[int, int], at: float) -> Iterable[Record]:
    """What memory stores have taken in of the source need not be taken in again."""
    cursors = {store: _behind(seq, placed) for store, seq in fold.cursors.items()}
    if any(cursors.values()):
        yield CursorMoved(at=at, positions={store: seq for store, seq in cursors.items() if seq})


def _behind(seq: int, placed: Mapping[int, int]) -> int:
    """The last message that was copied and that a memory store has taken in; 0 when there is none."""
    return max((number for source, number in placed.items() if source <= seq), default=0)


# The conversation of a fork, whole: its source's up to where they parted, then its own. Nothing of the source is
# copied for this: it is read where it is. The fork's first record proves by a link which journal is meant. Where that
# is gone, the conversation begins with the messages that the fork took with it.

Lineage = Sequence[WholeJournal]
"""A journal, and behind it its source, the source of that, and so on, as far as they are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenMessage:
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


def before_fork(lineage: Lineage) -> list[SpokenMessage]:
    """What had been said when the first journal was made, if it is a fork."""
    return conversation_at(lineage, copies_end(lineage[0]))


def conversation_at(lineage: Lineage, position: int) -> list[SpokenMessage]:
    """The conversation as it stood at a position of the first journal, what was said before the fork included.

    What was redacted in the source is redacted here as well. A message that the fork took with it has its number in the
    fork.
    """
    own = lineage[0]
    redacted = {record.target for _, record in own.records if isinstance(record, Redacted)}
    said = {
        seq: SpokenMessage(seq=seq, source=None, record=record, redacted=seq in redacted)
        for seq, record in own.conversation(position).items()
    }
    origin = origin_of(own)
    if origin is None or len(lineage) == 1 or not position:
        return list(said.values())
    copies = {seq: number for number, seq in enumerate(origin.copied, 2)}
    found: list[SpokenMessage] = []
    for each in _still_there(conversation_at(lineage[1:], origin.source_position), copies, said):
        copy = said.pop(copies[each.seq], None) if each.source is None and each.seq in copies else None
        if copy is None:
            found.append(replace(each, source=each.source or origin.source))
        elif each.redacted and not copy.redacted:
            found.append(replace(copy, record=each.record, redacted=True))
        else:
            found.append(copy)
    return [*found, *said.values()]


def _still_there(
    before: Sequence[SpokenMessage], copies: dict[int, int], said: dict[int, SpokenMessage]
) -> Sequence[SpokenMessage]:
    """What was said in the source, up to the last message that is still there when the fork went back among those that
    it took with it.
    """
    if all(number in said for number in copies.values()):
        return before
    kept = [place for place, each in enumerate(before) if each.source is None and copies.get(each.seq) in said]
    return before[: kept[-1] + 1] if kept else ()
