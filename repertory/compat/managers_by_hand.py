"""Sessions by hand: the methods by which programs of the SDK drive a session manager, and read and write its records.

An agent that has one of our managers as its `session_manager` needs none of this. What is written by hand counts as
written by another program: an agent that opens the session later takes it in.
"""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import anyio

from repertory.actors.hooks.events import AfterInvocationEvent, AgentInitializedEvent, MessageAddedEvent
from repertory.app.sessions.sessions import new_owner
from repertory.app.tracebacks import inside_event_loop
from repertory.backends.ports import Condition, Create, Overwrite
from repertory.backends.worker_threads import run_in_thread
from repertory.compat.records import Session, SessionAgent, SessionMessage, SessionRepository, SessionType
from repertory.core.ids import check_id, whereabouts
from repertory.core.json_bytes import read, to_file
from repertory.core.messages import error_result, repair, tool_uses
from repertory.core.orchestration.journals import journal_name
from repertory.core.provider_parts import for_others, manager_as_ours
from repertory.core.snapshots.document import enveloped
from repertory.core.snapshots.location import AGENT_SCOPE, RUN_SCOPE
from repertory.core.snapshots.portable import revived
from repertory.errors import AlreadyExists, Corrupt, Invalid, NotFound, SessionBusy, SessionException, StoreNotFound

if TYPE_CHECKING:
    from repertory.backends.ports import Lease, ObjectStore, OwnedRows
    from repertory.backends.sessions.documents.reading import OpenedDocuments, SessionNames
    from repertory.core.messages import Message
    from repertory.core.snapshots.trigger import SaveLatestOn
    from repertory.errors import RepertoryError

T = TypeVar("T")
Driven = TypeVar("Driven")


class HookedSessionManager(ABC, Generic[Driven]):
    """The base of a session manager of one's own: pass it to `Agent(session_manager=...)`.

    Its methods are called off the event loop, one after the other, and may block. Each message is appended once, in
    order, before the turn goes on; an exception ends the call. The agent has no journal in a store: what a crash leaves
    is what the manager has stored. The methods for graphs and swarms are only needed with those.
    """

    session_id: str

    @abstractmethod
    def initialize(self, agent: Driven, **kwargs: Any) -> None:
        """Give the agent what is stored of it: assign its `messages`, set its `state`. Called before the first turn."""

    @abstractmethod
    def append_message(self, message: Any, agent: Driven, **kwargs: Any) -> None:
        """Store a message that is being added to the conversation."""

    @abstractmethod
    def redact_latest_message(self, redact_message: Any, agent: Driven, **kwargs: Any) -> None:
        """Store another message in the place of the latest one: a guardrail has taken that back."""

    @abstractmethod
    def sync_agent(self, agent: Driven, **kwargs: Any) -> None:
        """Store the agent's state. Called after each message and after each turn."""

    def initialize_multi_agent(self, source: Any, **kwargs: Any) -> None:
        """Give a graph or swarm the run that is stored of it: `source.deserialize_state(state)`."""
        raise NotImplementedError(f"{type(self).__name__} keeps no graphs and swarms")

    def sync_multi_agent(self, source: Any, **kwargs: Any) -> None:
        """Store the run of a graph or swarm: `source.serialize_state()`, which is JSON."""
        raise NotImplementedError(f"{type(self).__name__} keeps no graphs and swarms")

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        """Register the callbacks that call the methods above. A class that extends it calls this one as well."""
        from repertory.actors.orchestrator.events import (  # loaded when used
            AfterMultiAgentInvocationEvent,
            AfterNodeCallEvent,
            MultiAgentInitializedEvent,
        )

        def on(kind: type, callback: Callable[[Any], None]) -> None:
            registry.add_callback(kind, callback)

        on(AgentInitializedEvent, lambda event: self.initialize(event.agent))
        on(MessageAddedEvent, lambda event: self.append_message(event.message, event.agent))
        on(MessageAddedEvent, lambda event: self.sync_agent(event.agent))
        on(AfterInvocationEvent, lambda event: self.sync_agent(event.agent))
        on(MultiAgentInitializedEvent, lambda event: self.initialize_multi_agent(event.source))
        on(AfterNodeCallEvent, lambda event: self.sync_multi_agent(event.source))
        on(AfterMultiAgentInvocationEvent, lambda event: self.sync_multi_agent(event.source))


