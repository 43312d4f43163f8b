"""The package as syntax trees, for the tests that hold its style. Reads files, imports nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "repertory"

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class SourceFile:
    """One Python file below the root, parsed when first asked."""

    path: Path

    @property
    def name(self) -> str:
        """The path from the root, with forward slashes."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def module(self) -> str:
        """The dotted name by which it is imported."""
        return self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def room(self) -> str:
        """The folder directly below the package (`core`, `runtime`, ...), or the empty string at its root."""
        parts = self.path.relative_to(ROOT).parts
        return parts[1] if len(parts) > 2 else ""

    @property
    def kind(self) -> str:
        """`core` for decisions, wherever they stand; of other files the room."""
        return "core" if {"decisions", "decisions.py"} & {*self.path.relative_to(ROOT).parts} else self.room

    @cached_property
    def text(self) -> str:
        """The whole file."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """The file, parsed."""
        return ast.parse(self.text, filename=self.name)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the file."""
        return list(ast.walk(self.tree))

    def functions(self) -> Iterator[FunctionNode]:
        """Every function and method, nested ones too."""
        return (node for node in self.nodes if isinstance(node, FunctionNode))

    def classes(self) -> Iterator[ast.ClassDef]:
        """Every class, nested ones too."""
        return (node for node in self.nodes if isinstance(node, ast.ClassDef))

    def at(self, node: ast.AST) -> str:
        """Where a node stands, in the form that terminals turn into a link."""
        return f"{self.name}:{getattr(node, 'lineno', 1)}"


FOREIGN = frozenset(("bin", "node_modules", "site-packages"))
"""Folders of what others wrote: also the commands of an environment."""


def read(folder: Path) -> list[SourceFile]:
    """Every Python file below a folder, by path."""
    return [SourceFile(path) for path in sorted(folder.rglob("*.py")) if not FOREIGN.intersection(path.parts)]


def name_of(node: ast.AST | None) -> str:
    """The last name of an expression: `dataclass` for `dataclasses.dataclass(frozen=True)`; empty when it has none."""
    match node:
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return name_of(inner)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def body_lines(function: FunctionNode, text: str) -> int:
    """Lines of the body in the file's `text`, from its first statement after the docstring to its end, without
    comments: a reason beside a line must not force it into another function.
    """
    first = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    body = text.splitlines()[first[0].lineno - 1 : function.end_lineno] if first else []
    return len(body) - comment_lines(body)


def comment_lines(lines: Iterable[str]) -> int:
    """The number of lines that are comments."""
    return sum(line.lstrip().startswith("#") for line in lines)


def docstring_lines(tree: ast.Module) -> int:
    """Lines of a file's docstrings, attribute docstrings aside."""
    owners = [
        n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    texts = [owner.body[0] for owner in owners if ast.get_docstring(owner, clean=False) is not None]
    return sum((text.end_lineno or 0) - text.lineno + 1 for text in texts)


def dataclass_flags(node: ast.ClassDef) -> set[str] | None:
    """The flags set to True on the dataclass decorator, or None when the class has no such decorator."""
    for decorator in node.decorator_list:
        if name_of(decorator) == "dataclass":
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            return {k.arg or "" for k in keywords if isinstance(k.value, ast.Constant) and k.value.value is True}
    return None


def methods(node: ast.ClassDef) -> set[str]:
    """The names of the methods that a class body defines; dunder methods do not count."""
    return {item.name for item in node.body if isinstance(item, FunctionNode) and not item.name.startswith("__")}


def imports(file: SourceFile, known: set[str], *, everything: bool) -> set[str]:
    """The modules of `known` that a file imports at run time; `everything` adds type-checking and local imports."""
    found: set[str] = set()
    for node in file.nodes if everything else _executed_at_import(file.tree.body):
        match node:
            case ast.Import(names=names):
                found.update(alias.name for alias in names if alias.name in known)
            case ast.ImportFrom(module=str(module), names=names, level=0) if module.startswith("repertory"):
                found.update(_resolve(module, alias.name, known) for alias in names)
            case _:
                pass
    return found - {file.module}


def _resolve(module: str, name: str, known: set[str]) -> str:
    """`from a import b` imports module `a.b` if there is one, else `a`."""
    return f"{module}.{name}" if f"{module}.{name}" in known else module


def _executed_at_import(statements: Iterable[ast.stmt | ast.excepthandler]) -> Iterator[ast.AST]:
    """The statements that run when the module is imported: not those of functions, nor of type-checking blocks."""
    for statement in statements:
        yield statement
        if isinstance(statement, FunctionNode):
            continue
        skip_body = isinstance(statement, ast.If) and name_of(statement.test) == "TYPE_CHECKING"
        inner: list[ast.stmt | ast.excepthandler] = [] if skip_body else [*getattr(statement, "body", [])]
        for branch in ("orelse", "handlers", "finalbody"):
            inner += getattr(statement, branch, [])
        yield from _executed_at_import(inner)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected groups of more than one module (Tarjan), each sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in graph[module]:
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            cut = stack.index(module)
            if len(stack) - cut > 1:
                groups.append(sorted(stack[cut:]))
            del stack[cut:]

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return groups
