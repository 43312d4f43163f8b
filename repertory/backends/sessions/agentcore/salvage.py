"""Looking for damage in the events of a session, reading around it, and setting aside what is damaged.

What cannot be proved any more is taken for what somebody else has written: the messages that can be read, as they
stand, and the agent's record.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

from repertory.backends.mending_ports import Damage, Salvage
from repertory.backends.sessions.agentcore.events import Event, MemoryEvents, NewEvent
from repertory.backends.sessions.agentcore.journal import opened_of
from repertory.backends.sessions.agentcore.layout import aside_name, number_aside, session_name
from repertory.backends.sessions.agentcore.ownership import REQUESTS_AT_ONCE, Means
from repertory.backends.sessions.agentcore.reading import EventLog, Reading, everything_said, read_agent_log
from repertory.backends.sessions.journal.requests import side_by_side
from repertory.core.message_tree.assembly import Assembled
from repertory.core.message_tree.opening import open_agent
from repertory.core.orchestration.journals import orchestrator_in
from repertory.errors import Corrupt

if TYPE_CHECKING:
    from repertory.core.journal.rows import Row


async def examine_events(means: Means, session_id: str) -> Sequence[Damage]:
    """Everything that is wrong with a session's events, each place once."""
    log = await _whole_log(means, session_id)
    damages = {seen.event.event_id: seen.fault or seen.record_fault for seen in log.seen}
    found = [Damage(where=where, what=what) for where, what in damages.items() if what is not None]
    for agent_id in log.agents:
        found += (await read_agent_log(log, agent_id, means.wall(), first=1)).damages
    return list({damage.where: damage for damage in found}.values())


async def salvage_events(means: Means, session_id: str) -> Salvage:
    """Every row that can be proved or, when some cannot, new ones for all that can be read; and what is wrong."""
    log = await _whole_log(means, session_id)
    rows: list[Row] = []
    for agent_id in log.agents:
        reading = await read_agent_log(log, agent_id, means.wall(), first=1)
        rows += _mended_rows(means, log, (session_id, agent_id), reading)
    return Salvage(rows=rows, damages=await examine_events(means, session_id))


def _mended_rows(means: Means, log: EventLog, names: tuple[str, str], reading: Reading) -> Sequence[Row]:
    """All rows of an agent, with a record for each message that is lost."""
    assembled, agent = reading.assembled, reading.agent
    theirs = replace(agent, foreign=True) if agent is not None else None
    if assembled.lost and theirs is not None:  # It says what the lost rows amounted to.
        reading = replace(reading, agent=theirs)
    # Rows that took in what others had added may be among the lost ones: it would stand at the end then.
    in_place = not (assembled.added and any(fault.message is None for fault in assembled.faults))
    try:
        if assembled.begins <= 1 and in_place:
            opened = opened_of(means, names, reading)
            return [*opened.found, *opened.made]
    except Corrupt:
        pass
    if orchestrator_in(names[1]) is not None:  # It has no messages: what goes before the damage is what there is.
        return assembled.rows
    said = list(enumerate(everything_said(log, names[1])))
    numbers = [number for number, _ in said]
    return open_agent(names, Assembled(added=said), numbers, theirs, means.wall(), means.entropy).made


async def _whole_log(means: Means, session_id: str) -> EventLog:
    log = EventLog(means.events, session_name(session_id), session_id)
    await log.everything()
    return log


async def names_aside(events: MemoryEvents, name: str) -> list[str]:
    """What was set aside of a session, as the service calls it, the oldest first."""
    numbers = [number for each in await events.sessions() if (number := number_aside(each, name)) is not None]
    names = [aside_name(name, number) for number in sorted(numbers)]
    return [each for each in names if (await events.page(each, None, payloads=False)).events]


async def copy_aside(means: Means, name: str) -> str:
    """Copy the events of a session, each as a blob that says all of it. The name of the copy."""
    log = EventLog(means.events, name)
    await log.everything()
    before = [number_aside(each, name) or 0 for each in await names_aside(means.events, name)]
    moved_to = aside_name(name, max(before, default=0) + 1)
    for start in range(0, len(log.seen), REQUESTS_AT_ONCE):
        some = log.seen[start : start + REQUESTS_AT_ONCE]
        copies = [_copy(seen.event, f"{means.owner} {moved_to}") for seen in some]
        await side_by_side([partial(means.events.create, moved_to, copy) for copy in copies])
    return moved_to


def _copy(event: Event, whose: str) -> NewEvent:
    said = {"event": event.event_id, "at_ms": event.at_ms, "metadata": event.metadata, "payload": list(event.payload)}
    token = blake2b(f"{whose} {event.event_id}".encode(), digest_size=20).hexdigest()
    return NewEvent(at_ms=event.at_ms, payload=[{"blob": json.dumps(said, default=str)}], metadata={}, token=token)
