"""Messages and content blocks in the format of the Converse API, which is also what users read and write.

These are the API's dictionaries with types. A message is never edited after it was made; a change is a new message.
This file checks what a message may hold and which message may follow another.

Source: Amazon Bedrock API reference, `Message` and `ContentBlock`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from hashlib import sha256
from math import isfinite
from typing import Literal, NotRequired, TypeAlias, cast

from typing_extensions import TypedDict  # pydantic wants this one on Python 3.11.

from repertory.core.json_values import Json as Json
from repertory.core.limits import MESSAGE_DEPTH_MAX, is_too_deep, is_well_formed, well_formed
from repertory.errors import Invalid, UnpairedTools

Role = Literal["user", "assistant"]
ToolStatus = Literal["success", "error"]


class ToolUse(TypedDict):
    """The model asks for a tool.

    Args:
        input: Any JSON that the model produced.
        reasoningSignature: Ties the reasoning before it to the use, for services that want it back.
        caller: What has made the use, where that is code which runs at the provider; goes back to Anthropic.

    Attributes:
        toolUseId: The id that the result names.
        name: The tool's name.
    """

    toolUseId: str
    name: str
    input: Json
    reasoningSignature: NotRequired[str]
    caller: NotRequired[Mapping[str, object]]


class ToolResult(TypedDict):
    """A tool's answer. Each element of `content` is one of `{"text"}`, `{"json"}`, `{"image"}`, `{"document"}`.

    Attributes:
        toolUseId: The id of the tool use that it answers.
        status: `success` or `error`.
        content: Blocks of text, JSON, images or documents.
    """

    toolUseId: str
    status: ToolStatus
    content: list[dict[str, object]]


class ProviderContent(TypedDict):
    """A part of an answer that only its provider can read, such as a search that the provider's own servers made.

    Attributes:
        provider: The provider's name: `anthropic`, `openai`, `gemini`, `bedrock`, or the name of a service.
        content: The provider's own JSON, unchanged. It goes back to this provider, and to no other one.
    """

    provider: str
    content: Mapping[str, object]


class ContentBlock(TypedDict, total=False):
    """One part of a message: exactly one of these keys is present.

    Attributes:
        text: A text.
        toolUse: A tool use.
        toolResult: A tool result.
        image: An image: its format and its source.
        document: A document: its format, name and source.
        video: A video: its format and its source.
        audio: A sound: its format and its source.
        reasoningContent: What the model thought, where it shows that.
        guardContent: What a guardrail looks at.
        citationsContent: A text with its citations.
        cachePoint: What stands before it may be cached.
        providerContent: A part that only its provider can read.
    """

    text: str
    toolUse: ToolUse
    toolResult: ToolResult
    image: Mapping[str, object]
    document: Mapping[str, object]
    video: Mapping[str, object]
    audio: Mapping[str, object]
    reasoningContent: Mapping[str, object]
    guardContent: Mapping[str, object]
    citationsContent: Mapping[str, object]
    cachePoint: Mapping[str, object]
    providerContent: ProviderContent


class Usage(TypedDict):
    """Token counts of one model call.

    Attributes:
        inputTokens: Tokens that the model has read.
        outputTokens: Tokens that the model has written.
        totalTokens: Both.
        cacheReadInputTokens: Input tokens that came from the cache.
        cacheWriteInputTokens: Input tokens that were written to the cache.
    """

    inputTokens: int
    outputTokens: int
    totalTokens: int
    cacheReadInputTokens: NotRequired[int]
    cacheWriteInputTokens: NotRequired[int]


class MessageMetadata(TypedDict, total=False):
    """Stored with a message, never sent to a model."""

    usage: Usage
    metrics: dict[str, float]
    custom: dict[str, Json]


class Message(TypedDict):
    """One message. `metadata` and `tracking_id` are ours; they are stripped before a model gets the message.

    Attributes:
        role: `user` or `assistant`.
        content: The content blocks, in order.
        metadata: Values about the message; models are not shown them.
        tracking_id: An id that stays with the message; see `Agent.tracks_messages`.
    """

    role: Role
    content: list[ContentBlock]
    metadata: NotRequired[MessageMetadata]
    tracking_id: NotRequired[str]


class CachePoint(TypedDict):
    """The provider may cache the request up to here. `ttl`: for how long, such as `5m`."""

    type: str
    ttl: NotRequired[str]


class SystemContentBlock(TypedDict, total=False):
    """One part of a system prompt: text, or a point up to which the provider may cache.

    Attributes:
        cachePoint: What stands before it may be cached.
        text: A text.
    """

    cachePoint: CachePoint
    text: str


class ToolSpec(TypedDict):
    """A tool as described to the model. `inputSchema` is `{"json": <JSON schema>}`.

    Attributes:
        name: The tool's name.
        description: What it does, in words for the model.
        inputSchema: The JSON schema of its input, in `{"json": ...}`.
    """

    name: str
    description: str
    inputSchema: Mapping[str, object]
    outputSchema: NotRequired[Mapping[str, object]]
    """The JSON schema of its result; models are not shown it."""
    annotations: NotRequired[Mapping[str, object]]
    """Hints of a tool server about the tool, unverified, such as `readOnlyHint`."""
    inputExamples: NotRequired[Sequence[Mapping[str, object]]]
    """Inputs as the model should write them, for services that take them."""
    deferLoading: NotRequired[bool]
    """True for a tool whose definition the provider shows its model only when its own search has found it."""
    codeCalls: NotRequired[Literal["also", "only"]]
    """Set for a tool that code may call which the provider runs: beside its model, or in its place."""


Messages: TypeAlias = list[Message]
"""A conversation: messages, oldest first."""


class InterruptResponse(TypedDict):
    """A person's answer. `response`: any JSON."""

    interruptId: str
    response: object


