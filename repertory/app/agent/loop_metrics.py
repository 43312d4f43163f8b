"""The totals of an agent's turns, as `agent.event_loop_metrics` tells them.

Source: names and keys are those of the SDK whose users we serve.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from repertory.core.converse import Metrics
from repertory.core.messages import Message, ToolUse, Usage
from repertory.core.result import (
    AgentInvocation,
    EventLoopCycleMetric,
    ToolMetrics,
    TurnMetrics,
    figures_of,
    no_usage,
    summary_of,
)
from repertory.core.tokens import prompt_tokens

ENTRIES_MAX = 1000


class Trace:
    """A step that a program measures by hand, with the steps within it. Times are epoch seconds."""

    def __init__(
        self,
        name: str,
        parent_id: str | None = None,
        start_time: float | None = None,
        raw_name: str | None = None,
        metadata: dict[str, Any] | None = None,
        message: Message | None = None,
    ) -> None:
        self.id = str(uuid.uuid4())
        self.name = name
        self.raw_name = raw_name
        self.parent_id = parent_id
        self.start_time = time.time() if start_time is None else start_time
        self.end_time: float | None = None
        self.children: list[Trace] = []
        self.metadata = metadata or {}
        self.message = message

    def end(self, end_time: float | None = None) -> None:
        """End the step, now or at that time, in epoch seconds."""
        self.end_time = time.time() if end_time is None else end_time

    def add_child(self, child: Trace) -> None:
        """Add a step within it."""
        self.children.append(child)

    def add_message(self, message: Message) -> None:
        """Set the message of this step."""
        self.message = message

    def duration(self) -> float | None:
        """Seconds that the step took; None before it has ended."""
        return None if self.end_time is None else self.end_time - self.start_time

    def to_dict(self) -> dict[str, Any]:
        """The step and those within it as plain JSON values."""
        return {
            "id": self.id,
            "name": self.name,
            "raw_name": self.raw_name,
            "parent_id": self.parent_id,
            "start_time": self.start_time,
            "end_time": self.end_time,
            "duration": self.duration(),
            "children": [child.to_dict() for child in self.children],
            "metadata": self.metadata,
            "message": self.message,
        }


class _Counter(Protocol):
    def add(self, amount: float, attributes: Any = None) -> None: ...


class _Histogram(Protocol):
    def record(self, amount: float, attributes: Any = None) -> None: ...


class ToolInstruments(Protocol):
    """The instruments of OpenTelemetry that count calls of tools."""

    tool_call_count: _Counter
    tool_duration: _Histogram
    tool_success_count: _Counter
    tool_error_count: _Counter


@dataclass
class ToolTally:
    """The calls of one tool, summed over all turns."""

    tool: ToolUse
    """The tool's last call, as far as it is known: turns count calls without their input."""
    call_count: int = 0
    success_count: int = 0
    error_count: int = 0
    total_time: float = 0.0
    """Seconds, summed over calls, which may have run at the same time."""

    def add_call(
        self,
        tool: ToolUse,
        duration: float,
        success: bool,
        metrics_client: ToolInstruments | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Count one more call of that many seconds, with these instruments as well."""
        self.tool = tool
        self.call_count += 1
        self.total_time += duration
        self.success_count += success
        self.error_count += not success
        if metrics_client is not None:
            metrics_client.tool_call_count.add(1, attributes=attributes)
            metrics_client.tool_duration.record(duration, attributes=attributes)
            ended = metrics_client.tool_success_count if success else metrics_client.tool_error_count
            ended.add(1, attributes=attributes)

    def add(self, calls: ToolMetrics) -> None:
        """Count the calls of one turn."""
        self.call_count += calls.call_count
        self.success_count += calls.success_count
        self.error_count += calls.error_count
        self.total_time += calls.total_time

    @property
    def average_time(self) -> float:
        """Seconds per call; 0 without calls."""
        return self.total_time / self.call_count if self.call_count else 0.0

    @property
    def success_rate(self) -> float:
        """The share of successful calls, from 0 to 1; 0 without calls."""
        return self.success_count / self.call_count if self.call_count else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain JSON values."""
        return figures_of(self)


@dataclass
class EventLoopMetrics:
    """The sums over the turns of an agent object, which grow with each. Of single turns and model calls the latest
    1,000 are kept; the sums are over all.
    """

    cycle_count: int = 0
    """Answered model calls."""
    tool_metrics: dict[str, ToolTally] = field(default_factory=dict[str, ToolTally])
    cycle_durations: list[float] = field(default_factory=list[float])
    """Seconds of each model call, in order."""
    agent_invocations: list[AgentInvocation] = field(default_factory=list[AgentInvocation])
    """One entry per turn, in order."""
    traces: list[Trace] = field(default_factory=list[Trace])
    """The traces of `start_cycle`: turns have none."""
    accumulated_usage: Usage = field(default_factory=no_usage)
    accumulated_metrics: Metrics = field(default_factory=lambda: Metrics(latencyMs=0))

    def add(self, turn: TurnMetrics) -> None:
        """Count one more turn."""
        invocation = AgentInvocation()
        self.agent_invocations.append(invocation)
        for number, step in enumerate(turn.cycles, 1):
            self.cycle_durations.append(step.duration_s)
            invocation.cycles.append(EventLoopCycleMetric(str(number), {**no_usage(), **step.usage}))
            _count(self.accumulated_usage, step.usage)
            _count(invocation.usage, step.usage)
            self.accumulated_metrics["latencyMs"] += cast("int", step.latency_ms)
        self.cycle_count += len(turn.cycles)
        del self.cycle_durations[:-ENTRIES_MAX], self.agent_invocations[:-ENTRIES_MAX]
        for name, tool in turn.tool_metrics.items():
            unknown: ToolUse = {"toolUseId": "unknown", "name": name, "input": {}}
            self.tool_metrics.setdefault(name, ToolTally(unknown)).add(tool)

    def start_cycle(self, attributes: Mapping[str, Any]) -> tuple[float, Trace]:
        """Begin a model call of a loop of the program's own; `attributes` has its `event_loop_cycle_id`. Returns when
        it began, and its trace.
        """
        if not self.agent_invocations:
            self.reset_usage_metrics()
        self._begin_cycle(attributes["event_loop_cycle_id"])
        began = time.time()
        trace = Trace(f"Cycle {self.cycle_count}", start_time=began)
        self.traces.append(trace)
        del self.traces[:-ENTRIES_MAX]
        return began, trace

    def end_cycle(self, start_time: float, cycle_trace: Trace, attributes: Mapping[str, Any] | None = None) -> None:
        """End what `start_cycle` began. `attributes` are the trace's."""
        ended = time.time()
        self.cycle_durations.append(ended - start_time)
        del self.cycle_durations[:-ENTRIES_MAX]
        cycle_trace.metadata.update(attributes or {})
        cycle_trace.end(ended)

    def add_tool_usage(
        self, tool: ToolUse, duration: float, tool_trace: Trace, success: bool, message: Message | None = None
    ) -> None:
        """Count a call of a tool of that many seconds, and end its trace. `message`: the one with its result."""
        name, use_id = tool.get("name", "unknown_tool"), tool.get("toolUseId", "unknown")
        tool_trace.metadata.update({"toolUseId": use_id, "tool_name": name})
        tool_trace.raw_name = f"{name} - {use_id}"
        if message is not None:
            tool_trace.add_message(message)
        self.tool_metrics.setdefault(name, ToolTally(tool)).add_call(tool, duration, success)
        tool_trace.end()

    def _begin_cycle(self, cycle_id: str) -> None:
        self.cycle_count += 1
        self.agent_invocations[-1].cycles.append(EventLoopCycleMetric(cycle_id, no_usage()))

    def reset_usage_metrics(self) -> None:
        """Begin another turn; the totals stay."""
        self.agent_invocations.append(AgentInvocation())

    def update_usage(self, usage: Usage) -> None:
        """Add the tokens of one model call."""
        _count(self.accumulated_usage, usage)
        for turn in self.agent_invocations[-1:]:
            _count(turn.usage, usage)
            for cycle in turn.cycles[-1:]:
                _count(cycle.usage, usage)

    def update_metrics(self, metrics: Metrics) -> None:
        """Add the latency of one model call."""
        self.accumulated_metrics["latencyMs"] += metrics["latencyMs"]

    @property
    def latest_agent_invocation(self) -> AgentInvocation | None:
        """The last turn; None before the first."""
        return self.agent_invocations[-1] if self.agent_invocations else None

    @property
    def latest_context_size(self) -> int | None:
        """The tokens that the model read in its last call, cached ones included; None when unreported."""
        usage = self._last_usage()
        return None if usage is None or "inputTokens" not in usage else prompt_tokens(usage)

    @property
    def projected_context_size(self) -> int | None:
        """The tokens that the next call will have at least; None when unreported."""
        size, usage = self.latest_context_size, self._last_usage()
        return None if size is None or usage is None or "outputTokens" not in usage else size + usage["outputTokens"]

    def _last_usage(self) -> Usage | None:
        last = self.latest_agent_invocation
        return last.cycles[-1].usage if last is not None and last.cycles else None

    def get_summary(self) -> dict[str, Any]:
        """The metrics as plain JSON values."""
        found = summary_of(self)
        for name, tally in self.tool_metrics.items():
            called = tally.tool
            found["tool_usage"][name]["tool_info"] = {
                "tool_use_id": called.get("toolUseId", "N/A"),
                "name": called.get("name", "unknown"),
                "input_params": called.get("input", {}),
            }
        return {**found, "traces": [trace.to_dict() for trace in self.traces]}


def _count(total: Usage, usage: Usage) -> None:
    counted = cast("dict[str, int]", total)
    for name, tokens in cast("dict[str, int]", usage).items():
        counted[name] = counted.get(name, 0) + tokens
