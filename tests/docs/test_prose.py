"""The English of what users read keeps the rules of `tests/docs/prose.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import documents
from tests.docs.prose import findings, sentences
from tests.source_tree import PACKAGE, ROOT, read

NOTES = ROOT / "docs/design"
WORDS_OF_THE_SDK = ("Please provide", "Please ensure", "Please fix", "via tool_spec")
"""In messages that are those of the Strands Agents SDK, word for word, for programs that look for them."""
PAGES = [page for page in documents() if page.parent != NOTES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sentences_of_a_page_are_short_and_plain(page: Path) -> None:
    found = list(findings(page.read_text(encoding="utf-8")))
    assert not found, "\n" + "\n".join(found)


def _messages() -> Iterator[tuple[str, str]]:
    """Every text of the package with which an error is raised, and every text of the command line's help."""
    for file in read(PACKAGE):
        for node in file.nodes:
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                yield file.at(node), _text(node.exc.args[0])
            elif isinstance(node, ast.Call):
                for keyword in node.keywords:
                    if keyword.arg in {"help", "description", "about"} and file.name.startswith("repertory/console"):
                        yield file.at(node), _text(keyword.value)


def _text(node: ast.expr) -> str:
    """The text of a string, with a word for each value in it; empty for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = enumerate(node.values)
        return "".join(_text(part) if isinstance(part, ast.Constant) else f"value{number}" for number, part in parts)
    return ""


def test_messages_of_errors_and_helps_are_short_and_plain() -> None:
    found = [
        f"{place}: {finding}"
        for place, text in _messages()
        if not any(words in text for words in WORDS_OF_THE_SDK)
        for finding in findings(text)
        if "no subject" not in finding
    ]
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
