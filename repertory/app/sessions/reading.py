"""Reading stored sessions for operations: stores, leases, verified journals, positions, and the sources of forks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio

from repertory.backends.ports import Batch, Lease, SessionEnds, SessionStore
from repertory.backends.worker_threads import OFF_LOOP_BYTES, run_in_thread
from repertory.core.history.fork import Lineage, before_fork, is_source, origin_of, tells_enough
from repertory.core.journal.codec import decode
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import MessageAdded, SnapshotTaken
from repertory.core.journal.restore import Restored, restore
from repertory.core.journal.rows import RecordKind, size_of, verify, verify_whole
from repertory.core.journal.sealing import LOCKED
from repertory.core.journal.whole_journal import (
    PointInTime,
    WholeJournal,
    labelled,
    moment_and_end,
    moment_of,
    read_whole,
    tells,
)
from repertory.core.messages import Message, copy_message
from repertory.errors import Corrupt, CorruptJournal, Gone, Invalid, NotFound, RepertoryError, StoreNotFound

if TYPE_CHECKING:
    from repertory.app.sessions.sessions import SessionPlace
    from repertory.backends.ports import SessionInfo
    from repertory.core.journal.rows import Row
    from repertory.core.journal.sealing import Seal
    from repertory.core.owed import DueTime

ROWS_AT_ONCE_MAX = 512
"""Rows that are processed on the event loop, which takes some milliseconds; more are processed in a thread."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStamp:
    """The time and the random bytes for new records."""

    at: float
    entropy: Callable[[int], bytes]
    seal: Seal | None = None
    """Encrypts the rows of one session; see `for_session`."""

    async def for_session(self, store: SessionStore, session_id: str) -> RecordStamp:
        """The same, for rows of this session, which the caller owns. Errors: those of `SessionStore.seal`."""
        return replace(self, seal=await store.seal(session_id))


async def in_thread_when_many(work: Callable[[], T], *rows: Sequence[Row]) -> T:
    """The result of `work`, which processes these rows."""
    few = sum(map(len, rows)) <= ROWS_AT_ONCE_MAX and sum(map(size_of, rows)) <= OFF_LOOP_BYTES
    return work() if few else await run_in_thread(work)


async def info_of(store: SessionStore, session_id: str) -> SessionInfo:
    """The session's entry in the listing. Errors: `NotFound`."""
    found = await store.sessions(session_id)
    if not found:
        raise _no_such_session(store, session_id)
    return found[0]


async def sound_info_of(store: SessionStore, session_id: str) -> SessionInfo:
    """`info_of` for callers that need every agent. Errors: `NotFound`, `CorruptJournal` when one cannot be read."""
    return _sound(await info_of(store, session_id), store)


async def sound_ends_of(store: SessionStore, session_id: str) -> SessionEnds:
    """`sound_info_of`, and the rows that opening each agent reads. Errors: the same."""
    ends = await store.ends(session_id)
    if ends is None:
        raise _no_such_session(store, session_id)
    _sound(ends.info, store)
    return ends


def _sound(info: SessionInfo, store: SessionStore) -> SessionInfo:
    if info.damaged:
        raise CorruptJournal("the session is damaged; `doctor` says where", session=info.session_id, place=store.name)
    return info


def _no_such_session(store: SessionStore, session_id: str) -> StoreNotFound:
    return StoreNotFound("no such session", session=session_id, place=store.name)


async def chosen_agent(store: SessionStore, session_id: str, agent_id: str | None) -> str:
    """The named agent, the only one, or `default`. Errors: `NotFound`; `CorruptJournal` when the listing of agents is
    damaged.
    """
    if agent_id is not None:
        return agent_id
    agents = sorted((await sound_info_of(store, session_id)).agents)
    if len(agents) != 1 and "default" not in agents:
        raise NotFound("say which agent of the session", session=session_id, agents=agents)
    return agents[0] if len(agents) == 1 else "default"


async def rows_of(store: SessionStore, session_id: str, agent_id: str) -> Sequence[Row]:
    """Every row of an agent, verified. Errors: `CorruptJournal`."""
    rows = await store.load(session_id, agent_id, whole=True)
    await in_thread_when_many(partial(verify_whole, rows, session_id=session_id), rows)
    return rows


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
        raise await _no_such_agent(store, session_id, agent_id)
    return await in_thread_when_many(partial(read_whole, rows, session_id=session_id, agent_id=agent_id), rows)


