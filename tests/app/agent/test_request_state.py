"""The state of one request: shared by callback handlers, hooks and tools of a call, and given back with its result."""

from __future__ import annotations

import contextvars
import json
import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from repertory import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    AfterToolsEvent,
    Agent,
    AgentSpec,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    Runtime,
    ScriptedModel,
    ToolContext,
    tool,
)
from repertory.app.agent.printer import PrintingCallbackHandler
from repertory.backends.tools.function_tool import schema_class
from repertory.errors import Invalid, ModelFailed

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="nobody's")


@tool
async def stamp(tool_context: ToolContext) -> str:
    """Leave a mark."""
    await anyio.lowlevel.checkpoint()
    tool_context.invocation_state["request_state"]["tool"] = tool_context.invocation_state.get("given")
    return "stamped"


@tool
async def stop(tool_context: ToolContext) -> str:
    """Have the turn end."""
    await anyio.lowlevel.checkpoint()
    tool_context.invocation_state["request_state"]["stop_event_loop"] = True
    return "stopping"


def use(name: str, **arguments: object) -> dict[str, object]:
    return {"toolUse": {"name": name, "input": arguments}}


async def test_everybody_who_takes_part_in_a_call_writes_into_one_dictionary() -> None:
    def handler(*, request_state: dict[str, Any], **event: object) -> None:
        if "message" in event:
            request_state["handler"] = request_state.get("handler", 0) + 1

    agent = Agent(ScriptedModel([use("stamp"), "done"]), tools=[stamp], callback_handler=handler)
    kinds = [
        BeforeInvocationEvent,
        BeforeModelCallEvent,
        AfterModelCallEvent,
        BeforeToolsEvent,
        BeforeToolCallEvent,
        AfterToolCallEvent,
        AfterToolsEvent,
        AfterInvocationEvent,
    ]

    def note(event: Any) -> None:
        event.invocation_state["request_state"].setdefault("hooks", []).append(type(event).__name__)

    for kind in kinds:
        agent.add_hook(note, kind)
    given: dict[str, Any] = {"given": "by the caller"}
    result = await agent.invoke_async("go", invocation_state=given)

    assert result.state["tool"] == "by the caller"
    assert result.state["handler"] == 3
    assert set(result.state["hooks"]) == {kind.__name__ for kind in kinds}
    assert result.state is given["request_state"]
    assert given.keys() == {"given", "request_state"}, "nothing of ours stays in the caller's dictionary"


async def test_a_preset_is_kept_and_goes_on_from_call_to_call() -> None:
    agent = Agent(ScriptedModel([use("stamp"), "one", "two"]), tools=[stamp], callback_handler=None)
    given: dict[str, Any] = {"request_state": {"seed": 1}}
    first = await agent.invoke_async("go", invocation_state=given)
    assert first.state == {"seed": 1, "tool": None}
    second = await agent.invoke_async("go on", invocation_state=given)
    assert second.state is first.state is given["request_state"]


async def test_every_call_without_a_dictionary_has_a_fresh_one() -> None:
    agent = Agent(ScriptedModel([use("stamp"), "one", "two"]), tools=[stamp], callback_handler=None)
    assert (await agent.invoke_async("go")).state == {"tool": None}
    assert (await agent.invoke_async("go on")).state == {}


@pytest.mark.parametrize("given", [[], "text", {"request_state": None}, {"request_state": ["a"]}])
async def test_what_is_no_dictionary_is_refused_before_anything_is_said(given: Any) -> None:
    agent = Agent(ScriptedModel(["never"]), callback_handler=None)
    with pytest.raises(Invalid, match="is a dictionary"):
        await agent.invoke_async("go", invocation_state=given)
    assert agent.messages == []


async def test_values_that_json_cannot_say_pass_through_untouched() -> None:
    marker = object()
    agent = Agent(ScriptedModel([use("stamp"), "done"]), tools=[stamp], callback_handler=None)
    result = await agent.invoke_async("go", invocation_state={"given": marker})
    assert result.state["tool"] is marker


@pytest.mark.parametrize("who", ["tool", "handler", "hook", "caller"])
async def test_stop_event_loop_ends_the_turn_after_the_tools_that_run(who: str) -> None:
    """The SDK's early stop, whoever asks for it."""

    def ask(state: dict[str, Any]) -> None:
        state["stop_event_loop"] = True

    def handler(*, request_state: dict[str, Any], **event: object) -> None:
        if who == "handler" and "tool_started" in event:
            ask(request_state)

    model = ScriptedModel([[use("stop" if who == "tool" else "stamp"), use("stamp")], "never said", "later"])
    agent = Agent(model, tools=[stop, stamp], callback_handler=handler)

    def before(event: BeforeToolCallEvent) -> None:
        if who == "hook":
            ask(event.invocation_state["request_state"])

    agent.add_hook(before)
    preset = {"request_state": {"stop_event_loop": True}} if who == "caller" else None
    result = await agent.invoke_async("go", invocation_state=preset)
    assert result.stop_reason == "tool_use"
    assert result.message is None
    assert len(agent.messages) == 3
    assert len(model.calls) == 1
    assert str(await agent.invoke_async("go on")) == "never said"


