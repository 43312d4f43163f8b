"""The session of an agent: its spec, how it is kept alive, and the options and callback handlers of calls."""

from __future__ import annotations

import inspect
import json
import logging
import math
import os
import sys
import threading
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict, cast, get_args, runtime_checkable
from weakref import ref

import anyio
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from repertory.actors.agent import AgentActor
from repertory.actors.call import Busy, Invocation, background_work, trace_here
from repertory.actors.conversation import ConversationActor
from repertory.actors.hooks.calls import fire_sync
from repertory.actors.hooks.events import AgentInitializedEvent
from repertory.actors.leases import Durable
from repertory.actors.memory.consumer import MemoryConsumer
from repertory.actors.persister import PersisterSettings, persister_spec
from repertory.app.agent.conversation_managers import Summarizer, window_manager
from repertory.app.agent.messages import edit_made, redaction_made, stored_now
from repertory.app.agent.printer import PrintingCallbackHandler, TerminalCallbackHandler, null_callback_handler
from repertory.app.host.blocking import Unfinished, blocking_host, hold_memory, watch_state
from repertory.app.host.life import SessionLife
from repertory.app.host.plugins import Plugin, check_plugins
from repertory.app.host.session import ActiveSession, SessionSpec
from repertory.app.sessions.sessions import PlacedSession, is_local
from repertory.app.tracebacks import inside_event_loop
from repertory.backends.tools.function_tool import load_schema_library
from repertory.core.budget import Budget
from repertory.core.caller_events import CallerEvents
from repertory.core.deliveries import check_names
from repertory.core.ids import check_id
from repertory.core.journal.pending_tools import pending_tools_of
from repertory.core.limits import Limits, read_limits
from repertory.core.timers import TimerBook
from repertory.core.turns.due_times import DueTimeTracker
from repertory.core.window.editing import MessagesEdit
from repertory.errors import (
    AgentBusy,
    Invalid,
    NotReady,
    RepertoryError,
    SessionBusy,
)
from repertory.logs import ERROR, note
from repertory.runtime.faults import failure_of
from repertory.runtime.message import traced
from repertory.runtime.spec import ChildSpec

if TYPE_CHECKING:
    from repertory.actors.agent import CallSettings
    from repertory.actors.context import AgentParts, AgentSettings, MarkTurn
    from repertory.actors.conversation import Summarize
    from repertory.actors.in_memory_journal import InMemoryJournal
    from repertory.actors.memory.consumer import MemoryParts
    from repertory.actors.memory.store import MemoryStoreMessage
    from repertory.actors.spawning import SubagentsPort
    from repertory.app.agent.conversation_managers import ConversationManager
    from repertory.app.agent.extensions import FollowingManager
    from repertory.app.agent.messages import EditableMessages
    from repertory.app.agent.snapshots import SnapshotLoaded
    from repertory.app.host.session import SessionHost
    from repertory.app.memory.memory_manager import MemoryManager
    from repertory.app.sessions.sessions import SessionLocation, SessionPlacement
    from repertory.backends.ports import OutputSchema
    from repertory.core.memory.progress import StoreFlush
    from repertory.core.messages import Message, Prompt
    from repertory.core.result import AgentResult, TurnEvent
    from repertory.core.snapshots.fields import SnapshotFields
    from repertory.core.turn import StopReason
    from repertory.core.window.decision import WindowManager
    from repertory.runtime.ref import ActorRef


@runtime_checkable
class MarkingLocation(Protocol):
    """The additional method of a `SessionLocation` that takes snapshots of its sessions."""

    def marker(
        self, agent: AgentSettings, manager: str, parts: AgentParts, keeper: Durable | InMemoryJournal
    ) -> MarkTurn | None:
        """The callback for the end of each turn of this session, which is about to start. `manager`: the name of its
        conversation manager.
        """
        ...


MakeSubagents: TypeAlias = (
    "Callable[[AgentSettings, AgentParts, SessionHost, SessionLocation | None, Durable | None], SubagentsPort]"
)
"""Makes the starter of a session's subagents, for its settings, components and host; and the location and the store of
subagents that are stored.
"""


