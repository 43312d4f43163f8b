"""Sessions in anyone's `SnapshotStorage`: each agent's latest snapshot carries its journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from repertory.backends.ports import Lease, Position
from repertory.backends.sessions.object_requests import side_by_side
from repertory.backends.sessions.snapshot_agent_maker import SnapshotMaker
from repertory.backends.sessions.snapshot_agents import SnapshotAgents
from repertory.backends.sessions.snapshot_carried import CarriedJournal, CarriedPlace, Kept, latest_carrying, rows_in
from repertory.backends.sessions.snapshot_run_maker import RunMaker
from repertory.backends.sessions.snapshot_storage import StorageShelf
from repertory.core.ids import check_id
from repertory.core.outage import own_errors
from repertory.core.snapshots.location import RUN_SCOPE, SnapshotLocation
from repertory.errors import Invalid, LeaseLost, RepertoryError

if TYPE_CHECKING:
    from repertory.backends.ports import Batch, SessionInfo
    from repertory.backends.sessions.snapshot_choices import SnapshotChoices
    from repertory.backends.sessions.snapshot_port import SnapshotStorage
    from repertory.core.journal.appender import Entropy
    from repertory.core.journal.rows import Row
    from repertory.core.snapshots.document import ReadSnapshot
    from repertory.core.snapshots.run_snapshot import ReadRun


Carried: TypeAlias = "CarriedJournal[ReadSnapshot] | CarriedJournal[ReadRun]"


class StorageSessionStore:
    """A `SessionStore` over a snapshot storage. For one event loop.

    Every commit saves the latest snapshot of each agent that it is for. Such a storage knows no leases: whoever opens a
    session has it, and an owner meets what another one has saved with its next commit or proof, as `LeaseLost`. Two
    commits of two processes at the same instant are one commit too many: do not share a session between processes.

    Errors of every call: `SessionException` for whatever the storage raises, `SnapshotException` and `CorruptJournal`
    for a latest snapshot that is damaged, `Invalid` for what a storage cannot do, and after `aclose`.
    """

    linger_s = 10.0
    """A commit saves all of the conversation, so records that nobody waits for should gather."""

    def __init__(
        self,
        storage: SnapshotStorage,
        *,
        owner: str,
        wall: Callable[[], float],
        entropy: Entropy,
        choices: SnapshotChoices,
    ) -> None:
        """`owner` must be unique to this object. `wall` gives epoch seconds, `entropy` random bytes. `choices`: for
        agents of whom nothing else is said.
        """
        self._shelf = StorageShelf(storage)
        self._owner = check_id(owner, "owner")
        self._wall = wall
        self._entropy = entropy
        self._generation = 0
        self._leases: dict[str, Lease] = {}
        self._kept: dict[tuple[str, str], Kept] = {}
        self._opening: dict[tuple[str, str], anyio.Lock] = {}
        self._closed = False
        self.snapshots: SnapshotAgents[Carried] = SnapshotAgents(choices)

    @property
    def name(self) -> str:
        """Two stores with the same name hold the same sessions."""
        return f"snapshots:{self._shelf.name}"

    async def acquire(self, session_id: str, *, takeover: bool = False) -> Lease:
        """Become the owner. An earlier lease of this very object is fenced; others are when something is committed."""
        del takeover
        self._check_open()
        check_id(session_id, "session id")
        await checkpoint()
        self._drop(session_id, given_up=False)
        self._generation = max(self._generation + 1, int(self._wall() * 1000))
        lease = Lease(session_id=session_id, owner=self._owner, generation=self._generation)
        self._leases[session_id] = lease
        return lease

    async def release(self, lease: Lease) -> None:
        """Put what is due, then give the session up. A lease that is no longer current is ignored."""
        self._check_open()
        if self._leases.get(lease.session_id) == lease:
            try:
                await self._close(lease.session_id)
            finally:
                self._drop(lease.session_id, given_up=True)

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        """Commit a group, each agent on its own; one outcome per batch, in order. Cancellation waits for it."""
        self._check_open()
        for batch in batches:
            for agent_id in {row.agent_id for row in batch.rows}:
                check_id(agent_id, "agent id")
        by_session: dict[str, list[int]] = {}
        for place, batch in enumerate(batches):
            by_session.setdefault(batch.lease.session_id, []).append(place)
        outcomes: dict[int, Position | RepertoryError] = {}
        with anyio.CancelScope(shield=True):
            await side_by_side(
                [partial(self._append_in_order, batches, places, outcomes) for places in by_session.values()]
            )
            self.snapshots.look()
        return [outcomes[place] for place in range(len(batches))]

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        """Rows in order, from the last row's `low` on, or all of them. The owner takes in what others have written, the
        first time.
        """
        self._check_open()
        check_id(session_id, "session id")
        location = SnapshotLocation.of(session_id, check_id(agent_id, "agent id"))
        lease = self._leases.get(session_id)
        if lease is not None:
            rows = (await self._opened(lease, agent_id)).rows
        else:
            rows = await rows_in(await latest_carrying(self._shelf, location), location)
        return rows[rows[-1].low - 1 :] if rows and not whole else list(rows)

    async def sessions(self, session_id: str | None = None) -> Sequence[SessionInfo]:
        """Always `Invalid`: a storage cannot tell."""
        self._refuse("a snapshot storage cannot tell which sessions it has", session_id)

    async def delete(self, session_id: str) -> None:
        """Always `Invalid`: a storage cannot."""
        check_id(session_id, "session id")
        self._refuse("a snapshot storage cannot remove anything", session_id)

    async def tend(self) -> None:
        """Put numbered snapshots, until cancelled, which is safe at any time."""
        await self.snapshots.run()

    async def aclose(self) -> None:
        """Put what is due, and close. The storage is its owner's to close. Calling it twice is allowed."""
        with anyio.CancelScope(shield=True):
            for session_id in list(self._leases):
                await self._close(session_id)
                self._drop(session_id, given_up=True)
        self._closed = True
        await checkpoint()

    async def list_snapshot_ids(self, session_id: str, agent_id: str) -> list[str]:
        """The ids of an agent's numbered snapshots, oldest first."""
        return await self._shelf.ids(SnapshotLocation.of(session_id, agent_id))

    # Within.

    def _check_open(self) -> None:
        if self._closed:
            raise Invalid("this was closed before", name=self.name)

    def _refuse(self, msg: str, session_id: str | None) -> NoReturn:
        self._check_open()
        raise Invalid(msg, session=session_id)

    async def _close(self, session_id: str) -> None:
        """What cannot be put now is put when the session is opened next."""
        for _, agent in self.snapshots.of(session_id):
            with suppress(RepertoryError):
                await agent.publish()

    def _drop(self, session_id: str, *, given_up: bool) -> None:
        self._leases.pop(session_id, None)
        for agent_id, agent in self.snapshots.of(session_id):
            self._opening.pop((session_id, agent_id), None)
            if given_up:
                self._kept.pop((session_id, agent_id), None)
            else:
                self._kept[session_id, agent_id] = Kept(list(agent.rows), agent.published)
        self.snapshots.drop(session_id, given_up=given_up)

    async def _opened(self, lease: Lease, agent_id: str) -> Carried:
        """The agent or orchestrator, opened when it is not."""
        key = lease.session_id, agent_id
        async with self._opening.setdefault(key, anyio.Lock()):
            agent = self.snapshots.find(*key)
            if agent is None or agent.over:
                place = CarriedPlace(
                    shelf=self._shelf,
                    lease=lease,
                    location=SnapshotLocation.of(lease.session_id, agent_id),
                    wall=self._wall,
                    entropy=self._entropy,
                )
                kept = Kept(list(agent.rows), agent.published) if agent is not None else self._kept.get(key)
                agent = _carried(place, self.snapshots.chosen(*key), kept)
                with anyio.CancelScope(shield=True):
                    await agent.open()
                self.snapshots.add(*key, agent)
            return agent

    async def _append_in_order(
        self, batches: Sequence[Batch], places: Sequence[int], outcomes: dict[int, Position | RepertoryError]
    ) -> None:
        """The batches of one session, each after the one before."""
        for place in places:
            try:
                with own_errors(batches[place].lease.session_id):
                    outcomes[place] = await self._append(batches[place])
            except RepertoryError as error:
                outcomes[place] = error

    async def _append(self, batch: Batch) -> Position | RepertoryError:
        session_id = batch.lease.session_id
        if self._leases.get(session_id) != batch.lease:
            return _lost(batch.lease)
        agents = {row.agent_id: None for row in batch.rows} | {agent_id: None for agent_id, _ in batch.erase}
        if not agents:
            return await self._prove(batch.lease)
        outcome: Position | RepertoryError = Position(agent_id="", seq=0)
        for agent_id in agents:
            agent = await self._opened(batch.lease, agent_id)
            rows = [row for row in batch.rows if row.agent_id == agent_id]
            found = await agent.append(rows, [seq for erased, seq in batch.erase if erased == agent_id])
            if isinstance(found, RepertoryError):
                return found
            last = batch.rows[-1].agent_id if batch.rows else batch.erase[-1][0]
            outcome = found if agent_id == last else outcome
        return outcome

    async def _prove(self, lease: Lease) -> Position | RepertoryError:
        outcome: Position | RepertoryError = Position(agent_id="", seq=0)
        for _, agent in self.snapshots.of(lease.session_id):
            outcome = await agent.append((), ())
            if isinstance(outcome, RepertoryError):
                return outcome
        return outcome


def _carried(place: CarriedPlace, choices: SnapshotChoices, kept: Kept | None) -> Carried:
    if place.location.scope == RUN_SCOPE:
        return CarriedJournal(place, choices, RunMaker(place.location, 0), kept)
    return CarriedJournal(place, choices, SnapshotMaker(place.location, 0, choices.manager), kept)


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost("the session has another owner now", session=lease.session_id, generation=lease.generation)
