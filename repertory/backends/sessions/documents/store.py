"""Sessions as the tree of documents that other tools read and write, over any object store.

Durability: `append` returns when every document is on stable storage. An interrupted commit of several documents counts
as not made. Writers that know no leases may add messages at any time: opening the session takes them in, and an owner
that meets one gets `LeaseLost`, so nothing is ever overwritten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from repertory.backends.ports import (
    Batch,
    Corruption,
    Expect,
    IdPage,
    Inspection,
    ObjectStep,
    OwnedRows,
    Position,
    Put,
    SalvagedRows,
    SessionInfo,
    SessionStore,
    StoreCapabilities,
    StoreRepair,
    StoreSharing,
    begin,
    not_again,
    owned_rows,
    release_each,
)
from repertory.backends.sessions.documents.journal import (
    LeaseChanged,
    OrchestratorJournal,
    TreeJournal,
    TreeSettings,
    repaired_rows,
    salvaged_run_rows,
    seen_rows,
)
from repertory.backends.sessions.documents.lease import HeldLease, LeaseFile, TreeLeases
from repertory.backends.sessions.documents.reading import (
    SESSIONS,
    AgentNames,
    JournalPlace,
    SessionNames,
    check_tail,
    check_told,
    id_in_document,
    id_of_folder,
    places_in,
    read_agent_file,
    read_journal,
)
from repertory.backends.sessions.requests import copy_aside, names_aside, remove_aside, side_by_side
from repertory.backends.sessions.table import (
    AcquiredNow,
    CommitOutcome,
    SessionEntry,
    SessionTable,
    append_apart,
    busy,
    listed_session,
    lost,
    newest_first,
    page_by_name,
    parts_by_agent,
    position_after,
    refuse_gaps,
)
from repertory.backends.shields import Uncut
from repertory.core.ids import ID_BYTES_MAX, check_id
from repertory.core.journal.codec import at_of
from repertory.core.journal.rows import RecordKind
from repertory.core.json_bytes import parsed
from repertory.core.message_tree.assembly import Assembled, DocumentSource
from repertory.core.message_tree.documents import Read, read_message_document, read_run_file
from repertory.core.message_tree.kept_rows import read_head
from repertory.core.message_tree.opening import open_agent
from repertory.core.orchestration.journals import orchestrator_in
from repertory.errors import Corrupt, Invalid, LeaseLost, NotFound, RepertoryError, StoreNotFound

if TYPE_CHECKING:
    from repertory.backends.ports import Lease, ObjectInfo, ObjectStore
    from repertory.backends.sessions.liveness import Liveness
    from repertory.core.journal.restore import Entropy
    from repertory.core.journal.rows import Row

_Journal: TypeAlias = TreeJournal | OrchestratorJournal


_Entry: TypeAlias = "SessionEntry[HeldLease, _Journal]"


class MessageTreeStore(SessionStore):
    """A `SessionStore` over an `ObjectStore`, which it closes. For one event loop.

    Errors of every call: those of the objects (`Unavailable`, `Throttled`, `Failed`), `CorruptJournal` and `Corrupt`
    with the document, `Invalid` (bad ids, links in the tree, a closed store).
    """

    def __init__(
        self,
        objects: ObjectStore,
        *,
        owner: str,
        life: Liveness,
        wall: Callable[[], float],
        entropy: Entropy,
        settings: TreeSettings | None = None,
    ) -> None:
        """`owner` must be unique to this object. `wall` gives epoch seconds, `entropy` random bytes."""
        self._objects = objects
        self._owner = check_id(owner, "owner")
        self._life = life
        self._wall = wall
        self._entropy = entropy
        self._settings = settings or TreeSettings()
        self._leases = TreeLeases(objects, life, owner, wall, self._settings.prove_s)
        self._table: SessionTable[HeldLease, _Journal] = SessionTable(lambda: self.name)
        self._released: WeakKeyDictionary[Lease, tuple[HeldLease, dict[str, _Journal]]] = WeakKeyDictionary()
        """Sessions for `_acquire_again`, each for as long as somebody keeps its lease."""
        self._acquiring = AcquiredNow()

    @property
    def name(self) -> str:
        return f"messages:{self._objects.name}"

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        check_id(session_id, "session id")
        if again is not None:
            if not await self._acquire_again(again):
                raise not_again(again)
            return await owned_rows(self, again, load)
        return await owned_rows(self, await self._acquire(session_id, takeover=takeover), load)

    async def _acquire(self, session_id: str, *, takeover: bool) -> Lease:
        names = self._names(session_id)
        with Uncut():
            async with self._table.locked(session_id) as session:
                await check_told(self._objects, names)
                with self._acquiring.include(session_id):
                    session.held = held = await self._leases.acquire(names, takeover=takeover)
                session.journals = {}
                return held.lease
        raise AssertionError

    @property
    def capabilities(self) -> StoreCapabilities:
        renew_s = self._settings.renew_every_s
        return StoreCapabilities(
            repair=StoreRepair(
                inspect=self.inspect,
                examine=self.examine,
                salvage=self.salvage,
                set_aside=self.set_aside,
                quarantined=self.quarantined,
            ),
            sharing=StoreSharing(
                asked_for=self.asked_for,
                yields_within_s=1.0 if renew_s is None else renew_s + 1.5,
                listen=self._life.listen,
                waiting=self._life.waiting,
                abandon=self._life.abandon,
            ),
            maintained=renew_s is not None,
            others_add="refuses",
            shares_turns=True,
            acquires_again="call",
        )

    async def asked_for(self) -> Sequence[str]:
        """Sessions held by this object that other processes have asked for since the last call. In a bucket, each
        renewal checks for it. Errors: `Unavailable`.
        """
        holding = self._table.held()
        leaving = self._table.is_leaving
        asked = {*(await self._life.asked_for() if holding or self._acquiring or leaving else ())}
        await self._table.release_leaving(asked, self._release)
        for session_id, held in holding.items():
            if held.wanted:
                held.wanted = False
                asked.add(session_id)
        return sorted(asked & (holding.keys() | self._acquiring.keys() | self._table.held().keys()))

    async def _acquire_again(self, lease: Lease) -> bool:
        """Goes on with the journals as they were, if no message and no agent's document was added or replaced since.
        Messages that other programs have changed in place are seen when the session is opened anew.
        """
        released = self._released.pop(lease, None)
        if released is None:
            return False
        held, journals = released
        names = self._names(lease.session_id)
        with Uncut():
            async with self._table.locked(lease.session_id) as session:
                if session.held is not None:
                    return False
                unchanged: list[ObjectStep] = []
                for journal in journals.values():
                    if isinstance(journal, OrchestratorJournal):
                        return False
                    unchanged += journal.unchanged()
                with self._acquiring.include(lease.session_id):
                    if not await self._leases.acquire_again(names, held, unchanged):
                        return False
                    # With the caller's own lease: what is kept after the next release is kept as long as that one.
                    session.held, session.journals = replace(held, lease=lease), journals
                return True
        raise AssertionError

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        return await release_each(lambda lease: self._table.release(lease, self._release), leases)

    async def append(self, batches: Sequence[Batch]) -> Sequence[CommitOutcome]:
        """Commit one group, its sessions concurrently; one outcome per batch, in order."""
        return await append_apart(batches, self._table.locked, self._append)

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        """Rows in order, from the last row's `low` on, or all of them. For the owner, other programs' messages are
        taken in.
        """
        check_id(session_id, "session id")
        check_id(agent_id, "agent id")
        names = self._names(session_id)
        async with self._table.locked(session_id) as session:
            if session.held is not None and agent_id not in session.journals:
                rows: list[Row] = []
                with Uncut():
                    session.journals[agent_id], rows = await self._open(names, session.held, agent_id)
                if not whole:
                    return rows
            place = JournalPlace(self._objects, names.of_agent(agent_id), session_id, agent_id)
            if agent_id in session.journals:
                rows = await self._seen(place, whole=whole, owned=True)
                check_tail(place, rows[-1].seq if rows else 0, {agent_id: session.journals[agent_id].last_seq})
                return rows
            await check_told(self._objects, names)
            tails = (await self._leases.read(names)).tails
            rows = await self._seen(place, whole=whole)
            check_tail(place, rows[-1].seq if rows else 0, tails)
            return rows

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        """Every session that holds records, most recently changed first; or that one alone. A damaged agent is left
        out; opening it says what is wrong.
        """
        self._table.refuse_closed()
        if page is not None:
            return await self._page(page)
        prefix = SESSIONS if session_id is None else self._names(check_id(session_id, "session id")).folder
        listed = await self._listed(prefix)
        return newest_first([await self._info(folder, found) for folder, found in listed.items()])

    async def _page(self, page: IdPage) -> Sequence[SessionInfo]:
        """One list of what lies below the prefix; then documents of the page alone, and of shortened names."""
        # A shortened name has the id's beginning, but for its last 33 bytes.
        listed = await self._listed(f"{SESSIONS}{page.prefix}".encode()[: ID_BYTES_MAX - 33].decode(errors="ignore"))
        named = {id_of_folder(folder, SESSIONS) or f"%/{folder}": folder for folder in listed}

        async def described(names: Sequence[str]) -> Iterable[SessionInfo]:
            infos = [await self._info(named[name], listed[named[name]]) for name in names]
            return [info for info in infos if info is not None]

        return await page_by_name(named, described, page)

    async def _listed(self, prefix: str) -> dict[str, list[ObjectInfo]]:
        listed: dict[str, list[ObjectInfo]] = {}
        for info in await self._objects.list(prefix):
            if "/" in info.key:
                listed.setdefault(info.key.split("/")[0], []).append(info)
        return listed

    async def delete(self, session_id: str) -> None:
        check_id(session_id, "session id")
        names = self._names(session_id)
        with Uncut():
            async with self._table.locked(session_id) as session:
                await check_told(self._objects, names)
                await self._refuse_other_hands(names)
                await self._remove(names, session)
                await remove_aside(self._objects, names.aside)

    async def inspect(self) -> Inspection:
        """Documents among the sessions that are not in the layout: one list."""
        self._table.refuse_closed()
        listed: dict[str, list[str]] = {}
        for info in await self._objects.list(SESSIONS):
            listed.setdefault(info.key.split("/")[0], []).append(info.key)
        return Inspection(strays=[key for folder, keys in listed.items() for key in strays_in(folder, keys)])

    async def examine(self, session_id: str) -> Sequence[Corruption]:
        """Every damaged document of a session, also those that opening would not meet."""
        self._table.refuse_closed()
        names = self._names(check_id(session_id, "session id"))
        places = await places_in(self._objects, names)
        of_agents = [await examine_agent(place) for place in places]
        return [*await examine_session(self._objects, names), *(damage for found in of_agents for damage in found)]

    async def salvage(self, session_id: str) -> SalvagedRows:
        """The rows of a session; where they cannot be proved, new rows for every readable message."""
        self._table.refuse_closed()
        names = self._names(check_id(session_id, "session id"))
        await check_told(self._objects, names)
        rows: list[Row] = []
        damages: list[Corruption] = []
        for place in await places_in(self._objects, names):
            had, wrong = await salvage_agent(place, self._wall, self._entropy)
            rows += had
            damages += wrong
        try:
            await self._leases.read(names)
        except Corrupt as error:
            damages.append(Corruption(where=names.lease, what=str(error)))
        return SalvagedRows(rows=rows, damages=damages)

    async def set_aside(self, session_id: str, keep: Sequence[Row]) -> str:
        """Copy the documents of a session to `quarantine/session_<id>/<number>/`, and write it again with these rows.

        After a crash in between, the copy is whole and the session may be gone; the same call does the rest. Errors:
        `NotFound`, `SessionBusy`, and see the class.
        """
        names = self._names(check_id(session_id, "session id"))
        moved_to = ""
        with Uncut():
            async with self._table.locked(session_id) as session:
                await check_told(self._objects, names)
                try:
                    await self._refuse_other_hands(names)
                    moved_to = await copy_aside(self._objects, names.folder.removesuffix("/"), names.aside)
                    await self._remove(names, session)
                except StoreNotFound:
                    moved = await names_aside(self._objects, names.aside)
                    if not moved:
                        raise
                    moved_to = moved[-1]  # An earlier call was cut off before the rows were written.
            if keep:
                await begin(self, session_id, keep)
        return moved_to

    async def quarantined(self, session_id: str) -> Sequence[str]:
        """A session's copies, oldest first, then its documents that were set aside at opening."""
        names = self._names(check_id(session_id, "session id"))
        self._table.refuse_closed()
        keys = [info.key for info in await self._objects.list(names.folder)]
        unreadable = [of_agent.unreadable for of_agent in names.journals_in(keys)]
        found = [folder for folder in unreadable if any(key.startswith(folder) for key in keys)]
        return [*await names_aside(self._objects, names.aside), *found]

    async def maintain(self) -> None:
        """Renew the held leases, until cancelled. A lease that cannot be renewed now is retried
        with the next commit.
        """
        while self._settings.renew_every_s is not None:
            await anyio.sleep(self._settings.renew_every_s)
            await self._renew()

    async def _renew(self) -> None:
        for session_id in self._table.held():
            async with self._table.locked(session_id) as session:
                if session.held is None:
                    continue
                with suppress(RepertoryError), Uncut():
                    if await self._leases.prove(self._names(session_id), session.held) is not None:
                        session.held = None

    async def aclose(self) -> None:
        """Close, and release every lease; a lease that cannot be released expires. Calling it twice is allowed."""

        async def give_up(session: _Entry) -> None:
            with suppress(RepertoryError):
                await self._release(session)

        with Uncut():
            if await self._table.close(give_up):
                await self._life.end()
                await self._objects.aclose()
                return
        await checkpoint()

    # Within.

    def _names(self, session_id: str) -> SessionNames:
        return SessionNames(session_id, self._settings.short_names)

    async def _refuse_other_hands(self, names: SessionNames) -> None:
        """Raise `NotFound` if the session does not exist, `SessionBusy` if a live owner other than this one has it.

        An unreadable lease belongs to no owner.
        """
        if not await self._objects.list(names.folder):
            raise StoreNotFound("no such session", session=names.session_id)
        with suppress(Corrupt):
            found = await self._leases.read(names)
            if await self._leases.in_other_hands(found):
                raise busy(names.session_id, found.owner)
            self._leases.forget(names.session_id, found.generation)

    async def _remove(self, names: SessionNames, session: _Entry) -> None:
        """Delete every document. Other programs see a session until the last moment."""
        keys = [info.key for info in await self._objects.list(names.folder)]
        last = (names.lease, names.session)
        for key in [*(key for key in keys if key not in last), *last]:
            await self._objects.delete(key)
        session.drop()

    async def _release(self, session: _Entry) -> None:
        held, journals = session.held, session.journals
        assert held is not None
        names = self._names(held.lease.session_id)
        session.drop()
        due = any(journal.due for journal in journals.values())
        if due and not self._leases.expected(names, held) and await self._leases.check(names, held) is not None:
            return
        heads = dict(held.heads)
        with_it: list[tuple[TreeJournal, Put]] = []
        """Documents that are put in one call with the lease."""
        for agent_id, journal in journals.items():
            if isinstance(journal, TreeJournal) and journal.due:
                if self._settings.keep_heads:  # A head names its document's version.
                    await journal.put_agent()
                else:
                    with_it.append((journal, await journal.agent_put()))
            if journal.last_seq:
                held.tails[agent_id] = journal.last_seq
            head = journal.head() if self._settings.keep_heads else None
            if head is not None:
                heads[agent_id] = head.spelled()
        versions = await self._leases.release(names, held, heads, [put for _, put in with_it])
        if versions is None:
            return
        for (journal, _), version in zip(with_it, versions, strict=True):
            journal.agent_told(version)
        # A copy, since a value that held its own key would keep it alive.
        self._released[held.lease] = replace(held, lease=replace(held.lease)), journals

    async def _open(self, names: SessionNames, held: HeldLease, agent_id: str) -> tuple[_Journal, list[Row]]:
        """The agent's journal, with other programs' messages taken in, and the rows that opening it needs."""
        place = JournalPlace(self._objects, names.of_agent(agent_id), names.session_id, agent_id)
        generation, wall, entropy = held.lease.generation, self._wall, self._entropy
        if place.names.orchestrator:
            journal: _Journal = OrchestratorJournal(place, generation, wall, entropy)
        else:
            journal = TreeJournal(place, generation, wall, entropy, self._settings)
        head = read_head(agent_id, held.heads.pop(agent_id, None)) if self._settings.keep_heads else None
        rows = await journal.open_at(head)
        check_tail(place, journal.last_seq, held.tails)
        return journal, rows

    async def _append(self, session: _Entry, batch: Batch) -> Position | LeaseLost:
        held, names, parts = session.held, self._names(batch.lease.session_id), parts_by_agent(batch)
        if held is None or held.lease != batch.lease:
            return lost(batch.lease)
        checks = self._leases.expected(names, held)
        if not parts or any(not isinstance(session.journals.get(agent_id), TreeJournal) for agent_id in parts):
            checks = []
        starts = any(row.kind == RecordKind.TOOL_STARTED for row in batch.rows)
        try:
            if not checks and (refusal := await self._checked(session, held)) is not None:
                return refusal
            after = checks if starts and not batch.erase else []
            outcome = await self._append_owned(session, held, batch, checks, after)
            if isinstance(outcome, Position) and starts and not after:
                # A proof counts for a while, and the process may have stood still since it looked. So look again after
                # storing the intents: a later owner finds them, and an owner that lost the session starts no tool.
                return await self._looked(session, held) or outcome
            return outcome
        except LeaseChanged as changed:
            refusal = await self._looked(session, held)
            if refusal is not None:
                return refusal
            if changed.stored:
                return position_after(batch, lambda agent_id: session.journals[agent_id].last_seq)
            return await self._append(session, batch)  # It is another version of this owner's lease.
        except BaseException:
            session.journals = {}  # What is stored is unknown: read it again.
            raise

    async def _checked(self, session: _Entry, held: HeldLease) -> LeaseLost | None:
        """None if the lease is current; otherwise the session is not owned any more."""
        refusal = await self._leases.check(self._names(held.lease.session_id), held)
        if refusal is not None:
            session.held = None
        return refusal

    async def _looked(self, session: _Entry, held: HeldLease) -> LeaseLost | None:
        """The same by the store alone."""
        refusal = await self._leases.look(self._names(held.lease.session_id), held)
        if refusal is not None:
            session.held = None
        return refusal

    async def _append_owned(
        self, session: _Entry, held: HeldLease, batch: Batch, before: Sequence[Expect], after: Sequence[Expect]
    ) -> Position | LeaseLost:
        """`before`, `after`: see `TreeJournal.append`. With none before, the lease was checked."""
        names = self._names(batch.lease.session_id)
        parts = parts_by_agent(batch)
        for agent_id, part in parts.items():
            if agent_id not in session.journals:
                session.journals[agent_id], _ = await self._open(names, held, agent_id)
            refusal = refuse_gaps(names.session_id, part.rows, session.journals[agent_id].last_seq)
            if refusal is not None:
                return (await self._checked(session, held) if before else None) or refusal
        for place, (agent_id, part) in enumerate(parts.items(), 1):
            journal = session.journals[agent_id]
            if isinstance(journal, TreeJournal):
                behind = after if place == len(parts) else ()
                refusal = await journal.append(part.rows, part.erase, before if place == 1 else (), behind)
            else:
                refusal = await journal.append(part.rows, part.erase)
            if refusal is not None:  # Only this agent is affected; the next call asks the store who owns the session.
                del session.journals[agent_id]
                held.proved_at = -math.inf
                return refusal
        return position_after(batch, lambda agent_id: session.journals[agent_id].last_seq)

    async def _info(self, folder: str, found: Sequence[ObjectInfo]) -> SessionInfo | None:
        keys = [info.key for info in found]
        session_id = id_of_folder(folder, SESSIONS) or await id_in_document(
            self._objects, f"{folder}/session.json", "session_id"
        )
        if session_id is None:
            return None
        names = self._names(session_id)
        agents: dict[str, int] = {}
        times: list[float] = []
        damaged = False
        owner, lease = None, LeaseFile()
        try:
            lease = await self._leases.read(names)
            owner = await self._leases.alive(lease)
        except Corrupt:
            damaged = True
        for place in await places_in(self._objects, names, keys):
            rows: list[Row] = []
            try:
                rows = await self._seen(place)
                check_tail(place, rows[-1].seq if rows else 0, lease.tails)
            except Corrupt:
                damaged = True
            if rows:
                agents[place.agent_id] = rows[-1].seq
                first = await self._first_at(place.names, keys)
                times += [at for at in (first, *(at_of(row.body) for row in rows if not row.erased)) if at is not None]
        stored_at = (info.modified_at for info in found)
        return listed_session(session_id, agents, times, stored_at, owner, damaged=damaged)

    async def _seen(self, place: JournalPlace, *, whole: bool = False, owned: bool = False) -> list[Row]:
        return await seen_rows(place, self._wall, self._entropy, whole=whole, owned=owned)

    async def _first_at(self, names: AgentNames, keys: Sequence[str]) -> float | None:
        """When the agent's first message was made."""
        sources = names.sources(key for key in keys if key.startswith(names.folder))
        if not sources or sources[0].number is None:
            return None
        try:
            return read_message_document((await self._objects.get(names.key(sources[0]))).body).at
        except NotFound:
            return None


