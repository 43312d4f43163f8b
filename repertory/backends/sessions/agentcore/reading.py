"""Reading one agent's rows from the events of a session: the newest pages first, and no more than needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

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
    TakenMessage,
    agent_value,
    read_event,
)
from repertory.backends.worker_threads import run_in_thread
from repertory.core.journal.records import Redacted
from repertory.core.journal.rows import RecordKind, Row, fault, first_link
from repertory.core.message_tree.agent_state import record_in
from repertory.core.message_tree.documents import AgentFile, FoundMessage, message_in
from repertory.core.messages import LOST_TEXT, Message
from repertory.core.orchestration.journals import orchestrator_in
from repertory.errors import CorruptJournal, Invalid

ASSEMBLED_AT_ONCE_MAX = 100
"""The most groups that are assembled on the event loop, which takes some milliseconds; more are, in a thread."""
EXPIRY_S_MIN = 43_200.0
"""No event expires sooner: the service counts in days, and clocks differ."""
_DAMAGED = (
    "an event of the session is damaged or missing: if it was written just now, try again; else have"
    " `repertory sessions doctor --repair` set everything aside and go on from what is sound"
)
_READ_AT_ONCE = 16
"""Events parsed before the event loop gets a turn."""


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
        for count, event in enumerate(page.events):
            seen = read_event(event)
            session_id = seen.session_id if seen.fault is None else None
            if session_id is not None and self._session_id not in (None, session_id):
                msg = "another session has the name that this one would have; choose another session id"
                raise Invalid(msg, session=self._session_id, name=self._session, belongs_to=session_id)
            self.seen.append(seen)
            if count % _READ_AT_ONCE == _READ_AT_ONCE - 1:
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
        named = [found.group.agent for seen in self.seen for found in seen.found]
        named += [seen.agent[0] for seen in self.seen if seen.agent is not None]
        named += [agent_id for seen in self.seen for agent_id in (seen.lease and seen.lease.tails) or ()]
        return sorted(set(named))


class EventReading(Struct, frozen=True, kw_only=True):
    rows: Sequence[Row] = ()
    """The last rows of the journal, without gaps."""
    standing: Sequence[FoundGroup] = ()
    """The groups whose rows count, in the order of their rows."""
    added: Sequence[tuple[int, FoundMessage]] = ()
    """The messages that other programs added at the end, with their numbers."""
    there: Mapping[str, FoundMessage] = {}
    """The messages of other programs that were listed, by their places."""
    first_number: int = 0
    """The number of the first message, as far as was read."""
    next_number: int = 0
    numbers: Mapping[int, int] = {}
    """Sequence number of a message's row to its number."""
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
    """Epoch seconds of the agent's first row; 0.0 when there is none."""
    complete: bool = True
    """True if nothing older exists."""

    @property
    def begins(self) -> int:
        """The first of the rows; earlier ones need events that were not read, or are gone."""
        return self.rows[0].seq if self.rows else 0

    @property
    def erase(self) -> frozenset[int]:
        """The rows that an earlier owner was about to erase when it was cut off."""
        return frozenset(seq for found in self.standing for seq in found.group.erase)

    @property
    def taken(self) -> Iterator[tuple[TakenMessage, Row]]:
        """The messages of other programs that rows hold as they are, and have not been redacted."""
        rows = {row.seq: row for row in self.rows if not row.erased}
        redacted = redactions_in(self.rows)
        for found in self.standing:
            for each in found.group.taken:
                if each.seq in rows and each.seq not in redacted:
                    yield each, rows[each.seq]

    @property
    def removed(self) -> list[int]:
        """The rows of messages that other programs have removed. They may only be unread while `complete` is False."""
        return [row.seq for each, row in self.taken if each.ref not in self.there]

    @property
    def damages(self) -> Sequence[Corruption]:
        return [*self.altered, *self.missing]

    @property
    def late(self) -> bool:
        """True if another listing may show more."""
        return not self.altered and (bool(self.removed) or self.torn or bool(self.missing))


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
        gathered = gather(log, agent_id)
        work = partial(_reading, gathered, complete=log.complete)
        reading = work() if len(gathered.standing) <= ASSEMBLED_AT_ONCE_MAX else await run_in_thread(work)
        rows = reading.rows
        # "Removed" may only be unread: the message of another program lies further back than the row that took it in.
        if log.complete or (rows and reading.begins <= (first or rows[-1].low) and not reading.removed):
            return replace(reading, altered=_altered(log, reading), missing=_missing(log, agent_id, reading, now))
        for _ in range(pages):
            if not log.complete:
                await log.more()
        # Doubled, since each round assembles everything anew: reading n pages costs n, and not n squared.
        pages *= 2


