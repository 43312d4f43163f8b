"""Assembling a model's stream of events into one message.

Feed an `Assembler` the events of one answer; `finish` returns the `Answer`. It is strict about types, since a
provider's mistake must not reach the journal, and lenient about framing, since users' own models leave out
`messageStart`, block indexes and block ends. Unknown events are ignored: providers add events.

The size of an answer is bounded while it streams: it counts the bytes that are kept, `VALUE_BYTES` for each value in a
tool's input, and `EVENT_BYTES` for each event of any kind.

Two kinds of broken tool use do not spoil the rest of an answer:

- An input that is not JSON. The tool use stays, with `{}` as its input, and `Answer.invalid_inputs` has the raw text
  under its id. Answer it with an error result, and the model corrects itself.
- An input cut off by a token limit (`LIMITED`). The tool use is dropped and `Answer.truncated` is set, since its full
  input is unknown.

A second tool use with an id that the answer has used already gets a new id, made from the first: results name ids.

Source: Amazon Bedrock API reference, `ConverseStream`; `redactContent` is from the SDK whose users we serve.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol, TypeGuard, cast, get_args

from msgspec import Struct

from repertory.core.json_bytes import refuse_constant
from repertory.core.limits import ANSWER_BYTES, VALUE_BYTES, Scale, is_too_deep, well_formed, well_formed_text
from repertory.core.messages import (
    STOPPED,
    ContentBlock,
    Json,
    Message,
    ToolUse,
    Usage,
    is_plainly_sound,
    message_fault,
    tool_uses,
)
from repertory.errors import ModelFailed, ModelStreamBroken, TooLarge

if TYPE_CHECKING:
    from repertory.core.converse import ContentBlockDelta, ContentBlockStart, StreamEvent

LIMITED = frozenset(("max_tokens", "model_context_window_exceeded"))
"""The stop reasons of an answer that was cut off by the caller's token limit or the model's window."""

EVENT_BYTES = 32
"""The weight of each event, so that a stream of empty events is bounded too."""
TOOL_USES_MAX = 1024
"""The most tool uses of one answer: the records of a step that runs are looked through at each start and end."""

_CountKey = Literal["inputTokens", "outputTokens", "totalTokens", "cacheReadInputTokens", "cacheWriteInputTokens"]
_COUNTS: tuple[_CountKey, ...] = get_args(_CountKey)
_LATENCY_MS_MAX = 1e15
"""A larger or non-numeric latency is ignored: nothing depends on it."""
_NAME_CHARACTERS_MAX = 512
"""A longer name of an answer or a model is ignored: nothing depends on it."""


class Answer(Struct, frozen=True, kw_only=True):
    """One whole answer.

    `message` has at least one block: an empty answer gets one empty text block; next to other blocks, empty text is
    left out. Blocks are in the order in which the model began them.
    """

    message: Message
    stop_reason: str
    """The provider's own word (`end_turn`, `tool_use`, `max_tokens`, ...); unknown ones are passed on."""
    usage: Usage
    """The token counts; all zero when the provider did not report them."""
    latency_ms: float | None
    """The latency in milliseconds, as the provider measured it; None when it did not report one."""
    invalid_inputs: Mapping[str, str]
    """Tool use id to the raw text of an input that is not JSON. The message has `{}` there."""
    truncated: bool
    """True if the token limit cut off a tool use, which was dropped."""
    response_id: str | None = None
    """The provider's id of this answer; None when it gave none."""
    response_model: str | None = None
    """The model that gave it, by its provider's name; None when it did not say."""
    redact_user: str | None
    """The text by which a guardrail wants the user's last message replaced; None when it does not."""
    other_calls_tokens: int = 0
    """Tokens of the usage that belong to other calls that the provider made for this answer, such as a compaction."""


def used_ids(messages: Iterable[Message]) -> Iterator[str]:
    """The ids of the tool uses in these messages."""
    return (use["toolUseId"] for message in messages for use in tool_uses(message))


