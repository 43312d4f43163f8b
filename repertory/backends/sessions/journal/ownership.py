"""One owned session: its commits and its head.

Commits are put one after the other. They never wait for the head, which is replaced concurrently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Unpack

import anyio
from msgspec.structs import replace

from repertory.backends.ports import Batch, Condition, Create, Lease, ObjectStore, Overwrite, Position, Update
from repertory.backends.sessions.journal.format import HeadChanges, HeadObject, SessionKeys, pack, pack_head
from repertory.backends.sessions.journal.owed import SessionDebts
from repertory.backends.sessions.journal.reading import (
    Changed,
    Segment,
    SessionReader,
    StoredHead,
    Window,
    seqs_after,
    without,
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
from repertory.core.journal.rows import Row
from repertory.core.owed import DueTime
from repertory.errors import (
    AlreadyExists,
    CorruptJournal,
    LeaseLost,
    PreconditionFailed,
    RepertoryError,
    StoreUnavailable,
)

INLINE_BYTES_MAX = 16 * 1024
"""Up to this size, the rows that opening needs are stored in the head itself, which saves a request."""
SEGMENTS_MIN, SEGMENTS_MAX = 16, 128
"""The fewest and the most commits between two updates of the head. They bound what opening after a crash reads."""
WINDOW_SHARE = 8
"""Between these two: update when this many times the window's bytes have been committed since the last update."""
_TRIES_MAX = 8


