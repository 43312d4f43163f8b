"""Redact a text: replace it wherever a journal holds it.

`redact.py` replaces one message. This replaces a text, word for word, in messages and their files, agent state,
summaries, tool results, late ones too, inputs of tools in the background, interrupts and responses, runs of
orchestrators, pending memory work, prompts of timers, and metadata of marks.
What is in force is stated anew with the replacement; then every row that holds the text is erased. Names (ids, tokens,
tools, nodes) stay, and are reported in `Redaction.left`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from msgspec.structs import replace

from repertory.core.deliveries import EventDelivery
from repertory.core.interrupts import Interrupt
from repertory.core.journal.deferrals import stated_again, waiting_records
from repertory.core.journal.pending_tools import nodes_stated, standing_records
from repertory.core.journal.records import (
    Branched,
    CursorMoved,
    DeferralsChanged,
    DeferredResult,
    DeliveriesChanged,
    Interrupted,
    MessageAdded,
    NodeChanged,
    Record,
    Redacted,
    Resumed,
    SnapshotTaken,
    StateChanged,
    StepFinished,
    StepStarted,
    TimersChanged,
    ToolFinished,
    View,
    ViewChanged,
)
from repertory.core.journal.redact import ENCODINGS, Redaction, Texts, as_branch, copies_in
from repertory.core.journal.restore import messages_of, records_of
from repertory.core.journal.rows import RecordKind
from repertory.core.journal.steps import step_records
from repertory.core.journal.whole_journal import position_named
from repertory.core.messages import ContentBlock, Json, Message, ToolResult, copy_json, tool_uses
from repertory.core.provider_content import answered_use, use_of
from repertory.core.tokens import TEXT_FORMATS
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.restore import Appender
    from repertory.core.journal.rows import Row

TEXT_CHARACTERS_MIN = 4
"""The shortest text that can be redacted: shorter ones occur everywhere by chance."""

_Numbered: TypeAlias = "tuple[int, Record | None]"
_FILES = ("image", "document", "video", "audio")
_BLOCK_NAMES = frozenset(("format", "type"))
_RESULT_NAMES = frozenset(("type", "status", "stop_reason", "toolUseId", "name", "node_id", "agent_name"))
"""Keys of content blocks, and of node results, whose values are names."""
_NODE_WORDS = ("task", "responses", "context", "reason", "left")
_UNTOUCHABLE = frozenset((RecordKind.TOOL_STARTED, RecordKind.OWNER, RecordKind.ANSWERS))
"""Rows that hold only names. A tool that was started must stay so."""


class Words:
    """A text and its replacement."""

    def __init__(self, text: str, instead: str) -> None:
        """Errors: `Invalid` for a text that is too short, or a replacement that is empty or contains the text."""
        if len(text) < TEXT_CHARACTERS_MIN:
            raise Invalid("the text is too short to be looked for", got=text, characters_min=TEXT_CHARACTERS_MIN)
        if not instead.strip():
            raise Invalid("say what stands there instead: models take no empty text", got=instead)
        # The search that proves the erasure would find it again.
        if text in instead:
            raise Invalid("the replacement says the text again", got=instead)
        self.texts = Texts([text])
        self._text = text
        self._instead = instead

    def value(self, value: Json, names: Collection[str] = ()) -> Json:
        """The value with the text replaced in every string, key, number and file. Strings under the keys `names` stay.
        A block with a file that is no text gives way as a whole: with other bytes within it could not be read.
        """
        if isinstance(value, str):
            return value.replace(self._text, self._instead)
        if isinstance(value, dict):
            # A picture or an archive with other bytes in its middle cannot be read any more.
            if self._in_binary_file(cast("dict[str, object]", value)):
                return {"text": self._instead}
            redacted: dict[str, Json] = {}
            for key, item in cast("dict[str, Json]", value).items():
                # Two keys may become one by the replacement; neither value may be lost.
                name = _unused(key.replace(self._text, self._instead), redacted)
                redacted[name] = item if key in names and isinstance(item, str) else self.value(item, names)
            return redacted
        if isinstance(value, list | tuple):
            return [self.value(item, names) for item in cast("Sequence[Json]", value)]
        # A telephone number may be stored as a number. True is an int.
        if isinstance(value, int | float) and not isinstance(value, bool) and self._text in str(value):
            return str(value).replace(self._text, self._instead)
        data = cast("object", value)
        return cast("Json", self._data(data)) if isinstance(data, bytes) else value

    def _data(self, data: bytes) -> bytes:
        for name in ENCODINGS:
            data = data.replace(self._text.encode(name, "surrogatepass"), self._instead.encode(name, "surrogatepass"))
        return data

    def _in_binary_file(self, block: Mapping[str, object]) -> bool:
        for kind in _FILES:
            match block.get(kind):
                case {"format": str(name), "source": {"bytes": bytes(data)}} if name not in TEXT_FORMATS:
                    return self.texts.in_bytes(data)
                case _:
                    pass
        return False

    def mapping(self, value: Mapping[str, Json]) -> dict[str, Json]:
        return cast("dict[str, Json]", self.value(dict(value)))

    def message(self, message: Message) -> Message:
        """The message with the text replaced. Reasoning and parts of a provider with the text are dropped: signatures
        cover the original. A search or a call of a provider is dropped together with its result.
        """
        gone = self._uses_that_go(message)
        content = [block for each in message["content"] for block in self._block(each, gone)]
        if message["content"] and not content:
            content = [{"text": self._instead}]
        redacted = {**message, "content": content}
        if "metadata" in message:
            redacted["metadata"] = self.value(cast("Json", message["metadata"]))
        return cast("Message", redacted)

    def _uses_that_go(self, message: Message) -> set[str]:
        """The ids of a provider's own tool uses that hold the text, or whose results do."""
        parts = [block["providerContent"]["content"] for block in message["content"] if "providerContent" in block]
        if not parts:
            return set()
        # Providers refuse one half of such a pair.
        ids = (use_of(part) or answered_use(part) for part in parts if self._is_changed(part))
        return {use_id for use_id in ids if use_id is not None}

    def _is_changed(self, part: Mapping[str, object]) -> bool:
        return self.value(cast("Json", part)) != copy_json(cast("Json", part))

    def _stays(self, part: Mapping[str, object], gone: Collection[str]) -> bool:
        return (use_of(part) or answered_use(part)) not in gone and not self._is_changed(part)

    def _block(self, block: ContentBlock, gone: Collection[str]) -> Iterator[ContentBlock]:
        if "toolUse" in block:
            use = block["toolUse"]
            yield cast("ContentBlock", {"toolUse": {**use, "input": self.value(use["input"])}})
        elif "toolResult" in block:
            yield cast("ContentBlock", {"toolResult": self.result(block["toolResult"])})
        elif "providerContent" in block:
            if self._stays(block["providerContent"]["content"], gone):
                yield block
        elif "reasoningContent" not in block:
            yield cast("ContentBlock", self._plain_block(cast("dict[str, Json]", block)))
        elif not self.texts.in_value({**block["reasoningContent"], "provider": None}):
            yield block

    def _plain_block(self, block: dict[str, Json]) -> Json:
        return self.value(block, () if "json" in block else _BLOCK_NAMES)

    def result(self, result: ToolResult) -> ToolResult:
        content = [self._plain_block(cast("dict[str, Json]", block)) for block in result["content"]]
        return cast("ToolResult", {**result, "content": content})

    def view(self, view: View) -> View:
        return replace(
            view,
            pinned={seq: self.message(message) for seq, message in view.pinned.items()},
            replaced={seq: self.message(message) for seq, message in view.replaced.items()},
            summary=None if view.summary is None else self.message(view.summary),
            manager_state=self.mapping(view.manager_state),
        )

    def question(self, asked: Interrupt) -> Interrupt:
        return dataclasses.replace(asked, reason=self.value(asked.reason), input=self.value(asked.input))

    def node(self, record: NodeChanged) -> NodeChanged:
        data = dict(record.data)
        for name in _NODE_WORDS:
            if name in data:
                data[name] = self.value(data[name], _RESULT_NAMES)
        handed = data.get("handed")
        if isinstance(handed, list | tuple) and len(handed) == 2:
            data["handed"] = [handed[0], self.value(handed[1])]
        return replace(record, result=self.value(record.result, _RESULT_NAMES), data=data)


