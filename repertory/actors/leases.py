"""The parts that make sessions durable: a store with its writer, and the leases that agents of one session share.

Not an actor: all users of a lease live in one event loop. A session belongs to a process, not to an agent: two agents
in one session write under one lease, and the last of them releases it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Protocol

import anyio
from msgspec import Struct, field

from repertory.actors.writer import CommitBuffer, CommitBuffers, WriterMessage
from repertory.backends.ports import (
    Batch,
    Lease,
    OwnedRows,
    SessionStore,
    UntilFree,
    by_the_clock,
    give_up,
    release_each,
)
from repertory.core.ids import whereabouts
from repertory.core.retry import StorePatience
from repertory.errors import LeaseLost, RepertoryError, Retryable, SessionBusy, StoreUnavailable
from repertory.logs import ERROR, INFO, note
from repertory.runtime.message import ReplySlot
from repertory.runtime.ref import ActorRef

_LOG = logging.getLogger("repertory.actors")
_YIELDS_S = 1.0
"""Seconds in which an idle owner gives a session up, where nobody can say more."""
# So that one that is given up right behind a look is found soon, and a busy one is not asked all the time: each attempt
# is a transaction, or a request.
_TRIES = 5
"""Attempts to acquire within the time that an idle owner needs to give a session up."""


class Gate(Protocol):
    """The gate that lets turns of sessions begin."""

    limited: bool
    """True if it lets turns wait."""

    async def enter(self, session_id: str, *, inner: bool = False) -> Callable[[bool], None]:
        """Return when a turn may begin; to be followed by a call of the result, with True if the turn did nothing.
        `inner`: a running turn waits for it, so it begins at once. Errors: why none is to begin.
        """
        ...


class SessionCounts(Struct):
    """The counters of a host's sessions since it began."""

    turns: int = 0
    takeovers: int = 0
    """Sessions whose owner before had not given them up."""


class _Session(Struct):
    lock: anyio.Lock | None = None
    """The lock of the session while it has callers; None otherwise."""
    callers: int = 0
    """Tasks that hold the lock or wait for it."""
    lease: Lease | None = None
    users: int = 0
    """Agents that use the lease; 0 with a lease: it was released, and the store is not told yet."""
    doubted: bool = False
    """True if one user has failed, so that the lease may have been lost."""
    release_pending: bool = False
    """True if the store was told of the release and failed: it may name this owner still, and know no lease of it."""
    released: bool = False
    """True with a lease that a commit has given up: the next commit takes the session again."""
    releasing: anyio.Event | None = None
    """The end of a commit that may give the session up, while it is under way."""