async def test_a_handler_that_raises_is_logged_and_the_turn_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def handler(**event: object) -> None:
        if "message" in event:
            raise RuntimeError("a bug in the handler")

    agent = Agent(ScriptedModel(["fine"]), callback_handler=handler)
    assert str(await agent.invoke_async("go")) == "fine"
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage().partition(" error=")[0] for record in errors] == ["callback handler failed"]


async def test_an_asynchronous_handler_is_waited_for() -> None:
    seen: list[str] = []

    async def handler(**event: object) -> None:
        await anyio.sleep(1)
        seen.extend(event.keys() - {"request_state"})

    agent = Agent(ScriptedModel(["fine"]), callback_handler=handler)
    await agent.invoke_async("go")
    assert seen[-1] == "result"
    assert seen.count("message") == 1


async def test_a_handler_is_told_when_a_call_and_an_answer_begin_and_of_a_tools_input_as_it_comes() -> None:
    told: list[dict[str, Any]] = []
    model = ScriptedModel([use("stamp"), "done"])
    await Agent(model, tools=[stamp], callback_handler=lambda **event: told.append(event)).invoke_async("go")
    assert [next(iter(event)) for event in told].index("init_event_loop") == 0
    assert sum("start_event_loop" in event for event in told) == 2
    uses = [event["current_tool_use"] for event in told if "current_tool_use" in event]
    assert uses[-1]["name"] == "stamp"
    assert json.loads(uses[-1]["input"] or "{}") == {}


async def test_without_a_handler_nothing_is_printed_and_with_one_that_prints_the_answer_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await Agent(ScriptedModel([use("stamp"), "quiet"]), tools=[stamp], callback_handler=None).invoke_async("go")
    assert capsys.readouterr().out == ""
    model, printer = ScriptedModel([use("stamp"), "loud"], chunk=2), PrintingCallbackHandler()
    await Agent(model, tools=[stamp], callback_handler=printer).invoke_async("go")
    assert capsys.readouterr().out == "\nTool #1: stamp\nloud\n"


async def test_a_failed_call_leaves_what_was_noted_in_the_callers_dictionary() -> None:
    agent = Agent(ScriptedModel([use("stamp"), ModelFailed("no")]), tools=[stamp], callback_handler=None)
    given: dict[str, Any] = {}
    with pytest.raises(ModelFailed):
        await agent.invoke_async("go", invocation_state=given)
    assert given == {"request_state": {"tool": None}}


# ------------------------------------------------------------------------------------- the caller's context variables


@tool
async def who_async() -> str:
    """Say whose request it is."""
    await anyio.lowlevel.checkpoint()
    return request_id.get()


@tool
def who_sync() -> str:
    """Say whose request it is."""
    return request_id.get()


async def asking(call: Callable[[], Any], name: str) -> None:
    request_id.set(name)
    await call()


def answers(agent: Agent) -> list[str]:
    blocks = [block for message in agent.messages for block in message["content"] if "toolResult" in block]
    return [str(block["toolResult"]["content"][0]["text"]) for block in blocks]


@pytest.mark.real_time
@pytest.mark.parametrize("where", ["lone", "held", "runtime"])
async def test_tools_hooks_and_models_see_the_context_variables_of_their_own_caller(where: str) -> None:
    """Also when somebody else has opened the session, whose request may be over by now."""
    seen: list[str] = []

    def hook(event: BeforeModelCallEvent) -> None:
        seen.append(f"hook {request_id.get()}")

    async def call_both(agent: Agent, invoke: Callable[[str], Any]) -> None:
        agent.add_hook(hook, order=0)
        async with anyio.create_task_group() as group:
            group.start_soon(asking, lambda: invoke("go"), "ann's")
        async with anyio.create_task_group() as group:
            group.start_soon(asking, lambda: invoke("go"), "ben's")

    def scripted(*_: object) -> Any:
        seen.append(f"model {request_id.get()}")
        return [use("who_async"), use("who_sync")] if len(seen) in (2, 6) else "done"

    tools = [who_async, who_sync]
    with anyio.fail_after(20):
        if where == "runtime":
            async with Runtime() as runtime:
                spec = AgentSpec(name="a", model=ScriptedModel([scripted], loop=True), tools=tools)
                session = runtime.agent(spec).session("s")
                await call_both(session.agent, session.invoke)
                agent = session.agent
        else:
            agent = Agent(ScriptedModel([scripted], loop=True), tools=tools, callback_handler=None)
            if where == "held":
                async with agent:
                    await call_both(agent, agent.invoke_async)
            else:
                await call_both(agent, agent.invoke_async)
    assert seen == [f"{who} {name}" for name in ("ann's", "ben's") for who in ("hook", "model", "hook", "model")]
    assert answers(agent) == ["ann's", "ann's", "ben's", "ben's"]


def test_a_sync_call_brings_its_context_variables_too() -> None:
    agent = Agent(ScriptedModel([[use("who_async"), use("who_sync")], "done"]), tools=[who_async, who_sync])
    contextvars.copy_context().run(lambda: (request_id.set("script's"), agent("go")))
    assert answers(agent) == ["script's", "script's"]
    assert request_id.get() == "nobody's"
