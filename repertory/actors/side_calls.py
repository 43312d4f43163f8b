"""Model calls beside turns: a summary, an extraction, a choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from repertory.actors.call import Spending
from repertory.actors.turn import ModelRequest, call_model, retry_delay_s
from repertory.errors import RepertoryError

if TYPE_CHECKING:
    from repertory.backends.ports import Model
    from repertory.core.answer import Answer
    from repertory.core.retry import RetryStrategy


async def call_until_answered(model: Model, request: ModelRequest, strategy: RetryStrategy | None, who: str) -> Answer:
    """The answer to a side call, of which nobody is shown events. It is asked for again as the strategy says, and
    counts towards the current budgets, as used by `who`.

    Errors: the last one; `LimitReached` when a budget is used up.
    """
    attempt, spending = 0, Spending(who)
    while True:
        attempt += 1
        spending.check(model)
        try:
            answer = await call_model(model, request, None)
        except RepertoryError as error:
            # No chance is at hand here; the middle of the jitter is as good as any for a call that no other waits for.
            delay_s = retry_delay_s(strategy, error, attempt, 0.5)
            if delay_s is None:
                raise
        else:
            spending.charge(model, answer.usage)
            return answer
        await anyio.sleep(delay_s)
