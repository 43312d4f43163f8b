"""Prompts as parts of A2A messages and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.media import DOCUMENTS, IMAGES
from repertory.errors import Invalid
from repertory.service.decisions.a2a_parts import parts_of, prompt_of

NAMES = st.text("abc XYZ09-_", min_size=1).map(str.strip).filter(lambda name: bool(name) and "  " not in name)
TEXTS = st.text(min_size=1).filter(lambda text: bool(text.strip())).map(lambda text: {"text": text})


def media(kind: str, form: st.SearchStrategy[str], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    source = st.fixed_dictionaries({"bytes": st.binary()})
    return st.fixed_dictionaries({kind: st.fixed_dictionaries({"format": form, "source": source, **more})})


BLOCKS = st.one_of(
    TEXTS,
    media("image", st.sampled_from(sorted({*IMAGES.values()}))),
    media("video", st.sampled_from(["mp4", "three_gp", "mov", "wmv", "mkv"])),
    media("document", st.sampled_from(sorted(DOCUMENTS.values())), name=NAMES),
)


@given(st.lists(BLOCKS, min_size=1))
def test_blocks_that_are_sent_as_parts_are_read_as_the_same_blocks(blocks: list[Any]) -> None:
    assert prompt_of(parts_of(blocks)) == blocks


def test_of_messages_the_last_one_of_the_user_is_sent() -> None:
    said = [
        {"role": role, "content": [{"text": text}]} for role, text in (("user", "a"), ("user", "b"), ("assistant", "c"))
    ]
    assert parts_of(said) == [{"kind": "text", "text": "b"}] == parts_of("b")


@pytest.mark.parametrize("prompt", [[], [{"toolUse": {}}], [{"image": {"format": "png", "source": {"location": {}}}}]])
def test_a_prompt_with_nothing_that_can_be_sent_is_refused(prompt: Any) -> None:
    with pytest.raises(Invalid):
        parts_of(prompt)
