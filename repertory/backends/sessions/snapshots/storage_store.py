"""Sessions in a user's `SnapshotStorage`: each agent's latest snapshot carries its journal."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeAlias, cast

import anyio
from anyio.lowlevel import checkpoint

from repertory.backends.ports import (
    Lease,
    OwnedRows,
    Position,
    SessionStore,
    StoreCapabilities,
    not_again,
    owned_rows,
    release_each,
)
from repertory.backends.sessions.journal.format import pack, unpack
from repertory.backends.sessions.snapshots.makers import (
    AgentHistory,
    FoundSnapshot,
    Maker,
    RunMaker,
    S,
    SnapshotMaker,
    found_snapshot,
    is_of,
    mark_in,
    marked_number,
    unreadable,
)
from repertory.backends.sessions.snapshots.publisher import SnapshotAgents, is_latest_due
from repertory.backends.sessions.table import (
    append_apart,
    in_thread_when_large,
    lost,
    parts_by_agent,
    position_after,
    refuse_gaps,
)
from repertory.backends.shields import Uncut
from repertory.backends.worker_threads import run_in_thread
from repertory.core.ids import check_id
from repertory.core.journal.rows import Row, verify
from repertory.core.json_bytes import from_base64, to_base64
from repertory.core.message_tree.documents import OURS
from repertory.core.message_tree.opening import needed_of
from repertory.core.snapshots.document import read_run_snapshot
from repertory.core.snapshots.intake import replacements
from repertory.core.snapshots.location import (
    LATEST_ID,
    RUN_SCOPE,
    Numbering,
    SnapshotLocation,
    in_order,
    manifest_of,
    number_of,
    read_manifest,
)
from repertory.errors import CorruptJournal, Invalid, LeaseLost, RepertoryError, SnapshotException, StoreFailed
from repertory.logs import WARNING, note

if TYPE_CHECKING:
    from repertory.backends.ports import Batch, IdPage, SessionInfo
    from repertory.backends.sessions.snapshots.port import SnapshotChoices, SnapshotStorage
    from repertory.core.journal.restore import Entropy
    from repertory.core.messages import Json
    from repertory.core.snapshots.document import FoundRun, ReadSnapshot
    from repertory.core.snapshots.intake import Published

AnyJournal: TypeAlias = "EmbeddedJournal[ReadSnapshot] | EmbeddedJournal[FoundRun]"


class StorageSessionStore(SessionStore):
    """A `SessionStore` over a snapshot storage. For one event loop.

    Every commit saves the latest snapshot of each agent that it is for, with the whole journal; what it shows to other
    programs changes when `save_latest_on` says so. Such a storage knows no leases: every process
    that opens a session gets it, and an owner learns of another one's save at its next commit or proof, as `LeaseLost`.
    If two processes commit at the same instant, one commit is lost: do not share a session between processes.

    Errors of every call: `SessionException` for any exception of the storage, `SnapshotException` and `CorruptJournal`
    for a damaged latest snapshot, `Invalid` for what a storage cannot do, and after `aclose`.
    """

    def __init__(
        self,
        storage: SnapshotStorage,
        *,
        owner: str,
        wall: Callable[[], float],
        entropy: Entropy,
        choices: SnapshotChoices,
    ) -> None:
        """`owner` must be unique to this object. `wall` gives epoch seconds, `entropy` random bytes. `choices`: the
        default for agents.
        """
        self._storage = StorageSnapshots(storage)
        self._owner = check_id(owner, "owner")
        self._wall = wall
        self._entropy = entropy
        self._generation = 0
        self._closed = False
        self.snapshots: SnapshotAgents[AnyJournal, OverwrittenSnapshot] = SnapshotAgents(choices)

    @property
    def name(self) -> str:
        return f"snapshots:{self._storage.name}"

    @property
    def capabilities(self) -> StoreCapabilities:
        # A commit saves the whole conversation, so records that no caller waits for should gather.
        return StoreCapabilities(maintained=True, shares_turns=True)

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        """Become the owner. An earlier lease of this same object is fenced now; other objects' leases are, at the next
        commit.
        """
        del takeover
        if again is not None:
            raise not_again(again)
        self._check_open()
        check_id(session_id, "session id")
        # Nothing is asked of the storage here, but an `await` that can never be cancelled surprises.
        await checkpoint()
        self.snapshots.drop(session_id, given_up=False)
        # The clock, since the storage cannot be asked without reading a whole snapshot. What decides is the comparison
        # in each commit (`check`); the number only tells owners apart.
        self._generation = max(self._generation + 1, int(self._wall() * 1000))
        lease = Lease(session_id=session_id, owner=self._owner, generation=self._generation)
        self.snapshots.leases[session_id] = lease
        return await owned_rows(self, lease, load)

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        """Put what is due, then release the sessions. A lease that is no longer current is ignored."""
        self._check_open()
        return await release_each(self._release, leases)

    async def _release(self, lease: Lease) -> None:
        if self.snapshots.leases.get(lease.session_id) == lease:
            try:
                await self._close(lease.session_id)
            finally:
                self.snapshots.drop(lease.session_id, given_up=True)

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        """Commit a group, agent by agent; one outcome per batch, in order. Cancellation waits for it."""
        self._check_open()
        outcomes = await append_apart(batches, nullcontext, self._append)
        self.snapshots.look()
        return outcomes

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        """Rows in order, from the last row's `low` on, or all of them. At the owner's first call, other programs'
        changes are taken in.
        """
        self._check_open()
        check_id(session_id, "session id")
        location = SnapshotLocation.of(session_id, check_id(agent_id, "agent id"))
        lease = self.snapshots.leases.get(session_id)
        if lease is not None:
            rows = (await self._opened(lease, agent_id)).rows
        else:
            rows = await rows_in(await self._storage.latest(location), location)
        return list(rows) if whole else needed_of(rows)

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        """Always `Invalid`: a storage cannot list sessions."""
        del page
        self._refuse("a snapshot storage cannot tell which sessions it has", session_id)

    async def delete(self, session_id: str) -> None:
        """Always `Invalid`: a storage cannot delete."""
        check_id(session_id, "session id")
        self._refuse("a snapshot storage cannot remove anything", session_id)

    async def maintain(self) -> None:
        """Put numbered snapshots, until cancelled, which is safe at any time."""
        await self.snapshots.run()

    async def aclose(self) -> None:
        """Put what is due, and close. The storage stays open: its owner closes it. Calling it twice is allowed."""
        with Uncut():
            for session_id in list(self.snapshots.leases):
                await self._close(session_id)
                self.snapshots.drop(session_id, given_up=True)
        self._closed = True
        await checkpoint()

    async def list_snapshot_ids(self, session_id: str, agent_id: str) -> list[str]:
        """The ids of an agent's numbered snapshots, oldest first."""
        return await self._storage.ids(SnapshotLocation.of(session_id, agent_id))

    async def document(self, session_id: str, agent_id: str, snapshot_id: str | None) -> Mapping[str, object] | None:
        """An agent's numbered snapshot, or its latest one, as it is stored; None when there is none."""
        location = SnapshotLocation.of(session_id, agent_id)
        if snapshot_id is None:
            return _shown(await self._storage.latest(location))
        found = await self._storage.history(location, snapshot_id)
        return None if found is None else found.document

    async def latest(self, session_id: str, journal: str) -> Mapping[str, object] | None:
        """The latest snapshot of an agent, or the run in that of an orchestrator; None when there is none. Errors:
        `SnapshotException` for a damaged one.
        """
        location = SnapshotLocation.of(session_id, journal)
        found = await self._storage.latest(location)
        if found is None or location.scope != RUN_SCOPE:
            return _shown(found)
        return read_run_snapshot(found, location.scope_id).document

    async def put_latest(self, session_id: str, journal: str, document: Mapping[str, object]) -> None:
        """Replace the latest snapshot, as another program would: its owner takes it in when it opens the session."""
        await self._storage.put_latest(SnapshotLocation.of(session_id, journal), document)

    # Within.

    def _check_open(self) -> None:
        if self._closed:
            raise Invalid("this was closed before", name=self.name)

    def _refuse(self, msg: str, session_id: str | None) -> NoReturn:
        self._check_open()
        raise Invalid(msg, session=session_id)

    async def _close(self, session_id: str) -> None:
        """Close its agents. A snapshot that cannot be put now is put when the session is opened next."""
        for _, agent in self.snapshots.of(session_id):
            with suppress(RepertoryError):
                await agent.close()

    async def _opened(self, lease: Lease, agent_id: str) -> AnyJournal:
        """The open agent or orchestrator; opens it if needed."""

        def make(choices: SnapshotChoices, overwritten: OverwrittenSnapshot | None) -> AnyJournal:
            location = SnapshotLocation.of(lease.session_id, agent_id)
            place = EmbeddedAddress(self._storage, lease, location, self._wall, self._entropy)
            if location.scope == RUN_SCOPE:
                return EmbeddedJournal(place, choices, RunMaker(location, 0), overwritten)
            return EmbeddedJournal(place, choices, SnapshotMaker(location, 0, choices), overwritten)

        return await self.snapshots.opened(lease.session_id, agent_id, make)

    async def _append(self, session_id: str, batch: Batch) -> Position | RepertoryError:
        if self.snapshots.leases.get(session_id) != batch.lease:
            return lost(batch.lease)
        parts = parts_by_agent(batch)
        if not parts:
            return await self._prove(batch.lease)
        seqs: dict[str, int] = {}
        for agent_id, part in parts.items():
            agent = await self._opened(batch.lease, agent_id)
            found = await agent.append(part.rows, part.erase)
            if isinstance(found, RepertoryError):
                return found
            seqs[agent_id] = found.seq
        return position_after(batch, seqs)

    async def _prove(self, lease: Lease) -> Position | RepertoryError:
        outcome: Position | RepertoryError = Position(agent_id="", seq=0)
        for _, agent in self.snapshots.of(lease.session_id):
            outcome = await agent.append((), ())
            if isinstance(outcome, RepertoryError):
                return outcome
        return outcome


