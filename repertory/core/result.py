"""What a call returns, and the events that it streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from repertory.core.messages import text_of

if TYPE_CHECKING:
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Message, Usage


class StepMetrics(NamedTuple):
    """The cost of one model call."""

    usage: Usage
    latency_ms: float
    """The provider's own measure; 0 when it did not report one."""
    duration_s: float
    """From the call to the end of the answer, waits between attempts included."""
    attempts: int
    """Attempts in all, throttled and failed ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMetrics:
    """What one tool did in a turn."""

    call_count: int = 0
    error_count: int = 0
    """Calls that ended with status `error`."""
    total_time: float = 0.0
    """Seconds, summed over calls, which may have run at the same time."""

    @property
    def success_count(self) -> int:
        return self.call_count - self.error_count

    @property
    def average_time(self) -> float:
        """Seconds per call; 0 without calls."""
        return self.total_time / self.call_count if self.call_count else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMetrics:
    """The cost of a turn: each step, each tool, and the sums."""

    cycles: tuple[StepMetrics, ...] = ()
    """One entry per answered model call, in order."""
    tool_metrics: Mapping[str, ToolMetrics] = field(default_factory=dict[str, ToolMetrics])
    """By tool name; only tools that ran."""
    duration_s: float = 0.0
    """Of the whole turn."""
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    """What should have been injected into a model call and was not, by name (of the injector, or `memory` and the name
    of a store), and why: it `failed`, was `late`, or was `skipped` after several failures.
    """

    @property
    def steps(self) -> int:
        """Answered model calls."""
        return len(self.cycles)

    cycle_count = steps

    @property
    def input_tokens(self) -> int:
        """Over all model calls, as the provider counts them (cached tokens are usually counted apart)."""
        return sum(cycle.usage["inputTokens"] for cycle in self.cycles)

    @property
    def output_tokens(self) -> int:
        """Over all model calls."""
        return sum(cycle.usage["outputTokens"] for cycle in self.cycles)

    @property
    def model_latency_ms(self) -> float:
        """Over all model calls, as the provider measured."""
        return sum(cycle.latency_ms for cycle in self.cycles)

    @property
    def tool_calls(self) -> Mapping[str, int]:
        """Tool name to number of calls."""
        return {name: tool.call_count for name, tool in self.tool_metrics.items()}

    @property
    def usage(self) -> Usage:
        """The token counts of all model calls, with the API's keys; cache counts only when reported."""
        total: dict[str, int] = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
        for cycle in self.cycles:
            for name, tokens in cycle.usage.items():
                total[name] = total.get(name, 0) + (tokens if isinstance(tokens, int) else 0)
        return cast("Usage", total)

    @property
    def accumulated_usage(self) -> Usage:
        """The same as `usage`."""
        return self.usage

    @property
    def accumulated_metrics(self) -> Mapping[str, float]:
        """`latencyMs` over all model calls."""
        return {"latencyMs": self.model_latency_ms}

    @property
    def latest_context_size(self) -> int | None:
        """The tokens that the model read in its last call, cached ones included; None when unreported."""
        return _prompt_tokens(self.cycles[-1].usage) or None if self.cycles else None

    def get_summary(self) -> dict[str, Any]:
        """Everything here as plain JSON values."""
        return {
            "total_cycles": self.steps,
            "total_duration": self.duration_s,
            "left_out": dict(self.left_out),
            "accumulated_usage": dict(self.usage),
            "accumulated_metrics": dict(self.accumulated_metrics),
            "cycles": [
                {
                    "usage": dict(one.usage),
                    "latency_ms": one.latency_ms,
                    "duration_s": one.duration_s,
                    "attempts": one.attempts,
                }
                for one in self.cycles
            ],
            "tool_usage": {
                name: {
                    "call_count": tool.call_count,
                    "success_count": tool.success_count,
                    "error_count": tool.error_count,
                    "total_time": tool.total_time,
                    "average_time": tool.average_time,
                }
                for name, tool in self.tool_metrics.items()
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """The end of a turn. `str(result)` is the answer's text.

    `stop_reason`: the model's (`end_turn`, `stop_sequence`, `guardrail_intervened`, ...), or `cancelled`, `interrupt`,
    `limit_turns`, `limit_total_tokens`, `limit_output_tokens`, `limit_time`.
    `message`: the final answer; None when the turn ended without one.
    `state`: the request state that callback handlers, hooks and tools wrote into.
    `structured_output`: the model's structured output, when the caller asked for it.
    `replayed`: True if the turn had been answered before under the same idempotency token; then nothing ran again.
    """

    stop_reason: str
    message: Message | None
    metrics: TurnMetrics = TurnMetrics()
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    interrupts: tuple[Interrupt, ...] = ()
    structured_output: Any = None
    replayed: bool = False

    @property
    def context_size(self) -> int | None:
        """The tokens that the model read in its last call; None when unreported."""
        return self.metrics.latest_context_size

    def __str__(self) -> str:
        return text_of(self.message) if self.message is not None else ""


def _prompt_tokens(usage: Usage) -> int:
    cached = usage.get("cacheReadInputTokens", 0) + usage.get("cacheWriteInputTokens", 0)
    return usage["inputTokens"] + cached


TurnEvent: TypeAlias = dict[str, object]
"""What a caller who streams a turn sees, as a dictionary with a stable shape.

    {"event": {...}}                     a raw event of the model's stream, as Converse spells it
    {"data": str, "delta": {...}}        a piece of the answer's text
    {"reasoning": True, "reasoningText": str, "delta": {...}}   a piece of the model's reasoning
    {"message": Message}                 a message was added to the conversation
    {"tool_started": ToolUse}            a tool is about to run
    {"tool_stream_event": {"tool_use": ToolUse, "data": object}}   a piece of a tool's result, as it comes
    {"tool_finished": ToolResult}        a tool ended so
    {"tool_interrupt_event": {"tool_use": ToolUse, "interrupts": list[Interrupt]}}   a person is asked about a tool
    {"model_retry": {"attempt": int, "delay_s": float, "error": Exception | None}}
                                         the model is asked again after that wait: what it streamed since the last
                                         message is void; `attempt` counts failed attempts from 1
    {"result": AgentResult}              the turn is over; always the last event, and only when the turn did not fail

Order: raw events stand before what is derived from them; a message stands after the pieces that it was made of.
"""


def derived_event(event: Mapping[str, object]) -> TurnEvent | None:
    """The text or reasoning event derived from a raw one; None when it has neither."""
    body = event.get("contentBlockDelta")
    if not isinstance(body, Mapping):
        return None
    delta = cast("Mapping[str, object]", body).get("delta")
    match delta:
        case {"text": str(text)}:
            return {"data": text, "delta": delta}
        case {"reasoningContent": {"text": str(text)}}:
            return {"reasoning": True, "reasoningText": text, "delta": delta}
        case _:
            return None
