"""Tools that a model finds by a search: the right ones, in a fixed order, and the same ones after a kill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from repertory import (
    Agent,
    AgentSpec,
    AnthropicModel,
    OpenAIResponsesModel,
    Runtime,
    ScriptedModel,
    Sessions,
    ToolSearch,
    tool,
)
from repertory.backends.models.anthropic import messages_arguments
from repertory.backends.models.provider import ModelCall
from repertory.backends.models.responses import response_arguments
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import tool_results
from repertory.core.recall.tool_search import FoundTools, ToolIndex
from repertory.core.tokens import estimate_tokens
from repertory.errors import Invalid
from repertory.plugins.tool_search import STATE_KEY
from tests.actors.toy_tool_source import ToySource
from tests.app.orchestration.recorder import use
from tests.plugins.tool_catalog import Question, read_catalog
from tests.simulation.killed_worlds import World, killed

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def catalog_tool(spec: Any) -> Any:
    """A deferred tool that says which one it is."""

    @tool(
        name=spec["name"],
        description=spec["description"],
        inputSchema=spec["inputSchema"],
        deferred=True,
        idempotent=True,
    )
    def made() -> str:
        return f"{spec['name']} ran"

    return made


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def catalog_tools(count: int = 300) -> list[Any]:
    return [catalog_tool(spec) for spec in read_catalog().specs[:count]]


def agent_with(replies: Sequence[Any], plugin: ToolSearch | None = None, tools: Sequence[Any] | None = None) -> Agent:
    given = [add, *catalog_tools()] if tools is None else tools
    return Agent(ScriptedModel(list(replies)), tools=given, plugins=[plugin or ToolSearch()], callback_handler=None)


def visible(agent: Agent) -> list[list[str]]:
    """The names of the tools in each request."""
    assert isinstance(agent.model, ScriptedModel)
    return [[spec["name"] for spec in call.tool_specs or ()] for call in agent.model.calls]


def answers(agent: Agent) -> list[str]:
    found = [result for message in agent.messages for result in tool_results(message)]
    return [str(result["content"][0].get("text")) for result in found]


# Finding.


def recall(asked: Sequence[Question]) -> float:
    """The share of the questions whose tool is among the first five."""
    index = ToolIndex(read_catalog().specs)
    return sum(question.tool in index.search(question.text, 5) for question in asked) / len(asked)


def test_the_right_one_of_300_tools_is_among_the_first_five() -> None:
    catalog = read_catalog()
    assert len({spec["name"] for spec in catalog.specs}) == 300
    assert len(catalog.asked) >= 200
    assert recall(catalog.asked) >= 0.95


def test_the_words_of_people_find_most_tools_too() -> None:
    assert recall(read_catalog().said) >= 0.8


def test_no_question_has_the_name_of_its_tool() -> None:
    for question in (*read_catalog().asked, *read_catalog().said):
        service, _, name = question.tool.partition("_")
        assert name.replace("_", " ") not in question.text.lower(), (service, question)


def test_the_definitions_of_300_tools_take_a_seventh_of_the_tokens_at_most() -> None:
    agent = agent_with([use("search_tools", query="send the customer a bill"), "Done."])
    agent("go")
    assert isinstance(agent.model, ScriptedModel)
    whole = estimate_tokens([], [each.spec for each in (add, *catalog_tools())])
    first, found = (estimate_tokens([], call.tool_specs) for call in agent.model.calls)
    assert found <= 0.15 * whole
    assert first < found


def test_an_index_takes_any_schema() -> None:
    specs: Any = [
        {"name": "a", "description": "", "inputSchema": {}},
        {"name": "b", "description": "Paint.", "inputSchema": {"json": {"properties": [1], "items": {"items": 3}}}},
        {"name": "c", "description": "x", "inputSchema": {"json": {"properties": {"p": True, "colour": {}}}}},
    ]
    index = ToolIndex(specs)
    assert index.search("paint", 5) == ["b"]
    assert index.search("colour", 5) == ["c"]
    assert index.search("the of !", 5) == index.search("zebra", 5) == []
    assert ToolIndex(()).search("paint", 5) == []


# In a turn.


async def test_what_was_found_is_callable_from_the_next_step_on() -> None:
    replies = [use("search_tools", query="burglar alarm"), use("home_set_alarm_mode"), "Done."]
    agent = agent_with(replies, ToolSearch(results_max=1))
    await agent.invoke_async("go")
    always = ["add", "search_tools"]
    assert visible(agent) == [always, [*always, "home_set_alarm_mode"], [*always, "home_set_alarm_mode"]]
    assert answers(agent)[1] == "home_set_alarm_mode ran"


async def test_found_tools_stand_behind_all_others_in_the_order_found() -> None:
    searches = [use("search_tools", query=query) for query in ("waves and tides", "fax", "burglar alarm", "fax")]
    agent = agent_with([*searches, "Done."], ToolSearch(results_max=1))
    await agent.invoke_async("go")
    requests = visible(agent)
    assert requests[-1][2:] == ["weather_get_marine", "phone_send_fax", "home_set_alarm_mode"]
    for before, after in pairwise(requests):
        assert after[: len(before)] == before


async def test_a_call_of_a_tool_that_was_not_found_names_the_search() -> None:
    agent = agent_with([[use("phone_send_fax"), use("phone_sing"), use("add", a=1, b=2)], "Done."])
    await agent.invoke_async("go")
    hidden, unknown, ran = answers(agent)
    assert hidden == ("phone_send_fax is not enabled. Find it with search_tools first, then call it in your next step.")
    assert unknown == "Unknown tool: phone_sing. Find tools by what they do with search_tools."
    assert ran == "3"


async def test_a_search_without_a_result_says_so() -> None:
    agent = agent_with([use("search_tools", query="zebra"), "Done."])
    await agent.invoke_async("go")
    assert answers(agent) == ["No tool was found. Try other words for the action or its object."]
    assert agent.state.get(STATE_KEY) is None


async def test_programs_call_deferred_tools_as_any_others() -> None:
    agent = agent_with(["Done."])
    result = await agent.tool.phone_send_fax.invoke_async()
    assert result["content"] == [{"text": "phone_send_fax ran"}]


async def test_without_the_plugin_deferred_tools_are_shown() -> None:
    agent = Agent(ScriptedModel(["Done."]), tools=catalog_tools(3), callback_handler=None)
    await agent.invoke_async("go")
    assert len(visible(agent)[0]) == 3


async def test_names_by_pattern_are_deferred() -> None:
    agent = agent_with(["Done."], ToolSearch(["a*"]), tools=[add])
    await agent.invoke_async("go")
    assert visible(agent) == [["search_tools"]]


async def test_the_tools_used_least_recently_leave_between_turns() -> None:
    searches = [use("search_tools", query=query) for query in ("waves and tides", "fax", "burglar alarm")]
    replies = [*searches, use("weather_get_marine"), "One.", "Two."]
    agent = agent_with(replies, ToolSearch(results_max=1, found_max=2))
    await agent.invoke_async("one")
    await agent.invoke_async("two")
    requests = visible(agent)
    assert len(requests[-2]) == 5  # Within the turn all of them stay.
    assert requests[-1][2:] == ["weather_get_marine", "home_set_alarm_mode"]


async def test_all_tools_of_a_server_are_deferred_and_those_of_others_are_not() -> None:
    server, other = ToySource("one"), ToySource("two")
    server.names, other.names = ["look_up", "write_down"], ["sum_up"]
    agent = agent_with([use("search_tools", query="write"), "Done."], ToolSearch([server]), tools=[server, other])
    async with agent:
        await agent.invoke_async("go")
    assert visible(agent) == [["sum_up", "search_tools"], ["sum_up", "search_tools", "write_down"]]


@pytest.mark.parametrize(
    "settings", [{"results_max": 0}, {"found_max": True}, {"provider": "mine"}, {"deferred": [3]}], ids=str
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        ToolSearch(**settings)


@pytest.mark.parametrize("value", [None, 3, {}, {"found": 1}, {"found": ["a", "a", 2], "recent": ["b", "a"]}])
def test_any_value_of_the_state_is_read(value: Any) -> None:
    found = FoundTools.read(value)
    assert sorted(found.names) == sorted(found.recent)


# Several lives.

REPLIES = {0: use("search_tools", query="burglar alarm"), 1: use("home_set_alarm_mode"), 2: "Done."}


def next_reply(messages: Any, *_: object) -> Any:
    """The reply of a model that goes by what it is shown, in whatever life."""
    return REPLIES[sum(bool(list(tool_results(message))) for message in messages)]


async def life(world: World) -> tuple[str, list[list[str]], list[str]]:
    """A process that makes or goes on with the one turn: its answer, and the tools of its requests."""
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        model = ScriptedModel([next_reply], loop=True)
        tools, plugins = [add, *catalog_tools()], [ToolSearch(results_max=1)]
        spec = AgentSpec(name="worker", model=model, tools=tools, plugins=plugins, durability="strict")
        handle = runtime.agent(spec).session("s")
        result = await handle.invoke("go", idempotency_token="t")
        texts = [str(one["content"][0].get("text")) for m in await handle.history() for one in tool_results(m)]
        return str(result), [[spec["name"] for spec in call.tool_specs or ()] for call in model.calls], texts


async def test_a_turn_goes_on_with_the_tools_found_wherever_its_process_is_killed() -> None:
    world = World()
    world.moment()
    await life(world)
    assert len(world.left) > 6
    for left in world.left:
        answer, requests, texts = await life(killed(left))
        assert answer.strip() == "Done."
        assert texts[-1] == "home_set_alarm_mode ran"
        assert all(names == ["add", "search_tools", "home_set_alarm_mode"] for names in requests[-1:])


async def test_a_fork_has_the_tools_found_up_to_its_moment() -> None:
    world = World()
    await life(world)
    stored = Sessions(world)
    await stored.fork("s", "end")
    async with Runtime(sessions=world, wakes_max=0) as runtime:
        model = ScriptedModel(["Later."])
        tools = [add, *catalog_tools()]
        spec = AgentSpec(name="worker", model=model, tools=tools, plugins=[ToolSearch()])
        await runtime.agent(spec).session("end").invoke("again")
        assert [each["name"] for each in model.calls[0].tool_specs or ()][-1] == "home_set_alarm_mode"


# Services that search themselves.


def call_of(specs: Sequence[Any], **config: Any) -> ModelCall:
    return ModelCall(
        messages=[{"role": "user", "content": [{"text": "go"}]}],
        tool_specs=specs,
        config={"model_id": "m", **config},
        system_prompt=None,
        system_prompt_content=None,
        tool_choice=None,
    )


def test_a_service_gets_all_definitions_and_is_told_which_to_keep_back() -> None:
    model = AnthropicModel(tool_search=True, client_args={"api_key": "k"})
    agent = Agent(model, tools=[add, *catalog_tools(2)], plugins=[ToolSearch()], callback_handler=None)
    parts = agent.spec().parts
    assert parts.deferral is not None
    sent = messages_arguments(call_of(parts.deferral.visible_specs(parts), cache_tools="default"))["tools"]
    assert [each["name"] for each in sent] == [
        "add", "github_create_issue", "github_list_issues", "tool_search_tool_bm25"
    ]  # fmt: skip
    assert [each.get("defer_loading", False) for each in sent] == [False, True, True, False]
    assert [("cache_control" in each) for each in sent] == [True, False, False, False]
    assert sent[-1]["type"] == "tool_search_tool_bm25_20251119"
    assert parts.deferral.why_hidden("github_create_issue", parts) is None
    assert estimate_tokens([], parts.deferral.visible_specs(parts)) == estimate_tokens([], [add.spec])


def test_the_responses_api_gets_the_same_with_its_own_search() -> None:
    model = OpenAIResponsesModel(tool_search=True, client_args={"api_key": "k"})
    plugin = ToolSearch()
    agent = Agent(model, tools=[add, *catalog_tools(1)], plugins=[plugin], callback_handler=None)
    sent = response_arguments(call_of(plugin.visible_specs(agent.spec().parts)), "openai")["tools"]
    assert [each.get("name", each["type"]) for each in sent] == ["add", "github_create_issue", "tool_search"]
    assert [each.get("defer_loading", False) for each in sent] == [False, True, False]
    assert "tool_search" not in json.dumps(response_arguments(call_of([add.spec]), "openai"))


def test_with_never_a_service_gets_our_search() -> None:
    model = AnthropicModel(tool_search=True, client_args={"api_key": "k"})
    plugin = ToolSearch(provider="never")
    agent = Agent(model, tools=catalog_tools(2), plugins=[plugin], callback_handler=None)
    assert [spec["name"] for spec in plugin.visible_specs(agent.spec().parts)] == ["search_tools"]


def test_examples_of_inputs_go_to_the_service_that_takes_them() -> None:
    @tool(input_examples=[{"a": 1}])
    def double(a: int) -> int:
        """Double a number."""
        return 2 * a

    (sent,) = messages_arguments(call_of([double.spec]))["tools"]
    assert sent["input_examples"] == [{"a": 1}]
    assert "input_examples" not in json.dumps(messages_arguments(call_of([add.spec])))


@pytest.mark.parametrize("examples", ["a", [1], [{"a": object()}]], ids=["text", "number", "object"])
def test_examples_that_are_no_inputs_are_refused(examples: Any) -> None:
    with pytest.raises(Invalid):
        tool(input_examples=examples)(lambda a: a)
