"""A number with its noun, for people."""

from __future__ import annotations


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 turn`, `1,200 turns`. `many`: a plural that is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
