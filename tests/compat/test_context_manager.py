"""The SDK's `ContextManager` and its strategies, made of what agents have here."""

from __future__ import annotations

from typing import Any, cast

import pytest

from repertory import InMemoryStorage, ScriptedModel, tool
from repertory.app.agent.conversation_managers import (
    NullConversationManager,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from repertory.compat.context_manager import STRATEGY_PRESET_NAMES, ContextManager, ContextState, Offload
from repertory.compat.programs import SdkAgent
from repertory.errors import Invalid

pytestmark = pytest.mark.anyio

LONG = "\n".join(f"line {number}" for number in range(4_000))


@tool(effects=False)
def report() -> str:
    """A long report."""
    return LONG


@tool(effects=False)
def broken() -> str:
    """Fails at length."""
    raise RuntimeError("x" * 8_000)


def asks(name: str, **given: Any) -> dict[str, Any]:
    return {"toolUse": {"name": name, "input": given}}


def agent(*answers: Any, **options: Any) -> SdkAgent:
    return SdkAgent(ScriptedModel([*answers]), tools=[report, broken], callback_handler=None, **options)


def result_texts(own: SdkAgent) -> list[str]:
    found = [block["toolResult"] for message in own.messages for block in message["content"] if "toolResult" in block]
    return [str(part.get("text")) for result in found for part in result["content"]]


@pytest.mark.parametrize(
    "choice",
    ["auto", "agentic", {"strategies": ["large_tool_offloading"]}, ContextManager()],
    ids=["auto", "agentic", "config", "manager"],
)
async def test_large_results_are_shown_in_part_and_read_by_the_sdks_tool(choice: Any) -> None:
    own = agent(asks("report"), "done", context_manager=choice)
    assert isinstance(own.context_manager, ContextManager)
    assert "retrieve_context" in own.tool_names
    await own.invoke_async("Report.")
    [shown] = result_texts(own)
    assert len(shown) < len(LONG) / 2
    reference = next(line.split()[0] for line in shown.splitlines() if line.startswith("  "))
    own.model = ScriptedModel([asks("retrieve_context", reference=reference, pattern="line 3999"), "read"])
    await own.invoke_async("Read the end.")
    assert "line 3999" in result_texts(own)[-1]


async def test_presets_choose_the_manager_of_whole_messages() -> None:
    def manager(*strategies: Any) -> Any:
        return agent(context_manager={"strategies": [*strategies]}).conversation_manager

    assert isinstance(agent(context_manager="auto").conversation_manager, SummarizingConversationManager)
    assert manager("proactive_summarization").compression_threshold == 0.7
    assert isinstance(manager("overflow_protection"), SlidingWindowConversationManager)
    assert isinstance(manager("stale_tool_cleanup"), NullConversationManager)
    assert len(STRATEGY_PRESET_NAMES) == 4


async def test_old_results_are_dropped_and_the_newest_stay() -> None:
    strategies = [Offload.drop("tool_results").when(preserve_recent=1)]
    own = agent(asks("report"), asks("report"), asks("report"), "done", context_manager={"strategies": strategies})
    await own.invoke_async("Report thrice.")
    texts = result_texts(own)
    assert [text.startswith("[Dropped: ~") for text in texts] == [True, True, False]
    assert texts[-1] == LONG
    history = await own.history()
    whole = [
        block["toolResult"]["content"] for message in history for block in message["content"] if "toolResult" in block
    ]
    assert whole == [[{"text": LONG}]] * 3


async def test_a_strategy_is_about_its_target_alone() -> None:
    errors = {"strategies": [Offload.truncate("tool_result_errors", {"preview_tokens": 10}).when(threshold=50)]}
    own = agent(asks("broken"), asks("report"), "done", context_manager=errors)
    await own.invoke_async("Try both.")
    failed, whole = result_texts(own)
    assert failed.startswith("[Truncated: ~")
    assert whole == LONG
    named = {"strategies": [Offload.truncate(["broken"]).when(threshold=50, utilization=0.99)]}
    other = agent(asks("broken"), "done", context_manager=named)
    await other.invoke_async("The window is empty.")
    assert not result_texts(other)[0].startswith("[Truncated")


async def test_a_programs_own_strategy_changes_the_messages_in_place() -> None:
    class Shout:
        name = "shout"

        async def apply(self, context: ContextState) -> bool:
            context.messages[0] = {"role": "user", "content": [{"text": "HELLO"}]}
            return True

    own = agent("hi", "hi again", context_manager=ContextManager(strategies=[Shout()]))
    await own.invoke_async("hello")
    await own.invoke_async("again")
    assert own.messages[0]["content"] == [{"text": "HELLO"}]


async def test_a_failing_strategy_is_logged_and_the_turn_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        name = "broken"

        async def apply(self, context: ContextState) -> bool:
            raise RuntimeError("no")

    own = agent("hi", context_manager=ContextManager(strategies=[Broken()]))
    assert (await own.invoke_async("hello")).stop_reason == "end_turn"
    assert "RuntimeError" in caplog.text


async def test_a_stash_is_durable_where_its_storage_is(tmp_path: Any) -> None:
    from repertory import FileStorage

    def durable(**options: Any) -> bool:
        manager = agent(**options).context_manager
        assert manager is not None
        return manager.stash_is_durable

    assert not durable(context_manager="auto")
    assert not durable(context_manager="auto", storage=InMemoryStorage())
    assert durable(context_manager="auto", storage=FileStorage(tmp_path))
    assert durable(context_manager={"stash": {"storage": FileStorage(tmp_path)}})
    assert "retrieve_context" not in agent(context_manager={"stash": False}).tool_names


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: ContextManager.from_strategy("none"), "Unknown context_manager preset"),
        (lambda: ContextManager.from_strategy(True), "Unsupported context_manager value: True"),
        (lambda: ContextManager(strategies=["none"]), "Unknown strategy preset"),
        (lambda: ContextManager(strategies=cast("Any", [object()])), "a method apply"),
        (lambda: ContextManager(strategies=[Offload.drop("*"), Offload.summarize("*")]), "one strategy at most"),
        (lambda: Offload.summarize("tool_results"), "a summary is of whole messages"),
        (lambda: Offload.truncate(cast("Any", "everything")), "a target is one of"),
        (lambda: Offload.drop("*").when(threshold=-1), "not negative"),
    ],
)
def test_what_is_no_strategy_is_refused(made: Any, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        made()


async def test_another_manager_is_left_out_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="ignoring co-provided conversation_manager"):
        own = agent(context_manager="auto", conversation_manager=SlidingWindowConversationManager())
    assert isinstance(own.conversation_manager, SummarizingConversationManager)
