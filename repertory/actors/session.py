"""The actors of one open session and their supervision.

    session (supervisor, rest_for_one)
    |- persister      lease, journal, durable positions
    |- conversation   what the model is shown
    |- agent          the turn
    `- memory         brings messages to the memory stores, if there are any

Each depends on those before it and rebuilds itself from the persister's image, so a failure restarts the actors after
it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from repertory.actors.agent import AgentActor, CallSettings
from repertory.actors.call import trace_here
from repertory.actors.context import AgentParts, AgentSettings
from repertory.actors.conversation import ConversationActor, Summarize
from repertory.actors.in_memory_journal import InMemoryJournal
from repertory.actors.leases import Durable
from repertory.actors.memory.consumer import MemoryConsumer, MemoryParts
from repertory.actors.persister import PersisterSettings, persister_spec
from repertory.core.owed import OwedTimes
from repertory.core.window.decision import WindowManager
from repertory.runtime.message import traced
from repertory.runtime.spec import ChildSpec, Restart, Strategy, SupervisorSettings
from repertory.runtime.supervisor import Supervisor

if TYPE_CHECKING:
    from repertory.actors.memory.store import MemoryStoreMessage
    from repertory.runtime.ref import ActorRef


class SessionSettings(Struct, frozen=True, kw_only=True):
    """Everything about a session that is data."""

    persister: PersisterSettings
    agent: AgentSettings
    calls: CallSettings


class SessionParts(Struct, frozen=True, kw_only=True):
    """The components of a session."""

    agent: AgentParts
    manager: WindowManager
    summarize: Summarize
    keeper: Durable | InMemoryJournal
    wall: Callable[[], float]
    """Epoch seconds."""
    entropy: Callable[[int], bytes]
    """That many random bytes."""
    memory: MemoryParts | None = None
    memories: Mapping[str, ActorRef[MemoryStoreMessage]] = {}
    """The actors of the memory stores, by name."""


_SUPERVISION = SupervisorSettings(strategy=Strategy.REST_FOR_ONE)


class SessionSupervisor(Supervisor):
    """The supervisor of one session, to start `member_specs` under."""

    rests: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__((), _SUPERVISION)


def session_spec(name: str) -> ChildSpec:
    """The spec of a `SessionSupervisor`. Temporary: a session that failed for good is started again by its next
    caller.
    """
    return ChildSpec(name=name, factory=SessionSupervisor, restart=Restart.TEMPORARY)


def member_specs(settings: SessionSettings, parts: SessionParts) -> Sequence[ChildSpec]:
    """The persister, the conversation manager, the agent and its memory, if it has one, in starting order."""
    factories = _Factories(settings, parts)
    members = [
        persister_spec(settings.persister, parts.keeper, parts.entropy),
        ChildSpec(name="conversation", factory=factories.conversation),
        ChildSpec(name="agent", factory=factories.agent),
    ]
    if parts.memory is not None:
        members.append(ChildSpec(name="memory", factory=partial(factories.memory, parts.memory)))
    return members


class _Factories(Struct, frozen=True):
    """What makes a session's actors, again with each restart."""

    settings: SessionSettings
    parts: SessionParts

    def conversation(self) -> ConversationActor:
        parts = self.parts
        return ConversationActor(parts.manager, parts.wall, parts.summarize, parts.agent.hooks.shorten)

    def agent(self) -> AgentActor:
        settings, parts = self.settings, self.parts
        buffer = parts.keeper.buffer_of(settings.agent.session_id, settings.agent.agent_id)
        link = None if parts.memory is None else parts.memory.link
        claims_soon = None if link is None else lambda: link.claims_soon()  # The memory actor sets it when it starts.
        owes = OwedTimes(claims_soon) if settings.agent.wakes else None
        return AgentActor(settings.agent, settings.calls, parts.agent, buffer, parts.wall, owes)

    def memory(self, remembered: MemoryParts) -> MemoryConsumer:
        of = self.settings.agent.session_id, self.settings.agent.agent_id
        trace = partial(_traced_work, self.settings.agent, self.parts.agent)
        return MemoryConsumer(of, remembered, self.parts.memories, self.parts.wall, trace)


@contextmanager
def _traced_work(
    settings: AgentSettings, parts: AgentParts, name: str, attributes: Mapping[str, object]
) -> Generator[None]:
    """A span for work behind the answer, of the call that caused it; alone, where that was in another process."""
    telemetry = parts.find_telemetry() if trace_here() is None and parts.find_telemetry is not None else None
    with ExitStack() as stack:
        if telemetry is not None:
            from repertory.backends.telemetry_ports import TracedCall  # loaded when used

            session_id, agent_id = settings.session_id, settings.agent_id
            call = TracedCall(owner=parts.owner, session_id=session_id, agent_id=agent_id, prompt=None, direct=True)
            stack.enter_context(traced(stack.enter_context(telemetry.begin(call))))
        if (here := trace_here()) is not None:
            stack.enter_context(here.work(name, attributes, behind=True))
        yield
