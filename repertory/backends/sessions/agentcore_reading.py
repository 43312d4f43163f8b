"""Reading one agent's rows from the events of a session: the newest pages first, and no more than are needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from anyio.lowlevel import checkpoint

from repertory.backends.aws_errors import PageTokens
from repertory.backends.sessions.agentcore_events import MemoryEvents
from repertory.backends.sessions.agentcore_layout import Found, Said, Seen, read_event
from repertory.backends.worker_threads import run_in_thread
from repertory.core.message_tree.assembly import Assembled, Source, assemble, standing_rows
from repertory.core.message_tree.documents import AgentFile, Read
from repertory.core.orchestration.journals import orchestrator_in
from repertory.errors import Invalid

ASSEMBLED_AT_ONCE_MAX = 100
"""Documents that are put together on the event loop, which takes some milliseconds; more are in a thread."""
_READ_AT_ONCE = 16
"""Events that are read between two looks of the event loop at its other work."""


class EventLog:
    """The events of a session as they were listed, newest first, as far as somebody has asked for them."""

    def __init__(self, events: MemoryEvents, session: str, session_id: str | None = None) -> None:
        """`session` is the service's name for it. `session_id`: whose events they are to be, when that is known: a name
        that is made of one id may be another one itself, and reading is `Invalid` then.
        """
        self._events = events
        self._session = session
        self._session_id = session_id
        self._token: str | None = None
        self._tokens = PageTokens()
        self.seen: list[Seen] = []
        self.complete = False
        """Whether there are no more."""

    async def more(self) -> None:
        """Read a page further. Errors: as `MemoryEvents`."""
        page = await self._events.page(self._session, self._token, payloads=True)
        for place, event in enumerate(page.events):
            seen = read_event(event)
            if seen.session_id is not None and self._session_id not in (None, seen.session_id):
                msg = "another session has the name that this one would have; choose another session id"
                raise Invalid(msg, session=self._session_id, name=self._session, belongs_to=seen.session_id)
            self.seen.append(seen)
            if place % _READ_AT_ONCE == _READ_AT_ONCE - 1:
                await checkpoint()
        self._token = self._tokens.next(page.next_token)
        self.complete = self._token is None

    async def everything(self) -> None:
        """Read all pages."""
        while not self.complete:
            await self.more()

    @property
    def agents(self) -> list[str]:
        """The agents that were heard of, as far as was read."""
        named = [found.agent_id for seen in self.seen for found in seen.found]
        named += [seen.agent[0] for seen in self.seen if seen.agent is not None]
        named += [agent_id for seen in self.seen for agent_id in seen.tails or ()]
        return sorted(set(named))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was found of an agent."""

    assembled: Assembled
    documents: Mapping[Source, Read]
    first_number: int = 0
    """The number of the first message that is there, as far as was read."""
    next_number: int = 0
    refs: Mapping[int, str] = field(default_factory=dict[int, str])
    """The places of messages, by number."""
    agent: AgentFile | None = None
    """The agent's record; None when it was not met."""
    agent_event: str | None = None
    """The event that has it, when it is ours."""
    unreadable: Sequence[str] = ()
    """The places of messages of others that nobody can read."""
    superseded: Sequence[str] = ()
    """The ids of events of ours that were written anew, or whose agent's record was."""
    torn: bool = False
    """Whether a commit was cut off, or is not seen whole yet. What it said counts as added."""
    began: float = 0.0
    """When the agent's first row was made; 0.0 when there is none."""
    complete: bool = True
    """Whether there is nothing before what was read."""

    @property
    def gap(self) -> bool:
        """Whether rows are missing that were not the first to go, as those are that expire."""
        assembled = self.assembled
        lost = any(fault.message is None for fault in assembled.faults)
        first = assembled.rows[0].seq if assembled.rows else 1
        before = any(kept.line.seq < first for read in self.documents.values() for kept in read.kept)
        return lost or self.torn or (before and first > assembled.rows[-1].low)


async def read_agent_log(log: EventLog, agent_id: str, *, first: int | None = None) -> Reading:
    """The rows from `first` on, from the last row's `low` on when None, and what others have added behind them.

    Everything is read when it takes more than there is, as it does for an agent that nobody of ours has opened yet.
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
            return reading
        for _ in range(pages):
            if not log.complete:
                await log.more()
        pages *= 2


async def find_agent(log: EventLog, agent_id: str) -> AgentFile | None:
    """The agent's record, however far back it lies."""
    while True:
        for seen in log.seen:
            if seen.agent is not None and seen.agent[0] == agent_id:
                return seen.agent[1]
        if log.complete:
            return None
        await log.more()


