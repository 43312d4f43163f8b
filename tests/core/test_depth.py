"""How deeply JSON may be nested."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from repertory.core.limits import DEPTH_MAX, is_too_deep


def lists(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [0, value]
    return value


def dictionaries(depth: int) -> object:
    value: object = {}
    for _ in range(depth - 1):
        value = {"a": value, "b": 1}
    return value


@pytest.mark.parametrize("nested", [lists, dictionaries])
def test_the_bound_is_the_number_of_containers_around_each_other(nested: Callable[[int], object]) -> None:
    assert not is_too_deep(nested(DEPTH_MAX))
    assert is_too_deep(nested(DEPTH_MAX + 1))
    assert not is_too_deep(nested(7), 7)
    assert is_too_deep(nested(8), 7)


@pytest.mark.parametrize("value", [None, 1, "text", [], {}, [[]], {"a": {}}])
def test_flat_values_are_not_deep(value: object) -> None:
    assert not is_too_deep(value)


def test_no_depth_hurts() -> None:
    assert is_too_deep(lists(100_000))
