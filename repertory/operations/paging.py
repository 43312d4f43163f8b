"""A part of a stored session, read without the rest of it: for pages of long conversations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from repertory.app.sessions.reading import in_thread_when_many, info_of, moment_at
from repertory.backends.ports import load_range
from repertory.core.history.pages import StoredRecord, page_records, page_span
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import Row, verify
from repertory.core.journal.view import SUMMARY_SEQ
from repertory.errors import Invalid, StoreNotFound
from repertory.operations.reading import position_of, sound_info_of

if TYPE_CHECKING:
    from repertory.backends.ports import SessionInfo, SessionStore
    from repertory.core.messages import Json, Message
    from repertory.operations.reading import PositionLike

RECORDS_MAX = 1000
"""The most records of one page."""
_WINDOW_ROWS_MAX = 2000
"""A page says what the model is shown now if opening the agent reads no more rows than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """Some consecutive records of one agent."""

    session: SessionInfo
    agent_id: str
    records: Sequence[StoredRecord]
    """The records in order. The first has the number `first`, the last `last`; empty where there are none."""
    first: int
    last: int
    end: int
    """The last position of the agent's journal."""
    shown: Collection[int] | None
    """The numbers of all messages that the model is shown now; None where finding out would read too much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAt:
    """The messages that the model was shown at a position, and the agent's state there."""

    session_id: str
    agent_id: str
    position: int
    end: int
    """The last position of the agent's journal."""
    messages: Sequence[tuple[int, Message]]
    """The messages as shown, in order, with sequence numbers; a summary has the number 0."""
    manager: str
    """The class name of the conversation manager that decided it; empty before it decided anything."""
    state: Mapping[str, Json]


async def page_of(
    store: SessionStore, session_id: str, agent_id: str | None, at: PositionLike, before: int | None, records_max: int
) -> StoredPage:
    """See `Sessions.page`."""
    if not 1 <= records_max <= RECORDS_MAX:
        raise Invalid(f"a page has 1 to {RECORDS_MAX} records", got=records_max)
    info, agent_id, end = await _agent_of(store, session_id, agent_id)
    middle = None if at is None else await position_of(store, session_id, agent_id, at, end)
    first, last = page_span(end, records_max, at=middle, before=before)
    # One row more, whose link proves the first one.
    rows = await load_range(store, session_id, agent_id, max(first - 1, 1), last)
    records = await in_thread_when_many(partial(_records, rows, first, session_id), rows)
    return StoredPage(
        session=info,
        agent_id=agent_id,
        records=records,
        first=records[0].seq if records else 0,
        last=records[-1].seq if records else 0,
        end=end,
        shown=await _visible_now(store, session_id, agent_id, end),
    )


def _records(rows: Sequence[Row], first: int, session_id: str) -> list[StoredRecord]:
    verify(rows, session_id=session_id)
    return page_records([row for row in rows if row.seq >= first], session_id=session_id)


async def _agent_of(store: SessionStore, session_id: str, agent_id: str | None) -> tuple[SessionInfo, str, int]:
    """The session, the chosen agent and its last position. Errors: `NotFound`, `CorruptJournal`."""
    info = await (sound_info_of if agent_id is None else info_of)(store, session_id)
    agents = sorted(info.agents)
    chosen = agent_id if agent_id is not None else "default" if "default" in agents or not agents else agents[0]
    if chosen not in info.agents:
        raise StoreNotFound("no such agent in the session", session=session_id, agent=chosen, agents=agents)
    return info, chosen, info.agents[chosen]


async def _visible_now(store: SessionStore, session_id: str, agent_id: str, end: int) -> Collection[int] | None:
    # The last row says how far opening reads back. It is asked for alone, since that may be the whole journal.
    last = await load_range(store, session_id, agent_id, end, end)
    if not last or end - last[0].low > _WINDOW_ROWS_MAX:
        return None
    rows = await load_range(store, session_id, agent_id, last[0].low, end)
    fold = (await in_thread_when_many(partial(restore, rows, session_id=session_id), rows)).fold
    return frozenset(seq for seq, _ in fold.shown if seq != SUMMARY_SEQ)


async def window_at(store: SessionStore, session_id: str, agent_id: str | None, at: PositionLike) -> ShownAt:
    """See `Sessions.shown_at`."""
    _, agent_id, end = await _agent_of(store, session_id, agent_id)
    position = await position_of(store, session_id, agent_id, at, end)
    moment = await moment_at(store, session_id, agent_id, position)
    return ShownAt(
        session_id=session_id,
        agent_id=agent_id,
        position=position,
        end=end,
        messages=list(moment.fold.shown),
        manager=moment.fold.shown.view.manager,
        state=dict(moment.fold.state),
    )
