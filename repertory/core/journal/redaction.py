"""Erasing what a message said, in every row that repeats it.

Copies stand in views and branches that pinned or replaced the message, in earlier redactions of it, and in what was
recorded while its tools ran. All of these rows are erased with it, and what later rows need of them is stated anew. A
summary that was made from the message is not found: nobody can tell what a summary repeats. State a new one when that
matters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repertory.core.journal.records import (
    Branched,
    Interrupted,
    MessageAdded,
    Record,
    Redacted,
    Resumed,
    ToolFinished,
    View,
    ViewChanged,
)
from repertory.core.journal.restore import messages_of, records_of
from repertory.core.messages import Message, tool_results, tool_uses
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


def redact(appender: Appender, rows: Sequence[Row], target: int, message: Message, at: float) -> Redaction:
    """Replace the message at `target`, for good. `rows` is the appender's whole journal.

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
    erase = tuple(seq for seq, record in _copies(records, target) if record is not None)
    redacted = Redacted(
        at=at,
        target=target,
        message=message,
        turn=said.turn,
        index=said.index,
        idempotency_token=said.idempotency_token,
        view=said.view,
    )
    branch_erased = any(isinstance(record, Branched) and seq in erase for seq, record in records)
    appended = [appender.append(redacted)]
    if branch_erased:
        history = {**messages_of(records), target: message}
        appended.append(appender.rewind(_as_branch(appender, at), history))
    else:
        appended.append(appender.append(ViewChanged(at=at, view=appender.fold.shown.view, reason="redaction")))
    return Redaction(rows=tuple(appended), erase=erase)


def _as_branch(appender: Appender, at: float) -> Branched:
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
            case Interrupted() | Resumed():
                copied = asks and target < seq < after
            case _:
                copied = False
        if copied:
            yield seq, record


def _holds(view: View, target: int) -> bool:
    return target in view.pinned or target in view.replaced
