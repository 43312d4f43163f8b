"""Where the snapshots of an agent are put: what every such place can do, and what is made and found there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, cast

import anyio.to_thread

from repertory.core.journal.codec import at_of
from repertory.core.journal.fold import Fold
from repertory.core.journal.restore import restore
from repertory.core.snapshots.document import SnapshotContent, Standing, content_of, read_snapshot, snapshot_document
from repertory.core.snapshots.intake import Published
from repertory.errors import SnapshotException

if TYPE_CHECKING:
    from repertory.core.journal.rows import Row
    from repertory.core.messages import Json
    from repertory.core.snapshots.document import ReadSnapshot
    from repertory.core.snapshots.location import SnapshotLocation
    from repertory.core.snapshots.manifest import Numbering

_ASIDE_BYTES = 64 * 1024
"""More is read and spelled in a thread: the event loop has other things to do."""

_THEIRS = "manager"
"""Where a snapshot of ours keeps the name of the conversation manager that others have."""

T = TypeVar("T")


class Found(NamedTuple):
    """A snapshot as it lies there."""

    place: str
    """What to call it in messages."""
    snapshot: ReadSnapshot | None
    """None: nobody can read it."""
    fault: str = ""
    """Why."""
    version: str = ""
    document: Mapping[str, object] = MappingProxyType({})
    """The snapshot, in values that JSON has."""
    published: Published | None = None
    """By which one tells what others make of it."""


class Made(NamedTuple):
    """A snapshot that is to be put somewhere."""

    document: dict[str, object]
    """Values that JSON has."""
    published: Published
    size_bytes: int
    """About how large it is."""


class HistoryShelf(Protocol):
    """Where numbered snapshots are put. Errors of every call: those of whatever it is kept in."""

    async def history(self, location: SnapshotLocation, snapshot_id: str) -> Found | None:
        """The snapshot of that id."""
        ...

    async def put_history(
        self, location: SnapshotLocation, snapshot_id: str, document: Mapping[str, object], size_bytes: int
    ) -> None:
        """Put a snapshot of about that size, in the place of one of the same id."""
        ...

    async def ids(self, location: SnapshotLocation) -> list[str]:
        """The ids there are, oldest first."""
        ...

    async def numbering(self, location: SnapshotLocation) -> Numbering:
        """What the manifest says."""
        ...

    async def put_numbering(self, location: SnapshotLocation, numbering: Numbering, at: float) -> None:
        """Put a manifest."""
        ...


async def aside(size_bytes: int, work: Callable[[], T]) -> T:
    """What `work` gives: done in a thread when there is much of it."""
    if size_bytes <= _ASIDE_BYTES:
        return work()
    return await anyio.to_thread.run_sync(work)


def found_in(document: object, place: str) -> Found:
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
        if at is None:
            times = (at_of(row.body) for row in reversed(rows) if not row.erased)
            at = next((each for each in times if each is not None), 0.0)
        return Made(snapshot_document(content, at, standing), Published.of(content), size_bytes)
