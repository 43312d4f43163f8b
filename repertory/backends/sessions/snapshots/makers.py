"""Makes snapshots from an agent's journal, reads stored ones, and keeps the numbered ones of each agent."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, cast

from msgspec.structs import replace

from repertory.backends.sessions.table import in_thread_when_large
from repertory.core.history.rewind import rewind
from repertory.core.journal.codec import decode
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import SnapshotTaken
from repertory.core.journal.restore import Appender, Entropy, restore
from repertory.core.journal.rows import RecordKind
from repertory.core.journal.whole_journal import read_whole
from repertory.core.message_tree.opening import needed_of
from repertory.core.snapshots.agent_view import last_time
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
from repertory.core.snapshots.intake import Published, Replacements, redact_snapshot, taken_in
from repertory.core.snapshots.location import Numbering, file_name, number_of
from repertory.errors import CorruptJournal, Invalid, SnapshotException, StoreNotFound
from repertory.logs import WARNING, note

if TYPE_CHECKING:
    from repertory.backends.sessions.snapshots.port import SnapshotChoices
    from repertory.core.journal.rows import Row
    from repertory.core.messages import Json
    from repertory.core.snapshots.agent_view import AgentView
    from repertory.core.snapshots.document import ReadSnapshot
    from repertory.core.snapshots.location import SnapshotLocation

_log = logging.getLogger("repertory.sessions")
_THEIRS = "manager"
"""The key under which our snapshots keep the conversation manager's name that other programs wrote."""
_NUMBER = "history"
"""The metadata key in a mark for the snapshot's number."""
S = TypeVar("S", "ReadSnapshot", "FoundRun")
"""The content of a snapshot: an agent's, or an orchestrator's."""


class FoundSnapshot(NamedTuple, Generic[S]):
    """A stored snapshot."""

    place: str
    """The name of the snapshot in messages."""
    snapshot: S | None
    """None: it cannot be read."""
    fault: str = ""
    """The reason why it cannot be read; empty if it can."""
    version: str = ""
    document: Mapping[str, object] = MappingProxyType({})
    """The snapshot as JSON values."""
    published: Published | None = None
    """Used to tell what other programs changed in it."""


def checked_content(found: FoundSnapshot[S]) -> S:
    """The snapshot that was read. Errors: `SnapshotException` for one that cannot be read, with the reason."""
    if found.snapshot is None:
        raise SnapshotException("a snapshot cannot be read", file=found.place, cause=found.fault)
    return found.snapshot


class PreparedSnapshot(NamedTuple):
    """A snapshot to be stored."""

    document: dict[str, object]
    """JSON values."""
    published: Published | None
    """None for a run."""
    size_bytes: int
    """Approximate."""


class LatestFile(NamedTuple):
    """A latest snapshot to be stored, as the bytes of its file."""

    body: bytes
    seq: int
    """The last record that it shows."""
    published: Published | None = None
    """None for a run."""


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
    def left_out(self, found: FoundSnapshot[S]) -> str:
        """The reason why a snapshot may hold more than is taken in, so that a copy must stay; empty for none."""

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
            position = JournalPosition(
                seq=last.seq if last is not None else 0,
                link=last.link.hex() if last is not None else "",
                generation=self.generation,
                more=more or {},
            )
            document, published = self._spelled(fold, last_time(rows) if at is None else at, position)
            return PreparedSnapshot(document, published, size_bytes)

        return await in_thread_when_large(size_bytes, made)

    @abstractmethod
    def _spelled(
        self, fold: Fold, at: float, position: JournalPosition
    ) -> tuple[dict[str, object], Published | None]: ...


def found_snapshot(document: object, place: str) -> FoundSnapshot[ReadSnapshot]:
    """Read an agent's snapshot from JSON values, written by this or another program."""
    found = _found_in(document, place, read_snapshot)
    return found if found.snapshot is None else found._replace(published=Published.of(found.snapshot.content))


def run_found_in(document: object, place: str, orchestrator_id: str) -> FoundSnapshot[FoundRun]:
    """Read a run's snapshot from JSON values, written by this or another program."""
    return _found_in(document, place, partial(read_run_snapshot, orchestrator_id=orchestrator_id))


