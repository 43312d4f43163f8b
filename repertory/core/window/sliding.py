"""The sliding window: showing the most recent messages.

A cut falls at a user message without tool results, so that the shown messages begin with the user; failing that, at a
message whose tool uses are answered by the next one. A tool use is never parted from its result. Source: the documented
behaviour of the SDK whose users we serve (sliding window).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import Struct

from repertory.core.messages import ContentBlock, Message, ToolResult, tool_results, tool_uses
from repertory.core.tokens import estimate_tokens
from repertory.core.window.decision import (
    SUMMARY_PROMPT,
    SummaryRequest,
    WindowBudget,
    WindowPlan,
    check_count,
    is_summary,
    omission_note,
)
from repertory.core.window.pinning import pinned_among
from repertory.errors import ContextWindowOverflowException, Invalid


class SlidingWindow(Struct, frozen=True, kw_only=True):
    """Shows at most `window_size` messages (messages, not pairs), as far as a cut allows.

    `should_truncate_results`: on overflow, first shorten the oldest long tool result, before hiding messages.
    `per_turn`: False tidies up after each turn; True also before each model call; n before every n-th.
    `pin_first`: that many messages at the start stay shown for ever, with the partners of their tool uses.
    Errors: `Invalid` (a ValueError) for a negative window, or `per_turn` or `pin_first` below 1.
    """

    window_size: int = 40
    should_truncate_results: bool = True
    per_turn: bool | int = False
    pin_first: int | None = None

    def __post_init__(self) -> None:
        check_count(self.window_size, "window_size", "messages, as in SlidingWindowConversationManager(window_size=40)")
        if self.window_size < 0:
            raise Invalid("window_size counts messages and cannot be negative", got=self.window_size)
        check_count(int(self.per_turn) if isinstance(self.per_turn, bool) else self.per_turn, "per_turn", "model calls")
        if not isinstance(self.per_turn, bool) and self.per_turn < 1:
            raise Invalid("per_turn is False, True or a number of model calls of at least 1", got=self.per_turn)
        if self.pin_first is not None:
            check_count(self.pin_first, "pin_first", "messages at the start")
        if self.pin_first is not None and self.pin_first < 1:
            raise Invalid("pin_first is None or at least 1", got=self.pin_first)

    def manage(self, visible: Sequence[Message]) -> WindowPlan:
        """Hide the oldest messages beyond the window; nothing when no cut is possible."""
        excess = len(visible) - self.window_size
        if excess <= 0:
            return WindowPlan()
        # A window of nothing still has to show what the next call answers: a prompt, or tool uses that wait.
        if self.window_size == 0 and not (visible[-1]["role"] == "user" or any(tool_uses(visible[-1]))):
            return _plan(_pinned(visible, self.pin_first or 0), len(visible), "window")
        pinned = _pinned(visible, self.pin_first or 0)
        # At least one message stays: no provider takes an empty list.
        at_least = _behind(pinned, min(excess, len(visible) - 1))
        return _plan(pinned, _cut(visible, at_least), "window")

    def manages_before_call(self, model_calls: int) -> bool:
        return self.per_turn is not False and model_calls % int(self.per_turn) == 0

    def reduce(self, visible: Sequence[Message], budget: WindowBudget) -> WindowPlan:
        """Shorten the oldest long tool results, else hide the oldest messages, until `budget.least` tokens are removed.

        Errors: `ContextWindowOverflowException` when nothing is left to shorten or hide.
        """
        # First, since a shortened result costs the model less than a turn that is gone.
        if self.should_truncate_results:
            found = shorten_oldest(visible, budget.least)
            if found:
                return WindowPlan(replaced=found, reason="tool results shortened")
        excess = len(visible) - self.window_size
        pinned = _pinned(visible, self.pin_first or 0)
        # Two, a prompt and its answer, as in the SDK.
        at_least = _behind(pinned, excess if excess > 0 else 2)
        cut = reducing_cut(visible, _behind(pinned, 0), at_least, budget.least)
        plan = _plan(pinned, cut, "overflow")
        if not plan.changes:
            raise nothing_reducible("Unable to trim conversation context!", visible, budget) from budget.error
        return plan


def _plan(pinned: frozenset[int], cut: int | None, reason: str) -> WindowPlan:
    if cut is None:
        return WindowPlan()
    retained = tuple(sorted(position for position in pinned if position < cut))
    return WindowPlan(drop=cut, pinned=retained, reason=reason)


def reducing_cut(visible: Sequence[Message], first: int, at_least: int, least: int) -> int | None:
    """The position of a cut that removes at least the messages from `first` to `at_least`, and `least` tokens; else of
    the latest cut before that. None when no cut is possible.
    """
    at_least = max(at_least, _first_remaining(visible, first, least))
    cut = _cut(visible, at_least)
    # Less than wanted is better than a failed turn: the model is asked again, and refuses if it is still too much.
    if cut is None:  # No cut that late: the latest one before it.
        cut = next((at for at in range(min(at_least, len(visible)) - 1, first, -1) if _may_begin(visible, at)), None)
    return cut


def nothing_reducible(text: str, visible: Sequence[Message], budget: WindowBudget) -> ContextWindowOverflowException:
    """The error when nothing can be shortened any more: it names the largest message, in estimated tokens."""
    sizes = [estimate_tokens([message]) for message in visible]
    fields: dict[str, object] = {"shown": len(visible), "messages_tokens": sum(sizes)}
    if sizes:
        at = max(range(len(visible)), key=sizes.__getitem__)
        fields |= {"largest": f"messages[{at}] ({visible[at]['role']})", "largest_tokens": sizes[at]}
    if budget.beside is not None:
        fields["beside_tokens"] = budget.beside
    return ContextWindowOverflowException(text, **fields)


def _cut(visible: Sequence[Message], at_least: int) -> int | None:
    """The first possible cut from `at_least` on; None when there is none."""
    for position in range(at_least, len(visible)):
        if visible[position]["role"] == "user" and not any(tool_results(visible[position])):
            return position
    # Second choice: the window then begins with the assistant, but no result has lost its use.
    for position in range(at_least, len(visible) - 1):
        if any(tool_uses(visible[position])):
            return position
    return None


def _first_remaining(visible: Sequence[Message], first: int, least: int) -> int:
    """The position after as many messages from `first` on as hold that many tokens."""
    position = first
    while position < len(visible) and least > 0:
        least -= estimate_tokens(visible[position : position + 1])
        position += 1
    return position


def _may_begin(visible: Sequence[Message], position: int) -> bool:
    message = visible[position]
    prompt = message["role"] == "user" and not any(tool_results(message))
    return prompt or (any(tool_uses(message)) and position < len(visible) - 1)


def _pinned(visible: Sequence[Message], first: int) -> frozenset[int]:
    """The pinned positions: the first ones, extended until no tool use at their end lacks its results, and those that
    are pinned themselves.
    """
    end = min(first, len(visible))
    # Pinned without its results, a tool use would make every later request invalid.
    while 0 < end < len(visible) and any(tool_uses(visible[end - 1])):
        end += 1
    return pinned_among(visible) | frozenset(range(end))


def _behind(pinned: frozenset[int], count: int) -> int:
    """The position behind that many messages that are not pinned, and behind the pinned ones that follow."""
    position = 0
    while count > 0 or position in pinned:
        count -= position not in pinned
        position += 1
    return position


# Shortening long tool results to their beginning and end.
#
# Source: the documented behaviour of the SDK whose users we serve (tool result truncation): the first and the last 200
# characters stay; an image becomes its description; the status stays; a shortened result is left alone. JSON and
# documents, which that SDK leaves whole, are shortened here too: they may be all that can be shortened.

EDGE_CHARS = 200
_MARK = "... [truncated: "


def shorten_oldest(visible: Sequence[Message], least: int = 0) -> dict[int, Message]:
    """Position to shortened message: the first ones with long tool results, until `least` tokens are removed, at least
    one. Empty when there are none.
    """
    found: dict[int, Message] = {}
    for position, message in enumerate(visible):
        shortened = shorten_results(message)
        if shortened is not message:
            found[position] = shortened
            least -= estimate_tokens([message]) - estimate_tokens([shortened])
            if least <= 0:
                break
    return found


def shorten_largest(visible: Sequence[Message], least: int = 0) -> dict[int, Message]:
    """Position to shortened message, those that lose most tokens first, until `least` tokens are removed."""
    found: dict[int, Message] = {}
    shorter = {at: shortened for at, one in enumerate(visible) if (shortened := shorten_results(one)) is not one}
    gains = {at: estimate_tokens([visible[at]]) - estimate_tokens([shorter[at]]) for at in shorter}
    for at in sorted(gains, key=gains.__getitem__, reverse=True):
        found[at] = shorter[at]
        least -= gains[at]
        if least <= 0:
            break
    return found


def shorten_results(message: Message) -> Message:
    """The message with long tool results shortened; the same object when there is nothing to shorten."""
    blocks = [_shorten_block(block) for block in message["content"]]
    if all(new is old for new, old in zip(blocks, message["content"], strict=True)):
        return message
    return {**message, "content": blocks}


def _shorten_block(block: ContentBlock) -> ContentBlock:
    if "toolResult" not in block:
        return block
    result = block["toolResult"]
    parts = [_shorten_part(part) for part in result["content"]]
    if all(new is old for new, old in zip(parts, result["content"], strict=True)):
        return block
    shortened: ToolResult = {**result, "content": parts}
    return {"toolResult": shortened}


def _shorten_part(part: dict[str, object]) -> dict[str, object]:
    match part:
        case {"text": str(text)}:
            shorter = shorten_text(text)
            return part if shorter is text else {"text": shorter}
        case {"image": {"format": str(kind), "source": {"bytes": bytes(data)}}}:
            return {"text": f"[image: {kind}, {len(data)} bytes]"}
        case {"image": _}:
            return {"text": f"[image: {_image_format(part)}]"}
        case {"json": value}:
            text = json.dumps(value, ensure_ascii=False, default=str)
            shorter = shorten_text(text)
            return part if shorter is text else {"text": shorter}
        case {"document": {"name": str(name), "source": {"bytes": bytes(data)}}} if len(data) > 2 * EDGE_CHARS:
            return {"text": f"[document: {name}, {len(data)} bytes]"}
        case _:
            return part


def _image_format(part: Mapping[str, object]) -> str:
    image = part.get("image")
    return (
        str(cast("Mapping[str, object]", image).get("format", "unknown")) if isinstance(image, Mapping) else "unknown"
    )


def shorten_text(text: str) -> str:
    """The text without its middle; the same object when it is short enough, as every shortened text is."""
    removed = len(text) - 2 * EDGE_CHARS
    # The mark would be as long as what it replaces, and a shortened text must not be shortened again.
    if removed <= len(_MARK) + 40:
        return text
    return f"{text[:EDGE_CHARS]}...\n\n{_MARK}{removed} chars removed] ...\n\n...{text[-EDGE_CHARS:]}"


# Summarising the oldest messages.
#
# This decides what to summarise and where the summary goes; the driver has a model write it. The messages stay in the
# history. A tool use is never parted from its result. A summary is marked in its metadata. Source: the documented
# behaviour of the SDK whose users we serve (summarising).


RATIOS = (0.1, 0.8)
"""The range to which `summary_ratio` is clamped."""


class Summarizing(Struct, frozen=True, kw_only=True):
    """Settings; `SummarizingConversationManager` explains them.

    Errors: `Invalid` (a ValueError) for a setting out of range, and for an agent together with a prompt or a model.
    """

    summary_ratio: float = 0.3
    preserve_recent_messages: int = 10
    agent: object = None
    system_prompt: str | None = None
    model: object = None
    pin_first: int | None = None

    def __post_init__(self) -> None:
        if self.model is not None and (self.agent is not None or not callable(getattr(self.model, "stream", None))):
            raise Invalid("model is a Model that writes the summaries; a summarization_agent has its own")
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

    def reduce(self, visible: Sequence[Message], budget: WindowBudget) -> SummaryRequest | WindowPlan:
        """Choose what to summarise. When nothing can be, or summaries do not help, and the model has refused: shorten
        the largest tool results, the preserved ones too; then leave out the oldest messages, with a note that says so.

        Errors: `ContextWindowOverflowException` when nothing is left to summarise, shorten or leave out.
        """
        first = _pinned_first(visible, self.pin_first or 0)
        marked = pinned_among(visible)
        end = self._end(visible, len(first), budget.least, marked)
        if end is None or budget.unsummarised:
            plan = WindowPlan() if budget.error is None else _without_summary(visible, first, budget.least, marked)
            if not plan.changes:
                msg = "Cannot summarize: insufficient messages for summarization"
                raise nothing_reducible(msg, visible, budget) from budget.error
            return plan
        return SummaryRequest(
            messages=tuple(visible[:end]),
            pinned=_below(end, first, marked),
            system_prompt=self.system_prompt or SUMMARY_PROMPT,
            agent=self.agent,
            model=self.model,
        )

    @property
    def ratio(self) -> float:
        """`summary_ratio`, clamped."""
        least, most = RATIOS
        return min(most, max(least, self.summary_ratio))

    def _end(self, visible: Sequence[Message], pinned: int, least: int, marked: frozenset[int]) -> int | None:
        """The end of the messages to summarise; None when there are none, or only an earlier summary. They hold `least`
        tokens if that many messages may be summarised.
        """
        latest = len(visible) - max(1, self.preserve_recent_messages)
        if latest <= pinned:
            return None
        # A summary of a summary alone hides nothing, and loses words each time.
        fewest = 2 if visible and is_summary(visible[0]) else 1
        end = min(pinned + max(fewest, int((len(visible) - pinned) * self.ratio)), latest)
        least -= estimate_tokens(visible[pinned:end]) if least > 0 else 0
        while least > 0 and end < latest:
            least -= estimate_tokens(visible[end : end + 1])
            end += 1
        cut = next((cut for cut in range(end, latest + 1) if _may_follow_summary(visible[cut])), None)
        if cut is None:
            cut = next((cut for cut in range(end, pinned, -1) if _may_follow_summary(visible[cut])), pinned)
        stay = sum(pinned <= position < cut for position in marked)
        return cut if cut - pinned - stay >= fewest else None


def _below(end: int, first: Sequence[int], marked: frozenset[int]) -> tuple[int, ...]:
    return tuple(sorted({*first, *(position for position in marked if position < end)}))


def _without_summary(
    visible: Sequence[Message], pinned: tuple[int, ...], least: int, marked: frozenset[int]
) -> WindowPlan:
    """The plan that removes `least` tokens without a summary; a plan without changes when nothing can be removed."""
    shortened = shorten_largest(visible, least)
    if shortened:
        return WindowPlan(replaced=shortened, reason="tool results shortened")
    summarised = bool(visible) and is_summary(visible[0])
    first = pinned[-1] + 1 if pinned else int(summarised)
    cut = reducing_cut(visible, first, first + 1, least)
    if cut is None:
        return WindowPlan(drop=first if summarised else 0, pinned=pinned if summarised else (), reason="left out")
    pinned = _below(cut, pinned, marked)
    gone = [message for at, message in enumerate(visible[:cut]) if at not in pinned]
    note: Message | None = omission_note(gone) if gone else None
    if note is not None and estimate_tokens([note]) >= estimate_tokens(gone):
        note = None
    return WindowPlan(drop=cut, pinned=pinned, summary=note, reason="left out")


def _may_follow_summary(message: Message) -> bool:
    """True if the message may be the first after a summary: it holds no tool results, whose uses would be gone."""
    return not any(tool_results(message))


def _pinned_first(visible: Sequence[Message], first: int) -> tuple[int, ...]:
    """The first positions after an earlier summary, and the results of a tool use at their end."""
    begin = 1 if first and visible and is_summary(visible[0]) else 0
    end = min(begin + first, len(visible)) if first else begin
    while begin < end < len(visible) and any(tool_uses(visible[end - 1])):
        end += 1
    return tuple(range(begin, end))
