"""Sessions as the tree of documents that other tools read and write, over any object store.

Durability: `append` returns when every document is on stable storage. A commit of several documents that was cut off
in the middle is not there. Writers that know no leases may add messages at any time: whoever opens the session takes
them in, and an owner that meets one gets `LeaseLost`, so nothing is ever overwritten.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from repertory.backends.mending_ports import Damage, Inspection, Salvage
from repertory.backends.ports import Batch, Create, Position, SessionInfo
from repertory.backends.sessions.documents.journal import TreeJournal, TreeSettings, mended_rows, seen_rows
from repertory.backends.sessions.documents.lease import HeldLease, LeaseFile, TreeLeases, lost
from repertory.backends.sessions.documents.names import SESSIONS, AgentNames, SessionNames, id_in
from repertory.backends.sessions.documents.reading import (
    JournalPlace,
    check_tail,
    check_told,
    places_in,
    read_agent_file,
    read_journal,
    side_by_side,
    told,
)
from repertory.backends.sessions.documents.runs import OrchestratorJournal, salvaged_run_rows, seen_run_rows
from repertory.backends.sessions.journal.quarantine import copy_aside, names_aside, remove_aside
from repertory.backends.sessions.journal.requests import Requests
from repertory.core.ids import check_id
from repertory.core.journal.codec import at_of
from repertory.core.journal.rows import Kind
from repertory.core.message_tree.assembly import Assembled, Source
from repertory.core.message_tree.documents import Read, read_message
from repertory.core.message_tree.head import read_head
from repertory.core.message_tree.opening import open_agent
from repertory.core.message_tree.run_file import read_run_file
from repertory.core.message_tree.spelling import parsed
from repertory.core.orchestration.journals import orchestrator_in
from repertory.core.outage import own_errors
from repertory.errors import (
    AlreadyExists,
    Corrupt,
    Invalid,
    LeaseLost,
    NotFound,
    RepertoryError,
    SessionBusy,
    StoreNotFound,
)

if TYPE_CHECKING:
    from repertory.backends.ports import Lease, ObjectInfo, ObjectStore
    from repertory.backends.sessions.proof_of_life import ProofOfLife
    from repertory.core.journal.appender import Entropy
    from repertory.core.journal.rows import Row

_Journal: TypeAlias = TreeJournal | OrchestratorJournal


@dataclass(slots=True)
class _Session:
    """What this store knows of one session."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    users: int = 0
    """Calls that hold the lock or wait for it."""
    held: HeldLease | None = None
    journals: dict[str, _Journal] = field(default_factory=dict[str, "_Journal"])


