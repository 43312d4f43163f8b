"""A session that is alive: how callers reach its actors."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from repertory.actors.call import (
    Abandon,
    AgentMessage,
    CancelTurn,
    FinishTurns,
    Invocation,
    Invoke,
    InvokeStreaming,
    ShowSnapshot,
)
from repertory.actors.context import StopWish
from repertory.actors.memory.messages import FinishMemory, FlushMemory, MemoryMessage
from repertory.actors.mirror import Mirror
from repertory.actors.orchestrator.orchestrator import LoadRun, OrchestratorMessage, SaveRun
from repertory.actors.persister import PersisterMessage
from repertory.actors.persister_messages import Hurry, ReadHistory, ReadImage, ReadSaid
from repertory.actors.said import History
from repertory.actors.tool_registry import ToolRegistry
from repertory.core.state import AgentState
from repertory.core.turn import CANCELLED, Stop
from repertory.errors import ActorDead

if TYPE_CHECKING:
    from repertory.actors.context import AgentParts
    from repertory.core.journal.editing import MessagesEdit
    from repertory.core.journal.image import Image
    from repertory.core.memory.flushed import StoreFlush
    from repertory.core.messages import Message
    from repertory.core.result import AgentResult, TurnEvent
    from repertory.core.snapshots.fields import SnapshotFields
    from repertory.core.snapshots.orchestrators import RunFields
    from repertory.runtime.ref import ActorRef


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveSession:
    """The refs of one active session, and what of it can be looked at."""

    watched: ActorRef[object]
    """Ends when the session cannot go on."""
    persister: ActorRef[PersisterMessage]
    agent: ActorRef[AgentMessage]
    orchestrator: ActorRef[OrchestratorMessage] | None = None
    """The same as `agent`, when it is an orchestrator."""
    memory: ActorRef[MemoryMessage] | None = None
    """None when the agent remembers nothing across conversations."""
    mirror: Mirror = field(default_factory=Mirror)
    state: AgentState = field(default_factory=AgentState)
    tools: ToolRegistry = field(default_factory=ToolRegistry)
    """What the agent may call, with what tool servers offer."""
    wish: StopWish = field(default_factory=StopWish)

    @property
    def alive(self) -> bool:
        """Whether its actors run, or are being restarted."""
        return self.watched.ended is None

    async def invoke(self, invocation: Invocation) -> AgentResult:
        """Run a turn. A model may take its time, so there is no deadline here: cancel the scope around it."""
        try:
            return await self.agent.ask(Invoke(invocation=invocation), timeout_s=math.inf)
        except anyio.get_cancelled_exc_class():
            self.agent.tell(Abandon(invocation=invocation))
            raise

    @asynccontextmanager
    async def stream(self, invocation: Invocation) -> AsyncGenerator[AsyncIterator[TurnEvent]]:
        """Run a turn and read what happens; leaving the block cancels it."""
        async with self.agent.stream(InvokeStreaming(invocation=invocation), timeout_s=math.inf) as events:
            yield events

    def cancel(self, stop: Stop = CANCELLED, *, after_tools: bool = False) -> None:
        """End the running turn early, from any thread."""
        self.wish.ask(stop, after_tools=after_tools)
        self.agent.tell_threadsafe(CancelTurn())

    async def finish_turns(self, *, at_once: bool = False) -> None:
        """Take no more turns; returns when none is left. `at_once` cuts the running one short and refuses the others.

        A session that ended meanwhile has none left either.
        """
        with suppress(ActorDead):
            await self.agent.ask(FinishTurns(at_once=at_once), timeout_s=math.inf)

    async def finish_memory(self) -> None:
        """Returns when everything that was begun for memory stores is over. Take no more turns before."""
        if self.memory is not None:
            with suppress(ActorDead):
                await self.memory.ask(FinishMemory(), timeout_s=math.inf)

    async def flush_memory(self) -> Mapping[str, StoreFlush]:
        """Have memory stores take in everything that was said; by store, what became of it."""
        if self.memory is not None:
            with suppress(ActorDead):  # What it had not got to stands in the journal.
                return await self.memory.ask(FlushMemory(), timeout_s=math.inf)
        return {}

    def hurry(self, wait_s: float) -> None:
        """Let nobody wait for the store any longer than this."""
        self.persister.tell(Hurry(wait_s=wait_s))

    async def show(self, wanted: SnapshotFields | MessagesEdit) -> None:
        """Go on from a snapshot or an edit of the messages; returns when that is durable. Errors: `Invalid`, and those
        of the store.
        """
        await self.agent.ask(ShowSnapshot(wanted=wanted), timeout_s=math.inf)

    async def save_run(self) -> Mapping[str, object]:
        """What a snapshot says of the orchestrator and its nodes now. Errors: what opening a node meets."""
        assert self.orchestrator is not None
        return await self.orchestrator.ask(SaveRun(), timeout_s=math.inf)

    async def load_run(self, wanted: RunFields, token: str | None = None) -> None:
        """Have the orchestrator and its nodes go on from a snapshot; returns when that is durable. `token`: what the
        run is called from now on. Errors: those of the store.
        """
        assert self.orchestrator is not None
        await self.orchestrator.ask(LoadRun(wanted=wanted, token=token), timeout_s=math.inf)

    async def history(self) -> History:
        """Everything ever said in its journal."""
        return await self.persister.ask(ReadHistory(), timeout_s=math.inf)

    async def said_after(self, seq: int) -> list[Message]:
        """What was said after a sequence number, shown or not, oldest first."""
        said = await self.persister.ask(ReadSaid(after=seq), timeout_s=math.inf)
        return [each.message for each in said]

    async def image(self) -> Image:
        """Everything needed to go on from here."""
        return await self.persister.ask(ReadImage(), timeout_s=math.inf)

    def messages(self) -> list[Message]:
        """What the model is shown now. Not copies."""
        return self.mirror.messages()


def active_session(
    parts: AgentParts | None, watched: ActorRef[object], refs: Mapping[str, ActorRef[Any]]
) -> ActiveSession:
    """The session of these actors, by the names of their specs. `parts`: what its agent is made of; None for an
    orchestrator.
    """
    persister, agent, memory = refs["persister"], refs["agent"], refs.get("memory")
    if parts is None:
        return ActiveSession(watched=watched, persister=persister, agent=agent, orchestrator=agent)
    return ActiveSession(
        watched=watched,
        persister=persister,
        agent=agent,
        memory=memory,
        mirror=parts.mirror,
        state=parts.state,
        tools=parts.tools,
        wish=parts.wish,
    )
