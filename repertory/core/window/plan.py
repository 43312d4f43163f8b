"""A decision on what the model is shown, as data, with the one way to apply it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from repertory.core.messages import Message
from repertory.errors import ContextWindowOverflowException


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """What to hide and what to shorten. Positions count from the first shown message. The history itself stays."""

    drop: int = 0
    """Messages to hide at the front; pinned ones among them stay shown."""
    pinned: tuple[int, ...] = ()
    """Positions below `drop` that stay."""
    replaced: Mapping[int, Message] = field(default_factory=dict[int, Message])
    """Shortened messages, by position."""
    summary: Message | None = None
    """What stands in front of all others from now on; None leaves it as it is."""
    reason: str = ""

    @property
    def changes(self) -> bool:
        """Whether applying it does anything."""
        return self.drop > len(self.pinned) or bool(self.replaced) or self.summary is not None


class WindowManager(Protocol):
    """What every conversation manager decides. Settings only: what it counted lies in `removed_message_count`."""

    @property
    def name(self) -> str:
        """The class name, as journals and foreign layouts keep it."""
        ...

    def manage(self, shown: Sequence[Message]) -> WindowPlan:
        """After a turn (and between steps when `manages_before_call` says so): tidy up."""
        ...

    def manages_before_call(self, model_calls: int) -> bool:
        """Whether to tidy up before the model call with this number, counted from 1 over the session's life."""
        ...

    def reduce(self, shown: Sequence[Message], error: ContextWindowOverflowException) -> WindowPlan:
        """The model refused for length: a plan that changes something. Errors: `error` when nothing can be done."""
        ...


def apply_plan(shown: Sequence[Message], plan: WindowPlan) -> list[Message]:
    """The messages that remain, in order. The input is not changed."""
    kept = [shown[position] for position in plan.pinned]
    if not plan.replaced:
        return [*kept, *shown[plan.drop :]]
    rest = (plan.replaced.get(position, shown[position]) for position in range(plan.drop, len(shown)))
    return [*kept, *rest]
