"""The 300 tools of `catalog/services.txt`, and the questions about them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

_PARAMETER = re.compile(r"(\w+)(\??) (\w+): (.+)")


@dataclass(frozen=True)
class Question:
    """A question, and the name of the tool that answers it."""

    text: str
    tool: str


@dataclass(frozen=True)
class Catalog:
    """Tools, and what is asked of them."""

    specs: tuple[Any, ...]
    asked: tuple[Question, ...]
    """What a model writes as its search."""
    said: tuple[Question, ...]
    """What a person says, which no search has put into its own words."""


@cache
def read_catalog(name: Literal["services", "github_server"] = "services") -> Catalog:
    """The catalog of this name."""
    specs, asked, said = list[Any](), list[Question](), list[Question]()
    for line in (Path(__file__).parent / "catalog" / f"{name}.txt").read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line[0] in "=?":
            (asked if line[0] == "=" else said).append(Question(line[1:].strip(), specs[-1]["name"]))
        else:
            specs.append(_spec(*(part.strip() for part in line.split("|"))))
    return Catalog(tuple(specs), tuple(asked), tuple(said))


def _spec(name: str, description: str, parameters: str = "") -> dict[str, Any]:
    properties, required = dict[str, Any](), list[str]()
    for each in filter(None, map(str.strip, parameters.split(";"))):
        found = _PARAMETER.fullmatch(each)
        assert found is not None, each
        key, optional, kind, text = found.groups()
        properties[key] = {"type": kind, "description": text}
        if not optional:
            required.append(key)
    schema = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": description, "inputSchema": {"json": schema}}
