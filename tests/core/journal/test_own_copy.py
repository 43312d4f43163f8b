"""A copy is proved to share nothing that can change, or refused with the place of what it would share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.app.agent.conversation_managers import own_copy
from repertory.errors import Invalid

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=10,
)


class Thing:
    """Holds whatever it is given."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


class Alone:
    """Says that a copy of it is itself."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __deepcopy__(self, memo: object) -> Alone:
        return self


def remembering() -> Callable[[], int]:
    seen: list[int] = []
    return lambda: len(seen)


@given(JSON)
def test_a_copy_of_plain_values_is_equal(value: Any) -> None:
    copied = own_copy(Thing(held=value, more=(value, {"v": value})))
    assert copied.held == value
    assert copied.more == (value, {"v": value})


def test_a_copy_shares_no_list_set_or_object_at_any_depth() -> None:
    original = Thing(lists=[[1]], sets={1}, slotted=Slotted([1]), method=Thing(a=[1]).__init__, plain=len, kind=Thing)
    original.itself = original
    copied = own_copy(original)
    copied.lists[0].append(2)
    copied.sets.add(2)
    copied.slotted.held.append(2)
    assert (original.lists, original.sets, original.slotted.held) == ([[1]], {1}, [1])
    assert copied.itself is copied


@pytest.mark.parametrize(
    ("held", "where"),
    [
        (lambda: Alone(), "Thing.held"),
        (lambda: [{"deep": (Slotted(Alone()),)}], "held"),
        (remembering, "seen"),
        (lambda: partial(remembering()), "seen"),
        (lambda: lambda seen=[]: seen, "defaults"),
    ],
    ids=["itself", "deep", "closure", "partial", "default"],
)
def test_what_a_copy_would_share_is_refused_with_its_place(held: Callable[[], Any], where: str) -> None:
    with pytest.raises(Invalid, match=where):
        own_copy(Thing(held=held()))


@pytest.mark.parametrize("held", [threading.Lock, lambda: (number for number in [1])], ids=["lock", "generator"])
def test_what_cannot_be_copied_is_refused(held: Callable[[], Any]) -> None:
    with pytest.raises(Invalid, match="cannot be copied"):
        own_copy(Thing(held=held()))


def test_what_may_be_shared_is_shared() -> None:
    lock = threading.Lock()
    assert own_copy(Thing(held=lock), (lock,)).held is lock
