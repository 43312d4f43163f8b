"""Reading one agent's rows from the events of a session: the newest pages first, and no more than needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from anyio.lowlevel import checkpoint
from msgspec import Struct
from msgspec.structs import replace

from repertory.backends.aws_errors import PageTokens
from repertory.backends.ports import Corruption
from repertory.backends.sessions.agentcore.events import MemoryEvents
from repertory.backends.sessions.agentcore.layout import (
    AGENT_ID,
    ForeignMessage,
    FoundGroup,
    ParsedEvent,
    agent_value,
    read_event,
)
from repertory.backends.worker_threads import run_in_thread
from repertory.core.message_tree.assembly import Assembled, DocumentSource, assemble, standing_rows
from repertory.core.message_tree.documents import AgentFile, Read
from repertory.core.orchestration.journals import orchestrator_in
from repertory.errors import CorruptJournal, Invalid

ASSEMBLED_AT_ONCE_MAX = 100
"""The most documents that are assembled on the event loop, which takes some milliseconds; more are, in a thread."""
EXPIRY_S_MIN = 43_200.0
"""No event expires sooner: the service counts in days, and clocks differ."""
_DAMAGED = (
    "an event of the session is damaged or missing: if it was written just now, try again; else have"
    " `repertory sessions doctor --repair` set everything aside and go on from what is sound"
)
_READ_AT_ONCE = 16
"""How many events are parsed before the event loop gets a turn."""


class EventLog:
    """The listed events of a session, newest first, as far as they were read."""

    def __init__(self, events: MemoryEvents, session: str, session_id: str | None = None) -> None:
        """`session` is the service's name for it. `session_id`: the expected session, if known. A name derived from one
        id may equal another id; reading then is `Invalid`.
        """
        self._events = events
        self._session = session
        self._session_id = session_id
        self._token: str | None = None
        self._tokens = PageTokens()
        self.seen: list[ParsedEvent] = []
        self.complete = False
        """True if there are no more pages."""

    async def more(self) -> None:
        """Read one more page. Errors: as `MemoryEvents`."""
        page = await self._events.page(self._session, self._token, payloads=True)
        for place, event in enumerate(page.events):
            seen = read_event(event)
            session_id = seen.session_id if seen.fault is None else None
            if session_id is not None and self._session_id not in (None, session_id):
                msg = "another session has the name that this one would have; choose another session id"
                raise Invalid(msg, session=self._session_id, name=self._session, belongs_to=session_id)
            self.seen.append(seen)
            if place % _READ_AT_ONCE == _READ_AT_ONCE - 1:
                await checkpoint()
        self._token = self._tokens.next(page.next_token)
        self.complete = self._token is None

    async def everything(self) -> None:
        """Read all pages."""
        while not self.complete:
            await self.more()

    def anew(self) -> EventLog:
        return EventLog(self._events, self._session, self._session_id)

    @property
    def agents(self) -> list[str]:
        """The agents named in the pages read so far."""
        named = [found.agent_id for seen in self.seen for found in seen.found]
        named += [seen.agent[0] for seen in self.seen if seen.agent is not None]
        named += [agent_id for seen in self.seen for agent_id in seen.tails or ()]
        return sorted(set(named))


class EventReading(Struct, frozen=True, kw_only=True):
    assembled: Assembled
    documents: Mapping[DocumentSource, Read]
    first_number: int = 0
    """The number of the first message, as far as was read."""
    next_number: int = 0
    refs: Mapping[int, str] = {}
    """The places of messages, by number."""
    agent: AgentFile | None = None
    """The agent's record; None when it was not met."""
    agent_event: str | None = None
    """The id of the event that holds it, if it is ours."""
    unreadable: Sequence[str] = ()
    """The places of other programs' messages that cannot be read."""
    superseded: Sequence[str] = ()
    """The ids of our events that were rewritten, or whose agent's record was."""
    altered: Sequence[Corruption] = ()
    """Content that differs from what we wrote."""
    missing: Sequence[Corruption] = ()
    """Content that must exist and is not listed; it may only be late."""
    torn: bool = False
    """True if a commit was cut off, or is not listed completely yet. Its messages count as added."""
    began: float = 0.0
    """When the agent's first row was made; 0.0 when there is none."""
    complete: bool = True
    """True if nothing older exists."""

    @property
    def damages(self) -> Sequence[Corruption]:
        return [*self.altered, *self.missing]

    @property
    def late(self) -> bool:
        """True if another listing may show more."""
        lost = any(fault.message is None for fault in self.assembled.faults)
        return not self.altered and (lost or self.torn or bool(self.missing))


