"""What an agent's journal shows, as the snapshot that is made of it, and as one that was found."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar, cast

import anyio.to_thread

from repertory.core.journal.appender import Appender, Entropy
from repertory.core.journal.codec import at_of
from repertory.core.journal.fold import Fold
from repertory.core.journal.history.rewind import rewind
from repertory.core.journal.restore import restore
from repertory.core.journal.whole_journal import read_whole
from repertory.core.snapshots.document import (
    FoundRun,
    JournalPosition,
    SnapshotContent,
    read_run_snapshot,
    read_snapshot,
    rows_for_run,
    run_snapshot,
    snapshot_content,
    snapshot_document,
)
from repertory.core.snapshots.intake import Published, taken_in
from repertory.errors import Invalid, SnapshotException, StoreNotFound

if TYPE_CHECKING:
    from repertory.core.journal.rows import Row
    from repertory.core.messages import Json
    from repertory.core.snapshots.document import ReadSnapshot
    from repertory.core.snapshots.location import Numbering, SnapshotLocation

_THEIRS = "manager"
"""Where a snapshot of ours keeps the name of the conversation manager that others have."""


_ASIDE_BYTES = 64 * 1024
"""More is read and spelled in a thread: the event loop has other things to do."""

T = TypeVar("T")
S = TypeVar("S", "ReadSnapshot", "FoundRun")
"""What a snapshot says: of an agent, or of an orchestrator."""


class FoundSnapshot(NamedTuple, Generic[S]):
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


class PreparedSnapshot(NamedTuple):
    """A snapshot that is to be put somewhere."""

    document: dict[str, object]
    """Values that JSON has."""
    published: Published | None
    """None for a run."""
    size_bytes: int
    """About how large it is."""


class HistoryShelf(Protocol):
    """Where numbered snapshots are put. Errors of every call: those of whatever it is kept in."""

    async def history(self, location: SnapshotLocation, snapshot_id: str) -> FoundSnapshot[ReadSnapshot] | None:
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


async def in_thread_when_large(size_bytes: int, work: Callable[[], T]) -> T:
    """What `work` gives: done in a thread when there is much of it."""
    if size_bytes <= _ASIDE_BYTES:
        return work()
    return await anyio.to_thread.run_sync(work)


def last_time(rows: Sequence[Row]) -> float:
    """When the last of these rows was made, in epoch seconds; 0.0 when none of them says so."""
    times = (at_of(row.body) for row in reversed(rows) if not row.erased)
    return next((each for each in times if each is not None), 0.0)


class Maker(ABC, Generic[S]):
    """Makes the snapshots of one agent or orchestrator from rows of its journal, and reads them."""

    def __init__(self, location: SnapshotLocation, generation: int) -> None:
        self._location = location
        self.generation = generation

    @abstractmethod
    def found_in(self, document: object, place: str) -> FoundSnapshot[S]:
        """A snapshot in values that JSON has, whoever wrote it."""

    @abstractmethod
    def keep(self, snapshot: S, *, ours: bool) -> None:
        """This is the latest snapshot as it was read: what others keep in it stays."""

    @abstractmethod
    async def rows_for(
        self, rows: Sequence[Row], snapshot: S, entropy: Entropy, at: float, published: Published | None = None
    ) -> list[Row]:
        """The rows that follow on `rows` so that the journal shows what the snapshot shows. `published`: what others
        could see of it last, if that is known.
        """

    async def made(
        self, rows: Sequence[Row], at: float | None = None, more: Mapping[str, Json] | None = None
    ) -> PreparedSnapshot:
        """The snapshot of what rows amount to: those from the last one's `low` on. It is of the time `at`, or of that
        of the last row. `more` goes with it.
        """
        size_bytes = sum(len(row.body) for row in rows)

        def made() -> PreparedSnapshot:
            fold = restore(rows, session_id=self._location.session_id).fold if rows else Fold()
            last = rows[-1] if rows else None
            standing = JournalPosition(
                seq=last.seq if last is not None else 0,
                link=last.link.hex() if last is not None else "",
                generation=self.generation,
                more=more or {},
            )
            document, published = self._spelled(fold, last_time(rows) if at is None else at, standing)
            return PreparedSnapshot(document, published, size_bytes)

        return await in_thread_when_large(size_bytes, made)

    @abstractmethod
    def _spelled(
        self, fold: Fold, at: float, standing: JournalPosition
    ) -> tuple[dict[str, object], Published | None]: ...


def found_snapshot(document: object, place: str) -> FoundSnapshot[ReadSnapshot]:
    """A snapshot of an agent in values that JSON has, whoever wrote it."""
    found = _found_in(document, place, read_snapshot)
    return found if found.snapshot is None else found._replace(published=Published.of(found.snapshot.content))


def run_found_in(document: object, place: str, orchestrator_id: str) -> FoundSnapshot[FoundRun]:
    """A snapshot of a run in values that JSON has, whoever wrote it."""
    return _found_in(document, place, partial(read_run_snapshot, orchestrator_id=orchestrator_id))


def _found_in(document: object, place: str, read: Callable[[object], S]) -> FoundSnapshot[S]:
    said = cast("dict[str, object]", document) if isinstance(document, dict) else dict[str, object]()
    try:
        return FoundSnapshot(place, read(cast("object", document)), document=said)
    except SnapshotException as error:
        return FoundSnapshot(place, None, str(error), document=said)


class SnapshotMaker(Maker["ReadSnapshot"]):
    """Those of an agent. The name of the conversation manager that others have stays in them: they insist on it."""

    def __init__(self, location: SnapshotLocation, generation: int, manager: str) -> None:
        """`manager`: the class name of the agent's conversation manager."""
        super().__init__(location, generation)
        self._manager = manager
        self._found: SnapshotContent | None = None
        self._theirs = ""

    def keep(self, snapshot: ReadSnapshot, *, ours: bool) -> None:
        self._found = replace(snapshot.content, messages=())
        standing = snapshot.position
        told = standing.more.get(_THEIRS) if ours and standing is not None else snapshot.content.manager.get("__name__")
        self._theirs = told if isinstance(told, str) else ""

    def found_in(self, document: object, place: str) -> FoundSnapshot[ReadSnapshot]:
        return found_snapshot(document, place)

    async def rows_for(
        self,
        rows: Sequence[Row],
        snapshot: ReadSnapshot,
        entropy: Entropy,
        at: float,
        published: Published | None = None,
    ) -> list[Row]:
        return await rows_for(self._location, rows, snapshot, entropy, at, published)

    def _spelled(self, fold: Fold, at: float, standing: JournalPosition) -> tuple[dict[str, object], Published | None]:
        content = snapshot_content(fold, self._found, self._theirs or self._manager)
        if self._theirs:
            standing = replace(standing, more={_THEIRS: self._theirs, **standing.more})
        return snapshot_document(content, at, standing), Published.of(content)