async def opening_of(store: SessionStore, session_id: str, agent_id: str) -> Restored:
    """The current state of an agent, from the rows that opening reads. Errors: `CorruptJournal`."""
    rows = await store.load(session_id, agent_id)
    return await in_thread_when_many(partial(restore, rows, session_id=session_id), rows)


async def agent_there(store: SessionStore, session_id: str, agent_id: str | None) -> str:
    """`chosen_agent`, verified to exist. Call it before `owned`, which would create a missing session.

    Errors: `NotFound`, `CorruptJournal`.
    """
    if agent_id is None:
        return await chosen_agent(store, session_id, None)
    await last_of(store, session_id, agent_id)
    return agent_id


async def last_of(store: SessionStore, session_id: str, agent_id: str) -> int:
    """The number of an agent's last row. Errors: `NotFound`."""
    return (await end_of(store, session_id, agent_id))[-1].seq


async def end_of(store: SessionStore, session_id: str, agent_id: str) -> Sequence[Row]:
    """The rows that opening an agent reads, at least one. Errors: `NotFound`."""
    rows = await store.load(session_id, agent_id)
    if not rows:
        raise await _no_such_agent(store, session_id, agent_id)
    return rows


async def _no_such_agent(store: SessionStore, session_id: str, agent_id: str) -> NotFound:
    agents = sorted((await info_of(store, session_id)).agents)
    return StoreNotFound("no such agent in the session", session=session_id, agent=agent_id, agents=agents)


# Stores and leases for the length of one operation.


@asynccontextmanager
async def opened(place: SessionPlace) -> AsyncGenerator[SessionStore]:
    """A store at the place, maintained if its leases expire, and closed at the end."""
    store = place.open_store()
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


@asynccontextmanager
async def owned(store: SessionStore, session_id: str, *, takeover: bool) -> AsyncGenerator[Lease]:
    """A lease on a session, released at the end. Errors: `SessionBusy` when a live owner has it."""
    lease = await store.acquire(session_id, takeover=takeover)
    try:
        yield lease
    finally:
        with anyio.CancelScope(shield=True), suppress(RepertoryError):  # a lease not released here expires
            await store.release(lease)


async def commit_rows(
    store: SessionStore,
    lease: Lease,
    rows: Sequence[Row],
    erase: Sequence[tuple[str, int]] = (),
    dues: Sequence[DueTime] = (),
) -> None:
    """Store rows and destroy contents, all or nothing, then what agents owe, and verify that the lease was held until
    then.

    Errors: `LeaseLost`, those of the store.
    """
    proof = [Batch(lease=lease, rows=())] if store.capabilities.maintained else []  # Its leases can expire meanwhile.
    owed = [Batch(lease=lease, rows=(), due=due) for due in dues]
    for batch in (Batch(lease=lease, rows=rows, erase=erase), *owed, *proof):
        (outcome,) = await store.append([batch])
        if isinstance(outcome, RepertoryError):
            raise outcome


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


# Positions and the state there, read from as few rows as possible.

PositionLike = int | str | None
"""A sequence number, a label, or None: the end."""


async def position_of(store: SessionStore, session_id: str, agent_id: str, at: PositionLike, last: int) -> int:
    """The number of a position, in a journal whose last row has the number `last`.

    A label is looked up among the marks alone if the store can do that; else in the rows that opening reads, and then
    in the whole journal. Errors: `Invalid` for a number out of range, `NotFound` for a label.
    """
    if at is None:
        return last
    if isinstance(at, str):
        marks: list[tuple[int, SnapshotTaken]] = []
        if not store.capabilities.finds_labels:
            rows = await store.load(session_id, agent_id)
            await in_thread_when_many(partial(verify, rows, session_id=session_id), rows)
            marks = _marks_in(rows)
        if all(mark.label != at for _, mark in marks):
            marks = await load_marks(store, session_id, agent_id)
        return labelled(marks, at, session_id=session_id, agent_id=agent_id)
    if not 0 <= at <= last:
        raise Invalid("no such position", at=at, last=last, session=session_id, agent=agent_id)
    return at


