"""When a failed model call is tried again, and how long to wait before it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.retry import DEFAULT_RETRY, ModelRetryStrategy, check_retry
from repertory.errors import (
    ContextWindowOverflowException,
    Invalid,
    ModelFailed,
    ModelStreamBroken,
    Throttled,
    Unavailable,
)

JITTER = st.floats(min_value=0, max_value=1, exclude_max=True)
SECONDS = st.floats(min_value=0, max_value=1000)
STRATEGIES = st.builds(
    ModelRetryStrategy,
    max_attempts=st.integers(min_value=1, max_value=100),
    initial_delay=SECONDS,
    max_delay=SECONDS,
    transient_attempts=st.integers(min_value=1, max_value=100),
    transient_delay=SECONDS,
)
FAILURES = st.sampled_from([Throttled("slow"), Unavailable("gone"), ModelStreamBroken("broke off")])


@given(STRATEGIES, FAILURES, st.integers(min_value=1, max_value=200), JITTER)
def test_attempts_are_bounded_and_waits_lie_between_half_and_whole_of_the_backoff(
    strategy: ModelRetryStrategy, failure: Exception, attempt: int, jitter: float
) -> None:
    throttled = isinstance(failure, Throttled)
    attempts = strategy.max_attempts if throttled else strategy.transient_attempts
    first = strategy.initial_delay if throttled else strategy.transient_delay
    delay_s = strategy.delay_s(failure, attempt, jitter)
    if attempt >= attempts:
        assert delay_s is None
        return
    backoff = min(first * 2.0 ** min(attempt - 1, 60), strategy.max_delay)
    assert delay_s is not None
    assert backoff / 2 <= delay_s <= backoff
    assert delay_s <= strategy.max_delay
    assert strategy.delay_s(failure, attempt, 0.0) == backoff


@given(SECONDS, st.integers(min_value=1, max_value=5), JITTER)
def test_a_wait_that_the_provider_asked_for_is_never_shortened(asked: float, attempt: int, jitter: float) -> None:
    delay_s = DEFAULT_RETRY.delay_s(Throttled("slow", retry_after_s=asked), attempt, jitter)
    own = min(4.0 * 2 ** (attempt - 1), 240.0)
    assert delay_s is not None
    assert asked <= delay_s <= asked + own / 2


@given(st.integers(min_value=2, max_value=5), JITTER)
def test_waits_never_fall_from_one_attempt_to_the_next(attempt: int, jitter: float) -> None:
    for failure in (Throttled("slow"), Unavailable("gone")):
        before = ModelRetryStrategy(transient_attempts=10).delay_s(failure, attempt - 1, jitter)
        after = ModelRetryStrategy(transient_attempts=10).delay_s(failure, attempt, jitter)
        assert before is not None
        assert after is not None
        assert before <= after


@given(JITTER, JITTER)
def test_agents_that_failed_together_do_not_come_back_together(one: float, other: float) -> None:
    waits = {DEFAULT_RETRY.delay_s(Throttled("slow"), 1, jitter) for jitter in (one, other)}
    assert len(waits) == 2 or math.isclose(one, other, abs_tol=1e-9)


def test_the_default_is_six_attempts_when_throttled_and_three_otherwise() -> None:
    throttled = [DEFAULT_RETRY.delay_s(Throttled("slow"), attempt, 0.0) for attempt in range(1, 7)]
    assert throttled == [4.0, 8.0, 16.0, 32.0, 64.0, None]
    transient = [DEFAULT_RETRY.delay_s(Unavailable("gone"), attempt, 0.0) for attempt in range(1, 4)]
    assert transient == [0.5, 1.0, None]


@pytest.mark.parametrize(
    "failure", [ModelFailed("no"), ContextWindowOverflowException("long"), RuntimeError("bug")], ids=repr
)
def test_what_would_fail_again_is_not_retried(failure: Exception) -> None:
    assert DEFAULT_RETRY.delay_s(failure, 1, 0.5) is None


def test_a_subclass_may_widen_what_is_retried() -> None:
    class Stubborn(ModelRetryStrategy):
        def is_retryable(self, exception: Exception) -> bool:
            return isinstance(exception, ModelFailed) or super().is_retryable(exception)

    assert Stubborn().delay_s(ModelFailed("no"), 1, 0.0) == 0.5


@pytest.mark.parametrize("retry_after_s", [3601.0, 1e308, math.inf])
def test_a_service_that_asks_for_more_than_an_hour_is_not_asked_again(retry_after_s: float) -> None:
    assert DEFAULT_RETRY.delay_s(Throttled("slow", retry_after_s=retry_after_s), 1, 0.0) is None


@pytest.mark.parametrize("retry_after_s", [-5.0, 0.0])
def test_a_wait_that_is_over_already_is_no_wait(retry_after_s: float) -> None:
    assert DEFAULT_RETRY.delay_s(Throttled("slow", retry_after_s=retry_after_s), 1, 0.0) == 0.0


@pytest.mark.parametrize(
    "settings",
    [
        {"max_attempts": 0},
        {"transient_attempts": -1},
        {"initial_delay": -1},
        {"max_delay": math.inf},
        {"transient_delay": math.nan},
    ],
    ids=repr,
)
def test_settings_that_make_no_sense_are_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=next(iter(settings))):
        ModelRetryStrategy(**settings)


def test_a_strategy_is_anything_that_says_how_long_to_wait() -> None:
    class Own:
        def delay_s(self, error: Exception, attempt: int, jitter: float) -> float | None:
            return 1.0

    own = Own()
    assert check_retry(own) is own
    assert check_retry(None) is None
    with pytest.raises(Invalid, match="delay_s"):
        check_retry("three times")
