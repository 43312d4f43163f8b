"""Redact a message: what stands in its place, and which rows repeat it and are erased with it.

Copies are in views and branches that pinned or replaced the message, in earlier redactions of it, and in the records of
its tools; word for word also in states, summaries and results no longer in force. All these rows are erased, and what
later rows need of them is stated anew. What is in force and holds the same text (the state, the summary, another
message) is reported and stays. A summary in other words is not found.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from msgspec import Struct
from msgspec.structs import asdict

from repertory.core.deferral import is_deferred_id
from repertory.core.journal.codec import at_of, bytes_held, dump
from repertory.core.journal.deferrals import stated_again, waiting_records
from repertory.core.journal.pending_tools import standing_records
from repertory.core.journal.records import (
    Branched,
    DeferralsChanged,
    DeferredResult,
    Interrupted,
    MessageAdded,
    NodeChanged,
    Record,
    Redacted,
    Resumed,
    StateChanged,
    StepFinished,
    StepStarted,
    TimersChanged,
    ToolFinished,
    View,
    ViewChanged,
)
from repertory.core.journal.restore import messages_of, records_of
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.journal.sealing import plain_of
from repertory.core.journal.steps import step_records
from repertory.core.messages import ContentBlock, Json, Message, tool_results, tool_uses
from repertory.core.provider_content import text_for_others
from repertory.errors import Invalid, NotFound

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.restore import Appender


class Redaction(Struct, frozen=True, kw_only=True):
    """Rows to append and rows to erase, in one commit."""

    rows: tuple[Row, ...]
    erase: tuple[int, ...]
    """Sequence numbers, in order."""
    left: tuple[Copy, ...] = ()
    """The places that hold the same text and stay: in force, or in another message."""


def without_text(message: Message, text: str) -> Message:
    """The message with `text` in the place of its contents.

    Tool uses and results keep their ids, so that they still pair up: a use loses its input, a result has `text` as
    content. All other blocks become one block of text. Metadata and tracking id stay.
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
    # Text goes before tool uses and after tool results, as the providers' APIs have it.
    return {**message, "content": [*words, *tools] if message["role"] == "assistant" else [*tools, *words]}


def _cut_off_as(original: Message, message: Message) -> Message:
    """The replacement, marked as cut off if the original was: else the turn of its token would count as answered."""
    reason = original.get("metadata", {}).get("custom", {}).get("stop_reason")
    if reason is None or message["role"] != "assistant":
        return message
    metadata = message.get("metadata", {})
    return {**message, "metadata": {**metadata, "custom": {**metadata.get("custom", {}), "stop_reason": reason}}}


def redact(appender: Appender, rows: Sequence[Row], target: int, message: Message, at: float) -> Redaction:
    """Replace the message at `target` for good. `rows`: the whole journal; for a message added since the last answer,
    the rows from the last row's `low` on suffice.

    Errors, with nothing changed: `NotFound` when no message has this number; `Invalid` when its tools are still to run;
    `UnpairedTools` when the replacement has other tool uses or results than the original.
    """
    records = records_of(rows)
    original = dict(records).get(target)
    if not isinstance(original, MessageAdded):
        raise NotFound("no message stands there", seq=target)
    if target == appender.fold.last_message_seq and any(tool_uses(original.message)):
        raise Invalid("this message waits for its tools; redact it after they ended", seq=target)
    message = _cut_off_as(original.message, message)
    texts = Texts(only_in(original.message, message))
    erase = {seq for seq, record in _copies(records, target) if record is not None}
    erase |= settled_copies(rows, records, texts, appender.fold)
    redacted = Redacted(
        at=at,
        target=target,
        message=message,
        turn=original.turn,
        index=original.index,
        idempotency_token=original.idempotency_token,
        joined=original.joined,
        view=original.view,
        resumed=tuple(
            (seq, each.joined) for seq, each in records if seq in erase and isinstance(each, Resumed) and each.joined
        ),
    )
    erased = [record for seq, record in records if seq in erase]
    appended = [appender.append(redacted)]
    if any(isinstance(record, Branched) for record in erased):
        history = {**messages_of(records), target: message}
        # Read before the branch, which drops them from the fold.
        standing = [*standing_records(appender.fold, at), *waiting_records(appender.fold, at)]
        appended.append(appender.rewind(as_branch(appender, at), history))
        appended += appender.append_all(standing)
    else:
        if any(isinstance(record, ViewChanged) for record in erased):
            appended.append(appender.append(ViewChanged(at=at, view=appender.fold.shown.view, reason="redaction")))
        if any(isinstance(record, StateChanged) for record in erased):
            appended.append(appender.append(StateChanged(at=at, full=dict(appender.fold.state))))
    if any(isinstance(record, TimersChanged) for record in erased):
        appended.append(appender.append(TimersChanged(at=at, timers=tuple(appender.fold.timers.values()))))
    appended += appender.append_all(stated_again(appender.fold, erased, at))
    # Looked for in what remains, after everything was stated anew.
    copies = (*copies_in_force(appender.agent_id, appender.fold, texts), *copies_in(_without(rows, erase), texts))
    return Redaction(rows=tuple(appended), erase=tuple(sorted(erase)), left=copies)


