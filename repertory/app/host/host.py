"""A host: one actor system with its stores, and the sessions that are active on it.

The first user of a session starts it, and all other users on the same host share it. After the last one left, the host
stops its actors: at once (a call outside a `Runtime` leaves nothing behind), or after an idle time.

A session's life changes in `_settle`, in a task that holds the slot's lock: `next_step` says from the facts what to do
(`core/session_life.py`, pure and with a drawing), and `_start`, `_pause`, `_resume` or `_stop` does it. Whoever is cut
off leaves the slot as it is, and the next one to look goes on from there. Two paths stay outside `_settle`, for speed:
a session that is active already is entered without the lock, and a drain stops idle sessions in one step each.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio
from anyio.lowlevel import RunVar, checkpoint, current_token
from msgspec import Struct
from msgspec.structs import replace

from repertory.actors.call import FinishTurns
from repertory.actors.call import deadline as caller_deadline
from repertory.actors.in_memory_journal import InMemoryJournal
from repertory.actors.journal import LATE_S
from repertory.actors.leases import Durable, SessionCounts
from repertory.actors.writer import CommitBuffer, CommitBuffers, NotStored
from repertory.app.host.admission import HAS_ENDED, NOT_OPEN, SHUTS_DOWN, AdmissionQueue
from repertory.app.host.session import (
    ActiveSession,
    SessionSlot,
    SlotClaim,
    active_session,
    session_spec,
    wall_clock,
)
from repertory.app.host.shared import (
    CLOSE,
    COMMIT,
    MEMORY,
    REFUSE,
    TURNS,
    GiveUp,
    IdleWatch,
    LookForIdle,
    OpenMemories,
    OpenStores,
    SessionGiver,
    ToolServers,
    drain_phases,
    reason_of,
    take_name,
)
from repertory.backends.ports import Model, SessionStore, call_queue_of
from repertory.backends.shields import Shields
from repertory.core.retry import DEFAULT_PATIENCE, StorePatience
from repertory.core.session_life import (
    SessionEvent,
    SessionFacts,
    SessionState,
    SessionStep,
    Unused,
    next_step,
)
from repertory.errors import AgentBusy, Invalid, StartFailed, StoreUnavailable, Unavailable
from repertory.logs import ERROR, note
from repertory.runtime.spec import ChildSpec, SupervisorSettings
from repertory.runtime.system import ActorSystem, OnFatal, SystemSettings

if TYPE_CHECKING:
    from threading import Thread

    from repertory.actors.delivery_events import Destinations
    from repertory.app.host.dispatcher import LookForDue, RecoveryHooks
    from repertory.app.host.session import SessionSpec, SlotKey
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.core.memory.progress import StoreFlush
    from repertory.runtime.ref import ActorRef

_LOG = logging.getLogger("repertory.app")

PAUSED_S = 60.0
"""Seconds that the actors of a session outlive its last call, outside a `Runtime`."""
PAUSED_MAX = 256
"""Sessions that may be paused; beyond that the one that was unused for the longest time is stopped."""
SERVED_PAUSED_MAX = 8
"""Sessions with tool servers that may be paused; each server may be a process."""
_HURRY_SHARE = 0.05
"""Share of the drain timeout: how long a call that is cut short still waits for its store."""
_IDLE_AT_ONCE = 64
"""Idle sessions that a drain stops before other tasks run."""
ShutdownHook = Callable[[], Awaitable[None]]


class HostSettings(Struct, frozen=True, kw_only=True):
    """The settings of a host."""

    idle_timeout_s: float = 0.0
    """Seconds that a session without users stays active; 0 stops it at once."""
    drain_timeout_s: float = 25.0
    on_fatal: OnFatal = "raise"
    """The reaction to the loss of all actors; see `SystemSettings`."""
    patience: StorePatience = DEFAULT_PATIENCE
    """The limits on a session's waiting for a store that cannot be written."""
    ambient: bool = True
    """True if agents called in the same event loop share this host."""
    pauses: bool = False
    """True if a session is released at the end of each call, and only its actors stay for `idle_timeout_s`. Otherwise
    it stays owned meanwhile.
    """
    closes_models: bool = True
    """True if the host closes the models that were used when it is left."""
    wall: Callable[[], float] = wall_clock
    """Gives epoch seconds."""


