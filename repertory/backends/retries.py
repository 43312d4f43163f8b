"""Retries within a time limit: exponential backoff with jitter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

from repertory.errors import Retryable, Unavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long a call is retried while its errors are `Retryable`."""

    timeout_s: float = 20.0
    """Seconds for all attempts of a call and the delays between them; a longer attempt is cut off."""
    first_delay_s: float = 0.1
    """Seconds before the second attempt. Each further delay doubles; a random part of up to half is left out."""
    delay_max_s: float = 5.0
    unavailable: type[Unavailable] = Unavailable
    """Raised when no attempt finished in time."""


async def with_retries(call: Callable[[], Awaitable[T]], retry_policy: RetryPolicy, jitter: Callable[[], float]) -> T:
    """The result of `call`, retried. `jitter` returns numbers from 0 up to 1. Cancellation ends the attempt, or the
    delay.

    Errors: an error of the call that is not `Retryable`, at once; otherwise the last one when the time is over, or
    `Unavailable` when no attempt had finished by then.
    """
    deadline = anyio.current_time() + retry_policy.timeout_s
    delay_s = retry_policy.first_delay_s
    last: Retryable = retry_policy.unavailable("no answer in time", timeout_s=retry_policy.timeout_s)
    with anyio.move_on_at(deadline):
        while True:
            try:
                return await call()
            except Retryable as error:
                last = error
            await anyio.sleep(delay_s * (1 - jitter() / 2))
            delay_s = min(2 * delay_s, retry_policy.delay_max_s)
    raise last
