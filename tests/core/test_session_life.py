"""The life of a session: each step is in the table or is refused, and `next_step` brings every session to rest,
whatever was cut off before.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core import session_life
from repertory.core.session_life import (
    TRANSITIONS,
    SessionEvent,
    SessionFacts,
    SessionMachine,
    SessionState,
    SessionStep,
    Unused,
    next_step,
)
from repertory.errors import Invalid

S, E = SessionState, SessionEvent
ENDS = ("done", "refused", "cut before", "cut after", "dies")
"""The ways in which a step ends: by itself; refused by a store; cut off as it began, or as it was over; or done, and
then the actors die.
"""


@pytest.mark.parametrize(("state", "event"), list(itertools.product(S, E)))
def test_every_step_is_in_the_table_or_refused(state: SessionState, event: SessionEvent) -> None:
    life = SessionMachine(state=state)
    if (state, event) in TRANSITIONS:
        life.step(event)
        assert life.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(Invalid, match=f"state='{state.value}'"):
            life.step(event)
        assert life.state is state


def test_the_drawing_names_every_state_and_event() -> None:
    for word in (*S, *E):
        assert word.value in str(session_life.__doc__)


@pytest.mark.parametrize("state", [state for state in S if state is not S.ABSENT])
def test_a_session_can_be_stopped_in_every_state(state: SessionState) -> None:
    life = SessionMachine(state=state)
    life.step(E.STOP)
    life.step(E.STOPPED)
    assert life.state is S.ABSENT


class Session(SessionMachine, eq=False, kw_only=True):
    """A session as `Host` carries the steps out, without actors."""

    alive: bool

    def carry_out(self, step: SessionStep, end: str) -> bool:
        """False if the task that does it was cut off."""
        match step:
            case SessionStep.START:
                first, last, otherwise = E.START, E.STARTED, E.STOP
            case SessionStep.PAUSE:
                first, last, otherwise = E.PAUSE, E.RELEASED, None
            case SessionStep.RESUME:
                first, last, otherwise = E.RESUME, E.RESUMED, E.STOP
            case SessionStep.STOP:
                first, last, otherwise = E.STOP, E.STOPPED, None
            case SessionStep.NOTHING:
                raise AssertionError
        self.step(first)
        if end == "cut before":
            return False
        if end == "refused" and step is not SessionStep.STOP:
            if otherwise is not None:
                self.step(otherwise)
        else:
            self.step(last)
            self.alive = last is not E.STOPPED and end != "dies"
        return end != "cut after"


@given(
    state=st.sampled_from(S),
    visits=st.lists(
        st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.lists(st.sampled_from(ENDS))),
        max_size=6,
    ),
    unused=st.sampled_from(Unused),
)
def test_whoever_looks_next_finishes_what_was_cut_off(
    state: SessionState, visits: list[tuple[bool, bool, bool, bool, list[str]]], unused: Unused
) -> None:
    session = Session(state=state, alive=state not in (S.ABSENT, S.STARTING))
    for used, fits, over, closing, ends in [*visits, (False, True, True, False, [])]:
        for _ in range(9):
            facts = SessionFacts(session.state, used, session.alive, fits, unused, over=over, closing=closing)
            step: SessionStep | None = next_step(facts)
            assert step is not None
            if step is SessionStep.NOTHING:
                rests = session.state in (S.ABSENT, S.ACTIVE, S.PAUSED)
                assert rests, "a session rests half way"
                assert not (used and not closing) or (session.state is S.ACTIVE and session.alive)
                assert not closing or session.state is S.ABSENT
                assert used or not over or session.state is S.ABSENT
                assert used or unused is not Unused.STOP or session.state in (S.ABSENT, S.PAUSED)
                break
            assert step is not SessionStep.START or session.state is S.ABSENT, "its actors would run twice"
            end = ends.pop() if ends else "done"
            fits = fits or step is SessionStep.START  # For the caller of this very spec.
            if not session.carry_out(step, end):
                break
            over = over or (step is SessionStep.PAUSE and end == "refused")
        else:
            pytest.fail(f"no rest: {session.state}")
    assert session.state is S.ABSENT


def test_a_session_that_is_used_is_neither_paused_nor_stopped_while_it_lives() -> None:
    for unused, over in itertools.product(Unused, (False, True)):
        assert next_step(SessionFacts(S.ACTIVE, used=True, unused=unused, over=over)) is SessionStep.NOTHING


def test_paused_actors_that_cannot_serve_a_call_are_stopped_and_others_started() -> None:
    assert next_step(SessionFacts(S.PAUSED, used=True, fits=False)) is SessionStep.STOP
    assert next_step(SessionFacts(S.ABSENT, used=True, fits=False)) is SessionStep.START


def test_actors_that_live_for_the_background_alone_and_cannot_serve_a_call_are_stopped() -> None:
    assert next_step(SessionFacts(S.ACTIVE, used=True, fits=False)) is SessionStep.STOP
    assert next_step(SessionFacts(S.ACTIVE, used=False, fits=False)) is SessionStep.NOTHING
