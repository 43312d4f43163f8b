"""Publishes the snapshots of agents and orchestrators whose sessions are owned, and takes in other programs' changes.

The journal is the truth. Snapshots are written from it, at most one at a time, and the last state wins; no caller of
the agent waits for that. An agent has numbered snapshots besides the latest; an orchestrator has the latest alone. The
rules for taking in another program's run are those of `core/orchestration/document.py`.

Other programs know no leases. So a latest snapshot is only put if the stored one is still the known one; otherwise
another program has written it, and its changes are taken in before they are overwritten.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import anyio
from msgspec import Struct

from repertory.backends.ports import Batch, NotPublished, Position
from repertory.backends.sessions.requests import side_by_side
from repertory.backends.sessions.snapshots.makers import (
    AgentHistory,
    LatestFile,
    RunMaker,
    S,
    SnapshotMaker,
    is_of,
    mark_in,
    unreadable,
)
from repertory.backends.sessions.snapshots.tree import body_of
from repertory.backends.sessions.table import ON_LOOP_BYTES_MAX, in_thread_when_large, lost
from repertory.backends.shields import Uncut, waited_for
from repertory.core.journal.codec import decode
from repertory.core.journal.fold import is_answer
from repertory.core.journal.records import NodeChanged
from repertory.core.journal.rows import RecordKind
from repertory.core.message_tree.documents import message_in
from repertory.core.retry import own_errors
from repertory.core.snapshots.agent_view import AgentView
from repertory.core.snapshots.intake import Replacements, redact_snapshot
from repertory.core.snapshots.location import number_of
from repertory.errors import (
    AlreadyExists,
    CorruptJournal,
    Invalid,
    LeaseLost,
    PreconditionFailed,
    RepertoryError,
    Retryable,
    StoreUnavailable,
)
from repertory.logs import INFO, WARNING, note

if TYPE_CHECKING:
    from repertory.backends.ports import Lease, SessionStore
    from repertory.backends.sessions.snapshots.folder_tree import FolderSnapshotTree
    from repertory.backends.sessions.snapshots.makers import FoundSnapshot, Maker
    from repertory.backends.sessions.snapshots.port import SnapshotChoices
    from repertory.backends.sessions.snapshots.tree import SnapshotTree
    from repertory.core.journal.restore import Entropy
    from repertory.core.journal.rows import Row
    from repertory.core.snapshots.document import FoundRun, JournalPosition, ReadSnapshot
    from repertory.core.snapshots.intake import Published
    from repertory.core.snapshots.location import SnapshotLocation

_log = logging.getLogger("repertory.sessions")
_GRACE_S = 2.0
_RETRY_S = 5.0
"""Seconds to wait after an error before an agent's snapshots are put again."""
_AT_ONCE = 8
"""Agents whose snapshots are put at the same time."""
_TRIES_MAX = 8


class SnapshotAddress(Struct, frozen=True, kw_only=True):
    """A journal and its snapshots, as their owner reaches them."""

    journal: SessionStore
    tree: SnapshotTree
    lease: Lease
    location: SnapshotLocation
    wall: Callable[[], float]
    entropy: Entropy


class WrittenElsewhere(LeaseLost):
    """A program without a lease has written the latest snapshot. Open the session again to take its changes in."""


