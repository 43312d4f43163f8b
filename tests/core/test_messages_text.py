"""The text of a message: newlines stand between blocks, and none within a sentence with sources."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.core.messages import text_of
from repertory.core.window.pinning import pinned_among
from repertory.core.window.sliding import SlidingWindow
from repertory.core.window.transcript import transcript


def cited(text: str) -> dict[str, Any]:
    return {"citationsContent": {"content": [{"text": text}], "citations": [{"title": "T"}]}}


SEARCH = {"providerContent": {"provider": "anthropic", "content": {"type": "server_tool_use", "id": "s"}}}


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([{"text": "a"}, {"text": "b"}], "a\nb"),
        ([{"text": "Rye "}, cited("costs 4"), {"text": "."}], "Rye costs 4."),
        ([cited("One."), cited(" Two.")], "One. Two."),
        ([{"text": "I look."}, SEARCH, cited("It rains.")], "I look.\nIt rains."),
        ([{"text": "so"}, cited("cited")], "so\ncited"),
        ([{"text": "麦は"}, cited("四ドル"), {"text": "です"}], "麦は四ドルです"),
        ([{"text": ""}, cited("One"), {"text": ""}, cited(" two")], "One two"),
        ([SEARCH], ""),
        ([], ""),
    ],
)
def test_a_sentence_with_sources_is_one_text(blocks: Any, text: str) -> None:
    assert text_of({"role": "assistant", "content": blocks}) == text


def test_a_summary_is_made_of_words_with_sources_too() -> None:
    message: Any = {"role": "assistant", "content": [{"text": "Rye "}, cited("costs 4")]}
    assert "costs 4" in transcript([message], 500)


def test_the_last_compaction_stays_shown_whatever_the_window_hides() -> None:
    """It stands for all that was said before it."""

    def compacted(words: str) -> Any:
        block = {"providerContent": {"provider": "anthropic", "content": {"type": "compaction", "content": words}}}
        content = [block, {"text": "ok"}]
        return {"role": "assistant", "content": content, "metadata": {"custom": {"compaction": True}}}

    shown: list[Any] = [
        {"role": "user" if at % 2 == 0 else "assistant", "content": [{"text": "x"}]} for at in range(20)
    ]
    shown[1], shown[5] = compacted("old"), compacted("new")
    assert pinned_among(shown) == {5}
    assert SlidingWindow(window_size=4).manage(shown).pinned == (5,)
