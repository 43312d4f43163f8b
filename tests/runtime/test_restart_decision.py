"""Restart decisions, as a table and by properties. No actor runs here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.runtime.children import (
    Ending,
    FailUpward,
    Forget,
    RestartWithin,
    backoff_ceiling_s,
    decide_restart,
    wants_restart,
)
from repertory.runtime.lifecycle import ExitFailed, ExitLimitReached, ExitReason, Killed, Normal, Shutdown
from repertory.runtime.spec import Backoff, Restart, SupervisorSettings

CRASH = ExitFailed(ValueError())
GAVE_UP = ExitLimitReached(ValueError())


@pytest.mark.parametrize(
    ("reason", "permanent", "transient", "temporary"),
    [
        (Normal(), True, False, False),
        (Shutdown(), True, False, False),
        (Killed(), True, True, False),
        (CRASH, True, True, False),
        (GAVE_UP, True, True, False),
    ],
)
def test_restart_type_and_exit_reason_decide(
    reason: ExitReason, permanent: bool, transient: bool, temporary: bool
) -> None:
    """OTP's table, but for one cell: a transient supervisor that gave up is restarted, as its failure goes upward."""
    assert wants_restart(Restart.PERMANENT, reason) is permanent
    assert wants_restart(Restart.TRANSIENT, reason) is transient
    assert wants_restart(Restart.TEMPORARY, reason) is temporary


def ending(restart: Restart = Restart.PERMANENT, failures: int = 0, ran_s: float = 1.0) -> Ending:
    return Ending(restart=restart, reason=CRASH, failures=failures, ran_s=ran_s)


def test_child_that_is_not_restarted_is_forgotten() -> None:
    assert decide_restart(ending(Restart.TEMPORARY), SupervisorSettings(), (), 0.0) == Forget()


def test_sixth_restart_within_30_s_is_one_too_many() -> None:
    restarts: tuple[float, ...] = ()
    for number in range(5):
        verdict = decide_restart(ending(), SupervisorSettings(), restarts, float(number))
        assert isinstance(verdict, RestartWithin)
        restarts = verdict.restarts
    assert isinstance(decide_restart(ending(), SupervisorSettings(), restarts, 29.0), FailUpward)
    assert isinstance(decide_restart(ending(), SupervisorSettings(), restarts, 30.5), RestartWithin)


def test_eighth_failure_in_a_row_is_one_too_many_however_far_apart() -> None:
    """Backoff can stretch failures past any period."""
    assert isinstance(decide_restart(ending(failures=6), SupervisorSettings(), (), 1e6), RestartWithin)
    verdict = decide_restart(ending(failures=7), SupervisorSettings(), (), 1e6)
    assert verdict == FailUpward("8 failures without a healthy run")


def test_healthy_run_forgives_earlier_failures() -> None:
    verdict = decide_restart(ending(failures=7, ran_s=60.0), SupervisorSettings(), (), 1e6)
    assert isinstance(verdict, RestartWithin)
    assert (verdict.failures, verdict.ceiling_s) == (1, 0.1)


def test_backoff_doubles_up_to_its_limit() -> None:
    ceilings = [backoff_ceiling_s(failures, Backoff()) for failures in (0, 1, 2, 3, 8, 9, 10_000)]
    assert ceilings == [0.1, 0.2, 0.4, 0.8, 25.6, 30.0, 30.0]


@given(
    times=st.lists(st.floats(0, 1000), max_size=60).map(sorted),
    intensity=st.integers(0, 10),
    period_s=st.floats(0.1, 100),
)
def test_never_more_restarts_in_a_period_than_allowed(times: list[float], intensity: int, period_s: float) -> None:
    settings = SupervisorSettings(intensity=intensity, period_s=period_s)
    restarts: tuple[float, ...] = ()
    allowed: list[float] = []
    for now in times:
        verdict = decide_restart(ending(), settings, restarts, now)
        if isinstance(verdict, RestartWithin):
            allowed.append(now)
            restarts = verdict.restarts
            assert sum(at > now - period_s for at in allowed) <= intensity
