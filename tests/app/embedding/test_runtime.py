"""`Runtime`: many sessions, shutdown hooks, the drain and its report, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from repertory import AgentResult, AgentSpec, Runtime, ScriptedModel, SQLiteSessions, tool
from repertory.app.host.host import CLOSE, COMMIT, MEMORY, REFUSE, TURNS
from repertory.core.messages import check_next, text_of, tool_results
from repertory.errors import RepertoryError
from tests.service.living import Living

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts file descriptors in /proc")
async def test_no_task_thread_or_file_outlives_a_runtime(tmp_path: Path) -> None:
    async def life() -> None:
        async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
            agent = runtime.agent(AgentSpec(model=ScriptedModel(["hi"], loop=True)))
            async with anyio.create_task_group() as group:
                for number in range(5):
                    group.start_soon(agent.session(f"s{number}").invoke, "hello")

    await life()  # Whatever is made once per process has been made now.
    before = Living.now()
    await life()
    after = Living.now()
    assert after.has_not_grown_since(before), (before, after)


async def test_sessions_without_a_store_live_as_long_as_the_runtime() -> None:
    async with Runtime() as runtime:
        agent = runtime.agent(AgentSpec(model=ScriptedModel(["a", "b"])))
        await agent.session("s").invoke("1")
        await agent.session("s").invoke("2")
        assert len(await agent.session("s").history()) == 4
        assert await agent.session("other").messages() == []


async def test_shutdown_hooks_run_in_the_order_of_the_phases(tmp_path: Path) -> None:
    ran: list[str] = []

    def noting(phase: str) -> object:
        async def hook() -> None:
            ran.append(phase)

        return hook

    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        for phase in (CLOSE, COMMIT, MEMORY, TURNS, REFUSE):
            runtime.on_shutdown(phase, noting(phase))  # type: ignore[arg-type] - an async function of no arguments
        await runtime.agent(AgentSpec(model=ScriptedModel(["x"]))).session("s").invoke("hi")
        report = await runtime.drain()
    assert ran == [REFUSE, TURNS, MEMORY, COMMIT, CLOSE]
    assert report.ok
    assert [phase.name for phase in report.phases] == ran


async def test_a_hook_for_a_phase_that_there_is_not_is_refused() -> None:
    async def hook() -> None: ...

    async with Runtime() as runtime:
        with pytest.raises(ValueError, match="phase"):
            runtime.on_shutdown("whenever", hook)


async def test_a_drain_lets_the_turn_in_flight_finish(tmp_path: Path) -> None:
    results: list[AgentResult] = []
    started = anyio.Event()

    @tool
    async def work() -> str:
        """Work a little."""
        started.set()
        await anyio.sleep(0.1)
        return "done"

    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        use = {"toolUse": {"name": "work", "input": {}}}
        session = runtime.agent(AgentSpec(model=ScriptedModel([use, "whole"]), tools=[work])).session("s")

        async def call() -> None:
            results.append(await session.invoke("go"))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await started.wait()
            report = await runtime.drain()
    assert [str(result) for result in results] == ["whole"]
    assert report.ok


async def test_a_turn_that_outlasts_the_drain_is_cancelled_and_its_history_stays_valid(tmp_path: Path) -> None:
    outcomes: list[str] = []
    started = anyio.Event()

    @tool
    async def work() -> str:
        """Work for ever."""
        started.set()
        await anyio.sleep_forever()
        return "never"

    sessions = SQLiteSessions(tmp_path / "a.db")
    async with Runtime(sessions=sessions, drain_timeout_s=0.5) as runtime:
        use = {"toolUse": {"name": "work", "input": {}}}
        session = runtime.agent(AgentSpec(model=ScriptedModel([use]), tools=[work])).session("s")

        async def call() -> None:
            try:
                outcomes.append((await session.invoke("go")).stop_reason)
            except RepertoryError as error:
                outcomes.append(type(error).__name__)

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await started.wait()
            report = await runtime.drain()
    assert outcomes == ["cancelled"]
    assert not report.ok
    async with Runtime(sessions=sessions) as runtime:
        history = await runtime.agent(AgentSpec(model=ScriptedModel(["x"]))).session("s").history()
    previous = None
    for message in history:
        check_next(previous, message)
        previous = message
    assert [result["status"] for result in tool_results(history[-1])] == ["error"]


async def test_calls_that_still_wait_when_the_drain_has_no_time_left_are_refused_and_nothing_of_them_is_stored(
    tmp_path: Path,
) -> None:
    """Our decision: what was never begun is told so at once, instead of eating the time of the commits."""
    outcomes: list[str] = []
    called = anyio.Event()

    def answer(*request: object) -> str:
        del request
        called.set()
        return "never said"

    sessions = SQLiteSessions(tmp_path / "a.db")
    async with Runtime(sessions=sessions, drain_timeout_s=3) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel([answer], loop=True, delay_s=600))).session("s")

        async def call(prompt: str) -> None:
            try:
                outcomes.append((await session.invoke(prompt)).stop_reason)
            except RepertoryError as error:
                outcomes.append(type(error).__name__)

        async with anyio.create_task_group() as group:
            group.start_soon(call, "first")
            await called.wait()
            for number in range(3):
                group.start_soon(call, f"waiting {number}")
            await anyio.sleep(0.05)
            report = await runtime.drain()
    assert sorted(outcomes) == ["Unavailable", "Unavailable", "Unavailable", "cancelled"]
    assert [phase.name for phase in report.phases if not phase.completed] == [TURNS]
    async with Runtime(sessions=sessions) as runtime:
        history = await runtime.agent(AgentSpec(model=ScriptedModel(["x"]))).session("s").history()
    assert [text_of(message) for message in history] == ["first"]


async def test_a_call_after_the_drain_is_refused(tmp_path: Path) -> None:
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["x"]))).session("s")
        await runtime.drain()
        with pytest.raises(RepertoryError):
            await session.invoke("hi")


async def test_the_tree_and_the_counters_can_be_looked_at_while_it_runs(tmp_path: Path) -> None:
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        await runtime.agent(AgentSpec(model=ScriptedModel(["x"]))).session("s1").invoke("hi")
        paths: list[str] = []

        def walk(info: object) -> None:
            paths.append(info.path)  # type: ignore[attr-defined] - an ActorInfo
            for child in info.children:  # type: ignore[attr-defined]
                walk(child)

        walk(runtime.tree())
        assert [path for path in paths if path.endswith(("/persister", "/conversation", "/agent"))]
        assert runtime.stats().processed > 0


async def test_a_signal_drains_and_everything_said_is_kept(tmp_path: Path) -> None:
    sessions = SQLiteSessions(tmp_path / "a.db")
    async with Runtime(sessions=sessions) as runtime:
        called = anyio.Event()

        def answer(*request: object) -> str:
            del request
            called.set()
            return "a"

        session = runtime.agent(AgentSpec(model=ScriptedModel([answer], delay_s=0.1))).session("s")
        async with anyio.create_task_group() as group:
            group.start_soon(runtime.serve_signals)
            group.start_soon(session.invoke, "hi")
            await called.wait()
            os.kill(os.getpid(), signal.SIGTERM)
    async with Runtime(sessions=sessions) as runtime:
        assert len(await runtime.agent(AgentSpec(model=ScriptedModel(["x"]))).session("s").history()) == 2


async def test_cancelling_the_host_still_commits_what_was_answered(tmp_path: Path) -> None:
    sessions = SQLiteSessions(tmp_path / "a.db")
    with anyio.CancelScope() as scope:
        async with Runtime(sessions=sessions) as runtime:
            session = runtime.agent(AgentSpec(model=ScriptedModel(["a"]), durability="relaxed")).session("s")
            await session.invoke("hi")
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    async with Runtime(sessions=sessions) as runtime:
        assert len(await runtime.agent(AgentSpec(model=ScriptedModel(["x"]))).session("s").history()) == 2


async def test_a_consumer_beside_the_signals_ends_with_the_drain_and_its_call_is_answered(tmp_path: Path) -> None:
    called, answered = anyio.Event(), list[str]()

    def answer(*request: object) -> str:
        del request
        called.set()
        return "a"

    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(AgentSpec(model=ScriptedModel([answer], delay_s=0.1))).session("s")

        async def consume() -> None:
            answered.append(str(await session.invoke("hi")))
            await anyio.sleep_forever()  # for the next job

        group.start_soon(consume)
        group.start_soon(end_when, called)
        report = await runtime.serve_signals(cancel=group.cancel_scope)
    assert report.reason == "SIGTERM"
    assert answered == ["a"]


async def end_when(called: anyio.Event) -> None:
    """Send this process a signal, as its operator would."""
    await called.wait()
    os.kill(os.getpid(), signal.SIGTERM)


async def test_a_consumer_can_stop_taking_jobs_as_soon_as_the_drain_begins(tmp_path: Path) -> None:
    took, answered = list[int](), list[str]()

    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["a"], delay_s=0.1, loop=True))).session("s")

        async def consume() -> None:
            while not runtime.draining.is_set():
                took.append(len(took))
                answered.append(str(await session.invoke("hi")))
                if len(took) == 2:
                    os.kill(os.getpid(), signal.SIGTERM)
                    await runtime.draining.wait()

        group.start_soon(consume)
        await runtime.serve_signals()
    assert took == [0, 1]
    assert answered == ["a", "a"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_task_of_asyncio_can_be_what_ends_with_the_drain() -> None:
    async with Runtime() as runtime:
        consumer = asyncio.create_task(asyncio.Event().wait())
        async with anyio.create_task_group() as group:
            group.start_soon(partial(runtime.serve_signals, cancel=consumer))
            await runtime.drain()
        with pytest.raises(asyncio.CancelledError):
            await consumer


STUCK = """
import sys
import threading
import anyio
from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions, tool

