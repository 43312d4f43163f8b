"""Taking erased messages, states and summaries out of snapshots: out of each that has them, whoever has written it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from repertory.core.journal.codec import decode
from repertory.core.journal.plain_json import dump
from repertory.core.journal.records import Branched, MessageAdded, Record, Redacted, StateChanged, View, ViewChanged
from repertory.core.message_tree.documents import OURS
from repertory.core.message_tree.spelling import decoded, encoded
from repertory.core.messages import read_message
from repertory.core.snapshots.document import content_digest
from repertory.core.snapshots.intake import identity

if TYPE_CHECKING:
    from repertory.core.journal.rows import Row
    from repertory.core.messages import Message


@dataclass(frozen=True, slots=True)
class Replacements:
    """What is to be gone from snapshots."""

    messages: Mapping[bytes, Message]
    """What is to stand in the place of each message that is erased, of its shortened copies and of summaries, by
    `identity`.
    """
    state: frozenset[tuple[str, bytes]]
    """Keys and values of agent states that are erased. Nobody can tell what an earlier state would say instead."""

    def __bool__(self) -> bool:
        return bool(self.messages or self.state)


def replacements(erased: Sequence[Row], added: Sequence[Row]) -> Replacements:
    """What the erasure of these rows takes out of snapshots.

    `erased`: the rows that go, as they are still; `added`: those that are committed with that, redactions among them.
    """
    records = [decode(row.kind, row.version, row.body) for row in added if not row.erased]
    instead = {record.target: record.message for record in records if isinstance(record, Redacted)}
    stays = {pair for record in records for pair in _state_pairs(record)}
    messages: dict[bytes, Message] = {}
    state: set[tuple[str, bytes]] = set()
    for row in erased:
        if row.erased:
            continue
        record = decode(row.kind, row.version, row.body)
        copies: dict[int, Message] = {}
        match record:
            case MessageAdded():
                copies = {row.seq: record.message}
            case Redacted():
                copies = {record.target: record.message}
            case ViewChanged() | Branched():
                copies = _copies(record.view)
                messages |= _summary(record.view, records)
            case _:
                pass
        messages |= {identity(message): instead[target] for target, message in copies.items() if target in instead}
        state |= _state_pairs(record) - stays
    return Replacements(messages, frozenset(state))


def redacted(document: Mapping[str, object], instead: Replacements) -> dict[str, object] | None:
    """The document of a snapshot without what is to be gone; None when it has none of it."""
    data = document.get("data")
    if not isinstance(data, Mapping):
        return None
    said = cast("Mapping[str, object]", data)
    changed = dict(said)
    messages, state = said.get("messages"), said.get("state")
    if isinstance(messages, list):
        changed["messages"] = [_replaced(message, instead.messages) for message in cast("list[object]", messages)]
    if isinstance(state, dict):
        changed["state"] = _without(cast("Mapping[str, object]", state), instead.state)
    if changed == said:
        return None
    whole = {**document, "data": changed}
    if OURS in document:
        whole["sha256"] = content_digest({"data": changed, "app_data": whole.get("app_data")})
    return whole


def _without(state: Mapping[str, object], gone: Collection[tuple[str, bytes]]) -> dict[str, object]:
    try:
        spelled = {key: dump(value) for key, value in decoded(state).items()}
    except ValueError:  # It says nothing that was ever in a journal.
        return dict(state)
    return {key: value for key, value in state.items() if (key, spelled[key]) not in gone}


def _state_pairs(record: Record) -> set[tuple[str, bytes]]:
    match record:
        case StateChanged(set=added, full=full):
            values = added if full is None else full
        case Branched(state=state):
            values = state
        case _:
            return set()
    return {(key, dump(value)) for key, value in values.items()}


def _summary(view: View, records: Sequence[Record]) -> dict[bytes, Message]:
    """A summary that is erased, and what is shown in its place now, if anything."""
    if view.summary is None:
        return {}
    views = [record.view for record in records if isinstance(record, ViewChanged | Branched)]
    shown = views[-1].summary if views else None
    if shown == view.summary:
        return {}
    return {identity(view.summary): shown or {**view.summary, "content": [{"text": "[redacted]"}]}}


def _copies(view: View) -> dict[int, Message]:
    return {**view.pinned, **view.replaced}


def _replaced(message: object, instead: Mapping[bytes, Message]) -> object:
    said = cast("dict[str, object]", message) if isinstance(message, dict) else {}
    try:
        found = read_message(decoded(said))
        wanted = instead.get(identity(found))
    except ValueError:
        return cast("object", message)
    if wanted is None:
        return said
    tracking_id = found.get("tracking_id")
    return encoded(wanted if tracking_id is None else {**wanted, "tracking_id": tracking_id})