class Assembler:
    """Builds a message from the events of one answer, in order.

    Feed every event, then call `finish` after the stream ended by itself. Events are neither kept nor edited.
    """

    __slots__ = (
        "_blocks",
        "_bytes_max",
        "_index",
        "_latency_ms",
        "_open",
        "_other_calls_tokens",
        "_redactions",
        "_responder",
        "_started",
        "_stop_reason",
        "_usage",
        "_use_ids",
        "_used_ids",
        "_weight",
    )

    def __init__(self, bytes_max: int = ANSWER_BYTES, used_ids: Iterable[str] = ()) -> None:
        """`bytes_max`: the largest weight of the answer. `used_ids`: of the tool uses before it, read if it has some:
        some services give the same id again, and a person's answer about one use, sent again, must allow no other.
        """
        self._bytes_max = bytes_max
        self._weight = 0
        self._blocks: list[BlockBuilder] = []
        self._open: dict[int, BlockBuilder] = {}
        self._used_ids: Iterable[str] = used_ids
        self._use_ids: set[str] = set()
        self._index = 0
        self._started = False
        self._stop_reason: str | None = None
        self._usage: Usage = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
        self._latency_ms: float | None = None
        self._redactions: dict[str, str] = {}
        self._responder: Mapping[str, object] = {}
        self._other_calls_tokens = 0

    @property
    def text(self) -> str:
        """The text of the answer so far; pieces of a surrogate pair that is not whole are replaced."""
        if "redactAssistantContentMessage" in self._redactions:
            return self._redactions["redactAssistantContentMessage"]
        texts = [block.text for block in self._blocks.copy() if isinstance(block, TextBuilder)]
        return "\n\n".join(text for text in texts if text)

    def feed(self, event: object) -> None:
        """Take the next event. Errors: `ModelFailed` with the event and its fault, `TooLarge`; the answer
        is void then.
        """
        if not is_mapping(event):
            malformed("(unnamed)", "a dictionary with one key", event)
        # Before the event is looked at, so that unknown ones count too.
        self._weigh(EVENT_BYTES)
        for name, body in event.items():
            if name == "contentBlockDelta":
                self._on_delta(body)
            elif name in _NAMES:
                self._on_other(name, mapping_field(body, name, name))

    def finish(self) -> Answer:
        """The answer. Errors: `ModelStreamBroken` when `messageStop` never came: call the model again."""
        if self._stop_reason is None:
            raise ModelStreamBroken("the model broke off before the end of its answer", blocks=len(self._blocks))
        limited = self._stop_reason in LIMITED
        # Only behind a token limit: otherwise half of a tool use is the provider's mistake, and the model is told.
        whole = [block for block in self._blocks if not (limited and block.cut_off())]
        message: Message = well_formed({"role": "assistant", "content": self._content(whole)})
        fault = None if is_plainly_sound(message) else message_fault(message, "answer")
        if fault is not None:
            raise ModelFailed("the model's answer is not a valid message", fault=fault)
        return Answer(
            message=message,
            stop_reason=self._stop_reason,
            usage=self._usage,
            latency_ms=self._latency_ms,
            invalid_inputs=_invalid_inputs(whole),
            truncated=len(whole) < len(self._blocks),
            response_id=self._named("id"),
            response_model=self._named("model"),
            redact_user=self._redactions.get("redactUserContentMessage"),
            other_calls_tokens=self._other_calls_tokens,
        )

    def partial(self) -> Answer | None:
        """The part of the answer that is there when its stream is cut short: its text, since the rest is of use only
        when it is whole. None without any.
        """
        replacement = self._redactions.get("redactAssistantContentMessage")
        texts = [block.text_so_far for block in self._blocks if isinstance(block, TextBuilder)]
        nonempty = [text for text in (texts if replacement is None else [replacement]) if text]
        # White space alone is nothing that somebody has read, and some providers refuse it.
        if not any(map(str.strip, nonempty)):
            return None
        return Answer(
            message={"role": "assistant", "content": [{"text": text} for text in nonempty]},
            stop_reason=STOPPED,
            usage=self._usage,
            latency_ms=self._latency_ms,
            invalid_inputs={},
            truncated=True,
            response_id=self._named("id"),
            response_model=self._named("model"),
            redact_user=self._redactions.get("redactUserContentMessage"),
        )

    def _named(self, key: str) -> str | None:
        name = self._responder.get(key)
        return well_formed_text(name) if isinstance(name, str) and 0 < len(name) <= _NAME_CHARACTERS_MAX else None

    def _content(self, blocks: list[BlockBuilder]) -> list[ContentBlock]:
        replacement = self._redactions.get("redactAssistantContentMessage")
        if replacement is not None:
            return [{"text": replacement}]
        built = [made for block in blocks if (made := block.build()) is not None]
        # Empty text beside other blocks is refused by some providers; a message without blocks by all.
        return [block for block in built if block.get("text") != ""] or [{"text": ""}]

    def _on_delta(self, body: object) -> None:
        if not is_mapping(body) or not is_mapping(delta := body.get("delta")):
            malformed("contentBlockDelta", "a dictionary under 'delta'", body)
        if self._stop_reason is not None:
            malformed("contentBlockDelta", "no content after messageStop", delta)
        index = self._index_in(body, "contentBlockDelta")
        block = self._open.get(index)
        if block is None:
            # Users' own models leave `contentBlockStart` out for text.
            block = builder_for(delta)
            if block is None:
                return
            self._begin(index, block)
        self._weigh(block.add(delta))

    def _on_other(self, name: str, body: Mapping[str, object]) -> None:
        match name:
            case "messageStart":
                self._on_message_start(body)
            case "contentBlockStart":
                self._on_block_start(body)
            case "contentBlockStop":
                if (block := self._open.pop(self._index_in(body, name), None)) is not None:
                    block.ended = True
            case "messageStop":
                if self._stop_reason is not None:
                    malformed(name, "to come once", body)
                self._stop_reason = well_formed_text(required_text(body.get("stopReason"), name, "stopReason"))
            case "metadata":
                self._on_metadata(body)
            case _:
                self._on_redaction(body)

    def _on_message_start(self, body: Mapping[str, object]) -> None:
        if body.get("role", "assistant") != "assistant":
            malformed("messageStart", "the role 'assistant'", body.get("role"))
        if self._started or self._blocks or self._stop_reason is not None:
            malformed("messageStart", "to come first, and once", body)
        self._started = True

    def _on_block_start(self, body: Mapping[str, object]) -> None:
        name = "contentBlockStart"
        start = mapping_field(body.get("start", {}), name, "start")
        index = self._index_in(body, name)
        if index in self._open or self._stop_reason is not None:
            malformed(name, "the block before it to have ended, and no messageStop", body)
        if "toolUse" not in start:
            if start and (block := _started(start)) is not None:
                self._begin(index, block)
            return  # Other blocks are known by their first delta.
        if len(self._use_ids) >= TOOL_USES_MAX:
            raise TooLarge(f"the model's answer is too large: it has more than {TOOL_USES_MAX:,} tool uses")
        use = mapping_field(start["toolUse"], name, "toolUse")
        # Repaired here, so that two ids that were repaired to the same one are told apart.
        use_id = self._unused(well_formed_text(required_text(use.get("toolUseId"), name, "toolUseId")))
        self._weigh(len(use_id))
        tool_name = required_text(use.get("name"), name, "name")
        self._weigh(len(tool_name))
        self._use_ids.add(use_id)
        signature = use.get("reasoningSignature")
        if signature is not None:
            self._weigh(len(required_text(signature, name, "reasoningSignature")))
        caller = use.get("caller")
        if caller is not None:
            self._weigh(_weight(mapping_field(caller, name, "caller")))
        self._begin(index, ToolUseBuilder(use_id, tool_name, _extras(use)))

    def _unused(self, use_id: str) -> str:
        # Read at the first tool use only: an answer of plain text does not walk through the history.
        self._used_ids = used = frozenset(self._used_ids)
        ids = chain((use_id,), (f"{use_id}-{number}" for number in count(2)))
        return next(each for each in ids if each not in self._use_ids and each not in used)

    def _on_metadata(self, body: Mapping[str, object]) -> None:
        given = mapping_field(body.get("usage") or {}, "metadata", "usage")
        for key in _COUNTS:
            if given.get(key) is not None:
                self._usage[key] = count_field(given[key], "metadata", key)
        # Some providers leave the sum out.
        if not self._usage["totalTokens"]:
            self._usage["totalTokens"] = self._usage["inputTokens"] + self._usage["outputTokens"]
        if body.get("otherCallsTokens"):
            self._other_calls_tokens = count_field(body["otherCallsTokens"], "metadata", "otherCallsTokens")
        responder = body.get("response")
        if is_mapping(responder):
            self._responder = responder
        latency_ms = mapping_field(body.get("metrics") or {}, "metadata", "metrics").get("latencyMs")
        if isinstance(latency_ms, int | float) and 0 <= latency_ms < _LATENCY_MS_MAX:
            self._latency_ms = float(latency_ms)

    def _on_redaction(self, body: Mapping[str, object]) -> None:
        for key in ("redactUserContentMessage", "redactAssistantContentMessage"):
            if body.get(key) is not None:
                self._redactions[key] = well_formed_text(required_text(body[key], "redactContent", key))
                self._weigh(len(self._redactions[key]))

    def _weigh(self, more: int) -> None:
        self._weight += more
        if self._weight > self._bytes_max:
            raise TooLarge(
                f"the model's answer is too large: it was broken off at {self._weight:,} bytes, counting {EVENT_BYTES} "
                f"for each event of its stream, and limits['answer_bytes'] is {self._bytes_max:,}"
            )

    def _begin(self, index: int, block: BlockBuilder) -> None:
        self._open[index] = block
        self._blocks.append(block)

    def _index_in(self, body: Mapping[str, object], name: str) -> int:
        """The block that an event belongs to; without an index, the block of the event before it."""
        index = body.get("contentBlockIndex")
        if index is None:
            return self._index
        # By exact type, since True is an int.
        if type(index) is not int:
            malformed(name, "an integer under 'contentBlockIndex'", index)
        self._index = index
        return index


