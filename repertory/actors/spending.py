"""What models use, counted towards the budgets of the calls for which they are asked."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from repertory.backends.ports import settings_of
from repertory.errors import LimitReached

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repertory.backends.ports import Model
    from repertory.core.budget import Budget
    from repertory.core.messages import Usage

BUDGETS: ContextVar[tuple[Budget, ...]] = ContextVar("repertory_budgets", default=())
"""The budgets that what is used here counts towards, each once, the outermost call's first. What is done behind an
answer has those of the call that it is done for."""


PAYER: ContextVar[str | None] = ContextVar("repertory_payer", default=None)
"""Under which name the turn or run that is worked on spends when it has no id of its own; None: there is no other."""


def refusals(budgets: Iterable[Budget]) -> int:
    """How often models were not asked because of them. When it grows, whatever was done on them may not be whole."""
    return sum(budget.refused for budget in budgets)


class Spending:
    """Somebody who asks models, on the budgets that count here."""

    __slots__ = ("_who", "budgets")

    def __init__(self, who: str) -> None:
        """`who`: as `Budget.by` names it."""
        self._who = who
        self.budgets = BUDGETS.get()

    def reached(self, model: Model) -> str | None:
        """The stop reason of the first budget that is used up; None when the model may be asked.

        Errors: `Invalid` for a model without a price, when there is a bound on the cost.
        """
        for budget in self.budgets:
            reason = budget.reached(_id_of(model))
            if reason is not None:
                return reason
        return None

    def check(self, model: Model) -> None:
        """Errors: `LimitReached` when a budget is used up; those of `reached`."""
        reason = self.reached(model)
        if reason is not None:
            raise LimitReached("the budget of the call is used up", who=self._who, reason=reason)

    def charge(self, model: Model, usage: Usage) -> None:
        """The model has answered."""
        for budget in self.budgets:
            budget.charge(self._who, _id_of(model), usage)


def _id_of(model: Model) -> str:
    return str(settings_of(model).get("model_id", ""))
