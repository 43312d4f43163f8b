"""The tools on the files of one folder: bounded answers, edits that a second run does not repeat, and no way out."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from repertory import Agent, ScriptedModel
from repertory.errors import Invalid, NotFound
from repertory.toolbox.workspace import ANSWER_CHARS, Workspace, workspace_tools

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("x = 1\ny = 2\nz = 3\n")
    (tmp_path / "note.md").write_text("Say y.\n")
    (tmp_path / ".env").write_text("SECRET=y\n")
    (tmp_path / ".git" / "hooks").mkdir(parents=True)
    return tmp_path


async def call(root: Path, name: str, **given: Any) -> str:
    agent = Agent(ScriptedModel("Done."), tools=[*workspace_tools(root)])
    result = await agent.tool.__getattr__(name).invoke_async(record_direct_tool_call=False, **given)
    return result["content"][0]["text"]


async def test_files_are_listed_searched_read_edited_and_written(root: Path) -> None:
    assert await call(root, "list_files") == "note.md\nsrc/a.py"
    assert await call(root, "list_files", pattern="*.md") == "note.md"
    assert await call(root, "list_files", pattern="*.c") == "No files."
    assert await call(root, "search_files", text="y") == "note.md:1: Say y.\nsrc/a.py:2: y = 2"
    assert await call(root, "search_files", text=r"^[xz] =", pattern="src/*") == "src/a.py:1: x = 1\nsrc/a.py:3: z = 3"
    assert await call(root, "search_files", text="nowhere") == "Nothing found."
    assert await call(root, "read_file", path="src/a.py", first_line=2, lines=1) == (
        "y = 2\n[lines 2-2 of 4; go on with first_line=3]"
    )
    assert await call(root, "edit_file", path="src/a.py", old="y = 2", new="y = 5") == "Edited src/a.py, line 2."
    assert (root / "src" / "a.py").read_text() == "x = 1\ny = 5\nz = 3\n"
    assert "Wrote 4 bytes" in await call(root, "write_file", path="new/b.txt", text="text")
    assert (root / "new" / "b.txt").read_text() == "text"


@pytest.mark.parametrize(
    "path", [".env", ".git/hooks/pre-commit", "src/../.env", "/etc/passwd", "../x", ".repertory/a"]
)
def test_no_path_leads_out_of_the_folder_or_to_what_is_hidden(root: Path, path: str) -> None:
    files = Workspace(root)
    for work in (
        lambda: files.part(path, 1),
        lambda: files.write(path, "x"),
        lambda: files.edit(path, "SECRET", "PUBLIC"),
    ):
        with pytest.raises(Invalid):
            work()
    assert (root / ".env").read_text() == "SECRET=y\n"


def test_no_link_is_followed_to_a_file(root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "secret.txt").write_text("secret\n")
    os.symlink(outside, root / "away")
    os.symlink(outside / "secret.txt", root / "file.txt")
    for path in ("away/secret.txt", "file.txt"):
        with pytest.raises(Invalid):
            Workspace(root).part(path, 1)


def test_a_long_file_is_read_whole_in_bounded_parts(root: Path, rng: Random) -> None:
    lines = ["x" * rng.randrange(200) for _ in range(600)]
    (root / "long.txt").write_text("\n".join(lines))
    files, at, read = Workspace(root), 1, []
    while True:
        part = files.part("long.txt", at)
        assert len(part) <= ANSWER_CHARS + 300
        text, there, note = part.rpartition("\n[lines ")
        if not there:
            read += part.split("\n")
            break
        read += text.split("\n")
        at = int(note.rpartition("=")[2].rstrip("]"))
    assert read == lines
    with pytest.raises(Invalid, match="no such line"):
        files.part("long.txt", 601)


async def test_long_lists_say_how_many_more_there_are(root: Path) -> None:
    for number in range(600):
        (root / f"file-{number:04}.txt").write_text("word\n")
    listed, found = await call(root, "list_files"), await call(root, "search_files", text="word")
    assert len(listed) < ANSWER_CHARS + 100 > len(found)
    assert "more; give a narrower pattern]" in listed
    assert "more; search for more, or give a pattern]" in found


def test_an_edit_that_was_made_is_not_made_again(root: Path, rng: Random) -> None:
    """Whatever is replaced by whatever: a second run leaves what the first one has left, or says that it cannot."""
    for _ in range(300):
        text = "".join(rng.choices("ab\n", k=rng.randrange(2, 12)))
        start = rng.randrange(len(text))
        old = text[start : start + rng.randrange(1, 4)]
        new = "".join(rng.choices("ab", k=rng.randrange(4)))
        (root / "t.txt").write_text(text)
        files = Workspace(root)
        try:
            files.edit("t.txt", old, new)
        except (Invalid, NotFound):
            continue
        once = (root / "t.txt").read_text()
        with suppress(Invalid, NotFound):
            files.edit("t.txt", old, new)
        assert (root / "t.txt").read_text() == once, (text, old, new)


def test_an_edit_needs_one_place(root: Path) -> None:
    files = Workspace(root)
    with pytest.raises(Invalid, match="not unique enough"):
        files.edit("src/a.py", " = ", ":")
    with pytest.raises(NotFound, match="does not have this text"):
        files.edit("src/a.py", "w = 1", "w = 2")
    with pytest.raises(Invalid, match="differs from it"):
        files.edit("src/a.py", "x", "x")


async def test_what_is_no_text_is_left_out_of_a_search(root: Path) -> None:
    (root / "picture.png").write_bytes(b"\x89PNG\xff\xfe y")
    assert "picture" not in await call(root, "search_files", text="y")
    assert "not UTF-8" in await call(root, "read_file", path="picture.png")


async def test_a_search_sees_nothing_hidden_and_nothing_behind_a_link(root: Path) -> None:
    os.symlink(root / ".env", root / "open.txt")
    os.symlink(root / ".git", root / "open")
    assert await call(root, "search_files", text="SECRET") == "Nothing found."
    assert "open/" not in await call(root, "list_files")