class LatestSnapshot(Generic[S]):
    """The latest snapshot. Hold `lock` to read or put it."""

    def __init__(
        self, place: SnapshotAddress, find: Callable[[SnapshotLocation], Awaitable[FoundSnapshot[S] | None]]
    ) -> None:
        """`find` reads the stored snapshot."""
        self._tree = place.tree
        self._lease = place.lease
        self._location = place.location
        self._find = find
        self.version: str | None = None
        """The version that was last read or written."""
        self.seq = 0
        """The last record that it shows."""
        self.foreign = False
        """True if another program has written it meanwhile."""
        self.over = False
        """True if this owner no longer has the session."""
        self.lock = anyio.Lock()

    async def find(self) -> FoundSnapshot[S] | None:
        return await self._find(self._location)

    def begin(self, found: FoundSnapshot[S] | None) -> None:
        """Start from this stored snapshot."""
        self.foreign, self.seq = False, 0
        self.version = found.version if found is not None else None

    async def set_aside(self, found: FoundSnapshot[S], why: str) -> None:
        """Keep a copy of the stored snapshot, which is about to be replaced."""
        copy = await self._tree.set_aside(self._location)
        note(_log, WARNING, "a snapshot was set aside", file=found.place, copy=copy, why=why)

    async def put(self, made: LatestFile) -> bool:
        """Put a snapshot that shows everything up to a record. False when this owner no longer has the session.

        Errors: `LeaseLost`, `WrittenElsewhere`, and those of the objects.
        """
        for _ in range(_TRIES_MAX):
            if self.over:
                return False
            try:
                version = await self._tree.put_latest(self._location, made.body, self.version)
            except (AlreadyExists, PreconditionFailed):
                await self._look()
                continue
            self.version, self.seq = version, made.seq
            return True
        raise StoreUnavailable("the latest snapshot could not be put", session=self._location.session_id)

    def put_now(self, tree: FolderSnapshotTree, made: LatestFile) -> None:
        """Put a snapshot in the place of the known one. Blocking. Errors: `AlreadyExists`, `PreconditionFailed` if the
        stored one is another; those of the objects.
        """
        self.version = tree.put_latest_now(self._location, made.body, self.version)
        self.seq = made.seq

    async def check_unchanged(self) -> None:
        """Check that no other program has written it; skipped while it is being put.

        Errors: `WrittenElsewhere`, and those of the objects.
        """
        # It is being put, under a condition that tells the same.
        if self.lock.locked():
            return
        async with self.lock:
            if self.foreign or await self._tree.changed(self._location, self.version):
                await self._look()

    async def _look(self) -> None:
        """The stored snapshot is not the known one. An earlier put of ours may have succeeded; else another program
        wrote it.

        Errors: `LeaseLost`, `WrittenElsewhere`.
        """
        found = await self.find()
        if found is not None and found.snapshot is None:
            await self.set_aside(found, f"it cannot be read: {found.fault}")
        elif found is not None and found.snapshot is not None:
            self._check_ours(found, found.snapshot.position)
        self.version = found.version if found is not None else None

    def _check_ours(self, found: FoundSnapshot[S], position: JournalPosition | None) -> None:
        if position is None:
            if not self.foreign:
                note(_log, WARNING, "somebody else has written the latest snapshot", file=found.place)
            self.foreign = True
            msg = "somebody else has written the latest snapshot; open the session again to take that in"
            raise WrittenElsewhere(msg, session=self._location.session_id, file=found.place)
        self.foreign = False
        # Ours by its key, and of a later owner: this one is fenced.
        if position.generation > self._lease.generation:
            self.over = True
            raise lost(self._lease)


