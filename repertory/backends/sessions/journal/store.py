"""Sessions on any object store: a bucket, a folder, or memory.

Start here, then read `ownership.py` (one owned session) and `reading.py`. `docs/design/storage.md` gives the reasons,
`docs/reference/formats/journal-objects.md` the layout.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import NamedTuple
from weakref import WeakKeyDictionary

import anyio
from msgspec.structs import replace

from repertory.backends.ports import (
    Batch,
    Corruption,
    Create,
    IdPage,
    Inspection,
    Lease,
    ObjectInfo,
    ObjectStore,
    Overwrite,
    OwnedRows,
    Position,
    Positions,
    SalvagedRows,
    SessionInfo,
    SessionStore,
    StoreCapabilities,
    StoredObject,
    StoreRepair,
    StoreSharing,
    Waking,
    WorkQuery,
    not_again,
    owned_rows,
    release_each,
    rows_between,
)
from repertory.backends.sessions.journal.format import (
    JOURNALS,
    HeadObject,
    Layout,
    ObjectKind,
    SessionKeys,
    commit_of_key,
    head_in,
    pack,
    pack_head,
    read_object,
    remove_session,
    unpack,
)
from repertory.backends.sessions.journal.maintenance import Maintenance
from repertory.backends.sessions.journal.ownership import OwnedSegments
from repertory.backends.sessions.journal.pending_work import DueMarkers, SessionDebts, SessionOwner
from repertory.backends.sessions.journal.reading import (
    Changed,
    PartsWithErasures,
    SessionReader,
    StoredHead,
    Window,
    seqs_after,
    without_forgotten,
)
from repertory.backends.sessions.liveness import Liveness
from repertory.backends.sessions.requests import copy_aside, find, names_aside, remove_aside, side_by_side
from repertory.backends.sessions.table import (
    AcquiredNow,
    CommitOutcome,
    busy,
    check_agents,
    is_id_of_folder,
    lost,
    newest_first,
    other_owner,
    page_by_name,
    unless_cancelled,
)
from repertory.backends.shields import Uncut
from repertory.core.ids import check_id
from repertory.core.journal.rows import Row
from repertory.core.pending_work import PendingWork
from repertory.core.retry import own_errors
from repertory.errors import (
    AlreadyExists,
    Corrupt,
    CorruptJournal,
    Invalid,
    LeaseLost,
    PreconditionFailed,
    RepertoryError,
    SessionBusy,
    StoreNotFound,
    StoreUnavailable,
)

_TRIES_MAX = 8
_RENEWALS = 4
"""Renewals that pass before a session with pending work and a live owner is looked at again."""


class ObjectSessionStore(SessionStore):
    """A `SessionStore` over an `ObjectStore`, which it closes with itself. For one event loop.

    A commit is one put per session, sent concurrently. `life` decides how long ownership lasts. `maintain` renews it,
    and keeps opening and reading cheap, so run it under supervision while the store is open.

    Errors of every call: those of the object store (`Unavailable`, `Throttled`, `Failed`), `CorruptJournal` with
    session and key (damaged, foreign or missing objects; nothing was changed), `Invalid` after `aclose`.
    """

    def __init__(
        self,
        objects: ObjectStore,
        *,
        owner: str,
        life: Liveness,
        layout: Layout = JOURNALS,
        wall: Callable[[], float] | None = None,
    ) -> None:
        """`owner` must be unique to this object, such as a random id; leases carry it. `wall` gives epoch
        seconds: with it, the markers of turns are put when these are due.
        """
        self.make_marks: Callable[[str, Mapping[str, str]], Mapping[str, str]] | None = None
        """Called for each head of a session that is put: its id and the last head's marks. Returns those to store."""
        self._layout = layout
        self._wall = wall
        self._objects = objects
        self._owner = check_id(owner, "owner")
        self._life = life
        self._owned: dict[str, OwnedSegments] = {}
        self._leaving: dict[str, OwnedSegments] = {}
        """Sessions whose release has not succeeded yet."""
        self._released: WeakKeyDictionary[Lease, OwnedSegments] = WeakKeyDictionary()
        """Sessions that may be taken again, each for as long as somebody keeps its lease."""
        self._acquiring = AcquiredNow()
        self._maintenance = Maintenance(self._owned, life)
        # In a bucket, a look at a session whose owner lives costs a list; on one machine a lock shows it for nothing.
        rest_s = 0.0 if life.renew_every_s is None else _RENEWALS * life.renew_every_s
        self._due = DueMarkers(objects, layout, self._owner_of, rest_s)
        self._closed = False

    @property
    def name(self) -> str:
        return f"journals:{self._objects.name}"

    @property
    def capabilities(self) -> StoreCapabilities:
        renew_s = self._life.renew_every_s
        wakes = self._layout.pending_work is not None
        return StoreCapabilities(
            positions=Positions(load_at=self.load_at, load_range=self.load_range),
            waking=Waking(claim_due=self.claim_due, pending_work=self.pending_work) if wakes else None,
            repair=StoreRepair(
                inspect=self.inspect, salvage=self.salvage, set_aside=self.set_aside, quarantined=self.quarantined
            ),
            sharing=StoreSharing(
                asked_for=self.asked_for,
                # An owner in a bucket hears of the wish only with its next renewal.
                yields_within_s=1.0 if renew_s is None else renew_s + 1.5,
                listen=self._life.listen,
                waiting=self._life.waiting,
                abandon=self.abandon,
            ),
            maintained=True,
            acquires_again="commit",
        )

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        """Become the owner: one get and one put if the former owner released the session, and at most one more get.
        `again`: one put, see `_acquire_again`.

        An earlier lease of this same object is fenced. Errors: `SessionBusy`, and see the class.
        """
        keys = self._keys(session_id)
        if again is not None:
            await self._acquire_again(again)
            return await owned_rows(self, again, load)
        await self._life.begin()
        # Cut in half, the head would name an owner that does not know of it, and everybody would wait for its lease to
        # end.
        with Uncut():
            await self._acquire(session_id, keys, takeover)
        # The markers of a session that others owned may be claimable now.
        self._due.changed(session_id)
        return await owned_rows(self, await unless_cancelled(self, self._owned[session_id].lease), load)

    async def asked_for(self) -> Sequence[str]:
        """Sessions held by this object that other processes have asked for since the last call. In a bucket, each
        renewal checks for it. Errors: `Unavailable`.
        """
        # A store without sessions makes no request for this.
        asked = {*(await self._life.asked_for() if self._owned or self._acquiring or self._leaving else ())}
        # Its release has failed before; that somebody wants it is the occasion to try again.
        for owned in [owned for session_id, owned in self._leaving.items() if session_id in asked]:
            with suppress(RepertoryError):  # Whoever wants it asks again.
                await self._release(owned.lease)
        asked |= {session_id for session_id, owned in self._owned.items() if owned.take_request()}
        return sorted(asked & (self._owned.keys() | self._acquiring.keys()))

    async def _acquire_again(self, lease: Lease) -> None:
        """Own the session again with one put, which succeeds only if the head is the one of the release: so no owner
        has changed anything since. Nothing is read. Errors: `LeaseLost`.

        If the answer to that put is lost, the session has this owner or none: try again, or `acquire` it.
        """
        outcome: CommitOutcome = not_again(lease)
        # Otherwise this object has begun to own it anew, under another generation.
        if lease.session_id not in self._owned and lease.session_id not in self._acquiring:
            (outcome,) = await self.append([Batch(lease=lease, rows=(), take=True)])
        if not isinstance(outcome, Position):
            raise not_again(lease) if isinstance(outcome, LeaseLost) else outcome
        if (owned := self._owned.get(lease.session_id)) is not None:
            # Taken by a call of its own, so it is held for longer: commits are segments, and cost no rewriting of the
            # head.
            owned.brief = False

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        """Release; after a failure the session is released at the next try, or when another owner asks for it."""
        self._check_open()
        return await release_each(self._release, leases)

    async def _release(self, lease: Lease) -> None:
        session_id = lease.session_id
        owned = self._owned.get(session_id) or self._leaving.get(session_id)
        if owned is not None and owned.lease == lease:
            # Before the first await: a commit that comes now finds no owned session, and is refused.
            self._owned.pop(session_id, None)
            self._leaving[session_id] = owned
            # Stopped first: a head that tidying puts after the release would own the session again.
            await self._maintenance.stop(owned)
            orderly = await owned.release()
            # The session may have been acquired anew by this store during the release.
            if self._leaving.get(session_id) is owned:
                del self._leaving[session_id]
            if orderly:
                self._keep_released(owned, owned.lease)
            self._life.freed(session_id)
            self._due.changed(session_id)
            self._maintenance.look_at(owned)

    def _keep_released(self, owned: OwnedSegments, lease: Lease) -> None:
        # The kept value has a lease of its own: one that held its own key would never be collected.
        owned.lease = replace(lease)
        self._released[lease] = owned

    async def append(self, batches: Sequence[Batch]) -> Sequence[CommitOutcome]:
        """Commit a group, session by session; one outcome per batch, in order. Cancellation waits for the puts.

        Errors: see the class; it is then unknown whether anything of the group is stored.
        """
        self._check_open()
        check_agents(batches)
        groups: dict[OwnedSegments, list[int]] = {}
        outcomes: list[CommitOutcome | None] = [None] * len(batches)
        for number, batch in enumerate(batches):
            owned = self._owned.get(batch.lease.session_id)
            if owned is None and batch.take:
                owned = self._released.get(batch.lease)
            if owned is None or owned.lease != batch.lease:
                outcomes[number] = lost(batch.lease)
            else:
                groups.setdefault(owned, []).append(number)
        # A put that is cut off leaves a commit in doubt; waiting for its answer costs less than finding out.
        with Uncut():
            await side_by_side([partial(self._append, group, batches, outcomes) for group in groups.items()])
        known = [outcome for outcome in outcomes if outcome is not None]
        # A group that failed as a whole raises, as every other store does; the writer then tries the group again.
        unknown = [outcome for outcome in known if isinstance(outcome, RepertoryError)]
        if unknown and len(unknown) == len(known) and not any(isinstance(error, LeaseLost) for error in unknown):
            raise unknown[0]
        return known

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        """Rows in order, from the last row's `low` on, or all of them. An owned session is opened without any request;
        `whole` takes one list, and one get per 128 commits.
        """
        self._keys(session_id)
        owned = self._owned.get(session_id)
        if owned is not None and owned.lost is None and not whole:
            return await owned.load(agent_id)
        return await self._read(session_id, lambda reader: reader.whole(agent_id) if whole else reader.load(agent_id))

    def owns(self, lease: Lease, within_s: float = math.inf) -> bool:
        """True if the lease is held, as far as is known, and a request within that time has proved it."""
        owned = self._owned.get(lease.session_id)
        if owned is None or owned.lost is not None or owned.lease != lease:
            return False
        # The time of sending, not of the answer: a request may wait long on its way, and proves only when it began.
        return anyio.current_time() - owned.signed_at < within_s

    async def marks(self, session_id: str) -> Mapping[str, str]:
        """The marks in the head of a session. An owner needs no request for them."""
        keys, owned = self._keys(session_id), self._owned.get(session_id)
        if owned is not None and owned.lost is None:
            return owned.head.marks
        return await SessionReader(self._objects, keys, session_id).marks()

    async def load_at(self, session_id: str, agent_id: str, seq: int) -> Sequence[Row]:
        """Rows in order, from the `low` of the row at `seq` up to that row. Costs as much as opening, plus one list and
        about two gets.
        """
        return await self._read(session_id, lambda reader: reader.row_range(agent_id, seq))

    async def load_range(self, session_id: str, agent_id: str, first: int, last: int) -> Sequence[Row]:
        """Costs as much as opening; for older rows also one list and about two gets."""
        found = await self._read(session_id, lambda reader: reader.row_range(agent_id, last, max(first, 1)))
        # None were found if `last` is behind the end of the journal: read to the end then.
        return found or await rows_between(self, session_id, agent_id, first, last)

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        """Every session that holds records, most recently changed first; or that one alone. A damaged session is listed
        without agents; opening it says what is wrong. Of a page: one list of what lies below its prefix, and what is
        read of each line.
        """
        self._check_open()
        if page is not None:
            return await self._page(page)
        below = self._layout.before if session_id is None else f"{self._keys(session_id).folder}/"
        infos = await list_sessions(self._objects, self._life, self._layout, await self._objects.list(below))
        return newest_first(infos.values())

    async def described(self, found: Iterable[ObjectInfo]) -> Mapping[SessionKeys, SessionInfo]:
        """The sessions with records among these objects, by their keys."""
        return await list_sessions(self._objects, self._life, self._layout, found)

    async def _page(self, page: IdPage) -> Sequence[SessionInfo]:
        prefix = page.prefix
        # Ids that begin like this have folders named by a hash, so no prefix of keys finds them: list all.
        if not is_id_of_folder(prefix):
            return page.of(await self.sessions())
        below = by_session(self._layout, await self._objects.list(f"{self._layout.before}{prefix}"))
        named = {self._layout.name_in(keys): found for keys, found in below.items()}

        async def described(names: Sequence[str]) -> Iterable[SessionInfo]:
            found = chain.from_iterable(named[name] for name in names)
            return (await list_sessions(self._objects, self._life, self._layout, found)).values()

        return await page_by_name(named, described, page)

    async def delete(self, session_id: str) -> None:
        """Erase a session. A marker of a few hundred bytes stays and keeps former owners out.

        Errors: `NotFound`, `SessionBusy`, and see the class.
        """
        keys = self._keys(session_id)
        await self._life.begin()
        with Uncut():
            await self._remove(session_id, keys)
            # Last: copies of a damaged session are its contents too, but a failure here must not keep the session from
            # being deleted.
            await remove_aside(self._objects, keys.aside)

    async def claim_due(self, query: WorkQuery) -> Sequence[PendingWork]:
        """Claim in one list for 1,000 markers, once a second at most; a get for each that is due and new, and the
        requests that show whether its session has an owner, every 10 s in a bucket while that one lives.
        """
        self._check_open()
        with Uncut():
            return await self._due.claim(query)
        raise AssertionError

    async def pending_work(self, session_id: str | None = None) -> Sequence[PendingWork]:
        """The work, in one list, and two or three requests for each agent with pending work."""
        self._check_open()
        return await self._due.all(session_id)

    async def _owner_of(self, session_id: str, keys: SessionKeys) -> SessionOwner | None:
        """The owner of a session that has pending work. A damaged one counts as without a living owner."""
        owned = self._owned.get(session_id)
        if owned is not None and owned.lost is None:
            return SessionOwner.of(owned.head, here=True, alive=False)
        try:
            stored = await SessionReader(self._objects, keys, session_id).head()
        except CorruptJournal:
            # Whoever wakes it reports the damage; a marker that is never claimable would only hide it.
            return SessionOwner(here=False, alive=False, edition=0, released=False)
        if stored is None or stored.head.deleted:
            return None
        head, alive = stored.head, False
        if head.owner is not None and head.owner != self._owner:
            signs = () if self._life.renew_every_s is None else await self._objects.list(f"{keys.folder}/")
            signed_at = max((info.modified_at for info in signs if info.key != keys.wanted), default=0.0)
            # `wanted` does not count: askers put it, not the owner.
            alive = await self._life.is_alive(head.owner, signed_at)
        return SessionOwner.of(head, here=head.owner == self._owner, alive=alive)

    async def inspect(self) -> Inspection:
        """Objects among the sessions that belong to none: one list, and one get per session."""
        self._check_open()
        return await inspect_sessions(self._objects, self._layout)

    async def salvage(self, session_id: str) -> SalvagedRows:
        """The rows in every readable object of a session."""
        return (await salvage_session(self._objects, self._keys(session_id), session_id)).salvage

    async def set_aside(self, session_id: str, keep: Sequence[Row]) -> str:
        """Copy a session's objects to a quarantine folder, whose name is returned, and start the session again with
        these rows. Errors: `NotFound`, `SessionBusy`, and see the class.
        """
        keys = self._keys(session_id)
        await self._life.begin()
        with Uncut():
            return await self._set_aside(session_id, keys, keep)
        raise AssertionError

    async def quarantined(self, session_id: str) -> Sequence[str]:
        """The folders of a session's copies, oldest first."""
        return await names_aside(self._objects, self._keys(session_id).aside)

    async def maintain(self) -> None:
        """Renew leases, bring heads up to date and merge segments, until cancelled, which is safe at any time.

        It never delays commits. Requests that the object store refuses are retried later.
        """
        await self._maintenance.run()

    def abandon(self) -> None:
        """Leases end where the system keeps them, and expire elsewhere."""
        self._life.abandon()

    async def aclose(self) -> None:
        """Close the object store as well. Leases held by this object are released; a lease that cannot be released
        expires. Calling it twice is allowed.
        """
        if self._closed:
            return
        self._closed = True
        with Uncut():
            # The released ones too: they may still have stale windows to remove.
            owned, self._owned = {*self._owned.values(), *self._leaving.values(), *self._released.values()}, {}
            await side_by_side([partial(self._give_up, session) for session in owned])
            await self._life.end()
            await self._objects.aclose()

    async def _give_up(self, owned: OwnedSegments) -> None:
        with suppress(RepertoryError):
            await self._maintenance.stop(owned)
            await owned.release()
            await owned.forget_windows()

    async def _acquire(self, session_id: str, keys: SessionKeys, takeover: bool) -> OwnedSegments:
        # What is acquired anew need not be released any more: the new lease fences the old one.
        self._leaving.pop(session_id, None)
        before_us = self._owned.pop(session_id, None)
        if before_us is not None:
            # At once, so that a commit of the earlier lease that waits for its lock is refused.
            before_us.lose()
            await self._maintenance.stop(before_us)
        with self._acquiring.include(session_id):
            owned = self._owned[session_id] = await self._own(session_id, keys, takeover)
        self._maintenance.look_at(owned)
        return owned

    async def _own(self, session_id: str, keys: SessionKeys, takeover: bool) -> OwnedSegments:
        """Become the owner of the session under these keys. Errors: `SessionBusy`, and see the class."""
        reader = SessionReader(self._objects, keys, session_id)
        for _ in range(_TRIES_MAX):
            stored = await reader.head()
            try:
                # No head may also mean that it was lost. A session must never begin empty beside rows of before.
                before = await reader.headless() if stored is None else stored.head
                await self._check_free(keys, stored, takeover)
                owned = self._next_owner(session_id, keys, before)
                await owned.begin(stored)
            except (AlreadyExists, PreconditionFailed, LeaseLost, Changed):
                # One round per faster owner. Eight in a row is contention, which the caller should see rather than wait
                # out.
                continue  # another owner was faster
            return owned
        raise SessionBusy("others want the session as well", session=session_id)

    async def _read(self, session_id: str, read: Callable[[SessionReader], Awaitable[list[Row]]]) -> list[Row]:
        return await read(SessionReader(self._objects, self._keys(session_id), session_id))

    def _next_owner(self, session_id: str, keys: SessionKeys, head: HeadObject) -> OwnedSegments:
        before = other_owner(head, self._owner)
        # The number of commits goes on where the deleted session ended, so a late put of its owners finds its key
        # taken, or meets a head for which it does not count (`base`).
        if head.deleted:
            end = head.commit
            head = HeadObject(session=session_id, generation=head.generation, edition=head.edition, commit=end)
            head = replace(head, base=end, merged=end, tidied=end)
        head = replace(head, owner=self._owner, generation=head.generation + 1, edition=head.edition + 1, orderly=False)
        lease = Lease(session_id=session_id, owner=self._owner, generation=head.generation, taken_from=before)
        owned = OwnedSegments(self._objects, keys, lease, head, self._wall)
        if self.make_marks is not None:
            owned.marks = partial(self.make_marks, session_id)
        return owned

    async def _check_free(self, keys: SessionKeys, stored: StoredHead | None, takeover: bool) -> None:
        owner = other_owner(stored.head, self._owner) if stored is not None else None
        if stored is None or owner is None or takeover:
            return
        if await self._life.is_alive(owner, 0.0, partial(_silent_s, owner, keys, self._objects)):
            await self._life.ask(owner, stored.head.session)
            raise busy(stored.head.session, owner)

    async def _append(
        self, group: tuple[OwnedSegments, list[int]], batches: Sequence[Batch], outcomes: list[CommitOutcome | None]
    ) -> None:
        owned, numbers = group
        session_id, lease = owned.lease.session_id, batches[numbers[0]].lease
        found: Sequence[CommitOutcome]
        # Only the last batch of a group can give up: the persister sends nothing behind it.
        if batches[numbers[-1]].release:
            await self._maintenance.stop(owned)
        try:
            with own_errors(session_id), self._acquiring.include(session_id):
                # The lock that shows that this process lives must be there before the head names it.
                if owned.released:
                    await self._life.begin()
                found = await owned.append([batches[number] for number in numbers])
        except RepertoryError as error:
            found = [error for _ in numbers]
        await self._note_owner(owned, lease)
        # After the commit: the segment names what is to be erased, so a kill here leaves it to the next owner, and
        # readers leave the contents out meanwhile. The caller waits for this, since "erased" must be true when it is
        # told.
        if owned.erasing and owned.lost is None:
            try:
                await self._maintenance.finish_erasing(owned)
            except RepertoryError as error:
                # The commit is stored and was not refused, whoever owns the session by now.
                unfinished = _unfinished(owned, error)
                found = [
                    unfinished if isinstance(outcome, Position) and batches[number].erase else outcome
                    for number, outcome in zip(numbers, found, strict=True)
                ]
        if owned.lost is not None and self._owned.get(session_id) is owned:
            del self._owned[session_id]
        for number, outcome in zip(numbers, found, strict=True):
            outcomes[number] = outcome
        self._maintenance.look_at(owned)

    async def _note_owner(self, owned: OwnedSegments, lease: Lease) -> None:
        """A commit under this lease has ended, which may have taken the session or given it up."""
        session_id, here = lease.session_id, self._owned.get(lease.session_id)
        if owned.lost is None and here is None:
            self._owned[session_id], owned.lease = owned, lease
            self._released.pop(lease, None)
            self._due.changed(session_id)
        elif owned.lost is None and here is not owned:  # It was acquired anew meanwhile.
            owned.lose()
        elif owned.released and here is owned:
            del self._owned[session_id]
            self._keep_released(owned, lease)
            self._life.freed(session_id)
            self._due.changed(session_id)
        elif not owned.released:
            self._released.pop(lease, None)

    async def _remove(self, session_id: str, keys: SessionKeys) -> None:
        try:
            stored = await SessionReader(self._objects, keys, session_id).head()
            # A delete that was killed between tombstone and removal is finished here; the second `delete` finds
            # nothing.
            if stored is None or stored.head.deleted:
                if stored is not None:
                    await SessionDebts(self._objects, keys, session_id, stored.head.generation).forget()
                if not await remove_session(self._objects, keys):
                    raise StoreNotFound("no such session", session=session_id)
                return
            await self._check_free(keys, stored, takeover=False)
            # A forced one, since liveness was asked just above: a dead owner's lease may have some seconds to go.
            owned = await self._acquire(session_id, keys, takeover=True)
        except CorruptJournal:  # No owner is left whose session it could be.
            await remove_session(self._objects, keys)
            # The head last: without it, what is left would be read as a session that has lost its head.
            await self._objects.delete(keys.head)
            return
        del self._owned[session_id]
        await self._maintenance.stop(owned)
        # The tombstone first, then the objects: a kill in between leaves a deleted session with garbage, never half of
        # one.
        await owned.write_tombstone()
        await remove_session(self._objects, keys)
        await owned.debts.forget()

    async def _set_aside(self, session_id: str, keys: SessionKeys, keep: Sequence[Row]) -> str:
        remains = await salvage_session(self._objects, keys, session_id)
        if remains.version is None and not remains.salvage.rows:
            raise StoreNotFound("no such session", session=session_id)
        if remains.head is not None:
            await self._check_free(keys, StoredHead(remains.head, [], ""), takeover=False)
        # A copy and not a move, which object stores do not have: everything stays until the new head is there.
        moved_to = await copy_aside(self._objects, keys.folder, keys.aside)
        if keep:
            lease = Lease(session_id=session_id, owner=self._owner, generation=remains.generation + 1)
            await begin_anew(self._objects, keys, remains, lease, keep)
        else:
            await self._remove(session_id, keys)
        return moved_to

    def _keys(self, session_id: str) -> SessionKeys:
        keys = self._layout.keys_of(session_id)
        self._check_open()
        return keys

    def _check_open(self) -> None:
        if self._closed:
            raise Invalid("this was closed before", name=self.name)


