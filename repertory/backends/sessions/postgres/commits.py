"""Group commit: the batches that wait while others are committed become the next group, in one transaction.

A few groups are on their way at once, never two with the same session. What a group may write is decided here from what
is known of its sessions, and proved by the statement itself: it moves a session's line only if generation, owner and
last numbers are those that were expected, and stores rows of moved lines alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, cast
from weakref import WeakKeyDictionary

import anyio
from msgspec import Struct, field
from msgspec.structs import replace

from repertory.backends.ports import Batch, Lease, Position
from repertory.backends.postgres.connection import ResultLine
from repertory.backends.postgres.pool import Pool
from repertory.backends.postgres.values import Encoded, as_parameter, byteas, float8s, int8s, texts
from repertory.backends.sessions.postgres.commit_hook import SessionCommitHook
from repertory.backends.sessions.postgres.pending_work import due_columns
from repertory.backends.sessions.postgres.statements import ALL_NAMES, Statements
from repertory.backends.sessions.table import lost, parts_by_agent, position_after, refuse_gaps
from repertory.core.journal.codec import at_of
from repertory.core.journal.rows import Row
from repertory.core.pending_work import DueTime
from repertory.errors import LeaseLost, RepertoryError, Retryable, StoreUnavailable

GROUPS_AT_ONCE: Final = 3
"""Groups on their way at the same time. More make smaller groups, which cost more in all."""
GROUP_BYTES_MAX: Final = 16 * 1024 * 1024
_TRIES: Final = 3


class OwnedLine(Struct):
    """A session that this store owns, as of its last commit."""

    lease: Lease
    id: int
    agents: list[str]
    seqs: list[int]
    scope: str | None = None
    """The session's name in the tables alongside; None: it has none."""
    unsure: bool = False
    """True if the answer to a commit was lost, so that the line must be read before the next."""

    def seq_of(self, agent_id: str) -> int:
        return self.seqs[self.agents.index(agent_id)] if agent_id in self.agents else 0


class _Part(Struct):
    """The changes of a group to one session."""

    line: OwnedLine
    agents: list[str]
    seqs: list[int]
    rows: list[tuple[int, Row]] = field(default_factory=lambda: list[tuple[int, Row]]())
    """Rows to be stored, each with its agent's number."""
    erase: list[tuple[int, int]] = field(default_factory=lambda: list[tuple[int, int]]())
    """Numbers of agents, and of rows that are stored already."""
    gone: list[int] = field(default_factory=list[int])
    """Numbers of agents whose rows are removed."""
    dues: dict[str, DueTime] = field(default_factory=lambda: dict[str, DueTime]())
    """The pending work from now on, by agent."""
    takes: bool = False
    """True if the session is taken again, which was given up."""
    leaves: bool = False
    """True if it is given up."""
    indexes: list[int] = field(default_factory=lambda: list[int]())
    """The indexes of the session's batches in the group."""

    def seq_of(self, agent_id: str) -> int:
        return self.seqs[self.agents.index(agent_id)] if agent_id in self.agents else 0

    def add(self, batch: Batch) -> LeaseLost | None:
        """Take a batch in, or the reason why it is refused whole."""
        by_agent = {agent_id: part.rows for agent_id, part in parts_by_agent(batch).items() if part.rows}
        for agent_id, rows in by_agent.items():
            refusal = refuse_gaps(self.line.lease.session_id, rows, self.seq_of(agent_id))
            if refusal is not None:
                return refusal
        for agent_id, rows in by_agent.items():
            if agent_id not in self.agents:
                self._add_agent(agent_id)
            number = self.agents.index(agent_id)
            self.seqs[number] = rows[-1].seq
            self.rows += [(number + 1, row) for row in rows]
        for agent_id, seq in batch.erase:
            if 0 < seq <= self.seq_of(agent_id):
                self._erase(self.agents.index(agent_id) + 1, seq)
        for agent_id in batch.forget:
            self._forget(agent_id)
        if batch.due is not None:
            self.dues[batch.due.agent_id] = batch.due
        self.leaves = batch.release
        return None

    @property
    def apart(self) -> bool:
        """True if it takes a statement that gives no session up, and takes none."""
        return bool(self.erase or self.dues or self.gone)

    @property
    def names(self) -> str:
        """The names of its agents as a statement takes them: those that are new, or with a mark all of them."""
        count = len(self.line.agents)
        if self.agents[:count] == self.line.agents:
            return _text_array(self.agents[count:])
        return f"{ALL_NAMES}{_text_array(self.agents)}"

    def _add_agent(self, agent_id: str) -> None:
        """Give a new agent a number: one that was free before this group, or the next one."""
        free = (index for index, name in enumerate(self.line.agents) if not name and not self.agents[index])
        number = next(free, len(self.agents))
        self.agents[number:] = [agent_id, *self.agents[number + 1 :]]
        self.seqs[number:] = [0, *self.seqs[number + 1 :]]

    def _forget(self, agent_id: str) -> None:
        """Take an agent's journal away. Its number stays free for another one, since rows of the others have theirs."""
        if agent_id not in self.agents:
            return
        number = self.agents.index(agent_id)
        self.agents[number], self.seqs[number] = "", 0
        self.rows = [(agent, row) for agent, row in self.rows if agent != number + 1]
        self.gone.append(number + 1)
        self.dues[agent_id] = DueTime(agent_id=agent_id)

    def _erase(self, agent: int, seq: int) -> None:
        for index, (number, row) in enumerate(self.rows):
            if (number, row.seq) == (agent, seq):
                self.rows[index] = (number, row.without_content())
                return
        self.erase.append((agent, seq))


