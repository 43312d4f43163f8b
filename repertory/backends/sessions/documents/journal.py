"""One agent's journal in the tree, as its owner keeps it: opening, taking in what others wrote, appending, erasing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from repertory.backends.mending_ports import Damage
from repertory.backends.ports import Create, Overwrite
from repertory.backends.sessions.documents.reading import (
    JournalPlace,
    Reading,
    check_undamaged,
    offset_of,
    read_agent_file,
    read_journal,
    side_by_side,
)
from repertory.core.interrupt_state import asks_somebody
from repertory.core.journal.appender import Entropy
from repertory.core.journal.codec import at_of, decode
from repertory.core.journal.fold import Fold
from repertory.core.journal.image import Image
from repertory.core.journal.records import (
    Branched,
    Record,
    View,
)
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import Kind, Row
from repertory.core.journal.standing import standing_of
from repertory.core.message_tree.assembly import Fault, Source
from repertory.core.message_tree.chapters import parts_of, shown_instead
from repertory.core.message_tree.documents import (
    AgentFile,
    Chapter,
    agent_document,
    manager_named,
    message_document,
    rows_document,
    without_contents,
)
from repertory.core.message_tree.head import Head
from repertory.core.message_tree.kept_rows import Line
from repertory.core.message_tree.opening import Opened, due_after, manager_in, needed_of, open_agent, outdated
from repertory.core.messages import Message
from repertory.core.window.decision import DEFAULT_MANAGER
from repertory.errors import AlreadyExists, CorruptJournal, LeaseLost, NotFound

HEAD_BYTES_MAX = 1_000_000
"""The largest window that is kept in one object besides its documents."""

_log = logging.getLogger("repertory.sessions")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSettings:
    """What differs between a folder and a bucket."""

    prove_s: float = 0.0
    """How long a proof of ownership counts. 0 looks before every commit; otherwise a fenced owner may add messages for
    that long, which are taken in. It starts no tools: behind intents it looks again, unless proofs count for ever.
    """
    mark_batches: bool = True
    """Whether a commit of several documents says so in each of them, so that what is left of one that was cut off is
    removed. Not where nothing can be.
    """
    renew_every_s: float = 3.0
    """How often an owner proves its leases anyway, where they end by themselves."""
    keep_heads: bool = False
    """Whether to keep, when a session is given up, what opening it needs in one object."""
    keep_folders: bool = False
    """Whether folders exist only while something is in them, so that an empty one needs a placeholder."""
    short_names: bool = True
    """Whether ids that are too long for the names of folders are shortened in them."""


@dataclass(slots=True)
class Standing:
    """Where the journal stands, as far as its owner needs to know without reading."""

    last_seq: int = 0
    next_number: int = 0
    """Of the next message's document."""
    messages: int = 0
    """Documents of messages that there are."""
    rows: list[Row] = field(default_factory=list[Row])
    """Those that opening needs, when a head is to be kept."""
    agent_version: str | None = None
    """Of the agent's document, when it is known."""
    numbers: dict[int, int] = field(default_factory=dict[int, int])
    """Sequence number of a message's row to the number of its document, for those that may still be shown."""
    tail: Sequence[Line] = ()
    """The rows of the last document."""
    fold: Fold | None = None
    """None: to be folded from what is stored."""
    agent: AgentFile | None = None
    state_due: bool = False
    view_due: bool = False
    manager: str = DEFAULT_MANAGER
    """The conversation manager that the agent's document names."""
    asks: bool = False
    """Whether the agent's document says that the turn waits for a person."""


async def seen_rows(
    place: JournalPlace,
    wall: Callable[[], float],
    entropy: Entropy,
    *,
    whole: bool = False,
    owned: bool = False,
) -> list[Row]:
    """The rows for somebody who only looks, from the last one's `low` on or all of them. Nothing is written.

    `owned`: what others have added is left out, since the owner will take it in. Errors: `CorruptJournal` naming a
    document that is damaged.
    """
    reading = await read_journal(place, whole=whole)
    check_undamaged(place, reading)
    if owned:
        rows = list(reading.assembled.rows)
        return rows if whole else needed_of(rows)
    opened = _derived(place, reading, wall(), entropy)
    return [*opened.found, *opened.made] if whole else opened.needed()


