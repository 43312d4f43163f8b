"""Journals together with those that they were forked from, as far as these are still there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repertory.app.operations.reading import journal_of
from repertory.core.journal.lineage import Lineage, is_source, origin_of
from repertory.errors import Corrupt, Gone, Invalid

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore
    from repertory.core.journal.whole_journal import WholeJournal


@dataclass(frozen=True, slots=True)
class Ancestry:
    """A journal and its sources."""

    lineage: Lineage
    """The journal, then its source, and so on."""
    lost: str | None
    """The source at which this ends, as `session/agent`, since it was deleted, cannot be read, or is another session by
    now; None when nothing is missing.
    """


async def ancestry_of(store: SessionStore, journal: WholeJournal) -> Ancestry:
    """The sources of a journal, read whole. That one is gone is no error: what a fork needs, it has."""
    lineage = [journal]
    while (origin := origin_of(lineage[-1])) is not None and origin.source_position:
        assert origin.source is not None
        source = await _journal_at(store, origin.source)
        if source is None or not is_source(origin, source):
            return Ancestry(lineage, origin.source)
        lineage.append(source)
    return Ancestry(lineage, None)


async def _journal_at(store: SessionStore, name: str) -> WholeJournal | None:
    session_id, _, agent_id = name.partition("/")
    try:
        return await journal_of(store, session_id, agent_id)
    except (Gone, Corrupt, Invalid):
        return None