class _Waiting(Struct, eq=False):
    """A call that waits for its batches."""

    batches: Sequence[Batch]
    changed: anyio.Event = field(default_factory=anyio.Event)
    outcomes: list[Position | LeaseLost] | None = None
    error: RepertoryError | None = None

    @property
    def sessions(self) -> set[str]:
        return {batch.lease.session_id for batch in self.batches}

    @property
    def size_bytes(self) -> int:
        return sum(len(row.body) for batch in self.batches for row in batch.rows)


class Commits:
    """The commits of one store. For one event loop."""

    def __init__(
        self,
        pool: Pool,
        statements: Statements,
        held: dict[str, OwnedLine],
        refusal: Callable[[bool], Awaitable[None]],
        erased: Callable[[], None],
        freed: Callable[[list[str]], Awaitable[None]],
        commit_hook: SessionCommitHook | None = None,
    ) -> None:
        """`refusal` raises the reason for which nothing may be written now, to sessions that are held or (with True)
        are taken; `erased` is called when contents were destroyed, `freed` with sessions that were given up.
        """
        self._pool = pool
        self._statements = statements
        self._held = held
        self._released: WeakKeyDictionary[Lease, OwnedLine] = WeakKeyDictionary()
        """Sessions that were given up, each for as long as somebody keeps its lease."""
        self._refusal = refusal
        self._erased = erased
        self._freed = freed
        self._commit_hook = commit_hook
        self._waiting: list[_Waiting] = []
        self._under_way: set[str] = set()
        self._groups = 0

    async def append(self, batches: Sequence[Batch]) -> list[Position | LeaseLost]:
        """One outcome per batch, in order. The caller shields it. Errors: those of the database."""
        mine = _Waiting(batches)
        self._waiting.append(mine)
        try:
            # Whoever waits may become the leader of the next group: no task of its own is needed, and none is woken in
            # vain.
            while mine.outcomes is None and mine.error is None:
                group = self._next_group(mine)
                if group:
                    await self._commit(group)
                else:
                    await mine.changed.wait()
                    mine.changed = anyio.Event()
        finally:
            # Cancelled while it waited: nothing of it was sent, and the others must not send it.
            if mine in self._waiting:
                self._waiting.remove(mine)
                self._wake()
        if mine.error is not None:
            raise mine.error
        assert mine.outcomes is not None
        return mine.outcomes

    def _next_group(self, leader: _Waiting) -> list[_Waiting]:
        """The commits that may go together now, in the order in which they came, if the leader is among them."""
        if self._groups >= GROUPS_AT_ONCE:
            return []
        group: list[_Waiting] = []
        size_bytes = 0
        not_now = set(self._under_way)
        for each in self._waiting:
            more_bytes = each.size_bytes
            if each.sessions & not_now or (group and size_bytes + more_bytes > GROUP_BYTES_MAX):
                # Later calls of the same session may not overtake this one.
                not_now |= each.sessions
            else:
                group.append(each)
                size_bytes += more_bytes
        # Another call leads: it comes first in the queue, and was woken as well.
        if leader not in group:
            return []
        self._waiting = [each for each in self._waiting if each not in group]
        return group

    async def _commit(self, group: list[_Waiting]) -> None:
        sessions = set[str]().union(*(each.sessions for each in group))
        self._under_way |= sessions
        self._groups += 1
        error: RepertoryError = StoreUnavailable("the commit was cut off; it is unknown whether it is stored")
        try:
            error = await self._commit_all(group) or error
        finally:
            self._groups -= 1
            self._under_way -= sessions
            for each in group:
                if each.outcomes is None and each.error is None:
                    each.error = error
                each.changed.set()
            self._wake()

    async def _commit_all(self, group: list[_Waiting]) -> RepertoryError | None:
        """Note the outcomes of these calls. The error that they share, if there is one: what would fail again is tried
        call by call, so that the fault of one hinders no other.
        """
        try:
            outcomes = await self._outcomes([batch for each in group for batch in each.batches])
        except RepertoryError as error:
            # An outage would fail each of them alone, too.
            if isinstance(error, Retryable) or len(group) == 1:
                return error
            for each in group:
                each.error = await self._commit_all([each])
            return None
        for each in group:
            each.outcomes, outcomes = outcomes[: len(each.batches)], outcomes[len(each.batches) :]
        return None

    def _wake(self) -> None:
        for each in self._waiting:
            each.changed.set()

    async def _outcomes(self, batches: list[Batch]) -> list[Position | LeaseLost]:
        await self._refusal(any(batch.take for batch in batches))
        outcomes: dict[int, Position | LeaseLost] = {}
        remaining = list(range(len(batches)))
        for _ in range(_TRIES):
            await self._reread({batches[index].lease for index in remaining})
            parts = self._placed(batches, remaining, outcomes)
            if any(part.apart for part in parts):  # The statement for these hands no session over.
                await self._take([part.line for part in parts if part.takes])
            stored = await self._store(parts)
            remaining = list[int]()
            for part in parts:
                if part.line.id in stored:
                    part.line.agents, part.line.seqs = part.agents, part.seqs
                    outcomes |= {index: position_after(batches[index], part.seq_of) for index in part.indexes}
                    last = part.indexes[-1]
                    if self._note_owner(part, batches[last].lease):
                        outcomes[last] = replace(position_after(batches[last], part.seq_of), released=True)
                else:
                    # The line has changed under us, or is another's: read what is there, and decide again.
                    part.line.unsure = True
                    remaining += part.indexes
            if not remaining:
                break
        session_ids = {batches[index].lease.session_id for index in remaining}
        if session_ids:
            raise StoreUnavailable("the sessions are being changed by others", sessions=sorted(session_ids))
        freed = [
            batches[index].lease.session_id
            for index, outcome in outcomes.items()
            if isinstance(outcome, Position) and outcome.released
        ]
        if freed:
            await self._freed(freed)
        return [outcomes[index] for index in range(len(batches))]

    def keep_released(self, lease: Lease, line: OwnedLine) -> None:
        """A session was given up: it may be taken again as this line has it."""
        # The kept value has a lease of its own: one that held its own key would never be collected.
        line.lease = replace(lease)
        self._released[lease] = line

    def _line_of(self, lease: Lease, *, take: bool = True) -> OwnedLine | None:
        line = self._held.get(lease.session_id) or (self._released.get(lease) if take else None)
        return line if line is not None and line.lease == lease else None

    def _note_owner(self, part: _Part, lease: Lease) -> bool:
        """Note the owner of a session whose part is stored. True if it was given up."""
        line, session_id = part.line, lease.session_id
        if part.takes and session_id not in self._held:
            line.lease = lease
            self._held[session_id] = line
            self._released.pop(lease, None)
        if part.leaves and self._held.get(session_id) is line:
            del self._held[session_id]
            self.keep_released(lease, line)
        return part.leaves

    async def _take(self, lines: Sequence[OwnedLine]) -> None:
        """Take these sessions again, which were given up; those that cannot be are not written to."""
        for line in lines:
            lease = line.lease
            await self._pool.run(self._statements.acquire_again, lease.session_id, lease.owner, lease.generation)

    def _placed(
        self, batches: Sequence[Batch], indexes: Iterable[int], outcomes: dict[int, Position | LeaseLost]
    ) -> list[_Part]:
        parts: dict[str, _Part] = {}
        for index in sorted(indexes):
            batch = batches[index]
            line = self._line_of(batch.lease, take=batch.take)
            if line is None:
                outcomes[index] = lost(batch.lease)
                continue
            part = parts.get(batch.lease.session_id)
            if part is None:
                part = parts[batch.lease.session_id] = _Part(line, list(line.agents), list(line.seqs))
                part.takes = self._held.get(batch.lease.session_id) is not line
            refusal = part.add(batch)
            if refusal is not None:
                outcomes[index] = refusal
            else:
                part.indexes.append(index)
        placed = [part for part in parts.values() if part.indexes]
        # The statements that erase or note pending work give no session up; the caller then does that by itself.
        if any(part.apart for part in placed):
            for part in placed:
                part.leaves = False
        return placed

    async def _reread(self, leases: Collection[Lease]) -> None:
        """Read what is stored of these sessions, where that is not known; those that are lost are forgotten."""
        by_lease = {lease: line for lease in leases if (line := self._line_of(lease)) is not None and line.unsure}
        unsure = list(by_lease.values())
        if not unsure:
            return
        found = {line[0]: line for line in await self._pool.run(self._statements.lines, int8s([x.id for x in unsure]))}
        for lease, line in by_lease.items():
            stored = found.get(line.id)
            owner = None if stored is None or stored[1] != lease.generation else (stored[4],)
            taken, held = owner == (lease.owner,), self._held.get(lease.session_id) is line
            if not taken and held:
                del self._held[lease.session_id]
            if not held and owner != (None,):  # Taken by a commit whose answer was lost, or by another owner.
                self._released.pop(lease, None)
                if taken:
                    line.lease = lease
                    self._held.setdefault(lease.session_id, line)
            if stored is not None and (taken or (owner == (None,) and not held)):
                line.agents, line.seqs = cast("list[str]", stored[2]), cast("list[int]", stored[3])
                line.unsure = False

    async def _store(self, parts: Sequence[_Part]) -> set[int]:
        """The ids of the sessions whose parts are stored, or whose leases are proved."""
        if not parts:
            return set()
        try:
            found = await self._run(parts)
        except BaseException:
            # Also for a cancellation: the server may carry the statement out after its connection is closed.
            for part in parts:
                part.line.unsure = True
            raise
        if any(part.erase for part in parts):
            self._erased()
        return {cast("int", line[0]) for line in found}

    async def _run(self, parts: Sequence[_Part]) -> list[ResultLine]:
        owner = parts[0].line.lease.owner
        ids = int8s([part.line.id for part in parts])
        generations = int8s([part.line.lease.generation for part in parts])
        hand = any(part.takes or part.leaves for part in parts)
        hand = hand and not any(part.apart for part in parts)
        if not hand and not any(part.rows or part.apart for part in parts):
            return await self._pool.run(self._statements.prove, owner, ids, generations)
        heads = (
            as_parameter(owner),
            ids,
            generations,
            texts([_int_array(part.line.seqs) for part in parts]),
            texts([_int_array(part.seqs) for part in parts]),
            texts([part.names for part in parts]),
            float8s([None if part.line.seqs else _made_at(part.rows[:1]) for part in parts]),
            float8s([_made_at(part.rows) for part in parts]),
        )
        rows = columns([(part.line.id, agent, row) for part in parts for agent, row in part.rows])
        erase = [(part.line.id, *each) for part in parts for each in part.erase]
        dues = {(part.line.id, agent_id): due for part in parts for agent_id, due in part.dues.items()}
        # One session needs no lock in order, which saves the server a join.
        statement = self._statements.append_one if len(parts) == 1 else self._statements.append_many
        if erase:
            statement = self._statements.append_and_erase
            rows += [*(int8s(column) for column in zip(*erase, strict=True)), *due_columns(dues)]
        elif dues:
            statement = self._statements.append_and_owe
            rows += due_columns(dues)
        elif hand:
            statement = self._statements.append_and_hand
            rows.append(int8s([part.line.id for part in parts if part.takes]))
            rows.append(int8s([part.line.id for part in parts if part.leaves]))
        commit_hook = self._commit_hook
        # One round trip. With tables alongside it is a transaction of several, so that both are stored or none.
        hooked = commit_hook is not None and (erase or any(part.line.scope is not None for part in parts))
        if not hooked and not any(part.gone for part in parts):
            return await self._pool.run(statement, *heads, *rows)
        async with self._pool.transaction() as run:
            found = await run(statement, *heads, *rows)
            # What the statement has refused must not be remembered either.
            moved = [part for part in parts if (part.line.id,) in found]
            for part in moved:
                if part.gone:
                    await run(self._statements.forget_rows, part.line.id, int8s(part.gone))
            if commit_hook is not None and hooked:
                await commit_hook.committed(run, *_for_hook(moved))
        return found


