"""The session store in PostgreSQL, as callers see it.

Many processes on many machines may share the tables. A session's line says who owns it; a commit checks that line in
the same statement that stores the rows, so an owner that was replaced writes nothing (`commits.py`). Who is alive is
the business of `presence.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar, cast

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct

from repertory.backends.ports import (
    Batch,
    Corruption,
    IdPage,
    Inspection,
    Lease,
    OwnedRows,
    Position,
    Positions,
    SalvagedRows,
    SessionInfo,
    SessionStore,
    StoreCapabilities,
    StoreRepair,
    StoreSharing,
    Waking,
    WorkQuery,
    not_again,
)
from repertory.backends.postgres.address import PostgresAddress
from repertory.backends.postgres.connection import PostgresConnection, ResultLine
from repertory.backends.postgres.erasing import Erasures
from repertory.backends.postgres.pool import Pool
from repertory.backends.postgres.tables import SCHEMA, check_schema
from repertory.backends.postgres.values import Parameter, int8s, texts
from repertory.backends.sessions.postgres.call_queue import PostgresCallQueue
from repertory.backends.sessions.postgres.commit_hook import SessionCommitHook
from repertory.backends.sessions.postgres.commits import Commits, OwnedLine, columns
from repertory.backends.sessions.postgres.directory import PostgresDirectory
from repertory.backends.sessions.postgres.pending_work import PendingWorkLines
from repertory.backends.sessions.postgres.presence import TTL_S, Presence
from repertory.backends.sessions.postgres.releases import Releases
from repertory.backends.sessions.postgres.schema import prepare
from repertory.backends.sessions.postgres.statements import MARKS, Statements
from repertory.backends.sessions.table import AcquiredNow, busy, check_agents, refuse_gaps, unless_cancelled
from repertory.backends.shields import Uncut
from repertory.core.ids import check_id, prefix_end
from repertory.core.journal.codec import at_of
from repertory.core.journal.rows import Row
from repertory.core.pending_work import PendingWork
from repertory.errors import (
    CorruptJournal,
    Invalid,
    LeaseLost,
    RepertoryError,
    SessionBusy,
    StoreFailed,
    StoreNotFound,
    StoreUnavailable,
)
from repertory.forking import forget_in_children

T = TypeVar("T")
_READS_MAX: Final = 3
CLOSE_S: Final = 10.0
SCAN_S: Final = 600.0
"""Seconds that reading all sessions may take."""


class PostgresSettings(Struct, frozen=True, kw_only=True):
    """The schema, connections and time limits of a store."""

    schema: str = SCHEMA
    direct: PostgresAddress | None = None
    """The database without the pooler that the address leads to."""
    pooled: bool = False
    """True if the address leads to a pooler that gives each transaction another connection."""
    connections: int = 8
    timeout_s: float = 20.0
    """Seconds that one statement may take, including the wait for a connection."""
    ttl_s: float = TTL_S
    """Seconds that an owner counts as alive after its last beat."""


class PostgresSessionStore(SessionStore):
    """A `SessionStore` in PostgreSQL. For one event loop. Run `maintain` under supervision while it owns sessions.

    Errors of every call: `StoreUnavailable` (not reached, restarting, out of time or resources: try again),
    `StoreFailed` (password, rights, database, TLS, a replica, tables of another version: change what the message
    names), `Corrupt`, `Invalid` (bad ids, a closed store). They name host, port, database and user.
    """

    def __init__(
        self,
        address: PostgresAddress,
        *,
        owner: str,
        settings: PostgresSettings | None = None,
        commit_hook: SessionCommitHook | None = None,
    ) -> None:
        """`owner` must be unique to this object; leases carry it. `commit_hook`: what else is filled by its commits."""
        self._settings = settings = settings or PostgresSettings()
        schema = check_schema(settings.schema)
        self._address = address
        self._owner = check_id(owner, "owner")
        pooled = settings.pooled or settings.direct is not None
        direct = settings.direct if pooled else address
        # A pooler gives the next transaction another connection, where the prepared statement is not known.
        self._pool = Pool(address, size=settings.connections, prepares=not pooled, within_s=settings.timeout_s)
        self._sql = Statements(schema)
        self._presence = Presence(self._pool, direct, schema=schema, owner=owner, ttl_s=settings.ttl_s)
        self._held: dict[str, OwnedLine] = {}
        self._acquiring = AcquiredNow()
        self._erasures = Erasures(
            self._pool, direct or address, schema, [MARKS, *([commit_hook.marks] if commit_hook else [])]
        )
        self._commit_hook = commit_hook
        self._commits = Commits(
            self._pool,
            self._sql,
            self._held,
            self._refuse_doubtful,
            self._erasures.note,
            self._presence.freed,
            commit_hook,
        )
        self._releases = Releases(self._pool, self._sql, self._presence, self._owner)
        self._directory = PostgresDirectory(self._pool, self._presence, schema, owner, self._begin)
        self._call_queue = PostgresCallQueue(self._pool, self._presence, schema, owner, self._begin)
        self._pending_work = PendingWorkLines(self._pool, schema, self._owner)
        self._preparing = anyio.Lock()
        self._ready = False
        self._hook_ready = False
        """True if the tables alongside need not be looked at."""
        self._closed = False
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Count as closed in a forked child. The connections are the parent's, and forget it themselves."""
        self._closed = True
        self._held.clear()

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(
            positions=Positions(load_at=self.load_at, load_range=self.load_range, labels=self.labels),
            waking=Waking(claim_due=self.claim_due, pending_work=self.pending_work),
            repair=StoreRepair(
                inspect=self.inspect,
                examine=self.examine,
                salvage=self.salvage,
                set_aside=self.set_aside,
                quarantined=self.quarantined,
            ),
            sharing=StoreSharing(
                asked_for=self.asked_for,
                look_every_s=1.0,
                listen=self._presence.listen,
                waiting=self._presence.waiting,
                abandon=self.abandon,
                directory=lambda: self._directory,
                call_queue=lambda: self._call_queue,
            ),
            maintained=True,
            acquires_again="commit",
        )

    @property
    def name(self) -> str:
        """The address without a password, and the schema."""
        return f"{self._address.name}#{self._settings.schema}"

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        """One round trip, which is not synced: a crash of the server may undo it, and then the lease is lost. One more
        to `load`.
        """
        line = await (self._acquire(session_id, takeover=takeover) if again is None else self._acquire_again(again))
        try:
            if load is None or load not in line.agents:
                return OwnedRows(line.lease)
            number = line.agents.index(load)
            lines = await self._read(self._sql.window, line.id, number + 1, line.seqs[number])
            return OwnedRows(line.lease, _complete(lines, session_id, load, line.seqs[number], whole=False))
        except RepertoryError as error:
            # The lease is ours all the same, so the caller gets both.
            return OwnedRows(line.lease, error)
        except BaseException:
            with suppress(RepertoryError), Uncut():  # It ends with this store, or when another owner asks for it.
                await self.release([line.lease])
            raise

    async def release(self, leases: Sequence[Lease]) -> Sequence[None]:
        """One statement, together with other calls for one lease that wait. Errors: see the class; it is unknown then
        whether all or none are released.
        """
        self._refuse_closed()
        freed: list[tuple[Lease, OwnedLine]] = []
        for lease in leases:
            # Taken out before the statement: if its answer is lost, this owner must not write as if the session were
            # its own.
            line = self._held.get(lease.session_id)
            if line is not None and line.lease == lease:
                del self._held[lease.session_id]
                freed.append((lease, line))
        if len(leases) == 1:
            await _waited_for(self._releases.release(leases[0]))
        elif leases:
            await _waited_for(self._releases.release_all(leases))
        for lease, line in freed:
            self._commits.keep_released(lease, line)
        return [None] * len(leases)

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | LeaseLost]:
        """Commit one group in one transaction, together with those of other calls that wait; one outcome per batch, in
        order. Errors: see the class; `StoreUnavailable` also before anything is written, when the database has not
        heard of this owner lately.
        """
        self._refuse_closed()
        check_agents(batches)
        return await _waited_for(self._commits.append(batches))

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        statement = self._sql.whole if whole else self._sql.window
        return await self._load(session_id, agent_id, statement, whole=whole)

    async def load_at(self, session_id: str, agent_id: str, seq: int) -> Sequence[Row]:
        return await self._load(session_id, agent_id, self._sql.window, at=seq)

    async def load_range(self, session_id: str, agent_id: str, first: int, last: int) -> Sequence[Row]:
        """Load the rows by their index."""
        line = await self._line(session_id)
        if line is None or agent_id not in line.agents:
            return []
        first, last = max(first, 1), min(last, line.seq_of(agent_id))
        if first > last:
            return []
        lines = await self._read(self._sql.between, line.id, line.agents.index(agent_id) + 1, first, last)
        if lines and len(lines) != last + 1 - first:
            raise CorruptJournal("a row is missing", session=session_id, agent=agent_id, seq=first)
        return [_row(agent_id, each) for each in lines]

    async def labels(self, session_id: str, agent_id: str) -> Sequence[Row]:
        """Load the labels by an index of their own."""
        found = await self._line(session_id)
        if found is None or agent_id not in found.agents:
            return []
        number = found.agents.index(agent_id)
        lines = await self._read(self._sql.labels, found.id, number + 1)
        return [_row(agent_id, line) for line in lines]

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        if not await self._begin(create=False):
            return []
        if page is not None:
            given = page.prefix, prefix_end(page.prefix), page.after, page.limit
            statement = self._sql.asking_range if page.asking else self._sql.listed_range
            return [_info(line) for line in await self._pool.run(statement, *given, once=True)]
        if session_id is None:
            return [_info(line) for line in await self._read(self._sql.listed, within_s=SCAN_S)]
        return [_info(line) for line in await self._pool.run(self._sql.listed_one, session_id)]

    async def claim_due(self, query: WorkQuery) -> Sequence[PendingWork]:
        """One statement, which waits for nobody."""
        if query.limit < 1 or not query.agents or not await self._begin(create=False):
            return []
        return await self._pending_work.claim(query)

    async def pending_work(self, session_id: str | None = None) -> Sequence[PendingWork]:
        return await self._pending_work.all(session_id) if await self._begin(create=False) else []

    async def delete(self, session_id: str) -> None:
        """Erase a session and what was set aside of it. No query finds it any more when this returns; its bytes leave
        the files soon after (`erasing.py`). Errors: `NotFound`, `SessionBusy`, and see the class.
        """

        async def remove(connection: PostgresConnection, lines: Sequence[ResultLine]) -> None:
            ids = int8s([cast("int", line[0]) for line in lines])
            await self._within(connection, self._sql.delete_rows, ids)
            await self._within(connection, self._sql.delete_calls, session_id)
            await self._within(connection, self._sql.delete_pending_work, ids)
            await self._within(connection, self._sql.delete_lines, ids)
            if self._commit_hook is not None:
                await self._commit_hook.deleted(partial(self._within, connection), session_id)

        try:
            await self._change(session_id, remove)
        except StoreNotFound:
            if not self._ready or not await _waited_for(self._pool.run(self._sql.delete_calls, session_id)):
                raise
        self._erasures.note()

    async def set_aside(self, session_id: str, keep: Sequence[Row]) -> str:
        """Keep the rows where they are under a line that nobody reads, and begin the session anew with these, in one
        transaction. Errors: `NotFound`, `SessionBusy`, and see the class.
        """
        beginning = _beginning(check_id(session_id, "session id"), keep)
        scope = self._scope_of(session_id)
        moved_to = ""

        async def move(connection: PostgresConnection, lines: Sequence[ResultLine]) -> None:
            nonlocal moved_to
            number = 1 + max(cast("int", line[1]) for line in lines)
            current = next(cast("int", line[0]) for line in lines if line[1] == 0)
            await self._within(connection, self._sql.set_aside, current, number)
            ((begun,),) = await self._within(connection, self._sql.begin, session_id, self._owner, *beginning)
            await self._within(connection, self._sql.move_pending_work, current, cast("int", begun))
            if self._commit_hook is not None and scope is not None:
                await self._commit_hook.committed(partial(self._within, connection), [(scope, session_id, keep)], {})
            moved_to = self._name_aside(current, number)

        await self._change(session_id, move)
        return moved_to

    async def quarantined(self, session_id: str) -> Sequence[str]:
        check_id(session_id, "session id")
        if not await self._begin(create=False):
            return []
        lines = await self._pool.run(self._sql.asides, session_id)
        return [self._name_aside(cast("int", line[0]), cast("int", line[1])) for line in lines]

    async def inspect(self) -> Inspection:
        """Rows of no session, and journals whose rows are not all there."""
        if not await self._begin(create=False):
            return Inspection()
        strays: list[str] = []
        sick: dict[str, str] = {}
        for name, agent, seq, session, number, count, *_ in await self._read(self._sql.counts, within_s=SCAN_S):
            if name is None:
                strays.append(f"{count} rows of session {session}, which there is not")
            else:
                sick[str(name)] = f"agent {agent or number}: {count} rows are there, and {seq or 0} should be"
        for name, agent in await self._read(self._sql.empty, within_s=SCAN_S):
            sick[str(name)] = f"agent {agent}: no row is there"
        return Inspection(sick=sick, strays=strays)

    async def examine(self, session_id: str) -> Sequence[Corruption]:
        """Missing rows, and rows of agents that the session does not name."""
        return (await self.salvage(session_id)).damages

    async def salvage(self, session_id: str) -> SalvagedRows:
        """Every row of the session; agents that its line does not name are called by their number."""
        found = await self._line(session_id)
        if found is None:
            return SalvagedRows()
        rows: list[Row] = []
        damages: list[Corruption] = []
        counts: dict[str, int] = {}
        for number, *line in await self._read(self._sql.everything, found.id):
            index = cast("int", number) - 1
            agent_id = found.agents[index] if 0 <= index < len(found.agents) else f"agent-{number}"
            rows.append(_row(agent_id, tuple(line)))
            counts[agent_id] = counts.get(agent_id, 0) + 1
        for agent_id in {*found.agents, *counts}:
            there, wanted = counts.get(agent_id, 0), found.seq_of(agent_id)
            if there != wanted:
                what = f"agent {agent_id}: {there} rows are there, and {wanted} should be"
                damages.append(Corruption(where=f"{self.name}, session {session_id}", what=what))
        return SalvagedRows(rows=rows, damages=damages)

    # Between owners.

    async def maintain(self) -> None:
        """Show that this owner is alive, hear others, and write parts anew in which contents were destroyed, until
        cancelled.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._erasures.keep)
            await self._presence.keep()

    async def asked_for(self) -> Sequence[str]:
        """The sessions that others ask for. One that the database says is ours, and of which no lease is known because
        an answer was lost, is released here.
        """
        self._refuse_closed()
        asked = await self._presence.asked_for()
        for session_id in [name for name in asked if not self._uses(name)]:
            with suppress(StoreFailed):  # Whoever writes is told; here nobody waits for an answer.
                await self._release_unknown(session_id)
        return [session_id for session_id in asked if self._uses(session_id)]

    async def aclose(self) -> None:
        """Close. One statement ends every lease of this object."""
        if self._closed:
            await checkpoint()
            return
        self._closed = True
        with suppress(StoreUnavailable), Uncut(CLOSE_S):  # Others do what is undone then: leases end, marks stay.
            await self._presence.close()
            await self._erasures.close()
        self._presence.drop()
        self._pool.close()
        self._held.clear()
        await checkpoint()

    def abandon(self) -> threading.Thread | None:
        """The server ends what a closed connection held."""
        self._closed = True
        self._presence.drop()
        self._pool.close()
        return None

    # Within.

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Invalid("this was closed before", name=self.name)

    async def _begin(self, *, create: bool) -> bool:
        """False if there are no tables, and none were to be made."""
        self._refuse_closed()
        if not self._ready or (create and not self._hook_ready):
            async with self._preparing:
                if not self._ready:
                    self._ready = await prepare(self._pool, self._settings.schema, create=create)
                    if self._ready:
                        self._erasures.look()
                if self._ready and not self._hook_ready:
                    self._hook_ready = self._commit_hook is None or await self._commit_hook.prepare(
                        self._pool, create=create
                    )
        return self._ready

    async def _refuse_doubtful(self, taking: bool) -> None:
        if taking and not self._held:  # A session is taken by an owner that counts as alive.
            await self._presence.ensure()
        error = self._presence.refuse_when_doubtful()
        if error is not None:
            raise error
        if self._held:
            await self._presence.ensure()

    async def _acquire(self, session_id: str, *, takeover: bool) -> OwnedLine:
        check_id(session_id, "session id")
        await self._begin(create=True)
        await self._presence.ensure()
        line = await self._owning(self._sql.acquire, session_id, takeover)
        if line is None:
            owner = await self._owner_of(session_id)
            if owner is None or owner == self._owner:
                # The statement saw an owner, and this look sees none: trying again will succeed.
                raise StoreUnavailable("the session was released a moment ago", session=session_id)
            await self._presence.ask(owner, session_id)
            raise busy(session_id, owner)
        await unless_cancelled(self, line.lease)
        return line

    async def _acquire_again(self, lease: Lease) -> OwnedLine:
        line: OwnedLine | None = None
        if lease.owner == self._owner:
            await self._begin(create=True)
            await self._presence.ensure()
            line = await self._owning(self._sql.acquire_again, lease.session_id, lease.generation)
        if line is None:
            raise not_again(lease)
        await unless_cancelled(self, line.lease)
        return line

    async def _owning(self, statement: str, session_id: str, argument: int | bool) -> OwnedLine | None:
        """The line that this statement makes ours. Cancellation waits for it; a deadline bounds the statement."""
        scope, within_s = self._scope_of(session_id), self._settings.timeout_s
        remaining_s = anyio.current_effective_deadline() - anyio.current_time()
        if remaining_s > 0:  # Otherwise it is cancelled, which what comes next notices.
            within_s = min(within_s, remaining_s)
        with self._acquiring.include(session_id):
            asked = self._pool.run(statement, session_id, self._owner, argument, within_s=within_s)
            lines = await _uncut(asked)
        if not lines:
            return None
        owned = _owned(session_id, self._owner, lines[0])
        owned.scope = scope
        known = self._held.get(session_id)
        if known is None or known.lease.generation <= owned.lease.generation:  # Answers may overtake each other.
            self._held[session_id] = owned
        return owned

    def _scope_of(self, session_id: str) -> str | None:
        return None if self._commit_hook is None else self._commit_hook.scope_of(session_id)

    def _uses(self, session_id: str) -> bool:
        return session_id in self._held or session_id in self._acquiring

    async def _release_unknown(self, session_id: str) -> None:
        lines = await self._pool.run(self._sql.line, session_id)
        # Whatever acquires it from now on raises the generation.
        # Asked again after the await: a call may have acquired it meanwhile.
        if lines and lines[0][4] == self._owner and not self._uses(session_id):
            generation = cast("int", lines[0][1])
            lease = Lease(session_id=session_id, owner=self._owner, generation=generation)
            await _uncut(self._releases.release(lease))

    async def _owner_of(self, session_id: str) -> str | None:
        lines = await self._pool.run(self._sql.line, session_id)
        return cast("str | None", lines[0][4]) if lines else None

    async def _line(self, session_id: str) -> OwnedLine | None:
        check_id(session_id, "session id")
        if not await self._begin(create=False):
            return None
        lines = await self._pool.run(self._sql.line, session_id)
        return _owned(session_id, "", lines[0]) if lines else None

    async def _read(self, statement: str, *parameters: Parameter, within_s: float | None = None) -> list[ResultLine]:
        """Read rows. A statement that is planned anew locks the one part of the table that it reads; a prepared one
        would lock them all, and wait for a part that is being written anew.
        """
        async with self._pool.connection(within_s) as connection:
            limit_s = self._settings.timeout_s if within_s is None else within_s
            return await connection.run(statement, *parameters, within_s=limit_s, once=True)

    async def _load(
        self, session_id: str, agent_id: str, statement: str, *, whole: bool = False, at: int | None = None
    ) -> Sequence[Row]:
        """Rows up to the one at `at`, or to the last. The session may be deleted between the two reads."""
        for tries in range(_READS_MAX):
            line = await self._line(session_id)
            if line is None or agent_id not in line.agents:
                return []
            last = line.seq_of(agent_id)
            seq = last if at is None else at
            if not 0 < seq <= last:
                return []
            lines = await self._read(statement, line.id, line.agents.index(agent_id) + 1, seq)
            try:
                return _complete(lines, session_id, agent_id, seq, whole=whole)
            except CorruptJournal:
                again = await self._line(session_id)
                # Another id: the session was deleted and begun anew between the two reads. That is no damage.
                if (again is not None and again.id == line.id) or tries == _READS_MAX - 1:
                    raise
        raise AssertionError

    async def _change(
        self, session_id: str, change: Callable[[PostgresConnection, Sequence[ResultLine]], Awaitable[None]]
    ) -> None:
        """Change a session in one transaction, with its lines locked. Errors: `NotFound`, `SessionBusy`."""
        check_id(session_id, "session id")
        there = await self._begin(create=False)
        if not there:
            raise StoreNotFound("no such session", session=session_id)
        with Uncut():
            async with self._pool.connection() as connection:
                try:
                    await self._within(connection, "BEGIN")
                    lines = await self._within(connection, self._sql.lock, session_id, self._owner)
                    # Only lines that were set aside: there is no session of this name any more.
                    if all(line[1] for line in lines):
                        raise StoreNotFound("no such session", session=session_id)
                    for line in lines:
                        if line[3]:
                            raise busy(session_id, cast("str | None", line[2]))
                    await change(connection, lines)
                    await self._within(connection, "COMMIT")
                except (StoreNotFound, SessionBusy):
                    with suppress(RepertoryError):  # The pool then closes the connection.
                        await self._within(connection, "ROLLBACK")
                    raise
                except BaseException:
                    connection.close()
                    raise
        self._held.pop(session_id, None)
        await checkpoint()

    async def _within(self, connection: PostgresConnection, statement: str, *parameters: Parameter) -> list[ResultLine]:
        return await connection.run(statement, *parameters, within_s=self._settings.timeout_s, once=True)

    def _name_aside(self, session: int, number: int) -> str:
        return f"{self.name}, session {session}, set aside as number {number}"


async def _uncut(call: Awaitable[T]) -> T:
    """The result of the call. Cancellation waits for it, and is noticed by the next checkpoint."""
    with Uncut():
        return await call
    raise AssertionError


async def _waited_for(call: Awaitable[T]) -> T:
    """The result of the call. Cancellation waits for it, and is noticed here."""
    result = await _uncut(call)
    await checkpoint()
    return result


def _beginning(session_id: str, rows: Sequence[Row]) -> list[Parameter]:
    """The parameters for a session that begins with these rows. Errors: `LeaseLost` when they begin no journals."""
    check_agents([Batch(lease=Lease(session_id=session_id, owner="", generation=0), rows=rows)])
    agents = list(dict.fromkeys(row.agent_id for row in rows))
    parts = [[row for row in rows if row.agent_id == agent_id] for agent_id in agents]
    for part in parts:
        refusal = refuse_gaps(session_id, part, 0)
        if refusal is not None:
            raise refusal
    times = [at for row in rows if not row.erased and (at := at_of(row.body)) is not None]
    by_column = columns([(0, agents.index(row.agent_id) + 1, row) for row in rows])[1:]
    seqs = int8s([part[-1].seq for part in parts])
    return [seqs, texts(agents), times[0] if times else None, max(times, default=None), *by_column]


def _owned(session_id: str, owner: str, line: ResultLine) -> OwnedLine:
    session, generation, agents, seqs = line[:4]
    before = cast("str | None", line[5]) if len(line) > 5 else None  # Nobody, where a lease is taken back.
    taken_from = before if before != owner else None
    lease = Lease(session_id=session_id, owner=owner, generation=cast("int", generation), taken_from=taken_from)
    return OwnedLine(lease, cast("int", session), cast("list[str]", agents), cast("list[int]", seqs))


def _row(agent_id: str, line: ResultLine) -> Row:
    return Row._make((agent_id, *line))


def _complete(lines: Sequence[ResultLine], session_id: str, agent_id: str, last: int, *, whole: bool) -> list[Row]:
    """The rows up to number `last`, if none is missing. Errors: `CorruptJournal`."""
    rows = [_row(agent_id, line) for line in lines]
    first = 1 if whole else (rows[-1].low if rows else last)
    for seq, row in zip(range(first, last + 1), rows, strict=False):
        if row.seq != seq:
            break
    else:
        if len(rows) == last + 1 - first and first >= 1:
            return rows
    there = {row.seq for row in rows}
    missing = next((seq for seq in range(last, max(0, first - 1), -1) if seq not in there), last)
    raise CorruptJournal("a row is missing", session=session_id, agent=agent_id, seq=missing)


def _info(line: ResultLine) -> SessionInfo:
    name, agents, seqs, created_at, updated_at, owner = line
    found = dict(zip(cast("list[str]", agents), cast("list[int]", seqs), strict=False))
    found.pop("", None)  # Numbers that are free.
    return SessionInfo(
        session_id=str(name),
        agents=found,
        created_at=cast("float | None", created_at) or 0.0,
        updated_at=cast("float | None", updated_at) or cast("float | None", created_at) or 0.0,
        owner=cast("str | None", owner),
        damaged=len(cast("list[str]", agents)) != len(cast("list[int]", seqs)),
    )
