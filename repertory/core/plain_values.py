"""What JSON says for the values that programs return and JSON has no word for: dates, decimals, dataclasses, models.

Read by what a value can do rather than by its class, so that libraries need not be imported to be understood.

Source: the spellings are those of pydantic's JSON mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import cast


def plain_value(value: object) -> object:
    """The value one layer closer to JSON: what it holds may need the same again. Dates and times are ISO 8601, a
    duration is seconds, a decimal keeps its digits as text, a set is a list.

    Errors: `TypeError` for bytes and for everything else that has no one spelling.
    """
    match value:
        case Enum():
            return value.value
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
        case bytes() | bytearray() | memoryview():
            raise _not_json(cast("object", value))
        case Mapping():
            return dict(cast("Mapping[object, object]", value))
        case Set() | Sequence():
            return list(cast("Sequence[object]", value))
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in fields(value)}
        case _:
            return _by_its_own_word(value)


def _by_its_own_word(value: object) -> object:
    """What the value itself says: a pydantic model, an array or a number of a numerical library, a path, a UUID."""
    if isinstance(value, type):
        raise _not_json(value)
    dump: Callable[..., object] | None = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    for name in ("tolist", "__fspath__"):
        said: Callable[[], object] | None = getattr(value, name, None)
        if callable(said):
            return said()
    if isinstance(getattr(value, "urn", None), str):
        return str(value)
    raise _not_json(value)


def _not_json(value: object) -> TypeError:
    return TypeError(f"{type(value).__name__} is not JSON")
