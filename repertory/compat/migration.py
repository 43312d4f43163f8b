"""`repertory migrate`: programs of the SDK with the imports of this package, and what they do differently then."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from repertory.compat.table import MODULES, UNMADE, reason_absent

DIFFERENCES = "docs/guides/coming-from-strands.md"
_AGENT = MODULES[""]["Agent"]
"""The class that `repertory.Agent` stands for after a migration."""


class MigrationNote(NamedTuple):
    """A line of a program that behaves differently here, with the place of the explanation."""

    line: int
    text: str
    anchor: str

    def __str__(self) -> str:
        return f"{self.text} ({DIFFERENCES}#{self.anchor})"


class Migration(NamedTuple):
    """A program with its imports changed, and the notes for whoever reads it, in the order of its lines."""

    source: str
    notes: Sequence[MigrationNote]


def migrated(source: str) -> Migration:
    """The program, changed. Only import statements change; everything else stays as it is, to the character.

    Errors: `SyntaxError` for what is no Python program.
    """
    tree = ast.parse(source)
    text = source.encode()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    notes: list[MigrationNote] = []
    changes: list[tuple[int, int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            instead = _from(node, notes) if isinstance(node, ast.ImportFrom) else _import(node, notes)
            if instead is not None:
                begin = starts[node.lineno - 1] + node.col_offset
                end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
                before = text[starts[node.lineno - 1] : begin].decode()
                separator = f"\n{before}" if not before.strip() else "; "
                changes.append((begin, end, separator.join(instead)))
    notes += _used_differently(tree)
    for begin, end, instead_text in sorted(changes, reverse=True):
        text = text[:begin] + instead_text.encode() + text[end:]
    return Migration(text.decode(), sorted(notes))


def _from(node: ast.ImportFrom, notes: list[MigrationNote]) -> list[str] | None:
    if node.level or node.module is None:
        return None
    package, _, path = node.module.partition(".")
    if package == "strands_tools":
        return [f"from repertory.{node.module} import {_names(node.names)}"]
    if package != "strands":
        return None
    known = MODULES.get(path, {})
    short = [each for each in node.names if known.get(each.name) in (f"repertory:{each.name}", _AGENT)]
    others = [each for each in node.names if each not in short]
    for each in others:
        reason = _reason(f"{path}.{each.name}" if path else each.name)
        if reason is not None:
            notes.append(MigrationNote(node.lineno, f"strands.{path}.{each.name} is not here: {reason}", "not-here"))
    lines = [f"from repertory import {_names(short)}"] if short else []
    if others:
        lines.append(f"from repertory.{node.module} import {_names(others)}")
    return lines


def _import(node: ast.Import, notes: list[MigrationNote]) -> list[str] | None:
    if not any(each.name.partition(".")[0] in ("strands", "strands_tools") for each in node.names):
        return None
    lines: list[str] = []
    for each in node.names:
        package, _, path = each.name.partition(".")
        if package not in ("strands", "strands_tools"):
            lines.append(f"import {_names([each])}")
            continue
        reason = _reason(path) if package == "strands" and path else None
        if reason is not None:
            notes.append(MigrationNote(node.lineno, f"{each.name} is not here: {reason}", "not-here"))
        if each.asname is not None:
            lines.append(f"import repertory.{each.name} as {each.asname}")
        else:
            lines += [f"import repertory.{each.name}"] if path else []
            lines.append(f"from repertory import {package}")
    return lines


def _names(names: Iterable[ast.alias]) -> str:
    return ", ".join(each.name if each.asname is None else f"{each.name} as {each.asname}" for each in names)


def _reason(path: str) -> str | None:
    home, _, name = path.rpartition(".")
    target = MODULES.get(home, {}).get(name, "")
    if not target.startswith(UNMADE) and (path in MODULES or target or name == "*"):
        return None
    return reason_absent(path) or "no such name in the SDK 1.62"


def _used_differently(tree: ast.Module) -> Iterator[MigrationNote]:
    """Arguments of agents that are not here, and what starts with an underscore."""
    from repertory.app.agent.agent import Agent

    accepted = inspect.signature(Agent.__init__).parameters
    agents = {
        each.asname or each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "strands"
        for each in node.names
        if each.name == "Agent"
    }
    made: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in agents:
            for keyword in node.keywords:
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else keyword.value
                turned_on = keyword.arg == "checkpointing" and value not in (False, None)
                if keyword.arg is not None and (turned_on or keyword.arg not in accepted):
                    yield MigrationNote(keyword.value.lineno, f"Agent has no argument {keyword.arg}", "arguments")
                if keyword.arg == "context_manager" and isinstance(value, ast.Dict):
                    text = "context_manager is 'auto', 'agentic' or False here"
                    yield MigrationNote(keyword.value.lineno, text, "arguments")
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Name) and function.id in agents:
                made |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        if isinstance(node.value, ast.Name) and node.value.id in made:
            yield MigrationNote(node.lineno, f"an agent's {node.attr} is the SDK's own, and is not here", "private")


def migrate(paths: Sequence[str], *, check: bool, out: TextIO | None = None) -> int:
    """Change programs in place; `check`: only say what would change. Folders are searched for `*.py`.

    Returns 0, or 1 if `check` has found something to change, or a file that is no Python program was left as it is.
    Errors: `FileNotFoundError`, `OSError`.
    """
    out = out or sys.stdout
    changed = failed = 0
    for path in _programs(paths):
        source = path.read_text(encoding="utf-8")
        if "strands" not in source:
            continue
        try:
            result = migrated(source)
        except SyntaxError as error:
            print(f"{path}:{error.lineno}: not changed: {error.msg}", file=out)
            failed += 1
            continue
        if result.source != source:
            changed += 1
            print(f"{path}: {'would be changed' if check else 'changed'}", file=out)
            if not check:
                path.write_text(result.source, encoding="utf-8")
        for note in result.notes:
            print(f"{path}:{note.line}: {note}", file=out)
    print(f"{changed} {'program' if changed == 1 else 'programs'} {'to change' if check else 'changed'}", file=out)
    return 1 if failed or (check and changed) else 0


def _programs(paths: Sequence[str]) -> Iterator[Path]:
    for each in map(Path, paths):
        if not each.exists():
            raise FileNotFoundError(f"no such file or folder: {each}")
        yield from sorted(each.rglob("*.py")) if each.is_dir() else (each,)
