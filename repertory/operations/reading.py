"""Reading stored sessions for operations: leases, chosen agents, and positions with the state there."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from repertory.app.sessions.reading import (
    in_thread_when_many,
    info_of,
    load_journal,
    moment_at,
    no_such_agent,
    no_such_session,
)
from repertory.backends.ports import Batch, Lease, SessionEnds, SessionStore, ends, seal_of
from repertory.core.history.fork import tells_enough
from repertory.core.journal.codec import decode
from repertory.core.journal.records import MessageAdded, SnapshotTaken
from repertory.core.journal.restore import Restored, restore
from repertory.core.journal.rows import RecordKind, verify
from repertory.core.journal.whole_journal import PointInTime, labelled, moment_and_end, tells
from repertory.core.turns.subagents import without_subagents
from repertory.errors import CorruptJournal, Invalid, NotFound, RepertoryError

if TYPE_CHECKING:
    from repertory.backends.ports import SessionInfo
    from repertory.core.journal.rows import Row
    from repertory.core.journal.sealing import Seal
    from repertory.core.pending_work import DueTime

PositionLike = int | str | None
"""A sequence number, a label, or None: the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStamp:
    """The time and the random bytes for new records."""

    at: float
    entropy: Callable[[int], bytes]
    seal: Seal | None = None
    """Encrypts the rows of one session; see `for_session`."""

    async def for_session(self, store: SessionStore, session_id: str) -> RecordStamp:
        """The same, for rows of this session, which the caller owns. Errors: those of `Sealing.seal`."""
        return replace(self, seal=await seal_of(store, session_id))


async def sound_info_of(store: SessionStore, session_id: str) -> SessionInfo:
    """`info_of` for callers that need every agent. Errors: `NotFound`, `CorruptJournal` when one cannot be read."""
    return _sound(await info_of(store, session_id), store)


async def sound_ends_of(store: SessionStore, session_id: str) -> SessionEnds:
    """Load what `sound_info_of` does, and the rows that opening each agent reads. Errors: the same."""
    found = await ends(store, session_id)
    if found is None:
        raise no_such_session(store, session_id)
    _sound(found.info, store)
    return found


def _sound(info: SessionInfo, store: SessionStore) -> SessionInfo:
    if info.damaged:
        raise CorruptJournal("the session is damaged; `doctor` says where", session=info.session_id, place=store.name)
    return info


async def chosen_agent(store: SessionStore, session_id: str, agent_id: str | None) -> str:
    """The named agent, the only one beside its subagents, or `default`. Errors: `NotFound`; `CorruptJournal` when the
    listing of agents is damaged.
    """
    if agent_id is not None:
        return agent_id
    agents = without_subagents((await sound_info_of(store, session_id)).agents)
    if len(agents) != 1 and "default" not in agents:
        raise NotFound("say which agent of the session", session=session_id, agents=agents)
    return agents[0] if len(agents) == 1 else "default"


async def agent_there(store: SessionStore, session_id: str, agent_id: str | None) -> str:
    """The chosen agent, verified to exist. Call it before `owned`, which would create a missing session.

    Errors: `NotFound`, `CorruptJournal`.
    """
    if agent_id is None:
        return await chosen_agent(store, session_id, None)
    await end_of(store, session_id, agent_id)
    return agent_id


async def end_of(store: SessionStore, session_id: str, agent_id: str) -> Sequence[Row]:
    """The rows that opening an agent reads, at least one. Errors: `NotFound`."""
    rows = await store.load(session_id, agent_id)
    if not rows:
        raise await no_such_agent(store, session_id, agent_id)
    return rows


async def opening_of(store: SessionStore, session_id: str, agent_id: str) -> Restored:
    """The current state of an agent, from the rows that opening reads. Errors: `CorruptJournal`."""
    rows = await store.load(session_id, agent_id)
    return await in_thread_when_many(partial(restore, rows, session_id=session_id), rows)


@asynccontextmanager
async def owned(store: SessionStore, session_id: str, *, takeover: bool) -> AsyncGenerator[Lease]:
    """A lease on a session, released at the end. Errors: `SessionBusy` when a live owner has it."""
    lease, _ = await store.acquire(session_id, takeover=takeover)
    try:
        yield lease
    finally:
        with anyio.CancelScope(shield=True), suppress(RepertoryError):  # a lease not released here expires
            await store.release([lease])


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
    pending_work = [Batch(lease=lease, rows=(), due=due) for due in dues]
    for batch in (Batch(lease=lease, rows=rows, erase=erase), *pending_work, *proof):
        (outcome,) = await store.append([batch])
        if isinstance(outcome, RepertoryError):
            raise outcome


async def position_of(store: SessionStore, session_id: str, agent_id: str, at: PositionLike, last: int) -> int:
    """The number of a position, in a journal whose last row has the number `last`.

    A label is looked up among the marks alone if the store can do that; else in the rows that opening reads, and then
    in the whole journal. Errors: `Invalid` for a number out of range, `NotFound` for a label.
    """
    if at is None:
        return last
    if isinstance(at, str):
        marks: list[tuple[int, SnapshotTaken]] = []
        positions = store.capabilities.positions
        if positions is None or positions.labels is None:
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
    positions = store.capabilities.positions
    if positions is None or positions.labels is None:
        return (await load_journal(store, session_id, agent_id)).snapshots()
    rows = await positions.labels(session_id, agent_id)
    return await in_thread_when_many(partial(_marks_in, rows), rows)


def _marks_in(rows: Sequence[Row]) -> list[tuple[int, SnapshotTaken]]:
    """Sequence number and record of each mark among these rows."""
    marks = [row for row in rows if row.kind == RecordKind.SNAPSHOT and not row.erased]
    records = [(row.seq, decode(row.kind, row.version, row.body)) for row in marks]
    return [(seq, record) for seq, record in records if isinstance(record, SnapshotTaken)]


async def moment_and_end_of(
    store: SessionStore, session_id: str, agent_id: str, to: PositionLike
) -> tuple[PointInTime, Restored]:
    """The state at a position, and the current state of the agent. If opening reads adjoining rows for both, they are
    read and replayed once.

    Errors: as `position_of` and `moment_at`.
    """
    rows = await store.load(session_id, agent_id)
    position = await position_of(store, session_id, agent_id, to, rows[-1].seq if rows else 0)
    positions = store.capabilities.positions
    if rows and positions is not None and not tells(rows, position):
        rows = _joined(await positions.load_at(session_id, agent_id, position), rows)
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
    positions = store.capabilities.positions
    if positions is not None and moment.missing:
        rows = [await positions.load_at(session_id, agent_id, seq) for seq in moment.missing]
        for found in rows:
            verify(found, session_id=session_id)
        moment = moment.knowing({found[-1].seq: record for found in rows if (record := _message_in(found)) is not None})
    if tells_enough(moment):
        return moment
    journal = await load_journal(store, session_id, agent_id)
    return await in_thread_when_many(partial(journal.moment, position), journal.rows)


def _message_in(rows: Sequence[Row]) -> MessageAdded | None:
    """The message in the last of these rows; None when it was erased."""
    if not rows or rows[-1].erased:
        return None
    record = decode(rows[-1].kind, rows[-1].version, rows[-1].body)
    return record if isinstance(record, MessageAdded) else None
