"""A decision on what the model is shown, as data, with the one way to apply it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from repertory.core.messages import Json, Message
from repertory.errors import Invalid

DEFAULT_MANAGER = "SlidingWindowConversationManager"
"""Whose conversation it is as long as nothing names a manager."""
_OURS = frozenset(("__name__", "removed_message_count", "model_call_count", "hidden_tokens", "summary_message"))


def own_state(kept: Mapping[str, Json]) -> dict[str, Json]:
    """What a manager's own `get_state` adds to what is kept of every manager."""
    return {key: value for key, value in kept.items() if key not in _OURS}


def check_count(value: object, name: str, of: str) -> None:
    """Raise `Invalid` unless a setting is a number of something; whether it is large enough is for others."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Invalid(f"{name} is a number of {of}", got=repr(value))


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


def apply_plan(shown: Sequence[Message], plan: WindowPlan) -> list[Message]:
    """The messages that remain, in order. The input is not changed."""
    kept = [plan.replaced.get(position, shown[position]) for position in plan.pinned]
    if not plan.replaced:
        return [*kept, *shown[plan.drop :]]
    rest = (plan.replaced.get(position, shown[position]) for position in range(plan.drop, len(shown)))
    return [*kept, *rest]
