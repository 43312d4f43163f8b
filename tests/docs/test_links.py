"""Links between the documents lead somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import anchors, documents, links
from tests.source_tree import ROOT

REQUIRED = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"]


@pytest.mark.parametrize("name", REQUIRED)
def test_the_project_has_the_document(name: str) -> None:
    assert (ROOT / name).is_file()


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings_that_exist(document: Path) -> None:
    for path, anchor in links(document):
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{document.name} links to {path}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{document.name} links to {path}#{anchor}"
