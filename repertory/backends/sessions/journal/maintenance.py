"""Background work for owned sessions: renewing leases, rewriting heads, merging segments into chunks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import anyio

from repertory.backends.ports import Create, ObjectInfo, Update
from repertory.backends.sessions.journal.format import commit_of_key, pack, read_object
from repertory.backends.sessions.journal.ownership import OwnedSegments, packed_aside
from repertory.backends.sessions.journal.reading import Changed, Segment, commits_in_header, without
from repertory.backends.sessions.liveness import Liveness
from repertory.backends.sessions.requests import delete_all, find, side_by_side
from repertory.errors import (
    AlreadyExists,
    CorruptJournal,
    LeaseLost,
    PreconditionFailed,
    RepertoryError,
    Retryable,
    StoreUnavailable,
)

_OWE_EVERY_S = 1.0
"""Seconds between two looks for turns that have become due meanwhile."""
_RETRY_S = 5.0
"""Seconds to wait after an error before a session is tidied again."""


class Maintenance:
    """Maintains every session in `owned`, which may change at any time."""

    def __init__(self, owned: Mapping[str, OwnedSegments], life: Liveness) -> None:
        self._owned = owned
        self._life = life
        self._due: dict[OwnedSegments, float] = {}
        """Session to the earliest time at which to tidy it."""
        self._work = anyio.Event()
        self._tidying: dict[OwnedSegments, anyio.CancelScope] = {}
        self._locks: dict[OwnedSegments, anyio.Lock] = {}

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tidy_all)
            tasks.start_soon(self._owe_late)
            if self._life.renew_every_s is not None:
                tasks.start_soon(self._renew_all, self._life.renew_every_s)

    def look_at(self, session: OwnedSegments) -> None:
        """Schedule a session that has changed, if it needs tidying."""
        work = session.erasing or session.head_due or session.fold_due or merge_due(session)
        if session not in self._due and session.lost is None and session.tidy and work:
            self._due[session] = 0.0
            self._work.set()

    async def stop(self, session: OwnedSegments) -> None:
        self._due.pop(session, None)
        async with self._exclusive(session):
            self._locks.pop(session, None)

    async def finish_erasing(self, session: OwnedSegments) -> None:
        """Destroy the contents that are to be erased, now. Errors: as the function `finish_erasing`."""
        async with self._exclusive(session):
            if session.erasing:
                await finish_erasing(session)

    def _exclusive(self, session: OwnedSegments) -> anyio.Lock:
        """The lock for changing objects that exist already. Cancels a merge, which gives way."""
        scope = self._tidying.get(session)
        if scope is not None:
            scope.cancel()
        return self._locks.setdefault(session, anyio.Lock())

    async def _renew_all(self, every_s: float) -> None:
        """A session that was written to needs no renewal: each write renews its lease."""
        while True:
            async with anyio.create_task_group() as tasks:
                for session in list(self._owned.values()):
                    if anyio.current_time() - session.signed_at >= every_s:
                        tasks.start_soon(self._renew, session)
            now = anyio.current_time()
            wait_s = min((session.signed_at + every_s - now for session in self._owned.values()), default=every_s)
            await anyio.sleep(max(wait_s, every_s / 10))

    async def _renew(self, session: OwnedSegments) -> None:
        """A failed renewal is retried in time, unless the lease is lost. Other owners only ask for sessions that are
        idle.
        """
        if session.lost is None:
            with suppress(RepertoryError):
                await session.renew()
                await _look_for_request(session)

    async def _owe_late(self) -> None:
        """Have the turns that take long marked as owed."""
        while True:
            await anyio.sleep(_OWE_EVERY_S)
            for session in list(self._owned.values()):
                if session.lost is None:
                    await session.debts.owe_late()

    async def _tidy_all(self) -> None:
        while True:
            now = anyio.current_time()
            ready = [session for session, not_before in self._due.items() if not_before <= now]
            for session in ready:
                await self._tidy(session)
            wait_s = min((at - anyio.current_time() for at in self._due.values()), default=None)
            if wait_s is None or wait_s > 0:
                self._work = anyio.Event()
                with anyio.move_on_after(wait_s):
                    await self._work.wait()

    async def _tidy(self, session: OwnedSegments) -> None:
        self._due.pop(session, None)
        lock = self._locks.setdefault(session, anyio.Lock())
        with anyio.CancelScope() as scope:
            self._tidying[session] = scope
            try:
                async with lock:
                    await _tidy(session)
            except LeaseLost:
                return
            except Retryable:
                self._due[session] = anyio.current_time() + _RETRY_S
            except RepertoryError:
                session.tidy = False  # Readers of the session report the damage; maintenance does not go on.
            finally:
                self._tidying.pop(session, None)


async def _look_for_request(session: OwnedSegments) -> None:
    """A caller that wants the session has put the name of its owner under `wanted`, when it read the store's clock."""
    found = await find(session.objects, session.keys.wanted)
    if found is not None and found.body == session.lease.owner.encode():
        await session.objects.delete(session.keys.wanted)
        session.note_request()


