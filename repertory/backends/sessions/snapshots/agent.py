"""The snapshots of one agent whose session is owned: what of its journal others can see, and what they have made of it.

The journal is the truth. Snapshots are put from it, at most one at a time, the last state winning; nobody who talks to
the agent waits for that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from repertory.backends.ports import Batch, Position
from repertory.backends.sessions.journal.requests import side_by_side
from repertory.backends.sessions.snapshots.history import AgentHistory, mark_in
from repertory.backends.sessions.snapshots.latest import LatestSnapshot, OwnedPlace, WrittenElsewhere
from repertory.backends.sessions.snapshots.makers import SnapshotMaker
from repertory.backends.sessions.snapshots.opening import (
    find_history,
    holds_more,
    is_of,
    rows_back_to,
    rows_for,
    unreadable,
)
from repertory.core.journal.fold import is_answer
from repertory.core.message_tree.kept_rows import message_in
from repertory.core.snapshots.intake import Replacements, redacted
from repertory.core.snapshots.location import number_of
from repertory.errors import LeaseLost, RepertoryError

if TYPE_CHECKING:
    from repertory.backends.sessions.snapshots.choices import SnapshotChoices
    from repertory.backends.sessions.snapshots.shelf import Found
    from repertory.core.journal.rows import Row
    from repertory.core.snapshots.document import ReadSnapshot
    from repertory.core.snapshots.intake import Published

_log = logging.getLogger("repertory.sessions")


class AgentSnapshots:
    """One agent's snapshots. After `LeaseLost` it is of no use any more."""

    def __init__(self, place: OwnedPlace, choices: SnapshotChoices, published: Published | None) -> None:
        """`published`: what others could see of the journal when it was open here last, if that is known."""
        self._journal = place.journal
        self._tree = place.tree
        self._lease = place.lease
        self._location = place.location
        self._wall = place.wall
        self._entropy = place.entropy
        self._choices = choices
        self._latest = LatestSnapshot(place, place.tree.latest)
        self._maker = SnapshotMaker(place.location, place.lease.generation, choices.manager)
        self.history = AgentHistory(place.tree, place.location, self._maker, place.wall)
        self.published = published
        self._wanted_seq = 0
        """The last record that the latest snapshot is to show."""
        self._seen_seq = 0
        """The last record in which marks were looked for."""
        self._wanted_anyway = False
        """Whether it is to be saved with the next records, whatever was chosen."""
        self._read = partial(self._journal.load, place.location.session_id, place.location.scope_id)

    # Opening.

    async def open(self) -> None:
        """Take in what others have written, go back to where the session is to go on from, find what is missing.

        Errors: `SnapshotException` for a latest snapshot that nobody can read where there is no journal, `NotFound` for
        a snapshot to go on from; those of journal and objects.
        """
        rows: list[Row] = []
        latest: list[Found[ReadSnapshot] | None] = []

        async def read_rows() -> None:
            rows.extend(await self._read())

        async def find_latest() -> None:
            latest.append(await self._latest.find())

        async with self._latest.lock:
            await side_by_side([read_rows, find_latest, self.history.read])
            await self._open(rows, latest[0])

    async def _open(self, rows: list[Row], found: Found[ReadSnapshot] | None) -> None:
        load_id = self._choices.load.pending(self._location.scope_id) if self._choices.load is not None else None
        self._latest.begin(found)
        replaced = False
        if found is not None and found.snapshot is None:
            if not rows and load_id is None:
                raise await unreadable(self._tree, self._location, found)
            await self._latest.set_aside(found, f"it cannot be read: {found.fault}")
            replaced = True
        elif found is not None and found.snapshot is not None:
            standing = found.snapshot.standing
            replaced = not is_of(standing, rows)
            self._maker.keep(found.snapshot, ours=not replaced)
            if replaced:
                rows = await self._take_in(found, rows)
            elif standing is not None:
                self._latest.seq = standing.seq
            self.published = found.published
        self._seen_seq = max(self._latest.seq, self.history.numbering.mark)
        await self._find_marks(rows)
        if load_id is not None:
            rows = await self._go_back(load_id, rows)
        last = rows[-1].seq if rows else 0
        self._seen_seq = max(self._seen_seq, last)
        if self.history.remade:
            await self.history.publish()
            await self.history.settle(self._seen_seq)
        behind = self.history.due or self.history.numbering.taken > self._latest.seq
        if last and (replaced or behind or not self._choices.only_when_triggered):
            self._wanted_seq = last

    async def _take_in(self, found: Found[ReadSnapshot], rows: list[Row]) -> list[Row]:
        assert found.snapshot is not None
        made = await rows_for(self._location, rows, found.snapshot, self._entropy, self._wall(), self.published)
        if holds_more(found.snapshot, found.document):
            why = "it holds what may not be taken in: a turn that waits, or stashed content"
            await self._latest.set_aside(found, why)
        if made:
            _log.info("a snapshot was taken in file=%r records=%r", found.place, len(made))
        return await self._appended(rows, made)

    async def _appended(self, rows: list[Row], made: Sequence[Row]) -> list[Row]:
        if not made:
            return rows
        (outcome,) = await self._journal.append([Batch(lease=self._lease, rows=made)])
        if not isinstance(outcome, Position):
            raise outcome
        return list(await self._read())

    async def _find_marks(self, rows: Sequence[Row]) -> None:
        """Note marks that were not seen when they were committed: a crash came between, or the answer was lost."""
        if rows and rows[-1].seq > self._seen_seq:
            known = rows if rows[0].seq <= self._seen_seq + 1 else await self._read(whole=True)
            end = self._seen_seq + 1 - known[0].seq
            self.history.see(known[:end], known[end:])
            self._seen_seq = known[-1].seq

    async def _go_back(self, snapshot_id: str, rows: list[Row]) -> list[Row]:
        snapshot = await find_history(self._tree, self._location, snapshot_id)
        await self.history.publish()
        whole = await self._read(whole=True)
        made = rows_back_to(whole, snapshot, f"snapshot {snapshot_id}", self._location, self._entropy)
        if made is None:
            made = await rows_for(self._location, rows, snapshot, self._entropy, self._wall())
        rows = await self._appended(rows, made)
        mark = rows[-1].seq if rows else 0
        await self.history.branch(number_of(snapshot_id), snapshot.created_at, mark)
        assert self._choices.load is not None
        self._choices.load.done(self._location.scope_id)
        return rows

    # While it is open.

    async def before(self, rows: Sequence[Row]) -> Sequence[Row] | None:
        """What the journal holds before these rows, when there are marks among them."""
        return await self._read() if any(mark_in(row) is not None for row in rows) else None

    def after(self, before: Sequence[Row] | None, rows: Sequence[Row]) -> None:
        """These rows were committed. What does not follow on what was seen is looked at when something is put."""
        follow = rows[0].seq == self._seen_seq + 1
        if before is not None and follow and (before[-1].seq if before else 0) == self._seen_seq:
            self.history.see(before, rows)
            self._seen_seq = rows[-1].seq
        elif before is None and follow:
            self._seen_seq = rows[-1].seq
        strategy = self._choices.save_latest_on
        wanted = strategy == "message" or (strategy == "invocation" and any(map(_is_answer, rows)))
        if wanted or before is not None or self._wanted_anyway:
            self._wanted_seq, self._wanted_anyway = max(self._wanted_seq, rows[-1].seq), False

    def want_latest(self) -> None:
        """Save the latest snapshot with the next records, whatever was chosen."""
        self._wanted_anyway = True

    @property
    def due(self) -> bool:
        """Whether there is anything to put."""
        idle = self._latest.over or self._latest.foreign
        return not idle and (self.history.due or self._wanted_seq > self._latest.seq)

    async def publish(self) -> None:
        """Put what is due: numbered snapshots first, then the latest. Errors: `LeaseLost`, and those of the objects."""
        async with self._latest.lock:
            await self._publish()

    async def _publish(self) -> None:
        if not self.due:
            return
        await self._find_marks(await self._read())
        await self.history.publish()
        if self.due:
            await self._put_latest()

    async def _put_latest(self) -> None:
        rows = await self._read()
        if not rows:
            return
        made = await self._maker.made(rows)
        if await self._latest.put(made, rows[-1].seq):
            self.published = made.published
            self._wanted_seq = max(self._wanted_seq, self._latest.seq)

    async def check_unchanged(self) -> None:
        """Look whether somebody else has written the latest snapshot. Errors: see `LatestSnapshot`."""
        await self._latest.check_unchanged()

    async def redact(self, instead: Replacements) -> None:
        """Put other messages in the place of those, in every snapshot. Errors: those of the objects."""
        async with self._latest.lock:
            await self.history.publish()
            for snapshot_id in await self._tree.ids(self._location):
                found = await self._tree.history(self._location, snapshot_id)
                changed = redacted(found.document, instead) if found is not None else None
                if changed is not None:
                    await self._tree.put_history(self._location, snapshot_id, changed, 0)
            found = await self._tree.latest(self._location)
            changed = redacted(found.document, instead) if found is not None else None
            if found is not None and changed is not None:
                version = await self._tree.put_latest(self._location, changed, 0, found.version)
                self._latest.version = version if found.version == self._latest.version else self._latest.version
            self._wanted_anyway = True

    async def remove(self, numbers: Iterable[int]) -> None:
        """Remove these numbered snapshots, whose marks are about to go. Errors: those of the objects."""
        async with self._latest.lock:
            await self.history.publish()
            for number in numbers:
                await self._tree.remove_history(self._location, str(number))

    async def close(self) -> None:
        """Bring everything up to date before the session is given up.

        What cannot be put now is put at the next opening. What somebody else has written is taken in, behind what was
        said here.
        """
        if self._latest.over:
            return
        try:
            await self._close()
        except LeaseLost:
            return
        except RepertoryError as error:
            fields = self._location.session_id, self._location.scope_id, str(error)
            _log.warning("snapshots are not up to date session=%r agent=%r why=%r", *fields)

    async def _close(self) -> None:
        async with self._latest.lock:
            rows = await self._read()
            await self._find_marks(rows)
            if rows and (self.history.due or not self._choices.only_when_triggered):
                self._wanted_seq = max(self._wanted_seq, rows[-1].seq)
        with suppress(WrittenElsewhere):
            await self.publish()
        if self._latest.foreign:
            await self.open()
            await self.publish()
        if rows and rows[0].seq > self.history.numbering.mark + 1:
            await self.history.settle(
                rows[-1].seq
            )  # So that the next opening need not look through all of the journal.

    def forget(self) -> None:
        """The session is not ours any more."""
        self._latest.over = True

    async def stop(self) -> None:
        """The same, and nothing is being put any more."""
        self._latest.over = True
        async with self._latest.lock:
            pass


def _is_answer(row: Row) -> bool:
    message = message_in(row)
    return message is not None and is_answer(message)
