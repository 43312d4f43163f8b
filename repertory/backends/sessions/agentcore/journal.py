"""One agent's journal in the events of a session, as its owner keeps it: opening, taking in what others wrote,
appending.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from repertory.backends.sessions.agentcore.events import PayloadItem
from repertory.backends.sessions.agentcore.layout import (
    AGENT_ID,
    STATE_TYPE,
    Whose,
    agent_value,
    message_items,
    rows_item,
)
from repertory.backends.sessions.agentcore.ownership import Means, OwnedSession, until_settled
from repertory.backends.sessions.agentcore.reading import EventLog, Reading, check_undamaged, find_agent, read_agent_log
from repertory.backends.sessions.documents.reading import offset_of
from repertory.core.interrupt_state import asks_somebody
from repertory.core.journal.codec import at_of, decode
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import Branched
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import Row
from repertory.core.journal.standing import standing_of
from repertory.core.message_tree.chapters import parts_of
from repertory.core.message_tree.documents import AgentFile, Chapter, agent_document
from repertory.core.message_tree.kept_rows import Line
from repertory.core.message_tree.opening import Opened, due_after, needed_of, open_agent, outdated
from repertory.core.message_tree.spelling import read, spelled
from repertory.core.orchestration.journals import orchestrator_in
from repertory.core.window.decision import DEFAULT_MANAGER
from repertory.errors import CorruptJournal, StoreUnavailable

ROWS_MAX = 100
"""Rows in one chapter of those that are made for messages of others."""
_NUMBERS_MAX = 256

_log = logging.getLogger("repertory.sessions")


class Part(NamedTuple):
    """A chapter to be written."""

    rows: Sequence[Row]
    items: Sequence[PayloadItem]
    number: int | None
    """Of its message."""


@dataclass(slots=True)
class JournalState:
    """Where the journal stands, as far as its owner needs to know without reading."""

    last_seq: int = 0
    next_number: int = 0
    """Of the next message."""
    first_number: int = 0
    """Of the first message that is there."""
    numbers: dict[int, int] = field(default_factory=dict[int, int])
    """Sequence number of a message's row to the number of the message, for those that may still be shown."""
    tail: Sequence[Line] = ()
    """The rows of the last chapter."""
    fold: Fold | None = None
    """None: to be folded from what is stored."""
    agent: AgentFile | None = None
    agent_known: bool = True
    """Whether `agent` is what there is, rather than not looked for."""
    agent_event: str | None = None
    """The event of ours that has it."""
    began: float = 0.0
    state_due: bool = False
    view_due: bool = False
    asks: bool = False
    """Whether the agent's record says that the turn waits for a person."""


class Looked(NamedTuple):
    """An agent's rows as somebody finds them who only looks, and when the first of all was made (0.0: unknown)."""

    rows: list[Row]
    began: float


async def look_at(means: Means, log: EventLog, names: tuple[str, str], *, whole: bool = False) -> Looked:
    """The rows from the last one's `low` on, or all of them. Nothing is written.

    `names`: of the session and of the agent.
    """
    first = 1 if whole else None
    reading = await read_agent_log(log, names[1], means.wall(), first=first)
    if reading.missing and not reading.altered:

        async def again() -> Reading | None:
            found = await read_agent_log(log.anew(), names[1], means.wall(), first=first)
            return None if found.missing else found

        reading = await until_settled(again, means.settings.settle_s) or reading
    check_undamaged(names, reading)
    opened = opened_of(means, names, reading)
    return Looked([*opened.found, *opened.made] if whole else opened.needed(), _began_in(reading))


def _began_in(reading: Reading) -> float:
    rows = reading.assembled.rows
    if reading.began or not rows or rows[0].erased:
        return reading.began
    return at_of(rows[0].body) or 0.0


def opened_of(means: Means, names: tuple[str, str], reading: Reading) -> Opened:
    """The journal as it was found, and what follows from what others have written. Errors: `CorruptJournal`."""
    first = reading.first_number if reading.complete else 0
    numbers = range(first, reading.next_number)
    return open_agent(names, reading.assembled, numbers, reading.agent, means.wall(), means.entropy)