def _altered(log: EventLog, reading: EventReading) -> list[Corruption]:
    """Our events that differ from what we wrote, and other programs' messages that changed after they were taken in."""
    altered = [Corruption(where=seen.event.event_id, what=seen.fault) for seen in log.seen if seen.fault is not None]
    for each, row in reading.taken:
        read = reading.there.get(each.ref)
        if read is not None and read.message != message_in(row):
            altered.append(Corruption(where=each.ref, what="it was edited"))
    rows = reading.rows
    if rows and rows[0].seq > rows[-1].low and reading.agent is None:  # Only the agent's record says what has expired.
        records = [seen for seen in log.seen if seen.record_fault is not None]
        altered += [Corruption(where=seen.event.event_id, what=str(seen.record_fault)) for seen in records]
    return altered


def _missing(log: EventLog, agent_id: str, reading: EventReading, now: float) -> list[Corruption]:
    """Missing rows: between others; at the start of a journal too young for them to have expired; and at the end, up to
    what an owner recorded.
    """
    every = [found.group for seen in log.seen for found in seen.found if found.group.agent == agent_id]
    last = max((group.rows[-1].seq for group in every), default=0)
    young = _is_young(max((group.began for group in every), default=0.0), now)
    standing = [found.group for found in reading.standing]
    # A rewritten event may expire later than the events after it.
    current = [group for group in standing if young or group.edition == 0] or standing
    first = 1 if young else min((group.rows[0].seq for group in current), default=1)
    missing: list[Corruption] = []
    if reading.complete:
        begins = [0, *(group.rows[0].seq for group in standing)]
        ends = [0, *(group.rows[-1].seq for group in standing)]
        gaps = [seq - 1 for seq, end in zip(begins[1:], ends, strict=False) if seq != end + 1]
        missing = [_row_damage(agent_id, seq, "it is lost") for seq in gaps if seq >= first]
    for seen in log.seen:
        lease = seen.lease if seen.fault is None else None
        known = (lease.tails or {}).get(agent_id, 0) if lease is not None else 0
        if lease is not None and known > last and (last or (reading.complete and _is_young(lease.at, now))):
            missing.append(_row_damage(agent_id, known, f"events at the end were removed; {last} rows are left"))
            break
    return missing


def _is_young(at: float, now: float) -> bool:
    """True if something written at that time, if known, cannot have expired."""
    return at > 0.0 and now - at < EXPIRY_S_MIN


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


class GatheredEvents(Struct, frozen=True, kw_only=True):
    standing: Mapping[int, FoundGroup]
    """Sequence number of a row to the group that holds it."""
    messages: Sequence[ForeignMessage]
    """Messages of other programs and of fenced owners, oldest first."""
    agent: AgentFile | None
    agent_event: str | None
    superseded: Sequence[str]


