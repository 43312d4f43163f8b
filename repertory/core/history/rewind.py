"""Rewind to an earlier position. The records after it stay in the journal, hidden."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from repertory.core.journal.deferrals import waiting_records
from repertory.core.journal.fold import view_hiding
from repertory.core.journal.pending_tools import nodes_again, standing_records
from repertory.core.journal.records import Branched, View, ViewChanged
from repertory.core.journal.restore import Appender, Entropy, Restored
from repertory.core.messages import tool_uses
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.journal.rows import Row
    from repertory.core.journal.sealing import Seal
    from repertory.core.journal.whole_journal import PointInTime, WholeJournal


def rewind(journal: WholeJournal, position: int, *, at: float, entropy: Entropy, name: str = "") -> Sequence[Row]:
    """The rows of a rewind, from a whole journal; see `go_back`."""
    link = journal.rows[-1].link if journal.rows else None
    now = Restored(fold=journal.fold_at(journal.last_seq), link=link)
    return go_back(journal.moment(position), now, at=at, entropy=entropy, name=name)


def go_back(
    then: PointInTime, now: Restored, *, at: float, entropy: Entropy, name: str = "", seal: Seal | None = None
) -> Sequence[Row]:
    """The rows that go back to `then`, to follow the journal's last row; `now` is the journal's end, and changes:
    use it no more. Going back to before these rows undoes them.

    `name`: what the caller calls that position (a snapshot's id), kept in the record. Errors: `Invalid` when the last
    message at that position waits for its tools.
    """
    if then.fold.last_message is not None and any(tool_uses(then.fold.last_message)):
        fields = {"at": then.position, "session": then.session_id, "agent": then.agent_id}
        raise Invalid("tools are under way at that position; go back to before they were asked for", **fields)
    record = Branched(
        at=at,
        position=then.position,
        last=then.fold.last_message_seq,
        # Numbers go on and never back: what is made from them, such as tokens of nodes, must not come again.
        message_count=now.fold.message_count,
        turns=now.fold.turns,
        run=now.fold.run,
        view=then.fold.shown.view,
        state=dict(then.fold.state),
        name=name,
    )
    appender = Appender(then.agent_id, now.fold, now.link, entropy, seal)
    history = {seq: added.message for seq, added in then.messages.items()}
    rows = [appender.rewind(record, history)]
    # In a new run: the nodes' journals have gone on, and the tokens of the old one would find answers from behind the
    # position.
    rows += appender.append_all([*nodes_again(then.fold, record.run + 1, at), *waiting_records(then.fold, at)])
    return [*rows, *appender.restate(at)]


# Undoing a summary: it stays in the journal and is no longer shown.


def without_summary(journal: WholeJournal, *, at: float, entropy: Entropy, seal: Seal | None = None) -> Sequence[Row]:
    """The rows after which the model is shown what it was shown before the summary, and every message since.

    Earlier summaries that went into it are not shown either. Rewinding to before these rows undoes it. Errors:
    `Invalid` when no summary is shown, or when what was shown before it was erased since.
    """
    now = journal.fold_at(journal.last_seq)
    if now.shown.view.summary is None:
        raise Invalid("no summary is shown", session=journal.session_id, agent=journal.agent_id)
    record = Branched(
        at=at,
        position=now.last_seq,
        last=now.last_message_seq,
        message_count=now.message_count,
        turns=now.turns,
        run=now.run,
        view=_before_summary(journal),
        state=dict(now.state),
        name="without its summary",
    )
    history = {seq: added.message for seq, added in journal.conversation(journal.last_seq).items()}
    # Read before the branch, which drops them.
    waiting = [*standing_records(now, at), *waiting_records(now, at)]
    appender = Appender(journal.agent_id, now, journal.rows[-1].link, entropy, seal)
    return [appender.rewind(record, history), *appender.append_all(waiting), *appender.restate(at)]


def _before_summary(journal: WholeJournal) -> View:
    """The last view without a summary, on the path to the journal's end."""
    gaps: list[tuple[int, int]] = []
    position = journal.last_seq
    while True:
        view = journal.fold_at(position).shown.view
        if view.summary is None:
            return view_hiding(view, tuple(sorted(gaps)))
        seq, record = _summarised_at(journal, position)
        if isinstance(record, Branched):
            gaps.append((record.position + 1, seq))
            position = record.position
        else:
            position = seq - 1


def _summarised_at(journal: WholeJournal, position: int) -> tuple[int, Branched | ViewChanged]:
    """The last record, up to the position, that states the full view."""
    for seq, record in reversed(journal.records[:position]):
        if isinstance(record, Branched) or (isinstance(record, ViewChanged) and not record.patch):
            return seq, record
    raise AssertionError("a summary comes with a record that states it")
