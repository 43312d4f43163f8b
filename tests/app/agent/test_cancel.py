"""`agent.cancel()`: from a task, a thread, a hook or a tool; at once or after tools; with a last word or without."""

from __future__ import annotations

import threading
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from repertory import (
    AfterInvocationEvent,
    Agent,
    AgentResult,
    AgentSpec,
    BeforeInvocationEvent,
    BeforeToolsEvent,
    HookEvent,
    Runtime,
    ScriptedModel,
    ToolContext,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import STOPPED_TEXT, text_of, tool_results
from repertory.errors import Throttled
from tests.app.orchestration.recorder import EVENT_TYPES, On, add, slow, use
from tests.service.histories import check_history

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def agent_with(*replies: Any, **options: Any) -> Agent:
    options = {"tools": [add, slow], "callback_handler": None, **options}
    return Agent(ScriptedModel(list(replies)), **options)


async def cancelled_after(agent: Agent, seconds: float, *rest: float, **how: Any) -> AgentResult:
    """The result of a call that is cancelled after so many seconds, and perhaps again later."""
    results: list[AgentResult] = []
    over = anyio.Event()

    async def call() -> None:
        results.append(await agent.invoke_async("go"))
        over.set()

    async with agent, anyio.create_task_group() as group:
        group.start_soon(call)
        await anyio.sleep(seconds)
        agent.cancel(**how)
        for more in rest:
            await anyio.sleep(more)
            agent.cancel()
        with anyio.fail_after(2000):
            await over.wait()
    return results[0]


def results_of(agent: Agent) -> list[str]:
    return [result["status"] for message in agent.messages for result in tool_results(message)]


async def test_a_message_becomes_the_answer() -> None:
    agent = agent_with(use("slow", seconds=1000), "and on")
    result = await cancelled_after(agent, 10, message="stopped by Ann")
    assert (result.stop_reason, str(result)) == ("cancelled", "stopped by Ann")
    assert [message["role"] for message in agent.messages] == ["user", "assistant", "user", "assistant"]
    assert text_of(agent.messages[-1]) == "stopped by Ann"
    assert str(await agent.invoke_async("and?")) == "and on"


async def test_the_message_may_stand_first() -> None:
    agent = agent_with("slowly")
    agent.model = ScriptedModel(["slowly"], delay_s=100)
    results: list[AgentResult] = []

    async def call() -> None:
        results.append(await agent.invoke_async("go"))

    async with agent, anyio.create_task_group() as group:
        group.start_soon(call)
        await anyio.sleep(10)
        agent.cancel("enough")
    assert str(results[0]) == "enough"


async def test_after_current_tools_lets_them_end() -> None:
    both = [use("slow", seconds=20), use("slow", seconds=50)]
    agent = agent_with(both, "never")
    result = await cancelled_after(agent, 10, after_current_tools=True, message="after them")
    assert (result.stop_reason, str(result)) == ("cancelled", "after them")
    assert results_of(agent) == ["success", "success"]


async def test_after_current_tools_while_the_model_answers_lets_the_tools_of_that_answer_end() -> None:
    agent = agent_with()
    agent.model = ScriptedModel([use("slow", seconds=20), "never"], delay_s=5)
    result = await cancelled_after(agent, 7, after_current_tools=True)
    assert result.stop_reason == "cancelled"
    assert results_of(agent) == ["success"]


async def test_a_cancellation_at_once_overtakes_one_that_waits_for_tools() -> None:
    agent = agent_with(use("slow", seconds=1000), "never")
    with anyio.fail_after(100):
        result = await cancelled_after(agent, 10, 10, after_current_tools=True, message="later")
    assert result.stop_reason == "cancelled"
    assert results_of(agent) == ["error"]


@pytest.mark.parametrize("held", [False, True], ids=["by itself", "in a block"])
async def test_a_call_is_cancelled_however_soon_after_its_beginning(held: bool) -> None:
    """While its session opens, while it waits in the mailbox, and when its turn has begun."""
    for steps in range(40):
        agent = agent_with()
        agent.model = ScriptedModel(["too late"], delay_s=1000)
        results: list[AgentResult] = []

        async def call(agent: Agent = agent, results: list[AgentResult] = results) -> None:
            results.append(await agent.invoke_async("go"))

        async def cancel(agent: Agent = agent, steps: int = steps) -> None:
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            agent.cancel("enough")

        async with AsyncExitStack() as stack:
            if held:
                await stack.enter_async_context(agent)
            with anyio.fail_after(100):
                async with anyio.create_task_group() as group:
                    group.start_soon(call)
                    group.start_soon(cancel)
        assert [(result.stop_reason, str(result)) for result in results] == [("cancelled", "enough")], steps


async def test_the_first_of_two_decides() -> None:
    agent = agent_with(use("slow", seconds=1000), "never")
    assert str(await cancelled_after(agent, 10, 0, message="first")) == "first"


async def test_cancelling_when_nothing_runs_ends_the_next_call_alone_and_stores_nothing() -> None:
    agent = agent_with("one", "two")
    agent.cancel()
    result = await agent.invoke_async("a")
    assert (result.stop_reason, str(result), agent.messages) == ("cancelled", "Cancelled by user", [])
    assert str(await agent.invoke_async("b")) == "one"
    async with agent:
        agent.cancel("not this one")
        assert str(await agent.invoke_async("c")) == "not this one"
        events = [event async for event in agent.stream_async("d")]
    assert str(events[-1]["result"]) == "two"


async def test_a_signal_that_was_set_before_ends_every_call_it_is_given_to() -> None:
    agent, signal = agent_with("one"), threading.Event()
    signal.set()
    for _ in range(2):
        result = await agent.invoke_async("a", cancel_signal=signal)
        assert (result.stop_reason, agent.messages) == ("cancelled", [])
    assert signal.is_set()
    assert not agent.cancel_signal.is_set()
    assert str(await agent.invoke_async("a", cancel_signal=threading.Event())) == "one"


async def test_a_signal_cuts_a_tool_short_and_one_that_is_left_behind_in_its_thread_sees_it() -> None:
    signal, seen = threading.Event(), list[threading.Event]()

    @tool(context=True)
    async def wait(tool_context: ToolContext) -> str:
        """Wait."""
        seen.append(tool_context.cancel_signal)
        signal.set()
        await anyio.sleep_forever()
        return ""

    agent = agent_with(use("wait"), "never", tools=[wait])
    with anyio.fail_after(100):
        result = await agent.invoke_async("go", cancel_signal=signal)
    assert (result.stop_reason, results_of(agent)) == ("cancelled", ["error"])
    assert seen[0].is_set()


async def test_a_tool_that_watches_the_signal_ends_by_itself_and_its_result_stays() -> None:
    @tool(context=True)
    async def watch(tool_context: ToolContext) -> str:
        """Watch."""
        while not tool_context.cancel_signal.is_set():  # noqa: ASYNC110 - A signal of threads.
            await anyio.sleep(0.5)
        return "tidied up"

    agent = agent_with([use("watch"), use("add", a=1, b=1)], "never", tools=[watch, add], tool_execution="sequential")
    result = await cancelled_after(agent, 3.2)
    assert (result.stop_reason, results_of(agent)) == ("cancelled", ["success", "error"])
    check_history(agent.messages)


async def test_a_tool_that_watches_the_signal_and_goes_on_is_cut_short() -> None:
    @tool(context=True)
    async def stubborn(tool_context: ToolContext) -> str:
        """Look, and go on."""
        while not tool_context.cancel_signal.is_set():  # noqa: ASYNC110 - A signal of threads.
            await anyio.sleep(0.5)
        await anyio.sleep_forever()
        return ""

    agent = agent_with(use("stubborn"), "never", tools=[stubborn])
    assert (await cancelled_after(agent, 3)).stop_reason == "cancelled"
    assert results_of(agent) == ["error"]


@pytest.mark.real_time
async def test_a_synchronous_tool_that_stops_its_turn_sees_the_signal_and_returns_its_result() -> None:
    seen: list[bool] = []

    @tool(context=True)
    def finish(tool_context: ToolContext) -> str:
        """Finish."""
        tool_context.agent.cancel()
        seen.extend((tool_context.cancel_signal.is_set(), tool_context.agent.cancel_signal.is_set()))
        return "finished"

    agent = agent_with(use("finish"), "never", tools=[finish])
    result = await agent.invoke_async("go")
    assert (result.stop_reason, seen, results_of(agent)) == ("cancelled", [True, True], ["success"])


@pytest.mark.real_time
async def test_a_synchronous_tool_reads_the_signal_that_the_caller_has_set() -> None:
    signal, seen = threading.Event(), list[bool]()

    @tool(context=True)
    def probe(tool_context: ToolContext) -> str:
        """Set the caller's signal."""
        signal.set()
        seen.append(tool_context.cancel_signal.wait(30))
        return "done"

    agent = agent_with(use("probe"), "never", tools=[probe])
    result = await agent.invoke_async("go", cancel_signal=signal)
    assert (result.stop_reason, seen, results_of(agent)) == ("cancelled", [True], ["success"])


async def test_a_model_that_names_the_signal_gets_it_and_may_set_it() -> None:
    class Watching(ScriptedModel):
        async def stream(  # type: ignore[override]
            self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, *, cancel_signal: Any, **rest: Any
        ) -> Any:
            assert rest.keys().isdisjoint({"invocation_state", "agent_metadata"})
            cancel_signal.set()
            async for event in super().stream(messages, tool_specs, system_prompt):
                yield event

    agent = agent_with()
    agent.model = Watching(["too late"])
    result = await agent.invoke_async("go")
    assert (result.stop_reason, str(result)) == ("cancelled", f"too late\n{STOPPED_TEXT}")
    assert [message["role"] for message in agent.messages] == ["user", "assistant"]
    assert result.metrics.steps == 1


async def test_only_the_running_turn_is_cancelled() -> None:
    agent = agent_with(use("slow", seconds=1000), "second")
    results: dict[str, AgentResult] = {}

    async def call(prompt: str) -> None:
        results[prompt] = await agent.invoke_async(prompt)

    async with agent, anyio.create_task_group() as group:
        group.start_soon(call, "one")
        await anyio.sleep(1)
        group.start_soon(call, "two")
        await anyio.sleep(1)
        agent.cancel()
        agent.cancel()
    assert {prompt: result.stop_reason for prompt, result in results.items()} == {"one": "cancelled", "two": "end_turn"}


async def test_while_waiting_to_ask_the_model_again() -> None:
    agent = agent_with(Throttled("slow down", retry_after_s=500), "never")
    began = anyio.current_time()
    result = await cancelled_after(agent, 10)
    assert result.stop_reason == "cancelled"
    assert anyio.current_time() - began < 15


@pytest.mark.parametrize("kind", EVENT_TYPES[1:], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_from_a_hook_at_any_event_nothing_begins_after_it(kind: type[HookEvent], asynchronous: bool) -> None:
    """Neither the model nor a tool, however quick: what the hook has asked for is heard before anything else."""
    ran: list[str] = []

    @tool
    async def quick() -> str:
        """Be quick."""
        ran.append("tool")
        return "done"

    def ask(*rest: object) -> Any:
        ran.append("model")
        return use("quick") if "tool" not in ran else "end"

    def cancel(event: HookEvent) -> None:
        event.agent.cancel()
        ran.append("cancelled")

    async def cancel_later(event: HookEvent) -> None:
        await anyio.sleep(1)
        cancel(event)

    agent = Agent(
        ScriptedModel([ask], loop=True),
        tools=[quick],
        callback_handler=None,
        hooks=[On(kind, cancel_later if asynchronous else cancel)],
    )
    result = await agent.invoke_async("go")
    assert [step for step in ran[ran.index("cancelled") :] if step != "cancelled"] == []
    late = kind is AfterInvocationEvent
    assert result.stop_reason == ("end_turn" if late else "cancelled")
    check_history([*agent.messages, {"role": "assistant", "content": [{"text": "closed"}]}])


@pytest.mark.parametrize("after", [True, False])
async def test_from_a_tool(after: bool) -> None:
    @tool
    async def stop(agent: Agent) -> str:
        """Stop."""
        agent.cancel(message="the tool said so", after_current_tools=after)
        return "stopping"

    agent = agent_with([use("stop"), use("slow", seconds=20)], "never", tools=[stop, slow])
    result = await agent.invoke_async("go")
    assert (result.stop_reason, str(result)) == ("cancelled", "the tool said so")
    assert results_of(agent) == (["success", "success"] if after else ["success", "error"])


async def test_from_a_hook_in_a_runtime() -> None:
    spec = AgentSpec(
        model=ScriptedModel([use("add", a=1, b=2), "again"]),
        tools=[add],
        hooks=[On(BeforeToolsEvent, lambda event: event.agent.cancel(message="no tools"))],
    )
    async with Runtime() as runtime:
        session = runtime.agent(spec).session("s")
        result = await session.invoke("go")
        assert (result.stop_reason, str(result)) == ("cancelled", "no tools")
        assert str(await session.invoke("and?")) == "again"


async def test_of_one_of_two_calls_that_meet_in_a_runtime() -> None:
    """The end of the first call does not take the second one's cancellation away."""
    agent = agent_with("one", use("slow", seconds=1000))
    results: list[AgentResult] = []

    async def call(prompt: str) -> None:
        results.append(await agent.invoke_async(prompt))

    async with Runtime(), anyio.create_task_group() as group:
        group.start_soon(call, "1")
        group.start_soon(call, "2")
        await anyio.sleep(10)
        agent.cancel()
    assert [result.stop_reason for result in results] == ["end_turn", "cancelled"]


@pytest.mark.real_time
async def test_from_a_thread() -> None:
    begun = threading.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        begun.set()
        await anyio.sleep_forever()
        return ""

    agent = agent_with(use("wait"), "never", tools=[wait])
    thread = threading.Thread(target=lambda: (begun.wait(20), agent.cancel(message="from outside")))
    thread.start()
    with anyio.fail_after(20):
        result = await agent.invoke_async("go")
    thread.join(20)
    assert (result.stop_reason, str(result)) == ("cancelled", "from outside")


def test_from_a_thread_while_sync_code_waits() -> None:
    begun = threading.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        begun.set()
        await anyio.sleep_forever()
        return ""

    agent = agent_with(use("wait"), "and on", tools=[wait])
    thread = threading.Thread(target=lambda: (begun.wait(20), agent.cancel()))
    thread.start()
    assert agent("go").stop_reason == "cancelled"
    thread.join(20)
    assert str(agent("again")) == "and on"


async def test_before_anything_was_said_nothing_is_stored() -> None:
    def cancel(event: BeforeInvocationEvent) -> None:
        event.agent.cancel()

    agent = agent_with("never", hooks=[On(BeforeInvocationEvent, cancel)])
    result = await agent.invoke_async("go")
    assert result.stop_reason == "cancelled"
    assert agent.messages == []
