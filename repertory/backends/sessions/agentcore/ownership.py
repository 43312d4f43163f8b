"""Owning a session in a memory without conditional writes: the highest generation owns it, and every owner checks.

An owner takes a generation above all it has seen, writes an event that says so, and lists the session until it sees
that event. Then it looks again before a turn, and before a commit when its last look is older than `prove_s`: a higher
generation ends its ownership. Between two looks nothing stops it. Events that it writes then have a lower generation,
and the next owner takes them in like another program's messages.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import NamedTuple, TypeVar

import anyio
from msgspec import Struct, field

from repertory.backends.aws_errors import PageTokens
from repertory.backends.ports import Lease
from repertory.backends.sessions.agentcore.events import ListedEvent, MemoryEvents, NewEvent, PayloadItem
from repertory.backends.sessions.agentcore.layout import STATE_TYPE, EventMark, LeaseState, our_item, read_mark, sealed
from repertory.backends.sessions.agentcore.reading import EventLog
from repertory.backends.sessions.liveness import TimeToLive
from repertory.backends.sessions.requests import side_by_side
from repertory.backends.sessions.table import busy, lost, other_owner
from repertory.core.journal.restore import Entropy
from repertory.core.message_tree.documents import OURS
from repertory.errors import LeaseLost, RepertoryError, StoreUnavailable

REQUESTS_AT_ONCE = 8
"""Concurrent requests for one session: the service limits all of them together."""
_CHANCE_BITS = 20
_TRIES = 6
_OF_LEASES = ("held", "free", "asked")

T = TypeVar("T")


class AgentCoreSettings(Struct, frozen=True, kw_only=True):
    """Timing and size limits of ownership and commits."""

    lease_s: float = 30.0
    """Seconds that an owner counts as alive after its last event."""
    renew_s: float = 10.0
    """Seconds that an owner may write nothing before it renews its lease."""
    prove_s: float = 5.0
    """Seconds that a look at the session counts as proof of ownership."""
    settle_s: float = 5.0
    """Seconds for listing again until events that must exist are there."""
    relook_s: float = 0.5
    """Seconds before a session counts as busy: its owner may be releasing it."""
    event_bytes_max: int = 1_000_000
    """The largest commit that is written as one event, unless a single message is larger."""


class OwnerFound(Struct, frozen=True, kw_only=True):
    generation: int = 0
    """The highest one; 0 when none of our owners had it yet."""
    owner: str | None = None
    proved_at: float = 0.0
    """Epoch seconds of the owner's last event, by its clock."""


def event_marks(events: Sequence[ListedEvent]) -> list[EventMark]:
    """The marks of our events."""
    return [mark for event in events if (mark := read_mark(event.metadata)) is not None]


def owner_in(events: Sequence[ListedEvent]) -> OwnerFound:
    """The owner that the newest events of a session name."""
    marks = [mark for mark in event_marks(events) if mark.kind != "asked"]
    top = max((mark.generation for mark in marks), default=0)
    newest = [mark for mark in marks if mark.generation == top]
    if not newest:
        return OwnerFound()
    # Events of one millisecond are listed in any order, so "free" counts wherever it stands among those of its
    # generation.
    free = any(mark.kind == "free" for mark in newest)
    proved_at = max(mark.wall for mark in newest)
    return OwnerFound(generation=top, owner=None if free else newest[0].owner, proved_at=proved_at)


class SharedParts(Struct, kw_only=True):
    """The parts that the owned sessions of one store share."""

    events: MemoryEvents
    owner: str
    wall: Callable[[], float]
    entropy: Entropy
    settings: AgentCoreSettings
    metadata: Callable[[str], Mapping[str, str]]
    """The metadata to write with a session's messages. Errors: `Invalid`."""
    tokens: Iterator[int]


class _Pending(NamedTuple):
    event: NewEvent
    done: Callable[[], None]


