"""What the documents show of a terminal happens: each page's commands run in order, in one empty folder, offline."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.docs.markdown import Block, blocks, documents, files_before
from tests.docs.running import agrees, environment, in_postgres
from tests.source_tree import ROOT

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]

SKETCHES = ROOT / "docs/design"
PAGES = [
    page
    for page in documents()
    if page.parent != SKETCHES and any(b.language == "console" and b.mark != "not executed" for b in blocks(page))
]
PORT = 8000
"""Where the documents' services listen: the pages that have one take turns."""
PARSERS = {
    "json": json.loads,
    "jsonl": lambda text: [json.loads(line) for line in text.splitlines()],
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
}


@dataclass(frozen=True)
class Command:
    """One command of a page, and what it prints there."""

    text: str
    shown: str

    @property
    def in_background(self) -> bool:
        """Whether the page goes on while the command runs."""
        return self.text.rstrip().endswith("&")

    @property
    def status(self) -> int:
        """The exit status that the page announces by a comment, or 0."""
        announced = re.search(r"# exits with (\d+)\s*$", self.text)
        return int(announced[1]) if announced else 0


def commands(block: Block) -> list[Command]:
    """The commands of a console block."""
    found: list[tuple[list[str], list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif line.startswith("> ") and found and not found[-1][1]:
            found[-1][0].append(line[2:])
        else:
            assert found, f"{block.place}: output without a command"
            found[-1][1].append(line)
    return [Command("\n".join(typed), "\n".join(shown)) for typed, shown in found]


def script(page: Path, folder: Path) -> tuple[str, list[tuple[Block, Command]]]:
    """The page's commands as one bash script, which writes the output of each to a file of its own."""
    lines: list[str] = []
    run: list[tuple[Block, Command]] = []
    for number, (name, content) in enumerate(files_before(page).items()):
        stored = folder / f"before-{number}"
        stored.write_text(content, encoding="utf-8")
        lines += [f"mkdir -p $(dirname {name})", f"cp {stored} {name}"]
    for number, block in enumerate(blocks(page)):
        if block.mark == "file":
            stored = folder / f"block-{number}"
            stored.write_text(block.text, encoding="utf-8")
            lines += [f"mkdir -p $(dirname {block.note})", f"cp {stored} {block.note}"]
        elif block.language == "console" and block.mark != "not executed":
            for command in commands(block):
                output = folder / f"output-{len(run)}"
                run.append((block, command))
                if command.in_background:
                    lines += [f"{command.text.rstrip()[:-1]} > {output} 2>&1 &"]
                else:
                    lines += [f"{{\n{command.text}\n}} > {output} 2>&1", f"echo $? > {output}.status"]
    return "\n".join(lines) + "\n", run


def needs_postgres(page: Path) -> bool:
    """Whether what runs of a page speaks of PostgreSQL: then it gets a database."""
    run = [b for b in blocks(page) if b.mark == "file" or (b.language == "console" and b.mark != "not executed")]
    return any("postgres" in text.lower() for text in [*(b.text for b in run), *files_before(page).values()])


@contextmanager
def port_to_itself(page: Path) -> Iterator[None]:
    """Waits until no other page of this run has the port, and says so if another program has it.

    A process that the page before has left, and that closed what it was given, may be killed and not gone yet.
    """
    if str(PORT) not in page.read_text(encoding="utf-8"):
        yield
        return
    with (Path(tempfile.gettempdir()) / f"repertory-docs-{PORT}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for tries_left in reversed(range(100)):
            try:
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", PORT))
                break
            except OSError:
                if not tries_left:
                    raise
                threading.Event().wait(0.1)
        yield


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder, kept = tmp_path / "shell", tmp_path / "kept"
    folder.mkdir()
    kept.mkdir()
    text, run = script(page, kept)
    complaints = kept / "stderr"
    held, holding = os.pipe()
    database = in_postgres(request.getfixturevalue("postgres")) if needs_postgres(page) else {}
    with port_to_itself(page), complaints.open("w") as stderr:
        shell = subprocess.Popen(
            ["bash", "-c", text],
            cwd=folder,
            env=environment(folder, **database),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=[holding],
            start_new_session=True,
        )
        os.close(holding)
        try:
            shell.wait(timeout=90)
        finally:
            _end(shell, held)
    for number, (block, command) in enumerate(run):
        if command.in_background:
            continue
        output = kept / f"output-{number}"
        printed = output.read_text() if output.exists() else ""
        place = f"{block.place}: $ {command.text}\n{printed}{complaints.read_text()}"
        assert (kept / f"output-{number}.status").read_text().strip() == str(command.status), place
        assert agrees(command.shown, printed), place


def _end(shell: subprocess.Popen[bytes], held: int) -> None:
    """Kill what the page has left running, and wait until it is gone: the last of it closes the pipe that all hold."""
    with suppress(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGKILL)
    shell.wait()
    with open(held, "rb") as pipe:
        pipe.read()


@pytest.mark.parametrize("page", documents(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_of_a_page_is_run_or_read_or_says_why_not(page: Path) -> None:
    if page.parent == SKETCHES:
        return
    found = blocks(page)
    fences = re.findall(r"^\s*```", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(found), f"{page.name}: a fence that is indented or never closed"
    has_console = any(block.language == "console" for block in found)
    for block in found:
        if block.mark == "not executed":
            assert block.note, f"{block.place}: say why it is not executed"
        elif block.mark == "file":
            assert has_console, f"{block.place}: no command of the page uses {block.note}"
        elif block.language in PARSERS:
            PARSERS[block.language](block.text)
        else:
            assert block.language not in {"sh", "bash", "sql"}, f"{block.place}: make it a console block that runs"
