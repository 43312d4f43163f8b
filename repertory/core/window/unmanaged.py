"""The conversation manager that shows everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repertory.core.messages import Message
from repertory.core.window.plan import WindowPlan
from repertory.errors import ContextWindowOverflowException

_NOTHING = WindowPlan()


@dataclass(frozen=True, slots=True)
class NullConversationManager:
    """Never hides anything. An overflow of the model's window reaches the caller as it is."""

    @property
    def name(self) -> str:
        return "NullConversationManager"

    def manage(self, shown: Sequence[Message]) -> WindowPlan:
        del shown
        return _NOTHING

    def manages_before_call(self, model_calls: int) -> bool:
        del model_calls
        return False

    def reduce(self, shown: Sequence[Message], error: ContextWindowOverflowException) -> WindowPlan:
        del shown
        raise error
