"""Reading a session: its head, the rows that opening needs, the commits after the head, or everything.

Nothing is repaired here. If an object is missing because the owner merged it meanwhile, the reader starts again.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

from repertory.backends.ports import ObjectInfo, ObjectStore, StoredObject
from repertory.backends.sessions.journal.format import (
    HeadObject,
    ObjectKind,
    Packed,
    SessionKeys,
    commit_of_key,
    erasing_in,
    head_in,
    marks_in,
    read_object,
    whole_number,
)
from repertory.backends.sessions.requests import SIDE_BY_SIDE, find, find_all
from repertory.core.journal.codec import at_of
from repertory.core.journal.rows import Row
from repertory.errors import CorruptJournal

_READINGS_MAX = 4
"""Readings before a reader gives up, since the owner keeps merging objects."""


class StoredHead(NamedTuple):
    head: HeadObject
    rows: list[Row]
    """The rows stored in the head itself."""
    version: str


class Segment(NamedTuple):
    """The rows and erasures of one commit."""

    commit: int
    generation: int
    owner: str
    rows: list[Row]
    erasing: tuple[tuple[str, int], ...]
    size_bytes: int
    marks: Mapping[str, str]
    """See `HeadObject.marks`."""
    emptied: bool = False
    """True if the agents of its rows were forgotten since."""

    @property
    def fence(self) -> bool:
        """True if it only keeps a former owner from committing. A fence is never removed."""
        return not self.rows and not self.erasing and not self.emptied


class Changed(Exception):
    """The owner has moved an object while it was being read."""


class SessionReader:
    def __init__(self, objects: ObjectStore, keys: SessionKeys, session_id: str) -> None:
        self._objects = objects
        self._keys = keys
        self._session_id = session_id

    async def head(self) -> StoredHead | None:
        stored = await find(self._objects, self._keys.head)
        return None if stored is None else self._head(stored)

    async def headless(self) -> HeadObject:
        """A head for a session without one: it never existed, or was removed and left its fences.

        Raises `Changed` when it has a head by now. Errors: `CorruptJournal` when the head was lost: an existing session
        must not start empty.
        """
        found = await self._objects.list(f"{self._keys.folder}/")
        # Without its head, what a session was can only be told by what is left: fences alone mean that it was deleted,
        # rows that its head was lost. The first may begin anew, the second must not.
        numbers = [commit_of_key(info.key) or 0 for info in found if info.key.startswith(self._keys.segments)]
        chunks = any(info.key.startswith(self._keys.chunks) and commit_of_key(info.key) for info in found)
        try:
            segments = await self.segments([number for number in numbers if number])
        except Changed:  # A delete is running.
            segments = []
        if chunks or any(not segment.fence for segment in segments):
            # Put since we looked: another process begins the session at this moment.
            if await self.head() is not None:
                raise Changed(self._keys.head)
            text = "the head of the session is missing: `doctor --repair` makes it anew of what is there"
            raise CorruptJournal(text, session=self._session_id, key=self._keys.head)
        end = max((segment.commit for segment in segments), default=0)
        generation = max((segment.generation for segment in segments), default=0)
        # Behind the fences, so that no late put of a former owner finds its key free.
        return HeadObject(session=self._session_id, generation=generation, commit=end, deleted=bool(end))

    async def window(self, stored: StoredHead) -> list[Row]:
        """The rows that opening needs as of the head, and those that only the head has. Raises `Changed` when the head
        was replaced meanwhile.
        """
        head, rows, key = stored.head, stored.rows, self._keys.head
        if head.window is not None:
            key = self._keys.window(head.window)
            found = await find(self._objects, key)
            # A window is removed only after a head that no longer names it, so there is a newer head to read.
            if found is None:
                raise Changed(key)
            before = self.read(found, "window", key).rows
            rows = [*before, *after(rows, Window(before).seqs)]
        # The same numbers stand in two objects: a window put back from a backup, or swapped, does not go unnoticed.
        if Window(rows).seqs != dict(head.seqs):
            raise CorruptJournal("the window is not the head's", session=self._session_id, key=key)
        return rows

    async def tail(self, commit: int) -> list[Segment]:
        """Every segment after `commit`, in order: one list request, and concurrent gets."""
        found = await self._objects.list(self._keys.segments, self._keys.segment(commit))
        return await self.segments_in(found, commit)

    async def segments_in(self, found: Sequence[ObjectInfo], commit: int) -> list[Segment]:
        """The segments after `commit` among these objects. Raises `Changed` when one is missing."""
        numbers = sorted(
            {number for info in found if (number := commit_of_key(info.key)) is not None and number > commit}
        )
        # Commits have no gaps, so a gap is not a missing commit but a segment that was merged and removed since the
        # head was read (or one that is lost: `_unchanged` tells the two apart by trying again).
        for expected, number in enumerate(numbers, commit + 1):
            if number != expected:
                raise Changed(self._keys.segment(expected))
        return await self.segments(numbers)

    async def segments(self, numbers: Sequence[int], at_once: int = SIDE_BY_SIDE) -> list[Segment]:
        """The segments of these numbers. Raises `Changed` when one is missing."""
        stored = await find_all(self._objects, [self._keys.segment(number) for number in numbers], at_once)
        return [self.segment(number, found) for number, found in zip(numbers, stored, strict=True)]

    def segment(self, number: int, found: StoredObject | None) -> Segment:
        key = self._keys.segment(number)
        if found is None:
            raise Changed(key)
        header, rows = self.read(found, "segment", key)
        # Objects are told by their keys, and a restored backup may have them under others.
        if header.get("commit") != number:
            raise CorruptJournal("a segment has another's key", session=self._session_id, key=key)
        try:
            generation, erasing = whole_number(header.get("generation")), erasing_in(header.get("erasing"))
        except ValueError as error:
            raise self._damaged(key, error) from error
        marks = marks_in(header.get("marks"))
        owner, emptied = str(header.get("owner")), header.get("emptied") is True
        return Segment(number, generation, owner, rows, erasing, len(found.body), marks, emptied)

    async def marks(self) -> Mapping[str, str]:
        """The marks of the last commits; empty where there is no such session."""
        stored = await self.head()
        if stored is None:
            return {}
        marks = dict(stored.head.marks)
        with suppress(Changed):  # The owner is at work, and has put a newer head.
            # Of an orderly head nothing follows, so opening an orderly session is one get without a list.
            for segment in [] if stored.head.orderly else await self.tail(stored.head.commit):
                marks |= segment.marks
        return marks

    async def opened(self, stored: StoredHead) -> tuple[Window, int, tuple[tuple[str, int], ...]]:
        """The rows that opening needs now, the last commit, and the rows being erased."""
        window = Window()
        window.add(await self.window(stored))
        segments = [] if stored.head.orderly else await self.tail(stored.head.commit)
        return self.grown(window, stored.head, segments)

    def grown(
        self, window: Window, head: HeadObject, segments: Sequence[Segment]
    ) -> tuple[Window, int, tuple[tuple[str, int], ...]]:
        """The same, from segments that were already read."""
        erasing = (*head.erasing, *(pair for segment in segments for pair in segment.erasing))
        # Some of their rows may be gone already.
        forgotten = {pair for pair in erasing if not pair[1]}
        for segment in segments:
            rows = without(beyond_tail(head, segment.rows), forgotten)
            seqs: dict[str, int] = {}
            for row in rows:
                last = seqs.get(row.agent_id, window.last_seq(row.agent_id))
                # Whoever opened the session would go on from this row, and seal the gap with the next link.
                if row.seq != last + 1:
                    fields = {"session": self._session_id, "agent": row.agent_id, "seq": row.seq}
                    raise CorruptJournal("a row does not follow the one before it", **fields)
                seqs[row.agent_id] = row.seq
            window.add(rows)
        window.erase(set(erasing))
        return window, segments[-1].commit if segments else head.commit, erasing

    async def load(self, agent_id: str) -> list[Row]:
        """The rows that opening an agent needs, read without owning the session."""

        async def read(stored: StoredHead) -> list[Row]:
            window, _, _ = await self.opened(stored)
            # The last row's `low` is before the window: the session was rewound since the head was put.
            if agent_id in window.missing:
                return await self.row_range(agent_id, window.last_seq(agent_id))
            return window.of(agent_id)

        return await self._unchanged(read)

    async def row_range(self, agent_id: str, last: int, first: int | None = None) -> list[Row]:
        """The rows of an agent from `first` (None: from the `low` of the last one) to `last`; empty when there is no
        row of that number. Costs as much as opening; for older rows also one list and about two gets. Errors:
        `CorruptJournal` when a row is missing.
        """
        return await self._unchanged(lambda stored: self._row_range(stored, agent_id, last, first))

    async def whole(self, agent_id: str) -> list[Row]:
        return await self._unchanged(lambda stored: self._whole(stored, agent_id))

    async def _unchanged(self, read: Callable[[StoredHead], Awaitable[list[Row]]]) -> list[Row]:
        """The rows that `read` returns, given the head; empty when there is no such session. It starts again when the
        owner has moved an object meanwhile.
        """
        missed = ""
        for _ in range(_READINGS_MAX):
            try:
                stored = await self.head()
                if stored is None:
                    # Costs a list for every read of an unknown session, which is rare, and never answers "empty" for a
                    # lost head.
                    await self.headless()  # It may have been lost.
                return [] if stored is None or stored.head.deleted else await read(stored)
            except Changed as change:
                missed = str(change)
        raise CorruptJournal("an object is missing", session=self._session_id, key=missed)

    async def _row_range(self, stored: StoredHead, agent_id: str, last: int, first: int | None) -> list[Row]:
        head = stored.head
        tail = [] if head.orderly else await self.tail(head.commit)
        # Erased is what any commit says is erased, whether the objects were replaced by now or not.
        erasing = {*head.erasing, *(pair for segment in tail for pair in segment.erasing)}
        if (agent_id, 0) in erasing:
            return []
        near = [*await self.window(stored), *(row for each in tail for row in beyond_tail(head, each.rows))]
        near = [row for row in near if row.agent_id == agent_id]
        if not near or not 0 < last <= near[-1].seq:
            return []
        low = first
        if last >= near[0].seq:
            low = first if first is not None else near[last - near[0].seq].low
            near = near[: last - near[0].seq + 1]
        # Only here older objects are listed. Most rows that somebody asks for are near the end, where no list is
        # needed.
        if low is None or low < near[0].seq:
            parts = await self._parts(head, agent_id)
            end = min(last, near[0].seq - 1)
            before = await parts.rows(low, end)
            near = [*before, *(near if last > end else ())]
            self._check_unbroken(agent_id, near, last, low)
        return without([row for row in near if low is None or row.seq >= low], erasing)

    async def _parts(self, head: HeadObject, agent_id: str) -> Parts:
        found = await self._objects.list(f"{self._keys.folder}/")
        chunks, segments = self._sorted(found, head)
        keys = {number: key for key in chunks if (number := commit_of_key(key)) is not None}
        keys |= {number: key for number, key in segments.items() if number <= head.commit}
        commits = sorted(keys)

        async def read(index: int) -> Sequence[Row]:
            number = commits[index]
            stored = await find(self._objects, keys[number])
            if number > head.merged:
                rows = self.segment(number, stored).rows
            else:
                chunk = self._chunk(keys[number], stored)
                # Large segments stay beside their chunk. The bound is for damaged headers, which must not send us
                # reading anywhere.
                unmerged = [each for each in commits_in_header(chunk.header, "kept") if each <= head.merged]
                rows = [*chunk.rows, *(row for each in await self.segments(unmerged) for row in each.rows)]
            # Kept segments lie between the chunk's own rows, so the parts are not in order by themselves.
            return sorted((row for row in rows if row.agent_id == agent_id), key=lambda row: row.seq)

        return Parts(commits, (head.commit, head.seqs.get(agent_id, 0)), read)

    def _check_unbroken(self, agent_id: str, rows: Sequence[Row], last: int, low: int | None) -> None:
        seqs = [row.seq for row in rows]
        first = low if low is not None else (rows[-1].low if rows else last)
        if len(seqs) != last + 1 - first or any(seq != wanted for wanted, seq in enumerate(seqs, first)):
            fields = {"session": self._session_id, "agent": agent_id, "seq": first}
            raise CorruptJournal("a row is missing, or there twice", **fields)

    async def _whole(self, stored_head: StoredHead, agent_id: str) -> list[Row]:
        head = stored_head.head
        found = await self._objects.list(f"{self._keys.folder}/")
        chunk_keys, segment_keys = self._sorted(found, head)
        # All objects of a journal in memory at once: it is what exports and pruning need, and what no turn does.
        stored = await find_all(self._objects, [*chunk_keys, *segment_keys.values()])
        chunks = [self._chunk(key, body) for key, body in zip(chunk_keys, stored, strict=False)]
        segments = [
            self.segment(number, body) for number, body in zip(segment_keys, stored[len(chunk_keys) :], strict=True)
        ]
        unmerged = await self.segments(self._unmerged(chunks, head))
        # What earlier segments name is done, unless the head says so too; a forgotten agent may have begun anew since.
        later = (segment for segment in segments if segment.commit > head.commit)
        erasing = {*head.erasing, *(pair for segment in later for pair in segment.erasing)}
        rows = [row for part in (*chunks, *unmerged, *segments) for row in part.rows if row.agent_id == agent_id]
        # Rows of the tail are in no segment yet. Those that a segment has by now must not count twice.
        rows += after(tail_of(stored_head), {agent_id: max((row.seq for row in rows), default=0)})
        rows = [row for row in without(rows, erasing) if row.agent_id == agent_id]
        own = sorted(rows, key=lambda row: row.seq)
        for expected, row in enumerate(own, 1):
            if row.seq != expected:
                fields = {"session": self._session_id, "agent": agent_id, "seq": expected}
                raise CorruptJournal("a row is missing, or there twice", **fields)
        return own

    def _sorted(self, found: Sequence[ObjectInfo], head: HeadObject) -> tuple[list[str], dict[int, str]]:
        """The keys of the chunks that the head names, and of the segments that are in none of them."""
        chunks: list[str] = []
        segments: dict[int, str] = {}
        for info in found:
            number = commit_of_key(info.key)
            if number is None:
                continue
            # Chunks that no head names are leftovers of a killed merge. Up to `base` they are of a deleted session.
            if info.key.startswith(self._keys.chunks) and head.base < number <= head.merged:
                chunks.append(info.key)
            elif info.key.startswith(self._keys.segments) and number > head.merged:
                segments[number] = info.key
        # A hole in the listing means that it is older or younger than the head; reading both again settles which.
        for number in range(head.merged + 1, max(segments, default=head.merged)):
            if number not in segments:
                raise Changed(self._keys.segment(number))
        last = max(segments, default=head.merged)
        if head.commit > last:
            raise Changed(self._keys.segment(head.commit))
        if head.orderly and last > head.commit:  # No commit follows an orderly head, unless the head was replaced.
            raise Changed(self._keys.segment(head.commit + 1))
        return chunks, segments

    def _chunk(self, key: str, found: StoredObject | None) -> Packed:
        if found is None:
            raise Changed(key)
        return self.read(found, "chunk", key)

    def _unmerged(self, chunks: Sequence[Packed], head: HeadObject) -> list[int]:
        """The segments that were too large to merge. Checks that the chunks are consecutive."""
        unmerged: list[int] = []
        end = head.base
        for header, _ in chunks:
            last = header.get("last")
            if header.get("first") != end + 1 or not isinstance(last, int) or last <= end:
                break
            end = last
            unmerged += [number for number in commits_in_header(header, "kept") if number <= head.merged]
        if end != head.merged:
            raise Changed(self._keys.chunk(end + 1))
        return unmerged

    def read(self, found: StoredObject, kind: ObjectKind, key: str) -> Packed:
        return read_object(found.body, kind, self._session_id, key)

    def _head(self, stored: StoredObject) -> StoredHead:
        packed = read_object(stored.body, "head", self._session_id, self._keys.head)
        try:
            return StoredHead(head_in(packed), packed.rows, stored.version)
        except ValueError as error:
            raise self._damaged(self._keys.head, error) from error

    def _damaged(self, key: str, error: ValueError) -> CorruptJournal:
        return CorruptJournal("a damaged object", session=self._session_id, key=key, cause=str(error))


def commits_in_header(header: Mapping[str, object], name: str) -> list[int]:
    """The commits that a chunk's header lists; entries that are no numbers are skipped."""
    found = header.get(name)
    named = cast("list[object]", found) if isinstance(found, list) else []
    return [number for number in named if isinstance(number, int)]


