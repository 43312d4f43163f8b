"""How a swarm goes on: whoever has control works, and may hand it over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repertory.core.orchestration.node_input import swarm_input

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock
    from repertory.core.orchestration.frontier import Frontier
    from repertory.core.orchestration.run import Kind, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmPlan:
    """Agents that know each other, and limits."""

    agents: Mapping[str, str | None]
    """Id to description, in the order in which they were added."""
    entry: str
    handoffs_max: int = 20
    executions_max: int = 20
    time_max_s: float = 900.0
    window: int = 0
    """How many of the latest executions are looked at for agents that hand over in circles; 0 for none."""
    unique_min: int = 0
    """How many different agents must be among them."""

    @property
    def kind(self) -> Kind:
        """Which kind of orchestrator it is for."""
        return "swarm"

    @property
    def nodes(self) -> Sequence[str]:
        """The ids of all agents."""
        return tuple(self.agents)

    @property
    def entries(self) -> tuple[str, ...]:
        """Who begins."""
        return (self.entry,)

    def startable(self, frontier: Frontier) -> tuple[str, ...]:
        """Who has control, unless it works already."""
        return tuple(node for node in frontier.nodes if node not in frontier.running)

    def end_reason(self, run: Run, running: int) -> str | None:
        """Why nobody else may get control; None when somebody may."""
        del running
        if run.ends >= self.handoffs_max:
            return f"Max handoffs reached: {self.handoffs_max}"
        if run.ends >= self.executions_max:
            return f"Max iterations reached: {self.executions_max}"
        if 0 < self.window <= run.ends:
            unique = len(set(run.order[-self.window :]))
            if unique < self.unique_min:
                return f"Repetitive handoff: {unique} unique nodes out of {self.window} recent iterations"
        return None

    def follow(self, run: Run, node: str, state: Mapping[str, object]) -> tuple[str, ...]:
        """Whom the agent has handed over to, if anybody."""
        del state
        handed = run.notes[node].handed
        return () if handed is None or handed[0] not in self.agents else (handed[0],)

    def input_for(self, run: Run, node: str, state: Mapping[str, object]) -> list[ContentBlock]:
        """The task, who worked on it and what they left, and who else there is."""
        del state
        last = run.last
        return swarm_input(
            run.task,
            handed=None if last is None or last.handed is None else last.handed[1],
            history=run.order,
            context={each: note.context for each, note in run.notes.items()},
            others={each: description for each, description in self.agents.items() if each != node},
        )
