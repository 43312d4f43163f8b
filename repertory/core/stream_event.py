"""Reading the fields of a model's stream events, strictly.

Every function returns the value with its type, or raises `ModelFailed` that names the event, what it should hold and
what it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, TypeGuard

from repertory.errors import ModelFailed

_SHOWN_CHARACTERS = 200


def is_mapping(value: object) -> TypeGuard[Mapping[str, object]]:
    """Whether the value is a dictionary, as JSON objects are after parsing."""
    return isinstance(value, dict)


def mapping(value: object, event: str, field: str) -> Mapping[str, object]:
    """The value as a dictionary."""
    if not is_mapping(value):
        malformed(event, f"a dictionary under '{field}'", value)
    return value


def filled(value: object, event: str, field: str) -> str:
    """The value as a string with something in it."""
    if not isinstance(value, str) or not value:
        malformed(event, f"a non-empty string under '{field}'", value)
    return value


def count(value: object, event: str, field: str) -> int:
    """The value as a number of things."""
    if type(value) is not int or not 0 <= value < 2**63:
        malformed(event, f"a count under '{field}'", value)
    return value


def malformed(event: str, expected: str, got: object) -> NoReturn:
    """Refuse an event."""
    raise ModelFailed("malformed model event", event=event, expected=expected, got=repr(got)[:_SHOWN_CHARACTERS])