async def load_marks(store: SessionStore, session_id: str, agent_id: str) -> list[tuple[int, SnapshotTaken]]:
    """Sequence number and record of each mark."""
    if not store.capabilities.finds_labels:
        return (await load_journal(store, session_id, agent_id)).snapshots()
    rows = await store.labels(session_id, agent_id)
    return await in_thread_when_many(partial(_marks_in, rows), rows)


async def moment_at(
    store: SessionStore, session_id: str, agent_id: str, position: int, end: Sequence[Row] = ()
) -> PointInTime:
    """The state at a position. `end`: the rows that opening reads, if they are known.

    Errors: `Invalid` when some of it was erased since; `CorruptJournal`.
    """
    if not position:
        return PointInTime(session_id=session_id, agent_id=agent_id, position=0, link=None, fold=Fold(), said={})
    if store.capabilities.reads_positions:
        at_end = bool(end) and end[-1].seq == position
        rows = end if at_end else await store.load_at(session_id, agent_id, position)
        if rows:
            found = await in_thread_when_many(partial(moment_of, rows, session_id=session_id, agent_id=agent_id), rows)
            if found is not None:
                return found
    journal = await load_journal(store, session_id, agent_id)
    return await in_thread_when_many(partial(journal.moment, position), journal.rows)


async def moment_and_end_of(
    store: SessionStore, session_id: str, agent_id: str, to: PositionLike
) -> tuple[PointInTime, Restored]:
    """The state at a position, and the current state of the agent. If opening reads adjoining rows for both, they are
    read and replayed once.

    Errors: as `position_of` and `moment_at`.
    """
    rows = await store.load(session_id, agent_id)
    position = await position_of(store, session_id, agent_id, to, rows[-1].seq if rows else 0)
    if rows and store.capabilities.reads_positions and not tells(rows, position):
        rows = _joined(await store.load_at(session_id, agent_id, position), rows)
    both = partial(moment_and_end, rows, position, session_id=session_id, agent_id=agent_id)
    found = await in_thread_when_many(both, rows)
    if found is not None:
        return found
    now = await in_thread_when_many(partial(restore, rows, session_id=session_id), rows)
    return await moment_at(store, session_id, agent_id, position), now


def _joined(older: Sequence[Row], newer: Sequence[Row]) -> Sequence[Row]:
    """Both, if they touch or overlap; else the newer rows."""
    if not older or not older[0].seq < newer[0].seq <= older[-1].seq + 1:
        return newer
    return [*older, *newer[older[-1].seq + 1 - newer[0].seq :]]


async def moment_to_fork(
    store: SessionStore, session_id: str, agent_id: str, position: int, end: Sequence[Row]
) -> PointInTime:
    """`moment_at` with all messages that a fork copies. Each pinned message costs one look-up."""
    moment = await moment_at(store, session_id, agent_id, position, end)
    if store.capabilities.reads_positions and moment.missing:
        rows = [await store.load_at(session_id, agent_id, seq) for seq in moment.missing]
        for found in rows:
            verify(found, session_id=session_id)
        moment = moment.knowing({found[-1].seq: record for found in rows if (record := _message_in(found)) is not None})
    if tells_enough(moment):
        return moment
    journal = await load_journal(store, session_id, agent_id)
    return await in_thread_when_many(partial(journal.moment, position), journal.rows)


def _marks_in(rows: Sequence[Row]) -> list[tuple[int, SnapshotTaken]]:
    """Sequence number and record of each mark among these rows."""
    marks = [row for row in rows if row.kind == RecordKind.SNAPSHOT and not row.erased]
    records = [(row.seq, decode(row.kind, row.version, row.body)) for row in marks]
    return [(seq, record) for seq, record in records if isinstance(record, SnapshotTaken)]


def _message_in(rows: Sequence[Row]) -> MessageAdded | None:
    """The message in the last of these rows; None when it was erased."""
    if not rows or rows[-1].erased:
        return None
    record = decode(rows[-1].kind, rows[-1].version, rows[-1].body)
    return record if isinstance(record, MessageAdded) else None


async def messages_before_fork(place: SessionPlace, session_id: str, agent_id: str) -> tuple[list[Message], int]:
    """The messages before the fork, and how many of the fork's own messages are copies of those."""
    store = place.open_store()
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
