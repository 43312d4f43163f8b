"""What an agent's journal shows, as the snapshot that is made of it, and as one that was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from repertory.backends.sessions.snapshots.opening import rows_for
from repertory.backends.sessions.snapshots.shelf import Found, Made, aside, last_time
from repertory.core.journal.fold import Fold
from repertory.core.journal.restore import restore
from repertory.core.snapshots.document import (
    ReadRun,
    SnapshotContent,
    Standing,
    content_of,
    read_run_snapshot,
    read_snapshot,
    rows_for_run,
    run_snapshot,
    snapshot_document,
)
from repertory.core.snapshots.intake import Published
from repertory.errors import SnapshotException

if TYPE_CHECKING:
    from repertory.core.journal.appender import Entropy
    from repertory.core.journal.rows import Row
    from repertory.core.messages import Json
    from repertory.core.snapshots.document import ReadSnapshot
    from repertory.core.snapshots.location import SnapshotLocation

_THEIRS = "manager"
"""Where a snapshot of ours keeps the name of the conversation manager that others have."""


def found_in(document: object, place: str) -> Found[ReadSnapshot]:
    """A snapshot in values that JSON has, whoever wrote it."""
    said = cast("dict[str, object]", document) if isinstance(document, dict) else dict[str, object]()
    try:
        snapshot = read_snapshot(cast("object", document))
    except SnapshotException as error:
        return Found(place, None, str(error), document=said)
    return Found(place, snapshot, document=said, published=Published.of(snapshot.content))


class SnapshotMaker:
    """Makes the snapshots of one agent from rows of its journal."""

    def __init__(self, location: SnapshotLocation, generation: int, manager: str) -> None:
        """`manager`: the class name of the agent's conversation manager."""
        self._location = location
        self.generation = generation
        self._manager = manager
        self._found: SnapshotContent | None = None
        self._theirs = ""

    def keep(self, snapshot: ReadSnapshot, *, ours: bool) -> None:
        """This is the latest snapshot as it was read: what others keep in it stays. The name of their conversation
        manager is among that, since they insist on it.
        """
        self._found = replace(snapshot.content, messages=())
        standing = snapshot.standing
        told = standing.more.get(_THEIRS) if ours and standing is not None else snapshot.content.manager.get("__name__")
        self._theirs = told if isinstance(told, str) else ""

    def found_in(self, document: object, place: str) -> Found[ReadSnapshot]:
        """A snapshot in values that JSON has, whoever wrote it."""
        return found_in(document, place)

    async def rows_for(
        self,
        rows: Sequence[Row],
        snapshot: ReadSnapshot,
        entropy: Entropy,
        at: float,
        published: Published | None = None,
    ) -> list[Row]:
        """The rows that follow on `rows` so that the journal shows what the snapshot shows."""
        return await rows_for(self._location, rows, snapshot, entropy, at, published)

    async def made(self, rows: Sequence[Row], at: float | None = None, more: Mapping[str, Json] | None = None) -> Made:
        """The snapshot of what rows amount to: those from the last one's `low` on. It is of the time `at`, or of that
        of the last row. `more` goes with it.
        """
        size_bytes = sum(len(row.body) for row in rows)
        return await aside(size_bytes, lambda: self._made(rows, at, more or {}, size_bytes))

    def _made(self, rows: Sequence[Row], at: float | None, more: Mapping[str, Json], size_bytes: int) -> Made:
        fold = restore(rows, session_id=self._location.session_id).fold if rows else Fold()
        content = content_of(fold, self._found, self._theirs or self._manager)
        last = rows[-1] if rows else None
        standing = Standing(
            seq=last.seq if last is not None else 0,
            link=last.link.hex() if last is not None else "",
            generation=self.generation,
            more={_THEIRS: self._theirs, **more} if self._theirs else more,
        )
        when = last_time(rows) if at is None else at
        return Made(snapshot_document(content, when, standing), Published.of(content), size_bytes)


def run_found_in(document: object, place: str, orchestrator_id: str) -> Found[ReadRun]:
    """A snapshot in values that JSON has, whoever wrote it."""
    said = cast("dict[str, object]", document) if isinstance(document, dict) else dict[str, object]()
    try:
        return Found(place, read_run_snapshot(cast("object", document), orchestrator_id), document=said)
    except SnapshotException as error:
        return Found(place, None, str(error), document=said)


class RunMaker:
    """Makes the snapshots of one orchestrator from rows of its journal."""

    def __init__(self, location: SnapshotLocation, generation: int) -> None:
        self._location = location
        self.generation = generation
        self._app_data: Mapping[str, Json] = {}

    def found_in(self, document: object, place: str) -> Found[ReadRun]:
        """A snapshot in values that JSON has, whoever wrote it."""
        return run_found_in(document, place, self._location.scope_id)

    def keep(self, snapshot: ReadRun, *, ours: bool) -> None:
        """This is the latest snapshot as it was read: what others keep in it stays."""
        del ours
        self._app_data = snapshot.app_data

    async def rows_for(
        self,
        rows: Sequence[Row],
        snapshot: ReadRun,
        entropy: Entropy,
        at: float,
        published: Published | None = None,
    ) -> list[Row]:
        """The rows that follow on `rows` so that the journal says what the snapshot says."""
        del published
        nodes = snapshot.said.get("node_results")
        size_bytes = sum(len(row.body) for row in rows) + 1024 * (len(nodes) if isinstance(nodes, dict) else 0)
        return await aside(size_bytes, lambda: rows_for_run(self._location, rows, snapshot, at, entropy))

    async def made(self, rows: Sequence[Row], at: float | None = None, more: Mapping[str, Json] | None = None) -> Made:
        """The snapshot of what rows amount to: those from the last one's `low` on. It is of the time `at`, or of that
        of the last row. `more` goes with it.
        """
        size_bytes = sum(len(row.body) for row in rows)
        return await aside(size_bytes, lambda: self._made(rows, at, more or {}, size_bytes))

    def _made(self, rows: Sequence[Row], at: float | None, more: Mapping[str, Json], size_bytes: int) -> Made:
        fold = restore(rows, session_id=self._location.session_id).fold if rows else Fold()
        last = rows[-1] if rows else None
        standing = Standing(
            seq=last.seq if last is not None else 0,
            link=last.link.hex() if last is not None else "",
            generation=self.generation,
            more=more,
        )
        when = last_time(rows) if at is None else at
        document = run_snapshot(fold, self._location.scope_id, when, standing, self._app_data)
        return Made(document, None, size_bytes)
