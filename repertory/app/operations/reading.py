"""Reading sessions without owning them: which agents there are, and whole journals, proved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from repertory.backends.worker_threads import run_in_thread
from repertory.core.journal.restore import Restored, restore
from repertory.core.journal.verify import verify_whole
from repertory.core.journal.whole_journal import WholeJournal, read_whole
from repertory.errors import CorruptJournal, NotFound, StoreNotFound

if TYPE_CHECKING:
    from repertory.backends.ports import SessionInfo, SessionStore
    from repertory.core.journal.rows import Row

ROWS_AT_ONCE_MAX = 512
"""Rows that are read on the event loop, which takes some milliseconds; more are in a thread."""

T = TypeVar("T")


async def aside(work: Callable[[], T], rows: int) -> T:
    """What `work` gives, which looks at that many rows."""
    return work() if rows <= ROWS_AT_ONCE_MAX else await run_in_thread(work)


async def info_of(store: SessionStore, session_id: str) -> SessionInfo:
    """The session's line in a listing. Errors: `NotFound`."""
    found = await store.sessions(session_id)
    if not found:
        raise StoreNotFound("no such session", session=session_id, place=store.name)
    return found[0]


async def sound_info_of(store: SessionStore, session_id: str) -> SessionInfo:
    """The same for who needs all of it. Errors: `NotFound`, `CorruptJournal` when an agent of it cannot be read."""
    info = await info_of(store, session_id)
    if info.damaged:
        raise CorruptJournal("the session is damaged; `doctor` says where", session=session_id, place=store.name)
    return info


async def chosen_agent(store: SessionStore, session_id: str, agent_id: str | None) -> str:
    """The agent that is meant: the one that is named, the only one, or `default`. Errors: `NotFound`; `CorruptJournal`
    when nobody can say which there are.
    """
    if agent_id is not None:
        return agent_id
    agents = sorted((await sound_info_of(store, session_id)).agents)
    if len(agents) != 1 and "default" not in agents:
        raise NotFound("say which agent of the session", session=session_id, agents=agents)
    return agents[0] if len(agents) == 1 else "default"


async def rows_of(store: SessionStore, session_id: str, agent_id: str) -> Sequence[Row]:
    """Every row of an agent, proved. Errors: `CorruptJournal`."""
    rows = await store.load(session_id, agent_id, whole=True)
    await aside(partial(verify_whole, rows, session_id=session_id), len(rows))
    return rows


async def journal_of(store: SessionStore, session_id: str, agent_id: str) -> WholeJournal:
    """The whole journal of an agent. Errors: `NotFound`, `CorruptJournal`."""
    rows = await store.load(session_id, agent_id, whole=True)
    if not rows:
        raise await _no_such_agent(store, session_id, agent_id)
    return await aside(partial(read_whole, rows, session_id=session_id, agent_id=agent_id), len(rows))


async def opening_of(store: SessionStore, session_id: str, agent_id: str) -> Restored:
    """What an agent amounts to now, from what opening it reads. Errors: `CorruptJournal`."""
    rows = await store.load(session_id, agent_id)
    return await aside(partial(restore, rows, session_id=session_id), len(rows))


async def agent_there(store: SessionStore, session_id: str, agent_id: str | None) -> str:
    """The same, and surely there. Ask before owning: a session that is not there would be made.

    Errors: `NotFound`, `CorruptJournal`.
    """
    if agent_id is None:
        return await chosen_agent(store, session_id, None)
    await last_of(store, session_id, agent_id)
    return agent_id


async def last_of(store: SessionStore, session_id: str, agent_id: str) -> int:
    """The number of an agent's last row. Errors: `NotFound`."""
    rows = await store.load(session_id, agent_id)
    if not rows:
        raise await _no_such_agent(store, session_id, agent_id)
    return rows[-1].seq


async def _no_such_agent(store: SessionStore, session_id: str, agent_id: str) -> NotFound:
    agents = sorted((await info_of(store, session_id)).agents)
    return StoreNotFound("no such agent in the session", session=session_id, agent=agent_id, agents=agents)
