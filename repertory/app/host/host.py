"""A host: one actor system with its stores, and the sessions that are active on it.

A session is brought to life by the first one who needs it and shared by everybody else on the same host. When the
last one has left it is put to rest: at once (a call outside a `Runtime` holds nothing afterwards), or after an idle
time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
from anyio.lowlevel import RunVar

from repertory.actors.call import deadline as caller_deadline
from repertory.actors.commit_buffer import CommitBuffer, CommitBuffers
from repertory.actors.in_memory_journal import InMemoryJournal
from repertory.actors.leases import Durable
from repertory.actors.session import session_spec
from repertory.app.host.session import ActiveSession, active_session
from repertory.app.host.shared import OpenStores, ServerUse, ToolServers, reason_of
from repertory.app.memory.open_memories import OpenMemories
from repertory.core.outage import DEFAULT_PATIENCE, StorePatience
from repertory.errors import StartFailed, Unavailable
from repertory.runtime.actor import Actor
from repertory.runtime.drain import DrainPhase
from repertory.runtime.message import Next, carry_on
from repertory.runtime.spec import ChildSpec, Strategy, SupervisorSettings
from repertory.runtime.system import ActorSystem, OnFatal, SystemSettings

if TYPE_CHECKING:
    from repertory.actors.leases import Durable
    from repertory.actors.memory.consumer import MemoryParts
    from repertory.app.host.session import SessionSpec
    from repertory.backends.ports import Model
    from repertory.core.memory.progress import StoreFlush
    from repertory.runtime.ref import ActorRef

_LOG = logging.getLogger("repertory.app")

Key: TypeAlias = tuple[str, str, str]
_HURRY_SHARE = 0.05
"""Of the whole drain: how long a call that is cut short still waits for its store."""
ShutdownHook = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """How a host behaves."""

    idle_timeout_s: float = 0.0
    """How long a session that nobody uses stays active; 0 puts it to rest at once."""
    drain_timeout_s: float = 25.0
    on_fatal: OnFatal = "raise"
    """What to do when the actors are lost for good; see `SystemSettings`."""
    patience: StorePatience = DEFAULT_PATIENCE
    """What sessions do while their store cannot be written."""
    ambient: bool = True
    """Whether agents called in the same event loop share this host."""
    alone: bool = False
    """Whether it lives for one agent alone: for a call of it, or for a block around many. Its callers learn from their
    own calls what goes wrong, and all that it started ends at once when it is left.
    """
    closes_models: bool = True
    """Whether the models that were used are closed when it is left."""


@dataclass(slots=True)
class _Place:
    """Everything the host knows of one session."""

    lock: anyio.Lock = field(default_factory=partial(anyio.Lock, fast_acquire=True))
    active: ActiveSession | None = None
    name: str = ""
    """Among the actors, while it is active."""
    store_key: str | None = None
    spec: SessionSpec | None = None
    """What it was brought to life from, whose lock is held."""
    remembers: MemoryParts | None = None
    """The memory stores that the session uses."""
    servers: list[ServerUse] = field(default_factory=list[ServerUse])
    """The tool servers that the session uses."""
    users: int = 0
    memory: InMemoryJournal | None = None
    """What a session in memory goes on from."""
    idle_since: float = 0.0
    by: float = -math.inf
    """The last deadline of those who have used it since it was put to rest by the last of them."""
    buffer: CommitBuffer | None = None
    """What the session has accepted and its store has not, while it is active."""

    @property
    def waits(self) -> bool:
        """Whether something waits for a store that does not take it."""
        return self.buffer is not None and self.buffer.error is not None and self.buffer.count > 0


class Host:
    """An actor system with sessions on it. An async context manager: when it is left, all that it started has ended."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
        phases = (_ALONE,) if settings.alone else drain_phases(settings.drain_timeout_s)
        self.system = ActorSystem(
            SystemSettings(
                phases=phases,
                grace_s=settings.drain_timeout_s,
                supervision=_TOGETHER if settings.alone else SupervisorSettings(),
                on_fatal=settings.on_fatal,
            )
        )
        self.buffers = CommitBuffers(settings.patience)
        """What sessions have accepted and their stores have not."""
        self._stores = OpenStores(self.system, self.buffers, self._yield if settings.idle_timeout_s > 0 else None)
        self.servers = ToolServers(self.system)
        """The tool servers that run for sessions, and for clients that are open by hand."""
        self.memories = OpenMemories(self.system)
        """The actors of memory stores that run for sessions, and for programs that ask a store."""
        self._remembers = False
        """Whether any session has used a memory store."""
        self._places: dict[Key, _Place] = {}
        self._wanted: set[tuple[str, str]] = set()
        """Sessions in use, each by its store and its id, that other processes have asked for."""
        self._names: set[str] = set()
        self._refusing = False
        self.flushed: list[Mapping[str, StoreFlush]] = []
        """What memory stores have taken in in the drain, and what not, by session."""
        self._models: dict[int, Model] = {}
        self._outer: Host | None = None

    async def __aenter__(self) -> Host:
        await self.system.__aenter__()
        if self._settings.alone:
            return self
        self.system.on_shutdown(REFUSE, self._refuse)
        self.system.on_shutdown(TURNS, self._finish_turns)
        self.system.on_shutdown(COMMIT, self._rest_all)
        self.system.on_shutdown(CLOSE, self._close)
        if self._settings.ambient:
            self._outer = _ambient.get()
            _ambient.set(self)
        if self._settings.idle_timeout_s > 0:
            await self.system.start(idle_watch_spec(self._settings.idle_timeout_s / 4, self._passivate_idle))
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
            for told in () if self._settings.alone else self.buffers.not_stored():
                _LOG.error("a session is not stored whole session=%r records=%d", told.session_id, told.records)

    def _be_ambient_no_more(self) -> None:
        """Hosts of one event loop may end in any order, so another one may stand in front of this one."""
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
        that of the call, for what is to be done at the end of the block; see `ActiveSession.finish`.

        Errors: what opening it met (`SessionBusy`, `Corrupt`, `Unavailable`, `Invalid`).
        """
        return SessionUse(self, spec, deadline)

    @property
    def alone(self) -> bool:
        """Whether it lives for one agent alone."""
        return self._settings.alone

    @property
    def refusing(self) -> bool:
        """Whether it shuts down: nobody else enters, and turns are cut short."""
        return self._refusing

    async def enter(self, spec: SessionSpec, deadline: float = math.inf) -> ActiveSession:
        """One more user of the session, which is brought to life if need be. Each `enter` needs one `leave`.

        `deadline`: as `session` takes it. That of a call of which this one is a part holds as well.
        """
        if self._refusing:
            raise Unavailable("the runtime is shutting down", session=spec.agent.session_id)
        place = self._places.setdefault(spec.key, _Place())
        place.users += 1
        place.by = max(place.by, min(deadline, caller_deadline()))
        active = place.active
        if active is not None and active.alive and not place.lock.locked():
            return active
        try:
            async with place.lock:
                if place.active is not None and not place.active.alive:
                    await self._forget(place)
                return place.active or await self._activate(place, spec)
        except BaseException:
            place.users -= 1
            if not place.lock.locked():  # Else it is being put to rest, and is dropped when that is done.
                self._drop_empty(spec.key, place)
            raise

    async def leave(self, spec: SessionSpec) -> None:
        """One user less; the last one puts the session to rest, unless it may idle and nobody else asks for it.
        Cancellation waits for it.
        """
        place = self._places[spec.key]
        place.users -= 1
        place.idle_since = anyio.current_time()
        wanted = spec.key[:2] in self._wanted
        if place.users or (self._settings.idle_timeout_s > 0 and not spec.own and not wanted):
            return
        with anyio.CancelScope(shield=True):
            if wanted:
                await self._yield(*spec.key[:2])
                return
            async with place.lock:
                if not place.users:
                    by, place.by = place.by, -math.inf
                    await self._rest(spec.key, place, by=by)

    async def _activate(self, place: _Place, spec: SessionSpec) -> ActiveSession:
        spec.lock.acquire(spec.agent.agent_id)
        place.spec = spec
        name = place.name = self._name_for(spec)
        supervisor: ActorRef[object] | None = None
        refs: dict[str, ActorRef[Any]] = {}
        keeper: Durable | InMemoryJournal
        try:
            if spec.sessions is not None:
                keeper = await self._stores.enter(spec.sessions)
                place.store_key = spec.sessions.key
                place.buffer = keeper.buffer_of(spec.agent.session_id, spec.agent.agent_id, spec.patience)
            elif spec.own:
                keeper = spec.memory
            else:
                keeper = place.memory = place.memory or spec.memory
            members = await self._members(place, spec, keeper)
            if not self._settings.alone:
                supervisor = await self.system.start(session_spec(name))
            for member in members:
                refs[member.name] = await self.system.start(member, under=supervisor)
            if place.store_key is not None:
                await self._stores.tend(place.store_key)
            active = place.active = active_session(spec.parts, supervisor or refs["agent"], refs)
        except StartFailed as error:
            raise (failure := reason_of(error)) from failure.__cause__
        finally:
            if place.active is None and not self._settings.alone:
                with anyio.CancelScope(shield=True):
                    if supervisor is not None:
                        await self.system.stop(supervisor)
                    await self._forget(place)
        spec.lock.activated(active)
        if spec.opened is not None:
            spec.opened(active)
        return active

    async def _members(
        self, place: _Place, spec: SessionSpec, keeper: Durable | InMemoryJournal
    ) -> Sequence[ChildSpec]:
        """What the session consists of, with the tool servers and the memory stores that it uses."""
        if spec.parts is not None:
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
        return await spec.members(keeper, memories, self)

    def _name_for(self, spec: SessionSpec) -> str:
        """The session's name among the actors; numbered when one in another store has the same."""
        name = first = f"session {spec.agent.session_id} {spec.agent.agent_id}"
        numbers = count(2)
        while name in self._names:
            name = f"{first} {next(numbers)}"
        self._names.add(name)
        return name

    async def _rest(self, key: Key, place: _Place, *, at_once: bool = False, by: float = math.inf) -> None:
        """Put a session to rest: stop its actors, which commits and releases, and leave its store."""
        active = place.active
        if active is not None and active.alive:
            if at_once:
                active.hurry(self._settings.drain_timeout_s * _HURRY_SHARE)
                await active.finish_turns(at_once=True)
            else:
                await active.finish(by)
            if self._settings.alone:
                return  # All that there is ends with the host.
            await self.system.stop(active.watched)
        await self._forget(place)
        self._drop_empty(key, place)

    def _drop_empty(self, key: Key, place: _Place) -> None:
        """Keep nothing of a session that nobody uses and that is kept elsewhere."""
        unused = place.active is None and place.memory is None and not place.users and place.spec is None
        if unused and self._places.get(key) is place:
            del self._places[key]

    async def _forget(self, place: _Place) -> None:
        """The session's actors are gone: nothing of it is active."""
        place.active = place.buffer = None
        self._names.discard(place.name)
        self._release(place)
        remembers, place.remembers = place.remembers, None
        await self.memories.leave(remembers)
        while place.servers:
            await self.servers.leave(place.servers.pop(), keep=self._settings.idle_timeout_s > 0)
        store_key, place.store_key = place.store_key, None
        if store_key is not None:
            await self._stores.leave(store_key, keep=self._settings.idle_timeout_s > 0)

    def _release(self, place: _Place) -> None:
        """From now on the session may come to life elsewhere."""
        spec, place.spec = place.spec, None
        if spec is not None:
            spec.lock.release()

    async def _passivate_idle(self) -> None:
        """Put every session to rest that nobody has used for a while, and of which nothing waits to be stored."""
        for key, place in list(self._places.items()):
            async with place.lock:
                idle_s = anyio.current_time() - place.idle_since
                idle = not place.users and not place.waits and idle_s >= self._settings.idle_timeout_s
                if idle and place.active is not None:
                    await self._rest(key, place)
            self._drop_empty(key, place)

    async def _yield(self, store_key: str, session_id: str) -> None:
        """Another process asks for a session: put it to rest, now or when its turns are over."""
        places = {key: place for key, place in self._places.items() if key[:2] == (store_key, session_id)}
        if any(place.users or place.waits for place in places.values()):
            self._wanted.add((store_key, session_id))
            return
        self._wanted.discard((store_key, session_id))
        for key, place in places.items():
            async with place.lock:
                if not place.users:
                    await self._rest(key, place)
        await self._stores.give_up_owed(store_key, session_id)

    async def _refuse(self) -> None:
        """From now on nobody enters."""
        self._refusing = True

    async def _finish_turns(self) -> None:
        """Let turns in flight finish. The phase's deadline cancels this; what still runs is cancelled later."""
        async with anyio.create_task_group() as group:
            for place in list(self._places.values()):
                group.start_soon(self._finish_turns_of, place)

    async def _finish_turns_of(self, place: _Place) -> None:
        async with place.lock:  # It may be coming to life just now.
            active = place.active
        if active is not None:
            await active.finish_turns()

    async def _flush_memories(self) -> None:
        """Have memory stores take in what was said in the sessions that are active."""
        active = [place.active for place in self._places.values() if place.active is not None]
        async with anyio.create_task_group() as group:
            for session in active:
                group.start_soon(self._flush_memory, session)

    async def _flush_memory(self, session: ActiveSession) -> None:
        self.flushed.append(await session.flush_memory())

    async def _rest_all(self) -> None:
        """Commit every journal and release every lease."""
        async with anyio.create_task_group() as group:
            for key, place in list(self._places.items()):
                group.start_soon(self._rest_one, key, place)

    async def _rest_one(self, key: Key, place: _Place) -> None:
        """A turn that still runs now has had its time: it is cancelled, which leaves a valid history."""
        async with place.lock:
            await self._rest(key, place, at_once=True)

    async def _close(self) -> None:
        """Close what the sessions used. Their actors have ended."""
        for place in self._places.values():
            self._release(place)
        if not self._settings.alone:
            await self.memories.aclose()
        await self._stores.close_all()
        for model in self._models.values() if self._settings.closes_models else ():
            await model.aclose()


