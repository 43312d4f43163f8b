"""A tool server's actor: its tools answer at once whatever happens to the server. Why: `docs/design/tools.md`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import anyio
import pytest
from toy_tool_source import ToySource

from repertory.actors.tool_registry import ToolRegistry
from repertory.actors.tool_server import ServedTool, ServerLink, tool_server_spec
from repertory.backends.ports import Tool, ToolContext
from repertory.core.messages import Json, ToolResult, ToolUse
from repertory.core.state import AgentState
from repertory.errors import Failed, Invalid, StartFailed, Unavailable
from repertory.runtime.system import ActorSystem

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def served(source: ToySource) -> AsyncIterator[tuple[ServerLink, ActorSystem]]:
    with anyio.fail_after(10_000):
        async with ActorSystem() as system:
            link = ServerLink(source.name)
            await system.start(tool_server_spec("tools", source, link))
            yield link, system


async def call(
    link: ServerLink, name: str, value: Json = None, on_exception: Callable[[Exception], None] | None = None
) -> ToolResult:
    tool = next(tool for tool in link.tools if tool.name == name)
    use: ToolUse = {"toolUseId": f"{name}-1", "name": name, "input": value}
    state = AgentState()
    context = ToolContext(tool_use=use, agent_id="a", state=state, idempotency_key="k", on_exception=on_exception)
    return await tool.run(use, context)


def text(result: ToolResult) -> str:
    return str(result["content"][0]["text"])


async def until_up(link: ServerLink) -> None:
    """Virtual time makes nobody wait for this."""
    while (await call(link, "echo"))["status"] == "error":  # noqa: ASYNC110 - As a model would: by trying.
        await anyio.sleep(0.1)


async def test_tools_are_known_when_the_server_has_started() -> None:
    async with served(ToySource()) as (link, _):
        assert [tool.name for tool in link.tools] == ["echo", "hang"]
        tool: Tool = link.tools[0]
        assert tool.spec["name"] == "echo"
        assert (tool.effects, tool.idempotent, tool.timeout_s) == (True, False, None)
        assert await call(link, "echo", {"a": 1}) == {
            "toolUseId": "echo-1",
            "status": "success",
            "content": [{"text": "{'a': 1}"}],
        }
        assert await link.query("prompts", {"a": 1}) == ("prompts", {"a": 1})
        with pytest.raises(Failed, match="does not burn"):
            await link.query("burn", {})


async def test_a_server_that_cannot_be_reached_is_a_failed_start_with_its_reason() -> None:
    source = ToySource()
    source.down = "nobody there"
    async with ActorSystem() as system:
        with anyio.fail_after(5), pytest.raises(StartFailed) as caught:
            await system.start(tool_server_spec("tools", source, ServerLink(source.name)))
        inner = caught.value.__cause__
        assert isinstance(inner, StartFailed)
        assert isinstance(inner.__cause__, Unavailable)
        assert "nobody there" in str(inner.__cause__)
        assert not system.tree().children
    assert len(source.attempts) == 1


async def test_a_call_in_flight_is_answered_at_once_when_the_server_dies() -> None:
    """Not when its process, which may be slow to die, has been seen off."""
    source = ToySource()
    source.leave_s = 500.0
    async with served(source) as (link, _):
        results: list[ToolResult] = []

        async def hang() -> None:
            results.append(await call(link, "hang"))

        async with anyio.create_task_group() as group:
            group.start_soon(hang)
            await source.hanging.wait()
            died_at = anyio.current_time()
            source.die()
        assert anyio.current_time() - died_at < 1
        (result,) = results
        assert result["status"] == "error"
        assert "may or may not have taken effect" in text(result)
        away = await call(link, "echo")
        assert anyio.current_time() - died_at < 1
        assert "away: the connection ended" in text(away)
        source.leave_s = 0.0


async def test_a_server_that_died_comes_back_and_its_tools_with_it() -> None:
    source = ToySource()
    async with served(source) as (link, _):
        tools = link.tools
        source.down = "it is being mended"
        source.die()
        await anyio.wait_all_tasks_blocked()
        assert (await call(link, "echo"))["status"] == "error"
        source.down = None
        await until_up(link)
        assert link.tools is tools
        assert source.open == 1


async def test_a_server_that_stays_away_is_tried_again_with_growing_pauses_and_never_given_up() -> None:
    source = ToySource()
    async with served(source) as (link, system):
        source.down = "nobody there"
        source.die()
        await anyio.sleep(3600)
        answer = await call(link, "echo")
        assert "nobody there" in text(answer)
        pauses = [after - before for before, after in pairwise(source.attempts)]
        assert max(pauses) <= 31
        assert sum(pauses[:4]) < 5
        assert 3600 / 31 < len(pauses) < 3600 / 5
        assert system.healthy
        source.down = None
        await until_up(link)


async def test_a_server_that_dies_again_and_again_takes_nobody_with_it() -> None:
    source = ToySource()
    async with served(source) as (link, system):
        for _ in range(50):
            await until_up(link)
            source.die()
            await anyio.wait_all_tasks_blocked()
        await until_up(link)
        assert system.healthy
        assert source.open == 1


async def test_a_cancelled_call_is_dropped_by_the_server() -> None:
    source = ToySource()
    async with served(source) as (link, system):
        with anyio.move_on_after(5) as scope:
            await call(link, "hang")
        assert scope.cancelled_caught
        await anyio.wait_all_tasks_blocked()
        assert source.dropped == ["hang-1"]
        assert (await call(link, "echo"))["status"] == "success"
        assert [actor.jobs for actor in system.tree().walk() if actor.path.endswith("connection")] == [("connection",)]


async def test_calls_run_side_by_side() -> None:
    source = ToySource()
    async with served(source) as (link, _):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(call, link, "hang")
            await source.hanging.wait()
            assert (await call(link, "echo"))["status"] == "success"
            group.cancel_scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert len(source.dropped) == 3


async def test_a_stopped_server_answers_its_callers_and_is_left() -> None:
    source = ToySource()
    results: list[ToolResult] = []

    async def hang() -> None:
        results.append(await call(link, "hang"))

    async with anyio.create_task_group() as group, served(source) as (link, _):
        group.start_soon(hang)
        await source.hanging.wait()
    assert [result["status"] for result in results] == ["error"]
    assert source.open == 0
    raised: list[Exception] = []
    assert (await call(link, "echo", on_exception=raised.append))["status"] == "error"
    assert [type(error) for error in raised] == [Unavailable]


async def test_tools_that_change_change_in_the_registry_of_the_agent() -> None:
    source = ToySource()
    async with served(source) as (link, _):
        registry = ToolRegistry([source]).opened([link])
        assert registry.names == ("echo", "hang")
        specs = registry.specs
        source.change("echo", "hang")
        await anyio.wait_all_tasks_blocked()
        assert registry.specs is specs
        source.change("echo", "new")
        await anyio.wait_all_tasks_blocked()
        assert registry.names == ("echo", "new")
        assert [spec["name"] for spec in registry.specs] == ["echo", "new"]
        assert registry.get("hang") is None
        source.names = ["echo", "hang"]
        source.die()
        await anyio.wait_all_tasks_blocked()
        await until_up(link)
        assert registry.names == ("echo", "hang")


async def test_the_agents_own_tool_keeps_its_name_whatever_a_server_offers(caplog: pytest.LogCaptureFixture) -> None:
    source = ToySource()
    async with served(source) as (link, _):
        mine = ServedTool(next(iter(link.tools))._offered, link)
        given = ToolRegistry([source, mine])
        registry = given.opened([link])
        assert registry.names == ("hang", "echo")
        assert "echo" in caplog.text
        source.change("ec-ho", "hang", "echo")
        await anyio.wait_all_tasks_blocked()
        assert registry.get("echo") is registry.find("echo") is given.opened([link]).get("echo") is mine
        assert registry.has_given("echo")
        assert not registry.has_given("hang")


async def test_the_name_of_a_servers_tool_stays_with_that_server_for_every_session() -> None:
    late, good = ToySource("late"), ToySource("good")
    async with served(late) as (late_link, _), served(good) as (good_link, _):
        given = ToolRegistry([late, good])
        with pytest.raises(Invalid, match="prefix"):
            given.opened([late_link, good_link])
        late.change("other")
        await anyio.wait_all_tasks_blocked()
        registry = given.opened([late_link, good_link])
        late.change("other", "echo", "hang")
        await anyio.wait_all_tasks_blocked()
        for each in (registry, given.opened([late_link, good_link]), registry.without("new")):
            assert each.names == ("other", "echo", "hang")
            assert each.get("echo") is good_link.tools[0]
        good.change("hang")
        await anyio.wait_all_tasks_blocked()
        assert registry.get("echo") is late_link.tools[1]


async def test_a_choice_of_tools_outlives_the_opening_of_their_server() -> None:
    source = ToySource()
    async with served(source) as (link, _):
        chosen = ToolRegistry([source]).only(["hang"])
        assert (chosen.names, chosen.enabled) == ((), ("hang",))
        registry = chosen.opened([link])
        assert (registry.names, registry.enabled) == (("hang",), ("hang",))
        assert registry.get("echo") is None
        assert registry.whole.names == ("echo", "hang")
        assert registry.whole.only(["echo"]).names == ("echo",)
        with pytest.raises(Invalid, match="no such tools"):
            registry.whole.only(["ecko"])
        source.change("echo", "hang", "new")
        await anyio.wait_all_tasks_blocked()
        assert registry.names == ("hang",)
        assert registry.whole.names == ("echo", "hang", "new")


def test_a_source_stands_for_nothing_before_its_server_runs() -> None:
    source = ToySource.__new__(ToySource)
    source.name = "toys"
    registry = ToolRegistry([source, source])
    assert (registry.sources, registry.names, len(registry)) == ((source,), (), 0)


@pytest.mark.real_time
async def test_a_tool_is_for_the_event_loop_that_opened_it() -> None:
    def elsewhere() -> ToolResult:
        return anyio.run(call, link, "echo")

    async with served(ToySource()) as (link, _):
        result = await anyio.to_thread.run_sync(elsewhere)
        assert "another event loop" in text(result)
