"""One agent's journal in the events of a session, for its owner: opening, taking in added messages, appending."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from repertory.backends.sessions.agentcore.events import PayloadItem
from repertory.backends.sessions.agentcore.layout import (
    AGENT_ID,
    FORMAT,
    STATE_TYPE,
    ParsedEvent,
    RecordGroup,
    TakenMessage,
    agent_value,
    erased_payload,
    message_items,
    our_item,
)
from repertory.backends.sessions.agentcore.ownership import REQUESTS_AT_ONCE, OwnedSession, SharedParts, until_settled
from repertory.backends.sessions.agentcore.reading import (
    EventLog,
    EventReading,
    check_events,
    find_agent,
    read_agent_log,
    redactions_in,
)
from repertory.backends.sessions.requests import side_by_side
from repertory.core.journal.codec import at_of
from repertory.core.journal.fold import Fold
from repertory.core.journal.image import Image
from repertory.core.journal.records import View
from repertory.core.journal.redact import redact, without_text
from repertory.core.journal.restore import Appender, restore
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.json_bytes import read, to_file
from repertory.core.message_tree.agent_state import AgentDocument
from repertory.core.message_tree.documents import ERASED_TEXT, OURS, AgentFile, manager_named, message_in
from repertory.core.message_tree.opening import adopt, adopt_agent, first_visible_seq, needed_of, outdated
from repertory.core.messages import LOST_TEXT, Message, tool_results
from repertory.core.orchestration.journals import orchestrator_in
from repertory.errors import Invalid, StoreUnavailable
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
    # Missing may be late. Altered stays altered, and is not waited for.
    if reading.missing and not reading.altered:

        async def again() -> EventReading | None:
            found = await read_agent_log(log.anew(), names[1], shared.wall(), first=first)
            return None if found.missing else found

        reading = await until_settled(again, shared.settings.settle_s) or reading
    check_events(names, reading)
    rows = [*reading.rows, *opened_of(shared, names, reading).made]
    return RowsFound(rows if whole else needed_of(rows), _began_in(reading))


def _began_in(reading: EventReading) -> float:
    rows = reading.rows
    if reading.began or not rows or rows[0].erased:
        return reading.began
    return at_of(rows[0].body) or 0.0


class OpenedEvents(Struct, frozen=True, kw_only=True):
    """The rows that follow a stored journal for what other programs did."""

    made: Sequence[Row]
    taken: Sequence[TakenMessage]
    """The messages that these rows take in."""
    erase: frozenset[int]
    """Rows whose contents must still be erased."""
    fold: Fold


def opened_of(shared: SharedParts, names: tuple[str, str], reading: EventReading) -> OpenedEvents:
    """New rows for messages of others that were removed, for those that were added, and for the agent's record.

    When the rows begin after the last one's `low`, the earlier ones have expired, and are restated as far as the
    agent's record tells. Errors: `CorruptJournal`.
    """
    session_id, agent_id = names
    rows, agent, at = reading.rows, reading.agent, shared.wall()
    expired = bool(rows) and rows[0].seq > rows[-1].low
    needed = needed_of(rows)
    if expired and len(needed) == 1:  # It is needed for its link only.
        fold = Fold(Image(last_seq=needed[0].seq), partial=True)
    else:
        fold = restore(needed, session_id=session_id).fold
    appender = Appender(agent_id, fold, rows[-1].link if rows else None, shared.entropy)
    made: list[Row] = []
    erase = {*reading.erase}
    for row in (row for row in rows if row.seq in reading.removed):
        message = message_in(row)
        with suppress(Invalid):  # Its tools are still to run: it is taken back when the session is opened again.
            assert message is not None
            bare: Message = {"role": message["role"], "content": message["content"]}  # A filler has no usage.
            redaction = redact(appender, [*rows, *made], row.seq, without_text(bare, LOST_TEXT), at)
            made += redaction.rows
            erase |= {*redaction.erase}
    adopted = adopt(appender, reading.added, at)
    made += adopted.rows
    seqs = {number: seq for seq, number in adopted.numbers.items()}
    if expired:
        restored = agent or AgentFile(state={}, manager={}, model_state={}, created_at="")
        # The rows that are left know the state better than the record, which is written when a session is released.
        restored = replace(restored, state={**restored.state, **fold.state})
        # The first remaining message that is shown and may be the first for a model.
        recent = fold.shown.recent
        prompts = (seq for seq, one in recent if one["role"] == "user" and not any(tool_results(one)))
        made += adopt_agent(appender, restored, next(prompts, fold.last_seq + 1), at, first_turn=False)
    elif agent is not None and reading.agent_event is None:
        numbers = range(reading.first_number if reading.complete else 0, reading.next_number)
        places = {**reading.numbers, **{seq: number for number, seq in seqs.items()}}
        visible_from = first_visible_seq(agent, numbers, places, fold.last_seq)
        made += adopt_agent(appender, agent, visible_from, at, first_turn=not rows)
    taken = [
        TakenMessage(number, reading.refs[number], seqs.get(number, 0))
        for number, _ in reading.added
        if number in reading.refs
    ]
    return OpenedEvents(made=made, taken=taken, erase=frozenset(erase), fold=fold)


class Part(NamedTuple):
    """A record group to store, and the message in it, as other programs see it."""

    group: RecordGroup
    message: Message | None


class AgentCoreJournal:
    """The journal of one agent, owned. The caller writes its `parts` and reports each with `follow`."""

    def __init__(self, owned: OwnedSession, agent_id: str) -> None:
        self._owned = owned
        self._shared = owned.shared
        self._agent_id = agent_id
        self._names = (owned.lease.session_id, agent_id)
        self._is_agent = orchestrator_in(agent_id) is None
        """False for an orchestrator: other programs know no records of orchestrators."""
        self._document = AgentDocument(agent_id=agent_id)
        """The state that the agent's record shows to other programs."""
        self._agent_known = True
        """True if the log was searched for the agent's record."""
        self._agent_event: str | None = None
        """The id of our event that holds it."""
        self._began = 0.0

    @property
    def last_seq(self) -> int:
        return self._document.last_seq

    @property
    def empty(self) -> bool:
        """True if nothing is stored, not even by other programs."""
        return not self._document.last_seq and not self._document.next_number

    @property
    def due(self) -> bool:
        """True if the agent's record must be written before the session is released."""
        return self._is_agent and self._document.due

    async def open(self) -> tuple[list[Row], Sequence[int]]:
        """Read the journal, and take in other programs' messages.

        Returns the rows that opening needs, from `low` on, and the rows whose contents must still be erased.
        """
        reading = await self._settled(self._owned.tails.get(self._agent_id, 0))
        # From here on, events that were not in this listing are news.
        self._owned.opened = True
        check_events(self._names, reading)
        self._complain(reading)
        self._owned.superseded += reading.superseded
        rows, agent, opened = reading.rows, reading.agent, opened_of(self._shared, self._names, reading)
        known = self._agent_known = agent is not None or reading.complete
        self._agent_event, self._began = reading.agent_event, _began_in(reading)
        self._document = AgentDocument(
            agent_id=self._agent_id,
            last_seq=rows[-1].seq if rows else 0,
            next_number=reading.next_number,
            messages=reading.next_number - (reading.first_number if reading.complete else 0),
            numbers={**reading.numbers, **{each.seq: each.number for each in opened.taken if each.seq}},
            fold=opened.fold,
            agent=agent,
            state_due=agent is None and known and bool(rows or reading.next_number),
            view_due=known if agent is None else reading.agent_event is None or outdated(agent, opened.fold),
            asks=agent is not None and agent.asks,
            manager=manager_named(View() if known else opened.fold.shown.view, agent),
        )
        await self._keep_made(opened, reading)
        return needed_of([*rows, *opened.made]), sorted(opened.erase)

    async def stored_rows(self, *, whole: bool) -> list[Row]:
        """The stored rows. Errors: `Unavailable` when the memory does not list all of them."""
        reading = await self._settled(self._document.last_seq, first=1 if whole else None)
        if reading.altered:
            check_events(self._names, reading)
        rows = list(reading.rows)
        # What this owner has written is not listed yet. An earlier end must not look like the end.
        if self._document.last_seq > (rows[-1].seq if rows else 0):
            session_id, agent_id = self._names
            msg = "the memory does not show its newest events; try again"
            raise StoreUnavailable(msg, session=session_id, agent=agent_id, seq=self._document.last_seq)
        check_events(self._names, reading)
        return rows if whole else needed_of(rows)

    # Writing.

    def parts(self, rows: Sequence[Row], erase: Sequence[int], *, batch: bool = False) -> list[Part]:
        """The groups for rows that follow the last one; the last group carries `erase`.

        `batch`: the groups are spread over several events, and say so, so that a commit that was cut off is recognised.
        """
        found = _parts_of(rows)
        number = self._document.next_number
        together = (rows[0].seq, rows[-1].seq) if batch else None
        began = self._began or (at_of(rows[0].body) if rows else None) or self._shared.wall()
        parts: list[Part] = []
        for count, (some, message) in enumerate(found, 1):
            own = number if message is not None else None
            group = self._group(some, began, own, number, batch=together, erase=erase if count == len(found) else ())
            parts.append(Part(group, message))
            number += message is not None
        return parts

    def items(self, part: Part) -> Sequence[PayloadItem]:
        """The event items for one part."""
        if part.message is None:
            return [our_item(part.group)]
        made = (at_of(row.body) for row in part.group.rows if not row.erased)
        said_at = next((at for at in made if at), self._shared.wall())
        return message_items(part.message, said_at, part.group)

    def follow(self, part: Part) -> None:
        """A part was stored."""
        group, document = part.group, self._document
        document.last_seq = group.rows[-1].seq
        if group.number is not None:
            document.numbers[next(row.seq for row in group.rows if row.kind == RecordKind.MESSAGE)] = group.number
            document.next_number = group.number + 1
            document.messages += 1
        for row in group.rows:
            document.follow(row)
        self._note_stored()
        self._began = self._began or at_of(group.rows[0].body) or 0.0

    def _note_stored(self) -> None:
        self._owned.tails[self._agent_id] = self._document.last_seq
        self._owned.committed_at = self._shared.wall()

    async def begin(self, rows: Sequence[Row]) -> None:
        """Write the agent's record before its first message, for these rows."""
        if self._is_agent:
            await self._put_record(self._document.first_document(rows, self._shared.wall()))
            self._document.state_due = self._document.view_due = False

    async def put_agent(self) -> None:
        """Write the agent's current record."""
        if not self._is_agent:
            return
        log = self._document
        if log.fold is None:
            log.fold = restore(await self.stored_rows(whole=False), session_id=self._names[0]).fold
        if not self._agent_known:
            log.agent = await find_agent(
                EventLog(self._shared.events, self._owned.name, self._names[0]), self._agent_id
            )
            self._agent_known = True
        await self._put_record(log.document(self._shared.wall()))
        log.mark_stored()

    async def _put_record(self, body: bytes) -> None:
        payload: list[PayloadItem] = [{"blob": to_file(read(body), indent=None).decode()}]
        metadata = {STATE_TYPE: "AGENT", AGENT_ID: agent_value(self._agent_id)}
        event_id = await self._owned.create("agent", payload, metadata)
        # Removed later, with the release: other programs read the newest record, wherever older ones lie.
        if self._agent_event is not None:
            self._owned.superseded.append(self._agent_event)
        self._agent_event = event_id

    async def put_due(self, *, closing: bool = False) -> None:
        """Write the agent's record if its state has changed; when `closing`, also if the window has."""
        if self._document.state_due or (closing and self.due):
            await self.put_agent()

    def erased(self) -> None:
        self._document.view_due = True

    # Within.

    def _group(
        self,
        rows: Sequence[Row],
        began: float,
        number: int | None,
        following: int,
        *,
        batch: tuple[int, int] | None = None,
        erase: Sequence[int] = (),
        taken: Sequence[TakenMessage] = (),
    ) -> RecordGroup:
        session_id = self._names[0]
        return RecordGroup(
            format=FORMAT,
            agent=self._agent_id,
            began=began,
            generation=self._owned.lease.generation,
            rows=rows,
            of=session_id if session_id != self._owned.name else None,
            number=number,
            following=following if number is None else 0,
            batch=batch,
            erase=erase,
            taken=taken,
        )

    async def _settled(self, last_seq: int, *, first: int | None = None) -> EventReading:
        """A reading with every row up to `last_seq`, or the last reading when they do not appear in time."""
        newest: list[EventReading] = []

        async def look() -> EventReading | None:
            # Used once: it is the newest listing there is, and saves the second one at opening.
            log, self._owned.log = (
                self._owned.log or EventLog(self._shared.events, self._owned.name, self._names[0]),
                None,
            )
            reading = await read_agent_log(log, self._agent_id, self._shared.wall(), first=first)
            # The first listing, by which the lease was won: what it shows was there before us.
            if not self._owned.opened:
                self._owned.know(log)
            newest[:] = [reading]
            rows = reading.rows
            short = (rows[-1].seq if rows else 0) < last_seq and not reading.altered
            return None if reading.late or short else reading

        return await until_settled(look, self._shared.settings.settle_s) or newest[0]

    async def _keep_made(self, opened: OpenedEvents, reading: EventReading) -> None:
        """Store the rows made for what other programs did, with the places of their messages."""
        number = max(reading.numbers.values(), default=-1) + 1
        # By a hundred, since what others wrote may be months of conversation, and an event holds 1 MB.
        for start in range(0, len(opened.made), ROWS_MAX):
            rows = opened.made[start : start + ROWS_MAX]
            seqs = {row.seq for row in rows}
            taken = [each for each in opened.taken if each.seq in seqs or (not each.seq and start == 0)]
            number = max([number, *(each.number + 1 for each in taken)])
            self._began = self._began or at_of(rows[0].body) or 0.0
            await self._owned.create("rows", [our_item(self._group(rows, self._began, None, number, taken=taken))])
            self._document.last_seq = rows[-1].seq
            self._note_stored()

    def _complain(self, reading: EventReading) -> None:
        session_id, agent_id = self._names
        for seq in reading.removed:
            note(_log, WARNING, "a message is lost", session=session_id, agent=agent_id, seq=seq)
        for ref in reading.unreadable:
            note(_log, WARNING, "a message cannot be read and is left out", session=session_id, event=ref)
        if reading.torn:
            text = "a commit was cut off; what it said counts as added"
            note(_log, WARNING, text, session=session_id, agent=agent_id)
        rows = reading.rows
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
    replaced: dict[str, Message] = {}
    superseded: list[str] = []
    for agent_id, seqs in wanted.items():
        reading = await read_agent_log(log, agent_id, shared.wall(), first=min(seqs))
        for seq, message in _replacements(reading.rows, frozenset(seqs)).items():
            number = reading.numbers.get(seq)
            if number is not None and number in reading.refs:
                replaced[reading.refs[number]] = message
        superseded += reading.superseded
    # Earlier editions of events that were rewritten before hold the contents as well.
    await side_by_side([partial(owned.delete, event_id) for event_id in superseded], REQUESTS_AT_ONCE)
    holding = [
        seen for seen in log.seen if seen.event.event_id not in superseded and _concerns(seen, wanted, set(replaced))
    ]
    for seen in sorted(holding, key=lambda seen: (_asks(seen, wanted), not _refs(seen) & set(replaced))):
        metadata = {name: value for name, value in seen.event.metadata.items() if name != OURS}
        payload = erased_payload(seen, wanted, replaced, shared.wall())
        # First written anew, then deleted. Killed in between, both are listed, and the later edition counts.
        await owned.create("rows", payload, metadata, seen.event.at_ms)
        await owned.delete(seen.event.event_id)


