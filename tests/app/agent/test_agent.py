"""The facade `Agent` with a scripted model: turns, tools, cancellation, calls that meet. No session, virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import anyio
import pytest

from repertory import Agent, AgentResult, NullConversationManager, ScriptedModel, SlidingWindowConversationManager, tool
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message, check_next, text_of, tool_results, tool_uses
from repertory.core.window.decision import WindowPlan
from repertory.errors import (
    AgentBusy,
    ContextWindowOverflowException,
    Invalid,
    ModelFailed,
    ModelStreamBroken,
    Throttled,
)

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


@tool(effects=False)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def slow(seconds: float) -> str:
    """Take a while."""
    await anyio.sleep(seconds)
    return "done"


def use(name: str, **arguments: object) -> dict[str, object]:
    return {"toolUse": {"name": name, "input": arguments}}


def uses(*blocks: dict[str, object]) -> list[dict[str, object]]:
    return list(blocks)


def assert_valid(messages: list[Message]) -> None:
    previous = None
    for message in messages:
        check_next(previous, message)
        previous = message


async def test_a_call_answers_and_keeps_the_conversation() -> None:
    model = ScriptedModel(["Hello Ann!", "You are Ann."])
    agent = Agent(model, callback_handler=None, system_prompt="Be kind.")
    result = await agent.invoke_async("I am Ann.")
    assert isinstance(result, AgentResult)
    assert str(result) == "Hello Ann!"
    assert result.stop_reason == "end_turn"
    assert str(await agent.invoke_async("Who am I?")) == "You are Ann."
    assert [text_of(message) for message in agent.messages] == ["I am Ann.", "Hello Ann!", "Who am I?", "You are Ann."]
    assert [len(call.messages) for call in model.calls] == [1, 3]
    assert model.calls[0].system_prompt == "Be kind."


async def test_a_tool_turn_runs_the_tool_and_shows_its_result_to_the_model() -> None:
    model = ScriptedModel([use("add", a=1, b=2), "3"])
    agent = Agent(model, tools=[add], callback_handler=None)
    result = await agent.invoke_async("1 + 2?")
    assert str(result) == "3"
    assert result.metrics.steps == 2
    assert result.metrics.tool_calls == {"add": 1}
    assert [next(tool_results(m))["content"] for m in agent.messages if any(tool_results(m))] == [[{"text": "3"}]]
    assert_valid(agent.messages)


async def test_tools_of_one_step_run_at_the_same_time() -> None:
    agent = Agent(
        ScriptedModel([uses(use("slow", seconds=10), use("slow", seconds=10)), "both done"]),
        tools=[slow],
        callback_handler=None,
    )
    began = anyio.current_time()
    await agent.invoke_async("go")
    assert anyio.current_time() - began < 15


async def test_a_tool_that_takes_too_long_is_reported_to_the_model() -> None:
    @tool(timeout_s=5)
    async def stuck() -> str:
        """Never end."""
        await anyio.sleep_forever()
        return "never"

    agent = Agent(ScriptedModel([use("stuck"), "sorry"]), tools=[stuck], callback_handler=None)
    with anyio.fail_after(60):
        await agent.invoke_async("go")
    result = next(tool_results(agent.messages[2]))
    assert result["status"] == "error"
    assert "did not finish within 5 s" in str(result["content"])


async def test_a_tool_that_raises_is_reported_to_the_model() -> None:
    @tool(effects=False)
    async def divide(a: int, b: int) -> float:
        """Divide."""
        return a / b

    agent = Agent(ScriptedModel([use("divide", a=1, b=0), "no"]), tools=[divide], callback_handler=None)
    await agent.invoke_async("go")
    assert "ZeroDivisionError" in str(next(tool_results(agent.messages[2]))["content"])


async def test_a_tool_that_nobody_has_is_reported_to_the_model_with_those_there_are() -> None:
    agent = Agent(ScriptedModel([use("nope"), "ok"]), tools=[add], callback_handler=None)
    await agent.invoke_async("go")
    text = str(next(tool_results(agent.messages[2]))["content"])
    assert "nope" in text
    assert "add" in text


async def test_tools_get_the_agent_and_change_its_state() -> None:
    @tool(effects=False)
    async def note(action: str, agent: Agent) -> str:
        """Note an action."""
        agent.state.set("actions", [*(agent.state.get("actions") or []), action])
        return "noted"

    agent = Agent(
        ScriptedModel([use("note", action="a"), use("note", action="b"), "done"]), tools=[note], callback_handler=None
    )
    await agent.invoke_async("go")
    assert agent.state.get("actions") == ["a", "b"]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (Throttled("slow down"), Throttled),
        (ModelStreamBroken("gone"), ModelStreamBroken),
        (RuntimeError("a bug in the model"), ModelFailed),
        (ContextWindowOverflowException("too long"), ContextWindowOverflowException),
    ],
)
async def test_a_model_that_fails_fails_the_call_with_a_typed_error_and_the_next_call_works(
    raised: Exception, expected: type[Exception]
) -> None:
    agent = Agent(
        ScriptedModel([raised, "better"]),
        callback_handler=None,
        conversation_manager=NullConversationManager(),
        retry_strategy=None,
    )
    with pytest.raises(expected):
        await agent.invoke_async("one")
    assert str(await agent.invoke_async()) == "better"
    assert [message["role"] for message in agent.messages] == ["user", "assistant"]


async def test_a_prompt_after_a_failed_turn_leaves_roles_alternating() -> None:
    agent = Agent(ScriptedModel([Throttled("no"), "yes"]), callback_handler=None, retry_strategy=None)
    with pytest.raises(Throttled):
        await agent.invoke_async("one")
    await agent.invoke_async("two")
    assert [message["role"] for message in agent.messages] == ["user", "assistant", "user", "assistant"]


async def test_an_overflow_is_answered_with_a_shorter_view() -> None:
    model = ScriptedModel(["a0", "a1", ContextWindowOverflowException("too long"), "a2"])
    agent = Agent(model, callback_handler=None, conversation_manager=SlidingWindowConversationManager(window_size=4))
    for number in range(3):
        await agent.invoke_async(f"q{number}")
    assert [text_of(message) for message in model.calls[-1].messages] == ["q1", "a1", "q2"]
    assert len(await agent.history()) == 6


async def test_the_window_slides_and_the_history_stays() -> None:
    model = ScriptedModel([f"a{n}" for n in range(10)])
    agent = Agent(model, callback_handler=None, conversation_manager=SlidingWindowConversationManager(window_size=4))
    for number in range(10):
        await agent.invoke_async(f"q{number}")
    assert [len(call.messages) for call in model.calls] == [1, 3, 5, 5, 5, 5, 5, 5, 5, 5]
    assert len(agent.messages) == 4
    assert len(await agent.history()) == 20


async def test_cancelling_the_scope_around_a_call_leaves_a_valid_history() -> None:
    agent = Agent(
        ScriptedModel([uses(use("slow", seconds=1), use("slow", seconds=1000)), "later"]),
        tools=[slow],
        callback_handler=None,
    )
    with anyio.move_on_after(10):
        await agent.invoke_async("go")
    assert str(await agent.invoke_async("and now?")) == "later"
    history = await agent.history()
    assert_valid(history)
    assert not any(tool_uses(history[-1]))


async def test_cancel_ends_the_turn_with_what_was_finished_by_then() -> None:
    agent = Agent(
        ScriptedModel([uses(use("slow", seconds=1), use("slow", seconds=1000))]), tools=[slow], callback_handler=None
    )
    results: list[AgentResult] = []

    async def call() -> None:
        results.append(await agent.invoke_async("go"))

    async with agent, anyio.create_task_group() as group:
        group.start_soon(call)
        await anyio.sleep(10)
        agent.cancel()
    assert [result.stop_reason for result in results] == ["cancelled"]
    statuses = [result["status"] for result in tool_results(agent.messages[-1])]
    assert statuses == ["success", "error"]
    assert_valid(agent.messages)


async def test_cancel_while_the_model_answers_keeps_nothing_of_the_partial_answer() -> None:
    agent = Agent(ScriptedModel(["a long answer", "whole"], delay_s=5, chunk=1), callback_handler=None)
    async with agent:
        with anyio.move_on_after(20):
            await agent.invoke_async("go")
        assert [message["role"] for message in agent.messages] == ["user"]
        assert str(await agent.invoke_async()) == "whole"


async def test_calls_that_meet_wait_their_turn_in_the_order_in_which_they_came() -> None:
    agent = Agent(ScriptedModel(["a", "b", "c"], delay_s=1), callback_handler=None)
    answers: dict[str, str] = {}

    async def call(prompt: str) -> None:
        answers[prompt] = str(await agent.invoke_async(prompt))

    async with agent, anyio.create_task_group() as group:
        for prompt in ("1", "2", "3"):
            group.start_soon(call, prompt)
            await anyio.sleep(0.1)
    assert answers == {"1": "a", "2": "b", "3": "c"}
    assert_valid(agent.messages)
    assert len(agent.messages) == 6


async def test_calls_that_meet_outside_any_block_wait_too() -> None:
    agent = Agent(ScriptedModel(["a", "b", "c"], delay_s=1), callback_handler=None)
    answers: list[str] = []

    async def call(prompt: str) -> None:
        answers.append(str(await agent.invoke_async(prompt)))

    async with anyio.create_task_group() as group:
        for prompt in ("1", "2", "3"):
            group.start_soon(call, prompt)
    assert sorted(answers) == ["a", "b", "c"]
    assert len(agent.messages) == 6


@pytest.mark.parametrize("held", [True, False])
async def test_busy_reject_refuses_the_second_call(held: bool) -> None:
    agent = Agent(ScriptedModel(["a"], delay_s=5), callback_handler=None, busy="reject")

    async def calls() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(agent.invoke_async, "1")
            await anyio.sleep(1)
            with pytest.raises(AgentBusy):
                await agent.invoke_async("2")

    if held:
        async with agent:
            await calls()
    else:
        await calls()
    assert len(agent.messages) == 2


@pytest.mark.parametrize("held", [True, False])
async def test_busy_interrupt_cancels_the_running_turn(held: bool) -> None:
    agent = Agent(ScriptedModel(["never said", "now"], delay_s=100), callback_handler=None)
    reasons: list[str] = []

    async def first() -> None:
        reasons.append((await agent.invoke_async("1")).stop_reason)

    async def calls() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(first)
            await anyio.sleep(1)
            assert str(await agent.invoke_async("2", busy="interrupt")) == "now"

    if held:
        async with agent:
            await calls()
    else:
        await calls()
    assert reasons == ["cancelled"]
    assert_valid(agent.messages)


async def test_busy_steer_adds_to_the_running_turn_and_shares_its_result() -> None:
    model = ScriptedModel([use("slow", seconds=5), "in French"])
    agent = Agent(model, tools=[slow], callback_handler=None)
    answers: list[str] = []

    async def first() -> None:
        answers.append(str(await agent.invoke_async("tell me")))

    async with agent, anyio.create_task_group() as group:
        group.start_soon(first)
        await anyio.sleep(1)
        answers.append(str(await agent.invoke_async("in French, please", busy="steer")))
    assert answers == ["in French", "in French"]
    assert {"text": "in French, please"} in model.calls[1].messages[-1]["content"]
    assert_valid(agent.messages)


async def test_a_stream_shows_the_pieces_then_the_messages_then_the_result() -> None:
    agent = Agent(ScriptedModel([use("add", a=1, b=2), "three it is"], chunk=5), tools=[add], callback_handler=None)
    kinds: list[str] = []
    pieces: list[object] = []
    async with aclosing(agent.stream_async("1 + 2?")) as events:
        async for event in events:
            if "event" not in event:
                kinds.append(next(iter(event)))
            pieces.extend([event["data"]] if "data" in event else [])
    assert "".join(map(str, pieces)) == "three it is"
    assert kinds[:4] == ["init_event_loop", "start", "start_event_loop", "type"]
    steps = [kind for kind in kinds[4:] if kind != "type"]
    assert steps[:4] == ["message", "tool_started", "tool_finished", "message"]
    assert kinds[-2:] == ["message", "result"]


async def test_leaving_a_stream_early_cancels_its_turn() -> None:
    agent = Agent(ScriptedModel(["a long answer", "whole"], delay_s=1, chunk=1), callback_handler=None)
    async with agent:
        async with aclosing(agent.stream_async("go")) as events:
            async for event in events:
                if "data" in event:
                    break
        assert str(await agent.invoke_async()) == "whole"
    assert_valid(agent.messages)


async def test_the_callback_handler_sees_every_event_and_its_request_state_is_returned() -> None:
    """Documented sample: request state."""

    def count(**event: object) -> None:
        state = event["request_state"]
        assert isinstance(state, dict)
        state["events"] = state.get("events", 0) + 1

    result = await Agent(ScriptedModel(["hi"]), callback_handler=count).invoke_async("hello")
    assert result.state["events"]


async def test_initial_messages_are_shown_to_the_model() -> None:
    model = ScriptedModel(["Ann"])
    history: list[Message] = [
        {"role": "user", "content": [{"text": "I am Ann"}]},
        {"role": "assistant", "content": [{"text": "Hi Ann"}]},
    ]
    agent = Agent(model, messages=history, callback_handler=None)
    assert agent.messages == history
    await agent.invoke_async("Who am I?")
    assert [text_of(message) for message in model.calls[0].messages] == ["I am Ann", "Hi Ann", "Who am I?"]


async def test_messages_are_copies() -> None:
    agent = Agent(ScriptedModel(["hi"]), callback_handler=None)
    await agent.invoke_async("hello")
    agent.messages[0]["content"].clear()
    assert text_of(agent.messages[0]) == "hello"


@pytest.mark.parametrize(
    "arguments",
    [
        {"busy": "later"},
        {"durability": "maybe"},
        {"unknown_tool_outcome": "hope"},
        {"state": 3},
        {"state": {"f": len}},
        {"tools": [len]},
        {"messages": [{"role": "system", "content": []}]},
        {"agent_id": "a/b"},
        {"model": 3},
    ],
)
async def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        Agent(**{"model": ScriptedModel(["x"]), **arguments})  # type: ignore[arg-type] - the point of the test


async def test_arguments_that_nobody_knows_are_refused() -> None:
    with pytest.raises(TypeError):
        Agent(ScriptedModel(["x"]), memory="lots")  # type: ignore[call-arg] - the point of the test


async def test_going_on_with_nothing_to_go_on_from_is_refused() -> None:
    with pytest.raises(Invalid):
        await Agent(ScriptedModel(["x"]), callback_handler=None).invoke_async()


class Clumsy(NullConversationManager):
    """A manager of somebody's own, with a bug that shows once."""

    stumbled = False

    def manage(self, shown: Sequence[Message]) -> WindowPlan:
        if len(shown) == 4 and not Clumsy.stumbled:
            Clumsy.stumbled = True
            raise ZeroDivisionError("a bug")
        return super().manage(shown)


async def test_a_manager_that_raises_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    Clumsy.stumbled = False
    model = ScriptedModel(["a0", "a1", "a2"])
    agent = Agent(model, callback_handler=None, conversation_manager=Clumsy())
    with anyio.fail_after(600):
        async with agent:
            for number in range(3):
                assert str(await agent.invoke_async(f"q{number}")) == f"a{number}"
            history = await agent.history()
    assert "was not shortened" in caplog.text
    assert [text_of(message) for message in history] == ["q0", "a0", "q1", "a1", "q2", "a2"]
    assert len(model.calls[-1].messages) == 5