# Finding a few rows of a long journal without reading all of its objects.
#
# A session's parts are the objects that hold rows, in commit order: chunks with the segments kept beside them, and
# single segments. Sequence numbers rise with the commits, so a part is found by interpolation.

ReadPart = Callable[[int], Awaitable[Sequence[Row]]]
"""Returns an agent's rows in the part of that number, in order."""


class Parts:
    """The parts of a session that hold one agent's rows; each is read when needed, and once."""

    def __init__(self, commits: Sequence[int], last: tuple[int, int], read: ReadPart) -> None:
        """`commits`: the first commit in each part. `last`: about the last commit, and the agent's last row in it."""
        self._commits = commits
        self._last = last
        self._read = read
        self._rows: dict[int, Sequence[Row]] = {}

    async def rows(self, first: int | None, last: int) -> list[Row]:
        """The rows from sequence number `first` (None: from the `low` of the last one) to `last`, without those that
        are missing.
        """
        number = await self._find(last)
        if number is None:
            return []
        found = [row for row in await self._part(number) if row.seq <= last]
        low = first if first is not None else found[-1].low
        while number and found[0].seq > low:
            number -= 1
            found = [*await self._part(number), *found]
        return [row for row in found if row.seq >= low]

    async def _part(self, number: int) -> Sequence[Row]:
        if number not in self._rows:
            self._rows[number] = await self._read(number)
        return self._rows[number]

    async def _find(self, seq: int) -> int | None:
        low, high = 0, len(self._commits) - 1
        before, behind = (0, 0), self._last
        halve = False
        while low <= high:
            # Guessing takes about two gets where agents speak evenly. It may creep where one of them was silent for
            # long, so every other step halves: never more than twice the steps of a binary search.
            number = (low + high) // 2 if halve else self._guessed(seq, before, behind)
            number = min(max(number, low), high)
            # Parts without rows of this agent say nothing about direction: walk to one that does. Each is read once
            # only.
            while number > low and not await self._part(number):
                number -= 1
            rows = await self._part(number)
            if not rows:  # None of these parts has a row of this agent.
                low = max(low, number) + 1
                continue
            if rows[0].seq <= seq <= rows[-1].seq:
                return number
            if rows[-1].seq < seq:
                low, before = number + 1, (self._commits[number], rows[-1].seq)
            else:
                high, behind = number - 1, (self._commits[number], rows[0].seq)
            halve = not halve
        return None

    def _guessed(self, seq: int, before: tuple[int, int], behind: tuple[int, int]) -> int:
        """The part where the row would be if rows were spread evenly over the commits."""
        share = (seq - before[1]) / max(1, behind[1] - before[1])
        commit = before[0] + int(share * (behind[0] - before[0]))
        return bisect_right(self._commits, commit) - 1


