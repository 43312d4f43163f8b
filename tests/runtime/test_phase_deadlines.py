"""How a drain shares its time: arithmetic alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.errors import Invalid
from repertory.runtime.drain import DrainPhase, phase_deadline
from repertory.runtime.system import SystemSettings

PHASES = (
    DrainPhase(name="finish turns", timeout_s=15.0),
    DrainPhase(name="commit", timeout_s=5.0, reserve_s=4.0),
    DrainPhase(name="close", timeout_s=2.0, reserve_s=1.0, stops_actors=True),
)


def test_phase_ends_after_its_own_timeout() -> None:
    assert phase_deadline(PHASES, 0, 0.0, 25.0, cut_short=False) == 15.0


def test_phase_never_eats_what_is_reserved_for_later_ones() -> None:
    assert phase_deadline(PHASES, 0, 0.0, 10.0, cut_short=False) == 5.0
    assert phase_deadline(PHASES, 1, 8.0, 10.0, cut_short=False) == 12.0  # its own reserve, though time is up
    assert phase_deadline(PHASES, 1, 4.0, 10.0, cut_short=False) == 9.0


def test_cut_short_leaves_each_phase_its_reserve_alone() -> None:
    ends = [phase_deadline(PHASES, index, 7.0, 25.0, cut_short=True) for index in range(3)]
    assert ends == [7.0, 11.0, 8.0]


SECONDS = st.floats(0, 60, allow_nan=False)


@given(
    st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=6),
    st.floats(0, 120),
)
def test_every_phase_gets_its_reserve_and_the_whole_ends_in_time(
    plan: list[tuple[float, float, float]], extra_s: float
) -> None:
    """Each phase uses all that it is given, at the most."""
    phases = [DrainPhase(name=str(number), timeout_s=t, reserve_s=r) for number, (t, r, _) in enumerate(plan)]
    end = sum(phase.reserve_s for phase in phases) + extra_s
    now = 0.0
    for index, (phase, (_, _, wanted_s)) in enumerate(zip(phases, plan, strict=True)):
        deadline = phase_deadline(phases, index, now, end, cut_short=False)
        assert deadline - now >= phase.reserve_s - 1e-9
        now = min(deadline, now + wanted_s)
    assert now <= end + 1e-6


def test_settings_refuse_phases_that_make_no_sense() -> None:
    stop = DrainPhase(name="stop", timeout_s=1, stops_actors=True)
    with pytest.raises(Invalid, match="exactly one phase"):
        SystemSettings(phases=(DrainPhase(name="a", timeout_s=1),))
    with pytest.raises(Invalid, match="same name"):
        SystemSettings(phases=(stop, DrainPhase(name="stop", timeout_s=1)))
    with pytest.raises(Invalid, match="reserve more time"):
        SystemSettings(phases=(stop, DrainPhase(name="late", timeout_s=1, reserve_s=30)), grace_s=25)
