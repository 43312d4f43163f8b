"""What an orchestrator asks when it has to decide: where a run begins, what may start, what follows, when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock
    from repertory.core.orchestration.frontier import Frontier
    from repertory.core.orchestration.run import Kind, Run


class Plan(Protocol):
    """How one kind of orchestrator goes on. It keeps nothing: everything that it needs to know stands in the run."""

    @property
    def kind(self) -> Kind:
        """Which kind that is."""
        ...

    @property
    def nodes(self) -> Sequence[str]:
        """The ids of all nodes."""
        ...

    @property
    def entries(self) -> tuple[str, ...]:
        """The first frontier."""
        ...

    @property
    def time_max_s(self) -> float:
        """How long a run may be worked on in all, in seconds."""
        ...

    def startable(self, frontier: Frontier) -> tuple[str, ...]:
        """The nodes that may start now, in order."""
        ...

    def end_reason(self, run: Run, running: int) -> str | None:
        """Why no other node may start; None when one may. `running`: nodes that run now."""
        ...

    def follow(self, run: Run, node: str, state: Mapping[str, object]) -> tuple[str, ...]:
        """What comes after a node, which has just ended. `state`: the caller's invocation state. Errors: what
        conditions raise.
        """
        ...

    def input_for(self, run: Run, node: str, state: Mapping[str, object]) -> list[ContentBlock]:
        """What the node is told. Errors: what conditions raise."""
        ...
