"""Turns in turns: circles of agents that ask each other end with a typed error, and how deep they stand is bounded."""

from __future__ import annotations

import contextvars
from typing import Any

import anyio
import pytest

from repertory import Agent, AgentSpec, Runtime, ScriptedModel, tool
from repertory.actors.call import TURN_DEPTH_MAX
from repertory.cluster.peers import Peers
from repertory.errors import Unavailable
from tests.app.orchestration.recorder import use
from tests.cluster.test_peers import Site

pytestmark = pytest.mark.anyio


def chain(depth: int) -> tuple[Agent, list[ScriptedModel]]:
    """An agent whose tool is an agent whose tool is an agent."""
    models = [ScriptedModel(["the bottom"])]
    agent = Agent(models[0], name="a0", callback_handler=None)
    for level in range(1, depth):
        models.append(ScriptedModel([use(f"a{level - 1}", input="go"), "up"]))
        agent = Agent(models[-1], name=f"a{level}", tools=[agent], callback_handler=None)
    return agent, models


async def test_agents_as_tools_stand_as_deep_as_is_allowed_and_one_more_is_an_error_for_its_model() -> None:
    for depth, deepest in ((TURN_DEPTH_MAX, True), (TURN_DEPTH_MAX + 1, False)):
        agent, models = chain(depth)
        assert str(await agent.invoke_async("go")) == "up"
        assert len(models[0].calls) == int(deepest)
        said = str(models[1].calls[-1])
        assert ("the bottom" in said, "LimitReached" in said) == (deepest, not deepest)


def asks(messages: Any, *_: Any) -> Any:
    """The model's reply: ask the other one, then say so."""
    last = messages[-1]["content"][0]
    return use("ask") if last.get("text") in ("go", "and you?") else "done"


@pytest.mark.parametrize("timeout_s", [None, 1000.0])
async def test_two_sessions_that_ask_each_other_do_not_wait_for_ever(timeout_s: float | None) -> None:
    told, sessions = list[str](), dict[str, Any]()
    reached = {name: anyio.Event() for name in ("one", "two")}
    options: Any = {} if timeout_s is None else {"timeout_s": timeout_s}

    def asking(runtime: Runtime, name: str, other: str) -> Any:
        @tool
        async def ask() -> str:
            """Ask the other one, once both run."""
            reached[name].set()
            await reached[other].wait()
            try:
                return str(await sessions[other].invoke("what is new?", **options))
            except Exception as error:
                told.append(type(error).__name__)
                raise

        spec = AgentSpec(name=name, model=ScriptedModel([asks], loop=True), tools=[ask])
        return runtime.agent(spec).session("s")

    async with Runtime() as runtime:
        sessions |= {"one": asking(runtime, "one", "two"), "two": asking(runtime, "two", "one")}
        with anyio.fail_after(100):
            async with anyio.create_task_group() as group:
                for session in sessions.values():
                    group.start_soon(session.invoke, "go")
        answers = [str(await session.invoke("what is new?")) for session in sessions.values()]
    assert (told, answers) == (["Deadlock"], ["done", "done"])


@pytest.mark.real_time
async def test_a_session_that_asks_itself_by_way_of_a_peer_is_told_so() -> None:
    site, told, sessions = Site(), list[str](), dict[tuple[str, str], Any]()

    def asking(runtime: Runtime, here: str, name: str, other: str) -> Any:
        @tool
        async def ask() -> str:
            """Ask the other one."""
            try:
                return str(await sessions[here, other].invoke("and you?"))
            except Exception as error:
                told.append(type(error).__name__)
                raise

        spec = AgentSpec(name=name, model=ScriptedModel([asks], loop=True), tools=[ask])
        return runtime.agent(spec).session(f"of {name}")

    runtimes = {
        name: Runtime(sessions=site.shelf, peers=Peers("127.0.0.1:0", secret="of-this-test-alone"))
        for name in ("a", "b")
    }
    async with runtimes["a"], runtimes["b"]:
        for here, runtime in runtimes.items():
            sessions |= {(here, "a"): asking(runtime, here, "a", "b"), (here, "b"): asking(runtime, here, "b", "a")}
        for name in runtimes:
            await sessions[name, name].invoke("be here")
            assert sessions[name, name].active
        with anyio.fail_after(100):
            assert str(await sessions["a", "a"].invoke("go")) == "done"
    assert told == ["AgentBusy"]


async def test_the_time_of_a_call_holds_though_a_peer_is_silent(seed: int) -> None:
    site = Site(seed)
    async with site.process("a") as a, site.process("b") as b:
        await anyio.sleep(3)
        assert str(await a.agent.session("s").invoke("one")) == "from a"
        assert str(await b.agent.session("s").invoke("two")) == "from a"
        site.network.silence("a", takes=True)
        with anyio.fail_after(6), pytest.raises(Unavailable):
            await b.agent.session("s").invoke("three", timeout_s=1)
        site.network.hear("a")


def test_a_tool_that_calls_its_own_agent_from_a_context_of_its_own_is_told_that_it_is_busy() -> None:
    @tool
    def ask() -> str:
        """Ask the agent itself."""
        return str(contextvars.Context().run(agent, "and you?"))

    agent = Agent(ScriptedModel([use("ask"), "done"]), tools=[ask], callback_handler=None)
    assert str(agent("go", timeout_s=50)) == "done"
    assert "AgentBusy" in str(agent.messages)
