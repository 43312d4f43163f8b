"""What the run of an orchestrator is now, for conditions, hooks and whoever looks at `graph.state` or `swarm.state`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from repertory.app.read_results import KnowsForms, ReadResults
from repertory.core.orchestration.results import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repertory.core.messages import Usage
    from repertory.core.orchestration.node_input import Task
    from repertory.core.orchestration.results import NodeResult
    from repertory.core.orchestration.run import Run


class WorksOnRuns(KnowsForms, Protocol):
    """An orchestrator, as far as its runs are looked at."""

    def works_on(self, run: Run) -> bool:
        """Whether a call works on it now."""
        ...


class RunState:
    """A view of a run: everything is read when it is asked for, as it is then. Nobody edits it."""

    __slots__ = ("_owner", "_run")

    def __init__(self, run: Run, owner: WorksOnRuns) -> None:
        self._run = run
        self._owner = owner

    @property
    def task(self) -> Task:
        """What the run is about; an empty text before the first one."""
        return self._run.task

    @property
    def results(self) -> Mapping[str, NodeResult]:
        """By node id: what each led to when it ended last."""
        return ReadResults(self._run.results, self._owner)

    @property
    def accumulated_usage(self) -> Usage:
        """Tokens, of everything that was done in it."""
        return self._run.usage

    @property
    def accumulated_metrics(self) -> Mapping[str, float]:
        """`latencyMs` of all model calls in it."""
        return {"latencyMs": self._run.latency_ms}

    @property
    def execution_time(self) -> int:
        """Milliseconds that somebody had worked on it when a node ended last, over all calls of the run."""
        return self._run.elapsed_ms

    @property
    def _status(self) -> Status:
        if self._owner.works_on(self._run):
            return Status.EXECUTING
        status = self._run.status
        return Status.INTERRUPTED if status is Status.EXECUTING else status  # Somebody has stopped it.
