"""Tools that run commands and edit files: right results, bounds, and nothing left behind."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory import Agent, ScriptedModel
from repertory.backends.ports import ToolContext
from repertory.backends.this_machine import OUTPUT_BYTES_MAX, ExecutionResult, FileInfo, ThisMachine
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import tool_results
from repertory.errors import CommandTimeout, Invalid, NotFound
from repertory.toolbox.commands import make_python_repl, make_shell, python_repl, shell
from repertory.toolbox.file_editor import file_editor, make_file_editor
from tests.app.orchestration.recorder import use

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

HERE: Any = ToolContext(tool_use={"toolUseId": "use-1", "name": "t", "input": {}})


class Elsewhere:
    """Another place: remembers what it was asked, and has files in a dictionary."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.files = {"/there/a.txt": "one\ntwo"}

    async def execute(self, command: str, **options: Any) -> ExecutionResult:
        self.asked.append((command, options))
        return ExecutionResult(0, "elsewhere", "")

    async def execute_code(self, code: str, language: str, **options: Any) -> ExecutionResult:
        self.asked.append((code, language, options))
        return ExecutionResult(3, "", "no")

    async def read_text(self, path: str) -> str:
        return self.files[path]

    async def write_text(self, path: str, content: str) -> None:
        self.files[path] = content

    async def list_files(self, path: str) -> list[FileInfo]:
        return [FileInfo(Path(file).name, False) for file in self.files if str(Path(file).parent) == path]


# Commands.


async def test_a_command_gives_what_it_wrote_and_how_it_ended() -> None:
    ended = await shell(command="echo out; echo err >&2; exit 3", tool_context=HERE)
    assert ended == {"output": "out\n", "error": "err\n", "exit_code": 3}


async def test_commands_keep_no_variables_and_have_no_input() -> None:
    await shell(command="export X=1", tool_context=HERE)
    assert (await shell(command="echo ${X:-none}; cat", tool_context=HERE))["output"] == "none\n"


async def test_a_command_that_takes_too_long_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    command = f"echo begun; (sleep 60; touch {tmp_path}/late) & echo $! > {tmp_path}/pid; sleep 60"
    for timeout_s in (0.5, 4, 30):  # A busy machine may not have begun with it before.
        with pytest.raises(CommandTimeout) as late:
            await shell(command=command, tool_context=HERE, timeout=timeout_s)
        if written(tmp_path / "pid"):
            break
    assert '"output": "begun' in str(late.value)
    await gone(int(written(tmp_path / "pid")))


async def test_the_timeout_of_another_place_stays_what_it_is_and_says_what_was_written() -> None:
    class Late(TimeoutError):
        stdout, stderr = "begun", ""

    class Slow(Elsewhere):
        async def execute(self, command: str, **options: Any) -> ExecutionResult:
            raise Late("too late")

    with pytest.raises(Late, match=r'too late\n.*"output": "begun".*124'):
        await make_shell(sandbox=Slow())(command="ls", tool_context=HERE)


async def test_a_cancelled_command_is_killed(tmp_path: Path) -> None:
    async with anyio.create_task_group() as group:

        async def call() -> None:
            await shell(command=f"echo $$ > {tmp_path}/pid; exec sleep 60", tool_context=HERE)

        group.start_soon(call)
        pid = await written_to(tmp_path / "pid")
        group.cancel_scope.cancel()
    await gone(pid)


async def test_what_a_command_leaves_in_the_background_ends_with_it(tmp_path: Path) -> None:
    ended = await shell(command=f"sleep 60 & echo $! > {tmp_path}/pid; echo done", tool_context=HERE)
    assert ended["output"] == "done\n"
    await gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    "start",
    [
        "setsid sleep 60 & echo $! > {pid}",
        "setsid sh -c 'echo $$ > {pid}; setsid sleep 60 & sleep 60' & while [ ! -s {pid} ]; do sleep 0.01; done",
        "env -i nohup setsid sh -c 'echo $$ > {pid}; while :; do setsid sleep 0.05 & wait; done' &"
        " while [ ! -s {pid} ]; do sleep 0.01; done",
    ],
)
@pytest.mark.parametrize("end", ["", "; sleep 60"])
@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: only Linux has subreapers")
async def test_no_session_of_its_own_outlives_a_command(start: str, end: str, tmp_path: Path) -> None:
    pid, here = tmp_path / "pid", make_shell(sandbox=ThisMachine(tmp_path))
    async with anyio.create_task_group() as group:

        async def call() -> None:
            await here(command=f"({start.format(pid=pid)}) > /dev/null 2>&1 {end}", tool_context=HERE)

        group.start_soon(call)
        started = await written_to(pid)
        if end:
            group.cancel_scope.cancel()
    await gone(started)
    assert working_in(tmp_path) == []


