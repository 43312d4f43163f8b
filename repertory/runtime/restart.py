"""What to do about a child that ended: a pure decision.

As in OTP, the intensity counts the restarts of all children of one supervisor; on top of that, failures of one child
that never ran healthily in between are counted for themselves, because backoff can stretch them past any period.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from repertory.runtime.exit import ExitReason, Normal, Shutdown
from repertory.runtime.spec import Backoff, Restart, SupervisorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a child's incarnation ended."""

    restart: Restart
    reason: ExitReason
    failures: int
    """Of the incarnations before it, since the last healthy one."""
    ran_s: float
    """How long it ran since its start was acknowledged; 0 if it never was."""


@dataclass(frozen=True, slots=True)
class Forget:
    """The child is not started again."""


@dataclass(frozen=True, slots=True)
class RestartWithin:
    """Start the child again after a random part of `ceiling_s`. `failures` and `restarts` are to be remembered."""

    ceiling_s: float
    failures: int
    restarts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop all children and fail upward."""

    why: str


Verdict: TypeAlias = Forget | RestartWithin | GiveUp


def decide_restart(ending: Ending, settings: SupervisorSettings, restarts: tuple[float, ...], now: float) -> Verdict:
    """The verdict on an ended child.

    `restarts` are the times of the supervisor's last restarts, as the last verdict gave them.
    """
    if not wants_restart(ending.restart, ending.reason):
        return Forget()
    failures = failures_behind(ending.failures, ending.ran_s, settings.backoff)
    if failures >= settings.failures_max:
        return GiveUp(f"{failures} failures without a healthy run")
    recent = (*(at for at in restarts if at > now - settings.period_s), now)
    if len(recent) > settings.intensity:
        return GiveUp(f"more than {settings.intensity} restarts in {settings.period_s:g} s")
    return RestartWithin(backoff_ceiling_s(failures - 1, settings.backoff), failures, recent)


def wants_restart(restart: Restart, reason: ExitReason) -> bool:
    """Whether a child of this type, ended for this reason, is to run again."""
    match restart:
        case Restart.PERMANENT:
            return True
        case Restart.TRANSIENT:
            return not isinstance(reason, Normal | Shutdown)
        case Restart.TEMPORARY:
            return False


def failures_behind(failures: int, ran_s: float, backoff: Backoff) -> int:
    """How many failures in a row this one makes: 1 after a healthy run."""
    return 1 if ran_s >= backoff.healthy_s else failures + 1


def backoff_ceiling_s(failures: int, backoff: Backoff) -> float:
    """The longest wait before the restart that follows `failures` earlier ones."""
    return min(backoff.limit_s, backoff.base_s * 2.0 ** min(failures, 64))
