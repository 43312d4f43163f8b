"""Sessions in Amazon Bedrock AgentCore Memory, where both the `bedrock-agentcore` package and this one find them.

Start here, then read `layout.py` (what the events hold) and `ownership.py` (who may write).
`docs/design/storage.md` gives the reasons, `docs/guides/sessions/agentcore.md` the costs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import count
from typing import NamedTuple, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from repertory.backends.ports import (
    Batch,
    Corruption,
    IdPage,
    Lease,
    OwnedRows,
    Position,
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
from repertory.backends.sessions.agentcore.events import ListedEvent, MemoryEvents, NewEvent, PayloadItem
from repertory.backends.sessions.agentcore.journal import AgentCoreJournal, Part, erase, look_at, opened_of
from repertory.backends.sessions.agentcore.layout import (
    STATE_TYPE,
    aside_name,
    item_bytes,
    may_be_shared,
    number_aside,
    session_item,
    session_name,
    usable_name,
)
from repertory.backends.sessions.agentcore.ownership import (
    REQUESTS_AT_ONCE,
    AgentCoreSettings,
    OwnedSession,
    SessionRace,
    SharedParts,
    owner_in,
)
from repertory.backends.sessions.agentcore.reading import EventLog, read_agent_log, sound_reading
from repertory.backends.sessions.requests import side_by_side, start_once
from repertory.backends.sessions.table import (
    CommitOutcome,
    SessionEntry,
    SessionTable,
    append_apart,
    busy,
    listed_session,
    lost,
    newest_first,
    parts_by_agent,
    position_after,
    refuse_gaps,
    unless_cancelled,
)
from repertory.backends.shields import Uncut
from repertory.core.ids import check_id
from repertory.core.journal.codec import at_of, decode
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.restore import Entropy
from repertory.core.journal.rows import EFFECT_STARTS, RecordKind, Row
from repertory.core.orchestration.journals import orchestrator_in
from repertory.errors import Corrupt, Invalid, LeaseLost, RepertoryError, StoreNotFound

_SWEEPS_MAX = 5


_Entry: TypeAlias = "SessionEntry[OwnedSession, AgentCoreJournal]"


def _end(session: _Entry) -> None:
    """Write nothing more under this lease. It is released with the store, unless the session is acquired again."""
    if session.held is not None:
        session.held.ended = True
    session.journals = {}


class AgentCoreSessionStore(SessionStore):
    """A `SessionStore` over the events of one actor, which it closes. For one event loop.

    Ownership expires when an owner writes nothing for `lease_s`, so run `maintain` under supervision.

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
        random bytes, `metadata` the metadata to write with a session's messages.
        """
        check_id(owner, "owner")
        # Owners stand in metadata, whose values have an alphabet of the service's own, and between the dots of a mark.
        if not owner.replace("-", "").replace("_", "").isalnum() or not owner.isascii() or len(owner) > 64:
            raise Invalid("an owner is named by at most 64 letters, digits, hyphens and underscores", got=owner)
        self._events = events
        self._shared = SharedParts(
            events=events,
            owner=owner,
            wall=wall,
            entropy=entropy,
            settings=settings or AgentCoreSettings(),
            metadata=metadata,
            tokens=count(1),
        )
        self._race = SessionRace(self._shared)
        self._table: SessionTable[OwnedSession, AgentCoreJournal] = SessionTable(lambda: self.name)

    @property
    def name(self) -> str:
        return self._events.name

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(
            repair=StoreRepair(
                examine=self.examine,
                salvage=self.salvage,
                set_aside=self.set_aside,
                quarantined=self.quarantined,
                forgets_the_oldest=True,
            ),
            sharing=StoreSharing(
                asked_for=self.asked_for,
                # Asking costs one event for each owner and generation; looking whether it is free is one cheap listing.
                look_every_s=0.5,
                yields_within_s=self._shared.settings.renew_s * 1.25 + 1.0,
            ),
            maintained=True,
            shares_turns=True,
        )

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        """Become the owner: two listings and an event. An earlier lease of this same object is fenced.

        Errors: `SessionBusy`, and see the class.
        """
        check_id(session_id, "session id")
        if again is not None:
            raise not_again(again)
        lease = await unless_cancelled(self, await self._acquire(session_id, takeover=takeover))
        return await owned_rows(self, lease, load)

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        return await release_each(lambda lease: self._table.release(lease, self._release), leases)

    async def append(self, batches: Sequence[Batch]) -> Sequence[CommitOutcome]:
        """Commit one group, its sessions concurrently, each batch an event; one outcome per batch, in order.

        Messages that other programs added meanwhile do not hinder a commit; a batch without rows is refused because of
        them, so that a turn begins with all messages. If it is unknown whether a batch is stored, the caller may append
        it again; it is stored once.
        """
        return await append_apart(batches, self._table.locked, self._append)

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        """Rows in order, from the last row's `low` on, or all that have not expired. For the owner, other programs'
        messages are taken in.
        """
        check_id(session_id, "session id")
        check_id(agent_id, "agent id")
        async with self._table.locked(session_id) as session:
            if session.held is None or session.held.ended:
                log = EventLog(self._events, session_name(session_id), session_id)
                return (await look_at(self._shared, log, (session_id, agent_id), whole=whole)).rows
            if agent_id not in session.journals:
                rows = await self._open(session, session.held, agent_id)
                if not whole:
                    return rows
            return await session.journals[agent_id].stored_rows(whole=whole)

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        """Every session that holds records, most recently changed first; or that one alone. A damaged agent is left
        out; opening it says what is wrong. Of a page, the service lists the names of all sessions; the events are read
        of those that may have the prefix.
        """
        self._table.refuse_closed()
        names = [session_name(check_id(session_id, "session id"))] if session_id is not None else []
        if session_id is None:
            # Names of the service are ids as far as its alphabet allows, so a prefix of the id gives one of the name.
            usable = "" if page is None else usable_name(page.prefix)
            found = [name for name in await self._events.sessions() if number_aside(name) is None]
            names = [name for name in found if name.startswith(usable)]
        infos = newest_first(await self._described(names))
        return infos if page is None else page.of(infos)

    async def _described(self, names: Sequence[str]) -> Sequence[SessionInfo | None]:
        return await side_by_side([partial(self._info, name) for name in names], REQUESTS_AT_ONCE)

    async def delete(self, session_id: str) -> None:
        """Delete every event of a session, oldest first, and its quarantined copies. Records that the service has
        extracted from them stay.

        Errors: `NotFound`, `SessionBusy`, and see the class.
        """
        check_id(session_id, "session id")
        name = session_name(session_id)
        with Uncut():
            async with self._table.locked(session_id) as session:
                found = await self._removable(session_id, name)
                session.drop()
                await self._remove(name, found)
                for aside in await event_copies(self._events, name):
                    await self._remove(aside, await self._listed(aside))

    async def examine(self, session_id: str) -> Sequence[Corruption]:
        """Every event that differs from what we wrote, and every missing one."""
        self._table.refuse_closed()
        return await examine_events(self._shared, check_id(session_id, "session id"))

    async def salvage(self, session_id: str) -> SalvagedRows:
        """The rows of a session; where they cannot be proved, new rows for every readable message."""
        self._table.refuse_closed()
        return await salvage_events(self._shared, check_id(session_id, "session id"))

    async def set_aside(self, session_id: str, keep: Sequence[Row]) -> str:
        """Copy the events of a session, as blobs, to another of the actor's sessions, which no reader uses and from
        which nothing is extracted; then write the session again with these rows.

        After a crash in between, the copy is whole and the session may be gone; the same call does the rest. Errors:
        `NotFound`, `SessionBusy`, and see the class.
        """
        name = session_name(check_id(session_id, "session id"))
        moved_to = ""
        with Uncut():
            async with self._table.locked(session_id) as session:
                try:
                    found = await self._removable(session_id, name)
                    moved_to = await copy_events_aside(self._shared, name)
                    session.drop()
                    await self._remove(name, found)
                except StoreNotFound:
                    moved = await event_copies(self._events, name)
                    if not moved:
                        raise
                    moved_to = moved[-1]  # An earlier call was cut off before the rows were written.
            if keep:
                await begin(self, session_id, keep)
        return moved_to

    async def quarantined(self, session_id: str) -> Sequence[str]:
        """The service's names of a session's copies, oldest first."""
        self._table.refuse_closed()
        return await event_copies(self._events, session_name(check_id(session_id, "session id")))

    async def maintain(self) -> None:
        """Check that held sessions are still ours and whether another owner has asked for them, and renew the leases of
        idle ones, until cancelled, which is safe at any time. Failures are retried.
        """
        under_way = set[str]()
        # Few at once: renewals of many idle sessions would otherwise be throttled together with commits. More than one,
        # since a request that hangs, or the lock of a session with one, must not cost others their leases.
        at_once = anyio.CapacityLimiter(REQUESTS_AT_ONCE)
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.sleep(self._shared.settings.renew_s / 4)
                for session_id in self._table.held():
                    start_once(tasks, under_way, session_id, partial(self._maintain, session_id, at_once))

    async def _maintain(self, session_id: str, at_once: anyio.CapacityLimiter) -> None:
        renew_s = self._shared.settings.renew_s
        with suppress(RepertoryError):  # Tried again; or the store was closed meanwhile.
            async with self._table.locked(session_id) as session, at_once:
                owned = session.held
                if owned is None or owned.ended:
                    return
                with Uncut():
                    # A commit has looked lately, or has not: either way one look in `renew_s` hears who asks.
                    if not owned.recently_looked(renew_s) and await owned.look() is not None:
                        _end(session)
                    elif anyio.current_time() - owned.written_at >= renew_s:
                        await owned.renew()

    async def asked_for(self) -> Sequence[str]:
        """Held sessions that other owners had asked for at the last look."""
        holding = self._table.held()
        asked = [session_id for session_id, owned in holding.items() if owned.wanted and not owned.ended]
        for session_id in asked:
            holding[session_id].wanted = False
        await checkpoint()
        return asked

    async def aclose(self) -> None:
        """Close, and release every lease; a lease that cannot be released expires. Calling it twice is allowed."""

        async def give_up(session: _Entry) -> None:
            with suppress(RepertoryError):
                await self._release(session)

        with Uncut():
            if await self._table.close(give_up):
                await self._events.aclose()
                return
        await checkpoint()

    # Within.

    async def _acquire(self, session_id: str, *, takeover: bool) -> Lease:
        with Uncut():
            async with self._table.locked(session_id) as session:
                _end(session)
                name = session_name(session_id)
                session.held = await self._race.acquire(session_id, name, takeover=takeover)
                return session.held.lease
        raise AssertionError

    async def _release(self, session: _Entry) -> None:
        owned, journals = session.held, session.journals
        assert owned is not None
        # Before the first request: whatever becomes of the release, nothing is committed under this lease any more.
        session.drop()
        # A fenced owner must not write the agent's record: other programs would be shown the state before the takeover.
        if any(journal.due for journal in journals.values()) and await owned.look() is not None:
            return
        for journal in journals.values():
            await journal.put_due(closing=True)
        await owned.release()

    async def _open(self, session: _Entry, owned: OwnedSession, agent_id: str) -> list[Row]:
        journal = AgentCoreJournal(owned, agent_id)
        with Uncut():
            try:
                rows, erased = await journal.open()
                if erased:
                    await erase(owned, {agent_id: erased})
            except RepertoryError:
                _end(session)  # What is stored is unknown: the next owner reads it again.
                raise
            session.journals[agent_id] = journal
            return [row.without_content() if row.seq in erased else row for row in rows]
        raise AssertionError

    async def _append(self, session: _Entry, batch: Batch) -> Position | LeaseLost:
        owned = session.held
        if owned is None or owned.ended or owned.lease != batch.lease:
            return lost(batch.lease)
        proving = not (batch.rows or batch.erase)
        # Nothing keeps a fenced owner from writing here, so it looks: always before a turn, and else every five
        # seconds.
        if proving or not owned.recently_looked(self._shared.settings.prove_s):
            refusal = await owned.look()
            if refusal is None and proving and owned.news is not None:
                msg = "another program has added to the session; open it again to take that in"
                refusal = LeaseLost(msg, session=owned.lease.session_id, event=owned.news)
            if refusal is not None:
                _end(session)
                return refusal
        parts = parts_by_agent(batch)
        for agent_id in parts:
            if agent_id not in session.journals:
                await self._open(session, owned, agent_id)
        journals = {agent_id: session.journals[agent_id] for agent_id in parts}
        rows = {agent_id: part.rows for agent_id, part in parts.items() if part.rows}
        wanted = {agent_id: part.erase for agent_id, part in parts.items() if part.erase}
        refusal = await commit_events(owned, journals, rows, wanted)
        if refusal is not None:
            return refusal
        if any(map(is_acted_on, batch.rows)):  # The service does not keep a fenced owner from writing.
            refusal = await owned.look()
            if refusal is not None:
                _end(session)
                return refusal
        return position_after(batch, lambda agent_id: journals[agent_id].last_seq)

    async def _removable(self, session_id: str, name: str) -> list[ListedEvent]:
        """The events of a session that no other owner has. Errors: `NotFound`, `SessionBusy`, `Invalid` for another
        session's.
        """
        found = await self._listed(name)
        if not found:
            raise StoreNotFound("no such session", session=session_id)
        # Two ids may have this name, so the events are read: another session must not be deleted.
        if may_be_shared(name):
            await EventLog(self._events, name, session_id).everything()
        owner = owner_in(found)
        if self._race.in_other_hands(owner):
            raise busy(session_id, owner.owner)
        # The service forgets deleted events, and with them the generation: the next owner must still be above it.
        self._race.forget(name, owner.generation)
        return found

    async def _remove(self, name: str, found: list[ListedEvent]) -> None:
        """Delete events, oldest first, and those that are only listed then."""
        for _ in range(_SWEEPS_MAX):
            for start in range(0, len(found), REQUESTS_AT_ONCE):
                # Oldest first: a delete that is cut off leaves the newest events, which say who owns the session.
                some = found[::-1][start : start + REQUESTS_AT_ONCE]
                await side_by_side([partial(self._events.delete, name, event.event_id) for event in some])
            # Again, since a listing lags: some events appear only now.
            found = await self._listed(name)
            if not found:
                break

    async def _listed(self, name: str) -> list[ListedEvent]:
        """All events of a session, newest first, without payloads."""
        found: list[ListedEvent] = []
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
        if not any(seen.lease is not None and seen.lease.tails is not None for seen in log.seen):
            await log.everything()
        agents: dict[str, int] = {}
        times: list[float] = []
        damaged = len(sound) < len(log.seen)
        for agent_id in log.agents:
            try:
                rows, began = await look_at(self._shared, log, (session_id, agent_id))
            except Corrupt:
                damaged = True
                continue
            if rows:
                agents[agent_id] = rows[-1].seq
                made_at = [at for row in rows if not row.erased and (at := at_of(row.body)) is not None]
                times += [began, *made_at] if began else made_at
        owner = self._race.alive(owner_in([seen.event for seen in log.seen]))
        stored_at = (seen.event.at_ms / 1000 for seen in log.seen)
        return listed_session(session_id, agents, times, stored_at, owner, damaged=damaged)


ITEMS_MAX = 100
"""The most items in an event."""


class _Placed(NamedTuple):
    journal: AgentCoreJournal
    part: Part
    items: Sequence[PayloadItem]


async def commit_events(
    owned: OwnedSession,
    journals: Mapping[str, AgentCoreJournal],
    rows: Mapping[str, Sequence[Row]],
    wanted: Mapping[str, Sequence[int]],
) -> LeaseLost | None:
    """Store the rows of agents, all or none of them, then destroy the contents of the `wanted` rows. None on success.

    Errors: as `MemoryEvents`. It is then unknown whether the rows are stored; repeating the same commit stores them
    once. If some events of a commit of several are missing, the session's next owner gets only the messages.
    """
    # First what had no answer: events are listed by time, and rows must be written in their order.
    await owned.settle()
    # The caller repeats a commit that had no answer. `settle` has just sent it again under the same token, so these
    # rows are stored.
    rows = {agent_id: [row for row in some if _name(row) not in owned.unsure] for agent_id, some in rows.items()}
    for agent_id, some in rows.items():
        refusal = refuse_gaps(owned.lease.session_id, some, journals[agent_id].last_seq)
        if refusal is not None:
            return refusal
    for agent_id, some in rows.items():
        if some and journals[agent_id].empty:
            await _begin(owned, journals[agent_id], some)
    _prepare(owned, journals, rows, wanted)
    await owned.settle()
    known = {agent_id: _known(journals[agent_id], seqs) for agent_id, seqs in wanted.items()}
    if any(known.values()):
        await erase(owned, {agent_id: seqs for agent_id, seqs in known.items() if seqs})
        for agent_id in known:
            journals[agent_id].erased()
    for journal in journals.values():
        await journal.put_due()
    # Only here: until everything of the commit is done, its caller may repeat it.
    owned.unsure.clear()
    return None


def is_acted_on(row: Row) -> bool:
    """True if an action follows this row: a tool or a step of one starts, or a caller receives an answer."""
    if row.kind != RecordKind.MESSAGE or row.erased:
        return row.kind in EFFECT_STARTS
    record = decode(row.kind, row.version, row.body)
    return isinstance(record, MessageAdded) and record.message["role"] == "assistant"


def _prepare(
    owned: OwnedSession,
    journals: Mapping[str, AgentCoreJournal],
    rows: Mapping[str, Sequence[Row]],
    wanted: Mapping[str, Sequence[int]],
) -> None:
    events = _events(owned, _placed(journals, rows, wanted, batch=False))
    # Too large for one event. Then each says which commit it belongs to, so that one that was cut off is recognized.
    if len(events) > 1:
        events = _events(owned, _placed(journals, rows, wanted, batch=True))
    beside: Mapping[str, str] = {}
    # Users' metadata go with messages alone: asking for them may be work, and rows without a message are ours.
    if any(part.group.number is not None for placed in events for _, part, _ in placed):
        beside = owned.shared.metadata(owned.lease.session_id)
    for placed in events:
        metadata = beside if any(part.group.number is not None for _, part, _ in placed) else {}
        owned.prepare([item for each in placed for item in each.items], metadata, partial(_follow, placed))
    owned.unsure |= {_name(row) for some in rows.values() for row in some}


def _follow(placed: Sequence[_Placed]) -> None:
    for each in placed:
        each.journal.follow(each.part)


def _name(row: Row) -> tuple[str, int, bytes]:
    return row.agent_id, row.seq, row.link


async def _begin(owned: OwnedSession, journal: AgentCoreJournal, rows: Sequence[Row]) -> None:
    """The records of session and agent come before messages: without them the package ignores the messages."""
    if not owned.session_known:
        record = session_item(owned.lease.session_id, owned.shared.wall())
        await owned.create("session", [record], {STATE_TYPE: "SESSION"})
        owned.session_known = True
    await journal.begin(rows)


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
        _Placed(journals[agent_id], part, journals[agent_id].items(part))
        for agent_id, some in rows.items()
        for part in journals[agent_id].parts(some, wanted.get(agent_id, ()), batch=batch)
    ]


def _events(owned: OwnedSession, placed: Sequence[_Placed]) -> list[list[_Placed]]:
    events: list[list[_Placed]] = []
    items, size_bytes = 0, 0
    for each in placed:
        more = sum(item_bytes(item) for item in each.items)
        items, size_bytes = items + len(each.items), size_bytes + more
        if not events or items > ITEMS_MAX or size_bytes > owned.shared.settings.event_bytes_max:
            events.append([])
            items, size_bytes = len(each.items), more
        events[-1].append(each)
    return events


# Looking for damage in the events of a session, reading around it, and setting damaged sessions aside.
#
# Content that can no longer be proved is treated like another program's: the readable messages as they are stored, and
# the agent's record.


async def examine_events(shared: SharedParts, session_id: str) -> Sequence[Corruption]:
    """All damage in a session's events, each place once."""
    log = await _whole_log(shared, session_id)
    damages = {seen.event.event_id: seen.fault or seen.record_fault for seen in log.seen}
    found = [Corruption(where=where, what=what) for where, what in damages.items() if what is not None]
    for agent_id in log.agents:
        found += (await read_agent_log(log, agent_id, shared.wall(), first=1)).damages
    return list({damage.where: damage for damage in found}.values())


