"""The first pages that somebody reads are whole: install, tutorial, concepts."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.markdown import links
from tests.source_tree import ROOT

FOLDERS = ["start", "tutorial", "concepts"]
CONCEPTS = sorted(path for path in (ROOT / "docs/concepts").glob("*.md") if path.name != "index.md")
STEPS = sorted(path for path in (ROOT / "docs/tutorial").glob("*.md") if path.name != "index.md")


def test_install_lists_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/start/install.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(extras)


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_index_leads_to_every_page_of_its_folder(folder: str) -> None:
    index = ROOT / "docs" / folder / "index.md"
    assert {path.name for path in index.parent.glob("*.md")} - {"index.md"} <= {path for path, _ in links(index)}


def test_the_tutorial_has_nine_steps() -> None:
    assert [path.name[:2] for path in STEPS] == [f"{number}-" for number in range(1, 10)]


@pytest.mark.parametrize(("step", "following"), list(pairwise(STEPS)), ids=lambda path: path.stem)
def test_a_step_leads_to_the_next_one_which_takes_its_files(step: Path, following: Path) -> None:
    assert following.name in {path for path, _ in links(step)}
    assert f"<!-- files of: {step.name} -->" in following.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", CONCEPTS, ids=lambda path: path.stem)
def test_a_concept_has_one_picture_whose_title_is_its_description(page: Path) -> None:
    shown = re.findall(r"^!\[([^\]]+)\]\(\.\./pictures/([\w-]+\.svg)\)$", page.read_text(), re.MULTILINE)
    assert len(shown) == 1
    [(description, name)] = shown
    drawing = ElementTree.fromstring((ROOT / "docs/pictures" / name).read_text(encoding="utf-8"))
    assert drawing.findtext("{http://www.w3.org/2000/svg}title") == description
