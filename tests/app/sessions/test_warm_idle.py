"""Agents, graphs and swarms that are not called any more: what their calls left open ends after a while."""

from __future__ import annotations

import gc
import random
import time
from contextlib import suppress
from weakref import ref

import anyio
import pytest

from repertory import Agent, AgentSpec, Graph, MemoryManager, Runtime, ScriptedModel
from repertory.app.host.host import PAUSED_S
from repertory.backends.objects.in_memory import MemoryObjectStore
from repertory.backends.ports import SessionStore, give_up
from repertory.backends.sessions.liveness import TimeToLive
from repertory.errors import SessionBusy
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults
from tests.app.memory.toy_memories import Transcripts
from tests.app.sessions.tree_sessions import TreeSessions
from tests.backends.sessions.bucket_places import bucket_store

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


class FailingTree(TreeSessions):
    """A place whose objects fail as long as they are told to."""

    def open_store(self) -> SessionStore:
        self.objects = FaultyObjectStore(MemoryObjectStore(self.shelf), random.Random(1), ObjectFaults())
        life = TimeToLive(time.time, 300.0)
        return bucket_store(self.objects, "one", life=life)


async def test_an_idle_session_that_could_not_be_released_is_released_while_its_process_goes_on() -> None:
    place = FailingTree()
    other = TreeSessions(shelf=place.shelf).open_store()
    async with Runtime(sessions=place, idle_timeout_s=0.2) as runtime:
        await runtime.agent(AgentSpec(model=ScriptedModel(["ok"]))).session("s").invoke("hello")
        place.objects.settings = ObjectFaults(error_rate=1.0)
        await anyio.sleep(1)  # It has been idle for long enough.
        assert place.objects.faults
        place.objects.settings = ObjectFaults()
        with anyio.fail_after(20):
            while True:
                with suppress(SessionBusy):
                    lease, _ = await other.acquire("s")
                    break
                await anyio.sleep(0.02)
        await give_up(other, lease)
    await other.aclose()