class MessageTreeStore:
    """A `SessionStore` over an `ObjectStore`, which it closes. For one event loop.

    Errors of every call: those of the objects (`Unavailable`, `Throttled`, `Failed`), `CorruptJournal` and `Corrupt`
    naming the document, `Invalid` (bad ids, links in the tree, a closed store).
    """

    others_add = True
    """Programs that know no leases write to such trees."""
    look_every_s = 0.25
    """How often an owner should look whether it was asked for a session."""

    def __init__(
        self,
        objects: ObjectStore,
        *,
        owner: str,
        life: ProofOfLife,
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
        self._sessions: dict[str, _Session] = {}
        self._closed = False

    @property
    def name(self) -> str:
        """Two stores with the same name hold the same sessions."""
        return f"messages:{self._objects.name}"

    async def acquire(self, session_id: str, *, takeover: bool = False) -> Lease:
        """Become the owner. An earlier lease of this very object is fenced. Errors: `SessionBusy`, and see the
        class.
        """
        check_id(session_id, "session id")
        names = self._names(session_id)
        with anyio.CancelScope(shield=True):
            async with self._locked(session_id) as session:
                await check_told(self._objects, names)
                session.held = held = await self._leases.acquire(names, takeover=takeover)
                session.journals = {}
                return held.lease
        raise AssertionError

    @property
    def yields_within_s(self) -> float:
        """How long an idle owner takes from being asked until the session is free, as a rule."""
        return 1.0

    async def asked_for(self) -> Sequence[str]:
        """Sessions held by this object that other processes have asked for since the last look. In a bucket, that is
        known from the last renewal. Errors: `Unavailable`.
        """
        holding = {session_id: session.held for session_id, session in self._sessions.items() if session.held}
        asked = {*(await self._life.asked_for() if holding else ())}
        for session_id, held in holding.items():
            if held.wanted:
                held.wanted = False
                asked.add(session_id)
        return sorted(asked & holding.keys())

    async def release(self, lease: Lease) -> None:
        """Give the session up. A lease that is no longer current is ignored."""
        with anyio.CancelScope(shield=True):
            async with self._locked(lease.session_id) as session:
                if session.held is not None and session.held.lease == lease:
                    await self._release(session)

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        """Commit one group, its sessions side by side; one outcome per batch, in order."""
        for batch in batches:
            for agent_id in {row.agent_id for row in batch.rows}:
                check_id(agent_id, "agent id")
        outcomes: dict[int, Position | RepertoryError] = {}
        by_session: dict[str, list[int]] = {}
        for place, batch in enumerate(batches):
            by_session.setdefault(batch.lease.session_id, []).append(place)
        with anyio.CancelScope(shield=True):
            if len(by_session) == 1:
                (places,) = by_session.values()
                await self._append_in_order(batches, places, outcomes)
            else:
                async with anyio.create_task_group() as tasks:
                    for places in by_session.values():
                        tasks.start_soon(self._append_in_order, batches, places, outcomes)
        await checkpoint()
        return [outcomes[place] for place in range(len(batches))]

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        """Rows in order, from the last row's `low` on, or all of them. The owner takes in what others have added."""
        check_id(session_id, "session id")
        check_id(agent_id, "agent id")
        names = self._names(session_id)
        async with self._locked(session_id) as session:
            if session.held is not None and agent_id not in session.journals:
                rows: list[Row] = []
                with anyio.CancelScope(shield=True):
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

    async def sessions(self, session_id: str | None = None) -> Sequence[SessionInfo]:
        """Every session that holds records, the most recently changed first; or that one alone. An agent that is
        damaged is left out: opening it says what is wrong.
        """
        self._refuse_closed()
        prefix = SESSIONS if session_id is None else self._names(check_id(session_id, "session id")).folder
        listed: dict[str, list[ObjectInfo]] = {}
        for info in await self._objects.list(prefix):
            if "/" in info.key:
                listed.setdefault(info.key.split("/")[0], []).append(info)
        infos = [await self._info(folder, found) for folder, found in listed.items()]
        return sorted((info for info in infos if info is not None), key=lambda info: info.updated_at, reverse=True)

    async def delete(self, session_id: str) -> None:
        """Erase a session. Errors: `NotFound`, `SessionBusy`, and see the class."""
        check_id(session_id, "session id")
        names = self._names(session_id)
        with anyio.CancelScope(shield=True):
            async with self._locked(session_id) as session:
                await check_told(self._objects, names)
                await self._refuse_other_hands(names)
                await self._remove(names, session)
                await remove_aside(Requests(self._objects), names.aside)

    async def inspect(self) -> Inspection:
        """Documents among the sessions that are no part of the layout: one list."""
        self._refuse_closed()
        listed: dict[str, list[str]] = {}
        for info in await self._objects.list(SESSIONS):
            listed.setdefault(info.key.split("/")[0], []).append(info.key)
        return Inspection(strays=[key for folder, keys in listed.items() for key in strays_in(folder, keys)])

    async def examine(self, session_id: str) -> Sequence[Damage]:
        """Every document of a session that is damaged, also where nobody who opens it would meet that."""
        self._refuse_closed()
        names = self._names(check_id(session_id, "session id"))
        places = await places_in(self._objects, names)
        of_agents = [await examine_agent(place) for place in places]
        return [*await examine_session(self._objects, names), *(damage for found in of_agents for damage in found)]

    async def salvage(self, session_id: str) -> Salvage:
        """The rows of a session or, where they cannot be proved, new ones for every message that can be read."""
        self._refuse_closed()
        names = self._names(check_id(session_id, "session id"))
        await check_told(self._objects, names)
        rows: list[Row] = []
        damages: list[Damage] = []
        for place in await places_in(self._objects, names):
            had, wrong = await salvage_agent(place, self._wall, self._entropy)
            rows += had
            damages += wrong
        try:
            await self._leases.read(names)
        except Corrupt as error:
            damages.append(Damage(where=names.lease, what=str(error)))
        return Salvage(rows=rows, damages=damages)

    async def set_aside(self, session_id: str, keep: Sequence[Row]) -> str:
        """Copy the documents of a session to `quarantine/session_<id>/<number>/`, and write it anew with these rows.

        Killed on the way, the copy is whole and the session may be gone. Errors: `NotFound`, `SessionBusy`, and see
        the class.
        """
        names = self._names(check_id(session_id, "session id"))
        moved_to = ""
        with anyio.CancelScope(shield=True):
            async with self._locked(session_id) as session:
                await check_told(self._objects, names)
                await self._refuse_other_hands(names)
                moved_to = await copy_aside(Requests(self._objects), names.folder.removesuffix("/"), names.aside)
                await self._remove(names, session)
            if keep:
                lease = await self.acquire(session_id)
                (outcome,) = await self.append([Batch(lease=lease, rows=keep)])
                await self.release(lease)
                if isinstance(outcome, RepertoryError):
                    raise outcome
        return moved_to

    async def quarantined(self, session_id: str) -> Sequence[str]:
        """What was set aside of a session, the oldest first, and what was when it was opened."""
        names = self._names(check_id(session_id, "session id"))
        self._refuse_closed()
        keys = [info.key for info in await self._objects.list(names.folder)]
        unreadable = [of_agent.unreadable for of_agent in names.journals_in(keys)]
        found = [folder for folder in unreadable if any(key.startswith(folder) for key in keys)]
        return [*await names_aside(Requests(self._objects), names.aside), *found]

    async def renew(self) -> None:
        """Prove every lease that is held. One that cannot be proved now is tried again with the next commit."""
        for session_id in list(self._sessions):
            async with self._locked(session_id) as session:
                if session.held is None:
                    continue
                with anyio.CancelScope(shield=True), suppress(RepertoryError):
                    if await self._leases.prove(self._names(session_id), session.held) is not None:
                        session.held = None

    async def aclose(self) -> None:
        """Close, and give up every lease. Calling it twice is allowed."""
        if self._closed:
            await checkpoint()
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            for session in self._sessions.values():
                async with session.lock:
                    if session.held is not None:
                        await self._release(session)
            await self._life.end()
            await self._objects.aclose()

    # Within.

    def _names(self, session_id: str) -> SessionNames:
        return SessionNames(session_id, self._settings.short_names)

    async def _refuse_other_hands(self, names: SessionNames) -> None:
        """Raise `NotFound` or `SessionBusy` unless the session is there and no live owner other than this one has it.

        A lease that nobody can read is nobody's.
        """
        if not await self._objects.list(names.folder):
            raise StoreNotFound("no such session", session=names.session_id)
        with suppress(Corrupt):
            found = await self._leases.read(names)
            if await self._leases.in_other_hands(found):
                raise SessionBusy("another live owner has the session", session=names.session_id, owner=found.owner)
            self._leases.forget(names.session_id, found.generation)

    async def _remove(self, names: SessionNames, session: _Session) -> None:
        """Delete every document. Who looks on sees what others take for a session until the last moment."""
        keys = [info.key for info in await self._objects.list(names.folder)]
        last = (names.lease, names.session)
        for key in [*(key for key in keys if key not in last), *last]:
            await self._objects.delete(key)
        if self._settings.keep_folders:
            await self._remove_empty_folders(names)
        session.held, session.journals = None, {}

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Invalid("this was closed before", name=self.name)

    @asynccontextmanager
    async def _locked(self, session_id: str) -> AsyncGenerator[_Session]:
        """The session, for this call alone; forgotten when nobody needs it any more."""
        self._refuse_closed()
        session = self._sessions.setdefault(session_id, _Session())
        session.users += 1
        try:
            async with session.lock:
                yield session
        finally:
            session.users -= 1
            if not session.users and session.held is None:
                self._sessions.pop(session_id, None)

    async def _release(self, session: _Session) -> None:
        held, session.held = session.held, None
        assert held is not None
        names = self._names(held.lease.session_id)
        journals, session.journals = session.journals, {}
        due = any(journal.due for journal in journals.values())
        if due and await self._leases.check(names, held) is not None:
            return
        heads = dict(held.heads)
        for agent_id, journal in journals.items():
            await journal.close()
            if journal.last_seq:
                held.tails[agent_id] = journal.last_seq
            head = journal.head() if self._settings.keep_heads else None
            if head is not None:
                heads[agent_id] = head.spelled()
        await self._leases.release(names, held, heads)

    async def _open(self, names: SessionNames, held: HeldLease, agent_id: str) -> tuple[_Journal, list[Row]]:
        """The agent's journal, with what others have added; and the rows that opening it needs."""
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

    async def _append_in_order(
        self, batches: Sequence[Batch], places: Sequence[int], outcomes: dict[int, Position | RepertoryError]
    ) -> None:
        """The batches of one session, each after the one before."""
        async with self._locked(batches[places[0]].lease.session_id) as session:
            for place in places:
                try:
                    with own_errors(batches[place].lease.session_id):
                        outcomes[place] = await self._append(session, batches[place])
                except RepertoryError as error:
                    outcomes[place] = error

    async def _append(self, session: _Session, batch: Batch) -> Position | LeaseLost:
        held, names = session.held, self._names(batch.lease.session_id)
        if held is None or held.lease != batch.lease:
            return lost(batch.lease)
        refusal = await self._leases.check(names, held)
        if refusal is not None:
            session.held = None
            return refusal
        try:
            outcome = await self._append_owned(session, held, batch)
            if isinstance(outcome, Position) and any(row.kind == Kind.TOOL_STARTED for row in batch.rows):
                # A proof counts for a while, and the process may have stood still since it looked. Asked behind the
                # intents: whoever takes the session later finds them, and no tool starts for whoever lost it before.
                refusal = await self._leases.look(names, held)
                if refusal is not None:
                    session.held = None
                    return refusal
            return outcome
        except BaseException:
            session.journals = {}  # What is stored is unknown: it is read again.
            raise

    async def _append_owned(self, session: _Session, held: HeldLease, batch: Batch) -> Position | LeaseLost:
        names = self._names(batch.lease.session_id)
        by_agent: dict[str, list[Row]] = {}
        for row in batch.rows:
            by_agent.setdefault(row.agent_id, []).append(row)
        erase: dict[str, list[int]] = {}
        for agent_id, seq in batch.erase:
            erase.setdefault(agent_id, []).append(seq)
        for agent_id in {**by_agent, **erase}:
            if agent_id not in session.journals:
                session.journals[agent_id], _ = await self._open(names, held, agent_id)
            stored = session.journals[agent_id].last_seq
            for seq, row in enumerate(by_agent.get(agent_id, ()), stored + 1):
                if row.seq != seq:
                    msg = "rows do not follow what is stored"
                    return LeaseLost(msg, session=names.session_id, seq=row.seq, stored=stored)
        for agent_id in {**by_agent, **erase}:
            journal = session.journals[agent_id]
            refusal = await journal.append(by_agent.get(agent_id, ()), erase.get(agent_id, ()))
            if refusal is not None:  # About this agent alone: whose the session is, the store is asked next time.
                del session.journals[agent_id]
                held.proved_at = -math.inf
                return refusal
        agent_id = batch.rows[-1].agent_id if batch.rows else (batch.erase[-1][0] if batch.erase else "")
        journal = session.journals.get(agent_id)
        return Position(agent_id=agent_id, seq=journal.last_seq if journal is not None else 0)

    async def _info(self, folder: str, found: Sequence[ObjectInfo]) -> SessionInfo | None:
        keys = [info.key for info in found]
        session_id = id_in(folder, SESSIONS) or await told(self._objects, f"{folder}/session.json", "session_id")
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
        if not agents and not damaged:
            return None
        times = times or [info.modified_at for info in found]
        return SessionInfo(
            session_id=session_id,
            agents=agents,
            created_at=min(times),
            updated_at=max(times),
            owner=owner,
            damaged=damaged,
        )

    async def _seen(self, place: JournalPlace, *, whole: bool = False, owned: bool = False) -> list[Row]:
        """The rows for somebody who only looks."""
        seen = seen_run_rows if place.names.orchestrator else seen_rows
        return await seen(place, self._wall, self._entropy, whole=whole, owned=owned)

    async def _first_at(self, names: AgentNames, keys: Sequence[str]) -> float | None:
        """When the agent's first message was made."""
        sources = names.sources(key for key in keys if key.startswith(names.folder))
        if not sources or sources[0].number is None:
            return None
        try:
            return read_message((await self._objects.get(names.key(sources[0]))).body).at
        except NotFound:
            return None

    async def _remove_empty_folders(self, names: SessionNames) -> None:
        """Folders that others have made and left empty would keep them from making the session anew."""
        key = f"{names.folder}multi_agents/.keep"
        with suppress(AlreadyExists):
            await self._objects.put(key, b"", Create())
        await self._objects.delete(key)


class TendedTreeStore(MessageTreeStore):
    """The same where leases end by themselves, so that an owner that writes nothing has to renew them."""

    linger_s = 0.005
    """A message is a request by itself, however long one waits for others."""

    @property
    def yields_within_s(self) -> float:
        """How long an idle owner takes from being asked until the session is free, as a rule."""
        return self._settings.renew_every_s + 1.5

    async def tend(self) -> None:
        """Renew the leases that are held, until cancelled, which is safe at any time."""
        while True:
            await anyio.sleep(self._settings.renew_every_s)
            await self.renew()


# Reading around damage in the documents of a session.
#
# What cannot be proved any more is taken for what somebody else has written: the messages that can be read, as they
# stand, and the agent's document. So nothing is lost that a person could read in the tree, but for what only rows
# said.

_OURS = ("session.json", "repertory.json")


async def salvage_agent(
    place: JournalPlace, wall: Callable[[], float], entropy: Entropy
) -> tuple[Sequence[Row], Sequence[Damage]]:
    """Every row that can be proved or, when some cannot, new ones for all that can be read; and what is wrong."""
    if place.names.orchestrator:
        return await _salvage_orchestrator(place, wall, entropy)
    try:
        return await mended_rows(place, wall, entropy)
    except Corrupt as error:
        damages = [Damage(where=place.names.folder, what=str(error))]
    documents = await _messages(place)
    for source, read in documents.items():
        if read.message is None:
            damages.append(Damage(where=place.names.key(source), what=read.fault or "it says nothing"))
    said = [(source.number or 0, read) for source, read in sorted(documents.items()) if read.message is not None]
    agent, _ = await read_agent_file(place)
    theirs = replace(agent, foreign=True) if agent is not None else None
    names, numbers = (place.session_id, place.agent_id), [number for number, _ in said]
    opened = open_agent(names, Assembled(added=said), numbers, theirs, wall(), entropy)
    return opened.made, damages


async def examine_agent(place: JournalPlace) -> Sequence[Damage]:
    """What is wrong with the documents of a journal, but for what reading it says anyway."""
    try:
        reading = await read_journal(place, whole=True)
    except Corrupt:
        return ()
    damages = list(reading.damages)
    if reading.document is not None and not place.names.orchestrator and reading.agent is None:
        damages.append(Damage(where=place.names.agent, what="it cannot be read, or is not as it was written"))
    if reading.document is not None and place.names.orchestrator:
        try:
            read_run_file(reading.document.body, orchestrator_in(place.agent_id) or "")
        except ValueError as error:
            damages.append(Damage(where=place.names.agent, what=str(error)))
    return damages


async def examine_session(objects: ObjectStore, names: SessionNames) -> list[Damage]:
    """What is wrong with the document that says which session it is."""
    try:
        told = parsed((await objects.get(names.session)).body).get("session_id")
    except NotFound:
        return [Damage(where=names.session, what="it is lost")]
    except (ValueError, Invalid) as error:
        return [Damage(where=names.session, what=str(error) or "it is empty")]
    return [] if told == names.session_id else [Damage(where=names.session, what=f"it names another session: {told!r}")]


def strays_in(folder: str, keys: Sequence[str]) -> list[str]:
    """The keys in a session's folder that are no part of the layout."""
    known = {f"{folder}/{name}" for name in _OURS}
    for names in SessionNames.journals_in(keys):
        known |= {names.agent, names.placeholder, *map(names.key, names.sources(keys))}
        known |= {key for key in keys if key.startswith(names.unreadable)}
    return [key for key in keys if key not in known]


async def _salvage_orchestrator(
    place: JournalPlace, wall: Callable[[], float], entropy: Entropy
) -> tuple[Sequence[Row], Sequence[Damage]]:
    try:
        return await seen_run_rows(place, wall, entropy, whole=True), ()
    except Corrupt as error:
        damages = [Damage(where=place.names.folder, what=str(error))]
    with suppress(Corrupt, NotFound):
        return await salvaged_run_rows(place, wall, entropy), damages
    return (), damages


async def _messages(place: JournalPlace) -> dict[Source, Read]:
    """Every document of a message, whether it can be read or not."""
    documents: dict[Source, Read] = {}

    async def read(source: Source) -> None:
        try:
            documents[source] = read_message((await place.objects.get(place.names.key(source))).body)
        except NotFound:
            return
        except Invalid as error:  # a link, or worse
            documents[source] = Read(fault=str(error))

    keys = [info.key for info in await place.objects.list(place.names.folder)]
    sources = [source for source in place.names.sources(keys) if source.number is not None]
    await side_by_side([partial(read, source) for source in sources])
    return documents
