"""Messages that somebody else adds while we hold the session: the next turn takes them in and goes on behind them."""

from __future__ import annotations

import itertools
import json
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    FileSessionManager,
    FileSessions,
    FileStorage,
    InMemoryStorage,
    JournalSessionManager,
    JournalSessions,
    MessageAddedEvent,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessionManager,
    SQLiteSessions,
    tool,
)
from repertory.actors import context
from repertory.app.host import session as host_session
from repertory.backends.objects.in_memory import MemoryObjectStore
from repertory.backends.ports import Batch, Condition, ObjectStore, Overwrite, SessionStore, give_up
from repertory.backends.tools.function_tool import schema_class
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.restore import Appender, restore
from repertory.core.messages import NO_ANSWER_TEXT, Message, text_of
from tests.app.sessions.tree_sessions import TreeSessions

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

AGENT = "session_s/agents/agent_default"


@pytest.fixture(autouse=True)
def looks_before_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look counts for two milliseconds, which do not pass here between two calls."""
    monkeypatch.setattr(context, "_LOOK_S", -1.0)


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def agent_on(place: Any, *replies: Any, **options: Any) -> Agent:
    model = ScriptedModel(list(replies))
    return Agent(model, tools=[add], callback_handler=None, session_manager=place, **options)


async def write_foreign(place: TreeSessions, *messages: dict[str, Any], state: dict[str, Any] | None = None) -> None:
    """What a tool writes that knows nothing of ours."""
    objects = MemoryObjectStore(place.shelf)
    count = sum(key.startswith(f"{AGENT}/messages/") for key in place.shelf.objects)
    when = "2026-11-21T06:03:59.807405+00:00"
    for number, message in enumerate(messages, count):
        fields = {"message": message, "message_id": number, "redact_message": None, "created_at": when}
        await objects.put(f"{AGENT}/messages/message_{number}.json", json.dumps(fields).encode(), Overwrite())
    if state is not None:
        about = json.loads((await objects.get(f"{AGENT}/agent.json")).body)
        body = json.dumps({name: value for name, value in {**about, "state": state}.items() if name != "repertory"})
        await objects.put(f"{AGENT}/agent.json", body.encode(), Overwrite())


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"text": text}]}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"text": text}]}


def texts(messages: Any) -> list[str]:
    return [text_of(message) for message in messages]


@pytest.mark.parametrize("durability", ["pipelined", "strict", "relaxed"])
async def test_the_turn_goes_on_behind_them_and_the_model_is_shown_them(durability: Any) -> None:
    place = TreeSessions()
    async with agent_on(place, "one", "two", "three", durability=durability) as agent:
        await agent.invoke_async("first")
        await anyio.sleep(1)  # A relaxed answer is stored afterwards.
        await write_foreign(place, user("between"), assistant("added"))
        assert str(await agent.invoke_async("second")) == "two"
        expected = ["first", "one", "between", "added", "second", "two"]
        assert texts(agent.model.calls[-1].messages) == expected[:-1]
        assert texts(agent.messages) == texts(await agent.history()) == expected
        await agent.invoke_async("third")
        live = agent.messages
    restored = agent_on(place)
    await restored.ready()
    assert restored.messages == live
    assert texts(live) == [*expected, "third", "three"]
    documents = [json.loads(kept.body) for key, kept in place.shelf.objects.items() if "/messages/" in key]
    documents.sort(key=lambda document: document["message_id"])
    assert texts(one["message"] for one in documents) == texts(live)


async def test_callbacks_and_streams_are_told_of_the_prompt_once() -> None:
    place = TreeSessions()
    heard: list[str] = []

    def added(event: MessageAddedEvent) -> None:
        heard.append(text_of(event.message))
        event.message["content"].append({"text": "edited"})

    async with agent_on(place, "one", "two") as agent:
        await agent.invoke_async("first")
        await write_foreign(place, user("between"), assistant("added"))
        agent.add_hook(added)
        seen: list[Any] = []
        async with aclosing(agent.stream_async("second")) as events:
            async for event in events:
                seen.append(event)
        said = [event["message"] for event in seen if "message" in event]
        assert texts(said) == ["two\nedited"]
        assert texts(agent.messages)[-2:] == ["second\nedited", *texts(said)]
    assert heard == ["second", "two"]


async def test_a_prompt_of_theirs_without_an_answer_is_noted() -> None:
    place = TreeSessions()
    async with agent_on(place, "one", "two") as agent:
        await agent.invoke_async("first")
        await write_foreign(place, user("between"))
        await agent.invoke_async("second")
        assert texts(agent.messages) == ["first", "one", "between", NO_ANSWER_TEXT, "second", "two"]


async def test_a_tool_use_of_theirs_without_a_result_is_answered() -> None:
    place = TreeSessions()
    use = {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "add", "input": {"a": 1, "b": 2}}}]}
    async with agent_on(place, "one", "two") as agent:
        await agent.invoke_async("first")
        await write_foreign(place, user("between"), use)
        await agent.invoke_async("second")
        prompt = agent.messages[4]
    assert [next(iter(block)) for block in prompt["content"]] == ["toolResult", "text"]
    assert prompt["content"][0]["toolResult"]["toolUseId"] == "t"


async def test_their_state_is_taken_in_and_ours_stays_on_top() -> None:
    place = TreeSessions()
    async with agent_on(place, "one", "two", state={"ours": 1, "both": 1}) as agent:
        await agent.invoke_async("first")
        await write_foreign(place, user("between"), assistant("added"), state={"theirs": 2, "both": 2})
        agent.state.set("both", 3)
        await agent.invoke_async("second")
        assert agent.state.get() == {"theirs": 2, "both": 3}
    restored = agent_on(place)
    await restored.ready()
    assert restored.state.get() == {"theirs": 2, "both": 3}


async def test_a_direct_tool_call_goes_on_behind_them_as_well() -> None:
    place = TreeSessions()
    async with agent_on(place, "one") as agent:
        await agent.invoke_async("first")
        await write_foreign(place, user("between"), assistant("added"))
        result = await agent.tool.add.invoke_async(a=1, b=2)
        assert result["content"] == [{"text": "3"}]
        assert texts(agent.messages)[2:4] == ["between", "added"]
        assert len(agent.messages) == 8


async def test_two_agents_of_the_session_go_on_side_by_side() -> None:
    """They share a lease, which is taken anew for the one; the other one meets that, and goes on too."""
    place = TreeSessions()
    async with (
        Runtime(),
        agent_on(place, "one", "two") as agent,
        agent_on(place, "uno", "due", agent_id="other") as other,
    ):
        await agent.invoke_async("first")
        await other.invoke_async("primo")
        await write_foreign(place, user("between"), assistant("added"))
        await agent.invoke_async("second")
        assert texts(agent.messages)[2:] == ["between", "added", "second", "two"]
        await other.invoke_async("secondo")
        assert texts(other.messages) == ["primo", "uno", "secondo", "due"]


@dataclass
class Meddlesome(TreeSessions):
    """A place where somebody adds a message whenever we are about to."""

    meddling: int = 0
    """So many times yet."""

    def open_store(self) -> SessionStore:
        store = super().open_store()
        store._objects.objects = Raced(store._objects.objects, self)  # type: ignore[attr-defined]
        return store


class Raced:
    """Objects of which others write every message first."""

    def __init__(self, objects: ObjectStore, place: Meddlesome) -> None:
        self._objects = objects
        self._place = place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        if "/messages/" in key and self._place.meddling:
            self._place.meddling -= 1
            await write_foreign(self._place, user("between"), assistant("added"))
        return await self._objects.put(key, body, condition)


async def test_who_never_comes_first_gets_the_next_numbers_and_takes_the_others_in_afterwards() -> None:
    place = Meddlesome()
    async with agent_on(place, "one", "two", "three") as agent:
        await agent.invoke_async("first")
        place.meddling = 1
        await agent.invoke_async("second")
        assert not place.meddling
        await agent.invoke_async("third")
        assert len(agent.model.calls) == 3
        assert texts(agent.messages) == ["first", "one", "second", "two", "between", "added", "third", "three"]
    said = [json.loads(kept.body) for key, kept in place.shelf.objects.items() if "/messages/" in key]
    assert sorted(texts(one["message"] for one in said)) == sorted(texts(agent.messages))


class Clock:
    """Wall-clock time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def time(self) -> float:
        return self.now