class AgentSessionSpec(SessionSpec, frozen=True, kw_only=True):
    """One agent in one session."""

    calls: CallSettings
    parts: AgentParts
    manager: ConversationManager
    subagents: MakeSubagents
    """Makes the part that starts the agents which tools of this one ask for."""

    def continues(self, other: SessionSpec) -> bool:
        """True if both are of the same agent object, with the same attributes."""
        return (
            isinstance(other, AgentSessionSpec)
            and self.claim is other.claim
            and self.parts is other.parts
            and self.manager is other.manager
            and self.remembers is other.remembers
            and (self.agent, self.calls, self.patience) == (other.agent, other.calls, other.patience)
        )

    async def members(
        self,
        keeper: Durable | InMemoryJournal,
        memories: Mapping[str, ActorRef[MemoryStoreMessage]],
        host: SessionHost,
    ) -> Sequence[ChildSpec]:
        """The persister, the conversation manager, the agent and, with a memory manager, its memory. Tool schemas are
        built here, once. Errors: `Invalid` from a tool whose parameters have no JSON schema.
        """
        location, agent = self.sessions, self.agent
        self.parts.lives = 0
        marks = isinstance(location, MarkingLocation)
        self.parts.mark = location.marker(agent, self.manager.name, self.parts, keeper) if marks else None
        if len(self.parts.tools):
            await load_schema_library()
            await self.parts.tools.prepare()
        persister = PersisterSettings(
            session_id=agent.session_id,
            agent_id=agent.agent_id,
            takeover=self.takeover,
            joins=self.joins,
            patience=self.patience,
            busy_by=self.busy_by,
        )
        wakes, stored = False, None
        if isinstance(keeper, Durable):
            capabilities = keeper.store.capabilities
            # Programs of the SDK would take a subagent in its layout for an agent of theirs.
            stored = None if capabilities.shares_turns else location
            wakes, alone = self.wakes and capabilities.waking is not None, not capabilities.shares_turns
            agent = replace(agent, marks_questions=alone, others_add=capabilities.others_add)
        agent = replace(agent, wakes=wakes, hosted=self.wakes) if self.wakes else agent
        durable = keeper if isinstance(keeper, Durable) and stored is not None else None
        self.parts.subagents = self.subagents(agent, self.parts, host, stored, durable)
        self.parts.destinations = host.destinations if wakes else None
        self.parts.timers = TimerBook(host.wall, agent.limits.sizes.prompt_bytes) if wakes else None
        summarize = Summarizer(self.parts, agent).write
        manager = window_manager(self.manager, self.parts.owner, summarize)
        members = _Members(agent, self.calls, self.parts, self.remembers, keeper, manager, summarize, host.wall)
        specs = [
            persister_spec(persister, keeper, os.urandom),
            ChildSpec(name="conversation", factory=members.conversation),
            ChildSpec(name="agent", factory=members.agent),
        ]
        if self.remembers is not None:
            specs.append(ChildSpec(name="memory", factory=partial(members.memory, self.remembers, memories)))
        return specs


class _Members(Struct, frozen=True):
    """Makes a session's actors, again with each restart."""

    settings: AgentSettings
    calls: CallSettings
    parts: AgentParts
    remembers: MemoryParts | None
    keeper: Durable | InMemoryJournal
    manager: WindowManager
    summarize: Summarize
    wall: Callable[[], float]

    def conversation(self) -> ConversationActor:
        return ConversationActor(self.manager, self.wall, self.summarize, self.parts.hooks.shorten)

    def agent(self) -> AgentActor:
        settings = self.settings
        buffer = self.keeper.buffer_of(settings.session_id, settings.agent_id)
        link = None if self.remembers is None else self.remembers.link
        claims_soon = None if link is None else lambda: link.claims_soon()  # The memory actor sets it when it starts.
        pending_work = DueTimeTracker(claims_soon) if settings.wakes else None
        self.parts.lives += 1
        return AgentActor(settings, self.calls, self.parts, buffer, self.wall, pending_work)

    def memory(self, parts: MemoryParts, stores: Mapping[str, ActorRef[MemoryStoreMessage]]) -> MemoryConsumer:
        of = self.settings.session_id, self.settings.agent_id
        return MemoryConsumer(of, parts, stores, self.wall, partial(_traced_work, self.settings, self.parts))


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
        stack.enter_context(background_work(settings.session_id))
        yield


