"""A copy of somebody's object that is proved to share nothing with it that can change.

`copy.deepcopy` alone proves nothing: classes may say that a copy of them is themselves, and functions keep the lists
that they were made around.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from decimal import Decimal
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TypeVar, cast

from repertory.errors import Invalid

T = TypeVar("T")

_UNCHANGING = (
    *(type(None), bool, int, float, complex, str, bytes, range, type, ModuleType, BuiltinFunctionType, Enum),
    *(re.Pattern, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, Decimal),
)
_CONTAINERS = (tuple, frozenset, FunctionType)
"""They cannot change, but what is in them may."""


def own_copy(value: T, shared: Collection[object] = ()) -> T:
    """A deep copy. `shared`: objects that both may have.

    Errors: `Invalid` for what cannot be copied, and for what the copy would share, with where that is.
    """
    try:
        copied = deepcopy(value, {id(one): one for one in shared})
    except Exception as error:
        raise Invalid("an object cannot be copied", type=type(value).__name__, cause=repr(error)) from error
    known = {id(one) for one in shared}
    originals = {id(one) for _, one in _parts(value, known) if not isinstance(one, _CONTAINERS)}
    for path, one in _parts(copied, known):
        if id(one) in originals:
            raise Invalid("a copy of an object would share a part with it", type=type(value).__name__, part=path)
    return copied


def _parts(value: object, known: Collection[int]) -> Iterator[tuple[str, object]]:
    """Everything that can be reached from the value and may change or hold what does, with where it is."""
    seen = dict[int, object]((one, None) for one in known)  # With the objects, so that no number is given out twice.
    waiting = [(type(value).__name__, value)]
    while waiting:
        path, one = waiting.pop()
        if isinstance(one, _UNCHANGING) or id(one) in seen:
            continue
        seen[id(one)] = one
        yield path, one
        waiting += [(f"{path}.{name}", inner) for name, inner in _within(one)]


def _within(one: object) -> Iterator[tuple[str, object]]:
    if isinstance(one, Mapping):
        for key, value in cast("Mapping[object, object]", one).items():
            yield "key", key
            yield repr(key)[:40], value
    elif isinstance(one, tuple | list | set | frozenset):
        for number, value in enumerate(cast("Collection[object]", one)):
            yield str(number), value
    elif isinstance(one, FunctionType):
        yield from _kept_by(one)
    elif isinstance(one, MethodType):
        yield "self", one.__self__
    elif isinstance(one, partial):
        held = cast("partial[object]", one)
        yield from (("func", held.func), ("args", held.args), ("keywords", held.keywords))
    yield from _attributes(cast("object", one))


def _kept_by(function: FunctionType) -> Iterator[tuple[str, object]]:
    """What a function was made around."""
    yield "defaults", (function.__defaults__, function.__kwdefaults__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # It has nothing in it yet.
            continue


def _attributes(one: object) -> Iterator[tuple[str, object]]:
    yield from getattr(one, "__dict__", {}).items()
    for kind in type(one).__mro__:
        slots = cast("object", vars(kind).get("__slots__", ()))
        for name in (slots,) if isinstance(slots, str) else cast("Collection[str]", slots):
            if name not in ("__dict__", "__weakref__") and hasattr(one, name):
                yield name, getattr(one, name)
