"""The latest snapshot of one agent or orchestrator whose session is owned: which one is known, and putting the next.

Others know no leases. So every put has the condition that the one is still there that is known; where it is not,
somebody else has written, and nothing of theirs is written over before it was taken in.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

import anyio

from repertory.backends.sessions.snapshots.shelf import S
from repertory.errors import AlreadyExists, LeaseLost, PreconditionFailed, StoreUnavailable

if TYPE_CHECKING:
    from repertory.backends.ports import Lease, SessionStore
    from repertory.backends.sessions.snapshots.shelf import Found, Made
    from repertory.backends.sessions.snapshots.tree import SnapshotTree
    from repertory.core.journal.appender import Entropy
    from repertory.core.snapshots.document import Standing
    from repertory.core.snapshots.location import SnapshotLocation

_log = logging.getLogger("repertory.sessions")
_TRIES_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedPlace:
    """Where a journal and its snapshots lie, as their owner reaches them."""

    journal: SessionStore
    tree: SnapshotTree
    lease: Lease
    location: SnapshotLocation
    wall: Callable[[], float]
    entropy: Entropy


class WrittenElsewhere(LeaseLost):
    """Somebody who knows no leases has written the latest snapshot. Open the session again to take that in."""


class LatestSnapshot(Generic[S]):
    """The latest snapshot. `lock` is held by whoever reads or puts it."""

    def __init__(self, place: OwnedPlace, find: Callable[[SnapshotLocation], Awaitable[Found[S] | None]]) -> None:
        """`find` reads it as it lies there."""
        self._tree = place.tree
        self._lease = place.lease
        self._location = place.location
        self._find = find
        self.version: str | None = None
        """As it was read or written last."""
        self.seq = 0
        """The last record that it shows."""
        self.foreign = False
        """Whether somebody else has written it meanwhile."""
        self.over = False
        """Whether the session is not ours any more."""
        self.lock = anyio.Lock()

    async def find(self) -> Found[S] | None:
        """The one that lies there."""
        return await self._find(self._location)

    def begin(self, found: Found[S] | None) -> None:
        """This is the one that lies there."""
        self.foreign, self.seq = False, 0
        self.version = found.version if found is not None else None

    async def set_aside(self, found: Found[S], why: str) -> None:
        """Keep a copy of it: it is to be replaced."""
        copy = await self._tree.set_aside(self._location)
        _log.warning("a snapshot was set aside file=%r copy=%r why=%r", found.place, copy, why)

    async def put(self, made: Made, seq: int) -> bool:
        """Put one that shows everything up to a record. Whether it lies there now: not when the session is not ours.

        Errors: `LeaseLost`, `WrittenElsewhere`, and those of the objects.
        """
        for _ in range(_TRIES_MAX):
            if self.over:
                return False
            try:
                version = await self._tree.put_latest(self._location, made.document, made.size_bytes, self.version)
            except (AlreadyExists, PreconditionFailed):
                await self._look()
                continue
            self.version, self.seq = version, seq
            return True
        raise StoreUnavailable("the latest snapshot could not be put", session=self._location.session_id)

    async def check_unchanged(self) -> None:
        """Look whether somebody else has written it, unless it is just being put.

        Errors: `WrittenElsewhere`, and those of the objects.
        """
        if self.lock.locked():
            return
        async with self.lock:
            if self.foreign or await self._tree.changed(self._location, self.version):
                await self._look()

    async def _look(self) -> None:
        """Another one is there. A put of ours may have been done after all; else somebody wrote it.

        Errors: `LeaseLost`, `WrittenElsewhere`.
        """
        found = await self.find()
        if found is not None and found.snapshot is None:
            await self.set_aside(found, f"it cannot be read: {found.fault}")
        elif found is not None and found.snapshot is not None:
            self._check_ours(found, found.snapshot.standing)
        self.version = found.version if found is not None else None

    def _check_ours(self, found: Found[S], standing: Standing | None) -> None:
        if standing is None:
            if not self.foreign:
                _log.warning("somebody else has written the latest snapshot file=%r", found.place)
            self.foreign = True
            msg = "somebody else has written the latest snapshot; open the session again to take that in"
            raise WrittenElsewhere(msg, session=self._location.session_id, file=found.place)
        self.foreign = False
        if standing.generation > self._lease.generation:
            self.over = True
            raise LeaseLost("the session has another owner now", session=self._location.session_id)
