"""Links between the documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.markdown import anchors, documents, links
from tests.source_tree import PACKAGE, ROOT

REQUIRED = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"]


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


def test_every_design_note_is_listed() -> None:
    folder = ROOT / "docs" / "design"
    listed = {path for path, _ in links(folder / "README.md")}
    assert listed == {path.name for path in folder.glob("*.md")} - {"README.md"}


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_places_in_the_code_that_a_document_names_exist(name: str) -> None:
    rooms = "repertory|tests|bench|app|actors|core|backends|runtime"
    named = re.findall(rf"`((?:{rooms})/[\w/.]+)`", (ROOT / name).read_text())
    assert named
    missing = [path for path in named if not (ROOT / path).exists() and not (PACKAGE / path).exists()]
    assert not missing
