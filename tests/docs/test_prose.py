"""The English of what users read keeps the rules of `tests/docs/prose.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import documents
from tests.docs.prose import findings, sentences
from tests.source_tree import ROOT

NOTES = ROOT / "docs/design"
PAGES = [page for page in documents() if page.parent != NOTES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sentences_of_a_page_are_short_and_plain(page: Path) -> None:
    found = list(findings(page.read_text(encoding="utf-8")))
    assert not found, "\n" + "\n".join(found)


def test_what_the_rules_find() -> None:
    text = "It is *simply* there. Whether it holds. See [the page](x.md) of `a b c`.\n\n- What a tool gets.\n"
    text += "\n```text\njust\n```\n"
    assert [sentence.text for sentence in sentences(text)] == [
        "It is simply there.",
        "Whether it holds.",
        "See the page of Code.",
        "What a tool gets.",
    ]
    assert [finding.partition(":")[0] for finding in findings(text)] == ["'simply' (leave it out)", "no subject"]
    assert list(findings("one two " * 18))
    assert not list(findings("one two " * 17))
    assert list(findings("One two three four five six seven eight nine ten eleven twelve a b c d. " * 5))