# Reading around damage in the documents of a session.
#
# Content that can no longer be proved is treated like another program's: the readable messages as they are stored, and
# the agent's document. So nothing is lost that a person could read in the tree; only what the rows alone held is.

_OURS = ("session.json", "repertory.json")


async def salvage_agent(
    place: JournalPlace, wall: Callable[[], float], entropy: Entropy
) -> tuple[Sequence[Row], Sequence[Corruption]]:
    """Every row that can be proved; when some cannot, new rows for all readable messages. And the damage."""
    if place.names.orchestrator:
        return await _salvage_orchestrator(place, wall, entropy)
    try:
        return await repaired_rows(place, wall, entropy)
    except Corrupt as error:
        damages = [Corruption(where=place.names.folder, what=str(error))]
    documents = await _messages(place)
    for source, read in documents.items():
        if read.message is None:
            damages.append(Corruption(where=place.names.key(source), what=read.fault or "it says nothing"))
    readable = [(source.number or 0, read) for source, read in sorted(documents.items()) if read.message is not None]
    agent, _ = await read_agent_file(place)
    theirs = replace(agent, foreign=True) if agent is not None else None
    names, numbers = (place.session_id, place.agent_id), [number for number, _ in readable]
    opened = open_agent(names, Assembled(added=readable), numbers, theirs, wall(), entropy)
    return opened.made, damages


