"""Going back to an earlier position, on the record: what lay beyond stays in the journal, hidden."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from repertory.core.journal.appender import Appender, Entropy
from repertory.core.journal.records import Branched
from repertory.core.messages import tool_uses
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.journal.rows import Row
    from repertory.core.journal.whole_journal import WholeJournal


def rewind(journal: WholeJournal, position: int, *, at: float, entropy: Entropy, name: str = "") -> Sequence[Row]:
    """The rows that go back, to follow the journal's last one. Going back to before them undoes it.

    `name` is what that point is called where the wish came from (a snapshot's id), kept in the record.

    Errors: `Invalid` when a turn's tools are under way at that position, or what it amounted to was erased since.
    """
    then = journal.fold_at(position)
    if then.last_message is not None and any(tool_uses(then.last_message)):
        fields = {"at": position, "session": journal.session_id, "agent": journal.agent_id}
        raise Invalid("tools are under way at that position; go back to before they were asked for", **fields)
    now = journal.fold_at(journal.last_seq)
    record = Branched(
        at=at,
        position=position,
        last=then.last_message_seq,
        message_count=now.message_count,
        turns=now.turns,
        run=now.run,
        view=then.shown.view,
        state=dict(then.state),
        name=name,
    )
    link = journal.rows[-1].link if journal.rows else None
    appender = Appender(journal.agent_id, now, link, entropy)
    history = {seq: added.message for seq, added in journal.conversation(position).items()}
    return [appender.rewind(record, history), *appender.restate(at)]