class Publisher(ABC, Generic[S]):
    """The common part for agents and orchestrators. After `LeaseLost` it must not be used any more."""

    published: Published | None = None
    """The part of the journal that other programs could see when it was last put; None if not known."""
    reopens = False

    def __init__(self, address: SnapshotAddress, latest: LatestSnapshot[S], maker: Maker[S]) -> None:
        self._journal = address.journal
        self._tree = address.tree
        self._lease = address.lease
        self._location = address.location
        self._wall = address.wall
        self._entropy = address.entropy
        self._latest = latest
        self._maker = maker
        self._besides: Sequence[Callable[[], Awaitable[None]]] = ()
        """The other things that opening reads."""
        self.fault: RepertoryError | None = None
        """The error of the last try to put snapshots; None if they were put."""
        self._wanted_seq = 0
        """The last record that the latest snapshot should show."""
        self._last: Row | None = None
        """The last committed row, if known."""
        self._read = partial(self._journal.load, address.location.session_id, address.location.journal)

    @property
    def remembered(self) -> Published | None:
        return self.published

    async def open(self) -> None:
        """Take in other programs' changes, and continue from a chosen snapshot.

        Errors: `SnapshotException` for an unreadable latest snapshot when there is no journal; those of journal and
        objects, and of the chosen snapshot.
        """
        rows: list[Row] = []
        latest: list[FoundSnapshot[S] | None] = []

        async def read_rows() -> None:
            rows.extend(await self._read())

        async def find_latest() -> None:
            latest.append(await self._latest.find())

        async with self._latest.lock:
            await side_by_side([read_rows, find_latest, *self._besides])
            self._latest.begin(latest[0])
            self._last = None
            await self._open(rows, latest[0])

    @abstractmethod
    async def _open(self, rows: list[Row], found: FoundSnapshot[S] | None) -> None: ...

    async def _set_unreadable_aside(self, found: FoundSnapshot[S], *, needed: bool) -> None:
        """`needed`: there is no journal to continue from. Errors: `SnapshotException` then."""
        if needed:
            raise await unreadable(self._tree, self._location, found)
        await self._latest.set_aside(found, f"it cannot be read: {found.fault}")

    async def _take_in(self, found: FoundSnapshot[S], snapshot: S, rows: list[Row]) -> list[Row]:
        made = await self._maker.rows_for(rows, snapshot, self._entropy, self._wall(), self.published)
        left_out = self._maker.left_out(found)
        # Before it is overwritten by a snapshot that has less.
        if left_out:
            await self._latest.set_aside(found, left_out)
        if made:
            note(_log, INFO, "a snapshot was taken in", file=found.place, records=len(made))
        return await self._appended(rows, made)

    async def _appended(self, rows: list[Row], made: Sequence[Row]) -> list[Row]:
        if not made:
            return rows
        (outcome,) = await self._journal.append([Batch(lease=self._lease, rows=made)])
        if not isinstance(outcome, Position):
            raise outcome
        return list(await self._read())

    @property
    def due(self) -> bool:
        return not (self._latest.over or self._latest.foreign) and self._is_behind()

    def _is_behind(self) -> bool:
        return self._wanted_seq > self._latest.seq

    async def publish(self) -> None:
        """Put what is due. Errors: `LeaseLost`, and those of the objects."""
        async with self._latest.lock:
            if self.due:
                await self._publish()

    async def _publish(self) -> None:
        await self._put_latest(await self._read())

    async def _put_latest(self, rows: Sequence[Row]) -> None:
        if rows:
            made = await self._made(rows)
            if await self._latest.put(made):
                self._note_put(made)
                self._wanted_seq = max(self._wanted_seq, self._latest.seq)

    def _note_put(self, made: LatestFile) -> None:
        self.published, self.fault = made.published, None

    async def _made(self, rows: Sequence[Row]) -> LatestFile:
        """The latest snapshot after these rows, which begin at the last one's `low`."""
        made = await self._maker.made(rows)
        return LatestFile(await body_of(made.document, made.size_bytes), rows[-1].seq)

    async def close(self) -> None:
        """Put all that is due before the session is released.

        What cannot be put now is put at the next opening. Another program's changes are taken in, after the rows of
        this session.
        """
        if self._latest.over:
            return
        try:
            await self._close()
        except LeaseLost:
            return
        except RepertoryError as error:
            self.fault = error
            ids = {"session": self._location.session_id, "agent": self._location.scope_id}
            note(_log, WARNING, "snapshots are not up to date", error, **ids)

    async def _close(self) -> None:
        with suppress(WrittenElsewhere):
            await self.publish()
        if self._latest.foreign:
            # Taken in behind our own rows, so that neither is lost.
            await self.open()
            await self.publish()

    def _want_all(self, rows: Sequence[Row]) -> None:
        if rows:
            self._wanted_seq = max(self._wanted_seq, rows[-1].seq)

    @property
    def is_settled(self) -> bool:
        """True if other programs see all that was committed, or all that they are to see."""
        return self._last is not None and self._latest.seq == self._last.seq and not self._latest.foreign

    def is_unchanged(self, tree: FolderSnapshotTree) -> bool:
        """True if no other program has written since the session was released: it may go on as it is."""
        return not self._latest.over and tree.is_unchanged(self._location, self._latest.version)

    def forget(self) -> None:
        """Record that this owner no longer has the session."""
        self._latest.over = True

    async def stop(self) -> None:
        """Forget, and wait until no put is under way."""
        self._latest.over = True
        async with self._latest.lock:
            pass


