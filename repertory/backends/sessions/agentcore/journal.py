"""One agent's journal in the events of a session, for its owner: opening, taking in added messages, appending."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from repertory.backends.sessions.agentcore.events import PayloadItem
from repertory.backends.sessions.agentcore.layout import (
    AGENT_ID,
    STATE_TYPE,
    EventOwner,
    ParsedEvent,
    agent_value,
    erased_payload,
    message_items,
    rows_item,
)
from repertory.backends.sessions.agentcore.ownership import REQUESTS_AT_ONCE, OwnedSession, SharedParts, until_settled
from repertory.backends.sessions.agentcore.reading import (
    EventLog,
    EventReading,
    check_events,
    find_agent,
    read_agent_log,
)
from repertory.backends.sessions.requests import side_by_side
from repertory.core.journal.codec import at_of
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import Row
from repertory.core.json_bytes import read, to_file
from repertory.core.message_tree.documents import OURS, RecordGroup, shown_instead
from repertory.core.message_tree.group_log import GroupLog, Part
from repertory.core.message_tree.opening import OpenedTree, needed_of, open_agent
from repertory.core.messages import Message
from repertory.core.orchestration.journals import orchestrator_in
from repertory.errors import StoreUnavailable
from repertory.logs import WARNING, note

ROWS_MAX = 100
"""The most rows in one group that records other programs' messages."""

_log = logging.getLogger("repertory.sessions")


class RowsFound(NamedTuple):
    """An agent's rows as a reader without the lease finds them, and when the first was made (0.0: unknown)."""

    rows: list[Row]
    began: float


async def look_at(shared: SharedParts, log: EventLog, names: tuple[str, str], *, whole: bool = False) -> RowsFound:
    """The rows from the last one's `low` on, or all of them. Nothing is written.

    `names`: of the session and of the agent.
    """
    first = 1 if whole else None
    reading = await read_agent_log(log, names[1], shared.wall(), first=first)
    if reading.missing and not reading.altered:

        async def again() -> EventReading | None:
            found = await read_agent_log(log.anew(), names[1], shared.wall(), first=first)
            return None if found.missing else found

        reading = await until_settled(again, shared.settings.settle_s) or reading
    check_events(names, reading)
    opened = opened_of(shared, names, reading)
    return RowsFound([*opened.found, *opened.made] if whole else opened.needed(), _began_in(reading))


def _began_in(reading: EventReading) -> float:
    rows = reading.assembled.rows
    if reading.began or not rows or rows[0].erased:
        return reading.began
    return at_of(rows[0].body) or 0.0


def opened_of(shared: SharedParts, names: tuple[str, str], reading: EventReading) -> OpenedTree:
    """The stored journal, and the rows that record other programs' messages. Errors: `CorruptJournal`."""
    first = reading.first_number if reading.complete else 0
    numbers = range(first, reading.next_number)
    return open_agent(names, reading.assembled, numbers, reading.agent, shared.wall(), shared.entropy)


