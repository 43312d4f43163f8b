"""`repertory migrate`: only imports change, and what is different is said with its line."""

from __future__ import annotations

import ast
import subprocess
from io import StringIO
from pathlib import Path

import pytest

from repertory.compat.migration import migrate, migrated
from repertory.console.main import main


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from strands import Agent, tool", "from repertory import Agent\nfrom repertory.strands import tool"),
        ("from strands import Agent as A", "from repertory import Agent as A"),
        (
            "from strands.session.file_session_manager import FileSessionManager",
            "from repertory import FileSessionManager",
        ),
        ("from strands.types.tools import ToolUse", "from repertory.strands.types.tools import ToolUse"),
        ("from strands_tools import calculator", "from repertory.strands_tools import calculator"),
        ("import strands", "from repertory import strands"),
        ("import strands.hooks as h", "import repertory.strands.hooks as h"),
        ("import strands.hooks", "import repertory.strands.hooks\nfrom repertory import strands"),
        ("import os, strands", "import os\nfrom repertory import strands"),
        ("from strandsx import y", "from strandsx import y"),
        ("from strands_evals import Case", "from strands_evals import Case"),
        ("from strands_agents_sops import sop", "from strands_agents_sops import sop"),
        ("from . import strands", "from . import strands"),
        ("x = 'from strands import Agent'", "x = 'from strands import Agent'"),
    ],
)
def test_imports_become_those_of_this_package(before: str, after: str) -> None:
    assert migrated(before).source == after


def test_everything_else_stays_to_the_character() -> None:
    before = (
        "# ünïcode\nif True:\n    from strands import (\n        Agent,  # one\n        tool,\n    ); x = 'é'\n\n\n"
        "def f():\n\timport strands.hooks as h\n\treturn h   \n"
    )
    after = (
        "# ünïcode\nif True:\n    from repertory import Agent\n    from repertory.strands import tool; x = 'é'\n\n\n"
        "def f():\n\timport repertory.strands.hooks as h\n\treturn h   \n"
    )
    assert migrated(before).source == after
    ast.parse(after)


def test_names_of_one_import_go_where_each_of_them_lives() -> None:
    before = "if x:\n\tfrom strands.types.content import ContentBlock\n\tfrom strands import Agent, Agents\n"
    after = (
        "if x:\n\tfrom repertory.strands.types.content import ContentBlock\n"
        "\tfrom repertory import Agent\n\tfrom repertory.strands import Agents\n"
    )
    assert migrated(before).source == after


def test_what_is_different_is_said_with_its_line() -> None:
    program = (
        "from strands import Agent\nfrom strands.bidi import BidiAgent\n"
        "agent = Agent(\n    tools=[],\n    background_tasks=True, checkpointing=True,\n)\nagent._interrupt_state\n"
    )
    notes = migrated(program).notes
    assert migrated(program.replace("checkpointing=True", "checkpointing=False")).notes == [notes[0], notes[2]]
    assert [(note.line, note.anchor) for note in notes] == [(2, "not-here"), (5, "arguments"), (7, "private")]
    assert "there are no speech agents" in str(notes[0])


def test_a_second_migration_changes_nothing() -> None:
    once = migrated("from strands import Agent\nimport strands.hooks\nfrom strands_tools import shell\n").source
    assert migrated(once).source == once


def test_check_changes_nothing_and_fails_while_there_is_something_to_change(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from strands import Agent\n")
    (tmp_path / "b.py").write_text("print('nothing of it')\n")
    (tmp_path / "c.py").write_text("from strands import (\n")
    said = StringIO()
    assert migrate([str(tmp_path)], check=True, out=said) == 1
    assert (tmp_path / "a.py").read_text() == "from strands import Agent\n"
    assert "a.py: would be changed" in said.getvalue()
    assert "c.py:1: not changed" in said.getvalue()
    (tmp_path / "c.py").unlink()
    assert migrate([str(tmp_path)], check=False, out=said) == 0
    assert (tmp_path / "a.py").read_text() == "from repertory import Agent\n"
    assert migrate([str(tmp_path)], check=True, out=said) == 0


def test_the_command_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("from strands import Agent\n")
    assert main(["migrate", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/a.py: changed\n1 program changed\n"
    assert main(["migrate", str(tmp_path / "missing")]) == 1
    assert "no such file or folder" in capsys.readouterr().err


@pytest.mark.parametrize(("choice", "noted"), [("'agentic'", False), ("{'stash': False}", True), ("'auto'", False)])
def test_a_context_manager_that_is_not_here_is_said_with_its_line(choice: str, noted: bool) -> None:
    notes = migrated(f"from strands import Agent\nAgent(\n    context_manager={choice},\n)\n").notes
    assert [(note.line, "context_manager" in note.text) for note in notes] == ([(3, True)] if noted else [])


@pytest.mark.real_time
def test_the_command_of_the_guide_changes_the_sdks_names_alone() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/coming-from-strands.md").read_text()
    script = next(line.split("'")[1] for line in guide.splitlines() if line.startswith("$ sed "))
    lines = [
        "from strands import Agent",
        "from strands.models import Model",
        "    from strands_tools import shell",
        "from strands_evals import Case",
        "from strands_agents_sops import sop",
    ]
    done = subprocess.run(["sed", "-E", script], input="\n".join(lines), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "from repertory.strands import Agent",
        "from repertory.strands.models import Model",
        "    from repertory.strands_tools import shell",
        *lines[3:],
    ]
