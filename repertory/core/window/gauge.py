"""The estimated tokens of the next request, updated message by message.

The baseline is the usage that the model reported for its last answer and request. Later messages are estimated and
added, hidden ones subtracted, and estimates are corrected by the error of earlier ones. Without a baseline, everything
is estimated. Content injected into single calls counts neither way. Source: the documented formula; both corrections
are ours.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from repertory.core.messages import Message, ToolSpec, Usage
from repertory.core.tokens import estimate_tokens, injected_tokens, prompt_tokens

_CORRECTIONS = (0.25, 4.0)
"""The smallest and the largest correction factor."""
_WORTH_COMPARING = 200
"""The tokens below which an estimate is too small to correct by."""


class RequestOverhead(Struct, frozen=True, kw_only=True):
    """The rest of a request besides the messages, and the model's window."""

    tool_specs: Sequence[ToolSpec] = ()
    system_prompt: str | None = None
    window: int | None = None
    """The model's window in tokens; None when unknown."""
    countable: bool = False
    """True if the model counts tokens itself: then a close estimate decides nothing."""
    estimates: bool = False
    """True if the model has an estimate of its own, which is asked for each request."""


class TokenGauge:
    """An estimate of the tokens of one conversation's next request."""

    def __init__(self, visible: Sequence[Message] = (), *, hidden: int = 0) -> None:
        """`hidden`: tokens hidden since the last answer, as stored with the session."""
        self.hidden = hidden
        self._known: int | None = None
        self._since: list[Message] = []
        self._correction = 1.0
        self._expected: tuple[int, int] | None = None
        for position in range(len(visible) - 1, -1, -1):
            usage = _usage(visible[position])
            if usage is not None:
                # The provider's own count of the last request, so that only what came since is estimated.
                self._known = prompt_tokens(usage) + usage["outputTokens"] - injected_tokens(visible[position])
                self._since = list(visible[position + 1 :])
                break

    def take_in(self, message: Message) -> None:
        """Add a message to the estimate."""
        usage = _usage(message)
        if usage is None:
            self._since.append(message)
            return
        tokens = prompt_tokens(usage) - injected_tokens(message)
        self._compare(tokens)
        self._known = tokens + usage["outputTokens"]
        self._since.clear()
        self.hidden = 0

    def know(self, tokens: int, *, in_part: bool = False) -> None:
        """Take the model's count of the shown messages and the rest of the request, or of the part since its last
        answer: then the rest is what that reported, with the messages that are hidden since.
        """
        self._known = tokens
        self._since.clear()
        self._expected = None
        self.hidden = self.hidden if in_part else 0

    def hide(self, messages: Sequence[Message], instead: Sequence[Message] = ()) -> None:
        """Note that messages are no longer shown, or are replaced by others."""
        self.hidden += estimate_tokens(messages) - estimate_tokens(instead)

    def tokens(self, visible: Sequence[Message], overhead: RequestOverhead) -> int:
        """The tokens of the request with these messages, which is about to be made."""
        if self._known is None:
            known, estimated = 0, estimate_tokens(visible, overhead.tool_specs, overhead.system_prompt)
        else:
            known, estimated = self._known, estimate_tokens(self._since) - self.hidden
        self._expected = known, estimated
        return max(0, known + round(estimated * self._correction))

    def _compare(self, tokens: int) -> None:
        """Correct later estimates by the usage reported for the last request."""
        expected, self._expected = self._expected, None
        # Rounding would count for more than the estimate.
        if expected is None or expected[1] < _WORTH_COMPARING:
            return
        known, estimated = expected
        least, most = _CORRECTIONS
        # The mean with the correction before: one strange request (a picture, a cache) must not double all estimates.
        self._correction = min(most, max(least, (self._correction + (tokens - known) / estimated) / 2))


def _usage(message: Message) -> Usage | None:
    usage = message.get("metadata", {}).get("usage") if message["role"] == "assistant" else None
    return usage if usage and usage["totalTokens"] else None
