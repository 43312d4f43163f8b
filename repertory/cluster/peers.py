"""Runtimes that share their sessions: any of them answers for any session.

    async with Runtime(sessions=PostgresSessions(DSN), peers=Peers("10.0.0.5:7000", secret=SECRET)) as runtime: ...

Start with `Cluster`. A call goes to the owner of its session, and to a peer with room where there is none; it is named
by a token, so that it is asked again without being done again when a peer is gone. `docs/design/services.md` says why.
"""

from __future__ import annotations

import logging
import math
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING, cast

import anyio
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from repertory.actors.call import Following, Invocation, names_of_turns
from repertory.actors.journal import LATE_S, NamedTurns
from repertory.app.host.admission import AdmissionQueue, NoRoom, no_room
from repertory.app.host.call_forms import SessionQuestion, asking, invocation_for, portable_call, read_question
from repertory.app.host.call_router import PeerSession
from repertory.app.sessions.reading import rows_reaching
from repertory.app.tracebacks import telemetry
from repertory.backends.peer_ports import (
    Directory,
    JsonLine,
    Lines,
    PeerLost,
    PeerRefused,
    PeerUnreachable,
    PeerWire,
    QueuedCall,
)
from repertory.backends.ports import call_queue_of
from repertory.backends.worker_threads import run_in_thread
from repertory.cluster.peer_actor import LOOK_S, LookAround, PeerActor, RunTurn, WatchSignal
from repertory.cluster.peer_calls import (
    PeerCall,
    PeerCancel,
    PeerDrains,
    PeerQuestion,
    SentEvents,
    TurnRaised,
    answer_json,
    answering,
    event_of_line,
    events_from_rows,
    plainly,
    raise_from,
    read_answer,
    read_peer_request,
    reading_answer,
    received,
    routing_failure_of,
    setback_line,
)
from repertory.cluster.running_calls import READABLE_S, CallKey, RunningCall
from repertory.cluster.wire.proof import check_secret
from repertory.core.admission import session_bounds
from repertory.core.ids import check_id
from repertory.core.journal.restore import restore
from repertory.core.memory.progress import messages_in_rows
from repertory.core.peers import Peer, RepeatedRequests, Route, RoutingFailure, chosen_peer
from repertory.core.retry import foreign_errors
from repertory.core.turns.portable_call import call_fields, read_portable
from repertory.core.turns.turn_start import call_token
from repertory.core.wire import error_to_json, event_to_json
from repertory.errors import Failed, Invalid, LeaseLost, RepertoryError, Retryable, SessionBusy, Throttled, Unavailable
from repertory.logs import INFO, WARNING, note
from repertory.runtime.spec import ChildSpec

if TYPE_CHECKING:
    from repertory.app.host.host import Host
    from repertory.app.host.session import ActiveSession
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.backends.ports import SessionStore
    from repertory.cluster.wire.http import PeerTls
    from repertory.core.result import AgentResult, TurnEvent

_LOG = logging.getLogger("repertory.peers")
_KNOWN_MAX = 100_000
"""The number of owners that are remembered, at most."""
_JOIN_S = 30.0
_CANCEL_S = 2.0
_CALLS_MAX = 1000
"""The most calls to one peer at the same time: the room and the queue of a peer with the usual room."""
_SIGNAL_S = 0.1
_BOX_S = 0.25
# Not longer: each peer that looks hides the call from its owner for so long, and with twenty peers it would be hidden
# always. Not zero: a peer that looks again at once would take it again.
_PASSED_ON_S = 0.02
_ALONE_S = 6.0
"""Seconds without the directory after which a runtime doubts that it is still known."""
_FIRST_S = 0.5
"""Seconds to wait again for a peer that was silent: a process that is frozen still takes connections."""


