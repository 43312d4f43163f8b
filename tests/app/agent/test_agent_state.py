"""Agent state: what it takes, who may change it, and when it is durable."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    AfterInvocationEvent,
    Agent,
    AgentSpec,
    AgentState,
    BeforeModelCallEvent,
    MessageAddedEvent,
    Runtime,
    ScriptedModel,
    SQLiteSessionManager,
    SQLiteSessions,
    ToolContext,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.limits import DEPTH_MAX
from repertory.errors import Invalid

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def agent_at(database: Path, *replies: Any, session: str = "s1", **options: Any) -> Agent:
    manager = SQLiteSessionManager(session, path=database)
    return Agent(ScriptedModel(replies or "ok", loop=True), session_manager=manager, callback_handler=None, **options)


def use(name: str, **arguments: object) -> dict[str, object]:
    return {"toolUse": {"name": name, "input": arguments}}


# ---------------------------------------------------------------------------------------------------- what it takes


@pytest.mark.parametrize(
    ("key", "told"), [(None, "Key cannot be None"), (3, "Key must be a string"), (" ", "Key cannot be empty")]
)
@pytest.mark.parametrize("method", ["set", "delete"])
def test_a_key_is_a_string_with_something_in_it(method: str, key: Any, told: str) -> None:
    """The SDK's words."""
    agent = Agent(ScriptedModel([]))
    with pytest.raises(ValueError, match=told):
        getattr(agent.state, method)(key, *([1] if method == "set" else []))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (float("nan"), "float"),
        ([1.0, float("inf")], "list"),
        (b"raw", "bytes"),
        ({"a": {1, 2}}, "dict"),
        ({(1, 2): 3}, "dict"),
        (object(), "object"),
    ],
)
def test_what_json_cannot_say_is_refused_and_leaves_everything_as_it_was(value: object, kind: str) -> None:
    agent = Agent(ScriptedModel([]), state={"k": 1})
    with pytest.raises(Invalid, match=f"Value is not JSON serializable: {kind}"):
        agent.state.set("k", value)
    assert agent.state.get() == {"k": 1}
    with pytest.raises(ValueError, match="Value is not JSON serializable"):
        Agent(ScriptedModel([]), state={"k": value})


def test_the_deepest_value_that_is_taken_can_be_read_stored_and_restored(tmp_path: Path) -> None:
    agent = agent_at(tmp_path / "a.db")
    agent.state.set("deep", nested(DEPTH_MAX))
    for more in (DEPTH_MAX + 1, 5_000, 100_000):
        with pytest.raises(Invalid, match="nested too deeply"):
            agent.state.set("deep", nested(more))
    agent("hello")
    assert agent_at(tmp_path / "a.db").state.get("deep") == nested(DEPTH_MAX)


@pytest.mark.parametrize(
    "value",
    [
        {"__bytes_encoded__": True, "data": "not base64"},
        {"$bytes": "not base64"},
        {"$$bytes": {"$bytes": 1}},
        "half a pair \ud800",
        {"\udfff": "\ud800"},
        ["x" * 1_000] * 5_000,
        {"": {"": ""}},
        10**400,
        -0.0,
        "line\nbreak\0",
    ],
    ids=lambda value: str(value)[:20].encode("ascii", "replace").decode(),
)
def test_whatever_is_taken_comes_back_after_a_restart(tmp_path: Path, value: object) -> None:
    agent = agent_at(tmp_path / "a.db")
    agent.state.set("k", value)
    agent("hello")
    assert agent_at(tmp_path / "a.db").state.get("k") == value


def test_tuples_and_number_keys_are_what_they_will_be_at_once(tmp_path: Path) -> None:
    """Otherwise a restart would change them."""
    agent = agent_at(tmp_path / "a.db")
    agent.state.set("k", {1: (2, 3)})
    assert agent.state.get("k") == {"1": [2, 3]}
    agent("hello")
    assert agent_at(tmp_path / "a.db").state.get("k") == {"1": [2, 3]}


def test_nothing_is_shared_with_whoever_sets_or_gets() -> None:
    given = {"list": [1]}
    agent = Agent(ScriptedModel([]), state=given)
    given["list"].append(2)
    read: Any = agent.state.get("list")
    read.append(3)
    everything: Any = agent.state.get()
    everything["list"].append(4)
    assert agent.state.get() == {"list": [1]}
    assert agent.state.get("missing") is None


def test_state_is_a_dictionary_or_an_agent_state() -> None:
    state = AgentState({"a": 1})
    assert Agent(ScriptedModel([]), state=state).state is state
    with pytest.raises(ValueError, match="state must be an AgentState object or a dict"):
        Agent(ScriptedModel([]), state=["a"])  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------- who may change it


@tool
async def note(key: str, value: int, agent: Agent, tool_context: ToolContext) -> str:
    """Note a value."""
    await anyio.lowlevel.checkpoint()
    agent.state.set(key, value)
    assert tool_context.state is agent.state
    return f"{agent.state.get()}"


@pytest.mark.anyio
async def test_tools_that_run_at_the_same_time_all_change_the_state() -> None:
    asked = [use("note", key=f"k{number}", value=number) for number in range(40)]
    agent = Agent(ScriptedModel([asked, "done"]), tools=[note], callback_handler=None)
    await agent.invoke_async("go")
    assert agent.state.get() == {f"k{number}": number for number in range(40)}