def _invalid_inputs(blocks: list[BlockBuilder]) -> dict[str, str]:
    uses = [block for block in blocks if isinstance(block, ToolUseBuilder)]
    raws = {use.use_id: use.invalid_input() for use in uses}
    return {use_id: raw for use_id, raw in raws.items() if raw is not None}


_NAMES = frozenset(
    ("messageStart", "contentBlockStart", "contentBlockStop", "messageStop", "metadata", "redactContent")
)


# The content blocks of an answer under construction.
#
# A block takes deltas with `add` and becomes a content block with `build`. A delta of another known kind is malformed;
# unknown kinds and keys are ignored, since providers add them.

_DELTA = "contentBlockDelta"
_KINDS = ("text", "citation", "reasoningContent", "toolUse", "providerContent", "image", "audio", "video")
_MEDIA = ("image", "audio", "video")


class BlockBuilder(Protocol):
    """A content block under construction."""

    ended: bool
    """True if its `contentBlockStop` has come."""

    def add(self, delta: Mapping[str, object], /) -> int:
        """Take the next delta. Returns the bytes kept of it, plus `VALUE_BYTES` for each JSON value. Errors:
        `ModelFailed`.
        """
        ...

    def cut_off(self) -> bool:
        """True if the block is useless because its end is missing."""
        ...

    def build(self) -> ContentBlock | None:
        """The block from all pieces so far; None if there is nothing in it."""
        ...


