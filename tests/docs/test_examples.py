"""The programs in the documents and in examples/ run, each in a fresh interpreter, offline, in an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import Example, blocks, documents, examples
from tests.docs.running import agrees, environment, in_postgres
from tests.source_tree import ROOT

pytestmark = pytest.mark.real_time

ASYNC = re.compile(r"^\s*async def |^(?:await|async) ", re.MULTILINE)
ONE_LOOP = re.compile(r"\basyncio\b|\buvicorn\b|\btrio\.run\b|backend=")
"""What a program that has chosen its event loop itself names."""

PROGRAMS = [example for document in documents() for example in examples(document)]
FILES = sorted(path for path in (ROOT / "examples").glob("*.py") if not path.name.startswith("_"))

RUN = """
import ast, inspect, linecache, sys, types

name, path = sys.argv[1], sys.argv[2]
with open(path, encoding="utf-8") as file:
    text = file.read()
linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
program = compile(text, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
if sys.argv[3] != "asyncio":
    import anyio
    anyio.run.__kwdefaults__["backend"] = sys.argv[3]
module = sys.modules["__main__"] = types.ModuleType("__main__")
if program.co_flags & inspect.CO_COROUTINE:
    import anyio
    async def main():
        await eval(program, vars(module))
    anyio.run(main)
else:
    exec(program, vars(module))
"""


def _run(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder that is also its home, without anybody's credentials."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=50,
    )


def _on_loops() -> Iterator[tuple[Example, str]]:
    """Each program, on each event loop that it could run on."""
    for example in PROGRAMS:
        yield example, "asyncio"
        if ONE_LOOP.search(example.source) is None and ASYNC.search(example.source) is not None:
            yield example, "trio"


def test_what_people_type_fits_beside_the_menu_of_the_site() -> None:
    """Programs, commands and configurations. The site wraps output and records, which are as wide as they are made."""
    longer = [
        f"{block.place}: {line}"
        for document in documents()
        if not document.is_relative_to(ROOT / "docs/design")
        and not document.is_relative_to(ROOT / "docs/reference/api")
        for block in blocks(document)
        if block.language not in ("text", "jsonl", "diff") and document.stem != "journal-format"  # which has records
        for line in block.text.splitlines()
        if len(line) > 88 and (block.language != "console" or line.startswith(("$ ", "> ")))
    ]
    assert not longer, "\n".join(longer)


def test_programs_run_as_a_file_too() -> None:
    """`await` outside of a function is for notebooks."""
    wrong: list[str] = []
    for document in documents():
        for example in examples(document):
            try:
                compile(example.source, example.place, "exec")
            except SyntaxError as error:
                wrong.append(f"{example.place}: {error.msg}, line {error.lineno}")
    assert not wrong, "\n".join(wrong)


def test_the_readme_shows_programs() -> None:
    assert any(example.place.startswith("README.md:") for example in PROGRAMS)


@pytest.mark.parametrize(
    ("example", "loop"), [pytest.param(*case, id=f"{case[0].place}-{case[1]}") for case in _on_loops()]
)
def test_program_in_a_document_runs_and_prints_what_is_shown(
    example: Example, loop: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    program = tmp_path / "example.txt"
    program.write_text(example.source, encoding="utf-8")
    folder = tmp_path / "empty"
    folder.mkdir()
    place = in_postgres(request.getfixturevalue("postgres")) if "Postgres" in example.source else {}
    done = _run(folder, "-c", RUN, example.place.rpartition(":")[0], str(program), loop, **place)
    assert done.returncode == 0, f"{example.place}\n{done.stdout}{done.stderr}"
    assert agrees(example.prints or "", done.stdout), f"{example.place}\n{done.stdout}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_example_file_runs(path: Path, tmp_path: Path) -> None:
    done = _run(tmp_path, str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_example_files() -> None:
    assert FILES
