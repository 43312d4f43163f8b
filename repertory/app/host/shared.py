"""The shared resources of an actor system's sessions: tool servers and stores, each open while it is used."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import RunVar
from msgspec import Struct, field
from msgspec.structs import replace

from repertory.actors.background import Background
from repertory.actors.leases import Durable, SessionCounts, SessionLeases
from repertory.actors.memory.store import memory_store_spec
from repertory.actors.tool_server import ServerLink, tool_server_spec
from repertory.actors.writer import StoreWriter, WriterSettings, keeper_spec
from repertory.backends.memory_ports import ClosingStore
from repertory.backends.ports import PublishingStore
from repertory.errors import RepertoryError, StartFailed
from repertory.logs import DEBUG, WARNING, note
from repertory.runtime.actor import Actor
from repertory.runtime.drain import DrainPhase
from repertory.runtime.mailbox import MailboxSettings
from repertory.runtime.message import Next, carry_on
from repertory.runtime.spec import ChildSpec

if TYPE_CHECKING:
    from threading import Thread

    from repertory.actors.memory.consumer import MemoryParts
    from repertory.actors.memory.store import Health, MemoryStoreClient, MemoryStoreMessage
    from repertory.actors.writer import CommitBuffers
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.backends.ports import NotPublished, SessionStore
    from repertory.backends.tool_ports import ToolSource
    from repertory.runtime.ref import ActorRef
    from repertory.runtime.system import ActorSystem


class _Server(Struct, eq=False):
    """The server of one source. Its users include those that wait for its start."""

    source: ToolSource
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    link: ServerLink | None = None
    supervisor: ActorRef[object] | None = None
    users: int = 0

    @property
    def runs(self) -> bool:
        return self.supervisor is not None and self.supervisor.ended is None


class ServerUse(Struct, frozen=True, eq=False):
    """One use of a server, from `enter` to `leave`."""

    link: ServerLink
    server: _Server | None
    """The server; None if it was opened by hand, and `leave` must not stop it."""


class ToolServers:
    """One server per source object. Servers opened by hand in this event loop are shared."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._servers: list[_Server] = []
        self._started = 0

    async def enter(self, source: ToolSource) -> ServerUse:
        """Use the source's server, which is started if necessary. Each `enter` needs one `leave`.

        Errors: why it did not start: usually `Unavailable` with what to check, `Failed` for an unreadable answer.
        """
        server = next((server for server in self._servers if server.source is source), None)
        if server is None:
            started = _started_server(source)
            if started is not None:
                return ServerUse(started, None)
            server = _Server(source)
            self._servers.append(server)
        # Before the first await, so that another session's `leave` does not stop it while this one waits for its start.
        server.users += 1
        try:
            async with server.lock:
                if server.link is None or not server.runs:
                    server.link = await self._start(server)
                return ServerUse(server.link, server)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._leave(server)
            raise

    async def enter_all(self, sources: Sequence[ToolSource], uses: list[ServerUse]) -> list[ServerLink]:
        """Use the servers of all these sources, which start in parallel; their links in order.

        `uses` gets each use as it begins, also when another one fails. Errors: the first of any `enter`.
        """
        if not sources:
            return []
        links: dict[int, ServerLink] = {}
        errors: list[RepertoryError] = []

        async def enter(index: int, source: ToolSource) -> None:
            try:
                use = await self.enter(source)
            except RepertoryError as error:
                errors.append(error)
                # The session cannot start any more: servers that are still starting are not waited for.
                group.cancel_scope.cancel()
            else:
                uses.append(use)
                links[index] = use.link

        async with anyio.create_task_group() as group:
            for index, source in enumerate(sources):
                group.start_soon(enter, index, source)
        if errors:
            raise errors[0]
        return [links[index] for index in range(len(sources))]

    def may_stay(self, uses: Sequence[ServerUse]) -> bool:
        """True if these servers run for as long as they are used: none was opened by hand, to end with a block."""
        return all(use.server is not None for use in uses)

    def still_serve(self, uses: Sequence[ServerUse]) -> bool:
        """True if these servers answer, and are those that `enter` would use here and now."""
        return all(
            use.link.is_there
            and use.server is not None
            and use.server.runs
            and _started_server(use.server.source) is None
            for use in uses
        )

    async def leave(self, use: ServerUse, *, keep: bool = False) -> None:
        """End a use. The last one stops the server and waits for the end of its process, unless `keep`."""
        if use.server is not None:
            await self._leave(use.server, keep=keep)

    async def _leave(self, server: _Server, *, keep: bool = False) -> None:
        server.users -= 1
        if server.users or keep:
            return
        async with server.lock:
            # Asked again under the lock: somebody may have come while a start was waited for.
            if not server.users and server in self._servers:
                self._servers.remove(server)
                if server.supervisor is not None:
                    await self._system.stop(server.supervisor)

    async def _start(self, server: _Server) -> ServerLink:
        link = ServerLink(server.source.name)
        self._started += 1
        name = f"tools {self._started} {server.source.name}".replace("/", "_")
        try:
            server.supervisor = await self._system.start(tool_server_spec(name, server.source, link))
        except StartFailed as error:
            raise (failure := reason_of(error)) from failure.__cause__
        return link