def _for_hook(parts: Sequence[_Part]) -> tuple[list[tuple[str, str, list[Row]]], dict[str, list[tuple[str, int]]]]:
    """The rows that these parts store of sessions with tables alongside, and the rows that they destroy."""
    stored = [
        (part.line.scope, part.line.lease.session_id, [row for _, row in part.rows])
        for part in parts
        if part.line.scope is not None and part.rows
    ]
    erased = {
        part.line.lease.session_id: [(part.agents[agent - 1], seq) for agent, seq in part.erase]
        for part in parts
        if part.erase
    }
    return stored, erased


def columns(rows: Sequence[tuple[int, int, Row]]) -> list[Encoded]:
    """Rows, each with its session and the number of its agent, by column."""
    return [
        int8s([session for session, _, _ in rows]),
        int8s([agent for _, agent, _ in rows]),
        int8s([row.seq for _, _, row in rows]),
        int8s([row.kind for _, _, row in rows]),
        int8s([row.version for _, _, row in rows]),
        int8s([row.low for _, _, row in rows]),
        byteas([row.link for _, _, row in rows]),
        byteas([row.salt for _, _, row in rows]),
        byteas([row.body for _, _, row in rows]),
    ]


def _made_at(rows: Sequence[tuple[int, Row]]) -> float | None:
    """Epoch seconds of the last of these rows; None when not known."""
    return next((at for _, row in reversed(rows) if not row.erased and (at := at_of(row.body)) is not None), None)


def _int_array(values: Sequence[int]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


def _text_array(values: Sequence[str]) -> str:
    # Arrays of arrays must have one length in PostgreSQL, and each session has another number of agents: so they go as
    # texts, which the server casts.
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"