def redact_text(appender: Appender, rows: Sequence[Row], words: Words, at: float) -> tuple[Redaction, tuple[int, ...]]:
    """Replace the text in the appender's whole journal, for good. Second: the sequence numbers of the replaced
    messages. Appends nothing when the journal does not hold the text.

    Errors, with nothing changed: `Invalid` when the last message holds it and waits for its tools.
    """
    records = records_of(rows)
    fold, texts = appender.fold, words.texts
    by_seq = {seq: one for seq, one in records if one is not None}
    instead = {seq: _redacted(seq, one, words, at) for seq, one in by_seq.items() if isinstance(one, MessageAdded)}
    targets = {seq: redacted for seq, redacted in instead.items() if _differs(redacted, by_seq[seq])}
    last = fold.last_message
    if fold.last_message_seq in targets and last is not None and any(tool_uses(last)):
        raise Invalid("the last message contains the text and waits for its tools; redact it after they ended")
    erase = {row.seq for row in rows if _goes(row, by_seq.get(row.seq), targets, texts)}
    kinds = {type(record) for seq, record in records if seq in erase}
    appended = appender.append_all(targets.values())
    if Branched in kinds:
        kinds |= {StateChanged, ViewChanged}
    for stated in _STATED:
        if stated.kinds & kinds:
            appended += appender.append_all(stated.records(fold, words, at))
    erased = [record for seq, record in records if seq in erase]
    appended += appender.append_all([_deferrals(each, words, at) for each in stated_again(fold, erased, at)])
    if NodeChanged in kinds:
        erase |= {
            seq for seq, record in records if isinstance(record, NodeChanged) and record.run == fold.run and fold.nodes
        }
        appended += appender.append_all([words.node(record) for record in nodes_stated(fold, at)])
    appended += appender.append_all(_marks(records, erase, words))
    if Branched in kinds:
        history = messages_of(records) | {seq: redacted.message for seq, redacted in targets.items()}
        standing = [*standing_records(fold, at), *waiting_records(fold, at)]
        appended.append(appender.rewind(as_branch(appender, at), history))
        appended += appender.append_all(standing)
    remaining = copies_in([*(row for row in rows if row.seq not in erase), *appended], texts)
    return Redaction(rows=tuple(appended), erase=tuple(sorted(erase)), left=tuple(remaining)), tuple(targets)