def _unfinished(owned: OwnedSegments, error: RepertoryError) -> RepertoryError:
    """The error when contents could not be destroyed yet: the session's owner finishes that."""
    if not isinstance(error, LeaseLost):
        return error
    text = "the session was taken over while contents were being destroyed; its new owner finishes that"
    unfinished = StoreUnavailable(text, session=owned.lease.session_id)
    unfinished.__cause__ = error
    return unfinished


async def _silent_s(owner: str, keys: SessionKeys, objects: ObjectStore) -> float:
    """Seconds since the owner last wrote to the session, by the object store's clock alone. Puts a small object to read
    that clock; the object also tells the owner that another process asks for the session.
    """
    # One request does two things: the listing has its time by the store's clock, so no local clock is trusted, and the
    # owner finds the wish at its next renewal.
    await objects.put(keys.wanted, owner.encode(), Overwrite())
    now = newest = float("-inf")
    # From "d" on: head, s/, w/ and wanted, but not the chunks (c/), of which a long session has many.
    for info in await objects.list(f"{keys.folder}/", f"{keys.folder}/d"):
        if info.key == keys.wanted:
            now = info.modified_at
        elif info.key == keys.head or info.key.startswith(keys.segments):
            newest = max(newest, info.modified_at)
    return now - newest


