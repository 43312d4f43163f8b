"""Sessions in a user's own `SessionRepository`."""

from __future__ import annotations

import inspect
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import anyio
from msgspec import Struct

from repertory.app.sessions.sessions import new_owner
from repertory.backends.ports import Condition, Create, ObjectInfo, StoredObject, Update
from repertory.backends.worker_threads import run_foreign
from repertory.compat.managers_by_hand import SessionByHand
from repertory.compat.records import (
    Session,
    SessionAgent,
    SessionMessage,
    SessionMultiAgent,
    SessionRepository,
    SessionType,
)
from repertory.core.ids import check_id
from repertory.core.json_bytes import epoch, json_file, parsed, read, to_file
from repertory.core.message_tree.documents import OURS
from repertory.errors import AlreadyExists, Invalid, NotFound, PreconditionFailed, RepertoryError, StoreFailed
from repertory.runtime.faults import failure_of

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore


@dataclass(frozen=True, slots=True, eq=False)
class RepositorySessions:
    """All sessions in a user's own repository."""

    repository: SessionRepository

    @property
    def key(self) -> str:
        """Equal for all objects of the same repository."""
        return f"repository:{id(self.repository):x}"

    def open_store(self) -> SessionStore:
        """A store on this repository. The caller closes it."""
        from repertory.backends.sessions.documents.journal import TreeSettings
        from repertory.backends.sessions.documents.store import MessageTreeStore
        from repertory.backends.sessions.liveness import TimeToLive

        return MessageTreeStore(
            RepositoryObjects(self.repository),
            owner=new_owner(),
            life=TimeToLive(time.time, 0.0),
            wall=time.time,
            entropy=os.urandom,
            settings=TreeSettings(prove_s=float("inf"), mark_batches=False, short_names=False),
        )


_NEEDED = (
    *("create_session", "read_session", "create_agent", "read_agent", "update_agent"),
    *("create_message", "read_message", "update_message", "list_messages"),
)


@dataclass(eq=False)
class RepositorySessionManager(SessionByHand):
    """One session in a user's own repository: pass it to `Agent(session_manager=...)`.

    Nothing is read or written before the session opens. Errors: from calls `SessionException` for the repository's
    exceptions.

    Args:
        session_id: The id of the session.
        session_repository: Where the records are kept.

    Raises:
        Invalid: For a bad id. Correct the argument.
    """

    session_id: str
    session_repository: SessionRepository
    takeover: bool = False
    """Without effect: a repository has no owners."""
    _by_hand: dict[str, Any] = field(default_factory=dict[str, Any], init=False, repr=False)

    def __post_init__(self) -> None:
        check_id(self.session_id, "session_id")
        repository = cast("object", self.session_repository)
        if not all(callable(getattr(repository, name, None)) for name in _NEEDED):
            raise Invalid(
                "session_repository is an object of a class of yours that extends SessionRepository, as in "
                "RepositorySessionManager('chat', MyRepository())",
                got=type(repository).__name__,
            )

    @property
    def sessions(self) -> RepositorySessions:
        """The sessions of the repository."""
        return RepositorySessions(self.session_repository)

    @property
    def records(self) -> SessionRepository:
        """The repository."""
        return self.session_repository

    def _seen(self) -> dict[str, Any]:
        return self._by_hand


AgentSessionManager = RepositorySessionManager
"""An alias that older documents use."""


# A user's `SessionRepository` as the objects of the documented layout.
#
# A record has no fields for our data, so it goes into fields that a repository stores unread: rows of a message into
# its `metadata.custom`, the rest into the agent's internal state. The lease lives as long as this object.

_AGENT = re.compile(r"session_(?P<session>[^/]+)/agents/agent_(?P<agent>[^/]+)/(?P<rest>.*)")
_SESSION = re.compile(r"session_(?P<session>[^/]+)/(?P<rest>[^/]+)")
_MESSAGE = re.compile(r"messages/message_([0-9]+)\.json")
_FIELDS = ("agent_id", "state", "conversation_manager_state", "created_at", "updated_at")


class _Agent(Struct):
    """The cached records of one agent."""

    record: SessionAgent | None = None
    looked: bool = False
    listed: dict[int, SessionMessage] = {}
    """The messages of the last listing, until the next write."""


