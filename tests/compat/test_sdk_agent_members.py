"""Members of agents, stores of memory and registries that programs of the SDK use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    BedrockKnowledgeBaseStore,
    BeforeInvocationEvent,
    FileStorage,
    MemoryManager,
    Plugin,
    ScriptedModel,
    ToolContext,
    tool,
)
from repertory.backends.memory_ports import CompleteStore
from repertory.compat.memory_stores import FileMemoryStore, TestMemoryStore
from repertory.compat.programs import SdkAgent
from repertory.compat.records import SessionAgent
from repertory.compat.tools_by_hand import ToolsByHand
from repertory.core.memory.options import MemoryEntry
from repertory.errors import Invalid


def agent(**options: Any) -> Agent:
    return Agent(model=ScriptedModel(["Hello"], loop=True), callback_handler=None, **options)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_the_caller_of_tools_has_a_type_and_another_name() -> None:
    with agent(tools=[add]) as own:
        assert isinstance(own.tool, Agent.ToolCaller)
        assert own.tool_caller.add(a=1, b=2)["content"] == [{"text": "3"}]


def test_an_agent_that_was_cleaned_up_can_be_called_again() -> None:
    own = agent()
    own("Hi")
    own.cleanup()
    own("Hi")
    assert len(own.messages) == 4
    own.cleanup()


@pytest.mark.parametrize(("given", "said"), [(None, None), (False, None), ("auto", "auto"), ("agentic", "agentic")])
def test_an_agent_says_how_its_context_is_managed(given: Any, said: object) -> None:
    assert agent(context_manager=given).context_manager == said


def test_an_agent_has_no_checkpoints_and_says_what_to_use_instead() -> None:
    with pytest.raises(Invalid, match="session_manager"):
        agent(checkpointing=True)
    assert agent(checkpointing=False)("Hi").stop_reason == "end_turn"


class Anything(Plugin):
    """Answers to every name, as a stand-in of a test does."""

    name = "anything"

    def __getattr__(self, name: str) -> Any:
        return self


def test_a_plugin_that_answers_to_every_name_is_no_memory_manager() -> None:
    assert agent(plugins=[Anything()]).memory_manager is None


def test_the_type_of_a_context_may_name_that_of_the_agent() -> None:
    def whose(tool_context: ToolContext[Agent]) -> str:  # type: ignore[type-arg]
        return str(tool_context.agent.agent_id)

    given = tool(whose)
    assert given.spec["inputSchema"]["json"]["properties"] == {}  # type: ignore[index]


class SearchOnly(CompleteStore):
    name = "notes"
    description = None
    max_search_results = None
    writable = False
    extraction = None

    async def search(self, query: str, options: Any = None) -> list[MemoryEntry]:
        return [MemoryEntry(content=query)]


class Prepared(SearchOnly):
    """Has a tool of its own, and is prepared before the first search."""

    prepared = 0

    async def initialize(self) -> None:
        await super().initialize()
        self.prepared += 1

    def get_tools(self) -> list[Any]:
        return [*super().get_tools(), add]


@pytest.mark.anyio
async def test_what_a_store_has_not_overridden_is_inert_and_nobody_calls_it() -> None:
    store = SearchOnly()
    await store.initialize()
    assert list(store.get_tools()) == []
    for write in (store.add("fact"), store.add_messages([])):
        with pytest.raises(NotImplementedError, match="SearchOnly does not implement"):
            await write
    manager = MemoryManager(stores=[store])
    assert [entry.content for entry in await manager.search("tea")] == ["tea"]
    writable = SearchOnly()
    writable.writable = True
    with pytest.raises(Invalid, match="has no add or add_messages method"):
        MemoryManager(stores=[writable])


@pytest.mark.anyio
async def test_what_a_store_has_overridden_is_used() -> None:
    store = Prepared()
    manager = MemoryManager(stores=[store], search_tool_config=False)
    assert [each.name for each in manager.tools] == ["add"]
    await manager.search("tea")
    assert store.prepared == 1


@pytest.mark.anyio
async def test_stores_in_files_have_every_method_of_a_store(tmp_path: Path) -> None:
    stores = [
        FileMemoryStore(name="topics", storage=FileStorage(tmp_path)),
        TestMemoryStore(name="facts", path=str(tmp_path / "facts.json")),
    ]
    for store in stores:
        await store.initialize()
        assert list(store.get_tools()) == []
        with pytest.raises(NotImplementedError):
            await store.add_messages([])
        await store.add("Anna likes tea")
        assert [entry.content for entry in await store.search("tea")] == ["Anna likes tea"]


def test_a_registry_takes_a_tool_that_was_made_while_the_program_ran() -> None:
    started = ToolsByHand()
    started.register_dynamic_tool(add)
    assert list(started.dynamic_tools) == ["add"]
    assert list(started.get_all_tools_config()) == ["add"]
    own = agent()
    own.tool_registry.register_dynamic_tool(add)
    assert own.tool_names == ["add"]
    for again in (started.register_dynamic_tool, own.tool_registry.register_dynamic_tool):
        with pytest.raises(ValueError, match="already exists"):
            again(add)


def test_a_store_in_a_knowledge_base_says_what_it_was_told() -> None:
    access = [{"access": "ALLOW", "name": "anna", "type": "USER"}]
    store = BedrockKnowledgeBaseStore(
        name="kb",
        config={"knowledge_base_id": "KB", "scope_metadata_key": "user"},
        filter={"equals": {"key": "user", "value": "anna"}},
        access_control_list=access,
        min_score=0.5,
    )
    assert (store.scope_metadata_key, store.min_score, store.max_score) == ("user", 0.5, None)
    assert store.filter == {"equals": {"key": "user", "value": "anna"}}
    assert store.access_control_list == access
    assert list(store.get_tools()) == []


def test_an_agent_waits_again_for_the_person_for_whom_it_waited() -> None:
    answers: list[object] = []

    @tool
    def send(tool_context: ToolContext) -> str:
        """Send it."""
        answers.append(tool_context.interrupt("sure"))
        return "sent"

    asks = ScriptedModel([{"toolUse": {"name": "send", "input": {}}}])
    first = Agent(model=asks, tools=[send], callback_handler=None)
    (question,) = first("Send it").interrupts
    internal = {"interrupt_state": first.take_snapshot(include=["interrupt_state"]).data["interrupt_state"]}
    record = SessionAgent("default", {}, {}, internal)
    second = agent(tools=[send], messages=first.messages)
    record.initialize_internal_state(second)
    assert [each.id for each in second.interrupts] == [question.id]
    second([{"interruptResponse": {"interruptId": question.id, "response": "yes"}}])
    assert answers == ["yes"]
    SessionAgent("default", {}, {}).initialize_internal_state(second)
    assert second.interrupts == []


class Marker:
    """A plugin by its members alone."""

    def __init__(self) -> None:
        self.name, self.tools, self.prepared, self.begun = "marker", [add], list[Any](), 0
        self.hooks = [self.begin]

    def begin(self, event: BeforeInvocationEvent) -> None:
        self.begun += 1

    def init_agent(self, agent: Any) -> None:
        self.prepared.append(agent)


def test_a_plugin_of_no_class_is_one_by_its_members() -> None:
    marker = Marker()
    own = SdkAgent(ScriptedModel("Hello"), plugins=[marker], callback_handler=None)
    assert (marker.prepared, own.tool_names) == ([own], ["add"])
    own("Hi")
    assert marker.begun == 1
    for wrong in (object(), Marker, Marker().begin):
        with pytest.raises(Invalid, match="a plugin is an object"):
            SdkAgent(ScriptedModel("Hello"), plugins=[wrong])
