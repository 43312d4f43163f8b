"""Sessions in Amazon Bedrock AgentCore Memory, where the package that users come from finds them, and ours its own.

Start here, then read `layout.py` (what stands in the events) and `ownership.py` (who may write).
Design note 11 says why it looks like this, `docs/agentcore.md` what it costs and what it cannot prevent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NamedTuple, TypeAlias

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from repertory.backends.mending_ports import Damage, Inspection, Salvage
from repertory.backends.ports import Batch, Lease, Position, SessionInfo
from repertory.backends.sessions.agentcore.erasing import erase
from repertory.backends.sessions.agentcore.events import Event, MemoryEvents
from repertory.backends.sessions.agentcore.journal import AgentCoreJournal, Part, look_at
from repertory.backends.sessions.agentcore.layout import (
    STATE_TYPE,
    may_be_shared,
    number_aside,
    session_item,
    session_name,
    size_of,
)
from repertory.backends.sessions.agentcore.ownership import (
    REQUESTS_AT_ONCE,
    AgentCoreSettings,
    Means,
    OwnedSession,
    SessionRace,
    lost,
    standing_of,
)
from repertory.backends.sessions.agentcore.reading import EventLog
from repertory.backends.sessions.agentcore.salvage import copy_aside, examine_events, names_aside, salvage_events
from repertory.backends.sessions.journal.requests import side_by_side
from repertory.core.ids import check_id
from repertory.core.journal.appender import Entropy
from repertory.core.journal.codec import at_of, decode
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.rows import Kind, Row
from repertory.core.outage import own_errors
from repertory.errors import Corrupt, Invalid, LeaseLost, RepertoryError, SessionBusy, StoreNotFound

Outcome: TypeAlias = Position | RepertoryError

LINGER_S = 10.0
"""How long records wait for company: an event has its price, and nobody waits for these."""
_SWEEPS_MAX = 5


@dataclass(slots=True)
class _Session:
    """What this store knows of one session."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    users: int = 0
    """Calls that hold the lock or wait for it."""
    owned: OwnedSession | None = None
    journals: dict[str, AgentCoreJournal] = field(default_factory=dict[str, AgentCoreJournal])

    def drop(self) -> None:
        """It is not ours any more."""
        self.owned, self.journals = None, {}

    def end(self) -> None:
        """Nothing more is written under this lease; it is given up with the store, unless the session is acquired
        anew.
        """
        if self.owned is not None:
            self.owned.ended = True
        self.journals = {}


