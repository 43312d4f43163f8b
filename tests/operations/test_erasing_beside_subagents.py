"""Another program erases a session, or lets it expire, while detached subagents of it work in this one."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import Agent, AgentSpec, Runtime, Sessions, ToolContext, tool
from repertory.backends.tools.function_tool import schema_class
from repertory.core.turns.subagents import is_subagent
from repertory.errors import RepertoryError
from tests.app.agent.test_subagents import replies, use
from tests.operations.operated_places import names_holding, place_of

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

schema_class()
PLACES = ("sqlite", "postgres", "journal in files")
SECRET = "Marta lives in Kiel"
STEPS = 12


class Work:
    """The effects of detached subagents with subagents of their own."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.effects: list[str] = []
        self.acting = anyio.Event()

    def spec(self) -> AgentSpec:
        @tool(durable=True)
        async def work(tool_context: ToolContext) -> str:
            """Work in steps."""
            for number in range(STEPS):
                await anyio.sleep(self.rng.random() * 0.04)
                await tool_context.report(f"{SECRET} {number}")
                await tool_context.step(f"step {number}", self._act, f"{SECRET} {number}")
            return SECRET

        grandchild = Agent(replies(use("work"), SECRET), name="grandchild", tools=[work], callback_handler=None)
        steps = (use("grandchild", input=SECRET), SECRET)
        child = Agent(replies(*steps), name="child", tools=[grandchild], callback_handler=None)

        @tool(durable=True)
        async def start(tool_context: ToolContext) -> str:
            """Start two."""
            for name in "ab":
                await tool_context.spawn(child, f"{SECRET} {name}", detached=True, name=name)
            return "started"

        tools: list[Any] = [start, child.as_tool()]
        tasks: Any = {"wait_for_completion": False, "agentic": []}
        return AgentSpec(name="boss", model=replies(use("start"), "begun"), tools=tools, background_tasks=tasks)

    async def _act(self, name: str) -> str:
        self.effects.append(name)
        self.acting.set()
        return name


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", PLACES)
async def test_a_session_that_another_program_erases_takes_its_subagents_along_and_none_comes_back(
    kind: str, seed: int, tmp_path: Path
) -> None:
    work = Work(seed)
    async with Runtime(sessions=place_of(kind, tmp_path)) as runtime:
        session = runtime.agent(work.spec()).session("s")
        await session.invoke("go")
        await work.acting.wait()
        await anyio.sleep(work.rng.random() * 0.3)
        async with Sessions(place_of(kind, tmp_path)) as sessions:
            proof = await sessions.delete("s", takeover=True)
            assert sum(map(is_subagent, proof.agents)) == 4
            # What was acting when it was erased may end; nothing begins.
            count = len(work.effects)
            await anyio.sleep(1.0)
            assert len(work.effects) <= count + 2
            assert not await sessions.list()
            assert not await sessions.pending_work()
    if kind != "postgres":
        assert not names_holding(place_of(kind, tmp_path), tmp_path, SECRET)


@pytest.mark.parametrize("kind", PLACES)
async def test_a_session_does_not_expire_while_subagents_work_in_it_or_are_to_go_on(kind: str, tmp_path: Path) -> None:
    work = Work(0)
    async with Runtime(sessions=place_of(kind, tmp_path), drain_timeout_s=0.1) as runtime:
        session = runtime.agent(work.spec()).session("s")
        await session.invoke("go")
        await work.acting.wait()
        async with Sessions(place_of(kind, tmp_path)) as sessions:
            await anyio.sleep(0.05)
            await sessions.expire(0.0)
            assert [info.session_id for info in await sessions.list()] == ["s"]
    async with Sessions(place_of(kind, tmp_path)) as sessions:
        await anyio.sleep(0.05)
        report = await sessions.expire(0.0)
        assert not report.expired
        with suppress(RepertoryError):
            await sessions.delete("s")
        assert not await sessions.list()
    # Nothing of it is found by a later process.
    later = Work(0)
    async with Runtime(sessions=place_of(kind, tmp_path)) as runtime:
        runtime.agent(later.spec())
        await anyio.sleep(0.5)
    assert not later.effects