class RepositoryObjects:
    """An `ObjectStore` over a repository, for one session store.

    Errors of every call: `StoreFailed` (a `SessionException`) for the repository's exceptions; `Invalid` for what it
    cannot do: list sessions, or remove anything.
    """

    def __init__(self, repository: SessionRepository) -> None:
        self._repository = repository
        self._kept: dict[str, bytes] = {}
        """Objects that a repository cannot store."""
        self._agents: dict[tuple[str, str], _Agent] = {}
        self._runs = RepositoryRuns(repository, self._ask)
        self._turn = anyio.Lock()

    @property
    def name(self) -> str:
        return f"repository:{id(self._repository):x}"

    async def get(self, key: str) -> StoredObject:
        """Read an object. Errors: `NotFound`, and see the class."""
        async with self._turn:
            body = await self._read(key)
        if body is None:
            raise NotFound("no such object", key=key)
        return StoredObject(body=body, version=_version(body))

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        """Write an object. Errors: `AlreadyExists`, `PreconditionFailed`, and see the class."""
        async with self._turn:
            existing = await self._read(key)
            if isinstance(condition, Create) and existing is not None:
                raise AlreadyExists("the object is there already", key=key)
            if isinstance(condition, Update) and (existing is None or _version(existing) != condition.version):
                raise PreconditionFailed("the object is not the one to update", key=key, wanted=condition.version)
            await self._write(key, body, new=existing is None)
        return _version(body)

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        """The documents of one agent or orchestrator. Errors: `Invalid` for any other prefix."""
        run = run_place(prefix)
        if run is not None and not run.name:
            async with self._turn:
                names = sorted(await self._runs.names(run))
            infos = [ObjectInfo(key=f"{prefix}{name}", size_bytes=0, version=None, modified_at=0.0) for name in names]
            return [info for info in infos if start_after is None or info.key > start_after]
        place = _AGENT.fullmatch(prefix)
        if place is None or place["rest"]:
            raise Invalid("a session repository cannot tell which sessions it has", prefix=prefix)
        async with self._turn:
            agent = await self._agent(place["session"], place["agent"])
            if agent.record is None:
                return []
            listed = await self._ask(self._repository.list_messages, place["session"], place["agent"])
            agent.listed = {int(each.message_id): each for each in cast("Sequence[SessionMessage]", listed)}
            keys = [f"{prefix}agent.json", *(f"{prefix}{name}" for name in _beside(agent.record))]
            keys += [f"{prefix}messages/message_{number}.json" for number in agent.listed]
        times = {
            f"{prefix}messages/message_{number}.json": epoch(each.updated_at) for number, each in agent.listed.items()
        }
        return [
            ObjectInfo(key=key, size_bytes=0, version=None, modified_at=times.get(key, 0.0))
            for key in sorted(keys)
            if start_after is None or key > start_after
        ]

    async def delete(self, key: str) -> None:
        """Forget an object that a repository cannot store. Errors: `Invalid` for every other one."""
        place = _AGENT.fullmatch(key)
        if (
            key not in self._kept
            and place is not None
            and (place["rest"] == "agent.json" or _MESSAGE.fullmatch(place["rest"]))
        ):
            raise Invalid("a session repository cannot remove anything", key=key)
        self._kept.pop(key, None)

    async def aclose(self) -> None:
        """Does nothing: the repository's owner closes it."""

    # Reading and writing records.

    async def _read(self, key: str) -> bytes | None:
        run = run_place(key)
        if run is not None:
            return await self._runs.read(run)
        place = _AGENT.fullmatch(key)
        if place is None:
            return await self._read_session(key)
        agent = await self._agent(place["session"], place["agent"])
        message = _MESSAGE.fullmatch(place["rest"])
        if message is not None:
            number = int(message[1])
            found = agent.listed.get(number)
            if found is None and agent.record is not None:
                found = await self._ask(self._repository.read_message, place["session"], place["agent"], number)
            return None if found is None else _message_body(cast("SessionMessage", found))
        if agent.record is None:
            return None
        if place["rest"] == "agent.json":
            return _agent_body(agent.record)
        kept = _beside(agent.record).get(place["rest"])
        return None if kept is None else json.dumps(kept).encode()

    async def _read_session(self, key: str) -> bytes | None:
        place = _SESSION.fullmatch(key)
        if place is None or place["rest"] != "session.json":
            return self._kept.get(key)
        found = await self._ask(self._repository.read_session, place["session"])
        if found is None:
            return None
        session = cast("Session", found)
        return to_file({"session_id": session.session_id, "created_at": session.created_at})

    async def _write(self, key: str, body: bytes, *, new: bool) -> None:
        run = run_place(key)
        if run is not None:
            await self._runs.write(run, body)
            return
        place = _AGENT.fullmatch(key)
        if place is None:
            await self._write_session(key, body)
            return
        session_id, agent_id, rest = place["session"], place["agent"], place["rest"]
        agent = await self._agent(session_id, agent_id)
        if _MESSAGE.fullmatch(rest):
            write = self._repository.create_message if new else self._repository.update_message
            agent.listed = {}
            await self._ask(write, session_id, agent_id, _message_record(body))
            return
        if rest == "agent.json":
            record = _agent_record(body, {} if agent.record is None else _beside(agent.record))
        elif agent.record is not None:
            internal, beside = agent.record.internal_state, {**_beside(agent.record), rest: json.loads(body or b"null")}
            ours = {**cast("dict[str, Any]", internal.get(OURS) or {}), "beside": beside}
            record = replace(agent.record, _internal_state={**internal, OURS: ours})
        else:
            raise Invalid("an agent is stored before the documents beside it", key=key)
        write = self._repository.create_agent if agent.record is None else self._repository.update_agent
        await self._ask(write, session_id, record)
        agent.record = record

    async def _write_session(self, key: str, body: bytes) -> None:
        place = _SESSION.fullmatch(key)
        if place is None or place["rest"] != "session.json":
            self._kept[key] = body
            return
        created_at = str(read(body)["created_at"])
        session = Session(place["session"], SessionType.AGENT, created_at, created_at)
        await self._ask(self._repository.create_session, session)

    async def _agent(self, session_id: str, agent_id: str) -> _Agent:
        agent = self._agents.setdefault((session_id, agent_id), _Agent())
        if not agent.looked:
            found = await self._ask(self._repository.read_agent, session_id, agent_id)
            agent.record, agent.looked = cast("SessionAgent | None", found), True
        return agent

    async def _ask(self, method: Callable[..., object], *arguments: object) -> object:
        name = getattr(method, "__name__", "a method")
        try:
            if inspect.iscoroutinefunction(method):
                return await method(*arguments)
            answer = await run_foreign(lambda: method(*arguments))
            return await answer if inspect.isawaitable(answer) else answer
        except RepertoryError:
            raise
        except BaseException as error:
            failure_of(error)  # What is none goes on.
            msg = f"the session repository failed in {name}: {type(error).__name__}: {error}"
            raise StoreFailed(msg) from error