class SessionByHand(HookedSessionManager[Any]):
    """These methods on a `SessionRepository`, for an agent that does not have this manager as its own. Each blocks.

    With its own agent a message is an edit of `agent.messages`, and state is stored by the agent. Errors: those of the
    repository; `Invalid` for an agent without an id.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def records(self) -> SessionRepository:
        """The repository."""

    @cached_property
    def session(self) -> Session:
        """The session's record, which is made when there is none."""
        found = self.records.read_session(self.session_id)
        if found is None:
            found = Session(session_id=self.session_id, session_type=SessionType.AGENT)
            self.records.create_session(found)
        return cast("Session", found)

    def initialize(self, agent: Any, **kwargs: Any) -> None:
        """Give the agent what is stored under its id; store the agent when nothing is. Warns of an agent's storage.

        Errors: `AlreadyExists` for a second agent with the same id.
        """
        if self._owns(agent):
            return
        if getattr(agent, "storage", None) is not None:
            text = "the agent has a storage; a File-, S3- or RepositorySessionManager does not use it"
            warnings.warn(text, UserWarning, stacklevel=1)  # Of this line, so that it is said once.
        seen = self._seen()
        if agent.agent_id in seen:
            raise AlreadyExists("The `agent_id` of an agent must be unique in a session.", agent=agent.agent_id)
        stored = self._stored(agent)
        if stored is None:
            for number, message in enumerate(agent.messages):
                self._create_message(agent, message, number)
        else:
            self._restore(agent, stored)
        seen[agent.agent_id] = None

    def append_message(self, message: Any, agent: Any, **kwargs: Any) -> None:
        """Store one more message of the agent."""
        if self._owns(agent):
            agent.messages.append(message)
            return
        self._stored(agent)
        last = self._last(agent)
        self._create_message(agent, message, 0 if last is None else last.message_id + 1)

    def redact_latest_message(self, redact_message: Any, agent: Any, **kwargs: Any) -> None:
        """Store another message in the place of the agent's last one. Errors: `StoreNotFound` if it has none."""
        if self._owns(agent):
            agent._life.redact_latest(redact_message)
            return
        last = self._last(agent)
        if last is None:
            raise StoreNotFound("there is no message to redact", agent=agent.agent_id)
        last.redact_message = cast("dict[str, Any]", for_others(redact_message))
        self.records.update_message(self.session_id, agent.agent_id, last)

    def sync_agent(self, agent: Any, **kwargs: Any) -> None:
        """Store the agent's state, if it is another than the last that was stored so."""
        if self._owns(agent):
            if not inside_event_loop():  # Else the turn that is running stores it.
                _store_state(agent)
            return
        now = SessionAgent.from_agent(agent)
        state = (now.state, now.conversation_manager_state)
        seen = self._seen()
        if seen.get(agent.agent_id) != state:
            stored = self._stored(agent)
            if stored is not None:
                now.internal_state.update({**stored.internal_state, **now.internal_state})
                now.created_at = stored.created_at
            self.records.update_agent(self.session_id, now)
            seen[agent.agent_id] = state

    def initialize_multi_agent(self, source: Any, **kwargs: Any) -> None:
        """Give a graph or swarm the run that is stored under its id; store its own when none is."""
        _ = self.session
        stored = self.records.read_multi_agent(self.session_id, source.id)
        if stored is None:
            self.records.create_multi_agent(self.session_id, source)
        else:
            source.deserialize_state(stored)

    def sync_multi_agent(self, source: Any, **kwargs: Any) -> None:
        """Store the run of a graph or swarm."""
        _ = self.session
        self.records.update_multi_agent(self.session_id, source)

    def _owns(self, agent: Any) -> bool:
        return getattr(agent, "session_manager", None) is self

    @abstractmethod
    def _seen(self) -> dict[str, Any]:
        """The last stored state of each agent that this object has initialised or stored, by the agent's id."""

    def _stored(self, agent: Any) -> SessionAgent | None:
        """The agent's stored record; None if there was none: it is created then."""
        found = None
        if self.records.read_session(self.session_id) is None:
            _ = self.session
        else:
            found = self.records.read_agent(self.session_id, agent.agent_id)
        if found is None:
            self.records.create_agent(self.session_id, SessionAgent.from_agent(agent))
        return cast("SessionAgent | None", found)

    def _restore(self, agent: Any, stored: SessionAgent) -> None:
        for name in agent.state.get().keys() - stored.state.keys():
            agent.state.delete(name)
        for name, value in stored.state.items():
            agent.state.set(name, value)
        first: list[Message] = []
        offset = 0
        manager = getattr(agent, "conversation_manager", None)
        if manager is not None and stored.conversation_manager_state:
            first = list(manager.restore_from_session(manager_as_ours(stored.conversation_manager_state)) or ())
            offset = manager.removed_message_count
        listed = self.records.list_messages(self.session_id, agent.agent_id, offset=offset)
        found = repair([*first, *(cast("Any", each.to_message()) for each in cast("list[SessionMessage]", listed))])
        agent.messages = [*found, *unanswered(found)]

    def _create_message(self, agent: Any, message: Any, number: int) -> None:
        record = SessionMessage.from_message(message, number)
        self.records.create_message(self.session_id, agent.agent_id, record)

    def _last(self, agent: Any) -> SessionMessage | None:
        try:
            found = self.records.list_messages(self.session_id, agent.agent_id)
        except (SessionException, NotFound):
            return None
        return next(reversed(cast("list[SessionMessage]", found)), None)


