"""The table of names against the released package: every module is here, or absent for a reason that is told."""

from __future__ import annotations

import json
import subprocess
from importlib import import_module
from inspect import signature
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


_NO_TASKS = "the mcp package has no such calls of a client; give the MCPClient a longer call_timeout_s"
_TASK_CALLS = ("submit_tool", "get_task", "update_task", "cancel_task")
ABSENT_MEMBERS = {
    **{f"tools.mcp.MCPClient.{call}_{kind}": _NO_TASKS for call in _TASK_CALLS for kind in ("async", "sync")},
    "multiagent.a2a.StrandsA2AExecutor.DEFAULT_FORMATS": "how formats of files are named is its own",
    "multiagent.a2a.StrandsA2AExecutor.FORMAT_MAPPINGS": "how formats of files are named is its own",
    "storage.search.KeywordSearchStrategy.requires_host_fs": "any strategy will do, and reads by the storage alone",
}
"""Members of the released package's classes that are not here on purpose, and why."""
ABSENT_PARAMETERS = {
    "tools.mcp.MCPClient.__init__.tasks_config": _NO_TASKS,
    ".ToolContext.__init__.cancel_signal": "it is the agent's: a context made by hand has signal=lambda: event",
    "middleware.ExecuteToolContext.__init__._interrupt_state": "private",
    "interventions.Transform.apply.e": "a field: the parameter's name is that of the function that was given",
}
"""Parameters of them that are not here on purpose, and why."""


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


def here(path: str) -> object:
    """The class or member of a path; an error if it is not here."""
    module, _, name = path.rpartition(".")
    if module in MODULES and name in MODULES[module]:
        place, _, attribute = MODULES[module][name].partition(":")
        return getattr(import_module(place), attribute)
    return getattr(here(module), name)


@pytest.mark.parametrize("path", ABSENT_MEMBERS)
def test_a_member_that_is_absent_on_purpose_is_not_here(path: str) -> None:
    owner, _, member = path.rpartition(".")
    assert not hasattr(here(owner), member)


@pytest.mark.parametrize("path", ABSENT_PARAMETERS)
def test_a_parameter_that_is_absent_on_purpose_is_not_here(path: str) -> None:
    owner, _, parameter = path.rpartition(".")
    assert parameter not in signature(here(owner)).parameters  # type: ignore[arg-type]


def test_nothing_is_both_here_and_absent() -> None:
    for path, names in MODULES.items():
        for name in names:
            assert f"{path}.{name}" not in ABSENT
