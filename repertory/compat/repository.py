"""Sessions in a user's own `SessionRepository`."""

from __future__ import annotations

import inspect
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

import anyio

from repertory.app.sessions.sessions import new_owner
from repertory.backends.ports import Condition, Create, ObjectInfo, StoredObject, Update
from repertory.backends.sessions.liveness import Liveness
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
from repertory.core.json_bytes import epoch, from_base64, json_file, parsed, read, to_base64, to_file
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
        from repertory.backends.sessions.documents.bucket_store import BucketSessionStore
        from repertory.backends.sessions.documents.reading import BESIDE_RECORDS
        from repertory.backends.sessions.journal.store import ObjectSessionStore

        objects = RepositoryObjects(self.repository)
        journals = ObjectSessionStore(objects, owner=new_owner(), life=Unowned(), layout=BESIDE_RECORDS)
        return BucketSessionStore(journals, objects, wall=time.time, entropy=os.urandom, short_names=False)


class Unowned(Liveness):
    """Owners in a repository, which cannot tell whether another one is alive: whoever comes gets the session."""

    async def is_alive(
        self, owner: str, proved_at: float, silent_s: Callable[[], Awaitable[float]] | None = None
    ) -> bool:
        del owner, proved_at, silent_s
        return False


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
        session_repository: The store of the records.

    Raises:
        Invalid: For a bad id. Correct the argument.
    """

    session_id: str
    session_repository: SessionRepository
    takeover: bool = False
    """A setting without effect: a repository has no owners."""
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
# The records of agents and messages are the documents, with nothing of ours in them. The journal is kept by an agent of
# its own: its state has the head and the like, by their keys, and each of its messages is a segment or a chunk.

JOURNAL = "repertory.journal"
"""The id of the agent whose records are the journal."""
_AGENT = re.compile(r"session_(?P<session>[^/]+)/agents/agent_(?P<agent>[^/]+)/(?P<rest>.*)")
_RUN = re.compile(r"session_(?P<session>[^/]+)/multi_agents/multi_agent_(?P<orchestrator>[^/]+)/(?P<rest>.*)")
_OF_JOURNAL = re.compile(r"session_(?P<session>[^/]+)/repertory/(?P<rest>.*)")
_SESSION = re.compile(r"session_(?P<session>[^/]+)/session\.json")
_MESSAGE = re.compile(r"messages/message_([0-9]+)\.json")
_COMMIT = re.compile(r"([sc])/([0-9]{16})")
_FIELDS = ("agent_id", "state", "conversation_manager_state", "_internal_state", "created_at", "updated_at")
_TIMES = ("created_at", "updated_at")


class RepositoryObjects:
    """An `ObjectStore` over a repository, for one session store.

    Errors of every call: `StoreFailed` (a `SessionException`) for the repository's exceptions; `Invalid` for what it
    cannot do: list sessions, or remove anything.
    """

    def __init__(self, repository: SessionRepository) -> None:
        self._repository = repository
        self._listed: dict[str, SessionMessage] = {}
        """The messages of the last listing, by their keys, until the next write."""
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
            self._listed = {}
            await self._write(key, body, new=existing is None)
        return _version(body)

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        """The objects of one agent, orchestrator or journal. Errors: `Invalid` for any other prefix."""
        async with self._turn:
            if (match := _AGENT.fullmatch(prefix)) and not match["rest"]:
                found = await self._documents(prefix, match["session"], match["agent"])
            elif (match := _RUN.fullmatch(prefix)) and not match["rest"]:
                key = f"{prefix}multi_agent.json"
                found = {key: 0.0} if await self._read(key) is not None else {}
            elif match := _OF_JOURNAL.fullmatch(prefix):
                found = await self._journal(match["session"])
            else:
                raise Invalid("a session repository cannot tell which sessions it has", prefix=prefix)
            versions = {key: _version(_message_body(message)) for key, message in self._listed.items()}
        return [
            ObjectInfo(key=key, size_bytes=0, version=versions.get(key), modified_at=at)
            for key, at in sorted(found.items())
            if key.startswith(prefix) and (start_after is None or key > start_after)
        ]

    async def delete(self, key: str) -> None:
        """Empty an object of a journal. Errors: `Invalid` for every other one."""
        match = _OF_JOURNAL.fullmatch(key)
        if match is None:
            raise Invalid("a session repository cannot remove anything", key=key)
        async with self._turn:
            if await self._read(key) is not None:
                await self._write(key, b"", new=False)

    async def aclose(self) -> None:
        """Does nothing: the repository's owner closes it."""

    # Listing.

    async def _documents(self, prefix: str, session_id: str, agent_id: str) -> dict[str, float]:
        """The keys of an agent's documents, and when each was changed."""
        if await self._agent(session_id, agent_id) is None:
            return {}
        messages = await self._messages(session_id, agent_id)
        self._listed = {f"{prefix}messages/message_{int(each.message_id)}.json": each for each in messages}
        return {f"{prefix}agent.json": 0.0, **{key: epoch(each.updated_at) for key, each in self._listed.items()}}

    async def _journal(self, session_id: str) -> dict[str, float]:
        """The keys of a journal's objects."""
        record = await self._agent(session_id, JOURNAL)
        if record is None:
            return {}
        numbers = [int(each.message_id) for each in await self._messages(session_id, JOURNAL) if _text_of(each)]
        names = [f"{'sc'[number % 2]}/{number // 2:016}" for number in numbers]
        logs = [name for name, text in record.state.items() if text]
        return {f"session_{session_id}/repertory/{name}": 0.0 for name in (*logs, *names)}

    async def _messages(self, session_id: str, agent_id: str) -> Sequence[SessionMessage]:
        return cast("Sequence[SessionMessage]", await self._ask(self._repository.list_messages, session_id, agent_id))

    # Reading and writing records.

    async def _read(self, key: str) -> bytes | None:
        if match := _AGENT.fullmatch(key):
            return await self._read_document(key, match["session"], match["agent"], match["rest"])
        if match := _OF_JOURNAL.fullmatch(key):
            return await self._read_journal(match["session"], match["rest"])
        if match := _RUN.fullmatch(key):
            state = await self._ask(self._of_runs("read_multi_agent"), match["session"], match["orchestrator"])
            return None if state is None or match["rest"] != "multi_agent.json" else json_file(cast("Any", state))
        match = _SESSION.fullmatch(key)
        found = None if match is None else await self._ask(self._repository.read_session, match["session"])
        if found is None:
            return None
        session = cast("Session", found)
        return to_file({"session_id": session.session_id, "created_at": session.created_at})

    async def _read_document(self, key: str, session_id: str, agent_id: str, rest: str) -> bytes | None:
        message = _MESSAGE.fullmatch(rest)
        if message is None:
            record = await self._agent(session_id, agent_id) if rest == "agent.json" else None
            return None if record is None else to_file({name: getattr(record, name) for name in _FIELDS})
        found = self._listed.get(key)
        if found is None and await self._agent(session_id, agent_id) is not None:
            found = await self._ask(self._repository.read_message, session_id, agent_id, int(message[1]))
        return None if found is None else _message_body(cast("SessionMessage", found))

    async def _read_journal(self, session_id: str, name: str) -> bytes | None:
        record = await self._agent(session_id, JOURNAL)
        number = _number_of(name)
        if record is None:
            return None
        if number is None:
            text = str(record.state.get(name) or "")
        else:
            found = await self._ask(self._repository.read_message, session_id, JOURNAL, number)
            text = "" if found is None else _text_of(cast("SessionMessage", found))
        return from_base64(text) if text else None

    async def _write(self, key: str, body: bytes, *, new: bool) -> None:
        if match := _AGENT.fullmatch(key):
            await self._write_document(match["session"], match["agent"], match["rest"], body, new=new)
        elif match := _OF_JOURNAL.fullmatch(key):
            await self._write_journal(match["session"], match["rest"], to_base64(body))
        elif match := _RUN.fullmatch(key):
            write = self._of_runs("create_multi_agent" if new else "update_multi_agent")
            await self._ask(write, match["session"], SessionMultiAgent(match["orchestrator"], parsed(body)))
        elif match := _SESSION.fullmatch(key):
            await self._begin(match["session"], str(read(body)["created_at"]))

    async def _begin(self, session_id: str, at: str) -> None:
        if await self._ask(self._repository.read_session, session_id) is None:
            await self._ask(self._repository.create_session, Session(session_id, SessionType.AGENT, at, at))

    async def _write_document(self, session_id: str, agent_id: str, rest: str, body: bytes, *, new: bool) -> None:
        fields = cast("dict[str, Any]", read(body))
        if _MESSAGE.fullmatch(rest):
            write = self._repository.create_message if new else self._repository.update_message
            await self._ask(write, session_id, agent_id, SessionMessage.from_stored(fields))
        elif rest == "agent.json":
            record = SessionAgent.from_stored({name: fields[name] for name in _FIELDS})
            write = self._repository.create_agent if new else self._repository.update_agent
            await self._ask(write, session_id, record)

    async def _write_journal(self, session_id: str, name: str, text: str) -> None:
        """Write an object of a journal; one without text counts as removed."""
        record, number = await self._agent(session_id, JOURNAL), _number_of(name)
        if record is None:
            record = SessionAgent(JOURNAL, {}, {})
            await self._begin(session_id, record.created_at)
            await self._ask(self._repository.create_agent, session_id, record)
        if number is None:
            state = {**record.state, name: text}
            state = {each: text for each, text in state.items() if text}
            await self._ask(self._repository.update_agent, session_id, replace(record, state=state))
            return
        there = await self._ask(self._repository.read_message, session_id, JOURNAL, number)
        write = self._repository.create_message if there is None else self._repository.update_message
        message = {"role": "user", "content": [{"text": text}]}
        await self._ask(write, session_id, JOURNAL, SessionMessage(message, number))

    async def _agent(self, session_id: str, agent_id: str) -> SessionAgent | None:
        return cast("SessionAgent | None", await self._ask(self._repository.read_agent, session_id, agent_id))

    def _of_runs(self, name: str) -> Callable[..., object]:
        method = getattr(self._repository, name, None)
        if method is None:
            kind = type(self._repository).__name__
            raise Invalid(f"a session repository that keeps graphs and swarms has a method {name}", repository=kind)
        return cast("Callable[..., object]", method)

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
    """The version of an object. Repositories may set the times of their records themselves, so these do not count."""
    try:
        fields = parsed(body)
    except ValueError:
        return blake2b(body, digest_size=16).hexdigest()
    content = {name: value for name, value in fields.items() if name not in _TIMES}
    return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _number_of(name: str) -> int | None:
    """The number of the message that is a segment or a chunk; None for other objects of a journal."""
    found = _COMMIT.fullmatch(name)
    return None if found is None else 2 * int(found[2]) + "sc".index(found[1])


def _text_of(record: SessionMessage) -> str:
    return str(record.message["content"][0].get("text") or "")


def _message_body(record: SessionMessage) -> bytes:
    names = ("message", "message_id", "redact_message", "created_at", "updated_at")
    return to_file({name: getattr(record, name) for name in names})
