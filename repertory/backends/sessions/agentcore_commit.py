"""A commit: its chapters in as few events as will hold them, usually one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from repertory.backends.sessions.agentcore_erasing import erase
from repertory.backends.sessions.agentcore_journal import AgentCoreJournal, Part
from repertory.backends.sessions.agentcore_layout import STATE_TYPE, session_item, size_of
from repertory.backends.sessions.agentcore_ownership import OwnedSession
from repertory.core.journal.codec import decode
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.rows import Kind, Row
from repertory.errors import LeaseLost

ITEMS_MAX = 100
"""Items that an event may have."""


class _Placed(NamedTuple):
    """A chapter and whose it is."""

    journal: AgentCoreJournal
    part: Part


async def commit(
    owned: OwnedSession,
    journals: Mapping[str, AgentCoreJournal],
    rows: Mapping[str, Sequence[Row]],
    wanted: Mapping[str, Sequence[int]],
) -> LeaseLost | None:
    """Store the rows of agents, all or none of them, then destroy what is `wanted`. None when that is done.

    Errors: as `MemoryEvents`. What is stored is unknown then; making the same commit again stores it once. Of a commit
    of several events of which some are missing, whoever opens the session next has the messages alone.
    """
    await owned.settle()
    rows = {agent_id: [row for row in some if _name(row) not in owned.unsure] for agent_id, some in rows.items()}
    for agent_id, some in rows.items():
        stored = journals[agent_id].last_seq
        if any(row.seq != seq for seq, row in enumerate(some, stored + 1)):
            msg = "rows do not follow what is stored"
            return LeaseLost(msg, session=owned.lease.session_id, seq=some[0].seq, stored=stored)
    for agent_id, some in rows.items():
        if some and journals[agent_id].empty:
            await _begin(owned, journals[agent_id])
    _prepare(owned, journals, rows, wanted)
    await owned.settle()
    known = {agent_id: _known(journals[agent_id], seqs) for agent_id, seqs in wanted.items()}
    if any(known.values()):
        await erase(owned, {agent_id: seqs for agent_id, seqs in known.items() if seqs})
        for agent_id in known:
            journals[agent_id].erased()
    for journal in journals.values():
        await journal.put_due()
    owned.unsure.clear()
    return None


def is_acted_on(row: Row) -> bool:
    """Whether something happens when this is stored: a tool starts, or somebody is given an answer."""
    if row.kind != Kind.MESSAGE or row.erased:
        return row.kind == Kind.TOOL_STARTED
    record = decode(row.kind, row.version, row.body)
    return isinstance(record, MessageAdded) and record.message["role"] == "assistant"


def _prepare(
    owned: OwnedSession,
    journals: Mapping[str, AgentCoreJournal],
    rows: Mapping[str, Sequence[Row]],
    wanted: Mapping[str, Sequence[int]],
) -> None:
    events = _events(owned, _placed(journals, rows, wanted, batch=False))
    if len(events) > 1:
        events = _events(owned, _placed(journals, rows, wanted, batch=True))
    beside: Mapping[str, str] = {}
    if any(part.number is not None for placed in events for _, part in placed):
        beside = owned.means.metadata(owned.lease.session_id)
    for placed in events:
        metadata = beside if any(part.number is not None for _, part in placed) else {}
        owned.prepare([item for _, part in placed for item in part.items], metadata, partial(_follow, placed))
    owned.unsure |= {_name(row) for some in rows.values() for row in some}


def _follow(placed: Sequence[_Placed]) -> None:
    for journal, part in placed:
        journal.follow(part)


def _name(row: Row) -> tuple[str, int, bytes]:
    return row.agent_id, row.seq, row.link


async def _begin(owned: OwnedSession, journal: AgentCoreJournal) -> None:
    """The records of session and agent come before messages: the package takes messages without them for none."""
    if not owned.session_known:
        record = session_item(owned.lease.session_id, owned.means.wall())
        await owned.create("session", [record], {STATE_TYPE: "SESSION"})
        owned.session_known = True
    await journal.put_agent()


def _known(journal: AgentCoreJournal, seqs: Sequence[int]) -> list[int]:
    return [seq for seq in seqs if 0 < seq <= journal.last_seq]


def _placed(
    journals: Mapping[str, AgentCoreJournal],
    rows: Mapping[str, Sequence[Row]],
    wanted: Mapping[str, Sequence[int]],
    *,
    batch: bool,
) -> list[_Placed]:
    return [
        _Placed(journals[agent_id], part)
        for agent_id, some in rows.items()
        for part in journals[agent_id].parts(some, wanted.get(agent_id, ()), batch=batch)
    ]


def _events(owned: OwnedSession, placed: Sequence[_Placed]) -> list[list[_Placed]]:
    """The chapters by event."""
    events: list[list[_Placed]] = []
    items, size_bytes = 0, 0
    for each in placed:
        more = sum(size_of(item) for item in each.part.items)
        items, size_bytes = items + len(each.part.items), size_bytes + more
        if not events or items > ITEMS_MAX or size_bytes > owned.means.settings.event_bytes_max:
            events.append([])
            items, size_bytes = len(each.part.items), more
        events[-1].append(each)
    return events