@dataclass(frozen=True, slots=True)
class Peers:
    """The way in which a runtime shares its sessions with other runtimes.

    Args:
        listen: The address where it answers the others: `host:port` (port 0: any), or `unix:` and a path. None: a
            socket of its own on this machine, for sessions in SQLite. A runtime without room then listens nowhere.
        room: The sessions that run turns at the same time, at most. 0 makes it a gateway, which hosts nothing.
        queue: The calls more that wait for a place, where tenants take turns. Others are refused with `Throttled`,
            but for those of a tenant with less than its share. None: as many as `room`.
        address: The address by which the others reach it. It differs from `listen` behind a container's port.
        secret: A random text that all of them know, at least 16 characters. Both sides of every connection prove that
            they know it, and it never crosses. TCP needs it, also on loopback, unless `tls` has certificates.
        tls: Certificates of both sides, which also encrypt; None for none.
        version: The version of the program. Sessions without an owner go to the highest one, as text, so a deploy moves
            them over.
        zone: Peers of the same zone are preferred.
        patience_s: Seconds that a call goes on without an answer from anybody. Then it fails with `Unavailable`, or
            `Throttled`.
    """

    listen: str | None = None
    _: KW_ONLY
    room: int = 500
    queue: int | None = None
    address: str | None = None
    secret: str | None = field(default=None, repr=False)
    tls: PeerTls | None = None
    version: str = ""
    zone: str = ""
    patience_s: float = 30.0
    wire: PeerWire | None = None
    """Another way to talk, instead of all that is said of addresses here."""

    def __post_init__(self) -> None:
        for name, value in (("room", self.room), ("queue", self.queue)):
            if value is not None and (
                isinstance(value, bool) or not isinstance(cast("object", value), int) or value < 0
            ):
                raise Invalid(f"{name} is a number, 0 or more", got=value)
        if self.secret is not None:
            check_secret(self.secret)
        if not self.patience_s > 0:
            raise Invalid("patience_s is a number of seconds", got=self.patience_s)

    def router(
        self, host: Host, session_of: Callable[[str, str], PeerSession | None], agents: Callable[[], frozenset[str]]
    ) -> Cluster:
        """The way of a runtime's calls to its peers. For the runtime.

        Args:
            host: The host of the runtime.
            session_of: Agent and session id to the session; None for an agent that the runtime does not have.
            agents: Returns the names of the agents that it has.
        """
        return Cluster(self, host, session_of, agents)


