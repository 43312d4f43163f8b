"""Letting go of what a session need not keep: names of positions, and what lies beyond rewinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from repertory.app.operations.opening import commit, owned
from repertory.app.operations.reading import agent_there, aside, journal_of
from repertory.core.journal.appender import Appender
from repertory.core.journal.pruning import PrunePolicy, Pruning
from repertory.core.journal.pruning import prune as prune_journal

if TYPE_CHECKING:
    from repertory.app.operations.branching import Made
    from repertory.backends.ports import SessionStore
    from repertory.core.journal.rows import Row
    from repertory.core.journal.whole_journal import WholeJournal


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """What was let go of, or would be."""

    session_id: str
    agent_id: str
    dry_run: bool
    """Whether nothing was changed."""
    marks: Sequence[str]
    """The labels that went, in order; a label stands here as often as it was given."""
    messages: Sequence[int]
    """The messages beyond rewinds that went."""
    erased: Sequence[int]
    """Every row whose content was destroyed."""
    bytes: int
    """How much content that was. What says that a message is gone takes about 100 bytes for each."""


async def prune(
    store: SessionStore,
    session_id: str,
    policy: PrunePolicy,
    agent_id: str | None,
    made: Made,
    *,
    dry_run: bool,
) -> PruneReport:
    """Destroy what a policy lets go of, in one commit."""
    agent_id = await agent_there(store, session_id, agent_id)
    if dry_run:
        found = await _found(await journal_of(store, session_id, agent_id), policy, made)
    else:
        async with owned(store, session_id, takeover=False) as lease:
            journal = await journal_of(store, session_id, agent_id)
            found = await _found(journal, policy, made)
            if found.erase:
                rows = await aside(partial(_rows, journal, found, made), len(journal.rows))
                await commit(store, lease, rows, [(agent_id, seq) for seq in found.erase])
    return PruneReport(
        session_id=session_id,
        agent_id=agent_id,
        dry_run=dry_run,
        marks=[mark.label for _, mark in found.marks],
        messages=[redaction.target for redaction in found.redactions],
        erased=found.erase,
        bytes=found.bytes,
    )


async def _found(journal: WholeJournal, policy: PrunePolicy, made: Made) -> Pruning:
    return await aside(partial(prune_journal, journal, policy, made.at), len(journal.rows))


def _rows(journal: WholeJournal, found: Pruning, made: Made) -> Sequence[Row]:
    appender = Appender(journal.agent_id, journal.fold_at(journal.last_seq), journal.rows[-1].link, made.entropy)
    return [*appender.append_all(found.redactions), *appender.restate(made.at)]
