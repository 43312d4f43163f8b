"""What a call returns, and the events that it streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

from repertory.core.messages import texts_in
from repertory.errors import Invalid

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

    @property
    def success_rate(self) -> float:
        """From 0 to 1; 0 without calls."""
        return self.success_count / self.call_count if self.call_count else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything here as plain JSON values."""
        return figures_of(self)


class CallFigures(Protocol):
    """What tools did."""

    @property
    def call_count(self) -> int: ...
    @property
    def success_count(self) -> int: ...
    @property
    def error_count(self) -> int: ...
    @property
    def total_time(self) -> float: ...
    @property
    def average_time(self) -> float: ...
    @property
    def success_rate(self) -> float: ...


def figures_of(calls: CallFigures) -> dict[str, Any]:
    """The figures as plain JSON values."""
    return {
        "call_count": calls.call_count,
        "success_count": calls.success_count,
        "error_count": calls.error_count,
        "total_time": calls.total_time,
        "average_time": calls.average_time,
        "success_rate": calls.success_rate,
    }


def no_usage() -> Usage:
    return {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}


@dataclass(frozen=True, slots=True)
class EventLoopCycleMetric:
    """One model call. `event_loop_cycle_id`: its number in the turn, from 1."""

    event_loop_cycle_id: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class AgentInvocation:
    """The model calls of one turn, and their tokens."""

    cycles: list[EventLoopCycleMetric] = field(default_factory=list[EventLoopCycleMetric])
    usage: Usage = field(default_factory=no_usage)


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
        return prompt_tokens(self.cycles[-1].usage) or None if self.cycles else None

    @property
    def projected_context_size(self) -> int | None:
        """The tokens that the next call will have at least: those that the model read and wrote in its last call."""
        size = self.latest_context_size
        return None if size is None else size + self.cycles[-1].usage["outputTokens"]

    @property
    def cycle_durations(self) -> list[float]:
        """Seconds of each model call, in order."""
        return [cycle.duration_s for cycle in self.cycles]

    @property
    def agent_invocations(self) -> list[AgentInvocation]:
        """This turn alone: `agent.event_loop_metrics` has those before it."""
        cycles = [EventLoopCycleMetric(str(number), step.usage) for number, step in enumerate(self.cycles, 1)]
        return [AgentInvocation(cycles, self.usage)]

    @property
    def latest_agent_invocation(self) -> AgentInvocation:
        """The model calls of this turn."""
        return self.agent_invocations[-1]

    @property
    def traces(self) -> list[Any]:
        """Empty: there are no traces."""
        return []

    def get_summary(self) -> dict[str, Any]:
        """Everything here as plain JSON values."""
        return {
            **summary_of(self),
            "total_duration": self.duration_s,
            "left_out": dict(self.left_out),
            "cycles": [
                {
                    "usage": dict(one.usage),
                    "latency_ms": one.latency_ms,
                    "duration_s": one.duration_s,
                    "attempts": one.attempts,
                }
                for one in self.cycles
            ],
        }


class WrongResult(Invalid, TypeError):
    """These fields are not those of an agent's result. Read them as what they are."""


@dataclass(frozen=True, slots=True)
class AgentResult:
    """The end of a turn. `str(result)` is the answer's text, citations included; the structured output as JSON if there
    is one; while a person is asked, the questions.

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
    interrupts: Sequence[Interrupt] = field(default_factory=list["Interrupt"])
    structured_output: Any = None
    replayed: bool = False
    checkpoint: None = None
    """Always None: every turn goes on from its journal."""

    @property
    def context_size(self) -> int | None:
        """The tokens that the model read in its last call; None when unreported."""
        return self.metrics.latest_context_size

    @property
    def projected_context_size(self) -> int | None:
        """The tokens that the next call will have at least; None when unreported."""
        return self.metrics.projected_context_size

    def __str__(self) -> str:
        if self.interrupts:
            return str([interrupt.to_dict() for interrupt in self.interrupts])
        written: Callable[[], str] | None = getattr(self.structured_output, "model_dump_json", None)
        if written is not None:
            with suppress(ValueError):  # An object that cannot be written: its text is what the model wrote.
                return written()
        return "" if self.message is None else "\n".join(texts_in(self.message))

    def to_dict(self) -> dict[str, Any]:
        """Message and stop reason as JSON, bytes in marked base64."""
        from repertory.core.message_tree.json_files import encoded  # loaded when used

        return {
            "type": "agent_result",
            "stop_reason": self.stop_reason,
            "message": None if self.message is None else encoded(self.message),
            "checkpoint": None,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AgentResult:
        """The result that `to_dict` gave. Errors: `Invalid` (a TypeError) for anything else."""
        from repertory.core.message_tree.json_files import decoded  # loaded when used

        if data.get("type") != "agent_result":
            raise WrongResult("these are not the fields of an agent's result", type=data.get("type"))
        message = data.get("message")
        return cls(str(data.get("stop_reason")), None if message is None else cast("Message", decoded(message)))


class Measured(Protocol):
    """What a summary is made of."""

    @property
    def cycle_count(self) -> int: ...
    @property
    def cycle_durations(self) -> list[float]: ...
    @property
    def tool_metrics(self) -> Mapping[str, CallFigures]: ...
    @property
    def agent_invocations(self) -> list[AgentInvocation]: ...
    @property
    def accumulated_usage(self) -> Usage: ...
    @property
    def accumulated_metrics(self) -> Mapping[str, object]: ...


def summary_of(measured: Measured) -> dict[str, Any]:
    """The figures as plain JSON values."""
    seconds, calls = sum(measured.cycle_durations), measured.cycle_count
    return {
        "total_cycles": calls,
        "total_duration": seconds,
        "average_cycle_time": seconds / calls if calls else 0.0,
        "tool_usage": {
            name: {**figures_of(tool), "tool_info": {"name": name}, "execution_stats": figures_of(tool)}
            for name, tool in measured.tool_metrics.items()
        },
        "traces": [],
        "accumulated_usage": dict(measured.accumulated_usage),
        "accumulated_metrics": dict(measured.accumulated_metrics),
        "agent_invocations": [asdict(turn) for turn in measured.agent_invocations],
    }


def prompt_tokens(usage: Usage) -> int:
    """The tokens that the model read, cached ones included: `inputTokens` has them already when the total says so."""
    if usage["inputTokens"] + usage["outputTokens"] == usage["totalTokens"]:
        return usage["inputTokens"]
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
