"""The writer of one session store, which commits the rows of many sessions in groups, and the keeper of its leases.

State: which sessions have a commit under way, where groups need not wait for each other. Fails: never for a store's
error or bug: the sessions concerned get it, and other sessions' writes go on. Pace: the store's. Supervised by the
runtime's root, permanent; started before and stopped after every session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import anyio

from repertory.backends.ports import Batch, Lease, Position, SessionStore
from repertory.core.journal.rows import Row
from repertory.core.outage import own_errors
from repertory.errors import LeaseLost, RepertoryError, Retryable, StoreUnavailable
from repertory.runtime.actor import Actor
from repertory.runtime.message import Ask, Next, carry_on, refuse, reply
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import ChildSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Everything up to `seq` is on stable storage."""

    of: WriteRows
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRefused:
    """The rows of the last `WriteRows` may not be stored. Usual errors: `LeaseLost`, `Unavailable`."""

    of: WriteRows
    error: RepertoryError
    final: bool = False
    """The store failed by a bug, or the writer was stopped: the same write would fail again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRows:
    """Commit these rows of one session. Answered by one `Written` or `WriteRefused` to `reply_to`.

    A session sends its next `WriteRows` after the answer to the last one, so that no row overtakes a refusal.
    """

    lease: Lease
    rows: tuple[Row, ...]
    erase: tuple[tuple[str, int], ...] = ()
    reply_to: ActorRef[Written | WriteRefused]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLast(Ask[int]):
    """Commit the last rows of a session that is stopping; answers with the last durable sequence number.

    It may follow a `WriteRows` that is not answered yet. Errors: as in `WriteRefused`.
    """

    lease: Lease
    rows: tuple[Row, ...]
    erase: tuple[tuple[str, int], ...] = ()


WriterMessage: TypeAlias = "WriteRows | WriteLast"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """Bounds of the writer."""

    group_writes_max: int = 512


class StoreWriter(Actor[WriterMessage]):
    """Commits one group per turn of its mailbox: the writes that wait when a commit ends are the next group.

    Where a store lets sessions write independently, groups run side by side, so a slow request delays its own session
    alone.
    """

    def __init__(self, store: SessionStore, settings: WriterSettings) -> None:
        self._store = store
        self._settings = settings
        self._groups = 0
        self._apart = store.capabilities.maintained
        self._under_way: dict[str, anyio.Event] = {}

    def summary(self) -> object:
        return {"store": self._store.name, "groups": self._groups}

    async def handle(self, message: WriterMessage) -> Next:
        match message:
            case WriteRows():
                queued = self.context.take_queued(self._settings.group_writes_max - 1, WriteRows)
                if self._apart:
                    self._begin([message, *queued])
                else:
                    await self._commit([message, *queued])
                return carry_on()
            case WriteLast(lease=lease, rows=rows, erase=erase):
                return await self._commit_last(Batch(lease=lease, rows=rows, erase=erase))
            case _:
                assert_never(message)

    def _begin(self, group: Sequence[WriteRows]) -> None:
        """Commit a group beside others. A session has at most one write under way, and its last one waits for that."""
        ended = anyio.Event()
        self._under_way |= {write.lease.session_id: ended for write in group}
        self.context.job(self._commit_apart, group, ended, name="commit")

    async def _commit_apart(self, group: Sequence[WriteRows], ended: anyio.Event) -> None:
        try:
            await self._commit(group)
        finally:
            ended.set()
            for write in group:
                if self._under_way.get(write.lease.session_id) is ended:
                    del self._under_way[write.lease.session_id]

    async def _commit_last(self, batch: Batch) -> Next:
        under_way = self._under_way.get(batch.lease.session_id)
        if under_way is not None:
            await under_way.wait()
        try:
            (outcome,) = await self._append([batch])
        except RepertoryError as error:
            return refuse(error)
        return refuse(outcome) if isinstance(outcome, RepertoryError) else reply(outcome.seq)

    async def _commit(self, group: Sequence[WriteRows]) -> None:
        """Answer every write, even if this job is killed, so that no session waits for ever."""
        left = {id(write): write for write in group}
        try:
            for write, outcome in zip(group, await self._outcomes(group), strict=True):
                del left[id(write)]
                if isinstance(outcome, RepertoryError):
                    write.reply_to.tell(WriteRefused(of=write, error=outcome))
                else:
                    write.reply_to.tell(Written(of=write, seq=outcome.seq))
            self._groups += 1
        finally:
            error = StoreUnavailable("the writer was stopped", store=self._store.name)
            for write in left.values():
                write.reply_to.tell(WriteRefused(of=write, error=error, final=True))

    async def _outcomes(self, group: Sequence[WriteRows]) -> Sequence[Position | RepertoryError]:
        """The outcome of each write. If one makes the group fail, each write is tried alone."""
        batches = [Batch(lease=write.lease, rows=write.rows, erase=write.erase) for write in group]
        try:
            return await self._append(batches)
        except RepertoryError as error:
            if isinstance(error, Retryable) or len(batches) == 1:
                return [error] * len(batches)
        outcomes: list[Position | RepertoryError] = []
        for batch in batches:
            try:
                outcomes += await self._append([batch])
            except RepertoryError as error:
                outcomes.append(error)
            if isinstance(outcomes[-1], LeaseLost):  # The group may have stored it; the persister looks.
                msg = "it is unknown if this is stored: other writes of its group failed"
                outcomes[-1] = StoreUnavailable(msg, session=batch.lease.session_id)
        return outcomes

    async def _append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        """Errors: the store's; `Unwritable` for anything else it raises."""
        with own_errors(*sorted({batch.lease.session_id for batch in batches})):
            return await self._store.append(batches)
        raise AssertionError


# The keeper of one session store: renews leases and tidies up, if the store needs maintenance, and looks for sessions
# that other processes ask for.
#
# State: none. Fails: by a bug of the store alone, and is started again. Pace: the store's own. Supervised by the root.

OnGiveUp: TypeAlias = Callable[[str], Awaitable[None]]
"""Gives a session up unless it is in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookForAskers:
    """Look for sessions that other processes ask for."""


class StoreKeeper(Actor[LookForAskers]):
    """Runs the store's background work. `give_up` is called with each session that another process asks for."""

    def __init__(self, store: SessionStore, give_up: OnGiveUp | None) -> None:
        self._store = store
        self._give_up = give_up

    async def on_start(self) -> None:
        capabilities = self._store.capabilities
        if capabilities.maintained:
            self.context.job(self._store.maintain, name="maintain")
        if capabilities.look_every_s is not None and self._give_up is not None:
            self.context.every(capabilities.look_every_s, LookForAskers())

    async def handle(self, message: LookForAskers) -> Next:
        if self._give_up is not None:
            for session_id in await self._asked_for():
                self.context.job(self._give_up, session_id, name="give up")
        return carry_on()

    async def _asked_for(self) -> tuple[str, ...]:
        """The sessions that others ask for; empty if the store cannot be read now (the next look finds them)."""
        try:
            return tuple(await self._store.asked_for())
        except Retryable:
            return ()


def keeper_spec(store: SessionStore, name: str, give_up: OnGiveUp | None = None) -> ChildSpec | None:
    """The child spec of a store's keeper; None for a store that needs none. Without `give_up`, requests are not looked
    for.
    """
    hears = give_up is not None and store.capabilities.look_every_s is not None
    if not hears and not store.capabilities.maintained:
        return None
    return ChildSpec(name=name, factory=lambda: StoreKeeper(store, give_up))
