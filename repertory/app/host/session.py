"""One session: its spec (`SessionSpec`), the refs of its actors while it is alive (`ActiveSession`), its slot on a
host, which alone knows its state (`SessionSlot`), and the claim of an agent on a slot, by which its actors run once at
a time in a process (`SlotClaim`).
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias, cast

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from repertory.actors.between_turns import RecordSummary, ReportPendingWork
from repertory.actors.call import (
    OPEN_TURNS,
    Abandon,
    AgentMessage,
    CancelTurn,
    ChangeTimers,
    CompleteTool,
    FinishTurns,
    Invocation,
    Invoke,
    InvokeStreaming,
    ServeDeliveries,
    ServeTimers,
    ShowSnapshot,
)
from repertory.actors.call import deadline as caller_deadline
from repertory.actors.context import StopRequest
from repertory.actors.history import History
from repertory.actors.journal import LATE_S, ReadModel
from repertory.actors.memory.consumer import FinishMemory, FlushMemory, MemoryMessage, PauseMemory, ResumeMemory
from repertory.actors.persister import (
    Pause,
    PersisterMessage,
    ReadHistory,
    ReadImage,
    ReadMessages,
    Resume,
    ShortenTimeouts,
)
from repertory.actors.tool_registry import ToolRegistry
from repertory.core.session_life import SessionEvent, SessionMachine, SessionState
from repertory.core.state import AgentState
from repertory.core.turn import STOPPED_BY_CALLER, StopReason
from repertory.core.turns.due_times import AGAIN_S, goes_on, may_pass
from repertory.errors import ActorDead, ActorFailed, AgentBusy, Invalid, RepertoryError
from repertory.forking import call_in_children, forget_in_children
from repertory.runtime.spec import ChildSpec, Restart, Strategy, SupervisorSettings
from repertory.runtime.supervisor import Supervisor

if TYPE_CHECKING:
    from repertory.actors.context import AgentParts, AgentSettings
    from repertory.actors.delivery_events import Destinations
    from repertory.actors.in_memory_journal import InMemoryJournal
    from repertory.actors.leases import Durable, Gate
    from repertory.actors.memory.consumer import MemoryParts
    from repertory.actors.memory.store import MemoryStoreMessage
    from repertory.actors.orchestrator.orchestrator import OrchestratorMessage
    from repertory.actors.writer import CommitBuffer
    from repertory.app.host.shared import ServerUse
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.core.journal.image import Image
    from repertory.core.memory.progress import StoreFlush
    from repertory.core.messages import Message
    from repertory.core.result import AgentResult, TurnEvent
    from repertory.core.retry import StorePatience
    from repertory.core.snapshots.fields import SnapshotFields
    from repertory.core.snapshots.portable import RunFields
    from repertory.core.window.editing import MessagesEdit
    from repertory.runtime.channel import EventReader
    from repertory.runtime.ref import ActorRef


class SessionSupervisor(Supervisor):
    """The supervisor of one session. Each member depends on those before it and rebuilds itself from what the persister
    has read, so a failure restarts the members after it.
    """

    rests: ClassVar[bool] = True

    restarts: ClassVar[SupervisorSettings] = SupervisorSettings(strategy=Strategy.REST_FOR_ONE)

    def __init__(self) -> None:
        super().__init__((), self.restarts)


class JoinedSessionSupervisor(SessionSupervisor):
    """The supervisor of one that works for another agent of its session: if that has lost it, it stays lost."""

    restarts = SupervisorSettings(strategy=Strategy.REST_FOR_ONE, intensity=1)


def session_spec(name: str, *, joins: bool = False) -> ChildSpec:
    """The spec of a `SessionSupervisor`. Temporary: a session that failed for good is started again by its next
    caller. `joins`: see `SessionSpec`.
    """
    factory = JoinedSessionSupervisor if joins else SessionSupervisor
    return ChildSpec(name=name, factory=factory, restart=Restart.TEMPORARY)


def wall_clock() -> float:
    """Epoch seconds, by the clock that the program has now: it may be another one than when a session started."""
    return time.time()


def meter_provider() -> object | None:
    """The meter provider that the program has set; None if there is none, or OpenTelemetry is not imported."""
    api = sys.modules.get("opentelemetry.metrics")
    provider = None if api is None else cast("Any", api).get_meter_provider()
    # By name: the first is private to OpenTelemetry, and both mean that the program has set none.
    return None if type(provider).__name__ in ("_ProxyMeterProvider", "NoOpMeterProvider") else provider


class SessionHost(Protocol):
    """The members of a host that its sessions need."""

    @property
    def wall(self) -> Callable[[], float]:
        """Gives epoch seconds."""
        ...

    @property
    def refusing(self) -> str | bool:
        """The reason for which the host shuts down; empty while it does not."""
        ...

    @property
    def gate(self) -> Gate:
        """The gate that every turn of its sessions passes."""
        ...

    @property
    def destinations(self) -> Destinations | None:
        """The destinations of events of its sessions; None if there are none."""
        ...

    async def enter(self, spec: SessionSpec) -> ActiveSession:
        """Adds a user to the session."""
        ...

    async def leave(self, spec: SessionSpec, *, ends: bool = False) -> object:
        """Removes a user. `ends`: the session ends now."""
        ...


_claims = threading.Lock()
"""The lock for the few steps in which a claim changes. One for all: they are short, and an agent would weigh more."""


def _forget_parent() -> None:
    global _claims
    _claims = threading.Lock()


call_in_children(_forget_parent)


class SlotClaim:
    """The slot in which an agent, graph or swarm is alive. Safe from any thread.

    Its actors live in the event loop of the call that started them. A call in another loop, of another thread, would
    start a second set on the same conversation; it is refused while the first one is in use.
    """

    __slots__ = ("__weakref__", "_slot")

    def __init__(self) -> None:
        self._slot: SessionSlot | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Claim no slot, in a forked child."""
        self._slot = None

    def take(self, slot: SessionSlot, agent_id: str) -> None:
        """Begin to start it in this slot. Errors: `AgentBusy` while it starts in another one, or is in use there."""
        # Look and take in one step: two threads that call one agent must not both start it.
        with _claims:
            other = self._slot
            if other is not None and other.occupied:
                text = "the agent is active in another event loop, or in another graph or swarm"
                raise AgentBusy(text, agent=agent_id)
            self._slot = slot
            slot.step(SessionEvent.START)

    def retake(self, slot: SessionSlot) -> bool:
        """Begin to use its paused session again. False if it was started in another slot since."""
        with _claims:
            mine = self._slot is slot
            if mine:
                slot.step(SessionEvent.RESUME)
            return mine

    def free(self, slot: SessionSlot) -> None:
        """Let the agent start in another slot."""
        with _claims:
            if self._slot is slot:
                self._slot = None