class Cluster:
    """The peers of one runtime: finds who runs a call, and runs those of others. See `CallRouter`."""

    def __init__(
        self,
        settings: Peers,
        host: Host,
        session_of: Callable[[str, str], PeerSession | None],
        agents: Callable[[], frozenset[str]],
    ) -> None:
        self._settings = settings
        self._host = host
        self._session_of = session_of
        self._agents = agents
        self.admission = AdmissionQueue(refused=no_room, held=lambda: host.gate.waiting)
        self.admission.limit(session_bounds(settings.room, settings.queue))
        self._running: dict[CallKey, RunningCall] = {}
        """The calls of others that run here, or were over a moment ago."""
        self._known: OrderedDict[str, str] = OrderedDict()
        """The owner of each session, as far as it is known; the latest used last."""
        self._asking: dict[str, _Flight] = {}
        self._peers: dict[str, Peer] = {}
        self._address = ""
        self.name = ""
        self._announced: Peer | None = None
        self._reached = True
        """True if the last request to the directory was answered."""
        self._looked_at = -math.inf
        """The event loop's time in seconds when the directory was last reached."""
        self._start: Callable[[RunTurn], object]
        self._joined = anyio.Event()
        self._not_joined: RepertoryError | None = None
        """The error with which this runtime could not join."""
        self._rng = host.system.rng

    async def open(self, place: SessionLocation) -> None:
        store = self._store = await self._host.store_of(place)
        repeated = RepeatedRequests()
        self._host.yields_to = lambda session_id: repeated.insists(session_id, anyio.current_time())
        self._directory = _directory_of(store)
        self.name = self._directory.name
        self._wire = self._settings.wire or await _http(self._settings, self._directory)
        self._actor = await self._host.system.start(ChildSpec(name="peers", factory=lambda: PeerActor(self)))
        self._host.system.on_shutdown("refuse", self._refuse)
        # Until the turns of others are over, and their callers have read the result.
        self._host.system.on_shutdown("turns", self.delivered)
        self._host.system.on_shutdown("commit", self._leave)
        with anyio.move_on_after(_JOIN_S):
            await self._joined.wait()
        if self._not_joined is not None or not self._joined.is_set():
            raise self._not_joined or Unavailable("the peers could not be joined in time")

    @property
    def peer_count(self) -> int:
        return sum(name != self.name for name in list(self._peers))

    def check_for(self, posted: QueuedCall) -> None:
        name = posted.call.get("for")
        if isinstance(name, str) and name != self.name and name in self._peers:
            raise Throttled("another peer makes this call", retry_after_s=_PASSED_ON_S, peer=name)

    # ------------------------------------------------------------------------------------------- calls of this process

    async def invoke(self, session: PeerSession, invocation: Invocation) -> AgentResult:
        async with aclosing(self._call(session, invocation, events=False)) as events:
            async for event in events:
                if "result" in event:
                    return cast("AgentResult", event["result"])
        raise AssertionError("a call ends with its result or an error")

    def stream(self, session: PeerSession, invocation: Invocation) -> AsyncGenerator[TurnEvent]:
        return self._call(session, invocation, events=True)

    async def ask(self, session: PeerSession, what: SessionQuestion) -> object:
        spec = session.spec.agent
        route = Route("", anyio.current_time(), self._settings.patience_s)
        call = call_fields(asking(what, self._host.wall()))
        body: JsonLine = {"agent": spec.agent_id, "session": spec.session_id, "call": call}
        while True:
            target = await self._target(session, route)
            try:
                if target.peer is None:
                    return await session.read_here(what)
                async with self._wire.call(target.peer.address, "ask", body) as lines:
                    async for line in lines:
                        with reading_answer():
                            raise_from(line)
                            if "value" in line:
                                return read_answer(what, line["value"])
                raise PeerLost("the peer's answer ended early", peer=target.peer.name)
            except TurnRaised as answered:
                raise answered.error from None
            except RepertoryError as error:
                await self._set_back(session, route, target, error)

    async def _call(self, session: PeerSession, invocation: Invocation, *, events: bool) -> AsyncGenerator[TurnEvent]:
        # With a token the call can be sent again after a connection broke: whoever has done it answers from the
        # journal.
        token = invocation.idempotency_token or call_token(token_hex(16))
        invocation = replace(invocation, idempotency_token=token)
        spec = session.spec.agent
        call = call_fields(portable_call(invocation, session.schema))
        following = invocation.following
        sent = PeerCall(
            agent=spec.agent_id,
            session=spec.session_id,
            token=token,
            call=call,
            events=events,
            follows=following is not None,
            begins=following is None or following.begins,
            detach=following is not None and following.detach,
            reader=token_hex(8),
        )
        route = Route(token, anyio.current_time(), self._settings.patience_s)
        caller = SentEvents(following)
        while True:
            target = None
            with anyio.CancelScope(deadline=invocation.deadline):
                target = await self._target(session, route)
            if target is None:
                raise Unavailable("nobody has said in the time of this call who runs it", session=spec.session_id)
            if target.peer is None:
                # Another one may have told the beginning: this try goes on behind what the caller has.
                mine = replace(invocation, following=caller.following)
                turn = self._here(session, mine, events=events, waits=target.waits)
            elif target.boxed:
                turn = self._by_box(target.peer, sent, invocation, caller, route)
            else:
                turn = self._there(target.peer, sent, invocation, caller, route)
            try:
                async with aclosing(turn) as lines:
                    async for event in lines:
                        for each in caller.next(event):
                            yield each
                return
            except TurnRaised as answered:
                raise answered.error from None
            except RepertoryError as error:
                await self._set_back(session, route, target, error, invocation.deadline)
                caller.broken(error)

    async def _here(
        self, session: PeerSession, invocation: Invocation, *, events: bool, waits: bool = False
    ) -> AsyncGenerator[TurnEvent]:
        """Run the turn in this process. Errors: those of the turn, as `TurnRaised`; others say that it was not begun
        here, or that the session has moved.
        """
        session_id = session.spec.agent.session_id
        spec = session.spec.waiting(reject=not waits, deadline=invocation.deadline)
        # A call from within a turn takes no place: that turn has one and waits for this call, so a full runtime would
        # stand still.
        inner = bool(names_of_turns(invocation.context))
        leave = await self.admission.enter(session_id, invocation.deadline, inner=inner)
        try:
            active = await self._host.enter(spec, invocation.deadline)
            try:
                async with aclosing(_turn(active, invocation, events=events)) as turn:
                    async for event in turn:
                        yield event
            except RepertoryError as error:
                # The session has moved, which is no answer. `LeaseLost` of another session, as of one that a tool
                # calls, is.
                if isinstance(error, LeaseLost) and error.fields.get("session") == session_id:
                    raise
                # What fails because this process ends succeeds elsewhere. `SessionBusy` is left alone, since it names
                # the owner.
                if isinstance(error, Retryable) and self._host.refusing and not isinstance(error, SessionBusy):
                    raise PeerDrains from error
                raise TurnRaised(error) from None
            finally:
                await self._host.leave(spec)
        finally:
            leave(False)

    async def _there(
        self, peer: Peer, call: PeerCall, invocation: Invocation, caller: SentEvents, route: Route
    ) -> AsyncGenerator[TurnEvent]:
        """Have a peer run the turn. Errors: as `_here`, and those of the wire."""
        if caller.following is not None and caller.following.after.over:
            return  # The caller has the result.
        remaining_s = invocation.deadline - anyio.current_time()
        offset = None if caller.following is None else str(caller.following.after)
        call = replace(call, deadline_s=None if remaining_s == math.inf else max(remaining_s, 0.0), offset=offset)
        # A guess until the next look: all calls of a second would go to the peer that was the emptiest at its
        # beginning.
        self._peers[peer.name] = replace(peer, busy=peer.busy + 1)
        ended, found = False, telemetry()
        remote = None if found is None else invocation.context.run(found.remote, call.agent, call.session, peer.name)
        if remote is not None:
            call = replace(call, call={**call.call, "trace": {**remote.headers}})
        failed: Exception | None = None
        watch = None
        if invocation.cancel_signal is not None:
            watch = WatchSignal(signal=invocation.cancel_signal, peer=peer, call=call, over=anyio.Event())
            self._actor.tell(watch)
        try:
            # The peer keeps the deadline itself, and may then store for `LATE_S` more what was cut short.
            soon = min(_FIRST_S if route.suspects(peer.name) else math.inf, remaining_s + LATE_S)
            asked = self._wire.call(peer.address, "call", cast("JsonLine", to_builtins(call)))
            async with asked if soon == math.inf else answering(asked, soon) as lines:
                async for line in lines:
                    route.taken(anyio.current_time())
                    with reading_answer():
                        raise_from(line)
                        event = event_of_line(line)
                    if event is not None:
                        route.succeeded()
                        if "result" in event:
                            ended = True
                            yield {**event, "result": received(cast("AgentResult", event["result"]), invocation)}
                            return
                        yield event
            raise PeerLost("the peer's answer ended early", peer=peer.name)
        except RepertoryError as error:
            ended = True  # The peer's answer, or its loss: there is nothing to cancel.
            failed = error.error if isinstance(error, TurnRaised) else error
            raise
        finally:
            if remote is not None:
                remote.close(failed)
            if watch is not None:
                watch.over.set()
            if not ended:  # The caller has gone.
                await self._cancel(peer, call, at_once=True)

    async def _by_box(
        self, peer: Peer, call: PeerCall, invocation: Invocation, caller: SentEvents, route: Route
    ) -> AsyncGenerator[TurnEvent]:
        """Have a peer run the turn that is alive and cannot be reached from here: by the call box, without its pieces.
        A reader that begins no turn waits for its end. Errors: as `_here`; `PeerUnreachable` when the peer has not done
        it in time.
        """
        box, following = call_queue_of(self._store), caller.following
        if box is None:
            raise PeerUnreachable("a peer cannot be reached", peer=peer.name, address=peer.address)
        if following is None or following.begins:
            what: JsonLine = {**call.call, "for": peer.name}
            await box.put(QueuedCall(session_id=call.session, agent_id=call.agent, token=call.token, call=what))
        by = min(anyio.current_time() + self._settings.patience_s, invocation.deadline)
        there = True
        while there and anyio.current_time() < by:
            await anyio.sleep(_BOX_S)
            # Asked before the rows are read: an owner that ends right now may have done the call, and then this look
            # finds it.
            there = await self._directory.owner_of(call.session) == peer.name
            found = [each for each in await box.calls(call.session) if each.token == call.token]
            if any(each.parked for each in found):
                raise TurnRaised(Failed("the turn has failed where it was made", cause=found[0].error))
            if found:
                continue
            rows = await self._store.load(call.session, call.agent)
            image = restore(rows, session_id=call.session).fold.image()
            named, turn = NamedTurns(image), image.finished_turns.get(call.token)
            if turn is not None and named.has(call.token):
                rows = await rows_reaching(self._store, rows, turn.seq, call.session, call.agent)
                messages = messages_in_rows(rows, turn.answer_seq - 1, turn.answer_seq, session_id=call.session)
                if messages:
                    named.note_read(call.token, messages[0].message)
            answer = named.answered_before(replace(invocation, idempotency_token=call.token))
            if answer is not None:
                route.succeeded()
                for event in events_from_rows(rows, image, call.token, following, answer, session_id=call.session):
                    yield event
                return
            # A call that is neither in the box nor answered will not be made. A reader that began none waits for the
            # turn's end.
            there = there and following is not None and not following.begins
        raise PeerUnreachable("a peer cannot be reached, and has not made the call", peer=peer.name)

    async def watch(self, watch: WatchSignal) -> None:
        """Cancel the turn when the caller's signal is set, as `Agent` does in this process."""
        # Looked at again and again: the signal is a `threading.Event`, which can wake no event loop.
        while not watch.signal.is_set() and not watch.over.is_set():
            with anyio.move_on_after(_SIGNAL_S):
                await watch.over.wait()
        if not watch.over.is_set():
            await self._cancel(watch.peer, watch.call, at_once=False)

    async def _cancel(self, peer: Peer, call: PeerCall, *, at_once: bool) -> None:
        """Cancel the turn if possible: one that goes on does no harm. `at_once`: nobody wants the result."""
        agent, session, token = call.key
        body = cast("JsonLine", to_builtins(PeerCancel(agent=agent, session=session, token=token, at_once=at_once)))
        # The caller is being cancelled, and the peer would go on with a paid turn that nobody reads. Bounded, for a
        # peer that is frozen.
        with anyio.move_on_after(_CANCEL_S, shield=True):
            try:
                async with self._wire.call(peer.address, "cancel", body) as lines:
                    async for _ in lines:
                        pass
            except RepertoryError as error:
                where = {"peer": peer.name, "session": call.session, "agent": call.agent}
                note(_LOG, INFO, "a turn could not be cancelled", error, **where)

    async def _set_back(
        self, session: PeerSession, route: Route, target: _Target, error: RepertoryError, by: float = math.inf
    ) -> None:
        """Wait before the next try, no longer than until `by`. Errors: the same error, when it is the caller's answer;
        those of `Route.after`; `Unavailable` when the time is over.
        """
        name = self.name if target.peer is None else target.peer.name
        if target.peer is None and self._host.refusing and isinstance(error, Unavailable):
            error = PeerDrains()
        found = routing_failure_of(error)
        if found is None:
            self._refuse_if_closed(error)
            raise plainly(error)
        failure, owner, wait_s = found
        session_id = session.spec.agent.session_id
        # Whatever it was, the owner that was known is not to be trusted: the next try asks the store.
        self._known.pop(session_id, None)
        if failure == "moved" and owner is not None and owner in self._peers and owner != name:
            self._know(session_id, owner)
        # It will say so itself at the next look, up to a second from now.
        if failure == "draining" and name in self._peers:
            self._peers[name] = replace(self._peers[name], room=0)
        now = anyio.current_time()
        if now >= by:
            raise Unavailable("no peer has answered in the time of this call", peer=name, why=failure, cause=str(error))
        pause = route.after(failure, name, now, self._rng.uniform(0.0, 1.0), wait_s, error)
        await anyio.sleep(min(pause, by - now))

    # ------------------------------------------------------------------------------------------------------ who has it

    async def _target(self, session: PeerSession, route: Route) -> _Target:
        """The target of the call now. Errors: `Unavailable` when nobody can run it, or the place is not reached."""
        spec = session.spec
        session_id, refusing = spec.agent.session_id, self._host.refusing
        # Without asking the store: what is open here is owned here, and if it is not any more, the next write says so.
        if not refusing and self._host.holds(spec):
            return _HERE
        known = self._known.get(session_id)
        if known is not None and known in self._peers:
            self._known.move_to_end(session_id)
            if known != self.name:
                return _Target(self._peers[known])
            if not refusing:
                return _HERE
        owner = await self._owner_of(session_id, route)
        route.owner_is(owner)
        while owner is not None and owner != self.name:
            if owner not in self._peers:
                await self.look()
            if owner in self._peers:
                self._know(session_id, owner)
                return _Target(self._peers[owner], boxed=route.is_cut_off(owner))
            if self.admission.room:
                return _Target(None, waits=True)  # No peer: it is asked for the session, as without peers.
            await self._pause(route, "moved")
            owner = await self._owner_of(session_id, route)
        if owner == self.name and not refusing:
            return _HERE
        while True:
            peer = self._chosen(spec.agent.agent_id, route)
            if peer is not None:
                break
            if self.admission.room and not refusing:
                return _HERE
            await self._pause(route, "not served")
            await self.look()
        if owner is None:
            self._know(session_id, peer.name)
        return _HERE if peer.name == self.name else _Target(peer)

    def _chosen(self, agent: str, route: Route) -> Peer | None:
        now, standing = anyio.current_time(), self._standing()
        # If all are to be avoided, any of them is better than none.
        able = [peer for peer in standing if route.may_get(peer, now)] or standing
        return chosen_peer(able, agent, self.name, (self._rng.uniform(0.0, 1.0), self._rng.uniform(0.0, 1.0)))

    def _standing(self) -> list[Peer]:
        """The peers as this process sees them now."""
        mine = self._me()
        return [*(peer for peer in self._peers.values() if peer.name != self.name), *([mine] if mine.room else [])]

    async def has_owner(self, session_id: str) -> bool:
        return await self._directory.owner_of(session_id) is not None

    def _know(self, session_id: str, owner: str) -> None:
        self._known[session_id] = owner
        self._known.move_to_end(session_id)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    async def _owner_of(self, session_id: str, route: Route) -> str | None:
        """The owner of a session, for which many callers ask the store once."""
        while True:
            flight = self._asking.get(session_id)
            if flight is not None:
                await flight.over.wait()
                if flight.error is None and not flight.cut:
                    return flight.owner
                if flight.error is not None:
                    await self._pause(route, "unreachable", flight.error)
                continue
            flight = self._asking[session_id] = _Flight(anyio.Event())
            try:
                flight.owner = await self._directory.owner_of(session_id)
                return flight.owner
            except Retryable as error:
                flight.error = error
            except BaseException as error:
                # Whoever asked for all was cancelled: the others must not get its cancellation, and ask again.
                flight.cut = True
                self._refuse_if_closed(error)
                raise
            finally:
                del self._asking[session_id]
                flight.over.set()
            await self._pause(route, "unreachable", flight.error)

    def _refuse_if_closed(self, error: BaseException) -> None:
        """Errors: `Unavailable` where the call failed because this runtime ends, which is not the caller's doing."""
        if isinstance(error, Invalid) and self._host.refusing:
            raise Unavailable(self._host.refusing) from error

    async def _pause(self, route: Route, failure: RoutingFailure, error: Retryable | None = None) -> None:
        """Wait before another try, where no peer is to blame. Errors: those of `Route.after`."""
        await anyio.sleep(route.after(failure, "", anyio.current_time(), self._rng.uniform(0.0, 1.0), error=error))

    # -------------------------------------------------------------------------------------------------- calls of others

    def handle(self, path: str, body: JsonLine) -> AbstractAsyncContextManager[AsyncIterator[Lines]]:
        """A request of another runtime."""
        match path:
            case "call":
                return self._answer_call(body)
            case "cancel":
                return self._answer_cancel(body)
            case "ask":
                return self._answer_ask(body)
            case _:
                raise PeerRefused(404, {"path": path})

    @asynccontextmanager
    async def _answer_call(self, body: JsonLine) -> AsyncGenerator[AsyncIterator[Lines]]:
        try:
            call = read_peer_request(body, PeerCall)
            check_id(call.token, "token")
            asked, after = read_portable(call.call), call.after
        except Invalid as error:
            raise PeerRefused(400, {"error": error_to_json(error)}) from None
        # A caller that comes back after its connection broke is let in whatever holds now: its turn runs, or has just
        # ended.
        running = self._running.get(call.key)
        if running is None:
            session = self._session_of(call.agent, call.session)
            if session is None:
                raise PeerRefused(404, {"agent": call.agent})
            if self._host.refusing:
                raise PeerRefused(503, {"draining": True})
            try:
                if not asked.inside:  # The turn that waits for it may have the last place.
                    self.admission.check(call.session)
                invocation = invocation_for(asked, call.token, session.schema, deadline_s=call.deadline_s)
            except NoRoom as full:
                raise PeerRefused(429, {"retry_after_s": full.retry_after_s}) from None
            except Unavailable:
                raise PeerRefused(503, {"draining": True}) from None
            except Invalid as error:
                raise PeerRefused(400, {"error": error_to_json(error)}) from None
            running = self._running[call.key] = RunningCall(call.key, invocation.cancel_signal)
            if call.events:
                following = Following(begins=call.begins, detach=call.detach, opened=running.open)
                invocation = replace(invocation, following=following)
            self._start(RunTurn(call=running, session=session, invocation=invocation, events=call.events))
        async with aclosing(running.lines(after, holds=not call.follows)) as lines:
            yield lines

    @asynccontextmanager
    async def _answer_cancel(self, body: JsonLine) -> AsyncGenerator[AsyncIterator[Lines]]:
        try:
            cancel = read_peer_request(body, PeerCancel)
        except Invalid as error:
            raise PeerRefused(400, {"error": error_to_json(error)}) from None
        running = self._running.get((cancel.agent, cancel.session, cancel.token))
        if running is not None:
            running.cancel(at_once=cancel.at_once)
        async with aclosing(_one_line({"value": running is not None})) as lines:
            yield lines

    @asynccontextmanager
    async def _answer_ask(self, body: JsonLine) -> AsyncGenerator[AsyncIterator[Lines]]:
        try:
            asked = read_peer_request(body, PeerQuestion)
            question = read_question(read_portable(asked.call).question)
        except Invalid as error:
            raise PeerRefused(400, {"error": error_to_json(error)}) from None
        session = self._session_of(asked.agent, asked.session)
        if session is None:
            raise PeerRefused(404, {"agent": asked.agent})
        if self._host.refusing and not self._host.holds(session.spec):
            raise PeerRefused(503, {"draining": True})
        async with aclosing(_asked(session, question)) as lines:
            yield lines

    async def run_call(self, start: RunTurn) -> None:
        """Run a turn for another process, of which its readers read the log."""
        call = start.call
        try:
            with call.scope, foreign_errors():
                turn = self._here(start.session, start.invocation, events=start.events)
                async with aclosing(turn) as events:
                    async for event in events:
                        call.end(event_to_json(event))
                    call.end({})  # The log has the result.
            if call.over_at is None:
                # A scope that was cancelled ends its block in silence.
                call.end({"error": error_to_json(Unavailable("the call was cancelled"))})
        except TurnRaised as answered:
            call.end({"error": error_to_json(answered.error)})
        except RepertoryError as error:
            if self._running.get(call.key) is call:
                del self._running[call.key]  # Another try is a new call.
            call.end(setback_line(error))
        finally:
            call.end({"draining": True})  # Unless it has ended above: its actor is stopped.

    # --------------------------------------------------------------------------------------------------- being there

    async def serve(self, start: Callable[[RunTurn], object]) -> None:
        """Answer the others until cancelled. The first time, an error is kept for the one who joins."""
        self._start = start
        try:
            if self.admission.room:
                await self._wire.serve(self.handle, self._listens)
            else:
                await self._look()
                self._joined.set()
        except RepertoryError as error:
            if self._joined.is_set():
                raise
            self._not_joined = error
            self._joined.set()

    async def _listens(self, address: str) -> None:
        self._address = address
        self._announced = None
        # The first time an error is for the one who joins. Later, a directory out of reach is no reason to stop
        # answering.
        await (self.look() if self._joined.is_set() else self._look())
        self._joined.set()

    async def look(self) -> None:
        """Say how busy this runtime is, and see who is there."""
        now = anyio.current_time()
        self._running = {
            key: call for key, call in self._running.items() if call.over_at is None or now - call.over_at <= READABLE_S
        }
        try:
            await self._look()
        except RepertoryError as error:
            self._note_unreached(error)

    def _note_unreached(self, error: RepertoryError) -> None:
        """Log that the directory is out of reach, once for each outage."""
        if self._reached:
            self._reached = False
            note(_LOG, WARNING, "the directory of peers is not reached", error)

    async def notice(self) -> None:
        """Send waiting callers away while this runtime does not reach its directory for long: others may soon have its
        sessions, and turns here wait for the same database, so callers look for themselves. Until cancelled.
        """
        while True:
            await anyio.sleep(LOOK_S)
            if anyio.current_time() - self._looked_at > _ALONE_S:
                for call in self._running.values():
                    call.send_away()

    def changed(self) -> None:
        self._actor.tell(LookAround())

    async def _look(self) -> None:
        if self._address:
            mine = self._me()
            # Only what is new is written: an idle cluster makes no writes for this, since its owners' own signs of life
            # say who is there.
            if mine != self._announced:
                await self._directory.join(mine)
                self._announced = mine
        before, self._peers = self._peers, {peer.name: peer for peer in await self._directory.peers()}
        for name in self._peers.keys() - before - {self.name}:
            note(_LOG, INFO, "a peer has come", peer=name)
        for name in before.keys() - self._peers - {self.name}:
            note(_LOG, INFO, "a peer has gone", peer=name)
        if not self._reached:
            self._reached = True
            note(_LOG, INFO, "the directory of peers is reached again")
        self._looked_at = anyio.current_time()

    def _me(self) -> Peer:
        return Peer(
            name=self.name,
            address=self._address,
            room=0 if self._host.refusing or self.admission.closed else self.admission.room,
            busy=self.admission.busy,
            agents=self._agents(),
            version=self._settings.version,
            zone=self._settings.zone,
        )

    async def _refuse(self) -> None:
        """Take nothing more: those that wait are told to go elsewhere, idle sessions are given up at once."""
        self.admission.close()
        await self.look()
        # Behind the look, so that peers see room 0 before they ask for these sessions again.
        await self._host.give_up_idle()

    async def delivered(self) -> None:
        for call in list(self._running.values()):
            await call.delivered()

    async def _leave(self) -> None:
        try:
            await self._directory.leave()
        except RepertoryError as error:
            self._note_unreached(error)
        await self._wire.aclose()