def check_events(names: tuple[str, str], reading: EventReading) -> None:
    """Raise `CorruptJournal` with the first damaged place and what can be done. `names`: of the session and of the
    agent.
    """
    if reading.damages:
        first = reading.damages[0]
        where = {"session": names[0], "agent": names[1], "place": first.where, "cause": first.what}
        raise CorruptJournal(_DAMAGED, **where, damaged=len(reading.damages))


async def read_agent_log(log: EventLog, agent_id: str, now: float, *, first: int | None = None) -> EventReading:
    """The rows from `first` on (None: from the last row's `low` on), the messages that other programs added after them,
    and the damage in all that was read. `now` in epoch seconds: young events cannot have expired.

    Reads every page if needed, as for an agent that none of our owners has opened yet.
    """
    pages = 1
    if not log.seen and not log.complete:
        await log.more()
    if first == 1:
        await log.everything()
    while True:
        documents = gather(log, agent_id)
        work = partial(_reading, documents, agent_id, complete=log.complete)
        reading = work() if len(documents.mine) <= ASSEMBLED_AT_ONCE_MAX else await run_in_thread(work)
        rows = reading.assembled.rows
        if log.complete or (rows and reading.assembled.begins <= (first or rows[-1].low)):
            return replace(
                reading,
                altered=_altered(log, documents, reading),
                missing=_missing(log, agent_id, documents, reading, now),
            )
        for _ in range(pages):
            if not log.complete:
                await log.more()
        pages *= 2


def _altered(log: EventLog, gathered: GatheredEvents, reading: EventReading) -> list[Corruption]:
    """Our events that differ from what we wrote, and other programs' messages that changed after they were taken in."""
    altered = [Corruption(where=seen.event.event_id, what=seen.fault) for seen in log.seen if seen.fault is not None]
    there = {message.ref for seen in log.seen for message in seen.said}
    adopted = {ref for place in gathered.mine.values() for ref in place.found.events.values()}
    for fault in reading.assembled.faults:
        ref = reading.refs.get(fault.number) if fault.number is not None else None
        if ref is not None and not fault.redacted and (ref not in adopted or ref in there):
            altered.append(Corruption(where=ref, what=fault.why))
    rows = reading.assembled.rows
    if rows and rows[0].seq > rows[-1].low and reading.agent is None:  # Only the agent's record says what has expired.
        records = [seen for seen in log.seen if seen.record_fault is not None]
        altered += [Corruption(where=seen.event.event_id, what=str(seen.record_fault)) for seen in records]
    return altered


def _missing(
    log: EventLog, agent_id: str, gathered: GatheredEvents, reading: EventReading, now: float
) -> list[Corruption]:
    """Missing rows: between others; at the start of a journal too young for them to have expired; and at the end, up to
    what an owner recorded.
    """
    every = [found for seen in log.seen for found in seen.found if found.agent_id == agent_id]
    last = max((found.read.kept[-1].line.seq for found in every), default=0)
    began = max((found.began for found in every), default=0.0)
    young = _is_young(began, now)
    standing = [place.found for place in gathered.mine.values()]
    # A rewritten event may expire later than the events after it.
    kept = [found for found in standing if young or found.edition == 0] or standing
    first = min((found.read.kept[0].line.seq for found in kept), default=1)
    rows = reading.assembled.rows
    seqs = {*reading.assembled.lost, *_lost_messages(reading)}
    missing = [_row_damage(agent_id, seq, "it is lost") for seq in sorted(seqs) if seq > first or young]
    begins = reading.assembled.begins
    if reading.complete and rows and begins > 1 and (young or first < begins) and not missing:
        missing.append(_row_damage(agent_id, begins - 1, "the events before this one were removed"))
    for seen in log.seen:
        known = (seen.tails or {}).get(agent_id, 0) if seen.fault is None else 0
        if known > last and (last or (reading.complete and _is_young(seen.committed_at, now))):
            missing.append(_row_damage(agent_id, known, f"events at the end were removed; {last} rows are left"))
            break
    return missing