class AgentLife(SessionLife):
    """The session of an agent, with the conversation as the program has it: also before the session is open, and with
    the snapshots and edits that it has still to take.
    """

    __slots__ = (
        "_announced",
        "_manager",
        "_opens_late",
        "_parts",
        "_read_early",
        "loads",
        "memory",
        "opened",
        "read_model",
        "state",
    )

    def __init__(self, parts: AgentParts, manager: SessionPlacement | None, busy: Busy, *, follows: bool) -> None:
        """`manager`: None for a conversation that is not stored, or that a manager stores which `follows` the agent."""
        super().__init__(f"agent {parts.owner.agent_id}", parts.owner.spec, busy)
        self._parts = parts
        self._manager = manager
        # Later those of the object that has opened the session.
        self.read_model, self.state = parts.read_model, parts.state
        self.memory: InMemoryJournal | None = None
        """The journal of a conversation that is not stored."""
        self.loads: list[SnapshotFields | MessagesEdit] = []
        """Snapshots and edits that are not in the conversation yet, the oldest first."""
        self.opened = manager is None and not follows
        """True if messages and state are those of the conversation."""
        self._announced = False
        self._opens_late = False
        """True if another process had the session when the agent was made in sync code."""
        self._read_early = False
        """True if what is stored was read inside an event loop, before the session was opened."""

    @property
    def edited(self) -> bool:
        """True if only edits of messages wait for the next call, and at least one does."""
        return bool(self.loads) and all(isinstance(one, MessagesEdit) for one in self.loads)

    def held_here(self) -> ActiveSession | None:
        """The session that a block keeps open; None when snapshots or edits have to be applied first."""
        return None if self.loads else super().held_here()

    def join(self, session: ActiveSession) -> None:
        """Show the conversation of the session, and share it with the object that started it."""
        if session is self._current:
            return
        super().join(session)
        # What was set here before the session opened belongs to the conversation, whose state another object has.
        patch = self.state.take_patch() if session.state is not self.state else None
        self.read_model, self.state = session.read_model, session.state
        if patch is not None:
            self.state.apply(patch)
        self.announce()

    def begin(self, initial: Sequence[Message], snapshot: object, *, announces: bool) -> None:
        """Show the first conversation of the agent: the initial messages, a snapshot, or, outside an event loop, what
        is stored. `announces`: True if nothing precedes the first call.
        """
        if self._manager is None:
            self.read_model.show(messages=initial)
            if announces:
                self.announce()
        if snapshot is not None:
            self.load(snapshot, None)
        if not self.opened and not isinstance(self._manager, PlacedSession) and not inside_event_loop():
            # So that `agent.messages` has what is stored right behind the constructor.
            blocking_host().run(self.open_if_free)

    def announce(self) -> None:
        """Fire `AgentInitializedEvent`, once."""
        self.opened = True
        if not self._announced:
            self._announced = True
            fire_sync(self._parts.hooks, AgentInitializedEvent(agent=self._parts.owner))

    async def restore(self, following: FollowingManager) -> None:
        """Have the session manager that stores the conversation itself restore it; it reads and edits the messages."""
        self.opened = True
        try:
            await following.restore(AgentInitializedEvent(agent=self._parts.owner))
        except BaseException:
            self.opened = False
            raise

    async def ready(self) -> None:
        """Open the session, which takes what waits in `loads`, unless that is done."""
        if not self.opened or self.loads:
            async with self.session():
                pass

    async def open_if_free(self) -> None:
        """Open the session, unless another process has it: then the first use opens it, which may wait."""
        try:
            # A constructor must not wait for another process that has the session.
            async with self.session("reject"):
                pass
        except (AgentBusy, SessionBusy):
            self._opens_late = True

    def check_open(self, *, stored: bool = False) -> None:
        """Open a session that another process had when the agent was made in sync code, and wait for it. With `stored`,
        what can be read at once is enough. Errors: `NotReady`.
        """
        if self._opens_late and not self.opened and not inside_event_loop():
            blocking_host().run(self.ready)
        if not self.opened and not (stored and self._read_stored()):
            raise NotReady("the session is not open yet: await agent.ready(), enter `async with agent`, or make a call")

    def _read_stored(self) -> bool:
        """Read what is stored of a session that is not open, since a property cannot wait for that inside an event
        loop. False where it may come over a network.
        """
        manager = self._manager
        sessions = None if manager is None or isinstance(manager, PlacedSession) else manager.sessions
        if self._read_early or manager is None or sessions is None or not is_local(sessions):
            return self._read_early
        agent = self._spec().agent
        found = stored_now(sessions, agent.session_id, agent.agent_id)
        host = blocking_host()
        if found is None and not host.is_here:  # No session yet, or one of another program, which opening reads.
            host.run(self.open_if_free)
        if not self.opened:
            self._read_early = True
            if found is None:
                self.read_model.show(messages=agent.initial)
            else:
                self.read_model.show(messages=[each for _, each in found.shown], pending=pending_tools_of(found))
                self.state.restore(found.state)
        return True

    def edit(self, wanted: Sequence[Message], read: EditableMessages | None) -> Sequence[Message]:
        """Make `wanted` the shown messages, between two turns; returns them."""
        return self._carry_out(lambda messages: edit_made(wanted, messages, read))

    def redact_latest(self, message: Message) -> None:
        """Replace the last message for good; in a hook, as an edit of the turn."""
        drafted = self.read_model.drafted()
        if drafted is not None:
            drafted[-1] = message
            return
        self.check_open()
        self._carry_out(lambda messages: redaction_made(message, messages))

    def _carry_out(self, make_edit: Callable[[Sequence[Message]], MessagesEdit | None]) -> Sequence[Message]:
        if self.read_model.in_a_turn or self.in_a_turn:
            text = "a turn is running: edit agent.messages in one of its hooks, or when it is over"
            raise AgentBusy(text, agent=self._parts.owner.agent_id)
        messages = self.read_model.messages()
        edit = make_edit(messages)
        if edit is not None:
            messages = edit.messages()
            self.read_model.show_edited(messages, waits=edit.keeps_end)
            self.loads.append(edit)
            self.store_loads()
        if self.on_change is not None:
            self.on_change()
        return messages

    def load(self, snapshot: object, overrides: Mapping[str, Any] | None) -> SnapshotLoaded:
        """Show a snapshot in the agent. Errors: `AgentBusy` from within a turn, and those of `show_snapshot`."""
        from repertory.app.agent.snapshots import show_snapshot  # loaded when used

        agent = self._parts.owner
        if self.in_a_turn:
            raise AgentBusy("a turn is running: load the snapshot when it is over", agent=agent.agent_id)
        fields, loaded = show_snapshot(agent, self.read_model, snapshot, overrides)
        self.loads.append(fields)
        return loaded

    def store_loads(self) -> None:
        """Have the session take what waits in `loads`; inside an event loop, which cannot wait here, the next call
        does.
        """
        if self._manager is not None and not inside_event_loop():
            blocking_host().run(self.ready)

    async def invoke(self, invocation: Invocation) -> AgentResult:
        """Run the turn of a call."""
        held = self.held_here()
        if held is not None:
            return await held.invoke(invocation)
        async with self.session(invocation.busy, invocation.deadline, late=True) as session:
            return await session.invoke(invocation)

    async def events(
        self, invocation: Invocation, handler: HandlerCalls | None, *, moves: bool = False
    ) -> AsyncGenerator[TurnEvent]:
        """Run the turn of a call, and yield its events as callers see them; the handler gets each before. `moves`: as
        for `session`.
        """
        events = CallerEvents(invocation.invocation_state)
        # The turn waits for the reader of each event, so that what a handler prints keeps step with the model.
        force_setattr(invocation, "in_step", True)
        failed: RepertoryError | None = None
        async with self.stream(invocation, invocation.busy, moves=moves) as turn:
            try:
                async for event in turn:
                    found = events.of(event)
                    if found is None and handler is None:
                        yield event
                        continue
                    for each in (event,) if found is None else found:
                        if handler is not None:
                            await handler.tell(each)
                        yield each
            except RepertoryError as error:
                # Raised behind what is still to be told: a callback handler learns of a failure before the caller does.
                failed = error
            for each in () if failed is None else events.before(failed):
                if handler is not None:
                    await handler.tell(each)
                yield each
            if failed is not None:
                raise failed

    def refuses(self, busy: Busy | None, token: str | None) -> bool:
        """True for a call that would be refused because another one runs: known even if a model blocks the event loop
        in which that one runs.
        """
        if not self.running or (busy or self.busy) != "reject":
            return False
        return token is None or all(each.idempotency_token != token for each in self.running)

    def cancel(self, stop: StopReason, *, after_tools: bool) -> None:
        """End the running turn early, or else the next call before anything is done for it. From any thread."""
        current, in_a_turn = self._current, self.read_model.in_a_turn
        running = bool(self.running)
        if running and not in_a_turn:
            self.stop_before_its_turn(stop)
        if current is not None and current.alive and (running or in_a_turn):
            current.cancel(stop, after_tools=after_tools)
        elif not running:
            self.stop = stop

    def work_at_exit(self, remembers: MemoryParts | None) -> None:
        """Have the end of the process store what is set of the state, and, of an agent that is made in sync code, flush
        the memory stores: unless that is done before.
        """
        agent = self._parts.owner
        if self._manager is not None and self._manager.sessions is not None:
            watch_state(self.state, self.store_state, (self._manager.session_id, agent.agent_id))
        stores = [] if remembers is None else [each.client.name for each in remembers.sources if each.extracts]
        if remembers is None or not stores or inside_event_loop():
            return
        here, is_stored = ref(self), agent.session_id is not None

        async def flush_if_there(by: float) -> str | None:
            there = here()
            return None if there is None else await there.flush_before_exit(by)

        then = "it stands in the journal" if is_stored else "it is kept nowhere else, and lost"
        unfinished = Unfinished(
            left=f"memory stores have not taken in what was said; {then} stores={stores!r}",
            session_id=agent.session_id,
            agent_id=agent.agent_id,
            # A new process can flush what is stored in a session, so that entry need not keep the agent alive.
            finish=flush_if_there if is_stored else self.flush_before_exit,
            of_memory=True,
        )
        remembers.link.watch = partial(hold_memory, id(remembers.link), unfinished)

    async def store_state(self, by: float = math.inf) -> None:
        """Store the values of `state` set since the last call; `by` is a time of the event loop's clock."""
        if self._manager is not None and self.state.changed:
            async with self.session(deadline=by):
                pass  # Closing the session stores the state.

    async def flush_memory(self, by: float = math.inf) -> Mapping[str, StoreFlush]:
        """Write the pending memories to every store, before `by`. Errors: those of opening the session."""
        if not self._parts.remembers:
            return {}
        async with self.session(deadline=by) as session:
            return await session.flush_memory()

    async def flush_before_exit(self, by: float) -> str | None:
        """Flush the memory. Returns why some of it was not taken, and None when all of it was."""
        flushed = await self.flush_memory(by)
        return "; ".join(str(each.error) for each in flushed.values() if each.parked) or None

    @property
    def needs_shutdown(self) -> bool:
        """True if something is open, or not stored."""
        lives = self._current is not None and self._current.alive
        return lives or self.is_held or self.state.changed or self.edited or self._parts.remembers

    async def shut_down(self) -> None:
        """Store what is not stored yet, flush the memory, and close what is open."""
        if self.edited and self._manager is not None:
            await self.ready()
        await (self.leave() if self.is_held else self.flush_memory())
        await self.store_state()
        await self.end_paused()

    async def _before_leaving(self, session: ActiveSession) -> None:
        if self.edited:
            await self._before_use(session)
        await session.flush_memory()

    async def _before_use(self, session: ActiveSession) -> None:
        """Apply the loaded snapshots and the edits. One that the store did not take is tried again by the next call."""
        # Taken out first; what is loaded while these are applied goes behind them.
        loads, self.loads = self.loads, []
        while loads:
            try:
                await session.show(loads[0])
            except Invalid:
                self.loads = loads[1:]
                raise
            except BaseException:
                self.loads = [*loads, *self.loads]
                raise
            loads.pop(0)