def _concerns(seen: ParsedEvent, wanted: Mapping[str, Collection[int]], replaced: Collection[str]) -> bool:
    rows = {(found.group.agent, row.seq) for found in seen.found for row in found.group.rows}
    holds = bool(_refs(seen) & set(replaced)) or any((name, seq) in rows for name in wanted for seq in wanted[name])
    return holds or _asks(seen, wanted)


def _refs(seen: ParsedEvent) -> set[str]:
    """The places of the messages in an event."""
    return {message.ref for message in seen.messages} | {found.ref for found in seen.found}


def _asks(seen: ParsedEvent, wanted: Mapping[str, Collection[int]]) -> bool:
    return any(found.group.erase and found.group.agent in wanted for found in seen.found)


def _parts_of(rows: Sequence[Row]) -> list[tuple[list[Row], Message | None]]:
    """The rows by message, each with the rows around it. A message erased before it was written is replaced by its
    redaction.
    """
    instead = _replacements(rows, [row.seq for row in rows if row.kind == RecordKind.MESSAGE and row.erased])
    parts: list[tuple[list[Row], Message | None]] = []
    waiting: list[Row] = []
    for row in rows:
        message = message_in(row) or instead.get(row.seq)
        if message is not None:
            parts.append(([*waiting, row], message))
            waiting = []
        elif parts:
            parts[-1][0].append(row)
        else:
            waiting.append(row)
    if waiting:
        parts.append((waiting, None))
    return parts


def _replacements(rows: Iterable[Row], wanted: Collection[int]) -> dict[int, Message]:
    """Sequence number to the message shown in the place of a message that will be erased."""
    redactions = redactions_in(rows)
    replaced: dict[int, Message] = {}
    for row in rows:
        message = message_in(row) if row.seq in wanted else None
        blank: Message | None = {"role": message["role"], "content": [{"text": ERASED_TEXT}]} if message else None
        instead = redactions.get(row.seq) or blank
        if row.seq in wanted and instead is not None:
            replaced[row.seq] = instead
    return replaced
