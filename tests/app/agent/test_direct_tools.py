"""Tools called by the program itself: `agent.tool.name(...)`, on record or not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio

from repertory import (
    AfterInvocationEvent,
    AfterToolCallEvent,
    Agent,
    AgentSpec,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    ConcurrencyException,
    HookFailed,
    MessageAddedEvent,
    NullConversationManager,
    Runtime,
    ScriptedModel,
    SlidingWindowConversationManager,
    SQLiteSessionManager,
    SQLiteSessions,
    ToolContext,
    calculator,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.ids import check_id
from repertory.core.messages import Message, check_next, text_of, tool_results, tool_uses
from repertory.errors import Invalid

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


@tool
async def double(number: int) -> int:
    """Double a number."""
    await anyio.lowlevel.checkpoint()
    return number * 2


@tool
async def remember(value: Any, agent: Agent) -> str:
    """Remember a value's type."""
    await anyio.lowlevel.checkpoint()
    agent.state.set("remembered", type(value).__name__)
    return "ok"


@tool(name="with-hyphens")
async def with_hyphens() -> str:
    """Have a name that is no Python name."""
    await anyio.lowlevel.checkpoint()
    return "found"


TOOLS = [double, remember, with_hyphens]


def use(name: str, **arguments: object) -> dict[str, object]:
    return {"toolUse": {"name": name, "input": arguments}}


def agent_with(*replies: Any, tools: list[Any] | None = None, **options: Any) -> Agent:
    return Agent(ScriptedModel(replies), tools=tools or TOOLS, callback_handler=None, **options)


def said(messages: list[Message]) -> list[str]:
    return [f"{message['role']} {text_of(message)}".strip() for message in messages]


def assert_valid(messages: list[Message]) -> None:
    previous = None
    for message in messages:
        check_next(previous, message)
        previous = message


# ------------------------------------------------------------------------------------------------------ on the record


@pytest.mark.parametrize("agent_says", [True, False])
@pytest.mark.parametrize("call_says", [True, False, None])
def test_the_call_decides_over_the_agent_whether_it_is_recorded(agent_says: bool, call_says: bool | None) -> None:
    agent = agent_with(record_direct_tool_call=agent_says)
    result = agent.tool.double(number=4, record_direct_tool_call=call_says)
    assert (result["status"], result["content"]) == ("success", [{"text": "8"}])
    recorded = agent_says if call_says is None else call_says
    assert len(agent.messages) == (4 if recorded else 0)


def test_a_recorded_call_is_four_messages_in_the_words_of_the_sdk() -> None:
    agent = agent_with()
    result = agent.tool.double(number=4, user_message_override="Please double it.")
    prompt, asked, answered, closed = agent.messages
    assert prompt["content"] == [
        {"text": "Please double it.\n"},
        {"text": 'agent.tool.double direct tool call.\nInput parameters: {"number": 4}\n'},
    ]
    (made,) = tool_uses(asked)
    assert made["toolUseId"].startswith("tooluse_double_")
    assert made["toolUseId"].removeprefix("tooluse_double_").isdigit()
    assert (made["name"], made["input"]) == ("double", {"number": 4})
    assert list(tool_results(answered)) == [result]
    assert closed["content"] == [{"text": "agent.tool.double was called."}]
    assert_valid(agent.messages)


def test_arguments_that_json_cannot_say_reach_the_tool_and_are_recorded_by_type() -> None:
    agent = agent_with()
    assert agent.tool.remember(value=threading.Lock())["status"] == "success"
    assert agent.state.get("remembered") == "lock"
    prompt, asked, *_ = agent.messages
    assert '{"value": "<<non-serializable: lock>>"}' in text_of(prompt)
    assert next(tool_uses(asked))["input"] == {"value": "<<non-serializable: lock>>"}


def test_a_hyphenated_name_is_found_by_its_underscores_and_recorded_as_it_is() -> None:
    agent = agent_with()
    assert agent.tool.with_hyphens()["content"] == [{"text": "found"}]
    assert getattr(agent.tool, "with-hyphens")()["content"] == [{"text": "found"}]
    assert [made["name"] for message in agent.messages for made in tool_uses(message)] == ["with-hyphens"] * 2


def test_a_tool_that_nobody_has_is_found_missing_when_it_is_called() -> None:
    agent = agent_with()
    missing = agent.tool.nope
    with pytest.raises(AttributeError, match="Tool 'nope' not found"):
        missing()
    with pytest.raises(AttributeError, match="Tool 'nope' not found"):
        missing(record_direct_tool_call=False)
    assert agent.messages == []


