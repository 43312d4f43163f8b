"""Snapshots that a program keeps itself: what they hold, what loading them does, and which are refused."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    AfterInvocationEvent,
    AfterSnapshotEvent,
    Agent,
    BeforeSnapshotEvent,
    BeforeToolCallEvent,
    ConversationManager,
    FileSessionManager,
    FileStorage,
    InMemoryStorage,
    JournalSessionManager,
    NullConversationManager,
    Plugin,
    ScriptedModel,
    SessionManager,
    SlidingWindowConversationManager,
    Snapshot,
    SnapshotException,
    Snapshottable,
    SQLiteSessionManager,
    SummarizingConversationManager,
    tool,
)
from repertory.core.messages import Message, text_of
from repertory.errors import AgentBusy, ContextWindowOverflowException, HookFailed, Invalid, ModelFailed, NotReady
from tests.app.agent.test_conversation import NarrowModel

pytestmark = pytest.mark.anyio

BLOCKS: list[dict[str, Any]] = [
    {"text": "naïve 🐙 \x00"},
    {"image": {"format": "png", "source": {"bytes": b"\x89PNG\x00\xff"}}},
    {"document": {"format": "pdf", "name": "d", "source": {"bytes": b"%PDF"}}},
    {"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://b/k"}}}},
    {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}},
    {"reasoningContent": {"redactedContent": b"\x00\x01"}},
    {"guardContent": {"text": {"text": "g", "qualifiers": ["query"]}}},
    {"citationsContent": {"citations": [{"title": "t"}], "content": [{"text": "c"}]}},
    {"cachePoint": {"type": "default"}},
    {"text": '{"$bytes": "AAAA", "__bytes_encoded__": true}'},
]


def agent_with(*replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(list(replies) or ["ok"], loop=True), callback_handler=None, **options)


def over_json(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(snapshot, allow_nan=False))


def texts(messages: Sequence[Message]) -> list[str]:
    return [text_of(message) for message in messages]


@tool
def note(text: str) -> str:
    """Write something down.

    Args:
        text: What.
    """
    return f"noted {text}"


@tool
def other(text: str) -> str:
    """Do something else.

    Args:
        text: What.
    """
    return text


async def test_a_snapshot_goes_through_json_and_another_agent_goes_on_from_it() -> None:
    first = agent_with("Noted.", state={"color": "orange"})
    await first.invoke_async("My favorite color is orange.")
    snapshot = first.save_snapshot(metadata={"user_id": "123"})
    assert snapshot["type"] == "agent"
    assert snapshot["metadata"] == {"user_id": "123"}
    second = Agent(ScriptedModel([lambda seen, *_: f"you said: {text_of(seen[0])}"]), callback_handler=None)
    second.load_snapshot(over_json(snapshot))
    assert second.messages == first.messages
    assert second.state.get() == {"color": "orange"}
    assert str(await second.invoke_async("Which one?")) == "you said: My favorite color is orange."


async def test_what_a_snapshot_holds_does_not_change_with_the_agent() -> None:
    agent = agent_with("one", "two")
    await agent.invoke_async("first")
    snapshot = agent.save_snapshot()
    again = agent.save_snapshot()
    kept = copy.deepcopy(snapshot)
    await agent.invoke_async("second")
    agent.state.set("k", 1)
    assert snapshot == kept
    assert snapshot["state"] == again["state"]
    agent.load_snapshot(snapshot)
    assert texts(agent.messages) == ["first", "one"]


@pytest.mark.parametrize("block", BLOCKS, ids=[f"{next(iter(block))} {at}" for at, block in enumerate(BLOCKS)])
async def test_every_content_block_comes_back_as_it_was(block: dict[str, Any]) -> None:
    history: list[Any] = [{"role": "user", "content": [{"text": "look"}, block]}]
    tooled: list[Any] = [
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "n", "input": {"$bytes": "x"}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "status": "success", "content": [block]}}]},
        {"role": "assistant", "content": [{"text": "seen"}]},
    ]
    agent = agent_with(messages=[*history, *tooled])
    other_agent = agent_with(snapshot=over_json(agent.save_snapshot()))
    assert other_agent.messages == [*history, *tooled]
    assert agent_with(snapshot=over_json(agent.take_snapshot(preset="session").to_dict())).messages == [
        *history,
        *tooled,
    ]


async def test_a_text_that_cannot_be_sent_is_refused_and_a_state_with_it_comes_back() -> None:
    with pytest.raises(Invalid, match="without lone surrogates"):
        agent_with(messages=[{"role": "user", "content": [{"text": "naïve 🐙 \ud800 \x00"}]}])
    state = {"k\udfff": ["naïve 🐙 \ud800 \x00"]}
    snapshot = over_json(agent_with(state=state).save_snapshot())
    assert agent_with(snapshot=snapshot).state.get() == state


def changed(path: Sequence[Any], value: object) -> Callable[[dict[str, Any]], object]:
    def change(snapshot: dict[str, Any]) -> object:
        inner: Any = snapshot
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return snapshot

    return change


def deep() -> object:
    value: object = []
    for _ in range(50_000):
        value = [value]
    return value


REFUSED: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("another text", changed(["state", "messages", 0, "content", 0, "text"], "no"), "changed after it was taken"),
    ("another state", changed(["state", "state", "k"], 2), "changed after it was taken"),
    ("another time", changed(["created_at"], "2020-01-01T00:00:00.000Z"), "changed after it was taken"),
    ("another digest", changed(["sha256"], "0" * 64), "changed after it was taken"),
    ("a number for a digest", changed(["sha256"], 7), "changed after it was taken"),
    ("another version", changed(["schema_version"], "9"), "Unsupported snapshot schema version: '9'"),
    ("another type", changed(["type"], "multiAgent"), "Expected a snapshot of type 'agent'"),
    ("a list for a state", changed(["state"], []), "JSON objects"),
    ("truncated", lambda snapshot: {"type": "agent", "state": snapshot["state"]}, "missing"),
    ("no messages any more", lambda s: {**s, "state": {"state": {}}}, "changed after it was taken"),
    ("a message", lambda snapshot: snapshot["state"]["messages"][0], "not a snapshot"),
    ("a list", lambda snapshot: [snapshot], "a dictionary"),
    ("a text", json.dumps, "a dictionary"),
    ("nothing", lambda snapshot: {}, "not a snapshot"),
    ("another scope", lambda snapshot: {"scope": "multiAgent", "schema_version": "1.0", "data": {}}, "scope"),
    ("a deep type", lambda snapshot: {**snapshot, "type": deep()}, "nested too deeply"),
    ("a deep version", lambda snapshot: {**snapshot, "schema_version": deep()}, "nested too deeply"),
    ("a deep scope", lambda snapshot: {"scope": deep(), "schema_version": "1.0", "data": {}}, "nested too deeply"),
    ("deep data", lambda snapshot: {"scope": "agent", "schema_version": "1.0", "data": {"a": deep()}}, "too deeply"),
    ("no data", lambda snapshot: {"scope": "agent", "schema_version": "1.0", "data": 1}, "JSON object"),
]


@pytest.mark.parametrize(("change", "why"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
async def test_what_is_no_snapshot_of_an_agent_is_refused_and_changes_nothing(
    change: Callable[[dict[str, Any]], object], why: str
) -> None:
    agent = agent_with(state={"k": 1})
    await agent.invoke_async("hello")
    snapshot: Any = change(over_json(agent.save_snapshot()))
    await agent.invoke_async("more")
    before = agent.messages
    with pytest.raises(SnapshotException, match=why):
        agent.load_snapshot(snapshot)
    assert agent.messages == before
    with pytest.raises(SnapshotException):
        agent_with(snapshot=snapshot)


async def test_metadata_belongs_to_the_application() -> None:
    agent = agent_with()
    snapshot = agent.save_snapshot({"n": 1})
    snapshot["metadata"] = {"label": "mine"}
    agent.load_snapshot(over_json(snapshot))
    with pytest.raises(Invalid, match="JSON serializable"):
        agent.save_snapshot({"f": print})
    with pytest.raises(Invalid, match="dictionary"):
        agent.save_snapshot("label")  # type: ignore[arg-type]


async def test_the_sdks_spelling_is_given_and_taken() -> None:
    agent = agent_with("yes", state={"k": 1})
    await agent.invoke_async("hello")
    snapshot = agent.take_snapshot(preset="session", include=["system_prompt"], app_data={"a": 1})
    assert (snapshot.scope, snapshot.schema_version, snapshot.app_data) == ("agent", "1.0", {"a": 1})
    document = over_json(snapshot.to_dict())
    assert set(document) == {"scope", "schema_version", "created_at", "data", "app_data", "sha256"}
    back = Snapshot.from_dict(document)
    assert back == snapshot
    del document["sha256"]  # As the SDK writes it.
    assert agent_with(snapshot=document).messages == agent.messages
    document["data"]["messages"] = "rubbish"
    with pytest.raises(SnapshotException, match="list"):
        Snapshot.from_dict(document)
    with pytest.raises(SnapshotException, match="No snapshot fields resolved"):
        agent.take_snapshot()


async def test_fields_are_included_and_excluded_by_name() -> None:
    agent = agent_with(state={"k": 1}, system_prompt="Be brief.")
    await agent.invoke_async("hello")
    assert "system_prompt" not in agent.save_snapshot()["state"]
    small = agent.save_snapshot(include=["system_prompt"], exclude=["messages", "interrupt_state", "model_state"])
    assert set(small["state"]) == {"state", "conversation_manager_state", "system_prompt"}
    later = agent_with(system_prompt="Be long.")
    await later.invoke_async("something else")
    loaded = later.load_snapshot(small)
    assert loaded.fields == ("conversation_manager_state", "state", "system_prompt")
    assert later.system_prompt == "Be brief."
    assert texts(later.messages) == ["something else", "ok"]
    await later.invoke_async("more")
    assert texts(later.messages) == ["something else", "ok", "more", "ok"]
    assert later.state.get() == {"k": 1}
    for wrong in ({"include": ["tools"]}, {"exclude": ["nothing"]}, {"preset": "all"}):
        with pytest.raises(SnapshotException):
            agent.save_snapshot(**wrong)  # type: ignore[arg-type]


async def test_overrides_tweak_single_values() -> None:
    agent = agent_with(state={"tone": "dry", "lang": "en"})
    await agent.invoke_async("hello")
    snapshot = agent.save_snapshot()
    other_agent = agent_with()
    other_agent.load_snapshot(snapshot, overrides={"state.tone": "warm", "system_prompt": "Sing."})
    assert other_agent.state.get() == {"tone": "warm", "lang": "en"}
    assert other_agent.system_prompt == "Sing."
    said: list[Any] = [
        {"role": "user", "content": [{"text": "hi"}]},
        {"role": "assistant", "content": [{"text": "ho"}]},
    ]
    other_agent.load_snapshot(snapshot, overrides={"messages": said, "state": {}})
    assert other_agent.messages == said
    assert other_agent.state.get() == {}
    for overrides, wrong in (({"tools": []}, Invalid), ({"messages": [1]}, SnapshotException)):
        with pytest.raises(wrong):
            other_agent.load_snapshot(snapshot, overrides=overrides)
    assert other_agent.messages == said


async def test_enabled_tools_come_back_and_missing_ones_are_reported() -> None:
    agent = agent_with(tools=[note, other], enabled_tools=["note", "other"])
    snapshot = agent.save_snapshot()
    narrow = agent_with(tools=[note])
    loaded = narrow.load_snapshot(snapshot)
    assert narrow.enabled_tools == ["note"]
    assert loaded.missing_tools == ("other",)
    agent.enabled_tools = None
    assert "enabled_tools" not in agent.save_snapshot()["state"]


async def test_a_snapshot_is_no_model() -> None:
    with pytest.raises(TypeError, match="snapshot="):
        Agent(agent_with().save_snapshot())  # type: ignore[arg-type]


def test_an_agent_is_built_from_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    path.write_text(json.dumps({"system_prompt": "Be brief.", "name": "Bo", "agent_id": "bo"}))
    agent = Agent.from_config(path, {"model": ScriptedModel(["ok"]), "callback_handler": None})
    assert (agent.system_prompt, agent.name, agent.agent_id) == ("Be brief.", "Bo", "bo")
    assert Agent.from_config({"name": "Al", "model": ScriptedModel(["ok"])}).name == "Al"
    with pytest.raises(Invalid, match="cannot be read"):
        Agent.from_config(tmp_path / "none.json")
    path.write_text("[1]")
    with pytest.raises(Invalid, match="JSON object"):
        Agent.from_config(str(path))
    with pytest.raises(TypeError):
        Agent.from_config({"nme": "Al"})


class Counter(Plugin):
    name = "counter"

    def __init__(self) -> None:
        self.count = 0

    def save_snapshot(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_snapshot(self, snapshot: Any) -> None:
        self.count = snapshot["count"]


async def test_plugins_that_own_data_have_it_in_snapshots() -> None:
    counter = Counter()
    assert isinstance(counter, Snapshottable)
    assert isinstance(agent_with(), Snapshottable)
    agent = agent_with(plugins=[counter])
    counter.count = 3
    snapshot = over_json(agent.save_snapshot())
    counter.count = 9
    agent.load_snapshot(snapshot)
    assert counter.count == 3
    assert agent_with().load_snapshot(snapshot).missing_components == ("counter",)
    with pytest.raises(SnapshotException, match="did not take its snapshot"):
        agent.load_snapshot(snapshot, overrides={"components": {"counter": {}}})


async def test_hooks_are_told_and_may_refuse() -> None:
    told: list[tuple[str, str]] = []

    def before(event: BeforeSnapshotEvent) -> None:
        told.append(("before", event.action))
        event.metadata["by"] = "hook"
        if event.metadata.get("refuse"):
            raise Invalid("not now")

    def after(event: AfterSnapshotEvent) -> None:
        told.append(("after", event.action))
        if event.action == "load":
            assert "messages" in event.loaded.fields

    agent = agent_with()
    agent.add_hook(before)
    agent.add_hook(after)
    snapshot = agent.save_snapshot()
    assert snapshot["metadata"] == {"by": "hook"}
    agent.load_snapshot(snapshot)
    assert told == [("before", "save"), ("after", "save"), ("before", "load"), ("after", "load")]
    with pytest.raises((Invalid, HookFailed), match="not now"):
        agent.save_snapshot({"refuse": True})


async def test_a_snapshot_may_be_taken_within_a_turn_and_not_loaded() -> None:
    agent = agent_with({"toolUse": {"name": "note", "input": {"text": "x"}}}, "done", tools=[note])
    taken: list[Snapshot] = []
    refused: list[str] = []

    def look(event: BeforeToolCallEvent) -> None:
        taken.append(event.agent.save_snapshot())
        try:
            event.agent.load_snapshot(taken[0])
        except AgentBusy as error:
            refused.append(str(error))

    agent.add_hook(look)
    agent.add_hook(lambda event: taken.append(event.agent.save_snapshot()), AfterInvocationEvent)
    await agent.invoke_async("go")
    assert len(refused) == 1
    assert len(taken[0]["state"]["messages"]) == 2  # type: ignore[index, arg-type]
    middle = agent_with("again", tools=[note])
    middle.load_snapshot(taken[0])
    await middle.invoke_async("never mind")
    assert text_of(middle.messages[-1]) == "again"
    end = agent_with("later", snapshot=taken[-1])
    assert texts(end.messages)[-1] == "done"


async def test_loading_waits_for_nobody_and_the_next_call_goes_on_from_it() -> None:
    async with agent_with("one", "two", "three") as agent:
        await agent.invoke_async("first")
        snapshot = agent.save_snapshot()
        await agent.invoke_async("second")
        loaded = agent.load_snapshot(snapshot)
        assert loaded.missing_tools == ()
        assert texts(agent.messages) == ["first", "one"]
        await agent.invoke_async("third")
        assert texts(agent.messages) == ["first", "one", "third", "three"]
        assert texts(await agent.history()) == ["first", "one", "second", "two", "third", "three"]


PLACES: dict[str, Callable[[Path], Any]] = {
    "sqlite": lambda folder: SQLiteSessionManager("s", path=folder / "s.db"),
    "journal": lambda folder: JournalSessionManager("s", storage=FileStorage(folder / "journal")),
    "files": lambda folder: FileSessionManager("s", storage_dir=folder / "files"),
    "snapshots": lambda folder: SessionManager("s", storage=FileStorage(folder / "snapshots")),
}


@pytest.mark.real_time
@pytest.mark.parametrize("place", PLACES)
async def test_a_session_goes_on_from_a_snapshot_and_loses_nothing(place: str, tmp_path: Path) -> None:
    manager = PLACES[place]
    async with agent_with("one", "two", "three", session_manager=manager(tmp_path)) as agent:
        await agent.invoke_async("first")
        agent.state.set("k", 1)
        await agent.invoke_async("second")
        kept = over_json(agent.save_snapshot())
        agent.state.set("k", 2)
        await agent.invoke_async("third")
    again = agent_with("four", session_manager=manager(tmp_path))
    with pytest.raises(NotReady):
        again.save_snapshot()
    await again.load_snapshot_async(kept)
    assert texts(again.messages) == ["first", "one", "second", "two"]
    reopened = agent_with("five", session_manager=manager(tmp_path))
    await reopened.invoke_async("fourth")
    assert texts(reopened.messages) == ["first", "one", "second", "two", "fourth", "five"]
    assert reopened.state.get() == {"k": 1}
    assert texts(await reopened.history()) == ["first", "one", "second", "two", "third", "three", "fourth", "five"]


@pytest.mark.real_time
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("held", [False, True])
async def test_what_is_set_behind_a_snapshot_that_was_loaded_stays(place: str, held: bool, tmp_path: Path) -> None:
    manager = PLACES[place]
    agent = agent_with("one", "two", "three", session_manager=manager(tmp_path))
    async with agent if held else nullcontext():
        await agent.invoke_async("first")
        agent.state.set("k", "old")
        agent.state.set("other", 1)
        kept = over_json(agent.save_snapshot())
        await agent.invoke_async("second")
        agent.state.set("lost", "with what it was loaded over")
        agent.load_snapshot(kept)
        agent.state.set("k", "new")
        agent.state.delete("other")
        assert agent.state.get() == {"k": "new"}
        await agent.invoke_async("third")
        assert agent.state.get() == {"k": "new"}
    again = agent_with(session_manager=manager(tmp_path))
    await again.ready()
    assert again.state.get() == {"k": "new"}
    assert texts(again.messages) == ["first", "one", "third", "three"]


@pytest.mark.real_time
def test_sync_programs_find_the_snapshot_stored_on_return(tmp_path: Path) -> None:
    manager = PLACES["sqlite"]
    snapshot = agent_with(messages=[{"role": "user", "content": [{"text": "hi"}]}]).save_snapshot()
    agent = agent_with(session_manager=manager(tmp_path))
    agent("something")
    agent.load_snapshot(snapshot)
    assert texts(agent_with(session_manager=manager(tmp_path)).messages) == ["hi"]
    built = agent_with(session_manager=manager(tmp_path), snapshot=agent.save_snapshot(exclude=["messages"]))
    assert texts(built.messages) == ["hi"]


async def test_a_summary_stays_one() -> None:
    agent = Agent(NarrowModel(6), callback_handler=None, conversation_manager=SummarizingConversationManager(0.5, 2))
    for number in range(5):
        await agent.invoke_async(f"p{number}")
    assert texts(agent.messages)[0] == "SUMMARY"
    later = Agent(NarrowModel(6), callback_handler=None, conversation_manager=SummarizingConversationManager(0.5, 2))
    await later.load_snapshot_async(over_json(agent.save_snapshot()))
    assert later.messages == agent.messages
    assert later.conversation_manager.removed_message_count == agent.conversation_manager.removed_message_count
    await later.invoke_async("more")
    assert texts(later.messages)[0] == "SUMMARY"
    assert texts(await later.history())[0] != "SUMMARY"


class Counting(ConversationManager):
    """Counts how often it was asked."""

    asked = 0

    def apply_management(self, agent: Any, **kwargs: Any) -> None:
        self.asked += 1

    def reduce_context(self, agent: Any, e: Any = None, **kwargs: Any) -> None:
        raise e or RuntimeError

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "asked": self.asked}

    def restore_from_session(self, state: dict[str, Any]) -> None:
        super().restore_from_session(state)
        self.asked = state.get("asked", 0)


async def test_what_a_manager_of_ones_own_keeps_is_in_the_snapshot() -> None:
    agent = agent_with(conversation_manager=Counting())
    await agent.invoke_async("a")
    await agent.invoke_async("b")
    later = agent_with(conversation_manager=Counting())
    await later.load_snapshot_async(over_json(agent.save_snapshot()))
    assert later.conversation_manager.asked == 2  # type: ignore[attr-defined]


async def test_wherever_a_snapshot_was_taken_loading_it_shows_what_was_shown(
    rng: random.Random,
) -> None:
    storage = InMemoryStorage()

    def manager() -> ConversationManager:
        return rng.choice(
            [
                NullConversationManager(),
                SlidingWindowConversationManager(rng.randint(2, 9)),
                SlidingWindowConversationManager(rng.randint(3, 9), pin_first=rng.randint(1, 2)),
                SummarizingConversationManager(0.5, 1),
            ]
        )

    taken: list[tuple[Any, list[Message], Any]] = []
    said = 0
    for _ in range(12):
        agent = Agent(
            NarrowModel(8),
            callback_handler=None,
            conversation_manager=manager(),
            session_manager=JournalSessionManager("s", storage=storage),
        )
        async with agent:
            for _ in range(rng.randint(1, 4)):
                match rng.choice(["say", "say", "set", "take", "load"]):
                    case "say":
                        said += 1
                        with contextlib.suppress(ContextWindowOverflowException, ModelFailed):
                            await agent.invoke_async(f"p{said}")
                    case "set":
                        agent.state.set(rng.choice("abc"), rng.random())
                    case "take":
                        taken.append((over_json(agent.save_snapshot()), agent.messages, agent.state.get()))
                    case _:
                        if taken:
                            snapshot, shown, state = rng.choice(taken)
                            if rng.random() < 0.5:
                                await agent.load_snapshot_async(snapshot)
                            else:
                                agent.load_snapshot(snapshot)
                                await anyio.lowlevel.checkpoint()
                            assert agent.messages == shown
                            assert agent.state.get() == state
            live = agent.messages, agent.state.get()
        reader = Agent(
            NarrowModel(8),
            callback_handler=None,
            conversation_manager=NullConversationManager(),
            session_manager=JournalSessionManager("s", storage=storage),
        )
        async with reader:
            if not agent._life.loads:
                assert (reader.messages, reader.state.get()) == live


async def test_whoever_traces_finds_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interface of OpenTelemetry, with a provider that writes down what it is told."""
    from opentelemetry import trace

    spans: list[tuple[str, Any]] = []

    class Tracer(trace.NoOpTracer):
        def start_as_current_span(self, name: str, *args: Any, **options: Any) -> Any:
            spans.append((name, options["attributes"]))
            return super().start_as_current_span(name, *args, **options)

    monkeypatch.setattr(trace, "get_tracer", lambda name: Tracer())
    agent = agent_with(agent_id="bo")
    agent.load_snapshot(agent.save_snapshot())
    said = {"gen_ai.agent.id": "bo"}
    assert spans == [("repertory.snapshot.save", said), ("repertory.snapshot.load", said)]