class InterruptResponseContent(TypedDict):
    """A person's answer, as one of the blocks that an agent is called with.

    Attributes:
        interruptResponse: The id of the interrupt and the answer.
    """

    interruptResponse: InterruptResponse


Prompt: TypeAlias = str | Sequence[ContentBlock | Message | InterruptResponseContent] | None
"""A caller's input: text, content blocks, messages, answers to interrupts, or None to go on without a new message."""
AgentInput: TypeAlias = Prompt
"""The types of a prompt: a text, content blocks, messages, answers to interrupts, or None."""

NO_ANSWER_TEXT = "(This message was not answered: the turn ended early.)"
"""The text of the filler in the place of a missing answer, so that the next prompt may follow."""
LOST_TEXT = "(This message was lost.)"
"""The text of the filler in the place of a stored message that can no longer be read."""


def is_filler(message: Message) -> bool:
    """True if the message is a filler in the place of a missing answer. A model's answer is none, whatever it says: it
    has its usage.
    """
    content = message["content"]
    return (
        message["role"] == "assistant"
        and len(content) == 1
        and content[0].get("text") in (NO_ANSWER_TEXT, LOST_TEXT)
        and "usage" not in message.get("metadata", {})
    )


PAUSED = frozenset(("pause_turn", "compaction"))
"""The stop reasons of an answer that its provider goes on with when it gets it back."""


def is_paused(message: Message) -> bool:
    """True if the message is the first part of an answer that its provider goes on with."""
    return message.get("metadata", {}).get("custom", {}).get("stop_reason") in PAUSED


STOPPED = "cancelled"
"""The stop reason of an answer that was cut off because its caller stopped the turn."""
STOPPED_TEXT = "[This answer was stopped here.]"
"""The last text of such an answer, for the model and for whoever reads the conversation."""


def is_stopped(message: Message) -> bool:
    """True if the message is the part of an answer that was there when its caller stopped the turn."""
    return message.get("metadata", {}).get("custom", {}).get("stop_reason") == STOPPED


COMPACTION = "compaction"
"""A key in an answer's custom metadata: true if the answer has a part that stands for all that was said before."""


def holds_compaction(message: Message) -> bool:
    """True if the answer has a part of its provider that stands for all that was said before."""
    return message.get("metadata", {}).get("custom", {}).get(COMPACTION) is True


def tool_uses(message: Message) -> Iterator[ToolUse]:
    """The tool uses in a message, in order."""
    for block in message["content"]:
        if "toolUse" in block:
            yield block["toolUse"]


def tool_results(message: Message) -> Iterator[ToolResult]:
    """The tool results in a message, in order."""
    for block in message["content"]:
        if "toolResult" in block:
            yield block["toolResult"]


def _of_word(character: str) -> bool:
    """True for a digit, and for a letter of a script that has spaces between words (those with two cases)."""
    return character.isdigit() or character.lower() != character.upper()