_LISTINGS_MAX = 4


async def list_sessions(
    objects: ObjectStore, life: Liveness, layout: Layout, found: Iterable[ObjectInfo]
) -> dict[SessionKeys, SessionInfo]:
    """The sessions with records among these objects, by their keys. Errors: the object store's."""
    folders = by_session(layout, found)
    read = _Listing(objects, life, layout).describe
    # A get per session: the price of having no index, which every commit would have to keep.
    described = await side_by_side([partial(read, *each) for each in folders.items()])
    return {keys: info for keys, info in zip(folders, described, strict=True) if info is not None}


def by_session(layout: Layout, found: Iterable[ObjectInfo]) -> dict[SessionKeys, list[ObjectInfo]]:
    """The objects in session folders, by the keys of the session."""
    folders: dict[SessionKeys, list[ObjectInfo]] = {}
    for info in found:
        keys = layout.keys_around(info.key)
        if keys is not None:
            folders.setdefault(keys, []).append(info)
    return folders


class _Listing(NamedTuple):
    objects: ObjectStore
    life: Liveness
    layout: Layout

    async def describe(self, keys: SessionKeys, found: Sequence[ObjectInfo]) -> SessionInfo | None:
        times = [info.modified_at for info in found]
        try:
            return await self._read(keys, found)
        except Corrupt:
            return SessionInfo(
                session_id=await self._name_in(keys, found),
                agents={},
                created_at=min(times),
                updated_at=max(times),
                owner=None,
                damaged=True,
            )

    async def _name_in(self, keys: SessionKeys, found: Sequence[ObjectInfo]) -> str:
        """The id of a session whose head does not give it: the folder's name, unless that stands for a longer id."""
        name = self.layout.name_in(keys)
        for info in found if name.startswith("%") else ():
            stored = await find(self.objects, info.key)
            with suppress(ValueError):
                session_id = unpack(stored.body).header.get("session") if stored is not None else None
                if isinstance(session_id, str) and self.layout.keys_of(session_id) == keys:
                    return session_id
        return name

    async def _read(self, keys: SessionKeys, found: Sequence[ObjectInfo]) -> SessionInfo | None:
        missing = ""
        for _ in range(_LISTINGS_MAX):
            stored = await find(self.objects, keys.head)
            try:
                if stored is None:
                    await SessionReader(self.objects, keys, self.layout.name_in(keys)).headless()
                    return None
                head = head_in(read_object(stored.body, "head", None, keys.head))
                if self.layout.keys_of(head.session) != keys:
                    raise Corrupt("another session's head", key=keys.head, session=head.session)
                return await self._info(keys, head, found)
            except ValueError as error:
                raise Corrupt("a damaged object", key=keys.head, cause=str(error)) from error
            except Changed as change:
                missing = str(change)
                # Its listing is older than the head: the owner has merged segments in between.
                found = await self.objects.list(f"{keys.folder}/")
        raise Corrupt("an object is missing", key=missing)

    async def _info(self, keys: SessionKeys, head: HeadObject, found: Sequence[ObjectInfo]) -> SessionInfo | None:
        if head.deleted:
            return None
        seqs, window, created_at = head.seqs, Window(), head.created_at
        segments = [info for info in found if info.key.startswith(keys.segments)]
        newer = [info for info in segments if (commit_of_key(info.key) or 0) > head.commit]
        # What follows an orderly head is a late put of a fenced owner, which does not count.
        if newer and not head.orderly:
            for segment in await SessionReader(self.objects, keys, head.session).segments_in(newer, head.commit):
                seqs = without_forgotten(seqs_after(seqs, segment.rows), segment.erasing)
                window.add(segment.rows)
                created_at = created_at or Window(segment.rows[:1]).updated_at(0.0)
        seqs = without_forgotten(seqs, head.erasing)
        if not seqs:
            return None
        last_sign_at = max((info.modified_at for info in found if info.key != keys.wanted), default=0.0)
        owned = head.owner is not None and await self.life.is_alive(head.owner, last_sign_at)
        return SessionInfo(
            session_id=head.session,
            agents=dict(seqs),
            created_at=created_at,
            updated_at=max(head.updated_at, window.updated_at(head.updated_at)),
            owner=head.owner if owned else None,
        )


