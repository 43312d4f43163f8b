"""Prints what is public in the installed strands-agents package, as JSON: `names` by module, and `members`: what each
class has, with the names of the parameters of its methods, and of functions.

It reads sources, and imports nothing: modules whose extras are not installed count as well. A name is public if
`__all__` has it; without that, if the module defines it and it begins with no underscore. A class has what its bases in
the package have, and the attributes that its `__init__` sets.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


def names_of(tree: ast.Module) -> list[str]:
    """The public names that a module's source defines."""
    listed: list[str] | None = None
    names: list[str] = []
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if not isinstance(target, ast.Name):
                continue
            if target.id == "__all__" and isinstance(node.value, ast.List | ast.Tuple):
                listed = [str(ast.literal_eval(each)) for each in node.value.elts if isinstance(each, ast.Constant)]
            if not (
                isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") in ("TypeVar", "ParamSpec")
            ):
                names.append(target.id)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
    found = names if listed is None else listed
    return sorted({name for name in found if not name.startswith("_") and name != "logger"})


class Package:
    """The modules of a package as they are written."""

    def __init__(self, root: Path) -> None:
        self.trees: dict[str, ast.Module] = {}
        self.packages: set[str] = set()
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if parts[-1] == "__init__":
                self.packages.add(".".join(parts[:-1]))
                parts = parts[:-1]
            self.trees[".".join(parts)] = ast.parse(path.read_text())

    def find(self, module: str, name: str) -> tuple[str, ast.ClassDef | Function] | None:
        """The class or function that a name of a module stands for, with the module that defines it."""
        for node in ast.walk(self.trees[module]) if module in self.trees else ():
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                if node in self.trees[module].body and not is_overload(node):
                    return module, node
            elif isinstance(node, ast.ImportFrom):
                for each in node.names:
                    if (each.asname or each.name) == name and (home := self._home(module, node)) != module:
                        return self.find(home, each.name)
        return None

    def _home(self, module: str, node: ast.ImportFrom) -> str:
        target = node.module or ""
        if not node.level:
            return target.removeprefix("strands").removeprefix(".") if target.startswith("strands") else "?"
        parts = module.split(".") if module else []
        up = node.level - (module in self.packages)
        return ".".join([*parts[: len(parts) - up], *([target] if target else [])])

    def lineage(self, module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
        """The class and its bases, as far as the package defines them."""
        yield module, node
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            found = self.find(module, plain.id) if isinstance(plain, ast.Name) else None
            if found is not None and isinstance(found[1], ast.ClassDef):
                yield from self.lineage(found[0], found[1])


def is_overload(node: ast.AST) -> bool:
    return any(getattr(each, "id", "") == "overload" for each in getattr(node, "decorator_list", ()))


def is_property(node: Function) -> bool:
    names = {getattr(each, "attr", getattr(each, "id", "")) for each in node.decorator_list}
    return not names.isdisjoint({"property", "cached_property", "setter"})


def parameters(node: Function) -> list[str]:
    found = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [each.arg for each in found if each.arg not in ("self", "cls") and not each.arg.startswith("_")]


def members_of(package: Package, module: str, node: ast.ClassDef) -> dict[str, list[str] | None]:
    """The public members of a class; of methods, the names of their parameters."""
    found: dict[str, list[str] | None] = {}
    fields: list[str] = []
    made = any("dataclass" in ast.dump(each) for each in node.decorator_list)
    for _, each in package.lineage(module, node):
        for part in each.body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                if not is_overload(part):
                    found.setdefault(part.name, None if is_property(part) else parameters(part))
                if part.name == "__init__":
                    for name in attributes(part):
                        found.setdefault(name, None)
            elif isinstance(part, ast.ClassDef):
                inner = [one for one in part.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
                found.setdefault(part.name, parameters(inner[0]) if inner else None)
            else:
                for target in targets(part):
                    found.setdefault(target, None)
                    if isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.dump(part.annotation):
                        off = isinstance(part.value, ast.Call) and "init" in {one.arg for one in part.value.keywords}
                        fields += [] if off else [target]
    if made and "__init__" not in found:
        found["__init__"] = [field for field in fields if not field.startswith("_")]
    return {name: value for name, value in found.items() if not name.startswith("_") or name == "__init__"}


def targets(node: ast.stmt) -> list[str]:
    found = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for each in found if isinstance(each, ast.Name)]


def attributes(node: Function) -> list[str]:
    """What the function sets on `self`."""
    stored = [each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)]
    return [each.attr for each in stored if isinstance(each.value, ast.Name) and each.value.id == "self"]


def main() -> None:
    spec = importlib.util.find_spec("strands")
    assert spec is not None
    assert spec.origin is not None
    package = Package(Path(spec.origin).parent)
    names: dict[str, list[str]] = {}
    members: dict[str, dict[str, list[str] | None]] = {}
    for module, tree in package.trees.items():
        if any(each.startswith("_") for each in module.split(".")):
            continue
        names[module] = names_of(tree)
        for name in names[module]:
            found = package.find(module, name)
            if found is None:
                continue
            home, node = found
            whole = f"{module}.{name}".removeprefix(".")
            members[whole] = (
                members_of(package, home, node) if isinstance(node, ast.ClassDef) else {"()": parameters(node)}
            )
    print(json.dumps({"names": names, "members": members}))


main()
