"""A conversation whose answers have parts that only their provider can read."""

from __future__ import annotations

from typing import Any

from repertory.core.provider_parts import UNREADABLE_TEXT

PICTURE = b"\x89PNG\r\n\x00\x02"


def part(content: dict[str, Any], provider: str = "anthropic") -> dict[str, Any]:
    return {"providerContent": {"provider": provider, "content": content}}


SEARCHED = part({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "weather"}})
FOUND = part(
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [{"type": "web_search_result", "title": "Rain", "encrypted_content": "EqgfCioIARgB"}],
    }
)
DRAWN = part({"inlineThing": {"data": b"\x00\x01"}, "twice": {"__bytes_encoded__": True, "data": "?"}}, "gemini")
THOUGHT = {
    "reasoningContent": {"reasoningText": {"text": "Let me look.", "signature": "EqQB"}, "provider": "anthropic"}
}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": [{"text": "What is the weather?"}]},
    {"role": "assistant", "content": [THOUGHT, SEARCHED, FOUND, {"text": "It rains."}]},
    {"role": "user", "content": [{"text": "Draw it, and add 1 and 2."}]},
    {
        "role": "assistant",
        "content": [
            {"text": "Here."},
            {"image": {"format": "png", "source": {"bytes": PICTURE}}},
            DRAWN,
            {"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1, "b": 2}}},
        ],
    },
    {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"text": "3"}]}}]},
    {"role": "assistant", "content": [{"text": "And it is 3."}, part({"type": "compaction", "content": None})]},
]
WORDS = [
    '(The provider ran its tool web_search: {"query": "weather"})',
    UNREADABLE_TEXT,
    UNREADABLE_TEXT,
    UNREADABLE_TEXT,
]
"""What others read in the place of the parts, in order."""


def texts(messages: Any) -> list[list[str]]:
    """The texts of each message."""
    return [[block["text"] for block in message["content"] if "text" in block] for message in messages]
