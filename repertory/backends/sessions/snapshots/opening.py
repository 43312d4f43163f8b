"""What becomes of an agent's journal at its opening: taking in what others wrote, going back to a snapshot."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from repertory.backends.sessions.snapshots.shelf import Found, HistoryShelf, S, aside
from repertory.core.journal.appender import Appender, Entropy
from repertory.core.journal.history.rewind import rewind
from repertory.core.journal.restore import restore
from repertory.core.journal.whole_journal import read_whole
from repertory.core.snapshots.document import Standing
from repertory.core.snapshots.intake import Published, taken_in
from repertory.errors import Invalid, SnapshotException, StoreNotFound

if TYPE_CHECKING:
    from repertory.core.journal.rows import Row
    from repertory.core.snapshots.document import ReadSnapshot
    from repertory.core.snapshots.location import SnapshotLocation

_log = logging.getLogger("repertory.sessions")


def is_of(standing: Standing | None, rows: Sequence[Row]) -> bool:
    """Whether a snapshot is one of this journal, whose rows from the last one's `low` on are given."""
    if standing is None or not rows or standing.seq > rows[-1].seq:
        return False
    place = standing.seq - rows[0].seq
    return place < 0 or rows[place].link.hex() == standing.link


async def rows_for(
    location: SnapshotLocation,
    rows: Sequence[Row],
    snapshot: ReadSnapshot,
    entropy: Entropy,
    at: float,
    published: Published | None = None,
) -> list[Row]:
    """The rows that follow on `rows` so that the journal shows what the snapshot shows."""

    def made() -> list[Row]:
        fold = restore(rows, session_id=location.session_id).fold
        appender = Appender(location.scope_id, fold, rows[-1].link if rows else None, entropy)
        return taken_in(appender, snapshot.content, snapshot.created_at or at, published)

    size_bytes = sum(len(row.body) for row in rows) + 256 * len(snapshot.content.messages)
    return await aside(size_bytes, made)


def holds_more(snapshot: ReadSnapshot, document: Mapping[str, object]) -> bool:
    """Whether a snapshot may say something that no journal says: beside a turn that waits for a person, or stashed
    content.
    """
    data = document.get("data")
    return bool(snapshot.content.interrupt_state.get("activated")) or (isinstance(data, Mapping) and "stash" in data)


async def unreadable(shelf: HistoryShelf, location: SnapshotLocation, found: Found[S]) -> SnapshotException:
    """The error for a latest snapshot that nobody can read, where there is no journal to go on from."""
    ids = await shelf.ids(location)
    hint = f"open the session with load_snapshot_id={ids[-1]!r}" if ids else "there is no numbered snapshot either"
    msg = f"the latest snapshot cannot be read, and the journal has nothing; {hint}, or remove the file"
    return SnapshotException(msg, file=found.place, cause=found.fault)


async def find_history(shelf: HistoryShelf, location: SnapshotLocation, snapshot_id: str) -> ReadSnapshot:
    """The snapshot of that id. Errors: `NotFound`, `SnapshotException`."""
    found = await shelf.history(location, snapshot_id)
    if found is None:
        fields = {"session": location.session_id, "agent": location.scope_id}
        raise StoreNotFound("no such snapshot", snapshot_id=snapshot_id, known=await shelf.ids(location), **fields)
    if found.snapshot is None:
        raise SnapshotException("the snapshot cannot be read", file=found.place, cause=found.fault)
    return found.snapshot


def rows_back_to(
    whole: Sequence[Row], snapshot: ReadSnapshot, name: str, location: SnapshotLocation, entropy: Entropy
) -> Sequence[Row] | None:
    """The rows by which the journal goes on from a snapshot of its own: none when it stands there already.

    None when the snapshot is of another journal, or what it showed was erased since.
    """
    standing = snapshot.standing
    if standing is None or not standing.seq or not is_of(standing, whole):
        return None
    if standing.seq == whole[-1].seq:
        return []
    try:
        journal = read_whole(whole, session_id=location.session_id, agent_id=location.scope_id)
        return rewind(journal, standing.seq, at=snapshot.created_at, entropy=entropy, name=name)
    except Invalid as error:
        _log.warning("a snapshot is taken in as its file has it name=%r why=%r", name, str(error))
        return None
