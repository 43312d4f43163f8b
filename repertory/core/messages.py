"""Messages and content blocks as the Converse API spells them, which is how users read and write them.

These are the wire's dictionaries with types. Nothing in the project edits a message after it was made:
a change is a new message. Reading helpers live here; the pairing rule lives in `pairing.py`.

Source: Amazon Bedrock API reference, `Message` and `ContentBlock`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NotRequired, TypeAlias, TypedDict, cast

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A value that JSON can say exactly."""

Role = Literal["user", "assistant"]
ToolStatus = Literal["success", "error"]


class ToolUse(TypedDict):
    """The model asks for a tool. `input` is whatever JSON the model produced."""

    toolUseId: str
    name: str
    input: Json


class ToolResult(TypedDict):
    """What a tool answered. Each element of `content` is one of `{"text"}`, `{"json"}`, `{"image"}`, `{"document"}`."""

    toolUseId: str
    status: ToolStatus
    content: list[dict[str, object]]


class ContentBlock(TypedDict, total=False):
    """One piece of a message: exactly one of these keys is present."""

    text: str
    toolUse: ToolUse
    toolResult: ToolResult
    image: Mapping[str, object]
    document: Mapping[str, object]
    video: Mapping[str, object]
    reasoningContent: Mapping[str, object]
    guardContent: Mapping[str, object]
    citationsContent: Mapping[str, object]
    cachePoint: Mapping[str, object]


class Usage(TypedDict):
    """Token counts of one model call."""

    inputTokens: int
    outputTokens: int
    totalTokens: int
    cacheReadInputTokens: NotRequired[int]
    cacheWriteInputTokens: NotRequired[int]


class Metadata(TypedDict, total=False):
    """What we remember beside a message. Never sent to a model."""

    usage: Usage
    metrics: dict[str, float]
    custom: dict[str, Json]


class Message(TypedDict):
    """One message. `metadata` and `tracking_id` are ours and are stripped before a model sees the message."""

    role: Role
    content: list[ContentBlock]
    metadata: NotRequired[Metadata]
    tracking_id: NotRequired[str]


class ToolSpec(TypedDict):
    """A tool as the model is told of it. `inputSchema` is `{"json": <JSON schema>}`."""

    name: str
    description: str
    inputSchema: Mapping[str, object]


Prompt: TypeAlias = "str | Sequence[ContentBlock] | Sequence[Message] | None"
"""What a caller may say: text, content blocks, whole messages, or None to go on where the conversation stands."""


NO_ANSWER_TEXT = "(This message was not answered: the turn ended early.)"
"""What stands where a turn has no answer, so that the next prompt may follow."""
LOST_TEXT = "(This message was lost.)"
"""What stands where a stored message cannot be read any more."""


def is_filler(message: Message) -> bool:
    """Whether this stands in the place of an answer that is not there."""
    content = message["content"]
    return (
        message["role"] == "assistant" and len(content) == 1 and content[0].get("text") in (NO_ANSWER_TEXT, LOST_TEXT)
    )


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


def text_of(message: Message) -> str:
    """The text blocks of a message, joined by newlines; empty when it has none."""
    return "\n".join(block["text"] for block in message["content"] if "text" in block)


def copy_message(message: Message) -> Message:
    """A copy that shares nothing that can be edited with the original."""
    return cast("Message", copy_json(cast("Json", message)))


def copy_use(use: ToolUse) -> ToolUse:
    """The same for a tool use."""
    return cast("ToolUse", copy_json(cast("Json", use)))


def copy_result(result: ToolResult) -> ToolResult:
    """The same for a tool result."""
    return cast("ToolResult", copy_json(cast("Json", result)))


def error_result(tool_use_id: str, text: str) -> ToolResult:
    """A tool result that tells the model what went wrong."""
    return {"toolUseId": tool_use_id, "status": "error", "content": [{"text": text}]}


def copy_json(value: Json) -> Json:
    """Messages are dictionaries and lists all the way down, so this is several times quicker than `copy.deepcopy`.
    Tuples become lists; anything else is kept as it is.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copy_json(item) for item in value]
    return value