class OwnedSegments:
    """A session whose lease this process holds. After `LeaseLost` it must not be used any more; after `release`, only
    `acquire_again`.
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
        self._leaving = False
        """True if a release has failed, and may be tried again."""
        self.signed_at = anyio.current_time()
        """When the last request that proved the lease was sent."""
        self._wanted = False
        self._version = ""
        self._seqs = dict(head.seqs)
        self._created_at = head.created_at
        self._unsure = False
        """True if a put of a segment had no answer: it may have been stored, or may still be."""
        self._grown_bytes = 0
        self._window_bytes = 0
        self._stale_windows: set[str] = set()
        self._windows = 0
        """How many windows were put beside the head."""
        self.gathered: dict[int, Segment] = {}
        """Segments that were read for the next chunk; none while contents are being destroyed."""
        self.debts = SessionDebts(objects, keys, lease.session_id, lease.generation, wall)
        self.tidy = True
        """True if heads and chunks can be made. False after damage, which is left unchanged."""
        self.committing = anyio.Lock()
        self.head_lock = anyio.Lock()

    # Commits.

    async def append(self, batches: Sequence[Batch]) -> list[Position | LeaseLost]:
        """Commit the batches that follow directly on the stored rows; refuse the others, batch by batch. One put in
        all.

        Errors: those of the object store; it is then unknown whether anything is stored.
        """
        async with self.committing:
            owed: list[str] = []
            for _ in range(_TRIES_MAX):
                if self.lost is not None:
                    return [self.lost for _ in batches]
                outcomes, rows, erasing = self._placed(batches)
                dues = _accepted(batches, outcomes)
                try:
                    if not rows and not erasing:
                        await self.prove()
                    owed += await self.debts.owe(dues)
                    if (rows or erasing) and not await self._put_segment(rows, erasing):
                        continue
                except LeaseLost as error:
                    await self.debts.take_back(owed)
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
            seqs = seqs_after(seqs, batch.rows)
            placed += batch.rows
            erasing += [pair for pair in batch.erase if 0 < pair[1] <= seqs.get(pair[0], 0)]
            outcomes.append(position_after(batch, seqs))
        return outcomes, placed, tuple(erasing)

    async def _put_segment(self, rows: Sequence[Row], erasing: tuple[tuple[str, int], ...]) -> bool:
        """Put the next segment. False when an earlier put of ours turns out to have stored another one; `commit`
        includes it now.
        """
        number = self.commit + 1
        rows = without(rows, set(erasing))
        body = await packed_aside(self._segment_header(number, erasing), rows)
        key = self.keys.segment(number)
        sent_at = anyio.current_time()
        self._unsure, was_unsure = True, self._unsure
        try:
            await self.objects.put(key, body, Create())
        except AlreadyExists as error:
            return await self._look_at_winner(number, body, was_unsure, error)
        self._stored(number, rows, erasing, len(body), sent_at)
        return True

    async def _look_at_winner(self, number: int, body: bytes, was_unsure: bool, error: AlreadyExists) -> bool:
        """Find out who put this segment: an earlier put of ours that had no answer, or an owner that took the session
        over.

        Errors: `LeaseLost`, `CorruptJournal`, those of the object store.
        """
        self._unsure = was_unsure
        key = self.keys.segment(number)
        found = await find(self.objects, key)
        if found is None:
            raise StoreUnavailable(
                "the segment is there, and is not", session=self.lease.session_id, key=key
            ) from error
        segment = self.reader.segment(number, found)
        if is_current(segment, self.lease):
            self._stored(number, segment.rows, segment.erasing, len(found.body), self.signed_at)
            return found.body == body
        if segment.generation > self.lease.generation:
            raise self.lose()
        await self.prove()
        raise CorruptJournal("a segment that no owner can have put", session=self.lease.session_id, key=key)

    def _stored(
        self, number: int, rows: Sequence[Row], erasing: tuple[tuple[str, int], ...], size_bytes: int, sent_at: float
    ) -> None:
        self.commit = number
        self.window.add(rows)
        self.window.erase(set(erasing))
        self.erasing += erasing
        self.signed_at = max(self.signed_at, sent_at)
        self._unsure = False
        self._seqs = seqs_after(self._seqs, rows)
        self._count(rows, size_bytes)

    def _count(self, rows: Sequence[Row], size_bytes: int) -> None:
        self._grown_bytes += size_bytes
        if not self._created_at:
            self._created_at = next((at_of(row.body) or 0.0 for row in rows if not row.erased), 0.0)

    def _segment_header(self, number: int, erasing: tuple[tuple[str, int], ...] = ()) -> dict[str, object]:
        lease = self.lease
        header: dict[str, object] = {"kind": "segment", "session": lease.session_id, "commit": number}
        header |= {"owner": lease.owner, "generation": lease.generation}
        return {**header, "erasing": erasing} if erasing else header

    async def prove(self) -> None:
        """Read from the store that this lease is current. Errors: `LeaseLost`, those of the object store."""
        stored = await self.reader.head()
        if stored is None or not self._ours(stored.head):
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
        if before is None or (before.head.orderly and not before.head.owes):
            self.debts.none_stored()
        if before is not None and before.head.owner is None:
            self.debts.released_edition = before.head.edition
        rows = before.rows if before is not None and not before.head.deleted else ()
        body = pack_head(self.head, rows)
        condition: Condition = Create() if before is None else Update(before.version)

        async def put_head() -> Sequence[Row]:
            self._version = await self.objects.put(self.keys.head, body, condition)
            return rows

        calls = [put_head]
        if self.head.window is not None:
            calls.append(self._first_window)
        self.window = Window((await side_by_side(calls))[-1])
        self.window.erase(set(self.erasing))
        if before is not None and not before.head.orderly:
            try:
                await self._catch_up()
                await self._fence()
            except Changed as change:
                await self.prove()
                raise self._missing(change) from change

    async def acquire_again(self, lease: Lease) -> bool:
        """Put the head of the release again, with the owner. False if it was replaced since. The lease is that of the
        release.

        What is known of the session stays true while that head stands: every owner, erasure and deletion replaces it.
        Errors: those of the object store.
        """
        async with self.committing, self.head_lock:
            rows = self.window.rows() if self.head.window is None else ()
            head = replace(self.head, owner=lease.owner, edition=self.head.edition + 1, orderly=False)
            sent_at = anyio.current_time()
            try:
                version = await self.objects.put(self.keys.head, pack_head(head, rows), Update(self._version))
            except PreconditionFailed:
                return False
            self.lease, self.lost = lease, None
            self.debts.released_edition = self.head.edition
            self.head, self._version, self.signed_at = head, version, sent_at
        return True

    async def _first_window(self) -> Sequence[Row]:
        try:
            return await self.reader.window(StoredHead(self.head, [], ""))
        except Changed as change:
            raise self._missing(change) from change

    async def _catch_up(self) -> None:
        """Read what the owner before committed after it last replaced the head."""
        segments = await self.reader.tail(self.commit)
        if any(segment.generation > self.lease.generation for segment in segments):
            raise self.lose()
        self.window, self.commit, self.erasing = self.reader.grown(self.window, self.head, segments)
        self._seqs |= self.window.seqs
        for segment in segments:
            self._count(segment.rows, segment.size_bytes)

    def _missing(self, change: Changed) -> CorruptJournal:
        return CorruptJournal("an object is missing", session=self.lease.session_id, key=str(change))

    async def _fence(self) -> None:
        """Put an empty segment under the key of the former owner's next commit."""
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
        count = self.commit - self.head.commit
        return count >= SEGMENTS_MAX or (
            count >= SEGMENTS_MIN and self._grown_bytes >= WINDOW_SHARE * max(self._window_bytes, 1)
        )

    @property
    def _moved(self) -> bool:
        """True if commits or erasures followed the head."""
        return (self.head.commit, self.head.erasing) != (self.commit, self.erasing)

    async def renew(self) -> None:
        """Renew the lease. Errors: `LeaseLost`, and those of the object store."""
        async with self.head_lock:
            await self.write_head(fresh=self.head.window is None)

    def note_request(self) -> None:
        self._wanted = True

    def take_request(self) -> bool:
        """True if another process has asked for the session since the last call."""
        wanted, self._wanted = self._wanted, False
        return wanted

    async def refresh(self) -> None:
        async with self.head_lock:
            await self.write_head(fresh=True)
        await self.forget_windows()

    async def release(self) -> bool:
        """Release the session with an up-to-date head, so that the next opening is cheap. Does nothing when the lease
        is lost. True if `acquire_again` may follow: the head is released, and no put of this owner can still arrive.

        Errors: those of the object store; nothing is committed any more, and the release may be tried again.
        """
        async with self.committing, self.head_lock:
            if self.lost is not None and not self._leaving:
                return False
            self.lost, self._leaving = None, True
            fresh = self.head.window is None or self._moved
            orderly = not self._unsure
            try:
                await self.debts.owe_late(leaving=True)
                owes = await self.debts.may_be_stored()
                await self.write_head(fresh=fresh, owner=None, orderly=orderly, owes=owes)
                self._leaving = False
            except LeaseLost:
                self._leaving = False
                return False
            finally:
                self.lose()  # Whatever waits here comes too late.
        with suppress(RepertoryError):
            await self.forget_windows()
        return orderly

    async def write_tombstone(self) -> None:
        """Mark the session as deleted in its head. Errors: `LeaseLost`, and those of the object store."""
        async with self.committing, self.head_lock:
            changes: HeadChanges = {"owner": None, "commit": self.commit, "orderly": True, "deleted": True}
            changes |= {"window": None, "seqs": {}, "erasing": (), "created_at": 0.0, "updated_at": 0.0}
            changes |= {"owes": False}
            self.head = replace(self.head, base=0, merged=0, tidied=0)
            await self._replace_head(changes, ())
            self.lose()

    async def write_head(self, *, fresh: bool, **changes: Unpack[HeadChanges]) -> None:
        """Replace the head; with `fresh`, also bring it up to date. The caller holds `head_lock`.

        Errors: `LeaseLost`, and those of the object store.
        """
        if self.lost is not None:
            raise self.lost
        rows: Sequence[Row] | None = None
        if fresh:
            await self._complete()
            rows, window = await self._write_window(changes)
            if self.head.window is not None and self.head.window != window:
                self._stale_windows.add(self.head.window)
        await self._replace_head(changes, rows)

    async def _write_window(self, changes: HeadChanges) -> tuple[Sequence[Row], str | None]:
        """The rows to store in the head; none when they are too large, and put beside it."""
        rows, changes["commit"] = self.window.rows(), self.commit
        changes["seqs"], changes["erasing"] = dict(self._seqs), self.erasing
        changes["created_at"] = self._created_at
        changes["updated_at"] = self.window.updated_at(self.head.updated_at)
        grown_bytes = self._grown_bytes
        header: dict[str, object] = {"kind": "window", "session": self.lease.session_id, "commit": self.commit}
        body = await packed_aside(header, rows)
        self._window_bytes = len(body)
        self._grown_bytes -= grown_bytes
        if len(body) <= INLINE_BYTES_MAX:
            changes["window"] = None
            return rows, None
        self._windows += 1  # Never reuse a name: a head whose response was lost may name it.
        name = f"{self.lease.generation}-{self._windows}"
        self._stale_windows.add(name)  # until the head names it
        await self.objects.put(self.keys.window(name), body, Overwrite())
        changes["window"] = name
        return (), name

    async def _replace_head(self, changes: HeadChanges, rows: Sequence[Row] | None) -> None:
        """Replace the head by one with these rows. None: with those that it names or holds already."""
        held: Sequence[Row] = ()
        for _ in range(_TRIES_MAX):
            head = replace(self.head, edition=self.head.edition + 1, **changes)
            body = pack_head(head, held if rows is None else rows)
            sent_at = anyio.current_time()
            try:
                self._version = await self.objects.put(self.keys.head, body, Update(self._version))
            except PreconditionFailed:
                held = await self._reread_head()
                continue
            self.head = head
            self._stale_windows.discard(head.window or "")
            self.signed_at = max(self.signed_at, sent_at)
            return
        raise StoreUnavailable("the head could not be replaced", session=self.lease.session_id)

    async def _reread_head(self) -> Sequence[Row]:
        """The rows in the head, which is not the expected one. An earlier put of ours may have succeeded; else the
        session is lost.
        """
        stored = await self.reader.head()
        if stored is None or not self._ours(stored.head):
            raise self.lose()
        if self.head.window is not None and stored.head.window != self.head.window:
            self._stale_windows.add(self.head.window)
        self.head, self._version = stored.head, stored.version
        return stored.rows

    def _ours(self, head: HeadObject) -> bool:
        return is_current(head, self.lease)

    def note_tidied(self, commit: int) -> None:
        """Record for the next head that segments up to this commit were removed."""
        self.head = replace(self.head, tidied=commit)

    def note_erased(self, erased: Sequence[tuple[str, int]]) -> None:
        """Record for the next head that only the head may still hold the contents of these rows."""
        self.erasing = tuple(pair for pair in self.erasing if pair not in set(erased))

    async def _complete(self) -> None:
        """Read the rows before the window that are needed again after a rewind to an earlier position."""
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

    async def forget_windows(self) -> None:
        """Remove windows that the head no longer names."""
        names = self._stale_windows - {self.head.window}
        if names:
            await delete_all(self.objects, [self.keys.window(name) for name in names])
            self._stale_windows -= names


def _accepted(batches: Sequence[Batch], outcomes: Sequence[Position | LeaseLost]) -> dict[str, DueTime]:
    """By agent, what the last batch says that is not refused."""
    pairs = zip(batches, outcomes, strict=True)
    dues = [batch.due for batch, outcome in pairs if batch.due is not None and isinstance(outcome, Position)]
    return {due.agent_id: due for due in dues}


async def packed_aside(header: dict[str, object], rows: Sequence[Row]) -> bytes:
    """Packed rows; large ones are packed in a thread."""
    return await in_thread_when_large(sum(len(row.body) for row in rows), partial(pack, header, rows))
