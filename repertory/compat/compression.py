"""Functions of the SDK with which its programs shorten conversations by hand. Managers here decide by plans."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from typing import Literal, cast

from repertory.backends.ports import Model, gated_stream
from repertory.core.answer import Assembler
from repertory.core.messages import ContentBlock, Message, for_model, tool_results, tool_uses
from repertory.core.window.decision import SUMMARY_PROMPT
from repertory.core.window.pinning import is_pinned, pin_message
from repertory.errors import ContextWindowOverflowException, ModelFailed

MessageType = Literal["tools", "messages", "all"]
_ASK = "Summarize the conversation above."


def adjust_split_point_for_tool_pairs(messages: Sequence[Message], split_point: int) -> int:
    """The first place from `split_point` on where a list may be cut: no tool result begins it, and a tool use only with
    its result behind it. The end of the list is such a place.

    Errors: `ContextWindowOverflowException` when there is none, or the point is behind the end.
    """
    if split_point > len(messages):
        raise ContextWindowOverflowException("Split point exceeds message array length")
    if split_point == len(messages):
        return split_point
    for index in range(split_point, len(messages)):
        if any(tool_results(messages[index])):
            continue
        last = index + 1 == len(messages)
        if last or not any(tool_uses(messages[index])) or any(tool_results(messages[index + 1])):
            return index
    raise ContextWindowOverflowException("Unable to trim conversation context!")


def find_valid_trim_point(messages: Sequence[Message], start_index: int) -> int:
    """The place of the first prompt of a user from there on; the length of the list when there is none."""
    prompts = (
        index
        for index in range(start_index, len(messages))
        if messages[index]["role"] == "user" and not any(tool_results(messages[index]))
    )
    return next(prompts, len(messages))


def matches_message_type(message: Message, filter: MessageType) -> bool:
    """True for `all`; for `tools` if the message holds a tool use or result, for `messages` if it holds none."""
    holds_tools = any(tool_uses(message)) or any(tool_results(message))
    return filter == "all" or holds_tools == (filter == "tools")


async def generate_summary(
    messages_to_summarize: Sequence[Message], model: Model, system_prompt: str | None = None
) -> Message:
    """A model's summary of the messages, as a user's message. Errors: those of the model."""
    asked: list[Message] = [*messages_to_summarize, {"role": "user", "content": [{"text": _ASK}]}]
    assembler = Assembler()
    async for event in gated_stream(model)(for_model(asked), None, system_prompt=system_prompt or SUMMARY_PROMPT):
        assembler.feed(event)
    return as_user_summary(assembler.finish().message)


def as_user_summary(message: Message) -> Message:
    """The text of an answer, cited text too, as a user's message. Errors: `ModelFailed` when there is none."""
    parts: list[Mapping[str, object]] = []
    for block in message["content"]:
        cited = block["citationsContent"].get("content") if "citationsContent" in block else None
        parts += [block, *cast("Sequence[Mapping[str, object]]", cited or ())]
    texts = [str(part.get("text", "")) for part in parts]
    if not any(map(str.strip, texts)):
        raise ModelFailed("the summary has no text")
    content: list[ContentBlock] = [{"text": text} for text in texts if text.strip()]
    return {"role": "user", "content": content}


def apply_pin_first(messages: MutableSequence[Message], count: int) -> None:
    """Pin the first messages."""
    for index in range(min(count, len(messages))):
        pin_message(messages, index)


def partition_pinned(messages: Sequence[Message], start: int, end: int) -> tuple[list[Message], list[Message]]:
    """The messages from `start` to before `end`: the pinned ones, and the others."""
    pinned = [messages[index] for index in range(start, end) if is_pinned(messages, index)]
    return pinned, [messages[index] for index in range(start, end) if not is_pinned(messages, index)]
