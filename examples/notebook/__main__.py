"""Run the cells of a notebook as Jupyter would, without Jupyter, and print what they show.

    python -m examples.notebook                     # the notebook of this folder
    python -m examples.notebook MINE.ipynb --write  # and store what its cells show in the file

Use it in your tests: `run_cells` gives the outputs of each cell, to be compared with those in the file.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TypeAlias

import anyio

NOTEBOOK = Path(__file__).with_name("conversation.ipynb")
RICH: Mapping[str, str] = {"_repr_markdown_": "text/markdown", "_repr_svg_": "image/svg+xml"}
"""How objects show themselves in Jupyter, besides their `repr`."""
Cell: TypeAlias = "dict[str, Any]"
Outputs: TypeAlias = "list[dict[str, Any]]"


def code_cells(notebook: Mapping[str, Any]) -> list[Cell]:
    """Its cells with code."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


async def run_cells(cells: Sequence[Cell]) -> AsyncIterator[Outputs]:
    """The outputs of each cell, in the form of the notebook's file. `await` works at the top of a cell."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells, 1):
        tree = ast.parse("".join(cell["source"]), f"cell {number}")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        printed, value = io.StringIO(), None
        with redirect_stdout(printed):
            await _evaluate(tree, "exec", names)
            if isinstance(last, ast.Expr):
                value = await _evaluate(ast.Expression(last.value), "eval", names)
        yield _outputs(number, printed.getvalue(), value)


async def _evaluate(tree: ast.Module | ast.Expression, mode: str, names: dict[str, Any]) -> object:
    code = compile(tree, "cell", mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(code, names)  # the code is the notebook's
    return await value if code.co_flags & inspect.CO_COROUTINE else value


def _outputs(number: int, printed: str, value: object) -> Outputs:
    outputs: Outputs = []
    if printed:
        lines = printed.splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
    if value is not None:
        data = {"text/plain": [repr(value)]}
        for method, kind in RICH.items():
            if hasattr(value, method):
                data[kind] = str(getattr(value, method)()).splitlines(keepends=True)
        result = {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}
        outputs.append(result)
    return outputs


def shown(outputs: Outputs) -> str:
    """Outputs as plain text."""
    return "".join("".join(each.get("text") or each["data"]["text/plain"]) for each in outputs).rstrip("\n")


async def main() -> None:
    """Run one notebook."""
    parser = argparse.ArgumentParser(prog="python -m examples.notebook", description="Run a notebook without Jupyter.")
    parser.add_argument("notebook", nargs="?", type=Path, default=NOTEBOOK)
    parser.add_argument("--write", action="store_true", help="store the outputs in the file")
    typed = parser.parse_args()
    path = anyio.Path(typed.notebook)
    notebook = json.loads(await path.read_text(encoding="utf-8"))
    cells = code_cells(notebook)
    number = 0
    async for outputs in run_cells(cells):
        cells[number].update(outputs=outputs, execution_count=number + 1)
        number += 1
        if outputs:
            print(shown(outputs), flush=True)
    if typed.write:
        await path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    anyio.run(main)