# Within.


class _Target(Struct, frozen=True):
    """A call's target. Without a peer: here; `waits`: for an owner that is no peer; `boxed`: no path leads there."""

    peer: Peer | None = None
    waits: bool = False
    boxed: bool = False


_HERE = _Target()


class _Flight(Struct, eq=False):
    """One look for an owner, which many wait for."""

    over: anyio.Event
    owner: str | None = None
    error: Retryable | None = None
    cut: bool = False


async def _turn(active: ActiveSession, invocation: Invocation, *, events: bool) -> AsyncGenerator[TurnEvent]:
    if not events:
        yield {"result": await active.invoke(invocation)}
        return
    async with active.stream(invocation) as turn_events:
        async for event in turn_events:
            yield event


async def _one_line(line: JsonLine) -> AsyncGenerator[Lines]:
    yield Lines(lines=[line], end=True)


async def _asked(session: PeerSession, question: SessionQuestion) -> AsyncGenerator[Lines]:
    """The answer to a question. It may take a while: the session is opened for it."""
    try:
        line = {"value": answer_json(await session.read_here(question))}
    except RepertoryError as error:
        line = setback_line(error)
    yield Lines(lines=[line], end=True)


def _directory_of(store: SessionStore) -> Directory:
    sharing = store.capabilities.sharing
    if sharing is None or sharing.directory is None:
        raise Invalid("peers share sessions in PostgreSQL, or in SQLite on one machine", place=store.name)
    return sharing.directory()


async def _http(settings: Peers, directory: Directory) -> PeerWire:
    from repertory.cluster.wire.http import HttpPeers, PeerLimits  # loaded when used: h11 is an extra

    if (listen := settings.listen) is None:
        own = await run_in_thread(directory.socket)
        listen = own if settings.room else None
        if own is None and (settings.room or (settings.secret is None and settings.tls is None)):
            text = "say where this runtime answers its peers, and how they know each other"
            raise Invalid(f"{text}: Peers('10.0.0.5:7000', secret=SECRET)")
    return HttpPeers(
        listen,
        advertise=settings.address,
        secret=settings.secret,
        tls=settings.tls,
        entropy=os.urandom,
        limits=PeerLimits(calls_max=_CALLS_MAX, connections_max=4 * _CALLS_MAX),
    )
