"""Where the snapshots of an agent are put: what every such place can do, and what is made and found there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import anyio.to_thread

from repertory.core.journal.codec import at_of
from repertory.core.snapshots.intake import Published

if TYPE_CHECKING:
    from repertory.core.journal.appender import Entropy
    from repertory.core.journal.rows import Row
    from repertory.core.messages import Json
    from repertory.core.snapshots.document import ReadRun, ReadSnapshot
    from repertory.core.snapshots.location import Numbering, SnapshotLocation

_ASIDE_BYTES = 64 * 1024
"""More is read and spelled in a thread: the event loop has other things to do."""

T = TypeVar("T")
S = TypeVar("S", "ReadSnapshot", "ReadRun")
"""What a snapshot says: of an agent, or of an orchestrator."""


class Found(NamedTuple, Generic[S]):
    """A snapshot as it lies there."""

    place: str
    """What to call it in messages."""
    snapshot: S | None
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
    published: Published | None
    """None for a run."""
    size_bytes: int
    """About how large it is."""


class HistoryShelf(Protocol):
    """Where numbered snapshots are put. Errors of every call: those of whatever it is kept in."""

    async def history(self, location: SnapshotLocation, snapshot_id: str) -> Found[ReadSnapshot] | None:
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

    async def keep_manifest(self, location: SnapshotLocation) -> None:
        """Keep a copy of a manifest that nobody can read, if there is room for that: it is to be replaced."""
        ...

    async def put_numbering(self, location: SnapshotLocation, numbering: Numbering, at: float) -> None:
        """Put a manifest."""
        ...


class Maker(Protocol[S]):
    """Makes the snapshots of one agent or orchestrator, and reads them."""

    generation: int

    def found_in(self, document: object, place: str) -> Found[S]:
        """A snapshot in values that JSON has, whoever wrote it."""
        ...

    def keep(self, snapshot: S, *, ours: bool) -> None:
        """This is the latest snapshot as it was read: what others keep in it stays."""
        ...

    async def made(self, rows: Sequence[Row], at: float | None = None, more: Mapping[str, Json] | None = None) -> Made:
        """The snapshot of what rows amount to: those from the last one's `low` on. It is of the time `at`, or of that
        of the last row. `more` goes with it.
        """
        ...

    async def rows_for(
        self, rows: Sequence[Row], snapshot: S, entropy: Entropy, at: float, published: Published | None = None
    ) -> list[Row]:
        """The rows that follow on `rows` so that the journal shows what the snapshot shows. `published`: what others
        could see of it last, if that is known.
        """
        ...


async def aside(size_bytes: int, work: Callable[[], T]) -> T:
    """What `work` gives: done in a thread when there is much of it."""
    if size_bytes <= _ASIDE_BYTES:
        return work()
    return await anyio.to_thread.run_sync(work)


def last_time(rows: Sequence[Row]) -> float:
    """When the last of these rows was made, in epoch seconds; 0.0 when none of them says so."""
    times = (at_of(row.body) for row in reversed(rows) if not row.erased)
    return next((each for each in times if each is not None), 0.0)
