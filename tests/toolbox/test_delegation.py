"""Agents that the model delegates to: what they are made of, what they see, and whom they ask."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from repertory import (
    Agent,
    Confirm,
    Deny,
    InterventionHandler,
    InterventionRegistry,
    ScriptedModel,
    SQLiteSessionManager,
    tool,
)
from repertory.backends.ports import ToolContext
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import ToolUse, text_of, tool_results
from repertory.core.state import AgentState
from repertory.errors import Invalid
from repertory.toolbox.delegation import (
    AgentRole,
    ChosenFrom,
    DelegateSpec,
    Fixed,
    Open,
    Option,
    make_subagent,
    make_swarm,
    subagent,
)
from tests.app.orchestration.recorder import add, use

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def agent_with(model: ScriptedModel, *tools: Any, **options: Any) -> Agent:
    return Agent(model, tools=[add, *tools], callback_handler=None, **options)


def results_of(agent: Agent) -> list[tuple[str, str]]:
    found = [result for message in agent.messages for result in tool_results(message)]
    return [(result["status"], str(result["content"][0].get("text"))) for result in found]


async def respond(agent: Agent, response: object) -> Any:
    await agent.ready()
    prompt: Any = [{"interruptResponse": {"interruptId": one.id, "response": response}} for one in agent.interrupts]
    return await agent.invoke_async(prompt)


# One agent.


async def test_a_task_is_done_by_another_agent_with_the_same_model_and_tools() -> None:
    model = ScriptedModel([use("subagent", task="1 + 2?"), use("add", a=1, b=2), "It is 3.", "done"])
    agent = agent_with(model, subagent)
    assert str(await agent.invoke_async("sum")) == "done"
    assert results_of(agent) == [("success", "It is 3.")]
    own, other = model.calls[0], model.calls[1]
    assert [text_of(message) for message in other.messages] == ["1 + 2?"]
    assert [spec["name"] for spec in other.tool_specs or ()] == [spec["name"] for spec in own.tool_specs or ()]
    assert "one task for another agent" in str(other.system_prompt)


async def test_delegation_goes_only_so_deep() -> None:
    model = ScriptedModel([use("subagent", task="a"), use("subagent", task="b"), "inner", "outer", "done"])
    agent = agent_with(model, make_subagent(max_depth=1))
    await agent.invoke_async("go")
    refused = [list(tool_results(message)) for call in model.calls for message in call.messages]
    assert any("depth limit" in str(each) for each in refused)


@pytest.mark.parametrize(
    ("context", "shown"),
    [
        ("none", ["do it"]),
        ("all", ["hi", "hello", "go"]),
        ("no_tools", ["<parent_context>\nuser: hi\nassistant: hello\nuser: go\n</parent_context>"]),
    ],
)
async def test_the_agent_sees_as_much_of_the_conversation_as_it_may(context: str, shown: list[str]) -> None:
    model = ScriptedModel(["hello", use("subagent", task="do it"), "did it", "done"])
    agent = agent_with(model, make_subagent(context=Fixed(context)))
    await agent.invoke_async("hi")
    await agent.invoke_async("go")
    seen = [text_of(message) for message in model.calls[2].messages]
    assert len(seen) == len(shown)
    assert all(text.startswith(begin) for text, begin in zip(seen, shown, strict=True))
    assert "do it" in seen[-1]


async def test_what_the_model_may_choose_is_in_the_schema_and_nothing_else_counts() -> None:
    made = make_subagent(
        presets={"poet": AgentRole("Rhyme.", description="writes verse"), "clerk": AgentRole("File.", tools=["add"])},
        tools=ChosenFrom(["add", Option("sub", "subtract", "minus")], multiple=True),
        instructions=Fixed("Obey."),
        context=ChosenFrom(["none", "all"]),
    )
    properties: Any = made.spec["inputSchema"]["json"]["properties"]  # type: ignore[index]
    assert sorted(properties) == ["agent_type", "context", "last_messages", "task", "tools"]
    assert properties["agent_type"]["enum"] == ["poet", "clerk"]
    specs: list[DelegateSpec] = []

    def build(spec: DelegateSpec) -> Agent:
        specs.append(spec)
        return Agent(ScriptedModel(["ok"]), callback_handler=None)

    wanted = [{"agent_type": "clerk"}, {"tools": ["sub", "rm"]}, {"agent_type": "clerk", "tools": []}, {"model": "x"}]
    model = ScriptedModel([*[use("subagent", task="t", **each) for each in wanted], "done"])
    tools = make_subagent(
        builder=build,
        presets={"poet": AgentRole("Rhyme."), "clerk": AgentRole("File.", tools=["add", "rm"])},
        tools=ChosenFrom(["add", Option("sub", "subtract")], multiple=True),
        instructions=Fixed("Obey."),
    )
    await agent_with(model, tools).invoke_async("go")
    assert [(spec.agent_type, spec.instructions, spec.tools, spec.model) for spec in specs] == [
        ("clerk", "File.", ["add"], None),
        ("poet", "Rhyme.", ["subtract"], None),
        ("clerk", "File.", [], None),
        ("poet", "Rhyme.", ["add", "subtract"], None),
    ]


@pytest.mark.parametrize("wrong", [{}, {"task": " "}, {"task": "t", "agent_type": "king"}])
async def test_a_wrong_request_is_an_error_that_says_so(wrong: dict[str, Any]) -> None:
    agent = agent_with(ScriptedModel([use("subagent", **wrong), "done"]), subagent)
    await agent.invoke_async("go")
    assert results_of(agent)[0][0] == "error"


@pytest.mark.parametrize(
    "settings",
    [
        {"name": ""},
        {"description": ""},
        {"max_depth": 0},
        {"max_depth": True},
        {"tools": ChosenFrom(["a"])},
        {"model": ChosenFrom([])},
    ],
)
def test_bad_settings_are_refused(settings: Any) -> None:
    with pytest.raises(Invalid):
        make_subagent(**settings)


TEAM = use("swarm", task="1 + 2?", agents=[{"name": "a", "instructions": "x"}])


@pytest.mark.parametrize("asks", [use("subagent", task="1 + 2?"), TEAM], ids=["subagent", "swarm"])
@pytest.mark.parametrize("given", ["interventions", "hooks", "later"])
async def test_what_an_agent_may_not_do_those_that_work_for_it_may_not(asks: Any, given: str) -> None:
    class NoSums(InterventionHandler):
        name = "no-sums"

        def before_tool_call(self, event: Any, **kwargs: Any) -> Any:
            return Deny(reason="no sums") if event.tool_use["name"] == "add" else Confirm(response=True)

    model = ScriptedModel([asks, use("add", a=1, b=2), "I may not.", "done"])
    ways: dict[str, Any] = {"interventions": [NoSums()], "hooks": [InterventionRegistry([NoSums()])]}
    agent = agent_with(model, subagent, make_swarm(), **{given: ways[given]} if given in ways else {})
    if given == "later":
        InterventionRegistry([NoSums()], agent.hooks)
    await agent.invoke_async("sum")
    assert "DENIED: no sums" in str(model.calls[2].messages)


@pytest.mark.parametrize("asks", [use("subagent", task="1 + 2?"), TEAM], ids=["subagent", "swarm"])
async def test_a_tool_that_is_hidden_from_an_agent_is_hidden_from_those_that_work_for_it(asks: Any) -> None:
    model = ScriptedModel([asks, use("add", a=1, b=2), "I may not.", "done"])
    agent = agent_with(model, subagent, make_swarm(), enabled_tools=["subagent", "swarm"])
    await agent.invoke_async("sum")
    assert "Unknown tool: add" in str(model.calls[2].messages)


@tool
def ask_person(tool_context: Any) -> str:
    """Ask."""
    return f"they said {tool_context.interrupt('colour', reason='Which?')}"


async def test_a_question_of_the_agent_is_put_to_the_person_and_the_answer_passed_on() -> None:
    model = ScriptedModel([use("subagent", task="paint"), use("ask_person"), "red it is", "done"])
    agent = agent_with(model, subagent, ask_person)
    result = await agent.invoke_async("go")
    assert [(one.name, one.reason) for one in result.interrupts or ()] == [("colour", "Which?")]
    assert str(await respond(agent, "red")) == "done"
    assert results_of(agent) == [("success", "red it is")]
    assert "they said red" in str(model.calls[2].messages)


@pytest.mark.real_time
async def test_an_agent_that_waited_in_another_process_is_reported_as_lost(tmp_path: Path) -> None:
    def agent(*replies: Any) -> Agent:
        manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
        return agent_with(ScriptedModel(list(replies)), make_subagent(), ask_person, session_manager=manager)

    await agent(use("subagent", task="paint"), use("ask_person")).invoke_async("go")
    later = agent("sorry")
    await respond(later, "red")
    assert results_of(later)[0][0] == "error"
    assert "did not go on" in results_of(later)[0][1]


class Worker:
    """Anything that is asked as an agent is."""

    def __init__(self, *results: Any, cancelled: bool = False) -> None:
        self.state = AgentState()
        self.cancel_signal = SimpleNamespace(is_set=lambda: cancelled)
        self.results, self.asked = list(results), list[Any]()

    async def stream_async(self, prompt: Any, *, invocation_state: dict[str, Any]) -> Any:
        self.asked.append((prompt, invocation_state))
        yield {"data": "on it"}
        for each in self.results:
            yield {"result": each}


class Said(SimpleNamespace):
    stop_reason, interrupts = "end_turn", ()

    def __str__(self) -> str:
        return "it is 3"


async def delegated(worker: Worker, **state: Any) -> tuple[str, str]:
    model = ScriptedModel([use("subagent", task="1 + 2?"), "done"])
    agent = agent_with(model, make_subagent(builder=lambda spec: cast("Agent", worker)))
    await agent.invoke_async("go", invocation_state=state)
    return results_of(agent)[0]


async def test_the_builder_may_give_anything_that_is_asked_as_an_agent_is() -> None:
    worker = Worker(Said())
    assert await delegated(worker, user="alice") == ("success", "it is 3")
    ((prompt, state),) = worker.asked
    assert (prompt, state["user"]) == ("1 + 2?", "alice")


@pytest.mark.parametrize(
    ("worker", "why"),
    [(Worker(), "no result"), (Worker(Said(stop_reason="cancelled"), cancelled=True), "cancelled")],
    ids=["nothing", "cancelled"],
)
async def test_an_agent_that_does_not_answer_is_an_error_that_says_so(worker: Worker, why: str) -> None:
    status, text = await delegated(worker)
    assert status == "error"
    assert why in text


async def test_what_a_builder_raises_is_an_error_that_says_so() -> None:
    def build(spec: DelegateSpec) -> Agent:
        raise RuntimeError("no room")

    agent = agent_with(ScriptedModel([use("subagent", task="t"), "done"]), make_subagent(builder=build))
    await agent.invoke_async("go")
    assert results_of(agent) == [("error", "Error: RuntimeError - no room")]


# A team.


def team(*names: str, **more: Any) -> dict[str, Any]:
    return use("swarm", task="write", agents=[{"name": name, "instructions": f"You {name}."} for name in names], **more)


async def test_a_team_hands_over_until_one_of_them_is_done() -> None:
    hand_over = use("handoff_to_agent", agent_name="check", message="look at it")
    model = ScriptedModel([team("draft", "check"), hand_over, "handed over", "All good.", "done"])
    agent = agent_with(model, make_swarm())
    await agent.invoke_async("go")
    (status, text), *_ = results_of(agent)
    assert status == "success"
    assert "All good." in text
    prompts = [call.system_prompt for call in model.calls]
    assert "You draft." in prompts
    assert "You check." in prompts
    names = [
        spec["name"] for call in model.calls if call.system_prompt == "You draft." for spec in call.tool_specs or ()
    ]
    assert "add" in names
    assert "swarm" not in names


async def test_the_model_says_who_begins() -> None:
    model = ScriptedModel([team("draft", "check", entry_point="check"), "All good.", "done"])
    await agent_with(model, make_swarm()).invoke_async("go")
    assert model.calls[1].system_prompt == "You check."


@pytest.mark.parametrize(
    "wrong",
    [
        {"task": "t", "agents": []},
        {"task": "", "agents": [{"name": "a"}]},
        {"task": "t", "agents": [{"name": "a"}, {"name": "a"}]},
        {"task": "t", "agents": [{"name": "a"}, {"name": "b"}, {"name": "c"}]},
        {"task": "t", "agents": ["a"]},
        {"task": "t", "agents": [{"name": "a"}], "entry_point": "b"},
        {"task": "t", "agents": [{"name": "a", "agent_type": "king"}]},
    ],
)
async def test_a_wrong_team_is_an_error_that_says_so(wrong: dict[str, Any]) -> None:
    agent = agent_with(ScriptedModel([use("swarm", **wrong), "done"]), make_swarm(max_agents=2))
    await agent.invoke_async("go")
    assert results_of(agent)[0][0] == "error"


async def test_by_hand_a_wrong_team_raises() -> None:
    context = ToolContext(tool_use=ToolUse(toolUseId="t", name="swarm", input={}))
    with pytest.raises(Invalid, match="Between 1 and 2"):
        _ = [event async for event in make_swarm(max_agents=2)(task="t", agents=[], tool_context=context)]


async def test_a_team_that_does_not_get_done_is_an_error_with_what_there_is() -> None:
    back = use("handoff_to_agent", agent_name="a", message="you")
    forth = use("handoff_to_agent", agent_name="b", message="no, you")
    model = ScriptedModel([team("a", "b"), forth, "x", back, "x", forth, "x", "done", "done", "done"])
    agent = agent_with(model, make_swarm(max_handoffs=1, instructions=Open()))
    await agent.invoke_async("go")
    assert results_of(agent)[0][0] == "error"
    assert "did not get done" in results_of(agent)[0][1]


@pytest.mark.real_time
async def test_a_question_of_the_team_is_put_to_the_person() -> None:
    model = ScriptedModel([team("a"), use("ask_person"), "red it is", "done"])
    agent = agent_with(model, make_swarm(), ask_person)
    result = await agent.invoke_async("go")
    assert [one.name for one in result.interrupts or ()] == ["colour"]
    assert str(await respond(agent, "red")) == "done"
    assert "red it is" in results_of(agent)[0][1]
