"""Sessions in a bucket as the tree of documents that other tools read and write, with a journal beside each tree.

Everything acknowledged is in the journal (`ObjectSessionStore`). The tree is written from it, at the same time as the
commit. A commit that takes a session comes before its documents, since another owner may have the session. Other
programs know no leases: what they did to a tree becomes records when its session is opened, taken back, or proved.
`docs/reference/formats/documented-layout.md` describes the tree.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import anyio

from repertory.backends.ports import (
    Batch,
    IdPage,
    Inspection,
    Lease,
    ObjectInfo,
    ObjectStore,
    OwnedRows,
    Position,
    SessionInfo,
    give_up,
    not_again,
    owned_rows,
    release_each,
)
from repertory.backends.sessions.documents.bucket_trees import BucketTree, BucketTrees
from repertory.backends.sessions.documents.catalog import DocumentCatalog
from repertory.backends.sessions.documents.reading import (
    BESIDE_TREE,
    SESSIONS,
    SessionNames,
    check_folder_owner,
    check_journals,
    id_of_folder,
)
from repertory.backends.sessions.documents.store import RETRY_S, DocumentSessionStore, asks
from repertory.backends.sessions.journal.store import ObjectSessionStore, inspect_sessions, list_sessions
from repertory.backends.sessions.liveness import Liveness
from repertory.backends.sessions.requests import delete_all, side_by_side
from repertory.backends.sessions.table import newest_first, page_by_name, parts_by_agent, refuse_gaps
from repertory.backends.shields import Uncut
from repertory.core.ids import ID_BYTES_MAX, check_id
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.restore import Entropy
from repertory.core.journal.rows import EFFECT_STARTS, RecordKind, Row
from repertory.core.message_tree.agent_state import record_in
from repertory.core.message_tree.documents import tracked, tracking_id_of
from repertory.core.message_tree.intake import ComparedTree
from repertory.core.retry import own_errors
from repertory.errors import CorruptJournal, LeaseLost, NotFound, RepertoryError, StoreNotFound, StoreUnavailable

_log = logging.getLogger("repertory.sessions")
_PROVED_S = 5.0
"""A lease that was proved within this time is the current one, unless another owner takes it over by force."""
_LINGER_S = 0.1
"""The time for which documents that nobody waits for are held back, while the model is asked or tools run."""


class BucketSessionStore(DocumentSessionStore[ObjectSessionStore, BucketTree]):
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
        bytes. `short_names`: see `DocumentCatalog`.
        """
        catalog = DocumentCatalog(objects, short_names=short_names)
        self._trees = BucketTrees(objects, wall, catalog.names)
        super().__init__(journals, self._trees, catalog, wall=wall, entropy=entropy)
        self._objects = objects
        self._names = catalog.names
        # The state of the trees goes out with heads and segments: a put of its own for each commit would double the
        # price.
        journals.make_marks = self._trees.marks
        self._due = anyio.Event()

    @property
    def name(self) -> str:
        return f"messages:{self._objects.name}"

    # Owning.

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        check_id(session_id, "session id")
        if again is not None:
            await self._acquire_again(again)
            return await owned_rows(self, again, load)
        await check_folder_owner(self._objects, self._names(session_id))
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
        unchanged = False
        try:
            unchanged = await _are_unchanged(trees)
        finally:
            if not unchanged:
                with suppress(RepertoryError), Uncut():
                    await give_up(self._journals, lease)
        if not unchanged:
            raise not_again(lease)
        self._own(lease, trees)

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        """Write what is due, then give the sessions up. A lease that is no longer current is ignored."""
        return await release_each(self._release, leases)

    async def _release(self, lease: Lease) -> None:
        trees: dict[str, BucketTree] = {}
        with Uncut():
            if self._leases.get(lease.session_id) == lease:
                await self._write_all(self._trees.behind(lease.session_id))
                trees = self._trees.of(lease.session_id)
            await give_up(self._journals, lease)  # With the marks of its trees.
        if self._leases.get(lease.session_id) == lease:
            self._leave(lease, trees)

    def _leave(self, lease: Lease, trees: dict[str, BucketTree]) -> None:
        self._forget(lease.session_id)
        if trees and not any(tree.is_behind for tree in trees.values()):
            self._released[lease] = trees

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
        # Before the commit and not beside it: a stored prompt cannot be moved behind what others have added.
        if (takes or any(asks(batch) for batch in batches)) and not await _are_unchanged(trees, quick=takes):
            self._released.pop(lease, None)
            text = "another program has added to the session; open it again to take that in"
            return [LeaseLost(text, session=session_id) for _ in batches]
        if not takes:
            # An agent that writes for the first time under this lease. Its tree is compared before anything is added.
            for journal in {row.agent_id for batch in batches for row in batch.rows} - trees.keys():
                await self._opened(lease, journal)
        if takes and session_id in self._leases:  # It was acquired anew meanwhile.
            return [not_again(lease) for _ in batches]
        # An owner that has stood still may have been replaced: it puts no document before its commit proves the lease.
        fresh = not takes and self._journals.owns(lease, _PROVED_S)
        # Nobody waits for documents of the commits before this one, so they go out now, but delay no tool.
        behind = [tree for tree in trees.values() if tree.is_behind]
        writing = behind if fresh and not any(map(_starts_tools, batches)) else []
        beside = _beside(trees, batches) if fresh else []
        followed = [tree for batch in beside for tree in self._follow(trees, batch, committed=False)]
        if takes:
            self._trees.put(session_id, trees)  # The head that takes the session has their marks.
        stored: list[Position | RepertoryError] = []

        async def commit() -> None:
            stored.extend(await self._journals.append(batches))

        try:
            await side_by_side([commit, *(partial(self._write, tree) for tree in dict.fromkeys([*writing, *followed]))])
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
        # A document whose row was refused would be taken in by the next owner as another program's.
        if not all(isinstance(outcome, Position) for outcome in stored[: len(beside)]):
            await self._take_back(followed)
        return await self._committed(batches, stored, trees, behind=len(beside))

    async def _take_back(self, trees: Sequence[BucketTree]) -> None:
        """Remove the documents of rows that are not stored. Their trees are looked at anew."""
        for tree in dict.fromkeys(trees):
            self._trees.of(tree.of[0]).pop(tree.of[1], None)
            await tree.take_back(partial(self._stored_behind, tree.of))

    async def _stored_behind(self, of: tuple[str, str], seq: int) -> Collection[str | None]:
        """The tracking ids of messages that are stored behind that row, by whomever."""
        # A look at one row, before the whole journal is read: mostly nothing is stored behind it.
        some = await self._journals.load_at(*of, seq + 1)
        rows = [row for row in await self._journals.load(*of, whole=True) if row.seq > seq] if some else ()
        records = [(row.link, record_in(row)) for row in rows]
        return {tracking_id_of(tracked(each.message, link)) for link, each in records if isinstance(each, MessageAdded)}

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
        if all(isinstance(outcome, Position) for outcome in stored):
            for journal in {row.agent_id for batch in batches for row in batch.rows}:
                self._trees.unconfirmed.pop((lease.session_id, journal), None)
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
            # Tools and the model must not wait for documents; these go out by `maintain`, or beside the next commit.
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

    # Reading.

    async def _looked(self, session_id: str, agent_id: str, rows: Sequence[Row]) -> tuple[BucketTree, bool]:
        marks = await self._journals.marks(session_id)
        tree = self._trees.tree(session_id, agent_id, marks.get(agent_id))
        return tree, await tree.look(rows)

    async def _compare(self, tree: BucketTree, rows: Sequence[Row]) -> ComparedTree:
        return await tree.take_in(rows, self._wall(), self._entropy)

    async def _open(self, lease: Lease, agent_id: str) -> Sequence[Row]:
        with Uncut():
            if (lease.session_id, agent_id) in self._trees.unconfirmed:
                await self._append_one(Batch(lease=lease, rows=()))  # Another owner may have found these rows stored.
                marks = await self._journals.marks(lease.session_id)
                await self._trees.tree(lease.session_id, agent_id, marks.get(agent_id)).remove_unconfirmed()
            return await super()._open(lease, agent_id)
        raise AssertionError

    async def _append_taken(self, lease: Lease, tree: BucketTree, opened: ComparedTree) -> None:
        """Commit what others did together with the tree's mark, so that it is taken in once. Errors: those of
        `append`.
        """
        trees, journal = self._trees.of(lease.session_id), tree.of[1]
        trees[journal] = tree
        try:
            erase = [(journal, seq) for seq in opened.erase]
            await self._append_one(Batch(lease=lease, rows=opened.made, erase=erase))
        except BaseException:
            del trees[journal]
            raise

    async def _append_one(self, batch: Batch) -> None:
        (outcome,) = await self._journals.append([batch])
        if not isinstance(outcome, Position):
            raise outcome

    async def _follow_from(self, lease: Lease, tree: BucketTree, rows: Sequence[Row]) -> None:
        if tree.strays:
            await self._append_one(Batch(lease=lease, rows=()))  # They are no living owner's.
            await delete_all(self._objects, tree.strays)
        tree.begin(rows)
        if self._leases.get(lease.session_id) == lease:
            self._trees.of(lease.session_id)[tree.of[1]] = tree
        if tree.is_behind:
            self._due.set()

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        """Every session, most recently changed first; or that one alone. Agents that only other programs have written
        have as many records as messages.
        """
        if page is not None:
            return await self._page(page)
        prefix = SESSIONS if session_id is None else self._names(check_id(session_id, "session id")).folder
        return newest_first(await self._described(await self._catalog.listed(prefix)))

    async def _page(self, page: IdPage) -> Sequence[SessionInfo]:
        """One list of what lies below the prefix; then documents of the page alone, and of shortened names."""
        # A shortened name has the id's beginning, but for its last 33 bytes.
        listed = await self._catalog.listed(
            f"{SESSIONS}{page.prefix}".encode()[: ID_BYTES_MAX - 33].decode(errors="ignore")
        )
        folders = {id_of_folder(folder, SESSIONS) or f"%/{folder}": folder for folder in listed}

        async def described(names: Sequence[str]) -> Iterable[SessionInfo]:
            return await self._described({folders[name]: listed[folders[name]] for name in names})

        return await page_by_name(folders, described, page)

    async def _described(self, listed: Mapping[str, Sequence[ObjectInfo]]) -> list[SessionInfo]:
        every = [info for infos in listed.values() for info in infos]
        ours = {keys.folder.split("/")[0]: info for keys, info in (await self._journals.described(every)).items()}
        return await self._catalog.lines(listed, ours)

    async def delete(self, session_id: str) -> None:
        """Erase a session: its tree, then its journal, of which a marker stays. Errors: `NotFound`, `SessionBusy`."""
        names = self._names(check_id(session_id, "session id"))
        with Uncut():
            await check_folder_owner(self._objects, names)
            known, lease = bool(await self.sessions(session_id)), None
            if known:
                with suppress(CorruptJournal):  # Then no owner is left.
                    lease = self._leases.get(session_id) or (await self._journals.acquire(session_id)).lease
                    self._forget(session_id)
            removed = await self._remove(names)
            with suppress(NotFound):
                await self._journals.delete(session_id)
            if lease is not None:
                await give_up(self._journals, lease)
            if not (known or removed):
                raise StoreNotFound("no such session", session=session_id)

    async def _remove(self, names: SessionNames) -> bool:
        """Delete every document, the session's last: other programs see a session until then. True if any was there."""
        ours = f"{names.folder}repertory/"
        keys = [info.key for info in await self._objects.list(names.folder) if not info.key.startswith(ours)]
        await delete_all(self._objects, [key for key in keys if key != names.session])
        if names.session in keys:
            await self._objects.delete(names.session)
        return bool(keys)

    async def inspect(self) -> Inspection:
        """Objects among the sessions that belong to none."""
        found, ours = await super().inspect(), await inspect_sessions(self._objects, BESIDE_TREE)
        return Inspection(strays=[*found.strays, *(key for key in ours.strays if key.split("/")[1:2] == ["repertory"])])

    # The store.

    async def maintain(self) -> None:
        """Maintain the journals, and write trees that are not up to date, until cancelled, which is safe at any
        time.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._journals.maintain)
            while True:
                with anyio.move_on_after(RETRY_S):
                    await self._due.wait()
                    await anyio.sleep(_LINGER_S)  # A turn that ends soon writes them with its own.
                # Anew before writing: what becomes due meanwhile sets the next one.
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


def _beside(trees: Mapping[str, BucketTree], batches: Sequence[Batch]) -> list[Batch]:
    """The first of these batches whose documents may go out at the same time. Of two messages, the second might be all
    that another owner finds, if the commit fails. Only an answer behind the results of tools is known to be none of
    another program's then.
    """
    found: list[Batch] = []
    messages = Counter[str]()
    for batch in batches:
        messages.update(row.agent_id for row in batch.rows if row.kind == RecordKind.MESSAGE)
        if _comes_first(batch) or any(count > 1 + trees[name].waits_for_tools for name, count in messages.items()):
            break
        found.append(batch)
    return found


def _comes_first(batch: Batch) -> bool:
    """True if a batch must be stored before its documents go out. If a commit fails beside them, and its owner ends,
    its messages are taken in as another program's. So what tools run behind comes first, a person's answer, what is
    erased, and what a journal begins with.
    """
    first = any(row.seq == 1 or row.kind == RecordKind.RESUME for row in batch.rows)
    return first or bool(batch.erase) or _starts_tools(batch)


def _starts_tools(batch: Batch) -> bool:
    return any(row.kind in EFFECT_STARTS for row in batch.rows)


async def live_owner_in(objects: ObjectStore, life: Liveness, names: SessionNames) -> str | None:
    """The live owner of a session in a bucket; None without one."""
    keys = BESIDE_TREE.keys_of(names.session_id)
    infos = await list_sessions(objects, life, BESIDE_TREE, await objects.list(f"{keys.folder}/"))
    return infos[keys].owner if keys in infos else None
