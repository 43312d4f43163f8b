"""What a call gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repertory.core.messages import text_of

if TYPE_CHECKING:
    from repertory.core.messages import Message, Usage
    from repertory.core.opening import Interrupt


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMetrics:
    """What a turn cost."""

    steps: int = 0
    """Model calls."""
    input_tokens: int = 0
    output_tokens: int = 0
    model_latency_ms: float = 0.0
    tool_calls: Mapping[str, int] = field(default_factory=dict[str, int])
    """Tool name to how often it ran."""

    @property
    def usage(self) -> Usage:
        """The token counts, spelled as on the wire."""
        total = self.input_tokens + self.output_tokens
        return {"inputTokens": self.input_tokens, "outputTokens": self.output_tokens, "totalTokens": total}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """The end of a turn. `str(result)` is the answer's text.

    `stop_reason`: the model's word for why it stopped (`end_turn`, `max_tokens`, ...), or `cancelled`, or `interrupt`.
    `message`: the final answer; None when the turn ended without one.
    `state`: the request state that callback handlers wrote into.
    """

    stop_reason: str
    message: Message | None
    metrics: TurnMetrics = TurnMetrics()
    state: Mapping[str, object] = field(default_factory=dict[str, object])
    interrupts: tuple[Interrupt, ...] = ()

    def __str__(self) -> str:
        return text_of(self.message) if self.message is not None else ""
