"""Reading stored sessions: open stores, verified journals, the sources of forks, and the state at a position."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio

from repertory.backends.ports import SessionStore
from repertory.backends.worker_threads import OFF_LOOP_BYTES, run_in_thread
from repertory.core.history.fork import Lineage, before_fork, is_source, origin_of
from repertory.core.journal.fold import Fold
from repertory.core.journal.rows import size_of
from repertory.core.journal.sealing import LOCKED
from repertory.core.journal.whole_journal import (
    PointInTime,
    WholeJournal,
    moment_of,
    read_whole,
)
from repertory.core.messages import Message, copy_message
from repertory.errors import Corrupt, Gone, Invalid, NotFound, StoreNotFound

if TYPE_CHECKING:
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.backends.ports import SessionInfo
    from repertory.core.journal.rows import Row

ROWS_AT_ONCE_MAX = 512
"""Rows that are processed on the event loop, which takes some milliseconds; more are processed in a thread."""

T = TypeVar("T")


async def in_thread_when_many(work: Callable[[], T], *rows: Sequence[Row]) -> T:
    """The result of `work`, which processes these rows."""
    few = sum(map(len, rows)) <= ROWS_AT_ONCE_MAX and sum(map(size_of, rows)) <= OFF_LOOP_BYTES
    return work() if few else await run_in_thread(work)


async def info_of(store: SessionStore, session_id: str) -> SessionInfo:
    """The session's entry in the listing. Errors: `NotFound`."""
    found = await store.sessions(session_id)
    if not found:
        raise no_such_session(store, session_id)
    return found[0]


def no_such_session(store: SessionStore, session_id: str) -> StoreNotFound:
    return StoreNotFound("no such session", session=session_id, place=store.name)


async def rows_reaching(
    store: SessionStore, rows: Sequence[Row], seq: int, session_id: str, agent_id: str
) -> Sequence[Row]:
    """The rows of opening, if the one with this sequence number is among them; else the whole journal."""
    if not rows or rows[0].seq == 1 or rows[0].seq < seq:  # The first of a partial journal is there for its link.
        return rows
    return await store.load(session_id, agent_id, whole=True)


async def load_journal(store: SessionStore, session_id: str, agent_id: str) -> WholeJournal:
    """The whole journal of an agent. Errors: `NotFound`, `CorruptJournal`."""
    rows = await store.load(session_id, agent_id, whole=True)
    if not rows:
        raise await no_such_agent(store, session_id, agent_id)
    return await in_thread_when_many(partial(read_whole, rows, session_id=session_id, agent_id=agent_id), rows)


async def no_such_agent(store: SessionStore, session_id: str, agent_id: str) -> NotFound:
    agents = sorted((await info_of(store, session_id)).agents)
    return StoreNotFound("no such agent in the session", session=session_id, agent=agent_id, agents=agents)


@asynccontextmanager
async def opened(location: SessionLocation) -> AsyncGenerator[SessionStore]:
    """A store at the place, maintained if its leases expire, and closed at the end."""
    store = location.open_store()
    try:
        async with _Tended(store):
            yield store
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


class _Tended:
    """Maintains a store, if it needs that, for as long as the block. Errors of the block are not wrapped, as a task
    group around it would do.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> None:
        await self._tasks.__aenter__()
        if self._store.capabilities.maintained:
            self._tasks.start_soon(self._store.maintain)

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)


# Journals with their sources, as far as these still exist.


@dataclass(frozen=True, slots=True)
class Ancestry:
    """A journal and its sources."""

    lineage: Lineage
    """The journal, then its source, and so on."""
    lost: str | None
    """The missing source at which the lineage ends, as `session/agent`: it was deleted, cannot be read, or is another
    session by now. None when nothing is missing.
    """


async def ancestry_of(store: SessionStore, journal: WholeJournal) -> Ancestry:
    """The journal and its sources, read whole. A missing source is no error: a fork works without it."""
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
        return await load_journal(store, session_id, agent_id)
    except (Gone, Corrupt, Invalid, *LOCKED):
        return None


async def moment_at(
    store: SessionStore, session_id: str, agent_id: str, position: int, end: Sequence[Row] = ()
) -> PointInTime:
    """The state at a position. `end`: the rows that opening reads, if they are known.

    Errors: `Invalid` when some of it was erased since; `CorruptJournal`.
    """
    if not position:
        return PointInTime(session_id=session_id, agent_id=agent_id, position=0, link=None, fold=Fold(), messages={})
    if (positions := store.capabilities.positions) is not None:
        rows = end if end and end[-1].seq == position else await positions.load_at(session_id, agent_id, position)
        if rows:
            found = await in_thread_when_many(partial(moment_of, rows, session_id=session_id, agent_id=agent_id), rows)
            if found is not None:
                return found
    journal = await load_journal(store, session_id, agent_id)
    return await in_thread_when_many(partial(journal.moment, position), journal.rows)


async def messages_before_fork(location: SessionLocation, session_id: str, agent_id: str) -> tuple[list[Message], int]:
    """The messages before the fork, and how many of the fork's own messages are copies of those."""
    store = location.open_store()
    try:
        journal = await load_journal(store, session_id, agent_id)
        origin, lineage = origin_of(journal), (await ancestry_of(store, journal)).lineage
        if origin is None or len(lineage) == 1:
            return [], 0
        messages = await in_thread_when_many(partial(before_fork, lineage), *(each.rows for each in lineage))
        return [copy_message(each.record.message) for each in messages], len(origin.copied)
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()