class SessionLeases:
    """Acquires each session once, for any number of agents."""

    def __init__(
        self, store: SessionStore, *, busy_s: float, wait_s: float = math.inf, counts: SessionCounts | None = None
    ) -> None:
        """`busy_s`: the most seconds to wait for another process to give a session up; `wait_s`: for the store;
        `counts`: of the host.
        """
        self._store = store
        # Taking back in the same step would use a session whose cipher has gone.
        self._sealed = store.capabilities.sealing is not None  # It forgets a cipher with each release.
        self._busy_s = busy_s
        self._wait_s = wait_s
        self._counts = counts or SessionCounts()
        self._sessions: dict[str, _Session] = {}
        self.by_commit = store.capabilities.acquires_again == "commit"
        """True if commits of this store give sessions up, and take them."""
        self._gathered: dict[str, Lease] | None = None
        """The leases that are released together, by session; None while each is released by itself."""

    async def acquire_again(self, lease: Lease, *, late: bool = False) -> bool:
        """Use the session again under a lease that was released. False if that cannot be, or somebody else has had the
        session since: then nothing has changed. `late`: the next commit may find that out, if the store can do that;
        see `must_take`. Errors: `Unavailable`.
        """
        async with self._locked(lease.session_id) as session:
            if session.lease is not None and session.users:
                # Other agents of this process may have taken it anew, after another owner; what this one knows is then
                # old.
                if session.doubted or session.lease != lease:
                    return False
            elif session.lease is not None:
                return False
            # Nothing is asked: the next commit is conditional on the version that the release wrote, and finds out.
            elif late and self.by_commit:
                session.released = session.doubted = True
            else:
                try:
                    await self._store.acquire(lease.session_id, again=lease)
                except LeaseLost:
                    return False
            session.lease = lease
            session.users += 1
            return True

    def acquire_now(self, lease: Lease) -> bool:
        """`acquire_again` in this step, where nobody else uses the session. False where that cannot be: nothing has
        changed.
        """
        if self._sealed or lease.session_id in self._sessions or not lease.acquire_now():
            return False
        self._sessions[lease.session_id] = _Session(lease=lease, users=1)
        return True

    def must_take(self, lease: Lease) -> bool:
        """True if the next commit under this lease has to take the session."""
        session = self._sessions.get(lease.session_id)
        return session is not None and session.lease == lease and session.released

    def begin_release(self, lease: Lease) -> bool:
        """True if the next commit may give the session up, since the lease has no other user. Nobody joins it then
        until `end_release`.
        """
        session = self._sessions.get(lease.session_id)
        # A caller that waits here would find a session that a commit has given up behind its back.
        if session is None or session.lease != lease or session.users != 1 or session.callers:
            return False
        # A repeated write has the event of its first attempt, for which somebody may wait.
        session.releasing = session.releasing or anyio.Event()
        return True

    def note_commit(self, batch: Batch, *, released: bool) -> None:
        """Note that the store has taken this batch, which gave the session up, or shows that it is owned."""
        session = self._sessions.get(batch.lease.session_id)
        if session is not None and session.lease == batch.lease:
            session.released = session.doubted = released
        self.end_release(batch.lease)

    def end_release(self, lease: Lease) -> None:
        """End the release that `begin_release` began."""
        session = self._sessions.get(lease.session_id)
        if session is not None and session.releasing is not None:
            session.releasing.set()
            session.releasing = None

    async def acquire_and_load(
        self,
        session_id: str,
        agent_id: str,
        *,
        takeover: bool,
        patience: StorePatience | None = None,
        by: float,
        joins: bool = False,
    ) -> OwnedRows:
        """The session's lease, with one more user, and the rows from which the agent is opened: in one call of the
        store, unless the lease is held already.

        If another process owns the session, it is asked to give it up; this waits for `patience.busy_s` (without
        `patience`: the default) and no longer than until `by`, on the event loop's clock. `joins`: for work of an agent
        that has the session already. Errors: as `SessionStore.acquire`; `SessionBusy` names the owner; `LeaseLost` for
        one that joins, when the session is not held any more.
        """
        async with self._locked(session_id) as session:
            busy_s, wait_s = self._busy_s, self._wait_s
            if patience is not None:
                busy_s, wait_s = patience.busy_s, patience.wait_s
            # Asked, and not taken anew: a new generation would fence this process's other agents of the session.
            if session.doubted and session.lease is not None:
                async with _answering(wait_s):
                    is_current = await self._is_current(session.lease, take=session.released)
                if not is_current:
                    session.lease, session.users = None, 0
            # Behind the question: if it fails, the doubt stays.
            session.doubted = session.released = False
            # A lease without users was given up, but the store has not heard it: acquiring again is the way to know.
            if session.lease is None or not session.users:
                if joins:
                    # It was taken over or erased, and whoever has asked for the work does not know yet.
                    raise LeaseLost("the session has another owner now", session=session_id)
                owned = await self._acquire(session_id, agent_id, busy_s, wait_s, by, takeover=takeover)
                session.lease, session.release_pending = owned.lease, False
                if owned.lease.taken_from is not None:
                    self._counts.takeovers += 1
                    note(_LOG, INFO, "a session was taken over", session=session_id, owner=owned.lease.taken_from)
            else:
                async with _answering(wait_s):
                    # One more agent in a session that is owned: the lease is shared, only its rows are read.
                    owned = OwnedRows(session.lease, await self._store.load(session_id, agent_id))
            session.users += 1
            return owned

    async def release(self, lease: Lease) -> None:
        """Remove one user, even if cancelled; the last one gives the session up. Errors: `Unavailable`: the session is
        then given up by `finish_releases`, or when the store is closed.
        """
        session = self._sessions.get(lease.session_id)
        if session is not None and session.lease == lease:
            session.users -= 1
            # Counted down before anything is awaited: a cancelled release is finished later, and never doubled.
            if not session.users:  # Otherwise it would wait behind all agents of the session that are just opened.
                await self.finish_releases(lease.session_id)

    def release_now(self, lease: Lease) -> bool:
        """`release` in this step, where nobody else uses the session. False where it cannot be: nothing has changed."""
        session = self._sessions.get(lease.session_id)
        alone = session is not None and session.lease == lease and session.users == 1 and not session.callers
        if self._sealed or not alone or not lease.release_now():
            return False
        del self._sessions[lease.session_id]
        return True

    def gather(self) -> None:
        """Have `release_with_others` collect leases from now on, until `release_gathered`."""
        if self._gathered is None:
            self._gathered = {}

    def release_with_others(self, lease: Lease) -> bool:
        """`release`, by the next `release_gathered`. False if none is to come; nothing has changed then. Nothing may be
        written under the lease from now on.
        """
        if self._gathered is None:
            return False
        session = self._sessions.get(lease.session_id)
        if session is not None and session.lease == lease:
            session.users -= 1
            if not session.users and not session.released:
                self._gathered[lease.session_id] = lease
        return True

    async def release_gathered(self) -> None:
        """Tell the store of these releases, in one call. Those that fail are due, as after `release`, and logged; the
        closing of the store makes up for them.
        """
        gathered, self._gathered = self._gathered or {}, None
        # One lock stands in for those of ten thousand sessions, none of which has a caller now.
        together = anyio.Lock(fast_acquire=True)
        async with together:
            held: dict[str, _Session] = {}
            for session_id, lease in gathered.items():
                session = self._sessions.get(session_id)
                # Whoever calls for it already releases it, or has given it to another user.
                if session is not None and not session.callers and not session.users and session.lease == lease:
                    # As `_locked` does it: who calls for one of these sessions waits until it is released.
                    session.lock, session.callers, session.release_pending = together, 1, True
                    held[session_id] = session
            try:
                await self._release_all(held.values())
            finally:
                for session_id, session in held.items():
                    self._let_go(session_id, session)

    async def _release_all(self, sessions: Collection[_Session]) -> None:
        leases = [session.lease for session in sessions if session.lease is not None]
        # One call for all: 10,000 releases, each by itself, did not fit into the commit phase of a drain.
        outcomes = await self._release_at_store(leases) if leases else ()
        failed = [error for error in outcomes if error is not None]
        for session, error in zip(sessions, outcomes, strict=True):
            if error is None:
                session.lease, session.release_pending = None, False
        if failed:
            note(_LOG, ERROR, "sessions could not be released", failed[0], sessions=len(failed))

    async def _release_at_store(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        """The error of each release, or None. If one makes the call fail, each is tried alone."""
        try:
            return await self._store.release(leases)
        except RepertoryError as error:
            if isinstance(error, Retryable):
                return [error] * len(leases)
        return await release_each(partial(give_up, self._store), leases)

    async def finish_releases(self, session_id: str) -> None:
        """Tell the store of a release that it could not be told before. Errors: `Unavailable`."""
        async with self._locked(session_id) as session:
            if session.lease is None or session.users:
                return
            with suppress(SessionBusy):  # Somebody else owns it, who has taken it over.
                # The store may have forgotten the lease when the release began, while its head still names us as the
                # owner: acquired again, it can be released.
                if session.release_pending:
                    session.lease, _ = await self._store.acquire(session_id)
                # Before the await, so that a release that is cut off is known to be unfinished.
                session.release_pending = not session.released
                if session.release_pending:
                    await give_up(self._store, session.lease)
            session.lease, session.release_pending, session.released = None, False, False

    async def finish_all_releases(self) -> None:
        """Tell the store of every such release. Those that fail are tried again the next time."""
        for session_id in [name for name, session in self._sessions.items() if session.release_pending]:
            with suppress(RepertoryError):
                await self.finish_releases(session_id)

    def forget(self, lease: Lease) -> None:
        """Remove a user that failed, so that the lease may be lost. The next `acquire` takes a new lease, which fences
        this one. While other agents of this process use the lease, the next `acquire` first asks the store if it is
        still good, so that this process does not fence its own agents.
        """
        session = self._sessions.get(lease.session_id)
        if session is None or session.lease != lease:
            return
        session.users -= 1
        # Others work under the lease, and it may be good; only the store can tell.
        session.doubted = session.users > 0
        if not session.doubted:
            session.lease, session.released = None, False
        self.end_release(lease)

    async def _is_current(self, lease: Lease, *, take: bool) -> bool:
        """Ask the store. Errors: as `SessionStore.append`."""
        # A commit without rows: its condition is the generation, and it changes nothing.
        (outcome,) = await self._store.append([Batch(lease=lease, rows=(), take=take)])
        if isinstance(outcome, RepertoryError) and not isinstance(outcome, LeaseLost):
            raise outcome
        return not isinstance(outcome, LeaseLost)

    async def _acquire(
        self, session_id: str, agent_id: str, busy_s: float, wait_s: float, by: float, *, takeover: bool
    ) -> OwnedRows:
        store = self._store
        sharing = store.capabilities.sharing
        yields_s = _YIELDS_S if sharing is None else sharing.yields_within_s
        waiting = by_the_clock if sharing is None else sharing.waiting
        began = anyio.current_time()
        owned: OwnedRows | None = None
        try:
            # A watch for the session's release (a named pipe) is set up only when it is busy, and held for all further
            # tries.
            async with AsyncExitStack() as stack:
                until_free: UntilFree | None = None
                while owned is None:
                    try:
                        async with _answering(wait_s):
                            owned = await store.acquire(session_id, takeover=takeover, load=agent_id)
                    except SessionBusy as error:
                        now = anyio.current_time()
                        remaining_s = min(began + busy_s, by) - now
                        if remaining_s <= 0:
                            raise _busy(error, session_id, now - began, yields_s) from error
                        # Before the next try and not behind it: a release between the two would not be heard.
                        until_free = until_free or await stack.enter_async_context(waiting(session_id))
                        await until_free(str(error.fields.get("owner")), min(yields_s / _TRIES, remaining_s))
        except BaseException:
            # `move_on_after` and the exit stack await once more with the lease in hand.
            if owned is not None:  # Cancelled behind the end.
                with anyio.CancelScope(shield=True), suppress(RepertoryError):
                    await store.release([owned.lease])
            raise
        return owned

    @asynccontextmanager
    async def _locked(self, session_id: str) -> AsyncGenerator[_Session]:
        session = self._sessions.setdefault(session_id, _Session())
        # Made for the first caller and dropped with the last: an idle session holds no lock, which weighs as much as
        # the rest of it.
        lock = session.lock = session.lock or anyio.Lock(fast_acquire=True)
        session.callers += 1
        try:
            async with lock:
                # Within the lock, so that those who waited go on one by one.
                while session.releasing is not None:
                    await session.releasing.wait()
                yield session
        finally:
            self._let_go(session_id, session)

    def _let_go(self, session_id: str, session: _Session) -> None:
        session.callers -= 1
        if not session.callers:
            session.lock = None
            if session.lease is None:
                self._sessions.pop(session_id, None)


@asynccontextmanager
async def _answering(within_s: float) -> AsyncGenerator[None]:
    """The store answers in time, whatever its own tries would take together. Errors: `StoreUnavailable`."""
    with anyio.move_on_after(within_s) as scope:
        yield
    if scope.cancelled_caught:
        raise StoreUnavailable("the store has not answered in time", waited_s=within_s)


def _busy(error: SessionBusy, session_id: str, waited_s: float, yields_s: float) -> SessionBusy:
    """The error for the caller: who owns the session, and what to do. An idle owner gives it up within `yields_s`."""
    owner = error.fields.get("owner")
    return SessionBusy(
        "another live owner has the session: try again later, or take it over with takeover=True",
        session=session_id,
        owner=owner,
        **whereabouts(owner),
        doing="in a turn, or held open" if waited_s >= yields_s else "not known yet",
        waited_s=round(waited_s, 1),
    )


class PausableLease:
    """The lease under which one agent writes. It may be paused: the session is given up then, but the agent keeps what
    it has read, and goes on with it if nobody has written since.

        none --opened--> held --pause--> paused --resume--> held

    Nothing is written, or waits to be written, while it is paused. A session without a store has no lease.
    """

    __slots__ = ("_buffer", "_leases", "held", "paused", "pausing")

    def __init__(self, leases: SessionLeases | None, buffer: CommitBuffer) -> None:
        self._leases = leases
        self._buffer = buffer
        self.held: Lease | None = None
        """The lease, which its agent sets when it opens the session; None while it has none, or is paused."""
        self.paused: Lease | None = None
        """The lease before the pause; None when not paused."""
        self.pausing: ReplySlot[bool] | None = None
        """The asker of a pause that waits until everything is stored."""

    def change_now(self, *, pause: bool) -> bool:
        """Pause or resume in this step; True also where nothing is to be done. False if that has to wait for the store:
        nothing has changed then.
        """
        leases, held, paused, buffer = self._leases, self.held, self.paused, self._buffer
        # Under a lease that is given up nothing may be written, and nothing may be on its way.
        if self.pausing is not None or buffer.waits or buffer.error is not None:
            return False
        if leases is None or pause == (held is None):
            return True
        if pause and held is not None and leases.release_now(held):
            self.held, self.paused = None, held
            return True
        if not pause and paused is not None and leases.acquire_now(paused):
            self.held, self.paused = paused, None
            # Taking the lease back has just confirmed it, so the turn that follows need not ask the store again.
            buffer.resumed_at = anyio.current_time()
            return True
        return False

    async def end_pause(self, *, stored: bool) -> None:
        """Give the session up if everything is stored, and answer the asker: True if no lease is held any more."""
        asker, self.pausing, lease = self.pausing, None, self.held
        if stored and lease is not None and self._leases is not None:
            # Before the await: whoever is cancelled in it must not find a lease that is half given up.
            self.held, self.paused = None, lease
            try:
                await self._leases.release(lease)
            except Retryable:  # The host tries again (`finish_all_releases`).
                pass
            except RepertoryError as error:  # The session ends, and its store with it.
                note(_LOG, ERROR, "a session could not be released", error, session=lease.session_id)
                stored = False
        if asker is not None:
            asker.reply(stored)

    async def resume(self, *, late: bool) -> bool:
        """Hold the lease again. False if another owner may have written since. `late`, errors: see `acquire_again`."""
        if self.pausing is not None:  # Its asker has gone, and the next one is here already.
            await self.end_pause(stored=False)
        leases, paused = self._leases, self.paused
        if leases is None or self.held is not None:
            return True
        if paused is None or not await leases.acquire_again(paused, late=late):
            return False
        self.held, self.paused = paused, None
        self._buffer.takes = leases.by_commit and leases.must_take(paused)
        return True

    def release_with_others(self) -> bool:
        """Give the session up with others, at the end of all. False if none are to be released together."""
        if self._leases is None or self.held is None or not self._leases.release_with_others(self.held):
            return False
        self.held, self.paused = None, self.held
        return True

    def forget(self) -> None:
        """Hold no lease any more: it may be lost."""
        if self._leases is not None and self.held is not None:
            self._leases.forget(self.held)
            self.held = None


class Durable(Struct, frozen=True, kw_only=True):
    """A store, its leases and its writer."""

    store: SessionStore
    leases: SessionLeases
    writer: ActorRef[WriterMessage]
    buffers: CommitBuffers = field(default_factory=CommitBuffers)
    """The commit buffers; their settings say how long callers wait."""
    ends: Callable[[], bool] = lambda: False
    """True if a session is given up when the running call ends: it is nobody else's."""

    def buffer_of(self, session_id: str, agent_id: str, patience: StorePatience | None = None) -> CommitBuffer:
        """The agent's commit buffer; every call gives the same one. `patience`: the agent's own."""
        return self.buffers.of(self.store.name, session_id, agent_id, patience)