def _found_in(document: object, place: str, read: Callable[[object], S]) -> FoundSnapshot[S]:
    fields = cast("dict[str, object]", document) if isinstance(document, dict) else dict[str, object]()
    try:
        return FoundSnapshot(place, read(cast("object", document)), document=fields)
    except SnapshotException as error:
        return FoundSnapshot(place, None, str(error), document=fields)


class SnapshotMaker(Maker["ReadSnapshot"]):
    """An agent's snapshots. They keep the name of the conversation manager that other programs wrote, which those
    require. An agent without a system prompt gets the stored one.
    """

    def __init__(self, location: SnapshotLocation, generation: int, choices: SnapshotChoices) -> None:
        super().__init__(location, generation)
        self._manager, self._prompted = choices.manager, choices.prompted
        self._found: SnapshotContent | None = None
        self._theirs = ""

    def keep(self, snapshot: ReadSnapshot, *, ours: bool) -> None:
        # Its messages are in the journal; kept here they would stay in memory twice, for as long as the session is
        # open.
        self._found = replace(snapshot.content, messages=())
        position = snapshot.position
        name = position.more.get(_THEIRS) if ours and position is not None else snapshot.content.manager.get("__name__")
        self._theirs = name if isinstance(name, str) else ""
        if self._prompted is not None and self._prompted.system_prompt is None:
            self._prompted.system_prompt = snapshot.content.system_prompt

    def found_in(self, document: object, place: str) -> FoundSnapshot[ReadSnapshot]:
        return found_snapshot(document, place)

    def left_out(self, found: FoundSnapshot[ReadSnapshot]) -> str:
        data = found.document.get("data")
        waits = found.snapshot is not None and bool(found.snapshot.content.interrupt_state.get("activated"))
        stashed = isinstance(data, Mapping) and "stash" in data
        return "it holds what may not be taken in: a turn that waits, or stashed content" if waits or stashed else ""

    async def rows_for(
        self,
        rows: Sequence[Row],
        snapshot: ReadSnapshot,
        entropy: Entropy,
        at: float,
        published: Published | None = None,
    ) -> list[Row]:
        return await rows_for(self._location, rows, snapshot, entropy, at, published)

    def latest(self, view: AgentView) -> LatestFile:
        """The latest snapshot. Errors: `Invalid` for values that are not JSON."""
        position = self._with_theirs(view.position(self.generation))
        body, published = view.snapshot(self._content(view.fold), position)
        return LatestFile(body, view.seq, published)

    def _spelled(self, fold: Fold, at: float, position: JournalPosition) -> tuple[dict[str, object], Published | None]:
        content = self._content(fold)
        return snapshot_document(content, at, self._with_theirs(position)), Published.of(content)

    def _content(self, fold: Fold) -> SnapshotContent:
        content = snapshot_content(fold, self._found, self._theirs or self._manager)
        if self._prompted is not None:
            content = replace(content, system_prompt=self._prompted.system_prompt)
        return content

    def _with_theirs(self, position: JournalPosition) -> JournalPosition:
        return replace(position, more={_THEIRS: self._theirs, **position.more}) if self._theirs else position


class RunMaker(Maker["FoundRun"]):
    _app_data: Mapping[str, Json] = MappingProxyType({})

    def found_in(self, document: object, place: str) -> FoundSnapshot[FoundRun]:
        return run_found_in(document, place, self._location.scope_id)

    def keep(self, snapshot: FoundRun, *, ours: bool) -> None:
        del ours
        self._app_data = snapshot.app_data

    def left_out(self, found: FoundSnapshot[FoundRun]) -> str:
        waits = found.snapshot is not None and found.snapshot.waits
        return "it may hold more of what somebody was asked than is taken in" if waits else ""

    async def rows_for(
        self,
        rows: Sequence[Row],
        snapshot: FoundRun,
        entropy: Entropy,
        at: float,
        published: Published | None = None,
    ) -> list[Row]:
        del published
        nodes = snapshot.document.get("node_results")
        size_bytes = sum(len(row.body) for row in rows) + 1024 * (len(nodes) if isinstance(nodes, dict) else 0)
        return await in_thread_when_large(size_bytes, lambda: rows_for_run(self._location, rows, snapshot, at, entropy))

    def _spelled(self, fold: Fold, at: float, position: JournalPosition) -> tuple[dict[str, object], Published | None]:
        return run_snapshot(fold, self._location.scope_id, at, position, self._app_data), None


