"""Streams that nobody reads on: they hold neither their agent, nor its session, nor a drain."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    FileStorage,
    GraphBuilder,
    JournalSessionManager,
    Runtime,
    ScriptedModel,
    SQLiteSessions,
)
from repertory.app.embedding.hosted import HostedSession
from repertory.errors import Deadlock

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

TEXT = "word " * 400
"""Many more pieces than a stream holds."""


def wordy() -> ScriptedModel:
    return ScriptedModel([TEXT], loop=True, chunk=5)


async def begin(stream: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
    """Read a little of it, in a task that ends; give it to somebody who keeps it."""

    async def read() -> None:
        for _ in range(3):
            await anext(stream)

    async with anyio.create_task_group() as group:
        group.start_soon(read)
    return stream


async def rest_of(stream: AsyncGenerator[Any]) -> list[Any]:
    async with aclosing(stream):
        return [event async for event in stream]


def agent(**more: Any) -> Agent:
    return Agent(wordy(), callback_handler=None, **more)


async def test_a_call_that_interrupts_is_served_and_the_stream_still_gives_what_was_said() -> None:
    helper = agent()
    stream = await begin(helper.stream_async("Hello"))
    with anyio.fail_after(30):
        result = await helper.invoke_async("Instead", busy="interrupt")
    assert result.stop_reason == "end_turn"
    events = await rest_of(stream)
    assert events[-1]["result"].stop_reason == "cancelled"


async def test_cancel_and_a_deadline_end_its_turn() -> None:
    for by_deadline in (False, True):
        helper = agent()
        options: Any = {"timeout_s": 0.3} if by_deadline else {}
        stream = await begin(helper.stream_async("Hello", **options))
        if not by_deadline:
            helper.cancel()
        with anyio.fail_after(30):
            result = await helper.invoke_async("Next")
        assert result.stop_reason == "end_turn"
        events = await rest_of(stream)
        assert events[-1]["result"].stop_reason == ("limit_time" if by_deadline else "cancelled")


async def test_leaving_the_block_of_an_agent_lets_the_turn_end_and_keeps_its_events() -> None:
    helper = agent()
    with anyio.fail_after(30):
        async with helper:
            stream = await begin(helper.stream_async("Hello"))
    assert helper.messages[-1]["content"] == [{"text": TEXT}]
    events = await rest_of(stream)
    assert "".join(event["data"] for event in events if "data" in event).endswith("word ")
    assert events[-1]["result"].stop_reason == "end_turn"


@pytest.mark.parametrize("way", ["interrupt", "cancel", "drain"])
async def test_a_session_of_a_runtime_is_free_again_and_the_drain_ends(tmp_path: Path, way: str) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    with anyio.fail_after(30):
        async with Runtime(sessions=place, drain_timeout_s=20) as runtime:
            session = runtime.agent(AgentSpec(name="a", model=wordy())).session("s")
            stream = await begin(session.stream("Hello"))
            if way == "interrupt":
                assert (await session.invoke("Instead", busy="interrupt")).stop_reason == "end_turn"
            elif way == "cancel":
                await session.cancel()
                assert (await session.invoke("Next")).stop_reason == "end_turn"
            report = await runtime.drain()
    assert report.ok
    assert not report.cut_short
    events = await rest_of(stream)
    assert events[-1]["result"].stop_reason == ("end_turn" if way == "drain" else "cancelled")
    async with Runtime(sessions=place) as again:
        told = await again.agent(AgentSpec(name="a", model=wordy())).session("s").history()
    assert len(told) == (2 if way == "drain" else 4)


async def test_another_object_of_the_same_session_is_served_when_the_turn_is_over(tmp_path: Path) -> None:
    one, other = (agent(session_manager=JournalSessionManager("s", FileStorage(tmp_path))) for _ in range(2))
    stream = await begin(one.stream_async("Hello"))
    one.cancel()
    with anyio.fail_after(30):
        assert (await other.invoke_async("Next")).stop_reason == "end_turn"
    assert (await rest_of(stream))[-1]["result"].stop_reason == "cancelled"


async def test_a_call_inside_the_loop_is_a_deadlock_and_in_a_task_of_its_own_it_is_served() -> None:
    helper = agent()
    async with aclosing(helper.stream_async("Hello")) as events:
        async for _ in events:
            with pytest.raises(Deadlock, match="reads the running turn"):
                await helper.invoke_async("Meanwhile")
            break
    answers: list[str] = []

    async def ask() -> None:
        answers.append((await helper.invoke_async("Beside")).stop_reason)

    async with anyio.create_task_group() as group, aclosing(helper.stream_async("Hello")) as events:
        group.start_soon(ask)
        assert len([event async for event in events if "result" in event]) == 1
    assert answers == ["end_turn"]


async def test_a_call_inside_the_loop_around_a_hosted_stream_is_a_deadlock_unless_it_interrupts() -> None:
    async with Runtime() as runtime:
        session = runtime.agent(AgentSpec(name="a", model=wordy())).session("s")
        async with aclosing(session.stream("Hello")) as events:
            await anext(events)
            with pytest.raises(Deadlock):
                await session.invoke("Meanwhile")
            assert (await session.invoke("Instead", busy="interrupt")).stop_reason == "end_turn"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # trio's advice to close it.
async def test_a_call_right_after_leaving_the_loop_of_a_stream_that_nobody_kept_is_served() -> None:
    helper = agent()

    async def called(stream: Callable[[str], AsyncGenerator[Any]], invoke: Callable[[str], Any]) -> None:
        async for _ in stream("Hello"):
            break
        with anyio.fail_after(30):
            assert (await invoke("Next")).stop_reason == "end_turn"

    await called(helper.stream_async, helper.invoke_async)
    async with Runtime() as runtime:
        session: HostedSession = runtime.agent(AgentSpec(name="a", model=wordy())).session("s")
        await called(session.stream, session.invoke)


async def test_a_turn_that_ended_unread_is_not_running_for_cancel() -> None:
    helper = Agent(ScriptedModel(["Hi.", "Once more."]), callback_handler=None)
    stream = await begin(helper.stream_async("Hello"))
    await rest_of(stream)
    helper.cancel()
    assert (await helper.invoke_async("Next")).stop_reason == "cancelled"


async def test_a_graph_whose_stream_nobody_reads_is_cancelled_and_called_again() -> None:
    builder = GraphBuilder()
    builder.add_node(agent(), "one")
    graph = builder.build()
    stream = await begin(graph.stream_async("Hello"))
    with pytest.raises(Deadlock):
        async with aclosing(graph.stream_async("Other")):
            await anext(stream)
            await graph.invoke_async("Meanwhile")
    graph.cancel()
    with anyio.fail_after(30):
        assert (await graph.invoke_async("Next", resume=False)).status.value == "completed"
    await stream.aclose()
