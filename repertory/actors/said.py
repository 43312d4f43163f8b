"""Reading everything that was ever said, as it stands now."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from anyio.lowlevel import checkpoint

from repertory.core.journal.restore import said_in
from repertory.core.journal.rows import Kind

if TYPE_CHECKING:
    from repertory.actors.backlog import Backlog
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


async def read_history(store: SessionStore, session_id: str, backlog: Backlog) -> History:
    """What is stored of the backlog's agent, and what waits to be. In slices: a long history holds nobody up."""
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
