"""One owned session: its commits and its head.

Commits are put one after the other, as segments. They never wait for the head, which is replaced concurrently. A commit
that takes the session or gives it up replaces the head instead, and so do small ones between the two: their rows, the
tail, are in the head alone until the next segment has them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Unpack

import anyio
from msgspec.structs import replace

from repertory.backends.ports import Batch, Condition, Create, Lease, ObjectStore, Overwrite, Position, Update
from repertory.backends.sessions.journal.format import HeadChanges, HeadObject, SessionKeys, pack, pack_head
from repertory.backends.sessions.journal.pending_work import SessionDebts
from repertory.backends.sessions.journal.reading import (
    Changed,
    SessionReader,
    StoredHead,
    Window,
    after,
    seqs_after,
    tail_of,
    without,
    without_forgotten,
)
from repertory.backends.sessions.requests import delete_all, find, side_by_side
from repertory.backends.sessions.table import (
    in_thread_when_large,
    is_current,
    lost,
    parts_by_agent,
    position_after,
    refuse_gaps,
)
from repertory.core.journal.codec import at_of
from repertory.core.journal.rows import Row, size_of
from repertory.core.pending_work import DueTime
from repertory.errors import (
    AlreadyExists,
    CorruptJournal,
    LeaseLost,
    PreconditionFailed,
    StoreUnavailable,
)

INLINE_BYTES_MAX = 16 * 1024
"""Up to this size, the rows that opening needs are stored in the head itself, which saves a request."""
SEGMENTS_MIN, SEGMENTS_MAX = 16, 128
"""The fewest and the most commits between two updates of the head. They bound what opening after a crash reads."""
WINDOW_SHARE = 8
"""Between these two: update when this many times the window's bytes have been committed since the last update."""
TAIL_BYTES = 12 * 1024
"""A tail of this size becomes a segment, beside the turn that follows."""
_TRIES_MAX = 8