# The journal of one agent or orchestrator, embedded in its latest snapshot, for storages that keep nothing else.
#
# Every commit saves the latest snapshot, with all rows packed into a field that others leave out. Such a place has no
# conditional writes, so an owner looks before each commit whether the snapshot is still the one that it knows.

_log = logging.getLogger("repertory.sessions")
_ROWS = "rows"
_OWNER = "owner"
_MARK = "mark"


class KnownSnapshot(NamedTuple):
    """Identifies the snapshot that this owner knows."""

    owner: str
    generation: int
    """Rises with each owner."""
    seq: int


class OverwrittenSnapshot(NamedTuple):
    """The memory of an owner of an agent whose snapshot another program has overwritten."""

    rows: Sequence[Row]
    published: Published | None


class EmbeddedAddress(NamedTuple):
    """A storage and one agent's location in it, as the owner reaches them."""

    storage: StorageSnapshots
    lease: Lease
    location: SnapshotLocation
    wall: Callable[[], float]
    entropy: Entropy


class EmbeddedJournal(Generic[S]):
    """A journal and its snapshots. After an error its position is unknown: open a new one."""

    def __init__(
        self, place: EmbeddedAddress, choices: SnapshotChoices, maker: Maker[S], overwritten: OverwrittenSnapshot | None
    ) -> None:
        """`overwritten`: what is remembered from when it was last open here."""
        self._storage, self._lease, self._location, self._wall, self._entropy = place
        self._is_run = self._location.scope == RUN_SCOPE
        self.choices = choices
        self._overwritten = overwritten
        self._maker = maker
        self.history = AgentHistory(self._storage, self._location, maker, self._wall)
        self.fault: RepertoryError | None = None
        """The error of the last try to put numbered snapshots; None if they were put."""
        self.rows: list[Row] = []
        """All of them."""
        self.published = overwritten.published if overwritten is not None else None
        self._known: KnownSnapshot | None = None
        self._mark = 0
        """Every marked snapshot up to this record has its document."""
        self._shown_seq = 0
        """The last record that the latest snapshot shows to other programs."""
        self._wanted = False
        """True if the next records are shown at once, whatever was chosen."""
        self.reopens = False
        """True if another owner may have saved the snapshot: the next call must open it again."""
        self._lock = anyio.Lock()

    @property
    def last_seq(self) -> int:
        """The last stored row; 0 when there is none."""
        return self.rows[-1].seq if self.rows else 0

    async def open(self) -> None:
        """Read the journal, take in other programs' changes, and go back to a chosen snapshot.

        Errors: `SnapshotException` for an unreadable latest snapshot, `CorruptJournal` for a damaged journal in it,
        `NotFound` for a missing chosen snapshot; those of the storage.
        """
        load = self.choices.load
        load_id = load.pending(self._location.scope_id) if load is not None else None
        document = await self._storage.latest(self._location)
        await self.history.read()
        found = None if document is None else self._maker.found_in(document, f"{path_of(self._location)}/latest")
        self._known, self._mark = known_in(document), _number(_ours_in(document).get(_MARK))
        self._maker.generation = (self._known.generation if self._known is not None else 0) + 1
        made = await self._found(document, found, load_id)
        self._find_marks()
        if load_id is not None:
            made += await self._back(load_id)
        if made or (load_id is not None and self.rows):
            await self._save(self.rows, self.last_seq)
        if load_id is not None and load is not None:
            load.done(self._location.scope_id)

    async def _found(self, document: object, found: FoundSnapshot[S] | None, load_id: str | None) -> list[Row]:
        """Take over the stored rows; returns the rows made from other programs' changes."""
        rows = await rows_in(document, self._location, damaged=load_id is not None)
        ours = found is not None and found.snapshot is not None and is_of(found.snapshot.position, rows)
        # Another program has written over the snapshot, and with it over the journal in it. This process still knows
        # the rows.
        if not ours and not rows and self._overwritten is not None:
            rows = list(self._overwritten.rows)
        self.rows = rows
        if found is None:
            return []
        if found.snapshot is None:
            if not rows and load_id is None:
                raise await unreadable(self._storage, self._location, found)
            note(_log, WARNING, "a snapshot cannot be read", place=found.place, why=found.fault)
            return []
        self._maker.keep(found.snapshot, ours=ours)
        position = found.snapshot.position
        self._shown_seq = position.seq if ours and position is not None else 0
        published, self.published = self.published, found.published
        if ours:
            return []
        made = await self._maker.rows_for(needed_of(self.rows), found.snapshot, self._entropy, self._wall(), published)
        self.rows += made
        return made

    def _find_marks(self) -> None:
        """Collect the snapshots that a crash left without a document: the last ones, whose numbers are not taken."""
        taken = [(row.seq, record) for row in self.rows if (record := mark_in(row)) is not None]
        due = 0
        for seq, record in reversed(taken):
            if seq <= self._mark or marked_number(record) < self.history.numbering.next_number:
                break
            due = seq
        if due:
            self.history.see(self.rows[: due - 1], self.rows[due - 1 :])
        elif taken:
            self.history.last_at = taken[-1][1].at

    async def _back(self, snapshot_id: str) -> list[Row]:
        snapshot = await self.history.find(snapshot_id)
        made = await self.history.rows_back_to(snapshot_id, snapshot, self.rows, self._entropy)
        self.rows += made
        self._mark = self.last_seq
        await self.history.branch(number_of(snapshot_id), snapshot.created_at, self._mark)
        return list(made)

    async def check(self) -> None:
        """Errors: `LeaseLost` when another program has saved the latest snapshot meanwhile; those of the storage."""
        # A look and a save, with nothing between them that could be conditional: two processes at the same instant lose
        # one of the commits, which the class says.
        if known_in(await self._storage.latest(self._location)) != self._known:
            self.reopens = True
            fields = {"session": self._location.session_id, "agent": self._location.journal}
            raise LeaseLost("another owner has saved the session; open it again to load that", **fields)

    async def append(self, added: Sequence[Row], erase: Sequence[int]) -> Position | RepertoryError:
        """Save these rows after the stored ones, without the contents to be erased."""
        async with self._lock:
            refused = refuse_gaps(self._location.session_id, added, self.last_seq)
            if refused is not None:
                return refused
            gone = {seq for seq in erase if 0 < seq <= self.last_seq + len(added)}
            try:
                await self.check()
                if added or gone:
                    await self._append(added, gone)
            except RepertoryError as error:
                return error
            return Position(agent_id=self._location.journal, seq=self.last_seq)

    async def _append(self, added: Sequence[Row], erase: set[int]) -> None:
        rows = [*self.rows, *added]
        if erase:
            instead = replacements([row for row in rows if row.seq in erase], added)
            await self.history.redact(instead)
            rows = [row.without_content() if row.seq in erase else row for row in rows]
        shows = bool(erase) or self._wanted or is_latest_due(self.choices, added, run=self._is_run)
        try:
            await self._save(rows, rows[-1].seq if shows else self._shown_seq)
        except RepertoryError:
            self.reopens = True  # The snapshot may have been saved all the same.
            raise
        self._wanted = self._wanted and not shows
        before, self.rows = self.rows, rows
        self.history.see(before, added)

    async def _save(self, rows: list[Row], shown_seq: int) -> None:
        shown = [row for row in rows if row.seq <= shown_seq]
        header: dict[str, object] = {"kind": "snapshot", "session": self._location.session_id}
        size_bytes = sum(len(row.body) for row in rows)
        packed = await in_thread_when_large(size_bytes, lambda: to_base64(pack(header, rows)))
        more: dict[str, Json] = {_OWNER: self._lease.owner, _MARK: self._mark, _ROWS: packed}
        try:
            made = await self._maker.made(needed_of(shown), more=more)
        except CorruptJournal:  # A message is erased and has no replacement: other programs are shown nothing.
            made = await self._maker.made((), more=more)
        await self._storage.put_latest(self._location, made.document)
        self._known = known_in(made.document)
        self.published, self._shown_seq = made.published, shown_seq

    @property
    def remembered(self) -> OverwrittenSnapshot:
        return OverwrittenSnapshot(list(self.rows), self.published)

    @property
    def due(self) -> bool:
        """True if a numbered snapshot must be put."""
        return not self.reopens and self.history.due

    async def publish(self) -> None:
        async with self._lock:
            if self.due:
                end = self.last_seq
                await self.history.publish()
                self._mark = end

    async def close(self) -> None:
        """Put what is due, and show all records, unless that waits for a trigger."""
        await self.publish()
        async with self._lock:
            waits = self.choices.only_when_triggered and not self._is_run
            if self._shown_seq < self.last_seq and not self.reopens and not waits:
                await self.check()
                await self._save(self.rows, self.last_seq)

    def want_latest(self) -> None:
        """Show the next records to other programs, whatever was chosen."""
        self._wanted = True

    def forget(self) -> None:
        self.reopens = True


