"""Agents whose sessions are journals on objects: what a turn costs, who owns a session, and what is there again."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    FileStorage,
    InMemoryStorage,
    JournalSessionManager,
    JournalSessions,
    Runtime,
    S3Storage,
    ScriptedModel,
    SlidingWindowConversationManager,
    tool,
)
from repertory.app.host import session as host_session
from repertory.backends.ports import ObjectStore, StreamEvent
from repertory.backends.sessions.log.owner_record import read_owner
from repertory.core.messages import Message, text_of
from repertory.errors import CorruptJournal, Invalid, LeaseLost, SessionBusy
from repertory.testing.counting_objects import CountingObjectStore

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


class Counted(InMemoryStorage):
    """Memory, with everything counted that is asked of it."""

    def __init__(self, *, latency_s: float = 0.0) -> None:
        super().__init__()
        self.latency_s = latency_s
        self.counts: list[CountingObjectStore] = []

    def open_objects(self, writer: str) -> ObjectStore:
        self.counts.append(CountingObjectStore(super().open_objects(writer), latency_s=self.latency_s))
        return self.counts[-1]

    def take(self) -> dict[str, int]:
        (only,) = self.counts
        return only.take()


def agent_on(storage: object, *replies: object, session: str = "s1", **options: object) -> Agent:
    return Agent(
        ScriptedModel(list(replies)),
        session_manager=JournalSessionManager(session, storage=storage),  # type: ignore[arg-type]
        callback_handler=None,
        **options,  # type: ignore[arg-type] - keywords of the constructor
    )


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(effects=False)
def look() -> str:
    """Look."""
    return "seen"


PAY = {"toolUse": {"name": "pay", "input": {"amount": 1}}}
LOOK = {"toolUse": {"name": "look", "input": {}}}


@pytest.mark.parametrize(
    ("replies", "puts"),
    [
        (["plain"], range(1, 2)),
        ([PAY, "paid"], range(2, 3)),
        ([PAY, PAY, PAY, "paid thrice"], range(4, 5)),
        ([LOOK, "seen"], range(1, 3)),
        ([LOOK, LOOK, LOOK, "seen thrice"], range(1, 5)),
    ],
)
async def test_a_later_turn_is_one_put_and_one_more_for_each_step_with_effects_or_that_is_waited_for(
    replies: list[object], puts: range
) -> None:
    storage = Counted()
    async with agent_on(storage, "hi", *replies, tools=[pay, look]) as agent:
        await agent.invoke_async("hello")
        storage.take()
        await agent.invoke_async("go")
        taken = storage.take()
        assert taken["put"] in puts
        assert taken.keys() == {"put"}


class SlowModel(ScriptedModel):
    """Thinks until the storage was asked to put something in this turn."""

    storage: Counted

    async def stream(self, *arguments: Any, **options: Any) -> AsyncIterator[StreamEvent]:
        while True:
            if self.storage.counts[0].requests["put"]:
                break
            await anyio.sleep(0.001)
        async for event in super().stream(*arguments, **options):
            yield event


async def test_the_prompt_is_a_put_of_its_own_while_a_slow_model_is_waited_for() -> None:
    storage = Counted(latency_s=0.01)
    manager = JournalSessionManager("s1", storage=storage)
    model = SlowModel(["a", "b"])
    model.storage = storage
    async with Agent(model, session_manager=manager, callback_handler=None) as agent:
        await agent.invoke_async("hello")
        storage.take()
        await agent.invoke_async("go")
        assert storage.take() == {"put": 2}


@pytest.mark.parametrize("passed_s", [60.0, -3600.0])
async def test_after_a_pause_ownership_is_asked_for_and_a_turn_is_still_one_put(
    monkeypatch: pytest.MonkeyPatch, passed_s: float
) -> None:
    """Also where the clock was set back: nobody knows how long ago the store confirmed the lease."""
    clock = Clock()
    monkeypatch.setattr(host_session, "time", clock)
    storage = Counted()
    async with agent_on(storage, "a", "b", "c") as agent:
        await agent.invoke_async("1")
        storage.take()
        clock.now += passed_s
        await agent.invoke_async("2")
        assert storage.take() == {"get": 1, "put": 1}


class Clock:
    """Wall-clock time that stands still until it is moved."""

    now = 1_700_000_000.0

    def time(self) -> float:
        return self.now


async def test_a_fenced_owner_loses_before_its_model_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(host_session, "time", clock)
    storage = InMemoryStorage()
    model = ScriptedModel(["first", "never"])
    manager = JournalSessionManager("s1", storage=storage)
    async with Agent(model, session_manager=manager, callback_handler=None) as stale:
        await stale.invoke_async("1")
        other = JournalSessions(storage).open_store()
        try:
            await other.acquire("s1", takeover=True)
            clock.now += 20.0
            with pytest.raises(LeaseLost):
                await stale.invoke_async("2")
        finally:
            await other.aclose()
    assert len(model.calls) == 1
    # What was asked may be on record, unanswered: the session was free again by then.
    assert _texts(await agent_on(storage, "x").history())[:3] in (["1", "first"], ["1", "first", "2"])


async def test_a_runtime_closes_its_sessions_so_that_opening_them_is_a_get_and_a_put() -> None:
    storage = Counted()
    async with Runtime(sessions=JournalSessions(storage)) as runtime:
        agent = runtime.agent(AgentSpec(model=ScriptedModel(["hi"], loop=True)))
        for turn in range(10):
            await agent.session("s").invoke(f"turn {turn}")
    storage.counts.clear()
    async with Runtime(sessions=JournalSessions(storage)) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["hi"], loop=True))).session("s")
        assert len(await session.messages()) == 20
        assert storage.take() == {"get": 1, "put": 1}


async def test_many_sessions_write_side_by_side() -> None:
    storage = Counted(latency_s=0.05)
    async with Runtime(sessions=JournalSessions(storage)) as runtime:
        agent = runtime.agent(AgentSpec(model=ScriptedModel(["hi"], loop=True)))

        async def talk(number: int) -> None:
            for _ in range(3):
                await agent.session(f"s{number}").invoke("hello")

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(talk, number)
        for number in range(20):
            assert len(await agent.session(f"s{number}").history()) == 6


@pytest.fixture(params=["memory", "files"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    return InMemoryStorage() if request.param == "memory" else FileStorage(tmp_path / "sessions")


async def test_a_second_agent_continues_where_the_first_left_off(storage: object) -> None:
    await agent_on(storage, "Hello Ann").invoke_async("I am Ann")
    second = agent_on(storage, "You are Ann")
    await second.invoke_async("Who am I?")
    assert _texts(second.messages) == ["I am Ann", "Hello Ann", "Who am I?", "You are Ann"]


async def test_restored_equals_live_after_the_window_slid(storage: object) -> None:
    manager = SlidingWindowConversationManager(window_size=5)
    live = agent_on(storage, *(f"a{n}" for n in range(8)), conversation_manager=manager)
    async with live:
        for number in range(8):
            await live.invoke_async(f"q{number}")
        shown = live.messages
    restored = agent_on(storage, "x", conversation_manager=manager)
    await restored.ready()
    assert restored.messages == shown
    assert _texts(await restored.history()) == [text for n in range(8) for text in (f"q{n}", f"a{n}")]


async def test_agents_share_a_session_and_state_is_kept(storage: object) -> None:
    async with Runtime(sessions=JournalSessions(storage)) as runtime:  # type: ignore[arg-type]
        one = runtime.agent(AgentSpec(name="one", model=ScriptedModel(["1", "1"]), state={"count": 1}))
        two = runtime.agent(AgentSpec(name="two", model=ScriptedModel(["2", "2"])))
        for _ in range(2):
            await one.session("s").invoke("hi")
            await two.session("s").invoke("ho")
        assert len(await one.session("s").history()) == 4
    (info,) = await JournalSessions(storage).list()  # type: ignore[arg-type]
    assert (info.session_id, set(info.agents), info.owner) == ("s", {"one", "two"}, None)


async def test_another_owner_is_told_that_the_session_is_busy_and_may_force_it(storage: object) -> None:
    other = JournalSessions(storage).open_store()  # type: ignore[arg-type]
    try:
        await other.acquire("s1")
        with pytest.raises(SessionBusy):
            await agent_on(storage, "a").invoke_async("q", busy="reject")
        manager = JournalSessionManager("s1", storage=storage, takeover=True)  # type: ignore[arg-type]
        await Agent(ScriptedModel(["a"]), session_manager=manager, callback_handler=None).invoke_async("q")
    finally:
        await other.aclose()


async def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    await agent_on(storage, "a").invoke_async("q")
    log = anyio.Path(tmp_path / "journals" / "s1" / "journal.log")
    body = bytearray(await log.read_bytes())
    body[100] ^= 1
    await log.write_bytes(body)
    with pytest.raises(CorruptJournal, match=r"journals/s1/journal\.log"):
        await agent_on(storage, "b").invoke_async("r")


def test_sync_calls_work_and_own_nothing_afterwards(tmp_path: Path) -> None:
    agent = agent_on(FileStorage(tmp_path), "a", "b")
    assert str(agent("1")) == "a"
    assert owner_of(tmp_path) is None
    assert str(agent("2")) == "b"
    assert owner_of(tmp_path) is None
    other = agent_on(FileStorage(tmp_path), "x")
    assert len(other.messages) == 4
    for each in (agent, other):
        each.shutdown()
    assert list((tmp_path / ".repertory-owners").iterdir()) == []


def owner_of(folder: Path) -> str | None:
    """The owner of the session, if it is owned."""
    record = read_owner(folder / "journals" / "s1")
    return record.owner if record is not None and record.state == "held" else None


def test_nothing_is_created_before_the_first_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path / "home"))
    manager = JournalSessionManager("s1")
    assert manager.sessions.key == f"journals:files:{tmp_path / 'home' / 'sessions'}"
    assert not (tmp_path / "home").exists()


def test_a_missing_library_is_named_when_a_bucket_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = S3Storage("bucket", "some/prefix/", region_name="eu-central-1")
    monkeypatch.setitem(sys.modules, "aiobotocore", None)
    for name in [name for name in sys.modules if name.startswith("aiobotocore.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("repertory.backends.aws_clients.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'repertory\[s3\]'"):
        JournalSessions(storage).open_store()


def test_a_bucket_takes_region_and_client_by_both_names() -> None:
    client = object()
    named = S3Storage("bucket", region="eu-central-1"), S3Storage("bucket", client=client)
    assert named == (S3Storage("bucket", region_name="eu-central-1"), S3Storage("bucket", s3_client=client))
    assert (named[0].region_name, named[1].client) == ("eu-central-1", client)
    assert replace(named[0], prefix="a") == S3Storage("bucket", "a", region="eu-central-1")
    with pytest.raises(Invalid, match="region is another name of region_name"):
        S3Storage("bucket", region="eu-central-1", region_name="us-east-1")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: JournalSessionManager("a/b"),
        lambda: S3Storage(""),
        lambda: S3Storage("bucket", "a//b"),
        lambda: S3Storage("bucket", boto_session=object(), client=object()),
        lambda: S3Storage("bucket", boto_session=object(), s3_client=object()),
        lambda: S3Storage("bucket", region="eu-central-1", region_name="eu-central-1"),
        lambda: S3Storage("bucket", client=object(), s3_client=object()),
        lambda: S3Storage("bucket", kms_key_id=""),
        lambda: JournalSessions(InMemoryStorage(), lease_s=0.0),
    ],
    ids=[
        "a session",
        "no bucket",
        "a prefix",
        "two credentials",
        "two credentials by another name",
        "two regions",
        "two clients",
        "no key",
        "a lease",
    ],
)
def test_what_makes_no_sense_is_refused_at_once(wrong: Callable[[], object]) -> None:
    with pytest.raises(Invalid):
        wrong()


def _texts(messages: Sequence[Message]) -> list[str]:
    return [text_of(message) for message in messages]
