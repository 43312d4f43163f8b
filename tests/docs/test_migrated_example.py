"""The example that moved from strands-agents gives the same answers before and after, and keeps its sessions."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from repertory.compat.migration import migrated
from tests.docs.markdown import blocks
from tests.docs.running import environment
from tests.source_tree import ROOT

pytestmark = pytest.mark.real_time

FOLDER = ROOT / "examples/migrated_from_strands"
BEFORE, AFTER = str(FOLDER / "before.py"), str(FOLDER / "after.py")
STRANDS = Path(os.environ.get("REPERTORY_STRANDS_PYTHON") or ROOT / "tests/peers/strands/bin/python")
CALLS = (
    ("marta", "Do you have a chain?", "Book my red bike on tuesday, please."),
    ("marta", "And on sunday?", "Do you have any bells?", "Then for friday.", "Hello"),
)
needs_strands = pytest.mark.skipif(
    not STRANDS.exists(), reason="NOT TESTED against strands-agents: `make peers` installs it"
)


def _answers(folder: Path, call: tuple[str, ...], *program: str) -> str:
    variables = {**environment(folder), "WORKSHOP_DATA": str(folder / "workshop"), "OTEL_SDK_DISABLED": "true"}
    done = subprocess.run([*program, *call], env=variables, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_shows_every_line_that_changed() -> None:
    before, after = ((FOLDER / name).read_text().splitlines() for name in ("before.py", "after.py"))
    changes = difflib.unified_diff(before, after, "before.py", "after.py", n=0, lineterm="")
    shown = [block.text for block in blocks(FOLDER / "README.md") if block.language == "diff"]
    assert shown == ["".join(f"{line.rstrip()}\n" for line in changes)]


def test_migrate_has_nothing_to_say_about_the_program() -> None:
    assert not migrated((FOLDER / "before.py").read_text()).notes


def test_the_program_gives_the_same_answers_unchanged_on_repertory(tmp_path: Path) -> None:
    for number, call in enumerate(CALLS):
        unchanged = _answers(tmp_path / "before", call, sys.executable, "-m", "repertory.strands", BEFORE)
        assert unchanged == _answers(tmp_path / "after", call, sys.executable, AFTER), number


@needs_strands
def test_the_program_gives_the_same_answers_on_strands_agents(tmp_path: Path) -> None:
    for number, call in enumerate(CALLS):
        before = _answers(tmp_path / "before", call, str(STRANDS), BEFORE)
        assert before == _answers(tmp_path / "after", call, sys.executable, AFTER), number


@needs_strands
def test_each_program_goes_on_with_the_conversations_of_the_other(tmp_path: Path) -> None:
    programs = (str(STRANDS), BEFORE), (sys.executable, AFTER)
    for number, call in enumerate(CALLS):
        changing = _answers(tmp_path / "changing", call, *programs[number % 2])
        assert changing == _answers(tmp_path / "alone", call, sys.executable, AFTER), number
