"""Checks the values of a model's settings, when they are given.

A setting's type is that of its field in the model's `TypedDict`. Values of other classes than Python's own are let
through, since a client library may have its own for it, and None, which means that nothing was given.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from numbers import Integral, Number, Real
from typing import (
    Any,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from repertory.errors import Invalid

_PLAIN = (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
"""Values of these types have to be of the setting's type; a class of anyone else's may stand for anything."""
_NUMBERS = (int, float)
_LEAST: Mapping[str, float] = {
    "context_window_limit": 1,
    "max_tokens": 1,
    "max_completion_tokens": 1,
    "temperature": 0,
    "top_p": 0,
}
"""The least value of a setting."""
_HINTS = {"context_window_limit": "the model's window in tokens, such as 200_000"}
"""Descriptions of settings whose names do not say enough."""
_MOST: Mapping[str, float] = {"top_p": 1}
"""The greatest value of a setting."""
_OWN_MEANING = frozenset((("OllamaModel", "max_tokens"),))
"""Ollama's `num_predict` is -1 for an answer without a limit, and -2 for one that fills the window."""


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with numbers of other libraries and members of enumerations as plain values, which JSON can hold."""
    return {name: _plain(value) for name, value in settings.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum) and isinstance(value.value, str | int):
        return value.value
    if type(value) in _PLAIN or not isinstance(value, Number):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(cast("Any", value)) if isinstance(value, Real | Decimal) else value


def argument_mapping(name: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments for a client, copied. Errors: `Invalid` if they are no mapping."""
    if value is not None and not isinstance(cast("object", value), Mapping):
        raise Invalid(f"{name} is a dictionary of arguments by name, not {_clipped(value)}")
    return dict(value or {})


def check_settings(owner: str, known: type[Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
    """Check settings. Errors: `Invalid` for the first one with a value of another type than its field, or out of range.

    `owner`: the model's class, for messages. `known`: its settings, as a `TypedDict`.
    """
    forms = _forms(known)
    for name, value in settings.items():
        form = forms.get(name)
        if value is None or form is None:
            continue
        if value == "" and name == "model_id":
            raise Invalid(f"{owner}: model_id is the name of a model, not ''")
        if not _fits(value, form):
            raise Invalid(f"{owner}: {name} is {_named(form)}, not {_clipped(value)}{_hint(name)}")
        if isinstance(value, _NUMBERS) and not isinstance(value, bool):
            _check_range(owner, name, value)


def _check_range(owner: str, name: str, value: float) -> None:
    if not math.isfinite(value):
        raise Invalid(f"{owner}: {name} is a finite number, not {value}")
    least, most = _LEAST.get(name), _MOST.get(name)
    if (owner, name) in _OWN_MEANING:
        return
    if least is not None and value < least:
        raise Invalid(f"{owner}: {name} is at least {least}, not {value}{_hint(name)}")
    if most is not None and value > most:
        raise Invalid(f"{owner}: {name} is at most {most}, not {value}")


@lru_cache(maxsize=64)
def _forms(known: type[Mapping[str, Any]]) -> Mapping[str, object]:
    """The types of the settings. The names in annotations are looked up where each class is defined."""
    try:
        return get_type_hints(known)
    except NameError:  # A name that only type checkers import.
        return {}


def _fits(value: object, form: object) -> bool:
    origin = get_origin(form)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in get_args(form))
    if origin in (Required, NotRequired):
        return _fits(value, get_args(form)[0])
    if origin is Literal:
        return value in get_args(form) if isinstance(value, str | int | bool) else not isinstance(value, _PLAIN)
    if not isinstance(value, _PLAIN) or form is Any or form is object or isinstance(form, TypeVar):
        return True
    return _fits_plain(cast("object", value), form if origin is None else origin, get_args(form))


def _fits_plain(value: object, kind: object, inner: tuple[object, ...]) -> bool:
    if kind is type(None):
        return False
    if kind is bool:
        return isinstance(value, bool)
    if kind is int or kind is float:
        return isinstance(value, int if kind is int else _NUMBERS) and not isinstance(value, bool)
    if kind is str:
        return isinstance(value, str)
    if not isinstance(kind, type):
        return True
    if issubclass(kind, Mapping):
        return isinstance(value, dict)
    if issubclass(kind, Sequence):
        if not isinstance(value, list | tuple):
            return False
        return not inner or all(each is None or _fits(each, inner[0]) for each in cast("Sequence[object]", value))
    # A class of ours, such as `CacheConfig`, or a `TypedDict`, whose values are dictionaries.
    return isinstance(value, dict if is_typeddict(cast("object", kind)) else kind)


def _named(form: object) -> str:
    """The type in words: `str`, `int or None`, `'auto' or bool`."""
    origin = get_origin(form)
    if origin in (Union, types.UnionType):
        return " or ".join(_named(each) for each in get_args(form))
    if origin is Literal:
        return " or ".join(map(repr, get_args(form)))
    if form is type(None):
        return "None"
    if isinstance(form, type) and origin is None:
        return form.__name__
    return str(form).replace("typing.", "").replace("collections.abc.", "")


def _hint(name: str) -> str:
    return f" ({_HINTS[name]})" if name in _HINTS else ""


def _clipped(value: object) -> str:
    text = repr(value)
    size_max = 80
    return text if len(text) <= size_max else f"{text[:size_max]}... ({type(value).__name__})"
