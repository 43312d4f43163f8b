"""Trying again within a bound: exponential backoff with jitter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

from repertory.errors import Retryable, Unavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long a call is tried again while its errors are `Retryable`."""

    timeout_s: float = 20.0
    """Seconds for all attempts of a call and the waits between them; an attempt that takes longer is cut off."""
    first_delay_s: float = 0.1
    """Seconds before the second attempt. Each further wait is twice as long; up to half of it is left out by chance."""
    delay_max_s: float = 5.0
    unavailable: type[Unavailable] = Unavailable
    """What is raised when no attempt came to an end."""


async def with_retries(call: Callable[[], Awaitable[T]], patience: RetryPolicy, jitter: Callable[[], float]) -> T:
    """What `call` gives at last. `jitter` gives numbers from 0 up to 1. Cancellation ends the attempt, or the wait.

    Errors: those of the call that are not `Retryable`, at once; otherwise the last one when the time is over, and
    `Unavailable` when no attempt had come to an end by then.
    """
    deadline = anyio.current_time() + patience.timeout_s
    delay_s = patience.first_delay_s
    last: Retryable = patience.unavailable("no answer in time", timeout_s=patience.timeout_s)
    with anyio.move_on_at(deadline):
        while True:
            try:
                return await call()
            except Retryable as error:
                last = error
            await anyio.sleep(delay_s * (1 - jitter() / 2))
            delay_s = min(2 * delay_s, patience.delay_max_s)
    raise last
