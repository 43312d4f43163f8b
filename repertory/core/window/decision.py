"""What a conversation manager decides: a plan at once, or something that takes its time and ends in one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from repertory.core.messages import Json, Message
from repertory.core.window.plan import WindowPlan
from repertory.core.window.summary import SummaryRequest
from repertory.errors import ContextWindowOverflowException


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBudget:
    """What a manager may want to know before it plans."""

    tokens: int | None = None
    """An estimate of what the next request takes; None when it was not asked for (`proactive_compression`)."""
    window: int | None = None
    """The tokens that the model's window holds; None when nobody knows."""
    error: ContextWindowOverflowException | None = None
    """The model has just refused for length: a plan that hides nothing fails the turn."""
    full: bool = False
    """The threshold of `proactive_compression` is reached. A plan that hides nothing is fine."""
    beside: int | None = None
    """About how many tokens system prompt and tools take; None when nobody knows."""
    unsummarised: bool = False
    """Summaries help no more: there were many, or the smallest pieces were too long for the model that writes them."""
    least: int = 0
    """About how many tokens to take off at least. A plan that takes off fewer is applied, and the manager asked again,
    as long as it finds something."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Somebody's own code decides."""

    decide: Callable[[], Awaitable[WindowPlan]]


Decision: TypeAlias = WindowPlan | SummaryRequest | Edit

Shorten: TypeAlias = Callable[[Sequence[Message], int], WindowPlan]
"""Takes what is shown and how many of the last messages are new; gives what to show instead of some of these."""


class WindowManager(Protocol):
    """What every conversation manager decides. What is counted lies in the journal's view, not here."""

    @property
    def name(self) -> str:
        """The class name, as journals and foreign layouts keep it."""
        ...

    @property
    def compression_threshold(self) -> float | None:
        """The share of the window from which on `reduce` is asked ahead of a call; None for never."""
        ...

    @property
    def summarizes(self) -> bool:
        """Whether `reduce` asks for summaries, which are better begun ahead of need."""
        ...

    def keep(self, removed: int) -> Mapping[str, Json]:
        """So many messages are hidden now; answers with what to keep with the session beside that."""
        ...

    def restore(self, removed: int, state: Mapping[str, Json]) -> None:
        """Go on from what was kept."""
        ...

    def manage(self, shown: Sequence[Message]) -> Decision:
        """After a turn (and between steps when `manages_before_call` says so): tidy up."""
        ...

    def manages_before_call(self, model_calls: int) -> bool:
        """Whether to tidy up before the model call with this number, counted from 1 over the session's life."""
        ...

    def reduce(self, shown: Sequence[Message], budget: WindowBudget) -> Decision:
        """The window is full (`budget.error` is what the model said), or nearly: hide something.

        Errors: `ContextWindowOverflowException` when nothing can be done.
        """
        ...
