"""Agents, plugins and stored sessions as packages for the SDK read and change them, documented there or not."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from repertory import FileSessionManager, Plugin, ScriptedModel, ToolContext, tool
from repertory.compat.programs import SdkAgent, SdkPlugin
from repertory.core.messages import text_of
from repertory.errors import Invalid

ADAPTERS_OWN = {"self", "model", "messages", "tools", "system_prompt", "session_manager", "hooks", "plugins"}
"""The parameters that `ag-ui-strands` does not copy from one agent to another."""
ASK = {"toolUse": {"toolUseId": "t1", "name": "pay", "input": {"amount": 5}}}

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def pay(amount: int, tool_context: ToolContext) -> str:
    """Pay an amount, when a person agrees."""
    return f"paid {amount}: {tool_context.interrupt('approve', reason={'amount': amount})}"


def agent(*replies: Any, **options: Any) -> Any:
    return SdkAgent(ScriptedModel([*replies]), callback_handler=None, **options)


def test_another_agent_is_made_of_the_attributes_that_are_named_after_parameters() -> None:
    first = agent(tools=[add], state={"likes": "tea"}, name="Ann", trace_attributes={"a": "b"})
    found: dict[str, Any] = {}
    for name in inspect.signature(SdkAgent.__init__).parameters.keys() - ADAPTERS_OWN:
        for attribute in (name, f"_{name}", f"_default_{name}"):
            if (value := getattr(first, attribute, None)) is not None:
                found[name] = value
    second = SdkAgent(ScriptedModel(["Hello"]), **found)
    assert (second.name, second.state.get("likes"), second.trace_attributes) == ("Ann", "tea", {"a": "b"})


async def test_a_list_that_was_read_before_a_call_puts_the_conversation_back() -> None:
    own = agent("one", "two")
    await own.invoke_async("Hi")
    live = own.messages
    before = list(live)
    await own.invoke_async("Hi again")
    with pytest.raises(Invalid, match="has gone on"):
        live.append(before[0])
    live[:] = before
    assert own.messages == before
    await own.shutdown_async()


def test_a_tool_that_is_deleted_from_the_registry_or_set_in_it_is_the_agents_no_longer_or_again() -> None:
    own = agent(tools=[add, pay])
    registry = own.tool_registry
    taken = registry.registry.pop("add")
    assert own.tool_names == list(registry.registry) == ["pay"]
    registry.registry["add"] = taken
    assert own.tool_names == list(own.tool_registry.registry) == ["pay", "add"]
    assert registry.dynamic_tools == {}
    with pytest.raises(KeyError):
        del registry.registry["divide"]


async def test_the_state_of_interrupts_shows_what_waits_also_before_a_stored_session_is_open(tmp_path: Path) -> None:
    def made(*replies: Any) -> Any:
        return agent(*replies, tools=[pay, add], session_manager=FileSessionManager("s", tmp_path))

    async with made(ASK, "done") as first:
        assert first._interrupt_state.activated is False
        (asked,) = (await first.invoke_async("Pay")).interrupts
        live = first._interrupt_state
        assert live.activated
        assert live.interrupts[asked.id].reason == {"amount": 5}
        assert live.pending_tool_execution.completed_tool_results == []
    again = made("done")
    assert again._interrupt_state == live
    answer = [{"interruptResponse": {"interruptId": asked.id, "response": "yes"}}]
    await again.invoke_async(answer)
    assert again._interrupt_state.activated is False
    assert again._session_manager is again.session_manager
    await again.shutdown_async()


def test_a_plugin_of_a_program_leaves_out_a_tool_by_assigning_the_others() -> None:
    class Bank(SdkPlugin):
        name = "bank"

        def __init__(self) -> None:
            super().__init__()
            self._tools = [each for each in self._tools if each.tool_name != "draw"]

        @tool
        def draw(self) -> str:
            """Draw money."""
            return "drawn"

        @tool
        def balance(self) -> str:
            """Read the balance."""
            return "5"

    assert agent(plugins=[Bank()]).tool_names == ["balance"]
    assert isinstance(Plugin(), SdkPlugin)
    assert isinstance(Bank(), Plugin)


async def test_a_session_with_a_message_that_a_program_replaced_is_read_and_goes_on(tmp_path: Path) -> None:
    manager = FileSessionManager("s", tmp_path)
    async with agent("one", "two", session_manager=manager, state={"k": 1}) as first:
        await first.invoke_async("Hi")
        first.state.set("k", 2)
        await first.invoke_async("Hi again")

    def replace_answer() -> None:
        stored: Any = manager.session_repository.list_messages("s", "default")
        stored[1].message["content"][0]["text"] = "ONE"
        manager.session_repository.update_message("s", "default", stored[1])

    await to_thread.run_sync(replace_answer)
    second = agent("three", session_manager=FileSessionManager("s", tmp_path))
    assert [text_of(each) for each in second.messages] == ["Hi", "ONE", "Hi again", "two"]
    await second.invoke_async("More")
    assert [text_of(each) for each in second.messages][1] == "ONE"
    assert second.state.get("k") == 2
    await second.shutdown_async()
