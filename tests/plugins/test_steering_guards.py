"""Words and results that are added to a running turn pass the guards that they would pass in a turn of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from repertory import (
    AfterToolCallEvent,
    AgentSpec,
    BeforeInvocationEvent,
    Deny,
    InterventionHandler,
    Proceed,
    Runtime,
    ScriptedModel,
    ToolContext,
    Transform,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.plugins.goal import GoalLoop
from tests.simulation.killed_worlds import World

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


class NoAttacks(InterventionHandler):
    name = "no-attacks"

    def before_invocation(self, event: BeforeInvocationEvent, **kwargs: Any) -> Any:
        return Deny(reason="not here") if "attack" in str(event.messages) else Proceed()


class NoNumbers(InterventionHandler):
    name = "no-numbers"

    def after_tool_call(self, event: AfterToolCallEvent, **kwargs: Any) -> Any:
        def hide(event: Any) -> None:
            event.result = {**event.result, "content": [{"text": f"film {event.tool_use['input'].get('film')}: ***"}]}

        return Transform(apply=hide)


class Broken(InterventionHandler):
    name = "broken"

    def after_tool_call(self, event: AfterToolCallEvent, **kwargs: Any) -> Any:
        if "an IBAN" in str(event.result):
            raise ValueError("no")
        return Proceed()


async def steered(words: str, given: Any = None, also: Any = None, **parts: Any) -> tuple[list[str], Any]:
    """What the model was shown by its last call in each turn, and the result of the call that came while one ran."""
    working, seen, results = anyio.Event(), list[str](), list[Any]()

    @tool
    async def work(tool_context: ToolContext) -> str:
        """Work."""
        working.set()
        await anyio.sleep(1)
        return f"for {tool_context.invocation_state.get('user')}"

    def reply(messages: Any, *_: Any) -> Any:
        if any("toolResult" in block for block in messages[-1]["content"]):
            seen.append(str(messages))
            return "done"
        return {"toolUse": {"name": "work", "input": {}}}

    async with Runtime() as runtime, anyio.create_task_group() as group:
        spec = AgentSpec(name="a", model=ScriptedModel([reply], loop=True), tools=[work], **parts)
        session = runtime.agent(spec).session("s")
        group.start_soon(partial(session.invoke, "go", invocation_state=given))
        await working.wait()
        results.append(await session.invoke(words, busy="steer", invocation_state=also))
    return seen, results[0]


async def test_a_call_that_a_guard_denies_is_denied_while_a_turn_runs() -> None:
    seen, result = await steered("attack!", interventions=[NoAttacks()])
    assert str(result) == "DENIED: not here"
    assert "attack" not in str(seen)


@pytest.mark.parametrize("also", [None, {"user": "bob"}, {"user": "ann", "role": "admin"}])
async def test_a_call_with_other_values_than_the_running_turn_has_a_turn_of_its_own(also: Any) -> None:
    seen, _ = await steered("and this", {"user": "ann"}, also)
    assert len(seen) == 2
    assert "and this" not in seen[0]
    assert f"for {(also or {}).get('user')}" in seen[1]


@pytest.mark.parametrize("parts", [{}, {"plugins": [GoalLoop(goal=lambda *_: True, max_attempts=2)]}])
async def test_a_call_with_the_same_values_is_steered_past_hooks_that_look_at_no_words(parts: Any) -> None:
    seen, _ = await steered("and this", {"user": "ann"}, {"user": "ann"}, **parts)
    assert len(seen) == 1
    assert "and this" in seen[0]


@pytest.mark.parametrize("busy", ["queue", "steer"])
@pytest.mark.parametrize(("guard", "told"), [(NoNumbers, "film 1: ***"), (Broken, "withheld")])
async def test_a_late_result_passes_the_guards_of_results(guard: Any, told: str, busy: Any) -> None:
    ids, seen, working = list[str](), list[str](), anyio.Event()

    @tool(idempotent=True)
    async def render(film: int, tool_context: ToolContext) -> object:
        """Render."""
        ids.append(tool_context.deferred_id)
        return tool_context.defer("begun")

    @tool
    async def work() -> str:
        """Work."""
        working.set()
        await anyio.sleep(5)
        return "done"

    def reply(messages: Any, *_: Any) -> Any:
        seen.append(str(messages))
        last = messages[-1]["content"][-1].get("text")
        uses: Any = {"render": {"name": "render", "input": {"film": 1}}, "work": {"name": "work", "input": {}}}
        return {"toolUse": uses[last]} if last in uses else "ok"

    async with Runtime(sessions=World()) as runtime, anyio.create_task_group() as group:
        model = ScriptedModel([reply], loop=True)
        spec = AgentSpec(name="a", model=model, tools=[render, work], interventions=[guard()], busy=busy)
        session = runtime.agent(spec).session("s")
        await session.invoke("render")
        group.start_soon(session.invoke, "work")
        await working.wait()
        await session.complete_tool(ids[-1], "pay to an IBAN")
        await anyio.sleep(30)
        assert await session.deferred() == []
    assert "an IBAN" not in str(seen)
    assert told in seen[-1].partition("background_tool_result")[2]


async def test_a_step_takes_in_no_more_than_one_prompt_may_hold() -> None:
    working, seen = anyio.Event(), list[int]()

    @tool
    async def work() -> str:
        """Work."""
        working.set()
        await anyio.sleep(1)
        return "done"

    def reply(messages: Any, *_: Any) -> Any:
        seen.append(str(messages[-1]).count("x" * 2000))
        working_now = messages[-1]["content"][-1].get("text") == "go"
        return {"toolUse": {"name": "work", "input": {}}} if working_now else "done"

    async with Runtime() as runtime, anyio.create_task_group() as group:
        spec = AgentSpec(name="a", model=ScriptedModel([reply], loop=True), tools=[work], limits={"prompt_bytes": 8000})
        session = runtime.agent(spec).session("s")
        group.start_soon(session.invoke, "go")
        await working.wait()
        for _ in range(5):
            group.start_soon(partial(session.invoke, "x" * 2000, busy="steer"))
    assert sum(seen) == 5
    assert max(seen) == 3
