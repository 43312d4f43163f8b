"""The examples in docstrings run, as doctest runs them: offline, in an empty folder, on each event loop. And what
docstrings say of errors is whole.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.running import environment
from tests.source_tree import PACKAGE, SourceFile, read

pytestmark = pytest.mark.real_time

FILES = [file for file in read(PACKAGE) if ">>> " in file.text]

RUN = """
import doctest, importlib, sys

if sys.argv[2] != "asyncio":
    import anyio
    anyio.run.__kwdefaults__["backend"] = sys.argv[2]
flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
results = doctest.testmod(importlib.import_module(sys.argv[1]), optionflags=flags)
sys.exit(0 if results.attempted and not results.failed else 1)
"""


def _on_loops() -> Iterator[tuple[SourceFile, str]]:
    """Each module with examples, and on trio as well those whose examples start an event loop."""
    for file in FILES:
        yield file, "asyncio"
        if ">>> anyio.run(" in file.text:
            yield file, "trio"


@pytest.mark.parametrize(
    ("file", "loop"), [pytest.param(*case, id=f"{case[0].module}-{case[1]}") for case in _on_loops()]
)
def test_examples_in_docstrings_run(file: SourceFile, loop: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, file.module, loop]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def _contracts() -> list[tuple[str, str]]:
    """Each docstring of the package without its code, and where it stands."""
    return [
        (file.at(node), re.sub(r"``.*?``|`[^`]*`", "code", text.partition("\nExamples:")[0], flags=re.DOTALL))
        for file in read(PACKAGE)
        for node in (*file.functions(), *file.classes())
        if (text := ast.get_docstring(node))
    ]


def test_a_parenthesis_of_a_docstring_is_closed() -> None:
    assert not [place for place, text in _contracts() if text.count("(") != text.count(")")]


def test_two_errors_of_one_docstring_come_in_different_cases() -> None:
    twice: list[str] = []
    for place, text in _contracts():
        raises = re.search(r"^Raises:\n(.*?)(?=\n\S|\Z)", text, re.DOTALL | re.MULTILINE)
        entries = (
            re.findall(r"^    \w[\w.]*: (.*?)(?=\.(?:\s|\Z))", raises[1], re.DOTALL | re.MULTILINE) if raises else []
        )
        if len({" ".join(entry.split()) for entry in entries}) < len(entries):
            twice.append(place)
    assert not twice
