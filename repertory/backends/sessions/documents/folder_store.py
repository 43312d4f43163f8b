"""Sessions in a folder as the tree of documents that other tools read and write, with a log beside each tree.

Everything acknowledged is in the log (`LogSessionStore`). The tree is written from it, in the thread of the commit and
without a sync. Other programs know no leases: what they did to a tree becomes records when its session is opened, taken
back, or proved. `docs/reference/formats/documented-layout.md` describes the tree.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio

from repertory.backends.folders import FolderObjects
from repertory.backends.ports import (
    Batch,
    IdPage,
    Lease,
    ObjectStore,
    OwnedRows,
    Position,
    SessionInfo,
    StoreRepair,
    give_up,
    not_again,
    owned_rows,
    release_each,
)
from repertory.backends.sessions.documents.catalog import DocumentCatalog
from repertory.backends.sessions.documents.folder_trees import FolderTree, FolderTrees
from repertory.backends.sessions.documents.reading import (
    SESSIONS,
    SessionNames,
    check_folder_owner,
    check_journals,
    id_of_folder,
)
from repertory.backends.sessions.documents.store import RETRY_S, DocumentSessionStore, asks
from repertory.backends.sessions.liveness import Liveness
from repertory.backends.sessions.log.owner_record import is_locked, read_owner
from repertory.backends.sessions.log.store import LogSessionStore
from repertory.backends.sessions.table import newest_first, page_by_name
from repertory.backends.shields import Uncut
from repertory.backends.worker_threads import run_in_thread
from repertory.core.ids import check_id
from repertory.core.journal.restore import Entropy
from repertory.core.journal.rows import Row
from repertory.core.message_tree.intake import ComparedTree
from repertory.errors import LeaseLost, NotFound, RepertoryError, StoreNotFound, StoreUnavailable

T = TypeVar("T")
_log = logging.getLogger("repertory.sessions")
_FRAME_ROWS = 200


class FolderSessionStore(DocumentSessionStore[LogSessionStore, FolderTree]):
    """A `SessionStore` in a folder, over the logs in it, which it closes. For one event loop.

    Errors of every call: those of the logs; `Invalid` where a folder belongs to another id, or has a link in it.
    """

    def __init__(
        self,
        logs: LogSessionStore,
        objects: ObjectStore,
        files: FolderObjects,
        *,
        wall: Callable[[], float],
        entropy: Entropy,
    ) -> None:
        """`logs` has the layout `BESIDE_TREE`, and the same objects, whose files are `files`. `wall` gives epoch
        seconds, `entropy` random bytes.
        """
        self._trees = FolderTrees(logs.root, files, wall)
        super().__init__(logs, self._trees, DocumentCatalog(objects), wall=wall, entropy=entropy)
        # Leases are lent by this store: giving one up needs its trees to be up to date.
        logs.projection, logs.lender = self._trees, self

    @property
    def name(self) -> str:
        return f"messages:{self._trees.root}"

    # Owning.

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        check_id(session_id, "session id")
        if again is not None:
            if not self.acquire_now(again):
                raise not_again(again)
            return await owned_rows(self, again, load)
        self._forget(session_id)
        lease, _ = await self._journals.acquire(session_id, takeover=takeover)
        self._leases[session_id] = lease
        self._trees.put(session_id, {})
        return await owned_rows(self, lease, load)

    def acquire_now(self, lease: Lease) -> bool:
        """`acquire` with `again`, if no other program has written to the trees of the session."""
        trees = self._released.get(lease)
        if trees is None or not self._journals.acquire_now(lease):
            return False
        del self._released[lease]
        self._leases[lease.session_id] = lease
        # Before the look: if it fails, `_forget` below puts everything back to "not ours".
        self._trees.put(lease.session_id, trees)
        # A tree that cannot be looked at counts as changed, so the session is opened anew.
        with suppress(OSError):
            if all(tree.is_unchanged() for tree in trees.values()):
                return True
        self._forget(lease.session_id)
        self._journals.release_now(lease)
        return False

    def release_now(self, lease: Lease) -> bool:
        """`release` of a session whose trees are up to date."""
        session_id = lease.session_id
        if self._leases.get(session_id) != lease or session_id in self._opening:
            return False
        # Documents that are due would be written by nobody.
        if self._trees.behind(session_id) or not self._journals.release_now(lease):
            return False
        self._released[lease] = self._forget(session_id)
        return True

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        """Write what is due, then give the sessions up. A lease that is no longer current is ignored."""
        return await release_each(self._release, leases)

    async def _release(self, lease: Lease) -> None:
        if self._leases.get(lease.session_id) == lease:
            with Uncut():
                await self._write_behind(lease.session_id)
            if self.release_now(lease):
                return
            self._forget(lease.session_id)
        await give_up(self._journals, lease)

    # Commits.

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        """Commit a group to the logs, and write its documents; one outcome per batch, in order.

        A batch without rows is refused with `LeaseLost` when a program without a lease has written meanwhile. One that
        erases contents is not acknowledged before they are in no document.
        """
        check_journals(batches)
        refused = {at: error for at, batch in enumerate(batches) if (error := self._refusal(batch)) is not None}
        good = [at for at in range(len(batches)) if at not in refused]
        stored = await self._journals.append([batches[at] for at in good]) if good else ()
        outcomes: dict[int, Position | RepertoryError] = {**refused, **dict(zip(good, stored, strict=True))}
        for at in good:
            batch = batches[at]
            # Other documents may lag, but "erased" must not be told while one still has the contents.
            behind = self._trees.behind(batch.lease.session_id) if batch.erase else ()
            if behind and not isinstance(outcomes[at], RepertoryError):
                text = "the contents may still be in a document; open the session again"
                outcomes[at] = StoreUnavailable(text, session=batch.lease.session_id)
        return [outcomes[at] for at in range(len(batches))]

    def _refusal(self, batch: Batch) -> LeaseLost | None:
        """The error for a batch that may not be committed; None for others."""
        session_id = batch.lease.session_id
        # A write of ours that has failed may have been done: what stands there is told apart when it is tried again.
        if not asks(batch) or all(
            tree.is_behind or tree.is_unchanged() for tree in self._trees.of(session_id).values()
        ):
            return None
        text = "another program has added to the session; open it again to take that in"
        return LeaseLost(text, session=session_id)

    async def _write_behind(self, session_id: str | None = None) -> None:
        """Try to write the trees that are not up to date."""
        for tree in self._trees.behind(session_id):
            rows: list[Sequence[Row]] = []
            with suppress(RepertoryError):
                rows.append(await self._journals.load(*tree.of))
            if rows:
                await run_in_thread(partial(self._trees.write, tree, partial(rows.__getitem__, 0)))

    # Reading.

    async def _looked(self, session_id: str, agent_id: str, rows: Sequence[Row]) -> tuple[FolderTree, bool]:
        tree = self._trees.tree(session_id, agent_id)
        return tree, await self._in_thread(partial(tree.look, rows))

    async def _compare(self, tree: FolderTree, rows: Sequence[Row]) -> ComparedTree:
        return await self._in_thread(partial(tree.take_in, rows, self._wall(), self._entropy))

    async def _append_taken(self, lease: Lease, tree: FolderTree, opened: ComparedTree) -> None:
        """Append what others did. A long conversation of theirs is several frames, since a window is read frame by
        frame; what a crash leaves out is taken in again.
        """
        made, size = opened.made, len(opened.made) if opened.erase else _FRAME_ROWS
        parts = [made[at : at + size] for at in range(0, len(made), size)] if made else [made]
        erase = [(tree.of[1], seq) for seq in opened.erase]
        for outcome in await self._journals.append([Batch(lease=lease, rows=part, erase=erase) for part in parts]):
            if not isinstance(outcome, Position):
                raise outcome

    async def _follow_from(self, lease: Lease, tree: FolderTree, rows: Sequence[Row]) -> None:
        with Uncut():
            await run_in_thread(partial(self._trees.open, *tree.of, tree, rows))

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        """Every session, most recently changed first; or that one alone. Agents that only other programs have written
        have as many records as messages.
        """
        if page is not None:
            names = await self._in_thread(partial(self._ids, page.prefix))

            async def described(ids: Sequence[str]) -> Iterable[SessionInfo]:
                return [info for each in ids for info in await self.sessions(each)]

            return await page_by_name(names, described, page)
        prefix = SESSIONS if session_id is None else SessionNames(check_id(session_id, "session id")).folder
        infos = await self._journals.sessions(session_id)
        ours = {SessionNames(info.session_id).folder.removesuffix("/"): info for info in infos}
        return newest_first(await self._catalog.lines(await self._catalog.listed(prefix), ours))

    async def delete(self, session_id: str) -> None:
        """Erase a session: its tree, then its log. Errors: `NotFound`, `SessionBusy`."""
        names = SessionNames(check_id(session_id, "session id"))
        folder = self._trees.root / names.folder
        with Uncut():
            await check_folder_owner(self._catalog.objects, names)
            if not await self._in_thread(folder.is_dir):
                raise StoreNotFound("no such session", session=session_id)
            lease = self._leases.get(session_id)
            if lease is None:
                lease, _ = await self._journals.acquire(session_id)
            self._forget(session_id)
            # Documents first: other programs see them, and a kill before the log goes leaves a session that can be
            # deleted again.
            await self._in_thread(partial(self._remove, folder))
            with suppress(NotFound):
                await self._journals.delete(session_id)
            await give_up(self._journals, lease)
            # What a kill has left in it, and the copies of unreadable documents.
            for path in (folder, self._trees.root / names.aside):
                await self._in_thread(partial(shutil.rmtree, path, ignore_errors=True))

    @staticmethod
    def _remove(folder: Path) -> None:
        """Remove everything in a session's folder but its log, the session's document last."""
        # The session's document last: until it is gone, other programs see a session, and a `delete` after a kill finds
        # one.
        for name in sorted(os.listdir(folder), key=lambda name: name == "session.json"):
            path = folder / name
            if name == "repertory":
                shutil.rmtree(path / "tree", ignore_errors=True)
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    async def _set_aside(self, repair: StoreRepair, session_id: str, keep: Sequence[Row]) -> str:
        moved_to = await super()._set_aside(repair, session_id, keep)
        marks = self._trees.root / SessionNames(session_id).folder / "repertory" / "tree"
        # The marks tell of rows that are in quarantine now. Without marks, the tree is compared with the journal anew.
        await self._in_thread(partial(shutil.rmtree, marks, ignore_errors=True))
        return moved_to

    # The store.

    async def maintain(self) -> None:
        """Maintain the logs, and write trees that are not up to date, until cancelled, which is safe at any time."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._journals.maintain)
            while True:
                await anyio.sleep(RETRY_S)
                with Uncut():
                    await self._write_behind()

    async def aclose(self) -> None:
        """Write what is due, then close. Calling it twice is allowed."""
        with Uncut():
            await self._write_behind()
            for session_id in list(self._leases):
                self._forget(session_id)
            await self._journals.aclose()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        with self._trees.files.mapped(""):
            return await run_in_thread(work)
        raise AssertionError

    def _ids(self, prefix: str) -> list[str]:
        """The ids of all sessions that begin so."""
        found: list[str] = []
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._trees.root) as entries:
            for entry in entries:
                if entry.name.startswith(SESSIONS) and entry.is_dir(follow_symlinks=False):
                    session_id = id_of_folder(entry.name, SESSIONS) or self._trees.id_in(entry.name)
                    if session_id is not None and session_id.startswith(prefix):
                        found.append(session_id)
        return found


async def live_owner_of(root: Path, life: Liveness, names: SessionNames) -> str | None:
    """The live owner of a session in a folder; None without one. Empty if its record is damaged, so only its lock says
    that it lives.
    """
    folder = root / names.folder / "repertory"
    record = await run_in_thread(partial(read_owner, folder))
    # A flipped bit in the record must not let a second program write beside a living owner.
    if record is not None and not record.generation and await run_in_thread(partial(is_locked, folder)):
        return ""
    if record is None or record.state == "free" or record.owner is None:
        return None
    return record.owner if await life.is_alive(record.owner, 0.0) else None
