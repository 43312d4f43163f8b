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
from dataclasses import replace as dataclass_replace
from functools import partial
from pathlib import Path
from typing import TypeVar
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
from repertory.backends.sessions.documents.folder_trees import ComparedTree, FolderTree, FolderTrees, file_content
from repertory.backends.sessions.documents.reading import (
    SESSIONS,
    SessionNames,
    check_journals,
    fault_of,
    id_of_folder,
)
from repertory.backends.sessions.liveness import Liveness
from repertory.backends.sessions.log.owner_record import read_owner
from repertory.backends.sessions.log.store import LogSessionStore
from repertory.backends.sessions.table import newest_first, page_by_name
from repertory.backends.shields import Uncut
from repertory.backends.worker_threads import run_in_thread
from repertory.core.ids import check_id
from repertory.core.journal.restore import Entropy
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.json_bytes import parsed
from repertory.core.message_tree.opening import needed_of
from repertory.core.orchestration.journals import journal_name
from repertory.errors import LeaseLost, NotFound, RepertoryError, StoreNotFound, StoreUnavailable
from repertory.logs import INFO, note

T = TypeVar("T")
_log = logging.getLogger("repertory.sessions")
_FRAME_ROWS = 200
_RETRY_S = 5.0
_TRIES = 5
"""Readings of a journal and its tree, until no owner has written between the two."""


