"""Running the nodes of an orchestrator: agents and orchestrators as sessions of their own, anything else as it is.

A node stays alive from its first execution in a call to the end of the call, and is put to rest with the others then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import anyio

from repertory.actors.call import Invocation
from repertory.actors.nodes import NodeCall, NodeEnd
from repertory.app.callbacks import CallbackHandler, call_handler
from repertory.core.budget import LIMITED_BY_BUDGET
from repertory.core.orchestration.results import MultiAgentResult
from repertory.core.result import AgentResult
from repertory.core.snapshots.portable import SnapshotFields
from repertory.errors import (
    ActorDead,
    InterruptNotFound,
    InterruptsWaiting,
    Invalid,
    RepertoryError,
    RunUnfinished,
    Unavailable,
)

if TYPE_CHECKING:
    from repertory.app.active_session import ActiveSession
    from repertory.app.blueprint import Blueprint
    from repertory.app.orchestrator_blueprint import NodeHost, OrchestratorBlueprint
    from repertory.app.sessions import SessionPlace
    from repertory.backends.ports import OutputForm
    from repertory.core.messages import Json, Message
    from repertory.core.orchestration.results import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """Where a node's journal lies: in the orchestrator's session, under the node's own name."""

    session_id: str
    agent_id: str
    sessions: SessionPlace | None
    takeover: bool = False


class SessionNode(Protocol):
    """An agent or an orchestrator, as a node."""

    kind: str
    """`agent` or `multiagent`, for events."""

    def blueprint(self, place: NodePlace | None) -> Blueprint | OrchestratorBlueprint:
        """What brings it to life there; None: where it keeps itself."""
        ...

    @property
    def form(self) -> OutputForm | None:
        """What it fills in."""
        ...

    @property
    def handler(self) -> CallbackHandler | None:
        """Who is told of what it does."""
        ...

    def initial(self) -> SnapshotFields | None:
        """What an execution that begins anew begins with; None when it cannot."""
        ...


@runtime_checkable
class Askable(Protocol):
    """Anything else that can be asked, such as an agent of another library."""

    async def invoke_async(self, prompt: Any, /, *, invocation_state: dict[str, Any]) -> Any:
        """Do the work. Gives an `AgentResult`, a `MultiAgentResult` or a text."""
        ...


@dataclass(frozen=True, slots=True)
class CustomNode:
    """Something that keeps its conversation itself, or has none."""

    executor: Askable