def _started_server(source: ToolSource) -> ServerLink | None:
    return next((link for other, link in _started_servers.get(()) if other is source), None)


@asynccontextmanager
async def start_manually(servers: ToolServers, source: ToolSource) -> AsyncGenerator[ServerLink]:
    """The source's server, shared by all agents in this event loop for as long as the block."""
    use = await servers.enter(source)
    mine = (source, use.link)
    _started_servers.set((*_started_servers.get(()), mine))
    try:
        yield use.link
    finally:
        _started_servers.set(tuple(other for other in _started_servers.get(()) if other is not mine))
        with anyio.CancelScope(shield=True):
            await servers.leave(use)


def reason_of(error: RepertoryError) -> RepertoryError:
    """The error that kept an actor from starting, below any number of `StartFailed`."""
    while isinstance(error, StartFailed) and isinstance(error.__cause__, RepertoryError):
        error = error.__cause__
    return error


_started_servers: RunVar[tuple[tuple[ToolSource, ServerLink], ...]] = RunVar("repertory_tool_servers_open_by_hand")


# Stores, each with its writer, and with its keeper if it needs one.

_MAILBOX = MailboxSettings(capacity=100_000)
"""The mailbox of a writer: each session has at most one write waiting, so it bounds a store's active sessions."""


class _OpenStore(Struct):
    durable: Durable
    number: int
    writer: ActorRef[object]
    maintained: bool = False
    tries: int = 0
    """The number of times that a keeper was started."""
    keeper: ActorRef[object] | None = None
    """The actor that maintains the store; None for a store without maintenance."""
    users: int = 0


