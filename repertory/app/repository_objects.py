"""Anyone's `SessionRepository` as the objects of the documented layout.

A record has no room for what is ours, so it travels where a repository keeps whatever it is given: rows of a message in
its `metadata.custom`, all else in the agent's internal state. The lease lives as long as this object.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, cast

import anyio
import anyio.to_thread

from repertory.app.repository_runs import RepositoryRuns, run_place
from repertory.app.session_repository import Session, SessionAgent, SessionMessage, SessionRepository, SessionType
from repertory.backends.ports import Condition, Create, ObjectInfo, StoredObject, Update
from repertory.core.message_tree.documents import OURS
from repertory.core.message_tree.spelling import epoch, read, spelled
from repertory.errors import (
    AlreadyExists,
    Invalid,
    NotFound,
    PreconditionFailed,
    RepertoryError,
    StoreFailed,
)

_AGENT = re.compile(r"session_(?P<session>[^/]+)/agents/agent_(?P<agent>[^/]+)/(?P<rest>.*)")
_SESSION = re.compile(r"session_(?P<session>[^/]+)/(?P<rest>[^/]+)")
_MESSAGE = re.compile(r"messages/message_([0-9]+)\.json")
_FIELDS = ("agent_id", "state", "conversation_manager_state", "created_at", "updated_at")


@dataclass(slots=True)
class _Agent:
    """What is known of one agent without asking."""

    record: SessionAgent | None = None
    looked: bool = False
    listed: dict[int, SessionMessage] = field(default_factory=dict[int, SessionMessage])
    """The messages of the last listing, as long as nothing has been written."""


class RepositoryObjects:
    """An `ObjectStore` over a repository, for one store of sessions.

    Errors of every call: `StoreFailed` (a `SessionException`) for whatever the repository raises; `Invalid` for what it
    cannot do: tell which sessions there are, or remove anything.
    """

    def __init__(self, repository: SessionRepository) -> None:
        self._repository = repository
        self._kept: dict[str, bytes] = {}
        """Objects that a repository has no place for."""
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
            there = await self._read(key)
            if isinstance(condition, Create) and there is not None:
                raise AlreadyExists("the object is there already", key=key)
            if isinstance(condition, Update) and (there is None or _version(there) != condition.version):
                raise PreconditionFailed("the object is not the one to update", key=key, wanted=condition.version)
            await self._write(key, body, new=there is None)
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
        """Forget an object that a repository has no place for. Errors: `Invalid` for every other one."""
        place = _AGENT.fullmatch(key)
        if (
            key not in self._kept
            and place is not None
            and (place["rest"] == "agent.json" or _MESSAGE.fullmatch(place["rest"]))
        ):
            raise Invalid("a session repository cannot remove anything", key=key)
        self._kept.pop(key, None)

    async def aclose(self) -> None:
        """The repository is its owner's to close."""

    # Within.

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
        return spelled({"session_id": session.session_id, "created_at": session.created_at})

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
            record = _with_beside(agent.record, {**_beside(agent.record), rest: json.loads(body or b"null")})
        else:
            raise Invalid("an agent comes before what lies beside it", key=key)
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
        """What the repository answers, whichever way its method works."""
        name = getattr(method, "__name__", "a method")
        try:
            if inspect.iscoroutinefunction(method):
                return await method(*arguments)
            answer = await anyio.to_thread.run_sync(lambda: method(*arguments))
            return await answer if inspect.isawaitable(answer) else answer
        except RepertoryError:
            raise
        except Exception as error:
            msg = f"the session repository failed in {name}: {type(error).__name__}: {error}"
            raise StoreFailed(msg) from error


def _version(body: bytes) -> str:
    return blake2b(body, digest_size=16).hexdigest()


def _beside(record: SessionAgent) -> dict[str, Any]:
    """The documents that lie beside the agent's, by name."""
    ours = record.internal_state.get(OURS)
    beside = cast("dict[str, Any]", ours).get("beside") if isinstance(ours, dict) else None
    return cast("dict[str, Any]", beside) if isinstance(beside, dict) else {}


def _with_beside(record: SessionAgent, beside: Mapping[str, Any]) -> SessionAgent:
    ours = {**cast("dict[str, Any]", record.internal_state.get(OURS) or {}), "beside": dict(beside)}
    return SessionAgent(
        record.agent_id,
        record.state,
        record.conversation_manager_state,
        {**record.internal_state, OURS: ours},
        record.created_at,
        record.updated_at,
    )


def _agent_record(body: bytes, beside: Mapping[str, Any]) -> SessionAgent:
    said = cast("dict[str, Any]", read(body))
    ours: dict[str, Any] = {"agent": said.get(OURS), "beside": dict(beside)}
    internal = {**said["_internal_state"], OURS: ours}
    return SessionAgent.from_dict({**{name: said[name] for name in _FIELDS}, "_internal_state": internal})


def _agent_body(record: SessionAgent) -> bytes:
    internal = {name: value for name, value in record.internal_state.items() if name != OURS}
    ours = record.internal_state.get(OURS)
    marker = cast("dict[str, Any]", ours).get("agent") if isinstance(ours, dict) else None
    said: dict[str, Any] = {name: getattr(record, name) for name in _FIELDS}
    return spelled({**said, "_internal_state": internal} | ({} if marker is None else {OURS: marker}))


def _message_record(body: bytes) -> SessionMessage:
    """The record of a message's document, its rows hidden in the message's metadata."""
    said = cast("dict[str, Any]", read(body))
    ours = said.get(OURS)
    if ours is not None:
        for name in ("message", "redact_message"):
            if said.get(name) is not None:
                said[name] = _hiding(said[name], ours)
    return SessionMessage.from_dict(said)


def _hiding(message: Mapping[str, Any], ours: object) -> dict[str, Any]:
    metadata = _known_mapping(message.get("metadata"))
    custom = _known_mapping(metadata.get("custom")) if metadata is not None else None
    hidden = {"rows": ours, "bare": "metadata" if metadata is None else ("custom" if custom is None else "")}
    return {**message, "metadata": {**(metadata or {}), "custom": {**(custom or {}), OURS: hidden}}}


def _known_mapping(value: object) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def _message_body(record: SessionMessage) -> bytes:
    said: dict[str, Any] = {
        "message": record.message,
        "message_id": record.message_id,
        "redact_message": record.redact_message,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }
    for name in ("message", "redact_message"):
        hidden = _hidden_in(said[name])
        if hidden is not None:
            said[name] = _without_hidden(said[name], hidden)
            said[OURS] = hidden["rows"]
    return spelled(said)


def _hidden_in(message: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What `_hiding` has put there, if it has."""
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
    said = {name: value for name, value in message.items() if name != "metadata"}
    if hidden.get("bare") == "metadata" and not metadata:
        return said
    return {name: (metadata if name == "metadata" else value) for name, value in message.items()}
