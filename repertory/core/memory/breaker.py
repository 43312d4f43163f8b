"""When a store that fails is asked again: at growing distances, one attempt at a time.

States: closed (calls go through), open (they do not, until `retry_at`), and then one call as a probe.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FAILURES_MAX = 3
"""So many failures in a row open the breaker."""
FIRST_REST_S = 1.0
LONGEST_REST_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """Times are seconds on any clock that only moves forward."""

    failures: int = 0
    """In a row."""
    retry_at: float = 0.0
    """When the next call may be made, while it is open."""

    @property
    def is_open(self) -> bool:
        """Whether calls are held back, but for probes."""
        return self.failures >= FAILURES_MAX

    def allows(self, now: float) -> bool:
        """Whether a call may be made."""
        return not self.is_open or now >= self.retry_at

    def succeeded(self) -> Breaker:
        """A call went through."""
        return Breaker() if self.failures else self

    def failed(self, now: float) -> Breaker:
        """A call did not. Each probe that fails doubles the rest."""
        failures = self.failures + 1
        rest_s = min(FIRST_REST_S * 2.0 ** max(failures - FAILURES_MAX, 0), LONGEST_REST_S)
        return replace(self, failures=failures, retry_at=now + rest_s)