class OpenStores:
    """One store and one writer per database, shared by its sessions."""

    def __init__(
        self,
        system: ActorSystem,
        buffers: CommitBuffers,
        counts: SessionCounts,
        give_up: Callable[[str, str], Awaitable[None]] | None,
    ) -> None:
        """`give_up` is called with the key of a store and a session in it that another process asks for; None: such
        requests are not heard.
        """
        self._system = system
        self._asked = give_up
        self._buffers = buffers
        self._counts = counts
        self._open: dict[str, _OpenStore] = {}
        self._closed: list[SessionStore] = []
        """The stores that `close_all` has closed."""
        self._started = 0
        self._lock = anyio.Lock(fast_acquire=True)

    async def enter(self, sessions: SessionLocation) -> Durable:
        """The store, opened if necessary, with one more user."""
        async with self._lock:
            entry = self._open.get(sessions.key)
            if entry is None:
                entry = self._open[sessions.key] = await self._start(sessions)
            entry.users += 1
            return entry.durable

    async def maintain(self, key: str) -> None:
        """Maintain the store from now on, if it needs that, and hear other processes' requests for its sessions."""
        async with self._lock:
            entry = self._open[key]
            if not entry.maintained:
                give_up = partial(self._asked, key) if self._asked is not None else None
                name = f"keeper {entry.number}" + (f" {entry.tries}" if entry.tries else "")
                entry.tries += 1  # One whose start was cancelled may just be ending: nobody gets its name again.
                spec = keeper_spec(entry.durable.store, name, give_up)
                entry.keeper = await self._system.start(spec) if spec is not None else None
                entry.maintained = True

    async def leave(self, key: str, *, keep: bool) -> None:
        """Removes a user; the last one closes the store unless `keep`."""
        async with self._lock:
            entry = self._open[key]
            entry.users -= 1
            if not entry.users and not keep:
                await self._close(key)

    async def finish_releases(self, key: str, session_id: str) -> None:
        """Release the lease of an unused session, if that failed before. A failure is tried again the next time."""
        entry = self._open.get(key)
        if entry is not None:
            with suppress(RepertoryError):
                await entry.durable.leases.finish_releases(session_id)

    async def finish_all_releases(self) -> None:
        """Release the leases of all unused sessions for which that failed before."""
        for entry in list(self._open.values()):
            await entry.durable.leases.finish_all_releases()

    def gather_releases(self) -> None:
        """Have sessions released together from now on, by `release_gathered`."""
        for entry in self._open.values():
            entry.durable.leases.gather()

    async def release_gathered(self) -> None:
        """Release the sessions that have ended since `gather_releases`, all of a store in one call."""
        async with anyio.create_task_group() as group:
            for entry in self._open.values():
                group.start_soon(entry.durable.leases.release_gathered)

    def abandon_all(self) -> list[Thread]:
        """Close every store without the event loop, which was closed. Returns the threads that still do so."""
        threads = [part.abandon() for each in self._open.values() if (part := each.durable.store.capabilities.sharing)]
        return [thread for thread in threads if thread is not None]

    async def close_all(self) -> None:
        """Close every store. Their users and their writers must have ended."""
        async with self._lock:
            while self._open:
                _, entry = self._open.popitem()
                await entry.durable.store.aclose()
                # The drain's report still asks it for what is not published.
                self._closed.append(entry.durable.store)

    def not_published(self) -> tuple[NotPublished, ...]:
        """The agents whose copies for other programs are behind, in every store that is open, or was until the end."""
        stores = [*self._closed, *(entry.durable.store for entry in self._open.values())]
        return tuple(one for store in stores if isinstance(store, PublishingStore) for one in store.not_published())

    async def _start(self, sessions: SessionLocation) -> _OpenStore:
        store = sessions.open_store()

        def writer() -> StoreWriter:
            return StoreWriter(store, WriterSettings(), self._buffers.commits)

        self._started += 1
        spec = ChildSpec(name=f"writer {self._started}", factory=writer, mailbox=_MAILBOX)
        try:
            ref = await self._system.start(spec)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await store.aclose()
            raise
        patience = self._buffers.patience
        leases = SessionLeases(store, busy_s=patience.busy_s, wait_s=patience.wait_s, counts=self._counts)
        durable = Durable(store=store, leases=leases, writer=ref, buffers=self._buffers)
        return _OpenStore(durable, self._started, ref)

    async def _close(self, key: str) -> None:
        entry = self._open.pop(key)
        if entry.keeper is not None:
            await self._system.stop(entry.keeper)
        await self._system.stop(entry.writer)
        await entry.durable.store.aclose()


_log = logging.getLogger("repertory.memory")


# The memory store actors of one actor system: one for each store, for as long as a session or program uses it.


class _Open(Struct):
    ref: ActorRef[object]
    health: Health
    users: int = 0


