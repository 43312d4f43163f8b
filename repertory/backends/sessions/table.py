"""The table of sessions that every store has, whatever its layout: who may write, and one call at a time.

Only this file decides who may write: by the generation and the owner that a layout has read, and by whether that owner
is alive. A layout reads them, and writes the next ones under its own condition.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled
from msgspec import Struct, field

from repertory.backends.ports import Batch, IdPage, Lease, Position, SessionInfo, SessionStore
from repertory.backends.sessions.requests import side_by_side
from repertory.backends.shields import Uncut
from repertory.backends.worker_threads import run_in_thread
from repertory.core.ids import RESERVED, check_id
from repertory.core.journal.rows import Row
from repertory.core.retry import own_errors
from repertory.errors import Invalid, LeaseLost, RepertoryError, SessionBusy

CommitOutcome: TypeAlias = Position | RepertoryError
E = TypeVar("E")
T = TypeVar("T")

ON_LOOP_BYTES_MAX = 64 * 1024
"""Larger data is packed and read in a thread."""

# Who may write.


class OwnerRow(Protocol):
    """The owner of a session, as a layout has read it."""

    @property
    def generation(self) -> int:
        """The last owner's; it rises with each owner. 0: never owned."""
        ...

    @property
    def owner(self) -> str | None:
        """None when the session was released."""
        ...


def is_current(title: OwnerRow, lease: Lease) -> bool:
    """True if a lease is the current one."""
    return (title.generation, title.owner) == (lease.generation, lease.owner)


def other_owner(title: OwnerRow, owner: str) -> str | None:
    """Another owner than `owner`, which keeps it out if alive; None when there is none."""
    return title.owner if title.owner != owner else None


def lost(lease: Lease) -> LeaseLost:
    """The error for the holder of a lease that is no longer current."""
    return LeaseLost("the session has another owner now", session=lease.session_id, generation=lease.generation)


def busy(session_id: str, owner: str | None) -> SessionBusy:
    """The error for a caller that wants a session of a live owner."""
    return SessionBusy("another live owner has the session", session=session_id, owner=owner)


def refuse_gaps(session_id: str, rows: Sequence[Row], last_seq: int) -> LeaseLost | None:
    """The refusal of an agent's rows that do not directly follow the last one stored, or None."""
    # `LeaseLost`, although there may be no other owner: whoever sends rows that do not follow has lost track of the
    # journal. The persister reads the last row then, whose link proves which of its rows are stored.
    for seq, row in enumerate(rows, last_seq + 1):
        if row.seq != seq:
            return LeaseLost("rows do not follow what is stored", session=session_id, seq=row.seq, stored=last_seq)
    return None


class LeaseLender(Protocol):
    """A store that does what `Lease` says of these methods. They raise nothing."""

    def release_now(self, lease: Lease) -> bool: ...

    def acquire_now(self, lease: Lease) -> bool: ...


class StepLease(Lease, frozen=True, kw_only=True, eq=False):
    """A lease of such a store, or of one that releases none at once."""

    lender: LeaseLender | None

    # Leases are keys of weak dictionaries, where each is equal to itself alone.
    def __ne__(self, other: object) -> bool:  # msgspec's would compare the fields.
        return not self == other

    def release_now(self) -> bool:
        return self.lender is not None and self.lender.release_now(self)

    def acquire_now(self) -> bool:
        return self.lender is not None and self.lender.acquire_now(self)


# What a batch is for.


class AgentPart(NamedTuple):
    """One agent's rows and erasures in a batch."""

    rows: Sequence[Row]
    erase: Sequence[int]


def parts_by_agent(batch: Batch) -> dict[str, AgentPart]:
    """A batch by agent, those with rows first."""
    rows: dict[str, list[Row]] = {}
    for row in batch.rows:
        rows.setdefault(row.agent_id, []).append(row)
    erase: dict[str, list[int]] = {}
    for agent_id, seq in batch.erase:
        erase.setdefault(agent_id, []).append(seq)
    # A dictionary and not a set for the names: it keeps the order, which decides the order of writes.
    return {name: AgentPart(rows.get(name, ()), erase.get(name, ())) for name in {**rows, **erase}}


def position_after(batch: Batch, last_seqs: Mapping[str, int] | Callable[[str], int]) -> Position:
    """The outcome of a batch that is stored."""
    agent_id = batch.rows[-1].agent_id if batch.rows else (batch.erase[-1][0] if batch.erase else "")
    if not agent_id:
        return Position(agent_id="", seq=0)
    seq = last_seqs(agent_id) if callable(last_seqs) else last_seqs.get(agent_id, 0)
    return Position(agent_id=agent_id, seq=seq)