Node: TypeAlias = SessionNode | CustomNode
EndOf: TypeAlias = "Callable[[Sequence[Message]], tuple[Mapping[str, Json], tuple[str, str] | None]]"
"""Reads what a node leaves for others, and whom it hands over to, from what its model is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """How nodes are run."""

    nodes: Mapping[str, Node]
    place_of: Callable[[str], NodePlace | None]
    anew: bool = False
    """Whether every execution begins with what the node was built with."""
    anew_again: bool = False
    """Whether those do that are not the first one in their run."""
    end_of: EndOf | None = None


@dataclass(frozen=True, slots=True)
class _Alive:
    """A node that is alive."""

    blueprint: Blueprint | OrchestratorBlueprint
    session: ActiveSession


class SessionNodeRunner:
    """A `NodeRunner` whose nodes live on a host."""

    def __init__(self, host: NodeHost, settings: RunnerSettings) -> None:
        self._host = host
        self._settings = settings
        self._alive: dict[str, _Alive] = {}

    def kind_of(self, node: str) -> str:
        """`agent` or `multiagent`."""
        found = self._settings.nodes[node]
        return "agent" if isinstance(found, CustomNode) else found.kind

    async def run(self, call: NodeCall) -> NodeEnd:
        """See `NodeRunner`."""
        node = self._settings.nodes[call.node]
        call.invocation_state.setdefault("request_state", {})
        if isinstance(node, CustomNode):
            return NodeEnd(outcome=await _asked(node.executor, call))
        try:
            alive = await self._enter(call.node, node)
            if (call.again and self._settings.anew_again) or self._settings.anew:
                await _begin_anew(alive.session, node, call)
            outcome = await _invoked(alive.session, node, call)
        except (Unavailable, ActorDead) as error:
            return NodeEnd(outcome=None if self._host.refusing else error)
        except RepertoryError as error:
            return NodeEnd(outcome=error)
        if self._host.refusing and isinstance(outcome, AgentResult) and outcome.stop_reason == "cancelled":
            return NodeEnd(outcome=None)
        reason = outcome.stop_reason if isinstance(outcome, AgentResult) else outcome.reason
        if reason in LIMITED_BY_BUDGET:
            return NodeEnd(outcome=None, stopped=reason)
        if self._settings.end_of is None:
            return NodeEnd(outcome=outcome)
        context, handed = self._settings.end_of(alive.session.messages())
        return NodeEnd(outcome=outcome, context=context, handed=handed)

    async def rest(self) -> None:
        """Put every node to rest, side by side."""
        alive, self._alive = self._alive, {}
        async with anyio.create_task_group() as group:
            for one in alive.values():
                group.start_soon(self._host.leave, one.blueprint)

    async def _enter(self, name: str, node: SessionNode) -> _Alive:
        alive = self._alive.get(name)
        if alive is not None and alive.session.alive:
            return alive
        if alive is not None:
            del self._alive[name]
            await self._host.leave(alive.blueprint)
        blueprint = node.blueprint(self._settings.place_of(name))
        async with AsyncExitStack() as stack:
            session = await self._host.enter(blueprint)
            stack.push_async_callback(self._host.leave, blueprint)
            alive = self._alive[name] = _Alive(blueprint, session)
            stack.pop_all()
        return alive


async def _begin_anew(session: ActiveSession, node: SessionNode, call: NodeCall) -> None:
    """Show the model what the node was built with, unless this very execution was begun before a crash."""
    wanted = None if call.answers else node.initial()
    if wanted is None:
        return
    image = await session.image()
    begun = call.token in image.finished_turns or (image.token is not None and image.token[0] == call.token)
    if not begun and image.message_count > len(wanted.messages or ()):
        await session.show(wanted)


async def _invoked(session: ActiveSession, node: SessionNode, call: NodeCall) -> AgentResult | MultiAgentResult:
    """The outcome of a turn, or of a run.

    What an earlier run has left undone, or has asked, is given up: this execution is another one. Answers that came
    before a crash are there already: it goes on.
    """
    invocation = Invocation(
        prompt=call.prompt, invocation_state=call.invocation_state, idempotency_token=call.token, form=node.form
    )
    try:
        return await _followed(session, node, call, invocation)
    except (InterruptsWaiting, RunUnfinished):
        return await _followed(session, node, call, replace(invocation, drop_interrupts=True, resume=False))
    except InterruptNotFound:
        return await _followed(session, node, call, replace(invocation, prompt=None))


async def _followed(
    session: ActiveSession, node: SessionNode, call: NodeCall, invocation: Invocation
) -> AgentResult | MultiAgentResult:
    handler = node.handler
    if handler is None and call.publish is None:
        return await session.invoke(invocation)
    async with session.stream(invocation) as events:
        async for event in events:
            if handler is not None:
                await call_handler(handler, event, call.invocation_state["request_state"])
            if call.publish is not None:
                await call.publish(event)
            if isinstance(result := event.get("result"), AgentResult | MultiAgentResult):
                return result
    raise AssertionError("a stream ends with its result or an error")


async def _asked(node: Askable, call: NodeCall) -> Outcome:
    """What somebody else's agent says. Whatever it raises is the outcome."""
    try:
        result = await node.invoke_async(call.prompt, invocation_state=call.invocation_state)
    except Exception as error:  # noqa: BLE001 - a node may be anybody's code, and its failure is the run's to judge
        return error
    if isinstance(result, AgentResult | MultiAgentResult):
        return result
    if isinstance(result, str):
        return AgentResult(stop_reason="end_turn", message={"role": "assistant", "content": [{"text": result}]})
    return Invalid(
        "a node gives an AgentResult, a MultiAgentResult or a text", node=call.node, got=type(result).__name__
    )