async def salvage_events(shared: SharedParts, session_id: str) -> SalvagedRows:
    """The rows of a session that can be proved, then new ones for all readable messages behind them. And the damage."""
    log = await _whole_log(shared, session_id)
    rows: list[Row] = []
    for agent_id in log.agents:
        reading = sound_reading(log, await read_agent_log(log, agent_id, shared.wall(), first=1), agent_id)
        rows += reading.rows
        if orchestrator_in(agent_id) is None:  # It has no messages: only the rows before the damage are left.
            rows += opened_of(shared, (session_id, agent_id), reading).made
    return SalvagedRows(rows=rows, damages=await examine_events(shared, session_id))


async def _whole_log(shared: SharedParts, session_id: str) -> EventLog:
    log = EventLog(shared.events, session_name(session_id), session_id)
    await log.everything()
    return log


async def event_copies(events: MemoryEvents, name: str) -> list[str]:
    """The service's names of a session's copies, oldest first."""
    numbers = [number for each in await events.sessions() if (number := number_aside(each, name)) is not None]
    names = [aside_name(name, number) for number in sorted(numbers)]
    return [each for each in names if (await events.page(each, None, payloads=False)).events]


async def copy_events_aside(shared: SharedParts, name: str) -> str:
    """Copy the events of a session, each as a blob with all of its content. Returns the name of the copy."""
    log = EventLog(shared.events, name)
    await log.everything()
    before = [number_aside(each, name) or 0 for each in await event_copies(shared.events, name)]
    moved_to = aside_name(name, max(before, default=0) + 1)
    for start in range(0, len(log.seen), REQUESTS_AT_ONCE):
        some = log.seen[start : start + REQUESTS_AT_ONCE]
        copies = [_copy(seen.event, f"{shared.owner} {moved_to}") for seen in some]
        await side_by_side([partial(shared.events.create, moved_to, copy) for copy in copies])
    return moved_to


def _copy(event: ListedEvent, whose: str) -> NewEvent:
    fields = {"event": event.event_id, "at_ms": event.at_ms, "metadata": event.metadata, "payload": list(event.payload)}
    # Made of the event, so that a copy which is begun again creates nothing twice.
    token = blake2b(f"{whose} {event.event_id}".encode(), digest_size=20).hexdigest()
    return NewEvent(at_ms=event.at_ms, payload=[{"blob": json.dumps(fields, default=str)}], metadata={}, token=token)