@tool
def stuck() -> str:
    "Never return."
    print("begun", flush=True)
    threading.Event().wait()
    return ""

async def main():
    async with Runtime(sessions=SQLiteSessions(sys.argv[2]), drain_timeout_s=0.5) as runtime:
        call = {"toolUse": {"name": "stuck", "input": {}}}
        helper = runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["hello", [call]]), tools=[stuck]))
        async with anyio.create_task_group() as group:
            await helper.session("s").invoke("hi")
            group.start_soon(helper.session("s").invoke, "use it")
            print((await runtime.serve_signals(cancel=group.cancel_scope)).reason)

anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_tool_whose_thread_never_returns_keeps_no_process_alive_and_costs_nothing_that_was_answered(
    tmp_path: Path, anyio_backend_name: str
) -> None:
    """Trio's threads are not waited for at all."""
    command = [sys.executable, "-c", STUCK, anyio_backend_name, str(tmp_path / "a.db")]
    with anyio.fail_after(30):
        async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            output = BufferedByteReceiveStream(process.stdout)  # What is printed may come in pieces.
            assert await output.receive_until(b"\n", 20) == b"begun"
            process.send_signal(signal.SIGTERM)
            assert await output.receive_until(b"\n", 20) == b"SIGTERM"
            assert await process.wait() == 128 + signal.SIGTERM
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        helper = runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["x"])))
        assert [text_of(message) for message in await helper.session("s").history()][:2] == ["hi", "hello"]
