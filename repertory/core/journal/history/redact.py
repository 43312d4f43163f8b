"""What is said instead of a message that must not be kept, and erasing the original in every row that repeats it.

Copies stand in views and branches that pinned or replaced the message, in earlier redactions of it, and in what was
recorded while its tools ran; word for word also in states, summaries and results that are no longer in force. All of
these rows are erased with it, and what later rows need of them is stated anew. What is in force and says the same (the
state, the summary, another message) is named and stays. A summary in other words is not found: nobody can tell what it
repeats.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from repertory.core.journal.codec import at_of
from repertory.core.journal.pending_tools import standing_records
from repertory.core.journal.plain_json import dump
from repertory.core.journal.records import (
    Branched,
    Interrupted,
    MessageAdded,
    NodeChanged,
    Record,
    Redacted,
    Resumed,
    StateChanged,
    ToolFinished,
    View,
    ViewChanged,
)
from repertory.core.journal.restore import messages_of, records_of
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.messages import ContentBlock, Json, Message, tool_results, tool_uses
from repertory.errors import Invalid, NotFound

if TYPE_CHECKING:
    from repertory.core.journal.appender import Appender
    from repertory.core.journal.fold import Fold


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """Rows to append and rows to erase, in one commit."""

    rows: tuple[Row, ...]
    erase: tuple[int, ...]
    """Sequence numbers, in order."""
    left: tuple[Copy, ...] = ()
    """What says the same and stays, since it is in force or another message says it."""


def without_text(message: Message, text: str) -> Message:
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


# Where else a journal says what a message said. A text is found where it stands word for word, in whole: a summary in
# other words, or a message that repeats a part, is not. Texts of a few characters stand everywhere by chance and are
# not looked for.

CHARACTERS_MIN = 8
"""The shortest text that is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A place that still says it."""

    agent_id: str
    seq: int
    """Of the row; 0 for what is in force, whatever row it came from."""
    what: str
    """The kind of the row; or `summary`, or `state` and the key."""


def only_in(original: Message, instead: Message) -> tuple[str, ...]:
    """The texts that the one has and the other has not: what should be gone."""
    stays = "\n".join(texts_of(instead))
    long = (text for text in texts_of(original) if len(text) >= CHARACTERS_MIN)
    return tuple(dict.fromkeys(text for text in long if text not in stays))


class Texts:
    """Texts to look for in what is stored."""

    def __init__(self, texts: Sequence[str]) -> None:
        # As they are or, beside a lone surrogate, in ASCII: bodies are written in both ways.
        spellings = {spelled for text in texts for spelled in (_as_it_is(text), json.dumps(text)[1:-1].encode())}
        self._spellings = tuple(spellings)

    def in_row(self, row: Row) -> bool:
        """Whether the row says one of them."""
        return not row.erased and any(spelled in row.body for spelled in self._spellings)

    def in_value(self, value: object) -> bool:
        """Whether any text in the value does."""
        leaves = [_as_it_is(leaf) for leaf in leaves_of(value)]
        return any(spelled in leaf for leaf in leaves for spelled in self._spellings)

    def in_state(self, state: Mapping[str, Json]) -> list[str]:
        """The keys that do, or whose values do."""
        return [key for key, value in state.items() if self.in_value([key, value])]


def copies_in(rows: Sequence[Row], texts: Texts) -> Iterator[Copy]:
    """The rows that say one of the texts."""
    for row in rows:
        if texts.in_row(row):
            yield Copy(agent_id=row.agent_id, seq=row.seq, what=kind_name(row.kind))


def copies_in_force(agent_id: str, fold: Fold, texts: Texts) -> Iterator[Copy]:
    """Where state and summary say one of the texts now."""
    for key in texts.in_state(fold.state):
        yield Copy(agent_id=agent_id, seq=0, what=f"state {key}")
    if texts.in_value(fold.shown.view.summary):
        yield Copy(agent_id=agent_id, seq=0, what="summary")


def settled_copies(
    rows: Sequence[Row], records: Sequence[tuple[int, Record | None]], texts: Texts, fold: Fold
) -> set[int]:
    """The rows that say one of the texts, and that nothing depends on once state and view are stated anew.

    Not those of a state or a summary that says it still: the new statement would say it again.
    """
    in_state, in_summary = bool(texts.in_state(fold.state)), texts.in_value(fold.shown.view.summary)
    found: set[int] = set()
    for row, (seq, record) in zip(rows, records, strict=True):
        if not texts.in_row(row):
            continue
        match record:
            case StateChanged():
                settled = not in_state
            case ViewChanged():
                settled = not in_summary
            case Branched():
                settled = not (in_state or in_summary)
            case ToolFinished() | Interrupted() | Resumed():
                settled = seq < fold.last_message_seq
            case NodeChanged():
                settled = record.run < fold.run
            case _:
                settled = False
        if settled:
            found.add(seq)
    return found


def kind_name(kind: int) -> str:
    """The name of a kind of record."""
    return RecordKind(kind).name.lower() if kind in set(RecordKind) else f"kind {kind}"


def _as_it_is(text: str) -> bytes:
    return dump(text)[1:-1]


def leaves_of(value: object) -> Iterator[str]:
    """Strings as they are, numbers as text; keys, constants and bytes are left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in cast("dict[object, object]", value).values():
            yield from leaves_of(item)
    elif isinstance(value, list | tuple):
        for item in cast("list[object]", value):
            yield from leaves_of(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def texts_of(message: Message) -> Iterator[str]:
    """Everything in a message that reads as text: what was said, what tools were asked and what they answered."""
    for block in message["content"]:
        if "toolUse" in block:
            yield block["toolUse"]["name"]
            yield from leaves_of(block["toolUse"]["input"])
        elif "toolResult" in block:
            yield from leaves_of(block["toolResult"]["content"])
        else:
            yield from leaves_of(block)
