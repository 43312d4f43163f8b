"""Retrying a failed model call: whether, and after how long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, cast

from repertory.errors import Invalid, Retryable, Throttled


class RetryStrategy(Protocol):
    """Decides about a model call that failed. Subclass `ModelRetryStrategy`, or bring your own."""

    def delay_s(self, error: Exception, attempt: int, jitter: float) -> float | None:
        """Seconds to wait before the next attempt; None gives up.

        `attempt` counts the failed attempts of this call from 1; `jitter` is a random number from 0 up to 1.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRetryStrategy:
    """Exponential backoff with jitter, for throttling and for transient failures.

    A throttled call waits as long as the provider asked for, else `initial_delay` seconds, doubling up to `max_delay`,
    with `max_attempts` attempts in all. Any other `Retryable` failure (unreachable, 5xx, a broken stream) starts at
    `transient_delay`, with `transient_attempts` attempts. Every wait is shortened at random by up to half, so that many
    agents do not return at once; a wait that the provider asked for is lengthened instead.
    Source: names and throttling defaults of the SDK whose users we serve; the rest is our decision.
    """

    max_attempts: int = 6
    initial_delay: float = 4.0
    max_delay: float = 240.0
    transient_attempts: int = 3
    transient_delay: float = 0.5

    def __post_init__(self) -> None:
        """Errors: `Invalid` for attempts below 1 and delays that are negative or not finite."""
        for name in ("max_attempts", "transient_attempts"):
            if getattr(self, name) < 1:
                raise Invalid(f"{name} is at least 1", got=getattr(self, name))
        for name in ("initial_delay", "max_delay", "transient_delay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise Invalid(f"{name} is a number of seconds, 0 or more", got=getattr(self, name))

    def is_retryable(self, error: Exception) -> bool:
        """True if the same call may succeed later. Override to widen or narrow."""
        return isinstance(error, Retryable)

    def delay_s(self, error: Exception, attempt: int, jitter: float) -> float | None:
        """Seconds to wait before the next attempt; None gives up."""
        throttled = isinstance(error, Throttled)
        attempts = self.max_attempts if throttled else self.transient_attempts
        if attempt >= attempts or not self.is_retryable(error):
            return None
        first = self.initial_delay if throttled else self.transient_delay
        delay_s = min(first * 2.0 ** min(attempt - 1, 60), self.max_delay)
        if throttled and error.retry_after_s is not None:
            return max(error.retry_after_s, 0.0) + delay_s * jitter / 2
        return delay_s * (1 - jitter / 2)


DEFAULT_RETRY = ModelRetryStrategy()


def check_retry(strategy: object) -> RetryStrategy | None:
    """The strategy. Errors: `Invalid` for anything else."""
    if strategy is not None and not callable(getattr(strategy, "delay_s", None)):
        raise Invalid("a retry strategy has a method delay_s(error, attempt, jitter)", got=strategy)
    return cast("RetryStrategy | None", strategy)
