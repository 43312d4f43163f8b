"""The trees drawn in ARCHITECTURE.md are those on the disk.

A drawing is a fenced block marked `<!-- tree -->`. Each line has a name, indented by its depth, and after two spaces
what it is for; a folder's name ends in a slash. A folder without lines below it stands for all that it holds.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.markdown import blocks
from tests.source_tree import PACKAGE, ROOT

_LINE = re.compile(r"^(?P<indent> *)(?:[|`+├└│─\- ]*)(?P<name>[\w.\-/]+/?)(?:\s{2,}.*)?$")


def _drawn(text: str) -> dict[str, set[str]]:
    """Every path of a drawing with the names drawn directly below it; the root of the drawing is the empty path."""
    below: dict[str, set[str]] = {"": set()}
    open_folders: list[tuple[int, str]] = [(-1, "")]
    for line in filter(str.strip, text.splitlines()):
        match = _LINE.match(line)
        assert match, f"not a line of a tree: {line!r}"
        depth = match.start("name")
        while open_folders[-1][0] >= depth:
            open_folders.pop()
        parent = open_folders[-1][1]
        path = f"{parent}{match['name']}"
        below[parent].add(match["name"])
        below[path] = set()
        if path.endswith("/"):
            open_folders.append((depth, path))
    return below


def _on_disk(folder: Path) -> set[str]:
    """The modules and packages in a folder, as a drawing names them."""
    modules = {path.name for path in folder.glob("*.py") if path.name != "__init__.py"}
    packages = {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    return modules | packages


def _trees() -> list[dict[str, set[str]]]:
    """Every drawing in ARCHITECTURE.md."""
    found = [block for block in blocks(ROOT / "ARCHITECTURE.md") if block.mark == "tree"]
    return [_drawn(block.text) for block in found]


def test_everything_that_is_drawn_exists() -> None:
    assert _trees(), "ARCHITECTURE.md draws no tree"
    missing = [path for tree in _trees() for path in tree if not (ROOT / path).exists()]
    assert not missing


def test_a_folder_of_the_package_that_is_drawn_open_is_drawn_whole() -> None:
    for tree in _trees():
        for path, names in tree.items():
            folder = ROOT / path
            if names and PACKAGE in (folder, *folder.parents):
                drawn = {name for name in names if name.endswith((".py", "/"))} - {"__init__.py"}
                assert drawn == _on_disk(folder), path


def test_every_room_is_drawn() -> None:
    drawn = {path for tree in _trees() for path in tree}
    rooms = {f"repertory/{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    assert rooms <= drawn
