"""The programs that mypy and pyright check in `tests/typing`: they run, and there are enough of them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.source_tree import ROOT

FOLDER = ROOT / "tests/typing"
PROGRAMS = sorted((FOLDER / "programs").glob("*.py"))
PLANTED = re.compile(r"# type: ignore\[.*# pyright: ignore\[")

pytestmark = pytest.mark.real_time


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_that_type_checkers_accept_runs_and_prints(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(program), run_name="__main__")
    assert capsys.readouterr().out


def test_there_are_twenty_programs_and_forty_mistakes_that_both_checkers_find() -> None:
    mistakes = [line for path in FOLDER.glob("*_fail.py") for line in path.read_text().splitlines()]
    assert len(PROGRAMS) >= 20
    assert len([line for line in mistakes if PLANTED.search(line)]) >= 40
