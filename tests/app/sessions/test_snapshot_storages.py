"""Snapshots in a storage of the user's own: the documented interface, asynchronous and synchronous."""

from __future__ import annotations

import json
from typing import Any

import pytest

from repertory import (
    Agent,
    AgentSpec,
    Runtime,
    ScriptedModel,
    SessionManager,
    SnapshotLocation,
    SnapshotSessions,
    SnapshotStorage,
    tool,
)
from repertory.backends.ports import Batch
from repertory.core.journal.redact import redact
from repertory.core.journal.restore import Appender, messages_of, records_of, restore
from repertory.core.messages import text_of
from repertory.errors import CorruptJournal, Invalid, LeaseLost, NotFound, SessionException, SnapshotException
from tests.backends.sessions.snapshot_places import AsyncStorage, SyncStorage

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

PLACE = SnapshotLocation("s", "agent", "default")
PNG = b"\x89PNG\r\n\x00\x01"


@tool(effects=False)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(params=["async", "sync"])
def storage(request: pytest.FixtureRequest) -> Any:
    return AsyncStorage() if request.param == "async" else SyncStorage()


def agent_on(storage: Any, *replies: object, **options: Any) -> Agent:
    manager = SessionManager("s", storage=storage, **options)
    model = ScriptedModel(list(replies) or ["answer"], loop=True)
    return Agent(model, tools=[add], session_manager=manager, callback_handler=None)


def texts(agent: Agent) -> list[str]:
    return [text_of(message) for message in agent.messages]


async def latest(storage: Any) -> dict[str, Any]:
    found = storage.load_snapshot(location=PLACE)
    document: dict[str, Any] = found if isinstance(storage, SyncStorage) else await found
    return document


async def save_latest(storage: Any, document: dict[str, Any]) -> None:
    saved = storage.save_snapshot(location=PLACE, snapshot_id="0", is_latest=True, snapshot=document)
    if saved is not None:
        await saved


def test_what_has_the_five_methods_is_a_storage() -> None:
    assert isinstance(AsyncStorage(), SnapshotStorage)
    assert isinstance(SyncStorage(), SnapshotStorage)
    assert not isinstance(object(), SnapshotStorage)


async def test_a_conversation_is_kept_with_all_that_was_ever_said(storage: Any) -> None:
    picture = {"image": {"format": "png", "source": {"bytes": PNG}}}
    first = agent_on({"snapshot": storage}, {"toolUse": {"name": "add", "input": {"a": 1, "b": 2}}}, "three")
    first.state.set("k", [1])
    await first.invoke_async([{"text": "look"}, picture])  # type: ignore[list-item]
    document = await latest(storage)
    assert (document["schemaVersion"], document["schema_version"], document["scope"]) == ("1.0", "1.0", "agent")
    assert len(document["data"]["messages"]) == 4
    assert "__bytes_encoded__" in json.dumps(document["data"]["messages"][0])
    second = agent_on(storage, "again")
    await second.invoke_async("and now?")
    assert second.messages[:4] == first.messages
    assert second.state.get() == {"k": [1]}
    assert len(await second.history()) == 6


def test_sync_calls_work(storage: Any) -> None:
    agent_on(storage)("q")
    assert texts(agent_on(storage)) == ["q", "answer"]


@pytest.mark.parametrize("strategy", ["message", "invocation", "never", "trigger"])
async def test_nothing_acknowledged_waits_for_a_strategy(strategy: Any) -> None:
    storage = AsyncStorage()
    await agent_on(storage, save_latest_on=strategy).invoke_async("q")
    again = agent_on(storage, save_latest_on=strategy)
    await again.ready()
    assert texts(again) == ["q", "answer"]


async def test_numbered_snapshots_and_going_back(storage: Any) -> None:
    counts: list[int] = []

    def every_second(turn_count: int, last_snapshot_at: int | None) -> bool:
        counts.append(turn_count)
        assert (last_snapshot_at is None) == (turn_count <= 2)
        return turn_count % 2 == 0

    for number in range(1, 6):
        await agent_on(storage, snapshot_trigger=every_second).invoke_async(f"q{number}")
    assert counts == [1, 2, 3, 4, 5]
    manager = SessionManager("s", storage=storage)
    assert await manager.list_snapshot_ids() == ["1", "2"]
    back = agent_on(storage, "other", load_snapshot_id="1", snapshot_trigger=lambda: True)
    await back.ready()
    assert texts(back)[::2] == ["q1", "q2"]
    await back.invoke_async("q6")
    assert texts(back)[::2] == ["q1", "q2", "q6"]
    assert await manager.list_snapshot_ids() == ["1", "2"]
    again = agent_on(storage, load_snapshot_id=2)
    await again.ready()
    assert texts(again)[::2] == ["q1", "q2", "q6"]
    assert [text_of(message) for message in await again.history()][::2] == ["q1", "q2", "q3", "q4", "q5", "q6"]
    with pytest.raises(NotFound):
        await agent_on(storage, load_snapshot_id=7).ready()


