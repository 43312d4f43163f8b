"""The history of a session that may be a fork: what had been said in its source, then its own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from repertory.app.operations.lineages import ancestry_of
from repertory.app.operations.reading import aside, journal_of
from repertory.core.journal.lineage import before_fork, origin_of
from repertory.core.messages import Message, copy_message

if TYPE_CHECKING:
    from repertory.app.host.active_session import ActiveSession
    from repertory.app.host.blueprint import Blueprint
    from repertory.app.sessions.sessions import SessionPlace


async def whole_history(session: ActiveSession, blueprint: Blueprint) -> list[Message]:
    """A copy of everything that was said, oldest first."""
    own, forked = await session.history()
    if not forked or blueprint.sessions is None:
        return list(own)
    before, copied = await _before(blueprint.sessions, blueprint.agent.session_id, blueprint.agent.agent_id)
    return [*before, *own[copied:]]


async def _before(place: SessionPlace, session_id: str, agent_id: str) -> tuple[list[Message], int]:
    """What was said before the fork, and how many of the fork's own messages say some of that again."""
    store = place.open_store()
    try:
        journal = await journal_of(store, session_id, agent_id)
        origin, lineage = origin_of(journal), (await ancestry_of(store, journal)).lineage
        if origin is None or len(lineage) == 1:
            return [], 0
        told = await aside(partial(before_fork, lineage), sum(len(each.rows) for each in lineage))
        return [copy_message(each.record.message) for each in told], len(origin.copied)
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()