def test_a_failure_of_the_tool_is_a_result_not_an_exception() -> None:
    @tool
    def divide(a: int, b: int) -> float:
        """Divide."""
        return a / b

    agent = agent_with(tools=[divide])
    for record in (True, False):
        result = agent.tool.divide(a=1, b=0, record_direct_tool_call=record)
        assert result["status"] == "error"
        assert result["content"] == [{"text": "Error: ZeroDivisionError - division by zero"}]
        wrong = agent.tool.divide(a="one", record_direct_tool_call=record)
        assert "a: Input should be a valid integer" in str(wrong["content"])
        assert "b: field required" in str(wrong["content"])
    assert_valid(agent.messages)


def test_positional_arguments_are_no_arguments_of_the_tool() -> None:
    """The two that a call takes by position are those of the SDK."""
    agent = agent_with()
    with pytest.raises(TypeError):
        agent.tool.double(None, True, 4)  # type: ignore[call-arg]


@pytest.mark.filterwarnings("ignore:window_size=0")
@pytest.mark.parametrize("window_size", [0, 3])
def test_the_result_comes_back_even_when_the_window_drops_it_at_once(window_size: int) -> None:
    agent = agent_with(conversation_manager=SlidingWindowConversationManager(window_size=window_size))
    for number in range(3):
        assert agent.tool.double(number=number)["content"] == [{"text": str(number * 2)}]
    assert len(agent.messages) <= 4


def test_the_view_is_trimmed_after_a_recorded_call() -> None:
    """The SDK trims it too, but tells its store only with the next message."""
    agent = agent_with(conversation_manager=SlidingWindowConversationManager(window_size=6))
    for number in range(5):
        agent.tool.double(number=number)
    assert len(agent.messages) == 4
    assert_valid(agent.messages)


def test_a_recorded_call_is_durable_on_return_as_is_the_view(tmp_path: Path) -> None:
    def at(path: Path) -> Agent:
        manager = SQLiteSessionManager("s", path=path)
        window = SlidingWindowConversationManager(window_size=6)
        return agent_with("four", session_manager=manager, conversation_manager=window)

    first = at(tmp_path / "a.db")
    for number in range(3):
        first.tool.double(number=number)
    first.tool.remember(value=1)
    again = at(tmp_path / "a.db")
    assert again.messages == first.messages
    assert again.state.get() == {"remembered": "int"}
    assert str(again("What came last?")) == "four"


def test_the_model_is_shown_what_was_recorded() -> None:
    model = ScriptedModel(["eight"])
    agent = Agent(model, tools=TOOLS, callback_handler=None)
    agent.tool.double(number=4)
    agent.tool.double(number=5, record_direct_tool_call=False)
    agent("What was it?")
    assert len(model.calls[0].messages) == 5


# ------------------------------------------------------------------------------------------------------------- hooks


class Watch:
    """Notes which events came."""

    def __init__(self, agent: Agent) -> None:
        self.seen: list[str] = []
        for kind in (
            BeforeInvocationEvent,
            AfterInvocationEvent,
            BeforeModelCallEvent,
            BeforeToolsEvent,
            BeforeToolCallEvent,
            AfterToolCallEvent,
            MessageAddedEvent,
        ):
            agent.add_hook(self.note, kind)

    def note(self, event: Any) -> None:
        self.seen.append(type(event).__name__)


def test_hooks_hear_of_the_tool_and_of_the_messages_but_of_no_invocation() -> None:
    agent = agent_with()
    watch = Watch(agent)
    agent.tool.double(number=1, record_direct_tool_call=False)
    assert watch.seen == ["BeforeToolCallEvent", "AfterToolCallEvent"]
    watch.seen.clear()
    agent.tool.double(number=1)
    assert sorted(watch.seen) == sorted(["BeforeToolCallEvent", "AfterToolCallEvent", *["MessageAddedEvent"] * 4])


@pytest.mark.parametrize("record", [True, False])
def test_a_hook_that_says_no_or_changes_the_result_is_obeyed(record: bool) -> None:
    agent = agent_with(record_direct_tool_call=record)

    def before(event: BeforeToolCallEvent) -> None:
        if event.tool_use["input"] == {"number": 1}:
            event.cancel_tool = "not one"

    def after(event: AfterToolCallEvent) -> None:
        if event.cancel_message is None:
            event.result = {**event.result, "content": [{"text": "changed"}]}

    agent.add_hook(before)
    agent.add_hook(after)
    assert agent.tool.double(number=1)["content"] == [{"text": "not one"}]
    assert agent.tool.double(number=2)["content"] == [{"text": "changed"}]


