"""Merging segments into chunks, in the background, so that a whole history is read with few requests.

First the chunk is put, then the head says that it counts, then the segments go. Killed in between, a chunk that does
not count is replaced by the next one that begins there; segments that are left over are not read, and removed later.
Fences stay for ever, and so do segments that are so large that a copy would cost more than it saves.
"""

from __future__ import annotations

from repertory.backends.ports import Create, Update
from repertory.backends.sessions.object_keys import number_in
from repertory.backends.sessions.object_ownership import OwnedSession, packed_aside
from repertory.backends.sessions.object_reading import Changed, Segment, numbers_in
from repertory.errors import AlreadyExists, CorruptJournal, StoreUnavailable

SEGMENTS_MERGED = 128
"""Segments that become one chunk."""
_KEPT_BYTES = 128 * 1024
"""A segment of this size stays as it is."""
_AT_ONCE = 8
"""Requests side by side: commits go first."""


def merge_due(session: OwnedSession) -> bool:
    """Whether there are enough segments for a chunk, or some of those that were merged are still there.

    What is to be erased is not copied: it goes first.
    """
    head = session.head
    return not session.erasing and (session.commit - head.merged >= SEGMENTS_MERGED or head.tidied < head.merged)


async def merge(session: OwnedSession) -> None:
    """Make one chunk, and remove what is in chunks. Errors: `LeaseLost`, `CorruptJournal`, the object store's."""
    await _remove_merged(session)
    if session.erasing or session.commit - session.head.merged < SEGMENTS_MERGED:
        return
    first, last = session.head.merged + 1, session.head.merged + SEGMENTS_MERGED
    if session.head.commit < last:
        await session.refresh()
    try:
        segments = await session.reader.segments(range(first, last + 1), at_once=_AT_ONCE)
    except Changed as change:
        fields = {"session": session.lease.session_id, "key": str(change)}
        raise CorruptJournal("a segment is missing", **fields) from change
    await _put_chunk(session, segments)
    async with session.head_lock:
        await session.write_head(fresh=session.head.window is None, merged=last)
    await _remove_merged(session)


async def _put_chunk(session: OwnedSession, segments: list[Segment]) -> None:
    """Put the chunk. One that is there already does not count: somebody ended before the head said so."""
    first, last = segments[0].commit, segments[-1].commit
    kept = [segment.commit for segment in segments if segment.size_bytes >= _KEPT_BYTES]
    header: dict[str, object] = {
        "kind": "chunk",
        "session": session.lease.session_id,
        "generation": session.lease.generation,
        "first": first,
        "last": last,
        "kept": kept,
        "fences": [segment.commit for segment in segments if segment.fence],
    }
    rows = [row for segment in segments if segment.commit not in kept for row in segment.rows]
    body = await packed_aside(header, rows)
    key = session.keys.chunk(first)
    try:
        await session.requests.put(key, body, Create())
    except AlreadyExists as error:
        found = await session.requests.find(key)
        if found is None:
            raise StoreUnavailable(
                "the chunk is there, and is not", session=session.lease.session_id, key=key
            ) from error
        await session.prove()  # A former owner must not replace the chunk of the next one, which counts.
        await session.requests.put(key, body, Update(found.version))


async def _remove_merged(session: OwnedSession) -> None:
    """Remove segments that stand in chunks. What is removed already costs nothing."""
    head = session.head
    if head.tidied >= head.merged:
        return
    staying: set[int] = set()
    first = head.tidied + 1
    while first <= head.merged:
        key = session.keys.chunk(first)
        found = await session.requests.find(key)
        if found is None:
            raise CorruptJournal("a chunk is missing", session=session.lease.session_id, key=key)
        header, _ = session.reader.read(found, "chunk", key)
        staying |= {*numbers_in(header, "kept"), *numbers_in(header, "fences")}
        last = header.get("last")
        if not isinstance(last, int) or last < first:
            raise CorruptJournal("a chunk ends before it begins", session=session.lease.session_id, key=key)
        first = last + 1
    start = session.keys.segment(head.tidied) if head.tidied else None
    listed = await session.requests.list(session.keys.segments, start)
    numbers = {number_in(info.key): info.key for info in listed}
    gone = [key for number, key in numbers.items() if number and number <= head.merged and number not in staying]
    await session.requests.delete_all(gone, _AT_ONCE)
    session.note_tidied(head.merged)
