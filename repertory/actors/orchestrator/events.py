"""The events of an orchestrator that callbacks can listen to.

    MultiAgentInitialized
    BeforeMultiAgentInvocation, (BeforeNodeCall, AfterNodeCall)*, AfterMultiAgentInvocation

Nodes that run at the same time have their events in any order. Names and fields are those of the SDK whose users we
serve.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from repertory.actors.hooks.events import Asking, HookEvent
from repertory.core.interrupts import node_scope

if TYPE_CHECKING:
    from repertory.core.interrupts import Questions


@dataclass(kw_only=True)
class MultiAgentEvent(HookEvent):
    """The base of all events of an orchestrator."""

    agent: Any = None
    """The agent; None: the event belongs to no single agent."""
    source: Any
    """The orchestrator of the event."""
    invocation_state: dict[str, Any] = field(default=cast("dict[str, Any]", None))
    """The caller's dictionary of the call; None only in an event that a program has made without one."""


@dataclass(kw_only=True)
class MultiAgentInitializedEvent(MultiAgentEvent):
    """The orchestrator is built. Asynchronous callbacks are awaited when the first call begins.

    Args:
        agent: The agent.
        source: The graph or the swarm.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
    """


@dataclass(kw_only=True)
class BeforeMultiAgentInvocationEvent(MultiAgentEvent):
    """A call is about to begin or continue a run.

    Args:
        agent: The agent.
        source: The graph or the swarm.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
    """

    guards = True


@dataclass(kw_only=True)
class AfterMultiAgentInvocationEvent(MultiAgentEvent):
    """A call has ended, with a result or an error.

    Args:
        agent: The agent.
        source: The graph or the swarm.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
    """

    cleanup = True


@dataclass(kw_only=True)
class BeforeNodeCallEvent(Asking, MultiAgentEvent):
    """A node is about to run, or to continue after a person was asked. `interrupt` asks a person about it.

    Args:
        agent: The agent.
        source: The graph or the swarm.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
        node_id: The id of the node.
        cancel_node: True or a text fails the node with that, and it does not run.
        questions: The interrupts asked so far; the runtime fills it in.

    Attributes:
        scope: The name that tells its interrupts from those of other nodes.
    """

    writable = frozenset(("cancel_node",))
    guards = True

    node_id: str
    cancel_node: bool | str = False
    questions: Questions | None = field(default=None, repr=False)
    scope: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.scope = node_scope(self.node_id)


@dataclass(kw_only=True)
class AfterNodeCallEvent(MultiAgentEvent):
    """A node has ended, in success or failure; its record is on its way to the store, and no following node has begun.

    A guard that raises withholds the result: the node has failed with the guard's error, and must run again.

    Args:
        agent: The agent.
        source: The graph or the swarm.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
        node_id: The id of the node.
    """

    cleanup = True

    node_id: str