def _started(start: Mapping[str, object]) -> BlockBuilder | None:
    """A builder for a block that names its kind at its start; None for those known by their first delta."""
    name = "contentBlockStart"
    if "reasoningContent" in start:
        provider = mapping_field(start["reasoningContent"], name, "reasoningContent").get("provider")
        return ReasoningBuilder(None if provider is None else required_text(provider, name, "provider"))
    if "providerContent" in start:
        provider = mapping_field(start["providerContent"], name, "providerContent").get("provider")
        return ProviderContentBuilder(required_text(provider, name, "provider"))
    for kind in _MEDIA:
        if kind in start:
            form = mapping_field(start[kind], name, kind).get("format")
            return MediaBuilder(kind, required_text(form, name, "format"))
    return None


def builder_for(delta: Mapping[str, object]) -> BlockBuilder | None:
    """A builder for the block that begins with this delta; None for unknown kinds."""
    if "text" in delta or "citation" in delta:
        return TextBuilder()
    if "reasoningContent" in delta:
        return ReasoningBuilder()
    for kind in ("toolUse", "providerContent", *_MEDIA):
        if kind in delta:
            malformed(_DELTA, f"a contentBlockStart before the content of a block of kind {kind}", delta)
    return None


class TextBuilder:
    """Text, with its citations when it has any."""

    __slots__ = ("_citations", "_parts", "ended")

    def __init__(self) -> None:
        self.ended = False
        self._parts: list[str] = []
        self._citations: list[Mapping[str, object]] = []

    def add(self, delta: Mapping[str, object]) -> int:
        text = delta.get("text")
        if type(text) is str:
            self._parts.append(text)
            return _size(text)
        if "citation" in delta:
            citation = mapping_field(delta["citation"], _DELTA, "citation")
            self._citations.append(citation)
            return _weight(citation)
        if _known(delta):
            malformed(_DELTA, "a string under 'text', since the block is text", delta)
        return 0

    def cut_off(self) -> bool:
        return False

    @property
    def text(self) -> str:
        """The text of the deltas so far, with lone surrogates replaced."""
        return well_formed_text("".join(self._parts))

    @property
    def text_so_far(self) -> str:
        """The text that has come so far, without the first half of a surrogate pair whose second half has not come."""
        text = "".join(self._parts)
        return well_formed_text(text[:-1] if "\ud800" <= text[-1:] <= "\udbff" else text)

    def build(self) -> ContentBlock:
        text = "".join(self._parts)  # The whole message is looked at for halves of surrogate pairs.
        if not self._citations:
            return {"text": text}
        return {"citationsContent": {"content": [{"text": text}], "citations": list(self._citations)}}