class SessionUse:
    """One user of a session. A class and not a generator: it is made for every call."""

    __slots__ = ("_blueprint", "_deadline", "_host")

    def __init__(self, host: Host, spec: SessionSpec, deadline: float) -> None:
        self._host = host
        self._blueprint = spec
        self._deadline = deadline

    async def __aenter__(self) -> ActiveSession:
        return await self._host.enter(self._blueprint, self._deadline)

    async def __aexit__(self, *exc_info: object) -> None:
        await self._host.leave(self._blueprint)


_ambient: RunVar[Host | None] = RunVar("repertory_host", None)


def ambient_host() -> Host | None:
    """The host that the running event loop has, if it has one: agents called there share it."""
    return _ambient.get()


# Looking now and then for sessions that nobody uses any more.
#
# State: none. Fails: with the host, whose look it takes; it is then started again. Pace: its own clock. Supervised by
# the root.


@dataclass(frozen=True, slots=True, kw_only=True)
class LookForIdle:
    """Time to look."""


class IdleWatch(Actor[LookForIdle]):
    """Calls `look` every `period_s`."""

    def __init__(self, period_s: float, look: Callable[[], Awaitable[None]]) -> None:
        self._period_s = period_s
        self._look = look

    async def on_start(self) -> None:
        self.context.every(self._period_s, LookForIdle())

    async def handle(self, message: LookForIdle) -> Next:
        await self._look()
        return carry_on()