# The options of a call beside its prompt, how they become an invocation, and the callback handler.


class PlainCallOptions(TypedDict, total=False):
    """The options of `CallOptions` without the type of the answer."""

    invocation_state: dict[str, Any] | None
    """Values for the hooks and tools of this call, which share this very dictionary. Its `request_state` (created when
    missing) comes back as `result.state`. Not stored."""
    limits: Limits | None
    idempotency_token: str | None
    """Names the turn. A second call with the same token, also after a restart, gives the same answer and runs nothing
    twice; while its turn runs, the call shares it; a turn that failed or was cut short continues. An agent knows its
    latest 64 tokens: an older one begins a new turn."""
    timeout_s: float | None
    """Seconds for the whole call. A turn that still runs then ends with stop reason `limit_time`; a call that still
    waits for other turns is refused with `AgentBusy`, and one whose store has not taken its turn 2 seconds later with
    `Unavailable`."""
    drop_interrupts: bool | None
    """True to continue without the answers of a person: tools that wait for them get an error result."""
    budget: Budget | None
    """The budget of all work of this call together; see `Budget`."""
    busy: Busy | None
    """The conduct of the call while another turn runs; None for the agent's own setting."""
    cancel_signal: threading.Event | None
    """Ends the turn, as `cancel()` does, when any thread has set it: before the next step, and within a tenth of a
    second while something runs. It stays as it is."""
    deliver_to: str | Sequence[str] | None
    """The destinations that are told of the turn besides those of the runtime: names or addresses of `Runtime.deliver`,
    or any address if the runtime has a `webhook_secret`. Told too if the caller leaves or the process dies."""
    structured_output_prompt: str | None
    """The message to a model that has answered without the structured output."""


