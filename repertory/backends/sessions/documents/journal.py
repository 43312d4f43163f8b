"""The journals in the tree, for their owner: opening, taking in what other programs wrote, appending, erasing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from repertory.backends.ports import Corruption, Create, Expect, ObjectStep, Overwrite, Put, StepsDone, Update
from repertory.backends.sessions.documents.reading import (
    DocumentReading,
    JournalPlace,
    check_documents,
    find_document,
    read_agent_file,
    read_journal,
)
from repertory.backends.sessions.requests import carry_out, find, side_by_side
from repertory.core.journal.codec import decode
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import Branched, NodeChanged, View
from repertory.core.journal.restore import Entropy, restore
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.message_tree.assembly import DamagedContent, DocumentSource
from repertory.core.message_tree.documents import (
    AgentFile,
    RecordGroup,
    RunFile,
    generation_of,
    manager_named,
    message_document,
    read_run_file,
    rows_document,
    run_file,
    shown_instead,
    without_contents,
)
from repertory.core.message_tree.group_log import GroupLog, Part
from repertory.core.message_tree.kept_rows import AgentHead, Line
from repertory.core.message_tree.opening import OpenedTree, needed_of, open_agent, open_run, run_of
from repertory.core.orchestration.journals import orchestrator_in
from repertory.core.orchestration.run import Run
from repertory.errors import (
    AlreadyExists,
    Corrupt,
    CorruptJournal,
    Invalid,
    LeaseLost,
    PreconditionFailed,
    StoreUnavailable,
)
from repertory.logs import INFO, WARNING, note

HEAD_BYTES_MAX = 1_000_000
"""The largest window that is also kept in one object."""
_TRIES_MAX = 5
"""How often a document is replaced anew after somebody else has replaced it."""

_log = logging.getLogger("repertory.sessions")


class TreeSettings(Struct, frozen=True, kw_only=True):
    """The differences between a folder and a bucket."""

    prove_s: float = 0.0
    """How long a proof of ownership counts. 0 looks before every commit; otherwise a fenced owner may add messages for
    that long, which are taken in. It starts no tools: after storing intents it looks again, unless proofs count for
    ever.
    """
    mark_batches: bool = True
    """True if each document of a commit of several says so, so that the rest of an interrupted commit can be removed.
    False where nothing can be removed.
    """
    renew_every_s: float | None = None
    """How often an owner renews its leases, where leases expire. None: they do not."""
    keep_heads: bool = False
    """True if releasing a session writes what opening needs into one object."""
    short_names: bool = True
    """True if ids too long for a folder's name are shortened in it."""


async def seen_rows(
    place: JournalPlace,
    wall: Callable[[], float],
    entropy: Entropy,
    *,
    whole: bool = False,
    owned: bool = False,
) -> list[Row]:
    """The rows for a reader, from the last one's `low` on or all of them. Nothing is written.

    `owned`: what other programs wrote is left out, since the owner will take it in. Errors: `CorruptJournal` with the
    damaged document; an orchestrator's counts only where no other source exists.
    """
    reading = await read_journal(place, whole=whole)
    run = place.names.orchestrator
    if not run:
        check_documents(place, reading)
    if owned:
        rows = list(reading.assembled.rows)
        return rows if whole else needed_of(rows)
    opened = _opened_run(place, reading, wall(), entropy)[0] if run else _derived(place, reading, wall(), entropy)
    return [*opened.found, *opened.made] if whole else opened.needed()


async def repaired_rows(
    place: JournalPlace, wall: Callable[[], float], entropy: Entropy
) -> tuple[list[Row], Sequence[Corruption]]:
    """All rows, with a record for each damaged message: its current content, or that it was lost. And the damage.
    Errors: `CorruptJournal` when the rows cannot be reconstructed.
    """
    reading = await read_journal(place, whole=True)
    if reading.assembled.lost and reading.agent is not None:  # The document has the state after the lost rows.
        reading = replace(reading, agent=replace(reading.agent, foreign=True))
    opened = _derived(place, reading, wall(), entropy)
    return [*opened.found, *opened.made], reading.damages