class ReasoningBuilder:
    """The model's reasoning. Its signature and redacted bytes go back to the provider unchanged."""

    __slots__ = ("_parts", "_provider", "_redacted", "_signature", "ended")

    def __init__(self, provider: str | None = None) -> None:
        """`provider`: whose reasoning it is; None when that is not known."""
        self.ended = False
        self._provider = provider
        self._parts: list[str] = []
        self._signature: list[str] = []
        self._redacted: list[bytes] = []

    def add(self, delta: Mapping[str, object]) -> int:
        if "reasoningContent" not in delta and not _known(delta):
            return 0
        size = 0
        piece = mapping_field(delta.get("reasoningContent"), _DELTA, "reasoningContent")
        for key, value in piece.items():
            match key, value:
                case "text", str():
                    self._parts.append(value)
                    size += _size(value)
                case "signature", str():
                    self._signature.append(value)
                    size += _size(value)
                case "redactedContent", bytes():
                    self._redacted.append(value)
                    size += len(value)
                case "text" | "signature" | "redactedContent", _:
                    malformed(_DELTA, "strings and bytes under 'reasoningContent'", piece)
                case _:
                    pass
        return size

    def cut_off(self) -> bool:
        return False

    def build(self) -> ContentBlock | None:
        mark = {} if self._provider is None else {"provider": self._provider}
        if self._redacted:
            return {"reasoningContent": {"redactedContent": b"".join(self._redacted), **mark}}
        reasoning = {"text": well_formed_text("".join(self._parts))}
        if self._signature:
            reasoning["signature"] = "".join(self._signature)
        elif not self._parts and mark:
            return None  # It was begun, and then nothing came.
        return {"reasoningContent": {"reasoningText": reasoning, **mark}}


class ProviderContentBuilder:
    """A part that only its provider can read. It comes whole, in the provider's own form."""

    __slots__ = ("_content", "_provider", "ended")

    def __init__(self, provider: str) -> None:
        self.ended = False
        self._provider = provider
        self._content: Mapping[str, object] | None = None

    def add(self, delta: Mapping[str, object]) -> int:
        if "providerContent" not in delta and not _known(delta):
            return 0
        piece = mapping_field(delta.get("providerContent"), _DELTA, "providerContent")
        self._content = mapping_field(piece.get("content"), _DELTA, "providerContent.content")
        return _weight(self._content)

    def cut_off(self) -> bool:
        return False

    def build(self) -> ContentBlock | None:
        if self._content is None:
            return None
        return {"providerContent": {"provider": self._provider, "content": self._content}}


class MediaBuilder:
    """A picture, a sound or a video, whose bytes arrive in pieces."""

    __slots__ = ("_form", "_kind", "_parts", "ended")

    def __init__(self, kind: str, form: str) -> None:
        """`kind`: `image`, `audio` or `video`. `form`: its format, such as `png`."""
        self.ended = False
        self._kind = kind
        self._form = form
        self._parts: list[bytes] = []

    def add(self, delta: Mapping[str, object]) -> int:
        if self._kind not in delta and not _known(delta):
            return 0
        piece = mapping_field(delta.get(self._kind), _DELTA, self._kind)
        data = mapping_field(piece.get("source") or {}, _DELTA, "source").get("bytes")
        if not isinstance(data, bytes):
            malformed(_DELTA, f"bytes under '{self._kind}.source'", sorted(piece))
        self._parts.append(data)
        return len(data)

    def cut_off(self) -> bool:
        return False

    def build(self) -> ContentBlock | None:
        if not self._parts:
            return None
        medium = {"format": self._form, "source": {"bytes": b"".join(self._parts)}}
        return cast("ContentBlock", {self._kind: medium})


