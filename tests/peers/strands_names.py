"""Prints the public names of the installed strands-agents package, by module, as JSON.

A name is public if `__all__` has it; without that, if the module defines it and it begins with no underscore.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path


def names_of(path: Path) -> list[str]:
    """The public names that a module's source defines."""
    tree = ast.parse(path.read_text())
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


def main() -> None:
    spec = importlib.util.find_spec("strands")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    modules: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(each.startswith("_") for each in parts):
            modules[".".join(parts)] = names_of(path)
    print(json.dumps(modules))


main()
