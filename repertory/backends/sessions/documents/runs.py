"""One orchestrator's journal in the tree, for its owner: `multi_agent.json` for other programs, rows beside it for us.

Each commit first puts the document, under the known version, and then the rows. So no other program's document is
overwritten. After a crash in between, the document shows the end of a node that we run again, which its own journal
answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from repertory.backends.ports import Create, Overwrite, Update
from repertory.backends.sessions.documents.journal import HEAD_BYTES_MAX
from repertory.backends.sessions.documents.reading import DocumentReading, JournalPlace, find_document, read_journal
from repertory.core.journal.codec import decode
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import Branched, NodeChanged
from repertory.core.journal.restore import Entropy, restore
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.message_tree.assembly import DocumentSource
from repertory.core.message_tree.documents import RecordGroup, rows_document, without_contents
from repertory.core.message_tree.kept_rows import AgentHead, Line
from repertory.core.message_tree.opening import OpenedTree, needed_of
from repertory.core.message_tree.runs import RunFile, open_run, read_run_file, run_file, run_of
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

_TRIES_MAX = 5

_log = logging.getLogger("repertory.sessions")


async def seen_run_rows(
    place: JournalPlace,
    wall: Callable[[], float],
    entropy: Entropy,
    *,
    whole: bool = False,
    owned: bool = False,
) -> list[Row]:
    """The rows for a reader, from the last one's `low` on or all of them. Nothing is written.

    `owned`: other programs' changes are left out, since the owner will take them in. Errors: `CorruptJournal` with the
    document when no other source exists.
    """
    reading = await read_journal(place, whole=whole)
    rows = list(reading.assembled.rows)
    if owned:
        return rows if whole else needed_of(rows)
    opened, _ = _opened(place, reading, wall(), entropy)
    return [*opened.found, *opened.made] if whole else opened.needed()


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
            await self._erase(erase)
        return None

    async def close(self) -> None:
        """Nothing to do: the document is current."""

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
        opened, document = _opened(self._place, reading, self._wall(), self._entropy)
        if document is None and reading.document is not None:
            await self._put_aside(reading.document.body)
        self._stand_at(opened.fold, opened.needed(), reading.agent_version, reading.assembled.tail)
        if opened.made:
            _log.info("a run was taken in file=%r records=%r", self._names.agent, len(opened.made))
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
        _log.warning("a run that cannot be read was put aside file=%r", self._names.agent)

    async def _erase(self, seqs: Sequence[int]) -> None:
        """Destroy the contents of rows in every document that holds them, then put the document again."""
        wanted = frozenset(seqs)
        reading = await read_journal(self._place, whole=True)
        for source, read in reading.documents.items():
            if read.erase or any(kept.line.seq in wanted for kept in read.kept):
                key = self._names.key(source)
                body = (await self._objects.get(key)).body
                await self._objects.put(key, without_contents(body, wanted, None, self._wall()), Overwrite())
        rows = [row.without_content() if row.seq in wanted else row for row in self._rows]
        self._stand_at(restore(rows).fold, rows, self._version, self._tail)
        await self._tell()


def _orchestrator(place: JournalPlace) -> str:
    found = orchestrator_in(place.agent_id)
    assert found is not None
    return found


def _opened(
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