async def test_a_runtime_keeps_many_sessions_in_one_storage(storage: Any) -> None:
    async with Runtime(sessions=SnapshotSessions(storage, snapshot_trigger=lambda: True)) as runtime:
        agent = runtime.agent(AgentSpec(model=ScriptedModel(["hi"], loop=True)))
        for number in range(3):
            for _ in range(2):
                await agent.session(f"s{number}").invoke(f"q{number}")
    place = SnapshotSessions(storage)
    for number in range(3):
        assert await place.list_snapshot_ids(f"s{number}") == ["1", "2"]
    with pytest.raises(Invalid, match="cannot tell which sessions it has"):
        await place.list()
    with pytest.raises(Invalid, match="cannot remove anything"):
        await SessionManager("s0", storage=storage).delete_session()


async def test_an_owner_that_was_overtaken_loses_before_its_model_is_asked(storage: Any) -> None:
    async with agent_on(storage, "one") as one:
        await one.invoke_async("a")
        await agent_on(storage, "two").invoke_async("b")
        store = SnapshotSessions(storage).open_store()
        lease, _ = await store.acquire("s")
        await store.load("s", "default")
        assert [type(outcome) for outcome in await store.append([Batch(lease=lease, rows=[])])] != [LeaseLost]
        await agent_on(storage, "three").invoke_async("c")
        assert isinstance((await store.append([Batch(lease=lease, rows=[])]))[0], LeaseLost)
        await store.aclose()
    again = agent_on(storage)
    await again.ready()
    assert texts(again)[::2] == ["a", "b", "c"]


async def test_what_somebody_else_saves_is_taken_in(storage: Any) -> None:
    agent = agent_on(storage)
    await agent.invoke_async("q")
    document = await latest(storage)
    for ours in ("repertory", "sha256"):
        del document[ours]
    document["data"]["messages"] += [{"role": "user", "content": [{"text": "theirs"}]}]
    await save_latest(storage, document)
    again = agent_on(storage)
    await again.ready()
    assert texts(again) == ["q", "answer", "theirs"]


async def test_an_open_session_takes_in_what_somebody_else_saves_and_forgets_nothing(storage: Any) -> None:
    store = SnapshotSessions(storage).open_store()
    await agent_on(storage).invoke_async("q")
    lease, _ = await store.acquire("s")
    rows = list(await store.load("s", "default", whole=True))
    document = await latest(storage)
    del document["repertory"]
    document["data"]["messages"] = [{"role": "user", "content": [{"text": "theirs"}]}]
    await save_latest(storage, document)
    assert isinstance((await store.append([Batch(lease=lease, rows=[])]))[0], LeaseLost)
    await store.acquire("s")
    again = list(await store.load("s", "default", whole=True))
    assert again[: len(rows)] == rows
    said = messages_of(records_of(again)).values()
    assert [text_of(message) for message in said] == ["q", "answer", "theirs"]
    await store.aclose()


async def test_what_is_redacted_is_gone_from_the_storage(storage: Any) -> None:
    secret = "swordfish"
    agent = agent_on(storage, "understood", snapshot_trigger=lambda: True)
    await agent.invoke_async(f"secret {secret}")
    store = SnapshotSessions(storage).open_store()
    lease, _ = await store.acquire("s")
    rows = await store.load("s", "default", whole=True)
    restored = restore(rows)
    appender = Appender("default", restored.fold, restored.link, lambda size: b"s" * size)
    redaction = redact(appender, rows, 1, {"role": "user", "content": [{"text": "[gone]"}]}, 2.0)
    erase = [("default", seq) for seq in redaction.erase]
    await store.append([Batch(lease=lease, rows=redaction.rows, erase=erase)])
    await store.aclose()
    kept = storage.kept if isinstance(storage, AsyncStorage) else storage.snapshots
    assert len(kept) >= 2
    assert not any(secret in text for text in kept.values())
    again = agent_on(storage)
    await again.ready()
    assert texts(again) == ["[gone]", "understood"]


async def test_a_damaged_snapshot_is_named_and_another_one_can_be_gone_on_from(storage: Any) -> None:
    await agent_on(storage, snapshot_trigger=lambda: True).invoke_async("q")
    good = await latest(storage)
    await save_latest(storage, {"oops": 1})
    with pytest.raises(SnapshotException, match=r"load_snapshot_id='1'.*file='s/default/latest'"):
        await agent_on(storage).ready()
    broken = {**good, "repertory": {**good["repertory"], "rows": "AAAA"}}
    await save_latest(storage, broken)
    with pytest.raises(CorruptJournal, match="load_snapshot_id"):
        await agent_on(storage).ready()
    agent = agent_on(storage, load_snapshot_id=1)
    await agent.ready()
    assert texts(agent) == ["q", "answer"]


async def test_what_a_storage_raises_reaches_the_caller() -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            def fails(**arguments: object) -> None:
                raise ConnectionError(f"no {name}")

            return fails

    with pytest.raises(SessionException, match=r"the snapshot storage failed in .*: ConnectionError: no load_"):
        await agent_on(Broken()).ready()
