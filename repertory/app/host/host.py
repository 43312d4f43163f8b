"""A host: one actor system with its stores, and the sessions that are active on it.

The first user of a session starts it, and all other users on the same host share it. After the last one left, the host
stops its actors: at once (a call outside a `Runtime` leaves nothing behind), or after an idle time.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import anyio
from anyio.lowlevel import RunVar, checkpoint, current_token
from msgspec import Struct
from msgspec.structs import replace

from repertory.actors.call import deadline as caller_deadline
from repertory.actors.in_memory_journal import InMemoryJournal
from repertory.actors.journal import LATE_S
from repertory.actors.leases import Durable, SessionCounts
from repertory.actors.writer import CommitBuffer, CommitBuffers, NotStored
from repertory.app.host.session import ActivationLock, ActiveSession, active_session, session_spec, wall_clock
from repertory.app.host.shared import (
    ALONE,
    CLOSE,
    COMMIT,
    MEMORY,
    REFUSE,
    TURNS,
    GiveUp,
    LookForIdle,
    OpenMemories,
    OpenStores,
    ServerUse,
    ToolServers,
    drain_phases,
    giver_spec,
    idle_watch_spec,
    reason_of,
    take_name,
)
from repertory.app.host.turn_gate import HAS_ENDED, NOT_OPEN, SHUTS_DOWN, TurnGate
from repertory.backends.shields import Shields
from repertory.core.retry import DEFAULT_PATIENCE, StorePatience
from repertory.errors import Invalid, StartFailed, StoreUnavailable, Unavailable
from repertory.logs import ERROR, note
from repertory.runtime.spec import ChildSpec, Strategy, SupervisorSettings
from repertory.runtime.system import ActorSystem, OnFatal, SystemSettings

if TYPE_CHECKING:
    from threading import Thread

    from repertory.actors.memory.consumer import MemoryParts
    from repertory.app.host.dispatcher import Awakening, LookForDue
    from repertory.app.host.session import SessionSpec
    from repertory.app.sessions.sessions import SessionPlace
    from repertory.backends.peer_ports import PeerDirectory
    from repertory.backends.ports import Model, SessionStore
    from repertory.core.memory.progress import StoreFlush
    from repertory.runtime.ref import ActorRef

_LOG = logging.getLogger("repertory.app")

Key: TypeAlias = tuple[str, str, str]
PlaceKey: TypeAlias = tuple[str, str, str, int]
"""The key of a session spec, and whose node it is, if only that orchestrator may use it so; otherwise 0."""
PAUSED_S = 60.0
"""How long the actors of a session outlive its last call, outside a `Runtime`."""
PAUSED_MAX = 256
"""How many sessions may be paused; beyond that the one that was unused for the longest time is stopped."""
SERVED_PAUSED_MAX = 8
"""The same of sessions with tool servers, each of which may be a process."""
_HURRY_SHARE = 0.05
"""Share of the drain timeout: how long a call that is cut short still waits for its store."""
_IDLE_AT_ONCE = 64
"""How many idle sessions a drain stops before other tasks run."""
ShutdownHook = Callable[[], Awaitable[None]]


class HostSettings(Struct, frozen=True, kw_only=True):
    """The settings of a host."""

    idle_timeout_s: float = 0.0
    """How long a session without users stays active; 0 stops it at once."""
    drain_timeout_s: float = 25.0
    on_fatal: OnFatal = "raise"
    """The reaction to the loss of all actors; see `SystemSettings`."""
    patience: StorePatience = DEFAULT_PATIENCE
    """How long sessions wait for a store that cannot be written."""
    ambient: bool = True
    """Whether agents called in the same event loop share this host."""
    alone: bool = False
    """Whether the host serves one agent alone: a call of it, or a block around many. Its callers get errors from their
    own calls, and all that it started ends as soon as it is left.
    """
    pauses: bool = False
    """Whether a session is released at the end of each call, and only its actors stay for `idle_timeout_s`. Otherwise
    it stays owned meanwhile.
    """
    closes_models: bool = True
    """Whether the host closes the models that were used when it is left."""
    wall: Callable[[], float] = wall_clock
    """Gives epoch seconds."""


class _Place(Struct):
    """The state of one session on the host."""

    _lock: anyio.Lock | None = None
    """While somebody holds it or waits for it."""
    active: ActiveSession | None = None
    within: ActivationLock | None = None
    """For a node: the lock of the orchestrator that is called (see `NodeHost`)."""
    paused: bool = False
    """Whether the active session may be released: it must be resumed before it is used."""
    ending: bool = False
    """Whether it is being stopped: that must be finished before it is started again."""
    cut: bool = False
    """Whether a caller was cancelled by asyncio itself, which no shield stops, while it entered or left."""
    name: str = ""
    """The name of its supervisor, while it is active."""
    supervisor: ActorRef[object] | None = None
    """Its supervisor, if it has one, also while it starts."""
    store_key: str | None = None
    may_pause: bool = False
    """Whether its store lets it pause between calls."""
    spec: SessionSpec | None = None
    """The session spec that it was started from, whose lock is held."""
    remembers: MemoryParts | None = None
    """The memory stores that the session uses."""
    servers: list[ServerUse] = []
    """The tool servers that the session uses."""
    users: int = 0
    memory: InMemoryJournal | None = None
    """The journal of a session without a store."""
    idle_since: float = 0.0
    active_since: float = 0.0
    by: float = -math.inf
    """The latest deadline of its users since it was last stopped."""
    buffer: CommitBuffer | None = None
    """The accepted records that are not stored yet, while it is active."""

    @property
    def lock(self) -> anyio.Lock:
        """Held while it starts or stops."""
        self._lock = lock = self._lock or anyio.Lock(fast_acquire=True)
        return lock

    @property
    def locked(self) -> bool:
        return self._lock is not None and self._lock.locked()

    def drop_lock(self) -> None:
        """Nobody needs it any more, usually: one that is free weighs as much as the rest."""
        if not self.locked:
            self._lock = None

    @property
    def waits(self) -> bool:
        """Whether records wait for a store that does not take them."""
        return self.buffer is not None and self.buffer.error is not None and self.buffer.count > 0

    @property
    def idle(self) -> bool:
        """Whether it is an active agent's session of which nobody wants anything now."""
        active = self.active
        if active is None or self.users or self.paused or self.ending or self.locked:
            return False
        return active.alive and active.orchestrator is None and not active.read_model.in_a_turn

    def is_paused_by(self, lock: ActivationLock) -> bool:
        """Whether it is the paused session of the agent, graph or swarm with this lock."""
        return self.paused and self.spec is not None and self.spec.lock is lock


