"""The life-cycle table: every step is in it or is refused."""

from __future__ import annotations

import itertools

import pytest

from repertory.errors import Invalid
from repertory.runtime import lifecycle
from repertory.runtime.lifecycle import TRANSITIONS, LifecycleEvent, State, advance


@pytest.mark.parametrize(("state", "happening"), list(itertools.product(State, LifecycleEvent)))
def test_every_step_is_in_the_table_or_refused(state: State, happening: LifecycleEvent) -> None:
    if (state, happening) in TRANSITIONS:
        assert advance(state, happening) is TRANSITIONS[state, happening]
    else:
        with pytest.raises(Invalid, match=f"state='{state.value}'"):
            advance(state, happening)


@pytest.mark.parametrize("state", State)
def test_stop_may_arrive_in_every_state(state: State) -> None:
    """The prototype of this runtime hung twice on a drain that arrived where nobody expected it."""
    assert advance(state, LifecycleEvent.STOP)


def test_acknowledgement_after_a_stop_is_refused() -> None:
    """So a start that is overtaken by a shutdown cannot bring the actor back."""
    with pytest.raises(Invalid):
        advance(advance(State.STARTING, LifecycleEvent.STOP), LifecycleEvent.STARTED)


@pytest.mark.parametrize("state", State)
def test_every_state_leads_to_stopped(state: State) -> None:
    reached, frontier = {state}, {state}
    while frontier:
        frontier = {after for (before, _), after in TRANSITIONS.items() if before in frontier} - reached
        reached |= frontier
    assert State.STOPPED in reached


def test_diagram_in_the_docstring_names_every_state_and_happening() -> None:
    for word in (*State, *LifecycleEvent):
        assert word.value in str(lifecycle.__doc__)
