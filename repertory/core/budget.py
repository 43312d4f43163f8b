"""A budget: limits on the tokens and the cost of all work for one call together, and their use by agent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.messages import Usage

LIMITED_BY_BUDGET = frozenset(("limit_total_tokens", "limit_output_tokens", "limit_cost"))
"""The stop reasons of an exhausted budget."""
ANY_MODEL = "*"
"""The key, in prices, of any model that has no price of its own."""


class Spent(NamedTuple):
    """The tokens, cost and model calls that were used.

    Attributes:
        input_tokens: Tokens that models have read.
        output_tokens: Tokens that models have written.
        total_tokens: Both.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cost: float = 0.0
    """The cost, in the unit of the prices."""
    calls: int = 0
    """Answered model calls."""

    def and_also(self, usage: Usage, cost: float) -> Spent:
        """The sum with one more call.

        Args:
            usage: The tokens of the call.
            cost: The cost of the call, in the unit of the prices.
        """
        return Spent(
            self.input_tokens + usage["inputTokens"],
            self.output_tokens + usage["outputTokens"],
            self.total_tokens + usage["totalTokens"],
            self.cost + cost,
            self.calls + 1,
        )


class PastCall(NamedTuple):
    """An answered model call that is on record."""

    at: float
    """The time of its record, in epoch seconds."""
    who: str
    """The agent's id, as `Budget.by` lists it."""
    model: str
    """The id of the model."""
    usage: Usage


class Budget:
    """Limits that a call shares with all work done for it.

    That work is nodes, agents as tools, agents called by tools and hooks, what these do in turn, summaries, and the
    extraction of memories. Pass a budget as `budget=`. A call within that call may get a smaller budget of its own,
    which counts towards both.

    The budget is checked before each model call, so the last call may exceed it. Then turns end with stop reason
    `limit_total_tokens`, `limit_output_tokens` or `limit_cost`. A run can be continued with another budget. Summaries
    that can wait, and extraction, are left for a later call. Work after the answer is counted when it is done.

    `spent` is the total. `by` is the same for each agent by its `agent_id`, with `agent_id/summary` and
    `agent_id/memory` for the summaries and memories made for it. A node whose conversation is kept, or whose agent has
    no `agent_id`, is listed as `graph.node`, a nested one as `graph.team.node`. An agent that writes summaries has its
    own `agent_id`.

    Examples:
        >>> from repertory import Agent, Budget, ScriptedModel
        >>> budget = Budget(total_tokens=1_000)
        >>> agent = Agent(ScriptedModel("Fine."), agent_id="clerk")
        >>> print(agent("How are you?", budget=budget))
        Fine.
        >>> budget.spent.calls, list(budget.by), budget.used_up
        (1, ['clerk'], None)
    """

    def __init__(
        self,
        *,
        total_tokens: int | None = None,
        output_tokens: int | None = None,
        cost: float | None = None,
        prices: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        """
        Args:
            total_tokens: The most input and output tokens; None for no limit.
            output_tokens: The most output tokens; None for no limit.
            cost: The most that may be spent, in the unit of `prices`; None for no limit.
            prices: Model id, or `*` for any other, to the prices of a million input and a million output tokens, in the
                unit of `cost`.

        Raises:
            Invalid: For malformed limits or prices, and for a cost without prices. Correct the argument.
        """
        self._total = _bound(total_tokens, "total_tokens")
        self._output = _bound(output_tokens, "output_tokens")
        self._cost = _bound(cost, "cost")
        self._prices = {model: _price(model, price) for model, price in (prices or {}).items()}
        if cost is not None and not self._prices:
            raise Invalid("a budget with a cost needs prices")
        self.refused = 0
        """Model calls that were refused because of the budget."""
        self._by: dict[str, Spent] = {}
        self._spent = Spent()
        self._seen: set[str] = set()
        """The works that this budget was told of (`take_over`)."""

    def without_bounds(self) -> Budget:
        """A budget without limits, with the same prices."""
        return Budget(prices=self._prices)

    @property
    def prices(self) -> Mapping[str, tuple[float, float]]:
        """Model id, or `*` for any other, to the prices of a million input and a million output tokens."""
        return self._prices

    @property
    def remaining(self) -> Mapping[str, float]:
        """The tokens and the cost until the limits `total_tokens`, `output_tokens` and `cost`; infinity without one."""
        spent = self._spent
        return {
            "total_tokens": self._total - spent.total_tokens,
            "output_tokens": self._output - spent.output_tokens,
            "cost": self._cost - spent.cost,
        }

    @property
    def spent(self) -> Spent:
        """The tokens, cost and calls used until now."""
        return self._spent

    @property
    def by(self) -> Mapping[str, Spent]:
        """The tokens, cost and calls used until now, by agent."""
        return dict(self._by)

    @property
    def used_up(self) -> str | None:
        """The stop reason of the first limit that is reached; None while something is left."""
        spent = self._spent
        if spent.total_tokens >= self._total:
            return "limit_total_tokens"
        if spent.output_tokens >= self._output:
            return "limit_output_tokens"
        return "limit_cost" if spent.cost >= self._cost else None

    def reached(self, model: str) -> str | None:
        """`used_up`, for a model call that is about to start: it must not start unless this is None.

        Args:
            model: The id of the model.

        Raises:
            Invalid: For a model without a price, when the cost is limited. Correct the argument.
        """
        reason, unpriced = self.used_up, self._cost < math.inf and self._prices.keys().isdisjoint((model, ANY_MODEL))
        # A bool counts as 0 or 1. An unpriced model is refused, not taken as free: it would spend without any limit.
        self.refused += unpriced or reason is not None
        if unpriced:
            raise Invalid("the budget has no price for this model", model=model, prices=sorted(self._prices))
        return reason

    def charge(self, who: str, model: str, usage: Usage) -> None:
        """Count an answered model call.

        Args:
            who: The agent's id, as `by` lists it.
            model: The id of the model.
            usage: The tokens of the call.
        """
        cost = self.cost_of(model, usage["inputTokens"], usage["outputTokens"]) or 0.0
        self._spent = self._spent.and_also(usage, cost)
        self._by[who] = self._by.get(who, Spent()).and_also(usage, cost)

    def take_over(self, work: str, calls: Iterable[PastCall]) -> None:
        """Count what a work has spent before this budget saw it: it was begun in a process that is gone. Later calls
        with the same work count nothing, since the budget has seen all of it by then.

        Args:
            work: The name of the work, the same in each process.
            calls: Its model calls until now.
        """
        if work not in self._seen:
            self._seen.add(work)
            for each in calls:
                self.charge(each.who, each.model, each.usage)

    def has_seen(self, work: str) -> bool:
        """True if this budget was told of the work.

        Args:
            work: Its name.
        """
        return work in self._seen

    def cost_of(self, model: str, input_tokens: int, output_tokens: int) -> float | None:
        """The cost of so many tokens, in the unit of the prices; None for a model without a price.

        Args:
            model: The id of the model.
            input_tokens: Tokens that the model was given.
            output_tokens: Tokens that the model answered.
        """
        price = self._prices.get(model) or self._prices.get(ANY_MODEL)
        return price and (input_tokens * price[0] + output_tokens * price[1]) / 1e6


def _bound(value: object, what: str) -> float:
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise Invalid(f"{what} is a positive number", got=value)
    return value


def _price(model: str, price: object) -> tuple[float, float]:
    match price:
        case (int() | float() as per_input, int() | float() as per_output) if per_input >= 0 <= per_output:
            return float(per_input), float(per_output)
        case _:
            raise Invalid("a price is two numbers, for a million input and output tokens", model=model, got=price)
