"""A prompt is stored while the model is being asked, without a wait; a turn that waits for nothing is one commit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from repertory import AgentSpec, Model, Runtime, ScriptedModel, tool
from repertory.backends.ports import Batch, Position
from repertory.core.journal.rows import RecordKind
from repertory.errors import LeaseLost
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf

pytestmark = pytest.mark.anyio


class Watched:
    """Sessions in memory whose commits are counted."""

    key = "watched"

    def __init__(self) -> None:
        self.shelf = SessionShelf()
        self.commits: list[list[int]] = []
        """The kinds of the rows of each commit that had some."""

    def open_store(self) -> MemorySessionStore:
        return _Store(self)

    async def stored(self, session_id: str = "s") -> list[bytes]:
        """The messages in the store."""
        rows = await _Store(self).load(session_id, "default")
        return [row.body for row in rows if row.kind == RecordKind.MESSAGE]


class _Store(MemorySessionStore):
    def __init__(self, watched: Watched) -> None:
        super().__init__(watched.shelf, owner="one")
        self._watched = watched

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | LeaseLost]:
        self._watched.commits += [[row.kind for row in batch.rows] for batch in batches if batch.rows]
        return await super().append(batches)


async def some_rounds() -> None:
    """So many rounds of the event loop, in which no time passes."""
    began = anyio.current_time()
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    assert anyio.current_time() - began < 0.01


class Waits(Model):
    """Answers when it is let."""

    def __init__(self) -> None:
        self.asked, self.let = anyio.Event(), anyio.Event()

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        self.asked.set()
        await self.let.wait()
        async for event in ScriptedModel(["It is noon."]).stream(messages):
            yield event


async def test_the_prompt_is_stored_at_the_moment_in_which_the_model_is_waited_for() -> None:
    place, model = Watched(), Waits()
    async with Runtime(sessions=place) as runtime, anyio.create_task_group() as group:
        group.start_soon(runtime.agent(AgentSpec(model=model)).session("s").invoke, "What time is it?")
        await model.asked.wait()
        await some_rounds()
        (prompt,) = await place.stored()
        assert b"What time is it?" in prompt
        model.let.set()
    assert len(await place.stored()) == 2
    assert [RecordKind.MESSAGE in kinds for kinds in place.commits] == [True, True]


async def test_a_turn_whose_model_answers_at_once_is_one_commit() -> None:
    place = Watched()
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["One.", "Two."]))).session("s")
        await session.invoke("First")
        before = len(place.commits)
        await session.invoke("Second")
        assert [kinds.count(RecordKind.MESSAGE) for kinds in place.commits[before:]] == [2]


async def test_what_was_said_so_far_is_stored_while_a_tool_without_effects_is_waited_for() -> None:
    place, running, let = Watched(), anyio.Event(), anyio.Event()

    @tool(effects=False)
    async def look_up() -> str:
        """Look something up."""
        running.set()
        await let.wait()
        return "found"

    model = ScriptedModel([{"toolUse": {"name": "look_up", "input": {}}}, "It is there."])
    async with Runtime(sessions=place) as runtime, anyio.create_task_group() as group:
        group.start_soon(runtime.agent(AgentSpec(model=model, tools=[look_up])).session("s").invoke, "Is it there?")
        await running.wait()
        await some_rounds()
        assert len(await place.stored()) == 2
        let.set()
    assert len(await place.stored()) == 4