class ToolUseBuilder:
    """A tool use whose input arrives as pieces of JSON text. No text means `{}`."""

    __slots__ = ("_extras", "_name", "_parts", "_read", "ended", "use_id")

    def __init__(self, use_id: str, name: str, extras: Mapping[str, object] | None = None) -> None:
        """`extras`: further fields that the provider wants back."""
        self.ended = False
        self.use_id = use_id
        self._name = name
        self._extras = extras or {}
        self._parts: list[str] = []
        self._read: tuple[Json, str | None] | None = None
        """The parsed input, and its raw text when that is not JSON; None until the answer has ended."""

    def add(self, delta: Mapping[str, object]) -> int:
        if "toolUse" not in delta and not _known(delta):
            return 0
        piece = mapping_field(delta.get("toolUse"), _DELTA, "toolUse").get("input", "")
        if type(piece) is not str:
            malformed(_DELTA, "a string under 'toolUse.input'", piece)
        self._parts.append(piece)
        # JSON has at most one value more than commas and opening brackets.
        return _size(piece) + VALUE_BYTES * sum(map(piece.count, ",[{"))

    def cut_off(self) -> bool:
        return self.invalid_input() is not None or (not self.ended and not any(map(str.strip, self._parts)))

    def invalid_input(self) -> str | None:
        """The raw text when it is not JSON, else None. Call it after the last delta."""
        return self._whole()[1]

    def build(self) -> ContentBlock:
        use = {"toolUseId": self.use_id, "name": self._name, "input": self._whole()[0], **self._extras}
        return {"toolUse": cast("ToolUse", use)}

    def _whole(self) -> tuple[Json, str | None]:
        if self._read is None:
            raw = "".join(self._parts).strip()
            try:
                self._read = _parsed(raw), None
            except (ValueError, RecursionError):
                self._read = {}, well_formed_text(raw)
        return self._read


def _extras(use: Mapping[str, object]) -> dict[str, object]:
    """The fields of a tool use that only its provider reads."""
    return {key: use[key] for key in ("reasoningSignature", "caller") if use.get(key) is not None}


def _known(delta: Mapping[str, object]) -> bool:
    return any(kind in delta for kind in _KINDS)


def _parsed(raw: str) -> Json:
    """The JSON value. Errors: `ValueError`, `RecursionError` when it is no JSON, too large, too deep, or not UTF-8."""
    if not raw:
        return {}
    value = cast("Json", _STRICT_JSON.decode(raw))
    if "\\u" in raw or not raw.isascii():
        json.dumps(value, ensure_ascii=False).encode()  # Refuses lone surrogates.
    if is_too_deep(value):
        raise ValueError("nested too deeply")
    return value


_STRICT_JSON = json.JSONDecoder(parse_constant=refuse_constant)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _weight(value: object) -> int:
    scale = Scale(sys.maxsize)
    scale.put(value)
    return scale.weight


# Reading the fields of a model's stream events, strictly.
#
# Each function returns the value with its type, or raises `ModelFailed` with the event, the expected value and the
# actual one.

_EXCERPT_CHARACTERS = 200


def is_mapping(value: object) -> TypeGuard[Mapping[str, object]]:
    """True if the value is a dictionary, as parsed JSON objects are."""
    return isinstance(value, dict)


def mapping_field(value: object, event: str, field: str) -> Mapping[str, object]:
    """The value as a dictionary."""
    if not is_mapping(value):
        malformed(event, f"a dictionary under '{field}'", value)
    return value


def required_text(value: object, event: str, field: str) -> str:
    """The value as a non-empty string."""
    if not isinstance(value, str) or not value:
        malformed(event, f"a non-empty string under '{field}'", value)
    return value


