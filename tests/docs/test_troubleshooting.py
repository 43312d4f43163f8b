"""The troubleshooting page has an entry for every error class, and each entry says the same three things."""

from __future__ import annotations

import re

import pytest

from repertory import errors
from tests.source_tree import ROOT

PAGE = (ROOT / "docs/troubleshooting/errors.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
PARTS = ("**What happened:** ", "**What was kept:** ", "**What to do:** ")


def test_every_error_class_has_one_entry() -> None:
    assert set(ENTRIES) == set(errors.__all__)
    assert len(re.findall(r"^### ", PAGE, re.MULTILINE)) == len(ENTRIES)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_an_entry_says_what_happened_what_was_kept_and_what_to_do(name: str) -> None:
    paragraphs = [paragraph.strip() for paragraph in ENTRIES[name].strip().split("\n\n")]
    assert len(paragraphs) == len(PARTS)
    for paragraph, part in zip(paragraphs, PARTS, strict=True):
        assert paragraph.startswith(part)
        assert len(paragraph) > len(part) + 10


def test_an_entry_stands_below_the_base_class_that_says_the_next_move() -> None:
    """A class that has two such bases may stand below either."""
    groups = (errors.Retryable, errors.Conflict, errors.Gone, errors.Invalid, errors.Failed, errors.Corrupt)
    bases = (*groups, errors.LimitReached)
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        names = re.findall(r"^### `(\w+)`", section, re.MULTILINE)
        own = [base for base in bases if base.__name__ in names]
        if own:
            assert all(issubclass(getattr(errors, name), own[0]) for name in names), section.partition("\n")[0]
