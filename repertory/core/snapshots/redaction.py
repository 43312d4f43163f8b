"""Redacting a message in snapshots: in each one that shows it, whoever has written that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from repertory.core.journal.codec import decode
from repertory.core.journal.records import Branched, MessageAdded, Redacted, View, ViewChanged
from repertory.core.message_tree.documents import OURS
from repertory.core.message_tree.spelling import decoded, encoded
from repertory.core.pairing import check_message
from repertory.core.snapshots.document import content_digest
from repertory.core.snapshots.intake import identity

if TYPE_CHECKING:
    from repertory.core.journal.rows import Row
    from repertory.core.messages import Message


def replacements(erased: Sequence[Row], added: Sequence[Row]) -> dict[bytes, Message]:
    """What is to stand in the place of each message that is erased, and of its shortened copies, by `identity`.

    `erased`: the rows that go, as they are still; `added`: those that are committed with that, redactions among them.
    """
    records = [decode(row.kind, row.version, row.body) for row in added if not row.erased]
    instead = {record.target: record.message for record in records if isinstance(record, Redacted)}
    found: dict[bytes, Message] = {}
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
            case _:
                pass
        found |= {identity(message): instead[target] for target, message in copies.items() if target in instead}
    return found


def redacted(document: Mapping[str, object], instead: Mapping[bytes, Message]) -> dict[str, object] | None:
    """The document of a snapshot with other messages in the place of those; None when it shows none of them."""
    data = document.get("data")
    messages = cast("Mapping[str, object]", data).get("messages") if isinstance(data, Mapping) else None
    if not isinstance(messages, list):
        return None
    shown = [_replaced(message, instead) for message in cast("list[object]", messages)]
    if shown == messages:
        return None
    changed = {**document, "data": {**cast("Mapping[str, object]", data), "messages": shown}}
    if OURS in document:
        changed["sha256"] = content_digest({"data": changed["data"], "app_data": changed.get("app_data")})
    return changed


def _copies(view: View) -> dict[int, Message]:
    return {**view.pinned, **view.replaced}


def _replaced(message: object, instead: Mapping[bytes, Message]) -> object:
    said = cast("dict[str, object]", message) if isinstance(message, dict) else {}
    try:
        found = check_message(decoded(said))
        wanted = instead.get(identity(found))
    except ValueError:
        return cast("object", message)
    if wanted is None:
        return said
    tracking_id = found.get("tracking_id")
    return encoded(wanted if tracking_id is None else {**wanted, "tracking_id": tracking_id})