def working_in(folder: Path) -> list[str]:
    """The processes whose working directory it is."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(process / "cwd") == str(folder):
                found.append(process.name)
    return found


async def test_signals_of_a_command_to_its_group_end_it_alone() -> None:
    assert (await shell(command="kill -9 0; echo after", tool_context=HERE))["exit_code"] == 137
    assert (await shell(command="sh -c 'kill -TERM $$'; echo $?", tool_context=HERE))["output"] == "143\n"
    assert (await shell(command="yes | head -1", tool_context=HERE))["error"] == ""


async def test_a_command_gets_no_variable_that_may_be_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_KEY", "hunter2")
    written = (await shell(command="env", tool_context=HERE))["output"]
    assert "PATH=" in written
    assert "hunter2" not in written
    place = ThisMachine(env={"GIVEN": "one"})
    found = await place.execute("echo $GIVEN $OTHER", env={"OTHER": "two"})
    assert found.stdout == "one two\n"


def written(path: Path) -> str:
    """What stands in a file; nothing if it is not there yet."""
    with suppress(FileNotFoundError):
        return path.read_text().strip()
    return ""


async def written_to(path: Path) -> int:
    """The number that a command writes to a file."""
    while True:
        if text := written(path):
            return int(text)
        await anyio.sleep(0.01)


async def gone(pid: int) -> None:
    """Wait until the process is dead, or a zombie that nobody has waited for yet."""
    for _ in range(3_000):
        if not lives(pid):
            return
        await anyio.sleep(0.01)
    pytest.fail("the process lives")


def lives(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):  # The second, if it ends between opening and reading.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_of_endless_output_the_beginning_is_kept() -> None:
    ended = await shell(command=f"head -c {OUTPUT_BYTES_MAX * 3} /dev/zero | tr '\\0' x", tool_context=HERE)
    assert ended["exit_code"] == 0
    assert len(ended["output"]) < OUTPUT_BYTES_MAX + 100
    assert ended["output"].endswith("[more was written and dropped]")


async def test_a_program_is_run_and_what_is_wrong_with_it_is_told() -> None:
    assert await python_repl(code="print(6 * 7)", tool_context=HERE) == {
        "output": "42\n",
        "error": "",
        "exit_code": 0,
    }
    failed = await python_repl(code="1 / 0", tool_context=HERE)
    assert failed["exit_code"] == 1
    assert "ZeroDivisionError" in failed["error"]


async def test_a_program_may_be_longer_than_a_command_line() -> None:
    code = f"text = {'x' * 3_000_000!r}\nprint(len(text))"
    assert (await python_repl(code=code, tool_context=HERE))["output"] == "3000000\n"


async def test_an_interpreter_that_is_not_there_ends_as_shells_say_it() -> None:
    ended = await make_python_repl(language="no-such-python")(code="1", tool_context=HERE)
    assert ended == {"output": "", "error": "no-such-python: not found\n", "exit_code": 127}


@pytest.mark.parametrize("language", ["python3; rm -rf /", "-c", "../python", ""])
def test_an_interpreter_is_a_plain_name(language: str) -> None:
    with pytest.raises(Invalid, match="language"):
        make_python_repl(language=language)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e300])
async def test_time_for_a_command_is_positive_and_bounded(seconds: float) -> None:
    with pytest.raises(Invalid, match="timeout must be a positive"):
        await shell(command="true", tool_context=HERE, timeout=seconds)


async def test_commands_run_in_the_place_that_the_tool_was_made_with(tmp_path: Path) -> None:
    place = Elsewhere()
    assert (await make_shell(sandbox=place)(command="ls", tool_context=HERE))["output"] == "elsewhere"
    assert (await make_python_repl(sandbox=place)(code="1", tool_context=HERE))["exit_code"] == 3
    assert place.asked == [("ls", {"timeout": 120.0}), ("1", "python3", {"timeout": 120.0})]
    there = make_shell(sandbox=ThisMachine(tmp_path))
    assert (await there(command="pwd", tool_context=HERE))["output"].strip().endswith(tmp_path.name)


async def test_an_agent_runs_commands_and_the_model_sees_the_result() -> None:
    agent = Agent(ScriptedModel([use("shell", command="echo hi"), "done"]), tools=[shell], callback_handler=None)
    await agent.invoke_async("?")
    (result,) = [result for message in agent.messages for result in tool_results(message)]
    assert result["status"] == "success"
    assert "hi" in str(result["content"])


# Files.


async def edit(path: object, command: str, **options: Any) -> str:
    done: str = await file_editor(command=command, path=str(path), tool_context=HERE, **options)
    return done


async def test_a_file_is_made_viewed_and_edited(tmp_path: Path) -> None:
    file = tmp_path / "notes" / "a.txt"
    await edit(file, "create", file_text="one\ntwo\nthree")
    assert "     2  two" in await edit(file, "view")
    assert "     1" not in await edit(file, "view", view_range=[2, -1])
    assert "     2  2" in await edit(file, "str_replace", old_str="two", new_str="2")
    await edit(file, "insert", insert_line=0, new_str="zero")
    await edit(file, "insert", insert_line=4, new_str="four\nfive")
    assert file.read_text() == "zero\none\n2\nthree\nfour\nfive"
    assert sorted(path.name for path in file.parent.iterdir()) == ["a.txt"]


async def test_a_folder_shows_its_entries_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("a.txt", ".hidden", "sub/b.txt", "sub/deep/c.txt", "sub/deep/er/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    shown = (await edit(tmp_path, "view")).splitlines()[1:]
    assert shown == ["a.txt", "sub/", "sub/b.txt", "sub/deep/", "sub/deep/c.txt", "sub/deep/er/"]


async def test_an_edited_file_keeps_its_rights_and_a_link_stays_one(tmp_path: Path) -> None:
    file, link = tmp_path / "run.sh", tmp_path / "link"
    file.write_text("a")
    file.chmod(0o750)
    link.symlink_to(file)
    await edit(link, "str_replace", old_str="a", new_str="b")
    assert (file.read_text(), file.stat().st_mode & 0o777, link.is_symlink()) == ("b", 0o750, True)


@pytest.mark.parametrize(
    ("command", "options", "reason"),
    [
        ("create", {"file_text": "x"}, "already exists"),
        ("create", {}, "`file_text` is required"),
        ("view", {"view_range": [0, 1]}, "first element"),
        ("view", {"view_range": [1, 9]}, "second element"),
        ("view", {"view_range": [2, 1]}, "second element"),
        ("view", {"view_range": [1]}, "two lines"),
        ("str_replace", {}, "`old_str` is required"),
        ("str_replace", {"old_str": ""}, "must not be empty"),
        ("str_replace", {"old_str": "none"}, "did not appear verbatim"),
        ("str_replace", {"old_str": "a"}, r"lines \[1, 2\]"),
        ("insert", {"new_str": "x"}, "are required"),
        ("insert", {"new_str": "x", "insert_line": 5}, "insert_line"),
    ],
)
async def test_a_wrong_edit_is_refused_and_changes_nothing(
    command: str, options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("a\na")
    with pytest.raises(Invalid, match=reason):
        await edit(file, command, **options)
    assert file.read_text() == "a\na"


@pytest.mark.parametrize("path", ["a.txt", "../a", "/tmp/../etc/passwd", "/no/such/file"])
async def test_paths_are_absolute_without_ways_up_and_there(path: str) -> None:
    with pytest.raises(Invalid):
        await edit(path, "view")


async def test_an_editor_of_one_folder_edits_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    editor = make_file_editor(root=str(tmp_path / "in"))
    await editor(command="create", path=str(tmp_path / "in" / "a"), file_text="x", tool_context=HERE)
    for other in (tmp_path / "a", tmp_path / "in-not" / "a"):
        with pytest.raises(Invalid, match="below the folder"):
            await editor(command="create", path=str(other), file_text="x", tool_context=HERE)


@pytest.mark.parametrize("command", ["view", "create", "str_replace", "insert"])
@pytest.mark.parametrize("name", ["file", "folder/a.txt", "folder/new.txt", "pipe"])
async def test_an_editor_of_one_folder_follows_no_link_out_of_it_and_waits_for_no_pipe(
    command: str, name: str, tmp_path: Path
) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    planted(inside, outside)
    editor = make_file_editor(root=str(inside))
    texts = {"file_text": "x", "old_str": "secret", "new_str": "x", "insert_line": 0}
    with pytest.raises((Invalid, NotFound)) as caught:
        await editor(command=command, path=str(inside / name), tool_context=HERE, **texts)
    assert "secret" not in str(caught.value).replace("old_str `secret`", "")
    assert [(path.name, path.read_text()) for path in sorted(outside.iterdir())] == [("a.txt", "secret")]


async def test_a_pipe_is_no_file_to_edit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Invalid, match="no file"):
        await edit(tmp_path / "pipe", "view")


def planted(inside: Path, outside: Path) -> None:
    inside.mkdir()
    outside.mkdir()
    (outside / "a.txt").write_text("secret")
    (inside / "file").symlink_to(outside / "a.txt")
    (inside / "folder").symlink_to(outside)
    os.mkfifo(inside / "pipe")


async def test_an_editor_of_one_folder_does_all_that_an_editor_does_there(tmp_path: Path) -> None:
    editor, root = make_file_editor(root=str(tmp_path / "in")), tmp_path / "in"
    root.mkdir()
    file = root / "sub" / "a.sh"
    await editor(command="create", path=str(file), file_text="one\ntwo", tool_context=HERE)
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o750)
    await editor(command="str_replace", path=str(file), old_str="two", new_str="2", tool_context=HERE)
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("one\n2", 0o750)
    for folder, shown in ((root, "sub/\nsub/a.sh"), (root / "sub", "a.sh")):
        seen = await editor(command="view", path=str(folder), tool_context=HERE)
        assert seen.splitlines()[1:] == shown.splitlines()


async def test_nobody_else_can_read_a_file_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    chmod = os.fchmod

    def watched(descriptor: int, mode: int) -> None:
        modes.append(os.fstat(descriptor).st_mode & 0o777)
        chmod(descriptor, mode)

    file = tmp_path / "a.txt"
    file.write_text("a")
    file.chmod(0o640)
    monkeypatch.setattr(os, "fchmod", watched)
    before = os.umask(0)
    try:
        await edit(file, "str_replace", old_str="a", new_str="b")
    finally:
        os.umask(before)
    assert (modes, file.stat().st_mode & 0o777) == ([0o600], 0o640)


async def test_files_may_be_elsewhere() -> None:
    place = Elsewhere()
    editor = make_file_editor(sandbox=place)
    await editor(command="str_replace", path="/there/a.txt", old_str="two", new_str="2", tool_context=HERE)
    assert place.files == {"/there/a.txt": "one\n2"}


@given(text=st.text(max_size=30), new=st.text(max_size=9), line=st.integers(0, 6))
async def test_an_insertion_puts_the_text_between_the_lines(text: str, new: str, line: int) -> None:
    place = Elsewhere()
    place.files["/there/a.txt"] = text
    lines = text.split("\n")
    if line <= len(lines):
        editor = make_file_editor(sandbox=place)
        await editor(command="insert", path="/there/a.txt", insert_line=line, new_str=new, tool_context=HERE)
        left = [*lines[:line], *new.split("\n"), *lines[line:]] if text else [*new.split("\n")]
        assert place.files["/there/a.txt"].split("\n") == left