def gather(log: EventLog, agent_id: str) -> GatheredEvents:
    """The groups of an agent whose rows count, and the messages of all others."""
    groups: dict[bytes, FoundGroup] = {}
    superseded: dict[str, None] = {}
    agent: AgentFile | None = None
    agent_event: ParsedEvent | None = None
    for seen in reversed(log.seen):
        for found in seen.found:
            if found.group.agent == agent_id:
                _put(groups, found, superseded)
        if seen.agent is not None and seen.agent[0] == agent_id:
            if agent_event is not None and agent_event.mark is not None:
                superseded[agent_event.event.event_id] = None
            agent, agent_event = seen.agent[1], seen
        elif seen.record_fault is not None and seen.event.metadata.get(AGENT_ID) == agent_value(agent_id):
            agent, agent_event = None, seen
    standing = _standing(groups.values())
    links = {_link(found) for found in standing.values()}
    instead = {message.ref for seen in log.seen if seen.mark is not None for message in seen.messages}
    for_others = _for_others(log, agent_id)
    messages: list[ForeignMessage] = []
    for seen in reversed(log.seen):
        if seen.mark is None and any(each.ref in instead for each in seen.messages):
            superseded[seen.event.event_id] = None
        if seen.event.event_id not in superseded:
            messages += [each for each in seen.messages if seen.fault is None and each.ref not in for_others]
            messages += [
                found.bare
                for found in seen.found
                if found.group.agent == agent_id and found.group.number is not None and _link(found) not in links
            ]
    ours = agent_event.event.event_id if agent_event is not None and agent_event.mark is not None else None
    return GatheredEvents(
        standing=standing, messages=messages, agent=agent, agent_event=ours, superseded=tuple(superseded)
    )


def _put(groups: dict[bytes, FoundGroup], found: FoundGroup, superseded: dict[str, None]) -> None:
    """Keep the later edition of two groups of the same rows: one was rewritten, or written twice."""
    other = groups.get(_link(found))
    newer = other is None or found.group.edition >= other.group.edition
    if newer:
        groups[_link(found)] = found
    if other is not None:
        superseded[(other if newer else found).event_id] = None


def _standing(groups: Iterable[FoundGroup]) -> dict[int, FoundGroup]:
    """Every row of the journal, with its group. A fenced owner may write all the same: its groups overlap or follow the
    rows of a later owner, and do not count.
    """
    chosen: dict[int, FoundGroup] = {}
    begins: int | None = None
    generation = -1
    # The highest generation first: what a later owner has written stands, and earlier groups fill in what comes before.
    for found in sorted(groups, key=lambda found: found.group.generation, reverse=True):
        rows = found.group.rows
        if any(row.seq in chosen for row in rows):
            continue
        if found.group.generation != generation:
            begins, generation = min(chosen, default=None), found.group.generation
        if begins is None or rows[0].seq < begins:
            chosen |= dict.fromkeys((row.seq for row in rows), found)
    return chosen


def _link(found: FoundGroup) -> bytes:
    return found.group.rows[0].link


def _for_others(log: EventLog, agent_id: str) -> set[str]:
    """The places of messages that belong to another agent: the one whose record other programs wrote next, or else
    last. Orchestrators have no messages.
    """
    if orchestrator_in(agent_id) is not None:
        return {message.ref for seen in log.seen for message in seen.messages}
    records = [seen.agent[0] for seen in log.seen if seen.agent is not None and seen.mark is None]
    found: set[str] = set()
    owner = records[0] if records else agent_id
    for seen in log.seen:
        if seen.agent is not None and seen.mark is None:
            owner = seen.agent[0]
        elif owner != agent_id:
            found |= {message.ref for message in seen.messages}
    return found


def _reading(gathered: GatheredEvents, *, complete: bool) -> EventReading:
    chosen, messages = gathered.standing, [*gathered.messages]
    last = max(chosen, default=0)
    batch = chosen[last].group.batch if last else None
    # The end of a commit of several events is missing.
    torn = batch is not None and batch[1] > last
    if batch is not None and torn:  # It was never acknowledged.
        some = {_link(chosen[seq]): chosen[seq] for seq in sorted(chosen) if seq >= batch[0]}
        messages += [found.bare for found in some.values() if found.group.number is not None]
        chosen = {seq: found for seq, found in chosen.items() if seq < batch[0]}
    standing = [*{_link(chosen[seq]): chosen[seq] for seq in sorted(chosen)}.values()]
    there = {each.ref: each.read for each in messages}
    taken = [each for found in standing for each in found.group.taken]
    numbers = {each.seq: each.number for each in taken if each.seq}
    refs = {each.number: each.ref for each in taken}
    for found in standing:
        number = found.group.number
        if number is not None:
            refs[number] = found.ref
            numbers |= {row.seq: number for row in found.group.rows if row.kind == RecordKind.MESSAGE}
    next_number = max([*(number + 1 for number in refs), *(found.group.following for found in standing)], default=0)
    adopted = {each.ref for each in taken}
    fresh = [each for each in messages if each.read.fault is None and each.ref not in adopted]
    added = [(number, each.read) for number, each in enumerate(fresh, next_number)]
    refs |= {number: each.ref for number, each in enumerate(fresh, next_number)}
    remaining = [number for number, ref in refs.items() if ref not in adopted or ref in there]
    newest = standing[-1].group if standing else None
    return EventReading(
        rows=_last_rows(standing),
        standing=standing,
        added=added,
        there=there,
        first_number=min(remaining, default=0),
        next_number=next_number + len(fresh),
        numbers=numbers,
        refs=refs,
        agent=gathered.agent,
        agent_event=gathered.agent_event,
        unreadable=[each.ref for each in messages if each.read.fault is not None],
        superseded=gathered.superseded,
        torn=torn,
        began=newest.began if newest is not None else 0.0,
        complete=complete,
    )


