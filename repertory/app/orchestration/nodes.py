"""Agents as nodes of an orchestrator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from repertory.app.agent.agent import Agent
from repertory.app.agent.call_options import output_form
from repertory.app.agent.snapshots import enable_tools
from repertory.app.agent.snapshottable import load_components, saved_components
from repertory.app.orchestration.node_runner import Askable, CustomNode, Node
from repertory.core.snapshots.fields import SnapshotFields
from repertory.core.snapshots.orchestrators import AgentInRun, last_turn, said_of_agent
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.actors.context import AgentParts
    from repertory.app.agent.callbacks import CallbackHandler
    from repertory.app.host.active_session import ActiveSession
    from repertory.app.host.blueprint import Blueprint
    from repertory.app.orchestration.node_runner import NodePlace
    from repertory.backends.ports import OutputForm, Tool
    from repertory.core.messages import Json
    from repertory.core.snapshots.orchestrators import NodeFields


def node_of(name: str, executor: object, no_sessions: str) -> Node:
    """The node that this object is. Errors: `Invalid` for one that cannot be one, or that keeps its conversation
    itself.
    """
    if isinstance(executor, Agent):
        if executor.session_manager is not None:
            raise Invalid(no_sessions)
        check_no_calls_of_its_own(executor)
        return AgentNode(executor)
    if hasattr(executor, "blueprint") and hasattr(executor, "session_manager"):
        if cast("Any", executor).session_manager is not None:
            raise Invalid(no_sessions)
        return cast("Node", executor)
    if isinstance(executor, type) or not isinstance(executor, Askable):
        raise Invalid("a node is an agent, a graph, a swarm, or has invoke_async", node=name, got=executor)
    return CustomNode(executor)


def check_no_calls_of_its_own(agent: Agent) -> None:
    """Raise `Invalid` for an agent whose class overrides how it is called: a run asks the agent's session, so that its
    turn survives a crash, and would pass such code by.
    """
    kind = type(agent)
    for name in ("invoke_async", "stream_async", "__call__"):
        if getattr(kind, name) is not getattr(Agent, name):
            what = f"{kind.__name__} has its own {name}, which the turns of a node would pass by"
            instead = "put that code into hooks, or make the node an object with invoke_async that calls the agent"
            raise Invalid(f"{what}: {instead}", agent=agent.name)


class AgentNode:
    """An agent, as a node."""

    kind = "agent"

    def __init__(self, agent: Agent, tool: Callable[[], Tool] | None = None) -> None:
        """`tool`: makes one more tool for it."""
        self.agent = agent
        self._tool = tool
        self._first_state = cast("Mapping[str, Json]", agent.state.get())

    def blueprint(self, place: NodePlace | None) -> Blueprint:
        """See `SessionNode`."""
        own = self.agent.blueprint()
        if self._tool is not None:
            own = replace(own, parts=replace(own.parts, tools=own.parts.tools.also(self._tool())))
        if place is None:
            return own
        settings = replace(
            own.agent,
            session_id=place.session_id,
            agent_id=place.agent_id,
            durable=place.sessions is not None,
        )
        prepare = partial(self._move_in, place, self.agent.blueprint().parts, own.prepare)
        return replace(
            own, agent=settings, sessions=place.sessions, own=False, takeover=place.takeover, prepare=prepare
        )

    async def _move_in(
        self, place: NodePlace, parts: AgentParts, prepare: Callable[[], Awaitable[None]] | None
    ) -> None:
        """The agent comes to life there: a conversation that begins has nothing of one in another session."""
        if prepare is not None:
            await prepare()
        lives_in = (None if place.sessions is None else place.sessions.key, place.session_id, place.agent_id)
        if parts.lived_in not in (None, lives_in):
            parts.state.replace(self._first_state)
        parts.lived_in = lives_in

    @property
    def form(self) -> OutputForm | None:
        """See `SessionNode`."""
        return output_form(self.agent.structured_output_model)

    @property
    def handler(self) -> CallbackHandler | None:
        """See `SessionNode`."""
        return self.agent.callback_handler

    def initial(self) -> SnapshotFields:
        """See `SessionNode`."""
        messages = self.agent.blueprint().agent.initial
        return SnapshotFields(messages=messages, state=self._first_state, names=frozenset(("messages", "state")))

    async def saved(self, session: ActiveSession, visit_of: Callable[[str], int | None]) -> Mapping[str, object] | None:
        """See `SessionNode`."""
        image, said = await session.image(), dict[str, object]()
        if image.last_seq:
            said = said_of_agent(image)
            turn = last_turn(image)
            visit = None if turn is None else visit_of(turn.token)
            if turn is not None and visit is not None:
                said["turn"] = {"visit": visit, "messages": turn.messages}
        if own := saved_components(self.agent):
            said["components"] = own
        if self.agent.enabled_tools is not None:
            said["enabled_tools"] = self.agent.enabled_tools
        return {"type": "agent", **said} if said else None

    async def load(self, session: ActiveSession, wanted: NodeFields | None, name_of: Callable[[int], str]) -> None:
        """See `SessionNode`."""
        known = wanted if isinstance(wanted, AgentInRun) else None
        if known is not None and known.fields.messages is not None:
            await session.show(known.under(None if known.visit is None else name_of(known.visit)))
        elif (await session.image()).last_seq:
            await session.show(self.initial())
        if known is not None:
            load_components(self.agent, known.fields.components)
            enable_tools(self.agent, known.fields)
