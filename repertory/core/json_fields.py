"""JSON of any value, and the fields of JSON that somebody else wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

from repertory.core.json_bytes import DATA, ESCAPED, MARKER, marked_bytes
from repertory.core.limits import MESSAGE_DEPTH_MAX, is_too_deep
from repertory.core.messages import Json
from repertory.core.state import plain_value

NESTING_MAX = MESSAGE_DEPTH_MAX + 40
"""The levels of dictionaries and lists: a message stands a few levels down in a result, and that in results of runs."""
OMITTED = object()
"""The mark, in place of a value, that its dictionary or list is written without it."""
TEXT_MAX = 2_000
"""Characters of a value's text, where it stands for the value."""
_INT_BITS_MAX = 14_000
"""The bits of the longest integer in JSON: Python refuses to write longer ones as text."""
_AS_THEY_ARE = frozenset({str, bool, type(None)})

Above: TypeAlias = tuple[int, ...]
"""The identities of the containers around a value."""
Instead: TypeAlias = Callable[[object, Above], object]
"""A function that gives the substitute for a value that JSON cannot hold: JSON, or `OMITTED`."""


def json_or(value: object, instead: Instead, above: Above = (), *, marks: bool = False) -> object:
    """A copy of the value as JSON, tuples as lists; bytes stay bytes, unless `marks`: then they are marked base64, as
    `json_bytes.encoded` has them. Never fails, whatever the value is.

    `instead` is asked for what JSON cannot hold: numbers that are not finite or too long, values within themselves,
    nesting deeper than `NESTING_MAX`, dictionaries with keys that are no texts, and other objects.
    """
    match value:
        case None | bool():
            return value
        case str():
            # A subclass may override `__str__`, so `str(value)` may be another text.
            return str.__str__(value)
        case int():
            return int.__int__(value) if value.bit_length() <= _INT_BITS_MAX else instead(value, above)
        case float():
            return float.__float__(value) if math.isfinite(value) else instead(value, above)
        case bytes() | bytearray() | memoryview():
            raw = bytes(cast("bytes", value))
            return marked_bytes(raw) if marks else raw
        case dict() | list() | tuple() if not is_closed(cast("object", value), above):
            return _container(cast("dict[object, object] | Sequence[object]", value), instead, above, marks)
        case _:
            return instead(value, above)


def _container(value: dict[object, object] | Sequence[object], instead: Instead, above: Above, marks: bool) -> object:
    # A tuple for each level and not one shared set: nothing has to be removed on the way out, and it has at most
    # `NESTING_MAX` entries.
    inside = (*above, id(value))
    if not isinstance(value, dict):
        items = [item if type(item) in _AS_THEY_ARE else json_or(item, instead, inside, marks=marks) for item in value]
        return [item for item in items if item is not OMITTED]
    made: dict[str, object] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            return instead(value, above)
        copy = item if type(item) in _AS_THEY_ARE else json_or(item, instead, inside, marks=marks)
        if copy is not OMITTED:
            made[key if type(key) is str else str.__str__(key)] = copy
    if marks and made.get(MARKER) is True and DATA in made:
        # Somebody's own dictionary that looks like marked bytes would be read back as bytes.
        made[MARKER] = ESCAPED
    return made


def is_closed(value: object, above: Above) -> bool:
    """True if nobody looks into this value: it is within itself, or too deep."""
    return len(above) >= NESTING_MAX or id(value) in above


def leave_out(value: object, above: Above) -> object:
    """Omit what JSON cannot hold; an argument of `json_or`."""
    del value, above
    return OMITTED


def tried(make: Callable[[object], object], value: object) -> object:
    """The result of `make(value)`; `OMITTED` when it fails."""
    try:
        return make(value)
    except Exception:  # noqa: BLE001 - It is anybody's code, and what it raises is no reason to lose the rest.
        return OMITTED


def as_text(value: object, text_of: Callable[[object], str] = repr, length_max: int | None = TEXT_MAX) -> str:
    """The text of a value, shortened to `length_max`; of one that has none, what it is. Never fails."""
    text = tried(text_of, value)
    if not isinstance(text, str):
        return f"<{type(value).__name__} without a text>"
    text = str.__str__(text)
    return text if length_max is None or len(text) <= length_max else f"{text[:length_max]}..."


def json_or_none(value: object) -> Json:
    """A copy of the value as JSON, with the values that `plain_value` knows; None when it is not JSON."""
    copy = tried(_copied, value)  # A value's own method spells it, and may raise anything.
    return None if copy is OMITTED or is_too_deep(copy) else cast("Json", copy)


def _copied(value: object) -> object:
    return json.loads(json.dumps(value, allow_nan=False, default=plain_value))


def json_object(value: object) -> dict[str, Json]:
    """The value as an object. Errors: `TypeError`."""
    if not isinstance(value, dict):
        raise TypeError(value)
    return cast("dict[str, Json]", value)


def json_list(value: object) -> list[Json]:
    """The value as a list. Errors: `TypeError`."""
    if not isinstance(value, list):
        raise TypeError(value)
    return cast("list[Json]", value)


def json_number(value: Json) -> float:
    """The value as a number. Errors: `TypeError`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    return value


def json_integer(value: Json) -> int:
    """The value as an integer. Errors: `TypeError`."""
    return int(json_number(value))


def json_texts(value: Json) -> tuple[str, ...]:
    """The value as a tuple of texts. Errors: `TypeError`."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise TypeError(value)
    return tuple(cast("list[str]", value))


def counts_in(value: Json) -> Mapping[str, int]:
    """Counts by name. Errors: `TypeError` for anything else."""
    return {name: json_integer(count) for name, count in json_object(value).items()}