async def _tidy(session: OwnedSegments) -> None:
    if session.erasing:
        await finish_erasing(session)
    if session.head_due:
        await session.refresh()
    if session.fold_due:
        await session.fold()
    while session.lost is None and merge_due(session):
        await merge(session)


# Destroying contents: every object that holds one is replaced by an object without it.
#
# The commit that asked for it names the rows. So after a crash the next owner finishes the work, and no reader shows
# the contents meanwhile.

_TRIES_MAX = 8


async def finish_erasing(session: OwnedSegments) -> None:
    """Destroy the contents that are to be erased, in every object that holds them. No merge may run meanwhile.

    Errors: `LeaseLost`, `CorruptJournal`, those of the object store; the work is finished later then.
    """
    erasing = session.erasing
    keys = session.keys
    session.gathered = {}
    found = await session.objects.list(f"{keys.folder}/")
    holders = [info for info in found if commit_of_key(info.key) is not None]
    await side_by_side([partial(_erase_in, session, info, frozenset(erasing)) for info in holders])
    windows = [info.key for info in found if info.key.startswith(keys.windows)]
    async with session.head_lock:
        session.note_erased(erasing)
        await session.write_head(fresh=True)
    current = None if session.head.window is None else keys.window(session.head.window)
    await delete_all(session.objects, [key for key in windows if key != current])


async def _erase_in(session: OwnedSegments, info: ObjectInfo, erasing: frozenset[tuple[str, int]]) -> None:
    key = info.key
    kind = "chunk" if key.startswith(session.keys.chunks) else "segment"
    for _ in range(_TRIES_MAX):
        found = await find(session.objects, key)
        if found is None:
            return
        header, rows = read_object(found.body, kind, session.lease.session_id, key)
        generation = header.get("generation")
        if isinstance(generation, int) and generation > session.lease.generation:
            return  # A later owner's, who knows what is to be erased. It may also be of a new session of that name.
        left = without(rows, erasing)
        if left == rows:
            return
        try:
            await session.objects.put(key, pack(header, left), Update(found.version))
        except PreconditionFailed:
            continue
        return


# Merging segments into chunks, in the background, so that reading a whole history takes few requests.
#
# First the chunk is put, then the head names it, then the segments are removed. After a crash in between, a chunk that
# the head does not name is replaced by the next one that begins there; leftover segments are not read, and are removed
# later. Fences stay for ever, and so do segments so large that a copy would cost more than it saves.

SEGMENTS_MERGED = 128
"""How many segments become one chunk."""
_KEPT_BYTES = 128 * 1024
"""Segments of at least this size are not merged."""
_AT_ONCE = 8
"""Concurrent requests for maintenance; few, because commits have priority."""


