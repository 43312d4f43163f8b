"""Reads the whole message history of a session, with redactions applied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from anyio.lowlevel import checkpoint
from msgspec import Struct

from repertory.actors.in_memory_journal import InMemoryJournal
from repertory.backends.worker_threads import OFF_LOOP_BYTES, run_in_thread
from repertory.core.journal.records import Record
from repertory.core.journal.restore import decoded_messages, records_of
from repertory.core.journal.rows import RecordKind, size_of, verify
from repertory.core.memory.progress import JournaledMessage, messages_in_rows
from repertory.core.orchestration.run import Run, past_run
from repertory.runtime.message import Ask

if TYPE_CHECKING:
    from repertory.actors.leases import Durable
    from repertory.actors.writer import CommitBuffer
    from repertory.core.journal.rows import Row
    from repertory.core.messages import Message

_SLICE_ROWS = 512
"""Rows decoded in one slice, unless they are large: about two milliseconds."""
_SAYING = frozenset({RecordKind.MESSAGE, RecordKind.REDACTION})
"""The row kinds that hold messages or change them."""
_TELLING = frozenset({RecordKind.NODE, RecordKind.BRANCH})
"""The row kinds that tell what became of runs."""


class History(NamedTuple):
    """The messages of a session."""

    messages: tuple[Message, ...]
    """The messages, oldest first."""
    forked: bool = False
    """True if the journal may continue another one, which holds the earlier messages."""


class ReadHistory(Struct, Ask[History], frozen=True, kw_only=True):
    """Answers every message of the session, including those that the model is no longer shown."""


class ReadMessages(Struct, Ask[Sequence[JournaledMessage]], frozen=True, kw_only=True):
    """Answers the messages after a sequence number, oldest first, without those that a rewind up to `until` has left
    behind.
    """

    after: int
    until: int | None = None
    """The last sequence number to look at; None for all."""


class ReadRecords(Struct, Ask[Mapping[int, Record | None]], frozen=True, kw_only=True):
    """Answers the records with these numbers, as redactions have left them; None for what was erased."""

    seqs: tuple[int, ...]


class ReadRun(Struct, Ask[Run | None], frozen=True, kw_only=True):
    """Answers an earlier run of the orchestrator; None if it is missing or not over."""

    number: int


async def read_for(
    message: ReadHistory | ReadMessages | ReadRecords | ReadRun,
    keeper: Durable | InMemoryJournal,
    session_id: str,
    buffer: CommitBuffer,
) -> History | Sequence[JournaledMessage] | Mapping[int, Record | None] | Run | None:
    """The answer to this message. Errors: those of reading."""
    match message:
        case ReadHistory():
            return await read_history(keeper, session_id, buffer)
        case ReadMessages(after=after, until=until):
            return await read_messages(keeper, session_id, buffer, after, until)
        case ReadRecords(seqs=seqs):
            return await read_records(keeper, session_id, buffer, seqs)
        case ReadRun(number=number):
            return await read_run(keeper, session_id, buffer, number)


async def read_history(keeper: Durable | InMemoryJournal, session_id: str, buffer: CommitBuffer) -> History:
    """The buffer's agent's stored messages, verified, and those that wait to be stored.

    It is read in slices, so a long history does not block the event loop. Errors: `CorruptJournal`, those of the store.
    """
    if isinstance(keeper, InMemoryJournal):
        return History(keeper.history())
    rows = list(await keeper.store.load(session_id, buffer.agent_id, whole=True))
    for start in range(0, len(rows), _SLICE_ROWS):  # Each slice is verified by the last row of the one before.
        verify(rows[max(0, start - 1) : start + _SLICE_ROWS], session_id=session_id)
        await checkpoint()
    rows += _waiting_rows(rows, buffer)
    forked = bool(rows) and rows[0].kind == RecordKind.BRANCH
    rows = [row for row in rows if row.kind in _SAYING]
    messages: dict[int, Message] = {}
    redacted: dict[int, Message] = {}
    for part in _slices(rows):
        added, restated = decoded_messages(part, session_id=session_id)
        messages |= added
        redacted |= restated
        await checkpoint()
    if not redacted:
        return History(tuple(messages.values()), forked)
    messages |= redacted
    return History(tuple(messages[seq] for seq in sorted(messages)), forked)


async def read_messages(
    keeper: Durable | InMemoryJournal, session_id: str, buffer: CommitBuffer, after: int, until: int | None
) -> Sequence[JournaledMessage]:
    """The messages after a sequence number, with counts, oldest first. Usually it reads only the rows of opening."""
    if isinstance(keeper, InMemoryJournal):
        return keeper.messages_between(after, until)
    rows = await _rows_from(keeper, session_id, buffer, after + 1)

    def read() -> Sequence[JournaledMessage]:
        verify(rows, session_id=session_id)
        return messages_in_rows(rows, after, until, session_id=session_id)

    small = len(rows) <= _SLICE_ROWS and size_of(rows) <= OFF_LOOP_BYTES
    return read() if small else await run_in_thread(read)


async def _rows_from(keeper: Durable, session_id: str, buffer: CommitBuffer, first: int) -> list[Row]:
    """The rows from this number on, and usually more before them."""
    rows = list(await keeper.store.load(session_id, buffer.agent_id))
    # Rarely: a memory store that is far behind, or a reader that asks for the beginning.
    if rows and rows[0].seq > first:
        rows = list(await keeper.store.load(session_id, buffer.agent_id, whole=True))
    return [*rows, *_waiting_rows(rows, buffer)]


async def read_records(
    keeper: Durable | InMemoryJournal, session_id: str, buffer: CommitBuffer, seqs: Sequence[int]
) -> Mapping[int, Record | None]:
    """The records with these numbers; see `ReadRecords`. A conversation in memory has none."""
    if isinstance(keeper, InMemoryJournal):
        return dict.fromkeys(seqs)
    rows = await _rows_from(keeper, session_id, buffer, min(seqs))

    def read() -> Mapping[int, Record | None]:
        verify(rows, session_id=session_id)
        wanted = [row for row in rows if row.seq in seqs or row.kind == RecordKind.REDACTION]
        found = dict(records_of(wanted, session_id=session_id))
        return {seq: found.get(seq) for seq in seqs}

    small = len(rows) <= _SLICE_ROWS and size_of(rows) <= OFF_LOOP_BYTES
    return read() if small else await run_in_thread(read)


async def read_run(keeper: Durable | InMemoryJournal, session_id: str, buffer: CommitBuffer, number: int) -> Run | None:
    """The run of that number; None if it is missing or not over. This reads the whole journal."""
    if isinstance(keeper, InMemoryJournal):
        return past_run(keeper.run_records(), number)
    rows = list(await keeper.store.load(session_id, buffer.agent_id, whole=True))
    await run_in_thread(partial(verify, rows, session_id=session_id))
    rows += _waiting_rows(rows, buffer)
    telling = [row for row in rows if row.kind in _TELLING]
    return await run_in_thread(lambda: past_run(records_of(telling, session_id=session_id), number))


def _waiting_rows(stored: Sequence[Row], buffer: CommitBuffer) -> list[Row]:
    last = stored[-1].seq if stored else 0
    return [row for row in buffer.rows if row.seq > last]


def _slices(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The rows in slices of at most `_SLICE_ROWS` rows and `OFF_LOOP_BYTES` bytes; a single larger row is its own
    slice.
    """
    start = size = 0
    for index, row in enumerate(rows):
        size += len(row.body)
        if index > start and (index - start >= _SLICE_ROWS or size > OFF_LOOP_BYTES):
            yield rows[start:index]
            start, size = index, len(row.body)
    if start < len(rows):
        yield rows[start:]
