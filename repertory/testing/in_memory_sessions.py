"""A `SessionStore` in memory, under the same contract as the real ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from anyio.lowlevel import checkpoint

from repertory.backends.ports import (
    Batch,
    IdPage,
    Lease,
    OwnedRows,
    Position,
    Positions,
    SessionInfo,
    SessionStore,
    StoreCapabilities,
    StoreSharing,
    Waking,
    WorkQuery,
    not_again,
    owned_rows,
    release_each,
    rows_between,
)
from repertory.core.ids import check_id
from repertory.core.journal.codec import at_of
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.pending_work import DueTime, PendingWork, claims_after, may_claim, next_due
from repertory.core.tenants import tenant_part
from repertory.errors import Invalid, LeaseLost, RepertoryError, SessionBusy, StoreNotFound
from repertory.testing.in_memory_peers import MemoryCallQueue, MemoryDirectory, PeerShelf


@dataclass(slots=True)
class _Session:
    generation: int
    owner: str | None
    journals: dict[str, list[Row]] = field(default_factory=dict[str, list[Row]])

    def times(self) -> list[float]:
        rows = (row for journal in self.journals.values() for row in journal if not row.erased)
        return [at_of(row.body) or 0.0 for row in rows] or [0.0]


class SessionShelf(PeerShelf):
    """The sessions that several `MemorySessionStore`s share, as several processes share a database. Not for use across
    threads.

    Attributes:
        last_generation: The highest generation so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[str, _Session] = {}
        self.last_generation = 0
        self.pending_work: dict[tuple[str, str], PendingWork] = {}
        """The pending work, by session and agent."""
        self.asked: set[tuple[str, str]] = set()
        """Pairs of an owner and a session that another owner has asked it for."""

    def next_generation(self) -> int:
        """A generation higher than every earlier one."""
        self.last_generation += 1
        return self.last_generation