class RunSnapshots(Publisher["FoundRun"]):
    def __init__(self, address: SnapshotAddress, choices: SnapshotChoices) -> None:
        maker = RunMaker(address.location, address.lease.generation)
        super().__init__(address, LatestSnapshot(address, address.tree.latest_run), maker)
        self.choices = choices

    async def _open(self, rows: list[Row], found: FoundSnapshot[FoundRun] | None) -> None:
        if found is not None and found.snapshot is None:
            await self._set_unreadable_aside(found, needed=not rows)
        elif found is not None and found.snapshot is not None:
            self._maker.keep(found.snapshot, ours=False)
            position = found.snapshot.position
            if position is not None and is_of(position, rows):
                self._latest.seq = position.seq
            else:
                rows = await self._take_in(found, found.snapshot, rows)
        self._last = rows[-1] if rows else None
        self._wanted_seq = rows[-1].seq if rows else 0

    def after(self, rows: Sequence[Row]) -> None:
        """Called after these rows were committed."""
        self._last = rows[-1]
        if is_latest_due(self.choices, rows, run=True):
            self._wanted_seq = max(self._wanted_seq, rows[-1].seq)

    async def catch_up(self) -> None:
        """Put the current state: what the stored snapshot shows is about to be destroyed. Errors: as `publish`."""
        self._want_all(await self._read())
        await self.publish()

    async def _close(self) -> None:
        if not self.is_settled:
            self._want_all(await self._read())
            await super()._close()


def is_latest_due(choices: SnapshotChoices, rows: Sequence[Row], *, run: bool = False) -> bool:
    """True if the latest snapshot is to show what these rows say, by the choice for agents, or for runs."""
    if run:
        return choices.multi_agent_save_latest_on == "node" or any(map(_ends_run, rows))
    when, messages = choices.save_latest_on, map(message_in, rows)
    answers = when == "invocation" and any(is_answer(each) for each in messages if each)
    return when == "message" or answers or any(map(mark_in, rows))


def _ends_run(row: Row) -> bool:
    """True if no node is left to run after this row, or a failure or interrupt stops the run."""
    record = None if row.erased else decode(row.kind, row.version, row.body)
    return isinstance(record, NodeChanged) and (not record.frontier or record.status in ("failed", "interrupted"))


