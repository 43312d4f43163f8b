"""Agent state: JSON in, copies out, every change collected for the journal."""

from __future__ import annotations

import math
import sys
import threading
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.messages import Json
from repertory.core.state import AgentState, StatePatch

json_values: st.SearchStrategy[Json] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


def test_values_are_copied_in_and_out() -> None:
    given_value = {"theme": "dark"}
    state = AgentState({"preferences": given_value})
    given_value["theme"] = "light"
    taken = state.get("preferences")
    assert taken == {"theme": "dark"}
    assert isinstance(taken, dict)
    taken["theme"] = "red"
    assert state.get("preferences") == {"theme": "dark"}


def test_a_missing_key_is_none_and_no_key_is_everything() -> None:
    state = AgentState({"a": 1})
    assert state.get("b") is None
    assert state.get() == {"a": 1}


def test_deleting_a_missing_key_changes_nothing() -> None:
    state = AgentState()
    state.delete("a")
    assert state.take_patch() is None


@pytest.mark.parametrize("value", [lambda: None, object(), math.nan, math.inf, {1, 2}, b"x", {"deep": [object()]}])
def test_what_json_cannot_say_is_refused_and_changes_nothing(value: object) -> None:
    state = AgentState({"a": 1})
    with pytest.raises(ValueError, match="not JSON serializable"):
        state.set("a", value)
    assert state.get("a") == 1


@pytest.mark.parametrize("key", [None, 3, "", "  "])
def test_keys_are_non_empty_strings(key: object) -> None:
    with pytest.raises(ValueError, match="Key"):
        AgentState().set(key, 1)  # type: ignore[arg-type] - the point of the test


def test_a_tuple_becomes_a_list_at_once_so_that_a_restart_changes_nothing() -> None:
    state = AgentState({"t": (1, 2)})
    assert state.get("t") == [1, 2]


def test_the_patch_holds_the_last_word_on_each_key() -> None:
    state = AgentState({"a": 1, "b": 2})
    assert state.take_patch() is None
    state.set("a", 2)
    state.set("a", 3)
    state.delete("b")
    assert state.take_patch() == StatePatch(set={"a": 3}, delete=("b",))
    assert state.take_patch() is None


def test_changes_made_before_opening_stand_over_what_the_journal_said() -> None:
    state = AgentState({"initial": 0})
    state.set("fresh", 1)
    state.set("both", "mine")
    state.restore({"stored": 2, "both": "theirs"})
    assert state.get() == {"fresh": 1, "both": "mine", "stored": 2}


steps = st.lists(
    st.tuples(st.sampled_from(["set", "delete", "take"]), st.sampled_from("abc"), json_values), max_size=20
)


@given(steps)
def test_replaying_the_patches_gives_the_live_state(changes: list[tuple[str, str, Json]]) -> None:
    live, replayed = AgentState(), dict[str, Json]()

    def take() -> None:
        patch = live.take_patch()
        if patch is not None:
            replayed.update(patch.set)
            for key in patch.delete:
                replayed.pop(key, None)

    for what, key, value in changes:
        if what == "set":
            live.set(key, value)
        elif what == "delete":
            live.delete(key)
        else:
            take()
    take()
    assert replayed == live.get()


@pytest.mark.real_time
def test_all_values_can_be_read_while_another_thread_adds_some() -> None:
    state = AgentState({f"before {number}": number for number in range(500)})

    def add() -> None:
        for number in range(1000):
            state.set(f"new {number}", number)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        thread = threading.Thread(target=add)
        thread.start()
        while thread.is_alive():
            assert isinstance(state.get(), dict)
        thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    assert len(cast("dict[str, object]", state.get())) == 1500