class SessionSpec(Struct, frozen=True, kw_only=True):
    """The instructions for starting one agent, graph or swarm in one session."""

    working: ClassVar[str] = "a turn is running"
    no_time: ClassVar[str] = "other turns took all the time of this call"

    agent: AgentSettings
    """The agent's settings; of a graph or swarm those of its place among the agents of the session."""
    parts: AgentParts | None
    """The components of an agent; None for a graph or swarm."""
    remembers: MemoryParts | None = None
    """The memory across conversations; None for none."""
    sessions: SessionLocation | None = None
    """The location where the session is stored; None keeps it in `memory` only."""
    memory: InMemoryJournal | None = None
    """The journal of a session that is not stored: needed without `sessions`."""
    own: bool = False
    """True if only the user's object keeps the journal, so that no other caller can find it."""
    takeover: bool = False
    joins: bool = False
    """True if it works for another agent of the session, which has that already."""
    wakes: bool = False
    """True if the store is told when the session must be woken."""
    patience: StorePatience | None = None
    """Replaces the host's `patience`."""
    busy_by: float = math.inf
    """The latest time, by the event loop's clock, until which opening waits for another process."""
    late: bool = False
    """True if the first commit of the call may take the session."""
    prepare: Callable[[], Awaitable[None]] | None = None
    """Awaited before the session starts."""
    opened: Callable[[ActiveSession], None] | None = None
    """Called after it has started."""
    claim: SlotClaim = field(default_factory=SlotClaim)

    @property
    def key(self) -> tuple[str, str, str]:
        """The key of the session's slot, equal for every spec of the same agent in the same stored session."""
        location = self.sessions.key if self.sessions is not None else "memory"
        return location, self.agent.session_id, self.agent.agent_id

    @property
    def named(self) -> Mapping[str, str]:
        """The agent's name, for errors."""
        return {"agent": self.agent.agent_id}

    def waiting(self, *, reject: bool, deadline: float, late: bool = False) -> Self:
        """The spec for one call. A rejecting call does not wait for another process that owns the session; others wait
        until their deadline, or that of the enclosing call if it is earlier.
        """
        by = -math.inf if reject else min(deadline, caller_deadline())
        return self if (by, late) == (self.busy_by, self.late) else replace(self, busy_by=by, late=late)

    def continues(self, other: SessionSpec) -> bool:
        """True if the actors that were started from the other spec serve calls of this one."""
        return False

    async def members(
        self,
        keeper: Durable | InMemoryJournal,
        memories: Mapping[str, ActorRef[MemoryStoreMessage]],
        host: SessionHost,
    ) -> Sequence[ChildSpec]:
        """The specs of its actors in starting order, among them `persister` and `agent`."""
        raise NotImplementedError


