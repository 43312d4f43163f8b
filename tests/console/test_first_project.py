"""`repertory init`: what it makes runs at once, in a folder that holds nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from repertory.console.first_project import TEMPLATES, project_files, source, write_new
from repertory.console.main import main
from repertory.errors import AlreadyExists, Invalid
from tests.source_tree import ROOT

pytestmark = pytest.mark.real_time


def ran(folder: Path, *command: str, said: str = "") -> str:
    """What a program of the folder prints."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environ,
        input=said,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_init_makes_runs_and_its_tests_pass(
    template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my shop"
    assert main(["init", str(folder), "--template", template]) == 0
    printed = capsys.readouterr().out
    told = {Path(line).name for line in printed.split("\n\n")[0].splitlines()}
    assert {path.name for path in folder.iterdir()} == told
    assert (folder / "README.md").read_text().startswith("# my shop\n")
    assert len((folder / "README.md").read_text().splitlines()) <= 13
    tests = ran(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error")
    assert " passed" in tests
    if template == "agent":
        assert "[offline] It is 2" in ran(folder, "agent.py")
        assert "(6 messages are stored.)" in ran(folder, "agent.py", "My dog is called Rex.")
        assert "Your dog is Rex." in ran(folder, "agent.py", "what is my dog?")
    if template == "worker":
        jobs = (folder / "jobs.txt").read_text()
        lines = sorted(ran(folder, "worker.py", said=jobs).splitlines())
        assert lines[0] == "marta: [offline] Noted: your stall is Warm Crumb."
        again = sorted(ran(folder, "worker.py", said=jobs).splitlines())
        assert again == lines, "the same jobs are the same turns"


def test_init_never_overwrites_and_then_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text("mine")
    assert main(["init"]) == 1
    assert "never overwrites" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["agent.py"]
    assert (tmp_path / "agent.py").read_text() == "mine"
    with pytest.raises(Invalid):
        write_new(tmp_path / "agent.py", {"a": ""})
    with pytest.raises(AlreadyExists):
        write_new(tmp_path, {"b": "", "agent.py": ""})


@pytest.mark.parametrize("name", ['"""\nimport os', "ça va", "$(reboot)", ""])
def test_no_name_of_a_folder_breaks_its_programs(name: str) -> None:
    for template in TEMPLATES:
        for file, text in project_files(name, template).items():
            if file.endswith(".py"):
                compile(text, file, "exec")


def test_what_init_makes_is_formatted_as_this_project_is(tmp_path: Path) -> None:
    for template in TEMPLATES:
        write_new(tmp_path / template, project_files("shop", template))
    for command in (["check", "--select", "E,F,B"], ["format", "--check"]):
        ran(tmp_path, "-m", "ruff", *command, "--isolated", "--line-length", "120", str(tmp_path))


def test_a_project_needs_the_package_from_where_it_was_installed() -> None:
    wheel = "https://files.example/repertory-0.1.0-py3-none-any.whl"
    commit = {"url": "https://code.example/repertory", "vcs_info": {"vcs": "git", "commit_id": "4f2a"}}
    assert source(None) == ""
    assert source(json.dumps({"url": wheel, "archive_info": {}})) == f" @ {wheel}"
    assert source(json.dumps(commit)) == " @ git+https://code.example/repertory@4f2a"
    first = project_files("shop", "agent")["requirements.txt"].splitlines()[0]
    assert Requirement(first.partition("  #")[0]).name == "repertory"
