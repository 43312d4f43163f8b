"""Plugins: hooks and tools given to an agent as one object."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from repertory import (
    Agent,
    AgentInitializedEvent,
    AgentSpec,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    MessageAddedEvent,
    Plugin,
    Runtime,
    ScriptedModel,
    hook,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import text_of, tool_results
from repertory.errors import HookFailed, Invalid
from tests.actors.toy_tool_source import ToySource
from tests.app.orchestration.recorder import On, add, use

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


class Audit(Plugin):
    """Writes down what is said, and lets the model read it."""

    name = "audit"

    def __init__(self) -> None:
        self.lines: list[str] = []

    @hook
    def on_message(self, event: MessageAddedEvent) -> None:
        self.lines.append(text_of(event.message))

    @hook
    async def on_call(self, event: BeforeInvocationEvent | BeforeModelCallEvent) -> None:
        await anyio.lowlevel.checkpoint()
        self.lines.append(type(event).__name__)

    @tool
    def audit_log(self) -> str:
        """What was said so far."""
        return " | ".join(self.lines)


def agent_with(*replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(list(replies)), **{"callback_handler": None, **options})


async def test_a_plugin_brings_its_hooks_and_tools() -> None:
    audit = Audit()
    agent = agent_with(use("add", a=1, b=2), "3", plugins=[audit], tools=[add])
    await agent.invoke_async("hi")
    assert agent.tool_names == ["add", "audit_log"]
    before, model = "BeforeInvocationEvent", "BeforeModelCallEvent"
    assert audit.lines == [before, "hi", model, "", "", model, "3"]


@pytest.mark.real_time
async def test_a_tool_of_a_plugin_is_bound_to_it() -> None:
    audit = Audit()
    agent = agent_with(use("audit_log"), "ok", plugins=[audit])
    await agent.invoke_async("hi")
    (result,) = tool_results(agent.messages[2])
    assert result["content"] == [{"text": "BeforeInvocationEvent | hi | BeforeModelCallEvent | "}]


async def test_hooks_run_in_the_order_given_and_those_of_plugins_after_them() -> None:
    notes: list[str] = []

    class Noted(Plugin):
        def __init__(self, name: str) -> None:
            self.name = name

        @hook
        def note(self, event: BeforeModelCallEvent) -> None:
            notes.append(self.name)

    agent = agent_with(
        "a",
        plugins=[Noted("first plugin"), Noted("second plugin")],
        hooks=[On(BeforeModelCallEvent, lambda event: notes.append("hook"))],
    )
    agent.add_hook(lambda event: notes.append("added"), BeforeModelCallEvent)
    await agent.invoke_async("hi")
    assert notes == ["hook", "first plugin", "second plugin", "added"]


async def test_one_plugin_serves_many_agents() -> None:
    audit = Audit()
    for text in ("one", "two"):
        await agent_with("a", plugins=[audit]).invoke_async(text)
    assert [line for line in audit.lines if line in ("one", "two")] == ["one", "two"]


@pytest.mark.parametrize(
    "plugins",
    [[Audit(), Audit()], ["audit"], [Audit], [Plugin()], "audit", 5, [None]],
    ids=["same name", "name", "class", "no name", "text", "number", "none"],
)
def test_what_is_no_plugin_and_two_of_one_name_are_refused(plugins: Any) -> None:
    with pytest.raises(ValueError, match="plugin"):
        agent_with(plugins=plugins)


def test_a_tool_of_a_plugin_with_the_name_of_another_is_refused() -> None:
    @tool
    def audit_log() -> str:
        """Another log."""
        return ""

    with pytest.raises(Invalid, match="same name"):
        agent_with(plugins=[Audit()], tools=[audit_log])


def test_a_hook_without_an_event_in_its_annotation_is_refused() -> None:
    with pytest.raises(Invalid, match="annotation"):

        class Wrong(Plugin):
            @hook
            def note(self, event) -> None:  # type: ignore[no-untyped-def]
                ...


async def test_a_hook_may_be_marked_with_parentheses_and_name_an_event_that_is_defined_below() -> None:
    seen: list[str] = []

    class Early(Plugin):
        name = "early"

        @hook()
        def note(self, event: Below) -> None:
            seen.append(type(event).__name__)

    assert await agent_with("yes", plugins=[Early()]).invoke_async("go")
    assert seen == ["BeforeInvocationEvent"]


def test_hooks_and_tools_are_inherited_and_may_be_replaced() -> None:
    class Quiet(Audit):
        name = "quiet"

        @hook
        def on_message(self, event: MessageAddedEvent) -> None: ...

        @hook
        def another(self, event: MessageAddedEvent) -> None: ...

        @tool
        def second(self) -> str:
            """Second."""
            return ""

    quiet = Quiet()
    assert [one.__name__ for one in quiet.hooks] == ["on_message", "on_call", "another"]
    assert [one.name for one in quiet.tools] == ["audit_log", "second"]
    assert quiet.hooks[0].__func__ is Quiet.on_message


def test_a_method_that_takes_the_place_of_a_hook_without_being_one_is_none() -> None:
    class Unhooked(Audit):
        def on_message(self, event: MessageAddedEvent) -> None: ...

    assert [one.__name__ for one in Unhooked().hooks] == ["on_call"]


async def test_init_agent_may_do_more_with_an_agent_that_has_its_hooks_and_tools() -> None:
    seen: list[Any] = []

    class More(Audit):
        def init_agent(self, agent: Agent) -> None:
            seen.append((agent.tool_names, agent.hooks.has_callbacks()))
            agent.add_hook(lambda event: seen.append("called"), BeforeModelCallEvent)

    await agent_with("a", plugins=[More()]).invoke_async("hi")
    assert seen == [(["audit_log"], True), "called"]


class Late(Plugin):
    """A plugin that takes a while to be ready."""

    name = "late"

    def __init__(self, *, failures: int = 0) -> None:
        self.ready: list[Agent] = []
        self._failures = failures

    async def init_agent(self, agent: Agent) -> None:
        await anyio.sleep(5)
        if self._failures:
            self._failures -= 1
            raise ConnectionError("not yet")
        self.ready.append(agent)

    @hook
    def first(self, event: BeforeInvocationEvent) -> None:
        assert event.agent in self.ready

    @hook
    def initialized(self, event: AgentInitializedEvent) -> None:
        assert event.agent in self.ready
        self.ready.append(event.agent)


@pytest.mark.parametrize("held", [True, False])
async def test_an_asynchronous_init_is_awaited_before_the_first_call_and_once(held: bool) -> None:
    late = Late()
    agent = agent_with("a", "b", plugins=[late])
    assert late.ready == []
    if held:
        async with agent:
            await agent.invoke_async("hi")
    else:
        await agent.invoke_async("hi")
    await agent.invoke_async("ho")
    assert late.ready == [agent, agent]


async def test_an_init_that_returns_an_awaitable_is_awaited_too() -> None:
    class Returning(Late):
        def init_agent(self, agent: Agent) -> Awaitable[None]:  # type: ignore[override]
            return super().init_agent(agent)

    late = Returning()
    await agent_with("a", plugins=[late]).invoke_async("hi")
    assert len(late.ready) == 2


async def test_an_init_that_fails_fails_the_call_and_is_tried_again_by_the_next() -> None:
    late = Late(failures=1)
    agent = agent_with("a", plugins=[late])
    with pytest.raises(HookFailed, match="late") as caught:
        await agent.invoke_async("hi")
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert str(await agent.invoke_async("hi")) == "a"
    assert late.ready == [agent, agent]


async def test_two_first_calls_at_once_wait_for_one_init() -> None:
    late = Late()
    agent = agent_with("a", "b", plugins=[late])
    async with anyio.create_task_group() as group:
        group.start_soon(agent.invoke_async, "hi")
        group.start_soon(agent.invoke_async, "ho")
    assert late.ready == [agent, agent]


def test_an_asynchronous_init_that_nobody_waits_for_leaves_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    agent_with("a", plugins=[Late()])
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]


async def test_plugins_of_a_spec_prepare_the_agent_of_each_session() -> None:
    late, audit = Late(), Audit()
    prepared: list[Agent] = []

    class Counting(Plugin):
        name = "counting"

        def init_agent(self, agent: Agent) -> None:
            prepared.append(agent)

    spec = AgentSpec(model=ScriptedModel(["a", "b"]), plugins=[late, audit, Counting()])
    async with Runtime() as runtime:
        helper = runtime.agent(spec)
        assert prepared == []
        one, two = helper.session("one"), helper.session("two")
        await one.invoke("hi")
        await two.invoke("ho")
        assert prepared == [one.agent, two.agent]
        assert late.ready == [one.agent, one.agent, two.agent, two.agent]
        assert one.agent.tool_names == ["audit_log"]


async def test_a_spec_with_plugins_that_do_not_fit_is_refused_at_once() -> None:
    async with Runtime() as runtime:
        with pytest.raises(Invalid, match="same name"):
            runtime.agent(AgentSpec(model=ScriptedModel([]), plugins=[Audit(), Audit()]))


async def test_what_a_program_takes_out_of_a_plugin_is_not_registered() -> None:
    audit = Audit()
    audit.hooks[:] = [each for each in audit.hooks if each.__name__ != "on_call"]
    audit.tools.clear()
    agent = Agent(ScriptedModel(["yes"]), plugins=[audit], callback_handler=None)
    await agent.invoke_async("are you there")
    assert (audit.lines, agent.tool_names) == (["are you there", "yes"], [])
    assert len(Audit().hooks) == 2


Below = BeforeInvocationEvent


async def test_the_tools_of_plugins_in_a_runtime_stand_beside_those_of_servers() -> None:
    model = ScriptedModel(["hello"])
    async with Runtime() as runtime:
        spec = AgentSpec(name="clerk", model=model, tools=[ToySource(), add], plugins=[Audit()])
        await runtime.agent(spec).session("s").invoke("hi")
    assert [spec["name"] for spec in model.calls[-1].tool_specs or ()] == ["echo", "hang", "add", "audit_log"]
