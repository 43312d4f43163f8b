"""The tools of memory, and its use by programs: what lands, what is refused, and what is said of failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    AggregateMemoryError,
    MemoryAddOptions,
    MemoryAddToolConfig,
    MemoryManager,
    MemorySearchOptions,
    MemoryToolConfig,
    ScriptedModel,
    SQLiteSessionManager,
    tool,
)
from repertory.core.messages import tool_results
from repertory.errors import Invalid
from tests.app.memory.toy_memories import Facts, Transcripts

pytestmark = pytest.mark.anyio


def calling(*uses: dict[str, Any]) -> ScriptedModel:
    return ScriptedModel([*({"toolUse": use} for use in uses), "done"])


async def answer(model: ScriptedModel, manager: MemoryManager, **more: Any) -> tuple[str, Any]:
    """Status and content of the last tool result of a turn."""
    agent = Agent(model, callback_handler=None, memory_manager=manager, **more)
    await agent.invoke_async("go")
    result = [result for message in agent.messages for result in tool_results(message)][-1]
    block: Any = result["content"][0]
    return result.get("status", ""), block.get("json", block.get("text"))


def use(name: str, **given: Any) -> dict[str, Any]:
    return {"name": name, "input": given}


async def test_the_search_tool_gives_entries_with_their_stores() -> None:
    first, second = Facts("first"), Facts("second")
    first.entries, second.entries = ["tea is hot"], ["tea is green"]
    manager = MemoryManager(stores=[first, second], injection=False)
    status, found = await answer(calling(use("search_memory", query="tea")), manager)
    assert status == "success"
    assert json.loads(found) == [
        {"content": "tea is hot", "store_name": "first"},
        {"content": "tea is green", "store_name": "second"},
    ]
    _, found = await answer(calling(use("search_memory", query="tea", stores=["second", "none"])), manager)
    assert [entry["store_name"] for entry in json.loads(found)] == ["second"]
    status, found = await answer(calling(use("search_memory", query="tea", stores=["none"])), manager)
    assert status == "error"
    assert "first" in found


async def test_an_outage_does_not_look_as_if_nothing_were_known() -> None:
    store = Facts()
    store.down = OSError("down")
    manager = MemoryManager(stores=[store], injection=False)
    status, text = await answer(calling(use("search_memory", query="tea")), manager)
    assert status == "error"
    assert "no memory store could be searched" in text
    assert await manager.search("tea") == []  # A program is given what the others found: nothing.


async def test_tools_are_renamed_and_tell_of_the_stores() -> None:
    store = Facts()
    manager = MemoryManager(
        stores=[store, Transcripts()],
        search_tool_config=MemoryToolConfig(name="recall", description="Look up."),
        add_tool_config={"name": "remember"},
    )
    agent = Agent(ScriptedModel(["ok"]), memory_manager=manager, callback_handler=None)
    assert agent.tool_names == ["recall", "remember"]
    await agent.invoke_async("hi")
    specs = {spec["name"]: spec for spec in agent.model.calls[0].tool_specs}  # type: ignore[attr-defined]
    assert specs["recall"]["description"] == "Look up.\n\nStores:\n- facts: User preferences.\n- transcripts"
    assert "- facts: User preferences." in specs["remember"]["description"]
    assert "transcripts" not in specs["remember"]["description"]
    assert "tool_context" not in json.dumps(specs["remember"]["inputSchema"])


def test_tools_can_be_left_out_and_stores_bring_their_own() -> None:
    @tool
    def count_memories() -> int:
        "Count."
        return 0

    class Counting(Facts):
        def get_tools(self) -> list[Any]:
            return [count_memories]

    manager = MemoryManager(stores=[Counting()], search_tool_config=False)
    assert [each.name for each in manager.tools] == ["count_memories"]


async def test_the_add_tool_waits_for_the_stores_and_says_what_failed() -> None:
    store = Facts()
    manager = MemoryManager(stores=[store], add_tool_config=True, injection=False)
    status, said = await answer(calling(use("add_memory", entries=["likes tea", "lives in Oslo"])), manager)
    assert (status, said) == ("success", {"stored": 2})
    assert store.entries == ["likes tea", "lives in Oslo"]
    assert len(set(store.keys)) == 2
    store.refuses = "secret"
    status, said = await answer(calling(use("add_memory", entries=["a secret", "no"])), manager)
    assert status == "error"
    assert "failed to add 1 of 2 entries" in said
    assert "no" in store.entries


async def test_the_add_tool_may_add_to_some_stores_only() -> None:
    first, second = Facts("first"), Facts("second")
    config = MemoryAddToolConfig(stores=[first])
    manager = MemoryManager(stores=[first, second], add_tool_config=config, injection=False)
    status, _ = await answer(calling(use("add_memory", entries=["x"], stores=["second"])), manager)
    assert status == "error"
    await answer(calling(use("add_memory", entries=["x"])), manager)
    assert (first.entries, second.entries) == (["x"], [])


async def test_a_write_that_nobody_waits_for_delays_nothing_and_lands() -> None:
    store = Facts()
    store.add_s = 2.0
    config = MemoryAddToolConfig(wait_for_writes=False)
    manager = MemoryManager(stores=[store], add_tool_config=config, injection=False)
    model = calling(use("add_memory", entries=["likes tea"]))
    async with Agent(model, callback_handler=None, memory_manager=manager) as agent:
        began = anyio.current_time()
        await agent.invoke_async("go")
        assert anyio.current_time() == began
        assert next(iter(tool_results(agent.messages[2])))["content"] == [{"json": {"accepted": 1}}]
        assert store.entries == []
        assert (await manager.flush()).stores["facts"] == (1, 0, None)
    assert store.entries == ["likes tea"]


@pytest.mark.real_time
async def test_an_accepted_write_is_tried_again_by_the_next_process(tmp_path: Path) -> None:
    store = Facts()
    store.down = OSError("down")
    config = MemoryAddToolConfig(wait_for_writes=False)
    manager = MemoryManager(stores=[store], add_tool_config=config, injection=False)
    placed = SQLiteSessionManager("s", tmp_path / "a.db")
    model = calling(use("add_memory", entries=["likes tea"]))
    _, said = await answer(model, manager, session_manager=placed)
    assert said == {"accepted": 1}
    store.down = None
    fresh = MemoryManager(stores=[store], add_tool_config=config, injection=False)
    placed = SQLiteSessionManager("s", tmp_path / "a.db")
    await Agent(
        ScriptedModel(["ok"]), callback_handler=None, memory_manager=fresh, session_manager=placed
    ).invoke_async("hi")
    assert store.entries == ["likes tea"]


async def test_no_more_is_accepted_than_there_is_room_for() -> None:
    store = Facts()
    store.down = OSError("down")
    config = MemoryAddToolConfig(wait_for_writes=False)
    manager = MemoryManager(stores=[store], add_tool_config=config, injection=False)
    many = [f"fact {number}" for number in range(200)]
    model = calling(use("add_memory", entries=many), use("add_memory", entries=many))
    status, text = await answer(model, manager)
    assert status == "error"
    assert "too many memories" in text


async def test_programs_call_the_tools_as_functions() -> None:
    store, down = Facts("facts"), Facts("down")
    manager = MemoryManager(stores=[store], add_tool_config=True)
    search, add = manager.tools
    assert await add(entries=["tea is hot", "tea is green"]) == {"stored": 2}
    assert [found["content"] for found in await search(query="tea", stores=["facts"])] == ["tea is hot", "tea is green"]
    with pytest.raises(Invalid, match="at least one entry"):
        await add(entries=[])
    down.down = RuntimeError("away")
    hasty = MemoryManager(stores=[store, down], add_tool_config={"wait_for_writes": False})
    assert await hasty.tools[1](entries=["milk is white"]) == {"accepted": 1}
    assert store.entries[-1] == "milk is white"


async def test_a_manager_among_the_plugins_is_the_agents_memory() -> None:
    store = Facts("facts")
    store.entries = ["tea is hot"]
    model = ScriptedModel(["yes"])
    agent = Agent(model, callback_handler=None, plugins=[MemoryManager(stores=[store])])
    await agent.invoke_async("tea")
    assert "tea is hot" in str(model.calls[0].messages)
    assert agent.tool_names == ["search_memory"]


async def test_a_store_that_is_named_twice_is_written_once() -> None:
    store = Facts("facts")
    await MemoryManager(stores=[store]).add("tea is hot", MemoryAddOptions(stores=["facts", "facts"]))
    assert store.entries == ["tea is hot"]


async def test_programs_search_and_add_in_some_stores_or_all() -> None:
    first, second, frozen = Facts("first"), Facts("second"), Facts("frozen", writable=False)
    manager = MemoryManager(stores=[first, second, frozen])
    await manager.add("likes tea", MemoryAddOptions(stores=["first"], metadata={"category": "food"}))
    assert (first.entries, first.metadata, second.entries) == (["likes tea"], [{"category": "food"}], [])
    await manager.add("drinks tea")
    assert second.entries == ["drinks tea"]
    assert frozen.entries == []
    found = await manager.search("tea", MemorySearchOptions(stores=["first"], max_search_results=1))
    assert [(entry.content, entry.store_name) for entry in found] == [("likes tea", "first")]
    assert len(await manager.search("tea", {"max_search_results": 5})) == 2


async def test_a_failed_write_is_never_silent_and_the_others_land() -> None:
    good, bad = Facts("good"), Facts("bad")
    bad.down = OSError("down")
    with pytest.raises(AggregateMemoryError, match="store writes failed: bad") as raised:
        await MemoryManager(stores=[good, bad]).add("x")
    assert len(raised.value.errors) == 1
    assert good.entries == ["x"]


async def test_wrong_stores_are_refused_before_anything_is_written() -> None:
    good, frozen = Facts("good"), Facts("frozen", writable=False)
    manager = MemoryManager(stores=[good, frozen, Transcripts()])
    for names, why in ((["good", "zz"], "'zz' not found"), (["good", "frozen"], "read-only"), ([], "no writable")):
        with pytest.raises(Invalid, match=why):
            await manager.add("x", {"stores": names})
    with pytest.raises(Invalid, match="only add_messages"):
        await manager.add("x", {"stores": ["transcripts"]})
    assert good.entries == []
    with pytest.raises(Invalid, match="store 'zz' not found"):
        await manager.search("x", {"stores": ["zz"]})


class Lacking:
    name, description, max_search_results, writable, extraction = "x", None, None, True, None

    async def search(self, query: str, options: object = None) -> list[Any]:
        del query, options
        return []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"stores": []}, "at least one store is required"),
        ({"stores": [Facts("a"), Facts("a")]}, "duplicate store name 'a'"),
        ({"stores": [Lacking()]}, "store 'x' is writable but has no add or add_messages method"),
        ({"stores": [Facts(writable=False, extraction=True)]}, "has extraction config but is not writable"),
        ({"stores": [Facts(extraction={"trigger": []})]}, "but no triggers"),
        ({"stores": [Facts(writable=False)], "add_tool_config": True}, "no writable stores implement add"),
        ({"stores": [Facts()], "add_tool_config": {"stores": ["zz"]}}, "add_tool_config store 'zz' not found"),
        ({"stores": [Facts("a", writable=False)], "add_tool_config": {"stores": ["a"]}}, "'a' is not writable"),
        ({"stores": [Transcripts()], "add_tool_config": {"stores": ["transcripts"]}}, "has no add method"),
        ({"stores": [object()]}, "has a method search"),
        ({"stores": [Facts("a/b")]}, "store name"),
    ],
    ids=lambda value: value if isinstance(value, str) else "given",
)
def test_stores_that_make_no_sense_are_refused_when_the_manager_is_made(arguments: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        MemoryManager(**arguments)


async def test_an_agent_takes_a_mapping_for_its_manager_and_refuses_anything_else() -> None:
    store = Facts()
    agent = Agent(ScriptedModel(["ok"]), memory_manager={"stores": [store]}, callback_handler=None)
    assert agent.memory_manager is not None
    assert agent.memory_manager.stores == [store]
    with pytest.raises(Invalid, match="memory_manager"):
        Agent(ScriptedModel(["ok"]), memory_manager=3)  # type: ignore[arg-type]


async def test_a_store_is_initialised_before_its_first_use_and_not_when_the_agent_is_built() -> None:
    class Slow(Facts):
        initialized = 0

        async def initialize(self) -> None:
            self.initialized += 1
            if self.initialized == 1:
                raise OSError("no network")

    store = Slow()
    store.entries = ["tea is hot"]
    manager = MemoryManager(stores=[store])
    Agent(ScriptedModel(["ok"]), memory_manager=manager, callback_handler=None)
    assert store.initialized == 0
    assert await manager.search("tea") == []
    assert [entry.content for entry in await manager.search("tea")] == ["tea is hot"]
    await manager.search("tea")
    assert store.initialized == 2