class FolderSessionStore(SessionStore, PublishingStore):
    """A `SessionStore` in a folder, over the logs in it, which it closes. For one event loop.

    Errors of every call: those of the logs; `Invalid` where a folder belongs to another id, or has a link in it.
    """

    def __init__(
        self, logs: LogSessionStore, trees: FolderTrees, *, wall: Callable[[], float], entropy: Entropy
    ) -> None:
        """`logs` has the layout `BESIDE_TREE`. `wall` gives epoch seconds, `entropy` random bytes."""
        logs.projection, logs.lender = trees, self
        self._logs = logs
        self._trees = trees
        self._wall = wall
        self._entropy = entropy
        self._leases: dict[str, Lease] = {}
        self._released: WeakKeyDictionary[Lease, dict[str, FolderTree]] = WeakKeyDictionary()
        """The trees of released sessions, each for as long as somebody keeps its lease."""
        self._opening: dict[str, anyio.Lock] = {}

    @property
    def name(self) -> str:
        return f"messages:{self._trees.root}"

    @property
    def capabilities(self) -> StoreCapabilities:
        # Other programs' changes have no position in the journal before they are taken in.
        known = self._logs.capabilities
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
            if not self.acquire_now(again):
                raise not_again(again)
            return await owned_rows(self, again, load)
        self._forget(session_id)
        lease, _ = await self._logs.acquire(session_id, takeover=takeover)
        self._leases[session_id] = lease
        self._trees.put(session_id, {})
        return await owned_rows(self, lease, load)

    def _is_there(self, session_id: str) -> bool:
        self._trees.check_name(session_id)
        return (self._trees.root / SessionNames(session_id).folder).is_dir()

    def acquire_now(self, lease: Lease) -> bool:
        """`acquire` with `again`, if no other program has written to the trees of the session."""
        trees = self._released.get(lease)
        if trees is None or not self._logs.acquire_now(lease):
            return False
        del self._released[lease]
        self._leases[lease.session_id] = lease
        self._trees.put(lease.session_id, trees)
        with suppress(OSError):
            if all(tree.is_unchanged() for tree in trees.values()):
                return True
        self._forget(lease.session_id)
        self._logs.release_now(lease)
        return False

    def release_now(self, lease: Lease) -> bool:
        """`release` of a session whose trees are up to date."""
        session_id = lease.session_id
        if self._leases.get(session_id) != lease or session_id in self._opening:
            return False
        behind = any(tree.is_behind for tree in self._trees.of(session_id).values())
        if behind or not self._logs.release_now(lease):
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
        await give_up(self._logs, lease)

    def _forget(self, session_id: str) -> dict[str, FolderTree]:
        self._leases.pop(session_id, None)
        return self._trees.drop(session_id)

    # Commits.

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        """Commit a group to the logs, and write its documents; one outcome per batch, in order.

        A batch without rows is refused with `LeaseLost` when a program without a lease has written meanwhile. One that
        erases contents is not acknowledged before they are in no document.
        """
        check_journals(batches)
        refused = {at: error for at, batch in enumerate(batches) if (error := self._refusal(batch)) is not None}
        good = [at for at in range(len(batches)) if at not in refused]
        stored = await self._logs.append([batches[at] for at in good]) if good else ()
        outcomes: dict[int, Position | RepertoryError] = {**refused, **dict(zip(good, stored, strict=True))}
        for at in good:
            batch = batches[at]
            behind = any(tree.is_behind for tree in self._trees.of(batch.lease.session_id).values())
            if batch.erase and behind and not isinstance(outcomes[at], RepertoryError):
                text = "the contents may still be in a document; open the session again"
                outcomes[at] = StoreUnavailable(text, session=batch.lease.session_id)
        return [outcomes[at] for at in range(len(batches))]

    def _refusal(self, batch: Batch) -> LeaseLost | None:
        """The error for a batch that may not be committed: it proves the lease, or tools run behind it, and another
        program may have run them. None for others.
        """
        session_id = batch.lease.session_id
        asks = not batch.rows and not batch.erase
        if not asks and all(row.kind != RecordKind.RESUME for row in batch.rows):
            return None
        # A write of ours that has failed may have been done: what stands there is told apart when it is tried again.
        if all(tree.is_behind or tree.is_unchanged() for tree in self._trees.of(session_id).values()):
            return None
        text = "another program has added to the session; open it again to take that in"
        return LeaseLost(text, session=session_id)

    async def _write_behind(self, session_id: str | None = None) -> None:
        """Try to write the trees that are not up to date."""
        for of, journal, tree in self._trees.behind():
            if session_id in (None, of):
                rows: list[Sequence[Row]] = []
                with suppress(RepertoryError):
                    rows.append(await self._logs.load(of, journal))
                if rows:
                    await run_in_thread(partial(self._trees.write, tree, partial(rows.__getitem__, 0)))

    def not_published(self) -> Sequence[NotPublished]:
        return [*self._trees.not_written]

    # Reading.

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        """Rows in order, from the last row's `low` on, or all of them. At the owner's first call, other programs'
        changes are taken in.
        """
        check_id(agent_id, "agent id")
        lease = self._leases.get(check_id(session_id, "session id"))
        if lease is None:
            return await self._seen(session_id, agent_id, whole=whole)
        lock = self._opening.setdefault(session_id, anyio.Lock())
        rows: Sequence[Row] | None = None
        try:
            async with lock:
                if agent_id not in self._trees.of(session_id):
                    rows = await self._open(lease, agent_id)
        finally:
            if not lock.statistics().tasks_waiting:
                self._opening.pop(session_id, None)
        return await self._logs.load(session_id, agent_id, whole=whole) if whole or rows is None else rows

    async def _open(self, lease: Lease, agent_id: str) -> Sequence[Row]:
        """Follow an agent's journal from now on; before that, take in what others did to its tree. Returns the rows
        that opening it needs.
        """
        session_id = lease.session_id
        rows = await self._logs.load(session_id, agent_id)
        tree = self._trees.tree(session_id, agent_id)
        if await self._in_thread(partial(tree.look, rows)):
            whole = rows if not rows or rows[0].seq == 1 else await self._logs.load(session_id, agent_id, whole=True)
            work = partial(tree.take_in, whole, self._wall(), self._entropy)
            opened = await self._in_thread(work)
            if opened.made or opened.erase:
                await self._append_all(lease, agent_id, opened)
                note(_log, INFO, "other programs' changes were taken in", file=tree.name, records=len(opened.made))
            rows = await self._logs.load(session_id, agent_id)
        with Uncut():
            await run_in_thread(partial(self._trees.open, session_id, agent_id, tree, rows))
        return rows

    async def _append_all(self, lease: Lease, agent_id: str, opened: ComparedTree) -> None:
        """Append what others did. A long conversation of theirs is several frames, since a window is read frame by
        frame; what a crash leaves out is taken in again.
        """
        made, size = opened.made, len(opened.made) if opened.erase else _FRAME_ROWS
        parts = [made[at : at + size] for at in range(0, len(made), size)] if made else [made]
        erase = [(agent_id, seq) for seq in opened.erase]
        for outcome in await self._logs.append([Batch(lease=lease, rows=part, erase=erase) for part in parts]):
            if not isinstance(outcome, Position):
                raise outcome

    async def _seen(self, session_id: str, agent_id: str, *, whole: bool) -> Sequence[Row]:
        """The rows for a reader without the lease, as the next owner will have them."""
        await self._in_thread(partial(self._trees.check_name, session_id))
        rows: Sequence[Row] = ()
        for _ in range(_TRIES):
            rows = await self._logs.load(session_id, agent_id, whole=True)
            tree = self._trees.tree(session_id, agent_id)
            if not await self._in_thread(partial(tree.look, rows)):
                return rows if whole else needed_of(rows)
            opened = await self._in_thread(partial(tree.take_in, rows, self._wall(), self._entropy))
            again = await self._logs.load(session_id, agent_id)
            if not opened.made or (again[-1].seq if again else 0) == (rows[-1].seq if rows else 0):
                return opened.rows if whole else needed_of(opened.rows)
        # Its owner is at work: the documents are its own, ahead of the rows that were read before them.
        return rows if whole else needed_of(rows)

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        """Every session, most recently changed first; or that one alone. Agents that only other programs have written
        have as many records as messages.
        """
        if page is not None:
            names = await self._in_thread(partial(self._ids, page.prefix))

            async def described(ids: Sequence[str]) -> Iterable[SessionInfo]:
                return [info for each in ids for info in await self.sessions(each)]

            return await page_by_name(names, described, page)
        ours = {info.session_id: info for info in await self._logs.sessions(session_id)}
        ids = await self._in_thread(partial(self._ids, "")) if session_id is None else [session_id]
        found = await self._in_thread(lambda: [self._described(each, ours.get(each)) for each in ids])
        return newest_first([info for info in found if info is not None])

    async def delete(self, session_id: str) -> None:
        """Erase a session: its tree, then its log. Errors: `NotFound`, `SessionBusy`."""
        names = SessionNames(check_id(session_id, "session id"))
        folder = self._trees.root / names.folder
        with Uncut():
            if not await self._in_thread(partial(self._is_there, session_id)):
                raise StoreNotFound("no such session", session=session_id)
            lease = self._leases.get(session_id)
            if lease is None:
                lease, _ = await self._logs.acquire(session_id)
            self._forget(session_id)
            await self._in_thread(partial(self._remove, folder))
            with suppress(NotFound):
                await self._logs.delete(session_id)
            await give_up(self._logs, lease)
            for path in (folder, self._trees.root / names.aside):
                await self._in_thread(partial(shutil.rmtree, path, ignore_errors=True))

    @staticmethod
    def _remove(folder: Path) -> None:
        """Remove everything in a session's folder but its log, the session's document last."""
        for name in sorted(os.listdir(folder), key=lambda name: name == "session.json"):
            path = folder / name
            if name == "repertory":
                shutil.rmtree(path / "tree", ignore_errors=True)
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    # Damage.

    async def inspect(self) -> Inspection:
        """Files among the sessions that belong to none."""
        return Inspection(strays=await self._in_thread(self._strays))

    async def examine(self, session_id: str) -> Sequence[Corruption]:
        """The documents of a session that cannot be read."""
        return await self._in_thread(partial(self._damages, check_id(session_id, "session id")))

    async def _set_aside(self, repair: StoreRepair, session_id: str, keep: Sequence[Row]) -> str:
        """Move a session's log aside, and start it again with these rows. Documents that cannot be read are moved
        there, too; what the others say beyond the log is taken in at the next opening. Errors: `NotFound`,
        `SessionBusy`.
        """
        self._forget(session_id)
        moved_to = await repair.set_aside(session_id, keep)
        await self._in_thread(partial(self._move_unreadable, session_id, self._trees.root / moved_to))
        return moved_to

    async def _quarantined(self, session_id: str) -> Sequence[str]:
        """The names of data that was set aside, and the folders with copies of documents that could not be read."""
        repair = self._logs.capabilities.repair
        found = [] if repair is None else [*await repair.quarantined(session_id)]
        return [*found, *await self._in_thread(partial(self._unreadable, session_id))]

    def _unreadable(self, session_id: str) -> list[str]:
        """The folders with copies of documents that could not be read."""
        names = SessionNames(session_id)
        folders = [of.unreadable for of in names.journals_in(self._keys(names))]
        return [folder for folder in folders if (self._trees.root / folder).is_dir()]

    # The store.

    async def maintain(self) -> None:
        """Maintain the logs, and write trees that are not up to date, until cancelled, which is safe at any time."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._logs.maintain)
            while True:
                await anyio.sleep(_RETRY_S)
                with Uncut():
                    await self._write_behind()

    async def aclose(self) -> None:
        """Write what is due, then close. Calling it twice is allowed."""
        with Uncut():
            await self._write_behind()
            for session_id in list(self._leases):
                self._forget(session_id)
            await self._logs.aclose()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        with self._trees.files.mapped(""):
            return await run_in_thread(work)
        raise AssertionError

    def _ids(self, prefix: str) -> list[str]:
        """The ids of all sessions that begin so."""
        found: list[str] = []
        for folder in self._folders(self._trees.root, SESSIONS):
            session_id = id_of_folder(folder, SESSIONS) or self._trees.id_in(folder)
            if session_id is not None and session_id.startswith(prefix):
                found.append(session_id)
        return found

    @staticmethod
    def _folders(above: Path, beginning: str) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(above) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.name.startswith(beginning) and entry.is_dir(follow_symlinks=False)
            )
        return []

    def _keys(self, names: SessionNames) -> list[str]:
        """The keys of the documents of a session."""
        root, found = self._trees.root, list[str]()
        for folder, folders, files in os.walk(root / names.folder):
            if Path(folder) == root / names.folder:
                folders[:] = [name for name in folders if name != "repertory"]
            found += [str((Path(folder) / name).relative_to(root)) for name in files]
        return sorted(found)

    def _described(self, session_id: str, ours: SessionInfo | None) -> SessionInfo | None:
        """The line of a session, with the agents that only other programs have written; None if there is none."""
        names = SessionNames(session_id)
        agents: dict[str, int] = {} if ours is None else dict(ours.agents)
        times: list[float] = []
        for of in names.journals_in(self._keys(names)):
            journal = of.journal
            if journal is None:  # The document has the id.
                with suppress(OSError, ValueError, KeyError):
                    named_there = parsed(file_content(self._trees.root / of.agent))[
                        "id" if of.orchestrator else "agent_id"
                    ]
                    journal = journal_name(str(named_there)) if of.orchestrator else str(named_there)
            if journal is None or journal in agents:
                continue
            folder = self._trees.root / of.folder
            messages = [path for path in (folder / "messages").glob("message_*.json") if path.is_file()]
            stats = [path.stat() for path in (*messages, self._trees.root / of.agent) if path.is_file()]
            if stats:
                agents[journal] = len(messages)
                times += [found.st_mtime for found in stats]
        if ours is not None:
            created_at, updated_at = min((ours.created_at, *times)), max((ours.updated_at, *times))
            return dataclass_replace(ours, agents=agents, created_at=created_at, updated_at=updated_at)
        if not agents:
            return None
        return SessionInfo(
            session_id=session_id, agents=agents, created_at=min(times), updated_at=max(times), owner=None
        )

    def _damages(self, session_id: str) -> list[Corruption]:
        names, found = SessionNames(session_id), list[Corruption]()
        keys = self._keys(names)
        for of in names.journals_in(keys):
            numbers = of.numbers(keys)
            for key in (*(of.key(number) for number in numbers), *({of.agent} & {*keys})):
                try:
                    body = file_content(self._trees.root / key)
                    fault = fault_of(of, key, body)
                except (OSError, ValueError) as error:
                    fault = str(error)
                if fault is not None:
                    found.append(Corruption(where=key, what=fault))
        if self._trees.id_in(names.folder.removesuffix("/")) != session_id:
            found.append(Corruption(where=names.session, what="it is lost, or names another session"))
        return found

    def _move_unreadable(self, session_id: str, to: Path) -> None:
        """Move the documents that cannot be read to a folder."""
        root = self._trees.root
        for damage in self._damages(session_id):
            path = root / damage.where
            if path.is_file() and not path.is_symlink():
                target = to / path.relative_to(root / SessionNames(session_id).folder)
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.rename(target)
        shutil.rmtree(root / SessionNames(session_id).folder / "repertory" / "tree", ignore_errors=True)

    def _strays(self) -> list[str]:
        root, found = self._trees.root, list[str]()
        for folder in self._folders(root, SESSIONS):
            session_id = id_of_folder(folder, SESSIONS) or self._trees.id_in(folder)
            names = None if session_id is None else SessionNames(session_id)
            keys = (
                self._keys(names) if names is not None else [f"{folder}/{name}" for name in os.listdir(root / folder)]
            )
            known = {f"{folder}/session.json"}
            for of in SessionNames.journals_in(keys):
                known |= {of.agent, *map(of.key, of.numbers(keys))}
                known |= {key for key in keys if key.startswith(of.unreadable)}
            found += [key for key in keys if key not in known]
        return found


async def live_owner_of(root: Path, life: Liveness, names: SessionNames) -> str | None:
    """The live owner of a session in a folder; None without one."""
    record = await run_in_thread(partial(read_owner, root / names.folder / "repertory"))
    if record is None or record.state == "free" or record.owner is None:
        return None
    return record.owner if await life.is_alive(record.owner, 0.0) else None