class OwnedSegments:
    """A session whose lease this process holds. After `LeaseLost` it must not be used any more; after a release, only
    `append` of a batch that takes it.
    """

    def __init__(
        self,
        objects: ObjectStore,
        keys: SessionKeys,
        lease: Lease,
        head: HeadObject,
        wall: Callable[[], float] | None = None,
    ) -> None:
        """`head` names this owner; `begin` puts it."""
        self.lease = lease
        self.keys = keys
        self.objects = objects
        self.reader = SessionReader(objects, keys, lease.session_id)
        self.head = head
        self.window = Window()
        self.commit = head.commit
        """The last commit that is known to be stored."""
        self.erasing = head.erasing
        """Rows whose content must be destroyed and may still be stored."""
        self.lost: LeaseLost | None = None
        self.released = False
        """True while the session is released, and known as its head has it."""
        self.tail: list[Row] = []
        """Rows that are in the head alone."""
        self.brief = False
        """True if the lease was taken by a commit, and is soon given up by one."""
        self._beside: tuple[int, str] | None = None
        """The last commit that a window beside the head has, and its name."""
        self._leaving = False
        """True if a release has failed, and may be tried again."""
        self.signed_at = anyio.current_time()
        """The time at which the last request that proved the lease was sent, on the event loop's clock."""
        self._wanted = False
        self.marks: Callable[[Mapping[str, str]], Mapping[str, str]] = dict
        """Makes the marks for the next head from those of the last one."""
        # Of the head as last put or read: every put of the head is conditional on it.
        self._version = ""
        self._seqs = dict(head.seqs)
        self._created_at = head.created_at
        self._doubtful = False
        """True if a put of the head had no answer: it may have been stored, or may still be."""
        self._unsure = False
        """True if a put of a segment had no answer: it may have been stored, or may still be."""
        self._grown_bytes = 0
        self._window_bytes = 0
        # Removed late, by `forget_windows`: a reader may just have read a head that still names one.
        self._stale_windows: set[str] = set()
        self._windows = 0
        """The number of windows put beside the head."""
        self.chunked = head.merged
        """Commits up to this one are in chunks. The next head names a new one."""
        self.removed = head.tidied
        """Segments up to this one were merged and then removed."""
        self.destroyed = 0
        """Times that this owner has begun to destroy contents. None that was read before may be put again."""
        self.debts = SessionDebts(objects, keys, lease.session_id, lease.generation, wall)
        self.tidy = True
        """True if heads and chunks can be made. False after damage, which is left unchanged."""
        # Always taken in this order: tidying, committing, head_lock. `renew` takes the last one alone, so that a lease
        # is renewed even while a commit waits for the bucket.
        self.tidying = anyio.Lock()
        """Held by maintenance while it replaces heads and destroys contents."""
        self.committing = anyio.Lock()
        self.head_lock = anyio.Lock()

    # Commits.

    async def append(self, batches: Sequence[Batch]) -> list[Position | LeaseLost]:
        """Commit the batches that follow directly on the stored rows; refuse the others, batch by batch. One put in
        all.

        Errors: those of the object store; it is then unknown whether anything is stored.
        """
        async with self.committing:
            pending_work: list[str] = []
            # Each turn of the loop that does not return has learned something: which put of ours was stored after all.
            for _ in range(_TRIES_MAX):
                # A release sets `lost` too, so that a commit that was queued behind it is refused. Only a batch that
                # takes the session again may pass.
                if self.lost is not None and not (self.released and any(batch.take for batch in batches)):
                    return [self.lost for _ in batches]
                # Again in each try: a put without an answer that is found stored has moved the last numbers, and then
                # the same rows either follow, or are recognized as gaps.
                outcomes, rows, erasing = self._placed(batches)
                if not any(isinstance(outcome, Position) for outcome in outcomes):
                    return outcomes
                dues = _accepted(batches, outcomes)
                leaves = batches[-1].release and isinstance(outcomes[-1], Position)
                try:
                    if self._doubtful:  # After another put, the lost one is stored by now, or never will be.
                        await (self._take() if self.released else self.renew(fresh=True))
                        continue
                    # A batch without rows asks "is it still mine?" and must not be answered from memory.
                    if not rows and not erasing and not leaves and not self.released:
                        await self.prove()
                    # Markers before the rows: a kill between the two leaves a marker too many, which the next owner
                    # removes. The other order would leave a prompt that nobody wakes.
                    pending_work += await self.debts.owe(dues)
                    # Not while erasing: the head would have the contents as well. Not while a segment put had no
                    # answer: a head that says "nothing follows" would hide the segment if that arrives late.
                    in_head = (self.brief or self.released or leaves) and not (erasing or self._unsure)
                    if in_head and await self._commit_in_head(rows, leaves=leaves):
                        if leaves and isinstance(last := outcomes[-1], Position):
                            # Only a commit in the head gives up; otherwise the caller sees `released` unset and
                            # releases by itself.
                            outcomes[-1] = replace(last, released=True)
                    elif self.released:
                        await self._take()
                        continue
                    elif (rows or erasing) and not await self._put_segment(rows, erasing):
                        # False: an earlier put of ours has won. Its rows are known now, so look again at what is left
                        # to commit.
                        continue
                except LeaseLost as error:
                    await self.debts.take_back(pending_work)
                    return [error for _ in batches]
                await self.debts.settle(dues)
                return outcomes
            raise StoreUnavailable(
                "the segment could not be placed", session=self.lease.session_id, commit=self.commit + 1
            )

    def _placed(
        self, batches: Sequence[Batch]
    ) -> tuple[list[Position | LeaseLost], list[Row], tuple[tuple[str, int], ...]]:
        outcomes: list[Position | LeaseLost] = []
        placed: list[Row] = []
        erasing: list[tuple[str, int]] = []
        # Not updated in place: nothing counts as stored before the put has succeeded.
        seqs = self._seqs
        for batch in batches:
            gaps = (
                refuse_gaps(self.lease.session_id, part.rows, seqs.get(agent_id, 0))
                for agent_id, part in parts_by_agent(batch).items()
            )
            refused = next((gap for gap in gaps if gap is not None), None)
            if refused is not None:
                outcomes.append(refused)
                continue
            for agent_id in {row.agent_id for row in batch.rows}:
                if (agent_id, 0) in self.erasing or (agent_id, 0) in erasing:
                    text = "the agent is forgotten, which is not done yet: call again later"
                    raise StoreUnavailable(text, session=self.lease.session_id, agent=agent_id)
            seqs = seqs_after(seqs, batch.rows)
            placed += batch.rows
            erasing += [(agent_id, 0) for agent_id in batch.forget if agent_id in seqs]
            seqs = without_forgotten(seqs, erasing)
            # Numbers that do not exist are left out: a row of that number which comes later must keep its content.
            erasing += [pair for pair in batch.erase if 0 < pair[1] <= seqs.get(pair[0], 0)]
            outcomes.append(position_after(batch, seqs))
        return outcomes, placed, tuple(erasing)

    async def _put_segment(self, rows: Sequence[Row], erasing: tuple[tuple[str, int], ...]) -> bool:
        """Put the next segment. False when an earlier put of ours turns out to have stored another one; `commit`
        includes it now.
        """
        number = self.commit + 1
        # A segment always begins with the tail, whose rows are in the head alone: replacing the head by one without
        # them would lose them.
        rows = without([*self.tail, *rows], set(erasing))
        header = self._segment_header(number, erasing)
        marks = self.marks(self.head.marks)
        # Only of the agents with rows here, so that segments stay as small as their rows.
        own = {
            agent_id: marks[agent_id] for agent_id in dict.fromkeys(row.agent_id for row in rows) if agent_id in marks
        }
        body = await packed_aside({**header, "marks": own} if own else header, rows)
        key = self.keys.segment(number)
        sent_at = anyio.current_time()
        # Set before the request: a cancellation or a lost connection leaves no other trace that a put is on its way.
        self._unsure, was_unsure = True, self._unsure
        try:
            await self.objects.put(key, body, Create())
        except AlreadyExists as error:
            return await self._look_at_winner(number, (rows, erasing), was_unsure, error)
        self._stored(number, rows, erasing, len(body), sent_at)
        self.head = replace(self.head, marks={**self.head.marks, **own})
        return True

    async def _look_at_winner(
        self,
        number: int,
        wanted: tuple[Sequence[Row], tuple[tuple[str, int], ...]],
        was_unsure: bool,
        error: AlreadyExists,
    ) -> bool:
        """Find out who put this segment: an earlier put of ours that had no answer, or an owner that took the session
        over.

        Errors: `LeaseLost`, `CorruptJournal`, those of the object store.
        """
        # `AlreadyExists` is an answer: this put has stored nothing, and is in doubt no longer.
        self._unsure = was_unsure
        key = self.keys.segment(number)
        found = await find(self.objects, key)
        # Create was refused and get finds nothing: an owner that erases or deletes is at work, or the bucket lags.
        # Never guess which: trying again is safe.
        if found is None:
            raise StoreUnavailable(
                "the segment is there, and is not", session=self.lease.session_id, key=key
            ) from error
        segment = self.reader.segment(number, found)
        # Our own put, whose answer was lost and which the client or we have sent again.
        if is_current(segment, self.lease):
            self._stored(number, segment.rows, segment.erasing, len(found.body), self.signed_at)
            self.head = replace(self.head, marks={**self.head.marks, **segment.marks})
            return (segment.rows, segment.erasing) == (list(wanted[0]), wanted[1])
        if segment.generation > self.lease.generation:
            raise self.lose()
        # Same key, lower generation: a fenced owner cannot have put it behind our head. Either we are fenced ourselves
        # (`prove` raises then), or somebody else writes into the bucket.
        await self.prove()
        raise CorruptJournal("a segment that no owner can have put", session=self.lease.session_id, key=key)

    def _stored(
        self, number: int, rows: Sequence[Row], erasing: tuple[tuple[str, int], ...], size_bytes: int, sent_at: float
    ) -> None:
        self.commit = number
        self.tail = after(self.tail, seqs_after({}, rows))
        # The tail's rows are in the segment, but they are already part of the window.
        rows = after(rows, self._seqs)
        self.window.add(rows)
        self.window.erase(set(erasing))
        self.erasing += erasing
        self.signed_at = max(self.signed_at, sent_at)
        self._unsure = False
        self._seqs = seqs_after(self._seqs, rows)
        self._drop_forgotten()
        self._count(rows, size_bytes)

    def _drop_forgotten(self) -> None:
        """Drop what is known of the ends of forgotten agents."""
        if self.erasing:
            self._seqs, self.tail = without_forgotten(self._seqs, self.erasing), without(self.tail, set(self.erasing))

    def _count(self, rows: Sequence[Row], size_bytes: int) -> None:
        self._grown_bytes += size_bytes
        if not self._created_at:
            # An erased row has no time any more.
            self._created_at = next((at_of(row.body) or 0.0 for row in rows if not row.erased), 0.0)

    def _segment_header(self, number: int, erasing: tuple[tuple[str, int], ...] = ()) -> dict[str, object]:
        lease = self.lease
        header: dict[str, object] = {"kind": "segment", "session": lease.session_id, "commit": number}
        header |= {"owner": lease.owner, "generation": lease.generation}
        return {**header, "erasing": erasing} if erasing else header

    async def prove(self) -> None:
        """Read from the store that no other owner has come. Errors: `LeaseLost`, those of the object store."""
        stored = await self.reader.head()
        head = None if stored is None else stored.head
        # A head that we have released ourselves names nobody, and is still ours: only its generation counts then.
        if head is None or head.deleted or not self._ours(replace(head, owner=head.owner or self.lease.owner)):
            raise self.lose()

    def lose(self) -> LeaseLost:
        if self.lost is None:
            self.lost = lost(self.lease)
        return self.lost

    # Becoming the owner.

    async def begin(self, before: StoredHead | None) -> None:
        """Put the head that names this owner, and read what is stored. `before` is the head that was there.

        If the owner before did not release the session, a fence keeps its commits out. Errors: `AlreadyExists`,
        `PreconditionFailed`, `LeaseLost` (another owner was faster), `CorruptJournal`, and those of the object store.
        """
        # Saves the list request of the first commit with pending work. After a kill the head's word means nothing.
        if before is None or (before.head.orderly and not before.head.pending_work):
            self.debts.none_stored()
        # The former owner lived to the end, so none of its claimed work has killed it: claims count from 0 again.
        if before is not None and before.head.owner is None:
            self.debts.released_edition = before.head.edition
        rows = before.rows if before is not None and not before.head.deleted else ()
        stored = StoredHead(self.head, [*rows], "")
        body = pack_head(self.head, rows)
        condition: Condition = Create() if before is None else Update(before.version)

        async def put_head() -> Sequence[Row]:
            self._version = await self.objects.put(self.keys.head, body, condition)
            return rows

        calls = [put_head]
        if self.head.window is not None:
            calls.append(partial(self._window_of, stored))
        # Side by side: opening waits for one request, not two. If the head is refused, the window was read in vain.
        self._know(stored, (await side_by_side(calls))[-1])
        # Catch up first, then fence: the fence stands behind all that the former owner has committed, so it takes the
        # key of its next commit. One that it commits in between is met by `_fence`, which goes one number further.
        if before is not None and not before.head.orderly:
            try:
                await self._catch_up()
                await self._fence()
            except Changed as change:
                await self.prove()
                raise self.missing(change) from change

    async def _take(self) -> None:
        """Put the head of the release again, with the owner. Errors: `LeaseLost`, and those of the object store."""
        async with self.head_lock:
            # A head that named a window beside it goes on to name it: rewriting a large one would cost a second put.
            rows = self.window.rows() if self.head.window is None else ()
            await self._put_head(replace(self.head, owner=self.lease.owner, orderly=False), _with_tail(self.tail, rows))

    async def _commit_in_head(self, rows: Sequence[Row], *, leaves: bool) -> bool:
        """Commit by a head that has these rows as well, which takes the session or, with `leaves`, gives it up. False
        if the head would become too large: nothing has changed then.

        Errors: `LeaseLost`, and those of the object store; it is unknown then whether that is stored.
        """
        if leaves:
            # Before the head says that nobody owns the session: until then no dispatcher may claim its work.
            await self.debts.owe_late(leaving=True)
        pending_work = leaves and await self.debts.may_be_stored()
        async with self.head_lock:
            tail, window, name = [*self.tail, *rows], self.window, None
            held: Sequence[Row] = tail
            # `fold` has put the window beside the head for exactly this commit, so the head only needs the tail.
            if self._beside is not None and self._beside[0] == self.commit:
                name = self._beside[1]
            else:
                # A copy: if the head turns out too large, or is refused, nothing has changed.
                window = Window(window.rows())
                window.add(rows)
                held = _with_tail(tail, window.rows())
            # A rewind needs rows from before the window; they are read by `write_head`, which is not on a call's path.
            if window.missing:
                return False
            head = replace(
                self.head,
                owner=None if leaves else self.lease.owner,
                orderly=leaves,
                commit=self.commit,
                window=name,
                seqs=seqs_after(self._seqs, rows),
                tail=first_seqs(tail),
                erasing=self.erasing,
                created_at=self._created_at or next((at_of(row.body) or 0.0 for row in rows if not row.erased), 0.0),
                updated_at=Window(rows).updated_at(self.head.updated_at),
                pending_work=pending_work,
            )
            # Looked at first, because packing only to find out is work on the event loop.
            large = size_of(held) > 8 * INLINE_BYTES_MAX  # More than what is packed ever shrinks to.
            if (rows or leaves) and (large or len(pack_head(head, held)) > INLINE_BYTES_MAX):
                return False
            if not await self._put_head(head, held):
                return False
            if name is not None:
                window.add(rows)
            self.window, self.tail, self._seqs = window, tail, {**head.seqs}
            self._created_at = head.created_at
            self.released = leaves
            # Queued commits of this lease come too late from now on.
            if leaves:
                self.lose()
        return True

    async def _put_head(self, head: HeadObject, rows: Sequence[Row]) -> bool:
        """Replace the head. The caller holds `head_lock`. False if an earlier put of ours turns out to have replaced
        it: what is known of the session is as of that one now. Errors: `LeaseLost`, and those of the object store.
        """
        # A merge ends at any time beside this; its progress becomes true for readers with whichever head comes next.
        merged, tidied = max(head.merged, self.chunked), max(head.tidied, self.removed)
        edition = self.head.edition + 1
        head = replace(head, edition=edition, merged=merged, tidied=tidied, marks=self.marks(head.marks))
        sent_at = anyio.current_time()
        try:
            # The condition is the fence of heads: another owner's head has another version.
            self._version = await self.objects.put(self.keys.head, pack_head(head, rows), Update(self._version))
        except PreconditionFailed:
            return await self._reread_head()
        except BaseException:
            # Also a cancellation: the request may have reached the bucket. From then on a commit first puts a head,
            # which settles which of the two is stored.
            self._doubtful = True
            raise
        self._doubtful = False
        if self.head.window not in (None, head.window):
            self._stale_windows.add(self.head.window or "")
        self._stale_windows.discard(head.window or "")
        self._owned_again()
        self.head, self.signed_at = head, max(self.signed_at, sent_at)
        return True

    def _owned_again(self) -> None:
        if self.released:
            self.released, self.lost, self.brief = False, None, True
            self.debts.released_edition = self.head.edition

    def _know(self, stored: StoredHead, rows: Sequence[Row]) -> None:
        """Replace all that is known of the session by this head, with these rows."""
        self.head = stored.head
        self.window = Window()
        self.window.add(rows)
        self.window.erase(set(self.erasing))
        self.tail = without(tail_of(stored), set(self.erasing))
        self._seqs = without_forgotten(stored.head.seqs, self.erasing)
        self._beside = None if stored.head.window is None else (stored.head.commit, stored.head.window)

    async def _window_of(self, stored: StoredHead) -> Sequence[Row]:
        try:
            return await self.reader.window(stored)
        except Changed as change:
            raise self.missing(change) from change

    async def _catch_up(self) -> None:
        """Read what the owner before committed after it last replaced the head."""
        segments = await self.reader.tail(self.commit)
        # Somebody took the session over while we were reading.
        if any(segment.generation > self.lease.generation for segment in segments):
            raise self.lose()
        self.window, self.commit, self.erasing = self.reader.grown(self.window, self.head, segments)
        self._seqs |= self.window.seqs
        marks = {agent_id: mark for segment in segments for agent_id, mark in segment.marks.items()}
        self.head = replace(self.head, marks={**self.head.marks, **marks})
        # The former owner's first segment repeats its tail; what a segment has is in the head alone no more.
        self.tail = after(self.tail, seqs_after({}, (row for segment in segments for row in segment.rows)))
        self._drop_forgotten()
        for segment in segments:
            self._count(segment.rows, segment.size_bytes)

    def missing(self, change: Changed) -> CorruptJournal:
        return CorruptJournal("an object is missing", session=self.lease.session_id, key=str(change))

    async def _fence(self) -> None:
        """Put an empty segment under the key of the former owner's next commit."""
        # Each round either puts the fence or learns one more commit of the former owner, who can have only one put on
        # its way for each answer that it got: in practice this is one round, seldom two.
        while True:
            number = self.commit + 1
            body = pack(self._segment_header(number), ())
            try:
                await self.objects.put(self.keys.segment(number), body, Create())
            except AlreadyExists:
                key = self.keys.segment(number)
                segment = self.reader.segment(number, await find(self.objects, key))
                if segment.generation > self.lease.generation:
                    raise self.lose() from None
                self._stored(number, segment.rows, segment.erasing, segment.size_bytes, self.signed_at)
                if segment.fence and segment.generation == self.lease.generation:
                    return
            else:
                self._stored(number, (), (), len(body), anyio.current_time())
                return

    # The head.

    @property
    def head_due(self) -> bool:
        """True if opening after a crash would have to read a lot."""
        # Two bounds, since a put of the head costs its window: with a small one it may come every 16 commits, with a
        # large one it waits until it is paid for by what was committed, but never longer than 128.
        count = self.commit - self.head.commit
        return count >= SEGMENTS_MAX or (
            count >= SEGMENTS_MIN and self._grown_bytes >= WINDOW_SHARE * max(self._window_bytes, 1)
        )

    @property
    def fold_due(self) -> bool:
        """True if the tail is to become a segment, so that heads stay small."""
        size_bytes = size_of(self.tail) + 64 * len(self.tail)  # With links and salts.
        # Only between a commit that takes and one that gives up are rows kept in the head.
        return self.brief and not self.released and size_bytes >= TAIL_BYTES

    async def fold(self) -> None:
        """Put the tail as a segment, and beside the head what opening needs if that is large. The next head names both.
        Errors: those of `append`.
        """
        # A cancelled put would be one without an answer, after which the next commit needs a request more.
        with anyio.CancelScope(shield=True):
            async with self.committing:
                if self.lost is not None or self._unsure or self._doubtful or not self.fold_due:
                    return
                header: dict[str, object] = {"kind": "window", "session": self.lease.session_id}
                body = await packed_aside({**header, "commit": self.commit + 1}, self.window.rows())
                calls: list[Callable[[], Awaitable[object]]] = [partial(self._put_segment, (), ())]
                # From 2 KB on the window leaves the head: every head put of a brief owner would carry it along.
                if len(body) > INLINE_BYTES_MAX / 8 and not self.window.missing:
                    calls.append(partial(self._put_window, body))
                *_, window = await side_by_side(calls)
                self._beside = (self.commit, window) if isinstance(window, str) else None

    async def renew(self, *, fresh: bool = False) -> None:
        """Renew the lease; with `fresh`, bring the head up to date. Errors: `LeaseLost`, and those of the objects."""
        async with self.head_lock:
            await self.write_head(fresh=fresh or self.head.window is None)

    def note_request(self) -> None:
        self._wanted = True

    def take_request(self) -> bool:
        """True if another process has asked for the session since the last call."""
        # Read and reset, or an idle owner would be asked again for a session that it has just given up.
        wanted, self._wanted = self._wanted, False
        return wanted

    async def release(self) -> bool:
        """Release the session with an up-to-date head, so that the next opening is cheap. Does nothing when the lease
        is lost. True if `acquire_again` may follow: the head is released, and no put of this owner can still arrive.

        Errors: those of the object store; nothing is committed any more, and the release may be tried again.
        """
        # Both locks: a commit that is under way ends first, and its rows are in the head that gives up.
        async with self.committing, self.head_lock:
            if self.lost is not None and not self._leaving:
                return False
            # `write_head` refuses a lost lease, and an earlier try of this release has set it.
            self.lost, self._leaving = None, True
            moved = (self.head.commit, self.head.erasing) != (self.commit, self.erasing)
            fresh = self.head.window is None or moved
            # "Nothing follows" is true only if no segment of ours can still arrive. The next owner puts a fence
            # otherwise.
            orderly = not self._unsure
            try:
                await self.debts.owe_late(leaving=True)
                pending_work = await self.debts.may_be_stored()
                await self.write_head(fresh=fresh, owner=None, orderly=orderly, pending_work=pending_work)
                self._leaving, self.released = False, orderly
            except LeaseLost:
                self._leaving = False
                return False
            finally:
                self.lose()  # Whatever waits here comes too late.
        return orderly

    async def write_tombstone(self) -> None:
        """Mark the session as deleted in its head. Errors: `LeaseLost`, and those of the object store."""
        async with self.committing, self.head_lock:
            changes: HeadChanges = {"owner": None, "commit": self.commit, "orderly": True, "deleted": True}
            # The commit number stays, and so do generation and edition: a new session of this name must not use the
            # keys of a former owner's late put again.
            changes |= {"window": None, "seqs": {}, "erasing": (), "created_at": 0.0, "updated_at": 0.0}
            changes |= {"pending_work": False, "tail": {}}
            self.head, self.marks = replace(self.head, base=0, merged=0, tidied=0, marks={}), dict
            self.chunked = self.removed = 0
            # A merge or a window of before must not be put any more: it would bring the contents back.
            self.destroyed += 1
            # A release or renewal of ours, sent before, may still have been stored first.
            while not await self._put_head(replace(self.head, **changes), ()):
                self.head = replace(self.head, base=0, merged=0, tidied=0)  # Another put of ours has come before.
            self.lose()

    async def write_head(self, *, fresh: bool, **changes: Unpack[HeadChanges]) -> None:
        """Replace the head; with `fresh`, also bring it up to date. The caller holds `head_lock`.

        Errors: `LeaseLost`, and those of the object store.
        """
        if self.lost is not None:
            raise self.lost
        for _ in range(_TRIES_MAX):
            rows: Sequence[Row] = ()
            # A head that holds rows cannot be put without them. One that names its window beside it can: then a renewal
            # is a put of a few hundred bytes, and that is what idle sessions pay every 2.5 s.
            if fresh or self.head.window is None or self.head.tail:
                await self._complete()
                rows = await self._write_window(changes)
            if await self._put_head(replace(self.head, **changes), rows):
                window = self.head.window
                self._beside = None if window is None else (self.head.commit, window)
                return
        raise StoreUnavailable("the head could not be replaced", session=self.lease.session_id)

    async def _write_window(self, changes: HeadChanges) -> Sequence[Row]:
        """The rows to store in the head: all that opening needs, or the tail alone, with the others put beside it."""
        # All taken in one step, before anything is awaited: a commit goes on beside this.
        rows, tail, changes["commit"] = self.window.rows(), self.tail, self.commit
        changes["seqs"], changes["erasing"], changes["tail"] = dict(self._seqs), self.erasing, first_seqs(tail)
        changes["created_at"] = self._created_at
        changes["updated_at"] = self.window.updated_at(self.head.updated_at)
        # Subtracted rather than set to 0: commits that come while packing runs in its thread count for the next head.
        grown_bytes = self._grown_bytes
        header: dict[str, object] = {"kind": "window", "session": self.lease.session_id, "commit": self.commit}
        body = await packed_aside(header, rows)
        self._window_bytes = len(body)
        self._grown_bytes -= grown_bytes
        if len(body) <= INLINE_BYTES_MAX:
            changes["window"] = None
            return _with_tail(tail, rows)
        changes["window"] = await self._put_window(body)
        return tail

    async def _put_window(self, body: bytes) -> str:
        """Put a window beside the head; its name. It replaces an empty object, which was there before the head proved
        the lease. An owner that destroys contents later removes that object, so a late window is refused.
        """
        self._windows += 1  # Never reuse a name: a head whose response was lost may name it.
        name = f"{self.lease.generation}-{self._windows}"
        self._stale_windows.add(name)  # until the head names it
        key, empty = self.keys.window(name), pack({"kind": "window", "session": self.lease.session_id}, ())
        below = await self.objects.put(key, empty, Overwrite())
        await self.prove()
        try:
            await self.objects.put(key, body, Update(below))
        except PreconditionFailed as error:
            raise StoreUnavailable("a window could not be put", session=self.lease.session_id, key=key) from error
        return name

    async def _reread_head(self) -> bool:
        """False: the head is one of an earlier put of ours, and what is known of the session is as of that one now.
        Errors: `LeaseLost`, and those of the object store.
        """
        stored = await self.reader.head()
        # Not released but lost: nobody may take it again under this lease.
        if stored is None or not self._ours(stored.head):
            self.released = False
            raise self.lose()
        self._doubtful = False
        if self.head.window is not None and stored.head.window != self.head.window:
            self._stale_windows.add(self.head.window)
        # The lost put was a commit in the head: same commit number, more rows.
        if stored.head.commit == self.commit and stored.head.seqs != self._seqs:
            rows = await self._window_of(stored)
            # Asked again, since reading the window has let a commit of ours through.
            if stored.head.commit == self.commit:
                self._know(stored, rows)
        self._version = stored.version
        self._owned_again()
        self.head = stored.head
        return False

    def _ours(self, head: HeadObject) -> bool:
        return is_current(head, self.lease)

    async def _complete(self) -> None:
        """Read the rows before the window that are needed again after a rewind to an earlier position."""
        # A loop: a commit may rewind further while rows are read.
        while self.window.missing:
            for agent_id in self.window.missing:
                first, last = self.window.gap(agent_id)
                rows = await self.reader.row_range(agent_id, last, first)
                if not rows:
                    fields = {"session": self.lease.session_id, "agent": agent_id, "seq": first}
                    raise CorruptJournal("rows that opening needs are missing", **fields)
                self.window.fill(agent_id, rows)

    async def load(self, agent_id: str) -> list[Row]:
        """The rows that opening an agent needs; nearly always from memory."""
        await self._complete()
        return self.window.of(agent_id)

    @property
    def head_known(self) -> bool:
        """True if `head` is the one that is stored, as far as this owner can know."""
        return not self._doubtful and (self.lost is None or self.released)

    @property
    def stale_windows(self) -> set[str]:
        """Windows that no head names any more; none while it is not known which head is stored."""
        return self._stale_windows - {self.head.window, self._beside and self._beside[1]} if self.head_known else set()

    async def forget_windows(self) -> None:
        """Remove windows that the head no longer names. Errors: those of the object store."""
        # Deleted outside of the lock: commits must not wait for it. Names are never used twice, so none comes back.
        async with self.head_lock:  # A window that is being put is not named yet.
            names = self.stale_windows
        if names:
            await delete_all(self.objects, [self.keys.window(name) for name in names])
            self._stale_windows -= names


