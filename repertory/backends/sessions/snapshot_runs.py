"""The snapshot of one orchestrator whose session is owned: how far its run is for others, and what they made of it.

The journal is the truth. The snapshot is put from it in the background, as those of agents are, and there is one: the
latest. The rules by which the run of others is taken in are those of `core/orchestration/document.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from repertory.backends.ports import Batch, Position
from repertory.backends.sessions.object_requests import side_by_side
from repertory.backends.sessions.snapshot_latest import LatestSnapshot, OwnedPlace, WrittenElsewhere
from repertory.backends.sessions.snapshot_opening import is_of, unreadable
from repertory.backends.sessions.snapshot_run_maker import RunMaker
from repertory.core.journal.codec import decode
from repertory.core.journal.records import NodeChanged
from repertory.errors import LeaseLost, RepertoryError

if TYPE_CHECKING:
    from repertory.backends.sessions.snapshot_shelf import Found
    from repertory.core.journal.rows import Row
    from repertory.core.snapshots.run_snapshot import ReadRun
    from repertory.core.snapshots.trigger import MultiAgentSaveLatestOn

_log = logging.getLogger("repertory.sessions")


class RunSnapshots:
    """One orchestrator's snapshot. After `LeaseLost` it is of no use any more."""

    def __init__(self, place: OwnedPlace, save_latest_on: MultiAgentSaveLatestOn) -> None:
        self._journal = place.journal
        self._tree = place.tree
        self._lease = place.lease
        self._location = place.location
        self._wall = place.wall
        self._entropy = place.entropy
        self._save_latest_on = save_latest_on
        self._latest = LatestSnapshot(place, place.tree.latest_run)
        self._maker = RunMaker(place.location, place.lease.generation)
        self._wanted_seq = 0
        """The last record that it is to show."""
        self._read = partial(self._journal.load, place.location.session_id, place.location.journal)

    async def open(self) -> None:
        """Take in what others have written.

        Errors: `SnapshotException` for a snapshot that nobody can read where there is no journal; those of journal and
        objects.
        """
        rows: list[Row] = []
        latest: list[Found[ReadRun] | None] = []

        async def read_rows() -> None:
            rows.extend(await self._read())

        async def find_latest() -> None:
            latest.append(await self._latest.find())

        async with self._latest.lock:
            await side_by_side([read_rows, find_latest])
            await self._open(rows, latest[0])

    async def _open(self, rows: list[Row], found: Found[ReadRun] | None) -> None:
        self._latest.begin(found)
        if found is not None and found.snapshot is None:
            if not rows:
                raise await unreadable(self._tree, self._location, found)
            await self._latest.set_aside(found, f"it cannot be read: {found.fault}")
        elif found is not None and found.snapshot is not None:
            self._maker.keep(found.snapshot, ours=False)
            standing = found.snapshot.standing
            if standing is not None and is_of(standing, rows):
                self._latest.seq = standing.seq
            else:
                rows = await self._take_in(found, found.snapshot, rows)
        self._wanted_seq = rows[-1].seq if rows else 0

    async def _take_in(self, found: Found[ReadRun], snapshot: ReadRun, rows: list[Row]) -> list[Row]:
        made = await self._maker.rows_for(rows, snapshot, self._entropy, self._wall())
        if snapshot.waits:
            await self._latest.set_aside(found, "it may hold more of what somebody was asked than is taken in")
        if not made:
            return rows
        _log.info("a run was taken in file=%r records=%r", found.place, len(made))
        (outcome,) = await self._journal.append([Batch(lease=self._lease, rows=made)])
        if not isinstance(outcome, Position):
            raise outcome
        return list(await self._read())

    def after(self, rows: Sequence[Row]) -> None:
        """These rows were committed."""
        if self._save_latest_on == "node" or any(map(_ends_run, rows)):
            self._wanted_seq = max(self._wanted_seq, rows[-1].seq)

    @property
    def due(self) -> bool:
        """Whether there is anything to put."""
        return not (self._latest.over or self._latest.foreign) and self._wanted_seq > self._latest.seq

    async def publish(self) -> None:
        """Put what is due. Errors: `LeaseLost`, and those of the objects."""
        async with self._latest.lock:
            if self.due:
                rows = await self._read()
                await self._latest.put(await self._maker.made(rows), rows[-1].seq)
                self._wanted_seq = max(self._wanted_seq, self._latest.seq)

    async def catch_up(self) -> None:
        """Put it as of now: what it may still show is about to be destroyed. Errors: as `publish`."""
        self._want_all(await self._read())
        await self.publish()

    async def close(self) -> None:
        """Bring it up to date before the session is given up.

        What cannot be put now is put at the next opening. What somebody else has written is taken in.
        """
        if self._latest.over:
            return
        try:
            self._want_all(await self._read())
            with suppress(WrittenElsewhere):
                await self.publish()
            if self._latest.foreign:
                await self.open()
                await self.publish()
        except LeaseLost:
            return
        except RepertoryError as error:
            fields = self._location.session_id, self._location.scope_id, str(error)
            _log.warning("the snapshot of a run is not up to date session=%r orchestrator=%r why=%r", *fields)

    def forget(self) -> None:
        """The session is not ours any more."""
        self._latest.over = True

    async def stop(self) -> None:
        """The same, and nothing is being put any more."""
        self._latest.over = True
        async with self._latest.lock:
            pass

    def _want_all(self, rows: Sequence[Row]) -> None:
        if rows:
            self._wanted_seq = max(self._wanted_seq, rows[-1].seq)


def _ends_run(row: Row) -> bool:
    """Whether nothing is left to do after a row, or somebody has to see to it first."""
    record = None if row.erased else decode(row.kind, row.version, row.body)
    return isinstance(record, NodeChanged) and (not record.frontier or record.status in ("failed", "interrupted"))
