"""Reading everything that was ever said, as it stands now."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from anyio.lowlevel import checkpoint

from repertory.actors.memory_journal import MemoryJournal
from repertory.backends.worker_threads import run_in_thread
from repertory.core.journal.restore import said_in
from repertory.core.journal.rows import Kind
from repertory.core.memory.reading import SaidMessage, said_in_rows

if TYPE_CHECKING:
    from repertory.actors.backlog import Backlog
    from repertory.actors.durable import Durable
    from repertory.backends.ports import SessionStore
    from repertory.core.messages import Message

_SLICE_ROWS = 512
"""Rows that are decoded in one go: about two milliseconds."""
_SAYING = frozenset({Kind.MESSAGE, Kind.REDACTION})
"""The kinds of rows that say what was said."""


class History(NamedTuple):
    """What was said in a session."""

    messages: tuple[Message, ...]
    """Oldest first."""
    forked: bool = False
    """Whether the journal may go on from another one, which has what was said before."""


async def read_history(keeper: Durable | MemoryJournal, session_id: str, backlog: Backlog) -> History:
    """What is stored of the backlog's agent, and what waits to be. In slices: a long history holds nobody up."""
    if isinstance(keeper, MemoryJournal):
        return History(keeper.history())
    store = keeper.store
    rows = list(await store.load(session_id, backlog.agent_id, whole=True))
    stored = rows[-1].seq if rows else 0
    rows += [row for row in backlog.rows if row.seq > stored]
    forked = bool(rows) and rows[0].kind == Kind.BRANCH
    rows = [row for row in rows if row.kind in _SAYING]
    messages: dict[int, Message] = {}
    redacted: dict[int, Message] = {}
    for start in range(0, len(rows), _SLICE_ROWS):
        said, restated = said_in(rows[start : start + _SLICE_ROWS], session_id=session_id)
        messages |= said
        redacted |= restated
        await checkpoint()
    if not redacted:
        return History(tuple(messages.values()), forked)
    messages |= redacted
    return History(tuple(messages[seq] for seq in sorted(messages)), forked)


async def read_said(
    keeper: Durable | MemoryJournal, session_id: str, backlog: Backlog, after: int, until: int | None
) -> Sequence[SaidMessage]:
    """What was said after a sequence number and counts, oldest first. What opening reads is enough, as a rule."""
    if isinstance(keeper, MemoryJournal):
        return keeper.said(after, until)
    store: SessionStore = keeper.store
    rows = list(await store.load(session_id, backlog.agent_id))
    if rows and rows[0].seq > after + 1:
        rows = list(await store.load(session_id, backlog.agent_id, whole=True))
    stored = rows[-1].seq if rows else 0
    rows += [row for row in backlog.rows if row.seq > stored]
    said = partial(said_in_rows, rows, after, until, session_id=session_id)
    return said() if len(rows) <= _SLICE_ROWS else await run_in_thread(said)