class AgentSnapshots(Publisher["ReadSnapshot"]):
    def __init__(self, address: SnapshotAddress, choices: SnapshotChoices, published: Published | None) -> None:
        """`published`: what other programs could see of the journal when it was last open here, if known."""
        self._agent_maker = maker = SnapshotMaker(address.location, address.lease.generation, choices)
        super().__init__(address, LatestSnapshot(address, address.tree.latest), maker)
        self.choices = choices
        self._view: AgentView | None = None
        """The state that the latest snapshot shows; None if it is not known."""
        self._judged = 0, False
        """The last record that `follow` has seen, and whether the latest snapshot was to show it."""
        self._ready: LatestFile | None = None
        """The snapshot to put as soon as the rows that are being committed are."""
        self._settles = choices.only_when_triggered
        """True if the manifest is to say how far marks are known, since the latest snapshot may not."""
        self.history = AgentHistory(address.tree, address.location, maker, address.wall)
        self._besides = [self.history.read]
        self.published = published
        self._seen_seq = 0
        """The last record that was searched for marks."""
        self._wanted_anyway = False
        """True if the next records trigger a save, whatever was chosen."""

    # Opening.

    async def _open(self, rows: list[Row], found: FoundSnapshot[ReadSnapshot] | None) -> None:
        load_id = self.choices.load.pending(self._location.scope_id) if self.choices.load is not None else None
        replaced = False
        if found is not None and found.snapshot is None:
            await self._set_unreadable_aside(found, needed=not rows and load_id is None)
            replaced = True
        elif found is not None and found.snapshot is not None:
            position = found.snapshot.position
            replaced = not is_of(position, rows)
            self._maker.keep(found.snapshot, ours=not replaced)
            if replaced:
                rows = await self._take_in(found, found.snapshot, rows)
            elif position is not None:
                self._latest.seq = position.seq
            self.published = found.published
        # Two places say how far marks are known; either may be behind after a kill.
        self._seen_seq = max(self._latest.seq, self.history.numbering.mark)
        await self._find_marks(rows)
        if load_id is not None:
            rows = await self._go_back(load_id, rows)
        last = rows[-1].seq if rows else 0
        self._seen_seq = max(self._seen_seq, last)
        self._last = rows[-1] if rows else None
        self._settles = self._settles or replaced
        if self.history.rebuilt:
            await self.history.publish()
            await self.history.settle(self._seen_seq)
        behind = self.history.due or self.history.numbering.taken > self._latest.seq
        if last and (replaced or behind or not self.choices.only_when_triggered):
            self._wanted_seq = last

    async def _find_marks(self, rows: Sequence[Row]) -> None:
        """Collect marks that were missed when they were committed: after a crash, or a commit without an answer."""
        if rows and rows[-1].seq > self._seen_seq:
            known = rows if rows[0].seq <= self._seen_seq + 1 else await self._read(whole=True)
            end = self._seen_seq + 1 - known[0].seq
            self.history.see(known[:end], known[end:])
            self._seen_seq = known[-1].seq

    async def _go_back(self, snapshot_id: str, rows: list[Row]) -> list[Row]:
        snapshot = await self.history.find(snapshot_id)
        made = await self.history.rows_back_to(snapshot_id, snapshot, await self._read(whole=True), self._entropy)
        rows = await self._appended(rows, made)
        mark = rows[-1].seq if rows else 0
        await self.history.branch(number_of(snapshot_id), snapshot.created_at, mark)
        assert self.choices.load is not None
        self.choices.load.done(self._location.scope_id)
        return rows

    # While it is open.

    async def before(self, rows: Sequence[Row]) -> Sequence[Row] | None:
        """The journal's rows before these, if there are marks among them."""
        return await self._read() if any(mark_in(row) is not None for row in rows) else None

    def begin_following(self, rows: Sequence[Row]) -> bool:
        """True if `follow` may be called as soon as these rows are committed. Nobody else puts snapshots until
        `end_following`.
        """
        follows = self._view is not None and rows[0].seq == self._view.seq + 1
        plain = not self.history.due and all(row.kind != RecordKind.SNAPSHOT for row in rows)
        # Then it goes the slow way, in the background. Here nothing may wait: the commit is about to begin.
        if not (follows and plain) or self._latest.over or self._latest.foreign or self._latest.lock.locked():
            return False
        self._ready = None
        if self._view is not None and self._view.size_bytes <= ON_LOOP_BYTES_MAX:
            self._prepare(rows)  # Here, where what it takes is in the processor's cache.
        # Held until `end_following`, across the thread of the commit: a lock of anyio belongs to the task that took it.
        self._latest.lock.acquire_nowait()
        return True

    def follow(self, tree: FolderSnapshotTree, rows: Sequence[Row]) -> None:
        """Show rows that were committed just now, in the thread that has committed them. What fails is due from then
        on, and tried again.
        """
        with suppress(RepertoryError):
            if self._view is not None and self._judged[0] != rows[-1].seq:
                self._prepare(rows)
            if self._ready is not None:
                self._latest.put_now(tree, self._ready)
                self._note_put(self._ready)

    def end_following(self, *, committed: bool) -> None:
        """The rows are committed, or it is not known that they are."""
        self._ready = None
        if not committed:
            self._view, self._judged = None, (0, False)
        self._latest.lock.release()

    def _prepare(self, rows: Sequence[Row]) -> None:
        """Make the snapshot after these rows, if the latest one is to show them."""
        # Taken out first: if `add` fails half-way, the view is unknown and is not kept.
        view, self._view = self._view, None
        assert view is not None
        with suppress(CorruptJournal, Invalid):  # The next put reads the rows that are needed to know, or says so.
            view.add(rows)
            last, seq = view.fold.last_message, view.fold.last_message_seq
            answered = last is not None and seq >= rows[0].seq and is_answer(last)
            due = self._wanted_anyway or (answered and not self.choices.only_when_triggered)
            due = due or is_latest_due(self.choices, rows)
            self._ready = self._agent_maker.latest(view) if due else None
            self._view, self._judged = view, (rows[-1].seq, due)

    def after(self, before: Sequence[Row] | None, rows: Sequence[Row]) -> None:
        """Called after these rows were committed. Rows that do not follow the last seen one are searched at the next
        put.
        """
        self._last = rows[-1]
        follow = rows[0].seq == self._seen_seq + 1
        if before is not None and follow and (before[-1].seq if before else 0) == self._seen_seq:
            self.history.see(before, rows)
            self._seen_seq = rows[-1].seq
        elif before is None and follow:
            self._seen_seq = rows[-1].seq
        judged, due = self._judged
        if self._wanted_anyway or (due if judged == rows[-1].seq else is_latest_due(self.choices, rows)):
            self._wanted_seq, self._wanted_anyway = max(self._wanted_seq, rows[-1].seq), False

    def want_latest(self) -> None:
        """Save the latest snapshot with the next records, whatever was chosen."""
        self._wanted_anyway = True

    def _is_behind(self) -> bool:
        return self.history.due or super()._is_behind()

    async def _publish(self) -> None:
        rows = await self._read()
        await self._find_marks(rows)
        await self.history.publish()
        if self.due:
            # Of the same rows: whoever opens the session next looks for marks behind what the latest snapshot shows.
            await self._put_latest(rows)

    async def _made(self, rows: Sequence[Row]) -> LatestFile:
        size_bytes = sum(len(row.body) for row in rows if self._view is None or row.seq > self._view.seq)
        return await in_thread_when_large(size_bytes, partial(self._caught_up, rows))

    def _caught_up(self, rows: Sequence[Row]) -> LatestFile:
        view, self._view = self._view, None
        if view is not None:
            try:
                view.add(rows)
            except (CorruptJournal, Invalid):
                view = None
        view = view or AgentView(rows, session_id=self._location.session_id)
        made = self._agent_maker.latest(view)
        self._view = None if self.choices.only_when_triggered else view
        return made

    async def check_unchanged(self) -> None:
        await self._latest.check_unchanged()

    def reread(self) -> None:
        """Read all rows at the next put, since contents of them are about to be erased."""
        self._view = None

    async def redact(self, instead: Replacements) -> None:
        """Replace messages in every snapshot. Errors: those of the objects."""
        async with self._latest.lock:
            await self.history.redact(instead)
            found = await self._tree.latest(self._location)
            changed = redact_snapshot(found.document, instead) if found is not None else None
            if found is not None and changed is not None:
                version = await self._tree.put_latest(self._location, await body_of(changed, 0), found.version)
                # If the one that was redacted is another program's, it stays unknown, so that it is still taken in.
                self._latest.version = version if found.version == self._latest.version else self._latest.version
            self._wanted_anyway = True

    async def remove(self, numbers: Iterable[int]) -> None:
        """Remove these numbered snapshots before their marks are removed. Errors: those of the objects."""
        async with self._latest.lock:
            await self.history.publish()
            for number in numbers:
                await self._tree.remove_history(self._location, str(number))

    @property
    def is_settled(self) -> bool:
        if self._is_behind() or self._latest.foreign or self._last is None or self._seen_seq != self._last.seq:
            return False
        return self.choices.only_when_triggered or self._latest.seq == self._last.seq

    async def _close(self) -> None:
        if not self.is_settled:
            async with self._latest.lock:
                rows = await self._read()
                await self._find_marks(rows)
                if self.history.due or not self.choices.only_when_triggered:
                    self._want_all(rows)
            await super()._close()
        last = self._last
        if self._settles and last is not None and last.low > self.history.numbering.mark + 1:
            await self.history.settle(self._seen_seq)  # So the next opening need not search the whole journal.