async def mended_rows(
    place: JournalPlace, wall: Callable[[], float], entropy: Entropy
) -> tuple[list[Row], Sequence[Damage]]:
    """All rows, with a record for each message that is damaged: what it says now, or that it was lost. And what is
    damaged. Errors: `CorruptJournal` when rows cannot be told any more.
    """
    reading = await read_journal(place, whole=True)
    if reading.assembled.lost and reading.agent is not None:  # It says what the lost rows amounted to.
        reading = replace(reading, agent=replace(reading.agent, foreign=True))
    opened = _derived(place, reading, wall(), entropy)
    return [*opened.found, *opened.made], reading.damages


def _derived(place: JournalPlace, reading: Reading, at: float, entropy: Entropy) -> Opened:
    names = (place.session_id, place.agent_id)
    return open_agent(names, reading.assembled, _numbers(reading), reading.agent, at, entropy)


def _numbers(reading: Reading) -> list[int]:
    """Of the documents of messages, in order, without those of a commit that was cut off."""
    torn = {source.number for source in reading.assembled.torn}
    return [number for number in reading.messages if number not in torn]


@dataclass(slots=True)
class _Behind:
    """What was found of those who may have written since a head was made."""

    written: bool = False
    agent: AgentFile | None = None
    version: str | None = None


