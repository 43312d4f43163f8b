"""What nodes are at one moment, read while they go on: none is read as it was after it began something later."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest

from repertory import Agent, ScriptedModel
from repertory.actors.orchestrator.run_driver import NodeCall
from repertory.app.host.host import Host, HostSettings
from repertory.app.host.session import ActiveSession, SessionSpec
from repertory.app.orchestration.nodes import AgentNode, RunnerSettings, SessionNodeRunner
from repertory.backends.tools.function_tool import schema_class
from repertory.errors import Unavailable

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


class SlowHost:
    """A host on which it takes a second to reach what lives there, from when it is told so; or cannot be reached."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.slow = self.down = False

    @property
    def refusing(self) -> bool:
        return self._host.refusing

    async def enter(self, spec: SessionSpec) -> ActiveSession:
        if self.down:
            raise Unavailable("not to be reached")
        if self.slow:
            await anyio.sleep(1)
        return await self._host.enter(spec)

    async def leave(self, spec: SessionSpec) -> None:
        await self._host.leave(spec)


def call(visit: int) -> NodeCall:
    return NodeCall(
        node="a", prompt=f"question {visit}", token=f"run:a:{visit}", invocation_state={}, budget_owner="run.a"
    )


def visit_of(_: str, token: str) -> int:
    return int(token.removeprefix("run:a:"))


def said(nodes: Any) -> list[str]:
    return [message["content"][0]["text"] for message in nodes["a"]["messages"]]


async def test_a_node_that_begins_something_before_it_was_read_is_read_first() -> None:
    node = AgentNode(Agent(ScriptedModel(["answer"], loop=True), callback_handler=None))
    async with Host(HostSettings(ambient=False)) as real:
        host = SlowHost(real)
        runner = SessionNodeRunner(host, RunnerSettings(nodes={"a": node}, location_of=lambda _: None))
        await runner.run(call(0))
        host.slow = True
        cut = runner.cut(visit_of)
        found: list[Any] = []

        async def read() -> None:
            found.append(await cut.read())

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(runner.run, call(1))
        assert said(found[0]) == ["question 0", "answer"]
        assert found[0]["a"]["turn"] == {"visit": 0, "messages": 2}
        now = cast("dict[str, Any]", await runner.cut(visit_of).read())
        assert said(now) == ["question 0", "answer", "question 1", "answer"]
        assert now["a"]["turn"] == {"visit": 1, "messages": 2}
        await runner.rest()


async def test_a_node_that_cannot_be_read_works_on_and_whoever_reads_is_told() -> None:
    node = AgentNode(Agent(ScriptedModel(["answer"], loop=True), callback_handler=None))
    async with Host(HostSettings(ambient=False)) as real:
        host = SlowHost(real)
        runner = SessionNodeRunner(host, RunnerSettings(nodes={"a": node}, location_of=lambda _: None))
        await runner.run(call(0))
        host.down = True
        cut = runner.cut(visit_of)
        end = await runner.run(call(1))
        assert str(end.outcome).strip() == "answer"
        with pytest.raises(Unavailable, match="not to be reached"):
            await cut.read()
        await runner.rest()
