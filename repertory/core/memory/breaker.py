"""Circuit breakers: they decide when a failing store is called again.

`Breaker` works by time, with one probe at a time: closed (calls go through), open (no calls until `retry_at`), then one
call as a probe. `TurnBreaker` counts turns, for turns that would wait for the store.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

FAILURES_MAX = 3
"""The number of failures in a row that open the breaker."""
FIRST_REST_S = 1.0
LONGEST_REST_S = 60.0
MISSES_MAX = 5
"""The number of turns in a row without an answer in time that open the turns' breaker."""
PROBE_EVERY = 4
"""The number of turns of which one asks the store as a probe while the turns' breaker is open."""


class Breaker(Struct, frozen=True, kw_only=True):
    """The state of a store's circuit breaker. Times are seconds on a monotonic clock."""

    failures: int = 0
    """Failures in a row."""
    retry_at: float = 0.0
    """The time of the next probe while the breaker is open."""

    @property
    def is_open(self) -> bool:
        """True if only probes go through."""
        return self.failures >= FAILURES_MAX

    def allows(self, now: float) -> bool:
        return not self.is_open or now >= self.retry_at

    def succeeded(self) -> Breaker:
        """The breaker after a call that succeeded."""
        # The same object where nothing changes: this runs for every search.
        return Breaker() if self.failures else self

    def failed(self, now: float) -> Breaker:
        """The breaker after a call that failed. Each failed probe doubles the time until the next one."""
        failures = self.failures + 1
        rest_s = min(FIRST_REST_S * 2.0 ** max(failures - FAILURES_MAX, 0), LONGEST_REST_S)
        return replace(self, failures=failures, retry_at=now + rest_s)


class TurnBreaker(Struct, frozen=True, kw_only=True):
    """The state of the breaker that decides whether a turn asks a store and waits for it."""

    missed: int = 0
    """Turns in a row that asked without an answer in time."""
    skipped: int = 0
    """Turns since then that did not ask."""

    @property
    def allows(self) -> bool:
        """True if the turn that begins now asks."""
        return self.missed < MISSES_MAX or self.skipped >= PROBE_EVERY - 1

    def asked(self) -> TurnBreaker:
        """The breaker while a turn asks: meanwhile, other turns that begin do not count it as skipped."""
        return replace(self, skipped=0)

    def passed_over(self) -> TurnBreaker:
        """The breaker after a turn that did not ask."""
        return replace(self, skipped=self.skipped + 1)

    def answered(self) -> TurnBreaker:
        """The breaker after the store answered in time."""
        return TurnBreaker() if self.missed or self.skipped else self

    def failed(self) -> TurnBreaker:
        """The breaker after the store failed, or did not answer in time."""
        return replace(self, missed=self.missed + 1)