class TreeJournal:
    """The journal of one agent, owned. After an error it is unknown where it stands: open a new one."""

    def __init__(
        self,
        place: JournalPlace,
        generation: int,
        wall: Callable[[], float],
        entropy: Entropy,
        settings: TreeSettings,
    ) -> None:
        self._place = place
        self._objects = place.objects
        self._names = place.names
        self._agent_id = place.agent_id
        self._generation = generation
        self._wall = wall
        self._entropy = entropy
        self._settings = settings
        self._at = Standing()

    @property
    def last_seq(self) -> int:
        """The last row that is stored."""
        return self._at.last_seq

    async def open(self) -> list[Row]:
        """Read, tidy up what a crash left, take in what others wrote. The rows that opening needs, from `low` on."""
        reading = await read_journal(self._place, whole=False)
        check_undamaged(self._place, reading)
        found = reading.assembled
        for source in reversed(found.torn):
            await self._objects.delete(self._names.key(source))
        for fault in found.faults:
            _log.warning("a message was taken in as it stands now file=%r why=%r", self._key(fault), fault.why)
        opened = _derived(self._place, reading, self._wall(), self._entropy)
        numbers = _numbers(reading)
        self._at = Standing(
            last_seq=found.rows[-1].seq if found.rows else 0,
            next_number=numbers[-1] + 1 if numbers else 0,
            messages=len(numbers),
            numbers={**found.numbers, **{seq: number for seq, (number, _) in opened.files.items()}},
            tail=found.tail,
            fold=opened.fold,
            agent=reading.agent,
            agent_version=reading.agent_version,
            state_due=reading.agent is None and bool(found.rows or numbers),
            view_due=reading.agent is None or reading.agent.foreign or outdated(reading.agent, opened.fold),
            asks=reading.agent is not None and reading.agent.asks,
            manager=manager_named(View(), reading.agent),
        )
        if reading.document is not None and reading.agent is None:
            await self._put_aside(reading.document.body)
        if opened.made:
            number = max(found.numbers.values(), default=-1) + 1
            filed = {number for number, _ in opened.files.values()}
            taken = max((number for number, read in found.added if read.message is not None), default=-1)
            chapter = Chapter(
                rows=opened.made,
                generation=self._generation,
                before=found.tail,
                next_number=number,
                taken=0 if taken in filed else taken + 1,
            )
            await self._put_rows(chapter, opened.files)
        rows = opened.needed()
        if found.erase:
            await self._erase([*found.erase])
            rows = [row.without_content() if row.seq in found.erase else row for row in rows]
        return self._keep(rows)

    async def open_at(self, head: Head | None) -> list[Row]:
        """As `open`, from the head alone when nobody has written since it was made."""
        if head is None:
            return await self.open()
        found = await self._look_behind(head.next_number)
        if found.written or found.version != head.agent_version:
            return await self.open()
        self._at = Standing(
            last_seq=head.rows[-1].seq,
            next_number=head.next_number,
            messages=head.messages,
            numbers=dict(head.numbers),
            tail=head.tail,
            fold=restore(head.rows, session_id=self._place.session_id).fold,
            agent=found.agent,
            agent_version=found.version,
            asks=found.agent is not None and found.agent.asks,
            manager=manager_named(View(), found.agent),
        )
        return self._keep(list(head.rows))

    def head(self) -> Head | None:
        """What opening this needs the next time; None when it is too much, or not known."""
        at = self._at
        if not at.rows or at.agent_version is None or sum(len(row.body) for row in at.rows) > HEAD_BYTES_MAX:
            return None
        return Head(
            rows=at.rows,
            next_number=at.next_number,
            messages=at.messages,
            numbers={seq: number for seq, number in at.numbers.items() if seq >= at.rows[0].seq},
            tail=at.tail,
            agent_version=at.agent_version,
        )

    async def _look_behind(self, number: int) -> _Behind:
        """Whether there is a message of that number, and the agent's document."""
        found = _Behind()

        async def look_at_message() -> None:
            found.written = await self._is_there(Source(number))

        async def look_at_agent() -> None:
            found.agent, found.version = await read_agent_file(self._place)

        await side_by_side([look_at_message, look_at_agent])
        return found

    async def _is_there(self, source: Source) -> bool:
        try:
            await self._objects.get(self._names.key(source))
        except NotFound:
            return False
        return True

    def _keep(self, rows: list[Row]) -> list[Row]:
        if self._settings.keep_heads:
            self._at.rows = list(rows)
        return rows

    async def append(self, rows: Sequence[Row], erase: Sequence[int]) -> LeaseLost | None:
        """Store rows that follow the last one, then destroy what is to be erased. None when all of that is on stable
        storage.
        """
        at = self._at
        parts = parts_of(rows)
        if any(row.kind == Kind.RESUME for row in rows):  # Tools run on these, which others may have run meanwhile.
            found = await self._look_behind(at.next_number)
            if found.written or found.version != at.agent_version:
                return self._others_added(self._names.agent)
        if parts and not at.last_seq and not at.messages:
            await self._create(rows, parts)
        batch = (rows[0].seq, rows[-1].seq) if len(parts) > 1 and self._settings.mark_batches else None
        for part, message in parts:
            chapter = Chapter(
                rows=part,
                generation=self._generation,
                before=at.tail,
                batch=batch,
                erase=erase if part is parts[-1][0] else (),
                next_number=at.next_number,
            )
            try:
                if message is None:
                    await self._put_rows(chapter, {})
                else:
                    await self._put_message(chapter, message)
            except AlreadyExists as error:
                return self._others_added(error.fields.get("key"))
            self._follow(part)
        if erase:
            await self._erase(erase)
        if at.state_due:
            await self.put_agent()
        return None

    def _others_added(self, file: object) -> LeaseLost:
        msg = "somebody else has added to the session; open it again to take that in"
        return LeaseLost(msg, session=self._place.session_id, agent=self._agent_id, file=file)

    @property
    def due(self) -> bool:
        """Whether `close` has anything to do."""
        return bool(self._at.last_seq) and (self._at.view_due or self._at.state_due)

    async def close(self) -> None:
        """Tell others how much is shown, when that has changed."""
        if self.due:
            await self.put_agent()

    async def put_agent(self) -> None:
        """Write the agent's document as of now."""
        at = self._at
        if at.fold is None:
            rows = await seen_rows(self._place, self._wall, self._entropy, owned=True)
            at.fold = restore(rows, session_id=self._place.session_id).fold
        fold = at.fold
        removed = offset_of(fold.shown.view.first_shown, at.numbers, at.messages, at.next_number - 1)
        now = self._wall()
        body = agent_document(self._agent_id, fold, removed, at.agent, now)
        at.agent_version = await self._objects.put(self._names.agent, body, Overwrite())
        at.state_due = at.view_due = False
        at.asks = asks_somebody(standing_of(fold))
        at.manager = manager_named(fold.shown.view, at.agent)

    # Within.

    def _key(self, fault: Fault) -> str | None:
        return None if fault.number is None else self._names.key(Source(fault.number))

    async def _put_aside(self, body: bytes) -> None:
        """Keep an agent's document that is damaged, since it is to be written anew."""
        await self._objects.put(self._names.quarantined_document, body, Overwrite())
        _log.warning("a damaged document was put aside, and is written anew file=%r", self._names.agent)

    async def _erase(self, seqs: Sequence[int]) -> None:
        """Destroy the contents of rows, in every document that holds them; last in the one that asks for it."""
        at = self._at
        wanted = {seq for seq in seqs if 0 < seq <= at.last_seq}
        reading = await read_journal(self._place, whole=False)
        check_undamaged(self._place, reading)
        if wanted and reading.assembled.begins > min(wanted):
            reading = await read_journal(self._place, whole=True)
            check_undamaged(self._place, reading)
        numbers = reading.assembled.numbers
        instead = shown_instead(reading.assembled.rows, wanted)
        shown = {numbers[seq]: message for seq, message in instead.items() if seq in numbers}
        asking = [source for source, read in reading.documents.items() if read.erase]
        holding = [
            source
            for source, read in reading.documents.items()
            if source.number in shown or any(kept.line.seq in wanted for kept in read.kept)
        ]
        for source in [*(source for source in holding if source not in asking), *asking]:
            key = self._names.key(source)
            body = (await self._objects.get(key)).body
            message = shown.get(source.number) if source.number is not None else None
            await self._objects.put(key, without_contents(body, wanted, message, self._wall()), Overwrite())
        at.rows = [row.without_content() if row.seq in wanted else row for row in at.rows]
        at.view_due = True

    async def _create(self, rows: Sequence[Row], parts: Sequence[tuple[Sequence[Row], Message | None]]) -> None:
        """The agent's document comes before its messages: others take messages without one for their own to write. It
        names the conversation manager that these rows name: others refuse a session that names another one than theirs.
        """
        fold = self._at.fold or Fold()
        named = next((name for name in map(manager_in, map(_record, rows)) if name), "")
        if named and not fold.shown.view.manager:
            fold = Fold(Image(view=View(manager=named), state=dict(fold.state)))
            self._at.manager = named
        body = agent_document(self._agent_id, fold, 0, self._at.agent, self._wall())
        with suppress(AlreadyExists):
            self._at.agent_version = await self._objects.put(self._names.agent, body, Create())
        if self._settings.keep_folders and not any(message is not None for _, message in parts):
            await self._objects.put(self._names.placeholder, b"", Overwrite())

    async def _put_message(self, chapter: Chapter, message: Message) -> None:
        at, number = self._at, self._at.next_number
        said = next(row for row in chapter.rows if row.kind == Kind.MESSAGE)
        body = message_document(number, message, _made_at(chapter.rows) or self._wall(), chapter)
        await self._objects.put(self._names.key(Source(number)), body, Create())
        at.numbers[said.seq] = number
        at.next_number += 1
        at.messages += 1
        self._stored(chapter)

    async def _put_rows(self, chapter: Chapter, files: Mapping[int, tuple[int, Message]]) -> None:
        key = self._names.key(Source(None, chapter.rows[0].seq))
        await self._objects.put(key, rows_document(chapter, files), Create())
        self._stored(chapter)

    def _stored(self, chapter: Chapter) -> None:
        self._at.tail = [Line.of(row) for row in chapter.rows]
        self._at.last_seq = chapter.rows[-1].seq

    def _follow(self, rows: Sequence[Row]) -> None:
        """Fold what was stored, to know what others are to be told."""
        at = self._at
        if self._settings.keep_heads:
            at.rows.extend(rows)
            at.rows = at.rows[max(at.rows[-1].low - at.rows[0].seq, 0) :]
        for row in rows:
            record = _record(row)
            due = due_after(record, asks=at.asks, manager=at.manager)
            at.state_due, at.view_due = at.state_due or due.state, at.view_due or due.view
            if at.fold is not None:
                at.fold = _applied(at.fold, row.seq, record)
        if at.fold is not None and len(at.numbers) > 256:
            low = at.fold.low
            at.numbers = {seq: number for seq, number in at.numbers.items() if seq >= low}


def _record(row: Row) -> Record | None:
    """None for what was erased or cannot be read."""
    try:
        return decode(row.kind, row.version, row.body) if not row.erased else None
    except CorruptJournal:
        return None


def _applied(fold: Fold, seq: int, record: Record | None) -> Fold | None:
    """The fold after the record; None when that takes more than is known here."""
    if record is None or isinstance(record, Branched):
        return None
    fold.apply(seq, record)
    return fold


def _made_at(rows: Sequence[Row]) -> float | None:
    """When the first of these rows was made whose content is there."""
    return next((at_of(row.body) for row in rows if not row.erased), None)
