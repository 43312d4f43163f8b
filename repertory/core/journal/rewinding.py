"""Going back to an earlier position, on the record: what lay beyond stays in the journal, hidden."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from repertory.core.journal.appender import Appender, Entropy
from repertory.core.journal.records import Branched
from repertory.core.journal.restore import Restored
from repertory.core.journal.standing import nodes_again
from repertory.core.messages import tool_uses
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.journal.moment import Moment
    from repertory.core.journal.rows import Row
    from repertory.core.journal.whole_journal import WholeJournal


def rewind(journal: WholeJournal, position: int, *, at: float, entropy: Entropy, name: str = "") -> Sequence[Row]:
    """The rows that go back, out of a whole journal; see `go_back`."""
    link = journal.rows[-1].link if journal.rows else None
    now = Restored(fold=journal.fold_at(journal.last_seq), link=link)
    return go_back(journal.moment(position), now, at=at, entropy=entropy, name=name)


def go_back(then: Moment, now: Restored, *, at: float, entropy: Entropy, name: str = "") -> Sequence[Row]:
    """The rows that go back from `now`, which is the journal's end, to follow its last row. Going back to before them
    undoes it. `now` is used up.

    `name` is what that point is called where the wish came from (a snapshot's id), kept in the record.

    Errors: `Invalid` when a turn's tools are under way at that position.
    """
    if then.fold.last_message is not None and any(tool_uses(then.fold.last_message)):
        fields = {"at": then.position, "session": then.session_id, "agent": then.agent_id}
        raise Invalid("tools are under way at that position; go back to before they were asked for", **fields)
    record = Branched(
        at=at,
        position=then.position,
        last=then.fold.last_message_seq,
        message_count=now.fold.message_count,
        turns=now.fold.turns,
        run=now.fold.run,
        view=then.fold.shown.view,
        state=dict(then.fold.state),
        name=name,
    )
    appender = Appender(then.agent_id, now.fold, now.link, entropy)
    history = {seq: added.message for seq, added in then.said.items()}
    rows = [appender.rewind(record, history)]
    rows += appender.append_all(list(nodes_again(then.fold, record.run + 1, at)))
    return [*rows, *appender.restate(at)]
