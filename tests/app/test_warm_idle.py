"""Agents, graphs and swarms that are not called any more: what their calls left open ends after a while."""

from __future__ import annotations

import gc
from weakref import ref

import anyio
import pytest

from repertory import Agent, Graph, MemoryManager, Runtime, ScriptedModel
from repertory.app.host.host import PAUSED_S
from tests.app.toy_memories import Transcripts

pytestmark = pytest.mark.anyio


async def test_an_agent_that_nobody_uses_is_freed_after_its_idle_time() -> None:
    agent: Agent | None = Agent(ScriptedModel(["ok"], loop=True), callback_handler=None)
    assert agent is not None
    gone = ref(agent)
    await agent.invoke_async("one")
    await anyio.sleep(PAUSED_S * 0.8)
    await agent.invoke_async("two")
    agent = None
    await anyio.sleep(PAUSED_S * 0.8)
    gc.collect()
    assert gone() is not None
    await anyio.sleep(PAUSED_S * 0.6)
    gc.collect()
    assert gone() is None


async def test_a_call_after_the_idle_time_goes_on_with_the_conversation() -> None:
    agent = Agent(ScriptedModel(["ok"], loop=True), callback_handler=None)
    await agent.invoke_async("one")
    await anyio.sleep(PAUSED_S * 3)
    async with Runtime():
        await agent.invoke_async("two")
        await anyio.sleep(PAUSED_S * 3)
    await agent.invoke_async("three")
    assert len(agent.messages) == 6


async def test_a_graph_that_nobody_calls_is_freed_with_its_nodes_after_its_idle_time() -> None:
    agents = [Agent(ScriptedModel(["ok"], loop=True), callback_handler=None, name=name) for name in ("ann", "ben")]
    graph: Graph | None = Graph({agent.name: agent for agent in agents})
    assert graph is not None
    gone = [ref(graph), *map(ref, agents)]
    await graph.invoke_async("one")
    await anyio.sleep(PAUSED_S * 0.8)
    await graph.invoke_async("two")
    graph = None
    agents.clear()
    await anyio.sleep(PAUSED_S * 1.4)
    gc.collect()
    assert [each() for each in gone] == [None, None, None]


async def test_an_agent_with_a_memory_that_nobody_uses_is_freed_after_its_idle_time() -> None:
    memory = MemoryManager(stores=[Transcripts()], injection=False)
    agent: Agent | None = Agent(ScriptedModel(["ok"], loop=True), callback_handler=None, memory_manager=memory)
    assert agent is not None
    gone = ref(agent)
    for _ in range(5):  # Then nothing is left to be told.
        await agent.invoke_async("one")
    agent = None
    await anyio.sleep(PAUSED_S * 1.4)
    gc.collect()
    assert gone() is None
