"""Erasing contents from a session whose events cannot be changed: each is written anew without them, and deleted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from repertory.backends.sessions.agentcore.layout import Seen, erased_payload
from repertory.backends.sessions.agentcore.ownership import REQUESTS_AT_ONCE, OwnedSession
from repertory.backends.sessions.agentcore.reading import EventLog, read_agent_log
from repertory.backends.sessions.journal.requests import side_by_side
from repertory.core.message_tree.chapters import shown_instead
from repertory.core.message_tree.documents import OURS
from repertory.core.messages import Message


async def erase(owned: OwnedSession, wanted: Mapping[str, Sequence[int]]) -> None:
    """Destroy the contents of rows (by agent), in every event that holds them: first the messages, so that a row
    without content never stands beside the message that it had, and last in the event that asks for it.

    An event written anew stands at the time of the one it replaces. Errors: as `MemoryEvents`; then what asks for it
    is still there, and whoever owns the session next goes on.
    """
    means = owned.means
    log = EventLog(means.events, owned.name)
    shown: dict[str, Message] = {}
    superseded: list[str] = []
    for agent_id, seqs in wanted.items():
        reading = await read_agent_log(log, agent_id, means.wall(), first=min(seqs))
        for seq, message in shown_instead(reading.assembled.rows, frozenset(seqs)).items():
            number = reading.assembled.numbers.get(seq)
            if number is not None and number in reading.refs:
                shown[reading.refs[number]] = message
        superseded += reading.superseded
    await side_by_side([partial(owned.delete, event_id) for event_id in superseded], REQUESTS_AT_ONCE)
    holding = [
        seen for seen in log.seen if seen.event.event_id not in superseded and _concerns(seen, wanted, set(shown))
    ]
    for seen in sorted(holding, key=lambda seen: (_asks(seen, wanted), not _refs(seen) & set(shown))):
        metadata = {name: value for name, value in seen.event.metadata.items() if name != OURS}
        payload = erased_payload(seen, wanted, shown, means.wall())
        await owned.create("rows", payload, metadata, seen.event.at_ms)
        await owned.delete(seen.event.event_id)


def _concerns(seen: Seen, wanted: Mapping[str, Collection[int]], shown: Collection[str]) -> bool:
    rows = {(found.agent_id, row.line.seq) for found in seen.found for row in found.read.kept}
    holds = bool(_refs(seen) & set(shown)) or any((name, seq) in rows for name in wanted for seq in wanted[name])
    return holds or _asks(seen, wanted)


def _refs(seen: Seen) -> set[str]:
    """The places of the messages in an event."""
    return {said.ref for said in seen.said} | {found.ref for found in seen.found}


def _asks(seen: Seen, wanted: Mapping[str, Collection[int]]) -> bool:
    return any(found.read.erase and found.agent_id in wanted for found in seen.found)