class OpenMemories:
    """Starts and stops the actors of memory stores on one system."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._open: dict[MemoryStoreClient, _Open] = {}
        self._names: set[str] = set()
        self._lock = anyio.Lock()
        self._closing: dict[int, ClosingStore] = {}
        """The used stores and extractors that can be closed, by identity."""

    @property
    def healths(self) -> dict[MemoryStoreClient, Health]:
        """The stores in use, and how each has answered. For any thread."""
        return {client: opened.health for client, opened in list(self._open.items())}

    async def enter(self, parts: MemoryParts | None) -> Mapping[str, ActorRef[MemoryStoreMessage]]:
        """The actors of a session's stores, by the stores' names. Each `enter` needs one `leave`."""
        if parts is None:
            return {}
        for source in parts.sources:
            self._closing |= {id(each): each for each in source.holds if isinstance(each, ClosingStore)}
        return await self.open([source.client for source in parts.sources])

    async def leave(self, parts: MemoryParts | None) -> None:
        """Ends the use that `enter` began."""
        if parts is not None:
            await self.let_go([source.client for source in parts.sources])

    async def open(self, clients: Sequence[MemoryStoreClient]) -> dict[str, ActorRef[MemoryStoreMessage]]:
        """The actors of these stores, by name. Each `open` needs one `let_go`."""
        async with self._lock:
            for client in clients:
                if client not in self._open:
                    self._open[client] = await self._start(client)
            for client in clients:
                self._open[client].users += 1
        return {client.name: self._open[client].ref for client in clients}

    async def let_go(self, clients: Sequence[MemoryStoreClient]) -> None:
        """Ends one use. The last one stops the actors, which answer all earlier requests before."""
        for client in clients:
            opened = self._open[client]
            opened.users -= 1
            if not opened.users:
                del self._open[client]
                await self._system.stop(opened.ref)
                self._names.discard(opened.ref.name)

    async def aclose(self) -> None:
        """Close the stores, and the extractors, that were used here. They open again on their next use.

        Errors: none; a failure to close is logged.
        """
        closing, self._closing = self._closing, {}
        for each in closing.values():
            try:
                await each.aclose()
            except RepertoryError as error:
                note(_log, WARNING, "a memory store could not be closed", error)

    async def _start(self, client: MemoryStoreClient) -> _Open:
        spec = memory_store_spec(client)
        name = take_name(spec.name, self._names)  # Stores of different managers may have the same name.
        return _Open(await self._system.start(replace(spec, name=name)), client.health)


def take_name(name: str, used: set[str]) -> str:
    """The name, numbered if it is used already; from now on it is used."""
    numbered = chain((name,), (f"{name} {number}" for number in count(2)))
    free = next(each for each in numbered if each not in used)
    used.add(free)
    return free


# What gives up the sessions that others ask for, once nobody uses them here.
#
# State: none. Fails: by a bug of its own alone, and is started again. Pace: begins at once, and gives sessions up
# beside each other. Supervised by the root.


class GiveUp(Struct, frozen=True, kw_only=True):
    """Nobody uses this part of a session any more, and the session is to be stopped."""

    store_key: str
    session_id: str


class SessionGiver(Actor[GiveUp]):
    """Calls `give_up` with the key of a store and a session in it."""

    def __init__(self, give_up: Callable[[str, str], Awaitable[None]]) -> None:
        self._give_up = give_up

    async def handle(self, message: GiveUp) -> Next:
        note(self.context.logger, DEBUG, "a session is given up", session=message.session_id)
        giving = Background(self.context, "a session cannot be given up", {"session": message.session_id})
        work = partial(self._give_up, message.store_key, message.session_id)
        self.context.job(giving.attempt, work, None, name="give up")
        return carry_on()


# A periodic search for idle sessions.
#
# State: none. Fails: by a bug of its own alone, and is started again. Pace: its own clock. Supervised by the root.


class LookForIdle(Struct, frozen=True, kw_only=True):
    """A tick of the watch."""


class IdleWatch(Actor[LookForIdle]):
    """Calls `look` every `period_s`."""

    def __init__(self, period_s: float, look: Callable[[], Awaitable[None]]) -> None:
        self._period_s = period_s
        self._look = look
        self._looking: Background

    async def on_start(self) -> None:
        self._looking = Background(self.context, "idle sessions cannot be stopped")
        self.context.every(self._period_s, LookForIdle())

    async def handle(self, message: LookForIdle) -> Next:
        await self._looking.attempt(self._look, None)
        return carry_on()


# The phases in which a host shuts down, in order, and their shares of the time.
#
# refuse   take no more turns
# turns    let running turns finish; the others are cancelled, which leaves a valid history
# memory   extract and flush memories
# commit   stop the sessions: every record is committed, every lease released
# close    close stores and models

REFUSE, TURNS, MEMORY, COMMIT, CLOSE = "refuse", "turns", "memory", "commit", "close"


def drain_phases(total_s: float) -> tuple[DrainPhase, ...]:
    """The phases within `total_s` seconds. Commit and close keep their reserves however long the turns take."""
    return (
        DrainPhase(name=REFUSE, timeout_s=total_s * 0.04),
        DrainPhase(name=TURNS, timeout_s=total_s * 0.60),
        DrainPhase(name=MEMORY, timeout_s=total_s * 0.12),
        DrainPhase(name=COMMIT, timeout_s=total_s * 0.20, reserve_s=total_s * 0.16, stops_actors=True),
        DrainPhase(name=CLOSE, timeout_s=total_s * 0.08, reserve_s=total_s * 0.04),
    )
