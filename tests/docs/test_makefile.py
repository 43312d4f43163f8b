"""Each command of the Makefile is one that a shell can read, also those that no other test runs."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.source_tree import ROOT

pytestmark = pytest.mark.real_time

TARGETS = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("target", TARGETS)
def test_a_shell_can_read_what_a_target_runs(target: str) -> None:
    made = subprocess.run(
        ["make", "--just-print", "--always-make", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    read = subprocess.run(["sh", "-n"], input=made.stdout, capture_output=True, text=True, check=False)
    assert not read.stderr
