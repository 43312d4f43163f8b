"""Names for positions of stored sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repertory.app.operations.opening import commit, owned
from repertory.app.operations.positions import marks_of, moment_at
from repertory.app.operations.reading import agent_there, opening_of
from repertory.core.journal.appender import Appender
from repertory.core.journal.marks import Mark, mark_rows
from repertory.core.journal.whole_journal import position_named
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.app.operations.branching import Made
    from repertory.backends.ports import SessionStore
    from repertory.core.messages import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMark:
    """A position that has a name."""

    label: str
    position: int
    """What the name stands for: everything up to and with this sequence number."""
    seq: int
    """Of the record that says so."""
    at: float
    """When it was named, in epoch seconds."""
    metadata: Mapping[str, Json]
    digest: str
    """The link of the row at the position, in hexadecimal, which proves everything up to there. Empty before the first
    row, and for marks that others made.
    """


async def marks(store: SessionStore, session_id: str, agent_id: str | None) -> Sequence[StoredMark]:
    """The marks of a session, in order."""
    agent_id = await agent_there(store, session_id, agent_id)
    return [
        StoredMark(
            label=taken.label,
            position=position_named(seq, taken),
            seq=seq,
            at=taken.at,
            metadata=taken.metadata,
            digest=taken.digest,
        )
        for seq, taken in await marks_of(store, session_id, agent_id)
    ]


async def mark(
    store: SessionStore,
    session_id: str,
    wanted: Sequence[Mark],
    agent_id: str | None,
    made: Made,
    *,
    takeover: bool,
) -> Sequence[StoredMark]:
    """Put marks on a session, in one commit. What is read is what opening the session reads."""
    agent_id = await agent_there(store, session_id, agent_id)
    async with owned(store, session_id, takeover=takeover) as lease:
        now = await opening_of(store, session_id, agent_id)
        last = now.fold.last_seq
        links: dict[int, bytes] = {}
        for position in {each.position for each in wanted} - {None, last, 0}:
            assert position is not None
            if not 0 < position < last:
                raise Invalid("no such position", at=position, last=last, session=session_id, agent=agent_id)
            link = (await moment_at(store, session_id, agent_id, position)).link
            assert link is not None
            links[position] = link
        rows = mark_rows(Appender(agent_id, now.fold, now.link, made.entropy), wanted, links, made.at)
        links[last] = now.link or b""
        if rows:
            await commit(store, lease, rows)
    return [
        StoredMark(
            label=each.label,
            position=(position := last if each.position is None else each.position),
            seq=last + number,
            at=made.at,
            metadata=each.metadata,
            digest=links.get(position, b"").hex(),
        )
        for number, each in enumerate(wanted, 1)
    ]
