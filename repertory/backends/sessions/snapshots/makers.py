"""Makes snapshots from an agent's journal, and reads stored snapshots."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar, cast

import anyio.to_thread

from repertory.core.journal.codec import at_of
from repertory.core.journal.fold import Fold
from repertory.core.journal.history.rewind import rewind
from repertory.core.journal.restore import Appender, Entropy, restore
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
"""The key under which our snapshots keep the conversation manager's name that other programs wrote."""


_ASIDE_BYTES = 64 * 1024
"""Larger snapshots are read and written in a thread, so that the event loop stays free."""

T = TypeVar("T")
S = TypeVar("S", "ReadSnapshot", "FoundRun")
"""The content of a snapshot: an agent's, or an orchestrator's."""


class FoundSnapshot(NamedTuple, Generic[S]):
    """A stored snapshot."""

    place: str
    """Its name in messages."""
    snapshot: S | None
    """None: it cannot be read."""
    fault: str = ""
    """Why it cannot be read."""
    version: str = ""
    document: Mapping[str, object] = MappingProxyType({})
    """The snapshot as JSON values."""
    published: Published | None = None
    """Used to tell what other programs changed in it."""


class PreparedSnapshot(NamedTuple):
    """A snapshot to be stored."""

    document: dict[str, object]
    """JSON values."""
    published: Published | None
    """None for a run."""
    size_bytes: int
    """Approximate."""


class HistoryStore(Protocol):
    """A store of numbered snapshots. Errors of every call: those of the underlying storage."""

    async def history(self, location: SnapshotLocation, snapshot_id: str) -> FoundSnapshot[ReadSnapshot] | None: ...

    async def put_history(
        self, location: SnapshotLocation, snapshot_id: str, document: Mapping[str, object], size_bytes: int
    ) -> None:
        """Store a snapshot of about that size; it replaces one with the same id."""
        ...

    async def ids(self, location: SnapshotLocation) -> list[str]:
        """The stored ids, oldest first."""
        ...

    async def numbering(self, location: SnapshotLocation) -> Numbering:
        """The content of the manifest."""
        ...

    async def keep_manifest(self, location: SnapshotLocation) -> None:
        """Keep a copy of an unreadable manifest before it is replaced, if the storage can."""
        ...

    async def put_numbering(self, location: SnapshotLocation, numbering: Numbering, at: float) -> None: ...


async def in_thread_when_large(size_bytes: int, work: Callable[[], T]) -> T:
    """The result of `work`, which runs in a thread when the data is large."""
    if size_bytes <= _ASIDE_BYTES:
        return work()
    return await anyio.to_thread.run_sync(work)


def last_time(rows: Sequence[Row]) -> float:
    """When the last of these rows was made, in epoch seconds; 0.0 when none says so."""
    times = (at_of(row.body) for row in reversed(rows) if not row.erased)
    return next((each for each in times if each is not None), 0.0)


class Maker(ABC, Generic[S]):
    """Makes and reads the snapshots of one agent or orchestrator."""

    def __init__(self, location: SnapshotLocation, generation: int) -> None:
        self._location = location
        self.generation = generation

    @abstractmethod
    def found_in(self, document: object, place: str) -> FoundSnapshot[S]:
        """Read a snapshot from JSON values, written by this or another program."""

    @abstractmethod
    def keep(self, snapshot: S, *, ours: bool) -> None:
        """Remember the latest snapshot as it was read, so that other programs' fields in it are kept."""

    @abstractmethod
    async def rows_for(
        self, rows: Sequence[Row], snapshot: S, entropy: Entropy, at: float, published: Published | None = None
    ) -> list[Row]:
        """The rows to append after `rows` so that the journal shows what the snapshot shows. `published`: what other
        programs could last see of it, if known.
        """

    async def made(
        self, rows: Sequence[Row], at: float | None = None, more: Mapping[str, Json] | None = None
    ) -> PreparedSnapshot:
        """The snapshot of the state after `rows`, which begin at the last one's `low`. Its time is `at`, or that of the
        last row. `more` is added to it.
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
    """Read an agent's snapshot from JSON values, written by this or another program."""
    found = _found_in(document, place, read_snapshot)
    return found if found.snapshot is None else found._replace(published=Published.of(found.snapshot.content))


def run_found_in(document: object, place: str, orchestrator_id: str) -> FoundSnapshot[FoundRun]:
    """Read a run's snapshot from JSON values, written by this or another program."""
    return _found_in(document, place, partial(read_run_snapshot, orchestrator_id=orchestrator_id))


def _found_in(document: object, place: str, read: Callable[[object], S]) -> FoundSnapshot[S]:
    said = cast("dict[str, object]", document) if isinstance(document, dict) else dict[str, object]()
    try:
        return FoundSnapshot(place, read(cast("object", document)), document=said)
    except SnapshotException as error:
        return FoundSnapshot(place, None, str(error), document=said)


class SnapshotMaker(Maker["ReadSnapshot"]):
    """An agent's snapshots. They keep the name of the conversation manager that other programs wrote, which those
    require.
    """

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
    """True if a snapshot was made from this journal, whose rows from the last one's `low` on are given."""
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
    """The rows to append after `rows` so that the journal shows what the snapshot shows."""

    def made() -> list[Row]:
        fold = restore(rows, session_id=location.session_id).fold
        appender = Appender(location.scope_id, fold, rows[-1].link if rows else None, entropy)
        return taken_in(appender, snapshot.content, snapshot.created_at or at, published)

    size_bytes = sum(len(row.body) for row in rows) + 256 * len(snapshot.content.messages)
    return await in_thread_when_large(size_bytes, made)


def holds_more(snapshot: ReadSnapshot, document: Mapping[str, object]) -> bool:
    """True if a snapshot may hold data that no journal holds: beside a turn that waits for a person, or stashed
    content.
    """
    data = document.get("data")
    return bool(snapshot.content.interrupt_state.get("activated")) or (isinstance(data, Mapping) and "stash" in data)


async def unreadable(shelf: HistoryStore, location: SnapshotLocation, found: FoundSnapshot[S]) -> SnapshotException:
    """The error for an unreadable latest snapshot when there is no journal to continue from."""
    ids = await shelf.ids(location)
    hint = f"open the session with load_snapshot_id={ids[-1]!r}" if ids else "there is no numbered snapshot either"
    msg = f"the latest snapshot cannot be read, and the journal has nothing; {hint}, or remove the file"
    return SnapshotException(msg, file=found.place, cause=found.fault)


async def find_history(shelf: HistoryStore, location: SnapshotLocation, snapshot_id: str) -> ReadSnapshot:
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
    """The rows that take the journal back to one of its own snapshots: none when it stands there already.

    None when the snapshot is of another journal, or its content was erased since.
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
