"""Estimates of tokens: the documented heuristic, and what it leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.core.messages import ContentBlock, Message
from repertory.core.tokens import IMAGE_TOKENS, PAGE_TOKENS, estimate_tokens, projected_tokens

IMAGE: ContentBlock = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}


def said(*blocks: ContentBlock) -> list[Message]:
    return [{"role": "user", "content": list(blocks)}]


def document(kind: str, **source: Any) -> ContentBlock:
    return {"document": {"format": kind, "name": "d", "source": source}}


@pytest.mark.parametrize(
    ("block", "tokens"),
    [
        ({"text": "a" * 9}, 3),
        ({"text": ""}, 0),
        ({"text": "你好世界"}, 3),
        ({"text": "\udcff"}, 1),
        ({"toolUse": {"toolUseId": "t", "name": "name", "input": {"a": 1}}}, 1 + 4),
        ({"toolResult": {"toolUseId": "t", "status": "success", "content": [{"text": "a" * 8}, {"json": [1]}]}}, 2 + 2),
        ({"toolResult": {"toolUseId": "t", "status": "success", "content": [IMAGE]}}, IMAGE_TOKENS),
        ({"reasoningContent": {"reasoningText": {"text": "a" * 8}}}, 2),
        ({"guardContent": {"text": {"text": "a" * 8}}}, 2),
        (IMAGE, IMAGE_TOKENS),
        ({"audio": {"format": "mp3", "source": {"bytes": bytes(1_001)}}}, 3),
        ({"providerContent": {"provider": "p", "content": {"type": "compaction", "data": b"ab"}}}, 10),
        (document("txt", bytes=b"a" * 4_000), 1_000),
        (document("txt", text="a" * 400), 100),
        (document("pdf", bytes=b"%PDF"), PAGE_TOKENS),
        (document("pdf", bytes=bytes(60_000)), 3 * PAGE_TOKENS),
        (document("pdf", location={"s3Location": {"uri": "s3://b/k"}}), PAGE_TOKENS),
        ({"document": {"name": "d"}}, PAGE_TOKENS),
        ({"cachePoint": {"type": "default"}}, 0),
    ],
)
def test_every_kind_of_block_counts(block: ContentBlock, tokens: int) -> None:
    assert estimate_tokens(said(block)) == tokens


def test_what_is_sent_beside_the_messages_counts() -> None:
    spec: Any = {"name": "n", "description": "d", "inputSchema": {"json": {}}}
    assert estimate_tokens((), None, "a" * 8) == 2
    assert estimate_tokens((), [spec]) > 10


@pytest.mark.parametrize("reported", [{"inputTokens": 70, "totalTokens": 100}, {"inputTokens": 80, "totalTokens": 100}])
def test_the_last_usage_is_the_baseline_and_only_what_came_since_is_estimated(reported: Any) -> None:
    # A provider reports cached tokens apart, or within its input tokens.
    usage: Any = {"outputTokens": 20, "cacheReadInputTokens": 10, **reported}
    answer: Message = {
        "role": "assistant",
        "content": [{"text": "x" * 4_000}],
        "metadata": {"usage": usage},
    }
    assert projected_tokens([*said({"text": "a" * 400}), answer, *said({"text": "a" * 8})]) == 100 + 2
    assert projected_tokens(said({"text": "a" * 400}), None, "a" * 8) == 102