class Host:
    """An actor system with sessions on it. An async context manager: on exit, all that it started has ended."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
        self.gate = TurnGate()
        """The gate that every turn of its sessions passes; its limits outlive the block."""
        self._begin()

    def _begin(self) -> None:
        settings, self._loop, self._shields = self._settings, cast("object", None), Shields()
        timeout_s, on_fatal, alone = settings.drain_timeout_s, settings.on_fatal, settings.alone
        phases, supervision = ((ALONE,), _TOGETHER) if alone else (drain_phases(timeout_s), _LASTING)
        given = SystemSettings(phases=phases, grace_s=timeout_s, supervision=supervision, on_fatal=on_fatal)
        # No dead letters: one may have a whole prompt.
        self.system = ActorSystem(replace(given, dead_letters_kept=0, on_kill=self._shields.cut, not_open=NOT_OPEN))
        self.buffers = CommitBuffers(settings.patience)
        """Per session and agent: the accepted records that are not stored yet."""
        self._keeps = settings.idle_timeout_s > 0 and not settings.pauses
        """Whether sessions stay owned, and what they use stays open, while nobody uses them."""
        self.counts = SessionCounts()
        """What has happened to its sessions so far."""
        self._stores = OpenStores(self.system, self.buffers, self.counts, self._requested if self._keeps else None)
        self.servers = ToolServers(self.system)
        """The tool servers of sessions, and of clients that are open by hand."""
        self.memories = OpenMemories(self.system)
        """The memory store actors of sessions, and of programs that ask a store."""
        self._remembers = False
        """Whether any session has used a memory store."""
        self.places: dict[PlaceKey, _Place] = {}
        """Its sessions, to be looked at from any thread."""
        self._watch: ActorRef[LookForIdle] | None = None
        self._giver: ActorRef[GiveUp] | None = None
        self._paused: dict[PlaceKey, _Place] = {}
        """The paused sessions, in the order in which they were used."""
        self._wanted: set[tuple[str, str]] = set()
        """Sessions in use that other processes have asked for, each by its store's key and its id."""
        self._unstored: list[tuple[ActivationLock, CommitBuffer]] = []
        """What the stopped nodes of calls that still run could not store, by the orchestrator that is called."""
        self._names: set[str] = set()
        self._refusing = False
        self.opened: list[tuple[ActiveSession, _Place]] = []
        """Active sessions of which it is not known that none of their turns was cut short, where a dispatcher asks."""
        self.dispatcher: ActorRef[LookForDue] | None = None
        """Looks for what nobody waits for, in a runtime that does that."""
        self.heeds: Callable[[str], bool] | None = None
        """Whether a session is given up that another process asks for; None: always."""
        self.flushed: list[Mapping[str, StoreFlush]] = []
        """By session: what memory stores stored during the drain, and what not."""
        self._models: dict[int, Model] = {}
        self._outer: Host | None = None

    def renew(self) -> None:
        """Make it ready to be entered again, in any event loop, after its block has ended."""
        self.gate.open()
        self._begin()

    @property
    def elsewhere(self) -> bool:
        """True if its block was entered in another event loop."""
        return self._loop is not None and self._loop is not current_token().native_token

    def check_loop(self) -> None:
        """Errors: `Invalid` in another event loop than that of its block, before that has ended: there, nothing would
        wake who waits.
        """
        if self.elsewhere and self.refusing != HAS_ENDED:
            raise Invalid("the runtime is open in another event loop or thread: call it there")

    @property
    def lost_its_loop(self) -> bool:
        """True if the event loop of its block was closed in the middle of it, without ending its tasks."""
        return self._loop is not None and getattr(self._loop, "is_closed", bool)()

    async def __aenter__(self) -> Host:
        with self._shields.entered():
            await self.system.__aenter__()
        self._loop = current_token().native_token
        if self._settings.alone:
            return self
        self.system.on_shutdown(REFUSE, self._refuse)
        self.system.on_shutdown(TURNS, self._finish_turns)
        self.system.on_shutdown(COMMIT, self._shields.around(self._rest_all))
        self.system.on_shutdown(CLOSE, self._shields.around(self._close))
        if self._settings.ambient:
            self._outer = _ambient.get()
            _ambient.set(self)
        if self._settings.idle_timeout_s > 0:
            try:
                watch = idle_watch_spec(self._settings.idle_timeout_s / 4, self._passivate_idle)
                self._watch = await self.system.start(watch)
                self._giver = await self.system.start(giver_spec(self._yield))
            except BaseException:
                await self.__aexit__(*sys.exc_info())
                raise
        return self

    async def __aexit__(self, *exc_info: Any) -> bool | None:
        if self._settings.ambient:
            self._be_ambient_no_more()
        try:
            return await self.system.__aexit__(*exc_info)
        finally:
            if self._settings.alone:
                with anyio.CancelScope(shield=True):
                    await self._close()
            _log_not_stored(() if self._settings.alone else self.buffers.not_stored())

    async def wake_due(self, sessions: SessionPlace, awakening: Awakening) -> None:
        """From now on, wake sessions of this place that owe work."""
        from repertory.app.host.dispatcher import dispatcher_spec  # loaded when used

        durable = await self._stores.enter(sessions)
        if durable.store.capabilities.wakes or durable.store.call_box() is not None:
            spec = dispatcher_spec(durable.store, awakening, self.wall, lambda: self._refusing)
            self.dispatcher = await self.system.start(spec)
        else:
            await self._stores.leave(sessions.key, keep=True)

    async def store_of(self, sessions: SessionPlace, elsewhere: PeerDirectory | None = None) -> SessionStore:
        """The store of this place, maintained, and open until the host is left. `elsewhere`: see `Shared.share_in`."""
        durable = await self._stores.enter(sessions)
        if elsewhere is not None:
            durable.store.share_in(elsewhere)
        await self._stores.maintain(sessions.key)
        return durable.store

    def holds(self, spec: SessionSpec) -> bool:
        """Whether the session is active here."""
        place = self.places.get(_key(spec, None))
        return place is not None and not place.ending and place.active is not None and place.active.alive

    def knows(self, spec: SessionSpec) -> bool:
        """True if the session was brought to life here; one in memory is known from then on."""
        return _key(spec, None) in self.places

    async def give_up_idle(self) -> None:
        """Stop all idle sessions now, in a drain before the others."""
        await self._rest_all(only_idle=True)

    async def let_go(self, spec: SessionSpec) -> None:
        """Stop an idle session now instead of after its idle time; one that is in use when its users have left."""
        if self._keeps:
            await self._yield(*spec.key[:2])

    def abandon(self) -> list[Thread]:
        """Close the stores without the event loop, which was closed, and let agents start elsewhere. Returns the
        threads that still close.
        """
        for place in list(self.places.values()):
            self._release(place)
        return self._stores.abandon_all()

    def _be_ambient_no_more(self) -> None:
        """Hosts of one event loop may end in any order, so this one may not be the current one."""
        inner = _ambient.get()
        if inner is self:
            _ambient.set(self._outer)
            return
        while inner is not None and inner._outer is not self:
            inner = inner._outer
        if inner is not None:
            inner._outer = self._outer

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
    def alone(self) -> bool:
        """Whether the host serves one agent alone."""
        return self._settings.alone

    @property
    def refusing(self) -> str:
        """The reason for which the host takes no new users and cuts turns short; empty while it does neither."""
        return "" if not self._refusing else SHUTS_DOWN if self.system.report is None else HAS_ENDED

    async def enter(
        self, spec: SessionSpec, deadline: float = math.inf, *, within: ActivationLock | None = None
    ) -> ActiveSession:
        """Adds a user to the session, which is started if necessary. Each `enter` needs one `leave`.

        `deadline`: as for `session`. The deadline of an enclosing call holds as well. `within`: see `NodeHost`.
        """
        self.check_loop()
        if self._refusing:
            raise Unavailable(self.refusing, session=spec.agent.session_id)
        key = _key(spec, within)
        place = self.places.get(key)
        if place is None:
            place = self.places[key] = _Place(idle_since=anyio.current_time())
        place.users += 1
        by = min(deadline, caller_deadline())
        place.by = max(place.by, by)
        active = place.active
        ready = active is not None and active.alive and not place.paused and not place.ending
        if active is not None and ready and not place.locked:
            return active
        try:
            with anyio.CancelScope(deadline=by + LATE_S):
                async with place.lock:
                    if place.ending:
                        await self._rest(key, place)
                    if place.paused and not await self._resume(key, place, spec):
                        await self._stop(key, place)
                    if place.active is not None and not place.active.alive:
                        await self._forget(place)
                    place.within = within
                    return place.active or await self._activate(place, spec)
            raise Unavailable("the session was not opened in the time of this call", session=spec.agent.session_id)
        except BaseException:
            place.users -= 1
            self._note_cut(place)
            if not place.locked:  # Otherwise the task that stops the session drops the place.
                self._drop_empty(key, place)
            raise

    async def leave(self, spec: SessionSpec, *, within: ActivationLock | None = None) -> NotStored | None:
        """Removes a user; the last one stops or pauses the session, unless it may idle. Cancellation waits for that.
        A session that another process asks for is given up soon afterwards. Returns what an agent could not store, and
        is lost, where sessions end with their calls.
        """
        key = _key(spec, within)
        place = self.places[key]
        place.users -= 1
        place.idle_since = anyio.current_time()
        if not place.users and self._giver is not None and key[:2] in self._wanted:
            # Not here: it waits for all of the session's turns, and this may be a part of one.
            self._giver.tell(GiveUp(store_key=key[0], session_id=key[1]))
        if place.users or (self._keeps and not spec.own):
            place.drop_lock()
            return None
        try:
            with anyio.CancelScope(shield=True):
                lost = await self._leave_last(key, place)
                return lost if spec.parts is not None else self._log_lost(spec.lock, lost)
        except BaseException:
            self._note_cut(place)
            raise
        raise AssertionError

    async def _leave_last(self, key: PlaceKey, place: _Place) -> NotStored | None:
        async with place.lock:
            if place.users:
                return None
            by, place.by = place.by, -math.inf
            if not await self._pause(key, place, by):
                buffer = place.buffer
                await self._rest(key, place, by=by)
                if buffer is not None and self._settings.pauses and not self._settings.ambient:
                    if place.within is None:
                        return self.buffers.drop(buffer)
                    if buffer.not_stored() is not None:  # The node may work again in the same call.
                        self._unstored.append((place.within, buffer))
        if place.servers:
            await self._stop_oldest(served=True)
        if len(self._paused) > PAUSED_MAX:
            await self._stop_oldest(served=False)
        return None

    def _log_lost(self, root: ActivationLock, lost: NotStored | None) -> None:
        """The call of a graph or swarm has ended: drop what it and its nodes could not store."""
        left = {id(buffer): buffer for lock, buffer in self._unstored if lock is root}
        self._unstored = [each for each in self._unstored if each[0] is not root]
        reports = [self.buffers.drop(buffer) for buffer in left.values() if buffer.not_stored() is not None]
        _log_not_stored(report for report in (lost, *reports) if report is not None)

    def _note_cut(self, place: _Place) -> None:
        """Have the session released, or its end finished, after its last user was cut short."""
        if self._watch is not None and not place.users and (place.ending or place.paused or self._settings.pauses):
            place.cut = True
            self._watch.tell(LookForIdle())

    async def _activate(self, place: _Place, spec: SessionSpec) -> ActiveSession:
        spec.lock.acquire(spec.agent.agent_id)
        place.spec = spec
        # A session in another store may have the same name.
        place.name = take_name(f"session {spec.agent.session_id} {spec.agent.agent_id}", self._names)
        supervisor: ActorRef[object] | None = None
        refs: dict[str, ActorRef[Any]] = {}
        keeper: Durable | InMemoryJournal
        try:
            if spec.sessions is not None:
                keeper = await self._stores.enter(spec.sessions)
                place.may_pause = keeper.store.capabilities.acquires_again
                place.store_key = spec.sessions.key
                place.buffer = keeper.buffer_of(spec.agent.session_id, spec.agent.agent_id, spec.patience)
            else:
                place.may_pause = True
                given = spec.memory if spec.own else place.memory or spec.memory
                assert given is not None
                keeper = given
                place.memory = None if spec.own else keeper
            members = await self._members(place, spec, keeper)
            if not self._settings.alone:
                supervisor = place.supervisor = await self._start_supervisor(place)
            for member in members:
                refs[member.name] = await self.system.start(member, under=supervisor)
            if place.store_key is not None:
                await self._stores.maintain(place.store_key)
            place.active_since = anyio.current_time()
            given = spec.parts, supervisor or refs["agent"], refs, self.wall
            active = place.active = active_session(*given, stored=spec.sessions is not None)
        except StartFailed as error:
            raise (failure := reason_of(error)) from failure.__cause__
        finally:
            if place.active is None and not self._settings.alone:
                with anyio.CancelScope(shield=True):
                    await self._forget(place)
        if self.dispatcher is not None and spec.sessions is not None:
            self.opened.append((active, place))
        spec.lock.activated(active)
        if spec.opened is not None:
            spec.opened(active)
        return active

    async def _start_supervisor(self, place: _Place) -> ActorRef[object]:
        try:
            return await self.system.start(session_spec(place.name))
        except BaseException:
            place.name = ""  # The supervisor may just be ending: nobody gets its name again.
            raise

    async def _members(
        self, place: _Place, spec: SessionSpec, keeper: Durable | InMemoryJournal
    ) -> Sequence[ChildSpec]:
        """The session's child specs, with its tool servers and memory stores started."""
        if spec.parts is not None:
            spec.parts.counts, spec.parts.gate = self.counts, self.gate
            self._models[id(spec.parts.model)] = spec.parts.model
            links = await self.servers.enter_all(spec.parts.tools.sources, place.servers)
            spec.parts.tools = spec.parts.tools.opened(links)
        if spec.remembers is not None and not self._remembers:
            self._remembers = True
            if not self._settings.alone:
                self.system.on_shutdown(MEMORY, self._flush_memories)
        memories = await self.memories.enter(spec.remembers)
        place.remembers = spec.remembers
        if spec.prepare is not None:
            await spec.prepare()
        apart = self._settings.pauses and not self._settings.ambient
        return await spec.members(keeper, memories, NodeHost(self, place.within or spec.lock) if apart else self)

    async def _pause(self, key: PlaceKey, place: _Place, by: float = math.inf) -> bool:
        """Release the session, and keep its actors. False where that cannot be. `by`: see `ActiveSession.pause`."""
        active = place.active
        if not self._settings.pauses or active is None or not place.may_pause:
            return False
        if not self.servers.may_stay(place.servers):
            return False
        place.paused = True
        if not await active.pause(by):
            place.paused = False
            return False
        self._paused[key] = place
        if place.spec is not None:
            place.spec.lock.pause(active)
        return True

    async def _resume(self, key: PlaceKey, place: _Place, spec: SessionSpec) -> bool:
        """Use a paused session again. False if its actors cannot serve this call."""
        active, before = place.active, place.spec
        if (
            active is None
            or before is None
            or not spec.continues(before)
            or not self.servers.still_serve(place.servers)
        ):
            return False
        if not before.lock.resume(active):
            return False
        if await active.resume():
            self._paused.pop(key, None)
            place.paused = False
        return not place.paused

    async def _stop(self, key: PlaceKey, place: _Place) -> None:
        """Stop a paused session, which has nothing to store, and must not write."""
        place.ending = True
        if place.active is not None:
            await self.system.stop(place.active.watched)
        self._paused.pop(key, None)
        await self._forget(place)
        self._drop_empty(key, place)

    async def stop_paused(self, spec: SessionSpec) -> None:
        """Stop the sessions of this very agent that are paused: its own, and those of a node."""
        for key, place in list(self._paused.items()):
            if place.is_paused_by(spec.lock):
                async with place.lock:
                    if place.is_paused_by(spec.lock):
                        await self._stop(key, place)

    async def _stop_oldest(self, *, served: bool) -> None:
        """Bound the number of paused sessions. `served`: look only at those with tool servers."""
        most = SERVED_PAUSED_MAX if served else PAUSED_MAX
        while len(self._paused) > most:
            paused = [(key, place) for key, place in self._paused.items() if place.servers or not served]
            if len(paused) <= most:
                return
            key, place = paused[0]
            del self._paused[key]
            async with place.lock:
                if place.paused:
                    await self._stop(key, place)

    async def _rest(self, key: PlaceKey, place: _Place, *, at_once: bool = False, by: float = math.inf) -> None:
        """Stop the session's actors, which commits its records and releases its lease, and leave its store."""
        active = place.active
        if place.paused:
            await self._stop(key, place)
            return
        place.ending = True
        if active is not None and active.alive:
            if at_once:
                active.hurry(self._settings.drain_timeout_s * _HURRY_SHARE)
                await active.finish_turns(at_once=True)
            else:
                await active.finish(by)
            if self._settings.alone:
                return  # The actors end with the host.
            await self.system.stop(active.watched)
        await self._forget(place)
        self._drop_empty(key, place)

    def _drop_empty(self, key: PlaceKey, place: _Place) -> None:
        """Drop the place of a session without users that needs nothing kept here."""
        unused = place.active is None and place.memory is None and not place.users and place.spec is None
        if unused and not place.ending and self.places.get(key) is place:
            del self.places[key]

    async def _forget(self, place: _Place) -> None:
        """Release everything that the session used, after the last of its actors has ended."""
        place.ending = True
        if place.supervisor is not None:  # Its start may have been cut short.
            await self.system.stop(place.supervisor)
            place.supervisor = None
        self._release(place)
        place.active, place.paused, place.buffer = None, False, None
        self._names.discard(place.name)
        remembers, place.remembers = place.remembers, None
        await self.memories.leave(remembers)
        while place.servers:
            await self.servers.leave(place.servers.pop(), keep=self._keeps)
        store_key, place.store_key = place.store_key, None
        if store_key is not None:
            await self._stores.leave(store_key, keep=self._keeps)
        place.ending = False

    def _release(self, place: _Place) -> None:
        """From now on the session may start elsewhere."""
        spec, place.spec = place.spec, None
        if spec is not None:
            spec.lock.release(place.active)

    async def _passivate_idle(self) -> None:
        """Stop every session that was idle for `idle_timeout_s` and has no records waiting for its store, and try again
        to release those of which a store could not be told.
        """
        for key, place in list(self.places.items()):
            async with place.lock:
                if place.cut and not place.users:
                    place.cut = False
                    if place.ending or not await self._pause(key, place):
                        await self._rest(key, place)
                idle_s = anyio.current_time() - place.idle_since
                idle = not place.users and not place.waits and idle_s >= self._settings.idle_timeout_s
                active = place.active
                if idle and active is not None and not active.read_model.in_a_turn:  # A timer may have begun one.
                    await self._rest(key, place)
            self._drop_empty(key, place)
        await self._stores.give_up_all_owed()

    async def _yield(self, store_key: str, session_id: str) -> None:
        """Another process asks for a session: stop it, now or when its turns are over."""
        places = {key: place for key, place in self.places.items() if key[:2] == (store_key, session_id)}
        if any(place.users or place.waits for place in places.values()):
            self._wanted.add((store_key, session_id))
            return
        self._wanted.discard((store_key, session_id))
        for key, place in places.items():
            async with place.lock:
                if not place.users:
                    await self._rest(key, place)
        await self._stores.give_up_owed(store_key, session_id)

    async def _requested(self, store_key: str, session_id: str) -> None:
        """Another process asks for a session."""
        if self.heeds is None or self.heeds(session_id):
            await self._yield(store_key, session_id)

    async def _refuse(self) -> None:
        """From now on `enter` raises `Unavailable`."""
        self._refusing = True
        if self.gate.limited:
            self.gate.close()

    async def _finish_turns(self) -> None:
        """Let running turns finish. The phase's deadline cancels this task; remaining turns are cancelled later."""
        async with anyio.create_task_group() as group:
            for place in list(self.places.values()):
                if not place.idle:
                    group.start_soon(self._finish_turns_of, place)

    async def _finish_turns_of(self, place: _Place) -> None:
        async with place.lock:  # The session may just be starting.
            active = place.active
        if active is not None and not place.paused:
            await active.finish_turns()

    async def _flush_memories(self) -> None:
        active = [place.active for place in self.places.values() if place.active is not None and not place.paused]
        async with anyio.create_task_group() as group:
            for session in (each for each in active if each.memory is not None):
                group.start_soon(self._flush_memory, session)

    async def _flush_memory(self, session: ActiveSession) -> None:
        self.flushed.append(await session.flush_memory())

    async def _rest_all(self, *, only_idle: bool = False) -> None:
        """Commit every journal and release every lease: those of idle sessions together, beside the others."""
        async with anyio.create_task_group() as group:
            idle: list[tuple[PlaceKey, _Place]] = []
            for key, place in list(self.places.items()):
                if place.idle and self._keeps and place.remembers is None:
                    idle.append((key, place))
                elif not only_idle:
                    group.start_soon(self._rest_one, key, place)
            self._stores.gather_releases()
            for number, (key, place) in enumerate(idle):
                if not place.idle or not await self._rest_idle(key, place):
                    group.start_soon(self._rest_one, key, place)
                if number % _IDLE_AT_ONCE == 0:
                    await checkpoint()
            await self._stores.release_gathered()

    async def _rest_idle(self, key: PlaceKey, place: _Place) -> bool:
        """`_rest` for an idle session. False if something of it has to be waited for; it is then stopping."""
        if (active := place.active) is None:
            return True
        async with place.lock:
            place.ending = True
            active.refuse_turns()
            active.hurry(self._settings.drain_timeout_s * _HURRY_SHARE)
            if not self.system.begin_stop(active.watched):
                return False
            await self._forget(place)
            self._drop_empty(key, place)
            return True

    async def _rest_one(self, key: PlaceKey, place: _Place) -> None:
        """A turn that still runs now is cancelled, which leaves a valid history."""
        async with place.lock:
            await self._rest(key, place, at_once=True)

    async def _close(self) -> None:
        """Close the stores and models of the sessions, whose actors have ended."""
        for place in self.places.values():
            self._release(place)
        if not self._settings.alone:
            await self.memories.aclose()
        await self._stores.close_all()
        for model in self._models.values() if self._settings.closes_models else ():
            if hasattr(type(model), "aclose"):
                await model.aclose()