class RunMaker(Maker["FoundRun"]):
    """Those of an orchestrator."""

    _app_data: Mapping[str, Json] = MappingProxyType({})

    def found_in(self, document: object, place: str) -> FoundSnapshot[FoundRun]:
        return run_found_in(document, place, self._location.scope_id)

    def keep(self, snapshot: FoundRun, *, ours: bool) -> None:
        del ours
        self._app_data = snapshot.app_data

    async def rows_for(
        self,
        rows: Sequence[Row],
        snapshot: FoundRun,
        entropy: Entropy,
        at: float,
        published: Published | None = None,
    ) -> list[Row]:
        del published
        nodes = snapshot.said.get("node_results")
        size_bytes = sum(len(row.body) for row in rows) + 1024 * (len(nodes) if isinstance(nodes, dict) else 0)
        return await in_thread_when_large(size_bytes, lambda: rows_for_run(self._location, rows, snapshot, at, entropy))

    def _spelled(self, fold: Fold, at: float, standing: JournalPosition) -> tuple[dict[str, object], Published | None]:
        return run_snapshot(fold, self._location.scope_id, at, standing, self._app_data), None


_log = logging.getLogger("repertory.sessions")


def is_of(standing: JournalPosition | None, rows: Sequence[Row]) -> bool:
    """Whether a snapshot is one of this journal, whose rows from the last one's `low` on are given."""
    if standing is None or not rows or standing.seq > rows[-1].seq:
        return False
    place = standing.seq - rows[0].seq
    return place < 0 or rows[place].link.hex() == standing.link


async def rows_for(
    location: SnapshotLocation,
    rows: Sequence[Row],
    snapshot: ReadSnapshot,
    entropy: Entropy,
    at: float,
    published: Published | None = None,
) -> list[Row]:
    """The rows that follow on `rows` so that the journal shows what the snapshot shows."""

    def made() -> list[Row]:
        fold = restore(rows, session_id=location.session_id).fold
        appender = Appender(location.scope_id, fold, rows[-1].link if rows else None, entropy)
        return taken_in(appender, snapshot.content, snapshot.created_at or at, published)

    size_bytes = sum(len(row.body) for row in rows) + 256 * len(snapshot.content.messages)
    return await in_thread_when_large(size_bytes, made)


def holds_more(snapshot: ReadSnapshot, document: Mapping[str, object]) -> bool:
    """Whether a snapshot may say something that no journal says: beside a turn that waits for a person, or stashed
    content.
    """
    data = document.get("data")
    return bool(snapshot.content.interrupt_state.get("activated")) or (isinstance(data, Mapping) and "stash" in data)


async def unreadable(shelf: HistoryShelf, location: SnapshotLocation, found: FoundSnapshot[S]) -> SnapshotException:
    """The error for a latest snapshot that nobody can read, where there is no journal to go on from."""
    ids = await shelf.ids(location)
    hint = f"open the session with load_snapshot_id={ids[-1]!r}" if ids else "there is no numbered snapshot either"
    msg = f"the latest snapshot cannot be read, and the journal has nothing; {hint}, or remove the file"
    return SnapshotException(msg, file=found.place, cause=found.fault)


async def find_history(shelf: HistoryShelf, location: SnapshotLocation, snapshot_id: str) -> ReadSnapshot:
    """The snapshot of that id. Errors: `NotFound`, `SnapshotException`."""
    found = await shelf.history(location, snapshot_id)
    if found is None:
        fields = {"session": location.session_id, "agent": location.scope_id}
        raise StoreNotFound("no such snapshot", snapshot_id=snapshot_id, known=await shelf.ids(location), **fields)
    if found.snapshot is None:
        raise SnapshotException("the snapshot cannot be read", file=found.place, cause=found.fault)
    return found.snapshot


def rows_back_to(
    whole: Sequence[Row], snapshot: ReadSnapshot, name: str, location: SnapshotLocation, entropy: Entropy
) -> Sequence[Row] | None:
    """The rows by which the journal goes on from a snapshot of its own: none when it stands there already.

    None when the snapshot is of another journal, or what it showed was erased since.
    """
    standing = snapshot.position
    if standing is None or not standing.seq or not is_of(standing, whole):
        return None
    if standing.seq == whole[-1].seq:
        return []
    try:
        journal = read_whole(whole, session_id=location.session_id, agent_id=location.scope_id)
        return rewind(journal, standing.seq, at=snapshot.created_at, entropy=entropy, name=name)
    except Invalid as error:
        _log.warning("a snapshot is taken in as its file has it name=%r why=%r", name, str(error))
        return None