@pytest.mark.parametrize("record", [True, False])
def test_a_guard_that_fails_fails_the_call_and_leaves_a_valid_history(record: bool) -> None:
    agent = agent_with("fine", record_direct_tool_call=record)

    def guard(event: BeforeToolCallEvent) -> None:
        raise PermissionError("not today")

    agent.add_hook(guard)
    with pytest.raises(HookFailed):
        agent.tool.double(number=1)
    assert_valid(agent.messages)
    assert str(agent("Go on.")) == "fine"


# -------------------------------------------------------------------------------------------------------- where from


@pytest.mark.anyio
async def test_the_asynchronous_spelling_runs_in_the_callers_loop() -> None:
    agent = agent_with()
    here = threading.get_ident()

    @tool
    async def where() -> int:
        """Name the thread."""
        await anyio.lowlevel.checkpoint()
        return threading.get_ident()

    agent = agent_with(tools=[where])
    for record in (True, False):
        result = await agent.tool.where.invoke_async(record_direct_tool_call=record)
        assert result["content"] == [{"text": str(here)}]
    assert len(agent.messages) == 4


@pytest.mark.real_time
def test_the_sync_spelling_works_inside_an_event_loop() -> None:
    """It blocks the loop, as every sync call does; that is why there is another spelling. (The guard of these tests
    refuses that on asyncio.)
    """
    agent = agent_with("fine")

    async def main() -> None:
        assert agent.tool.double(number=4)["content"] == [{"text": "8"}]
        assert str(await agent.invoke_async("go on")) == "fine"

    trio.run(main)
    assert len(agent.messages) == 6


@tool
async def nested(agent: Agent, record: bool) -> str:
    """Call another tool of the same agent."""
    result = await agent.tool.double.invoke_async(number=21, record_direct_tool_call=record)
    return str(result["content"][0]["text"])


@tool
def nested_sync(agent: Agent, record: bool) -> str:
    """Call another tool of the same agent."""
    return str(agent.tool.double(number=21, record_direct_tool_call=record)["content"][0]["text"])


@pytest.mark.real_time
@pytest.mark.anyio
@pytest.mark.parametrize("name", ["nested", "nested_sync"])
@pytest.mark.parametrize("where", ["lone", "held", "runtime", "runtime on disk"])
async def test_from_a_tool_an_unrecorded_call_works_and_a_recorded_one_is_refused(
    name: str, where: str, tmp_path: Path
) -> None:
    """Our decision for sync tools, too, which call from another thread and so from another event loop."""
    replies = [use(name, record=False), use(name, record=True), "done", "later"]
    tools = [double, nested, nested_sync]
    with anyio.fail_after(20):
        if where.startswith("runtime"):
            sessions = SQLiteSessions(tmp_path / "a.db") if where.endswith("disk") else None
            async with Runtime(sessions=sessions) as runtime:
                spec = AgentSpec(name="a", model=ScriptedModel(replies), tools=tools)
                session = runtime.agent(spec).session("s")
                await session.invoke("go")
                await session.invoke("again")
                messages = await session.messages()
        else:
            agent = agent_with(*replies, tools=tools)
            if where == "held":
                async with agent:
                    await agent.invoke_async("go")
                    await agent.invoke_async("again")
            else:
                await agent.invoke_async("go")
                await agent.invoke_async("again")
            messages = agent.messages
    worked, refused = [next(tool_results(message)) for message in messages if any(tool_results(message))]
    assert worked["content"] == [{"text": "42"}]
    assert refused["status"] == "error"
    assert "AgentBusy" in str(refused["content"]) or "open in another event loop" in str(refused["content"])
    assert_valid(messages)
    assert len(messages) == 8


@pytest.mark.anyio
@pytest.mark.parametrize("held", [True, False])
async def test_a_recorded_call_that_meets_a_turn_is_refused_with_the_way_out(held: bool) -> None:
    agent = agent_with("slow answer", "later")
    agent.model = ScriptedModel(["slow answer"], delay_s=5, loop=True)

    async def meet() -> None:
        await anyio.sleep(1)
        with pytest.raises(ConcurrencyException, match="Set record_direct_tool_call=False") as refused:
            await agent.tool.double.invoke_async(number=1)
        assert "in the middle of an invocation" in str(refused.value)
        unrecorded = await agent.tool.double.invoke_async(number=1, record_direct_tool_call=False)
        assert unrecorded["content"] == [{"text": "2"}]

    async def both() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(agent.invoke_async, "go")
            group.start_soon(meet)

    if held:
        async with agent:
            await both()
    else:
        await both()
    assert said(agent.messages) == ["user go", "assistant slow answer"]


