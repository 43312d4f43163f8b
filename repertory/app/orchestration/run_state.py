"""What the run of an orchestrator is now, for conditions, hooks and whoever looks at `graph.state` or `swarm.state`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from repertory.core.orchestration.results import FilledIn, MultiAgentResult, NodeResult, Status
from repertory.core.result import AgentResult
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.ports import OutputForm
    from repertory.core.messages import Usage
    from repertory.core.orchestration.node_input import Task
    from repertory.core.orchestration.run import Run


# The results of nodes as they were before a restart: what models filled in is read by the forms of the nodes again.
#
# A record has it as JSON. Whoever asks for a result gets the object, if the node has a form that the JSON still fits.


class KnowsForms(Protocol):
    """An orchestrator, as far as its nodes fill in forms."""

    def form_of(self, node: str) -> OutputForm | None:
        """What the node fills in; None also for a node that is not there."""
        ...

    def within(self, node: str) -> KnowsForms | None:
        """The node, if it is an orchestrator."""
        ...


class ReadResults(Mapping[str, NodeResult]):
    """Results by node, each read when it is asked for."""

    def __init__(self, kept: Mapping[str, NodeResult], forms: KnowsForms) -> None:
        self._kept = kept
        self._forms = forms

    def __getitem__(self, node: str) -> NodeResult:
        return _read_again(self._kept[node], node, self._forms)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return repr(dict(self))


def _read_again(found: NodeResult, node: str, forms: KnowsForms) -> NodeResult:
    match found.result:
        case AgentResult(structured_output=FilledIn() as said) as outcome if (form := forms.form_of(node)) is not None:
            try:
                filled, _ = form.read(dict(said))
            except Invalid:  # The form is another one now.
                return found
            return replace(found, result=replace(outcome, structured_output=filled))
        case MultiAgentResult(results=results) as outcome if not isinstance(results, ReadResults):
            inner = forms.within(node)
            if inner is None:
                return found
            return replace(found, result=replace(outcome, results=ReadResults(results, inner)))
        case _:
            return found


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