class SnapshotStore(Protocol):
    """The part of a store of snapshots that this needs."""

    async def acquire(self, session_id: str, *, takeover: bool = False) -> OwnedRows: ...
    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]: ...
    async def latest(self, session_id: str, journal: str) -> Mapping[str, object] | None: ...
    async def put_latest(self, session_id: str, journal: str, document: Mapping[str, object]) -> None: ...
    async def aclose(self) -> None: ...


class SnapshotsByHand(HookedSessionManager[Any]):
    """These methods on snapshots, for an agent that does not have this manager as its own. Each blocks.

    A snapshot holds the whole agent, so `sync_agent` stores what there is to store. With its own agent a message is an
    edit of `agent.messages`, and the agent stores its state. Errors: `SessionBusy` while an owner has the session;
    those of the storage, of `agent.take_snapshot` and of `agent.load_snapshot`.
    """

    __slots__ = ()
    save_latest_on: SaveLatestOn

    @abstractmethod
    def open_snapshots(self) -> SnapshotStore:
        """The store, which the caller closes."""

    @abstractmethod
    def keep_in(self, storage: Any) -> None:
        """Use this storage, unless one was given."""

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        """Restore an agent when it is made; store it after each turn, and as `save_latest_on` says."""
        from repertory.actors.orchestrator.events import (  # loaded when used
            AfterMultiAgentInvocationEvent,
            AfterNodeCallEvent,
            MultiAgentInitializedEvent,
        )

        def on(kind: type, callback: Callable[[Any], object]) -> None:
            registry.add_callback(kind, callback)

        async def sync_agent(event: Any) -> None:
            if getattr(event.agent, "session_manager", None) is not self:  # Else the turn that is running stores it.
                await run_in_thread(partial(self.sync_agent, event.agent))

        async def sync_run(event: Any) -> None:
            await run_in_thread(partial(self.sync_multi_agent, event.source))

        on(AgentInitializedEvent, lambda event: self.initialize(event.agent))
        if self.save_latest_on == "message":
            on(MessageAddedEvent, sync_agent)
        if self.save_latest_on in ("message", "invocation"):
            on(AfterInvocationEvent, sync_agent)
        on(MultiAgentInitializedEvent, lambda event: self.initialize_multi_agent(event.source))
        on(AfterNodeCallEvent, sync_run)
        on(AfterMultiAgentInvocationEvent, sync_run)

    def initialize(self, agent: Any, **kwargs: Any) -> None:
        """Let the agent continue from the latest snapshot that is stored under its id; without one it stays as it is.
        Without a storage of its own, the manager uses that of the agent.
        """
        if getattr(agent, "session_manager", None) is self:
            return
        if getattr(agent, "storage", None) is not None:
            self.keep_in(agent.storage)
        found = self._latest(agent.agent_id)
        if found is not None:
            agent.load_snapshot(found)

    def append_message(self, message: Any, agent: Any, **kwargs: Any) -> None:
        """Add the message to the conversation of this object's own agent; of others, `sync_agent` stores it later."""
        if getattr(agent, "session_manager", None) is self:
            agent.messages.append(message)

    def redact_latest_message(self, redact_message: Any, agent: Any, **kwargs: Any) -> None:
        """Store the agent, whose last message was redacted, whatever `save_latest_on` says."""
        if getattr(agent, "session_manager", None) is self:
            agent._life.redact_latest(redact_message)
        else:
            self.sync_agent(agent)

    def sync_agent(self, agent: Any, **kwargs: Any) -> None:
        """Store the latest snapshot of the agent."""
        if getattr(agent, "session_manager", None) is self:
            if not inside_event_loop():  # Else the turn that is running stores it.
                _store_state(agent)
            return
        taken = agent.take_snapshot(preset="session")
        self._put(agent.agent_id, AGENT_SCOPE, revived(taken.data), taken.app_data)

    def initialize_multi_agent(self, source: Any, **kwargs: Any) -> None:
        """Let a graph or swarm continue the run that is stored under its id."""
        found = self._latest(journal_name(source.id))
        if found is not None:
            source.deserialize_state(found)

    def sync_multi_agent(self, source: Any, **kwargs: Any) -> None:
        """Store the run of a graph or swarm."""
        data = {"orchestrator_id": source.id, "state": source.serialize_state()}
        self._put(journal_name(source.id), RUN_SCOPE, data, {})

    def _latest(self, journal: str) -> Mapping[str, object] | None:
        async def found() -> Mapping[str, object] | None:
            async with aclosing(cast("Any", self.open_snapshots())) as store:
                return await store.latest(self.session_id, journal)

        return run_anywhere(found)

    def _put(self, journal: str, scope: str, data: Mapping[str, Any], others: Mapping[str, Any]) -> None:
        document = enveloped(scope, data, others, time.time(), None)

        async def put() -> None:
            async with aclosing(cast("Any", self.open_snapshots())) as store:
                lease, _ = await store.acquire(self.session_id)
                try:
                    await store.put_latest(self.session_id, journal, document)
                finally:
                    with anyio.CancelScope(shield=True):
                        await store.release([lease])

        run_anywhere(put)


