"""How many tokens the next request will take, kept up to date message by message.

The baseline is what the model said that its last answer and the request for it took. What came since is estimated, what
was hidden since is taken off, and estimates are corrected by how far off earlier ones were. Without a baseline,
everything is estimated. Source: the documented formula; both corrections are ours. What is said in single calls only
counts neither way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repertory.core.messages import Message, ToolSpec, Usage
from repertory.core.tokens import estimate_tokens, injected_tokens

_CORRECTIONS = (0.25, 4.0)
"""The least and the most that estimates are corrected by."""
_WORTH_COMPARING = 200
"""Estimates below that many tokens say nothing about how far off they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a request holds beside the messages, and where it goes."""

    tool_specs: Sequence[ToolSpec] = ()
    system_prompt: str | None = None
    window: int | None = None
    """The tokens that the model's window holds; None when nobody knows."""
    countable: bool = False
    """Whether the model counts tokens itself, so that an estimate decides nothing when it is close."""


class TokenGauge:
    """Measures one conversation."""

    def __init__(self, shown: Sequence[Message] = (), *, hidden: int = 0) -> None:
        """`hidden`: tokens that were hidden since the last answer, as kept with the session."""
        self.hidden = hidden
        self._known: int | None = None
        self._since: list[Message] = []
        self._correction = 1.0
        self._expected: tuple[int, int] | None = None
        for position in range(len(shown) - 1, -1, -1):
            usage = _usage(shown[position])
            if usage is not None:
                self._known = request_tokens(usage) + usage["outputTokens"] - injected_tokens(shown[position])
                self._since = list(shown[position + 1 :])
                break

    def take_in(self, message: Message) -> None:
        """A message was added."""
        usage = _usage(message)
        if usage is None:
            self._since.append(message)
            return
        took = request_tokens(usage) - injected_tokens(message)
        self._compare(took)
        self._known = took + usage["outputTokens"]
        self._since.clear()
        self.hidden = 0

    def know(self, tokens: int) -> None:
        """The model has counted what is shown now, with what stands beside it."""
        self._known = tokens
        self._since.clear()
        self._expected = None
        self.hidden = 0

    def hide(self, messages: Sequence[Message], instead: Sequence[Message] = ()) -> None:
        """Messages are shown no more, or others instead of them."""
        self.hidden += estimate_tokens(messages) - estimate_tokens(instead)

    def tokens(self, shown: Sequence[Message], beside: Beside) -> int:
        """What a request with these messages, which is about to be made, takes."""
        if self._known is None:
            known, estimated = 0, estimate_tokens(shown, beside.tool_specs, beside.system_prompt)
        else:
            known, estimated = self._known, estimate_tokens(self._since) - self.hidden
        self._expected = known, estimated
        return max(0, known + round(estimated * self._correction))

    def _compare(self, took: int) -> None:
        """The model says what the last request took: correct later estimates by it."""
        expected, self._expected = self._expected, None
        if expected is None or expected[1] < _WORTH_COMPARING:
            return
        known, estimated = expected
        least, most = _CORRECTIONS
        self._correction = min(most, max(least, (self._correction + (took - known) / estimated) / 2))


def request_tokens(usage: Usage) -> int:
    """The tokens of the whole request, those that came from or went into a cache included."""
    return usage["inputTokens"] + usage.get("cacheReadInputTokens", 0) + usage.get("cacheWriteInputTokens", 0)


def _usage(message: Message) -> Usage | None:
    usage = message.get("metadata", {}).get("usage") if message["role"] == "assistant" else None
    return usage if usage and usage["totalTokens"] else None