class _Place(NamedTuple):
    """A chapter and the event that holds it."""

    found: Found
    seen: Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What the events say of one agent."""

    mine: Mapping[Source, _Place]
    said: Sequence[Said]
    """What others have added and what owners wrote that were fenced, oldest first."""
    agent: AgentFile | None
    agent_event: str | None
    superseded: Sequence[str]


def gather(log: EventLog, agent_id: str) -> Gathered:
    """The chapters of an agent, and the messages that nobody has a chapter for."""
    mine: dict[Source, _Place] = {}
    superseded: dict[str, None] = {}
    agent: AgentFile | None = None
    agent_event: Seen | None = None
    for seen in reversed(log.seen):
        for found in seen.found:
            if found.agent_id == agent_id:
                _put(mine, _Place(found, seen), superseded)
        if seen.agent is not None and seen.agent[0] == agent_id:
            if agent_event is not None and agent_event.mark is not None:
                superseded[agent_event.event.event_id] = None
            agent, agent_event = seen.agent[1], seen
    standing = standing_rows({source: place.found.read for source, place in mine.items()})
    mine = {source: mine[source] for source in dict.fromkeys(source for source, _ in standing.values())}
    instead = {said.ref for seen in log.seen if seen.mark is not None for said in seen.said}
    for_others = _for_others(log, agent_id)
    said: list[Said] = []
    for seen in reversed(log.seen):
        if seen.mark is None and any(each.ref in instead for each in seen.said):
            superseded[seen.event.event_id] = None
        if seen.event.event_id not in superseded:
            said += [each for each in _said_in(seen, agent_id, mine) if each.ref not in for_others]
    ours = agent_event.event.event_id if agent_event is not None and agent_event.mark is not None else None
    return Gathered(mine=mine, said=said, agent=agent, agent_event=ours, superseded=tuple(superseded))


def _put(mine: dict[Source, _Place], place: _Place, superseded: dict[str, None]) -> None:
    """Of two chapters for one place the later owner's stands, of two of one owner the one that was written anew, or
    written twice.
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


def _said_in(seen: Seen, agent_id: str, mine: Mapping[Source, _Place]) -> Iterator[Said]:
    """The messages in an event that are nobody's chapter: others', and those of chapters that do not stand."""
    yield from seen.said
    for found in seen.found:
        if found.agent_id == agent_id and found.source.number is not None:
            stands = mine.get(found.source)
            if stands is None or _link(stands.found) != _link(found):
                yield _bare(found)


def _bare(found: Found) -> Said:
    """The message of a chapter whose rows do not count."""
    return Said(found.ref, Read(message=found.read.message, at=found.read.at))


def _link(found: Found) -> bytes:
    return found.read.kept[0].line.link


def _for_others(log: EventLog, agent_id: str) -> set[str]:
    """The places of messages that belong to another agent: that whose record others have written next, or else last.
    To an orchestrator nobody talks.
    """
    if orchestrator_in(agent_id) is not None:
        return {said.ref for seen in log.seen for said in seen.said}
    records = [seen.agent[0] for seen in log.seen if seen.agent is not None and seen.mark is None]
    found: set[str] = set()
    owner = records[0] if records else agent_id
    for seen in log.seen:
        if seen.agent is not None and seen.mark is None:
            owner = seen.agent[0]
        elif owner != agent_id:
            found |= {said.ref for said in seen.said}
    return found


def _reading(gathered: Gathered, agent_id: str, *, complete: bool) -> Reading:
    chapters = {source: place.found for source, place in gathered.mine.items()}
    documents = {source: found.read for source, found in chapters.items()}
    refs = {source.number: found.ref for source, found in chapters.items() if source.number is not None}
    events = {number: ref for found in chapters.values() for number, ref in found.events.items()}
    places = {said.ref: said.read for said in gathered.said}
    documents |= {Source(number): places[ref] for number, ref in events.items() if ref in places}
    refs |= events
    filed = [row.file for read in documents.values() for row in read.kept if row.file is not None]
    nexts = [read.next_number - 1 for source, read in documents.items() if source.number is None]
    next_number = max([*refs, *filed, *nexts], default=-1) + 1
    taken = set(events.values())
    for said in gathered.said:
        if said.read.fault is None and said.ref not in taken:
            documents[Source(next_number)], refs[next_number] = said.read, said.ref
            next_number += 1
    unread = {None, *(number for number in filed if Source(number) not in documents)}
    assembled = assemble(agent_id, documents, set() if complete else unread)
    if assembled.torn:
        mine = {source: place for source, place in gathered.mine.items() if source not in assembled.torn}
        torn = [_bare(chapters[source]) for source in assembled.torn if source.number is not None]
        said = [*gathered.said, *torn]
        return replace(_reading(replace(gathered, mine=mine, said=said), agent_id, complete=complete), torn=True)
    newest = max(chapters.values(), key=lambda found: found.read.kept[-1].line.seq, default=None)
    return Reading(
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