def _is_young(at: float, now: float) -> bool:
    """True if something written at that time, if known, cannot have expired."""
    return at > 0.0 and now - at < EXPIRY_S_MIN


def _lost_messages(reading: EventReading) -> list[int]:
    """The rows of our lost messages. Other programs may delete their own."""
    faults = [fault for fault in reading.assembled.faults if fault.message is None]
    return [fault.row.seq for fault in faults if fault.number is None or fault.number not in reading.refs]


def _row_damage(agent_id: str, seq: int, what: str) -> Corruption:
    return Corruption(where=f"agent {agent_id} row {seq}", what=what)


async def find_agent(log: EventLog, agent_id: str) -> AgentFile | None:
    """The agent's record, however far back it lies."""
    while True:
        for seen in log.seen:
            if seen.agent is not None and seen.agent[0] == agent_id:
                return seen.agent[1]
        if log.complete:
            return None
        await log.more()


class _MessageEvent(NamedTuple):
    found: FoundGroup
    seen: ParsedEvent


class GatheredEvents(Struct, frozen=True, kw_only=True):
    mine: Mapping[DocumentSource, _MessageEvent]
    said: Sequence[ForeignMessage]
    """Messages of other programs and of fenced owners, oldest first."""
    agent: AgentFile | None
    agent_event: str | None
    superseded: Sequence[str]


def gather(log: EventLog, agent_id: str) -> GatheredEvents:
    """The groups of an agent, and the messages without a record group."""
    mine: dict[DocumentSource, _MessageEvent] = {}
    superseded: dict[str, None] = {}
    agent: AgentFile | None = None
    agent_event: ParsedEvent | None = None
    for seen in reversed(log.seen):
        for found in seen.found:
            if found.agent_id == agent_id:
                _put(mine, _MessageEvent(found, seen), superseded)
        if seen.agent is not None and seen.agent[0] == agent_id:
            if agent_event is not None and agent_event.mark is not None:
                superseded[agent_event.event.event_id] = None
            agent, agent_event = seen.agent[1], seen
        elif seen.record_fault is not None and seen.event.metadata.get(AGENT_ID) == agent_value(agent_id):
            agent, agent_event = None, seen
    standing = standing_rows({source: place.found.read for source, place in mine.items()})
    mine = {source: mine[source] for source in dict.fromkeys(source for source, _ in standing.values())}
    instead = {said.ref for seen in log.seen if seen.mark is not None for said in seen.said}
    for_others = _for_others(log, agent_id)
    said: list[ForeignMessage] = []
    for seen in reversed(log.seen):
        if seen.mark is None and any(each.ref in instead for each in seen.said):
            superseded[seen.event.event_id] = None
        if seen.event.event_id not in superseded:
            said += [each for each in _said_in(seen, agent_id, mine) if each.ref not in for_others]
    ours = agent_event.event.event_id if agent_event is not None and agent_event.mark is not None else None
    return GatheredEvents(mine=mine, said=said, agent=agent, agent_event=ours, superseded=tuple(superseded))


def _put(mine: dict[DocumentSource, _MessageEvent], place: _MessageEvent, superseded: dict[str, None]) -> None:
    """Of two groups for one place, keep the later owner's; of two of one owner, the one that was rewritten, or written
    twice.
    """
    other = mine.get(place.found.source)
    if other is None:
        mine[place.found.source] = place
        return
    new, old = place.found, other.found
    newer = (new.read.generation, new.edition) >= (old.read.generation, old.edition)
    if newer:
        mine[place.found.source] = place
    if _link(new) == _link(old):
        superseded[(other if newer else place).seen.event.event_id] = None


