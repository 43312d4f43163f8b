"""The reference of the API: every public name is on one page, and no entry is empty.

`python -m tests.docs.reference` writes the tables of the pages and the index anew.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.docs import reference


def test_every_public_name_is_on_exactly_one_page() -> None:
    counted = Counter(name for page in reference.pages() for name in reference.shown(page))
    assert not [name for name, count in counted.items() if count > 1]
    assert set(counted) == set(reference.public_names())


@pytest.mark.parametrize("page", reference.pages(), ids=lambda page: page.stem)
def test_the_table_of_a_page_has_the_first_lines_of_its_names(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == reference.written(page), "run python -m tests.docs.reference"


def test_the_index_lists_every_name() -> None:
    assert reference.INDEX.read_text(encoding="utf-8") == reference.written_index(), (
        "run python -m tests.docs.reference"
    )


@pytest.mark.parametrize("page", reference.pages(), ids=lambda page: page.stem)
def test_no_entry_of_a_page_lacks_anything(page: Path) -> None:
    lacking = [line for name in reference.shown(page) for line in reference.lacks(name, page)]
    assert not lacking, "\n" + "\n".join(lacking)
