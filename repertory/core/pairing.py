"""The pairing rule: each tool use has its result in the very next message.

A history that breaks the rule is refused by every provider, so the rule is asserted where a message is about to be
stored and again where a journal is folded. Histories made elsewhere are mended once, on import, by `repair`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from repertory.core.message_form import mended, mended_result, message_fault, result_fault, shape_fault
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


def check_message(message: object, place: str = "message") -> Message:
    """The same object as a `Message`. Errors: `Invalid`, which says where in `place` it is wrong."""
    return cast("Message", _checked(message, message_fault(message, place)))


def check_messages(messages: Iterable[object], place: str = "messages") -> list[Message]:
    """The same for each of several messages, named by their numbers."""
    return [check_message(message, f"{place}[{number}]") for number, message in enumerate(messages)]


def check_shape(message: object) -> Message:
    """The same object as a `Message` whose blocks may still be of wrong types. Errors: as `check_message`."""
    return cast("Message", _checked(message, shape_fault(message, "message")))


def read_message(message: object) -> Message:
    """A message that is stored already, mended where a block is not what it should be; the same object when nothing is
    wrong. Errors: `Invalid` for what is no message at all.
    """
    return mended(cast("Message", _checked(message, shape_fault(message, "message", stored=True))))


def check_result(result: object) -> ToolResult:
    """The same object as a `ToolResult`. Errors: `Invalid` naming the place of what is wrong."""
    return cast("ToolResult", _checked(result, result_fault(result, "result")))


def read_result(result: object) -> ToolResult:
    """A tool result that is stored already, mended like a message. Errors: `Invalid` for what is no dictionary."""
    if not isinstance(result, dict):
        raise Invalid(f"result: a dictionary, not {type(result).__name__}")
    return mended_result(cast("Mapping[str, object]", result))


def _checked(value: object, fault: str | None) -> object:
    if fault is not None:
        raise Invalid(fault)
    return value


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