def first_seqs(rows: Sequence[Row]) -> dict[str, int]:
    """Agent id to the first of its rows among these."""
    # Reversed, so that the first row of each agent is the one that stays.
    return {row.agent_id: row.seq for row in reversed(rows)}


def _with_tail(tail: Sequence[Row], window: Sequence[Row]) -> list[Row]:
    """The rows of a window, and those of the tail that are older."""
    first = first_seqs(window)
    return [*(row for row in tail if row.seq < first.get(row.agent_id, row.seq + 1)), *window]


def _accepted(batches: Sequence[Batch], outcomes: Sequence[Position | LeaseLost]) -> dict[str, DueTime]:
    """The due times that the accepted batches state, the last of each agent. A forgotten one has nothing pending."""
    accepted = [batch for batch, outcome in zip(batches, outcomes, strict=True) if isinstance(outcome, Position)]
    gone = {agent_id: DueTime(agent_id=agent_id) for batch in accepted for agent_id in batch.forget}
    return gone | {batch.due.agent_id: batch.due for batch in accepted if batch.due is not None}


async def packed_aside(header: dict[str, object], rows: Sequence[Row]) -> bytes:
    """Packed rows; large ones are packed in a thread."""
    return await in_thread_when_large(sum(len(row.body) for row in rows), partial(pack, header, rows))
