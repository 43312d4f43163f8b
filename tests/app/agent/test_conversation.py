"""What the model is shown: summaries, compression ahead of need, and managers that users write."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    Agent,
    AgentSpec,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    ContextWindowOverflowException,
    ConversationManager,
    FileSessionManager,
    FileStorage,
    InMemoryStorage,
    JournalSessionManager,
    MessageAddedEvent,
    NullConversationManager,
    Runtime,
    ScriptedModel,
    SlidingWindowConversationManager,
    SnapshotSessionManager,
    SQLiteSessionManager,
    SummarizingConversationManager,
    WindowBudget,
    WindowPlan,
    tool,
)
from repertory.core.messages import Message, text_of
from repertory.core.window.decision import is_summary
from repertory.errors import AgentBusy, Invalid, ModelFailed, UnpairedTools

pytestmark = pytest.mark.anyio

WINDOW = 1_000


class NarrowModel(ScriptedModel):
    """Refuses what is longer than so many messages, and summarises when it is asked to."""

    def __init__(self, most: int, *, window: int | None = None, summary: Any = "SUMMARY") -> None:
        super().__init__([self._answer], loop=True)
        self.most = most
        self.window = window
        self.summary = summary
        self.summaries = 0

    @property
    def context_window_limit(self) -> int | None:
        return self.window

    def _answer(self, messages: Sequence[Message], *rest: Any) -> Any:
        if text_of(messages[0]).startswith("Summarize the conversation"):
            self.summaries += 1
            return self.summary() if callable(self.summary) else self.summary
        if len(messages) > self.most:
            return ContextWindowOverflowException("too long")
        return f"answer to {text_of(messages[-1])}"


def talk_of(agent: Agent) -> list[str]:
    return [text_of(message) for message in agent.messages]


async def say(agent: Agent, count: int, words: int = 1) -> None:
    for number in range(count):
        await agent.invoke_async(f"q{number} " + "word " * words)


def quiet(model: ScriptedModel, manager: ConversationManager, **options: Any) -> Agent:
    return Agent(model, callback_handler=None, conversation_manager=manager, **options)


# ------------------------------------------------------------------------------------------------------------ summaries


async def test_an_overflow_is_answered_by_a_summary_of_the_oldest_messages() -> None:
    model = NarrowModel(9)
    agent = quiet(model, SummarizingConversationManager(summary_ratio=0.5, preserve_recent_messages=4))
    await say(agent, 6)
    assert model.summaries == 1
    assert talk_of(agent)[0] == "SUMMARY"
    assert is_summary(agent.messages[0])
    assert agent.messages[0]["role"] == "user"
    history = await agent.history()
    assert [text_of(message)[:2] for message in history[::2]] == [f"q{n}" for n in range(6)]
    assert agent.conversation_manager.removed_message_count == 12 + 1 - len(agent.messages)


async def test_summaries_are_written_by_the_aux_model_or_by_an_agent_of_their_own() -> None:
    aux = ScriptedModel(["by aux"], loop=True)
    agent = quiet(NarrowModel(9), SummarizingConversationManager(preserve_recent_messages=2), aux_model=aux)
    await say(agent, 6)
    assert talk_of(agent)[0] == "by aux"
    assert "third person" in str(aux.calls[0].system_prompt)

    writer = Agent(ScriptedModel(["by agent"], loop=True), system_prompt="mine", callback_handler=None)
    manager = SummarizingConversationManager(summarization_agent=writer, preserve_recent_messages=2)
    agent = quiet(NarrowModel(9), manager)
    await say(agent, 7)
    assert talk_of(agent)[0] == "by agent"
    assert writer.messages == []

    own = ScriptedModel(["by prompt"], loop=True)
    manager = SummarizingConversationManager(summarization_system_prompt="own prompt", preserve_recent_messages=2)
    agent = quiet(NarrowModel(9), manager, aux_model=own)
    await say(agent, 6)
    assert own.calls[0].system_prompt == "own prompt"


@pytest.mark.parametrize("trouble", [ModelFailed("down"), ""], ids=repr)
async def test_a_summary_that_fails_leaves_everything_as_it_was(trouble: Any) -> None:
    model = NarrowModel(9, summary=lambda: trouble)
    agent = quiet(model, SummarizingConversationManager(preserve_recent_messages=2))
    await say(agent, 5)
    with pytest.raises(ContextWindowOverflowException):
        await agent.invoke_async("one more")
    assert len(agent.messages) == 11
    assert len(await agent.history()) == 11
    model.summary = "SUMMARY"
    assert str(await agent.invoke_async("again")) == "answer to again"
    assert talk_of(agent)[0] == "SUMMARY"


async def test_a_summariser_that_hangs_is_given_up() -> None:
    class Hanging(ScriptedModel):
        async def stream(self, *asked: Any, **options: Any) -> Any:
            await anyio.sleep_forever()
            yield {}

    agent = quiet(NarrowModel(9), SummarizingConversationManager(preserve_recent_messages=2), aux_model=Hanging(["x"]))
    await say(agent, 5)
    with anyio.fail_after(1_000), pytest.raises(ContextWindowOverflowException):
        await agent.invoke_async("one more")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: agent.invoke_async("and again"))
        await anyio.sleep(1)
        agent.cancel()
    said = [text_of(message) for message in await agent.history() if message["role"] == "user"]
    assert said[-2:] == ["one more", "and again"]


@pytest.mark.real_time
async def test_what_is_restored_is_what_was_shown_summary_included(tmp_path: Path) -> None:
    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    agent = quiet(NarrowModel(9), SummarizingConversationManager(preserve_recent_messages=2), session_manager=manager)
    await say(agent, 7)
    shown = agent.messages
    restored = quiet(NarrowModel(9), SummarizingConversationManager(), session_manager=manager)
    await restored.ready()
    assert restored.messages == shown
    assert restored.conversation_manager.removed_message_count == agent.conversation_manager.removed_message_count
    other = quiet(NarrowModel(9), SlidingWindowConversationManager(), session_manager=manager)
    await other.ready()
    assert other.messages == shown


async def test_a_summary_is_begun_ahead_of_need_and_no_turn_waits_for_it() -> None:
    written: list[float] = []

    class Slow(ScriptedModel):
        async def stream(self, *asked: Any, **options: Any) -> Any:
            await anyio.sleep(100)
            written.append(anyio.current_time())
            async for event in super().stream(*asked, **options):
                yield event

    model = NarrowModel(1_000, window=WINDOW)
    manager = SummarizingConversationManager(proactive_compression=True, preserve_recent_messages=2)
    agent = quiet(model, manager, aux_model=Slow(["AHEAD"], loop=True))
    async with agent:
        began = anyio.current_time()
        turns = 0
        while agent.messages[:1] == [] or not is_summary(agent.messages[0]):
            await agent.invoke_async(f"q{turns} " + "word " * 30)
            turns += 1
            if anyio.current_time() == began and turns > 4:
                await anyio.sleep(50)
            assert turns < 30
        assert talk_of(agent)[0] == "AHEAD"
        assert written
        assert anyio.current_time() - began < 400


# ---------------------------------------------------------------------------------------------------- ahead of a call


async def test_a_request_that_reaches_the_threshold_is_shortened_before_the_call_also_between_tools() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "x" * 800

    uses = [{"toolUse": {"name": "look", "input": {}}} for _ in range(6)]
    model = ScriptedModel([*uses, "done"])
    manager = SlidingWindowConversationManager(proactive_compression={"compression_threshold": 0.5})
    agent = quiet(Windowed(model, WINDOW), manager, tools=[look])
    await agent.invoke_async("go")
    sizes = [sum(len(str(message["content"])) for message in call.messages) for call in model.calls]
    assert max(sizes) < 0.5 * WINDOW * 4 + 1_600
    assert len(await agent.history()) == 14


class Windowed(ScriptedModel):
    """Another model with a window."""

    def __init__(self, model: ScriptedModel, window: int) -> None:
        self._model, self._window = model, window

    @property
    def context_window_limit(self) -> int | None:
        return self._window

    def stream(self, *asked: Any, **options: Any) -> Any:
        return self._model.stream(*asked, **options)


async def test_compression_that_fails_is_logged_and_the_call_is_made(caplog: pytest.LogCaptureFixture) -> None:
    model = NarrowModel(1_000, window=100, summary=lambda: ModelFailed("down"))
    agent = quiet(model, SummarizingConversationManager(proactive_compression=True, preserve_recent_messages=1))
    await say(agent, 4, words=40)
    assert len(agent.messages) == 8
    assert "was not shortened" in caplog.text


async def test_a_window_that_nobody_knows_is_learned_from_a_refusal() -> None:
    model = NarrowModel(9)
    manager = SlidingWindowConversationManager(proactive_compression={"compression_threshold": 0.9})
    agent = quiet(model, manager)
    async with agent:
        await say(agent, 20, words=20)
        refused = sum(len(call.messages) > 9 for call in model.calls)
    assert refused == 1


# ------------------------------------------------------------------------------------------------------------ one's own


class KeepLast(ConversationManager):
    """As the documentation has it."""

    def __init__(self, most: int = 4, **options: Any) -> None:
        super().__init__(**options)
        self.most = most
        self.seen = 0

    def apply_management(self, agent: Any, **kwargs: Any) -> None:
        self.seen += 1
        if len(agent.messages) > self.most:
            agent.messages[:] = agent.messages[-self.most :]

    def reduce_context(self, agent: Any, e: Exception | None = None, **kwargs: Any) -> None:
        del agent.messages[: len(agent.messages) // 2]

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "seen": self.seen}

    def restore_from_session(self, state: dict[str, Any]) -> None:
        super().restore_from_session(state)
        self.seen = state.get("seen", 0)


class KeepLastLater(KeepLast):
    async def apply_management(self, agent: Any, **kwargs: Any) -> None:  # type: ignore[override]
        await anyio.sleep(1)
        super().apply_management(agent)


class PlansItself(ConversationManager):
    def plan(self, history: Sequence[Message], budget: WindowBudget) -> WindowPlan:
        return WindowPlan(drop=max(0, len(history) - 4))


@pytest.mark.parametrize("kind", [KeepLast, KeepLastLater, PlansItself])
async def test_a_manager_of_ones_own_decides_what_is_shown(kind: type[ConversationManager]) -> None:
    agent = quiet(NarrowModel(100), kind())
    await say(agent, 5)
    assert [text[:2] for text in talk_of(agent)] == ["q3", "an", "q4", "an"]
    assert len(await agent.history()) == 10
    assert agent.conversation_manager.removed_message_count == 6


async def test_a_manager_of_ones_own_shortens_when_the_window_is_full() -> None:
    model = NarrowModel(5)
    agent = quiet(model, KeepLast(most=100))
    await say(agent, 5)
    assert len(await agent.history()) == 10
    assert len(agent.messages) <= 6


@pytest.mark.real_time
async def test_the_state_of_a_manager_of_ones_own_is_kept_with_the_session(tmp_path: Path) -> None:
    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    await say(quiet(NarrowModel(100), KeepLast(), session_manager=manager), 3)
    restored = KeepLast()
    agent = quiet(NarrowModel(100), restored, session_manager=manager)
    await agent.ready()
    assert restored.seen == 3
    assert restored.removed_message_count == 2
    assert len(agent.messages) == 4


async def test_a_manager_that_extends_a_ready_one_is_asked_in_its_own_words() -> None:
    class Louder(SlidingWindowConversationManager):
        def __init__(self) -> None:
            super().__init__(window_size=4)
            self.calls = 0

        def apply_management(self, agent: Any, **kwargs: Any) -> None:
            self.calls += 1
            super().apply_management(agent, **kwargs)

    manager = Louder()
    agent = quiet(NarrowModel(100), manager)
    await say(agent, 4)
    assert manager.calls == 4
    assert len(agent.messages) == 4


class Unruly(ConversationManager):
    def __init__(self, trouble: Any) -> None:
        super().__init__()
        self.trouble = trouble

    def apply_management(self, agent: Any, **kwargs: Any) -> None:
        self.trouble(agent)

    def reduce_context(self, agent: Any, e: Exception | None = None, **kwargs: Any) -> None:
        self.trouble(agent)


@pytest.mark.parametrize(
    "trouble",
    [lambda agent: 1 / 0, lambda agent: agent.messages.clear(), lambda agent: agent.messages.reverse()],
    ids=["raises", "empties", "reverses"],
)
async def test_a_manager_that_does_what_cannot_be_changes_nothing(
    trouble: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agent = quiet(NarrowModel(5), Unruly(trouble))
    await say(agent, 3)
    assert len(agent.messages) == 6
    assert "was not shortened" in caplog.text
    with pytest.raises(ContextWindowOverflowException):
        await agent.invoke_async("too much")
    assert len(await agent.history()) == 7


async def test_the_null_manager_hides_nothing_and_passes_an_overflow_on() -> None:
    agent = quiet(NarrowModel(9), NullConversationManager(proactive_compression=True))
    await say(agent, 5)
    assert len(agent.messages) == 10
    with pytest.raises(ContextWindowOverflowException, match="too long"):
        await agent.invoke_async("too much")


@pytest.mark.parametrize("wanted", [{"compression_threshold": 0}, {"compression_threshold": 1.1}, {"treshold": 1}, 3])
def test_a_threshold_that_is_none_is_refused(wanted: Any) -> None:
    for kind in (NullConversationManager, SlidingWindowConversationManager, SummarizingConversationManager):
        with pytest.raises(ValueError, match="compression"):
            kind(proactive_compression=wanted)
    assert SummarizingConversationManager(proactive_compression=True).compression_threshold == 0.7
    assert SummarizingConversationManager().compression_threshold is None


def test_what_is_no_manager_is_refused() -> None:
    class Half(ConversationManager):
        def apply_management(self, agent: Any, **kwargs: Any) -> None: ...

    for wrong in (object(), "sliding", dict, Half, Half()):
        with pytest.raises(Invalid, match="conversation manager"):
            Agent(ScriptedModel(["x"]), conversation_manager=wrong)  # type: ignore[arg-type]


async def test_sessions_of_a_runtime_share_no_state_of_a_manager() -> None:
    async with Runtime() as runtime:
        spec = AgentSpec(model=NarrowModel(100), conversation_manager=KeepLast())
        hosted = runtime.agent(spec)
        for name in ("a", "b"):
            for number in range(3):
                await hosted.session(name).invoke(f"q{number}")
    assert spec.conversation_manager is not None
    assert spec.conversation_manager.seen == 0  # type: ignore[attr-defined]


async def test_the_manager_may_change_in_the_middle_of_a_conversation() -> None:
    agent = quiet(NarrowModel(100), SlidingWindowConversationManager(window_size=4))
    await say(agent, 4)
    agent.conversation_manager = NullConversationManager()
    await say(agent, 3)
    assert len(agent.messages) == 10
    agent.conversation_manager = KeepLast(most=2)
    await say(agent, 1)
    assert len(agent.messages) == 2
    assert len(await agent.history()) == 16


class Counting(SlidingWindowConversationManager):
    """Extends a ready one by a state of its own, and by nothing else."""

    def __init__(self) -> None:
        super().__init__(window_size=4)
        self.seen: list[str] = []

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        registry.add_callback(BeforeInvocationEvent, lambda event: self.seen.append(text_of(event.messages[0])))

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "seen": list(self.seen)}

    def restore_from_session(self, state: dict[str, Any]) -> None:
        super().restore_from_session(state)
        self.seen = list(state.get("seen", []))


@pytest.mark.real_time
@pytest.mark.parametrize("place", ["sqlite", "files", "snapshots"])
async def test_a_state_that_a_subclass_adds_to_a_ready_manager_is_kept_on_every_store(
    tmp_path: Path, place: str
) -> None:
    def manager() -> Any:
        if place == "sqlite":
            return SQLiteSessionManager("s", path=tmp_path / "a.db")
        if place == "files":
            return FileSessionManager("s", tmp_path)
        return SnapshotSessionManager("s", storage=FileStorage(tmp_path))

    for turn in range(3):
        agent = quiet(NarrowModel(100), Counting(), session_manager=manager())
        await agent.invoke_async(f"q{turn}")
    kept = Counting()
    agent = quiet(NarrowModel(100), kept, session_manager=manager())
    await agent.ready()
    assert kept.seen == ["q0", "q1", "q2"]
    assert kept.removed_message_count == 2


@pytest.mark.parametrize("kind", [Counting, KeepLast])
async def test_a_snapshot_gives_a_manager_its_state_at_once_and_the_next_snapshot_has_it(
    kind: type[ConversationManager],
) -> None:
    agent = quiet(NarrowModel(100), kind())
    await say(agent, 4)
    snapshot = agent.save_snapshot()
    said = snapshot.data["conversation_manager_state"]
    assert said["seen"]
    other = quiet(NarrowModel(100), kind())
    other.load_snapshot(snapshot)
    assert other.conversation_manager.seen == agent.conversation_manager.seen
    assert other.conversation_manager.removed_message_count == 4
    assert other.save_snapshot().data["conversation_manager_state"] == said
    await other.ready()
    assert other.save_snapshot().data["conversation_manager_state"] == said
    await other.invoke_async("on")
    assert other.conversation_manager.seen != agent.conversation_manager.seen


async def test_a_manager_that_cannot_go_on_from_a_snapshot_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    class Strict(KeepLast):
        def restore_from_session(self, state: dict[str, Any]) -> None:
            raise KeyError(state["gone"])

    donor, agent = quiet(NarrowModel(100), KeepLast()), quiet(NarrowModel(100), Strict())
    await say(donor, 2)
    agent.load_snapshot(donor.save_snapshot())
    assert "could not go on from a snapshot" in caplog.text
    assert str(await agent.invoke_async("on")) == "answer to on"


class Hooked(NullConversationManager):
    """Trims by itself, in a hook."""

    def __init__(self, kind: Any, edit: Any) -> None:
        super().__init__()
        self.kind, self.edit = kind, edit

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        registry.add_callback(self.kind, lambda event: self.edit(event.agent))


def last_three(agent: Any) -> None:
    agent.messages[:] = agent.messages[-3:]


@pytest.mark.parametrize(
    "kind", [BeforeInvocationEvent, MessageAddedEvent, BeforeModelCallEvent, AfterModelCallEvent, AfterInvocationEvent]
)
async def test_a_manager_that_trims_in_a_hook_is_heard(kind: Any, tmp_path: Path) -> None:
    storage = InMemoryStorage()
    model = NarrowModel(100)
    agent = quiet(model, Hooked(kind, last_three), session_manager=JournalSessionManager("s", storage=storage))
    await say(agent, 6)
    assert len(agent.messages) <= 5
    assert max(len(call.messages) for call in model.calls) <= 5
    assert [text[:2] for text in talk_of(agent)][-2:] == ["q5", "an"]
    assert len(await agent.history()) == 12
    again = quiet(model, NullConversationManager(), session_manager=JournalSessionManager("s", storage=storage))
    await again.ready()
    assert again.messages == agent.messages


async def test_what_is_edited_before_a_model_call_is_what_that_call_shows() -> None:
    def note(agent: Any) -> None:
        agent.messages[0]["content"][0]["text"] = "in short"
        agent.messages.insert(0, {"role": "user", "content": [{"text": "noted"}]})

    model = NarrowModel(100)
    agent = quiet(model, Hooked(BeforeModelCallEvent, note))
    await agent.invoke_async("at length")
    assert [text_of(message) for message in model.calls[0].messages] == ["noted", "in short"]
    assert talk_of(agent) == ["noted", "in short", "answer to in short"]
    assert text_of((await agent.history())[0]) == "at length"


async def test_an_edit_in_a_hook_that_makes_no_conversation_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    agent = quiet(NarrowModel(100), Hooked(BeforeModelCallEvent, lambda agent: agent.messages.clear()))
    await say(agent, 2)
    assert len(agent.messages) == 4
    assert "was not shortened" in caplog.text


def assigns_last_three(agent: Any) -> None:
    agent.messages = agent.messages[-3:]


async def test_a_list_that_is_assigned_in_a_hook_is_part_of_the_turn(tmp_path: Path) -> None:
    storage = InMemoryStorage()
    model = NarrowModel(100)
    manager = Hooked(BeforeModelCallEvent, assigns_last_three)
    agent = quiet(model, manager, session_manager=JournalSessionManager("s", storage=storage))
    await say(agent, 6)
    assert max(len(call.messages) for call in model.calls) == 3
    assert len(agent.messages) == 4
    again = quiet(model, NullConversationManager(), session_manager=JournalSessionManager("s", storage=storage))
    await again.ready()
    assert again.messages == agent.messages
    assert len(await again.history()) == 12


async def test_what_a_manager_assigns_is_heard() -> None:
    class Assigns(ConversationManager):
        def apply_management(self, agent: Any, **kwargs: Any) -> None:
            agent.messages = agent.messages[-2:]
            agent.system_prompt = "briefly"

        def reduce_context(self, agent: Any, e: Exception | None = None, **kwargs: Any) -> None:
            self.apply_management(agent)

    model = NarrowModel(100)
    agent = quiet(model, Assigns())
    await say(agent, 3)
    assert len(agent.messages) == 2
    assert [call.system_prompt for call in model.calls] == [None, "briefly", "briefly"]


USE: Message = {"role": "assistant", "content": [{"toolUse": {"toolUseId": "u", "name": "f", "input": {}}}]}
RESULT: Message = {
    "role": "user",
    "content": [{"toolResult": {"toolUseId": "u", "status": "success", "content": [{"text": "done"}]}}],
}


@pytest.mark.parametrize(
    "bad",
    [[{"role": "user", "content": [{"text": 5}]}], "hello", [USE], [RESULT]],
    ids=["a-wrong-type", "a-text", "a-use-alone", "a-result-alone"],
)
async def test_what_is_no_conversation_is_refused_where_it_is_assigned(bad: Any) -> None:
    refused: list[str] = []

    def assign(agent: Any) -> None:
        with pytest.raises((Invalid, UnpairedTools)) as caught:
            agent.messages = bad
        refused.append(str(caught.value))

    agent = quiet(
        NarrowModel(100), Hooked(BeforeModelCallEvent, assign), messages=[USE, RESULT, said("ok", "assistant")]
    )
    await say(agent, 1)
    assert len(refused) == 1
    before = agent.messages
    with pytest.raises((Invalid, UnpairedTools)):
        agent.messages = bad
    with pytest.raises((Invalid, UnpairedTools)):
        del agent.messages[1]
    assert agent.messages == before
    assert len(await agent.history()) == 5


def said(text: str, role: Any = "user") -> Message:
    return {"role": role, "content": [{"text": text}]}


def edit_assigned(agent: Any) -> None:
    agent.messages = agent.messages[-2:]


def edit_appended(agent: Any) -> None:
    agent.messages.append(said("noted"))
    agent.messages += [said("noted, too", "assistant")]


def edit_cleared(agent: Any) -> None:
    agent.messages.clear()


def edit_several(agent: Any) -> None:
    messages = agent.messages
    del messages[0]
    messages.pop()
    messages[0] = said("in front")
    messages[1:1] = []
    messages.insert(len(messages), said("behind", "assistant"))


def edit_restated(agent: Any) -> None:
    agent.messages = [said("another talk"), said("yes", "assistant")]


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("place", "edit"),
    [
        *(("none", edit) for edit in (edit_assigned, edit_appended, edit_cleared, edit_several, edit_restated)),
        *((place, edit) for place in ("sqlite", "files", "snapshots") for edit in (edit_cleared, edit_several)),
    ],
)
async def test_an_edit_between_turns_is_kept_on_every_store(tmp_path: Path, place: str, edit: Any) -> None:
    def manager() -> Any:
        if place == "sqlite":
            return SQLiteSessionManager("s", path=tmp_path / "a.db")
        if place == "files":
            return FileSessionManager("s", tmp_path)
        return SnapshotSessionManager("s", storage=FileStorage(tmp_path)) if place == "snapshots" else None

    model = NarrowModel(100)
    agent = quiet(model, NullConversationManager(), session_manager=manager())
    await agent.ready()
    await say(agent, 2)
    wanted = quiet(NarrowModel(1), NullConversationManager(), messages=agent.messages)
    edit(agent)
    now = list(agent.messages)
    edit(wanted)
    assert [text_of(message) for message in now] == talk_of(wanted)
    await agent.ready()
    assert agent.messages == now
    if place != "none":
        again = quiet(model, NullConversationManager(), session_manager=manager())
        await again.ready()
        assert [text_of(message) for message in again.messages] == [text_of(message) for message in now]
        agent = again
    await agent.invoke_async("next")
    assert [text_of(message) for message in model.calls[-1].messages] == [*map(text_of, now), "next"]
    kept = [text_of(message) for message in await agent.history()]
    assert kept[:4] == ["q0 word ", "answer to q0 word ", "q1 word ", "answer to q1 word "]


def test_an_edit_in_sync_code_is_durable_on_return(tmp_path: Path) -> None:
    agent = quiet(NarrowModel(100), NullConversationManager(), session_manager=FileSessionManager("s", tmp_path))
    for number in range(3):
        agent(f"q{number}")
    agent.messages = agent.messages[2:]
    del agent.messages[:2]
    path = str(tmp_path)
    seen = Agent(NarrowModel(100), callback_handler=None, session_manager=FileSessionManager("s", path))
    assert talk_of(seen) == ["q2", "answer to q2"] == talk_of(agent)
    agent.shutdown()


async def test_an_edit_leaves_tokens_and_the_end_of_a_block_as_they_were() -> None:
    storage = InMemoryStorage()
    model = NarrowModel(100)
    agent = quiet(model, NullConversationManager(), session_manager=JournalSessionManager("s", storage=storage))
    async with agent:
        await agent.invoke_async("q0")
        first = await agent.invoke_async("q1", idempotency_token="t")
        agent.messages = agent.messages[-2:]
        assert (await agent.invoke_async("q1", idempotency_token="t")).message == first.message
        agent.messages.append(said("noted"))
    assert len(model.calls) == 2
    again = quiet(model, NullConversationManager(), session_manager=JournalSessionManager("s", storage=storage))
    await again.ready()
    assert talk_of(again) == ["q1", "answer to q1", "noted"]


async def test_a_prompt_that_failed_may_be_dropped_and_the_talk_goes_on() -> None:
    model = ScriptedModel(["hello", ModelFailed("no"), "fine"])
    agent = quiet(model, NullConversationManager())
    await agent.invoke_async("hi")
    with pytest.raises(ModelFailed):
        await agent.invoke_async("bad")
    agent.messages.pop()
    await agent.invoke_async("better")
    assert talk_of(agent) == ["hi", "hello", "better", "fine"]
    assert [text_of(message) for message in model.calls[-1].messages] == ["hi", "hello", "better"]


async def test_while_a_turn_runs_edits_outside_hooks_are_refused_with_what_to_do() -> None:
    @tool
    def trim(agent: Any) -> str:
        """Trim."""
        try:
            agent.messages.clear()
        except AgentBusy as error:
            return str(error)
        return "done"

    model = ScriptedModel([{"toolUse": {"name": "trim", "input": {}}}, "ok"])
    agent = quiet(model, NullConversationManager(), tools=[trim])
    await agent.invoke_async("go")
    assert "in one of its hooks, or when it is over" in str(agent.messages[2])
    agent.messages = []
    assert agent.messages == []


async def test_a_list_that_was_read_before_the_talk_went_on_is_not_edited() -> None:
    agent = quiet(NarrowModel(100), NullConversationManager())
    await say(agent, 1)
    old = agent.messages
    copied = copy.deepcopy(old)
    assert (type(copied), copied) == (list, old)
    await say(agent, 1)
    with pytest.raises(Invalid, match="the conversation has gone on"):
        old.clear()
    assert len(old) == 2
    assert len(agent.messages) == 4


# ----------------------------------------------------------------------------------------- overflows of much too much


class CrampedModel(ScriptedModel):
    """Refuses what is longer than so many characters."""

    def __init__(self, most: int, window: int | None = None, answer: str = "ok") -> None:
        super().__init__([self._answer], loop=True)
        self.most = most
        self.window = window
        self.answer = answer

    @property
    def context_window_limit(self) -> int | None:
        return self.window

    def _answer(self, messages: Sequence[Message], tool_specs: Any, system_prompt: Any) -> Any:
        if system_prompt is not None:
            return "SUMMARY"
        if sum(len(str(message["content"])) for message in messages) > self.most:
            return ContextWindowOverflowException("too long")
        return self.answer


class DropsTwo(ConversationManager):
    """The smallest steps that there are."""

    def apply_management(self, agent: Any, **kwargs: Any) -> None:
        """Hide nothing."""

    def reduce_context(self, agent: Any, e: Exception | None = None, **kwargs: Any) -> None:
        if len(agent.messages) < 3:
            raise e or ValueError("nothing is left")
        del agent.messages[:2]


class SaysMore(DropsTwo):
    """Makes it ever longer."""

    def reduce_context(self, agent: Any, e: Exception | None = None, **kwargs: Any) -> None:
        agent.messages.insert(0, {"role": "user", "content": [{"text": "more" * len(agent.messages)}]})


def long_talk(count: int) -> list[Message]:
    said: list[Message] = []
    for number in range(count):
        text = f"{number} " + "word " * 40
        said.append({"role": "assistant" if number % 2 else "user", "content": [{"text": text}]})
    return said


@pytest.mark.parametrize(
    "manager",
    [
        lambda: SlidingWindowConversationManager(1_000),
        lambda: SummarizingConversationManager(0.1, 2),
        DropsTwo,
    ],
    ids=["sliding", "summarizing", "own"],
)
@pytest.mark.parametrize("window", [None, 250, 100_000], ids=lambda window: f"window-{window}")
async def test_what_is_forty_times_too_long_is_shortened_until_it_fits(manager: Any, window: int | None) -> None:
    model = CrampedModel(1_000, window)
    agent = quiet(model, manager(), messages=long_talk(200))
    assert str(await agent.invoke_async("go on")) == "ok"
    assert talk_of(agent)[-2:] == ["go on", "ok"]
    assert len([call for call in model.calls if call.system_prompt is None]) <= 16
    assert len(await agent.history()) == 202
    await agent.invoke_async("and on")


@pytest.mark.parametrize("manager", [lambda: SlidingWindowConversationManager(1_000), DropsTwo, SaysMore])
async def test_what_cannot_fit_fails_when_nothing_can_be_shortened_any_more(manager: Any) -> None:
    model = CrampedModel(1_000)
    agent = quiet(model, manager(), messages=long_talk(20))
    with pytest.raises(ContextWindowOverflowException):
        await agent.invoke_async("x" * 2_000)
    assert len(model.calls) <= 20
    assert talk_of(agent)[-1] == "x" * 2_000
    assert len(await agent.history()) == 21
