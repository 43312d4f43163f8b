"""Reading everything that was ever said, as it stands now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from anyio.lowlevel import checkpoint

from repertory.actors.in_memory_journal import InMemoryJournal
from repertory.backends.worker_threads import OFF_LOOP_BYTES, run_in_thread
from repertory.core.journal.restore import records_of, said_in
from repertory.core.journal.rows import RecordKind, size_of, verify
from repertory.core.memory.progress import SaidMessage, said_in_rows
from repertory.core.orchestration.run import past_run

if TYPE_CHECKING:
    from repertory.actors.commit_buffer import CommitBuffer
    from repertory.actors.leases import Durable
    from repertory.backends.ports import SessionStore
    from repertory.core.journal.rows import Row
    from repertory.core.messages import Message
    from repertory.core.orchestration.run import Run

_SLICE_ROWS = 512
"""Rows that are decoded in one go, unless they are large: about two milliseconds."""
_SAYING = frozenset({RecordKind.MESSAGE, RecordKind.REDACTION})
"""The kinds of rows that say what was said."""
_TELLING = frozenset({RecordKind.NODE, RecordKind.BRANCH})
"""The kinds of rows that say what became of runs."""


class History(NamedTuple):
    """What was said in a session."""

    messages: tuple[Message, ...]
    """Oldest first."""
    forked: bool = False
    """Whether the journal may go on from another one, which has what was said before."""


async def read_history(keeper: Durable | InMemoryJournal, session_id: str, buffer: CommitBuffer) -> History:
    """What is stored of the buffer's agent, proved, and what waits to be. In slices: a long history holds nobody up.

    Errors: `CorruptJournal`, those of the store.
    """
    if isinstance(keeper, InMemoryJournal):
        return History(keeper.history())
    store = keeper.store
    rows = list(await store.load(session_id, buffer.agent_id, whole=True))
    for start in range(0, len(rows), _SLICE_ROWS):  # Each slice is proved by the last row of the one before.
        verify(rows[max(0, start - 1) : start + _SLICE_ROWS], session_id=session_id)
        await checkpoint()
    stored = rows[-1].seq if rows else 0
    rows += [row for row in buffer.rows if row.seq > stored]
    forked = bool(rows) and rows[0].kind == RecordKind.BRANCH
    rows = [row for row in rows if row.kind in _SAYING]
    messages: dict[int, Message] = {}
    redacted: dict[int, Message] = {}
    for part in _slices(rows):
        said, restated = said_in(part, session_id=session_id)
        messages |= said
        redacted |= restated
        await checkpoint()
    if not redacted:
        return History(tuple(messages.values()), forked)
    messages |= redacted
    return History(tuple(messages[seq] for seq in sorted(messages)), forked)


async def read_said(
    keeper: Durable | InMemoryJournal, session_id: str, buffer: CommitBuffer, after: int, until: int | None
) -> Sequence[SaidMessage]:
    """What was said after a sequence number and counts, oldest first. What opening reads is enough, as a rule."""
    if isinstance(keeper, InMemoryJournal):
        return keeper.said(after, until)
    store: SessionStore = keeper.store
    rows = list(await store.load(session_id, buffer.agent_id))
    if rows and rows[0].seq > after + 1:
        rows = list(await store.load(session_id, buffer.agent_id, whole=True))
    stored = rows[-1].seq if rows else 0
    rows += [row for row in buffer.rows if row.seq > stored]
    said = partial(_proved_and_said, rows, after, until, session_id)
    small = len(rows) <= _SLICE_ROWS and size_of(rows) <= OFF_LOOP_BYTES
    return said() if small else await run_in_thread(said)


async def read_run(keeper: Durable | InMemoryJournal, session_id: str, buffer: CommitBuffer, number: int) -> Run | None:
    """The run of that number; None when it is not there or is not over. The whole journal is read for it."""
    if isinstance(keeper, InMemoryJournal):
        return past_run(keeper.told_of_runs(), number)
    rows = list(await keeper.store.load(session_id, buffer.agent_id, whole=True))
    await run_in_thread(partial(verify, rows, session_id=session_id))
    stored = rows[-1].seq if rows else 0
    rows += [row for row in buffer.rows if row.seq > stored]
    telling = [row for row in rows if row.kind in _TELLING]
    return await run_in_thread(lambda: past_run(records_of(telling, session_id=session_id), number))


def _proved_and_said(rows: Sequence[Row], after: int, until: int | None, session_id: str) -> Sequence[SaidMessage]:
    verify(rows, session_id=session_id)
    return said_in_rows(rows, after, until, session_id=session_id)


def _slices(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The rows, at most `_SLICE_ROWS` at a time, and no more than `OFF_LOOP_BYTES` but for a single row."""
    start = size = 0
    for place, row in enumerate(rows):
        size += len(row.body)
        if place > start and (place - start >= _SLICE_ROWS or size > OFF_LOOP_BYTES):
            yield rows[start:place]
            start, size = place, len(row.body)
    if start < len(rows):
        yield rows[start:]