def repairs(appender: Appender, rows: Sequence[Row], repaired: Mapping[int, Message]) -> Iterator[Redaction]:
    """Redactions that replace messages which providers would refuse by their repaired versions, so that every reader
    finds a message that can be sent. A last message that waits for its tools is left for the next opening.

    Store them one after the other. `rows`: the rows that `appender` was restored from.
    """
    known = list(rows)
    at = next((at for row in reversed(rows) if not row.erased and (at := at_of(row.body)) is not None), 0.0)
    for target, message in repaired.items():
        if target == appender.fold.last_message_seq and any(tool_uses(message)):
            continue
        redaction = redact(appender, known, target, message, at)
        # The next repair must see the rows of this one: it may have to erase some of them.
        known += redaction.rows
        yield redaction


def _without(rows: Sequence[Row], erase: Collection[int]) -> list[Row]:
    return [row for row in rows if row.seq not in erase]


def as_branch(appender: Appender, at: float) -> Branched:
    """The whole state as a `Branched`, for when an earlier branch that later rows build on is erased."""
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
    """The rows that hold the message, and the records of its tools between it and its neighbours."""
    seqs = [seq for seq, record in records if isinstance(record, MessageAdded)]
    position = seqs.index(target)
    before = seqs[position - 1] if position else 0
    after = seqs[position + 1] if position + 1 < len(seqs) else target
    message = messages_of(records)[target]
    answers, asks = any(tool_results(message)), any(tool_uses(message))
    reported = _reported_by(records, target)
    for seq, record in records:
        match record:
            case DeferredResult():
                copied = seq < target and record.id in reported
            case MessageAdded():
                copied = seq == target
            case ViewChanged() | Branched():
                copied = _holds(record.view, target)
            case Redacted():
                copied = record.target == target
            case StepStarted() | StepFinished() if is_deferred_id(record.tool_use_id):
                copied = False  # Of a background run, which no message settles.
            case ToolFinished() | StepStarted() | StepFinished():
                copied = (answers and before < seq < target) or (asks and target < seq < after)
            case Interrupted():
                copied = asks and target < seq < after
            case Resumed():  # The answer may hold the tool's result.
                copied = (answers and before < seq < target) or (asks and target < seq < after)
            case _:
                copied = False
        if copied:
            yield seq, record


def _reported_by(records: Sequence[tuple[int, Record | None]], target: int) -> Collection[str]:
    """The ids of the late results that a message tells."""
    for seq, record in records:
        if seq > target and isinstance(record, DeferralsChanged) and record.told:
            return record.told
        if seq > target and isinstance(record, MessageAdded):
            break
    return ()


def _holds(view: View, target: int) -> bool:
    return target in view.pinned or target in view.replaced


# Other places that hold a message's text. Only the whole text, word for word, is found, not a summary in other words or
# a message that repeats a part. Short texts occur everywhere by chance and are not looked for.

CHARACTERS_MIN = 8
"""The shortest text to look for, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A place that still holds the text."""

    agent_id: str
    seq: int
    """The row's number; 0 for the state, the summary, the timers or the late results in force."""
    what: str
    """The kind of the row, `summary`, `state` and the key, or `timer` or `late result` and its id."""


def only_in(original: Message, instead: Message) -> tuple[str, ...]:
    """The texts of the original that the replacement does not contain."""
    stays = "\n".join(_all_texts(instead))
    long = (text for text in _all_texts(original) if len(text) >= CHARACTERS_MIN)
    return tuple(dict.fromkeys(text for text in long if text not in stays))


ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be")
"""The encodings in which bytes, such as those of documents, are searched."""


class Texts:
    """Texts to look for in rows and values."""

    def __init__(self, texts: Sequence[str]) -> None:
        # Bodies are written as UTF-8 or, when they hold a lone surrogate, as ASCII.
        spellings = {spelled for text in texts for spelled in (_as_it_is(text), json.dumps(text)[1:-1].encode())}
        # Bytes are searched and no records decoded: a journal of ten thousand rows is read in one go.
        self._spellings = tuple(spellings)
        self._in_files = tuple({text.encode(name, "surrogatepass") for text in texts for name in ENCODINGS})

    def in_row(self, row: Row) -> bool:
        """True if the row holds one of the texts."""
        if row.erased:
            return False
        _, body = plain_of(row.version, row.body)
        return any(spelled in body for spelled in self._spellings) or any(map(self.in_bytes, bytes_held(body)))

    def in_value(self, value: object) -> bool:
        """True if a text in the value does, or bytes do."""
        leaves = [_as_it_is(leaf) for leaf in leaves_of(value)]
        found = any(spelled in leaf for leaf in leaves for spelled in self._spellings)
        return found or any(map(self.in_bytes, bytes_held(dump(value))))

    def in_bytes(self, data: bytes) -> bool:
        """True if the bytes hold one of the texts, in UTF-8 or UTF-16."""
        return any(spelled in data for spelled in self._in_files)

    def in_state(self, state: Mapping[str, Json]) -> list[str]:
        """The keys that do, or whose values do."""
        return [key for key, value in state.items() if self.in_value([key, value])]


