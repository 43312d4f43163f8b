"""`repertory sessions list` and `repertory sessions show`: what is stored, read without owning it.

Nothing here takes a lease, so a session can be looked at while another process talks in it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime

import anyio

from repertory.app.sessions import SQLiteSessions
from repertory.app.transcript import harmless, message_lines
from repertory.backends.ports import SessionInfo
from repertory.core.journal.records import Interrupted, MessageAdded, Record
from repertory.core.journal.restore import records_of
from repertory.core.journal.verify import verify
from repertory.core.messages import tool_uses
from repertory.errors import NotFound


def list_sessions(database: str | None) -> int:
    """Print every session, the most recently changed first. Returns the exit code."""
    sessions = anyio.run(SQLiteSessions(database).list)
    if not sessions:
        sys.stdout.write("No sessions.\n")
        return 0
    sys.stdout.write("".join(f"{line}\n" for line in session_table(sessions)))
    return 0


def show_session(database: str | None, session_id: str, agent_id: str | None) -> int:
    """Print everything that was said in a session; None means its only agent. Returns the exit code.

    Errors: `NotFound` for a session or an agent that is not there; `CorruptJournal` when it is not what was written.
    """
    records = anyio.run(_read, SQLiteSessions(database), session_id, agent_id)
    sys.stdout.write("".join(f"{line}\n" for line in history_lines(records)))
    return 0


def session_table(sessions: Sequence[SessionInfo]) -> Iterator[str]:
    """A header and one line per session, in columns."""
    rows = [("SESSION", "AGENTS", "RECORDS", "UPDATED", "OWNER"), *map(_cells, sessions)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def history_lines(records: Sequence[tuple[int, Record | None]]) -> Iterator[str]:
    """Every message with who said it and when; at the end, whether the last turn was cut short."""
    last: MessageAdded | None = None
    waiting = False
    for seq, record in records:
        if isinstance(record, MessageAdded):
            last, waiting = record, False
            yield f"#{seq} {record.message['role']}, {local_time(record.at)}"
            yield from (f"    {line}" for line in message_lines(record.message))
        elif isinstance(record, Interrupted):
            waiting = True
    if waiting:
        yield "(The last turn waits for a person to say what became of a tool.)"
    elif last is not None and (last.message["role"] == "user" or any(tool_uses(last.message))):
        yield "(The last turn has no answer.)"


def local_time(epoch_s: float) -> str:
    """ISO 8601 in the local time zone, to the second."""
    return datetime.fromtimestamp(epoch_s).astimezone().isoformat(timespec="seconds")


def _cells(info: SessionInfo) -> tuple[str, ...]:
    agents = ", ".join(sorted(info.agents))
    return (
        harmless(info.session_id),
        harmless(agents) or "-",
        str(sum(info.agents.values())),
        local_time(info.updated_at),
        harmless(info.owner or "-"),
    )


async def _read(sessions: SQLiteSessions, session_id: str, agent_id: str | None) -> Sequence[tuple[int, Record | None]]:
    known = {info.session_id: info for info in await sessions.list()}
    if session_id not in known:
        raise NotFound("no such session", session=session_id, database=str(sessions.path))
    if agent_id is None:
        agents = sorted(known[session_id].agents)
        agent_id = agents[0] if len(agents) == 1 else "default"
    if agent_id not in known[session_id].agents:
        raise NotFound("no such agent in the session", agent=agent_id, agents=sorted(known[session_id].agents))
    store = sessions.open_store()
    try:
        rows = await store.load(session_id, agent_id, whole=True)
    finally:
        await store.aclose()
    verify(rows, session_id=session_id)
    return records_of(rows, session_id=session_id)