# The agents whose snapshots a store publishes, and the background work for them.


M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


class SnapshotAgent(Protocol[M_co]):
    """An agent or orchestrator whose snapshots are put from its journal."""

    @property
    def due(self) -> bool: ...

    @property
    def reopens(self) -> bool:
        """True if the next call must open it again."""
        ...

    choices: SnapshotChoices
    fault: RepertoryError | None
    """The error of the last try to put its snapshots; None if they were put."""

    @property
    def remembered(self) -> M_co | None:
        """The facts that its next opening here needs; None if there are none."""
        ...

    async def open(self) -> None: ...

    async def publish(self) -> None: ...

    def forget(self) -> None: ...


A = TypeVar("A", bound=SnapshotAgent[Any])


class SnapshotAgents(Generic[A, M]):
    def __init__(self, choices: SnapshotChoices) -> None:
        """`choices`: the default for agents."""
        self.leases: dict[str, Lease] = {}
        """The leases that the store holds, by session id."""
        self._choices = choices
        self._chosen: dict[tuple[str, str], SnapshotChoices] = {}
        self._open: dict[tuple[str, str], A] = {}
        self._opening: dict[tuple[str, str], anyio.Lock] = {}
        self._remembered: dict[tuple[str, str], M] = {}
        """The facts known of agents that were open here and may be opened again."""
        self._behind: dict[tuple[str, str], RepertoryError] = {}
        """Agents that were given up before their snapshots could be put, and why."""
        self._busy: set[A] = set()
        self._work = anyio.Event()
        self._limiter = anyio.CapacityLimiter(_AT_ONCE)

    def use(self, session_id: str, agent_id: str, choices: SnapshotChoices) -> None:
        """Set an agent's choices for the next time that it is opened."""
        self._chosen[session_id, agent_id] = choices

    def find(self, session_id: str, agent_id: str) -> A | None:
        return self._open.get((session_id, agent_id))

    async def opened(self, session_id: str, agent_id: str, make: Callable[[SnapshotChoices, M | None], A]) -> A:
        """The open agent or orchestrator; made and opened if needed. Errors: those of opening it."""
        key = session_id, agent_id
        async with self._opening.setdefault(key, anyio.Lock()):
            agent = self._open.get(key)
            if agent is None or agent.reopens:
                self._remember(key, agent)
                agent = make(self._chosen.get(key, self._choices), self._remembered.get(key))
                # What is taken in is appended to the journal; cut in half, it would be taken in again, and stand there
                # twice.
                with Uncut():
                    await agent.open()
                self._remembered.pop(key, None)
                self._behind.pop(key, None)
                self._open[key] = agent
                self.look()
            return agent

    def of(self, session_id: str) -> Iterator[tuple[str, A]]:
        """The open agents of a session, by id."""
        return iter([(agent_id, agent) for (session, agent_id), agent in self._open.items() if session == session_id])

    def leave(self, session_id: str) -> dict[str, A]:
        """Take the open agents of a session out, for `take_back`."""
        self.leases.pop(session_id, None)
        agents = dict(self.of(session_id))
        for key in [(session_id, agent_id) for agent_id in agents]:
            for table in (self._open, self._opening, self._remembered, self._chosen):
                table.pop(key, None)
        return agents

    def take_back(self, lease: Lease, agents: Mapping[str, A]) -> None:
        """Go on with the agents of a session that nobody else has had since."""
        self.leases[lease.session_id] = lease
        for agent_id, agent in agents.items():
            key = lease.session_id, agent_id
            self._open[key], self._chosen[key] = agent, agent.choices

    def drop(self, session_id: str, *, given_up: bool) -> None:
        """Forget a session that this owner no longer has. `given_up`: forget its agents' choices as well, and what is
        remembered of them.
        """
        self.leases.pop(session_id, None)
        for agent_id, agent in self.of(session_id):
            key = session_id, agent_id
            agent.forget()
            if agent.fault is not None:
                self._behind[key] = agent.fault
            del self._open[key]
            self._opening.pop(key, None)
            if given_up:
                self._chosen.pop(key, None)
                self._remembered.pop(key, None)
            else:
                self._remember(key, agent)

    def _remember(self, key: tuple[str, str], agent: A | None) -> None:
        remembered = agent.remembered if agent is not None else None
        if remembered is not None:
            self._remembered[key] = remembered

    def behind(self) -> list[NotPublished]:
        """The agents whose snapshots could not be put, and why."""
        faults = self._behind | {key: agent.fault for key, agent in self._open.items() if agent.fault is not None}
        return [
            NotPublished(session_id=session_id, agent_id=agent_id, error=str(fault))
            for (session_id, agent_id), fault in faults.items()
        ]

    def look(self) -> None:
        """Wake `run` if there is something to put."""
        if any(agent.due and agent not in self._busy for agent in self._open.values()):
            self._work.set()

    async def run(self) -> None:
        """Put what is due, until cancelled, which is safe at any time."""
        async with anyio.create_task_group() as tasks:
            while True:
                # Before the look, so that what becomes due during it is not missed.
                self._work = anyio.Event()
                for agent in [agent for agent in self._open.values() if agent.due and agent not in self._busy]:
                    self._busy.add(agent)
                    tasks.start_soon(self._publish, agent)
                await self._work.wait()

    async def _publish(self, agent: A) -> None:
        warned_of = ""
        try:
            while agent.due:
                try:
                    # A put that is cut off may have happened, so closing would look and put again.
                    async with self._limiter, waited_for(math.inf, if_cancelled_s=_GRACE_S):
                        with own_errors():
                            await agent.publish()
                except LeaseLost:
                    return
                except RepertoryError as error:
                    agent.fault = error
                    # Once per kind: an outage of hours would otherwise fill the log every five seconds.
                    if not isinstance(error, Retryable) and str(error) != warned_of:
                        warned_of = str(error)
                        note(_log, WARNING, "snapshots cannot be put", why=warned_of)
                    await anyio.sleep(_RETRY_S)
        finally:
            self._busy.discard(agent)
