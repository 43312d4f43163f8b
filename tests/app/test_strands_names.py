"""The table of names against the released package: every module is here, or absent for a reason that is told."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from repertory.app.strands.modules import refuse_absent
from repertory.app.strands.table import ABSENT, MODULES

PEERS = Path(__file__).parents[1] / "peers"
PYTHON = PEERS / "strands/bin/python"

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="NOT TESTED against strands-agents: `make peers` installs it"
)


@pytest.fixture(scope="module")
def released() -> dict[str, list[str]]:
    done = subprocess.run([PYTHON, PEERS / "strands_names.py"], capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def is_told(path: str) -> bool:
    """Whether using the name says what to use instead."""
    try:
        refuse_absent(path)
    except ImportError:
        return True
    return False


def test_every_module_is_here_or_absent_for_a_reason(released: dict[str, list[str]]) -> None:
    assert [path for path in released if path not in MODULES and not is_told(path)] == []


def test_the_table_names_nothing_that_the_released_package_does_not_have(released: dict[str, list[str]]) -> None:
    assert sorted(set(MODULES) - set(released)) == []
    whole = {f"{path}.{name}".removeprefix(".") for path, names in released.items() for name in names} | set(released)
    gone = [path for path in ABSENT if path not in whole and not any(each.startswith(f"{path}.") for each in whole)]
    assert gone == []


def test_every_name_is_here_or_absent_for_a_reason(released: dict[str, list[str]]) -> None:
    wholes = [f"{path}.{name}" if path else name for path, names in released.items() for name in names]
    here = {f"{path}.{name}" if path else name for path, names in MODULES.items() for name in names} | set(MODULES)
    assert [whole for whole in wholes if whole not in here and not is_told(whole)] == []


def test_nothing_is_both_here_and_absent() -> None:
    for path, names in MODULES.items():
        for name in names:
            assert f"{path}.{name}" not in ABSENT
