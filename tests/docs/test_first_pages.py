"""The first pages that somebody reads are whole: install, tutorial, concepts."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.docs.markdown import links
from tests.source_tree import ROOT

FOLDERS = ["start", "tutorial", "concepts"]


def test_install_lists_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/start/install.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(extras)


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_index_leads_to_every_page_of_its_folder(folder: str) -> None:
    index = ROOT / "docs" / folder / "index.md"
    assert {path.name for path in index.parent.glob("*.md")} - {"index.md"} <= {path for path, _ in links(index)}
