"""The pairing rule: each tool use has its result in the very next message.

A history that breaks the rule is refused by every provider, so the rule is asserted where a message is about to be
stored and again where a journal is folded. Histories made elsewhere are mended once, on import, by `repair`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from repertory.core.depth import MESSAGE_DEPTH_MAX, is_too_deep
from repertory.core.messages import ContentBlock, Message, ToolResult, error_result, tool_results, tool_uses
from repertory.errors import Invalid, UnpairedTools

INTERRUPTED_TEXT = "Tool was interrupted."
"""What a repaired history says of a tool use that has no result."""


def check_next(previous: Message | None, message: Message) -> None:
    """Raise `UnpairedTools` unless `message` may follow `previous` (None: it is the first one)."""
    content = message["content"]
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
    if asked != answered and sorted(asked) != sorted(answered):
        missing = sorted(set(asked) - set(answered))
        unexpected = sorted(set(answered) - set(asked))
        raise UnpairedTools("tool results do not answer the tool uses", missing=missing, unexpected=unexpected)


def _check_uses(message: Message, asks: list[str]) -> None:
    if message["role"] != "assistant":
        raise UnpairedTools("tool uses stand in assistant messages only", found=asks)
    if len(asks) > 1 and len(set(asks)) != len(asks):
        raise UnpairedTools("tool use ids repeat within one message", ids=asks)


def check_message(message: object) -> Message:
    """The same object as a `Message`, or `Invalid` saying what is wrong with its shape."""
    if not isinstance(message, dict):
        raise Invalid("a message is a dictionary", got=type(message).__name__)
    fields = cast("dict[str, object]", message)
    if fields.get("role") not in ("user", "assistant"):
        raise Invalid("a message's role is 'user' or 'assistant'", got=fields.get("role"))
    content = fields.get("content")
    if not isinstance(content, list) or not content:
        raise Invalid("a message's content is a list of at least one content block")
    if not all(map(_is_block, cast("list[object]", content))):
        raise Invalid("a content block is a dictionary such as {'text': ...}", got=repr(cast("object", content))[:200])
    if is_too_deep(fields, MESSAGE_DEPTH_MAX):
        raise Invalid("a message is nested too deeply", depth_max=MESSAGE_DEPTH_MAX)
    return cast("Message", message)


def check_result(result: object) -> ToolResult:
    """The same object as a `ToolResult`, or `Invalid` saying what is wrong with its shape."""
    if not isinstance(result, dict):
        raise Invalid("a tool result is a dictionary", got=type(result).__name__)
    fields = cast("dict[str, object]", result)
    if fields.get("status") not in ("success", "error"):
        raise Invalid("a tool result's status is 'success' or 'error'", got=fields.get("status"))
    content = fields.get("content")
    if not isinstance(content, list) or not all(map(_is_block, cast("list[object]", content))):
        raise Invalid("a tool result's content is a list of content blocks", got=repr(cast("object", content))[:200])
    return cast("ToolResult", result)


def _is_block(value: object) -> bool:
    return isinstance(value, dict) and bool(cast("dict[str, object]", value))


def repair(messages: Sequence[Message]) -> list[Message]:
    """The history with every tool use answered: orphan results dropped, missing results filled with an error.

    Order and everything else stay. A history that keeps the rule comes back equal. The last message may end in tool
    uses: they are open, not broken.
    """
    mended: list[Message] = []
    for position, message in enumerate(messages):
        asked = [use["toolUseId"] for use in tool_uses(mended[-1])] if mended else []
        mended.extend(_mend(asked, message, first=position == 0))
    return mended


def _mend(asked: list[str], message: Message, *, first: bool) -> list[Message]:
    """The message, or the two messages, that take its place after a message that asked for `asked`."""
    if first or not asked:
        return _without_results(message)
    given = {result["toolUseId"]: result for result in tool_results(message)}
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