class Host:
    """An actor system with sessions on it. An async context manager: on exit, all that it started has ended."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
        self.gate = AdmissionQueue()
        """The gate that every turn of its sessions passes; its limits outlive the block."""
        self._begin()

    def _begin(self) -> None:
        settings, self._shields = self._settings, Shields()
        self.loop: object = None
        """The event loop of its block, as its own library has it; None before."""
        system = SystemSettings(
            phases=drain_phases(settings.drain_timeout_s),
            grace_s=settings.drain_timeout_s,
            supervision=_LASTING,
            on_fatal=settings.on_fatal,
            dead_letters_max=0,  # One may have a whole prompt.
            # A killed actor may wait for a commit that no cancellation reaches. Its shields are cut, or a drain would
            # wait for a server that gives no answer.
            on_kill=self._shields.cut,
            not_open=NOT_OPEN,
        )
        self.system = ActorSystem(system)
        self.buffers = CommitBuffers(settings.patience)
        """Per session and agent: the accepted records that are not stored yet."""
        self._keeps = settings.idle_timeout_s > 0 and not settings.pauses
        """True if sessions stay owned, and what they use stays open, while nobody uses them."""
        self._pauses_apart = settings.pauses and not settings.ambient
        self.counts = SessionCounts()
        """The counters of the host's sessions since it began."""
        self._stores = OpenStores(self.system, self.buffers, self.counts, self._requested if self._keeps else None)
        self.not_published = self._stores.not_published
        self.servers = ToolServers(self.system)
        """The tool servers of sessions, and of clients that are open by hand."""
        self.memories = OpenMemories(self.system)
        """The memory store actors of sessions, and of programs that ask a store."""
        self._remembers = False
        """True if any session has used a memory store."""
        self.slots: dict[SlotKey, SessionSlot] = {}
        """The host's sessions, to be looked at from any thread."""
        self._watch: ActorRef[LookForIdle] | None = None
        self._giver: ActorRef[GiveUp] | None = None
        self._wanted: set[tuple[str, str]] = set()
        """Sessions in use that other processes have asked for, each by its store's key and its id."""
        self._unstored: list[tuple[SlotClaim, CommitBuffer]] = []
        """Records that stopped nodes could not store, each buffer with the orchestrator whose call still runs."""
        self._names: set[str] = set()
        self._refusing = False
        self.opened: list[ActiveSession] = []
        """Active sessions of which it is not known that none of their turns was cut short, where a dispatcher asks."""
        self.dispatcher: ActorRef[LookForDue] | None = None
        """Looks for what nobody waits for, in a runtime that does that."""
        self.yields_to: Callable[[str], bool] | None = None
        """Tells if a session is given up that another process asks for; None: always."""
        self.destinations: Destinations | None = None
        """The destinations of events of its sessions; None if there are none."""
        self.flushed: list[Mapping[str, StoreFlush]] = []
        """The flushes of memory stores during the drain, one mapping a session: what they stored, and what not."""
        self._models: dict[int, Model] = {}
        self._outer: Host | None = None

    def renew(self) -> None:
        """Make it ready to be entered again, in any event loop, after its block has ended."""
        self.gate.closed = False
        self._begin()

    @property
    def elsewhere(self) -> bool:
        """True if its block was entered in another event loop."""
        return self.loop is not None and self.loop is not current_token().native_token

    def check_loop(self) -> None:
        """Errors: `Invalid` in another event loop than that of its block, before that has ended: there, nothing would
        wake who waits.
        """
        if self.elsewhere and self.refusing != HAS_ENDED:
            raise Invalid("the runtime is open in another event loop or thread: call it there")

    @property
    def lost_its_loop(self) -> bool:
        """True if the event loop of its block was closed in the middle of it, without ending its tasks."""
        return self.loop is not None and getattr(self.loop, "is_closed", bool)()

    async def __aenter__(self) -> Host:
        with self._shields.entered():
            await self.system.__aenter__()
        self.loop = current_token().native_token
        self.system.on_shutdown(REFUSE, self._refuse)
        self.system.on_shutdown(TURNS, self._finish_turns)
        self.system.on_shutdown(COMMIT, self._shields.around(self._stop_all))
        self.system.on_shutdown(CLOSE, self._shields.around(self._close))
        if self._settings.ambient:
            self._outer = _ambient.get()
            _ambient.set(self)
        if self._settings.idle_timeout_s > 0:
            try:
                watch = partial(IdleWatch, self._settings.idle_timeout_s / 4, self._passivate_idle)
                self._watch = await self.system.start(ChildSpec(name="idle watch", factory=watch))
                giver = partial(SessionGiver, self._yield)
                self._giver = await self.system.start(ChildSpec(name="giver", factory=giver))
            except BaseException:
                await self.__aexit__(*sys.exc_info())
                raise
        return self

    async def __aexit__(self, *exc_info: Any) -> bool | None:
        if self._settings.ambient:
            if (inner := _ambient.get()) is self:
                _ambient.set(self._outer)
            while inner is not None and inner._outer is not self:  # Hosts of one event loop may end in any order.
                inner = inner._outer
            if inner is not None:
                inner._outer = self._outer
        try:
            return await self.system.__aexit__(*exc_info)
        finally:
            _log_not_stored(self.buffers.not_stored())

    async def recover_due(self, sessions: SessionLocation, recovery: RecoveryHooks) -> None:
        """Wake sessions of this location that have pending work, from now on."""
        from repertory.app.host.dispatcher import dispatcher_spec  # loaded when used

        durable = await self._stores.enter(sessions)
        if durable.store.capabilities.waking is not None or call_queue_of(durable.store) is not None:
            spec = dispatcher_spec(durable.store, recovery, self.wall, lambda: self._refusing)
            self.dispatcher = await self.system.start(spec)
        else:
            await self._stores.leave(sessions.key, keep=True)

    async def store_of(self, sessions: SessionLocation) -> SessionStore:
        """The store of this place, maintained, and open until the host is left."""
        durable = await self._stores.enter(sessions)
        await self._stores.maintain(sessions.key)
        return durable.store

    def holds(self, spec: SessionSpec) -> bool:
        """True if the session is active here."""
        slot = self.slots.get(_key(spec, None))
        return slot is not None and slot.state is not SessionState.STOPPING and slot.alive

    def knows(self, spec: SessionSpec) -> bool:
        """True if the session was brought to life here; one in memory is known from then on."""
        return _key(spec, None) in self.slots

    async def give_up_idle(self) -> None:
        """Stop all idle sessions now, in a drain before the others."""
        await self._stop_all(only_idle=True)

    async def let_go(self, spec: SessionSpec) -> None:
        """Stop an idle session now instead of after its idle time; one that is in use when its users have left."""
        if self._keeps:
            await self._yield(*spec.key[:2])

    def abandon(self) -> list[Thread]:
        """Close the stores without the event loop, which was closed, and let agents start elsewhere. Returns the
        threads that still close.
        """
        for slot in list(self.slots.values()):
            _free(slot)
        return self._stores.abandon_all()

    def session(self, spec: SessionSpec, deadline: float = math.inf) -> SessionUse:
        """The session, active for as long as the block: `async with host.session(spec) as session`. `deadline`:
        that of the call, for the work at the end of the block; see `ActiveSession.finish`.

        Errors: those of opening it (`SessionBusy`, `Corrupt`, `Unavailable`, `Invalid`).
        """
        return SessionUse(self, spec, deadline)

    @property
    def wall(self) -> Callable[[], float]:
        """Gives epoch seconds."""
        return self._settings.wall

    @property
    def refusing(self) -> str:
        """The reason for which the host takes no new users and cuts turns short; empty while it does neither."""
        return "" if not self._refusing else SHUTS_DOWN if self.system.report is None else HAS_ENDED

    def slot_of(self, spec: SessionSpec, within: SlotClaim | None = None) -> SessionSlot:
        """The slot of the session, which is made if necessary. Use it, or have it dropped, in the same step."""
        key = _key(spec, within)
        slot = self.slots.get(key)
        if slot is None:
            slot = self.slots[key] = SessionSlot(key=key, loop=self.loop, idle_since=anyio.current_time())
        return slot

    def end_call(self, slot: SessionSlot) -> None:
        """A call has ended that used the slot in its turn."""
        turn = slot.turn
        assert turn is not None
        turn.callers -= 1
        if not turn.callers:
            turn.claim, turn.held = None, False
            turn.queue.release()
            if slot.state is SessionState.ABSENT:
                self._drop_empty(slot)

    async def enter(
        self, spec: SessionSpec, deadline: float = math.inf, *, within: SlotClaim | None = None
    ) -> ActiveSession:
        """Adds a user to the session, which is started if necessary. Each `enter` needs one `leave`.

        `deadline`: as for `session`. The deadline of an enclosing call holds as well. `within`: see `NodeHost`.
        """
        self.check_loop()
        if self._refusing:
            raise Unavailable(self.refusing, session=spec.agent.session_id)
        slot = self.slot_of(spec, within)
        slot.users += 1
        by = min(deadline, caller_deadline())
        slot.by = max(slot.by, by)
        session = slot.session
        # One that lives on for its tools in the background alone may be of another agent object.
        fits = slot.users > 1 or not self._settings.pauses
        if session is not None and fits and slot.state is SessionState.ACTIVE and session.alive and not slot.changing:
            return session
        try:
            with anyio.CancelScope(deadline=by + LATE_S):
                async with slot.locking():
                    slot.within = within
                    await self._settle(slot, spec)
                    assert slot.session is not None
                    return slot.session
            where = {"session": spec.agent.session_id, "agent": spec.agent.agent_id}
            if slot.finishing and not slot.waits:
                raise AgentBusy("other turns took all the time of this call", **where)
            raise Unavailable("the session was not opened in the time of this call", **where)
        except BaseException:
            slot.users -= 1
            self._look_soon(slot)
            if not slot.changing:  # Otherwise the task that stops the session drops the slot.
                self._drop_empty(slot)
            raise

    async def leave(
        self, spec: SessionSpec, *, within: SlotClaim | None = None, ends: bool = False
    ) -> NotStored | None:
        """Removes a user; the last one stops or pauses the session, unless it may idle. Cancellation waits for that.
        A session that another process asks for is given up soon afterwards. Returns what an agent could not store, and
        is lost, where sessions end with their calls. `ends`: the session ends now, whoever else uses it.
        """
        key = _key(spec, within)
        slot = self.slots[key]
        slot.users -= 1
        slot.idle_since = anyio.current_time()
        if not slot.users and self._giver is not None and key[:2] in self._wanted:
            # Not here: it waits for all of the session's turns, and this may be a part of one.
            self._giver.tell(GiveUp(store_key=key[0], session_id=key[1]))
        if not ends and (slot.users or (self._keeps and not spec.own)):
            if not slot.changing:
                slot.lock = None
            return None
        try:
            with anyio.CancelScope(shield=True):
                lost = await self._leave_last(slot, ends=ends)
                return lost if spec.parts is not None else self._log_lost(spec.claim, lost)
        except BaseException:
            self._look_soon(slot)
            raise
        raise AssertionError

    async def _leave_last(self, slot: SessionSlot, *, ends: bool) -> NotStored | None:
        async with slot.locking():
            if slot.users and not ends:
                return None
            (by, slot.by), buffer = (slot.by, -math.inf), slot.buffer
            await self._settle(slot, over=ends, by=by)
            if slot.state is SessionState.ABSENT and buffer is not None and self._pauses_apart:
                if slot.within is None:
                    return self.buffers.drop(buffer)
                if buffer.not_stored() is not None:  # The node may work again in the same call.
                    self._unstored.append((slot.within, buffer))
        if slot.servers:
            await self._stop_oldest(SERVED_PAUSED_MAX, lambda slot: bool(slot.servers))
        if len(self.slots) > PAUSED_MAX:
            await self._stop_oldest(PAUSED_MAX, lambda slot: True)
        return None

    async def _settle(
        self,
        slot: SessionSlot,
        spec: SessionSpec | None = None,
        *,
        over: bool = False,
        closing: bool = False,
        by: float = math.inf,
    ) -> None:
        """Take the steps that the session needs now, for a task that holds the slot's lock. `spec`: of the call that
        waits for it; None if nobody uses it, or nobody shall. `over`, `closing`: see `SessionFacts`. `by`: the deadline
        of the call that ends, for the work for memory stores.
        """
        while True:
            before, servers, session = slot.spec, slot.servers, slot.session
            if self._keeps and (before is None or not before.own):
                unused = Unused.KEEP
            elif session is not None and session.alive and session.read_model.tasks:
                # Its call has returned before a tool in the background has ended; the last one has us look again.
                if session.parts is not None and session.parts.background is not None:
                    session.parts.background.on_over = partial(self._look_soon, slot)
                unused = Unused.KEEP
            else:
                pauses = self._settings.pauses and slot.may_pause and self.servers.may_stay(servers)
                unused = Unused.PAUSE if pauses else Unused.STOP
            fits = spec is not None and before is not None and spec.continues(before)
            if slot.state is SessionState.ACTIVE:
                fits = fits or before is spec or slot.users > 1 or not self._settings.pauses
            else:
                fits = fits and self.servers.still_serve(servers)
            alive = session is not None and session.alive
            match next_step(SessionFacts(slot.state, spec is not None, alive, fits, unused, over, closing)):
                case SessionStep.NOTHING:
                    return
                case SessionStep.START:
                    await self._start(slot, cast("SessionSpec", spec))
                case SessionStep.PAUSE:
                    over = not await self._pause(slot, by)  # What cannot be released is stopped.
                case SessionStep.RESUME:
                    if not await self._resume(slot, cast("SessionSpec", spec)):
                        await self._stop(slot)
                case SessionStep.STOP:
                    if spec is not None and alive and slot.state is SessionState.ACTIVE and spec.busy_by == -math.inf:
                        raise AgentBusy("tools of another agent run in the background", **spec.named, busy="reject")
                    await self._stop(slot, at_once=closing, by=by)

    def _log_lost(self, root: SlotClaim, lost: NotStored | None) -> None:
        """The call of a graph or swarm has ended: drop what it and its nodes could not store."""
        buffers = {id(buffer): buffer for claim, buffer in self._unstored if claim is root}
        self._unstored = [each for each in self._unstored if each[0] is not root]
        reports = [self.buffers.drop(buffer) for buffer in buffers.values() if buffer.not_stored() is not None]
        _log_not_stored(report for report in (lost, *reports) if report is not None)

    def _look_soon(self, slot: SessionSlot) -> None:
        """Have somebody look at a slot whose last user was cut short: asyncio itself cancels, which no shield stops."""
        if self._watch is not None and not slot.users and slot.state is not SessionState.ABSENT:
            self._watch.tell(LookForIdle())

    async def _start(self, slot: SessionSlot, spec: SessionSpec) -> None:
        spec.claim.take(slot, spec.agent.agent_id)
        slot.spec = spec
        keeper: Durable | InMemoryJournal
        try:
            if spec.sessions is not None:
                keeper = await self._stores.enter(spec.sessions)
                slot.may_pause = keeper.store.capabilities.acquires_again is not None
                if self._settings.pauses and slot.may_pause:
                    keeper = replace(keeper, ends=slot.ends_with_call)
                slot.buffer = keeper.buffer_of(spec.agent.session_id, spec.agent.agent_id, spec.patience)
            else:
                slot.may_pause = True
                given = spec.memory if spec.own else slot.memory or spec.memory
                assert given is not None
                keeper = given
                slot.memory = None if spec.own else keeper
            members = await self._members(slot, spec, keeper)
            # A session in another store may have the same name, and so may one whose start was cut, which just ends.
            name = take_name(f"session {spec.agent.session_id} {spec.agent.agent_id}", self._names)
            supervisor = slot.supervisor = await self.system.start(session_spec(name, joins=spec.joins))
            refs = {each.name: await self.system.start(each, under=supervisor) for each in members}
            if spec.sessions is not None:
                await self._stores.maintain(spec.sessions.key)
            session = slot.session = active_session(slot, spec.parts, supervisor, refs, self.wall)
            slot.step(SessionEvent.STARTED)
        except StartFailed as error:
            raise (failure := reason_of(error)) from failure.__cause__
        finally:
            if slot.session is None:
                with anyio.CancelScope(shield=True):
                    await self._forget(slot)
        if self.dispatcher is not None and spec.sessions is not None:
            self.opened.append(session)
        if spec.opened is not None:
            spec.opened(session)

    async def _members(
        self, slot: SessionSlot, spec: SessionSpec, keeper: Durable | InMemoryJournal
    ) -> Sequence[ChildSpec]:
        """The session's child specs, with its tool servers and memory stores started."""
        if spec.parts is not None:
            spec.parts.counts, spec.parts.gate = self.counts, self.gate
            self._models[id(spec.parts.model)] = spec.parts.model
            # `slot.servers` gets each use as it begins, so that a failure of one lets the others go.
            links = await self.servers.enter_all(spec.parts.tools.sources, slot.servers)
            spec.parts.tools = spec.parts.tools.opened(links)
        if spec.remembers is not None and not self._remembers:
            self._remembers = True  # Not before: a drain that is cut short reports each hook that it has skipped.
            self.system.on_shutdown(MEMORY, self._flush_memories)
        memories = await self.memories.enter(spec.remembers)
        slot.remembers = spec.remembers
        if spec.prepare is not None:
            await spec.prepare()
        node_host = NodeHost(self, slot.within or spec.claim) if self._pauses_apart else self
        return await spec.members(keeper, memories, node_host)

    async def _pause(self, slot: SessionSlot, by: float) -> bool:
        """Release the session, and keep its actors. False where that cannot be. `by`: see `ActiveSession.pause`."""
        slot.step(SessionEvent.PAUSE)
        if slot.session is None or not await slot.session.pause(by):
            return False
        slot.step(SessionEvent.RELEASED)
        return True

    async def _resume(self, slot: SessionSlot, spec: SessionSpec) -> bool:
        """Use a paused session again. False if its actors cannot be used, or its agent was started elsewhere since."""
        if slot.session is None or slot.spec is None or not slot.spec.claim.retake(slot):
            return False
        if not await slot.session.resume(spec):
            return False
        slot.step(SessionEvent.RESUMED)
        return True

    async def stop_unused(self, spec: SessionSpec) -> None:
        """Stop the sessions of this very agent that nobody uses: its own, and those of a node. Waits for tools in the
        background.
        """
        for slot in list(self.slots.values()):
            unused = slot.state is SessionState.PAUSED
            unused = unused or (slot.state is SessionState.ACTIVE and not slot.users and self._settings.pauses)
            if unused and slot.spec is not None and slot.spec.claim is spec.claim:
                await self._stop_unused(slot)

    async def _stop_oldest(self, most: int, counts: Callable[[SessionSlot], bool]) -> None:
        """Bound the number of paused sessions of those that count."""
        while True:
            paused = [
                slot
                for slot in self.slots.values()
                if slot.state is SessionState.PAUSED and not slot.changing and counts(slot)
            ]
            if len(paused) <= most:
                return
            await self._stop_unused(min(paused, key=lambda slot: slot.idle_since))

    async def _stop_unused(self, slot: SessionSlot) -> None:
        """Stop the session, unless somebody uses it behind the wait for its lock."""
        async with slot.locking():
            if not slot.users:
                await self._settle(slot, over=True)

    async def _stop(self, slot: SessionSlot, *, at_once: bool = False, by: float = math.inf) -> None:
        """Stop the session's actors, which commits its records and releases its lease, and leave its store. One that
        is paused has nothing to store, and must not write.
        """
        released = slot.state in (SessionState.PAUSING, SessionState.PAUSED)
        slot.step(SessionEvent.STOP)
        session = slot.session
        if session is not None and session.alive:
            if at_once and not released:
                session.hurry(self._settings.drain_timeout_s * _HURRY_SHARE)
                await session.finish_turns(at_once=True)
            elif not released:
                await session.finish(by)
            await self.system.stop(session.watched)
        await self._forget(slot)
        self._drop_empty(slot)

    def _drop_empty(self, slot: SessionSlot) -> None:
        """Drop the slot of a session without users that needs nothing kept here."""
        needed = slot.users or slot.called or slot.memory is not None or slot.state is not SessionState.ABSENT
        if not needed and self.slots.get(slot.key) is slot:
            del self.slots[slot.key]

    async def _forget(self, slot: SessionSlot) -> None:
        """Release everything that the session used, after the last of its actors has ended."""
        slot.step(SessionEvent.STOP)
        if slot.supervisor is not None:  # Its start may have been cut short.
            await self.system.stop(slot.supervisor)
            self._names.discard(slot.supervisor.name)
            slot.supervisor = None
        _free(slot)
        slot.session, slot.finishing = None, False
        remembers, slot.remembers = slot.remembers, None
        await self.memories.leave(remembers)
        while slot.servers:
            await self.servers.leave(slot.servers.pop(), keep=self._keeps)
        if slot.buffer is not None:
            slot.buffer = None
            await self._stores.leave(slot.key[0], keep=self._keeps)
        slot.step(SessionEvent.STOPPED)

    async def _passivate_idle(self) -> None:
        """Stop every session that was idle for `idle_timeout_s` and has no records waiting for its store, finish what
        was cut off, and try again to release those of which a store could not be told.
        """
        for slot in list(self.slots.values()):
            async with slot.locking():
                session, idle_s = slot.session, anyio.current_time() - slot.idle_since
                over = not slot.waits and idle_s >= self._settings.idle_timeout_s
                over = over and (session is None or not session.read_model.works)  # It may, without users.
                if not slot.users:
                    await self._settle(slot, over=over)
            if not slot.changing:
                slot.lock = None
            self._drop_empty(slot)
        await self._stores.finish_all_releases()

    async def _yield(self, store_key: str, session_id: str) -> None:
        """Stop a session that another process asks for, now or when its turns are over."""
        slots = [slot for key, slot in self.slots.items() if key[:2] == (store_key, session_id)]
        # Giving it up now would cut a turn, or lose records that the store has not taken: it is done when its users
        # have left.
        if any(slot.users or slot.waits for slot in slots):
            self._wanted.add((store_key, session_id))
            return
        self._wanted.discard((store_key, session_id))
        for slot in slots:
            await self._stop_unused(slot)
        await self._stores.finish_releases(store_key, session_id)

    async def _requested(self, store_key: str, session_id: str) -> None:
        """Give up a session that another process asks for, unless it is not to be yielded."""
        if self.yields_to is None or self.yields_to(session_id):
            await self._yield(store_key, session_id)

    async def _refuse(self) -> None:
        """Have `enter` raise `Unavailable` from now on."""
        self._refusing = True
        if self.gate.limited:
            self.gate.close()

    async def _finish_turns(self) -> None:
        """Let running turns finish. The phase's deadline cancels this task; remaining turns are cancelled later."""
        async with anyio.create_task_group() as group:
            for slot in list(self.slots.values()):
                if not slot.idle:
                    group.start_soon(self._finish_turns_of, slot)

    async def _finish_turns_of(self, slot: SessionSlot) -> None:
        async with slot.locking():  # The session may just be starting.
            session = slot.session
        if session is not None and slot.state is not SessionState.PAUSED:
            await session.finish_turns()

    async def _flush_memories(self) -> None:
        sessions = [slot.session for slot in self.slots.values() if slot.state is not SessionState.PAUSED]
        async with anyio.create_task_group() as group:
            for session in sessions:
                if session is not None and session.memory is not None:
                    group.start_soon(self._flush_memory, session)

    async def _flush_memory(self, session: ActiveSession) -> None:
        self.flushed.append(await session.flush_memory())

    async def _stop_all(self, *, only_idle: bool = False) -> None:
        """Commit every journal and release every lease: those of idle sessions together, beside the others."""
        async with anyio.create_task_group() as group:
            idle: list[SessionSlot] = []
            for slot in list(self.slots.values()):
                # These end in one step each: 10,000 of them take 0.9 s of CPU on SQLite.
                if slot.idle and self._keeps and slot.remembers is None:
                    idle.append(slot)
                elif not only_idle:
                    group.start_soon(self._stop_one, slot)
            # From here on leases are collected, and given back by one call for each store.
            self._stores.gather_releases()
            for number, slot in enumerate(idle):
                if not slot.idle or not await self._stop_idle(slot):
                    group.start_soon(self._stop_one, slot)
                # Running turns go on beside this, and the deadlines of the drain must be heard.
                if number % _IDLE_AT_ONCE == 0:
                    await checkpoint()
            await self._stores.release_gathered()

    async def _stop_idle(self, slot: SessionSlot) -> bool:
        """`_stop` for an idle session. False if something of it has to be waited for; it is then stopping."""
        if (session := slot.session) is None:
            return True
        async with slot.locking():
            slot.step(SessionEvent.STOP)
            session.agent.tell_now(FinishTurns(at_once=True))
            session.hurry(self._settings.drain_timeout_s * _HURRY_SHARE)
            if not self.system.begin_stop(session.watched):
                return False
            await self._forget(slot)
            self._drop_empty(slot)
            return True

    async def _stop_one(self, slot: SessionSlot) -> None:
        """A turn that still runs now is cancelled, which leaves a valid history."""
        async with slot.locking():
            await self._settle(slot, closing=True)

    async def _close(self) -> None:
        """Close the stores and models of the sessions, whose actors have ended."""
        for slot in self.slots.values():
            _free(slot)
        await self.memories.aclose()
        await self._stores.close_all()
        for model in self._models.values() if self._settings.closes_models else ():
            # Asked of the class: an object with `__getattr__` would say yes to any name.
            if hasattr(type(model), "aclose"):
                await model.aclose()