class AgentCoreJournal:
    """The journal of one agent, owned. The caller writes its `parts` and reports each with `follow`."""

    def __init__(self, owned: OwnedSession, agent_id: str) -> None:
        self._owned = owned
        self._shared = owned.shared
        self._agent_id = agent_id
        self._names = (owned.lease.session_id, agent_id)
        self._is_agent = orchestrator_in(agent_id) is None
        """False for an orchestrator: other programs know no records of orchestrators."""
        self._log = GroupLog(agent_id=agent_id, generation=owned.lease.generation)
        self._agent_known = True
        """True if the log was searched for the agent's record."""
        self._agent_event: str | None = None
        """The id of our event that holds it."""
        self._began = 0.0

    @property
    def last_seq(self) -> int:
        return self._log.last_seq

    @property
    def empty(self) -> bool:
        """True if nothing is stored, not even by other programs."""
        return not self._log.last_seq and not self._log.next_number

    @property
    def due(self) -> bool:
        """True if the agent's record must be written before the session is released."""
        return self._is_agent and self._log.due

    async def open(self) -> tuple[list[Row], Sequence[int]]:
        """Read the journal, and take in other programs' messages.

        Returns the rows that opening needs, from `low` on, and the rows whose contents must still be erased.
        """
        reading = await self._settled(self._owned.tails.get(self._agent_id, 0))
        self._owned.opened = True
        check_events(self._names, reading)
        self._complain(reading)
        self._owned.superseded += reading.superseded
        found, opened = reading.assembled, opened_of(self._shared, self._names, reading)
        self._agent_known = reading.agent is not None or reading.complete
        self._agent_event, self._began = reading.agent_event, _began_in(reading)
        first_number = reading.first_number if reading.complete else 0
        self._log = replace(
            self._log,
            next_number=reading.next_number,
            messages=reading.next_number - first_number,
            tail=found.tail,
            agent=reading.agent,
        )
        self._log.open_with(opened, found.numbers, known=self._agent_known)
        await self._keep_made(opened, reading)
        return opened.needed(), sorted(found.erase)

    async def stored_rows(self, *, whole: bool) -> list[Row]:
        """The stored rows. Errors: `Unavailable` when the memory does not list all of them."""
        reading = await self._settled(self._log.last_seq, first=1 if whole else None)
        if reading.altered:
            check_events(self._names, reading)
        rows = list(reading.assembled.rows)
        if self._log.last_seq > (rows[-1].seq if rows else 0):
            session_id, agent_id = self._names
            msg = "the memory does not show its newest events; try again"
            raise StoreUnavailable(msg, session=session_id, agent=agent_id, seq=self._log.last_seq)
        check_events(self._names, reading)
        return rows if whole else needed_of(rows)

    # Writing.

    def parts(self, rows: Sequence[Row], erase: Sequence[int], *, batch: bool = False) -> list[Part]:
        """As `GroupLog.parts`. `batch`: the parts are spread over several events, and say so."""
        return self._log.parts(rows, erase, batch=batch)

    def items(self, rows: Sequence[Row], part: Part) -> Sequence[PayloadItem]:
        """The event items for one part of these rows."""
        began = self._began or (at_of(rows[0].body) if rows else None) or self._shared.wall()
        whose = self._event_owner(began)
        if part.message is None or part.number is None:
            return [rows_item(whose, part.group, {}, {})]
        return message_items(whose, part.number, part.message, part.said_at(self._shared.wall()), part.group)

    def follow(self, part: Part) -> None:
        self._log.stored(part)
        self._note_stored()
        self._began = self._began or at_of(part.group.rows[0].body) or 0.0

    def _note_stored(self) -> None:
        self._owned.tails[self._agent_id] = self._log.last_seq
        self._owned.committed_at = self._shared.wall()

    async def begin(self, rows: Sequence[Row]) -> None:
        """Write the agent's record before its first message, for these rows."""
        if self._is_agent:
            await self._put_record(self._log.first_document(rows, self._shared.wall()))
            self._log.state_due = self._log.view_due = False

    async def put_agent(self) -> None:
        """Write the agent's current record."""
        if not self._is_agent:
            return
        log = self._log
        if log.fold is None:
            log.fold = restore(await self.stored_rows(whole=False), session_id=self._names[0]).fold
        if not self._agent_known:
            log.agent = await find_agent(
                EventLog(self._shared.events, self._owned.name, self._names[0]), self._agent_id
            )
            self._agent_known = True
        await self._put_record(log.document(self._shared.wall()))
        log.told()

    async def _put_record(self, body: bytes) -> None:
        payload: list[PayloadItem] = [{"blob": to_file(read(body), indent=None).decode()}]
        metadata = {STATE_TYPE: "AGENT", AGENT_ID: agent_value(self._agent_id)}
        event_id = await self._owned.create("agent", payload, metadata)
        if self._agent_event is not None:
            self._owned.superseded.append(self._agent_event)
        self._agent_event = event_id

    async def put_due(self, *, closing: bool = False) -> None:
        """Write the agent's record if its state has changed; when `closing`, also if the window has."""
        if self._log.state_due or (closing and self.due):
            await self.put_agent()

    def erased(self) -> None:
        self._log.view_due = True

    # Within.

    def _event_owner(self, began: float) -> EventOwner:
        session_id = self._names[0]
        return EventOwner(self._agent_id, began, session_id if session_id != self._owned.name else None)

    async def _settled(self, last_seq: int, *, first: int | None = None) -> EventReading:
        """A reading with every row up to `last_seq`, or the last reading when they do not appear in time."""
        newest: list[EventReading] = []

        async def look() -> EventReading | None:
            log, self._owned.log = (
                self._owned.log or EventLog(self._shared.events, self._owned.name, self._names[0]),
                None,
            )
            reading = await read_agent_log(log, self._agent_id, self._shared.wall(), first=first)
            if not self._owned.opened:
                self._owned.know(log)
            newest[:] = [reading]
            rows = reading.assembled.rows
            short = (rows[-1].seq if rows else 0) < last_seq and not reading.altered
            return None if reading.late or short else reading

        return await until_settled(look, self._shared.settings.settle_s) or newest[0]

    async def _keep_made(self, opened: OpenedTree, reading: EventReading) -> None:
        """Store the rows made from other programs' messages, with the places of those messages. Repaired rows hold
        their messages by value.
        """
        number = max(reading.assembled.numbers.values(), default=-1) + 1
        filed = {each for each, _ in opened.files.values()}
        repaired = {each: reading.refs[each] for each, _ in reading.assembled.added if each not in filed}
        for start in range(0, len(opened.made), ROWS_MAX):
            rows = opened.made[start : start + ROWS_MAX]
            files = {row.seq: opened.files[row.seq] for row in rows if row.seq in opened.files}
            group = RecordGroup(
                rows=rows,
                generation=self._owned.lease.generation,
                before=self._log.tail,
                next_number=number,
            )
            events = {each: reading.refs[each] for each, _ in files.values()} | repaired
            repaired = {}
            number = max([number, *(each + 1 for each in events)])
            self._began = self._began or at_of(rows[0].body) or 0.0
            item = rows_item(self._event_owner(self._began), group, files, events)
            await self._owned.create("rows", [item])
            self._log.put(rows)
            self._note_stored()

    def _complain(self, reading: EventReading) -> None:
        session_id, agent_id = self._names
        for fault in reading.assembled.faults:
            note(_log, WARNING, "a message is lost", session=session_id, agent=agent_id, seq=fault.row.seq)
        for ref in reading.unreadable:
            note(_log, WARNING, "a message cannot be read and is left out", session=session_id, event=ref)
        if reading.torn:
            text = "a commit was cut off; what it said counts as added"
            note(_log, WARNING, text, session=session_id, agent=agent_id)
        rows = reading.assembled.rows
        if rows and rows[0].seq > rows[-1].low:
            note(_log, WARNING, "older events are gone", session=session_id, agent=agent_id, first=rows[0].seq)


