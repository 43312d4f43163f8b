"""What users give orchestrators, checked before anything is made of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar, cast

from repertory.errors import Invalid

T = TypeVar("T")
_NO_LISTS = (str, bytes, Mapping)
_PLACEMENT = ("session_id", "sessions", "takeover")


def seconds(value: object, what: str) -> float:
    """The same, known to be a time. Errors: `Invalid`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise Invalid(f"{what} is a positive number of seconds", got=value)
    return float(value)


def count(value: object, what: str, *, least: int = 1) -> int:
    """The same, known to be a whole number, `least` or more. Errors: `Invalid`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Invalid(f"{what} is a whole number, {least} or more", got=value)
    return value


def switch(value: object, what: str) -> bool:
    """The same, known to be True or False. Errors: `Invalid`."""
    if not isinstance(value, bool):
        raise Invalid(f"{what} is True or False", got=value)
    return value


def list_of(kind: type[T], values: object, what: str) -> list[T]:
    """The same as a list of these, None as an empty one. Errors: `Invalid`."""
    if values is None:
        return []
    if not isinstance(values, Iterable) or isinstance(values, _NO_LISTS):
        raise Invalid(f"{what} is a list", got=type(cast("object", values)).__name__)
    found = list(cast("Iterable[object]", values))
    for each in found:
        if not isinstance(each, kind):
            raise Invalid(f"{what} is a list of {kind.__name__}", got=type(each).__name__)
    return cast("list[T]", found)


def mapping_of(kind: type[T], values: object, what: str) -> dict[str, T]:
    """The same as a dictionary of these by id. Errors: `Invalid`."""
    if not isinstance(values, Mapping):
        raise Invalid(f"{what} is a dictionary by id", got=type(values).__name__)
    found = dict(cast("Mapping[object, object]", values))
    for name, each in found.items():
        if not isinstance(name, str) or not name:
            raise Invalid("a node id is a text", got=name)
        if not isinstance(each, kind):
            raise Invalid(f"{what} is a dictionary of {kind.__name__}", node=name, got=type(each).__name__)
    return cast("dict[str, T]", found)