class AgentCoreJournal:
    """The journal of one agent, owned. `parts` are written by others; they are told of by `follow`."""

    def __init__(self, owned: OwnedSession, agent_id: str) -> None:
        self._owned = owned
        self._means = owned.means
        self._agent_id = agent_id
        self._names = (owned.lease.session_id, agent_id)
        self._is_agent = orchestrator_in(agent_id) is None
        """Else others are not told: they know no records of orchestrators."""
        self._at = JournalState()

    @property
    def last_seq(self) -> int:
        """The last row that is stored."""
        return self._at.last_seq

    @property
    def empty(self) -> bool:
        """Whether nothing is stored, not even by others."""
        return not self._at.last_seq and not self._at.next_number

    @property
    def due(self) -> bool:
        """Whether there is anything to tell others in the end."""
        return self._is_agent and bool(self._at.last_seq) and (self._at.view_due or self._at.state_due)

    async def open(self) -> tuple[list[Row], Sequence[int]]:
        """Read, and take in what others wrote.

        The rows that opening needs, from `low` on, and the rows whose contents are still to be erased.
        """
        reading = await self._settled(self._owned.tails.get(self._agent_id, 0))
        self._owned.opened = True
        check_undamaged(self._names, reading)
        self._complain(reading)
        self._owned.superseded += reading.superseded
        found, opened = reading.assembled, opened_of(self._means, self._names, reading)
        agent = reading.agent
        self._at = JournalState(
            last_seq=found.rows[-1].seq if found.rows else 0,
            next_number=reading.next_number,
            first_number=reading.first_number if reading.complete else 0,
            numbers={**found.numbers, **{seq: number for seq, (number, _) in opened.files.items()}},
            tail=found.tail,
            fold=opened.fold,
            agent=agent,
            agent_known=agent is not None or reading.complete,
            agent_event=reading.agent_event,
            began=_began_in(reading),
            state_due=agent is None and reading.complete and bool(found.rows or reading.next_number),
            view_due=agent.foreign or outdated(agent, opened.fold) if agent is not None else reading.complete,
            asks=agent is not None and agent.asks,
        )
        await self._keep_made(opened, reading)
        return opened.needed(), sorted(found.erase)

    async def stored_rows(self, *, whole: bool) -> list[Row]:
        """The rows as they are stored. Errors: `Unavailable` when the memory does not show all of them."""
        reading = await self._settled(self._at.last_seq, first=1 if whole else None)
        if reading.altered:
            check_undamaged(self._names, reading)
        rows = list(reading.assembled.rows)
        if self._at.last_seq > (rows[-1].seq if rows else 0):
            session_id, agent_id = self._names
            msg = "the memory does not show its newest events; try again"
            raise StoreUnavailable(msg, session=session_id, agent=agent_id, seq=self._at.last_seq)
        check_undamaged(self._names, reading)
        return rows if whole else needed_of(rows)

    # Writing.

    def parts(self, rows: Sequence[Row], erase: Sequence[int], *, batch: bool = False) -> list[Part]:
        """The chapters for rows that follow the last one; the last of them asks for what is to be erased.

        `batch`: they are not all in one event, and say so.
        """
        at = self._at
        before, number = at.tail, at.next_number
        began = at.began or (at_of(rows[0].body) if rows else None) or self._means.wall()
        whose = self._whose(began)
        parts: list[Part] = []
        found = parts_of(rows)
        for place, (part, message) in enumerate(found):
            chapter = Chapter(
                rows=part,
                generation=self._owned.lease.generation,
                before=before,
                batch=(rows[0].seq, rows[-1].seq) if batch else None,
                erase=erase if place == len(found) - 1 else (),
                next_number=number,
            )
            if message is None:
                item = rows_item(whose, chapter, {}, {})
                parts.append(Part(part, [item], None))
            else:
                made = (at_of(row.body) for row in part if not row.erased)
                said_at = next((at for at in made if at is not None), self._means.wall())
                items = message_items(whose, number, message, said_at, chapter)
                parts.append(Part(part, items, number))
                number += 1
            before = [Line.of(row) for row in part]
        return parts

    def follow(self, part: Part) -> None:
        """A chapter is stored."""
        at = self._at
        at.tail = [Line.of(row) for row in part.rows]
        at.last_seq = self._owned.tails[self._agent_id] = part.rows[-1].seq
        self._owned.committed_at = self._means.wall()
        at.began = at.began or at_of(part.rows[0].body) or 0.0
        if part.number is not None:
            at.numbers[next(row.seq for row in part.rows if row.kind == 1)] = part.number
            at.next_number = part.number + 1
        for row in part.rows:
            self._fold_in(row)
        if at.fold is not None and len(at.numbers) > _NUMBERS_MAX:
            low = at.fold.low
            at.numbers = {seq: number for seq, number in at.numbers.items() if seq >= low}

    async def put_agent(self) -> None:
        """Write the agent's record as of now."""
        if not self._is_agent:
            return
        at = self._at
        if at.fold is None:
            rows = await self.stored_rows(whole=False)
            at.fold = restore(rows, session_id=self._names[0]).fold if rows else Fold()
        if not at.agent_known:
            at.agent = await find_agent(EventLog(self._means.events, self._owned.name, self._names[0]), self._agent_id)
            at.agent_known = True
        fold, messages = at.fold, at.next_number - at.first_number
        removed = offset_of(fold.shown.view.first_shown, at.numbers, messages, at.next_number - 1)
        body = agent_document(self._agent_id, fold, removed, at.agent, self._means.wall())
        payload: list[PayloadItem] = [{"blob": spelled(read(body), indent=None).decode()}]
        metadata = {STATE_TYPE: "AGENT", AGENT_ID: agent_value(self._agent_id)}
        event_id = await self._owned.create("agent", payload, metadata)
        if at.agent_event is not None:
            self._owned.superseded.append(at.agent_event)
        at.agent_event = event_id
        at.state_due = at.view_due = False
        at.asks = asks_somebody(standing_of(fold))

    async def put_due(self, *, closing: bool = False) -> None:
        """Tell others of a state that has changed and, when `closing`, how much is shown."""
        if self._at.state_due or (closing and self.due):
            await self.put_agent()

    def erased(self) -> None:
        """Contents of this journal were erased."""
        self._at.view_due = True

    # Within.

    def _whose(self, began: float) -> Whose:
        session_id = self._names[0]
        return Whose(self._agent_id, began, session_id if session_id != self._owned.name else None)

    async def _settled(self, last_seq: int, *, first: int | None = None) -> Reading:
        """A reading that has everything there must be, or the last one when that does not come."""
        newest: list[Reading] = []

        async def look() -> Reading | None:
            log, self._owned.log = (
                self._owned.log or EventLog(self._means.events, self._owned.name, self._names[0]),
                None,
            )
            reading = await read_agent_log(log, self._agent_id, self._means.wall(), first=first)
            if not self._owned.opened:
                self._owned.know(log)
            newest[:] = [reading]
            rows = reading.assembled.rows
            short = (rows[-1].seq if rows else 0) < last_seq and not reading.altered
            return None if reading.late or short else reading

        return await until_settled(look, self._means.settings.settle_s) or newest[0]

    async def _keep_made(self, opened: Opened, reading: Reading) -> None:
        """Store the rows that follow from what others have written, and which messages of theirs that was: also those
        that were mended, whose rows have them by value.
        """
        number = max(reading.assembled.numbers.values(), default=-1) + 1
        filed = {each for each, _ in opened.files.values()}
        mended = {each: reading.refs[each] for each, _ in reading.assembled.added if each not in filed}
        for start in range(0, len(opened.made), ROWS_MAX):
            rows = opened.made[start : start + ROWS_MAX]
            files = {row.seq: opened.files[row.seq] for row in rows if row.seq in opened.files}
            chapter = Chapter(
                rows=rows,
                generation=self._owned.lease.generation,
                before=self._at.tail,
                next_number=number,
            )
            events = {each: reading.refs[each] for each, _ in files.values()} | mended
            mended = {}
            number = max([number, *(each + 1 for each in events)])
            began = self._at.began or at_of(rows[0].body) or 0.0
            item = rows_item(self._whose(began), chapter, files, events)
            await self._owned.create("rows", [item])
            self._at.began, self._at.tail = began, [Line.of(row) for row in rows]
            self._at.last_seq = self._owned.tails[self._agent_id] = rows[-1].seq
            self._owned.committed_at = self._means.wall()

    def _complain(self, reading: Reading) -> None:
        session_id, agent_id = self._names
        for fault in reading.assembled.faults:
            _log.warning("a message is lost session=%r agent=%r seq=%r", session_id, agent_id, fault.row.seq)
        for ref in reading.unreadable:
            _log.warning("a message cannot be read and is left out session=%r event=%r", session_id, ref)
        if reading.torn:
            _log.warning("a commit was cut off; what it said counts as added session=%r agent=%r", session_id, agent_id)
        rows = reading.assembled.rows
        if rows and rows[0].seq > rows[-1].low:
            _log.warning("older events are gone session=%r agent=%r first=%r", session_id, agent_id, rows[0].seq)

    def _fold_in(self, row: Row) -> None:
        """Fold what was stored, to know what others are to be told."""
        at = self._at
        try:
            record = decode(row.kind, row.version, row.body) if not row.erased else None
        except CorruptJournal:
            record = None
        manager = at.fold.shown.view.manager if at.fold is not None else ""
        due = due_after(record, asks=at.asks, manager=manager or DEFAULT_MANAGER)
        at.state_due, at.view_due = at.state_due or due.state, at.view_due or due.view
        if at.fold is None:
            return
        if record is None or isinstance(record, Branched):
            at.fold = None  # It takes more than is known here.
        else:
            at.fold.apply(row.seq, record)
