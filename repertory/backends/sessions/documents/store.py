"""The common part of the stores of documents in folders and in buckets.

Everything acknowledged is in a journal beside the documents. Other programs know no leases: what they did to a tree
becomes records when its session is opened, taken back, or proved.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import anyio
from msgspec.structs import replace

from repertory.backends.ports import (
    Batch,
    Corruption,
    Inspection,
    Lease,
    NotPublished,
    PublishingStore,
    SessionStore,
    StoreCapabilities,
    StoreRepair,
)
from repertory.backends.sessions.documents.catalog import DocumentCatalog
from repertory.backends.sessions.documents.reading import check_folder_owner
from repertory.backends.sessions.documents.trees import OpenTrees, T
from repertory.core.ids import check_id
from repertory.core.journal.restore import Entropy
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.message_tree.intake import ComparedTree
from repertory.core.message_tree.opening import needed_of
from repertory.logs import INFO, note

_log = logging.getLogger("repertory.sessions")
RETRY_S = 5.0
"""The time until trees that are not up to date are written again."""
_TRIES = 5
"""Readings of a journal and its tree, until no owner has written between the two."""
J = TypeVar("J", bound=SessionStore)


class DocumentSessionStore(SessionStore, PublishingStore, Generic[J, T]):
    """A `SessionStore` over the journals beside the documents, which it closes. For one event loop."""

    def __init__(
        self,
        journals: J,
        open_trees: OpenTrees[T],
        catalog: DocumentCatalog,
        *,
        wall: Callable[[], float],
        entropy: Entropy,
    ) -> None:
        self._journals = journals
        self._open_trees = open_trees
        self._catalog = catalog
        self._wall = wall
        self._entropy = entropy
        self._leases: dict[str, Lease] = {}
        self._released: WeakKeyDictionary[Lease, dict[str, T]] = WeakKeyDictionary()
        """The trees of released sessions, each for as long as somebody keeps its lease."""
        self._opening: dict[str, anyio.Lock] = {}

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
                quarantined=partial(self._quarantined, repair),
            )
        return replace(known, positions=None, repair=repair, others_add=True, shares_turns=True)

    def _forget(self, session_id: str) -> dict[str, T]:
        self._leases.pop(session_id, None)
        return self._open_trees.drop(session_id)

    def not_published(self) -> Sequence[NotPublished]:
        return self._open_trees.not_written

    # Reading.

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        """Rows in order, from the last row's `low` on, or all of them. At the owner's first call, other programs'
        changes are taken in.
        """
        check_id(agent_id, "agent id")
        lease = self._leases.get(check_id(session_id, "session id"))
        if lease is None:
            return await self._seen(session_id, agent_id, whole=whole)
        rows = await self._opened(lease, agent_id)
        return await self._journals.load(session_id, agent_id, whole=whole) if whole or rows is None else rows

    async def _opened(self, lease: Lease, agent_id: str) -> Sequence[Row] | None:
        """Follow an agent's journal from now on. Returns the rows that opening it needs; None if it was open."""
        lock = self._opening.setdefault(lease.session_id, anyio.Lock())
        try:
            async with lock:
                # Whoever waited for the lock finds it opened.
                if agent_id in self._open_trees.of(lease.session_id):
                    return None
                return await self._open(lease, agent_id)
        finally:
            # The last one removes it; otherwise there would be a lock for each session that was ever opened.
            if not lock.statistics().tasks_waiting:
                self._opening.pop(lease.session_id, None)

    async def _open(self, lease: Lease, agent_id: str) -> Sequence[Row]:
        """Take in what others did to the tree, then follow the journal. Returns the rows that opening it needs."""
        session_id = lease.session_id
        rows = await self._journals.load(session_id, agent_id)
        tree, changed = await self._looked(session_id, agent_id, rows)
        if changed:
            whole = rows
            # Comparing needs the whole journal. It is read only if something has changed.
            if rows and rows[0].seq > 1:
                whole = await self._journals.load(session_id, agent_id, whole=True)
            opened = await self._compare(tree, whole)
            if opened.made or opened.erase:
                await self._append_taken(lease, tree, opened)
                note(_log, INFO, "other programs' changes were taken in", file=tree.name, records=len(opened.made))
            rows = await self._journals.load(session_id, agent_id)
        await self._follow_from(lease, tree, rows)
        return rows

    async def _seen(self, session_id: str, agent_id: str, *, whole: bool) -> Sequence[Row]:
        """The rows for a reader without the lease, as the next owner will have them."""
        await check_folder_owner(self._catalog.objects, self._catalog.names(session_id))
        rows: Sequence[Row] = ()
        for _ in range(_TRIES):
            rows = await self._journals.load(session_id, agent_id, whole=whole)
            tree, changed = await self._looked(session_id, agent_id, rows)
            if not changed:
                return rows
            before = rows if whole else await self._journals.load(session_id, agent_id, whole=True)
            opened = await self._compare(tree, before)
            again = await self._journals.load(session_id, agent_id)
            # The journal was read twice, and the tree in between: they belong together if nothing was appended
            # meanwhile.
            if not opened.made or (again[-1].seq if again else 0) == (before[-1].seq if before else 0):
                return opened.rows if whole else needed_of(opened.rows)
        # Its owner is at work: the documents are its own, ahead of the rows that were read before them.
        return rows

    @abstractmethod
    async def _looked(self, session_id: str, agent_id: str, rows: Sequence[Row]) -> tuple[T, bool]:
        """The tree of an agent, and True if other programs have written to it, or are not known not to have. `rows`:
        those that opening the journal needs.
        """

    @abstractmethod
    async def _compare(self, tree: T, rows: Sequence[Row]) -> ComparedTree:
        """Compare the tree with a whole journal."""

    @abstractmethod
    async def _append_taken(self, lease: Lease, tree: T, opened: ComparedTree) -> None:
        """Append what others did to the journal."""

    @abstractmethod
    async def _follow_from(self, lease: Lease, tree: T, rows: Sequence[Row]) -> None:
        """Go on from a journal that has taken in what others wrote. `rows`: those that opening it needs."""

    # Damage.

    async def inspect(self) -> Inspection:
        """Documents among the sessions that belong to none."""
        return Inspection(strays=await self._catalog.strays())

    async def examine(self, session_id: str) -> Sequence[Corruption]:
        """The documents of a session that cannot be read."""
        return await self._catalog.damages(session_id)

    async def _set_aside(self, repair: StoreRepair, session_id: str, keep: Sequence[Row]) -> str:
        """Move a session's journal aside, and start it again with these rows. Documents that cannot be read are moved
        there, too; what the others say beyond the journal is taken in at the next opening. Errors: `NotFound`,
        `SessionBusy`.
        """
        self._forget(session_id)
        moved_to = await repair.set_aside(session_id, keep)
        await self._catalog.move_unreadable(session_id, moved_to)
        return moved_to

    async def _quarantined(self, repair: StoreRepair, session_id: str) -> Sequence[str]:
        """The names of data that was set aside, and the folders with copies of documents that could not be read."""
        return [*await repair.quarantined(session_id), *await self._catalog.unreadable(session_id)]


def asks(batch: Batch) -> bool:
    """True if the batch proves the lease, or tools run behind it, and another program may have run them."""
    return (not batch.rows and not batch.erase) or any(row.kind == RecordKind.RESUME for row in batch.rows)