class Remains(NamedTuple):
    """The readable remains of a session, and its end."""

    salvage: SalvagedRows
    head: HeadObject | None
    """None when it is missing or cannot be read."""
    version: str | None
    """The head's version, even if the head cannot be read; None when it is missing."""
    end: int
    """The highest commit that any object names."""
    generation: int
    """The highest generation that any object names."""


async def salvage_session(objects: ObjectStore, keys: SessionKeys, session_id: str) -> Remains:
    """Everything of a session that can be read, object by object."""
    # Its `base` decides which of the others count.
    found = sorted(await objects.list(f"{keys.folder}/"), key=lambda info: info.key != keys.head)  # the head first
    bodies = await side_by_side([partial(_find_or_damage, objects, info.key) for info in found])
    damages: list[Corruption] = []
    parts = PartsWithErasures()
    head, version, end, generation = None, None, 0, 0
    for info, stored in zip(found, bodies, strict=True):
        kind = kind_of_key(keys, info.key)
        if stored is None or kind is None:
            continue
        if isinstance(stored, Corruption):
            damages.append(stored)
            continue
        version = stored.version if kind == "head" else version
        try:
            packed = read_object(stored.body, kind, session_id, info.key)
            parts.note_erasures(packed.header)
            head = head_in(packed) if kind == "head" else head
        except (CorruptJournal, ValueError) as error:
            damages.append(Corruption(where=info.key, what=str(error)))
            continue
        generation_there = packed.header.get("generation")
        generation = max(generation, generation_there if isinstance(generation_there, int) else 0)
        end = max(end, commit_of_key(info.key) or 0, head.commit if head is not None else 0)
        # Commits up to the base belong to a deleted session of the same name.
        if head is None or (commit_of_key(info.key) or head.base + 1) > head.base:
            parts.add(packed)
    damages += _missing(keys, head, found)
    salvage = SalvagedRows(rows=parts.rows(), damages=damages)
    return Remains(salvage, head, version, end, generation)


