"""How deeply JSON may be nested here: far deeper than people write, and far from where copying it would fail."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

DEPTH_MAX = 100
"""Of a value: in agent state, in the input of a tool, in its result."""
MESSAGE_DEPTH_MAX = DEPTH_MAX + 10
"""Of a message, which holds such values a few levels down."""
RECORD_DEPTH_MAX = 250
"""Of what is read from a journal or a snapshot: deeper than anything that was ever taken in."""


def is_too_deep(value: object, depth_max: int = DEPTH_MAX) -> bool:
    """Whether dictionaries and lists are nested deeper than `depth_max`. Looks level by level, so no depth can hurt."""
    level = _containers([value])
    for _ in range(depth_max):
        level = [inner for container in level for inner in _containers(_items(container))]
        if not level:
            return False
    return True


def _containers(values: Iterable[object]) -> list[object]:
    return [value for value in values if isinstance(value, dict | list)]


def _items(container: object) -> Iterable[object]:
    if isinstance(container, dict):
        return cast("dict[object, object]", container).values()
    return cast("list[object]", container)
