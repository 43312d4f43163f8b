"""Sessions as journals on any object store, with the documented tree of snapshots published beside them.

Everything acknowledged is in the journal (`ObjectSessionStore`). The tree is written from it: by `maintain` in the
background, and at the latest when a session is released. Other programs' changes to the tree are taken in when a
session is opened. `docs/reference/formats/snapshot-layout.md` describes the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

import anyio
from msgspec.structs import replace

from repertory.backends.ports import (
    Batch,
    IdPage,
    NotPublished,
    ObjectInfo,
    OwnedRows,
    Position,
    PublishingStore,
    SessionInfo,
    SessionStore,
    StoreCapabilities,
    StoreRepair,
    give_up,
    not_again,
    owned_rows,
    release_each,
)
from repertory.backends.sessions.log.store import LogSessionStore
from repertory.backends.sessions.requests import side_by_side
from repertory.backends.sessions.snapshots.folder_tree import FolderSnapshotTree
from repertory.backends.sessions.snapshots.makers import RunMaker, checked_content, is_of, marked_numbers, rows_for
from repertory.backends.sessions.snapshots.publisher import (
    AgentSnapshots,
    RunSnapshots,
    SnapshotAddress,
    SnapshotAgents,
    WrittenElsewhere,
)
from repertory.backends.sessions.snapshots.tree import SnapshotTree, body_of, session_folder
from repertory.backends.sessions.table import check_agents, is_id_of_folder, newest_first, parts_by_agent
from repertory.backends.shields import Uncut
from repertory.core.ids import check_id
from repertory.core.orchestration.journals import orchestrator_in
from repertory.core.retry import own_errors
from repertory.core.snapshots.intake import replacements
from repertory.core.snapshots.location import RUN_SCOPE, SnapshotLocation
from repertory.errors import Invalid, LeaseLost, NotFound, RepertoryError, StoreNotFound

if TYPE_CHECKING:
    from repertory.backends.ports import Corruption, Lease, ObjectStore
    from repertory.backends.sessions.snapshots.port import SnapshotChoices
    from repertory.core.journal.restore import Entropy
    from repertory.core.journal.rows import Row
    from repertory.core.snapshots.intake import Published


_Agents: TypeAlias = "dict[str, AgentSnapshots | RunSnapshots]"


class SnapshotSessionStore(SessionStore, PublishingStore):
    """A `SessionStore` over a journal and its object store, both of which it closes. For one event loop.

    Errors of every call: those of the journal and of the objects; for the owner, `load` also raises `SnapshotException`
    with the file that cannot be read, and `NotFound` for a missing snapshot to continue from.
    """

    def __init__(
        self,
        journal: SessionStore,
        objects: ObjectStore,
        *,
        wall: Callable[[], float],
        entropy: Entropy,
        choices: SnapshotChoices,
    ) -> None:
        """`wall` gives epoch seconds, `entropy` random bytes. `choices`: the default for agents."""
        self._journal = journal
        self._objects = objects
        self._folder_tree: FolderSnapshotTree | None = None
        """The tree in a folder. There, the thread that has committed rows shows them, and sessions are taken back."""
        if isinstance(journal, LogSessionStore):
            self._folder_tree = FolderSnapshotTree(objects, journal.root)
            journal.projection = self
            journal.lender = None  # Releasing a session here takes more than that.
        self._tree = self._folder_tree or SnapshotTree(objects)
        self._wall = wall
        self._entropy = entropy
        self.snapshots: SnapshotAgents[AgentSnapshots | RunSnapshots, Published] = SnapshotAgents(choices)
        self._following: dict[int, list[tuple[AgentSnapshots, Sequence[Row]]]] = {}
        """The agents that show the rows of a batch as soon as it is committed, by the id of the batch."""
        self._released: WeakKeyDictionary[Lease, _Agents] = WeakKeyDictionary()
        """Agents of released sessions, each for as long as somebody keeps its lease."""

    @property
    def name(self) -> str:
        return f"snapshots:{self._objects.name}"

    @property
    def capabilities(self) -> StoreCapabilities:
        # Other programs' changes have no position in the journal before they are taken in.
        known = self._journal.capabilities
        repair = known.repair
        if repair is not None:
            repair = replace(repair, examine=self.examine, set_aside=partial(self._set_aside, repair))
        again = None if self._folder_tree is None else "call"
        return replace(known, positions=None, repair=repair, acquires_again=again, shares_turns=True)

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        if again is not None:
            await self._acquire_again(again)
            return await owned_rows(self, again, load)
        self.snapshots.drop(session_id, given_up=False)
        lease, _ = await self._journal.acquire(session_id, takeover=takeover)
        self.snapshots.leases[session_id] = lease
        return await owned_rows(self, lease, load)

    async def _acquire_again(self, lease: Lease) -> None:
        """Go on as before if nobody has owned the session since, and no other program has written its snapshots.
        Errors: `LeaseLost`.
        """
        agents, tree = self._released.get(lease), self._folder_tree
        if agents is None or tree is None:
            raise not_again(lease)
        await self._journal.acquire(lease.session_id, again=lease)
        del self._released[lease]
        if not all(agent.is_unchanged(tree) for agent in agents.values()):
            await give_up(self._journal, lease)
            raise not_again(lease)
        self.snapshots.take_back(lease, agents)

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        """Put what is due, then release the sessions. A lease that is no longer current is ignored."""
        return await release_each(self._release, leases)

    async def _release(self, lease: Lease) -> None:
        agents: _Agents = {}
        if self.snapshots.leases.get(lease.session_id) == lease:
            try:
                await self._close(lease.session_id)
                # Only agents that have nothing due may be kept: nobody puts their snapshots while nobody owns the
                # session.
                if self._folder_tree is not None and all(agent.is_settled for agent in self._open_in(lease.session_id)):
                    agents = self.snapshots.leave(lease.session_id)
            finally:
                self.snapshots.drop(lease.session_id, given_up=True)
        await give_up(self._journal, lease)
        if agents:
            self._released[lease] = agents

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        """Commit a group to the journals; one outcome per batch, in order. Snapshots follow in the background.

        Contents to be erased are replaced in the snapshots first. A batch without rows is refused with `LeaseLost` when
        a program without a lease has written the agent's snapshot meanwhile.
        """
        outcomes: dict[int, Position | RepertoryError] = {}
        with Uncut():
            await self._append(batches, outcomes)
        return [outcomes[index] for index in range(len(batches))]

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        """Rows in order, from the last row's `low` on, or all of them. At the owner's first call, other programs'
        changes are taken in.
        """
        check_id(session_id, "session id")
        check_id(agent_id, "agent id")
        lease = self.snapshots.leases.get(session_id)
        if lease is not None:
            await self._opened(lease, agent_id)
            return await self._journal.load(session_id, agent_id, whole=whole)
        rows = list(await self._journal.load(session_id, agent_id, whole=whole))
        return await self._with_what_others_wrote(SnapshotLocation.of(session_id, agent_id), rows)

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        """Every session, most recently changed first; or that one alone. Sessions that only other programs have written
        have agents without records.
        """
        if page is not None and is_id_of_folder(page.prefix):
            ours = await self._journal.sessions(page=page)
            return page.of(self._with_theirs(ours, await self._tree.locations(page.prefix)))
        locations = await self._tree.locations("" if session_id is None else session_folder(session_id))
        infos = newest_first(self._with_theirs(await self._journal.sessions(session_id), locations))
        return infos if page is None else page.of(infos)

    @staticmethod
    def _with_theirs(
        ours: Sequence[SessionInfo], locations: Mapping[SnapshotLocation, ObjectInfo]
    ) -> Iterable[SessionInfo]:
        infos = {info.session_id: info for info in ours}
        theirs: dict[str, dict[str, float]] = {}
        for location, info in locations.items():
            if location.session_id not in infos:
                theirs.setdefault(location.session_id, {})[location.journal] = info.modified_at
        for name, agents in theirs.items():
            infos[name] = SessionInfo(
                session_id=name,
                agents=dict.fromkeys(agents, 0),
                created_at=min(agents.values()),
                updated_at=max(agents.values()),
                owner=None,
            )
        return infos.values()

    async def delete(self, session_id: str) -> None:
        """Erase a session: its journal, then all of its snapshots. Errors: `NotFound`, `SessionBusy`."""
        check_id(session_id, "session id")
        with Uncut():
            there = True
            try:
                # The journal first, since it knows who owns the session: nothing is removed of one that is in use.
                await self._journal.delete(session_id)
            except NotFound:
                there = False
            for each in self._open_in(session_id):
                # A put under way would make the snapshot anew after its removal.
                await each.stop()
            self.snapshots.drop(session_id, given_up=True)
            if not await self._tree.remove(session_id) and not there:
                raise StoreNotFound("no such session", session=session_id)

    async def examine(self, session_id: str) -> Sequence[Corruption]:
        """The damaged snapshots and manifests of a session."""
        locations = await self._locations_in(session_id)
        return [damage for location in locations for damage in await self._tree.damages(location)]

    async def _locations_in(self, session_id: str) -> list[SnapshotLocation]:
        """Every agent and orchestrator with a snapshot or a journal."""
        found = dict.fromkeys(await self._tree.locations(session_folder(check_id(session_id, "session id"))))
        for info in await self._journal.sessions(session_id):
            found |= dict.fromkeys(SnapshotLocation.of(session_id, journal) for journal in info.agents)
        return list(found)

    async def _set_aside(self, repair: StoreRepair, session_id: str, keep: Sequence[Row]) -> str:
        """Move a session's journal aside, and start it again with these rows. Damaged snapshots go to `unreadable/`,
        and are made again from the journal where that has them. The others stay; at the next opening, what they show
        beyond the journal is taken in. Errors: `NotFound`, `SessionBusy`.
        """
        self.snapshots.drop(session_id, given_up=True)
        rebuilt = {row.agent_id for row in keep}
        moved = False
        for location in await self._locations_in(session_id):
            damages = await self._tree.damages(location)
            moved = moved or bool(damages)
            if damages:
                await self._tree.move_aside(location, damages, remake=location.journal in rebuilt)
        try:
            return await repair.set_aside(session_id, keep)
        except NotFound:
            if not moved:
                raise
            return f"{session_folder(session_id)}*/*/snapshots/unreadable/"

    async def maintain(self) -> None:
        """Put snapshots and maintain the journals, until cancelled, which is safe at any time."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._journal.maintain)
            tasks.start_soon(self.snapshots.run)

    async def aclose(self) -> None:
        """Put what is due, then close. Calling it twice is allowed."""
        with Uncut():
            leases = list(self.snapshots.leases)
            # First, so that a call which comes during the closing is refused by the journal, and follows nothing.
            self.snapshots.leases.clear()
            await side_by_side([partial(self._close, session_id) for session_id in leases])
            for session_id in leases:
                self.snapshots.drop(session_id, given_up=True)
            await self._journal.aclose()

    def not_published(self) -> Sequence[NotPublished]:
        return self.snapshots.behind()

    # Within.

    async def list_snapshot_ids(self, session_id: str, agent_id: str) -> list[str]:
        """The ids of an agent's numbered snapshots, oldest first."""
        return await self._tree.ids(SnapshotLocation.of(session_id, agent_id))

    async def document(self, session_id: str, agent_id: str, snapshot_id: str | None) -> Mapping[str, object] | None:
        """An agent's numbered snapshot, or its latest one, as it is stored; None when there is none."""
        location = SnapshotLocation.of(session_id, agent_id)
        found = await (
            self._tree.latest(location) if snapshot_id is None else self._tree.history(location, snapshot_id)
        )
        return None if found is None else found.document

    async def latest(self, session_id: str, journal: str) -> Mapping[str, object] | None:
        """The latest snapshot of an agent, or the run in that of an orchestrator; None when there is none. Errors:
        `SnapshotException` for a damaged one.
        """
        location = SnapshotLocation.of(session_id, journal)
        if location.scope == RUN_SCOPE:
            run = await self._tree.latest_run(location)
            return None if run is None else checked_content(run).document
        found = await self._tree.latest(location)
        if found is not None:
            checked_content(found)
        return None if found is None else found.document

    async def put_latest(self, session_id: str, journal: str, document: Mapping[str, object]) -> None:
        """Replace the latest snapshot, as another program would: its owner takes it in when it opens the session."""
        location = SnapshotLocation.of(session_id, journal)
        run = location.scope == RUN_SCOPE
        found = await (self._tree.latest_run(location) if run else self._tree.latest(location))
        version = None if found is None else found.version
        await self._tree.put_latest(location, await body_of(document, 0), version)

    async def _close(self, session_id: str) -> None:
        await side_by_side([each.close for each in self._open_in(session_id)])

    def _open_in(self, session_id: str) -> list[AgentSnapshots | RunSnapshots]:
        return [agent for _, agent in self.snapshots.of(session_id)]

    async def _opened(self, lease: Lease, agent_id: str) -> AgentSnapshots | RunSnapshots:
        """The snapshots of an agent or orchestrator; opens them if needed."""

        def make(choices: SnapshotChoices, published: Published | None) -> AgentSnapshots | RunSnapshots:
            index = SnapshotAddress(
                journal=self._journal,
                tree=self._tree,
                lease=replace(lease),  # A copy: what is kept for as long as a lease must not keep it.
                location=SnapshotLocation.of(lease.session_id, agent_id),
                wall=self._wall,
                entropy=self._entropy,
            )
            if orchestrator_in(agent_id) is not None:
                return RunSnapshots(index, choices)
            return AgentSnapshots(index, choices, published)

        opened = self.snapshots.find(lease.session_id, agent_id)
        return opened or await self.snapshots.opened(lease.session_id, agent_id, make)

    async def _append(self, batches: Sequence[Batch], outcomes: dict[int, Position | RepertoryError]) -> None:
        batches = [replace(batch, release=False) for batch in batches]  # What is published comes after it.
        before: dict[tuple[int, str], Sequence[Row] | None] = {}
        check_agents(batches)
        prepared = [partial(self._prepare, batch, index, before) for index, batch in enumerate(batches)]
        errors = await side_by_side(prepared)
        outcomes.update({index: error for index, error in enumerate(errors) if error is not None})
        good = [index for index in range(len(batches)) if index not in outcomes]
        refused: dict[int, RepertoryError] = {}

        async def commit() -> None:
            wanted = [batches[index] for index in good]
            try:
                for batch in wanted:
                    self._following[id(batch)] = self._begin_following(batch)
                found = await self._journal.append(wanted)
                outcomes.update(zip(good, found, strict=True))
            finally:
                for index in good:
                    for agent, _ in self._following.pop(id(batches[index]), ()):
                        agent.end_following(committed=isinstance(outcomes.get(index), Position))

        async def look() -> None:
            for index in good:
                error = await self._changed(batches[index])
                if error is not None:
                    refused[index] = error

        proofs = any(not batch.rows and not batch.erase for batch in batches)
        await side_by_side([commit, look] if proofs else [commit])
        for index in good:
            self._follow(batches[index], outcomes[index], index, before)
        self.snapshots.look()
        outcomes.update(refused)

    def _begin_following(self, batch: Batch) -> list[tuple[AgentSnapshots, Sequence[Row]]]:
        following: list[tuple[AgentSnapshots, Sequence[Row]]] = []
        if self._folder_tree is None or batch.erase or self.snapshots.leases.get(batch.lease.session_id) != batch.lease:
            return following
        for agent_id, part in parts_by_agent(batch).items():
            agent = self.snapshots.find(batch.lease.session_id, agent_id)
            if isinstance(agent, AgentSnapshots) and agent.begin_following(part.rows):
                following.append((agent, part.rows))
        return following

    def begin(self, session_id: str) -> None:
        """See `Projection`: a session has no snapshot before its first answer."""

    def committed(self, batch: Batch, window: Callable[[str], Sequence[Row]]) -> None:
        """See `Projection`."""
        del window
        assert self._folder_tree is not None
        for agent, rows in self._following.get(id(batch), ()):
            agent.follow(self._folder_tree, rows)

    async def _prepare(
        self, batch: Batch, index: int, before: dict[tuple[int, str], Sequence[Row] | None]
    ) -> RepertoryError | None:
        """Open the batch's agents, redact the snapshots, and remember the rows before each mark in it.

        Returns the error for which the batch must be refused.
        """
        if self.snapshots.leases.get(batch.lease.session_id) != batch.lease:
            return None
        try:
            with own_errors(batch.lease.session_id):
                for agent_id in {row.agent_id: None for row in batch.rows}:
                    opened = await self._opened(batch.lease, agent_id)
                    if isinstance(opened, AgentSnapshots):
                        rows = [row for row in batch.rows if row.agent_id == agent_id]
                        before[index, agent_id] = await opened.before(rows)
                for agent_id in {agent_id: None for agent_id, _ in batch.erase}:
                    await self._redact(batch, agent_id)
        except RepertoryError as error:
            return error
        return None

    async def _redact(self, batch: Batch, agent_id: str) -> None:
        opened = await self._opened(batch.lease, agent_id)
        if isinstance(opened, RunSnapshots):
            await opened.catch_up()
            return
        opened.reread()
        seqs = {seq for erased_id, seq in batch.erase if erased_id == agent_id}
        rows = await self._journal.load(batch.lease.session_id, agent_id, whole=True)
        erased = [row for row in (*rows, *batch.rows) if row.agent_id == agent_id and row.seq in seqs]
        instead = replacements(erased, [row for row in batch.rows if row.agent_id == agent_id])
        if instead:
            await opened.redact(instead)
        going = marked_numbers(erased) - marked_numbers(row for row in rows if row.seq not in seqs)
        if going:
            await opened.remove(sorted(going))

    def _follow(
        self,
        batch: Batch,
        outcome: Position | RepertoryError,
        index: int,
        before: dict[tuple[int, str], Sequence[Row] | None],
    ) -> None:
        session_id = batch.lease.session_id
        if self.snapshots.leases.get(session_id) != batch.lease:
            return
        if isinstance(outcome, Position):
            for agent_id in {row.agent_id: None for row in batch.rows}:
                rows = [row for row in batch.rows if row.agent_id == agent_id]
                match self.snapshots.find(session_id, agent_id):
                    case AgentSnapshots() as agent:
                        agent.after(before.get((index, agent_id)), rows)
                    case RunSnapshots() as run:
                        run.after(rows)
                    case None:
                        pass

    async def _changed(self, batch: Batch) -> LeaseLost | None:
        """The refusal of a batch that proves a lease, when another program has written a snapshot of its session."""
        if batch.rows or batch.erase or self.snapshots.leases.get(batch.lease.session_id) != batch.lease:
            return None
        for _, agent in self.snapshots.of(batch.lease.session_id):
            try:
                if isinstance(agent, AgentSnapshots):
                    await agent.check_unchanged()
            except WrittenElsewhere as error:
                return error
            except RepertoryError:
                continue  # The journal decides who owns the session; other programs' changes can be taken in later.
        return None

    async def _with_what_others_wrote(self, location: SnapshotLocation, rows: list[Row]) -> list[Row]:
        """The rows for a reader without the lease, as the next owner will have them."""
        if location.scope == RUN_SCOPE:
            run = await self._tree.latest_run(location)
            if run is None or run.snapshot is None or is_of(run.snapshot.position, rows):
                return rows
            return rows + await RunMaker(location, 0).rows_for(rows, run.snapshot, self._entropy, self._wall())
        found = await self._tree.latest(location)
        if found is None or found.snapshot is None or is_of(found.snapshot.position, rows):
            return rows
        with suppress(Invalid):
            rows += await rows_for(location, rows, found.snapshot, self._entropy, self._wall())
        return rows