async def examine_agent(place: JournalPlace) -> Sequence[Corruption]:
    """The damaged documents of a journal, without the damage that reading it reports anyway."""
    try:
        reading = await read_journal(place, whole=True)
    except Corrupt:
        return ()
    damages = list(reading.damages)
    if reading.document is not None and not place.names.orchestrator and reading.agent is None:
        damages.append(Corruption(where=place.names.agent, what="it cannot be read, or is not as it was written"))
    if reading.document is not None and place.names.orchestrator:
        try:
            read_run_file(reading.document.body, orchestrator_in(place.agent_id) or "")
        except ValueError as error:
            damages.append(Corruption(where=place.names.agent, what=str(error)))
    return damages


async def examine_session(objects: ObjectStore, names: SessionNames) -> list[Corruption]:
    """The damage in the document with the session's id."""
    try:
        session_id = parsed((await objects.get(names.session)).body).get("session_id")
    except NotFound:
        return [Corruption(where=names.session, what="it is lost")]
    except (ValueError, Invalid) as error:
        return [Corruption(where=names.session, what=str(error) or "it is empty")]
    return (
        []
        if session_id == names.session_id
        else [Corruption(where=names.session, what=f"it names another session: {session_id!r}")]
    )


def strays_in(folder: str, keys: Sequence[str]) -> list[str]:
    """The keys in a session's folder that are not in the layout."""
    known = {f"{folder}/{name}" for name in _OURS}
    for names in SessionNames.journals_in(keys):
        known |= {names.agent, *map(names.key, names.sources(keys))}
        known |= {key for key in keys if key.startswith(names.unreadable)}
    return [key for key in keys if key not in known]


async def _salvage_orchestrator(
    place: JournalPlace, wall: Callable[[], float], entropy: Entropy
) -> tuple[Sequence[Row], Sequence[Corruption]]:
    try:
        return await seen_rows(place, wall, entropy, whole=True), ()
    except Corrupt as error:
        damages = [Corruption(where=place.names.folder, what=str(error))]
    with suppress(Corrupt, NotFound):
        return await salvaged_run_rows(place, wall, entropy), damages
    return (), damages


async def _messages(place: JournalPlace) -> dict[DocumentSource, Read]:
    """Every message document, readable or not."""
    documents: dict[DocumentSource, Read] = {}

    async def read(source: DocumentSource) -> None:
        try:
            documents[source] = read_message_document((await place.objects.get(place.names.key(source))).body)
        except NotFound:
            return
        except Invalid as error:  # a link or the like
            documents[source] = Read(fault=str(error))

    keys = [info.key for info in await place.objects.list(place.names.folder)]
    sources = [source for source in place.names.sources(keys) if source.number is not None]
    await side_by_side([partial(read, source) for source in sources])
    return documents
