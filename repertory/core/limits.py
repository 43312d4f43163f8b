"""Bounds that a caller sets for one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, TypedDict, cast

from repertory.errors import Invalid

RESULT_BYTES = 10 * 1024 * 1024
ANSWER_BYTES = 16 * 1024 * 1024
PROMPT_BYTES = 32 * 1024 * 1024


class Limits(TypedDict, total=False):
    """Bounds of one call, each a positive number.

    The first three are looked at between steps, so a step may exceed them. The others bound one value each: its bytes,
    and 256 more for each text, number, list and object in it. They are there without being set, and are never exceeded.
    """

    turns: int
    """Model calls. Stop reason `limit_turns`."""
    total_tokens: int
    """Input and output tokens of all model calls. Stop reason `limit_total_tokens`."""
    output_tokens: int
    """Output tokens of all model calls. Stop reason `limit_output_tokens`."""
    result_bytes: int
    """One tool result. The model is given an error result that says how large it was. 10 MiB unless set."""
    answer_bytes: int
    """One answer of the model, while it streams; each event of the stream weighs 32. The call fails with `TooLarge`.
    16 MiB unless set."""
    prompt_bytes: int
    """What the caller says. The call fails with `TooLarge`, and nothing is stored. 32 MiB unless set."""


class Sizes(NamedTuple):
    """How much single values may weigh; see `Limits` and `core/sizes.py`."""

    result_bytes: int = RESULT_BYTES
    answer_bytes: int = ANSWER_BYTES
    prompt_bytes: int = PROMPT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """Bounds of one turn; None means what the agent was built with, and then no bound, or the default."""

    vain_reductions_max: int = 3
    """How often in a row a model call is tried again with a view that did not become smaller."""
    forms_max: int = 3
    """How often the model may fill in a form (structured output) wrongly, or not at all."""
    steps: int | None = None
    total_tokens: int | None = None
    output_tokens: int | None = None
    result_bytes: int | None = None
    answer_bytes: int | None = None
    prompt_bytes: int | None = None

    def over(self, others: TurnLimits) -> TurnLimits:
        """These, and the others where these say nothing."""
        if self is NO_LIMITS:  # Most calls say nothing.
            return others
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(others, **{name: value for name, value in own.items() if value is not None})

    @property
    def sizes(self) -> Sizes:
        """The bounds of single values, with the defaults where none is set."""
        return Sizes(
            result_bytes=self.result_bytes or RESULT_BYTES,
            answer_bytes=self.answer_bytes or ANSWER_BYTES,
            prompt_bytes=self.prompt_bytes or PROMPT_BYTES,
        )

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
        result_bytes=checked.get("result_bytes"),
        answer_bytes=checked.get("answer_bytes"),
        prompt_bytes=checked.get("prompt_bytes"),
    )
