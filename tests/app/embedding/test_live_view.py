"""What `Runtime.look` says of sessions, memories and commits: exact at every moment, also when actors are stuck.

Our decisions: `docs/design/services.md`, `docs/reference/metrics.md`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
import pytest

from repertory import (
    Agent,
    AgentResult,
    AgentSpec,
    ExtractionConfig,
    Graph,
    IntervalTrigger,
    MemoryManager,
    Runtime,
    ScriptedModel,
    SQLiteSessions,
    StorePatience,
    ToolContext,
    tool,
)
from repertory.app.embedding.live import LiveSession, LiveView
from repertory.backends.ports import Batch, Position, SessionStore
from repertory.core.memory.breaker import FAILURES_MAX
from repertory.errors import Invalid, LeaseLost, NotReady, Unavailable
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf
from tests.app.memory.toy_memories import Transcripts

pytestmark = pytest.mark.anyio


class Gated:
    """Sessions in memory, whose store waits at a gate, or fails."""

    key = "gated"

    def __init__(self) -> None:
        self.shelf = SessionShelf()
        self.open = anyio.Event()
        self.open.set()
        self.down = False

    def open_store(self) -> SessionStore:
        return _Store(self)


class _Store(MemorySessionStore):
    def __init__(self, gated: Gated) -> None:
        super().__init__(gated.shelf, owner="owner")
        self._gated = gated

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | LeaseLost]:
        await self._gated.open.wait()
        if self._gated.down:
            raise Unavailable("the store is away")
        return await super().append(batches)


def only(view: LiveView) -> LiveSession:
    (session,) = view.sessions
    return session


async def test_a_session_says_its_step_its_tools_and_the_calls_behind_them() -> None:
    entered, go = anyio.Event(), anyio.Event()

    @tool
    async def dig() -> str:
        """Dig."""
        entered.set()
        await go.wait()
        return "dug"

    @tool
    async def look() -> str:
        """Look around."""
        return "seen"

    uses = [{"toolUse": {"name": "dig"}}, {"toolUse": {"name": "look"}}]
    model = ScriptedModel([{"toolUse": {"name": "look"}}, uses, "done", "again"])
    async with Runtime() as runtime, anyio.create_task_group() as group:
        session = runtime.agent(AgentSpec(name="miner", model=model, tools=[dig, look])).session("s1")
        group.start_soon(session.invoke, "dig")
        await entered.wait()
        group.start_soon(session.invoke, "and again")
        await anyio.sleep(5)
        seen = only(runtime.look())
        assert (seen.session_id, seen.agent_id, seen.state) == ("s1", "miner", "runs")
        assert (seen.step, seen.tools, seen.queued) == (2, ["dig"], 1)
        assert seen.since_s == pytest.approx(5, abs=0.5)
        go.set()
        await anyio.sleep(7)
        seen = only(runtime.look())
        assert (seen.state, seen.step, seen.tools, seen.queued) == ("idle", 0, [], 0)
        assert seen.since_s == pytest.approx(7, abs=0.5)


async def test_a_session_waits_for_its_store_while_that_does_not_answer() -> None:
    gated = Gated()
    async with Runtime(sessions=gated) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["hi"], loop=True))).session("s")
        await session.invoke("one")
        gated.open = anyio.Event()
        group.start_soon(session.invoke, "two")
        await anyio.sleep(3)
        view = runtime.look()
        assert (only(view).state, only(view).step) == ("store", 1)
        assert view.commits.waiting > 0
        gated.open.set()
        await anyio.sleep(1)
        view = runtime.look()
        assert (only(view).state, view.commits.waiting) == ("idle", 0)
        assert view.commits.count >= 2
        assert view.commits.records >= 4
        assert view.commits.last_group == 1


async def test_commits_that_fail_are_counted_and_the_session_waits() -> None:
    gated = Gated()
    patience = StorePatience(wait_s=1.0)
    async with Runtime(sessions=gated, patience=patience) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["hi"], loop=True))).session("s")
        await session.invoke("one")
        gated.down = True
        with pytest.raises(Unavailable):
            await session.invoke("two")
        await anyio.sleep(3)
        view = runtime.look()
        assert (only(view).state, view.stats.sessions_behind) == ("store", 1)
        assert view.commits.failed > 0
        gated.down = False


async def test_a_session_whose_person_is_asked_waits() -> None:
    @tool(context=True)
    def buy(tool_context: ToolContext) -> str:
        """Buy it."""
        return str(tool_context.interrupt("approve", reason="it is dear"))

    model = ScriptedModel([{"toolUse": {"name": "buy"}}, "bought"])
    async with Runtime() as runtime:
        session = runtime.agent(AgentSpec(model=model, tools=[buy])).session("s")
        asked = await session.invoke("buy")
        assert isinstance(asked, AgentResult)
        await anyio.sleep(100)
        seen = only(runtime.look())
        assert (seen.state, seen.step) == ("asks", 0)
        assert seen.since_s == pytest.approx(100, abs=1)
        (question,) = asked.interrupts
        await session.invoke([{"interruptResponse": {"interruptId": question.id, "response": "yes"}}])
        assert only(runtime.look()).state == "idle"


async def test_a_graph_and_its_nodes_are_sessions_side_by_side() -> None:
    entered, go = anyio.Event(), anyio.Event()

    @tool
    async def dig() -> str:
        """Dig."""
        entered.set()
        await go.wait()
        return "dug"

    def make(session_id: str) -> Graph:
        del session_id
        model = ScriptedModel([{"toolUse": {"name": "dig"}}, "done"], loop=True)
        return Graph({"digger": Agent(model, tools=[dig], callback_handler=None, name="digger")}, id="team")

    async with Runtime() as runtime, anyio.create_task_group() as group:
        team = runtime.orchestrator("team", make).session("s")
        group.start_soon(team.invoke, "dig")
        await entered.wait()
        found = {seen.agent_id: seen for seen in runtime.look().sessions}
        run, node = (found.pop(name) for name in sorted(found, key=lambda name: "digger" in name))
        assert not found
        assert (run.state, run.step, node.state, node.tools) == ("runs", 0, "runs", ["dig"])
        go.set()


async def test_memories_say_what_they_lack_what_they_refused_and_whether_they_are_asked() -> None:
    store = Transcripts("notes", extraction=ExtractionConfig(trigger=IntervalTrigger(1)))
    memory = MemoryManager(stores=[store], injection=False)
    async with Runtime(memory=memory, idle_timeout_s=10_000) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["hi"], loop=True))).session("s")
        await session.invoke("one")
        await anyio.sleep(1)
        (seen,) = runtime.look().memories
        assert (seen.store, seen.waiting, seen.dead_letters, seen.breaker) == ("notes", 0, 0, "closed")
        store.down = ConnectionError("away")
        for number in range(FAILURES_MAX):
            await session.invoke(f"more {number}")
            await anyio.sleep(1)
        (seen,) = runtime.look().memories
        assert seen.waiting == 2 * FAILURES_MAX
        assert seen.breaker in ("open", "half-open")
        store.down = None
        await anyio.sleep(120)
        (seen,) = runtime.look().memories
        assert (seen.waiting, seen.dead_letters, seen.breaker) == (0, 0, "closed")
        store.down = Invalid("this store takes no such messages")
        await session.invoke("refused")
        await anyio.sleep(1)
        (seen,) = runtime.look().memories
        assert (seen.waiting, seen.dead_letters) == (0, 1)


async def test_a_view_is_json_and_says_who_it_is_of() -> None:
    async with Runtime() as runtime:
        await runtime.agent(AgentSpec(model=ScriptedModel(["hi"]))).session("s").invoke("x")
        await anyio.sleep(5)
        view = runtime.look()
        assert view.pid == os.getpid()
        assert view.name.endswith(f":{view.pid}")
        assert view.up_s == pytest.approx(5, abs=1)
        assert view.phase is None
        assert view.stats == runtime.stats()
        assert view.actors == runtime.tree()
        spelled = msgspec.json.decode(msgspec.json.encode(view))
        assert spelled.keys() == set(LiveView.__struct_fields__)
        assert spelled["sessions"][0]["session_id"] == "s"
        assert spelled["actors"]["state"] == "running"


async def test_the_phase_of_a_drain_is_named_while_it_runs() -> None:
    phases: list[str | None] = []
    async with Runtime() as runtime:

        async def note() -> None:
            phases.append(runtime.look().phase)

        for phase in ("refuse", "turns", "memory"):
            runtime.on_shutdown(phase, note)
        await runtime.drain()
    assert phases == ["refuse", "turns", "memory"]


async def test_a_runtime_that_is_not_open_has_nothing_to_show() -> None:
    with pytest.raises(NotReady):
        Runtime().look()


async def test_a_view_may_leave_out_what_is_idle() -> None:
    entered, go = anyio.Event(), anyio.Event()

    @tool
    async def dig() -> str:
        """Dig."""
        entered.set()
        await go.wait()
        return "dug"

    model = ScriptedModel(["hi", "hi", {"toolUse": {"name": "dig"}}, "done"])
    async with Runtime() as runtime, anyio.create_task_group() as group:
        agent = runtime.agent(AgentSpec(name="a", model=model, tools=[dig]))
        await agent.session("idle").invoke("x")
        await agent.session("busy").invoke("x")
        group.start_soon(agent.session("busy").invoke, "dig")
        await entered.wait()
        busy, whole = runtime.look(idle=False), runtime.look()
        assert only(busy).session_id == "busy"
        assert len(whole.sessions) == 2
        assert busy.stats == whole.stats
        names = [actor.path for actor in busy.actors.walk()]
        assert not any("idle a" in name for name in names)
        assert any("busy a" in name for name in names)
        go.set()


async def test_a_session_that_ended_is_not_there_any_more() -> None:
    async with Runtime(sessions=Gated(), idle_timeout_s=10.0) as runtime:
        await runtime.agent(AgentSpec(model=ScriptedModel(["hi"]))).session("s").invoke("x")
        assert only(runtime.look()).state == "idle"
        await anyio.sleep(30)
        assert runtime.look().sessions == []


@pytest.mark.real_time
async def test_turns_and_sessions_taken_over_are_counted_and_a_takeover_is_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="repertory")
    place = SQLiteSessions(tmp_path / "a.db")
    gone = place.open_store()
    await gone.acquire("left")
    await gone.aclose()  # As a process that ends without giving its session up.
    async with Runtime(sessions=place) as runtime:
        agent = runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["Hi."], loop=True)))
        await agent.session("fresh").invoke("Hello")
        assert (runtime.stats().turns, runtime.stats().takeovers) == (1, 0)
        await agent.session("left").invoke("Hello")
        await agent.session("left").invoke("Hello")
        assert (runtime.look().stats.turns, runtime.look().stats.takeovers) == (3, 1)
    (line,) = [record.getMessage() for record in caplog.records if "taken over" in record.getMessage()]
    assert line.startswith("a session was taken over session='left' owner=")
    async with Runtime(sessions=place) as runtime:
        await runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["Hi."]))).session("left").invoke("Hello")
        assert runtime.stats().takeovers == 0  # It was given up in order.