def text_of(message: Message) -> str:
    """The text of a message, that with sources included; empty when it has none. Newlines stand between its blocks, but
    none where a source begins or ends, as that is within a sentence, unless two words would run together. What is no
    content block is passed over.
    """
    pieces: list[str] = []
    cited_before: bool | None = None
    for block in cast("Sequence[object]", message.get("content", ())):
        found: ContentBlock = cast("ContentBlock", block) if isinstance(block, Mapping) else {}
        if "text" in found:
            text, cited = str(found["text"]), False
        elif "citationsContent" in found:
            parts = cast("Sequence[Mapping[str, object]]", found["citationsContent"].get("content", ()))
            text, cited = "".join(str(part.get("text", "")) for part in parts), True
        else:
            cited_before = None
            continue
        in_sentence = cited_before is not None and (cited or cited_before)
        # A provider cuts an answer into blocks wherever a source begins, also within a sentence.
        if pieces and (not in_sentence or (_of_word(pieces[-1][-1:]) and _of_word(text[:1]))):
            pieces.append("\n")
        pieces.append(text)
        cited_before = cited
    return "".join(pieces)


def texts_in(message: Message) -> Iterator[str]:
    """The texts of a message, in order, those with citations included. What is no content block is passed over."""
    for block in cast("Sequence[object]", message.get("content", ())):
        if not isinstance(block, Mapping):
            continue
        given = cast("ContentBlock", block)
        cited = cast("Sequence[Mapping[str, str]]", given.get("citationsContent", {}).get("content", ()))
        yield from (str(part["text"]) for part in (given, *cited) if "text" in part)


def with_tracking_id(message: Message, path: str) -> Message:
    """The message with a `tracking_id`, which is made from the `path` where it is recorded unless it has one."""
    if "tracking_id" in message:
        return message
    return {**message, "tracking_id": sha256(path.encode()).hexdigest()[:32]}


_TRACEPARENT = "traceparent"


def with_traceparent(message: Message, line: str | None) -> Message:
    """The message with the trace of its turn in its custom metadata, unless it is an answer or has one: if the process
    dies, whoever goes on with the turn finds the trace in its last message.
    """
    if (
        line is None
        or traceparent_of(message) is not None
        or not (message["role"] == "user" or any(tool_uses(message)))
    ):
        return message
    metadata = message.get("metadata", {})
    return {**message, "metadata": {**metadata, "custom": {**metadata.get("custom", {}), _TRACEPARENT: line}}}


def traceparent_of(message: Message) -> str | None:
    """The trace of the turn that the message belongs to, if it was traced and the message is no answer."""
    line = message.get("metadata", {}).get("custom", {}).get(_TRACEPARENT)
    return line if isinstance(line, str) else None


def for_model(messages: Iterable[Message]) -> list[Message]:
    """The messages as a model gets them: roles and contents alone, since services refuse other keys."""
    return [{"role": each["role"], "content": each["content"]} for each in messages]


def copy_message(message: Message) -> Message:
    """A deep copy of the message."""
    return cast("Message", copy_json(cast("Json", message)))


def copy_use(use: ToolUse) -> ToolUse:
    """A deep copy of the tool use."""
    return cast("ToolUse", copy_json(cast("Json", use)))


def copy_result(result: ToolResult) -> ToolResult:
    """A deep copy of the tool result."""
    return cast("ToolResult", copy_json(cast("Json", result)))


def error_result(tool_use_id: str, text: str) -> ToolResult:
    """A tool result that tells the model what went wrong."""
    return {"toolUseId": tool_use_id, "status": "error", "content": [{"text": text}]}