async def say(store: SessionStore, takeover: bool, *messages: Message, token: str | None = None) -> Any:
    """Another owner takes the session over and says something."""
    lease, _ = await store.acquire("s", takeover=takeover)
    rows = list(await store.load("s", "default", whole=True))
    restored = restore(rows)
    appender = Appender("default", restored.fold, restored.link, lambda size: b"x" * size)
    numbers = itertools.count(restored.fold.message_count)
    turn = restored.fold.turns + 1
    tokens = iter([token])
    made = [
        appender.append(
            MessageAdded(at=1.0, message=message, turn=turn, index=next(numbers), idempotency_token=next(tokens, None))
        )
        for message in messages
    ]
    await store.append([Batch(lease=lease, rows=made)])
    return lease


@pytest.mark.real_time
@pytest.mark.parametrize("named", [False, True])
async def test_an_owner_that_came_and_went_is_no_reason_to_fail(named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said is there. When it has answered this very turn already, that answer is given."""
    clock = Clock()
    monkeypatch.setattr(host_session, "time", clock)
    storage = InMemoryStorage()
    async with agent_on(JournalSessionManager("s", storage=storage), "one", "two") as agent:
        await agent.invoke_async("first")
        other = JournalSessions(storage).open_store()
        try:
            said: list[Any] = [user("between"), assistant("added")]
            await give_up(other, await say(other, True, *said, token="t" if named else None))
        finally:
            await other.aclose()
        clock.now += 20.0
        result = await agent.invoke_async("second", idempotency_token="t")
        assert (str(result), result.replayed) == (("added", True) if named else ("two", False))
        expected = ["first", "one", "between", "added"] + ([] if named else ["second", "two"])
        assert texts(agent.messages) == expected


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["sqlite", "journal", "documents"])
async def test_a_redaction_of_an_open_session_is_known_to_its_next_turn(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a takeover, since the owner is alive; the owner goes on with what it says then."""
    clock = Clock()
    monkeypatch.setattr(host_session, "time", clock)
    manager, place = {
        "sqlite": lambda: (SQLiteSessionManager("s", tmp_path / "a.db"), SQLiteSessions(tmp_path / "a.db")),
        "journal": lambda: (JournalSessionManager("s", FileStorage(tmp_path)), JournalSessions(FileStorage(tmp_path))),
        "documents": lambda: (FileSessionManager("s", tmp_path), FileSessions(tmp_path)),
    }[kind]()
    async with agent_on(manager, "one", "two") as agent:
        await agent.invoke_async("my number is 4711-0815")
        await Sessions(place).redact("s", 1, "[a number]", takeover=True)
        clock.now += 20.0
        await agent.invoke_async("second")
        expected = ["[a number]", "one", "second", "two"]
        assert texts(agent.model.calls[-1].messages) == expected[:-1]
        assert texts(agent.messages) == texts(await agent.history()) == expected
