"""What programs of the SDK do with conversations by hand: managers without an agent, summaries, and stored contents."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from repertory.strands.agent.conversation_manager.compression import context_compression as compression
from repertory.strands.agent.conversation_manager.compression import pin_message as pinning
from repertory.strands.storage import LocalFileStorage
from repertory.strands.vended_memory_stores import FileMemoryStore, TestMemoryStore
from repertory.strands.vended_plugins.context_offloader import FileStorage as Artifacts
from repertory.strands.vended_plugins.context_offloader import InMemoryStorage

from repertory import (
    Agent,
    BeforeModelCallEvent,
    ContextOffloader,
    ConversationManager,
    FileStorage,
    HookRegistry,
    NullConversationManager,
    ScriptedModel,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from repertory.core.messages import Message, tool_results
from repertory.errors import ContextWindowOverflowException, Invalid, ModelFailed
from tests.core.test_window import conversation

pytestmark = pytest.mark.anyio


def holder(turns: int, *answers: Any, window: int | None = 1_000) -> Any:
    """Something with messages and models, and no agent."""
    model = SimpleNamespace(context_window_limit=window)
    return SimpleNamespace(messages=conversation([0] * turns), model=model, aux_model=ScriptedModel(list(answers)))


def before_call(manager: ConversationManager, agent: Any, tokens: int | None) -> Any:
    registry = HookRegistry()
    manager.register_hooks(registry)
    (registered,) = registry.callbacks_for(BeforeModelCallEvent)
    return registered.callback(BeforeModelCallEvent(agent=agent, projected_input_tokens=tokens))


def test_a_manager_in_a_registry_of_hooks_compresses_at_its_threshold_and_tidies_up_per_turn() -> None:
    manager = SlidingWindowConversationManager(4, proactive_compression=True)
    agent = holder(3)
    for tokens in (None, 699):
        before_call(manager, agent, tokens)
        assert len(agent.messages) == 6
    before_call(manager, agent, 700)
    assert len(agent.messages) == 4
    assert manager.removed_message_count == 2
    manager.per_turn, manager.window_size = True, 2
    before_call(manager, agent, None)
    assert len(agent.messages) == 2


def test_an_unknown_window_is_assumed_with_a_warning() -> None:
    agent = holder(3, window=None)
    with pytest.warns(UserWarning, match="200000"):
        before_call(SlidingWindowConversationManager(2, proactive_compression=True), agent, 150_000)
    assert len(agent.messages) == 2


def test_settings_are_attributes_that_count_from_the_next_decision_on() -> None:
    manager = SummarizingConversationManager(0.95, 5)
    assert (manager.summary_ratio, manager.preserve_recent_messages, manager.summarization_agent) == (0.8, 5, None)
    manager.summary_ratio = 0.5
    assert manager.settings.summary_ratio == 0.5
    with pytest.raises(Invalid):
        SlidingWindowConversationManager().window_size = -1


def test_a_summary_is_written_by_whatever_model_there_is() -> None:
    agent = holder(3, "SUMMARY")
    SummarizingConversationManager(0.5, 2).reduce_context(agent)
    assert [message["content"][0]["text"] for message in agent.messages] == ["SUMMARY", "a1", "q2", "a2"]


async def test_in_an_event_loop_the_summary_is_awaited() -> None:
    agent = holder(3, "SUMMARY")
    reducing = SummarizingConversationManager(0.5, 2).reduce_context(agent)
    assert reducing is not None
    await reducing
    assert agent.messages[0]["content"][0]["text"] == "SUMMARY"


def test_a_manager_refuses_the_state_of_another() -> None:
    with pytest.raises(Invalid):
        NullConversationManager().restore_from_session(SlidingWindowConversationManager().get_state())


async def test_conversations_are_cut_and_summarised_by_hand() -> None:
    history = conversation([0, 1])
    assert [compression.adjust_split_point_for_tool_pairs(history, place) for place in (3, 4, 6)] == [3, 5, 6]
    with pytest.raises(ContextWindowOverflowException):
        compression.adjust_split_point_for_tool_pairs(history, 7)
    assert compression.find_valid_trim_point(history, 1) == 2
    assert [each for each in history if compression.matches_message_type(each, "tools")] == history[3:5]
    pinning.apply_pin_first(history, 1)
    assert pinning.partition_pinned(history, 0, 2) == ([history[0]], [history[1]])
    model = ScriptedModel(["SUMMARY"])
    summary = await compression.generate_summary(history, model)
    assert summary == {"role": "user", "content": [{"text": "SUMMARY"}]}
    silent: Message = {"role": "assistant", "content": [{"reasoningContent": {"reasoningText": {"text": "hm"}}}]}
    with pytest.raises(ModelFailed):
        compression.as_user_summary(silent)


@pytest.mark.real_time
async def test_contents_are_kept_by_hand_with_their_types(tmp_path: Path) -> None:
    for storage in (Artifacts(str(tmp_path / "artifacts")), InMemoryStorage()):
        first = await storage.store("../tool 1", b"text")
        second = await storage.store("../tool 1", b"{}", "application/json")
        assert ".." not in first
        assert await storage.retrieve(first) == (b"text", "text/plain")
        assert await storage.retrieve(second.rpartition(".")[0]) == (b"{}", "application/json")
        for wrong in ("../../etc/passwd", "missing.txt", ""):
            with pytest.raises(KeyError):
                await storage.retrieve(wrong)


@pytest.mark.real_time
async def test_the_model_reads_what_the_program_itself_has_stored(tmp_path: Path) -> None:
    for storage in (Artifacts(str(tmp_path / "artifacts")), InMemoryStorage()):
        text = await storage.store("page", b"the text")
        picture = await storage.store("page", b"PNG", "image/png")
        offloader = ContextOffloader(storage)
        (tmp_path / "artifacts/private.txt").parent.mkdir(exist_ok=True)
        (tmp_path / "artifacts/private.txt").write_text("secret")
        for reference, found in (
            (text, {"text": "the text"}),
            (picture, {"image": {"format": "png", "source": {"bytes": b"PNG"}}}),
        ):
            model = ScriptedModel(
                [{"toolUse": {"name": "retrieve_offloaded_content", "input": {"reference": reference}}}, "Done."]
            )
            agent = Agent(model, plugins=[offloader], callback_handler=None)
            await agent.invoke_async("Read it")
            (result,) = tool_results(agent.messages[2])
            assert (result["status"], result["content"]) == ("success", [found])
        assert await storage.part_of("private.txt") is None


@pytest.mark.real_time
@pytest.mark.parametrize(("namespace", "folder"), [(None, "memory/facts"), ("ours", "ours")])
async def test_a_file_of_memories_is_where_the_sdk_has_it(tmp_path: Path, namespace: str | None, folder: str) -> None:
    storage = LocalFileStorage(tmp_path)
    store = FileMemoryStore(name="facts", storage=storage if namespace is None else storage.namespace(namespace))
    await store.add("Tea\ngreen")
    assert (tmp_path / folder / "tea.md").read_text() == "Tea\ngreen"
    assert [found.content for found in await store.search("green tea")] == ["Tea\ngreen"]


@pytest.mark.real_time
async def test_what_is_added_to_a_topic_joins_its_file_each_line_once(tmp_path: Path) -> None:
    store = FileMemoryStore(name="facts", storage=FileStorage(tmp_path), extraction=True)
    for content in ("# Tea\nhot", "# Tea\ngreen", "Tea!\nhot"):
        assert await store.add(content) == "tea.md"
    assert (tmp_path / "memory/facts/tea.md").read_text() == "# Tea\nhot\ngreen\nTea!"
    assert [found.metadata["path"] for found in await store.search("GREEN tea")] == ["tea.md"]  # type: ignore[index]
    assert "extractor" in store.extraction


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("content", "why"),
    [("no", "invalid JSON"), ("{}", "JSON array"), ('[{"id": "a"}]', "each record"), ('[{"id": "a", "content": "b",'
     ' "createdAt": "c", "metadata": 1}]', "metadata")],
)  # fmt: skip
async def test_a_memory_file_that_holds_anything_else_is_refused_and_kept(
    tmp_path: Path, content: str, why: str
) -> None:
    place = tmp_path / "notes.json"
    place.write_text(content)
    store = TestMemoryStore(name="notes", path=str(place))
    with pytest.raises(Invalid, match=why):
        await store.search("a")
    with pytest.raises(Invalid, match=why):
        await store.add("b")
    assert place.read_text() == content
