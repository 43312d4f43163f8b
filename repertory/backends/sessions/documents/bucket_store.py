"""Sessions in a bucket as the tree of documents that other tools read and write, with a journal beside each tree.

Everything acknowledged is in the journal (`ObjectSessionStore`). The tree is written from it, at the same time as the
commit. A commit that takes a session comes before its documents, since another owner may have the session. Other
programs know no leases: what they did to a tree becomes records when its session is opened, taken back, or proved.
`docs/reference/formats/documented-layout.md` describes the tree.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace as dataclass_replace
from functools import partial
from itertools import takewhile
from weakref import WeakKeyDictionary

import anyio
from msgspec.structs import replace

from repertory.backends.ports import (
    Batch,
    Corruption,
    IdPage,
    Inspection,
    Lease,
    NotPublished,
    ObjectInfo,
    ObjectStore,
    Overwrite,
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
from repertory.backends.sessions.documents.bucket_trees import BucketTree, BucketTrees
from repertory.backends.sessions.documents.reading import (
    BESIDE_TREE,
    SESSIONS,
    AgentNames,
    SessionNames,
    check_journals,
    check_told,
    fault_of,
    id_in_document,
    id_of_folder,
)
from repertory.backends.sessions.journal.store import ObjectSessionStore, inspect_sessions, list_sessions
from repertory.backends.sessions.liveness import Liveness
from repertory.backends.sessions.requests import delete_all, find, side_by_side
from repertory.backends.sessions.table import newest_first, page_by_name, parts_by_agent, refuse_gaps
from repertory.backends.shields import Uncut
from repertory.core.ids import ID_BYTES_MAX, check_id
from repertory.core.journal.restore import Entropy
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.message_tree.opening import needed_of
from repertory.core.orchestration.journals import journal_name
from repertory.core.retry import own_errors
from repertory.errors import CorruptJournal, LeaseLost, NotFound, RepertoryError, StoreNotFound, StoreUnavailable
from repertory.logs import INFO, note

_log = logging.getLogger("repertory.sessions")
_RETRY_S = 5.0
_PROVED_S = 5.0
"""A lease that was proved within this time is the current one, unless another owner takes it over by force."""
_LINGER_S = 0.1
"""The time for which documents that nobody waits for are held back, while the model is asked or tools run."""
_TRIES = 5
"""Readings of a journal and its tree, until no owner has written between the two."""


class BucketSessionStore(SessionStore, PublishingStore):
    """A `SessionStore` in a bucket, over the journals in it, which it closes. For one event loop.

    Errors of every call: those of the journals and of the objects; `Invalid` where a folder belongs to another id.
    """

    def __init__(
        self,
        journals: ObjectSessionStore,
        objects: ObjectStore,
        *,
        wall: Callable[[], float],
        entropy: Entropy,
        short_names: bool = True,
    ) -> None:
        """`journals` has the layout `BESIDE_TREE`, and the same objects. `wall` gives epoch seconds, `entropy` random
        bytes. `short_names`: see `BucketTrees`.
        """
        self._journals = journals
        self._objects = objects
        self._trees = BucketTrees(objects, wall, short_names=short_names)
        self._names = self._trees.names
        journals.make_marks = self._trees.marks
        self._wall = wall
        self._entropy = entropy
        self._leases: dict[str, Lease] = {}
        self._released: WeakKeyDictionary[Lease, dict[str, BucketTree]] = WeakKeyDictionary()
        """The trees of released sessions, each for as long as somebody keeps its lease."""
        self._opening: dict[str, anyio.Lock] = {}
        self._due = anyio.Event()

    @property
    def name(self) -> str:
        return f"messages:{self._objects.name}"

    @property
    def capabilities(self) -> StoreCapabilities:
        # Other programs' changes have no position in the journal before they are taken in.
        known = self._journals.capabilities
        repair = known.repair
        if repair is not None:
            repair = StoreRepair(
                inspect=self.inspect,
                examine=self.examine,
                salvage=repair.salvage,
                set_aside=partial(self._set_aside, repair),
                quarantined=self._quarantined,
            )
        return replace(known, positions=None, repair=repair, others_add="proves", shares_turns=True)

    # Owning.

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        check_id(session_id, "session id")
        if again is not None:
            await self._acquire_again(again)
            return await owned_rows(self, again, load)
        await check_told(self._objects, self._names(session_id))
        self._forget(session_id)
        lease, _ = await self._journals.acquire(session_id, takeover=takeover)
        self._own(lease, {})
        return await owned_rows(self, lease, load)

    def _own(self, lease: Lease, trees: dict[str, BucketTree]) -> None:
        self._leases[lease.session_id] = lease
        self._trees.put(lease.session_id, trees)

    async def _acquire_again(self, lease: Lease) -> None:
        """Go on as before, if nobody has owned the session since, and no other program has written to its trees."""
        trees = self._released.pop(lease, None)
        if trees is None:
            raise not_again(lease)
        await self._journals.acquire(lease.session_id, again=lease)
        try:
            unchanged = await _are_unchanged(trees)
        except BaseException:
            with suppress(RepertoryError), Uncut():
                await give_up(self._journals, lease)
            raise
        if not unchanged:
            await give_up(self._journals, lease)
            raise not_again(lease)
        self._own(lease, trees)

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        """Write what is due, then give the sessions up. A lease that is no longer current is ignored."""
        return await release_each(self._release, leases)

    async def _release(self, lease: Lease) -> None:
        trees: dict[str, BucketTree] = {}
        with Uncut():
            if self._leases.get(lease.session_id) == lease:
                await self._write_all([tree for tree in self._trees.of(lease.session_id).values() if tree.is_behind])
                trees = self._trees.of(lease.session_id)
            await give_up(self._journals, lease)  # With the marks of its trees.
        if self._leases.get(lease.session_id) == lease:
            self._leave(lease, trees)

    def _leave(self, lease: Lease, trees: dict[str, BucketTree]) -> None:
        self._forget(lease.session_id)
        if trees and not any(tree.is_behind for tree in trees.values()):
            self._released[lease] = trees

    def _forget(self, session_id: str) -> dict[str, BucketTree]:
        self._leases.pop(session_id, None)
        return self._trees.drop(session_id)

    # Commits.

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        """Commit a group to the journals, and write its documents; one outcome per batch, in order. Cancellation waits
        for it.

        A batch that takes its session, or has no rows, is refused with `LeaseLost` when a program without a lease has
        written meanwhile. One that erases contents is not acknowledged before they are in no document.
        """
        check_journals(batches)
        groups: dict[str, list[int]] = {}
        outcomes: dict[int, Position | RepertoryError] = {}
        for at, batch in enumerate(batches):
            groups.setdefault(batch.lease.session_id, []).append(at)
        with Uncut():
            await side_by_side([partial(self._append, batches, at, outcomes) for at in groups.values()])
        known = [outcomes[at] for at in range(len(batches))]
        unknown = [outcome for outcome in known if isinstance(outcome, RepertoryError)]
        if len(unknown) == len(known) and unknown and not any(isinstance(error, LeaseLost) for error in unknown):
            raise unknown[0]
        return known

    async def _append(
        self, batches: Sequence[Batch], group: Sequence[int], outcomes: dict[int, Position | RepertoryError]
    ) -> None:
        """Commit the batches of one session."""
        lease = batches[group[0]].lease
        try:
            with own_errors(lease.session_id):
                found = await self._commit([batches[at] for at in group])
        except RepertoryError as error:
            found = [error for _ in group]
        outcomes |= zip(group, found, strict=True)

    async def _commit(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        lease = batches[0].lease
        session_id = lease.session_id
        held = self._leases.get(session_id) == lease
        trees = self._trees.of(session_id) if held else self._released.get(lease)
        takes = not held and trees is not None and any(batch.take for batch in batches)
        if not takes and not held:  # The journals refuse it, with their reasons.
            return await self._journals.append(batches)
        assert trees is not None
        if (takes or any(_asks(batch) for batch in batches)) and not await _are_unchanged(trees, quick=takes):
            self._released.pop(lease, None)
            text = "another program has added to the session; open it again to take that in"
            return [LeaseLost(text, session=session_id) for _ in batches]
        if not takes:
            for journal in {row.agent_id for batch in batches for row in batch.rows} - trees.keys():
                await self._opened(lease, journal)
        if takes and session_id in self._leases:  # It was acquired anew meanwhile.
            return [not_again(lease) for _ in batches]
        # An owner that has stood still may have been replaced: it puts no document before its commit proves the lease.
        fresh = not takes and self._journals.owns(lease, _PROVED_S)
        beside = [*takewhile(lambda batch: fresh and not _comes_first(batch), batches)]
        followed = [tree for batch in beside for tree in self._follow(trees, batch, committed=False)]
        if takes:
            self._trees.put(session_id, trees)  # The head that takes the session has their marks.
        stored: list[Position | RepertoryError] = []

        async def commit() -> None:
            stored.extend(await self._journals.append(batches))

        try:
            await side_by_side([commit, *(partial(self._write, tree) for tree in dict.fromkeys(followed))])
        except BaseException:
            if takes:
                self._trees.drop(session_id)
            await self._take_back(followed)
            raise
        if self._leases.get(session_id, lease) != lease:  # The same.
            return stored
        if not any(isinstance(each, Position) and each.released for each in stored) and not self._journals.owns(lease):
            self._forget(session_id)
            await self._take_back(followed)
            return stored
        if not all(isinstance(outcome, Position) for outcome in stored[: len(beside)]):
            await self._take_back(followed)
        return await self._committed(batches, stored, trees, behind=len(beside))

    async def _take_back(self, trees: Sequence[BucketTree]) -> None:
        """Remove the documents of rows that may not be stored. Their trees are looked at anew."""
        for tree in dict.fromkeys(trees):
            self._trees.of(tree.of[0]).pop(tree.of[1], None)
            await tree.take_back()

    async def _committed(
        self,
        batches: Sequence[Batch],
        stored: Sequence[Position | RepertoryError],
        trees: dict[str, BucketTree],
        behind: int,
    ) -> list[Position | RepertoryError]:
        """Write the documents that come behind their commit, those of the batches from that number on, and note whether
        the commit has given the session up.
        """
        lease, outcomes = batches[0].lease, [*stored]
        self._leases[lease.session_id] = lease
        self._released.pop(lease, None)
        for tree in trees.values():
            tree.confirm()
        for at, batch in enumerate(batches):
            if at < behind or isinstance(outcomes[at], LeaseLost):
                continue
            if isinstance(outcomes[at], RepertoryError):  # Nobody knows whether it is stored.
                for journal in {row.agent_id for row in batch.rows}:
                    trees.pop(journal, None)
                continue
            for journal in {row.agent_id for row in batch.rows} - trees.keys():
                await self._opened(lease, journal)
            followed = self._follow(trees, batch, committed=True)
            if batch.erase or not (batch.take or _starts_tools(batch)):
                await self._write_all(followed)
            if batch.erase and any(tree.is_behind for tree in followed):
                text = "the contents may still be in a document; open the session again"
                outcomes[at] = StoreUnavailable(text, session=lease.session_id)
        if any(batch.release for batch in batches) or not any(batch.take or _starts_tools(batch) for batch in batches):
            # What a branch changes in the agent's document is not known before its commit.
            await self._write_all([tree for tree in trees.values() if tree.is_behind])
        if any(tree.is_behind for tree in trees.values()):
            self._due.set()
        last = outcomes[-1]
        if isinstance(last, Position) and last.released:
            self._leave(lease, trees)
        return outcomes

    @staticmethod
    def _follow(trees: Mapping[str, BucketTree], batch: Batch, *, committed: bool) -> list[BucketTree]:
        """Plan the documents of a batch, unless it does not follow on what is stored. Returns the trees that have
        some.
        """
        parts = [(trees[journal], part) for journal, part in parts_by_agent(batch).items() if journal in trees]
        some = [(tree, part.rows) for tree, part in parts if part.rows]
        if any(refuse_gaps(tree.of[0], rows, tree.last_seq) for tree, rows in some):
            return []
        for tree, rows in some:
            tree.follow(rows, committed=committed)
        return [tree for tree, _ in some]

    async def _write(self, tree: BucketTree) -> None:
        await self._trees.write(tree, partial(self._journals.load, *tree.of))

    async def _write_all(self, trees: Sequence[BucketTree]) -> None:
        await side_by_side([partial(self._write, tree) for tree in trees])

    def not_published(self) -> Sequence[NotPublished]:
        return self._trees.not_written

    # Reading.

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        """Rows in order, from the last row's `low` on, or all of them. At the owner's first call, other programs'
        changes are taken in.
        """
        check_id(agent_id, "agent id")
        lease = self._leases.get(check_id(session_id, "session id"))
        if lease is None:
            return await self._seen(session_id, agent_id, whole=whole)
        await self._opened(lease, agent_id)
        return await self._journals.load(session_id, agent_id, whole=whole)

    async def _opened(self, lease: Lease, agent_id: str) -> None:
        """Follow an agent's journal from now on."""
        session_id = lease.session_id
        lock = self._opening.setdefault(session_id, anyio.Lock())
        async with lock:
            if agent_id not in self._trees.of(session_id):
                with Uncut():
                    await self._open(lease, agent_id)
        if not lock.statistics().tasks_waiting:
            self._opening.pop(session_id, None)

    async def _open(self, lease: Lease, agent_id: str) -> None:
        session_id = lease.session_id
        rows = await self._journals.load(session_id, agent_id)
        marks = await self._journals.marks(session_id)
        tree = self._trees.tree(session_id, agent_id, marks.get(agent_id))
        if await tree.look(rows):
            whole = (
                rows if not rows or rows[0].seq == 1 else await self._journals.load(session_id, agent_id, whole=True)
            )
            opened = await tree.take_in(whole, self._wall(), self._entropy)
            if opened.made or opened.erase:
                erase = [(agent_id, seq) for seq in opened.erase]
                batch = Batch(lease=lease, rows=opened.made, erase=erase)
                await self._take_in(tree, batch)
                note(_log, INFO, "other programs' changes were taken in", file=tree.name, records=len(opened.made))
            rows = await self._journals.load(session_id, agent_id)
        tree.begin(rows)
        if self._leases.get(session_id) == lease:
            self._trees.of(session_id)[agent_id] = tree
        if tree.is_behind:
            self._due.set()

    async def _take_in(self, tree: BucketTree, batch: Batch) -> None:
        """Commit what others did together with the tree's mark, so that it is taken in once. Errors: those of
        `append`.
        """
        trees, journal = self._trees.of(batch.lease.session_id), tree.of[1]
        trees[journal] = tree
        try:
            (outcome,) = await self._journals.append([batch])
            if not isinstance(outcome, Position):
                raise outcome
        except BaseException:
            del trees[journal]
            raise

    async def _seen(self, session_id: str, agent_id: str, *, whole: bool) -> Sequence[Row]:
        """The rows for a reader without the lease, as the next owner will have them."""
        await check_told(self._objects, self._names(session_id))
        rows: Sequence[Row] = ()
        for _ in range(_TRIES):
            rows = await self._journals.load(session_id, agent_id, whole=whole)
            marks = await self._journals.marks(session_id)
            tree = self._trees.tree(session_id, agent_id, marks.get(agent_id))
            if not await tree.look(rows):
                return rows
            before = rows if whole else await self._journals.load(session_id, agent_id, whole=True)
            opened = await tree.take_in(before, self._wall(), self._entropy)
            again = await self._journals.load(session_id, agent_id)
            if not opened.made or (again[-1].seq if again else 0) == (before[-1].seq if before else 0):
                return opened.rows if whole else needed_of(opened.rows)
        # Its owner is at work: the documents are its own, ahead of the rows that were read before them.
        return rows

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        """Every session, most recently changed first; or that one alone. Agents that only other programs have written
        have as many records as messages.
        """
        if page is not None:
            return await self._page(page)
        prefix = SESSIONS if session_id is None else self._names(check_id(session_id, "session id")).folder
        return newest_first(await self._described(await self._listed(prefix)))

    async def _page(self, page: IdPage) -> Sequence[SessionInfo]:
        """One list of what lies below the prefix; then documents of the page alone, and of shortened names."""
        # A shortened name has the id's beginning, but for its last 33 bytes.
        listed = await self._listed(f"{SESSIONS}{page.prefix}".encode()[: ID_BYTES_MAX - 33].decode(errors="ignore"))
        folders = {id_of_folder(folder, SESSIONS) or f"%/{folder}": folder for folder in listed}

        async def described(names: Sequence[str]) -> Iterable[SessionInfo]:
            return await self._described({folders[name]: listed[folders[name]] for name in names})

        return await page_by_name(folders, described, page)

    async def _listed(self, prefix: str) -> dict[str, list[ObjectInfo]]:
        """The objects below the prefix, by the folders of sessions."""
        listed: dict[str, list[ObjectInfo]] = {}
        for info in await self._objects.list(prefix):
            if "/" in info.key:
                listed.setdefault(info.key.split("/")[0], []).append(info)
        return listed

    async def _described(self, listed: Mapping[str, Sequence[ObjectInfo]]) -> list[SessionInfo]:
        every = [info for infos in listed.values() for info in infos]
        ours = {keys.folder.split("/")[0]: info for keys, info in (await self._journals.described(every)).items()}
        found = await side_by_side([partial(self._line, folder, listed[folder], ours.get(folder)) for folder in listed])
        return [info for info in found if info is not None]

    async def _line(self, folder: str, found: Sequence[ObjectInfo], ours: SessionInfo | None) -> SessionInfo | None:
        """The line of a session, with the agents that only other programs have written; None if there is none."""
        agents: dict[str, int] = {} if ours is None else dict(ours.agents)
        times: list[float] = []
        keys = [info.key for info in found]
        for names in SessionNames.journals_in(keys):
            journal = await self._journal_of(names)
            if journal is None or journal in agents:
                continue
            documents = {names.agent, *map(names.key, names.numbers(keys))}
            stored = [info.modified_at for info in found if info.key in documents]
            if stored:
                agents[journal] = len(documents) - 1
                times += stored
        if ours is not None:
            created_at, updated_at = min((ours.created_at, *times)), max((ours.updated_at, *times))
            return dataclass_replace(ours, agents=agents, created_at=created_at, updated_at=updated_at)
        session_id = id_of_folder(folder, SESSIONS)
        if session_id is None:
            session_id = await id_in_document(self._objects, f"{folder}/session.json", "session_id")
        if not agents or session_id is None:
            return None
        return SessionInfo(
            session_id=session_id, agents=agents, created_at=min(times), updated_at=max(times), owner=None
        )

    async def _journal_of(self, names: AgentNames) -> str | None:
        """The journal of an agent or orchestrator; where its folder's name is shortened, its document has the id."""
        if names.journal is not None:
            return names.journal
        found = await id_in_document(self._objects, names.agent, "id" if names.orchestrator else "agent_id")
        return journal_name(found) if names.orchestrator and found is not None else found

    async def delete(self, session_id: str) -> None:
        """Erase a session: its tree, then its journal, of which a marker stays. Errors: `NotFound`, `SessionBusy`."""
        names = self._names(check_id(session_id, "session id"))
        with Uncut():
            await check_told(self._objects, names)
            if not await self.sessions(session_id):
                with suppress(NotFound):
                    await self._journals.delete(session_id)
                if not await self._remove(names):
                    raise StoreNotFound("no such session", session=session_id)
                return
            with suppress(CorruptJournal):  # Then no owner is left.
                lease = self._leases.get(session_id) or (await self._journals.acquire(session_id)).lease
                self._forget(session_id)
                await self._remove(names)
                with suppress(NotFound):
                    await self._journals.delete(session_id)
                await give_up(self._journals, lease)
                return
            await self._remove(names)
            await self._journals.delete(session_id)

    async def _remove(self, names: SessionNames) -> bool:
        """Delete every document, the session's last: other programs see a session until then. True if any was there."""
        ours = f"{names.folder}repertory/"
        keys = [info.key for info in await self._objects.list(names.folder) if not info.key.startswith(ours)]
        await delete_all(self._objects, [key for key in keys if key != names.session])
        if names.session in keys:
            await self._objects.delete(names.session)
        return bool(keys)

    # Damage.

    async def inspect(self) -> Inspection:
        """Objects among the sessions that belong to none."""
        strays: list[str] = []
        for folder, infos in (await self._listed(SESSIONS)).items():
            keys = [info.key for info in infos]
            known = {f"{folder}/session.json"}
            for names in SessionNames.journals_in(keys):
                known |= {names.agent, *map(names.key, names.numbers(keys))}
                known |= {key for key in keys if key.startswith(names.unreadable)}
            strays += [key for key in keys if key not in known and not key.startswith(f"{folder}/repertory/")]
        ours = (await inspect_sessions(self._objects, BESIDE_TREE)).strays
        return Inspection(strays=[*strays, *(key for key in ours if key.split("/")[1:2] == ["repertory"])])

    async def examine(self, session_id: str) -> Sequence[Corruption]:
        """The documents of a session that cannot be read."""
        names = self._names(check_id(session_id, "session id"))
        keys = [info.key for info in await self._objects.list(names.folder)]
        calls: list[Callable[[], Awaitable[Corruption | None]]] = [partial(self._damage_of_session, names)]
        for of in names.journals_in(keys):
            numbers = of.numbers(keys)
            documents = [of.key(number) for number in numbers]
            calls += [partial(self._damage, of, key) for key in (*documents, *({of.agent} & {*keys}))]
        return [damage for damage in await side_by_side(calls) if damage is not None]

    async def _damage(self, names: AgentNames, key: str) -> Corruption | None:
        try:
            fault = fault_of(names, key, (await self._objects.get(key)).body)
        except NotFound:
            return None
        except ValueError as error:
            fault = str(error) or "it is empty"
        return None if fault is None else Corruption(where=key, what=fault)

    async def _damage_of_session(self, names: SessionNames) -> Corruption | None:
        if await id_in_document(self._objects, names.session, "session_id") == names.session_id:
            return None
        return Corruption(where=names.session, what="it is lost, or names another session")

    async def _set_aside(self, repair: StoreRepair, session_id: str, keep: Sequence[Row]) -> str:
        """Move a session's journal aside, and start it again with these rows. Documents that cannot be read are moved
        there, too; what the others say beyond the journal is taken in at the next opening. Errors: `NotFound`,
        `SessionBusy`.
        """
        self._forget(session_id)
        moved_to = await repair.set_aside(session_id, keep)
        folder = self._names(session_id).folder
        for damage in await self.examine(session_id):
            found = await find(self._objects, damage.where)
            if found is not None:
                to = f"{moved_to}/{damage.where.removeprefix(folder)}"
                await self._objects.put(to, found.body, Overwrite())
                await self._objects.delete(damage.where)
        return moved_to

    async def _quarantined(self, session_id: str) -> Sequence[str]:
        """The names of data that was set aside, and the folders with copies of documents that could not be read."""
        repair = self._journals.capabilities.repair
        found = [] if repair is None else [*await repair.quarantined(session_id)]
        keys = [info.key for info in await self._objects.list(self._names(session_id).folder)]
        folders = [names.unreadable for names in SessionNames.journals_in(keys)]
        return [*found, *(folder for folder in folders if any(key.startswith(folder) for key in keys))]

    # The store.

    async def maintain(self) -> None:
        """Maintain the journals, and write trees that are not up to date, until cancelled, which is safe at any
        time.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._journals.maintain)
            while True:
                with anyio.move_on_after(_RETRY_S):
                    await self._due.wait()
                    await anyio.sleep(_LINGER_S)  # A turn that ends soon writes them with its own.
                self._due = anyio.Event()
                with Uncut():
                    await self._write_all(self._trees.behind())

    async def aclose(self) -> None:
        """Write what is due, then close. Calling it twice is allowed."""
        with Uncut():
            await self._write_all(self._trees.behind())
            await self._journals.aclose()
            for session_id in list(self._leases):
                self._forget(session_id)


async def _are_unchanged(trees: Mapping[str, BucketTree], *, quick: bool = False) -> bool:
    return all(await side_by_side([partial(tree.is_unchanged, quick=quick) for tree in trees.values()]))


def _comes_first(batch: Batch) -> bool:
    """True if a batch must be stored before its documents go out. If a commit fails beside them, and its owner ends,
    its messages are taken in as another program's. So what tools run behind comes first, a person's answer, what is
    erased, and what a journal begins with.
    """
    first = any(row.seq == 1 or row.kind == RecordKind.RESUME for row in batch.rows)
    return first or bool(batch.erase) or _starts_tools(batch)


def _starts_tools(batch: Batch) -> bool:
    return any(row.kind == RecordKind.TOOL_STARTED for row in batch.rows)


def _asks(batch: Batch) -> bool:
    """True if the batch proves the lease, or tools run behind it, and another program may have run them."""
    return (not batch.rows and not batch.erase) or any(row.kind == RecordKind.RESUME for row in batch.rows)


async def live_owner_in(objects: ObjectStore, life: Liveness, names: SessionNames) -> str | None:
    """The live owner of a session in a bucket; None without one."""
    keys = BESIDE_TREE.keys_of(names.session_id)
    infos = await list_sessions(objects, life, BESIDE_TREE, await objects.list(f"{keys.folder}/"))
    return infos[keys].owner if keys in infos else None