def is_of(position: JournalPosition | None, rows: Sequence[Row]) -> bool:
    """True if a snapshot was made from this journal, whose rows from the last one's `low` on are given."""
    if position is None or not rows or position.seq > rows[-1].seq:
        return False
    index = position.seq - rows[0].seq
    # Below the window the link cannot be compared without reading more; the number alone decides then.
    return index < 0 or rows[index].link.hex() == position.link


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


async def unreadable(store: HistoryStore, location: SnapshotLocation, found: FoundSnapshot[S]) -> SnapshotException:
    """The error for an unreadable latest snapshot when there is no journal to continue from."""
    ids = await store.ids(location)
    hint = f"open the session with load_snapshot_id={ids[-1]!r}" if ids else "there is no numbered snapshot either"
    msg = f"the latest snapshot cannot be read, and the journal has nothing; {hint}, or remove the file"
    return SnapshotException(msg, file=found.place, cause=found.fault)


# The numbered snapshots of one agent: the next number, and writing the snapshots that the journal has marked.
#
# A mark is a journal record, committed together with the turn that it follows. The document is written later, off the
# path of the answer, and from the journal alone: so after a crash the next owner can write the missing ones.


class Marked(NamedTuple):
    """A marked snapshot that has no document yet."""

    number: int
    seq: int
    """The sequence number of its mark."""
    at: float
    rows: Sequence[Row]
    """The rows that it shows, from the `low` of the row before the mark on."""


