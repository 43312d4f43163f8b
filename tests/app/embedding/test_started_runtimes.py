"""A runtime that is started and stopped by callbacks, in tasks that end before it does."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions
from repertory.errors import Invalid, RepertoryError

pytestmark = pytest.mark.anyio


def spec() -> AgentSpec:
    return AgentSpec(name="helper", model=ScriptedModel(["Hi."], loop=True))


@pytest.mark.real_time
async def test_it_serves_between_two_callbacks_in_tasks_of_their_own(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    runtime = Runtime(sessions=place)
    session = runtime.agent(spec()).session("s")
    reports: list[bool] = []

    async def started() -> None:
        assert await runtime.start() is runtime

    async def stopped() -> None:
        reports.append((await runtime.stop()).ok)

    async def called() -> None:
        await session.invoke("Hello")

    for callback in (started, called, stopped, stopped):
        async with anyio.create_task_group() as group:
            group.start_soon(callback)
    assert reports == [True, True]
    with pytest.raises(RepertoryError):
        await session.invoke("Are you there?")
    async with Runtime(sessions=place) as again:
        assert len(await again.agent(spec()).session("s").history()) == 2


async def test_it_starts_while_it_is_not_open_and_stops_only_what_was_started() -> None:
    runtime = Runtime()
    with pytest.raises(Invalid, match="not started"):
        await runtime.stop()
    await runtime.start()
    with pytest.raises(Invalid, match="is open"):
        await runtime.start()
    assert (await runtime.stop()).ok
    async with Runtime() as entered:
        with pytest.raises(Invalid, match="is open"):
            await entered.start()


async def test_a_cancelled_start_leaves_nothing_and_a_cancelled_stop_has_drained() -> None:
    runtime = Runtime()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await runtime.start()
    assert scope.cancelled_caught
    runtime = Runtime()
    await runtime.start()
    await runtime.agent(spec()).session("s").invoke("Hello")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await runtime.stop()
    with anyio.fail_after(30):
        await runtime.drained.wait()
    assert (await runtime.stop()).reason
