"""Background work for owned sessions: renewing leases, rewriting heads, merging segments into chunks."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

import anyio
from anyio.abc import TaskGroup

from repertory.backends.ports import Create, ObjectInfo, Update
from repertory.backends.sessions.journal.format import commit_of_key, pack, read_object
from repertory.backends.sessions.journal.ownership import OwnedSegments, packed_aside
from repertory.backends.sessions.journal.reading import Changed, commits_in_header, without
from repertory.backends.sessions.liveness import Liveness
from repertory.backends.sessions.requests import SIDE_BY_SIDE, delete_all, find, side_by_side, start_once
from repertory.errors import (
    AlreadyExists,
    CorruptJournal,
    LeaseLost,
    PreconditionFailed,
    RepertoryError,
    Retryable,
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
        """Set when a session is to be tried again at a time."""
        self._tasks: TaskGroup | None = None
        self._tidying: dict[OwnedSegments, anyio.CancelScope] = {}
        self._merging: set[OwnedSegments] = set()
        self._heads, self._merges = anyio.CapacityLimiter(SIDE_BY_SIDE), anyio.CapacityLimiter(_MERGES_AT_ONCE)

    async def run(self) -> None:
        try:
            async with anyio.create_task_group() as self._tasks:
                for session in list(self._due):
                    self._begin(session)
                self._tasks.start_soon(self._try_again)
                self._tasks.start_soon(self._owe_all_late, self._tasks)
                if self._life.renew_every_s is not None:
                    self._tasks.start_soon(self._renew_all, self._tasks, self._life.renew_every_s)
        finally:
            self._tasks = None  # Sessions may still be looked at when nobody tidies them any more.

    def look_at(self, session: OwnedSegments) -> None:
        """Schedule a session that has changed, if it needs tidying; of a released one, that is less."""
        # A merge and the removal of old windows need no lease, so they are done for released sessions too.
        work = session.lost is None and (session.erasing or session.head_due or session.fold_due)
        work = work or bool(session.stale_windows) or (merge_due(session) and session not in self._merging)
        # A session that waits after an error keeps its time: a commit must not make it try at once, again and again.
        if work and session.tidy and session not in self._due:
            self._due[session] = 0.0
            self._begin(session)

    def _begin(self, session: OwnedSegments) -> None:
        """Tidy a session that is due, unless that is under way: it is looked at again then."""
        # Here and not in a loop that would be woken: a release may come in the same step, and must find it begun.
        if self._tasks is not None and session not in self._tidying:
            self._tidying[session] = anyio.CancelScope()
            self._tasks.start_soon(self._tidy, session, self._tasks)

    async def stop(self, session: OwnedSegments) -> None:
        """Stop tidying a session. Its merge goes on, which the next owner does not rely on: see there."""
        # Before the lock: what has not begun must not begin once the lock is free.
        self._due.pop(session, None)
        async with self._exclusive(session):
            pass

    async def finish_erasing(self, session: OwnedSegments) -> None:
        """Destroy the contents that are to be erased, now. Errors: as the function `finish_erasing`."""
        async with self._exclusive(session):
            if session.erasing:
                await finish_erasing(session)

    def _exclusive(self, session: OwnedSegments) -> anyio.Lock:
        """The lock for heads and for destroying contents. What tidies meanwhile is cancelled."""
        scope = self._tidying.get(session)
        if scope is not None:
            # Whoever wants to release or erase waits for one request at most, not for a whole round of tidying.
            scope.cancel()
        return session.tidying

    async def _renew_all(self, tasks: TaskGroup, every_s: float) -> None:
        """A session that was written to needs no renewal: each write renews its lease."""
        # Beside each other and beside this loop: a request that hangs for longer than a lease costs its own session
        # alone.
        under_way = set[OwnedSegments]()
        while True:
            now = anyio.current_time()
            for session in self._owned.values():
                if now - session.signed_at >= every_s:
                    start_once(tasks, under_way, session, partial(self._renew, session, 2 * every_s))
            wait_s = min((session.signed_at + every_s - now for session in self._owned.values()), default=every_s)
            # A renewal that has failed is due at once: without a least wait, an outage of the bucket would be a busy
            # loop.
            await anyio.sleep(max(wait_s, every_s / 10))

    async def _renew(self, session: OwnedSegments, within_s: float) -> None:
        """A failed renewal, or one without an answer in time, is retried, unless the lease is lost. Other owners only
        ask for sessions that are idle.
        """
        if session.lost is None:
            # Nobody could be told. If the lease is lost, the next commit says so; if the bucket is down, the next round
            # tries. A request that got lost is given up while the lease lasts, long before its own timeout.
            with suppress(RepertoryError), anyio.move_on_after(within_s):
                await session.renew()
                self.look_at(session)
                # A caller that wants the session has put its owner's name there, when it read the store's clock.
                found = await find(session.objects, session.keys.wanted)
                # With another name in it, the wish was meant for an earlier owner.
                if found is not None and found.body == session.lease.owner.encode():
                    # Deleted first: a wish that comes meanwhile is put again by its asker, who repeats it.
                    await session.objects.delete(session.keys.wanted)
                    session.note_request()

    async def _owe_all_late(self, tasks: TaskGroup) -> None:
        """Have the turns that take long marked as owed."""
        under_way = set[OwnedSegments]()
        while True:
            await anyio.sleep(_OWE_EVERY_S)
            for session in self._owned.values():
                if session.lost is None and session.debts.has_late:
                    start_once(tasks, under_way, session, session.debts.owe_late)

    async def _try_again(self) -> None:
        """Begin with the sessions that wait after an error, when their time has come."""
        while True:
            # anyio's events cannot be cleared. Made in the step that looks, so no wake-up is lost.
            self._work, now = anyio.Event(), anyio.current_time()
            waiting = {session: at for session, at in self._due.items() if session not in self._tidying}
            for session, not_before in waiting.items():
                if not_before <= now:
                    self._begin(session)
            with anyio.move_on_after(min((at - now for at in waiting.values() if at > now), default=math.inf)):
                await self._work.wait()

    async def _tidy(self, session: OwnedSegments, tasks: TaskGroup) -> None:
        with self._tidying[session]:
            async with self._heads:
                if self._due.pop(session, None) is not None:  # Otherwise it is being released.
                    # No more due while it waits for its lock: a change meanwhile makes it due again.
                    async with session.tidying:
                        await self._try(session, _tidy)
        del self._tidying[session]
        if session.tidy and merge_due(session):
            start_once(tasks, self._merging, session, partial(self._merge, session))
        self._work.set()  # It may have become due again.

    async def _merge(self, session: OwnedSegments) -> None:
        async with self._merges:
            await self._try(session, merge)

    async def _try(self, session: OwnedSegments, work: Callable[[OwnedSegments], Awaitable[None]]) -> None:
        try:
            await work(session)
        except LeaseLost:
            return
        except Retryable:
            self._due[session] = anyio.current_time() + _RETRY_S
            self._work.set()
        except RepertoryError:
            # Merging around damage would spread it into chunks, and remove the segments that a repair needs.
            session.tidy = False  # Readers of the session report the damage; maintenance does not go on.


async def _tidy(session: OwnedSegments) -> None:
    if session.lost is None:
        if session.erasing:
            await finish_erasing(session)
        if session.head_due:
            with anyio.CancelScope(shield=True):  # A head without an answer would be put again, by the next commit.
                await session.renew(fresh=True)
        if session.fold_due:
            await session.fold()
    await session.forget_windows()


# Destroying contents: every object that holds one is replaced by an object without it.
#
# The commit that asked for it names the rows. So after a crash the next owner finishes the work, and no reader shows
# the contents meanwhile.

_TRIES_MAX = 8


async def finish_erasing(session: OwnedSegments) -> None:
    """Destroy the contents that are to be erased, in every object that holds them. Errors: `LeaseLost`,
    `CorruptJournal`, those of the object store; the work is finished later then.
    """
    erasing, keys = session.erasing, session.keys
    session.destroyed += 1
    found = await session.objects.list(f"{keys.folder}/")
    # All of them are read: which objects hold a row is in no index, and erasing is rare.
    holders = [info for info in found if commit_of_key(info.key) is not None]
    await side_by_side([partial(_erase_in, session, info, frozenset(erasing)) for info in holders])
    windows = [info.key for info in found if info.key.startswith(keys.windows)]
    async with session.head_lock:
        # Only the head may still hold them.
        # Commits may have added pairs meanwhile; those are for the next round.
        session.erasing = tuple(pair for pair in session.erasing if pair not in set(erasing))
        # The head that no longer lists them says that they are destroyed, so it comes last.
        await session.write_head(fresh=True)
    current = None if session.head.window is None else keys.window(session.head.window)
    # Also those that are still being put: a late one is refused, since the object below it is gone.
    await delete_all(session.objects, [key for key in windows if key != current])


async def _erase_in(session: OwnedSegments, info: ObjectInfo, erasing: frozenset[tuple[str, int]]) -> None:
    key, first = info.key, commit_of_key(info.key) or 0
    kind = "chunk" if key.startswith(session.keys.chunks) else "segment"
    for _ in range(_TRIES_MAX):
        found = await find(session.objects, key)
        if found is None:
            return
        header, rows = read_object(found.body, kind, session.lease.session_id, key)
        generation = header.get("generation")
        # We are fenced and do not know it yet. Overwriting would undo what the next owner has stored.
        if isinstance(generation, int) and generation > session.lease.generation:
            return  # A later owner's, who knows what is to be erased. It may also be of a new session of that name.
        if kind == "chunk" and first > session.chunked:
            body = _empty_chunk(session, first)  # Even if it is empty: a chunk for it may be on its way.
        elif (remaining := without(rows, erasing)) != rows:
            # Not to be taken for a fence, which would stay for ever.
            body = pack(header if remaining or kind == "chunk" else {**header, "emptied": True}, remaining)
        else:
            return
        # Somebody has replaced it between our get and put: look again.
        with suppress(PreconditionFailed):
            await session.objects.put(key, body, Update(found.version))
            return


# Merging segments into chunks, so that reading a whole history takes few requests.
#
# First the chunk is put, then the next head names it, then the segments are removed. No turn waits for any of that: it
# goes on beside turns, and while the session is released.
#
# A chunk that arrives late must not bring back contents that were destroyed meanwhile, by this owner or by the next. So
# an empty one is put first, then the head proves that no other owner has come, and then the chunk replaces the first.
# Whoever destroys contents later replaces what lies there, and with it the condition of that put.
#
# After a crash in between, a chunk that no head names is replaced by the next one that begins there; leftover segments
# are not read, and are removed later. Fences stay for ever, and so do large segments, whose copy would cost too much.

SEGMENTS_MERGED = 128
"""Segments that become one chunk."""
_UNMERGED_BYTES = 128 * 1024
"""Segments of at least this size are not merged."""
_AT_ONCE = 8
"""Concurrent requests for a merge; few, because commits have priority."""
_MERGES_AT_ONCE = 4
"""Sessions of a store that are merged at the same time."""


def merge_due(session: OwnedSegments) -> bool:
    """True if there are enough segments for a chunk, or merged segments that are not removed yet."""
    return session.head_known and (session.removed < session.head.merged or _chunk_due(session))


def _chunk_due(session: OwnedSegments) -> bool:
    """False while contents are to be destroyed, which a chunk would copy, and while no head names the last chunk."""
    head = session.head
    enough = session.chunked == head.merged and head.commit - head.merged >= SEGMENTS_MERGED
    return enough and session.head_known and not session.erasing


async def merge(session: OwnedSegments) -> None:
    """Remove segments that are in chunks, and make one chunk. Errors: `LeaseLost`, `CorruptJournal`, the object
    store's.
    """
    await _remove_merged(session)
    if not _chunk_due(session):
        return
    first, destroyed = session.head.merged + 1, session.destroyed
    try:
        segments = await session.reader.segments(range(first, first + SEGMENTS_MERGED), _AT_ONCE)
    except Changed as change:
        await session.prove()
        raise session.missing(change) from change
    # Read and put again they would cost traffic, and save one request each.
    unmerged = [segment.commit for segment in segments if segment.size_bytes >= _UNMERGED_BYTES]
    # Named, so that `_remove_merged` leaves them alone: a fence must lie under its own key to refuse a late put.
    fences = [segment.commit for segment in segments if segment.fence]
    header = {**_chunk_header(session, first, segments[-1].commit), "kept": unmerged, "fences": fences}
    rows = [row for segment in segments if segment.commit not in unmerged for row in segment.rows]
    key, body = session.keys.chunk(first), await packed_aside(header, rows)
    with suppress(AlreadyExists):  # Then no head names it: its writer died before, or was cut off.
        await session.objects.put(key, _empty_chunk(session, first), Create())
    below = await find(session.objects, key)
    # Between the empty chunk and the full one: an owner that comes after this proof finds the empty one and replaces
    # it, so that our put below is refused.
    await session.prove()
    # `segments` were read before contents were destroyed: the chunk would bring them back.
    if below is None or session.destroyed != destroyed:
        return
    with suppress(PreconditionFailed):  # Another owner has come, or contents were destroyed.
        await session.objects.put(key, body, Update(below.version))
        # Asked again, since the put has let an erasure through. Unnamed, the chunk counts for nothing.
        if session.destroyed == destroyed:
            session.chunked = segments[-1].commit


def _empty_chunk(session: OwnedSegments, first: int) -> bytes:
    """A chunk that ends before it begins. No two are equal, since versions may be checksums."""
    return pack({**_chunk_header(session, first, first - 1), "emptied": session.destroyed}, ())


def _chunk_header(session: OwnedSegments, first: int, last: int) -> dict[str, object]:
    header: dict[str, object] = {"kind": "chunk", "session": session.lease.session_id}
    return {**header, "generation": session.lease.generation, "first": first, "last": last}


async def _remove_merged(session: OwnedSegments) -> None:
    """Remove segments that are in chunks. Removing one that is gone already costs nothing."""
    head = session.head
    if session.removed >= head.merged:
        return
    staying: set[int] = set()
    first = session.removed + 1
    # One chunk in practice. More only after a process that died between heads and removals.
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
    # The listing begins where the last one ended, or a long session would list all its fences each time.
    start = session.keys.segment(session.removed) if session.removed else None
    listed = await session.objects.list(session.keys.segments, start)
    numbers = {commit_of_key(info.key): info.key for info in listed}
    gone = [key for number, key in numbers.items() if number and number <= head.merged and number not in staying]
    await delete_all(session.objects, gone, _AT_ONCE)
    session.removed = head.merged