def _derived(place: JournalPlace, reading: DocumentReading, at: float, entropy: Entropy) -> OpenedTree:
    names = (place.session_id, place.agent_id)
    return open_agent(names, reading.assembled, _numbers(reading), reading.agent, at, entropy)


def _numbers(reading: DocumentReading) -> list[int]:
    """The numbers of the message documents, in order, without those of an interrupted commit."""
    torn = {source.number for source in reading.assembled.torn}
    return [number for number in reading.messages if number not in torn]


class _Behind(Struct):
    """What other programs may have written since a head was made."""

    written: bool = False
    agent: AgentFile | None = None
    version: str | None = None


class LeaseChanged(Exception):
    """The lease is not the one that was seen before: look at it. `stored`: whether the rows were stored before that."""

    def __init__(self, *, stored: bool) -> None:
        super().__init__(stored)
        self.stored = stored


class TreeJournal:
    """The journal of one agent, owned. After an error its position is unknown: open a new one."""

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
        self._wall = wall
        self._entropy = entropy
        self._settings = settings
        self._log = GroupLog(agent_id=place.agent_id, generation=generation)
        self._agent_version: str | None = None
        """The version of the agent's document, if known."""
        self._rows: list[Row] = []
        """The rows that opening needs, kept for the head."""

    @property
    def last_seq(self) -> int:
        return self._log.last_seq

    async def open(self) -> list[Row]:
        """Read the journal, remove leftovers of a crash, and take in added messages. Returns the rows that opening
        needs, from `low` on.
        """
        reading = await read_journal(self._place, whole=False)
        check_documents(self._place, reading)
        found = reading.assembled
        for source in reversed(found.torn):
            await self._objects.delete(self._names.key(source))
        for fault in found.faults:
            note(_log, WARNING, "a message was taken in as it stands now", file=self._key(fault), why=fault.why)
        opened = _derived(self._place, reading, self._wall(), self._entropy)
        numbers = _numbers(reading)
        self._log = replace(
            self._log,
            next_number=numbers[-1] + 1 if numbers else 0,
            messages=len(numbers),
            tail=found.tail,
            agent=reading.agent,
        )
        self._log.open_with(opened, found.numbers)
        self._agent_version = reading.agent_version
        if reading.document is not None and reading.agent is None:
            await self._put_aside(reading.document.body)
        if opened.made:
            number = max(found.numbers.values(), default=-1) + 1
            filed = {number for number, _ in opened.files.values()}
            taken = max((number for number, read in found.added if read.message is not None), default=-1)
            group = RecordGroup(
                rows=opened.made,
                generation=self._log.generation,
                before=found.tail,
                next_number=number,
                taken=0 if taken in filed else taken + 1,
            )
            key = self._names.key(DocumentSource(None, group.rows[0].seq))
            await self._objects.put(key, rows_document(group, opened.files), Create())
            self._log.put(group.rows)
        rows = opened.needed()
        if found.erase:
            await self._erase([*found.erase])
            rows = [row.without_content() if row.seq in found.erase else row for row in rows]
        return self._keep(rows)

    async def open_at(self, head: AgentHead | None) -> list[Row]:
        """As `open`; from the head alone if no program has written since it was made."""
        if head is None:
            return await self.open()
        found = await self._look_behind(head.next_number)
        if found.written or found.version != head.agent_version:
            return await self.open()
        self._log = replace(
            self._log,
            last_seq=head.rows[-1].seq,
            next_number=head.next_number,
            messages=head.messages,
            numbers=dict(head.numbers),
            tail=head.tail,
            fold=restore(head.rows, session_id=self._place.session_id).fold,
            agent=found.agent,
            asks=found.agent is not None and found.agent.asks,
            manager=manager_named(View(), found.agent),
        )
        self._agent_version = found.version
        return self._keep(list(head.rows))

    def head(self) -> AgentHead | None:
        """What the next opening needs; None when it is too large, or not known."""
        log, rows = self._log, self._rows
        if not rows or self._agent_version is None or sum(len(row.body) for row in rows) > HEAD_BYTES_MAX:
            return None
        return AgentHead(
            rows=rows,
            next_number=log.next_number,
            messages=log.messages,
            numbers={seq: number for seq, number in log.numbers.items() if seq >= rows[0].seq},
            tail=log.tail,
            agent_version=self._agent_version,
        )

    def unchanged(self) -> list[ObjectStep]:
        """Steps that fail if a program has added a message or replaced the agent's document since the last append."""
        following = self._names.key(DocumentSource(self._log.next_number))
        return [Expect(following, None), Expect(self._names.agent, self._agent_version)]

    async def _look_behind(self, number: int) -> _Behind:
        """Look for a message of that number, and read the agent's document."""
        found = _Behind()

        async def look_at_message() -> None:
            found.written = await find(self._objects, self._names.key(DocumentSource(number))) is not None

        async def look_at_agent() -> None:
            found.agent, found.version = await read_agent_file(self._place)

        await side_by_side([look_at_message, look_at_agent])
        return found

    def _keep(self, rows: list[Row]) -> list[Row]:
        if self._settings.keep_heads:
            self._rows = list(rows)
        return rows

    async def append(
        self, rows: Sequence[Row], erase: Sequence[int], before: Sequence[Expect] = (), after: Sequence[Expect] = ()
    ) -> LeaseLost | None:
        """Store rows that follow the last one, then destroy the contents to be erased. None once all of that is on
        stable storage.

        `before` and `after`: what must hold before and after the rows are stored. Errors: `LeaseChanged` if it does
        not.
        """
        log, first = self._log, list[ObjectStep](before)
        if any(row.kind == RecordKind.RESUME for row in rows):
            first += self.unchanged()  # Tools run after these rows; another program may have run them meanwhile.
        parts = log.parts(rows, erase)
        if len(parts) > 1 and self._settings.mark_batches:
            parts = log.parts(rows, erase, batch=True)
        if parts and not log.last_seq and not log.messages:
            refusal = await self._store(first, (), ())
            if refusal is not None:
                return refusal
            first = []
            await self._create(rows, parts)
        refusal = await self._store(first, parts, after)
        if refusal is not None:
            return refusal
        if erase:
            try:
                await self._erase(erase)
            except LeaseLost as error:
                return error
        if log.state_due:
            await self.put_agent()
        return None

    async def _store(
        self, first: Sequence[ObjectStep], parts: Sequence[Part], after: Sequence[Expect]
    ) -> LeaseLost | None:
        """Put the documents of these parts, if what is first holds, in one call."""
        steps = [*first, *map(self._put_of, parts), *after]
        done = await carry_out(self._objects, steps) if steps else StepsDone(versions=())
        for part in parts[: max(0, len(done.versions) - len(first))]:
            self._log.stored(part)
            if self._settings.keep_heads:
                self._rows = needed_of([*self._rows, *part.group.rows])
        if done.error is None:
            return None
        refused = steps[len(done.versions)]
        if isinstance(done.error, AlreadyExists | PreconditionFailed):
            if not refused.key.startswith(self._names.folder):
                raise LeaseChanged(stored=len(done.versions) >= len(first) + len(parts))
            return self._others_added(refused.key)
        raise done.error

    def _others_added(self, file: object) -> LeaseLost:
        msg = "another program has added to the session; open it again to take that in"
        return LeaseLost(msg, session=self._place.session_id, agent=self._place.agent_id, file=file)

    @property
    def due(self) -> bool:
        """True if the agent's document must be written before the session is released."""
        return self._log.due

    async def put_agent(self) -> None:
        """Write the agent's current document."""
        put = await self.agent_put()
        self.agent_told(await self._objects.put(put.key, put.body, put.condition))

    async def agent_put(self) -> Put:
        """The step that writes the agent's current document; after it, `agent_told`. Opening the session writes how
        much of the history is shown, if a crash of the machine has undone that.
        """
        if self._log.fold is None:
            rows = await seen_rows(self._place, self._wall, self._entropy, owned=True)
            self._log.fold = restore(rows, session_id=self._place.session_id).fold
        return Put(self._names.agent, self._log.document(self._wall()), Overwrite(), lasting=self._log.state_due)

    def agent_told(self, version: str | None) -> None:
        """The agent's document was written."""
        self._agent_version = version
        self._log.told()

    # Within.

    def _key(self, fault: DamagedContent) -> str | None:
        return None if fault.number is None else self._names.key(DocumentSource(fault.number))

    async def _put_aside(self, body: bytes) -> None:
        """Keep a copy of a damaged agent's document before it is rewritten."""
        await self._objects.put(self._names.quarantined_document, body, Overwrite())
        note(_log, WARNING, "a damaged document was put aside, and is written anew", file=self._names.agent)

    async def _erase(self, seqs: Sequence[int]) -> None:
        """Destroy the contents of rows in every document that holds them; last in the one that asks for it. Errors:
        `LeaseLost`.
        """
        wanted = {seq for seq in seqs if 0 < seq <= self._log.last_seq}
        reading = await read_journal(self._place, whole=False)
        check_documents(self._place, reading)
        if wanted and reading.assembled.begins > min(wanted):
            reading = await read_journal(self._place, whole=True)
            check_documents(self._place, reading)
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
            message = shown.get(source.number) if source.number is not None else None
            without = partial(without_contents, wanted=wanted, shown=message, at=self._wall())
            await _rewrite(self._place, source, self._log.generation, without)
        self._rows = [row.without_content() if row.seq in wanted else row for row in self._rows]
        self._log.view_due = True

    async def _create(self, rows: Sequence[Row], parts: Sequence[Part]) -> None:
        """The agent's document comes before its messages: other programs treat messages without one as their own."""
        body = self._log.first_document(rows, self._wall())
        with suppress(AlreadyExists):
            self._agent_version = await self._objects.put(self._names.agent, body, Create())

    def _put_of(self, part: Part) -> Put:
        if part.message is None or part.number is None:
            key, body = DocumentSource(None, part.group.rows[0].seq), rows_document(part.group, {})
        else:
            said_at = part.said_at(self._wall())
            key, body = DocumentSource(part.number), message_document(part.number, part.message, said_at, part.group)
        return Put(self._names.key(key), body, Create())


