"""Adopting a snapshot that another program wrote: the records after which our journal shows the same.

Their messages are compared with the ones the journal shows, oldest first: our messages that theirs begin with stay,
earlier ones of ours are hidden, and the rest of theirs is added. If theirs begin with none of ours, all of ours are
hidden and all of theirs added. Nothing is removed from the history.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, cast

from msgspec import Struct

from repertory.core.journal.codec import decode, dump
from repertory.core.journal.records import Branched, MessageAdded, Record, Redacted, StateChanged, View, ViewChanged
from repertory.core.journal.view import SUMMARY_SEQ
from repertory.core.json_bytes import decoded, encoded
from repertory.core.message_tree.documents import OURS, FoundMessage
from repertory.core.message_tree.opening import adopt, adopt_questions
from repertory.core.messages import INTERRUPTED_TEXT, Message, error_result, repair_stored_message, tool_uses
from repertory.core.provider_parts import as_ours_if_message, for_others
from repertory.core.snapshots.document import content_digest
from repertory.core.window.decision import WindowPlan, own_state
from repertory.core.window.editing import view_change
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.journal.restore import Appender
    from repertory.core.journal.rows import Row
    from repertory.core.messages import ContentBlock, Json
    from repertory.core.snapshots.document import SnapshotContent

_REASON = "shown elsewhere"


class Published(Struct, frozen=True, kw_only=True):
    """The messages and state that other programs last saw of the journal: their changes are relative to these."""

    messages: Sequence[bytes]
    """The `identity` of each."""
    state: Mapping[str, Json]

    @classmethod
    def of(cls, content: SnapshotContent) -> Published:
        return cls(messages=[identity(message) for message in content.messages], state=dict(content.state))


class _Meeting(NamedTuple):
    """The overlap of two lists of messages."""

    hidden: int
    """Leading messages of ours to hide."""
    common: int
    """Leading messages of theirs that are ours already."""


def identity(message: Message) -> bytes:
    """Equal for messages with the same role and content, whatever their metadata."""
    return sha256(dump({"role": message["role"], "content": message["content"]})).digest()[:16]


def taken_in(appender: Appender, found: SnapshotContent, at: float, published: Published | None = None) -> list[Row]:
    """The rows after which the journal shows what was found, in order; none when it does already.

    `published`: what the other program saw when it wrote, if known. If it only added messages, they are added after all
    of ours.
    """
    fold = appender.fold
    visible = list(fold.shown)
    summary, messages = _split_summary(found, fold.shown.view.summary)
    has_summary = bool(visible) and visible[0][0] == SUMMARY_SEQ
    ours = [identity(message) for _, message in visible[has_summary:]]
    theirs = [identity(message) for message in messages]
    meeting = _met(ours, theirs)
    if meeting.hidden == len(ours) and published is not None:
        meeting = _added_since(published, theirs) or meeting
    keeps_summary = has_summary and summary == fold.shown.view.summary
    rows: list[Row] = []
    if meeting.hidden or summary != fold.shown.view.summary:
        if meeting.hidden == len(ours):
            rows += _closed(appender, at)
        plan = WindowPlan(
            drop=has_summary + meeting.hidden + (len(list(fold.shown)) - len(visible)),
            pinned=(0,) if keeps_summary else (),
            summary=None if keeps_summary else summary,
            reason=_REASON,
        )
        rows.append(appender.append(_hiding(appender, plan, found, at)))
    added = enumerate(messages[meeting.common :])
    rows += adopt(appender, [(number, FoundMessage(message=message)) for number, message in added], at).rows
    state = dict(found.state)
    unchanged = published is not None and state == dict(published.state)
    if state != dict(fold.state) and not unchanged:
        rows.append(appender.append(StateChanged(at=at, full=state)))
    return rows + adopt_questions(appender, found.interrupt_state, at)


def _met(ours: Sequence[bytes], theirs: Sequence[bytes]) -> _Meeting:
    """The longest end of ours that theirs begin with."""
    for hidden in range(len(ours) + 1):
        common = len(ours) - hidden
        if common <= len(theirs) and ours[hidden:] == theirs[:common]:
            return _Meeting(hidden, common)
    raise AssertionError("nothing of ours is the beginning of anything")


def _added_since(published: Published, theirs: Sequence[bytes]) -> _Meeting | None:
    """The overlap when they only added to what was published; else None."""
    meeting = _met(published.messages, theirs)
    return _Meeting(0, meeting.common) if meeting.common else None


def _split_summary(found: SnapshotContent, ours: Message | None) -> tuple[Message | None, Sequence[Message]]:
    if not found.messages:
        return None, ()
    first = identity(found.messages[0])
    try:
        named = repair_stored_message(found.manager.get("summary_message"))
    except Invalid:
        named = None
    for summary in (ours, named):
        if summary is not None and identity(summary) == first:
            return summary, found.messages[1:]
    return None, found.messages


def _closed(appender: Appender, at: float) -> list[Row]:
    """Error results for the last message's tool uses, which will get no others."""
    last = appender.fold.last_message
    uses = list(tool_uses(last)) if last is not None else []
    if not uses:
        return []
    content: list[ContentBlock] = [{"toolResult": error_result(use["toolUseId"], INTERRUPTED_TEXT)} for use in uses]
    record = MessageAdded(
        at=at,
        message={"role": "user", "content": content},
        turn=max(1, appender.fold.turns),
        index=appender.fold.message_count,
        repaired="the conversation was gone on with elsewhere",
    )
    return [appender.append(record)]