def _key(spec: SessionSpec, within: SlotClaim | None) -> SlotKey:
    return (*spec.key, id(within) if within is not None and spec.own else 0)


def _free(slot: SessionSlot) -> None:
    """Let the agent start elsewhere."""
    spec, slot.spec = slot.spec, None
    if spec is not None:
        spec.claim.free(slot)


def _log_not_stored(reports: Iterable[NotStored]) -> None:
    for report in reports:
        note(_LOG, ERROR, "records of a session were not stored", session=report.session_id, records=report.records)


class NodeHost:
    """The host of a loop's calls, as the nodes of one of these calls know it. An agent without a store that is a node
    there is not the agent that others call meanwhile: they are refused.
    """

    def __init__(self, host: Host, root: SlotClaim) -> None:
        """`root`: the claim of the graph or swarm that is called."""
        self._host, self._root = host, root
        self.wall, self.gate = host.wall, host.gate
        self.destinations = None  # What a node says is a part of its run.

    @property
    def refusing(self) -> bool:
        return bool(self._host.refusing)

    async def enter(self, spec: SessionSpec) -> ActiveSession:
        return await self._host.enter(spec, within=self._root)

    async def leave(self, spec: SessionSpec, *, ends: bool = False) -> None:
        await self._host.leave(spec, within=self._root, ends=ends)


