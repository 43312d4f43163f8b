"""What the documents of the SDK whose users we serve promise in a sentence or a table, as the programs that rely on it.

The samples that the documents print as code are in the files beside this one. What they show in TypeScript alone is
here in Python's spelling.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import repertory
from repertory import (
    AfterInvocationEvent,
    Agent,
    AgentInitializedEvent,
    AgentSpec,
    BeforeModelCallEvent,
    ContextWindowOverflowException,
    ConversationManager,
    FileSessionManager,
    FileStorage,
    Graph,
    MemoryEntry,
    MemoryInjectionConfig,
    MemoryManager,
    Runtime,
    ScriptedModel,
    SearchOptions,
    SessionManager,
    SlidingWindowConversationManager,
    SnapshotManifest,
    SummarizingConversationManager,
    Swarm,
    tool,
)
from repertory.core.messages import Message, text_of
from repertory.errors import Invalid, SnapshotException, StoreNotFound

pytestmark = pytest.mark.anyio

TOO_LONG = ContextWindowOverflowException("too long")


def agent_with(model: repertory.Model, **given: Any) -> Agent:
    return Agent(model, callback_handler=None, **given)


# Memory.


class FactsStore:
    """No more than the documents ask of a store: a name and a search."""

    def __init__(self, name: str, *facts: str) -> None:
        self.name = name
        self.facts = facts
        self.asked: list[int | None] = []

    async def search(self, query: str, options: SearchOptions | None = None) -> list[MemoryEntry]:
        self.asked.append(options and options.max_search_results)
        return [MemoryEntry(fact) for fact in self.facts]


class BrokenStore(FactsStore):
    async def search(self, query: str, options: SearchOptions | None = None) -> list[MemoryEntry]:
        raise RuntimeError("the backend is down")


async def test_a_store_with_a_name_and_a_search_is_a_store() -> None:
    store, model = FactsStore("preferences", "Likes tea."), ScriptedModel(["Noted."])
    manager = MemoryManager(stores=[store])
    assert await manager.search("tea") == [MemoryEntry("Likes tea.", "preferences")]
    await agent_with(model, memory_manager=manager).invoke_async("What do I like?")
    assert "Likes tea." in model.calls[0].messages[-1]["content"][-1]["text"]
    assert [spec["name"] for spec in model.calls[0].tool_specs or ()] == ["search_memory"]


async def test_a_store_is_writable_when_it_has_an_add() -> None:
    class Adding(FactsStore):
        async def add(self, content: str, metadata: Any = None) -> None:
            self.facts = (*self.facts, content)

    store = Adding("preferences")
    await MemoryManager(stores=[store], add_tool_config=True).add("Likes tea.")
    assert store.facts == ("Likes tea.",)


async def test_max_entries_caps_how_many_entries_are_retrieved_and_injected() -> None:
    store, model = FactsStore("preferences", *(f"fact {number}" for number in range(9))), ScriptedModel(["Noted."])
    injection = MemoryInjectionConfig(
        trigger="everyTurn",
        max_entries=3,
        format=lambda context: "\n".join(f"- {entry.content}" for entry in context.entries),
    )
    await agent_with(model, memory_manager=MemoryManager(stores=[store], injection=injection)).invoke_async("Hello!")
    assert store.asked == [3]
    assert model.calls[0].messages[-1]["content"][-1]["text"] == "- fact 0\n- fact 1\n- fact 2"


async def test_entries_that_take_too_many_tokens_are_named(caplog: pytest.LogCaptureFixture) -> None:
    store = FactsStore("preferences", "Likes tea.", "long " * 400)
    manager = MemoryManager(stores=[store], injection=MemoryInjectionConfig(max_tokens=100))
    result = await agent_with(ScriptedModel(["Noted."]), memory_manager=manager).invoke_async("Hello!")
    assert result.metrics.left_out == {"memory preferences 2": "too long"}
    assert "store='preferences' entry=2" in caplog.text
    assert "long long" not in caplog.text


async def test_a_search_gives_what_the_stores_that_do_not_fail_produced(caplog: pytest.LogCaptureFixture) -> None:
    broken, sound = BrokenStore("broken"), FactsStore("sound", "Likes tea.")
    assert await MemoryManager(stores=[broken, sound]).search("tea") == [MemoryEntry("Likes tea.", "sound")]
    caplog.clear()
    assert await MemoryManager(stores=[broken]).search("tea") == []
    assert "a memory store could not be searched store='broken'" in caplog.text


# Snapshots.


def test_a_snapshot_of_the_three_documented_fields_is_loaded() -> None:
    first = agent_with(ScriptedModel(["Noted."]))
    first("Remember that my favorite color is orange.")
    taken = first.save_snapshot(metadata={"user_id": "123"})
    snapshot = json.loads(json.dumps({name: taken[name] for name in ("type", "state", "metadata")}))
    model = ScriptedModel(["Orange."])
    agent = agent_with(model)
    agent.load_snapshot(snapshot)
    agent("What is my favorite color?")
    assert text_of(model.calls[0].messages[0]) == "Remember that my favorite color is orange."
    for wrong in (
        {**snapshot, "state": [1]},
        {**snapshot, "type": "x"},
        {**snapshot, "metadata": 1},
        {"type": "agent"},
    ):
        with pytest.raises(SnapshotException):
            agent.load_snapshot(wrong)


def test_a_snapshot_names_the_trace_that_it_was_taken_in() -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.trace import use_span

    agent = agent_with(ScriptedModel(["Noted."]))
    assert agent.save_snapshot(metadata={"user_id": "123"})["metadata"] == {"user_id": "123"}
    outer = trace.TracerProvider().get_tracer("program").start_span("outer")
    with use_span(outer):
        taken = agent.save_snapshot(metadata={"user_id": "123"})["metadata"]
        mine = agent.save_snapshot(metadata={"trace_id": "mine"})["metadata"]
    assert taken == {
        "trace_id": f"{outer.get_span_context().trace_id:032x}",
        "span_id": taken["span_id"],
        "user_id": "123",
    }
    assert len(taken["span_id"]) == 16
    assert mine["trace_id"] == "mine"


def test_a_session_of_snapshots_has_a_default_id() -> None:
    assert SessionManager().session_id == "default-session"


# Names.


def test_names_of_the_documents_are_importable() -> None:
    from repertory.strands.hooks import InitializedEvent  # pyright: ignore[reportMissingImports]
    from repertory.strands.multiagent import Graph as DocumentedGraph  # pyright: ignore[reportMissingImports]
    from repertory.strands.session import repository_session_manager  # pyright: ignore[reportMissingImports]
    from repertory.strands.session.agent_session_manager import (  # pyright: ignore[reportMissingImports]
        AgentSessionManager,
    )

    assert DocumentedGraph is Graph
    assert InitializedEvent is repertory.InitializedEvent is AgentInitializedEvent
    assert AgentSessionManager is repository_session_manager.RepositorySessionManager


# Conversation managers.


class Last10MessagesManager(ConversationManager):
    @property
    def name(self) -> str:
        return "my:last-10-messages"

    def reduce(self, agent: Any, error: Exception | None) -> bool:
        if len(agent.messages) <= 10:
            return False
        del agent.messages[: len(agent.messages) - 10]
        return True


class OptionsManager(ConversationManager):
    async def reduce(self, options: Any) -> bool:
        assert options.error is not None
        reduced = len(options.agent.messages) > 10
        del options.agent.messages[:-10]
        return reduced


@pytest.mark.parametrize("manager", [Last10MessagesManager, OptionsManager])
def test_a_manager_with_a_reduce_shortens_when_the_model_refuses(manager: Callable[[], ConversationManager]) -> None:
    model = ScriptedModel([*["Noted."] * 6, TOO_LONG, "Done."])
    agent = agent_with(model, conversation_manager=manager())
    for number in range(7):
        agent(f"question {number}")
    assert [len(call.messages) for call in model.calls] == [1, 3, 5, 7, 9, 11, 13, 10]


@pytest.mark.parametrize("manager", [Last10MessagesManager, OptionsManager])
def test_the_error_of_the_model_comes_out_when_nothing_is_reduced(manager: Callable[[], ConversationManager]) -> None:
    agent = agent_with(ScriptedModel([TOO_LONG]), conversation_manager=manager())
    with pytest.raises(ContextWindowOverflowException):
        agent("Hello!")


async def test_a_manager_adds_hooks_to_the_agent_that_is_made() -> None:
    class MyManager(ConversationManager):
        max_messages = 5

        def reduce(self, agent: Any) -> bool:
            return self.trim(agent.messages)

        def init_agent(self, agent: Any) -> None:
            super().init_agent(agent)
            agent.add_hook(self.after_invocation, AfterInvocationEvent)

        def after_invocation(self, event: AfterInvocationEvent) -> None:
            self.trim(event.agent.messages)

        def trim(self, messages: list[Message]) -> bool:
            if len(messages) <= self.max_messages:
                return False
            del messages[: len(messages) - self.max_messages]
            return True

    agent = agent_with(ScriptedModel(["Noted."], loop=True), conversation_manager=MyManager())
    for _ in range(4):
        await agent.invoke_async("Hello!")
    assert len(agent.messages) == 5
    model = ScriptedModel(["Noted."], loop=True)
    async with Runtime() as runtime:  # Each session has a manager of its own, with hooks of its own.
        session = runtime.agent(AgentSpec(model=model, conversation_manager=MyManager())).session("one")
        for _ in range(4):
            await session.invoke("Hello!")
    assert [len(call.messages) for call in model.calls] == [1, 3, 5, 6]


def test_a_model_of_its_own_writes_the_summaries() -> None:
    summaries = ScriptedModel(["They said hello."])
    manager = SummarizingConversationManager(model=summaries, summary_ratio=0.3, preserve_recent_messages=1)
    model = ScriptedModel(["Hi.", "Hi.", TOO_LONG, "Done."])
    agent = agent_with(model, conversation_manager=manager)
    for _ in range(3):
        agent("Hello!")
    assert len(summaries.calls) == 1
    assert "They said hello." in json.dumps(model.calls[-1].messages)
    with pytest.raises(ValueError, match="summarization_agent has its own"):
        SummarizingConversationManager(model=summaries, summarization_agent=agent)


class CountingModel(ScriptedModel):
    """Counts a hundred tokens for each message, and none for the rest."""

    def __init__(self, replies: Sequence[str]) -> None:
        super().__init__(replies, loop=True)
        self.counted: list[int] = []

    async def count_tokens(self, messages: Sequence[Message], *rest: Any, **named: Any) -> int:
        self.counted.append(len(messages))
        return 100 * len(messages)


@pytest.mark.parametrize("compression", [None, True])
def test_a_models_own_count_is_asked_for_what_came_since_the_last_answer(compression: bool | None) -> None:
    model, projected = CountingModel(["Noted."]), list[int | None]()
    agent = agent_with(model, conversation_manager=SlidingWindowConversationManager(proactive_compression=compression))
    agent.add_hook(lambda event: projected.append(event.projected_input_tokens), BeforeModelCallEvent)
    first = agent("Hello!")
    agent("Hello again!")
    usage = first.message["metadata"]["usage"]  # type: ignore[index]
    assert projected == [100, usage["inputTokens"] + usage["outputTokens"] + 100]
    assert model.counted == [1, 1]


# Sessions.


def test_the_time_when_an_agent_was_made_stays_in_its_document(tmp_path: Path) -> None:
    document = tmp_path / "session_test-session/agents/agent_default/agent.json"
    times = list[tuple[str, str]]()
    for _ in range(2):
        manager = FileSessionManager(session_id="test-session", storage_dir=str(tmp_path))
        with agent_with(ScriptedModel(["Hi."], loop=True), session_manager=manager) as agent:
            for number in range(2):
                agent.state.set("count", number)
                agent("Hello!")
                fields = json.loads(document.read_text())
                times.append((fields["created_at"], fields["updated_at"]))
    assert len({created for created, _ in times}) == 1
    assert len({updated for _, updated in times}) == 4


# Calls.


def invoked(driven: Any) -> Any:
    return driven.invoke_async("Hello!", colour="red")


async def streamed(driven: Any) -> None:
    async for _ in driven.stream_async("Hello!", colour="red"):
        pass


@pytest.mark.parametrize("call", [invoked, streamed])
@pytest.mark.parametrize("kind", ["agent", "graph", "swarm"])
async def test_keywords_that_no_call_has_are_values_of_the_invocation_state_and_warned_of(
    kind: str, call: Callable[[Any], Any]
) -> None:
    seen = list[object]()
    agent = agent_with(ScriptedModel(["Hi."]), name="a", agent_id="a")
    agent.add_hook(lambda event: seen.append(event.invocation_state.get("colour")), BeforeModelCallEvent)
    driven = {"agent": lambda: agent, "graph": lambda: Graph(agents={"a": agent}), "swarm": lambda: Swarm([agent])}
    with pytest.warns(UserWarning, match="pass colour in invocation_state"):
        await call(driven[kind]())
    assert seen == ["red"]


@pytest.mark.parametrize("kind", ["agent", "graph", "swarm"])
def test_so_they_are_in_sync_code(kind: str) -> None:
    agent = agent_with(ScriptedModel(["Hi."]), name="a", agent_id="a")
    driven: Any = {"agent": agent, "graph": Graph(agents={"a": agent}), "swarm": Swarm([agent])}[kind]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        driven("Hello!", colour="red")
    assert ["pass colour in invocation_state" in str(each.message) for each in caught] == [True]


class DictStorage:
    """A storage as the documents describe it."""

    def __init__(self) -> None:
        self.latest: dict[str, Any] | None = None
        self.shown = list[int]()
        """How many messages each latest snapshot had."""
        self.history: dict[str, dict[str, Any]] = {}
        self.manifest: SnapshotManifest | None = None

    async def save_snapshot(self, *, location: Any, snapshot_id: str, is_latest: bool, snapshot: Any) -> None:
        if is_latest:
            self.latest = snapshot
            self.shown.append(len(snapshot["data"]["messages"]))
        else:
            self.history[snapshot_id] = snapshot

    async def load_snapshot(self, *, location: Any, snapshot_id: str | None = None) -> Any:
        return self.latest if snapshot_id is None else self.history.get(snapshot_id)

    async def list_snapshot_ids(self, *, location: Any) -> list[str]:
        return list(self.history)

    async def load_manifest(self, *, location: Any) -> SnapshotManifest | None:
        return self.manifest

    async def save_manifest(self, *, location: Any, manifest: SnapshotManifest) -> None:
        self.manifest = manifest


@pytest.mark.parametrize(
    ("save_latest_on", "shown"),
    [("message", {1, 2, 3, 4}), ("invocation", {0, 4}), ("never", {0}), ("trigger", {0})],
)
async def test_the_latest_snapshot_in_a_storage_of_ones_own_is_saved_as_chosen(
    save_latest_on: Any, shown: set[int]
) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    storage = DictStorage()
    for number in range(2):
        model = ScriptedModel([{"toolUse": {"name": "look"}}, "Done."])
        manager = SessionManager("my-session", storage=storage, save_latest_on=save_latest_on)
        async with agent_with(model, session_manager=manager, tools=[look], durability="strict") as agent:
            assert len(agent.messages) == 4 * number  # Whatever others are shown, the conversation goes on.
            if number:
                break
            await agent.invoke_async("Hello!")
    assert set(storage.shown) <= shown
    assert max(storage.shown) == max(shown)


async def test_a_trigger_saves_the_latest_snapshot_in_a_storage_of_ones_own() -> None:
    storage = DictStorage()
    manager = SessionManager(
        "my-session",
        storage=storage,
        save_latest_on="never",
        snapshot_trigger=lambda turn_count: turn_count % 2 == 0,
    )
    other = agent_with(ScriptedModel(["Hi."]))
    async with agent_with(ScriptedModel(["Hi."], loop=True), session_manager=manager) as agent:
        await agent.invoke_async("Hello!")
        assert not await manager.restore_snapshot(other)
        for _ in range(2):
            await agent.invoke_async("Hello!")
    assert list(storage.history) == ["1"]
    assert max(storage.shown) == 4
    assert await manager.restore_snapshot(other)
    assert len(other.messages) == 4


def graph_in(folder: Path, failing: bool = False) -> Graph:
    def write(*asked: Any) -> str:
        if failing:
            raise ValueError("no ink")
        return "Written."

    nodes = {"researcher": ScriptedModel(["Found."], loop=True), "writer": ScriptedModel([write], loop=True)}
    agents = {name: agent_with(model, name=name, agent_id=name) for name, model in nodes.items()}
    return Graph(agents=agents, session_manager=FileSessionManager("multi-agent-session", storage_dir=str(folder)))


@pytest.mark.real_time
async def test_the_state_of_a_graph_that_is_made_again_says_what_is_done(tmp_path: Path) -> None:
    with pytest.raises(repertory.errors.NodeFailed):
        await graph_in(tmp_path, failing=True).invoke_async("Research and write about AI")
    graph = graph_in(tmp_path)
    assert graph.state.status.value == "pending"  # Inside an event loop nothing is read behind its back.
    await graph.ready()
    assert [node.node_id for node in graph.state.completed_nodes] == ["researcher"]
    assert [node.node_id for node in graph.state.failed_nodes] == ["writer"]
    await graph.invoke_async()
    again = graph_in(tmp_path)
    await again.ready()
    assert again.state.status.value == "completed"
    assert str(again.state.results["writer"]) == "Written."
    assert again.serialize_state()["status"] == "completed"


def test_so_it_does_at_once_in_sync_code(tmp_path: Path) -> None:
    assert graph_in(tmp_path).state.status.value == "pending"
    graph_in(tmp_path)("Research and write about AI")
    assert graph_in(tmp_path).state.status.value == "completed"
    assert graph_in(tmp_path).serialize_state()["completed_nodes"] == ["researcher", "writer"]


@pytest.mark.real_time
async def test_a_run_that_is_given_to_a_graph_is_its_state_rather_than_the_stored_one(tmp_path: Path) -> None:
    await graph_in(tmp_path).invoke_async("Research and write about AI")
    with pytest.raises(repertory.errors.NodeFailed):
        await (half := graph_in(tmp_path / "other", failing=True)).invoke_async("Write about bees")
    graph = graph_in(tmp_path)
    graph.deserialize_state(half.serialize_state())
    assert [node.node_id for node in graph.state.completed_nodes] == ["researcher"]
    await graph.ready()
    assert [node.node_id for node in graph.state.completed_nodes] == ["researcher"]


REDACTED: Message = {"role": "assistant", "content": [{"text": "[redacted]"}]}


def manager_in(kind: str, folder: Path) -> Any:
    if kind == "file":
        return FileSessionManager("s", storage_dir=str(folder))
    return SessionManager("s", storage=FileStorage(str(folder)))


def holding(folder: Path, text: str) -> list[str]:
    """The names of the files below the folder that have the text, packed or not."""
    found: list[str] = []
    for path in folder.rglob("*"):
        body = path.read_bytes() if path.is_file() else b""
        found += [path.name] if text.encode() in body else []
    return found


@pytest.mark.parametrize("kind", ["file", "snapshots"])
def test_a_redaction_replaces_the_latest_message(kind: str, tmp_path: Path) -> None:
    manager = manager_in(kind, tmp_path)
    agent = agent_with(ScriptedModel(["The secret is 42."]), session_manager=manager)
    agent("Hello!")
    manager.redact_latest_message(REDACTED, agent)
    assert [text_of(message) for message in agent.messages] == ["Hello!", "[redacted]"]
    agent.shutdown()
    assert holding(tmp_path, "secret") == []
    if kind == "file":
        document = tmp_path / "session_s/agents/agent_default/messages/message_1.json"
        assert json.loads(document.read_text())["redact_message"]["content"] == REDACTED["content"]
        assert len(list(document.parent.iterdir())) == 2
    model = ScriptedModel(["Fine."])
    agent_with(model, session_manager=manager_in(kind, tmp_path))("And now?")
    assert [text_of(message) for message in model.calls[0].messages] == ["Hello!", "[redacted]", "And now?"]


@pytest.mark.real_time
async def test_inside_an_event_loop_a_redaction_is_stored_with_the_next_call(tmp_path: Path) -> None:
    manager = manager_in("file", tmp_path)
    async with agent_with(ScriptedModel(["The secret is 42.", "Fine."]), session_manager=manager) as agent:
        await agent.invoke_async("Hello!")
        manager.redact_latest_message(REDACTED, agent)
        assert text_of(agent.messages[-1]) == "[redacted]"
        await agent.invoke_async("And now?")
    assert holding(tmp_path, "secret") == []
    history = [text_of(message) for message in await agent.history()]
    assert history == ["Hello!", "[redacted]", "And now?", "Fine."]


def test_a_redaction_needs_a_message_of_the_same_role(tmp_path: Path) -> None:
    manager = manager_in("file", tmp_path)
    agent = agent_with(ScriptedModel(["Hi."]), session_manager=manager)
    with pytest.raises(StoreNotFound, match="no message to redact"):
        manager.redact_latest_message(REDACTED, agent)
    agent("Hello!")
    with pytest.raises(Invalid, match="same role"):
        manager.redact_latest_message({"role": "user", "content": [{"text": "x"}]}, agent)
    assert text_of(agent.messages[-1]) == "Hi."
