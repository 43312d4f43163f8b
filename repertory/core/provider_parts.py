"""Parts of answers that only their provider can read, in the documents that other programs read too.

    {"providerContent": {"provider", "content"}}                                 in our journal
    {"text": TEXT, "repertory": DIGEST, "providerContent": {...}}                in a document

Other programs refuse a kind of block that they do not know. They take a block with a text, and pass over its further
keys. The digest is that of the text: it proves that nobody has changed the text, also to a later release that would
write another one. A part whose text was changed is that text from then on.

Every other block is the same in a document. Source: the model providers of strands-agents 1.62.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias, cast

from repertory.core.provider_content import text_for_others

if TYPE_CHECKING:
    from repertory.core.messages import Message

UNREADABLE_TEXT = "(A part of this answer that only its provider can read.)"
"""The text of a part that has no words for others."""
_PART = "providerContent"
_TEXT = "text"
_MARK = "repertory"
_SUMMARY = "summary_message"
_MANAGER = "conversation_manager_state"
_Change: TypeAlias = "Callable[[object], object]"
_ChangeManager: TypeAlias = "Callable[[Mapping[str, object]], Mapping[str, object]]"


def for_others(message: Message) -> Message:
    """The message as documents have it; the same object when it has no such part."""
    if not any(_PART in block for block in message["content"]):
        return message
    return cast("Message", {**message, "content": [_documented(block) for block in message["content"]]})


def with_texts_of_parts(message: Message) -> Message:
    """The message as documents have it beside a journal, which keeps such parts: each is its text alone. The same
    object when it has no such part.
    """
    if not any(_PART in block for block in message["content"]):
        return message
    return cast("Message", {**message, "content": [_text_of_part(block) for block in message["content"]]})


def as_ours(message: Message) -> Message:
    """The message from a document, of which the outer structure was checked; the same object when it has no such
    part.
    """
    content = cast("list[object]", message["content"])
    if not any(isinstance(block, dict) and _PART in block for block in content):
        return message
    return cast("Message", {**message, "content": [_undocumented(block) for block in content]})


def as_ours_if_message(value: object) -> object:
    """The same for a value that may be no message, which then stays as it is."""
    return as_ours(cast("Message", value)) if _is_message(value) else value


def manager_for_others(state: Mapping[str, object]) -> Mapping[str, object]:
    """The state of a conversation manager as documents have it: its summary is a message."""
    return _with_summary(state, _each_for_others)


def manager_with_texts(state: Mapping[str, object]) -> Mapping[str, object]:
    """The state of a conversation manager as documents have it beside a journal."""
    return _with_summary(
        state, lambda value: with_texts_of_parts(cast("Message", value)) if _is_message(value) else value
    )


def manager_as_ours(state: Mapping[str, object]) -> Mapping[str, object]:
    """The state of a conversation manager from a document."""
    return _with_summary(state, as_ours_if_message)


def agent_for_others(data: Mapping[str, object]) -> Mapping[str, object]:
    """The fields of an agent's snapshot as documents have them."""
    return _with_messages(data, _each_for_others, manager_for_others)


def agent_as_ours(data: Mapping[str, object]) -> Mapping[str, object]:
    """The fields of an agent's snapshot from a document."""
    return _with_messages(data, as_ours_if_message, manager_as_ours)


def _documented(block: Mapping[str, object]) -> Mapping[str, object]:
    content = _content_of(block)
    if content is None or _TEXT in block or _MARK in block:
        return block
    text = text_for_others(content) or UNREADABLE_TEXT
    return {_TEXT: text, _MARK: _digest(text), **block}


def _text_of_part(block: Mapping[str, object]) -> Mapping[str, object]:
    documented = _documented(block)
    return block if documented is block else {_TEXT: documented[_TEXT]}


def _undocumented(value: object) -> object:
    if not isinstance(value, dict):
        return value
    block = cast("dict[str, object]", value)
    text, mark = block.get(_TEXT), block.get(_MARK)
    if not (_PART in block and isinstance(text, str) and isinstance(mark, str)):
        return block
    if mark != _digest(text) or _content_of(block) is None:
        return {_TEXT: text}
    return {name: item for name, item in block.items() if name not in (_TEXT, _MARK)}


def _content_of(block: Mapping[str, object]) -> Mapping[str, object] | None:
    """The provider's own JSON in a well-formed part."""
    part = block.get(_PART)
    if not isinstance(part, dict):
        return None
    fields = cast("dict[str, object]", part)
    provider, content = fields.get("provider"), fields.get("content")
    if not (isinstance(provider, str) and provider and isinstance(content, dict)):
        return None
    return cast("dict[str, object]", content)


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _each_for_others(value: object) -> object:
    return for_others(cast("Message", value)) if _is_message(value) else value


def _is_message(value: object) -> bool:
    content = cast("dict[str, object]", value).get("content") if isinstance(value, dict) else None
    return isinstance(content, list) and all(isinstance(block, dict) for block in cast("list[object]", content))


def _with_summary(state: Mapping[str, object], change: _Change) -> Mapping[str, object]:
    found = state.get(_SUMMARY)
    made = change(found)
    return state if made is found else {**state, _SUMMARY: made}


def _with_messages(data: Mapping[str, object], change: _Change, change_manager: _ChangeManager) -> Mapping[str, object]:
    messages, manager = data.get("messages"), data.get(_MANAGER)
    changed = dict(data)
    if isinstance(messages, list | tuple):
        changed["messages"] = [change(each) for each in cast("list[object]", messages)]
    if isinstance(manager, dict):
        changed[_MANAGER] = change_manager(cast("dict[str, object]", manager))
    return changed
