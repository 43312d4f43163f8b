"""The latest values, bounded by their number and by what they weigh together: one large value of somebody else's choice
takes as much memory as a thousand small ones.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from typing import Generic, TypeVar, cast

from msgspec import Struct

from repertory.core.limits import Scale

T = TypeVar("T")
_OPENED_MAX = 4
"""The levels of records within records that are looked into."""


def _of_no_tenant(name: object) -> str:
    del name
    return ""


class LatestValues(Generic[T]):
    """The latest values by their names: at most `count_max`, which weigh at most `bytes_max` together. The oldest ones
    are forgotten first, and a value that is heavier than all may be is forgotten at once. Where names have tenants, the
    oldest one of the tenant that has most of what is short is forgotten, so that no tenant's values push out another's.
    """

    __slots__ = ("_bytes_max", "_count_max", "_held", "_tenant_of", "_values", "weight")

    def __init__(self, count_max: int, bytes_max: int, tenant_of: Callable[..., str] = _of_no_tenant) -> None:
        """`tenant_of`: the tenant of a name."""
        self._count_max, self._bytes_max, self._tenant_of = count_max, bytes_max, tenant_of
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._held = Counter[str](), Counter[str]()
        """The number of values, and their weight, by tenant."""
        self.weight = 0
        """The weight of all values together, in bytes."""

    def keep(self, name: Hashable, value: T, weight: int | None = None) -> T:
        """Remember a value, as the latest one. `weight`: in bytes, that of its name included; None weighs both."""
        self.pop(name)
        weight = weight_of((name, value), self._bytes_max) if weight is None else weight
        self._values[name] = value, weight
        self._count(name, 1, weight)
        while (heavy := self.weight > self._bytes_max) or len(self._values) > self._count_max:
            held = self._held[heavy]
            most = max(held.values())
            # This walks over the values of other tenants: O(n) for each one forgotten. n is `count_max`, 10,000 at
            # most.
            self.pop(next(name for name in self._values if held[self._tenant_of(name)] == most))
        return value

    def _count(self, name: Hashable, number: int, weight: int) -> None:
        tenant = self._tenant_of(name)
        self.weight += weight
        for held, more in zip(self._held, (number, weight), strict=True):
            held[tenant] += more
        # A `Counter` keeps names at 0: without this, every tenant that was ever seen would stay.
        if not self._held[0][tenant]:
            del self._held[0][tenant], self._held[1][tenant]

    def find(self, name: Hashable) -> T | None:
        """The value of that name, if it is remembered."""
        found = self._values.get(name)
        return None if found is None else found[0]

    def pop(self, name: Hashable) -> T | None:
        """The value of that name, which is forgotten."""
        if name not in self._values:
            return None
        value, weight = self._values.pop(name)
        self._count(name, -1, -weight)
        return value

    def has(self, name: Hashable) -> bool:
        """True if a value of that name is remembered."""
        return name in self._values

    def values(self) -> list[T]:
        """All values, the oldest first."""
        return [value for value, _ in self._values.values()]

    def __len__(self) -> int:
        return len(self._values)


def weight_of(value: object, bytes_max: int) -> int:
    """About what the value takes of memory, in bytes: as `Scale` weighs, with the fields of records. It is weighed no
    further than `bytes_max`.
    """
    scale = Scale(bytes_max)
    scale.put(_opened(value, _OPENED_MAX))
    return scale.weight


def _opened(value: object, depth: int) -> object:
    """The value; a record, or a tuple of some, as a list of what it holds, as far as records hold records."""
    if isinstance(value, tuple):
        held = cast("tuple[object, ...]", value)
    elif isinstance(value, Struct):
        held = tuple(getattr(value, name, None) for name in value.__struct_fields__)
    elif is_dataclass(value) and not isinstance(value, type):
        held = tuple(getattr(value, each.name, None) for each in fields(value))
    else:
        return value
    return [_opened(each, depth - 1) for each in held] if depth else None
