"""Agents whose sessions have snapshots that others can read: the documented behaviour, and what is ours beyond it."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import repertory
from repertory import (
    Agent,
    AgentSpec,
    FileStorage,
    Graph,
    InMemoryStorage,
    NullConversationManager,
    Runtime,
    S3Storage,
    ScriptedModel,
    SessionManager,
    Sessions,
    SlidingWindowConversationManager,
    SnapshotEvery,
    SnapshotException,
    SnapshotSessionManager,
    SnapshotSessions,
    tool,
)
from repertory.backends.ports import Condition, ObjectStore, Overwrite
from repertory.core.messages import text_of
from repertory.errors import Invalid, ModelFailed, NotFound, SessionBusy
from repertory.testing.counting_objects import CountingObjectStore
from tests.backends.objects.moto_s3 import moto_s3
from tests.operations.operated_places import names_holding
from tests.source_tree import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

GOLDEN = ROOT / "tests/golden/snapshots-v1/tree"


def agent_on(storage: object, *replies: object, session: str = "s", **options: Any) -> Agent:
    """An agent on a session; what a manager takes goes to it."""
    names = ("save_latest_on", "snapshot_trigger", "load_snapshot_id", "takeover")
    chosen = {name: options.pop(name) for name in names if name in options}
    manager = SessionManager(session, storage=storage, **chosen)  # type: ignore[arg-type]
    model = ScriptedModel(list(replies) or ["answer"], loop=True)
    return Agent(model, session_manager=manager, callback_handler=None, **options)


def texts(agent: Agent) -> list[str]:
    return [text_of(message) for message in agent.messages]


class Tree:
    """The tree of one agent in a folder."""

    def __init__(self, folder: Path, session: str = "s", agent: str = "default") -> None:
        self.path = folder / session / "scopes" / "agent" / agent / "snapshots"

    def read(self, name: str = "snapshot_latest.json") -> Any:
        return json.loads((self.path / name).read_text())

    def said(self, name: str = "snapshot_latest.json") -> list[str]:
        return [text_of(message) for message in self.read(name)["data"]["messages"]]

    @property
    def numbers(self) -> list[str]:
        return sorted(path.name for path in self.path.glob("immutable_history/*"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@pytest.fixture(scope="module")
def bucket_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto_s3(tmp_path_factory.mktemp("moto") / "log") as url:
        yield url


@pytest.fixture(params=["memory", "files"])
def storage(request: pytest.FixtureRequest, folder: Path) -> object:
    return InMemoryStorage() if request.param == "memory" else FileStorage(folder)


@pytest.fixture
def bucket(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> S3Storage:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    url = request.getfixturevalue("bucket_url")
    return S3Storage("bucket", str(folder).strip("/"), region_name="us-east-1", endpoint_url=url)


# ------------------------------------------------------------------------------------------------- the documented part


def test_the_tree_is_the_documented_one(folder: Path) -> None:
    agent = agent_on(FileStorage(folder), "Hi!", snapshot_trigger=lambda turn_count: turn_count % 2 == 0)
    for _ in range(4):
        agent("Hello!")
    tree = Tree(folder)
    assert tree.numbers == ["snapshot_00001.json", "snapshot_00002.json"]
    assert len(tree.said("immutable_history/snapshot_00001.json")) == 4
    assert len(tree.said("immutable_history/snapshot_00002.json")) == len(tree.said()) == 8
    manifest = tree.read("manifest.json")
    assert (manifest["schemaVersion"], manifest["nextSnapshotId"]) == ("1.0", "3")
    assert sorted(path.name for path in folder.iterdir()) == [".repertory-owners", "s"]


async def test_a_conversation_is_gone_on_with(storage: object) -> None:
    first = agent_on(storage, "Hello Ann", state={"user": "ann"})
    await first.invoke_async("I am Ann")
    first.state.set("n", 1)
    await first.shutdown_async()
    second = agent_on(storage, "You are Ann")
    assert str(await second.invoke_async("Who am I?")) == "You are Ann"
    assert texts(second) == ["I am Ann", "Hello Ann", "Who am I?", "You are Ann"]
    assert second.state.get() == {"user": "ann", "n": 1}


async def test_the_same_in_a_bucket(bucket: S3Storage) -> None:
    async with agent_on(bucket, snapshot_trigger=lambda turn_count: turn_count == 1) as agent:
        await agent.invoke_async("q1")
        await agent.invoke_async("q2")
    back = agent_on(bucket, "other", load_snapshot_id=1)
    await back.invoke_async("q3")
    assert texts(back) == ["q1", "answer", "q3", "other"]
    assert [text_of(message) for message in await back.history()][::2] == ["q1", "q2", "q3"]
    manager = SessionManager("s", storage=bucket)
    assert await manager.list_snapshot_ids() == ["1"]
    await manager.delete_session()
    assert await manager.sessions.list() == []


async def test_a_snapshot_is_gone_on_from_and_later_ones_are_written_over(storage: object) -> None:
    async with agent_on(storage, snapshot_trigger=lambda **kw: True) as agent:
        for number in range(1, 4):
            await agent.invoke_async(f"q{number}")
    back = agent_on(storage, "other", load_snapshot_id="1", snapshot_trigger=lambda **kw: True)
    await back.ready()
    assert texts(back) == ["q1", "answer"]
    await back.invoke_async("q4")
    again = agent_on(storage)
    await again.ready()
    assert texts(again) == ["q1", "answer", "q4", "other"]
    assert [text_of(message) for message in await again.history()][::2] == ["q1", "q2", "q3", "q4"]
    manager = SnapshotSessionManager("s", storage=storage)  # type: ignore[arg-type]
    assert await manager.list_snapshot_ids() == ["1", "2", "3"]
    assert await manager.list_snapshot_ids(agent, limit=1, start_after="00001") == ["2"]
    assert await manager.list_snapshot_ids("nobody") == []
    there = agent_on(storage, load_snapshot_id=2)
    await there.ready()
    assert texts(there) == ["q1", "answer", "q4", "other"]
    with pytest.raises(NotFound, match="no such snapshot"):
        await agent_on(storage, load_snapshot_id=9).ready()


def test_a_snapshot_is_taken_once_however_often_the_agent_is_called(folder: Path) -> None:
    for number in range(2):
        agent_on(FileStorage(folder), snapshot_trigger=lambda turn_count: turn_count == 1)(f"q{number}")
    agent = agent_on(FileStorage(folder), load_snapshot_id=1)
    assert texts(agent) == ["q0", "answer"]
    agent("q2")
    agent("q3")
    assert texts(agent)[::2] == ["q0", "q2", "q3"]


@pytest.mark.parametrize("strategy", ["message", "invocation", "never", "trigger"])
def test_what_was_acknowledged_is_there_whatever_others_see(folder: Path, strategy: Any) -> None:
    agent_on(FileStorage(folder), save_latest_on=strategy)("q")
    assert texts(agent_on(FileStorage(folder), save_latest_on=strategy)) == ["q", "answer"]
    assert (Tree(folder).path / "snapshot_latest.json").exists() == (strategy in ("message", "invocation"))


def test_the_window_that_is_shown_is_what_others_see(folder: Path) -> None:
    window = SlidingWindowConversationManager(window_size=4)
    agent = agent_on(FileStorage(folder), conversation_manager=window)
    for number in range(5):
        agent(f"q{number}")
    assert Tree(folder).said() == texts(agent) == ["q3", "answer", "q4", "answer"]
    manager = Tree(folder).read()["data"]["conversation_manager_state"]
    assert manager["__name__"] == "SlidingWindowConversationManager"
    assert manager["removed_message_count"] == 6
    assert texts(agent_on(FileStorage(folder), conversation_manager=window)) == texts(agent)


def test_agents_of_a_session_have_snapshots_of_their_own(folder: Path) -> None:
    for name in ("one", "two"):
        agent_on(FileStorage(folder), f"I am {name}", agent_id=name)("who?")
    assert Tree(folder, agent="one").said() == ["who?", "I am one"]
    assert Tree(folder, agent="two").said() == ["who?", "I am two"]


# ----------------------------------------------------------------------------------------------------------- triggers


class Asked:
    """A trigger that remembers what it was given."""

    def __init__(self, *when: int) -> None:
        self.when = when
        self.counts: list[int] = []
        self.last: list[int | None] = []
        self.shown: list[int] = []

    def __call__(self, turn_count: int, last_snapshot_at: int | None, agent_data: Any) -> bool:
        assert agent_data["messages"] == agent_data.messages
        self.counts.append(turn_count)
        self.last.append(last_snapshot_at)
        self.shown.append(len(agent_data.messages))
        return turn_count in self.when


async def test_a_trigger_is_asked_once_after_each_turn_and_counts_go_on_after_a_restart(storage: object) -> None:
    asked, began_ms = Asked(2, 3), time.time() * 1000
    window = SlidingWindowConversationManager(window_size=4)
    for _ in range(2):
        async with agent_on(storage, snapshot_trigger=asked, conversation_manager=window) as agent:
            for _ in range(2):
                await agent.invoke_async("q")
    assert asked.counts == [1, 2, 3, 4]
    assert asked.shown == [2, 4, 4, 4]
    first, second, third, fourth = asked.last
    assert first is second is None
    assert third is not None
    assert fourth is not None
    assert began_ms - 1 <= third <= fourth <= time.time() * 1000


async def test_an_asynchronous_trigger_is_waited_for() -> None:
    async def never(turn_count: int) -> bool:
        await anyio.lowlevel.checkpoint()
        return turn_count > 2

    storage = InMemoryStorage()
    async with agent_on(storage, snapshot_trigger=never) as agent:
        for _ in range(3):
            await agent.invoke_async("q")
    assert await SnapshotSessions(storage).list_snapshot_ids("s") == ["1"]


async def test_a_trigger_sees_the_state_and_cannot_change_anything() -> None:
    seen: list[Any] = []

    def look(agent_data: Any) -> bool:
        seen.append((dict(agent_data["state"]), [text_of(message) for message in agent_data["messages"]]))
        agent_data.messages.clear()
        agent_data.state["k"] = "changed"
        return False

    @tool(effects=False)
    def note(agent: Agent) -> str:
        """Note something."""
        agent.state.set("k", "noted")
        return "done"

    use = {"toolUse": {"name": "note", "input": {}}}
    agent = agent_on(InMemoryStorage(), use, "ok", tools=[note], snapshot_trigger=look)
    await agent.invoke_async("q")
    assert seen == [({"k": "noted"}, ["q", "", "", "ok"])]
    assert len(agent.messages) == 4
    assert agent.state.get("k") == "noted"


def test_a_trigger_that_raises_is_logged_and_the_latest_is_saved(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(turn_count: int) -> bool:
        raise ZeroDivisionError(turn_count)

    with caplog.at_level(logging.ERROR):
        answer = agent_on(FileStorage(folder), save_latest_on="never", snapshot_trigger=broken)("q")
    assert str(answer) == "answer"
    assert "snapshot trigger failed" in caplog.text
    assert Tree(folder).said() == ["q", "answer"]
    assert Tree(folder).numbers == []


async def test_a_trigger_that_hangs_does_not_hold_the_answer_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs() -> bool:
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr("repertory.app.sessions.snapshots.ANSWER_S", 0.05)
    with anyio.fail_after(20):
        assert str(await agent_on(InMemoryStorage(), snapshot_trigger=hangs).invoke_async("q")) == "answer"


async def test_a_turn_that_fails_is_asked_about_too_and_one_that_never_began_is_not() -> None:
    asked = Asked()
    storage = InMemoryStorage()
    async with agent_on(storage, ModelFailed("no"), "ok", snapshot_trigger=asked) as agent:
        with pytest.raises(ModelFailed):
            await agent.invoke_async("q")
        with pytest.raises(Invalid):
            await agent.invoke_async([{"nonsense": 1}, 2])  # type: ignore[list-item]
        await agent.invoke_async()
    assert asked.counts == [1, 2]


async def test_ready_triggers(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = InMemoryStorage()
    async with agent_on(storage, session="turns", snapshot_trigger=SnapshotEvery(turns=2)) as agent:
        for _ in range(5):
            await agent.invoke_async("q")
    assert await SnapshotSessions(storage).list_snapshot_ids("turns") == ["1", "2"]
    clock = Clock()
    monkeypatch.setattr("repertory.app.sessions.snapshots.time", clock)
    monkeypatch.setattr("repertory.app.host.session.time", clock)
    for seconds, taken in ((0, 0), (40, 0), (30, 1), (30, 1), (30, 2)):
        clock.now += seconds
        agent = agent_on(storage, session="seconds", snapshot_trigger=SnapshotEvery(seconds=60))
        await agent.invoke_async("q")
        assert len(await SnapshotSessions(storage).list_snapshot_ids("seconds")) == taken


class Clock:
    """Wall-clock time that stands still until it is moved."""

    now = 1_700_000_000.0

    def time(self) -> float:
        return self.now


# ------------------------------------------------------------------------------------------------------------ runtime


class Slow(InMemoryStorage):
    """Memory in which the tree takes a while, but not the journal."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()

    def open_objects(self, writer: str) -> ObjectStore:
        return SlowTree(super().open_objects(writer), self.gate)


