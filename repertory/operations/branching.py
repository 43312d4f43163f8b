"""Continuing a stored session: from an earlier position, in a fork, or in a copy in another place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint

from repertory.app.sessions.reading import ancestry_of, in_thread_when_many, info_of, load_journal
from repertory.backends.line_files import read_lines
from repertory.backends.ports import begin, seal_of
from repertory.core.history.compare import Compared, Difference, Placed, compare
from repertory.core.history.fork import Fork, Lineage, conversation_at
from repertory.core.history.fork import fork as fork_journal
from repertory.core.history.rewind import go_back, without_summary
from repertory.core.ids import check_id
from repertory.core.journal.export_lines import (
    End,
    Exported,
    ExportReader,
    first_line,
    last_line,
    missing_rows,
    row_line,
)
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import RecordKind, verify_whole
from repertory.core.journal.sealing import plain_journal, sealed_journal
from repertory.core.turns.due_times import due_at_rest
from repertory.core.turns.subagents import without_subagents
from repertory.errors import NotFound
from repertory.operations.progress import OnProgress, OperationProgress
from repertory.operations.reading import (
    PositionLike,
    RecordStamp,
    agent_there,
    chosen_agent,
    commit_rows,
    end_of,
    moment_and_end_of,
    moment_to_fork,
    owned,
    position_of,
    sound_ends_of,
    sound_info_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from repertory.backends.line_files import WriteChunk
    from repertory.backends.ports import SessionStore
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkReport:
    """A session that was forked from another one."""

    session_id: str
    source: str
    positions: Mapping[str, int]
    """Agent id to the forked position of the source."""
    messages: int
    """The number of copied messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindReport:
    """A session that was rewound."""

    session_id: str
    agent_id: str
    position: int
    """The position from which the conversation continues."""
    was: int
    """The last position before the rewind. Rewinding to it undoes this."""


async def fork_session(
    store: SessionStore, session_id: str, new_id: str, at: PositionLike, agent_id: str | None, made: RecordStamp
) -> ForkReport:
    """Fork a session at a position."""
    # Before anything is read, which may take a while.
    check_id(new_id, "session id")
    ends, lasts = await _ends(store, session_id, agent_id)
    own = without_subagents(lasts)
    if isinstance(at, int) and len(own) == 1:  # What it had others do is not there yet, or is over.
        lasts = {own[0]: lasts[own[0]]}
    positions = await _positions(store, session_id, at, lasts)
    forks: dict[str, Fork] = {}
    for each, position in positions.items():
        then = await moment_to_fork(store, session_id, each, position, ends[each])
        work = partial(fork_journal, then, at=made.at, entropy=made.entropy)
        forks[each] = await in_thread_when_many(work, ends[each])
    await begin(store, new_id, [row for fork in forks.values() for row in fork.rows])
    count = sum(fork.messages for fork in forks.values())
    return ForkReport(session_id=new_id, source=session_id, positions=positions, messages=count)


async def rewind_session(
    store: SessionStore, session_id: str, to: int | str, agent_id: str | None, made: RecordStamp, *, takeover: bool
) -> RewindReport:
    """Record a rewind to a position. It reads as much as opening reads, there and at the end."""
    agent_id = await agent_there(store, session_id, agent_id)
    async with owned(store, session_id, takeover=takeover) as lease:
        then, now = await moment_and_end_of(store, session_id, agent_id, to)
        was, late = now.fold.last_seq, bool(now.fold.deferred or now.fold.came)
        seal = await seal_of(store, session_id)
        rows = go_back(then, now, at=made.at, entropy=made.entropy, seal=seal)
        # The fold has those rows. A question that timers have waited for may be gone, and tools that have waited.
        dues = [due_at_rest(agent_id, now.fold, made.at)] if _may_wake(now.fold) or late else []
        await commit_rows(store, lease, rows, dues=dues)
    return RewindReport(session_id=session_id, agent_id=agent_id, position=then.position, was=was)


