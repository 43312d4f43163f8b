"""Positions of stored sessions: which one is meant, and what stood there, read from as few rows as that takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from repertory.app.operations.reading import aside, journal_of
from repertory.backends.ports import LabellingStore, PositionedStore
from repertory.core.journal.codec import decode
from repertory.core.journal.fold import Fold
from repertory.core.journal.forking import tells_enough
from repertory.core.journal.moment import Moment, moment_and_end, moment_of, tells
from repertory.core.journal.records import MessageAdded, SnapshotTaken
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import Kind
from repertory.core.journal.verify import verify
from repertory.core.journal.whole_journal import labelled
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore
    from repertory.core.journal.restore import Restored
    from repertory.core.journal.rows import Row

Position = int | str | None
"""A sequence number, a label, or None: the end."""


async def position_of(store: SessionStore, session_id: str, agent_id: str, at: Position, last: int) -> int:
    """The number of a position, in a journal whose last row has the number `last`.

    A label is looked up among the marks alone where the store can do that; else in what opening reads, and when it is
    not there, in the whole journal. Errors: `Invalid` for a number that is none, `NotFound` for a label.
    """
    if at is None:
        return last
    if isinstance(at, str):
        marks: list[tuple[int, SnapshotTaken]] = []
        if not isinstance(store, LabellingStore):
            rows = await store.load(session_id, agent_id)
            await aside(partial(verify, rows, session_id=session_id), len(rows))
            marks = _marks_in(rows)
        if all(mark.label != at for _, mark in marks):
            marks = await marks_of(store, session_id, agent_id)
        return labelled(marks, at, session_id=session_id, agent_id=agent_id)
    if not 0 <= at <= last:
        raise Invalid("no such position", at=at, last=last, session=session_id, agent=agent_id)
    return at


async def marks_of(store: SessionStore, session_id: str, agent_id: str) -> list[tuple[int, SnapshotTaken]]:
    """Sequence number and record of each mark."""
    if not isinstance(store, LabellingStore):
        return (await journal_of(store, session_id, agent_id)).snapshots()
    return _marks_in(await store.labels(session_id, agent_id))


async def moment_at(store: SessionStore, session_id: str, agent_id: str, position: int) -> Moment:
    """What stood at a position, and nothing else. Errors: `Invalid` when some of it was erased since;
    `CorruptJournal`.
    """
    if not position:
        return Moment(session_id=session_id, agent_id=agent_id, position=0, link=None, fold=Fold(), said={})
    if isinstance(store, PositionedStore):
        rows = await store.load_at(session_id, agent_id, position)
        if rows:
            found = await aside(partial(moment_of, rows, session_id=session_id, agent_id=agent_id), len(rows))
            if found is not None:
                return found
    journal = await journal_of(store, session_id, agent_id)
    return await aside(partial(journal.moment, position), len(journal.rows))


async def moment_and_end_of(
    store: SessionStore, session_id: str, agent_id: str, to: Position
) -> tuple[Moment, Restored]:
    """What stood at a position, and what an agent amounts to now. Where what opening reads there and at the end lies
    together, it is read and replayed but once.

    Errors: as `position_of` and `moment_at`.
    """
    rows = await store.load(session_id, agent_id)
    position = await position_of(store, session_id, agent_id, to, rows[-1].seq if rows else 0)
    if rows and isinstance(store, PositionedStore) and not tells(rows, position):
        rows = _joined(await store.load_at(session_id, agent_id, position), rows)
    both = partial(moment_and_end, rows, position, session_id=session_id, agent_id=agent_id)
    found = await aside(both, len(rows))
    if found is not None:
        return found
    now = await aside(partial(restore, rows, session_id=session_id), len(rows))
    return await moment_at(store, session_id, agent_id, position), now


def _joined(older: Sequence[Row], newer: Sequence[Row]) -> Sequence[Row]:
    """Both, where they touch or overlap; else the newer ones."""
    if not older or not older[0].seq < newer[0].seq <= older[-1].seq + 1:
        return newer
    return [*older, *newer[older[-1].seq + 1 - newer[0].seq :]]


async def moment_to_fork(store: SessionStore, session_id: str, agent_id: str, position: int) -> Moment:
    """The same, with all messages that a fork takes. A message that is pinned costs one look-up."""
    moment = await moment_at(store, session_id, agent_id, position)
    if isinstance(store, PositionedStore) and moment.missing:
        rows = [await store.load_at(session_id, agent_id, seq) for seq in moment.missing]
        for found in rows:
            verify(found, session_id=session_id)
        moment = moment.knowing({found[-1].seq: record for found in rows if (record := _said_in(found)) is not None})
    if tells_enough(moment):
        return moment
    journal = await journal_of(store, session_id, agent_id)
    return await aside(partial(journal.moment, position), len(journal.rows))


def _marks_in(rows: Sequence[Row]) -> list[tuple[int, SnapshotTaken]]:
    """Sequence number and record of each mark among these rows."""
    marks = [row for row in rows if row.kind == Kind.SNAPSHOT and not row.erased]
    records = [(row.seq, decode(row.kind, row.version, row.body)) for row in marks]
    return [(seq, record) for seq, record in records if isinstance(record, SnapshotTaken)]


def _said_in(rows: Sequence[Row]) -> MessageAdded | None:
    """The message at the end of these rows; None when it was erased."""
    if not rows or rows[-1].erased:
        return None
    record = decode(rows[-1].kind, rows[-1].version, rows[-1].body)
    return record if isinstance(record, MessageAdded) else None