class AgentHistory:
    """The numbered snapshots of an agent whose session is owned."""

    def __init__(
        self, store: HistoryStore, location: SnapshotLocation, maker: Maker[Any], wall: Callable[[], float]
    ) -> None:
        self._store = store
        self._location = location
        self._maker = maker
        self._wall = wall
        self._waiting: deque[Marked] = deque()
        self._next = 1
        self.numbering = Numbering()
        """The content of the manifest."""
        self.rebuilt = False
        """True if the manifest is damaged and the new one is not written yet."""
        self.last_at: float | None = None
        """Epoch seconds of the last snapshot."""

    @property
    def due(self) -> bool:
        return bool(self._waiting)

    async def read(self) -> None:
        """Read the manifest. A damaged one is rebuilt from the stored snapshots and the marks in the journal."""
        try:
            self.numbering = await self._store.numbering(self._location)
        except SnapshotException as error:
            self.numbering, self.rebuilt = await self._rebuilt(), True
            await self._store.keep_manifest(self._location)
            note(_log, WARNING, "a manifest is damaged, and is rebuilt", error)
        self._next, self.last_at = self.numbering.next_number, self.numbering.last_at

    async def _rebuilt(self) -> Numbering:
        ids = await self._store.ids(self._location)
        last = max((number for each in ids if (number := number_of(each)) is not None), default=0)
        found = await self._store.history(self._location, str(last)) if last else None
        at = found.snapshot.created_at if found is not None and found.snapshot is not None else None
        return Numbering(next_number=last + 1, last_at=at or None)

    def mark(self, at: float) -> SnapshotTaken:
        """The record that marks the next snapshot; it follows the rows that the snapshot shows."""
        number, self._next = self._next, self._next + 1
        self.last_at = at
        return SnapshotTaken(at=at, label=file_name(str(number)).removesuffix(".json"), metadata={_NUMBER: number})

    def see(self, before: Sequence[Row], added: Sequence[Row]) -> None:
        """Collect the marks among `added`, which follow the rows `before`."""
        for index, row in enumerate(added):
            taken = mark_in(row)
            if taken is not None:
                visible = [*before, *added[:index]]
                visible = visible[max(visible[-1].low - visible[0].seq, 0) :] if visible else []
                number = marked_number(taken)
                self._waiting.append(Marked(number, row.seq, taken.at, visible))
                self._next, self.last_at = max(self._next, number + 1), taken.at

    async def publish(self) -> None:
        """Write the documents of all marks, in order; after each, the manifest. Errors: the snapshot store's."""
        while self._waiting:
            marked = self._waiting[0]
            try:
                made = await self._maker.made(marked.rows, marked.at)
                await self._store.put_history(self._location, str(marked.number), made.document, made.size_bytes)
            except CorruptJournal as error:  # Its rows cannot be read any more; give this snapshot up for good.
                ids = {"session": self._location.session_id, "agent": self._location.scope_id}
                note(_log, WARNING, "a snapshot cannot be made", error, number=marked.number, **ids)
            number, seq = marked.number + 1, marked.seq
            await self._put(Numbering(next_number=number, last_at=marked.at, taken=seq, mark=seq))
            if self._waiting and self._waiting[0] is marked:
                self._waiting.popleft()

    async def branch(self, number: int | None, at: float, mark: int) -> None:
        """Continue after that number and overwrite later snapshots. None: there is no such number, and numbering is
        unchanged.

        `mark`: the last record of the journal.
        """
        following = self.numbering.next_number if number is None else number + 1
        await self._put(replace(self.numbering, next_number=following, last_at=at or None, mark=mark))
        self._next, self.last_at = following, at or None

    async def find(self, snapshot_id: str) -> ReadSnapshot:
        """The snapshot of that id, after all marks have their documents. Errors: `NotFound`, `SnapshotException`."""
        found = await self._store.history(self._location, snapshot_id)
        if found is None:
            fields = {"session": self._location.session_id, "agent": self._location.scope_id}
            known = await self._store.ids(self._location)
            raise StoreNotFound("no such snapshot", snapshot_id=snapshot_id, known=known, **fields)
        if found.snapshot is None:
            raise SnapshotException("the snapshot cannot be read", file=found.place, cause=found.fault)
        await self.publish()
        return found.snapshot

    async def rows_back_to(
        self, snapshot_id: str, snapshot: ReadSnapshot, whole: Sequence[Row], entropy: Entropy
    ) -> Sequence[Row]:
        """The rows to append to the whole journal so that it shows this snapshot. One of its own snapshots takes it
        back; one of another journal, or whose content was erased since, is taken in as its file has it.
        """
        position = snapshot.position
        if position is not None and position.seq and is_of(position, whole):
            if position.seq == whole[-1].seq:
                return []
            name = f"snapshot {snapshot_id}"
            try:
                journal = read_whole(whole, session_id=self._location.session_id, agent_id=self._location.scope_id)
                return rewind(journal, position.seq, at=snapshot.created_at, entropy=entropy, name=name)
            except Invalid as error:
                note(_log, WARNING, "a snapshot is taken in as its file has it", error, file=name)
        return await rows_for(self._location, needed_of(whole), snapshot, entropy, self._wall())

    async def redact(self, instead: Replacements) -> None:
        """Replace messages in every numbered snapshot. Errors: the snapshot store's."""
        await self.publish()
        for snapshot_id in await self._store.ids(self._location):
            found = await self._store.history(self._location, snapshot_id)
            changed = redact_snapshot(found.document, instead) if found is not None else None
            if changed is not None:
                await self._store.put_history(self._location, snapshot_id, changed, 0)

    async def settle(self, mark: int) -> None:
        """Write into the manifest that every mark up to that record has its document."""
        await self._put(replace(self.numbering, mark=mark))

    async def _put(self, numbering: Numbering) -> None:
        await self._store.put_numbering(self._location, numbering, self._wall())
        self.numbering, self.rebuilt = numbering, False


def mark_in(row: Row) -> SnapshotTaken | None:
    """The row's mark of a numbered snapshot; None for every other row."""
    if row.kind != RecordKind.SNAPSHOT or row.erased:
        return None
    record = decode(row.kind, row.version, row.body)
    if not isinstance(record, SnapshotTaken) or not isinstance(record.metadata.get(_NUMBER), int):
        return None
    return record


def marked_number(mark: SnapshotTaken) -> int:
    return int(str(mark.metadata[_NUMBER]))


def marked_numbers(rows: Iterable[Row]) -> set[int]:
    return {marked_number(mark) for row in rows if (mark := mark_in(row)) is not None}