class CallOptions(PlainCallOptions, total=False):
    """The options of every form of a call beside the prompt. None means the same as leaving an option out."""

    structured_output_model: type[Any] | None
    """A pydantic model class: the answer is an object of it, `result.structured_output`."""


def agent_call(
    agent: Any, prompt: Prompt, options: CallOptions | PlainCallOptions, output: type[Any] | None = None
) -> Invocation:
    """The invocation of a call of the agent. Errors: those of `read_call`."""
    baggage = with_baggage(agent.baggage_attributes) if agent.baggage_attributes else nullcontext()
    with baggage:
        invocation = read_call(prompt, options, output or agent.structured_output_model, agent.structured_output_prompt)
    if invocation.deliver_to:
        raise Invalid("deliver_to is an option of calls to the sessions of a Runtime, which delivers")
    return invocation


def read_call(
    prompt: Prompt,
    options: CallOptions | PlainCallOptions,
    default_schema: type[Any] | None,
    output_prompt: str | None = None,
) -> Invocation:
    """The invocation. Errors: `Invalid` for a bad value of an option."""
    if not options:
        return Invocation(
            prompt=prompt,
            invocation_state={"request_state": {}},
            output_schema=output_schema_of(default_schema),
            output_prompt=output_prompt,
        )
    state = options.get("invocation_state")
    if state is None:
        state = {}
    elif not isinstance(cast("object", state), dict):
        raise Invalid("invocation_state is a dictionary", got=type(state).__name__)
    take_unknown(options, CallOptions, state, stacklevel=6)
    request_state = state.setdefault("request_state", {})
    if not isinstance(request_state, dict):
        raise Invalid("invocation_state['request_state'] is a dictionary", got=type(request_state).__name__)
    busy, token, timeout_s = options.get("busy"), options.get("idempotency_token"), options.get("timeout_s")
    if busy is not None and busy not in get_args(Busy):
        raise Invalid(f"busy is one of {', '.join(get_args(Busy))}", got=busy)
    if timeout_s is None:
        timeout_s = math.inf
    elif (
        isinstance(cast("object", timeout_s), bool)
        or not isinstance(cast("object", timeout_s), int | float)
        or not 0 < timeout_s <= sys.float_info.max  # An integer may be larger than any float.
    ):
        raise Invalid("timeout_s is a positive number of seconds", got=timeout_s)
    signal, asking = options.get("cancel_signal"), options.get("structured_output_prompt")
    budget = options.get("budget")
    if not isinstance(cast("object", signal), threading.Event | None):
        raise Invalid("cancel_signal is a threading.Event", got=type(signal).__name__)
    if not isinstance(cast("object", asking), str | None):
        raise Invalid("structured_output_prompt is a text", got=type(asking).__name__)
    if not isinstance(cast("object", budget), Budget | None):
        raise Invalid("budget is a Budget", got=type(budget).__name__)
    return Invocation(
        prompt=prompt,
        busy=busy,
        invocation_state=state,
        limits=read_limits(options.get("limits")),
        deadline=anyio.current_time() + timeout_s,
        idempotency_token=None if token is None else check_id(token, "idempotency_token"),
        drop_interrupts=bool(options.get("drop_interrupts")),
        output_schema=output_schema_of(options.get("structured_output_model") or default_schema),
        output_prompt=asking or output_prompt,
        cancel_signal=signal,
        budget=budget,
        deliver_to=() if options.get("deliver_to") is None else check_names(options.get("deliver_to")),
    )