class SlowTree(CountingObjectStore):
    def __init__(self, store: ObjectStore, gate: anyio.Event) -> None:
        super().__init__(store)
        self.gate = gate

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        if key.endswith(".json"):
            await self.gate.wait()
        return await super().put(key, body, condition)


async def test_nobody_in_a_runtime_waits_for_snapshots() -> None:
    storage = Slow()
    place = SnapshotSessions(storage, snapshot_trigger=lambda turn_count: turn_count != 2)
    with anyio.fail_after(20):
        async with Runtime(sessions=place) as runtime:
            session = runtime.agent(AgentSpec(model=ScriptedModel(["hi"], loop=True))).session("s")
            for _ in range(3):
                await session.invoke("hello")
            assert await SnapshotSessions(storage).list_snapshot_ids("s") == []
            storage.gate.set()
    assert await SnapshotSessions(storage).list_snapshot_ids("s") == ["1", "2"]


async def test_a_long_conversation_is_read_and_put_whole(storage: object) -> None:
    """More than is spelled on the event loop, so a thread does it."""
    window = NullConversationManager()
    said = ["x" * 40_000 + str(number) for number in range(6)]
    async with Runtime(sessions=SnapshotSessions(storage, snapshot_trigger=SnapshotEvery(turns=3))) as runtime:  # type: ignore[arg-type]
        spec = AgentSpec(model=ScriptedModel(["answer"], loop=True), conversation_manager=window)
        for text in said:
            await runtime.agent(spec).session("s").invoke(text)
    again = agent_on(storage, conversation_manager=window, load_snapshot_id=2)
    await again.ready()
    assert texts(again)[::2] == said