def _shown(document: object) -> Mapping[str, object] | None:
    """A latest snapshot; None for one that shows nothing yet."""
    ours = _ours_in(document)
    nothing = _ROWS in ours and not ours.get("seq")
    return None if nothing else cast("Mapping[str, object] | None", document)


def known_in(document: object) -> KnownSnapshot | None:
    """The identity of a latest snapshot; None for no snapshot."""
    if document is None:
        return None
    ours = _ours_in(document)
    generation, seq = ours.get("generation"), ours.get("seq")
    if not (isinstance(generation, int) and isinstance(seq, int)):
        # Another program's: it has no number, so its content tells whether it has changed.
        return KnownSnapshot(sha256(repr(document).encode()).hexdigest(), 0, 0)
    return KnownSnapshot(str(ours.get(_OWNER)), generation, seq)


async def rows_in(document: object, location: SnapshotLocation, *, damaged: bool = False) -> list[Row]:
    """All rows of the journal in a latest snapshot; none when it carries none.

    Errors: `CorruptJournal`; with `damaged`, a damaged journal counts as none.
    """
    packed = _ours_in(document).get(_ROWS)
    if packed is None:
        return []

    def unpacked() -> list[Row]:
        rows = unpack(from_base64(str(packed))).rows
        verify(rows, session_id=location.session_id)
        return rows

    try:
        return await in_thread_when_large(len(str(packed)), unpacked)
    except (ValueError, CorruptJournal) as error:
        if damaged:
            return []
        msg = "the journal in the latest snapshot is damaged; load_snapshot_id opens the session without it"
        raise CorruptJournal(msg, place=path_of(location), cause=str(error)) from error