Erasing = Collection[tuple[str, int]]
"""Rows, each by agent id and sequence number, whose content must be destroyed. The number 0 stands for an agent that is
forgotten: all of its rows go.
"""


def without(rows: Sequence[Row], erasing: Erasing) -> list[Row]:
    """The rows, with the content of the erased ones removed, and without those of forgotten agents."""
    if not erasing:
        return list(rows)
    remaining = (row for row in rows if (row.agent_id, 0) not in erasing)
    return [row.without_content() if (row.agent_id, row.seq) in erasing else row for row in remaining]


def without_forgotten(seqs: Mapping[str, int], erasing: Erasing) -> dict[str, int]:
    """The last numbers of the agents that are not forgotten."""
    return {agent_id: seq for agent_id, seq in seqs.items() if (agent_id, 0) not in erasing}


class PartsWithErasures:
    """The rows of all objects of a session, and what some of them erase in others: a repair must not bring it back."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, Sequence[Row]]] = []
        self._until: dict[tuple[str, int], float] = {}
        """The last commit whose object may still have it."""

    def note_erasures(self, header: Mapping[str, object]) -> None:
        """Note what the object with this header erases. Errors: ValueError."""
        # In objects of later commits it is no more, or it is of an agent that was forgotten and began anew. What the
        # head names is not done yet, wherever it is.
        until = math.inf if header.get("kind") == "head" else _last_commit(header)
        for pair in erasing_in(header.get("erasing", [])):
            self._until[pair] = max(until, self._until.get(pair, 0))

    def add(self, packed: Packed) -> None:
        """Add an object."""
        self._parts.append((_last_commit(packed.header), packed.rows))

    def rows(self) -> list[Row]:
        """The rows, without what is erased."""
        found: list[Row] = []
        for last, rows in self._parts:
            until = self._until.items()
            found += without(rows, {pair for pair, end in until if last < end or (pair[1] and last == end)})
        return found


def _last_commit(header: Mapping[str, object]) -> int:
    """The last commit whose rows an object of any kind may have."""
    found = header.get("last", header.get("commit"))
    return found if isinstance(found, int) else 0


class Window:
    """The rows of each agent from its last row's `low` on."""

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self._journals: dict[str, list[Row]] = {}
        for row in rows:
            self._journals.setdefault(row.agent_id, []).append(row)

    def add(self, rows: Iterable[Row]) -> None:
        """Add committed rows, in order, and drop rows that are no longer needed."""
        grown: set[str] = set()
        for row in rows:
            self._journals.setdefault(row.agent_id, []).append(row)
            grown.add(row.agent_id)
        for agent_id in grown:
            journal = self._journals[agent_id]
            # By position, not by a scan: rows of one agent have no gaps. After a rewind `low` may be before the window:
            # nothing is dropped then, and `missing` says so.
            del journal[: max(0, journal[-1].low - journal[0].seq)]

    def erase(self, erasing: Erasing) -> None:
        for agent_id in {agent_id for agent_id, _ in erasing} & self._journals.keys():
            self._journals[agent_id] = without(self._journals[agent_id], erasing)
            if not self._journals[agent_id]:
                del self._journals[agent_id]

    def fill(self, agent_id: str, rows: Sequence[Row]) -> None:
        """Insert an agent's `missing` rows, in order, before the rows that have been added meanwhile."""
        known = [*rows, *(row for row in self._journals[agent_id] if row.seq > rows[-1].seq)]
        self._journals[agent_id] = known[max(0, known[-1].low - known[0].seq) :]

    @property
    def missing(self) -> list[str]:
        """Agents that were rewound so far that rows from before the window are needed again."""
        return [agent_id for agent_id, rows in self._journals.items() if rows[-1].low < rows[0].seq]

    def gap(self, agent_id: str) -> tuple[int, int]:
        """The first and last sequence number of an agent's `missing` rows."""
        rows = self._journals[agent_id]
        return rows[-1].low, rows[0].seq - 1

    def of(self, agent_id: str) -> list[Row]:
        return list(self._journals.get(agent_id, ()))

    def rows(self) -> list[Row]:
        return [row for rows in self._journals.values() for row in rows]

    def last_seq(self, agent_id: str) -> int:
        rows = self._journals.get(agent_id)
        return rows[-1].seq if rows else 0

    @property
    def seqs(self) -> dict[str, int]:
        return {agent_id: rows[-1].seq for agent_id, rows in self._journals.items()}

    def updated_at(self, before: float) -> float:
        """Epoch seconds of the last row that still has its content; `before` when there is none."""
        last = (next((row for row in reversed(rows) if not row.erased), None) for rows in self._journals.values())
        return max((at_of(row.body) or 0.0 for row in last if row is not None), default=before) or before


def tail_of(stored: StoredHead) -> list[Row]:
    """The rows that are in the head alone, unless a segment after it has them by now."""
    # The tail is stated by first numbers, so that a head does not have its rows twice.
    first = stored.head.tail
    return [row for row in stored.rows if row.seq >= first.get(row.agent_id, row.seq + 1)]


def beyond_tail(head: HeadObject, rows: Sequence[Row]) -> Sequence[Row]:
    """The rows of a segment that follows the head, without those that the head has had alone until then."""
    return after(rows, {agent_id: head.seqs.get(agent_id, 0) for agent_id in head.tail}) if head.tail else rows


def after(rows: Iterable[Row], seqs: Mapping[str, int]) -> list[Row]:
    """The rows of each agent behind these numbers."""
    return [row for row in rows if row.seq > seqs.get(row.agent_id, 0)]


def seqs_after(seqs: Mapping[str, int], rows: Iterable[Row]) -> dict[str, int]:
    return {**seqs, **{row.agent_id: row.seq for row in rows}}