def _key(spec: SessionSpec, within: ActivationLock | None) -> PlaceKey:
    return (*spec.key, id(within) if within is not None and spec.own else 0)


def _log_not_stored(reports: Iterable[NotStored]) -> None:
    for report in reports:
        note(_LOG, ERROR, "records of a session were not stored", session=report.session_id, records=report.records)


class NodeHost:
    """The host of a loop's calls, as the nodes of one of these calls know it. An agent without a store that is a node
    there is not the agent that others call meanwhile: they are refused.
    """

    def __init__(self, host: Host, root: ActivationLock) -> None:
        """`root`: the lock of the graph or swarm that is called."""
        self._host, self._root = host, root
        self.wall, self.gate = host.wall, host.gate

    @property
    def refusing(self) -> bool:
        return bool(self._host.refusing)

    async def enter(self, spec: SessionSpec) -> ActiveSession:
        return await self._host.enter(spec, within=self._root)

    async def leave(self, spec: SessionSpec) -> None:
        await self._host.leave(spec, within=self._root)


def check_stored(reports: Iterable[NotStored]) -> None:
    """Raises for answered turns of an agent. Other turns raised it themselves; for a graph or swarm it is logged."""
    for report in reports:
        if report.answered:
            text = "a turn that was answered could not be stored, and is lost"
            lost = {"session": report.session_id, "turns": report.turns, "records": report.records}
            raise StoreUnavailable(text, **lost, cause=report.error)


class SessionUse:
    """One use of a session. A class and not a generator, because every call makes one."""

    __slots__ = ("_blueprint", "_deadline", "_host")

    def __init__(self, host: Host, spec: SessionSpec, deadline: float) -> None:
        self._host = host
        self._blueprint = spec
        self._deadline = deadline

    async def __aenter__(self) -> ActiveSession:
        return await self._host.enter(self._blueprint, self._deadline)

    async def __aexit__(self, *exc_info: object) -> None:
        lost = await self._host.leave(self._blueprint)
        if lost is not None and exc_info[0] is None:
            check_stored([lost])


_ambient: RunVar[Host | None] = RunVar("repertory_host", None)


def ambient_host() -> Host | None:
    """The host of the running event loop, if any: agents called there share it."""
    return _ambient.get()


_LASTING = SupervisorSettings(intensity=sys.maxsize, failures_max=sys.maxsize)  # The program alone ends a runtime.
_TOGETHER = SupervisorSettings(strategy=Strategy.REST_FOR_ONE)
"""For such a host: the session's actors are children of the root, each behind those that it needs."""