def _hiding(appender: Appender, plan: WindowPlan, found: SnapshotContent, at: float) -> ViewChanged:
    fold = appender.fold
    view, manager = fold.shown.view, found.manager
    removed, calls = manager.get("removed_message_count"), manager.get("model_call_count")
    name = manager.get("__name__")
    return view_change(
        fold.shown,
        fold.last_seq,
        plan,
        manager=name if isinstance(name, str) else view.manager,
        manager_state={
            **own_state(manager),
            "removed_message_count": removed if isinstance(removed, int) else 0,
            "model_call_count": calls if isinstance(calls, int) else 0,
        },
        at=at,
    )


# Removing erased messages, states and summaries from snapshots, of our own and of other programs.


class Replacements(Struct, frozen=True):
    """The erased messages and states to remove from snapshots."""

    messages: Mapping[bytes, Message]
    """`identity` of each erased message, shortened copy or summary to its replacement."""
    state: frozenset[tuple[str, bytes]]
    """Keys and values of agent states that are erased. There is no replacement for an earlier state."""

    def __bool__(self) -> bool:
        return bool(self.messages or self.state)


def replacements(erased: Sequence[Row], added: Sequence[Row]) -> Replacements:
    """The messages and states that the erasure of these rows removes from snapshots.

    `erased`: the rows to erase, still with contents; `added`: those committed with the erasure, redactions among them.
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


def redact_snapshot(document: Mapping[str, object], instead: Replacements) -> dict[str, object] | None:
    """The snapshot's document after the replacements; None when it contains nothing to replace."""
    data = document.get("data")
    if not isinstance(data, Mapping):
        return None
    fields = cast("Mapping[str, object]", data)
    changed = dict(fields)
    messages, state = fields.get("messages"), fields.get("state")
    if isinstance(messages, list):
        changed["messages"] = [_replaced(message, instead.messages) for message in cast("list[object]", messages)]
    if isinstance(state, dict):
        changed["state"] = _without(cast("Mapping[str, object]", state), instead.state)
    if changed == fields:
        return None
    whole = {**document, "data": changed}
    if OURS in document:
        whole["sha256"] = content_digest({"data": changed, "app_data": whole.get("app_data")})
    return whole


def _without(state: Mapping[str, object], gone: Collection[tuple[str, bytes]]) -> dict[str, object]:
    try:
        spelled = {key: dump(value) for key, value in decoded(state).items()}
    except ValueError:  # Such a state was never in a journal.
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
    """An erased summary and what is shown in its place now, if anything."""
    if view.summary is None:
        return {}
    views = [record.view for record in records if isinstance(record, ViewChanged | Branched)]
    redacted = views[-1].summary if views else None
    if redacted == view.summary:
        return {}
    return {identity(view.summary): redacted or {**view.summary, "content": [{"text": "[redacted]"}]}}


def _copies(view: View) -> dict[int, Message]:
    return {**view.pinned, **view.replaced}


def _replaced(message: object, instead: Mapping[bytes, Message]) -> object:
    fields = cast("dict[str, object]", message) if isinstance(message, dict) else {}
    try:
        found = repair_stored_message(as_ours_if_message(decoded(fields)))
        wanted = instead.get(identity(found))
    except ValueError:
        return cast("object", message)
    if wanted is None:
        return fields
    tracking_id = found.get("tracking_id")
    return encoded(for_others(wanted if tracking_id is None else {**wanted, "tracking_id": tracking_id}))
