"""What is said instead of a message that must not be kept, and erasing the original in every row that repeats it.

Copies stand in views and branches that pinned or replaced the message, in earlier redactions of it, and in what was
recorded while its tools ran; word for word also in states, summaries and results that are no longer in force. All of
these rows are erased with it, and what later rows need of them is stated anew. What is in force and says the same (the
state, the summary, another message) is named and stays. A summary in other words is not found: nobody can tell what it
repeats.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repertory.core.journal.codec import at_of
from repertory.core.journal.copies import Copy, Texts, copies_in, copies_in_force, only_in, settled_copies
from repertory.core.journal.records import (
    Branched,
    Interrupted,
    MessageAdded,
    Record,
    Redacted,
    Resumed,
    StateChanged,
    ToolFinished,
    View,
    ViewChanged,
)
from repertory.core.journal.restore import messages_of, records_of
from repertory.core.journal.standing import standing_records
from repertory.core.messages import ContentBlock, Message, tool_results, tool_uses
from repertory.errors import Invalid, NotFound

if TYPE_CHECKING:
    from repertory.core.journal.appender import Appender
    from repertory.core.journal.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """Rows to append and rows to erase, in one commit."""

    rows: tuple[Row, ...]
    erase: tuple[int, ...]
    """Sequence numbers, in order."""
    left: tuple[Copy, ...] = ()
    """What says the same and stays, since it is in force or another message says it."""


def redacted(message: Message, text: str) -> Message:
    """The message with `text` in the place of whatever was said in it.

    Tool uses and tool results stay, by their ids, so that they pair up as before: a use without its input, a result
    with `text` as its content. Everything else together is one block of text. Metadata and the tracking id stay.
    """
    tools: list[ContentBlock] = []
    for block in message["content"]:
        if "toolUse" in block:
            use = block["toolUse"]
            tools.append({"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"], "input": {}}})
        elif "toolResult" in block:
            result = block["toolResult"]
            tools.append({"toolResult": {**result, "content": [{"text": text}]}})
    words: list[ContentBlock] = [{"text": text}] if len(tools) < len(message["content"]) or not tools else []
    # Text stands in front of tool uses and behind tool results, as models have it and want it.
    return {**message, "content": [*words, *tools] if message["role"] == "assistant" else [*tools, *words]}


def redact(appender: Appender, rows: Sequence[Row], target: int, message: Message, at: float) -> Redaction:
    """Replace the message at `target`, for good. `rows` is the appender's whole journal; for a message that was said
    since the last answer, the rows from the last one's `low` on will do.

    Errors, with nothing changed: `NotFound` when no message stands there; `Invalid` when its tools are still to run,
    and `UnpairedTools` when the new message does not keep the tool uses and results of the original, with other
    contents.
    """
    records = records_of(rows)
    said = dict(records).get(target)
    if not isinstance(said, MessageAdded):
        raise NotFound("no message stands there", seq=target)
    if target == appender.fold.last_message_seq and any(tool_uses(said.message)):
        raise Invalid("this message waits for its tools; redact it after they ended", seq=target)
    texts = Texts(only_in(said.message, message))
    erase = {seq for seq, record in _copies(records, target) if record is not None}
    erase |= settled_copies(rows, records, texts, appender.fold)
    redacted = Redacted(
        at=at,
        target=target,
        message=message,
        turn=said.turn,
        index=said.index,
        idempotency_token=said.idempotency_token,
        view=said.view,
    )
    erased = [record for seq, record in records if seq in erase]
    appended = [appender.append(redacted)]
    if any(isinstance(record, Branched) for record in erased):
        history = {**messages_of(records), target: message}
        standing = list(standing_records(appender.fold, at))
        appended.append(appender.rewind(as_branch(appender, at), history))
        appended += appender.append_all(standing)
    else:
        if any(isinstance(record, ViewChanged) for record in erased):
            appended.append(appender.append(ViewChanged(at=at, view=appender.fold.shown.view, reason="redaction")))
        if any(isinstance(record, StateChanged) for record in erased):
            appended.append(appender.append(StateChanged(at=at, full=dict(appender.fold.state))))
    left = (*copies_in_force(appender.agent_id, appender.fold, texts), *copies_in(_without(rows, erase), texts))
    return Redaction(rows=tuple(appended), erase=tuple(sorted(erase)), left=left)


def repairs(appender: Appender, rows: Sequence[Row], mended: Mapping[int, Message]) -> Iterator[Redaction]:
    """The records that put what is shown in the place of messages whose rows say what may not be said, so that every
    reader and every other program finds what can be sent. What waits for its tools is left for the next time.

    To be stored one after the other. `rows`: those that the appender was restored from.
    """
    known = list(rows)
    at = next((at for row in reversed(rows) if not row.erased and (at := at_of(row.body)) is not None), 0.0)
    for target, message in mended.items():
        if target == appender.fold.last_message_seq and any(tool_uses(message)):
            continue
        redaction = redact(appender, known, target, message, at)
        known += redaction.rows
        yield redaction


def _without(rows: Sequence[Row], erase: Collection[int]) -> list[Row]:
    return [row for row in rows if row.seq not in erase]


def as_branch(appender: Appender, at: float) -> Branched:
    """Everything that stands, stated anew, since an earlier branch that later rows build on is being erased."""
    fold = appender.fold
    return Branched(
        at=at,
        position=fold.last_seq,
        last=fold.last_message_seq,
        message_count=fold.message_count,
        turns=fold.turns,
        run=fold.run,
        view=fold.shown.view,
        state=dict(fold.state),
    )


def _copies(records: Sequence[tuple[int, Record | None]], target: int) -> Iterator[tuple[int, Record | None]]:
    """The rows that hold the content, or what was recorded of its tools between it and the messages beside it."""
    said = [seq for seq, record in records if isinstance(record, MessageAdded)]
    position = said.index(target)
    before = said[position - 1] if position else 0
    after = said[position + 1] if position + 1 < len(said) else target
    message = messages_of(records)[target]
    answers, asks = any(tool_results(message)), any(tool_uses(message))
    for seq, record in records:
        match record:
            case MessageAdded():
                copied = seq == target
            case ViewChanged() | Branched():
                copied = _holds(record.view, target)
            case Redacted():
                copied = record.target == target
            case ToolFinished():
                copied = (answers and before < seq < target) or (asks and target < seq < after)
            case Interrupted():
                copied = asks and target < seq < after
            case Resumed():  # Whoever answers may have said what the tool's result is.
                copied = (answers and before < seq < target) or (asks and target < seq < after)
            case _:
                copied = False
        if copied:
            yield seq, record


def _holds(view: View, target: int) -> bool:
    return target in view.pinned or target in view.replaced