def _store_state(agent: Any) -> None:
    from repertory.app.host.blocking import blocking_host  # loaded when used

    blocking_host().run(agent._life.store_state)


def unanswered(messages: list[Message]) -> list[Message]:
    """Error results for the tool uses of the last message, which nothing will run; empty when there are none."""
    uses = [use["toolUseId"] for use in tool_uses(messages[-1])] if messages else []
    results = [error_result(use, "Tool was interrupted.") for use in uses]
    return [{"role": "user", "content": [{"toolResult": result} for result in results]}] if results else []


class RecordsInDocuments(SessionRepository, ABC):
    """The records of sessions in the documented layout. Each method blocks, and may be called anywhere.

    Writing is refused while another process owns the session; the agents of this process should not be at work in it.
    Errors: `AlreadyExists`, `StoreNotFound`, `SessionBusy`, `Corrupt` for what is no document, and others of the store
    (all of them `SessionException`); `Invalid` (a ValueError) for bad ids.
    """

    __slots__ = ()

    @abstractmethod
    def open_documents(self) -> OpenedDocuments:
        """The documents."""

    @property
    def session_repository(self) -> SessionRepository:
        """The repository of records, which is this object."""
        return self

    def create_session(self, session: Session, **kwargs: Any) -> Session:
        """Store a new session."""
        self._put(session.session_id, lambda names: names.session, lambda found: session.to_dict(), "Session", new=True)
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> Session | None:
        """The session; None when there is none."""
        found = self._get(session_id, lambda names: names.session)
        return None if found is None else Session.from_stored(found)

    def delete_session(self, session_id: str, **kwargs: Any) -> None:
        """Erase the session with everything in it. Close the agents that have it open first."""
        check_id(session_id, "session_id")

        async def delete() -> None:
            async with aclosing(cast("Any", self).sessions.open_store()) as store:
                await store.delete(session_id)

        try:
            run_anywhere(delete)
        except NotFound as error:
            raise StoreNotFound(f"Session {session_id} does not exist") from error

    def create_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Store a new agent of a session."""
        key = _agent(session_agent.agent_id)
        self._put(session_id, key, lambda found: session_agent.to_dict(), "Agent", new=True)

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:
        """The agent; None when there is none."""
        found = self._get(session_id, _agent(agent_id))
        return None if found is None else SessionAgent.from_stored(found)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Replace the agent's record, but for the time when it was made."""

        def changed(found: dict[str, Any]) -> dict[str, Any]:
            session_agent.created_at = str(found.get("created_at", session_agent.created_at))
            return {**found, **session_agent.to_dict()}

        self._put(session_id, _agent(session_agent.agent_id), changed, "Agent")

    def create_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any) -> None:
        """Store a message of an agent."""
        key = _message(agent_id, session_message.message_id)
        self._put(session_id, key, lambda found: session_message.to_dict(), "Message", new=True)

    def read_message(self, session_id: str, agent_id: str, message_id: int, **kwargs: Any) -> SessionMessage | None:
        """The message of that number; None when there is none."""
        found = self._get(session_id, _message(agent_id, message_id))
        return None if found is None else SessionMessage.from_stored(found)

    def update_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any) -> None:
        """Replace the message's record, but for the time when it was made."""

        def changed(found: dict[str, Any]) -> dict[str, Any]:
            session_message.created_at = str(found.get("created_at", session_message.created_at))
            return {**found, **session_message.to_dict()}

        self._put(session_id, _message(agent_id, session_message.message_id), changed, "Message")

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **kwargs: Any
    ) -> list[SessionMessage]:
        """The messages of an agent, oldest first, without the first `offset` ones, at most `limit`."""

        async def found(objects: ObjectStore, names: SessionNames) -> list[bytes]:
            agent = names.of_agent(check_id(agent_id, "agent_id"))
            keys = [info.key for info in await objects.list(f"{agent.folder}messages/")]
            numbers = agent.numbers(keys)[offset:]
            bodies: list[bytes] = []
            for number in numbers if limit is None else numbers[:limit]:
                bodies.append((await objects.get(agent.key(number))).body)
            if not keys:
                await objects.get(agent.agent)
            return bodies

        try:
            return [SessionMessage.from_stored(_document(body)) for body in self._with(session_id, found)]
        except NotFound as error:
            raise StoreNotFound(f"Agent {agent_id} of session {session_id} does not exist") from error

    def create_multi_agent(self, session_id: str, multi_agent: Any, **kwargs: Any) -> None:
        """Store the run of a graph or swarm."""
        self._put(session_id, _run(multi_agent.id), lambda found: multi_agent.serialize_state(), "Run", new=None)

    def read_multi_agent(self, session_id: str, multi_agent_id: str, **kwargs: Any) -> dict[str, Any] | None:
        """The last stored run; None when there is none."""
        return self._get(session_id, _run(multi_agent_id))

    def update_multi_agent(self, session_id: str, multi_agent: Any, **kwargs: Any) -> None:
        """Replace the run's record."""
        self._put(session_id, _run(multi_agent.id), lambda found: {**found, **multi_agent.serialize_state()}, "Run")

    def _get(self, session_id: str, key: Callable[[SessionNames], str]) -> dict[str, Any] | None:
        async def get(objects: ObjectStore, names: SessionNames) -> bytes | None:
            try:
                return (await objects.get(key(names))).body
            except NotFound:
                return None

        body = self._with(session_id, get)
        return None if body is None else _document(body)

    def _put(
        self,
        session_id: str,
        key: Callable[[SessionNames], str],
        change: Callable[[dict[str, Any]], Mapping[str, Any]],
        kind: str,
        *,
        new: bool | None = False,
    ) -> None:
        """Write the document that `change` makes of the present one. `new`: if there must be none; None: if there may
        be one.
        """

        async def put(objects: ObjectStore, names: SessionNames) -> None:
            found: dict[str, Any] = {}
            if new is False:
                try:
                    found = _document((await objects.get(key(names))).body)
                except NotFound as error:
                    raise StoreNotFound(f"{kind} does not exist", key=key(names)) from error
            condition: Condition = Create() if new else Overwrite()
            try:
                await objects.put(key(names), to_file(change(found)), condition)
            except AlreadyExists as error:
                raise AlreadyExists(f"{kind} already exists", key=key(names)) from error

        self._with(session_id, put, writes=True)

    def _with(
        self, session_id: str, work: Callable[[ObjectStore, SessionNames], Awaitable[T]], *, writes: bool = False
    ) -> T:
        from repertory.backends.sessions.documents.reading import SessionNames  # loaded when used

        check_id(session_id, "session_id")

        async def do() -> T:
            opened = self.open_documents()
            names = SessionNames(session_id, opened.short)
            async with aclosing(cast("Any", opened.objects)):
                if writes:
                    _refuse_owned(await opened.owner_of(names), names)
                return await work(opened.objects, names)

        return run_anywhere(do)


