"""Retrying what failed: model calls, and commits to a store."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import Enum
from typing import Protocol, cast

from msgspec import Struct

from repertory.errors import (
    Failed,
    Invalid,
    QuotaExhausted,
    RepertoryError,
    Retryable,
    SessionException,
    Throttled,
    Unwritable,
)


class RetryStrategy(Protocol):
    """Decides about a model call that failed. Subclass `ModelRetryStrategy`, or bring your own."""

    def delay_s(self, error: Exception, attempt: int, jitter: float) -> float | None:
        """Seconds to wait before the next attempt; None gives up, also if the service asks for more than an hour.

        `attempt` counts the failed attempts of this call from 1; `jitter` is a random number from 0 up to 1.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRetryStrategy:
    """Exponential backoff with jitter, for throttling and for transient failures.

    A throttled call waits as long as the provider asked for, else `initial_delay` seconds, doubling up to `max_delay`,
    with `max_attempts` attempts in all. Any other `Retryable` failure (unreachable, 5xx, a broken stream) starts at
    `transient_delay`, with `transient_attempts` attempts. Every wait is shortened at random by up to half, so that many
    agents do not return at once; a wait that the provider asked for is lengthened instead. The names and the defaults
    for throttling are those of the Strands Agents SDK. The rest is a decision of Repertory.

    Args:
        max_attempts: Attempts of a throttled call in all.
        initial_delay: Seconds before the second attempt of a throttled call.
        max_delay: The most seconds between two attempts.
        transient_attempts: Attempts in all after any other failure that may pass.
        transient_delay: Seconds before the second of those.

    Examples:
        >>> from repertory import Agent, ModelRetryStrategy, ScriptedModel, Unavailable
        >>> model = ScriptedModel([Unavailable("no network"), "I am back."])
        >>> agent = Agent(model, retry_strategy=ModelRetryStrategy(transient_delay=0.01))
        >>> print(agent("Are you there?"))
        I am back.
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

    def is_retryable(self, exception: Exception) -> bool:
        """True if the same call may succeed later; a quota has been waited for already. Override to widen or narrow.

        Args:
            exception: The error of the model.
        """
        return isinstance(exception, Retryable) and not isinstance(exception, QuotaExhausted)

    def delay_s(self, error: Exception, attempt: int, jitter: float) -> float | None:
        """Seconds to wait before the next attempt; None gives up, also if the service asks for more than an hour.

        Args:
            error: The error.
            attempt: How many attempts have failed, from 1.
            jitter: A random number from 0 to 1.
        """
        throttled = isinstance(error, Throttled)
        attempts = self.max_attempts if throttled else self.transient_attempts
        if attempt >= attempts or not self.is_retryable(error):
            return None
        # Waiting for less than was asked only earns the next refusal.
        if throttled and (error.retry_after_s or 0.0) > _ASKED_S_MAX:
            return None
        first = self.initial_delay if throttled else self.transient_delay
        # Bounded exponent: a user's `max_attempts` may be any number, and 2.0 ** 1024 is an OverflowError.
        delay_s = min(first * 2.0 ** min(attempt - 1, 60), self.max_delay)
        if throttled and error.retry_after_s is not None:
            # Longer and never shorter than asked: many agents of one account hear the same number in the same moment.
            return max(error.retry_after_s, 0.0) + delay_s * jitter / 2
        return delay_s * (1 - jitter / 2)


_ASKED_S_MAX = 3600.0
"""The longest wait that a service may ask for: a turn that waits for longer looks as if it hung."""
DEFAULT_RETRY = ModelRetryStrategy()


def check_retry(strategy: object) -> RetryStrategy | None:
    """The strategy. Errors: `Invalid` for anything else."""
    if strategy is not None and not callable(getattr(strategy, "delay_s", None)):
        raise Invalid("a retry strategy has a method delay_s(error, attempt, jitter)", got=strategy)
    return cast("RetryStrategy | None", strategy)


# When a store fails to take a commit: what to do, which rows are stored all the same, and how long callers wait.

_FIRST_S = 0.1
_MAX_S = 2.0
_NOTED_EVERY_S = 60.0
_UNWRITABLE = "the store cannot write what was said, and would fail again: leave out what the cause names"
_CAUSE_MAX = 300
_NAMED_MAX = 3


@contextmanager
def own_errors(*sessions: str) -> Generator[None]:
    """Turn every error raised within into one of ours, so that it ends only the session at work.

    `sessions`: the sessions at work. Errors: ours unchanged; `Unwritable` for any other.
    """
    try:
        yield
    except RepertoryError:
        raise
    except Exception as error:
        raise unwritable(error, sessions) from error


@contextmanager
def foreign_errors() -> Generator[None]:
    """Turn every error raised within that is not ours into `Failed`: of a hook, or of a part that somebody else wrote.
    Errors: ours unchanged; `Failed`.
    """
    try:
        yield
    except RepertoryError:
        raise
    except Exception as error:
        raise Failed("a part of the program has raised an error of its own", error=type(error).__name__) from error


def unwritable(error: Exception, sessions: Sequence[str]) -> Unwritable:
    """The error for a foreign exception: a bug of the store, or a value that it cannot write."""
    cause = f"{type(error).__name__}: {error}"
    return Unwritable(_UNWRITABLE, sessions=list(sessions[:_NAMED_MAX]), cause=cause[:_CAUSE_MAX])


class OutageVerdict(Enum):
    """The treatment of an error of the store."""

    WAIT = "wait"
    """It will pass: callers wait, and the same commit is retried."""
    TELL = "tell"
    """A person must change something outside (rights, credentials, a bucket): callers are told at once, their records
    wait, and the same commit is retried.
    """
    GIVE_UP = "give up"
    """Retrying is useless: go on from what is stored."""


def verdict_on(error: RepertoryError) -> OutageVerdict:
    """The treatment of this error of a commit."""
    match error:
        case Retryable():
            return OutageVerdict.WAIT
        # Before `Failed`, from which it derives: the same value would be refused for ever.
        case Unwritable():
            return OutageVerdict.GIVE_UP
        case Failed():
            return OutageVerdict.TELL
        # By exact type: every error of a store of sessions derives from it.
        case _ if type(error) is SessionException:  # A user's own repository may raise this, without saying more.
            return OutageVerdict.TELL
        case _:
            return OutageVerdict.GIVE_UP


def backoff_s(error: Exception, failures: int, jitter: float, limit_s: float = _MAX_S) -> float:
    """Seconds before the next attempt, after `failures` in a row: `limit_s` at most, unless the error asks for more.
    `jitter`: a random number from 0 up to 1, which shortens the wait by up to half, so that many sessions do not return
    at once.
    """
    asked_s = error.retry_after_s if isinstance(error, Throttled) else None
    delay_s = min(_FIRST_S * 2.0 ** min(failures - 1, 16), limit_s)
    # In bounds, in contrast to a model's call: rows wait and callers are told, so a long pause loses nothing.
    return max(delay_s * (1 - jitter / 2), min(asked_s or 0.0, _ASKED_S_MAX))


class Outage(Struct):
    """Errors in a row of work in the background. It decides on pauses, and on the errors that the log tells: the first
    one, and then one a minute.
    """

    limit_s: float
    """The longest pause."""
    failures: int = 0
    _noted_at: float = 0.0

    def failed(self, error: Exception, now: float, jitter: float) -> tuple[float, bool]:
        """Seconds until the next attempt, and whether the log tells this error."""
        self.failures += 1
        noted = self.failures == 1 or now - self._noted_at >= _NOTED_EVERY_S
        self._noted_at = now if noted else self._noted_at
        return backoff_s(error, self.failures, jitter, self.limit_s), noted

    def over(self) -> int:
        """Note that the work has succeeded; the number of failures in a row before that."""
        failures, self.failures = self.failures, 0
        return failures


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePatience:
    """The patience of a session while its store is down, slow or full. New records wait in memory, and are stored in
    order when the store is back.

    Raises:
        Invalid: For values that are not positive or not finite. Correct the argument.

    Examples:
        >>> from repertory import Agent, OfflineModel, StorePatience
        >>> agent = Agent(OfflineModel(), patience=StorePatience(wait_s=5, busy_s=2))
    """

    wait_s: float = 30.0
    """Seconds that a call waits for its records to be stored, or for room. Then it fails with `Unavailable`. A call
    with `timeout_s` waits until 2 seconds after its deadline at most.
    """
    records_max: int = 1000
    """Records of one agent in one session that may wait. Above it, turns wait before they go on."""
    bytes_max: int = 16 * 1024 * 1024
    """The same in bytes. The records of one step may exceed both: they are never dropped."""
    busy_s: float = 30.0
    """Seconds that opening a session waits for another process to release it, which it does at once or, if a turn runs,
    at the turn's end. Then it fails with `SessionBusy`.
    """

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "busy_s" else 1e-9
            if isinstance(value, bool | str) or not least <= value < math.inf:
                raise Invalid(f"{field.name} is a positive number", got=value)


DEFAULT_PATIENCE = StorePatience()
