"""What an orchestrator asks of whoever runs its nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from repertory.core.messages import Json, Prompt
    from repertory.core.orchestration.results import Outcome
    from repertory.core.result import TurnEvent
    from repertory.core.snapshots.orchestrators import NodeFields

OnFailure = Literal["fail", "skip"]
"""What a node that failed for good does to its run: `fail` ends the call with its error, and the run can be gone on
with; `skip` goes on with what comes after it, as if it had nothing to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePolicy:
    """What to do about a node that takes too long, or fails."""

    timeout_s: float | None = None
    """Of one attempt."""
    retries: int = 0
    """How often it is tried again, in each call."""
    on_failure: OnFailure = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCall:
    """One execution of a node."""

    node: str
    prompt: Prompt
    """What it is told, or answers to what it asked."""
    token: str
    """The same for the same execution of the same run, whatever happens in between."""
    invocation_state: dict[str, Any]
    payer: str
    """Under which name budgets have what it uses when it was given no id."""
    again: bool = False
    """Whether it has done its work in this run before."""
    answers: bool = False
    """Whether the prompt answers what it asked."""
    publish: Callable[[TurnEvent], Awaitable[None]] | None = None
    """Takes what happens on the way; None when nobody looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnd:
    """What an execution led to."""

    outcome: Outcome | None
    """None: it was cut short, by a shutdown or a budget, and still owes its work."""
    stopped: str | None = None
    """Which bound of a budget has cut it short."""
    context: Mapping[str, Json] = field(default_factory=dict[str, "Json"])
    """What it leaves for other nodes."""
    handed: tuple[str, str] | None = None
    """Whom it gives control to, and with which words."""


NameOf: TypeAlias = "Callable[[str, int], str]"
"""The token of a node's execution, counted from 0."""
VisitOf: TypeAlias = "Callable[[str, str], int | None]"
"""Which execution of the node a token is; None when it is none of the run."""


class Cut(Protocol):
    """What nodes are at one moment."""

    async def read(self) -> Mapping[str, object]:
        """What a snapshot says of each node that has done anything. Errors: what opening a node meets."""
        ...


class NodeRunner(Protocol):
    """Runs nodes."""

    def kind_of(self, node: str) -> str:
        """`agent` or `multiagent`, for events."""
        ...

    async def run(self, call: NodeCall) -> NodeEnd:
        """Execute a node. Cancelled, its turn ends with a valid history and can be gone on with. Raises nothing: what
        went wrong is the outcome.
        """
        ...

    def cut(self, visit_of: VisitOf) -> Cut:
        """What nodes are as of now. One that begins another execution before it was read is read first, so none is
        further on than its end or its beginning in what the orchestrator knows now.
        """
        ...

    async def load(self, nodes: Mapping[str, NodeFields | None], name_of: NameOf) -> None:
        """Have these nodes be what a snapshot says of them, or (None) what they were built with. Returns when that is
        durable.
        """
        ...

    async def done(self, node: str) -> None:
        """The node owes no work now: one that cannot come to any again need not stay alive. Cancellation waits for
        it.
        """
        ...

    async def rest(self) -> None:
        """The call is over: keep no node alive. Cancellation waits for it."""
        ...
