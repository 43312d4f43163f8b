"""Fork: make a new journal that goes on from a position of another one.

A fork holds only what going on needs: the state, the shown messages, the messages that their tools pair them with, and
what the turn still waits for. Its first record names the source and the position there: a reader who wants the earlier
conversation reads on in the source (`conversation_at`). The fork itself needs no source, which may be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from repertory.core.interrupts import step_mark
from repertory.core.journal.fold import Fold
from repertory.core.journal.pending_tools import standing_records
from repertory.core.journal.records import Branched, CursorMoved, MessageAdded, Record, Redacted, View, ViewChanged
from repertory.core.journal.restore import Appender, Entropy
from repertory.core.journal.view import SUMMARY_SEQ
from repertory.core.journal.whole_journal import WholeJournal
from repertory.core.messages import tool_results, tool_uses
from repertory.errors import CorruptJournal

if TYPE_CHECKING:
    from repertory.core.journal.rows import Row
    from repertory.core.journal.whole_journal import PointInTime


class Fork(Struct, frozen=True, kw_only=True):
    """The rows of the new journal, all of them."""

    rows: Sequence[Row]
    messages: int
    """The number of messages copied."""


def fork(then: PointInTime, *, at: float, entropy: Entropy) -> Fork:
    """Go on in a new journal from a position of the source, with the same agent id.

    The model is shown the same. Messages get new sequence numbers; idempotency tokens are dropped. `tells_enough` says
    whether `then` has all messages to copy. Errors: `CorruptJournal` when a shown message is missing.
    """
    fold, messages = then.fold, then.messages
    if then.missing:
        raise CorruptJournal("a shown message is missing from the conversation", agent=then.agent_id, seqs=then.missing)
    copied = _paired(messages, _wanted(fold))
    appender = Appender(then.agent_id, Fold(), None, entropy)
    # A branch as the first record: it gives the numbers to go on from, and names the source.
    rows = [appender.rewind(_first_record(then, copied, at), {})]
    placed: dict[int, int] = {}
    for seq in copied:
        placed[seq] = appender.fold.last_seq + 1
        rows.append(appender.append(_copied(messages[seq], len(placed) - 1)))
    rows += appender.append_all(_view(fold, placed, appender.fold, at))
    # A tool that was started has an unknown outcome in the fork as well: it never runs again without a decision.
    # Its questions get ids of their own: an answer is for one conversation.
    standing = standing_records(fold, at, mark=step_mark(rows[-1].link.hex()))
    rows += appender.append_all([*standing, *_cursors(fold, placed, at)])
    return Fork(rows=rows, messages=len(copied))


def tells_enough(then: PointInTime) -> bool:
    """True if `then` suffices for a fork: it has every shown message, and none of them has tool uses or results whose
    other half is not shown. Otherwise only the whole journal has the other half.
    """
    if then.missing:
        return False
    wanted = sorted(_wanted(then.fold))
    asked: set[str] = set()
    for seq in wanted:
        message = then.messages[seq].message
        if asked != {result["toolUseId"] for result in tool_results(message)}:
            return False
        asked = {use["toolUseId"] for use in tool_uses(message)}
    return not asked or wanted[-1] == then.fold.last_message_seq


def _wanted(fold: Fold) -> set[int]:
    return {seq for seq, _ in fold.shown if seq != SUMMARY_SEQ} | ({fold.last_message_seq} - {0})


def _paired(messages: Mapping[int, MessageAdded], wanted: set[int]) -> list[int]:
    """The wanted messages and those next to them that hold the other half of their tool uses or results, in order."""
    order = list(messages)
    index = {seq: number for number, seq in enumerate(order)}
    found: set[int] = set()
    waiting = list(wanted)
    while waiting:
        seq = waiting.pop()
        if seq in found:
            continue
        found.add(seq)
        number = index[seq]
        # Half a pair is refused by providers, and by the fold of the new journal.
        if any(tool_results(messages[seq].message)) and number:
            waiting.append(order[number - 1])
        if any(tool_uses(messages[seq].message)) and number + 1 < len(order):
            waiting.append(order[number + 1])
    return sorted(found, key=index.__getitem__)


def _first_record(then: PointInTime, copied: Sequence[int], at: float) -> Branched:
    fold = then.fold
    turns = then.messages[copied[0]].turn - 1 if copied else fold.turns
    return Branched(
        at=at,
        position=0,
        last=0,
        turns=max(0, turns),
        # The nodes' records follow, and the first of them begins the run (`Fold._on_node`).
        run=fold.run - 1 if fold.nodes else fold.run,
        state=dict(fold.state),
        source=f"{then.session_id}/{then.agent_id}",
        source_position=then.position,
        source_link=then.link.hex() if then.link is not None else "",
        copied=tuple(copied),
    )


def _copied(record: MessageAdded, index: int) -> MessageAdded:
    # A token means one turn, which is the source's.
    return replace(record, index=index, idempotency_token=None, joined=(), view=None)


def _view(fold: Fold, placed: Mapping[int, int], copy: Fold, at: float) -> Iterable[Record]:
    """The view in the new sequence numbers; nothing when every copied message is shown unchanged."""
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
    """The cursors in the new sequence numbers: memory stores do not process copied messages again."""
    cursors = {store: _behind(seq, placed) for store, seq in fold.cursors.items()}
    if any(cursors.values()):
        yield CursorMoved(at=at, positions={store: seq for store, seq in cursors.items() if seq})


def _behind(seq: int, placed: Mapping[int, int]) -> int:
    """The last copied message that a memory store has processed; 0 when there is none."""
    return max((number for source, number in placed.items() if source <= seq), default=0)


# The whole conversation of a fork: the source's up to the fork, then its own. The source is read in place, not copied.
# The link in the fork's first record proves which journal is the source. When the source is gone, the conversation
# begins with the copied messages.

Lineage = Sequence[WholeJournal]
"""A journal, its source, the source's source, and so on, as far as they exist."""