class OwnedSession(Struct, kw_only=True):
    """An owned session, and what its owner has seen and written."""

    shared: SharedParts
    lease: Lease
    name: str
    """The service's name for it."""
    log: EventLog | None = None
    """The listing that showed the ownership; the first agent to open uses it."""
    ended: bool = False
    """True if only the release may still be written."""
    unsure: set[tuple[str, int, bytes]] = field(default_factory=set[tuple[str, int, bytes]])
    """Agent, sequence number and link of rows whose commit had no answer: the caller may repeat it."""
    wanted: bool = False
    """True if another owner has asked for the session."""
    news: str | None = None
    """An event that another writer has added since an agent was opened."""
    opened: bool = False
    """True if an agent was opened, so that events listed later may be news to it."""
    tails: dict[str, int] = {}
    """Agent id to the last sequence number that must exist."""
    committed_at: float = 0.0
    """The time at which the last of these rows was stored, in epoch seconds; 0.0 if unknown."""
    session_known: bool = True
    """True if the session's record exists."""
    superseded: list[str] = []
    """Our events that are no longer needed."""
    written_at: float = 0.0
    held_event: str = ""
    last_ms: int = 0
    """The time of the newest event."""
    _looked_at: float = -math.inf
    _looked_ms: int = 0
    """The time of the newest event at the last look."""
    _first_known_ms: int = -1
    """Older events were not read."""
    _pending: list[_Pending] = field(default_factory=lambda: list[_Pending]())
    _known: set[str] = field(default_factory=set[str])
    """The ids of the events that were there before; our own later ones are known by their marks."""

    async def create(
        self,
        kind: str,
        payload: Sequence[PayloadItem],
        metadata: Mapping[str, str] | None = None,
        at_ms: int | None = None,
    ) -> str:
        """Write an event after all others, or at the given time. Returns its id. Errors: as `MemoryEvents`."""
        return await self._send(self._compose(kind, payload, metadata, at_ms))

    def prepare(self, payload: Sequence[PayloadItem], metadata: Mapping[str, str], done: Callable[[], None]) -> None:
        """Queue rows for the next `settle`, in order; `done` is called when they are written."""
        self._pending.append(_Pending(self._compose("rows", payload, metadata), done))

    async def settle(self) -> None:
        """Write the queued events. A failed one is retried by the next call as the same event, so it is stored once,
        whatever became of earlier attempts. Errors: as `MemoryEvents`.
        """
        # One after the other, and each taken out only when it is stored: the next call goes on with the same event.
        while self._pending:
            await self._send(self._pending[0].event)
            self._pending.pop(0).done()

    def _compose(
        self,
        kind: str,
        payload: Sequence[PayloadItem],
        metadata: Mapping[str, str] | None = None,
        at_ms: int | None = None,
    ) -> NewEvent:
        shared, now = self.shared, self.shared.wall()
        if at_ms is None:
            # Listings are ordered by this time alone. A clock that stands, or jumps back, must not put a row before its
            # predecessor.
            at_ms = self.last_ms = max(int(now * 1000), self.last_ms + 1)
        mark = EventMark(kind, self.lease.generation, now, "" if kind == "free" else shared.owner)
        # Composed once and kept with the event: every attempt has it, and the service keeps the first.
        token = f"{shared.owner} {self.lease.generation} {next(shared.tokens)}"
        token = blake2b(token.encode(), digest_size=20).hexdigest()
        text = sealed(mark, payload)
        return NewEvent(at_ms=at_ms, payload=payload, metadata={**(metadata or {}), OURS: text}, token=token)

    async def _send(self, event: NewEvent) -> str:
        event_id = await self.shared.events.create(self.name, event)
        self.written_at = anyio.current_time()
        return event_id

    async def delete(self, event_id: str) -> None:
        """Delete an event; does nothing when its id is unknown. Errors: as `MemoryEvents`."""
        if event_id:
            await self.shared.events.delete(self.name, event_id)

    def recently_looked(self, seconds: float) -> bool:
        """True if the last look is less than that many seconds old."""
        return anyio.current_time() - self._looked_at < seconds

    async def look(self) -> LeaseLost | None:
        """None if this owner still has the session; `news` then says if another writer has added to it.

        One request, unless more than a page of events came since the last look. Errors: as `MemoryEvents`.
        """
        # Before the request: what is listed may have been so at any time since.
        now = anyio.current_time()
        token: str | None = None
        tokens = PageTokens()
        newest: int | None = None
        while True:
            page = await self.shared.events.page(self.name, token, payloads=False)
            # Only of the newest page: an owner that comes later has written later.
            if token is None and owner_in(page.events).generation != self.lease.generation:
                return lost(self.lease)
            asked = [mark.generation for mark in event_marks(page.events) if mark.kind == "asked"]
            self.wanted = self.wanted or self.lease.generation in asked
            for event in page.events:
                if self._is_news(event):
                    self.news = event.event_id
                newest = max(newest or 0, event.at_ms)
            token = tokens.next(page.next_token)
            # Back to what the last look has seen, and no further.
            if token is None or any(event.at_ms <= self._looked_ms for event in page.events):
                break
        self._looked_at, self._looked_ms = now, newest or 0
        return None

    async def renew(self) -> None:
        """Renew the lease. Errors: as `MemoryEvents`."""
        # The new one first, then the old one away: at each moment there is an event that names the owner.
        before, self.held_event = self.held_event, await self.create("held", [self._lease_item()])
        with suppress(RepertoryError):
            await self.delete(before)

    async def release(self) -> None:
        """Release the session, and delete superseded events. Errors: as `MemoryEvents`."""
        # Only now: while the session is in use, an old event costs nothing but its line in a listing.
        tidying = [partial(self._tidy, event_id) for event_id in self.superseded]
        await side_by_side([self._free, *tidying], REQUESTS_AT_ONCE)

    def begin(self, log: EventLog) -> None:
        """Start owning the session, as this listing shows."""
        self.log = log
        self._looked_at = anyio.current_time()
        self.session_known = not log.complete
        self.know(log)
        newest_generation = 0
        for seen in reversed(log.seen):
            self.last_ms = max(self.last_ms, seen.event.at_ms)
            self.session_known = self.session_known or seen.event.metadata.get(STATE_TYPE) == "SESSION"
            if seen.mark is None or seen.mark.kind not in _OF_LEASES or seen.event.event_id == self.held_event:
                continue
            if seen.fault is not None:  # The damage is reported, and the event stays for the repair.
                continue
            self.superseded.append(seen.event.event_id)
            lease = seen.lease
            if lease is not None and lease.tails is not None and seen.mark.generation >= newest_generation:
                self.tails, newest_generation = dict(lease.tails), seen.mark.generation
                self.committed_at = lease.at
        self._looked_ms = self.last_ms
        if not log.complete:
            self._first_known_ms = log.seen[-1].event.at_ms

    def know(self, log: EventLog) -> None:
        self._known |= {seen.event.event_id for seen in log.seen}

    async def _free(self) -> None:
        await self.create("free", [self._lease_item()])

    async def _tidy(self, event_id: str) -> None:
        with suppress(RepertoryError):  # The event does no harm, and the session's next owner tries again.
            await self.delete(event_id)

    def _lease_item(self) -> PayloadItem:
        return our_item(LeaseState(session=self.lease.session_id, tails=self.tails, at=self.committed_at))

    def _is_news(self, event: ListedEvent) -> bool:
        """True if an event adds messages that this owner does not know."""
        if event.event_id in self._known or event.at_ms < self._first_known_ms:
            return False
        mark = read_mark(event.metadata)
        return mark is None or (mark.kind == "rows" and mark.generation != self.lease.generation)