def count_field(value: object, event: str, field: str) -> int:
    """The value as a non-negative count."""
    if type(value) is not int or not 0 <= value < 2**63:
        malformed(event, f"a count under '{field}'", value)
    return value


def malformed(event: str, expected: str, got: object) -> NoReturn:
    """Errors: `ModelFailed` with the event, the expected value and the actual one."""
    raise ModelFailed("malformed model event", event=event, expected=expected, got=repr(got)[:_EXCERPT_CHARACTERS])


# A finished answer as the stream of events that would have carried it: for replies of a script, rules, and providers
# without streaming.

Split = Callable[[str], Iterable[str]]
"""Cuts a text into pieces, one per delta. Joined, the pieces are the text again."""


def whole(text: str) -> Iterable[str]:
    return (text,)


def message_events(
    blocks: Sequence[ContentBlock], *, stop_reason: str | None = None, split: Split = whole
) -> Iterator[StreamEvent]:
    """The events from `messageStart` to `messageStop`.

    Without a `stop_reason` it is `tool_use` when a block is a tool use, else `end_turn`. Block kinds that no delta can
    carry are left out.
    """
    yield {"messageStart": {"role": "assistant"}}
    asks = False
    for index, block in enumerate(blocks):
        asks = asks or "toolUse" in block
        if start := _start_of(block):
            yield {"contentBlockStart": {"contentBlockIndex": index, "start": cast("ContentBlockStart", start)}}
        for delta in _deltas(block, split):
            yield {"contentBlockDelta": {"contentBlockIndex": index, "delta": cast("ContentBlockDelta", delta)}}
        yield {"contentBlockStop": {"contentBlockIndex": index}}
    yield {"messageStop": {"stopReason": stop_reason or ("tool_use" if asks else "end_turn")}}


def _start_of(block: ContentBlock) -> dict[str, object]:
    """The start of a block that names its kind there; empty for a block known by its first delta."""
    if "toolUse" in block:
        return {"toolUse": {key: value for key, value in block["toolUse"].items() if key != "input"}}
    if "reasoningContent" in block:
        provider = block["reasoningContent"].get("provider")
        return {} if provider is None else {"reasoningContent": {"provider": provider}}
    if "providerContent" in block:
        return {"providerContent": {"provider": block["providerContent"]["provider"]}}
    for kind in _MEDIA:
        medium = cast("Mapping[str, Mapping[str, object]]", block).get(kind)
        if medium is not None and _bytes_of(medium) is not None:
            return {kind: {"format": medium.get("format")}}
    return {}


def _bytes_of(medium: Mapping[str, object]) -> bytes | None:
    source = medium.get("source")
    data = source.get("bytes") if is_mapping(source) else None
    return data if isinstance(data, bytes) else None


def _deltas(block: ContentBlock, split: Split) -> Iterator[dict[str, object]]:
    if "text" in block:
        for piece in split(block["text"]):
            yield {"text": piece}
    elif "toolUse" in block:
        for piece in split(json.dumps(block["toolUse"]["input"])):
            yield {"toolUse": {"input": piece}}
    elif "reasoningContent" in block:
        yield from _reasoning_deltas(block["reasoningContent"], split)
    elif "citationsContent" in block:
        cited = cast("Mapping[str, Sequence[Mapping[str, object]]]", block["citationsContent"])
        for part in cited.get("content", ()):
            yield {"text": part.get("text", "")}
        for citation in cited.get("citations", ()):
            yield {"citation": citation}
    elif "providerContent" in block:
        yield {"providerContent": {"content": block["providerContent"]["content"]}}
    else:
        for kind in _MEDIA:
            medium = cast("Mapping[str, Mapping[str, object]]", block).get(kind)
            if medium is not None and (data := _bytes_of(medium)) is not None:
                yield {kind: {"source": {"bytes": data}}}


def _reasoning_deltas(reasoning: Mapping[str, object], split: Split) -> Iterator[dict[str, object]]:
    if "redactedContent" in reasoning:
        yield {"reasoningContent": {"redactedContent": reasoning["redactedContent"]}}
    spoken = cast("Mapping[str, str]", reasoning.get("reasoningText", {}))
    for piece in split(spoken.get("text", "")):
        yield {"reasoningContent": {"text": piece}}
    if "signature" in spoken:
        yield {"reasoningContent": {"signature": spoken["signature"]}}
