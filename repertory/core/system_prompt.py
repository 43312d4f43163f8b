"""A system prompt in its two forms: one text, or content blocks with cache marks between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TypeAlias, cast

from repertory.errors import Invalid

SystemPrompt: TypeAlias = "str | Sequence[Mapping[str, object]] | None"
"""Text, or blocks such as `{"text": ...}` and `{"cachePoint": {"type": "default"}}`."""


def check_system_prompt(prompt: object) -> SystemPrompt:
    """The same prompt, blocks copied, or `Invalid` saying what it should be."""
    if prompt is None or isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list | tuple):
        blocks = list(cast("Sequence[object]", prompt))
        if all(isinstance(block, Mapping) for block in blocks):
            return cast("Sequence[Mapping[str, object]]", deepcopy(blocks))
    raise Invalid("a system prompt is a text or a list of content blocks", got=type(cast("object", prompt)).__name__)


def system_text(prompt: SystemPrompt) -> str | None:
    """All of its text; None when there is none."""
    if prompt is None or isinstance(prompt, str):
        return prompt
    return "\n".join(str(block["text"]) for block in prompt if "text" in block) or None


def system_blocks(prompt: SystemPrompt) -> Sequence[Mapping[str, object]] | None:
    """The blocks, when it was given as blocks."""
    return None if prompt is None or isinstance(prompt, str) else prompt