def take_unknown(options: Mapping[str, Any], known: type, state: dict[str, Any], *, stacklevel: int) -> None:
    """Put keywords of a call that are none of the known options into its invocation state, with a warning of the line
    that makes the call.
    """
    unknown = sorted(options.keys() - known.__annotations__.keys())
    if unknown:
        about = f"a call takes {', '.join(known.__annotations__)}: pass {', '.join(unknown)} in invocation_state"
        warnings.warn(about, UserWarning, stacklevel=stacklevel)
        state.update({name: options[name] for name in unknown})


@contextmanager
def with_baggage(values: Mapping[str, str]) -> Generator[None]:
    """Calls that are made in the block carry these values as OpenTelemetry's baggage, if it is installed."""
    try:
        from opentelemetry import baggage, context  # loaded when used
    except ImportError:
        yield
        return
    within = context.get_current()
    for name, value in values.items():
        within = baggage.set_baggage(name, value, within)
    token = context.attach(within)
    try:
        yield
    finally:
        context.detach(token)


def output_schema_of(kind: type[Any] | None) -> OutputSchema | None:
    """The output schema of a type. Loads pydantic, which the author of the type has loaded. Errors: `Invalid`."""
    if kind is None:
        return None
    from repertory.backends.tools.structured_output import schema_for

    return schema_for(kind)