async def drop_summary(
    store: SessionStore, session_id: str, agent_id: str | None, made: RecordStamp, *, takeover: bool
) -> RewindReport:
    """Record that the messages behind the summary are shown again."""
    agent_id = await agent_there(store, session_id, agent_id)
    async with owned(store, session_id, takeover=takeover) as lease:
        journal = await load_journal(store, session_id, agent_id)
        seal = await seal_of(store, session_id)
        work = partial(without_summary, journal, at=made.at, entropy=made.entropy, seal=seal)
        rows = await in_thread_when_many(work, journal.rows)
        await commit_rows(store, lease, rows)
    return RewindReport(session_id=session_id, agent_id=agent_id, position=journal.last_seq, was=journal.last_seq)


async def diff(
    store: SessionStore, first: tuple[str, PositionLike], second: tuple[str, PositionLike], agent_id: str | None
) -> Difference:
    """The differences between two sessions, each at a position."""
    (ours, our_position), (theirs, their_position) = [
        await _lineage(store, *side, agent_id) for side in (first, second)
    ]

    def compared() -> Difference:
        return compare(_compared(ours, our_position), _compared(theirs, their_position))

    return await in_thread_when_many(compared, *(journal.rows for journal in (*ours, *theirs)))


async def _lineage(store: SessionStore, session_id: str, at: PositionLike, agent_id: str | None) -> tuple[Lineage, int]:
    journal = await load_journal(store, session_id, await chosen_agent(store, session_id, agent_id))
    return (await ancestry_of(store, journal)).lineage, journal.position(at)


def _compared(lineage: Lineage, position: int) -> Compared:
    fold = lineage[0].fold_at(position)
    return Compared(
        messages=[
            Placed(seq=each.seq, message=each.record.message, source=each.source)
            for each in conversation_at(lineage, position)
        ],
        visible=[Placed(seq=seq, message=message) for seq, message in fold.shown],
        state=fold.state,
    )


async def _ends(
    store: SessionStore, session_id: str, agent_id: str | None
) -> tuple[Mapping[str, Sequence[Row]], Mapping[str, int]]:
    """Load the rows that opening reads, and the number of the last row, by agent: of the named one, or of all.

    Errors: `NotFound`, `CorruptJournal`.
    """
    if agent_id is not None:
        rows = await end_of(store, session_id, agent_id)
        return {agent_id: rows}, {agent_id: rows[-1].seq}
    info, ends = await sound_ends_of(store, session_id)
    return ends, {each: ends[each][-1].seq if ends[each] else last for each, last in sorted(info.agents.items())}


async def _positions(
    store: SessionStore, session_id: str, at: PositionLike, lasts: Mapping[str, int]
) -> dict[str, int]:
    """The position in each of these journals, whose last rows have these numbers: of the only one; of several those
    with the label, or all of them at their ends.
    """
    if len(lasts) > 1 and isinstance(at, int):
        raise NotFound("a number is a position of one agent: say which", session=session_id, agents=list(lasts))
    found: dict[str, int] = {}
    missing: NotFound | None = None
    for each, last in lasts.items():
        try:
            found[each] = await position_of(store, session_id, each, at, last)
        except NotFound as error:  # Another agent may have the label.
            missing = error
    if missing is not None and not found:
        raise missing
    return found


_LINES_AT_ONCE = 256
_WAKING = frozenset((RecordKind.TIMERS, RecordKind.DEFERRALS, RecordKind.DEFERRED_RESULT, RecordKind.DELIVERIES))
"""The kinds of records for which a session may have to be woken."""


def _may_wake(fold: Fold) -> bool:
    return bool(fold.timers or fold.deferred or fold.came or fold.outbox)


# Copies of sessions: into a file and back, or from place to place. Rows are copied unchanged, with their links; those
# of an encrypted session are opened, and sealed again where the copy goes to an encrypted place.


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """The outcome of a copy."""

    session_id: str
    """The session's id in its new place."""
    agents: Mapping[str, int]
    """Agent id to the last sequence number there."""
    added: int
    """The number of written rows. When an earlier copy was cut off, only the missing ones."""


