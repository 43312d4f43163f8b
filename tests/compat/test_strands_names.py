"""The tables of names against the released package: every module is here, or absent for a reason that is told, and
every member and parameter of what is here.
"""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import textwrap
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from repertory.compat.modules import refuse_absent
from repertory.compat.table import ABSENT, MODULES, UNMADE
from tests.compat import strands_members

PEERS = Path(__file__).parents[1] / "peers"
PYTHON = PEERS / "strands/bin/python"

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="NOT TESTED against strands-agents: `make peers` installs it"
)


Members = dict[str, dict[str, list[str] | None]]


@cache
def read_peer() -> dict[str, Any]:
    done = subprocess.run([PYTHON, PEERS / "strands_names.py"], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def released() -> dict[str, list[str]]:
    found: dict[str, list[str]] = read_peer()["names"]
    return found


@pytest.fixture(scope="module")
def missing() -> set[str]:
    """What members and parameters of the released package ours have not: see `strands_members`."""
    members: Members = read_peer()["members"]
    return {each for whole, wanted in members.items() for each in lacking(whole, wanted)}


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
    # The documents of the SDK name the first one, and released packages import from the others.
    more = {"session.agent_session_manager", "tools.executors._executor", "types._events"}
    assert set(MODULES) - set(released) == more
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


def test_every_member_and_parameter_is_here_or_absent_for_a_reason(missing: set[str]) -> None:
    told = [pattern for names in strands_members.ABSENT.values() for pattern in names.split()]
    untold = [each for each in missing if not any(fnmatchcase(each, pattern) for pattern in told)]
    assert sorted(untold) == []


def test_what_is_told_as_absent_is_absent(missing: set[str]) -> None:
    told = [pattern for names in strands_members.ABSENT.values() for pattern in names.split()]
    assert [pattern for pattern in told if not any(fnmatchcase(each, pattern) for each in missing)] == []


def lacking(whole: str, wanted: dict[str, list[str] | None]) -> Iterator[str]:
    """What our class or function of that name has not."""
    module, _, name = whole.rpartition(".")
    place = MODULES.get(module, {}).get(name)
    if place is None or place.startswith(UNMADE):
        return
    home, _, attribute = place.partition(":")
    ours: object = getattr(import_module(home), attribute)
    for member, parameters in wanted.items():
        direct = member in ("()", "__init__")
        if not direct and not has_member(ours, member):
            yield f"{name}.{member}"
        elif parameters is not None:
            taken = parameters_of(ours if direct else getattr(ours, member, None))
            label = name if direct else f"{name}.{member}"
            yield from (f"{label}({each})" for each in parameters if taken is not None and each not in taken)


def parameters_of(ours: object) -> set[str] | None:
    """The names of a callable's parameters; None if it takes any, or says nothing of them."""
    if not callable(ours):
        return None
    try:
        found = inspect.signature(ours).parameters
    except (TypeError, ValueError):
        return None
    return None if any(each.kind is each.VAR_KEYWORD for each in found.values()) else set(found)


def has_member(ours: object, name: str) -> bool:
    """Whether it has that member: an attribute, a field, or what its methods set on `self`."""
    classes = ours.__mro__[:-1] if isinstance(ours, type) else ()
    return (
        hasattr(ours, name)
        or any(name in inspect.get_annotations(each) or name in attributes_set(each) for each in classes)
        or name in getattr(ours, "__annotations__", {})
    )


@cache
def attributes_set(kind: type) -> frozenset[str]:
    """What the methods of a class, as it is written, set on `self`."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError):
        return frozenset()
    stored = [each for each in ast.walk(tree) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)]
    return frozenset(each.attr for each in stored if isinstance(each.value, ast.Name) and each.value.id == "self")