def _said_in(
    seen: ParsedEvent, agent_id: str, mine: Mapping[DocumentSource, _MessageEvent]
) -> Iterator[ForeignMessage]:
    """The messages in an event without a valid group: other programs', and those of superseded groups."""
    yield from seen.said if seen.fault is None else ()
    for found in seen.found:
        if found.agent_id == agent_id and found.source.number is not None:
            stands = mine.get(found.source)
            if stands is None or _link(stands.found) != _link(found):
                yield _bare(found)


def _bare(found: FoundGroup) -> ForeignMessage:
    """The message of a record group whose rows do not count."""
    return ForeignMessage(found.ref, Read(message=found.read.message, at=found.read.at))


def everything_said(log: EventLog, agent_id: str) -> list[Read]:
    """An agent's readable messages, as they are stored, in the order in which they were written; also those of damaged
    events.
    """
    gathered, for_others = gather(log, agent_id), _for_others(log, agent_id)
    standing = {place.found.ref for place in gathered.mine.values()}
    documents: dict[str, Read] = {}
    for seen in reversed(log.seen):
        if seen.event.event_id not in gathered.superseded:
            of_agent = [found for found in seen.found if found.agent_id == agent_id and found.ref in standing]
            documents |= {found.ref: _bare(found).read for found in of_agent}
            documents |= {each.ref: each.read for each in seen.said if each.ref not in for_others}
    return [read for read in documents.values() if read.message is not None]


def _link(found: FoundGroup) -> bytes:
    return found.read.kept[0].line.link


def _for_others(log: EventLog, agent_id: str) -> set[str]:
    """The places of messages that belong to another agent: the one whose record other programs wrote next, or else
    last. Orchestrators have no messages.
    """
    if orchestrator_in(agent_id) is not None:
        return {message.ref for seen in log.seen for message in seen.said}
    records = [seen.agent[0] for seen in log.seen if seen.agent is not None and seen.mark is None]
    found: set[str] = set()
    owner = records[0] if records else agent_id
    for seen in log.seen:
        if seen.agent is not None and seen.mark is None:
            owner = seen.agent[0]
        elif owner != agent_id:
            found |= {message.ref for message in seen.said}
    return found


def _reading(gathered: GatheredEvents, agent_id: str, *, complete: bool) -> EventReading:
    groups = {source: place.found for source, place in gathered.mine.items()}
    documents = {source: found.read for source, found in groups.items()}
    refs = {source.number: found.ref for source, found in groups.items() if source.number is not None}
    events = {number: ref for found in groups.values() for number, ref in found.events.items()}
    places = {said.ref: said.read for said in gathered.said}
    filed = [row.file for read in documents.values() for row in read.kept if row.file is not None]
    wanted = {number: ref for number, ref in events.items() if number in filed and ref in places}
    documents |= {DocumentSource(number): places[ref] for number, ref in wanted.items()}
    refs |= events
    nexts = [read.next_number - 1 for source, read in documents.items() if source.number is None]
    next_number = max([*refs, *filed, *nexts], default=-1) + 1
    taken = set(events.values())
    for said in gathered.said:
        if said.read.fault is None and said.ref not in taken:
            documents[DocumentSource(next_number)], refs[next_number] = said.read, said.ref
            next_number += 1
    unread = {None, *(number for number in filed if DocumentSource(number) not in documents)}
    assembled = assemble(agent_id, documents, set() if complete else unread)
    if assembled.torn:
        mine = {source: place for source, place in gathered.mine.items() if source not in assembled.torn}
        torn = [_bare(groups[source]) for source in assembled.torn if source.number is not None]
        said = [*gathered.said, *torn]
        return replace(_reading(replace(gathered, mine=mine, said=said), agent_id, complete=complete), torn=True)
    newest = max(groups.values(), key=lambda found: found.read.kept[-1].line.seq, default=None)
    return EventReading(
        assembled=assembled,
        documents=documents,
        first_number=min((source.number for source in documents if source.number is not None), default=0),
        next_number=next_number,
        refs=refs,
        agent=gathered.agent,
        agent_event=gathered.agent_event,
        unreadable=[said.ref for said in gathered.said if said.read.fault is not None],
        superseded=gathered.superseded,
        began=newest.began if newest is not None else 0.0,
        complete=complete,
    )
