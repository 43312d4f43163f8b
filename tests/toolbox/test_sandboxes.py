"""Sandboxes: what all of them do, on this machine and through a shell; what reaches a container or another machine; and
what an agent makes of one.
"""

from __future__ import annotations

import os
import shlex
import stat
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from repertory import Agent, DockerSandbox, PosixShellSandbox, Sandbox, ScriptedModel, SshSandbox, tool
from repertory.backends.sandbox_ports import Env, ExecutionResult, FileInfo, Output, StreamChunk
from repertory.backends.this_machine import ThisMachine, stream_process
from repertory.core.messages import tool_results
from repertory.errors import CommandFailed, CommandTimeout, FileFailed, Invalid, PathNotFound
from repertory.toolbox import shell_sandboxes
from repertory.toolbox.commands import shell
from repertory.toolbox.shell_sandboxes import build_shell_env_prefix
from tests.app.orchestration.recorder import use

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


class InFolder(PosixShellSandbox):
    """A folder of this machine, by a shell alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def execute_streaming(
        self, command: str, *, timeout: float | None = None, cwd: str | None = None, env: Env | None = None
    ) -> Output:
        whole = f"cd {shlex.quote(cwd or str(self.folder))} && {build_shell_env_prefix(env)}{command}"
        return stream_process(["sh", "-c", whole], timeout_s=timeout)


@pytest.fixture(params=["this machine", "a shell"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    return ThisMachine(tmp_path) if request.param == "this machine" else InFolder(tmp_path)


async def test_commands_and_code_give_their_output_and_their_end(place: Sandbox, tmp_path: Path) -> None:
    done = await place.execute("echo out; echo err >&2; exit 3")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert (await place.execute("pwd")).stdout.strip().endswith(tmp_path.name)
    assert (await place.execute("pwd", cwd="/")).stdout == "/\n"
    assert (await place.execute("printenv A", env={"A": "$(id) 'x'"})).stdout == "$(id) 'x'\n"
    code = "import os; print('\"', os.environ['A'])"
    assert (await place.execute_code(code, "python3", env={"A": "b"})).stdout == '" b\n'
    assert (await place.execute_code("1", "no-such-language")).exit_code == 127
    assert (await place.execute("kill -9 $$")).exit_code == 137


async def test_what_is_written_comes_piece_by_piece(place: Sandbox) -> None:
    pieces: list[str] = []
    async with aclosing(place.execute_streaming("echo one; sleep 0.3; echo two >&2")) as output:
        async for piece in output:
            pieces.append(
                f"{piece.stream_type} {piece.data}" if isinstance(piece, StreamChunk) else str(piece.exit_code)
            )
    assert pieces == ["stdout one\n", "stderr two\n", "0"]


async def test_an_output_that_is_left_ends_its_command(place: Sandbox, tmp_path: Path) -> None:
    async with aclosing(place.execute_streaming("echo $$; sleep 60")) as output:
        async for piece in output:
            assert isinstance(piece, StreamChunk)
            pid = int(piece.data)
            break
        else:
            pytest.fail("nothing was written")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_command_that_is_late_or_cancelled_is_killed(place: Sandbox, tmp_path: Path) -> None:
    for timeout_s in (0.3, 4, 30):  # A busy machine may not have begun with it before.
        with pytest.raises(CommandTimeout, match="timed out") as late:
            await place.execute("echo before; sleep 60; touch after", timeout=timeout_s)
        if late.value.stdout:
            break
    assert (late.value.stdout, late.value.stderr) == ("before\n", "")
    with anyio.move_on_after(0.3):
        await place.execute("sleep 60; touch after")
    assert not (tmp_path / "after").exists()


@pytest.mark.parametrize("name", ["BAD-KEY", "A\n", "", "1A"])
async def test_names_that_a_shell_would_read_as_commands_are_refused(place: Sandbox, name: str) -> None:
    with pytest.raises(Invalid, match="environment variable"):
        await place.execute("true", env={name: "x"})
    with pytest.raises(Invalid, match="language"):
        await place.execute_code("1", f"sh;{name}")


@pytest.mark.parametrize("name", ["plain.txt", "in/a folder/it's.bin", "-dashed", "$(touch x)"])
async def test_files_come_back_as_they_were_written(place: Sandbox, name: str) -> None:
    for content in (bytes(range(256)), b"", os.urandom(200_000)):
        await place.write_file(name, content)
        assert await place.read_file(name) == content
    await place.write_text(name, "é")
    assert await place.read_text(name) == "é"
    await place.remove_file(name)
    for ask in (place.read_file, place.remove_file):
        with pytest.raises(FileNotFoundError):
            await ask(name)


async def test_a_file_that_is_larger_than_any_memory_is_not_read_by_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FileFailed, match=r"maximum allowed size \(1048576 bytes\)"):
        await InFolder(tmp_path).read_text("sparse")
    monkeypatch.setattr(shell_sandboxes, "READ_BYTES_MAX", 100_000)
    with pytest.raises(FileFailed, match=r"maximum allowed size \(100000 bytes\)"):
        await InFolder(tmp_path).read_file("sparse")


async def test_a_folder_is_listed_by_name(place: Sandbox, tmp_path: Path) -> None:
    await place.write_text("sub/b", "12")
    await place.write_text("a", "1")
    assert [(each.name, each.is_dir) for each in await place.list_files(".")] == [("a", False), ("sub", True)]
    for missing in ("none", "a"):
        with pytest.raises(PathNotFound):
            await place.list_files(missing)
    (tmp_path / "locked").mkdir()
    if isinstance(place, InFolder):
        with pytest.raises(FileFailed):
            await place.read_file("locked")


async def test_containers_and_machines_are_reached_by_their_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in ("docker", "ssh"):
        said = tmp_path / program
        said.write_text('#!/bin/sh\nfor each in "$@"; do echo "$each"; done\n')
        said.chmod(said.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    container = DockerSandbox("--odd", user="me", working_dir="/w")
    assert (await container.execute("ls", env={"A": "b c"})).stdout.split("\n")[:-1] == (
        ["exec", "--user", "me", "-w", "/w", "-e", "A=b c", "--", "--odd", "sh", "-c", "ls"]
    )
    machine = SshSandbox(
        "me@there", working_dir="/a b", port=2222, identity_file="/key", ssh_options=["ConnectTimeout=5"]
    )
    assert (await machine.execute("ls", env={"A": "b c"})).stdout.split("\n")[:-1] == [
        *("-o", "StrictHostKeyChecking=accept-new", "-o", "BatchMode=yes", "-p", "2222", "-i", "/key"),
        *("-o", "ConnectTimeout=5", "--", "me@there", "cd '/a b' && export A='b c' && ls"),
    ]
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CommandFailed, match="docker is not installed"):
        await container.execute("ls")


@pytest.mark.parametrize(
    "option", ["ProxyCommand=evil", "localcommand=evil", "Include=/x", "Match exec x", "Port 1\nX=1"]
)
def test_options_of_ssh_that_run_something_are_refused(option: str) -> None:
    with pytest.raises(Invalid, match="not allowed"):
        SshSandbox("there", working_dir="/", ssh_options=[option])
    SshSandbox("there", working_dir="/", ssh_options=[option], allow_unsafe_ssh_options=True)


# Agents.


async def test_the_tools_of_an_agent_work_in_its_sandbox(tmp_path: Path) -> None:
    model = ScriptedModel([use("shell", command="touch here"), "done"])
    agent = Agent(model, tools=[shell], sandbox=InFolder(tmp_path), callback_handler=None)
    await agent.invoke_async("go")
    assert (tmp_path / "here").exists()
    assert [each["status"] for message in agent.messages for each in tool_results(message)] == ["success"]


async def test_an_agent_has_the_tools_of_its_sandbox_besides_its_own() -> None:
    @tool
    def sandbox_shell() -> str:
        """Its own."""
        return "own"

    container = DockerSandbox("box")
    agent = Agent(ScriptedModel([]), tools=[sandbox_shell], sandbox=container, callback_handler=None)
    assert agent.sandbox is agent.fresh_copy().sandbox is container
    assert agent.tool_names == ["sandbox_shell", "sandbox_file_editor"]
    assert (await agent.tool.sandbox_shell.invoke_async())["content"] == [{"text": "own"}]


async def test_without_a_sandbox_an_agent_has_this_machine_for_itself() -> None:
    one, other = Agent(ScriptedModel([])), Agent(ScriptedModel([]))
    assert isinstance(one.sandbox, ThisMachine)
    assert one.sandbox is one.sandbox is not other.sandbox
    assert one.tool_names == []
    with pytest.raises(TypeError, match="sandbox must be a Sandbox"):
        Agent(ScriptedModel([]), sandbox="box")  # type: ignore[arg-type]


async def test_a_sandbox_that_gives_no_result_is_an_error() -> None:
    class Silent(InFolder):
        async def execute_streaming(self, command: str, **options: object) -> Output:  # type: ignore[override]
            yield StreamChunk("only this")

    with pytest.raises(RuntimeError, match="did not yield an ExecutionResult"):
        await Silent(Path()).execute("ls")
    assert ExecutionResult(0, "", "").output_files == []
    assert FileInfo("x").size is None