class SessionRace:
    def __init__(self, shared: SharedParts) -> None:
        self._shared = shared
        self._life = TimeToLive(shared.wall, shared.settings.lease_s)
        self._floors: dict[str, int] = {}
        """Generations that a session had in this store; the service may have forgotten them."""
        self._asked: tuple[str, int] | None = None
        """The session and generation that were last asked for."""

    async def acquire(self, session_id: str, name: str, *, takeover: bool) -> OwnedSession:
        shared = self._shared
        looked, found = False, OwnerFound()
        for _ in range(_TRIES):
            page = await shared.events.page(name, None, payloads=False)
            found = owner_in(page.events)
            if self.in_other_hands(found) and not takeover:
                # Twice, since a call that has just ended is releasing the session, and the listing lags.
                if looked:
                    await self._ask_for(name, found, page.events)
                    break
                looked = True
                await anyio.sleep(shared.settings.relook_s)
                continue
            last_ms = _newest_ms(page.events)
            lease = self._lease(session_id, name, found)
            owned = OwnedSession(shared=shared, lease=lease, name=name, last_ms=last_ms)
            # Written without knowing who else writes now; reading back decides, by the highest generation.
            owned.held_event = await owned.create("held", [our_item(LeaseState(session=session_id))])
            try:
                log = await self._read_back(owned)
            except RepertoryError:
                with suppress(RepertoryError):
                    await owned.delete(owned.held_event)
                raise
            if owner_in([seen.event for seen in log.seen]).generation == owned.lease.generation:
                owned.begin(log)
                return owned
            with suppress(RepertoryError):
                await owned.delete(owned.held_event)
        raise busy(session_id, found.owner)

    async def _ask_for(self, name: str, found: OwnerFound, events: Sequence[ListedEvent]) -> None:
        """Ask the owner for the session, once. Errors: as `MemoryEvents`."""
        shared, asked = self._shared, (name, found.generation)
        if self._asked == asked:
            return
        mark = EventMark("asked", found.generation, shared.wall(), shared.owner)
        # One for each owner, generation and session: asking again creates no event, which would have a price.
        token = blake2b(f"{shared.owner} asks {found.generation} {name}".encode(), digest_size=20).hexdigest()
        at_ms = max(int(shared.wall() * 1000), _newest_ms(events) + 1)
        new = NewEvent(at_ms=at_ms, payload=[], metadata={OURS: sealed(mark, [])}, token=token)
        await shared.events.create(name, new)
        self._asked = asked

    def in_other_hands(self, found: OwnerFound) -> bool:
        """True if a live owner other than this one has it."""
        return other_owner(found, self._shared.owner) is not None and self.alive(found) is not None

    def alive(self, found: OwnerFound) -> str | None:
        """The owner, if it counts as alive."""
        owner = found.owner
        return owner if owner is not None and self._life.counts(owner, found.proved_at) else None

    def forget(self, name: str, generation: int) -> None:
        """Remember a deleted session's generation; the next one must be higher."""
        self._floors[name] = max(generation, self._floors.get(name, 0))

    def _lease(self, session_id: str, name: str, found: OwnerFound) -> Lease:
        above = max(found.generation, self._floors.get(name, 0)) >> _CHANCE_BITS
        # Above all that was seen. The clock makes it so too where the service has forgotten, or does not list, the last
        # owner.
        count = max(above + 1, int(self._shared.wall() * 1000))
        # Two owners that start from the same listing would otherwise have the same generation, and both win.
        chance = int.from_bytes(self._shared.entropy(4)) >> (32 - _CHANCE_BITS)
        generation = (count << _CHANCE_BITS) + chance
        self._floors[name] = generation
        owner = self._shared.owner
        return Lease(session_id=session_id, owner=owner, generation=generation, taken_from=other_owner(found, owner))

    async def _read_back(self, owned: OwnedSession) -> EventLog:
        """The newest page, once it holds the event that makes us the owner."""

        async def listed() -> EventLog | None:
            log = EventLog(self._shared.events, owned.name, owned.lease.session_id)
            await log.more()
            marks = [seen.mark.generation for seen in log.seen if seen.mark is not None]
            return log if owned.lease.generation in marks else None

        log = await until_settled(listed, self._shared.settings.settle_s)
        if log is None:
            raise StoreUnavailable(
                "the memory does not show what was written to it; try again", session=owned.lease.session_id
            )
        return log


def _newest_ms(events: Sequence[ListedEvent]) -> int:
    return max((event.at_ms for event in events), default=0)


async def until_settled(look: Callable[[], Awaitable[T | None]], settle_s: float) -> T | None:
    """The first result of `look` that is not None; called again with growing waits until `settle_s` is over."""
    deadline, delay_s = anyio.current_time() + settle_s, 0.05
    while (found := await look()) is None and anyio.current_time() < deadline:
        await anyio.sleep(delay_s)
        delay_s *= 2
    return found