@pytest.mark.anyio
async def test_hooks_change_the_state_and_it_belongs_to_the_turn() -> None:
    agent = Agent(ScriptedModel("ok", loop=True), callback_handler=None)

    def count(event: BeforeModelCallEvent | MessageAddedEvent | AfterInvocationEvent) -> None:
        kind = type(event).__name__
        event.agent.state.set(kind, (event.agent.state.get(kind) or 0) + 1)

    for kind in (BeforeModelCallEvent, MessageAddedEvent, AfterInvocationEvent):
        agent.add_hook(count, kind)
    await agent.invoke_async("one")
    await agent.invoke_async("two")
    assert agent.state.get() == {"BeforeModelCallEvent": 2, "MessageAddedEvent": 4, "AfterInvocationEvent": 2}


def test_synchronous_tools_in_threads_change_the_state(tmp_path: Path) -> None:
    @tool
    def mark(number: int, agent: Agent) -> int:
        """Mark a number."""
        for step in range(50):
            agent.state.set(f"{number}", step)
        return threading.get_ident()

    asked = [use("mark", number=number) for number in range(12)]
    agent = agent_at(tmp_path / "a.db", asked, "done", tools=[mark])
    agent("go")
    expected = {str(number): 49 for number in range(12)}
    assert agent.state.get() == expected
    assert agent_at(tmp_path / "a.db").state.get() == expected


# ----------------------------------------------------------------------------------------------- when it is durable


def test_what_is_set_between_calls_is_durable_with_the_next_call(tmp_path: Path) -> None:
    agent = agent_at(tmp_path / "a.db", state={"a": 1, "b": 2})
    agent("one")
    agent.state.set("c", 3)
    agent.state.delete("a")
    assert agent_at(tmp_path / "a.db").state.get() == {"a": 1, "b": 2}
    agent("two")
    assert agent_at(tmp_path / "a.db").state.get() == {"b": 2, "c": 3}


@pytest.mark.parametrize("way", ["with", "shutdown", "with and shutdown"])
@pytest.mark.parametrize("spoken", [True, False], ids=["after a turn", "without a turn"])
def test_what_is_set_last_is_durable_when_the_agent_is_closed(tmp_path: Path, way: str, spoken: bool) -> None:
    agent = agent_at(tmp_path / "a.db")
    if way == "shutdown":
        if spoken:
            agent("one")
        agent.state.set("k", "last")
        agent.shutdown()
    else:
        with agent:
            if spoken:
                agent("one")
            agent.state.set("k", "last")
            if way == "with and shutdown":
                agent.shutdown()
    assert agent_at(tmp_path / "a.db").state.get() == {"k": "last"}
    agent.shutdown()


@pytest.mark.real_time
@pytest.mark.anyio
@pytest.mark.parametrize("way", ["block", "shutdown"])
async def test_what_is_set_last_in_an_event_loop_is_durable_too(tmp_path: Path, way: str) -> None:
    with anyio.fail_after(20):
        agent = agent_at(tmp_path / "a.db")
        if way == "block":
            async with agent:
                await agent.invoke_async("one")
                agent.state.set("k", "last")
        else:
            agent.state.set("k", "last")
            await agent.shutdown_async()
        again = agent_at(tmp_path / "a.db")
        await again.ready()
        assert again.state.get() == {"k": "last"}


@pytest.mark.real_time
@pytest.mark.anyio
async def test_what_is_set_between_the_turns_of_a_runtime_is_durable_after_its_drain(tmp_path: Path) -> None:
    spec = AgentSpec(name="a", model=ScriptedModel("ok", loop=True))
    with anyio.fail_after(20):
        async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
            session = runtime.agent(spec).session("s1")
            await session.invoke("one")
            session.agent.state.set("k", "last")
        async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
            session = runtime.agent(spec).session("s1")
            await session.invoke("two")
            assert session.agent.state.get() == {"k": "last"}


@pytest.mark.real_time
@pytest.mark.anyio
async def test_a_tools_changes_are_durable_with_its_result_even_if_the_turn_is_cancelled(tmp_path: Path) -> None:
    @tool
    async def wait() -> None:
        """Wait."""
        await anyio.sleep_forever()

    with anyio.fail_after(20):
        agent = agent_at(tmp_path / "a.db", use("note", key="k", value=1), use("wait"), "done", tools=[note, wait])
        with anyio.CancelScope() as scope:
            async for event in agent.stream_async("go"):
                if "tool_started" in event and event["tool_started"]["name"] == "wait":  # type: ignore[index]
                    scope.cancel()
        again = agent_at(tmp_path / "a.db")
        await again.ready()
        assert again.state.get() == {"k": 1}


def test_two_agents_on_one_session_share_its_state_while_it_is_open(tmp_path: Path) -> None:
    first, second = agent_at(tmp_path / "a.db"), agent_at(tmp_path / "a.db")
    second.state.set("before", 1)
    with first:
        first.state.set("k", "first")
        second("hello")
        assert second.state.get() == {"before": 1, "k": "first"}
        second.state.set("k", "second")
        assert first.state.get("k") == "second"
    assert agent_at(tmp_path / "a.db").state.get() == {"before": 1, "k": "second"}