async def _find_or_damage(objects: ObjectStore, key: str) -> StoredObject | Corruption | None:
    try:
        return await find(objects, key)
    except CorruptJournal as error:
        return Corruption(where=key, what=str(error))


async def begin_anew(
    objects: ObjectStore, keys: SessionKeys, remains: Remains, lease: Lease, keep: Sequence[Row]
) -> None:
    """Put a segment with these rows and a head that ignores all earlier objects; then remove those objects.

    After a crash in between, the session is as damaged as before, or sound with some objects too many. Errors: those of
    the object store; `AlreadyExists`, `PreconditionFailed`, `LeaseLost` when another owner was faster.
    """
    end = remains.end
    header = {"kind": "segment", "session": lease.session_id, "commit": end + 1, "owner": lease.owner}
    # Put first, one number behind everything that any object names; only the head after it makes it count.
    body = pack({**header, "generation": lease.generation}, keep)
    await objects.put(keys.segment(end + 1), body, Create())
    head = HeadObject(
        session=lease.session_id,
        generation=lease.generation,
        owner=lease.owner,
        edition=remains.head.edition + 1 if remains.head is not None else 0,
        commit=end,
        base=end,
        merged=end,
        tidied=end,
    )
    version = remains.version
    # `begin` replaces a head under its version, so there must be one.
    if version is None:
        version = await objects.put(keys.head, pack_head(replace(head, owner=None), ()), Create())
    owned = OwnedSegments(objects, keys, lease, head)
    await owned.begin(StoredHead(HeadObject(session=lease.session_id), [], version))
    await remove_session(objects, keys, up_to=end)
    await owned.release()


