"""The argument `context_manager` of an agent: what `auto` and False stand for, and what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    AgentSpec,
    ContextOffloader,
    Deny,
    FileStorage,
    InterventionHandler,
    JournalSessionManager,
    NullConversationManager,
    Plugin,
    Runtime,
    ScriptedModel,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import tool_results
from repertory.core.tokens import estimate_tokens
from repertory.core.window.offloading import RETRIEVAL_TOOL
from repertory.errors import Invalid
from tests.app.agent.test_conversation import NarrowModel, say, talk_of

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def managed(choice: Any, model: Any = None, **options: Any) -> Agent:
    return Agent(model or ScriptedModel(["yes"], loop=True), context_manager=choice, callback_handler=None, **options)


@tool(effects=False)
def lines(count: int) -> str:
    """Give so many lines."""
    return "\n".join(f"row {number}" for number in range(count))


def reading(count: int) -> Any:
    return {"toolUse": {"name": "lines", "input": {"count": count}, "toolUseId": f"tu_{count}"}}


async def test_auto_shows_previews_of_large_results_and_summarises_before_the_window_is_full() -> None:
    model = ScriptedModel([reading(100), reading(2_000), "done"])
    agent = managed("auto", model, tools=[lines])
    await agent.invoke_async("Read.")
    small, large = (next(iter(tool_results(agent.messages[place])))["content"] for place in (2, 4))
    assert small == [{"text": lines(100)}]
    assert "[Offloaded: 1 blocks" in large[0]["text"]  # type: ignore[typeddict-item]
    shown = estimate_tokens([agent.messages[4]])
    assert 700 < shown < 1_000
    assert RETRIEVAL_TOOL in agent.tool_names
    assert isinstance(agent.conversation_manager, SummarizingConversationManager)


async def test_auto_summarises_from_its_share_of_the_window_on_and_keeps_the_last_messages() -> None:
    model = NarrowModel(1_000, window=2_000)
    agent = managed("auto", model)
    await say(agent, 6, words=150)
    assert model.summaries >= 1
    assert "SUMMARY" in talk_of(agent)[0]
    assert talk_of(agent)[-4].startswith("q4")
    roomy = NarrowModel(1_000, window=200_000)
    await say(managed("auto", roomy), 6, words=150)
    assert roomy.summaries == 0


async def test_auto_answers_an_overflow_by_a_summary() -> None:
    model = NarrowModel(9)
    agent = managed("auto", model)
    await say(agent, 8)
    assert model.summaries >= 1
    assert talk_of(agent)[-1].startswith("answer to q7")


@pytest.mark.real_time
async def test_a_stored_session_goes_on_with_what_it_has_offloaded(tmp_path: Path) -> None:
    def place() -> JournalSessionManager:
        return JournalSessionManager("s", storage=FileStorage(tmp_path))

    first = managed("auto", ScriptedModel([reading(2_000), "done"]), tools=[lines], session_manager=place())
    await first.invoke_async("Read.")
    again = managed("auto", ScriptedModel(["x"]), tools=[lines], session_manager=place())
    await again.ready()
    assert again.messages == first.messages


def test_other_plugins_stay_and_an_offloader_of_your_own_is_used() -> None:
    class Mine(Plugin):
        name = "mine"

    own = ContextOffloader(max_result_tokens=10, preview_tokens=5)
    assert list(managed("auto", plugins=[Mine(), own]).plugins)[1:] == [own]
    names = [each.name for each in managed("auto", plugins=[Mine()]).plugins]
    assert names == ["mine", "context_offloader"]


def test_a_conversation_manager_beside_auto_is_ignored_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="ignoring co-provided conversation_manager"):
        agent = managed("auto", conversation_manager=SlidingWindowConversationManager(5))
    assert isinstance(agent.conversation_manager, SummarizingConversationManager)


def asking(name: str, **given: object) -> Any:
    return {"toolUse": {"name": name, "input": given, "toolUseId": f"tu_{name}_{len(given)}"}}


async def test_an_agentic_model_sees_how_full_its_window_is_and_nobody_else_does() -> None:
    model = NarrowModel(1_000, window=100_000)
    agent = managed("agentic", model)
    await say(agent, 2)
    status = model.calls[-1].messages[-1]["content"][-1]["text"]
    assert "<context-status>" in status
    assert "/ 100,000 tokens" in status
    assert "context-status" not in str([each for each in agent.messages if each["role"] == "user"])


@pytest.mark.real_time
async def test_an_agentic_model_drops_and_pins_messages_and_its_session_keeps_that(tmp_path: Path) -> None:
    def opened(*answers: Any) -> Agent:
        session = JournalSessionManager("s", FileStorage(tmp_path))
        return managed("agentic", ScriptedModel(list(answers)), session_manager=session)

    talk = ["one", "two", asking("pin_context", last=1), asking("truncate_context", keep_recent=3), "done"]
    async with opened(*talk) as agent:
        for prompt in ("first", "second", "keep me and drop the rest"):
            await agent.invoke_async(prompt)
        shown = agent.messages
        said = [message["content"][0].get("text") for message in shown]
        assert said[0] == "keep me and drop the rest"
        assert said[-1] == "done"
        assert "first" not in said
        assert len(await agent.history()) == 10
    async with opened("again") as restored:
        assert restored.messages == shown


async def test_an_agentic_model_has_old_messages_summarised() -> None:
    model = ScriptedModel(
        ["one", "two", asking("summarize_context", keep_recent=2, summary_ratio=0.8), "SUMMARY", "ok"]
    )
    agent = managed("agentic", model)
    for prompt in ("first", "second", "shorten"):
        await agent.invoke_async(prompt)
    said = [message["content"][0].get("text") for message in agent.messages]
    assert said[0] == "SUMMARY"
    assert "first" not in said
    assert said[-1] == "ok"


def test_false_manages_nothing_unless_a_manager_is_given() -> None:
    assert isinstance(managed(False).conversation_manager, NullConversationManager)
    own = SlidingWindowConversationManager(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent = managed(False, conversation_manager=own)
    assert agent.conversation_manager is own
    assert list(agent.plugins) == []


def test_without_the_argument_nothing_changes() -> None:
    assert isinstance(managed(None).conversation_manager, SlidingWindowConversationManager)
    assert list(managed(None).plugins) == []


def test_a_copy_is_managed_alike() -> None:
    agent = managed("auto")
    copy = agent.fresh_copy()
    assert isinstance(copy.conversation_manager, SummarizingConversationManager)
    assert copy.conversation_manager is not agent.conversation_manager
    assert RETRIEVAL_TOOL in copy.tool_names


@pytest.mark.parametrize(
    ("choice", "instead"),
    [
        ("manual", "ContextOffloader"),
        (True, "ContextOffloader"),
        (0, "ContextOffloader"),
        ({"strategies": []}, "SummarizingConversationManager"),
        (SlidingWindowConversationManager(), "SummarizingConversationManager"),
    ],
)
def test_anything_else_is_refused_and_says_what_to_use(choice: object, instead: str) -> None:
    with pytest.raises(Invalid, match=instead):
        managed(choice)


async def test_each_session_of_a_runtime_has_a_manager_of_its_own_and_policies_guard_all() -> None:
    class NoReading(InterventionHandler):
        name = "no-reading"

        def before_tool_call(self, event: Any, **kwargs: Any) -> Deny:
            return Deny(reason="not today")

    model = ScriptedModel([reading(2_000), "first", reading(2_000), "second"])
    async with Runtime() as runtime:
        spec = AgentSpec(model=model, tools=[lines], context_manager="auto", interventions=[NoReading()])
        hosted = runtime.agent(spec)
        sessions = [hosted.session("a"), hosted.session("b")]
        for session in sessions:
            await session.invoke("Read.")
            (denied,) = tool_results((await session.messages())[2])
            assert (denied["status"], "not today" in str(denied["content"])) == ("error", True)
            assert RETRIEVAL_TOOL in session.agent.tool_names
        managers = [session.agent.conversation_manager for session in sessions]
        assert all(isinstance(each, SummarizingConversationManager) for each in managers)
        assert managers[0] is not managers[1]
        with pytest.raises(Invalid, match="context_manager"):
            runtime.agent(AgentSpec(model=model, context_manager="best"))  # type: ignore[arg-type]