def check_agents(batches: Sequence[Batch]) -> None:
    """Raise `Invalid` for invalid agent ids."""
    for agent_id in {row.agent_id for batch in batches for row in batch.rows}:
        check_id(agent_id, "agent id")


async def append_apart(
    batches: Sequence[Batch],
    locked: Callable[[str], AbstractAsyncContextManager[E]],
    append: Callable[[E, Batch], Awaitable[CommitOutcome]],
) -> list[CommitOutcome]:
    """Append batches of different sessions concurrently, and those of one session one after the other, with `locked`
    held; one outcome per batch, in order. Cancellation waits for all of it.

    Errors: those of `locked`. An error that `append` raises is the outcome of its batch.
    """
    check_agents(batches)
    outcomes: dict[int, CommitOutcome] = {}
    by_session: dict[str, list[int]] = {}
    for index, batch in enumerate(batches):
        by_session.setdefault(batch.lease.session_id, []).append(index)

    async def append_in_order(session_id: str, places: Sequence[int]) -> None:
        # Held for all batches of the session: between two of them, a release must not come in.
        async with locked(session_id) as entry:
            for index in places:
                try:
                    with own_errors(session_id):
                        outcomes[index] = await append(entry, batches[index])
                except RepertoryError as error:
                    outcomes[index] = error

    with Uncut():
        # As many at once as there are sessions: the store below has bounds of its own, and one session must not wait
        # for another.
        calls = [partial(append_in_order, *each) for each in by_session.items()]
        await side_by_side(calls, at_once=max(1, len(calls)))
    # `Uncut` has kept cancellations off. Here one that came meanwhile is raised, when everything is stored.
    await checkpoint()
    return [outcomes[index] for index in range(len(batches))]


async def unless_cancelled(store: SessionStore, lease: Lease) -> Lease:
    """A lease that was acquired just now; it is released again if its caller was cancelled meanwhile."""
    try:
        # The caller would never learn of its lease, and others would find the session held by a process that does not
        # use it.
        await checkpoint_if_cancelled()
    except BaseException:
        with suppress(RepertoryError), Uncut():
            await store.release([lease])
        raise
    return lease


async def in_thread_when_large(size_bytes: int, work: Callable[[], T]) -> T:
    """The result of `work`, which runs in a thread when its data is large, so that the event loop stays free."""
    if size_bytes <= ON_LOOP_BYTES_MAX:
        return work()
    return await run_in_thread(work)


# Listing sessions.


def listed_session(
    session_id: str,
    agents: Mapping[str, int],
    times: Sequence[float],
    stored_at: Iterable[float],
    owner: str | None,
    *,
    damaged: bool,
) -> SessionInfo | None:
    """The line of a session; None for one that holds no records. `times`: when its rows were made. Where none says so,
    `stored_at` counts: when its documents were stored.
    """
    if not agents and not damaged:
        return None
    times = times or [*stored_at]
    return SessionInfo(
        session_id=session_id,
        agents=agents,
        created_at=min(times),
        updated_at=max(times),
        owner=owner,
        damaged=damaged,
    )


def newest_first(infos: Iterable[SessionInfo | None]) -> list[SessionInfo]:
    """The sessions among these, most recently changed first."""
    return sorted((info for info in infos if info is not None), key=lambda info: info.updated_at, reverse=True)


async def page_by_name(
    names: Iterable[str],
    described: Callable[[Sequence[str]], Awaitable[Iterable[SessionInfo]]],
    page: IdPage,
) -> list[SessionInfo]:
    """A page of the listing where folders are named after sessions. `described` reads the lines of some folders;
    only those of the page are read, and those whose names are not the ids.
    """
    named = sorted(names)
    plain = [name for name in named if is_id_of_folder(name) and name > page.after]
    # Only their heads say which ids these are, so they cannot be left out by name. They are few.
    infos = list(await described([name for name in named if not is_id_of_folder(name)]))
    found: list[SessionInfo] = []
    # Folders without records give no line, so one look may give fewer than it was for.
    while plain and len(found) < page.limit:
        chunk, plain = plain[: page.limit - len(found)], plain[page.limit - len(found) :]
        found += await described(chunk)
    return page.of([*infos, *found])


def is_id_of_folder(name: str) -> bool:
    """True for the name of a folder that is the id of its session, or what such a name begins with."""
    return not name.startswith((RESERVED, "%"))


