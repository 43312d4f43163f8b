"""What the turns of an agent took together, as `agent.event_loop_metrics` tells it.

Source: names and keys are those of the SDK whose users we serve.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from repertory.core.converse import Metrics
from repertory.core.messages import Usage
from repertory.core.result import (
    AgentInvocation,
    EventLoopCycleMetric,
    ToolMetrics,
    TurnMetrics,
    no_usage,
    prompt_tokens,
    summary_of,
)

KEPT_MAX = 1000


@dataclass
class EventLoopMetrics:
    """The sums over the turns of an agent object, which grow with each. Of single turns and model calls the latest
    1,000 are kept; the sums are over all.
    """

    cycle_count: int = 0
    """Answered model calls."""
    tool_metrics: dict[str, ToolMetrics] = field(default_factory=dict[str, ToolMetrics])
    cycle_durations: list[float] = field(default_factory=list[float])
    """Seconds of each model call, in order."""
    agent_invocations: list[AgentInvocation] = field(default_factory=list[AgentInvocation])
    """One entry per turn, in order."""
    traces: list[object] = field(default_factory=list[object])
    """Empty: there are no traces."""
    accumulated_usage: Usage = field(default_factory=no_usage)
    accumulated_metrics: Metrics = field(default_factory=lambda: Metrics(latencyMs=0))

    def add(self, turn: TurnMetrics) -> None:
        """Count one more turn."""
        self.reset_usage_metrics()
        for step in turn.cycles:
            self.cycle_count += 1
            self.cycle_durations.append(step.duration_s)
            self.agent_invocations[-1].cycles.append(
                EventLoopCycleMetric(str(len(self.agent_invocations[-1].cycles) + 1), step.usage)
            )
            self.update_usage(step.usage)
            self.update_metrics({"latencyMs": cast("int", step.latency_ms)})
        del self.cycle_durations[:-KEPT_MAX], self.agent_invocations[:-KEPT_MAX]
        for name, tool in turn.tool_metrics.items():
            known = self.tool_metrics.get(name, ToolMetrics())
            self.tool_metrics[name] = ToolMetrics(
                call_count=known.call_count + tool.call_count,
                error_count=known.error_count + tool.error_count,
                total_time=known.total_time + tool.total_time,
            )

    def reset_usage_metrics(self) -> None:
        """Begin another turn; the sums stay."""
        self.agent_invocations.append(AgentInvocation())

    def update_usage(self, usage: Usage) -> None:
        """Add the tokens of one model call."""
        counted = [self.accumulated_usage, *(each.usage for each in self.agent_invocations[-1:])]
        for total in cast("list[dict[str, int]]", counted):
            for name, tokens in cast("dict[str, int]", usage).items():
                total[name] = total.get(name, 0) + tokens

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

    def get_summary(self) -> dict[str, object]:
        """Everything here as plain JSON values."""
        return summary_of(self)
