"""The pages about providers have every rule of the referees, and every change that a conversation may need."""

from __future__ import annotations

import re

from repertory.testing.referees.services import RULES
from tests.docs import provider_rules
from tests.source_tree import PACKAGE

FITTING = PACKAGE / "backends/models/fitting.py"


def test_the_tables_of_rules_are_those_of_the_referees() -> None:
    text = provider_rules.PAGE.read_text(encoding="utf-8")
    assert text == provider_rules.written(), "run python -m tests.docs.reference"
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == set(RULES)


def test_a_source_is_linked_by_its_repository_and_number_or_by_its_site() -> None:
    assert provider_rules.link("https://github.com/a/b/pull/7") == "[a/b#7](https://github.com/a/b/pull/7)"
    assert provider_rules.link("https://github.com/a/b/tree/main/c") == "[a/b](https://github.com/a/b/tree/main/c)"
    assert provider_rules.link("https://www.example.org/c") == "[example.org](https://www.example.org/c)"


def test_the_page_has_a_row_for_each_change_that_a_log_line_may_name() -> None:
    changes = re.findall(r"self\._changed\(f?\"([^\"]+)\"\)", FITTING.read_text(encoding="utf-8"))
    assert len(changes) > 10
    listed = re.findall(r"^\| `([^`]+)` \|", provider_rules.PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    missing = [
        change
        for change in changes
        if not any(re.fullmatch(re.sub(r"\\\{.*?\\\}", ".+", re.escape(change)), row) for row in listed)
    ]
    assert not missing