async def _rewrite(
    place: JournalPlace, source: DocumentSource, generation: int, without: Callable[[bytes], bytes]
) -> None:
    """Replace a document that is there. A later owner's is left alone: it may be of a new session of that name.

    Errors: `LeaseLost` when it is a later owner's, or gone; `StoreUnavailable`, and the object store's.
    """
    fields = {"session": place.session_id, "agent": place.agent_id, "file": place.names.key(source)}
    for _ in range(_TRIES_MAX):
        found = await find(place.objects, place.names.key(source))
        if found is None or generation_of(found.body) > generation:
            raise LeaseLost("another owner has the session", **fields)
        with suppress(PreconditionFailed):
            await place.objects.put(place.names.key(source), without(found.body), Update(found.version))
            return
    raise StoreUnavailable("the document could not be replaced", **fields)


# One orchestrator's journal in the tree, for its owner: `multi_agent.json` for other programs, rows beside it for us.
#
# Each commit first puts the document, under the known version, and then the rows. So no other program's document is
# overwritten. After a crash in between, the document shows the end of a node that we run again, which its own journal
# answers.


async def salvaged_run_rows(place: JournalPlace, wall: Callable[[], float], entropy: Entropy) -> Sequence[Row]:
    """New rows from the document, where the rows beside it cannot be read. Errors: `Corrupt`, `NotFound`."""
    stored = await place.objects.get(place.names.agent)
    try:
        document = read_run_file(stored.body, _orchestrator(place))
    except ValueError as error:
        raise _unreadable(place, error) from error
    theirs = RunFile(said=document.said, seq=None, digest=document.digest)
    return open_run((place.session_id, place.agent_id), (), theirs, wall(), entropy).made


