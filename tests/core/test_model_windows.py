"""Windows of known models are found however the model is named."""

from __future__ import annotations

import pytest

from repertory.core.tokens import window_of


@pytest.mark.parametrize(
    ("model_id", "tokens"),
    [
        ("anthropic.claude-sonnet-4-6-v1:0", 1_000_000),
        ("anthropic.claude-sonnet-4-20250514-v1:0", 1_000_000),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 200_000),
        ("global.anthropic.claude-haiku-4-5-20251001-v1:0", 200_000),
        ("anthropic.claude-haiku-4-5@20251001", 200_000),
        ("anthropic.claude-opus-4-6-v1", 1_000_000),
        ("anthropic.claude-3-5-sonnet-20241022-v2:0:200k", 200_000),
        ("arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-opus-5", 1_000_000),
        ("claude-opus-4-1-20250805", 200_000),
        ("claude-3-5-haiku-latest", 200_000),
        ("amazon.nova-micro-v1:0", 128_000),
        ("us.amazon.nova-2-pro-preview-20251202-v1:0", 1_000_000),
        ("gpt-5.4", 1_050_000),
        ("openai/gpt-4o-2024-08-06", 128_000),
        ("GPT-5.4-mini", 272_000),
        ("models/gemini-2.5-pro", 1_048_576),
        ("mistral-large-latest", 262_144),
        ("mistral-medium-2505", 131_072),
        ("mistral-small-3-2-2506", 131_072),
        ("zai.glm-4.7-flash", 203_000),
        ("o3", 200_000),
    ],
)
def test_a_known_model_is_found_by_any_of_its_names(model_id: str, tokens: int) -> None:
    assert window_of(model_id) == tokens


@pytest.mark.parametrize(
    "model_id",
    ["", ".", "/", ":", "-v1:0", "gpt-5.99", "claude-sonnet-9", "my-claude-opus-5", "llama3", "o", "gpt-4o-mini-mine"],
)
def test_a_model_that_is_not_known_is_not_guessed_at(model_id: str) -> None:
    assert window_of(model_id) is None
