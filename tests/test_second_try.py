"""What a run of tests says when a few of them fail beside others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.second_try import FORGIVEN, verdict
from tests.source_tree import ROOT

ONCE = """
from pathlib import Path
def test_fails_the_first_time():
    seen = Path("seen")
    again = seen.exists()
    seen.touch()
    assert again
"""
NEVER = "def test_fails_each_time():\n    assert False\n"
BROKEN = "import nothing_of_this_name\n"


def run(folder: Path, **files: str) -> tuple[int, str]:
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    script = ROOT / "tests/second_try.py"
    done = subprocess.run([sys.executable, str(script), "-q"], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.real_time
def test_a_test_that_passes_alone_is_named_and_forgiven(tmp_path: Path) -> None:
    code, printed = run(tmp_path, once=ONCE)
    assert code == 0
    assert "FAILED BESIDE OTHERS: test_once.py::test_fails_the_first_time" in printed


@pytest.mark.real_time
def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    code, printed = run(tmp_path, never=NEVER, once=ONCE)
    assert code == 1
    assert "failed again" in printed


@pytest.mark.real_time
def test_many_failures_and_files_that_cannot_be_read_get_no_second_try(tmp_path: Path) -> None:
    many = {f"once{number}": ONCE.replace('"seen"', f'"{number}"') for number in range(FORGIVEN + 1)}
    (tmp_path / "many").mkdir()
    (tmp_path / "broken").mkdir()
    assert run(tmp_path / "many", **many)[0] == 1
    assert run(tmp_path / "broken", broken=BROKEN)[0] == 2


@pytest.mark.parametrize("code", [2, 3, 4, 5])
def test_a_run_that_broke_off_is_never_forgiven(code: int) -> None:
    assert verdict(code, ["a::b"], 0) == (code, "")
