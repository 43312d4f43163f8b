"""Sessions in a repository that users bring: the documented sample, and what a coroutine repository changes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from repertory import (
    Agent,
    AgentSessionManager,
    RepositorySessionManager,
    ScriptedModel,
    Session,
    SessionAgent,
    SessionException,
    SessionMessage,
    SessionRepository,
    SessionType,
    SlidingWindowConversationManager,
    tool,
)
from repertory.backends.sessions.documents.reading import named
from repertory.core.messages import text_of
from repertory.errors import Invalid

pytestmark = pytest.mark.real_time


class Cursor:
    def __init__(self, found: list[dict[str, Any]]) -> None:
        self.found = found

    def sort(self, name: str) -> Cursor:
        return Cursor(sorted(self.found, key=lambda item: item[name]))

    def skip(self, count: int) -> Cursor:
        return Cursor(self.found[count:])

    def limit(self, count: int) -> Cursor:
        return Cursor(self.found[:count])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(copy.deepcopy(self.found))


class Collection:
    """As much of a document database as the sample needs."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.calls: list[str] = []

    def insert(self, item: dict[str, Any]) -> None:
        self.calls.append("insert")
        self.items.append(copy.deepcopy(item))

    def find(self, wanted: dict[str, Any]) -> Cursor:
        self.calls.append("find")
        return Cursor([item for item in self.items if wanted.items() <= item.items()])

    def find_one(self, wanted: dict[str, Any]) -> dict[str, Any] | None:
        self.calls.append("find_one")
        return next(iter(Cursor([item for item in self.items if wanted.items() <= item.items()])), None)

    def update(self, wanted: dict[str, Any], values: dict[str, Any]) -> None:
        self.calls.append("update")
        for item in self.items:
            if wanted.items() <= item.items():
                item.update(copy.deepcopy(values))


class Database:
    def __init__(self) -> None:
        self.sessions, self.agents, self.messages = Collection(), Collection(), Collection()


class CustomSessionRepository(SessionRepository):
    """The documented sample, but for where its database comes from."""

    def __init__(self) -> None:
        self.db = Database()

    def create_session(self, session: Session) -> Session:
        self.db.sessions.insert(asdict(session))
        return session

    def read_session(self, session_id: str) -> Session | None:
        data = self.db.sessions.find_one({"session_id": session_id})
        if data:
            return Session.from_dict(data)
        return None

    def create_agent(self, session_id: str, session_agent: SessionAgent) -> None:
        self.db.agents.insert({"session_id": session_id, "agent_id": session_agent.agent_id, **asdict(session_agent)})

    def read_agent(self, session_id: str, agent_id: str) -> SessionAgent | None:
        data = self.db.agents.find_one({"session_id": session_id, "agent_id": agent_id})
        if data:
            return SessionAgent.from_dict(data)
        return None

    def update_agent(self, session_id: str, session_agent: SessionAgent) -> None:
        self.db.agents.update(
            {"session_id": session_id, "agent_id": session_agent.agent_id},
            asdict(session_agent),
        )

    def create_message(self, session_id: str, agent_id: str, session_message: SessionMessage) -> None:
        self.db.messages.insert(
            {
                "session_id": session_id,
                "agent_id": agent_id,
                "message_id": session_message.message_id,
                **asdict(session_message),
            }
        )

    def read_message(self, session_id: str, agent_id: str, message_id: int) -> SessionMessage | None:
        data = self.db.messages.find_one({"session_id": session_id, "agent_id": agent_id, "message_id": message_id})
        if data:
            return SessionMessage.from_dict(data)
        return None

    def update_message(self, session_id: str, agent_id: str, session_message: SessionMessage) -> None:
        self.db.messages.update(
            {"session_id": session_id, "agent_id": agent_id, "message_id": session_message.message_id},
            asdict(session_message),
        )

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0
    ) -> list[SessionMessage]:
        query = {"session_id": session_id, "agent_id": agent_id}
        cursor = self.db.messages.find(query).sort("created_at").skip(offset)
        if limit:
            cursor = cursor.limit(limit)
        return [SessionMessage.from_dict(message) for message in cursor]


class CoroutineRepository(SessionRepository):
    """The same, asked by awaiting."""

    def __init__(self) -> None:
        self.inner = CustomSessionRepository()

    async def create_session(self, session: Session) -> Session:
        return self.inner.create_session(session)

    async def read_session(self, session_id: str) -> Session | None:
        return self.inner.read_session(session_id)

    async def create_agent(self, session_id: str, session_agent: SessionAgent) -> None:
        self.inner.create_agent(session_id, session_agent)

    async def read_agent(self, session_id: str, agent_id: str) -> SessionAgent | None:
        return self.inner.read_agent(session_id, agent_id)

    async def update_agent(self, session_id: str, session_agent: SessionAgent) -> None:
        self.inner.update_agent(session_id, session_agent)

    async def create_message(self, session_id: str, agent_id: str, session_message: SessionMessage) -> None:
        self.inner.create_message(session_id, agent_id, session_message)

    async def read_message(self, session_id: str, agent_id: str, message_id: int) -> SessionMessage | None:
        return self.inner.read_message(session_id, agent_id, message_id)

    async def update_message(self, session_id: str, agent_id: str, session_message: SessionMessage) -> None:
        self.inner.update_message(session_id, agent_id, session_message)

    async def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0
    ) -> list[SessionMessage]:
        return self.inner.list_messages(session_id, agent_id, limit, offset)


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def agent(repository: SessionRepository, *replies: Any, **options: Any) -> Agent:
    manager = RepositorySessionManager(session_id="user-789", session_repository=repository)
    model = ScriptedModel(list(replies))
    return Agent(model, tools=[add], callback_handler=None, session_manager=manager, **options)