def with_memory(plugins: Sequence[Plugin] | None, manager: MemoryManager | None) -> Sequence[Plugin]:
    checked = check_plugins(plugins or (), Plugin)
    added = [] if manager is None or any(each is manager for each in checked) else [manager]
    return check_plugins([*checked, *added], Plugin)


def given_manager(given: object, plugins: object = None) -> MemoryManager | None:
    """The memory manager from the argument of an agent, or among its plugins. Loads its module only when there is one.
    Errors: `Invalid`.
    """
    if given is None and isinstance(plugins, list | tuple):
        given = next((each for each in cast("Sequence[object]", plugins) if hasattr(type(each), "parts_for")), None)
    if given is None:
        return None
    from repertory.app.memory.memory_manager import read_manager

    return read_manager(given)


def refuse_other_ways(model: object, checkpointing: object) -> None:
    """Errors: `Invalid` for what an agent is told to do in a way that it has not, with the way that it has; `TypeError`
    for a snapshot in the place of the model.
    """
    if isinstance(model, Mapping):
        raise TypeError("the first argument is the model; give a snapshot as snapshot=...")
    if checkpointing:
        how = "give the agent a session_manager: every turn is journaled, and goes on from where it was"
        raise Invalid(f"checkpointing is not here: {how}")


def chosen_busy(busy: str, mode: str | None) -> Busy:
    """The conduct of a call while another one runs, from `busy`, or from the SDK's `concurrent_invocation_mode`."""
    if mode is not None:
        throws = one_of("concurrent_invocation_mode", mode, ("throw", "unsafe_reentrant")) == "throw"
        busy = "reject" if throws else "queue"
    return one_of("busy", busy, ("queue", "reject", "interrupt", "steer"))


