"""Sessions from one place to another: into a file and back, or straight. Rows are moved as they are, links included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint

from repertory.app.operations.opening import commit, owned
from repertory.app.operations.reading import aside, info_of, rows_of, sound_info_of
from repertory.backends.line_files import lines_of
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
from repertory.errors import NotFound

if TYPE_CHECKING:
    from pathlib import Path

    from repertory.backends.line_files import Write
    from repertory.backends.ports import SessionStore
    from repertory.core.journal.rows import Row

_LINES_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """What was copied."""

    session_id: str
    """As it is called where it is now."""
    agents: Mapping[str, int]
    """Agent id to the last sequence number there."""
    added: int
    """Rows that were written. Fewer than there are when a copy was completed that had been cut off."""


async def export(store: SessionStore, session_id: str, write: Write, at: float) -> CopyReport:
    """Write the lines of a session, one agent after the other."""
    info = await sound_info_of(store, session_id)
    opening = first_line(session_id, at)
    await write(f"{opening}\n".encode())
    ends: dict[str, End] = {}
    for agent_id in sorted(info.agents):
        rows = await rows_of(store, session_id, agent_id)
        for start in range(0, len(rows), _LINES_AT_ONCE):
            lines = [f"{row_line(row)}\n" for row in rows[start : start + _LINES_AT_ONCE]]
            await write("".join(lines).encode())
        if rows:
            ends[agent_id] = End(rows[-1].seq, rows[-1].link)
    await write(f"{last_line(opening, ends)}\n".encode())
    agents = {agent_id: end.seq for agent_id, end in ends.items()}
    return CopyReport(session_id=session_id, agents=agents, added=sum(agents.values()))


async def read_export(path: Path) -> Exported:
    """The session in a file, proved. Errors: `CorruptJournal` naming file and line, those of the file."""
    reader = ExportReader(str(path))
    number = 0
    async with aclosing(lines_of(path)) as lines:
        async for line in lines:
            reader.take(line)
            number += 1
            if not number % _LINES_AT_ONCE:
                await checkpoint()
    return await aside(reader.finish, number)


async def store_session(
    store: SessionStore, session_id: str, journals: Mapping[str, Sequence[Row]], *, takeover: bool
) -> CopyReport:
    """Add a session, in one commit. Errors: `AlreadyExists`, `SessionBusy`, `LeaseLost`, those of the store."""
    check_id(session_id, "session id")
    missing = missing_rows(session_id, journals, await _there(store, session_id))
    async with owned(store, session_id, takeover=takeover) as lease:
        await commit(store, lease, missing)
    ends = {agent_id: rows[-1].seq for agent_id, rows in journals.items() if rows}
    return CopyReport(session_id=session_id, agents=ends, added=len(missing))


async def read_session(store: SessionStore, session_id: str) -> Mapping[str, Sequence[Row]]:
    """Agent id to every row, proved and replayed. Errors: `NotFound`, `CorruptJournal`."""
    info = await sound_info_of(store, session_id)
    journals: dict[str, Sequence[Row]] = {}
    for agent_id in sorted(info.agents):
        rows = await rows_of(store, session_id, agent_id)
        await aside(partial(restore, rows, session_id=session_id), len(rows))
        journals[agent_id] = rows
    return journals


async def _there(store: SessionStore, session_id: str) -> Mapping[str, Sequence[Row]]:
    try:
        info = await info_of(store, session_id)
    except NotFound:
        return {}
    return {agent_id: await store.load(session_id, agent_id, whole=True) for agent_id in info.agents}