def idle_watch_spec(period_s: float, look: Callable[[], Awaitable[None]]) -> ChildSpec:
    """The child spec of a watch."""
    return ChildSpec(name="idle watch", factory=lambda: IdleWatch(period_s, look))


# The phases in which a host shuts down, in order, and what each may take of the time.
#
# refuse   take no more turns
# turns    let turns in flight finish; those that do not are cancelled, which leaves a valid history
# memory   extract and flush what memory stores have to take in
# commit   stop the sessions: every record is committed, every lease released
# close    close stores and models

REFUSE, TURNS, MEMORY, COMMIT, CLOSE = "refuse", "turns", "memory", "commit", "close"


_ALONE = DrainPhase(name=COMMIT, timeout_s=20.0, reserve_s=5.0, stops_actors=True)
"""The only phase of a host that lives for one agent: its turns have ended before."""


_TOGETHER = SupervisorSettings(strategy=Strategy.REST_FOR_ONE)
"""Of such a host: the session's actors stand under the root, behind those that they need."""


def drain_phases(total_s: float) -> tuple[DrainPhase, ...]:
    """The phases within `total_s` seconds. Committing and closing have their share whatever the turns take."""
    return (
        DrainPhase(name=REFUSE, timeout_s=total_s * 0.04),
        DrainPhase(name=TURNS, timeout_s=total_s * 0.60),
        DrainPhase(name=MEMORY, timeout_s=total_s * 0.12),
        DrainPhase(name=COMMIT, timeout_s=total_s * 0.20, reserve_s=total_s * 0.16, stops_actors=True),
        DrainPhase(name=CLOSE, timeout_s=total_s * 0.08, reserve_s=total_s * 0.04),
    )