def of_agent(repository: CustomSessionRepository) -> list[dict[str, Any]]:
    """The records of the agent's messages; those of the journal are another agent's."""
    return [item for item in repository.db.messages.items if item["agent_id"] == "default"]


@pytest.mark.parametrize("made", [CustomSessionRepository, CoroutineRepository])
def test_a_conversation_goes_on_in_the_next_agent(made: type[SessionRepository]) -> None:
    repository = made()
    use = {"toolUse": {"name": "add", "input": {"a": 1, "b": 2}}}
    first = agent(repository, use, "three", "nice", state={"n": 1})
    first("1 + 2?")
    first([{"text": "look"}, {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}])
    first.state.set("m", [2])
    again = agent(repository, [use, use, use], "done")
    assert again.messages == first.messages
    assert again.state.get() == {"n": 1}
    again("all at once")
    last = agent(repository, "ok", conversation_manager=SlidingWindowConversationManager(window_size=4))
    assert last.messages == again.messages
    last("and now")
    assert agent(repository).messages == last.messages
    assert len(last.messages) == 2


def test_records_are_what_the_layout_says() -> None:
    repository = CustomSessionRepository()
    agent(repository, "hello")("hi")
    (session,), (journal, about) = repository.db.sessions.items, repository.db.agents.items
    assert journal["agent_id"] == "repertory.journal"
    assert (session["session_id"], session["session_type"]) == ("user-789", SessionType.AGENT)
    assert (about["agent_id"], about["conversation_manager_state"]["removed_message_count"]) == ("default", 0)
    messages = of_agent(repository)
    assert [(one["message_id"], one["redact_message"]) for one in messages] == [(0, None), (1, None)]
    assert [one["message"]["content"] for one in messages] == [[{"text": "hi"}], [{"text": "hello"}]]
    assert all(one["message"]["tracking_id"] for one in messages)
    assert "repertory" not in repr((about, messages)), "nothing of ours is in them"


def test_a_message_that_others_added_is_taken_in() -> None:
    repository = CustomSessionRepository()
    agent(repository, "hello")("hi")
    for number, (role, text) in enumerate([("user", "more"), ("assistant", "and more")], 2):
        said = {"role": role, "content": [{"text": text}]}
        repository.create_message("user-789", "default", SessionMessage(message=said, message_id=number))
    again = agent(repository, "bye")
    assert [text_of(one) for one in again.messages] == ["hi", "hello", "more", "and more"]
    again("ciao")
    assert agent(repository).messages == again.messages
    assert [one["message_id"] for one in of_agent(repository)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("made", [CustomSessionRepository, CoroutineRepository])
def test_a_repository_is_given_the_ids_that_were_given_to_us(made: type[SessionRepository]) -> None:
    """However long they are: nothing is a folder there. Two of them never meet."""
    repository = made()
    long, like_a_folder = "s" * 255, named("session_", "s" * 255).removeprefix("session_")
    for session_id in (long, like_a_folder):
        for agent_id in ("a" * 255, named("agent_", "a" * 255).removeprefix("agent_")):
            for texts in ([], [f"{session_id} {agent_id}"]):
                it = Agent(
                    ScriptedModel(["yes"]),
                    callback_handler=None,
                    agent_id=agent_id,
                    session_manager=RepositorySessionManager(session_id, repository),
                )
                assert [text_of(message) for message in it.messages[::2]] == texts
                if not texts:
                    it(f"{session_id} {agent_id}")
    db = getattr(repository, "inner", repository).db
    assert {item["session_id"] for shelf in (db.sessions, db.agents, db.messages) for item in shelf.items} == {
        long,
        like_a_folder,
    }
    assert {len(item["agent_id"]) for item in db.agents.items} == {255, 249, len("repertory.journal")}


def test_what_the_repository_raises_reaches_the_caller() -> None:
    class Broken(CustomSessionRepository):
        def update_agent(self, session_id: str, session_agent: SessionAgent) -> None:
            raise KeyError("table")

    with pytest.raises(SessionException, match=r"update_agent: KeyError: 'table'"):
        agent(Broken(), "hello")("hi")


def test_records_that_cannot_be_written_are_written_by_the_next_agent() -> None:
    """What is acknowledged is in the journal."""

    class Broken(CustomSessionRepository):
        broken = True

        def create_message(self, session_id: str, agent_id: str, session_message: SessionMessage) -> None:
            if self.broken and agent_id == "default":
                raise KeyError("table")
            super().create_message(session_id, agent_id, session_message)

    repository = Broken()
    assert str(agent(repository, "hello")("hi")).strip() == "hello"
    assert of_agent(repository) == []
    repository.broken = False
    again = agent(repository, "bye")
    assert [text_of(one) for one in again.messages] == ["hi", "hello"]
    again("ciao")
    assert [one["message"]["content"][0]["text"] for one in of_agent(repository)] == ["hi", "hello", "ciao", "bye"]


def test_a_repository_that_lacks_a_method_says_which() -> None:
    class Partial(SessionRepository):
        def create_session(self, session: Session) -> Session:
            return session

        def read_session(self, session_id: str) -> Session | None:
            return None

    with pytest.raises(Invalid, match="create_agent"):
        agent(Partial(), "hello")("hi")


def test_both_names_are_one_class() -> None:
    assert AgentSessionManager is RepositorySessionManager
    with pytest.raises(ValueError, match="session_id"):
        RepositorySessionManager("a/b", CustomSessionRepository())