def _refuse_owned(owner: str | None, names: SessionNames) -> None:
    """Check the owner. Errors: `SessionBusy` while a live owner in another process has the session."""
    if owner is not None:
        here, there = whereabouts(new_owner()), whereabouts(owner)
        if (here["host"], here["pid"]) != (there.get("host"), there.get("pid")):
            raise SessionBusy("another live owner has the session", session=names.session_id, owner=owner)


def _agent(agent_id: str) -> Callable[[SessionNames], str]:
    check_id(agent_id, "agent_id")
    return lambda names: names.of_agent(agent_id).agent


def _message(agent_id: str, message_id: int) -> Callable[[SessionNames], str]:
    check_id(agent_id, "agent_id")
    if not isinstance(cast("object", message_id), int) or message_id < 0:
        raise Invalid("message id must be an integer, from 0 on", got=message_id)
    return lambda names: f"{names.of_agent(agent_id).folder}messages/message_{message_id}.json"


def _run(multi_agent_id: str) -> Callable[[SessionNames], str]:
    check_id(multi_agent_id, "multi_agent_id")
    return lambda names: names.of_agent(journal_name(multi_agent_id)).agent


def _document(body: bytes) -> dict[str, Any]:
    try:
        return read(body)
    except ValueError as error:
        raise Corrupt("Invalid JSON in a document", cause=str(error)) from error


def run_anywhere(work: Callable[[], Awaitable[T]]) -> T:
    """Run an async function from sync code, also in a thread whose event loop then waits for it."""
    if not inside_event_loop():
        return anyio.run(work)
    with ThreadPoolExecutor(1, "repertory-by-hand") as thread:
        return thread.submit(anyio.run, work).result()