def _differs(redacted: Redacted, record: Record) -> bool:
    return isinstance(record, MessageAdded) and (redacted.message != record.message or redacted.view != record.view)


def _goes(row: Row, record: Record | None, targets: Collection[int], texts: Texts) -> bool:
    """True if the row is erased. A message row is erased only when a redaction replaces it."""
    if row.erased:
        return False
    if isinstance(record, MessageAdded):
        return row.seq in targets
    if isinstance(record, Redacted):
        return record.target in targets
    return row.kind not in _UNTOUCHABLE and texts.in_row(row)


def _redacted(seq: int, record: MessageAdded, words: Words, at: float) -> Redacted:
    return Redacted(
        at=at,
        target=seq,
        message=words.message(record.message),
        turn=record.turn,
        index=record.index,
        idempotency_token=record.idempotency_token,
        joined=record.joined,
        view=None if record.view is None else words.view(record.view),
    )


def _marks(records: Sequence[_Numbered], erase: Collection[int], words: Words) -> Iterator[Record]:
    for seq, record in records:
        if seq in erase and isinstance(record, SnapshotTaken):
            yield replace(record, metadata=words.mapping(record.metadata), position=position_named(seq, record))


class _Stated:
    """A kind of value in force, and the records that state it anew."""

    def __init__(self, kinds: set[type], records: Callable[[Fold, Words, float], Iterator[Record]]) -> None:
        """`kinds`: the record types that set it."""
        self.kinds = kinds
        self.records = records