_CLOSING_STEPS = 20
"""The steps of the event loop in which a stream that was left by `break`, and not kept, is closed by the event loop."""


class ActiveSession(Struct, frozen=True, kw_only=True):
    """The refs of one active session, and its readable state."""

    slot: SessionSlot
    """The slot that it was started in, which knows its state."""
    watched: ActorRef[object]
    """Ends when the session has failed for good, or was stopped."""
    persister: ActorRef[PersisterMessage]
    agent: ActorRef[AgentMessage]
    wall: Callable[[], float]
    """Gives epoch seconds."""
    since: float
    """The time of its start, by the event loop's clock."""
    orchestrator: ActorRef[OrchestratorMessage] | None = None
    """The actor `agent` itself, when it is an orchestrator."""
    memory: ActorRef[MemoryMessage] | None = None
    """The memory actor; None for an agent without a memory manager."""
    read_model: ReadModel = field(default_factory=ReadModel)
    state: AgentState = field(default_factory=AgentState)
    tools: ToolRegistry = field(default_factory=ToolRegistry)
    """The agent's tools, with those of its tool servers."""
    parts: AgentParts | None = None
    """The agent's components, for readers; None for an orchestrator."""
    stop_request: StopRequest = field(default_factory=StopRequest)
    readers: list[EventReader[TurnEvent]] = field(default_factory=list[Any])
    """The readers whose turns wait for them."""

    @property
    def in_a_turn(self) -> bool:
        """True if the calling code runs on behalf of a turn, or of a run, of this very session."""
        return any(turn.agent is self.agent for turn in OPEN_TURNS.get())

    @property
    def alive(self) -> bool:
        """True if the session's actors run, or are being restarted."""
        return self.watched.ended is None

    async def invoke(self, invocation: Invocation) -> AgentResult:
        """Run a turn. There is no deadline here, since a model call may be long: cancel the scope around it."""
        await self._note_reading(invocation)
        try:
            return await self.agent.ask(Invoke(invocation=invocation), timeout_s=math.inf)
        except anyio.get_cancelled_exc_class():
            # The turn runs in the actor and not in this task: cancelling the ask alone would leave it running, and paid
            # for.
            self.agent.tell(Abandon(invocation=invocation))
            raise

    @asynccontextmanager
    async def stream(self, invocation: Invocation) -> AsyncGenerator[EventReader[TurnEvent]]:
        """Run a turn and read its events; leaving the block cancels it."""
        if invocation.following is None:  # Who follows the same turn gets what was said of it, whoever reads it too.
            await self._note_reading(invocation)
        async with self.agent.stream(InvokeStreaming(invocation=invocation), timeout_s=math.inf) as events:
            if invocation.following is not None:
                yield events
                return
            self.readers.append(events)
            try:
                yield events
            finally:
                self.readers.remove(events)

    async def _note_reading(self, invocation: Invocation) -> None:
        if self.readers and await self.read_here():
            force_setattr(invocation, "while_reading", True)

    async def read_here(self) -> bool:
        """True if the running task reads a stream of this session, so that a turn waits for it."""
        # asyncio closes a generator that was left by `break` some steps later. Until then it looks as if somebody still
        # read.
        for _ in range(_CLOSING_STEPS):
            if not any(reader.read_here for reader in self.readers):
                return False
            await checkpoint()
        return True

    def cancel(self, stop: StopReason = STOPPED_BY_CALLER, *, after_tools: bool = False) -> None:
        """End the running turn early, from any thread. A paused session has none."""
        # A stop that is set now would end the turn of the next call.
        if self.slot.state is SessionState.PAUSED:
            return
        self.stop_request.ask(stop, after_tools=after_tools)
        self.agent.tell_threadsafe(CancelTurn())

    async def finish_turns(self, *, at_once: bool = False) -> None:
        """Take no more turns; returns when none is left. `at_once` cuts the running one short and refuses the others.

        Returns also when the session has ended meanwhile.
        """
        self.slot.finishing = True
        with suppress(ActorDead):
            await self.agent.ask(FinishTurns(at_once=at_once), timeout_s=math.inf)
        self.slot.finishing = False

    async def pause(self, by: float = math.inf) -> bool:
        """Finish the turns and the work begun for memory stores, have everything stored, and release the session. It
        takes no part in anything then, until `resume`. False when that cannot be now, or when memory stores still work
        at the deadline `by`, of the event loop's clock.
        """
        try:
            self.slot.finishing = True
            await self.agent.ask(FinishTurns(more_may_come=True), timeout_s=math.inf)
            self.slot.finishing = False
            if self.memory is not None:
                with anyio.move_on_after(_remaining_s(by)) as waiting:
                    await self.memory.ask(PauseMemory(), timeout_s=math.inf)
                if waiting.cancelled_caught:
                    return False
            return self.slot.buffer is None or await self.persister.ask(Pause(), timeout_s=math.inf)
        except (ActorDead, ActorFailed):
            return False

    async def resume(self, spec: SessionSpec) -> bool:
        """Acquire the session again, for a call of this spec. False if its actors have ended, others may have changed
        the session, or the store refuses; it says why when the session is opened anew.
        """
        resume = Resume(late=spec.late, busy_by=spec.busy_by)
        try:
            resumed = self.alive and (self.slot.buffer is None or await self.persister.ask(resume, timeout_s=math.inf))
            if resumed and self.memory is not None:
                await self.memory.ask(ResumeMemory(), timeout_s=math.inf)
            return resumed
        except RepertoryError:
            return False

    async def finish(self, by: float) -> None:
        """Take no more turns; returns when none is left and the work begun for memory stores is over.

        `by`: the deadline of the call, by the event loop's clock. Extraction that is not over by then stays in the
        journal, and the session's last write is not tried for much longer.
        """
        await self.finish_turns()
        if self.memory is not None:
            with anyio.move_on_after(_remaining_s(by)), suppress(ActorDead):
                await self.memory.ask(FinishMemory(), timeout_s=math.inf)
        if by < math.inf:
            self.hurry((_remaining_s(by) + LATE_S) / 2)  # The last write may take twice this long.

    async def wake(self, why: str, go_on: Invocation) -> None:
        """Do the pending work of this reason (`core/turns/due_times.py`), and tell the store what is left.
        `go_on`: a call without a prompt. Errors: those of the turn; one that may succeed later leaves it pending.
        """
        again_at: float | None = None
        try:
            if not self.read_model.in_a_turn and await self.goes_on(why):
                try:
                    await self.invoke(go_on)
                except Invalid:  # A call that came first may have done it: look again before anybody is warned.
                    if await self.goes_on(why):
                        raise
            await self.agent.ask(ServeTimers(), timeout_s=math.inf)
            if self.orchestrator is None:
                await self.agent.ask(ServeDeliveries(), timeout_s=math.inf)
                await self.agent.ask(RecordSummary(recovering=why == "summary"), timeout_s=math.inf)
            if self.memory is not None:
                await self.memory.ask(FinishMemory(), timeout_s=math.inf)
        except RepertoryError as error:
            again_at = self.wall() + AGAIN_S if may_pass(error) else None
            raise
        finally:
            # Also after an error: the store must learn whether the work is still pending, and from when on.
            with suppress(ActorDead, ActorFailed):
                await self.agent.ask(ReportPendingWork(again_at=again_at), timeout_s=math.inf)

    async def goes_on(self, why: str) -> bool:
        """True if a call without a prompt would do pending work for this reason."""
        if self.orchestrator is None:
            return goes_on(why, self.read_model.pending_tools, self.wall())
        from repertory.core.orchestration.pending_work import run_goes_on  # loaded with graphs and swarms
        from repertory.core.orchestration.run import Run

        image = await self.image()
        return why in ("turn", "expiry") and run_goes_on(
            Run.of(image.nodes.values(), image.frontier, image.run), self.wall()
        )

    async def change_timers(self, change: ChangeTimers) -> bool:
        """Set or cancel a timer; returns when that is durable. Errors: `Invalid`, `TooLarge`, those of the store."""
        return await self.agent.ask(change, timeout_s=math.inf)

    async def complete_tool(self, wanted: CompleteTool) -> bool:
        """Give a tool its result; returns when that is durable. False if it has one. Errors: `Gone`, those of the
        store.
        """
        return await self.agent.ask(wanted, timeout_s=math.inf)

    async def flush_memory(self) -> Mapping[str, StoreFlush]:
        """Extract memories from all new messages, and write them; the outcome by store."""
        if self.memory is not None:
            with suppress(ActorDead):  # The remaining messages stay in the journal.
                return await self.memory.ask(FlushMemory(), timeout_s=math.inf)
        return {}

    def hurry(self, wait_s: float) -> None:
        """Shorten all waiting for the store to `wait_s`."""
        self.persister.tell_now(ShortenTimeouts(wait_s=wait_s))

    async def show(self, wanted: SnapshotFields | MessagesEdit) -> None:
        """Apply a snapshot or an edit of the messages; returns when that is durable. Errors: `Invalid`, and those of
        the store.
        """
        await self.agent.ask(ShowSnapshot(wanted=wanted), timeout_s=math.inf)

    async def save_run(self) -> Mapping[str, object]:
        """The snapshot of the orchestrator and its nodes. Errors: what opening a node raises."""
        from repertory.actors.orchestrator.orchestrator import SaveRun  # loaded with graphs and swarms

        assert self.orchestrator is not None
        return await self.orchestrator.ask(SaveRun(), timeout_s=math.inf)

    async def load_run(self, wanted: RunFields, token: str | None = None) -> None:
        """Load a snapshot into the orchestrator and its nodes; returns when that is durable. `token`: the name of the
        run from now on. Errors: those of the store.
        """
        from repertory.actors.orchestrator.orchestrator import LoadRun  # loaded with graphs and swarms

        assert self.orchestrator is not None
        await self.orchestrator.ask(LoadRun(wanted=wanted, token=token), timeout_s=math.inf)

    async def history(self) -> History:
        """All messages in its journal."""
        return await self.persister.ask(ReadHistory(), timeout_s=math.inf)

    async def messages_after(self, seq: int) -> list[Message]:
        """All messages after a sequence number, oldest first, also those that the model no longer sees."""
        entries = await self.persister.ask(ReadMessages(after=seq), timeout_s=math.inf)
        return [each.message for each in entries]

    async def image(self) -> Image:
        """The state replayed from its journal."""
        return await self.persister.ask(ReadImage(), timeout_s=math.inf)

    def messages(self) -> list[Message]:
        """The messages that the model sees now. Not copies."""
        return self.read_model.messages()


