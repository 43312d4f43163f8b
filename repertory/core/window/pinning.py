"""Pinned messages: those that stay shown whatever is hidden, as their metadata says (`{"custom": {"pinned": True}}`).

The last answer with a provider's compaction stays too, since it stands for all that was before it. The partner of a
pinned tool use or tool result is pinned with it. Source: the SDK whose users we serve.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import cast

from repertory.core.messages import Message, holds_compaction, tool_results, tool_uses


def is_pinned(messages: Sequence[Message], index: int) -> bool:
    """True if the message there is pinned, or its partner before or behind it."""
    if _marked(messages[index]) or _is_last_compaction(messages, index):
        return True
    neighbours = (at for at in (index - 1, index + 1) if 0 <= at < len(messages))
    return any(_marked(messages[at]) and _partners(messages[at], messages[index]) for at in neighbours)


def pinned_among(messages: Sequence[Message]) -> frozenset[int]:
    """The positions of all pinned messages and their partners."""
    # Asked around every turn: most messages have no metadata of the program's own, and a comprehension costs no calls.
    if not [each for each in messages if "metadata" in each and "custom" in each["metadata"]]:
        return frozenset()
    return frozenset(at for at in range(len(messages)) if is_pinned(messages, at))


def pin_message(messages: MutableSequence[Message], index: int) -> None:
    """Pin the message there: a pinned one stands in its place. For `agent.messages`, or any list."""
    metadata = _metadata(messages[index])
    metadata["custom"] = {**metadata.get("custom", {}), "pinned": True}
    messages[index] = cast("Message", {**messages[index], "metadata": metadata})


def unpin_message(messages: MutableSequence[Message], index: int) -> None:
    """Take the pin away, and no other metadata."""
    metadata = _metadata(messages[index])
    custom = {name: value for name, value in metadata.pop("custom", {}).items() if name != "pinned"}
    metadata |= {"custom": custom} if custom else {}
    rest = {name: value for name, value in messages[index].items() if name != "metadata"}
    messages[index] = cast("Message", rest | ({"metadata": metadata} if metadata else {}))


def _metadata(message: Message) -> dict[str, dict[str, object]]:
    return dict(cast("dict[str, dict[str, object]]", message.get("metadata", {})))


def _marked(message: Message) -> bool:
    return "metadata" in message and message["metadata"].get("custom", {}).get("pinned") is True


def _is_last_compaction(messages: Sequence[Message], index: int) -> bool:
    if not holds_compaction(messages[index]):
        return False
    return not any(holds_compaction(later) for later in messages[index + 1 :])


def _partners(one: Message, other: Message) -> bool:
    return not _tool_ids(one).isdisjoint(_tool_ids(other))


def _tool_ids(message: Message) -> set[str]:
    return {each["toolUseId"] for each in (*tool_uses(message), *tool_results(message))}