async def export(
    store: SessionStore, session_id: str, write: WriteChunk, at: float, progress: OnProgress = None
) -> CopyReport:
    """Write the lines of a session, one agent after the other."""
    info = await sound_info_of(store, session_id)
    opening = first_line(session_id, at)
    await write(f"{opening}\n".encode())
    ends: dict[str, End] = {}
    done, total = 0, sum(info.agents.values())
    for agent_id in sorted(info.agents):
        rows = await _plain_rows_of(store, session_id, agent_id)
        for start in range(0, len(rows), _LINES_AT_ONCE):
            lines = [f"{row_line(row)}\n" for row in rows[start : start + _LINES_AT_ONCE]]
            await write("".join(lines).encode())
            if progress is not None:
                done += len(lines)
                progress(OperationProgress(done, max(done, total), "records"))
        if rows:
            ends[agent_id] = End(rows[-1].seq, rows[-1].link)
    await write(f"{last_line(opening, ends)}\n".encode())
    agents = {agent_id: end.seq for agent_id, end in ends.items()}
    return CopyReport(session_id=session_id, agents=agents, added=sum(agents.values()))


async def read_export(path: Path, progress: OnProgress = None) -> Exported:
    """The verified session of a file. Errors: `CorruptJournal` naming file and line, those of the file."""
    reader = ExportReader(str(path))
    number = 0
    async with aclosing(read_lines(path)) as lines:
        async for line in lines:
            reader.take(line)
            number += 1
            # A file may have a million lines: others go on meanwhile, and a cancellation is heard.
            if not number % _LINES_AT_ONCE:
                await checkpoint()
                if progress is not None:
                    progress(OperationProgress(number, None, "lines"))
    if progress is not None:
        progress(OperationProgress(number, number, "lines"))
    return await in_thread_when_many(reader.finish, *reader.rows)


async def store_session(
    store: SessionStore, session_id: str, journals: Mapping[str, Sequence[Row]], *, takeover: bool
) -> CopyReport:
    """Add a session, in one commit. Errors: `AlreadyExists`, `SessionBusy`, `LeaseLost`, those of the store."""
    check_id(session_id, "session id")
    if (seal := await seal_of(store, session_id)) is not None:
        journals = {agent_id: sealed_journal(rows, seal) for agent_id, rows in journals.items()}
    # What must be refused is, before a lease is taken, perhaps from a live owner.
    missing_rows(session_id, journals, await _there(store, session_id))
    timed = [rows for rows in journals.values() if any(row.kind in _WAKING for row in rows)]
    folds = {rows[-1].agent_id: restore(rows[rows[-1].low - 1 :], session_id=session_id).fold for rows in timed}
    dues = [due_at_rest(agent_id, fold, 0.0) for agent_id, fold in folds.items() if _may_wake(fold)]
    async with owned(store, session_id, takeover=takeover) as lease:
        # Of an import that was cut off only the rest is written: rows keep their links, so the beginning is recognised.
        # Read again, since an owner may have added rows until now.
        missing = missing_rows(session_id, journals, await _there(store, session_id))
        await commit_rows(store, lease, missing, dues=dues)
    ends = {agent_id: rows[-1].seq for agent_id, rows in journals.items() if rows}
    return CopyReport(session_id=session_id, agents=ends, added=len(missing))


async def read_session(
    store: SessionStore, session_id: str, progress: OnProgress = None
) -> Mapping[str, Sequence[Row]]:
    """Agent id to every row, verified and replayed. Errors: `NotFound`, `CorruptJournal`."""
    info = await sound_info_of(store, session_id)
    journals: dict[str, Sequence[Row]] = {}
    for agent_id in sorted(info.agents):
        rows = await _plain_rows_of(store, session_id, agent_id)
        await in_thread_when_many(partial(restore, rows, session_id=session_id), rows)
        journals[agent_id] = rows
        if progress is not None:
            done = sum(map(len, journals.values()))
            progress(OperationProgress(done, max(done, sum(info.agents.values())), "records"))
    return journals


async def _plain_rows_of(store: SessionStore, session_id: str, agent_id: str) -> Sequence[Row]:
    """Every row of an agent, verified; of an encrypted session opened, with the links that follow from that."""
    rows = await store.load(session_id, agent_id, whole=True)

    def plain() -> Sequence[Row]:
        verify_whole(rows, session_id=session_id)
        return plain_journal(rows)

    return await in_thread_when_many(plain, rows)


async def _there(store: SessionStore, session_id: str) -> Mapping[str, Sequence[Row]]:
    try:
        info = await info_of(store, session_id)
    except NotFound:
        return {}
    return {agent_id: await store.load(session_id, agent_id, whole=True) for agent_id in info.agents}