class MemorySessionStore(SessionStore):
    """Keeps sessions on a shelf. Commits are instant; each call is one checkpoint.

    Args:
        shelf: The state that several stores share; None for one of its own.
        owner: The name of the store's owner.
    """

    def __init__(self, shelf: SessionShelf | None = None, *, owner: str = "memory") -> None:
        self._shelf = shelf if shelf is not None else SessionShelf()
        self._owner = owner
        self._closed = False
        self._directory = MemoryDirectory(self._shelf, owner, self._enter, self._owner_of)
        self._call_queue = MemoryCallQueue(self._shelf, owner, self._enter)

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(
            positions=self._positions(),
            waking=Waking(claim_due=self._claim_due, pending_work=self._pending_work),
            sharing=StoreSharing(
                asked_for=self._asked_for, abandon=self._abandon, directory=self.directory, call_queue=self.call_queue
            ),
        )

    @property
    def name(self) -> str:
        return f"memory:{id(self._shelf):x}"

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        check_id(session_id, "session id")
        await self._enter()
        if again is not None:
            raise not_again(again)
        session = self._shelf.sessions.get(session_id)
        if session is not None and not takeover and self._in_other_hands(session):
            self._shelf.asked.add((str(session.owner), session_id))
            raise SessionBusy("another live owner has the session", session=session_id, owner=session.owner)
        generation = self._shelf.next_generation()
        if session is None:
            session = self._shelf.sessions[session_id] = _Session(generation, self._owner)
        before = session.owner if session.owner != self._owner else None
        session.generation, session.owner = generation, self._owner
        self._shelf.alive.add(self._owner)
        lease = Lease(session_id=session_id, owner=self._owner, generation=generation, taken_from=before)
        return await owned_rows(self, lease, load)

    async def _asked_for(self) -> Sequence[str]:
        await self._enter()
        asked = {session_id for owner, session_id in self._shelf.asked if owner == self._owner}
        self._shelf.asked -= {(self._owner, session_id) for session_id in asked}
        return sorted(asked)

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        return await release_each(self._release, leases)

    async def _release(self, lease: Lease) -> None:
        await self._enter()
        session = self._current(lease)
        if session is not None:
            session.owner = None
            for key, work in self._shelf.pending_work.items():
                if key[0] == lease.session_id:
                    self._shelf.pending_work[key] = replace(work, claims=0)

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | LeaseLost]:
        await self._enter()
        return [self._append(batch) for batch in batches]

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        check_id(session_id, "session id")
        await self._enter()
        session = self._shelf.sessions.get(session_id)
        rows = session.journals.get(agent_id, []) if session is not None else []
        return rows[rows[-1].low - 1 :] if rows and not whole else list(rows)

    def _positions(self) -> Positions:
        async def load_at(session_id: str, agent_id: str, seq: int) -> Sequence[Row]:
            rows = await self.load(session_id, agent_id, whole=True)
            return rows[rows[seq - 1].low - 1 : seq] if 0 < seq <= len(rows) else []

        async def labels(session_id: str, agent_id: str) -> Sequence[Row]:
            rows = await self.load(session_id, agent_id, whole=True)
            return [row for row in rows if row.kind == RecordKind.SNAPSHOT and not row.erased]

        return Positions(load_at=load_at, load_range=partial(rows_between, self), labels=labels)

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        await self._enter()
        infos = [
            self._info(name, session)
            for name, session in self._shelf.sessions.items()
            if session.journals and session_id in (None, name)
        ]
        return page.of(infos) if page is not None else sorted(infos, key=lambda info: info.updated_at, reverse=True)

    async def delete(self, session_id: str) -> None:
        check_id(session_id, "session id")
        await self._enter()
        session = self._shelf.sessions.get(session_id)
        if session is not None and self._in_other_hands(session):
            raise SessionBusy("another live owner has the session", session=session_id, owner=session.owner)
        called = self._call_queue.forget(session_id)
        if session is None:
            if called:
                return
            raise StoreNotFound("no such session", session=session_id)
        del self._shelf.sessions[session_id]
        for key in [key for key in self._shelf.pending_work if key[0] == session_id]:
            del self._shelf.pending_work[key]

    async def _claim_due(self, query: WorkQuery) -> Sequence[PendingWork]:
        await self._enter()
        due = [
            (key, work)
            for key, work in self._shelf.pending_work.items()
            if work.at <= query.now
            and work.agent_id in query.agents
            and tenant_part(work.session_id) not in query.passing
            and not work.parked
            and self._may_wake(self._shelf.sessions[key[0]], work, rests=key in query.stalled)
        ]
        claimed = sorted(due, key=lambda each: each[1].at)[: query.limit]
        for key, work in claimed:
            self._shelf.pending_work[key] = replace(
                work, at=next_due(query.now, work.claims + 1), claims=work.claims + 1
            )
        return [replace(work, claims=work.claims + 1) for _, work in claimed]

    async def _pending_work(self, session_id: str | None = None) -> Sequence[PendingWork]:
        await self._enter()
        found = [work for work in self._shelf.pending_work.values() if session_id in (None, work.session_id)]
        return sorted(found, key=lambda work: work.at)

    def directory(self) -> MemoryDirectory:
        """The runtimes that share these sessions."""
        return self._directory

    def call_queue(self) -> MemoryCallQueue:
        """The calls that are kept beside these sessions."""
        return self._call_queue

    async def aclose(self) -> None:
        """Close. Leases held by this object end."""
        await checkpoint()
        self._abandon()

    def _abandon(self) -> None:
        if not self._closed:
            self._closed = True
            self._shelf.alive.discard(self._owner)

    async def _enter(self) -> None:
        if self._closed:
            raise Invalid("this was closed before", name=self.name)
        await checkpoint()

    def _append(self, batch: Batch) -> Position | LeaseLost:
        session = self._current(batch.lease)
        if session is None:
            fields = {"session": batch.lease.session_id, "generation": batch.lease.generation}
            return LeaseLost("the session has another owner now", **fields)
        ends = {agent_id: len(rows) for agent_id, rows in session.journals.items()}
        for row in batch.rows:
            if row.seq != ends.get(row.agent_id, 0) + 1:
                return LeaseLost("rows do not follow what is stored", session=batch.lease.session_id, seq=row.seq)
            ends[check_id(row.agent_id, "agent id")] = row.seq
        for row in batch.rows:
            session.journals.setdefault(row.agent_id, []).append(row)
        for agent_id, seq in batch.erase:
            rows = session.journals.get(agent_id, [])
            if 0 < seq <= len(rows):
                rows[seq - 1] = rows[seq - 1].without_content()
        for agent_id in batch.forget:
            session.journals.pop(agent_id, None)
            self._shelf.pending_work.pop((batch.lease.session_id, agent_id), None)
        if batch.due is not None:
            self._note_due(batch.lease.session_id, batch.due)
        agent_id = batch.rows[-1].agent_id if batch.rows else (batch.erase[-1][0] if batch.erase else "")
        return Position(agent_id=agent_id, seq=ends.get(agent_id, 0))

    def _note_due(self, session_id: str, due: DueTime) -> None:
        key = session_id, due.agent_id
        before = self._shelf.pending_work.pop(key, None)
        if due.at is not None:
            claims = claims_after(due.why, before.claims if before is not None else 0)
            self._shelf.pending_work[key] = PendingWork(
                session_id=session_id, agent_id=due.agent_id, at=due.at, why=due.why, claims=claims
            )

    def _info(self, name: str, session: _Session) -> SessionInfo:
        times = session.times()
        return SessionInfo(
            session_id=name,
            agents={agent_id: len(rows) for agent_id, rows in session.journals.items()},
            created_at=times[0],
            updated_at=max(times),
            owner=session.owner if session.owner in self._shelf.alive else None,
        )

    def _owner_of(self, session_id: str) -> str | None:
        session = self._shelf.sessions.get(session_id)
        return None if session is None else session.owner

    def _may_wake(self, session: _Session, work: PendingWork, *, rests: bool) -> bool:
        here = session.owner == self._owner and self._owner in self._shelf.alive and not rests
        return not self._in_other_hands(session) and may_claim(work.why, owned_here=here)

    def _current(self, lease: Lease) -> _Session | None:
        session = self._shelf.sessions.get(lease.session_id)
        current = session is not None and (session.generation, session.owner) == (lease.generation, lease.owner)
        return session if current else None

    def _in_other_hands(self, session: _Session) -> bool:
        return session.owner != self._owner and session.owner in self._shelf.alive
