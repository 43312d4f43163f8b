"""What a turn costs, counted while it happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from repertory.core.result import StepMetrics, ToolMetrics, TurnMetrics

if TYPE_CHECKING:
    from repertory.core.answer import Answer
    from repertory.core.messages import ToolResult


class TurnMeter:
    """Counts the steps and tools of one turn, from its making on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds, from wherever it likes."""
        self.clock = clock
        self._began = self._asked = clock()
        self._attempts = 0
        self._cycles: list[StepMetrics] = []
        self._tools: dict[str, list[float]] = {}
        self.left_out: dict[str, str] = {}
        """What model calls were not told, by name, and why."""

    @property
    def attempts(self) -> int:
        """How often the model was asked since its last answer that counted."""
        return self._attempts

    def asking(self) -> None:
        """The model is asked now."""
        if not self._attempts:
            self._asked = self.clock()
        self._attempts += 1

    def answered(self, answer: Answer) -> None:
        """The model has answered, and the answer counts."""
        duration_s = self.clock() - self._asked
        self._cycles.append(StepMetrics(answer.usage, answer.latency_ms or 0.0, duration_s, self._attempts))
        self._attempts = 0

    def ran(self, name: str, result: ToolResult, duration_s: float) -> None:
        """A tool ran."""
        counts = self._tools.setdefault(name, [0, 0, 0.0])
        counts[0] += 1
        counts[1] += result.get("status") == "error"
        counts[2] += duration_s

    def metrics(self) -> TurnMetrics:
        """Everything until now."""
        tools = {
            name: ToolMetrics(call_count=int(calls), error_count=int(errors), total_time=total)
            for name, (calls, errors, total) in self._tools.items()
        }
        duration_s = self.clock() - self._began
        left_out = self.left_out.copy()
        return TurnMetrics(cycles=tuple(self._cycles), tool_metrics=tools, duration_s=duration_s, left_out=left_out)
