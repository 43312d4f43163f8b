"""Agents as tools of other agents: what they remember, how they fail and are cancelled, and what is seen of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pydantic
import pytest

from repertory import (
    AfterToolCallEvent,
    Agent,
    AgentSpec,
    BeforeInvocationEvent,
    ModelRefused,
    Runtime,
    ScriptedModel,
    SQLiteSessionManager,
    SQLiteSessions,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message, check_next, text_of, tool_results
from repertory.errors import Invalid, ModelFailed

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def use(name: str, **arguments: object) -> dict[str, object]:
    return {"toolUse": {"name": name, "input": arguments}}


def ask(name: str, question: str) -> dict[str, object]:
    return use(name, input=question)


def texts(agent: Agent) -> list[str]:
    found = [result for message in agent.messages for result in tool_results(message)]
    return [str(result["content"][0]["text"]) for result in found]


def said(messages: list[Message]) -> list[str]:
    return [text_of(message) for message in messages]


def assert_valid(messages: list[Message]) -> None:
    previous = None
    for message in messages:
        check_next(previous, message)
        previous = message


def researcher(*replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(replies), name="researcher", callback_handler=None, **options)


def boss(*replies: Any, tools: list[Any], **options: Any) -> Agent:
    return Agent(ScriptedModel(replies), tools=tools, callback_handler=None, **options)


def test_an_agent_among_the_tools_is_told_to_the_model_by_name_and_description() -> None:
    model = ScriptedModel(["ok"])
    inner = Agent(ScriptedModel([]), name="Web & News researcher!", description="Finds things.")
    Agent(model, tools=[inner, inner.as_tool(name="other", description="Other things.")], callback_handler=None)("go")
    first, second = model.calls[0].tool_specs or ()
    assert (first["name"], first["description"]) == ("Web_News_researcher", "Finds things.")
    assert (second["name"], second["description"]) == ("other", "Other things.")
    assert first["inputSchema"]["json"]["required"] == ["input"]  # type: ignore[index,call-overload]


def test_a_name_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(Invalid, match="needs a name"):
        Agent(ScriptedModel([]), name="???").as_tool()


def test_two_agents_without_names_are_refused_as_two_tools_of_one_name() -> None:
    with pytest.raises(Invalid, match="two tools have the same name"):
        Agent(ScriptedModel([]), tools=[Agent(ScriptedModel([])), Agent(ScriptedModel([]))])


# -------------------------------------------------------------------------------------------------- what is remembered


@pytest.mark.anyio
async def test_each_call_begins_afresh_and_the_agent_has_the_messages_of_the_last_one() -> None:
    inner_model = ScriptedModel(["one", "two", "own"])
    earlier: list[Message] = [
        {"role": "user", "content": [{"text": "You are brief."}]},
        {"role": "assistant", "content": [{"text": "Yes."}]},
    ]
    inner = Agent(inner_model, name="researcher", messages=earlier, state={"n": 0}, callback_handler=None)
    outer = boss(ask("researcher", "a?"), ask("researcher", "b?"), "done", tools=[inner])
    assert str(await outer.invoke_async("go")) == "done"
    assert texts(outer) == ["one", "two"]
    assert [said(list(call.messages)) for call in inner_model.calls] == [
        ["You are brief.", "Yes.", "a?"],
        ["You are brief.", "Yes.", "b?"],
    ]
    assert said(inner.messages) == ["You are brief.", "Yes.", "b?", "two"]
    assert inner.event_loop_metrics.cycle_count == 2
    assert inner.state.get() == {"n": 0}
    assert str(await inner.invoke_async("and you?")) == "own"
    assert said(inner.messages)[2:] == ["b?", "two", "and you?", "own"]


@pytest.mark.anyio
async def test_a_preserved_context_is_the_agents_own_conversation() -> None:
    inner = researcher("one", "two")
    tool_of_inner = inner.as_tool(preserve_context=True)
    outer = boss(ask("researcher", "a?"), ask("researcher", "b?"), "done", tools=[tool_of_inner])
    await outer.invoke_async("go")
    assert said(inner.messages) == ["a?", "one", "b?", "two"]


@pytest.mark.anyio
async def test_two_questions_at_once_to_one_that_remembers_wait_for_each_other() -> None:
    inner = Agent(ScriptedModel("ok", loop=True, delay_s=1), name="researcher", callback_handler=None)
    asked = [ask("researcher", "a?"), ask("researcher", "b?")]
    outer = boss(asked, "done", tools=[inner.as_tool(preserve_context=True)])
    await outer.invoke_async("go")
    assert said(inner.messages) in (["a?", "ok", "b?", "ok"], ["b?", "ok", "a?", "ok"])
    assert texts(outer) == ["ok", "ok"]


@pytest.mark.anyio
async def test_two_questions_at_once_to_one_that_begins_afresh_are_answered_at_once() -> None:
    inner = Agent(ScriptedModel("ok", loop=True, delay_s=1), name="researcher", callback_handler=None)
    outer = boss([ask("researcher", "a?"), ask("researcher", "b?")], "done", tools=[inner])
    began = anyio.current_time()
    await outer.invoke_async("go")
    assert anyio.current_time() - began < 8
    assert texts(outer) == ["ok", "ok"]


@pytest.mark.real_time
@pytest.mark.anyio
async def test_an_inner_agent_with_a_session_of_its_own_keeps_it(tmp_path: Path) -> None:
    def inner_at() -> Agent:
        return researcher("one", session_manager=SQLiteSessionManager("inner", path=tmp_path / "a.db"))

    inner = inner_at()
    outer = boss(
        ask("researcher", "a?"),
        "done",
        tools=[inner.as_tool(preserve_context=True)],
        session_manager=SQLiteSessionManager("outer", path=tmp_path / "a.db"),
    )
    with anyio.fail_after(20):
        await outer.invoke_async("go")
        again = inner_at()
        await again.ready()
    assert said(again.messages) == ["a?", "one"]
    assert texts(outer) == ["one"]


@pytest.mark.real_time
@pytest.mark.anyio
async def test_in_a_runtime_inner_agents_work_as_elsewhere_and_remember_nothing(tmp_path: Path) -> None:
    inner_model = ScriptedModel("found", loop=True)
    inner = Agent(inner_model, name="researcher", callback_handler=None)
    model = ScriptedModel([ask("researcher", "a?"), "done", ask("researcher", "b?"), "done"])
    spec = AgentSpec(name="boss", model=model, tools=[inner.as_tool()])
    with anyio.fail_after(20):
        async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
            for session in ("one", "two"):
                assert str(await runtime.agent(spec).session(session).invoke("go")) == "done"
                actors = [actor.path for actor in runtime.tree().walk()]
    assert [len(call.messages) for call in inner_model.calls] == [1, 1]
    assert [path for path in actors if path.endswith("/agent")] == [
        "/session one boss/agent",
        "/session two boss/agent",
    ]


@tool
async def ask_somebody(question: str) -> str:
    """Ask an agent that nobody else knows."""
    return str(await Agent(ScriptedModel([f"{question} yes"]), callback_handler=None).invoke_async(question))


@tool
def ask_somebody_sync(question: str) -> str:
    """Ask an agent that nobody else knows."""
    return str(Agent(ScriptedModel([f"{question} yes"]), callback_handler=None)(question))


@pytest.mark.parametrize("name", ["ask_somebody", "ask_somebody_sync"])
def test_tools_may_call_agents_of_their_own_which_all_have_the_same_name(name: str) -> None:
    asked = [use(name, question="a?"), use(name, question="b?")]
    outer = boss(asked, "done", tools=[ask_somebody, ask_somebody_sync])
    assert str(outer("go")) == "done"
    assert texts(outer) == ["a? yes", "b? yes"]


def test_sessions_of_one_name_in_two_databases_may_be_open_at_once(tmp_path: Path) -> None:
    first, second = (
        Agent(ScriptedModel([name]), session_manager=SQLiteSessionManager("s", path=tmp_path / name))
        for name in ("a.db", "b.db")
    )
    with first, second:
        assert str(first("go")) == "a.db"
        assert str(second("go")) == "b.db"


# ------------------------------------------------------------------------------------------------------------- failures


@pytest.mark.anyio
@pytest.mark.parametrize("given", [{}, {"input": ""}, {"input": 3}, {"question": "a?"}])
async def test_a_question_that_is_none_is_answered_with_what_one_looks_like(given: dict[str, object]) -> None:
    outer = boss(use("researcher", **given), "sorry", tools=[researcher()])
    assert str(await outer.invoke_async("go")) == "sorry"
    assert texts(outer) == ['The input must be an object like {"input": "what to ask"}.']


@pytest.mark.anyio
async def test_a_failure_of_the_inner_agent_is_an_error_result_and_hooks_are_told() -> None:
    outer = boss(ask("researcher", "a?"), "sorry", tools=[researcher(ModelFailed("no credit"))])
    told: list[object] = []

    def look(event: AfterToolCallEvent) -> None:
        told.append(event.exception)

    outer.add_hook(look)
    assert str(await outer.invoke_async("go")) == "sorry"
    assert texts(outer) == ["Error: ModelFailed - no credit"]
    assert [type(error) for error in told] == [ModelFailed]


@pytest.mark.anyio
async def test_a_guard_of_the_inner_agent_guards_its_fresh_copies_too() -> None:
    inner = researcher("never")

    def guard(event: BeforeInvocationEvent) -> None:
        raise ModelRefused("not this")

    inner.add_hook(guard)
    outer = boss(ask("researcher", "a?"), "sorry", tools=[inner])
    await outer.invoke_async("go")
    assert texts(outer) == ["Error: ModelRefused - not this"]


@pytest.mark.anyio
async def test_a_structured_answer_arrives_as_its_text() -> None:
    class Fact(pydantic.BaseModel):
        city: str

    inner = researcher(use("Fact", city="Rome"), structured_output_model=Fact)
    outer = boss(ask("researcher", "a?"), "done", tools=[inner])
    await outer.invoke_async("go")
    assert texts(outer) == ['{"city":"Rome"}']


# --------------------------------------------------------------------------------------------------------- cancellation


@pytest.mark.anyio
@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize("way", ["scope", "cancel", "timeout"])
async def test_cancelling_the_outer_turn_cancels_the_inner_one(preserve: bool, way: str) -> None:
    ended = anyio.Event()

    @tool
    async def hang() -> None:
        """Never end."""
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    inner = Agent(ScriptedModel([use("hang"), "later"]), name="researcher", tools=[hang], callback_handler=None)
    outer = boss(ask("researcher", "a?"), "later", tools=[inner.as_tool(preserve_context=preserve)])
    with anyio.fail_after(60):
        if way == "scope":
            with anyio.move_on_after(1):
                await outer.invoke_async("go")
        elif way == "timeout":
            assert (await outer.invoke_async("go", timeout_s=1)).stop_reason == "limit_time"
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(outer.invoke_async, "go")
                await anyio.sleep(1)
                outer.cancel()
        assert ended.is_set()
        assert_valid(outer.messages)
        assert_valid(inner.messages)
        assert str(await outer.invoke_async("again")) == "later"
        if preserve:
            assert str(await inner.invoke_async("again")) == "later"


# -------------------------------------------------------------------------------------------------------- what is seen


@pytest.mark.anyio
async def test_the_events_of_the_inner_agent_stream_through_also_when_nested_twice() -> None:
    innermost = Agent(ScriptedModel(["deep answer"]), name="innermost", callback_handler=None)
    middle = Agent(
        ScriptedModel([ask("innermost", "c?"), "middle answer"]),
        name="middle",
        tools=[innermost],
        callback_handler=None,
    )
    outer = boss(ask("middle", "b?"), "outer answer", tools=[middle])
    own: list[str] = []
    inner: list[str] = []
    deep: list[str] = []

    def data(event: Any, found: list[str]) -> Any:
        if "data" in event:
            found.append(event["data"])
        return event.get("tool_stream_event", {}).get("data") if "tool_stream_event" in event else None

    async for event in outer.stream_async("a?"):
        nested = data(event, own)
        if nested is not None:
            deeper = data(nested, inner)
            if deeper is not None:
                data(deeper, deep)
    assert (own, inner, deep) == (["outer answer"], ["middle answer"], ["deep answer"])


# --------------------------------------------------------------------------------------------------- waiting for itself


@tool
async def call_own_agent(agent: Agent, busy: str | None = None) -> str:
    """Call the agent that runs this tool."""
    return str(await agent.invoke_async("me again", busy=busy))  # type: ignore[arg-type]


@tool
def call_own_agent_sync(agent: Agent) -> str:
    """Call the agent that runs this tool."""
    return str(agent("me again"))


@tool
async def read_own_history(agent: Agent) -> str:
    """Read what was said."""
    return str(len(await agent.history()))


@pytest.mark.real_time
@pytest.mark.anyio
@pytest.mark.parametrize("where", ["lone", "held", "runtime"])
@pytest.mark.parametrize("name", ["call_own_agent", "call_own_agent_sync"])
async def test_a_tool_that_calls_its_own_agent_is_told_instead_of_waiting_for_itself(where: str, name: str) -> None:
    tools = [call_own_agent, call_own_agent_sync]
    with anyio.fail_after(20):
        if where == "runtime":
            async with Runtime() as runtime:
                spec = AgentSpec(name="a", model=ScriptedModel([use(name), "done"]), tools=tools)
                session = runtime.agent(spec).session("s")
                assert str(await session.invoke("go")) == "done"
                agent = session.agent
        else:
            agent = boss(use(name), "done", tools=tools)
            if where == "held":
                async with agent:
                    assert str(await agent.invoke_async("go")) == "done"
            else:
                assert str(await agent.invoke_async("go")) == "done"
    (text,) = texts(agent)
    assert text.startswith(("Error: AgentBusy", "Error: Invalid"))
    assert len(agent.messages) == 4


@pytest.mark.parametrize("name", ["call_own_agent", "call_own_agent_sync"])
@pytest.mark.parametrize("held", [True, False])
def test_so_it_is_in_sync_code(name: str, held: bool) -> None:
    agent = boss(use(name), "done", "later", tools=[call_own_agent, call_own_agent_sync])
    if held:
        with agent:
            assert str(agent("go")) == "done"
    else:
        assert str(agent("go")) == "done"
    assert texts(agent)[0].startswith("Error: AgentBusy")
    assert str(agent("again")) == "later"


@pytest.mark.anyio
@pytest.mark.parametrize("busy", ["queue", "steer", "reject"])
async def test_no_way_of_meeting_makes_a_turn_wait_for_itself(busy: str) -> None:
    agent = boss(use("call_own_agent", busy=busy), "done", tools=[call_own_agent])
    with anyio.fail_after(60):
        assert str(await agent.invoke_async("go")) == "done"
    assert "AgentBusy" in texts(agent)[0]


@pytest.mark.anyio
async def test_an_agent_that_is_a_tool_of_its_own_tool_is_told_too() -> None:
    agents: dict[str, Agent] = {}

    @tool(name="first")
    async def back() -> str:
        """Ask the first agent."""
        return str(await agents["first"].invoke_async("c?"))

    second = Agent(ScriptedModel([use("first"), "second done"]), name="second", tools=[back], callback_handler=None)
    agents["first"] = boss(ask("second", "b?"), "first done", tools=[second.as_tool(preserve_context=True)])
    with anyio.fail_after(60):
        assert str(await agents["first"].invoke_async("a?")) == "first done"
    assert "AgentBusy" in texts(second)[0]


@pytest.mark.anyio
@pytest.mark.parametrize("held", [True, False])
async def test_a_tool_may_read_the_history_of_its_own_agent(held: bool) -> None:
    agent = boss(use("read_own_history"), "done", tools=[read_own_history])
    with anyio.fail_after(60):
        if held:
            async with agent:
                await agent.invoke_async("go")
        else:
            await agent.invoke_async("go")
    assert texts(agent) == ["2"]


@pytest.mark.anyio
@pytest.mark.parametrize("where", ["lone", "held", "runtime"])
async def test_a_tool_may_cancel_the_turn_that_runs_it(where: str) -> None:
    @tool
    async def give_up(agent: Agent) -> str:
        """End the turn."""
        assert len(await agent.history()) == 2
        agent.cancel(message="given up", after_current_tools=True)
        await anyio.sleep(1)
        return "gave up"

    replies = [use("give_up"), "never"]
    if where == "runtime":
        async with Runtime() as runtime:
            spec = AgentSpec(name="a", model=ScriptedModel(replies), tools=[give_up])
            result = await runtime.agent(spec).session("s").invoke("go")
    else:
        agent = boss(*replies, tools=[give_up])
        if where == "held":
            async with agent:
                result = await agent.invoke_async("go")
        else:
            result = await agent.invoke_async("go")
    assert (result.stop_reason, str(result)) == ("cancelled", "given up")


@pytest.mark.anyio
async def test_a_call_that_only_began_in_a_turn_may_wait_for_a_later_one() -> None:
    """What a tool started in the background is no part of its turn any more once that is over."""
    agent = Agent(ScriptedModel("ok", loop=True, delay_s=1), callback_handler=None)
    late: list[object] = []
    began = anyio.Event()

    async def later() -> None:
        await began.wait()
        late.append(await agent.invoke_async("from the background"))

    async with anyio.create_task_group() as group:

        @tool
        async def start() -> str:
            """Start something in the background."""
            await anyio.lowlevel.checkpoint()
            group.start_soon(later)
            return "started"

        starter = boss(use("start"), "done", tools=[start])
        await starter.invoke_async("go")
        async with agent:
            group.start_soon(agent.invoke_async, "in front")
            await anyio.sleep(1)
            began.set()
            while not late:  # noqa: ASYNC110 - the other task belongs to a tool
                await anyio.sleep(1)
    assert [str(result) for result in late] == ["ok"]


@pytest.mark.anyio
async def test_what_a_delegate_answers_is_the_answer_also_through_several() -> None:
    leaf = researcher('{"exact": true}')
    middle = boss(ask("researcher", "go"), tools=[leaf.as_tool(delegate=True)], name="middle")
    top = boss(ask("middle", "go"), "goes on", tools=[middle.as_tool(delegate=True)])
    result = await top.invoke_async("run")
    assert (result.stop_reason, str(result)) == ("end_turn", '{"exact": true}')
    assert [message["role"] for message in top.messages] == ["user", "assistant", "user", "assistant"]
    assert str(await top.invoke_async("and?")) == "goes on"


@pytest.mark.anyio
async def test_a_delegate_that_fails_says_nothing_or_is_one_of_several_tools_ends_no_turn() -> None:
    for reply in (ModelRefused("no"), " "):
        one = boss(ask("researcher", "go"), "then I", tools=[researcher(reply).as_tool(delegate=True)])
        assert str(await one.invoke_async("run")) == "then I"
    both = [ask("researcher", "go"), ask("researcher", "go again")]
    two = boss(both, "both of us", tools=[researcher("a", "b").as_tool(delegate=True)])
    assert str(await two.invoke_async("run")) == "both of us"