class OrchestratorJournal:
    """The journal of one orchestrator, owned. After an error its position is unknown: open a new one."""

    due = False
    """Every commit writes the document at once."""

    def __init__(
        self,
        place: JournalPlace,
        generation: int,
        wall: Callable[[], float],
        entropy: Entropy,
    ) -> None:
        self._place = place
        self._objects = place.objects
        self._names = place.names
        self._generation = generation
        self._wall = wall
        self._entropy = entropy
        self._fold = Fold()
        self._run = Run()
        self._version: str | None = None
        """The version of the document, as last read or written."""
        self._tail: Sequence[Line] = ()
        self._rows: list[Row] = []
        """The rows that opening needs."""

    @property
    def last_seq(self) -> int:
        return self._fold.last_seq

    async def open_at(self, head: AgentHead | None) -> list[Row]:
        """Read the journal, and take in other programs' changes. Returns the rows that opening needs, from `low` on.
        With a head, reads that alone if no program has written since it was made.
        """
        if head is not None:
            document = await find_document(self._place)
            if document is not None and document.version == head.agent_version:
                fold = restore(head.rows, session_id=self._place.session_id).fold
                self._stand_at(fold, list(head.rows), document.version, head.tail)
                return list(head.rows)
        return await self._open()

    async def append(self, rows: Sequence[Row], erase: Sequence[int]) -> LeaseLost | None:
        """Put the document, store rows that follow the last one, then destroy the contents to be erased. None once all
        of that is on stable storage.
        """
        if rows:
            self._follow(rows)
            refusal = await self._tell() or await self._put_rows(rows, erase)
            if refusal is not None:
                return refusal
        if erase:
            try:
                await self._erase(erase)
            except LeaseLost as error:
                return error
        return None

    def head(self) -> AgentHead | None:
        """What the next opening needs; None when it is too large, or there is nothing."""
        if not self._rows or self._version is None or sum(len(row.body) for row in self._rows) > HEAD_BYTES_MAX:
            return None
        return AgentHead(
            rows=self._rows, next_number=0, messages=0, numbers={}, tail=self._tail, agent_version=self._version
        )

    # Within.

    async def _open(self) -> list[Row]:
        reading = await read_journal(self._place, whole=False)
        opened, document = _opened_run(self._place, reading, self._wall(), self._entropy)
        if document is None and reading.document is not None:
            await self._put_aside(reading.document.body)
        self._stand_at(opened.fold, opened.needed(), reading.agent_version, reading.assembled.tail)
        if opened.made:
            note(_log, INFO, "a run was taken in", file=self._names.agent, records=len(opened.made))
            await self._put_rows(opened.made)
        if self.last_seq and (document is None or document.seq != self.last_seq):
            refusal = await self._tell()
            if refusal is not None:
                raise refusal
        if reading.assembled.erase:
            await self._erase([*reading.assembled.erase])
        return list(self._rows)

    def _stand_at(self, fold: Fold, rows: list[Row], version: str | None, tail: Sequence[Line]) -> None:
        self._fold, self._run = fold, run_of(fold)
        self._rows, self._version, self._tail = rows, version, tail

    def _follow(self, rows: Sequence[Row]) -> None:
        """Fold rows before they are stored. Errors: `Invalid` for rows of a conversation."""
        for row in rows:
            record = None if row.erased else decode(row.kind, row.version, row.body)
            if row.kind == RecordKind.MESSAGE:
                raise Invalid("an orchestrator's journal holds no messages", agent=self._place.agent_id, seq=row.seq)
            if record is None:
                self._fold.skip(row.seq, branch=row.kind == RecordKind.BRANCH)
            elif isinstance(record, Branched):
                self._fold.rewind(row.seq, record, {})
                self._run = run_of(self._fold)
            else:
                self._fold.apply(row.seq, record)
            if isinstance(record, NodeChanged):
                self._run.apply(record)
        self._rows = needed_of([*self._rows, *rows])

    async def _tell(self) -> LeaseLost | None:
        """Put the current document. Returns an error when another program has written it meanwhile."""
        body = run_file(self._run, _orchestrator(self._place), self.last_seq)
        for _ in range(_TRIES_MAX):
            condition = Create() if self._version is None else Update(self._version)
            try:
                self._version = await self._objects.put(self._names.agent, body, condition)
            except (AlreadyExists, PreconditionFailed):
                found = await find_document(self._place)
                self._version = None if found is None else found.version
                if found is not None and self._is_theirs(found.body):
                    msg = "another program has continued the run; open it again to take that in"
                    return LeaseLost(msg, session=self._place.session_id, file=self._names.agent)
            else:
                return None
        raise StoreUnavailable("somebody else writes it as well", key=self._names.agent)

    def _is_theirs(self, body: bytes) -> bool:
        try:
            return read_run_file(body, _orchestrator(self._place)).seq is None
        except ValueError:
            return True

    async def _put_rows(self, rows: Sequence[Row], erase: Sequence[int] = ()) -> LeaseLost | None:
        group = RecordGroup(rows=rows, generation=self._generation, before=self._tail, erase=erase)
        key = self._names.key(DocumentSource(None, rows[0].seq))
        try:
            await self._objects.put(key, rows_document(group, {}), Create())
        except AlreadyExists:
            msg = "another owner has added to the session"
            return LeaseLost(msg, session=self._place.session_id, agent=self._place.agent_id, file=key)
        self._tail = [Line.of(row) for row in rows]
        return None

    async def _put_aside(self, body: bytes) -> None:
        """Keep a copy of an unreadable document before it is replaced."""
        await self._objects.put(self._names.quarantined_document, body, Overwrite())
        note(_log, WARNING, "a run that cannot be read was put aside", file=self._names.agent)

    async def _erase(self, seqs: Sequence[int]) -> None:
        """Destroy the contents of rows in every document that holds them, then put the document again. Errors:
        `LeaseLost`.
        """
        wanted = frozenset(seqs)
        reading = await read_journal(self._place, whole=True)
        for source, read in reading.documents.items():
            if read.erase or any(kept.line.seq in wanted for kept in read.kept):
                without = partial(without_contents, wanted=wanted, shown=None, at=self._wall())
                await _rewrite(self._place, source, self._generation, without)
        rows = [row.without_content() if row.seq in wanted else row for row in self._rows]
        self._stand_at(restore(rows).fold, rows, self._version, self._tail)
        await self._tell()


def _orchestrator(place: JournalPlace) -> str:
    found = orchestrator_in(place.agent_id)
    assert found is not None
    return found


def _opened_run(
    place: JournalPlace, reading: DocumentReading, at: float, entropy: Entropy
) -> tuple[OpenedTree, RunFile | None]:
    names, rows = (place.session_id, place.agent_id), reading.assembled.rows
    if reading.document is not None:
        try:
            document = read_run_file(reading.document.body, _orchestrator(place))
            return open_run(names, rows, document, at, entropy), document
        except CorruptJournal:
            raise
        except (Corrupt, ValueError) as error:
            if not rows:
                raise _unreadable(place, error) from error
    return open_run(names, rows, None, at, entropy), None


def _unreadable(place: JournalPlace, error: Exception) -> CorruptJournal:
    return CorruptJournal(
        "the document of a run cannot be read",
        session=place.session_id,
        agent=place.agent_id,
        file=place.names.agent,
        cause=str(error),
    )