def _version(body: bytes) -> str:
    return blake2b(body, digest_size=16).hexdigest()


def _beside(record: SessionAgent) -> dict[str, Any]:
    ours = record.internal_state.get(OURS)
    beside = cast("dict[str, Any]", ours).get("beside") if isinstance(ours, dict) else None
    return cast("dict[str, Any]", beside) if isinstance(beside, dict) else {}


def _agent_record(body: bytes, beside: Mapping[str, Any]) -> SessionAgent:
    document = cast("dict[str, Any]", read(body))
    ours: dict[str, Any] = {"agent": document.get(OURS), "beside": dict(beside)}
    internal = {**document["_internal_state"], OURS: ours}
    return SessionAgent.from_stored({**{name: document[name] for name in _FIELDS}, "_internal_state": internal})


def _agent_body(record: SessionAgent) -> bytes:
    internal = {name: value for name, value in record.internal_state.items() if name != OURS}
    ours = record.internal_state.get(OURS)
    marker = cast("dict[str, Any]", ours).get("agent") if isinstance(ours, dict) else None
    document: dict[str, Any] = {name: getattr(record, name) for name in _FIELDS}
    return to_file({**document, "_internal_state": internal} | ({} if marker is None else {OURS: marker}))


def _message_record(body: bytes) -> SessionMessage:
    """The record of a message's document, its rows hidden in the message's metadata."""
    document = cast("dict[str, Any]", read(body))
    ours = document.get(OURS)
    if ours is not None:
        for name in ("message", "redact_message"):
            if document.get(name) is not None:
                document[name] = _hiding(document[name], ours)
    return SessionMessage.from_stored(document)


def _hiding(message: Mapping[str, Any], ours: object) -> dict[str, Any]:
    metadata = _known_mapping(message.get("metadata"))
    custom = _known_mapping(metadata.get("custom")) if metadata is not None else None
    hidden = {"rows": ours, "bare": "metadata" if metadata is None else ("custom" if custom is None else "")}
    return {**message, "metadata": {**(metadata or {}), "custom": {**(custom or {}), OURS: hidden}}}


def _known_mapping(value: object) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def _message_body(record: SessionMessage) -> bytes:
    document: dict[str, Any] = {
        "message": record.message,
        "message_id": record.message_id,
        "redact_message": record.redact_message,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }
    for name in ("message", "redact_message"):
        hidden = _hidden_in(document[name])
        if hidden is not None:
            document[name] = _without_hidden(document[name], hidden)
            document[OURS] = hidden["rows"]
    return to_file(document)