def _ours_in(document: object) -> dict[str, object]:
    ours = cast("dict[str, object]", document).get(OURS) if isinstance(document, dict) else None
    return cast("dict[str, object]", ours) if isinstance(ours, dict) else {}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


class StorageSnapshots:
    """A storage. Its functions run one at a time, its coroutine functions concurrently.

    Errors of every call: `StoreFailed` (a `SessionException`) for any exception of the storage.
    """

    def __init__(self, storage: SnapshotStorage) -> None:
        self._storage = storage
        self._turn = anyio.Lock()

    @property
    def name(self) -> str:
        """Equal names mean the same storage."""
        return f"{id(self._storage):x}"

    async def latest(self, location: SnapshotLocation) -> object:
        """The latest snapshot as the storage returns it; None when it has none."""
        return await self._ask(partial(self._storage.load_snapshot, location=location))

    async def put_latest(self, location: SnapshotLocation, document: Mapping[str, object]) -> None:
        await self._save(location, LATEST_ID, document)

    async def history(self, location: SnapshotLocation, snapshot_id: str) -> FoundSnapshot[ReadSnapshot] | None:
        found = await self._ask(partial(self._storage.load_snapshot, location=location, snapshot_id=snapshot_id))
        return None if found is None else found_snapshot(found, f"{path_of(location)}/{snapshot_id}")

    async def put_history(
        self, location: SnapshotLocation, snapshot_id: str, document: Mapping[str, object], size_bytes: int
    ) -> None:
        """Save a snapshot; it replaces one with the same id."""
        del size_bytes
        await self._save(location, snapshot_id, document)

    async def ids(self, location: SnapshotLocation) -> list[str]:
        """The stored ids, numbers first."""
        found = await self._ask(partial(self._storage.list_snapshot_ids, location=location))
        ids = [str(each) for each in cast("Sequence[object]", found or ())]
        numbers = {each: number_of(each) for each in ids}
        return in_order(each if number is None else str(number) for each, number in numbers.items() if number != 0)

    async def numbering(self, location: SnapshotLocation) -> Numbering:
        """The content of the manifest. Errors: `SnapshotException` when it cannot be read."""
        found = await self._ask(partial(self._storage.load_manifest, location=location))
        try:
            return read_manifest(found)
        except ValueError as error:
            raise SnapshotException("a manifest cannot be read", place=path_of(location), cause=str(error)) from error

    async def keep_manifest(self, location: SnapshotLocation) -> None:
        """A storage cannot keep copies."""

    async def put_numbering(self, location: SnapshotLocation, numbering: Numbering, at: float) -> None:
        manifest = manifest_of(numbering, at)
        await self._ask(partial(self._storage.save_manifest, location=location, manifest=manifest))

    async def _save(self, location: SnapshotLocation, snapshot_id: str, document: Mapping[str, object]) -> None:
        latest = snapshot_id == LATEST_ID
        save = partial(self._storage.save_snapshot, location=location, snapshot_id=snapshot_id, is_latest=latest)
        await self._ask(partial(save, snapshot=dict(document)))

    async def _ask(self, method: partial[Any]) -> object:
        """The storage's answer, from a function or a coroutine function."""
        try:
            if inspect.iscoroutinefunction(method):
                return await method()
            # One at a time: users write these functions for programs without threads.
            async with self._turn:
                answer = await run_in_thread(method)
            # `iscoroutinefunction` misses decorated methods, and functions that return an awaitable.
            return await answer if inspect.isawaitable(answer) else answer
        except RepertoryError:
            raise
        except Exception as error:
            name = getattr(method.func, "__name__", "a method")
            msg = f"the snapshot storage failed in {name}: {type(error).__name__}: {error}"
            raise StoreFailed(msg) from error


def path_of(location: SnapshotLocation) -> str:
    return f"{location.session_id}/{location.scope_id}"