def _state(fold: Fold, words: Words, at: float) -> Iterator[Record]:
    yield StateChanged(at=at, full=words.mapping(fold.state))


def _view(fold: Fold, words: Words, at: float) -> Iterator[Record]:
    yield ViewChanged(at=at, view=words.view(fold.shown.view), reason="redaction")


def _results(fold: Fold, words: Words, at: float) -> Iterator[Record]:
    for use_id, result in fold.finished_tools.items():
        yield ToolFinished(at=at, tool_use_id=use_id, result=words.result(result))


def _steps(fold: Fold, words: Words, at: float) -> Iterator[Record]:
    """A step begins anew where it is stated again, so its end follows. Keys are names that the program gives."""
    for steps in fold.steps.values():
        yield from (_step(record, words, at) for record in step_records(steps))


def _step(record: StepStarted | StepFinished, words: Words, at: float) -> StepStarted | StepFinished:
    if isinstance(record, StepStarted):
        return replace(record, at=at, failure=str(words.value(record.failure)), input=words.value(record.input))
    error = words.value(record.error)
    return replace(record, at=at, result=words.value(record.result), error=cast("str | None", error))


def _deferrals(stated: DeferralsChanged, words: Words, at: float) -> Record:
    """A tool that waits must stay so. The input and the steps of one that runs in the background are the user's."""
    tools = [
        tool
        if tool.run is None
        else dataclasses.replace(
            tool, run=dataclasses.replace(tool.run, input=words.value(cast("Json", tool.run.input)))
        )
        for tool in stated.deferrals
    ]
    steps = tuple(_step(record, words, at) for record in stated.steps)
    return replace(stated, deferrals=tuple(tools), steps=steps)


def _waiting(fold: Fold, words: Words, at: float) -> Iterator[Record]:
    """Asking again drops the response, so the responses follow."""
    responses = words.mapping(fold.responses)
    if fold.questions:
        asked = tuple(words.question(one) for one in fold.questions)
        yield Interrupted(at=at, interrupts=asked, parked=tuple(fold.parked))
    if responses:
        yield Resumed(at=at, responses=responses, joined=tuple(fold.open_tokens))


def _cursors(fold: Fold, words: Words, at: float) -> Iterator[Record]:
    yield CursorMoved(at=at, positions=dict(fold.cursors), kept=words.mapping(fold.kept))


def _timers(fold: Fold, words: Words, at: float) -> Iterator[Record]:
    timers = [dataclasses.replace(each, prompt=str(words.value(each.prompt))) for each in fold.timers.values()]
    yield TimersChanged(at=at, timers=tuple(timers))


def _late_results(fold: Fold, words: Words, at: float) -> Iterator[Record]:
    for came in fold.came.values():
        yield replace(came, at=at, result=words.result(came.result))


def _deliveries(fold: Fold, words: Words, at: float) -> Iterator[Record]:
    waiting: list[EventDelivery] = []
    for each in fold.outbox.values():
        waiting.append(replace(each, facts=words.mapping(each.facts), error=str(words.value(each.error))))
    yield DeliveriesChanged(at=at, deliveries=tuple(waiting), to=fold.turn_to, turn=fold.to_turn, whole=True)


_STATED = (
    _Stated({StateChanged}, _state),
    _Stated({ViewChanged}, _view),
    _Stated({ToolFinished}, _results),
    _Stated({StepStarted, StepFinished}, _steps),
    _Stated({Interrupted, Resumed}, _waiting),
    _Stated({CursorMoved}, _cursors),
    _Stated({TimersChanged}, _timers),
    _Stated({DeferredResult}, _late_results),
    _Stated({DeliveriesChanged}, _deliveries),
)


def _unused(name: str, taken: Mapping[str, Json]) -> str:
    """The name, numbered when another key became equal to it."""
    number, unused = 2, name
    while unused in taken:
        unused, number = f"{name} ({number})", number + 1
    return unused
