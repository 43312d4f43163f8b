"""Tells which of the SDK's own tests look at what is public and here: `why_left_out` gives the reason for the others.

By the syntax tree of a test, its fixtures and all that they name in tests, a test is left out when it

- imports a name of the SDK that begins with `_`, or that `repertory.strands` says is not here;
- reads an attribute that begins with `_` of anything but itself, or passes a keyword that does;
- replaces a function of the SDK, or of a library that the SDK calls, by its name: it tests how the SDK is built;
- passes a keyword of `REFUSED`, which the guide says is not here;
- uses a class of `DOUBLES`, which plays a part of the SDK for another part.

A text that an error, a log or a request has is public: a test that wants the SDK's own words counts and fails.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from repertory.compat.table import MODULES, UNMADE

REFUSED: Mapping[str, str] = {
    "background_tasks": "sessions beside this one do it",
    "checkpointing": "every turn is journaled",
    "bidi_agent_save_latest_on": "there are no speech agents",
    "tasks_config": "answers of tools are waited for",
}
DOUBLES: Mapping[str, str] = {
    "_FakeAgent": "plays the agent for a plugin, whose hooks and middleware of its own it records",
    "_InjectionAgent": "plays the agent for a plugin, whose middleware of its own it records",
}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Module:
    """The definitions, imports and fixtures for every test of one file."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.root = path, root
        self.defined: dict[str, ast.stmt] = {}
        self.imported: dict[str, tuple[str, str | None]] = {}
        self.always: list[str] = []
        self._scan(ast.parse(path.read_text()).body, "")

    def _scan(self, body: list[ast.stmt], within: str) -> None:
        for node in body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    self.defined[within + name] = node
                    if any("autouse=True" in ast.unparse(each) for each in node.decorator_list):
                        self.always.append(within + name)
                case ast.ClassDef(name=name):
                    self.defined[name] = node
                    if not within:
                        self._scan(node.body, f"{name}.")
                case ast.Import() | ast.ImportFrom():
                    self.imported.update(_imports(node))
                case ast.Assign() | ast.AnnAssign():
                    for each in ast.walk(node):
                        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                            self.defined.setdefault(each.id, node)
                case ast.If() | ast.Try():
                    self._scan(node.body, within)
                case _:
                    pass


class Cases:
    """The tests below a folder that has `tests`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._modules: dict[Path, _Module] = {}

    def why_left_out(self, file: Path, group: str | None, name: str) -> str | None:
        """The reason why a test of this class, if any, does not count; None if it does."""
        module, seen = self._module(file), set[tuple[Path, str]]()
        always = [each for each in module.always if "." not in each or each.startswith(f"{group}.")]
        for each in (name, *(each.rpartition(".")[2] for each in always)):
            if reason := self._why(module, each, group, seen):
                return reason
        return None

    def _why(self, module: _Module, name: str, group: str | None, seen: set[tuple[Path, str]]) -> str | None:
        for place in (module, *self._shared(module)):
            for key in (f"{group}.{name}", name):
                if key in place.defined:
                    if (place.path, key) in seen:
                        return None
                    seen.add((place.path, key))
                    return self._inside(place, place.defined[key], group, seen)
            if name in place.imported:
                origin, wanted = place.imported[name]
                file = self._root / f"{origin.replace('.', '/')}.py"
                if origin.startswith("tests.") and wanted and file.exists():
                    return self._why(self._module(file), wanted, None, seen)
                return _why_import(origin, wanted)
        return None

    def _inside(self, module: _Module, tree: ast.stmt, group: str | None, seen: set[tuple[Path, str]]) -> str | None:
        names: set[str] = set()
        for node in ast.walk(tree):
            if reason := _why_node(node):
                return reason
            match node:
                case ast.Name(id=name) | ast.arg(arg=name):
                    names.add(name)
                case ast.Attribute(value=ast.Name(id="self"), attr=name):
                    names.add(name)
                case ast.Constant(value=str(name)) if name in module.defined:
                    names.add(name)
                case _:
                    pass
        return next((reason for each in sorted(names) if (reason := self._why(module, each, group, seen))), None)

    def _shared(self, module: _Module) -> Iterator[_Module]:
        for folder in module.path.relative_to(self._root).parents:
            file = self._root / folder / "conftest.py"
            if file.exists() and file != module.path:
                yield self._module(file)

    def _module(self, path: Path) -> _Module:
        if path not in self._modules:
            self._modules[path] = _Module(path, self._root)
        return self._modules[path]


def _why_node(node: ast.AST) -> str | None:
    match node:
        case ast.Import() | ast.ImportFrom():
            return next((why for each in _imports(node).values() if (why := _why_import(*each))), None)
        case ast.Attribute(value=ast.Name(id="self" | "cls")):
            return None
        case ast.Attribute(attr=name) if re.match("_[^_]", name):
            return "reads what is private"
        case ast.Attribute() if (whole := ast.unparse(node)).startswith("strands."):
            parts = whole.removeprefix("strands.").split(".")
            known = [count for count in range(len(parts)) if ".".join(parts[:count]) in MODULES]
            return _why_import(".".join(["strands", *parts[: known[-1]]]), parts[known[-1]]) if known else None
        case ast.Constant(value=str(text)) if re.fullmatch(r"strands\.[\w.]+", text):
            return "replaces a function of the SDK"
        case ast.Call(func=function, args=[ast.Constant(value=str(_)), *_]) if ast.unparse(function).endswith("patch"):
            return "replaces a function of a library"
        case ast.Call(func=function) if ast.unparse(function).endswith("patch.object"):
            return "replaces a function of an object"
        case ast.keyword(arg=str(name)) if re.match("_[^_]", name):
            return "passes what is private"
        case ast.keyword(arg=str(name)) if name in REFUSED:
            return f"passes {name}: {REFUSED[name]}"
        case ast.Name(id=name) if name in DOUBLES:
            return f"{name} {DOUBLES[name]}"
        case _:
            return None


def _imports(node: ast.Import | ast.ImportFrom) -> dict[str, tuple[str, str | None]]:
    if isinstance(node, ast.Import):
        return {each.asname or each.name.partition(".")[0]: (each.name, None) for each in node.names}
    return {each.asname or each.name: (node.module or "", each.name) for each in node.names if not node.level}


def _why_import(origin: str, name: str | None) -> str | None:
    if origin.partition(".")[0] != "strands":
        return None
    path = origin.removeprefix("strands").removeprefix(".")
    if any(each.startswith("_") for each in (*path.split("."), name or "")):
        return "imports what is private"
    place = MODULES.get(path, {}).get(name or "", "")
    whole = ".".join(filter(None, (path, name)))
    is_here = path in MODULES and (name is None or (bool(place) and not place.startswith(UNMADE)) or whole in MODULES)
    return None if is_here else f"{whole} is not here"
