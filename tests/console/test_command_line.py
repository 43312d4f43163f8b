"""What all commands have in common: help, versions, mistakes, failures and progress."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import pytest

from repertory import (
    Agent,
    OperationProgress,
    ScriptedModel,
    Sessions,
    SQLiteSessionManager,
    SQLiteSessions,
    __version__,
)
from repertory.console import main as command_line
from repertory.console.main import build_parser, main
from repertory.console.progress_bar import ProgressBar
from tests.console.screens import on_screen
from tests.source_tree import ROOT

COMMAND = [sys.executable, "-m", "repertory.console.main"]
HEAVY = ("rich", "prompt_toolkit", "anyio", "msgspec", "repertory.actors", "repertory.app.sessions.sessions")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a place `shop.db` of three sessions."""
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name in ("marta", "paul", "ida"):
        agent = Agent(
            ScriptedModel(["Noted."]),
            session_manager=SQLiteSessionManager(name, path=tmp_path / "shop.db"),
            callback_handler=None,
        )
        agent("Rye bread, please.")
        agent.shutdown()
    return tmp_path


def failed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> str:
    """The one line that a command fails with."""
    if code == 2:
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
    else:
        assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1, err
    return err


@pytest.mark.real_time
@pytest.mark.parametrize("options", [["--version"], ["--help"], ["sesions"]])
def test_what_needs_no_command_loads_none(options: list[str]) -> None:
    program = (
        "import sys\nfrom repertory.console.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        f"print('loaded:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *options], cwd=ROOT, capture_output=True, text=True, check=False, timeout=50
    )
    assert done.stdout.splitlines()[-1] == "loaded: []", done.stdout + done.stderr
    if options == ["--version"]:
        assert done.stdout.splitlines()[0] == f"repertory {__version__}"


@pytest.mark.real_time
def test_a_listing_loads_neither_rich_nor_prompt_toolkit(shop: Path) -> None:
    program = (
        "import sys\nfrom repertory.console.main import main\nmain(['sessions', 'list', '--at', 'shop.db'])\n"
        "print('loaded:', [name for name in ('rich', 'prompt_toolkit') if name in sys.modules])"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, cwd=shop, capture_output=True, text=True, check=False, timeout=50
    )
    assert done.stdout.splitlines()[-1] == "loaded: []", done.stdout + done.stderr


def _leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    groups = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    for group in groups:
        for command in group.choices.values():
            yield command
            yield from _leaves(command)


def test_the_help_of_every_command_ends_with_examples_that_can_be_read() -> None:
    commands = list(_leaves(build_parser()))
    assert len(commands) > 30
    for command in commands:
        examples = (command.epilog or "").partition("examples:\n")[2].splitlines()
        assert examples, command.prog
        assert all(line.lstrip().startswith((command.prog, "echo ")) for line in examples), command.prog


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sesions", "list"], "there is no command sesions. Did you mean sessions?"),
        (["doctor"], "there is no command doctor. Did you mean `repertory sessions doctor`?"),
        (["sessions", "lst"], "there is no command lst. Did you mean list?"),
        (["sessions", "list", "--jsn"], "Did you mean --json"),
        (["chat", "--sesion", "x"], "Did you mean --session"),
        (["init", "--template", "servise"], "Did you mean service?"),
        (["sessions", "export", "x"], "the following arguments are required: FILE."),
    ],
)
def test_what_does_not_exist_is_answered_with_what_was_meant(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = failed(capsys, *arguments, code=2)
    assert says in line
    assert "--help` shows what there is." in line


@pytest.mark.real_time
def test_a_failure_is_one_line_that_says_what_to_do_next(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--at", "shop.db")
    assert "`repertory sessions list` shows what there is" in failed(capsys, "sessions", "show", "nobody", *at)
    main(["sessions", "export", "marta", "marta.jsonl", *at])
    capsys.readouterr()
    assert "add --force" in failed(capsys, "sessions", "export", "marta", "marta.jsonl", *at)
    assert "choose another id" in failed(capsys, "sessions", "import", "marta.jsonl", *at)
    assert "nothing.jsonl" in failed(capsys, "sessions", "import", "nothing.jsonl", *at)
    Path("changed.jsonl").write_text(Path("marta.jsonl").read_text().replace("marta", "paula"))
    told = failed(capsys, "sessions", "import", "changed.jsonl", "--as", "paula", *at)
    assert "line=" in told
    assert "nothing was imported: export the session again" in told
    assert "doctor" not in told


def test_a_fault_of_ours_is_one_line_and_with_debug_the_whole_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(options: argparse.Namespace) -> int:
        raise KeyError("a\x1b[31mb")

    entry = command_line._COMMANDS["init"]._replace(run=broken)
    monkeypatch.setitem(command_line._COMMANDS, "init", entry)  # type: ignore[arg-type]
    line = failed(capsys, "init")
    assert "KeyError: 'a\\x1b[31mb'; this is a fault in repertory: --debug shows where" in line
    assert main(["init", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("REPERTORY_FULL_TRACEBACKS", "1")
    assert main(["init"]) == 1
    assert "in broken" in capsys.readouterr().err


# Progress.

OPERATIONS: dict[
    str, tuple[Callable[[Sessions, Path, Callable[[OperationProgress], None]], Awaitable[object]], str, int]
] = {
    "export": (lambda s, d, p: s.export("marta", d / "marta.jsonl", progress=p), "records", 2),
    "import": (lambda s, d, p: s.import_(d / "paul.jsonl", session_id="new", progress=p), "lines", 4),
    "copy": (lambda s, d, p: s.copy("marta", SQLiteSessions(d / "other.db"), progress=p), "records", 2),
    "search": (lambda s, _, p: s.search("rye", progress=p), "sessions", 3),
    "expire": (lambda s, _, p: s.expire(0, progress=p), "sessions", 3),
    "doctor": (lambda s, _, p: s.doctor(progress=p), "sessions", 3),
}


@pytest.mark.real_time
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_long_operation_tells_how_far_it_has_come(name: str, shop: Path) -> None:
    operation, unit, total = OPERATIONS[name]
    told: list[OperationProgress] = []

    async def work() -> None:
        sessions = Sessions(SQLiteSessions(shop / "shop.db"))
        await sessions.export("paul", shop / "paul.jsonl")
        await operation(sessions, shop, told.append)

    anyio.run(work)
    assert told[-1] == OperationProgress(total, total, unit)
    assert [each.done for each in told] == sorted(each.done for each in told)
    assert all(each.total in (None, total) for each in told)


@pytest.mark.real_time
def test_what_progress_raises_ends_the_operation_and_nothing_is_half_done(shop: Path) -> None:
    def stop(at: OperationProgress) -> None:
        raise KeyError(at.unit)

    async def work() -> None:
        sessions = Sessions(SQLiteSessions(shop / "shop.db"))
        with pytest.raises(KeyError):
            await sessions.export("paul", shop / "paul.jsonl", progress=stop)
        with pytest.raises(KeyError):
            await sessions.copy("paul", SQLiteSessions(shop / "other.db"), progress=stop)

    anyio.run(work)
    assert not (shop / "paul.jsonl").exists()
    assert not (shop / "other.db").exists()


@pytest.mark.real_time
def test_a_bar_is_on_the_screen_while_it_lasts_and_nothing_is_where_nobody_looks(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = """
from repertory import OperationProgress
from repertory.console.progress_bar import ProgressBar
bar = ProgressBar(after_s=0.0)
bar(OperationProgress(3, 7, "sessions"))
input()
bar.close()
print("done")
"""
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(shop),
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm",
        "LANG": "C.UTF-8",
    }
    with on_screen([sys.executable, "-c", program], environ) as screen:
        screen.wait("3/7 sessions")
        screen.child.setecho(False)
        screen.type("\n")
        screen.wait("done")
        assert screen.end() == 0
        assert "3/7" not in screen.text
    assert main(["sessions", "doctor", "--at", "shop.db"]) == 0
    assert capsys.readouterr().err == ""


def test_a_quick_command_shows_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    bar = ProgressBar(clock=lambda: now)
    bar(OperationProgress(1, 2, "records"))
    now = 0.4
    bar(OperationProgress(2, 2, "records"))
    bar.close()
    bar(OperationProgress(2, 2, "records"))
    assert capsys.readouterr().err == ""


BASH = """
source <(repertory completion bash)
complete -p repertory > /dev/null || exit 3
COMP_LINE="$1" COMP_POINT=${#1} COMP_TYPE=9 _python_argcomplete repertory
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
autoload -U compinit && compinit -D
source <(repertory completion zsh)
[[ -n "$_comps[repertory]" ]] || exit 3
_describe() { print -l -- "${completions[@]}" }
words=(repertory) BUFFER="$1" CURSOR=${#1}
_python_argcomplete
"""
FISH = """
repertory completion fish | source
complete --do-complete $argv[1]
"""
SHELLS = {
    "bash": ("bash", "--norc", "-c", BASH, "bash"),
    "zsh": ("zsh", "-fc", ZSH, "zsh"),
    "fish": ("fish", "-Nc", FISH),
}


@pytest.mark.real_time
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_commands_and_their_options(shell: str, tmp_path: Path) -> None:
    pytest.importorskip("argcomplete", reason="the extra `terminal` is not installed whole: pip install argcomplete")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here: apt-get install {shell}")
    program = tmp_path / "repertory"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m repertory.console.main "$@"\n')
    program.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}

    def offered(line: str) -> set[str]:
        done = subprocess.run(
            [*SHELLS[shell], line], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return {offer.partition("\t")[0].partition(":")[0].strip() for offer in done.stdout.splitlines()}

    assert offered("repertory sessions re") == {"redact", "redact-text", "resend", "rewind"}
    assert offered("repertory chat --off") == {"--offline"}