class SpokenMessage(Struct, frozen=True, kw_only=True):
    """A message of a conversation, and its journal."""

    seq: int
    """The message's sequence number in its journal."""
    source: str | None
    """The message's journal, as `session/agent`; None for the fork itself."""
    record: MessageAdded
    redacted: bool


def origin_of(journal: WholeJournal) -> Branched | None:
    """The record that names the journal's source; None when it is no fork."""
    first = journal.records[0][1] if journal.records else None
    return first if isinstance(first, Branched) and first.source is not None else None


def is_source(origin: Branched, journal: WholeJournal) -> bool:
    """True if this is the journal that the fork was made from, not another one of the same name."""
    position = origin.source_position
    if not 0 < position <= journal.last_seq:
        return False
    # By link: a session that was deleted and made again has the same name.
    return journal.rows[position - 1].link.hex() == origin.source_link


def copies_end(journal: WholeJournal) -> int:
    """The position of a fork's last copied message; 0 when the journal is no fork."""
    origin = origin_of(journal)
    return 0 if origin is None else 1 + len(origin.copied)


def before_fork(lineage: Lineage) -> list[SpokenMessage]:
    """The conversation at the time when the first journal was forked, if it is a fork."""
    return conversation_at(lineage, copies_end(lineage[0]))


def conversation_at(lineage: Lineage, position: int) -> list[SpokenMessage]:
    """The conversation at a position of the first journal, with the messages from before the fork.

    A message redacted in the source appears redacted here too. A copied message has the fork's sequence number.
    """
    own = lineage[0]
    redacted = {record.target for _, record in own.records if isinstance(record, Redacted)}
    spoken = {
        seq: SpokenMessage(seq=seq, source=None, record=record, redacted=seq in redacted)
        for seq, record in own.conversation(position).items()
    }
    origin = origin_of(own)
    if origin is None or len(lineage) == 1 or not position:
        return list(spoken.values())
    copies = {seq: number for number, seq in enumerate(origin.copied, 2)}
    found: list[SpokenMessage] = []
    for each in _still_there(conversation_at(lineage[1:], origin.source_position), copies, spoken):
        copy = spoken.pop(copies[each.seq], None) if each.source is None and each.seq in copies else None
        if copy is None:
            found.append(replace(each, source=each.source or origin.source))
        elif each.redacted and not copy.redacted:
            found.append(replace(copy, record=each.record, redacted=True))
        else:
            found.append(copy)
    return [*found, *spoken.values()]


def _still_there(
    before: Sequence[SpokenMessage], copies: dict[int, int], spoken: dict[int, SpokenMessage]
) -> Sequence[SpokenMessage]:
    """The source's messages, up to the last copied one that the fork still has: a fork can go back among the copied
    messages.
    """
    if all(number in spoken for number in copies.values()):
        return before
    present = [index for index, each in enumerate(before) if each.source is None and copies.get(each.seq) in spoken]
    return before[: present[-1] + 1] if present else ()