def copy_json(value: Json) -> Json:
    """A deep copy of JSON, several times faster than `copy.deepcopy`. Tuples become lists."""
    if isinstance(value, dict):
        # Texts are most of the values, and not worth a call each.
        return {key: item if type(item) is str else copy_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [item if type(item) is str else copy_json(item) for item in value]
    return value


# What a message may hold: the content blocks of Converse, with the types of all named fields.
#
# Every message is checked here before it is stored; the error names the place of the fault
# (`messages[0].content[1].text: a string, not int`). Unknown keys are kept, as long as JSON or bytes can hold their
# values: providers add blocks and fields.
#
# Messages that other programs have stored, or that a file brings in, are repaired instead: a block that no provider
# accepts becomes text with its contents, so that the conversation goes on and nothing is lost.
#
# Source: Amazon Bedrock API reference, `ContentBlock` and `ToolResultContentBlock`.

_Form: TypeAlias = Callable[[object, str], "str | None"]
"""A check: it takes a value and its path, and returns the fault, or None."""

_INT_BITS_MAX = 14_000
"""The bits of the longest integer: Python refuses to write longer ones as text."""


def message_fault(value: object, path: str) -> str | None:
    """The fault of a message, and its position; None when the message may be stored and sent."""
    return shape_fault(value, path) or _content_fault(cast("Message", value), path) or plain_fault(value, path)


def prompt_fault(value: object, path: str) -> str | None:
    """The fault of a message that a caller gives: one that `message_fault` finds, a block of no known kind, or a tool
    use in a message of the user. None when the model may be shown it.
    """
    fault = message_fault(value, path)
    if fault is not None:
        return fault
    message = cast("Message", value)
    for number, block in enumerate(message["content"]):
        if _BLOCKS.keys().isdisjoint(block):
            kinds = ", ".join(sorted(_BLOCKS))
            return (
                f"{path}.content[{number}]: no content block has the key {_excerpt(next(iter(block)))}; one of {kinds}"
            )
        if "toolUse" in block and message["role"] == "user":
            return f"{path}.content[{number}]: a tool use stands in messages of the assistant only"
        if "providerContent" in block and message["role"] == "user":
            return f"{path}.content[{number}]: a part that only its provider can read stands in answers only"
        if "guardContent" in block and {"text", "image"}.isdisjoint(block["guardContent"]):
            return f"{path}.content[{number}].guardContent: has no 'text' or 'image'"
    return None


def result_fault(value: object, path: str) -> str | None:
    """The fault of a result from a tool or a hook; None when it has none. `toolUseId` may be missing."""
    if is_too_deep(value, MESSAGE_DEPTH_MAX):
        return f"{path}: nested too deeply, at most {MESSAGE_DEPTH_MAX} levels"
    return _GIVEN_RESULT(value, path) or plain_fault(value, path)


def shape_fault(value: object, path: str, *, stored: bool = False) -> str | None:
    """The fault of the outer structure of a message; content blocks are not examined. With `stored`, only a fault that
    cannot be repaired.
    """
    if not isinstance(value, dict):
        return _wrong(value, path, "a message is a dictionary")
    fields = cast("dict[object, object]", value)
    if fields.get("role") not in ("user", "assistant"):
        return f"{path}.role: 'user' or 'assistant', not {_excerpt(fields.get('role'))}"
    content = fields.get("content")
    if not isinstance(content, list) or not (content or stored):
        return f"{path}.content: a list of at least one content block, not {_excerpt(cast('object', content))}"
    for number, block in enumerate(cast("list[object]", content if not stored else ())):
        if not isinstance(block, dict) or not block:
            return _wrong(cast("object", block), f"{path}.content[{number}]", "a dictionary such as {'text': ...}")
    if is_too_deep(fields, MESSAGE_DEPTH_MAX):
        return f"{path}: nested too deeply, at most {MESSAGE_DEPTH_MAX} levels"
    return None


def repair_message(message: Message) -> Message:
    """A message that may be stored and sent; the same object when nothing is wrong with it.

    Call it for messages that pass `shape_fault`. A broken block becomes text with its contents; ids of tool uses that
    are not strings are replaced so that uses and results still match; lone halves of surrogate pairs are replaced.
    """
    # Nearly always: nothing is copied then.
    if _content_fault(message := well_formed(message), "") is None:
        return message
    repaired: dict[str, object] = {
        **message,
        "content": [_repaired_block(block, _BLOCKS) for block in message["content"]],
    }
    metadata = repaired.get("metadata")
    if isinstance(metadata, dict):
        fields = cast("dict[str, object]", metadata)
        repaired["metadata"] = {key: item for key, item in fields.items() if _METADATA({key: item}, "") is None}
    elif "metadata" in repaired:
        del repaired["metadata"]
    if not isinstance(repaired.get("tracking_id", ""), str):
        del repaired["tracking_id"]
    return cast("Message", repaired) if repaired != message else message


def is_plainly_sound(message: Mapping[str, object]) -> bool:
    """True if a stored message holds only text and nothing is wrong with it; False leaves that open. Kept fast, since
    it runs for every row that is opened.
    """
    content = message.get("content")
    if message.get("role") not in ("user", "assistant") or type(content) is not list or "tracking_id" in message:
        return False
    for block in cast("list[dict[str, object]]", content):
        if type(block) is not dict or len(block) != 1 or type(block.get("text")) is not str:
            return False
    if "metadata" not in message:
        return True
    metadata = message["metadata"]
    if type(metadata) is not dict:
        return False
    fields = cast("dict[str, object]", metadata)
    usage = fields.get("usage")
    if len(fields) != 1 or type(usage) is not dict:
        return False
    counts = cast("dict[str, object]", usage)
    if tuple(counts) != _USUAL_COUNTS:
        return False
    given, taken, both = counts.values()
    return type(given) is int and type(taken) is int and type(both) is int and given >= 0 <= taken and both >= 0


def repair_result(result: Mapping[str, object]) -> ToolResult:
    """A tool result that may be stored and sent; the same object when nothing is wrong with it."""
    return cast("ToolResult", result if _RESULT(result, "") is None else _repaired_result(result))


# Checks for each named field.


def _text(value: object, path: str) -> str | None:
    return None if isinstance(value, str) else _wrong(value, path, "a string")


def _name(value: object, path: str) -> str | None:
    return None if isinstance(value, str) and value else _wrong(value, path, "a string that is not empty")


def _data(value: object, path: str) -> str | None:
    return None if isinstance(value, bytes | bytearray) else _wrong(value, path, "bytes")


def _flag(value: object, path: str) -> str | None:
    return None if isinstance(value, bool) else _wrong(value, path, "a boolean")


def _count(value: object, path: str) -> str | None:
    # True is an int; the upper end is a column of SQLite.
    right = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    return None if right else _wrong(value, path, "a count")


def _status(value: object, path: str) -> str | None:
    return None if value in ("success", "error") else f"{path}: 'success' or 'error', not {_excerpt(value)}"


def _anything(value: object, path: str) -> str | None:
    del value, path
    return None


def _fields(needed: Mapping[str, _Form] | None = None, known: Mapping[str, _Form] | None = None) -> _Form:
    """A dictionary that has the needed fields and may have the others."""
    required = frozenset(needed or ())
    forms = {**(needed or {}), **(known or {})}

    def look(value: object, path: str) -> str | None:
        if not isinstance(value, dict):
            return _wrong(value, path, "a dictionary")
        fields = cast("dict[object, object]", value)
        missing = required - fields.keys()
        if missing:
            return f"{path}: has no {min(missing)!r}"
        for key, item in fields.items():
            shape = forms.get(cast("str", key))
            fault = shape(item, f"{path}.{key}") if shape is not None else None
            if fault is not None:
                return fault
        return None

    return look


def _every(shape: _Form) -> _Form:

    def look(value: object, path: str) -> str | None:
        if not isinstance(value, list | tuple):
            return _wrong(value, path, "a list")
        return _first(shape(item, f"{path}[{number}]") for number, item in enumerate(cast("list[object]", value)))

    return look


_PARTS = _every(_fields({"text": _text}))
_MEDIUM = _fields({"source": _fields(known={"bytes": _data, "s3Location": _fields({"uri": _text})})}, {"format": _text})
_DOCUMENT = _fields(
    {
        "source": _fields(
            known={"bytes": _data, "text": _text, "content": _PARTS, "s3Location": _fields({"uri": _text})}
        )
    },
    {"name": _text, "format": _text, "context": _text, "citations": _fields({"enabled": _flag})},
)
_RESULT_BLOCKS: Mapping[str, _Form] = {
    "text": _text,
    "json": _anything,
    "image": _MEDIUM,
    "video": _MEDIUM,
    "document": _DOCUMENT,
}
_RESULT = _fields(
    {"toolUseId": _name, "content": _every(_fields(known=_RESULT_BLOCKS))},
    {"status": _status},
)
_GIVEN_RESULT = _fields(
    {"status": _status, "content": _every(_fields(known=_RESULT_BLOCKS))},
    {"toolUseId": _name},
)
_BLOCKS: Mapping[str, _Form] = {
    "text": _text,
    "image": _MEDIUM,
    "video": _MEDIUM,
    "audio": _MEDIUM,
    "document": _DOCUMENT,
    "toolUse": _fields(
        {"toolUseId": _name, "name": _name, "input": _anything}, {"reasoningSignature": _text, "caller": _fields()}
    ),
    "toolResult": _RESULT,
    "reasoningContent": _fields(
        known={
            "reasoningText": _fields({"text": _text}, {"signature": _text}),
            "redactedContent": _data,
            "provider": _text,
        }
    ),
    "providerContent": _fields({"provider": _name, "content": _fields()}),
    "cachePoint": _fields({"type": _text}, {"ttl": _text}),
    "guardContent": _fields(known={"text": _fields({"text": _text}, {"qualifiers": _every(_text)}), "image": _MEDIUM}),
    "citationsContent": _fields(
        known={
            "content": _PARTS,
            "citations": _every(
                _fields(known={"title": _text, "source": _text, "sourceContent": _PARTS, "location": _fields()})
            ),
        }
    ),
}
_BLOCK = _fields(known=_BLOCKS)
_USUAL_COUNTS = ("inputTokens", "outputTokens", "totalTokens")
"""The token counts that we write in every usage, the cache counts aside."""
_METADATA = _fields(
    known={
        "usage": _fields(
            {"inputTokens": _count, "outputTokens": _count, "totalTokens": _count},
            {"cacheReadInputTokens": _count, "cacheWriteInputTokens": _count},
        ),
        "metrics": _fields(),
        "custom": _fields(),
    }
)


def _content_fault(message: Message, path: str) -> str | None:
    for number, block in enumerate(cast("list[dict[str, object]]", message["content"])):
        if type(block) is dict and len(block) == 1 and type(block.get("text")) is str:
            continue  # The usual block.
        fault = _BLOCK(block or None, f"{path}.content[{number}]")
        if fault is not None:
            return fault
    if "metadata" in message and (fault := _METADATA(message["metadata"], f"{path}.metadata")) is not None:
        return fault
    return _text(message["tracking_id"], f"{path}.tracking_id") if "tracking_id" in message else None


def plain_fault(value: object, path: str) -> str | None:
    """The first value that neither JSON nor bytes can hold, and its position. The caller has bounded the nesting."""
    if value is None or isinstance(value, str | bytes | bytearray | bool):
        fine = not isinstance(value, str) or is_well_formed(value)
        return None if fine else f"{path}: text without lone surrogates, which cannot be sent"
    if isinstance(value, int):
        # By bits: to count digits is what Python refuses.
        return None if value.bit_length() < _INT_BITS_MAX else f"{path}: a number of fewer digits"
    if isinstance(value, float):
        return None if isfinite(value) else f"{path}: a finite number, not {value}"
    if isinstance(value, list | tuple):
        return _first(plain_fault(item, f"{path}[{at}]") for at, item in enumerate(cast("list[object]", value)))
    if not isinstance(value, dict):
        return _wrong(value, path, "a JSON value or bytes")
    fields = cast("dict[object, object]", value)
    if (odd := next((key for key in fields if not (isinstance(key, str) and is_well_formed(key))), None)) is not None:
        return _wrong(odd, f"a key of {path}", "a string without lone surrogates")
    return _first(plain_fault(item, f"{path}.{key}") for key, item in fields.items())


def _first(faults: Iterable[str | None]) -> str | None:
    return next((fault for fault in faults if fault is not None), None)


def _wrong(value: object, path: str, expected: str) -> str:
    return f"{path}: {expected}, not {_excerpt(value)}"


def _excerpt(value: object) -> str:
    """A short string or None as it is; else the type."""
    return repr(value) if value is None or (isinstance(value, str) and len(value) <= 20) else type(value).__name__


# Repairs.


def _repaired_block(value: object, forms: Mapping[str, _Form]) -> ContentBlock:
    if not isinstance(value, dict) or not value:
        return {"text": _words(cast("object", value))}
    block = cast("dict[str, object]", value)
    if all(forms[key](item, "") is None for key, item in block.items() if key in forms):
        return cast("ContentBlock", block)
    if forms is _BLOCKS and isinstance(use := block.get("toolUse"), dict):
        return {"toolUse": _repaired_use(cast("dict[str, Json]", use))}
    if forms is _BLOCKS and isinstance(result := block.get("toolResult"), dict):
        return {"toolResult": _repaired_result(cast("dict[str, object]", result))}
    return {"text": _words(block["text"] if len(block) == 1 and "text" in block else block)}


def _repaired_use(use: Mapping[str, Json]) -> ToolUse:
    name = use.get("name")
    fields: dict[str, Json] = {
        **use,
        "toolUseId": _repaired_id(use.get("toolUseId")),
        "name": name if isinstance(name, str) else _words(name),
        "input": use.get("input", {}),
    }
    return cast("ToolUse", fields)


def _repaired_result(result: Mapping[str, object]) -> ToolResult:
    content, status = result.get("content"), result.get("status")
    blocks = cast("list[object]", content) if isinstance(content, list | tuple) else [content]
    return cast(
        "ToolResult",
        {
            **result,
            "toolUseId": _repaired_id(result.get("toolUseId")),
            "status": status if status in ("success", "error") else "error",
            "content": [_repaired_block(block, _RESULT_BLOCKS) for block in blocks],
        },
    )


def _repaired_id(value: object) -> str:
    """One id per value, in characters that providers accept."""
    # From the value, so that the use and its result, repaired apart from each other, get the same id.
    return value if isinstance(value, str) else f"mended-{sha256(_words(value).encode()).hexdigest()[:24]}"


def _words(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)


# The pairing rule: each tool use has its result in the very next message.
#
# Every provider refuses a history that breaks this rule, so it is checked before a message is stored and again when a
# journal is folded. Foreign histories are repaired once, on import, by `repair`.

INTERRUPTED_TEXT = "Tool was interrupted."
"""The result text that `repair` gives to a tool use without a result."""


def is_one_text(content: Sequence[ContentBlock]) -> bool:
    """True if this is the content of a message that holds nothing but one text. Kept fast, as most messages are so."""
    return len(content) == 1 and len(content[0]) == 1 and "text" in content[0]


def check_next(previous: Message | None, message: Message) -> None:
    """Errors: `UnpairedTools` unless `message` may follow `previous` (None: it is the first one)."""
    content = message["content"]
    # Most pairs of messages, also in the fold of ten thousand rows.
    if is_one_text(content) and (previous is None or is_one_text(previous["content"])):
        return
    asked = [block["toolUse"]["toolUseId"] for block in previous["content"] if "toolUse" in block] if previous else []
    answered = [block["toolResult"]["toolUseId"] for block in content if "toolResult" in block]
    asks = [block["toolUse"]["toolUseId"] for block in content if "toolUse" in block]
    if asked or answered:
        _check_results(message, asked, answered)
    if asks:
        _check_uses(message, asks)


def _check_results(message: Message, asked: list[str], answered: list[str]) -> None:
    if message["role"] != "user":
        raise UnpairedTools("tool uses are answered by a user message", asked=asked, answered=answered)
    # In any order: tools end in any order, and providers pair them by id.
    if asked != answered and sorted(asked) != sorted(answered):
        missing = sorted(set(asked) - set(answered))
        unexpected = sorted(set(answered) - set(asked))
        raise UnpairedTools("tool results do not answer the tool uses", missing=missing, unexpected=unexpected)


def _check_uses(message: Message, asks: list[str]) -> None:
    if message["role"] != "assistant":
        raise UnpairedTools("tool uses stand in assistant messages only", found=asks)
    if len(asks) > 1 and len(set(asks)) != len(asks):
        raise UnpairedTools("tool use ids repeat within one message", ids=asks)


def check_message(message: object, path: str = "message") -> Message:
    """The same object as a `Message`. Errors: `Invalid` with the path of the fault, which begins with `path`."""
    return cast("Message", _checked(message, message_fault(message, path)))


def check_prompt(messages: Iterable[object], path: str) -> list[Message]:
    """The messages that a caller gives. Errors: `Invalid` with the path of the fault, `UnpairedTools` when the tool
    results of one of them do not answer the tool uses of the one before, and for tool uses in the last one: a tool runs
    when a model has asked for it.
    """
    found: list[Message] = []
    for number, message in enumerate(messages):
        checked = cast("Message", _checked(message, prompt_fault(message, f"{path}[{number}]")))
        if found:
            check_next(found[-1], checked)
        found.append(checked)
    if found and any(tool_uses(found[-1])):
        raise UnpairedTools("the messages end in tool uses, which only a model can ask for")
    return found


def check_messages(messages: Iterable[object], path: str = "messages") -> list[Message]:
    """`check_message` for each of several; `path` is followed by their numbers. An answer without content becomes one
    with an empty text.
    """
    return [check_message(_with_content(message), f"{path}[{number}]") for number, message in enumerate(messages)]


def _with_content(message: object) -> object:
    if not isinstance(message, dict):
        return message
    fields = cast("dict[str, object]", message)
    empty = fields.get("role") == "assistant" and fields.get("content") == []
    return {**fields, "content": [{"text": ""}]} if empty else fields


def check_shape(message: object) -> Message:
    """The same object as a `Message`, blocks unchecked. Errors: as `check_message`.

    A message without content is an empty text: other programs store an answer so in which the model said nothing.
    """
    found = cast("Message", _checked(message, shape_fault(message, "message", stored=True)))
    return found if found["content"] else {**found, "content": [{"text": ""}]}


def repair_stored_message(message: object) -> Message:
    """A stored message, repaired where a block is wrong; the same object when nothing is. Errors: `Invalid` when its
    outer structure is wrong.
    """
    return repair_message(cast("Message", _checked(message, shape_fault(message, "message", stored=True))))


def check_result(result: object) -> ToolResult:
    """The same object as a `ToolResult`. Errors: `Invalid` with the path of the fault."""
    return cast("ToolResult", _checked(result, result_fault(result, "result")))


def read_result(result: object) -> ToolResult:
    """A stored tool result, repaired like a message. Errors: `Invalid` when it is no dictionary."""
    if not isinstance(result, dict):
        raise Invalid(f"result: a dictionary, not {type(result).__name__}")
    return repair_result(cast("Mapping[str, object]", result))


def _checked(value: object, fault: str | None) -> object:
    if fault is not None:
        raise Invalid(fault)
    return value


def repair(messages: Sequence[Message]) -> list[Message]:
    """The history with every tool use answered: orphan results are dropped, missing results become errors.

    Order and everything else stay. A history that keeps the rule comes back equal. Tool uses of the last message stay
    open.
    """
    repaired: list[Message] = []
    for position, message in enumerate(messages):
        asked = [use["toolUseId"] for use in tool_uses(repaired[-1])] if repaired else []
        repaired.extend(_repaired(asked, message, first=position == 0))
    return repaired


def _repaired(asked: list[str], message: Message, *, first: bool) -> list[Message]:
    """The replacement of `message` after one that asked for the tool uses `asked`: one or two messages, or none."""
    if first or not asked:
        return _without_results(message)
    given = {result["toolUseId"]: result for result in tool_results(message)}
    # The count too: a result that stands twice is one entry of the dictionary.
    if message["role"] == "user" and list(given) == asked and len(given) == sum(1 for _ in tool_results(message)):
        return [message]
    blocks: list[ContentBlock] = [
        {"toolResult": given.get(use_id) or error_result(use_id, INTERRUPTED_TEXT)} for use_id in asked
    ]
    others = [block for block in message["content"] if "toolResult" not in block]
    if message["role"] == "user":
        return [{**message, "content": [*blocks, *others]}]
    return [{"role": "user", "content": blocks}, message]


def _without_results(message: Message) -> list[Message]:
    if not any(tool_results(message)):
        return [message]
    others = [block for block in message["content"] if "toolResult" not in block]
    return [{**message, "content": others}] if others else []


# A system prompt: one text, or content blocks with cache points between them.

SystemPrompt: TypeAlias = str | Sequence[SystemContentBlock] | None
"""Text, or blocks such as `{"text": ...}` and `{"cachePoint": {"type": "default"}}`."""


def check_system_prompt(prompt: object) -> SystemPrompt:
    """The same prompt, with its blocks copied. Errors: `Invalid` for anything else."""
    if prompt is None or isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list | tuple):
        blocks = list(cast("Sequence[object]", prompt))
        if all(isinstance(block, Mapping) for block in blocks):
            return cast("Sequence[SystemContentBlock]", deepcopy(blocks))
    raise Invalid("a system prompt is a text or a list of content blocks", got=type(cast("object", prompt)).__name__)


def system_text(prompt: SystemPrompt) -> str | None:
    """All text of the prompt, joined by newlines; None when it has none."""
    if prompt is None or isinstance(prompt, str):
        return prompt
    return "\n".join(str(block["text"]) for block in prompt if "text" in block) or None


def system_blocks(prompt: SystemPrompt) -> Sequence[SystemContentBlock] | None:
    """The blocks; None when the prompt is a text or None."""
    return None if prompt is None or isinstance(prompt, str) else prompt