async def inspect_sessions(objects: ObjectStore, layout: Layout) -> Inspection:
    """Objects among the sessions that belong to none of them."""
    found = await objects.list(layout.before)
    # With an empty `before`, other programs' objects may lie directly beside the session folders.
    strays = [info.key for info in found if layout.before and layout.keys_around(info.key) is None]
    folders = by_session(layout, found)
    heads = await side_by_side([partial(_head, objects, keys) for keys in folders])
    for (keys, infos), head in zip(folders.items(), heads, strict=True):
        strays += [info.key for info in infos if _is_stray(keys, head, info.key)]
    return Inspection(strays=strays)


def kind_of_key(keys: SessionKeys, key: str) -> ObjectKind | None:
    """The kind of object that belongs under a session's key; None for other programs' keys and for objects without
    rows.
    """
    if key == keys.head:
        return "head"
    if key.startswith(keys.windows):
        return "window"
    if commit_of_key(key) is None:
        return None
    return "segment" if key.startswith(keys.segments) else "chunk" if key.startswith(keys.chunks) else None


def _missing(keys: SessionKeys, head: HeadObject | None, found: Sequence[ObjectInfo]) -> list[Corruption]:
    """The head and segments that should be there and are not."""
    there = {info.key for info in found}
    if head is None:
        return [] if keys.head in there else [Corruption(where=keys.head, what="the object is missing")]
    numbers = sorted(commit_of_key(key) or 0 for key in there if key.startswith(keys.segments))
    wanted: list[str] = []
    expected = head.merged + 1
    # `head.commit + 1` stands for the end: without it, segments missing behind the last one would not be noticed.
    for number in (number for number in (*numbers, head.commit + 1) if number >= expected):
        wanted += [keys.segment(expected)] if number > expected else []  # the first of those that are missing there
        expected = number + 1
    if head.window is not None:
        wanted.append(keys.window(head.window))
    return [Corruption(where=key, what="the object is missing") for key in wanted if key not in there]


async def _head(objects: ObjectStore, keys: SessionKeys) -> HeadObject | None:
    try:
        stored = await find(objects, keys.head)
        return None if stored is None else head_in(read_object(stored.body, "head", None, keys.head))
    except (CorruptJournal, ValueError):
        return None


def _is_stray(keys: SessionKeys, head: HeadObject | None, key: str) -> bool:
    """True if an object belongs to no session, or is left over from a crash."""
    match kind_of_key(keys, key):
        case None:
            return key != keys.wanted
        case "window":
            return head is not None and (head.window is None or key != keys.window(head.window))
        case "chunk":
            return head is not None and not head.base < (commit_of_key(key) or 0) <= head.merged
        case "head" | "segment":
            return False