# Erasing contents from a session whose events cannot be changed: each is rewritten without them, then deleted.


async def erase(owned: OwnedSession, wanted: Mapping[str, Sequence[int]]) -> None:
    """Destroy the contents of rows (by agent), in every event that holds them: first the messages, so that a row
    without content never stands beside its message, and last in the event that asks for it.

    A rewritten event has the time of the one it replaces. Errors: as `MemoryEvents`; the request is then still stored,
    and the session's next owner continues.
    """
    shared = owned.shared
    log = EventLog(shared.events, owned.name)
    shown: dict[str, Message] = {}
    superseded: list[str] = []
    for agent_id, seqs in wanted.items():
        reading = await read_agent_log(log, agent_id, shared.wall(), first=min(seqs))
        for seq, message in shown_instead(reading.assembled.rows, frozenset(seqs)).items():
            number = reading.assembled.numbers.get(seq)
            if number is not None and number in reading.refs:
                shown[reading.refs[number]] = message
        superseded += reading.superseded
    await side_by_side([partial(owned.delete, event_id) for event_id in superseded], REQUESTS_AT_ONCE)
    holding = [
        seen for seen in log.seen if seen.event.event_id not in superseded and _concerns(seen, wanted, set(shown))
    ]
    for seen in sorted(holding, key=lambda seen: (_asks(seen, wanted), not _refs(seen) & set(shown))):
        metadata = {name: value for name, value in seen.event.metadata.items() if name != OURS}
        payload = erased_payload(seen, wanted, shown, shared.wall())
        await owned.create("rows", payload, metadata, seen.event.at_ms)
        await owned.delete(seen.event.event_id)


def _concerns(seen: ParsedEvent, wanted: Mapping[str, Collection[int]], shown: Collection[str]) -> bool:
    rows = {(found.agent_id, row.line.seq) for found in seen.found for row in found.read.kept}
    holds = bool(_refs(seen) & set(shown)) or any((name, seq) in rows for name in wanted for seq in wanted[name])
    return holds or _asks(seen, wanted)


def _refs(seen: ParsedEvent) -> set[str]:
    """The places of the messages in an event."""
    return {message.ref for message in seen.said} | {found.ref for found in seen.found}


def _asks(seen: ParsedEvent, wanted: Mapping[str, Collection[int]]) -> bool:
    return any(found.read.erase and found.agent_id in wanted for found in seen.found)