def _hidden_in(message: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The value that `_hiding` has stored, if any."""
    found: Any = message
    for name in ("metadata", "custom", OURS):
        found = cast("Mapping[str, Any]", found).get(name) if isinstance(found, Mapping) else None
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else None


def _without_hidden(message: Mapping[str, Any], hidden: Mapping[str, Any]) -> dict[str, Any]:
    metadata = dict(message["metadata"])
    custom = {name: value for name, value in metadata["custom"].items() if name != OURS}
    if custom or not hidden.get("bare"):
        metadata["custom"] = custom
    else:
        del metadata["custom"]
    visible = {name: value for name, value in message.items() if name != "metadata"}
    if hidden.get("bare") == "metadata" and not metadata:
        return visible
    return {name: (metadata if name == "metadata" else value) for name, value in message.items()}


# The runs of orchestrators in a user's `SessionRepository`, as the objects of the documented layout.
#
# A record is the document of the run. Our data is in its `_internal_state`: the document's marker, and the rows beside
# it.

_RUN = re.compile(r"session_(?P<session>[^/]+)/multi_agents/multi_agent_(?P<orchestrator>[^/]+)/(?P<rest>.*)")
_DOCUMENT = "multi_agent.json"


class RunPlace(NamedTuple):
    """The place of an object."""

    session_id: str
    orchestrator_id: str
    name: str
    """The name within the orchestrator's folder; empty for the folder."""


def run_place(key: str) -> RunPlace | None:
    """The place of the object with that key; None when it belongs to no orchestrator."""
    found = _RUN.fullmatch(key)
    return None if found is None else RunPlace(found["session"], found["orchestrator"], found["rest"])


class RepositoryRuns:
    """Reads and writes runs. Errors of every call: `SessionException`; `Invalid` for a repository without runs."""

    def __init__(self, repository: SessionRepository, ask: Callable[..., Awaitable[object]]) -> None:
        """`ask` calls a method of the repository."""
        self._repository = repository
        self._ask = ask
        self._states: dict[tuple[str, str], dict[str, Any] | None] = {}

    async def names(self, place: RunPlace) -> list[str]:
        """The names of an orchestrator's objects."""
        state = await self._state(place)
        return [] if state is None else [_DOCUMENT, *_beside_run(state)]

    async def read(self, place: RunPlace) -> bytes | None:
        """One object; None when it does not exist."""
        state = await self._state(place)
        if state is None:
            return None
        if place.name == _DOCUMENT:
            return _document(state)
        kept = _beside_run(state).get(place.name)
        return None if kept is None else json.dumps(kept).encode()

    async def write(self, place: RunPlace, body: bytes) -> None:
        """Write one object. Errors: `Invalid` for an object beside the document before the document itself."""
        state = await self._state(place)
        if place.name == _DOCUMENT:
            made = parsed(body)
            ours = {"document": made.pop(OURS, None), "beside": {} if state is None else _beside_run(state)}
        elif state is not None:
            made = state
            ours = {**_hidden(state), "beside": {**_beside_run(state), place.name: json.loads(body)}}
        else:
            raise Invalid("a run is stored before the documents beside it", orchestrator=place.orchestrator_id)
        internal = cast("dict[str, Any]", made.get("_internal_state") or {})
        made = {**made, "_internal_state": {**internal, OURS: ours}}
        write = self._method("create_multi_agent" if state is None else "update_multi_agent")
        await self._ask(write, place.session_id, SessionMultiAgent(place.orchestrator_id, made))
        self._states[place.session_id, place.orchestrator_id] = made

    async def _state(self, place: RunPlace) -> dict[str, Any] | None:
        key = place.session_id, place.orchestrator_id
        if key not in self._states:
            found = await self._ask(self._method("read_multi_agent"), *key)
            self._states[key] = cast("dict[str, Any] | None", found)
        return self._states[key]

    def _method(self, name: str) -> Callable[..., object]:
        method = getattr(self._repository, name, None)
        if method is None:
            kind = type(self._repository).__name__
            raise Invalid(f"a session repository that keeps graphs and swarms has a method {name}", repository=kind)
        return cast("Callable[..., object]", method)


def _hidden(state: dict[str, Any]) -> dict[str, Any]:
    internal = state.get("_internal_state")
    ours = cast("dict[str, Any]", internal).get(OURS) if isinstance(internal, dict) else None
    return cast("dict[str, Any]", ours) if isinstance(ours, dict) else {}


def _beside_run(state: dict[str, Any]) -> dict[str, Any]:
    found = _hidden(state).get("beside")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _document(state: dict[str, Any]) -> bytes:
    internal = cast("dict[str, Any]", state.get("_internal_state") or {})
    made = {**state, "_internal_state": {name: value for name, value in internal.items() if name != OURS}}
    mark = _hidden(state).get("document")
    return json_file(made if mark is None else {**made, OURS: mark})