def merge_due(session: OwnedSegments) -> bool:
    """True if there are enough segments for a chunk, or merged segments that are not removed yet.

    False while contents are to be erased: a merge would copy them.
    """
    head = session.head
    return not session.erasing and (session.commit - head.merged >= SEGMENTS_MERGED or head.tidied < head.merged)


async def merge(session: OwnedSegments) -> None:
    """Make one chunk, and remove segments that are in chunks. Errors: `LeaseLost`, `CorruptJournal`, the object
    store's.
    """
    await _remove_merged(session)
    if session.erasing or session.commit - session.head.merged < SEGMENTS_MERGED:
        return
    first, last = session.head.merged + 1, session.head.merged + SEGMENTS_MERGED
    if session.chunked < last:
        if session.head.commit < last:
            await session.refresh()
        try:
            # What was read before a merge had to give way is not read again: where calls are short, none would end.
            for start in range(first, last + 1, _AT_ONCE):
                some = range(start, min(start + _AT_ONCE, last + 1))
                missing = [number for number in some if number not in session.gathered]
                session.gathered |= {each.commit: each for each in await session.reader.segments(missing)}
        except Changed as change:
            fields = {"session": session.lease.session_id, "key": str(change)}
            raise CorruptJournal("a segment is missing", **fields) from change
        with anyio.CancelScope(shield=True):  # Where calls are short, it would be put again with each.
            await _put_chunk(session, [session.gathered[number] for number in range(first, last + 1)])
            session.chunked = last
    async with session.head_lock:
        await session.write_head(fresh=session.head.window is None, merged=last)
    session.gathered = {}
    await _remove_merged(session)


async def _put_chunk(session: OwnedSegments, segments: list[Segment]) -> None:
    """Put the chunk. It replaces one that is there already: its writer died before the head named it."""
    first, last = segments[0].commit, segments[-1].commit
    unmerged = [segment.commit for segment in segments if segment.size_bytes >= _KEPT_BYTES]
    header: dict[str, object] = {
        "kind": "chunk",
        "session": session.lease.session_id,
        "generation": session.lease.generation,
        "first": first,
        "last": last,
        "kept": unmerged,
        "fences": [segment.commit for segment in segments if segment.fence],
    }
    rows = [row for segment in segments if segment.commit not in unmerged for row in segment.rows]
    body = await packed_aside(header, rows)
    key = session.keys.chunk(first)
    try:
        await session.objects.put(key, body, Create())
    except AlreadyExists as error:
        found = await find(session.objects, key)
        if found is None:
            raise StoreUnavailable(
                "the chunk is there, and is not", session=session.lease.session_id, key=key
            ) from error
        await session.prove()  # A former owner must not replace the next owner's chunk, which the head names.
        await session.objects.put(key, body, Update(found.version))


async def _remove_merged(session: OwnedSegments) -> None:
    """Remove segments that are in chunks. Removing one that is gone already costs nothing."""
    head = session.head
    if head.tidied >= head.merged:
        return
    staying: set[int] = set()
    first = head.tidied + 1
    while first <= head.merged:
        key = session.keys.chunk(first)
        found = await find(session.objects, key)
        if found is None:
            raise CorruptJournal("a chunk is missing", session=session.lease.session_id, key=key)
        header, _ = session.reader.read(found, "chunk", key)
        staying |= {*commits_in_header(header, "kept"), *commits_in_header(header, "fences")}
        last = header.get("last")
        if not isinstance(last, int) or last < first:
            raise CorruptJournal("a chunk ends before it begins", session=session.lease.session_id, key=key)
        first = last + 1
    start = session.keys.segment(head.tidied) if head.tidied else None
    listed = await session.objects.list(session.keys.segments, start)
    numbers = {commit_of_key(info.key): info.key for info in listed}
    gone = [key for number, key in numbers.items() if number and number <= head.merged and number not in staying]
    await delete_all(session.objects, gone, _AT_ONCE)
    session.note_tidied(head.merged)