SlotKey: TypeAlias = tuple[str, str, str, int]
"""The key of a session spec, and whose node it is, if only that orchestrator may use it so; otherwise 0."""


class CallersTurn(Struct, eq=False):
    """The turn of callers at a session, outside a `Runtime`: it lets the calls of one agent object at a time use the
    session, in the order in which they came.
    """

    queue: anyio.Semaphore
    callers: int = 0
    """The calls that have it."""
    claim: SlotClaim | None = None
    """The claim of the agent whose calls have it; None for a block, and for a graph or swarm."""
    held: bool = False
    """True if a block around many calls has it, which any other call may join."""

    @property
    def wanted(self) -> bool:
        """True if calls wait for it."""
        return self.queue.statistics().tasks_waiting > 0


class SessionSlot(SessionMachine, eq=False, kw_only=True):
    """One session on a host: its state, its users, and what it uses. Other threads may read it."""

    key: SlotKey
    loop: object
    """The event loop of its host."""
    idle_since: float
    """The time at which its last user left, by the event loop's clock."""
    users: int = 0
    """The number of calls that use it, or wait to use it."""
    session: ActiveSession | None = None
    """Set from its start until everything that it used is released."""
    spec: SessionSpec | None = None
    """The spec that it was started from, whose claim is taken."""
    lock: anyio.Lock | None = None
    """The lock while the session starts or stops; made when needed, since a free one weighs as much as the rest."""
    turn: CallersTurn | None = None
    """Made by the first call outside a `Runtime`."""
    within: SlotClaim | None = None
    """The claim of the graph or swarm whose node it is (see `NodeHost`); None if it is no node."""
    supervisor: ActorRef[object] | None = None
    """The supervisor of its actors, if it has one, also while it starts."""
    may_pause: bool = False
    """True if its store can be acquired again."""
    remembers: MemoryParts | None = None
    """The memory stores that the session uses."""
    servers: list[ServerUse] = field(default_factory=list["ServerUse"])
    """The tool servers that the session uses."""
    memory: InMemoryJournal | None = None
    """The journal of a session without a store, which outlives the session's actors."""
    by: float = -math.inf
    """The latest deadline of its users since nobody used it."""
    buffer: CommitBuffer | None = None
    """The accepted records that are not stored yet, while it uses its store; None without a store."""
    finishing: bool = False
    """True while its session takes no more turns, and may have some left."""

    def locking(self) -> anyio.Lock:
        """The lock to hold while its state changes."""
        self.lock = lock = self.lock or anyio.Lock(fast_acquire=True)
        return lock

    def ends_with_call(self) -> bool:
        """True if nobody but the running call uses it, or is about to."""
        turn = self.turn
        return self.users == 1 and (turn is None or not (turn.held or turn.wanted))

    @property
    def called(self) -> bool:
        """True if calls have their turn, or are about to."""
        return self.turn is not None and not self.turn.queue.value

    @property
    def changing(self) -> bool:
        """True while a task starts, pauses, resumes or stops it."""
        return self.lock is not None and self.lock.locked()

    @property
    def alive(self) -> bool:
        """True if its actors run, or are being restarted."""
        return self.session is not None and self.session.watched.ended is None

    @property
    def occupied(self) -> bool:
        """True while its agent must not be started in another slot."""
        if self.state is SessionState.STARTING:
            return True
        return self.state not in (SessionState.ABSENT, SessionState.PAUSED) and self.alive

    @property
    def waits(self) -> bool:
        """True if records wait for a store that does not take them."""
        return self.buffer is not None and self.buffer.error is not None and self.buffer.count > 0

    @property
    def idle(self) -> bool:
        """True if it is an active agent's session of which nobody wants anything now."""
        session = self.session
        if session is None or self.users or self.changing or self.state is not SessionState.ACTIVE:
            return False
        return session.alive and session.orchestrator is None and not session.read_model.works