def _last_rows(standing: Sequence[FoundGroup]) -> list[Row]:
    """The last rows without a gap."""
    rows: list[Row] = []
    for found in standing:
        if rows and found.group.rows[0].seq != rows[-1].seq + 1:
            rows = []
        rows += found.group.rows
    return rows


def redactions_in(rows: Iterable[Row]) -> dict[int, Message]:
    """Sequence number of a redacted message to the message of its last redaction."""
    records = (record_in(row) for row in rows if row.kind == RecordKind.REDACTION)
    return {record.target: record.message for record in records if isinstance(record, Redacted)}


# What is left of a damaged journal.


def sound_reading(log: EventLog, reading: EventReading, agent_id: str) -> EventReading:
    """The rows from the first one on, up to the first that is lost or cannot be proved; then all readable messages as
    they are stored, in the order in which they were written, with a stand-in for each that is lost. The same reading
    when all rows are proved.
    """
    rows, proved = _proved(reading.standing, agent_id)
    if len(proved) == len(reading.standing):
        return reading
    for_others, superseded = _for_others(log, agent_id), frozenset(reading.superseded)
    adopted = {each.ref for found in reading.standing for each in found.group.taken}
    numbers = {seq: number for seq, number in reading.numbers.items() if rows and seq <= rows[-1].seq}
    expected = max(numbers.values(), default=-1) + 1 if numbers else None
    messages = [message for row in rows if (message := message_in(row)) is not None]
    before = len(messages)
    unnumbered = 0
    for seen in reversed(log.seen):
        if seen.event.event_id in superseded:
            continue
        for found in seen.found:
            group = found.group
            if group.agent != agent_id or found.ref in proved:
                continue
            if group.number is None or seen.fault is not None:
                unnumbered += 1
            else:
                lost = 0 if expected is None else group.number - expected - unnumbered
                for _ in range(lost):
                    role = "assistant" if messages and messages[-1]["role"] == "user" else "user"
                    messages.append({"role": role, "content": [{"text": LOST_TEXT}]})
                expected, unnumbered = group.number + 1, 0
            messages += [message for row in group.rows if (message := message_in(row)) is not None]
        others = [each.read.message for each in seen.messages if each.ref not in for_others | adopted]
        messages += [message for message in others if message is not None]
        unnumbered += len(others) if seen.mark is not None or seen.fault is not None else 0
    known = [row.seq for row in rows if message_in(row) is not None]
    return replace(
        reading,
        rows=rows,
        standing=(),
        added=[(number, FoundMessage(message=messages[number])) for number in range(before, len(messages))],
        first_number=0,
        next_number=len(messages),
        numbers=dict(zip(known, range(before), strict=True)),
        refs={},
        agent_event=None,
    )


def _proved(standing: Sequence[FoundGroup], agent_id: str) -> tuple[list[Row], frozenset[str]]:
    """The rows from the first one on that can be proved, and the places of their groups."""
    rows: list[Row] = []
    proved: set[str] = set()
    link = first_link(agent_id)
    for found in standing:
        for seq, row in enumerate(found.group.rows, len(rows) + 1):
            if fault(row, agent_id, seq, link) is not None:
                return rows, frozenset(proved)
            link = row.link
        rows += found.group.rows
        proved.add(found.ref)
    return rows, frozenset(proved)