@pytest.mark.real_time
def test_a_turn_in_one_thread_and_a_recorded_call_in_another_event_loop_do_not_mix() -> None:
    """Two event loops on one conversation would each write their own."""
    started, go_on = threading.Event(), threading.Event()

    @tool
    def hold() -> str:
        """Wait for the test."""
        started.set()
        assert go_on.wait(10)
        return "held"

    agent = agent_with(use("hold"), "done", "later", tools=[hold, double])
    worker = threading.Thread(target=lambda: anyio.run(agent.invoke_async, "go"))
    worker.start()
    assert started.wait(10)
    try:
        with pytest.raises(ConcurrencyException):
            agent.tool.double(number=1)
        with pytest.raises(ConcurrencyException):
            agent("me too")
        assert agent.tool.double(number=1, record_direct_tool_call=False)["content"] == [{"text": "2"}]
    finally:
        go_on.set()
        worker.join(10)
    assert str(agent("now")) == "later"
    assert len(agent.messages) == 6


def test_while_tools_have_no_result_yet_a_recorded_call_says_so() -> None:
    agent = agent_with(
        messages=[
            {"role": "user", "content": [{"text": "go"}]},
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "double", "input": {}}}]},
        ],
        conversation_manager=NullConversationManager(),
    )
    with pytest.raises(Invalid, match="cannot directly call tool during interrupt"):
        agent.tool.double(number=1)
    assert agent.tool.double(number=1, record_direct_tool_call=False)["content"] == [{"text": "2"}]
    assert_valid(agent.messages)


@pytest.mark.anyio
async def test_cancelling_a_direct_call_cancels_its_tool_and_leaves_a_valid_history() -> None:
    ended = anyio.Event()

    @tool
    async def hang() -> None:
        """Never end."""
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    agent = agent_with("fine", tools=[hang])
    for record in (True, False):
        with anyio.move_on_after(1):
            await agent.tool.hang.invoke_async(record_direct_tool_call=record)
        assert ended.is_set()
    assert_valid(agent.messages)
    assert str(await agent.invoke_async("go on")) == "fine"


@pytest.mark.anyio
async def test_a_tool_that_the_model_is_not_told_of_may_be_called_by_the_program() -> None:
    model = ScriptedModel([use("double", number=1), "no"])
    agent = Agent(model, tools=TOOLS, enabled_tools=["remember"], callback_handler=None)
    for record in (True, False):
        result = await agent.tool.double.invoke_async(number=4, record_direct_tool_call=record)
        assert result["content"] == [{"text": "8"}]
    await agent.invoke_async("go")
    assert [spec["name"] for spec in model.calls[0].tool_specs or ()] == ["remember"]
    assert "Unknown tool: double" in str(agent.messages[-2])


@pytest.mark.anyio
async def test_the_context_of_a_direct_call_is_a_tools_usual_one() -> None:
    seen: list[ToolContext] = []

    @tool
    async def look(tool_context: ToolContext, agent: Agent) -> str:
        """Look around."""
        await anyio.lowlevel.checkpoint()
        seen.append(tool_context)
        assert tool_context.agent is agent
        return "ok"

    agent = agent_with(tools=[look])
    for record in (True, False):
        await agent.tool.look.invoke_async(record_direct_tool_call=record)
    for context in seen:
        assert context.tool_use["name"] == "look"
        assert check_id(context.idempotency_key, "idempotency_token") == context.idempotency_key
        assert context.state is agent.state
        assert context.attempt == 1
    assert seen[0].idempotency_key != seen[1].idempotency_key


def test_the_toolbox_answers_directly() -> None:
    agent = agent_with(tools=[calculator])
    assert agent.tool.calculator(expression="sqrt(2) ** 2 > 1")["status"] == "error"
    assert agent.tool.calculator(expression="6 * 7")["content"] == [{"text": "42"}]


def test_names_that_begin_with_two_underscores_are_no_tools() -> None:
    """Libraries look for such attributes to find out what an object is."""
    agent = agent_with()
    assert not hasattr(agent.tool, "__array__")
    assert not hasattr(agent.tool, "__fspath__")
