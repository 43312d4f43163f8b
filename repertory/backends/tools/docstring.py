"""What a docstring says of a tool: its description, and a line per parameter from a Google style `Args` section."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_ARGS_HEADER = re.compile(r"(?i)(args|arguments|params|parameters):\s*")
_ENTRY = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\(.*?\))?\s*:(?:\s+|$)(?P<text>.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Docstring:
    """A docstring taken apart. `description` is everything but the `Args` section; either may be empty."""

    description: str
    parameters: Mapping[str, str]
    """Parameter name to its text, line breaks folded into spaces."""


def read_docstring(text: str | None) -> Docstring:
    """Take a docstring apart. Anything that is no `Args` section stays in the description, in its order."""
    lines = inspect.cleandoc(text or "").splitlines()
    start = next((index for index, line in enumerate(lines) if _ARGS_HEADER.fullmatch(line)), None)
    if start is None:
        return Docstring(description="\n".join(lines).strip(), parameters={})
    length = next((count for count, line in enumerate(lines[start + 1 :]) if _indent(line) == 0), len(lines))
    end = start + 1 + length
    rest = [*lines[:start], *lines[end:]]
    return Docstring(description="\n".join(rest).strip(), parameters=_entries(lines[start + 1 : end]))


def _entries(lines: Sequence[str]) -> dict[str, str]:
    """Entries stand at the section's smallest indentation; deeper lines go on with the entry above them."""
    margin = min((indent for line in lines if (indent := _indent(line)) is not None), default=0)
    parts: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        entry = _ENTRY.fullmatch(line.strip()) if _indent(line) == margin else None
        if entry is not None:
            current = parts.setdefault(entry["name"], [])
            current.append(entry["text"])
        else:
            current.append(line.strip())
    return {name: " ".join(part for part in texts if part) for name, texts in parts.items()}


def _indent(line: str) -> int | None:
    """How far a line is indented; None for a blank line, which belongs to whatever stands around it."""
    return len(line) - len(line.lstrip()) if line.strip() else None
