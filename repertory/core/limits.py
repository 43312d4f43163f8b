"""Bounds that a caller sets for one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict, cast

from repertory.errors import Invalid


class Limits(TypedDict, total=False):
    """Bounds of one call, each a positive number. They are looked at between steps, so a step may exceed them."""

    turns: int
    """Model calls. Stop reason `limit_turns`."""
    total_tokens: int
    """Input and output tokens of all model calls. Stop reason `limit_total_tokens`."""
    output_tokens: int
    """Output tokens of all model calls. Stop reason `limit_output_tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """Bounds of one turn; None means no bound."""

    reductions_max: int = 3
    """How often one model call may be retried with a shorter view."""
    forms_max: int = 3
    """How often the model may fill in a form (structured output) wrongly, or not at all."""
    steps: int | None = None
    total_tokens: int | None = None
    output_tokens: int | None = None

    def reached(self, steps: int, total_tokens: int, output_tokens: int) -> str | None:
        """The stop reason of the first bound that is reached; None while there is none."""
        if self.steps is not None and steps >= self.steps:
            return "limit_turns"
        if self.total_tokens is not None and total_tokens >= self.total_tokens:
            return "limit_total_tokens"
        if self.output_tokens is not None and output_tokens >= self.output_tokens:
            return "limit_output_tokens"
        return None


NO_LIMITS = TurnLimits()


def read_limits(limits: object) -> TurnLimits:
    """The bounds that a caller gave. Errors: `Invalid` naming the key that is unknown or not a positive integer."""
    if limits is None:
        return NO_LIMITS
    if not isinstance(limits, Mapping):
        raise Invalid("limits is a dictionary", got=type(limits).__name__)
    given = dict(cast("Mapping[str, object]", limits))
    unknown = sorted(given.keys() - Limits.__annotations__.keys(), key=str)
    if unknown:
        raise Invalid(f"limits has {', '.join(Limits.__annotations__)}", unknown=unknown)
    for name, value in given.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise Invalid(f"limits[{name!r}] is a positive integer", got=value)
    checked = cast("Limits", given)
    return TurnLimits(
        steps=checked.get("turns"),
        total_tokens=checked.get("total_tokens"),
        output_tokens=checked.get("output_tokens"),
    )
