"""Hooks that fail: observers change nothing, guards fail the turn, and the history stays one that can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from repertory import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    Agent,
    AgentInitializedEvent,
    AgentSpec,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    HookEvent,
    MessageAddedEvent,
    Runtime,
    ScriptedModel,
    SQLiteSessionManager,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message, text_of, tool_results
from repertory.errors import HookFailed, RepertoryError, Throttled
from tests.app.orchestration.recorder import EVENT_TYPES, On, Recorder, add, slow, use
from tests.service.histories import check_history

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

KINDS = EVENT_TYPES[1:]
OBSERVED = [kind for kind in KINDS if not kind.guards]
GUARDED = [kind for kind in KINDS if kind.guards]


def agent_with(*replies: Any, **options: Any) -> Agent:
    options = {"tools": [add, slow], "callback_handler": None, "retry_strategy": None, **options}
    return Agent(ScriptedModel(list(replies)), **options)


def named(kind: type[HookEvent]) -> str:
    return kind.__name__


class Once:
    """A callback that raises the first time, or at the given time, and never again."""

    def __init__(self, error: Exception, *, at: int = 1) -> None:
        self._error = error
        self._left = at

    async def __call__(self, event: HookEvent) -> None:
        await anyio.sleep(1)
        self._left -= 1
        if self._left == 0:
            raise self._error


@pytest.mark.parametrize("kind", OBSERVED, ids=named)
async def test_an_observer_that_raises_is_logged_and_changes_nothing(
    kind: type[HookEvent], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: HookEvent) -> None:
        raise RuntimeError("a bug in the hook")

    told, silent = Recorder(), Recorder()
    agent = agent_with(use("add", a=1, b=2), "3", hooks=[On(kind, fail), told])
    assert str(await agent.invoke_async("1 + 2?")) == "3"
    other = agent_with(use("add", a=1, b=2), "3", hooks=[silent])
    await other.invoke_async("1 + 2?")
    assert told.order == silent.order
    assert [text_of(message) for message in agent.messages] == [text_of(message) for message in other.messages]
    assert {record.message.partition(" event=")[0] for record in caplog.records} == {"hook failed"}


@pytest.mark.parametrize("failure", [RuntimeError("a bug"), Throttled("one call a minute")], ids=["bug", "ours"])
@pytest.mark.parametrize("kind", KINDS, ids=named)
async def test_a_guard_that_raises_fails_the_turn_and_the_next_call_works(
    kind: type[HookEvent], failure: Exception
) -> None:
    recorder = Recorder(AfterInvocationEvent)
    agent = agent_with(use("add", a=1, b=2), "3", "4", hooks=[On(kind, Once(failure), guard=True), recorder])
    with pytest.raises(HookFailed if isinstance(failure, RuntimeError) else Throttled) as caught:
        await agent.invoke_async("1 + 2?")
    assert caught.value is failure or caught.value.__cause__ is failure
    assert len(recorder.events) == 1
    check_history([*agent.messages, {"role": "assistant", "content": [{"text": "closed"}]}])
    assert str(await agent.invoke_async("again")) in ("", "3", "4")
    check_history(await agent.history())


@pytest.mark.parametrize("at", range(1, 5))
async def test_a_guard_of_added_messages_may_fail_at_any_of_them(at: int) -> None:
    """Even at tool results, which are then stored without what the guard did not let pass."""
    agent = agent_with(
        use("add", a=1, b=2),
        "3",
        "fine",
        hooks=[On(MessageAddedEvent, Once(RuntimeError("secret"), at=at), guard=True)],
    )
    with pytest.raises(HookFailed):
        await agent.invoke_async("1 + 2?")
    history = await agent.history()
    check_history([*history, {"role": "assistant", "content": [{"text": "closed"}]}])
    assert len(history) == {1: 0, 2: 1, 3: 3, 4: 3}[at]
    if at == 3:
        (withheld,) = tool_results(history[2])
        assert withheld["status"] == "error"
        assert "withheld" in str(withheld["content"])
        assert "'3'" not in str(history)


@pytest.mark.parametrize("execution", ["concurrent", "sequential"])
@pytest.mark.parametrize("kind", [BeforeToolCallEvent, AfterToolCallEvent], ids=named)
async def test_a_guard_of_one_tool_among_several_says_of_each_what_became_of_it(
    kind: type[HookEvent], execution: Any
) -> None:
    ran: list[int] = []

    @tool
    async def work(number: int) -> str:
        """Work."""
        await anyio.sleep(number)
        ran.append(number)
        return f"worked {number}"

    def second(event: Any) -> None:
        if event.tool_use["input"]["number"] == 2:
            raise RuntimeError("not this one")

    agent = agent_with(
        [use("work", number=n) for n in (1, 2, 3)],
        "fine",
        tools=[work],
        tool_execution=execution,
        hooks=[On(kind, second, guard=True)],
    )
    with pytest.raises(HookFailed, match="not this one"):
        await agent.invoke_async("go")
    texts = [str(result["content"][0]["text"]) for result in tool_results(agent.messages[-1])]
    for number, text in zip((1, 2, 3), texts, strict=True):
        if number not in ran:
            assert text == "Not run: a hook failed."
        else:
            withheld = "The tool ran, but its result is withheld: a hook failed."
            assert text == (withheld if number == 2 else f"worked {number}")
    if kind is BeforeToolCallEvent:
        assert ran == ([] if execution == "concurrent" else [1])
    else:
        assert ran == ([1, 2, 3] if execution == "concurrent" else [1, 2])
    assert str(await agent.invoke_async("go on")) == "fine"


async def test_a_guard_that_fails_in_the_middle_of_a_stream_ends_it_with_the_error() -> None:
    agent = agent_with(use("add", a=1, b=2), "3", hooks=[On(BeforeToolsEvent, Once(RuntimeError("no")))])
    seen: list[str] = []
    with pytest.raises(HookFailed):
        async for event in agent.stream_async("1 + 2?"):
            seen.extend(event)
    assert "result" not in seen
    assert seen.count("message") == 2
    assert seen[-2:] == ["force_stop", "force_stop_reason"]


async def test_a_failure_after_a_failed_turn_does_not_hide_what_failed(caplog: pytest.LogCaptureFixture) -> None:
    agent = agent_with(
        Throttled("slow down"), hooks=[On(AfterInvocationEvent, Once(RuntimeError("and this")), guard=True)]
    )
    with pytest.raises(Throttled):
        await agent.invoke_async("go")
    assert "hook failed" in caplog.text


async def test_a_guard_that_fails_after_the_turn_leaves_what_was_said() -> None:
    agent = agent_with("one", "two", hooks=[On(AfterInvocationEvent, Once(RuntimeError("no")), guard=True)])
    with pytest.raises(HookFailed):
        await agent.invoke_async("go")
    assert [text_of(message) for message in await agent.history()] == ["go", "one"]
    assert str(await agent.invoke_async("on")) == "two"


@pytest.mark.real_time
@pytest.mark.parametrize("kind", KINDS, ids=named)
async def test_what_a_failed_turn_said_is_durable_and_restored_equals_live(
    kind: type[HookEvent], tmp_path: Path
) -> None:
    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")

    def fail(event: HookEvent) -> None:
        event.agent.state.set("failed", named(kind))
        raise RuntimeError("no")

    agent = agent_with(use("add", a=1, b=2), "3", session_manager=manager, hooks=[On(kind, fail, guard=True)])
    with pytest.raises(HookFailed):
        await agent.invoke_async("1 + 2?")
    live = agent.messages
    later = agent_with("fine", session_manager=manager)
    await later.ready()
    assert later.messages == live
    assert later.state.get("failed") == named(kind)
    assert str(await later.invoke_async("again")) == "fine"
    check_history(await later.history())


async def test_a_guard_in_a_runtime_fails_the_call_and_not_the_session() -> None:
    def no(event: BeforeModelCallEvent) -> None:
        if "no" in event.invocation_state:
            raise PermissionError("not you")

    spec = AgentSpec(model=ScriptedModel(["yes", "yes"]), hooks=[On(BeforeModelCallEvent, no)])
    async with Runtime() as runtime:
        session = runtime.agent(spec).session("s")
        assert str(await session.invoke("hi")) == "yes"
        with pytest.raises(HookFailed) as caught:
            await session.invoke("hi", invocation_state={"no": True})
        assert isinstance(caught.value.__cause__, PermissionError)
        assert str(await session.invoke("hi")) == "yes"
        assert runtime.stats().failed == 0


# Rubbish in the fields of guards' events.


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (BeforeInvocationEvent, "messages", 5),
        (BeforeInvocationEvent, "messages", ["text"]),
        (BeforeInvocationEvent, "messages", [{"role": "system", "content": [{"text": "x"}]}]),
        (BeforeInvocationEvent, "messages", [{"role": "user", "content": [{"text": object()}]}]),
        (BeforeToolCallEvent, "tool_use", None),
        (BeforeToolCallEvent, "tool_use", "add"),
        (BeforeToolCallEvent, "tool_use", {"input": {}}),
        (BeforeToolCallEvent, "selected_tool", "add"),
        (BeforeToolCallEvent, "selected_tool", len),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else repr(value)[:40],
)
async def test_rubbish_in_a_field_of_a_guards_event_fails_the_turn(kind: Any, field: str, value: object) -> None:
    left = [value]

    def spoil(event: Any) -> None:
        if left:
            setattr(event, field, left.pop())

    agent = agent_with(use("add", a=1, b=2), "3", "4", hooks=[On(kind, spoil)])
    with pytest.raises(HookFailed, match=field):
        await agent.invoke_async("1 + 2?")
    assert isinstance(await agent.invoke_async("again"), object)
    check_history(await agent.history())


async def test_no_tool_in_the_place_of_one_is_an_unknown_tool() -> None:
    agent = agent_with(
        use("add", a=1, b=2), "oh", hooks=[On(BeforeToolCallEvent, lambda e: setattr(e, "selected_tool", None))]
    )
    await agent.invoke_async("1 + 2?")
    assert "Unknown tool: add" in str(list(tool_results(agent.messages[2])))


class JunkTool:
    """A tool that gives what is no result."""

    name = "junk"
    effects = False
    idempotent = False
    timeout_s = None
    spec: ClassVar[Any] = {"name": "junk", "description": "Junk.", "inputSchema": {"json": {"type": "object"}}}

    def __init__(self, result: Any) -> None:
        self._result = result

    async def run(self, tool_use: object, context: object) -> Any:
        return self._result


@pytest.mark.parametrize(
    "result", [None, "text", {}, {"status": "success", "content": "text"}, {"status": "fine", "content": []}], ids=repr
)
async def test_a_tool_that_gives_no_result_is_reported_to_the_model(result: Any) -> None:
    agent = agent_with(use("junk"), "oh", tools=[JunkTool(result)])
    assert str(await agent.invoke_async("go")) == "oh"
    assert [one["status"] for one in tool_results(agent.messages[2])] == ["error"]


async def test_a_result_under_another_id_is_the_result_of_the_use_that_asked() -> None:
    result = {"toolUseId": "mine", "status": "success", "content": [{"text": "fine"}]}
    agent = agent_with(use("junk"), "oh", tools=[JunkTool(result)])
    await agent.invoke_async("go")
    assert [one["toolUseId"] for one in tool_results(agent.messages[2])] == ["tooluse_1"]


# Hooks that hang.


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind not in (MessageAddedEvent, AfterInvocationEvent)], ids=named
)
async def test_a_hook_that_hangs_is_cut_short_by_the_time_limit(kind: type[HookEvent]) -> None:
    """But for `MessageAdded`, without which nothing is stored, and `AfterInvocation`, which tidies up."""
    hanging = [True]

    async def hang(event: HookEvent) -> None:
        if hanging:
            await anyio.sleep_forever()

    agent = agent_with(use("add", a=1, b=2), "3", "4", hooks=[On(kind, hang)])
    with anyio.fail_after(100):
        assert (await agent.invoke_async("1 + 2?", timeout_s=20)).stop_reason == "limit_time"
    check_history([*agent.messages, {"role": "assistant", "content": [{"text": "closed"}]}])
    hanging.clear()
    assert str(await agent.invoke_async("again")) in ("", "3", "4")
    check_history(await agent.history())


def test_a_hook_that_fails_in_the_constructor_as_a_guard_fails_the_constructor() -> None:
    def fail(event: AgentInitializedEvent) -> None:
        raise PermissionError("not here")

    with pytest.raises(RepertoryError, match="not here"):
        agent_with(hooks=[On(AgentInitializedEvent, fail, guard=True)])
    assert agent_with(hooks=[On(AgentInitializedEvent, fail)]).messages == list[Message]()


async def test_a_hook_may_call_another_agent() -> None:
    judge = agent_with("fine", "bad")

    async def ask(event: AfterModelCallEvent) -> None:
        event.retry = str(await judge.invoke_async("is it?")) == "bad"

    agent = agent_with("one", "two", hooks=[On(AfterModelCallEvent, ask)])
    assert str(await agent.invoke_async("go")) == "one"