def active_session(
    slot: SessionSlot,
    parts: AgentParts | None,
    watched: ActorRef[object],
    refs: Mapping[str, ActorRef[Any]],
    wall: Callable[[], float],
) -> ActiveSession:
    """The session with these actors, by the names of their specs. `parts`: the agent's components; None for an
    orchestrator.
    """
    agent, since = refs["agent"], anyio.current_time()
    if parts is None:
        return ActiveSession(
            slot=slot,
            wall=wall,
            since=since,
            watched=watched,
            persister=refs["persister"],
            agent=agent,
            orchestrator=agent,
        )
    return ActiveSession(
        slot=slot,
        wall=wall,
        since=since,
        watched=watched,
        persister=refs["persister"],
        agent=agent,
        memory=refs.get("memory"),
        read_model=parts.read_model,
        state=parts.state,
        tools=parts.tools,
        parts=parts,
        stop_request=parts.stop_request,
    )


async def whole_history(session: ActiveSession, spec: SessionSpec) -> list[Message]:
    """A copy of all messages of a session, which may be a fork, oldest first."""
    own, forked = await session.history()
    if not forked or spec.sessions is None:
        return list(own)
    from repertory.app.sessions.reading import messages_before_fork  # loaded when used

    before, copied = await messages_before_fork(spec.sessions, spec.agent.session_id, spec.agent.agent_id)
    return [*before, *own[copied:]]


def _remaining_s(by: float) -> float:
    return max(by - anyio.current_time(), 0.0)