class Counted(InMemoryStorage):
    """Memory, with everything counted that is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[CountingObjectStore] = []

    def open_objects(self, writer: str) -> ObjectStore:
        self.counts.append(CountingObjectStore(super().open_objects(writer)))
        return self.counts[-1]


@pytest.mark.parametrize("strategy", ["message", "never"])
async def test_a_call_costs_no_more_requests_however_long_the_history_is(strategy: Any) -> None:
    storage = Counted()
    window = SlidingWindowConversationManager(window_size=4)
    for number in range(30):
        agent = agent_on(storage, save_latest_on=strategy, conversation_manager=window)
        await agent.invoke_async(f"q{number}")
        if number == 15:
            await agent_on(storage, save_latest_on=strategy, snapshot_trigger=lambda: True).invoke_async("marked")
    requests = [sum(count.requests.values()) for count in storage.counts]
    assert max(requests[20:]) <= max(requests[4:10])
    assert max(count.requests["list"] for count in storage.counts[20:]) == 0


async def test_many_sessions_in_a_runtime_have_trees_of_their_own(folder: Path) -> None:
    async with Runtime(sessions=SnapshotSessions(FileStorage(folder))) as runtime:
        agent = runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["hi"], loop=True)))
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(agent.session(f"s{number}").invoke, f"q{number}")
    for number in range(10):
        assert Tree(folder, f"s{number}", "helper").said() == [f"q{number}", "hi"]
    infos = await SnapshotSessions(FileStorage(folder)).list()
    assert {info.session_id for info in infos} == {f"s{number}" for number in range(10)}
    assert all(info.owner is None for info in infos)


async def test_two_facades_share_one_actor_whatever_their_managers_want(folder: Path) -> None:
    storage = FileStorage(folder)
    async with Runtime():
        one = agent_on(storage, "1", snapshot_trigger=lambda: True)
        two = agent_on(FileStorage(folder), "2", save_latest_on="never")
        async with one:
            await one.invoke_async("a")
            await two.invoke_async("b")
            assert texts(two) == ["a", "1", "b", "1"]


async def test_another_process_is_told_that_the_session_is_busy(folder: Path) -> None:
    store = SnapshotSessions(FileStorage(folder)).open_store()
    try:
        await store.acquire("s")
        with pytest.raises(SessionBusy):
            await agent_on(FileStorage(folder)).invoke_async("q", busy="reject")
        await agent_on(FileStorage(folder), takeover=True).invoke_async("q")
    finally:
        await store.aclose()


async def check_goes_on(storage: Any) -> None:
    """What is kept in files of version 1 is gone on with by agents and graphs."""
    objects = storage.open_objects("golden")
    for path in GOLDEN.rglob("*"):
        if path.is_file():
            await objects.put(path.relative_to(GOLDEN).as_posix(), path.read_bytes(), Overwrite())
    await objects.aclose()
    sessions = Sessions(SnapshotSessions(storage))
    shown = (await sessions.show("s")).agents["default"].messages
    assert [text_of(each.message) for each in shown[:2]] == ["I am Ann", "Hello Ann"]
    assert (await sessions.doctor()).ok
    agent = agent_on(storage, "evening")
    await agent.ready()
    assert texts(agent) == ["I am Ann", "Hello Ann", "I bake", "bread", "I sell", "rolls", "I rest", "good"]
    assert agent.state.get("said") == "I rest"
    await agent.invoke_async("Good")
    await agent.shutdown_async()
    assert await SessionManager("s", storage=storage).list_snapshot_ids() == ["1", "2"]
    again = agent_on(storage, "night", load_snapshot_id=1)
    await again.invoke_async("And?")
    assert texts(again) == ["I am Ann", "Hello Ann", "I bake", "bread", "And?", "night"]
    await again.shutdown_async()
    killed = agent_on(storage, session="killed", takeover=True)
    await killed.ready()
    assert texts(killed) == ["first", "one", "second", "two", "third", "three"]
    await killed.shutdown_async()
    nodes = {name: Agent(ScriptedModel([name]), callback_handler=None) for name in ("researcher", "writer")}
    run = await Graph(nodes, session_manager=SessionManager("run", storage=storage)).invoke_async("Wasps")
    assert (run.run, str(run)) == (2, "researcher: researcher\nwriter: writer")
    report = await sessions.doctor()
    assert (report.ok, list(report.strays)) == (True, [])


async def test_a_session_of_the_golden_files_is_gone_on_with() -> None:
    await check_goes_on(InMemoryStorage())


@pytest.mark.parametrize("anyio_backend", ["trio"])  # the store itself does it on asyncio
async def test_the_same_session_in_a_bucket(bucket: S3Storage) -> None:
    await check_goes_on(bucket)


async def test_deleting_a_session_leaves_no_snapshot(storage: object) -> None:
    await agent_on(storage, snapshot_trigger=lambda: True).invoke_async("q")
    manager = SessionManager("s", storage=storage)  # type: ignore[arg-type]
    await manager.delete_session()
    assert await SnapshotSessions(storage).list() == []  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        await manager.delete_session()
    again = agent_on(storage)
    await again.ready()
    assert again.messages == []


async def test_the_error_of_a_damaged_snapshot_reaches_the_caller(folder: Path) -> None:
    path = Tree(folder).path
    path.mkdir(parents=True)
    (path / "snapshot_latest.json").write_text("{")
    with pytest.raises(SnapshotException, match=r"snapshot_latest\.json"):
        await agent_on(FileStorage(folder)).ready()
    assert issubclass(repertory.SnapshotException, ValueError)


# ---------------------------------------------------------------------------------------------------------- arguments


def test_nothing_is_created_before_the_first_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path / "home"))
    manager = SessionManager("s1")
    assert manager.sessions.key == f"snapshots:files:{tmp_path / 'home' / 'sessions'}"
    assert not (tmp_path / "home").exists()
    assert SessionManager is SnapshotSessionManager


def test_the_storage_may_be_named_as_the_documents_name_it(folder: Path) -> None:
    manager = SessionManager(session_id="s", storage={"snapshot": FileStorage(folder)})
    Agent(ScriptedModel(["a"]), session_manager=manager, callback_handler=None)("q")
    assert Tree(folder).said() == ["q", "a"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SessionManager("a/b"),
        lambda: SessionManager("s", save_latest_on="always"),  # type: ignore[arg-type]
        lambda: SessionManager("s", storage="redis"),  # type: ignore[arg-type]
        lambda: SessionManager("s", storage={"snapshots": FileStorage()}),
        lambda: SessionManager("s", load_snapshot_id="0"),
        lambda: SessionManager("s", load_snapshot_id="../3"),
        lambda: SessionManager("s", snapshot_trigger=3),  # type: ignore[arg-type]
        lambda: SessionManager("s", snapshot_trigger=lambda agent: True),
        lambda: SnapshotSessions(save_latest_on="x"),  # type: ignore[arg-type]
    ],
    ids=["session", "strategy", "storage", "storage key", "id 0", "a path", "trigger", "parameter", "place"],
)
def test_what_makes_no_sense_is_refused_at_once(wrong: Callable[[], object]) -> None:
    with pytest.raises(Invalid):
        wrong()


def test_a_bad_strategy_lists_the_good_ones() -> None:
    with pytest.raises(ValueError, match="one of message, invocation, never, trigger got='turn'"):
        SessionManager("s", save_latest_on="turn")  # type: ignore[arg-type]


def test_a_misspelled_keyword_is_an_error() -> None:
    with pytest.raises(TypeError, match="save_lastest_on"):
        SessionManager("s", save_lastest_on="message")  # type: ignore[call-arg]


def test_a_missing_library_is_named_when_a_bucket_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiobotocore", None)
    for name in [name for name in sys.modules if name.startswith("aiobotocore.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("repertory.backends.aws_clients.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'repertory\[s3\]'"):
        SnapshotSessions(S3Storage("bucket")).open_store()


async def test_a_text_that_is_redacted_is_gone_from_every_numbered_snapshot(folder: Path) -> None:
    secret = "the key is under the mat"
    storage = FileStorage(folder)
    async with agent_on(storage, snapshot_trigger=lambda: True) as agent:
        await agent.invoke_async(f"Listen: {secret}.")
        agent.state.set("kept", 1)
        agent.state.set("note", secret)
        await agent.invoke_async("two")
        agent.state.set("note", "nothing")
        await agent.invoke_async("three")
    tree = Tree(folder)
    assert len(tree.numbers) == 3
    await Sessions(SnapshotSessions(storage)).redact_text("s", secret, "[removed]")
    assert names_holding(SnapshotSessions(storage), folder, secret) == []
    second = tree.read(f"immutable_history/{tree.numbers[1]}")["data"]
    assert second["state"] == {"kept": 1}
    assert text_of(second["messages"][0]) == "Listen: [removed]."
    async with agent_on(storage, load_snapshot_id="2") as agent:
        assert texts(agent)[0] == "Listen: [removed]."