def copies_in(rows: Sequence[Row], texts: Texts) -> Iterator[Copy]:
    """The rows that hold one of the texts."""
    for row in rows:
        if texts.in_row(row):
            yield Copy(agent_id=row.agent_id, seq=row.seq, what=kind_name(row.kind))


def copies_in_force(agent_id: str, fold: Fold, texts: Texts) -> Iterator[Copy]:
    """The keys of the state, the summary, the timers and the late results that hold one of the texts now."""
    for key in texts.in_state(fold.state):
        yield Copy(agent_id=agent_id, seq=0, what=f"state {key}")
    if texts.in_value(fold.shown.view.summary):
        yield Copy(agent_id=agent_id, seq=0, what="summary")
    for timer in fold.timers.values():
        if texts.in_value(timer.prompt):
            yield Copy(agent_id=agent_id, seq=0, what=f"timer {timer.id}")
    for came in fold.came.values():
        if texts.in_value(came.result["content"]):
            yield Copy(agent_id=agent_id, seq=0, what=f"late result {came.id}")
    for run_id, tool in fold.deferred.items():
        if texts.in_value(None if tool.run is None else tool.run.input):
            yield Copy(agent_id=agent_id, seq=0, what=f"background run {run_id}")


def settled_copies(
    rows: Sequence[Row], records: Sequence[tuple[int, Record | None]], texts: Texts, fold: Fold
) -> set[int]:
    """The rows that hold one of the texts and that nothing needs once state, view and timers are stated anew.

    Rows of a state, summary or timer that still holds the text are left out: the new statement would repeat it.
    """
    in_state, in_summary = bool(texts.in_state(fold.state)), texts.in_value(fold.shown.view.summary)
    in_timers = any(texts.in_value(timer.prompt) for timer in fold.timers.values())
    inputs = [tool.run.input for tool in fold.deferred.values() if tool.run is not None]
    steps = [asdict(each) for one in fold.run_steps.values() for each in step_records(one)]
    in_runs = texts.in_value([*inputs, *steps])
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
            case TimersChanged():
                settled = not in_timers
            case StepStarted() | StepFinished() if is_deferred_id(record.tool_use_id):
                settled = record.tool_use_id not in fold.run_steps
            case ToolFinished() | StepStarted() | StepFinished() | Interrupted() | Resumed():
                settled = seq < fold.last_message_seq
            case DeferralsChanged():
                settled = not in_runs
            case DeferredResult():
                settled = record.id not in fold.came
            case NodeChanged():
                settled = record.run < fold.run
            case _:
                settled = False
        if settled:
            found.add(seq)
    return found


_NAMES = frozenset(("type", "status", "toolType", "phase"))
"""Keys of a provider's own JSON whose values are names: many messages have the same."""


def _all_texts(message: Message) -> Iterator[str]:
    """All text of a message, with what only its provider reads, and without names of a provider's forms."""
    yield from texts_of(message)
    for block in message["content"]:
        if "providerContent" in block:
            part = block["providerContent"]["content"]
            yield from leaves_of(_without_names({key: item for key, item in part.items() if key != "name"}))


def _without_names(value: object) -> object:
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return {key: _without_names(item) for key, item in items if key not in _NAMES or not isinstance(item, str)}
    return [_without_names(item) for item in cast("list[object]", value)] if isinstance(value, list) else value


def kind_name(kind: int) -> str:
    """The name of a kind of record, also of an unknown one."""
    return RecordKind(kind).name.lower() if kind in set(RecordKind) else f"kind {kind}"


def _as_it_is(text: str) -> bytes:
    return dump(text)[1:-1]


def leaves_of(value: object) -> Iterator[str]:
    """Strings as they are, numbers as text; without keys, constants and bytes."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in cast("dict[object, object]", value).values():
            yield from leaves_of(item)
    elif isinstance(value, list | tuple):
        for item in cast("list[object]", value):
            yield from leaves_of(item)
    # True is an int.
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def texts_of(message: Message) -> Iterator[str]:
    """All text of a message that somebody can read: text blocks, tool names and inputs, results, and the words for a
    part that only its provider can read.
    """
    for block in message["content"]:
        if "toolUse" in block:
            yield block["toolUse"]["name"]
            yield from leaves_of(block["toolUse"]["input"])
        elif "toolResult" in block:
            yield from leaves_of(block["toolResult"]["content"])
        elif "reasoningContent" in block:
            yield from leaves_of({**block["reasoningContent"], "provider": None})
        elif "providerContent" in block:
            yield from leaves_of(text_for_others(block["providerContent"]["content"]))
        else:
            yield from leaves_of(block)