def check_stored(lost: NotStored) -> None:
    """Raises for answered turns of an agent. Other turns raised it themselves; for a graph or swarm it is logged."""
    if lost.answered:
        text = "a turn that was answered could not be stored, and is lost"
        ids = {"session": lost.session_id, "turns": lost.turns, "records": lost.records}
        raise StoreUnavailable(text, **ids, cause=lost.error)


class SessionUse:
    """One use of a session. A class and not a generator, because every call makes one."""

    __slots__ = ("_deadline", "_host", "_spec")

    def __init__(self, host: Host, spec: SessionSpec, deadline: float) -> None:
        self._host, self._spec, self._deadline = host, spec, deadline

    async def __aenter__(self) -> ActiveSession:
        return await self._host.enter(self._spec, self._deadline)

    async def __aexit__(self, *exc_info: object) -> None:
        lost = await self._host.leave(self._spec)
        if lost is not None and exc_info[0] is None:
            check_stored(lost)


_ambient: RunVar[Host | None] = RunVar("repertory_host", None)


def ambient_host() -> Host | None:
    """The host of the running event loop, if any: agents called there share it."""
    return _ambient.get()


_LASTING = SupervisorSettings(intensity=sys.maxsize, failures_max=sys.maxsize)  # The program alone ends a runtime.
