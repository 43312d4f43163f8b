"""When a store that fails is asked again.

`Breaker`: at growing distances in time, one attempt at a time. States: closed (calls go through), open (they do not,
until `retry_at`), and then one call as a probe. `TurnBreaker`: every so many turns, for turns that would wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FAILURES_MAX = 3
"""So many failures in a row open the breaker."""
FIRST_REST_S = 1.0
LONGEST_REST_S = 60.0
MISSES_MAX = 5
"""So many turns in a row that the store has failed, or did not answer in time, open the turns' breaker."""
PROBE_EVERY = 4
"""Of so many turns one asks the store nevertheless, while it is open."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBreaker:
    """Whether a turn asks a store and waits for it."""

    missed: int = 0
    """Turns in a row that have asked in vain."""
    skipped: int = 0
    """Turns since then that have not asked."""

    @property
    def allows(self) -> bool:
        """Whether the turn that begins now asks."""
        return self.missed < MISSES_MAX or self.skipped >= PROBE_EVERY - 1

    def asked(self) -> TurnBreaker:
        """A turn asks; while it does, others that begin do not count it as skipped."""
        return replace(self, skipped=0)

    def passed_over(self) -> TurnBreaker:
        """A turn does not ask."""
        return replace(self, skipped=self.skipped + 1)

    def answered(self) -> TurnBreaker:
        """The store has answered in time."""
        return TurnBreaker() if self.missed or self.skipped else self

    def failed(self) -> TurnBreaker:
        """It has failed, or has not answered in time."""
        return replace(self, missed=self.missed + 1)