# The sessions that a store knows.


class Held(Protocol):
    @property
    def lease(self) -> Lease: ...


H = TypeVar("H", bound=Held)
J = TypeVar("J")


class AcquiredNow(dict[str, int]):
    """Sessions that a store is acquiring, each with the number of calls that do. Others may ask for them already, since
    the stored lease may name this owner.
    """

    @contextmanager
    def include(self, session_id: str) -> Generator[None]:
        """Count a call that acquires this session."""
        self[session_id] = self.get(session_id, 0) + 1
        try:
            yield
        finally:
            self[session_id] -= 1
            if not self[session_id]:
                del self[session_id]


class SessionEntry(Struct, Generic[H, J]):
    """The knowledge of a store about one session."""

    # Without `fast_acquire`, each uncontended acquire is a checkpoint: one round of the event loop for each commit.
    lock: anyio.Lock = field(default_factory=partial(anyio.Lock, fast_acquire=True))
    users: int = 0
    """Calls that hold the lock or wait for it."""
    held: H | None = None
    journals: dict[str, J] = field(default_factory=lambda: dict[str, J]())
    """The open journals, by agent id."""

    def drop(self) -> None:
        """Forget the lease and the journals."""
        self.held, self.journals = None, {}


class SessionTable(Generic[H, J]):
    """The sessions of a store, each used by one call at a time. For one event loop."""

    def __init__(self, name: Callable[[], str]) -> None:
        """`name` returns the store's name, for the error after `close`."""
        self._name = name
        self._entries: dict[str, SessionEntry[H, J]] = {}
        self._leaving: dict[str, tuple[H, dict[str, J]]] = {}
        """Leases whose release has failed, with their journals."""
        self.closed = False

    def refuse_closed(self) -> None:
        if self.closed:
            raise Invalid("this was closed before", name=self._name())

    @asynccontextmanager
    async def locked(self, session_id: str) -> AsyncGenerator[SessionEntry[H, J]]:
        """The session's entry, locked for this call; dropped when no call needs it any more. Errors: `Invalid`."""
        self.refuse_closed()
        entry = self._entries.get(session_id)
        if entry is None:
            entry = self._entries[session_id] = SessionEntry()
        # Counted before the first await: `in_this_step` must see who waits for the lock, not only who has it.
        entry.users += 1
        try:
            async with entry.lock:
                yield entry
        finally:
            entry.users -= 1
            # A store meets many more sessions than it holds, such as those of a listing.
            if not entry.users and entry.held is None:
                self._entries.pop(session_id, None)

    @contextmanager
    def in_this_step(self, session_id: str) -> Generator[SessionEntry[H, J] | None]:
        """The session's entry, for a block that awaits nothing; None if a call uses it, and when this is closed."""
        entry = self._entries.get(session_id) or SessionEntry()
        # A call between two awaits may be in the middle of anything.
        if self.closed or entry.users:
            yield None
            return
        try:
            yield entry
        finally:
            if entry.held is None:
                self._entries.pop(session_id, None)
            else:
                self._entries[session_id] = entry

    def held(self) -> dict[str, H]:
        """The held leases, by session id."""
        return {name: entry.held for name, entry in self._entries.items() if entry.held is not None}

    async def release(self, lease: Lease, give_up: Callable[[SessionEntry[H, J]], Awaitable[None]]) -> None:
        """Release a session, unless the lease is no longer current. What fails may be tried again. Cancellation waits
        for it.
        """
        with Uncut():
            async with self.locked(lease.session_id) as entry:
                # What could not be given up is no longer held for commits, but its lock and files are still there to be
                # freed.
                leaving = self._leaving.pop(lease.session_id, None)
                if entry.held is None and leaving is not None:
                    entry.held, entry.journals = leaving
                held, journals = entry.held, entry.journals
                if held is not None and held.lease == lease:
                    try:
                        await give_up(entry)
                    except RepertoryError:
                        self._leaving[lease.session_id] = held, journals
                        raise

    async def close(self, give_up: Callable[[SessionEntry[H, J]], Awaitable[None]]) -> bool:
        """Refuse every later call, and release all leases. False if it was closed before. The caller shields it."""
        if self.closed:
            return False
        self.closed = True
        # No entry is added any more, since `closed` is set; none is removed, since held ones stay and others are in
        # use.
        for entry in self._entries.values():
            async with entry.lock:
                if entry.held is not None:
                    await give_up(entry)
        return True