def one_of(argument: str, value: Any, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise Invalid(f"{argument} must be one of {', '.join(allowed)}", got=value)
    return value


def for_traces(attributes: Mapping[str, object] | None) -> dict[str, object]:
    """The attributes with values that a trace can carry. Errors: `Invalid` for anything but a mapping."""
    if not isinstance(cast("object", attributes), Mapping | None):
        raise Invalid("trace_attributes is a mapping of names to values", got=type(attributes).__name__)
    return {name: value for name, value in (attributes or {}).items() if _can_trace(value)}


def _can_trace(value: object) -> bool:
    many = cast("Sequence[object]", value) if isinstance(value, list | tuple) else (value,)
    return all(isinstance(one, str | bool | int | float) for one in many)


def read_config(config: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """The keywords. Errors: `Invalid` for a file that cannot be read or holds no JSON object."""
    if isinstance(config, Mapping):
        return dict(config)
    try:
        document = json.loads(Path(config).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Invalid("an agent's configuration cannot be read", path=str(config), cause=str(error)) from error
    if not isinstance(document, dict):
        raise Invalid("an agent's configuration is a JSON object", path=str(config), got=type(document).__name__)
    return cast("dict[str, Any]", document)


def request_state_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an invocation state that callback handlers get."""
    found = state.get("request_state")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


CallbackHandler: TypeAlias = "Callable[..., object]"
"""Called with each event's entries as keywords, and `request_state`. The turn waits for an asynchronous handler.

It is called with the events that `stream_async` yields (`core/caller_events.py`), pieces of answers with their `agent`.
"""

_log = logging.getLogger("repertory.callbacks")


watched_call: ContextVar[bool] = ContextVar("repertory_watched_call", default=False)
"""True in a call `agent(...)` whose answer somebody at a terminal looks at, until its turn begins."""


def is_watched() -> bool:
    """True if somebody at a terminal looks at the answer of this call. He does not look at calls within it."""
    watched = watched_call.get()
    if watched:
        # Reset by the first look: agents that are called within this turn must not print as well.
        watched_call.set(False)
    return watched


def chosen_handler(
    given: CallbackHandler | type[PrintingCallbackHandler] | None, default: type[PrintingCallbackHandler]
) -> CallbackHandler:
    """The callback handler that an agent has: one that prints of its own, or one that is silent for None. Errors:
    `Invalid`.
    """
    if given is None:
        return null_callback_handler
    if given is PrintingCallbackHandler:
        return default()
    if not callable(given):
        raise Invalid("callback_handler is a function of an event's entries, or None", got=repr(cast("object", given)))
    return cast("CallbackHandler", given)


def calls_of(
    handler: CallbackHandler | None, invocation_state: Mapping[str, Any], agent: object, *, watched: bool = False
) -> HandlerCalls | None:
    """The calls of this handler in one call of an agent; None if it is silent. `watched`: see `is_watched`."""
    if handler is None or handler is null_callback_handler:
        return None
    if type(handler) is TerminalCallbackHandler and not watched:
        return None
    return HandlerCalls(handler, invocation_state, agent)


class HandlerCalls:
    """Calls a callback handler with the events of one call."""

    def __init__(self, handler: CallbackHandler, invocation_state: Mapping[str, Any], agent: object) -> None:
        self._handler = handler
        self._agent = agent
        self._request_state = request_state_of(invocation_state)

    async def tell(self, event: Mapping[str, object]) -> None:
        """Call the handler with this event. Its exceptions are logged."""
        if "delta" in event:
            event = {**event, "agent": self._agent}
        await call_handler(self._handler, event, self._request_state)


async def call_handler(handler: CallbackHandler, event: Mapping[str, object], request_state: dict[str, Any]) -> None:
    """Call the handler. Its exception is logged, and the turn goes on."""
    try:
        outcome = handler(**event, request_state=request_state)
        if outcome is not None and inspect.isawaitable(outcome):
            await outcome
    except BaseException as raised:  # noqa: BLE001 - a handler is the user's code, and only watches
        error = failure_of(raised)
        note(_log, ERROR, "callback handler failed", error)