class AgentCoreSessionStore:
    """A `SessionStore` over the events of one actor, which it closes. For one event loop.

    Ownership ends by itself when nothing is heard of an owner for `lease_s`, so somebody supervised should run `tend`.

    Errors of every call: those of the events (`Unavailable`, `Throttled`, `Failed`, `NotFound` for the memory,
    `LimitReached`), `CorruptJournal`, `Invalid` (bad ids, a closed store).
    """

    def __init__(
        self,
        events: MemoryEvents,
        *,
        owner: str,
        wall: Callable[[], float],
        entropy: Entropy,
        settings: AgentCoreSettings | None = None,
        metadata: Callable[[str], Mapping[str, str]] = lambda session_id: {},
    ) -> None:
        """`owner` must be unique to this object: letters, digits, `-` and `_`. `wall` gives epoch seconds, `entropy`
        random bytes, `metadata` what is to stand beside the messages of a session.
        """
        check_id(owner, "owner")
        if not owner.replace("-", "").replace("_", "").isalnum() or not owner.isascii() or len(owner) > 64:
            raise Invalid("an owner is named by at most 64 letters, digits, hyphens and underscores", got=owner)
        self._events = events
        self._means = Means(
            events=events,
            owner=owner,
            wall=wall,
            entropy=entropy,
            settings=settings or AgentCoreSettings(),
            metadata=metadata,
            tokens=count(1),
        )
        self._race = SessionRace(self._means)
        self._sessions: dict[str, _Session] = {}
        self._closed = False

    @property
    def name(self) -> str:
        """Two stores with the same name hold the same sessions."""
        return self._events.name

    @property
    def linger_s(self) -> float:
        """How long records that nobody waits for should gather before they are appended."""
        return LINGER_S

    async def acquire(self, session_id: str, *, takeover: bool = False) -> Lease:
        """Become the owner: two listings and an event. An earlier lease of this very object is fenced.

        Errors: `SessionBusy`, and see the class.
        """
        check_id(session_id, "session id")
        lease = await self._acquire(session_id, takeover=takeover)
        try:
            await checkpoint_if_cancelled()
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(RepertoryError):
                await self.release(lease)
            raise
        return lease

    async def release(self, lease: Lease) -> None:
        """Give the session up. A lease that is no longer current is ignored."""
        with anyio.CancelScope(shield=True):
            async with self._locked(lease.session_id) as session:
                if session.owned is not None and session.owned.lease == lease:
                    await self._release(session)

    async def append(self, batches: Sequence[Batch]) -> Sequence[Outcome]:
        """Commit one group, its sessions side by side, each batch an event; one outcome per batch, in order.

        What others have added meanwhile stands in no commit's way; a batch without rows is refused for it, so that a
        turn begins with everything that was said. A batch of which nobody knows whether it is stored may be appended
        again, and is stored once.
        """
        for batch in batches:
            for agent_id in {row.agent_id for row in batch.rows}:
                check_id(agent_id, "agent id")
        outcomes: dict[int, Outcome] = {}
        by_session: dict[str, list[int]] = {}
        for place, batch in enumerate(batches):
            by_session.setdefault(batch.lease.session_id, []).append(place)
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for places in by_session.values():
                    tasks.start_soon(self._append_in_order, batches, places, outcomes)
        await checkpoint()
        return [outcomes[place] for place in range(len(batches))]

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        """Rows in order, from the last row's `low` on, or all that have not expired. The owner takes in what others
        have added.
        """
        check_id(session_id, "session id")
        check_id(agent_id, "agent id")
        async with self._locked(session_id) as session:
            if session.owned is None or session.owned.ended:
                log = EventLog(self._events, session_name(session_id), session_id)
                return (await look_at(self._means, log, (session_id, agent_id), whole=whole)).rows
            if agent_id not in session.journals:
                rows = await self._open(session, session.owned, agent_id)
                if not whole:
                    return rows
            return await session.journals[agent_id].stored_rows(whole=whole)

    async def sessions(self, session_id: str | None = None) -> Sequence[SessionInfo]:
        """Every session that holds records, the most recently changed first; or that one alone. An agent that is
        damaged is left out: opening it says what is wrong.
        """
        self._refuse_closed()
        names = [session_name(check_id(session_id, "session id"))] if session_id is not None else []
        if session_id is None:
            names = [name for name in await self._events.sessions() if number_aside(name) is None]
        infos = await side_by_side([partial(self._info, name) for name in names], REQUESTS_AT_ONCE)
        return sorted((info for info in infos if info is not None), key=lambda info: info.updated_at, reverse=True)

    async def delete(self, session_id: str) -> None:
        """Delete every event of a session, the oldest first, and what was set aside of it. Records that the service has
        extracted from them stay.

        Errors: `NotFound`, `SessionBusy`, and see the class.
        """
        check_id(session_id, "session id")
        name = session_name(session_id)
        with anyio.CancelScope(shield=True):
            async with self._locked(session_id) as session:
                found = await self._removable(session_id, name)
                session.drop()
                await self._remove(name, found)
                for aside in await names_aside(self._events, name):
                    await self._remove(aside, await self._listed(aside))

    async def inspect(self) -> Inspection:
        """Nothing lies beside the sessions of an actor."""
        self._refuse_closed()
        await checkpoint()
        return Inspection()

    @property
    def forgets_the_oldest(self) -> bool:
        """Events expire, so journals may begin later than they did."""
        return True

    async def examine(self, session_id: str) -> Sequence[Damage]:
        """Every event that is not as it was written, and what is missing."""
        self._refuse_closed()
        return await examine_events(self._means, check_id(session_id, "session id"))

    async def salvage(self, session_id: str) -> Salvage:
        """The rows of a session or, where they cannot be proved, new ones for every message that can be read."""
        self._refuse_closed()
        return await salvage_events(self._means, check_id(session_id, "session id"))

    async def set_aside(self, session_id: str, keep: Sequence[Row]) -> str:
        """Copy the events of a session to one of the actor's sessions that nobody reads, as blobs, from which nothing
        is extracted; and write it anew with these rows.

        Killed on the way, the copy is whole and the session may be gone. Errors: `NotFound`, `SessionBusy`, and see
        the class.
        """
        name = session_name(check_id(session_id, "session id"))
        moved_to = ""
        with anyio.CancelScope(shield=True):
            async with self._locked(session_id) as session:
                found = await self._removable(session_id, name)
                moved_to = await copy_aside(self._means, name)
                session.drop()
                await self._remove(name, found)
            if keep:
                lease = await self.acquire(session_id)
                (outcome,) = await self.append([Batch(lease=lease, rows=keep)])
                await self.release(lease)
                if isinstance(outcome, RepertoryError):
                    raise outcome
        return moved_to

    async def quarantined(self, session_id: str) -> Sequence[str]:
        """What was set aside of a session, as the service calls it, the oldest first."""
        self._refuse_closed()
        return await names_aside(self._events, session_name(check_id(session_id, "session id")))

    async def tend(self) -> None:
        """See whether sessions that are held are still ours and whether anybody has asked for them; say of idle ones
        that their owner is alive, until cancelled, which is safe at any time. What fails is tried again.
        """
        renew_s = self._means.settings.renew_s
        while True:
            await anyio.sleep(renew_s / 4)
            for session_id in list(self._sessions):
                async with self._locked(session_id) as session:
                    owned = session.owned
                    if owned is None or owned.ended:
                        continue
                    with anyio.CancelScope(shield=True), suppress(RepertoryError):
                        if not owned.recently_looked(renew_s) and await owned.look() is not None:
                            session.end()
                        elif anyio.current_time() - owned.written_at >= renew_s:
                            await owned.renew()

    @property
    def look_every_s(self) -> float:
        """How often an owner should look whether it was asked for a session."""
        return 0.5

    @property
    def yields_within_s(self) -> float:
        """How long an idle owner takes from being asked until the session is free, as a rule."""
        return self._means.settings.renew_s * 1.25 + 1.0

    async def asked_for(self) -> Sequence[str]:
        """Sessions held by this object that others have asked for, as was seen when they were looked at last."""
        holding = {session_id: session.owned for session_id, session in self._sessions.items() if session.owned}
        asked = [session_id for session_id, owned in holding.items() if owned.wanted and not owned.ended]
        for session_id in asked:
            holding[session_id].wanted = False
        await checkpoint()
        return asked

    async def aclose(self) -> None:
        """Close, and give up every lease; those that the memory cannot be told of end by themselves. Calling it twice
        is allowed.
        """
        if self._closed:
            await checkpoint()
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            for session in self._sessions.values():
                async with session.lock:
                    if session.owned is not None:
                        with suppress(RepertoryError):
                            await self._release(session)
            await self._events.aclose()

    # Within.

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
            if not session.users and session.owned is None:
                self._sessions.pop(session_id, None)

    async def _acquire(self, session_id: str, *, takeover: bool) -> Lease:
        with anyio.CancelScope(shield=True):
            async with self._locked(session_id) as session:
                session.end()
                name = session_name(session_id)
                session.owned = await self._race.acquire(session_id, name, takeover=takeover)
                return session.owned.lease
        raise AssertionError

    async def _release(self, session: _Session) -> None:
        owned, journals = session.owned, session.journals
        assert owned is not None
        session.drop()
        if any(journal.due for journal in journals.values()) and await owned.look() is not None:
            return
        for journal in journals.values():
            await journal.put_due(closing=True)
        await owned.release()

    async def _open(self, session: _Session, owned: OwnedSession, agent_id: str) -> list[Row]:
        journal = AgentCoreJournal(owned, agent_id)
        with anyio.CancelScope(shield=True):
            try:
                rows, left = await journal.open()
                if left:
                    await erase(owned, {agent_id: left})
            except RepertoryError:
                session.end()  # What is stored is unknown: whoever owns it next reads it again.
                raise
            session.journals[agent_id] = journal
            return [row.without_content() if row.seq in left else row for row in rows]
        raise AssertionError

    async def _append_in_order(
        self, batches: Sequence[Batch], places: Sequence[int], outcomes: dict[int, Outcome]
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
        owned = session.owned
        if owned is None or owned.ended or owned.lease != batch.lease:
            return lost(batch.lease)
        proving = not (batch.rows or batch.erase)
        if proving or not owned.recently_looked(self._means.settings.prove_s):
            refusal = await owned.look()
            if refusal is None and proving and owned.news is not None:
                msg = "somebody else has added to the session; open it again to take that in"
                refusal = LeaseLost(msg, session=owned.lease.session_id, event=owned.news)
            if refusal is not None:
                session.end()
                return refusal
        by_agent: dict[str, list[Row]] = {}
        for row in batch.rows:
            by_agent.setdefault(row.agent_id, []).append(row)
        wanted: dict[str, list[int]] = {}
        for agent_id, seq in batch.erase:
            wanted.setdefault(agent_id, []).append(seq)
        for agent_id in {**by_agent, **wanted}:
            if agent_id not in session.journals:
                await self._open(session, owned, agent_id)
        journals = {agent_id: session.journals[agent_id] for agent_id in {**by_agent, **wanted}}
        refusal = await commit(owned, journals, by_agent, wanted)
        if refusal is not None:
            return refusal
        if any(map(is_acted_on, batch.rows)):  # Nothing keeps a fenced owner from writing.
            refusal = await owned.look()
            if refusal is not None:
                session.end()
                return refusal
        agent_id = batch.rows[-1].agent_id if batch.rows else (batch.erase[-1][0] if batch.erase else "")
        return Position(agent_id=agent_id, seq=journals[agent_id].last_seq if agent_id else 0)

    async def _removable(self, session_id: str, name: str) -> list[Event]:
        """The events of a session that nobody else has. Errors: `NotFound`, `SessionBusy`, `Invalid` for another
        session's.
        """
        found = await self._listed(name)
        if not found:
            raise StoreNotFound("no such session", session=session_id)
        if may_be_shared(name):
            await EventLog(self._events, name, session_id).everything()
        standing = standing_of(found)
        if self._race.in_other_hands(standing):
            raise SessionBusy("another live owner has the session", session=session_id, owner=standing.owner)
        self._race.forget(name, standing.generation)
        return found

    async def _remove(self, name: str, found: list[Event]) -> None:
        """Delete events, the oldest first, and those that are only seen then."""
        for _ in range(_SWEEPS_MAX):
            for start in range(0, len(found), REQUESTS_AT_ONCE):
                some = found[::-1][start : start + REQUESTS_AT_ONCE]
                await side_by_side([partial(self._events.delete, name, event.event_id) for event in some])
            found = await self._listed(name)
            if not found:
                break

    async def _listed(self, name: str) -> list[Event]:
        """All events of a session, newest first, without what they say."""
        found: list[Event] = []
        token: str | None = None
        while True:
            page = await self._events.page(name, token, payloads=False)
            found += page.events
            token = page.next_token
            if token is None:
                return found

    async def _info(self, name: str) -> SessionInfo | None:
        log = EventLog(self._events, name)
        await log.more()
        sound = [seen for seen in log.seen if seen.fault is None]
        session_id = next((seen.session_id for seen in sound if seen.session_id is not None), name)
        if not any(seen.tails is not None for seen in log.seen):
            await log.everything()
        agents: dict[str, int] = {}
        times: list[float] = []
        damaged = len(sound) < len(log.seen)
        for agent_id in log.agents:
            try:
                rows, began = await look_at(self._means, log, (session_id, agent_id))
            except Corrupt:
                damaged = True
                continue
            if rows:
                agents[agent_id] = rows[-1].seq
                said = [at for row in rows if not row.erased and (at := at_of(row.body)) is not None]
                times += [began, *said] if began else said
        if not agents and not damaged:
            return None
        times = times or [seen.event.at_ms / 1000 for seen in log.seen]
        owner = self._race.alive(standing_of([seen.event for seen in log.seen]))
        return SessionInfo(
            session_id=session_id,
            agents=agents,
            created_at=min(times),
            updated_at=max(times),
            owner=owner,
            damaged=damaged,
        )


ITEMS_MAX = 100
"""Items that an event may have."""


class _Placed(NamedTuple):
    """A chapter and whose it is."""

    journal: AgentCoreJournal
    part: Part


async def commit(
    owned: OwnedSession,
    journals: Mapping[str, AgentCoreJournal],
    rows: Mapping[str, Sequence[Row]],
    wanted: Mapping[str, Sequence[int]],
) -> LeaseLost | None:
    """Store the rows of agents, all or none of them, then destroy what is `wanted`. None when that is done.

    Errors: as `MemoryEvents`. What is stored is unknown then; making the same commit again stores it once. Of a commit
    of several events of which some are missing, whoever opens the session next has the messages alone.
    """
    await owned.settle()
    rows = {agent_id: [row for row in some if _name(row) not in owned.unsure] for agent_id, some in rows.items()}
    for agent_id, some in rows.items():
        stored = journals[agent_id].last_seq
        if any(row.seq != seq for seq, row in enumerate(some, stored + 1)):
            msg = "rows do not follow what is stored"
            return LeaseLost(msg, session=owned.lease.session_id, seq=some[0].seq, stored=stored)
    for agent_id, some in rows.items():
        if some and journals[agent_id].empty:
            await _begin(owned, journals[agent_id])
    _prepare(owned, journals, rows, wanted)
    await owned.settle()
    known = {agent_id: _known(journals[agent_id], seqs) for agent_id, seqs in wanted.items()}
    if any(known.values()):
        await erase(owned, {agent_id: seqs for agent_id, seqs in known.items() if seqs})
        for agent_id in known:
            journals[agent_id].erased()
    for journal in journals.values():
        await journal.put_due()
    owned.unsure.clear()
    return None


def is_acted_on(row: Row) -> bool:
    """Whether something happens when this is stored: a tool starts, or somebody is given an answer."""
    if row.kind != Kind.MESSAGE or row.erased:
        return row.kind == Kind.TOOL_STARTED
    record = decode(row.kind, row.version, row.body)
    return isinstance(record, MessageAdded) and record.message["role"] == "assistant"


def _prepare(
    owned: OwnedSession,
    journals: Mapping[str, AgentCoreJournal],
    rows: Mapping[str, Sequence[Row]],
    wanted: Mapping[str, Sequence[int]],
) -> None:
    events = _events(owned, _placed(journals, rows, wanted, batch=False))
    if len(events) > 1:
        events = _events(owned, _placed(journals, rows, wanted, batch=True))
    beside: Mapping[str, str] = {}
    if any(part.number is not None for placed in events for _, part in placed):
        beside = owned.means.metadata(owned.lease.session_id)
    for placed in events:
        metadata = beside if any(part.number is not None for _, part in placed) else {}
        owned.prepare([item for _, part in placed for item in part.items], metadata, partial(_follow, placed))
    owned.unsure |= {_name(row) for some in rows.values() for row in some}


def _follow(placed: Sequence[_Placed]) -> None:
    for journal, part in placed:
        journal.follow(part)


def _name(row: Row) -> tuple[str, int, bytes]:
    return row.agent_id, row.seq, row.link


async def _begin(owned: OwnedSession, journal: AgentCoreJournal) -> None:
    """The records of session and agent come before messages: the package takes messages without them for none."""
    if not owned.session_known:
        record = session_item(owned.lease.session_id, owned.means.wall())
        await owned.create("session", [record], {STATE_TYPE: "SESSION"})
        owned.session_known = True
    await journal.put_agent()


def _known(journal: AgentCoreJournal, seqs: Sequence[int]) -> list[int]:
    return [seq for seq in seqs if 0 < seq <= journal.last_seq]


def _placed(
    journals: Mapping[str, AgentCoreJournal],
    rows: Mapping[str, Sequence[Row]],
    wanted: Mapping[str, Sequence[int]],
    *,
    batch: bool,
) -> list[_Placed]:
    return [
        _Placed(journals[agent_id], part)
        for agent_id, some in rows.items()
        for part in journals[agent_id].parts(some, wanted.get(agent_id, ()), batch=batch)
    ]


def _events(owned: OwnedSession, placed: Sequence[_Placed]) -> list[list[_Placed]]:
    """The chapters by event."""
    events: list[list[_Placed]] = []
    items, size_bytes = 0, 0
    for each in placed:
        more = sum(size_of(item) for item in each.part.items)
        items, size_bytes = items + len(each.part.items), size_bytes + more
        if not events or items > ITEMS_MAX or size_bytes > owned.means.settings.event_bytes_max:
            events.append([])
            items, size_bytes = len(each.part.items), more
        events[-1].append(each)
    return events
