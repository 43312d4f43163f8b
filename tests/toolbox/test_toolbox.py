"""The example tools: right answers, and no way out."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.actors.tool_registry import ToolRegistry
from repertory.backends.ports import ToolContext
from repertory.backends.sandbox_ports import FILE_BYTES_MAX
from repertory.core.state import AgentState
from repertory.errors import Invalid, LimitReached, NotFound
from repertory.toolbox.calculator import calculator
from repertory.toolbox.clock import clock_tool, current_time
from repertory.toolbox.files import DEPTH_MAX, LISTED_MAX, Folder, file_tools


async def run(tool: Any, **arguments: Any) -> Any:
    use: Any = {"toolUseId": "use-1", "name": tool.name, "input": arguments}
    context = ToolContext(tool_use=use, agent_id="a", state=AgentState(), idempotency_key="k")
    return await tool.run(use, context)


# --------------------------------------------------------------------------------------------------------- calculator


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("123 * 456", 56088),
        (" 2 ** 10 ", 1024),
        ("7 // 2 + 7 % 2 - -1", 5),
        ("1 / 4", 0.25),
        ("sqrt(16) + max(1, 2, 3)", 7.0),
        ("round(2.567, 2)", 2.57),
        ("round(2.5)", 2),
        ("(-2) ** 3", -8),
        ("cos(pi)", -1.0),
        ("+".join(["1"] * 240), 240),
    ],
)
def test_arithmetic_is_right(expression: str, value: float):
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1 +",
        "1 / 0",
        "__import__('os').system('true')",
        "().__class__",
        "x",
        "[1][0]",
        "'a' * 3",
        "True + 1",
        "1 if 1 else 2",
        "(lambda: 1)()",
        "max(*[1])",
        "round(number=1)",
        "1j",
        "2 ^ 3",
        "(-8) ** 0.5",
        "sqrt(-1)",
        "1e308 * 10",
        "9 ** 9 ** 9",
        "2 ** 100000",
        "round(5, -10 ** 9)",
        "exp(1e9)",
        "10 ** 2000 + 0.5",
        "-" * 900 + "1",
        "(" * 300 + "1" + ")" * 300,
        "x" + ".a" * 450,
        "1" * 2_000,
        "1\0",
    ],
)
def test_what_is_no_bearable_arithmetic_is_refused(expression: str):
    with pytest.raises(Invalid):
        calculator(expression)


@given(st.text("0123456789+-*/%().e, abs", max_size=40))
def test_any_expression_has_a_value_or_is_refused(expression: str):
    with contextlib.suppress(Invalid):
        assert isinstance(calculator(expression), int | float)


# --------------------------------------------------------------------------------------------------------------- clock


def test_the_time_is_told_in_the_zone_asked_for():
    tool = clock_tool(lambda: 1_700_000_000.0)
    assert tool() == "2023-11-14T22:13:20+00:00"
    assert tool("Europe/Berlin") == "2023-11-14T23:13:20+01:00"
    assert current_time("utc").endswith("+00:00")


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "/etc/passwd", "America", "", "a\0b"])
def test_an_unknown_zone_is_refused(zone: str):
    with pytest.raises(Invalid, match="timezone"):
        current_time(zone)


# --------------------------------------------------------------------------------------------------------------- files


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("outside")
    return Folder(root)


@pytest.fixture
def root(folder: Folder, tmp_path: Path) -> Path:
    return tmp_path / "root"


def test_what_was_written_is_read_listed_and_private(folder: Folder, root: Path):
    assert folder.write("notes/today.md", "grün\n") == 6
    assert folder.append("notes/today.md", "more") == 10
    assert folder.append("new.txt", "x") == 1
    assert folder.read("./notes//today.md") == "grün\nmore"
    assert folder.files() == (["new.txt", "notes/today.md"], False)
    assert stat.S_IMODE((root / "notes/today.md").stat().st_mode) == 0o600
    assert stat.S_IMODE((root / "new.txt").stat().st_mode) == 0o600
    assert stat.S_IMODE((root / "notes").stat().st_mode) == 0o700


def test_a_write_replaces_the_whole_file_and_leaves_nothing_beside_it(folder: Folder, root: Path):
    folder.write("a", "long text")
    folder.write("a", "short")
    assert folder.read("a") == "short"
    assert os.listdir(root) == ["a"]


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "/",
        "/etc/passwd",
        "../secret",
        "a/../../secret",
        "a/..",
        "a/",
        "a\\b",
        "a\0b",
        "a\nb",
        "x" * 256,
        "ü" * 128,
        ".repertory-1",
        "/".join("d" * (DEPTH_MAX + 1)),
    ],
)
def test_a_bad_path_is_refused_by_every_operation_and_nothing_is_made(folder: Folder, root: Path, path: str):
    for operation in (folder.read, lambda p: folder.write(p, "x"), lambda p: folder.append(p, "x")):
        with pytest.raises(Invalid, match="path"):
            operation(path)
    assert os.listdir(root) == []


@pytest.mark.parametrize("link_to", ["../secret", "inside", "nowhere"])
def test_a_link_is_never_followed(folder: Folder, root: Path, link_to: str):
    folder.write("inside", "kept")
    (root / "link").symlink_to(link_to)
    for operation in (folder.read, lambda p: folder.write(p, "x"), lambda p: folder.append(p, "x")):
        with pytest.raises(Invalid, match="path='link'"):
            operation("link")
    assert folder.files().paths == ["inside"]
    assert folder.read("inside") == "kept"
    assert (root.parent / "secret").read_text() == "outside"


def test_a_linked_folder_is_never_entered(folder: Folder, root: Path):
    (root / "out").symlink_to(root.parent, target_is_directory=True)
    for operation in (folder.read, lambda p: folder.write(p, "x"), lambda p: folder.append(p, "x")):
        with pytest.raises(Invalid, match="link"):
            operation("out/secret")
    assert folder.files().paths == []
    assert (root.parent / "secret").read_text() == "outside"


def test_folders_pipes_and_files_used_as_folders_are_refused(folder: Folder, root: Path):
    (root / "dir").mkdir()
    os.mkfifo(root / "pipe")
    folder.write("file", "x")
    for path in ("dir", "pipe", "file/below"):
        for operation in (folder.read, lambda p: folder.write(p, "x"), lambda p: folder.append(p, "x")):
            with pytest.raises(Invalid):
                operation(path)
    assert folder.files().paths == ["file"]


def test_a_file_that_is_not_there_is_not_found(folder: Folder):
    for path in ("none", "none/either"):
        with pytest.raises(NotFound, match="none"):
            folder.read(path)


def test_sizes_are_bounded(folder: Folder, root: Path):
    with pytest.raises(LimitReached):
        folder.write("big", "x" * (FILE_BYTES_MAX + 1))
    folder.write("big", "x" * FILE_BYTES_MAX)
    with pytest.raises(LimitReached):
        folder.append("big", "x")
    assert len(folder.read("big")) == FILE_BYTES_MAX
    (root / "huge").write_bytes(b"x" * (FILE_BYTES_MAX + 1))
    with pytest.raises(LimitReached):
        folder.read("huge")


def test_a_listing_is_bounded_and_says_that_there_is_more(folder: Folder, root: Path):
    for index in range(LISTED_MAX + 1):
        (root / f"{index:05}").touch()
    listing = folder.files()
    assert (len(listing.paths), listing.paths[0], listing.more) == (LISTED_MAX, "00000", True)


def test_bytes_that_are_no_text_and_text_that_is_no_utf_8_are_refused(folder: Folder, root: Path):
    (root / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match="UTF-8"):
        folder.read("binary")
    with pytest.raises(Invalid, match="Unicode"):
        folder.write("a", "\ud800")


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path):
    for bad in (tmp_path / "none", Path(__file__)):
        with pytest.raises(Invalid, match="root"):
            file_tools(bad)


def test_the_tools_say_honestly_what_they_do(tmp_path: Path):
    tools = ToolRegistry([*file_tools(tmp_path), calculator, current_time])
    assert {tool.name: (tool.effects, tool.idempotent) for tool in tools} == {
        "list_files": (False, True),
        "read_file": (False, True),
        "write_file": (True, True),
        "append_file": (True, False),
        "calculator": (False, True),
        "current_time": (False, True),
    }
    schemas: Any = [spec["inputSchema"]["json"] for spec in tools.specs]
    assert [list(schema["properties"]) for schema in schemas] == [
        [],
        ["path"],
        ["path", "text"],
        ["path", "text"],
        ["expression"],
        ["timezone"],
    ]


@pytest.fixture
def tools(tmp_path: Path) -> tuple[Any, ...]:
    return file_tools(tmp_path)


@pytest.mark.anyio
@pytest.mark.real_time
async def test_an_agent_meets_results_and_errors_that_it_can_act_on(tools: tuple[Any, ...]):
    list_files, read_file, write_file, _ = tools
    assert await run(write_file, path="a.txt", text="hi") == {
        "toolUseId": "use-1",
        "status": "success",
        "content": [{"text": "wrote 2 bytes to a.txt"}],
    }
    assert (await run(list_files))["content"] == [{"json": {"files": ["a.txt"], "more": False}}]
    assert (await run(read_file, path="a.txt"))["content"] == [{"text": "hi"}]
    assert await run(read_file, path="../secret") == {
        "toolUseId": "use-1",
        "status": "error",
        "content": [
            {
                "text": "Error: Invalid - a path has no '..', backslashes or control characters"
                " path='../secret' part='..'"
            }
        ],
    }
    assert (await run(calculator, expression="123 * 456"))["content"] == [{"text": "56088"}]
