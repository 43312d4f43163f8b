"""Having the oldest messages summarised.

This decides what is to be summarised and where the summary stands; whoever drives it has a model write the summary. The
messages themselves stay in the history. A tool use is never parted from its result. A summary says in its metadata that
it is one. Source: the documented behaviour of the SDK whose users we serve (summarising).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from repertory.core.messages import Message, tool_results, tool_uses
from repertory.core.tokens import estimate_tokens
from repertory.core.window.decision import WindowBudget
from repertory.core.window.plan import WindowPlan, check_count
from repertory.core.window.sliding import nothing_left, reducing_cut, shorten_largest
from repertory.core.window.summary import DEFAULT_PROMPT, SummaryRequest, is_summary, left_out
from repertory.errors import Invalid

RATIOS = (0.1, 0.8)
"""What `summary_ratio` is taken between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarizing:
    """Settings; `SummarizingConversationManager` says what they mean.

    Errors: `Invalid` (a ValueError) for a setting out of range, and for an agent and a prompt together.
    """

    summary_ratio: float = 0.3
    preserve_recent_messages: int = 10
    agent: object = None
    system_prompt: str | None = None
    pin_first: int | None = None

    def __post_init__(self) -> None:
        if self.agent is not None and self.system_prompt is not None:
            raise Invalid(
                "Cannot provide both summarization_agent and summarization_system_prompt. "
                "Agents come with their own system prompt."
            )
        ratio = cast("object", self.summary_ratio)
        if isinstance(ratio, bool) or not isinstance(ratio, int | float):
            raise Invalid(
                "summary_ratio is a share, as in SummarizingConversationManager(summary_ratio=0.3)",
                got=repr(ratio),
            )
        check_count(self.preserve_recent_messages, "preserve_recent_messages", "messages at the end")
        prompt = cast("object", self.system_prompt)
        if prompt is not None and not isinstance(prompt, str):
            raise Invalid("summarization_system_prompt is a text", got=type(prompt).__name__)
        if self.preserve_recent_messages < 0:
            raise Invalid("preserve_recent_messages cannot be negative", got=self.preserve_recent_messages)
        if self.pin_first is not None:
            check_count(self.pin_first, "pin_first", "messages at the start")
        if self.pin_first is not None and self.pin_first < 1:
            raise Invalid("pin_first is None or at least 1", got=self.pin_first)

    def reduce(self, shown: Sequence[Message], budget: WindowBudget) -> SummaryRequest | WindowPlan:
        """What to summarise. Where nothing may be, or summaries do not help, and the model has refused: the largest
        tool results shortened, the preserved ones too; then the oldest messages left out, with a note that says so.

        Errors: `ContextWindowOverflowException` when there is nothing left to summarise, to shorten or to leave out.
        """
        pinned = _pinned(shown, self.pin_first or 0)
        end = self._end(shown, len(pinned), budget.least)
        if end is None or budget.unsummarised:
            plan = WindowPlan() if budget.error is None else _without_summary(shown, pinned, budget.least)
            if not plan.changes:
                msg = "Cannot summarize: insufficient messages for summarization"
                raise nothing_left(msg, shown, budget) from budget.error
            return plan
        return SummaryRequest(
            messages=tuple(shown[:end]),
            pinned=pinned,
            system_prompt=self.system_prompt or DEFAULT_PROMPT,
            agent=self.agent,
        )

    @property
    def _ratio(self) -> float:
        least, most = RATIOS
        return min(most, max(least, self.summary_ratio))

    def _end(self, shown: Sequence[Message], pinned: int, least: int) -> int | None:
        """Where the messages to be summarised end; None when there are none, or only an earlier summary. `least`: how
        many tokens they take together, if so many messages may be summarised.
        """
        latest = len(shown) - max(1, self.preserve_recent_messages)
        if latest <= pinned:
            return None
        fewest = 2 if shown and is_summary(shown[0]) else 1
        end = min(pinned + max(fewest, int((len(shown) - pinned) * self._ratio)), latest)
        least -= estimate_tokens(shown[pinned:end]) if least > 0 else 0
        while least > 0 and end < latest:
            least -= estimate_tokens(shown[end : end + 1])
            end += 1
        cut = next((cut for cut in range(end, latest + 1) if _may_begin(shown[cut])), None)
        if cut is None:
            cut = next((cut for cut in range(end, pinned, -1) if _may_begin(shown[cut])), pinned)
        return cut if cut - pinned >= fewest else None


def _without_summary(shown: Sequence[Message], pinned: tuple[int, ...], least: int) -> WindowPlan:
    """How to take off so many tokens without a summary; no changes when nothing can be."""
    shortened = shorten_largest(shown, least)
    if shortened:
        return WindowPlan(replaced=shortened, reason="tool results shortened")
    summarised = bool(shown) and is_summary(shown[0])
    first = pinned[-1] + 1 if pinned else int(summarised)
    cut = reducing_cut(shown, first, first + 1, least)
    if cut is None:
        return WindowPlan(drop=first if summarised else 0, pinned=pinned if summarised else (), reason="left out")
    gone = [message for at, message in enumerate(shown[:cut]) if at not in pinned]
    note: Message | None = left_out(gone)
    if estimate_tokens([note]) >= estimate_tokens(gone):
        note = None
    return WindowPlan(drop=cut, pinned=pinned, summary=note, reason="left out")


def _may_begin(message: Message) -> bool:
    """Whether what is shown may begin with it: not with tool results whose uses are gone."""
    return not any(tool_results(message))


def _pinned(shown: Sequence[Message], first: int) -> tuple[int, ...]:
    """The first positions, without an earlier summary, and the partner of a tool use at their end."""
    begin = 1 if first and shown and is_summary(shown[0]) else 0
    end = min(begin + first, len(shown)) if first else begin
    while begin < end < len(shown) and any(tool_uses(shown[end - 1])):
        end += 1
    return tuple(range(begin, end))
